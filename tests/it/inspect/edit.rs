//! Setting and removing keys, splitting and merging.

use gguf_foundry::gguf::GgufFile;

use super::Bench;
use crate::support::programs;

fn read(bench: &Bench, name: &str) -> Vec<u8> {
    fs_err::read(bench.path(name)).unwrap()
}

#[cfg(unix)]
#[test]
fn a_link_is_edited_where_it_leads() {
    let bench = Bench::new();
    std::os::unix::fs::symlink("model.gguf", bench.path("link.gguf")).unwrap();
    bench.run(&["set", "link.gguf", "k=u8:1"]).ok();
    assert!(fs_err::symlink_metadata(bench.path("link.gguf")).unwrap().is_symlink());
    assert!(GgufFile::open(&bench.path("model.gguf")).unwrap().metadata().contains("k"));
}

#[cfg(unix)]
#[test]
fn permissions_survive_an_edit() {
    use std::os::unix::fs::PermissionsExt;
    let bench = Bench::new();
    let path = bench.path("model.gguf");
    fs_err::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    bench.run(&["set", "model.gguf", "k=u8:1"]).ok();
    assert_eq!(fs_err::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[cfg(unix)]
#[test]
fn an_output_beyond_the_limit_fails_and_leaves_nothing() {
    let bench = Bench::new();
    let before = read(&bench, "model.gguf");
    // The limit makes a write fail like a full disk. Without the trap the signal would end the program first.
    let mut command = std::process::Command::new("sh");
    command
        .current_dir(bench.path("."))
        .arg("-c")
        .arg("trap '' XFSZ; ulimit -f 1; exec \"$0\" set model.gguf \"k=str:$(head -c 4000 /dev/zero | tr '\\0' x)\"")
        .arg(programs::path("gguf-inspect"));
    let err = programs::finish(&mut command).exits_with(1).err;
    assert!(err.starts_with("error: ") && err.contains("model.gguf: ") && err.contains("too large"), "{err}");
    assert_eq!(read(&bench, "model.gguf"), before);
    assert_eq!(bench.names(), ["model.gguf"]);
}

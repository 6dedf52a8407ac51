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

#[test]
fn a_vocabulary_that_contradicts_the_model_is_refused() {
    let bench = Bench::new().with_layers(1);
    let tokens = |n: usize| {
        let list: Vec<String> = (0..n).map(|token| format!("\"t{token}\"")).collect();
        format!("tokenizer.ggml.tokens=[{}]", list.join(","))
    };
    let set = |file: &str, assignments: &[&str], more: &[&str]| {
        bench.run(&[&["set", file, "-o", "out.gguf"], assignments, more].concat())
    };
    let (few, many) = (tokens(2), tokens(2000));
    set("tiny.gguf", &[&few], &[]).says(1, "key `tokenizer.ggml.token_type` has 1024 entries for 2 tokens");
    set("tiny.gguf", &[&many], &[])
        .says(1, "key `tokenizer.ggml.token_type` has 1024 entries for 2000 tokens");
    // The list alone, and the embedding.
    bench.run(&["remove", "tiny.gguf", "tokenizer.ggml.token_type", "--force"]).ok();
    set("tiny.gguf", &[&many], &[])
        .says(1, "tensor `token_embd.weight`: shape [1024, 256], expected [2000, 256]");
    set("tiny.gguf", &[&many], &["--force"]).ok();
    // A fault that was there before is no objection.
    bench.run(&["set", "out.gguf", "tokenizer.ggml.pre=llama-bpe"]).ok();
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

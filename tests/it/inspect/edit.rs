//! Setting and removing keys, splitting and merging.

use gguf_foundry::gguf::{GgufFile, Value};
use serde_json::json;

use super::Bench;
use crate::support::programs;

fn read(bench: &Bench, name: &str) -> Vec<u8> {
    fs_err::read(bench.path(name)).unwrap()
}

#[test]
fn keys_are_set_in_place_and_data_stays() {
    let bench = Bench::new();
    let before = bench.json(&["hash", "model.gguf"], 0);
    let out = bench
        .run(&[
            "set",
            "model.gguf",
            "llama.block_count=u32:7",
            "general.alignment=u32:128",
            "general.tags=arr:[\"a\", \"b\"]",
            "x.text=str:a=b:c",
        ])
        .says_only(0, "")
        .out;
    insta::assert_snapshot!(out.replace(bench.path("").canonicalize().unwrap().to_str().unwrap(), "DIR"), @r#"
    key                type      old        new
    llama.block_count  u32       2       →  7
    general.alignment  u32       (none)  →  128
    general.tags       arr[str]  (none)  →  ["a", "b"]
    x.text             str       (none)  →  a=b:c

    DIR/model.gguf
    3 tensors, 1.38 KiB
    "#);
    let file = GgufFile::open(&bench.path("model.gguf")).unwrap();
    let keys: Vec<_> = file.metadata().iter().map(|(key, _)| key).collect();
    assert_eq!(
        keys,
        [
            "general.architecture",
            "general.name",
            "llama.block_count",
            "llama.rope.freq_base",
            "tokenizer.ggml.tokens",
            "general.alignment",
            "general.tags",
            "x.text"
        ]
    );
    assert_eq!(file.metadata().get("llama.block_count"), Some(&Value::U32(7)));
    assert_eq!(file.metadata().get("x.text"), Some(&Value::from("a=b:c")));
    assert_eq!((file.alignment(), file.place(1).offset % 128), (128, 0));
    let after = bench.json(&["hash", "model.gguf"], 0);
    assert_eq!((&after["tensors"], &after["data"]), (&before["tensors"], &before["data"]));
    assert_eq!(bench.names(), ["model.gguf"]);
}

#[test]
fn set_and_remove_cancel_each_other_to_the_byte() {
    let bench = Bench::new();
    let before = read(&bench, "model.gguf");
    let edited = bench.json(&["set", "model.gguf", "k=u8:1", "-o", "edited.gguf", "--no-sync"], 0);
    assert_eq!(edited["files"], json!(["edited.gguf"]));
    assert_eq!(read(&bench, "model.gguf"), before);
    assert_ne!(read(&bench, "edited.gguf"), before);
    bench.run(&["remove", "edited.gguf", "k"]).ok();
    assert_eq!(read(&bench, "edited.gguf"), before);

    let err = bench.run(&["remove", "model.gguf", "no.such.key"]).exits_with(1).err;
    assert_eq!(
        err,
        "error: model.gguf: no key `no.such.key`\n\nhint: list the keys with `gguf-inspect FILE --no-tensors`\n"
    );
    assert_eq!(read(&bench, "model.gguf"), before);
}

#[test]
fn a_refused_edit_changes_nothing() {
    let bench = Bench::new();
    let before = read(&bench, "model.gguf");
    let err = bench.run(&["set", "model.gguf", "general.alignment=u32:48"]).exits_with(1).err;
    assert!(
        err.ends_with("key `general.alignment`: a power of two of type u32 expected, found 48\n"),
        "{err}"
    );
    let err = bench.run(&["set", "model.gguf", "k=text:1"]).exits_with(2).err;
    assert!(err.starts_with("error: key `k`: not in the file, so a type is needed: `k=TYPE:VALUE`"), "{err}");
    assert_eq!(read(&bench, "model.gguf"), before);
    assert_eq!(bench.names(), ["model.gguf"]);
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

#[test]
fn split_and_merge_give_the_file_back() {
    let bench = Bench::new();
    let report = bench.json(&["split", "model.gguf", "-o", "part.gguf", "--split-max-tensors", "2"], 0);
    assert_eq!(report["files"], json!(["part-00001-of-00002.gguf", "part-00002-of-00002.gguf"]));
    let summary = bench.json(&["part-00002-of-00002.gguf"], 0);
    assert_eq!(summary["parts"].as_array().unwrap().len(), 2);
    assert_eq!(summary["tensors"][2]["part"], json!(1));
    let out = bench.run(&["diff", "model.gguf", "part-00001-of-00002.gguf"]).exits_with(1).out;
    assert!(out.starts_with("4 keys and 0 tensors differ\n\nlayout  a  b\nparts   1  2\n\nkey "), "{out}");

    bench.run(&["merge", "part-00002-of-00002.gguf", "-o", "whole.gguf"]).ok();
    assert_eq!(read(&bench, "whole.gguf"), read(&bench, "model.gguf"));

    bench
        .run(&["merge", "whole.gguf", "-o", "again.gguf"])
        .says_only(1, "error: whole.gguf: not a part of a split file\n");
    bench
        .run(&["merge", "part-00001-of-00002.gguf", "-o", "part-00002-of-00002.gguf"])
        .says(2, "output is the same file as input part-00002-of-00002.gguf");
}

#[test]
fn parts_by_size_and_a_first_part_without_tensors() {
    let bench = Bench::new();
    let args = ["split", "model.gguf", "-o", "p", "--split-max-size", "100", "--no-tensor-first-split"];
    let report = bench.json(&args, 0);
    // 32 + 64 bytes (padded) fit in 100, 96 more do not.
    assert_eq!(report["files"].as_array().unwrap().len(), 3);
    let summary = bench.json(&["p-00001-of-00003.gguf"], 0);
    let counts: Vec<_> = summary["parts"].as_array().unwrap().iter().map(|part| &part["tensors"]).collect();
    assert_eq!(counts, [&json!(0), &json!(2), &json!(1)]);
}

#[test]
fn one_part_alone_can_be_edited() {
    let bench = Bench::new();
    bench.json(&["split", "model.gguf", "-o", "p", "--split-max-tensors", "2"], 0);
    bench.run(&["set", "p-00001-of-00002.gguf", "general.name=str:New"]).ok();
    let file = GgufFile::open(&bench.path("p-00002-of-00002.gguf")).unwrap();
    assert_eq!(file.metadata().get("general.name"), Some(&Value::from("New")));
    assert_eq!(file.parts().len(), 2);
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

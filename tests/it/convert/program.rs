//! The program itself: how it takes options, and what it says about those that it does not understand.

use std::path::Path;

use gguf_foundry::core::{GgmlType, TensorSource};
use gguf_foundry::gguf::GgufFile;

use crate::support::fixture;

/// Runs `gguf-convert` in a directory: exit code, standard output, standard error. `MODEL` is the bundled checkpoint.
fn run(dir: &Path, args: &[&str]) -> (i32, String, String) {
    let model = fixture("tiny-llama");
    let args = args.iter().map(|&arg| if arg == "MODEL" { model.to_str().unwrap() } else { arg });
    let output = assert_cmd::Command::cargo_bin("gguf-convert")
        .unwrap()
        .current_dir(dir)
        .arg("--no-sync")
        .args(args)
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_type_that_is_nearly_one_is_offered() {
    let dir = tempfile::tempdir().unwrap();
    for (name, offer) in [
        ("q4_km", "did you mean `q4_k_m`?"),
        ("fp16", "did you mean `f16`?"),
        ("natve", "did you mean `native`?"),
        ("Q4_K_L", "did you mean `q4_k_m`, `q4_k` or `q4_k_s`?"),
    ] {
        let (code, _, err) = run(dir.path(), &["hf2gguf", "MODEL", "--type", name, "-o", "out.gguf"]);
        let want = format!("error: unknown type `{name}`\n\nhint: {offer}\nhint: `--help` lists the types\n");
        assert_eq!((code, err), (2, want));
    }
    let (code, _, err) = run(dir.path(), &["hf2gguf", "MODEL", "--type", "elephant"]);
    assert_eq!(
        (code, err.as_str()),
        (2, "error: unknown type `elephant`\n\nhint: `--help` lists the types\n")
    );
    assert_eq!(fs_err::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn the_help_lists_every_type() {
    let (code, help, _) = run(Path::new("."), &["hf2gguf", "--help"]);
    assert_eq!(code, 0);
    for file_type in gguf_foundry::quantize::FileType::all() {
        let name = file_type.name().to_ascii_lowercase();
        assert!(name == "copy" || help.contains(&name), "{name}: {help}");
    }
    assert!(help.contains("native") && help.contains("auto"));
}

#[test]
fn the_name_of_a_model_on_the_hub_is_no_directory() {
    let dir = tempfile::tempdir().unwrap();
    let (code, _, err) = run(dir.path(), &["hf2gguf", "org/name"]);
    assert_eq!(code, 1);
    assert_eq!(
        err,
        "error: org/name: no such file or directory\n\n\
         hint: models are read from a directory: `hf download org/name --local-dir name` fetches one\n\
         hint: or, with git and git-lfs: `git clone https://huggingface.co/org/name`\n"
    );
    let (code, _, err) = run(dir.path(), &["hf2gguf", "/no/such/dir"]);
    assert_eq!(code, 1);
    assert!(
        err.starts_with("error: /no/such/dir: no such file or directory\n\nhint: give the directory"),
        "{err}"
    );
}

#[test]
fn switches_of_the_peer_are_taken_with_a_note() {
    let dir = tempfile::tempdir().unwrap();
    let args =
        ["hf2gguf", "MODEL", "--no-lazy", "--use-temp-file", "--outtype", "f16", "--outfile", "a.gguf"];
    let (code, _, err) = run(dir.path(), &args);
    assert_eq!(code, 0, "{err}");
    assert_eq!(
        err,
        "note: `--no-lazy` changes nothing: every tensor is read when it is written\n\
         note: `--use-temp-file` changes nothing: tensors are never gathered in memory\n"
    );
    let (code, out, err) = run(dir.path(), &[&args[..6], &["--outfile", "b.gguf", "-q"]].concat());
    assert_eq!((code, out.as_str(), err.as_str()), (0, "", ""));
    let read = |name: &str| fs_err::read(dir.path().join(name)).unwrap();
    assert_eq!(read("a.gguf"), read("b.gguf"));
}

#[test]
fn an_expression_that_matches_no_tensor_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let rules =
        ["--tensor-type", "attn_v=q8_0", "--tensor-type", "No_Such=q8_0", "--tensor-type", "nor_this=f16"];
    let args = ["hf2gguf", "MODEL", "--type", "q4_k_m", "-o", "out.gguf"];
    let (code, _, err) = run(dir.path(), &[&args[..], &rules].concat());
    assert_eq!(code, 0, "{err}");
    assert!(
        err.contains("warning: --tensor-type: expressions match no tensor: `no_such`, `nor_this`\n"),
        "{err}"
    );
    let file = GgufFile::open(&dir.path().join("out.gguf")).unwrap();
    let index = file.tensor_index("blk.0.attn_v.weight").unwrap();
    assert_eq!(file.tensors()[index].ty, GgmlType::Q8_0);
}

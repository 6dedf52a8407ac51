//! The program: its options, and messages for unknown ones.

use std::path::Path;

use gguf_foundry::core::{GgmlType, TensorSource};
use gguf_foundry::gguf::GgufFile;

use crate::support::programs::{self, Outcome};
use crate::support::{files, fixture};
use crate::testkit::checkpoints::Safetensors;

/// Runs `gguf-convert` in a directory. `MODEL` is the bundled checkpoint.
fn run(dir: &Path, args: &[&str]) -> Outcome {
    let model = fixture("tiny-llama");
    let args = args.iter().map(|&arg| if arg == "MODEL" { model.to_str().unwrap() } else { arg });
    programs::run_unsynced("gguf-convert", dir, &args.collect::<Vec<_>>())
}

#[test]
fn a_type_that_is_nearly_one_is_offered() {
    let dir = tempfile::tempdir().unwrap();
    for (name, offer) in [
        ("q4_km", "did you mean `q4_k_m`?"),
        ("natve", "did you mean `native`?"),
        ("Q4_K_L", "did you mean `q4_k_m`, `q4_k` or `q4_k_s`?"),
    ] {
        let mut want =
            format!("error: unknown type `{name}`\n\nhint: {offer}\nhint: `--help` lists the types\n");
        if name.ends_with("_L") {
            want += "hint: `gguf-quantize ladder IN -o DIR --types Q4_K_L` writes it\n";
        }
        run(dir.path(), &["hf2gguf", "MODEL", "--type", name, "-o", "out.gguf"]).says_only(2, &want);
    }
    run(dir.path(), &["hf2gguf", "MODEL", "--type", "elephant"])
        .says_only(2, "error: unknown type `elephant`\n\nhint: `--help` lists the types\n");
    assert_eq!(fs_err::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn the_help_lists_every_type() {
    let help = run(Path::new("."), &["hf2gguf", "--help"]).ok().out;
    for file_type in gguf_foundry::quantize::FileType::all() {
        let name = file_type.name().to_ascii_lowercase();
        assert!(name == "copy" || help.contains(&name), "{name}: {help}");
    }
    assert!(help.contains("native") && help.contains("auto"));
}

#[test]
fn a_directory_that_is_not_there_is_told_from_a_model_on_the_hub() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = programs::command("gguf-convert", Path::new("."));
    let err =
        programs::finish(command.env("HF_HUB_OFFLINE", "1").args(["hf2gguf", "org/name"])).exits_with(1).err;
    assert!(
        err.contains("org/name: nothing of this name is here") && err.contains("HF_HUB_OFFLINE"),
        "{err}"
    );
    let err = run(dir.path(), &["hf2gguf", "/no/such/dir"]).exits_with(1).err;
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
    let err = run(dir.path(), &args).ok().err;
    assert_eq!(
        err,
        "note: `--no-lazy` changes nothing: every tensor is read when it is written\n\
         note: `--use-temp-file` changes nothing: tensors are never gathered in memory\n"
    );
    let (code, out, err) = run(dir.path(), &[&args[..6], &["--outfile", "b.gguf", "-q"]].concat()).parts();
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
    let err = run(dir.path(), &[&args[..], &rules].concat()).ok().err;
    assert!(
        err.contains(
            "warning: 2 options without effect: `--tensor-type no_such=q8_0` (no tensor has such a name), \
             `--tensor-type nor_this=f16` (no tensor has such a name)\n"
        ),
        "{err}"
    );
    let file = GgufFile::open(&dir.path().join("out.gguf")).unwrap();
    let index = file.tensor_index("blk.0.attn_v.weight").unwrap();
    assert_eq!(file.tensors()[index].ty, GgmlType::Q8_0);
}

/// Bundled checkpoint with matrices of zeros in place of those whose names contain one of these words.
fn with_zeros(dir: &Path, words: &[&str]) {
    fs_err::create_dir_all(dir).unwrap();
    files::copy(fixture("tiny-llama"), dir);
    let path = dir.join("model.safetensors");
    let mut file = Safetensors::parse(&fs_err::read(&path).unwrap());
    let names: Vec<String> = file.header().keys().cloned().collect();
    for name in names.iter().filter(|name| words.iter().any(|word| name.contains(word))) {
        assert!(name.ends_with("weight"));
        file.data_mut(name).fill(0);
    }
    file.write(&path);
}

#[test]
fn warnings_are_one_line_a_kind_in_one_style() {
    let dir = tempfile::tempdir().unwrap();
    with_zeros(&dir.path().join("model"), &["k_proj", "v_proj"]);
    for file_type in ["f16", "q4_k_m"] {
        let args = ["hf2gguf", "model", "--type", file_type, "-o", "out.gguf"];
        let err = run(dir.path(), &args).ok().err;
        let zeros: Vec<_> = err.lines().filter(|line| line.contains("nothing but zeros")).collect();
        assert_eq!(zeros.len(), 1, "{err}");
        assert!(zeros[0].starts_with("warning: ") && zeros[0].contains(" more (-v lists all)"), "{err}");
        assert!(err.lines().all(|line| line.starts_with("warning: ")), "{err}");
        let err = run(dir.path(), &[&args[..], &["-v"]].concat()).err;
        assert!(err.contains("`blk.3.attn_v.weight`") && !err.contains("-v lists all"), "{err}");
    }
}

//! `gguf-quantize --target-size`: the size holds for the file that is written, and types can be written and read.

use std::path::Path;

use gguf_foundry::core::TensorSource;
use gguf_foundry::gguf::GgufFile;
use serde_json::Value as Json;

use crate::support::fixture;

fn run(dir: &Path, args: &[&str]) -> (i32, String, String) {
    let mut command = assert_cmd::Command::cargo_bin("gguf-quantize").unwrap();
    let output = command.current_dir(dir).arg("--no-sync").args(args).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

/// The bundled model in F16.
fn prepare(dir: &Path) {
    let mut command = assert_cmd::Command::cargo_bin("gguf-convert").unwrap();
    command.args(["hf2gguf", "--type", "f16", "--quiet", "--no-sync", "-o"]);
    let output = command.arg(dir.join("in.gguf")).arg(fixture("tiny-llama")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_file_has_the_size_that_the_plan_says_and_its_types_can_be_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    prepare(dir);
    for target in ["1500000", "2100000", "3.2M"] {
        let base = ["--target-size", target, "--json", "in.gguf", "out.gguf"];
        let (code, dry, err) = run(dir, &[&base[..], &["--dry-run", "--write-types", "types.txt"]].concat());
        assert_eq!(code, 0, "{err}");
        assert!(!dir.join("out.gguf").exists());
        let (code, out, err) = run(dir, &base);
        assert_eq!(code, 0, "{err}");
        let (dry, out): (Json, Json) =
            (serde_json::from_str(&dry).unwrap(), serde_json::from_str(&out).unwrap());
        assert_eq!(dry["target"], out["target"]);
        let most = out["target"]["bytes"].as_u64().unwrap();
        let n_bytes = fs_err::metadata(dir.join("out.gguf")).unwrap().len();
        assert_eq!(out["target"]["file_bytes"].as_u64(), Some(n_bytes));
        assert!(n_bytes <= most && n_bytes as f64 >= most as f64 * 0.995, "{n_bytes} of {most}");
        let kld = |target: &Json| target["expected_kld"].as_f64().unwrap();
        assert!(kld(&out["target"]) > 0.0 && kld(&out["target"]["standard_mix"]) > 0.0);

        let (code, _, err) =
            run(dir, &["--type", "q8_0", "--tensor-type-file", "types.txt", "in.gguf", "again.gguf"]);
        assert_eq!(code, 0, "{err}");
        let open = |name: &str| GgufFile::open(&dir.join(name)).unwrap();
        assert_eq!(open("out.gguf").tensors(), open("again.gguf").tensors());
        fs_err::remove_file(dir.join("out.gguf")).unwrap();
    }
}

#[test]
fn sizes_and_options_that_do_not_go_together_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    prepare(dir);
    for (args, code, words) in [
        (&["--target-size", "100K"][..], 1, "with the smallest types it has"),
        (&["--target-bpw", "1"], 1, "the smallest possible are `--target-size"),
        (&["--target-bpw", "4", "--target-size", "2M"], 2, "cannot be used with"),
        (&["--target-bpw", "4", "--type", "q4_k_m"], 2, "cannot be used with"),
        (&["--target-bpw", "4", "--pure"], 2, "cannot be used with"),
        (&["--target-bpw", "0"], 2, "a size above 0 expected"),
        (&["--target-bpw", "4", "--types", "q4_k,q9_9"], 2, "unknown tensor type `q9_9`"),
        (&["--target-bpw", "4", "--types", "q8_1"], 1, "nothing can be quantized to it"),
        (&["--target-bpw", "4", "--types", "iq2_xs"], 1, "needs an importance matrix"),
        (&["--types", "q4_k", "--type", "q4_k_m"], 2, "--target"),
    ] {
        let (found, _, err) = run(dir, &[args, &["in.gguf", "out.gguf"]].concat());
        assert_eq!(found, code, "{args:?}: {err}");
        assert!(err.contains(words), "{args:?}: {err}");
    }
    let (code, _, err) = run(dir, &["--target-bpw", "4", "in.gguf", "out.gguf", "q4_k_m"]);
    assert!(code == 2 && err.contains("--target-bpw chooses the types: leave `Q4_K_M` out"), "{err}");
    assert!(!dir.join("out.gguf").exists());
    let (code, _, err) = run(dir, &["--target-bpw", "20", "--dry-run", "in.gguf"]);
    assert!(code == 0 && err.contains("each tensor has the largest of the types"), "{err}");
}

//! Drafted cards by the program.

use gguf_testkit::checkpoints::write_zeros;
use serde_json::json;

use crate::support::{files, fixture, programs};

#[test]
fn the_program_drafts_and_converts() {
    let dir = tempfile::tempdir().unwrap();
    let mut unknown = files::json(fixture("cards/qwen3/plain.json"));
    unknown["config"]["architectures"] = json!(["NobodysForCausalLM"]);
    unknown["config"]["model_type"] = json!("nobodys");
    write_zeros(&dir.path().join("model"), &unknown);
    let run = |code: i32, args: &[&str]| {
        let ended = programs::run("gguf-convert", dir.path(), args).exits_with(code);
        (ended.out, ended.err)
    };
    let dry = ["hf2gguf", "model", "--dry-run", "--no-tokenizer"];
    let (_, err) = run(1, &dry);
    assert!(err.contains("hint: the checkpoint is most like card `qwen3`"), "{err}");
    let (card, err) = run(0, &["draft", "model"]);
    for part in ["most like card `qwen3`", "have a place in the card", "next: fill in its TODOs"] {
        assert!(err.contains(part), "{part}: {err}");
    }
    run(0, &["draft", "model", "-o", "my.toml", "--no-sync"]);
    // With that card the class is known, and shown like any other.
    let class = unknown["config"]["architectures"][0].as_str().unwrap();
    assert!(run(2, &["archs", class]).1.contains("no architecture and no class is named"));
    assert!(run(0, &["archs", class, "--card", "my.toml"]).0.contains(&format!("  classes     {class}\n")));
    assert_eq!(fs_err::read_to_string(dir.path().join("my.toml")).unwrap(), card);
    run(0, &[&dry[..], &["--card", "my.toml"]].concat());

    // An edited draft is not replaced.
    fs_err::write(dir.path().join("my.toml"), card.replacen("TODO: one line on what", "What", 1)).unwrap();
    let (_, err) = run(1, &["draft", "model", "-o", "my.toml", "--no-sync"]);
    assert!(err.contains("a drafted card does not replace"), "{err}");
    let (_, err) = run(1, &["draft", "nowhere"]);
    assert!(err.starts_with("error: "), "{err}");
}

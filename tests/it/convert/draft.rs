//! Drafted cards by the program.

use gguf_foundry::convert::{Conversion, ConvertOptions};
use gguf_foundry::core::TensorSource;
use gguf_testkit::bundled;
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
    std::fs::create_dir(dir.path().join("none")).unwrap();
    assert!(
        run(0, &["archs", "qwen3", "--card", "none"]).1.contains("no file of that directory ends in `.toml`")
    );
    assert!(run(0, &["archs", class, "--card", "my.toml"]).0.contains(&format!("  classes     {class}\n")));
    assert_eq!(fs_err::read_to_string(dir.path().join("my.toml")).unwrap(), card);
    run(0, &[&dry[..], &["--card", "my.toml"]].concat());

    // An edited draft is not replaced, wherever it was edited.
    run(0, &["draft", "model", "-o", "my.toml", "--no-sync"]);
    let edited = format!("{card}# my own line\n");
    fs_err::write(dir.path().join("my.toml"), &edited).unwrap();
    let (_, err) = run(1, &["draft", "model", "-o", "my.toml", "--no-sync"]);
    assert!(err.contains("my.toml: it is there and has other content than this draft"), "{err}");
    assert_eq!(fs_err::read_to_string(dir.path().join("my.toml")).unwrap(), edited);
    fs_err::write(dir.path().join("my.toml"), card.replacen("TODO: one line on what", "What", 1)).unwrap();
    let (_, err) = run(1, &["draft", "model", "-o", "my.toml", "--no-sync"]);
    assert!(err.contains("a drafted card does not replace"), "{err}");
    let (_, err) = run(1, &["draft", "nowhere"]);
    assert!(err.starts_with("error: "), "{err}");
}

#[test]
fn a_row_of_a_card_that_replaces_another_permutes_as_that_one() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    bundled::write_layers(1, &model);
    let query = |card: Option<std::path::PathBuf>| {
        let planned =
            Conversion::plan(&model, &ConvertOptions { card, ..ConvertOptions::default() }).unwrap();
        let tensors = planned.tensors();
        let at = tensors.iter().position(|meta| meta.name == "blk.0.attn_q.weight").unwrap();
        let mut bytes = vec![0; tensors[at].n_bytes().unwrap() as usize];
        planned.read_rows(at, 0, &mut bytes).unwrap();
        bytes
    };
    let expected = query(None);
    // The same weights under another name, blanks in place of its letters.
    let file = model.join("model.safetensors");
    let mut weights = fs_err::read(&file).unwrap();
    let (old, new) = (b"self_attn.q_proj.weight\"", b"self_attn.wq.weight\"    ");
    let at = weights.windows(old.len()).position(|found| found == old).unwrap();
    weights[at..at + new.len()].copy_from_slice(new);
    fs_err::write(&file, weights).unwrap();
    files::edit_json(model.join("config.json"), |config| {
        config["architectures"] = json!(["NobodysForCausalLM"]);
    });
    let with_row = |row: &str| {
        let card = dir.path().join("nobodys.toml");
        let head = "schema = 1\ngguf = \"llama\"\nextends = \"llama\"\nclasses = [\"NobodysForCausalLM\"]\n";
        let examples = "examples = [\"owner/model\"]\n[blocks]\n\"self_attn.q_proj\" = false\n";
        fs_err::write(&card, format!("{head}{examples}\"self_attn.wq\" = {row}\n")).unwrap();
        query(Some(card))
    };
    assert!(with_row("\"attn_q\"") == expected, "the rows are in another order");
    assert!(with_row("{ to = \"attn_q\", ops = [] }") != expected);
}

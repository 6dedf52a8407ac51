//! `--per-token`: outputs of two models at each token, for several models at once.

use gguf_foundry::core::GgmlType;
use serde_json::Value;

use super::gguf_verify;
use crate::support::tiers::deep_test;
use crate::testkit::tiny::Tiny;

fn lines(dir: &std::path::Path, args: &[&str]) -> Vec<Value> {
    let args = [args, &["--per-token", "out.jsonl", "--no-sync"]].concat();
    gguf_verify(&args, dir).exits_with_one_of(&[0, 4]);
    let text = fs_err::read_to_string(dir.join("out.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

deep_test!(a_line_for_each_model_and_prompt_says_what_both_models_would_have_said);

fn a_line_for_each_model_and_prompt_says_what_both_models_would_have_said() {
    let dir = tempfile::tempdir().unwrap();
    let base = Tiny::new();
    base.write(dir.path(), "base.gguf");
    base.quantized(GgmlType::Q4_0).write(dir.path(), "q4_0.gguf");
    base.quantized(GgmlType::Q8_0).write(dir.path(), "q8_0.gguf");
    let prompts = "{\"tokens\": [0, 342, 278, 341, 5]}\n{\"text\": \"The river runs é\"}\n";
    fs_err::write(dir.path().join("p.jsonl"), prompts).unwrap();
    let args =
        ["q4_0.gguf", "q8_0.gguf", "--baseline", "base.gguf", "--prompts", "p.jsonl", "--max-kld", "9"];
    let found = lines(dir.path(), &args);
    assert_eq!(found.len(), 4);
    for (line, (file, prompt)) in
        found.iter().zip([("q4_0.gguf", 0), ("q4_0.gguf", 1), ("q8_0.gguf", 0), ("q8_0.gguf", 1)])
    {
        assert_eq!((line["file"].as_str(), line["prompt"].as_u64()), (Some(file), Some(prompt)));
        let n = line["tokens"].as_array().unwrap().len();
        for (name, n) in [
            ("text", n),
            ("nll", n - 1),
            ("top", n - 1),
            ("top_text", n - 1),
            ("kld", n - 1),
            ("baseline_nll", n - 1),
            ("baseline_top", n - 1),
            ("baseline_top_text", n - 1),
        ] {
            let column = line[name].as_array().unwrap_or_else(|| panic!("{name}: {line}"));
            assert!(column.len() == n && column.iter().all(|value| !value.is_null()), "{name}: {line}");
        }
    }
    // The baseline has the same figures for both, and its texts are those of its tokens.
    assert_eq!(found[0]["baseline_nll"], found[2]["baseline_nll"]);
    let alone = lines(dir.path(), &["base.gguf", "--prompts", "p.jsonl"]);
    assert_eq!(alone[1]["top"], found[1]["baseline_top"]);
    assert_eq!(alone[1]["top_text"], found[1]["baseline_top_text"]);
    assert!(alone[0].get("kld").is_none() && alone[0].get("baseline_top").is_none());
    // Tokens that are parts of a character are bytes.
    let text: Vec<u8> = alone[1]["text"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|piece| match piece {
            Value::String(text) => text.clone().into_bytes(),
            piece => {
                let hex = piece["hex"].as_str().unwrap();
                (0..hex.len())
                    .step_by(2)
                    .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
                    .collect()
            }
        })
        .collect();
    assert!(String::from_utf8(text).unwrap().ends_with("The river runs é"));
}

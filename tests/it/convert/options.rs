//! Options that change the output: each has its effect, or is refused with its name and the card's. Only `fixtures/` is
//! needed.

use std::path::Path;

use serde_json::{Value as Json, json};

use gguf_foundry::core::TensorSource;
use gguf_foundry::gguf::GgufFile;

use crate::support::files;
use crate::support::programs::{Outcome, run, run_unsynced};
use crate::testkit::checkpoints::Safetensors;

/// Writes tensors of 16-bit floats; the elements of each follow from its index.
fn write_weights(path: &Path, tensors: &[(&str, &[u64])]) {
    let mut file = Safetensors::default();
    for (number, (name, dims)) in tensors.iter().enumerate() {
        let element = |i: u64| (((i * 37 + number as u64 * 11) % 256) as f32 - 128.0) / 64.0;
        let values: Vec<f32> = (0..dims.iter().product()).map(element).collect();
        file.add_bf16(name, dims, &values);
    }
    file.write(path);
}

fn write_config(dir: &Path, config: &Json) {
    fs_err::write(dir.join("config.json"), config.to_string()).unwrap();
}

/// Runs `gguf-convert hf2gguf` without a vocabulary in `dir`.
fn convert(dir: &Path, args: &[&str]) -> Outcome {
    run_unsynced("gguf-convert", dir, &[&["hf2gguf", ".", "--no-tokenizer"], args].concat())
}

fn names(path: &Path) -> Vec<String> {
    let file = GgufFile::open(path).unwrap();
    file.tensors().iter().map(|tensor| tensor.name.clone()).collect()
}

const H: u64 = 32;

/// Card for models with a draft head, in both forms of such tensors.
const HEADS: &str = r#"
schema     = 1
gguf       = "qwen3next"
classes    = ["DraftTestForCausalLM"]
examples   = ["a/b"]
mtp_export = true
metadata   = [["block_count", "block_count"], ["context_length", "64"], ["nextn_predict_layers", "n_heads", "n_heads > 0"]]

[let]
n_heads     = "if(opt.no_mtp, 0, count('mtp.layers.'))"
block_count = "num_hidden_layers + n_heads"

[names]
rewrite = [["shift", "mtp.layers.", "model.layers.", "num_hidden_layers"]]

[tensors]
"model.embed_tokens" = "token_embd"
"model.norm"         = "output_norm"
"lm_head"            = "output"
"mtp.fc"             = { to = "blk.{bid}.nextn.eh_proj", bid = "num_hidden_layers" }

[blocks]
"input_layernorm" = "attn_norm"
"self_attn.q_proj" = "attn_q"
"#;

fn draft_checkpoint(dir: &Path) {
    write_config(
        dir,
        &json!({
            "architectures": ["DraftTestForCausalLM"],
            "num_hidden_layers": 2,
            "hidden_size": H,
            "num_attention_heads": 1,
            "head_dim": H / 2,
        }),
    );
    fs_err::write(dir.join("card.toml"), HEADS).unwrap();
    write_weights(
        &dir.join("model.safetensors"),
        &[
            ("lm_head.weight", &[H, H]),
            ("model.embed_tokens.weight", &[H, H]),
            ("model.layers.0.input_layernorm.weight", &[H]),
            ("model.layers.0.self_attn.q_proj.weight", &[H, H]),
            ("model.layers.1.input_layernorm.weight", &[H]),
            ("model.layers.1.self_attn.q_proj.weight", &[H, H]),
            ("model.norm.weight", &[H]),
            ("mtp.fc.weight", &[H, 2 * H]),
            ("mtp.layers.0.input_layernorm.weight", &[H]),
            ("mtp.layers.0.self_attn.q_proj.weight", &[H, H]),
        ],
    );
}

/// Names of blocks and of the tensors after them, together with the names outside the blocks.
fn around<'a>(blocks: &[&'a str], rest: &[&'a str]) -> Vec<&'a str> {
    [&["output.weight", "token_embd.weight"], blocks, &["output_norm.weight"], rest].concat()
}

#[test]
fn draft_heads_are_kept_dropped_or_alone() {
    let dir = tempfile::tempdir().unwrap();
    draft_checkpoint(dir.path());
    let run = |args: &[&str]| {
        convert(dir.path(), &[&["--card", "card.toml"], args].concat()).says_only(0, "");
    };
    let own =
        ["blk.0.attn_norm.weight", "blk.0.attn_q.weight", "blk.1.attn_norm.weight", "blk.1.attn_q.weight"];
    let head = ["blk.2.nextn.eh_proj.weight", "blk.2.attn_norm.weight", "blk.2.attn_q.weight"];
    let keys = |path: &Path| {
        let file = GgufFile::open(path).unwrap();
        ["qwen3next.block_count", "qwen3next.nextn_predict_layers"]
            .map(|key| file.metadata().get(key).map(|value| value.as_i128().unwrap()))
    };
    let path = dir.path().join("out.gguf");
    run(&["-o", "out.gguf"]);
    assert_eq!(names(&path), around(&own, &head));
    assert_eq!(keys(&path), [Some(3), Some(1)]);
    run(&["-o", "out.gguf", "--no-nextn"]);
    assert_eq!(names(&path), around(&own, &[]));
    assert_eq!(keys(&path), [Some(2), None]);
    run(&["-o", ".", "--mtp", "--model-name", "Some", "--type", "f16"]);
    let heads = files::entries(dir.path());
    let path =
        heads.iter().find(|path| files::name(path).starts_with("mtp-")).expect("a file named for its heads");
    assert!(path.to_str().unwrap().ends_with("-F16.gguf"), "{}", path.display());
    assert_eq!(names(path), around(&[], &head));
    assert_eq!(keys(path), [Some(3), Some(1)]);
}

#[test]
fn draft_heads_that_are_not_there_are_missed() {
    let dir = tempfile::tempdir().unwrap();
    draft_checkpoint(dir.path());
    write_weights(
        &dir.path().join("model.safetensors"),
        &[
            ("model.embed_tokens.weight", &[H, H]),
            ("model.layers.0.input_layernorm.weight", &[H]),
            ("model.layers.1.input_layernorm.weight", &[H]),
        ],
    );
    convert(dir.path(), &["--card", "card.toml", "--mtp"]).says_only(
        1,
        "error: `--mtp`: the checkpoint has no draft heads: no tensor of a block after the model's own\n",
    );
    // A partial head is not accepted as a head.
    write_weights(
        &dir.path().join("model.safetensors"),
        &[
            ("model.embed_tokens.weight", &[H, H]),
            ("mtp.layers.0.self_attn.q_proj.weight", &[H, H]),
            ("mtp.layers.1.input_layernorm.weight", &[H]),
        ],
    );
    let err = convert(dir.path(), &["--card", "card.toml", "--mtp"]).exits_with(1).err;
    assert!(err.contains("the checkpoint lacks `mtp.layers.1.self_attn.q_proj.weight`"), "{err}");
}

#[test]
fn options_that_do_not_go_with_a_card_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let model = crate::support::fixture("tiny-llama");
    for (option, why) in
        [("--mtp", "its models are written as a whole"), ("--no-mtp", "its models are written as a whole")]
    {
        let out = dir.path().join("out.gguf");
        let args =
            ["hf2gguf", model.to_str().unwrap(), "--no-tokenizer", "-o", out.to_str().unwrap(), option];
        let want = format!("error: `{option}` does not go with card `llama`: {why}\n");
        run("gguf-convert", dir.path(), &args).says_only(1, &want);
    }
}

#[test]
fn tensors_left_out_by_name_are_told_and_bad_patterns_are_usage() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let err = convert(at, &["--drop", "v_head(", "-o", "out.gguf"]).exits_with(2).err;
    assert!(err.contains("`--drop v_head(`: no regular expression: unclosed group"), "{err}");
    convert(at, &["--drop", "x", "--vocab-only"]).exits_with(2);

    write_config(
        at,
        &json!({
            "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": H,
            "n_positions": 8, "vocab_size": 8, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": true,
        }),
    );
    write_weights(
        &at.join("model.safetensors"),
        &[
            ("transformer.wte.weight", &[8, H]),
            ("transformer.wpe.weight", &[8, H]),
            ("transformer.ln_f.weight", &[H]),
            ("transformer.ln_f.bias", &[H]),
            ("transformer.h.0.ln_1.weight", &[H]),
            ("transformer.h.0.ln_1.bias", &[H]),
            ("transformer.h.0.attn.c_attn.weight", &[H, 3 * H]),
            ("transformer.h.0.attn.c_attn.bias", &[3 * H]),
            ("transformer.h.0.attn.c_proj.weight", &[H, H]),
            ("transformer.h.0.attn.c_proj.bias", &[H]),
            ("transformer.h.0.ln_2.weight", &[H]),
            ("transformer.h.0.ln_2.bias", &[H]),
            ("transformer.h.0.mlp.c_fc.weight", &[H, 4 * H]),
            ("transformer.h.0.mlp.c_fc.bias", &[4 * H]),
            ("transformer.h.0.mlp.c_proj.weight", &[4 * H, H]),
            ("transformer.h.0.mlp.c_proj.bias", &[H]),
            ("probe.a.weight", &[2, H]),
            ("probe.b.weight", &[2, H]),
        ],
    );
    let err = convert(at, &["-o", "out.gguf"]).exits_with(1).err;
    assert!(err.contains(r"`--drop '^probe\.'` of gguf-convert leaves them out"), "{err}");
    assert!(!at.join("out.gguf").exists());
    let err = convert(at, &["-o", "out.gguf", "--drop", r"^probe\.", "--drop", "nothing"]).ok().err;
    assert!(
        err.contains(r"`--drop ^probe\.` leaves out 2 tensors: `probe.a.weight`, `probe.b.weight`"),
        "{err}"
    );
    assert!(err.contains("`--drop nothing` matches no tensor of the checkpoint"), "{err}");
    assert_eq!(names(&at.join("out.gguf")).len(), 16);
    // A pattern that takes too much is named.
    let err = convert(at, &["-o", "no.gguf", "--drop", r"^probe\.", "--drop", "c_fc"]).exits_with(1).err;
    assert!(err.contains("hint: `--drop c_fc` leaves it out, and the model needs it"), "{err}");
    assert!(!err.contains("shards"), "{err}");
    for option in [&["--pure"][..], &["--fuse-qkv"], &["--imatrix", "x"], &["--split-max-size", "1m"]] {
        let args = [&["hf2gguf", ".", "--vocab-only", "--type", "q4_0"], option].concat();
        let err = run_unsynced("gguf-convert", at, &args).exits_with(2).err;
        let want = format!("`{}` needs tensors: leave `--vocab-only` out", option[0]);
        assert!(err.contains(&want), "{err}");
    }
}

#[test]
fn codes_of_mlx_that_do_not_fit_their_description_are_refused_and_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    write_config(
        at,
        &json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama",
            "quantization": {"group_size": 64, "bits": 4}, "quantization_config": {"group_size": 64, "bits": 4},
        }),
    );
    let mut file = Safetensors::default();
    file.add("model.embed_tokens.weight", "U32", [1, 1], &[0; 4]);
    file.add_f32("model.embed_tokens.scales", [1, 1], &[0.0]);
    file.write(&at.join("model.safetensors"));
    let err = convert(at, &["-o", "out.gguf"]).exits_with(1).err;
    let want = "tensor `model.embed_tokens.weight`: shape is [1, 1], expected rows of whole groups: 4 bits in groups of 64";
    assert!(err.contains(want), "{err}");
    assert!(!at.join("out.gguf").exists());
}

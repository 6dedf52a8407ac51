//! Whole conversions from `.bin`: memory use, and every byte of the file.

#![cfg(target_os = "linux")]

use std::io::Write;
use std::path::Path;

use crate::support::goldens::{Goldens, tiered_conformance_tests};
use crate::support::tiers::{Tier, deep_test};
use crate::support::{self, files, programs, report_cases};
use gguf_testkit::torch::{Tensor, dict, pickle, zip};

const HIDDEN: i64 = 1024;
const FF: i64 = 4096;
const VOCAB: i64 = 512;

/// Writes a Llama in F16 with all weights in one file; the down projections are transposed views.
fn model(dir: &Path, n_layers: usize) {
    fs_err::create_dir(dir).unwrap();
    let config = format!(
        r#"{{"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":{HIDDEN},"intermediate_size":{FF},
        "num_hidden_layers":{n_layers},"num_attention_heads":8,"num_key_value_heads":8,"vocab_size":{VOCAB},
        "rms_norm_eps":1e-5,"max_position_embeddings":128,"tie_word_embeddings":true}}"#
    );
    fs_err::write(dir.join("config.json"), config).unwrap();
    let mut shapes = vec![("model.embed_tokens.weight".to_owned(), vec![VOCAB, HIDDEN])];
    for layer in 0..n_layers {
        for (name, shape) in [
            ("self_attn.q_proj", vec![HIDDEN, HIDDEN]),
            ("self_attn.k_proj", vec![HIDDEN, HIDDEN]),
            ("self_attn.v_proj", vec![HIDDEN, HIDDEN]),
            ("self_attn.o_proj", vec![HIDDEN, HIDDEN]),
            ("mlp.gate_proj", vec![FF, HIDDEN]),
            ("mlp.up_proj", vec![FF, HIDDEN]),
            ("mlp.down_proj", vec![HIDDEN, FF]),
            ("input_layernorm", vec![HIDDEN]),
            ("post_attention_layernorm", vec![HIDDEN]),
        ] {
            shapes.push((format!("model.layers.{layer}.{name}.weight"), shape));
        }
    }
    shapes.push(("model.norm.weight".to_owned(), vec![HIDDEN]));

    // From 0x3000 on: 0.125 and slightly more.
    let values: Vec<u8> = (0..509).flat_map(|i| (0x3000u16 + i * 7 % 509).to_le_bytes()).collect();
    let mut entries: Vec<(&str, Vec<u8>)> = Vec::new();
    let mut records: Vec<(String, Vec<u8>)> = Vec::new();
    for (index, (name, shape)) in shapes.iter().enumerate() {
        let n: i64 = shape.iter().product();
        let key: &'static str = index.to_string().leak();
        let mut tensor = Tensor::new("HalfStorage", key, shape);
        if name.contains("down_proj") {
            tensor.strides = vec![1, shape[0]];
        }
        entries.push((name, tensor.bytes()));
        let mut data = values.repeat(n as usize / 509 + 1);
        data.truncate(2 * n as usize);
        records.push((format!("archive/data/{key}"), data));
    }
    records.insert(0, ("archive/data.pkl".to_owned(), pickle(&dict(&entries))));
    let records: Vec<(&str, &[u8])> =
        records.iter().map(|(name, data)| (name.as_str(), data.as_slice())).collect();
    let mut file = fs_err::File::create(dir.join("pytorch_model.bin")).unwrap();
    file.write_all(&zip(&records)).unwrap();
}

/// Highest `RssAnon` of a conversion in KiB: memory that is not a mapped file.
fn peak_memory_kib(dir: &Path, out: &Path) -> u64 {
    let options =
        ["--quiet", "--no-sync", "--threads", "2", "--memory", "32M", "--no-tokenizer", "--type", "f16"];
    let mut command = programs::command("gguf-convert", dir);
    support::peak_memory_kib(command.arg("hf2gguf").args(options).arg("-o").args([out, dir]))
}

deep_test!(a_file_larger_than_the_budget_converts_within_it);
fn a_file_larger_than_the_budget_converts_within_it() {
    let dir = tempfile::tempdir().unwrap();
    let (small, large) = (dir.path().join("small"), dir.path().join("large"));
    model(&small, 1);
    model(&large, 4);
    let n_bytes = fs_err::metadata(large.join("pytorch_model.bin")).unwrap().len();
    assert!(n_bytes > 120 << 20, "{n_bytes} bytes");
    let of_small = peak_memory_kib(&small, &dir.path().join("small.gguf"));
    let of_large = peak_memory_kib(&large, &dir.path().join("large.gguf"));
    assert!(of_small > 0 && of_large < 48 << 10, "{of_small} KiB, {of_large} KiB");
    assert!(
        of_large < of_small + (8 << 10),
        "{of_small} KiB for the small model, {of_large} KiB for the large one"
    );
}

#[cfg(target_os = "linux")]
tiered_conformance_tests!(conformance_hostile_files_need_little_memory);

/// A program in 400 MB of address space handles every hostile file.
#[cfg(target_os = "linux")]
fn conformance_hostile_files_need_little_memory(corpus: &Goldens, tier: Tier) {
    let dir = tempfile::tempdir().unwrap();
    let mut n_cases = 0;
    let mut all = files::entries(corpus.join("formats/pytorch/hostile"));
    all.retain(|file| !file.ends_with("case.json"));
    for file in tier.some(8, all) {
        let path = dir.path().join(file.file_name().unwrap());
        fs_err::copy(&file, &path).unwrap();
        let mut command = programs::limited("ulimit -v 400000", "gguf-inspect", dir.path());
        // The names in these files may be anything.
        let output = command.arg("checkpoint").arg(&path).output().unwrap();
        let code = output.status.code();
        assert!(matches!(code, Some(0 | 1)), "{}: {output:?}", path.display());
        n_cases += 1;
    }
    report_cases("hostile PyTorch files in little memory", n_cases);
}

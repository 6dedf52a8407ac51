//! Files of the repository as inputs: the invalid ones of `fixtures/hostile`, those of reference programs
//! (`fixtures/golden`), and the built-in cards. They need not be accepted.

use std::path::{Path, PathBuf};

use gguf_foundry::core::limits::Limits;
use gguf_foundry::gguf::{Strictness, Value, parse_header};
use gguf_foundry::tokenizer::Mode;
use serde_json::Value as Json;

use super::entries::join;
use super::{seeds, vocabularies};
use crate::hostile_corpus::material::Material;
use crate::support::goldens::Goldens;
use crate::support::{files, fixture, names, root};

/// Tokenizer modes under which all vocabularies are tried.
const MODES: [&str; 5] = ["bpe", "llama_hf", "spm", "unigram", "wordpiece"];

/// Inputs of a target.
pub fn of(target: &str) -> Vec<Vec<u8>> {
    let mut all = bad(target);
    all.extend(good(target));
    all.retain(|input| !input.is_empty());
    all
}

/// Inputs from `fixtures/hostile`. Its `tokenizer_` files go only to our reader of the JSON. The third-party library
/// needs a separate process to limit its memory and time, so it is left to `hostile_corpus`.
fn bad(target: &str) -> Vec<Vec<u8>> {
    let prefixes: &[&str] = match target {
        "gguf" | "rewrite" | "describe" => &["gguf_", "engine_", "vocab_"],
        "engine" | "to_hf" => &["gguf_", "engine_"],
        "encoder" | "template" => &["vocab_", "template_"],
        "convert" => &["config_", "model_", "sentencepiece_", "safetensors_", "torch_"],
        "index" => &["config_", "model_", "index_", "safetensors_", "torch_"],
        "tokenizer_json" => &["tokenizer_"],
        "fastllm" | "fastllm_codes" => &["flm_"],
        "metadata_json" => &["metadata_"],
        "logits" => &["logits_"],
        "card" => &["card_"],
        "config" => &["config_", "metadata_"],
        "imatrix" => &["imatrix_"],
        "prompts" => &["prompts_"],
        "safetensors" => &["safetensors_"],
        "sentencepiece" | "tokenizer_files" => &["sentencepiece_"],
        "tasks" => &["tasks_"],
        "torch" => &["torch_"],
        _ => return Vec::new(),
    };
    let names = names(fixture("hostile"));
    let chosen = names.iter().filter(|name| prefixes.iter().any(|prefix| name.starts_with(prefix)));
    chosen.flat_map(|name| inputs_of(target, name)).collect()
}

fn inputs_of(target: &str, name: &str) -> Vec<Vec<u8>> {
    let dir = tempfile::tempdir().unwrap();
    let material = Material::new(dir.path(), name);
    let path = material.path();
    if !path.is_dir() {
        let bytes = fs_err::read(path).unwrap();
        return match target {
            "template" => template(&bytes).into_iter().collect(),
            "encoder" => vec![join(&[("keys", bytes), ("text", b"a <|im_end|> <s>b".to_vec())])],
            "tasks" => (0..3u8).map(|kind| [vec![kind], bytes.clone()].concat()).collect(),
            _ => vec![bytes],
        };
    }
    let file = |name: &str| fs_err::read(path.join(name)).unwrap_or_default();
    match target {
        "config" => vec![file("config.json")],
        "safetensors" => vec![file("model.safetensors")],
        "sentencepiece" => vec![file("tokenizer.model")],
        "tokenizer_json" => vec![file("tokenizer.json")],
        "torch" => vec![file("pytorch_model.bin")],
        "tokenizer_files" => under_modes(path, &MODES),
        _ => vec![directory(path)],
    }
}

/// Chat template in a file's keys.
fn template(file: &[u8]) -> Option<Vec<u8>> {
    let header = parse_header(file, &Limits::default(), Strictness::Format).ok()?;
    header
        .metadata
        .get("tokenizer.chat_template")
        .and_then(Value::as_str)
        .map(|text| text.as_bytes().to_vec())
}

/// Inputs from files of reference programs, and from ours.
fn good(target: &str) -> Vec<Vec<u8>> {
    let goldens = Goldens::selection();
    let read = |paths: Vec<PathBuf>| paths.iter().map(|path| fs_err::read(path).unwrap()).collect();
    let below = |path: &str, ending: &str| found(&goldens.join(path), &|path| ends_with(path, ending));
    let folders = |path: &str, name: &str| -> Vec<PathBuf> {
        let files = found(&goldens.join(path), &|path| path.file_name().is_some_and(|file| file == name));
        files.iter().map(|file| file.parent().unwrap().to_owned()).collect()
    };
    match target {
        "fastllm" | "fastllm_codes" => read(below("formats/flm", ".flm")),
        "torch" => read([below("formats/pytorch", ".bin"), below("formats/pytorch", ".pth")].concat()),
        "msmodelslim" => {
            let mut folders: Vec<PathBuf> = found(&goldens.join("formats/msmodelslim"), &|path| {
                path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("quant_model_"))
            });
            for path in &mut folders {
                path.pop();
            }
            folders.dedup();
            folders.iter().map(|folder| directory(folder)).collect()
        }
        "convert" => folders("arch", "config.json").iter().map(|folder| directory(folder)).collect(),
        "index" => {
            let mut all = folders("arch", "config.json");
            all.extend(folders("prequant", "config.json"));
            all.extend(folders("formats/pytorch", "pytorch_model.bin"));
            all.extend(folders("formats/pytorch", "pytorch_model.bin.index.json"));
            all.extend(folders("formats/pytorch", "consolidated.00.pth"));
            all.iter().map(|folder| directory(folder)).collect()
        }
        "tokenizer_files" => {
            let all: Vec<&str> = Mode::ALL.iter().map(|mode| mode.name()).collect();
            let mut folders = folders("vocab", "config.json");
            folders.push(fixture("tiny-llama"));
            folders.extend(["qwen", "baichuan", "chatglm3"].map(|name| fixture("vocab").join(name)));
            let mut inputs = vocabularies::directories(&seeds::small_tokenizer());
            inputs.extend(folders.iter().flat_map(|folder| under_modes(folder, &all)));
            // Files that only one mode reads.
            for (name, mode) in [
                ("rwkv", "rwkv_world"),
                ("plamo2", "plamo"),
                ("mistral_tekken", "mistral"),
                ("mistral_spm", "mistral"),
                ("xlmr", "xlmr"),
                ("xlmr_json", "xlmr"),
                ("bert_lines", "wordpiece"),
                ("gemma4", "gemma4"),
                ("whitespace", "whitespace"),
            ] {
                inputs.extend(under_modes(&fixture("vocab").join(name), &[mode]));
            }
            inputs
        }
        "tokenizer_json" => read(below("vocab", "tokenizer.json")),
        "encoder" => {
            let text = "Hello world, it's 2026!\n\n  \u{1f642}\u{301} \u{6f22}\u{5b57} <s>";
            let files: Vec<Vec<u8>> = read(below("vocab/_vectors", ".gguf"));
            let mut inputs = vocabularies::keys();
            inputs.extend(files.into_iter().map(|keys| join(&[("keys", keys), ("text", text.into())])));
            inputs
        }
        "card" => {
            let cards: Vec<Vec<u8>> =
                read(found(&root().join("converters"), &|path| ends_with(path, ".toml")));
            cards.into_iter().flat_map(|card| [renamed(&card), card]).collect()
        }
        "template" => read(found(&fixture("chat/templates"), &|_| true)),
        method => {
            let folders = folders("prequant", "config.json");
            folders
                .iter()
                .filter(|folder| target_of(folder) == Some(method))
                .map(|folder| directory(folder))
                .collect()
        }
    }
}

/// Card under class names that no built-in card has.
fn renamed(card: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(card);
    text.replace("ForCausalLM\"", "ForFuzzing\"").replace("Model\"", "Fuzz\"").into_bytes()
}

/// Fuzz target of the method that quantized a checkpoint.
fn target_of(folder: &Path) -> Option<&'static str> {
    let config: Json = serde_json::from_slice(&fs_err::read(folder.join("config.json")).ok()?).ok()?;
    let method = config["quantization_config"]["quant_method"].as_str();
    let exists = |name: &str| folder.join(name).exists();
    Some(match method {
        Some("auto-round" | "auto_round" | "intel/auto-round") => "auto_round",
        Some("fp8" | "fbgemm_fp8") => "fp8",
        Some("compressed-tensors") => "compressed_tensors",
        Some("awq") => "awq",
        Some("bitnet") => "bitnet",
        Some("bitsandbytes") => "bitsandbytes",
        Some("gptq") => "gptq",
        Some("hqq") => "hqq",
        Some("modelopt") => "modelopt",
        Some("mxfp4") => "mxfp4",
        Some("quanto") => "quanto",
        None if config["quantization"].is_object() => "mlx",
        _ if exists("hf_quant_config.json") => "modelopt",
        _ if exists("quanto_qmap.json") => "quanto",
        _ if exists("quantize_config.json") => "gptq",
        _ => "bitsandbytes",
    })
}

fn ends_with(path: &Path, ending: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(ending))
}

/// Files below a directory, sorted.
fn found(dir: &Path, is_one: &dyn Fn(&Path) -> bool) -> Vec<PathBuf> {
    files::below(dir).into_iter().filter(|path| is_one(path)).collect()
}

fn directory(dir: &Path) -> Vec<u8> {
    let files: Vec<_> = files::contents(dir).into_iter().collect();
    join(&files.iter().map(|(name, bytes)| (name.as_str(), bytes)).collect::<Vec<_>>())
}

/// Directory of tokenizer files, once for each mode.
fn under_modes(dir: &Path, modes: &[&str]) -> Vec<Vec<u8>> {
    let mut files: Vec<_> = files::contents(dir).into_iter().collect();
    files.retain(|(name, _)| !name.ends_with(".safetensors"));
    files.insert(0, ("mode".to_owned(), Vec::new()));
    let n_bytes: usize = files.iter().map(|file| file.1.len()).sum();
    // Two megabytes of merges under modes that do not read them give nothing new.
    let modes = if n_bytes > 1 << 19 { &modes[..modes.len().min(4)] } else { modes };
    let under = |mode: &&str| {
        files[0].1 = mode.as_bytes().to_vec();
        join(&files.iter().map(|(name, bytes)| (name.as_str(), bytes)).collect::<Vec<_>>())
    };
    modes.iter().map(under).collect()
}

//! Entries of the fuzzer: one for each parser, each decoder and each path of untrusted bytes through the project.
//!
//! An error is a valid result. A panic, an allocation beyond what the input justifies, or endless work is not. Each
//! entry also checks invariants of accepted input. This is the only list of targets: the program of `fuzz_targets`, the
//! seeds, the words and the test suite use it.

// With paths, since this file is itself included by path from two places.
#[path = "entries/blocks.rs"]
mod blocks;
#[path = "entries/bundle.rs"]
mod bundle;
#[path = "entries/checkpoint.rs"]
mod checkpoint;
#[path = "entries/codes.rs"]
mod codes;
#[path = "entries/gguf.rs"]
mod gguf;
#[path = "entries/kept.rs"]
mod kept;
#[path = "entries/model.rs"]
mod model;
#[path = "entries/recipe.rs"]
mod recipe;
#[path = "entries/texts.rs"]
mod texts;
#[path = "entries/vocabulary.rs"]
mod vocabulary;

#[allow(unused_imports, reason = "for who makes seeds")]
pub use bundle::join;
#[allow(unused_imports, reason = "for who makes seeds")]
pub use recipe::recipe_source;

/// Function that runs one input; returns true if it was accepted, so that the code after the parser was reached.
pub type Entry = fn(&[u8]) -> bool;

/// Sources of checkpoints with codes, and of GGUF files.
const CODES: &str = "checkpoint/safetensors checkpoint/config dequant/settings dequant/patterns";
const GGUF: &str = "format/header format/keys format/value format/vocabulary core/dtype";

/// All entries: target name, entry, and the sources of its parser, whose literals are the words of the fuzzer: files and
/// folders `CRATE/PATH`, separated by spaces.
pub const ENTRIES: &[(&str, Entry, &[&str])] = &[
    ("auto_round", codes::auto_round, &["dequant/autoround dequant/gptq dequant/awq", CODES]),
    ("awq", codes::awq, &["dequant/awq", CODES]),
    ("bitnet", codes::bitnet, &["dequant/bitnet", CODES]),
    ("bitsandbytes", codes::bitsandbytes, &["dequant/bitsandbytes", CODES]),
    ("blocks", blocks::blocks, &["core/dtype"]),
    ("card", texts::card, &["arch/read arch/language"]),
    (
        "compressed_tensors",
        codes::compressed_tensors,
        &["dequant/compressed dequant/sparse dequant/targets", CODES],
    ),
    ("config", texts::config, &["checkpoint/config checkpoint/json"]),
    ("convert", model::convert, &["conversion/metadata conversion/naming arch/registry arch/keys", CODES]),
    ("describe", gguf::describe, &["conversion/source arch/registry", CODES, GGUF]),
    ("encoder", vocabulary::encoder, &["tokenizer/encode", GGUF]),
    ("engine", model::engine, &["engine/resolve arch/graph", GGUF]),
    ("fastllm", checkpoint::fastllm, &["checkpoint/fastllm"]),
    ("fastllm_codes", codes::fastllm, &["checkpoint/fastllm dequant/flm conversion/fastllm"]),
    ("fp8", codes::fp8, &["dequant/fp8", CODES]),
    ("gguf", gguf::header, &[GGUF]),
    ("gptq", codes::gptq, &["dequant/gptq", CODES]),
    ("hqq", codes::hqq, &["dequant/hqq", CODES]),
    ("imatrix", gguf::imatrix, &["format/imatrix", GGUF]),
    ("index", checkpoint::index, &["checkpoint/shards", CODES]),
    ("logits", texts::logits, &["verification/logit_file"]),
    ("metadata_json", texts::metadata_json, &["conversion/metadata format/assign"]),
    ("mlx", codes::mlx, &["dequant/mlx", CODES]),
    ("model_card", texts::model_card, &["conversion/model_card"]),
    ("modelopt", codes::modelopt, &["dequant/modelopt", CODES]),
    ("msmodelslim", codes::msmodelslim, &["dequant/msmodelslim checkpoint/msmodelslim", CODES]),
    ("mxfp4", codes::mxfp4, &["dequant/mxfp4 dequant/fp4", CODES]),
    ("options", texts::options, &["quantization/options format/assign format/file_type"]),
    ("pickle", checkpoint::pickle, &["checkpoint/pickle"]),
    ("prompts", texts::prompts, &["verification/prompts"]),
    ("quantize", blocks::quantize, &["core/dtype"]),
    ("quanto", codes::quanto, &["dequant/quanto", CODES]),
    ("rebuild", recipe::rebuilt, &["quantization/recipe", GGUF]),
    ("recipe", recipe::recipe, &["quantization/recipe", GGUF]),
    ("rewrite", gguf::rewrite, &["format/endian", GGUF]),
    ("safetensors", checkpoint::safetensors, &["checkpoint/safetensors"]),
    ("sentencepiece", vocabulary::sentencepiece, &["tokenizer/sentencepiece"]),
    ("split", gguf::split, &["format/split format/split_keys", GGUF]),
    ("tasks", texts::tasks, &["verification/tasks"]),
    ("template", texts::template, &["verification/chat"]),
    ("text", vocabulary::text, &["tokenizer/encode", GGUF]),
    ("tiktoken", vocabulary::files, &["tokenizer/modes tokenizer/files"]),
    ("to_hf", model::to_hf, &["conversion/to_hf tokenizer/rebuild arch/invert", GGUF]),
    (
        "tokenizer_files",
        vocabulary::files,
        &["tokenizer/modes tokenizer/hf_vocab tokenizer/special tokenizer/files"],
    ),
    (
        "tokenizer_json",
        vocabulary::tokenizer_json,
        &["tokenizer/hf_json tokenizer/hf_decoder tokenizer/account"],
    ),
    ("torch", checkpoint::torch, &["checkpoint/torch checkpoint/pickle"]),
    ("verdict_part", kept::verdict_part, &["verification/parts"]),
];

/// Runs the entry of a target.
///
/// # Panics
/// If there is no target of this name.
#[allow(dead_code, reason = "the fuzzer looks its entry up once")]
pub fn run(target: &str, data: &[u8]) -> bool {
    let entry = ENTRIES.iter().find(|entry| entry.0 == target).expect("a target of the list");
    entry.1(data)
}

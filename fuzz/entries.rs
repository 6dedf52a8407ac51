//! Entries of the fuzzer: one for each parser, each decoder and each path of untrusted bytes through the project.
//!
//! An error is a valid result. A panic, an allocation beyond what the input justifies, or endless work is not. Each
//! entry also checks invariants of accepted input. This is the only list of targets: the program of `fuzz_targets`, the
//! seeds, the dictionaries and the test suite use it.

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

/// All entries, by target name.
pub const ENTRIES: &[(&str, Entry)] = &[
    ("auto_round", codes::auto_round),
    ("awq", codes::awq),
    ("bitnet", codes::bitnet),
    ("bitsandbytes", codes::bitsandbytes),
    ("blocks", blocks::blocks),
    ("card", texts::card),
    ("compressed_tensors", codes::compressed_tensors),
    ("config", texts::config),
    ("convert", model::convert),
    ("describe", gguf::describe),
    ("encoder", vocabulary::encoder),
    ("engine", model::engine),
    ("fastllm", checkpoint::fastllm),
    ("fastllm_codes", codes::fastllm),
    ("fp8", codes::fp8),
    ("gguf", gguf::header),
    ("gptq", codes::gptq),
    ("hqq", codes::hqq),
    ("imatrix", gguf::imatrix),
    ("index", checkpoint::index),
    ("logits", texts::logits),
    ("metadata_json", texts::metadata_json),
    ("mlx", codes::mlx),
    ("model_card", texts::model_card),
    ("modelopt", codes::modelopt),
    ("msmodelslim", codes::msmodelslim),
    ("mxfp4", codes::mxfp4),
    ("options", texts::options),
    ("pickle", checkpoint::pickle),
    ("prompts", texts::prompts),
    ("quantize", blocks::quantize),
    ("quanto", codes::quanto),
    ("rebuild", recipe::rebuilt),
    ("recipe", recipe::recipe),
    ("rewrite", gguf::rewrite),
    ("safetensors", checkpoint::safetensors),
    ("sentencepiece", vocabulary::sentencepiece),
    ("split", gguf::split),
    ("tasks", texts::tasks),
    ("template", texts::template),
    ("text", vocabulary::text),
    ("tiktoken", vocabulary::files),
    ("to_hf", model::to_hf),
    ("tokenizer_files", vocabulary::files),
    ("tokenizer_json", vocabulary::tokenizer_json),
    ("torch", checkpoint::torch),
    ("verdict_part", kept::verdict_part),
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

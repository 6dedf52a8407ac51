//! What a fuzzer runs: an entry for each parser, each decoder and each way that hostile bytes take through the house.
//!
//! An error is a fine answer; a panic, an allocation beyond what the input justifies, or endless work is not. Besides,
//! each entry checks what must hold for whatever was accepted. This list is the only one: the program of
//! `fuzz_targets`, the seeds, the dictionaries and the test suite go by it.

// With paths: this file is itself found by one, from two places.
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
#[path = "entries/texts.rs"]
mod texts;
#[path = "entries/vocabulary.rs"]
mod vocabulary;

#[allow(unused_imports, reason = "for who makes seeds")]
pub use bundle::join;

/// Runs one input; true if it was accepted, that is if what comes behind the parser was reached.
pub type Entry = fn(&[u8]) -> bool;

/// All entries, by the name of their target.
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
    ("model_card", texts::model_card),
    ("modelopt", codes::modelopt),
    ("msmodelslim", codes::msmodelslim),
    ("mxfp4", codes::mxfp4),
    ("options", texts::options),
    ("pickle", checkpoint::pickle),
    ("prompts", texts::prompts),
    ("quantize", blocks::quantize),
    ("quanto", codes::quanto),
    ("rewrite", gguf::rewrite),
    ("safetensors", checkpoint::safetensors),
    ("sentencepiece", vocabulary::sentencepiece),
    ("split", gguf::split),
    ("statistics", kept::statistics),
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
/// If there is none of this name.
#[allow(dead_code, reason = "the fuzzer looks its entry up once")]
pub fn run(target: &str, data: &[u8]) -> bool {
    let entry = ENTRIES.iter().find(|entry| entry.0 == target).expect("a target of the list");
    entry.1(data)
}

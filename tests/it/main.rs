//! Integration tests: one binary, one module per subject.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test stops by panicking, and prints for its reader"
)]

mod alibi;
mod annotate;
mod arch;
mod archs;
mod calibrate;
mod chatglm;
mod checkpoint;
mod completions;
mod continued;
mod convert;
mod coverage;
mod default_names;
mod dense_modules;
mod dependencies;
mod determinism;
mod docs;
mod draft;
mod endian;
mod engine;
mod engine_bad_input;
mod engine_quantized;
#[cfg(target_os = "linux")]
mod faults;
mod flm;
mod fuzz;
mod gguf;
mod gguf2hf;
mod goldens;
#[cfg(unix)]
mod guards;
mod hints;
mod hostile_corpus;
mod inspect;
mod isolated;
mod layers;
mod lora;
mod magnitudes;
mod many_parts;
mod metadata;
mod mmproj;
mod moe_errors;
mod msmodelslim;
mod native;
mod numbers;
mod output;
mod prequant;
mod quant;
mod quant_iq;
mod quantize;
mod refused;
#[cfg(all(unix, feature = "remote"))]
mod remote;
mod sets;
mod shares;
mod sources;
mod support;
mod tokenizer;
mod torch;
mod towers;
mod verify;

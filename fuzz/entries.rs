//! What a fuzzer runs: a function for each parser, and two for the block types. An error is a fine answer; a panic, an
//! allocation beyond what the input justifies, or endless work is not.

use std::sync::LazyLock;

use gguf_foundry::arch::Registry;
use gguf_foundry::checkpoint::{fastllm, parse_object, pickle, safetensors, torch};
use gguf_foundry::core::GgmlType;
use gguf_foundry::core::limits::Limits;
use gguf_foundry::core::simd::SimdLevel;
use gguf_foundry::gguf::{self, FilePlan, LayoutOptions, Strictness};
use gguf_foundry::quant;
use gguf_foundry::tokenizer::HfJson;

/// Runs one input.
pub type Entry = fn(&[u8]);

/// All entries, by the name of their target.
pub const ENTRIES: &[(&str, Entry)] = &[
    ("blocks", blocks),
    ("card", card),
    ("config", config_json),
    ("fastllm", fastllm_header),
    ("gguf", gguf_header),
    ("pickle", pickle_stack),
    ("quantize", quantize),
    ("safetensors", safetensors_header),
    ("tokenizer_json", tokenizer_json),
    ("torch", torch_file),
];

/// Runs the entry of a target.
///
/// # Panics
/// If there is none of this name.
pub fn run(target: &str, data: &[u8]) {
    let entry = ENTRIES.iter().find(|entry| entry.0 == target).expect("a target of the list");
    entry.1(data);
}

/// What is accepted lies inside the file, and comes back the same when it is written and read again.
fn gguf_header(data: &[u8]) {
    let limits = Limits::default();
    for strictness in [Strictness::LlamaCpp, Strictness::Format] {
        let Ok(header) = gguf::parse_header(data, &limits, strictness) else { continue };
        assert!(header.data_end <= data.len() as u64);
        let Ok(plan) = FilePlan::new(&header.metadata, &header.tensors, &LayoutOptions::default()) else {
            continue;
        };
        // The data stays where it is: the header alone says all that is compared.
        let Ok(n_bytes) = usize::try_from(plan.file_bytes) else { continue };
        if n_bytes > 1 << 24 {
            continue;
        }
        let mut bytes = plan.header.clone();
        bytes.resize(n_bytes, 0);
        let again = gguf::parse_header(&bytes, &limits, Strictness::LlamaCpp).expect("written by ourselves");
        // Bytes, since a NaN among the values is equal to nothing.
        let again = FilePlan::new(&again.metadata, &again.tensors, &LayoutOptions::default());
        assert_eq!(again.expect("planned before").header, plan.header);
    }
}

fn safetensors_header(data: &[u8]) {
    let _ = safetensors::parse_header(data, &Limits::default());
}

fn torch_file(data: &[u8]) {
    let _ = torch::parse(data, &Limits::default());
}

fn pickle_stack(data: &[u8]) {
    let _ = pickle::read(data, 0);
}

fn fastllm_header(data: &[u8]) {
    let _ = fastllm::Header::parse(data, &Limits::default());
}

fn config_json(data: &[u8]) {
    let _ = parse_object(data, &Limits::default());
}

fn tokenizer_json(data: &[u8]) {
    let _ = serde_json::from_slice::<HfJson>(data);
}

/// A card that someone wrote, beside those that are built in.
fn card(data: &[u8]) {
    static EMBEDDED: LazyLock<Registry> =
        LazyLock::new(|| Registry::embedded().expect("cards that are built in"));
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = EMBEDDED.clone().add("fuzzed.toml", text);
    }
}

/// The type that the first byte picks, and the rest.
fn typed(data: &[u8]) -> Option<(GgmlType, &[u8])> {
    let (&first, rest) = data.split_first()?;
    let ty = GgmlType::all().nth(usize::from(first) % GgmlType::all().count())?;
    Some((ty, rest))
}

/// Any bytes are blocks: they decode to the same floats at every level, whatever the check of blocks says.
fn blocks(data: &[u8]) {
    let Some((ty, rest)) = typed(data) else { return };
    let n_blocks = (rest.len() / ty.block_bytes()).min(16);
    let src = &rest[..n_blocks * ty.block_bytes()];
    let _ = quant::validate_blocks(ty, rest);
    let decode = |level| {
        let mut floats = vec![0f32; n_blocks * ty.block_elems()];
        quant::dequantize(ty, level, src, &mut floats).ok()?;
        Some(floats.into_iter().map(f32::to_bits).collect::<Vec<_>>())
    };
    let scalar = decode(SimdLevel::Scalar);
    for level in SimdLevel::available() {
        assert_eq!(decode(level), scalar, "{ty} {}", level.name());
    }
}

/// One row of any floats has the same blocks, or the same refusal, at every level. Blocks whose scale is no number are
/// the same if the check of blocks says so of both: the sign of a NaN that arithmetic makes is open in Rust.
fn quantize(data: &[u8]) {
    let Some((ty, rest)) = typed(data) else { return };
    // One NaN only: which payload an operation on two of them keeps is open in Rust, and some codes show it.
    let float =
        |&bytes: &[u8; 4]| Some(f32::from_le_bytes(bytes)).filter(|x| !x.is_nan()).unwrap_or(f32::NAN);
    let floats: Vec<f32> = rest.as_chunks().0.iter().map(float).collect();
    let n_cols = ty.block_elems();
    let (Some(row), weights) = (floats.get(..n_cols), floats.get(n_cols..2 * n_cols)) else { return };
    let pack = |level| {
        let mut out = vec![0; ty.block_bytes()];
        let done = quant::quantize_rows(ty, level, n_cols, row, weights, &mut out);
        done.map(|()| out).map_err(|error| error.to_string())
    };
    let scalar = pack(SimdLevel::Scalar);
    let flaw = |blocks: &Result<Vec<u8>, String>| quant::validate_blocks(ty, blocks.as_ref().ok()?).err();
    for level in SimdLevel::available() {
        let found = pack(level);
        let is_no_number = flaw(&found).is_some() && flaw(&found) == flaw(&scalar);
        assert!(is_no_number || found == scalar, "{ty} {}: {found:x?}, {scalar:x?}", level.name());
    }
}

//! Floats that MLX saved give the file of the model that MLX was given, or an error that names MLX.

use std::path::Path;

use gguf_core::Hint;
use serde_json::Value as Json;

use crate::experts::{Stored, Weights, converted, read, switched, taken, write_as};
use crate::fixture::{CardFixture, case};

/// Norms to which mlx-lm adds one.
const NORMS: [&str; 5] = [
    ".input_layernorm.weight",
    ".post_attention_layernorm.weight",
    "model.norm.weight",
    ".q_norm.weight",
    ".k_norm.weight",
];

fn floats(stored: &Stored) -> Vec<f32> {
    assert_eq!(stored.ty, "BF16");
    let float = |pair: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([pair[0], pair[1]])) << 16);
    stored.bytes.chunks(2).map(float).collect()
}

/// A checkpoint as mlx-lm saves it: stacks of experts, convolutions with the channels last, and norms with one added.
fn saved(all: &Weights, adds_one: bool) -> Weights {
    let mut weights = all.clone();
    for (module, layer) in taken(&mut weights) {
        switched(&mut weights, &module, layer);
    }
    for (name, stored) in &mut weights {
        if let ([channels, 1, width], true) = (&stored.dims[..], name.contains("conv")) {
            stored.dims = vec![*channels, *width, 1];
        }
        if adds_one && stored.dims.len() == 1 && NORMS.iter().any(|norm| name.ends_with(norm)) {
            stored.bytes = floats(stored).iter().flat_map(|value| (value + 1.0).to_le_bytes()).collect();
            "F32".clone_into(&mut stored.ty);
        }
    }
    weights
}

fn sorted(case: &CardFixture, dir: &Path) -> Vec<Json> {
    let mut rows =
        converted(case, dir).unwrap_or_else(|error| panic!("{}: {error} {:?}", case.at, error.hints()));
    rows.sort_by_key(Json::to_string);
    rows
}

#[test]
fn what_mlx_changes_is_undone() {
    for (at, adds_one) in [
        ("qwen3next/qwen3_next.json", true),
        ("qwen35/qwen3_5.json", true),
        ("mamba2/mamba2.json", false),
        ("lfm2/lfm2.json", false),
        ("gemma2/gemma2.json", false),
        ("qwen3moe/plain.json", false),
    ] {
        let case = case(at);
        let dir = tempfile::tempdir().unwrap();
        case.write(dir.path());
        let all: Weights = read(dir.path())
            .into_iter()
            .filter(|(name, stored)| {
                !name.contains("mtp") && !name.contains("visual") && stored.dims.len() < 4
            })
            .collect();
        write_as(dir.path(), &all, "pt");
        let expected = sorted(&case, dir.path());
        let weights = saved(&all, adds_one);
        write_as(dir.path(), &weights, "mlx");
        assert_eq!(sorted(&case, dir.path()), expected, "{at}");
    }
}

#[test]
fn what_cannot_be_undone_names_mlx_and_the_way_out() {
    for (at, rename, wanted) in [
        (
            "falcon-h1/falcon_h1.json",
            "",
            "MLX saved these weights with the multipliers of config.json in the matrices",
        ),
        ("gpt2/gpt2.json", "", "MLX saved these weights with the matrices transposed"),
        ("llama/plain.json", "self_attn.k_proj", "MLX saved these weights, and "),
    ] {
        let case = case(at).renamed(|name| match rename {
            "" => name.to_owned(),
            part => name.replace(part, "self_attn.embed_q"),
        });
        let dir = tempfile::tempdir().unwrap();
        case.write(dir.path());
        write_as(dir.path(), &read(dir.path()), "mlx");
        let error = converted(&case, dir.path()).unwrap_err();
        assert!(
            error.to_string().contains(wanted) && error.to_string().contains("model.safetensors"),
            "{error}"
        );
        assert!(error.hints()[0].contains("convert the model that MLX was given"), "{:?}", error.hints());
    }
}

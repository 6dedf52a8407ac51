//! Values and refusals of what ComfyUI's quantizers store.

use super::*;
use gguf_testkit::memory::{MemoryWeights, f32_bytes, f32_values, weight_bytes};

fn opened(weights: MemoryWeights) -> Result<ImageWeights, String> {
    ImageWeights::open(Arc::new(weights), SimdLevel::Scalar, &HashMap::new())
        .map_err(|error| error.to_string())
}

fn names(weights: &ImageWeights) -> Vec<(&str, ElementType)> {
    weights.weights().iter().map(|meta| (meta.name.as_str(), meta.ty)).collect()
}

fn halves(weights: &ImageWeights, weight: usize) -> Vec<u16> {
    weight_bytes(weights, weight).as_chunks().0.iter().map(|&bytes| u16::from_le_bytes(bytes)).collect()
}

#[test]
fn older_factors_are_applied_and_left_out() {
    let mut weights = MemoryWeights::default();
    weights.add("a.weight", &[2, 2], ElementType::F8E4M3, vec![0x38, 0x40, 0xb8, 0x01]);
    weights.add("a.scale_weight", &[], ElementType::F32, f32_bytes(&[0.3]));
    weights.add("a.scale_input", &[], ElementType::F32, f32_bytes(&[7.0]));
    weights.add("scaled_fp8", &[0], ElementType::F8E4M3, Vec::new());
    weights.add("b.weight", &[2], ElementType::F8E5M2, vec![0x3c, 0x7b]);
    weights.add("c.weight", &[1], ElementType::F32, f32_bytes(&[1.0]));
    let weights = opened(weights).unwrap();
    // In the order in which the floats would be saved.
    let expected =
        [("c.weight", ElementType::F32), ("a.weight", ElementType::Bf16), ("b.weight", ElementType::F16)];
    assert_eq!(names(&weights), expected);
    assert_eq!(weights.n_scaled(), 1);
    let expected = [0.3, 0.6, -0.3, 0.3 * 0.001_953_125].map(f32_to_bf16);
    assert_eq!(halves(&weights, 1), expected);
    assert_eq!(halves(&weights, 2), [1.0, 57344.0].map(f32_to_f16));
    assert_eq!((weights.stored_type(1), weights.stored_type(2)), (ElementType::Bf16, ElementType::F8E5M2));
    let mut part = [0; 4];
    weights.read_elems(1, 1, &mut part).unwrap();
    assert_eq!(part[..2], f32_to_bf16(0.6).to_le_bytes());
}

/// A weight of two rows with a factor, and further tensors.
fn with_others(others: &[(&str, &[f32])]) -> Result<ImageWeights, String> {
    let mut weights = MemoryWeights::default();
    weights.add("a.weight", &[2, 2], ElementType::F8E4M3, vec![0x38, 0x40, 0xb8, 0x38]);
    weights.add("a.weight_scale", &[], ElementType::F32, f32_bytes(&[0.5]));
    weights.add("a.bias", &[2], ElementType::F32, f32_bytes(&[1.0, 1.0]));
    for (name, values) in others {
        weights.add(name, &[values.len() as u64], ElementType::F32, f32_bytes(values));
    }
    opened(weights)
}

#[test]
fn factors_of_columns_are_applied() {
    let weights = with_others(&[("a.pre_quant_scale", &[3.0, 5.0])]).unwrap();
    assert_eq!(names(&weights).len(), 2);
    let at = names(&weights).iter().position(|(name, _)| *name == "a.weight").unwrap();
    assert_eq!(f32_values(&weight_bytes(&weights, at)), [1.5, 5.0, -1.5, 2.5]);
    let error = with_others(&[("a.pre_quant_scale", &[3.0, 5.0, 1.0])]).err().unwrap();
    assert!(error.contains("a.pre_quant_scale") && error.contains("one for each column"), "{error}");
}

#[test]
fn what_changes_a_layer_in_an_unknown_way_is_refused() {
    for name in [
        "a.smooth_scale",
        "a.weight_offset",
        "a.lora.down.weight",
        "b.pre_quant_scale",
        "b.smooth_factor",
        "b.dora_scale",
        "b.weight_orig",
        "b.parametrizations.weight.original0",
    ] {
        let error = with_others(&[(name, &[1.0])]).err().unwrap();
        assert!(error.contains(name) && error.contains("may change the values"), "{error}");
    }
    // Beside weights without a factor, and not of a layer's own names, parameters keep their names.
    for name in ["b.alpha", "ab.x", "c"] {
        assert!(with_others(&[(name, &[1.0])]).is_ok(), "{name}");
    }
}

/// Codes whose factor has an unknown name are no weights.
#[test]
fn factors_of_codes_under_other_names_are_refused() {
    for (name, is_refused) in [
        ("a.scale", true),
        ("a.weight.scale", true),
        ("a.weight_quantizer._amax", true),
        ("a.input_scale", false),
        ("a.input_quantizer._amax", false),
        ("b.scale", false),
    ] {
        let mut weights = MemoryWeights::default();
        weights.add("a.weight", &[1, 2], ElementType::F8E4M3, vec![0x38; 2]);
        weights.add("b.weight", &[1], ElementType::F16, vec![0, 0x3c]);
        weights.add(name, &[1], ElementType::F32, f32_bytes(&[2.0]));
        assert_eq!(opened(weights).is_err(), is_refused, "{name}");
    }
}

#[test]
fn what_stands_beside_a_plain_weight_is_named() {
    let mut weights = MemoryWeights::default();
    weights.add("a.weight", &[1, 1], ElementType::F16, vec![0, 0x3c]);
    for name in ["a.bias", "a.alpha", "a.norm.scale", "b.alpha"] {
        weights.add(name, &[1], ElementType::F16, vec![0, 0x3c]);
    }
    assert!(opened(weights).unwrap().beside().eq(["a.alpha"]));
}

#[test]
fn matrices_have_the_rows_of_their_biases() {
    let of = |dims: &[u64]| {
        let mut weights = MemoryWeights::default();
        weights.add("a.bias", &[3], ElementType::F16, vec![0; 6]);
        weights.add("a.weight", dims, ElementType::F16, vec![0; 12]);
        opened(weights).map(|_| ())
    };
    assert_eq!(of(&[3, 2]), Ok(()));
    // Convolutions that widen have the outputs in their second dimension.
    assert_eq!(of(&[2, 3, 1]), Ok(()));
    let error = of(&[2, 3]).unwrap_err();
    assert!(
        error.contains("`a.weight`") && error.contains("expected 3 rows, as its bias has elements"),
        "{error}"
    );
}

#[test]
fn newer_factors_may_be_by_row() {
    let description = br#"{"format": "float8_e4m3fn"}"#.to_vec();
    let with = |description: &[u8], factors: &[f32]| {
        let mut weights = MemoryWeights::default();
        weights.add("a.weight", &[2, 1], ElementType::F8E4M3, vec![0x38, 0x38]);
        weights.add("a.comfy_quant", &[description.len() as u64], ElementType::U8, description.to_vec());
        if !factors.is_empty() {
            weights.add("a.weight_scale", &[factors.len() as u64, 1], ElementType::F32, f32_bytes(factors));
        }
        opened(weights)
    };
    let weights = with(&description, &[2.0, 3.0]).unwrap();
    assert_eq!(halves(&weights, 0), [2.0, 3.0].map(f32_to_bf16));
    assert_eq!(names(&weights).len(), 1);
    let message = |description: &[u8], factors: &[f32]| with(description, factors).err().unwrap();
    assert!(message(&description, &[]).contains("`a.weight_scale` is missing"));
    assert!(message(&description, &[1.0, 2.0, 3.0]).contains("1 element, or 2"));
    assert!(message(&description, &[f32::NAN]).contains("NaN"));
    assert!(message(br#"{"format": "nvfp4"}"#, &[1.0]).contains("`a.weight_scale_2` is missing"));
    assert!(message(br#"{"format": "mxfp8"}"#, &[1.0]).contains("rows of whole blocks of 32"));
    assert!(message(br#"{"format": "int4"}"#, &[1.0]).contains("int8_blockwise"));
    assert!(message(br#"{"format": "float8_e4m3fn", "convrot": true}"#, &[1.0]).contains("convrot"));
    assert!(message(b"{", &[1.0]).contains("no JSON"));
}

/// Weights of `fixtures/comfy_quant.safetensors` and the values that ComfyUI's functions give.
fn of_fixture() -> (MemoryWeights, Vec<(String, Vec<f32>)>) {
    let path = gguf_testkit::fixture("comfy_quant.safetensors");
    let mut file = gguf_testkit::checkpoints::Safetensors::read(path);
    let (mut weights, mut expected) = (MemoryWeights::default(), Vec::new());
    for (name, entry) in file.header().clone() {
        let dims: Vec<u64> = serde_json::from_value(entry["shape"].clone()).unwrap();
        let data = file.data_mut(&name).to_vec();
        let ty = ElementType::from_name(entry["dtype"].as_str().unwrap()).unwrap();
        match name.strip_prefix("expect.") {
            Some(module) => expected.push((format!("{module}.weight"), f32_values(&data))),
            None => weights.add(&name, &dims, ty, data),
        }
    }
    (weights, expected)
}

#[test]
fn values_are_those_of_comfyui() {
    let (weights, expected) = of_fixture();
    let weights = opened(weights).unwrap();
    assert_eq!(expected.len(), 7);
    for (name, expected) in &expected {
        let at = weights.weights().iter().position(|meta| meta.name == *name).unwrap();
        assert!(weights.is_wider(at) && weights.stored_type(at) == ElementType::Bf16, "{name}");
        let found = f32_values(&weight_bytes(&weights, at));
        // ComfyUI rotates by a product of matrices in F32.
        let is_near = |a: f32, b: f32| (a - b).abs() <= 2e-6 * b.abs().max(1.0);
        let is_same =
            |a: f32, b: f32| if name == "f.weight" { is_near(a, b) } else { a.to_bits() == b.to_bits() };
        assert_eq!(found.len(), expected.len(), "{name}");
        assert!(found.iter().zip(expected).all(|(&a, &b)| is_same(a, b)), "{name}");
        // Parts of rows that begin anywhere.
        for first in [1, 7, found.len() - 9] {
            let mut part = [0; 4 * 9];
            weights.read_elems(at, first as u64, &mut part).unwrap();
            assert_eq!(f32_values(&part), found[first..][..9], "{name}");
        }
    }
    assert!(weights.formats().eq(["int8_blockwise", "int8_tensorwise", "mxfp8", "nvfp4"]));
}

#[test]
fn a_part_of_low_rank_is_added() {
    let with = |up: &[u64], down: &[u64], others: &[&str]| {
        let mut weights = MemoryWeights::default();
        weights.add("a.weight", &[2, 2], ElementType::F8E4M3, vec![0x38, 0x40, 0xb8, 0x38]);
        weights.add("a.weight_scale", &[], ElementType::F32, f32_bytes(&[0.5]));
        for (name, dims, values) in [("a.svd_up", up, [1.0, 3.0]), ("a.svd_down", down, [0.25, 8.0])] {
            let n = dims.iter().product::<u64>() as usize;
            weights.add(name, dims, ElementType::F32, f32_bytes(&values.repeat(n)[..n]));
        }
        for name in others {
            weights.add(name, &[2], ElementType::F32, f32_bytes(&[1.0; 2]));
        }
        opened(weights)
    };
    let weights = with(&[2, 1], &[1, 2], &[]).unwrap();
    assert_eq!(f32_values(&weight_bytes(&weights, 0)), [0.75, 9.0, 0.25, 24.5]);
    assert!(with(&[2, 2], &[1, 2], &[]).err().unwrap().contains("a.svd_up"));
    assert!(with(&[2, 1], &[1, 3], &[]).err().unwrap().contains("a.svd_down"));
    assert!(with(&[2, 1], &[1, 2], &["a.pre_quant_scale"]).err().unwrap().contains("not certain"));
    let alone = with_others(&[("a.svd_up", &[1.0, 3.0])]).err().unwrap();
    assert!(alone.contains("`a.svd_down` is missing"), "{alone}");
}

#[test]
fn members_that_do_not_fit_are_named() {
    let changed = |module: &str, description: &str| {
        let (weights, _) = of_fixture();
        let mut own = MemoryWeights::default();
        for (at, meta) in
            weights.weights().iter().enumerate().filter(|(_, meta)| meta.name.starts_with(module))
        {
            let is_described = meta.name.ends_with(DESCRIPTION);
            let bytes =
                if is_described { description.as_bytes().to_vec() } else { weights.bytes(at).to_vec() };
            let dims = if is_described { vec![bytes.len() as u64] } else { meta.shape.dims().to_vec() };
            own.add(&meta.name, &dims, meta.ty, bytes);
        }
        opened(own)
    };
    for (module, description, words) in [
        ("a.", r#"{"format": "nvfp4", "orig_shape": [120, 40]}"#, "[120, 40] as `orig_shape` says"),
        ("a.", r#"{"format": "nvfp4", "orig_shape": [130, 49]}"#, "[130, 49] as `orig_shape` says"),
        ("a.", r#"{"format": "nvfp4", "orig_shape": 3}"#, "expected a shape"),
        ("b.", r#"{"format": "mxfp8"}"#, "a format that has them"),
        ("g.", r#"{"format": "mxfp8"}"#, "elements are I8, expected F8_E4M3 or F8_E5M2 as `mxfp8` has them"),
        ("d.", r#"{"format": "nvfp4"}"#, "`d.weight_scale_2` is missing"),
        ("d.", r#"{"format": "float8_e4m3fn"}"#, "elements are I8"),
        ("e.", r#"{"format": "int8_blockwise", "group_size": 4}"#, "block of 4 x 4"),
        ("g.", r#"{"format": "int8_blockwise"}"#, "block of 128 x 128"),
        ("g.", r#"{"format": "int8_tensorwise"}"#, "8, one for each row"),
        ("f.", r#"{"format": "int8_tensorwise", "convrot": true}"#, "whole groups of 256 columns"),
        ("f.", r#"{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 32}"#, "4, 16, 64"),
    ] {
        let found = changed(module, description).err().unwrap();
        assert!(found.contains(words), "{description}: {found}");
    }
    let unknown = changed("d.", r#"{"format": "int8_tensorwise", "zoom": 2, "off": false}"#).unwrap();
    assert!(unknown.unknown_keys().eq(["zoom"]));
    let (weights, _) = of_fixture();
    let (mut own, mut header) = (MemoryWeights::default(), serde_json::Map::new());
    for (at, meta) in weights.weights().iter().enumerate() {
        match meta.name.strip_suffix(DESCRIPTION) {
            Some(layer) => {
                let text: Json = serde_json::from_slice(weights.bytes(at)).unwrap();
                header.insert(format!("model.{layer}"), text);
            }
            None => own.add(&meta.name, meta.shape.dims(), meta.ty, weights.bytes(at).to_vec()),
        }
    }
    let text = serde_json::json!({ "format_version": "1.0", "layers": header }).to_string();
    let header = layers_of_header(&text, |name| name.strip_prefix("model.").map(str::to_owned)).unwrap();
    let described = ImageWeights::open(Arc::new(own), SimdLevel::Scalar, &header).unwrap();
    assert_eq!(described.formats().count(), 4);
    for wrong in ["{", "[]", r#"{"layers": 1}"#] {
        assert!(layers_of_header(wrong, |name| Some(name.to_owned())).is_err(), "{wrong}");
    }
    let nested = changed("g.", r#"{"format": "int8_blockwise", "params": {"group_size": 4}}"#);
    assert!(nested.is_ok());
}

#[test]
fn types_without_values_are_refused() {
    let mut weights = MemoryWeights::default();
    weights.add("a.weight", &[2], ElementType::F8E8M0, vec![1, 2]);
    assert!(opened(weights).err().unwrap().contains("F8_E8M0"));
    let mut weights = MemoryWeights::default();
    weights.add("a.weight", &[1, 1], ElementType::F8E4M3, vec![0x38]);
    weights.add("a.weight_scale_inv", &[1], ElementType::F32, f32_bytes(&[1.0]));
    assert!(opened(weights).err().unwrap().contains("factors by block"));
}

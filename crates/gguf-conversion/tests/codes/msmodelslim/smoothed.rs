//! Small checkpoints made for one rule each: biases, norms, wrappers, signs, omitted parts.

use gguf_arch::OutType;
use gguf_blocks as quant;
use gguf_conversion::{Conversion, ConvertError, ConvertOptions, OffsetSign};
use gguf_core::simd::SimdLevel;
use gguf_core::{GgmlType, Hint, TensorSource};
use serde_json::{Value as Json, json};

use super::{index, named, open, open_signed, weights};
use gguf_testkit::memory::{f32_values, tensor_bytes};
use gguf_testkit::slim::{Made, int8, noise};

const Q: &str = "model.layers.0.self_attn.q_proj";

fn config() -> Json {
    json!({ "rms_norm_eps": 1e-5 })
}

fn rows(values: &[f32], n_cols: usize) -> impl Iterator<Item = &[f32]> {
    values.chunks(n_cols)
}

/// Adds a dynamic W8A8 layer, and returns its values as the tool defines them.
fn add_dynamic(made: &mut Made, module: &str, n_rows: usize, n_cols: usize, seed: u64) -> Vec<f32> {
    let (codes, scales) = int8(&noise(seed, n_rows * n_cols), n_cols);
    made.codes(&format!("{module}.weight"), "W8A8_DYNAMIC", &[n_rows, n_cols], &codes);
    made.floats(&format!("{module}.weight_scale"), "W8A8_DYNAMIC", &[n_rows, 1], &scales);
    codes
        .chunks(n_cols)
        .zip(&scales)
        .flat_map(|(row, s)| row.iter().map(move |&c| f32::from(c) * s))
        .collect()
}

#[test]
fn q8_0_keeps_the_integers_and_its_error_is_the_one_named() {
    let (n_rows, n_cols) = (48, 96);
    let mut made = Made::default();
    // Rows of magnitudes from 1 down to 1e-4: the scales of the last are subnormal in F16.
    let mut values = noise(1, n_rows * n_cols);
    for (row, values) in values.chunks_mut(n_cols).enumerate() {
        let factor = 10f32.powf(-4.0 * row as f32 / n_rows as f32);
        for value in values {
            *value *= factor;
        }
    }
    let (codes, scales) = int8(&values, n_cols);
    made.codes(&format!("{Q}.weight"), "W8A16", &[n_rows, n_cols], &codes);
    made.floats(&format!("{Q}.weight_scale"), "W8A16", &[n_rows], &scales);
    made.floats(&format!("{Q}.weight_offset"), "W8A16", &[n_rows], &vec![0.0; n_rows]);
    let dir = tempfile::tempdir().unwrap();
    made.write(dir.path(), &config());

    let source = open(dir.path()).unwrap();
    let source = weights(&source);
    let packings = source.packings(0).unwrap();
    assert_eq!(packings.iter().map(|packing| packing.ty).collect::<Vec<_>>(), [GgmlType::Q8_0]);
    let mut blocks = vec![0; n_rows * n_cols / 32 * 34];
    source.read_packed(0, GgmlType::Q8_0, 0, &mut blocks).unwrap();
    let kept: Vec<i8> =
        blocks.chunks(34).flat_map(|block| block[2..].iter().map(|&byte| byte as i8)).collect();
    assert_eq!(kept, codes);
    let mut floats = vec![0.0; codes.len()];
    quant::dequantize(GgmlType::Q8_0, SimdLevel::Scalar, &blocks, &mut floats).unwrap();
    // Every value of a row has the same relative error, that of its rounded scale.
    let mut worst = 0f64;
    for ((row, codes), &scale) in rows(&floats, n_cols).zip(codes.chunks(n_cols)).zip(&scales) {
        for (&value, &code) in row.iter().zip(codes).filter(|(_, code)| **code != 0) {
            let exact = f64::from(code) * f64::from(scale);
            worst = worst.max(((f64::from(value) - exact) / exact).abs());
        }
    }
    let named = f64::from(packings[0].scale_error);
    assert!((worst / named - 1.0).abs() < 1e-6, "measured {worst}, named {named}");
    assert!(named > 1.0 / 2048.0, "rows with subnormal scales are there: {named}");

    // Any part that is read alone equals that part of the whole.
    for (first, n) in [(0, 1), (2, 3), (5, 100), (143, 1)] {
        let mut part = vec![0; n * 34];
        source.read_packed(0, GgmlType::Q8_0, first as u64 * 32, &mut part).unwrap();
        assert_eq!(part, blocks[first * 34..][..n * 34]);
    }
}

#[test]
fn static_layers_give_weight_and_bias() {
    let (n_rows, n_cols) = (6, 64);
    let (codes, scales) = int8(&noise(2, n_rows * n_cols), n_cols);
    let bias = noise(3, n_rows);
    let (input_scale, input_offset) = (0.02f32, 11i32);
    for as_bits in [false, true] {
        let mut made = Made::default();
        let deq: Vec<f32> = scales.iter().map(|scale| scale * input_scale).collect();
        let sums = codes.chunks(n_cols).map(|row| row.iter().map(|&code| i32::from(code)).sum::<i32>());
        let quant_bias = sums
            .zip(&bias)
            .zip(&deq)
            .map(|((sum, b), d)| (b / d).round_ties_even() as i32 - sum * input_offset);
        made.codes(&format!("{Q}.weight"), "W8A8", &[n_rows, n_cols], &codes);
        if as_bits {
            let bits: Vec<u8> = deq.iter().flat_map(|deq| u64::from(deq.to_bits()).to_le_bytes()).collect();
            made.add(&format!("{Q}.deq_scale"), "W8A8", "I64", &[n_rows], &bits);
        } else {
            made.floats(&format!("{Q}.deq_scale"), "W8A8", &[n_rows], &deq);
        }
        made.floats(&format!("{Q}.input_scale"), "W8A8", &[1], &[input_scale]);
        made.floats(&format!("{Q}.input_offset"), "W8A8", &[1], &[input_offset as f32]);
        let quant_bias: Vec<u8> = quant_bias.flat_map(i32::to_le_bytes).collect();
        made.add(&format!("{Q}.quant_bias"), "W8A8", "I32", &[n_rows], &quant_bias);
        let dir = tempfile::tempdir().unwrap();
        made.write(dir.path(), &config());
        let source = open(dir.path()).unwrap();
        assert!(source.warnings.iter().any(|w| w.starts_with("2 scales and offsets of activations")));
        for ((found, expected), deq) in named(&source, &format!("{Q}.bias")).iter().zip(&bias).zip(&deq) {
            assert!((found - expected).abs() <= 0.502 * deq, "{found} {expected} {deq}");
        }
        let found = named(&source, &format!("{Q}.weight"));
        for ((row, codes), scale) in rows(&found, n_cols).zip(codes.chunks(n_cols)).zip(&scales) {
            for (value, &code) in row.iter().zip(codes) {
                assert!((value - f32::from(code) * scale).abs() <= 2.5e-7 * value.abs());
            }
        }
    }
}

#[test]
fn a_bias_of_a_norm_moves_behind_it() {
    let (n_rows, n_cols) = (5, 32);
    let norm = "model.layers.0.input_layernorm";
    let mut made = Made::default();
    let values = add_dynamic(&mut made, Q, n_rows, n_cols, 4);
    made.floats(&format!("{Q}.bias"), "FLOAT", &[n_rows], &noise(5, n_rows));
    let (v, float) = ("model.layers.0.self_attn.v_proj", noise(6, n_rows * n_cols));
    made.floats(&format!("{v}.weight"), "FLOAT", &[n_rows, n_cols], &float);
    let bias = noise(7, n_cols);
    made.floats(&format!("{norm}.weight"), "FLOAT", &[n_cols], &noise(8, n_cols));
    made.floats(&format!("{norm}.bias"), "FLOAT", &[n_cols], &bias);
    let dir = tempfile::tempdir().unwrap();
    made.write(dir.path(), &config());
    let source = open(dir.path()).unwrap();
    assert_eq!(index(weights(&source), &format!("{norm}.bias")), None);
    let dot = |row: &[f32]| row.iter().zip(&bias).map(|(w, b)| f64::from(*w) * f64::from(*b)).sum::<f64>();
    let base = noise(5, n_rows);
    for ((row, base), found) in rows(&values, n_cols).zip(base).zip(named(&source, &format!("{Q}.bias"))) {
        assert!((f64::from(found) - f64::from(base) - dot(row)).abs() < 1e-6);
    }
    for (row, found) in rows(&float, n_cols).zip(named(&source, &format!("{v}.bias"))) {
        assert!((f64::from(found) - dot(row)).abs() < 1e-6);
    }
    // Norms that have their own bias keep it.
    made.write(dir.path(), &json!({ "layernorm_epsilon": 1e-5 }));
    let source = open(dir.path()).unwrap();
    assert_eq!(named(&source, &format!("{norm}.bias")), bias);
    assert_eq!(named(&source, &format!("{Q}.bias")), noise(5, n_rows));
}

/// Plans a model of two layers, of which the first has a bias in both norms.
fn plan_smoothed(class: &str, model_type: &str) -> Result<Conversion, ConvertError> {
    let n = 32;
    let mut made = Made::default();
    let mut float = |name: &str, dims: &[usize]| {
        made.floats(name, "FLOAT", dims, &noise(name.len() as u64, dims.iter().product()));
    };
    for name in ["model.embed_tokens.weight", "lm_head.weight"] {
        float(name, &[n, n]);
    }
    float("model.norm.weight", &[n]);
    for layer in 0..2 {
        for part in ["q", "k", "v", "o"].map(|part| format!("model.layers.{layer}.self_attn.{part}_proj")) {
            float(&format!("{part}.weight"), &[n, n]);
            if model_type == "qwen2" && !part.ends_with("o_proj") {
                float(&format!("{part}.bias"), &[n]);
            }
        }
        for part in ["gate", "up", "down"] {
            float(&format!("model.layers.{layer}.mlp.{part}_proj.weight"), &[n, n]);
        }
        for norm in ["input", "post_attention"].map(|norm| format!("model.layers.{layer}.{norm}_layernorm")) {
            float(&format!("{norm}.weight"), &[n]);
            if layer == 0 {
                float(&format!("{norm}.bias"), &[n]);
            }
        }
    }
    let config = json!({
        "architectures": [class], "model_type": model_type, "rms_norm_eps": 1e-5, "hidden_size": n, "intermediate_size": n,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": n, "hidden_act": "silu",
        "max_position_embeddings": 64, "rope_theta": 1e4, "tie_word_embeddings": false,
    });
    let dir = tempfile::tempdir().unwrap();
    made.write(dir.path(), &config);
    let file_type = Some(OutType::F32);
    let options = ConvertOptions { file_type, tokenizer: false, ..ConvertOptions::default() };
    Conversion::plan(dir.path(), &options)
}

#[test]
fn biases_of_some_norms_give_every_layer_one() {
    for (class, model_type) in [("LlamaForCausalLM", "llama"), ("MistralForCausalLM", "mistral")] {
        let conversion = plan_smoothed(class, model_type).unwrap();
        // They are none of the model's own: no configuration contradicts them.
        assert_eq!(conversion.warnings(), [""; 0], "{class}");
        for kind in ["attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"] {
            for (block, is_zero) in [(0, false), (1, true)] {
                let name = format!("blk.{block}.{kind}.bias");
                let at = conversion.tensors().iter().position(|tensor| tensor.name == name).expect(&name);
                let values = f32_values(&tensor_bytes(&conversion, at));
                assert_eq!(values.iter().all(|&value| value == 0.0), is_zero, "{class} {name}");
            }
        }
        let others = ["attn_output.bias", "ffn_down.bias"];
        let has_other = |name: &str| others.iter().any(|other| name.ends_with(other));
        assert!(!conversion.tensors().iter().any(|tensor| has_other(&tensor.name)), "{class}");
    }
}

#[test]
fn a_bias_that_the_runtime_lacks_is_told_by_its_origin() {
    let error = plan_smoothed("Qwen2ForCausalLM", "qwen2").unwrap_err();
    let start = "`qwen2` of llama.cpp has no `blk.0.ffn_gate.bias`, ";
    assert!(error.to_string().starts_with(start), "{error}");
    assert!(error.to_string().contains("smoothing gave the norms before these layers a bias"), "{error}");
    assert!(error.hints()[0].contains("quantize it again without smoothing"), "{:?}", error.hints());
}

#[test]
fn a_bias_that_nothing_can_take_over_is_refused() {
    let mut made = Made::default();
    made.floats("model.norm.weight", "FLOAT", &[4], &[1.0; 4]);
    made.floats("model.norm.bias", "FLOAT", &[4], &[0.0; 4]);
    let dir = tempfile::tempdir().unwrap();
    made.write(dir.path(), &config());
    let source = open(dir.path()).unwrap();
    assert_eq!(weights(&source).weights().len(), 1, "a bias of zeros is nothing");
    let mut made = Made::default();
    made.floats("model.norm.weight", "FLOAT", &[4], &[1.0; 4]);
    made.floats("model.norm.bias", "FLOAT", &[4], &[0.0, 0.5, 0.0, 0.0]);
    made.write(dir.path(), &config());
    let message = open(dir.path()).unwrap_err();
    assert!(message.contains("`model.norm`: its bias is not zero"), "{message}");
}

#[test]
fn the_form_of_a_norm_follows_the_layers_behind_it() {
    let norm = "model.layers.0.input_layernorm";
    let made = |is_quantized: bool| {
        let mut made = Made::default();
        if is_quantized {
            add_dynamic(&mut made, Q, 4, 32, 9);
        } else {
            made.floats(&format!("{Q}.weight"), "FLOAT", &[4, 32], &noise(9, 128));
        }
        made.floats(&format!("{norm}.weight"), "FLOAT", &[32], &[2.0; 32]);
        made.floats(&format!("{norm}.module.weight"), "W8A8_DYNAMIC", &[32], &[3.0; 32]);
        made.floats(&format!("{norm}.module.bias"), "W8A8_DYNAMIC", &[32], &[0.0; 32]);
        made
    };
    let dir = tempfile::tempdir().unwrap();
    for (is_quantized, expected) in [(true, 3.0), (false, 2.0)] {
        made(is_quantized).write(dir.path(), &config());
        let source = open(dir.path()).unwrap();
        assert_eq!(named(&source, &format!("{norm}.weight")), [expected; 32]);
    }
    let mut mixed = made(true);
    mixed.floats("model.layers.0.self_attn.k_proj.weight", "FLOAT", &[4, 32], &noise(1, 128));
    mixed.write(dir.path(), &config());
    let message = open(dir.path()).unwrap_err();
    assert!(message.starts_with(&format!("`{norm}` feeds quantized and float layers")), "{message}");
}

#[test]
fn offsets_have_the_sign_that_is_asked_for_and_the_wrong_one_is_noticed() {
    let (n_rows, n_cols) = (8, 64);
    let mut made = Made::default();
    let codes: Vec<i8> = noise(10, n_rows * n_cols).iter().map(|x| (x * 60.0 + 50.0) as i8).collect();
    made.codes(&format!("{Q}.weight"), "W8A16", &[n_rows, n_cols], &codes);
    made.floats(&format!("{Q}.weight_scale"), "W8A16", &[n_rows, 1], &[0.5; 8]);
    made.floats(&format!("{Q}.weight_offset"), "W8A16", &[n_rows, 1], &[50.0; 8]);
    let dir = tempfile::tempdir().unwrap();
    made.write(dir.path(), &config());
    let name = format!("{Q}.weight");
    let (file, npu) = (open(dir.path()).unwrap(), open_signed(dir.path(), OffsetSign::Npu).unwrap());
    let expected = |sign: f32| codes.iter().map(|&c| (f32::from(c) - sign * 50.0) * 0.5).collect::<Vec<_>>();
    assert_eq!(named(&file, &name), expected(1.0));
    assert_eq!(named(&npu, &name), expected(-1.0));
    assert!(file.warnings.is_empty(), "{:?}", file.warnings);
    assert!(npu.warnings[0].contains("`--offset-sign file`"), "{:?}", npu.warnings);
    // All codes minus their offset fit eight bits with one sign, not with the other.
    assert_eq!(weights(&file).packings(0).unwrap()[0].ty, GgmlType::Q8_0);
    assert!(weights(&npu).packings(0).unwrap().is_empty());
}

#[test]
fn cache_scales_and_absent_tensors_are_named() {
    let mut made = Made::default();
    add_dynamic(&mut made, "model.layers.0.self_attn.k_proj", 4, 32, 11);
    for part in ["scale", "offset"] {
        made.floats(&format!("model.layers.0.self_attn.k_proj.kv_cache_{part}"), "C8", &[4], &[1.0; 4]);
    }
    made.description.insert("gone.weight".to_owned(), json!("FLOAT"));
    made.description.insert("model.layers.0.self_attn.quant_type".to_owned(), json!("K_INT8_DYNAMIC"));
    let dir = tempfile::tempdir().unwrap();
    made.write(dir.path(), &config());
    let source = open(dir.path()).unwrap();
    assert_eq!(weights(&source).weights().len(), 1);
    assert_eq!(source.warnings.len(), 2, "{:?}", source.warnings);
    let first = "2 scales and offsets of the key and value cache or of attention are left out \
                 (`model.layers.0.self_attn.k_proj.kv_cache_offset` is the first)";
    assert!(source.warnings[0].starts_with(first), "{:?}", source.warnings);
    assert!(source.warnings[1].contains("(`gone.weight` is the first)"));
}

#[test]
fn what_fits_no_type_is_said() {
    type Add = fn(&mut Made);
    let cases: [(&str, &str, Add); 5] = [
        ("orphan", "`a.weight_scale`: no quantized weight belongs to it", |made| {
            made.floats("a.weight_scale", "W8A16", &[4, 1], &[1.0; 4]);
        }),
        ("offset of a symmetric type", "but `W8A8_DYNAMIC` is symmetric", |made| {
            add_dynamic(made, "a", 4, 32, 1);
            made.floats("a.weight_offset", "W8A8_DYNAMIC", &[4, 1], &[0.0, 0.0, 3.0, 0.0]);
        }),
        ("rotation", "`a` cannot be converted: it stands for a transformation", |made| {
            add_dynamic(made, "a", 4, 32, 1);
            made.floats("a", "FLOAT", &[4, 4], &[0.0; 16]);
        }),
        ("parts", "cut in parts for several devices", |made| {
            made.floats("a.tp_list.0.weight", "FLOAT", &[4, 4], &[0.0; 16]);
        }),
        ("twice", "`a.weight` is there twice", |made| {
            add_dynamic(made, "a.linear", 4, 32, 1);
            made.floats("a.div.mul_scale", "FLOAT", &[32], &[1.0; 32]);
            made.floats("a.weight", "FLOAT", &[4, 32], &[0.0; 128]);
        }),
    ];
    let dir = tempfile::tempdir().unwrap();
    for (what, expected, add) in cases {
        let mut made = Made::default();
        add(&mut made);
        made.write(dir.path(), &config());
        let message = open(dir.path()).map(|_| ()).expect_err(what);
        assert!(message.contains(expected), "{what}: {message}");
    }
}

#[test]
fn four_bits_in_a_byte_are_checked_when_they_are_read() {
    let mut made = Made::default();
    let mut codes = vec![3i8; 64];
    codes[40] = 9;
    made.codes("a.weight", "W4A4_DYNAMIC", &[2, 32], &codes);
    made.floats("a.weight_scale", "W4A4_DYNAMIC", &[2, 1], &[1.0; 2]);
    made.floats("a.weight_offset", "W4A4_DYNAMIC", &[2, 1], &[0.0; 2]);
    let dir = tempfile::tempdir().unwrap();
    made.write(dir.path(), &config());
    let source = open(dir.path()).unwrap();
    let mut out = vec![0; 64 * 4];
    let error = weights(&source).read_elems(0, 0, &mut out).unwrap_err().to_string();
    assert!(error.contains("element 40 is 9, expected -8 to 7"), "{error}");
    let error = weights(&source).read_packed(0, GgmlType::Q4_0, 0, &mut [0; 36]).unwrap_err().to_string();
    assert!(error.contains("element 40 is 9, expected -8 to 7"), "{error}");
}

#[test]
fn weight_sets_are_chosen_by_the_description() {
    let dir = tempfile::tempdir().unwrap();
    let mut made = Made::default();
    add_dynamic(&mut made, "a", 4, 32, 1);
    made.write(dir.path(), &config());
    let at = |name: &str| dir.path().join(name);
    fs_err::rename(at("quant_model_weights.safetensors"), at("quant_model_weight_w8a8.safetensors")).unwrap();
    fs_err::copy(at("quant_model_weight_w8a8.safetensors"), at("quant_model_weight_w4a16.safetensors"))
        .unwrap();
    let message = open(dir.path()).unwrap_err();
    assert!(
        message.ends_with("several sets of weights: `quant_model_weight_w4a16`, `quant_model_weight_w8a8`")
    );
    fs_err::rename(at("quant_model_description.json"), at("quant_model_description_w8a8.json")).unwrap();
    let source = open(dir.path()).unwrap();
    assert_eq!(source.paths, [at("quant_model_weight_w8a8.safetensors")]);
    fs_err::copy(at("quant_model_description_w8a8.json"), at("quant_model_description.json")).unwrap();
    let message = open(dir.path()).unwrap_err();
    assert!(message.contains("several descriptions: "), "{message}");
    // Unmerged parts.
    for name in ["quant_model_description.json", "quant_model_weight_w8a8.safetensors"] {
        fs_err::remove_file(at(name)).unwrap();
    }
    fs_err::remove_file(at("quant_model_weight_w4a16.safetensors")).unwrap();
    fs_err::create_dir(at("rank_0")).unwrap();
    let message = open(dir.path()).unwrap_err();
    assert!(message.ends_with("the weights are in parts per device (`rank_0`)"), "{message}");
}

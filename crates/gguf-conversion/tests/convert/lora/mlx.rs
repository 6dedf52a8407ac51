//! Adapters of MLX: sums compared with a plain loop, in bases of transformers and of MLX.

use gguf_arch::OutType;
use gguf_conversion::{AdapterConversion, AdapterOptions, ConvertOptions};
use gguf_core::{Hint, TensorSource};
use gguf_format::Value;
use gguf_testkit::memory::{f32_values, tensor_bytes};
use serde_json::{Value as Json, json};

use super::merge::{EMBED, HEAD, NORM, Pair, Q, llama, read, values};

const Q_A: &str = "model.layers.0.self_attn.q_proj.lora_a";
const Q_B: &str = "model.layers.0.self_attn.q_proj.lora_b";
const Q_M: &str = "model.layers.0.self_attn.q_proj.m";
const V: &str = "model.layers.0.self_attn.v_proj.weight";
const V_A: &str = "model.layers.0.self_attn.v_proj.lora_a";
const V_B: &str = "model.layers.0.self_attn.v_proj.lora_b";
const EMBED_A: &str = "model.embed_tokens.lora_a";
const EMBED_B: &str = "model.embed_tokens.lora_b";
const UP_A: &str = "model.layers.1.mlp.switch_mlp.up_proj.lora_a";
const UP_B: &str = "model.layers.1.mlp.switch_mlp.up_proj.lora_b";
const SCALE: f64 = 2.5;

fn settings(training: &str) -> Json {
    json!({"fine_tune_type": training, "num_layers": 2, "lora_parameters": {"rank": 3, "scale": SCALE, "dropout": 0.0}})
}

/// W + scale · (A · B)ᵀ, or without the transposition, of a matrix `[n, k]`.
fn sum(
    pair: &Pair,
    weight: &str,
    [a, b]: [&str; 2],
    [n, k, rank]: [usize; 3],
    is_embedding: bool,
) -> Vec<f32> {
    let w = values(&pair.base, weight);
    let (a, b) = (values(&pair.adapter, a), values(&pair.adapter, b));
    let at = |row: usize, col: usize| {
        let product = |r: usize| {
            if is_embedding { a[row * rank + r] * b[r * k + col] } else { a[col * rank + r] * b[r * n + row] }
        };
        (w[row * k + col] + SCALE * (0..rank).map(product).sum::<f64>()) as f32
    };
    (0..n * k).map(|place| at(place / k, place % k)).collect()
}

#[test]
fn layers_embeddings_and_lengths_are_merged() {
    let base: &[(&str, &[u64])] =
        &[(EMBED, &[20, 8]), (HEAD, &[20, 8]), (NORM, &[8]), (Q, &[8, 8]), (V, &[4, 8])];
    let adapter: &[(&str, &[u64])] = &[
        (Q_A, &[8, 3]),
        (Q_B, &[3, 8]),
        (V_A, &[8, 2]),
        (V_B, &[2, 4]),
        (EMBED_A, &[20, 2]),
        (EMBED_B, &[2, 8]),
    ];
    let pair = Pair::new(base, adapter, &llama(), &settings("lora"));
    // MLX's own file name, and no notes in its header.
    let own = pair.dir.path().join("adapter");
    fs_err::rename(own.join("adapter_model.safetensors"), own.join("adapters.safetensors")).unwrap();
    let merged = pair.merged().unwrap();
    assert!(merged.warnings.is_empty(), "{:?}", merged.warnings);
    assert_eq!(read(&merged, Q), sum(&pair, Q, [Q_A, Q_B], [8, 8, 3], false));
    assert_eq!(read(&merged, V), sum(&pair, V, [V_A, V_B], [4, 8, 2], false));
    assert_eq!(read(&merged, EMBED), sum(&pair, EMBED, [EMBED_A, EMBED_B], [20, 8, 2], true));

    let with_lengths = [adapter, &[(Q_M, &[8][..])]].concat();
    let pair = Pair::new(base, &with_lengths, &llama(), &settings("lora"));
    let (plain, lengths) = (sum(&pair, Q, [Q_A, Q_B], [8, 8, 3], false), values(&pair.adapter, Q_M));
    for (row, (found, line)) in read(&pair.merged().unwrap(), Q).chunks(8).zip(plain.chunks(8)).enumerate() {
        let norm = line.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
        for (found, value) in found.iter().zip(line) {
            let want = f64::from(*value) / norm * lengths[row];
            assert!((f64::from(*found) - want).abs() < 1e-6, "{row}: {found}, not {want}");
        }
    }
    for (adapter, training, want) in [
        (&with_lengths[2..], "dora", "has no counterpart `model.layers.0.self_attn.q_proj.lora_a`"),
        (adapter, "dora", "has no counterpart `model.layers.0.self_attn.q_proj.m`"),
        (&adapter[..1], "lora", "has no counterpart `model.layers.0.self_attn.q_proj.lora_b`"),
        (&[(Q_A, &[8, 3][..]), (Q_B, &[2, 8])], "lora", "no matrices of one rank"),
        (&[(Q_A, &[6, 3][..]), (Q_B, &[3, 8])], "lora", "but the adapter's matrices are"),
    ] {
        let error = Pair::new(base, adapter, &llama(), &settings(training)).merged().unwrap_err();
        assert!(error.to_string().contains(want), "{error}, not {want}");
    }
}

#[test]
fn stacks_are_merged_into_experts_in_any_layout() {
    const E: usize = 3;
    const R: usize = 2;
    const H: usize = 8;
    const I: usize = 6;
    let adapter: &[(&str, &[u64])] = &[(UP_A, &[3, 2, 8]), (UP_B, &[3, 6, 2])];
    let layer = "model.layers.1";
    let name = |rest: &str| -> &'static str { format!("{layer}.{rest}").leak() };
    let singles = |module: &str, words: [&str; 2]| -> Vec<(&'static str, &[u64])> {
        let one = |e: usize, word: &str| name(&format!("{module}.experts.{e}.{word}.weight"));
        (0..E).flat_map(|e| words.map(|word| (one(e, word), &[6u64, 8][..]))).collect()
    };
    // Names of the weights that have the experts' matrices, and the first element of each expert there.
    let stack = |whole: &'static str, rows: usize, first: usize| -> Vec<(&'static str, usize)> {
        (0..E).map(|e| (whole, (e * rows + first) * H)).collect()
    };
    let own = name("mlp.switch_mlp.up_proj.weight");
    let joined = name("mlp.experts.gate_up_proj");
    for (base, places) in [
        (vec![(own, &[3, 6, 8][..])], stack(own, I, 0)),
        (vec![(joined, &[3, 12, 8][..])], stack(joined, 2 * I, I)),
        (
            singles("mlp", ["gate_proj", "up_proj"]),
            (0..E).map(|e| (name(&format!("mlp.experts.{e}.up_proj.weight")), 0)).collect(),
        ),
        (
            singles("block_sparse_moe", ["w1", "w3"]),
            (0..E).map(|e| (name(&format!("block_sparse_moe.experts.{e}.w3.weight")), 0)).collect(),
        ),
    ] {
        let pair = Pair::new(&base, adapter, &llama(), &settings("lora"));
        let merged = pair.merged().unwrap();
        let (a, b) = (values(&pair.adapter, UP_A), values(&pair.adapter, UP_B));
        for (e, (weight, first)) in places.into_iter().enumerate() {
            let (w, found) = (values(&pair.base, weight), read(&merged, weight));
            for at in 0..I * H {
                let (row, col) = (at / H, at % H);
                let product = |r: usize| b[(e * I + row) * R + r] * a[(e * R + r) * H + col];
                let want = (w[first + at] + SCALE * (0..R).map(product).sum::<f64>()) as f32;
                assert_eq!(found[first + at], want, "{weight} {e} {at}");
            }
        }
    }
}

#[test]
fn stacks_are_merged_into_those_of_gate_and_up_in_any_order() {
    const JOINED: &str = "model.layers.1.mlp.experts.gate_up_proj";
    const DOWN: &str = "model.layers.1.mlp.experts.down_proj";
    const E: usize = 3;
    const N: usize = 6;
    const K: usize = 8;
    const R: usize = 2;
    let gpt_oss = gguf_testkit::files::json(gguf_testkit::fixture("cards").join("gpt-oss/plain.json"));
    let single =
        |half: &str| -> &'static str { format!("model.layers.1.mlp.experts.2.up_proj.{half}").leak() };
    let stacked: [(&str, &[u64]); 2] = [(UP_A, &[3, 2, 8]), (UP_B, &[3, 6, 2])];
    let alone: [(&str, &[u64]); 2] = [(single("lora_a"), &[8, 2]), (single("lora_b"), &[2, 6])];
    // The second half of each row, or every other column of it.
    for (model, first, step) in [(&llama(), N, 1), (&gpt_oss["config"], 1, 2)] {
        for adapter in [&stacked, &alone] {
            let pair = Pair::new(&[(JOINED, &[3, 8, 12])], adapter, model, &settings("lora"));
            let mut want = values(&pair.base, JOINED);
            let (a, b) = (values(&pair.adapter, adapter[0].0), values(&pair.adapter, adapter[1].0));
            let is_stacked = a.len() == E * R * K;
            for e in if is_stacked { 0..E } else { 2..E } {
                for at in 0..N * K {
                    let (row, col) = (at / K, at % K);
                    let product = |r: usize| {
                        if is_stacked {
                            b[(e * N + row) * R + r] * a[(e * R + r) * K + col]
                        } else {
                            a[col * R + r] * b[r * N + row]
                        }
                    };
                    want[(e * K + col) * 2 * N + first + step * row] +=
                        SCALE * (0..R).map(product).sum::<f64>();
                }
            }
            let want: Vec<f32> = want.into_iter().map(|value| value as f32).collect();
            assert_eq!(read(&pair.merged().unwrap(), JOINED), want, "{first} {is_stacked}");
        }
    }
    // The other stack shows that square matrices are transposed.
    let [down_a, down_b] = ["lora_a", "lora_b"]
        .map(|half| -> &'static str { format!("model.layers.1.mlp.switch_mlp.down_proj.{half}").leak() });
    let base: [(&str, &[u64]); 2] = [(JOINED, &[3, 8, 16]), (DOWN, &[3, 8, 8])];
    let pair = Pair::new(&base, &[(down_a, &[3, 2, 8]), (down_b, &[3, 8, 2])], &llama(), &settings("lora"));
    let (mut want, found) = (values(&pair.base, DOWN), read(&pair.merged().unwrap(), DOWN));
    let (a, b) = (values(&pair.adapter, down_a), values(&pair.adapter, down_b));
    for at in 0..E * K * K {
        let (e, row, col) = (at / (K * K), at / K % K, at % K);
        want[(e * K + col) * K + row] +=
            SCALE * (0..R).map(|r| b[(e * K + row) * R + r] * a[(e * R + r) * K + col]).sum::<f64>();
    }
    assert_eq!(found, want.into_iter().map(|value| value as f32).collect::<Vec<_>>());
}

/// Plans the GGUF adapter of stacks, whose names are those of MLX, for a base that has no layer with experts here.
fn plan_of_stacks(
    at: &str,
    adapter: &[(&'static str, &[u64])],
) -> Result<AdapterConversion, gguf_conversion::ConvertError> {
    let model = gguf_testkit::files::json(gguf_testkit::fixture("cards").join(at));
    let pair = Pair::new(&[(EMBED, &[20, 8])], adapter, &model["config"], &settings("lora"));
    let options = AdapterOptions { base: Some(pair.dir.path().join("base")), ..AdapterOptions::default() };
    let own = ConvertOptions { file_type: Some(OutType::F32), ..ConvertOptions::default() };
    AdapterConversion::plan(&pair.dir.path().join("adapter"), &options, &own)
}

#[test]
fn stacks_are_those_of_experts_without_the_weights_of_the_base() {
    let of = |at: &str| -> Vec<String> {
        let made = plan_of_stacks(at, &[(UP_A, &[4, 2, 64]), (UP_B, &[4, 64, 2])]).unwrap();
        assert!(made.warnings().is_empty(), "{at}: {:?}", made.warnings());
        made.tensors().iter().map(|tensor| tensor.name.clone()).collect()
    };
    for at in ["bailingmoe/bailing_moe.json", "laguna/laguna.json", "olmoe/olmoe.json"] {
        assert_eq!(of(at), ["blk.1.ffn_up_exps.weight.lora_a", "blk.1.ffn_up_exps.weight.lora_b"], "{at}");
    }
}

#[test]
fn gate_and_up_are_one_tensor_where_the_file_has_them_so() {
    const GATE_A: &str = "model.layers.1.mlp.switch_mlp.gate_proj.lora_a";
    const GATE_B: &str = "model.layers.1.mlp.switch_mlp.gate_proj.lora_b";
    let adapter: &[(&str, &[u64])] =
        &[(GATE_A, &[4, 2, 64]), (GATE_B, &[4, 32, 2]), (UP_A, &[4, 2, 64]), (UP_B, &[4, 32, 2])];
    let made = plan_of_stacks("mistral4/mistral4.json", adapter).unwrap();
    let found: Vec<_> =
        made.tensors().iter().map(|tensor| (tensor.name.as_str(), tensor.shape.dims().to_vec())).collect();
    assert_eq!(
        found,
        [
            ("blk.1.ffn_gate_up_exps.weight.lora_a", vec![4, 4, 64]),
            ("blk.1.ffn_gate_up_exps.weight.lora_b", vec![4, 64, 4])
        ]
    );
    let error = plan_of_stacks("mistral4/mistral4.json", &adapter[..2]).unwrap_err();
    assert!(error.to_string().contains("without `blk.1.ffn_up_exps.weight`"), "{error}");
    assert!(error.hints()[0].contains("merge-lora"), "{:?}", error.hints());
}

#[test]
fn a_gguf_adapter_has_the_matrices_turned_and_the_strength() {
    let model = json!({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8,
        "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2, "intermediate_size": 16,
        "head_dim": 4, "vocab_size": 20, "rms_norm_eps": 1e-5, "max_position_embeddings": 64});
    let plan = |adapter: &[(&'static str, &[u64])], training: &str| {
        let pair = Pair::new(&[(EMBED, &[20, 8])], adapter, &model, &settings(training));
        let options =
            AdapterOptions { base: Some(pair.dir.path().join("base")), ..AdapterOptions::default() };
        let path = pair.dir.path().join("adapter");
        let own = ConvertOptions { file_type: Some(OutType::F32), ..ConvertOptions::default() };
        AdapterConversion::plan(&path, &options, &own).map(|made| {
            let tensors: Vec<_> = (0..made.tensors().len())
                .map(|at| (made.tensors()[at].name.clone(), f32_values(&tensor_bytes(&made, at))))
                .collect();
            (pair, tensors, made.metadata().get("adapter.lora.alpha").cloned(), made.warnings().to_vec())
        })
    };
    let (pair, tensors, alpha, warnings) = plan(&[(V_A, &[8, 2]), (V_B, &[2, 4])], "lora").unwrap();
    assert_eq!(alpha, Some(Value::F32(5.0)));
    assert!(warnings.is_empty(), "{warnings:?}");
    let turned = |name: &str, [rows, cols]: [usize; 2]| -> Vec<f32> {
        let all = values(&pair.adapter, name);
        (0..rows * cols).map(|at| all[at % rows * cols + at / rows] as f32).collect()
    };
    assert_eq!(tensors[0], ("blk.0.attn_v.weight.lora_a".to_owned(), turned(V_A, [8, 2])));
    assert_eq!(tensors[1], ("blk.0.attn_v.weight.lora_b".to_owned(), turned(V_B, [2, 4])));
    let vector = "model.layers.0.self_attn.v_proj.m";
    for (adapter, want) in [
        (&[(V_A, &[8, 2][..]), (V_B, &[2, 4]), (vector, &[4])][..], "lengths of rows (DoRA)"),
        (&[(V, &[4, 8])], "a whole tensor of the model"),
    ] {
        let error = plan(adapter, "full").map(|_| ()).unwrap_err();
        assert!(error.to_string().contains(want), "{error}");
        assert!(error.hints()[0].contains("merge-lora"), "{:?}", error.hints());
    }
}

#[test]
fn single_experts_are_merged_into_stacks_and_into_the_one_matrix_of_dbrx() {
    const STACK: &str = "model.layers.0.mlp.experts.up_proj";
    const W1: &str = "transformer.blocks.0.ffn.experts.mlp.w1";
    const W2: &str = "transformer.blocks.0.ffn.experts.mlp.w2";
    let dbrx = "transformer.blocks.0.ffn.experts";
    // Each expert is 6 by 8; two of three have matrices. W2 has each expert transposed.
    for (whole, dims, module, word, is_turned) in [
        (STACK, &[3u64, 6, 8][..], "model.layers.0.mlp.experts", "up_proj", false),
        (W1, &[18, 8], dbrx, "w1", false),
        (W2, &[24, 6], dbrx, "w2", true),
    ] {
        let name = |e: usize, half: &str| -> &'static str { format!("{module}.{e}.{word}.{half}").leak() };
        let adapter: Vec<(&'static str, &[u64])> = [0, 2]
            .iter()
            .flat_map(|&e| [(name(e, "lora_a"), &[8u64, 2][..]), (name(e, "lora_b"), &[2, 6])])
            .collect();
        let pair = Pair::new(&[(whole, dims)], &adapter, &llama(), &settings("lora"));
        let (w, found) = (values(&pair.base, whole), read(&pair.merged().unwrap(), whole));
        for at in 0..w.len() {
            let width = if is_turned { 6 } else { 8 };
            let (e, row, col) = (at / 48, at % 48 / width, at % width);
            let (row, col) = if is_turned { (col, row) } else { (row, col) };
            let product: f64 = if e == 1 {
                0.0
            } else {
                let [a, b] = ["lora_a", "lora_b"].map(|half| values(&pair.adapter, name(e, half)));
                (0..2).map(|r| a[col * 2 + r] * b[r * 6 + row]).sum()
            };
            assert_eq!(found[at], (w[at] + SCALE * product) as f32, "{whole} {at}");
        }
    }
}

#[test]
fn an_embedding_by_any_name_is_known_by_the_tensor_that_it_becomes() {
    const A: &str = "transformer.token_embeddings.lora_a";
    const B: &str = "transformer.token_embeddings.lora_b";
    let model = gguf_testkit::files::json(gguf_testkit::fixture("cards").join("openelm/openelm.json"));
    let base: &[(&str, &[u64])] = &[("transformer.token_embeddings.weight", &[192, 64])];
    let adapter: &[(&str, &[u64])] = &[(A, &[192, 2]), (B, &[2, 64])];
    let pair = Pair::new(base, adapter, &model["config"], &settings("lora"));
    let options = AdapterOptions { base: Some(pair.dir.path().join("base")), ..AdapterOptions::default() };
    let own = ConvertOptions { file_type: Some(OutType::F32), ..ConvertOptions::default() };
    let made = AdapterConversion::plan(&pair.dir.path().join("adapter"), &options, &own).unwrap();
    let found = |at: usize| (made.tensors()[at].name.clone(), f32_values(&tensor_bytes(&made, at)));
    let (a, b) = (values(&pair.adapter, A), values(&pair.adapter, B));
    let a = a.into_iter().map(|value| value as f32).collect();
    let b = (0..128).map(|at| b[at % 2 * 64 + at / 2] as f32).collect();
    assert_eq!(found(0), ("token_embd.weight.lora_a".to_owned(), a));
    assert_eq!(found(1), ("token_embd.weight.lora_b".to_owned(), b));
}

#[test]
fn matrices_of_older_versions_of_mlx_vlm_are_merged() {
    const A: &str = "language_model.model.layers.0.self_attn.v_proj.A";
    const B: &str = "language_model.model.layers.0.self_attn.v_proj.B";
    let settings = json!({"rank": 2, "alpha": SCALE, "dropout": 0.0});
    let pair = Pair::new(&[(V, &[4, 8])], &[(A, &[8, 2]), (B, &[2, 4])], &llama(), &settings);
    let files = ["adapter_model.safetensors", "adapters.safetensors"];
    let [from, to] = files.map(|name| pair.dir.path().join("adapter").join(name));
    fs_err::rename(from, to).unwrap();
    assert_eq!(read(&pair.merged().unwrap(), V), sum(&pair, V, [A, B], [4, 8, 2], false));
}

#[test]
fn whole_weights_take_the_place_of_the_base_s_unless_their_norms_are_others() {
    let base: &[(&str, &[u64])] = &[(NORM, &[8]), (Q, &[8, 8])];
    let pair = Pair::new(base, base, &llama(), &json!({"fine_tune_type": "full"}));
    let merged = pair.merged().unwrap();
    let floats: Vec<f32> = values(&pair.adapter, Q).into_iter().map(|value| value as f32).collect();
    assert_eq!(read(&merged, Q), floats);
    let other =
        json!({"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "hidden_size": 8});
    let error = Pair::new(base, base, &other, &json!({"fine_tune_type": "full"})).merged().unwrap_err();
    assert!(error.to_string().contains("which MLX stores with one added"), "{error}");
}

#[test]
fn an_alpha_next_to_the_scale_is_told_with_both_strengths() {
    let base: &[(&str, &[u64])] = &[(Q, &[8, 8])];
    let mut settings = settings("lora");
    for (alpha, is_told) in [(json!(6), true), (json!(3), false), (Json::Null, false)] {
        settings["lora_parameters"]["alpha"] = alpha;
        let pair = Pair::new(base, &[(Q_A, &[8, 3]), (Q_B, &[3, 8])], &llama(), &settings);
        let files = ["adapter_model.safetensors", "adapters.safetensors"];
        let [from, to] = files.map(|name| pair.dir.path().join("adapter").join(name));
        fs_err::rename(from, to).unwrap();
        let warnings = pair.merged().unwrap().warnings.join("\n");
        assert_eq!(warnings.contains("`alpha` 6 next to `scale` 2.5"), is_told, "{warnings}");
        assert_eq!(warnings.contains("set `scale` to 5"), is_told, "{warnings}");
    }
}

#[test]
fn files_of_adapters_under_other_names_are_named() {
    let pair = Pair::new(&[(Q, &[8, 8])], &[(Q_A, &[8, 3]), (Q_B, &[3, 8])], &llama(), &settings("lora"));
    let adapter = pair.dir.path().join("adapter");
    let mut last = adapter.join("adapter_model.safetensors");
    for (name, hint) in [
        ("0000100_adapters.safetensors", "copy the file to `adapters.safetensors`"),
        ("adapter_model.safetensors.index.json", "PEFT reads one file, too"),
    ] {
        fs_err::rename(&last, adapter.join(name)).unwrap();
        last = adapter.join(name);
        let error = pair.merged().unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
        assert!(error.hints()[0].starts_with(hint), "{:?}", error.hints());
    }
}

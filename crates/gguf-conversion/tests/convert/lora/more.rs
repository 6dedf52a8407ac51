//! Adapters with more than pairs of matrices: added tokens, rows of single tokens, a separate tokenizer; and refused
//! ones.

use gguf_checkpoint::AdapterDir;
use gguf_conversion::{Conversion, ConvertOptions, ModelSource};
use gguf_core::limits::Limits;
use gguf_core::{Hint, WeightSource};
use gguf_format::Value;
use serde_json::json;

use super::merge::{EMBED, EMBED_A, EMBED_B, HEAD, NORM, Pair, Q, WHOLE_HEAD, llama, read, values};
use gguf_testkit::adapters::{Q_A, Q_B, write_safetensors, write_tiny_adapter};
use gguf_testkit::fixture;

const WHOLE_EMBED: &str = "base_model.model.model.embed_tokens.weight";
const BASE_EMBED: &str = "base_model.model.model.embed_tokens.base_layer.weight";
const TOKENS: &str = "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta";

fn floats(values: Vec<f64>) -> Vec<f32> {
    values.into_iter().map(|value| value as f32).collect()
}

fn shape(source: &ModelSource, name: &str) -> Vec<u64> {
    source.metas().iter().find(|meta| meta.name == name).unwrap().shape.dims().to_vec()
}

#[test]
fn added_tokens_change_embedding_output_and_their_number() {
    let settings = json!({"peft_type": "LORA", "lora_alpha": 6, "r": 3});
    let mut model = llama();
    model["vocab_size"] = json!(20);
    let base: [(&str, &[u64]); 4] = [(EMBED, &[20, 8]), (HEAD, &[20, 8]), (NORM, &[8]), (Q, &[8, 8])];
    let pair = Pair::new(
        &base,
        &[(Q_A, &[3, 8]), (Q_B, &[8, 3]), (WHOLE_HEAD, &[22, 8]), (WHOLE_EMBED, &[22, 8])],
        &model,
        &settings,
    );
    let merged = pair.merged().unwrap();
    assert_eq!([shape(&merged, EMBED), shape(&merged, HEAD)], [[22, 8], [22, 8]]);
    assert_eq!(read(&merged, EMBED), floats(values(&pair.adapter, WHOLE_EMBED)));
    assert_eq!(read(&merged, HEAD), floats(values(&pair.adapter, WHOLE_HEAD)));
    assert_eq!(read(&merged, Q), pair.sum(Q, [Q_A, Q_B], 2.0, false));
    assert_eq!(merged.dir.config()["vocab_size"], 22);
    assert_eq!(
        merged.warnings,
        [format!(
            "`{HEAD}` has 22 rows in the adapter and 20 in the base model: the vocabulary has 22 tokens"
        )]
    );

    // One alone is not enough, nor are two different numbers.
    for adapter in [&[(WHOLE_EMBED, &[22u64, 8][..])][..], &[(WHOLE_HEAD, &[21, 8]), (WHOLE_EMBED, &[22, 8])]]
    {
        let error = Pair::new(&base, adapter, &model, &settings).merged().unwrap_err();
        assert!(error.to_string().contains("of the base model keeps 20"), "{error}");
        assert!(error.hints()[0].contains("`resize_token_embeddings`"), "{error:?}");
    }

    // An embedding that matrices change is stored with the rows of the training.
    let pair = Pair::new(
        &[(EMBED, &[20, 8]), (NORM, &[8])],
        &[(EMBED_A, &[3, 22]), (EMBED_B, &[8, 3]), (BASE_EMBED, &[22, 8])],
        &model,
        &settings,
    );
    let merged = pair.merged().unwrap();
    assert_eq!(shape(&merged, EMBED), [22, 8]);
    assert_ne!(read(&merged, EMBED), floats(values(&pair.adapter, BASE_EMBED)));
}

#[test]
fn rows_of_single_tokens_take_the_place_of_the_base_s() {
    let run = |settings: serde_json::Value, n_rows: u64| {
        let pair = Pair::new(
            &[(EMBED, &[20, 8]), (HEAD, &[20, 8]), (Q, &[8, 8])],
            &[(Q_A, &[3, 8]), (Q_B, &[8, 3]), (TOKENS, &[n_rows, 8])],
            &llama(),
            &settings,
        );
        let merged = pair.merged();
        (pair, merged)
    };
    for indices in [json!([19, 4]), json!({"embed_tokens": [19, 4]})] {
        let (pair, merged) = run(json!({"lora_alpha": 3, "r": 3, "trainable_token_indices": indices}), 2);
        let merged = merged.unwrap();
        let (mut want, rows) = (floats(values(&pair.base, EMBED)), floats(values(&pair.adapter, TOKENS)));
        want[19 * 8..].copy_from_slice(&rows[..8]);
        want[4 * 8..5 * 8].copy_from_slice(&rows[8..]);
        assert_eq!(read(&merged, EMBED), want);
        assert_eq!(read(&merged, HEAD), floats(values(&pair.base, HEAD)));
        let mut piece = [0; 12];
        let at = merged.metas().iter().position(|meta| meta.name == EMBED).unwrap();
        merged.weights.as_deref().unwrap().read_elems(at, 4 * 8 + 2, &mut piece).unwrap();
        assert_eq!(piece[..4], rows[10].to_le_bytes());
    }
    for (settings, want) in [
        (json!({"lora_alpha": 3}), "has no `trainable_token_indices` for it"),
        (
            json!({"lora_alpha": 3, "trainable_token_indices": {"lm_head": [1, 2]}}),
            "has no `trainable_token_indices` for it",
        ),
        (
            json!({"lora_alpha": 3, "trainable_token_indices": [1]}),
            "but the adapter has [2, 8] for rows 1 to 1",
        ),
        (
            json!({"lora_alpha": 3, "trainable_token_indices": [1, 1]}),
            "but the adapter has [2, 8] for rows 1 to 1",
        ),
        (
            json!({"lora_alpha": 3, "trainable_token_indices": [1, 20]}),
            "but the adapter has [2, 8] for rows 1 to 20",
        ),
    ] {
        let error = run(settings, 2).1.unwrap_err().to_string();
        assert!(error.ends_with(want), "{error}");
    }
}

#[test]
fn names_and_ranks_that_differ_from_what_is_said() {
    let [a, b] = [Q_A, Q_B].map(|name| name.replace("weight", "default.weight"));
    let names: [&'static str; 2] = [a.leak(), b.leak()];
    let pair = Pair::new(
        &[(Q, &[8, 8])],
        &[(names[0], &[3, 8]), (names[1], &[8, 3])],
        &llama(),
        &json!({"lora_alpha": 6, "r": 16}),
    );
    let merged = pair.merged().unwrap();
    assert_eq!(read(&merged, Q), pair.sum(Q, names, 2.0, false));
    assert_eq!(
        merged.warnings,
        [
            "adapter_config.json declares rank 16, but the matrices of `model.layers.0.self_attn.q_proj` have rank 3, which is what \
          counts"
        ]
    );
    for (settings, wanted) in [
        (json!({"modules_to_save": ["lm_head"]}), "`modules_to_save` names `lm_head`"),
        (json!({"modules_to_save": ["classifier", "score"]}), "`modules_to_save` names `classifier`"),
        (json!({"trainable_token_indices": [1]}), "`trainable_token_indices` is on"),
        (json!({"lora_bias": true}), "`lora_bias` is on"),
        (json!({"modules_to_save": ["self_attn"], "lora_bias": false, "trainable_token_indices": []}), ""),
    ] {
        let mut config = json!({"lora_alpha": 6, "r": 3});
        config.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
        let pair = Pair::new(&[(Q, &[8, 8])], &[(names[0], &[3, 8]), (names[1], &[8, 3])], &llama(), &config);
        let warnings = pair.merged().unwrap().warnings;
        assert_eq!(warnings.len(), usize::from(!wanted.is_empty()), "{settings}: {warnings:?}");
        assert!(warnings.iter().all(|warning| warning.contains(wanted)), "{warnings:?}");
    }
}

/// DoRA: ggml-org/llama.cpp#6536, unslothai/unsloth-zoo#828.
#[test]
fn rows_get_the_lengths_of_dora() {
    const M: &str = "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector";
    const NAMED: &str =
        "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector.default.weight";
    let config = json!({"lora_alpha": 6, "use_dora": true, "peft_type": "lora"});
    for name in [M, NAMED] {
        let adapter = [(Q_A, &[3, 8][..]), (Q_B, &[8, 3]), (name, &[8])];
        let pair = Pair::new(&[(Q, &[8, 8])], &adapter, &llama(), &config);
        let merged = read(&pair.merged().unwrap(), Q);
        let (sum, lengths) = (pair.sum(Q, [Q_A, Q_B], 2.0, false), values(&pair.adapter, name));
        for (row, length) in lengths.iter().enumerate() {
            let own = &sum[row * 8..row * 8 + 8];
            let norm = own.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
            let want: Vec<f32> = own.iter().map(|&value| (f64::from(value) * length / norm) as f32).collect();
            assert_eq!(merged[row * 8..row * 8 + 8], want);
        }
    }
    let embedding =
        [(EMBED_A, &[2, 20][..]), (EMBED_B, &[8, 2]), ("model.embed_tokens.lora_magnitude_vector", &[8])];
    for (base, adapter, end) in [
        (
            Q,
            &[(Q_A, &[3, 8][..]), (Q_B, &[8, 3])][..],
            "has no counterpart `model.layers.0.self_attn.q_proj.lora_magnitude_vector`",
        ),
        (EMBED, &embedding, "a vector of magnitudes (DoRA)"),
    ] {
        let shape: &[u64] = if base == Q { &[8, 8] } else { &[20, 8] };
        let error = Pair::new(&[(base, shape)], adapter, &llama(), &config).merged().unwrap_err();
        assert!(error.to_string().ends_with(end), "{error}");
    }
}

/// Parts of processes, as DeepSpeed and FSDP leave them (vllm-project/vllm#28640).
#[test]
fn matrices_of_one_process_are_told() {
    for (a, b) in [(&[0][..], &[0][..]), (&[24], &[24])] {
        let pair = Pair::new(&[(Q, &[8, 8])], &[(Q_A, a), (Q_B, b)], &llama(), &json!({"lora_alpha": 6}));
        let hints = pair.merged().unwrap_err().hints();
        assert!(hints[0].contains("ZeRO-3"), "{hints:?}");
    }
}

#[test]
fn matrices_come_in_the_order_in_which_they_lie() {
    let dir = tempfile::tempdir().unwrap();
    let tensors =
        [("q.lora_B.weight", vec![4, 2]), ("a.lora_A.weight", vec![2, 4]), ("q.lora_A.weight", vec![2, 4])];
    write_safetensors(&dir.path().join("adapter_model.safetensors"), &tensors);
    fs_err::write(dir.path().join("adapter_config.json"), "{}").unwrap();
    let adapter = AdapterDir::open(dir.path(), &Limits::default()).unwrap();
    let names: Vec<&str> = adapter.weights().iter().map(|meta| meta.name.as_str()).collect();
    assert_eq!(names, tensors.each_ref().map(|row| row.0));
}

#[test]
fn the_tokenizer_that_the_training_used_is_written() {
    let base = fixture("tiny-llama");
    let template = "{# of the training #}{{ messages }}";
    let run = |files: &[(&str, String)]| {
        let dir = tempfile::tempdir().unwrap();
        write_tiny_adapter(dir.path());
        for (name, text) in files {
            fs_err::write(dir.path().join(name), text).unwrap();
        }
        let options = ConvertOptions::default();
        let source = ModelSource::open(&base, &options).unwrap().merged(dir.path(), &options).unwrap();
        let warnings = source.warnings.clone();
        (Conversion::of(source, &options).unwrap(), warnings)
    };
    let text = |name: &str| fs_err::read_to_string(base.join(name)).unwrap();
    let (plain, warnings) = run(&[]);
    assert!(warnings.is_empty(), "{warnings:?}");
    // The same files again cause no warning.
    let same = ["tokenizer.json", "tokenizer_config.json"].map(|name| (name, text(name)));
    assert!(run(&same).1.is_empty());

    let (found, warnings) = run(&[("chat_template.jinja", template.to_owned())]);
    assert_eq!(
        warnings,
        [
            "the adapter's tokenizer files take the place of the base model's: a chat template, where the base model has none"
        ]
    );
    assert_eq!(found.metadata().get("tokenizer.chat_template"), Some(&Value::from(template)));
    assert_eq!(plain.metadata().get("tokenizer.ggml.tokens"), found.metadata().get("tokenizer.ggml.tokens"));

    let config = text("tokenizer_config.json").replace("</s>", "<s>");
    let (_, warnings) =
        run(&[("tokenizer_config.json", config), ("chat_template.jinja", template.to_owned())]);
    assert_eq!(
        warnings,
        [
            "the adapter's tokenizer files take the place of the base model's: `eos_token` `<s>` in place of `</s>`, a chat \
          template, where the base model has none"
        ]
    );
}

#[test]
fn what_is_no_adapter_of_peft_is_refused_with_the_way_out() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs_err::write(at("adapter_config.json"), r#"{"lora_parameters": {"rank": 8}}"#).unwrap();
    let refused = || {
        let error = AdapterDir::open(dir.path(), &Limits::default()).unwrap_err();
        (error.to_string().replace(&format!("{}/", dir.path().display()), ""), error.hints())
    };
    let (error, hints) = refused();
    assert!(error.ends_with("`adapter_model.safetensors` is missing"), "{error}");
    assert!(hints[0].starts_with("an adapter of PEFT is a directory"), "{hints:?}");
    write_safetensors(&at("model.safetensors"), &[("a", vec![1])]);
    let (error, hints) = refused();
    assert_eq!(error, "model.safetensors: a whole model in place of an adapter cannot be read yet");
    assert!(hints[0].contains("hf2gguf"), "{hints:?}");
    fs_err::write(at("adapters.npz"), b"PK").unwrap();
    let (error, hints) = refused();
    assert_eq!(error, "adapters.npz: an adapter of an old MLX cannot be read yet");
    assert!(hints[0].starts_with("`mlx_lm.fuse --model BASE"), "{hints:?}");
    fs_err::write(at("config.json"), llama().to_string()).unwrap();
    let options = ConvertOptions::default();
    // Matrices of more dimensions: of a convolution, and of experts that share one of two.
    fs_err::write(at("adapter_config.json"), r#"{"peft_type": "LORA", "lora_alpha": 2, "r": 2}"#).unwrap();
    for (module, a, b, [what, way]) in [
        (
            "visual.patch_embed.proj",
            &[2, 3, 8, 8][..],
            &[16, 2, 1, 1][..],
            ["a convolution", "merge_and_unload"],
        ),
        ("l.0.mlp.experts.w1", &[1, 2, 8], &[4, 6, 2], ["as Tinker saves them", "build_lora_adapter"]),
    ] {
        let names = ["lora_A", "lora_B"].map(|half| format!("{module}.{half}.weight"));
        let rows = [(names[0].as_str(), a.to_vec()), (names[1].as_str(), b.to_vec())];
        write_safetensors(&at("adapter_model.safetensors"), &rows);
        let error =
            ModelSource::open(dir.path(), &options).unwrap().merged(dir.path(), &options).unwrap_err();
        assert!(error.to_string().contains(&names[0]) && error.to_string().contains(what), "{error}");
        assert!(error.hints()[0].contains(way), "{error:?}");
    }
}

//! Adapters merged into their base: every weight compared with a plain loop in F64.

use gguf_conversion::{ConvertError, ConvertOptions, ModelSource};
use gguf_core::{ElementType, Hint};
use serde_json::{Value as Json, json};

use gguf_testkit::adapters::{Q_A, Q_B, element, write_safetensors};
use gguf_testkit::memory::{f32_values, weight_bytes};

pub(super) fn values(tensors: &[(&str, Vec<u64>)], name: &str) -> Vec<f64> {
    let index = tensors.iter().position(|row| row.0 == name).unwrap();
    let n: u64 = tensors[index].1.iter().product();
    (0..n as usize).map(|at| f64::from(element(index, at))).collect()
}

/// Base model and adapter.
pub(super) struct Pair {
    pub(super) dir: tempfile::TempDir,
    pub(super) base: Vec<(&'static str, Vec<u64>)>,
    pub(super) adapter: Vec<(&'static str, Vec<u64>)>,
}

impl Pair {
    pub(super) fn new(
        base: &[(&'static str, &[u64])],
        adapter: &[(&'static str, &[u64])],
        model: &Json,
        settings: &Json,
    ) -> Self {
        let own = |rows: &[(&'static str, &[u64])]| {
            rows.iter().map(|(name, dims)| (*name, dims.to_vec())).collect()
        };
        let pair = Self { dir: tempfile::tempdir().unwrap(), base: own(base), adapter: own(adapter) };
        let at = |name: &str| pair.dir.path().join(name);
        for dir in ["base", "adapter"] {
            fs_err::create_dir(at(dir)).unwrap();
        }
        fs_err::write(at("base/config.json"), model.to_string()).unwrap();
        fs_err::write(at("adapter/adapter_config.json"), settings.to_string()).unwrap();
        write_safetensors(&at("base/model.safetensors"), &pair.base);
        write_safetensors(&at("adapter/adapter_model.safetensors"), &pair.adapter);
        pair
    }

    pub(super) fn merged(&self) -> Result<ModelSource, ConvertError> {
        let options = ConvertOptions::default();
        let base = ModelSource::open(&self.dir.path().join("base"), &options)?;
        base.merged(&self.dir.path().join("adapter"), &options)
    }

    /// Computes W + scale · B · A of a weight, or with the product transposed.
    pub(super) fn sum(&self, weight: &str, [a, b]: [&str; 2], scale: f64, is_turned: bool) -> Vec<f32> {
        let dims = |rows: &[(&str, Vec<u64>)], name: &str| -> [usize; 2] {
            let dims = &rows.iter().find(|row| row.0 == name).unwrap().1;
            [dims[0] as usize, dims[1] as usize]
        };
        let [n, k] = dims(&self.base, weight);
        let [rank, a_cols] = dims(&self.adapter, a);
        let (w, a) = (values(&self.base, weight), values(&self.adapter, a));
        let b = values(&self.adapter, b);
        let mut out = Vec::new();
        for row in 0..n {
            for column in 0..k {
                let (out_row, in_column) = if is_turned { (column, row) } else { (row, column) };
                let product: f64 = (0..rank).map(|r| b[out_row * rank + r] * a[r * a_cols + in_column]).sum();
                out.push((w[row * k + column] + scale * product) as f32);
            }
        }
        out
    }
}

pub(super) fn read(source: &ModelSource, name: &str) -> Vec<f32> {
    let weights = source.weights.as_deref().unwrap();
    let index = weights.weights().iter().position(|meta| meta.name == name).unwrap();
    assert_eq!(weights.weights()[index].ty, ElementType::F32);
    f32_values(&weight_bytes(weights, index))
}

pub(super) const Q: &str = "model.layers.0.self_attn.q_proj.weight";
const V: &str = "model.layers.0.self_attn.v_proj.weight";
pub(super) const NORM: &str = "model.layers.0.input_layernorm.weight";
pub(super) const EMBED: &str = "model.embed_tokens.weight";
pub(super) const HEAD: &str = "lm_head.weight";
pub(super) const V_A: &str = "base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight";
const V_B: &str = "base_model.model.model.layers.0.self_attn.v_proj.lora_B.weight";
pub(super) const EMBED_A: &str = "base_model.model.model.embed_tokens.lora_embedding_A";
pub(super) const EMBED_B: &str = "base_model.model.model.embed_tokens.lora_embedding_B";
pub(super) const WHOLE_HEAD: &str = "base_model.model.lm_head.weight";

pub(super) fn llama() -> Json {
    json!({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8})
}

#[test]
fn layers_embeddings_and_whole_tensors_are_merged() {
    let pair = Pair::new(
        &[(EMBED, &[20, 8]), (HEAD, &[20, 8]), (NORM, &[8]), (Q, &[8, 8]), (V, &[4, 8])],
        &[
            (Q_A, &[3, 8]),
            (Q_B, &[8, 3]),
            (V_A, &[4, 8]),
            (V_B, &[4, 4]),
            (EMBED_A, &[2, 20]),
            (EMBED_B, &[8, 2]),
            (WHOLE_HEAD, &[20, 8]),
        ],
        &llama(),
        &json!({"peft_type": "LORA", "lora_alpha": 6, "r": 3, "alpha_pattern": {"v_proj": 2},
            "rank_pattern": {"v_proj": 4, "embed_tokens": 2}, "use_rslora": true}),
    );
    let merged = pair.merged().unwrap();
    assert!(merged.warnings.is_empty(), "{:?}", merged.warnings);
    let scale = |alpha: f64, rank: f64| f64::from((alpha * rank / rank.sqrt() / rank) as f32);
    assert_eq!(read(&merged, Q), pair.sum(Q, [Q_A, Q_B], scale(6.0, 3.0), false));
    assert_eq!(read(&merged, V), pair.sum(V, [V_A, V_B], scale(2.0, 4.0), false));
    assert_eq!(read(&merged, EMBED), pair.sum(EMBED, [EMBED_A, EMBED_B], scale(6.0, 2.0), true));
    let floats = |values: Vec<f64>| values.into_iter().map(|value| value as f32).collect::<Vec<_>>();
    assert_eq!(read(&merged, HEAD), floats(values(&pair.adapter, WHOLE_HEAD)));
    assert_eq!(read(&merged, NORM), floats(values(&pair.base, NORM)));
}

/// GPT-2's layers are stored transposed, Llama's are not, whatever the adapter says; square ones do not show it.
#[test]
fn square_layers_are_turned_as_the_base_stores_them() {
    let names = ["A", "B"]
        .map(|half| &*format!("base_model.model.transformer.h.0.attn.c_proj.lora_{half}.weight").leak());
    let proj = "h.0.attn.c_proj.weight";
    for said in [json!(true), json!(false), Json::Null] {
        let settings = json!({"lora_alpha": 3, "r": 2, "fan_in_fan_out": said});
        let gpt = json!({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"});
        let pair =
            Pair::new(&[(proj, &[6, 6])], &[(names[0], &[2, 6]), (names[1], &[6, 2])], &gpt, &settings);
        assert_eq!(read(&pair.merged().unwrap(), proj), pair.sum(proj, names, 1.5, true), "{said}");
        let pair = Pair::new(&[(Q, &[8, 8])], &[(Q_A, &[2, 8]), (Q_B, &[8, 2])], &llama(), &settings);
        assert_eq!(read(&pair.merged().unwrap(), Q), pair.sum(Q, [Q_A, Q_B], 1.5, false), "{said}");
    }
}

#[test]
fn layers_that_are_stored_turned_take_the_product_turned() {
    let names = [
        "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight",
        "base_model.model.transformer.h.0.attn.c_attn.lora_B.weight",
        "base_model.model.transformer.h.0.attn.c_proj.lora_A.weight",
        "base_model.model.transformer.h.0.attn.c_proj.lora_B.weight",
    ];
    let (attn, proj) = ("h.0.attn.c_attn.weight", "h.0.attn.c_proj.weight");
    let pair = Pair::new(
        &[(attn, &[6, 18]), (proj, &[6, 6])],
        &[(names[0], &[2, 6]), (names[1], &[18, 2]), (names[2], &[2, 6]), (names[3], &[6, 2])],
        &json!({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}),
        &json!({"peft_type": "LORA", "lora_alpha": 3, "r": 2}),
    );
    let merged = pair.merged().unwrap();
    assert_eq!(read(&merged, attn), pair.sum(attn, [names[0], names[1]], 1.5, true));
    assert_eq!(read(&merged, proj), pair.sum(proj, [names[2], names[3]], 1.5, true));
}

#[test]
fn an_adapter_of_another_model_is_refused() {
    let refused = |base: &[(&'static str, &[u64])], adapter: &[(&'static str, &[u64])]| {
        let pair = Pair::new(base, adapter, &llama(), &json!({"lora_alpha": 3}));
        let error = pair.merged().unwrap_err();
        (error.to_string(), error.hints())
    };
    let q = [(Q_A, &[3u64, 8][..]), (Q_B, &[8, 3])];
    let hint =
        "check that the base is the model that the adapter was made for; if it is, merge the two by PEFT \
                (`merge_and_unload`, then `save_pretrained`), and convert the result"
            .to_owned();
    assert_eq!(
        refused(&[(V, &[4, 8])], &q),
        (format!("the base model has no tensor `{Q}`, which the adapter changes"), vec![hint])
    );
    let (error, _) = refused(&[(Q, &[8, 16])], &q);
    assert_eq!(
        error,
        format!("tensor `{Q}`: shape [8, 16], but the adapter's matrices are [8, 3] and [3, 8]")
    );
    let (error, hints) = refused(&[(EMBED, &[21, 8])], &[(WHOLE_HEAD, &[20, 8])]);
    assert_eq!(error, format!("the base model has no tensor `{HEAD}`, which the adapter changes"));
    assert!(hints[0].starts_with("a model that shares its embeddings"), "{hints:?}");
    let (error, _) = refused(&[(HEAD, &[20, 8])], &[(WHOLE_HEAD, &[20, 9])]);
    assert_eq!(error, format!("tensor `{HEAD}`: shape [20, 8], but the adapter has [20, 9]"));
    let magnitude = "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector";
    let (error, _) = refused(&[(Q, &[8, 8])], &[q[0], q[1], (magnitude, &[8])]);
    assert_eq!(error, format!("tensor `{magnitude}`: a vector of magnitudes (DoRA)"));
}

#[test]
fn embeddings_that_are_the_output_too_are_told() {
    let pair = Pair::new(
        &[(EMBED, &[20, 8])],
        &[(EMBED_A, &[2, 20]), (EMBED_B, &[8, 2])],
        &llama(),
        &json!({"lora_alpha": 3}),
    );
    let merged = pair.merged().unwrap();
    assert_eq!(merged.warnings.len(), 1);
    assert!(merged.warnings[0].starts_with("the model's output is its embeddings"), "{:?}", merged.warnings);
}

//! A checkpoint that is converted and converted back has its original names and values. A card with the same mistake in
//! both directions would give the same GGUF file, but a checkpoint that no other program can read.

use std::collections::BTreeMap;
use std::path::Path;

use gguf_blocks::dequantize;
use gguf_checkpoint::Checkpoint;
use gguf_core::limits::Limits;
use gguf_core::simd::SimdLevel;
use gguf_core::{ElementType, GgmlType, WeightSource};

/// Cases that come back with different names or values, and the reason.
const OTHERWISE: &[(&str, &[&str])] = &[
    ("biases of 0 that the runtime's loader requires", &["gptneox/no_attention_bias"]),
    (
        "the names of transformers, or the newer ones, of several that were in use",
        &[
            "bert/masked_lm_gamma",
            "deepseek4/deepseek_v4",
            "dflash/gemma4_dspark",
            "dflash/muse_glimmer_assistant",
            "eagle3/class_of_llama",
            "eagle3/plain",
            "gpt2/rugpt3xl",
            "granite_swa/experts_older_names",
            "grok/grok2",
            "jina-bert-v2/code_masked_lm",
            "jina-bert-v3/jina_embeddings_v3",
            "llama/mistral_format",
            "mamba/lm_head",
            "mamba/mamba_original",
            "mamba2/original",
            "mimo2/mtp",
            "mistral3/mistral_format",
            "rwkv7/own_names",
            "step35/mtp",
        ],
    ),
    (
        "a tensor for each expert, or each of what was joined",
        &[
            "dots1/stacked",
            "ernie4_5/joined",
            "qwen2moe/packed_defaults",
            "qwen35moe/packed",
            "qwen3next/packed_defaults",
            "rwkv7/fused_no_gate",
        ],
    ),
    (
        "the head of a classifier, of which the rows of an output were taken",
        &["qwen3/rerank", "qwen3/rerank_tied"],
    ),
    ("a stack of experts, where each had a tensor", &["qwen3vlmoe/qwen3_omni_moe"]),
    ("dense layers, which the experts of a single one are", &["jamba/mini"]),
    (
        "floats, where there were codes",
        &[
            "deepseek2/k2_fp8",
            "deepseek2/k2_int4",
            "deepseek2/v3_fp8",
            "deepseek4/fp8",
            "mimo2/mxfp4",
            "minimax-m2/m2_fp8",
        ],
    ),
    ("both of a pair of layers as one", &["nemotron_h_moe/further_block"]),
    (
        "another model in the same directory",
        &["lfm2/audio_text", "lfm2/lfm25_audio_tokenizer", "llama/sarashina2_vision"],
    ),
    ("tied in the file, whatever the checkpoint holds", &["t5/with_lm_head"]),
    (
        "what was scaled, normed or shifted at conversion, which the file does not tell",
        &[
            "bailingmoe/norm_head",
            "bailingmoe2/sarvam_moe",
            "dots3note/dots3_note",
            "falcon-h1/falcon_h1",
            "falcon-h1/normed",
            "jais/alibi",
        ],
    ),
    (
        "the rows that are used",
        &[
            "bert/roberta",
            "bert/roberta_sequence_classification",
            "bert/xlm_roberta_classifier",
            "bert/xlm_roberta_small",
            "gemma3/cut_vocabulary",
        ],
    ),
    ("the first head's norms for all of them, which are the same in sound models", &["chameleon/causal"]),
    ("pairs of rotation a half apart, which were neighbours", &["dflash/interleaved"]),
    (
        "other ones among the dimensions",
        &["bailingmoe3/mtp", "glm5-next/mtp_tied", "glm5-next/no_mtp", "kimi-linear/q_lora_flat_conv"],
    ),
];

/// Prefixes of a model's own names if it is wrapped in others (with a head, with towers).
const WRAPPERS: &[&str] = &[
    "backbone",
    "bert",
    "distilbert",
    "encoder",
    "language_model",
    "llm",
    "lm",
    "model",
    "roberta",
    "rwkv",
    "student",
    "text_model",
    "thinker",
    "transformer",
];

/// Name without the wrappers of the model.
fn bare(name: &str) -> &str {
    match name.split_once('.') {
        Some((first, rest)) if WRAPPERS.contains(&first) => bare(rest),
        _ => name,
    }
}

/// Tensors by bare name: shape, and elements as F32. Only plain floats.
type Weights = BTreeMap<String, (String, Vec<f32>)>;

fn weights(dir: &Path) -> Weights {
    let checkpoint = Checkpoint::open(dir, &Limits::default()).unwrap();
    let mut weights = Weights::new();
    for (index, weight) in checkpoint.weights().iter().enumerate() {
        let ty = match weight.ty {
            ElementType::F32 => GgmlType::F32,
            ElementType::F16 => GgmlType::F16,
            ElementType::Bf16 => GgmlType::Bf16,
            _ => continue,
        };
        let n_elems = usize::try_from(weight.shape.n_elems()).unwrap();
        let mut bytes = vec![0; n_elems * ty.block_bytes()];
        checkpoint.read_elems(index, 0, &mut bytes).unwrap();
        let mut floats = vec![0.0; n_elems];
        dequantize(ty, SimdLevel::Scalar, &bytes, &mut floats).unwrap();
        weights.insert(bare(&weight.name).to_owned(), (weight.shape.to_string(), floats));
    }
    weights
}

/// Difference between the checkpoints `there` and `back`, unless it is listed; also a case that is listed without a
/// difference.
pub(super) fn complaint(there: &Path, back: &Path, at: &str) -> Option<String> {
    let is_listed = OTHERWISE.iter().any(|(_, cases)| cases.contains(&at));
    match difference(&weights(there), &weights(back)) {
        None if is_listed => Some("comes back as it was after all".to_owned()),
        Some(_) if is_listed => None,
        found => found,
    }
}

fn difference(there: &Weights, back: &Weights) -> Option<String> {
    let same = |a: &[f32], b: &[f32]| {
        let scale = a.iter().fold(f32::MIN_POSITIVE, |max, x| max.max(x.abs()));
        a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits() || (a - b).abs() <= 1e-5 * scale)
    };
    let mut strange = Vec::new();
    for (name, (shape, values)) in back {
        match there.get(name) {
            Some((of, was)) if of == shape && same(was, values) => {}
            Some((of, was)) if of == shape => {
                let at = was.iter().zip(values).position(|(a, b)| !same(&[*a], &[*b])).unwrap_or(0);
                return Some(format!("`{name}`[{at}] was {} and comes back as {}", was[at], values[at]));
            }
            Some((of, _)) => return Some(format!("`{name}` was {of} and comes back as {shape}")),
            None => strange.push(name),
        }
    }
    let first = strange.first()?;
    Some(format!("{} names that were not there, as `{first}`", strange.len()))
}

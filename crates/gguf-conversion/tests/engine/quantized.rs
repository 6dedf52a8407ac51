//! Reference engine on quantized files of every architecture that it runs: the change from quantization is finite, and
//! as large as the type's rounding.

use std::path::Path;

use gguf_arch::GraphFeatures;
use gguf_core::progress::Silent;
use gguf_engine::{Engine, EngineOptions, Ffn, GraphPlan, Hidden, ModelKind, TokenChunk};
use gguf_quantization::{FileType, Input, QuantizeOptions, QuantizePlan};
use serde_json::Value;

use crate::F32;
use gguf_testkit::goldens::{Goldens, tiered_conformance_tests};
use gguf_testkit::tiers::Tier;
use gguf_testkit::{files, report_cases};

/// Number of tokens of a case: enough for a mean.
const TOKENS: usize = 64;

/// Kinds of models, in the order of a type's limits.
const KINDS: [&str; 3] = ["dense models", "models with experts", "encoders"];

/// Types, with limits for each kind of model: the mean divergence from f32 in nats per token, or for encoders one minus
/// the mean cosine of the states.
///
/// The weights are random and the models narrow, so rounding costs more than in a trained model. If a router chooses
/// between nearly equal experts, rounding changes the choice. The worst cases of the corpus: Q8_0 0.012 (falcon_mamba),
/// 0.089 (smallthinker) and 0.00075 (nomic_bert_moe), Q4_K_M 0.61 (deepseek_v2_lite_27) and 0.020 (eurobert).
const TYPES: [(&str, [f64; 3]); 2] = [("Q8_0", [0.03, 0.25, 0.003]), ("Q4_K_M", [1.5, 1.5, 0.06])];

/// Token ids of a case's reference, cut to a length.
pub fn chunks(dir: &Path) -> Option<Vec<TokenChunk>> {
    let text =
        ["logits.json", "hidden.json"].iter().find_map(|name| fs_err::read_to_string(dir.join(name)).ok())?;
    let json: Value = serde_json::from_str(&text).unwrap();
    let chunk = |sequence: &Value| {
        let ids = sequence["tokens"].as_array().unwrap();
        let tokens: Vec<u32> = ids.iter().map(|id| id.as_u64().unwrap() as u32).collect();
        let n_source = sequence["encoder_tokens"].as_u64().unwrap_or(0) as usize;
        let n = tokens.len().min(TOKENS + n_source);
        TokenChunk { tokens: tokens[..n].to_vec(), rows: n_source..n, n_source }
    };
    Some(json["sequences"].as_array().unwrap().iter().map(chunk).collect())
}

/// One minus the mean cosine of the rows.
fn distance(a: &Hidden, b: &Hidden, n_cols: usize) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let rows = a.states().chunks(n_cols).zip(b.states().chunks(n_cols));
    let cosines: Vec<f64> = rows.map(|(a, b)| dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()).collect();
    1.0 - cosines.iter().sum::<f64>() / cosines.len() as f64
}

/// Cost of a type: the mean divergence, or for encoders the distance. An error is a sentence.
fn cost(model: &F32, plan: &GraphPlan, chunks: &[TokenChunk], ty: &str) -> Result<f64, String> {
    let mut options = QuantizeOptions::new(FileType::parse(ty).unwrap());
    // For experts in MXFP4.
    options.allow_requantize = true;
    let input = Input::new(model.source(), model.metadata());
    let quantized =
        QuantizePlan::new(&input, &options, None).map_err(|error| format!("quantizing: {error}"))?;
    let features = GraphFeatures::of(&plan.arch).unwrap();
    let own = GraphPlan::as_described(&features, quantized.metadata(), input_tensors(&quantized))
        .map_err(|error| format!("planning: {error}"))?;
    let run = EngineOptions { n_threads: 1, ..EngineOptions::default() };
    let reference = Engine::new(plan.clone(), model.source(), run).unwrap();
    let engine = Engine::new(own, &quantized, run).unwrap();
    let hidden = |engine: &Engine<'_>| engine.hidden(chunks).map_err(|error| format!("running: {error}"));
    let (before, after) = (hidden(&reference)?, hidden(&engine)?);
    if plan.kind == ModelKind::Encoder {
        return Ok(distance(&before, &after, plan.n_embd));
    }
    // The token after each row; the last row of a chunk has none, and any token will do.
    let behind = |chunk: &TokenChunk| {
        chunk.tokens[chunk.rows.start + 1..].iter().copied().chain([0]).collect::<Vec<_>>()
    };
    let targets: Vec<u32> = chunks.iter().flat_map(behind).collect();
    let rows = reference
        .divergences(&before, &engine, &after, &targets, &Silent)
        .map_err(|error| error.to_string())?;
    match rows.iter().find(|row| !(row.model.nll.is_finite() && row.kld.is_finite())) {
        Some(row) => Err(format!("a token costs {} nats, divergence {}", row.model.nll, row.kld)),
        None => Ok(rows.iter().map(|row| row.kld).sum::<f64>() / rows.len() as f64),
    }
}

fn input_tensors<'a>(quantized: &'a QuantizePlan<'_>) -> &'a [gguf_core::TensorMeta] {
    gguf_core::TensorSource::tensors(quantized)
}

/// Returns true if a feed-forward of the graph has experts.
pub fn has_experts(plan: &GraphPlan) -> bool {
    plan.layers.iter().any(|layer| matches!(layer.ffn, Ffn::Moe(_) | Ffn::Both(_)))
}

/// Costs of all types for a case; `None` if it is not run.
fn costs(dir: &Path) -> Option<(usize, Vec<Result<f64, String>>)> {
    let chunks = chunks(dir)?;
    let model = F32::open(dir)?;
    let plan = model.plan()?.ok()?;
    let kind = if plan.kind == ModelKind::Encoder { 2 } else { usize::from(has_experts(&plan)) };
    Some((kind, TYPES.iter().map(|(ty, _)| cost(&model, &plan, &chunks, ty)).collect()))
}

tiered_conformance_tests!(quantized_files_of_every_architecture_are_near_their_originals);
fn quantized_files_of_every_architecture_are_near_their_originals(corpus: &Goldens, tier: Tier) {
    let dirs = tier.some(4, files::entries(corpus.join("arch")));
    // Sequential, since reading and running use threads themselves.
    let found = dirs.iter().map(|dir| (dir, costs(dir)));
    let mut wrong = Vec::new();
    let mut n_cases = 0;
    let mut worst: Vec<Vec<(f64, String)>> = vec![Vec::new(); KINDS.len() * TYPES.len()];
    for (dir, costs) in found {
        let Some((kind, costs)) = costs else { continue };
        n_cases += 1;
        let name = dir.file_name().unwrap().to_string_lossy().into_owned();
        for (at, (cost, (ty, limits))) in costs.into_iter().zip(TYPES).enumerate() {
            match cost {
                Ok(cost) => {
                    worst[KINDS.len() * at + kind].push((cost, name.clone()));
                    if !(-1e-9..=limits[kind]).contains(&cost) {
                        wrong.push(format!("{name}: {ty}: {cost:.3e}, at most {}", limits[kind]));
                    }
                }
                Err(error) => wrong.push(format!("{name}: {ty}: {error}")),
            }
        }
    }
    for (at, mut costs) in worst.into_iter().enumerate() {
        costs.sort_by(|a, b| b.0.total_cmp(&a.0));
        let shown: Vec<String> =
            costs.iter().take(5).map(|(cost, name)| format!("{name} {cost:.2e}")).collect();
        let (ty, kind) = (TYPES[at / KINDS.len()].0, KINDS[at % KINDS.len()]);
        println!("{ty}, {} {kind}: worst {}", costs.len(), shown.join(", "));
    }
    report_cases("engine: quantized cases", n_cases);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

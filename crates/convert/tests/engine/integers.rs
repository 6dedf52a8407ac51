//! Products in integers compared with F32 on quantized files of every architecture that the engine runs, and the
//! matrices that are multiplied in integers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use gguf_arch::GraphFeatures;
use gguf_core::progress::Silent;
use gguf_core::{GgmlType, TensorMeta, TensorSource};
use gguf_engine::{Arithmetic, Engine, EngineOptions, GraphPlan, Hidden, ModelKind, TokenChunk};
use gguf_format::Metadata;
use gguf_quant::dequantize;
use gguf_quantization::{FileType, Input, QuantizeOptions, QuantizePlan};

use crate::F32;
use crate::quantized::{chunks, has_experts};
use gguf_testkit::goldens::{Goldens, tiered_conformance_tests};
use gguf_testkit::memory::{MemoryTensors, f32_bytes, tensor_bytes};
use gguf_testkit::tiers::Tier;
use gguf_testkit::{files, report_cases};

/// Types; narrow matrices get others that fit.
const TYPES: [&str; 5] = ["Q8_0", "Q4_K_M", "Q6_K", "IQ4_XS", "Q4_0"];

/// Quantized model in memory.
struct Quantized {
    metadata: Metadata,
    tensors: MemoryTensors,
}

impl Quantized {
    fn of(model: &F32, ty: &str) -> Result<Self, String> {
        let mut options = QuantizeOptions::new(FileType::parse(ty).unwrap());
        // For experts in MXFP4.
        options.allow_requantize = true;
        let input = Input::new(model.source(), model.metadata());
        let plan =
            QuantizePlan::new(&input, &options, None).map_err(|error| format!("quantizing: {error}"))?;
        let mut tensors = MemoryTensors::default();
        for (at, meta) in plan.tensors().iter().enumerate() {
            tensors.add(&meta.name, meta.shape.dims(), meta.ty, tensor_bytes(&plan, at));
        }
        Ok(Self { metadata: plan.metadata().clone(), tensors })
    }

    /// Names and types of the matrices that have integers.
    fn matrices(&self) -> Vec<(&str, GgmlType)> {
        let is_one = |meta: &&TensorMeta| meta.shape.rank() > 1 && Arithmetic::Integer.is_integer(meta.ty);
        let found = self.tensors.tensors().iter().filter(is_one);
        found.map(|meta| (meta.name.as_str(), meta.ty)).collect()
    }

    fn engine(&self, arithmetic: Arithmetic) -> Result<Engine<'_>, String> {
        let arch = self.metadata.get("general.architecture").unwrap().as_str().unwrap();
        let features = GraphFeatures::of(arch).unwrap();
        let plan = GraphPlan::new(&features, &self.metadata, self.tensors.tensors())
            .map_err(|error| format!("planning: {error}"))?;
        let options = EngineOptions { n_threads: 2, arithmetic, ..EngineOptions::default() };
        Engine::new(plan, &self.tensors, options).map_err(|error| format!("running: {error}"))
    }

    /// The same with a tensor decoded to F32.
    fn with_f32(&self, name: &str) -> Self {
        let mut own = Self { metadata: self.metadata.clone(), tensors: MemoryTensors::default() };
        for (at, meta) in self.tensors.tensors().iter().enumerate() {
            let bytes = tensor_bytes(&self.tensors, at);
            if meta.name == name {
                let mut values = vec![0.0; meta.shape.n_elems() as usize];
                dequantize(meta.ty, EngineOptions::default().level, &bytes, &mut values).unwrap();
                own.tensors.add(name, meta.shape.dims(), GgmlType::F32, f32_bytes(&values));
            } else {
                own.tensors.add(&meta.name, meta.shape.dims(), meta.ty, bytes);
            }
        }
        own
    }
}

/// Rows that a run ends with: logits, or the states of encoders.
fn rows(engine: &Engine<'_>, hidden: &Hidden) -> (Vec<f32>, usize) {
    if engine.plan().kind == ModelKind::Encoder {
        return (hidden.states().to_vec(), engine.plan().n_embd);
    }
    (engine.logits(hidden, &Silent).unwrap(), engine.plan().n_vocab)
}

fn hidden(engine: &Engine<'_>, chunks: &[TokenChunk]) -> Result<Hidden, String> {
    engine.hidden(chunks).map_err(|error| format!("running: {error}"))
}

/// Figure of a difference.
type Figure = fn(&Difference) -> f64;

/// Differences of a run in integers from the one in F32.
struct Difference {
    /// Median over the rows of the root mean square of the differences, as a share of the spread of the row in F32.
    median: f64,
    /// The largest of them.
    worst: f64,
    /// Mean divergence in nats; 0 for encoders.
    kld: f64,
    /// Relative difference of the perplexities of the text; 0 for encoders.
    perplexity: f64,
}

fn difference(quantized: &Quantized, chunks: &[TokenChunk]) -> Result<Difference, String> {
    let [exact, fast] = [Arithmetic::F32, Arithmetic::Integer].map(|own| quantized.engine(own));
    let (exact, fast) = (exact?, fast?);
    let [before, after] = [&exact, &fast].map(|engine| hidden(engine, chunks));
    let (before, after) = (before?, after?);
    let ((a, n_cols), (b, _)) = (rows(&exact, &before), rows(&fast, &after));
    let n_integer = quantized.matrices().len();
    if (a == b) != (n_integer == 0) {
        return Err(format!("{n_integer} matrices with integers, results are equal: {}", a == b));
    }
    let mut found: Vec<f64> = a.chunks(n_cols).zip(b.chunks(n_cols)).map(|(a, b)| off(a, b)).collect();
    if let Some(broken) = found.iter().find(|off| !off.is_finite()) {
        return Err(format!("a row is off by {broken}"));
    }
    found.sort_by(f64::total_cmp);
    let (median, worst) = (found[found.len() / 2], found[found.len() - 1]);
    if exact.plan().kind == ModelKind::Encoder {
        return Ok(Difference { median, worst, kld: 0.0, perplexity: 0.0 });
    }
    // The token after each row; the last row of a chunk has none, and any token will do.
    let behind = |chunk: &TokenChunk| {
        chunk.tokens[chunk.rows.start + 1..].iter().copied().chain([0]).collect::<Vec<_>>()
    };
    let targets: Vec<u32> = chunks.iter().flat_map(behind).collect();
    let both = exact.divergences(&before, &fast, &after, &targets, &Silent);
    let both = both.map_err(|error| error.to_string())?;
    let mean = |of: &dyn Fn(usize) -> f64| (0..both.len()).map(of).sum::<f64>() / both.len() as f64;
    let kld = mean(&|at| both[at].kld);
    let perplexity = mean(&|at| both[at].model.nll - both[at].reference.nll).exp_m1().abs();
    Ok(Difference { median, worst, kld, perplexity })
}

/// Root mean square of the differences of two rows, as a share of the first one's spread.
fn off(a: &[f32], b: &[f32]) -> f64 {
    let mean = a.iter().map(|x| f64::from(*x)).sum::<f64>() / a.len() as f64;
    let spread: f64 = a.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum();
    let off: f64 = a.iter().zip(b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum();
    (off / spread).sqrt()
}

/// Largest difference of the median row, and largest divergence, of models without experts and with them. The weights
/// are random: where a router chooses between nearly equal experts, rounding may change the choice and with it the row.
const LIMITS: [(f64, f64); 2] = [(1e-3, 1e-5), (2e-2, 5e-2)];

tiered_conformance_tests!(integers_give_the_results_of_f32_on_every_architecture);
fn integers_give_the_results_of_f32_on_every_architecture(corpus: &Goldens, tier: Tier) {
    let (mut n_cases, mut n_files) = (0, 0);
    let mut wrong = Vec::new();
    let mut found: BTreeMap<bool, Vec<(Difference, String)>> = BTreeMap::new();
    let mut n_matrices: BTreeMap<String, usize> = BTreeMap::new();
    for dir in tier.some(3, files::entries(corpus.join("arch"))) {
        let Some(chunks) = chunks(&dir) else { continue };
        let Some((model, plan)) = runnable(&dir) else { continue };
        let name = dir.file_name().unwrap().to_string_lossy().into_owned();
        n_cases += 1;
        let mut seen = BTreeSet::new();
        for ty in TYPES {
            let quantized = match Quantized::of(&model, ty) {
                Ok(quantized) => quantized,
                Err(error) => {
                    wrong.push(format!("{name}: {ty}: {error}"));
                    continue;
                }
            };
            // Narrow models have the same types in several files.
            let types: Vec<u32> = quantized.tensors.tensors().iter().map(|meta| meta.ty.id()).collect();
            if !seen.insert(types) {
                continue;
            }
            n_files += 1;
            for (_, ty) in quantized.matrices() {
                *n_matrices.entry(ty.name().to_owned()).or_default() += 1;
            }
            match difference(&quantized, &chunks) {
                Ok(own) => {
                    let (most, most_kld) = LIMITS[usize::from(has_experts(&plan))];
                    if own.median > most || own.kld.abs() > most_kld {
                        let Difference { median, kld, .. } = own;
                        wrong.push(format!("{name}: {ty}: rows off by {median:.2e}, divergence {kld:.2e}"));
                    }
                    found.entry(has_experts(&plan)).or_default().push((own, format!("{name} {ty}")));
                }
                Err(error) => wrong.push(format!("{name}: {ty}: {error}")),
            }
        }
    }
    for (has_experts, mut found) in found {
        let kind = if has_experts { "with experts" } else { "without experts" };
        let figures: [(&str, Figure); 4] = [
            ("median row", |own| own.median),
            ("worst row", |own| own.worst),
            ("divergence", |own| own.kld),
            ("perplexity", |own| own.perplexity),
        ];
        for (of, figure) in figures {
            found.sort_by(|a, b| figure(&b.0).total_cmp(&figure(&a.0)));
            let shown = found.iter().take(6).map(|(own, name)| format!("{name} {:.1e}", figure(own)));
            let (n, middle) = (found.len(), figure(&found[found.len() / 2].0));
            let shown: Vec<String> = shown.collect();
            println!("{n} files {kind}, {of}: median {middle:.1e}, worst {}", shown.join(", "));
        }
    }
    println!("matrices by type: {n_matrices:?}");
    println!("{n_files} different files");
    report_cases("engine: cases in integers", n_cases);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Model and graph of a case, if the engine runs it.
fn runnable(dir: &Path) -> Option<(F32, GraphPlan)> {
    let model = F32::open(dir)?;
    let plan = model.plan()?.ok()?;
    Some((model, plan))
}

/// Matrices of block types whose products in integers do not show, by the name in a layer: embeddings that are only
/// looked up, keys per head of latent attention, and the choice and compression of far tokens, of which these texts have
/// none.
const IN_F32: &[&str] = &[
    "token_embd.weight",
    "per_layer_token_embd.weight",
    "attn_k_b.weight",
    "indexer.attn_k.weight",
    "indexer.attn_q_b.weight",
    "indexer.proj.weight",
    "attn_compressor_ape.weight",
    "attn_compressor_gate.weight",
    "attn_compressor_kv.weight",
    "indexer_compressor_ape.weight",
    "indexer_compressor_gate.weight",
    "indexer_compressor_kv.weight",
];

/// Layer of a tensor, if it belongs to one.
fn layer(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

/// Name of a tensor without its layer.
fn role(name: &str) -> String {
    let parts: Vec<&str> = name.split('.').filter(|part| part.parse::<usize>().is_err()).collect();
    parts.join(".").replace("blk.", "")
}

tiered_conformance_tests!(matrices_of_block_types_are_multiplied_in_integers);
fn matrices_of_block_types_are_multiplied_in_integers(corpus: &Goldens, tier: Tier) {
    let mut roles: BTreeMap<String, (usize, Vec<String>)> = BTreeMap::new();
    let mut n_cases = 0;
    for dir in tier.some(4, files::entries(corpus.join("arch"))) {
        let Some(mut chunks) = chunks(&dir) else { continue };
        let Some((model, plan)) = runnable(&dir) else { continue };
        let name = dir.file_name().unwrap().to_string_lossy().into_owned();
        chunks.truncate(1);
        let Ok(quantized) = Quantized::of(&model, "Q8_0") else { continue };
        let result = |quantized: &Quantized| {
            let engine = quantized.engine(Arithmetic::Integer).unwrap();
            rows(&engine, &hidden(&engine, &chunks).unwrap()).0
        };
        let whole = result(&quantized);
        n_cases += 1;
        // The last of each role: later layers decide less of the first ones.
        let n_layers = plan.layers.len();
        // Draft heads behind the layers are not run.
        let is_run = |name: &str| layer(name).is_none_or(|layer| layer < n_layers);
        let names = quantized.matrices().into_iter().map(|(name, _)| name).filter(|name| is_run(name));
        let last: BTreeMap<String, &str> = names.map(|name| (role(name), name)).collect();
        for (role, tensor) in last {
            let own = roles.entry(role).or_default();
            if result(&quantized.with_f32(tensor)) == whole {
                own.1.push(name.clone());
            } else {
                own.0 += 1;
            }
        }
    }
    let mut wrong = Vec::new();
    for (role, (n_integer, in_f32)) in &roles {
        println!("{role}: {n_integer} in integers, {} in F32: {}", in_f32.len(), in_f32.join(" "));
        if !in_f32.is_empty() && !IN_F32.contains(&role.as_str()) {
            wrong.push(format!("{role}: in F32: {}", in_f32.join(", ")));
        }
    }
    report_cases("engine: cases whose matrices are watched", n_cases);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

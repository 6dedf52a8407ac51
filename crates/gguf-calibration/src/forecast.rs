//! Forecast of the time that a calibration takes: its operations are counted, and a few of each kind are timed on this
//! machine.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Instant;

use serde::Serialize;

use crate::fidelity::{SolveTargets, targets};
use crate::options::{FidelityOptions, Solver};
use crate::sequential::{SolverSums, StreamInputs};
use crate::tuned::{STEP_TOKENS, STEPS_PER_TRIAL};
use crate::{CalibrationText, Result, sampler};
use gguf_blocks::quantize_rows;
use gguf_core::GgmlType;
use gguf_core::progress::Silent;
use gguf_engine::{Engine, EngineError, EngineOptions, Hidden, TokenChunk};
use gguf_quantization::Input;
use gguf_solve::{
    Correction, Metric, PANEL_ROWS, SHRINKAGE_OF_STREAM, SecondMoments, SolveError, SolveOptions, Start,
    solve_rows,
};
use gguf_verification::Model;

/// Weights of the layers that are timed, about.
const TIMED_WEIGHTS: u64 = 8_000_000;
/// Multiplications of a timed run, about.
const TIMED_PRODUCTS: u64 = 2_000_000_000;
/// Columns of the matrices that are solved to time the solver.
const TIMED_COLUMNS: [usize; 2] = [256, 768];
/// Rows whose moments are timed.
const TIMED_ROWS: usize = 2048;
/// Largest number of times that something is timed, and seconds after which that is enough.
const MOST_RUNS: usize = 6;
const ENOUGH_SECONDS: f64 = 0.06;
/// Runs of the model over the tokens of a step of a tuning.
const RUNS_OF_A_STEP: f64 = 5.0;

/// Tensors whose inputs are those of another one.
const SHARING: [&str; 3] = [".attn_k.", ".attn_v.", ".ffn_gate"];

/// Expected seconds of each phase while nothing else runs on the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Forecast {
    /// The model writes text.
    pub text: f64,
    /// Both models are run on the text.
    pub activations: f64,
    /// Second moments are summed up and factored.
    pub moments: f64,
    /// Codes and scales are chosen.
    pub solving: f64,
    /// The files are measured on the text held back.
    pub check: f64,
    /// Codes and scales are tuned.
    pub tuning: f64,
}

/// Seconds of a run of the model.
struct RunCosts {
    /// All layers for one token.
    token: f64,
    /// Decoding of the weights of all layers, once for all tokens.
    weights: f64,
    row: f64,
    writing: WritingCosts,
}

/// Seconds of a step in which sequences are written together.
#[derive(Clone, Copy, Default)]
struct WritingCosts {
    step: f64,
    /// Each token of it.
    token: f64,
    /// Each token before it in its sequence.
    past: f64,
}

impl WritingCosts {
    /// Seconds for so many tokens. A sequence takes as many steps as it has tokens.
    fn of(&self, n_tokens: usize) -> f64 {
        let n_steps = n_tokens.div_ceil(sampler::SEQUENCES).max(n_tokens.min(sampler::LEAST_LENGTH)) as f64;
        n_steps * self.step + n_tokens as f64 * (self.token + self.past * n_steps / 2.0)
    }
}

/// Seconds of the solver for a type, by the columns of its matrices.
#[derive(Clone, Copy, Default)]
struct SolverCosts {
    /// Moments of a row of inputs: for each column, and for each pair of them.
    sums: (f64, f64),
    /// Factors of the moments, for each triple of columns.
    factors: f64,
    /// A row: for each column, and for each pair of them.
    row: (f64, f64),
    /// The type's own quantizer, for each weight.
    plain: f64,
}

impl Forecast {
    /// Seconds of all phases.
    pub fn total(&self) -> f64 {
        self.text + self.activations + self.moments + self.solving + self.check + self.tuning
    }

    /// Times a few operations of each kind, and counts those of a run. `is_tuned` is true if something is tuned.
    ///
    /// # Errors
    /// Models that cannot be run, or of which some layers cannot be run without the others.
    pub fn of(
        model: &Model<'_>,
        input: &Input<'_>,
        text: &CalibrationText,
        options: &FidelityOptions<'_>,
        is_tuned: bool,
    ) -> Result<Self> {
        let (targets, _) = match options.solver {
            Solver::Reference => SolveTargets::default(),
            Solver::Sequential | Solver::Tuned { .. } => targets(input, options.quantize)?,
        };
        let plan = model.plan()?;
        let own = text.kinds.iter().filter(|kind| kind.seed.is_some());
        let own: Vec<usize> = own.flat_map(|kind| [kind.n_tokens(), kind.n_held_out_tokens()]).collect();
        let (n_tokens, n_held_out) = (text.n_tokens() as f64, text.n_held_out_tokens() as f64);
        let run = RunCosts::of(model, options.engine, text.n_ctx)?;
        let mut found = Self {
            text: own.iter().map(|&n| run.writing.of(n)).sum(),
            activations: 2.0 * (n_tokens * run.token + run.weights),
            check: 3.0 * (n_held_out * (run.token + run.row) + run.weights),
            ..Self::default()
        };
        if is_tuned {
            let steps = options.solver.tuning_steps() as f64;
            let trials = steps / STEPS_PER_TRIAL as f64 + 1.0;
            let runs = RUNS_OF_A_STEP * steps * STEP_TOKENS as f64 + trials * n_tokens / 7.0 + 3.0 * n_tokens;
            let has_own = own.iter().any(|&n| n > 0);
            let further = if has_own { run.writing.of(2 * text.n_tokens()) } else { 0.0 };
            found.tuning = further + runs * (run.token + run.row);
        }
        let n_used = plan.layers.iter().find_map(|layer| Some(layer.ffn.moe()?.n_used)).unwrap_or(1) as f64;
        let tensors = model.source.tensors();
        let mut costs: BTreeMap<GgmlType, SolverCosts> = BTreeMap::new();
        let engine = Engine::new(plan, model.source, options.engine)?;
        for meta in tensors {
            let Some(target) = targets.get(&meta.name) else { continue };
            let cost = match costs.entry(target.ty) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(new) => *new.insert(SolverCosts::of(target.ty, &engine)?),
            };
            let (n_cols, n_rows) = (meta.shape.n_cols() as f64, meta.shape.n_rows() as f64);
            let dims = meta.shape.dims();
            let n_matrices = dims[..dims.len().saturating_sub(2)].iter().product::<u64>() as f64;
            found.solving += n_rows * n_cols * (cost.row.0 + n_cols * cost.row.1);
            found.check += n_rows * n_cols * cost.plain;
            if !SHARING.iter().any(|part| meta.name.contains(part)) {
                let rows = if n_matrices > 1.0 { n_tokens * n_used } else { n_tokens };
                found.moments += n_cols * rows * (cost.sums.0 + n_cols * cost.sums.1);
                found.moments += n_matrices * n_cols.powi(3) * cost.factors;
            }
        }
        Ok(found)
    }
}

/// Shortest of a few runs, in seconds: what else the machine does only adds to them.
fn timed<E>(mut work: impl FnMut() -> Result<(), E>) -> Result<f64, E> {
    let (mut least, mut spent) = (f64::INFINITY, 0.0);
    for n_runs in 0..MOST_RUNS {
        if n_runs > 1 && spent > ENOUGH_SECONDS {
            break;
        }
        let start = Instant::now();
        work()?;
        let seconds = start.elapsed().as_secs_f64();
        (least, spent) = (least.min(seconds), spent + seconds);
    }
    Ok(least)
}

/// Seconds in which a weight is read from memory, as F32; 0 if the cache holds so many.
fn seconds_of_a_read(n_weights: u64) -> f64 {
    const ELEMS: usize = 16 << 20;
    if n_weights < TIMED_WEIGHTS {
        return 0.0;
    }
    let (floats, mut copy) = (vec![1.0f32; ELEMS], vec![0.0f32; ELEMS]);
    let copied = timed(|| {
        copy.copy_from_slice(std::hint::black_box(&floats));
        Ok::<_, SolveError>(())
    });
    // A copy reads and writes.
    copied.unwrap_or(0.0) / (2 * ELEMS) as f64
}

impl RunCosts {
    /// Times the first layers and the head.
    fn of(model: &Model<'_>, options: EngineOptions, n_ctx: usize) -> Result<Self> {
        let whole = Engine::new(model.plan()?, model.source, options)?;
        let all_bytes = whole.work_bytes_in(1).saturating_sub(whole.head_bytes());
        let (mut plan, mut n_layers, mut n_weights) = (model.plan()?, 0, 0u64);
        let tensors = model.source.tensors();
        for layer in &plan.layers {
            n_layers += 1;
            n_weights += layer.tensors.iter().map(|&at| tensors[at].shape.n_elems()).sum::<u64>();
            if n_weights >= TIMED_WEIGHTS {
                break;
            }
        }
        plan.layers.truncate(n_layers);
        let (n_vocab, n_embd) = (plan.n_vocab, plan.n_embd);
        let some = Engine::new(plan, model.source, options)?;
        let share =
            all_bytes as f64 / (some.work_bytes_in(1).saturating_sub(some.head_bytes()).max(1)) as f64;
        let most = usize::try_from(TIMED_PRODUCTS / n_weights.max(1)).unwrap_or(usize::MAX);
        let length = most.clamp(16, n_ctx.clamp(16, 256));
        let run = |n: usize, length: usize| {
            let tokens = (0..length).map(|at| (at * 31 % n_vocab.max(1)) as u32).collect();
            let chunks = vec![TokenChunk { tokens, rows: 0..0, n_source: 0 }; n];
            timed(|| some.forward_in(&[n], &chunks, &Silent, None).map(drop))
        };
        let (one, three) = (run(1, length)?, run(3, length)?);
        let token = (three - one).max(0.0) / (2 * length) as f64;
        let weights = (one - length as f64 * token).max(0.0);
        let n = sampler::SEQUENCES;
        let writing = if n_weights < 2 * TIMED_WEIGHTS { WritingCosts::timed(&some).ok() } else { None };
        let WritingCosts { step, token: each, past } = writing.unwrap_or_default();
        let n_rows = (TIMED_PRODUCTS as usize / (n_vocab * n_embd).max(1)).clamp(8, 256);
        let head = |n: usize| {
            let hidden = Hidden::new(vec![0.1; n * n_embd], n_embd);
            timed(|| whole.scores(&hidden, &vec![0; n], &Silent, None).map(drop))
        };
        let row = (head(n_rows)? - head(n_rows / 4)?).max(0.0) / (n_rows - n_rows / 4) as f64;
        let drawn = if n_rows >= n {
            let hidden = Hidden::new(vec![0.1; n * n_embd], n_embd);
            timed(|| whole.draw(&hidden, &vec![0.5; n], 1.0, &Silent).map(drop))?
        } else {
            n as f64 * row
        };
        // The head is decoded in every step.
        let decoded = (drawn - n as f64 * row).max(0.0);
        let each = share * each.max(token) + row;
        // All weights are read in every step; those of the timed layers may stay in the cache.
        let read = share * n_weights as f64 * seconds_of_a_read(n_weights);
        let writing =
            WritingCosts { step: (share * step).max(read) + decoded, token: each, past: share * past };
        Ok(Self { token: share * token, weights: share * weights, row, writing })
    }
}

impl WritingCosts {
    /// Times steps of few and of all sequences, after two numbers of tokens.
    fn timed(engine: &Engine<'_>) -> Result<Self, EngineError> {
        const PAST: usize = 24;
        const FEW: usize = 8;
        let (begin, next) = (vec![1u32; PAST], [1u32]);
        let steps = |n: usize| {
            let kept_bytes = engine.options().elastic_bytes() / 2;
            let mut continuation = engine.continuation(n, 2 * PAST + 8, kept_bytes)?;
            let mut at = [f64::INFINITY; 2];
            for seconds in &mut at {
                continuation.step(&vec![&begin[..]; n], &Silent)?;
                for _ in 0..3 {
                    let start = Instant::now();
                    continuation.step(&vec![&next[..]; n], &Silent)?;
                    *seconds = seconds.min(start.elapsed().as_secs_f64());
                }
            }
            Ok::<_, EngineError>(at)
        };
        let n = sampler::SEQUENCES;
        let ([few, _], [all, later]) = (steps(FEW)?, steps(n)?);
        let token = (all - few).max(0.0) / (n - FEW) as f64;
        let past = (later - all).max(0.0) / (n * PAST) as f64;
        Ok(Self { step: (few - FEW as f64 * token).max(0.0), token, past })
    }
}

impl SolverCosts {
    /// Times the solver on small matrices.
    fn of(ty: GgmlType, engine: &Engine<'_>) -> Result<Self> {
        let n_rows = 2 * PANEL_ROWS * engine.options().n_threads;
        let [small, large] = TIMED_COLUMNS;
        let failed = |error: SolveError| {
            EngineError::Source(gguf_core::SourceError { tensor: String::new(), source: Box::new(error) })
        };
        let [a, b] = [small, large].map(|n_cols| engine.install(|| times(ty, n_cols, n_rows, engine)));
        let (a, b) = (a.map_err(failed)?, b.map_err(failed)?);
        // Seconds of a row are a line in its columns, times the columns.
        let line = |a: f64, b: f64, n_rows: usize| {
            let (first, second) = (a / (n_rows * small) as f64, b / (n_rows * large) as f64);
            let slope = ((second - first) / (large - small) as f64).max(0.0);
            ((first - slope * small as f64).max(0.0), slope)
        };
        let n = large as f64;
        Ok(Self {
            sums: line(a.sums, b.sums, TIMED_ROWS),
            factors: b.factors / n.powi(3),
            row: line(a.rows, b.rows, n_rows),
            plain: b.plain / (engine.options().n_threads as f64 * n * n_rows as f64),
        })
    }
}

/// Seconds of each step for one matrix.
struct SolverTimes {
    sums: f64,
    factors: f64,
    rows: f64,
    plain: f64,
}

/// Times each step for a matrix of noise.
fn times(ty: GgmlType, n_cols: usize, n_rows: usize, engine: &Engine<'_>) -> Result<SolverTimes, SolveError> {
    let level = engine.options().level;
    let mut state = 1u32;
    let mut noise = |n: usize| -> Vec<f32> {
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1u32 << 23) as f32 - 1.0
        };
        (0..n).map(|_| next()).collect()
    };
    let (quantized, matrix) = (noise(TIMED_ROWS * n_cols), noise(n_rows * n_cols));
    let x: Vec<f32> = quantized.iter().map(|x| 1.01 * x).collect();
    let weights = vec![1.0 / TIMED_ROWS as f32; TIMED_ROWS];
    let inputs = StreamInputs { x: &x, quantized: &quantized, n_cols, weights: &weights };
    let sums = timed(|| {
        // Both runs hand their rows over.
        let copies = (x.clone(), quantized.clone());
        let sums = SolverSums::of(&inputs, None).map(drop);
        drop(copies);
        sums
    })?;
    let moments: SecondMoments = SolverSums::of(&inputs, None)?.moments;
    let factor = || {
        let metric = Metric::new(&moments, SHRINKAGE_OF_STREAM)?;
        let correction = Correction::new(&moments, 1.0)?.of_inputs(vec![0.0; n_cols * n_cols])?;
        Ok::<_, SolveError>((metric, correction))
    };
    let factors = timed(|| factor().map(drop))?;
    let (metric, correction) = factor()?;
    let importance = moments.diagonal();
    let row_bytes = ty.row_bytes(n_cols as u64).and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
    let mut blocks = vec![0; row_bytes * n_rows];
    let rows = timed(|| {
        let mut floats = matrix.clone();
        correction.apply(&mut floats)?;
        let start = Start::Importance(&importance);
        solve_rows(ty, level, &floats, start, &metric, SolveOptions::default(), &mut blocks)
    })?;
    let plain = timed(|| {
        // Noise can be quantized.
        let _ = quantize_rows(ty, level, n_cols, &matrix, Some(&importance), &mut blocks);
        Ok::<_, SolveError>(())
    })?;
    Ok(SolverTimes { sums, factors, rows, plain })
}

//! Calibration run: all windows of all kinds go through one layer after the other.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use crate::collector::{Consumer, MomentCollector, Schedule, Wanted};
use crate::memory::{Needs, moment_bytes};
use crate::{CalibrateError, CalibrationText, LayerMoments};
use gguf_core::progress::Progress;
use gguf_engine::{Engine, EngineError, EngineOptions, Ffn, GraphPlan, ModelKind, TokenChunk};
use gguf_format::{ColumnSums, ImatrixSums};
use gguf_verification::{Model, SumCollector, Window};

/// Maximum tokens of a batch of whole windows. It is large enough that decoding weights costs little compared with the
/// products. It is the same on every machine, since blocks of rows begin with batches.
const BATCH_TOKENS: usize = 2048;
/// Maximum tokens of a batch for mixtures of experts, where each expert sees only a part of the tokens.
const BATCH_TOKENS_MOE: usize = 8192;

/// Options of a calibration run.
#[derive(Clone, Copy)]
pub struct CalibrateOptions<'a> {
    /// Threads, memory and vector instructions. The memory budget is for activations and moments together.
    pub engine: EngineOptions,
    /// Tensors whose input moments are collected: those that a solver will round. Importance sums are of all tensors.
    pub wants: Wanted<'a>,
    /// Folder for hidden states that do not fit in the memory budget.
    pub dir: &'a Path,
}

/// Windows of one kind of text that go through a layer together. Nothing else decides which rows are summed together.
#[derive(Clone, Debug, PartialEq, Eq)]
struct WindowBatch {
    kind: usize,
    windows: Range<usize>,
    n_tokens: usize,
    /// Number of tokens with hidden states: all except those that an encoder reads.
    n_rows: usize,
}

/// Prepared run: the text is cut into windows, the model's graph is built, and the memory is counted.
pub struct CalibrationRun<'a> {
    engine: Engine<'a>,
    text: &'a CalibrationText,
    options: CalibrateOptions<'a>,
    needs: Needs,
    batches: Vec<WindowBatch>,
}

impl<'a> CalibrationRun<'a> {
    /// Builds the graph and counts the memory. Hidden states that do not fit in the budget are kept in files.
    ///
    /// # Errors
    /// A graph that cannot be built; [`CalibrateError::Memory`] with the smallest budget that is enough.
    pub fn new(
        model: &Model<'a>,
        text: &'a CalibrationText,
        options: CalibrateOptions<'a>,
    ) -> Result<Self, CalibrateError> {
        let engine = Engine::new(model.plan()?, model.source, options.engine)?;
        let batches = batches(text, batch_tokens(engine.plan()));
        let n_tokens = batches.iter().map(|batch| batch.n_tokens).sum();
        let needs = needs(model, &engine, text, options.wants);
        let is_spilling = needs.spills(&options.engine, n_tokens)?;
        let engine = if is_spilling { engine.spilling(options.dir) } else { engine };
        Ok(Self { engine, text, options, needs, batches })
    }

    /// Adds the bytes that the consumer of the moments needs while the run goes on.
    ///
    /// # Errors
    /// [`CalibrateError::Memory`] with the smallest budget that is enough.
    pub(crate) fn with_consumer(mut self, n_bytes: u64) -> Result<Self, CalibrateError> {
        self.needs = self.needs.plus(n_bytes);
        if self.needs.spills(&self.options.engine, self.n_tokens())? {
            self.engine = self.engine.spilling(self.options.dir);
        }
        Ok(self)
    }

    /// Number of tokens that are run.
    pub fn n_tokens(&self) -> usize {
        self.batches.iter().map(|batch| batch.n_tokens).sum()
    }

    /// Maximum bytes that the run takes in addition to the weights.
    pub fn needs(&self) -> Needs {
        self.needs
    }

    /// Warnings for the user about the model.
    pub fn warnings(&self) -> &[String] {
        &self.engine.plan().warnings
    }

    /// Windows in the engine's form, the number in each batch, and the schedule of the batches.
    fn schedule(&self) -> (Vec<TokenChunk>, Vec<usize>, Schedule) {
        let windows = |batch: &WindowBatch| {
            let kind = self.text.kinds.get(batch.kind);
            kind.and_then(|kind| kind.windows.get(batch.windows.clone())).unwrap_or_default()
        };
        let chunk = |window: &Window| {
            let TokenChunk { tokens, n_source, .. } = &window.chunk;
            TokenChunk { tokens: tokens.clone(), rows: *n_source..tokens.len(), n_source: *n_source }
        };
        let chunks = self.batches.iter().flat_map(|batch| windows(batch).iter().map(chunk)).collect();
        let schedule = Schedule {
            n_kinds: self.text.kinds.len(),
            kinds: self.batches.iter().map(|batch| batch.kind).collect(),
            rows: self.batches.iter().map(|batch| batch.n_rows).collect(),
        };
        (chunks, self.batches.iter().map(|batch| batch.windows.len()).collect(), schedule)
    }

    /// Runs the model and returns the importance sums of each kind, as llama-imatrix counts them.
    ///
    /// `take` gets the moments of one layer after the other, as soon as no text will add to them, and finally those of
    /// the head. Moments that it does not keep are freed before the next layer begins.
    ///
    /// # Exactness
    /// The bits are the same for every number of threads and every memory budget, given the same vector instructions.
    ///
    /// # Errors
    /// Errors of the engine, activations that are not finite, what `take` returns.
    pub fn run<E: From<CalibrateError> + Send>(
        &self,
        progress: &dyn Progress,
        take: &mut (dyn FnMut(LayerMoments) -> Result<(), E> + Send),
    ) -> Result<Vec<ImatrixSums>, E> {
        let sums = self.collect(progress, take)?;
        let kinds = self.text.kinds.iter().zip(sums);
        let sums = kinds.map(|(kind, own)| self.importance(&kind.name, kind.windows.len(), own.into_sums()));
        Ok(sums.collect())
    }

    fn collect<E: From<CalibrateError> + Send>(
        &self,
        progress: &dyn Progress,
        take: Consumer<'_, E>,
    ) -> Result<Vec<SumCollector>, E> {
        let (chunks, counts, schedule) = self.schedule();
        let work = self.engine.work_bytes_in(counts.len()).saturating_sub(self.engine.head_bytes());
        progress.begin("running the model", work);
        progress.units("token", self.text.n_tokens() as u64);
        let plan = self.engine.plan();
        let collector = MomentCollector::new(&self.engine, schedule, self.options.wants, take);
        let hidden = match self.engine.forward_in(&counts, &chunks, progress, Some(&collector)) {
            Ok(hidden) => hidden,
            Err(EngineError::Stopped) => {
                let stopped = || CalibrateError::from(EngineError::Stopped).into();
                return Err(collector.failure().unwrap_or_else(stopped));
            }
            Err(error) => return Err(CalibrateError::from(error).into()),
        };
        if plan.kind != ModelKind::Encoder {
            collector.add_head(&plan.head, hidden.states());
        }
        drop(hidden);
        let sums = collector.finish()?;
        progress.end();
        Ok(sums)
    }

    fn importance(&self, name: &str, n_chunks: usize, tensors: BTreeMap<String, ColumnSums>) -> ImatrixSums {
        ImatrixSums {
            tensors,
            datasets: vec![name.as_bytes().to_vec()],
            n_chunks,
            chunk_size: self.text.n_ctx,
        }
    }
}

/// Cuts each kind of text into batches of whole windows, of at most `limit` tokens unless one window is longer.
fn batches(text: &CalibrationText, limit: usize) -> Vec<WindowBatch> {
    let mut batches: Vec<WindowBatch> = Vec::new();
    for (kind, own) in text.kinds.iter().enumerate() {
        for (at, window) in own.windows.iter().enumerate() {
            let n_tokens = window.chunk.tokens.len();
            let n_rows = n_tokens.saturating_sub(window.chunk.n_source);
            let fits = |batch: &&mut WindowBatch| batch.kind == kind && batch.n_tokens + n_tokens <= limit;
            match batches.last_mut().filter(fits) {
                Some(batch) => {
                    batch.windows.end = at + 1;
                    batch.n_tokens += n_tokens;
                    batch.n_rows += n_rows;
                }
                None => batches.push(WindowBatch { kind, windows: at..at + 1, n_tokens, n_rows }),
            }
        }
    }
    batches
}

fn batch_tokens(plan: &GraphPlan) -> usize {
    let has_experts = |ffn: &Ffn| ffn.moe().is_some();
    let is_moe = plan.layers.iter().any(|layer| has_experts(&layer.ffn));
    if is_moe { BATCH_TOKENS_MOE } else { BATCH_TOKENS }
}

/// Memory for a run over the whole text: activations of all windows, which pass a layer before the next one begins, and
/// the moments of a layer for each kind.
pub(super) fn needs(
    model: &Model<'_>,
    engine: &Engine<'_>,
    text: &CalibrationText,
    wants: Wanted<'_>,
) -> Needs {
    let longest = text.longest();
    let batch = batch_tokens(engine.plan()).max(longest);
    let n_tokens = text.n_tokens();
    let activations = engine.run_bytes(n_tokens, batch, longest);
    let unspilled = engine.unspilled_bytes(n_tokens, longest);
    let moments = moment_bytes(engine.plan(), model.source, wants).saturating_mul(text.kinds.len() as u64);
    Needs {
        all_bytes: moments.saturating_add(activations),
        least_bytes: moments.saturating_add(unspilled),
        spilled_bytes: activations.saturating_sub(unspilled),
    }
}

//! The run: all windows of all kinds through one layer after the other.

use std::collections::BTreeMap;
use std::path::Path;

use crate::calibrate::collector::{Consumer, MomentCollector, Schedule, Wanted};
use crate::calibrate::memory::{Needs, moment_bytes};
use crate::calibrate::{CalibrateError, CalibrationText, LayerMoments};
use crate::core::progress::Progress;
use crate::engine::plan::{Ffn, ModelKind};
use crate::engine::{Engine, EngineError, EngineOptions, GraphPlan, TokenChunk};
use crate::gguf::{ColumnSums, ImatrixSums};
use crate::verify::Model;

/// Tokens of a batch at most, but whole windows: enough that decoding weights costs little beside the products. The same
/// on every machine, since blocks of rows begin with batches.
const BATCH_TOKENS: usize = 2048;
/// The same for models of experts, each of which sees only a part of the tokens.
const BATCH_TOKENS_MOE: usize = 8192;

/// What to collect, and how.
#[derive(Clone, Copy)]
pub struct CalibrateOptions<'a> {
    /// Machine use. The memory budget is for activations and moments together.
    pub engine: EngineOptions,
    /// Tensors whose inputs are wanted: those that a solver will round. The importance sums are of all tensors.
    pub wants: Wanted<'a>,
    /// A folder for hidden states that the memory budget has no room for.
    pub dir: &'a Path,
}

/// A run that is ready: text cut into windows, the model's graph built, memory counted.
pub struct CalibrationRun<'a> {
    engine: Engine<'a>,
    text: &'a CalibrationText,
    options: CalibrateOptions<'a>,
    needs: Needs,
}

impl<'a> CalibrationRun<'a> {
    /// Builds the graph and counts the memory. Where the budget does not hold hidden states they are kept in files.
    ///
    /// # Errors
    /// A graph that cannot be built; [`CalibrateError::Memory`] with the smallest budget that is enough.
    pub fn new(
        model: &Model<'a>,
        text: &'a CalibrationText,
        options: CalibrateOptions<'a>,
    ) -> Result<Self, CalibrateError> {
        let engine = Engine::new(model.plan()?, model.source, options.engine)?;
        let needs = needs(model, &engine, text, options.wants);
        let is_spilling = needs.spills(options.engine.memory_bytes, text.n_tokens())?;
        let engine = if is_spilling { engine.spilling(options.dir) } else { engine };
        Ok(Self { engine, text, options, needs })
    }

    /// Bytes that the run takes at most, beside the weights.
    #[must_use]
    pub fn needs(&self) -> Needs {
        self.needs
    }

    /// What the reader should know.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.engine.plan().warnings
    }

    /// The windows as the engine runs them, the number in each batch, and the kind of each batch.
    fn schedule(&self) -> (Vec<TokenChunk>, Vec<usize>, Schedule) {
        let limit = batch_tokens(self.engine.plan());
        let (mut chunks, mut counts) = (Vec::new(), Vec::new());
        let mut schedule = Schedule { kinds: Vec::new(), tokens: Vec::new() };
        for (kind, text) in self.text.kinds.iter().enumerate() {
            let mut in_batch = usize::MAX;
            for window in &text.windows {
                let TokenChunk { tokens, n_source, .. } = &window.chunk;
                if in_batch.saturating_add(tokens.len()) > limit {
                    counts.push(0);
                    schedule.kinds.push(kind);
                    in_batch = 0;
                }
                in_batch += tokens.len();
                if let Some(count) = counts.last_mut() {
                    *count += 1;
                }
                let chunk =
                    TokenChunk { tokens: tokens.clone(), rows: *n_source..tokens.len(), n_source: *n_source };
                chunks.push(chunk);
            }
            let states = |window: &crate::verify::Window| window.chunk.tokens.len() - window.chunk.n_source;
            schedule.tokens.push(text.windows.iter().map(states).sum());
        }
        (chunks, counts, schedule)
    }

    /// Runs the model. `take` gets the moments of one layer after the other, each when no text will add to them, and at
    /// the end those of the head; what it does not keep is freed before the next layer begins. Returns the importance
    /// sums of each kind, as llama-imatrix counts them.
    ///
    /// # Exactness
    /// The same bits for every number of threads and every memory budget, on machines with the same vector instructions.
    ///
    /// # Errors
    /// Errors of the engine, activations that are not finite, what `take` returns.
    pub fn run<E: From<CalibrateError> + Send>(
        &self,
        progress: &dyn Progress,
        take: &mut (dyn FnMut(LayerMoments) -> Result<(), E> + Send),
    ) -> Result<Vec<ImatrixSums>, E> {
        let (chunks, counts, schedule) = self.schedule();
        let work = self.engine.work_bytes_in(counts.len()).saturating_sub(self.engine.head_bytes());
        progress.begin("running the model", work);
        let plan = self.engine.plan();
        let consumer: Consumer<'_, E> = take;
        let collector = MomentCollector::new(&self.engine, schedule, self.options.wants, consumer);
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
        let kinds = self.text.kinds.iter().zip(sums);
        Ok(kinds.map(|(kind, own)| self.importance(&kind.name, kind.windows.len(), own)).collect())
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

fn batch_tokens(plan: &GraphPlan) -> usize {
    let has_experts = |ffn: &Ffn| matches!(ffn, Ffn::Moe(_) | Ffn::Both(_));
    let is_moe = plan.layers.iter().any(|layer| has_experts(&layer.ffn));
    if is_moe { BATCH_TOKENS_MOE } else { BATCH_TOKENS }
}

/// Activations of all windows, since all of them go through a layer before the next one begins, and the moments of a layer
/// for each kind.
pub(super) fn needs(
    model: &Model<'_>,
    engine: &Engine<'_>,
    text: &CalibrationText,
    wants: Wanted<'_>,
) -> Needs {
    let (n_tokens, longest) = (text.n_tokens(), text.longest());
    let activations = engine.run_bytes(n_tokens, batch_tokens(engine.plan()).max(longest), longest);
    let unspilled = engine.unspilled_bytes(n_tokens, longest);
    let moments = moment_bytes(engine.plan(), model.source, wants).saturating_mul(text.kinds.len() as u64);
    Needs {
        all_bytes: moments.saturating_add(activations),
        least_bytes: moments.saturating_add(unspilled),
        spilled_bytes: activations.saturating_sub(unspilled),
    }
}

/// The importance sums of several kinds as one.
#[must_use]
pub fn total_importance(kinds: &[ImatrixSums]) -> ImatrixSums {
    let chunk_size = kinds.first().map_or(0, |kind| kind.chunk_size);
    let mut total = ImatrixSums { tensors: BTreeMap::new(), datasets: Vec::new(), n_chunks: 0, chunk_size };
    for kind in kinds {
        for (name, own) in &kind.tensors {
            let n_matrices = own.counts.len();
            let sum = total.tensors.entry(name.clone());
            let sum = sum.or_insert_with(|| ColumnSums::zero(own.n_cols, n_matrices));
            sum.sums.iter_mut().zip(&own.sums).for_each(|(sum, x)| *sum += x);
            sum.counts.iter_mut().zip(&own.counts).for_each(|(sum, n)| *sum = sum.saturating_add(*n));
        }
        total.datasets.extend(kind.datasets.iter().cloned());
        total.n_chunks += kind.n_chunks;
    }
    total
}

//! Importance matrices: the mean square of every column of every matrix's input, collected while the model runs.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

use crate::core::TensorSource;
use crate::core::progress::Progress;
use crate::core::simd::SimdLevel;
use crate::engine::plan::Matrix;
use crate::engine::{Engine, EngineOptions, Observer, add_squares};
use crate::gguf::{ColumnSums, ImatrixSums};
use crate::verify::measure::measure;
use crate::verify::verification::beyond_training;
use crate::verify::windows::{Cut, Scoring, cut};
use crate::verify::{Model, Perplexity, PromptFile, PromptSource, VerifyError};

/// Rows summed by one task; partial sums are added in row order, whatever the threads do.
const ROWS_PER_TASK: usize = 256;

/// What a run collected.
#[derive(Clone, Debug, PartialEq)]
pub struct Importance {
    /// What the file will hold.
    pub sums: ImatrixSums,
    /// Perplexity of the text, by the way.
    pub perplexity: Option<Perplexity>,
    /// Prompts of which the limit on the number of chunks left nothing.
    pub unreached: Vec<usize>,
    /// Chunks of each file.
    pub chunks: Vec<usize>,
    /// What the reader should know.
    pub warnings: Vec<String>,
}

/// How to collect.
#[derive(Clone, Copy, Debug)]
pub struct ImportanceOptions<'a> {
    /// Machine use.
    pub engine: EngineOptions,
    /// How prompts are cut; every token of a chunk counts.
    pub scoring: Scoring,
    /// The files that the prompts are of; they share the chunks. None: all are as of one.
    pub files: &'a [PromptFile],
}

struct SumCollector {
    level: SimdLevel,
    tensors: Mutex<BTreeMap<String, ColumnSums>>,
}

impl Observer for SumCollector {
    fn input(&self, source: &dyn TensorSource, matrix: &Matrix, x: &[f32]) {
        let meta = &source.tensors()[matrix.tensor];
        if !meta.name.starts_with("blk.") {
            return;
        }
        let n_cols = matrix.n_cols;
        let partial: Vec<Vec<f64>> = x
            .par_chunks(ROWS_PER_TASK * n_cols)
            .map(|rows| {
                let mut sums = vec![0.0; n_cols];
                rows.chunks(n_cols).for_each(|row| add_squares(self.level, &mut sums, row));
                sums
            })
            .collect();
        let n_experts = match matrix.expert {
            Some(_) => usize::try_from(meta.shape.dims()[0]).unwrap_or(0),
            None => 1,
        };
        let expert = matrix.expert.unwrap_or(0);
        let mut tensors = self.tensors.lock().unwrap_or_else(PoisonError::into_inner);
        let columns = tensors.entry(meta.name.clone()).or_insert_with(|| ColumnSums::zero(n_cols, n_experts));
        for part in partial {
            for (sum, x) in columns.sums[expert * n_cols..][..n_cols].iter_mut().zip(part) {
                *sum += x;
            }
        }
        columns.counts[expert] += (x.len() / n_cols) as i64;
    }
}

/// Runs prompts and collects the statistics of every matrix of the layers.
///
/// # Errors
/// As [`crate::verify::verify`], and a graph that cannot be built.
pub fn collect_importance(
    model: &Model<'_>,
    prompts: &[PromptSource],
    options: &ImportanceOptions<'_>,
    progress: &dyn Progress,
) -> Result<Importance, VerifyError> {
    let Cut { windows, unreached, chunks } =
        cut(&model.encode_all(prompts)?, options.files, &options.scoring)?;
    let engine = Engine::new(model.plan()?, model.source, options.engine)?;
    let mut warnings = engine.plan().warnings.clone();
    warnings.extend(beyond_training(engine.plan(), &windows));
    let collector = SumCollector { level: options.engine.level, tensors: Mutex::default() };
    let (positions, _) = measure(&engine, None, &windows, progress, Some(&collector))?;
    let tensors = collector.tensors.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(Importance {
        sums: ImatrixSums { tensors, n_chunks: windows.len(), chunk_size: options.scoring.n_ctx },
        perplexity: Perplexity::of(positions.iter()),
        unreached,
        chunks,
        warnings,
    })
}

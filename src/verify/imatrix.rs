//! Importance matrices: the mean square of every column of every matrix's input, collected while the model runs.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

use crate::core::TensorSource;
use crate::core::progress::Progress;
use crate::core::simd::SimdLevel;
use crate::engine::plan::Matrix;
use crate::engine::{EngineOptions, Observer, add_squares};
use crate::verify::judge::{all_windows, engine_of};
use crate::verify::measure::measure;
use crate::verify::windows::Scoring;
use crate::verify::{Model, Perplexity, PromptSource, VerifyError};

/// Rows summed by one task; partial sums are added in row order, whatever the threads do.
const ROWS_PER_TASK: usize = 256;

/// Statistics of one tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Sums {
    /// Columns.
    pub n_cols: usize,
    /// Sums of squares, expert by expert.
    pub in_sum2: Vec<f64>,
    /// Rows seen by each expert; one entry for a plain matrix.
    pub counts: Vec<u64>,
}

/// What a run collected.
#[derive(Clone, Debug, PartialEq)]
pub struct Importance {
    /// Statistics by tensor name.
    pub tensors: BTreeMap<String, Sums>,
    /// Chunks of tokens that were run.
    pub n_chunks: usize,
    /// Tokens of a chunk.
    pub chunk_size: usize,
    /// Perplexity of the text, by the way.
    pub perplexity: Option<Perplexity>,
}

/// How to collect.
#[derive(Clone, Copy, Debug)]
pub struct ImportanceOptions {
    /// Machine use.
    pub engine: EngineOptions,
    /// How prompts are cut; every token of a chunk counts.
    pub scoring: Scoring,
}

struct Collector {
    level: SimdLevel,
    tensors: Mutex<BTreeMap<String, Sums>>,
}

impl Observer for Collector {
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
        let sums = tensors.entry(meta.name.clone()).or_insert_with(|| Sums {
            n_cols,
            in_sum2: vec![0.0; n_experts * n_cols],
            counts: vec![0; n_experts],
        });
        for part in partial {
            for (sum, x) in sums.in_sum2[expert * n_cols..][..n_cols].iter_mut().zip(part) {
                *sum += x;
            }
        }
        sums.counts[expert] += (x.len() / n_cols) as u64;
    }
}

/// Runs prompts and collects the statistics of every matrix of the layers.
///
/// # Errors
/// As [`crate::verify::verify`], and a graph that cannot be built.
pub fn collect_importance(
    model: &Model<'_>,
    prompts: &[PromptSource],
    options: &ImportanceOptions,
    progress: &dyn Progress,
) -> Result<Importance, VerifyError> {
    let windows = all_windows(model, prompts, &options.scoring)?;
    let engine = engine_of(model, options.engine)?;
    let collector = Collector { level: options.engine.level, tensors: Mutex::default() };
    let measured = measure(&engine, None, &windows, progress, Some(&collector));
    let (positions, _) = measured?;
    let tensors = collector.tensors.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(Importance {
        tensors,
        n_chunks: windows.len(),
        chunk_size: options.scoring.n_ctx,
        perplexity: Perplexity::of(positions.iter()),
    })
}

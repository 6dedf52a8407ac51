//! Prompts of several files: their shares of the chunks, and the figures of each file.

use std::ops::Range;
use std::path::PathBuf;

use serde::Serialize;

use crate::{Divergence, Mean, Perplexity, Position};
use gguf_core::written::as_path;

/// File with its prompts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptFile {
    /// Path as it was given.
    pub path: PathBuf,
    /// Range of its prompts among all.
    pub prompts: Range<usize>,
}

/// Figures of the prompts of one file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PromptFileReport {
    /// Path of the file, as it was given.
    #[serde(rename = "file", serialize_with = "as_path")]
    pub path: PathBuf,
    /// Index of its first prompt.
    pub(crate) first_prompt: usize,
    /// Number of its prompts.
    #[serde(rename = "prompts")]
    pub n_prompts: usize,
    /// Number of chunks that were run.
    pub chunks: usize,
    /// Perplexity of its scored tokens, if it has any.
    pub perplexity: Option<Perplexity>,
    /// Mean divergence from the baseline, in nats per token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kld: Option<Mean>,
}

/// Number of chunks of each of several files, `n_chunks` in total. All files get the same number, except that a file
/// with fewer chunks leaves the rest to the others. The remainder of the division goes to the first files.
pub(crate) fn shares(available: &[usize], n_chunks: usize) -> Vec<usize> {
    let mut shares = vec![0; available.len()];
    let mut left = n_chunks.min(available.iter().sum());
    while left > 0 {
        let open: Vec<usize> = (0..shares.len()).filter(|&at| shares[at] < available[at]).collect();
        let each = (left / open.len().max(1)).max(1);
        for at in open {
            let n = each.min(available[at] - shares[at]).min(left);
            shares[at] += n;
            left -= n;
        }
    }
    shares
}

/// Computes the figures of each file from the positions, which must be sorted by prompt.
pub(crate) fn file_reports(
    files: &[PromptFile],
    chunks: &[usize],
    positions: &[Position],
) -> Vec<PromptFileReport> {
    let report = |(file, &chunks): (&PromptFile, &usize)| {
        let from = positions.partition_point(|position| position.prompt < file.prompts.start);
        let to = positions.partition_point(|position| position.prompt < file.prompts.end);
        let own = positions.get(from..to).unwrap_or_default();
        PromptFileReport {
            path: file.path.clone(),
            first_prompt: file.prompts.start,
            n_prompts: file.prompts.len(),
            chunks,
            perplexity: Perplexity::of(own.iter()),
            kld: Divergence::of(own).map(|divergence| divergence.kld.estimate().into()),
        }
    };
    files.iter().zip(chunks).map(report).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_shared_evenly_and_the_rest_is_left_to_others() {
        assert_eq!(shares(&[10, 10], 6), [3, 3]);
        assert_eq!(shares(&[10, 10], 7), [4, 3]);
        assert_eq!(shares(&[2, 10, 10], 12), [2, 5, 5]);
        assert_eq!(shares(&[10, 1, 2], 12), [9, 1, 2]);
        assert_eq!(shares(&[3, 3], 100), [3, 3]);
        assert_eq!(shares(&[5, 0, 5], 2), [1, 0, 1]);
        assert_eq!(shares(&[5, 5, 5], 2), [1, 1, 0]);
        assert_eq!(shares(&[5], 0), [0]);
        assert_eq!(shares(&[], 5), [0usize; 0]);
        assert_eq!(shares(&[usize::MAX / 4, 7], 9), [5, 4]);
    }
}

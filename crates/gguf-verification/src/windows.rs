//! Cuts prompts into the windows of tokens that the engine runs, and chooses the predictions that count.

use std::ops::Range;

use serde::Serialize;

use crate::prompts::shares;
use crate::{Prompt, PromptError, PromptFile, VerifyError};
use gguf_engine::TokenChunk;

/// Scored positions of a full chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize)]
pub enum Span {
    /// Second half, as in llama-perplexity: every scored token has half a context before it.
    #[default]
    SecondHalf,
    /// All positions; the rest of a document after its last full chunk is scored too.
    All,
}

/// Predictions that are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize)]
pub enum RowSelection {
    /// Predictions that count.
    #[default]
    Scored,
    /// Predictions of every position.
    All,
}

/// Options for cutting and scoring prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Scoring {
    /// Number of tokens of a chunk.
    pub n_ctx: usize,
    /// Maximum number of chunks.
    pub n_chunks: Option<usize>,
    /// Distance between the starts of chunks, in tokens; each chunk scores its last `stride` tokens.
    pub stride: Option<usize>,
    /// Scored part of a full chunk.
    pub span: Span,
    /// Positions whose predictions are computed.
    pub rows: RowSelection,
}

impl Default for Scoring {
    fn default() -> Self {
        Self { n_ctx: 512, n_chunks: None, stride: None, span: Span::SecondHalf, rows: RowSelection::Scored }
    }
}

/// Chunk of one prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Index of the prompt.
    pub prompt: usize,
    /// Index of the chunk's first token in the prompt.
    pub start: usize,
    /// Chunk that the engine runs.
    pub chunk: TokenChunk,
    /// Target token of every wanted row.
    pub targets: Vec<u32>,
    /// Rows of the chunk that count.
    pub scored: Range<usize>,
}

/// Prompts cut into windows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Windows, in the order of the prompts.
    pub windows: Vec<Window>,
    /// Prompts that the limit on the number of chunks left without a window.
    pub unreached: Vec<usize>,
    /// Number of windows of each file.
    pub chunks: Vec<usize>,
}

/// Cuts prompts into windows. A prompt shorter than a chunk is one window of its own length, scored at every position.
/// Of longer prompts only full chunks are used, unless all positions are scored. The files, in the order of their
/// prompts, share the chunks evenly; without files all prompts count as one file.
///
/// # Errors
/// A context of fewer than 4 tokens, a completion that does not fit into the context, a stride of 0 or not below the
/// context, nothing to score.
pub fn cut(prompts: &[Prompt], files: &[PromptFile], scoring: &Scoring) -> Result<Cut, VerifyError> {
    let n_ctx = scoring.n_ctx;
    if n_ctx < 4 {
        return Err(VerifyError::Context { n_ctx });
    }
    if let Some(stride) = scoring.stride.filter(|&stride| stride == 0 || stride >= n_ctx) {
        return Err(VerifyError::Stride { stride, n_ctx });
    }
    let file_of = |prompt: usize| files.iter().position(|file| file.prompts.contains(&prompt));
    // Prompts of no file share the chunks as one more file.
    let mut of_files = vec![Vec::new(); files.len() + 1];
    for (at, prompt) in prompts.iter().enumerate() {
        let file = file_of(at).unwrap_or(files.len());
        of_files[file].extend(windows_of(at, prompt, scoring)?);
    }
    let available: Vec<usize> = of_files.iter().map(Vec::len).collect();
    let mut chunks = shares(&available, scoring.n_chunks.unwrap_or(usize::MAX));
    let (mut windows, mut unreached) = (Vec::new(), Vec::new());
    for (mut own, &n) in of_files.into_iter().zip(&chunks) {
        let beyond = own.split_off(n);
        let last = own.last().map(|window: &Window| window.prompt);
        let mut left: Vec<usize> = beyond.iter().map(|window| window.prompt).collect();
        left.dedup();
        unreached.extend(left.into_iter().filter(|&prompt| last != Some(prompt)));
        windows.extend(own);
    }
    if windows.iter().all(|window| window.scored.is_empty()) {
        return Err(VerifyError::NothingToScore);
    }
    chunks.truncate(files.len());
    Ok(Cut { windows, unreached, chunks })
}

/// Token range of a window, and the rows of it that may count.
struct Segment {
    tokens: Range<usize>,
    rows: Range<usize>,
}

/// Returns the segments into which a prompt of `n` tokens is cut.
fn segments(n: usize, prompt: &Prompt, scoring: &Scoring) -> Vec<Segment> {
    let n_ctx = scoring.n_ctx;
    if n < n_ctx || (prompt.whole && n == n_ctx) {
        return vec![Segment { tokens: 0..n, rows: 0..n.saturating_sub(1) }];
    }
    if let Some(stride) = scoring.stride {
        let starts = (0..=n - n_ctx).step_by(stride);
        let segment = |start| Segment { tokens: start..start + n_ctx, rows: n_ctx - 1 - stride..n_ctx - 1 };
        return starts.map(segment).collect();
    }
    let first = match scoring.span {
        Span::SecondHalf => n_ctx / 2,
        Span::All => 0,
    };
    let full = (0..n / n_ctx).map(|i| Segment { tokens: i * n_ctx..(i + 1) * n_ctx, rows: first..n_ctx - 1 });
    let mut segments: Vec<Segment> = full.collect();
    let rest = n / n_ctx * n_ctx;
    if scoring.span == Span::All && n - rest >= 2 {
        segments.push(Segment { tokens: rest..n, rows: 0..n - rest - 1 });
    }
    segments
}

/// Returns the windows of prompt number `at` that have a wanted prediction.
fn windows_of(at: usize, prompt: &Prompt, scoring: &Scoring) -> Result<Vec<Window>, VerifyError> {
    let (n, n_ctx) = (prompt.tokens.len(), scoring.n_ctx);
    if prompt.whole && n > n_ctx {
        return Err(PromptError::TooLong { prompt: at, tokens: n, n_ctx }.into());
    }
    let mut windows = Vec::new();
    for Segment { tokens: range, rows } in segments(n, prompt, scoring) {
        // Row `r` predicts token `start + r + 1`.
        let from = prompt.score_from.saturating_sub(range.start + 1);
        let scored = rows.start.max(from)..rows.end;
        let wanted = match scoring.rows {
            RowSelection::Scored => scored.clone(),
            RowSelection::All => 0..range.len().saturating_sub(1),
        };
        if scored.is_empty() && wanted.is_empty() {
            continue;
        }
        let mut tokens = prompt.tokens[range.clone()].to_vec();
        if let (Some(bos), Some(first)) = (prompt.bos, tokens.first_mut()) {
            *first = bos;
        }
        let targets = prompt.tokens[range.start + wanted.start + 1..=range.start + wanted.end].to_vec();
        let chunk = TokenChunk { tokens, rows: wanted, n_source: 0 };
        windows.push(Window { prompt: at, start: range.start, chunk, targets, scored });
    }
    Ok(windows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(n: u32) -> Prompt {
        Prompt { tokens: (0..n).collect(), bos: None, score_from: 1, whole: false }
    }

    fn parts(prompt: Prompt, scoring: Scoring) -> Vec<(usize, usize, Vec<u32>)> {
        let windows = cut(&[prompt], &[], &scoring).unwrap().windows;
        windows.into_iter().map(|w| (w.start, w.chunk.tokens.len(), w.targets)).collect()
    }

    #[test]
    fn full_chunks_score_their_second_half() {
        let scoring = Scoring { n_ctx: 8, ..Scoring::default() };
        let found = parts(prompt(21), scoring);
        assert_eq!(found, [(0, 8, vec![5, 6, 7]), (8, 8, vec![13, 14, 15])]);
        assert_eq!(parts(prompt(21), Scoring { n_chunks: Some(1), ..scoring }).len(), 1);
    }

    #[test]
    fn all_positions_stride_and_short_prompts() {
        let scoring = Scoring { n_ctx: 8, span: Span::All, ..Scoring::default() };
        let found = parts(prompt(11), scoring);
        assert_eq!(found, [(0, 8, (1..8).collect()), (8, 3, vec![9, 10])]);
        let strided = Scoring { stride: Some(3), span: Span::SecondHalf, ..scoring };
        assert_eq!(parts(prompt(12), strided), [(0, 8, vec![5, 6, 7]), (3, 8, vec![8, 9, 10])]);
        assert_eq!(parts(prompt(3), scoring), [(0, 3, vec![1, 2])]);
        assert!(cut(&[prompt(1)], &[], &scoring).is_err());
    }

    #[test]
    fn bos_replaces_the_first_token_and_completions_are_scored_alone() {
        let scoring = Scoring { n_ctx: 8, ..Scoring::default() };
        let document = Prompt { bos: Some(99), ..prompt(16) };
        let found = cut(&[document], &[], &scoring).unwrap().windows;
        assert_eq!((found[1].chunk.tokens[0], found[1].chunk.tokens[1]), (99, 9));
        let completion = Prompt { score_from: 4, whole: true, ..prompt(6) };
        assert_eq!(parts(completion.clone(), scoring), [(0, 6, vec![4, 5])]);
        let every = Scoring { rows: RowSelection::All, ..scoring };
        let found = cut(std::slice::from_ref(&completion), &[], &every).unwrap().windows;
        assert_eq!((found[0].targets.len(), found[0].scored.clone()), (5, 3..5));
        assert!(cut(&[Prompt { whole: true, ..prompt(9) }], &[], &scoring).is_err());
    }

    #[test]
    fn prompts_that_the_limit_leaves_nothing_of_are_named() {
        let scoring = Scoring { n_ctx: 8, n_chunks: Some(3), ..Scoring::default() };
        let unreached = |lengths: [u32; 4]| cut(&lengths.map(prompt), &[], &scoring).unwrap().unreached;
        assert_eq!(unreached([16, 8, 8, 5]), [2, 3]);
        assert_eq!(unreached([8, 32, 1, 8]), [3], "a prompt without predictions is not missed");
        assert_eq!(unreached([5, 5, 5, 1]), [0; 0]);
    }

    #[test]
    fn files_share_the_chunks() {
        let files = |ends: &[usize]| -> Vec<PromptFile> {
            let starts = std::iter::once(0).chain(ends.iter().copied());
            starts
                .zip(ends)
                .map(|(start, &end)| PromptFile { path: "x".into(), prompts: start..end })
                .collect()
        };
        let cut = |lengths: &[u32], ends: &[usize], n_chunks: usize| {
            let prompts: Vec<Prompt> = lengths.iter().map(|&n| prompt(n)).collect();
            let scoring = Scoring { n_ctx: 8, n_chunks: Some(n_chunks), ..Scoring::default() };
            let cut = cut(&prompts, &files(ends), &scoring).unwrap();
            let prompts: Vec<usize> = cut.windows.iter().map(|window| window.prompt).collect();
            (prompts, cut.chunks, cut.unreached)
        };
        assert_eq!(cut(&[80, 80], &[1, 2], 4), (vec![0, 0, 1, 1], vec![2, 2], vec![]));
        assert_eq!(cut(&[8, 80, 80], &[1, 2, 3], 7), (vec![0, 1, 1, 1, 2, 2, 2], vec![1, 3, 3], vec![]));
        // Within a file in order, the last prompts are not reached.
        assert_eq!(cut(&[8, 8, 8, 80], &[3, 4], 4), (vec![0, 1, 3, 3], vec![2, 2], vec![2]));
        // More files than chunks.
        assert_eq!(cut(&[8, 8, 8], &[1, 2, 3], 2), (vec![0, 1], vec![1, 1, 0], vec![2]));
        // A file without a prediction, and prompts of no file.
        assert_eq!(cut(&[1, 8, 80], &[1, 2], 4), (vec![1, 2, 2, 2], vec![0, 1], vec![]));
    }
}

//! Runs windows through one or two engines, group by group, and collects what every position says.

use std::sync::{Mutex, PoisonError};

use crate::core::progress::Progress;
use crate::engine::{Engine, Hidden, Observer, TokenChunk, TokenDivergence, TokenScore};
use crate::verify::logit_file::read::LogitFile;
use crate::verify::logit_file::write::LogitWriter;
use crate::verify::running::{self, Running};
use crate::verify::{VerifyError, Window};

/// What the reference says at a position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reference {
    /// Its score.
    pub score: TokenScore,
    /// Divergence of the model from it.
    pub kld: f64,
}

/// One predicted token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Position {
    /// Index of its prompt.
    pub prompt: usize,
    /// Index of the token in the prompt.
    pub at: usize,
    /// The token.
    pub token: u32,
    /// The model's score.
    pub score: TokenScore,
    /// The baseline's, if there is one.
    pub reference: Option<Reference>,
    /// Whether it counts (or was only asked for).
    pub is_scored: bool,
}

/// What a baseline said last time, group by group, so that several models are compared with it for one run of its own.
/// What does not fit into a quarter of the memory budget is run again.
#[derive(Debug, Default)]
pub struct Recall {
    groups: Mutex<Vec<(Vec<TokenChunk>, Hidden)>>,
}

impl Recall {
    /// Share of the memory budget that it may take.
    const SHARE: u64 = 4;

    /// Bytes that it will take of a baseline's budget, for all windows.
    fn bytes(baseline: &Engine<'_>, windows: &[Window]) -> u64 {
        let n_rows: u64 = windows.iter().map(|window| window.targets.len() as u64).sum();
        (4 * baseline.plan().n_embd as u64).saturating_mul(n_rows).min(Self::most(baseline))
    }

    fn most(baseline: &Engine<'_>) -> u64 {
        baseline.options().memory_bytes / Self::SHARE
    }

    fn knows(&self, chunks: &[TokenChunk]) -> bool {
        let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.iter().any(|(known, _)| known.as_slice() == chunks)
    }

    fn take(&self, chunks: &[TokenChunk]) -> Option<Hidden> {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let at = groups.iter().position(|(known, _)| known.as_slice() == chunks)?;
        Some(groups.swap_remove(at).1)
    }

    /// Keeps a group if there is room for it.
    fn keep(&self, baseline: &Engine<'_>, chunks: Vec<TokenChunk>, hidden: Hidden) {
        let size = |hidden: &Hidden| size_of_val(hidden.states()) as u64;
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let taken: u64 = groups.iter().map(|(_, hidden)| size(hidden)).sum();
        if taken + size(&hidden) <= Self::most(baseline) {
            groups.push((chunks, hidden));
        }
    }
}

/// A baseline that is run, with what it said before.
#[derive(Clone, Copy)]
pub(super) struct Baseline<'a> {
    pub(super) engine: &'a Engine<'a>,
    pub(super) recall: Option<&'a Recall>,
}

/// Files of log-probabilities beside a run.
#[derive(Default)]
pub(super) struct LogitFiles<'a> {
    /// A baseline that is not run: its rows belong to the windows' scored tokens, in order.
    pub(super) known: Option<&'a LogitFile>,
    /// Where the baseline's rows go, or without a baseline the model's.
    pub(super) save: Option<&'a mut LogitWriter>,
}

/// Runs the windows. Returns every wanted position, and how many tokens were run for it.
///
/// # Errors
/// Errors of the engines.
pub(super) fn measure(
    engine: &Engine<'_>,
    baseline: Option<Baseline<'_>>,
    windows: &[Window],
    progress: &dyn Progress,
    observer: Option<&dyn Observer>,
) -> Result<(Vec<Position>, usize), VerifyError> {
    measure_with(engine, baseline, LogitFiles::default(), windows, progress, observer)
}

/// [`measure`] with files of log-probabilities.
pub(super) fn measure_with(
    engine: &Engine<'_>,
    baseline: Option<Baseline<'_>>,
    mut logits: LogitFiles<'_>,
    windows: &[Window],
    progress: &dyn Progress,
    observer: Option<&dyn Observer>,
) -> Result<(Vec<Position>, usize), VerifyError> {
    let longest = windows.iter().map(|window| window.chunk.tokens.len()).max().unwrap_or(0);
    let mut limit = engine.group_tokens(longest)?;
    if let Some(baseline) = baseline {
        let kept = baseline.recall.map_or(0, |_| Recall::bytes(baseline.engine, windows));
        let beside = |engine: &Engine<'_>| engine.group_tokens_beside(kept, longest);
        // Both models' hidden states are held at the end of a group.
        limit = (beside(engine)?.min(beside(baseline.engine)?) / 2).max(longest);
    }
    // Smaller groups show how the figures stand.
    let limit = limit.min(running::group_tokens(windows, engine.batch_tokens_at_most())).max(longest);
    let groups: Vec<(&[Window], Vec<TokenChunk>)> = groups(windows, limit)
        .into_iter()
        .map(|group| (group, group.iter().map(|window| window.chunk.clone()).collect()))
        .collect();
    let knows = |chunks: &[TokenChunk]| baseline.and_then(|b| b.recall).is_some_and(|r| r.knows(chunks));
    let again = |chunks: &[TokenChunk]| baseline.filter(|_| !knows(chunks));
    let work = |chunks: &[TokenChunk]| {
        // Of a baseline whose hidden states are known the head is computed again.
        let known = || baseline.map_or(0, |b| b.engine.head_bytes());
        engine.work_bytes(chunks) + again(chunks).map_or_else(known, |b| b.engine.work_bytes(chunks))
    };
    progress.begin("running the model", groups.iter().map(|(_, chunks)| work(chunks)).sum());
    let mut positions = Vec::new();
    let mut n_tokens = 0;
    let mut running = Running::new();
    for (group, chunks) in groups {
        let targets: Vec<u32> = group.iter().flat_map(|window| window.targets.iter().copied()).collect();
        n_tokens += (1 + usize::from(again(&chunks).is_some()))
            * chunks.iter().map(|c| c.tokens.len()).sum::<usize>();
        let rows: Vec<(TokenScore, Option<Reference>)> = match baseline {
            None => {
                let hidden = engine.forward(&chunks, progress, observer)?;
                if let Some(save) = &mut logits.save {
                    save.write(engine, &hidden, group, progress)?;
                }
                match logits.known {
                    Some(known) => compare_with(known, positions.len(), engine, &hidden, &targets, progress)?,
                    None => {
                        let scores = engine.scores(&hidden, &targets, progress, observer)?;
                        scores.into_iter().map(|score| (score, None)).collect()
                    }
                }
            }
            Some(Baseline { engine: baseline, recall }) => {
                let reference = match recall.and_then(|recall| recall.take(&chunks)) {
                    Some(known) => known,
                    None => baseline.forward(&chunks, progress, None).map_err(VerifyError::Baseline)?,
                };
                if let Some(save) = &mut logits.save {
                    save.write(baseline, &reference, group, progress)?;
                }
                let hidden = engine.forward(&chunks, progress, observer)?;
                let both = baseline.divergences(&reference, engine, &hidden, &targets, progress)?;
                if let Some(recall) = recall {
                    recall.keep(baseline, chunks, reference);
                }
                both.into_iter().map(scored).collect()
            }
        };
        let mut rows = rows.into_iter();
        let n_before = positions.len();
        for window in group {
            for (row, &token) in window.chunk.rows.clone().zip(&window.targets) {
                let Some((score, reference)) = rows.next() else { break };
                positions.push(Position {
                    prompt: window.prompt,
                    at: window.start + row + 1,
                    token,
                    score,
                    reference,
                    is_scored: window.scored.contains(&row),
                });
            }
        }
        running.add(&positions[n_before..]);
        progress.figures(&running.text(n_tokens));
    }
    progress.end();
    Ok((positions, n_tokens))
}

fn scored(d: TokenDivergence) -> (TokenScore, Option<Reference>) {
    (d.model, Some(Reference { score: d.reference, kld: d.kld }))
}

/// Compares a group with the file's rows from `first` on.
fn compare_with(
    known: &LogitFile,
    first: usize,
    engine: &Engine<'_>,
    hidden: &Hidden,
    targets: &[u32],
    progress: &dyn Progress,
) -> Result<Vec<(TokenScore, Option<Reference>)>, VerifyError> {
    let n_rows = targets.len();
    let found = engine.divergences_from(hidden, &known.rows(first, n_rows)?, targets, progress)?;
    known.release(first..first + n_rows);
    Ok(found.into_iter().map(scored).collect())
}

/// Cuts windows into groups of at most `limit` tokens, but whole windows.
fn groups(mut rest: &[Window], limit: usize) -> Vec<&[Window]> {
    let mut groups = Vec::new();
    while !rest.is_empty() {
        let mut n = 0;
        let mut n_tokens = 0;
        while n < rest.len() && (n == 0 || n_tokens + rest[n].chunk.tokens.len() <= limit) {
            n_tokens += rest[n].chunk.tokens.len();
            n += 1;
        }
        let (group, later) = rest.split_at(n);
        groups.push(group);
        rest = later;
    }
    groups
}

//! Runs windows through one or two engines, group by group, and collects the result of every position.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use crate::logit_file::read::LogitFile;
use crate::logit_file::write::LogitWriter;
use crate::running::{self, RunningFigures};
use crate::{VerifyError, Window};
use gguf_core::GgmlType;
use gguf_core::progress::Progress;
use gguf_core::sync::Unpoisoned;
use gguf_engine::{Engine, Hidden, Observer, TokenChunk, TokenDivergence, TokenScore};

/// Result of the reference at a position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reference {
    /// Score of the reference.
    pub score: TokenScore,
    /// KL divergence of the model from the reference.
    pub kld: f64,
}

/// One predicted token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Position {
    /// Index of the prompt.
    pub prompt: usize,
    /// Index of the token in the prompt.
    pub at: usize,
    /// Id of the token.
    pub token: u32,
    /// Score of the model.
    pub score: TokenScore,
    /// Result of the baseline, if there is one.
    pub reference: Option<Reference>,
    /// True if the position counts in the figures; false if it was only asked for.
    pub is_scored: bool,
}

/// Results of a baseline by chunk, kept so that it runs once for several models and for parts of the same text. Results
/// that do not fit into a quarter of the memory budget are computed again: logits before hidden states.
#[derive(Debug, Default)]
pub struct Recall {
    keeps_logits: bool,
    groups: Mutex<Vec<Recalled>>,
    twins: Mutex<Vec<RecalledTwin>>,
}

/// Positions of the baseline quantized to the types of a file; files with the same types share them.
#[derive(Debug)]
struct RecalledTwin {
    /// Type of each tensor; `None` for one that stays as it is.
    types: Vec<Option<GgmlType>>,
    windows: Vec<Window>,
    positions: Vec<Position>,
}

/// Chunks of a group and the baseline's output for them.
#[derive(Debug)]
struct Recalled {
    chunks: Vec<TokenChunk>,
    output: Arc<BaselineOutput>,
}

/// Output of a baseline for a group: hidden states, and the logits if there is memory for them.
#[derive(Debug)]
struct BaselineOutput {
    hidden: Hidden,
    logits: Option<Vec<LogitRows>>,
}

/// Some rows of a group's logits.
#[derive(Clone, Debug)]
struct LogitRows {
    logits: Arc<Vec<f32>>,
    rows: Range<usize>,
}

impl BaselineOutput {
    /// Joins the outputs of chunks.
    fn gathered(places: &[(&Self, Range<usize>)]) -> Self {
        let mut hidden = Hidden::default();
        let mut logits = Some(Vec::new());
        for (output, rows) in places {
            hidden.append(&output.hidden.rows(rows.clone()));
            match (&mut logits, output.logits.as_deref()) {
                // A group that was run has all its rows in one piece.
                (Some(all), Some([own])) => {
                    all.push(LogitRows { logits: Arc::clone(&own.logits), rows: rows.clone() });
                }
                _ => logits = None,
            }
        }
        Self { hidden, logits }
    }

    fn n_bytes(&self) -> u64 {
        size_of_val(self.hidden.states()) as u64 + self.logit_bytes()
    }

    fn logit_bytes(&self) -> u64 {
        self.logits.iter().flatten().map(|own| size_of_val(own.logits.as_slice()) as u64).sum()
    }

    /// Returns the logits row by row, if they are known.
    fn logit_rows(&self, n_vocab: usize) -> Option<Vec<&[f32]>> {
        let pieces = self.logits.as_ref()?.iter();
        let rows = pieces.flat_map(|own| {
            own.logits.chunks_exact(n_vocab.max(1)).skip(own.rows.start).take(own.rows.len())
        });
        Some(rows.collect())
    }
}

impl Recall {
    /// Divisor of the memory budget: a quarter may be taken.
    const SHARE: u64 = 4;

    /// Keeps logits, too: for more than one model.
    pub fn of_many() -> Self {
        Self { keeps_logits: true, ..Self::default() }
    }

    /// Bytes of the baseline's budget that the results of all windows will take, and those of them that are left for
    /// logits.
    fn bytes(&self, baseline: &Engine<'_>, windows: &[Window]) -> (u64, u64) {
        let n_rows: u64 = windows.iter().map(|window| window.targets.len() as u64).sum();
        let hidden = (4 * baseline.plan().n_embd as u64).saturating_mul(n_rows).min(Self::most(baseline));
        let logits = (4 * baseline.plan().n_vocab as u64).saturating_mul(n_rows);
        let logits = if self.keeps_logits { logits.min(Self::most(baseline) - hidden) } else { 0 };
        (hidden + logits, logits)
    }

    fn logit_bytes(&self) -> u64 {
        self.groups.lock().unpoisoned().iter().map(|group| group.output.logit_bytes()).sum()
    }

    fn most(baseline: &Engine<'_>) -> u64 {
        baseline.options().elastic_bytes() / Self::SHARE
    }

    /// Returns the positions of the baseline in these types over these windows, if they are known.
    pub(super) fn twin(&self, types: &[Option<GgmlType>], windows: &[Window]) -> Option<Vec<Position>> {
        let twins = self.twins.lock().unpoisoned();
        let is_own = |twin: &&RecalledTwin| twin.types == types && twin.windows == windows;
        Some(twins.iter().find(is_own)?.positions.clone())
    }

    /// Stores the positions of the baseline in these types.
    pub(super) fn keep_twin(&self, types: &[Option<GgmlType>], windows: &[Window], positions: &[Position]) {
        let (types, windows, positions) = (types.to_vec(), windows.to_vec(), positions.to_vec());
        let twin = RecalledTwin { types, windows, positions };
        self.twins.lock().unpoisoned().push(twin);
    }

    /// Returns the output for a group if it is known for each chunk.
    fn find(&self, chunks: &[TokenChunk]) -> Option<Arc<BaselineOutput>> {
        let groups = self.groups.lock().unpoisoned();
        if let Some(group) = groups.iter().find(|group| group.chunks == chunks) {
            return Some(Arc::clone(&group.output));
        }
        let places = chunks.iter().map(|chunk| groups.iter().find_map(|group| group.place(chunk)));
        Some(Arc::new(BaselineOutput::gathered(&places.collect::<Option<Vec<_>>>()?)))
    }

    fn knows(&self, chunks: &[TokenChunk]) -> bool {
        let groups = self.groups.lock().unpoisoned();
        chunks.iter().all(|chunk| groups.iter().any(|group| group.chunks.contains(chunk)))
    }

    /// Stores a group if the memory budget allows it.
    fn keep(&self, baseline: &Engine<'_>, chunks: Vec<TokenChunk>, output: &Arc<BaselineOutput>) {
        if self.knows(&chunks) {
            return;
        }
        let mut groups = self.groups.lock().unpoisoned();
        let taken: u64 = groups.iter().map(|group| group.output.n_bytes()).sum();
        if taken + output.n_bytes() <= Self::most(baseline) {
            groups.push(Recalled { chunks, output: Arc::clone(output) });
        }
    }
}

impl Recalled {
    fn place(&self, wanted: &TokenChunk) -> Option<(&BaselineOutput, Range<usize>)> {
        let at = self.chunks.iter().position(|chunk| chunk == wanted)?;
        let row: usize = self.chunks.get(..at)?.iter().map(|chunk| chunk.rows.len()).sum();
        Some((&self.output, row..row + wanted.rows.len()))
    }
}

/// Baseline that is run, with its stored results.
#[derive(Clone, Copy)]
pub(super) struct Baseline<'a> {
    pub(super) engine: &'a Engine<'a>,
    pub(super) recall: Option<&'a Recall>,
}

impl Baseline<'_> {
    /// Returns the output for a group, from memory or by a run. Logits are computed if `logit_bytes` are enough for them
    /// and those that are kept.
    fn output(
        &self,
        chunks: &[TokenChunk],
        logit_bytes: u64,
        progress: &dyn Progress,
    ) -> Result<Arc<BaselineOutput>, VerifyError> {
        if let Some(output) = self.recall.and_then(|recall| recall.find(chunks)) {
            return Ok(output);
        }
        let hidden = self.engine.forward(chunks, progress, None).map_err(VerifyError::Baseline)?;
        let (n_rows, n_vocab) = (hidden.n_rows(), self.engine.plan().n_vocab);
        let all = (4 * n_vocab as u64).saturating_mul(n_rows as u64);
        let kept = self.recall.map_or(0, Recall::logit_bytes);
        let logits = (all > 0 && kept.saturating_add(all) <= logit_bytes)
            .then(|| self.engine.logits(&hidden, progress).map_err(VerifyError::Baseline))
            .transpose()?;
        let logits = logits.map(|logits| vec![LogitRows { logits: Arc::new(logits), rows: 0..n_rows }]);
        Ok(Arc::new(BaselineOutput { hidden, logits }))
    }
}

/// Files of log-probabilities that a run reads or writes.
#[derive(Default)]
pub(super) struct LogitFiles<'a> {
    /// File that replaces a baseline: its rows belong to the scored tokens of the windows, in order.
    pub(super) known: Option<&'a LogitFile>,
    /// Destination of the rows of the baseline, or of the model if there is no baseline.
    pub(super) save: Option<&'a mut LogitWriter>,
}

/// Runs the windows. Returns every wanted position and the number of tokens that were run.
pub(super) fn measure(
    engine: &Engine<'_>,
    baseline: Option<Baseline<'_>>,
    windows: &[Window],
    progress: &dyn Progress,
) -> Result<(Vec<Position>, usize), VerifyError> {
    measure_with(engine, baseline, LogitFiles::default(), windows, progress, None)
}

/// Does the same as [`measure`], with files of log-probabilities and an observer of the model's run.
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
    let mut logit_bytes = 0;
    if let Some(baseline) = baseline {
        let kept;
        (kept, logit_bytes) = baseline.recall.map_or((0, 0), |recall| recall.bytes(baseline.engine, windows));
        // Heads of another width sum in another order.
        if baseline.engine.plan().head.n_cols != engine.plan().head.n_cols {
            logit_bytes = 0;
        }
        let tokens = |engine: &Engine<'_>| engine.group_tokens_with_taken(kept, longest);
        // Both models' hidden states are held at the end of a group.
        limit = (tokens(engine)?.min(tokens(baseline.engine)?) / 2).max(longest);
    }
    // Smaller groups show the running figures more often.
    let limit = limit.min(running::group_tokens(windows, engine.batch_tokens_at_most())).max(longest);
    let groups: Vec<(&[Window], Vec<TokenChunk>)> = groups(windows, limit)
        .into_iter()
        .map(|group| (group, group.iter().map(|window| window.chunk.clone()).collect()))
        .collect();
    let knows = |chunks: &[TokenChunk]| {
        baseline.and_then(|baseline| baseline.recall).is_some_and(|recall| recall.knows(chunks))
    };
    let again = |chunks: &[TokenChunk]| baseline.filter(|_| !knows(chunks));
    let work = |chunks: &[TokenChunk]| {
        // If the hidden states of the baseline are known, only its head is computed again, unless its logits are.
        let known = || baseline.filter(|_| logit_bytes == 0).map_or(0, |b| b.engine.head_bytes());
        engine.work_bytes(chunks) + again(chunks).map_or_else(known, |b| b.engine.work_bytes(chunks))
    };
    let title = if baseline.is_some() { "running the model and the baseline" } else { "running the model" };
    progress.begin(title, groups.iter().map(|(_, chunks)| work(chunks)).sum());
    progress.units("token", windows.iter().map(|window| window.chunk.tokens.len() as u64).sum());
    let mut positions = Vec::new();
    let mut n_tokens = 0;
    let mut running = RunningFigures::new();
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
            Some(baseline) => {
                let output = baseline.output(&chunks, logit_bytes, progress)?;
                if let Some(save) = &mut logits.save {
                    save.write(baseline.engine, &output.hidden, group, progress)?;
                }
                let hidden = engine.forward(&chunks, progress, observer)?;
                let known = output.logit_rows(engine.plan().n_vocab).filter(|_| logit_bytes > 0);
                let both = match known {
                    Some(known) => engine.divergences_from_logits(&known, &hidden, &targets, progress)?,
                    None => {
                        baseline.engine.divergences(&output.hidden, engine, &hidden, &targets, progress)?
                    }
                };
                if let Some(recall) = baseline.recall {
                    recall.keep(baseline.engine, chunks, &output);
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

/// Cuts the windows into groups of at most `limit` tokens, without splitting a window.
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

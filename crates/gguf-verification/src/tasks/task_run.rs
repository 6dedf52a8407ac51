//! Runs tasks: every answer is a separate sequence, and the sequences of all tasks go through the engine in groups.

use crate::tasks::choice::{PreparedTask, Sequence};
use crate::tasks::{LeftOut, TaskError, TaskOutcome, TaskReport, TaskSet, Tasks};
use crate::{TextEncoder, VerifyError};
use gguf_core::progress::Progress;
use gguf_engine::{Engine, TokenChunk};

/// Returns a model's answers to the tasks of each file.
pub(crate) fn run(
    engine: &Engine<'_>,
    encoder: &dyn TextEncoder,
    sets: &[TaskSet],
    progress: &dyn Progress,
) -> Result<Vec<TaskReport>, VerifyError> {
    sets.iter().map(|set| run_set(engine, encoder, set, progress)).collect()
}

fn run_set(
    engine: &Engine<'_>,
    encoder: &dyn TextEncoder,
    set: &TaskSet,
    progress: &dyn Progress,
) -> Result<TaskReport, VerifyError> {
    let prepared: Vec<Result<PreparedTask, LeftOut>> = match &set.tasks {
        Tasks::Choices(tasks) => {
            tasks.iter().map(|task| task.prepare(encoder)).collect::<Result<_, TaskError>>()?
        }
        Tasks::Pairs(tasks) => {
            tasks.iter().map(|task| task.prepare(encoder)).collect::<Result<_, TaskError>>()?
        }
    };
    let (mut tasks, mut left_out) = (Vec::new(), Vec::new());
    for task in prepared {
        match task {
            Ok(task) => tasks.push(task),
            Err(left) => left_out.push(left),
        }
    }
    let path = set.path.clone();
    if tasks.is_empty()
        && let Some(first) = left_out.first().cloned()
    {
        return Err(TaskError::NothingToScore { path, first }.into());
    }
    let sequences: Vec<&Sequence> = tasks.iter().flat_map(|task| &task.sequences).collect();
    let log_probs = log_probs(engine, &sequences, set.kind.name(), progress)?;
    let mut rest = log_probs.as_slice();
    let mut outcome = |task: &PreparedTask| {
        let (own, later) = rest.split_at(task.sequences.len().min(rest.len()));
        rest = later;
        outcome(task, own)
    };
    let mut outcomes = Vec::with_capacity(tasks.len());
    for task in &tasks {
        match outcome(task) {
            Ok(outcome) => outcomes.push(outcome),
            Err(left) => left_out.push(left),
        }
    }
    let longest = sequences.iter().map(|sequence| sequence.tokens.len()).max().unwrap_or(0);
    Ok(TaskReport { longest, ..TaskReport::new(set.kind, path, set.n_in_file, outcomes, left_out) })
}

/// Chooses the answer with the highest mean of its terms. A task with a NaN mean is left out.
fn outcome(task: &PreparedTask, log_probs: &[Vec<f64>]) -> Result<TaskOutcome, LeftOut> {
    let term = |&(sequence, row): &(usize, usize)| {
        log_probs.get(sequence).and_then(|rows| rows.get(row)).copied().unwrap_or(f64::NAN)
    };
    let mean = |terms: &Vec<(usize, usize)>| terms.iter().map(term).sum::<f64>() / terms.len() as f64;
    let scores: Vec<f64> = task.terms.iter().map(mean).collect();
    if let Some(at) = scores.iter().position(|score| score.is_nan()) {
        let reason = format!("the model's score of answer {at} is not a number");
        return Err(LeftOut { is_of_model: true, ..LeftOut::new(task.number, &task.question, reason) });
    }
    let mut answer = task.on_tie;
    for (at, &score) in scores.iter().enumerate() {
        if scores.get(answer).is_some_and(|&best| score > best) {
            answer = at;
        }
    }
    let is_right = task.is_right.get(answer).copied().unwrap_or(false);
    Ok(TaskOutcome { task: task.number, answer, is_right, scores })
}

/// Returns the log-probabilities of the wanted rows of each sequence.
fn log_probs(
    engine: &Engine<'_>,
    sequences: &[&Sequence],
    name: &str,
    progress: &dyn Progress,
) -> Result<Vec<Vec<f64>>, VerifyError> {
    let longest = sequences.iter().map(|sequence| sequence.tokens.len()).max().unwrap_or(0);
    // Every batch decodes the weights anyway: a group of several batches would only hold more tokens.
    let limit = engine.group_tokens(longest)?.min(engine.batch_tokens_at_most()).max(longest);
    let groups = groups(sequences, limit);
    let chunks = |group: &[&Sequence]| -> Vec<TokenChunk> {
        let chunk = |sequence: &&Sequence| TokenChunk {
            tokens: sequence.tokens.clone(),
            rows: sequence.rows.clone(),
            n_source: 0,
        };
        group.iter().map(chunk).collect()
    };
    let work = groups.iter().map(|group| engine.work_bytes(&chunks(group))).sum();
    progress.begin(&format!("running {name}"), work);
    let mut found = Vec::with_capacity(sequences.len());
    for group in groups {
        let targets: Vec<u32> = group.iter().flat_map(|sequence| sequence.targets.iter().copied()).collect();
        let hidden = engine.forward(&chunks(group), progress, None)?;
        let mut scores =
            engine.scores(&hidden, &targets, progress, None)?.into_iter().map(|score| -score.nll);
        found.extend(
            group.iter().map(|sequence| scores.by_ref().take(sequence.targets.len()).collect::<Vec<_>>()),
        );
    }
    progress.end();
    Ok(found)
}

/// Cuts sequences into groups of at most `limit` tokens, without splitting a sequence.
fn groups<'a, 's>(sequences: &'a [&'s Sequence], limit: usize) -> Vec<&'a [&'s Sequence]> {
    let mut groups = Vec::new();
    let (mut start, mut n_tokens) = (0, 0usize);
    for (at, sequence) in sequences.iter().enumerate() {
        let n = sequence.tokens.len();
        if at > start && n_tokens.saturating_add(n) > limit {
            groups.push(&sequences[start..at]);
            (start, n_tokens) = (at, 0);
        }
        n_tokens += n;
    }
    if start < sequences.len() {
        groups.push(&sequences[start..]);
    }
    groups
}

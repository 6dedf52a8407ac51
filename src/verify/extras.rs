//! What a verification may use and yield beside models and prompts.

use std::path::Path;

use crate::verify::{LogitFile, LogitFileSize, TaskSet};

/// What a verification uses beside models and prompts.
#[derive(Clone, Copy, Default)]
pub struct Extras<'a> {
    /// A baseline that was run before. Its text is scored, in the way it was then; prompts are only compared with it.
    pub logits: Option<&'a LogitFile>,
    /// Where the baseline's log-probabilities are kept, or without a baseline the model's own.
    pub save: Option<SaveLogits<'a>>,
    /// Questions to answer.
    pub tasks: &'a [TaskSet],
}

/// A logit file to write.
#[derive(Clone, Copy)]
pub struct SaveLogits<'a> {
    /// Where.
    pub path: &'a Path,
    /// Wait until it is on the disk.
    pub sync: bool,
    /// Told of its size before it is written.
    pub announce: &'a dyn Fn(&LogitFileSize),
}

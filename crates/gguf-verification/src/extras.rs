//! Optional inputs and outputs of a verification.

use std::path::Path;

use crate::{LogitFile, LogitFileSize, TaskSet};

/// Optional inputs and outputs of a verification, in addition to models and prompts.
#[derive(Clone, Copy, Default)]
pub struct Extras<'a> {
    /// Logit file in place of a baseline. Its text is scored in the same way as when it was written; prompts are only
    /// compared with it.
    pub logits: Option<&'a LogitFile>,
    /// File for the log-probabilities of the baseline, or of the model if there is no baseline.
    pub save: Option<SaveLogits<'a>>,
    /// Tasks with questions to answer.
    pub tasks: &'a [TaskSet],
}

/// Logit file to write.
#[derive(Clone, Copy)]
pub struct SaveLogits<'a> {
    /// Path of the file.
    pub path: &'a Path,
    /// True to wait until the file is on the disk.
    pub sync: bool,
    /// Callback with the size, before the file is written.
    pub announce: &'a dyn Fn(&LogitFileSize),
}

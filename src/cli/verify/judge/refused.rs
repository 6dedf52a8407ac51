//! Options that contradict one another, beyond what clap knows.

use crate::cli::UsageError;
use crate::cli::verify::judge::{Score, VerifyArgs};
use crate::cli::verify::limits::against_baseline;
use crate::core::text::escape;
use crate::verify::LogitFile;

impl VerifyArgs {
    /// Refuses options that would have no effect.
    pub(super) fn check_use(&self, has_tasks: bool, logits: Option<&LogitFile>) -> Result<(), UsageError> {
        let refuse = |message: String| Err(UsageError(message));
        let has_text = !self.prompts.is_empty() || logits.is_some();
        let of_weights = [("--weights-only", self.weights_only), ("--imatrix", self.imatrix.is_some())];
        if let (Some(_), Some((name, _))) = (logits, of_weights.into_iter().find(|(_, is_given)| *is_given)) {
            return refuse(format!("`{name}` needs a baseline with weights, not a logit file"));
        }
        if self.adapter.is_some() && self.baseline.as_ref().is_some_and(|path| !path.is_dir()) {
            return refuse("`--adapter` needs the directory of its base model as `--baseline`".to_owned());
        }
        if self.models.len() > 1 && self.trace.is_some() {
            return refuse("`--trace` takes one model".to_owned());
        }
        if self.models.len() > 1 && self.save_baseline.is_some() && self.baseline.is_none() {
            return refuse("`--save-baseline` takes one model, or a `--baseline` to keep".to_owned());
        }
        let of_cut = [
            ("--ctx", self.cut.ctx.is_some()),
            ("--chunks", self.cut.chunks.is_some()),
            ("--stride", self.cut.stride.is_some()),
            ("--score all", self.score == Score::All),
            ("--per-token", self.per_token.is_some()),
            ("--save-baseline", self.save_baseline.is_some()),
        ];
        if has_tasks
            && !has_text
            && let Some((name, _)) = of_cut.into_iter().find(|(_, is_given)| *is_given)
        {
            return refuse(format!("`{name}` needs `--prompts`: tasks are run whole"));
        }
        if self.save_baseline.is_some() && (self.cut.stride.is_some() || self.score == Score::All) {
            let message =
                "`--save-baseline` keeps the second half of each chunk: no `--stride`, no `--score all`";
            return refuse(message.to_owned());
        }
        if let Some(name) = against_baseline(&self.thresholds()).filter(|_| self.baseline.is_none()) {
            return refuse(format!("`{name}` compares with a baseline: give `--baseline REF`"));
        }
        let Some(file) = logits else { return Ok(()) };
        if let Some(ctx) = self.cut.ctx.filter(|&ctx| ctx != file.n_ctx()) {
            return refuse(format!("`--ctx {ctx}`: the logit file's chunks have {} tokens", file.n_ctx()));
        }
        let others = [&of_cut[2], &of_cut[3], &of_cut[5]];
        match others.into_iter().find(|(_, is_given)| *is_given) {
            Some((name, _)) => refuse(format!("`{name}` needs a baseline that is run, not a logit file")),
            None => Ok(()),
        }
    }

    /// Refuses `--mlock` for anything that is not a mapped file.
    pub(super) fn check_lock(&self) -> Result<(), UsageError> {
        let mut paths = self.models.iter().chain(&self.baseline);
        match paths.find(|path| self.mlock && path.is_dir()) {
            None => Ok(()),
            Some(path) => Err(UsageError(format!(
                "`--mlock` keeps mapped files in memory; {} is a directory, which is converted as it is read: convert \
                 it first, or leave `--mlock` out",
                escape(&path.to_string_lossy())
            ))),
        }
    }
}

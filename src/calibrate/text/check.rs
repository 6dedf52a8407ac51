//! Text on which the result is measured: separate text, or the part of each kind that is held back.

use crate::calibrate::text::{count, spread, windows};
use crate::calibrate::{CalibrateError, CalibrationText, TextKind, TextSource};
use crate::verify::{Model, Window};

/// Text that is given only for the check, which no solver uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckText {
    /// Name for metadata and messages.
    pub name: String,
    /// Sequences that are scored.
    pub windows: Vec<Window>,
}

impl CheckText {
    /// Number of tokens that are scored, or read as context of those.
    #[must_use]
    pub fn n_tokens(&self) -> usize {
        count(&self.windows)
    }
}

impl CalibrationText {
    /// Adds separate texts for the check, in place of held-back text ([`crate::calibrate::TextOptions::held_back`] was
    /// false). At most `n_tokens` are used, in equal shares, spread evenly over each text.
    ///
    /// # Errors
    /// Text that cannot be encoded, or that is too short for one sequence with a prediction.
    pub fn add_check(
        &mut self,
        model: &Model<'_>,
        sources: &[TextSource],
        n_tokens: usize,
    ) -> Result<(), CalibrateError> {
        let plan = model.plan()?;
        let share = n_tokens.checked_div(sources.len()).unwrap_or(0);
        for source in sources {
            let all = windows(model, &plan, source, self.n_ctx)?;
            let name = source.name.clone();
            if all.is_empty() {
                return Err(CalibrateError::NothingToCheck { name });
            }
            let n_available = count(&all) as u64;
            // At least one sequence of each, however small the share is.
            let least = all.iter().map(|window| window.chunk.tokens.len()).max().unwrap_or(0);
            let (windows, _) = spread(all, share.max(least) as u64, n_available);
            self.check.push(CheckText { name, windows });
        }
        Ok(())
    }

    /// Sequences on which the result is measured.
    #[must_use]
    pub fn check_windows(&self) -> Vec<Window> {
        let held_back = self.kinds.iter().flat_map(|kind| &kind.check);
        held_back.chain(self.check.iter().flat_map(|check| &check.windows)).cloned().collect()
    }

    /// Number of tokens of [`CalibrationText::check_windows`].
    #[must_use]
    pub fn n_check_tokens(&self) -> usize {
        let held_back: usize = self.kinds.iter().map(TextKind::n_check_tokens).sum();
        held_back + self.check.iter().map(CheckText::n_tokens).sum::<usize>()
    }

    /// Description for the file's metadata: the kinds with their tokens, the seed of text that a model wrote, and the
    /// text of the check, as in `book.txt: 16384 tokens, self: 16384 tokens (seed 1); checked by other.txt: 4096
    /// tokens`.
    #[must_use]
    pub fn description(&self) -> String {
        let kind = |kind: &TextKind| {
            let seed = kind.seed.map_or_else(String::new, |seed| format!(" (seed {seed})"));
            format!("{}: {} tokens{seed}", kind.name, kind.n_tokens())
        };
        let kinds: Vec<String> = self.kinds.iter().map(kind).collect();
        let check: Vec<String> =
            self.check.iter().map(|check| format!("{}: {} tokens", check.name, check.n_tokens())).collect();
        match check.as_slice() {
            [] => kinds.join(", "),
            _ => format!("{}; checked by {}", kinds.join(", "), check.join(", ")),
        }
    }
}

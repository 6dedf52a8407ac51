//! Held-out text, on which the result is measured: separate text, or a part of each kind.

use crate::text::{count, spread, windows};
use crate::{CalibrateError, CalibrationText, Result, TextKind, TextSource};
use gguf_verification::{Model, Window};

/// Text that is given only to measure the result; no solver uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldOutText {
    /// Name for metadata and messages.
    pub name: String,
    /// Sequences that are scored.
    pub windows: Vec<Window>,
}

impl HeldOutText {
    /// Number of tokens that are scored, or read as context of those.
    pub fn n_tokens(&self) -> usize {
        count(&self.windows)
    }
}

impl CalibrationText {
    /// Adds separate held-out texts, in place of parts of the kinds ([`crate::TextOptions::holds_out`] is
    /// false). At most `n_tokens` are used, in equal shares, spread evenly over each text.
    ///
    /// # Errors
    /// Text that cannot be encoded, or that is too short for one sequence with a prediction.
    pub fn add_held_out(&mut self, model: &Model<'_>, sources: &[TextSource], n_tokens: usize) -> Result<()> {
        let plan = model.plan()?;
        let share = n_tokens.checked_div(sources.len()).unwrap_or(0);
        for source in sources {
            let all = windows(model, &plan, source, self.n_ctx)?;
            let name = source.name.clone();
            if all.is_empty() {
                return Err(CalibrateError::NothingToPredict { name });
            }
            let n_available = count(&all) as u64;
            // At least one sequence of each, however small the share is.
            let least = all.iter().map(|window| window.chunk.tokens.len()).max().unwrap_or(0);
            let (windows, _) = spread(all, share.max(least) as u64, n_available);
            self.held_out.push(HeldOutText { name, windows });
        }
        Ok(())
    }

    /// Sequences on which the result is measured.
    pub(crate) fn held_out_windows(&self) -> Vec<Window> {
        let of_kinds = self.kinds.iter().flat_map(|kind| &kind.held_out);
        of_kinds.chain(self.held_out.iter().flat_map(|text| &text.windows)).cloned().collect()
    }

    /// Number of tokens of `held_out_windows`.
    pub fn n_held_out_tokens(&self) -> usize {
        let of_kinds: usize = self.kinds.iter().map(TextKind::n_held_out_tokens).sum();
        of_kinds + self.held_out.iter().map(HeldOutText::n_tokens).sum::<usize>()
    }

    /// Description for the file's metadata: the kinds with their tokens, the seed of text that a model wrote, and the
    /// separate held-out text, as in `book.txt: 16384 tokens, self: 16384 tokens (seed 1); checked by other.txt: 4096
    /// tokens`.
    pub fn description(&self) -> String {
        let kind = |kind: &TextKind| {
            let seed = kind.seed.map_or_else(String::new, |seed| format!(" (seed {seed})"));
            format!("{}: {} tokens{seed}", kind.name, kind.n_tokens())
        };
        let kinds: Vec<String> = self.kinds.iter().map(kind).collect();
        let held_out: Vec<String> =
            self.held_out.iter().map(|text| format!("{}: {} tokens", text.name, text.n_tokens())).collect();
        match held_out.as_slice() {
            [] => kinds.join(", "),
            _ => format!("{}; checked by {}", kinds.join(", "), held_out.join(", ")),
        }
    }
}

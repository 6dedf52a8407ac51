//! Held-out text, on which the result is measured: separate text, or a part of each kind.

use std::collections::HashSet;

use crate::text::{count, spread, windows};
use crate::{CalibrateError, CalibrationText, Result, TextKind, TextSource};
use gguf_core::text::escape;
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

/// Number of tokens of a run by which texts are compared.
const RUN: usize = 16;

/// Runs of consecutive tokens of a sequence; a shorter sequence is one.
fn runs(tokens: &[u32]) -> std::slice::Windows<'_, u32> {
    tokens.windows(RUN.min(tokens.len()).max(1))
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

    /// Leaves held-out sequences out if the solver knows them: most of their runs of tokens are in the calibration text.
    /// If nothing else is held out, they stay. Returns a note for each text concerned. Text that the model writes is not
    /// compared.
    pub fn leave_out_known(&mut self) -> Vec<String> {
        let of_kinds = self.kinds.iter_mut().filter(|kind| kind.seed.is_none());
        let of_kinds = of_kinds.map(|kind| (kind.name.clone(), std::mem::take(&mut kind.held_out)));
        let separate =
            self.held_out.iter_mut().map(|text| (text.name.clone(), std::mem::take(&mut text.windows)));
        let all: Vec<(String, Vec<Window>)> = of_kinds.chain(separate).collect();
        let given = self.kinds.iter().flat_map(|kind| &kind.windows);
        let known: HashSet<&[u32]> = given.flat_map(|window| runs(&window.chunk.tokens)).collect();
        let is_known = |window: &Window| {
            let runs = runs(&window.chunk.tokens);
            2 * runs.clone().filter(|run| known.contains(run)).count() > runs.len()
        };
        let is_any_new = self.kinds.iter().any(|kind| !kind.held_out.is_empty())
            || all.iter().any(|(_, windows)| !windows.iter().all(is_known));
        let mut notes = Vec::new();
        let keep = |(name, windows): (String, Vec<Window>)| {
            let n = windows.len();
            let new: Vec<Window> = windows.iter().filter(|window| !is_known(window)).cloned().collect();
            if new.len() < n {
                let (name, n_known) = (escape(&name).into_owned(), n - new.len());
                let then =
                    if is_any_new { "they are left out of it" } else { "it says nothing about other text" };
                notes.push(format!(
                    "`{name}`: {n_known} of {n} sequences of the check are calibration text, too: {then}"
                ));
            }
            if is_any_new { new } else { windows }
        };
        let mut kept = all.into_iter().map(keep).collect::<Vec<_>>().into_iter();
        for kind in self.kinds.iter_mut().filter(|kind| kind.seed.is_none()) {
            kind.held_out = kept.next().unwrap_or_default();
        }
        for text in &mut self.held_out {
            text.windows = kept.next().unwrap_or_default();
        }
        notes
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

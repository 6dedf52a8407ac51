//! `--per-token`: the loss at every position of every prompt, and the first choices of the models there.

use std::io::Write;
use std::path::Path;

use serde::Serialize;

use crate::core::output::{OutputError, OutputFile};
use crate::core::text::hex;
use crate::core::written::as_path;
use crate::tokenizer::Encoder;
use crate::verify::{Position, Prompt};

/// File of JSON lines in progress; it appears when all models are done.
pub(super) struct PerTokenFile {
    file: OutputFile,
    offset: u64,
}

impl PerTokenFile {
    pub(super) fn create(path: &Path) -> Result<Self, OutputError> {
        Ok(Self { file: OutputFile::create(path)?, offset: 0 })
    }

    /// Writes one line per prompt; positions that were not computed are `null`.
    pub(super) fn write(
        &mut self,
        model: &Path,
        encoder: Option<&Encoder>,
        prompts: &[Prompt],
        positions: &[Position],
    ) -> Result<(), OutputError> {
        let mut rest = positions;
        for (at, prompt) in prompts.iter().enumerate() {
            // Positions are in the order of their prompts.
            let n_own = rest.iter().take_while(|position| position.prompt == at).count();
            let (own, later) = rest.split_at(n_own);
            rest = later;
            let line = TokenLine::new(model, encoder, at, prompt, own);
            let mut line = serde_json::to_vec(&line).map_err(std::io::Error::from)?;
            writeln!(line)?;
            self.file.write_at(self.offset, &line)?;
            self.offset += line.len() as u64;
        }
        Ok(())
    }

    pub(super) fn commit(self, sync: bool) -> Result<(), OutputError> {
        Ok(self.file.commit(sync)?)
    }
}

/// Line of one prompt. A list has an element for each token, or for each one after the first; elements that were not
/// computed are null.
#[derive(Clone, Debug, Serialize)]
struct TokenLine<'a> {
    /// Path of the model, as it was given.
    #[serde(serialize_with = "as_path")]
    file: &'a Path,
    /// Index of the prompt, from 0.
    prompt: usize,
    /// Id of each token.
    tokens: &'a [u32],
    /// Negative log likelihood of each token after the first, natural logarithm.
    nll: Vec<Option<f64>>,
    /// Id of the model's first choice for each token after the first.
    top: Vec<Option<u32>>,
    /// Divergence from the baseline at each token after the first, in nats.
    #[serde(skip_serializing_if = "Option::is_none")]
    kld: Option<Vec<Option<f64>>>,
    /// Negative log likelihood of each token after the first in the baseline.
    #[serde(skip_serializing_if = "Option::is_none")]
    baseline_nll: Option<Vec<Option<f64>>>,
    /// Id of the baseline's first choice for each token after the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    baseline_top: Option<Vec<Option<u32>>>,
    /// Text of each token, if the tokenizer is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<Vec<TokenText>>,
    /// Text of `top`.
    #[serde(skip_serializing_if = "Option::is_none")]
    top_text: Option<Vec<Option<TokenText>>>,
    /// Text of `baseline_top`.
    #[serde(skip_serializing_if = "Option::is_none")]
    baseline_top_text: Option<Vec<Option<TokenText>>>,
}

/// Text of a token, or its bytes if they are not valid UTF-8 by themselves.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
enum TokenText {
    Text(String),
    Bytes(TokenBytes),
}

#[derive(Clone, Debug, Serialize)]
struct TokenBytes {
    /// Bytes in lower-case hexadecimal.
    hex: String,
}

impl TokenText {
    fn of(encoder: &Encoder, token: u32) -> Self {
        match String::from_utf8(encoder.decode(&[token])) {
            Ok(text) => Self::Text(text),
            Err(error) => Self::Bytes(TokenBytes { hex: hex(error.as_bytes()) }),
        }
    }
}

impl<'a> TokenLine<'a> {
    fn new(
        file: &'a Path,
        encoder: Option<&Encoder>,
        at: usize,
        prompt: &'a Prompt,
        positions: &[Position],
    ) -> Self {
        let columns = Columns { n: prompt.tokens.len().saturating_sub(1), positions };
        let has_reference = positions.iter().any(|position| position.reference.is_some());
        let text =
            |encoder: &Encoder| prompt.tokens.iter().map(|&token| TokenText::of(encoder, token)).collect();
        let top_text = |encoder| columns.of(|p| Some(TokenText::of(encoder, p.score.top)));
        let baseline_top_text =
            |encoder| columns.of(|p| Some(TokenText::of(encoder, p.reference?.score.top)));
        Self {
            file,
            prompt: at,
            tokens: &prompt.tokens,
            nll: columns.of(|p| Some(p.score.nll)),
            top: columns.of(|p| Some(p.score.top)),
            kld: has_reference.then(|| columns.of(|p| Some(p.reference?.kld))),
            baseline_nll: has_reference.then(|| columns.of(|p| Some(p.reference?.score.nll))),
            baseline_top: has_reference.then(|| columns.of(|p| Some(p.reference?.score.top))),
            text: encoder.map(text),
            top_text: encoder.map(top_text),
            baseline_top_text: encoder.filter(|_| has_reference).map(baseline_top_text),
        }
    }
}

/// Computed positions of a prompt of which `n` tokens have a predecessor.
#[derive(Clone, Copy)]
struct Columns<'a> {
    n: usize,
    positions: &'a [Position],
}

impl Columns<'_> {
    /// Returns a value of each token after the first; `None` at those that were not computed.
    fn of<T>(self, value: impl Fn(&Position) -> Option<T>) -> Vec<Option<T>> {
        let mut column: Vec<Option<T>> = (0..self.n).map(|_| None).collect();
        for position in self.positions {
            if let Some(slot) = position.at.checked_sub(1).and_then(|at| column.get_mut(at)) {
                *slot = value(position);
            }
        }
        column
    }
}

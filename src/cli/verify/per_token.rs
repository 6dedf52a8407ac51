//! `--per-token`: the loss at every position of every prompt, and the first choices of the models there.

use crate::core::text::hex;
use std::io::Write;
use std::path::Path;

use serde_json::{Map, Value as Json, json};

use crate::core::output::{OutputError, OutputFile};
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
    ///
    /// # Errors
    /// I/O errors; then no file is left.
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
            let mut line =
                serde_json::to_vec(&line(model, encoder, at, prompt, own)).map_err(std::io::Error::from)?;
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

/// Text of a token: a string, or hex bytes if they are not valid UTF-8 by themselves.
fn text(encoder: Option<&Encoder>, token: u32) -> Json {
    let Some(encoder) = encoder else { return Json::Null };
    let bytes = encoder.decode(&[token]);
    match std::str::from_utf8(&bytes) {
        Ok(text) => json!(text),
        Err(_) => json!({ "hex": hex(&bytes) }),
    }
}

fn line(model: &Path, encoder: Option<&Encoder>, at: usize, prompt: &Prompt, positions: &[Position]) -> Json {
    let n = prompt.tokens.len().saturating_sub(1);
    let column = |value: &dyn Fn(&Position) -> Option<Json>| {
        let mut column = vec![Json::Null; n];
        for position in positions {
            if let Some(slot) = position.at.checked_sub(1).and_then(|at| column.get_mut(at)) {
                *slot = value(position).unwrap_or_default();
            }
        }
        Json::from(column)
    };
    let mut line = Map::new();
    let mut add = |name: &str, value| line.insert(name.to_owned(), value);
    add("file", json!(model.display().to_string()));
    add("prompt", json!(at));
    add("tokens", json!(prompt.tokens));
    add("nll", column(&|p| Some(json!(p.score.nll))));
    add("top", column(&|p| Some(json!(p.score.top))));
    let has_reference = positions.iter().any(|position| position.reference.is_some());
    if has_reference {
        add("kld", column(&|p| Some(json!(p.reference?.kld))));
        add("baseline_nll", column(&|p| Some(json!(p.reference?.score.nll))));
        add("baseline_top", column(&|p| Some(json!(p.reference?.score.top))));
    }
    if encoder.is_some() {
        add("text", prompt.tokens.iter().map(|&token| text(encoder, token)).collect());
        add("top_text", column(&|p| Some(text(encoder, p.score.top))));
        if has_reference {
            add("baseline_top_text", column(&|p| Some(text(encoder, p.reference?.score.top))));
        }
    }
    Json::Object(line)
}

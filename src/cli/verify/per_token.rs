//! `--per-token`: what every position of every prompt costs.

use std::io::{self, Write};
use std::path::Path;

use serde_json::{Value as Json, json};

use crate::core::output::{OutputError, OutputFile};
use crate::verify::{Position, Prompt};

/// Writes one line per prompt; positions that were not computed are `null`.
///
/// # Errors
/// I/O errors; no file is left then.
pub(super) fn write(
    path: &Path,
    prompts: &[Prompt],
    positions: &[Position],
    sync: bool,
) -> Result<(), OutputError> {
    let file = OutputFile::create(path)?;
    let mut offset = 0;
    let mut rest = positions;
    for (at, prompt) in prompts.iter().enumerate() {
        // Positions come in the order of their prompts.
        let (own, later) = rest.split_at(rest.iter().take_while(|position| position.prompt == at).count());
        rest = later;
        let line = line(at, prompt, own)?;
        file.write_at(offset, &line)?;
        offset += line.len() as u64;
    }
    Ok(file.commit(sync)?)
}

fn line(at: usize, prompt: &Prompt, positions: &[Position]) -> io::Result<Vec<u8>> {
    let mut nll = vec![Json::Null; prompt.tokens.len().saturating_sub(1)];
    for position in positions {
        if let Some(slot) = position.at.checked_sub(1).and_then(|at| nll.get_mut(at)) {
            *slot = json!(position.score.nll);
        }
    }
    let mut line = serde_json::to_vec(&json!({ "prompt": at, "tokens": prompt.tokens, "nll": nll }))?;
    writeln!(line)?;
    Ok(line)
}

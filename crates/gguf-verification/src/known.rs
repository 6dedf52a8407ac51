//! Baselines that are logit files: their text is scored, and the aspects that they cannot judge are recorded.

use crate::windows::{RowSelection, Scoring, Span, cut};
use crate::{Aspect, Check, Finding, LogitFile, Model, Prompt, PromptFile, Report, VerifyError};
use gguf_core::text::plural;
use gguf_format::Value;

/// Returns the text of a logit file and its scoring; records in the report what it cannot judge. `given` holds the
/// user's prompts, which should have the same text, and `files` their files.
pub(super) fn text(
    file: &LogitFile,
    model: &Model<'_>,
    given: &[Prompt],
    files: &[PromptFile],
    scoring: &Scoring,
    report: &mut Report,
) -> Result<(Vec<Prompt>, Scoring), VerifyError> {
    for aspect in [Aspect::Metadata, Aspect::Weights] {
        report.not_judged(aspect, "the baseline is a logit file", "`--baseline` with the model itself");
    }
    let scoring = Scoring {
        n_ctx: file.n_ctx(),
        n_chunks: scoring.n_chunks,
        stride: None,
        span: Span::SecondHalf,
        rows: RowSelection::Scored,
    };
    let own =
        Prompt { tokens: file.tokens().collect(), bos: start_of_text(model), score_from: 1, whole: false };
    if given.is_empty() {
        let reason = "the text comes from the logit file, as token ids";
        report.not_judged(Aspect::Tokenizer, reason, "`--prompts` with the same text");
    } else {
        report.extend(compare(given, files, &own, &scoring)?);
    }
    Ok((vec![own], scoring))
}

/// Returns the token that the model puts at the start of each chunk.
fn start_of_text(model: &Model<'_>) -> Option<u32> {
    if let Ok(encoder) = model.encoder {
        return encoder.start_of_text();
    }
    // Token ids need no known tokenizer.
    let get = |key: &str| model.metadata.get(&format!("tokenizer.ggml.{key}"));
    let id = get("bos_token_id").and_then(Value::as_u64)?;
    let adds = get("add_bos_token").and_then(Value::as_bool) == Some(true);
    u32::try_from(id).ok().filter(|_| adds)
}

/// Finds the first chunk of the prompts that differs from the file's.
fn compare(
    given: &[Prompt],
    files: &[PromptFile],
    own: &Prompt,
    scoring: &Scoring,
) -> Result<Option<Finding>, VerifyError> {
    let (given, own) =
        (cut(given, files, scoring)?.windows, cut(std::slice::from_ref(own), &[], scoring)?.windows);
    // Chunks after the file's were not run: the file may hold only the first chunks.
    for (at, (given, own)) in given.iter().zip(&own).enumerate() {
        let (a, b) = (&given.chunk.tokens, &own.chunk.tokens);
        if a != b {
            let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
            let show = |tokens: &[u32]| tokens.get(same).map_or("the end".to_owned(), u32::to_string);
            let message = format!(
                "prompts: token {same} of chunk {at} is {}, in the logit file {}: another text, or another tokenizer",
                show(a),
                show(b)
            );
            return Ok(Some(Finding::error(Check::TokenizerParity, message)));
        }
    }
    let (n_given, n_own) = (given.len(), own.len());
    let message = format!("the prompts have {}, the logit file {n_own}", plural(n_given as u64, "chunk"));
    Ok((n_given < n_own).then(|| Finding::error(Check::TokenizerParity, message)))
}

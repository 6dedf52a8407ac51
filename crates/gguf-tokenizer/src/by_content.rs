//! Selection of a mode by the contents of the tokenizer files, if none of a card's modes fits.
//!
//! Programs that save a tokenizer write only `tokenizer.json`, under a class name (`TokenizersBackend`,
//! `PreTrainedTokenizerFast`) that does not reveal its kind. The file itself does.

use super::files::Directory;
use super::hf_json::{HfJson, HfKind};
use super::{Mode, ModeRequest, TokenizerRequest};
use crate::Result;

/// Returns the modes that fit the existing files and that the request does not name.
pub(super) fn modes(
    directory: &Directory<'_>,
    hf: Option<&HfJson>,
    request: &TokenizerRequest,
) -> Result<Vec<ModeRequest>> {
    let is_asked = |mode: Mode| request.modes.iter().any(|asked| asked.mode == mode);
    // Some cards accept no files, or only those of Mistral's own format, on purpose.
    let is_apart = |asked: &ModeRequest| matches!(asked.mode, Mode::None | Mode::Mistral);
    if !request.modes.is_empty() && request.modes.iter().all(is_apart) {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    if let Some(kind) = hf.and_then(HfJson::kind) {
        let mode = of_kind(kind);
        let is_plain = mode == Mode::Bpe && is_asked(Mode::BpePlainAdded);
        let is_gemma4 = mode == Mode::LlamaHf && is_asked(Mode::Gemma4);
        if !is_asked(mode) && !is_plain && !is_gemma4 {
            found.push(of(mode, request));
        }
    }
    let reads_model = |mode: &ModeRequest| is_sentencepiece(mode.mode);
    if !request.modes.iter().any(reads_model) && directory.bytes(MODEL)?.is_some() {
        // This mode reads models of either kind.
        found.push(of(Mode::Unigram, request));
    }
    Ok(found)
}

/// Name of SentencePiece's model file.
const MODEL: &str = "tokenizer.model";

fn of_kind(kind: HfKind) -> Mode {
    match kind {
        HfKind::ByteLevel => Mode::Bpe,
        HfKind::ByteFallback => Mode::LlamaHf,
        HfKind::Unigram => Mode::Unigram,
        HfKind::WordPiece => Mode::WordPiece,
    }
}

fn is_sentencepiece(mode: Mode) -> bool {
    matches!(
        mode,
        Mode::Spm
            | Mode::SpmPhi3
            | Mode::SpmInternlm2
            | Mode::SpmInternlm3
            | Mode::SpmArctic
            | Mode::SpmChatglm1
            | Mode::SpmChatglm3
            | Mode::Unigram
            | Mode::Xlmr
    )
}

/// Creates a mode with the special tokens and keys of the card's mode that reads the same vocabulary from another file.
fn of(mode: Mode, request: &TokenizerRequest) -> ModeRequest {
    let is_same_vocabulary = |asked: &&ModeRequest| match mode {
        Mode::LlamaHf | Mode::Unigram => is_sentencepiece(asked.mode),
        Mode::Bpe => asked.mode == Mode::Tiktoken,
        _ => false,
    };
    let like = request.modes.iter().find(is_same_vocabulary);
    let (special, after) = like.map(|like| (like.special.clone(), like.after.clone())).unwrap_or_default();
    ModeRequest { special, after, ..ModeRequest::new(mode) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_core::limits::Limits;

    fn found(files: &[(&str, &str)], asked: &[Mode]) -> Vec<Mode> {
        let files: Vec<(String, Vec<u8>)> =
            files.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec())).collect();
        let directory = Directory::in_memory(std::path::Path::new("d"), Limits::default(), &files);
        let hf = HfJson::read(&directory).unwrap();
        let modes = modes(&directory, hf.as_ref(), &TokenizerRequest::of(asked)).unwrap();
        modes.into_iter().map(|mode| mode.mode).collect()
    }

    #[test]
    fn the_kind_is_that_of_the_file() {
        let fallback =
            r#"{"decoder": {"type": "Sequence"}, "model": {"type": "BPE", "byte_fallback": true}}"#;
        let of = |model: &str| found(&[("tokenizer.json", model)], &[Mode::SpmChatglm1]);
        assert_eq!(of(fallback), [Mode::LlamaHf]);
        assert_eq!(of(r#"{"model": {"type": "BPE"}}"#), [Mode::Bpe]);
        assert_eq!(of(r#"{"model": {"type": "Unigram", "vocab": [["a", 0]]}}"#), [Mode::Unigram]);
        assert_eq!(of(r#"{"model": {"type": "WordPiece"}}"#), [Mode::WordPiece]);
        assert_eq!(of(r#"{"model": {"type": "WordLevel"}}"#), []);
    }

    #[test]
    fn what_is_asked_for_is_not_tried_twice() {
        let bpe = [("tokenizer.json", r#"{"model": {"type": "BPE"}}"#)];
        assert_eq!(found(&bpe, &[Mode::Spm, Mode::Bpe]), []);
        assert_eq!(found(&bpe, &[Mode::BpePlainAdded]), []);
        assert_eq!(found(&bpe, &[Mode::None]), []);
        assert_eq!(found(&bpe, &[Mode::Mistral]), []);
        assert_eq!(found(&[("tokenizer.model", "")], &[Mode::Bpe]), [Mode::Unigram]);
        assert_eq!(found(&[("tokenizer.model", "")], &[Mode::Spm]), []);
    }
}

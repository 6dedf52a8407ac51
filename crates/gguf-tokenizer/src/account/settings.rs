//! Settings of a SentencePiece model that no key holds.

use gguf_core::text::escape;

use crate::TokenizerWarning;
use crate::sentencepiece::{ModelProto, Piece, PieceKind, UNIGRAM};

/// Returns warnings about the settings of a model that llama.cpp does not follow. `file` is the model's name.
pub(crate) fn settings(file: &'static str, model: &ModelProto) -> Vec<TokenizerWarning> {
    let normalizer = model.normalizer();
    let is_unigram = model.model_type() == UNIGRAM;
    let rules = escape(normalizer.name()).into_owned();
    let found = |piece: &&Piece| piece.piece_kind() == PieceKind::UserDefined;
    let whole = model.pieces.iter().filter(found).map(|piece| String::from_utf8_lossy(piece.piece()));
    // A run of blanks is merged from its parts.
    let whole: Vec<_> = whole.filter(|text| !text.trim_matches(['\u{2581}', ' ']).is_empty()).collect();
    let first = whole.first().map(|text| escape(text)).unwrap_or_default();
    let lost = [
        (
            !whole.is_empty(),
            "pieces.type",
            format!(
                "llama.cpp takes its {} user-defined pieces (`{first}`) for normal ones, which it may split in texts",
                whole.len()
            ),
        ),
        (
            !is_unigram && !normalizer.precompiled_charsmap().is_empty(),
            "normalizer_spec.precompiled_charsmap",
            format!(
                "llama.cpp does not replace characters by its rules, `{rules}`, in this kind of vocabulary"
            ),
        ),
        (
            !is_unigram && normalizer.remove_extra_whitespaces(),
            "normalizer_spec.remove_extra_whitespaces",
            "llama.cpp keeps repeated blanks and those at the ends of texts in this kind of vocabulary"
                .to_owned(),
        ),
        (
            !normalizer.escape_whitespaces(),
            "normalizer_spec.escape_whitespaces",
            "llama.cpp writes blanks as `▁`".to_owned(),
        ),
        (
            model.has_blank_suffixes(),
            "trainer_spec.treat_whitespace_as_suffix",
            "llama.cpp puts the blank in front of a text, not behind it".to_owned(),
        ),
        (
            is_unigram && model.falls_back_to_bytes(),
            "trainer_spec.byte_fallback",
            "llama.cpp writes the unknown token, not bytes, for unknown characters".to_owned(),
        ),
    ];
    let say = |(is_lost, member, effect): (bool, &str, String)| {
        is_lost.then(|| TokenizerWarning::ReadOtherwise { file, member: member.to_owned(), effect })
    };
    lost.into_iter().filter_map(say).collect()
}

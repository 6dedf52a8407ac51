//! BERT's WordPiece, from `tokenizer.json` or `vocab.txt`.

use crate::Result;
use serde_json::{Map, Value as Json, json};

use super::super::emit::{MAX_TOKENS, TokenList, TokenType};
use super::super::files::{CONFIG, Directory};
use super::super::hf_json::{FILE, HfJson, VocabTable};
use super::super::hf_vocab::HfVocabulary;
use super::super::{TokenizerError, pretokenizer};
use super::{Attempt, Context, bpe};

/// Name of the older file: one token per line, the line is the id.
const VOCAB: &str = "vocab.txt";
/// Prefix of tokens inside words in the files.
const INNER: &[u8] = b"##";

/// Writes the keys of a WordPiece vocabulary.
///
/// # Exactness
/// Equals `BertModel.set_vocab` of llama.cpp 0.5.0's converter. That stops if it knows no name for the pre-tokenizer
/// (for vocabularies other than BERT's own two). Here, the first of the names is written, because the runtime ignores
/// it.
pub(super) fn run(context: &mut Context<'_>) -> Result<Attempt> {
    let of_lines;
    let hf = match context.hf {
        Some(hf) => hf,
        None => match read_lines(&context.directory)? {
            Some(hf) => {
                of_lines = hf;
                &of_lines
            }
            None => return Ok(Attempt::Absent(format!("{FILE} or {VOCAB} is missing"))),
        },
    };
    if hf.model.kind.as_deref() != Some("WordPiece") {
        let kind = hf.model.kind.as_deref().unwrap_or("of an unnamed kind");
        return Ok(Attempt::Absent(format!("{FILE} is {kind}, not WordPiece")));
    }
    let vocabulary = HfVocabulary::new(&context.directory, hf, context.n_rows(), context.warnings)?;
    let mut tokens = bpe::list(context, hf, &vocabulary)?;
    let pre = match &context.request.pre {
        Some(name) => pretokenizer::accept(name)?,
        None => {
            let text = match context.directory.bytes(FILE)? {
                Some(text) => text,
                None => library_text(hf, &vocabulary).into_bytes(),
            };
            let found = pretokenizer::word_piece(&text)?;
            context.warnings.extend(found.warnings);
            found.name
        }
    };
    respell(&mut tokens);
    tokens.retype(context.request);
    let mut special = context.special(&tokens)?;
    if context.hf.is_some() && !has_bert_normalizer(&hf.normalizer) {
        // The runtime changes case and accents unless the keys declare the opposite.
        special.lowercase.get_or_insert(false);
        special.strip_accents.get_or_insert(false);
    }
    tokens.write("bert", &pre, context.out);
    special.write(context.out);
    Ok(Attempt::Done)
}

/// Returns true if a file has BERT's normalizer, whose flags are the keys.
fn has_bert_normalizer(normalizer: &Json) -> bool {
    let mut found = false;
    pretokenizer::flatten(normalizer, "normalizers", 0, &mut |step| {
        found |= step.get("type").and_then(Json::as_str) == Some("BertNormalizer");
    });
    found
}

/// Changes the spelling of tokens to the runtime's, which marks word-initial tokens, not those inside words.
pub(super) fn respell(tokens: &mut TokenList) {
    for (text, kind) in tokens.tokens.iter_mut().zip(&tokens.types) {
        if *kind == TokenType::Control {
            continue;
        }
        *text = match text.strip_prefix(INNER) {
            Some(inner) => inner.to_vec(),
            None => ["\u{2581}".as_bytes(), text].concat(),
        };
    }
}

/// Reads `vocab.txt` with the settings of its tokenizer's class, in the form of a `tokenizer.json`.
fn read_lines(directory: &Directory<'_>) -> Result<Option<HfJson>> {
    let Some(text) = directory.text(VOCAB)? else { return Ok(None) };
    let bad = |line, problem| TokenizerError::Line { path: directory.join(VOCAB), line, problem };
    let mut ids: Vec<(String, u64)> = Vec::new();
    let mut known = std::collections::HashMap::new();
    for (line, token) in (1..).zip(text.lines()) {
        let id = line as u64 - 1;
        if id >= MAX_TOKENS {
            return Err(bad(line, "more tokens than any vocabulary has"));
        }
        if known.insert(token, line).is_some() {
            return Err(bad(line, "the token is listed twice"));
        }
        ids.push((token.to_owned(), id));
    }
    if ids.is_empty() {
        return Err(bad(1, "no tokens"));
    }
    let config = directory.tree(CONFIG)?;
    let flag = |name: &str| config.get(name).and_then(Json::as_bool);
    let mut hf = HfJson {
        normalizer: json!({
            "type": "BertNormalizer",
            "clean_text": true,
            "handle_chinese_chars": flag("tokenize_chinese_chars").unwrap_or(true),
            "strip_accents": flag("strip_accents"),
            "lowercase": flag("do_lower_case").unwrap_or(true),
        }),
        pre_tokenizer: json!({"type": "BertPreTokenizer"}),
        decoder: json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
        ..HfJson::default()
    };
    hf.model.kind = Some("WordPiece".to_owned());
    hf.model.vocab = VocabTable::Ids(ids);
    Ok(Some(hf))
}

/// Returns the text of a `tokenizer.json` for a `vocab.txt`, with which the library encodes the check text.
fn library_text(hf: &HfJson, vocabulary: &HfVocabulary<'_>) -> String {
    let ids: Map<String, Json> =
        vocabulary.base.iter().map(|(text, id)| (text.clone(), Json::from(*id))).collect();
    let around: Vec<Json> = ["[CLS]", "", "[SEP]"]
        .iter()
        .map(|token| match *token {
            "" => json!({"Sequence": {"id": "A", "type_id": 0}}),
            token => json!({"SpecialToken": {"id": token, "type_id": 0}}),
        })
        .collect();
    let special: Map<String, Json> = ["[CLS]", "[SEP]"]
        .iter()
        .filter_map(|token| Some((token, vocabulary.id(token)?)))
        .map(|(token, id)| ((*token).to_owned(), json!({"id": token, "ids": [id], "tokens": [token]})))
        .collect();
    json!({
        "version": "1.0",
        "added_tokens": [],
        "normalizer": hf.normalizer,
        "pre_tokenizer": hf.pre_tokenizer,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": around,
            "pair": around,
            "special_tokens": special,
        },
        "decoder": hf.decoder,
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": ids,
        },
    })
    .to_string()
}

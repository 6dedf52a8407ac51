//! BERT's WordPiece, from `tokenizer.json` or `vocab.txt`.

use crate::Result;
use serde_json::{Map, Value as Json, json};

use super::super::emit::{MAX_TOKENS, TokenList, TokenType};
use super::super::files::CONFIG;
use super::super::hf_json::{AddedToken, FILE, HfJson, VocabTable};
use super::super::hf_vocab::{BERT, HfVocabulary, role_texts};
use super::super::{TokenizerError, TokenizerWarning, pretokenizer};
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
        None => match read_lines(context)? {
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
    let vocabulary =
        HfVocabulary::new(&context.directory, hf, context.n_places(), context.n_kept(), context.warnings)?;
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
    let mut special = context.special_of(&tokens, Some(hf))?;
    if context.hf.is_none() {
        for (role, text) in role_texts(&context.directory, &context.directory.tree(CONFIG)?, BERT)? {
            let Some(id) = tokens.id(&text) else { continue };
            special.set(role.trim_end_matches("_token"), id, context.warnings);
            // The runtime's names of the tokens around a text.
            match role {
                "cls_token" => special.set("bos", id, context.warnings),
                "sep_token" => special.set("eos", id, context.warnings),
                _ => {}
            }
        }
    }
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
fn read_lines(context: &mut Context<'_>) -> Result<Option<HfJson>> {
    const CHINESE: &str = "tokenize_chinese_chars";
    let directory = &context.directory;
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
    if flag(CHINESE) == Some(false) {
        context.warnings.push(TokenizerWarning::ReadOtherwise {
            file: CONFIG,
            member: CHINESE.to_owned(),
            effect: "llama.cpp splits Chinese characters".to_owned(),
        });
    }
    let roles = role_texts(directory, &config, BERT)?;
    let token = |(_, content): &(&str, String)| {
        let id = *known.get(content.as_str())? as u64 - 1;
        let content = content.clone();
        Some(AddedToken { id, content, special: true, normalized: Some(false), ..AddedToken::default() })
    };
    let mut added_tokens: Vec<AddedToken> = roles.iter().filter_map(token).collect();
    added_tokens.sort_by_key(|token| token.id);
    added_tokens.dedup();
    let mut hf = HfJson {
        post_processor: around(&roles, &added_tokens),
        added_tokens,
        normalizer: json!({
            "type": "BertNormalizer",
            "clean_text": true,
            "handle_chinese_chars": flag(CHINESE).unwrap_or(true),
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

/// Returns the step that puts the tokens of the class around a text.
fn around(roles: &[(&'static str, String)], added: &[AddedToken]) -> Json {
    let of = |role: &str| {
        let text = &roles.iter().find(|row| row.0 == role)?.1;
        added.iter().find(|token| token.content == *text)
    };
    let (Some(first), Some(last)) = (of("cls_token"), of("sep_token")) else { return Json::Null };
    let token = |token: &AddedToken| json!({"SpecialToken": {"id": token.content, "type_id": 0}});
    let text = |name: &str| json!({"Sequence": {"id": name, "type_id": 0}});
    let ids: Map<String, Json> = [first, last]
        .iter()
        .map(|token| {
            let content = &token.content;
            (content.clone(), json!({"id": content, "ids": [token.id], "tokens": [content]}))
        })
        .collect();
    json!({
        "type": "TemplateProcessing",
        "single": [token(first), text("A"), token(last)],
        "pair": [token(first), text("A"), token(last), text("B"), token(last)],
        "special_tokens": ids,
    })
}

/// Returns the text of a `tokenizer.json` for a `vocab.txt`, with which the library encodes the check text.
fn library_text(hf: &HfJson, vocabulary: &HfVocabulary<'_>) -> String {
    let ids: Map<String, Json> =
        vocabulary.base.iter().map(|(text, id)| (text.clone(), Json::from(*id))).collect();
    json!({
        "version": "1.0",
        "added_tokens": [],
        "normalizer": hf.normalizer,
        "pre_tokenizer": hf.pre_tokenizer,
        "post_processor": hf.post_processor,
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

//! Vocabulary of a FastLLM file. The file does not declare its kind; the names of the model family and the tokens show
//! it.

use std::collections::HashSet;

use serde_json::{Map, Value as Json, json};

use gguf_checkpoint::fastllm::FlmHeader;
use gguf_tokenizer::{GivenKind, GivenToken, GivenVocabulary};

/// End tokens that the exporter writes as fixed ids, regardless of the tokenizer: model type, id, text.
const FIXED_END: [(&str, u64, &str); 3] =
    [("qwen2", 151_645, "<|im_end|>"), ("internlm2", 92_542, "<|im_end|>"), ("internlm", 103_028, "<eoa>")];

/// Tokens that ChatGLM 2 and 3 have after their pieces, in order of their ids; the last four in ChatGLM 3 only.
const CHATGLM: [&str; 9] = [
    "[MASK]",
    "[gMASK]",
    "[sMASK]",
    "sop",
    "eop",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
];
const CHATGLM2: usize = 5;

/// Collects the vocabulary; `None` if the file has none. In `config`, replaces an end token id that the exporter wrote
/// as a fixed number and that differs from the vocabulary's.
pub(super) fn given(
    header: &FlmHeader,
    config: &mut Map<String, Json>,
    warnings: &mut Vec<String>,
) -> Option<GivenVocabulary> {
    let serialized = serialized(header, warnings);
    if header.tokens.is_empty() && serialized.is_none() {
        return None;
    }
    put_end_right(header, config, warnings);
    let kind = kind(header);
    let family = header.get("model_type").unwrap_or_default();
    let is_chatglm = family == "chatglm" && kind == GivenKind::Pieces;
    let mut appended = Vec::new();
    if is_chatglm {
        let says_third = |key: &str, part: &str| header.get(key).is_some_and(|text| text.contains(part));
        let is_third = says_third("_name_or_path", "chatglm3")
            || says_third("user_role", "<|user|>")
            || says_third("user_role", "<FLM_FIX_TOKEN_64795>");
        let n = if is_third { CHATGLM.len() } else { CHATGLM2 };
        appended = CHATGLM[..n].iter().map(|&text| text.to_owned()).collect();
    }
    let mut files = vec![("config.json".to_owned(), Json::Object(config.clone()).to_string().into_bytes())];
    if let Some(template) = header.get("chat_template").filter(|text| !text.is_empty()) {
        let tokenizer_config = json!({ "chat_template": template }).to_string();
        files.push(("tokenizer_config.json".to_owned(), tokenizer_config.into_bytes()));
    }
    files.extend(serialized.map(|model| ("tokenizer.model".to_owned(), model)));
    let token = |token: &gguf_checkpoint::fastllm::FlmToken| GivenToken {
        text: token.text.clone(),
        id: u64::from(token.id),
        score: token.score,
    };
    Some(GivenVocabulary {
        kind,
        tokens: header.tokens.iter().map(token).collect(),
        special: header.special.clone(),
        appended,
        add_space_prefix: header.flag("tokenizer_add_dummy_prefix"),
        remove_extra_whitespaces: header.flag("tokenizer_remove_extra_whitespaces"),
        pre: pre(header, kind, family).map(str::to_owned),
        files,
    })
}

/// Decodes `tokenizer_serialized`, a SentencePiece model in hexadecimal.
fn serialized(header: &FlmHeader, warnings: &mut Vec<String>) -> Option<Vec<u8>> {
    let text = header.get("tokenizer_serialized").filter(|text| !text.is_empty())?;
    let pairs = text.as_bytes().chunks(2).map(|pair| {
        let digit = |at: usize| char::from(*pair.get(at)?).to_digit(16);
        u8::try_from(digit(0)? * 16 + digit(1)?).ok()
    });
    let bytes = pairs.collect::<Option<Vec<u8>>>();
    if bytes.is_none() {
        warnings.push("`tokenizer_serialized` is not hexadecimal, the file's own tokens are used".to_owned());
    }
    bytes
}

fn kind(header: &FlmHeader) -> GivenKind {
    let class = header.get("tokenizer_class").unwrap_or_default();
    match header.get("model_type").unwrap_or_default() {
        _ if header.flag("tokenizer_byte_as_char") == Some(true) => GivenKind::Letters,
        "qwen" => GivenKind::Bytes,
        "chatglm" if matches!(class, "ChatGLM4Tokenizer" | "GLM4Tokenizer") => GivenKind::Bytes,
        "bert" => GivenKind::WordPiece,
        _ if has_first_chatglm(header) => GivenKind::Unigram,
        _ => by_tokens(header),
    }
}

/// Returns true for the tensor names of ChatGLM-6B, the first generation.
fn has_first_chatglm(header: &FlmHeader) -> bool {
    header.tensors.iter().any(|tensor| tensor.name.ends_with("transformer.word_embeddings.weight"))
}

/// Determines the kind from the tokens. A byte-level vocabulary has a token for each of the 256 bytes, as letters or
/// raw; SentencePiece spells them `<0xNN>` or has none.
fn by_tokens(header: &FlmHeader) -> GivenKind {
    let has_pieces = header.tokens.iter().any(|token| {
        token.text.starts_with(b"<0x") || token.text.windows(3).any(|part| part == "\u{2581}".as_bytes())
    });
    let mut bytes = HashSet::new();
    let mut letters = HashSet::new();
    for token in &header.tokens {
        if let [byte] = token.text.as_slice() {
            bytes.insert(*byte);
        }
        let mut chars = std::str::from_utf8(&token.text).unwrap_or_default().chars();
        if let (Some(letter), None) = (chars.next(), chars.next())
            && (letter as u32) < 0x144
            && !letter.is_control()
            && !matches!(letter, ' ' | '\u{a0}' | '\u{ad}')
        {
            letters.insert(letter);
        }
    }
    match (has_pieces, letters.len(), bytes.len()) {
        (false, 256, _) => GivenKind::Letters,
        (false, _, 256) => GivenKind::Bytes,
        _ => GivenKind::Pieces,
    }
}

/// Returns the pre-tokenizer that all models of a family share.
fn pre(header: &FlmHeader, kind: GivenKind, family: &str) -> Option<&'static str> {
    let is_llama3 =
        || header.tokens.iter().any(|token| token.text == b"<|begin_of_text|>" && token.id == 128_000);
    match kind {
        GivenKind::Pieces if family == "chatglm" => Some("chatglm-spm"),
        GivenKind::Letters | GivenKind::Bytes => match family {
            "qwen" | "qwen2" | "qwen2_moe" | "qwen3" | "qwen3_moe" => Some("qwen2"),
            "chatglm" => Some("chatglm-bpe"),
            "llama" if is_llama3() => Some("llama-bpe"),
            _ => None,
        },
        _ => None,
    }
}

fn put_end_right(header: &FlmHeader, config: &mut Map<String, Json>, warnings: &mut Vec<String>) {
    let family = header.get("model_type").unwrap_or_default();
    let Some((_, id, text)) = FIXED_END.iter().find(|row| row.0 == family) else { return };
    let is_fixed = config.get("eos_token_id").and_then(Json::as_u64) == Some(*id);
    if !is_fixed || header.tokens.iter().any(|token| u64::from(token.id) == *id) {
        return;
    }
    if let Some(token) = header.tokens.iter().find(|token| token.text == text.as_bytes()) {
        warnings.push(format!(
            "the exporter writes end token {id} whatever the vocabulary; `{text}` is token {} here",
            token.id
        ));
        config.insert("eos_token_id".to_owned(), token.id.into());
    }
}

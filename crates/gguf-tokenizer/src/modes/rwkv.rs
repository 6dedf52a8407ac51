//! RWKV's world vocabulary: one token per line, as id, Python literal and length.

use super::super::chat_template::ChatTemplates;
use super::super::emit::{MAX_TOKENS, TokenList, TokenType, n_tokens};
use super::super::special::SpecialTokens;
use super::super::{TokenizerError, python_literal};
use super::{Attempt, Context};
use crate::Result;
use gguf_format::Template;

const FILE: &str = "rwkv_vocab_v20230424.txt";
/// Id of the token that ends a turn: two line feeds.
const END_OF_TURN: u64 = 261;
/// Default number of rows of the embedding.
const DEFAULT_SIZE: u64 = 65_536;
/// llama.cpp's name of the chat format, which the converter writes if its template file is missing.
const TEMPLATE: &str = "rwkv-world";

/// Writes the keys.
///
/// # Exactness
/// Equals `_set_vocab_rwkv_world` of llama.cpp 0.5.0's converter, except for the chat template that is a file of the
/// converter: its fallback, the name, is written instead.
pub(super) fn run(context: &mut Context<'_>) -> Result<Attempt> {
    let name = context.mode.files.first().map_or(FILE, String::as_str);
    let Some(text) = context.directory.text(name)? else {
        return Ok(Attempt::Absent(format!("{name} is missing")));
    };
    let path = context.directory.join(name);
    let mut tokens = TokenList::default();
    tokens.push("<s>", 0.0, TokenType::Control);
    for (line, text) in (1..).zip(text.lines()) {
        let bad = |problem| TokenizerError::Line { path: path.clone(), line, problem };
        let (id, token) = token(text).map_err(bad)?;
        if id != tokens.len() {
            return Err(bad("the numbers are not in order"));
        }
        if id >= MAX_TOKENS {
            return Err(bad("more tokens than any vocabulary has"));
        }
        tokens.push(python_literal::written(&token), 0.0, TokenType::Normal);
    }
    let size = n_tokens(context.request, DEFAULT_SIZE);
    if tokens.len() > size {
        let id = tokens.len() - 1;
        let token = tokens.tokens.last().map(|text| String::from_utf8_lossy(text).into_owned());
        let token = token.unwrap_or_default();
        return Err(TokenizerError::IdBeyondVocabulary { path, key: "line", token, id, size });
    }
    tokens.pad(&path, size, None)?;
    tokens.retype(context.request);
    let mut special = context.special(&tokens)?;
    special.set("eot", END_OF_TURN, context.warnings);
    special.force("bos", 0);
    special.force("eos", 0);
    add_template(context, &mut special);
    tokens.write_model("rwkv", context.out);
    special.write(context.out);
    Ok(Attempt::Done)
}

fn add_template(context: &Context<'_>, special: &mut SpecialTokens) {
    if special.chat == ChatTemplates::None && context.request.template == Template::Files {
        special.chat = ChatTemplates::One(TEMPLATE.to_owned());
    }
}

/// Parses the id and the token of a line.
fn token(line: &str) -> Result<(u64, Vec<u8>), &'static str> {
    let (id, rest) = line.split_once(' ').ok_or("a line has a number, a token and a length")?;
    let (literal, length) = rest.rsplit_once(' ').ok_or("a line has a number, a token and a length")?;
    let id = id.parse().map_err(|_| "the first part is not a number")?;
    let length: usize = length.trim().parse().map_err(|_| "the last part is not a length")?;
    let token = python_literal::bytes(literal).ok_or("the token is not a Python string")?;
    if token.len() != length {
        return Err("the token has another length than the line declares");
    }
    Ok((id, token))
}

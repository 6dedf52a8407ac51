//! The `[tokenizer]` table of a card.

use toml::Value as Toml;

use super::{CardTable, Read, choice, key_rows, kind};
use crate::error::CardProblem;
use crate::read::schema::{MetadataRow, TokenizerFrom, TokenizerMode, TokenizerSpec};
use gguf_format::{FILE_ROLES, Mode, RankCode, SpecialToken, Template};

pub(super) const TOKENIZER_KEYS: &[&str] = &[
    "try",
    "from",
    "size",
    "pad_multiple",
    "token_type_count",
    "special",
    "force",
    "last",
    "types",
    "control",
    "user_defined",
    "specials_list",
    "template",
    "before",
    "after",
];

pub(super) const MODE_KEYS: &[&str] = &["mode", "when", "files", "special", "specials_list", "after"];

/// Roles of special tokens that have a GGUF key.
const KEY_ROLES: &[&str] = &["bos", "eos", "unk", "sep", "pad", "mask", "eot", "eom"];

pub(super) fn tokenizer(value: &Toml) -> Read<TokenizerSpec> {
    let at = "[tokenizer]";
    let fields = CardTable::new(value, at, TOKENIZER_KEYS)?;
    let spec = TokenizerSpec {
        modes: fields.list("try")?.iter().map(mode).collect::<Read<_>>()?,
        from: from(&fields)?,
        size: fields.expr("size")?,
        pad_multiple: pad_multiple(&fields)?,
        token_type_count: fields.expr("token_type_count")?,
        special: special(&fields, "special")?,
        force: special(&fields, "force")?,
        last: special(&fields, "last")?,
        types: roles(&fields)?,
        control: fields.texts("control")?,
        user_defined: fields.texts("user_defined")?,
        rank_code: rank_code(&fields)?,
        template: template(&fields)?,
        before: rows(&fields, "before")?,
        after: rows(&fields, "after")?,
    };
    check_rank_codes(&spec)?;
    Ok(spec)
}

/// Reads `from`, the source of the tokenizer files.
fn from(fields: &CardTable<'_>) -> Read<Option<TokenizerFrom>> {
    let known = [("target", TokenizerFrom::Target), ("target_card", TokenizerFrom::TargetCard)];
    fields.text("from")?.map(|word| choice(&fields.at("from"), "choice", &word, &known)).transpose()
}

fn mode(value: &Toml) -> Read<TokenizerMode> {
    let at = "[tokenizer] `try`";
    if let Toml::String(name) = value {
        let (files, special, after) = (Vec::new(), Vec::new(), Vec::new());
        return Ok(TokenizerMode {
            mode: mode_of(name)?,
            when: None,
            files,
            special,
            rank_code: None,
            after,
        });
    }
    let fields = CardTable::new(value, at, MODE_KEYS)?;
    let name = fields.text("mode")?.ok_or(CardProblem::MissingKey { at: at.to_owned(), key: "mode" })?;
    let mode = mode_of(&name)?;
    let files = fields.texts("files")?;
    if !files.is_empty() && !mode.takes_files() {
        return Err(without_effect(
            &fields,
            "files",
            "modes that read one file under a fixed name take none",
        ));
    }
    let rank_code = rank_code(&fields)?;
    if rank_code.is_some() && !mode.takes_rank_code() {
        return Err(without_effect(&fields, "specials_list", "only vocabularies of ranks have one"));
    }
    Ok(TokenizerMode {
        mode,
        when: fields.expr("when")?,
        files,
        special: special(&fields, "special")?,
        rank_code,
        after: rows(&fields, "after")?,
    })
}

fn mode_of(name: &str) -> Read<Mode> {
    let known: Vec<(&str, Mode)> = Mode::ALL.iter().map(|mode| (mode.name(), *mode)).collect();
    choice("[tokenizer] `try`", "mode", name, &known)
}

fn pad_multiple(fields: &CardTable<'_>) -> Read<Option<u64>> {
    let Some(value) = fields.table.get("pad_multiple") else { return Ok(None) };
    let multiple = value.as_integer().and_then(|n| u64::try_from(n).ok()).filter(|&n| n > 0);
    multiple.map(Some).ok_or_else(|| kind(&fields.at("pad_multiple"), "a positive integer", value))
}

fn special(fields: &CardTable<'_>, key: &str) -> Read<Vec<(String, SpecialToken)>> {
    let Some(table) = fields.table(key)? else { return Ok(Vec::new()) };
    let at = fields.at(key);
    let roles = CardTable::of(table, &at, KEY_ROLES)?;
    let token = |(role, value): (&String, &Toml)| {
        let token = match value {
            Toml::String(text) => SpecialToken::Text(text.clone()),
            Toml::Integer(id) => {
                SpecialToken::Id(u32::try_from(*id).map_err(|_| kind(&at, "a token number", value))?)
            }
            other => return Err(kind(&at, "a token or its number", other)),
        };
        Ok((role.clone(), token))
    };
    roles.table.iter().map(token).collect()
}

/// Reads the roles in `types`. Only known roles are accepted, since a misspelt one would have no effect.
fn roles(fields: &CardTable<'_>) -> Read<Option<Vec<String>>> {
    if !fields.table.contains_key("types") {
        return Ok(None);
    }
    let known: Vec<(&str, &str)> = FILE_ROLES.iter().map(|role| (*role, *role)).collect();
    let role = |name: &String| choice(&fields.at("types"), "role", name, &known).map(str::to_owned);
    fields.texts("types")?.iter().map(role).collect::<Read<_>>().map(Some)
}

fn rank_code(fields: &CardTable<'_>) -> Read<Option<RankCode>> {
    let Some(name) = fields.text("specials_list")? else { return Ok(None) };
    let known: Vec<(&str, RankCode)> = RankCode::ALL.iter().map(|code| (code.name(), *code)).collect();
    choice(&fields.at("specials_list"), "list", &name, &known).map(Some)
}

/// Refuses a `specials_list` that no mode uses, and a vocabulary of ranks without one.
fn check_rank_codes(spec: &TokenizerSpec) -> Read<()> {
    let at = || "[tokenizer]".to_owned();
    if spec.rank_code.is_some() && !spec.modes.iter().any(|mode| mode.mode.takes_rank_code()) {
        let why = "only vocabularies of ranks have one";
        return Err(CardProblem::WithoutEffect { at: at(), key: "specials_list", why });
    }
    let lacks = |mode: &TokenizerMode| mode.mode == Mode::Tiktoken && mode.rank_code.is_none();
    if spec.rank_code.is_none() && spec.modes.iter().any(lacks) {
        return Err(CardProblem::MissingKey { at: at(), key: "specials_list" });
    }
    Ok(())
}

fn template(fields: &CardTable<'_>) -> Read<Template> {
    match fields.text("template")?.as_deref() {
        None | Some("file") => Ok(Template::Files),
        Some("none") => Ok(Template::None),
        Some(name) => Err(CardProblem::NotBuilt {
            at: fields.at.clone(),
            what: "template",
            word: name.to_owned(),
            instead: "`template` is `file` or `none`, and `--chat-template FILE` takes one from a file",
        }),
    }
}

/// Reads rows before or after the vocabulary; `["include", "base"]` is not allowed.
fn rows(fields: &CardTable<'_>, key: &str) -> Read<Vec<MetadataRow>> {
    key_rows(fields, key)
}

fn without_effect(fields: &CardTable<'_>, key: &'static str, why: &'static str) -> CardProblem {
    CardProblem::WithoutEffect { at: fields.at.clone(), key, why }
}

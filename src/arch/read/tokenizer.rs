//! The `[tokenizer]` table of a card.

use toml::Value as Toml;

use super::{Fields, Read, choice, kind, rows};
use crate::arch::error::CardProblem;
use crate::arch::schema::{SpecialToken, TOKENIZER_MODES, TokenizerMode, TokenizerSpec};

fn special(fields: &Fields<'_>, key: &str) -> Read<Vec<(String, SpecialToken)>> {
    const ROLES: &[&str] = &["bos", "eos", "unk", "sep", "pad", "mask", "eot", "eom"];
    let Some(table) = fields.table(key)? else { return Ok(Vec::new()) };
    let at = fields.at(key);
    let roles = Fields::of(table, &at, ROLES)?;
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

pub(super) fn tokenizer(value: &Toml) -> Read<TokenizerSpec> {
    let at = "[tokenizer]";
    let known = [
        "try",
        "size",
        "pad_multiple",
        "token_type_count",
        "special",
        "force",
        "types",
        "control",
        "user_defined",
        "specials_list",
        "template",
        "from",
        "before",
        "after",
    ];
    let fields = Fields::new(value, at, &known)?;
    let pad_multiple = match value.get("pad_multiple") {
        None => None,
        Some(n) => {
            let n = n.as_integer().and_then(|n| u64::try_from(n).ok()).filter(|&n| n > 0);
            Some(n.ok_or_else(|| kind(&fields.at("pad_multiple"), "a positive integer", value))?)
        }
    };
    let from = fields.text("from")?;
    let from_target = from.map_or(Ok(false), |from| choice(at, "origin", &from, &[("target", true)]))?;
    Ok(TokenizerSpec {
        modes: fields.list("try")?.iter().map(mode).collect::<Read<_>>()?,
        size: fields.expr("size")?,
        pad_multiple,
        token_type_count: fields.expr("token_type_count")?,
        special: special(&fields, "special")?,
        force: special(&fields, "force")?,
        types: if fields.table.contains_key("types") { Some(fields.texts("types")?) } else { None },
        control: fields.texts("control")?,
        user_defined: fields.texts("user_defined")?,
        specials_list: fields.text("specials_list")?,
        template: fields.text("template")?,
        from_target,
        before: rows(&fields, "before")?,
        after: rows(&fields, "after")?,
    })
}

fn mode(value: &Toml) -> Read<TokenizerMode> {
    let at = "[tokenizer] `try`";
    let known: Vec<(&str, ())> = TOKENIZER_MODES.iter().map(|mode| (*mode, ())).collect();
    let mode = match value {
        Toml::String(mode) => TokenizerMode { mode: mode.clone(), ..TokenizerMode::default() },
        other => {
            let fields =
                Fields::new(other, at, &["mode", "when", "files", "special", "after", "specials_list"])?;
            TokenizerMode {
                mode: fields
                    .text("mode")?
                    .ok_or(CardProblem::MissingKey { at: at.to_owned(), key: "mode" })?,
                when: fields.expr("when")?,
                files: fields.texts("files")?,
                special: special(&fields, "special")?,
                after: rows(&fields, "after")?,
            }
        }
    };
    choice(at, "mode", &mode.mode, &known)?;
    Ok(mode)
}

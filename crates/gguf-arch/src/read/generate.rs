//! The `generate` list of a card: tensors without a source.

use toml::Value as Toml;

use super::{CardTable, Read, choice, expr, kind, pattern};
use crate::error::CardProblem;
use crate::language::expr::Expr;
use crate::language::names::Stars;
use crate::read::schema::{Fill, Generate, GenerateKind, Llama3Rope};

/// Keys that every kind has.
const COMMON: [&str; 3] = ["kind", "to", "when"];

/// Keys of all kinds together.
#[cfg(test)]
pub(super) const GENERATE_KEYS: &[&str] = &[
    "kind", "to", "when", "dim", "theta", "factor", "low", "high", "ctx", "pad_to", "fraction", "values",
    "shape", "value", "before",
];

#[derive(Clone, Copy)]
enum GenerateTag {
    Llama3,
    Proportional,
    Factors,
    Sinusoids,
    Fill,
}

impl GenerateTag {
    const ALL: [(&'static str, Self); 5] = [
        ("rope_freqs_llama3", Self::Llama3),
        ("rope_freqs_proportional", Self::Proportional),
        ("rope_factors", Self::Factors),
        ("sinusoids", Self::Sinusoids),
        ("fill", Self::Fill),
    ];

    fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Llama3 => &["dim", "theta", "factor", "low", "high", "ctx", "pad_to"],
            Self::Proportional => &["dim", "fraction"],
            Self::Factors => &["values"],
            Self::Sinusoids => &["length", "width"],
            Self::Fill => &["shape", "value", "before"],
        }
    }
}

pub(super) fn generate(item: &Toml) -> Read<Generate> {
    let at = "`generate`";
    let table = item.as_table().ok_or_else(|| kind(at, "a table", item))?;
    let missing = |key| CardProblem::MissingKey { at: at.to_owned(), key };
    let name = table.get("kind").and_then(Toml::as_str).ok_or(missing("kind"))?;
    let kind = choice(at, "kind", name, &GenerateTag::ALL)?;
    let known: Vec<&str> = COMMON.iter().chain(kind.keys()).copied().collect();
    let fields = CardTable::of(table, at, &known)?;
    let needed = |key: &'static str| fields.expr(key)?.ok_or(missing(key));
    let rule = match kind {
        GenerateTag::Llama3 => GenerateKind::RopeFreqsLlama3(Box::new(Llama3Rope {
            dim: needed("dim")?,
            theta: fields.expr("theta")?,
            factor: number(&fields, "factor", 8.0)?,
            low: number(&fields, "low", 1.0)?,
            high: number(&fields, "high", 4.0)?,
            context: number(&fields, "ctx", 8192.0)?,
            pad_to: fields.expr("pad_to")?,
        })),
        GenerateTag::Proportional => {
            GenerateKind::RopeFreqsProportional { dim: needed("dim")?, fraction: needed("fraction")? }
        }
        GenerateTag::Sinusoids => {
            GenerateKind::Sinusoids { length: needed("length")?, width: needed("width")? }
        }
        GenerateTag::Factors => GenerateKind::RopeFactors { values: needed("values")? },
        GenerateTag::Fill => {
            let before = fields.text("before")?;
            GenerateKind::Fill(Fill {
                shape: shape(&fields)?,
                value: needed("value")?,
                before: before.map(|name| pattern(&name, at, Stars::Refused)).transpose()?,
            })
        }
    };
    let to = pattern(&fields.text("to")?.ok_or(missing("to"))?, at, Stars::Refused)?;
    let known = |placeholder| match &rule {
        GenerateKind::Fill(Fill { before: Some(before), .. }) => before.has(placeholder),
        _ => false,
    };
    if let Some(placeholder) = to.placeholders().find(|&placeholder| !known(placeholder)) {
        return Err(CardProblem::Placeholder {
            at: at.to_owned(),
            placeholder: placeholder.name(),
            problem: "has no value in a generated tensor",
        });
    }
    Ok(Generate { kind: rule, to, when: fields.expr("when")? })
}

fn shape(fields: &CardTable<'_>) -> Read<Vec<Expr>> {
    let dims: Vec<Expr> =
        fields.list("shape")?.iter().map(|dim| expr(dim, &fields.at("shape"))).collect::<Read<_>>()?;
    if dims.is_empty() {
        return Err(CardProblem::MissingKey { at: fields.at.clone(), key: "shape" });
    }
    Ok(dims)
}

fn number(fields: &CardTable<'_>, key: &str, default: f64) -> Read<f64> {
    match fields.table.get(key) {
        None => Ok(default),
        Some(Toml::Float(number)) => Ok(*number),
        Some(Toml::Integer(number)) => Ok(*number as f64),
        Some(other) => Err(kind(&fields.at(key), "a number", other)),
    }
}

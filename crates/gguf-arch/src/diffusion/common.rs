//! Rules that image and video models share (`converters/diffusion/base.toml`).

use crate::Result;
use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, de};

use super::setting::Setting;
use crate::error::{ArchError, CardProblem};
use gguf_core::GgmlType;
use gguf_format::FileType;

/// Value of `kind` in these cards.
pub(super) const KIND: &str = "diffusion";

/// Rules that all image and video models share.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommonRules {
    schema: u32,
    kind: String,
    prefixes: Vec<String>,
    prefixes_of_all: Vec<String>,
    /// Starts of the names of other models beside one without a prefix.
    others: Vec<String>,
    /// Names, and starts of names, that runtimes read beside the prefixed ones: they belong to the diffusion model.
    markers: Vec<String>,
    /// Most values of a tensor that stays F32 because it is small.
    pub(crate) small_elems: u64,
    /// Parts of names of weights that are never quantized.
    pub never: Vec<String>,
    classes: Classes,
    types: BTreeMap<String, ClassTypes>,
    unknown: UnknownModels,
    /// Settings of several architectures.
    #[serde(default)]
    pub(super) settings: Vec<Setting>,
    pub(super) refused: Vec<RefusedFile>,
}

/// Lists of parts of names, by class.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Classes {
    values: Vec<Vec<String>>,
    qkv: Vec<Vec<String>>,
    down: Vec<Vec<String>>,
}

/// Class of a weight, as far as it matters for its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Value projection.
    Values,
    /// Joined projection of queries, keys and values.
    Qkv,
    /// Second matrix of a feed-forward network.
    Down,
    /// Any other weight.
    Other,
}

/// Types of the classes of weights under one file type.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassTypes {
    base: TypeName,
    values: Option<TypeName>,
    qkv: Option<TypeName>,
    down: Option<TypeName>,
    first_values: Option<TypeName>,
    #[serde(default)]
    n_first: usize,
}

impl ClassTypes {
    /// Type of a weight; `n_before` is the number of value projections before it.
    pub fn of(&self, class: Class, n_before: usize) -> GgmlType {
        let first = self.first_values.filter(|_| n_before < self.n_first);
        let own = match class {
            Class::Values => first.or(self.values),
            Class::Qkv => self.qkv,
            Class::Down => self.down,
            Class::Other => None,
        };
        own.unwrap_or(self.base).0
    }
}

/// Rules for models that no card knows.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct UnknownModels {
    /// Components of names before the number of a block.
    blocks: Vec<String>,
    keep: Vec<String>,
}

/// File that is no image or video model, or one in a form that is not read.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RefusedFile {
    pub(super) what: String,
    pub(super) way_out: String,
    #[serde(default)]
    pub(super) always: bool,
    #[serde(default)]
    parts: Vec<String>,
    /// Ends of names.
    #[serde(default)]
    ends: Vec<String>,
    #[serde(default)]
    names: Vec<String>,
    /// Starts of names, with one of which every name begins.
    #[serde(default)]
    starts: Vec<String>,
}

impl RefusedFile {
    /// Returns true if the names show such a file.
    pub(super) fn matches(&self, names: &[&str]) -> bool {
        let has_end = |end: &String| names.iter().any(|name| name.ends_with(end.as_str()));
        let has_part = |part: &String| names.iter().any(|name| name.contains(part.as_str()));
        let has = |name: &String| names.contains(&name.as_str());
        let begins = |name: &&str| self.starts.iter().any(|start| name.starts_with(start.as_str()));
        let is_of_starts = !self.starts.is_empty() && names.iter().all(begins);
        is_of_starts
            || self.parts.iter().any(has_part)
            || self.ends.iter().any(has_end)
            || (!self.names.is_empty() && self.names.iter().all(has))
    }
}

/// Name of a block type in a card.
#[derive(Clone, Copy, Debug)]
pub(super) struct TypeName(pub(super) GgmlType);

impl<'de> Deserialize<'de> for TypeName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = TypeName;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a block type")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<TypeName, E> {
                let unknown = || E::invalid_value(de::Unexpected::Str(name), &self);
                GgmlType::from_name(name).map(TypeName).ok_or_else(unknown)
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

/// Prefix of the diffusion model's tensors in a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamePrefix<'a> {
    text: Option<&'a str>,
    markers: &'a [String],
    others: &'a [String],
}

impl<'a> NamePrefix<'a> {
    /// Text of the prefix, if there is one.
    pub fn text(&self) -> Option<&'a str> {
        self.text
    }

    /// Returns the name without the prefix; `None` if the tensor belongs to another model of the checkpoint.
    pub fn strip(&self, name: &str) -> Option<String> {
        match self.text {
            // ref: removed wherever it occurs
            Some(prefix) if name.contains(prefix) => Some(name.replace(prefix, "")),
            Some(_) if !self.is_marker(name) => None,
            None if self.others.iter().any(|other| name.starts_with(other.as_str())) => None,
            _ => Some(name.to_owned()),
        }
    }

    fn is_marker(&self, name: &str) -> bool {
        self.markers
            .iter()
            .any(|marker| name == marker || marker.ends_with('.') && name.starts_with(marker.as_str()))
    }
}

impl CommonRules {
    /// Returns the first part of a name that has no prefix (any longer); `None` for names of one part.
    pub fn module_of<'n>(&self, name: &'n str) -> Option<&'n str> {
        let mut prefixes = self.prefixes.iter().chain(&self.prefixes_of_all);
        let bare = prefixes.find_map(|prefix| name.strip_prefix(prefix.as_str())).unwrap_or(name);
        bare.split_once('.').map(|(module, _)| module)
    }

    pub(super) fn parse(text: &str) -> Result<Self> {
        let wrong = |problem| ArchError::Card { card: "base".to_owned(), problem: Box::new(problem) };
        let rules: Self =
            toml::from_str(text).map_err(|error| wrong(CardProblem::Toml(error.message().to_owned())))?;
        let other =
            |at: &str, expected, found| wrong(CardProblem::Kind { at: at.to_owned(), expected, found });
        if rules.schema != 1 || rules.kind != KIND {
            return Err(other("`kind`", "`diffusion` of schema 1", format!("`{}`", rules.kind)));
        }
        if let Some(name) = rules.types.keys().find(|name| FileType::parse(name).is_none()) {
            return Err(other("[types]", "file types", format!("`{name}`")));
        }
        Ok(rules)
    }

    /// Returns the prefix of the diffusion model's tensors.
    ///
    /// # Exactness
    /// ref: a prefix counts if any name begins with it, except for `net.`, with which all names must begin.
    pub fn prefix(&self, names: &[&str]) -> NamePrefix<'_> {
        let any =
            self.prefixes.iter().find(|prefix| names.iter().any(|name| name.starts_with(prefix.as_str())));
        let all = || {
            let is_prefix = |prefix: &&String| {
                !names.is_empty() && names.iter().all(|name| name.starts_with(prefix.as_str()))
            };
            self.prefixes_of_all.iter().find(is_prefix)
        };
        self.with_prefix(any.or_else(all).map(String::as_str))
    }

    pub(super) fn with_prefix<'a>(&'a self, text: Option<&'a str>) -> NamePrefix<'a> {
        NamePrefix { text, markers: &self.markers, others: &self.others }
    }

    /// Class of a weight.
    pub fn class_of(&self, name: &str) -> Class {
        let rows = [
            (&self.classes.values, Class::Values),
            (&self.classes.qkv, Class::Qkv),
            (&self.classes.down, Class::Down),
        ];
        let matches = |lists: &Vec<Vec<String>>| {
            lists.iter().any(|parts| parts.iter().all(|part| name.contains(part.as_str())))
        };
        rows.into_iter().find(|(lists, _)| matches(lists)).map_or(Class::Other, |(_, class)| class)
    }

    /// Types of the classes under a file type; `None` if the type is not written for these models.
    pub fn types(&self, file_type: FileType) -> Option<&ClassTypes> {
        self.types.get(&file_type.name().to_ascii_lowercase())
    }

    /// Names of the file types that are written, in lower case.
    pub fn type_names(&self) -> impl Iterator<Item = &str> {
        self.types.keys().map(String::as_str)
    }

    /// Returns true if a weight of a model that no card knows is not quantized.
    pub(crate) fn keeps_of_unknown(&self, name: &str) -> bool {
        let has = |part: &String| name.contains(part.as_str());
        !self.is_in_block(name) || self.unknown.keep.iter().any(has)
    }

    /// Returns true for names with a numbered block: `blocks.12.`.
    pub(super) fn is_in_block(&self, name: &str) -> bool {
        let is_numbered = |block: &String| {
            name.match_indices(block.as_str()).any(|(at, found)| {
                let rest = &name[at + found.len()..];
                let n_digits = rest.bytes().take_while(u8::is_ascii_digit).count();
                n_digits > 0 && rest[n_digits..].starts_with('.')
            })
        };
        self.unknown.blocks.iter().any(is_numbered)
    }
}

pub(super) fn wrong_kind(at: &str, expected: &'static str, found: String) -> CardProblem {
    CardProblem::Kind { at: format!("`{at}`"), expected, found }
}

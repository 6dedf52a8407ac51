//! Layouts of other programs (`[[layouts]]` of a card): the way back to the names and matrices that runtimes read.

use std::collections::{BTreeMap, HashSet};

use serde::Deserialize;

use super::common::wrong_kind;
use crate::error::CardProblem;

/// Ends of the names of a module's parameters, which rows of modules leave out.
const PARAMETERS: [&str; 3] = ["", ".weight", ".bias"];

/// Layout of another program whose way back to the original is certain.
///
/// Names are patterns: `{}` is a number, `{a|b}` one of these words, and each `{}` of an original name is filled from the
/// stored one, in order. A name without `.weight` or `.bias` is that of a module, with both.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layout {
    /// Program that the layout belongs to.
    pub program: String,
    /// Sets of names: a checkpoint with all names of one set has this layout.
    recognize: Vec<Vec<String>>,
    /// Sets of stored names: every model has all names of one set.
    #[serde(default)]
    needs: Vec<Vec<String>>,
    /// Stored names of each original one; the rows of several follow each other.
    tensors: BTreeMap<String, Stored>,
    /// Stored name of modules whose two halves of rows change places. If `tensors` has the module, too, it does so only
    /// where the weight has two parts.
    #[serde(default)]
    swapped: BTreeMap<String, String>,
    /// Names that are the same in both.
    #[serde(default)]
    same: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Stored {
    One(String),
    Joined(Vec<String>),
}

impl Stored {
    fn names(&self) -> &[String] {
        match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::Joined(names) => names,
        }
    }
}

/// What happens to the two halves of a tensor's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Halves {
    /// They keep their places.
    Keep,
    /// They change places.
    Swap,
    /// They change places if the weight of the module has twice as many rows as columns.
    SwapTwo,
}

/// Tensor of the original, and where its rows are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutTensor {
    /// Name in the original.
    pub name: String,
    /// Stored tensors whose rows follow each other.
    pub sources: Vec<String>,
    /// Order of the halves of the rows.
    pub halves: Halves,
}

/// Reason why a checkpoint has no way back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayoutProblem {
    /// No row knows the tensor of this name.
    Unknown(String),
    /// A part of a joined tensor is missing.
    Missing {
        /// Name of the part.
        part: String,
        /// Name of another part, which exists.
        other: String,
        /// Name of the tensor in the original.
        of: String,
    },
}

impl Layout {
    /// Returns true if names show this layout.
    pub fn matches(&self, has: impl Fn(&String) -> bool) -> bool {
        self.recognize.iter().any(|set| set.iter().all(&has))
    }

    /// Returns the stored names that a model lacks, which all such models have.
    pub fn missing(&self, has: impl Fn(&str) -> bool) -> Vec<&str> {
        fewest(&self.needs, has)
    }

    /// Returns the tensors of the original, by name, with the stored tensors that they are made of.
    ///
    /// # Errors
    /// [`LayoutProblem`]: a stored tensor that no row knows, a missing part.
    pub fn tensors(&self, stored: &[&str]) -> Result<Vec<LayoutTensor>, LayoutProblem> {
        let mut found: BTreeMap<String, (Vec<String>, Halves)> = BTreeMap::new();
        for name in stored {
            let tensor = self.tensor(name).ok_or_else(|| LayoutProblem::Unknown((*name).to_owned()))?;
            found.insert(tensor.name, (tensor.sources, tensor.halves));
        }
        let present: HashSet<&str> = stored.iter().copied().collect();
        let is_present = |name: &&String| present.contains(name.as_str());
        for (name, (sources, _)) in &found {
            if let Some(part) = sources.iter().find(|source| !is_present(source)) {
                let other = sources.iter().find(is_present).cloned().unwrap_or_default();
                return Err(LayoutProblem::Missing { part: part.clone(), other, of: name.clone() });
            }
        }
        let rows = found.into_iter();
        Ok(rows.map(|(name, (sources, halves))| LayoutTensor { name, sources, halves }).collect())
    }

    /// Returns the tensor of the original that a stored tensor is a part of.
    fn tensor(&self, stored: &str) -> Option<LayoutTensor> {
        self.rows().find_map(|(original, parts, halves)| {
            parts.iter().find_map(|part| {
                let (words, end) = matched(part, stored)?;
                let name = filled(original, &words) + end;
                let sources = parts.iter().map(|part| filled(part, &words) + end).collect();
                Some(LayoutTensor { name, sources, halves })
            })
        })
    }

    /// Iterates over original names, the parts, and their halves.
    fn rows(&self) -> impl Iterator<Item = (&String, &[String], Halves)> {
        let swapped = self.swapped.iter().map(|(original, stored)| {
            let halves = if self.tensors.contains_key(original) { Halves::SwapTwo } else { Halves::Swap };
            (original, std::slice::from_ref(stored), halves)
        });
        let rows = self.tensors.iter().map(|(original, stored)| (original, stored.names(), Halves::Keep));
        let same = self.same.iter().map(|name| (name, std::slice::from_ref(name), Halves::Keep));
        swapped.chain(rows).chain(same)
    }

    /// Checks what the types of the keys leave open.
    pub(super) fn check(&self) -> Result<(), CardProblem> {
        if self.recognize.is_empty() || self.recognize.iter().any(Vec::is_empty) {
            return Err(wrong_kind("layouts.recognize", "lists of names", "an empty list".to_owned()));
        }
        let blanks = |name: &str| name.split('.').filter(|word| word.starts_with('{')).count();
        for (original, parts, _) in self.rows() {
            if parts.is_empty() || parts.iter().any(|part| blanks(part) != blanks(original)) {
                let expected = "as many `{}` in the stored names as in the original one";
                return Err(wrong_kind("layouts", expected, format!("`{original}`")));
            }
        }
        Ok(())
    }
}

/// Returns the names that are missing in the set that lacks the fewest.
pub(super) fn fewest(sets: &[Vec<String>], has: impl Fn(&str) -> bool) -> Vec<&str> {
    let missing = sets.iter().map(|set| set.iter().map(String::as_str).filter(|name| !has(name)).collect());
    missing.min_by_key(Vec::len).unwrap_or_default()
}

/// Returns the words of a name in place of a pattern's blanks, and the end of the name behind the pattern.
fn matched<'n>(pattern: &str, name: &'n str) -> Option<(Vec<&'n str>, &'static str)> {
    PARAMETERS.iter().find_map(|end| Some((words(pattern, name.strip_suffix(end)?)?, *end)))
}

pub(super) fn words<'n>(pattern: &str, name: &'n str) -> Option<Vec<&'n str>> {
    let mut found = Vec::new();
    let mut expected = pattern.split('.');
    for word in name.split('.') {
        let own = expected.next()?;
        match own.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
            None if own == word => continue,
            Some("") if !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit()) => {}
            Some(choice) if choice.split('|').any(|one| !one.is_empty() && one == word) => {}
            _ => return None,
        }
        found.push(word);
    }
    expected.next().is_none().then_some(found)
}

fn filled(pattern: &str, words: &[&str]) -> String {
    let mut words = words.iter();
    let mut word = |own| words.next().copied().unwrap_or(own);
    let parts = pattern.split('.').map(|own| if own.starts_with('{') { word(own) } else { own });
    parts.collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diffusion::DiffusionCards;

    fn layout() -> Layout {
        toml::from_str(
            "program = \"p\"\nrecognize = [[\"b.0.q.weight\"]]\nsame = [\"{x_token|y_token}\"]\n\
             [tensors]\n\"{}.{}.qkv\" = [\"{b|c}.{}.q\", \"{b|c}.{}.k\"]\n\"mod\" = \"m\"\n\"n.scale\" = \"n.weight\"\n\
             [swapped]\n\"mod\" = \"m\"\n\"last\" = \"l.0\"\n",
        )
        .unwrap()
    }

    #[test]
    fn names_lead_back() {
        let layout = layout();
        layout.check().unwrap();
        let stored = [
            "b.0.q.weight",
            "b.0.k.weight",
            "c.12.k.bias",
            "c.12.q.bias",
            "m.bias",
            "n.weight",
            "l.0.weight",
        ];
        let found = layout.tensors(&stored).unwrap();
        let names: Vec<(&str, Halves)> = found.iter().map(|row| (row.name.as_str(), row.halves)).collect();
        let expected = [
            ("b.0.qkv.weight", Halves::Keep),
            ("c.12.qkv.bias", Halves::Keep),
            ("last.weight", Halves::Swap),
            ("mod.bias", Halves::SwapTwo),
            ("n.scale", Halves::Keep),
        ];
        assert_eq!(names, expected);
        assert_eq!(found[1].sources, ["c.12.q.bias", "c.12.k.bias"]);
        let missing = LayoutProblem::Missing {
            part: "b.0.q.weight".to_owned(),
            other: "b.0.k.weight".to_owned(),
            of: "b.0.qkv.weight".to_owned(),
        };
        assert_eq!(layout.tensors(&["b.0.k.weight", "x_token"]), Err(missing));
        for unknown in
            ["z_token", "d.0.q.weight", "b.a.q.weight", "b.0.q", "b.0.q.scale", "l.1.weight", "q", ""]
        {
            let is_module = unknown == "b.0.q";
            assert_eq!(layout.tensors(&[unknown, "b.0.k"]).is_err(), !is_module, "{unknown}");
        }
    }

    #[test]
    fn blanks_are_counted() {
        let mut layout = layout();
        layout.same.push("{}.a".to_owned());
        layout.check().unwrap();
        layout.tensors.insert("{}.b".to_owned(), Stored::One("b".to_owned()));
        assert!(layout.check().is_err());
    }

    /// A stored name that two rows know would go to one of them by chance.
    #[test]
    fn every_stored_name_has_one_row() {
        for card in DiffusionCards::embedded().unwrap().iter() {
            for layout in &card.layouts {
                let mut seen: HashSet<&String> = HashSet::new();
                let rows = layout.rows().filter(|row| row.2 != Halves::SwapTwo);
                assert!(!layout.needs.is_empty(), "{}", card.gguf);
                for part in rows.flat_map(|row| row.1) {
                    assert!(seen.insert(part), "{}: {part}", card.gguf);
                }
                for name in layout.recognize.iter().chain(&layout.needs).flatten() {
                    assert!(layout.tensor(name).is_some(), "{}: {name}", card.gguf);
                }
            }
        }
    }
}

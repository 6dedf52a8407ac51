//! Modules that are alike (`[[alike]]` of a card): what most of them have and one lacks is missing.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::layout::words;
use gguf_core::Shape;

const WEIGHT: &str = ".weight";
const BIAS: &str = ".bias";

/// Modules of one structure, such as the blocks of a transformer.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Alike {
    /// Patterns of the modules' names, as in layouts.
    modules: Vec<String>,
    /// Starts of names inside of a module, one of which shows it; all modules without any.
    #[serde(default)]
    shown_by: Vec<String>,
    /// Starts of names inside of a module that not every module has.
    #[serde(default)]
    some: Vec<String>,
    /// Starts of names inside of a module whose shapes differ between the modules of a list.
    #[serde(default)]
    shapes_differ: Vec<String>,
}

/// Differences between modules that should be alike.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unlike {
    /// Tensors, or whole modules, that are missing.
    pub missing: Vec<String>,
    /// Tensors that only a few of the modules have.
    pub odd: Vec<String>,
    /// Tensors of modules that no known model of the architecture has.
    pub unknown: Vec<String>,
}

/// Tensor whose shape is not that of the same tensor in most modules of its list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unequal {
    /// Name of the tensor.
    pub name: String,
    /// Name of the tensor in another module.
    pub other: String,
    /// Shape in that module.
    pub expected: Shape,
}

/// Names inside of each module, by the module's name.
type Modules<'n> = BTreeMap<&'n str, BTreeSet<&'n str>>;

impl Alike {
    /// Adds the differences between the modules of a model.
    pub(super) fn compare(&self, names: &[&str], found: &mut Unlike) {
        let modules = self.modules_of(names);
        found.missing.extend(without_weight(&modules));
        found.missing.extend(gaps(&modules, &self.modules));
        let mut n_with: BTreeMap<&str, usize> = BTreeMap::new();
        modules.values().flatten().for_each(|own| *n_with.entry(*own).or_default() += 1);
        let is_for_some = |own: &str| self.some.iter().any(|start| own.starts_with(start.as_str()));
        for (own, n) in n_with.iter().filter(|row| *row.1 < modules.len() && !is_for_some(row.0)) {
            let is_due = 2 * n > modules.len();
            let rows = modules.iter().filter(|row| row.1.contains(own) != is_due);
            let whole = rows.map(|row| format!("{}.{own}", row.0));
            if is_due { found.missing.extend(whole) } else { found.odd.extend(whole) }
        }
    }

    /// Returns the first tensor whose shape differs from that in the other modules of its list.
    pub(super) fn unequal(&self, tensors: &[(&str, &Shape)]) -> Option<Unequal> {
        let exceptions = || self.some.iter().chain(&self.shapes_differ);
        let mut rows: BTreeMap<(&str, &str), Vec<(&str, &Shape)>> = BTreeMap::new();
        for &(name, shape) in tensors {
            let listed = self.modules.iter().filter(|pattern| pattern.ends_with(".{}"));
            let Some((module, own)) = listed.into_iter().find_map(|pattern| split(pattern, name)) else {
                continue;
            };
            let is_exception = exceptions().any(|start| own.starts_with(start.as_str()));
            if let Some((list, _)) = module.rsplit_once('.').filter(|_| !is_exception) {
                rows.entry((list, own)).or_default().push((name, shape));
            }
        }
        rows.into_values().find_map(|same| {
            let mut n_alike: BTreeMap<&[u64], usize> = BTreeMap::new();
            for row in &same {
                *n_alike.entry(row.1.dims()).or_default() += 1;
            }
            // At a tie the first is taken for right.
            let (other, expected) = same.iter().rev().max_by_key(|row| n_alike[row.1.dims()])?;
            let (name, _) = same.iter().find(|row| row.1 != *expected)?;
            let (name, other) = ((*name).to_owned(), (*other).to_owned());
            Some(Unequal { name, other, expected: (*expected).clone() })
        })
    }

    fn modules_of<'n>(&self, names: &[&'n str]) -> Modules<'n> {
        let mut modules = Modules::new();
        for name in names {
            let parts = self.modules.iter().find_map(|pattern| split(pattern, name));
            if let Some((module, own)) = parts {
                modules.entry(module).or_default().insert(own);
            }
        }
        let shows = |own: &&str| self.shown_by.iter().any(|start| own.starts_with(start.as_str()));
        modules.retain(|_, own| self.shown_by.is_empty() || own.iter().any(shows));
        modules
    }
}

/// Returns the module's name and the rest of the name, if its first words are those of the pattern.
pub(super) fn split<'n>(pattern: &str, name: &'n str) -> Option<(&'n str, &'n str)> {
    let n_words = pattern.split('.').count();
    let (end, _) = name.match_indices('.').nth(n_words - 1)?;
    words(pattern, &name[..end])?;
    Some((&name[..end], &name[end + 1..]))
}

/// Weights that are missing although their bias is there.
fn without_weight(modules: &Modules<'_>) -> impl Iterator<Item = String> {
    modules.iter().flat_map(|(module, own)| {
        let layers = own.iter().filter_map(|name| name.strip_suffix(BIAS));
        let lacking =
            layers.map(|layer| format!("{layer}{WEIGHT}")).filter(|weight| !own.contains(weight.as_str()));
        lacking.map(move |weight| format!("{module}.{weight}"))
    })
}

/// Modules that are missing in a list: at most a third as many as are there. Of a model with more, these are samples.
fn gaps(modules: &Modules<'_>, patterns: &[String]) -> Vec<String> {
    let mut lists: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    for module in modules.keys() {
        let is_listed = |pattern: &String| pattern.ends_with(".{}") && words(pattern, module).is_some();
        let Some((list, number)) = module.rsplit_once('.').filter(|_| patterns.iter().any(is_listed)) else {
            continue;
        };
        lists.entry(list).or_default().extend(number.parse::<usize>());
    }
    let mut missing = Vec::new();
    for (list, numbers) in lists {
        let n = numbers.last().map_or(0, |last| last.saturating_add(1)) - numbers.len();
        if n <= numbers.len() / 3 {
            let absent = (0..numbers.len() + n).filter(|number| !numbers.contains(number));
            missing.extend(absent.map(|number| format!("{list}.{number}")));
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diffusion::{DiffusionCards, Recognition};

    fn found(alike: &str, names: &[&str]) -> [Vec<String>; 2] {
        let alike: Alike = toml::from_str(alike).unwrap();
        let mut found = Unlike::default();
        alike.compare(names, &mut found);
        [found.missing, found.odd]
    }

    #[test]
    fn what_most_modules_have_is_missing_in_one() {
        let alike = "modules = [\"b.{}\", \"c\"]\nsome = [\"x.\"]";
        let all = ["b.0.q.weight", "b.1.q.weight", "b.2.q.weight", "b.2.x.weight", "q.weight", "b.0"];
        let none: [Vec<String>; 2] = Default::default();
        assert_eq!(found(alike, &all), none);
        let lacks = |names: &[&str]| found(alike, names).map(|names| names.join(" "));
        assert_eq!(lacks(&["b.0.q", "b.1.q", "b.1.k", "b.2.q", "b.2.k"]), ["b.0.k", ""]);
        assert_eq!(lacks(&["b.0.q", "b.1.q", "b.1.k", "b.2.q"]), ["", "b.1.k"]);
        assert_eq!(lacks(&["b.0.q", "b.1.q", "b.1.k"]), ["", "b.1.k"]);
        assert_eq!(lacks(&["b.0.q", "b.1.q", "b.3.q"]), ["b.2", ""]);
        // Many that are missing are no gap, and a number of any size is one.
        assert_eq!(lacks(&["b.0.q", "b.7.q", "b.59.q"]), ["", ""]);
        assert_eq!(lacks(&["b.0.q", "b.18446744073709551615.q", "b.99999999999999999999.q"]), ["", ""]);
        assert_eq!(lacks(&["c.q.bias", "c.k.weight"]), ["c.q.weight", ""]);
    }

    #[test]
    fn tensors_of_alike_modules_have_one_shape() {
        let shape = |dims: &[u64]| Shape::new(dims.to_vec()).unwrap();
        let (wide, narrow) = (shape(&[8, 64]), shape(&[8, 32]));
        let named = |alike: &str, rows: &[(&str, &Shape)]| {
            let alike: Alike = toml::from_str(alike).unwrap();
            alike.unequal(rows).map(|found| format!("{} {} {}", found.name, found.other, found.expected))
        };
        let list = "modules = [\"{b|c}.{}\", \"d\"]\nsome = [\"x.\"]";
        let odd = [("b.0.q", &narrow), ("b.1.q", &wide), ("b.2.q", &wide)];
        assert_eq!(named(list, &odd).unwrap(), "b.0.q b.1.q [8, 64]");
        assert_eq!(named(list, &odd[..2]).unwrap(), "b.1.q b.0.q [8, 32]");
        // Other lists, other tensors, those of some modules, and single modules.
        let healthy = [("b.0.q", &narrow), ("c.0.q", &wide), ("b.1.k", &wide), ("d.q", &wide)];
        assert_eq!(named(list, &healthy), None);
        assert_eq!(named(list, &[("b.0.x.q", &narrow), ("b.1.x.q", &wide)]), None);
        assert_eq!(named(&format!("{list}\nshapes_differ = [\"q\"]"), &odd), None);
    }

    #[test]
    fn modules_are_told_by_what_they_have() {
        let alike = "modules = [\"b.{}.0\"]\nshown_by = [\"in.\"]";
        let names = ["b.0.0.weight", "b.1.0.in.a", "b.1.0.out", "b.2.0.in.a", "b.4.0.in.a", "b.4.0.out"];
        assert_eq!(found(alike, &names).map(|names| names.join(" ")), ["b.2.0.out", ""]);
    }

    /// The names of whole models: nothing is missing, and each tensor of a block is missed.
    #[test]
    fn whole_models_lack_nothing() {
        let table = include_str!("../../../../fixtures/diffusers.tsv");
        let mut models: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for row in table.lines().map(|line| line.split('\t').collect::<Vec<_>>()) {
            models.entry(row[0]).or_default().insert(row[3]);
        }
        let cards = DiffusionCards::embedded().unwrap();
        let mut n_missed = 0;
        for (model, names) in &models {
            let names: Vec<&str> = names.iter().copied().collect();
            let Recognition::Card(card) = cards.recognize(&names) else { panic!("{model}") };
            assert_eq!(card.unlike(&names), Unlike::default(), "{model}");
            let lists: Vec<&Alike> = card.alike.iter().filter(|alike| alike.some.is_empty()).collect();
            for gone in &names {
                let is_due = lists
                    .iter()
                    .any(|alike| alike.modules_of(&names).len() > 1 && !alike.modules_of(&[gone]).is_empty());
                let others: Vec<&str> = names.iter().copied().filter(|name| name != gone).collect();
                assert!(!is_due || card.unlike(&others) != Unlike::default(), "{model} without {gone}");
                n_missed += usize::from(is_due);
            }
        }
        assert!(models.len() > 10 && n_missed > 400, "{n_missed}");
    }
}

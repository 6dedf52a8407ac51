//! Rules in `shapes.toml`: those of an architecture, with the shared ones.

use std::collections::HashMap;
use std::sync::{LazyLock, OnceLock};

use indexmap::IndexMap;
use toml::Table;

use crate::language::expr::Expr;

const TEXT: &str = include_str!("../shapes.toml");
/// Prefix of the tensor names in `[blocks]`.
const BLOCK: &str = "blk.{bid}.";
/// Maximum number of generations in `like`.
const MAX_LIKE: usize = 4;

/// Shapes of an architecture's tensors.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules {
    /// Definitions that dimensions can use.
    pub(super) lets: IndexMap<String, Expr>,
    /// Dimensions by tensor name, with `{bid}` for the block; most names omit `.weight`.
    tensors: HashMap<String, Vec<Expr>>,
}

/// Invalid rule, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BadRule(pub(super) String);

impl Rules {
    /// Returns the rules of an architecture; of an unknown one, those that most share. They are read once per process.
    pub(super) fn of(arch: &str) -> &'static Self {
        static RULES: LazyLock<HashMap<&str, OnceLock<Rules>>> = LazyLock::new(|| {
            let own = table().get("arch").and_then(|all| all.as_table());
            own.into_iter().flatten().map(|(arch, _)| (arch.as_str(), OnceLock::new())).collect()
        });
        static SHARED: OnceLock<Rules> = OnceLock::new();
        // The text is part of the program, and a test reads all of it.
        RULES.get(arch).unwrap_or(&SHARED).get_or_init(|| Self::read(table(), arch).unwrap_or_default())
    }

    pub(super) fn read(table: &Table, arch: &str) -> Result<Self, BadRule> {
        let own = table.get("arch").and_then(|all| all.as_table());
        let own = |name: &str| own.and_then(|all| all.get(name)).and_then(|own| own.as_table());
        let mut generations = vec![table];
        let mut name = Some(arch);
        let mut tables = Vec::new();
        while let Some(table) = name.and_then(own).filter(|_| tables.len() < MAX_LIKE) {
            tables.push(table);
            name = table.get("like").and_then(|like| like.as_str());
        }
        generations.extend(tables.into_iter().rev());
        let mut rules = Self::default();
        for table in generations {
            rules.add(table)?;
        }
        Ok(rules)
    }

    fn add(&mut self, table: &Table) -> Result<(), BadRule> {
        for (section, rows) in table {
            let rows = match (section.as_str(), rows.as_table()) {
                ("like" | "arch", _) => continue,
                (_, Some(rows)) => rows,
                _ => return Err(BadRule(section.clone())),
            };
            for (name, value) in rows {
                let bad = || BadRule(name.clone());
                if section == "let" {
                    self.lets.insert(name.clone(), parsed(value).ok_or_else(bad)?);
                    continue;
                }
                let dims = value.as_array().ok_or_else(bad)?.iter().map(parsed);
                let dims = dims.collect::<Option<Vec<_>>>().ok_or_else(bad)?;
                match section.as_str() {
                    "tensors" => self.tensors.insert(name.clone(), dims),
                    "blocks" => self.tensors.insert(format!("{BLOCK}{name}"), dims),
                    _ => return Err(bad()),
                };
            }
        }
        Ok(())
    }

    /// Returns the dimensions of a tensor, and how many of them apply: a bias has those of its weight without the last.
    pub(super) fn find(&self, template: &str) -> Option<(&Vec<Expr>, usize)> {
        let whole = |name: &str| self.tensors.get(name).map(|dims| (dims, dims.len()));
        whole(template).or_else(|| whole(template.strip_suffix(".weight")?)).or_else(|| {
            let (dims, n) = whole(template.strip_suffix(".bias")?)?;
            Some((dims, n.saturating_sub(1).max(1)))
        })
    }

    #[cfg(test)]
    pub(super) fn exprs(&self) -> impl Iterator<Item = &Expr> {
        self.lets.values().chain(self.tensors.values().flatten())
    }
}

fn parsed(value: &toml::Value) -> Option<Expr> {
    value.as_str().and_then(|text| Expr::parse(text).ok())
}

/// Returns the parsed `shapes.toml`; it is parsed once per process.
pub(super) fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| TEXT.parse().unwrap_or_default())
}

/// Returns a tensor's name with `{bid}` instead of the first number, and the number.
pub(super) fn template(name: &str) -> (String, Option<u64>) {
    let mut bid = None;
    let parts = name.split('.').enumerate().map(|(at, part)| {
        let number = part.parse().ok().filter(|_| at > 0 && bid.is_none());
        if number.is_none() {
            return part;
        }
        bid = number;
        "{bid}"
    });
    let template = parts.collect::<Vec<_>>().join(".");
    (template, bid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Registry;

    #[test]
    fn every_rule_is_read_and_belongs_to_an_architecture() {
        let registry = Registry::embedded().unwrap();
        let known: Vec<&str> = registry.cards().iter().map(|card| card.gguf.as_str()).collect();
        let archs = table()["arch"].as_table().unwrap();
        assert!(archs.len() > 50);
        for (arch, own) in archs {
            assert!(known.contains(&arch.as_str()) || arch == crate::keys::shapes::TOWERS, "{arch}");
            let like = own.get("like").map(|like| like.as_str().unwrap());
            assert!(like.is_none_or(|like| archs.contains_key(like)), "{arch}");
            let rules = Rules::read(table(), arch).unwrap();
            assert!(rules.exprs().count() > 200, "{arch}");
        }
    }

    #[test]
    fn names_become_templates() {
        assert_eq!(template("blk.12.attn_q.weight"), ("blk.{bid}.attn_q.weight".to_owned(), Some(12)));
        assert_eq!(template("blk.3.norm.1.weight"), ("blk.{bid}.norm.1.weight".to_owned(), Some(3)));
        assert_eq!(template("output.weight"), ("output.weight".to_owned(), None));
    }

    #[test]
    fn a_bias_goes_without_the_columns_of_its_weight() {
        let rules = Rules::of("llama");
        let n = |name: &str| rules.find(name).map(|(_, n)| n);
        assert_eq!(n("blk.{bid}.attn_q.weight"), Some(2));
        assert_eq!(n("blk.{bid}.attn_q.bias"), Some(1));
        assert_eq!(n("blk.{bid}.attn_norm.bias"), Some(1));
        assert_eq!(n("blk.{bid}.attn_q.scale"), None);
    }

    #[test]
    fn an_architecture_takes_what_another_one_says() {
        let rules = Rules::of("qwen35");
        assert_eq!(rules.find("blk.{bid}.ssm_norm.weight").unwrap().1, 1);
        assert_eq!(Rules::of("mamba2").find("blk.{bid}.ssm_norm.weight").unwrap().1, 2);
    }
}

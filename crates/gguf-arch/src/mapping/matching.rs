//! Finds the card entry that a tensor name of the checkpoint matches.

use crate::Result;
use std::collections::HashMap;

use crate::error::ArchError;
use crate::language::eval::Scope;
use crate::language::eval::error::EvalError;
use crate::language::expr::Expr;
use crate::language::names::{self, BOUNDS, Captures, Pattern, SUFFIXES};
use crate::mapping::DropReason;
use crate::read::schema::{Card, CardKind, Ignore, RewriteStep, TensorEntry};

/// Match of a name with an entry.
pub(crate) struct Match {
    pub(crate) captures: Captures,
    pub(crate) suffix: &'static str,
    /// Index of the source in the entry: 0, or from 1 on for those of `with`.
    pub(crate) part: usize,
}

/// Point at which `[ignore]` rules apply: conditional rules (including those about content) before the entries, others
/// after them.
#[derive(Clone, Copy)]
pub(crate) enum IgnoreStage {
    BeforeEntries,
    AfterEntries,
}

/// Index of a card for many names: entries are found by the name without numbers instead of one after the other.
pub(crate) struct Matcher<'a> {
    card: &'a Card,
    scope: &'a Scope<'a>,
    /// Entries by the names that their patterns match, with `#` for numbers.
    index: HashMap<String, Vec<usize>>,
    /// Entries with a pattern that cannot be indexed: a placeholder shares a part between dots with other text.
    others: Vec<usize>,
    /// Rewriting steps whose conditions hold.
    steps: Vec<&'a RewriteStep>,
}

impl<'a> Matcher<'a> {
    pub(crate) fn new(card: &'a Card, scope: &'a Scope<'a>) -> Result<Self> {
        let mut steps = Vec::new();
        for rewrite in &card.rewrite {
            let holds = scope.holds(rewrite.when.as_ref(), Captures::default());
            if holds.map_err(|source| eval_error(card, "rewrite", source))? {
                steps.push(&rewrite.step);
            }
        }
        Ok(Self::with_steps(card, scope, steps))
    }

    /// As [`Matcher::new`], but a condition that cannot be evaluated counts as false.
    pub(crate) fn lenient(card: &'a Card, scope: &'a Scope<'a>) -> Self {
        let holds = |when: Option<&Expr>| scope.holds(when, Captures::default()).unwrap_or(false);
        let steps = card.rewrite.iter().filter(|rewrite| holds(rewrite.when.as_ref()));
        Self::with_steps(card, scope, steps.map(|rewrite| &rewrite.step).collect())
    }

    fn with_steps(card: &'a Card, scope: &'a Scope<'a>, steps: Vec<&'a RewriteStep>) -> Self {
        let mut index: HashMap<String, Vec<usize>> = HashMap::new();
        let mut others = Vec::new();
        for (at, entry) in card.entries.iter().enumerate() {
            for pattern in entry.patterns.iter().chain(&entry.with) {
                let list = match kind_of_pattern(pattern) {
                    Some(kind) => index.entry(kind).or_default(),
                    None => &mut others,
                };
                if list.last() != Some(&at) {
                    list.push(at);
                }
            }
        }
        Self { card, scope, index, others, steps }
    }

    pub(crate) fn holds(&self, at: &str, when: Option<&Expr>, captures: Captures) -> Result<bool> {
        self.scope.holds(when, captures).map_err(|source| eval_error(self.card, at, source))
    }

    pub(crate) fn count(&self, at: &str, expr: &Expr, captures: Captures) -> Result<u64> {
        self.scope.count(expr, captures, &[]).map_err(|source| eval_error(self.card, at, source))
    }

    /// Returns a name after the card's own rewriting. Tower names exist in layouts that differ by one level; the layout
    /// that the card knows is used.
    pub(crate) fn rewritten(&self, name: String) -> Result<String> {
        if self.card.kind == CardKind::Text {
            return self.stepped(name);
        }
        let own = self.stepped(name.clone())?;
        if self.knows(&own) {
            return Ok(own);
        }
        for other in layouts(&name) {
            let other = self.stepped(other)?;
            if self.knows(&other) {
                return Ok(other);
            }
        }
        Ok(layouts(&own).into_iter().find(|other| self.knows(other)).unwrap_or(own))
    }

    /// Returns true if a part of the card's towers has this name, regardless of conditions.
    fn knows(&self, name: &str) -> bool {
        names::is_of_parts(name, &self.card.parts)
            && (self
                .candidates(name)
                .into_iter()
                .any(|at| match_entry(&self.card.entries[at], name).is_some())
                || self.card.ignore.iter().any(|ignore| ignore.pattern.matches(name).is_some()))
    }

    /// Returns a name after the rewriting steps.
    fn stepped(&self, mut name: String) -> Result<String> {
        for step in &self.steps {
            name = match step {
                RewriteStep::Strip(text) => name.replace(text.as_str(), ""),
                RewriteStep::Replace(from, to) => name.replace(from.as_str(), to),
                RewriteStep::Head(from, to) => match name.strip_prefix(from.as_str()) {
                    Some(rest) => format!("{to}{rest}"),
                    None => name,
                },
                RewriteStep::Tail(from, to) => match name.strip_suffix(from.as_str()) {
                    Some(rest) => format!("{rest}{to}"),
                    None => name,
                },
                RewriteStep::Prefix(prefix) if name.starts_with(prefix.as_str()) => name,
                RewriteStep::Prefix(prefix) => format!("{prefix}{name}"),
                RewriteStep::Shift(from, to, by) => {
                    let shifted = name.strip_prefix(from.as_str()).and_then(|rest| {
                        let (index, rest) = rest.split_once('.')?;
                        Some((index.parse::<u64>().ok()?, rest))
                    });
                    match shifted {
                        Some((index, rest)) => {
                            let by = self.count("rewrite", by, Captures::default())?;
                            format!("{to}{}.{rest}", index.saturating_add(by))
                        }
                        None => name,
                    }
                }
            };
        }
        Ok(name)
    }

    /// Returns the reason to leave a name out, by the rules that apply at this point. `tensor` is the name in the
    /// checkpoint. Rules about content read it here.
    pub(crate) fn ignored(&self, tensor: &str, name: &str, asked: IgnoreStage) -> Result<Option<DropReason>> {
        let is_asked = |ignore: &&Ignore| match asked {
            IgnoreStage::BeforeEntries => ignore.is_conditional(),
            IgnoreStage::AfterEntries => !ignore.is_conditional(),
        };
        for ignore in self.card.ignore.iter().filter(is_asked) {
            if let Some(captures) = ignore.pattern.matches(name)
                && self.holds(ignore.pattern.text(), ignore.when.as_ref(), captures)?
            {
                if let Some(other) = &ignore.drop_if_equal {
                    let other = other.render(captures).unwrap_or_default();
                    if !self.scope.values.are_equal(tensor, &other)? {
                        continue;
                    }
                    return Ok(Some(DropReason::SameAs(other)));
                }
                if ignore.require_zero {
                    self.scope.values.require_zero(tensor)?;
                }
                return Ok(Some(DropReason::Card(ignore.why.clone())));
            }
        }
        Ok(None)
    }

    /// Returns the index of the entry that a rewritten name matches; `tensor` is the name in the checkpoint.
    pub(crate) fn entry_of(&self, tensor: &str, name: &str) -> Result<Option<(usize, Match)>> {
        let mut found: Option<(usize, Match)> = None;
        for index in self.candidates(name) {
            let entry = &self.card.entries[index];
            let Some(matched) = match_entry(entry, name) else { continue };
            if !self.holds(entry.name(), entry.when.as_ref(), matched.captures)? {
                continue;
            }
            if let Some((first, _)) = &found {
                return Err(ArchError::TwoEntries {
                    card: self.card.name(),
                    tensor: tensor.to_owned(),
                    first: self.card.entries[*first].name().to_owned(),
                    second: entry.name().to_owned(),
                });
            }
            found = Some((index, matched));
        }
        Ok(found)
    }

    /// Returns the entries that may match, in card order.
    fn candidates(&self, name: &str) -> Vec<usize> {
        let kind = kind_of(name);
        let bare = SUFFIXES.into_iter().chain(BOUNDS).find_map(|suffix| kind.strip_suffix(suffix));
        let found = [Some(kind.as_str()), bare].into_iter().flatten().filter_map(|kind| self.index.get(kind));
        let mut all: Vec<usize> = found.flatten().chain(&self.others).copied().collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

fn eval_error(card: &Card, at: &str, source: EvalError) -> ArchError {
    ArchError::Eval { card: card.name(), at: format!("`{at}`"), source }
}

/// Returns variants of a name with and without the levels that differ between versions of a model's code: `model.` in
/// front, `vision_model.` inside a tower.
fn layouts(name: &str) -> Vec<String> {
    const TOWER: &str = "vision_tower.";
    const LEVEL: &str = "vision_model.";
    let level = if name.contains(LEVEL) {
        name.replacen(LEVEL, "", 1)
    } else {
        name.replacen(TOWER, "vision_tower.vision_model.", 1)
    };
    let toggled = |name: &str| match name.strip_prefix("model.") {
        Some(rest) => rest.to_owned(),
        None => format!("model.{name}"),
    };
    let mut layouts = vec![toggled(name)];
    if level != name {
        layouts.extend([toggled(&level), level]);
    }
    layouts
}

/// Returns a name with each part between dots that is a decimal number replaced by `#`.
pub(crate) fn kind_of(name: &str) -> String {
    let mut kind = String::with_capacity(name.len());
    for (at, part) in name.split('.').enumerate() {
        if at > 0 {
            kind.push('.');
        }
        let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        kind.push_str(if is_number { "#" } else { part });
    }
    kind
}

/// Returns [`kind_of`] of the names that a pattern matches; `None` if a placeholder shares a part with other text.
pub(crate) fn kind_of_pattern(pattern: &Pattern) -> Option<String> {
    let parts = pattern.text().split('.').map(|part| match part {
        "{bid}" | "{eid}" | "{xid}" => Some("0"),
        _ => (!part.contains('{')).then_some(part),
    });
    Some(kind_of(&parts.collect::<Option<Vec<_>>>()?.join(".")))
}

fn match_entry(entry: &TensorEntry, name: &str) -> Option<Match> {
    let main = entry.patterns.iter().map(|pattern| (0, pattern));
    let with = entry.with.iter().enumerate().map(|(n, pattern)| (n + 1, pattern));
    main.chain(with).find_map(|(part, pattern)| {
        if entry.exact {
            let captures = pattern.matches(name)?;
            // A complete pattern with a bare target passes its own ending on.
            let bare = !entry.targets.iter().any(|target| target.name.is_complete());
            let own = SUFFIXES.into_iter().find(|suffix| bare && pattern.text().ends_with(suffix));
            return Some(Match { captures, suffix: own.unwrap_or(""), part });
        }
        let bounds = if entry.clamped { &BOUNDS[..] } else { &[] };
        let suffixed = SUFFIXES.iter().chain(bounds).find_map(|&suffix| {
            let captures = pattern.matches(name.strip_suffix(suffix)?)?;
            Some(Match { captures, suffix, part })
        });
        suffixed.or_else(|| pattern.matches(name).map(|captures| Match { captures, suffix: "", part }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::language::names::Stars;

    #[test]
    fn names_and_patterns_are_of_a_kind() {
        for (pattern, name) in [
            ("model.layers.{bid}.mlp.experts.{eid}.w1", "model.layers.12.mlp.experts.3.w1"),
            ("model.layers.0.q", "model.layers.0.q"),
            ("a.{bid}", "a.7"),
            ("{bid}.a", "7.a"),
        ] {
            let pattern = Pattern::parse(pattern, Stars::Refused).unwrap();
            assert!(pattern.matches(name).is_some());
            assert_eq!(kind_of_pattern(&pattern), Some(kind_of(name)), "{name}");
        }
        let part = Pattern::parse("a.w{bid}.b", Stars::Refused).unwrap();
        assert_eq!(kind_of_pattern(&part), None);
        assert_eq!(kind_of("a.1x.2..3"), "a.1x.#..#");
    }

    /// Planning time must grow with the number of tensors, not with tensors times entries.
    #[test]
    fn a_name_asks_few_entries() {
        let registry = crate::Registry::embedded().unwrap();
        let captures = Captures { bid: Some(3), eid: Some(5), xid: Some(7) };
        let scope = Scope::default();
        let mut n_names = 0;
        for card in registry.cards() {
            let matcher = Matcher::lenient(card, &scope);
            for (at, entry) in card.entries.iter().enumerate() {
                for pattern in entry.patterns.iter().chain(&entry.with) {
                    let name = pattern.render(captures).unwrap();
                    let name = if entry.exact { name } else { name + ".weight" };
                    let asked = matcher.candidates(&name);
                    assert!(asked.contains(&at), "{}: `{name}`", card.name());
                    assert!(asked.len() <= 8, "{}: `{name}` asks {} entries", card.name(), asked.len());
                    n_names += 1;
                }
            }
        }
        assert!(n_names > 500, "{n_names}");
    }
}

//! Checks that a tower is complete. Errors use the names that the checkpoint would have.

use super::{Assigner, MAX_MISSING};
use crate::Result;
use crate::error::missing_input::MissingInput;
use crate::language::expr::Expr;
use crate::language::names::{self, Captures, Pattern, Placeholder, SUFFIXES};
use crate::mapping::{DropReason, OutputSpec};
use crate::read::schema::{Domain, TensorEntry};
use crate::registry::towers::{self, TowerFile, WEIGHT};

impl Assigner<'_> {
    pub(super) fn check_tower(&self, outputs: &[OutputSpec]) -> Result<()> {
        if outputs.is_empty() || !self.has_parts() {
            let nearest = self.card.parts.first().and_then(|part| self.nearest_other(part));
            return Err(MissingInput::NoTower { parts: self.card.parts.clone(), nearest }.into());
        }
        let blocks = |name: &str, domain| -> Result<Option<u64>> {
            let has = self.card.lets.get(name);
            if has.is_some() && !self.holds(name, has, Captures::default())? {
                return Ok(None);
            }
            self.block_limit(domain).map(Some)
        };
        let file = TowerFile {
            names: outputs.iter().map(|output| output.name.as_str()).collect(),
            vision: blocks("has_vision", Domain::Blocks)?,
            audio: blocks("has_audio", Domain::AudioBlocks)?,
        };
        let holds = |at: &str, when: Option<&Expr>, captures: Captures| -> Result<Option<bool>> {
            self.holds(at, when, captures).map(Some)
        };
        let mut missing = towers::missing(self.card, &file, &holds)?;
        // More are not shown, and the search for their stored names takes time.
        missing.truncate(MAX_MISSING + 1);
        let mut missing: Vec<String> = missing.iter().map(|target| self.stored_name(target)).collect();
        for name in self.missing_parts(&file)? {
            if !missing.contains(&name) {
                missing.push(name);
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let more = missing.len() > MAX_MISSING;
        missing.truncate(MAX_MISSING);
        let nearest = missing.first().and_then(|name| self.nearest_other(name));
        Err(MissingInput::TowerIncomplete { names: missing, more, nearest }.into())
    }

    /// Returns true if some tensor belongs to the towers, and not to the text model.
    fn has_parts(&self) -> bool {
        self.weights.iter().zip(&self.names).any(|(weight, name)| {
            names::is_of_parts(name, &self.card.parts) && !names::is_of_text_model(&weight.name)
        })
    }

    /// Returns, for each entry with a number of parts, the first part that no entry yields.
    fn missing_parts(&self, file: &TowerFile<'_>) -> Result<Vec<String>> {
        let mut missing = Vec::new();
        for entry in &self.card.entries {
            let (Some(n), None, Some(pattern)) = (&entry.n, entry.join, entry.patterns.first()) else {
                continue;
            };
            let placeholder = number_of(pattern);
            // If there are more parts than tensors, some part has none.
            let n = self.count(entry.name(), n, Captures::default())?.min(self.weights.len() as u64 + 1);
            for number in 0..n {
                let captures = Captures::default().with(placeholder, Some(number));
                let bid = match &entry.bid {
                    Some(bid) => Some(self.count(entry.name(), bid, captures)?),
                    None => captures.bid,
                };
                let target = entry.targets.first();
                let target = target.and_then(|to| to.name.render(captures.with(Placeholder::Bid, bid)));
                if target.is_some_and(|target| !file.has_weight(&target)) {
                    let name = pattern.render(captures).unwrap_or_default();
                    missing.push(self.as_stored(if entry.exact { name } else { name + WEIGHT }));
                    break;
                }
            }
        }
        Ok(missing)
    }

    /// Returns the checkpoint's name of a target. If several entries yield it, the entry with the most similarly named
    /// tensors is used.
    fn stored_name(&self, target: &str) -> String {
        let suffix = SUFFIXES.iter().chain(&names::BOUNDS).find(|suffix| target.ends_with(**suffix)).copied();
        let mut best: Option<(usize, String)> = None;
        for entry in &self.card.entries {
            let Some(pattern) = entry.patterns.first() else { continue };
            for to in &entry.targets {
                let whole = to.name.matches(target).map(|captures| (captures, ""));
                let bare = || {
                    let suffix = suffix?;
                    let captures = to.name.matches(target.strip_suffix(suffix)?)?;
                    Some((captures, if entry.exact { "" } else { suffix }))
                };
                let Some((captures, suffix)) = whole.or_else(bare) else { continue };
                let captures = self.in_source(entry, captures);
                let Some(name) = pattern.render(captures) else { continue };
                let head = pattern.text().split('{').next().unwrap_or("");
                let head = head.rsplit_once('.').map_or("", |parts| parts.0);
                let n_like = self.names.iter().filter(|name| name.starts_with(head)).count();
                if best.as_ref().is_none_or(|(most, _)| n_like > *most) {
                    best = Some((n_like, name + suffix));
                }
            }
        }
        best.map_or_else(|| target.to_owned(), |(_, name)| self.as_stored(name))
    }

    /// Returns the captures of a source from those of its target.
    fn in_source(&self, entry: &TensorEntry, captures: Captures) -> Captures {
        let Some(bid) = &entry.bid else { return captures };
        let placeholder = entry.patterns.first().map_or(Placeholder::Bid, number_of);
        let sources = (0..=self.weights.len() as u64).map(|n| Captures::default().with(placeholder, Some(n)));
        let mut numbered =
            sources.map_while(|source| Some((source, self.count(entry.name(), bid, source).ok()?)));
        let its = numbered.find(|(_, number)| Some(*number) == captures.bid);
        its.map_or(captures, |(source, _)| source)
    }

    /// Returns a name as the checkpoint would store it, by undoing the rewriting of similarly named tensors.
    pub(super) fn as_stored(&self, name: String) -> String {
        let name = names::as_before_sharing(name);
        let mut best: Option<(usize, String)> = None;
        for (weight, rewritten) in self.weights.iter().zip(&self.names) {
            let (stored_head, head) = differing(&weight.name, rewritten);
            if let Some(rest) = name.strip_prefix(head)
                && (self.card.parts.is_empty() || names::is_of_parts(rewritten, &self.card.parts))
            {
                let n_same = name.bytes().zip(rewritten.bytes()).take_while(|(a, b)| a == b).count();
                if best.as_ref().is_none_or(|(most, _)| n_same > *most) {
                    best = Some((n_same, format!("{stored_head}{rest}")));
                }
            }
        }
        best.map_or(name, |(_, stored)| stored)
    }

    /// Returns the tensor with the nearest name among those that belong to no tower and do not have a text model's
    /// name.
    fn nearest_other(&self, name: &str) -> Option<String> {
        let dropped = self.dropped.iter().filter(|dropped| dropped.why == DropReason::TextModel);
        let names = dropped.map(|dropped| self.weights[dropped.weight].name.as_str());
        names::nearest(name, names.filter(|name| !names::is_of_text_model(name))).map(str::to_owned)
    }
}

/// Returns the placeholder that numbers the sources of a pattern.
fn number_of(pattern: &Pattern) -> Placeholder {
    if pattern.has(Placeholder::Xid) { Placeholder::Xid } else { Placeholder::Bid }
}

/// Returns the differing beginnings of two names whose ends are equal.
fn differing<'n>(stored: &'n str, rewritten: &'n str) -> (&'n str, &'n str) {
    let same = stored.bytes().rev().zip(rewritten.bytes().rev()).take_while(|(a, b)| a == b).count();
    let (stored_len, rewritten_len) = (stored.len() - same, rewritten.len() - same);
    // Only whole parts: up to the first dot of the common end, unless one name is a suffix of the other.
    let rest = stored.get(stored_len..).unwrap_or("");
    let skipped = match rest.find('.') {
        Some(at) if stored_len > 0 && rewritten_len > 0 => at + 1,
        _ => 0,
    };
    (stored.get(..stored_len + skipped).unwrap_or(""), rewritten.get(..rewritten_len + skipped).unwrap_or(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_rewriting_changed_is_found() {
        for (stored, rewritten, heads) in [
            ("vision_tower.a.b", "model.vision_tower.a.b", ("", "model.")),
            ("model.visual.a.b", "visual.a.b", ("model.", "")),
            (
                "audio_encoder.whisper.layers.0.a",
                "audio_tower.layers.0.a",
                ("audio_encoder.whisper.", "audio_tower."),
            ),
            ("a.b", "a.b", ("", "")),
        ] {
            assert_eq!(differing(stored, rewritten), heads, "{stored}");
        }
    }
}

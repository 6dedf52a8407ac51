//! Models that store one matrix for embedding and head: under the head's name only, or for a runtime that reads two.

use crate::Result;
use std::collections::BTreeMap;

use crate::apply::assign::{Assigner, Emission, EmissionKey};
use crate::apply::tied::{EMBEDDING, HEAD, USUAL_HEAD, is_named};
use crate::judge::needs;
use crate::language::names::{self, Captures, SUFFIXES};
use crate::read::schema::{CardKind, TensorEntry};

impl Assigner<'_> {
    /// Returns the head that is stored in place of the embedding, and the embedding's name. Of two names that share
    /// their data only one is saved, and transformers accepts either for both.
    pub(super) fn tied_head(&self) -> Result<Option<(usize, String)>> {
        let is_needed = self.card.outputs.iter().any(|output| is_named(output.text(), EMBEDDING));
        if self.is_part || !self.heads.expects_model() || !is_needed || self.is_untied {
            return Ok(None);
        }
        let names = self.rewritten()?;
        let mut embedding = None;
        for entry in self.entries_of(EMBEDDING) {
            for pattern in &entry.patterns {
                let name = full_name(entry, pattern.text());
                if names.contains(&name) || names.iter().any(|name| name == pattern.text()) {
                    return Ok(None);
                }
                let is_free = pattern.placeholders().next().is_none() && embedding.is_none();
                if is_free && self.holds(entry.name(), entry.when.as_ref(), Captures::default())? {
                    embedding = Some(name);
                }
            }
        }
        Ok(self.heads_of(&names).first().copied().zip(embedding))
    }

    /// Adds the head of a model that stores one matrix for embedding and head, where llama.cpp's loader requires a head.
    pub(super) fn add_required_head(&mut self) -> Result<()> {
        let is_text = self.card.kind == CardKind::Text && !self.is_part && self.heads.expects_model();
        if !is_text || self.is_untied || !needs::requires(&self.card.gguf, "output.weight") {
            return Ok(());
        }
        let yields =
            |entry: &TensorEntry, tensor| entry.targets.iter().any(|to| is_named(to.name.text(), tensor));
        // A bias of the head may be stored without its weight.
        let of = |tensor| {
            let is_weight = |key: &EmissionKey| key.suffix != ".bias";
            self.emissions
                .iter()
                .find(|(key, _)| is_weight(key) && yields(&self.card.entries[key.entry], tensor))
        };
        let (None, Some((_, embedding))) = (of(HEAD), of(EMBEDDING)) else { return Ok(()) };
        let (weight, captures) = (embedding.last, Captures::default());
        for (index, entry) in self.card.entries.iter().enumerate() {
            let is_plain = entry.targets.len() == 1 && entry.join.is_none();
            if is_plain && yields(entry, HEAD) && self.holds(entry.name(), entry.when.as_ref(), captures)? {
                let suffix = if entry.exact { "" } else { SUFFIXES[0] };
                let head = Emission { parts: BTreeMap::from([(0, weight)]), last: weight };
                self.emissions.insert(EmissionKey { entry: index, captures, suffix }, head);
                break;
            }
        }
        Ok(())
    }

    /// Returns the weights that are named like the model's output head.
    pub(super) fn stored_heads(&self) -> Result<Vec<usize>> {
        Ok(self.heads_of(&self.rewritten()?))
    }

    fn heads_of(&self, names: &[String]) -> Vec<usize> {
        let heads = self
            .entries_of(HEAD)
            .flat_map(|entry| entry.patterns.iter().map(|pattern| full_name(entry, pattern.text())));
        let heads: Vec<String> = heads.chain([USUAL_HEAD.to_owned()]).collect();
        (0..names.len()).filter(|&weight| heads.contains(&names[weight])).collect()
    }

    /// Returns the names of all weights after rewriting.
    fn rewritten(&self) -> Result<Vec<String>> {
        let names = self.weights.iter().map(|weight| names::shared_rewrite(&weight.name));
        names.map(|name| self.matcher.rewritten(name)).collect()
    }

    /// Returns the entries that yield a tensor of the file.
    fn entries_of<'e>(&'e self, tensor: &'e str) -> impl Iterator<Item = &'e TensorEntry> {
        self.card
            .entries
            .iter()
            .filter(move |entry| entry.targets.iter().any(|target| is_named(target.name.text(), tensor)))
    }
}

/// Returns a source's name with the ending of its weight.
fn full_name(entry: &TensorEntry, pattern: &str) -> String {
    if entry.exact { pattern.to_owned() } else { format!("{pattern}.weight") }
}

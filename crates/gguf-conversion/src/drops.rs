//! Tensors that are left out by the option `--drop`.

use std::sync::Arc;

use regex::Regex;

use crate::left_out::first_names;
use crate::lora::module_name;
use gguf_checkpoint::SelectedWeights;
use gguf_core::WeightSource;
use gguf_core::account::{Fate, Piece, PieceKind};
use gguf_core::text::plural;

/// Patterns of a run, with the names that each has matched.
pub(super) struct Drops<'a>(Vec<(&'a Regex, Vec<String>)>);

impl<'a> Drops<'a> {
    pub(super) fn of(patterns: &'a [Regex]) -> Self {
        Self(patterns.iter().map(|pattern| (pattern, Vec::new())).collect())
    }

    /// Removes the weights whose names match from the source.
    pub(super) fn apply(&mut self, source: Box<dyn WeightSource + Send>) -> Box<dyn WeightSource + Send> {
        let mut any = false;
        for (pattern, found) in &mut self.0 {
            let names = source.weights().iter().map(|meta| &meta.name).filter(|name| pattern.is_match(name));
            let before = found.len();
            found.extend(names.cloned());
            any |= found.len() > before;
        }
        if !any {
            return source;
        }
        let keeps = |name: &str| !self.0.iter().any(|(pattern, _)| pattern.is_match(name));
        Box::new(SelectedWeights::only(Arc::from(source), keeps))
    }

    /// Returns the tensors that are left out.
    pub(super) fn pieces(&self) -> impl Iterator<Item = Piece> {
        let of = |(pattern, found): &(&Regex, Vec<String>)| {
            let why = format!("`--drop {pattern}` leaves it out");
            let piece = |name: &String| Piece::not(PieceKind::Tensor, name, Fate::LeftOut, &*why);
            found.iter().map(piece).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of)
    }

    /// Returns a message about the matches of each pattern.
    pub(super) fn warnings(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|(pattern, found)| {
            let names: Vec<&str> = found.iter().map(String::as_str).collect();
            match names.len() {
                0 => unmatched(pattern),
                1 => format!("`--drop {pattern}` leaves out 1 tensor: {}", first_names(&names)),
                n => format!("`--drop {pattern}` leaves out {n} tensors: {}", first_names(&names)),
            }
        })
    }
}

/// Returns the warning about a pattern without effect.
pub(super) fn unmatched(pattern: &Regex) -> String {
    format!("`--drop {pattern}` matches no tensor of the checkpoint")
}

/// Returns true if a pattern matches a tensor of an adapter: its name in the file, or that without PEFT's wrapper.
pub(super) fn matches(pattern: &Regex, name: &str) -> bool {
    pattern.is_match(name) || pattern.is_match(&module_name(name))
}

/// Marks the tensors of an adapter that patterns leave out among its pieces. Returns the messages with those about them:
/// a pattern may match tensors of the base, of the adapter, or of both.
pub(super) fn of_adapter(patterns: &[Regex], mut messages: Vec<String>, pieces: &mut [Piece]) -> Vec<String> {
    for pattern in patterns {
        let mut names = Vec::new();
        for piece in pieces.iter_mut().filter(|piece| piece.kind == PieceKind::Tensor) {
            if matches(pattern, &piece.name) {
                names.push(piece.name.clone());
                let why = format!("`--drop {pattern}` leaves it out");
                *piece = Piece::not(PieceKind::Tensor, &piece.name, Fate::LeftOut, why);
            }
        }
        if !names.is_empty() {
            let unmatched = unmatched(pattern);
            messages.retain(|message| *message != unmatched);
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            messages.push(format!(
                "`--drop {pattern}` leaves out {} of the adapter: {}",
                plural(names.len() as u64, "tensor"),
                first_names(&names)
            ));
        }
    }
    messages
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_core::ElementType;
    use gguf_testkit::memory::MemoryWeights;

    #[test]
    fn what_matches_is_gone_and_counted() {
        let mut source = MemoryWeights::default();
        for (at, name) in (0..).zip(["a", "v.1", "v.2", "v.3", "v.4", "b"]) {
            source.add(name, &[1], ElementType::U8, vec![at]);
        }
        let patterns = ["^v", "x", "1$"].map(|text| Regex::new(text).unwrap());
        let mut drops = Drops::of(&patterns);
        let left = drops.apply(Box::new(source));
        let names: Vec<&str> = left.weights().iter().map(|meta| meta.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        let mut out = [0];
        left.read_elems(1, 0, &mut out).unwrap();
        assert_eq!(out, [5]);
        assert_eq!(
            drops.warnings().collect::<Vec<_>>(),
            [
                "`--drop ^v` leaves out 4 tensors: `v.1`, `v.2`, `v.3`, …",
                "`--drop x` matches no tensor of the checkpoint",
                "`--drop 1$` leaves out 1 tensor: `v.1`",
            ]
        );
    }
}

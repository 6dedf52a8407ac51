//! What becomes of the tensors and notes of an image or video model.

use std::collections::{HashMap, HashSet};

use super::PlannedTensor;
use gguf_arch::diffusion::{DiffusionCard, NamePrefix};
use gguf_core::account::{Fate, Piece, PieceKind};
use gguf_format::Metadata;

/// Marks the notes of headers that are keys of the file.
pub(super) fn of_notes(mut notes: Vec<Piece>, metadata: &Metadata) -> Vec<Piece> {
    for piece in &mut notes {
        let key = piece.name.strip_prefix("__metadata__.").unwrap_or_default().to_owned();
        if metadata.contains(&key) {
            let written = Piece::written(piece.kind, &*piece.name, vec![key]);
            *piece = Piece { file: piece.file.take(), ..written };
        }
    }
    notes
}

/// Returns what becomes of each tensor.
pub(super) fn of_tensors(
    names: &[&str],
    prefix: NamePrefix<'_>,
    card: &DiffusionCard,
    planned: &[PlannedTensor],
    dropped: &HashSet<String>,
) -> Vec<Piece> {
    let made: HashMap<&str, &str> = planned
        .iter()
        .flat_map(|tensor| tensor.sources.iter().map(|source| (source.as_str(), tensor.meta.name.as_str())))
        .collect();
    let piece = |name: &&str| {
        let not = |fate, why| Piece::not(PieceKind::Tensor, *name, fate, why);
        let written = |to: String| Piece::written(PieceKind::Tensor, *name, vec![to]);
        match prefix.strip(name) {
            None => not(Fate::LeftOut, "it is of another model of the checkpoint"),
            Some(own) => match made.get(own.as_str()) {
                Some(to) => written((*to).to_owned()),
                None if dropped.contains(&own) => not(Fate::LeftOut, "`--drop` leaves it out"),
                None if card.leaves_out(&own) => not(Fate::WithoutEffect, "runtimes do not read it"),
                None => written("the weight with this factor".to_owned()),
            },
        }
    };
    names.iter().map(piece).collect()
}

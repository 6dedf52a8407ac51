//! The account of an adapter: what becomes of its files, of the keys of its configuration, and of its tensors.

use std::collections::HashMap;

use crate::lora::AdapterConversion;
use crate::lora::config::AdapterConfig;
use crate::lora::parts::AdapterParts;
use gguf_arch::{DropReason, Mapping};
use gguf_checkpoint::AdapterDir;
use gguf_checkpoint::pieces::of_file;
use gguf_core::WeightSource as _;
use gguf_core::account::{Fate, Piece, PieceKind};

/// Returns what becomes of the keys of an adapter's configuration, and of its tensors. `made` has the names of what each
/// tensor is part of, `dropped` the reasons for others.
pub(super) fn of(
    config: &AdapterConfig,
    adapter: &AdapterDir,
    made: Vec<Vec<String>>,
    dropped: &HashMap<usize, &DropReason>,
) -> Vec<Piece> {
    let tensors = adapter.weights().iter().zip(made).enumerate();
    let tensors = tensors.map(|(at, (meta, to))| match dropped.get(&at) {
        _ if !to.is_empty() => Piece::written(PieceKind::Tensor, &meta.name, to),
        Some(why) => Piece::not(PieceKind::Tensor, &meta.name, Fate::LeftOut, why.to_string()),
        None => {
            let why = "a copy of a tensor of the base model, whose own counts";
            Piece::not(PieceKind::Tensor, &meta.name, Fate::WithoutEffect, why)
        }
    });
    config.pieces.iter().cloned().chain(adapter.notes()).chain(tensors).collect()
}

/// Returns the reasons for the tensors of an adapter that a mapping leaves out, by their index.
pub(super) fn dropped<'m>(parts: &AdapterParts, mapping: &'m Mapping) -> HashMap<usize, &'m DropReason> {
    let places = |weight: usize| match weight.checked_sub(parts.whole.len()) {
        None => vec![parts.whole[weight].index],
        Some(pair) => parts.pairs.get(pair).map(|pair| vec![pair.a, pair.b]).unwrap_or_default(),
    };
    let rows = mapping.dropped.iter();
    rows.flat_map(|row| places(row.weight).into_iter().map(|at| (at, &row.why))).collect()
}

impl AdapterConversion {
    /// Returns the account of the adapter: files, keys, tensors, each in their own order.
    pub fn account(&self) -> Vec<Piece> {
        let own: Vec<_> = self.adapter.paths();
        let file = |name: &String| {
            let is_own = own.iter().any(|path| path.file_name().is_some_and(|own| own == name.as_str()));
            let (kind, piece) = (PieceKind::File, of_file(name));
            match piece.fate {
                _ if is_own => Piece::written(kind, name, vec!["keys and tensors, listed below".to_owned()]),
                Fate::Written if name != "README.md" => {
                    Piece::not(kind, name, Fate::WithoutEffect, "a GGUF adapter has matrices only")
                }
                _ => piece,
            }
        };
        let names = self.adapter.dir().file_names().unwrap_or_default();
        names.iter().map(file).chain(self.pieces.iter().cloned()).collect()
    }
}

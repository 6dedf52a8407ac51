//! Options with which a file was converted, derived from the file. A file is compared with a conversion under the same
//! options.

use std::collections::HashSet;

use crate::{Conversion, ConvertOptions};
use gguf_arch::{CardKind, DraftHeads, Fuse};
use gguf_core::{TensorMeta, TensorSource};
use gguf_format::{Metadata, Value};

/// Options that determine the tensors of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShownOptions {
    /// Part of the model: the text model or its towers.
    pub kind: CardKind,
    /// Treatment of draft heads.
    pub heads: DraftHeads,
    /// Tensors that were joined.
    pub fuse: Fuse,
    /// True if the model was converted as a reranker.
    pub rerank: bool,
    /// True if the dense modules of sentence-transformers were included.
    pub dense_modules: bool,
}

impl ShownOptions {
    /// Derives the options from a file's keys only.
    pub fn by_keys(metadata: &Metadata) -> Self {
        let arch = metadata.get("general.architecture").and_then(Value::as_str);
        let kind = if arch == Some("clip") { CardKind::Mmproj } else { CardKind::Text };
        Self { kind, ..Self::default() }
    }

    /// Derives the options from the differences between a file and `plain`, the conversion of its checkpoint without
    /// any of them.
    pub fn between(plain: &Conversion, metadata: &Metadata, tensors: &[TensorMeta]) -> Self {
        let by_keys = Self::by_keys(metadata);
        if by_keys.kind == CardKind::Mmproj {
            return if by_keys == Self::by_keys(plain.metadata()) { Self::default() } else { by_keys };
        }
        let own: HashSet<&str> = plain.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
        let names: HashSet<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        let has_more = |ending: &str| names.iter().any(|name| name.ends_with(ending) && !own.contains(name));
        let starts = |names: &HashSet<&str>, start: &str| names.iter().any(|name| name.starts_with(start));
        let heads = match (n_draft_blocks(plain.metadata()), n_draft_blocks(metadata)) {
            (0, _) => DraftHeads::Kept,
            (_, 0) => DraftHeads::Dropped,
            _ if starts(&own, "blk.0.") && !starts(&names, "blk.0.") => DraftHeads::Alone,
            _ => DraftHeads::Kept,
        };
        Self {
            kind: CardKind::Text,
            heads,
            fuse: Fuse {
                qkv: has_more(".attn_qkv.weight"),
                gate_up_exps: has_more(".ffn_gate_up_exps.weight"),
            },
            rerank: has_more("cls.output.weight"),
            dense_modules: has_more("dense_2.weight"),
        }
    }

    /// Applies these options to those of the plain conversion.
    pub fn of(self, plain: ConvertOptions) -> ConvertOptions {
        let Self { kind, heads, fuse, rerank, dense_modules } = self;
        ConvertOptions { kind, dense_modules, rerank, heads, fuse, ..plain }
    }

    /// Names of the options on the command line.
    pub fn names(self) -> Vec<&'static str> {
        let named = [
            (self.kind == CardKind::Mmproj, "--mmproj"),
            (self.fuse.qkv, "--fuse-qkv"),
            (self.fuse.gate_up_exps, "--fuse-gate-up-exps"),
            (self.rerank, "--rerank"),
            (self.dense_modules, "--sentence-transformers-dense-modules"),
        ];
        let named = named.into_iter().filter(|(is_shown, _)| *is_shown).map(|(_, name)| name);
        self.heads.option().into_iter().chain(named).collect()
    }
}

fn n_draft_blocks(metadata: &Metadata) -> u64 {
    let arch = metadata.get("general.architecture").and_then(Value::as_str).unwrap_or_default();
    metadata.get(&format!("{arch}.nextn_predict_layers")).and_then(Value::as_u64).unwrap_or(0)
}

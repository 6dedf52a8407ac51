//! The account of a checkpoint: what becomes of each of its files, of each key of its configuration, and of each tensor.
//!
//! It is read off the plan of a conversion, so that it says what the plan does: which tensors an output is made of, which
//! are left out and why, which keys of the file a key of the configuration decides.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use crate::Conversion;
use gguf_arch::{DropReason, KeyFate};
use gguf_core::TensorSource as _;

/// Kind of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PieceKind {
    /// A file of the folder.
    File,
    /// A key of the configuration.
    Key,
    /// A tensor.
    Tensor,
}

/// What becomes of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// It is in the output.
    Written,
    /// The output needs nothing of it.
    WithoutEffect,
    /// It matters, and the output does not have it.
    LeftOut,
    /// No rule knows it.
    Unknown,
}

/// A piece of a checkpoint, and what becomes of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Piece {
    /// Kind of the piece: `file`, `key` or `tensor`.
    #[serde(rename = "of")]
    pub kind: PieceKind,
    /// Name of the file, key (with dots for nested members), or tensor.
    pub name: String,
    /// What becomes of it: `written`, `without-effect`, `left-out` or `unknown`.
    pub fate: Fate,
    /// Keys or tensors of the output that are made of it.
    pub to: Vec<String>,
    /// Reason, if it is not written.
    pub why: Option<String>,
}

impl Piece {
    fn written(kind: PieceKind, name: &str, to: Vec<String>) -> Self {
        Self { kind, name: name.to_owned(), fate: Fate::Written, to, why: None }
    }

    fn not(kind: PieceKind, name: &str, fate: Fate, why: impl Into<String>) -> Self {
        Self { kind, name: name.to_owned(), fate, to: Vec::new(), why: Some(why.into()) }
    }
}

/// What a file becomes, or its fate with the reason.
type FileFate = Result<&'static str, (Fate, &'static str)>;

/// Files by their names or endings, and what becomes of them. The first row that fits counts.
const FILES: &[(&[&str], FileFate)] = &[
    (&["config.json", "params.json"], Ok("keys, listed below")),
    (
        &[
            "tokenizer.json",
            "tokenizer_config.json",
            "tokenizer.model",
            "tokenizer.model.v1",
            "tokenizer.model.v3",
            "special_tokens_map.json",
            "added_tokens.json",
            "vocab.json",
            "vocab.txt",
            "merges.txt",
            "spiece.model",
            "sentencepiece.bpe.model",
            "spm.model",
            "tekken.json",
            ".tiktoken",
            "chat_template.jinja",
            "chat_template.json",
        ],
        Ok("tokenizer.*"),
    ),
    (&["generation_config.json"], Ok("special tokens and sampling defaults")),
    (&["README.md"], Ok("general.*")),
    (
        &["modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"],
        Ok("pooling and dense layers"),
    ),
    (
        &["preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"],
        Err((Fate::WithoutEffect, "it is of a tower, which `--mmproj` writes to a file of its own")),
    ),
    (
        &[
            "quantize_config.json",
            "quant_config.json",
            "quantization_config.json",
            "hf_quant_config.json",
            "recipe.yaml",
            "quanto_qmap.json",
        ],
        Ok("read with the weights"),
    ),
    (&[".index.json"], Err((Fate::WithoutEffect, "it lists the files with the weights"))),
    (
        &["adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"],
        Err((Fate::LeftOut, "it is an adapter, which `gguf-convert merge-lora` merges")),
    ),
    (&[".py", ".ipynb", ".lock", ".whl"], Err((Fate::WithoutEffect, "it is code, which is never run"))),
    (
        &[
            "LICENSE",
            "LICENSE.txt",
            "LICENSE.md",
            "NOTICE",
            "NOTICE.txt",
            "USE_POLICY.md",
            ".gitattributes",
            ".md",
            ".txt",
            ".jsonl",
            ".png",
            ".jpg",
            ".jpeg",
            ".gif",
            ".svg",
            ".webp",
            ".pdf",
            ".html",
            ".csv",
            ".bib",
            ".cff",
        ],
        Err((Fate::WithoutEffect, "it is a text or a picture beside the model")),
    ),
    (
        &[
            "training_args.bin",
            "trainer_state.json",
            "optimizer.pt",
            "scheduler.pt",
            "rng_state.pth",
            "scaler.pt",
            "all_results.json",
            "train_results.json",
            "eval_results.json",
            "trainer_log.jsonl",
            "training_args.json",
        ],
        Err((Fate::WithoutEffect, "it is of a training")),
    ),
    (
        &[".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".gguf", ".distcp"],
        Err((Fate::WithoutEffect, "the weights are read from other files of the folder")),
    ),
];

fn of_file(name: &str) -> Piece {
    let fits =
        |names: &&[&str]| names.iter().any(|own| name == *own || own.starts_with('.') && name.ends_with(own));
    match FILES.iter().find(|(names, _)| fits(names)).map(|row| row.1) {
        Some(Ok(to)) => Piece::written(PieceKind::File, name, vec![to.to_owned()]),
        Some(Err((fate, why))) => Piece::not(PieceKind::File, name, fate, why),
        None => Piece::not(PieceKind::File, name, Fate::Unknown, "no rule knows this file: it is not read"),
    }
}

impl Conversion {
    /// Returns the account of the checkpoint: files, keys of the configuration, tensors, each in their own order.
    #[must_use]
    pub fn account(&self) -> Vec<Piece> {
        let mut pieces = self.files();
        pieces.extend(self.keys());
        pieces.extend(self.stored_tensors());
        pieces
    }

    fn files(&self) -> Vec<Piece> {
        let weights: Vec<&str> =
            self.source.paths.iter().filter_map(|path| path.file_name()?.to_str()).collect();
        // A folder that cannot be listed was reported when it was opened.
        let names = self.source.dir.file_names().unwrap_or_default();
        let piece = |name: &String| match of_file(name) {
            piece if !weights.contains(&name.as_str()) || piece.fate == Fate::Written => piece,
            _ => Piece::written(PieceKind::File, name, vec!["tensors, listed below".to_owned()]),
        };
        names.iter().map(piece).collect()
    }

    fn keys(&self) -> impl Iterator<Item = Piece> {
        let mapping = self.mapping();
        let lost = |key: &str| {
            let own = key.rsplit('.').next().unwrap_or(key);
            mapping.lost.iter().find(|lost| lost.key.split('.').next() == Some(own)).map(ToString::to_string)
        };
        mapping.config_keys.iter().map(move |key| {
            let (kind, name) = (PieceKind::Key, key.key.as_str());
            match &key.fate {
                KeyFate::Written(to) => Piece::written(kind, name, to.clone()),
                KeyFate::Tensors => {
                    Piece::written(kind, name, vec!["which tensors there are, and their shapes".to_owned()])
                }
                KeyFate::WithoutEffect(why) => Piece::not(kind, name, Fate::WithoutEffect, *why),
                KeyFate::LeftOut => Piece::not(kind, name, Fate::LeftOut, lost(name).unwrap_or_default()),
                KeyFate::Unknown => {
                    Piece::not(kind, name, Fate::Unknown, "no rule knows this key: it is not read")
                }
            }
        })
    }

    /// Returns the stored tensors: those that an output is made of, members of quantized weights among them, then the others
    /// with their reason.
    fn stored_tensors(&self) -> Vec<Piece> {
        let weights = self.weights();
        let mut outputs: HashMap<&str, Vec<String>> = HashMap::new();
        for (at, tensor) in self.tensors().iter().enumerate() {
            for source in self.sources(at) {
                outputs.entry(source).or_default().push(tensor.name.clone());
            }
        }
        let dropped: HashMap<&str, &DropReason> = self.dropped().collect();
        let of_weight = |name: &str| match (outputs.get(name), dropped.get(name)) {
            (Some(to), _) => Piece::written(PieceKind::Tensor, name, to.clone()),
            (None, Some(why)) => Piece::not(PieceKind::Tensor, name, fate_of(why), why.to_string()),
            (None, None) => Piece::not(PieceKind::Tensor, name, Fate::LeftOut, "no output is made of it"),
        };
        let stems: BTreeMap<&str, &str> = weights
            .iter()
            .map(|weight| (weight.name.strip_suffix(".weight").unwrap_or(&weight.name), weight.name.as_str()))
            .collect();
        let of_member = |name: &str| {
            let whole = name.match_indices(['.', '_']).rev().find_map(|(end, _)| stems.get(&name[..end]));
            match whole.map(|whole| of_weight(whole)) {
                Some(piece) => Piece { name: name.to_owned(), ..piece },
                None => Piece::written(PieceKind::Tensor, name, vec!["a quantized weight".to_owned()]),
            }
        };
        let left = self.source.quantization.iter().flat_map(|own| &own.left_out);
        let left = left.map(|name| Piece::not(PieceKind::Tensor, name, Fate::WithoutEffect, UNUSED));
        let members = self.source.stored.iter().map(|stored| of_member(&stored.name));
        weights.iter().map(|weight| of_weight(&weight.name)).chain(members).chain(left).collect()
    }
}

/// Reason for the scales that no output needs.
const UNUSED: &str = "a scale of activations or caches, which GGUF does not have";

fn fate_of(why: &DropReason) -> Fate {
    match why {
        DropReason::OtherModality
        | DropReason::DraftHead
        | DropReason::NotDraftHead
        | DropReason::TextModel => Fate::LeftOut,
        DropReason::Recomputed
        | DropReason::Training
        | DropReason::FromConfiguration
        | DropReason::SameAs(_)
        | DropReason::Card(_) => Fate::WithoutEffect,
    }
}

//! Configuration files beside the weights of a folder of diffusers: what the tensors do not show.

use std::path::PathBuf;

use serde_json::{Map, Value as Json};

use super::DiffusionError;
use super::layout::Own;
use crate::ConvertError;
use gguf_arch::diffusion::{DiffusionCard, Setting};
use gguf_core::account::{Fate, Piece, PieceKind};
use gguf_core::{ElementType, Shape, WeightSource};
use gguf_dequant::ImageWeights;
use gguf_views::View;

/// Configuration of the model.
pub(super) const CONFIG: &str = "config.json";

/// Configuration files of the model and of its pipeline, by their names in cards.
pub(super) struct Folder(pub(super) Vec<(&'static str, Map<String, Json>)>);

impl Folder {
    fn get(&self, file: &str, key: &str) -> Option<&Json> {
        self.0.iter().find(|row| row.0 == file)?.1.get(key)
    }

    /// Class that the configuration names.
    pub(super) fn class(&self) -> Option<&str> {
        self.get(CONFIG, "_class_name")?.as_str()
    }

    /// Adds to an error about weights that the configuration names a quantization.
    pub(super) fn explain(&self, error: ConvertError) -> ConvertError {
        let named = self.get(CONFIG, "quantization_config").and_then(|own| own.get("quant_method"));
        let is_about_weights = match &error {
            ConvertError::Dequant(_) => true,
            ConvertError::Diffusion(error) => error.is_about_weights(),
            _ => false,
        };
        match named.and_then(Json::as_str).filter(|_| is_about_weights) {
            Some(method) => {
                DiffusionError::Quantized { method: method.to_owned(), problem: error.to_string() }.into()
            }
            None => error,
        }
    }

    /// Returns the settings that hold in this folder, and which the checkpoint shows by no tensor.
    pub(super) fn unmarked<'a>(
        &self,
        card: &'a DiffusionCard,
        has: impl Fn(&str) -> bool,
    ) -> Vec<&'a Setting> {
        let is_found = |(key, value): (&String, &Json)| self.get(CONFIG, key) == Some(value);
        let holds = |row: &&Setting| {
            self.get(&row.file, &row.key).is_some_and(|value| row.values.contains(value))
                && !row.found_with.iter().any(is_found)
        };
        card.settings.iter().filter(holds).filter(|row| !has(&row.marker)).collect()
    }
}

/// Returns the tensor without values that shows a setting; nothing of a weight is in it.
pub(super) fn marker(setting: &Setting, weights: &ImageWeights) -> Option<Own> {
    let (at, meta) = weights.weights().iter().enumerate().find(|(_, meta)| meta.shape.rank() == 1)?;
    Some(Own {
        name: setting.marker.clone(),
        shape: Shape::new(vec![0])?,
        view: View::weight(at, meta).slice(0, 0, 0).ok()?,
        stored: ElementType::F32,
        is_wider: false,
        sources: Vec::new(),
    })
}

/// Returns what becomes of the configuration of the model, which may be among the files that are read.
pub(super) fn account(written: &[&Setting], paths: &[PathBuf]) -> Vec<Piece> {
    if !paths.iter().any(|path| path.ends_with(CONFIG)) {
        return Vec::new();
    }
    let key = |row: &&Setting| {
        Piece::written(PieceKind::Key, &*row.key, vec![row.marker.clone()]).within(&row.file)
    };
    let rest = "runtimes take the model's numbers from its tensors";
    let file = Piece::not(PieceKind::File, CONFIG, Fate::WithoutEffect, rest);
    std::iter::once(file).chain(written.iter().map(key)).collect()
}

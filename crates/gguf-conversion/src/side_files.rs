//! Inputs of cards: the headers of a checkpoint, and the small files next to the weights.

use serde_json::{Map, Value as Json};

use crate::{ConvertError, ModelSource, modules, pooling};
use gguf_arch::{ArchError, CardKind, Inputs, Pooling, settle_preprocessor};
use gguf_checkpoint::{CheckpointError, ModelDir};
use gguf_core::{WeightMeta, WeightSource};

/// Small files next to the weights that cards read.
pub(super) struct SideFiles {
    tokenizer_config: Option<Map<String, Json>>,
    generation_config: Option<Map<String, Json>>,
    preprocessor: Option<Map<String, Json>>,
    folders: Option<Map<String, Json>>,
    files: Vec<String>,
    pooling: Option<Pooling>,
}

impl SideFiles {
    /// Reads the files. Oddities are added to `warnings`. Towers need the preprocessing of images to be right.
    pub(super) fn read(
        dir: &ModelDir,
        kind: CardKind,
        warnings: &mut Vec<String>,
    ) -> Result<Self, ConvertError> {
        let mut optional = |name| optional_json(dir, name, warnings);
        let (tokenizer_config, generation_config) =
            (optional("tokenizer_config.json")?, optional("generation_config.json")?);
        let mut needed = |name| if kind == CardKind::Mmproj { Ok(dir.json(name)?) } else { optional(name) };
        let mut preprocessor = merged([
            (needed("preprocessor_config.json")?, "media_proc_cfg"),
            (needed("processor_config.json")?, "image_processor"),
        ]);
        if let Some(preprocessor) = preprocessor.as_mut().filter(|_| kind == CardKind::Mmproj) {
            settle_preprocessor(preprocessor).map_err(ArchError::from)?;
        }
        Ok(Self {
            tokenizer_config,
            generation_config,
            preprocessor,
            folders: folders(dir)?,
            files: dir.file_names()?,
            pooling: pooling::read(dir)?,
        })
    }

    /// Returns the inputs of a card: these files, the configuration, and the headers of the weights.
    pub(super) fn inputs<'a>(&'a self, source: &'a ModelSource, weights: &'a [WeightMeta]) -> Inputs<'a> {
        Inputs {
            values: source.weights.as_deref().map(|weights| weights as &dyn WeightSource),
            stored: &source.stored,
            added_biases: source.quantization.as_ref().map_or(&[][..], |own| own.added_biases.as_slice()),
            tokenizer_config: self.tokenizer_config.as_ref(),
            generation_config: self.generation_config.as_ref(),
            preprocessor: self.preprocessor.as_ref(),
            folders: self.folders.as_ref(),
            files: &self.files,
            pooling: self.pooling,
            ..Inputs::of_headers(source.dir.config(), weights)
        }
    }
}

/// Merges the preprocessor configurations of images and sounds. Later files override earlier ones, and a file's named
/// member overrides the file. A null key counts as absent.
///
/// # Exactness
/// Equals the constructor of `MmprojModel` in llama.cpp 0.5.0.
fn merged(files: [(Option<Map<String, Json>>, &str); 2]) -> Option<Map<String, Json>> {
    let mut all: Option<Map<String, Json>> = None;
    for (file, member) in files {
        let Some(file) = file else { continue };
        let inner = file.get(member).and_then(Json::as_object).cloned();
        let all = all.get_or_insert_default();
        all.extend(file.into_iter().chain(inner.unwrap_or_default()).filter(|(_, value)| !value.is_null()));
    }
    all
}

/// Reads the configurations of the folders that hold parts of a model's towers, by folder.
fn folders(dir: &ModelDir) -> Result<Option<Map<String, Json>>, ConvertError> {
    let Some(folder) = modules::tower_folder(dir) else { return Ok(None) };
    let Some(config) = dir.json(&format!("{folder}/config.json"))? else { return Ok(None) };
    Ok(Some(Map::from_iter([(folder.to_owned(), config.into())])))
}

/// Reads an optional JSON file; a broken one only causes a warning, as in the reference.
fn optional_json(
    dir: &ModelDir,
    name: &str,
    warnings: &mut Vec<String>,
) -> Result<Option<Map<String, Json>>, ConvertError> {
    match dir.json(name) {
        Ok(map) => Ok(map),
        Err(CheckpointError::Io(error)) => Err(error.into()),
        Err(error) => {
            warnings.push(format!("{error}; the file is left out"));
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_files_and_their_members_win() {
        let map = |text: &str| serde_json::from_str::<Map<String, Json>>(text).ok();
        let first = map(r#"{"a": 1, "b": 1, "media_proc_cfg": {"b": 2, "c": 2}}"#);
        let second = map(r#"{"c": 3, "d": 3, "image_processor": {"d": 4}}"#);
        let all = merged([(first, "media_proc_cfg"), (second, "image_processor")]).unwrap();
        let value = |key: &str| all.get(key).and_then(Json::as_u64);
        assert_eq!([value("a"), value("b"), value("c"), value("d")], [Some(1), Some(2), Some(3), Some(4)]);
        assert_eq!(merged([(None, "a"), (None, "b")]), None);
    }
}

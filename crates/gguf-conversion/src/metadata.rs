//! The keys `general.*`: authorship, origin, licence, and sampling defaults of a model.
//!
//! Sources in order of precedence: the name given by the user, the override file, the model card, `_name_or_path` of
//! the configuration, the name of the directory. The sampling keys come from `generation_config.json`.

use std::path::Path;

use serde_json::{Map, Value as Json};

use crate::model_card::{CardError, parse_card};
use crate::naming::{FileName, IdParts, ParameterCounts, split_id, title};
use gguf_checkpoint::json::as_f64;
use gguf_checkpoint::{CheckpointError, ModelDir, config};
use gguf_core::numeric::held_by_f32;
use gguf_core::text::escape;
use gguf_format::{Array, Value};

/// Files with general metadata about a model, as read.
#[derive(Clone, Debug, Default)]
pub struct MetadataFiles {
    /// Front matter of the model card.
    pub card: Map<String, Json>,
    /// Contents of `generation_config.json`.
    pub generation_config: Map<String, Json>,
    /// Contents of the override file; keys have their full names.
    pub overrides: Map<String, Json>,
    /// Parts of the files that could not be used.
    pub warnings: Vec<MetadataWarning>,
}

impl MetadataFiles {
    /// Reads the files of a checkpoint, and the override file if one is given.
    ///
    /// A broken model card or generation configuration only causes a warning: models are published with such files.
    ///
    /// # Errors
    /// [`CheckpointError`] for the override file; I/O errors.
    pub fn read(dir: &ModelDir, override_file: Option<&Path>) -> Result<Self, CheckpointError> {
        let mut files = Self::default();
        match dir.text("README.md") {
            Ok(card) => files.add_card(card.as_deref().unwrap_or_default()),
            Err(CheckpointError::Io(error)) => return Err(error.into()),
            Err(error) => files.warnings.push(MetadataWarning::FileIgnored { reason: error.to_string() }),
        }
        match dir.json("generation_config.json") {
            Ok(map) => files.generation_config = map.unwrap_or_default(),
            Err(CheckpointError::Io(error)) => return Err(error.into()),
            Err(error) => files.warnings.push(MetadataWarning::FileIgnored { reason: error.to_string() }),
        }
        if let Some(path) = override_file {
            files.overrides = config::load_object(path, dir.limits())?;
        }
        Ok(files)
    }

    /// Parses the text of a model card.
    pub fn add_card(&mut self, card: &str) {
        match parse_card(card) {
            Ok(map) => self.card = map,
            Err(error) => self.warnings.push(MetadataWarning::CardIgnored(error)),
        }
    }
}

/// Part of a file that cannot be kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum MetadataWarning {
    #[error("{reason}; the file is left out")]
    FileIgnored { reason: String },
    #[error("README.md: {0}; the model card is left out")]
    CardIgnored(CardError),
    #[error("`{}`: expected {expected}, found `{}`; the value is left out", escape(key), escape(found))]
    WrongKind { key: String, expected: &'static str, found: String },
    #[error("`{}`: not a key that can be overridden", escape(key))]
    UnknownOverride { key: String },
}

/// Inputs that the keys are derived from.
#[derive(Clone, Copy, Debug)]
pub struct MetadataInputs<'a> {
    /// Name of the checkpoint's directory.
    pub dir_name: &'a str,
    /// Contents of `config.json`.
    pub config: &'a Map<String, Json>,
    /// The other files.
    pub files: &'a MetadataFiles,
    /// Name given by the user.
    pub model_name: Option<&'a str>,
    /// Parameter counts of the output.
    pub counts: ParameterCounts,
}

/// Derived keys, and the components of the output file's name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GeneralMetadata {
    /// Keys and values in file order, from `general.sampling.*` to `general.languages`. The caller writes
    /// `general.architecture` and `general.type`, which precede them.
    pub entries: Vec<(String, Value)>,
    /// Values that could not be kept.
    pub warnings: Vec<MetadataWarning>,
    /// Name of a merged adapter, after which files are named: the base's name is that of its own file.
    pub adapter: Option<String>,
    texts: TextFields,
}

impl GeneralMetadata {
    /// Value of `general.name`; empty if there is none.
    pub fn model_name(&self) -> &str {
        let entry = self.entries.iter().find(|entry| entry.0 == "general.name");
        entry.and_then(|entry| entry.1.as_str()).unwrap_or_default()
    }

    /// Default name of the output file. `encoding` is the name of the file type (`F16`, `Q4_K_M`).
    pub fn default_file_name(&self, encoding: &str) -> String {
        let name = FileName {
            size_label: self.texts.size_label.as_deref(),
            encoding: Some(encoding),
            ..self.name()
        };
        name.stem() + ".gguf"
    }

    /// Default name of a file with draft heads only; it has no size, which would be that of the heads.
    pub(crate) fn default_head_file_name(&self, encoding: &str) -> String {
        format!("mtp-{}.gguf", FileName { encoding: Some(encoding), ..self.name() }.stem())
    }

    pub(crate) fn default_adapter_file_name(&self, encoding: &str) -> String {
        let name = FileName {
            size_label: self.texts.size_label.as_deref(),
            encoding: Some(encoding),
            kind: Some("LoRA"),
            ..self.name()
        };
        name.stem() + ".gguf"
    }

    /// Default name of a file with towers only; it has no size, which would be that of the towers.
    pub(crate) fn default_tower_file_name(&self, encoding: &str) -> String {
        format!("mmproj-{}.gguf", FileName { encoding: Some(encoding), ..self.name() }.stem())
    }

    /// Default name of a vocabulary-only file.
    pub fn default_vocab_file_name(&self) -> String {
        FileName { kind: Some("vocab"), ..self.name() }.stem() + ".gguf"
    }

    fn name(&self) -> FileName<'_> {
        if let Some(adapter) = &self.adapter {
            return FileName { name: Some(adapter), ..FileName::default() };
        }
        let texts = &self.texts;
        FileName {
            name: texts.name.as_deref().filter(|name| !name.is_empty()),
            basename: texts.basename.as_deref(),
            finetune: texts.finetune.as_deref(),
            version: texts.version.as_deref(),
            ..FileName::default()
        }
    }
}

/// Returns the key of the file for a key of `generation_config.json`, if it is one of sampling.
pub(super) fn sampling_key(name: &str) -> Option<String> {
    let (own, ..) = SAMPLING.iter().find(|row| row.1 == name)?;
    Some(format!("general.sampling.{own}"))
}

/// Stored type of a sampling value.
#[derive(Clone, Copy)]
enum SamplingKind {
    Text,
    Int,
    Float,
}

/// Sampling keys in file order: name under `general.sampling.`, name in `generation_config.json`, kind.
const SAMPLING: [(&str, &str, SamplingKind); 12] = [
    ("sequence", "sequence", SamplingKind::Text),
    ("top_k", "top_k", SamplingKind::Int),
    ("top_p", "top_p", SamplingKind::Float),
    ("min_p", "min_p", SamplingKind::Float),
    ("xtc_probability", "xtc_probability", SamplingKind::Float),
    ("xtc_threshold", "xtc_threshold", SamplingKind::Float),
    ("temp", "temperature", SamplingKind::Float),
    ("penalty_last_n", "penalty_last_n", SamplingKind::Int),
    ("penalty_repeat", "penalty_repeat", SamplingKind::Float),
    ("mirostat", "mirostat", SamplingKind::Int),
    ("mirostat_tau", "mirostat_tau", SamplingKind::Float),
    ("mirostat_eta", "mirostat_eta", SamplingKind::Float),
];

macro_rules! texts {
    ($( $field:ident = $key:literal, $overridable:literal; )*) => {
        /// Text values in file order.
        #[derive(Clone, Debug, Default, PartialEq)]
        struct TextFields {
            $( $field: Option<String>, )*
        }

        impl TextFields {
            fn rows(&self) -> Vec<(&'static str, Option<&str>)> {
                vec![$( ($key, self.$field.as_deref()) ),*]
            }

            /// Returns the keys that the override file may set, with their fields.
            fn overridable(&mut self) -> Vec<(&'static str, &mut Option<String>)> {
                let mut rows = Vec::new();
                $( if $overridable { rows.push(($key, &mut self.$field)); } )*
                rows
            }
        }
    };
}

texts! {
    name = "general.name", true;
    author = "general.author", true;
    version = "general.version", true;
    organization = "general.organization", true;
    finetune = "general.finetune", true;
    basename = "general.basename", true;
    description = "general.description", true;
    quantized_by = "general.quantized_by", true;
    size_label = "general.size_label", true;
    // ref: the override file does not reach it, keep
    license = "general.license", false;
    license_name = "general.license.name", true;
    license_link = "general.license.link", true;
    url = "general.url", true;
    doi = "general.doi", true;
    uuid = "general.uuid", true;
    repo_url = "general.repo_url", true;
    source_url = "general.source.url", true;
    source_doi = "general.source.doi", true;
    source_uuid = "general.source.uuid", true;
    source_repo_url = "general.source.repo_url", true;
}

/// Keys of a base model or dataset, in file order.
const PARENT_FIELDS: [&str; 9] =
    ["name", "author", "version", "organization", "description", "url", "doi", "uuid", "repo_url"];

/// Fields of a base model or dataset by name.
type Parent = Map<String, Json>;

/// Values collected before they are written out.
#[derive(Default)]
struct MetadataCollector {
    texts: TextFields,
    sampling: [Option<Json>; SAMPLING.len()],
    base_models: Option<Vec<Parent>>,
    datasets: Option<Vec<Parent>>,
    tags: Option<Vec<String>>,
    languages: Option<Vec<String>>,
    warnings: Vec<MetadataWarning>,
}

/// Derives the `general.*` keys.
///
/// # Exactness
/// gguf-py's `Metadata.load` and `set_gguf_meta_model`, with the converter's `prepare_metadata` between them. Numbers
/// where text is expected (`version: 1.5` in a model card) are kept as written; the reference fails on them.
pub fn general_metadata(inputs: &MetadataInputs<'_>) -> GeneralMetadata {
    let mut all =
        MetadataCollector { warnings: inputs.files.warnings.clone(), ..MetadataCollector::default() };
    all.take_card(&inputs.files.card);
    let total = inputs.counts.total;
    let path = inputs.config.get("_name_or_path").and_then(Json::as_str);
    // More than one slash: a path on the author's machine.
    if let Some(id) = path.filter(|id| id.matches('/').count() <= 1) {
        all.take_id(split_id(id, total));
    }
    all.take_id(split_id(inputs.dir_name, total));
    all.take_generation_config(&inputs.files.generation_config);
    all.take_overrides(&inputs.files.overrides);
    if let Some(name) = inputs.model_name {
        all.texts.name = Some(name.to_owned());
    }
    all.texts.name.get_or_insert_with(|| inputs.dir_name.to_owned());
    if total > 0 {
        all.texts.size_label.get_or_insert_with(|| inputs.counts.size_label());
    }
    all.finish()
}

impl MetadataCollector {
    fn wrong_kind(&mut self, key: &str, expected: &'static str, found: &Json) {
        let found = found.to_string().chars().take(60).collect();
        self.warnings.push(MetadataWarning::WrongKind { key: key.to_owned(), expected, found });
    }

    /// Converts a value to text; numbers and booleans keep their spelling.
    fn text(&mut self, key: &str, value: &Json) -> Option<String> {
        match value {
            Json::Null => None,
            Json::String(text) => Some(text.clone()),
            Json::Number(_) | Json::Bool(_) => Some(value.to_string()),
            Json::Array(_) | Json::Object(_) => {
                self.wrong_kind(key, "text", value);
                None
            }
        }
    }

    /// Converts a value to a list of texts; a single text is a list of one.
    fn list(&mut self, key: &str, value: &Json) -> Vec<String> {
        match value {
            Json::Array(items) => items.iter().filter_map(|item| self.text(key, item)).collect(),
            other => self.text(key, other).into_iter().collect(),
        }
    }

    fn take_card(&mut self, card: &Map<String, Json>) {
        macro_rules! take {
            ($( $field:ident: $($key:literal)+; )*) => {
                $( for key in [$($key),+] {
                    if self.texts.$field.is_none() && let Some(value) = card.get(key) {
                        self.texts.$field = self.text(key, value);
                    }
                } )*
            };
        }
        take! {
            name: "name" "model_name";
            author: "author" "model_author" "model_creator";
            version: "version" "model_version";
            organization: "organization" "model_organization";
            description: "description" "model_description";
            finetune: "finetune" "model_finetune";
            basename: "basename" "model_basename" "model_type";
            size_label: "size_label" "model_size_label";
            source_url: "url" "model_url";
            source_doi: "doi" "model_doi";
            source_uuid: "uuid" "model_uuid";
            source_repo_url: "repo_url" "model_repo_url";
            license_name: "license_name";
            license_link: "license_link";
        }
        if let Some(license) = card.get("license").filter(|license| !license.is_null()) {
            self.texts.license = Some(self.list("license", license).join(","));
        }
        self.base_models = self.parents(card, ["base_model", "base_models", "base_model_sources"]);
        self.datasets = self.parents(card, ["datasets", "dataset", "dataset_sources"]);
        self.tags = self.lists(card, ["tags", "pipeline_tag"]);
        self.languages = self.lists(card, ["languages", "language"]);
    }

    /// Concatenates the lists under some keys; `None` if none of the keys exists.
    fn lists(&mut self, card: &Map<String, Json>, keys: [&str; 2]) -> Option<Vec<String>> {
        let mut all: Option<Vec<String>> = None;
        for key in keys {
            if let Some(value) = card.get(key).filter(|value| !value.is_null()) {
                let items = self.list(key, value);
                all.get_or_insert_default().extend(items);
            }
        }
        all
    }

    /// Returns the base models or datasets under the first of the keys that exists.
    fn parents(&mut self, card: &Map<String, Json>, keys: [&'static str; 3]) -> Option<Vec<Parent>> {
        let (key, value) = keys.iter().find_map(|key| Some((*key, card.get(*key)?)))?;
        let items = match value {
            Json::Array(items) => items.as_slice(),
            Json::Null => &[],
            one @ Json::String(_) => std::slice::from_ref(one),
            other => {
                self.wrong_kind(key, "a list", other);
                &[]
            }
        };
        let mut parents = Vec::with_capacity(items.len());
        for item in items {
            parents.push(match item {
                Json::String(id) => parent(id),
                Json::Object(fields) => fields.clone(),
                other => {
                    // ref: an entry without information is counted all the same, keep
                    self.wrong_kind(key, "an id or a map", other);
                    Parent::new()
                }
            });
        }
        Some(parents)
    }

    /// Fills the missing texts from the components of a model id.
    fn take_id(&mut self, id: IdParts) {
        let texts = &mut self.texts;
        texts.name = texts.name.take().or_else(|| id.full_name.as_deref().map(title));
        texts.organization = texts.organization.take().or_else(|| id.organization.as_deref().map(title));
        texts.basename = texts.basename.take().or(id.basename);
        texts.finetune = texts.finetune.take().or(id.finetune);
        texts.version = texts.version.take().or(id.version);
        texts.size_label = texts.size_label.take().or(id.size_label);
    }

    fn take_generation_config(&mut self, config: &Map<String, Json>) {
        for (slot, (key, source, _)) in self.sampling.iter_mut().zip(SAMPLING) {
            // The older name of the penalty applies if the newer one is absent.
            let value = config
                .get(source)
                .or_else(|| config.get("repetition_penalty").filter(|_| key == "penalty_repeat"));
            *slot = value.cloned();
        }
    }

    fn take_overrides(&mut self, overrides: &Map<String, Json>) {
        for (key, value) in overrides {
            let sampling = key.strip_prefix("general.sampling.");
            if let Some(at) = SAMPLING.iter().position(|row| Some(row.0) == sampling) {
                self.sampling[at] = Some(value.clone());
                continue;
            }
            match key.as_str() {
                "general.tags" => self.tags = (!value.is_null()).then(|| self.list(key, value)),
                "general.languages" => self.languages = (!value.is_null()).then(|| self.list(key, value)),
                "general.base_models" => {
                    self.base_models = self.override_parents(key, value, self.base_models.clone());
                }
                "general.datasets" => {
                    self.datasets = self.override_parents(key, value, self.datasets.clone());
                }
                _ if !self.texts.overridable().iter().any(|row| row.0 == key) => {
                    self.warnings.push(MetadataWarning::UnknownOverride { key: key.clone() });
                }
                _ => {
                    let text = self.text(key, value);
                    // An unusable value removes nothing; `null` does.
                    if text.is_some() || value.is_null() {
                        let row = self.texts.overridable().into_iter().find(|row| row.0 == key);
                        if let Some((_, slot)) = row {
                            *slot = text;
                        }
                    }
                }
            }
        }
    }

    fn override_parents(&mut self, key: &str, value: &Json, old: Option<Vec<Parent>>) -> Option<Vec<Parent>> {
        if value.is_null() {
            return None;
        }
        let maps = |items: &Vec<Json>| items.iter().map(|item| item.as_object().cloned()).collect();
        let parents: Option<Vec<Parent>> = value.as_array().and_then(maps);
        if parents.is_none() {
            self.wrong_kind(key, "a list of maps", value);
        }
        parents.or(old)
    }

    fn finish(mut self) -> GeneralMetadata {
        let mut entries: Vec<(String, Value)> = Vec::new();
        for (at, (key, _, kind)) in SAMPLING.into_iter().enumerate() {
            let Some(value) = self.sampling[at].take().filter(|value| !value.is_null()) else { continue };
            let key = format!("general.sampling.{key}");
            match sampling_value(&value, kind) {
                Ok(value) => entries.extend(value.map(|value| (key, value))),
                Err(expected) => self.wrong_kind(&key, expected, &value),
            }
        }
        for (key, text) in self.texts.rows() {
            // ref: an empty text is not written, keep
            entries.extend(text.filter(|text| !text.is_empty()).map(|text| (key.to_owned(), string(text))));
        }
        for (prefix, parents) in [("base_model", self.base_models.take()), ("dataset", self.datasets.take())]
        {
            let Some(parents) = parents else { continue };
            let count = u32::try_from(parents.len()).unwrap_or(u32::MAX);
            entries.push((format!("general.{prefix}.count"), Value::U32(count)));
            for (i, parent) in parents.iter().enumerate() {
                for field in PARENT_FIELDS {
                    let key = format!("general.{prefix}.{i}.{field}");
                    let text = parent.get(field).and_then(|value| self.text(&key, value));
                    entries.extend(text.filter(|text| !text.is_empty()).map(|text| (key, string(&text))));
                }
            }
        }
        for (key, list) in [("general.tags", self.tags.take()), ("general.languages", self.languages.take())]
        {
            if let Some(list) = list.filter(|list| !list.is_empty()) {
                let list = list.into_iter().map(String::into_bytes).collect();
                entries.push((key.to_owned(), Value::Array(Array::String(list))));
            }
        }
        GeneralMetadata { entries, warnings: self.warnings, adapter: None, texts: self.texts }
    }
}

fn string(text: &str) -> Value {
    Value::String(text.as_bytes().to_vec())
}

/// Converts a sampling value to its type; `None` for an empty text. The error names the expected type.
fn sampling_value(value: &Json, kind: SamplingKind) -> Result<Option<Value>, &'static str> {
    match kind {
        SamplingKind::Text => {
            let text = value.as_str().ok_or("text")?;
            Ok((!text.is_empty()).then(|| string(text)))
        }
        SamplingKind::Int => {
            let whole = as_f64(value).filter(|x| x.fract() == 0.0 && x.abs() < 2_147_483_648.0);
            whole.map(|x| Some(Value::I32(x as i32))).ok_or("a 32-bit integer")
        }
        SamplingKind::Float => {
            let x = as_f64(value).ok_or("a number")?;
            if x.is_finite() && held_by_f32(x).is_none() {
                return Err("a 32-bit float");
            }
            Ok(Some(Value::F32(x as f32)))
        }
    }
}

/// Derives the fields of a base model or dataset from its id or URL.
fn parent(id: &str) -> Parent {
    let is_url = ["http://", "https://", "ssh://"].iter().any(|scheme| id.starts_with(scheme));
    let hub_id = match id.strip_prefix("https://").or_else(|| id.strip_prefix("http://")) {
        Some(rest) => rest.strip_prefix("huggingface.co/").filter(|path| {
            let parts: Vec<&str> = path.split('/').collect();
            parts.len() == 2 && parts.iter().all(|part| !part.is_empty())
        }),
        None => Some(id).filter(|_| !is_url),
    };
    let mut fields = Parent::new();
    if is_url {
        fields.insert("repo_url".into(), id.into());
    }
    if let Some(hub_id) = hub_id {
        // The size is discarded, so the parameter count does not matter.
        let parts = split_id(hub_id, 0);
        let full_name = parts.full_name.unwrap_or_default();
        fields.insert("name".into(), title(&full_name).into());
        if let Some(org) = parts.organization {
            fields.insert("organization".into(), title(&org).into());
            if !is_url {
                fields.insert("repo_url".into(), format!("https://huggingface.co/{org}/{full_name}").into());
            }
        }
        if let Some(version) = parts.version {
            fields.insert("version".into(), version.into());
        }
    }
    fields
}

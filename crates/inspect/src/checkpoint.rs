//! The description of a checkpoint: its kind, the storage of its weights, and the output of a conversion.
//!
//! Everything is taken from headers and small files, with two exceptions: the scales that some containers read when
//! opened (msModelSlim, FastLLM), and those of one weight of each kind, which decide about `native`. A part that is
//! not understood becomes a [`Problem`], and the rest is still described.

mod files;
mod json;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use gguf_conversion::{self, CardScope, Conversion, ConvertError, ConvertOptions, Quantization, StoredClass};
use gguf_core::{ElementType, GgmlType, Hint, Shape, TensorSource};
use gguf_format::{FilePlan, LayoutOptions, Metadata, Value};

use self::files::OpenedCheckpoint;

pub use self::json::checkpoint_json;

/// Share of a checkpoint's tensors that have one element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElementShare {
    /// Element type.
    pub ty: ElementType,
    /// Number of tensors.
    pub n_tensors: usize,
    /// Number of elements.
    pub n_elems: u64,
    /// Number of bytes.
    pub n_bytes: u64,
}

/// A weight file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedFile {
    /// File name within the directory.
    pub name: String,
    /// Size in bytes.
    pub n_bytes: u64,
}

/// A tensor as stored in its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedTensor {
    /// Name.
    pub name: String,
    /// Element type.
    pub ty: ElementType,
    /// Shape, outermost dimension first.
    pub shape: Shape,
    /// Size in bytes.
    pub n_bytes: u64,
    /// Index of its file.
    pub file: usize,
}

/// The files that hold the weights.
#[derive(Clone, Debug, Default)]
pub struct WeightFiles {
    /// Name of the format.
    pub format: &'static str,
    /// The files.
    pub files: Vec<ListedFile>,
    /// The tensors, in the order of the checkpoint.
    pub tensors: Vec<ListedTensor>,
}

/// The architecture card that converts a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Architecture {
    /// Class in the configuration that selected the card.
    pub class: String,
    /// Name of the card, with the variant after a slash.
    pub card: String,
    /// Value of `general.architecture`.
    pub gguf: String,
}

/// The vocabulary that a conversion would write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VocabularyFacts {
    /// Mode in which it was read.
    pub mode: String,
    /// Value of `tokenizer.ggml.model`.
    pub model: String,
    /// Value of `tokenizer.ggml.pre`.
    pub pre: Option<String>,
    /// Number of tokens.
    pub n_tokens: usize,
    /// True if there is a chat template.
    pub has_chat_template: bool,
}

/// A file that a conversion would write.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedOutput {
    /// Value of `--type`.
    pub option: &'static str,
    /// Name of the file type.
    pub file_type: String,
    /// Default name of the file.
    pub file_name: String,
    /// Size in bytes.
    pub file_bytes: u64,
    /// Tensor types and the number of tensors of each, the type with the most bytes first.
    pub types: Vec<(GgmlType, usize)>,
    /// Number of quantized weights whose scales were read to predict this, and the number of all; the others are
    /// assumed to be similar.
    pub sampled: Option<(usize, usize)>,
}

/// Part of a checkpoint that a problem concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aspect {
    /// The weight files.
    Weights,
    /// The quantization.
    Quantization,
    /// The configuration, which no card supports.
    Architecture,
    /// The tensors, which do not fit the card.
    Tensors,
    /// The tokenizer files.
    Tokenizer,
    /// The output file.
    Output,
}

impl Aspect {
    /// Returns the name of the part.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Weights => "weights",
            Self::Quantization => "quantization",
            Self::Architecture => "architecture",
            Self::Tensors => "tensors",
            Self::Tokenizer => "tokenizer",
            Self::Output => "output",
        }
    }
}

/// A problem that prevents conversion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Affected part.
    pub part: Aspect,
    /// True if the checkpoint may be valid but is not supported; false if it is broken or incomplete.
    pub is_unsupported: bool,
    /// Error message.
    pub message: String,
    /// Suggestions for the user.
    pub hints: Vec<String>,
}

impl Problem {
    fn new(part: Aspect, error: &ConvertError) -> Self {
        let is_unsupported = error.is_unsupported();
        Self { part, is_unsupported, message: error.to_string(), hints: error.hints() }
    }
}

/// GGML types to which a quantized weight is converted, by default and with `--type native`.
///
/// Empty if a card leaves the weight out, or if there is no conversion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetTypes {
    /// Types by default.
    pub auto: Vec<GgmlType>,
    /// Types with `--type native`.
    pub native: Vec<GgmlType>,
}

/// Description of a checkpoint.
#[derive(Clone, Debug)]
pub struct CheckpointReport {
    /// Inspected path.
    pub path: PathBuf,
    /// Value of `general.name` of the model; `None` without a conversion.
    pub name: Option<String>,
    /// Value of `model_type` in the configuration.
    pub model_type: Option<String>,
    /// Classes that the configuration lists.
    pub classes: Vec<String>,
    /// Architecture card.
    pub architecture: Option<Architecture>,
    /// The weight files.
    pub container: Option<WeightFiles>,
    /// Quantization of the weights.
    pub quantization: Option<Quantization>,
    /// Quantized weights, grouped by storage and conversion target.
    pub stored: Vec<StoredClass<TargetTypes>>,
    /// Number of weights and of their elements, after dequantization.
    pub parameters: Option<(usize, u64)>,
    /// The vocabulary.
    pub vocabulary: Option<VocabularyFacts>,
    /// Files that a conversion would write.
    pub outputs: Vec<PlannedOutput>,
    /// Problems that prevent conversion.
    pub problems: Vec<Problem>,
    /// Warnings that do not prevent conversion.
    pub warnings: Vec<String>,
}

impl WeightFiles {
    /// Sums the tensors by type, the type with the most bytes first.
    #[must_use]
    pub fn shares(&self) -> Vec<ElementShare> {
        let mut shares: Vec<ElementShare> = Vec::new();
        for tensor in &self.tensors {
            let (n_elems, n_bytes) = (tensor.shape.n_elems(), tensor.n_bytes);
            match shares.iter_mut().find(|share| share.ty == tensor.ty) {
                Some(share) => {
                    share.n_tensors += 1;
                    share.n_elems += n_elems;
                    share.n_bytes += n_bytes;
                }
                None => shares.push(ElementShare { ty: tensor.ty, n_tensors: 1, n_elems, n_bytes }),
            }
        }
        shares.sort_by_key(|share| (std::cmp::Reverse(share.n_bytes), share.ty));
        shares
    }

    /// Returns the total size of all files in bytes.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.n_bytes).fold(0, u64::saturating_add)
    }
}

/// Describes a directory, a PyTorch file in one, or a FastLLM file.
///
/// # Errors
/// The path is not a checkpoint: there is no configuration, or it cannot be read.
pub fn inspect_checkpoint(path: &Path, options: &ConvertOptions) -> Result<CheckpointReport, ConvertError> {
    let opened = OpenedCheckpoint::open(path, options)?;
    let mut report = CheckpointReport::of(path, opened.source.dir.config());
    report.warnings.clone_from(&opened.source.warnings);
    report.problems = opened.problems;
    report.container = opened.container;

    let source = opened.source;
    if source.weights.is_some() {
        let n_elems = source.metas().iter().map(|weight| weight.shape.n_elems());
        report.parameters = Some((source.metas().len(), n_elems.fold(0, u64::saturating_add)));
    }
    if let Some(quantization) = &source.quantization {
        let classes = quantization.classes(source.metas());
        report.stored = classes.into_iter().map(|class| class.with(TargetTypes::default())).collect();
        report.quantization = Some(quantization.clone());
    }

    // If the weights could not be opened, their names may still identify the card.
    let metas = if source.weights.is_some() { source.metas() } else { &opened.metas };
    let is_known = report.problems.iter().all(|problem| problem.part != Aspect::Architecture);
    let mapping =
        is_known.then(|| gguf_conversion::map(&source, metas, options, CardScope::Keys, &mut Vec::new()));
    let mapping = mapping.and_then(|mapping| report.note(Aspect::Architecture, mapping));
    report.architecture = mapping.as_ref().map(|mapping| Architecture {
        class: mapping.class.clone(),
        card: mapping.card.name(),
        gguf: mapping.card.gguf.clone(),
    });

    let built = gguf_conversion::vocabulary(&source, mapping.as_ref(), options);
    let rows = report.note(Aspect::Tokenizer, built).map(|built| {
        report.warnings.extend(built.warnings.iter().map(ToString::to_string));
        report.vocabulary = VocabularyFacts::of(built.mode.name(), &built.rows);
        built.rows
    });

    if mapping.is_some() && source.weights.is_some() {
        let without = ConvertOptions { tokenizer: false, ..options.clone() };
        let converted = Conversion::of(source, &without);
        if let Some(conversion) = report.note(Aspect::Tensors, converted) {
            report.outputs(&conversion, &rows.unwrap_or_default());
        }
    }
    Ok(report)
}

impl CheckpointReport {
    fn of(path: &Path, config: &serde_json::Map<String, Json>) -> Self {
        let listed = config.get("architectures").and_then(Json::as_array);
        let classes = listed.into_iter().flatten().filter_map(Json::as_str).map(str::to_owned).collect();
        Self {
            path: path.to_owned(),
            name: None,
            model_type: config.get("model_type").and_then(Json::as_str).map(str::to_owned),
            classes,
            architecture: None,
            container: None,
            quantization: None,
            stored: Vec::new(),
            parameters: None,
            vocabulary: None,
            outputs: Vec::new(),
            problems: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Returns the value; records an error as a problem.
    fn note<T>(&mut self, part: Aspect, result: Result<T, ConvertError>) -> Option<T> {
        result.map_err(|error| self.problems.push(Problem::new(part, &error))).ok()
    }

    /// Adds an output file, or the problem that prevents it.
    fn put(&mut self, output: Result<PlannedOutput, Problem>) {
        match output {
            Ok(output) => self.outputs.push(output),
            Err(problem) => self.problems.push(problem),
        }
    }

    /// Adds the outputs of a conversion; `rows` are the keys of the vocabulary, which the conversion does not have.
    fn outputs(&mut self, conversion: &Conversion, rows: &Metadata) {
        let metadata = with_rows(conversion, rows);
        self.name = metadata.get("general.name").and_then(Value::as_str).map(str::to_owned);
        // The source's own warnings were added already.
        let known = self.warnings.len();
        for warning in conversion.warnings() {
            if !self.warnings[..known].contains(warning) {
                self.warnings.push(warning.clone());
            }
        }

        let encoding = conversion.encoding();
        self.put(PlannedOutput::plan("auto", encoding, conversion, &metadata));
        let native = conversion.native();
        let native = self.note(Aspect::Output, native).flatten();
        if let Some(native) = &native {
            let metadata = with_rows(&native.conversion, rows);
            let output = PlannedOutput::plan("native", "NATIVE".to_owned(), &native.conversion, &metadata);
            let sampled = Some((native.n_read, native.n_quantized));
            self.put(output.map(|output| PlannedOutput { sampled, ..output }));
        }
        let native: HashMap<&str, GgmlType> = native
            .iter()
            .flat_map(|native| native.conversion.tensors())
            .map(|tensor| (tensor.name.as_str(), tensor.ty))
            .collect();
        let tensors = conversion.tensors();
        self.stored = conversion.stored(|outputs| {
            let name = |output: &usize| native.get(tensors[*output].name.as_str()).copied();
            TargetTypes {
                auto: each_once(outputs.iter().map(|&output| tensors[output].ty).collect()),
                native: each_once(outputs.iter().filter_map(name).collect()),
            }
        });
    }
}

/// Joins the keys of a conversion that was planned without a vocabulary with those of the vocabulary.
fn with_rows(conversion: &Conversion, rows: &Metadata) -> Metadata {
    let mut metadata = conversion.metadata().clone();
    for (key, value) in rows.iter() {
        metadata.set(key, value.clone());
    }
    metadata
}

/// Returns the distinct types, sorted.
fn each_once(mut types: Vec<GgmlType>) -> Vec<GgmlType> {
    types.sort_unstable();
    types.dedup();
    types
}

impl PlannedOutput {
    fn plan(
        option: &'static str,
        file_type: String,
        conversion: &Conversion,
        metadata: &Metadata,
    ) -> Result<Self, Problem> {
        let tensors = conversion.tensors();
        let layout = LayoutOptions { pad_header: true, ..LayoutOptions::default() };
        let plan = FilePlan::new(metadata, tensors, &layout).map_err(|error| Problem {
            part: Aspect::Output,
            is_unsupported: true,
            message: error.to_string(),
            hints: Vec::new(),
        })?;
        let mut types: Vec<(GgmlType, usize, u64)> = Vec::new();
        for tensor in tensors {
            let n_bytes = tensor.n_bytes().unwrap_or(0);
            match types.iter_mut().find(|row| row.0 == tensor.ty) {
                Some((_, n, all)) => (*n, *all) = (*n + 1, all.saturating_add(n_bytes)),
                None => types.push((tensor.ty, 1, n_bytes)),
            }
        }
        types.sort_by_key(|row| (std::cmp::Reverse(row.2), row.0));
        Ok(Self {
            option,
            file_name: conversion.default_file_name(&file_type),
            file_type,
            file_bytes: plan.file_bytes,
            types: types.into_iter().map(|(ty, n, _)| (ty, n)).collect(),
            sampled: None,
        })
    }
}

impl VocabularyFacts {
    /// Reads the facts from the keys; `None` for a model without vocabulary.
    fn of(mode: &str, rows: &Metadata) -> Option<Self> {
        let text = |key: &str| rows.get(key).and_then(Value::as_str).map(str::to_owned);
        let n_tokens = match rows.get("tokenizer.ggml.tokens") {
            Some(Value::Array(tokens)) => tokens.len(),
            _ => return None,
        };
        Some(Self {
            mode: mode.to_owned(),
            model: text("tokenizer.ggml.model")?,
            pre: text("tokenizer.ggml.pre"),
            n_tokens,
            has_chat_template: rows.get("tokenizer.chat_template").is_some(),
        })
    }
}

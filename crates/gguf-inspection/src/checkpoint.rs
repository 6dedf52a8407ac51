//! The description of a checkpoint: its kind, the storage of its weights, and the output of a conversion.
//!
//! Everything is taken from headers and small files, with two exceptions: the scales that some containers read when
//! opened (msModelSlim, FastLLM), and those of one weight of each kind, which decide about `native`. A part that is
//! not understood becomes a [`Problem`], and the rest is still described.

mod files;
mod report;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::path::Path;

use serde_json::Value as Json;

use gguf_conversion::{
    self, CardScope, Conversion, ConvertError, ConvertOptions, DiffusionConversion, DiffusionError,
};
use gguf_core::{GgmlType, TensorSource};
use gguf_format::{FilePlan, LayoutOptions, Metadata, Value};

use self::files::OpenedCheckpoint;

pub use self::report::{
    Architecture, Aspect, CheckpointClass, CheckpointQuantization, CheckpointReport, ElementShare,
    ListedFile, ListedTensor, PlannedOutput, Problem, ProblemKind, SampledWeights, TargetTypes, TypeCount,
    VocabularyFacts, WeightFiles,
};

/// Describes a directory, a PyTorch file in one, or a FastLLM file.
///
/// # Errors
/// The path is not a checkpoint: there is no configuration, or it cannot be read; it is an image or video model.
pub fn inspect_checkpoint(path: &Path, options: &ConvertOptions) -> Result<CheckpointReport, ConvertError> {
    if let Some(image) = DiffusionConversion::find(path, options)? {
        let arch = image.card().map_or("", |card| &card.gguf);
        return Err(DiffusionError::Refused {
            path: path.to_owned(),
            what: format!("an image or video model, of `{arch}`"),
            way_out: "`gguf-convert hf2gguf PATH --dry-run` lists what becomes of its tensors".to_owned(),
        }
        .into());
    }
    let opened = OpenedCheckpoint::open(path, options)?;
    let mut report = CheckpointReport::of(path, opened.source.dir.config());
    report.warnings.clone_from(&opened.source.warnings);
    report.problems = opened.problems;
    report.container = opened.container;
    report.types = shares(&opened.tensors);
    report.tensors = opened.tensors;

    let source = opened.source;
    if source.weights.is_some() {
        let n_elems = source.metas().iter().map(|weight| weight.shape.n_elems());
        report.n_weights = Some(source.metas().len());
        report.n_elems = Some(n_elems.fold(0, u64::saturating_add));
    }
    report.quantization =
        source.quantization.as_ref().map(|own| CheckpointQuantization::of(own, source.metas()));

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
    let built = report.note(Aspect::Tokenizer, built).map(|built| {
        report.warnings.extend(built.warnings.iter().map(ToString::to_string));
        report.vocabulary = VocabularyFacts::of(built.mode.name(), &built.rows);
        (built.rows, built.pieces)
    });

    if mapping.is_some() && source.weights.is_some() {
        let without = ConvertOptions { tokenizer: false, ..options.clone() };
        let converted = Conversion::of(source, &without);
        if let Some(conversion) = report.note(Aspect::Tensors, converted) {
            let (rows, pieces) = built.unwrap_or_default();
            report.account = conversion.account().into_iter().chain(pieces).collect();
            report.outputs(&conversion, &rows);
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
            n_weights: None,
            n_elems: None,
            types: Vec::new(),
            quantization: None,
            vocabulary: None,
            outputs: Vec::new(),
            problems: Vec::new(),
            warnings: Vec::new(),
            tensors: Vec::new(),
            account: Vec::new(),
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
        let native = conversion.native(false);
        let native = self.note(Aspect::Output, native).flatten();
        if let Some(native) = &native {
            let metadata = with_rows(&native.conversion, rows);
            let output = PlannedOutput::plan("native", "NATIVE".to_owned(), &native.conversion, &metadata);
            let sampled = Some(SampledWeights { n_read: native.n_read, n_all: native.n_quantized });
            self.put(output.map(|output| PlannedOutput { sampled, ..output }));
        }
        let Some(quantization) = &mut self.quantization else { return };
        let native: HashMap<&str, GgmlType> = native
            .iter()
            .flat_map(|native| native.conversion.tensors())
            .map(|tensor| (tensor.name.as_str(), tensor.ty))
            .collect();
        let tensors = conversion.tensors();
        let classes = conversion.stored(|outputs| {
            let name = |output: &usize| native.get(tensors[*output].name.as_str()).copied();
            TargetTypes {
                auto: each_once(outputs.iter().map(|&output| tensors[output].ty).collect()),
                native: each_once(outputs.iter().filter_map(name).collect()),
            }
        });
        quantization.classes =
            classes.into_iter().map(|(stored, targets)| CheckpointClass::of(stored, targets)).collect();
    }
}

/// Sums the tensors by element type, the type with the most bytes first.
fn shares(tensors: &[ListedTensor]) -> Vec<ElementShare> {
    let mut shares: Vec<ElementShare> = Vec::new();
    for tensor in tensors {
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
    shares.sort_by_key(|share| (Reverse(share.n_bytes), share.ty));
    shares
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
            kind: ProblemKind::Unsupported,
            message: error.to_string(),
            hints: Vec::new(),
        })?;
        let mut types: Vec<(TypeCount, u64)> = Vec::new();
        for tensor in tensors {
            let n_bytes = tensor.n_bytes().unwrap_or(0);
            match types.iter_mut().find(|(count, _)| count.ty == tensor.ty) {
                Some((count, all)) => {
                    count.n_tensors += 1;
                    *all = all.saturating_add(n_bytes);
                }
                None => types.push((TypeCount { ty: tensor.ty, n_tensors: 1 }, n_bytes)),
            }
        }
        types.sort_by_key(|(count, n_bytes)| (Reverse(*n_bytes), count.ty));
        Ok(Self {
            option,
            file_name: conversion.default_file_name(&file_type),
            file_type,
            file_bytes: plan.file_bytes,
            n_tensors: tensors.len(),
            types: types.into_iter().map(|(count, _)| count).collect(),
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

//! Mapping of a checkpoint by the cards that are known.

use std::path::Path;

use crate::mlx::SavedByMlx;
use crate::side_files::SideFiles;
use crate::target::OpenTarget;
use crate::{ConvertError, ConvertOptions, ModelSource, rerank, token_counts};
use gguf_arch::{self, Card, DraftHeads, Inputs, Mapping, Registry, ResolveOptions};
use gguf_core::text::escape;
use gguf_core::{WeightMeta, input};

/// Part of a checkpoint to which a card is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CardScope {
    /// The configuration only; weights are not needed.
    Keys,
    /// The configuration and all tensors.
    KeysAndTensors,
    /// Some of the tensors: those that an adapter changes.
    Part,
}

/// Finds the card for a checkpoint and applies it. `weights` are the headers of the source's weights, or what else is
/// known of them. Oddities of the files are added to `warnings`.
pub fn map(
    source: &ModelSource,
    weights: &[WeightMeta],
    options: &ConvertOptions,
    scope: CardScope,
    warnings: &mut Vec<String>,
) -> Result<Mapping, ConvertError> {
    let dir = &source.dir;
    let registry = match &options.card {
        Some(_) => registry(options)?,
        None => {
            let classes = gguf_arch::named_classes(dir.config(), options.kind, dir.is_mistral_format());
            Registry::of_classes(options.kind, &classes)?
        }
    };
    let side_files = SideFiles::read(dir, options.kind, warnings)?;
    let target = OpenTarget::of(options)?;
    let inputs = Inputs {
        vocabulary: Some(&|| token_counts::count(dir)),
        target: target.as_ref().map(OpenTarget::view),
        ..side_files.inputs(source, weights)
    };
    let arch_options = ResolveOptions {
        file_type: options.file_type,
        mistral_format: dir.is_mistral_format(),
        heads: options.heads,
        fuse: options.fuse,
        rerank: rerank::find(dir, options)?,
        metadata_only: scope == CardScope::Keys,
        annotate: options.annotate,
        norms_have_one: source.mlx.as_ref().is_some_and(SavedByMlx::has_norms_with_one),
        is_part: scope == CardScope::Part,
    };
    let mut mapping = gguf_arch::resolve(&registry, &inputs, &arch_options)?;
    if let Some((mlx, doubt)) = source.mlx.as_ref().and_then(|mlx| Some((mlx, mlx.doubt_of_head(&mapping)?)))
    {
        if options.heads == DraftHeads::Alone {
            return Err(mlx.head_alone().into());
        }
        let without = ResolveOptions { heads: DraftHeads::Dropped, ..arch_options };
        mapping = gguf_arch::resolve(&registry, &inputs, &without)?;
        warnings.push(doubt);
    }
    warnings.extend(mapping.warnings.iter().map(ToString::to_string));
    if let Some(path) = &options.card {
        warnings.extend(without_effect(path, &mapping.card)?);
    }
    Ok(mapping)
}

/// Returns the embedded cards together with those of `options.card`.
pub fn registry(options: &ConvertOptions) -> Result<Registry, ConvertError> {
    if let Some(path) = options.card.as_ref().filter(|path| path.is_dir()) {
        let texts = card_texts(path)?;
        let rows = texts.iter().map(|(stem, text)| (stem.as_str(), text.as_str()));
        return Ok(Registry::overlaid(options.kind, rows)?);
    }
    let mut registry = Registry::embedded_of(options.kind)?;
    if let Some(path) = &options.card {
        let text = input::read_to_string(path)?;
        let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        registry.add(&name, &text)?;
    }
    Ok(registry)
}

/// Returns the warning about a given card that is not the `applied` one, or a directory without cards. A card of a
/// directory may work through others that extend it.
fn without_effect(path: &Path, applied: &Card) -> Result<Option<String>, ConvertError> {
    if path.is_dir() {
        return without_cards(path);
    }
    let has_effect = path.file_stem().is_some_and(|stem| stem.to_string_lossy() == applied.stem.as_str());
    Ok((!has_effect).then(|| {
        format!(
            "`--card {}` changes nothing: the model is converted by card `{}`; a card applies to the classes that it lists",
            escape(&path.display().to_string()),
            escape(&applied.name())
        )
    }))
}

/// Returns the warning about a directory without cards.
pub fn without_cards(directory: &Path) -> Result<Option<String>, ConvertError> {
    Ok(card_texts(directory)?.is_empty().then(|| {
        let path = escape(&directory.display().to_string()).into_owned();
        format!("`--card {path}` changes nothing: no file of that directory ends in `.toml`, as cards do")
    }))
}

/// Returns file stem and text of the cards in a directory, sorted by name.
pub(super) fn card_texts(directory: &Path) -> Result<Vec<(String, String)>, ConvertError> {
    let mut texts = Vec::new();
    for entry in fs_err::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
            texts.push((stem, input::read_to_string(&path)?));
        }
    }
    texts.sort();
    Ok(texts)
}

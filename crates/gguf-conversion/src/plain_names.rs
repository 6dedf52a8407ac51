//! Mapping of checkpoints whose names need one uniform change to fit their card.

use std::sync::Arc;

use crate::mapping::{CardScope, map, registry};
use crate::side_files::SideFiles;
use crate::{ConvertError, ConvertOptions, ModelSource};
use gguf_arch::{self, Inputs, Mapping, PlainNames, ResolveOptions};
use gguf_checkpoint::SelectedWeights;
use gguf_core::{WeightMeta, WeightSource};

/// Applies the card to a checkpoint. If the names do not fit, renames the source's weights to names that do and tries
/// again. Returns warnings as well.
pub(super) fn map_by(
    source: &mut ModelSource,
    options: &ConvertOptions,
    scope: CardScope,
) -> Result<(Mapping, Vec<String>), ConvertError> {
    let mut warnings = source.warnings.clone();
    let error = match map(source, source.metas(), options, scope, &mut warnings) {
        Ok(mapping) => return Ok((mapping, warnings)),
        Err(error) => error,
    };
    // Names are only searched for after an error, so that names that fit are never changed.
    let (ConvertError::Arch(_), Some((weights, names))) = (&error, renamed(source, options)) else {
        return Err(error);
    };
    let mut renamed = Vec::new();
    // Cards also refer to the stored tensors.
    for stored in &mut source.stored {
        stored.name = names.member(&stored.name);
    }
    if let Some(quantization) = &mut source.quantization {
        let old = source.weights.as_deref().map_or(&[][..], |weights| weights.weights());
        for (old, new) in old.iter().zip(weights.weights()).filter(|(old, new)| old.name != new.name) {
            if let Some(encoding) = quantization.encodings.remove(&old.name) {
                quantization.encodings.insert(new.name.clone(), encoding);
            }
        }
        let of_weights = quantization.pieces.iter_mut().flat_map(|piece| &mut piece.to);
        let of_weights = of_weights.chain(&mut quantization.added_biases);
        of_weights.for_each(|weight| *weight = names.name(weight));
    }
    for (old, new) in source.metas().iter().zip(weights.weights()).filter(|(old, new)| old.name != new.name) {
        let stored = source.stored_names.get(&old.name).unwrap_or(&old.name).clone();
        renamed.push((new.name.clone(), stored));
    }
    source.stored_names.extend(renamed);
    source.weights = Some(weights);
    let mut warnings = source.warnings.clone();
    warnings.push(names.warning);
    let mapping = map(source, source.metas(), options, scope, &mut warnings)?;
    Ok((mapping, warnings))
}

/// Returns the weights under names that the card knows, and these names.
fn renamed(
    source: &ModelSource,
    options: &ConvertOptions,
) -> Option<(Arc<dyn WeightSource + Send>, PlainNames)> {
    let weights = source.weights.clone()?;
    let names = of_part(source, weights.weights(), options)?;
    let renamed = SelectedWeights::renamed(weights, |name| names.name(name));
    Some((Arc::new(renamed), names))
}

/// Returns names that the card knows for these weights of a model.
pub(super) fn of_part(
    source: &ModelSource,
    weights: &[WeightMeta],
    options: &ConvertOptions,
) -> Option<PlainNames> {
    let registry = registry(options).ok()?;
    let side_files = SideFiles::read(&source.dir, options.kind, &mut Vec::new()).ok()?;
    let inputs: Inputs<'_> = side_files.inputs(source, weights);
    let arch_options = ResolveOptions {
        mistral_format: source.dir.is_mistral_format(),
        heads: options.heads,
        ..ResolveOptions::default()
    };
    gguf_arch::plain_names(&registry, &inputs, &arch_options)
}

//! Application of the base's card to an adapter's tensors, under the names and in the layout that the card knows.

use std::collections::BTreeSet;

use crate::lora::names::WeightNames;
use crate::lora::pair::{MatrixPair, ProductForm};
use crate::lora::parts::AdapterParts;
use crate::lora::{AdapterError, EMBEDDING, experts};
use crate::mapping::{CardScope, map};
use crate::{ConvertError, ConvertOptions, ModelSource, plain_names};
use gguf_arch::{ArchError, Mapping, Op, OpStep, OutputSpec, TensorContent};
use gguf_checkpoint::{AdapterDir, ModelDir};
use gguf_core::{ElementType, Shape, WeightMeta, WeightSource};

/// Result of applying the base's card to the adapter's tensors.
pub(super) struct MappedAdapter {
    pub(super) parts: AdapterParts,
    pub(super) mapping: Mapping,
}

/// Applies the base's card to the tensors that the adapter changes.
pub(super) fn mapped(
    base: &ModelDir,
    adapter: &AdapterDir,
    mut parts: AdapterParts,
    stored: &[WeightMeta],
    options: &ConvertOptions,
    warnings: &mut Vec<String>,
) -> Result<MappedAdapter, ConvertError> {
    let mut source = ModelSource::without_weights(base.clone());
    source.stored = stored.to_vec();
    source.stored.extend(routers(&parts));
    let apply = |parts: &AdapterParts, warnings: &mut Vec<String>| {
        map(&source, &parts.metas(adapter.weights()), options, CardScope::Part, warnings)
    };
    parts.orient_stacks(base.config());
    let mut own = Vec::new();
    let mut mapping = apply(&parts, &mut own);
    if matches!(mapping, Err(ConvertError::Arch(_))) {
        own.clear();
        rename(&source, adapter, &mut parts, options, &mut own);
        let stacked = parts.pairs.clone();
        let layouts = std::iter::once(stacked.clone()).chain(experts::layouts(&stacked));
        let found = layouts.into_iter().find_map(|pairs| {
            let mut said = Vec::new();
            parts.pairs = pairs;
            let mapping = apply(&parts, &mut said).ok()?;
            own.extend(said);
            Some(mapping)
        });
        mapping = match (found, mapping) {
            (Some(mapping), _) => Ok(mapping),
            (None, Err(error)) => {
                parts.pairs = stacked;
                Err(refusal(error, &parts))
            }
            (None, mapping) => mapping,
        };
    }
    let mut mapping = mapping?;
    warnings.extend(own);
    // MLX's matrices of an embedding are those of a layer the other way round, and some embeddings have names of their own.
    let embeddings = mapping.outputs.iter().filter(|output| output.name.contains(EMBEDDING));
    let embeddings: Vec<usize> = embeddings.filter_map(|output| Some(lone_source(output)?.0)).collect();
    let n_whole = parts.whole.len();
    let mut is_turned = false;
    for pair in embeddings.iter().filter_map(|source| source.checked_sub(n_whole)) {
        let pair = parts.pairs.get_mut(pair);
        if let Some(pair) = pair.filter(|pair| pair.is_of_mlx && pair.form == ProductForm::Linear) {
            pair.transpose();
            pair.form = ProductForm::Embedding;
            is_turned = true;
        }
    }
    if is_turned {
        mapping = apply(&parts, &mut Vec::new())?;
    }
    // The card transposes weights that the checkpoint stores transposed (`Conv1D`); PEFT's matrices are not.
    let transposed: Vec<usize> = mapping.outputs.iter().filter_map(transposed_source).collect();
    let transposed: BTreeSet<usize> =
        transposed.into_iter().filter_map(|source| source.checked_sub(parts.whole.len())).collect();
    for pair in &transposed {
        if let Some(pair) = parts.pairs.get_mut(*pair) {
            pair.transpose();
        }
    }
    let mapping = if transposed.is_empty() { mapping } else { apply(&parts, &mut Vec::new())? };
    Ok(MappedAdapter { parts, mapping })
}

/// Returns the routers of the layers of which the adapter changes experts, by their names in files: cards know layers with
/// experts by them, and the base may be a configuration alone.
fn routers(parts: &AdapterParts) -> Vec<WeightMeta> {
    let of_experts =
        parts.pairs.iter().filter(|pair| ["expert", "switch_"].iter().any(|word| pair.name.contains(word)));
    let blocks: BTreeSet<u64> =
        of_experts.filter_map(|pair| pair.name.split('.').find_map(|part| part.parse().ok())).collect();
    let router = |block| format!("blk.{block}.ffn_gate_inp.weight");
    let metas = blocks.into_iter().filter_map(|block| {
        Some(WeightMeta { name: router(block), shape: Shape::new(vec![1])?, ty: ElementType::F32 })
    });
    metas.collect()
}

/// Gives the adapter's tensors the names of the base's weights, or names that the card knows.
fn rename(
    source: &ModelSource,
    adapter: &AdapterDir,
    parts: &mut AdapterParts,
    options: &ConvertOptions,
    warnings: &mut Vec<String>,
) {
    let changed: Vec<String> = parts.base_names().map(str::to_owned).collect();
    let names = WeightNames::of(&source.stored, changed.iter().map(String::as_str));
    parts.rename(|name| {
        names.find(name).map_or_else(|_| name.to_owned(), |at| source.stored[at].name.clone())
    });
    if let Some(names) = plain_names::of_part(source, &parts.metas(adapter.weights()), options) {
        parts.rename(|name| names.name(name));
        warnings.push(names.warning);
    }
}

/// Returns the error of a card in terms of the adapter.
fn refusal(error: ConvertError, parts: &AdapterParts) -> ConvertError {
    let ConvertError::Arch(error) = error else { return error };
    let is_unknown = |pair: &&MatrixPair| match &error {
        ArchError::Leftover { names, .. } => names.iter().any(|row| row.0 == pair.name),
        _ => false,
    };
    match error {
        _ if let Some(stack) = parts.pairs.iter().filter(|pair| pair.n_experts > 1).find(is_unknown) => {
            AdapterError::Stacked { tensor: stack.name.clone() }.into()
        }
        ArchError::Stack { .. }
        | ArchError::Alone { .. }
        | ArchError::Leftover { .. }
        | ArchError::Block { .. } => AdapterError::Card(Box::new(error)).into(),
        error => error.into(),
    }
}

/// Index of the weight that the card transposes first, if the output is made of that weight alone.
pub(super) fn transposed_source(output: &OutputSpec) -> Option<usize> {
    let (weight, first) = lone_source(output)?;
    // A matrix, or a stack of them.
    matches!(
        first,
        Some(OpStep { op: Op::Transpose { a: 0 | 2, b: 1 } | Op::Transpose { a: 1, b: 0 | 2 }, .. })
    )
    .then_some(weight)
}

/// Index of the weight in which rows of this output alternate with those of others.
pub(super) fn alternating_source(output: &OutputSpec) -> Option<usize> {
    let (weight, mut ops) = steps(output)?;
    ops.any(|step| matches!(step.op, Op::Unzip { .. })).then_some(weight)
}

/// Index of the weight that the output is made of, if it is one, and the card's first operation on it.
fn lone_source(output: &OutputSpec) -> Option<(usize, Option<&OpStep>)> {
    steps(output).map(|(weight, mut ops)| (weight, ops.next()))
}

/// Index of the weight that the output is made of, if it is one, and the card's operations on it.
fn steps(output: &OutputSpec) -> Option<(usize, impl Iterator<Item = &OpStep>)> {
    let TensorContent::Sources(assembly) = &output.content else { return None };
    let [source] = assembly.sources.as_slice() else { return None };
    Some((source.weight, source.ops.iter().chain(&assembly.ops)))
}

/// Compares the shapes of the adapter's products with the base's weights, as far as these are known.
pub(super) fn check_base(parts: &AdapterParts, stored: &[WeightMeta]) -> Result<(), AdapterError> {
    let names = WeightNames::of(stored, parts.base_names());
    for pair in &parts.pairs {
        let Ok(found) = names.find(&pair.name).map(|at| &stored[at]) else { continue };
        // A stack of experts may be stored in the other direction: the card has taken it as its product is.
        let is_turned = pair.n_experts > 1
            && matches!((found.shape.dims(), pair.meta.shape.dims()), (&[n, a, b], &[m, c, d]) if (n, a, b) == (m, d, c));
        if found.shape != pair.meta.shape && !is_turned && found.ty.is_plain_float() {
            return Err(AdapterError::OtherShape {
                tensor: pair.name.clone(),
                found: found.shape.clone(),
                product: pair.meta.shape.to_string(),
            });
        }
    }
    Ok(())
}

//! The weights of the float model: the tensor or computation of each, and their order.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use rayon::prelude::*;

use super::bias::{Bias, Fold, LayerBias, StaticBias};
use super::error::MsModelSlimError;
use super::grid::float;
use super::labelled::Labelled;
use super::linear::Linear;
use super::module::LabelledModule;
use super::sort::SortedTensors;
use super::{NormKind, norms, scan};
use crate::layer::{Weight, WeightOrigin};
use gguf_core::text::escape;
use gguf_core::{ElementType, Shape, WeightMeta};

/// Position of a weight in the order of tensors; a computed bias comes before the tensor at its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum WeightPosition {
    Before(usize),
    At(usize),
}

impl WeightPosition {
    fn key(self) -> (usize, Self) {
        match self {
            Self::Before(at) | Self::At(at) => (at, self),
        }
    }
}

enum WeightKind {
    /// An unchanged tensor.
    Plain(usize),
    /// A quantized weight, by index.
    Linear(usize),
    /// A computed bias.
    Bias(Bias),
}

struct PlannedWeight {
    place: WeightPosition,
    name: String,
    kind: WeightKind,
}

impl PlannedWeight {
    /// Returns the number of rows of a matrix.
    fn n_rows(&self, tensors: &Labelled<'_>, linears: &[Arc<Linear>]) -> Option<u64> {
        match self.kind {
            WeightKind::Linear(at) => Some(linears[at].n_rows()),
            WeightKind::Plain(at) => Some(tensors.meta(at).shape.n_rows()),
            WeightKind::Bias(_) => None,
        }
    }
}

/// Returns the weights of the float model, in the order of the checkpoint, and the names of biases that smoothing added: the
/// model had none there.
///
/// # Errors
/// Norms and biases that the float model cannot represent; two tensors of the same name; the source failed.
pub(super) fn weights(
    tensors: &Labelled<'_>,
    sorted: &SortedTensors<'_>,
    linears: &[Arc<Linear>],
    norm_kind: NormKind,
) -> Result<(Vec<Weight>, Vec<String>), MsModelSlimError> {
    let quantized = linears.iter().map(|linear| (linear.name.as_str(), linear)).collect();
    let norms = norms::sort_out(tensors, &quantized, norm_kind)?;
    let statics = static_biases(tensors, sorted, linears)?;

    let mut entries = Vec::new();
    for (name, at) in norms.kept {
        entries.push(PlannedWeight { place: WeightPosition::At(at), name, kind: WeightKind::Plain(at) });
    }
    for (at, linear) in linears.iter().enumerate() {
        let (place, name) = (WeightPosition::At(linear.codes), linear.name.clone());
        entries.push(PlannedWeight { place, name, kind: WeightKind::Linear(at) });
    }
    let mut biases: BTreeMap<String, usize> = BTreeMap::new();
    for &at in sorted.plain.iter().filter(|at| !norms.seen.contains(at)) {
        let name = tensors.plain_name(&tensors.meta(at).name);
        if name.strip_suffix(".bias").is_some() {
            biases.insert(name, at);
        } else {
            entries.push(PlannedWeight { place: WeightPosition::At(at), name, kind: WeightKind::Plain(at) });
        }
    }
    let folds = norms.folds.into_iter().collect();
    let computed = computed_biases(tensors, linears, &entries, &mut biases, statics, folds)?;
    entries.extend(computed);
    for (name, at) in biases {
        entries.push(PlannedWeight { place: WeightPosition::At(at), name, kind: WeightKind::Plain(at) });
    }
    let zeros = zero_biases(tensors, linears, &entries);
    entries.extend(zeros);
    entries.sort_by(|a, b| (a.place.key(), &a.name).cmp(&(b.place.key(), &b.name)));
    let mut names = HashSet::new();
    if let Some(entry) = entries.iter().find(|entry| !names.insert(entry.name.as_str())) {
        return Err(MsModelSlimError::Duplicate { tensor: entry.name.clone() });
    }
    let is_added = |entry: &&PlannedWeight| matches!(&entry.kind, WeightKind::Bias(bias) if matches!(bias.base, LayerBias::Zero));
    let added = entries.iter().filter(is_added).map(|entry| entry.name.clone()).collect();
    Ok((entries.into_iter().map(|entry| weight(tensors, linears, entry)).collect(), added))
}

/// Returns biases of zeros for layers without one if some bias of their kind was computed: models have such a bias in all
/// blocks and in all layers behind a norm, or in none.
fn zero_biases(
    tensors: &Labelled<'_>,
    linears: &[Arc<Linear>],
    entries: &[PlannedWeight],
) -> Vec<PlannedWeight> {
    let is_computed = |entry: &&PlannedWeight| matches!(entry.kind, WeightKind::Bias(_));
    let layer = |entry: &PlannedWeight| entry.name.strip_suffix(".bias").map(norms::layers_alike);
    let kinds: HashSet<String> = entries.iter().filter(is_computed).filter_map(layer).collect();
    let names: HashSet<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
    let zeros = |entry: &PlannedWeight| {
        let layer = entry.name.strip_suffix(".weight")?;
        let name = format!("{layer}.bias");
        let is_due = kinds.contains(&norms::layers_alike(layer)) && !names.contains(name.as_str());
        let n_rows = entry.n_rows(tensors, linears).filter(|_| is_due)?;
        let bias = Bias { n_rows, base: LayerBias::Zero, fold: None };
        let place = WeightPosition::Before(entry.place.key().0);
        Some(PlannedWeight { place, name, kind: WeightKind::Bias(bias) })
    };
    if kinds.is_empty() { Vec::new() } else { entries.iter().filter_map(zeros).collect() }
}

/// Returns the computed biases of quantized and float weights; removes stored biases that they include from `biases`.
fn computed_biases(
    tensors: &Labelled<'_>,
    linears: &[Arc<Linear>],
    entries: &[PlannedWeight],
    biases: &mut BTreeMap<String, usize>,
    mut statics: BTreeMap<usize, StaticBias>,
    mut folds: HashMap<String, Fold>,
) -> Result<Vec<PlannedWeight>, MsModelSlimError> {
    let mut computed = Vec::new();
    for entry in entries {
        let PlannedWeight { place, name, kind } = entry;
        let Some(layer) = name.strip_suffix(".weight") else { continue };
        let Some(n_rows) = entry.n_rows(tensors, linears) else { continue };
        let own = match kind {
            WeightKind::Linear(at) => {
                statics.remove(at).map(|bias| LayerBias::Static(bias, Arc::clone(&linears[*at])))
            }
            WeightKind::Plain(_) | WeightKind::Bias(_) => None,
        };
        let fold = folds.remove(name);
        let name = format!("{layer}.bias");
        let before = WeightPosition::Before(place.key().0);
        let (place, base) = match (biases.get(&name), own, fold.is_some()) {
            // A stored bias is exact; the integer bias already includes it.
            (Some(&at), _, true) => {
                let meta = tensors.meta(at);
                float(meta)?;
                if meta.shape.n_elems() != n_rows {
                    let (tensor, found) = (meta.name.clone(), meta.shape.clone());
                    let expected = format!("{n_rows} rows of `{}`", escape(&format!("{layer}.weight")));
                    return Err(MsModelSlimError::ParameterShape { tensor, found, expected });
                }
                biases.remove(&name);
                (WeightPosition::Before(at), LayerBias::Tensor(at))
            }
            (None, Some(own), _) => (before, own),
            (None, None, true) => (before, LayerBias::Zero),
            (Some(_), _, false) | (None, None, false) => continue,
        };
        computed.push(PlannedWeight { place, name, kind: WeightKind::Bias(Bias { n_rows, base, fold }) });
    }
    Ok(computed)
}

/// Returns the integer biases of static layers by weight, except those that are only rounding.
fn static_biases(
    tensors: &Labelled<'_>,
    sorted: &SortedTensors<'_>,
    linears: &[Arc<Linear>],
) -> Result<BTreeMap<usize, StaticBias>, MsModelSlimError> {
    let find = |(at, (module, linear)): (usize, (&LabelledModule<'_>, &Arc<Linear>))| {
        let Some(bias) = module.static_bias(tensors, linear)? else { return Ok(None) };
        scan::check(tensors.inner, &bias.deq_scale)?;
        let is_there = tensors.of(module.stored, "bias").is_some();
        let is_absent = is_there || bias.is_absent(tensors.inner, linear)?;
        Ok((!is_absent).then_some((at, bias)))
    };
    let found: Vec<Result<_, MsModelSlimError>> =
        sorted.modules.par_iter().zip(linears).enumerate().map(find).collect();
    found.into_iter().filter_map(Result::transpose).collect()
}

fn weight(tensors: &Labelled<'_>, linears: &[Arc<Linear>], entry: PlannedWeight) -> Weight {
    let (shape, ty, origin) = match entry.kind {
        WeightKind::Plain(at) => {
            let meta = tensors.meta(at);
            (meta.shape.clone(), meta.ty, WeightOrigin::Plain(at))
        }
        WeightKind::Linear(at) => {
            let linear = Arc::clone(&linears[at]);
            (linear.shape.clone(), ElementType::F32, WeightOrigin::Coded(Box::new(linear)))
        }
        // A bias has one element per row of a weight, so its size was checked.
        WeightKind::Bias(bias) => {
            let shape = Shape::new(vec![bias.n_rows]).unwrap_or_else(|| unreachable!());
            (shape, ElementType::F32, WeightOrigin::Coded(Box::new(bias)))
        }
    };
    Weight { meta: WeightMeta { name: entry.name, shape, ty }, origin }
}

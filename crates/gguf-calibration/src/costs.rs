//! Measured costs of types: the divergence of the model with only some tensors quantized.
//!
//! KLD adds up over tensors and is proportional to the error of each. So one run for each tensor, with one type, gives
//! the costs of all types. Where that takes too long, runs are shared: the tensors of one role in neighbouring layers
//! are quantized together, and the divergence is divided among them by their estimated costs.

use std::collections::BTreeMap;

use crate::sequential::Quiet;
use crate::{CalibrateError, Result, WorkFolder};
use gguf_core::progress::Progress;
use gguf_core::{GgmlType, SourceError, TensorMeta, TensorSource};
use gguf_engine::{EngineError, EngineOptions, ModelKind};
use gguf_quantization::{FileType, OpenTensor, QuantizePlan, Survey, TensorCost, layer_of};
use gguf_verification::{Model, Recall, Window, divergence_on};

#[derive(Clone, Copy, Debug)]
pub(crate) struct MeasureOptions<'a> {
    /// Threads, memory and vector instructions.
    pub engine: EngineOptions,
    /// Relative error of the type that is measured, or the nearest that the types allow. It is large enough to stand
    /// out from the noise of the text, and small enough that the rest of the model computes nearly what it did.
    pub error: f64,
    /// Maximum number of model runs. With fewer runs than tensors, layers share runs.
    pub n_runs: usize,
    /// Folder that keeps the figures of finished runs.
    pub work: Option<&'a WorkFolder>,
}

/// Operations that measuring may always take, however short the text is: seconds to a minute.
const LEAST_OPS: u64 = 1 << 42;
/// Maximum number of operations: about half an hour on a machine that does 0.3 T per second.
const MOST_OPS: u64 = 1 << 49;
/// Passes through the model that measuring may take for each calibration token: as many as solving takes.
const PASSES: u64 = 2;

/// Number of runs that measuring may take. It follows from a count of operations, so that the same model and text are
/// measured alike on all machines. A run takes two operations for each of the model's `n_elems` weights and each of its
/// `n_run_tokens`; `n_text_tokens` is the number of calibration tokens.
pub(super) fn runs_for(n_elems: u64, n_run_tokens: usize, n_text_tokens: usize) -> usize {
    let of_token = n_elems.saturating_mul(2).max(1);
    let ops = of_token.saturating_mul(PASSES).saturating_mul(n_text_tokens as u64);
    let of_run = of_token.saturating_mul(n_run_tokens.max(1) as u64);
    usize::try_from(ops.clamp(LEAST_OPS, MOST_OPS) / of_run).unwrap_or(usize::MAX)
}

impl MeasureOptions<'_> {
    /// Measures each tensor at about four bits, with at most 256 runs.
    pub(crate) fn new(engine: EngineOptions) -> Self {
        Self { engine, error: 0.01, n_runs: 256, work: None }
    }
}

/// Measures the costs of types by running the model on `windows`, and adds them to `costs`.
///
/// There is one run for each tensor to choose for, or for each group of tensors. `costs` are those of
/// [`Survey::estimate`], in the same order. Returns the number of runs. It is 0, and the costs stay as they are, if
/// fewer runs are allowed than the model has roles.
///
/// Figures are the same for the same input, text and options with any number of threads, on machines with fused
/// multiply-add.
///
/// # Errors
/// Models without likelihoods, windows without scored tokens, tensors that cannot be quantized; cancellation.
pub(crate) fn measure_costs(
    model: &Model<'_>,
    survey: &Survey<'_>,
    costs: &mut [TensorCost],
    windows: &[Window],
    options: &MeasureOptions<'_>,
    progress: &dyn Progress,
) -> Result<usize> {
    if model.plan()?.kind == ModelKind::Encoder {
        return Err(CalibrateError::Encoder);
    }
    let own = Recall::of_many();
    let model = &Model { recall: Some(model.recall.unwrap_or(&own)), ..*model };
    let types: Vec<GgmlType> = survey
        .tensors()
        .iter()
        .zip(&*costs)
        .map(|(tensor, cost)| measured_type(tensor, cost, options.error))
        .collect();
    let plan = survey.plan(FileType::Q4KM, &types)?;
    let groups = groups(survey.tensors(), options.n_runs);
    let n_groups = groups.len();
    if n_groups > options.n_runs {
        return Ok(0);
    }
    progress.steps(1);
    progress.begin("measuring what types cost by runs of the model", n_groups as u64);
    progress.units("run", n_groups as u64);
    for (number, group) in groups.into_iter().enumerate() {
        if progress.is_cancelled() {
            return Err(EngineError::Cancelled.into());
        }
        if let Some(kld) = options.work.and_then(|work| work.cost(number)) {
            share_out(costs, &group, &types, kld);
            progress.advance(1);
            continue;
        }
        let members = group.iter().map(|&at| &survey.tensors()[at]);
        let partly = PartlyQuantized::new(model.source, &plan, members);
        let one = Model { source: &partly, file: None, recall: None, ..*model };
        let found = divergence_on(&one, model, windows, options.engine, &Quiet(progress))?;
        let kld = found.ok_or(CalibrateError::NoText)?.kld.mean;
        if let Some(work) = options.work {
            work.add_cost(number, kld)?;
        }
        share_out(costs, &group, &types, kld);
        progress.advance(1);
    }
    progress.end();
    Ok(n_groups)
}

/// Type whose error has the smallest ratio to the wanted one; the first type if no error is known.
fn measured_type(tensor: &OpenTensor, cost: &TensorCost, wanted: f64) -> GgmlType {
    let distance = |ty: &GgmlType| {
        let error = cost.error(*ty).filter(|&error| error > 0.0).unwrap_or(f64::MIN_POSITIVE);
        if error > wanted { error / wanted } else { wanted / error }
    };
    let nearest = tensor.types.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)));
    nearest.copied().unwrap_or(GgmlType::Q8_0)
}

/// Groups of tensors that are measured together. Each tensor is alone if there are enough runs. Otherwise a group has
/// the tensors of one role in as many neighbouring layers as needed. Tensors outside of layers are always alone.
fn groups(tensors: &[OpenTensor], n_runs: usize) -> Vec<Vec<usize>> {
    let n_layers = tensors.iter().filter_map(|tensor| layer_of(&tensor.name)).max().unwrap_or(0).max(0);
    for n_together in 1..=n_layers.saturating_add(1) {
        let mut groups: BTreeMap<(i32, &str), Vec<usize>> = BTreeMap::new();
        for (at, tensor) in tensors.iter().enumerate() {
            let key = match layer_of(&tensor.name) {
                // The first layer differs from the others, so it is never grouped.
                Some(layer) if n_together > 1 && layer > 0 => {
                    (1 + (layer - 1) / n_together, role(&tensor.name))
                }
                Some(layer) => (layer, role(&tensor.name)),
                None => (-1, tensor.name.as_str()),
            };
            groups.entry(key).or_default().push(at);
        }
        if groups.len() <= n_runs || n_together > n_layers {
            return groups.into_values().collect();
        }
    }
    Vec::new()
}

/// Tensor name without its layer prefix.
fn role(name: &str) -> &str {
    let rest = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    rest.map_or(name, |(_, role)| role)
}

/// Divides a divergence among the members of a group in proportion to their estimated costs.
fn share_out(costs: &mut [TensorCost], group: &[usize], types: &[GgmlType], kld: f64) {
    let estimate = |cost: &TensorCost, ty| cost.error(ty).unwrap_or(0.0) * cost.sensitivity;
    let all: f64 = group.iter().map(|&at| estimate(&costs[at], types[at])).sum();
    for &at in group {
        let part = if all > 0.0 { estimate(&costs[at], types[at]) / all } else { 1.0 / group.len() as f64 };
        costs[at].measured.retain(|row| row.0 != types[at]);
        costs[at].measured.push((types[at], kld * part));
    }
}

/// Model in which some tensors are quantized and the others are unchanged.
struct PartlyQuantized<'a> {
    source: &'a dyn TensorSource,
    plan: &'a QuantizePlan<'a>,
    tensors: Vec<TensorMeta>,
    /// Place in the plan of each quantized tensor, by its index in the source.
    places: BTreeMap<usize, usize>,
}

impl<'a> PartlyQuantized<'a> {
    fn new<'t>(
        source: &'a dyn TensorSource,
        plan: &'a QuantizePlan<'a>,
        members: impl Iterator<Item = &'t OpenTensor>,
    ) -> Self {
        let mut tensors = source.tensors().to_vec();
        let mut places = BTreeMap::new();
        let (planned, found) = (plan.tensors(), plan.source_tensors());
        // By name: the model that is run may have its tensors in another order than the quantization.
        let places_by_name: BTreeMap<&str, usize> =
            members.map(|member| (found[member.source].name.as_str(), member.place)).collect();
        for (at, tensor) in tensors.iter_mut().enumerate() {
            if let Some(&place) = places_by_name.get(tensor.name.as_str()) {
                tensor.ty = planned[place].ty;
                places.insert(at, place);
            }
        }
        Self { source, plan, tensors, places }
    }
}

impl TensorSource for PartlyQuantized<'_> {
    fn tensors(&self) -> &[TensorMeta] {
        &self.tensors
    }

    fn read_rows(&self, tensor: usize, first_row: u64, out: &mut [u8]) -> Result<(), SourceError> {
        match self.places.get(&tensor) {
            Some(&place) => self.plan.read_rows(place, first_row, out),
            None => self.source.read_rows(tensor, first_row, out),
        }
    }

    fn borrow_rows(&self, tensor: usize, first_row: u64, n_rows: u64) -> Option<&[u8]> {
        match self.places.get(&tensor) {
            Some(&place) => self.plan.borrow_rows(place, first_row, n_rows),
            None => self.source.borrow_rows(tensor, first_row, n_rows),
        }
    }

    fn release_rows(&self, tensor: usize, first_row: u64, n_rows: u64) {
        self.source.release_rows(tensor, first_row, n_rows);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_counted_by_operations() {
        // Small models are measured completely whatever the text, large ones within half an hour, others by the text.
        assert_eq!(runs_for(3_000_000, 1 << 10, 2048), 715);
        assert_eq!(runs_for(1_000_000_000, 1 << 10, 32_768), 64);
        assert_eq!(runs_for(7_000_000_000, 1 << 10, 32_768), 39);
        assert_eq!(runs_for(70_000_000_000, 1 << 10, 32_768), 3);
        assert_eq!(runs_for(u64::MAX, usize::MAX, usize::MAX), 0);
        assert_eq!(runs_for(0, 0, 0), usize::try_from(LEAST_OPS).unwrap());
    }

    #[test]
    fn tensors_share_runs_where_there_are_few() {
        let tensor = |name: String| OpenTensor {
            class: gguf_quantization::TensorClass::of(&name),
            name,
            source: 0,
            place: 0,
            types: Vec::new(),
        };
        let layers =
            (0..5).flat_map(|layer| ["attn_q", "ffn_up"].map(|role| format!("blk.{layer}.{role}.weight")));
        let names = layers.chain(["output.weight".to_owned()]);
        let tensors: Vec<OpenTensor> = names.map(tensor).collect();
        let sizes = |n_runs| {
            let mut sizes: Vec<usize> = groups(&tensors, n_runs).iter().map(Vec::len).collect();
            sizes.sort_unstable();
            sizes
        };
        assert_eq!(sizes(11), [1; 11]);
        assert_eq!(sizes(10), [1, 1, 1, 2, 2, 2, 2]);
        // The first layer and the output stay alone.
        assert_eq!(sizes(5), [1, 1, 1, 4, 4]);
        assert_eq!(sizes(1), [1, 1, 1, 4, 4]);
    }
}

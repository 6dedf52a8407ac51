//! Several quantizations of one model from one reading: rows are read and decoded once, and a tensor that several files
//! hold in the same type is quantized once.

use std::collections::{BTreeMap, BTreeSet};

use crate::execute::quantize_for;
use crate::{Input, QuantizeError, QuantizeOptions, QuantizePlan};
use gguf_blocks::SmallRows;
use gguf_core::{GgmlType, SourceError, TensorMeta, TensorSource};
use gguf_format::{FileType, Imatrix, VariantSource};

/// Types of one of several quantizations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RungTypes {
    /// Mixture of types.
    pub file_type: FileType,
    /// Type of the output matrix, instead of the mixture's.
    pub output: Option<GgmlType>,
    /// Type of the token embeddings, instead of the mixture's.
    pub embeddings: Option<GgmlType>,
}

impl RungTypes {
    /// Returns the options of a single run with these types.
    pub fn options(self, base: &QuantizeOptions) -> QuantizeOptions {
        QuantizeOptions {
            file_type: self.file_type,
            output_tensor_type: self.output.or(base.output_tensor_type),
            token_embedding_type: self.embeddings.or(base.token_embedding_type),
            ..base.clone()
        }
    }
}

/// Plans of several quantizations of one input. They have the same tensors in the same order.
pub struct JointPlans<'a> {
    plans: Vec<QuantizePlan<'a>>,
    /// By tensor: the different contents.
    variants: Vec<TensorVariants>,
    /// By plan and tensor: index of the content.
    of_plan: Vec<Vec<usize>>,
}

/// Contents that a tensor has in several outputs.
struct TensorVariants {
    metas: Vec<TensorMeta>,
    makers: Vec<usize>,
}

impl<'a> JointPlans<'a> {
    /// Plans several runs of one input; all other options are those of `base`. Plans may lack something, as those of
    /// [`QuantizePlan::draft`].
    ///
    /// # Errors
    /// As [`QuantizePlan::draft`], for the first plan that cannot be made.
    pub fn draft(
        input: &Input<'a>,
        base: &QuantizeOptions,
        rungs: &[RungTypes],
        imatrix: Option<&'a Imatrix>,
    ) -> Result<Self, QuantizeError> {
        let plan = |types: &RungTypes| QuantizePlan::draft(input, &types.options(base), imatrix);
        Ok(Self::of(rungs.iter().map(plan).collect::<Result<Vec<_>, _>>()?))
    }

    /// Joins plans of one input with the same options, except for the types.
    pub fn of(plans: Vec<QuantizePlan<'a>>) -> Self {
        let n_tensors = plans.first().map_or(0, |plan| plan.tensors.len());
        let mut of_plan = vec![Vec::with_capacity(n_tensors); plans.len()];
        let mut variants = Vec::with_capacity(n_tensors);
        for tensor in 0..n_tensors {
            let mut found = TensorVariants { metas: Vec::new(), makers: Vec::new() };
            for (number, plan) in plans.iter().enumerate() {
                let meta = &plan.tensors[tensor];
                // Importance follows from tensor and matrix, so blocks of the same type are equal.
                let known = found.metas.iter().position(|known| known.ty == meta.ty);
                of_plan[number].push(known.unwrap_or_else(|| {
                    found.metas.push(meta.clone());
                    found.makers.push(number);
                    found.metas.len() - 1
                }));
            }
            variants.push(found);
        }
        Self { plans, variants, of_plan }
    }

    /// Plans of the single outputs, in the order of their types.
    pub fn plans(&self) -> &[QuantizePlan<'a>] {
        &self.plans
    }

    /// Takes the first error at which a run would stop.
    pub fn take_obstacle(&mut self) -> Option<QuantizeError> {
        self.plans.iter_mut().find_map(QuantizePlan::take_obstacle)
    }

    /// Returns the content of each tensor in the output of a plan, as an index into its variants.
    pub fn of_plan(&self, plan: usize) -> &[usize] {
        &self.of_plan[plan]
    }

    /// Bytes of tensors that are made: a tensor that several outputs hold in one type counts once, unless one of them
    /// is made alone. `is_alone` has an entry for each plan.
    pub fn made_bytes(&self, is_alone: &[bool]) -> u64 {
        let of_tensor = |(tensor, found): (usize, &TensorVariants)| -> u64 {
            let bytes = |variant: usize| found.metas.get(variant).and_then(TensorMeta::n_bytes).unwrap_or(0);
            let of_plans = self.of_plan.iter().map(|variants| variants[tensor]);
            let (alone, shared): (Vec<_>, Vec<_>) =
                of_plans.zip(is_alone).partition(|(_, is_alone)| **is_alone);
            let alone: u64 = alone.iter().map(|(variant, _)| bytes(*variant)).sum();
            let shared: BTreeSet<usize> = shared.iter().map(|(variant, _)| *variant).collect();
            alone + shared.into_iter().map(bytes).sum::<u64>()
        };
        self.variants.iter().enumerate().map(of_tensor).sum()
    }

    /// Rows that are too small for their type, of the tensors of one output, as [`QuantizePlan::small_rows`].
    pub fn small_rows(&self, plan: usize) -> Vec<(&TensorMeta, SmallRows)> {
        let of_maker: Vec<BTreeMap<&str, SmallRows>> = self
            .plans
            .iter()
            .map(|plan| {
                plan.small_rows().into_iter().map(|(meta, rows)| (meta.name.as_str(), rows)).collect()
            })
            .collect();
        let tensors = self.plans[plan].tensors.iter().zip(&self.variants).zip(&self.of_plan[plan]);
        let rows = tensors.filter_map(|((meta, variants), &variant)| {
            Some((meta, *of_maker[variants.makers[variant]].get(meta.name.as_str())?))
        });
        rows.collect()
    }
}

impl VariantSource for JointPlans<'_> {
    fn n_tensors(&self) -> usize {
        self.variants.len()
    }

    fn variants(&self, tensor: usize) -> &[TensorMeta] {
        &self.variants[tensor].metas
    }

    fn read_rows(&self, tensor: usize, first_row: u64, out: &mut [Vec<u8>]) -> Result<(), SourceError> {
        let (mut quantized, mut buffers) = (Vec::new(), Vec::new());
        for (&maker, out) in self.variants[tensor].makers.iter().zip(out) {
            let plan = &self.plans[maker];
            if plan.is_copied(tensor) {
                plan.read_rows(tensor, first_row, out)?;
            } else {
                quantized.push(plan);
                buffers.push(out.as_mut_slice());
            }
        }
        quantize_for(&quantized, tensor, first_row, &mut buffers)
    }

    fn expect(&self, tensor: usize) {
        if let Some(plan) = self.plans.first() {
            plan.expect(tensor);
        }
    }

    fn release_rows(&self, tensor: usize, first_row: u64, n_rows: u64) {
        if let Some(plan) = self.plans.first() {
            plan.release_rows(tensor, first_row, n_rows);
        }
    }
}

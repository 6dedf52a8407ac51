//! Plan of a quantization: everything about the output that is known before the first weight is read.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Mutex;

use crate::class::n_matrices;
use crate::coverage::{Coverage, FEW_TOKENS, StandIn};
use crate::idle::idle_options;
use crate::importance::{Lookup, lookup};
use crate::metadata::{Changes, file_type_id, output_metadata};
use crate::prune::{Pruned, PrunedLayers};
use crate::{
    CoveragePolicy, FileType, IdleOption, ModelFacts, Override, QuantizeError, QuantizeOptions, Reason,
    TensorClass, TypeChoice, choose_types,
};
use gguf_arch::Registry;
use gguf_arch::diffusion::DiffusionRules;
use gguf_blocks::{SmallRows, can_quantize, has_lost_groups};
use gguf_core::text::escape;
use gguf_core::{Content, GgmlType, ImatrixNeed, SourceError, TensorMeta, TensorSource, simd::SimdLevel};
use gguf_format::ollama::{has_architecture, unknown_architecture};
use gguf_format::{GgufFile, Imatrix, ImatrixError, Metadata, Value};

/// Input of a quantization: tensors with their metadata, from a file or from a conversion that has not been written.
#[derive(Clone)]
pub struct Input<'a> {
    /// Tensors to quantize.
    pub source: &'a dyn TensorSource,
    /// Metadata of the source.
    pub metadata: &'a Metadata,
    /// File and offset of each tensor, if the source is a set of files.
    pub places: Option<Vec<(usize, u64)>>,
    /// Rules of an image or video model, if they are known without its keys.
    pub diffusion: Option<DiffusionRules>,
}

impl<'a> Input<'a> {
    /// Input from a GGUF file with all its parts.
    pub fn file(file: &'a GgufFile) -> Self {
        let place = |tensor| {
            let place = file.place(tensor);
            (place.part, place.offset)
        };
        let places = (0..file.tensors().len()).map(place).collect();
        Self { source: file, metadata: file.metadata(), places: Some(places), diffusion: None }
    }

    /// Input from any other source.
    pub fn new(source: &'a dyn TensorSource, metadata: &'a Metadata) -> Self {
        Self { source, metadata, places: None, diffusion: None }
    }

    /// Facts about the model that its mixture depends on.
    pub(crate) fn facts(&self, overrides: &[Override]) -> ModelFacts {
        let facts = ModelFacts::new(self.metadata, overrides, self.source.tensors());
        let diffusion = self.diffusion.clone().or_else(|| facts.diffusion.clone());
        ModelFacts { diffusion, ..facts }
    }
}

/// Blocks of tensors that were made elsewhere and are written into the file unchanged.
pub trait SolvedRows: Sync {
    /// Returns true if it has the blocks of one matrix of a tensor; a tensor that is not a stack is matrix 0.
    fn has(&self, tensor: &str, matrix: u64) -> bool;

    /// Copies rows from `first_row` of the tensor on; all of them must belong to matrices that it has.
    fn read(&self, tensor: &str, first_row: u64, out: &mut [u8]) -> Result<(), SourceError>;
}

/// One tensor of the output.
#[derive(Clone, Debug)]
pub struct TensorPlan<'a> {
    /// Index of the tensor in the source.
    pub source: usize,
    /// Type of the tensor, and the reason for it.
    pub choice: TypeChoice,
    /// Importance weights, matrix after matrix; `None` if there are none or the type ignores them.
    pub weights: Option<Cow<'a, [f32]>>,
}

/// Planned quantization, and at the same time the [`TensorSource`] of its result: rows are quantized when they are
/// read.
pub struct QuantizePlan<'a> {
    pub(crate) source: &'a dyn TensorSource,
    pub(crate) metadata: Metadata,
    pub(crate) tensors: Vec<TensorMeta>,
    pub(crate) steps: Vec<TensorPlan<'a>>,
    pub(crate) parts: Vec<Range<usize>>,
    pub(crate) keep_split: bool,
    pub(crate) simd: SimdLevel,
    pub(crate) allow_nonfinite: bool,
    /// Blocks that were made elsewhere.
    pub(crate) solved: Option<&'a dyn SolvedRows>,
    /// Per tensor: records whether a value other than zero was read.
    pub(crate) contents: Vec<Content>,
    /// Rows that were too small for their type, by tensor.
    pub(crate) small_rows: Mutex<BTreeMap<usize, SmallRows>>,
    coverage: Coverage,
    obstacles: Vec<QuantizeError>,
    idle_options: Vec<IdleOption>,
    warnings: Vec<String>,
}

/// Refuses files that change a model in place of holding one.
///
/// # Errors
/// [`QuantizeError::Adapter`], [`QuantizeError::ControlVector`].
pub fn must_be_weights(metadata: &Metadata) -> Result<(), QuantizeError> {
    let text = |key: &str| metadata.get(key).and_then(Value::as_str);
    if text("general.type") == Some("adapter") {
        return Err(QuantizeError::Adapter);
    }
    if text("general.architecture") == Some("controlvector") {
        return Err(QuantizeError::ControlVector);
    }
    Ok(())
}

impl<'a> QuantizePlan<'a> {
    /// Plans a run.
    ///
    /// # Exactness
    /// Tensors, their order and types, and the metadata equal those of llama-quantize's output.
    ///
    /// # Errors
    /// Everything that would stop the run and can be detected from headers: all of [`QuantizePlan::draft`]'s errors,
    /// and the first of [`QuantizePlan::obstacles`].
    pub fn new(
        input: &Input<'a>,
        options: &QuantizeOptions,
        imatrix: Option<&'a Imatrix>,
    ) -> Result<Self, QuantizeError> {
        let mut plan = Self::draft(input, options, imatrix)?;
        plan.take_obstacle().map_or(Ok(plan), Err)
    }

    /// Plans a run that may lack something, for inspection. Sizes and types are right, and [`QuantizePlan::obstacles`]
    /// lists what would stop the run.
    ///
    /// # Errors
    /// Types that cannot be chosen, tensors without elements, an importance matrix that does not fit the model.
    pub fn draft(
        input: &Input<'a>,
        options: &QuantizeOptions,
        imatrix: Option<&'a Imatrix>,
    ) -> Result<Self, QuantizeError> {
        Self::drafted(input, options, imatrix, imatrix.is_some_and(|imatrix| !imatrix.is_empty()))
    }

    /// Plans like [`QuantizePlan::draft`] for an importance matrix that does not exist yet but will cover all tensors.
    pub fn draft_to_come(input: &Input<'a>, options: &QuantizeOptions) -> Result<Self, QuantizeError> {
        let mut plan = Self::drafted(input, options, None, true)?;
        plan.obstacles.retain(|obstacle| !matches!(obstacle, QuantizeError::NoImatrix { .. }));
        Ok(plan)
    }

    fn drafted(
        input: &Input<'a>,
        options: &QuantizeOptions,
        imatrix: Option<&'a Imatrix>,
        has_imatrix: bool,
    ) -> Result<Self, QuantizeError> {
        let imatrix = imatrix.filter(|imatrix| !imatrix.is_empty());
        must_be_weights(input.metadata)?;
        let found = input.source.tensors();
        let facts = input.facts(&options.overrides);
        // Image models have empty tensors as marks.
        if facts.diffusion.is_none()
            && let Some(empty) = found.iter().find(|tensor| tensor.shape.n_elems() == 0)
        {
            return Err(QuantizeError::NoElements { tensor: empty.name.clone(), shape: empty.shape.clone() });
        }
        let order = facts.file_order(found);
        let file_type = options.given.file_type_id.unwrap_or_else(|| {
            file_type_id(options.file_type, input.metadata, || {
                FileType::guess(order.iter().map(|&i| found[i].ty))
            })
        });

        let layers = PrunedLayers::new(&options.prune_layers, input.metadata, found)?;
        let mut pruned = Pruned::new(&options.prune_layers);
        // ref: tensors of language models and towers pass through ggml; those of image models do not.
        let shape = |tensor: &TensorMeta| match facts.diffusion {
            Some(_) => tensor.shape.clone(),
            None => tensor.shape.of_ggml(),
        };
        let mut kept: Vec<(usize, TensorMeta)> = Vec::with_capacity(order.len());
        for index in order {
            let tensor = &found[index];
            if let Some(name) = pruned.rename(&tensor.name) {
                kept.push((index, TensorMeta { name, shape: shape(tensor), ty: tensor.ty }));
            }
        }
        let n_layers = pruned.n_layers();
        let places = input.places.as_deref().filter(|_| options.keep_split);
        let parts = match places {
            Some(places) => {
                kept.sort_by_key(|(index, _)| places.get(*index).copied());
                cut_parts(kept.iter().map(|(index, _)| places.get(*index).map_or(0, |place| place.0)))
            }
            None => cut_parts(kept.iter().map(|_| 0)),
        };

        let (sources, mut tensors): (Vec<_>, Vec<_>) = kept.into_iter().unzip();
        let choices = choose_types(&facts, &tensors, options, has_imatrix)?;
        let mut idle_options = idle_options(options, &tensors, &choices);
        let mut steps = Vec::with_capacity(choices.len());
        let mut builder = PlanBuilder {
            options,
            imatrix,
            coverage: Coverage::default(),
            obstacles: Vec::new(),
            needy: Vec::new(),
            stand_ins: BTreeSet::new(),
        };
        for ((source, tensor), choice) in sources.into_iter().zip(&mut tensors).zip(choices) {
            steps.push(builder.step(source, &found[source], tensor, choice)?);
            tensor.ty = choice.ty;
        }
        builder.refuse_needy();
        builder.check_coverage(found)?;
        if imatrix.is_some() && builder.coverage.n_covered == 0 && builder.coverage.missing.is_empty() {
            let why = "no tensor gets a type that uses importance".to_owned();
            idle_options.push(IdleOption { option: "--imatrix".to_owned(), why });
        }

        let pruned = layers.as_ref();
        let mut warnings = Vec::new();
        let lost = pruned.map(|pruned| pruned.lost_patterns(input.metadata)).unwrap_or_default();
        if !lost.is_empty() {
            warnings.push(format!(
                "layers behind the pruned ones move up, and no longer fit a pattern that the file keeps: {}",
                lost.join("; ")
            ));
        }
        let which = match facts.architecture.as_str() {
            "" => "the file names no architecture".to_owned(),
            arch if has_architecture(arch) => unknown_architecture(arch),
            arch => format!("architecture `{}` is not a known language model", escape(arch)),
        };
        if let Some(rules) = &facts.diffusion {
            warnings.extend(of_diffusion(rules, &facts.architecture, &which));
            if input.diffusion.is_none() {
                warnings.extend(rules.unloadable(&tensors));
            }
        } else if !is_known(&facts.architecture) {
            let advice = "; `--tensor-type REGEX=f16` keeps some as floats, which image models need";
            let advice = if has_architecture(&facts.architecture) { "" } else { advice };
            warnings
                .push(format!("{which}: its first and last layers are quantized like all others{advice}"));
        }
        let keeps_order = facts.diffusion.is_some();
        let changes =
            Changes { file_type, keeps_order, overrides: &options.overrides, imatrix, pruned, n_layers };
        Ok(Self {
            source: input.source,
            metadata: output_metadata(input.metadata, &changes)?,
            contents: tensors.iter().map(|_| Content::default()).collect(),
            small_rows: Mutex::default(),
            solved: None,
            tensors,
            steps,
            parts,
            keep_split: options.keep_split,
            simd: options.simd,
            allow_nonfinite: options.allow_nonfinite,
            coverage: builder.coverage,
            obstacles: builder.obstacles,
            idle_options,
            warnings,
        })
    }

    /// Types that the tensors of the source will have with an importance matrix that is not known yet, by their index
    /// in the source. Tensors that do not change are left out.
    pub fn types_to_come(
        input: &Input<'_>,
        options: &QuantizeOptions,
    ) -> Result<BTreeMap<usize, GgmlType>, QuantizeError> {
        let found = input.source.tensors();
        let facts = input.facts(&options.overrides);
        let order = facts.file_order(found);
        let tensors: Vec<TensorMeta> = order.iter().map(|&index| found[index].clone()).collect();
        let choices = choose_types(&facts, &tensors, options, true)?;
        let changed = order.into_iter().zip(choices).filter(|(index, choice)| found[*index].ty != choice.ty);
        Ok(changed.map(|(index, choice)| (index, choice.ty)).collect())
    }

    /// Plan of one tensor without metadata. Its type and its importance are given, and nothing is refused.
    pub(crate) fn of_one(
        source: &'a dyn TensorSource,
        tensor: TensorMeta,
        step: TensorPlan<'a>,
        simd: SimdLevel,
    ) -> Self {
        Self {
            source,
            metadata: Metadata::new(),
            contents: vec![Content::default()],
            small_rows: Mutex::default(),
            solved: None,
            tensors: vec![tensor],
            steps: vec![step],
            parts: cut_parts(std::iter::once(0)),
            keep_split: false,
            simd,
            allow_nonfinite: true,
            coverage: Coverage::default(),
            obstacles: Vec::new(),
            idle_options: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Adds blocks of some tensors that were made elsewhere. Tensors are identified by their names in the source, which
    /// a plan that prunes layers changes.
    pub fn with_solved(mut self, solved: &'a dyn SolvedRows) -> Self {
        self.solved = Some(solved);
        self
    }

    /// Adds further keys at the end of the metadata.
    pub fn with_keys(mut self, keys: &[(String, Value)]) -> Self {
        for (key, value) in keys {
            self.metadata.remove(key);
            self.metadata.set(key.as_str(), value.clone());
        }
        self
    }

    /// Metadata of the output, without the keys of a split.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Treatment of each tensor, in output order.
    pub fn steps(&self) -> &[TensorPlan<'a>] {
        &self.steps
    }

    /// Tensors of the source.
    pub fn source_tensors(&self) -> &'a [TensorMeta] {
        self.source.tensors()
    }

    /// Gaps of the importance matrix.
    pub fn coverage(&self) -> &Coverage {
        &self.coverage
    }

    /// Errors at which a run would stop, in output order.
    pub fn obstacles(&self) -> &[QuantizeError] {
        &self.obstacles
    }

    /// Takes the first error at which a run would stop.
    pub(crate) fn take_obstacle(&mut self) -> Option<QuantizeError> {
        (!self.obstacles.is_empty()).then(|| self.obstacles.swap_remove(0))
    }

    /// Options that change nothing; rules for single tensors come first.
    pub fn idle_options(&self) -> &[IdleOption] {
        &self.idle_options
    }

    /// Warnings about the output that do not stop the run.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Number of tensors whose type was replaced because of their columns.
    pub fn n_fallbacks(&self) -> usize {
        self.steps.iter().filter(|step| matches!(step.choice.reason, Reason::Fallback { .. })).count()
    }
}

/// Returns true for architectures whose first and last layers have names that mixtures know, and for towers.
fn is_known(architecture: &str) -> bool {
    architecture == "clip" || Registry::knows(architecture)
}

/// Returns the warning about an image or video model whose rules do not follow from its architecture.
fn of_diffusion(rules: &DiffusionRules, architecture: &str, which: &str) -> Option<String> {
    match rules.card() {
        Some(card) if card.gguf == architecture => None,
        Some(card) => {
            Some(format!("{which}: its tensors are those of `{}`, whose rules are used", card.gguf))
        }
        None => Some(format!(
            "{which}, nor an image model with a card: only matrices inside of numbered blocks are quantized; embedders, \
             norms, first and last layers stay as they are"
        )),
    }
}

/// Ranges of tensors by part. Parts are numbered without gaps; a part that lost all its tensors is empty.
fn cut_parts(parts: impl Iterator<Item = usize>) -> Vec<Range<usize>> {
    let mut ranges = Vec::from([Range { start: 0, end: 0 }]);
    for (index, part) in parts.enumerate() {
        while ranges.len() <= part {
            ranges.push(index..index);
        }
        if let Some(last) = ranges.last_mut() {
            last.end = index + 1;
        }
    }
    ranges
}

struct PlanBuilder<'a, 'o> {
    options: &'o QuantizeOptions,
    imatrix: Option<&'a Imatrix>,
    coverage: Coverage,
    obstacles: Vec<QuantizeError>,
    /// Tensors whose types need importance data that they do not have.
    needy: Vec<(String, GgmlType)>,
    /// Entries that were used for tensors of other names.
    stand_ins: BTreeSet<String>,
}

impl<'a> PlanBuilder<'a, '_> {
    fn step(
        &mut self,
        source: usize,
        found: &TensorMeta,
        tensor: &TensorMeta,
        choice: TypeChoice,
    ) -> Result<TensorPlan<'a>, QuantizeError> {
        let mut step = TensorPlan { source, choice, weights: None };
        if choice.ty == found.ty {
            return Ok(step);
        }
        let name = || tensor.name.clone();
        if !can_quantize(choice.ty) {
            self.obstacles.push(QuantizeError::NotATarget { tensor: name(), ty: choice.ty });
        }
        let n_cols = tensor.shape.n_cols();
        if choice.ty.row_bytes(n_cols).is_none() {
            // Rules and mixtures fall back; these two options do not.
            let is_output = choice.class == TensorClass::Output;
            let option = if is_output { "--output-tensor-type" } else { "--token-embedding-type" };
            return Err(QuantizeError::Columns { tensor: name(), n_cols, ty: choice.ty, option });
        }
        if found.ty.is_quantized() && !self.options.allow_requantize {
            self.obstacles.push(QuantizeError::Requantize { tensor: name(), from: found.ty, to: choice.ty });
        }
        step.weights = self.weights(found, choice)?;
        if step.weights.is_none() && choice.needs_imatrix {
            self.needy.push((tensor.name.clone(), choice.ty));
        }
        Ok(step)
    }

    /// Importance weights for a tensor. Sizes are checked even for types that ignore the weights: an importance matrix
    /// of another model is always an error.
    fn weights(
        &mut self,
        found: &TensorMeta,
        choice: TypeChoice,
    ) -> Result<Option<Cow<'a, [f32]>>, QuantizeError> {
        let Some(imatrix) = self.imatrix else { return Ok(None) };
        let is_used = choice.ty.info().imatrix != ImatrixNeed::Ignored;
        let is_measured = !matches!(choice.class, TensorClass::TokenEmbd | TensorClass::Output);
        match lookup(imatrix, found, self.options.share_importance) {
            Lookup::Found(importance) => {
                self.stand_ins.extend(importance.stand_in.iter().cloned());
                if !is_used {
                    return Ok(None);
                }
                self.coverage.add(found, &importance);
                if has_lost_groups(choice.ty, &importance.weights) {
                    self.coverage.lost.push(found.name.clone());
                }
                Ok(Some(importance.weights))
            }
            missing @ (Lookup::Absent | Lookup::Elsewhere(_)) => {
                if is_used && is_measured {
                    self.coverage.missing.push(found.name.clone());
                    if let Lookup::Elsewhere(entry) = missing {
                        self.coverage.elsewhere.push(StandIn { tensor: found.name.clone(), entry });
                    }
                }
                Ok(None)
            }
            // ref: for the embeddings, an entry of another size is ignored.
            Lookup::OtherSize(_) if choice.class == TensorClass::TokenEmbd => {
                self.coverage.missing.push(found.name.clone());
                Ok(None)
            }
            Lookup::OtherSize(n) => Err(ImatrixError::Size {
                path: imatrix.path().to_owned(),
                tensor: found.name.clone(),
                expected: found.shape.n_cols().saturating_mul(n_matrices(found)),
                found: n,
            }
            .into()),
        }
    }

    /// Reports one obstacle for all tensors whose types need importance data that they do not have.
    fn refuse_needy(&mut self) {
        if self.needy.is_empty() {
            return;
        }
        let tensors = std::mem::take(&mut self.needy);
        self.obstacles.push(match self.imatrix {
            None => QuantizeError::NoImatrix { tensors },
            Some(_) => {
                let is_needy = |pair: &&StandIn| tensors.iter().any(|(tensor, _)| *tensor == pair.tensor);
                let elsewhere = self.coverage.elsewhere.iter().find(is_needy).cloned().map(Box::new);
                QuantizeError::NotCovered { tensors, elsewhere }
            }
        });
    }

    fn check_coverage(&mut self, found: &[TensorMeta]) -> Result<(), QuantizeError> {
        let Some(imatrix) = self.imatrix else { return Ok(()) };
        imatrix.check_finite()?;
        let names: std::collections::HashSet<_> = found.iter().map(|tensor| tensor.name.as_str()).collect();
        let is_foreign = |name: &&str| !names.contains(name) && !self.stand_ins.contains(*name);
        let foreign = imatrix.entries().map(|(name, _)| name).filter(is_foreign);
        self.coverage.foreign = foreign.map(str::to_owned).collect();
        let is_used = self.coverage.n_covered > 0;
        self.coverage.few_tokens = imatrix.n_tokens().filter(|&n| is_used && n < FEW_TOKENS);
        if let [example, ..] = self.coverage.foreign.as_slice()
            && self.coverage.foreign.len() == imatrix.entries().len()
        {
            return Err(ImatrixError::OtherModel {
                path: imatrix.path().to_owned(),
                n_entries: imatrix.entries().len(),
                example: example.clone(),
            }
            .into());
        }
        let policy = self.options.coverage;
        let is_strict = matches!(policy, CoveragePolicy::Tensors | CoveragePolicy::Error);
        if let [first, more @ ..] = self.coverage.missing.as_slice()
            && is_strict
        {
            self.obstacles.push(QuantizeError::Coverage { tensor: first.clone(), n_more: more.len() });
        }
        if let [first, ..] = self.coverage.unseen.as_slice()
            && policy == CoveragePolicy::Error
        {
            self.obstacles.push(QuantizeError::Experts {
                tensor: first.tensor.clone(),
                n_experts: first.experts.len(),
                of: first.of,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_keep_their_numbers() {
        assert_eq!(cut_parts([0, 0, 1, 3].into_iter()), [0..2, 2..3, 3..3, 3..4]);
        assert_eq!(cut_parts([1].into_iter()), [0..0, 0..1]);
        assert_eq!(cut_parts(std::iter::empty()).len(), 1);
    }
}

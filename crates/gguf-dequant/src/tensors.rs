//! Bookkeeping of a checkpoint's tensors while modules are assembled: assigned members, and tensors left over.

use std::collections::HashMap;

use crate::layer::{Weight, WeightOrigin};
use crate::{CodedWeight, DequantError, InnerSource, Result};
use gguf_checkpoint::pieces::why;
use gguf_core::simd::SimdLevel;
use gguf_core::text::escape;
use gguf_core::{ElementType, Shape, WeightMeta, WeightSource};

/// Decision about a tensor of the checkpoint.
enum TensorUse {
    /// Passed on unchanged.
    Plain,
    /// Consumed as a member of a module.
    Member,
    /// Left out: a parameter of activations or caches, which GGUF has no place for.
    Dropped,
    /// Replaced by a decoded weight.
    Replaced(Weight),
}

/// Codes and scales of a module, or of a stack of experts that is not a module.
#[derive(Clone, Copy, Debug)]
pub(super) struct CodedModule<'a> {
    /// Name of the scales without their suffix.
    pub(super) name: &'a str,
    pub(super) codes: usize,
    pub(super) scale: usize,
}

/// Final decisions about all tensors.
pub(super) struct DequantPlan {
    /// Weights of the float layer.
    pub(super) weights: Vec<Weight>,
    /// Tensors from which modules were assembled.
    pub(super) members: Vec<WeightMeta>,
}

/// The tensors of a checkpoint, and the decision about each.
pub(super) struct Tensors<'a> {
    inner: InnerSource<'a>,
    by_name: HashMap<&'a str, usize>,
    fates: Vec<TensorUse>,
    appended: Vec<Weight>,
}

impl<'a> Tensors<'a> {
    /// Creates the state in which all tensors are plain.
    pub(super) fn new(source: &'a dyn WeightSource, level: SimdLevel) -> Self {
        let weights = source.weights();
        let by_name = weights.iter().enumerate().map(|(index, meta)| (meta.name.as_str(), index)).collect();
        let fates = weights.iter().map(|_| TensorUse::Plain).collect();
        Self { inner: InnerSource { source, level }, by_name, fates, appended: Vec::new() }
    }

    /// Source from which scales and indices are read while planning.
    pub(super) fn inner(&self) -> InnerSource<'a> {
        self.inner
    }

    /// Name, shape and element type of a tensor.
    pub(super) fn meta(&self, index: usize) -> &'a WeightMeta {
        self.inner.meta(index)
    }

    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// Returns the index of the tensor `module` + `suffix`.
    pub(super) fn member(&self, module: &str, suffix: &str) -> Result<usize> {
        let tensor = format!("{module}{suffix}");
        let missing = || DequantError::MissingTensor { module: module.to_owned(), tensor: tensor.clone() };
        self.find(&tensor).ok_or_else(missing)
    }

    /// Returns the tensors whose names end in `suffix`: the rest of the name and the index, in the checkpoint's
    /// order.
    pub(super) fn ending(&self, suffix: &str) -> Vec<(&'a str, usize)> {
        let weights = self.inner.source.weights().iter().enumerate();
        weights.filter_map(|(index, meta)| Some((meta.name.strip_suffix(suffix)?, index))).collect()
    }

    /// Returns the scales with a suffix whose codes, name + `codes_suffix`, have an accepted type and are free.
    ///
    /// For example, the scales of `experts.down_proj` are `experts.down_proj_weight_scale`.
    pub(super) fn coded_modules(
        &self,
        suffix: &str,
        codes_suffix: &str,
        is_code: impl Fn(ElementType) -> bool,
    ) -> Vec<CodedModule<'a>> {
        let pair = |(name, scale): (&'a str, usize)| {
            let codes = self.find(&format!("{name}{codes_suffix}"))?;
            (self.is_free(codes) && is_code(self.meta(codes).ty)).then_some(CodedModule {
                name,
                codes,
                scale,
            })
        };
        self.ending(suffix).into_iter().filter_map(pair).collect()
    }

    /// Returns true if nothing was decided about a tensor yet.
    pub(super) fn is_free(&self, index: usize) -> bool {
        matches!(self.fates[index], TensorUse::Plain)
    }

    /// Leaves out a tensor that only a runtime needs.
    pub(super) fn leave_out(&mut self, index: usize) {
        self.fates[index] = TensorUse::Dropped;
    }

    /// Returns the scales and zero points of weights that are plain floats: what was left when the weights were decoded.
    pub(super) fn scales_of_floats(&self) -> Vec<usize> {
        const SUFFIXES: [&str; 5] = [
            ".weight_scale",
            ".weight_scale_inv",
            ".weight_scale_2",
            ".weight_global_scale",
            ".weight_zero_point",
        ];
        let found = SUFFIXES.iter().flat_map(|suffix| self.ending(suffix));
        let is_of_floats = |&(module, index): &(&str, usize)| {
            let weight = self.find(&format!("{module}.weight"));
            self.is_free(index)
                && weight.is_some_and(|weight| self.is_free(weight) && self.meta(weight).ty.is_plain_float())
        };
        found.filter(is_of_floats).map(|row| row.1).collect()
    }

    /// Leaves out the scales of plain floats, which are the weights, as transformers takes them; returns a warning.
    pub(super) fn pass_over_scales_of_floats(&mut self) -> Option<String> {
        let left = self.scales_of_floats();
        for &index in &left {
            self.leave_out(index);
        }
        let first = escape(&self.meta(*left.first()?).name);
        let what = match left.len() {
            1 => format!("`{first}` is passed over: its weight is plain floats"),
            n => format!("`{first}` and {} more are passed over: their weights are plain floats", n - 1),
        };
        Some(format!("{what}, which are taken as they are"))
    }

    /// Replaces a tensor by a decoded weight, and consumes the weight's members.
    pub(super) fn replace(&mut self, index: usize, name: String, shape: Shape, weight: Box<dyn CodedWeight>) {
        self.take_members(&*weight);
        self.fates[index] = TensorUse::Replaced(made(name, shape, weight));
    }

    /// Replaces a tensor by a decoded weight of the same name and shape, as [`Tensors::replace`].
    pub(super) fn decode_in_place(&mut self, index: usize, weight: Box<dyn CodedWeight>) {
        let WeightMeta { name, shape, .. } = self.meta(index).clone();
        self.replace(index, name, shape, weight);
    }

    /// Appends a decoded weight after all others, and consumes its members.
    pub(super) fn append(&mut self, name: String, shape: Shape, weight: Box<dyn CodedWeight>) {
        self.take_members(&*weight);
        self.appended.push(made(name, shape, weight));
    }

    fn take_members(&mut self, weight: &dyn CodedWeight) {
        for &member in weight.members() {
            self.fates[member] = TensorUse::Member;
        }
    }

    /// Checks that a tensor has one of these element types.
    pub(super) fn check_type(&self, index: usize, types: &[ElementType]) -> Result<()> {
        if types.contains(&self.meta(index).ty) {
            return Ok(());
        }
        let expected = types.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ");
        Err(self.inner.wrong_type(index, expected))
    }

    pub(super) fn check_shape(&self, index: usize, dims: &[u64]) -> Result<()> {
        if self.meta(index).shape.dims() == dims {
            return Ok(());
        }
        Err(self.shape_error(index, format!("{dims:?}")))
    }

    pub(super) fn shape_error(&self, index: usize, expected: impl Into<String>) -> DequantError {
        let WeightMeta { name: tensor, shape: found, .. } = self.meta(index).clone();
        DequantError::ShapeMismatch { tensor, found, expected: expected.into() }
    }

    /// Creates the shape of the weight that tensor `index` holds; `dims` is `None` if a dimension overflows.
    pub(super) fn weight_shape(&self, index: usize, dims: Option<Vec<u64>>) -> Result<Shape> {
        dims.and_then(Shape::new).ok_or_else(|| self.shape_error(index, "a size that fits 63 bits"))
    }

    /// Creates an error about a one-element tensor that must not be zero.
    pub(super) fn zero_divisor(&self, index: usize) -> DequantError {
        let found = "0, a divisor".to_owned();
        DequantError::NonFinite { tensor: self.meta(index).name.clone(), index: 0, found }
    }

    /// Returns rows and columns of a two-dimensional tensor.
    pub(super) fn matrix(&self, index: usize) -> Result<(u64, u64)> {
        match self.meta(index).shape.dims() {
            &[rows, cols] => Ok((rows, cols)),
            _ => Err(self.shape_error(index, "two dimensions")),
        }
    }

    /// Checks that a module with codes does not also have a plain weight.
    pub(super) fn check_no_plain(&self, module: &str, codes: usize) -> Result<()> {
        let plain = format!("{module}.weight");
        if self.find(&plain).is_none() {
            return Ok(());
        }
        let second = self.meta(codes).name.clone();
        Err(DequantError::AmbiguousModule { module: module.to_owned(), first: plain, second })
    }

    /// Checks that no byte matrix is left: in a quantized checkpoint it would be codes without scales.
    pub(super) fn check_no_bare_codes(&self) -> Result<()> {
        let left = self
            .inner
            .source
            .weights()
            .iter()
            .zip(&self.fates)
            .filter(|row| matches!(row.1, TensorUse::Plain));
        match left.map(|row| row.0).find(|meta| is_bare(meta)) {
            None => Ok(()),
            Some(meta) => Err(DequantError::OrphanTensor {
                tensor: meta.name.clone(),
                problem: format!("{} codes without a scale", meta.ty),
            }),
        }
    }

    /// Decides about all remaining tensors.
    ///
    /// # Errors
    /// Tensors that only make sense in a quantized module and belong to none.
    pub(super) fn finish(self) -> Result<DequantPlan> {
        let (mut weights, mut members) = (Vec::new(), Vec::new());
        let replaced = self.fates.iter().filter_map(|fate| match fate {
            TensorUse::Replaced(made) => Some(made),
            _ => None,
        });
        // Headers may declare any number of empty rows, over which no loop should run.
        if let Some(empty) = replaced.chain(&self.appended).find(|made| made.meta.shape.n_elems() == 0) {
            return Err(DequantError::ShapeMismatch {
                tensor: empty.meta.name.clone(),
                found: empty.meta.shape.clone(),
                expected: "at least one element".to_owned(),
            });
        }
        for ((index, meta), fate) in self.inner.source.weights().iter().enumerate().zip(self.fates) {
            match fate {
                TensorUse::Member => members.push(meta.clone()),
                TensorUse::Dropped => {}
                TensorUse::Replaced(made) => {
                    members.push(meta.clone());
                    weights.push(made);
                }
                TensorUse::Plain if is_runtime_only(&meta.name) => {}
                TensorUse::Plain => {
                    check_plain(meta)?;
                    weights.push(Weight::plain(self.inner.source, index));
                }
            }
        }
        weights.extend(self.appended);
        Ok(DequantPlan { weights, members })
    }
}

fn is_bare(meta: &WeightMeta) -> bool {
    let is_bytes = matches!(meta.ty, ElementType::I8 | ElementType::U8);
    is_bytes && meta.shape.rank() >= 2 && meta.name.ends_with(".weight")
}

/// Returns a warning about weights that are integers in a checkpoint that is not quantized: the scales may have been lost.
pub(super) fn integers(weights: &[WeightMeta]) -> Option<String> {
    use ElementType as E;
    let is_whole = |meta: &&WeightMeta| {
        let is_integer =
            matches!(meta.ty, E::I64 | E::I32 | E::I16 | E::I8 | E::U64 | E::U32 | E::U16 | E::U8 | E::Bool);
        is_integer && meta.name.ends_with(".weight")
    };
    let mut bare = weights.iter().filter(is_whole);
    let first = bare.next()?;
    let rest = match bare.count() {
        0 => " holds".to_owned(),
        n => format!(" and {n} more hold"),
    };
    Some(format!(
        "`{}`{rest} integers without scales, and config.json has no `quantization_config`: the numbers are taken as they are; \
         if a quantizer made them, convert the checkpoint in its original float weights",
        escape(&first.name)
    ))
}

fn made(name: String, shape: Shape, weight: Box<dyn CodedWeight>) -> Weight {
    Weight { meta: WeightMeta { name, shape, ty: ElementType::F32 }, origin: WeightOrigin::Coded(weight) }
}

fn is_runtime_only(name: &str) -> bool {
    // Stacks of experts are not modules: the name of the scale extends theirs.
    why("last part of a runtime's scale", name.rsplit('.').next().unwrap_or(name)).is_some()
}

/// Refuses a tensor of a quantized module that no method consumed.
fn check_plain(meta: &WeightMeta) -> Result<()> {
    let orphan = |problem: String| DequantError::OrphanTensor { tensor: meta.name.clone(), problem };
    if let Some(of) = why("tensor of a quantized module", &meta.name) {
        return Err(orphan(format!(
            "part of a module quantized by {of}, but the configuration or the rest of it is missing"
        )));
    }
    let is_narrow = matches!(
        meta.ty,
        ElementType::F8E4M3
            | ElementType::F8E5M2
            | ElementType::F8E8M0
            | ElementType::F8E4M3Fnuz
            | ElementType::F8E5M2Fnuz
            | ElementType::F6E2M3
            | ElementType::F6E3M2
            | ElementType::F4
    );
    if is_narrow {
        let is_other = matches!(meta.ty, ElementType::F8E4M3Fnuz | ElementType::F8E5M2Fnuz);
        let why =
            if is_other { "elements of AMD's FP8, which are not read" } else { "elements without a scale" };
        return Err(orphan(format!("{} {why}", meta.ty)));
    }
    Ok(())
}

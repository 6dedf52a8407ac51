//! Assembly of quantized weights from labels and tensors, with checks of the shapes.

use std::sync::Arc;

use super::bias::StaticBias;
use super::error::MsModelSlimError;
use super::facts::ScaleFacts;
use super::format::CodeFormat;
use super::grid::{NumberFormat, ScaleGrid, deq, exponent, float};
use super::label::Label;
use super::labelled::Labelled;
use super::linear::{Linear, Sign};
use gguf_core::{ElementType, Shape};

/// Shape of a grid of scales or offsets, relative to the stored codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GridShape {
    /// Rows of the grid per row of stored codes: 2 if rows are packed in pairs, else 1.
    ratio: u64,
    /// Numbers per row of the grid.
    groups: u64,
}

/// The tensors of a module, from which a [`Linear`] is assembled.
pub(super) struct LabelledModule<'a> {
    /// Stored tensor name without the suffix.
    pub(super) stored: &'a str,
    /// Name of the weight in a float checkpoint.
    pub(super) name: String,
    pub(super) codes: usize,
    /// The label as written; `label` is its parsed form.
    pub(super) text: &'a str,
    pub(super) label: Label,
}

impl LabelledModule<'_> {
    fn missing(&self, tensors: &Labelled<'_>, parameter: &'static str) -> MsModelSlimError {
        let tensor = tensors.meta(self.codes).name.clone();
        MsModelSlimError::ParameterMissing { tensor, label: self.text.to_owned(), parameter }
    }

    fn required(&self, tensors: &Labelled<'_>, ending: &'static str) -> Result<usize, MsModelSlimError> {
        tensors.of(self.stored, ending).ok_or_else(|| self.missing(tensors, ending))
    }

    /// Assembles the module from its tensors.
    ///
    /// Checks that depend on values other than scalars are made later.
    ///
    /// # Errors
    /// A parameter is missing, or has a shape or type that does not fit.
    pub(super) fn linear(&self, tensors: &Labelled<'_>, sign: Sign) -> Result<Linear, MsModelSlimError> {
        let meta = tensors.meta(self.codes);
        let expected = match self.label {
            Label::Fp8 | Label::Mxfp8 => ElementType::F8E4M3,
            Label::Mxfp4 | Label::Mxfp4Dual => ElementType::U8,
            _ => ElementType::I8,
        };
        if meta.ty != expected {
            let (tensor, label) = (meta.name.clone(), self.text.to_owned());
            return Err(MsModelSlimError::Contradiction { tensor, label, ty: meta.ty });
        }
        let dims = meta.shape.dims();
        if dims.len() < 2 || dims.contains(&0) {
            let (tensor, found) = (meta.name.clone(), meta.shape.clone());
            return Err(MsModelSlimError::WeightShape { tensor, found });
        }
        let (scale_at, stored, divisor) = self.scale(tensors)?;
        let GridShape { ratio, groups } = self.grid_shape(tensors, scale_at)?;
        let format = self.format(tensors, ratio, groups)?;
        let shape = self.plain_shape(tensors, format)?;
        let mut linear = Linear {
            name: self.name.clone(),
            label: self.text.to_owned(),
            codes: self.codes,
            format,
            scale: ScaleGrid { weight: scale_at, groups, stored, divisor },
            second: None,
            offset: None,
            sign,
            columns: None,
            shape,
            facts: ScaleFacts::default(),
            members: Vec::new(),
        };
        self.add_offset(tensors, &mut linear, GridShape { ratio, groups })?;
        self.add_second(tensors, &mut linear, ratio)?;
        self.add_columns(tensors, &mut linear)?;
        for grid in [Some(&linear.scale), linear.second.as_ref()].into_iter().flatten() {
            if !linear.n_cols().is_multiple_of(grid.groups) {
                return Err(self.misfit(tensors, grid.weight));
            }
        }
        Ok(linear)
    }

    /// Returns the tensor of the scale, its storage format, and its divisor.
    fn scale(&self, tensors: &Labelled<'_>) -> Result<(usize, NumberFormat, f64), MsModelSlimError> {
        let is_static = matches!(self.label, Label::W8A8 | Label::W8A8Mix);
        let direct = tensors.of(self.stored, "weight_scale");
        // Late files of the older layout have both; the layer runs with the product's scale.
        let has_product = self.label == Label::W8A8 && tensors.of(self.stored, "deq_scale").is_some();
        if let Some(at) = direct.filter(|_| !has_product) {
            let stored = match self.label {
                Label::Mxfp4 | Label::Mxfp4Dual | Label::Mxfp8 => exponent(tensors.meta(at))?,
                _ => float(tensors.meta(at))?,
            };
            return Ok((at, stored, 1.0));
        }
        if !is_static {
            return Err(self.missing(tensors, "weight_scale"));
        }
        let at = self.required(tensors, "deq_scale")?;
        Ok((at, deq(tensors.meta(at))?, self.input_scale(tensors)?))
    }

    /// Reads the scalar scale of the activations.
    fn input_scale(&self, tensors: &Labelled<'_>) -> Result<f64, MsModelSlimError> {
        let at = self.required(tensors, "input_scale")?;
        let value = Self::scalar(tensors, at)?;
        if value > 0.0 {
            return Ok(value);
        }
        Err(MsModelSlimError::InputScale { tensor: tensors.meta(at).name.clone(), value })
    }

    fn scalar(tensors: &Labelled<'_>, at: usize) -> Result<f64, MsModelSlimError> {
        let meta = tensors.meta(at);
        if meta.shape.n_elems() != 1 {
            let (tensor, found) = (meta.name.clone(), meta.shape.clone());
            return Err(MsModelSlimError::ParameterShape {
                tensor,
                found,
                expected: "a single number".to_owned(),
            });
        }
        let values = tensors.floats(at)?;
        Ok(values.first().copied().map_or(0.0, f64::from))
    }

    fn grid_shape(&self, tensors: &Labelled<'_>, grid: usize) -> Result<GridShape, MsModelSlimError> {
        let codes = tensors.meta(self.codes).shape.dims();
        let mut dims = tensors.meta(grid).shape.dims();
        while dims.len() > codes.len() && dims.last() == Some(&1) {
            dims = &dims[..dims.len() - 1];
        }
        let outer = codes.len() - 2;
        let (n_rows, groups) = match dims.get(outer..) {
            Some(&[n_rows]) => (n_rows, 1),
            Some(&[n_rows, groups]) => (n_rows, groups),
            _ => return Err(self.misfit(tensors, grid)),
        };
        let stored_rows = codes[outer];
        let ratio = n_rows / stored_rows;
        if dims[..outer] != codes[..outer]
            || groups == 0
            || n_rows != ratio * stored_rows
            || !(1..=2).contains(&ratio)
        {
            return Err(self.misfit(tensors, grid));
        }
        Ok(GridShape { ratio, groups })
    }

    fn misfit(&self, tensors: &Labelled<'_>, grid: usize) -> MsModelSlimError {
        let (meta, codes) = (tensors.meta(grid), &tensors.meta(self.codes).shape);
        MsModelSlimError::ParameterShape {
            tensor: meta.name.clone(),
            found: meta.shape.clone(),
            expected: format!("{codes} codes as `{}`", self.text),
        }
    }

    fn format(
        &self,
        tensors: &Labelled<'_>,
        ratio: u64,
        groups: u64,
    ) -> Result<CodeFormat, MsModelSlimError> {
        let may_pack = self.label.is_four_bit() && self.label != Label::W4A4Dynamic && tensors.is_packed();
        Ok(match (self.label, ratio) {
            (Label::Fp8 | Label::Mxfp8, 1) => CodeFormat::E4m3,
            (Label::Mxfp4 | Label::Mxfp4Dual, 1) => CodeFormat::E2m1,
            (label, 2) if label.is_four_bit() && may_pack => CodeFormat::Int4Rows,
            // The only packing that is not visible in the shapes: only half of the columns are there.
            (Label::W4A16, 1) if may_pack && groups == 1 && self.has_wide_codes(tensors)? => {
                CodeFormat::Int4Columns
            }
            (label, 1) if label.is_four_bit() => CodeFormat::Int4,
            (_, 1) => CodeFormat::Int8,
            _ => {
                let (at, _, _) = self.scale(tensors)?;
                return Err(self.misfit(tensors, at));
            }
        })
    }

    /// Returns true if some byte exceeds the range of a four-bit code.
    ///
    /// Pairs of codes nearly always do.
    fn has_wide_codes(&self, tensors: &Labelled<'_>) -> Result<bool, MsModelSlimError> {
        const STEP: u64 = 1 << 16;
        let n = tensors.meta(self.codes).shape.n_elems();
        for first in (0..n).step_by(STEP as usize) {
            let is_wide = tensors.inner.with_elems(self.codes, first..n.min(first + STEP), |bytes| {
                bytes.iter().any(|byte| !(-8..=7).contains(&byte.cast_signed()))
            })?;
            if is_wide {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn plain_shape(&self, tensors: &Labelled<'_>, format: CodeFormat) -> Result<Shape, MsModelSlimError> {
        let stored = &tensors.meta(self.codes).shape;
        let mut dims = stored.dims().to_vec();
        let axis = match format {
            CodeFormat::Int4Rows => dims.len() - 2,
            CodeFormat::Int4Columns | CodeFormat::E2m1 => dims.len() - 1,
            _ => return Ok(stored.clone()),
        };
        dims[axis] = dims[axis].saturating_mul(2);
        let misfit = || MsModelSlimError::WeightShape {
            tensor: tensors.meta(self.codes).name.clone(),
            found: stored.clone(),
        };
        Shape::new(dims).ok_or_else(misfit)
    }

    /// Adds the offsets to `linear`; those of a symmetric type are kept too, to be checked for zero.
    fn add_offset(
        &self,
        tensors: &Labelled<'_>,
        linear: &mut Linear,
        scale_shape: GridShape,
    ) -> Result<(), MsModelSlimError> {
        match tensors.of(self.stored, "weight_offset") {
            None if self.label.needs_offset() => return Err(self.missing(tensors, "weight_offset")),
            None => {}
            Some(at) => {
                if self.grid_shape(tensors, at)? != scale_shape {
                    return Err(self.misfit(tensors, at));
                }
                linear.offset = Some(ScaleGrid::plain(at, scale_shape.groups, float(tensors.meta(at))?));
            }
        }
        Ok(())
    }

    fn add_second(
        &self,
        tensors: &Labelled<'_>,
        linear: &mut Linear,
        ratio: u64,
    ) -> Result<(), MsModelSlimError> {
        let at = match self.label {
            Label::W4A8Dynamic => tensors.of(self.stored, "weight_scale_second"),
            Label::Mxfp4Dual => Some(self.required(tensors, "weight_dual_scale")?),
            _ => None,
        };
        let Some(at) = at else { return Ok(()) };
        let GridShape { ratio: rows, groups } = self.grid_shape(tensors, at)?;
        if rows != ratio {
            return Err(self.misfit(tensors, at));
        }
        linear.second = Some(ScaleGrid::plain(at, groups, float(tensors.meta(at))?));
        Ok(())
    }

    /// Returns the offsets of the second stage, which replace those of the first; the latter are zero.
    pub(super) fn second_offset(
        &self,
        tensors: &Labelled<'_>,
        linear: &Linear,
    ) -> Result<Option<ScaleGrid>, MsModelSlimError> {
        let Some(second) = linear.second.as_ref().filter(|_| self.label == Label::W4A8Dynamic) else {
            return Ok(None);
        };
        let Some(at) = tensors.of(self.stored, "weight_offset_second") else { return Ok(None) };
        let GridShape { groups, .. } = self.grid_shape(tensors, at)?;
        if tensors.meta(at).shape != tensors.meta(second.weight).shape {
            return Err(self.misfit(tensors, at));
        }
        Ok(Some(ScaleGrid::plain(at, groups, float(tensors.meta(at))?)))
    }

    /// Adds column factors for smoothing that multiplies the input at run time.
    fn add_columns(&self, tensors: &Labelled<'_>, linear: &mut Linear) -> Result<(), MsModelSlimError> {
        let wrapper = self.stored.strip_suffix(".linear");
        let Some(at) = wrapper.and_then(|wrapper| tensors.find(&format!("{wrapper}.div.mul_scale"))) else {
            return Ok(());
        };
        let meta = tensors.meta(at);
        if meta.shape.n_elems() != linear.n_cols() {
            return Err(self.misfit(tensors, at));
        }
        linear.columns = Some(Arc::from(tensors.floats(at)?));
        Ok(())
    }

    /// Returns the inputs of the bias of a static layer; `None` for other types.
    pub(super) fn static_bias(
        &self,
        tensors: &Labelled<'_>,
        linear: &Linear,
    ) -> Result<Option<StaticBias>, MsModelSlimError> {
        if !matches!(self.label, Label::W8A8 | Label::W8A8Mix) {
            return Ok(None);
        }
        let Some(quant_bias) = tensors.of(self.stored, "quant_bias") else { return Ok(None) };
        let bias = tensors.meta(quant_bias);
        if bias.ty != ElementType::I32 {
            let (tensor, found) = (bias.name.clone(), bias.ty);
            return Err(MsModelSlimError::ParameterType { tensor, found, expected: "I32" });
        }
        let deq_scale = self.required(tensors, "deq_scale")?;
        for at in [quant_bias, deq_scale] {
            if tensors.meta(at).shape.n_elems() != linear.n_rows() {
                return Err(self.misfit(tensors, at));
            }
        }
        let input_offset = self.required(tensors, "input_offset")?;
        let input_offset = Self::scalar(tensors, input_offset)?;
        let stored = deq(tensors.meta(deq_scale))?;
        let deq_scale = ScaleGrid::by_row(deq_scale, stored);
        Ok(Some(StaticBias { quant_bias, input_offset, deq_scale }))
    }
}

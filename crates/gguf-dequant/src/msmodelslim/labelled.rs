//! The tensors of a checkpoint by name, with the labels of its description.

use std::collections::HashMap;

use super::error::MsModelSlimError;
use super::grid::{ScaleGrid, float};
use crate::InnerSource;
use gguf_checkpoint::msmodelslim::Description;
use gguf_core::WeightMeta;

/// Labelled tensors of a checkpoint.
pub(super) struct Labelled<'a> {
    pub(super) inner: InnerSource<'a>,
    pub(super) description: &'a Description,
    by_name: HashMap<&'a str, usize>,
}

impl<'a> Labelled<'a> {
    pub(super) fn new(inner: InnerSource<'a>, description: &'a Description) -> Self {
        let weights = inner.source.weights().iter().enumerate();
        let by_name = weights.map(|(at, weight)| (weight.name.as_str(), at)).collect();
        Self { inner, description, by_name }
    }

    pub(super) fn weights(&self) -> &'a [WeightMeta] {
        self.inner.source.weights()
    }

    pub(super) fn label(&self, name: &str) -> Option<&'a str> {
        self.description.labels.get(name).map(String::as_str)
    }

    /// Returns true if four-bit weights may be packed, which requires a description with `version`.
    pub(super) fn is_packed(&self) -> bool {
        self.description.version.is_some()
    }

    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// Returns a tensor of a module; an example of the tool has two dots before one suffix.
    pub(super) fn of(&self, module: &str, ending: &str) -> Option<usize> {
        self.find(&format!("{module}.{ending}")).or_else(|| self.find(&format!("{module}..{ending}")))
    }

    pub(super) fn meta(&self, weight: usize) -> &'a WeightMeta {
        self.inner.meta(weight)
    }

    /// Reads all numbers of a small float tensor.
    pub(super) fn floats(&self, weight: usize) -> Result<Vec<f32>, MsModelSlimError> {
        let meta = self.meta(weight);
        let mut values = Vec::new();
        ScaleGrid::by_row(weight, float(meta)?).read(self.inner, 0..meta.shape.n_elems(), &mut values)?;
        if let Some(at) = values.iter().position(|value| !value.is_finite()) {
            let (tensor, index, value) = (meta.name.clone(), at as u64, values[at]);
            return Err(MsModelSlimError::NonFinite { tensor, index, value });
        }
        Ok(values.into_iter().map(|value| value as f32).collect())
    }

    /// Returns the name in the float model, without the level added by a wrapper that smooths the input at run time.
    pub(super) fn plain_name(&self, name: &str) -> String {
        if let Some((module, ending)) = name.rsplit_once('.')
            && let Some(wrapper) = module.strip_suffix(".linear")
            && self.find(&format!("{wrapper}.div.mul_scale")).is_some()
        {
            return format!("{wrapper}.{ending}");
        }
        name.to_owned()
    }
}

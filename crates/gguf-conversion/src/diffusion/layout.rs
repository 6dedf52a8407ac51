//! Tensors of an image or video model under the names that runtimes read: those of the checkpoint, or what they are made
//! of in the layout of another program.

use std::collections::HashMap;
use std::path::Path;

use super::{DiffusionError, is_integer};
use gguf_arch::diffusion::{DiffusionCard, Halves, Layout, LayoutProblem, LayoutTensor, first_names};
use gguf_core::{ElementType, Shape, WeightMeta, WeightSource};
use gguf_dequant::{ImageWeights, saved_rank};
use gguf_views::{ShapeError, View};

/// Tensor before its type is chosen.
pub(super) struct Own {
    pub(super) name: String,
    pub(super) shape: Shape,
    pub(super) view: View,
    /// Element type that the types of the file follow from.
    pub(super) stored: ElementType,
    /// True if its values are wider than that type.
    pub(super) is_wider: bool,
    /// Names in the checkpoint.
    pub(super) sources: Vec<String>,
}

impl Own {
    fn new(weights: &ImageWeights, index: usize) -> Self {
        let meta = &weights.weights()[index];
        Self {
            name: meta.name.clone(),
            shape: meta.shape.clone(),
            view: View::weight(index, meta),
            stored: weights.stored_type(index),
            is_wider: weights.is_wider(index),
            sources: vec![meta.name.clone()],
        }
    }
}

/// Architecture and layout of a checkpoint.
pub(super) struct Recognized<'a> {
    pub(super) card: &'a DiffusionCard,
    pub(super) layout: Option<&'a Layout>,
    pub(super) path: &'a Path,
}

impl Recognized<'_> {
    /// Returns the tensors: in the order of the checkpoint, or from another layout in the order in which the original
    /// is saved.
    pub(super) fn tensors(
        &self,
        weights: &ImageWeights,
        is_dropped: impl Fn(&str) -> bool,
    ) -> Result<Vec<Own>, DiffusionError> {
        let Some(layout) = self.layout else {
            return Ok((0..weights.weights().len()).map(|index| Own::new(weights, index)).collect());
        };
        let metas = weights.weights();
        let names: Vec<&str> =
            metas.iter().map(|meta| meta.name.as_str()).filter(|name| !is_dropped(name)).collect();
        let rows = layout.tensors(&names).map_err(|problem| self.problem(layout, problem))?;
        let at: HashMap<&str, usize> =
            metas.iter().enumerate().map(|(at, meta)| (meta.name.as_str(), at)).collect();
        self.lacking(&layout.missing(|name| at.contains_key(name)))?;
        let joined = rows.into_iter().map(|row| self.joined(weights, &at, row));
        let mut tensors = joined.collect::<Result<Vec<_>, _>>()?;
        tensors.sort_by_key(|tensor| std::cmp::Reverse(saved_rank(tensor.stored)));
        self.lacking(&self.card.unrecognized(|name| tensors.iter().any(|tensor| tensor.name == name)))?;
        Ok(tensors)
    }

    fn lacking(&self, names: &[&str]) -> Result<(), DiffusionError> {
        let lacking = |names| DiffusionError::Missing {
            path: self.path.to_owned(),
            arch: self.card.gguf.clone(),
            names,
            others: None,
        };
        first_names(names.iter().copied()).map_or(Ok(()), |names| Err(lacking(names)))
    }

    fn problem(&self, layout: &Layout, problem: LayoutProblem) -> DiffusionError {
        let (path, arch, program) = (self.path.to_owned(), self.card.gguf.clone(), layout.program.clone());
        match problem {
            LayoutProblem::Unknown(tensor) => DiffusionError::NotInLayout { path, arch, program, tensor },
            LayoutProblem::Missing { part, other, of } => DiffusionError::Part { path, part, other, of },
        }
    }

    fn joined(
        &self,
        weights: &ImageWeights,
        at: &HashMap<&str, usize>,
        row: LayoutTensor,
    ) -> Result<Own, DiffusionError> {
        let part = |name: &String| Some((&weights.weights()[*at.get(name.as_str())?], at[name.as_str()]));
        // A layout gives only names that exist.
        let parts: Vec<(&WeightMeta, usize)> = row.sources.iter().filter_map(part).collect();
        let first = parts[0].0;
        let wrong = |meta: &WeightMeta, expected: String| DiffusionError::PartShape {
            path: self.path.to_owned(),
            tensor: meta.name.clone(),
            shape: meta.shape.clone(),
            expected,
        };
        let columns = |meta: &WeightMeta| meta.shape.dims().get(1..).map(<[u64]>::to_vec);
        if let Some((other, _)) = parts.iter().find(|(meta, _)| columns(meta) != columns(first)) {
            return Err(wrong(other, format!("rows like those of `{}`, {}", first.name, first.shape)));
        }
        // Keys and values have as many rows in every attention.
        if let [_, (keys, _), (values, _), ..] = parts.as_slice()
            && keys.shape != values.shape
        {
            return Err(wrong(values, format!("{}, that of `{}`", keys.shape, keys.name)));
        }
        let no_view = |error: ShapeError| wrong(first, error.to_string());
        let mut view = View::concat(parts.iter().map(|&(meta, at)| View::weight(at, meta)).collect(), 0)
            .map_err(no_view)?;
        if is_swapped(weights, at, first, row.halves).map_err(|found| wrong(first, found))? {
            let n = view.shape()[0];
            let halves = [view.slice(0, n / 2, n), view.slice(0, 0, n / 2)];
            let joined = halves.into_iter().collect::<Result<_, _>>();
            view = joined.and_then(|halves| View::concat(halves, 0)).map_err(no_view)?;
        }
        let shape = Shape::new(view.shape().to_vec());
        let stored = weights.stored_type(parts[0].1);
        let types = || parts.iter().map(|&(_, at)| weights.stored_type(at));
        let is_one = types().all(|own| own == stored);
        // One part of integers makes the whole one of codes.
        let mixed = types().find(|own| is_integer(*own)).unwrap_or(ElementType::F32);
        Ok(Own {
            shape: shape.ok_or_else(|| wrong(first, "fewer values in all".to_owned()))?,
            view,
            stored: if is_one { stored } else { mixed },
            is_wider: parts.iter().any(|&(_, at)| weights.is_wider(at)),
            sources: row.sources,
            name: row.name,
        })
    }
}

/// Returns true if the halves of a tensor's rows change places.
fn is_swapped(
    weights: &ImageWeights,
    at: &HashMap<&str, usize>,
    meta: &WeightMeta,
    halves: Halves,
) -> Result<bool, String> {
    if halves == Halves::Keep {
        return Ok(false);
    }
    let module = meta.name.rsplit_once('.').map_or(meta.name.as_str(), |(module, _)| module);
    let weight = format!("{module}.weight");
    let Some(&weight_at) = at.get(weight.as_str()) else { return Err(format!("`{weight}` next to it")) };
    let shape = &weights.weights()[weight_at].shape;
    let is_two = shape.rank() == 2 && Some(shape.dims()[0]) == shape.dims()[1].checked_mul(2);
    let is_even = meta.shape.dims().first() == shape.dims().first();
    match (is_two && is_even, halves) {
        (true, _) => Ok(true),
        (false, Halves::SwapTwo) if is_even => Ok(false),
        _ => Err(format!("two halves, each of as many rows as `{weight}` has columns")),
    }
}

//! Scale factors that a block type cannot hold, stored in tensors next to the blocks; the runtime multiplies them in.
//!
//! NVFP4 has one factor for a whole matrix. `blk.0.attn_q.weight` is written with `blk.0.attn_q.scale`, one F32 number.
//! If the checkpoint has a factor for the matrix's input, `blk.0.attn_q.input_scale` is written as well. A stack of
//! experts has one number per expert.

use gguf_arch::Mapping;
use gguf_core::{GgmlType, Packing, Shape, TensorMeta};
use gguf_views::{Recipe, View};

/// Matrices whose factor the runtime applies after their bias: it refuses matrices that have both.
///
/// ref: `build_ffn` of llama.cpp 0.5.0.
const SCALED_AFTER_BIAS: &[&str] = &["ffn_gate", "ffn_up", "ffn_down"];

/// Factors of one tensor: one number, or one per expert. Empty if none is written.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Companions {
    scale: Vec<f32>,
    input_scale: Vec<f32>,
}

impl Companions {
    /// Returns the factors of a tensor whose weights are packed as `packings`, in the order of [`Recipe::weights`].
    /// `None` if companion tensors cannot express them.
    pub(super) fn of(recipe: &Recipe, packings: &[Packing]) -> Option<Self> {
        let is_stack = packings.iter().any(|packing| packing.stack.is_some());
        let pairs: Vec<_> = packings.iter().map(|packing| (packing.scale, packing.input_scale)).collect();
        let (&first, rest) = pairs.split_first()?;
        if !is_stack && pairs.iter().all(|pair| *pair == (None, None)) {
            return Some(Self::default());
        }
        if recipe.shape().rank() < 3 {
            if is_stack {
                return None;
            }
            let one = |factor: Option<f32>| factor.into_iter().collect();
            let all = Self { scale: one(first.0), input_scale: one(first.1) };
            return rest.iter().all(|pair| *pair == first).then(|| all.written());
        }
        let weights = recipe.weights();
        let packing = |weight: usize| packings.get(weights.iter().position(|&own| own == weight)?);
        let matrix_elems = |weight: usize| Some(packing(weight)?.stack.as_ref()?.n_elems);
        let mut all = Self::default();
        for expert in recipe.slabs(&matrix_elems) {
            let mut own = expert.iter().map(|&(weight, matrix)| of_matrix(packing(weight)?, matrix));
            let pair = own.next()??;
            if own.any(|other| other != Some(pair)) {
                return None;
            }
            all.scale.push(pair.0.unwrap_or(1.0));
            all.input_scale.push(pair.1.unwrap_or(1.0));
        }
        Some(all.written())
    }

    /// Removes factors that are practically one.
    fn written(mut self) -> Self {
        for factors in [&mut self.scale, &mut self.input_scale] {
            if is_trivial(factors) {
                factors.clear();
            }
        }
        self
    }

    /// Returns true if nothing is written.
    pub(super) fn is_empty(&self) -> bool {
        self.scale.is_empty() && self.input_scale.is_empty()
    }

    pub(super) fn has_input(&self) -> bool {
        !self.input_scale.is_empty()
    }

    /// Returns the companion tensors of `weight`, in file order.
    pub(super) fn tensors(&self, weight: &str) -> Vec<(TensorMeta, Recipe)> {
        let base = weight.strip_suffix(".weight").unwrap_or(weight);
        let pairs = [("scale", &self.scale), ("input_scale", &self.input_scale)];
        let tensor = |(suffix, values): (&str, &Vec<f32>)| {
            let view = View::values(values.as_slice().into(), vec![values.len() as u64]).ok()?;
            let recipe = Recipe::new(&view)?;
            let shape: Shape = recipe.shape().clone();
            Some((TensorMeta { name: format!("{base}.{suffix}"), shape, ty: GgmlType::F32 }, recipe))
        };
        pairs.into_iter().filter(|(_, values)| !values.is_empty()).filter_map(tensor).collect()
    }
}

/// Returns the weight and input factors of one matrix; `None` if the matrix is unknown.
fn of_matrix(packing: &Packing, matrix: Option<u64>) -> Option<(Option<f32>, Option<f32>)> {
    let Some(stack) = &packing.stack else { return Some((packing.scale, packing.input_scale)) };
    let at = usize::try_from(matrix?).ok()?;
    let input = if stack.input_scales.is_empty() { None } else { Some(*stack.input_scales.get(at)?) };
    Some((Some(*stack.scales.get(at)?), input))
}

/// Returns true if the factors are left out because they are practically one.
///
/// # Exactness
/// The limits of llama.cpp 0.5.0: a single factor may be off by less than 1e-6, those of a stack by 1.1e-5 (numpy's
/// `allclose` also has a relative part). Empty factors are trivial.
fn is_trivial(factors: &[f32]) -> bool {
    let distance = |factor: f32| (f64::from(factor) - 1.0).abs();
    match *factors {
        [one] => distance(one) < 1e-6,
        _ => factors.iter().all(|&factor| distance(factor) <= 1e-6 + 1e-5),
    }
}

/// Returns true if the runtime applies the factor of a tensor, which the card lists then.
pub(super) fn has_slot(mapping: &Mapping, tensor: &str) -> bool {
    let Some(base) = tensor.strip_suffix(".weight") else { return false };
    let inside = base.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    let name = inside.map_or(base, |(_, name)| name);
    let has_bias = || {
        let bias = format!("{base}.bias");
        mapping.outputs.iter().any(|output| output.name == bias)
    };
    mapping.card.companions.iter().any(|listed| listed == name)
        && !(SCALED_AFTER_BIAS.contains(&name) && has_bias())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_near_one_are_left_out() {
        assert!(is_trivial(&[1.0]));
        assert!(is_trivial(&[1.000_000_9]));
        assert!(!is_trivial(&[1.000_002]));
        assert!(is_trivial(&[1.0, 1.000_01]));
        assert!(!is_trivial(&[1.0, 1.000_02]));
    }
}

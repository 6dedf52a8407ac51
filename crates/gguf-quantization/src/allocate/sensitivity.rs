//! Estimated cost of an error of a tensor's output, by role and place, relative to the cost of an error of the logits.
//!
//! Errors that are small and independent add up, and KLD is half the variance that they cause in the logits. The
//! variance for a relative error of the last hidden state follows from the output's weights. The part of a tensor's
//! relative error that arrives there is a number by role. These numbers are means of measurements with one tensor
//! quantized at a time, on two models (the bundled one of 4 layers and SmolLM 135M of 30), which agree within a factor
//! of two or three. Measuring the actual model is better.

use crate::allocate::rounding::sample;
use crate::{TensorClass, layer_of};
use gguf_blocks::dequantize;
use gguf_core::{SourceError, TensorSource, simd::SimdLevel};

/// Part of a relative error of a tensor's output that arrives in the logits, by role.
static ROLES: &[(TensorClass, f64)] = &[
    (TensorClass::Output, 0.6),
    (TensorClass::TokenEmbd, 0.4),
    (TensorClass::AttnQ, 0.005),
    (TensorClass::AttnK, 0.005),
    (TensorClass::AttnV, 0.012),
    // Half of it is values; queries and keys add little.
    (TensorClass::AttnQkv, 0.012),
    (TensorClass::AttnKvB, 0.012),
    (TensorClass::AttnOutput, 0.007),
    (TensorClass::FfnGate, 0.015),
    (TensorClass::FfnUp, 0.011),
    (TensorClass::FfnDown, 0.02),
    (TensorClass::Other, 0.01),
];

/// Factor for the first layer: the residual is still small there, so an error is a large part of it.
const FIRST_LAYER: f64 = 3.0;
/// Factor for the last feed-forward network: no later layer compensates for its error.
const LAST_FFN: f64 = 2.0;

/// Name and role of a tensor.
pub(super) struct NamedTensor<'a> {
    pub(super) name: &'a str,
    pub(super) class: TensorClass,
}

/// Expected KLD per relative error of each tensor's output.
///
/// `logit_power` is the result of [`logit_power`], `n_layers` the number of layers. `is_tied` is true if the embeddings
/// are also the output.
pub(super) fn sensitivities<'a>(
    places: impl Iterator<Item = NamedTensor<'a>>,
    logit_power: f64,
    n_layers: i32,
    is_tied: bool,
) -> Vec<f64> {
    let of_role = |class| ROLES.iter().find(|row| row.0 == class).map_or(0.0, |row| row.1);
    let sensitivity = |place: NamedTensor<'_>| {
        let (class, layer) = (place.class, layer_of(place.name));
        let is_ffn = matches!(class, TensorClass::FfnGate | TensorClass::FfnUp | TensorClass::FfnDown);
        let as_output =
            if is_tied && class == TensorClass::TokenEmbd { of_role(TensorClass::Output) } else { 0.0 };
        let by_layer = match layer {
            Some(0) if !matches!(class, TensorClass::AttnQ | TensorClass::AttnK) => FIRST_LAYER,
            Some(layer) if is_ffn && layer > 0 && layer.checked_add(1) == Some(n_layers) => LAST_FFN,
            _ => 1.0,
        };
        logit_power * (of_role(class) + as_output) * by_layer
    };
    places.map(sensitivity).collect()
}

/// Half the variance of the logits over the vocabulary: the KLD for a relative error of 1 of the last hidden state, as
/// long as KLD grows with the square.
///
/// It is `½ Σ g² Var(W)`. `g` are the weights of the last norm (1 if there is none), after which a hidden state has
/// columns of size 1. `Var(W)` is the variance of each column of the output over its rows. A model without an output
/// has 1.
pub(super) fn logit_power(source: &dyn TensorSource, level: SimdLevel) -> Result<f64, SourceError> {
    let tensors = source.tensors();
    let find = |name: &str| tensors.iter().position(|tensor| tensor.name == name);
    let Some(output) = find("output.weight").or_else(|| find("token_embd.weight")) else { return Ok(1.0) };
    let meta = &tensors[output];
    let n_cols = usize::try_from(meta.shape.n_cols()).unwrap_or(usize::MAX);
    let (mut sums, mut squares) = (vec![0.0f64; n_cols], vec![0.0f64; n_cols]);
    let rows = sample(meta);
    let mut floats = vec![0.0; n_cols];
    for &row in &rows {
        read_row(source, output, row, level, &mut floats)?;
        for ((sum, square), &value) in sums.iter_mut().zip(&mut squares).zip(&floats) {
            *sum += f64::from(value);
            *square += f64::from(value) * f64::from(value);
        }
    }
    let mut norm = vec![1.0; n_cols];
    if let Some(at) =
        find("output_norm.weight").filter(|&at| tensors[at].shape.n_elems() == meta.shape.n_cols())
    {
        read_row(source, at, 0, level, &mut norm)?;
    }
    let n = rows.len().max(1) as f64;
    let variances = sums.iter().zip(&squares).map(|(sum, square)| square / n - (sum / n) * (sum / n));
    let weighted = variances.zip(&norm).map(|(variance, &g)| variance * f64::from(g) * f64::from(g));
    let power = weighted.sum::<f64>() / 2.0;
    Ok(if power.is_finite() && power > 0.0 { power } else { 1.0 })
}

fn read_row(
    source: &dyn TensorSource,
    tensor: usize,
    row: u64,
    level: SimdLevel,
    floats: &mut [f32],
) -> Result<(), SourceError> {
    let meta = &source.tensors()[tensor];
    let mut bytes = vec![0; meta.row_bytes().and_then(|n| usize::try_from(n).ok()).unwrap_or(0)];
    source.read_rows(tensor, row, &mut bytes)?;
    dequantize(meta.ty, level, &bytes, floats)
        .map_err(|error| SourceError { tensor: meta.name.clone(), source: error.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_testkit::memory::MemoryTensors;

    fn of(names: &[&str], n_layers: i32, is_tied: bool) -> Vec<f64> {
        sensitivities(
            names.iter().map(|name| NamedTensor { name, class: TensorClass::of(name) }),
            10.0,
            n_layers,
            is_tied,
        )
    }

    #[test]
    fn ends_of_the_model_weigh_more() {
        let names = [
            "blk.0.ffn_down.weight",
            "blk.1.ffn_down.weight",
            "blk.2.ffn_down.weight",
            "blk.0.attn_q.weight",
        ];
        let found = of(&names, 3, true);
        assert_eq!(found, [0.02 * 10.0 * 3.0, 0.02 * 10.0, 0.02 * 10.0 * 2.0, 0.05]);
        let embeddings = ["token_embd.weight"];
        assert_eq!((of(&embeddings, 3, true), of(&embeddings, 3, false)), (vec![10.0], vec![4.0]));
        // The only layer counts as the first.
        assert_eq!(of(&names[..1], 1, true), of(&names[..1], 9, true));
    }

    #[test]
    fn every_role_has_a_number() {
        for name in [
            "a",
            "blk.1.attn_qkv.weight",
            "blk.1.attn_kv_b.weight",
            "blk.1.ffn_gate_exps.weight",
            "output.weight",
        ] {
            assert!(of(&[name], 4, false)[0] > 0.0, "{name}");
        }
    }

    #[test]
    fn the_power_of_logits_is_read_off_the_output_behind_its_norm() {
        let level = SimdLevel::Scalar;
        // A column that is the same for all tokens has no effect.
        let embeddings: (&str, &[u64], &[f32]) = ("token_embd.weight", &[2, 2], &[3.0, 5.0, 1.0, 5.0]);
        assert_eq!(logit_power(&MemoryTensors::of_f32(&[embeddings]), level).unwrap(), 0.5);
        let norm: (&str, &[u64], &[f32]) = ("output_norm.weight", &[2], &[2.0, 9.0]);
        assert_eq!(logit_power(&MemoryTensors::of_f32(&[norm, embeddings]), level).unwrap(), 2.0);
        let output: (&str, &[u64], &[f32]) = ("output.weight", &[2, 2], &[0.0, 0.0, 8.0, 0.0]);
        assert_eq!(logit_power(&MemoryTensors::of_f32(&[norm, embeddings, output]), level).unwrap(), 32.0);
        assert_eq!(logit_power(&MemoryTensors::of_f32(&[norm]), level).unwrap(), 1.0);
    }
}

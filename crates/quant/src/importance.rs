//! Importance weights before they are used: they must be numbers that are not negative, and where a whole group of
//! columns has none, the group counts evenly.

use std::borrow::Cow;

use gguf_core::GgmlType;

use super::QuantError;

/// What weighs a group without importance, as a share of the largest importance of its super-block: it must not
/// disturb the columns that count.
const SHARE: f32 = 1.0 / 1024.0;

/// Columns whose scale is chosen by their importance alone, so that all of them come out as zeros (or nearly) if it is
/// zero; `None` for types whose search ends well without importance.
fn lost_together(ty: GgmlType) -> Option<usize> {
    Some(match ty {
        GgmlType::Q3K | GgmlType::Q6K | GgmlType::Iq2Xs | GgmlType::Iq2S | GgmlType::Iq1M => 16,
        GgmlType::Q4_0
        | GgmlType::Q5_0
        | GgmlType::Iq4Nl
        | GgmlType::Iq4Xs
        | GgmlType::Iq2Xxs
        | GgmlType::Iq3Xxs
        | GgmlType::Iq1S => 32,
        // The groups of these are fitted by their errors as they are; only the super-block's scale needs weights.
        GgmlType::Q2K | GgmlType::Q4K | GgmlType::Q5K => 256,
        _ => return None,
    })
}

/// True if some group of columns has no importance at all and counts evenly for this type.
#[must_use]
pub fn has_even_groups(ty: GgmlType, weights: &[f32]) -> bool {
    let is_empty = |group: &[f32]| group.iter().all(|&weight| weight == 0.0);
    lost_together(ty).is_some_and(|n| weights.chunks(n).any(is_empty))
}

/// Checks weights, and fills groups that have none.
pub(crate) fn usable(ty: GgmlType, weights: &[f32]) -> Result<Cow<'_, [f32]>, QuantError> {
    // Folds without exits are vector loops.
    let is_bad = |weight: &f32| !(*weight >= 0.0 && *weight < f32::INFINITY);
    if weights.iter().fold(false, |bad, weight| bad | is_bad(weight))
        && let Some(column) = weights.iter().position(is_bad)
    {
        return Err(QuantError::Importance { column, value: weights[column] });
    }
    if !has_even_groups(ty, weights) {
        return Ok(Cow::Borrowed(weights));
    }
    let mut filled = weights.to_vec();
    let n = lost_together(ty).unwrap_or(256);
    for block in filled.chunks_mut(ty.block_elems()) {
        let largest =
            block.iter().fold(0.0, |largest, &weight| if weight > largest { weight } else { largest });
        let even = if largest > 0.0 { largest * SHARE } else { 1.0 };
        for group in block.chunks_mut(n) {
            if group.iter().all(|&weight| weight == 0.0) {
                group.fill(even);
            }
        }
    }
    Ok(Cow::Owned(filled))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_that_are_negative_or_no_numbers_are_refused_by_their_column() {
        for value in [-1e-30, f32::NEG_INFINITY, f32::INFINITY, f32::NAN] {
            let mut weights = vec![1.0; 64];
            weights[37] = value;
            let error = usable(GgmlType::Q4_0, &weights).unwrap_err();
            assert!(error.to_string().starts_with("importance of column 37 is "), "{error}");
        }
        assert!(usable(GgmlType::Q4_0, &[0.0, -0.0, f32::MAX, 1e-45]).is_ok());
    }

    #[test]
    fn only_groups_without_any_importance_are_filled() {
        let mut weights = vec![4.0; 512];
        weights[0] = 0.0;
        assert!(matches!(usable(GgmlType::Q6K, &weights).unwrap(), Cow::Borrowed(_)));
        weights[16..32].fill(0.0);
        weights[256..].fill(0.0);
        let filled = usable(GgmlType::Q6K, &weights).unwrap();
        assert_eq!((filled[0], filled[16], filled[31], filled[32]), (0.0, 4.0 / 1024.0, 4.0 / 1024.0, 4.0));
        assert!(filled[256..].iter().all(|&weight| weight == 1.0));
        let filled = usable(GgmlType::Q4K, &weights).unwrap();
        assert_eq!((filled[16], filled[300]), (0.0, 1.0));
        assert!(matches!(usable(GgmlType::Iq3S, &weights).unwrap(), Cow::Borrowed(_)));
    }
}

//! Checks of importance weights before use: they must be finite and not negative. In most types a whole group of
//! columns without importance is lost.

use gguf_core::GgmlType;

use super::QuantError;

/// Returns the number of columns whose common scale is chosen by their importance alone, so that all become zero (or
/// nearly) if it is zero. `None` for types whose search works without importance.
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
        // The groups of these are fitted by their plain errors; only the super-block's scale needs weights.
        GgmlType::Q2K | GgmlType::Q4K | GgmlType::Q5K => 256,
        _ => return None,
    })
}

/// Returns true if some group of columns has no importance at all, so that this type writes it as zeros (or nearly), as
/// llama.cpp does.
pub fn has_lost_groups(ty: GgmlType, weights: &[f32]) -> bool {
    let is_empty = |group: &[f32]| group.iter().all(|&weight| weight == 0.0);
    lost_together(ty).is_some_and(|n| weights.chunks(n).any(is_empty))
}

/// Checks that the weights are finite and not negative.
pub(crate) fn check(weights: &[f32]) -> Result<(), QuantError> {
    // Folds without exits are vector loops.
    let is_bad = |weight: &f32| !(*weight >= 0.0 && *weight < f32::INFINITY);
    if weights.iter().fold(false, |bad, weight| bad | is_bad(weight))
        && let Some(column) = weights.iter().position(is_bad)
    {
        return Err(QuantError::Importance { column, value: weights[column] });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_that_are_negative_or_no_numbers_are_refused_by_their_column() {
        for value in [-1e-30, f32::NEG_INFINITY, f32::INFINITY, f32::NAN] {
            let mut weights = vec![1.0; 64];
            weights[37] = value;
            let error = check(&weights).unwrap_err();
            assert!(error.to_string().starts_with("importance of column 37 is "), "{error}");
        }
        assert!(check(&[0.0, -0.0, f32::MAX, 1e-45]).is_ok());
    }

    #[test]
    fn groups_are_lost_by_their_type() {
        let mut weights = vec![4.0; 512];
        weights[0] = 0.0;
        assert!(!has_lost_groups(GgmlType::Q6K, &weights));
        weights[16..32].fill(0.0);
        let lost = |weights: &[f32]| {
            [GgmlType::Q6K, GgmlType::Q4_0, GgmlType::Q4K, GgmlType::Iq3S]
                .map(|ty| has_lost_groups(ty, weights))
        };
        assert_eq!(lost(&weights), [true, false, false, false]);
        weights[..32].fill(0.0);
        assert_eq!(lost(&weights), [true, true, false, false]);
        weights[256..].fill(0.0);
        assert_eq!(lost(&weights), [true, true, true, false]);
    }
}

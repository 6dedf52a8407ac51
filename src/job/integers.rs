//! `--arithmetic integer`, refused where nothing is multiplied in integers.

use std::path::Path;

use crate::core::GgmlType;
use crate::engine::Arithmetic;
use crate::job::Contradiction;

/// Checks that at least one of the types of a run's tensors has integers; `path` is that of the model.
///
/// # Errors
/// [`Contradiction::NoIntegers`].
pub(crate) fn check_integers(
    path: &Path,
    types: impl IntoIterator<Item = GgmlType>,
) -> Result<(), Contradiction> {
    if types.into_iter().any(|ty| Arithmetic::Integer.is_integer(ty)) {
        return Ok(());
    }
    Err(Contradiction::NoIntegers { path: path.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_block_type_is_enough() {
        let path = Path::new("model.gguf");
        assert_eq!(check_integers(path, [GgmlType::F16, GgmlType::Q4K]), Ok(()));
        let refused = check_integers(path, [GgmlType::F32, GgmlType::F16, GgmlType::Bf16]).unwrap_err();
        assert!(refused.to_string().contains("model.gguf has a block type with integers"), "{refused}");
        assert!(check_integers(path, []).is_err());
    }
}

//! Checks of keys that a quantization sets: the rules of `gguf-inspect set` apply to them, too.

use crate::core::Hint;
use crate::inspect::{Objection, objections_to};
use crate::job::Result;
use crate::quantize::{Input, QuantizeError, QuantizeOptions};

/// Error: `--override-kv` gives keys values that they may not have.
#[derive(Debug, thiserror::Error)]
#[error("--override-kv: {}", all(.0))]
pub struct RefusedOverrides(Vec<Objection>);

fn all(objections: &[Objection]) -> String {
    objections.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

impl Hint for RefusedOverrides {
    fn hints(&self) -> Vec<String> {
        vec!["`gguf-inspect set FILE KEY=VALUE --force` writes it into a file that is finished".to_owned()]
    }
}

/// Checks the keys that are set.
///
/// # Errors
/// A value of another type than the key has; a value with which the model could no longer be read or run.
pub(super) fn check(input: &Input<'_>, options: &QuantizeOptions) -> Result<()> {
    let value = |item: &crate::quantize::Override| Ok((item.key.clone(), item.value_in(input.metadata)?));
    let values: Result<Vec<_>, QuantizeError> = options.overrides.iter().map(value).collect();
    let values = values?;
    if values.is_empty() {
        return Ok(());
    }
    match objections_to(input.metadata, &values, input.source.tensors()) {
        objections if objections.is_empty() => Ok(()),
        objections => Err(RefusedOverrides(objections).into()),
    }
}

//! Checks of keys that a conversion or quantization sets: the rules of `gguf-inspect set` apply to them, too.

use crate::core::Hint;
use crate::core::progress::Progress;
use crate::core::text::escape;
use crate::gguf::{Metadata, Value};
use crate::inspect::{Objection, objections_to, remarks_on};
use crate::job::Result;
use crate::job::input::OpenedInput;
use crate::quantize::{Input, QuantizeError, QuantizeOptions};

/// Error: an option gives keys values that they may not have.
#[derive(Debug, thiserror::Error)]
#[error("{option}: {}", all(objections))]
pub struct RefusedOverrides {
    option: &'static str,
    objections: Vec<Objection>,
}

fn all(objections: &[Objection]) -> String {
    objections.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

impl Hint for RefusedOverrides {
    fn hints(&self) -> Vec<String> {
        vec!["`gguf-inspect set FILE KEY=VALUE --force` writes it into a file that is finished".to_owned()]
    }
}

/// Checks the keys that `--override-kv` sets.
///
/// # Errors
/// A value of another type than the key has; a value with which the model could no longer be read or run.
pub(super) fn check(input: &Input<'_>, options: &QuantizeOptions, progress: &dyn Progress) -> Result<()> {
    let value = |item: &crate::quantize::Override| Ok((item.key.clone(), item.value_in(input.metadata)?));
    let values: Result<Vec<_>, QuantizeError> = options.overrides.iter().map(value).collect();
    refuse("--override-kv", input, input.metadata, &values?, progress)
}

/// Checks the keys that `--set` gives to a conversion, which has them already.
///
/// # Errors
/// A value with which the model could not be read or run.
pub(super) fn check_set(
    opened: &OpenedInput,
    set: &[(String, Value)],
    progress: &dyn Progress,
) -> Result<()> {
    let mut before = opened.metadata().clone();
    for (key, _) in set {
        before.remove(key);
    }
    refuse("--set", &opened.input(), &before, set, progress)
}

fn refuse(
    option: &'static str,
    input: &Input<'_>,
    before: &Metadata,
    values: &[(String, Value)],
    progress: &dyn Progress,
) -> Result<()> {
    if values.is_empty() {
        return Ok(());
    }
    for (at, (key, _)) in values.iter().enumerate() {
        if values[at + 1..].iter().any(|(other, _)| other == key) {
            progress
                .warn(&format!("{option}: key `{}` is given twice: the last value is written", escape(key)));
        }
    }
    let mut after = before.clone();
    for (key, value) in values {
        after.set(key.as_str(), value.clone());
    }
    for warning in remarks_on(before, &after, values.iter().map(|(key, _)| key.as_str())) {
        progress.warn(&format!("{option}: {warning}"));
    }
    match objections_to(before, values, input.source.tensors()) {
        objections if objections.is_empty() => Ok(()),
        objections => Err(RefusedOverrides { option, objections }.into()),
    }
}

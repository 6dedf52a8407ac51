//! Errors as Python's exceptions: `OSError` and its kin where the system refused, else `ValueError`.

use std::error::Error;
use std::io;

use gguf_foundry::gguf::GgufError;
use pyo3::PyErr;
use pyo3::exceptions::PyValueError;

/// The exception for an error, with its causes in one line.
pub(crate) fn exception(error: &(dyn Error + 'static)) -> PyErr {
    let mut message = error.to_string();
    let mut cause = Some(error);
    let mut kind = None;
    while let Some(error) = cause {
        let text = error.to_string();
        // A message that already contains the next one stands for both.
        if !message.contains(&text) {
            message = format!("{message}: {text}");
        }
        // An error that stands for the system's is passed over in the chain of causes.
        let of_file = error.downcast_ref::<GgufError>().and_then(|error| match error {
            GgufError::Io(error) => Some(error),
            _ => None,
        });
        let own = of_file.or_else(|| error.downcast_ref::<io::Error>());
        kind = kind.or_else(|| own.map(io::Error::kind));
        cause = error.source();
    }
    match kind {
        Some(kind) => io::Error::new(kind, message).into(),
        None => PyValueError::new_err(message),
    }
}

//! Error when an expression has no value.

use gguf_core::text::escape;

/// Maximum number of steps of one evaluation; a list over the layers of the largest model needs far fewer.
pub(super) const MAX_STEPS: u32 = 1 << 20;

/// Error when an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum EvalError {
    #[error("`{0}` is not in the configuration")]
    Absent(String),
    #[error("`{path}` has no element {index}")]
    NoElement { path: String, index: String },
    #[error("the definition of `{0}` needs itself")]
    Cycle(String),
    #[error("`{op}` does not take {found}")]
    Kind { op: &'static str, found: &'static str },
    #[error("`{op}` has no result for {operands}")]
    Arithmetic { op: &'static str, operands: String },
    #[error("{found} is none of the values that are known: {}", known.join(", "))]
    NotInTable { found: String, known: Vec<String> },
    #[error("tensor `{}`: {problem}", escape(tensor))]
    Values { tensor: String, problem: String },
    #[error("the evaluation takes more than {MAX_STEPS} steps")]
    TooLong,
    #[error("definitions are nested too deeply")]
    TooDeep,
}

impl EvalError {
    /// Returns true for a key that the configuration lacks.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Absent(_))
    }
}

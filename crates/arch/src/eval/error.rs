//! Error when an expression has no value.

use gguf_core::text::escape;

/// Maximum number of steps of one evaluation; a list over the layers of the largest model needs far fewer.
pub(super) const MAX_STEPS: u32 = 1 << 20;

/// Error when an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    /// Name that nothing defines.
    #[error("`{0}` is not in the configuration")]
    Absent(String),
    /// Index outside a list, or into something that is not a list.
    #[error("`{path}` has no element {index}")]
    NoElement {
        /// The list.
        path: String,
        /// The index.
        index: String,
    },
    /// Definition that depends on itself.
    #[error("the definition of `{0}` needs itself")]
    Cycle(String),
    /// Operation on a value of the wrong kind.
    #[error("`{op}` does not take {found}")]
    Kind {
        /// Operator or function.
        op: &'static str,
        /// Kind of value that was found.
        found: &'static str,
    },
    /// Division by zero, root of a negative number, or integer overflow.
    #[error("`{op}` has no result for {operands}")]
    Arithmetic {
        /// Operator or function.
        op: &'static str,
        /// The operands.
        operands: String,
    },
    /// Text without an entry in a `lookup` table.
    #[error("table `{table}` has no entry for {key}")]
    NotInTable {
        /// The table.
        table: String,
        /// The text.
        key: String,
    },
    /// Tensor whose values cannot be used.
    #[error("tensor `{}`: {problem}", escape(tensor))]
    Values {
        /// The tensor.
        tensor: String,
        /// Reason.
        problem: String,
    },
    /// Step limit exceeded.
    #[error("the evaluation takes more than {MAX_STEPS} steps")]
    TooLong,
    /// Depth limit exceeded.
    #[error("definitions are nested too deeply")]
    TooDeep,
}

impl EvalError {
    /// Returns true for a key that the configuration lacks.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Absent(_))
    }
}

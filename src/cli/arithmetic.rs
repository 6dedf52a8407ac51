//! `--arithmetic`: integers or F32 for products with block-quantized weights.

use std::path::Path;

use clap::Args;

use crate::cli::UsageError;
use crate::core::TensorMeta;
use crate::core::text::escape;
use crate::engine::{Arithmetic, ArithmeticChoice};

/// Choice of arithmetic. Flatten it.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct ArithmeticArg {
    /// Arithmetic of products with weights: f32, or auto or integer (16-bit activations and exact sums for block types)
    #[arg(long, value_name = "KIND", default_value = "f32")]
    arithmetic: ArithmeticChoice,
}

impl ArithmeticArg {
    /// Returns the arithmetic of the engine.
    pub(crate) fn engine(self) -> Arithmetic {
        self.arithmetic.into()
    }

    /// Refuses `integer` for a model in which it has no effect.
    pub(crate) fn check(self, path: &Path, tensors: &[TensorMeta]) -> Result<(), UsageError> {
        let has_integers = || tensors.iter().any(|meta| self.engine().is_integer(meta.ty));
        if self.arithmetic != ArithmeticChoice::Integer || has_integers() {
            return Ok(());
        }
        Err(UsageError(format!(
            "`--arithmetic integer`: no tensor of {} has a block type with integers; leave it out",
            escape(&path.to_string_lossy())
        )))
    }
}

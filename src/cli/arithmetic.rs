//! `--arithmetic`: integers or F32 for products with block-quantized weights.

use std::path::Path;

use clap::Args;

use crate::cli::UsageError;
use crate::core::TensorMeta;
use crate::engine::{Arithmetic, ArithmeticChoice};
use crate::job::check_integers;

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

    /// Returns true if a run is to be refused in which nothing is multiplied in integers.
    pub(crate) fn needs_integers(self) -> bool {
        self.arithmetic == ArithmeticChoice::Integer
    }

    /// Refuses `integer` for a model in which it has no effect.
    pub(crate) fn check(self, path: &Path, tensors: &[TensorMeta]) -> Result<(), UsageError> {
        if !self.needs_integers() {
            return Ok(());
        }
        check_integers(path, tensors.iter().map(|meta| meta.ty))
            .map_err(|error| UsageError(error.to_string()))
    }
}

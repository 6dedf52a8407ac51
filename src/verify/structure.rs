//! Structural checks: everything that can be judged without running the model.

use crate::core::TensorSource;
use crate::core::progress::Progress;
use crate::core::simd::SimdLevel;
use crate::gguf::Metadata;
use crate::verify::checks::check_file;
use crate::verify::checks::input::CheckedFile;
use crate::verify::{Finding, VerifyError};

/// Options of the structural checks.
#[derive(Clone, Copy, Debug)]
pub struct StructureOptions {
    /// Vector instructions.
    pub level: SimdLevel,
}

/// Checks a model's metadata and every block of its tensors.
///
/// # Errors
/// Unreadable tensors, cancellation.
pub fn check_structure(
    source: &dyn TensorSource,
    metadata: &Metadata,
    options: &StructureOptions,
    progress: &dyn Progress,
) -> Result<Vec<Finding>, VerifyError> {
    check_file(&CheckedFile::new(source, metadata, None, options.level, progress))
}

//! Structural checks: everything that can be judged without running the model.

use crate::checks::check_file;
use crate::checks::input::CheckedFile;
use crate::{Finding, VerifyError};
use gguf_core::TensorSource;
use gguf_core::progress::Progress;
use gguf_core::simd::SimdLevel;
use gguf_format::Metadata;

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

//! Quantization to be calibrated.

use std::path::Path;
use std::time::Instant;

use crate::cli::quantize::target::TargetArgs;
use crate::gguf::{GgufFile, WriteOptions};
use crate::quantize::{FileType, Input, QuantizeOptions};

/// Input, output and options of a quantization that is to be calibrated.
pub(crate) struct CalibrateJob<'a> {
    pub(crate) input: &'a Input<'a>,
    /// File of the input; `None` for a conversion.
    pub(crate) file: Option<&'a GgufFile>,
    pub(crate) output: &'a Path,
    pub(crate) file_type: FileType,
    pub(crate) options: &'a QuantizeOptions,
    pub(crate) write: &'a WriteOptions,
    /// Target size, and the file that types are written to.
    pub(crate) types: &'a TargetArgs,
    pub(crate) start: Instant,
}

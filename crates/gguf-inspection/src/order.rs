//! Conversion of a file to another byte order.

use std::path::Path;

use crate::EditError;
use gguf_core::TensorSource;
use gguf_core::bytes::Endian;
use gguf_core::progress::Progress;
use gguf_core::text::escape;
use gguf_format::{GgufFile, Metadata, WriteOptions, WriteReport, merged_metadata, plan_files, write_gguf};

/// Returns the report that [`write_in_order`] would return.
pub fn plan_in_order(file: &GgufFile, output: &Path, endian: Endian) -> Result<WriteReport, EditError> {
    let options = in_order(file, endian, &WriteOptions::default());
    let planned = plan_files(output, &whole(file), file.tensors(), &options.layout, None)?;
    Ok(WriteReport {
        paths: vec![output.to_owned()],
        tensors: 0..file.tensors().len(),
        missing: Vec::new(),
        resumed_at: 0,
        was_there: false,
        tensor_bytes: file.tensor_bytes(),
        file_bytes: planned.iter().map(|file| file.plan.file_bytes).sum(),
    })
}

/// Writes a model in a byte order: converts every number of its header and its tensors, and changes nothing else.
///
/// The parts of a split model are joined into one file.
///
/// # Errors
/// [`EditError`]; then there is no output.
pub fn write_in_order(
    file: &GgufFile,
    output: &Path,
    endian: Endian,
    options: &WriteOptions,
    progress: &dyn Progress,
) -> Result<WriteReport, EditError> {
    for part in file.parts().iter().filter(|part| part.trailing_bytes() > 0) {
        let path = part.path().display().to_string();
        let n = part.trailing_bytes();
        progress.warn(&format!("{}: {n} bytes after the last tensor are left out", escape(&path)));
    }
    let options = in_order(file, endian, options);
    Ok(write_gguf(output, &whole(file), file, &options, progress)?)
}

fn in_order(file: &GgufFile, endian: Endian, options: &WriteOptions) -> WriteOptions {
    let mut layout = file.layout();
    layout.endian = endian;
    WriteOptions { layout, inputs: file.paths(), ..options.clone() }
}

/// Returns the keys of the output file.
fn whole(file: &GgufFile) -> Metadata {
    if file.parts().len() > 1 { merged_metadata(file.metadata()) } else { file.metadata().clone() }
}

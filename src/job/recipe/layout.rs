//! Bytes of a file that belong to no tensor: before, between and after the tensors.

use std::ops::Range;

use crate::core::TensorSource;
use crate::gguf::{GgufFile, Header};
use crate::job::recipe::report::PaddingFinding;

/// Ranges of a file that belong neither to the header nor to a tensor: before the first tensor, after each. `None` if
/// tensors overlap or exceed the file.
pub(super) fn gaps(header: &Header, file_bytes: u64) -> Option<Vec<Range<u64>>> {
    let mut gaps = Vec::with_capacity(header.tensors.len() + 1);
    let mut end = header.data_offset;
    for (tensor, &offset) in header.tensors.iter().zip(&header.offsets) {
        if offset < end {
            return None;
        }
        gaps.push(end..offset);
        end = offset.checked_add(tensor.n_bytes()?)?;
    }
    gaps.push(Some(end..file_bytes).filter(|gap| gap.start <= gap.end)?);
    Some(gaps)
}

pub(super) fn bytes_of<'f>(file: &'f GgufFile, range: &Range<u64>) -> &'f [u8] {
    let bytes = file.parts().first().map(crate::gguf::Part::bytes).unwrap_or_default();
    let range = usize::try_from(range.start).ok().zip(usize::try_from(range.end).ok());
    range.and_then(|(start, end)| bytes.get(start..end)).unwrap_or_default()
}

/// Number of bytes after the last tensor and its padding.
pub(super) fn trailing_bytes(file: &GgufFile) -> u64 {
    file.parts().first().map_or(0, crate::gguf::Part::trailing_bytes)
}

/// Padding that is not zero. Bytes after the padding of the last tensor are none.
pub(super) fn padding(file: &GgufFile) -> Vec<PaddingFinding> {
    let Some(part) = file.parts().first() else { return Vec::new() };
    let header = part.header();
    let end = part.file_bytes().min(header.padded_end());
    let mut ranges = vec![(Range { start: header.header_bytes, end: header.data_offset.min(end) }, "header")];
    let names = std::iter::once("header").chain(file.tensors().iter().map(|tensor| tensor.name.as_str()));
    ranges.extend(gaps(header, end).unwrap_or_default().into_iter().zip(names));
    let finding = |(range, after): (Range<u64>, &str)| {
        let bytes = bytes_of(file, &range);
        let first = bytes.iter().position(|&byte| byte != 0)?;
        Some(PaddingFinding {
            after: after.to_owned(),
            offset: range.start + first as u64,
            bytes: bytes.iter().filter(|&&byte| byte != 0).count() as u64,
        })
    };
    ranges.into_iter().filter_map(finding).collect()
}

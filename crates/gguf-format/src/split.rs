//! Split files: names and metadata of the parts, and the distribution of tensors.

use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::share::balanced;
use crate::split_id::placeholder;
use crate::split_keys::{SPLIT_COUNT, SPLIT_ID, SPLIT_NO, SPLIT_TENSORS};
use crate::{Metadata, Share, Value};
use gguf_core::TensorMeta;

/// Returns the suffix of a part's file name. `part` counts from 1, as in file names.
pub fn part_suffix(part: u64, n_parts: u64) -> String {
    format!("-{part:05}-of-{n_parts:05}.gguf")
}

/// Returns the path of one part of an output called `target` (without a final `.gguf`). `part` counts from 1.
pub fn part_path(target: &Path, part: usize, n_parts: usize) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_os_string();
    let mut stem = match target.extension() {
        Some(extension) if extension == "gguf" => target.file_stem().unwrap_or_default().to_os_string(),
        _ => name,
    };
    stem.push(part_suffix(part as u64, n_parts as u64));
    target.with_file_name(stem)
}

/// Returns the paths of all parts, given the path of one.
///
/// `None` if the name is not that of part `part` (from 1) of `n_parts`.
pub fn sibling_paths(path: &Path, part: u64, n_parts: u64) -> Option<Vec<PathBuf>> {
    let name = path.file_name()?.to_str()?;
    let stem = name.strip_suffix(&part_suffix(part, n_parts))?;
    Some(
        (1..=n_parts)
            .map(|part| path.with_file_name(format!("{stem}{}", part_suffix(part, n_parts))))
            .collect(),
    )
}

/// Tool whose rules apply if the two splitters differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SplitStyle {
    /// `convert_hf_to_gguf.py`: sizes count tensor bytes; both limits apply together; the keys are in the order no,
    /// count, tensors.count; an output of a single part is not split.
    #[default]
    Converter,
    /// `llama-gguf-split`: sizes count tensor bytes padded to 32; the keys are in the order no, tensors.count, count;
    /// the limit of tensors cuts at multiples; a single part also gets a part's name and keys.
    GgufSplit,
}

/// Division of an output into parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SplitSpec {
    /// Maximum number of tensor bytes in a part; a larger tensor gets a part of its own.
    pub max_bytes: Option<u64>,
    /// Maximum number of tensors in a part.
    pub max_tensors: Option<u64>,
    /// Share to write: one of several files of equal cost; other machines write the others. The limits do not apply
    /// then.
    pub share: Option<Share>,
    /// True to keep tensors out of the first part, so that it holds only the metadata.
    pub no_tensor_first: bool,
    /// Tool whose rules apply.
    pub style: SplitStyle,
    /// True to omit the key `gguf_foundry.split.id`, which distinguishes parts of different sets. The parts are then
    /// identical to those of llama.cpp's tools.
    pub without_id: bool,
}

impl SplitSpec {
    /// Divides the list of tensors: one range of indices per part, at least one.
    pub fn cut(&self, tensors: &[TensorMeta]) -> Vec<Range<usize>> {
        if let Some(share) = self.share {
            return balanced(tensors, share.count());
        }
        let mut parts = Vec::new();
        let mut start = 0;
        let mut part_bytes = 0u64;
        if self.no_tensor_first {
            parts.push(0..0);
        }
        for (index, tensor) in tensors.iter().enumerate() {
            let n_bytes = tensor.n_bytes().unwrap_or(u64::MAX);
            let n_bytes = match self.style {
                SplitStyle::Converter => n_bytes,
                SplitStyle::GgufSplit => n_bytes.checked_next_multiple_of(32).unwrap_or(u64::MAX),
            };
            let over_bytes = self
                .max_bytes
                .is_some_and(|most| part_bytes.checked_add(n_bytes).is_none_or(|sum| sum > most));
            let over_tensors = self.max_tensors.is_some_and(|most| match self.style {
                SplitStyle::Converter => (index - start) as u64 >= most,
                SplitStyle::GgufSplit => (index as u64).is_multiple_of(most.max(1)),
            });
            if index > start && (over_bytes || over_tensors) {
                parts.push(start..index);
                start = index;
                part_bytes = 0;
            }
            part_bytes = part_bytes.saturating_add(n_bytes);
        }
        if start < tensors.len() || parts.is_empty() {
            parts.push(start..tensors.len());
        }
        parts
    }

    /// Returns true if an output of this many parts has part names and keys.
    pub fn is_split(&self, n_parts: usize) -> bool {
        n_parts > 1 || self.style == SplitStyle::GgufSplit
    }

    /// Returns the metadata of one part (from 0): all keys in the first, the `split.*` keys in each, and at the end the
    /// id of the set. The id is filled in when all tensors are written.
    pub fn part_metadata(
        &self,
        metadata: &Metadata,
        part: usize,
        n_parts: usize,
        n_tensors: usize,
    ) -> Metadata {
        let mut out = if part == 0 { metadata.clone() } else { Metadata::new() };
        let no = (SPLIT_NO, Value::U16(part as u16));
        let count = (SPLIT_COUNT, Value::U16(n_parts as u16));
        let tensors = (SPLIT_TENSORS, Value::I32(n_tensors as i32));
        let keys = match self.style {
            SplitStyle::Converter => [no, count, tensors],
            SplitStyle::GgufSplit => [no, tensors, count],
        };
        for (key, value) in keys {
            // `llama-gguf-split` removes a key before it adds it, the converter replaces it in place.
            if self.style == SplitStyle::GgufSplit {
                out.remove(key);
            }
            out.set(key, value);
        }
        out.remove(SPLIT_ID);
        if !self.without_id {
            out.set(SPLIT_ID, placeholder());
        }
        out
    }
}

/// Removes the `split.*` keys and the id of the set, for a model merged from parts.
pub fn merged_metadata(metadata: &Metadata) -> Metadata {
    let mut out = metadata.clone();
    for key in [SPLIT_NO, SPLIT_COUNT, SPLIT_TENSORS, SPLIT_ID] {
        out.remove(key);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_core::{GgmlType, Shape};

    fn tensors(sizes: &[u64]) -> Vec<TensorMeta> {
        sizes
            .iter()
            .enumerate()
            .map(|(i, &n)| TensorMeta {
                name: format!("t{i}"),
                shape: Shape::new(vec![n]).unwrap(),
                ty: GgmlType::I8,
            })
            .collect()
    }

    #[test]
    fn names_both_ways() {
        assert_eq!(part_path(Path::new("d/m.gguf"), 2, 3), Path::new("d/m-00002-of-00003.gguf"));
        assert_eq!(part_path(Path::new("m.v1"), 1, 12), Path::new("m.v1-00001-of-00012.gguf"));
        let all = sibling_paths(Path::new("d/m-00002-of-00002.gguf"), 2, 2).unwrap();
        assert_eq!(all, [Path::new("d/m-00001-of-00002.gguf"), Path::new("d/m-00002-of-00002.gguf")]);
        assert_eq!(sibling_paths(Path::new("d/m-00002-of-00002.gguf"), 1, 2), None);
    }

    #[test]
    fn the_two_styles_cut_differently() {
        let list = tensors(&[40, 40, 40, 500, 1]);
        let cut = |spec: SplitSpec| spec.cut(&list);
        let by_size = SplitSpec { max_bytes: Some(120), ..SplitSpec::default() };
        assert_eq!(cut(by_size), [0..3, 3..4, 4..5]);
        // Padded to 32, three tensors exceed the limit.
        let padded = SplitSpec { style: SplitStyle::GgufSplit, ..by_size };
        assert_eq!(cut(padded), [0..1, 1..2, 2..3, 3..4, 4..5]);
        let by_count = SplitSpec { max_tensors: Some(2), ..SplitSpec::default() };
        assert_eq!(cut(by_count), [0..2, 2..4, 4..5]);
        assert_eq!(cut(SplitSpec { no_tensor_first: true, ..by_count }), [0..0, 0..2, 2..4, 4..5]);
        assert_eq!(cut(SplitSpec::default()), std::iter::once(0..5).collect::<Vec<_>>());
        assert_eq!(SplitSpec::default().cut(&[]), std::iter::once(0..0).collect::<Vec<_>>());
    }

    #[test]
    fn keys_come_in_the_order_of_the_tool() {
        let mut metadata = Metadata::new();
        metadata.set("a", 1u32);
        let names = |spec: SplitSpec, part| {
            let out = spec.part_metadata(&metadata, part, 2, 7);
            out.iter().map(|(key, _)| key.to_owned()).collect::<Vec<_>>()
        };
        let converter = SplitSpec::default();
        assert_eq!(names(converter, 0), ["a", SPLIT_NO, SPLIT_COUNT, SPLIT_TENSORS, SPLIT_ID]);
        let gguf_split = SplitSpec { style: SplitStyle::GgufSplit, ..converter };
        assert_eq!(names(gguf_split, 1), [SPLIT_NO, SPLIT_TENSORS, SPLIT_COUNT, SPLIT_ID]);
        let without_id = SplitSpec { without_id: true, ..gguf_split };
        assert_eq!(names(without_id, 1), [SPLIT_NO, SPLIT_TENSORS, SPLIT_COUNT]);
        assert_eq!(merged_metadata(&converter.part_metadata(&metadata, 0, 2, 7)), metadata);
    }
}

//! The description of a GGUF file: totals, metadata, tensors.

use std::cmp::Reverse;
use std::path::Path;

use serde::Serialize;

use crate::show::{ShownValue, TypedValue};
use gguf_arch::diffusion::header_flaws;
use gguf_core::bytes::Endian;
use gguf_core::written::as_path;
use gguf_core::{GgmlType, TensorSource};
use gguf_format::{Array, DeclaredTensor, GgufFile, Part, TensorDescriptor, Value};

/// Options for the description of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SummaryOptions {
    /// Maximum number of array elements; `None` for all.
    pub max_elems: Option<usize>,
    /// True to list each tensor.
    pub has_tensors: bool,
}

/// Description of a file, which may be a model in several parts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FileSummary<'a> {
    /// Path of the (first) file.
    #[serde(serialize_with = "as_path")]
    pub path: &'a Path,
    /// Version of the format.
    pub version: u32,
    /// Byte order: `little` or `big`.
    pub endian: Endian,
    /// Alignment of the tensors' data in bytes.
    pub alignment: u64,
    /// Value of `general.architecture`, if present.
    pub architecture: Option<&'a str>,
    /// Bytes of all parts.
    pub file_bytes: u64,
    /// Bytes of all tensors, without padding.
    pub tensor_bytes: u64,
    /// Number of elements of all tensors.
    #[serde(rename = "elements")]
    pub n_elems: u64,
    /// Bits per weight over all tensors; null without elements.
    pub bits_per_weight: Option<f64>,
    /// The files.
    pub parts: Vec<FilePart<'a>>,
    /// Shares of the tensor types, the type with the most bytes first.
    pub types: Vec<TypeShare>,
    /// Format violations that were accepted, and other oddities.
    pub warnings: Vec<String>,
    /// The keys, in the order of the file.
    pub metadata: Vec<MetadataEntry<'a>>,
    /// The tensors, in the order of the file; absent if they are not listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensors: Option<Vec<TensorLine>>,
}

/// One of the files of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FilePart<'a> {
    /// Path of the file.
    #[serde(serialize_with = "as_path")]
    pub path: &'a Path,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Offset of the tensors' data.
    pub data_offset: u64,
    /// Number of tensors.
    #[serde(rename = "tensors")]
    pub n_tensors: usize,
    /// Bytes after the last tensor.
    pub trailing_bytes: u64,
}

/// Share of a model's tensors that have one type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TypeShare {
    /// Number of the type.
    #[serde(skip)]
    pub type_id: u32,
    /// Name of the type, with its number if it belongs to another program.
    #[serde(rename = "type")]
    pub name: String,
    /// Number of tensors.
    #[serde(rename = "tensors")]
    pub n_tensors: usize,
    /// Number of elements.
    #[serde(rename = "elements")]
    pub n_elems: u64,
    /// Number of bytes.
    #[serde(rename = "bytes")]
    pub n_bytes: u64,
}

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MetadataEntry<'a> {
    /// The key.
    pub key: &'a str,
    /// Its value.
    #[serde(flatten)]
    pub typed: TypedValue<'a>,
    /// Number of elements of an array.
    #[serde(rename = "length", skip_serializing_if = "Option::is_none")]
    pub n_elems: Option<usize>,
}

/// Entry of the tensor list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TensorLine {
    /// Name of the tensor.
    pub name: String,
    /// Number of the type.
    #[serde(skip)]
    pub type_id: u32,
    /// Name of the type, with its number if it belongs to another program.
    #[serde(rename = "type")]
    pub type_name: String,
    /// Dimensions, outermost first.
    #[serde(rename = "shape")]
    pub dims: Vec<u64>,
    /// Number of elements.
    #[serde(skip)]
    pub n_elems: u64,
    /// Bytes of the data; for a type of another program, up to the next tensor.
    #[serde(rename = "bytes")]
    pub n_bytes: u64,
    /// Index of the file that contains it, from 0.
    pub part: usize,
    /// Absolute offset of the data in that file.
    pub offset: u64,
}

/// Describes a file.
pub fn summary(file: &GgufFile, options: SummaryOptions) -> FileSummary<'_> {
    let tensors: Vec<TensorLine> = listed(file).collect();
    let types = shares(&tensors);
    let n_elems = types.iter().fold(0, |sum: u64, share| sum.saturating_add(share.n_elems));
    let tensor_bytes = types.iter().map(|share| share.n_bytes).sum();
    let metadata = file.metadata();
    FileSummary {
        path: file.path(),
        version: file.version(),
        endian: file.endian(),
        alignment: file.alignment(),
        architecture: metadata.get("general.architecture").and_then(Value::as_str),
        file_bytes: file.file_bytes(),
        tensor_bytes,
        n_elems,
        bits_per_weight: (n_elems > 0).then(|| tensor_bytes as f64 * 8.0 / n_elems as f64),
        parts: file.parts().iter().map(FilePart::of).collect(),
        types,
        warnings: warnings(file),
        metadata: metadata
            .iter()
            .map(|(key, value)| MetadataEntry::of(key, ShownValue { value, max_elems: options.max_elems }))
            .collect(),
        tensors: options.has_tensors.then_some(tensors),
    }
}

impl<'a> FilePart<'a> {
    fn of(part: &'a Part) -> Self {
        Self {
            path: part.path(),
            file_bytes: part.file_bytes(),
            data_offset: part.header().data_offset,
            n_tensors: part.header().tensors.len(),
            trailing_bytes: part.trailing_bytes(),
        }
    }
}

impl<'a> MetadataEntry<'a> {
    fn of(key: &'a str, shown: ShownValue<'a>) -> Self {
        let n_elems = shown.value.as_array().map(Array::len);
        Self { key, typed: TypedValue::of(shown), n_elems }
    }
}

fn shares(tensors: &[TensorLine]) -> Vec<TypeShare> {
    let mut types: Vec<TypeShare> = Vec::new();
    for &TensorLine { type_id, ref type_name, n_elems, n_bytes, .. } in tensors {
        match types.iter_mut().find(|share| share.type_id == type_id) {
            Some(share) => {
                share.n_tensors += 1;
                share.n_elems = share.n_elems.saturating_add(n_elems);
                share.n_bytes += n_bytes;
            }
            None => {
                types.push(TypeShare { type_id, name: type_name.clone(), n_tensors: 1, n_elems, n_bytes });
            }
        }
    }
    types.sort_by_key(|share| (Reverse(share.n_bytes), share.type_id));
    types
}

/// Returns the tensors of a file, in its order.
fn listed(file: &GgufFile) -> impl Iterator<Item = TensorLine> + '_ {
    (0..file.tensors().len()).map(|index| {
        let TensorDescriptor { name, dims, type_id, n_bytes } = file.entry(index);
        let declared = DeclaredTensor { dims, type_id };
        let (type_name, n_elems) = (declared.type_name(), declared.n_elems());
        let (dims, place) = (declared.dims, file.place(index));
        TensorLine {
            name,
            type_id,
            type_name,
            dims,
            n_elems,
            n_bytes,
            part: place.part,
            offset: place.offset,
        }
    })
}

/// Returns warnings about a file that could be opened.
pub fn warnings(file: &GgufFile) -> Vec<String> {
    let flaws = header_flaws(file).into_iter();
    let mut out: Vec<_> = flaws.map(|(path, error)| format!("{}: {error}", path.display())).collect();
    out.extend(foreign(file));
    for part in file.parts().iter().filter(|part| part.trailing_bytes() > 0) {
        let n = part.trailing_bytes();
        out.push(format!("{}: {n} bytes after the last tensor", part.path().display()));
    }
    out
}

/// Returns the warning about tensors that llama.cpp does not load, with the program that wrote them.
fn foreign(file: &GgufFile) -> Option<String> {
    let found: Vec<_> = (0..file.tensors().len()).filter_map(|tensor| file.declared(tensor)).collect();
    let of_types: Vec<_> =
        found.iter().filter(|declared| GgmlType::from_id(declared.type_id).is_none()).collect();
    let reason = match of_types.first() {
        Some(declared) => match declared.program() {
            Some(program) => {
                format!("{}, a type of {program}: only {program} reads its blocks", declared.type_name())
            }
            None => match GgmlType::removed_name(declared.type_id) {
                Some(name) => format!("{name}, which was removed from the format"),
                None => format!("{}, which no program known here has", declared.type_name()),
            },
        },
        None if found.is_empty() => return None,
        None => "names or dimensions beyond llama.cpp's limits".to_owned(),
    };
    let n = if of_types.is_empty() { found.len() } else { of_types.len() };
    let tensors = if n == 1 { "1 tensor".to_owned() } else { format!("{n} tensors") };
    Some(format!("llama.cpp does not load this file: {tensors} with {reason}"))
}

/// Returns `little` or `big`.
pub fn endian_name(endian: Endian) -> &'static str {
    match endian {
        Endian::Little => "little",
        Endian::Big => "big",
    }
}

//! The description of a GGUF file: totals, metadata, tensors.

use serde_json::{Value as Json, json};

use crate::show::{value_json, value_type_name};
use gguf_core::bytes::Endian;
use gguf_core::{GgmlType, TensorSource};
use gguf_format::{DeclaredTensor, GgufFile, TensorDescriptor, Value};

/// Share of a model's tensors that have one type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeShare {
    /// Number of the type.
    pub type_id: u32,
    /// Name of the type, with its number if it belongs to another program.
    pub name: String,
    /// Number of tensors.
    pub n_tensors: usize,
    /// Number of elements.
    pub n_elems: u64,
    /// Number of bytes.
    pub n_bytes: u64,
}

/// Totals of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct FileSummary {
    /// Value of `general.architecture`, if present.
    pub architecture: Option<String>,
    /// Number of elements of all tensors.
    pub n_elems: u64,
    /// Bytes of all tensors, without padding.
    pub tensor_bytes: u64,
    /// Shares of the types, the type with the most bytes first.
    pub types: Vec<TypeShare>,
}

impl FileSummary {
    /// Returns the bits per weight over all tensors; `None` without elements.
    #[must_use]
    pub fn bits_per_weight(&self) -> Option<f64> {
        (self.n_elems > 0).then(|| self.tensor_bytes as f64 * 8.0 / self.n_elems as f64)
    }
}

/// Sums the tensors of a file.
#[must_use]
pub fn summary(file: &GgufFile) -> FileSummary {
    let mut types: Vec<TypeShare> = Vec::new();
    for tensor in listed(file) {
        let TensorLine { n_elems, n_bytes, .. } = tensor;
        match types.iter_mut().find(|share| share.type_id == tensor.type_id) {
            Some(share) => {
                share.n_tensors += 1;
                share.n_elems = share.n_elems.saturating_add(n_elems);
                share.n_bytes += n_bytes;
            }
            None => {
                let (type_id, name) = (tensor.type_id, tensor.type_name);
                types.push(TypeShare { type_id, name, n_tensors: 1, n_elems, n_bytes });
            }
        }
    }
    types.sort_by_key(|share| (std::cmp::Reverse(share.n_bytes), share.type_id));
    FileSummary {
        architecture: file.metadata().get("general.architecture").and_then(Value::as_str).map(str::to_owned),
        n_elems: types.iter().fold(0, |sum: u64, share| sum.saturating_add(share.n_elems)),
        tensor_bytes: types.iter().map(|share| share.n_bytes).sum(),
        types,
    }
}

/// Entry of the tensor list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorLine {
    /// Name of the tensor.
    pub name: String,
    /// Number of the type.
    pub type_id: u32,
    /// Name of the type, with its number if it belongs to another program.
    pub type_name: String,
    /// Dimensions, outermost first.
    pub dims: Vec<u64>,
    /// Number of elements.
    pub n_elems: u64,
    /// Bytes of the data; for a type of another program, up to the next tensor.
    pub n_bytes: u64,
    /// Index of the file that contains it.
    pub part: usize,
    /// Absolute offset of the data in that file.
    pub offset: u64,
}

/// Returns the tensors of a file, in its order.
pub fn listed(file: &GgufFile) -> impl Iterator<Item = TensorLine> + '_ {
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

/// Options for the description of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SummaryOptions {
    /// Maximum number of array elements; `None` for all.
    pub max_elems: Option<usize>,
    /// True to list each tensor.
    pub has_tensors: bool,
}

/// Describes a file as JSON.
///
/// `length` is the number of elements of an array; without a list of tensors there is no `tensors`.
#[must_use]
pub fn summary_json(file: &GgufFile, options: SummaryOptions) -> Json {
    let totals = summary(file);
    let metadata: Vec<_> = file
        .metadata()
        .iter()
        .map(|(key, value)| {
            let mut entry = json!({
                "key": key,
                "type": value_type_name(value),
                "value": value_json(value, options.max_elems),
            });
            if let (Value::Array(array), Json::Object(entry)) = (value, &mut entry) {
                entry.insert("length".to_owned(), json!(array.len()));
            }
            entry
        })
        .collect();
    let tensors: Vec<_> = listed(file)
        .map(|tensor| {
            json!({
                "name": tensor.name,
                "type": tensor.type_name,
                "shape": tensor.dims,
                "bytes": tensor.n_bytes,
                "part": tensor.part,
                "offset": tensor.offset,
            })
        })
        .collect();
    let parts: Vec<_> = file
        .parts()
        .iter()
        .map(|part| {
            json!({
                "path": part.path().to_string_lossy(),
                "file_bytes": part.file_bytes(),
                "data_offset": part.header().data_offset,
                "tensors": part.header().tensors.len(),
                "trailing_bytes": part.trailing_bytes(),
            })
        })
        .collect();
    let types: Vec<_> = totals
        .types
        .iter()
        .map(|share| {
            json!({
                "type": share.name,
                "tensors": share.n_tensors,
                "elements": share.n_elems,
                "bytes": share.n_bytes,
            })
        })
        .collect();
    let mut document = json!({
        "path": file.path().to_string_lossy(),
        "version": file.version(),
        "endian": endian_name(file.endian()),
        "alignment": file.alignment(),
        "architecture": totals.architecture,
        "file_bytes": file.file_bytes(),
        "tensor_bytes": totals.tensor_bytes,
        "elements": totals.n_elems,
        "bits_per_weight": totals.bits_per_weight(),
        "parts": parts,
        "types": types,
        "warnings": warnings(file),
        "metadata": metadata,
    });
    if options.has_tensors {
        document["tensors"] = tensors.into();
    }
    document
}

/// Returns warnings about a file that could be opened.
#[must_use]
pub fn warnings(file: &GgufFile) -> Vec<String> {
    let mut out: Vec<_> =
        file.tolerated().map(|(path, error)| format!("{}: {error}", path.display())).collect();
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
            None => format!("{}, which no program known here has", declared.type_name()),
        },
        None if found.is_empty() => return None,
        None => "names or dimensions beyond llama.cpp's limits".to_owned(),
    };
    let n = if of_types.is_empty() { found.len() } else { of_types.len() };
    let tensors = if n == 1 { "1 tensor".to_owned() } else { format!("{n} tensors") };
    Some(format!("llama.cpp does not load this file: {tensors} with {reason}"))
}

/// Returns `little` or `big`.
#[must_use]
pub fn endian_name(endian: Endian) -> &'static str {
    match endian {
        Endian::Little => "little",
        Endian::Big => "big",
    }
}

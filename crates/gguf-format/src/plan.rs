//! Plan of an output file: its header bytes, and the position of each tensor. It is pure, so it can be printed and
//! tested.

use std::collections::HashSet;
use std::ops::Range;
use std::path::PathBuf;

use crate::header::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT};
use crate::tensor_limits::TensorLimits;
use crate::{Array, Metadata, Value};
use gguf_core::bytes::Endian;
use gguf_core::text::escape;
use gguf_core::{GgmlType, Shape, TensorMeta};

/// Layout options that determine a file's bytes in addition to its content. The alignment is content:
/// `general.alignment`, else 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutOptions {
    /// Version of the format, 2 or 3; the layout is the same.
    pub version: u32,
    /// Byte order of the file.
    pub endian: Endian,
    /// True to pad the header of a file without tensors. Every tool does, except the converter with `--vocab-only`.
    pub pad_header: bool,
    /// True to pad the last tensor. Every tool does.
    pub pad_last: bool,
}

impl Default for LayoutOptions {
    fn default() -> Self {
        Self { version: 3, endian: Endian::Little, pad_header: true, pad_last: true }
    }
}

/// Position of one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedTensor {
    /// Absolute byte offset of its data.
    pub offset: u64,
    /// Size of its data in bytes, without padding.
    pub n_bytes: u64,
}

/// Everything about an output file that is known before the first weight is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePlan {
    /// Header, without the padding that follows.
    pub header: Vec<u8>,
    /// Byte offset in the header of the end of the keys and the start of the tensor list.
    pub(crate) keys_end: u64,
    /// Position of each tensor, in the given order.
    pub tensors: Vec<PlannedTensor>,
    /// Alignment of tensor data in bytes.
    pub alignment: u64,
    /// Absolute byte offset of the tensor data.
    pub data_offset: u64,
    /// Size of the file in bytes.
    pub file_bytes: u64,
}

/// One planned output file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedFile {
    /// Final path.
    pub path: PathBuf,
    /// Indices of its tensors in the list of all tensors.
    pub tensors: Range<usize>,
    /// Header and the position of each tensor.
    pub plan: FilePlan,
    /// Byte offset of the set's id, which is written last; the header has zeros there. `None` for a file without an id.
    pub id_offset: Option<u64>,
}

/// Entry of the tensor list, and the size of the tensor's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorDescriptor {
    /// Name.
    pub name: String,
    /// Dimensions, outermost first.
    pub dims: Vec<u64>,
    /// Number of the type.
    pub type_id: u32,
    /// Bytes of the data.
    pub n_bytes: u64,
}

/// Reasons why a file with this content cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum PlanError {
    #[error("key {index} is empty")]
    KeyEmpty { index: usize },
    #[error("key `general.alignment`: a power of two of type u32 expected, found {found}")]
    Alignment { found: String },
    #[error("version {found}, expected 2 or 3")]
    Version { found: u32 },
    #[error("tensor `{}`: name of {found} bytes, 1 to {most} allowed", escape(tensor))]
    NameLength { tensor: String, found: usize, most: u64 },
    #[error("tensor `{}` appears twice", escape(tensor))]
    TensorTwice { tensor: String },
    #[error("tensor `{}`: {} dimensions, at most {most} allowed", escape(tensor), shape.rank())]
    Rank { tensor: String, shape: Shape, most: u32 },
    #[error("tensor `{}`: shape {shape} cannot be stored as {ty}", escape(tensor))]
    Size { tensor: String, shape: Shape, ty: GgmlType },
    #[error("tensor `{}`: end of its data overflows 64 bits", escape(tensor))]
    Overflow { tensor: String },
    #[error("{found} parts, at most {most} possible")]
    Parts { found: usize, most: usize },
    #[error("{found} shares for {n_tensors} tensors: each share must have one")]
    Shares { found: usize, n_tensors: usize },
}

impl FilePlan {
    /// Plans a file.
    ///
    /// # Errors
    /// Content that the format cannot hold.
    pub fn new(
        metadata: &Metadata,
        tensors: &[TensorMeta],
        options: &LayoutOptions,
    ) -> Result<Self, PlanError> {
        Self::within(metadata, tensors, *options, TensorLimits::of(metadata))
    }

    /// Plans a part of a model, whose tensors have the limits of the whole.
    pub(crate) fn within(
        metadata: &Metadata,
        tensors: &[TensorMeta],
        options: LayoutOptions,
        limits: TensorLimits,
    ) -> Result<Self, PlanError> {
        let entry = |tensor: &TensorMeta| {
            let n_bytes = check_tensor(tensor, limits)?;
            let dims = tensor.shape.dims().to_vec();
            Ok(TensorDescriptor { name: tensor.name.clone(), dims, type_id: tensor.ty.id(), n_bytes })
        };
        let entries = tensors.iter().map(entry).collect::<Result<Vec<_>, _>>()?;
        Self::of_entries(metadata, &entries, options)
    }

    /// Plans a file whose tensors may exceed llama.cpp's types and limits.
    pub fn of_entries(
        metadata: &Metadata,
        tensors: &[TensorDescriptor],
        options: LayoutOptions,
    ) -> Result<Self, PlanError> {
        if !matches!(options.version, 2 | 3) {
            return Err(PlanError::Version { found: options.version });
        }
        let alignment = alignment(metadata)?;
        let mut out = HeaderEncoder { bytes: Vec::new(), endian: options.endian };
        out.bytes.extend(b"GGUF");
        out.u32(options.version);
        out.u64(tensors.len() as u64);
        out.u64(metadata.len() as u64);
        for (index, (key, value)) in metadata.iter().enumerate() {
            if key.is_empty() {
                return Err(PlanError::KeyEmpty { index });
            }
            out.string(key.as_bytes());
            out.u32(value.value_type().id());
            out.value(value);
        }

        let keys_end = out.bytes.len() as u64;
        let mut names = HashSet::new();
        let mut rel_offsets = Vec::with_capacity(tensors.len());
        let mut next = 0u64;
        for tensor in tensors {
            let n_bytes = tensor.n_bytes;
            if !names.insert(&tensor.name) {
                return Err(PlanError::TensorTwice { tensor: tensor.name.clone() });
            }
            out.string(tensor.name.as_bytes());
            out.u32(tensor.dims.len() as u32);
            for &dim in tensor.dims.iter().rev() {
                out.u64(dim);
            }
            out.u32(tensor.type_id);
            out.u64(next);
            rel_offsets.push((next, n_bytes));
            next = next
                .checked_add(n_bytes)
                .and_then(|end| end.checked_next_multiple_of(alignment))
                .ok_or_else(|| PlanError::Overflow { tensor: tensor.name.clone() })?;
        }

        let header_bytes = out.bytes.len() as u64;
        let data_offset = if tensors.is_empty() && !options.pad_header {
            header_bytes
        } else {
            header_bytes.next_multiple_of(alignment)
        };
        let overflow = || PlanError::Overflow {
            tensor: tensors.last().map(|tensor| tensor.name.clone()).unwrap_or_default(),
        };
        let padded_end = data_offset.checked_add(next).ok_or_else(overflow)?;
        let file_bytes = match rel_offsets.last() {
            Some((rel_offset, n_bytes)) if !options.pad_last => data_offset + rel_offset + n_bytes,
            _ => padded_end,
        };
        // Nothing overflows here: every end is at most `padded_end`.
        let tensors = rel_offsets
            .into_iter()
            .map(|(rel_offset, n_bytes)| PlannedTensor { offset: data_offset + rel_offset, n_bytes })
            .collect();
        Ok(Self { header: out.bytes, keys_end, tensors, alignment, data_offset, file_bytes })
    }
}

fn alignment(metadata: &Metadata) -> Result<u64, PlanError> {
    match metadata.get(ALIGNMENT_KEY) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(Value::U32(found)) if found.is_power_of_two() => Ok((*found).into()),
        Some(Value::U32(found)) => Err(PlanError::Alignment { found: found.to_string() }),
        Some(other) => Err(PlanError::Alignment { found: other.value_type().to_string() }),
    }
}

/// Returns the size in bytes of a tensor that the format can hold.
fn check_tensor(tensor: &TensorMeta, limits: TensorLimits) -> Result<u64, PlanError> {
    let name = || tensor.name.clone();
    let found = tensor.name.len();
    if found == 0 || found as u64 > limits.name_bytes {
        return Err(PlanError::NameLength { tensor: name(), found, most: limits.name_bytes });
    }
    let shape = || tensor.shape.clone();
    if tensor.shape.rank() > limits.dims as usize {
        return Err(PlanError::Rank { tensor: name(), shape: shape(), most: limits.dims });
    }
    tensor.n_bytes().ok_or_else(|| PlanError::Size { tensor: name(), shape: shape(), ty: tensor.ty })
}

/// Returns the bytes of a value in a little-endian file: its type, then the value.
pub fn value_bytes(value: &Value) -> Vec<u8> {
    let mut out = HeaderEncoder { bytes: Vec::new(), endian: Endian::Little };
    out.u32(value.value_type().id());
    out.value(value);
    out.bytes
}

/// Encoder of values in the byte order of the file.
struct HeaderEncoder {
    bytes: Vec<u8>,
    endian: Endian,
}

/// Appends the bytes of a number in the byte order of the file.
macro_rules! put {
    ($out:expr, $value:expr) => {
        match $out.endian {
            Endian::Little => $out.bytes.extend($value.to_le_bytes()),
            Endian::Big => $out.bytes.extend($value.to_be_bytes()),
        }
    };
}

impl HeaderEncoder {
    fn u32(&mut self, value: u32) {
        put!(self, value);
    }

    fn u64(&mut self, value: u64) {
        put!(self, value);
    }

    fn string(&mut self, text: &[u8]) {
        self.u64(text.len() as u64);
        self.bytes.extend(text);
    }

    /// Appends a value without its type.
    fn value(&mut self, value: &Value) {
        match value {
            Value::U8(v) => put!(self, v),
            Value::I8(v) => put!(self, v),
            Value::U16(v) => put!(self, v),
            Value::I16(v) => put!(self, v),
            Value::U32(v) => put!(self, v),
            Value::I32(v) => put!(self, v),
            Value::F32(v) => put!(self, v),
            Value::Bool(v) => self.bytes.push(u8::from(*v)),
            Value::String(v) => self.string(v),
            Value::Array(v) => self.array(v),
            Value::U64(v) => put!(self, v),
            Value::I64(v) => put!(self, v),
            Value::F64(v) => put!(self, v),
        }
    }

    /// Appends element type, count and elements.
    fn array(&mut self, array: &Array) {
        self.u32(array.element_type().id());
        self.u64(array.len() as u64);
        self.bytes.reserve(array.len().saturating_mul(array.element_type().min_bytes() as usize));
        match array {
            Array::String(v) => v.iter().for_each(|text| self.string(text)),
            Array::Array(v) => v.iter().for_each(|inner| self.array(inner)),
            Array::Bool(v) => self.bytes.extend(v.iter().map(|&b| u8::from(b))),
            Array::U8(v) => self.bytes.extend(v),
            Array::I8(v) => v.iter().for_each(|v| put!(self, v)),
            Array::U16(v) => v.iter().for_each(|v| put!(self, v)),
            Array::I16(v) => v.iter().for_each(|v| put!(self, v)),
            Array::U32(v) => v.iter().for_each(|v| put!(self, v)),
            Array::I32(v) => v.iter().for_each(|v| put!(self, v)),
            Array::F32(v) => v.iter().for_each(|v| put!(self, v)),
            Array::U64(v) => v.iter().for_each(|v| put!(self, v)),
            Array::I64(v) => v.iter().for_each(|v| put!(self, v)),
            Array::F64(v) => v.iter().for_each(|v| put!(self, v)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, dims: Vec<u64>, ty: GgmlType) -> TensorMeta {
        TensorMeta { name: name.to_owned(), shape: Shape::new(dims).unwrap(), ty }
    }

    #[test]
    fn a_small_file_has_the_bytes_of_the_format() {
        let mut metadata = Metadata::new();
        metadata.set("k", vec![1u16, 2]);
        let tensors = [tensor("a", vec![2, 3], GgmlType::F32), tensor("b", vec![1], GgmlType::F16)];
        let plan = FilePlan::new(&metadata, &tensors, &LayoutOptions::default()).unwrap();
        let mut expected = b"GGUF".to_vec();
        expected.extend([3, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        expected.extend(*b"\x01\0\0\0\0\0\0\0k\x09\0\0\0\x02\0\0\0\x02\0\0\0\0\0\0\0\x01\0\x02\0");
        expected.extend(*b"\x01\0\0\0\0\0\0\0a\x02\0\0\0\x03\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\0\0\0\0");
        expected.extend([0; 8]);
        expected.extend(*b"\x01\0\0\0\0\0\0\0b\x01\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\x20\0\0\0\0\0\0\0");
        assert_eq!(plan.header, expected);
        assert_eq!((plan.data_offset, plan.file_bytes), (128, 192));
        assert_eq!(plan.tensors[1], PlannedTensor { offset: 160, n_bytes: 2 });

        let bare = LayoutOptions { pad_last: false, ..LayoutOptions::default() };
        assert_eq!(FilePlan::new(&metadata, &tensors, &bare).unwrap().file_bytes, 162);
        let bare = LayoutOptions { pad_header: false, ..LayoutOptions::default() };
        assert_eq!(FilePlan::new(&metadata, &[], &bare).unwrap().file_bytes, 53);
        assert_eq!(FilePlan::new(&metadata, &[], &LayoutOptions::default()).unwrap().file_bytes, 64);
    }

    #[test]
    fn the_alignment_of_the_metadata_holds() {
        let mut metadata = Metadata::new();
        metadata.set(ALIGNMENT_KEY, 256u32);
        let tensors = [tensor("a", vec![1], GgmlType::F32), tensor("b", vec![1], GgmlType::F32)];
        let plan = FilePlan::new(&metadata, &tensors, &LayoutOptions::default()).unwrap();
        assert_eq!((plan.data_offset, plan.tensors[1].offset, plan.file_bytes), (256, 512, 768));
        metadata.set(ALIGNMENT_KEY, 48u32);
        let error = FilePlan::new(&metadata, &tensors, &LayoutOptions::default()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "key `general.alignment`: a power of two of type u32 expected, found 48"
        );
    }

    #[test]
    fn what_the_format_cannot_hold_is_refused() {
        let error = |tensors: &[TensorMeta]| {
            let mut metadata = Metadata::new();
            metadata.set("general.architecture", "llama");
            FilePlan::new(&metadata, tensors, &LayoutOptions::default()).unwrap_err().to_string()
        };
        assert_eq!(
            error(&[tensor("w", vec![2, 33], GgmlType::Q8_0)]),
            "tensor `w`: shape [2, 33] cannot be stored as Q8_0"
        );
        assert_eq!(
            error(&[tensor("w", vec![1; 5], GgmlType::F32)]),
            "tensor `w`: 5 dimensions, at most 4 allowed"
        );
        let twice = tensor("w", vec![1], GgmlType::F32);
        assert_eq!(error(&[twice.clone(), twice]), "tensor `w` appears twice");
        let long = "n".repeat(64);
        assert_eq!(
            error(&[tensor(&long, vec![1], GgmlType::F32)]),
            format!("tensor `{long}`: name of 64 bytes, 1 to 63 allowed")
        );
        let huge = |name| tensor(name, vec![1 << 62], GgmlType::I8);
        let names = ["a", "b", "c", "d"].map(huge);
        assert_eq!(error(&names), "tensor `d`: end of its data overflows 64 bits");
    }
}

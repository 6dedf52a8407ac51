//! The safetensors format: a JSON header that names tensors and their byte ranges, then the bytes.
//!
//! # Layout
//! `u64` little-endian header length `n`; `n` bytes of JSON (it starts with `{` and may end in spaces); data. The
//! header maps each name to `{"dtype", "shape", "data_offsets": [begin, end]}`, offsets relative to the data. The
//! ranges must cover the data from its first byte to its last without gap or overlap. `__metadata__` maps text to
//! text, or is null. Numbers are little-endian, tensors row-major. Specification: the `safetensors` crate, release 0.8.

use std::collections::HashSet;

use crate::json::{JsonError, JsonProblem, JsonReader};
use gguf_core::limits::Limits;
use gguf_core::ranged::Bytes;
use gguf_core::text::escape;
use gguf_core::weight_file::WeightFile;
use gguf_core::{ElementType, Shape, WeightMeta};

/// A parsed header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Tensors, sorted by name: the order in which the reference converter visits a file.
    pub tensors: Vec<TensorRange>,
    /// Entries of `__metadata__`, in file order.
    pub metadata: Vec<(String, String)>,
}

/// One tensor and its byte range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorRange {
    /// Name, shape and type.
    pub meta: WeightMeta,
    /// Absolute offset in the file.
    pub offset: u64,
    /// Length in bytes; equals the size computed from shape and type.
    pub n_bytes: u64,
}

/// Rules of the format that a file can break.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum HeaderError {
    #[error("the file is empty")]
    Empty,
    #[error("offset 0: 8 bytes of header length expected, {present} present")]
    NoLength { present: u64 },
    #[error("offset 0: header of {declared} bytes declared, at most {limit} allowed")]
    TooLong { declared: u64, limit: u64 },
    #[error("offset 8: header of {declared} bytes declared, {present} present")]
    Truncated { declared: u64, present: u64 },
    #[error("offset 8: header does not start with `{{`")]
    Start,
    #[error("header: {0}")]
    Json(#[from] JsonError),
    #[error("tensor `{}`: name occurs twice", escape(name))]
    Duplicate { name: String },
    #[error("tensor `{}`: `{field}` is missing", escape(name))]
    FieldMissing { name: String, field: &'static str },
    #[error("tensor `{}`: `{field}` is given twice", escape(name))]
    FieldTwice { name: String, field: &'static str },
    #[error("tensor `{}`: `data_offsets` has {found} elements, expected 2", escape(name))]
    OffsetCount { name: String, found: usize },
    #[error("tensor `{}`: unknown dtype `{}`", escape(name), escape(dtype))]
    Dtype { name: String, dtype: String },
    #[error("tensor `{}`: shape {dims:?} overflows", escape(name))]
    ShapeOverflow { name: String, dims: Vec<u64> },
    #[error("tensor `{}`: {bits} bits do not fill whole bytes", escape(name))]
    Ragged { name: String, bits: u64 },
    #[error("tensor `{}`: range {begin}..{end} ends before it begins", escape(name))]
    Reversed { name: String, begin: u64, end: u64 },
    #[error("tensor `{}`: {dtype} {shape} takes {expected} bytes, range holds {found}", escape(name))]
    Size { name: String, dtype: ElementType, shape: Shape, expected: u64, found: u64 },
    #[error(
        "tensor `{}`: data up to offset {end} declared, file ends at {present}{}",
        escape(name),
        if whole > end { format!("; {whole} bytes expected") } else { String::new() }
    )]
    DataTruncated { name: String, end: u64, present: u64, whole: u64 },
    #[error(
        "tensor `{}`: range begins at {begin}, inside `{}`, which ends at {end}",
        escape(name),
        escape(other)
    )]
    Overlap { name: String, begin: u64, other: String, end: u64 },
    #[error("{n_bytes} bytes at offset {offset} belong to no tensor")]
    Gap { offset: u64, n_bytes: u64 },
    #[error("header: more than {limit} tensors")]
    TooManyTensors { limit: u64 },
}

/// Parses the header of a file, given all its bytes.
pub fn parse_header(file: &[u8], limits: &Limits) -> Result<Header, HeaderError> {
    parse_head(file, file.len() as u64, limits)
}

/// Reads the header of a file, without its data.
///
/// # Errors
/// The outer error: the bytes cannot be read. The inner error: as [`parse_header`].
pub(super) fn read_header(
    file: &WeightFile,
    limits: &Limits,
) -> std::io::Result<Result<Header, HeaderError>> {
    if let Some(bytes) = file.mapped() {
        return Ok(parse_header(bytes, limits));
    }
    let length = file.get(0, file.n_bytes().min(8))?.unwrap_or_default();
    // A length beyond the limit or the file is refused below.
    let declared = length.first_chunk().map_or(0, |length| u64::from_le_bytes(*length));
    let n_bytes = declared.min(limits.safetensors_header_bytes).saturating_add(8).min(file.n_bytes());
    let head = file.get(0, n_bytes)?.unwrap_or_default();
    file.release(0, n_bytes);
    Ok(parse_head(&head, file.n_bytes(), limits))
}

/// Parses the header of a file of `n_bytes`, given `file`, a prefix that contains at least the header.
fn parse_head(file: &[u8], n_bytes: u64, limits: &Limits) -> Result<Header, HeaderError> {
    if file.is_empty() {
        return Err(HeaderError::Empty);
    }
    let (length, rest) =
        file.split_first_chunk::<8>().ok_or(HeaderError::NoLength { present: file.len() as u64 })?;
    let declared = u64::from_le_bytes(*length);
    if declared > limits.safetensors_header_bytes {
        return Err(HeaderError::TooLong { declared, limit: limits.safetensors_header_bytes });
    }
    let text = usize::try_from(declared)
        .ok()
        .and_then(|len| rest.get(..len))
        .ok_or(HeaderError::Truncated { declared, present: n_bytes - 8 })?;
    if text.first() != Some(&b'{') {
        return Err(HeaderError::Start);
    }
    // Errors give positions in the file, so the 8-byte length counts as part of the text's first line.
    let mut reader = JsonReader::new(&file[..8 + text.len()], limits.depth).starting_at(8);

    let mut entries: Vec<HeaderEntry> = Vec::new();
    let mut metadata: Option<Vec<(String, String)>> = None;
    reader.object(|reader, name, offset| {
        if name == "__metadata__" {
            if metadata.is_some() {
                return Err(reader.error_at(offset, JsonProblem::DuplicateKey(name)).into());
            }
            // MLX writes null where it has none.
            metadata = Some(if reader.peek() == Some(b'n') {
                reader.value()?;
                Vec::new()
            } else {
                read_metadata(reader)?
            });
            return Ok(());
        }
        if entries.len() as u64 >= limits.n_tensors {
            return Err(HeaderError::TooManyTensors { limit: limits.n_tensors });
        }
        entries.push(read_entry(reader, name)?);
        Ok(())
    })?;
    reader.finish()?;
    entries.sort_by(|a, b| a.meta.name.cmp(&b.meta.name));
    if let Some(pair) = entries.windows(2).find(|pair| pair[0].meta.name == pair[1].meta.name) {
        return Err(HeaderError::Duplicate { name: pair[0].meta.name.clone() });
    }
    let data = 8 + declared;
    check_cover(&entries, data, n_bytes)?;
    let tensors = entries
        .into_iter()
        .map(|e| TensorRange { meta: e.meta, offset: data + e.begin, n_bytes: e.end - e.begin })
        .collect();
    Ok(Header { tensors, metadata: metadata.unwrap_or_default() })
}

/// A tensor with its range relative to the data; `begin <= end`.
struct HeaderEntry {
    meta: WeightMeta,
    begin: u64,
    end: u64,
}

fn read_metadata(reader: &mut JsonReader<'_>) -> Result<Vec<(String, String)>, JsonError> {
    let mut entries = Vec::new();
    let mut keys = HashSet::new();
    reader.object(|reader, key, offset| {
        if !keys.insert(key.clone()) {
            return Err(reader.error_at(offset, JsonProblem::DuplicateKey(key)));
        }
        let value = reader.string()?;
        entries.push((key, value));
        Ok(())
    })?;
    Ok(entries)
}

fn read_entry(reader: &mut JsonReader<'_>, name: String) -> Result<HeaderEntry, HeaderError> {
    let mut dtype: Option<String> = None;
    let mut dims: Option<Vec<u64>> = None;
    let mut offsets: Option<Vec<u64>> = None;
    reader.object(|reader, key, _| {
        let (field, twice) = match key.as_str() {
            "dtype" => ("dtype", dtype.replace(reader.string()?).is_some()),
            "shape" => ("shape", dims.replace(read_unsigned(reader)?).is_some()),
            "data_offsets" => ("data_offsets", offsets.replace(read_unsigned(reader)?).is_some()),
            // Later releases of the format may add fields.
            _ => return reader.value().map(drop).map_err(HeaderError::from),
        };
        if twice { Err(HeaderError::FieldTwice { name: name.clone(), field }) } else { Ok(()) }
    })?;
    let missing = |field| HeaderError::FieldMissing { name: name.clone(), field };
    let dtype = dtype.ok_or_else(|| missing("dtype"))?;
    let dims = dims.ok_or_else(|| missing("shape"))?;
    let offsets = offsets.ok_or_else(|| missing("data_offsets"))?;
    let &[begin, end] = offsets.as_slice() else {
        return Err(HeaderError::OffsetCount { name, found: offsets.len() });
    };
    let Some(ty) = ElementType::from_name(&dtype) else {
        return Err(HeaderError::Dtype { name, dtype });
    };
    let sized = Shape::new(dims.clone())
        .and_then(|shape| shape.n_elems().checked_mul(u64::from(ty.bits())).map(|bits| (shape, bits)));
    let Some((shape, bits)) = sized else {
        return Err(HeaderError::ShapeOverflow { name, dims });
    };
    if bits % 8 != 0 {
        return Err(HeaderError::Ragged { name, bits });
    }
    let Some(found) = end.checked_sub(begin) else {
        return Err(HeaderError::Reversed { name, begin, end });
    };
    if found != bits / 8 {
        return Err(HeaderError::Size { name, dtype: ty, shape, expected: bits / 8, found });
    }
    Ok(HeaderEntry { meta: WeightMeta { name, shape, ty }, begin, end })
}

fn read_unsigned(reader: &mut JsonReader<'_>) -> Result<Vec<u64>, JsonError> {
    let mut numbers = Vec::new();
    reader.array(|reader| {
        numbers.push(reader.unsigned()?);
        Ok::<_, JsonError>(())
    })?;
    Ok(numbers)
}

/// Checks that the ranges cover the data exactly.
///
/// The header, which ends at `data`, is known to fit into the file.
fn check_cover(entries: &[HeaderEntry], data: u64, file_len: u64) -> Result<(), HeaderError> {
    let data_len = file_len - data;
    let mut by_range: Vec<&HeaderEntry> = entries.iter().collect();
    by_range.sort_by_key(|e| (e.begin, e.end));
    let mut end = 0;
    let mut other = "";
    for entry in by_range {
        let name = &entry.meta.name;
        if entry.begin < end {
            let (name, other) = (name.clone(), other.to_owned());
            return Err(HeaderError::Overlap { name, begin: entry.begin, other, end });
        }
        if entry.end > data_len {
            let end = data.saturating_add(entry.end);
            let whole = entries.iter().map(|e| data.saturating_add(e.end)).max().unwrap_or(end);
            return Err(HeaderError::DataTruncated { name: name.clone(), end, present: file_len, whole });
        }
        if entry.begin > end {
            return Err(HeaderError::Gap { offset: data + end, n_bytes: entry.begin - end });
        }
        (end, other) = (entry.end, name.as_str());
    }
    if end < data_len {
        return Err(HeaderError::Gap { offset: data + end, n_bytes: data_len - end });
    }
    Ok(())
}

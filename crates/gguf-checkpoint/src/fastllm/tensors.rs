//! The tensors of a file: names, shapes, and byte ranges of the payloads.

use std::collections::HashSet;
use std::ops::Range;

use crate::fastllm::error::{FlmError, FlmSection};
use crate::fastllm::reader::FlmReader;
use gguf_core::limits::Limits;
use gguf_core::{ElementType, Shape};

/// Maximum number of dimensions; models have up to four.
const MAX_RANK: usize = 8;

/// One tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlmTensor {
    /// Name in the checkpoint.
    pub name: String,
    /// Shape, outermost first.
    pub shape: Shape,
    /// Data of the tensor.
    pub payload: Payload,
}

/// Mapping from integer codes to values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// Data type 3: 8 bits, `scale · (code - zero)`.
    Int8,
    /// Data type 4: 4 bits, `scale · (code - zero)`.
    Int4,
    /// Data type 8: 4 bits, `minimum + scale · code`, one range per row.
    Int4NoZero,
    /// Data type 9: as `Int4NoZero`, with one range per group of columns.
    Int4Group,
}

impl Coding {
    /// Returns the number of bits per code.
    pub fn bits(self) -> u32 {
        if self == Self::Int8 { 8 } else { 4 }
    }

    /// Returns FastLLM's name of the coding.
    pub fn name(self) -> &'static str {
        match self {
            Self::Int8 => "INT8",
            Self::Int4 => "INT4",
            Self::Int4NoZero => "INT4_NOZERO",
            Self::Int4Group => "INT4_GROUP",
        }
    }
}

/// Layout of the value ranges: an element uses range `element / cols · n_groups + element % cols / group_cols`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranges {
    /// Number of ranges.
    pub n: u64,
    /// Elements per row.
    pub cols: u64,
    /// Groups per row.
    pub n_groups: u64,
    /// Elements per group; the last group of a row may be shorter.
    pub group_cols: u64,
}

/// The data of a tensor, as byte ranges of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Floating-point elements.
    Plain {
        /// Element type.
        ty: ElementType,
        /// Byte range in the file.
        bytes: Range<usize>,
    },
    /// Integer codes. 4-bit codes are packed over the whole tensor: element 2i is the upper half of byte i.
    Codes {
        /// Mapping from codes to values.
        coding: Coding,
        /// Byte range in the file.
        codes: Range<usize>,
        /// Layout of the value ranges.
        ranges: Ranges,
        /// Byte range of the alternating minima and maxima, as F32.
        range_bytes: Range<usize>,
    },
}

/// Reads all tensors; the file must end after the last.
pub(super) fn read(reader: &mut FlmReader<'_>, limits: &Limits) -> Result<Vec<FlmTensor>, FlmError> {
    let count = reader.count("tensor count", 4)?;
    if count > limits.n_tensors {
        return Err(FlmError::TooManyTensors { found: count, limit: limits.n_tensors });
    }
    let mut tensors = Vec::new();
    let mut names = HashSet::new();
    for _ in 0..count {
        reader.section = FlmSection::Tensors;
        let tensor = tensor(reader)?;
        if !names.insert(tensor.name.clone()) {
            return Err(FlmError::DuplicateTensor { name: tensor.name });
        }
        tensors.push(tensor);
    }
    match reader.cursor.left() {
        0 => Ok(tensors),
        n_bytes => Err(FlmError::Trailing { offset: reader.cursor.offset(), n_bytes }),
    }
}

fn tensor(reader: &mut FlmReader<'_>) -> Result<FlmTensor, FlmError> {
    let offset = reader.cursor.offset();
    let name = reader.text()?;
    if name.is_empty() || name.contains('\0') {
        return Err(FlmError::Name { offset, name });
    }
    let rank = reader.int()?;
    if !usize::try_from(rank).is_ok_and(|rank| rank <= MAX_RANK) {
        return Err(FlmError::Rank { name, found: rank, limit: MAX_RANK });
    }
    let mut dims = Vec::new();
    for _ in 0..rank {
        let found = reader.int()?;
        dims.push(u64::try_from(found).map_err(|_| FlmError::Dimension { name: name.clone(), found })?);
    }
    let found = reader.int()?;
    let Some(shape) = Shape::new(dims.clone()) else { return Err(FlmError::Overflow { name, dims }) };
    reader.section = FlmSection::TensorData;
    let payload = match found {
        0 => plain(reader, &name, &shape, ElementType::F32),
        1 => plain(reader, &name, &shape, ElementType::Bf16),
        7 => plain(reader, &name, &shape, ElementType::F16),
        3 => codes(reader, &name, &shape, Coding::Int8),
        4 => codes(reader, &name, &shape, Coding::Int4),
        8 => codes(reader, &name, &shape, Coding::Int4NoZero),
        9 => codes(reader, &name, &shape, Coding::Int4Group),
        _ => return Err(FlmError::DataType { name, found }),
    };
    Ok(FlmTensor { payload: payload?, name, shape })
}

/// Consumes `n` units of `unit_bits` bits, rounded up to whole bytes, and returns their byte range.
fn take(reader: &mut FlmReader<'_>, name: &str, n: u64, unit_bits: u64) -> Result<Range<usize>, FlmError> {
    let (start, left) = (reader.cursor.offset(), reader.cursor.left());
    let wanted = n.checked_mul(unit_bits).map_or(u64::MAX, |bits| bits.div_ceil(8));
    let truncated = || FlmError::DataTruncated { name: name.to_owned(), wanted, left };
    let taken = reader.cursor.take(wanted).map_err(|_| truncated())?;
    let start = usize::try_from(start).map_err(|_| truncated())?;
    Ok(start..start + taken.len())
}

fn plain(
    reader: &mut FlmReader<'_>,
    name: &str,
    shape: &Shape,
    ty: ElementType,
) -> Result<Payload, FlmError> {
    let bytes = take(reader, name, shape.n_elems(), u64::from(ty.bits()))?;
    Ok(Payload::Plain { ty, bytes })
}

fn codes(reader: &mut FlmReader<'_>, name: &str, shape: &Shape, coding: Coding) -> Result<Payload, FlmError> {
    let axis = reader.int()?;
    let n = shape.n_elems();
    let is_grouped = coding == Coding::Int4Group;
    let rows = match (axis, shape.dims().first()) {
        (0, Some(&rows)) => rows,
        (-1, _) if !is_grouped => 1,
        _ => return Err(FlmError::Axis { name: name.to_owned(), found: axis }),
    };
    // `rows` divides the number of elements: it is the first dimension, or 1.
    let cols = n.checked_div(rows).unwrap_or(0);
    let mut ranges = Ranges { n: rows, cols, n_groups: 1, group_cols: cols };
    if is_grouped {
        let (n_groups, group_cols) = (reader.int()?, reader.int()?);
        let mismatch = || FlmError::Groups { name: name.to_owned(), n_groups, group_cols, cols };
        let groups = u64::try_from(n_groups).map_err(|_| mismatch())?;
        let width = u64::try_from(group_cols).ok().filter(|&width| width > 0).ok_or_else(mismatch)?;
        if cols.div_ceil(width) != groups {
            return Err(mismatch());
        }
        let n = rows.checked_mul(groups).ok_or_else(mismatch)?;
        ranges = Ranges { n, cols, n_groups: groups, group_cols: width };
    }
    let range_bytes = take(reader, name, ranges.n, 64)?;
    let codes = take(reader, name, n, u64::from(coding.bits()))?;
    Ok(Payload::Codes { coding, codes, ranges, range_bytes })
}

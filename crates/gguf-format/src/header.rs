//! Header of a GGUF file: a pure parser of untrusted bytes.

use std::collections::{BTreeMap, HashSet};

use crate::error::{HeaderError, HeaderItem};
use crate::foreign::{DeclaredTensor, foreign_type};
use crate::tensor_limits::TensorLimits;
use crate::{Array, Metadata, Value, ValueType};
use gguf_core::bytes::{Cursor, Endian, Truncated};
use gguf_core::limits::Limits;
use gguf_core::{GgmlType, Shape, TensorMeta};

/// Key of the alignment of tensor data.
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";
/// Alignment of tensor data if the file declares none.
pub(crate) const DEFAULT_ALIGNMENT: u64 = 32;
/// Maximum number of dimensions of a tensor of another program.
const MAX_FOREIGN_DIMS: u32 = 8;

/// Handling of violations that llama.cpp accepts: tensors with a dimension of zero or an empty name, bools other than 0
/// and 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Strictness {
    /// Accepts them like llama.cpp, and lists them in [`Header::tolerated`].
    #[default]
    LlamaCpp,
    /// Refuses the file.
    Format,
    /// Like `LlamaCpp`; in addition, reads tensors that llama.cpp's format does not cover as bytes, and lists their
    /// declared shapes and types in [`Header::declared`].
    Foreign,
}

/// Contents of the bytes before the tensor data.
#[derive(Clone, Debug)]
pub struct Header {
    /// Version of the format, 2 or 3; both have the same layout.
    pub version: u32,
    /// Byte order of the whole file.
    pub endian: Endian,
    /// Keys and values, in file order.
    pub metadata: Metadata,
    /// Tensors, in file order.
    pub tensors: Vec<TensorMeta>,
    /// Absolute byte offset of each tensor's data.
    pub offsets: Vec<u64>,
    /// Alignment of tensor data in bytes.
    pub alignment: u64,
    /// Size of the header in bytes, without the padding that follows.
    pub header_bytes: u64,
    /// Absolute byte offset of the tensor data; the end of the header in a file without tensors.
    pub data_offset: u64,
    /// Absolute byte offset of the end of the last tensor, without the padding that follows.
    pub data_end: u64,
    /// Violations that [`Strictness::LlamaCpp`] accepted (at most the first 100).
    pub tolerated: Vec<HeaderError>,
    /// Tensors that are read as bytes ([`Strictness::Foreign`]), by index.
    pub declared: BTreeMap<usize, DeclaredTensor>,
}

impl Header {
    /// Returns [`Header::data_end`] with the padding that usually follows the last tensor (or the header, without
    /// tensors).
    pub fn padded_end(&self) -> u64 {
        self.data_end.checked_next_multiple_of(self.alignment).unwrap_or(u64::MAX)
    }
}

/// Parses the header of a file. `bytes` is the whole file, against which lengths and offsets are checked.
///
/// # Errors
/// The first rule of the format that the bytes violate, with its absolute offset.
pub fn parse_header(bytes: &[u8], limits: &Limits, strictness: Strictness) -> Result<Header, HeaderError> {
    parse_head(bytes, 0, limits, strictness)
}

/// Parses the header from the first bytes of a file with `beyond` more bytes. If they end within the header, the error
/// is that of a truncated file.
pub fn parse_head(
    bytes: &[u8],
    beyond: u64,
    limits: &Limits,
    strictness: Strictness,
) -> Result<Header, HeaderError> {
    let cursor = Cursor::new(bytes, Endian::Little);
    let tensor_limits = TensorLimits::LLAMA_CPP;
    HeaderParser { cursor, beyond, limits, tensor_limits, strictness, tolerated: Vec::new() }.header()
}

struct HeaderParser<'a> {
    cursor: Cursor<'a>,
    /// Number of bytes of the file after those of the cursor.
    beyond: u64,
    limits: &'a Limits,
    /// Limits on tensors, which follow from the keys.
    tensor_limits: TensorLimits,
    strictness: Strictness,
    tolerated: Vec<HeaderError>,
}

/// Adds the item being read to the error of a read past the end.
trait WithItem<T> {
    fn with_item(self, item: impl FnOnce() -> HeaderItem) -> Result<T, HeaderError>;
}

impl<T> WithItem<T> for Result<T, Truncated> {
    fn with_item(self, item: impl FnOnce() -> HeaderItem) -> Result<T, HeaderError> {
        self.map_err(|at| HeaderError::Truncated { item: item(), at })
    }
}

impl<'a> HeaderParser<'a> {
    fn header(mut self) -> Result<Header, HeaderError> {
        let version = self.version()?;
        let endian = self.cursor.endian();
        let (n_tensors, tensors_at) = self.count("tensor count")?;
        let (n_keys, keys_at) = self.count("key count")?;
        // The smallest key: length, one character, type, one byte. The smallest tensor: no name, no dimensions.
        self.check_count("tensors", n_tensors, tensors_at, 24, self.limits.n_tensors)?;
        self.check_count("keys", n_keys, keys_at, 14, self.limits.n_keys)?;

        let mut metadata = Metadata::new();
        let mut alignment = DEFAULT_ALIGNMENT;
        for index in 0..n_keys {
            let at = self.cursor.offset();
            let key = self.key(index)?;
            if metadata.contains(&key) {
                return Err(HeaderError::KeyTwice { offset: at, key });
            }
            let at = self.cursor.offset();
            let value = self.value(&key)?;
            if key == ALIGNMENT_KEY {
                alignment = check_alignment(&value, at)?;
            }
            metadata.set(key, value);
        }
        if self.strictness != Strictness::Format {
            self.tensor_limits = TensorLimits::of(&metadata);
        }

        let mut tensors: Vec<TensorMeta> = Vec::new();
        let mut rel_offsets: Vec<u64> = Vec::new();
        let mut names = HashSet::new();
        let mut declared = BTreeMap::new();
        let mut next = 0u64;
        for index in 0..n_tensors {
            let open = tensors.len().checked_sub(1).filter(|last| declared.contains_key(last));
            let at = self.cursor.offset();
            let expected =
                if open.is_some() { ExpectedOffset::AtLeast(next) } else { ExpectedOffset::Exactly(next) };
            let (meta, rel_offset) = match self.tensor(index, &mut names, expected, alignment)? {
                ParsedTensor::Known(meta, rel_offset) => (meta, rel_offset),
                ParsedTensor::Foreign(name, found, rel_offset) => {
                    if rel_offset < next {
                        let (tensor, expected) = (name, next);
                        return Err(HeaderError::Overlap { offset: at, tensor, found: rel_offset, expected });
                    }
                    declared.insert(tensors.len(), found);
                    (bytes_of(at, name, 0)?, rel_offset)
                }
            };
            if let Some(last) = open {
                // The end of a foreign tensor is the start of the next one.
                let name = std::mem::take(&mut tensors[last].name);
                tensors[last] = bytes_of(at, name, rel_offset - rel_offsets[last])?;
            }
            if open.is_some() || declared.contains_key(&tensors.len()) {
                next = rel_offset;
            }
            let n_bytes = meta.n_bytes().unwrap_or(u64::MAX);
            next = next
                .checked_add(n_bytes)
                .and_then(|end| end.checked_next_multiple_of(alignment))
                .ok_or_else(|| HeaderError::DataBytes {
                    offset: self.cursor.offset(),
                    tensor: meta.name.clone(),
                    alignment,
                })?;
            tensors.push(meta);
            rel_offsets.push(rel_offset);
        }

        let header_bytes = self.cursor.offset();
        let file_bytes = header_bytes + self.cursor.left() + self.beyond;
        let data_offset =
            if tensors.is_empty() { header_bytes } else { header_bytes.next_multiple_of(alignment) };
        if data_offset > file_bytes {
            return Err(HeaderError::DataStart { offset: header_bytes, data_offset, file_bytes });
        }
        if let Some(last) = tensors.len().checked_sub(1).filter(|last| declared.contains_key(last)) {
            let left = file_bytes - data_offset;
            let n_bytes = left.checked_sub(rel_offsets[last]).ok_or_else(|| HeaderError::DataEnd {
                offset: data_offset.saturating_add(rel_offsets[last]),
                tensor: tensors[last].name.clone(),
                n_bytes: 0,
                file_bytes,
                whole: data_offset.saturating_add(rel_offsets[last]),
            })?;
            let name = std::mem::take(&mut tensors[last].name);
            tensors[last] = bytes_of(header_bytes, name, n_bytes)?;
        }
        let mut offsets = Vec::with_capacity(tensors.len());
        let mut data_end = data_offset;
        for (meta, rel_offset) in tensors.iter().zip(rel_offsets.iter().copied()) {
            let n_bytes = meta.n_bytes().unwrap_or(u64::MAX);
            let offset = data_offset.saturating_add(rel_offset);
            data_end = offset.saturating_add(n_bytes);
            if data_end > file_bytes {
                let tensor = meta.name.clone();
                let last = tensors.len() - 1;
                let whole = tensors[last].n_bytes().unwrap_or(u64::MAX);
                let whole = data_offset.saturating_add(rel_offsets[last]).saturating_add(whole);
                return Err(HeaderError::DataEnd { offset, tensor, n_bytes, file_bytes, whole });
            }
            offsets.push(offset);
        }
        let tolerated = self.tolerated;
        Ok(Header {
            version,
            endian,
            metadata,
            tensors,
            offsets,
            alignment,
            header_bytes,
            data_offset,
            data_end,
            tolerated,
            declared,
        })
    }

    /// Reads magic and version, and sets the cursor to the byte order of the file.
    fn version(&mut self) -> Result<u32, HeaderError> {
        let magic = self.cursor.take(4).with_item(|| HeaderItem::Field("magic"))?;
        match magic {
            b"GGUF" => {}
            b"FUGG" => return Err(HeaderError::MagicSwapped),
            _ => return Err(HeaderError::Magic { found: magic.to_vec() }),
        }
        let mut version = self.cursor.u32().with_item(|| HeaderItem::Field("version"))?;
        // A small number with an empty low half was written in the other byte order.
        let big = version != 0 && version.trailing_zeros() >= 16;
        if big {
            version = version.swap_bytes();
            self.cursor.set_endian(Endian::Big);
        }
        match version {
            2 | 3 => Ok(version),
            found => Err(HeaderError::Version { found, big }),
        }
    }

    fn count(&mut self, what: &'static str) -> Result<(u64, u64), HeaderError> {
        let offset = self.cursor.offset();
        Ok((self.cursor.u64().with_item(|| HeaderItem::Field(what))?, offset))
    }

    fn check_count(
        &self,
        what: &'static str,
        found: u64,
        offset: u64,
        min_bytes: u64,
        limit: u64,
    ) -> Result<(), HeaderError> {
        let left = self.cursor.left();
        let most = (left / min_bytes).min(limit);
        if found > most { Err(HeaderError::Count { offset, what, found, most, left }) } else { Ok(()) }
    }

    fn tolerate(&mut self, error: HeaderError) -> Result<(), HeaderError> {
        match self.strictness {
            Strictness::Format => Err(error),
            Strictness::LlamaCpp | Strictness::Foreign => {
                if self.tolerated.len() < 100 {
                    self.tolerated.push(error);
                }
                Ok(())
            }
        }
    }

    fn string(&mut self, item: impl Fn() -> HeaderItem) -> Result<&'a [u8], HeaderError> {
        let n_bytes = self.cursor.u64().with_item(&item)?;
        self.cursor.take(n_bytes).with_item(item)
    }

    fn key(&mut self, index: u64) -> Result<String, HeaderError> {
        let offset = self.cursor.offset();
        let bytes = self.string(|| HeaderItem::Key(index))?;
        if bytes.is_empty() {
            return Err(HeaderError::KeyEmpty { offset, index });
        }
        String::from_utf8(bytes.to_vec()).map_err(|error| HeaderError::KeyNotUtf8 {
            offset,
            index,
            found: error.into_bytes(),
        })
    }

    fn value(&mut self, key: &str) -> Result<Value, HeaderError> {
        let offset = self.cursor.offset();
        let item = || HeaderItem::Value(key.to_owned());
        let id = self.cursor.u32().with_item(item)?;
        let ty = ValueType::from_id(id).ok_or_else(|| HeaderError::ValueType {
            offset,
            key: key.to_owned(),
            found: id as i32,
        })?;
        Ok(match ty {
            ValueType::U8 => Value::U8(self.cursor.u8().with_item(item)?),
            ValueType::I8 => Value::I8(self.cursor.i8().with_item(item)?),
            ValueType::U16 => Value::U16(self.cursor.u16().with_item(item)?),
            ValueType::I16 => Value::I16(self.cursor.i16().with_item(item)?),
            ValueType::U32 => Value::U32(self.cursor.u32().with_item(item)?),
            ValueType::I32 => Value::I32(self.cursor.i32().with_item(item)?),
            ValueType::F32 => Value::F32(self.cursor.f32().with_item(item)?),
            ValueType::Bool => Value::Bool(self.bool(key)?),
            ValueType::String => Value::String(self.string(item)?.to_vec()),
            ValueType::Array => Value::Array(self.array(key, 1)?),
            ValueType::U64 => Value::U64(self.cursor.u64().with_item(item)?),
            ValueType::I64 => Value::I64(self.cursor.i64().with_item(item)?),
            ValueType::F64 => Value::F64(self.cursor.f64().with_item(item)?),
        })
    }

    fn bool(&mut self, key: &str) -> Result<bool, HeaderError> {
        let offset = self.cursor.offset();
        let found = self.cursor.u8().with_item(|| HeaderItem::Value(key.to_owned()))?;
        if found > 1 {
            self.tolerate(HeaderError::Bool { offset, key: key.to_owned(), found })?;
        }
        Ok(found != 0)
    }

    fn array(&mut self, key: &str, depth: usize) -> Result<Array, HeaderError> {
        let item = || HeaderItem::Value(key.to_owned());
        let offset = self.cursor.offset();
        if depth > self.limits.depth {
            let limit = self.limits.depth;
            return Err(HeaderError::ArrayDepth { offset, key: key.to_owned(), limit });
        }
        let id = self.cursor.u32().with_item(item)?;
        let ty = ValueType::from_id(id).ok_or_else(|| HeaderError::ElementType {
            offset,
            key: key.to_owned(),
            found: id as i32,
        })?;
        let offset = self.cursor.offset();
        let n_elems = self.cursor.u64().with_item(item)?;
        let left = self.cursor.left();
        let fits = usize::try_from(n_elems).ok().filter(|_| n_elems <= left / ty.min_bytes());
        let Some(n) = fits else {
            return Err(HeaderError::ArrayLength { offset, key: key.to_owned(), n_elems, ty, left });
        };
        // The closures differ in type, so a macro collects: `n` elements, each checked against the end.
        macro_rules! collect {
            ($variant:ident, $read:expr) => {{
                let mut elems = Vec::with_capacity(n);
                for _ in 0..n {
                    elems.push($read);
                }
                Array::$variant(elems)
            }};
        }
        Ok(match ty {
            ValueType::U8 => Array::U8(self.cursor.take(n_elems).with_item(item)?.to_vec()),
            ValueType::I8 => collect!(I8, self.cursor.i8().with_item(item)?),
            ValueType::U16 => collect!(U16, self.cursor.u16().with_item(item)?),
            ValueType::I16 => collect!(I16, self.cursor.i16().with_item(item)?),
            ValueType::U32 => collect!(U32, self.cursor.u32().with_item(item)?),
            ValueType::I32 => collect!(I32, self.cursor.i32().with_item(item)?),
            ValueType::F32 => collect!(F32, self.cursor.f32().with_item(item)?),
            ValueType::Bool => collect!(Bool, self.bool(key)?),
            ValueType::String => collect!(String, self.string(item)?.to_vec()),
            ValueType::Array => collect!(Array, self.array(key, depth + 1)?),
            ValueType::U64 => collect!(U64, self.cursor.u64().with_item(item)?),
            ValueType::I64 => collect!(I64, self.cursor.i64().with_item(item)?),
            ValueType::F64 => collect!(F64, self.cursor.f64().with_item(item)?),
        })
    }

    fn tensor(
        &mut self,
        index: u64,
        names: &mut HashSet<String>,
        expected: ExpectedOffset,
        alignment: u64,
    ) -> Result<ParsedTensor, HeaderError> {
        let name = self.tensor_name(index, names)?;
        let is_long = name.len() as u64 > self.tensor_limits.name_bytes;
        let dims = self.dims(&name)?;
        let tensor = || name.clone();
        let item = || HeaderItem::Tensor(name.clone());

        let offset = self.cursor.offset();
        let id = self.cursor.u32().with_item(item)?;
        let known =
            GgmlType::from_id(id).ok_or_else(|| match (foreign_type(id), GgmlType::removed_name(id)) {
                (Some(_), _) => HeaderError::ForeignType { offset, tensor: tensor(), found: id },
                (None, Some(removed)) => {
                    HeaderError::TensorTypeRemoved { offset, tensor: tensor(), found: id, name: removed }
                }
                (None, None) => HeaderError::TensorType { offset, tensor: tensor(), found: id as i32 },
            });
        let rank_offset = offset.saturating_sub(8 * dims.len() as u64 + 4);
        let outermost_first: Vec<u64> = dims.iter().rev().copied().collect();
        let is_foreign = self.strictness == Strictness::Foreign
            && (known.is_err() || is_long || dims.len() > self.tensor_limits.dims as usize);
        if is_foreign {
            let found = self.rel_offset(&name, alignment)?;
            return Ok(ParsedTensor::Foreign(
                name,
                DeclaredTensor { dims: outermost_first, type_id: id },
                found,
            ));
        }
        let ty = known?;
        let shape = Shape::new(outermost_first).ok_or_else(|| HeaderError::Elements {
            offset: rank_offset,
            tensor: tensor(),
            dims,
        })?;
        let n_cols = shape.n_cols();
        if !n_cols.is_multiple_of(ty.block_elems() as u64) {
            return Err(HeaderError::Row { offset, tensor: tensor(), n_cols, ty });
        }
        let n_elems = shape.n_elems();
        let meta = TensorMeta { name: tensor(), shape, ty };
        if meta.n_bytes().is_none() {
            return Err(HeaderError::TensorBytes { offset, tensor: tensor(), n_elems, ty });
        }

        let offset = self.cursor.offset();
        let found = self.rel_offset(&name, alignment)?;
        match expected {
            ExpectedOffset::Exactly(expected) | ExpectedOffset::AtLeast(expected) if found < expected => {
                Err(HeaderError::Overlap { offset, tensor: tensor(), found, expected })
            }
            ExpectedOffset::Exactly(expected) if found > expected => {
                Err(HeaderError::Gap { offset, tensor: tensor(), found, expected })
            }
            _ => Ok(ParsedTensor::Known(meta, found)),
        }
    }

    /// Reads the offset of a tensor's data relative to the start of all data.
    fn rel_offset(&mut self, name: &str, alignment: u64) -> Result<u64, HeaderError> {
        let offset = self.cursor.offset();
        let found = self.cursor.u64().with_item(|| HeaderItem::Tensor(name.to_owned()))?;
        if !found.is_multiple_of(alignment) {
            return Err(HeaderError::Unaligned { offset, tensor: name.to_owned(), found, alignment });
        }
        Ok(found)
    }

    fn tensor_name(&mut self, index: u64, names: &mut HashSet<String>) -> Result<String, HeaderError> {
        let offset = self.cursor.offset();
        let bytes = self.string(|| HeaderItem::TensorName(index))?;
        let found = bytes.len() as u64;
        let most = self.tensor_limits.name_bytes;
        if found > most && self.strictness != Strictness::Foreign {
            return Err(HeaderError::TensorNameLength { offset, index, found, most });
        }
        let name = String::from_utf8(bytes.to_vec()).map_err(|error| HeaderError::TensorNameNotUtf8 {
            offset,
            index,
            found: error.into_bytes(),
        })?;
        if name.is_empty() {
            self.tolerate(HeaderError::TensorNameEmpty { offset, index })?;
        }
        if !names.insert(name.clone()) {
            return Err(HeaderError::TensorTwice { offset, tensor: name });
        }
        Ok(name)
    }

    /// Reads rank and dimensions, innermost first as in the file.
    fn dims(&mut self, name: &str) -> Result<Vec<u64>, HeaderError> {
        let tensor = || name.to_owned();
        let item = || HeaderItem::Tensor(name.to_owned());
        let rank_offset = self.cursor.offset();
        let rank = self.cursor.u32().with_item(item)?;
        let most =
            if self.strictness == Strictness::Foreign { MAX_FOREIGN_DIMS } else { self.tensor_limits.dims };
        if rank > most {
            return Err(HeaderError::Rank { offset: rank_offset, tensor: tensor(), found: rank, most });
        }
        let mut dims = Vec::with_capacity(rank as usize);
        for dim in 0..rank as usize {
            let offset = self.cursor.offset();
            let found = self.cursor.i64().with_item(item)?;
            let Ok(size) = u64::try_from(found) else {
                return Err(HeaderError::DimensionNegative { offset, tensor: tensor(), dim, found });
            };
            if size == 0 {
                self.tolerate(HeaderError::DimensionZero { offset, tensor: tensor(), dim })?;
            }
            dims.push(size);
        }
        Ok(dims)
    }
}

/// Offset at which the data of a tensor is expected, relative to the start of all data.
#[derive(Clone, Copy)]
enum ExpectedOffset {
    Exactly(u64),
    AtLeast(u64),
}

/// A listed tensor with the offset of its data.
enum ParsedTensor {
    Known(TensorMeta, u64),
    /// A tensor read as bytes: its name, and its declared shape and type.
    Foreign(String, DeclaredTensor, u64),
}

/// Describes bytes of unknown type.
fn bytes_of(offset: u64, name: String, n_bytes: u64) -> Result<TensorMeta, HeaderError> {
    match Shape::new(vec![n_bytes]) {
        Some(shape) => Ok(TensorMeta { name, shape, ty: GgmlType::I8 }),
        None => Err(HeaderError::Elements { offset, tensor: name, dims: vec![n_bytes] }),
    }
}

fn check_alignment(value: &Value, offset: u64) -> Result<u64, HeaderError> {
    match *value {
        Value::U32(found) if found.is_power_of_two() => Ok(found.into()),
        Value::U32(found) => Err(HeaderError::Alignment { offset, found }),
        ref other => Err(HeaderError::AlignmentType { offset, found: other.value_type() }),
    }
}

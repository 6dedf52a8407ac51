//! GGUF models opened for reading: all parts of a split model appear as one file.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::endian::swap_blocks;
use crate::error::{GgufError, HeaderError};
use crate::header::Strictness;
use crate::part::{Contents, OpenOptions, Part, open_part};
use crate::plan::LayoutOptions;
use crate::split_id::split_id;
use crate::split_keys::{SPLIT_COUNT, SPLIT_ID, SPLIT_NO, SPLIT_TENSORS};
use crate::{DeclaredTensor, Metadata, TensorDescriptor, TensorLimits, Value, split};
use gguf_core::bytes::Endian;
use gguf_core::{SourceError, TensorMeta, TensorSource, ranged};

/// Minimum size of a read that is announced to the system, which then fetches ahead instead of page by page.
const ANNOUNCED_BYTES: u64 = 256 << 10;
/// Position of a tensor's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorPlace {
    /// Index of the part.
    pub part: usize,
    /// Absolute byte offset in the part's file.
    pub offset: u64,
    /// Size in bytes.
    pub n_bytes: u64,
}

/// An open GGUF model: one file, or all parts of a split one.
///
/// Files are mapped, except those on a server ([`ranged`]) and those that do not fit ([`OpenOptions::may_read`]). A
/// header is checked as a whole when it is opened, so tensor ranges are inside the files. If another process truncates
/// a file afterwards, the program stops (see [`gguf_core::mmap::MappedFile`]).
#[derive(Debug)]
pub struct GgufFile {
    parts: Vec<Part>,
    tensors: Vec<TensorMeta>,
    places: Vec<TensorPlace>,
    index: HashMap<String, usize>,
}

impl GgufFile {
    /// Opens a model with all its parts, as llama.cpp would.
    ///
    /// # Errors
    /// I/O errors, headers that violate the format, parts that do not fit together; each names the file.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        Self::open_with(path, &OpenOptions::default())
    }

    /// Opens a file that may be another program's ([`OpenOptions::foreign`]).
    pub fn open_foreign(path: &Path) -> Result<Self, GgufError> {
        Self::open_with(path, &OpenOptions::foreign())
    }

    /// Opens a model with the given options.
    pub fn open_with(path: &Path, options: &OpenOptions) -> Result<Self, GgufError> {
        let first = open_part(path, options)?;
        let n_parts = match split_key(&first, SPLIT_COUNT)? {
            Some(n) if options.join_parts => n,
            _ => 0,
        };
        if n_parts > 1 {
            Self::join(open_siblings(first, n_parts, options)?)
        } else {
            Self::join(vec![first])
        }
    }

    fn join(mut parts: Vec<Part>) -> Result<Self, GgufError> {
        let mut tensors = Vec::new();
        let mut places: Vec<TensorPlace> = Vec::new();
        let mut index = HashMap::new();
        for part in 0..parts.len() {
            parts[part].first_tensor = tensors.len();
            let header = &parts[part].header;
            for (meta, &offset) in header.tensors.iter().zip(&header.offsets) {
                if let Some(other) = index.insert(meta.name.clone(), tensors.len()) {
                    return Err(GgufError::PartTensorTwice {
                        path: parts[part].path().to_owned(),
                        tensor: meta.name.clone(),
                        other: parts[places[other].part].path().to_owned(),
                    });
                }
                // The header would have been refused if this overflowed.
                places.push(TensorPlace { part, offset, n_bytes: meta.n_bytes().unwrap_or(0) });
                tensors.push(meta.clone());
            }
        }
        Ok(Self { parts, tensors, places, index })
    }

    /// Keys and values of the (first) file, in file order.
    pub fn metadata(&self) -> &Metadata {
        &self.parts[0].header.metadata
    }

    /// Opened files: one, or all parts in order.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Path of the (first) file.
    pub fn path(&self) -> &Path {
        self.parts[0].path()
    }

    /// Paths of all files, for [`crate::WriteOptions::inputs`].
    pub fn paths(&self) -> Vec<PathBuf> {
        self.parts.iter().map(|part| part.path().to_owned()).collect()
    }

    /// Version of the format in the (first) file.
    pub fn version(&self) -> u32 {
        self.parts[0].header.version
    }

    /// Byte order of the files.
    pub fn endian(&self) -> Endian {
        self.parts[0].header.endian
    }

    /// Alignment of tensor data in the (first) file, in bytes.
    pub fn alignment(&self) -> u64 {
        self.parts[0].header.alignment
    }

    /// Absolute byte offset of the tensor data in the (first) file.
    pub fn data_offset(&self) -> u64 {
        self.parts[0].header.data_offset
    }

    /// Size of all files in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.parts.iter().map(Part::file_bytes).sum()
    }

    /// Size of all tensors in bytes, without padding.
    pub fn tensor_bytes(&self) -> u64 {
        self.places.iter().map(|place| place.n_bytes).sum()
    }

    /// Number of bytes after the last tensor of any part.
    pub fn trailing_bytes(&self) -> u64 {
        self.parts.iter().map(Part::trailing_bytes).sum()
    }

    /// Accepted violations of the format, each with the path of its file.
    pub fn tolerated(&self) -> impl Iterator<Item = (&Path, &HeaderError)> {
        self.parts.iter().flat_map(|part| part.header.tolerated.iter().map(|error| (part.path(), error)))
    }

    /// Index of the tensor with this name.
    pub fn tensor_index(&self, name: &str) -> Option<usize> {
        self.index.get(name).copied()
    }

    /// Declared shape and type of a tensor that llama.cpp's format does not cover and that is read as bytes
    /// ([`Strictness::Foreign`](crate::header::Strictness::Foreign)); `None` for all others.
    pub fn declared(&self, tensor: usize) -> Option<&DeclaredTensor> {
        let part = &self.parts[self.places.get(tensor)?.part];
        part.header.declared.get(&(tensor - part.first_tensor))
    }

    /// Returns the entry of a tensor in the tensor list.
    pub fn entry(&self, tensor: usize) -> TensorDescriptor {
        let meta = &self.tensors[tensor];
        let n_bytes = self.places[tensor].n_bytes;
        match self.declared(tensor) {
            Some(declared) => TensorDescriptor {
                name: meta.name.clone(),
                dims: declared.dims.clone(),
                type_id: declared.type_id,
                n_bytes,
            },
            None => TensorDescriptor {
                name: meta.name.clone(),
                dims: meta.shape.dims().to_vec(),
                type_id: meta.ty.id(),
                n_bytes,
            },
        }
    }

    /// Position of a tensor's data.
    ///
    /// # Panics
    /// If the tensor does not exist.
    pub fn place(&self, tensor: usize) -> TensorPlace {
        self.places[tensor]
    }

    /// Bytes of a tensor as stored in the file: big-endian fields in a big-endian file.
    ///
    /// # Panics
    /// If the tensor does not exist, or the file is not mapped (see [`GgufFile`]).
    pub fn raw_tensor(&self, tensor: usize) -> &[u8] {
        let place = self.places[tensor];
        self.raw(tensor, 0, place.n_bytes)
    }

    /// Layout options with which [`crate::write_gguf`] reproduces the (first) file.
    pub fn layout(&self) -> LayoutOptions {
        let part = &self.parts[0];
        let padded = part.file_bytes() >= part.header.padded_end();
        LayoutOptions {
            version: part.header.version,
            endian: part.header.endian,
            pad_header: padded || !part.header.tensors.is_empty(),
            pad_last: padded,
        }
    }

    /// Returns the bytes `start .. start + n_bytes` of a tensor.
    fn raw(&self, tensor: usize, start: u64, n_bytes: u64) -> &[u8] {
        let place = self.places[tensor];
        let end = start.checked_add(n_bytes).filter(|&end| end <= place.n_bytes);
        assert!(end.is_some(), "bytes {start} + {n_bytes} of a tensor of {}", place.n_bytes);
        let part = &self.parts[place.part];
        let first = place.offset + start;
        if n_bytes >= ANNOUNCED_BYTES
            && let Some(map) = part.contents.mapped()
        {
            map.will_need(first, n_bytes);
        }
        // The header would have been refused if the tensor exceeded the mapping, whose length is a `usize`.
        &part.contents.head()[first as usize..(first + n_bytes) as usize]
    }

    fn row_bytes(&self, tensor: usize) -> u64 {
        // The header would have been refused if rows were not whole blocks.
        self.tensors[tensor].row_bytes().unwrap_or(0)
    }
}

impl TensorSource for GgufFile {
    fn tensors(&self) -> &[TensorMeta] {
        &self.tensors
    }

    fn read_rows(&self, tensor: usize, first_row: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let start = first_row * self.row_bytes(tensor);
        let part = &self.parts[self.places[tensor].part];
        match part.contents {
            Contents::Mapped(_) => out.copy_from_slice(self.raw(tensor, start, out.len() as u64)),
            _ => part.contents.read_at(self.places[tensor].offset + start, out).map_err(|source| {
                let tensor = self.tensors[tensor].name.clone();
                SourceError { tensor, source: Box::new(source) }
            })?,
        }
        if part.header.endian == Endian::Big {
            swap_blocks(self.tensors[tensor].ty, out);
        }
        Ok(())
    }

    fn borrow_rows(&self, tensor: usize, first_row: u64, n_rows: u64) -> Option<&[u8]> {
        let row_bytes = self.row_bytes(tensor);
        let part = &self.parts[self.places[tensor].part];
        match part.header.endian {
            Endian::Little if part.contents.mapped().is_some() => {
                Some(self.raw(tensor, first_row * row_bytes, n_rows * row_bytes))
            }
            _ => None,
        }
    }

    fn release_rows(&self, tensor: usize, first_row: u64, n_rows: u64) {
        let place = self.places[tensor];
        let row_bytes = self.row_bytes(tensor);
        if let Some(map) = self.parts[place.part].contents.mapped() {
            map.release(place.offset + first_row * row_bytes, n_rows * row_bytes);
        }
    }
}

/// Returns the value of a `split.*` key.
fn split_key(part: &Part, key: &'static str) -> Result<Option<u64>, GgufError> {
    let Some(value) = part.header.metadata.get(key) else { return Ok(None) };
    value.as_u64().map(Some).ok_or_else(|| GgufError::SplitKey {
        path: part.path().to_owned(),
        key,
        expected: "a number that is not negative",
        found: match value {
            Value::I8(_) | Value::I16(_) | Value::I32(_) | Value::I64(_) => {
                value.as_i128().unwrap_or_default().to_string()
            }
            other => other.value_type().to_string(),
        },
    })
}

/// Opens the other parts of a split model.
fn open_siblings(opened: Part, n_parts: u64, options: &OpenOptions) -> Result<Vec<Part>, GgufError> {
    let path = opened.path().to_owned();
    if n_parts > options.limits.n_parts as u64 {
        return Err(GgufError::SplitKey {
            path,
            key: SPLIT_COUNT,
            expected: "a number of parts that is possible",
            found: n_parts.to_string(),
        });
    }
    let no = split_key(&opened, SPLIT_NO)?.filter(|&no| no < n_parts).ok_or_else(|| GgufError::SplitKey {
        path: path.clone(),
        key: SPLIT_NO,
        expected: "a part number below `split.count`",
        found: opened
            .header
            .metadata
            .get(SPLIT_NO)
            .and_then(Value::as_u64)
            .map_or_else(|| "none".to_owned(), |no| no.to_string()),
    })?;
    let siblings = split::sibling_paths(&path, no + 1, n_parts).ok_or_else(|| GgufError::PartName {
        path: path.clone(),
        part: no + 1,
        n_parts,
        expected: split::part_suffix(no + 1, n_parts),
        is_joined: opened.trailing_bytes() > 0,
    })?;
    let mut opened = Some(opened);
    let mut parts: Vec<Part> = Vec::new();
    for (index, path) in siblings.iter().enumerate() {
        let part = if index as u64 == no { opened.take() } else { None };
        let part = match part {
            Some(part) => part,
            None if ranged::find(path).is_some() || path.exists() => open_part(path, options)?,
            None => {
                let (part, n_parts) = (index + 1, siblings.len());
                return Err(GgufError::PartMissing { path: path.clone(), part, n_parts });
            }
        };
        check_part(&part, parts.first(), index as u64, n_parts)?;
        if let Some(first) = parts.first() {
            check_set(&part, first)?;
            if options.strictness != Strictness::Foreign {
                check_limits(&part, first)?;
            }
        }
        parts.push(part);
    }
    check_total(&parts)?;
    Ok(parts)
}

/// Checks that a part has the number in its name, and belongs to the same model as the first.
fn check_part(part: &Part, first: Option<&Part>, index: u64, n_parts: u64) -> Result<(), GgufError> {
    let foreign = |what, expected: String, found: String| {
        Err(GgufError::PartForeign { path: part.path().to_owned(), what, expected, found })
    };
    let or_none = |value: Option<u64>| value.map_or_else(|| "none".to_owned(), |n| n.to_string());
    let count = split_key(part, SPLIT_COUNT)?;
    if count != Some(n_parts) {
        return foreign("`split.count`", n_parts.to_string(), or_none(count));
    }
    match split_key(part, SPLIT_NO)? {
        Some(no) if no == index => {}
        Some(no) => {
            return Err(GgufError::PartNumber {
                path: part.path().to_owned(),
                expected: index + 1,
                found: no.saturating_add(1),
            });
        }
        None => return foreign("`split.no`", index.to_string(), or_none(None)),
    }
    let Some(first) = first else { return Ok(()) };
    let (ours, theirs) = (split_key(first, SPLIT_TENSORS)?, split_key(part, SPLIT_TENSORS)?);
    if ours != theirs {
        return foreign("`split.tensors.count`", or_none(ours), or_none(theirs));
    }
    if first.header.endian != part.header.endian {
        let name = |endian| format!("{endian:?}").to_lowercase();
        return foreign("byte order", name(first.header.endian), name(part.header.endian));
    }
    // Later parts have no keys of their own, unless whole files were combined.
    for key in ["general.architecture", "general.name"] {
        let ours = first.header.metadata.get(key).and_then(Value::as_str);
        let theirs = part.header.metadata.get(key).and_then(Value::as_str);
        if let (Some(ours), Some(theirs)) = (ours, theirs)
            && ours != theirs
        {
            let quoted = |text| format!("`{}`", gguf_core::text::escape(text));
            let what = if key.ends_with("name") { "`general.name`" } else { "`general.architecture`" };
            return foreign(what, quoted(ours), quoted(theirs));
        }
    }
    Ok(())
}

/// Checks that a part was written together with the first.
fn check_set(part: &Part, first: &Part) -> Result<(), GgufError> {
    let (found, expected) = (set_of(part)?, set_of(first)?);
    if found == expected {
        return Ok(());
    }
    Err(GgufError::PartSet {
        path: part.path().to_owned(),
        id: found.map(ToOwned::to_owned),
        first: first.path().to_owned(),
        first_id: expected.map(ToOwned::to_owned),
    })
}

/// Checks the tensors of a later part against the limits that follow from the keys of the first.
fn check_limits(part: &Part, first: &Part) -> Result<(), GgufError> {
    let limits = TensorLimits::of(&first.header.metadata);
    match part.header.tensors.iter().find(|tensor| !limits.allow(tensor)) {
        None => Ok(()),
        Some(tensor) => Err(GgufError::PartLimits {
            path: part.path().to_owned(),
            tensor: tensor.name.clone(),
            rank: tensor.shape.rank(),
            limits,
        }),
    }
}

/// Returns the id of the set that a part declares; `None` for files of other tools.
fn set_of(part: &Part) -> Result<Option<&str>, GgufError> {
    let Some(value) = split_id(&part.header.metadata) else { return Ok(None) };
    value.as_str().map(Some).ok_or_else(|| GgufError::SplitKey {
        path: part.path().to_owned(),
        key: SPLIT_ID,
        expected: "a string of UTF-8",
        found: value.value_type().to_string(),
    })
}

fn check_total(parts: &[Part]) -> Result<(), GgufError> {
    let Some(first) = parts.first() else { return Ok(()) };
    let found = parts.iter().map(|part| part.header.tensors.len() as u64).sum();
    match split_key(first, SPLIT_TENSORS)? {
        Some(expected) if expected != found => {
            Err(GgufError::PartTensors { path: first.path().to_owned(), expected, found })
        }
        _ => Ok(()),
    }
}

//! FastLLM's `.flm` container: one file that holds configuration, vocabulary and weights.
//!
//! # Layout
//! Integers are 32-bit signed, floats F32, all little-endian; nothing is aligned or padded. `str` is a length in bytes
//! and the bytes.
//!
//! | field | when |
//! |---|---|
//! | version: 0, 1 or 2 | always |
//! | n, then n × (key `str`, value `str`) | version ≥ 1 |
//! | per adapter: name `str`, n, n × (key `str`, value `str`) | the dictionary has `peft_size` |
//! | n, then n × (length, that many integers of one byte each, id, score) | always; the score with `tokenizer_use_score` = 1 |
//! | n, then n × `str`: special tokens | `tokenizer_has_special_tokens` = 1 |
//! | n, then n × (name `str`, rank, dimensions, type, payload) | always |
//!
//! A payload is plain elements, or axis, value ranges (minimum and maximum per row or group), and integer codes.

mod config;
mod error;
mod header;
mod literal;
mod reader;
mod tensors;

use std::ops::Range;
use std::path::Path;

use crate::{CheckpointError, Container, Part};
use gguf_core::limits::Limits;
use gguf_core::mmap::MappedFile;
use gguf_core::{ElementType, Shape, SourceError, WeightMeta, WeightSource};

pub use error::{FlmError, FlmSection};
pub use header::{Adapter, FlmHeader, FlmToken};
pub use tensors::{Coding, FlmTensor, Payload, Ranges};

/// An open `.flm` file.
///
/// As a [`Container`] it lists two weights for each quantized tensor: the bytes of its codes under the tensor's own
/// name, and its value ranges (`[n, 2]` minima and maxima) under that name with `.ranges`.
#[derive(Debug)]
pub struct FlmFile {
    file: MappedFile,
    name: String,
    header: FlmHeader,
    weights: Vec<WeightMeta>,
    places: Vec<Range<usize>>,
}

impl FlmFile {
    /// Maps a file and reads everything but the payloads.
    ///
    /// # Errors
    /// I/O errors; [`CheckpointError::FastLlm`] with the rule that is broken.
    pub fn open(path: &Path, limits: &Limits) -> Result<Self, CheckpointError> {
        let file = MappedFile::open(path)?;
        let broken = |source| CheckpointError::FastLlm { path: path.to_owned(), source };
        let header = FlmHeader::parse(&file, limits).map_err(broken)?;
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let mut open = Self { file, name, header, weights: Vec::new(), places: Vec::new() };
        for at in 0..open.header.tensors.len() {
            let tensor = &open.header.tensors[at];
            let (name, shape) = (tensor.name.clone(), tensor.shape.clone());
            match tensor.payload.clone() {
                Payload::Plain { ty, bytes } => open.add(name, Some(shape), ty, bytes),
                Payload::Codes { codes, ranges, range_bytes, .. } => {
                    let n_bytes = codes.len() as u64;
                    let ranges = Shape::new(vec![ranges.n, 2]);
                    open.add(format!("{name}.ranges"), ranges, ElementType::F32, range_bytes);
                    open.add(name, Shape::new(vec![n_bytes]), ElementType::U8, codes);
                }
            }
        }
        Ok(open)
    }

    /// Adds one weight.
    ///
    /// Its bytes are inside the file, so its shape always has a size.
    fn add(&mut self, name: String, shape: Option<Shape>, ty: ElementType, bytes: Range<usize>) {
        let Some(shape) = shape else { return };
        self.weights.push(WeightMeta { name, shape, ty });
        self.places.push(bytes);
    }

    /// Path from which the file was opened.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Everything but the payloads.
    pub fn header(&self) -> &FlmHeader {
        &self.header
    }

    /// Bytes of elements `first .. first + n` of a weight.
    fn slice(&self, weight: usize, first: u64, n_bytes: usize) -> Range<usize> {
        let place = &self.places[weight];
        let elem_bytes = self.weights[weight].ty.bytes().unwrap_or(1) as u64;
        let begin = first.checked_mul(elem_bytes).and_then(|begin| usize::try_from(begin).ok());
        match begin.and_then(|begin| Some(begin..begin.checked_add(n_bytes)?)) {
            Some(range) if range.end <= place.len() => place.start + range.start..place.start + range.end,
            _ => panic!("{n_bytes} bytes from element {first} are outside weight {weight}"),
        }
    }
}

impl Container for FlmFile {
    fn format(&self) -> &'static str {
        "FastLLM"
    }

    fn parts(&self) -> Vec<Part<'_>> {
        vec![Part { name: &self.name, metadata: &self.header.dictionary }]
    }

    fn part_of(&self, _: usize) -> &str {
        &self.name
    }
}

impl WeightSource for FlmFile {
    fn weights(&self) -> &[WeightMeta] {
        &self.weights
    }

    fn read_elems(&self, weight: usize, first: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let range = self.slice(weight, first, out.len());
        out.copy_from_slice(&self.file[range.clone()]);
        // A caller that reads in pieces will read the following piece next.
        self.file.will_need(range.end as u64, range.len() as u64);
        Ok(())
    }

    fn borrow(&self, weight: usize) -> Option<&[u8]> {
        Some(&self.file[self.places[weight].clone()])
    }

    fn release_elems(&self, weight: usize, first: u64, n: u64) {
        let elem_bytes = self.weights[weight].ty.bytes().unwrap_or(1) as u64;
        let n_bytes = usize::try_from(n.saturating_mul(elem_bytes)).unwrap_or(usize::MAX);
        let range = self.slice(weight, first, n_bytes);
        self.file.release(range.start as u64, range.len() as u64);
    }
}

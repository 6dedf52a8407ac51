//! Builder of GGUF bytes, with which tests can break any rule, and sources with known data.

use gguf_core::{GgmlType, Shape, SourceError, TensorMeta, TensorSource};
use gguf_format::Metadata;

/// Bytes of a file, composed field by field (little-endian).
#[derive(Clone, Default)]
pub struct Raw(pub Vec<u8>);

impl Raw {
    /// Begins with magic, version 3 and the two counts.
    pub fn header(n_tensors: u64, n_keys: u64) -> Self {
        Self(b"GGUF".to_vec()).u32(3).u64(n_tensors).u64(n_keys)
    }

    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    pub fn u8(self, value: u8) -> Self {
        self.bytes(&[value])
    }

    pub fn u32(self, value: u32) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    pub fn u64(self, value: u64) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    pub fn str(self, text: &[u8]) -> Self {
        self.u64(text.len() as u64).bytes(text)
    }

    /// Appends a tensor entry; dimensions innermost first.
    pub fn tensor(self, name: &[u8], dims: &[u64], ty: u32, offset: u64) -> Self {
        let mut out = self.str(name).u32(dims.len() as u32);
        for &dim in dims {
            out = out.u64(dim);
        }
        out.u32(ty).u64(offset)
    }

    /// Appends zeros up to a multiple of `alignment`, then `n` bytes of data.
    pub fn data(mut self, alignment: usize, n: usize) -> Self {
        self.0.resize(self.0.len().next_multiple_of(alignment), 0);
        self.0.extend((0..n).map(|i| i as u8));
        self
    }
}

pub fn tensor(name: &str, dims: &[u64], ty: GgmlType) -> TensorMeta {
    TensorMeta { name: name.to_owned(), shape: Shape::new(dims.to_vec()).unwrap(), ty }
}

/// Tensors whose bytes are a function of their position, computed when they are read.
pub struct Pattern {
    pub tensors: Vec<TensorMeta>,
    /// Tensor whose read fails.
    pub broken: Option<usize>,
    /// Tensor whose read panics.
    pub panics: Option<usize>,
}

impl Pattern {
    pub fn new(tensors: Vec<TensorMeta>) -> Self {
        Self { tensors, broken: None, panics: None }
    }

    /// All bytes of one tensor.
    pub fn bytes(&self, tensor: usize) -> Vec<u8> {
        (0..self.tensors[tensor].n_bytes().unwrap()).map(|at| pattern(tensor, at)).collect()
    }
}

fn pattern(tensor: usize, at: u64) -> u8 {
    let mixed = (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(tensor as u64 * 77);
    (mixed >> 32) as u8
}

impl TensorSource for Pattern {
    fn tensors(&self) -> &[TensorMeta] {
        &self.tensors
    }

    fn read_rows(&self, tensor: usize, first_row: u64, out: &mut [u8]) -> Result<(), SourceError> {
        assert!(self.panics != Some(tensor), "told to panic");
        let meta = &self.tensors[tensor];
        if self.broken == Some(tensor) {
            return Err(SourceError { tensor: meta.name.clone(), source: "told to fail".into() });
        }
        let start = first_row * meta.row_bytes().unwrap();
        assert!(start + out.len() as u64 <= meta.n_bytes().unwrap());
        for (at, byte) in (start..).zip(out) {
            *byte = pattern(tensor, at);
        }
        Ok(())
    }
}

/// Metadata with every value type.
pub fn every_type() -> Metadata {
    use gguf_format::{Array, Value};
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "llama");
    metadata.set("t.u8", Value::U8(200));
    metadata.set("t.i8", Value::I8(-3));
    metadata.set("t.u16", 60_000u16);
    metadata.set("t.i16", -3i16);
    metadata.set("t.u32", 4_000_000_000u32);
    metadata.set("t.i32", -3i32);
    metadata.set("t.f32", 1.5f32);
    metadata.set("t.bool", true);
    metadata.set("t.str", Value::String(b"not \xff UTF-8\0".to_vec()));
    metadata.set("t.u64", u64::MAX);
    metadata.set("t.i64", i64::MIN);
    metadata.set("t.f64", -0.0f64);
    metadata.set("a.u8", Value::Array(Array::U8(vec![1, 2])));
    metadata.set("a.i8", Value::Array(Array::I8(vec![-1, 2])));
    metadata.set("a.u16", vec![1u16, 2]);
    metadata.set("a.i16", vec![-1i16, 2]);
    metadata.set("a.u32", vec![1u32, 2]);
    metadata.set("a.i32", vec![-1i32, 2]);
    metadata.set("a.f32", vec![0.1f32, f32::INFINITY]);
    metadata.set("a.bool", vec![true, false]);
    metadata.set("a.str", vec!["x", "", "longer"]);
    metadata.set("a.u64", vec![u64::MAX]);
    metadata.set("a.i64", vec![i64::MIN]);
    metadata.set("a.f64", vec![0.1f64]);
    metadata.set("a.empty", Value::Array(Array::I32(vec![])));
    metadata.set(
        "a.nested",
        Value::Array(Array::Array(vec![
            Array::Array(vec![Array::U8(vec![7])]),
            Array::Array(vec![]),
            Array::String(vec![b"s".to_vec()]),
        ])),
    );
    metadata
}

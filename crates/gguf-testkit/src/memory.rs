//! Tensors in memory, as a GGUF file's and as a checkpoint's.

use std::path::Path;

use gguf_core::numeric::{bf16_to_f32, f16_to_f32};
use gguf_core::progress::Silent;
use gguf_core::{
    ElementType, GgmlType, Shape, SourceError, TensorMeta, TensorSource, WeightMeta, WeightSource,
};
use gguf_format::{Metadata, WriteOptions, write_gguf};

/// Bytes of F32 numbers.
pub fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// F32 numbers of bytes.
pub fn f32_values(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

/// F32 numbers of the bytes of floats.
pub fn decoded(ty: ElementType, bytes: &[u8]) -> Vec<f32> {
    let halves = || bytes.as_chunks().0.iter().map(|&bytes| u16::from_le_bytes(bytes));
    match ty {
        ElementType::F32 => f32_values(bytes),
        ElementType::F16 => halves().map(f16_to_f32).collect(),
        ElementType::Bf16 => halves().map(bf16_to_f32).collect(),
        other => panic!("{other} is no float"),
    }
}

/// All bytes of a tensor of a GGUF file.
pub fn tensor_bytes(source: &dyn TensorSource, tensor: usize) -> Vec<u8> {
    let mut bytes = vec![0; source.tensors()[tensor].n_bytes().unwrap() as usize];
    source.read_rows(tensor, 0, &mut bytes).unwrap();
    bytes
}

/// All bytes of a tensor of a checkpoint.
pub fn weight_bytes(source: &dyn WeightSource, weight: usize) -> Vec<u8> {
    let meta = &source.weights()[weight];
    let mut bytes = vec![0; meta.shape.n_elems() as usize * meta.ty.bytes().unwrap()];
    source.read_elems(weight, 0, &mut bytes).unwrap();
    bytes
}

/// Description of a tensor; dimensions outermost first.
pub fn tensor_meta(name: &str, dims: &[u64], ty: GgmlType) -> TensorMeta {
    TensorMeta { name: name.to_owned(), shape: Shape::new(dims.to_vec()).unwrap(), ty }
}

/// Description of a checkpoint's tensor; dimensions outermost first.
pub fn weight_meta(name: &str, dims: &[u64], ty: ElementType) -> WeightMeta {
    WeightMeta { name: name.to_owned(), shape: Shape::new(dims.to_vec()).unwrap(), ty }
}

/// Writes a GGUF file of any source, without waiting for the disk.
pub fn write_source(path: &Path, metadata: &Metadata, source: &dyn TensorSource) {
    let options = WriteOptions { sync: false, ..WriteOptions::default() };
    write_gguf(path, metadata, source, &options, &Silent).unwrap();
}

/// Tensors of a GGUF file.
#[derive(Clone, Default)]
pub struct MemoryTensors {
    metas: Vec<TensorMeta>,
    bytes: Vec<Vec<u8>>,
    is_mapped: bool,
}

impl MemoryTensors {
    /// Tensors of F32 numbers.
    pub fn of_f32(tensors: &[(&str, &[u64], &[f32])]) -> Self {
        tensors.iter().fold(Self::default(), |all, (name, dims, values)| all.with_f32(name, dims, values))
    }

    /// Adds a tensor.
    pub fn add(&mut self, name: &str, dims: &[u64], ty: GgmlType, bytes: Vec<u8>) {
        let meta = tensor_meta(name, dims, ty);
        assert_eq!(meta.n_bytes(), Some(bytes.len() as u64), "{name}");
        self.metas.push(meta);
        self.bytes.push(bytes);
    }

    pub fn with(mut self, name: &str, dims: &[u64], ty: GgmlType, bytes: Vec<u8>) -> Self {
        self.add(name, dims, ty, bytes);
        self
    }

    pub fn with_f32(self, name: &str, dims: &[u64], values: &[f32]) -> Self {
        self.with(name, dims, GgmlType::F32, f32_bytes(values))
    }

    /// Lends its rows, as a mapped file does.
    pub fn mapped(self) -> Self {
        Self { is_mapped: true, ..self }
    }

    /// Keeps the tensors that satisfy the predicate.
    pub fn retain(&mut self, is_kept: impl Fn(&TensorMeta) -> bool) {
        let mut kept = self.metas.iter().map(&is_kept);
        self.bytes.retain(|_| kept.next().unwrap());
        self.metas.retain(is_kept);
    }

    /// Removes a tensor.
    pub fn remove(&mut self, name: &str) {
        let at = self.index(name);
        self.metas.remove(at);
        self.bytes.remove(at);
    }

    /// Adds a tensor with the type, the shape and the bytes of another one.
    pub fn add_copy(&mut self, of: &str, name: &str) {
        let at = self.index(of);
        self.metas.push(TensorMeta { name: name.to_owned(), ..self.metas[at].clone() });
        self.bytes.push(self.bytes[at].clone());
    }

    /// Replaces the type and the bytes of a tensor.
    pub fn replace(&mut self, name: &str, ty: GgmlType, bytes: Vec<u8>) {
        let at = self.index(name);
        self.metas[at].ty = ty;
        assert_eq!(self.metas[at].n_bytes(), Some(bytes.len() as u64), "{name}");
        self.bytes[at] = bytes;
    }

    /// Gives a tensor other dimensions, of at most as many bytes as it has.
    pub fn reshape(&mut self, name: &str, dims: &[u64]) {
        let at = self.index(name);
        self.metas[at] = tensor_meta(name, dims, self.metas[at].ty);
        self.bytes[at].truncate(self.metas[at].n_bytes().unwrap() as usize);
    }

    /// Exchanges the bytes of two tensors.
    pub fn swap(&mut self, a: &str, b: &str) {
        let (a, b) = (self.index(a), self.index(b));
        self.bytes.swap(a, b);
    }

    /// Place of a tensor in the file.
    pub fn index(&self, name: &str) -> usize {
        let found = self.metas.iter().position(|meta| meta.name == name);
        found.unwrap_or_else(|| panic!("no tensor `{name}`"))
    }

    /// Description of a tensor.
    pub fn meta(&self, name: &str) -> &TensorMeta {
        &self.metas[self.index(name)]
    }

    pub fn bytes(&self, tensor: usize) -> &[u8] {
        &self.bytes[tensor]
    }

    pub fn bytes_mut(&mut self, name: &str) -> &mut [u8] {
        let at = self.index(name);
        &mut self.bytes[at]
    }

    /// Numbers of an F32 tensor.
    pub fn f32s(&self, name: &str) -> Vec<f32> {
        f32_values(&self.bytes[self.index(name)])
    }

    /// Changes the numbers of an F32 tensor.
    pub fn edit_f32s(&mut self, name: &str, edit: impl FnOnce(&mut [f32])) {
        let at = self.index(name);
        assert_eq!(self.metas[at].ty, GgmlType::F32, "{name}");
        let mut values = f32_values(&self.bytes[at]);
        edit(&mut values);
        self.bytes[at] = f32_bytes(&values);
    }
}

impl TensorSource for MemoryTensors {
    fn tensors(&self) -> &[TensorMeta] {
        &self.metas
    }

    fn read_rows(&self, tensor: usize, first_row: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let start = (first_row * self.metas[tensor].row_bytes().unwrap()) as usize;
        out.copy_from_slice(&self.bytes[tensor][start..start + out.len()]);
        Ok(())
    }

    fn borrow_rows(&self, tensor: usize, first_row: u64, n_rows: u64) -> Option<&[u8]> {
        let row_bytes = self.metas[tensor].row_bytes().unwrap();
        let rows = (first_row * row_bytes) as usize..((first_row + n_rows) * row_bytes) as usize;
        self.is_mapped.then(|| &self.bytes[tensor][rows])
    }
}

/// Tensors of a GGUF file whose rows are computed when they are read: too large to keep, or all alike.
pub struct ComputedTensors<F> {
    metas: Vec<TensorMeta>,
    fill: F,
}

impl<F: Fn(usize, u64, &mut [u8])> ComputedTensors<F> {
    /// Tensors whose bytes `fill` writes, given the tensor's index, the first row and the bytes of whole rows.
    pub fn new(metas: Vec<TensorMeta>, fill: F) -> Self {
        Self { metas, fill }
    }
}

impl<F: Fn(usize, u64, &mut [u8]) + Sync> TensorSource for ComputedTensors<F> {
    fn tensors(&self) -> &[TensorMeta] {
        &self.metas
    }

    fn read_rows(&self, tensor: usize, first_row: u64, out: &mut [u8]) -> Result<(), SourceError> {
        (self.fill)(tensor, first_row, out);
        Ok(())
    }
}

/// Tensors of a checkpoint.
#[derive(Clone, Default)]
pub struct MemoryWeights {
    metas: Vec<WeightMeta>,
    bytes: Vec<Vec<u8>>,
    is_mapped: bool,
}

impl MemoryWeights {
    /// Adds a tensor.
    pub fn add(&mut self, name: &str, dims: &[u64], ty: ElementType, bytes: Vec<u8>) {
        self.metas.push(weight_meta(name, dims, ty));
        self.bytes.push(bytes);
    }

    pub fn with(mut self, name: &str, dims: &[u64], ty: ElementType, bytes: Vec<u8>) -> Self {
        self.add(name, dims, ty, bytes);
        self
    }

    pub fn with_f32(self, name: &str, dims: &[u64], values: &[f32]) -> Self {
        self.with(name, dims, ElementType::F32, f32_bytes(values))
    }

    /// Lends its bytes, as a mapped file does, if `is_mapped` is true.
    pub fn mapped(self, is_mapped: bool) -> Self {
        Self { is_mapped, ..self }
    }

    pub fn bytes(&self, weight: usize) -> &[u8] {
        &self.bytes[weight]
    }

    /// Numbers of an F32 tensor.
    pub fn f32s(&self, weight: usize) -> Vec<f32> {
        f32_values(&self.bytes[weight])
    }
}

impl WeightSource for MemoryWeights {
    fn weights(&self) -> &[WeightMeta] {
        &self.metas
    }

    fn read_elems(&self, weight: usize, first: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let start = first as usize * self.metas[weight].ty.bytes().unwrap_or(1);
        out.copy_from_slice(&self.bytes[weight][start..start + out.len()]);
        Ok(())
    }

    fn borrow(&self, weight: usize) -> Option<&[u8]> {
        self.is_mapped.then(|| self.bytes[weight].as_slice())
    }
}

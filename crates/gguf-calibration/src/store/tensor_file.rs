//! Reader of statistics files: every size is checked against the bytes of the file before memory is allocated.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::Moments;
use crate::store::{StatisticsError, triangle};
use gguf_checkpoint::safetensors::{Header, TensorRange, parse_header};
use gguf_core::ElementType;
use gguf_core::limits::Limits;
use gguf_core::mmap::MappedFile;
use gguf_engine::Gram;
use gguf_format::ColumnSums;

/// Mapped safetensors file in which every tensor must be asked for.
pub(super) struct TensorFile {
    pub(super) path: PathBuf,
    map: MappedFile,
    tensors: BTreeMap<String, TensorRange>,
}

impl TensorFile {
    pub(super) fn open(path: PathBuf, limits: &Limits) -> Result<Self, StatisticsError> {
        let map = MappedFile::open(&path)?;
        let parsed = parse_header(&map, limits);
        let Header { tensors, .. } =
            parsed.map_err(|source| StatisticsError::Header { file: path.clone(), source })?;
        let tensors = tensors.into_iter().map(|tensor| (tensor.meta.name.clone(), tensor)).collect();
        Ok(Self { path, map, tensors })
    }

    /// Takes a tensor out of the header, so that it counts as asked for.
    fn take(&mut self, name: &str) -> Result<TensorRange, StatisticsError> {
        let missing = || StatisticsError::Missing { file: self.path.clone(), tensor: name.to_owned() };
        self.tensors.remove(name).ok_or_else(missing)
    }

    /// Takes the upper triangle of the sums of `n_cols` columns.
    fn take_triangle(
        &mut self,
        name: &str,
        n_cols: usize,
        ty: ElementType,
    ) -> Result<TensorRange, StatisticsError> {
        let tensor = self.take(name)?;
        let n_elems = triangle(n_cols);
        let is_own = tensor.meta.ty == ty
            && matches!((tensor.meta.shape.dims(), n_elems), ([n], Some(expected)) if *n == expected);
        if is_own && n_cols > 0 {
            return Ok(tensor);
        }
        let n = n_elems.unwrap_or(u64::MAX);
        Err(self.shape(&tensor, format!("{ty} [{n}] of {n_cols} columns")))
    }

    /// Tensor names of the importance sums, without `prefix` and `.sums`.
    pub(super) fn names(&self, prefix: &str) -> BTreeSet<String> {
        let own = |name: &String| Some(name.strip_prefix(prefix)?.strip_suffix(".sums")?.to_owned());
        self.tensors.keys().filter_map(own).collect()
    }

    pub(super) fn check_empty(&self) -> Result<(), StatisticsError> {
        match self.tensors.keys().next() {
            Some(tensor) => {
                Err(StatisticsError::Unlisted { file: self.path.clone(), tensor: tensor.clone() })
            }
            None => Ok(()),
        }
    }

    fn shape(&self, found: &TensorRange, expected: String) -> StatisticsError {
        StatisticsError::Shape {
            file: self.path.clone(),
            tensor: found.meta.name.clone(),
            found: format!("{} {}", found.meta.ty, found.meta.shape),
            expected,
        }
    }

    /// Bytes of a tensor; the header was checked against the file.
    fn bytes(&self, tensor: &TensorRange) -> &[u8] {
        let range = usize::try_from(tensor.offset).ok().zip(usize::try_from(tensor.n_bytes).ok());
        range.and_then(|(start, len)| self.map.get(start..)?.get(..len)).unwrap_or_default()
    }

    /// Values of an f64 tensor.
    fn doubles(&self, tensor: &TensorRange) -> impl Iterator<Item = f64> {
        self.bytes(tensor).as_chunks::<8>().0.iter().map(|raw| f64::from_le_bytes(*raw))
    }

    fn bad(&self, tensor: &str, place: String, value: f64, expected: &'static str) -> StatisticsError {
        let (file, tensor) = (self.path.clone(), tensor.to_owned());
        StatisticsError::Value { file, tensor, place, value, expected }
    }

    pub(super) fn moments(
        &mut self,
        name: &str,
        n_cols: usize,
        n_rows: u64,
    ) -> Result<Moments, StatisticsError> {
        let tensor = self.take_triangle(name, n_cols, ElementType::F32)?;
        // About as many bytes as the file has for it, plus at most the square of a tile.
        let mut sums = Gram::zero(n_cols);
        let mut numbers = self.bytes(&tensor).as_chunks::<4>().0.iter();
        for row in 0..n_cols {
            for (column, (sum, raw)) in sums.row_mut(row).iter_mut().zip(&mut numbers).enumerate() {
                *sum = f32::from_le_bytes(*raw);
                if !sum.is_finite() || (column == 0 && *sum < 0.0) {
                    let place = format!("row {row}, column {}", row + column);
                    return Err(self.bad(name, place, f64::from(*sum), "a sum of finite numbers"));
                }
            }
        }
        Ok(Moments::of(n_rows, sums))
    }

    pub(super) fn columns(&mut self, name: &str) -> Result<ColumnSums, StatisticsError> {
        let sums = self.take(&format!("{name}.sums"))?;
        let counts = self.take(&format!("{name}.counts"))?;
        let &[n_matrices, n_cols] = sums.meta.shape.dims() else {
            return Err(self.shape(&sums, "F64 [matrices, columns]".to_owned()));
        };
        if sums.meta.ty != ElementType::F64 {
            return Err(self.shape(&sums, "F64 [matrices, columns]".to_owned()));
        }
        if counts.meta.ty != ElementType::I64 || counts.meta.shape.dims() != [n_matrices] {
            return Err(self.shape(&counts, format!("I64 [{n_matrices}]")));
        }
        let values: Vec<f64> = self.doubles(&sums).collect();
        let numbers: Vec<i64> =
            self.bytes(&counts).as_chunks::<8>().0.iter().map(|raw| i64::from_le_bytes(*raw)).collect();
        if let Some(at) = values.iter().position(|sum| !sum.is_finite() || *sum < 0.0) {
            let expected = "a sum of squares";
            return Err(self.bad(&sums.meta.name, format!("element {at}"), values[at], expected));
        }
        if let Some(at) = numbers.iter().position(|count| *count < 0) {
            let (value, expected) = (numbers[at] as f64, "a number of rows");
            return Err(self.bad(&counts.meta.name, format!("element {at}"), value, expected));
        }
        let n_cols = usize::try_from(n_cols).unwrap_or(0);
        Ok(ColumnSums { n_cols, sums: values, counts: numbers })
    }
}

//! Reader of statistics files: every size is checked against the bytes of the file before memory is allocated.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use sha2::{Digest, Sha256};

use crate::Moments;
use crate::store::{StatisticsError, places_name, rests_name, triangle};
use gguf_checkpoint::safetensors::{Header, TensorRange, parse_header};
use gguf_core::ElementType;
use gguf_core::limits::Limits;
use gguf_core::mmap::MappedFile;
use gguf_core::text::hex;
use gguf_engine::{Gram, GramSum};
use gguf_format::ColumnSums;
use gguf_verification::ExactColumns;

/// Reason for a file of a part whose bytes are not those that were written.
pub(super) const OTHER_DIGEST: &str = "its SHA-256 is not the one in `SHA256SUMS`";

/// Mapped safetensors file in which every tensor must be asked for.
pub(super) struct TensorFile {
    pub(super) path: PathBuf,
    map: MappedFile,
    tensors: BTreeMap<String, TensorRange>,
}

/// Location of sums in a file.
#[derive(Clone, Debug)]
pub(super) struct StoredSums {
    pub(super) n_cols: usize,
    sums: TensorRange,
    /// Rests and their places, if there are any.
    rests: Option<(TensorRange, TensorRange)>,
}

impl TensorFile {
    pub(super) fn open(path: PathBuf, limits: &Limits) -> Result<Self, StatisticsError> {
        let map = MappedFile::open(&path)?;
        Self::of(path, map, limits)
    }

    /// Opens a file and checks the SHA-256 of its bytes.
    pub(super) fn open_known(path: PathBuf, digest: &str, limits: &Limits) -> Result<Self, StatisticsError> {
        let map = MappedFile::open(&path)?;
        if hex(&Sha256::digest(&*map)) != digest {
            return Err(StatisticsError::DamagedPart { file: path, reason: OTHER_DIGEST });
        }
        Self::of(path, map, limits)
    }

    fn of(path: PathBuf, map: MappedFile, limits: &Limits) -> Result<Self, StatisticsError> {
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

    /// Finds sums to which others may be added.
    pub(super) fn find_sums(&mut self, name: &str, n_cols: usize) -> Result<StoredSums, StatisticsError> {
        let sums = self.take_triangle(name, n_cols, ElementType::F64)?;
        let mut rests = None;
        if self.tensors.contains_key(&rests_name(name)) {
            let (values, places) = (self.take(&rests_name(name))?, self.take(&places_name(name))?);
            let &[n] = values.meta.shape.dims() else {
                return Err(self.shape(&values, "F64 [rests]".to_owned()));
            };
            if values.meta.ty != ElementType::F64 {
                return Err(self.shape(&values, "F64 [rests]".to_owned()));
            }
            if places.meta.ty != ElementType::I64 || places.meta.shape.dims() != [n, 2] {
                return Err(self.shape(&places, format!("I64 [{n}, 2]")));
            }
            rests = Some((values, places));
        }
        Ok(StoredSums { n_cols, sums, rests })
    }

    /// Adds stored sums to others with the same number of columns.
    pub(super) fn add_sums(&self, stored: &StoredSums, to: &mut GramSum) -> Result<(), StatisticsError> {
        let StoredSums { n_cols, sums, rests } = stored;
        let mut numbers = self.bytes(sums).as_chunks::<8>().0;
        for row in 0..*n_cols {
            let (own, later) = numbers.split_at_checked(n_cols - row).unwrap_or((numbers, &[]));
            numbers = later;
            let own = own.iter().map(|raw| f64::from_le_bytes(*raw));
            let is_bad = |(at, sum): &(usize, f64)| !sum.is_finite() || (*at == 0 && *sum < 0.0);
            if let Some((at, value)) = own.clone().enumerate().find(is_bad) {
                let place = format!("row {row}, column {}", row + at);
                return Err(self.bad(&sums.meta.name, place, value, "a sum of finite numbers"));
            }
            to.add_to_row(row, own);
        }
        let Some((values, places)) = rests else { return Ok(()) };
        let places_of = self.bytes(places).as_chunks::<16>().0.iter().map(|raw| {
            let (row, column) = raw.split_at(8);
            let number = |bytes: &[u8]| bytes.try_into().map_or(-1, i64::from_le_bytes);
            (number(row), number(column))
        });
        for (at, (rest, (row, column))) in self.doubles(values).zip(places_of).enumerate() {
            let place = |number: i64| usize::try_from(number).ok().filter(|number| number < n_cols);
            let Some((row, column)) = place(row).zip(place(column)).filter(|(row, column)| row <= column)
            else {
                let expected = "a row and a column on or above the diagonal";
                return Err(self.bad(&places.meta.name, format!("element {at}"), row as f64, expected));
            };
            if !rest.is_finite() {
                return Err(self.bad(&values.meta.name, format!("element {at}"), rest, "a finite number"));
            }
            to.add_to_rest(row, column, rest);
        }
        Ok(())
    }

    /// Importance sums with what was rounded off from them.
    pub(super) fn exact_columns(&mut self, name: &str) -> Result<ExactColumns, StatisticsError> {
        let rests = self.take(&rests_name(name))?;
        let columns = self.columns(name)?;
        let dims = [columns.counts.len() as u64, columns.n_cols as u64];
        if rests.meta.ty != ElementType::F64 || rests.meta.shape.dims() != dims {
            return Err(self.shape(&rests, format!("F64 [{}, {}]", dims[0], dims[1])));
        }
        let values: Vec<f64> = self.doubles(&rests).collect();
        if let Some(at) = values.iter().position(|rest| !rest.is_finite()) {
            return Err(self.bad(&rests.meta.name, format!("element {at}"), values[at], "a finite number"));
        }
        Ok(ExactColumns { columns, rests: values })
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

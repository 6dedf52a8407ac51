//! Reader of both formats.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::imatrix::part::DIGEST;
use crate::imatrix::{
    CHUNK_COUNT, CHUNK_SIZE, COUNTS, ColumnSums, DATASETS, Imatrix, ImatrixEntry, ImatrixError,
    ImatrixFormat, SUMS, StoredEntry, StoredImatrix, UnfinishedRun, check_values,
};
use crate::{Array, GgufError, GgufFile, OtherFile, Value};
use gguf_core::bytes::{Cursor, Endian};
use gguf_core::{GgmlType, TensorSource, input};

impl Imatrix {
    /// Reads a file of either format: GGUF if it has the magic, else the legacy one.
    ///
    /// # Exactness
    /// Weights equal llama-quantize's: a sum of squares divided by the count as a float; 1 for experts that no token
    /// reached.
    pub fn open(path: &Path) -> Result<Self, ImatrixError> {
        let StoredImatrix { path, format, entries, datasets, n_chunks, unfinished, .. } =
            StoredImatrix::open(path)?;
        // The sums of one share represent an arbitrary part of the text.
        if let Some(part) = unfinished.and_then(|run| run.part).filter(|part| part.count > 1) {
            return Err(ImatrixError::IsPart { path, number: part.number, count: part.count });
        }
        // The legacy format counts calls, and who scales the sums to one row counts nothing.
        let counts = entries.values().flat_map(|entry| entry.counts.iter().copied());
        let n_tokens = counts.max().filter(|&most| format == ImatrixFormat::Gguf && most > 1);
        let weights = |(name, entry): (String, StoredEntry)| {
            let entry = match format {
                ImatrixFormat::Gguf => {
                    let columns = entry.columns();
                    ImatrixEntry { weights: columns.weights(), counts: columns.counts }
                }
                ImatrixFormat::Legacy => {
                    let StoredEntry { mut values, counts } = entry;
                    if let Some(&n_calls) = counts.first().filter(|&&n| n > 0) {
                        for value in &mut values {
                            *value /= n_calls as f32;
                        }
                    }
                    ImatrixEntry { weights: values, counts }
                }
            };
            (name, entry)
        };
        let entries = entries.into_iter().map(weights).collect();
        let (dataset, withheld) = (datasets.into_iter().next(), BTreeSet::new());
        Ok(Self { path, entries, withheld, dataset, n_chunks, n_tokens })
    }
}

impl StoredEntry {
    /// Converts stored values to the sums of a run.
    fn columns(&self) -> ColumnSums {
        ColumnSums {
            n_cols: self.values.len() / self.counts.len().max(1),
            sums: self.values.iter().map(|&sum| f64::from(sum)).collect(),
            counts: self.counts.clone(),
        }
    }
}

impl StoredImatrix {
    /// Reads a file of either format: GGUF if it has the magic, else the legacy one.
    pub fn open(path: &Path) -> Result<Self, ImatrixError> {
        let mut magic = [0; 4];
        let n = std::io::Read::read(&mut input::open(path)?, &mut magic)?;
        let stored =
            if n == 4 && &magic == b"GGUF" { Self::open_gguf(path)? } else { Self::open_legacy(path)? };
        if stored.entries.is_empty() {
            return Err(ImatrixError::Empty { path: stored.path });
        }
        Ok(stored)
    }

    fn open_gguf(path: &Path) -> Result<Self, ImatrixError> {
        let file = GgufFile::open(path)?;
        let metadata = file.metadata();
        for key in [DATASETS, CHUNK_COUNT, CHUNK_SIZE] {
            if !metadata.contains(key) {
                return Err(ImatrixError::NotAnImatrix { path: path.to_owned(), key });
            }
        }
        let mut pairs: BTreeMap<&str, (Option<usize>, Option<usize>)> = BTreeMap::new();
        for (index, tensor) in file.tensors().iter().enumerate() {
            if let Some(name) = tensor.name.strip_suffix(SUMS) {
                pairs.entry(name).or_default().0 = Some(index);
            } else if let Some(name) = tensor.name.strip_suffix(COUNTS) {
                pairs.entry(name).or_default().1 = Some(index);
            }
        }
        let mut entries = BTreeMap::new();
        for (name, pair) in pairs {
            let (Some(sums), Some(counts)) = pair else {
                return Err(ImatrixError::Unpaired { path: path.to_owned(), tensor: name.to_owned() });
            };
            let entry = stored_entry(path, name, floats(&file, sums, name)?, &floats(&file, counts, name)?)?;
            entries.insert(name.to_owned(), entry);
        }
        let datasets = match metadata.get(DATASETS).and_then(Value::as_array) {
            Some(Array::String(names)) => names.clone(),
            _ => Vec::new(),
        };
        let unfinished = UnfinishedRun::of(&file);
        if metadata.contains(DIGEST) && unfinished.as_ref().is_none_or(|run| run.part.is_none()) {
            return Err(ImatrixError::DamagedPart { path: path.to_owned() });
        }
        let number = |key| metadata.get(key).and_then(Value::as_u64);
        Ok(Self {
            path: path.to_owned(),
            format: ImatrixFormat::Gguf,
            entries,
            datasets,
            n_chunks: number(CHUNK_COUNT).and_then(|n| i64::try_from(n).ok()).unwrap_or(0),
            chunk_size: number(CHUNK_SIZE).and_then(|n| usize::try_from(n).ok()).filter(|&n| n > 0),
            unfinished,
        })
    }

    /// Reads a file of the legacy format.
    ///
    /// # Layout
    /// The number of entries; for each: length and bytes of the name, number of calls, number of values, values. Then,
    /// if present, the number of chunks, and length and bytes of the name of the text. All numbers are i32, values f32,
    /// little-endian.
    fn open_legacy(path: &Path) -> Result<Self, ImatrixError> {
        let bytes = input::read(path)?;
        if let Some(what) = OtherFile::of(path, &bytes, 0) {
            return Err(GgufError::OtherFile { path: path.to_owned(), what }.into());
        }
        let mut cursor = Cursor::new(&bytes, Endian::Little);
        let bad = |offset, what| ImatrixError::Legacy { path: path.to_owned(), offset, what };
        let number = |cursor: &mut Cursor<'_>, what| cursor.i32().map_err(|error| bad(error.offset, what));
        let n_entries = number(&mut cursor, "number of entries")?;
        if n_entries < 1 {
            return Err(bad(0, "positive number of entries"));
        }
        let mut entries = BTreeMap::new();
        for _ in 0..n_entries {
            let n_name = number(&mut cursor, "length of a name")?;
            let at = cursor.offset();
            let name = u64::try_from(n_name).ok().and_then(|n| cursor.take(n).ok());
            let name = until_nul(name.ok_or_else(|| bad(at, "name"))?);
            let at_calls = cursor.offset();
            let n_calls = number(&mut cursor, "number of calls")?;
            let n_values = number(&mut cursor, "number of values")?;
            let at = cursor.offset();
            let n_bytes = u64::try_from(n_values).ok().filter(|&n| n > 0).map(|n| n * 4);
            let values = n_bytes.and_then(|n| cursor.take(n).ok()).ok_or_else(|| bad(at, "values"))?;
            let name = String::from_utf8_lossy(name).into_owned();
            if n_calls < 0 {
                let path = path.to_owned();
                return Err(ImatrixError::Calls { path, tensor: name, offset: at_calls, n_calls });
            }
            let values = le_floats(values);
            check_values(path, &name, &values)?;
            entries.insert(name, StoredEntry { values, counts: vec![n_calls.into()] });
        }
        // The rest is optional, whole or in part.
        let n_chunks = cursor.i32().unwrap_or(0);
        let n_name = cursor.i32().ok().and_then(|n| u64::try_from(n).ok()).filter(|&n| n > 0);
        let dataset = n_name.and_then(|n| cursor.take(n).ok()).map(|name| until_nul(name).to_vec());
        Ok(Self {
            path: path.to_owned(),
            format: ImatrixFormat::Legacy,
            entries,
            datasets: dataset.into_iter().collect(),
            n_chunks: n_chunks.into(),
            chunk_size: None,
            unfinished: None,
        })
    }
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == 0).next().unwrap_or_default()
}

fn le_floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn floats(file: &GgufFile, index: usize, name: &str) -> Result<Vec<f32>, ImatrixError> {
    let tensor = &file.tensors()[index];
    let n_bytes = tensor.n_bytes().and_then(|n| usize::try_from(n).ok());
    match n_bytes {
        Some(n_bytes) if tensor.ty == GgmlType::F32 => {
            // The header would have been refused if the data exceeded the file.
            let mut bytes = vec![0; n_bytes];
            file.read_rows(index, 0, &mut bytes).map_err(|error| ImatrixError::Read(Box::new(error)))?;
            Ok(le_floats(&bytes))
        }
        _ => {
            let path = file.path().to_owned();
            Err(ImatrixError::Type { path, tensor: name.to_owned(), found: tensor.ty })
        }
    }
}

/// Pairs the sums and counts of a tensor. The number of sums must be a multiple of that of counts.
fn stored_entry(
    path: &Path,
    name: &str,
    values: Vec<f32>,
    counts: &[f32],
) -> Result<StoredEntry, ImatrixError> {
    if counts.is_empty() || !values.len().is_multiple_of(counts.len()) {
        return Err(ImatrixError::Counts {
            path: path.to_owned(),
            tensor: name.to_owned(),
            n_values: values.len(),
            n_counts: counts.len(),
        });
    }
    check_values(path, &format!("{name}{SUMS}"), &values)?;
    check_values(path, &format!("{name}{COUNTS}"), counts)?;
    Ok(StoredEntry { values, counts: counts.iter().map(|count| count.round() as i64).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_that_were_never_seen_weigh_one() {
        let entry =
            |values: &[f32], counts: &[f32]| stored_entry(Path::new("x"), "t", values.to_vec(), counts);
        let sums = entry(&[2.0, 4.0, 7.0, 8.0], &[2.0, 0.0]).unwrap().columns();
        assert_eq!((sums.weights(), sums.counts), (vec![1.0, 2.0, 1.0, 1.0], vec![2, 0]));
        let error = entry(&[2.0, 4.0, 7.0], &[2.0, 0.0]).unwrap_err();
        assert_eq!(error.to_string(), "x: tensor `t`: 3 importance values for 2 matrices");
        let error = entry(&[2.0], &[f32::NAN]).unwrap_err();
        assert_eq!(error.to_string(), "x: tensor `t.counts`: importance value 0 is NaN");
        let error = entry(&[2.0, 4.0], &[-1.0]).unwrap_err();
        let expected =
            "x: tensor `t.counts`: importance value 0 is -1: a number that is not negative expected";
        assert_eq!(error.to_string(), expected);
        let error = entry(&[2.0, -4.0], &[1.0]).unwrap_err();
        let expected =
            "x: tensor `t.in_sum2`: importance value 1 is -4: a number that is not negative expected";
        assert_eq!(error.to_string(), expected);
        assert!(entry(&[2.0, f32::INFINITY], &[1.0]).is_err());
    }

    fn legacy(bytes: &[u8]) -> Result<Imatrix, ImatrixError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.dat");
        fs_err::write(&path, bytes).unwrap();
        Imatrix::open(&path)
    }

    fn sample() -> Vec<u8> {
        let mut bytes = Vec::new();
        for number in [1i32, 2] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(b"ab");
        for number in [4i32, 2] {
            bytes.extend(number.to_le_bytes());
        }
        for value in [8f32, 2.0] {
            bytes.extend(value.to_le_bytes());
        }
        bytes.extend(9i32.to_le_bytes());
        bytes.extend(3i32.to_le_bytes());
        bytes.extend(b"txt");
        bytes
    }

    #[test]
    fn the_older_format() {
        let matrix = legacy(&sample()).unwrap();
        assert_eq!(matrix.get("ab").unwrap().weights, [2.0, 0.5]);
        assert_eq!((matrix.n_chunks(), matrix.dataset()), (9, Some(&b"txt"[..])));
    }

    #[test]
    fn the_older_format_cut_anywhere_is_an_error_or_lacks_its_end() {
        let bytes = sample();
        for n in 0..bytes.len() {
            match legacy(&bytes[..n]) {
                Ok(matrix) => assert!(n >= 26 && matrix.dataset().is_none(), "{n}"),
                Err(error) => {
                    let is_told = n == 0 || matches!(error, ImatrixError::Legacy { .. });
                    assert!(is_told && n < 26, "{n}: {error}");
                }
            }
        }
    }

    #[test]
    fn the_older_format_with_values_that_are_no_importance() {
        for value in [-0.5, f32::NAN, f32::NEG_INFINITY] {
            let mut bytes = sample();
            bytes[22..26].copy_from_slice(&f32::to_le_bytes(value));
            let error = legacy(&bytes).unwrap_err().to_string();
            assert!(error.contains(&format!("tensor `ab`: importance value 1 is {value}")), "{error}");
        }
    }

    #[test]
    fn the_older_format_with_calls_below_zero_is_refused_by_entry() {
        for n_calls in [-1, i32::MIN] {
            let mut bytes = sample();
            bytes[10..14].copy_from_slice(&i32::to_le_bytes(n_calls));
            let error = legacy(&bytes).unwrap_err().to_string();
            let expected = format!("tensor `ab`: offset 10: number of calls is {n_calls}");
            assert!(error.contains(&expected), "{error}");
        }
    }

    #[test]
    fn the_older_format_with_absurd_lengths() {
        for (at, number) in [(0, -1), (0, 0), (4, -1), (4, i32::MAX), (14, 0), (14, i32::MAX), (0, i32::MAX)]
        {
            let mut bytes = sample();
            bytes[at..at + 4].copy_from_slice(&i32::to_le_bytes(number));
            assert!(matches!(legacy(&bytes), Err(ImatrixError::Legacy { .. })), "{at}, {number}");
        }
    }
}

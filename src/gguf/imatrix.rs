//! Importance matrices: how strongly each column of a weight is used, measured on a text. Both formats of
//! llama-imatrix.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::core::bytes::{Cursor, Endian};
use crate::core::text::{escape, escape_bytes};
use crate::core::{GgmlType, Hint, TensorSource};
use crate::gguf::{Array, GgufError, GgufFile, Value};

/// Importance of the columns of one tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct ImatrixEntry {
    /// One weight a column, matrix after matrix where the tensor is a stack of experts.
    pub weights: Vec<f32>,
    /// How often each matrix was used; the older format counts the tensor as a whole.
    pub counts: Vec<i64>,
}

/// An importance matrix file.
#[derive(Clone, Debug)]
pub struct Imatrix {
    path: PathBuf,
    entries: BTreeMap<String, ImatrixEntry>,
    dataset: Option<Vec<u8>>,
    n_chunks: i64,
}

const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";
const DATASETS: &str = "imatrix.datasets";
const CHUNK_COUNT: &str = "imatrix.chunk_count";
const CHUNK_SIZE: &str = "imatrix.chunk_size";

impl Imatrix {
    /// Reads a file of either format: GGUF if it says so, else the older one.
    ///
    /// # Exactness
    /// Weights equal llama-quantize's: a sum of squares divided by the count as a float; 1 for experts that no token
    /// reached.
    ///
    /// # Errors
    /// [`ImatrixError`]; each names the file.
    pub fn open(path: &Path) -> Result<Self, ImatrixError> {
        let mut magic = [0; 4];
        let n = std::io::Read::read(&mut fs_err::File::open(path)?, &mut magic)?;
        if n == 4 && &magic == b"GGUF" { Self::open_gguf(path) } else { Self::open_legacy(path) }
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
            let sums = floats(&file, sums, name)?;
            let counts = floats(&file, counts, name)?;
            entries.insert(name.to_owned(), average(path, name, &sums, &counts)?);
        }
        let dataset = match metadata.get(DATASETS).and_then(Value::as_array) {
            Some(Array::String(names)) => names.first().cloned(),
            _ => None,
        };
        let n_chunks = metadata
            .get(CHUNK_COUNT)
            .and_then(Value::as_u64)
            .and_then(|n| i64::try_from(n).ok())
            .unwrap_or(0);
        Self::new(path, entries, dataset, n_chunks)
    }

    /// # Layout
    /// The number of entries; for each: length and bytes of the name, number of calls, number of values, values; then,
    /// if present, the number of chunks, and length and bytes of the name of the text. All numbers are i32, values
    /// f32, little-endian.
    fn open_legacy(path: &Path) -> Result<Self, ImatrixError> {
        let bytes = fs_err::read(path)?;
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
            let n_calls = number(&mut cursor, "number of calls")?;
            let n_values = number(&mut cursor, "number of values")?;
            let at = cursor.offset();
            let n_bytes = u64::try_from(n_values).ok().filter(|&n| n > 0).map(|n| n * 4);
            let values = n_bytes.and_then(|n| cursor.take(n).ok()).ok_or_else(|| bad(at, "values"))?;
            let mut weights = le_floats(values);
            if n_calls > 0 {
                for weight in &mut weights {
                    *weight /= n_calls as f32;
                }
            }
            let entry = ImatrixEntry { weights, counts: vec![n_calls.into()] };
            entries.insert(String::from_utf8_lossy(name).into_owned(), entry);
        }
        // What follows is optional, whole or in part.
        let n_chunks = cursor.i32().unwrap_or(0);
        let n_name = cursor.i32().ok().and_then(|n| u64::try_from(n).ok()).filter(|&n| n > 0);
        let dataset = n_name.and_then(|n| cursor.take(n).ok()).map(|name| until_nul(name).to_vec());
        Self::new(path, entries, dataset, n_chunks.into())
    }

    fn new(
        path: &Path,
        entries: BTreeMap<String, ImatrixEntry>,
        dataset: Option<Vec<u8>>,
        n_chunks: i64,
    ) -> Result<Self, ImatrixError> {
        if entries.is_empty() {
            return Err(ImatrixError::Empty { path: path.to_owned() });
        }
        Ok(Self { path: path.to_owned(), entries, dataset, n_chunks })
    }

    /// Keeps the entries whose names contain one of these.
    pub fn include(&mut self, parts: &[String]) {
        self.entries.retain(|name, _| parts.iter().any(|part| name.contains(part.as_str())));
    }

    /// Drops the entries whose names contain one of these.
    pub fn exclude(&mut self, parts: &[String]) {
        self.entries.retain(|name, _| !parts.iter().any(|part| name.contains(part.as_str())));
    }

    /// The file, as it was named.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Entries by name.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = (&str, &ImatrixEntry)> {
        self.entries.iter().map(|(name, entry)| (name.as_str(), entry))
    }

    /// The entry of a tensor.
    #[must_use]
    pub fn get(&self, tensor: &str) -> Option<&ImatrixEntry> {
        self.entries.get(tensor)
    }

    /// True if no entry is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Name of the (first) text it was measured on.
    #[must_use]
    pub fn dataset(&self) -> Option<&[u8]> {
        self.dataset.as_deref()
    }

    /// Number of chunks of the text; 0 if unknown.
    #[must_use]
    pub fn n_chunks(&self) -> i64 {
        self.n_chunks
    }

    /// Checks that all weights are numbers.
    ///
    /// # Errors
    /// [`ImatrixError::NonFinite`] for the first that is not.
    pub fn check_finite(&self) -> Result<(), ImatrixError> {
        for (name, entry) in &self.entries {
            if let Some(index) = entry.weights.iter().position(|weight| !weight.is_finite()) {
                return Err(ImatrixError::NonFinite {
                    path: self.path.clone(),
                    tensor: name.clone(),
                    index,
                    value: entry.weights[index],
                });
            }
        }
        Ok(())
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
            // The header was refused if the data reached beyond the file.
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

fn average(path: &Path, name: &str, sums: &[f32], counts: &[f32]) -> Result<ImatrixEntry, ImatrixError> {
    if counts.is_empty() || !sums.len().is_multiple_of(counts.len()) {
        return Err(ImatrixError::Counts {
            path: path.to_owned(),
            tensor: name.to_owned(),
            n_values: sums.len(),
            n_counts: counts.len(),
        });
    }
    if let Some(index) = counts.iter().position(|count| !count.is_finite()) {
        return Err(ImatrixError::NonFinite {
            path: path.to_owned(),
            tensor: format!("{name}{COUNTS}"),
            index,
            value: counts[index],
        });
    }
    let counts: Vec<_> = counts.iter().map(|count| count.round() as i64).collect();
    let n_cols = sums.len() / counts.len();
    let mut weights = Vec::with_capacity(sums.len());
    for (sums, &count) in sums.chunks(n_cols.max(1)).zip(&counts) {
        if count > 0 {
            weights.extend(sums.iter().map(|sum| sum / count as f32));
        } else {
            weights.extend(sums.iter().map(|_| 1.0));
        }
    }
    Ok(ImatrixEntry { weights, counts })
}

/// Why an importance matrix cannot be used.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum ImatrixError {
    /// Reading failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The file is no sound GGUF file.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// Data could not be read.
    #[error(transparent)]
    Read(Box<crate::core::SourceError>),
    /// A GGUF file of another kind.
    #[error("{}: not an importance matrix: no key `{key}`", path.display())]
    NotAnImatrix { path: PathBuf, key: &'static str },
    /// Nothing in it.
    #[error("{}: importance matrix without entries", path.display())]
    Empty { path: PathBuf },
    /// Sums without counts, or the other way round.
    #[error("{}: tensor `{}`: sums and counts expected, one of them is missing", path.display(), escape(tensor))]
    Unpaired { path: PathBuf, tensor: String },
    /// Sums or counts that are not F32.
    #[error("{}: tensor `{}`: importance data of type F32 expected, found {found}", path.display(), escape(tensor))]
    Type { path: PathBuf, tensor: String, found: GgmlType },
    /// Values that cannot be shared out among the matrices.
    #[error(
        "{}: tensor `{}`: {n_values} importance values for {n_counts} matrices",
        path.display(),
        escape(tensor)
    )]
    Counts { path: PathBuf, tensor: String, n_values: usize, n_counts: usize },
    /// The older format ends early or holds nonsense.
    #[error("{}: importance matrix: offset {offset}: {what} expected", path.display())]
    Legacy { path: PathBuf, offset: u64, what: &'static str },
    /// A value that is no number.
    #[error(
        "{}: tensor `{}`: importance value {index} is {value}",
        path.display(),
        escape(tensor)
    )]
    NonFinite { path: PathBuf, tensor: String, index: usize, value: f32 },
    /// Values for another number of columns.
    #[error(
        "{}: tensor `{}`: {found} importance values, {expected} expected",
        path.display(),
        escape(tensor)
    )]
    Size { path: PathBuf, tensor: String, expected: u64, found: usize },
    /// No entry is about a tensor of the model.
    #[error(
        "{}: importance matrix of another model: none of its {n_entries} entries names a tensor of this one",
        path.display()
    )]
    OtherModel { path: PathBuf, n_entries: usize, example: String },
}

impl Hint for ImatrixError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::NotAnImatrix { .. } => vec!["make one with `gguf-verify imatrix`".to_owned()],
            Self::Legacy { .. } => {
                vec!["a file that does not begin with `GGUF` is read as the older `.dat` format".to_owned()]
            }
            Self::Size { .. } => {
                vec![
                    "use the importance matrix of this very model, with experts stacked in the same way"
                        .to_owned(),
                ]
            }
            Self::OtherModel { example, .. } => {
                vec![format!("it has an entry for `{}`, for example", escape_bytes(example.as_bytes()))]
            }
            Self::NonFinite { .. } => {
                vec!["measure it again; the file is damaged or was made with a broken model".to_owned()]
            }
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_that_were_never_seen_weigh_one() {
        let entry = average(Path::new("x"), "t", &[2.0, 4.0, 7.0, 8.0], &[2.0, 0.0]).unwrap();
        assert_eq!(entry, ImatrixEntry { weights: vec![1.0, 2.0, 1.0, 1.0], counts: vec![2, 0] });
        let error = average(Path::new("x"), "t", &[2.0, 4.0, 7.0], &[2.0, 0.0]).unwrap_err();
        assert_eq!(error.to_string(), "x: tensor `t`: 3 importance values for 2 matrices");
        let error = average(Path::new("x"), "t", &[2.0], &[f32::NAN]).unwrap_err();
        assert_eq!(error.to_string(), "x: tensor `t.counts`: importance value 0 is NaN");
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
                Err(error) => assert!(matches!(error, ImatrixError::Legacy { .. }) && n < 26, "{n}: {error}"),
            }
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

//! Shares of an output, one for each of several machines. All machines plan the same files from the same headers, and
//! each writes one of them without communication.

use std::ops::Range;
use std::path::PathBuf;
use std::str::FromStr;
use std::{fmt, io};

use sha2::{Digest, Sha256};

use crate::plan::PlannedFile;
use crate::split_id::set_id;
use gguf_core::ranged::Bytes;
use gguf_core::weight_file::WeightFile;
use gguf_core::{GgmlType, TensorMeta};

/// Number of samples of all inputs that go into the id of a set, and the fewest and most of one input; `SAMPLE_BYTES` is
/// the size of each. Of most models each matrix has a sample: another model may differ in a single one.
const SAMPLES: usize = 16 << 10;
const INPUT_SAMPLES: (usize, usize) = (16, 1024);
const SAMPLE_BYTES: u64 = 4 << 10;

/// Picoseconds to read or write a byte: 1.5 GB/s.
const PS_PER_BYTE: u64 = 650;

/// One of several shares, written as `2/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    number: u16,
    count: u16,
}

/// A text that does not denote a share.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a share such as `2/8` expected (the second of eight; at most {}), found `{found}`", u16::MAX)]
pub struct ShareError {
    /// Text found.
    pub found: String,
}

impl Share {
    /// All of it, as the only share.
    pub const WHOLE: Self = Self { number: 1, count: 1 };

    /// Number of the share, from 1.
    pub fn number(self) -> usize {
        self.number.into()
    }

    /// Number of shares.
    pub fn count(self) -> usize {
        self.count.into()
    }

    /// Returns this share of a list of entries with the given costs: consecutive entries, divided so that the maximum
    /// cost of a share is minimal. It is empty only if there are fewer entries than shares.
    pub fn of_costs(self, costs: &[u64]) -> Range<usize> {
        balanced_costs(costs, self.count())
            .into_iter()
            .nth(self.number() - 1)
            .unwrap_or(costs.len()..costs.len())
    }

    /// Returns this share of a list of tensors, by the cost of reading, encoding and writing them.
    pub fn of_tensors<'a>(self, tensors: impl Iterator<Item = &'a TensorMeta>) -> Range<usize> {
        self.of_costs(&tensors.map(picoseconds).collect::<Vec<_>>())
    }

    /// Selects the file of this share.
    pub(super) fn of(self, files: Vec<PlannedFile>) -> Vec<PlannedFile> {
        files.into_iter().skip(self.number() - 1).take(1).collect()
    }
}

/// Faults in a list of part numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartsGap {
    /// Two parts, given by their positions in the list, have the same number.
    Twice {
        /// Position of the first.
        first: usize,
        /// Position of the second.
        second: usize,
        /// Number of both.
        number: usize,
    },
    /// Numbers that no part has.
    Missing(Vec<usize>),
}

/// Checks that a list of parts, sorted by number, has each of `count` numbers once. `count` comes from the parts
/// themselves, so the missing numbers are limited to the maximum of a [`Share`].
///
/// # Errors
/// The first number that two parts have, or the numbers that none has.
pub fn each_once(numbers: &[usize], count: usize) -> Result<(), PartsGap> {
    let mut pairs = numbers.windows(2).enumerate();
    if let Some((first, pair)) = pairs.find(|(_, pair)| pair.first() == pair.last()) {
        return Err(PartsGap::Twice { first, second: first + 1, number: pair[0] });
    }
    let count = count.min(usize::from(u16::MAX));
    let missing: Vec<usize> = (1..=count).filter(|number| numbers.binary_search(number).is_err()).collect();
    if missing.is_empty() { Ok(()) } else { Err(PartsGap::Missing(missing)) }
}

/// Formats parts for a message: `2/8, 3/8, and 4 more`.
pub fn listed(numbers: &[usize], count: usize) -> String {
    const SHOWN: usize = 16;
    let mut list: Vec<_> = numbers.iter().take(SHOWN).map(|number| format!("{number}/{count}")).collect();
    if numbers.len() > SHOWN {
        list.push(format!("and {} more", numbers.len() - SHOWN));
    }
    list.join(", ")
}

/// Computes the id of an output that several runs write, from all headers, from samples of the inputs, which every run
/// can read, and from `identity`, the options that no header shows. Shares of another plan, or of a model that was trained further in the
/// meantime, get another id.
pub fn output_id(files: &[PlannedFile], inputs: &[PathBuf], identity: &str) -> io::Result<String> {
    let mut files_read = Vec::new();
    for path in inputs {
        match fs_err::metadata(path) {
            Ok(found) if found.is_file() => files_read.push(path),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // Without this input the id would be that of another set.
            Err(error) => return Err(error),
        }
    }
    let mut inputs = files_read;
    // The path of the checkpoint may differ on another machine.
    inputs.sort_by_key(|path| path.file_name());
    inputs.dedup();
    let (fewest, most) = INPUT_SAMPLES;
    let n_samples = (SAMPLES / inputs.len().max(1)).clamp(fewest, most) as u64;
    let mut hash = Sha256::new();
    for path in inputs {
        let file = WeightFile::open(path)?;
        let n_bytes = file.n_bytes();
        hash.update(n_bytes.to_le_bytes());
        // A short file is read as a whole.
        let step = (n_bytes / n_samples).max(SAMPLE_BYTES);
        for offset in (0..n_samples).map(|sample| step * sample).take_while(|offset| *offset < n_bytes) {
            hash.update(file.get(offset, SAMPLE_BYTES.min(n_bytes - offset))?.unwrap_or_default());
        }
    }
    Ok(set_id(files, [hash.finalize().as_slice(), identity.as_bytes()]))
}

impl FromStr for Share {
    type Err = ShareError;

    fn from_str(text: &str) -> Result<Self, ShareError> {
        let parsed = text.split_once('/').and_then(|(number, count)| {
            let (number, count) = (number.parse().ok()?, count.parse().ok()?);
            (1..=count).contains(&number).then_some(Self { number, count })
        });
        parsed.ok_or_else(|| ShareError { found: text.to_owned() })
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.count)
    }
}

/// Divides a list of tensors into `n` ranges so that the maximum cost is minimal. No range is empty unless there are
/// fewer tensors.
pub(super) fn balanced(tensors: &[TensorMeta], n: usize) -> Vec<Range<usize>> {
    balanced_costs(&tensors.iter().map(picoseconds).collect::<Vec<_>>(), n)
}

/// Divides a list by the cost of each entry, like [`balanced`].
fn balanced_costs(costs: &[u64], n: usize) -> Vec<Range<usize>> {
    let ranges_within = |most: u64| {
        let (mut ranges, mut start, mut sum) = (Vec::new(), 0, 0u64);
        for (at, &cost) in costs.iter().enumerate() {
            let is_full = sum.checked_add(cost).is_none_or(|sum| sum > most);
            // Each of the remaining ranges must get a tensor.
            let is_due = costs.len() - at <= n.saturating_sub(ranges.len() + 1);
            if at > start && (is_full || is_due) {
                ranges.push(start..at);
                (start, sum) = (at, 0);
            }
            sum = sum.saturating_add(cost);
        }
        ranges.push(start..costs.len());
        ranges
    };
    let mut low = costs.iter().copied().max().unwrap_or(0);
    let mut high = costs.iter().copied().fold(0, u64::saturating_add);
    while low < high {
        let middle = low + (high - low) / 2;
        if ranges_within(middle).len() <= n {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    ranges_within(high)
}

/// Estimates the time a thread needs for a tensor: reading two bytes per element, encoding, writing. The figures depend
/// on the machine, their ratios less so. The estimate is not measured at run time, because all shares must compute the
/// same division.
fn picoseconds(tensor: &TensorMeta) -> u64 {
    WorkCost::of(tensor).total()
}

/// Estimated time that a thread needs for a tensor, in picoseconds, as shares are divided by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkCost {
    /// Reading its source.
    pub read: u64,
    /// Encoding it.
    pub encode: u64,
    /// Writing it.
    pub write: u64,
}

impl WorkCost {
    /// Estimates the work of a tensor in its type.
    pub fn of(tensor: &TensorMeta) -> Self {
        let n_elems = tensor.shape.n_elems();
        Self {
            read: n_elems.saturating_mul(2).saturating_mul(PS_PER_BYTE),
            encode: n_elems.saturating_mul(encoding_picoseconds(tensor.ty)),
            write: tensor.n_bytes().unwrap_or(0).saturating_mul(PS_PER_BYTE),
        }
    }

    /// Returns the sum.
    pub fn total(self) -> u64 {
        self.read.saturating_add(self.encode).saturating_add(self.write)
    }
}

/// Picoseconds to encode an element on one thread with AVX-512, from `lab/peers/bench_blocks.py`.
fn encoding_picoseconds(ty: GgmlType) -> u64 {
    match ty {
        GgmlType::Q4_0 | GgmlType::Q5_0 | GgmlType::Q6K | GgmlType::Q3K => 2_500,
        GgmlType::Q4_1 | GgmlType::Q5_1 | GgmlType::Q4K | GgmlType::Q5K | GgmlType::Q2K => 8_200,
        GgmlType::Iq4Nl | GgmlType::Iq4Xs => 6_200,
        GgmlType::Mxfp4 | GgmlType::Nvfp4 => 1_700,
        GgmlType::Iq3S | GgmlType::Iq2Xs => 40_000,
        GgmlType::Iq3Xxs => 52_000,
        GgmlType::Iq2Xxs => 33_000,
        GgmlType::Iq2S => 27_000,
        GgmlType::Iq1M | GgmlType::Iq1S => 17_000,
        _ => 400,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_core::Shape;

    fn tensors(sizes: &[u64], ty: GgmlType) -> Vec<TensorMeta> {
        let tensor = |(at, &n): (usize, &u64)| TensorMeta {
            name: format!("t{at}"),
            shape: Shape::new(vec![n]).unwrap(),
            ty,
        };
        sizes.iter().enumerate().map(tensor).collect()
    }

    #[test]
    fn shares_are_written_and_read() {
        let share: Share = "2/8".parse().unwrap();
        assert_eq!((share.number(), share.count(), share.to_string()), (2, 8, "2/8".to_owned()));
        for bad in ["", "2", "0/8", "9/8", "0/0", "1/", "/3", "1/70000", "-1/2", "1/2/3", "a/b"] {
            assert_eq!(bad.parse::<Share>(), Err(ShareError { found: bad.to_owned() }), "{bad}");
        }
    }

    #[test]
    fn the_dearest_share_is_as_cheap_as_can_be() {
        let list = tensors(&[8, 1, 1, 1, 1, 8, 4, 4], GgmlType::F16);
        assert_eq!(balanced(&list, 1), std::iter::once(0..8).collect::<Vec<_>>());
        assert_eq!(balanced(&list, 3), [0..3, 3..6, 6..8]);
        assert_eq!(balanced(&list, 8), (0..8).map(|at| at..at + 1).collect::<Vec<_>>());
        let share: Share = "2/3".parse().unwrap();
        assert_eq!((share.of_costs(&[8, 1, 1, 1, 1, 8, 4, 4]), share.of_tensors(list.iter())), (3..6, 3..6));
        // Fewer entries than shares: the last shares are empty.
        assert_eq!(
            ["1/3", "2/3", "3/3"].map(|text| text.parse::<Share>().unwrap().of_costs(&[5, 5])),
            [0..1, 1..2, 2..2]
        );
        // Block types with a search cost more than their bytes.
        let mut mixed = tensors(&[256, 256, 256, 256], GgmlType::F16);
        mixed[0].ty = GgmlType::Iq3S;
        assert_eq!(balanced(&mixed, 2), [0..1, 1..4]);
    }

    #[test]
    fn a_model_that_differs_in_one_matrix_has_another_id() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = [file.path().to_owned()];
        let mut weights = vec![7; 8 << 20];
        let mut id = || {
            fs_err::write(&path[0], &weights).unwrap();
            weights[5 << 20..][..64 << 10].iter_mut().for_each(|byte| *byte += 1);
            output_id(&[], &path, "").unwrap()
        };
        assert_ne!(id(), id());
        // Of a short file every byte counts.
        let id = |byte: usize| {
            let mut short = vec![0; 9000];
            short[byte] = 1;
            fs_err::write(&path[0], short).unwrap();
            output_id(&[], &path, "").unwrap()
        };
        let ids: std::collections::BTreeSet<String> = [0, 4095, 4096, 8191, 8999].map(id).into();
        assert_eq!(ids.len(), 5);
    }

    #[test]
    fn no_share_is_empty_and_nothing_is_lost() {
        for sizes in [vec![100, 1, 1, 1], vec![1, 1, 1, 100], vec![5; 17], vec![1], (1..40).collect()] {
            let list = tensors(&sizes, GgmlType::F32);
            for n in 1..=sizes.len() {
                let ranges = balanced(&list, n);
                assert_eq!(ranges.len(), n, "{sizes:?}");
                assert!(ranges.iter().all(|range| !range.is_empty()), "{ranges:?}");
                let all: Vec<usize> = ranges.into_iter().flatten().collect();
                assert_eq!(all, (0..sizes.len()).collect::<Vec<_>>());
            }
        }
    }
}

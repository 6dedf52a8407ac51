//! Parts of an importance matrix: each is the matrix of a share of the chunks, with the exact sums in memory and the
//! identity of its run. All parts together give the matrix of a single run.

use gguf_core::text::hex;
use std::collections::BTreeMap;
use std::path::PathBuf;

use sha2::{Digest, Sha256};

use crate::{
    ColumnSums, GgufFile, ImatrixError, ImatrixSums, Metadata, PartsGap, UnfinishedRun, Value, each_once,
    value_bytes,
};
use gguf_core::exact::add_exactly;
use gguf_core::{SourceError, TensorSource};

/// Metadata keys of a part.
const NUMBER: &str = "gguf_foundry.imatrix.part";
const COUNT: &str = "gguf_foundry.imatrix.parts";
const MODEL: &str = "gguf_foundry.imatrix.part_model";
const PLAN: &str = "gguf_foundry.imatrix.part_plan";
const FIRST: &str = "gguf_foundry.imatrix.part_first_chunk";
const CHUNKS: &str = "gguf_foundry.imatrix.part_all_chunks";
/// Key of the SHA-256 of a part's keys and tensors.
pub(super) const DIGEST: &str = "gguf_foundry.imatrix.part_sha256";

/// Identity of a part of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImatrixPart {
    /// Number of the part, from 1.
    pub number: usize,
    /// Number of parts of the run.
    pub count: usize,
    /// Fingerprint of the model.
    pub model: String,
    /// Fingerprint of the run: the model, all chunks, the options.
    pub plan: String,
    /// Index of the part's first chunk among those of all parts.
    pub first_chunk: usize,
    /// Number of chunks of all parts.
    pub all_chunks: usize,
}

impl ImatrixPart {
    pub(super) fn of(metadata: &Metadata) -> Option<Self> {
        let number = |key| usize::try_from(metadata.get(key)?.as_u64()?).ok();
        let text = |key| Some(metadata.get(key).and_then(Value::as_str)?.to_owned());
        Some(Self {
            number: number(NUMBER)?,
            count: number(COUNT)?,
            model: text(MODEL)?,
            plan: text(PLAN)?,
            first_chunk: number(FIRST)?,
            all_chunks: number(CHUNKS)?,
        })
    }

    pub(super) fn set(&self, metadata: &mut Metadata) {
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        metadata.set(NUMBER, number(self.number));
        metadata.set(COUNT, number(self.count));
        metadata.set(MODEL, self.model.as_str());
        metadata.set(PLAN, self.plan.as_str());
        metadata.set(FIRST, number(self.first_chunk));
        metadata.set(CHUNKS, number(self.all_chunks));
    }
}

/// Computes the digest of a part's contents: its own keys, and all tensors.
pub(super) fn digest(metadata: &Metadata, tensors: &dyn TensorSource) -> Result<String, SourceError> {
    let mut hash = Sha256::new();
    let mut put = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    let is_own =
        |key: &str| key != DIGEST && (key.starts_with("imatrix.") || key.starts_with("gguf_foundry."));
    for (key, value) in metadata.iter().filter(|(key, _)| is_own(key)) {
        put(key.as_bytes());
        put(&value_bytes(value));
    }
    let mut bytes = Vec::new();
    for (index, meta) in tensors.tensors().iter().enumerate() {
        put(meta.name.as_bytes());
        put(meta.ty.name().as_bytes());
        let dims: Vec<u8> = meta.shape.dims().iter().flat_map(|size| size.to_le_bytes()).collect();
        put(&dims);
        let n_bytes = meta.n_bytes().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
        bytes.resize(n_bytes, 0);
        tensors.read_rows(index, 0, &mut bytes)?;
        put(&bytes);
    }
    Ok(hex(&hash.finalize()))
}

/// Returns true if the contents of a file match its digest.
pub(super) fn is_whole(file: &GgufFile) -> bool {
    let expected = file.metadata().get(DIGEST).and_then(Value::as_str);
    expected.is_some() && digest(file.metadata(), file).ok().as_deref() == expected
}

/// Importance matrix combined from all parts.
#[derive(Clone, Debug, PartialEq)]
pub struct CombinedImatrix {
    /// Sums, as from a single run.
    pub sums: ImatrixSums,
    /// Negative log likelihoods of the scored tokens, in order.
    pub nll: Vec<f64>,
    /// Identity of the single run.
    pub identity: String,
}

/// Combines the parts of one run, in any order.
///
/// # Exactness
/// Sums are added together with their rounding errors. So the file has the bytes of a single run's, unless a sum is
/// within 2⁻¹⁰⁰ (relative) of the midpoint between two values of the file (`f32`).
///
/// # Errors
/// [`ImatrixError`]: a file that is not a part, or of another run, damaged or unfinished; a part that is missing or
/// given twice.
pub fn combine_imatrix_parts(paths: &[PathBuf]) -> Result<CombinedImatrix, ImatrixError> {
    let mut parts = Vec::new();
    for path in paths {
        let (run, sums) = UnfinishedRun::open(path).map_err(|error| match error {
            ImatrixError::Finished { path } => ImatrixError::NoPart { path },
            other => other,
        })?;
        let Some(part) = run.part.clone() else {
            return Err(ImatrixError::NoPart { path: path.clone() });
        };
        if run.n_done < run.n_total {
            let (path, n_done, n_total) = (path.clone(), run.n_done, run.n_total);
            return Err(ImatrixError::UnfinishedPart { path, n_done, n_total });
        }
        parts.push((path, part, run, sums));
    }
    parts.sort_by_key(|(_, part, ..)| part.number);
    let places: Vec<_> = parts.iter().map(|(path, part, run, _)| (path.as_path(), part, run)).collect();
    belong_together(&places)?;
    let mut combined: Option<CombinedImatrix> = None;
    let mut rests: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (path, part, run, sums) in parts {
        let total = combined.get_or_insert_with(|| CombinedImatrix {
            sums: ImatrixSums { tensors: BTreeMap::new(), n_chunks: 0, ..sums.clone() },
            nll: Vec::new(),
            identity: part.plan,
        });
        if sums.chunk_size != total.sums.chunk_size {
            return Err(ImatrixError::DamagedPart { path: path.clone() });
        }
        for (name, own) in sums.tensors {
            let more = run.rests.get(&name).map(Vec::as_slice).unwrap_or_default();
            let columns = total.sums.tensors.entry(name.clone());
            let columns = columns.or_insert_with(|| ColumnSums::zero(own.n_cols, own.counts.len()));
            let (found, before) = (own.sums.len(), columns.sums.len());
            if found != before || own.counts.len() != columns.counts.len() {
                return Err(ImatrixError::DamagedPart { path: path.clone() });
            }
            let rest = rests.entry(name).or_insert_with(|| vec![0.0; found]);
            add_exactly(&mut columns.sums, rest, &own.sums, more);
            columns.counts.iter_mut().zip(own.counts).for_each(|(sum, n)| *sum = sum.saturating_add(n));
        }
        total.nll.extend(run.nll);
        total.sums.n_chunks = total.sums.n_chunks.saturating_add(run.n_done);
    }
    combined.ok_or(ImatrixError::NoParts)
}

/// Checks that sorted parts (path, part, state) belong to one run, and that each occurs once.
fn belong_together(parts: &[(&std::path::Path, &ImatrixPart, &UnfinishedRun)]) -> Result<(), ImatrixError> {
    let Some((first_path, first, _)) = parts.first() else { return Err(ImatrixError::NoParts) };
    for (path, part, _) in parts {
        let (path, other) = (path.to_path_buf(), first_path.to_path_buf());
        let what = match () {
            () if part.model != first.model => "another model",
            () if part.plan != first.plan => "another text or other options",
            () if part.count != first.count => "another number of parts",
            () => continue,
        };
        return Err(ImatrixError::OtherPart { path, other, what });
    }
    let numbers: Vec<usize> = parts.iter().map(|(_, part, _)| part.number).collect();
    match each_once(&numbers, first.count) {
        Ok(()) => {}
        Err(PartsGap::Twice { first, second, number }) => {
            let (path, other) = (parts[first].0.to_path_buf(), parts[second].0.to_path_buf());
            return Err(ImatrixError::TwicePart { path, other, number });
        }
        Err(PartsGap::Missing(numbers)) => {
            return Err(ImatrixError::MissingParts { numbers, count: first.count });
        }
    }
    let mut next = 0;
    for (path, part, run) in parts {
        let end = part.first_chunk.saturating_add(run.n_done);
        let is_end = part.number != part.count || end == part.all_chunks;
        if part.first_chunk != next || !is_end {
            return Err(ImatrixError::DamagedPart { path: path.to_path_buf() });
        }
        next = end;
    }
    Ok(())
}

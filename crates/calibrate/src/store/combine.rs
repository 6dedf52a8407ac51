//! Combination of all parts of statistics into what a single run over the whole text writes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use serde::Serialize;

use crate::moments::KindMoments;
use crate::store::manifest::{KindEntry, MomentsEntry, StatisticsManifest};
use crate::store::part::StatisticsPart;
use crate::store::tensor_file::{StoredSums, TensorFile};
use crate::store::{MANIFEST, StatisticsError, StatisticsWriter, moments_name};
use crate::{CalibrateError, LayerMoments, MatrixName, MomentSums, Moments};
use gguf_core::progress::Progress;
use gguf_engine::EngineError;
use gguf_format::{ImatrixSums, PartsGap, each_once};
use gguf_verification::ExactColumns;

/// Reason for sums that no rows can give.
const NO_SUMS: &str = "the sums of all parts are not finite, or squares that are negative";

/// Summary of combined statistics.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CombinedStatistics {
    /// Number of parts.
    #[serde(rename = "parts")]
    pub n_parts: usize,
    /// Number of tokens of all kinds of text.
    #[serde(rename = "tokens")]
    pub n_tokens: u64,
    /// Names of the kinds of text.
    pub kinds: Vec<String>,
    /// Number of layers with moments, including the entry outside of layers.
    #[serde(rename = "layers")]
    pub n_layers: usize,
}

/// Combines the parts of statistics, given in any order, into a directory that is new or empty. Memory holds the
/// moments of one layer at a time.
///
/// # Exactness
/// The directory has the bytes of a single run's, if all parts were collected with the same vector instructions: sums
/// are added with what was rounded off from them ([`gguf_engine::GramSum`]) and rounded once.
///
/// # Errors
/// Parts of different runs; a part that is missing, given twice or damaged; file system errors; cancellation.
pub fn combine_statistics(
    paths: &[PathBuf],
    output: &Path,
    sync: bool,
    progress: &dyn Progress,
) -> Result<CombinedStatistics, CalibrateError> {
    let mut parts = paths.iter().map(|path| StatisticsPart::open(path)).collect::<Result<Vec<_>, _>>()?;
    parts.sort_by_key(|part| part.part().number);
    belong_together(&parts)?;
    let first = parts.first().ok_or(StatisticsError::NoParts)?;
    let all = parts.iter().flat_map(|part| &part.manifest().layers).map(|entry| entry.layer);
    // In the order of collection: moments outside of layers come last.
    let layers: BTreeSet<(bool, Option<usize>)> = all.map(|layer| (layer.is_none(), layer)).collect();
    let text = Some(first.part().text.clone());
    let manifest = StatisticsManifest { part: None, layers: Vec::new(), text, ..first.manifest().clone() };
    let n_kinds = manifest.kinds.len();
    let found = CombinedStatistics {
        n_parts: parts.len(),
        n_tokens: manifest.kinds.iter().map(|kind| kind.tokens).fold(0, u64::saturating_add),
        kinds: manifest.kinds.iter().map(|kind| kind.name.clone()).collect(),
        n_layers: layers.len(),
    };
    let mut writer = StatisticsWriter::of_manifest(output, manifest, layers.len() + 2, sync)?;
    progress.begin("putting statistics together", parts.iter().map(StatisticsPart::n_bytes).sum());
    for (_, layer) in layers {
        if progress.is_cancelled() {
            return Err(EngineError::Cancelled.into());
        }
        let own = parts.par_iter().map(|part| PartLayer::open(part, layer, n_kinds));
        let own = own.collect::<Result<Vec<PartLayer>, StatisticsError>>()?;
        writer.add(&combined(layer, &own, n_kinds)?)?;
        progress.advance(own.iter().map(|own| own.n_bytes).sum());
    }
    writer.commit(&importance(&parts)?)?;
    progress.end();
    Ok(found)
}

/// Checks that the parts, in the order of their numbers, are those of one run, each once.
fn belong_together(parts: &[StatisticsPart]) -> Result<(), StatisticsError> {
    let first = parts.first().ok_or(StatisticsError::NoParts)?;
    for part in parts {
        if let Some(what) = difference(part, first) {
            let (path, other) = (part.path().to_owned(), first.path().to_owned());
            return Err(StatisticsError::OtherPart { path, other, what });
        }
    }
    let numbers: Vec<usize> = parts.iter().map(|part| part.part().number).collect();
    let count = first.part().count;
    match each_once(&numbers, count) {
        Ok(()) => {}
        Err(PartsGap::Twice { first, second, number }) => {
            let (path, other) = (parts[first].path().to_owned(), parts[second].path().to_owned());
            return Err(StatisticsError::TwicePart { path, other, number });
        }
        Err(PartsGap::Missing(numbers)) => return Err(StatisticsError::MissingParts { numbers, count }),
    }
    let mut next = 0;
    for part in parts {
        let own = part.part();
        let end = own.first_batch.saturating_add(own.batches);
        let is_end = own.number != count || end == own.all_batches;
        if own.number > count || own.first_batch != next || !is_end {
            let reason = "its batches are not those that the other parts have not";
            return Err(StatisticsError::DamagedPart { file: part.path().join(MANIFEST), reason });
        }
        next = end;
    }
    Ok(())
}

/// First property in which a part differs from another.
fn difference(part: &StatisticsPart, other: &StatisticsPart) -> Option<&'static str> {
    let (own, others) = (part.manifest(), other.manifest());
    let (part, other) = (part.part(), other.part());
    let names = |kinds: &[KindEntry]| kinds.iter().map(|kind| kind.name.clone()).collect::<Vec<_>>();
    let pairs = [
        ("another version of the program", part.program == other.program),
        ("another model", own.model == others.model && own.architecture == others.architecture),
        ("another tokenizer", own.tokenizer == others.tokenizer),
        ("another number of parts", part.count == other.count),
        ("other kinds of text", names(&own.kinds) == names(&others.kinds)),
        ("another text or other options", part.text == other.text && own.kinds == others.kinds),
        ("another text or other options", (own.n_ctx, own.seed) == (others.n_ctx, others.seed)),
        ("another cut of the text", part.all_batches == other.all_batches),
    ];
    pairs.into_iter().find(|(_, is_same)| !is_same).map(|(what, _)| what)
}

/// Contribution of a part to a layer.
struct PartLayer {
    path: PathBuf,
    file: Option<TensorFile>,
    n_bytes: u64,
    /// Number of columns of each matrix, and its moments in each kind of text.
    matrices: BTreeMap<MatrixName, (usize, Vec<Option<MomentsEntry>>)>,
    /// Location of the sums, by kind and number.
    sums: BTreeMap<(usize, usize), StoredSums>,
}

impl PartLayer {
    fn open(part: &StatisticsPart, layer: Option<usize>, n_kinds: usize) -> Result<Self, StatisticsError> {
        let path = part.path().to_owned();
        let mut own = Self { path, file: None, n_bytes: 0, matrices: BTreeMap::new(), sums: BTreeMap::new() };
        let Some((entry, mut file)) = part.layer(layer)? else { return Ok(own) };
        own.n_bytes = file.path.metadata().map_or(0, |found| found.len());
        for input in &entry.inputs {
            for matrix in &input.matrices {
                let name = MatrixName { tensor: matrix.tensor.clone(), expert: matrix.expert };
                own.matrices.insert(name, (input.columns, input.moments.clone()));
            }
            for (kind, moments) in input.moments.iter().take(n_kinds).enumerate() {
                let Some(at) = moments.map(|moments| moments.at) else { continue };
                match own.sums.get(&(kind, at)) {
                    Some(found) if found.n_cols == input.columns => {}
                    Some(_) => return Err(own.damaged("sums are of inputs of different widths")),
                    None => {
                        let found = file.find_sums(&moments_name(kind, at), input.columns)?;
                        own.sums.insert((kind, at), found);
                    }
                }
            }
        }
        file.check_empty()?;
        own.file = Some(file);
        Ok(own)
    }

    fn damaged(&self, reason: &'static str) -> StatisticsError {
        StatisticsError::DamagedPart { file: self.path.join(MANIFEST), reason }
    }
}

/// Moments of a layer over all parts.
fn combined(
    layer: Option<usize>,
    parts: &[PartLayer],
    n_kinds: usize,
) -> Result<LayerMoments, StatisticsError> {
    let mut columns: BTreeMap<&MatrixName, usize> = BTreeMap::new();
    for part in parts {
        for (matrix, (n_cols, _)) in &part.matrices {
            if columns.insert(matrix, *n_cols).is_some_and(|before| before != *n_cols) {
                return Err(part.damaged("a matrix has another number of columns than in other parts"));
            }
        }
    }
    let mut kinds: Vec<KindMoments<Moments>> = Vec::with_capacity(n_kinds);
    for kind in 0..n_kinds {
        // Matrices that share their sums in every part share them in the result.
        let mut groups: BTreeMap<Vec<Option<MomentsEntry>>, Vec<MatrixName>> = BTreeMap::new();
        for &matrix in columns.keys() {
            let own = |part: &PartLayer| part.matrices.get(matrix)?.1.get(kind).copied().flatten();
            let places: Vec<Option<MomentsEntry>> = parts.iter().map(own).collect();
            if places.iter().any(Option::is_some) {
                groups.entry(places).or_default().push(matrix.clone());
            }
        }
        let groups: Vec<_> = groups.into_iter().collect();
        let sums = groups.into_par_iter().map(|(places, matrices)| {
            let n_cols = matrices.first().and_then(|matrix| columns.get(matrix)).copied().unwrap_or(0);
            Ok((matrices, sum(kind, n_cols, &places, parts)?))
        });
        kinds.push(sums.collect::<Result<_, StatisticsError>>()?);
    }
    Ok(LayerMoments::of(layer, kinds))
}

/// Sum of the moments that parts have in these places.
fn sum(
    kind: usize,
    n_cols: usize,
    places: &[Option<MomentsEntry>],
    parts: &[PartLayer],
) -> Result<Moments, StatisticsError> {
    // Safe to allocate: the sizes were checked against the bytes of the files.
    let mut total = MomentSums::zero(n_cols);
    for (part, place) in parts.iter().zip(places) {
        let Some(MomentsEntry { at, rows }) = *place else { continue };
        let (Some(file), Some(sums)) = (&part.file, part.sums.get(&(kind, at))) else {
            return Err(part.damaged("sums are named that are not there"));
        };
        file.add_sums(sums, total.sums_of_more(rows))?;
    }
    // A damaged rest may be larger than its sum.
    let moments = total.round();
    if !moments.are_sums() {
        let file = parts.first().map(|part| part.path.join(MANIFEST)).unwrap_or_default();
        return Err(StatisticsError::DamagedPart { file, reason: NO_SUMS });
    }
    Ok(moments)
}

/// Importance sums of all parts, by kind.
fn importance(parts: &[StatisticsPart]) -> Result<Vec<ImatrixSums>, StatisticsError> {
    let mut kinds: Vec<BTreeMap<String, ExactColumns>> = Vec::new();
    for part in parts {
        let own = part.importance()?;
        kinds.resize(own.len(), BTreeMap::new());
        for (total, own) in kinds.iter_mut().zip(own) {
            for (name, columns) in own {
                match total.get_mut(&name) {
                    None => _ = total.insert(name, columns),
                    Some(sum)
                        if sum.rests.len() == columns.rests.len()
                            && sum.columns.n_cols == columns.columns.n_cols =>
                    {
                        sum.add(&columns);
                    }
                    Some(_) => {
                        let reason = "importance sums of another shape than in other parts";
                        return Err(StatisticsError::DamagedPart { file: part.path().to_owned(), reason });
                    }
                }
            }
        }
    }
    let is_sum = |sum: &f64| sum.is_finite() && *sum >= 0.0;
    if !kinds.iter().flat_map(BTreeMap::values).all(|exact| exact.columns.sums.iter().all(is_sum)) {
        let file = parts.first().map(|part| part.path().to_owned()).unwrap_or_default();
        return Err(StatisticsError::DamagedPart { file, reason: NO_SUMS });
    }
    let whole = |tensors: BTreeMap<String, ExactColumns>| ImatrixSums {
        tensors: tensors.into_iter().map(|(name, exact)| (name, exact.columns)).collect(),
        datasets: Vec::new(),
        n_chunks: 0,
        chunk_size: 0,
    };
    Ok(kinds.into_iter().map(whole).collect())
}

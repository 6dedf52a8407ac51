//! Examination of a file: how each tensor was made of the source.

use std::path::Path;

use crate::arch::diffusion::DiffusionRules;
use crate::core::TensorSource;
use crate::core::progress::Progress;
use crate::gguf::{GgufFile, WriteError};
use crate::job::Result;
use crate::job::recipe::keys::FoundKeys;
use crate::job::recipe::layout::{padding, trailing_bytes};
use crate::job::recipe::near::{decoded, follows};
use crate::job::recipe::report::{
    BlockDifference, FileRecipe, ImportanceFinding, ImportanceUse, TensorFinding, TensorStatus,
};
use crate::job::recipe::trial::{Compared, Way, compare, has_rows_of, probe, whole};
use crate::job::recipe::{RecipeSource, keys};

/// Largest deviation between the first rows of two tensors, as a share of their magnitude, at which one is tried as the
/// origin of the other.
const RELATED: f64 = 0.95;

/// Way in which a tensor is made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) source: usize,
    pub(super) way: Way,
    /// True if every block is equal.
    pub(super) is_exact: bool,
}

/// Findings about one tensor.
pub(super) struct ExaminedTensor {
    finding: TensorFinding,
    /// How the tensor is made; `None` if its bytes must be kept.
    pub(super) origin: Option<Origin>,
    /// True or false if only one of the two ways reproduces the tensor: with importance, or without.
    needs_importance: Option<bool>,
}

/// Findings about a file.
pub(super) struct Examined<'a> {
    file: &'a GgufFile,
    source: &'a RecipeSource,
    pub(super) tensors: Vec<ExaminedTensor>,
}

/// A way that was tried.
struct Trial {
    origin: Origin,
    compared: Compared,
    needs_importance: Option<bool>,
}

/// Finds out how the tensors of a file were made. The tensors are examined one after the other, each by all threads.
pub(super) fn examine<'a>(
    file: &'a GgufFile,
    source: &'a RecipeSource,
    progress: &dyn Progress,
) -> Result<Examined<'a>> {
    progress.begin("comparing with the source", file.tensor_bytes());
    let prefers_importance = keys::names_matrix(file.metadata());
    let rules = DiffusionRules::of_file(file.metadata(), file.tensors()).ok().flatten();
    let examiner = Examiner { file, source, rules, prefers_importance, progress };
    let examined: Result<Vec<_>, WriteError> = (0..file.tensors().len())
        .map(|tensor| {
            let examined = examiner.tensor(tensor);
            file.release_rows(tensor, 0, file.tensors()[tensor].shape.n_rows());
            progress.advance(file.place(tensor).n_bytes);
            examined
        })
        .collect();
    progress.end();
    Ok(Examined { file, source, tensors: examined? })
}

struct Examiner<'a> {
    file: &'a GgufFile,
    source: &'a RecipeSource,
    /// Rules of an image or video model, whose names may have a prefix.
    rules: Option<DiffusionRules>,
    /// True if importance is tried first.
    prefers_importance: bool,
    progress: &'a dyn Progress,
}

impl Examiner<'_> {
    fn tensor(&self, tensor: usize) -> Result<ExaminedTensor, WriteError> {
        let meta = &self.file.tensors()[tensor];
        let own_name = self.rules.as_ref().map_or(&*meta.name, |rules| rules.own_name(&meta.name));
        let same_name = self.source.index_of(own_name);
        let status_of_others = match same_name {
            Some(_) => TensorStatus::NotFromSource,
            None => TensorStatus::NoSuchTensor,
        };
        let namesake = same_name.filter(|&at| has_rows_of(&self.source.tensors()[at], meta));
        let trial = namesake.map(|at| self.best(tensor, at)).transpose()?.flatten();
        if let Some(trial) = trial.as_ref().filter(|trial| trial.compared.is_exact()) {
            return Ok(self.examined(tensor, TensorStatus::Reproduced, Some(trial)));
        }
        if trial.as_ref().is_none_or(|trial| trial.compared.is_mostly_different())
            && let Some(found) = self.elsewhere(tensor, same_name)?
        {
            return Ok(self.examined(tensor, status_of_others, Some(&found)));
        }
        let Some(origin) = namesake else {
            return Ok(self.examined(tensor, status_of_others, None));
        };
        let way = trial.as_ref().map(|trial| trial.origin.way);
        let made = way.and_then(|way| self.source.made(origin, meta.ty, way));
        let rows = match &trial {
            // Of a tensor of which nothing is equal, parts are enough.
            Some(trial) if !trial.compared.is_mostly_different() => whole(meta),
            _ => probe(meta),
        };
        let is_near = follows(self.source, origin, made.as_ref(), self.file, tensor, &rows, self.progress)?;
        let status = if is_near { TensorStatus::Near } else { TensorStatus::NotFromSource };
        Ok(self.examined(tensor, status, trial.as_ref().filter(|_| is_near)))
    }

    fn examined(&self, tensor: usize, status: TensorStatus, trial: Option<&Trial>) -> ExaminedTensor {
        let meta = &self.file.tensors()[tensor];
        let origin = trial.map(|trial| trial.origin);
        let from = origin.map(|origin| &self.source.tensors()[origin.source]);
        let way = origin.zip(from).map(|(origin, from)| match origin.way {
            Way::Importance => "quantized with importance",
            Way::Plain if from.ty == meta.ty => "copied",
            Way::Plain => "quantized without importance",
        });
        let differing = trial.map(|trial| trial.compared).filter(|compared| !compared.is_exact());
        let finding = TensorFinding {
            name: meta.name.clone(),
            ty: meta.ty,
            status,
            way,
            from: from.filter(|from| from.name != meta.name).map(|from| from.name.clone()),
            differing: differing.map(|compared| BlockDifference {
                first: compared.first.unwrap_or(0),
                n_differing: compared.n_differing,
                n_blocks: compared.n_blocks,
            }),
        };
        ExaminedTensor { finding, origin, needs_importance: trial.and_then(|trial| trial.needs_importance) }
    }

    /// Tries the ways to make a tensor of the file of one of the source, the likelier first, and returns the best one.
    fn best(&self, tensor: usize, source: usize) -> Result<Option<Trial>, WriteError> {
        let meta = &self.file.tensors()[tensor];
        let mut probed = Vec::new();
        for way in self.ways() {
            if let Some(made) = self.source.made(source, meta.ty, way)
                && let Some(found) = compare(&made, self.file, tensor, &probe(meta), self.progress)?
            {
                probed.push((way, made, found));
            }
        }
        let other_differs =
            |way: Way| probed.iter().any(|(other, _, found)| *other != way && !found.is_exact());
        let mut order: Vec<_> = probed.iter().collect();
        order.sort_by_key(|(_, _, found)| found.n_differing);
        let mut best: Option<Trial> = None;
        for (way, made, found) in order {
            if best.is_some() && found.is_mostly_different() {
                break;
            }
            let Some(compared) = compare(made, self.file, tensor, &whole(meta), self.progress)? else {
                continue;
            };
            if best.as_ref().is_none_or(|best| compared.n_differing < best.compared.n_differing) {
                let origin = Origin { source, way: *way, is_exact: compared.is_exact() };
                let tells = compared.is_exact() && other_differs(*way);
                let needs_importance = tells.then_some(*way == Way::Importance);
                best = Some(Trial { origin, compared, needs_importance });
            }
            if compared.is_exact() {
                break;
            }
        }
        Ok(best)
    }

    fn ways(&self) -> [Way; 2] {
        if self.prefers_importance { [Way::Importance, Way::Plain] } else { [Way::Plain, Way::Importance] }
    }

    /// Looks for a tensor of another name of which the tensor was made.
    fn elsewhere(&self, tensor: usize, same_name: Option<usize>) -> Result<Option<Trial>, WriteError> {
        let meta = &self.file.tensors()[tensor];
        let first = [std::ops::Range { start: 0, end: 1 }];
        for (source, other) in self.source.tensors().iter().enumerate() {
            if Some(source) == same_name || !has_rows_of(other, meta) || !self.is_related(tensor, source)? {
                continue;
            }
            for way in self.ways() {
                let Some(made) = self.source.made(source, meta.ty, way) else { continue };
                let is_exact = |rows: &[std::ops::Range<u64>]| -> Result<bool, WriteError> {
                    let compared = compare(&made, self.file, tensor, rows, self.progress)?;
                    Ok(compared.is_some_and(|compared| compared.is_exact()))
                };
                if is_exact(&first)? && is_exact(&whole(meta))? {
                    let origin = Origin { source, way, is_exact: true };
                    let compared = Compared::default();
                    return Ok(Some(Trial { origin, compared, needs_importance: None }));
                }
            }
        }
        Ok(None)
    }

    /// Compares the first rows roughly. Vectors resemble one another, and are small.
    fn is_related(&self, tensor: usize, source: usize) -> Result<bool, WriteError> {
        let meta = &self.file.tensors()[tensor];
        if meta.shape.rank() < 2 {
            return Ok(true);
        }
        let n_cols = usize::try_from(meta.shape.n_cols()).unwrap_or(usize::MAX);
        let row = |from: &dyn TensorSource, at: usize| decoded(self.source, from, at, &(0..1), n_cols);
        let (Some(theirs), Some(ours)) = (row(self.file, tensor)?, row(self.source.rows(), source)?) else {
            return Ok(true);
        };
        let square = |value: f64| value * value;
        let deviation: f64 =
            theirs.iter().zip(&ours).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
        let magnitude: f64 = ours.iter().map(|value| square(f64::from(*value))).sum();
        // Values that are not finite may be equal bytes all the same.
        Ok(!deviation.is_finite() || deviation <= square(RELATED) * magnitude)
    }
}

impl Examined<'_> {
    pub(super) fn report(&self, path: &Path, sha256: String) -> FileRecipe {
        let tensors: Vec<TensorFinding> = self.tensors.iter().map(|tensor| tensor.finding.clone()).collect();
        let count = |status| tensors.iter().filter(|tensor| tensor.status == status).count();
        let FoundKeys { mixture, rules, keys, key_order_differs } = FoundKeys::of(self.file, self.source);
        let names: std::collections::HashSet<&str> =
            self.file.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
        let is_part = keys::is_part(self.file.metadata());
        let missing = self.source.tensors().iter().map(|tensor| &tensor.name);
        let missing: Vec<String> =
            missing.filter(|name| !is_part && !names.contains(name.as_str())).cloned().collect();
        let padding = padding(self.file);
        let trailing_bytes = trailing_bytes(self.file);
        let is_reproduced = |tensor: &TensorFinding| tensor.status == TensorStatus::Reproduced;
        let is_explained = tensors.iter().all(is_reproduced)
            && missing.is_empty()
            && keys.is_empty()
            && padding.is_empty()
            && trailing_bytes == 0;
        FileRecipe {
            file: path.to_owned(),
            file_bytes: self.file.file_bytes(),
            sha256,
            is_explained,
            mixture,
            rules,
            importance: self.importance(),
            n_reproduced: count(TensorStatus::Reproduced),
            n_near: count(TensorStatus::Near),
            n_not_from_source: count(TensorStatus::NotFromSource),
            n_no_such_tensor: count(TensorStatus::NoSuchTensor),
            tensors,
            missing,
            keys,
            key_order_differs,
            padding,
            trailing_bytes,
            recipe: None,
            seconds: 0.0,
        }
    }

    fn importance(&self) -> ImportanceFinding {
        let count =
            |needed| self.tensors.iter().filter(|tensor| tensor.needs_importance == Some(needed)).count();
        let (n_with, n_without) = (count(true), count(false));
        let is_used = match (n_with, n_without) {
            (0, 0) => ImportanceUse::Unknown,
            (0, _) => ImportanceUse::NotUsed,
            _ => ImportanceUse::Used,
        };
        ImportanceFinding {
            is_used,
            is_given: self.source.has_matrix(),
            n_with,
            n_without,
            keys: keys::matrix_keys(self.file.metadata()),
        }
    }

    /// Returns true if some tensor is made with importance.
    pub(super) fn needs_matrix(&self) -> bool {
        self.tensors.iter().any(|tensor| tensor.origin.is_some_and(|origin| origin.way == Way::Importance))
    }
}

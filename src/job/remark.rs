//! Remarks about a plan and its result that do not stop a job.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use crate::core::text::{escape, plural};
use crate::core::{TensorMeta, TensorSource};
use crate::gguf::{Metadata, Value};
use crate::job::beside_text::in_parts;
use crate::quant::SmallRows;
use crate::quantize::{CoveragePolicy, FileType, QuantizePlan, Reason, StandIn};
use crate::verify::Finding;

/// Remark, in parts, so that a long list of names can be shortened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remark {
    /// Remark without its names.
    pub text: String,
    /// Names that it is about, in backticks, each perhaps with a reason; may be empty.
    pub names: Vec<String>,
    /// Advice after the names; may be empty.
    pub advice: String,
}

impl Remark {
    fn new(text: String, names: Vec<String>) -> Self {
        Self { text, names, advice: String::new() }
    }

    /// Returns the remark with at most `n` names; `more` describes the number of those left out.
    pub fn shortened(&self, n: usize, more: impl FnOnce(usize) -> String) -> String {
        let Self { text, names, advice } = self;
        let listed = names.iter().take(n).map(String::as_str).collect::<Vec<_>>().join(", ");
        let more = names.len().checked_sub(n).filter(|&left| left > 0).map_or_else(String::new, more);
        let colon = if names.is_empty() { "" } else { ": " };
        format!("{text}{colon}{listed}{more}{advice}")
    }
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shortened(self.names.len(), |_| String::new()))
    }
}

fn quoted(names: &[String]) -> Vec<String> {
    names.iter().map(|name| format!("`{}`", escape(name))).collect()
}

fn tensors(n: usize) -> String {
    plural(n as u64, "tensor")
}

/// Returns the remark about tensors that contain only zeros, which a checkpoint hardly has on purpose.
pub(super) fn of_zeros(names: &[String]) -> Option<Remark> {
    let text = format!("{} with nothing but zeros", tensors(names.len()));
    (!names.is_empty()).then(|| Remark::new(text, quoted(names)))
}

/// Returns the warning about rows whose values were too small for their type.
pub(super) fn of_small_rows(found: &[(&TensorMeta, SmallRows)]) -> Option<String> {
    let (tensor, small) = found.first()?;
    let row = small.first?;
    let n_rows = found.iter().map(|(_, small)| small.n_rows).sum();
    Some(format!(
        "{} of {} came out as zeros or nearly, too small for the type: the first is row {} of `{}` (values up to \
         {:e}, {})",
        plural(n_rows, "row"),
        tensors(found.len()),
        row.row,
        escape(&tensor.name),
        row.largest,
        tensor.ty,
    ))
}

/// Returns the remarks about unexpected decisions of a plan. `asked` is the file type, unless a size decides.
pub(super) fn of_plan(
    plan: &QuantizePlan<'_>,
    asked: Option<FileType>,
    policy: CoveragePolicy,
    has_matrix: bool,
) -> Vec<Remark> {
    fallbacks(plan, asked).into_iter().chain(of_choices(plan, policy, has_matrix)).collect()
}

/// Returns the remarks about unexpected decisions of a plan, without those about fallback types. `has_matrix` is true if an
/// importance matrix was given; a calibration measures its own.
pub(super) fn of_choices(plan: &QuantizePlan<'_>, policy: CoveragePolicy, has_matrix: bool) -> Vec<Remark> {
    let warnings = plan.warnings().iter();
    let mut remarks: Vec<Remark> =
        warnings.map(|text| Remark { text: text.clone(), ..Remark::default() }).collect();
    let idle = plan.idle_options().iter().filter(|idle| has_matrix || idle.option != "--imatrix");
    let idle: Vec<_> = idle.collect();
    if !idle.is_empty() {
        let names = idle.iter().map(|idle| format!("`{}` ({})", idle.option, idle.why)).collect();
        let text = format!("{} without effect", plural(idle.len() as u64, "option"));
        remarks.push(Remark::new(text, names));
    }
    if policy != CoveragePolicy::Ignore {
        remarks.extend(of_coverage(plan));
    }
    remarks
}

/// Parts of file names that llama.cpp's `-hf` does not take for a model (`gguf_filename_is_model` of its download.cpp).
const NOT_OF_MODELS: [&str; 6] = ["mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-"];
/// Architectures and kinds of files that such names are made for.
const BESIDE_MODELS: [&str; 3] = ["clip", "eagle3", "dflash"];

/// Returns the warnings about the names and the number of files of one output. `is_image` is true for an image or video
/// model.
pub(super) fn of_files(
    paths: &[PathBuf],
    metadata: &Metadata,
    tensors: &[TensorMeta],
    is_image: bool,
) -> Vec<String> {
    let Some(name) = paths.first().and_then(|path| path.file_name()) else { return Vec::new() };
    let (name, mut found) = (name.to_string_lossy(), Vec::new());
    let word = |key: &str| metadata.get(key).and_then(Value::as_str).unwrap_or_default();
    let is_model = !is_image
        && !BESIDE_MODELS.contains(&word("general.architecture"))
        && word("general.type") != "adapter"
        && tensors.iter().any(|tensor| tensor.name.contains("blk.0."));
    if let Some(part) = NOT_OF_MODELS.iter().find(|part| is_model && name.contains(**part)) {
        found.push(format!(
            "{}: `-hf` of llama.cpp takes no file with `{part}` in its name for a model: rename it, or its source before",
            escape(&name)
        ));
    }
    found.extend(in_parts(paths, metadata, tensors));
    found
}

/// Returns the warning about the errors that keys and tensors of a source have by themselves.
pub(super) fn of_source(path: &Path, errors: &[Finding]) -> Option<String> {
    let (first, others) = errors.split_first()?;
    let rest = match others.len() {
        0 => String::new(),
        n => format!("; and {}", plural(n as u64, "other error")),
    };
    Some(format!(
        "{}: {}{rest}. What is written has the same; `gguf-verify --structure-only` lists everything",
        path.display(),
        located(first)
    ))
}

/// Returns the message of a finding, with its tensor.
pub(super) fn located(finding: &Finding) -> String {
    let tensor = finding.tensor.as_ref().map_or_else(String::new, |name| format!("`{}`: ", escape(name)));
    format!("{tensor}{}", finding.message)
}

/// Tensors whose type was replaced.
#[derive(Default)]
struct Fallbacks {
    /// Row widths that are not a multiple of the wanted block size, by block size.
    widths: BTreeMap<usize, BTreeSet<u64>>,
    /// Names, with both types.
    names: Vec<String>,
}

impl Fallbacks {
    fn of(plan: &QuantizePlan<'_>) -> Self {
        let mut found = Self::default();
        for (step, tensor) in plan.steps().iter().zip(plan.tensors()) {
            if let Reason::Fallback { wanted } = step.choice.reason {
                found.widths.entry(wanted.block_elems()).or_default().insert(tensor.shape.n_cols());
                found.names.push(format!("`{}` {wanted} -> {}", escape(&tensor.name), tensor.ty));
            }
        }
        found
    }
}

/// Returns one remark about the fallback types of several files, with the names of the first that has any.
pub(super) fn of_fallbacks(files: &[(&str, &QuantizePlan<'_>)]) -> Option<Remark> {
    let found = files.iter().map(|(name, plan)| (*name, Fallbacks::of(plan)));
    let found: Vec<(&str, Fallbacks)> = found.filter(|(_, own)| !own.names.is_empty()).collect();
    let ((first, own), most) = found.first().zip(found.iter().map(|(_, own)| own.names.len()).max())?;
    let mut widths = BTreeMap::<usize, BTreeSet<u64>>::new();
    for (block, row_widths) in found.iter().flat_map(|(_, own)| &own.widths) {
        widths.entry(*block).or_default().extend(row_widths);
    }
    let most = tensors(most);
    let which = match found.as_slice() {
        [_] => format!("{most} of {first} in another type"),
        several => format!(
            "{} of {} files with up to {most} in another type; of {first}",
            several.len(),
            files.len()
        ),
    };
    Some(Remark::new(format!("{}, {which}", unfit_rows(&widths)), own.names.clone()))
}

/// Returns the remark about fallback types.
fn fallbacks(plan: &QuantizePlan<'_>, asked: Option<FileType>) -> Option<Remark> {
    let Fallbacks { widths, names } = Fallbacks::of(plan);
    let asked = asked.map_or_else(String::new, |asked| format!("{asked} asked, "));
    let text = format!(
        "{asked}{:.2} bits per weight come out: {}, {} of another type",
        plan.summary().total.bits_per_weight,
        unfit_rows(&widths),
        tensors(names.len()),
    );
    (!names.is_empty()).then(|| Remark::new(text, names))
}

/// Describes row widths that are not a multiple of the wanted block size, by block size.
fn unfit_rows(widths: &BTreeMap<usize, BTreeSet<u64>>) -> String {
    let row = |(block, widths): (&usize, &BTreeSet<u64>)| {
        let few = widths.iter().take(3).map(u64::to_string).collect::<Vec<_>>().join(", ");
        let more = widths.len().checked_sub(4).map_or_else(String::new, |n| format!(" and {} more", n + 1));
        format!("rows of {few}{more} values hold no whole blocks of {block}")
    };
    widths.iter().rev().map(row).collect::<Vec<_>>().join(", ")
}

/// Returns the remarks about gaps of the importance matrix.
fn of_coverage(plan: &QuantizePlan<'_>) -> Vec<Remark> {
    let coverage = plan.coverage();
    let elsewhere = |pair: &StandIn| {
        format!(
            " (`{}` has the same input as `{}`: --share-importance takes its importance)",
            escape(&pair.entry),
            escape(&pair.tensor)
        )
    };
    let stand_in = |pair: &StandIn| format!("`{}` of `{}`", escape(&pair.tensor), escape(&pair.entry));
    let unseen = coverage.unseen.iter();
    let unseen =
        unseen.map(|found| format!("`{}` {} of {}", escape(&found.tensor), found.experts.len(), found.of));
    let about =
        |names: Vec<String>, text: &str| Remark::new(format!("{} {text}", tensors(names.len())), names);
    let missing = about(quoted(&coverage.missing), "without importance data");
    let foreign =
        format!("importance data for {} that the model does not have", tensors(coverage.foreign.len()));
    let few = coverage.few_tokens.map(|n| {
        let text = format!("the importance matrix saw {n} tokens only: it says little about other texts");
        Remark::new(text, Vec::new())
    });
    let remarks = [
        Remark { advice: coverage.elsewhere.first().map(elsewhere).unwrap_or_default(), ..missing },
        about(
            coverage.stand_ins.iter().map(stand_in).collect(),
            "with the importance of another that has the same input",
        ),
        about(
            quoted(&coverage.level),
            "whose importance is zero throughout, quantized with equal weights instead",
        ),
        about(unseen.collect(), "with experts never seen"),
        about(quoted(&coverage.lost), "with groups of columns of no importance at all, which become zeros"),
        Remark::new(foreign, quoted(&coverage.foreign)),
    ];
    remarks.into_iter().filter(|remark| !remark.names.is_empty()).chain(few).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_a_source_are_told_once() {
        let error = |text: &str| Finding::error(crate::verify::Check::Keys, text.to_owned());
        let of = |errors: &[Finding]| of_source(Path::new("m.gguf"), errors);
        assert_eq!(of(&[]), None);
        let rest = ". What is written has the same; `gguf-verify --structure-only` lists everything";
        assert_eq!(of(&[error("a").of("t")]), Some(format!("m.gguf: `t`: a{rest}")));
        assert_eq!(
            of(&[error("a"), error("b"), error("c")]),
            Some(format!("m.gguf: a; and 2 other errors{rest}"))
        );
    }

    #[test]
    fn long_lists_are_shortened() {
        let names = |n: usize| (0..n).map(|at| format!("`t{at}`")).collect();
        let short = |remark: &Remark| remark.shortened(2, |left| format!(" and {left} more"));
        let remark =
            Remark { advice: " (try x)".to_owned(), ..Remark::new("3 tensors".to_owned(), names(3)) };
        assert_eq!(short(&remark), "3 tensors: `t0`, `t1` and 1 more (try x)");
        assert_eq!(remark.to_string(), "3 tensors: `t0`, `t1`, `t2` (try x)");
        assert_eq!(short(&Remark::new("2 tensors".to_owned(), names(2))), "2 tensors: `t0`, `t1`");
        assert_eq!(short(&Remark { text: "as it is".to_owned(), ..Remark::default() }), "as it is");
    }
}

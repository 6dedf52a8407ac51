//! What a page tells about running a file.

use serde::Serialize;

use crate::cli::modelfile::PromptForm;
use crate::cli::quantize::ladder::document::LadderEntry;

/// How to run a file of a folder.
#[derive(Clone, Debug, Serialize)]
pub(super) struct LadderUsage {
    /// Repository that the upload line names.
    pub(super) repository: String,
    /// Type that is recommended.
    #[serde(rename = "type")]
    pub(super) name: String,
    /// Form of a prompt.
    #[serde(flatten)]
    pub(super) form: PromptForm,
    /// True if a Modelfile is in the folder.
    pub(super) modelfile: bool,
}

/// Returns the recommended file: the smallest that is very good or, if nothing was measured, the one of Q4_K_M, or the
/// one in the middle.
pub(super) fn recommended(files: &[LadderEntry]) -> Option<&LadderEntry> {
    let word =
        |entry: &LadderEntry| Some(entry.figures.as_ref()?.figures.recommendation.starts_with("recommended"));
    let is_measured = files.iter().any(|entry| entry.mean_kld().is_some());
    let usual = || files.iter().find(|entry| !is_measured && entry.file.name == "Q4_K_M");
    let named = files.iter().find(|entry| word(entry) == Some(true)).or_else(usual);
    let best = |a: &&LadderEntry, b: &&LadderEntry| {
        let kld = |entry: &LadderEntry| entry.mean_kld().unwrap_or(f64::INFINITY);
        kld(a).total_cmp(&kld(b))
    };
    named.or_else(|| if is_measured { files.iter().min_by(best) } else { files.get(files.len() / 2) })
}

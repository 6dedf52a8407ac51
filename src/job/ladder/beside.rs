//! Files beside the quantizations: the towers of a checkpoint, and its draft heads.

use crate::arch::{CardKind, DraftHeads, OutType};
use crate::convert::{Codes, Conversion, ConvertOptions};
use crate::core::GgmlType;
use crate::core::progress::Progress;
use crate::job::input::OpenedInput;
use crate::job::ladder::part::Records;
use crate::job::ladder::{Ladder, LadderFile, LadderFilePlan, sums};
use crate::job::{
    Contradiction, ConversionPlan, Events, Job, JobError, JobPlan, JobReport, JobTypes, Remark,
};

/// Part of a checkpoint that has a file of its own, the same for all quantizations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Companion {
    /// Vision and audio towers, in F16.
    Towers,
    /// Draft heads, in Q8_0: what they propose is checked by the model.
    DraftHeads,
}

impl Companion {
    /// Returns the parts that a model has.
    pub(super) fn of(opened: &OpenedInput) -> Vec<Self> {
        let Some(conversion) = opened.conversion() else { return Vec::new() };
        let has = [
            (Self::Towers, Conversion::has_towers(conversion)),
            (Self::DraftHeads, Conversion::has_draft_heads(conversion)),
        ];
        has.into_iter().filter(|(_, has)| *has).map(|(companion, _)| companion).collect()
    }

    /// Job that writes the file.
    fn job(self, ladder: &Ladder) -> Job {
        let common = ladder.common();
        let (convert, file_type, codes) = match self {
            Self::Towers => {
                let convert = ConvertOptions { kind: CardKind::Mmproj, ..common.convert.clone() };
                (convert, OutType::F16, Codes::Card)
            }
            Self::DraftHeads => {
                let convert = ConvertOptions { heads: DraftHeads::Alone, ..common.convert.clone() };
                (convert, OutType::Q8_0, Codes::Keep(GgmlType::Q8_0))
            }
        };
        let types = JobTypes::Plain { file_type: Some(file_type), codes };
        Job { types, convert, ..common }
    }

    /// Writes the file, unless a part has written it. `id` identifies the sources and options of all files.
    pub(super) fn write(
        self,
        ladder: &Ladder,
        events: &dyn Events,
        id: &str,
        records: &mut Records,
    ) -> Result<LadderFile, JobError> {
        let job = self.job(ladder);
        let file = match recorded(&job, events, id, records)? {
            Some(file) => file,
            None => {
                let JobReport::Convert(report) = job.run(events)? else {
                    return Err(Contradiction::NotConverted.into());
                };
                let plan = LadderFilePlan {
                    name: report.encoding,
                    paths: report.files,
                    file_bytes: report.file_bytes,
                    bits_per_weight: report.bits_per_weight,
                    n_fallbacks: 0,
                    is_alone: true,
                    is_calibrated: false,
                };
                LadderFile { sha256: sums::of_files(&plan.paths, events.progress())?, plan, was_there: false }
            }
        };
        records.add(id, &file)?;
        Ok(file)
    }
}

/// Returns the file of a job if a part has written it.
fn recorded(
    job: &Job,
    events: &dyn Events,
    id: &str,
    records: &Records,
) -> Result<Option<LadderFile>, JobError> {
    if records.is_empty() {
        return Ok(None);
    }
    let JobPlan::Convert(planned) = job.plan(&Quiet(events.progress()))? else { return Ok(None) };
    let ConversionPlan { encoding, files, file_bytes, tensors, .. } = *planned;
    let Some(sha256) = records.finished(&encoding, id, &files, events.progress())? else { return Ok(None) };
    let n_elems: u64 = tensors.iter().map(|tensor| tensor.shape.n_elems()).sum();
    let n_bytes: u64 = tensors.iter().filter_map(|tensor| tensor.n_bytes).sum();
    let plan = LadderFilePlan {
        name: encoding,
        paths: files,
        file_bytes,
        bits_per_weight: n_bytes as f64 * 8.0 / n_elems.max(1) as f64,
        n_fallbacks: 0,
        is_alone: true,
        is_calibrated: false,
    };
    Ok(Some(LadderFile { plan, sha256, was_there: true }))
}

/// Receiver of a plan that was reported before: only its progress counts.
struct Quiet<'a>(&'a dyn Progress);

impl Events for Quiet<'_> {
    fn progress(&self) -> &dyn Progress {
        self.0
    }

    fn oddity(&self, _: &str) {}

    fn remark(&self, _: &Remark) {}
}

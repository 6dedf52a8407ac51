//! Files beside the quantizations: the towers of a checkpoint, and its draft heads.

use std::path::PathBuf;

use crate::arch::{CardKind, DraftHeads, OutType};
use crate::convert::{Codes, Conversion, ConvertOptions};
use crate::core::GgmlType;
use crate::core::progress::Progress;
use crate::job::input::OpenedInput;
use crate::job::ladder::folder::FolderRecords;
use crate::job::ladder::record::FileOrigin;
use crate::job::ladder::{Ladder, LadderFile, LadderFilePlan, sums};
use crate::job::{
    Contradiction, ConversionPlan, Events, Job, JobPlan, JobReport, JobTypes, OutputPath, Remark, Result,
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

    /// Path of the file if the user has given a name; `encoding` is the name of its type.
    fn target(self, ladder: &Ladder, encoding: &str) -> Option<PathBuf> {
        let prefix = match self {
            Self::Towers => "mmproj",
            Self::DraftHeads => "mtp",
        };
        let stem = ladder.own_name()?;
        Some(ladder.directory.join(format!("{prefix}-{stem}-{encoding}.gguf")))
    }

    /// Job that writes the file under its name.
    fn named_job(self, ladder: &Ladder) -> Job {
        let mut job = self.job(ladder);
        let encoding = match self {
            Self::Towers => "F16",
            Self::DraftHeads => "Q8_0",
        };
        if let Some(path) = self.target(ladder, encoding) {
            job.output.path = OutputPath::File(path);
        }
        job
    }

    fn plan(self, ladder: &Ladder, events: &dyn Events) -> Result<ConversionPlan> {
        match self.named_job(ladder).plan(&Quiet(events.progress()))? {
            JobPlan::Convert(plan) => Ok(*plan),
            JobPlan::Quantize(_) => Err(Contradiction::NotConverted.into()),
        }
    }

    pub(super) fn planned(self, ladder: &Ladder, events: &dyn Events) -> Result<Vec<PathBuf>> {
        Ok(self.plan(ladder, events)?.files)
    }

    /// Writes the file, unless it is there. `source` identifies the model.
    pub(super) fn write(
        self,
        ladder: &Ladder,
        events: &dyn Events,
        source: &str,
        records: &mut FolderRecords<'_>,
    ) -> Result<LadderFile> {
        let ConversionPlan { encoding, files, .. } = self.plan(ladder, events)?;
        // The model alone decides its bytes: an importance matrix is none of its inputs.
        let origin = FileOrigin { id: format!("{source}-{encoding}"), ..ladder.origin(source) };
        let file = match records.finished(&encoding, &origin, &files, events.progress())? {
            Some(found) => found,
            None => {
                let JobReport::Convert(report) = self.named_job(ladder).run(events)? else {
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
                    most_kld: None,
                };
                let sha256 = sums::of_files(&plan.paths, events.progress())?;
                LadderFile { plan, sha256, was_there: false, origin, figures: None, figures_id: None }
            }
        };
        records.add(&file)?;
        Ok(file)
    }
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

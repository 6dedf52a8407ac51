//! `gguf-quantize stats`: collects second moments of a model's matrix inputs for `--stats`.

mod report;

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;

use crate::arch::OutType;
use crate::calibrate::{
    CalibrateError, CalibrateOptions, CalibrationRun, CalibrationText, LayerMoments, SELF_NAME,
    SelfTextKeeper, Solver, Statistics, StatisticsCounts, StatisticsWriter, TextOptions,
};
use crate::cli::folder::folder_bytes;
use crate::cli::job::failure;
use crate::cli::quantize::calibrate::{given_texts, own_text};
use crate::cli::verify::engine_options;
use crate::cli::{Exit, Session, UsageError};
use crate::convert::{Codes, Conversion, ConvertOptions};
use crate::core::output::NewDirectory;
use crate::core::progress::Progress;
use crate::core::text::escape;
use crate::core::{TensorMeta, TensorSource};
use crate::engine::ModelKind;
use crate::gguf::{GgufFile, Metadata};
use crate::job::calibration::{Calibration, CalibrationSources};
use crate::verify::{Model, ModelParts, Recall};
use report::{CollectedStatistics, StatisticsOutcome, StatisticsReport};

#[derive(Clone, Debug, Args)]
#[command(
    after_help = "`gguf-quantize MODEL OUT --type TYPE --solver gptq --stats DIR` uses them, for any type."
)]
pub(super) struct StatsArgs {
    /// Model that will be quantized, in its own type: a GGUF file, or the folder of a checkpoint
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Folder to write, new or empty
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Text to run the model on. A file or a folder is one kind of text; `self` is text that the model writes;
    /// repeatable
    #[arg(long, value_name = "PATH", required = true)]
    calibrate: Vec<PathBuf>,
    /// Do not let the model write half of the text
    #[arg(long)]
    no_self_text: bool,
    /// Read the text that the model writes from this file if it exists, else write it there
    #[arg(long, value_name = "FILE", conflicts_with = "no_self_text")]
    self_text: Option<PathBuf>,
    /// Tokens of text, shared equally by its kinds; a seventh as much is held out to check results
    #[arg(long, value_name = "N", default_value_t = TextOptions::default().n_tokens)]
    calibrate_tokens: usize,
    /// Hold back nothing: results will be checked with this text, a file or a folder, given again with `--stats`;
    /// repeatable
    #[arg(long, value_name = "PATH")]
    check_text: Vec<PathBuf>,
    /// Print the plan and write nothing
    #[arg(long)]
    dry_run: bool,
}

enum StatsInput {
    File(Box<GgufFile>),
    /// Checkpoint, as the F32 file that a quantization of it would run.
    Checkpoint(Box<Conversion>),
}

impl StatsInput {
    fn open(path: &Path, session: &Session) -> anyhow::Result<Self> {
        if !path.is_dir() {
            return Ok(Self::File(Box::new(GgufFile::open(path)?)));
        }
        let options = ConvertOptions {
            file_type: Some(OutType::F32),
            codes: Codes::Float,
            level: session.common.simd,
            ..ConvertOptions::default()
        };
        let conversion = Conversion::plan(path, &options)?;
        for warning in conversion.warnings() {
            log::warn!("{}", escape(warning));
        }
        Ok(Self::Checkpoint(Box::new(conversion)))
    }

    fn parts(&self) -> (&dyn TensorSource, &Metadata, Option<&GgufFile>) {
        match self {
            Self::File(file) => (&**file, file.metadata(), Some(file)),
            Self::Checkpoint(conversion) => (&**conversion, conversion.metadata(), None),
        }
    }
}

impl StatsArgs {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        let start = Instant::now();
        let calibration = self.calibration(session)?;
        let opened = StatsInput::open(&self.model, session)?;
        // The output is no input, because it is a new or an empty folder.
        match NewDirectory::of(&self.output) {
            // These may be the statistics that this run would collect.
            Err(_) if Statistics::are_in(&self.output) => {}
            Err(error) if self.dry_run => {
                session.progress.warn(&format!("a run would stop here: {error}"));
            }
            found => _ = found?,
        }
        self.check_self_text()?;
        let texts = calibration.read_texts().map_err(failure)?;
        let (source, metadata, file) = opened.parts();
        ModelParts::of(metadata).with(source, metadata, file, |model| {
            // Checked before a model writes any text.
            if model.plan()?.kind == ModelKind::Encoder {
                return Err(CalibrateError::Encoder.into());
            }
            let recall = Recall::default();
            let model = &Model { recall: Some(&recall), ..*model };
            self.with_model(session, &calibration, &texts, model, start)
        })?;
        Ok(Exit::Done)
    }

    /// Returns the calibration of a quantization that keeps the same statistics.
    fn calibration(&self, session: &Session) -> Result<Calibration, UsageError> {
        Ok(Calibration {
            own_text: own_text(&self.calibrate, self.no_self_text)?,
            n_tokens: self.calibrate_tokens,
            held_out_texts: self.check_text.clone(),
            engine: engine_options(&session.common),
            ..Calibration::with_texts(given_texts(&self.calibrate), Solver::Gptq)
        })
    }

    /// Refuses a `--self-text` file that is also read as another input.
    fn check_self_text(&self) -> anyhow::Result<()> {
        let Some(path) = &self.self_text else { return Ok(()) };
        let texts =
            self.calibrate.iter().filter(|text| text.as_os_str() != SELF_NAME).chain(&self.check_text);
        for other in texts.chain([&self.model]) {
            if crate::core::output::same_file(path, other) || path == other {
                let text = format!(
                    "--self-text {}: it is also another input; a separate file expected",
                    path.display()
                );
                return Err(UsageError(text).into());
            }
        }
        Ok(())
    }

    fn with_model(
        &self,
        session: &Session,
        calibration: &Calibration,
        texts: &CalibrationSources,
        model: &Model<'_>,
        start: Instant,
    ) -> anyhow::Result<()> {
        let text = if self.dry_run {
            let (text, _) = calibration.text_to_come(&session.progress, &texts.given, model)?;
            for note in &text.notes {
                session.progress.warn(note);
            }
            text
        } else {
            let keeper = self
                .self_text
                .as_deref()
                .map(|path| SelfTextKeeper::File { path, sync: !session.common.no_sync });
            session.progress.steps(1);
            calibration.text(&session.progress, &texts.given, model, keeper)?
        };
        // Finds errors that a later check would have, now.
        text.clone().add_held_out(model, &texts.held_out, self.calibrate_tokens)?;
        let wants = |meta: &TensorMeta| meta.shape.rank() > 1;
        let dir = self.output.parent().filter(|dir| *dir != Path::new("")).unwrap_or(Path::new("."));
        let options = CalibrateOptions { engine: engine_options(&session.common), wants: &wants, dir };
        let run = CalibrationRun::new(model, &text, options)?;
        for warning in run.warnings() {
            session.progress.warn(warning);
        }
        let report = |outcome| StatisticsReport::new(&self.output, &text, outcome);
        if self.dry_run {
            return report(StatisticsOutcome::Planned(run.needs())).print(session);
        }
        let counts = match self.is_there(model, &text)? {
            Some(found) => {
                session.note("these statistics were there already, and not collected again");
                found
            }
            None => self.collect(session, model, &text, &run)?,
        };
        let n_bytes = folder_bytes(&self.output);
        let seconds = start.elapsed().as_secs_f64();
        let collected = CollectedStatistics { counts, n_bytes, seconds };
        report(StatisticsOutcome::Collected(collected)).print(session)
    }

    /// Returns the counts of equal statistics that an earlier run has kept. Statistics of anything else are not
    /// replaced.
    fn is_there(
        &self,
        model: &Model<'_>,
        text: &CalibrationText,
    ) -> Result<Option<StatisticsCounts>, CalibrateError> {
        if !Statistics::are_in(&self.output) {
            return Ok(None);
        }
        let seed = text.kinds.iter().find_map(|kind| kind.seed);
        // Broken statistics are not replaced either.
        let Ok(found) = Statistics::open(&self.output) else { return Ok(None) };
        Ok(found.are_of(model, text, seed)?.then_some(found.counts()))
    }

    /// Runs the model and writes the moments.
    fn collect(
        &self,
        session: &Session,
        model: &Model<'_>,
        text: &CalibrationText,
        run: &CalibrationRun<'_>,
    ) -> Result<StatisticsCounts, CalibrateError> {
        let (path, sync) = (&self.output, !session.common.no_sync);
        let seed = text.kinds.iter().find_map(|kind| kind.seed);
        let mut found = StatisticsCounts::default();
        let mut writer = StatisticsWriter::create(path, model, text, seed, sync)?;
        let sums = run.run(&session.progress, &mut |layer: LayerMoments| {
            found.add(&layer);
            writer.add(&layer).map_err(CalibrateError::from)
        })?;
        writer.commit(&sums)?;
        Ok(found)
    }
}

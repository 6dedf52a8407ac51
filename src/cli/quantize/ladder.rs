//! `gguf-quantize ladder`: many quantizations of one model from one reading, in a folder ready to be published.

mod document;
mod folder;
mod watched;

use std::path::{Path, PathBuf};

use clap::Args;

use crate::cli::job::failure;
use crate::cli::quantize::calibrate::CalibrateArgs;
use crate::cli::quantize::ladder::document::{
    DigestedFile, LadderCalibration, LadderDocument, LadderEntry, LadderImportance, LadderModel,
};
use crate::cli::quantize::ladder::folder::FolderFiles;
use crate::cli::quantize::ladder::watched::WatchedInputs;
use crate::cli::quantize::options::{QuantizeArgs, RequantizeArgs};
use crate::cli::remote::{ModelDirectory, RemoteArgs};
use crate::cli::render::{Align, Table, duration, plural};
use crate::cli::verify::page::{JudgedModels, command_line, digest};
use crate::cli::verify::{judge_all, measure_importance};
use crate::cli::{Exit, Session, UsageError};
use crate::core::output::OutputKind;
use crate::core::progress::Progress as _;
use crate::core::text::{bytes, escape, shell_path, shell_word};
use crate::gguf::Share;
use crate::job::ladder::{Ladder, LadderFilePlan, LadderPlan, LadderReport, Preset, Rung, record_path};
use crate::job::{Guard, JobInput};

/// Name of the importance matrix that is measured first.
const MATRIX: &str = "imatrix.gguf";

#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Presets: small (6 types, Q8_0 to Q3_K_M), standard (13, Q8_0 to IQ2_M), full (22). Types that need an \
    importance matrix are left out of a preset if there is none.\n\nEvery file has the bytes of its own single run. What \
    several files hold in the same type is quantized once. With `--calibrate`, types that are quantized to go through the \
    solver one after another."
)]
pub(super) struct LadderArgs {
    /// Model: a GGUF file, the folder of a checkpoint, the weights of an image model (.safetensors, .ckpt, .pt, .pth), or a
    /// checkpoint on a server: ORG/NAME or ORG/NAME@REVISION of the Hugging Face hub, https://HOST/DIR, s3://BUCKET/DIR
    #[arg(value_name = "SOURCE")]
    source: PathBuf,
    /// Folder for the files; it is created if it does not exist
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Types between commas: names in any case, llama.cpp's numbers, and Q6_K_L, Q5_K_L, Q4_K_L, Q3_K_XL, Q2_K_L with
    /// embeddings and output matrix in Q8_0
    #[arg(long, value_name = "LIST", conflicts_with = "preset")]
    types: Option<String>,
    /// List of types: small, standard or full
    #[arg(long, value_name = "NAME", default_value = "standard", value_parser = preset)]
    preset: Preset,
    /// Measure the importance matrix on this text first; it is kept beside the files
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["imatrix", "calibrated"])]
    calibration: Option<PathBuf>,
    /// Compare every file with the model on this text; the figures are in the page and the list of the folder
    #[arg(long, value_name = "TEXT")]
    verify: Option<PathBuf>,
    /// Name of the person or organization that publishes the files
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    /// Template of README.md instead of the built-in one (minijinja, with the keys of ladder.json)
    #[arg(long, value_name = "FILE")]
    template: Option<PathBuf>,
    /// Write the files of the I-th of N machines, which share them by their work and need nothing of one another. In the
    /// end, the same command with `--resume` in place of `--part I/N` writes README.md, ladder.json and SHA256SUMS of all
    #[arg(long, value_name = "I/N", conflicts_with = "calibration")]
    part: Option<Share>,
    /// Keep what is written when the run is stopped; the same command resumes from it. What parts have written is taken
    /// over
    #[arg(long)]
    resume: bool,
    /// Print what would be done, write nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    requantize: RequantizeArgs,
    #[command(flatten)]
    quantize: QuantizeArgs,
    #[command(flatten)]
    calibrate: CalibrateArgs,
    #[command(flatten)]
    remote: RemoteArgs,
}

fn preset(name: &str) -> Result<Preset, String> {
    Preset::from_name(name).ok_or_else(|| {
        let names: Vec<_> = Preset::ALL.iter().map(|(name, _)| format!("`{name}`")).collect();
        format!("one of {} expected", names.join(", "))
    })
}

impl LadderArgs {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        let rungs = self.rungs(session)?;
        let model = self.model(session)?;
        self.remote.check_use([&model])?;
        let mut ladder = self.ladder(model.path(), rungs, session)?;
        if ladder.input.is_image_model(&ladder.convert).map_err(failure)? {
            self.fit_to_images(&mut ladder, session)?;
        }
        if self.dry_run {
            if self.calibration.is_some() {
                let text =
                    "`--dry-run` cannot be used with `--calibration`: the matrix is not known before the run";
                return Err(UsageError(text.to_owned()).into());
            }
            let plan = ladder.plan(session).map_err(failure)?;
            print_plan(session, &plan)?;
            return Ok(Exit::Done);
        }
        let texts = || self.calibration.iter().chain(&self.verify);
        let watched = WatchedInputs::of(model.path(), &self.output, texts())?;
        // A text that is missing is reported before hours of work.
        for text in texts() {
            fs_err::metadata(text)?;
        }
        let mut guard = Guard::new(&session.progress, false);
        guard.read_all("the text", texts())?;
        guard.read_all("the template", &self.template)?;
        if let Some(share) = self.part {
            return self.run_part(share, &ladder, guard, session);
        }
        let folder = FolderFiles::of(&self.output, self.template.as_deref(), &mut guard)?;
        if let Some(text) = &self.calibration {
            fs_err::create_dir_all(&self.output)?;
            let matrix = self.output.join(MATRIX);
            guard.write("the importance matrix", &matrix, OutputKind::Imatrix)?;
            measure_importance(session, model.path(), text, &matrix, self.resume)?;
            ladder.importance.path = Some(matrix);
            watched.check()?;
        }
        let report = ladder.run(session).map_err(failure)?;
        let judged = self.verify.as_deref().map(|text| judge(session, &report, model.path(), text));
        let judged = judged.transpose()?;
        watched.check()?;
        let document = self.document(session, &ladder, &report, judged.as_ref())?;
        let chart = judged.as_ref().and_then(|judged| judged.size_chart.as_deref());
        folder.write(&document, chart, session)?;
        ladder.forget_parts().map_err(failure)?;
        self.print_report(session, &report, &document)?;
        Ok(Exit::Done)
    }

    /// Writes the files of one of several machines, and their record.
    fn run_part(
        &self,
        share: Share,
        ladder: &Ladder,
        mut guard: Guard<'_>,
        session: &Session,
    ) -> anyhow::Result<Exit> {
        guard.write("--part", &record_path(&self.output, share), OutputKind::LadderJson)?;
        let report = ladder.run(session).map_err(failure)?;
        if session.common.json {
            session.print_json(&report.part)?;
            return Ok(Exit::Done);
        }
        if !session.common.quiet {
            session.print(|out| {
                table(report.all().map(|file| &file.plan)).print(out)?;
                writeln!(
                    out,
                    "\npart {share}: {}, {}, in {}\nwhen all parts are there: the same command with `--resume` in place \
                     of `--part {share}`",
                    plural(report.files.len() as u64, "file"),
                    bytes(report.file_bytes),
                    duration(report.seconds),
                )
            })?;
        }
        Ok(Exit::Done)
    }

    /// Opens the model. It is read once, unless a matrix is measured or files are compared with it.
    fn model(&self, session: &Session) -> anyhow::Result<ModelDirectory> {
        // A part compares nothing.
        let options = [
            ("--calibration", self.calibration.is_some()),
            ("--calibrate", self.calibrate.is_given()),
            ("--verify", self.verify.is_some() && self.part.is_none()),
        ];
        match options.into_iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) => match self.remote.kept(session, option, Some(&self.source))? {
                Some(model) => Ok(model),
                None => self.remote.directory(session, &self.source),
            },
            None => self.remote.directory(session, &self.source),
        }
    }

    fn document(
        &self,
        session: &Session,
        ladder: &Ladder,
        report: &LadderReport,
        judged: Option<&JudgedModels>,
    ) -> anyhow::Result<LadderDocument> {
        let digested = |path: &Path| -> anyhow::Result<DigestedFile> {
            Ok(DigestedFile { name: document::file_name(path), sha256: digest(path, &session.progress)? })
        };
        let importance = match &ladder.importance.path {
            Some(matrix) => Some(LadderImportance {
                matrix: digested(matrix)?,
                text: self.calibration.as_deref().map(digested).transpose()?,
            }),
            None => None,
        };
        let calibration = ladder.calibration.as_ref().map(|calibration| {
            let files = calibration.texts.iter().filter(|text| !text.is_dir());
            Ok::<_, anyhow::Error>(LadderCalibration {
                solver: calibration.solver.name().to_owned(),
                tokens: calibration.n_tokens,
                texts: files.map(|text| digested(text)).collect::<anyhow::Result<_>>()?,
            })
        });
        Ok(LadderDocument {
            made_by: format!("gguf-quantize ladder {}", crate::cli::version()),
            quantized_by: self.by.as_deref().map(|name| escape(name).into_owned()),
            model: LadderModel::new(report, &self.source),
            importance,
            calibration: calibration.transpose()?,
            verification: self.verify.as_deref().map(digested).transpose()?,
            files: LadderEntry::all(report, judged)?,
            projector: report.projector.as_ref().map(LadderEntry::of),
            draft_heads: report.draft_heads.as_ref().map(LadderEntry::of),
            file_bytes: report.file_bytes,
            made_bytes: report.made_bytes,
            command: command_line(std::env::args_os()),
        })
    }

    pub(super) fn is_dry(&self) -> bool {
        self.dry_run
    }

    /// Returns a sentence about what is kept of a stopped run.
    pub(super) fn after_interrupt(&self) -> String {
        let text = if self.resume || self.part.is_some() {
            "what was written is kept: the same command resumes from it"
        } else {
            "nothing was kept: with `--resume` a run that is stopped can be resumed"
        };
        text.to_owned()
    }

    /// Returns the types that were asked for. Of a preset, those that need an importance matrix are left out if there
    /// is none.
    fn rungs(&self, session: &Session) -> anyhow::Result<Vec<Rung>> {
        if let Some(list) = &self.types {
            let rungs = Rung::parse_list(list).map_err(|error| {
                let line = error.to_string();
                anyhow::Error::new(error).context(UsageError(line))
            })?;
            if rungs.is_empty() {
                return Err(UsageError("`--types`: at least one type expected".to_owned()).into());
            }
            return Ok(rungs);
        }
        let rungs = self.preset.rungs();
        if self.quantize.imatrix.is_some() || self.calibration.is_some() || self.calibrate.is_given() {
            return Ok(rungs);
        }
        let (left_out, kept): (Vec<Rung>, Vec<Rung>) = rungs.into_iter().partition(Rung::needs_importance);
        if !left_out.is_empty() {
            let names: Vec<String> = left_out.iter().map(ToString::to_string).collect();
            session.note(&format!(
                "left out, because they need `--imatrix` or `--calibration`: {}",
                names.join(", ")
            ));
        }
        Ok(kept)
    }

    /// Leaves out types of a preset that image and video models do not have.
    ///
    /// # Errors
    /// Options that run a language model.
    fn fit_to_images(&self, ladder: &mut Ladder, session: &Session) -> Result<(), UsageError> {
        let of_language = [
            ("--calibration", self.calibration.is_some(), "it is quantized without an importance matrix"),
            ("--calibrate", self.calibrate.is_given(), "it is quantized without"),
            (
                "--verify",
                self.verify.is_some(),
                "`gguf-verify FILE --weights-only --baseline SOURCE` compares its weights",
            ),
        ];
        if let Some((option, _, instead)) = of_language.into_iter().find(|(_, is_given, _)| *is_given) {
            return Err(UsageError(format!(
                "`{option}` runs language models; `{}` is an image or video model: {instead}",
                escape(&self.source.display().to_string())
            )));
        }
        if self.types.is_some() {
            return Ok(());
        }
        let (kept, left_out): (Vec<Rung>, Vec<Rung>) =
            std::mem::take(&mut ladder.rungs).into_iter().partition(Rung::is_of_images);
        if !left_out.is_empty() {
            let names: Vec<String> = left_out.iter().map(ToString::to_string).collect();
            session.note(&format!(
                "left out, because image and video models do not have them: {}",
                names.join(", ")
            ));
        }
        ladder.rungs = kept;
        Ok(())
    }

    fn ladder(&self, source: &Path, rungs: Vec<Rung>, session: &Session) -> anyhow::Result<Ladder> {
        let input = JobInput::of_path(source.to_owned());
        let mut ladder = Ladder {
            calibration: self.calibrate.calibration(&session.common)?,
            quantize: self.quantize.to_options(session.common.simd)?,
            importance: self.quantize.importance(),
            rule_files: self.quantize.tensor_types.files().cloned().collect(),
            resume: self.resume,
            share: self.part,
            sync: !session.common.no_sync,
            memory_bytes: session.common.memory_bytes(),
            ..Ladder::new(input, rungs, self.output.clone())
        };
        ladder.quantize.allow_requantize = self.requantize.allow_requantize;
        ladder.convert.level = session.common.simd;
        ladder.convert.allow_nonfinite = ladder.quantize.allow_nonfinite;
        Ok(ladder)
    }
}

fn table<'f>(files: impl Iterator<Item = &'f LadderFilePlan>) -> Table {
    let mut table = Table::new(&[
        ("file", Align::Left),
        ("type", Align::Left),
        ("bits per weight", Align::Right),
        ("size", Align::Right),
        ("notes", Align::Left),
    ]);
    for file in files {
        let name = file.paths.first().and_then(|path| path.file_name()).unwrap_or_default();
        let mut notes = Vec::new();
        if file.paths.len() > 1 {
            notes.push(plural(file.paths.len() as u64, "part"));
        }
        if file.n_fallbacks > 0 {
            notes.push(format!("{} in another type", plural(file.n_fallbacks as u64, "tensor")));
        }
        if file.is_calibrated {
            notes.push("calibrated".to_owned());
        } else if file.is_alone {
            notes.push("made separately".to_owned());
        }
        table.row([
            escape(&name.to_string_lossy()).into_owned(),
            file.name.clone(),
            format!("{:.2}", file.bits_per_weight),
            bytes(file.file_bytes),
            notes.join(", "),
        ]);
    }
    table
}

fn print_plan(session: &Session, plan: &LadderPlan) -> anyhow::Result<()> {
    for obstacle in &plan.obstacles {
        session.progress.warn(&format!("a run would stop here: {obstacle}"));
    }
    if session.common.json {
        return session.print_json(plan);
    }
    session.print(|out| {
        table(plan.files.iter()).print(out)?;
        writeln!(
            out,
            "\n{}, {}; {} to quantize, since tensors that several files share are quantized once{}",
            plural(plan.files.len() as u64, "file"),
            bytes(plan.file_bytes),
            bytes(plan.made_bytes),
            plan.free_bytes.map_or_else(String::new, |free| format!("; {} free", bytes(free))),
        )
    })
}

/// Compares all files with the model.
fn judge(
    session: &Session,
    report: &LadderReport,
    model: &Path,
    text: &Path,
) -> anyhow::Result<JudgedModels> {
    let first = report.files.iter().filter_map(|file| file.plan.paths.first().cloned());
    judge_all(session, &first.collect::<Vec<_>>(), model, text)
}

impl LadderArgs {
    fn print_report(
        &self,
        session: &Session,
        report: &LadderReport,
        document: &LadderDocument,
    ) -> anyhow::Result<()> {
        if session.common.json {
            return session.print_json(document);
        }
        if session.common.quiet {
            return Ok(());
        }
        session.print(|out| {
            table(report.all().map(|file| &file.plan)).print(out)?;
            writeln!(
                out,
                "\n{}, {}, of which {} were made, in {}",
                plural(report.files.len() as u64, "file"),
                bytes(report.file_bytes),
                bytes(report.made_bytes),
                duration(report.seconds),
            )?;
            writeln!(out, "publish: {}", self.upload(document))
        })
    }

    /// Returns the command that uploads the folder.
    fn upload(&self, document: &LadderDocument) -> String {
        let name = document.model.repository.as_deref().and_then(|repository| repository.split_once('/'));
        let name = name.map_or(document.model.name.as_str(), |(_, name)| name).replace(' ', "-");
        let by = document.quantized_by.as_deref().unwrap_or("YOUR-NAME").replace(' ', "-");
        let repository = shell_word(&format!("{by}/{name}-GGUF"));
        format!("hf upload {repository} {}", shell_path(&self.output.display().to_string()))
    }
}

//! `gguf-quantize ladder`: many quantizations of one model from one reading, in a folder ready to be published.

mod document;
mod figures;
mod folder;
mod printed;
mod watched;

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;

use crate::cli::job::failure;
use crate::cli::modelfile::PromptForm;
use crate::cli::quantize::calibrate::CalibrateArgs;
use crate::cli::quantize::ladder::document::{
    LadderCalibration, LadderDocument, LadderEntry, LadderImportance, LadderModel, LadderUsage, recommended,
    text_of,
};
use crate::cli::quantize::ladder::folder::{FolderFiles, FolderLock};
use crate::cli::quantize::ladder::watched::WatchedInputs;
use crate::cli::quantize::options::{QuantizeArgs, RequantizeArgs};
use crate::cli::remote::{ModelDirectory, RemoteArgs};
use crate::cli::render::{duration, plural};
use crate::cli::verify::measure_importance;
use crate::cli::verify::page::command_line;
use crate::cli::{Exit, Session, UsageError};
use crate::core::output::{OutputKind, unfinished};
use crate::core::progress::Progress as _;
use crate::core::text::{bytes, escape, shell_path, shell_word};
use crate::gguf::Share;
use crate::job::ladder::{
    Ladder, LadderReport, MAX_PART_BYTES, NAME_PATTERN, Preset, Rung, check_pattern, record_path,
};
use crate::job::{Guard, JobInput};
use crate::quantize::{Override, OverrideValue};

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
    /// checkpoint on a server: ORG/NAME or ORG/NAME@REVISION of the Hugging Face hub, https://HOST/DIR
    #[arg(value_name = "SOURCE")]
    source: PathBuf,
    /// Folder for the files; it is created if it does not exist
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Types between commas: names in any case, llama.cpp's numbers, and Q6_K_L, Q5_K_L, Q4_K_L, Q3_K_XL, Q2_K_L with
    /// embeddings and output matrix in Q8_0; kld:0.01 is the smallest file of at most this divergence (`--target-kld`)
    #[arg(long, value_name = "LIST", conflicts_with = "preset")]
    types: Option<String>,
    /// List of types: small, standard or full
    #[arg(long, value_name = "NAME", default_value = "standard", value_parser = preset)]
    preset: Preset,
    /// Measure the importance matrix on this text first; it is kept beside the files
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["imatrix", "calibrate"])]
    calibration: Option<PathBuf>,
    /// Compare every file with the model on this text; the figures are in the page and the list of the folder
    #[arg(long, value_name = "TEXT")]
    verify: Option<PathBuf>,
    #[command(flatten)]
    page: PageArgs,
    /// Name of the model, in the page, the files and their names [default: the model's own]
    #[arg(long, value_name = "NAME", value_parser = crate::cli::name)]
    name: Option<String>,
    /// File names, without `.gguf`: {name} and {type} are replaced
    #[arg(long, value_name = "PATTERN", default_value = NAME_PATTERN, value_parser = pattern)]
    name_pattern: String,
    /// Most bytes of tensors in a file, with K, M or G (powers of 1000): larger files come in parts [default: 50G, the most
    /// that the hub takes]
    #[arg(long, value_name = "SIZE", value_parser = crate::cli::split_size)]
    split_max_size: Option<u64>,
    /// Template of README.md instead of the built-in one (minijinja, with the keys of ladder.json)
    #[arg(long, value_name = "FILE")]
    template: Option<PathBuf>,
    /// Write the files of the I-th of N machines, which share them by their work and need nothing of one another. In the
    /// end, the same command with `--resume` in place of `--part I/N` writes README.md, ladder.json and SHA256SUMS of all
    #[arg(long, value_name = "I/N", conflicts_with = "calibration")]
    part: Option<Share>,
    /// Keep unfinished files when the run is stopped; the same command resumes from them. What parts have written is taken
    /// over. Files that are finished are kept without it, too
    #[arg(long)]
    resume: bool,
    /// Make files again that are there with other options, or of which nothing is known
    #[arg(long)]
    replace: bool,
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

/// Options of the page.
#[derive(Clone, Debug, Args)]
pub(super) struct PageArgs {
    /// Name of the person or organization that publishes the files
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    /// Repository of the model that is quantized, for the page [default: the one of SOURCE, if it is known]
    #[arg(long, value_name = "ORG/NAME")]
    base_model: Option<String>,
    /// License of the model, as the hub names it, for the page [default: the one that SOURCE declares]
    #[arg(long, value_name = "ID")]
    license: Option<String>,
    /// Write a Modelfile beside the files, for `ollama create`
    #[arg(long)]
    modelfile: bool,
}

fn pattern(text: &str) -> Result<String, String> {
    check_pattern(text).map(|()| text.to_owned())
}

fn preset(name: &str) -> Result<Preset, String> {
    Preset::from_name(name).ok_or_else(|| {
        let names: Vec<_> = Preset::ALL.iter().map(|(name, _)| format!("`{name}`")).collect();
        format!("one of {} expected", names.join(", "))
    })
}

impl LadderArgs {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        let start = Instant::now();
        if self.output.is_file() {
            let name = self.output.display().to_string();
            let text = format!("-o {}: a folder for the files expected, this is a file", escape(&name));
            return Err(UsageError(text).into());
        }
        // Types that are written alone, towers and the verification open the model again.
        session.progress.warn_once();
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
            printed::plan(session, &plan)?;
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
            if self.verify.is_some() {
                session.note("a part measures nothing: `--verify` is for the last run, with `--resume`");
            }
            return self.run_part(share, &ladder, guard, session);
        }
        let _lock = FolderLock::of(&self.output, session)?;
        let template = self.template.as_deref();
        let folder = FolderFiles::of(&self.output, template, self.page.modelfile, &mut guard)?;
        if let Some(text) = &self.calibration {
            fs_err::create_dir_all(&self.output)?;
            let matrix = self.output.join(MATRIX);
            guard.write("the importance matrix", &matrix, OutputKind::Imatrix)?;
            let (resume, replace) = (self.resume, self.replace);
            measure_importance(session, model.path(), text, &matrix, resume, replace)?;
            ladder.importance.path = Some(matrix);
            watched.check()?;
        }
        let mut report = ladder.run(session).map_err(failure)?;
        if let Some(text) = &self.verify {
            figures::measure(session, &ladder, &mut report, model.path(), text)?;
        }
        watched.check()?;
        let chart = figures::compare(&mut report)?;
        report.seconds = start.elapsed().as_secs_f64();
        let document = self.document(session, &ladder, &report, folder.has_modelfile)?;
        let modelfile = if folder.has_modelfile { modelfile(&document, &report, session) } else { None };
        folder.write(&document, chart.as_deref(), modelfile, session)?;
        ladder.forget_runs().map_err(failure)?;
        remove_if_there(&self.output.join(format!(".{MATRIX}")))?;
        self.note_gaps(session, &document);
        printed::report(session, &report, &document, &self.upload(&document))?;
        Ok(Exit::Done)
    }

    /// Notes what the page lacks.
    fn note_gaps(&self, session: &Session, document: &LadderDocument) {
        let gaps = [
            (document.model.repository.is_none(), "base model", "--base-model ORG/NAME"),
            (document.model.license.is_none(), "license", "--license ID"),
        ];
        let gaps: Vec<_> = gaps.iter().filter(|(is_missing, ..)| *is_missing).collect();
        if !gaps.is_empty() && self.template.is_none() {
            let join =
                |of: fn(&(bool, &str, &str)) -> String| gaps.iter().map(|gap| of(gap)).collect::<Vec<_>>();
            let missing = join(|gap| gap.1.to_owned()).join(" and no ");
            let options = join(|gap| format!("`{}`", gap.2)).join(", ");
            session.note(&format!("README.md names no {missing}: {options}"));
        }
        let n_open = document.files.iter().filter(|entry| entry.figures.is_none()).count();
        if let Some(text) = document.verification.as_ref().filter(|_| n_open > 0) {
            let text = &text.name;
            session.note(&format!(
                "{n_open} of {} files have no figures: `--verify {text}`",
                document.files.len()
            ));
        }
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
                printed::table(report.all().map(|file| &file.plan)).print(out)?;
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
        has_modelfile: bool,
    ) -> anyhow::Result<LadderDocument> {
        let digested = |path: &Path| figures::digested(session, path);
        let files = LadderEntry::all(report)?;
        let importance = match &ladder.importance.path {
            Some(matrix) => Some(LadderImportance {
                matrix: digested(matrix)?,
                text: self.calibration.as_deref().map(digested).transpose()?,
            }),
            // That of the files that earlier runs have made.
            None => document::old_importance(&self.output)
                .filter(|_| files.iter().any(|entry| entry.file.origin.imatrix.is_some())),
        };
        let calibration = ladder.calibration.as_ref().map(|calibration| {
            let files = calibration.texts.iter().filter(|text| !text.is_dir());
            Ok::<_, anyhow::Error>(LadderCalibration {
                solver: calibration.solver.name().to_owned(),
                tokens: calibration.n_tokens,
                texts: files.map(|text| digested(text)).collect::<anyhow::Result<_>>()?,
            })
        });
        let mut commands: Vec<String> = Vec::new();
        for command in files.iter().map(|entry| &entry.file.origin.command).filter(|text| !text.is_empty()) {
            if !commands.contains(command) {
                commands.push(command.clone());
            }
        }
        let is_new = report.files.iter().any(|file| !file.was_there);
        let command = if is_new { None } else { commands.first().cloned() };
        let mut document = LadderDocument {
            made_by: format!("gguf-quantize ladder {}", crate::cli::version()),
            quantized_by: self.page.by.as_deref().map(|name| escape(name).into_owned()),
            model: LadderModel::new(report, &self.source, &self.page),
            importance,
            calibration: calibration.transpose()?,
            verification: text_of(&files),
            file_bytes: files.iter().map(|entry| entry.file.file_bytes).sum(),
            projector: report.projector.as_ref().map(LadderEntry::of).transpose()?,
            draft_heads: report.draft_heads.as_ref().map(LadderEntry::of).transpose()?,
            made_bytes: report.made_bytes,
            command: command.unwrap_or_else(|| ladder.command.clone()),
            commands,
            usage: None,
            files,
        };
        let best = recommended(document.files.iter()).filter(|_| report.beside_text.is_none());
        let ollama = document::for_ollama(&document.files).map(|entry| entry.file.name.clone());
        document.usage = best.map(|best| LadderUsage {
            repository: self.repository(&document),
            name: best.file.name.clone(),
            form: PromptForm::of(&report.metadata),
            modelfile: has_modelfile && ollama.is_some(),
            ollama,
        });
        Ok(document)
    }

    pub(super) fn is_dry(&self) -> bool {
        self.dry_run
    }

    /// Returns a sentence about what is kept of a stopped run.
    pub(super) fn after_interrupt(&self) -> String {
        let is_resumed = self.resume || self.part.is_some();
        let begun = unfinished(&self.output).unwrap_or_default();
        let is_data = |path: &Path| fs_err::metadata(path).is_ok_and(|found| found.len() > 4096);
        let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let begun: Vec<String> =
            begun.iter().map(|(path, _)| path.as_path()).filter(|path| is_data(path)).map(name).collect();
        let is_model =
            |path: &Path| path.extension().is_some_and(|end| end == "gguf") && !name(path).starts_with('.');
        let whole = fs_err::read_dir(&self.output).into_iter().flatten().flatten();
        let n_whole = whole.filter(|entry| is_model(&entry.path())).count();
        if n_whole == 0 && !is_resumed {
            return "nothing was kept: with `--resume` a run that is stopped can be resumed".to_owned();
        }
        let whole = (n_whole > 0).then(|| plural(n_whole as u64, "whole file"));
        let hidden = (!begun.is_empty()).then(|| format!("hidden: {}", escape(&begun.join(", "))));
        let kept = [whole, hidden].into_iter().flatten().collect::<Vec<_>>().join("; ");
        let kept = if kept.is_empty() { String::new() } else { format!(" ({kept})") };
        format!("what was written is kept{kept}: the same command resumes from it")
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
            let larger = ladder.rungs.iter().find(|rung| rung.types.embeddings.is_some());
            return larger.map_or(Ok(()), |rung| {
                let text =
                    "image and video models have no embeddings and no output matrix that could be larger";
                Err(UsageError(format!("`{rung}`: {text}: give `{}`", rung.types.file_type.name())))
            });
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
            name: self.name.clone(),
            name_pattern: self.name_pattern.clone(),
            command: command_line(std::env::args_os()),
            replace: self.replace,
            max_part_bytes: self.split_max_size.unwrap_or(MAX_PART_BYTES),
            sync: !session.common.no_sync,
            memory_bytes: session.common.memory_bytes(),
            ..Ladder::new(input, rungs, self.output.clone())
        };
        if let Some(name) = &self.name {
            let value = OverrideValue::Str(name.clone());
            ladder.quantize.overrides.push(Override { key: "general.name".to_owned(), value });
        }
        ladder.quantize.allow_requantize = self.requantize.allow_requantize;
        ladder.convert.level = session.common.simd;
        ladder.convert.allow_nonfinite = ladder.quantize.allow_nonfinite;
        Ok(ladder)
    }
}

impl LadderArgs {
    /// Returns the repository that the folder is uploaded to.
    fn repository(&self, document: &LadderDocument) -> String {
        let name = document.model.repository.as_deref().and_then(|repository| repository.split_once('/'));
        let own = (self.name.is_none()).then_some(name).flatten();
        let name = own.map_or(document.model.name.as_str(), |(_, name)| name);
        // A name that was given with its organization.
        let name = name.rsplit('/').next().unwrap_or(name).replace(' ', "-");
        let by = document.quantized_by.as_deref().unwrap_or("YOUR-NAME").replace(' ', "-");
        format!("{by}/{name}-GGUF")
    }

    /// Returns the command that uploads the folder, without what unfinished runs leave in it.
    fn upload(&self, document: &LadderDocument) -> String {
        let repository = shell_word(&self.repository(document));
        format!("hf upload {repository} {} --exclude '.*'", shell_path(&self.output.display().to_string()))
    }
}

/// Returns the Modelfile of a file that Ollama loads; warns if there is none.
fn modelfile(document: &LadderDocument, report: &LadderReport, session: &Session) -> Option<String> {
    let entry = document::for_ollama(&document.files);
    let (Some(usage), Some(entry)) = (&document.usage, entry) else {
        let why = match report.beside_text {
            Some(what) => format!("Ollama runs language models, this is {what}"),
            None => "Ollama loads no file in parts".to_owned(),
        };
        session.progress.warn(&format!("no Modelfile is written: {why}"));
        return None;
    };
    let files = [Some(entry), document.projector.as_ref()].into_iter().flatten();
    let files: Vec<String> = files.filter_map(|entry| Some(entry.file.parts.first()?.name.clone())).collect();
    let name = document.model.name.to_lowercase().replace(' ', "-");
    Some(usage.form.modelfile(&shell_word(&name), &files))
}

fn remove_if_there(path: &Path) -> std::io::Result<()> {
    match fs_err::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

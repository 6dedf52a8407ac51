//! `gguf-quantize`: quantizes a GGUF file or a checkpoint.

mod about;
pub(crate) mod calibrate;
mod checkpoint;
mod forecast;
pub(crate) mod job;
mod keep;
pub(crate) mod options;
pub(crate) mod outlook;
pub(crate) mod overrides;
pub(crate) mod report;
mod sized;
mod solver;
mod stats;
pub(crate) mod target;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, Subcommand};

use crate::cli::completions::Completions;
use crate::cli::default_name::{self, Unnamed};
use crate::cli::guard::Guard;
use crate::cli::quantize::calibrate::CalibrateArgs;
use crate::cli::quantize::job::CalibrateJob;
use crate::cli::quantize::options::{QuantizeArgs, usage};
use crate::cli::quantize::stats::StatsArgs;
use crate::cli::quantize::target::TargetArgs;
use crate::cli::render::{Align, Table};
use crate::cli::share::ShareArgs;
use crate::cli::type_names::TypeNames;
use crate::cli::{Common, Exit, Session, Tool, UsageError};
use crate::core::output::OutputKind;
use crate::core::progress::Progress;
use crate::gguf::split::part_path;
use crate::gguf::{GgufFile, SplitSpec, WriteOptions};
use crate::quantize::{FileType, Input, QuantizePlan, nominal, parse_file_type};

/// Entry point of `gguf-quantize`.
#[must_use]
pub fn main() -> ExitCode {
    crate::cli::run::<Quantize>()
}

/// Returns the parser, for completions and manual pages.
pub(crate) fn command() -> clap::Command {
    <Quantize as clap::CommandFactory>::command()
}

/// Quantizes a GGUF file, the same bytes as llama-quantize, or a checkpoint
#[derive(Parser)]
#[command(
    name = "gguf-quantize",
    version = crate::cli::version(),
    override_usage = "gguf-quantize [OPTIONS] --type TYPE IN [OUT]\n       gguf-quantize [OPTIONS] --target-size SIZE IN [OUT]\n       gguf-quantize [OPTIONS] IN [OUT] TYPE [THREADS]\n       gguf-quantize stats [OPTIONS] --calibrate PATH -o DIR MODEL",
    after_help = types_help(),
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
)]
struct Quantize {
    #[command(subcommand)]
    command: Option<QuantizeCommand>,
    /// Input, output and, in llama-quantize's order, type and number of threads. The default output is NAME-TYPE.gguf
    /// in the directory of the input, for an input NAME.gguf or NAME-F16.gguf. The folder of a checkpoint is converted
    /// first, as `gguf-convert hf2gguf` does with the same type; its default output is in that folder, named after the
    /// model
    #[arg(required = true, num_args = 1..=4, value_name = "FILE")]
    arguments: Vec<PathBuf>,
    /// Type of the file: a name in any case or llama.cpp's number
    #[arg(
        long = "type",
        value_name = "TYPE",
        conflicts_with = "target",
        value_parser = TypeNames(&[]),
        hide_possible_values = true
    )]
    file_type: Option<String>,
    /// Output; the same as the second argument
    #[arg(short, long, value_name = "FILE")]
    output: Option<OsString>,
    /// Print what would be done, write nothing
    #[arg(long)]
    dry_run: bool,
    /// Write as many files as the input has
    #[arg(long, conflicts_with_all = ["target", "part", "resume"])]
    keep_split: bool,
    /// Leave out the key gguf_foundry.split.id, by which mixed parts are found: the bytes of llama-quantize
    #[arg(long, requires = "keep_split")]
    no_split_id: bool,
    /// Accepted for compatibility with llama-quantize; see --memory
    #[arg(long, value_name = "MIB", hide = true)]
    max_buffer_size: Option<u64>,
    #[command(flatten)]
    share: ShareArgs,
    #[command(flatten)]
    options: QuantizeArgs,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    calibrate: CalibrateArgs,
    #[command(flatten)]
    common: Common,
}

#[derive(Subcommand)]
enum QuantizeCommand {
    /// Keep the second moments of every matrix's inputs on a text, for `--stats`: collected once, for any number of
    /// quantizations
    Stats(StatsArgs),
    /// Print what a shell needs to complete the arguments of this program
    ///
    /// For bash: `source <(gguf-quantize completions bash)`, in ~/.bashrc to keep.
    Completions(Completions),
}

/// Width of the column that describes a type, on a screen of 80 columns.
const ABOUT_COLUMNS: usize = 48;

/// Wraps a text into lines of at most `columns` columns.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn types_help() -> String {
    let mut table = Table::new(&[
        ("Type", Align::Left),
        ("No.", Align::Right),
        ("Bits", Align::Right),
        ("What it is", Align::Left),
    ]);
    for file_type in FileType::all() {
        let name = match file_type.alias() {
            Some(alias) => format!("{file_type}, {alias}"),
            None => file_type.name().to_owned(),
        };
        let number = if file_type == FileType::Copy { String::new() } else { file_type.id().to_string() };
        let nominal = nominal(file_type);
        let bits = nominal.map_or_else(String::new, |nominal| format!("{:.2}", nominal.bits_per_weight));
        let needs_imatrix = nominal.is_some_and(|nominal| nominal.needs_imatrix);
        let needs = if needs_imatrix { "; needs --imatrix" } else { "" };
        let about = wrapped(&format!("{}{needs}", file_type.about()), ABOUT_COLUMNS);
        let mut lines = about.into_iter();
        table.row([name, number, bits, lines.next().unwrap_or_default()]);
        lines.for_each(|line| table.row([String::new(), String::new(), String::new(), line]));
    }
    let mut out = Vec::new();
    // Writing to memory does not fail.
    let _ = table.print_whole(&mut out);
    format!(
        "{}\nBits are bits per weight of Llama 3 8B as a whole, from F16 and without an importance matrix.",
        String::from_utf8_lossy(&out)
    )
}

/// Error for a last argument that is no type. It is taken as the output's name, unless it resembles a type.
fn no_type(last: &Path) -> anyhow::Error {
    match parse_file_type(&last.to_string_lossy()) {
        Err(error) if error.has_offer() => usage(error),
        _ => UsageError("a type expected behind the output, or `--type TYPE`".to_owned()).into(),
    }
}

/// Resolved arguments.
struct QuantizeJob {
    input: PathBuf,
    output: PathBuf,
    /// True if the output was named.
    has_output: bool,
    /// `None` if types are chosen for a target size.
    file_type: Option<FileType>,
    threads: Option<usize>,
}

impl Quantize {
    fn job(&self) -> anyhow::Result<QuantizeJob> {
        let usage_line = |text: &str| anyhow::Error::new(UsageError(text.to_owned()));
        let mut arguments = self.arguments.clone();
        if let Some(output) = &self.output {
            arguments.insert(arguments.len().min(1), output.into());
        }
        let mut rest = arguments.iter();
        let input = rest.next().ok_or_else(|| usage_line("an input expected"))?.clone();
        let mut output = None;
        let file_type = if self.target.target().is_some() {
            output = rest.next().cloned();
            None
        } else if let Some(text) = &self.file_type {
            output = rest.next().cloned();
            Some(parse_file_type(text).map_err(usage)?)
        } else {
            let first = rest.next().ok_or_else(|| usage_line("a type expected: `--type TYPE`"))?;
            if let Some(file_type) = first.to_str().and_then(FileType::parse) {
                Some(file_type)
            } else {
                output = Some(first.clone());
                let Some(text) = rest.next() else { return Err(no_type(first)) };
                Some(parse_file_type(&text.to_string_lossy()).map_err(usage)?)
            }
        };
        // A type after the output, or in its place.
        let mut words = output.iter().chain(rest.clone()).filter_map(|word| word.to_str());
        if file_type.is_none()
            && let Some(found) = words.find_map(FileType::parse)
        {
            let option = self.target.option();
            return Err(usage_line(&format!(
                "{option} chooses the types: leave `{found}` out, or restrict them with `--types`"
            )));
        }
        let threads = match rest.next() {
            None => None,
            Some(text) => {
                let number = text.to_str().and_then(|text| text.parse::<u16>().ok());
                let bad = || UsageError(format!("number of threads expected, found `{}`", text.display()));
                Some(number.ok_or_else(bad)?).filter(|&n| n > 0).map(usize::from)
            }
        };
        if let Some(extra) = rest.next() {
            return Err(UsageError(format!("unexpected argument `{}`", extra.display())).into());
        }
        let word = file_type.map(|file_type| file_type.to_string()).or_else(|| self.target.word());
        let word = word.unwrap_or_default();
        if let Some(into) = &self.share.into {
            if let Some(output) = &output {
                let text = format!("`--into` names the output: leave `{}` out", output.display());
                return Err(UsageError(text).into());
            }
            output = Some(into.clone());
        }
        let has_output = output.is_some();
        let output = output.unwrap_or_else(|| default_name::quantized(&input, &word));
        Ok(QuantizeJob { input, output, has_output, file_type, threads })
    }

    /// Checks the output against everything that is read.
    fn guard(&self, session: &Session, job: &QuantizeJob, file: &GgufFile) -> anyhow::Result<()> {
        // A list of types is written even by a dry run.
        let mut guard = Guard::new(session, self.dry_run && self.target.write_types.is_none());
        guard.read_all("the model", file.paths())?;
        guard.read_all("the importance matrix", &self.options.imatrix)?;
        guard.read_all("rules of types", self.options.tensor_types.files())?;
        self.calibrate.guard(&mut guard)?;
        self.target.guard(&mut guard)?;
        let n_parts = file.parts().len();
        let (role, paths) = match self.share.file(&job.output) {
            Some(path) => ("the output", vec![path]),
            None if !self.keep_split => ("the output", vec![job.output.clone()]),
            None => ("a part", (1..=n_parts).map(|part| part_path(&job.output, part, n_parts)).collect()),
        };
        for path in paths {
            guard.write(role, &path, OutputKind::Model)?;
            if !job.has_output {
                guard.unnamed(&path, Unnamed { metadata: file.metadata(), source: file })?;
            }
        }
        Ok(())
    }

    fn quantize(&self, session: &Session, job: &QuantizeJob) -> anyhow::Result<Exit> {
        if job.input.is_dir() {
            return self.quantize_checkpoint(session, job);
        }
        let start = Instant::now();
        // The type is arbitrary if a target size decides.
        let file_type = job.file_type.unwrap_or(FileType::Q4KM);
        let mut options = self.options.to_options(file_type, self.common.simd)?;
        options.keep_split = self.keep_split;
        let file = GgufFile::open(&job.input)?;
        self.guard(session, job, &file)?;
        let imatrix = self.options.open_imatrix(session)?;
        let input = Input::file(&file);
        overrides::check(&input, &options)?;
        // With a calibration text, types are chosen after it has been read.
        let allocation = if self.calibrate.is_given() {
            None
        } else {
            self.target.announce(session, self.dry_run);
            self.target.allocate(session, &input, &options, imatrix.as_ref())?
        };
        if let Some(allocation) = &allocation {
            options = allocation.options.clone();
        }
        let write_options = WriteOptions {
            sync: !self.common.no_sync,
            memory_bytes: self.common.memory_bytes(),
            inputs: file.paths().into_iter().chain(self.options.imatrix.clone()).collect(),
            into_one_file: self.share.into.is_some(),
            resume: self.share.resume || self.share.into.is_some(),
            split: (self.keep_split || self.share.part.is_some()).then(|| SplitSpec {
                share: self.share.part,
                without_id: self.no_split_id,
                ..SplitSpec::default()
            }),
            ..WriteOptions::default()
        };
        let calibrated = CalibrateJob {
            input: &input,
            file: Some(&file),
            output: &job.output,
            file_type,
            options: &options,
            write: &write_options,
            types: &self.target,
            start,
        };
        if self.dry_run && self.calibrate.is_given() {
            self.calibrate.preview(session, &calibrated, allocation.as_ref())?;
            return Ok(Exit::Done);
        }
        if self.dry_run {
            let plan = QuantizePlan::draft(&input, &options, imatrix.as_ref())?;
            self.share.note(session, plan.metadata(), &plan, &write_options)?;
            report::warn(session, job.file_type, self.options.coverage, &plan);
            for obstacle in plan.obstacles() {
                session.progress.warn(&format!("a run would stop here: {obstacle}"));
            }
            session.destination(&job.output);
            self.target.write(session, &plan)?;
            report::print_plan(session, &plan, allocation.as_ref(), None)?;
            return Ok(Exit::Done);
        }
        if self.calibrate.is_given() {
            self.calibrate.run(session, &calibrated)?;
            return Ok(Exit::Done);
        }
        let plan = QuantizePlan::new(&input, &options, imatrix.as_ref())?;
        self.share.note(session, plan.metadata(), &plan, &write_options)?;
        report::warn(session, job.file_type, self.options.coverage, &plan);
        if allocation.is_some() && !self.common.json && !self.common.quiet {
            report::print_plan(session, &plan, allocation.as_ref(), None)?;
        }
        let written = plan.write(&job.output, &write_options, &session.progress)?;
        self.share.note_rest(session, &written);
        self.target.write(session, &plan)?;
        let zeros: Vec<_> = plan.all_zero().map(|tensor| tensor.name.clone()).collect();
        report::warn_all_zero(session, &zeros);
        report::warn_small_rows(session, &plan.small_rows());
        let extra = report::SummaryExtra { calibration: None, allocation: allocation.as_ref() };
        let seconds = start.elapsed().as_secs_f64();
        report::print_report(session, options.file_type, &plan, &written, seconds, &extra)?;
        Ok(Exit::Done)
    }
}

impl Tool for Quantize {
    fn common(&self) -> &Common {
        &self.common
    }

    fn after_interrupt(&self) -> Option<String> {
        match &self.command {
            Some(_) => None,
            None if self.dry_run => None,
            None if self.calibrate.is_given() => self.calibrate.after_interrupt(),
            // A run that writes several files cannot be resumed.
            None if self.keep_split => Some("nothing was kept".to_owned()),
            None => Some(self.share.after_interrupt()),
        }
    }

    fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        match &self.command {
            Some(QuantizeCommand::Stats(args)) => return args.run(session),
            Some(QuantizeCommand::Completions(args)) => return args.run(command(), session),
            None => {}
        }
        let job = self.job()?;
        match job.threads {
            None => self.quantize(session, &job),
            Some(n) => {
                let (pool, note) = crate::cli::threads::pool(n)?;
                if let Some(note) = note {
                    session.note(&note);
                }
                pool.install(|| self.quantize(session, &job))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(args: &[&str]) -> anyhow::Result<QuantizeJob> {
        Quantize::try_parse_from([&["gguf-quantize"], args].concat())?.job()
    }

    #[test]
    fn both_forms_of_arguments() {
        let found = job(&["in.gguf", "out.gguf", "q4_k_m", "8"]).unwrap();
        assert_eq!((found.file_type, found.threads), (Some(FileType::Q4KM), Some(8)));
        assert_eq!(found.output, Path::new("out.gguf"));
        let found = job(&["dir/in.gguf", "15"]).unwrap();
        assert_eq!(found.output, Path::new("dir/in-Q4_K_M.gguf"));
        let found = job(&["in.gguf", "out.gguf", "--type", "Q6_K"]).unwrap();
        assert_eq!((found.file_type, found.output.as_path()), (Some(FileType::Q6K), Path::new("out.gguf")));
        let found = job(&["--pure", "--type", "copy", "in.gguf"]).unwrap();
        assert_eq!(found.output, Path::new("in-COPY.gguf"));
        assert_eq!(job(&["in.gguf", "f16", "0"]).unwrap().threads, None);
    }

    #[test]
    fn a_run_that_was_stopped_says_how_to_go_on() {
        let rest = |args: &[&str]| {
            Quantize::try_parse_from([&["gguf-quantize", "a.gguf", "q4_0"], args].concat())
                .unwrap()
                .after_interrupt()
                .unwrap_or_default()
        };
        assert!(rest(&[]).starts_with("nothing was kept: with `--resume`"));
        assert!(rest(&["--resume"]).starts_with("what was written is kept"));
        assert!(rest(&["--calibrate", "t.txt"]).starts_with("nothing was kept: with `--work-dir DIR`"));
        assert_eq!(rest(&["--keep-split"]), "nothing was kept");
        // The working folder has been named already.
        assert_eq!(rest(&["--calibrate", "t.txt", "--work-dir", "w"]), "");
        assert_eq!(rest(&["--dry-run"]), "");
    }

    #[test]
    fn bad_arguments() {
        let line =
            |args: &[&str]| job(args).err().map(|error| crate::cli::render::error_line(&error)).unwrap();
        assert_eq!(line(&["in.gguf"]), "a type expected: `--type TYPE`");
        assert_eq!(line(&["in.gguf", "out.gguf"]), "a type expected behind the output, or `--type TYPE`");
        assert_eq!(line(&["in.gguf", "out.gguf", "q9_9"]), "unknown type `q9_9`");
        // Too similar to a type to be the name of an output.
        assert_eq!(line(&["in.gguf", "q4_km"]), "unknown type `q4_km`");
        assert_eq!(
            line(&["in.gguf", "out.gguf", "q4_0", "many"]),
            "number of threads expected, found `many`"
        );
        assert_eq!(line(&["in", "out", "--type", "q4_0", "2", "3"]), "unexpected argument `3`");
    }

    #[test]
    fn help_lists_every_type() {
        let help = types_help();
        for file_type in FileType::all() {
            assert!(help.contains(file_type.name()), "{file_type}");
        }
        assert!(help.contains("Q4_K_M, Q4_K"));
    }
}

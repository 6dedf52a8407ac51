//! `gguf-quantize`: quantizes a GGUF file or a checkpoint.

pub(crate) mod calibrate;
mod ladder;
pub(crate) mod options;
mod recipe;
mod solver;
pub(crate) mod target;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::cli::completions::Completions;
use crate::cli::convert::to_gguf::resolve;
use crate::cli::help::wrapped;
use crate::cli::job::{JobArgs, carry_out, output_path};
use crate::cli::quantize::ladder::LadderArgs;
use crate::cli::quantize::options::{RequantizeArgs, usage};
use crate::cli::quantize::recipe::{RebuildArgs, RecipeArgs};
use crate::cli::render::{Align, Table};
use crate::cli::type_names::TypeNames;
use crate::cli::{Common, Exit, Session, Tool, UsageError};
use crate::job::{Job, JobInput, JobOutput, JobTypes, OutputFiles, OutputPath, TypeSwitches};
use crate::quantize::{FileType, nominal, parse_file_type};

/// Entry point of `gguf-quantize`.
pub fn main() -> ExitCode {
    crate::cli::run::<Quantize>()
}

/// Returns the parser, for completions and manual pages.
pub(crate) fn command() -> clap::Command {
    <Quantize as clap::CommandFactory>::command()
}

/// Quantize a GGUF file, to the bytes of llama-quantize, or a checkpoint
#[derive(Parser)]
#[command(
    name = "gguf-quantize",
    version = crate::cli::version(), long_version = crate::cli::build(),
    override_usage = "gguf-quantize [OPTIONS] --type TYPE | --like FILE IN [OUT]\n       gguf-quantize [OPTIONS] IN [OUT] TYPE [THREADS]",
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
        conflicts_with_all = ["target", "like"],
        value_parser = TypeNames(&[]),
        hide_possible_values = true
    )]
    file_type: Option<String>,
    /// Output, a file or a folder; the same as the second argument
    #[arg(short, long, value_name = "FILE")]
    output: Option<OsString>,
    /// Print what would be done, write nothing
    #[arg(long)]
    dry_run: bool,
    /// Write as many files as the input has
    #[arg(long, conflicts_with_all = ["target", "part", "resume"])]
    keep_split: bool,
    #[command(flatten)]
    requantize: RequantizeArgs,
    /// Leave out the key gguf_foundry.split.id, by which mixed parts are found: the bytes of llama-quantize
    #[arg(long, requires = "keep_split")]
    no_split_id: bool,
    /// Accepted for compatibility with llama-quantize; see --memory
    #[arg(long, value_name = "MIB", hide = true)]
    max_buffer_size: Option<u64>,
    #[command(flatten)]
    job: JobArgs,
    #[command(flatten)]
    common: Common,
}

#[derive(Subcommand)]
enum QuantizeCommand {
    /// Write many types of a model from one reading of it: every file has the bytes of its own single run
    Ladder(Box<LadderArgs>),
    /// Find out how a quantized file was made of a model: types, importance matrix, and whatever was changed; as a small
    /// recipe from which the file can be made again
    Recipe(RecipeArgs),
    /// Make a file again from its recipe and the model, byte for byte
    Rebuild(RebuildArgs),
    /// Print a script with which a shell completes the arguments of this program
    ///
    /// For bash: `source <(gguf-quantize completions bash)`, in ~/.bashrc to keep.
    Completions(Completions),
}

/// Width of the column that describes a type, on a screen of 80 columns.
const ABOUT_COLUMNS: usize = 48;

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

struct Arguments {
    input: PathBuf,
    /// Output, if it is given.
    output: Option<PathBuf>,
    types: JobTypes,
    threads: Option<usize>,
}

impl Quantize {
    fn arguments(&self) -> anyhow::Result<Arguments> {
        let usage_line = |text: &str| anyhow::Error::new(UsageError(text.to_owned()));
        let mut arguments = self.arguments.clone();
        if let Some(output) = &self.output {
            arguments.insert(arguments.len().min(1), output.into());
        }
        let mut rest = arguments.iter();
        let input = rest.next().ok_or_else(|| usage_line("an input expected"))?.clone();
        let mut output = None;
        let types = if let Some(types) = self.job.size.job_types(false)? {
            output = rest.next().cloned();
            types
        } else if let Some(text) = &self.file_type {
            output = rest.next().cloned();
            JobTypes::mixture(parse_file_type(text).map_err(usage)?)
        } else {
            let first = rest.next().ok_or_else(|| usage_line("a type expected: `--type TYPE`"))?;
            if let Some(file_type) = first.to_str().and_then(FileType::parse) {
                JobTypes::mixture(file_type)
            } else {
                output = Some(first.clone());
                let Some(text) = rest.next() else { return Err(no_type(first)) };
                JobTypes::mixture(parse_file_type(&text.to_string_lossy()).map_err(usage)?)
            }
        };
        // A type after the output, or in its place.
        let mut words = output.iter().chain(rest.clone()).filter_map(|word| word.to_str());
        let chosen = self.job.size.chosen_by();
        if let Some(option) = chosen
            && let Some(found) = words.find_map(FileType::parse)
        {
            let restrict =
                if self.job.size.like.is_some() { "" } else { ", or restrict them with `--types`" };
            return Err(usage_line(&format!("{option} chooses the types: leave `{found}` out{restrict}")));
        }
        let threads = match rest.next() {
            None => None,
            Some(text) => {
                let number = text.to_str().and_then(|text| text.parse::<u16>().ok());
                let bad = || match &self.output {
                    Some(_) => UsageError(format!("`-o` names the output: leave `{}` out", text.display())),
                    None => UsageError(format!("number of threads expected, found `{}`", text.display())),
                };
                Some(number.ok_or_else(bad)?).filter(|&n| n > 0).map(usize::from)
            }
        };
        if let Some(extra) = rest.next() {
            return Err(UsageError(format!("unexpected argument `{}`", extra.display())).into());
        }
        if let (Some(_), Some(output)) = (&self.job.share.into, &output) {
            let text = format!("`--into` names the output: leave `{}` out", output.display());
            return Err(UsageError(text).into());
        }
        Ok(Arguments { input, output, types, threads })
    }

    /// Returns the job: a GGUF file is quantized, and the folder of a checkpoint is converted in one pass, as with
    /// `gguf-convert hf2gguf` and the same type.
    fn job(&self, found: &Arguments) -> anyhow::Result<Job> {
        let input = JobInput::of_path(found.input.clone());
        let is_checkpoint = matches!(input, JobInput::Checkpoint(_));
        if is_checkpoint && self.keep_split {
            let text =
                "--keep-split goes with GGUF files: `gguf-convert hf2gguf --split-max-size` writes parts";
            return Err(UsageError(text.to_owned()).into());
        }
        let types = match &found.types {
            JobTypes::Mixture { file_type, .. } if is_checkpoint => {
                let is_quantizing = self.job.asks_for_quantization();
                resolve(file_type.name(), TypeSwitches::default(), is_quantizing)?
            }
            types => types.clone(),
        };
        let path = match (&self.job.share.into, &found.output) {
            (Some(path), _) => OutputPath::File(path.clone()),
            (None, path) => output_path(path.as_deref(), input.directory()),
        };
        let files = if self.keep_split { OutputFiles::AsInput } else { self.job.share.files() };
        let output = JobOutput { files, without_id: self.no_split_id, ..JobOutput::at(path) };
        let job = Job { suggests_native: !self.common.quiet, ..Job::new(input, types, output) };
        let mut job = self.job.fill(job, &self.common)?;
        job.quantize.allow_requantize = self.requantize.allow_requantize;
        job.convert.level = self.common.simd;
        job.convert.allow_nonfinite = job.quantize.allow_nonfinite;
        Ok(job)
    }
}

impl Tool for Quantize {
    fn common(&self) -> &Common {
        &self.common
    }

    fn after_interrupt(&self) -> Option<String> {
        match &self.command {
            Some(QuantizeCommand::Ladder(args)) => (!args.is_dry()).then(|| args.after_interrupt()),
            Some(_) => None,
            None if self.dry_run => None,
            None => self.job.after_interrupt(self.keep_split),
        }
    }

    fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        match &self.command {
            Some(QuantizeCommand::Ladder(args)) => return args.run(session),
            Some(QuantizeCommand::Recipe(args)) => return args.run(session),
            Some(QuantizeCommand::Rebuild(args)) => return args.run(session),
            Some(QuantizeCommand::Completions(args)) => return args.run(command(), session),
            None => {}
        }
        let found = self.arguments()?;
        let quantize = || carry_out(session, &self.job(&found)?, self.dry_run).map(|_| ());
        match found.threads {
            None => quantize()?,
            Some(n) => {
                let (pool, note) = crate::cli::threads::pool(n)?;
                if let Some(note) = note {
                    session.note(&note);
                }
                pool.install(quantize)?;
            }
        }
        Ok(Exit::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(args: &[&str]) -> anyhow::Result<Arguments> {
        Quantize::try_parse_from([&["gguf-quantize"], args].concat())?.arguments()
    }

    #[test]
    fn both_forms_of_arguments() {
        let types = JobTypes::mixture;
        let found = arguments(&["in.gguf", "out.gguf", "q4_k_m", "8"]).unwrap();
        assert_eq!((found.types, found.threads), (types(FileType::Q4KM), Some(8)));
        assert_eq!(found.output.as_deref(), Some(Path::new("out.gguf")));
        let found = arguments(&["dir/in.gguf", "15"]).unwrap();
        assert_eq!((found.types, found.output), (types(FileType::Q4KM), None));
        let found = arguments(&["in.gguf", "out.gguf", "--type", "Q6_K"]).unwrap();
        assert_eq!((found.types, found.output), (types(FileType::Q6K), Some("out.gguf".into())));
        let found = arguments(&["--pure", "--type", "copy", "in.gguf"]).unwrap();
        assert_eq!((found.types, found.output), (types(FileType::Copy), None));
        assert_eq!(arguments(&["in.gguf", "f16", "0"]).unwrap().threads, None);
    }

    #[test]
    fn an_output_without_a_name_is_in_the_directory_of_the_input() {
        let path = |args: &[&str]| {
            let quantize = Quantize::try_parse_from([&["gguf-quantize"], args].concat()).unwrap();
            quantize.job(&quantize.arguments().unwrap()).unwrap().output.path
        };
        assert_eq!(path(&["dir/in.gguf", "15"]), OutputPath::Directory("dir".into()));
        assert_eq!(path(&["--pure", "--type", "copy", "in.gguf"]), OutputPath::Directory(PathBuf::new()));
        assert_eq!(path(&["in.gguf", "out.gguf", "q4_0"]), OutputPath::File("out.gguf".into()));
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
        let line = |args: &[&str]| {
            arguments(args).err().map(|error| crate::cli::render::error_line(&error)).unwrap()
        };
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
        assert_eq!(
            line(&["in", "out", "--type", "q4_0", "-o", "x"]),
            "`-o` names the output: leave `out` out"
        );
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

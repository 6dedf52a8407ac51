//! Shared parts of the `2gguf` commands: options, planning, writing, reporting.

mod codes;
mod job;
mod type_plan;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use regex::Regex;

use crate::cli::default_name::Unnamed;
use crate::cli::guard::Guard;
use crate::cli::quantize::calibrate::CalibrateArgs;
use crate::cli::quantize::job::CalibrateJob;
use crate::cli::quantize::options::QuantizeArgs;
use crate::cli::quantize::target::TargetArgs;
use crate::cli::quantize::{overrides, report};
use crate::cli::share::ShareArgs;
use crate::cli::stored::StoredQuantization;
use crate::cli::type_names::TypeNames;
use crate::cli::{Session, UsageError, templates};
use crate::convert::{Conversion, ConvertError, ConvertOptions, ModelSource, fill_template};
use crate::core::bytes::Endian;
use crate::core::limits::Limits;
use crate::core::output::{self, OutputKind};
use crate::core::text::escape;
use crate::core::{GgmlType, TensorSource};
use crate::gguf::{
    Imatrix, LayoutOptions, SplitSpec, SplitStyle, WriteOptions, parse_assignment, write_gguf,
};
use crate::quantize::{FileType, Input, QuantizeOptions, QuantizePlan};
use codes::CodesReport;
use type_plan::TypeSwitches;

pub(super) use job::ConvertJob;
pub(super) use type_plan::{AUTO, TypePlan};

/// Request for a conversion, from a program that quantizes.
pub(in crate::cli) struct QuantizeRequest {
    /// Path of the output, if it is given.
    pub(in crate::cli) output: Option<PathBuf>,
    /// Name of the type; `None` if a target size decides.
    pub(in crate::cli) file_type: Option<&'static str>,
    pub(in crate::cli) dry_run: bool,
    pub(in crate::cli) share: ShareArgs,
    pub(in crate::cli) options: QuantizeArgs,
    pub(in crate::cli) size: TargetArgs,
    pub(in crate::cli) calibrate: CalibrateArgs,
}

/// Options of every conversion to GGUF.
#[derive(Debug, Args)]
pub(in crate::cli) struct ToGguf {
    /// File or directory to write [default: in the checkpoint's directory, named after the model]
    #[arg(short, long, visible_alias = "outfile", value_name = "PATH", conflicts_with = "into")]
    output: Option<PathBuf>,
    #[arg(
        long = "type",
        visible_alias = "outtype",
        value_name = "TYPE",
        default_value = AUTO,
        conflicts_with = "target",
        help = type_plan::help(),
        value_parser = TypeNames(&[AUTO, "native"]),
        hide_possible_values = true
    )]
    ty: String,
    /// Print the plan and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Name of the model instead of the derived one
    #[arg(long, value_name = "NAME")]
    model_name: Option<String>,
    /// JSON file with general.* keys that override the derived ones
    #[arg(long, value_name = "FILE")]
    metadata: Option<PathBuf>,
    /// Set a key, for example general.author=str:Me; may be repeated, the last one wins
    #[arg(long, value_name = "KEY=TYPE:VALUE")]
    set: Vec<String>,
    /// Leave out tensors of the checkpoint whose names match, for example '^v_head\.'; may be repeated
    #[arg(long, value_name = "REGEX", conflicts_with = "vocab_only")]
    drop: Vec<String>,
    /// Write keys gguf_foundry.* for numbers that change the result and for which GGUF has no key (the sliding window
    /// of Mistral and Qwen 2, ...): gguf-verify and gguf2hf read them, other runtimes ignore them
    #[arg(long)]
    annotate: bool,
    /// Use an architecture card from a file, or all cards of a directory
    #[arg(long, value_name = "PATH")]
    card: Option<PathBuf>,
    /// Name of the pre-tokenizer, where it is not recognized
    #[arg(long, value_name = "NAME")]
    pre: Option<String>,
    /// Chat template to write instead of the checkpoint's
    #[arg(long, value_name = "FILE")]
    chat_template: Option<PathBuf>,
    /// Read text files of the model (configuration, tokenizer, templates) also through links that lead out of its
    /// directory; the hub's cache needs no permission
    #[arg(long)]
    follow_links: bool,
    /// Write no vocabulary
    #[arg(long, conflicts_with_all = ["vocab_only", "pre", "chat_template"])]
    no_tokenizer: bool,
    /// Write metadata and vocabulary without tensors
    #[arg(long, conflicts_with = "part")]
    vocab_only: bool,
    /// Most bytes of tensors in a part, with K, M or G (powers of 1000, as in llama.cpp)
    #[arg(long, value_name = "SIZE", value_parser = crate::cli::split_size, conflicts_with_all = ["target", "part", "resume"])]
    split_max_size: Option<u64>,
    /// Most tensors in a part
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..),
        conflicts_with_all = ["target", "part", "resume"]
    )]
    split_max_tensors: Option<u64>,
    /// Keep tensors out of the first part
    #[arg(long, conflicts_with = "part")]
    no_tensor_first_split: bool,
    /// Leave out the key gguf_foundry.split.id, by which mixed parts are found: the bytes of llama.cpp's converter
    #[arg(long)]
    no_split_id: bool,
    /// Write a big-endian file
    #[arg(long)]
    bigendian: bool,
    /// With native: keep integers also where their scales must be rounded
    #[arg(long)]
    allow_rounding: bool,
    /// Go through floats also where the checkpoint's integers could be kept (q8_0, q4_0, q4_1, q5_0) or its blocks are
    /// (experts in MXFP4)
    #[arg(long)]
    requantize: bool,
    /// Switches of llama.cpp's converter that mean nothing here: tensors are always read when they are needed, and
    /// never gathered before they are written.
    #[arg(long, hide = true)]
    no_lazy: bool,
    #[arg(long, hide = true)]
    use_temp_file: bool,
    #[command(flatten)]
    share: ShareArgs,
    #[command(flatten)]
    quantize: QuantizeArgs,
    #[command(flatten)]
    size: TargetArgs,
    #[command(flatten)]
    calibrate: CalibrateArgs,
}

/// Run with its options.
struct ConvertRun<'a> {
    args: &'a ToGguf,
    session: &'a Session,
    /// Input: a directory, or a file in one.
    input: &'a Path,
    /// Directory for the output, if no path is given.
    dir: &'a Path,
    started: Instant,
}

impl ToGguf {
    /// Creates the options of a quantization; all others have their defaults.
    pub(in crate::cli) fn of_quantization(asked: QuantizeRequest) -> Self {
        let QuantizeRequest { output, file_type, dry_run, share, options, size, calibrate } = asked;
        Self {
            output,
            ty: file_type.unwrap_or(AUTO).to_owned(),
            dry_run,
            model_name: None,
            metadata: None,
            set: Vec::new(),
            annotate: false,
            drop: Vec::new(),
            card: None,
            pre: None,
            chat_template: None,
            follow_links: false,
            no_tokenizer: false,
            vocab_only: false,
            split_max_size: None,
            split_max_tensors: None,
            no_tensor_first_split: false,
            no_split_id: false,
            share,
            bigendian: false,
            allow_rounding: false,
            requantize: false,
            no_lazy: false,
            use_temp_file: false,
            quantize: options,
            size,
            calibrate,
        }
    }

    /// Plans and writes a checkpoint's directory.
    pub(in crate::cli) fn run_on_folder(&self, session: &Session, dir: &Path) -> anyhow::Result<()> {
        self.run(session, [dir, dir], |_, _| Ok(()), |options| ModelSource::open(dir, options))
    }

    /// Plans and writes. `adjust` sets the options of one form of input, and refuses those that contradict the type.
    /// `open` opens the input. `dir` is the default directory for the output.
    pub(super) fn run(
        &self,
        session: &Session,
        [input, dir]: [&Path; 2],
        adjust: impl FnOnce(TypePlan, &mut ConvertOptions) -> anyhow::Result<()>,
        open: impl FnOnce(&ConvertOptions) -> Result<ModelSource, ConvertError>,
    ) -> anyhow::Result<()> {
        let started = Instant::now();
        let switches = TypeSwitches {
            allow_rounding: self.allow_rounding,
            requantize: self.requantize,
            has_quantize_options: self.quantize.is_any_given()
                || self.calibrate.is_given()
                || self.size.write_types.is_some(),
        };
        let plan = match self.size.target() {
            Some(_) => TypePlan::OF_A_SIZE,
            None => TypePlan::resolve(&self.ty, switches)?,
        };
        if self.no_split_id && !self.is_split() {
            let text = "`--no-split-id` needs `--split-max-size`, `--split-max-tensors` or `--part`";
            return Err(UsageError(text.to_owned()).into());
        }
        if self.vocab_only && (self.calibrate.is_given() || self.size.target().is_some()) {
            let option = if self.calibrate.is_given() { "--calibrate" } else { self.size.option() };
            return Err(UsageError(format!("`{option}` needs tensors: leave `--vocab-only` out")).into());
        }
        if self.no_lazy {
            session.note("`--no-lazy` changes nothing: every tensor is read when it is written");
        }
        if self.use_temp_file {
            session.note("`--use-temp-file` changes nothing: tensors are never gathered in memory");
        }
        let mut options = self.options(session, plan)?;
        adjust(plan, &mut options)?;
        let mut conversion = Conversion::of(open(&options)?, &options)?;
        for warning in conversion.warnings() {
            log::warn!("{}", escape(warning));
        }
        for (name, why) in templates::faults(conversion.metadata()) {
            log::warn!(
                "chat template `{}` is written as it is, and no runtime will read it: {why}",
                escape(&name)
            );
        }
        for (name, why) in conversion.dropped() {
            log::info!("`{}` is left out: {why}", escape(name));
        }
        if let (true, [first, others @ ..]) = (self.dry_run, conversion.mapping().read.as_slice()) {
            let others = match others.len() {
                0 => String::new(),
                n => format!(" and {n} more tensors"),
            };
            session.note(&format!("the plan depends on the content of `{}`{others}", escape(first)));
        }
        let run = ConvertRun { args: self, session, input, dir, started };
        match plan {
            TypePlan::Plain { .. } => {
                let encoding = conversion.encoding();
                let stored = StoredQuantization::of(&conversion, conversion.tensors(), !session.common.quiet);
                run.convert(&conversion, encoding, stored)?;
            }
            TypePlan::Native { .. } => {
                let stored = StoredQuantization::of(&conversion, conversion.tensors(), false);
                run.convert(&conversion, "NATIVE".to_owned(), stored)?;
            }
            TypePlan::Mixture { file_type, keep } => run.quantize(&mut conversion, file_type, keep)?,
        }
        if !self.dry_run {
            let zeros: Vec<_> = conversion.zero_tensors().map(ToOwned::to_owned).collect();
            report::warn_all_zero(session, &zeros);
        }
        Ok(())
    }

    /// Returns a sentence about what is kept of a run that was stopped.
    pub(super) fn after_interrupt(&self) -> Option<String> {
        if self.dry_run {
            return None;
        }
        if self.calibrate.is_given() {
            return self.calibrate.after_interrupt();
        }
        // A run that writes several files cannot be resumed.
        let is_set = self.is_split() && self.share.part.is_none();
        Some(if is_set { "nothing was kept".to_owned() } else { self.share.after_interrupt() })
    }

    /// Returns true if the model is run on a text.
    pub(super) fn is_calibrated(&self) -> bool {
        self.calibrate.is_given()
    }

    fn is_split(&self) -> bool {
        self.split_max_size.is_some() || self.split_max_tensors.is_some() || self.share.part.is_some()
    }

    fn options(&self, session: &Session, plan: TypePlan) -> anyhow::Result<ConvertOptions> {
        let set = self.set.iter().map(|text| parse_assignment(text));
        Ok(ConvertOptions {
            file_type: plan.file_type(),
            codes: plan.codes(),
            annotate: self.annotate,
            drop: self.drop.iter().map(|text| drop_pattern(text)).collect::<Result<_, _>>()?,
            card: self.card.clone(),
            model_name: self.model_name.clone(),
            metadata_file: self.metadata.clone(),
            set: set.collect::<Result<_, _>>().map_err(|error| UsageError(error.to_string()))?,
            tokenizer: !self.no_tokenizer,
            vocab_only: self.vocab_only,
            pre: self.pre.clone(),
            chat_template: self.chat_template.clone(),
            allow_nonfinite: self.quantize.allow_nonfinite,
            level: session.common.simd,
            limits: Limits { follow_links: self.follow_links, ..Limits::default() },
            ..ConvertOptions::default()
        })
    }

    /// Returns the output's path: as given, with `{ftype}` replaced, or the default name in the given directory.
    fn target(&self, conversion: &Conversion, dir: &Path, encoding: &str) -> PathBuf {
        if let Some(path) = &self.share.into {
            return path.clone();
        }
        let path = self.output.as_deref().unwrap_or(dir);
        job_target(path, &conversion.default_file_name(encoding), encoding)
    }

    /// Returns true if the user named the file, not only its directory.
    fn names_its_output(&self) -> bool {
        self.share.into.is_some() || self.output.as_deref().is_some_and(|path| !path.is_dir())
    }

    fn write_options(&self, session: &Session, conversion: &Conversion) -> WriteOptions {
        WriteOptions {
            layout: LayoutOptions {
                endian: if self.bigendian { Endian::Big } else { Endian::Little },
                pad_header: !self.vocab_only,
                ..LayoutOptions::default()
            },
            split: self.is_split().then_some(SplitSpec {
                max_bytes: self.split_max_size,
                max_tensors: self.split_max_tensors,
                share: self.share.part,
                no_tensor_first: self.no_tensor_first_split,
                style: SplitStyle::Converter,
                without_id: self.no_split_id,
            }),
            sync: !session.common.no_sync,
            memory_bytes: session.common.memory_bytes(),
            inputs: conversion.input_paths().into_iter().chain(self.quantize.imatrix.clone()).collect(),
            in_place: false,
            into_one_file: self.share.into.is_some(),
            resume: self.share.resume || self.share.into.is_some(),
        }
    }
}

/// Parses the pattern of `--drop`.
fn drop_pattern(text: &str) -> Result<Regex, UsageError> {
    let why = |error: regex::Error| match error.to_string().lines().last() {
        Some(line) => line.trim_start_matches("error: ").to_owned(),
        None => String::new(),
    };
    Regex::new(text)
        .map_err(|error| UsageError(format!("`--drop {text}`: no regular expression: {}", why(error))))
}

/// Returns the path of an output: a file with `{ftype}` replaced, or the default name in a directory.
pub(super) fn job_target(path: &Path, default_name: &str, encoding: &str) -> PathBuf {
    if path.is_dir() {
        return path.join(default_name);
    }
    let names_a_file = output::check_name(path).is_ok();
    match path.file_name().and_then(|name| name.to_str()).filter(|_| names_a_file) {
        Some(name) => path.with_file_name(fill_template(name, encoding)),
        None => path.to_owned(),
    }
}

impl ConvertRun<'_> {
    /// Registers everything that is read, whatever the options, so that outputs are checked before any weight is read.
    fn guard(&self, conversion: &Conversion) -> anyhow::Result<Guard<'_>> {
        let args = self.args;
        // A list of types is written even by a dry run.
        let mut guard = Guard::new(self.session, args.dry_run && args.size.write_types.is_none());
        guard.read("the checkpoint", self.input)?;
        guard.read_all("the checkpoint", conversion.input_paths())?;
        guard.read("the directory of the checkpoint", self.dir)?;
        guard.read_all("the card", &args.card)?;
        guard.read_all("the metadata", &args.metadata)?;
        guard.read_all("the chat template", &args.chat_template)?;
        guard.read_all("the importance matrix", &args.quantize.imatrix)?;
        guard.read_all("rules of types", args.quantize.tensor_types.files())?;
        args.calibrate.guard(&mut guard)?;
        args.size.guard(&mut guard)?;
        Ok(guard)
    }

    /// Checks one output file against the inputs, and against an existing file with its default name.
    fn guard_output(
        &self,
        guard: &mut Guard<'_>,
        path: &Path,
        conversion: &Conversion,
    ) -> anyhow::Result<()> {
        guard.write("the output", path, OutputKind::Model)?;
        if self.args.names_its_output() {
            return Ok(());
        }
        guard.unnamed(path, Unnamed { metadata: conversion.metadata(), source: conversion })
    }

    /// Writes a type that the converter itself produces.
    fn convert(
        &self,
        conversion: &Conversion,
        encoding: String,
        stored: StoredQuantization<'_>,
    ) -> anyhow::Result<()> {
        let Self { args, session, .. } = self;
        let job = ConvertJob {
            target: args.target(conversion, self.dir, &encoding),
            codes: CodesReport::of(conversion),
            stored,
            metadata: conversion.metadata(),
            source: conversion,
            options: args.write_options(session, conversion),
            encoding,
        };
        args.share.note(session, job.metadata, job.source, &job.options)?;
        let mut guard = self.guard(conversion)?;
        for file in job.files()? {
            let path = if args.share.into.is_some() { &job.target } else { &file.path };
            self.guard_output(&mut guard, path, conversion)?;
        }
        if args.dry_run {
            return job
                .print_plan(session, |tensor| conversion.sources(tensor).map(ToOwned::to_owned).collect());
        }
        let report = write_gguf(&job.target, job.metadata, job.source, &job.options, &session.progress)?;
        args.share.note_rest(session, &report);
        let small = conversion.small_rows();
        report::warn_small_rows(session, &small);
        job.print_report(session, &report, &small, self.started.elapsed().as_secs_f64())
    }

    /// Returns the names of the tensors that a quantization brings to a type.
    fn names_of_type(
        &self,
        conversion: &Conversion,
        ty: GgmlType,
        options: &QuantizeOptions,
        imatrix: Option<&Imatrix>,
    ) -> anyhow::Result<HashSet<String>> {
        let input = Input::new(conversion, conversion.metadata());
        if self.args.calibrate.is_given() {
            let types = QuantizePlan::types_to_come(&input, options)?.into_iter();
            let wanted = types.filter(|(_, to_come)| *to_come == ty);
            return Ok(wanted.map(|(at, _)| conversion.tensors()[at].name.clone()).collect());
        }
        let draft = QuantizePlan::draft(&input, options, imatrix)?;
        let wanted = draft.tensors().iter().filter(|tensor| tensor.ty == ty);
        Ok(wanted.map(|tensor| tensor.name.clone()).collect())
    }

    /// Quantizes in one pass: the conversion to F32 is the source that the quantization reads, row by row.
    fn quantize(
        &self,
        conversion: &mut Conversion,
        file_type: FileType,
        keep: Option<GgmlType>,
    ) -> anyhow::Result<()> {
        let Self { args, session, .. } = self;
        let of_size = args.size.word();
        let target = args.target(conversion, self.dir, of_size.as_deref().unwrap_or(file_type.name()));
        let write = args.write_options(session, conversion);
        let mut guard = self.guard(conversion)?;
        if let Some(path) = args.share.file(&target) {
            self.guard_output(&mut guard, &path, conversion)?;
        } else if write.split.is_none() {
            self.guard_output(&mut guard, &target, conversion)?;
        }
        let mut options = args.quantize.to_options(file_type, session.common.simd)?;
        let imatrix = args.quantize.open_imatrix(session)?;
        if let Some(ty) = keep {
            // Tensors that the mixture brings to the type of the checkpoint's integers keep these integers.
            let names = self.names_of_type(conversion, ty, &options, imatrix.as_ref())?;
            conversion.keep(ty, |name| names.contains(name))?;
        }
        let conversion = &*conversion;
        let input = Input::new(conversion, conversion.metadata());
        overrides::check(&input, &options)?;
        let may_hint = !args.requantize && !session.common.quiet;
        if args.calibrate.is_given() {
            return self.calibrate(conversion, &input, &options, &target, &write);
        }
        args.size.announce(session, args.dry_run);
        let allocation = args.size.allocate(session, &input, &options, imatrix.as_ref())?;
        if let Some(allocation) = &allocation {
            options = allocation.options.clone();
        }
        let allocation = allocation.as_ref();
        let asked = allocation.is_none().then_some(file_type);
        if args.dry_run {
            let plan = QuantizePlan::draft(&input, &options, imatrix.as_ref())?;
            args.share.note(session, plan.metadata(), &plan, &write)?;
            report::warn(session, asked, args.quantize.coverage, &plan);
            session.destination(&target);
            StoredQuantization::of(conversion, plan.tensors(), may_hint).print(session)?;
            args.size.write(session, &plan)?;
            return report::print_plan(session, &plan, allocation, None);
        }
        let plan = QuantizePlan::new(&input, &options, imatrix.as_ref())?;
        args.share.note(session, plan.metadata(), &plan, &write)?;
        report::warn(session, asked, args.quantize.coverage, &plan);
        StoredQuantization::of(conversion, plan.tensors(), may_hint).print(session)?;
        CodesReport::of(conversion).print(session)?;
        if allocation.is_some() && !session.common.json && !session.common.quiet {
            report::print_plan(session, &plan, allocation, None)?;
        }
        let report = plan.write(&target, &write, &session.progress)?;
        args.share.note_rest(session, &report);
        args.size.write(session, &plan)?;
        report::warn_small_rows(session, &plan.small_rows());
        let seconds = self.started.elapsed().as_secs_f64();
        let extra = report::SummaryExtra { calibration: None, allocation };
        report::print_report(session, options.file_type, &plan, &report, seconds, &extra)
    }

    /// Quantizes with calibration. The model that is run is the F32 file that this conversion would write.
    fn calibrate(
        &self,
        conversion: &Conversion,
        input: &Input<'_>,
        options: &QuantizeOptions,
        output: &Path,
        write: &WriteOptions,
    ) -> anyhow::Result<()> {
        let Self { args, session, started: start, .. } = *self;
        let types = &args.size;
        if types.target().is_none() {
            let mut tensors = conversion.tensors().to_vec();
            for (at, ty) in QuantizePlan::types_to_come(input, options)? {
                tensors[at].ty = ty;
            }
            StoredQuantization::of(conversion, &tensors, !args.requantize && !session.common.quiet)
                .print(session)?;
            if !args.dry_run {
                CodesReport::of(conversion).print(session)?;
            }
        }
        let file_type = options.file_type;
        let job = CalibrateJob { input, file: None, output, file_type, options, write, types, start };
        if args.dry_run {
            args.calibrate.preview(session, &job, None)
        } else {
            args.calibrate.run(session, &job)
        }
    }
}

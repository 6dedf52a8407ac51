//! What every form of `gguf-convert … 2gguf` shares: its options, planning, writing, and what it tells its user.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use serde_json::json;

use crate::arch;
use crate::cli::quantize::options::{QuantizeOptions, usage};
use crate::cli::quantize::report;
use crate::cli::render::{Align, Table, count, duration, plural};
use crate::cli::stored::Stored;
use crate::cli::{Session, UsageError};
use crate::convert::{
    Codes, Conversion, ConvertError, ConvertOptions, FloatRole, KeptRole, ModelSource, naming,
};
use crate::core::bytes::Endian;
use crate::core::output::free_bytes;
use crate::core::text::{bytes, escape};
use crate::core::{GgmlType, TensorSource};
use crate::gguf::{
    LayoutOptions, Metadata, SplitSpec, SplitStyle, WriteOptions, WriteReport, parse_assignment, plan_files,
    write_gguf,
};
use crate::quantize::{self, Input, QuantizePlan, parse_file_type};

/// Options of every conversion to GGUF.
#[derive(Debug, Args)]
pub(super) struct ToGguf {
    /// File or directory to write [default: beside the checkpoint's weights, named after the model]
    #[arg(short, long, visible_alias = "outfile", value_name = "PATH")]
    output: Option<PathBuf>,
    /// Type of the file: f32, f16, bf16, q8_0, tq1_0, tq2_0 or auto (what the checkpoint has) as llama.cpp's
    /// converter writes them; native (a quantized checkpoint's own integers where a block type holds them exactly,
    /// the narrowest exact float elsewhere); any type of gguf-quantize as that makes it from the f32 file, in one
    /// pass
    #[arg(long = "type", visible_alias = "outtype", value_name = "TYPE", default_value = "auto")]
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
    /// Write keys gguf_foundry.* for numbers that change the result and for which GGUF has no key (the sliding window of
    /// Mistral and Qwen 2, ...): gguf-verify and gguf2hf read them, other runtimes pass over them
    #[arg(long)]
    annotate: bool,
    /// Use an architecture card from a file
    #[arg(long, value_name = "FILE")]
    card: Option<PathBuf>,
    /// Name of the pre-tokenizer, where it is not recognized
    #[arg(long, value_name = "NAME")]
    pre: Option<String>,
    /// Chat template to write instead of the checkpoint's
    #[arg(long, value_name = "FILE")]
    chat_template: Option<PathBuf>,
    /// Write no vocabulary
    #[arg(long, conflicts_with_all = ["vocab_only", "pre", "chat_template"])]
    no_tokenizer: bool,
    /// Write metadata and vocabulary without tensors
    #[arg(long)]
    vocab_only: bool,
    /// Most bytes of tensors in a part, with K, M or G (powers of 1000, as in llama.cpp)
    #[arg(long, value_name = "SIZE", value_parser = crate::cli::split_size)]
    split_max_size: Option<u64>,
    /// Most tensors in a part
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    split_max_tensors: Option<u64>,
    /// Keep tensors out of the first part
    #[arg(long)]
    no_tensor_first_split: bool,
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
    #[command(flatten)]
    quantize: QuantizeOptions,
}

/// What `--type` asks for.
enum Target {
    /// A type that the converter itself writes; `None` for the one that suits the checkpoint.
    Convert(Option<arch::OutType>),
    /// The integers of the checkpoint, where they can be kept.
    Native,
    /// A type that is quantized to, from F32.
    Quantize(quantize::FileType),
}

/// Block types that may take over integers with their scales rounded, and 4-bit floats as they are.
const KEEPING: [GgmlType; 5] =
    [GgmlType::Q8_0, GgmlType::Q4_0, GgmlType::Q4_1, GgmlType::Q5_0, GgmlType::Mxfp4];

impl ToGguf {
    /// Plans and writes. `adjust` sets the options that belong to one form of input; `open` opens the input; `dir` is
    /// where the output goes if nothing else is said.
    pub(super) fn run(
        &self,
        session: &Session,
        dir: &Path,
        adjust: impl FnOnce(&mut ConvertOptions),
        open: impl FnOnce(&ConvertOptions) -> Result<ModelSource, ConvertError>,
    ) -> anyhow::Result<()> {
        let started = Instant::now();
        let target = self.target_type()?;
        if !matches!(target, Target::Quantize(_)) && self.quantize.is_any_given() {
            let text =
                format!("quantization options go with a quantized type, not with `--type {}`", self.ty);
            return Err(UsageError(text).into());
        }
        let mut options = self.options(session, &target)?;
        adjust(&mut options);
        let mut conversion = Conversion::of(open(&options)?, &options)?;
        for warning in conversion.warnings() {
            log::warn!("{}", escape(warning));
        }
        for (name, why) in conversion.dropped() {
            log::info!("`{}` is left out: {why}", escape(name));
        }
        match target {
            Target::Convert(_) | Target::Native => self.convert(session, &conversion, dir, started)?,
            Target::Quantize(file_type) => {
                self.quantize(session, &mut conversion, file_type, dir, started)?;
            }
        }
        for name in conversion.zero_tensors().filter(|_| !self.dry_run) {
            log::warn!("tensor `{}` holds nothing but zeros", escape(name));
        }
        Ok(())
    }

    fn convert(
        &self,
        session: &Session,
        conversion: &Conversion,
        dir: &Path,
        started: Instant,
    ) -> anyhow::Result<()> {
        let is_native = matches!(self.target_type()?, Target::Native);
        let encoding = if is_native { "NATIVE".to_owned() } else { conversion.encoding() };
        let job = Job {
            target: self.target(conversion, dir, &encoding),
            codes: CodesReport { kept: conversion.kept(), floats: conversion.floats() },
            stored: Stored::of(conversion, conversion.tensors(), !is_native && !session.common.quiet),
            metadata: conversion.metadata(),
            source: conversion,
            options: self.write_options(session, conversion),
            encoding,
        };
        if self.dry_run {
            return job
                .print_plan(session, |tensor| conversion.sources(tensor).map(ToOwned::to_owned).collect());
        }
        let report = write_gguf(&job.target, job.metadata, job.source, &job.options, &session.progress)?;
        job.print_report(session, &report, started.elapsed().as_secs_f64())
    }

    /// In one pass: the conversion to F32 is the source that the quantization reads, row by row.
    fn quantize(
        &self,
        session: &Session,
        conversion: &mut Conversion,
        file_type: quantize::FileType,
        dir: &Path,
        started: Instant,
    ) -> anyhow::Result<()> {
        let options = self.quantize.to_options(file_type, session.common.simd)?;
        let imatrix = self.quantize.open_imatrix()?;
        if let Some(ty) = file_type.base().filter(|ty| !self.requantize && KEEPING.contains(ty)) {
            // What the quantization would bring to the type of the checkpoint's integers keeps them.
            let names: HashSet<String> = {
                let input = Input::new(&*conversion, conversion.metadata());
                let draft = QuantizePlan::draft(&input, &options, imatrix.as_ref())?;
                let wanted = draft.tensors().iter().filter(|tensor| tensor.ty == ty);
                wanted.map(|tensor| tensor.name.clone()).collect()
            };
            conversion.keep(ty, |name| names.contains(name))?;
        }
        let conversion = &*conversion;
        let input = Input::new(conversion, conversion.metadata());
        if self.dry_run {
            let plan = QuantizePlan::draft(&input, &options, imatrix.as_ref())?;
            report::warn(session, self.quantize.coverage, &plan);
            self.stored(session, conversion, &plan).print(session)?;
            return report::print_plan(session, &plan);
        }
        let plan = QuantizePlan::new(&input, &options, imatrix.as_ref())?;
        report::warn(session, self.quantize.coverage, &plan);
        self.stored(session, conversion, &plan).print(session)?;
        CodesReport { kept: conversion.kept(), floats: conversion.floats() }.print(session)?;
        let target = self.target(conversion, dir, file_type.name());
        let report = plan.write(&target, &self.write_options(session, conversion), &session.progress)?;
        report::print_report(session, file_type, &plan, &report, started.elapsed().as_secs_f64())
    }

    /// Whether `--type` is one that the converter itself writes.
    pub(super) fn is_plain(&self) -> anyhow::Result<bool> {
        Ok(matches!(self.target_type()?, Target::Convert(_)))
    }

    /// What becomes of a quantized checkpoint's weights, where they are quantized once more.
    fn stored<'a>(
        &self,
        session: &Session,
        conversion: &'a Conversion,
        plan: &QuantizePlan<'_>,
    ) -> Stored<'a> {
        let may_hint = !self.requantize && !session.common.quiet;
        Stored::of(conversion, plan.tensors(), may_hint)
    }

    fn target_type(&self) -> anyhow::Result<Target> {
        let name = self.ty.to_ascii_lowercase();
        match name.as_str() {
            "auto" => return Ok(Target::Convert(None)),
            "native" => return Ok(Target::Native),
            _ => {}
        }
        if let Some(file_type) = arch::OutType::from_name(&name) {
            return Ok(Target::Convert(Some(file_type)));
        }
        parse_file_type(&self.ty).map(Target::Quantize).map_err(usage)
    }

    fn options(&self, session: &Session, target: &Target) -> anyhow::Result<ConvertOptions> {
        let set = self.set.iter().map(|text| parse_assignment(text));
        Ok(ConvertOptions {
            file_type: match target {
                Target::Convert(file_type) => *file_type,
                Target::Quantize(_) | Target::Native => Some(arch::OutType::F32),
            },
            codes: match target {
                Target::Native => Codes::Native { allow_rounding: self.allow_rounding },
                Target::Convert(Some(arch::OutType::Q8_0)) if !self.requantize => Codes::Keep(GgmlType::Q8_0),
                Target::Convert(_) if !self.requantize => Codes::Card,
                Target::Convert(_) | Target::Quantize(_) => Codes::Float,
            },
            annotate: self.annotate,
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
            ..ConvertOptions::default()
        })
    }

    /// The output's path: as given, with `{ftype}` filled in, or the default name in the directory given.
    fn target(&self, conversion: &Conversion, dir: &Path, encoding: &str) -> PathBuf {
        let path = self.output.as_deref().unwrap_or(dir);
        if path.is_dir() {
            return path.join(conversion.default_file_name(encoding));
        }
        match path.file_name().and_then(|name| name.to_str()) {
            Some(name) => path.with_file_name(naming::fill_template(name, encoding)),
            None => path.to_owned(),
        }
    }

    fn write_options(&self, session: &Session, conversion: &Conversion) -> WriteOptions {
        let is_split = self.split_max_size.is_some() || self.split_max_tensors.is_some();
        WriteOptions {
            layout: LayoutOptions {
                endian: if self.bigendian { Endian::Big } else { Endian::Little },
                pad_header: !self.vocab_only,
                ..LayoutOptions::default()
            },
            split: is_split.then_some(SplitSpec {
                max_bytes: self.split_max_size,
                max_tensors: self.split_max_tensors,
                no_tensor_first: self.no_tensor_first_split,
                style: SplitStyle::Converter,
            }),
            sync: !session.common.no_sync,
            memory_bytes: session.common.memory_bytes(),
            inputs: conversion.input_paths(),
        }
    }
}

/// An output that is planned.
struct Job<'a> {
    target: PathBuf,
    codes: CodesReport,
    stored: Stored<'a>,
    metadata: &'a Metadata,
    source: &'a dyn TensorSource,
    options: WriteOptions,
    /// Name of the file type.
    encoding: String,
}

impl Job<'_> {
    fn print_plan(&self, session: &Session, sources: impl Fn(usize) -> Vec<String>) -> anyhow::Result<()> {
        let tensors = self.source.tensors();
        let layout = &self.options.layout;
        let files = plan_files(&self.target, self.metadata, tensors, layout, self.options.split.as_ref())?;
        let file_bytes: u64 = files.iter().map(|file| file.plan.file_bytes).sum();
        let free = free_bytes(&self.target);
        if session.common.json {
            let rows: Vec<_> = tensors
                .iter()
                .enumerate()
                .map(|(at, tensor)| {
                    json!({
                        "name": tensor.name, "shape": tensor.shape.dims(), "type": tensor.ty.name(),
                        "bytes": tensor.n_bytes(), "sources": sources(at),
                    })
                })
                .collect();
            let paths: Vec<_> = files.iter().map(|file| file.path.display().to_string()).collect();
            return session.print_json(&json!({
                "files": paths, "type": self.encoding, "file_bytes": file_bytes, "free_bytes": free,
                "keys": self.metadata.len(), "tensors": rows, "kept": self.codes.kept_json(),
                "floats": self.codes.floats_json(), "quantization": self.stored.json(),
            }));
        }
        self.stored.print(session)?;
        self.codes.print(session)?;
        let mut table = Table::new(&[
            ("tensor", Align::Left),
            ("shape", Align::Left),
            ("type", Align::Left),
            ("size", Align::Right),
            ("source", Align::Left),
        ]);
        for (at, tensor) in tensors.iter().enumerate() {
            let sources = sources(at);
            let source = match sources.as_slice() {
                [] => "computed".to_owned(),
                [one] => escape(one).into_owned(),
                [first, .., last] => {
                    format!("{} … {} ({})", escape(first), escape(last), sources.len())
                }
            };
            let size = tensor.n_bytes().map_or_else(String::new, bytes);
            table.row([
                escape(&tensor.name).into_owned(),
                tensor.shape.to_string(),
                tensor.ty.to_string(),
                size,
                source,
            ]);
        }
        session.print(|out| {
            table.print(out)?;
            writeln!(out)?;
            for file in &files {
                writeln!(out, "{}", file.path.display())?;
            }
            let keys = plural(self.metadata.len() as u64, "key");
            writeln!(out, "{}, {}, {}", plural(tensors.len() as u64, "tensor"), keys, bytes(file_bytes))?;
            match free {
                Some(free) => writeln!(out, "{} free on the disk", bytes(free)),
                None => Ok(()),
            }
        })
    }

    fn print_report(&self, session: &Session, report: &WriteReport, seconds: f64) -> anyhow::Result<()> {
        let n_elems: u64 = self.source.tensors().iter().map(|tensor| tensor.shape.n_elems()).sum();
        let bpw = report.tensor_bytes as f64 * 8.0 / n_elems.max(1) as f64;
        if session.common.json {
            let paths: Vec<_> = report.paths.iter().map(|path| path.display().to_string()).collect();
            return session.print_json(&json!({
                "files": paths, "type": self.encoding, "tensors": report.n_tensors, "parameters": n_elems,
                "tensor_bytes": report.tensor_bytes, "file_bytes": report.file_bytes,
                "bits_per_weight": bpw, "seconds": seconds, "kept": self.codes.kept_json(),
                "floats": self.codes.floats_json(), "quantization": self.stored.json(),
            }));
        }
        self.stored.print(session)?;
        self.codes.print(session)?;
        if session.common.quiet {
            return Ok(());
        }
        let rate = report.file_bytes as f64 / 1e6 / seconds.max(1e-9);
        session.print(|out| {
            for path in &report.paths {
                writeln!(out, "{}", path.display())?;
            }
            writeln!(
                out,
                "{}, {} parameters, {}, {:.2} bits per weight as {}, {} ({rate:.0} MB/s)",
                plural(report.n_tensors as u64, "tensor"),
                count(n_elems),
                bytes(report.file_bytes),
                bpw,
                self.encoding,
                duration(seconds),
            )
        })
    }
}

/// What became of the codes of a quantized checkpoint.
struct CodesReport {
    kept: Vec<KeptRole>,
    floats: Vec<FloatRole>,
}

impl CodesReport {
    fn kept_json(&self) -> Vec<serde_json::Value> {
        let row = |kept: &KeptRole| {
            json!({
                "role": kept.role, "type": kept.ty.name(), "tensors": kept.n_tensors,
                "scale_error": kept.scale_error,
            })
        };
        self.kept.iter().map(row).collect()
    }

    fn floats_json(&self) -> Vec<serde_json::Value> {
        let row = |row: &FloatRole| {
            json!({
                "role": row.role, "tensors": row.n_tensors, "reason": row.reason.to_string(),
            })
        };
        self.floats.iter().map(row).collect()
    }

    /// What keeps its codes, what that costs, and what becomes floats for which reason.
    fn print(&self, session: &Session) -> anyhow::Result<()> {
        if session.common.quiet || session.common.json {
            return Ok(());
        }
        if !self.kept.is_empty() {
            let mut table = Table::new(&[
                ("integers kept", Align::Left),
                ("type", Align::Left),
                ("tensors", Align::Right),
                ("largest error of a scale", Align::Right),
            ]);
            for kept in &self.kept {
                let error = match kept.scale_error {
                    0.0 => "exact".to_owned(),
                    error => format!("{error:.1e}"),
                };
                let role = escape(&kept.role).into_owned();
                table.row([role, kept.ty.to_string(), kept.n_tensors.to_string(), error]);
            }
            session.print(|out| table.print(out))?;
        }
        if !self.floats.is_empty() {
            let mut table = Table::new(&[
                ("through floats", Align::Left),
                ("tensors", Align::Right),
                ("reason", Align::Left),
            ]);
            for row in &self.floats {
                let role = escape(&row.role).into_owned();
                table.row([role, row.n_tensors.to_string(), row.reason.to_string()]);
            }
            session.print(|out| table.print(out))?;
        }
        Ok(())
    }
}

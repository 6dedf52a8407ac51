//! `gguf-convert gguf2hf`: converts a GGUF file to a Hugging Face checkpoint.

use std::path::PathBuf;
use std::time::Instant;

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::cli::render::{duration, named, plural};
use crate::cli::{Exit, Session};
use crate::convert::{ConvertOptions, ToHfOptions, ToHfReport, gguf_to_hf, registry};
use crate::core::ElementType;
use crate::core::text::{bytes, escape};
use crate::core::written::{as_paths, as_text};
use crate::gguf::GgufFile;
use crate::job::must_be_language_model;

/// Types that a checkpoint's weights can have.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum WeightType {
    Bf16,
    F16,
    F32,
}

/// Arguments of `gguf2hf`.
#[derive(Debug, Args)]
pub(super) struct Gguf2hf {
    /// GGUF file; any part of a split model
    file: PathBuf,
    /// Directory to write; new or empty
    #[arg(short, long, visible_alias = "outfile", value_name = "DIR")]
    output: PathBuf,
    /// Type of the weights [default: the narrowest that holds every value exactly]
    #[arg(long = "type", value_enum, ignore_case = true, value_name = "TYPE")]
    ty: Option<WeightType>,
    /// Largest shard, with K, M or G
    #[arg(long, value_name = "SIZE", default_value = "5G", value_parser = crate::cli::size_above_0)]
    max_shard_size: u64,
    /// Use an architecture card from a file
    #[arg(long, value_name = "FILE")]
    card: Option<PathBuf>,
    /// Write weights and config.json without the tokenizer's files
    #[arg(long)]
    no_tokenizer: bool,
}

/// Report of a checkpoint that was written.
#[derive(Serialize)]
struct Gguf2hfReport {
    /// Written files.
    #[serde(serialize_with = "as_paths")]
    files: Vec<PathBuf>,
    /// Class of the model in `config.json`.
    class: String,
    /// Element type of the weights.
    #[serde(rename = "type", serialize_with = "as_text")]
    ty: ElementType,
    /// Number of tensors.
    #[serde(rename = "tensors")]
    n_tensors: usize,
    /// Size of the tensors in bytes.
    tensor_bytes: u64,
    /// Data that a checkpoint cannot store.
    lost: Vec<String>,
    /// Other data that is left out, and oddities.
    warnings: Vec<String>,
    /// Duration of the run in seconds.
    seconds: f64,
}

impl Gguf2hfReport {
    fn new(report: ToHfReport, seconds: f64) -> Self {
        let came_back = |tensor: &String| format!("`{tensor}` comes back through arithmetic that rounds");
        Self {
            files: report.paths,
            class: report.class,
            ty: report.ty,
            n_tensors: report.n_tensors,
            tensor_bytes: report.n_bytes,
            lost: report.rounded.iter().map(came_back).chain(report.lost).collect(),
            warnings: report.warnings,
            seconds,
        }
    }
}

impl Gguf2hf {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        let started = Instant::now();
        let registry = registry(&ConvertOptions { card: self.card.clone(), ..ConvertOptions::default() })?;
        let file = GgufFile::open(&self.file)?;
        must_be_language_model(&file)?;
        let options = ToHfOptions {
            ty: self.ty.map(|ty| match ty {
                WeightType::Bf16 => ElementType::Bf16,
                WeightType::F16 => ElementType::F16,
                WeightType::F32 => ElementType::F32,
            }),
            tokenizer: !self.no_tokenizer,
            max_shard_bytes: self.max_shard_size,
            memory_bytes: session.common.memory_bytes(),
            sync: !session.common.no_sync,
            level: session.common.simd,
        };
        let report =
            gguf_to_hf(&registry, file.metadata(), &file, &self.output, &options, &session.progress)?;
        for warning in &report.warnings {
            log::warn!("{}", escape(warning));
        }
        let all = session.common.verbose > 0;
        let warn = |n: usize, noun: &str, what: &str, names: &[String]| {
            if n > 0 {
                log::warn!("{} {what}: {}", plural(n as u64, noun), named(names, all));
            }
        };
        let (rounded, lost) = (&report.rounded, &report.lost);
        warn(rounded.len(), "tensor", "computed back, with the rounding that the conversion had", rounded);
        warn(lost.len(), "key", "without a place in a checkpoint, left out", lost);
        let report = Gguf2hfReport::new(report, started.elapsed().as_secs_f64());
        if session.common.json {
            session.print_json(&report)?;
        } else if !session.common.quiet {
            session.print(|out| {
                writeln!(
                    out,
                    "{}: {}, {} as {}, {}, {}",
                    self.output.display(),
                    report.class,
                    plural(report.n_tensors as u64, "tensor"),
                    report.ty,
                    bytes(report.tensor_bytes),
                    duration(report.seconds),
                )
            })?;
        }
        Ok(Exit::Done)
    }
}

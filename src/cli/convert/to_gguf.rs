//! Options of the `2gguf` commands, and the job that they describe.

mod types;

use std::path::{Path, PathBuf};

use clap::Args;
use regex::Regex;

use crate::cli::job::{JobArgs, carry_out, output_path};
use crate::cli::type_names::TypeNames;
use crate::cli::{Session, UsageError};
use crate::convert::ConvertOptions;
use crate::core::bytes::Endian;
use crate::core::limits::Limits;
use crate::gguf::parse_assignment;
use crate::job::{Job, JobInput, JobOutput, JobTypes, OutputFiles, OutputPath, TypeSwitches};

pub(in crate::cli) use types::resolve;

/// Keys of the file in place of the derived ones.
#[derive(Debug, Args)]
pub(super) struct KeyArgs {
    /// Name of the model instead of the derived one; wins over --metadata
    #[arg(long, value_name = "NAME", value_parser = crate::cli::name)]
    model_name: Option<String>,
    /// JSON file with general.* keys that override the derived ones
    #[arg(long, value_name = "FILE")]
    metadata: Option<PathBuf>,
    /// Set a key, for example general.author=str:Me; may be repeated, the last one wins, also over --model-name and
    /// --metadata
    #[arg(long, value_name = "KEY=TYPE:VALUE")]
    set: Vec<String>,
}

impl KeyArgs {
    pub(super) fn fill(&self, options: ConvertOptions) -> Result<ConvertOptions, UsageError> {
        let set = self.set.iter().map(|text| parse_assignment(text));
        Ok(ConvertOptions {
            model_name: self.model_name.clone(),
            metadata_file: self.metadata.clone(),
            set: set.collect::<Result<_, _>>().map_err(|error| UsageError(error.to_string()))?,
            ..options
        })
    }
}

/// Refuses towers in types that runtimes do not read.
pub(super) fn check_tower_types(types: &JobTypes) -> Result<(), UsageError> {
    match types {
        JobTypes::Plain { .. } => Ok(()),
        _ => Err(UsageError(
            "`--mmproj` goes with f32, f16, bf16, q8_0, tq1_0, tq2_0 and auto only: runtimes read towers in these types"
                .to_owned(),
        )),
    }
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
        default_value = JobTypes::AUTO,
        conflicts_with_all = ["target", "like"],
        help = types::help(),
        value_parser = TypeNames(&[JobTypes::AUTO, JobTypes::NATIVE]),
        hide_possible_values = true
    )]
    ty: String,
    /// Print the plan and write nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    keys: KeyArgs,
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
    /// Largest size of the tensors in a part, with K, M or G (powers of 1000, as in llama.cpp)
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
    job: JobArgs,
}

impl ToGguf {
    /// Plans and writes, and returns the files. `adjust` sets the options of one form of input, and refuses those that contradict the types.
    /// `dir` is the default directory for the output.
    pub(super) fn run(
        &self,
        session: &Session,
        input: JobInput,
        dir: &Path,
        adjust: impl FnOnce(&JobTypes, &mut ConvertOptions) -> anyhow::Result<()>,
    ) -> anyhow::Result<Vec<PathBuf>> {
        let types = self.types()?;
        self.check()?;
        if self.no_lazy {
            session.note("`--no-lazy` changes nothing: every tensor is read when it is written");
        }
        if self.use_temp_file {
            session.note("`--use-temp-file` changes nothing: tensors are never gathered in memory");
        }
        let mut convert = self.options(session)?;
        adjust(&types, &mut convert)?;
        let suggests_native = !(session.common.quiet || types.is_quantized() && self.requantize);
        let job = Job { convert, suggests_native, ..Job::new(input, types, self.output(dir)) };
        carry_out(session, &self.job.fill(job, &session.common)?, self.dry_run)
    }

    fn types(&self) -> anyhow::Result<JobTypes> {
        let switches = TypeSwitches { allow_rounding: self.allow_rounding, requantize: self.requantize };
        match self.job.size.job_types(self.requantize)? {
            Some(types) => Ok(types),
            None => resolve(&self.ty, switches, self.job.asks_for_quantization()),
        }
    }

    /// Refuses options that contradict one another.
    fn check(&self) -> Result<(), UsageError> {
        if self.no_split_id && !self.is_split() {
            let text = "`--no-split-id` needs `--split-max-size`, `--split-max-tensors` or `--part`";
            return Err(UsageError(text.to_owned()));
        }
        if self.no_tensor_first_split && !self.is_split() {
            let text = "`--no-tensor-first-split` needs `--split-max-size` or `--split-max-tensors`";
            return Err(UsageError(text.to_owned()));
        }
        if self.allow_rounding && !self.ty.eq_ignore_ascii_case(JobTypes::NATIVE) {
            return Err(UsageError("`--allow-rounding` goes with `--type native`".to_owned()));
        }
        let is_calibrated = self.job.calibrate.is_given();
        let needing = if is_calibrated { Some("--calibrate") } else { self.job.size.chosen_by() };
        let quantize = &self.job.quantize;
        self.refuse_with_vocabulary_alone(&[
            (needing.unwrap_or_default(), needing.is_some()),
            ("--imatrix", quantize.imatrix.is_some()),
            ("--pure", quantize.pure),
            ("--leave-output-tensor", quantize.leave_output_tensor),
            ("--output-tensor-type", quantize.output_tensor_type.is_some()),
            ("--token-embedding-type", quantize.token_embedding_type.is_some()),
            ("--prune-layers", quantize.prune_layers.is_some()),
            ("--write-types", self.job.size.write_types.is_some()),
            ("--split-max-size", self.split_max_size.is_some()),
            ("--split-max-tensors", self.split_max_tensors.is_some()),
        ])
    }

    /// Refuses options about tensors, each with true if it was given, for a vocabulary alone.
    pub(super) fn refuse_with_vocabulary_alone(&self, options: &[(&str, bool)]) -> Result<(), UsageError> {
        match options.iter().find(|(_, is_given)| self.vocab_only && *is_given) {
            Some((option, _)) => {
                Err(UsageError(format!("`{option}` needs tensors: leave `--vocab-only` out")))
            }
            None => Ok(()),
        }
    }

    /// Returns a sentence about what is kept of a run that was stopped.
    pub(super) fn after_interrupt(&self) -> Option<String> {
        let is_set = self.is_split() && self.job.share.part.is_none();
        if self.dry_run { None } else { self.job.after_interrupt(is_set) }
    }

    /// Returns true if the model is run on a text.
    pub(super) fn is_calibrated(&self) -> bool {
        self.job.calibrate.is_given()
    }

    fn is_split(&self) -> bool {
        self.split_max_size.is_some() || self.split_max_tensors.is_some() || self.job.share.part.is_some()
    }

    /// Returns the output; `dir` is its directory if no path is given.
    fn output(&self, dir: &Path) -> JobOutput {
        let share = &self.job.share;
        let files = match (self.split_max_size, self.split_max_tensors) {
            (None, None) => share.files(),
            (max_bytes, max_tensors) => {
                OutputFiles::Set { max_bytes, max_tensors, no_tensor_first: self.no_tensor_first_split }
            }
        };
        let into = share.into.clone().map(OutputPath::File);
        JobOutput {
            path: into.unwrap_or_else(|| output_path(self.output.as_deref(), dir)),
            files,
            without_id: self.no_split_id,
            endian: if self.bigendian { Endian::Big } else { Endian::Little },
        }
    }

    fn options(&self, session: &Session) -> Result<ConvertOptions, UsageError> {
        self.keys.fill(ConvertOptions {
            annotate: self.annotate,
            drop: self.drop.iter().map(|text| drop_pattern(text)).collect::<Result<_, _>>()?,
            card: self.card.clone(),
            tokenizer: !self.no_tokenizer,
            vocab_only: self.vocab_only,
            pre: self.pre.clone(),
            chat_template: self.chat_template.clone(),
            allow_nonfinite: self.job.quantize.allow_nonfinite,
            level: session.common.simd,
            limits: Limits { follow_links: self.follow_links, ..Limits::default() },
            ..ConvertOptions::default()
        })
    }
}

fn drop_pattern(text: &str) -> Result<Regex, UsageError> {
    let why = |error: regex::Error| match error.to_string().lines().last() {
        Some(line) => line.trim_start_matches("error: ").to_owned(),
        None => String::new(),
    };
    Regex::new(text)
        .map_err(|error| UsageError(format!("`--drop {text}`: no regular expression: {}", why(error))))
}

//! Options of quantization: llama-quantize's under the same names, and some more.

use std::path::PathBuf;

use anyhow::Context;
use clap::{ArgMatches, Args, Command, FromArgMatches};

use crate::cli::UsageError;
use crate::core::GgmlType;
use crate::core::simd::SimdLevel;
use crate::job::Importance;
use crate::quantize::{
    CoveragePolicy, FileType, OptionError, Override, QuantizeOptions, TensorTypeRule, parse_ggml_type,
    parse_layers,
};

/// Options of quantizing. Flatten it.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Quantization options")]
#[allow(clippy::struct_excessive_bools, reason = "switches of a command line")]
pub(crate) struct QuantizeArgs {
    /// Importance matrix, GGUF or the older .dat
    #[arg(long, value_name = "FILE")]
    pub imatrix: Option<PathBuf>,
    /// Use the importance matrix for tensors whose name contains this; repeatable
    #[arg(long, value_name = "NAME", conflicts_with = "exclude_weights")]
    pub include_weights: Vec<String>,
    /// Do not use the importance matrix for tensors whose name contains this; repeatable
    #[arg(long, value_name = "NAME")]
    pub exclude_weights: Vec<String>,
    /// Give a tensor without importance data those of another with the same input: queries, keys and values; gate and
    /// up; experts as one stack or one by one
    #[arg(long, requires = "imatrix")]
    pub share_importance: bool,
    /// Treatment of tensors and experts without importance data: ignore, warn, tensors (stop if a tensor has
    /// none), error (stop also if an expert was never seen)
    #[arg(long, value_name = "POLICY", default_value = "warn", value_parser = coverage, requires = "imatrix")]
    pub coverage: CoveragePolicy,
    /// One type for all weights, no mixture
    #[arg(long)]
    pub pure: bool,
    /// Leave output.weight as it is
    #[arg(long)]
    pub leave_output_tensor: bool,
    /// Type of output.weight
    #[arg(long, value_name = "TYPE")]
    pub output_tensor_type: Option<String>,
    /// Type of the token embeddings
    #[arg(long, value_name = "TYPE")]
    pub token_embedding_type: Option<String>,
    /// Types by name.
    #[command(flatten)]
    pub tensor_types: TensorTypeArgs,
    /// Stop where columns do not fit the type, instead of taking another one
    #[arg(long)]
    pub no_fallback: bool,
    /// Leave out these layers: L0,L1,...
    #[arg(long, value_name = "LAYERS")]
    pub prune_layers: Option<String>,
    /// Set metadata: int, float, bool or str; repeatable
    #[arg(long, value_name = "KEY=TYPE:VALUE")]
    pub override_kv: Vec<String>,
    /// Continue at NaN and infinity
    #[arg(long)]
    pub allow_nonfinite: bool,
}

/// Option of commands whose input can be quantized. Flatten it.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Quantization options")]
pub(crate) struct RequantizeArgs {
    /// Accept tensors that are already quantized; they lose quality again
    #[arg(long)]
    pub allow_requantize: bool,
}

fn coverage(text: &str) -> Result<CoveragePolicy, String> {
    CoveragePolicy::from_name(text).ok_or_else(|| {
        let names: Vec<_> = CoveragePolicy::ALL.iter().map(|row| format!("`{}`", row.0)).collect();
        format!("one of {} expected", names.join(", "))
    })
}

/// Reports a bad option as bad usage; its hints are kept.
pub(crate) fn usage(error: OptionError) -> anyhow::Error {
    let line = match std::error::Error::source(&error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    };
    anyhow::Error::new(error).context(UsageError(line))
}

impl QuantizeArgs {
    /// Returns the options for the library. The file type is another matter.
    pub(crate) fn to_options(&self, simd: SimdLevel) -> anyhow::Result<QuantizeOptions> {
        let tensor_type = |name: &Option<String>| -> anyhow::Result<Option<GgmlType>> {
            name.as_deref().map(parse_ggml_type).transpose().map_err(usage)
        };
        let mut options = QuantizeOptions::new(FileType::Q4KM);
        options.pure = self.pure;
        options.leave_output_tensor = self.leave_output_tensor;
        options.output_tensor_type = tensor_type(&self.output_tensor_type)?;
        options.token_embedding_type = tensor_type(&self.token_embedding_type)?;
        options.tensor_types = self.tensor_types.rules()?;
        options.no_fallback = self.no_fallback;
        if let Some(layers) = &self.prune_layers {
            options.prune_layers = parse_layers(layers).map_err(usage)?;
        }
        for text in &self.override_kv {
            options.overrides.push(Override::parse(text).map_err(usage)?);
        }
        options.allow_nonfinite = self.allow_nonfinite;
        options.coverage = self.coverage;
        options.share_importance = self.share_importance;
        options.simd = simd;
        Ok(options)
    }

    /// Returns true if an option was given that requires a quantization.
    pub(crate) fn is_any_given(&self) -> bool {
        self.pure
            || self.leave_output_tensor
            || self.output_tensor_type.is_some()
            || self.token_embedding_type.is_some()
            || !self.tensor_types.sources.is_empty()
            || self.prune_layers.is_some()
            || !self.override_kv.is_empty()
    }

    /// Returns the importance matrix with the entries to use.
    pub(crate) fn importance(&self) -> Importance {
        Importance {
            path: self.imatrix.clone(),
            include: self.include_weights.clone(),
            exclude: self.exclude_weights.clone(),
            names_only: false,
        }
    }
}

/// Type rules for single tensors from options and files, in the order in which they were given: the first match wins.
#[derive(Clone, Debug, Default)]
pub(crate) struct TensorTypeArgs {
    sources: Vec<RuleSource>,
}

#[derive(Clone, Debug)]
enum RuleSource {
    Rule(String),
    File(PathBuf),
}

const RULE: &str = "tensor_type";
const FILE: &str = "tensor_type_file";

impl TensorTypeArgs {
    pub(crate) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.sources.iter().filter_map(|source| match source {
            RuleSource::File(path) => Some(path),
            RuleSource::Rule(_) => None,
        })
    }

    fn rules(&self) -> anyhow::Result<Vec<TensorTypeRule>> {
        let mut rules = Vec::new();
        for source in &self.sources {
            match source {
                RuleSource::Rule(text) => rules.push(TensorTypeRule::parse(text).map_err(usage)?),
                RuleSource::File(path) => {
                    let text = crate::core::input::read_to_string(path)?;
                    let parsed = TensorTypeRule::parse_list(&text).map_err(usage);
                    rules.extend(parsed.with_context(|| path.display().to_string())?);
                }
            }
        }
        Ok(rules)
    }
}

impl FromArgMatches for TensorTypeArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut sources = Vec::new();
        let rules = matches.indices_of(RULE).into_iter().flatten();
        let texts = matches.get_many::<String>(RULE).into_iter().flatten();
        sources.extend(rules.zip(texts.cloned().map(RuleSource::Rule)));
        let files = matches.indices_of(FILE).into_iter().flatten();
        let paths = matches.get_many::<PathBuf>(FILE).into_iter().flatten();
        sources.extend(files.zip(paths.cloned().map(RuleSource::File)));
        sources.sort_by_key(|source| source.0);
        Ok(Self { sources: sources.into_iter().map(|source| source.1).collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for TensorTypeArgs {
    fn augment_args(command: Command) -> Command {
        command
            .arg(
                clap::Arg::new(RULE)
                    .long("tensor-type")
                    .value_name("REGEX=TYPE")
                    .action(clap::ArgAction::Append)
                    .help("Type of the tensors whose names match the regular expression; repeatable, first match wins"),
            )
            .arg(
                clap::Arg::new(FILE)
                    .long("tensor-type-file")
                    .value_name("FILE")
                    .value_parser(clap::value_parser!(PathBuf))
                    .action(clap::ArgAction::Append)
                    .help("Read such REGEX=TYPE rules from a file, with blanks or line ends between them"),
            )
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(clap::Parser)]
    struct QuantizeProbe {
        #[command(flatten)]
        options: QuantizeArgs,
    }

    fn options(args: &[&str]) -> anyhow::Result<QuantizeOptions> {
        let probe = QuantizeProbe::try_parse_from([&["probe"], args].concat())?;
        probe.options.to_options(SimdLevel::Scalar)
    }

    #[test]
    fn rules_keep_the_order_of_the_command_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rules.txt");
        fs_err::write(&path, "b=q4_0\nc=q5_0\n").unwrap();
        let file = path.to_str().unwrap();
        let args = ["--tensor-type", "a=q8_0", "--tensor-type-file", file, "--tensor-type", "d=f16"];
        let patterns: Vec<_> =
            options(&args).unwrap().tensor_types.into_iter().map(|rule| rule.pattern).collect();
        assert_eq!(patterns, ["a", "b", "c", "d"]);
    }

    #[test]
    fn bad_options_are_bad_usage_with_hints() {
        let error = options(&["--output-tensor-type", "q9_9"]).unwrap_err();
        assert!(error.downcast_ref::<UsageError>().is_some());
        assert_eq!(crate::cli::render::error_line(&error), "unknown tensor type `q9_9`");
        assert!(error.downcast_ref::<OptionError>().is_some());
        assert!(options(&["--include-weights", "a", "--exclude-weights", "b"]).is_err());
        assert!(options(&["--coverage", "maybe"]).is_err());
    }
}

//! `--target-size`, `--target-kld`: types chosen for a size or a divergence; `--like`: those of a file; and a file that lists the types.

use std::path::PathBuf;

use clap::Args;

use crate::cli::quantize::options::usage;
use crate::job::size::option;
use crate::job::{FileTarget, JobTypes};
use crate::quantize::{SizeTarget, parse_ggml_type};

/// Options of types that are chosen for a size. Flatten it.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Types chosen for a file size or a divergence")]
pub(crate) struct TargetArgs {
    /// Choose the type of each tensor so that the file, header included, has at most this size: bytes, or with K, M or
    /// G (powers of 1024)
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = crate::cli::size,
        group = "target",
        conflicts_with_all = ["pure"]
    )]
    pub target_size: Option<u64>,
    /// Size limit as bits of the file per weight
    #[arg(
        long,
        value_name = "BITS",
        value_parser = crate::cli::amount,
        group = "target",
        conflicts_with_all = ["pure"]
    )]
    pub target_bpw: Option<f64>,
    /// Choose the type of each tensor so that the file is the smallest whose mean KL divergence on held-out text, with two
    /// standard errors added, is at most X (nats); measured
    #[arg(
        long,
        value_name = "X",
        value_parser = crate::cli::amount,
        group = "target",
        requires = "calibrate",
        conflicts_with_all = ["pure"]
    )]
    pub target_kld: Option<f64>,
    /// Give each tensor the type that it has in this GGUF file (of a split one the first part): by its name or, with
    /// another number of layers, by its role and relative depth
    #[arg(long, value_name = "FILE", conflicts_with_all = ["target", "pure"])]
    pub like: Option<PathBuf>,
    /// Types to choose from [default: q2_k,q3_k,iq4_xs,q4_k,q5_k,q6_k,q8_0]
    #[arg(long, value_name = "TYPES", value_delimiter = ',', requires = "target")]
    pub types: Vec<String>,
    /// Write the types of all tensors for `--tensor-type-file`; with `--dry-run`, too
    #[arg(long, value_name = "FILE")]
    pub write_types: Option<PathBuf>,
}

impl TargetArgs {
    /// Returns the limit for which types are chosen, if one is given.
    pub(crate) fn target(&self) -> Option<FileTarget> {
        let by_bits = self.target_bpw.map(SizeTarget::BitsPerWeight);
        let by_size = self.target_size.map(SizeTarget::Bytes).or(by_bits);
        by_size.map(FileTarget::Size).or(self.target_kld.map(FileTarget::Kld))
    }

    /// Returns the option that chooses the types, if one does.
    pub(crate) fn chosen_by(&self) -> Option<&'static str> {
        self.target().map(option).or(self.like.is_some().then_some("--like"))
    }

    /// Returns the types for the target size or those of a file, if one is given. `requantize` is true to go through
    /// floats where the integers of a checkpoint could be kept.
    pub(crate) fn job_types(&self, requantize: bool) -> anyhow::Result<Option<JobTypes>> {
        if let Some(file) = &self.like {
            return Ok(Some(JobTypes::Like { file: file.clone(), requantize }));
        }
        let Some(target) = self.target() else { return Ok(None) };
        let candidates = self.types.iter().map(|name| parse_ggml_type(name.trim()).map_err(usage));
        Ok(Some(JobTypes::Size { target, candidates: candidates.collect::<anyhow::Result<_>>()? }))
    }
}

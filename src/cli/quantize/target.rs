//! `--target-size`: types chosen for a size, and a file that lists the types.

use std::path::PathBuf;

use clap::Args;

use crate::cli::guard::Guard;
use crate::cli::quantize::options::usage;
use crate::cli::{Session, UsageError};
use crate::core::GgmlType;
use crate::core::output::{Destination, OutputError, OutputFile, OutputKind};
use crate::core::progress::Progress;
use crate::core::text::bytes;
use crate::gguf::Imatrix;
use crate::quantize::{
    AllocateOptions, Allocation, Input, QuantizeOptions, QuantizePlan, SizeTarget, Survey, parse_ggml_type,
    type_rules,
};

/// Options of types that are chosen for a size. Flatten it.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Options of types for a size")]
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
    /// Types to choose from [default: q2_k,q3_k,iq4_xs,q4_k,q5_k,q6_k,q8_0]
    #[arg(long, value_name = "TYPES", value_delimiter = ',', requires = "target")]
    pub types: Vec<String>,
    /// Write the types of all tensors for `--tensor-type-file`; with `--dry-run`, too
    #[arg(long, value_name = "FILE")]
    pub write_types: Option<PathBuf>,
}

impl TargetArgs {
    /// Returns the target size, if one is given.
    pub(crate) fn target(&self) -> Option<SizeTarget> {
        let by_bits = self.target_bpw.map(SizeTarget::BitsPerWeight);
        self.target_size.map(SizeTarget::Bytes).or(by_bits)
    }

    /// Returns the option that sets the target size.
    pub(crate) fn option(&self) -> &'static str {
        if self.target_size.is_some() { "--target-size" } else { "--target-bpw" }
    }

    /// Returns a word for the target size, for the default name of an output.
    pub(crate) fn word(&self) -> Option<String> {
        let by_bits = self.target_bpw.map(|bits| format!("{bits}bpw"));
        self.target_size.map(|n_bytes| format!("{n_bytes}-bytes")).or(by_bits)
    }

    /// Registers the file that types are written to.
    pub(crate) fn guard(&self, guard: &mut Guard<'_>) -> anyhow::Result<()> {
        let Some(path) = &self.write_types else { return Ok(()) };
        Destination::of(path)?;
        guard.write("--write-types", path, OutputKind::TypeRules)
    }

    /// Announces the steps of a run that chooses types and then writes.
    pub(crate) fn announce(&self, session: &Session, is_dry: bool) {
        if self.target().is_some() && !is_dry {
            session.progress.steps(2);
        }
    }

    /// Chooses types, if a target size is given.
    ///
    /// # Errors
    /// Unknown types; a size that cannot be reached.
    pub(crate) fn allocate(
        &self,
        session: &Session,
        input: &Input<'_>,
        options: &QuantizeOptions,
        imatrix: Option<&Imatrix>,
    ) -> anyhow::Result<Option<Allocation>> {
        let Some(target) = self.target() else { return Ok(None) };
        let types = self.types()?;
        let asked = AllocateOptions { quantize: options, types: &types, keys: &[] };
        let survey = Survey::new(input, imatrix, &asked)?;
        let costs = survey.estimate(&session.progress)?;
        let allocation = survey.choose(&costs, target)?;
        warn_if_small(session, &allocation);
        Ok(Some(allocation))
    }

    /// Returns the types to choose from.
    ///
    /// # Errors
    /// Unknown types; a size of zero.
    pub(super) fn types(&self) -> anyhow::Result<Vec<GgmlType>> {
        let types = self.types.iter().map(|name| parse_ggml_type(name.trim()).map_err(usage));
        let types = types.collect::<anyhow::Result<_>>()?;
        if self.target_bpw == Some(0.0) || self.target_size == Some(0) {
            return Err(UsageError(format!("{}: a size above 0 expected", self.option())).into());
        }
        Ok(types)
    }

    /// Writes the types of a plan, if a file is given.
    ///
    /// # Errors
    /// I/O errors.
    pub(crate) fn write(&self, session: &Session, plan: &QuantizePlan<'_>) -> anyhow::Result<()> {
        let Some(path) = &self.write_types else { return Ok(()) };
        let file = OutputFile::create(path)?;
        file.write_at(0, type_rules(plan).as_bytes()).map_err(OutputError::from)?;
        file.commit(!session.common.no_sync).map_err(OutputError::from)?;
        Ok(())
    }
}

/// Warns of a file that is smaller than asked for.
pub(super) fn warn_if_small(session: &Session, allocation: &Allocation) {
    if allocation.is_near() {
        return;
    }
    let why = if allocation.is_largest {
        "each tensor has the largest of the types"
    } else {
        "with these tensors and types none comes nearer"
    };
    session.progress.warn(&format!(
        "the file has {} where {} were asked for: {why}",
        bytes(allocation.file_bytes),
        bytes(allocation.target_bytes),
    ));
}

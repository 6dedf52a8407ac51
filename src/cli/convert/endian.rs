//! `gguf-convert endian`: writes a GGUF file in another byte order.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::cli::inspect::written;
use crate::cli::{Exit, Session};
use crate::core::bytes::Endian;
use crate::core::text::escape;
use crate::gguf::{GgufFile, WriteReport, output_kind};
use crate::inspect::{self, endian_name};
use crate::job::Guard;

/// Byte orders by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ByteOrderArg {
    Big,
    Little,
    /// That of this machine.
    Native,
}

impl ByteOrderArg {
    fn endian(self) -> Endian {
        let is_big = match self {
            Self::Big => true,
            Self::Little => false,
            Self::Native => cfg!(target_endian = "big"),
        };
        if is_big { Endian::Big } else { Endian::Little }
    }
}

/// Arguments of `endian`.
#[derive(Debug, Args)]
pub(super) struct EndianArgs {
    /// GGUF file; the parts of a split model become one file
    file: PathBuf,
    /// File to write
    #[arg(short, long, visible_alias = "outfile", value_name = "PATH")]
    output: PathBuf,
    /// Byte order of the output [default: the one that the input does not have]
    #[arg(long, value_enum, value_name = "ORDER")]
    to: Option<ByteOrderArg>,
    /// Print the plan and write nothing
    #[arg(long)]
    dry_run: bool,
}

/// Report of a file in another byte order.
#[derive(Serialize)]
struct EndianReport {
    /// File that was written, or would be.
    #[serde(flatten)]
    written: WriteReport,
    /// Byte order of the input: `little` or `big`.
    from: Endian,
    /// Byte order of the output.
    to: Endian,
    /// True if nothing was written.
    #[serde(rename = "dry_run")]
    is_dry: bool,
}

impl EndianArgs {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        let file = GgufFile::open(&self.file)?;
        let other = if file.endian() == Endian::Little { Endian::Big } else { Endian::Little };
        let endian = self.to.map_or(other, ByteOrderArg::endian);
        let mut guard = Guard::new(&session.progress, self.dry_run);
        guard.read_all("the model", file.paths())?;
        guard.write("-o", &self.output, output_kind(file.metadata()))?;
        if endian == file.endian() {
            let path = self.file.display().to_string();
            session.note(&format!("{} is {}-endian already", escape(&path), endian_name(endian)));
        }
        let written = if self.dry_run {
            session.destination(&self.output);
            inspect::plan_in_order(&file, &self.output, endian)?
        } else {
            let options = written::write_options(session);
            inspect::write_in_order(&file, &self.output, endian, &options, &session.progress)?
        };
        let report = EndianReport { written, from: file.endian(), to: endian, is_dry: self.dry_run };
        if session.common.json {
            session.print_json(&report)?;
        } else if !session.common.quiet {
            session.print(|out| {
                written::lines(&report.written).iter().try_for_each(|line| writeln!(out, "{line}"))?;
                writeln!(out, "{}-endian → {}-endian", endian_name(report.from), endian_name(report.to))?;
                if report.is_dry { writeln!(out, "nothing was written") } else { Ok(()) }
            })?;
        }
        Ok(Exit::Done)
    }
}

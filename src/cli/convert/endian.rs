//! `gguf-convert endian`: writes a GGUF file in another byte order.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::cli::inspect::written;
use crate::cli::{Exit, Session};
use crate::core::bytes::Endian;
use crate::core::text::escape;
use crate::gguf::{GgufFile, output_kind};
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
        let report = if self.dry_run {
            session.destination(&self.output);
            inspect::plan_in_order(&file, &self.output, endian)?
        } else {
            let options = written::write_options(session);
            inspect::write_in_order(&file, &self.output, endian, &options, &session.progress)?
        };
        if session.common.json {
            let mut document = written::json(&report);
            document["from"] = endian_name(file.endian()).into();
            document["to"] = endian_name(endian).into();
            document["dry_run"] = self.dry_run.into();
            session.print_json(&document)?;
        } else if !session.common.quiet {
            session.print(|out| {
                written::lines(&report).iter().try_for_each(|line| writeln!(out, "{line}"))?;
                writeln!(out, "{}-endian → {}-endian", endian_name(file.endian()), endian_name(endian))?;
                if self.dry_run { writeln!(out, "nothing was written") } else { Ok(()) }
            })?;
        }
        Ok(Exit::Done)
    }
}

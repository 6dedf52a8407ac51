//! `gguf-quantize pack` and `unpack`: a folder as its source and recipes.

use std::path::PathBuf;

use clap::Args;

use crate::cli::job::failure;
use crate::cli::quantize::recipe::{convert_options, output_options};
use crate::cli::render::{Align, Table, duration, plural};
use crate::cli::{Exit, Session};
use crate::core::text::{bytes, escape};
use crate::job::recipe::{PackOptions, PackReport, pack, unpack};

#[derive(Clone, Debug, Args)]
pub(in crate::cli::quantize) struct PackArgs {
    /// Folder with files that were made of one model, as `gguf-quantize ladder` writes it
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// GGUF file that they were made of, in 16 or 32 bits; in the folder or elsewhere
    #[arg(long, value_name = "FILE")]
    source: PathBuf,
    /// Importance matrix that was used [default: one in the folder, if there is one]
    #[arg(long, value_name = "FILE")]
    imatrix: Option<PathBuf>,
    /// New folder for the pack
    #[arg(short, long, value_name = "PACK")]
    output: PathBuf,
}

impl PackArgs {
    pub(in crate::cli::quantize) fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        let options = PackOptions {
            folder: self.folder.clone(),
            source: self.source.clone(),
            imatrix: self.imatrix.clone(),
            convert: convert_options(session),
            output: output_options(session),
        };
        let report = pack(&options, &self.output, session).map_err(failure)?;
        if session.common.json {
            session.print_json(&report)?;
        } else if !session.common.quiet {
            print_pack(session, &report)?;
        }
        Ok(Exit::Done)
    }
}

fn print_pack(session: &Session, report: &PackReport) -> anyhow::Result<()> {
    let mut table = Table::new(&[
        ("file", Align::Left),
        ("size", Align::Right),
        ("packed", Align::Right),
        ("notes", Align::Left),
    ]);
    for file in &report.files {
        let notes = match file.n_unexplained {
            None => "as it is".to_owned(),
            Some(0) => String::new(),
            Some(n) => format!("{} not explained by the source", plural(n as u64, "tensor")),
        };
        let name = escape(&file.name).into_owned();
        table.row([name, bytes(file.bytes), bytes(file.packed_bytes), notes]);
    }
    session.print(|out| {
        table.print(out)?;
        let share = report.pack_bytes as f64 / report.source_bytes.max(1) as f64;
        writeln!(
            out,
            "\n{}, {}, packed as {}: {share:.3} times the source, in {}",
            plural(report.files.len() as u64, "file"),
            bytes(report.folder_bytes),
            bytes(report.pack_bytes),
            duration(report.seconds),
        )
    })
}

#[derive(Clone, Debug, Args)]
pub(in crate::cli::quantize) struct UnpackArgs {
    /// Folder that `gguf-quantize pack` has written
    #[arg(value_name = "PACK")]
    pack: PathBuf,
    /// New folder for the files
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
}

impl UnpackArgs {
    pub(in crate::cli::quantize) fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        let (convert, options) = (convert_options(session), output_options(session));
        let report = unpack(&self.pack, &self.output, &convert, &options, session).map_err(failure)?;
        if session.common.json {
            session.print_json(&report)?;
        } else if !session.common.quiet {
            session.print(|out| {
                let (n_files, n_rebuilt) = (plural(report.n_files as u64, "file"), report.n_rebuilt);
                let (size, time) = (bytes(report.folder_bytes), duration(report.seconds));
                writeln!(out, "{n_files}, {size}, of which {n_rebuilt} were made again, in {time}")?;
                writeln!(out, "every file has the SHA-256 of its original")
            })?;
        }
        Ok(Exit::Done)
    }
}

//! Output of a conversion without quantization: its plan and its report.

use std::path::PathBuf;

use serde_json::json;

use super::codes::CodesReport;
use crate::cli::Session;
use crate::cli::quantize::report::small_rows_json;
use crate::cli::render::{Align, Table, count, duration, plural};
use crate::cli::stored::StoredQuantization;
use crate::core::text::{bytes, escape};
use crate::core::{TensorMeta, TensorSource};
use crate::gguf::{Metadata, PlannedFile, WriteError, WriteOptions, WriteReport, plan_files};
use crate::quant::SmallRows;

/// Planned output.
pub(in crate::cli::convert) struct ConvertJob<'a> {
    pub(in crate::cli::convert) target: PathBuf,
    pub(super) codes: CodesReport,
    pub(super) stored: StoredQuantization<'a>,
    pub(in crate::cli::convert) metadata: &'a Metadata,
    pub(in crate::cli::convert) source: &'a dyn TensorSource,
    pub(in crate::cli::convert) options: WriteOptions,
    /// Name of the file type.
    pub(super) encoding: String,
}

impl<'a> ConvertJob<'a> {
    /// Creates an output whose source has no integer codes.
    pub(in crate::cli::convert) fn plain(
        target: PathBuf,
        metadata: &'a Metadata,
        source: &'a dyn TensorSource,
        options: WriteOptions,
        encoding: String,
    ) -> Self {
        let (codes, stored) = (CodesReport::default(), StoredQuantization::default());
        Self { target, codes, stored, metadata, source, options, encoding }
    }
}

impl ConvertJob<'_> {
    /// Returns the files that are written.
    pub(super) fn files(&self) -> Result<Vec<PlannedFile>, WriteError> {
        let WriteOptions { layout, split, .. } = &self.options;
        plan_files(&self.target, self.metadata, self.source.tensors(), layout, split.as_ref())
    }

    /// Prints the plan.
    pub(in crate::cli::convert) fn print_plan(
        &self,
        session: &Session,
        sources: impl Fn(usize) -> Vec<String>,
    ) -> anyhow::Result<()> {
        let files = self.files()?;
        let file_bytes: u64 = files.iter().map(|file| file.plan.file_bytes).sum();
        let free = session.destination(&self.target).and_then(|destination| destination.free_bytes());
        if session.common.json {
            let rows: Vec<_> = self
                .planned(&files)
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
        let table = self.table(&files, sources);
        let n_tensors = self.planned(&files).count() as u64;
        session.print(|out| {
            table.print(out)?;
            writeln!(out)?;
            for file in &files {
                writeln!(out, "{}", file.path.display())?;
            }
            let keys = plural(self.metadata.len() as u64, "key");
            writeln!(out, "{}, {}, {}", plural(n_tensors, "tensor"), keys, bytes(file_bytes))?;
            match free {
                Some(free) => writeln!(out, "{} free on the disk", bytes(free)),
                None => Ok(()),
            }
        })
    }

    /// Returns the tensors of the files that are written, with their indices in the source.
    fn planned<'a>(&'a self, files: &'a [PlannedFile]) -> impl Iterator<Item = (usize, &'a TensorMeta)> {
        let places = files.iter().flat_map(|file| file.tensors.clone());
        places.filter_map(|at| Some((at, self.source.tensors().get(at)?)))
    }

    fn table(&self, files: &[PlannedFile], sources: impl Fn(usize) -> Vec<String>) -> Table {
        let mut table = Table::new(&[
            ("tensor", Align::Left),
            ("shape", Align::Left),
            ("type", Align::Left),
            ("size", Align::Right),
            ("source", Align::Fill),
        ]);
        for (at, tensor) in self.planned(files) {
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
        table
    }

    /// Prints the report of a finished run.
    pub(in crate::cli::convert) fn print_report(
        &self,
        session: &Session,
        report: &WriteReport,
        small: &[(&TensorMeta, SmallRows)],
        seconds: f64,
    ) -> anyhow::Result<()> {
        let tensors = self.source.tensors().get(report.tensors.clone()).unwrap_or_default();
        let n_elems: u64 = tensors.iter().map(|tensor| tensor.shape.n_elems()).sum();
        let bpw = report.tensor_bytes as f64 * 8.0 / n_elems.max(1) as f64;
        if session.common.json {
            let paths: Vec<_> = report.paths.iter().map(|path| path.display().to_string()).collect();
            return session.print_json(&json!({
                "files": paths, "type": self.encoding, "tensors": tensors.len(), "parameters": n_elems,
                "tensor_bytes": report.tensor_bytes, "file_bytes": report.file_bytes,
                "bits_per_weight": bpw, "small_rows": small_rows_json(small), "seconds": seconds,
                "missing_parts": report.missing,
                "kept": self.codes.kept_json(),
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
                plural(tensors.len() as u64, "tensor"),
                count(n_elems),
                bytes(report.file_bytes),
                bpw,
                self.encoding,
                duration(seconds),
            )
        })
    }
}

//! `gguf-verify imatrix show`: prints statistics of a matrix for each tensor, layer and expert.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use crate::cli::render::{Align, Table};
use crate::cli::verify::imatrix::contents::dataset_names;
use crate::cli::verify::imatrix::coverage;
use crate::cli::{Exit, Session};
use crate::core::progress::Progress;
use crate::core::text::{escape, escape_bytes, plural};
use crate::core::written::as_path;
use crate::gguf::{ImatrixFormat, ImatrixPart, ImatrixSums, StoredImatrix, merge_imatrices};
use crate::verify::{
    ExpertCoverage, ImatrixStatistics, LayerStatistics, TensorStatistics, expert_coverage, imatrix_statistics,
};

/// Chunk size for files of the older format. Any value works: their figures are means.
const CHUNK: usize = 512;

#[derive(Debug, Args)]
#[command(
    after_help = "Columns: Σ(Act²) sum of the mean squares of a tensor's inputs, one for each column; their Min, \
    Max, mean μ and standard deviation σ; % Active those above 1e-5; N columns; Entropy of their shares in bits, and as a \
    share of the largest; ZD those more than σ above μ; CosSim with the same tensor one layer before.\n\nWith `-v` the \
    tokens of each expert."
)]
pub(super) struct ShowArgs {
    /// Importance matrix of either format
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

#[derive(Serialize)]
struct MatrixReport<'a> {
    /// Path of the file.
    #[serde(serialize_with = "as_path")]
    file: &'a Path,
    /// Format of the file: `gguf` or `dat`.
    format: ImatrixFormat,
    /// Texts that it was collected from.
    datasets: Vec<String>,
    /// Number of chunks that the file declares; 0 without a declaration.
    #[serde(rename = "chunks")]
    n_chunks: i64,
    /// Number of tokens in a chunk; null for the older format, which does not store it.
    chunk_tokens: Option<usize>,
    /// Progress of a run that was not finished; null for the file of a whole run.
    unfinished: Option<DoneChunks>,
    /// Number of a part of a matrix, and of all parts: `2/8`.
    part: Option<String>,
    /// Figures of the tensors, by name within the layer, then by descending sum.
    tensors: Vec<TensorStatistics>,
    /// Means over the tensors of each layer, weighted by their columns.
    layers: Vec<LayerStatistics>,
    /// Coverage of experts by layer; empty for models without experts.
    experts: Vec<ExpertCoverage>,
    /// Tensors without figures, because no token reached them.
    unseen: Vec<String>,
}

/// Progress of a run that was not finished.
#[derive(Clone, Copy, Serialize)]
struct DoneChunks {
    /// Number of chunks that the file contains.
    #[serde(rename = "done")]
    n_done: usize,
    /// Number of chunks that were planned.
    #[serde(rename = "total")]
    n_total: usize,
}

impl ShowArgs {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        let stored = StoredImatrix::open(&self.file)?;
        let sums = merge_imatrices(std::slice::from_ref(&stored), stored.chunk_size().unwrap_or(CHUNK))?;
        let report = MatrixReport::of(&self.file, &stored, &sums);
        for text in &report.warnings(&stored) {
            session.progress.warn(text);
        }
        if session.common.json {
            session.print_json(&report)?;
        } else {
            let all = session.common.verbose > 0;
            session.print(|out| {
                writeln!(out, "{}", self.summary(&stored))?;
                writeln!(out)?;
                tensors(&report.tensors).print_whole(out)?;
                if !report.layers.is_empty() {
                    writeln!(out)?;
                    layers(&report.layers).print(out)?;
                }
                if !report.experts.is_empty() {
                    writeln!(out)?;
                    coverage::table(&report.experts, all).print_whole(out)?;
                }
                Ok(())
            })?;
        }
        Ok(Exit::Done)
    }

    fn summary(&self, stored: &StoredImatrix) -> String {
        let name = self.file.display().to_string();
        let chunks = match (stored.n_chunks(), stored.chunk_size()) {
            (0, _) => "an unknown number of chunks".to_owned(),
            (n, Some(size)) => format!("{} of {size}", plural(n as u64, "chunk")),
            (n, None) => plural(n as u64, "chunk"),
        };
        let datasets = stored.datasets().iter().map(|name| escape_bytes(name));
        let datasets = datasets.collect::<Vec<_>>().join(", ");
        let of = if datasets.is_empty() { "" } else { " of " };
        let tensors = plural(stored.n_entries() as u64, "tensor");
        format!("{}: {tensors}, {chunks}{of}{datasets}", escape(&name))
    }
}

impl<'a> MatrixReport<'a> {
    fn of(file: &'a Path, stored: &StoredImatrix, sums: &ImatrixSums) -> Self {
        let ImatrixStatistics { tensors, layers, unseen } = imatrix_statistics(sums);
        let run = stored.unfinished();
        Self {
            file,
            format: stored.format(),
            datasets: dataset_names(stored.datasets()),
            n_chunks: stored.n_chunks(),
            chunk_tokens: stored.chunk_size(),
            unfinished: run
                .filter(|run| run.n_done < run.n_total)
                .map(|run| DoneChunks { n_done: run.n_done, n_total: run.n_total }),
            part: run.and_then(|run| run.part.as_ref()).map(|part| format!("{}/{}", part.number, part.count)),
            tensors,
            layers,
            experts: expert_coverage(sums),
            unseen,
        }
    }

    fn warnings(&self, stored: &StoredImatrix) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(ImatrixPart { number, count, .. }) = stored.unfinished().and_then(|run| run.part.as_ref())
        {
            warnings.push(format!("part {number} of {count}: figures are those of its chunks alone"));
        }
        if let Some(DoneChunks { n_done, n_total }) = self.unfinished {
            warnings
                .push(format!("the run was not finished: {n_done} of {}", plural(n_total as u64, "chunk")));
        }
        if !self.unseen.is_empty() {
            let names: Vec<_> = self.unseen.iter().map(|name| escape(name)).collect();
            warnings.push(format!("no token reached {}", names.join(", ")));
        }
        warnings.extend(coverage::warning(&self.experts));
        warnings
    }
}

fn tensors(tensors: &[TensorStatistics]) -> Table {
    let heads = ["Σ(Act²)", "Min", "Max", "μ", "σ", "% Active", "N", "Entropy", "E (norm)", "ZD", "CosSim"];
    let heads: Vec<(&str, Align)> = [("Layer", Align::Right), ("Tensor", Align::Left)]
        .into_iter()
        .chain(heads.map(|head| (head, Align::Right)))
        .collect();
    let mut table = Table::new(&heads);
    for t in tensors {
        let percent = |share: f32| format!("{:.2}%", 100.0 * share);
        table.row([
            t.layer.map_or_else(|| "-".to_owned(), |layer| layer.to_string()),
            escape(&t.part).into_owned(),
            format!("{:.2}", t.total),
            format!("{:.4}", t.min),
            format!("{:.4}", t.max),
            format!("{:.2}", t.mean),
            format!("{:.2}", t.stddev),
            percent(t.active),
            t.elements.to_string(),
            format!("{:.4}", t.entropy),
            t.entropy_norm.map_or_else(|| "-".to_owned(), percent),
            percent(t.zd),
            t.cossim.map_or_else(|| "-".to_owned(), |cosine| format!("{cosine:.4}")),
        ]);
    }
    table
}

fn layers(layers: &[LayerStatistics]) -> Table {
    let heads = ["Layer", "μΣ(Act²)", "μZD", "μCosSim"].map(|head| (head, Align::Right));
    let mut table = Table::new(&heads);
    for l in layers {
        table.row([
            l.layer.to_string(),
            format!("{:.2}", l.total),
            format!("{:.4}%", 100.0 * l.zd),
            format!("{:.4}", l.cossim),
        ]);
    }
    table
}

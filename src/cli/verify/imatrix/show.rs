//! `gguf-verify imatrix show`: prints statistics of a matrix for each tensor, layer and expert.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value as Json, json};

use crate::cli::render::{Align, Table};
use crate::cli::verify::imatrix::coverage;
use crate::cli::{Exit, Session};
use crate::core::progress::Progress;
use crate::core::text::{escape, escape_bytes};
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

impl ShowArgs {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        let stored = StoredImatrix::open(&self.file)?;
        let sums = merge_imatrices(std::slice::from_ref(&stored), stored.chunk_size().unwrap_or(CHUNK))?;
        let (statistics, coverage) = (imatrix_statistics(&sums), expert_coverage(&sums));
        let mut warnings = Vec::new();
        if let Some(ImatrixPart { number, count, .. }) = stored.unfinished().and_then(|run| run.part.as_ref())
        {
            warnings.push(format!("part {number} of {count}: figures are those of its chunks alone"));
        }
        if let Some(run) = stored.unfinished().filter(|run| run.n_done < run.n_total) {
            warnings.push(format!("the run was not finished: {} of {} chunks", run.n_done, run.n_total));
        }
        if !statistics.unseen.is_empty() {
            let names: Vec<_> = statistics.unseen.iter().map(|name| escape(name)).collect();
            warnings.push(format!("no token reached {}", names.join(", ")));
        }
        warnings.extend(coverage::warning(&coverage));
        for text in &warnings {
            session.progress.warn(text);
        }
        if session.common.json {
            session.print_json(&self.to_json(&stored, &sums, &statistics, &coverage))?;
        } else {
            let all = session.common.verbose > 0;
            session.print(|out| {
                writeln!(out, "{}", self.summary(&stored))?;
                writeln!(out)?;
                tensors(&statistics.tensors).print_whole(out)?;
                if !statistics.layers.is_empty() {
                    writeln!(out)?;
                    layers(&statistics.layers).print(out)?;
                }
                if !coverage.is_empty() {
                    writeln!(out)?;
                    coverage::table(&coverage, all).print_whole(out)?;
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
            (n, Some(size)) => format!("{n} chunks of {size}"),
            (n, None) => format!("{n} chunks"),
        };
        let datasets = stored.datasets().iter().map(|name| escape_bytes(name));
        let datasets = datasets.collect::<Vec<_>>().join(", ");
        let of = if datasets.is_empty() { "" } else { " of " };
        format!("{}: {} tensors, {chunks}{of}{datasets}", escape(&name), stored.n_entries())
    }

    fn to_json(
        &self,
        stored: &StoredImatrix,
        sums: &ImatrixSums,
        statistics: &ImatrixStatistics,
        coverage: &[ExpertCoverage],
    ) -> Json {
        let datasets: Vec<_> = stored.datasets().iter().map(|name| String::from_utf8_lossy(name)).collect();
        let format = match stored.format() {
            ImatrixFormat::Gguf => "gguf",
            ImatrixFormat::Legacy => "dat",
        };
        let tensor = |t: &TensorStatistics| {
            let matrices = sums.tensors.get(&t.name).map_or(0, |columns| columns.counts.len());
            json!({
                "name": t.name, "layer": t.layer, "tensor": t.part, "sum": t.total, "min": t.min, "max": t.max,
                "mean": t.mean, "stddev": t.stddev, "active": t.active, "elements": t.elements,
                "entropy": t.entropy, "entropy_norm": t.entropy_norm, "zd": t.zd, "cossim": t.cossim,
                "matrices": matrices,
            })
        };
        let layer =
            |l: &LayerStatistics| json!({ "layer": l.layer, "sum": l.total, "zd": l.zd, "cossim": l.cossim });
        json!({
            "file": self.file.display().to_string(), "format": format, "datasets": datasets,
            "chunks": stored.n_chunks(), "chunk_tokens": stored.chunk_size(),
            "unfinished": stored.unfinished().filter(|run| run.n_done < run.n_total).map(|run| json!({ "done": run.n_done, "total": run.n_total })),
            "part": stored.unfinished().and_then(|run| run.part.as_ref()).map(|part| format!("{}/{}", part.number, part.count)),
            "tensors": statistics.tensors.iter().map(tensor).collect::<Vec<_>>(),
            "layers": statistics.layers.iter().map(layer).collect::<Vec<_>>(),
            "experts": coverage::to_json(coverage), "unseen": statistics.unseen,
        })
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

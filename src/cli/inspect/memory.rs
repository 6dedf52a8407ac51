//! `gguf-inspect memory`: what a model takes of a machine's memory when it runs.

mod fit;

use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::PossibleValuesParser;
use serde::Serialize;

use crate::cli::job::failure;
use crate::cli::memory::{ContextMemory, KeptByLayers, ModelMemory, weight_bytes};
use crate::cli::remote::open_header;
use crate::cli::render::{Align, Table, count, plural};
use crate::cli::{Session, UsageError};
use crate::core::progress::Progress as _;
use crate::core::text::{bytes, escape};
use crate::core::written::as_path;
use crate::core::{GgmlType, TensorSource};
use crate::gguf::OpenOptions;
use crate::job::input::must_be_model;

#[cfg(feature = "remote")]
pub(in crate::cli) use fit::is_first;
use fit::{Asked, FitDocument, FitReport};

/// Types of llama.cpp's cache (`--cache-type-k` and `--cache-type-v`).
const CACHE_TYPES: [&str; 9] = ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"];

/// What the figures take for granted.
const ASSUMPTIONS: [&str; 3] = [
    "keys and values: llama.cpp's cache for one sequence, whose length is a multiple of 256; a window also keeps the 512 \
     tokens of a step (`--swa-full` keeps all)",
    "compute: an estimate for steps of 512 tokens with flash attention",
    "weights: all tensors of the file in memory, nothing left on the disk",
];

/// Arguments of `memory`.
#[derive(Debug, Args)]
pub(super) struct MemoryArgs {
    /// Model; of a file on a server only the header is read. With --fit also several, folders of files, and checkpoints, here or
    /// on a server (ORG/NAME)
    #[arg(required = true, value_name = "MODEL")]
    models: Vec<PathBuf>,
    /// Print the largest file, or type that can be made of a checkpoint or a file of floats, that fits into this memory with one
    /// context, and what would fit with smaller keys and values
    #[arg(long, value_name = "SIZE", value_parser = crate::cli::size)]
    fit: Option<u64>,
    /// Tokens of context, between commas [default: 8192 and 32768, if the model is made for them]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..))]
    ctx: Vec<u64>,
    /// Type of kept keys and values
    #[arg(long, value_name = "TYPE", default_value = "f16", ignore_case = true, value_parser = PossibleValuesParser::new(CACHE_TYPES))]
    kv: String,
}

/// Report of `gguf-inspect memory`.
#[derive(Debug, Serialize)]
struct MemoryReport<'a> {
    /// Path of the (first) file.
    #[serde(serialize_with = "as_path")]
    path: &'a Path,
    /// Bytes of all tensors.
    weight_bytes: u64,
    /// Type of kept keys and values.
    kv_type: &'static str,
    /// Tokens of context that the model declares; null if it does not.
    declared_context: Option<u64>,
    /// Keys and values by layers that keep the same.
    kept: Vec<KeptByLayers>,
    /// Number of layers that use the keys and values of an earlier layer.
    shared_layers: usize,
    /// Number of layers with a recurrent state.
    state_layers: usize,
    /// Memory by length of context.
    contexts: Vec<ContextMemory>,
    /// What the figures take for granted.
    assumptions: [&'static str; 3],
}

impl MemoryArgs {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<()> {
        let kv = GgmlType::from_name(&self.kv)
            .ok_or_else(|| UsageError(format!("unknown type `{}`", escape(&self.kv))))?;
        if let Some(fit_bytes) = self.fit {
            return self.fit(fit_bytes, kv, session);
        }
        let [path] = self.models.as_slice() else {
            return Err(UsageError("several models go with `--fit SIZE`".to_owned()).into());
        };
        let file = open_header(session, path, &OpenOptions::foreign())?;
        must_be_model(&file).map_err(failure)?;
        let weight_bytes = weight_bytes(&file);
        let memory = ModelMemory::of(file.metadata(), file.tensors())?;
        let asked = if self.ctx.is_empty() { memory.usual_contexts() } else { self.ctx.clone() };
        let at = |&tokens: &u64| memory.at(tokens, kv, weight_bytes);
        let report = MemoryReport {
            path,
            weight_bytes,
            kv_type: kv.name(),
            declared_context: memory.declared,
            kept: memory.by_layers(),
            shared_layers: memory.kept.n_shared,
            state_layers: memory.kept.n_states,
            contexts: asked.iter().map(at).collect::<Result<_, _>>()?,
            assumptions: ASSUMPTIONS,
        };
        if let Some(declared) = memory.declared
            && let Some(longer) = asked.iter().find(|&&tokens| tokens > declared)
        {
            session.progress.warn(&format!(
                "a context of {longer} tokens is longer than the {declared} that the model is made for"
            ));
        }
        if session.common.json {
            return session.print_json(&report);
        }
        session.print(|out| {
            let name = escape(&path.display().to_string()).into_owned();
            writeln!(out, "{name}: {} of weights\n", bytes(weight_bytes))?;
            report.sentences().iter().try_for_each(|line| writeln!(out, "{line}"))?;
            writeln!(out)?;
            report.table().print(out)?;
            writeln!(out)?;
            ASSUMPTIONS.iter().try_for_each(|line| writeln!(out, "{line}"))
        })
    }

    /// Prints what fits into a memory, a table for each model.
    fn fit(&self, fit_bytes: u64, kv: GgmlType, session: &Session) -> anyhow::Result<()> {
        let tokens = match self.ctx.as_slice() {
            [] => None,
            [tokens] => Some(*tokens),
            _ => return Err(UsageError("`--fit` takes one length of context".to_owned()).into()),
        };
        let asked = Asked { fit_bytes, tokens, kv };
        let reports = self.models.iter().map(|path| FitReport::of(path, &asked, session));
        let reports = reports.collect::<anyhow::Result<Vec<_>>>()?;
        if session.common.json {
            return session.print_json(&FitDocument { models: reports });
        }
        session.print(|out| {
            for (report, path) in reports.iter().zip(&self.models) {
                let (table, lines) = report.lines();
                writeln!(out, "{}\n", escape(&path.display().to_string()))?;
                table.print(out)?;
                writeln!(out)?;
                lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
                writeln!(out)?;
            }
            ASSUMPTIONS.iter().try_for_each(|line| writeln!(out, "{line}"))
        })
    }
}

impl MemoryReport<'_> {
    /// Describes what is kept, a line for each kind.
    fn sentences(&self) -> Vec<String> {
        let mut lines: Vec<String> = self
            .kept
            .iter()
            .map(|kept| {
                let layers = plural(kept.layers as u64, "layer");
                let heads = plural(kept.heads as u64, "head");
                let what = match kept.value {
                    0 => format!("one row of {} values", count((kept.heads * kept.key) as u64)),
                    value => format!("{heads}, keys of {} and values of {value}", kept.key),
                };
                format!("{layers}: {what} per token, {} tokens, as {}", kept.reach, self.kv_type)
            })
            .collect();
        if self.shared_layers > 0 {
            let layers = plural(self.shared_layers as u64, "layer");
            lines.push(format!("{layers}: keys and values of an earlier layer"));
        }
        if self.state_layers > 0 {
            let layers = plural(self.state_layers as u64, "layer");
            lines.push(format!("{layers}: a state that does not grow with the context, as F32"));
        }
        if lines.is_empty() {
            lines.push("nothing is kept from token to token: the model sees a text as a whole".to_owned());
        }
        lines
    }

    fn table(&self) -> Table {
        let mut table = Table::new(&[
            ("context", Align::Right),
            ("keys and values", Align::Right),
            ("states", Align::Right),
            ("compute", Align::Right),
            ("with the weights", Align::Right),
        ]);
        for at in &self.contexts {
            let sizes = [at.kv_bytes, at.state_bytes, at.compute_bytes, at.total_bytes].map(bytes);
            table.row(std::iter::once(count(at.tokens)).chain(sizes));
        }
        table
    }
}

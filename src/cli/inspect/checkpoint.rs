//! `gguf-inspect checkpoint`: describes a checkpoint, and what it can be converted to.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;

use crate::cli::inspect::describe::type_table;
use crate::cli::remote::RemoteArgs;
use crate::cli::render::{Align, Style, Table, count, plural, styled};
use crate::cli::{Session, is_interrupted, stored};
use crate::convert::{ConvertOptions, Fate, PieceKind};
use crate::core::text::{bytes, escape};
use crate::inspect::{self, CheckpointReport, ListedTensor, PlannedOutput, Problem, ProblemKind};

/// Arguments of `checkpoint`.
#[derive(Debug, Args)]
pub(super) struct CheckpointArgs {
    /// Directory with config.json and weights, a PyTorch file in one, or a FastLLM file; or a model on a server:
    /// ORG/NAME or ORG/NAME@REVISION of the Hugging Face hub, https://HOST/DIR
    path: PathBuf,
    #[command(flatten)]
    remote: RemoteArgs,
    /// List every tensor as it is stored in the files (--json always does)
    #[arg(long)]
    tensors: bool,
    /// Print what becomes of each file, each of its keys and each tensor: written, without effect, left out, or unknown,
    /// and why (--json always does)
    #[arg(long)]
    account: bool,
    /// Use an architecture card from a file
    #[arg(long, value_name = "FILE")]
    card: Option<PathBuf>,
}

impl CheckpointArgs {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<()> {
        let options = ConvertOptions {
            card: self.card.clone(),
            level: session.common.simd,
            ..ConvertOptions::default()
        };
        let model = self.remote.directory(session, &self.path)?;
        self.remote.check_use([&model])?;
        let mut report = inspect::inspect_checkpoint(model.path(), &options)?;
        if is_interrupted() {
            anyhow::bail!("interrupted");
        }
        report.path.clone_from(&self.path);
        if session.common.json {
            return session.print_json(&report);
        }
        for warning in &report.warnings {
            log::warn!("{}", escape(warning));
        }
        if self.account {
            return session.print(|out| print_account(&report, out));
        }
        session.print(|out| print(&report, self.tensors, out))
    }
}

/// Prints the account, with a line of counts behind it, and the problems.
fn print_account(report: &CheckpointReport, out: &mut dyn Write) -> io::Result<()> {
    let mut table = Table::new(&[
        ("piece", Align::Left),
        ("name", Align::Left),
        ("what becomes of it", Align::Left),
        ("as, or why", Align::Left),
    ]);
    let fates = [
        (Fate::Written, "written"),
        (Fate::WithoutEffect, "without effect"),
        (Fate::LeftOut, "left out"),
        (Fate::Unknown, "unknown"),
    ];
    let mut counts = [0u64; 4];
    for piece in &report.account {
        let kind = match piece.kind {
            PieceKind::File => "file",
            PieceKind::Key => "key",
            PieceKind::Tensor => "tensor",
        };
        let at = fates.iter().position(|(fate, _)| *fate == piece.fate).unwrap_or_default();
        counts[at] += 1;
        let rest = piece.why.clone().unwrap_or_else(|| piece.to.join(", "));
        table.row([
            kind.to_owned(),
            match &piece.file {
                Some(file) => format!("{}: {}", escape(file), escape(&piece.name)),
                None => escape(&piece.name).into_owned(),
            },
            fates[at].1.to_owned(),
            escape(&rest).into_owned(),
        ]);
    }
    table.print(out)?;
    let counts = fates.iter().zip(counts).map(|((_, name), n)| format!("{} {name}", count(n)));
    writeln!(out, "\n{}", counts.collect::<Vec<_>>().join(", "))?;
    print_problems(&report.problems, out)
}

/// Width of the column of labels.
const LABEL: usize = 14;

fn print(report: &CheckpointReport, with_tensors: bool, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", report.path.display())?;
    writeln!(out)?;
    for (label, text) in facts(report) {
        writeln!(out, "{label:<LABEL$}{}", escape(&text))?;
    }
    if report.container.is_some() {
        writeln!(out)?;
        let row = |share: &inspect::ElementShare| {
            (share.ty.to_string(), share.n_tensors as u64, share.n_elems, share.n_bytes)
        };
        type_table(report.types.iter().map(row)).print(out)?;
        if with_tensors {
            writeln!(out)?;
            tensor_table(&report.tensors).print(out)?;
        }
    }
    if let Some(quantization) = &report.quantization {
        writeln!(out)?;
        if !quantization.classes.is_empty() {
            let fates: &[&str] = if report.outputs.is_empty() { &[] } else { &["auto", "native"] };
            let rows = quantization.classes.iter().map(|class| {
                let inspect::TargetTypes { auto, native } = &class.targets;
                (&class.stored, vec![stored::types_text(auto), stored::types_text(native)])
            });
            stored::table(rows, fates).print(out)?;
        }
        let inspect::CheckpointQuantization { n_quantized, left_out, plain_targets, .. } = quantization;
        for line in stored::lines(*n_quantized, left_out, plain_targets) {
            writeln!(out, "{line}")?;
        }
    }
    if !report.outputs.is_empty() {
        writeln!(out)?;
        output_table(&report.outputs).print(out)?;
        if let Some(inspect::SampledWeights { n_read, n_all }) =
            report.outputs.iter().find_map(|output| output.sampled)
        {
            writeln!(out, "native is judged by the scales of {n_read} of {n_all} quantized weights")?;
        }
    }
    print_problems(&report.problems, out)
}

/// Returns the lines at the top: labels and texts.
fn facts(report: &CheckpointReport) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    facts.extend(report.name.clone().map(|name| ("name", name)));
    let model_type = report.model_type.as_ref().map(|name| format!("model_type {name}"));
    let class = report.classes.iter().cloned().chain(model_type).collect::<Vec<_>>();
    if !class.is_empty() {
        facts.push(("class", class.join(", ")));
    }
    let architecture = match &report.architecture {
        Some(own) if own.card == own.gguf => format!("{}, by the card of that name", own.gguf),
        Some(own) => format!("{}, by the card {}", own.gguf, own.card),
        None => "not supported".to_owned(),
    };
    facts.push(("architecture", architecture));
    let container = match &report.container {
        Some(own) => {
            format!("{}, {}, {}", own.format, plural(own.files.len() as u64, "file"), bytes(own.file_bytes))
        }
        None => "not readable".to_owned(),
    };
    facts.push(("weights", container));
    if let (Some(n_weights), Some(n_elems)) = (report.n_weights, report.n_elems) {
        facts.push(("parameters", format!("{} in {}", count(n_elems), plural(n_weights as u64, "tensor"))));
    }
    let is_refused = report.problems.iter().any(|problem| problem.part == inspect::Aspect::Quantization);
    let quantization = match &report.quantization {
        Some(own) => Some(format!("{}, {}", own.method, plural(own.n_quantized as u64, "weight"))),
        None if is_refused => Some("not readable".to_owned()),
        None => None,
    };
    facts.extend(quantization.map(|text| ("quantization", text)));
    let tokenizer = match &report.vocabulary {
        Some(own) => {
            let pre = own.pre.as_ref().map(|pre| format!(", pre-tokenizer {pre}")).unwrap_or_default();
            let template = if own.has_chat_template { "a" } else { "no" };
            let n_tokens = plural(own.n_tokens as u64, "token");
            format!("{}{pre}, {n_tokens}, {template} chat template", own.model)
        }
        None if report.problems.iter().any(|problem| problem.part == inspect::Aspect::Tokenizer) => {
            "not readable".to_owned()
        }
        None => "none".to_owned(),
    };
    facts.push(("tokenizer", tokenizer));
    facts
}

fn tensor_table(tensors: &[ListedTensor]) -> Table {
    let mut table = Table::new(&[
        ("tensor", Align::Left),
        ("type", Align::Left),
        ("shape", Align::Left),
        ("bytes", Align::Right),
        ("file", Align::Left),
    ]);
    for tensor in tensors {
        table.row([
            escape(&tensor.name).into_owned(),
            tensor.ty.to_string(),
            tensor.shape.to_string(),
            count(tensor.n_bytes),
            escape(&tensor.file).into_owned(),
        ]);
    }
    table
}

fn output_table(outputs: &[PlannedOutput]) -> Table {
    let mut table = Table::new(&[
        ("--type", Align::Left),
        ("file type", Align::Left),
        ("tensors", Align::Right),
        ("size", Align::Right),
        ("types", Align::Fill),
        ("file", Align::Fill),
    ]);
    for output in outputs {
        let types = output.types.iter().map(|count| format!("{} {}", count.n_tensors, count.ty));
        table.row([
            output.option.to_owned(),
            output.file_type.clone(),
            output.n_tensors.to_string(),
            bytes(output.file_bytes),
            types.collect::<Vec<_>>().join(", "),
            escape(&output.file_name).into_owned(),
        ]);
    }
    table
}

fn print_problems(problems: &[Problem], out: &mut dyn Write) -> io::Result<()> {
    let kinds = [
        (ProblemKind::Unsupported, styled(Style::Doubtful, "not supported")),
        (ProblemKind::Broken, styled(Style::Bad, "broken or incomplete")),
    ];
    for (kind, title) in kinds {
        let own: Vec<&Problem> = problems.iter().filter(|problem| problem.kind == kind).collect();
        if own.is_empty() {
            continue;
        }
        writeln!(out, "\n{title}")?;
        for problem in own {
            // Messages may have several lines. Untrusted text in them has been escaped where they were made.
            writeln!(out, "  {}: {}", problem.part, problem.message.replace('\n', "\n  "))?;
            for hint in &problem.hints {
                writeln!(out, "    hint: {hint}")?;
            }
        }
    }
    Ok(())
}

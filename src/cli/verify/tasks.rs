//! Options of task sets, and output of their results.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;

use crate::cli::UsageError;
use crate::core::text::plural;
use crate::verify::{TaskKind, TaskReport, TaskSet};

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Tasks")]
pub(super) struct TaskArgs {
    /// HellaSwag's tasks as llama-perplexity takes them: six lines each
    #[arg(long, value_name = "FILE", conflicts_with = "structure_only")]
    hellaswag: Option<PathBuf>,
    /// Winogrande's tasks as llama-perplexity takes them: comma-separated lines
    #[arg(long, value_name = "FILE", conflicts_with = "structure_only")]
    winogrande: Option<PathBuf>,
    /// Tasks in llama-perplexity's binary form (ARC, MMLU, TruthfulQA)
    #[arg(long, value_name = "FILE", conflicts_with = "structure_only")]
    multiple_choice: Option<PathBuf>,
    /// Tasks of each file, chosen as llama-perplexity does [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    tasks: Option<u32>,
}

impl TaskArgs {
    fn given(&self) -> impl Iterator<Item = (TaskKind, &PathBuf)> {
        let given = [
            (TaskKind::HellaSwag, &self.hellaswag),
            (TaskKind::Winogrande, &self.winogrande),
            (TaskKind::MultipleChoice, &self.multiple_choice),
        ];
        given.into_iter().filter_map(|(kind, path)| Some((kind, path.as_ref()?)))
    }

    /// Returns the task files, which no output may replace.
    pub(super) fn inputs(&self) -> impl Iterator<Item = &PathBuf> {
        self.given().map(|(_, path)| path)
    }

    pub(super) fn read(&self) -> anyhow::Result<Vec<TaskSet>> {
        if self.tasks.is_some() && self.given().next().is_none() {
            let message = "`--tasks` needs `--hellaswag`, `--winogrande` or `--multiple-choice`";
            return Err(UsageError(message.to_owned()).into());
        }
        let limit = self.tasks.map(|n| n as usize);
        self.given().map(|(kind, path)| Ok(TaskSet::read(kind, path, limit)?)).collect()
    }
}

/// Prints one line: the share of right answers, its error, and the share that guessing gives.
pub(super) fn print(report: &TaskReport, out: &mut dyn Write) -> std::io::Result<()> {
    let percent = |share: f64| 100.0 * share;
    let n = report.n_tasks;
    let of = if n < report.n_in_file { format!("{n} of ") } else { String::new() };
    let of = of + &plural(report.n_in_file as u64, "task");
    writeln!(
        out,
        "{:<15} {:.4} ± {:.4} % right of {of} (95 %: {:.4} to {:.4}, guessing: {:.4})",
        report.kind.name(),
        percent(report.accuracy),
        percent(report.stderr),
        percent(report.low),
        percent(report.high),
        percent(report.chance)
    )
}

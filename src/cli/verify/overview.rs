//! Table of several files, a row each.

use crate::cli::render::{Align, Cell, Screen, Table};
use crate::cli::verify::names::distinct_names;
use crate::cli::verify::reasons::style;
use crate::cli::verify::report::ModelReport;
use crate::core::text;
use crate::core::text::escape;
use crate::verify::{Figure, Subject};

/// Screen width in columns from which all columns are shown.
const WIDE: usize = 120;

struct Column<'a> {
    head: &'static str,
    /// True if it is left out on narrow screens.
    is_spare: bool,
    cell: Box<dyn Fn(&ModelReport) -> String + 'a>,
}

impl<'a> Column<'a> {
    fn new(head: &'static str, cell: impl Fn(&ModelReport) -> String + 'a) -> Self {
        Self { head, is_spare: false, cell: Box::new(cell) }
    }

    fn spare(self) -> Self {
        Self { is_spare: true, ..self }
    }

    fn of(figure: Figure) -> Self {
        let row = figure.row();
        let cell =
            move |entry: &ModelReport| figure.measured(&entry.report).map(row.cell).unwrap_or_default();
        Self { is_spare: row.is_spare, ..Self::new(row.column, cell) }
    }
}

/// Returns the table of the files, fitted to the screen.
pub(super) fn table(entries: &[ModelReport]) -> Table {
    let is_narrow = Screen::stdout().width.is_some_and(|width| width < WIDE);
    let mut columns = columns(entries);
    columns.retain(|column| !(is_narrow && column.is_spare));
    let heads = columns.iter().map(|column| (column.head, Align::Right));
    let heads = [("file", Align::Left), ("type", Align::Left)].into_iter().chain(heads);
    let heads: Vec<(&str, Align)> = heads.chain([("verdict", Align::Left)]).collect();
    let mut table = Table::new(&heads);
    let names = distinct_names(&entries.iter().map(|entry| entry.path.as_path()).collect::<Vec<_>>());
    let names = if is_narrow { without_common_start(&names) } else { names };
    for (entry, name) in entries.iter().zip(&names) {
        let file_type = entry.file_type.as_deref().unwrap_or_default();
        let mut row = vec![escape(name).into_owned(), escape(file_type).into_owned()];
        row.extend(columns.iter().map(|column| (column.cell)(entry)));
        let verdict = Cell::styled(style(entry.report.verdict), entry.report.verdict.name());
        table.row(row.into_iter().map(Cell::from).chain([verdict]));
    }
    table
}

/// Removes a long common prefix from names and keeps what distinguishes them (`…Q6_K.gguf`).
fn without_common_start(names: &[String]) -> Vec<String> {
    /// Length up to which a prefix is not worth removing.
    const SHORT: usize = 8;
    let Some(first) = names.first() else { return Vec::new() };
    let is_common =
        |end: usize| first.get(..end).is_some_and(|start| names.iter().all(|name| name.starts_with(start)));
    let breaks: Vec<usize> =
        first.match_indices(['-', '_', '.', ' ']).map(|(at, sep)| at + sep.len()).collect();
    match breaks.into_iter().rev().find(|&end| end > SHORT && is_common(end)) {
        Some(end) => names.iter().map(|name| format!("…{}", name.get(end..).unwrap_or(name))).collect(),
        None => names.to_vec(),
    }
}

fn columns(entries: &[ModelReport]) -> Vec<Column<'_>> {
    let mut columns = vec![
        Column::new("size", |entry| entry.size_bytes.map(text::bytes).unwrap_or_default()).spare(),
        Column::new("bits per weight", |entry| {
            entry.report.bits_per_weight.map(|bits| format!("{bits:.2}")).unwrap_or_default()
        })
        .spare(),
    ];
    let is_encoder = |entry: &ModelReport| entry.report.embeddings.is_some();
    let has_divergence = entries.iter().any(|entry| entry.report.divergence.is_some());
    if !entries.iter().any(is_encoder) || entries.iter().any(|entry| entry.report.perplexity.is_some()) {
        let perplexity = Column::of(Figure::Ppl);
        columns.push(if has_divergence { perplexity.spare() } else { perplexity });
    }
    if has_divergence {
        for figure in Figure::of_subject(Subject::Predictions).filter(|figure| figure.row().needs_baseline) {
            columns.push(Column::of(figure));
            if figure == Figure::Kld {
                let limit = Column::new("allowed", |entry| {
                    let line = entry.report.limits.iter().find(|line| line.figure == Figure::Kld);
                    line.map(|line| Figure::Kld.show(line.limit)).unwrap_or_default()
                });
                columns.push(limit.spare());
            }
        }
    }
    if entries.iter().any(|entry| entry.report.quality().is_some()) {
        columns.push(Column::new("quality", |entry| {
            entry.report.quality().map(|quality| quality.name().to_owned()).unwrap_or_default()
        }));
    }
    columns.extend(vectors(entries));
    // Every model answers the same tasks, unless it could not be run.
    let tasks = entries.iter().map(|entry| &entry.report.tasks).max_by_key(|tasks| tasks.len());
    columns.extend(tasks.into_iter().flatten().map(|first| {
        Column::new(first.kind.name(), |entry| {
            let answered = entry.report.tasks.iter().find(|answered| answered.kind == first.kind);
            answered.map(|answered| format!("{:.2} %", 100.0 * answered.accuracy)).unwrap_or_default()
        })
    }));
    columns
}

/// Returns the columns of encoder figures against the baseline that any file has.
fn vectors<'a>(entries: &[ModelReport]) -> Vec<Column<'a>> {
    let against = |entry: &ModelReport| entry.report.embeddings.as_ref()?.against.clone();
    let mut columns = vec![
        Column::of(Figure::Cosine),
        Column::of(Figure::WorstCosine),
        Column::new("neighbours", move |entry| {
            let share = against(entry).and_then(|found| found.same_neighbour);
            share.map(|share| format!("{:.2} %", 100.0 * share)).unwrap_or_default()
        }),
        Column::new("ranks", move |entry| {
            let correlation = against(entry).and_then(|found| found.rank_correlation);
            correlation.map(|correlation| format!("{correlation:.6}")).unwrap_or_default()
        }),
        Column::of(Figure::ScoreError),
    ];
    columns.retain(|column| entries.iter().any(|entry| !(column.cell)(entry).is_empty()));
    columns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_what_tells_them_apart() {
        let names = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            without_common_start(&names)
        };
        let long = names(&["Very-Long-Model-Name-Q6_K.gguf", "Very-Long-Model-Name-Q2_K.gguf"]);
        assert_eq!(long, ["…Q6_K.gguf", "…Q2_K.gguf"]);
        assert_eq!(names(&["a-Q6_K.gguf", "a-Q2_K.gguf"]), ["a-Q6_K.gguf", "a-Q2_K.gguf"]);
        assert_eq!(
            names(&["one-long-name.gguf", "other-long-name.gguf"]),
            ["one-long-name.gguf", "other-long-name.gguf"]
        );
        assert_eq!(
            names(&["日本語のモデル-Q6_K.gguf", "日本語のモデル-Q2_K.gguf"]),
            ["…Q6_K.gguf", "…Q2_K.gguf"]
        );
    }
}

//! Table with a row for each prompt file.

use crate::cli::render::{Align, Table};
use crate::cli::verify::report::ModelReport;
use crate::core::text::escape;

/// Returns the figures of the prompt files if there are several. With several models each row begins with the model.
pub(super) fn table(entries: &[ModelReport]) -> Option<Table> {
    let has_rows = entries.iter().any(|entry| entry.report.prompt_files.len() > 1);
    let has_reference = entries.iter().any(|entry| entry.report.divergence.is_some());
    let has_models = entries.len() > 1;
    let mut heads = vec![
        ("prompts", Align::Left),
        ("chunks", Align::Right),
        ("tokens", Align::Right),
        ("perplexity", Align::Right),
        ("±", Align::Right),
    ];
    if has_models {
        heads.insert(0, ("file", Align::Left));
    }
    if has_reference {
        heads.extend([("mean KLD", Align::Right), ("±", Align::Right)]);
    }
    let mut table = Table::new(&heads);
    for entry in entries {
        for row in &entry.report.prompt_files {
            let p = row.perplexity.as_ref();
            let mut cells = vec![
                name(&row.path),
                row.chunks.to_string(),
                p.map_or(0, |p| p.tokens).to_string(),
                p.map(|p| format!("{:.4}", p.value)).unwrap_or_default(),
                p.map(|p| format!("{:.4}", p.stderr)).unwrap_or_default(),
            ];
            if has_models {
                cells.insert(0, name(&entry.path));
            }
            if has_reference {
                let kld = row.kld.as_ref();
                cells.push(kld.map(|kld| format!("{:.6}", kld.mean)).unwrap_or_default());
                cells.push(kld.map(|kld| format!("{:.6}", kld.stderr)).unwrap_or_default());
            }
            table.row(cells);
        }
    }
    has_rows.then_some(table)
}

/// Name of a file without its directory.
fn name(path: &std::path::Path) -> String {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    escape(&name.unwrap_or_else(|| path.display().to_string())).into_owned()
}

//! Output of how a quantized checkpoint stores its weights. Shared by the `2gguf` commands and `gguf-inspect`.

use crate::cli::Session;
use crate::cli::render::{Align, Table, plural};
use crate::convert::StoredClass;
use crate::core::GgmlType;
use crate::core::text::escape;
use crate::job::StoredWeights;

/// Maximum number of names and endings in a line.
const SHOWN: usize = 6;

/// Lists types for a table cell.
pub(super) fn types_text(types: &[GgmlType]) -> String {
    types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Returns the table of classes. `fates` are the heads of further columns, whose cells are in the rows.
pub(super) fn table<'a>(rows: impl Iterator<Item = (&'a StoredClass, Vec<String>)>, fates: &[&str]) -> Table {
    let mut heads = vec![
        ("quantized weights", Align::Left),
        ("count", Align::Right),
        ("stored as", Align::Left),
        ("bits per weight", Align::Right),
    ];
    heads.extend(fates.iter().map(|fate| (*fate, Align::Left)));
    let mut table = Table::new(&heads);
    for (class, cells) in rows {
        let own = [
            escape(&class.pattern).into_owned(),
            class.n_weights.to_string(),
            escape(&class.text()).into_owned(),
            format!("{:.2}", class.bits_per_weight()),
        ];
        table.row(own.into_iter().chain(cells));
    }
    table
}

/// Returns lines about tensors that were left out and weights that are not quantized.
pub(super) fn lines(n_quantized: usize, left_out: &[String], plain_targets: &[String]) -> Vec<String> {
    let mut lines = Vec::new();
    let list = |texts: &[&str], quote: &str| {
        let shown: Vec<String> =
            texts.iter().take(SHOWN).map(|text| format!("{quote}{}{quote}", escape(text))).collect();
        let more = if texts.len() > SHOWN { ", …" } else { "" };
        format!("{}{more}", shown.join(", "))
    };
    if n_quantized == 0 {
        lines.push("no weight is quantized, although the configuration declares it".to_owned());
    }
    if !left_out.is_empty() {
        let n = plural(left_out.len() as u64, "tensor");
        lines.push(format!("left out: {n}: {}", list(&endings(left_out), "")));
    }
    if !plain_targets.is_empty() {
        let n = plural(plain_targets.len() as u64, "weight");
        let names: Vec<&str> = plain_targets.iter().map(String::as_str).collect();
        lines
            .push(format!("plain floats, though the configuration targets them: {n}: {}", list(&names, "`")));
    }
    lines
}

/// Returns the distinct suffixes of names: `input_scale`, `k_scale`.
fn endings(names: &[String]) -> Vec<&str> {
    let mut endings: Vec<&str> = Vec::new();
    for name in names {
        let ending = name.rsplit('.').next().unwrap_or(name);
        if !endings.contains(&ending) {
            endings.push(ending);
        }
    }
    endings
}

/// Prints how the weights of a quantized checkpoint are stored, and what they become.
pub(super) fn print(session: &Session, stored: Option<&StoredWeights>) -> anyhow::Result<()> {
    let Some(stored) = stored else { return Ok(()) };
    if session.common.quiet || session.common.json {
        return Ok(());
    }
    session.print(|out| {
        if !stored.classes.is_empty() {
            let rows = stored.classes.iter().map(|class| (&class.stored, vec![types_text(&class.becomes)]));
            table(rows, &["becomes"]).print(out)?;
        }
        let lines = lines(stored.n_quantized, &stored.left_out, &stored.plain_targets);
        for line in lines.iter().chain(&stored.suggestion) {
            writeln!(out, "{line}")?;
        }
        writeln!(out)
    })
}

//! Output of how a quantized checkpoint stores its weights. Shared by the `2gguf` commands and `gguf-inspect`.

use crate::cli::Session;
use crate::cli::render::{Align, Table, plural};
use crate::convert::{Quantization, StoredClass};
use crate::core::GgmlType;
use crate::core::text::escape;
use crate::job::StoredWeights;

/// Maximum number of names and endings in a line.
const SHOWN: usize = 6;

/// Lists types for a table cell.
pub(super) fn types_text(types: &[GgmlType]) -> String {
    types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Returns the table of classes. `fates` are the heads of further columns, `cells` returns their content.
pub(super) fn table<T>(
    classes: &[StoredClass<T>],
    fates: &[&str],
    cells: impl Fn(&T) -> Vec<String>,
) -> Table {
    let mut heads = vec![
        ("quantized weights", Align::Left),
        ("count", Align::Right),
        ("stored as", Align::Left),
        ("bits", Align::Right),
    ];
    heads.extend(fates.iter().map(|fate| (*fate, Align::Left)));
    let mut table = Table::new(&heads);
    for class in classes {
        let own = [
            escape(&class.pattern).into_owned(),
            class.n_weights.to_string(),
            escape(&class.text()).into_owned(),
            format!("{:.2}", class.bits_per_weight()),
        ];
        table.row(own.into_iter().chain(cells(&class.becomes)));
    }
    table
}

/// Returns lines about tensors that were left out and weights that are not quantized.
pub(super) fn lines(quantization: &Quantization) -> Vec<String> {
    let mut lines = Vec::new();
    let list = |texts: &[&str], quote: &str| {
        let shown: Vec<String> =
            texts.iter().take(SHOWN).map(|text| format!("{quote}{}{quote}", escape(text))).collect();
        let more = if texts.len() > SHOWN { ", …" } else { "" };
        format!("{}{more}", shown.join(", "))
    };
    if quantization.encodings.is_empty() {
        lines.push("no weight is quantized, although the configuration declares it".to_owned());
    }
    if !quantization.left_out.is_empty() {
        let n = plural(quantization.left_out.len() as u64, "tensor");
        lines.push(format!("left out: {n}: {}", list(&quantization.left_out_endings(), "")));
    }
    if !quantization.plain_targets.is_empty() {
        let n = plural(quantization.plain_targets.len() as u64, "weight");
        let names: Vec<&str> = quantization.plain_targets.iter().map(String::as_str).collect();
        lines
            .push(format!("plain floats, though the configuration targets them: {n}: {}", list(&names, "`")));
    }
    lines
}

/// Prints how the weights of a quantized checkpoint are stored, and what they become.
pub(super) fn print(session: &Session, stored: Option<&StoredWeights>) -> anyhow::Result<()> {
    let Some(stored) = stored else { return Ok(()) };
    if session.common.quiet || session.common.json {
        return Ok(());
    }
    let becomes = |types: &Vec<GgmlType>| vec![types_text(types)];
    session.print(|out| {
        if !stored.classes.is_empty() {
            table(&stored.classes, &["becomes"], becomes).print(out)?;
        }
        for line in lines(&stored.quantization).iter().chain(&stored.suggestion) {
            writeln!(out, "{line}")?;
        }
        writeln!(out)
    })
}

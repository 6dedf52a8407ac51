//! What the programs print: errors with hints, tables, numbers.

use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};

use crate::core::Hint;

/// Prints `label: text` to standard error, the label in colour on a terminal unless `NO_COLOR` says otherwise.
pub fn message(label: &str, text: &str) {
    let mut err = io::stderr().lock();
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) || !err.is_terminal();
    let colour = match label {
        "error" => "31",
        "warning" => "33",
        _ => "36",
    };
    // Nothing can be done about a standard error that is closed.
    let _ = if plain {
        writeln!(err, "{label}: {text}")
    } else {
        writeln!(err, "\u{1b}[1;{colour}m{label}\u{1b}[0m: {text}")
    };
}

/// Prints an error with its causes on one line, then its hints after a blank line.
pub fn error(error: &anyhow::Error) {
    message("error", &error_line(error));
    let hints: Vec<_> = error.chain().flat_map(hints).collect();
    if !hints.is_empty() {
        let _ = writeln!(io::stderr());
        for hint in hints {
            message("hint", &hint);
        }
    }
}

/// An error and its causes, outermost first. A message that already contains the next one stands for both.
#[must_use]
pub fn error_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = cause.to_string();
        if line.is_empty() {
            line = text;
        } else if !line.contains(&text) {
            let _ = write!(line, ": {text}");
        }
    }
    line
}

/// The hints of one error, if it is of a type that has some. Each subsystem's error is named here.
fn hints(error: &(dyn Error + 'static)) -> Vec<String> {
    macro_rules! of {
        ($( $ty:ty, )*) => {
            $( if let Some(error) = error.downcast_ref::<$ty>() { return error.hints(); } )*
        };
    }
    of! {
        crate::arch::ArchError,
        crate::checkpoint::CheckpointError,
        crate::convert::ConvertError,
        crate::convert::ToHfError,
        crate::engine::EngineError,
        crate::gguf::GgufError,
        crate::gguf::WriteError,
        crate::inspect::EditError,
        crate::quant::QuantError,
        crate::gguf::ImatrixError,
        crate::quantize::OptionError,
        crate::quantize::QuantizeError,
        crate::quantize::RowError,
        crate::views::TransformError,
        crate::verify::VerifyError,
    }
    Vec::new()
}

/// A number with thin groups of three digits: `12 345 678`.
#[must_use]
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

/// A time span: `0.4 s`, `12 s`, `3 min 05 s`, `2 h 10 min`.
#[must_use]
pub fn duration(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    match whole {
        0..10 => format!("{:.1} s", seconds.max(0.0)),
        10..60 => format!("{whole} s"),
        60..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole / 60 % 60),
    }
}

/// A count with its noun: `1 tensor`, `2 tensors`.
#[must_use]
pub fn plural(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(n), if n == 1 { "" } else { "s" })
}

/// How a column is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// A table of text with aligned columns, no lines.
#[derive(Clone, Debug)]
pub struct Table {
    heads: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these column heads.
    #[must_use]
    pub fn new(heads: &[(&str, Align)]) -> Self {
        let heads = heads.iter().map(|(head, align)| ((*head).to_owned(), *align)).collect();
        Self { heads, rows: Vec::new() }
    }

    /// Adds a row; missing cells are empty. The last column is never padded, so it may be long.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Prints heads and rows.
    ///
    /// # Errors
    /// I/O errors of the writer.
    pub fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let heads: Vec<_> = self.heads.iter().map(|(head, _)| head.clone()).collect();
        let mut widths = vec![0; heads.len()];
        for row in std::iter::once(&heads).chain(&self.rows) {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        for row in std::iter::once(&heads).chain(&self.rows) {
            let mut line = String::new();
            for (index, (width, (_, align))) in widths.iter().zip(&self.heads).enumerate() {
                let cell = row.get(index).map_or("", String::as_str);
                let pad = " ".repeat(width - cell.chars().count());
                let _ = match align {
                    Align::Left => write!(line, "{cell}{pad}  "),
                    Align::Right => write!(line, "{pad}{cell}  "),
                };
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1000), "1 000");
        assert_eq!(count(12_345_678), "12 345 678");
        assert_eq!(plural(1, "tensor"), "1 tensor");
        assert_eq!(plural(2048, "tensor"), "2 048 tensors");
        assert_eq!(duration(0.44), "0.4 s");
        assert_eq!(duration(185.2), "3 min 05 s");
        assert_eq!(duration(7_830.0), "2 h 10 min");
    }

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&[("name", Align::Left), ("n", Align::Right), ("note", Align::Left)]);
        table.row(["é".to_owned(), "12".to_owned(), "x".to_owned()]);
        table.row(["longer".to_owned(), "3".to_owned()]);
        let mut out = Vec::new();
        table.print(&mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "name     n  note\né       12  x\nlonger   3\n");
    }

    #[test]
    fn causes_are_joined_and_not_repeated() {
        let inner = std::io::Error::other("disk on fire");
        let error = anyhow::Error::new(inner).context("m.gguf: disk on fire").context("writing");
        assert_eq!(error_line(&error), "writing: m.gguf: disk on fire");
    }

    #[test]
    fn hints_are_found_below_context() {
        let error = crate::gguf::GgufError::PartMissing { path: "a".into(), part: 1, n_parts: 2 };
        let error = anyhow::Error::new(error).context("opening");
        let hints: Vec<_> = error.chain().flat_map(hints).collect();
        assert_eq!(hints, ["all parts must lie in one directory"]);
    }
}

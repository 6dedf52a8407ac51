//! Output of the programs: errors with hints, tables, numbers.

mod foreign;
pub(crate) mod markdown;
mod screen;
mod table;

use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, Write};

use crate::core::Hint;
use crate::core::ranged::shown;
use crate::core::text::escape;
pub(crate) use crate::core::text::{count, plural};

pub(crate) use foreign::{json_text, message_text, to_terminal, write_json};
pub(crate) use screen::{Screen, Style, styled};
pub(crate) use table::{Align, Cell, Table, shorten};

/// Returns `label: text`. The label is coloured if standard error is a terminal, unless `NO_COLOR` is set.
pub(crate) fn labelled(label: &str, text: &str) -> String {
    let style = match label {
        "error" => Style::Bad,
        "warning" => Style::Doubtful,
        _ => Style::Note,
    };
    format!("{}: {}", Screen::stderr().paint(style, label), message_text(text))
}

/// Prints `label: text` to standard error.
pub(crate) fn message(label: &str, text: &str) {
    // Nothing can be done about a closed standard error.
    let _ = writeln!(io::stderr().lock(), "{}", labelled(label, &shown(text)));
}

/// Prints the reason why a run failed, then hints after a blank line.
pub(crate) fn failure(text: &str, hints: &[String]) {
    message("error", text);
    if !hints.is_empty() {
        let _ = writeln!(io::stderr());
        for hint in hints {
            message("hint", hint);
        }
    }
}

/// Joins an error and its causes, outermost first. A cause whose text is already in the line is left out.
pub(crate) fn error_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = cause.to_string().replace("failed to query resolved metadata `", "cannot find `");
        if line.is_empty() {
            line = text;
        } else if !line.contains(&text) {
            let _ = write!(line, ": {text}");
        }
    }
    line
}

/// Error of one input in words, with its hints: what kind of error it was decides nothing any more.
#[derive(Debug, thiserror::Error)]
#[error("{input}: {message}")]
pub(crate) struct ErrorOf {
    input: &'static str,
    message: String,
    hints: Vec<String>,
}

impl ErrorOf {
    pub(crate) fn new(input: &'static str, error: &anyhow::Error) -> Self {
        Self { input, message: error_line(error), hints: hints_of(error) }
    }
}

impl Hint for ErrorOf {
    fn hints(&self) -> Vec<String> {
        self.hints.clone()
    }
}

pub(crate) fn hints_of(error: &anyhow::Error) -> Vec<String> {
    error.chain().flat_map(hints).collect()
}

/// Returns the hints of one error, if its type has some. Each subsystem's error type is listed here.
fn hints(error: &(dyn Error + 'static)) -> Vec<String> {
    // A reader may wrap the error of its byte source in an `io::Error`.
    if let Some(inner) = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        return hints(inner);
    }
    macro_rules! of {
        ($( $(#[$if:meta])? $ty:ty, )*) => {
            $( $(#[$if])? if let Some(error) = error.downcast_ref::<$ty>() { return error.hints(); } )*
        };
    }
    of! {
        crate::arch::ArchError,
        crate::calibrate::CalibrateError,
        crate::calibrate::WorkError,
        crate::checkpoint::CheckpointError,
        crate::convert::ConvertError,
        crate::convert::ToHfError,
        crate::core::output::GuardError,
        crate::core::output::OutputError,
        crate::engine::EngineError,
        crate::gguf::GgufError,
        crate::gguf::WriteError,
        crate::inspect::EditError,
        crate::job::JobError,
        crate::job::NameTaken,
        crate::job::ladder::FolderError,
        crate::job::ladder::UnknownRung,
        crate::job::NativeFloats,
        crate::job::recipe::RecipeError,
        crate::job::RefusedOverrides,
        crate::quant::QuantError,
        crate::gguf::ImatrixError,
        crate::quantize::OptionError,
        crate::quantize::AllocateError,
        crate::quantize::QuantizeError,
        crate::quantize::RowError,
        crate::views::ViewError,
        #[cfg(feature = "remote")] crate::remote::RemoteError,
        #[cfg(feature = "remote")] crate::remote::FetchFailure,
        crate::verify::PartError,
        crate::verify::VerifyError,
        ErrorOf,
        crate::cli::memory::MemoryError,
    }
    Vec::new()
}

/// Lists names for a message: all, or three of them and the number of the others.
pub(crate) fn named(names: &[String], all: bool) -> String {
    let n_shown = if all { names.len() } else { names.len().min(3) };
    let listed: Vec<_> = names[..n_shown].iter().map(|name| format!("`{}`", escape(name))).collect();
    let listed = listed.join(", ");
    match names.len() - n_shown {
        0 => listed,
        more => format!("{listed} and {more} more (-v lists all)"),
    }
}

/// Formats a time span: `0.4 s`, `12 s`, `3 min 05 s`, `2 h 10 min`.
pub(crate) fn duration(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    match whole {
        0..10 => format!("{:.1} s", seconds.max(0.0)),
        10..60 => format!("{whole} s"),
        60..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole / 60 % 60),
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
    fn causes_are_joined_and_not_repeated() {
        let inner = std::io::Error::other("disk on fire");
        let error = anyhow::Error::new(inner).context("m.gguf: disk on fire").context("writing");
        assert_eq!(error_line(&error), "writing: m.gguf: disk on fire");
    }
}

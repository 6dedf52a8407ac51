//! What the standard streams can show: how wide they are, and whether colours mean anything there.

use std::io::{self, IsTerminal};

/// A colour with a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// It is as it should be: `pass`, `equal`.
    Good,
    /// It has to be looked at: `partial`, a warning.
    Doubtful,
    /// It must not be: `fail`, an error.
    Bad,
    /// Beside the point: hints, notes.
    Note,
}

impl Style {
    /// The colour's number in an escape sequence.
    const fn code(self) -> u8 {
        match self {
            Self::Good => 32,
            Self::Doubtful => 33,
            Self::Bad => 31,
            Self::Note => 36,
        }
    }
}

/// A standard stream as something to print on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Screen {
    /// Columns of a line; `None` where lines may be as long as they like: in a file or a pipe.
    pub width: Option<usize>,
    /// True where text may be coloured.
    pub has_colour: bool,
}

impl Screen {
    /// A file: as wide as needed, without colours.
    #[cfg(test)]
    pub(crate) const FILE: Self = Self { width: None, has_colour: false };

    /// Standard output. The variable `COLUMNS` says how wide it is, else the terminal does; colours are for terminals
    /// only, and not even for them where `NO_COLOR` is set.
    #[must_use]
    pub(crate) fn stdout() -> Self {
        let is_terminal = io::stdout().is_terminal();
        let of_terminal = || terminal_size::terminal_size().filter(|_| is_terminal);
        let width = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok()).filter(|&n| n > 0);
        Self {
            width: width.or_else(|| of_terminal().map(|(width, _)| width.0.into())),
            has_colour: has_colour(is_terminal),
        }
    }

    /// Standard error, where nothing is set in columns.
    #[must_use]
    pub(crate) fn stderr() -> Self {
        Self { width: None, has_colour: has_colour(io::stderr().is_terminal()) }
    }

    /// The text in its colour, or as it is.
    #[must_use]
    pub(crate) fn paint(self, style: Style, text: &str) -> String {
        if self.has_colour { format!("\u{1b}[1;{}m{text}\u{1b}[0m", style.code()) } else { text.to_owned() }
    }
}

/// Text for standard output, in its colour where standard output shows one.
#[must_use]
pub(crate) fn styled(style: Style, text: &str) -> String {
    Screen::stdout().paint(style, text)
}

/// `NO_COLOR` forbids colours, `CLICOLOR_FORCE` wants them also where nobody can see them, as for clap's own messages.
fn has_colour(is_terminal: bool) -> bool {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    match variable("NO_COLOR") {
        Some(_) => false,
        None => is_terminal || variable("CLICOLOR_FORCE").is_some_and(|value| value != "0"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_screens_that_have_them() {
        let screen = Screen { has_colour: true, ..Screen::FILE };
        assert_eq!(screen.paint(Style::Good, "pass"), "\u{1b}[1;32mpass\u{1b}[0m");
        assert_eq!(Screen::FILE.paint(Style::Bad, "fail"), "fail");
    }
}

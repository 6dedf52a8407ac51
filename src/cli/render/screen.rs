//! Properties of the standard streams: their width, and whether they show colours.

use std::io::{self, IsTerminal};

/// Colour with a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// As it should be: `pass`, `equal`.
    Good,
    /// Worth a look: `partial`, a warning.
    Doubtful,
    /// Wrong: `fail`, an error.
    Bad,
    /// Additional information: hints, notes.
    Note,
}

impl Style {
    /// Number of the colour in an escape sequence.
    const fn code(self) -> u8 {
        match self {
            Self::Good => 32,
            Self::Doubtful => 33,
            Self::Bad => 31,
            Self::Note => 36,
        }
    }
}

/// Output properties of a standard stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Screen {
    /// Columns of a line; `None` if lines may have any length, as in a file or a pipe.
    pub width: Option<usize>,
    /// True if text may be coloured.
    pub has_colour: bool,
}

impl Screen {
    /// Screen of a file: unlimited width, no colours.
    #[cfg(test)]
    pub(crate) const FILE: Self = Self { width: None, has_colour: false };

    /// Returns the properties of standard output. The width is the one in `COLUMNS`, else that of the terminal. Colours
    /// are for terminals only, and not if `NO_COLOR` is set.
    pub(crate) fn stdout() -> Self {
        let is_terminal = io::stdout().is_terminal();
        let of_terminal = || terminal_size::terminal_size().filter(|_| is_terminal);
        let width = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok()).filter(|&n| n > 0);
        Self {
            width: width.or_else(|| of_terminal().map(|(width, _)| width.0.into())),
            has_colour: has_colour(is_terminal),
        }
    }

    /// Returns the properties of standard error, where nothing is set in columns.
    pub(crate) fn stderr() -> Self {
        Self { width: None, has_colour: has_colour(io::stderr().is_terminal()) }
    }

    /// Returns the text in its colour, or unchanged.
    pub(crate) fn paint(self, style: Style, text: &str) -> String {
        if self.has_colour { format!("\u{1b}[1;{}m{text}\u{1b}[0m", style.code()) } else { text.to_owned() }
    }
}

/// Returns text for standard output, coloured if standard output shows colours.
pub(crate) fn styled(style: Style, text: &str) -> String {
    Screen::stdout().paint(style, text)
}

/// Returns true if colours are allowed: `NO_COLOR` forbids them, `CLICOLOR_FORCE` wants them also without a terminal
/// (as clap).
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

//! Tables of aligned columns that fit the screen.

use std::io::{self, Write};

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::cli::render::{Screen, Style};

/// Page width for a column of [`Align::Fill`] if the screen width is unknown: in files and pipes.
const PAGE: usize = 80;
/// Minimum width of a shortened name, and of the column that fills the page.
const LEAST_NAME: usize = 12;
const LEAST_FILL: usize = 24;
/// Number of blanks between two columns.
const GAP: usize = 2;

/// Alignment and shortening of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    /// Names: shortened in the middle if the screen is too narrow, whole in files and pipes.
    Left,
    /// Numbers: never shortened.
    Right,
    /// Text that takes the rest of the screen, or of 80 columns, and is shortened in the middle.
    Fill,
}

/// Content of one field of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    text: String,
    style: Option<Style>,
}

impl Cell {
    pub(crate) fn styled(style: Style, text: impl Into<String>) -> Self {
        Self { text: text.into(), style: Some(style) }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self { text, style: None }
    }
}

/// Text table with aligned columns and without rules.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    heads: Vec<(String, Align)>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// Creates a table with these column heads.
    pub(crate) fn new(heads: &[(&str, Align)]) -> Self {
        let heads = heads.iter().map(|(head, align)| ((*head).to_owned(), *align)).collect();
        Self { heads, rows: Vec::new() }
    }

    /// Adds a row; missing cells are empty.
    pub(crate) fn row<C: Into<Cell>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Prints heads and rows, fitted to standard output.
    pub(crate) fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let screen = Screen::stdout();
        self.print_on(screen, screen.width.unwrap_or(PAGE), out)
    }

    /// Prints heads and rows with nothing shortened.
    pub(crate) fn print_whole(&self, out: &mut dyn Write) -> io::Result<()> {
        self.print_on(Screen { width: None, ..Screen::stdout() }, usize::MAX, out)
    }

    /// Prints on a screen. A column that fills the page may extend to column `page`.
    fn print_on(&self, screen: Screen, page: usize, out: &mut dyn Write) -> io::Result<()> {
        let heads: Vec<Cell> = self.heads.iter().map(|(head, _)| head.clone().into()).collect();
        let widths = self.fitted(screen, page);
        let mut line = String::new();
        for row in std::iter::once(&heads).chain(&self.rows) {
            line.clear();
            let mut n_blank = 0;
            for (index, (&width, (_, align))) in widths.iter().zip(&self.heads).enumerate() {
                let cell = row.get(index);
                let text = match (cell, align) {
                    (Some(cell), Align::Left | Align::Fill) => shorten(&cell.text, width),
                    (Some(cell), Align::Right) => cell.text.clone(),
                    (None, _) => String::new(),
                };
                let pad = width.saturating_sub(text.width());
                let (before, after) = if *align == Align::Right { (pad, 0) } else { (0, pad) };
                if text.is_empty() {
                    n_blank += pad + GAP;
                    continue;
                }
                line.extend(std::iter::repeat_n(' ', n_blank + before));
                match cell.and_then(|cell| cell.style) {
                    Some(style) => line.push_str(&screen.paint(style, &text)),
                    None => line.push_str(&text),
                }
                n_blank = after + GAP;
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }

    /// Returns the width of each column: that of its cells, reduced as needed for the table to fit.
    fn fitted(&self, screen: Screen, page: usize) -> Vec<usize> {
        let mut widths: Vec<usize> = self.heads.iter().map(|(head, _)| head.width()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.text.width());
            }
        }
        self.shrink(&mut widths, Align::Fill, page, LEAST_FILL);
        if let Some(width) = screen.width {
            self.shrink(&mut widths, Align::Left, width, LEAST_NAME);
        }
        widths
    }

    /// Narrows columns of one kind, the widest first, until the table fits or none can be narrowed further.
    fn shrink(&self, widths: &mut [usize], kind: Align, limit: usize, least: usize) {
        let gaps = GAP * widths.len().saturating_sub(1);
        let mut over =
            widths.iter().fold(gaps, |sum, width| sum.saturating_add(*width)).saturating_sub(limit);
        let own: Vec<usize> = (0..widths.len()).filter(|&index| self.heads[index].1 == kind).collect();
        while over > 0 {
            let may_give = |&&index: &&usize| widths[index] > least.max(self.heads[index].0.width());
            let Some(&widest) = own.iter().filter(may_give).max_by_key(|&&index| widths[index]) else {
                return;
            };
            widths[widest] -= 1;
            over -= 1;
        }
    }
}

/// Shortens text to at most `width` columns, with `…` in its middle.
pub(crate) fn shorten(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let limit = width.saturating_sub(1);
    let head = fitting(text.chars(), limit - limit / 2);
    let tail = fitting(text.chars().rev(), limit / 2);
    head.into_iter().chain(['…']).chain(tail.into_iter().rev()).collect()
}

/// Returns the first characters that fit in `limit` columns.
fn fitting(chars: impl Iterator<Item = char>, limit: usize) -> Vec<char> {
    let mut taken = 0;
    let fits = |c: &char| {
        taken += c.width().unwrap_or(0);
        taken <= limit
    };
    chars.take_while(fits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(table: &Table, screen: Screen, page: usize) -> String {
        let mut out = Vec::new();
        table.print_on(screen, page, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn screen(width: usize) -> Screen {
        Screen { width: Some(width), has_colour: false }
    }

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&[("name", Align::Left), ("n", Align::Right), ("note", Align::Left)]);
        table.row(["é".to_owned(), "12".to_owned(), "x".to_owned()]);
        table.row(["longer".to_owned(), "3".to_owned()]);
        assert_eq!(printed(&table, Screen::FILE, PAGE), "name     n  note\né       12  x\nlonger   3\n");
    }

    #[test]
    fn wide_characters_take_two_columns() {
        let mut table = Table::new(&[("名前", Align::Left), ("n", Align::Right)]);
        table.row(["模型".to_owned(), "1".to_owned()]);
        table.row(["model".to_owned(), "22".to_owned()]);
        assert_eq!(printed(&table, Screen::FILE, PAGE), "名前    n\n模型    1\nmodel  22\n");
    }

    #[test]
    fn a_narrow_screen_shortens_names_in_the_middle_and_a_file_does_not() {
        let mut table =
            Table::new(&[("tensor", Align::Left), ("type", Align::Left), ("bytes", Align::Right)]);
        let name = "model.layers.17.block_sparse_moe.experts.63.down_proj.weight";
        table.row([name.to_owned(), "Q4_K".to_owned(), "12 345 678".to_owned()]);
        let narrow = printed(&table, screen(50), 50);
        assert_eq!(narrow.lines().nth(1), Some("model.layers.17.…own_proj.weight  Q4_K  12 345 678"));
        assert!(narrow.lines().all(|line| line.width() <= 50), "{narrow}");
        assert!(printed(&table, Screen::FILE, PAGE).contains(name));
    }

    #[test]
    fn what_fills_the_page_is_shortened_everywhere_but_where_it_is_wanted_whole() {
        let mut table = Table::new(&[("key", Align::Left), ("value", Align::Fill)]);
        table.row([
            "tokenizer.chat_template".to_owned(),
            format!("{{% for{} (99 characters)", "x".repeat(100)),
        ]);
        let short = printed(&table, Screen::FILE, PAGE);
        assert!(short.lines().all(|line| line.width() <= PAGE), "{short}");
        assert!(short.contains("tokenizer.chat_template  {% forxxx"), "{short}");
        assert!(short.ends_with("… (99 characters)\n") || short.contains("x (99 characters)\n"), "{short}");
        assert!(printed(&table, Screen::FILE, usize::MAX).contains(&"x".repeat(100)));
    }

    #[test]
    fn a_screen_too_narrow_for_everything_still_shows_the_least() {
        let mut table = Table::new(&[("a", Align::Left), ("b", Align::Fill)]);
        table.row(["y".repeat(40), "漢".repeat(40)]);
        let text = printed(&table, screen(10), 10);
        let line = format!("{}…{}  {}…{}", "y".repeat(6), "y".repeat(5), "漢".repeat(6), "漢".repeat(5));
        assert_eq!(text.lines().nth(1), Some(line.as_str()));
    }

    #[test]
    fn colours_take_no_room() {
        let mut table = Table::new(&[("verdict", Align::Left), ("n", Align::Right)]);
        table.row([Cell::styled(Style::Bad, "fail"), "1".to_owned().into()]);
        let screen = Screen { has_colour: true, ..Screen::FILE };
        assert_eq!(printed(&table, screen, PAGE), "verdict  n\n\u{1b}[1;31mfail\u{1b}[0m     1\n");
    }
}

//! Contents of the short help texts. `pages.txt` has them and tells its form.

use std::sync::LazyLock;

const TEXT: &str = include_str!("pages.txt");

type Pair = (&'static str, &'static str);

/// Short help of a command.
#[derive(Default)]
pub(super) struct Page {
    /// Names of the program and its commands.
    pub(super) path: Vec<&'static str>,
    /// What a program is for, and the command line of each task.
    pub(super) tasks: Vec<Pair>,
    /// Ids of options and arguments, with a line each; if there are none, the page shows all with their own texts.
    pub(super) shown: Vec<Pair>,
    pub(super) examples: Vec<&'static str>,
}

/// All pages.
#[derive(Default)]
pub(super) struct Pages {
    /// One-line descriptions of subcommands whose own sentence is longer.
    pub(super) about: Vec<Pair>,
    pub(super) pages: Vec<Page>,
}

pub(super) static PAGES: LazyLock<Pages> = LazyLock::new(|| {
    let mut all = Pages::default();
    for line in TEXT.lines() {
        let Some((form, rest)) = line.split_once(' ') else { continue };
        match (form, all.pages.last_mut(), rest.split_once(": ")) {
            ("about", _, Some(pair)) => all.about.push(pair),
            ("==", ..) => all.pages.push(Page { path: rest.split(' ').collect(), ..Page::default() }),
            ("task", Some(page), Some(pair)) => page.tasks.push(pair),
            ("-", Some(page), Some(pair)) => page.shown.push(pair),
            ("$", Some(page), _) => page.examples.push(rest),
            _ => {}
        }
    }
    all
});

#[cfg(test)]
#[test]
fn every_line_has_a_form() {
    let (_, lines) = TEXT.split_once("\n\n").unwrap();
    let of = |page: &Page| 1 + page.tasks.len() + page.shown.len() + page.examples.len();
    let n_read = PAGES.about.len() + PAGES.pages.iter().map(of).sum::<usize>();
    assert_eq!(n_read, lines.lines().filter(|line| !line.is_empty()).count());
}

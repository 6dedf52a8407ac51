//! Help texts. `-h` is one screen: what a command is for, its most common options, examples. `--help` is complete,
//! ordered from common to rare, with examples and exit codes. `help machines` has the options that fit a run to a machine.
//!
//! Options are documented in full where they are defined. `pages.txt` lists those that the short help of a command shows,
//! with one line each; they also come first in the long help.

mod pages;

use std::fmt::Write;

use clap::{Arg, Command};

use pages::{PAGES, Page};

/// Exit codes of programs that have no others.
const EXIT_CODES: &str = "Exit codes: 0 done, 1 failed, 2 usage, 3 a GGUF file is broken, 130 interrupted.";
/// Options of `help machines`, by id. The long help of a command leaves them out.
const MACHINES: [&str; 5] = ["memory", "simd", "no_sync", "part", "into"];
/// Width of the short help and of `help machines`.
const COLUMNS: usize = 80;
/// Heading of the options that every command has.
const COMMON: &str = "Common options";

/// Adds the help texts to a program's parser. With `is_short` its help is the page of one screen.
pub(crate) fn with_pages(command: Command, is_short: bool) -> Command {
    let mut path = vec![command.get_name().to_owned()];
    let options: Vec<String> = of_machines(&command).iter().map(|(arg, _)| name_of(arg)).collect();
    let options: Vec<&str> = options.iter().filter_map(|name| name.split(' ').next()).collect();
    let machines = format!("`{} help machines` explains {}.", path[0], options.join(", "));
    shaped(command, &mut path, &machines, is_short)
}

fn shaped(command: Command, path: &mut Vec<String>, machines: &str, is_short: bool) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    let mut command = command;
    for name in names {
        path.push(name.clone());
        command = command.mut_subcommand(&name, |sub| {
            let about = PAGES.about.iter().find(|(own, _)| *own == name).map(|(_, line)| *line);
            let sub = match (about, sub.get_long_about().or(sub.get_about()).cloned()) {
                (Some(line), Some(full)) => sub.about(line).long_about(full),
                _ => sub,
            };
            shaped(sub, path, machines, is_short)
        });
        path.pop();
    }
    // A number below zero is for the option to judge: clap would take it for an option of its own.
    let command = command.mut_args(|arg| {
        let is_option = !arg.is_positional() && arg.get_action().takes_values();
        arg.allow_negative_numbers(is_option)
    });
    let Some(page) = PAGES.pages.iter().find(|page| page.path.iter().eq(path.iter())) else { return command };
    let short = short_page(&command, page);
    let command = command.mut_args(|arg| shaped_arg(arg, &page.shown));
    let notes = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string);
    let codes =
        notes.as_ref().is_none_or(|notes| !notes.contains("Exit codes")).then(|| EXIT_CODES.to_owned());
    let long = [Some(examples(page)), Some(machines.to_owned()), notes, codes]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join("\n\n");
    let command = command.after_help(short).after_long_help(long);
    if is_short { command.help_template("{about}\n\n{usage-heading} {usage}{after-help}") } else { command }
}

fn examples(page: &Page) -> String {
    let lines: Vec<String> = page.examples.iter().map(|line| format!("  {line}")).collect();
    format!("Examples:\n{}", lines.join("\n"))
}

/// Returns the short help of a command below its usage: tasks, options, examples.
fn short_page(command: &Command, page: &Page) -> String {
    let is_meant = |arg: &&Arg| {
        let is_own = !arg.is_hide_set() && !is_common(arg) && !MACHINES.contains(&arg.get_id().as_str());
        if page.shown.is_empty() { is_own } else { page.shown.iter().any(|(id, _)| arg.get_id() == *id) }
    };
    let tasks: Vec<_> =
        page.tasks.iter().map(|(task, line)| ((*task).to_owned(), (*line).to_owned())).collect();
    let has_all = page.tasks.is_empty() || !page.shown.is_empty();
    let args = command.get_arguments().filter(is_meant).filter(|_| has_all);
    let args: Vec<_> = args.map(|arg| (name_of(arg), line_of(arg, page))).collect();
    let more = "Everywhere: -t N threads, -q quiet, -v details, --json; --help explains all.".to_owned();
    let parts = [rows(&tasks), rows(&args), examples(page), more];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n\n")
}

/// Returns an option as it is typed: `-o, --output <PATH>`.
fn name_of(arg: &Arg) -> String {
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().map(|long| format!("--{long}"));
    let name = short.into_iter().chain(long).collect::<Vec<_>>().join(", ");
    if !arg.get_action().takes_values() {
        return name;
    }
    let names = arg.get_value_names().unwrap_or_default();
    let values: Vec<String> = names.iter().map(|value| format!("<{value}>")).collect();
    let own = || format!("<{}>", arg.get_id().as_str().to_uppercase());
    let values = if values.is_empty() { own() } else { values.join(" ") };
    let is_list = arg.get_num_args().is_some_and(|range| range.max_values() > 1);
    let more = if is_list { "..." } else { "" };
    format!("{name} {values}{more}").trim_start().to_owned()
}

/// Returns the line of an option: that of the page, or its own text; with its values and its default.
fn line_of(arg: &Arg, page: &Page) -> String {
    let line = page.shown.iter().find(|(id, _)| arg.get_id() == *id).map(|(_, line)| (*line).to_owned());
    let own = || arg.get_help().map(ToString::to_string).unwrap_or_default();
    let mut text = line.unwrap_or_else(own);
    let takes_value = arg.get_action().takes_values();
    let values: Vec<String> =
        arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    if page.shown.is_empty() && takes_value && !values.is_empty() && !arg.is_hide_possible_values_set() {
        let _ = write!(text, ": {}", values.join(", "));
    }
    if let [value] = arg.get_default_values()
        && takes_value
        && !text.contains("[default")
    {
        let _ = write!(text, " [default: {}]", value.display());
    }
    text
}

/// Sets two columns, the second wrapped at the edge of the screen.
fn rows(rows: &[(String, String)]) -> String {
    let width = rows.iter().map(|row| row.0.chars().count()).max().unwrap_or_default();
    let lines = rows.iter().flat_map(|(name, text)| {
        let text = wrapped(text, COLUMNS - width - 4).into_iter().enumerate();
        text.map(move |(at, line)| format!("  {:width$}  {line}", if at == 0 { name } else { "" }))
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Wraps a text into lines of at most `columns` columns.
pub(crate) fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Returns the options of `help machines` that a program has, with the names of the commands that have them.
fn of_machines(program: &Command) -> Vec<(&Arg, Vec<&str>)> {
    let commands: Vec<&Command> = std::iter::once(program).chain(program.get_subcommands()).collect();
    let row = |id: &&str| {
        let own = |command: &&Command| command.get_arguments().any(|arg| arg.get_id() == *id);
        let having: Vec<&Command> = commands.iter().copied().filter(own).collect();
        let arg = having.first()?.get_arguments().find(|arg| arg.get_id() == *id)?;
        Some((arg, having.iter().map(|command| command.get_name()).collect()))
    };
    MACHINES.iter().filter_map(row).collect()
}

/// Returns the page of `help machines`: the options that fit a run to a machine, and the commands that have them.
pub(crate) fn machines(program: &Command) -> String {
    let row = |(arg, commands): (&Arg, Vec<&str>)| {
        let text = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
        let whose = if is_common(arg) {
            "All commands have it.".to_owned()
        } else {
            format!("Of {}.", commands.join(", "))
        };
        (name_of(arg), format!("{}. {whose}", text.trim_end_matches('.')))
    };
    let rows = rows(&of_machines(program).into_iter().map(row).collect::<Vec<_>>());
    format!("Options that fit a run to a machine, or share it among several\n\n{rows}\n")
}

fn is_common(arg: &Arg) -> bool {
    arg.get_help_heading() == Some(COMMON)
}

/// Shapes an option of the long help: one of the page comes before the others, one of machines has its own page.
fn shaped_arg(arg: Arg, shown: &[(&str, &str)]) -> Arg {
    if MACHINES.contains(&arg.get_id().as_str()) {
        return arg.hide_short_help(true).hide_long_help(true);
    }
    let is_shown = shown.iter().any(|(id, _)| arg.get_id() == *id);
    match arg.get_help_heading() {
        Some(COMMON) => arg,
        _ if is_shown => arg.help_heading(None::<&str>),
        None if !shown.is_empty() && !arg.is_positional() => arg.help_heading("More options"),
        _ => arg,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Maximum number of lines of `-h`, and of columns of a line.
    const SCREEN: (usize, usize) = (24, 80);

    fn programs(is_short: bool) -> Vec<Command> {
        use crate::cli::{convert, inspect, quantize, verify};
        let all = [convert::command(), quantize::command(), verify::command(), inspect::command()];
        all.into_iter().map(|command| with_pages(command, is_short).term_width(SCREEN.1)).collect()
    }

    fn all(command: &mut Command, path: &str, is_short: bool, found: &mut Vec<(String, String)>) {
        let path = format!("{path} {}", command.get_name()).trim().to_owned();
        let mut own = command.clone().term_width(SCREEN.1).bin_name(path.clone());
        let text = if is_short { own.render_help() } else { own.render_long_help() };
        found.push((path.clone(), text.to_string()));
        for sub in command.get_subcommands_mut() {
            all(sub, &path, is_short, found);
        }
    }

    fn texts(is_short: bool) -> Vec<(String, String)> {
        let mut found = Vec::new();
        for mut command in programs(is_short) {
            command.build();
            all(&mut command, "", is_short, &mut found);
        }
        found.retain(|(path, ..)| !path.contains(" help"));
        found
    }

    #[test]
    fn the_short_help_of_every_command_fits_a_screen_and_has_an_example() {
        let texts = texts(true);
        let long: Vec<_> = texts.iter().filter(|(_, text)| text.lines().count() > SCREEN.0).collect();
        assert!(long.is_empty(), "{long:#?}");
        for (path, text) in &texts {
            assert!(text.contains("Examples:\n  gguf-"), "{path}\n{text}");
        }
        assert!(texts.len() >= 35, "{} commands", texts.len());
    }

    #[test]
    fn no_line_is_wider_than_a_screen_and_no_default_is_told_twice() {
        let pages =
            programs(false).into_iter().map(|program| (program.get_name().to_owned(), machines(&program)));
        for (path, text) in texts(true).into_iter().chain(texts(false)).chain(pages) {
            for line in text.lines() {
                assert!(line.chars().count() <= SCREEN.1, "{path}: {line}");
                assert!(line.matches("[default").count() <= 1, "{path}: {line}");
            }
        }
    }

    #[test]
    fn the_page_of_a_program_names_every_command() {
        for program in programs(true) {
            let page = PAGES.pages.iter().find(|page| page.path == [program.get_name()]).unwrap();
            let words: Vec<&str> = page.tasks.iter().flat_map(|(_, line)| line.split([' ', ','])).collect();
            for sub in program.get_subcommands() {
                assert!(words.contains(&sub.get_name()), "{}: {}", program.get_name(), sub.get_name());
            }
        }
    }

    #[test]
    fn options_of_machines_have_a_page() {
        let quantize =
            programs(false).into_iter().find(|program| program.get_name() == "gguf-quantize").unwrap();
        let page = machines(&quantize);
        let long = quantize.clone().render_long_help().to_string();
        assert!(long.contains("`gguf-quantize help machines` explains --memory"));
        for option in ["--memory <SIZE>", "--simd <LEVEL>", "--no-sync", "--part <I/N>", "--into <FILE>"] {
            assert!(page.contains(option), "{option}\n{page}");
            let is_line = long.lines().any(|line| line.trim() == option);
            assert!(!is_line, "{option} is on its own page\n{long}");
        }
    }

    #[test]
    fn pages_name_options_that_are_there_and_examples_that_parse() {
        let commands = programs(false);
        for page in &PAGES.pages {
            let [program, subs @ ..] = page.path.as_slice() else { panic!("a page without a program") };
            let mut command = commands.iter().find(|command| command.get_name() == *program).unwrap();
            for sub in subs {
                command = command.get_subcommands().find(|own| own.get_name() == *sub).unwrap();
            }
            for (id, _) in &page.shown {
                assert!(
                    command.get_arguments().any(|arg| arg.get_id() == *id),
                    "{:?}: no option `{id}`",
                    page.path
                );
            }
            assert!(!page.examples.is_empty(), "{:?}", page.path);
            for example in &page.examples {
                let line = example.split(" #").next().unwrap_or_default();
                let line = line.split(" > ").next().unwrap_or_default().replace('\'', "");
                let mut words: Vec<&str> = line.split_ascii_whitespace().collect();
                let program = commands.iter().find(|command| command.get_name() == words[0]).unwrap();
                if words.get(1).is_some_and(|word| word.starts_with("./") && words[0] == "gguf-convert") {
                    words.insert(1, "hf2gguf");
                }
                let words = words.into_iter().map(std::ffi::OsString::from).collect();
                let words = crate::cli::verify::models_first(words);
                let parsed = program.clone().try_get_matches_from(&words);
                assert!(parsed.is_ok(), "{example}: {}", parsed.unwrap_err());
            }
        }
    }
}

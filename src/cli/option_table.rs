//! Tests that the pages in `docs` name every option, and `docs/from-llama-cpp.md` only commands and options that exist.

use std::collections::BTreeSet;

use clap::Command;

use crate::cli::{convert, inspect, quantize, verify};

/// Returns the error in a shell line of the page, such as `gguf-inspect split FILE --output PATH`.
fn fault(line: &str, programs: &[Command]) -> Option<String> {
    let mut words = line.split_whitespace();
    let name = words.next()?;
    let Some(mut command) = programs.iter().find(|program| program.get_name() == name) else {
        return Some(format!("{line}: no program {name}"));
    };
    let mut globals: Vec<&clap::Arg> = Vec::new();
    let mut value = None;
    for word in words {
        if word.starts_with('-') {
            let mut own = command.get_arguments().chain(globals.iter().copied());
            let Some(arg) = own.find(|arg| is_named(arg, word)) else {
                return Some(format!("{line}: no option {word}"));
            };
            value = Some(arg).filter(|arg| arg.get_action().takes_values());
            continue;
        }
        if let Some(arg) = value.take() {
            let choices = arg.get_possible_values();
            // Names for completion are not all values that are accepted.
            let is_choice = choices.is_empty()
                || arg.is_hide_possible_values_set()
                || choices.iter().any(|choice| choice.matches(word, true));
            if !is_choice {
                return Some(format!("{line}: {word} is no value of --{}", arg.get_id()));
            }
            continue;
        }
        match command.find_subcommand(word) {
            Some(child) => {
                globals.extend(command.get_arguments().filter(|arg| arg.is_global_set()));
                command = child;
            }
            // Placeholders are in capitals. Keys and file names contain a dot or a slash.
            None if word.chars().all(|c| !c.is_lowercase()) || word.contains(['.', '/', '=']) => {}
            None if command
                .get_positionals()
                .any(|arg| arg.get_possible_values().iter().any(|choice| choice.matches(word, true))) => {}
            None => return Some(format!("{line}: {word} is no command")),
        }
    }
    None
}

fn is_named(arg: &clap::Arg, word: &str) -> bool {
    if let Some(long) = word.strip_prefix("--") {
        let aliases = arg.get_all_aliases().unwrap_or_default();
        return arg.get_long() == Some(long) || aliases.contains(&long);
    }
    word.strip_prefix('-').is_some_and(|short| arg.get_short().is_some_and(|own| short == own.to_string()))
}

/// Collects the long names of the options of a command and of its commands.
fn options(command: &Command, found: &mut BTreeSet<String>) {
    let own = command.get_arguments().filter(|arg| !arg.is_positional() && !arg.is_hide_set());
    found.extend(own.filter_map(|arg| arg.get_long()).map(|long| format!("--{long}")));
    command.get_subcommands().for_each(|child| options(child, found));
}

#[test]
fn the_pages_name_every_option() {
    let mut text = String::new();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/docs");
    for entry in fs_err::read_dir(folder).unwrap() {
        text += &fs_err::read_to_string(entry.unwrap().path()).unwrap();
    }
    let named: BTreeSet<&str> = text
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'))
        .filter(|w| w.starts_with("--"))
        .collect();
    let mut found = BTreeSet::new();
    for program in [convert::command(), quantize::command(), verify::command(), inspect::command()] {
        options(&program, &mut found);
    }
    assert!(found.len() > 120, "{}", found.len());
    let missing: Vec<_> = found.iter().filter(|option| !named.contains(option.as_str())).collect();
    assert!(missing.is_empty(), "no page in docs names: {missing:?}");
}

#[test]
fn what_the_page_names_is_there() {
    let programs = [convert::command(), quantize::command(), verify::command(), inspect::command()];
    let page = include_str!("../../docs/from-llama-cpp.md");
    // clap adds help and version only when a program is run.
    let made = ["gguf-verify --help", "gguf-verify --version"];
    let lines = page.split('`').skip(1).step_by(2).filter(|text| text.starts_with("gguf-"));
    let lines: Vec<&str> = lines.filter(|line| !made.contains(line)).collect();
    assert!(lines.len() > 90, "{}", lines.len());
    let faults: Vec<_> = lines.iter().filter_map(|line| fault(line, &programs)).collect();
    assert!(faults.is_empty(), "{faults:#?}");
    for (line, expected) in [
        ("gguf-inspect split --no-such", "no option --no-such"),
        ("gguf-inspect splat FILE", "splat is no command"),
        ("gguf-inspekt FILE", "no program gguf-inspekt"),
        ("gguf-convert endian --to middle", "middle is no value of --to"),
        ("gguf-verify -x", "no option -x"),
    ] {
        assert!(fault(line, &programs).is_some_and(|text| text.ends_with(expected)), "{line}");
    }
}

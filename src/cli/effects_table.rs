//! Test of the table that shows the effect of each option.

use std::collections::BTreeSet;
use std::path::Path;

/// Options of every command, each with one line in all.
const COMMON: &[&str] = &["--verbose", "--json", "--quiet", "--threads", "--simd", "--memory", "--progress"];

/// Options of every command that the table leaves out, with the reason.
const UNSEEN: &[&str] = &["--no-progress", "--no-sync"];

/// Collects every option: the program and its command, then the option by its long name.
fn options(command: &clap::Command, name: &str, found: &mut BTreeSet<(String, String)>) {
    for arg in command.get_arguments().filter(|arg| !arg.is_positional() && !arg.is_hide_set()) {
        let long = arg.get_long().map(|long| format!("--{long}"));
        let option = long.or_else(|| arg.get_short().map(|short| format!("-{short}")));
        let option = option.filter(|option| ![COMMON, UNSEEN].concat().contains(&option.as_str()));
        found.extend(option.map(|option| (name.to_owned(), option)));
    }
    for child in command.get_subcommands() {
        options(child, &format!("{name} {}", child.get_name()), found);
    }
}

/// Commands that a word in the first column of the table stands for.
fn commands(who: &str) -> Vec<&str> {
    match who {
        "HF" => vec!["gguf-convert hf2gguf"],
        "TO_GGUF" => vec![
            "gguf-convert hf2gguf",
            "gguf-convert msmodelslim2gguf",
            "gguf-convert flm2gguf",
            "gguf-convert merge-lora",
        ],
        "TINY" => vec![
            "gguf-convert hf2gguf",
            "gguf-convert msmodelslim2gguf",
            "gguf-convert merge-lora",
            "gguf-quantize",
        ],
        "QUANTIZE" => [commands("TO_GGUF"), vec!["gguf-quantize"]].concat(),
        "EDIT" => vec![
            "gguf-inspect set",
            "gguf-inspect remove",
            "gguf-inspect rename",
            "gguf-inspect drop",
            "gguf-inspect template",
        ],
        one => vec![one],
    }
}

/// Returns true if a module of `tests/it` names an option: with its dashes, or as the library does.
fn names(module: &str, option: &str) -> bool {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join("it").join(module.replace("::", "/"));
    let mut files = ["rs", "toml"].map(|ending| path.with_extension(ending)).to_vec();
    files.extend(fs_err::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()));
    let text: String = files.iter().filter_map(|file| fs_err::read_to_string(file).ok()).collect();
    [option, option.trim_start_matches('-')].iter().any(|name| text.contains(name))
}

/// An integration test of the deep tier runs each line; a new option without a line fails here.
#[test]
fn every_option_has_a_line_that_shows_its_effect() {
    use crate::cli::{convert, inspect, quantize, verify};
    let mut found = BTreeSet::new();
    for program in [convert::command(), quantize::command(), verify::command(), inspect::command()] {
        options(&program, program.get_name(), &mut found);
    }
    assert!(found.len() > 400, "{}", found.len());
    let table = include_str!("../../tests/it/cli/effects/options.txt");
    let lines = table.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let (mut listed, mut common) = (BTreeSet::new(), BTreeSet::new());
    for line in lines {
        let columns: Vec<&str> = line.splitn(5, '|').map(str::trim).collect();
        if let Some(module) = columns[4].strip_prefix("elsewhere ") {
            assert!(names(module, columns[1]), "{line}: the tests of {module} do not name the option");
        }
        if COMMON.contains(&columns[1]) {
            common.insert(columns[1]);
            continue;
        }
        let own = commands(columns[0]).into_iter();
        listed.extend(own.map(|command| (command.to_owned(), columns[1].to_owned())));
    }
    assert!(COMMON.iter().all(|option| common.contains(option)), "{common:?}");
    let missing: Vec<_> = found.difference(&listed).collect();
    assert!(missing.is_empty(), "not in the table: {missing:#?}");
    let stale: Vec<_> = listed.difference(&found).filter(|_| cfg!(feature = "remote")).collect();
    assert!(stale.is_empty(), "in the table without an option: {stale:#?}");
}

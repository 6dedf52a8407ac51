//! What commands print, and what they do to the files of their directory.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;

use super::Case;
use crate::support::programs::{command, finish};
use crate::support::{files, root};

/// What differs between machines and runs, and what is written in its place.
static VOLATILE: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    [
        (r"\d+\.\d+ s(, | \()[\d. ]+ [KMG]?B/s", "TIME${1}SPEED"),
        (r"(?m)^gguf-(\w+) \d+\.\d+\.\d+.*$", "gguf-${1} VERSION"),
        ("(?m)^vector instructions: .*$", "vector instructions: LEVEL"),
        (r#""(seconds|mb_per_second|tokens_per_second)": [\d.e-]+"#, r#""${1}": FIGURE"#),
        // An escape of a terminal.
        ("\u{1b}", "␛"),
    ]
    .map(|(pattern, text)| (Regex::new(pattern).unwrap(), text))
    .into()
});

/// Runs the commands of a case in a directory.
pub fn of(case: &Case, dir: &Path) -> String {
    let own: Vec<(Regex, &str)> =
        case.redact.iter().map(|(pattern, text)| (Regex::new(pattern).unwrap(), text.as_str())).collect();
    let mut text = String::new();
    let mut before = contents(dir);
    for line in case.run.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let printed = run(dir, line);
        let after = contents(dir);
        let printed = [&VOLATILE[..], &own]
            .concat()
            .iter()
            .fold(printed, |printed, (pattern, text)| pattern.replace_all(&printed, *text).into_owned());
        write!(text, "$ {line}\n{printed}{}\n", changes(&before, &after)).unwrap();
        before = after;
    }
    text
}

/// Runs a command; standard error is marked with `!`.
fn run(dir: &Path, line: &str) -> String {
    let mut words = words(line);
    let n_variables = words.iter().take_while(|word| !word.starts_with("gguf-")).count();
    let variables: Vec<String> = words.drain(..n_variables).collect();
    let into = words.iter().position(|word| word == ">").map(|at| words.drain(at..).nth(1).unwrap());
    let mut command = command(&words[0], dir);
    for variable in ["COLUMNS", "NO_COLOR", "CLICOLOR_FORCE", "RUST_BACKTRACE"] {
        command.env_remove(variable);
    }
    command.envs(variables.iter().filter_map(|variable| variable.split_once('=')));
    let ended = finish(command.args(&words[1..]));
    let code = ended.code();
    let plain = |text: &str| {
        let canonical = dir.canonicalize().unwrap();
        [canonical.to_str(), dir.to_str()]
            .into_iter()
            .flatten()
            .fold(text.to_owned(), |text, dir| text.replace(dir, "DIR"))
            .replace(root().to_str().unwrap(), "ROOT")
    };
    let mut printed = match into {
        Some(name) => {
            fs_err::write(dir.join(name), &ended.out).unwrap();
            String::new()
        }
        None => plain(&ended.out),
    };
    if !printed.is_empty() && !printed.ends_with('\n') {
        printed.push_str("(no end of line)\n");
    }
    plain(&ended.err).lines().for_each(|line| writeln!(printed, "! {line}").unwrap());
    if code != 0 {
        writeln!(printed, "exit {code}").unwrap();
    }
    printed
}

/// Words of a command line: between spaces, or between single quotes.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for (at, piece) in line.split('\'').enumerate() {
        if at % 2 == 1 {
            words.last_mut().unwrap().push_str(piece);
            continue;
        }
        for (at, piece) in piece.split(' ').enumerate() {
            if at > 0 {
                words.push(String::new());
            }
            words.last_mut().unwrap().push_str(piece);
        }
    }
    words.retain(|word| !word.is_empty());
    let root = root().to_str().unwrap();
    words.iter().map(|word| word.replace("ROOT", root)).collect()
}

/// Files of a directory, by their paths in it.
fn contents(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let name = |path: &Path| path.strip_prefix(dir).unwrap().to_str().unwrap().to_owned();
    files::below(dir).into_iter().map(|path| (name(&path), fs_err::read(&path).unwrap())).collect()
}

/// Lines about the files that a command made, changed or removed.
fn changes(before: &BTreeMap<String, Vec<u8>>, after: &BTreeMap<String, Vec<u8>>) -> String {
    let mut lines = String::new();
    for (name, bytes) in after {
        let what = match before.get(name) {
            None => "new",
            Some(old) if old != bytes => "changed",
            Some(_) => continue,
        };
        let twin = before.iter().find(|(_, old)| *old == bytes);
        let twin = twin.map_or_else(String::new, |(twin, _)| format!(", equal to {twin}"));
        writeln!(lines, "{what}: {name}{twin}").unwrap();
    }
    for name in before.keys().filter(|name| !after.contains_key(*name)) {
        writeln!(lines, "gone: {name}").unwrap();
    }
    lines
}

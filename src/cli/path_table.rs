//! Test of the table that declares each path of the command lines as input or output.

use std::path::PathBuf;

/// Collects every argument that is a path: the program and its command, then the option.
fn paths(command: &clap::Command, name: &str, found: &mut Vec<String>) {
    for argument in command.get_arguments() {
        if argument.get_value_parser().type_id() == std::any::TypeId::of::<PathBuf>() {
            found.push(format!("{name} {}", argument.get_id()));
        }
    }
    for child in command.get_subcommands() {
        paths(child, &format!("{name} {}", child.get_name()), found);
    }
}

/// The table declares each as input or output, and an integration test tries every output over every input. A new
/// option without a line fails here; a line without a trial fails there.
#[test]
fn every_path_is_in_the_table_of_inputs_and_outputs() {
    use crate::cli::{convert, inspect, quantize, verify};
    let mut found = Vec::new();
    for program in [convert::command(), quantize::command(), verify::command(), inspect::command()] {
        paths(&program, program.get_name(), &mut found);
    }
    let table = include_str!("../../tests/it/cli/guards/paths.txt");
    let lines = table.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let lines = lines.filter(|line| cfg!(feature = "remote") || !line.ends_with(" cache: input, added to"));
    let listed: Vec<_> = lines.filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim()).collect();
    assert!(found.len() > 50, "{found:?}");
    let missing: Vec<_> = found.iter().filter(|name| !listed.contains(&name.as_str())).collect();
    assert!(missing.is_empty(), "not in the table: {missing:#?}");
    // clap does not parse this as a path, although it may name a file.
    let texts = ["gguf-inspect set assignments"];
    let stale: Vec<_> =
        listed.iter().filter(|name| !texts.contains(name) && found.iter().all(|own| own != *name)).collect();
    assert!(stale.is_empty(), "in the table without an option: {stale:#?}");
}

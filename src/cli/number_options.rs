//! Test that every option that takes a number with a fraction refuses NaN and infinity: a limit of NaN is never missed.

use std::any::TypeId;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Arg, Command};

use crate::cli::{convert, inspect, quantize, verify};

const NO_NUMBERS: [&str; 8] = ["nan", "NaN", "-nan", "inf", "-inf", "infinity", "1e999", "-1e999"];

/// Returns true if an option takes text as it is.
fn takes_any_text(arg: &Arg) -> bool {
    let parsed = arg.get_value_parser().type_id();
    [TypeId::of::<String>(), TypeId::of::<PathBuf>(), TypeId::of::<OsString>()].iter().any(|ty| parsed == *ty)
}

/// Returns true if the option's own parser accepts a text, independently of other options.
fn accepts(arg: &Arg, text: &str) -> bool {
    let probe = Arg::new("probe").long("probe").value_parser(arg.get_value_parser().clone());
    Command::new("test").arg(probe).try_get_matches_from(["test", &format!("--probe={text}")]).is_ok()
}

/// Collects options that take numbers with fractions, and texts that an option should refuse.
fn check(command: &Command, found: &mut Vec<String>, bad: &mut Vec<String>) {
    for child in command.get_subcommands() {
        check(child, found, bad);
    }
    for arg in command.get_arguments().filter(|arg| arg.get_action().takes_values() && !takes_any_text(arg)) {
        let name = format!("{} --{}", command.get_name(), arg.get_id());
        let parsed = arg.get_value_parser().type_id();
        if parsed == TypeId::of::<f64>() || parsed == TypeId::of::<f32>() {
            found.push(name.clone());
        }
        let taken = NO_NUMBERS.iter().filter(|text| accepts(arg, text));
        bad.extend(taken.map(|text| format!("{name} takes `{text}`")));
    }
}

#[test]
fn no_option_takes_nan_or_infinity() {
    let (mut found, mut bad) = (Vec::new(), Vec::new());
    for mut program in [convert::command(), quantize::command(), verify::command(), inspect::command()] {
        program.build();
        check(&program, &mut found, &mut bad);
    }
    assert_eq!(bad, [""; 0]);
    for option in ["max-ppl", "max-ppl-increase", "max-kld", "max-kld-99", "min-top1"] {
        assert!(found.iter().any(|name| *name == format!("gguf-verify --{option}")), "{option}: {found:?}");
    }
}

#[test]
fn an_option_with_a_plain_number_would_be_found() {
    let command =
        Command::new("x").arg(Arg::new("limit").long("limit").value_parser(clap::value_parser!(f64)));
    let (mut found, mut bad) = (Vec::new(), Vec::new());
    check(&command, &mut found, &mut bad);
    assert_eq!((found.len(), bad.len()), (1, NO_NUMBERS.len()));
}

#[test]
fn senseless_signs_are_refused() {
    use crate::cli::{amount, finite, share};
    assert_eq!((amount("0"), amount("12.5"), finite("-0.01")), (Ok(0.0), Ok(12.5), Ok(-0.01)));
    assert!(amount("-1").is_err() && amount("-0.5").is_err());
    assert_eq!((share("0.99"), share("1")), (Ok(0.99), Ok(1.0)));
    assert!(share("1.01").is_err() && share("99").is_err() && share("-0.1").is_err());
}

//! Names of file types on the command line, for shell completion. Names are resolved where they are used: numbers,
//! aliases and any case are accepted, too.

use std::ffi::OsStr;
use std::sync::LazyLock;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, Command};

use crate::gguf::FileType;

/// Names in lower case, as people type them.
static NAMES: LazyLock<Vec<String>> =
    LazyLock::new(|| FileType::all().map(|file_type| file_type.name().to_lowercase()).collect());

/// Parser for the name of a file type. Its field holds further words that the option accepts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TypeNames(pub(crate) &'static [&'static str]);

impl TypedValueParser for TypeNames {
    type Value = String;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let names = NAMES.iter().map(String::as_str);
        Some(Box::new(self.0.iter().copied().chain(names).map(PossibleValue::new)))
    }
}

//! `gguf-inspect get`: prints the value of a key.

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use crate::cli::Session;
use crate::cli::remote::open_header;
use crate::core::similar::nearest;
use crate::core::text::escape_bytes;
use crate::gguf::{Array, OpenOptions};
use crate::inspect::{EditError, TypedValue, value_plain};

/// Arguments of `get`.
#[derive(Debug, Args)]
pub(super) struct GetArgs {
    /// File, or any part of a split model
    file: PathBuf,
    key: String,
}

#[derive(Serialize)]
struct KeyReport<'a> {
    #[serde(flatten)]
    typed: TypedValue<'a>,
    /// The key.
    key: &'a str,
    /// Number of elements of an array.
    #[serde(rename = "length", skip_serializing_if = "Option::is_none")]
    n_elems: Option<usize>,
}

impl GetArgs {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<()> {
        let file = open_header(session, &self.file, &OpenOptions::foreign())?;
        let nearest = || nearest(&self.key, file.metadata().iter().map(|(key, _)| key)).map(str::to_owned);
        let no_key =
            || EditError::NoKey { path: file.path().to_owned(), key: self.key.clone(), nearest: nearest() };
        let value = file.metadata().get(&self.key).ok_or_else(no_key)?;
        if session.common.json {
            let (n_elems, typed) = (value.as_array().map(Array::len), TypedValue::whole(value));
            return session.print_json(&KeyReport { typed, key: &self.key, n_elems });
        }
        let mut bytes = value_plain(value);
        bytes.push(b'\n');
        print_bytes(&bytes, session)
    }
}

/// Prints bytes of a file unchanged; on a terminal with control characters escaped.
pub(super) fn print_bytes(bytes: &[u8], session: &Session) -> anyhow::Result<()> {
    if !std::io::stdout().is_terminal() {
        return session.print(|out| out.write_all(bytes));
    }
    let lines: Vec<String> = bytes.split(|&byte| byte == b'\n').map(escape_bytes).collect();
    session.print(|out| writeln!(out, "{}", lines.join("\n").trim_end_matches('\n')))
}

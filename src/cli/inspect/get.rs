//! `gguf-inspect get`: prints the value of a key.

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::Args;

use crate::cli::Session;
use crate::cli::remote::open_header;
use crate::core::similar::nearest;
use crate::core::text::escape_bytes;
use crate::gguf::{OpenOptions, Value};
use crate::inspect::{EditError, typed_json, value_plain};

/// Arguments of `get`.
#[derive(Debug, Args)]
pub(super) struct GetArgs {
    /// File, or any part of a split model
    file: PathBuf,
    /// Key
    key: String,
}

impl GetArgs {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<()> {
        let file = open_header(session, &self.file, &OpenOptions::foreign())?;
        let nearest = || nearest(&self.key, file.metadata().iter().map(|(key, _)| key)).map(str::to_owned);
        let no_key =
            || EditError::NoKey { path: file.path().to_owned(), key: self.key.clone(), nearest: nearest() };
        let value = file.metadata().get(&self.key).ok_or_else(no_key)?;
        if session.common.json {
            let mut document = typed_json(value);
            document["key"] = self.key.clone().into();
            if let Value::Array(array) = value {
                document["length"] = array.len().into();
            }
            return session.print_json(&document);
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

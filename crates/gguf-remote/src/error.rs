//! Errors of checkpoints on servers.

use std::io;
use std::path::{Path, PathBuf};

use crate::address::AddressError;
use gguf_core::Hint;
use gguf_core::text::escape;

pub(crate) type Result<T, E = RemoteError> = std::result::Result<T, E>;

/// Use of the token in a request that was denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenUse {
    /// No token is available.
    None,
    /// A web server needs no token.
    Web,
    /// The token was sent.
    Sent,
    /// The token was withheld: the address is not that of the hub, or its connection is not encrypted.
    Withheld,
}

/// Reasons why a checkpoint could not be read from a server. Addresses omit their queries, which may carry signatures.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum RemoteError {
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{}: no temporary directory can be made there: {error}", place.display())]
    Scratch { place: PathBuf, error: io::Error },
    #[error("{address}: not found on {host}{}", server_code.as_ref().map_or(String::new(), |code| format!(" ({})", escape(code))))]
    NoCheckpoint { address: String, host: String, server_code: Option<String> },
    #[error("{address}: {}", name.as_ref().map_or("a file of it is wanted".to_owned(), |name| format!("there is no `{}`", escape(name))))]
    NoFile { address: String, name: Option<String>, kind: &'static str, names: Vec<String>, n_more: usize },
    #[error("{url}: not found")]
    NotFound { url: String },
    #[error("{url}: access denied (status {status}{})", server_code.as_ref().map_or(String::new(), |code| format!(", {}", escape(code))))]
    Denied { url: String, status: u16, token: TokenUse, server_code: Option<String> },
    #[error("{url}: status {status}{}", after(*attempts))]
    Status { url: String, status: u16, attempts: u32 },
    #[error("{url}: {reason}{}", after(*attempts))]
    Connection { url: String, reason: String, attempts: u32 },
    #[error("{url}: the server sends whole files only, not ranges of bytes")]
    NoRanges { url: String },
    #[error("{url}: the server sends the file compressed (`Content-Encoding: {found}`), `identity` expected")]
    Encoded { url: String, found: String },
    #[error("{url}: the file changed while it was read: {what} was {expected}, is {found}")]
    Changed { url: String, what: &'static str, expected: String, found: String },
    #[error("{file}: {what} {expected} expected, found {found}")]
    Digest { file: String, what: &'static str, expected: String, found: String },
    #[error("{url}: no list of files: {reason}")]
    Listing { url: String, reason: String },
    #[error(
        "{url}: file name `{}`: it leads out of the directory, or holds what no name should",
        escape(name)
    )]
    Name { url: String, name: String },
    #[error("{url}: {what}: {found}, at most {limit} allowed")]
    TooMuch { url: String, what: &'static str, found: u64, limit: u64 },
    #[error("{url}: {reason}")]
    Redirect { url: String, reason: &'static str },
    #[error("{address}: `HF_HUB_OFFLINE` is set, and {}", offline(cache.as_deref(), missing.as_deref()))]
    Offline { address: String, cache: Option<PathBuf>, missing: Option<String> },
    #[error("this processor lacks `{missing}`, which encrypted connections need here")]
    Processor { missing: &'static str },
    #[error("stopped")]
    Cancelled,
}

fn after(attempts: u32) -> String {
    if attempts > 1 { format!(", after {attempts} attempts") } else { String::new() }
}

fn offline(cache: Option<&Path>, missing: Option<&str>) -> String {
    match (cache, missing) {
        (None, _) => "there is no `--cache` that has it".to_owned(),
        (Some(cache), None) => format!("{} does not have it, or not all of it", cache.display()),
        (Some(cache), Some(name)) => {
            format!("of it {} does not have `{}`, or with other bytes", cache.display(), escape(name))
        }
    }
}

impl Hint for RemoteError {
    fn hints(&self) -> Vec<String> {
        if let Self::NoFile { address, kind, names, n_more, .. } = self {
            let Some(first) = names.first() else { return vec![format!("{address} has no {kind}")] };
            let listed: Vec<_> = names.iter().map(|name| escape(name)).collect();
            let more = if *n_more > 0 { format!(" and {n_more} more") } else { String::new() };
            let first = escape(first);
            return vec![format!(
                "it has {}{more}: name one, such as `{address}/{first}`",
                listed.join(", ")
            )];
        }
        let token = "set `HF_TOKEN`, or log in with `hf auth login`, which leaves a token file";
        let hint = match self {
            Self::NoCheckpoint { .. } => {
                "there is no directory of this name here either; check the spelling, and for a private model that \
                 `HF_TOKEN` is set"
            }
            Self::Denied { token: TokenUse::None, .. } => token,
            Self::Denied { token: TokenUse::Web, .. } => {
                "this server wants to know who asks, which is not told to it: fetch the files with another program and \
                 name their directory"
            }
            Self::Denied { token: TokenUse::Sent, .. } => {
                "the token is not accepted for this model: ask for access on the model's page, or use a token that may \
                 read it"
            }
            Self::Denied { token: TokenUse::Withheld, .. } => {
                "a token goes to the hub's own address over an encrypted connection only (`HF_ENDPOINT`)"
            }
            Self::Scratch { .. } => {
                "it holds the small files of the checkpoint; `TMPDIR` (on Windows `TMP`) names another place for it"
            }
            Self::Status { .. } | Self::Connection { .. } => {
                "try again later; where a command takes --cache, what has come stays there and the rest is fetched"
            }
            Self::NoRanges { .. } => "give `--cache DIR`: it fetches the files whole and keeps them",
            Self::Encoded { .. } => {
                "turn the compression of the server or its proxy off for these files, or fetch them with another program"
            }
            Self::Changed { .. } => "start again: the plan was made of other files than are there now",
            Self::Digest { .. } => "start again; if it stays so, the file on the server is damaged",
            Self::Processor { .. } => {
                "fetch the files with another program (`hf download ORG/NAME --local-dir DIR`) and convert the directory"
            }
            Self::Offline { .. } => {
                "unset `HF_HUB_OFFLINE`, so that what is missing is fetched, or name a directory that is here"
            }
            _ => return Vec::new(),
        };
        vec![hint.to_owned()]
    }
}

impl From<RemoteError> for io::Error {
    /// Converts the error; its kind distinguishes a cancellation from a failure.
    fn from(error: RemoteError) -> Self {
        match error {
            RemoteError::Io(error) => error,
            RemoteError::Cancelled => Self::new(io::ErrorKind::Interrupted, error),
            error => Self::other(error),
        }
    }
}

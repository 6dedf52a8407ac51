//! Kinds of files that addresses name by themselves.

use crate::address::Address;
use crate::error::RemoteError;

/// Maximum number of files that a message lists.
const MAX_LISTED: usize = 8;

/// Kind of a file that an address names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileKind {
    /// Name suffixes, in lower case.
    suffixes: &'static [&'static str],
    /// Words for such files in messages.
    words: &'static str,
    /// Description of an address on the hub.
    pub(super) form: &'static str,
}

pub(super) const GGUF: FileKind = FileKind {
    suffixes: &[".gguf"],
    words: "GGUF files",
    form: "`hf://ORG/NAME/FILE.gguf` or `hf://ORG/NAME@REVISION/FILE.gguf` expected",
};
pub(super) const WEIGHTS: FileKind = FileKind {
    suffixes: &[".safetensors", ".ckpt", ".pt", ".pth"],
    words: "files of weights",
    form: "`hf://ORG/NAME/FILE.safetensors` or `hf://ORG/NAME@REVISION/FILE.safetensors` expected",
};

impl FileKind {
    pub(super) fn has(self, name: &str) -> bool {
        let lower = name.to_ascii_lowercase();
        self.suffixes.iter().any(|suffix| lower.ends_with(suffix))
    }

    /// Error for a file that is not among the files of a repository, or that has to be named; it lists those that exist.
    pub(super) fn missing<'a>(
        self,
        address: &Address,
        name: Option<&str>,
        existing: impl Iterator<Item = &'a str>,
    ) -> RemoteError {
        let mut names: Vec<String> = existing.filter(|name| self.has(name)).map(str::to_owned).collect();
        let n_more = names.len().saturating_sub(MAX_LISTED);
        names.truncate(MAX_LISTED);
        let (address, name) = (address.to_string(), name.map(str::to_owned));
        RemoteError::NoFile { address, name, kind: self.words, names, n_more }
    }
}

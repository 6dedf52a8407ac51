//! Single files on a server that are read by ranges: GGUF files whose header is needed, and weights of a repository that
//! has several models.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::{fmt, io};

use url::Url;

use crate::address::{Address, AddressError, HUB_HOSTS, shown, web_url};
use crate::client::Client;
use crate::error::RemoteError;
use crate::kind::{FileKind, GGUF, WEIGHTS};
use crate::listing::{below, decoded, is_inside, of_hub};
use crate::target::RequestTarget;
use crate::{RemoteOptions, Result, client_for, endpoint};
use gguf_core::ranged::{self, RangedDirectory, RangedFile};
use gguf_core::sync::Unpoisoned;
use gguf_core::text::escape;

/// Maximum number of bytes that are fetched again from a server without ranges.
const MOST_SKIPPED: u64 = 64 << 20;

/// Location of a remote file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileAddress {
    pub(super) directory: Address,
    /// Path below the directory, with slashes.
    pub(super) name: String,
    /// Query of a web address, such as the signature of a link; never shown.
    pub(super) query: Option<String>,
}

impl FileAddress {
    /// Parses the address of a file. `None` for a text that can only be a path: an address ends in `.gguf` and has a
    /// scheme (`hf://`, `https://`, `http://`) or the form `org/name[@revision]/file.gguf`.
    ///
    /// # Errors
    /// An address with a part that is missing or not allowed.
    pub fn parse(text: &str) -> Result<Option<Self>, AddressError> {
        Self::of_kind(text, GGUF)
    }

    /// Parses the address of a file of weights (`.safetensors`, `.ckpt`, `.pt`, `.pth`), as [`FileAddress::parse`].
    ///
    /// # Errors
    /// An address with a part that is missing or not allowed.
    pub fn parse_weights(text: &str) -> Result<Option<Self>, AddressError> {
        Self::of_kind(text, WEIGHTS)
    }

    fn of_kind(text: &str, kind: FileKind) -> Result<Option<Self>, AddressError> {
        let fail = |problem| Err(AddressError { text: text.to_owned(), problem });
        if text.starts_with("https://") || text.starts_with("http://") {
            return Self::of_web(&web_url(text)?, kind);
        }
        if !kind.has(text) {
            return Ok(None);
        }
        if text.starts_with("s3://") {
            Address::parse(text)?;
        }
        let plain = text.strip_prefix("hf://");
        match Self::of_hub(&plain.unwrap_or(text).split('/').collect::<Vec<_>>()) {
            None if plain.is_some() => fail(kind.form),
            found => Ok(found),
        }
    }

    fn new(directory: Address, name: &str) -> Self {
        Self { directory, name: name.to_owned(), query: None }
    }

    /// Parses `org/name[@revision]/file`, where a revision like `refs/pr/1` has three parts.
    fn of_hub(parts: &[&str]) -> Option<Self> {
        let n_more = parts.get(1).map_or(0, |name| if name.ends_with("@refs") { 2 } else { 0 });
        let (repository, name) = parts.split_at_checked(2 + n_more)?;
        let Ok(Some(directory @ Address::Hub { .. })) = Address::parse(&repository.join("/")) else {
            return None;
        };
        let name = name.join("/");
        is_inside(&name).then(|| Self::new(directory, &name))
    }

    fn of_web(url: &Url, kind: FileKind) -> Result<Option<Self>, AddressError> {
        let fail = |problem| Err(AddressError { text: shown(url), problem });
        let parts: Vec<String> = url
            .path_segments()
            .map(|parts| parts.filter_map(decoded).filter(|part| !part.is_empty()).collect())
            .unwrap_or_default();
        let Some(name) = parts.last().filter(|name| kind.has(name) && is_inside(name)) else {
            return Ok(None);
        };
        if url.host_str().is_some_and(|host| HUB_HOSTS.contains(&host)) {
            // Addresses copied from a browser.
            let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
            let found = match parts[..] {
                [org, name, "resolve" | "blob" | "raw", ref rest @ ..] if rest.len() >= 2 => {
                    let name = format!("{name}@{}", rest[0]);
                    Self::of_hub(&[&[org, name.as_str()], &rest[1..]].concat())
                }
                _ => None,
            };
            return match found {
                Some(found) => Ok(Some(found)),
                None => fail(
                    "the address of a file expected: `https://huggingface.co/ORG/NAME/resolve/main/FILE`",
                ),
            };
        }
        let mut directory = url.clone();
        directory.set_query(None);
        directory.set_fragment(None);
        if let Ok(mut path) = directory.path_segments_mut() {
            path.pop().push("");
        }
        let query = url.query().map(str::to_owned);
        Ok(Some(Self { directory: Address::Web(directory), name: name.clone(), query }))
    }
}

impl fmt::Display for FileAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.directory.to_string().trim_end_matches('/'), escape(&self.name))
    }
}

/// A remote file that is readable under [`RemoteFile::path`] as long as this value exists, like the files in its
/// directory.
#[derive(Debug)]
pub struct RemoteFile {
    path: PathBuf,
    _known: ranged::Registration,
}

impl RemoteFile {
    /// Opens a file.
    pub fn open(address: &FileAddress, options: &RemoteOptions) -> Result<Self> {
        let shown = address.directory.to_string().trim_end_matches('/').to_owned();
        let root = match &address.directory {
            Address::Hub { repository, revision } => {
                let parts = repository.split('/').chain(["resolve", revision]).collect::<Vec<_>>();
                below(&endpoint()?, &parts)
            }
            Address::Web(url) => url.clone(),
        };
        let client = client_for(&address.directory, options)?;
        let directory = ServerDirectory { client, root, files: Mutex::default() };
        let found = directory.ask(&address.name, address.query.as_deref())?;
        let Some(found) = found else {
            let name = Some(address.name.as_str());
            return Err(match no_file(&directory.client, &address.directory, name, GGUF) {
                RemoteError::NotFound { .. } => RemoteError::NotFound { url: address.to_string() },
                error => error,
            });
        };
        directory.keep(Path::new(&address.name), Some(Arc::new(found)));
        let path = PathBuf::from(format!("{shown}/{}", address.name));
        let known = ranged::register(Path::new(&shown), &shown, Arc::new(directory));
        Ok(Self { path, _known: known })
    }

    /// Returns the error for a repository without a file name; it lists the files that exist.
    pub fn names(repository: &Address, options: &RemoteOptions) -> RemoteError {
        match client_for(repository, options) {
            Ok(client) => no_file(&client, repository, None, GGUF),
            Err(error) => error,
        }
    }

    /// Returns the names of all files of a repository of the hub.
    ///
    /// # Errors
    /// [`RemoteError`]; an address that is no repository.
    pub fn list(repository: &Address, options: &RemoteOptions) -> Result<Vec<String>> {
        let Address::Hub { repository: name, revision } = repository else {
            return Err(RemoteError::NotFound { url: repository.to_string() });
        };
        let client = client_for(repository, options)?;
        let listing = of_hub(&client, &endpoint()?, name, revision)?;
        Ok(listing.entries.into_iter().map(|entry| entry.name).collect())
    }

    /// Path for readers and messages.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Returns the error for a file that a repository lacks; it lists the files that exist.
fn no_file(client: &Client, address: &Address, name: Option<&str>, kind: FileKind) -> RemoteError {
    let listing = match address {
        Address::Hub { repository, revision } => {
            endpoint().and_then(|endpoint| of_hub(client, &endpoint, repository, revision))
        }
        Address::Web(_) => return RemoteError::NotFound { url: address.to_string() },
    };
    let entries = match listing {
        Ok(listing) => listing.entries,
        Err(error) => return error,
    };
    kind.missing(address, name, entries.iter().map(|entry| entry.name.as_str()))
}

/// Files that were requested of a directory on a server.
struct ServerDirectory {
    client: Arc<Client>,
    /// Address of the directory.
    root: Url,
    /// Files by name; `None` for a file that does not exist.
    files: Mutex<HashMap<PathBuf, Option<Arc<dyn RangedFile>>>>,
}

impl fmt::Debug for ServerDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerDirectory").finish_non_exhaustive()
    }
}

impl ServerDirectory {
    /// Requests the file with a name, if it exists.
    fn ask(&self, name: &str, query: Option<&str>) -> Result<Option<ServerFile>> {
        let mut url = below(&self.root, &name.split('/').collect::<Vec<_>>());
        url.set_query(query);
        let target = RequestTarget::new(url, None);
        let n_bytes = self.client.n_bytes(&target)?;
        Ok(n_bytes.map(|n_bytes| ServerFile { client: Arc::clone(&self.client), target, n_bytes }))
    }

    fn keep(&self, name: &Path, file: Option<Arc<dyn RangedFile>>) {
        self.files.lock().unpoisoned().insert(name.to_owned(), file);
    }
}

impl RangedDirectory for ServerDirectory {
    fn file(&self, name: &Path) -> Option<Arc<dyn RangedFile>> {
        if let Some(known) = self.files.lock().unpoisoned().get(name) {
            return known.clone();
        }
        let text = name.to_str().filter(|name| GGUF.has(name))?.replace('\\', "/");
        let file: Option<Arc<dyn RangedFile>> = match self.ask(&text, None) {
            Ok(Some(file)) => Some(Arc::new(file)),
            Ok(None) => None,
            Err(error) => Some(Arc::new(UnreadableFile(Mutex::new(Some(error))))),
        };
        self.keep(name, file.clone());
        file
    }
}

/// A file that is fetched as it is read.
#[derive(Debug)]
struct ServerFile {
    client: Arc<Client>,
    target: RequestTarget,
    n_bytes: u64,
}

impl RangedFile for ServerFile {
    fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        Ok(self.client.read_past(&self.target, offset, MOST_SKIPPED, out)?)
    }

    fn expect(&self, _: u64, _: u64) {}

    fn release(&self, _: u64, _: u64) {}
}

/// A file that the server failed to describe: reading it returns the error.
#[derive(Debug)]
struct UnreadableFile(Mutex<Option<RemoteError>>);

impl RangedFile for UnreadableFile {
    fn n_bytes(&self) -> u64 {
        0
    }

    fn read_at(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
        let error = self.0.lock().unpoisoned().take();
        Err(error.map_or_else(|| io::Error::other("the server did not tell of the file"), Into::into))
    }

    fn expect(&self, _: u64, _: u64) {}

    fn release(&self, _: u64, _: u64) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_paths_or_addresses_of_files() {
        let parsed = |text: &str| match FileAddress::parse(text) {
            Ok(Some(address)) => address.to_string(),
            Ok(None) => "path".to_owned(),
            Err(error) => error.problem.to_owned(),
        };
        for (text, expected) in [
            ("org/name/m.gguf", "org/name/m.gguf"),
            ("org/name@v1.0/m.gguf", "org/name@v1.0/m.gguf"),
            ("org/name@refs/pr/1/q4/m.GGUF", "org/name@refs/pr/1/q4/m.GGUF"),
            ("hf://org/name@main/m.gguf", "org/name/m.gguf"),
            ("https://huggingface.co/org/name/blob/main/m.gguf", "org/name/m.gguf"),
            ("https://hf.co/org/name/resolve/v2/a/m.gguf?download=true", "org/name@v2/a/m.gguf"),
            ("https://host/models/m%20x.gguf?sig=secret#top", "https://host/models/m x.gguf"),
            ("http://localhost:8000/m.gguf", "http://localhost:8000/m.gguf"),
        ] {
            assert_eq!(parsed(text), expected, "{text}");
        }
        for path in [
            "m.gguf",
            "models/m.gguf",
            "./a/b/m.gguf",
            "../a/m.gguf",
            "/a/b/m.gguf",
            "a/b/../m.gguf",
            "a/b@/etc/m.gguf",
            "a/b@refs/m.gguf",
            "a b/c/m.gguf",
            "a/b/c",
            "https://host/models",
        ] {
            assert_eq!(parsed(path), "path", "{path}");
        }
        for (text, expected) in [
            ("hf://m.gguf", "`hf://ORG/NAME/FILE.gguf`"),
            ("s3://bucket/m.gguf", "buckets are not read"),
            ("https://huggingface.co/org/name/m.gguf", "resolve/main"),
            ("https://user:hunter2@host/m.gguf", "password"),
        ] {
            assert!(parsed(text).contains(expected), "{text}: {}", parsed(text));
        }
    }

    #[test]
    fn weights_are_named_like_gguf_files() {
        let parsed = |text: &str| match FileAddress::parse_weights(text) {
            Ok(Some(address)) => address.to_string(),
            Ok(None) => "path".to_owned(),
            Err(error) => error.problem.to_owned(),
        };
        for (text, expected) in [
            ("org/name/flux.safetensors", "org/name/flux.safetensors"),
            ("org/name@v1/split_files/wan.safetensors", "org/name@v1/split_files/wan.safetensors"),
            ("https://huggingface.co/org/name/blob/main/a/m.ckpt", "org/name/a/m.ckpt"),
            ("https://host/models/m.safetensors?sig=secret", "https://host/models/m.safetensors"),
            ("models/m.safetensors", "path"),
            ("./a/b/m.safetensors", "path"),
            ("org/name/m.gguf", "path"),
        ] {
            assert_eq!(parsed(text), expected, "{text}");
        }
    }
}

//! List of a remote checkpoint's files: the hub's list, a bucket's list, a web server's index, or, without a list, the
//! usual names of checkpoint files.

use crate::Result;
use std::sync::Arc;

use serde_json::Value as Json;
use url::Url;

use crate::address::shown;
use crate::client::Client;
use crate::error::RemoteError;
use crate::exchange::text_of;
use crate::kind::WEIGHTS;
use crate::target::RequestTarget;
use gguf_core::text::is_unsafe;
use gguf_core::unique_keys::UniqueKeys;

/// Maximum size of a list in bytes.
const LIST_BYTES: u64 = 64 << 20;
/// Configuration files; every checkpoint directory has one of them.
pub(super) const CONFIGURATIONS: [&str; 3] = ["config.json", "params.json", "adapter_config.json"];
/// Maximum number of files of a checkpoint.
pub(super) const MAX_FILES: usize = 100_000;

/// Expected digest of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ExpectedDigest {
    /// SHA-256 of the bytes, in hexadecimal: large files of the hub.
    Sha256(String),
    /// SHA-1 of the git blob, in hexadecimal: small files of the hub.
    GitBlob(String),
}

impl ExpectedDigest {
    pub(super) fn hex(&self) -> &str {
        match self {
            Self::Sha256(hex) | Self::GitBlob(hex) => hex,
        }
    }
}

/// A file on a server.
#[derive(Clone, Debug)]
pub(super) struct RemoteEntry {
    /// Relative path, with slashes.
    pub(super) name: String,
    pub(super) n_bytes: u64,
    pub(super) digest: Option<ExpectedDigest>,
    pub(super) target: Arc<RequestTarget>,
}

/// Files of a checkpoint at one moment.
#[derive(Debug)]
pub(super) struct FileListing {
    pub(super) entries: Vec<RemoteEntry>,
    /// Commit that identifies this state of the files, if the server has one.
    pub(super) commit: Option<String>,
}

pub(super) fn of_hub(
    client: &Client,
    endpoint: &Url,
    repository: &str,
    revision: &str,
) -> Result<FileListing> {
    let address =
        || if revision == "main" { repository.to_owned() } else { format!("{repository}@{revision}") };
    let api = below(
        endpoint,
        &["api", "models"]
            .into_iter()
            .chain(repository.split('/'))
            .chain(["revision", revision])
            .collect::<Vec<_>>(),
    );
    let mut query = api.clone();
    query.set_query(Some("blobs=true"));
    let answer = client.text(&RequestTarget::new(query, None), LIST_BYTES);
    let missing = |server_code| RemoteError::NoCheckpoint {
        address: address(),
        host: endpoint.host_str().unwrap_or_default().to_owned(),
        server_code,
    };
    let text = match answer {
        Ok(Some((_, text))) => text,
        Ok(None) => return Err(missing(None)),
        // The hub does not reveal to unauthenticated users which repositories exist.
        Err(RemoteError::Denied { server_code: Some(server_code), status: 401, .. })
            if server_code == "RepoNotFound" =>
        {
            return Err(missing(Some(server_code)));
        }
        Err(error) => return Err(error),
    };
    let broken = |reason: &str| RemoteError::Listing { url: shown(&api), reason: reason.to_owned() };
    let read = serde_json::from_slice::<UniqueKeys>(&text).and_then(|_| serde_json::from_slice(&text));
    let answer: Json = read.map_err(|error| broken(&error.to_string()))?;
    let commit =
        answer["sha"].as_str().filter(|sha| is_hex(sha, 40)).ok_or_else(|| broken("`sha` is missing"))?;
    let siblings = answer["siblings"].as_array().ok_or_else(|| broken("`siblings` is missing"))?;
    let mut entries = Vec::with_capacity(siblings.len().min(MAX_FILES));
    for file in siblings {
        let name = file["rfilename"].as_str().ok_or_else(|| broken("a file without a name"))?;
        let n_bytes = file["size"].as_u64().or_else(|| file["lfs"]["size"].as_u64());
        let parts: Vec<&str> =
            repository.split('/').chain(["resolve", commit]).chain(name.split('/')).collect();
        let target = RequestTarget::new(below(endpoint, &parts), n_bytes);
        let digest = match (file["lfs"]["sha256"].as_str(), file["blobId"].as_str()) {
            (Some(sha), _) if is_hex(sha, 64) => Some(ExpectedDigest::Sha256(sha.to_owned())),
            (None, Some(blob)) if is_hex(blob, 40) && file["lfs"].is_null() => {
                Some(ExpectedDigest::GitBlob(blob.to_owned()))
            }
            _ => None,
        };
        let n_bytes = n_bytes.ok_or_else(|| broken("a file without a size"))?;
        entries.push(RemoteEntry { name: name.to_owned(), n_bytes, digest, target: Arc::new(target) });
    }
    Ok(FileListing { entries: checked(entries, &api)?, commit: Some(commit.to_owned()) })
}

/// Lists the files of a directory of a web server: those in its index, else those with the usual names of checkpoint
/// files.
pub(super) fn of_web(client: &Client, directory: &Url) -> Result<FileListing> {
    let is_page = |headers: &ureq::http::HeaderMap| {
        text_of(headers, "content-type").is_some_and(|kind| kind.starts_with("text/html"))
    };
    let page = match client.text(&RequestTarget::new(directory.clone(), None), LIST_BYTES) {
        Ok(page) => page.filter(|(headers, _)| is_page(headers)),
        // Many servers do not list directories.
        Err(RemoteError::Denied { status: 403, .. }) => None,
        Err(error) => return Err(error),
    };
    let mut names =
        page.map(|(_, page)| links(directory, &String::from_utf8_lossy(&page))).unwrap_or_default();
    let has_configuration =
        |names: &[String]| names.iter().any(|name| CONFIGURATIONS.contains(&name.as_str()));
    if !has_configuration(&names) {
        // Image models need none; anything else that a page links is no model.
        names.retain(|name| WEIGHTS.has(name));
        names.extend(super::names::known().map(str::to_owned));
        names.sort_unstable();
        names.dedup();
    }
    let mut entries = of_names(client, directory, None, &names)?;
    // Shards that only their index names.
    let mut shards = Vec::new();
    for index in entries.iter().filter(|entry| entry.name.ends_with(".index.json")) {
        let text = client.text(&index.target, LIST_BYTES)?.map(|(_, text)| text).unwrap_or_default();
        let index: Json = serde_json::from_slice(&text).unwrap_or_default();
        let named = index["weight_map"].as_object().into_iter().flat_map(|map| map.values());
        shards.extend(named.filter_map(Json::as_str).map(str::to_owned));
    }
    shards.sort_unstable();
    shards.dedup();
    shards.retain(|name| !entries.iter().any(|entry| entry.name == *name));
    for name in &shards {
        if !is_inside(name) {
            return Err(RemoteError::Name { url: shown(directory), name: name.clone() });
        }
    }
    entries.extend(of_names(client, directory, None, &shards)?);
    if entries.is_empty() {
        let host = directory.host_str().unwrap_or_default().to_owned();
        return Err(RemoteError::NoCheckpoint { address: shown(directory), host, server_code: None });
    }
    Ok(FileListing { entries: checked(entries, directory)?, commit: None })
}

/// Returns entries for the names that exist. `query` is added to their addresses.
pub(super) fn of_names(
    client: &Client,
    directory: &Url,
    query: Option<&str>,
    names: &[String],
) -> Result<Vec<RemoteEntry>> {
    super::in_parallel(names, |name| {
        let mut url = below(directory, &name.split('/').collect::<Vec<_>>());
        url.set_query(query);
        let target = RequestTarget::new(url, None);
        let n_bytes = client.n_bytes(&target)?;
        Ok(n_bytes.map(|n_bytes| RemoteEntry {
            name: name.clone(),
            n_bytes,
            digest: None,
            target: Arc::new(target),
        }))
    })
    .map(|entries| entries.into_iter().flatten().collect())
}

/// Returns the names of linked files that are directly in the page's directory.
fn links(directory: &Url, page: &str) -> Vec<String> {
    let mut names = Vec::new();
    for part in page.split("href=").skip(1) {
        let quote = part.chars().next().filter(|c| ['"', '\''].contains(c));
        let link = match quote {
            Some(quote) => part[1..].split(quote).next(),
            None => part.split([' ', '>']).next(),
        };
        let Some(url) =
            link.map(|link| link.replace("&amp;", "&")).and_then(|link| directory.join(&link).ok())
        else {
            continue;
        };
        let is_file = url.query().is_none() && url.fragment().is_none() && url.origin() == directory.origin();
        let name = url.path().strip_prefix(directory.path()).filter(|name| is_file && !name.is_empty());
        let decoded = name.and_then(decoded).filter(|name| !name.contains('/'));
        names.extend(decoded);
    }
    names.sort_unstable();
    names.dedup();
    names.truncate(MAX_FILES);
    names
}

/// Decodes the percent escapes of a name.
pub(super) fn decoded(name: &str) -> Option<String> {
    let bytes = name.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        if byte == b'%' {
            let hex = name.get(at + 1..at + 3)?;
            out.push(u8::from_str_radix(hex, 16).ok()?);
            at += 3;
        } else {
            out.push(byte);
            at += 1;
        }
    }
    String::from_utf8(out).ok()
}

/// Appends path segments to an address; they are percent-encoded as needed.
pub(super) fn below(url: &Url, parts: &[&str]) -> Url {
    let mut url = url.clone();
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(parts);
    }
    url
}

/// Sorts a list; refuses names that lead out of the directory, and lists that are too long.
pub(super) fn checked(mut entries: Vec<RemoteEntry>, url: &Url) -> Result<Vec<RemoteEntry>> {
    if entries.len() > MAX_FILES {
        let (found, limit) = (entries.len() as u64, MAX_FILES as u64);
        return Err(RemoteError::TooMuch { url: shown(url), what: "files", found, limit });
    }
    if let Some(entry) = entries.iter().find(|entry| !is_inside(&entry.name)) {
        return Err(RemoteError::Name { url: shown(url), name: entry.name.clone() });
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    entries.dedup_by(|a, b| a.name == b.name);
    Ok(entries)
}

/// Returns true if a name is a path inside a directory, on every system.
pub(super) fn is_inside(name: &str) -> bool {
    let is_plain = |part: &str| {
        !part.is_empty()
            && part != "."
            && part != ".."
            && !part.contains(['\\', ':'])
            && !part.chars().any(is_unsafe)
            && part.len() <= 255
    };
    name.len() <= 1024 && name.split('/').all(is_plain)
}

pub(super) fn is_hex(text: &str, len: usize) -> bool {
    text.len() == len && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_pages_are_names_of_files() {
        let directory = Url::parse("http://host/models/tiny/").unwrap();
        let page = r#"<a href="../">..</a> <a href="config.json">c</a> <a href='a%20b.json'>x</a> <a href=model.safetensors>m</a>
            <a href="?C=N;O=D">sort</a> <a href="sub/">sub/</a> <a href="/models/tiny/tokenizer.json">t</a>
            <a href="http://other/models/tiny/evil.json">e</a> <a href="..%2fup.json">u</a> <a href="%zz">z</a>"#;
        assert_eq!(
            links(&directory, page),
            ["a b.json", "config.json", "model.safetensors", "tokenizer.json"]
        );
    }

    #[test]
    fn names_stay_inside() {
        for name in ["config.json", "1_Pooling/config.json", "a b"] {
            assert!(is_inside(name), "{name}");
        }
        for name in [
            "",
            "../x",
            "a/../b",
            "/etc/passwd",
            "a//b",
            "a\\b",
            "C:x",
            "a/",
            ".",
            "x\0",
            "a\u{1b}[2Jb",
            "gpj\u{202e}exe",
            "a\nb",
        ] {
            assert!(!is_inside(name), "{name}");
        }
        assert!(!is_inside(&"x".repeat(300)));
    }
}

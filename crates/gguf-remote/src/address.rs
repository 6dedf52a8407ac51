//! Addresses of remote checkpoints as users write them.

use std::fmt;

use url::Url;

use gguf_core::text::escape;

/// Default branch of a repository.
const MAIN: &str = "main";
/// Hosts of the public hub, which names without a host refer to unless `HF_ENDPOINT` is set.
pub(super) const HUB_HOSTS: [&str; 3] = ["huggingface.co", "www.huggingface.co", "hf.co"];

/// Location of a remote checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A repository of the Hugging Face hub.
    Hub {
        /// `org/name`.
        repository: String,
        /// Branch, tag or commit.
        revision: String,
    },
    /// A directory of a web server; the address ends in a slash.
    Web(Url),
}

/// Reasons why a text that looks like an address is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}`: {problem}", escape(text))]
pub struct AddressError {
    /// Text, without a password.
    pub text: String,
    /// Description of the fault.
    pub problem: &'static str,
}

impl Address {
    /// Parses an address. `None` for a text that can only be a path: an address has a scheme (`hf://`, `https://`,
    /// `http://`) or the form `org/name[@revision]`. `dir/file.gguf` is the path of a file.
    ///
    /// # Errors
    /// An address with a part that is missing or not allowed.
    pub fn parse(text: &str) -> Result<Option<Self>, AddressError> {
        let fail = |problem| Err(AddressError { text: text.to_owned(), problem });
        if let Some(rest) = text.strip_prefix("hf://") {
            return match repository(rest.trim_end_matches('/')) {
                Some(found) => Ok(Some(found)),
                None => fail("`hf://ORG/NAME` or `hf://ORG/NAME@REVISION` expected"),
            };
        }
        if text.starts_with("s3://") {
            return fail("buckets are not read: fetch the folder first, or give its `https://` address");
        }
        if text.starts_with("https://") || text.starts_with("http://") {
            return web(text).map(Some);
        }
        let is_file = text.to_ascii_lowercase().ends_with(".gguf");
        Ok(if is_file { None } else { repository(text) })
    }

    /// Name of the model, as a download's directory would be called.
    pub fn name(&self) -> &str {
        let last = match self {
            Self::Hub { repository, .. } => repository.rsplit('/').next(),
            Self::Web(url) => url.path_segments().and_then(|parts| parts.rev().find(|part| !part.is_empty())),
        };
        last.filter(|name| !name.is_empty() && !name.contains(['/', '\\'])).unwrap_or("model")
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hub { repository, revision } if revision == MAIN => f.write_str(&escape(repository)),
            Self::Hub { repository, revision } => {
                write!(f, "{}@{}", escape(repository), escape(revision))
            }
            Self::Web(url) => f.write_str(&escape(&shown(url))),
        }
    }
}

/// Formats an address for messages, without its query, which may carry a signature.
pub(super) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    // Only addresses without a host refuse these.
    let _ = url.set_password(None);
    let _ = url.set_username("");
    url.into()
}

fn repository(text: &str) -> Option<Address> {
    let (repository, revision) = text.split_once('@').unwrap_or((text, MAIN));
    let (org, name) = repository.split_once('/')?;
    let is_plain = |part: &str| {
        let is_inner = |c: char| c.is_ascii_alphanumeric() || ['.', '-', '_'].contains(&c);
        part.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
            && part.len() <= 96
            && part.chars().all(is_inner)
    };
    let is_revision = |text: &str| {
        let is_inner = |c: char| c.is_ascii_alphanumeric() || ['.', '-', '_', '/', '+'].contains(&c);
        // A revision becomes part of a path in a cache and of an address: no segment is empty or leads up.
        let is_part = |part: &str| !part.is_empty() && !part.starts_with('.');
        text.len() <= 256
            && text.chars().all(is_inner)
            && !text.contains("..")
            && text.split('/').all(is_part)
    };
    let is_address = is_plain(org) && is_plain(name) && is_revision(revision);
    is_address.then(|| Address::Hub { repository: repository.to_owned(), revision: revision.to_owned() })
}

/// Parses a web address, which must not contain a password.
pub(super) fn web_url(text: &str) -> Result<Url, AddressError> {
    let fail = |text: String, problem| Err(AddressError { text, problem });
    let Ok(url) = Url::parse(text) else { return fail(text.to_owned(), "not a web address") };
    if !url.username().is_empty() || url.password().is_some() {
        return fail(shown(&url), "an address with a password in it would end up in logs: leave it out");
    }
    Ok(url)
}

fn web(text: &str) -> Result<Address, AddressError> {
    let fail = |text: String, problem| Err(AddressError { text, problem });
    let mut url = web_url(text)?;
    if url.query().is_some() || url.fragment().is_some() {
        return fail(shown(&url), "the address of a directory has no `?` and no `#`");
    }
    if url.host_str().is_some_and(|host| HUB_HOSTS.contains(&host)) {
        // Addresses copied from a browser.
        let parts: Vec<&str> = url.path().split('/').filter(|part| !part.is_empty()).collect();
        let found = match parts[..] {
            [org, name] => repository(&format!("{org}/{name}")),
            [org, name, "tree", ref revision @ ..] if !revision.is_empty() => {
                repository(&format!("{org}/{name}@{}", revision.join("/")))
            }
            _ => None,
        };
        return match found {
            Some(found) => Ok(found),
            None => fail(shown(&url), "the page of a model expected: `https://huggingface.co/ORG/NAME`"),
        };
    }
    if !url.path().ends_with('/') {
        let path = format!("{}/", url.path());
        url.set_path(&path);
    }
    Ok(Address::Web(url))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> String {
        match Address::parse(text) {
            Ok(Some(address)) => format!("{address} ({})", address.name()),
            Ok(None) => "path".to_owned(),
            Err(error) => error.problem.to_owned(),
        }
    }

    #[test]
    fn texts_are_paths_or_addresses() {
        for (text, expected) in [
            ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B (Qwen3-0.6B)"),
            ("Qwen/Qwen3-0.6B@main", "Qwen/Qwen3-0.6B (Qwen3-0.6B)"),
            ("org/name@refs/pr/1", "org/name@refs/pr/1 (name)"),
            ("hf://org/name.gguf", "org/name.gguf (name.gguf)"),
            ("hf://org/name@v1.0", "org/name@v1.0 (name)"),
            ("https://huggingface.co/org/name", "org/name (name)"),
            ("https://huggingface.co/org/name/tree/v2", "org/name@v2 (name)"),
            ("https://host/models/tiny", "https://host/models/tiny/ (tiny)"),
            ("http://localhost:8000/", "http://localhost:8000/ (model)"),
        ] {
            assert_eq!(parsed(text), expected, "{text}");
        }
        for path in [
            "model",
            "./a/b",
            "../a",
            "/models/a",
            "a/b/c",
            "a/",
            "a b/c",
            ".hidden/x",
            "a/b@",
            "a/b@/etc",
            "a/b@x/",
            "a/b@x//y",
            "a/b@./x",
            "a/b@x/.git",
            "a/b.gguf",
            "a/b-Q8_0.GGUF",
            "~/m",
        ] {
            assert_eq!(parsed(path), "path", "{path}");
        }
        for (text, expected) in [
            ("hf://name", "`hf://ORG/NAME`"),
            ("s3://bucket/x", "buckets are not read"),
            ("https://", "not a web address"),
            ("https://host/x?sig=1", "no `?`"),
            ("https://huggingface.co/datasets/a/b", "the page of a model"),
        ] {
            assert!(parsed(text).contains(expected), "{text}: {}", parsed(text));
        }
    }

    #[test]
    fn a_password_is_refused_and_not_repeated() {
        let error = Address::parse("https://user:hunter2@host/models").unwrap_err();
        assert!(error.to_string().contains("https://host/models"), "{error}");
        assert!(!format!("{error} {error:?}").contains("hunter2"));
    }
}

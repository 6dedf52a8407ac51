//! S3 buckets: addresses are signed with the keys from the usual variables and files of AWS programs.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rusty_s3::actions::ListObjectsV2;
use rusty_s3::{Bucket, Credentials, S3Action, UrlStyle};
use url::Url;

use crate::address::shown;
use crate::client::Client;
use crate::error::RemoteError;
use crate::listing::{FileListing, MAX_FILES, RemoteEntry, checked};
use crate::target::RequestTarget;
use gguf_core::input;

/// Validity of a signature. Each request gets a new one.
const VALID: Duration = Duration::from_hours(1);
/// Maximum size of a list page in bytes.
const PAGE_BYTES: u64 = 16 << 20;
/// Maximum number of pages of a list: a hundred times as many as needed at a thousand files a page.
const MAX_PAGES: usize = 10_000;

/// A bucket, and the keys that sign its addresses.
#[derive(Clone)]
pub(super) struct S3Bucket {
    bucket: Arc<Bucket>,
    credentials: Arc<Option<Credentials>>,
}

impl S3Bucket {
    /// Opens a bucket as configured by variables and files. `address` is for messages.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub(super) fn open(bucket: &str, address: &str) -> Result<Self, RemoteError> {
        let profile = AwsProfile::read()?;
        let bad = |reason: &str| RemoteError::Listing { url: address.to_owned(), reason: reason.to_owned() };
        let region = profile
            .get(&["AWS_REGION", "AWS_DEFAULT_REGION"], "region")
            .unwrap_or_else(|| "us-east-1".to_owned());
        let endpoint = profile.get(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"], "endpoint_url");
        let style =
            if endpoint.is_some() || bucket.contains('.') { UrlStyle::Path } else { UrlStyle::VirtualHost };
        let endpoint = endpoint.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
        let endpoint = Url::parse(&endpoint).map_err(|_| bad("`AWS_ENDPOINT_URL` is no address"))?;
        let bucket = Bucket::new(endpoint, style, bucket.to_owned(), region)
            .map_err(|error| bad(&error.to_string()))?;
        let key = profile.get(&["AWS_ACCESS_KEY_ID"], "aws_access_key_id");
        let secret = profile.get(&["AWS_SECRET_ACCESS_KEY"], "aws_secret_access_key");
        let session = profile.get(&["AWS_SESSION_TOKEN"], "aws_session_token");
        let credentials = match (key, secret, session) {
            (Some(key), Some(secret), Some(session)) => {
                Some(Credentials::new_with_token(key, secret, session))
            }
            (Some(key), Some(secret), None) => Some(Credentials::new(key, secret)),
            // A public bucket needs no keys.
            _ => None,
        };
        Ok(Self { bucket: Arc::new(bucket), credentials: Arc::new(credentials) })
    }

    /// Returns the target of an object.
    pub(super) fn object(&self, key: &str, n_bytes: Option<u64>, etag: Option<String>) -> RequestTarget {
        let (store, key) = (self.clone(), key.to_owned());
        let sign = move || store.bucket.get_object(Option::as_ref(&store.credentials), &key).sign(VALID);
        RequestTarget::signed(sign, n_bytes, etag)
    }
}

/// Lists the objects of a bucket whose keys start with `prefix`.
///
/// # Errors
/// [`RemoteError`].
pub(super) fn list(client: &Client, bucket: &str, prefix: &str) -> Result<FileListing, RemoteError> {
    let address = format!("s3://{bucket}/{prefix}");
    let bad = |reason: &str| RemoteError::Listing { url: address.clone(), reason: reason.to_owned() };
    let store = S3Bucket::open(bucket, &address)?;
    let host = || store.bucket.base_url().host_str().unwrap_or_default().to_owned();
    let mut entries = Vec::new();
    let mut next: Option<String> = None;
    let mut n_pages = 0;
    loop {
        let mut list = store.bucket.list_objects_v2(Option::as_ref(&store.credentials));
        list.with_prefix(prefix.to_owned());
        if let Some(token) = &next {
            list.with_continuation_token(token.clone());
        }
        let url = list.sign(VALID);
        let missing =
            || RemoteError::NoCheckpoint { address: address.clone(), host: host(), server_code: None };
        let target = RequestTarget::signed(move || url.clone(), None, None);
        let (_, page) = client.text(&target, PAGE_BYTES)?.ok_or_else(missing)?;
        n_pages += 1;
        let page = ListObjectsV2::parse_response(&String::from_utf8_lossy(&page))
            .map_err(|error| bad(&error.to_string()))?;
        for object in page.contents {
            let name =
                object.key.strip_prefix(prefix).filter(|name| !name.is_empty() && !name.ends_with('/'));
            let Some(name) = name.map(str::to_owned) else { continue };
            let n_bytes = object.size.ok_or_else(|| bad("an object without a size"))?;
            let target = Arc::new(store.object(&object.key, Some(n_bytes), object.etag));
            entries.push(RemoteEntry { name, n_bytes, digest: None, target });
        }
        let last = std::mem::replace(&mut next, page.next_continuation_token);
        if next.is_none() {
            break;
        }
        if next == last {
            return Err(bad("a page that is followed by itself"));
        }
        let (found, limit) = (entries.len() as u64, MAX_FILES as u64);
        if found > limit || n_pages > MAX_PAGES {
            return Err(RemoteError::TooMuch { url: address.clone(), what: "files", found, limit });
        }
    }
    if entries.is_empty() {
        return Err(RemoteError::NoCheckpoint { address: address.clone(), host: host(), server_code: None });
    }
    Ok(FileListing { entries: checked(entries, &strip(store.bucket.base_url()))?, commit: None })
}

fn strip(url: &Url) -> Url {
    Url::parse(&shown(url)).unwrap_or_else(|_| url.clone())
}

/// Selected section of the AWS files (`AWS_PROFILE`); variables take precedence over it.
struct AwsProfile(HashMap<String, String>);

impl AwsProfile {
    fn read() -> Result<Self, RemoteError> {
        let variable = |name| std::env::var(name).ok().filter(|text: &String| !text.is_empty());
        let name = variable("AWS_PROFILE").unwrap_or_else(|| "default".to_owned());
        let home = std::env::home_dir().unwrap_or_default();
        let mut found = HashMap::new();
        for (own, file) in [("AWS_CONFIG_FILE", "config"), ("AWS_SHARED_CREDENTIALS_FILE", "credentials")] {
            let path = variable(own).map_or_else(|| home.join(".aws").join(file), PathBuf::from);
            if path.is_file() {
                found.extend(section(&input::read_to_string(&path)?, &name));
            }
        }
        Ok(Self(found))
    }

    /// Returns a setting: the first variable that is set, else the entry of the section.
    fn get(&self, variables: &[&str], entry: &str) -> Option<String> {
        let set = variables.iter().find_map(|name| std::env::var(name).ok().filter(|text| !text.is_empty()));
        set.or_else(|| self.0.get(entry).cloned())
    }
}

/// Returns the entries of a section of an INI file, `[name]` or `[profile name]`.
fn section(text: &str, name: &str) -> Vec<(String, String)> {
    let mut is_own = false;
    let mut entries = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
        if let Some(title) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            let title = title.trim();
            is_own = title.strip_prefix("profile ").unwrap_or(title).trim() == name;
        } else if let Some((key, value)) = line.split_once('=').filter(|_| is_own) {
            entries.push((key.trim().to_owned(), value.trim().to_owned()));
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_section_of_the_profile_counts() {
        let text = "[default]\nregion = eu-west-1\n# x = y\n[profile lab]\naws_access_key_id=AK\n aws_secret_access_key = s=cret \n";
        assert_eq!(section(text, "default"), [("region".to_owned(), "eu-west-1".to_owned())]);
        let lab = section(text, "lab");
        assert_eq!(lab[1], ("aws_secret_access_key".to_owned(), "s=cret".to_owned()));
        assert!(section(text, "none").is_empty());
    }
}

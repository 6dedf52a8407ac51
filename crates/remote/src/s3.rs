//! S3 buckets: addresses are signed with the keys from the usual variables and files of AWS programs.

mod list_page;
mod signature;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use list_page::ListPage;
use signature::{Signer, encoded, joined};
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
    /// Address of the bucket, which ends with a slash.
    url: Arc<Url>,
    /// Keys that sign addresses; `None` for a public bucket.
    signer: Option<Arc<Signer>>,
}

impl S3Bucket {
    /// Opens a bucket as configured by variables and files. `address` is for messages.
    pub(super) fn open(bucket: &str, address: &str) -> Result<Self, RemoteError> {
        let profile = AwsProfile::read()?;
        let region = profile
            .get(&["AWS_REGION", "AWS_DEFAULT_REGION"], "region")
            .unwrap_or_else(|| "us-east-1".to_owned());
        let endpoint = profile.get(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"], "endpoint_url");
        let is_in_path = endpoint.is_some() || bucket.contains('.');
        let endpoint = endpoint.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
        let url = bucket_url(&endpoint, bucket, is_in_path)
            .map_err(|reason| RemoteError::Listing { url: address.to_owned(), reason: reason.to_owned() })?;
        let key = profile.get(&["AWS_ACCESS_KEY_ID"], "aws_access_key_id");
        let secret = profile.get(&["AWS_SECRET_ACCESS_KEY"], "aws_secret_access_key");
        let token =
            profile.get(&["AWS_SESSION_TOKEN"], "aws_session_token").filter(|token| !token.is_empty());
        let signer = key.zip(secret).map(|(key, secret)| Arc::new(Signer { key, secret, token, region }));
        Ok(Self { url: Arc::new(url), signer })
    }

    /// Returns the target of an object.
    pub(super) fn object(&self, key: &str, n_bytes: Option<u64>, etag: Option<String>) -> RequestTarget {
        let (store, key) = (self.clone(), key.to_owned());
        RequestTarget::signed(move || store.request(&key, Vec::new()), n_bytes, etag)
    }

    /// Returns the address of a request for an object, or with an empty key for the bucket.
    fn request(&self, key: &str, query: Vec<(&str, String)>) -> Url {
        let mut url = Url::clone(&self.url);
        let path = format!("{}{}", url.path(), encoded(key, "/"));
        url.set_path(&path);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        let query = match &self.signer {
            Some(signer) => signer.signed(&url, query, now, VALID),
            None => joined(query),
        };
        url.set_query(Some(query.as_str()).filter(|query| !query.is_empty()));
        url
    }
}

/// Returns the address of a bucket, whose name is a part of the path or of the host.
fn bucket_url(endpoint: &str, bucket: &str, is_in_path: bool) -> Result<Url, &'static str> {
    // Without user and query: requests have a query of their own, and no other credentials.
    let url = Url::parse(endpoint).and_then(|url| Url::parse(&shown(&url)));
    let url = url.ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    let mut url = url.ok_or("`AWS_ENDPOINT_URL` is no address")?;
    if is_in_path {
        let path = url.path();
        let path = format!("{}/{}/", path.strip_suffix('/').unwrap_or(path), encoded(bucket, ""));
        url.set_path(&path);
    } else {
        let host = format!("{bucket}.{}", url.host_str().unwrap_or_default());
        // Hosts are in lower case: the bucket could become another one.
        if url.set_host(Some(&host)).is_err() || url.host_str() != Some(host.as_str()) {
            return Err("the bucket's name cannot be part of a host");
        }
    }
    Ok(url)
}

/// Lists the objects of a bucket whose keys start with `prefix`.
pub(super) fn list(client: &Client, bucket: &str, prefix: &str) -> Result<FileListing, RemoteError> {
    let address = format!("s3://{bucket}/{prefix}");
    let bad = |reason: &str| RemoteError::Listing { url: address.clone(), reason: reason.to_owned() };
    let store = S3Bucket::open(bucket, &address)?;
    let host = || store.url.host_str().unwrap_or_default().to_owned();
    let mut entries = Vec::new();
    let mut next: Option<String> = None;
    let mut n_pages = 0;
    loop {
        let mut query = vec![
            ("encoding-type", "url".to_owned()),
            ("list-type", "2".to_owned()),
            ("prefix", prefix.to_owned()),
        ];
        query.extend(next.clone().map(|token| ("continuation-token", token)));
        let missing =
            || RemoteError::NoCheckpoint { address: address.clone(), host: host(), server_code: None };
        let target = RequestTarget::new(store.request("", query), None);
        let (_, page) = client.text(&target, PAGE_BYTES)?.ok_or_else(missing)?;
        n_pages += 1;
        let page = ListPage::parse(&String::from_utf8_lossy(&page)).map_err(bad)?;
        for object in page.objects {
            let name =
                object.key.strip_prefix(prefix).filter(|name| !name.is_empty() && !name.ends_with('/'));
            let Some(name) = name.map(str::to_owned) else { continue };
            let n_bytes = object.n_bytes.ok_or_else(|| bad("an object without a size"))?;
            let target = Arc::new(store.object(&object.key, Some(n_bytes), object.etag));
            entries.push(RemoteEntry { name, n_bytes, digest: None, target });
        }
        let last = std::mem::replace(&mut next, page.next);
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
    Ok(FileListing { entries: checked(entries, &store.url)?, commit: None })
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
    fn addresses_lead_to_the_bucket() {
        let found = |endpoint, is_in_path| bucket_url(endpoint, "my-bucket", is_in_path).map(String::from);
        let at = |url: &str| Ok(url.to_owned());
        assert_eq!(found("https://s3.x.com", false), at("https://my-bucket.s3.x.com/"));
        assert_eq!(found("http://me:pw@host:9000?a=b", true), at("http://host:9000/my-bucket/"));
        assert_eq!(found("https://host/store/", true), at("https://host/store/my-bucket/"));
        assert!(found("ftp://host", true).is_err() && found("host", true).is_err());
        assert!(bucket_url("https://s3.x.com", "MyBucket", false).is_err());
        // No keys, no signature.
        let url = Arc::new(Url::parse("https://host/b/").unwrap());
        let store = S3Bucket { url, signer: None };
        assert_eq!(
            store.request("//a b/ü+?.txt", Vec::new()).as_str(),
            "https://host/b///a%20b/%C3%BC%2B%3F.txt"
        );
        let query = vec![("prefix", "a b/".to_owned()), ("list-type", "2".to_owned())];
        assert_eq!(store.request("", query).as_str(), "https://host/b/?list-type=2&prefix=a%20b%2F");
    }

    #[test]
    fn the_section_of_the_profile_counts() {
        let text = "[default]\nregion = eu-west-1\n# x = y\n[profile lab]\naws_access_key_id=AK\n aws_secret_access_key = s=cret \n";
        assert_eq!(section(text, "default"), [("region".to_owned(), "eu-west-1".to_owned())]);
        let lab = section(text, "lab");
        assert_eq!(lab[1], ("aws_secret_access_key".to_owned(), "s=cret".to_owned()));
        assert!(section(text, "none").is_empty());
    }
}

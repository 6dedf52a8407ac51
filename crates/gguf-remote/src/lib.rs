//! Checkpoints on servers: repositories of the Hugging Face hub (`org/name`, `org/name@revision`), directories of web
//! servers, folders of S3 buckets. This module is independent of model architectures.
//!
//! An open checkpoint gets a local directory with its small files. Its weights stay on the server:
//! [`gguf_core::ranged`] reads them by ranges as a conversion needs them, so that they are never stored on a local
//! disk. With a cache they are stored, whole and verified.
//!
//! | module | subject |
//! |---|---|
//! | `address` | addresses of checkpoints as users write them |
//! | `client` `target` `exchange` `tls` | requests: tokens, redirects, retries; requested file; waiting; encryption |
//! | `listing` `names` | lists of files, and the files that are read |
//! | `fetch` `directory` | fetching of pieces, and the local directory of a checkpoint |
//! | `file` `kind` | a single file, named by itself; kinds of such files |
//! | `weights` | weights that are named by themselves, in a repository of several models |
//! | `sums` | checksums promised by the server |
//! | `keep` | cached files |

mod address;
mod client;
mod directory;
mod error;
mod exchange;
mod fetch;
mod file;
mod keep;
mod kind;
mod listing;
mod names;
mod sums;
mod target;
mod tls;
mod weights;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use client::{Access, Client, HubToken};
use keep::Cache;
use url::Url;

use gguf_core::output::ScratchDirectory;
use gguf_core::progress::Progress;
use gguf_core::sync::Unpoisoned;
use gguf_core::{input, platform, ranged};

pub use address::{Address, AddressError};
pub use client::Patience;
pub(crate) use error::Result;
pub use error::{RemoteError, TokenUse};
pub use fetch::FetchFailure;
pub use file::{FileAddress, RemoteFile};

/// Default address of the hub.
const HUB: &str = "https://huggingface.co";
/// Name prefix of directories that exist for the duration of a run.
const SCRATCH: &str = "gguf-foundry";
/// Number of threads that fetch small files, or files for the cache.
const N_THREADS: usize = 8;

/// Options for reading a checkpoint from a server.
#[derive(Clone)]
pub struct RemoteOptions {
    /// Cache directory; without one, weights are read by ranges and not stored.
    pub cache: Option<PathBuf>,
    /// Maximum number of bytes of weights that are held in advance.
    pub budget: u64,
    /// Maximum number of bytes per request.
    pub piece_bytes: u64,
    /// Retries and timeouts of requests.
    pub patience: Patience,
    /// Returns true if the user cancelled the run.
    pub is_cancelled: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl std::fmt::Debug for RemoteOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteOptions")
            .field("cache", &self.cache)
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

impl Default for RemoteOptions {
    fn default() -> Self {
        Self {
            cache: None,
            budget: 256 << 20,
            piece_bytes: 8 << 20,
            patience: Patience::default(),
            is_cancelled: Arc::new(|| false),
        }
    }
}

/// An open checkpoint on a server. Its local directory exists as long as this value.
#[derive(Debug)]
pub struct RemoteCheckpoint {
    path: PathBuf,
    // Dropped first, so that the registration ends before the directory is removed.
    _known: ranged::Registration,
    _dir: ScratchDirectory,
}

impl RemoteCheckpoint {
    /// Opens a checkpoint and fetches its small files.
    pub fn open(address: &Address, options: &RemoteOptions, progress: &dyn Progress) -> Result<Self> {
        let shown = address.to_string();
        let is_offline = is_set("HF_HUB_OFFLINE") && matches!(address, Address::Hub { .. });
        let Some(root) = &options.cache else {
            if is_offline {
                return Err(RemoteError::Offline { address: shown, cache: None, missing: None });
            }
            let (client, listing) = ask(address, options)?;
            weights::must_be_named(address, &listing)?;
            let (dir, path) = scratch_directory(&std::env::temp_dir(), address)?;
            let known = directory::open(&client, listing, &path, &shown, options, progress)?;
            return Ok(Self { path, _known: known, _dir: dir });
        };
        let cache = Cache::new(root, address);
        // Without symbolic links, hard links are used, which must be on the cache's volume.
        let place = if cfg!(windows) { root.clone() } else { std::env::temp_dir() };
        if is_offline {
            let cached = cache.cached(address, &*options.is_cancelled)?;
            return Self::of_cached(&cached, &place, cache.folder(), address);
        }
        let (client, listing) = ask(address, options)?;
        weights::must_be_named(address, &listing)?;
        fs_err::create_dir_all(root)?;
        if let Some(cached) = cache.fetch(&client, address, &listing, progress)? {
            return Self::of_cached(&cached, &place, cache.folder(), address);
        }
        progress.warn(&format!(
            "{shown}: the server reports no version of its files (neither `ETag` nor `Last-Modified`): they are fetched for \
             this run, and not kept"
        ));
        let (dir, path) = scratch_directory(root, address)?;
        keep::fetch_once(&client, &listing, &path, &shown, progress)?;
        let known = ranged::register(&path, &shown, Arc::new(LinkDirectory { folder: path.clone() }));
        Ok(Self { path, _known: known, _dir: dir })
    }

    /// Opens the weights that an address names: a file, or the shards of a model of which it is one. Their path is
    /// [`RemoteCheckpoint::path`] with the name of the file.
    ///
    /// Nothing is stored: with a cache, whole repositories are.
    pub fn open_file(
        address: &FileAddress,
        options: &RemoteOptions,
        progress: &dyn Progress,
    ) -> Result<(Self, PathBuf)> {
        let shown = address.to_string();
        if is_set("HF_HUB_OFFLINE") && matches!(address.directory, Address::Hub { .. }) {
            return Err(RemoteError::Offline { address: shown, cache: None, missing: None });
        }
        let client = client_for(&address.directory, options)?;
        let (listing, name) = weights::listed(&client, address)?;
        let (dir, path) = scratch_directory(&std::env::temp_dir(), &address.directory)?;
        let folder = shown.rsplit_once('/').map_or(shown.as_str(), |(folder, _)| folder);
        let known = directory::open(&client, listing, &path, folder, options, progress)?;
        let file = path.join(name);
        Ok((Self { path, _known: known, _dir: dir }, file))
    }

    /// Creates a directory in `place`, with links to exactly these files of the cached `folder`, which may hold more.
    fn of_cached(
        cached: &[keep::CachedFile],
        place: &Path,
        folder: &Path,
        address: &Address,
    ) -> Result<Self> {
        let (dir, path) = scratch_directory(place, address)?;
        let folder = fs_err::canonicalize(folder)?;
        for file in cached {
            let shown = path.join(&file.name);
            if let Some(parent) = shown.parent() {
                fs_err::create_dir_all(parent)?;
            }
            platform::show_file_at(&file.path, &shown)?;
        }
        let known = ranged::register(&path, &address.to_string(), Arc::new(LinkDirectory { folder }));
        Ok(Self { path, _known: known, _dir: dir })
    }

    /// Local directory of the checkpoint; it has the model's name.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A directory of links to cached files.
#[derive(Debug)]
struct LinkDirectory {
    folder: PathBuf,
}

impl ranged::RangedDirectory for LinkDirectory {
    fn file(&self, _: &Path) -> Option<Arc<dyn ranged::RangedFile>> {
        None
    }

    fn folder_of_links(&self) -> Option<&Path> {
        Some(&self.folder)
    }
}

/// Creates a temporary directory, and in it the directory of the checkpoint.
fn scratch_directory(place: &Path, address: &Address) -> Result<(ScratchDirectory, PathBuf)> {
    let failed = |error| RemoteError::Scratch { place: place.to_owned(), error };
    // Canonical, so that it equals the paths of its files after links are resolved.
    #[cfg(unix)]
    let place = &place.canonicalize().map_err(failed)?;
    let dir = ScratchDirectory::create(place, SCRATCH).map_err(failed)?;
    let path = dir.path().join(address.name());
    std::fs::create_dir(&path).map_err(failed)?;
    Ok((dir, path))
}

/// Requests the list of a checkpoint's files.
fn ask(address: &Address, options: &RemoteOptions) -> Result<(Arc<Client>, listing::FileListing)> {
    let client = client_for(address, options)?;
    let listing = match address {
        Address::Web(url) => listing::of_web(&client, url)?,
        Address::Hub { .. } => stored(&client, address)?,
    };
    Ok((client, listing))
}

/// Requests the list that a hub has of its files; none of a web server.
fn stored(client: &Client, address: &Address) -> Result<listing::FileListing> {
    match address {
        Address::Hub { repository, revision } => listing::of_hub(client, &endpoint()?, repository, revision),
        Address::Web(_) => Ok(listing::FileListing { entries: Vec::new(), commit: None }),
    }
}

/// Creates a client for the server of an address, with the token for the hub.
fn client_for(address: &Address, options: &RemoteOptions) -> Result<Arc<Client>> {
    let access = match address {
        Address::Hub { .. } => {
            let origin = endpoint()?.origin();
            Access::Hub(token()?.map(|text| HubToken { text, origin }))
        }
        Address::Web(_) => Access::Web,
    };
    Client::new(access, options.patience, Arc::clone(&options.is_cancelled)).map(Arc::new)
}

/// Returns the hub's address; `HF_ENDPOINT` sets it for mirrors and private hubs.
fn endpoint() -> Result<Url> {
    let text =
        std::env::var("HF_ENDPOINT").ok().filter(|text| !text.is_empty()).unwrap_or_else(|| HUB.to_owned());
    let parsed =
        Url::parse(&text).ok().filter(|url| ["http", "https"].contains(&url.scheme()) && url.has_host());
    let problem = "`HF_ENDPOINT` is no web address";
    parsed.ok_or_else(|| AddressError { text, problem }.into())
}

/// Returns the hub's token: `HF_TOKEN`, else the file written by the hub's own programs.
fn token() -> Result<Option<String>> {
    if is_set("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
        return Ok(None);
    }
    let variable = |name| std::env::var(name).ok().filter(|text: &String| !text.trim().is_empty());
    if let Some(text) = variable("HF_TOKEN") {
        return Ok(Some(text.trim().to_owned()));
    }
    let home = || {
        let cache = variable("XDG_CACHE_HOME").map(PathBuf::from);
        let cache = cache.or_else(|| Some(std::env::home_dir()?.join(".cache")))?;
        Some(cache.join("huggingface"))
    };
    let own = || variable("HF_HOME").map(PathBuf::from).or_else(home).map(|home| home.join("token"));
    let Some(path) = variable("HF_TOKEN_PATH").map(PathBuf::from).or_else(own) else { return Ok(None) };
    if !path.is_file() {
        return Ok(None);
    }
    let text = input::read_to_string(&path)?.trim().to_owned();
    let is_token = !text.is_empty() && text.len() < 4096 && text.bytes().all(|byte| byte.is_ascii_graphic());
    Ok(is_token.then_some(text))
}

/// Returns true if a switch of the hub's programs is on.
fn is_set(name: &str) -> bool {
    let value = std::env::var(name).unwrap_or_default().to_ascii_uppercase();
    ["1", "ON", "YES", "TRUE"].contains(&value.as_str())
}

/// Processes all items over several connections; the first failure stops it.
fn in_parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> Result<R> + Sync) -> Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::with_capacity(items.len()));
    let failure: Mutex<Option<RemoteError>> = Mutex::new(None);
    let lock_failure = || failure.lock().unpoisoned();
    std::thread::scope(|scope| {
        for _ in 0..N_THREADS.min(items.len()) {
            scope.spawn(|| {
                while lock_failure().is_none() {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(at) else { return };
                    match work(item) {
                        Ok(result) => done.lock().unpoisoned().push((at, result)),
                        Err(error) => {
                            lock_failure().get_or_insert(error);
                        }
                    }
                }
            });
        }
    });
    if let Some(error) = failure.into_inner().unpoisoned() {
        return Err(error);
    }
    let mut done = done.into_inner().unpoisoned();
    done.sort_by_key(|(at, _)| *at);
    Ok(done.into_iter().map(|(_, result)| result).collect())
}

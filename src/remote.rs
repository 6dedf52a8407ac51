//! Checkpoints on servers: repositories of the Hugging Face hub (`org/name`, `org/name@revision`), directories of web
//! servers, folders of S3 buckets. Knows no model.
//!
//! A checkpoint that is opened here gets a directory on this machine whose small files are real. Its weights stay where
//! they are: [`crate::core::ranged`] reads them by ranges as a conversion comes to them, so that they never lie on a disk
//! of this machine. With a cache they do, whole and checked.
//!
//! | module | subject |
//! |---|---|
//! | `address` | what users call a checkpoint |
//! | `client` `target` `exchange` `tls` | requests: tokens, redirects, patience; what is asked for; waiting; encryption |
//! | `listing` `s3` `names` | which files there are, and which are read |
//! | `fetch` `directory` | pieces on their way, and the directory that stands for the checkpoint |
//! | `file` | a file that is named by itself |
//! | `sums` | what the server promises of a file's bytes |
//! | `keep` | files that are kept |

mod address;
mod client;
mod directory;
mod error;
mod exchange;
mod fetch;
mod file;
mod keep;
mod listing;
mod names;
mod s3;
mod sums;
mod target;
mod tls;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use url::Url;

use crate::core::output::ScratchDirectory;
use crate::core::progress::Progress;
use crate::core::{input, platform, ranged};

pub use address::{Address, AddressError};
pub use client::Patience;
pub use error::{RemoteError, TokenUse};
pub use fetch::Failed;
pub use file::{FileAddress, RemoteFile};

use client::{Access, Client, Token};
use keep::Cache;

/// The hub where nothing else is said.
const HUB: &str = "https://huggingface.co";
/// What directories are called that last as long as a run.
const SCRATCH: &str = "gguf-foundry";
/// Threads that fetch small files, or files to be kept.
const N_THREADS: usize = 8;

/// How a checkpoint is read from a server.
#[derive(Clone)]
pub struct RemoteOptions {
    /// Where files are kept; without it weights are read by ranges and forgotten.
    pub cache: Option<PathBuf>,
    /// Bytes of weights that are held for later.
    pub budget: u64,
    /// Bytes that are asked for at once, at most.
    pub piece_bytes: u64,
    /// How long a server is waited for.
    pub patience: Patience,
    /// Says that the user wants to stop.
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

/// A checkpoint on a server that is open, and the directory that stands for it as long as this lives.
#[derive(Debug)]
pub struct RemoteCheckpoint {
    path: PathBuf,
    // Unknown before the directory goes.
    _known: ranged::Registration,
    _dir: ScratchDirectory,
}

impl RemoteCheckpoint {
    /// Finds a checkpoint and fetches its small files.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub fn open(
        address: &Address,
        options: &RemoteOptions,
        progress: &dyn Progress,
    ) -> Result<Self, RemoteError> {
        let shown = address.to_string();
        let is_offline = is_set("HF_HUB_OFFLINE") && matches!(address, Address::Hub { .. });
        let Some(root) = &options.cache else {
            if is_offline {
                return Err(RemoteError::Offline { address: shown, cache: None, missing: None });
            }
            let (client, listing) = ask(address, options)?;
            let (dir, path) = scratch_directory(&std::env::temp_dir(), address)?;
            let sizes = (options.budget, options.piece_bytes.max(1));
            let known = directory::open(&client, listing, (&path, &shown), sizes, progress)?;
            return Ok(Self { path, _known: known, _dir: dir });
        };
        let cache = Cache::new(root, address);
        // Where there are no links, files get other names, which have to be on the cache's volume.
        let place = if cfg!(windows) { root.clone() } else { std::env::temp_dir() };
        if is_offline {
            let kept = cache.kept(address, &*options.is_cancelled)?;
            return Self::of_kept(&kept, (&place, cache.folder()), address);
        }
        let (client, listing) = ask(address, options)?;
        fs_err::create_dir_all(root)?;
        if let Some(kept) = cache.fetch(&client, address, &listing, progress)? {
            return Self::of_kept(&kept, (&place, cache.folder()), address);
        }
        progress.warn(&format!(
            "{shown}: the server tells no version of its files (neither `ETag` nor `Last-Modified`): they are fetched for \
             this run, and not kept"
        ));
        let (dir, path) = scratch_directory(root, address)?;
        keep::fetch_once(&client, &listing, (&path, &shown), progress)?;
        let known = ranged::register(&path, &shown, Arc::new(Links { folder: path.clone() }));
        Ok(Self { path, _known: known, _dir: dir })
    }

    /// A directory of files that are kept, and of no others: there may be more beside them.
    fn of_kept(
        kept: &[keep::Kept],
        (place, folder): (&Path, &Path),
        address: &Address,
    ) -> Result<Self, RemoteError> {
        let (dir, path) = scratch_directory(place, address)?;
        let folder = fs_err::canonicalize(folder)?;
        for (name, file) in kept {
            let shown = path.join(name);
            if let Some(parent) = shown.parent() {
                fs_err::create_dir_all(parent)?;
            }
            platform::show_file_at(file, &shown)?;
        }
        let known = ranged::register(&path, &address.to_string(), Arc::new(Links { folder }));
        Ok(Self { path, _known: known, _dir: dir })
    }

    /// The directory that stands for the checkpoint; it has the model's name.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A directory of links to files that are kept.
#[derive(Debug)]
struct Links {
    folder: PathBuf,
}

impl ranged::RangedDirectory for Links {
    fn file(&self, _: &Path) -> Option<Arc<dyn ranged::RangedFile>> {
        None
    }

    fn folder_of_links(&self) -> Option<&Path> {
        Some(&self.folder)
    }
}

/// Where the directory that stands for a checkpoint lies as long as it is needed, and the directory.
fn scratch_directory(place: &Path, address: &Address) -> Result<(ScratchDirectory, PathBuf), RemoteError> {
    let failed = |error| RemoteError::Scratch { place: place.to_owned(), error };
    // As the paths of its files will be called wherever links lead.
    #[cfg(unix)]
    let place = &place.canonicalize().map_err(failed)?;
    let dir = ScratchDirectory::create(place, SCRATCH).map_err(failed)?;
    let path = dir.path().join(address.name());
    std::fs::create_dir(&path).map_err(failed)?;
    Ok((dir, path))
}

/// Asks for the files of a checkpoint.
fn ask(address: &Address, options: &RemoteOptions) -> Result<(Arc<Client>, listing::Listing), RemoteError> {
    let client = client_for(address, options)?;
    let listing = match address {
        Address::Hub { repository, revision } => {
            listing::of_hub(&client, &endpoint()?, repository, revision)?
        }
        Address::Web(url) => listing::of_web(&client, url)?,
        Address::S3 { bucket, prefix } => s3::list(&client, bucket, prefix)?,
    };
    Ok((client, listing))
}

/// A client for the server of an address: for the hub with its token.
fn client_for(address: &Address, options: &RemoteOptions) -> Result<Arc<Client>, RemoteError> {
    let access = match address {
        Address::Hub { .. } => {
            let origin = endpoint()?.origin();
            Access::Hub(token()?.map(|text| Token { text, origin }))
        }
        Address::Web(_) => Access::Web,
        Address::S3 { .. } => Access::Bucket,
    };
    Client::new(access, options.patience, Arc::clone(&options.is_cancelled)).map(Arc::new)
}

/// The hub's address: `HF_ENDPOINT`, for mirrors and private hubs.
fn endpoint() -> Result<Url, RemoteError> {
    let text =
        std::env::var("HF_ENDPOINT").ok().filter(|text| !text.is_empty()).unwrap_or_else(|| HUB.to_owned());
    let parsed =
        Url::parse(&text).ok().filter(|url| ["http", "https"].contains(&url.scheme()) && url.has_host());
    let problem = "`HF_ENDPOINT` is no web address";
    parsed.ok_or_else(|| AddressError { text, problem }.into())
}

/// The hub's token: `HF_TOKEN`, else the file that its own programs leave.
fn token() -> Result<Option<String>, RemoteError> {
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

/// Whether a switch of the hub's programs is on.
fn is_set(name: &str) -> bool {
    let value = std::env::var(name).unwrap_or_default().to_ascii_uppercase();
    ["1", "ON", "YES", "TRUE"].contains(&value.as_str())
}

/// Does something for each item over several connections; the first failure ends it.
fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    work: impl Fn(&T) -> Result<R, RemoteError> + Sync,
) -> Result<Vec<R>, RemoteError> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::with_capacity(items.len()));
    let failure: Mutex<Option<RemoteError>> = Mutex::new(None);
    let lock_failure = || failure.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|scope| {
        for _ in 0..N_THREADS.min(items.len()) {
            scope.spawn(|| {
                while lock_failure().is_none() {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(at) else { return };
                    match work(item) {
                        Ok(result) => done.lock().unwrap_or_else(PoisonError::into_inner).push((at, result)),
                        Err(error) => {
                            lock_failure().get_or_insert(error);
                        }
                    }
                }
            });
        }
    });
    if let Some(error) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    Ok(done.into_iter().map(|(_, result)| result).collect())
}

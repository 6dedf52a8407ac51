//! Checkpoints that stay on their server: a local directory has the small files, and placeholders for the others.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::client::Client;
use crate::error::RemoteError;
use crate::fetch::{FetchedFile, Fetcher};
use crate::listing::{FileListing, RemoteEntry};
use crate::names::{FileRole, role};
use crate::sums::RunningDigest;
use crate::{RemoteOptions, Result, in_parallel};
use gguf_core::progress::Progress;
use gguf_core::ranged::{self, RangedDirectory, RangedFile};
use gguf_core::text::escape;

/// Maximum number of bytes per weight file that are fetched in advance; most headers are shorter.
const HEAD_BYTES: u64 = 256 << 10;
/// Maximum total size of the small files in bytes.
const MAX_SMALL_BYTES: u64 = 2 << 30;

/// Files that are fetched as they are read.
#[derive(Debug)]
struct FetchedDirectory {
    /// Names of the files, sorted.
    names: Vec<PathBuf>,
    fetcher: Arc<Fetcher>,
}

impl RangedDirectory for FetchedDirectory {
    fn file(&self, name: &Path) -> Option<Arc<dyn RangedFile>> {
        let number = self.names.binary_search_by(|own| own.as_path().cmp(name)).ok()?;
        Some(Arc::new(FetchedFile { fetcher: Arc::clone(&self.fetcher), number }))
    }
}

/// Fills the empty directory `dir` with the small files of a checkpoint, and registers its other files under the name
/// `shown`.
pub(super) fn open(
    client: &Arc<Client>,
    listing: FileListing,
    dir: &Path,
    shown: &str,
    options: &RemoteOptions,
    progress: &dyn Progress,
) -> Result<ranged::Registration> {
    let (small, other): (Vec<_>, Vec<_>) =
        listing.entries.into_iter().partition(|entry| role(&entry.name, entry.n_bytes) == FileRole::Small);
    let total: u64 = small.iter().map(|entry| entry.n_bytes).fold(0, u64::saturating_add);
    if total > MAX_SMALL_BYTES {
        let (what, limit) = ("bytes of small files", MAX_SMALL_BYTES);
        return Err(RemoteError::TooMuch { url: shown.to_owned(), what, found: total, limit });
    }
    progress.begin(&format!("fetching {shown}"), total);
    let fetched = in_parallel(&small, |entry| {
        let bytes = whole(client, entry)?;
        let path = dir.join(&entry.name);
        if let Some(parent) = path.parent() {
            fs_err::create_dir_all(parent)?;
        }
        fs_err::write(path, bytes)?;
        progress.advance(entry.n_bytes);
        Ok(())
    });
    progress.end();
    fetched?;

    let mut names = Vec::with_capacity(other.len());
    let mut files = Vec::with_capacity(other.len());
    let mut other: Vec<(PathBuf, RemoteEntry)> =
        other.into_iter().map(|entry| (entry.name.clone().into(), entry)).collect();
    other.sort_by(|a, b| a.0.cmp(&b.0));
    let mut heads = Vec::new();
    for (name, entry) in other {
        let path = dir.join(&name);
        if let Some(parent) = path.parent() {
            fs_err::create_dir_all(parent)?;
        }
        // The placeholder has the right length but no data: reading it without the server is refused.
        let placeholder = fs_err::File::create(path)?;
        #[cfg(unix)]
        placeholder.set_len(entry.n_bytes)?;
        #[cfg(not(unix))]
        drop(placeholder);
        let is_header_first =
            role(&entry.name, entry.n_bytes) == FileRole::Weights && entry.name.ends_with(".safetensors");
        heads.extend(is_header_first.then_some((names.len(), entry.n_bytes)));
        names.push(name);
        files.push(entry);
    }
    // What neither a tag nor a digest identifies may change from one request to the next.
    if let Some(entry) = files.iter().find(|entry| entry.digest.is_none() && entry.target.tag().is_none()) {
        progress.warn(&format!(
            "{shown}: the server reports no version of `{}` (neither `ETag` nor `Last-Modified`): if it changes while it is \
             read, that cannot be noticed; `--cache DIR` fetches whole files",
            escape(&entry.name)
        ));
    }
    let budget = options.budget;
    let fetcher = Fetcher::new(Arc::clone(client), files, budget, options.piece_bytes.max(1));
    let fetcher = Arc::new(fetcher);
    // Bytes after a short header wait until its tensors are read, so less is fetched per file if there are many.
    let head_bytes = (budget / 4 / (heads.len() as u64).max(1)).clamp(4 << 10, HEAD_BYTES);
    for (number, n_bytes) in heads {
        FetchedFile { fetcher: Arc::clone(&fetcher), number }.expect(0, n_bytes.min(head_bytes));
    }
    Ok(ranged::register(dir, shown, Arc::new(FetchedDirectory { names, fetcher })))
}

/// Fetches a whole file and verifies it against the server's digest.
fn whole(client: &Client, entry: &RemoteEntry) -> Result<Vec<u8>> {
    // The list may declare any length, so the buffer only grows as bytes arrive.
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < entry.n_bytes {
        let offset = bytes.len();
        let step = (entry.n_bytes - offset as u64).min(16 << 20) as usize;
        bytes.resize(offset + step, 0);
        client.read(&entry.target, offset as u64, &mut bytes[offset..])?;
    }
    let mut sum = RunningDigest::new(entry);
    sum.update(&bytes);
    sum.check(entry)?;
    Ok(bytes)
}

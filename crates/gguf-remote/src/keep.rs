//! Cache of files (`--cache DIR`). They are fetched whole, verified, and stored in the layout of the hub's own
//! programs, so that both find each other's files.
//!
//! # Layout
//! `models--ORG--NAME/blobs/DIGEST` are files, `snapshots/COMMIT/FILE` are links to them, `refs/REVISION` contains the
//! commit. For servers without commits and digests, both names are derived from the list of files.
//!
//! `.locks/models--ORG--NAME/DIGEST.lock` is locked while a file is fetched, as in the hub's programs, so that several
//! processes can share a cache. The same directory has notes of this program. `DIGEST.checked` records that a file was
//! verified, and the file's metadata at that time. While the metadata are unchanged, the file is trusted; otherwise its
//! digest is computed again. `COMMIT.files` lists the files of a commit: without a network, all of them must exist.

use crate::Result;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::address::Address;
use crate::client::Client;
use crate::error::RemoteError;
use crate::in_parallel;
use crate::listing::{ExpectedDigest, FileListing, RemoteEntry, is_hex, is_inside};
use crate::names::{FileRole, role};
use crate::sums::RunningDigest;
use crate::target::RequestTarget;
use gguf_core::output::{EditLock, EditLockError, OutputFile};
use gguf_core::platform::{FileId, stamp};
use gguf_core::progress::Progress;
use gguf_core::text::{escape, hex};

/// Unit in bytes at which an interrupted download resumes: the data after the last whole unit may be incomplete.
const STEP_BYTES: u64 = 16 << 20;
/// Number of bytes read at once for a digest.
const CHUNK_BYTES: usize = 1 << 20;
/// Waiting time for a lock after which the user is told.
const LONG: Duration = Duration::from_secs(2);
/// Maximum size of a list in bytes.
const MAX_LIST_BYTES: u64 = 64 << 20;

/// A file of a checkpoint in the cache.
pub(super) struct CachedFile {
    pub(super) name: String,
    pub(super) path: PathBuf,
}

/// A cache directory, for one checkpoint.
#[derive(Debug)]
pub(super) struct Cache<'a> {
    root: &'a Path,
    /// Folder of the checkpoint.
    folder: PathBuf,
    /// Folder with locks and notes of the checkpoint.
    notes: PathBuf,
    /// True once the user was told about the wait for a lock.
    is_wait_reported: AtomicBool,
}

/// A file in the list of a commit.
#[derive(Debug, Serialize, Deserialize)]
struct CommitFile {
    name: String,
    n_bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sha256: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    git: Option<String>,
}

impl CommitFile {
    fn of(entry: &RemoteEntry) -> Self {
        let (sha256, git) = match entry.digest.clone() {
            Some(ExpectedDigest::Sha256(sum)) => (Some(sum), None),
            Some(ExpectedDigest::GitBlob(sum)) => (None, Some(sum)),
            None => (None, None),
        };
        Self { name: entry.name.clone(), n_bytes: entry.n_bytes, sha256, git }
    }

    /// Returns the entry of a file without a server.
    fn entry(&self) -> Option<RemoteEntry> {
        let digest = match (&self.sha256, &self.git) {
            (Some(sum), _) => Some(ExpectedDigest::Sha256(sum.clone())),
            (None, Some(sum)) => Some(ExpectedDigest::GitBlob(sum.clone())),
            (None, None) => None,
        };
        let nowhere = url::Url::parse("file:///").ok()?;
        let target = Arc::new(RequestTarget::new(nowhere, Some(self.n_bytes)));
        is_inside(&self.name).then(|| RemoteEntry {
            name: self.name.clone(),
            n_bytes: self.n_bytes,
            digest,
            target,
        })
    }
}

impl<'a> Cache<'a> {
    pub(super) fn new(root: &'a Path, address: &Address) -> Self {
        let folder = match address {
            Address::Hub { repository, .. } => format!("models--{}", repository.replace('/', "--")),
            Address::Web(_) => {
                let plain =
                    |c: char| if c.is_ascii_alphanumeric() || ['.', '-', '_'].contains(&c) { c } else { '-' };
                let text = address.to_string();
                let sum = hex(&Sha256::digest(&text)[..4]);
                let text: String = text.chars().take(120).map(plain).collect();
                format!("models--{}--{sum}", text.trim_end_matches('-'))
            }
        };
        let notes = root.join(".locks").join(&folder);
        Self { root, folder: root.join(folder), notes, is_wait_reported: AtomicBool::new(false) }
    }

    /// Folder of the checkpoint's files.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the files of a revision as last cached, without network access.
    pub(super) fn cached(
        &self,
        address: &Address,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Vec<CachedFile>> {
        let missing = |missing| RemoteError::Offline {
            address: address.to_string(),
            cache: Some(self.root.to_owned()),
            missing,
        };
        let (entries, commit) = self.cached_entries(address).map_err(missing)?;
        let mut cached = Vec::with_capacity(entries.len());
        for entry in entries {
            let path = CachedPaths::new(self, &entry, &commit).whole(&entry, is_cancelled)?;
            let path = path.ok_or_else(|| missing(Some(entry.name.clone())))?;
            cached.push(CachedFile { name: entry.name, path });
        }
        Ok(cached)
    }

    /// Returns the files of a revision as last listed, and its commit.
    fn cached_entries(&self, address: &Address) -> Result<(Vec<RemoteEntry>, String), Option<String>> {
        let Address::Hub { revision, .. } = address else { return Err(None) };
        let named = fs_err::read_to_string(self.folder.join("refs").join(revision)).ok();
        let commit = named.as_deref().map_or(revision.as_str(), str::trim);
        if !is_hex(commit, 40) {
            return Err(None);
        }
        let snapshot = self.folder.join("snapshots").join(commit);
        let entries = match self.listed(commit) {
            Some(entries) => entries,
            None => self.of_others(&snapshot)?,
        };
        Ok((entries, commit.to_owned()))
    }

    fn listed(&self, commit: &str) -> Option<Vec<RemoteEntry>> {
        let path = self.notes.join(format!("{commit}.files"));
        if path.metadata().ok()?.len() > MAX_LIST_BYTES {
            return None;
        }
        let listed: Vec<CommitFile> = serde_json::from_slice(&fs_err::read(path).ok()?).ok()?;
        listed.iter().map(CommitFile::entry).collect()
    }

    /// Returns the files of a snapshot that the hub's own programs stored: the names of their blobs are their digests.
    fn of_others(&self, snapshot: &Path) -> Result<Vec<RemoteEntry>, Option<String>> {
        let blobs = fs_err::read_dir(self.folder.join("blobs")).map_err(|_| None)?;
        if blobs.flatten().any(|blob| blob.path().extension().is_some_and(|end| end == "incomplete")) {
            return Err(None);
        }
        let mut entries = Vec::new();
        let mut folders = vec![(String::new(), snapshot.to_owned())];
        while let Some((prefix, folder)) = folders.pop() {
            for file in fs_err::read_dir(&folder).map_err(|_| None)?.flatten() {
                let path = file.path();
                let name = format!("{prefix}{}", file.file_name().to_string_lossy());
                if path.is_dir() && !path.is_symlink() {
                    folders.push((format!("{name}/"), path));
                    continue;
                }
                let n_bytes = path.metadata().map_err(|_| Some(name.clone()))?.len();
                let id =
                    path.canonicalize().ok().and_then(|blob| Some(blob.file_name()?.to_str()?.to_owned()));
                let (sha256, git) = match id {
                    Some(id) if is_hex(&id, 64) => (Some(id), None),
                    Some(id) if is_hex(&id, 40) => (None, Some(id)),
                    _ => (None, None),
                };
                if role(&name, n_bytes) != FileRole::Other {
                    entries.extend(CommitFile { name, n_bytes, sha256, git }.entry());
                }
            }
        }
        let has = |name: &str| entries.iter().any(|entry| entry.name == name);
        if !has("config.json") {
            return Err(Some("config.json".to_owned()));
        }
        for index in entries.iter().filter(|entry| entry.name.ends_with(".index.json")) {
            let text = fs_err::read(snapshot.join(&index.name)).unwrap_or_default();
            let index: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
            let named = index["weight_map"].as_object().into_iter().flat_map(|map| map.values());
            if let Some(missing) = named.filter_map(|name| name.as_str()).find(|name| !has(name)) {
                return Err(Some(missing.to_owned()));
            }
        }
        Ok(entries)
    }

    /// Fetches the missing files and returns the paths of all. `None` if the server has no versions of its files: a
    /// cached file could not be distinguished from a newer one.
    pub(super) fn fetch(
        &self,
        client: &Client,
        address: &Address,
        listing: &FileListing,
        progress: &dyn Progress,
    ) -> Result<Option<Vec<CachedFile>>> {
        let entries = wanted(listing);
        let has_version = |entry: &&RemoteEntry| entry.digest.is_some() || entry.target.tag().is_some();
        if !entries.iter().all(has_version) {
            return Ok(None);
        }
        let commit = listing.commit.clone().unwrap_or_else(|| state_of(&listing.entries));
        // A read-only cache is usable if it is complete.
        let listed: Vec<CommitFile> = entries.iter().map(|entry| CommitFile::of(entry)).collect();
        let listed = serde_json::to_vec(&listed).map_err(std::io::Error::from)?;
        let _ = fs_err::create_dir_all(&self.notes)
            .map_err(RemoteError::from)
            .and_then(|()| write(&self.notes.join(format!("{commit}.files")), &listed));
        let total = entries.iter().map(|entry| entry.n_bytes).sum();
        progress.begin(&format!("fetching {address} to {}", self.root.display()), total);
        let fetched = in_parallel(&entries, |entry| self.fetch_file(client, entry, &commit, progress));
        progress.end();
        let fetched = fetched?;
        if let Address::Hub { revision, .. } = address
            && *revision != commit
        {
            let path = self.folder.join("refs").join(revision);
            if fs_err::read_to_string(&path).is_ok_and(|found| found.trim() == commit) {
                return Ok(Some(fetched));
            }
            if let Some(parent) = path.parent() {
                fs_err::create_dir_all(parent)?;
            }
            write(&path, commit.as_bytes())?;
        }
        Ok(Some(fetched))
    }

    fn fetch_file(
        &self,
        client: &Client,
        entry: &RemoteEntry,
        commit: &str,
        progress: &dyn Progress,
    ) -> Result<CachedFile> {
        let paths = CachedPaths::new(self, entry, commit);
        let is_cancelled = || client.is_cancelled();
        let mut found = paths.whole(entry, &is_cancelled)?;
        let mut lock = None;
        if found.is_none() {
            fs_err::create_dir_all(self.folder.join("blobs"))?;
            fs_err::create_dir_all(&self.notes)?;
            lock = Some(self.lock(client, &paths, entry, progress)?);
            // The previous holder of the lock may have fetched the file.
            found = paths.whole(entry, &is_cancelled)?;
        }
        let path = if let Some(path) = found {
            progress.advance(entry.n_bytes);
            path
        } else {
            if paths.blob.exists() {
                progress.warn(&format!(
                    "{}: kept with other bytes than it should have: it is fetched again",
                    escape(&entry.name)
                ));
            }
            let part = if lock.as_ref().is_some_and(EditLock::is_locked) {
                paths.blob.with_extension("incomplete")
            } else {
                // Without a lock, other processes may fetch the same file.
                paths.blob.with_extension(format!("{}.incomplete", std::process::id()))
            };
            let sum = download(client, entry, &part, progress)?;
            fs_err::rename(&part, &paths.blob)?;
            paths.note(&paths.blob, &sum)?;
            paths.blob.clone()
        };
        if path == paths.blob {
            paths.link(entry)?;
        }
        Ok(CachedFile { name: entry.name.clone(), path })
    }

    /// Waits until no other process fetches a file.
    fn lock(
        &self,
        client: &Client,
        paths: &CachedPaths,
        entry: &RemoteEntry,
        progress: &dyn Progress,
    ) -> Result<EditLock> {
        let path = self.notes.join(format!("{}.lock", paths.id));
        File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(|error| std::io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        let mut waiting = |waited: Duration| {
            if waited > LONG && !self.is_wait_reported.swap(true, Ordering::Relaxed) {
                progress.warn(&format!(
                    "{}: another program is fetching {} to this cache: it is waited for",
                    self.root.display(),
                    escape(&entry.name)
                ));
            }
            !client.is_cancelled()
        };
        EditLock::of(&path, Duration::MAX, &mut waiting).map_err(|error| match error {
            EditLockError::Io(error) => error.into(),
            EditLockError::Busy { .. } | EditLockError::Cancelled => RemoteError::Cancelled,
        })
    }
}

/// Paths of a cached file.
struct CachedPaths {
    id: String,
    blob: PathBuf,
    link: PathBuf,
    note: PathBuf,
}

impl CachedPaths {
    fn new(cache: &Cache<'_>, entry: &RemoteEntry, commit: &str) -> Self {
        let id = entry.digest.as_ref().map_or_else(
            || hex(&Sha256::digest(format!("{commit} {}", entry.name))),
            |digest| digest.hex().to_ascii_lowercase(),
        );
        Self {
            blob: cache.folder.join("blobs").join(&id),
            link: cache.folder.join("snapshots").join(commit).join(&entry.name),
            note: cache.notes.join(format!("{id}.checked")),
            id,
        }
    }

    /// Returns the path of the file if it has the right bytes: under its digest or, without links, under its name.
    fn whole(&self, entry: &RemoteEntry, is_cancelled: &dyn Fn() -> bool) -> Result<Option<PathBuf>> {
        for path in [&self.blob, &self.link] {
            let is_file = path.symlink_metadata().is_ok_and(|found| found.is_file());
            if is_file
                && path.metadata()?.len() == entry.n_bytes
                && self.is_right(entry, path, is_cancelled)?
            {
                return Ok(Some(path.clone()));
            }
        }
        Ok(None)
    }

    /// Returns true if a file of the right length has the right bytes.
    fn is_right(&self, entry: &RemoteEntry, path: &Path, is_cancelled: &dyn Fn() -> bool) -> Result<bool> {
        let note = fs_err::read_to_string(&self.note).unwrap_or_default();
        let (stamp, sum) = note.trim_end().rsplit_once(' ').unwrap_or_default();
        if !sum.is_empty() && stamp_of(path)? == stamp {
            return Ok(true);
        }
        let found = sum_of(entry, path, is_cancelled)?;
        let is_right = match &entry.digest {
            Some(digest) => found == digest.hex().to_ascii_lowercase(),
            // Without a digest of the server, the digest recorded after the download applies.
            None => found == sum,
        };
        if is_right {
            // A cache may belong to another user, who alone may write to it.
            let _ = self.note(path, &found);
        }
        Ok(is_right)
    }

    /// Records the digest and the metadata of a file.
    fn note(&self, path: &Path, sum: &str) -> Result<()> {
        write(&self.note, format!("{} {sum}\n", stamp_of(path)?).as_bytes())
    }

    /// Links the file to its name in the snapshot.
    fn link(&self, entry: &RemoteEntry) -> Result<()> {
        if let Some(parent) = self.link.parent() {
            fs_err::create_dir_all(parent)?;
        }
        #[cfg(unix)]
        {
            let up = "../".repeat(2 + entry.name.matches('/').count());
            let target = PathBuf::from(format!("{up}blobs/{}", self.id));
            if self.link.read_link().is_ok_and(|found| found == target) {
                return Ok(());
            }
            // Atomically, because other processes may read the link.
            let new = self.link.with_file_name(format!(".{}.{}.tmp", self.id, std::process::id()));
            let _ = fs_err::remove_file(&new);
            fs_err::os::unix::fs::symlink(&target, &new)?;
            fs_err::rename(&new, &self.link)?;
        }
        // On Windows, symbolic links need a privilege that few users have.
        #[cfg(not(unix))]
        {
            let _ = (entry, fs_err::remove_file(&self.link));
            fs_err::hard_link(&self.blob, &self.link)?;
        }
        Ok(())
    }
}

/// Selects the files of a list that are fetched.
pub(super) fn wanted(listing: &FileListing) -> Vec<&RemoteEntry> {
    listing.entries.iter().filter(|entry| role(&entry.name, entry.n_bytes) != FileRole::Other).collect()
}

/// Fetches the files of a checkpoint for this run only.
pub(super) fn fetch_once(
    client: &Client,
    listing: &FileListing,
    dir: &Path,
    shown: &str,
    progress: &dyn Progress,
) -> Result<()> {
    let entries = wanted(listing);
    progress.begin(&format!("fetching {shown}"), entries.iter().map(|entry| entry.n_bytes).sum());
    let fetched = in_parallel(&entries, |entry| {
        let path = dir.join(&entry.name);
        if let Some(parent) = path.parent() {
            fs_err::create_dir_all(parent)?;
        }
        download(client, entry, &path, progress).map(drop)
    });
    progress.end();
    fetched.map(drop)
}

/// Fetches a file to a path, resumes an earlier run, and verifies the written file against the server's digest. Returns
/// its digest.
fn download(client: &Client, entry: &RemoteEntry, part: &Path, progress: &dyn Progress) -> Result<String> {
    let mut file =
        fs_err::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(part)?;
    let present = file.metadata()?.len();
    let mut cached = if present > entry.n_bytes { 0 } else { present / STEP_BYTES * STEP_BYTES };
    loop {
        file.set_len(cached)?;
        file.seek(SeekFrom::Start(cached))?;
        progress.advance(cached);
        client.stream(&entry.target, cached..entry.n_bytes, u64::MAX, &mut |bytes| {
            file.write_all(bytes)?;
            progress.advance(bytes.len() as u64);
            Ok(())
        })?;
        file.sync_all()?;
        let found = sum_of(entry, part, &|| client.is_cancelled())?;
        let Err(error) = RunningDigest::compare(entry, &found) else { return Ok(found) };
        if cached == 0 {
            // Damaged data would fail again on the next run.
            let _ = fs_err::remove_file(part);
            return Err(error);
        }
        log::info!("{error}: fetching all of it again");
        cached = 0;
    }
}

/// Computes the digest of a file on disk: of the kind that the server declares, else SHA-256.
fn sum_of(entry: &RemoteEntry, path: &Path, is_cancelled: &dyn Fn() -> bool) -> Result<String> {
    let mut file = fs_err::File::open(path)?;
    let mut sum = RunningDigest::new(entry);
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        if is_cancelled() {
            return Err(RemoteError::Cancelled);
        }
        match file.read(&mut buffer)? {
            0 => return Ok(sum.finish()),
            n => sum.update(&buffer[..n]),
        }
    }
}

/// Returns a stamp that changes if a file is replaced or modified.
fn stamp_of(path: &Path) -> std::io::Result<String> {
    let index = FileId::at(path).map_or(0, |id| id.index);
    Ok(format!("{}, inode {index}", stamp(&fs_err::metadata(path)?)))
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    OutputFile::write(path, bytes, false).map_err(|error| std::io::Error::from(error).into())
}

/// Derives a name for the state of files whose server has no commits.
fn state_of(entries: &[RemoteEntry]) -> String {
    let mut hash = Sha256::new();
    for entry in entries {
        hash.update(format!(
            "{}\0{}\0{}\n",
            entry.name,
            entry.n_bytes,
            entry.target.tag().unwrap_or_default()
        ));
    }
    hex(&hash.finalize()[..20])
}

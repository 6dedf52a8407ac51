//! Files that are kept (`--cache DIR`): fetched whole, checked, and laid down as the hub's own programs do, so that both
//! find what the other has fetched.
//!
//! # Layout
//! `models--ORG--NAME/blobs/DIGEST` are files, `snapshots/COMMIT/FILE` links to them, `refs/REVISION` names the commit. For
//! servers that name no commit and no digests, they are made of what the list says.
//!
//! `.locks/models--ORG--NAME/DIGEST.lock` is locked by whoever fetches a file, there as in the hub's programs, so that many
//! may use one cache at once. Beside it lie notes of ours. `DIGEST.checked` tells of the bytes of a file that they were held
//! against its sum, and what the file was then: as long as it is that, it is believed; else its sum is taken again.
//! `COMMIT.files` is the list of the files of a commit: without a network they must all be there.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::core::output::{EditLock, EditLockError, OutputFile};
use crate::core::platform::{FileId, stamp};
use crate::core::progress::Progress;
use crate::core::text::escape;
use crate::remote::address::Address;
use crate::remote::client::Client;
use crate::remote::error::RemoteError;
use crate::remote::in_parallel;
use crate::remote::listing::{Digest, Entry, Listing, is_hex, is_inside};
use crate::remote::names::{Role, role};
use crate::remote::sums::{Sum, hex};
use crate::remote::target::Target;

/// An interrupted file is gone on with at multiples of this: what lies behind was cut off anywhere.
const STEP_BYTES: u64 = 16 << 20;
/// Bytes that are read at once where a sum is taken.
const CHUNK_BYTES: usize = 1 << 20;
/// After this long it is said that somebody is waited for.
const LONG: Duration = Duration::from_secs(2);
/// Notes are short, lists may be long.
const MAX_LIST_BYTES: u64 = 64 << 20;

/// A file of a checkpoint: its name there, and where it is kept.
pub(super) type Kept = (String, PathBuf);

/// A folder of kept checkpoints.
#[derive(Debug)]
pub(super) struct Cache<'a> {
    root: &'a Path,
    /// The folder of the one checkpoint.
    folder: PathBuf,
    /// Locks and notes of that checkpoint.
    notes: PathBuf,
    /// It was said that somebody is waited for.
    is_waiting_said: AtomicBool,
}

/// A file in the list of a commit.
#[derive(Debug, Serialize, Deserialize)]
struct Listed {
    name: String,
    n_bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sha256: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    git: Option<String>,
}

impl Listed {
    fn of(entry: &Entry) -> Self {
        let (sha256, git) = match entry.digest.clone() {
            Some(Digest::Sha256(sum)) => (Some(sum), None),
            Some(Digest::GitBlob(sum)) => (None, Some(sum)),
            None => (None, None),
        };
        Self { name: entry.name.clone(), n_bytes: entry.n_bytes, sha256, git }
    }

    /// The entry of a file that nobody can be asked for.
    fn entry(&self) -> Option<Entry> {
        let digest = match (&self.sha256, &self.git) {
            (Some(sum), _) => Some(Digest::Sha256(sum.clone())),
            (None, Some(sum)) => Some(Digest::GitBlob(sum.clone())),
            (None, None) => None,
        };
        let nowhere = url::Url::parse("file:///").ok()?;
        let target = Arc::new(Target::new(nowhere, Some(self.n_bytes)));
        is_inside(&self.name).then(|| Entry {
            name: self.name.clone(),
            n_bytes: self.n_bytes,
            digest,
            target,
        })
    }
}

impl<'a> Cache<'a> {
    /// The place of a checkpoint in a cache.
    pub(super) fn new(root: &'a Path, address: &Address) -> Self {
        let folder = match address {
            Address::Hub { repository, .. } => format!("models--{}", repository.replace('/', "--")),
            Address::Web(_) | Address::S3 { .. } => {
                let plain =
                    |c: char| if c.is_ascii_alphanumeric() || ['.', '-', '_'].contains(&c) { c } else { '-' };
                let text = address.to_string();
                let sum = hex(&Sha256::digest(&text)[..4]);
                let text: String = text.chars().take(120).map(plain).collect();
                format!("models--{}--{sum}", text.trim_end_matches('-'))
            }
        };
        let notes = root.join(".locks").join(&folder);
        Self { root, folder: root.join(folder), notes, is_waiting_said: AtomicBool::new(false) }
    }

    /// Where all its files lie.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The files of a revision as they were kept the last time, without asking anybody.
    ///
    /// # Errors
    /// They are not all there; the user wants to stop.
    pub(super) fn kept(
        &self,
        address: &Address,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Vec<Kept>, RemoteError> {
        let missing = |missing| RemoteError::Offline {
            address: address.to_string(),
            cache: Some(self.root.to_owned()),
            missing,
        };
        let (entries, commit) = self.kept_entries(address).map_err(missing)?;
        let mut kept = Vec::with_capacity(entries.len());
        for entry in entries {
            let path = Place::new(self, &entry, &commit).whole(&entry, is_cancelled)?;
            kept.push((entry.name.clone(), path.ok_or_else(|| missing(Some(entry.name)))?));
        }
        Ok(kept)
    }

    /// The files that a revision had the last time, and its commit.
    ///
    /// # Errors
    /// Nothing is known; or the name of a file that is missing.
    fn kept_entries(&self, address: &Address) -> Result<(Vec<Entry>, String), Option<String>> {
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

    /// The list of a commit that we noted.
    fn listed(&self, commit: &str) -> Option<Vec<Entry>> {
        let path = self.notes.join(format!("{commit}.files"));
        if path.metadata().ok()?.len() > MAX_LIST_BYTES {
            return None;
        }
        let listed: Vec<Listed> = serde_json::from_slice(&fs_err::read(path).ok()?).ok()?;
        listed.iter().map(Listed::entry).collect()
    }

    /// The files of a snapshot that the hub's own programs have laid down: what they are called there tells their sums.
    ///
    /// # Errors
    /// Something is missing.
    fn of_others(&self, snapshot: &Path) -> Result<Vec<Entry>, Option<String>> {
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
                if role(&name, n_bytes) != Role::Other {
                    entries.extend(Listed { name, n_bytes, sha256, git }.entry());
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

    /// Fetches what is not there yet and returns where the files are. `None` where the server tells no version of its
    /// files: what would be kept could not be told from what is there tomorrow.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub(super) fn fetch(
        &self,
        client: &Client,
        address: &Address,
        listing: &Listing,
        progress: &dyn Progress,
    ) -> Result<Option<Vec<Kept>>, RemoteError> {
        let entries = wanted(listing);
        let has_version = |entry: &&Entry| entry.digest.is_some() || entry.target.tag().is_some();
        if !entries.iter().all(has_version) {
            return Ok(None);
        }
        let commit = listing.commit.clone().unwrap_or_else(|| state_of(&listing.entries));
        // A cache that may not be written to serves all the same, if all is there.
        let listed: Vec<Listed> = entries.iter().map(|entry| Listed::of(entry)).collect();
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
        entry: &Entry,
        commit: &str,
        progress: &dyn Progress,
    ) -> Result<Kept, RemoteError> {
        let place = Place::new(self, entry, commit);
        let is_cancelled = || client.is_cancelled();
        let mut found = place.whole(entry, &is_cancelled)?;
        let mut lock = None;
        if found.is_none() {
            fs_err::create_dir_all(self.folder.join("blobs"))?;
            fs_err::create_dir_all(&self.notes)?;
            lock = Some(self.lock(client, &place, entry, progress)?);
            // Whoever had the lock may have fetched it.
            found = place.whole(entry, &is_cancelled)?;
        }
        let path = if let Some(path) = found {
            progress.advance(entry.n_bytes);
            path
        } else {
            if place.blob.exists() {
                progress.warn(&format!(
                    "{}: kept with other bytes than it should have: it is fetched again",
                    escape(&entry.name)
                ));
            }
            let part = if lock.as_ref().is_some_and(EditLock::is_locked) {
                place.blob.with_extension("incomplete")
            } else {
                // Nobody knows who else is at it.
                place.blob.with_extension(format!("{}.incomplete", std::process::id()))
            };
            let sum = download(client, entry, &part, progress)?;
            fs_err::rename(&part, &place.blob)?;
            place.note(&place.blob, &sum)?;
            place.blob.clone()
        };
        if path == place.blob {
            place.link(entry)?;
        }
        Ok((entry.name.clone(), path))
    }

    /// Waits until nobody else is at a file.
    fn lock(
        &self,
        client: &Client,
        place: &Place,
        entry: &Entry,
        progress: &dyn Progress,
    ) -> Result<EditLock, RemoteError> {
        let path = self.notes.join(format!("{}.lock", place.id));
        File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(|error| std::io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        let mut waiting = |waited: Duration| {
            if waited > LONG && !self.is_waiting_said.swap(true, Ordering::Relaxed) {
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

/// Where a file is kept.
struct Place {
    id: String,
    blob: PathBuf,
    link: PathBuf,
    note: PathBuf,
}

impl Place {
    fn new(cache: &Cache<'_>, entry: &Entry, commit: &str) -> Self {
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

    /// The file that has the bytes it should have, if there is one: under its digest or, where there are no links, its name.
    fn whole(&self, entry: &Entry, is_cancelled: &dyn Fn() -> bool) -> Result<Option<PathBuf>, RemoteError> {
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

    /// Whether a file of the right length has the right bytes.
    fn is_right(
        &self,
        entry: &Entry,
        path: &Path,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<bool, RemoteError> {
        let note = fs_err::read_to_string(&self.note).unwrap_or_default();
        let (stamp, sum) = note.trim_end().rsplit_once(' ').unwrap_or_default();
        if !sum.is_empty() && stamp_of(path)? == stamp {
            return Ok(true);
        }
        let found = sum_of(entry, path, is_cancelled)?;
        let is_right = match &entry.digest {
            Some(digest) => found == digest.hex().to_ascii_lowercase(),
            // Of a server that promises nothing the sum is known that the file had when it came.
            None => found == sum,
        };
        if is_right {
            // A cache may be another user's, who alone writes there.
            let _ = self.note(path, &found);
        }
        Ok(is_right)
    }

    /// Notes the sum of a file, and what the file is.
    fn note(&self, path: &Path, sum: &str) -> Result<(), RemoteError> {
        write(&self.note, format!("{} {sum}\n", stamp_of(path)?).as_bytes())
    }

    /// Gives the file its name in the snapshot.
    fn link(&self, entry: &Entry) -> Result<(), RemoteError> {
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
            // In one step: others may be reading the link.
            let new = self.link.with_file_name(format!(".{}.{}.tmp", self.id, std::process::id()));
            let _ = fs_err::remove_file(&new);
            fs_err::os::unix::fs::symlink(&target, &new)?;
            fs_err::rename(&new, &self.link)?;
        }
        // Links need a right there that few have.
        #[cfg(not(unix))]
        {
            let _ = (entry, fs_err::remove_file(&self.link));
            fs_err::hard_link(&self.blob, &self.link)?;
        }
        Ok(())
    }
}

/// The files of a list that are fetched.
pub(super) fn wanted(listing: &Listing) -> Vec<&Entry> {
    listing.entries.iter().filter(|entry| role(&entry.name, entry.n_bytes) != Role::Other).collect()
}

/// Fetches the files of a checkpoint for this run only.
///
/// # Errors
/// [`RemoteError`].
pub(super) fn fetch_once(
    client: &Client,
    listing: &Listing,
    (dir, shown): (&Path, &str),
    progress: &dyn Progress,
) -> Result<(), RemoteError> {
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

/// Fetches a file to a path, goes on where an earlier run stopped, and holds what is on the disk against what the server
/// promises. Returns its sum.
fn download(
    client: &Client,
    entry: &Entry,
    part: &Path,
    progress: &dyn Progress,
) -> Result<String, RemoteError> {
    let mut file =
        fs_err::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(part)?;
    let present = file.metadata()?.len();
    let mut kept = if present > entry.n_bytes { 0 } else { present / STEP_BYTES * STEP_BYTES };
    loop {
        file.set_len(kept)?;
        file.seek(SeekFrom::Start(kept))?;
        progress.advance(kept);
        client.stream(&entry.target, (kept, entry.n_bytes - kept), u64::MAX, &mut |bytes| {
            file.write_all(bytes)?;
            progress.advance(bytes.len() as u64);
            Ok(())
        })?;
        file.sync_all()?;
        let found = sum_of(entry, part, &|| client.is_cancelled())?;
        let Err(error) = Sum::compare(entry, &found) else { return Ok(found) };
        if kept == 0 {
            // Damaged bytes would be damaged the next time, too.
            let _ = fs_err::remove_file(part);
            return Err(error);
        }
        log::info!("{error}: fetching all of it again");
        kept = 0;
    }
}

/// The sum of a file's bytes on the disk: of the kind that the server promises, else SHA-256.
fn sum_of(entry: &Entry, path: &Path, is_cancelled: &dyn Fn() -> bool) -> Result<String, RemoteError> {
    let mut file = fs_err::File::open(path)?;
    let mut sum = Sum::new(entry);
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

/// What tells a file from one that was put in its place or changed.
fn stamp_of(path: &Path) -> std::io::Result<String> {
    let index = FileId::at(path).map_or(0, |id| id.index);
    Ok(format!("{}, inode {index}", stamp(&fs_err::metadata(path)?)))
}

/// Writes a note, whole or not at all.
fn write(path: &Path, bytes: &[u8]) -> Result<(), RemoteError> {
    OutputFile::write(path, bytes, false).map_err(|error| std::io::Error::from(error).into())
}

/// A name for the state of files whose server has none for it.
fn state_of(entries: &[Entry]) -> String {
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

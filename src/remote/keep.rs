//! Files that are kept (`--cache DIR`): fetched whole, checked, and laid down as the hub's own programs do, so that both
//! find what the other has fetched.
//!
//! # Layout
//! `models--ORG--NAME/blobs/DIGEST` are files, `snapshots/COMMIT/FILE` links to them, `refs/REVISION` names the commit. For
//! servers that name no commit and no digests, they are made of what the list says.

use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use crate::core::progress::Progress;
use crate::remote::address::Address;
use crate::remote::client::Client;
use crate::remote::error::RemoteError;
use crate::remote::in_parallel;
use crate::remote::listing::{Entry, Listing};
use crate::remote::names::{Role, role};
use crate::remote::sums::{Sum, hex};

/// Bytes of a file that are asked for at once.
const STEP_BYTES: u64 = 16 << 20;

/// A folder of kept checkpoints.
#[derive(Debug)]
pub(super) struct Cache<'a> {
    root: &'a Path,
    /// The folder of the one checkpoint.
    folder: PathBuf,
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
        Self { root, folder: root.join(folder) }
    }

    /// The files of a revision as they were kept the last time; `None` if they were not.
    pub(super) fn kept(&self, address: &Address) -> Option<PathBuf> {
        let Address::Hub { revision, .. } = address else { return None };
        let named = fs_err::read_to_string(self.folder.join("refs").join(revision)).ok();
        let commit = named.as_deref().map_or(revision.as_str(), str::trim);
        let is_name = commit.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let dir = self.folder.join("snapshots").join(commit);
        (is_name && dir.join("config.json").exists()).then_some(dir)
    }

    /// Fetches what is not there yet and returns the directory of the checkpoint.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub(super) fn fetch(
        &self,
        client: &Client,
        address: &Address,
        listing: &Listing,
        progress: &dyn Progress,
    ) -> Result<PathBuf, RemoteError> {
        let wanted = |entry: &&Entry| role(&entry.name, entry.n_bytes) != Role::Other;
        let entries: Vec<&Entry> = listing.entries.iter().filter(wanted).collect();
        let commit = listing.commit.clone().unwrap_or_else(|| state_of(&listing.entries));
        fs_err::create_dir_all(self.folder.join("blobs"))?;
        let total = entries.iter().map(|entry| entry.n_bytes).sum();
        progress.begin(&format!("fetching {address} to {}", self.root.display()), total);
        let fetched = in_parallel(&entries, |entry| self.fetch_file(client, entry, &commit, progress));
        progress.end();
        fetched?;
        if let Address::Hub { revision, .. } = address
            && *revision != commit
        {
            let path = self.folder.join("refs").join(revision);
            if let Some(parent) = path.parent() {
                fs_err::create_dir_all(parent)?;
            }
            fs_err::write(path, &commit)?;
        }
        Ok(self.folder.join("snapshots").join(commit))
    }

    fn fetch_file(
        &self,
        client: &Client,
        entry: &Entry,
        commit: &str,
        progress: &dyn Progress,
    ) -> Result<(), RemoteError> {
        let id = entry.digest.as_ref().map_or_else(
            || hex(&Sha256::digest(format!("{commit} {}", entry.name))),
            |digest| digest.hex().to_ascii_lowercase(),
        );
        let blob = self.folder.join("blobs").join(&id);
        let link = self.folder.join("snapshots").join(commit).join(&entry.name);
        let is_kept = |path: &Path| path.metadata().is_ok_and(|found| found.len() == entry.n_bytes);
        if is_kept(&link) {
            progress.advance(entry.n_bytes);
            return Ok(());
        }
        if is_kept(&blob) {
            progress.advance(entry.n_bytes);
        } else {
            download(client, entry, &blob, progress)?;
        }
        if let Some(parent) = link.parent() {
            fs_err::create_dir_all(parent)?;
        }
        let _ = fs_err::remove_file(&link);
        let up = "../".repeat(2 + entry.name.matches('/').count());
        #[cfg(unix)]
        fs_err::os::unix::fs::symlink(format!("{up}blobs/{id}"), &link)?;
        // Links need a right there that few have.
        #[cfg(not(unix))]
        {
            drop(up);
            fs_err::rename(&blob, &link)?;
        }
        Ok(())
    }
}

/// Fetches a file beside its place, goes on where an earlier run stopped, checks it, and puts it in its place.
fn download(client: &Client, entry: &Entry, blob: &Path, progress: &dyn Progress) -> Result<(), RemoteError> {
    let part = blob.with_extension("incomplete");
    let mut file =
        fs_err::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&part)?;
    let present = file.metadata()?.len();
    // What there is was cut off anywhere: whole steps of it are kept, and checked with the rest.
    let kept = if present > entry.n_bytes { 0 } else { present / STEP_BYTES * STEP_BYTES };
    file.set_len(kept)?;
    let mut sum = Sum::new(entry);
    let mut buffer = vec![0; STEP_BYTES.min(entry.n_bytes) as usize];
    let mut at = 0;
    file.seek(SeekFrom::Start(0))?;
    while at < entry.n_bytes {
        let n_bytes = (entry.n_bytes - at).min(STEP_BYTES);
        let step = &mut buffer[..n_bytes as usize];
        if at < kept {
            std::io::Read::read_exact(&mut file, step)?;
        } else {
            client.read(&entry.target, at, step)?;
            file.write_all(step)?;
        }
        sum.update(step);
        progress.advance(n_bytes);
        at += n_bytes;
    }
    if let Err(error) = sum.check(entry) {
        // Damaged bytes would be damaged the next time, too.
        let _ = fs_err::remove_file(&part);
        return Err(error);
    }
    file.sync_all()?;
    Ok(fs_err::rename(&part, blob)?)
}

/// A name for the state of files whose server has none for it.
fn state_of(entries: &[Entry]) -> String {
    let mut hash = Sha256::new();
    for entry in entries {
        hash.update(format!(
            "{}\0{}\0{}\n",
            entry.name,
            entry.n_bytes,
            entry.target.etag().unwrap_or_default()
        ));
    }
    hex(&hash.finalize()[..20])
}

//! Checksums promised by the server, for files that are fetched whole and for streamed files.
//!
//! Pieces of a file arrive roughly in output order, but a checksum runs from front to back. Pieces wait for missing
//! ones before them as long as these arrive soon; if too much would wait, the file is not verified.

use crate::Result;
use gguf_core::text::hex;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use sha1::Sha1;
use sha2::{Digest as _, Sha256};

use crate::error::RemoteError;
use crate::listing::{ExpectedDigest, RemoteEntry};

/// Digest of a file in progress.
pub(super) enum RunningDigest {
    Sha256(Sha256),
    GitBlob(Sha1),
}

impl RunningDigest {
    /// Starts a digest of the kind that the server declares, else SHA-256.
    pub(super) fn new(entry: &RemoteEntry) -> Self {
        match &entry.digest {
            None | Some(ExpectedDigest::Sha256(_)) => Self::Sha256(Sha256::new()),
            // git: "blob", the length, and a zero go first
            Some(ExpectedDigest::GitBlob(_)) => {
                Self::GitBlob(Sha1::new_with_prefix(format!("blob {}\0", entry.n_bytes)))
            }
        }
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::GitBlob(hash) => hash.update(bytes),
        }
    }

    pub(super) fn finish(self) -> String {
        match self {
            Self::Sha256(hash) => hex(&hash.finalize()),
            Self::GitBlob(hash) => hex(&hash.finalize()),
        }
    }

    /// Compares the digest with the server's.
    pub(super) fn check(self, entry: &RemoteEntry) -> Result<()> {
        Self::compare(entry, &self.finish())
    }

    /// Compares a known digest with the server's.
    pub(super) fn compare(entry: &RemoteEntry, found: &str) -> Result<()> {
        let (what, expected) = match &entry.digest {
            None => return Ok(()),
            Some(ExpectedDigest::Sha256(sum)) => ("SHA-256", sum.to_ascii_lowercase()),
            Some(ExpectedDigest::GitBlob(sum)) => ("git's SHA-1", sum.to_ascii_lowercase()),
        };
        if found == expected {
            return Ok(());
        }
        Err(RemoteError::Digest { file: entry.target.shown(), what, expected, found: found.to_owned() })
    }
}

/// Checksum of a file whose pieces arrive in any order, each at least once.
pub(super) struct PieceDigest<B> {
    /// Digest; `None` after the comparison, or once given up.
    sum: Option<RunningDigest>,
    /// End offset of the bytes in the digest.
    next: u64,
    /// Pieces after that offset, by offset.
    waiting: BTreeMap<u64, Arc<B>>,
    n_waiting: u64,
}

impl<B: Deref<Target = [u8]>> PieceDigest<B> {
    /// Starts the chain of a file without any pieces.
    pub(super) fn new(entry: &RemoteEntry) -> Self {
        let sum = entry.digest.is_some().then(|| RunningDigest::new(entry));
        Self { sum, next: 0, waiting: BTreeMap::new(), n_waiting: 0 }
    }

    /// Adds a piece. At most `max_waiting` bytes wait for earlier pieces.
    pub(super) fn add(
        &mut self,
        entry: &RemoteEntry,
        offset: u64,
        bytes: &Arc<B>,
        max_waiting: u64,
    ) -> Result<()> {
        if self.sum.is_none() || offset < self.next || self.waiting.contains_key(&offset) {
            return Ok(());
        }
        self.n_waiting += bytes.len() as u64;
        self.waiting.insert(offset, Arc::clone(bytes));
        while let Some(bytes) = self.waiting.remove(&self.next) {
            if let Some(sum) = &mut self.sum {
                sum.update(&bytes);
            }
            self.next += bytes.len() as u64;
            self.n_waiting -= bytes.len() as u64;
        }
        if self.n_waiting > max_waiting {
            log::debug!("{}: read out of order: its sum is not checked", entry.name);
            (self.sum, self.waiting) = (None, BTreeMap::new());
        } else if self.next == entry.n_bytes
            && let Some(sum) = self.sum.take()
        {
            sum.check(entry)?;
            log::info!("{}: its sum is the one that the server promises", entry.name);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::RequestTarget;

    #[test]
    fn pieces_in_any_order_give_the_sum_of_the_file() {
        let bytes: Vec<u8> = (0..100).collect();
        let entry = |digest: &str| RemoteEntry {
            name: "m".to_owned(),
            n_bytes: 100,
            digest: Some(ExpectedDigest::Sha256(digest.to_owned())),
            target: Arc::new(RequestTarget::new("http://host/m".parse().unwrap(), Some(100))),
        };
        let (right, wrong) =
            (entry(&hex(&Sha256::digest(&bytes))), entry(&hex(&Sha256::digest(&bytes[1..]))));
        let run = |entry: &RemoteEntry, order: &[usize], max_waiting| {
            let mut chain = PieceDigest::new(entry);
            let add = |&at: &usize| {
                chain.add(entry, at as u64, &Arc::new(bytes[at..at + 20].to_vec()), max_waiting)
            };
            order.iter().try_for_each(add)
        };
        for order in [[0, 20, 40, 60, 80], [80, 60, 40, 20, 0], [20, 0, 60, 40, 80]] {
            run(&right, &order, 80).unwrap();
            let error = run(&wrong, &order, 80).unwrap_err();
            assert!(matches!(error, RemoteError::Digest { what: "SHA-256", .. }), "{error}");
        }
        // A repeated piece is added once.
        run(&right, &[0, 0, 20, 60, 60, 40, 20, 80], 80).unwrap();
        // A file that exceeds `max_waiting`, or is incomplete, is not verified.
        run(&wrong, &[80, 60, 40, 20, 0], 40).unwrap();
        run(&wrong, &[0, 20, 40, 60], 40).unwrap();
    }
}

//! Sums that the server promises: of files that come whole, and of files that stream past.
//!
//! Pieces of a file come in the order of the output, more or less, and sums go from front to back. As long as what is missing
//! in between comes soon, pieces wait for it; a file whose pieces would wait too long goes without its sum.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use sha1::Sha1;
use sha2::{Digest as _, Sha256};

use crate::remote::error::RemoteError;
use crate::remote::listing::{Digest, Entry};

/// The digest of a file in the making.
pub(super) enum Sum {
    Sha256(Sha256),
    GitBlob(Sha1),
}

impl Sum {
    /// That of no bytes, of the kind that the server promises; where it promises none, SHA-256.
    pub(super) fn new(entry: &Entry) -> Self {
        match &entry.digest {
            None | Some(Digest::Sha256(_)) => Self::Sha256(Sha256::new()),
            // git: "blob", the length, and a zero go first
            Some(Digest::GitBlob(_)) => {
                Self::GitBlob(Sha1::new_with_prefix(format!("blob {}\0", entry.n_bytes)))
            }
        }
    }

    /// More bytes.
    pub(super) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::GitBlob(hash) => hash.update(bytes),
        }
    }

    /// The number, in hexadecimal.
    pub(super) fn finish(self) -> String {
        match self {
            Self::Sha256(hash) => hex(&hash.finalize()),
            Self::GitBlob(hash) => hex(&hash.finalize()),
        }
    }

    /// Compares with what the server promised.
    ///
    /// # Errors
    /// [`RemoteError::Digest`].
    pub(super) fn check(self, entry: &Entry) -> Result<(), RemoteError> {
        Self::compare(entry, &self.finish())
    }

    /// The same of a number that is known.
    ///
    /// # Errors
    /// [`RemoteError::Digest`].
    pub(super) fn compare(entry: &Entry, found: &str) -> Result<(), RemoteError> {
        let (what, expected) = match &entry.digest {
            None => return Ok(()),
            Some(Digest::Sha256(sum)) => ("SHA-256", sum.to_ascii_lowercase()),
            Some(Digest::GitBlob(sum)) => ("git's SHA-1", sum.to_ascii_lowercase()),
        };
        if found == expected {
            return Ok(());
        }
        Err(RemoteError::Digest { file: entry.target.shown(), what, expected, found: found.to_owned() })
    }
}

/// Bytes in hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

/// The sum of a file whose pieces come in any order, each at least once.
pub(super) struct Chain<B> {
    /// `None` once it is compared, or given up.
    sum: Option<Sum>,
    /// Where the bytes end that are in the sum.
    next: u64,
    /// Pieces behind that, by offset.
    waiting: BTreeMap<u64, Arc<B>>,
    n_waiting: u64,
}

impl<B: Deref<Target = [u8]>> Chain<B> {
    /// The chain of a file none of which has come.
    pub(super) fn new(entry: &Entry) -> Self {
        let sum = entry.digest.is_some().then(|| Sum::new(entry));
        Self { sum, next: 0, waiting: BTreeMap::new(), n_waiting: 0 }
    }

    /// A piece that has come. At most `room` bytes wait for others.
    ///
    /// # Errors
    /// It completes a file that is not what the server promised.
    pub(super) fn add(
        &mut self,
        entry: &Entry,
        offset: u64,
        bytes: &Arc<B>,
        room: u64,
    ) -> Result<(), RemoteError> {
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
        if self.n_waiting > room {
            log::debug!("{}: read in another order than it lies: not held against its sum", entry.name);
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
    use crate::remote::target::Target;

    #[test]
    fn pieces_in_any_order_give_the_sum_of_the_file() {
        let bytes: Vec<u8> = (0..100).collect();
        let entry = |digest: &str| Entry {
            name: "m".to_owned(),
            n_bytes: 100,
            digest: Some(Digest::Sha256(digest.to_owned())),
            target: Arc::new(Target::new("http://host/m".parse().unwrap(), Some(100))),
        };
        let (right, wrong) =
            (entry(&hex(&Sha256::digest(&bytes))), entry(&hex(&Sha256::digest(&bytes[1..]))));
        let run = |entry: &Entry, order: &[usize], room| {
            let mut chain = Chain::new(entry);
            let add = |&at: &usize| chain.add(entry, at as u64, &Arc::new(bytes[at..at + 20].to_vec()), room);
            order.iter().try_for_each(add)
        };
        for order in [[0, 20, 40, 60, 80], [80, 60, 40, 20, 0], [20, 0, 60, 40, 80]] {
            run(&right, &order, 80).unwrap();
            let error = run(&wrong, &order, 80).unwrap_err();
            assert!(matches!(error, RemoteError::Digest { what: "SHA-256", .. }), "{error}");
        }
        // Twice the same piece is in the sum once.
        run(&right, &[0, 0, 20, 60, 60, 40, 20, 80], 80).unwrap();
        // What does not fit goes without; so does what never comes.
        run(&wrong, &[80, 60, 40, 20, 0], 40).unwrap();
        run(&wrong, &[0, 20, 40, 60], 40).unwrap();
    }
}

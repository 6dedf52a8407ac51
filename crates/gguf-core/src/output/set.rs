//! Sets of output files that are committed together.

use std::sync::Arc;

use super::OutputFile;
use super::destination::Destination;
use super::error::OutputError;
use super::staged_set::StagedSet;

/// Divisor of the process's descriptor limit that gives the share of one set. Inputs and locks need some, too.
#[cfg(unix)]
const SHARE: u64 = 4;

/// The files of one output, however many there are. Those begun here are committed together, by
/// [`OutputFile::commit_all`].
#[derive(Clone, Debug, Default)]
pub struct OutputSet(Option<Arc<StagedSet>>);

impl OutputSet {
    /// Creates a set of `n_files` files. With `sync`, files that are closed before the end are synced first, as the
    /// commit will do with the others.
    pub fn of(n_files: usize, sync: bool) -> Self {
        let most = share_of_descriptors();
        Self((n_files > most).then(|| StagedSet::new(most, sync)))
    }

    /// Begins a file of the set.
    pub fn create(&self, destination: Destination) -> Result<OutputFile, OutputError> {
        destination.create_among(self.0.as_ref())
    }

    /// Creates a set with at most `most` open files, whatever the limits of this process.
    #[cfg(test)]
    pub(super) fn with_limit(most: usize, sync: bool) -> Self {
        Self(Some(StagedSet::new(most, sync)))
    }
}

/// Returns the number of files of one set that this process should have open at once.
fn share_of_descriptors() -> usize {
    #[cfg(unix)]
    {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        limit.map_or(usize::MAX, |limit| usize::try_from(limit / SHARE).unwrap_or(usize::MAX))
    }
    #[cfg(not(unix))]
    usize::MAX
}

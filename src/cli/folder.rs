//! Size of a folder that was written.

use std::path::Path;

/// Returns the total bytes of the files in a folder.
pub(super) fn folder_bytes(path: &Path) -> u64 {
    let Ok(entries) = fs_err::read_dir(path) else { return 0 };
    entries.flatten().filter_map(|entry| entry.metadata().ok()).map(|found| found.len()).sum()
}

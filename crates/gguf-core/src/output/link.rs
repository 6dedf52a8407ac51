//! Symbolic links that lead to a file that may not exist yet.

use std::io;
use std::path::{Path, PathBuf};

use super::parent;

/// Number of links that are followed before they count as a loop, as in the Linux kernel.
const MAX_LINKS: usize = 40;

/// Resolves a path whose last link leads to nothing.
pub(super) fn follow(target: &Path) -> io::Result<PathBuf> {
    let mut path = target.to_owned();
    for _ in 0..MAX_LINKS {
        match path.symlink_metadata() {
            Ok(found) if found.is_symlink() => path = parent(&path).join(path.read_link()?),
            Ok(_) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(path),
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("too many levels of symbolic links"))
}

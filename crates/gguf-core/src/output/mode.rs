//! Modes of output files. A new file follows the umask; one that replaces another takes over mode, group and owner.

use std::fs::{File, Metadata};
use std::io;
use std::path::Path;

#[cfg(unix)]
use crate::platform::again;

/// Mode of a file that replaces another, until it takes over the mode of that.
pub(super) const CLOSED: u32 = 0o600;
/// Mode of a new file; the system subtracts the umask.
pub(super) const OPEN: u32 = 0o666;

/// Returns the initial mode of a file.
pub(super) fn first_mode(path: &Path) -> u32 {
    if path.symlink_metadata().is_ok() { CLOSED } else { OPEN }
}

/// Creates a new file; fails if it exists.
pub(super) fn create(path: &Path, mode: u32) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(mode);
    }
    #[cfg(not(unix))]
    let _ = mode;
    options.open(path)
}

/// Converts a mode to the system's type, which is narrower on some systems.
#[cfg(unix)]
pub(super) fn mode_of(bits: u32) -> rustix::fs::Mode {
    rustix::fs::Mode::from_raw_mode((bits & 0o7777) as rustix::fs::RawMode)
}

pub(super) fn set_mode(file: &File, mode: u32) -> io::Result<()> {
    #[cfg(unix)]
    again(|| Ok(rustix::fs::fchmod(file, mode_of(mode))?))?;
    #[cfg(not(unix))]
    let _ = (file, mode);
    Ok(())
}

/// Takes over mode, group and owner of a file, as far as the system permits. At no time may more people read the new
/// file than could read the old one.
pub(super) fn inherit(file: &File, old: &Metadata) -> io::Result<()> {
    #[cfg(unix)]
    {
        use rustix::fs::{Gid, Uid, fchmod, fchown};
        use std::os::unix::fs::MetadataExt;
        let new = file.metadata()?;
        let group = Some(Gid::from_raw(old.gid()));
        // Separately: a user may give a file to another of their groups, but not to another user.
        let has_group = new.gid() == old.gid() || again(|| Ok(fchown(file, None, group)?)).is_ok();
        let owner = Some(Uid::from_raw(old.uid()));
        let has_owner = new.uid() == old.uid() || again(|| Ok(fchown(file, owner, None)?)).is_ok();
        let mode = match (has_owner, has_group) {
            (true, true) => old.mode() & 0o7777,
            (false, true) => old.mode() & 0o777,
            // The new group may not get the permissions of the old one.
            (_, false) => old.mode() & 0o707 | (old.mode() & 0o007) << 3,
        };
        if new.mode() & 0o7777 != mode {
            match again(|| Ok(fchmod(file, mode_of(mode))?)) {
                // File systems without modes of their own.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported
                    ) => {}
                done => done?,
            }
        }
    }
    #[cfg(not(unix))]
    let _ = (file, old);
    Ok(())
}

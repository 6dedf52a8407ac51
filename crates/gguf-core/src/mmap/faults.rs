//! Handling of files that are truncated while they are read. Reading a mapped page beyond the new end raises a signal,
//! `SIGBUS`, not an error, and nothing can be read in its place: the program ends. A program that calls [`install`]
//! reports which file it was, removes its temporary files, and exits with code 1. A library should not decide that for
//! its host, so nothing happens without the call.
//!
//! The handler may interrupt anything, including an allocation or a lock. So its data is prepared before: entries are
//! appended to lists and never removed, only marked as past. The handler walks them with atomic loads and calls only
//! `write`, `unlink` and `_exit`, which are allowed there. An entry takes some hundred bytes for each opened file.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(unix)]
mod handler;
#[cfg(unix)]
mod watched;

/// Registration of a mapping or a temporary file, valid as long as the value lives.
#[derive(Debug, Default)]
pub struct Watch(Option<&'static AtomicBool>);

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(is_past) = self.0 {
            is_past.store(true, Ordering::Release);
        }
    }
}

/// Registers a mapping of a file.
pub(super) fn mapped(path: &Path, bytes: &[u8]) -> Watch {
    #[cfg(unix)]
    {
        watched::mapped(path, bytes)
    }
    // Windows refuses to truncate a mapped file.
    #[cfg(not(unix))]
    {
        let _ = (path, bytes);
        Watch(None)
    }
}

/// Registers a named temporary file, or a directory of such files, for removal if the program ends without unwinding.
/// The path must not be used for anything else while the value lives.
pub fn temporary(path: &Path) -> Watch {
    #[cfg(unix)]
    {
        watched::temporary(path)
    }
    #[cfg(not(unix))]
    {
        let _ = path;
        Watch(None)
    }
}

/// Makes this process exit with a message if a mapped file is truncated while it is read. With `as_json` the failure is
/// also reported on standard output. Faults elsewhere are handled as before.
pub fn install(as_json: bool) {
    #[cfg(unix)]
    handler::install(as_json);
    #[cfg(not(unix))]
    let _ = as_json;
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Output};

    use super::super::MappedFile;
    use super::*;

    const ROLE: &str = "GGUF_CORE_FAULTS_ROLE";
    const DIR: &str = "GGUF_CORE_FAULTS_DIR";

    /// Child process of the tests below: this test alone, with a role.
    #[test]
    fn child() {
        let (Ok(role), Ok(dir)) = (std::env::var(ROLE), std::env::var(DIR)) else { return };
        let path = Path::new(&dir).join("in \"put\".bin");
        if role != "library" {
            install(role == "json");
        }
        fs_err::write(&path, vec![7; 1 << 20]).unwrap();
        let shorten = || fs_err::OpenOptions::new().write(true).open(&path).unwrap().set_len(5000).unwrap();
        let temporaries: Vec<_> = ["gone", "kept"].map(|name| Path::new(&dir).join(name)).into();
        let watches: Vec<_> = temporaries.iter().map(|path| temporary(path)).collect();
        for path in &temporaries {
            fs_err::write(path, "x").unwrap();
        }
        let [_gone, kept] = watches.try_into().unwrap();
        drop(kept);
        // Several mappings. The one that faults is neither the first nor the last; one is past.
        drop(MappedFile::open(&path).unwrap());
        let others = [temporaries[0].clone(), temporaries[1].clone()];
        let _before = MappedFile::open(&others[0]).unwrap();
        if role == "stranger" {
            let file = fs_err::File::open(&path).unwrap();
            // SAFETY: read-only; truncating it is the purpose of the test.
            let map = unsafe { memmap2::Mmap::map(file.file()) }.unwrap();
            shorten();
            std::hint::black_box(map[900_000]);
        }
        let map = MappedFile::open(&path).unwrap();
        let _after = MappedFile::open(&others[1]).unwrap();
        shorten();
        if role == "threads" {
            std::thread::scope(|scope| {
                for at in 0..8 {
                    let map = &map;
                    scope.spawn(move || std::hint::black_box(map[100_000 * (at + 1)]));
                }
            });
        }
        std::hint::black_box(map[900_000]);
        unreachable!("read behind the end");
    }

    fn run(role: &str) -> (tempfile::TempDir, Output) {
        let dir = tempfile::tempdir().unwrap();
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "mmap::faults::tests::child", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(DIR, dir.path())
            .output()
            .unwrap();
        (dir, output)
    }

    #[test]
    fn the_file_that_was_cut_short_is_named_and_temporary_files_go() {
        for role in ["text", "threads", "json"] {
            let (dir, output) = run(role);
            assert_eq!(output.status.code(), Some(1), "{role}: {output:?}");
            let err = String::from_utf8(output.stderr).unwrap();
            let path = dir.path().join("in \"put\".bin");
            let line =
                format!("error: {}: the file was cut short while it was read\n\nhint: ", path.display());
            assert_eq!(err.matches(&line).count(), 1, "{role}: {err}");
            let out = String::from_utf8(output.stdout).unwrap();
            let quoted = path.display().to_string().replace('"', "\\\"");
            assert_eq!(
                out.contains(&format!("\"message\": \"{quoted}: the file was")),
                role == "json",
                "{out}"
            );
            assert!(!dir.path().join("gone").exists() && dir.path().join("kept").exists(), "{role}");
        }
    }

    #[test]
    fn what_is_not_watched_ends_as_ever() {
        for role in ["stranger", "library"] {
            let (dir, output) = run(role);
            assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{role}: {output:?}");
            assert!(dir.path().join("gone").exists(), "{role}");
        }
    }
}

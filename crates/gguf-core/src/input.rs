//! Opening of input files. Every file that is read is opened here. A path that is not a regular file is refused, and
//! the error names its kind: opening a FIFO may block forever, and a device may never end.

use std::io::{self, Read};
use std::path::Path;

use crate::ranged;

/// Suggestion for a file that is empty, or ends before what it declares.
pub const INCOMPLETE: &str = "the download is incomplete: fetch the file again";

/// Opens a file for reading; links are followed.
///
/// # Errors
/// I/O errors, named with the path; a path that is not a regular file.
pub fn open(path: &Path) -> io::Result<fs_err::File> {
    if ranged::find(path).is_some() {
        let text = format!("{}: lies on a server and is not read whole", path.display());
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    // Checked before the open: opening alone may block, or act on a device.
    let Ok(metadata) = path.metadata() else { return fs_err::File::open(path) };
    if !metadata.is_file() {
        return Err(refused(path, metadata.file_type()));
    }
    let file = open_without_waiting(path)?;
    // Another file may have taken its place since.
    let metadata = file.metadata()?;
    if metadata.is_file() { Ok(file) } else { Err(refused(path, metadata.file_type())) }
}

/// Reads a whole file.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a whole file of text.
///
/// # Errors
/// As [`open`]; text that is not UTF-8.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open(path)?.read_to_string(&mut text)?;
    Ok(text)
}

/// Content of a small file of a model's directory, as far as its first bytes tell: without the mark of UTF-8 that editors
/// of Windows put before JSON and templates.
///
/// # Errors
/// A pointer of git LFS, a web page, or UTF-16 in place of the file; the message names the path and the remedy.
pub fn own_content(path: &Path, mut bytes: Vec<u8>) -> io::Result<Vec<u8>> {
    const MARK: &[u8] = b"\xef\xbb\xbf";
    let ends = |endings: &[&str]| path.extension().is_some_and(|own| endings.iter().any(|end| own == *end));
    let start = bytes.trim_ascii_start();
    let begins = |word: &[u8]| start.get(..word.len()).is_some_and(|found| found.eq_ignore_ascii_case(word));
    let what = if begins(b"version https://git-lfs") {
        "a pointer of git LFS, not the file itself: run `git lfs pull`"
    } else if ends(&["json", "model"]) && start.is_empty() {
        "the file is empty: fetch it again"
    } else if ends(&["json", "model", "jinja", "txt"]) && (begins(b"<!doctype html") || begins(b"<html")) {
        "a web page (HTML), not the file itself: fetch it again"
    } else if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
        "text in UTF-16, by its byte order mark: save it as UTF-8"
    } else {
        if ends(&["json", "jinja"]) && bytes.starts_with(MARK) {
            bytes.drain(..MARK.len());
        }
        return Ok(bytes);
    };
    Err(io::Error::new(io::ErrorKind::InvalidData, format!("{}: {what}", path.display())))
}

/// Returns true if a path leads to nothing. Any other error says nothing about what is there: taken for absence, it would
/// leave a file out in silence.
pub fn is_absence(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidFilename, NotADirectory, NotFound};
    [NotFound, NotADirectory, InvalidFilename].contains(&error.kind())
}

/// Checks that a file of a model's directory is inside that directory, wherever links lead. Directories
/// `models--*/snapshots/*` of a Hugging Face hub cache consist of links; there the file may be anywhere in the model's
/// part of the cache. Links of a local copy of a remote repository may lead to its files.
///
/// # Errors
/// I/O errors, named with the path; a file that is located elsewhere.
pub fn check_inside(dir: &Path, path: &Path) -> io::Result<()> {
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    let root = fs_err::canonicalize(dir)?;
    let found = fs_err::canonicalize(path)?;
    let in_cache = || cached_repository(&root).is_some_and(|repository| found.starts_with(repository));
    if found.starts_with(&root) || in_cache() || ranged::may_lead_to(&root, &found) {
        return Ok(());
    }
    let text = format!(
        "{}: a link that leads out of the model's directory, to {}: copy the file into the directory, or let \
         gguf-convert read it with `--follow-links`",
        path.display(),
        found.display()
    );
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

/// Returns the hub's folder of a model, if the directory is one of its snapshots.
fn cached_repository(dir: &Path) -> Option<&Path> {
    dir.ancestors().find(|folder| {
        let is_model = folder
            .file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.starts_with("models--"));
        is_model && dir.strip_prefix(folder).is_ok_and(|rest| rest.starts_with("snapshots"))
    })
}

#[cfg(unix)]
fn open_without_waiting(path: &Path) -> io::Result<fs_err::File> {
    use fs_err::os::unix::fs::OpenOptionsExt;
    // The flag has no effect on regular files.
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    fs_err::OpenOptions::new().read(true).custom_flags(nonblocking).open(path)
}

#[cfg(not(unix))]
fn open_without_waiting(path: &Path) -> io::Result<fs_err::File> {
    fs_err::File::open(path)
}

fn refused(path: &Path, found: std::fs::FileType) -> io::Error {
    let text = format!("{}: not a regular file: {}", path.display(), kind(found));
    let kind = if found.is_dir() { io::ErrorKind::IsADirectory } else { io::ErrorKind::InvalidInput };
    io::Error::new(kind, text)
}

fn kind(found: std::fs::FileType) -> &'static str {
    if found.is_dir() {
        return "a directory";
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if found.is_fifo() {
            return "a FIFO (pipe)";
        }
        if found.is_socket() {
            return "a socket";
        }
        if found.is_char_device() || found.is_block_device() {
            return "a device";
        }
    }
    "of no known kind"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regular_files_are_read_through_links_too() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("text");
        fs_err::write(&path, "some text").unwrap();
        assert_eq!(read(&path).unwrap(), b"some text");
        #[cfg(unix)]
        {
            let link = dir.path().join("link");
            fs_err::os::unix::fs::symlink("text", &link).unwrap();
            assert_eq!(read_to_string(&link).unwrap(), "some text");
        }
        assert_eq!(open(&dir.path().join("nothing")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn what_is_not_the_file_itself_is_named() {
        let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n";
        for (name, bytes, wanted) in [
            (
                "tokenizer.model",
                &pointer[..],
                "a pointer of git LFS, not the file itself: run `git lfs pull`",
            ),
            ("chat_template.jinja", pointer, "a pointer of git LFS, not the file itself: run `git lfs pull`"),
            (
                "config.json",
                b"\n<!DOCTYPE HTML><p>",
                "a web page (HTML), not the file itself: fetch it again",
            ),
            (
                "chat_template.jinja",
                b"<!DOCTYPE html>",
                "a web page (HTML), not the file itself: fetch it again",
            ),
            ("config.json", b"", "the file is empty: fetch it again"),
            ("spiece.model", b"\n", "the file is empty: fetch it again"),
            ("merges.txt", b"\xff\xfea\0", "text in UTF-16, by its byte order mark: save it as UTF-8"),
        ] {
            let error = own_content(Path::new(name), bytes.to_vec()).unwrap_err();
            assert_eq!(error.to_string(), format!("{name}: {wanted}"));
        }
        let content = |name: &str| own_content(Path::new(name), b"\xef\xbb\xbf{}".to_vec()).unwrap();
        assert_eq!(content("tokenizer.json"), b"{}");
        // A vocabulary's first word begins where the file does.
        assert_eq!(content("vocab.txt"), b"\xef\xbb\xbf{}");
    }

    #[cfg(unix)]
    #[test]
    fn links_may_lead_anywhere_in_the_directory_or_in_the_cache_of_its_model() {
        use fs_err::os::unix::fs::symlink;
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        for dir in ["models--a--b/snapshots/1", "models--a--b/blobs", "models--c--d/blobs", "plain/sub"] {
            fs_err::create_dir_all(at(dir)).unwrap();
        }
        for file in ["models--a--b/blobs/x", "models--c--d/blobs/x", "secret", "plain/sub/own"] {
            fs_err::write(at(file), "x").unwrap();
        }
        let cases = [
            ("models--a--b/snapshots/1", "../../blobs/x", true),
            ("models--a--b/snapshots/1", "../../../models--c--d/blobs/x", false),
            ("models--a--b/snapshots/1", "../../../secret", false),
            ("plain", "sub/own", true),
            ("plain", "../secret", false),
            ("plain", "../models--a--b/blobs/x", false),
        ];
        for (number, (dir, target, expected)) in cases.into_iter().enumerate() {
            let link = at(dir).join(format!("link{number}"));
            symlink(target, &link).unwrap();
            let checked = check_inside(&at(dir), &link);
            assert_eq!(checked.is_ok(), expected, "{dir} {target}: {checked:?}");
            if let Err(error) = checked {
                assert!(error.to_string().contains("leads out of the model's directory, to /"), "{error}");
            }
        }
        // A directory that is reached through a link itself.
        symlink("plain", at("alias")).unwrap();
        check_inside(&at("alias"), &at("alias/sub/own")).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn what_is_no_regular_file_is_refused_by_what_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let error = |path: &Path| open(path).unwrap_err().to_string();
        assert!(error(dir.path()).ends_with(": not a regular file: a directory"));
        let socket = dir.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert!(error(&socket).ends_with("socket: not a regular file: a socket"));
        assert_eq!(error(Path::new("/dev/zero")), "/dev/zero: not a regular file: a device");
        #[cfg(target_os = "linux")]
        {
            use rustix::fs::{CWD, FileType, Mode, mknodat};
            let fifo = dir.path().join("fifo");
            mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
            // Nobody writes: this must not wait.
            assert!(error(&fifo).ends_with("fifo: not a regular file: a FIFO (pipe)"));
        }
    }
}

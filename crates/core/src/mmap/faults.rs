//! Files that are cut short while they are read. Reading a mapped page behind the new end is no error but a signal,
//! `SIGBUS`, and nothing can be read in its place: the program ends. A program that calls [`install`] says which file it
//! was, removes its temporary files, and ends with code 1; a library should not decide that for its host, so nothing
//! happens without.
//!
//! The handler may interrupt anything, an allocation or a lock included. So what it needs is prepared before: entries are
//! appended to lists and never taken out, only marked as past; it walks them with atomic loads and calls `write`,
//! `unlink` and `_exit`, which may be called there. An entry is some hundred bytes for each file that is opened.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// True once a program has asked for the handler. Before that nothing is remembered.
static IS_INSTALLED: AtomicBool = AtomicBool::new(false);
/// Whether the failure is told on standard output, too.
static AS_JSON: AtomicBool = AtomicBool::new(false);
/// Whether there may be a line of progress that is to be wiped first.
static ON_TERMINAL: AtomicBool = AtomicBool::new(false);

/// A list that grows at its end and can be read at any time.
struct List<T: 'static> {
    first: OnceLock<&'static Node<T>>,
    last: Mutex<Option<&'static Node<T>>>,
}

struct Node<T: 'static> {
    value: T,
    is_past: AtomicBool,
    next: OnceLock<&'static Self>,
}

impl<T> List<T> {
    const fn new() -> Self {
        Self { first: OnceLock::new(), last: Mutex::new(None) }
    }

    fn push(&self, value: T) -> &'static Node<T> {
        let node: &Node<T> =
            Box::leak(Box::new(Node { value, is_past: AtomicBool::new(false), next: OnceLock::new() }));
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = last.map_or(&self.first, |last| &last.next).set(node);
        *last = Some(node);
        node
    }

    /// What is not past. Nothing here waits or allocates.
    fn each(&self) -> impl Iterator<Item = &'static T> {
        let mut next = self.first.get().copied();
        std::iter::from_fn(move || {
            let node = next?;
            next = node.next.get().copied();
            Some(node)
        })
        .filter(|node| !node.is_past.load(Ordering::Acquire))
        .map(|node| &node.value)
    }
}

/// A mapped range and what is said if it faults.
struct Mapped {
    start: usize,
    end: usize,
    text: Vec<u8>,
    json: Vec<u8>,
}

static MAPPED: List<Mapped> = List::new();
static TEMPORARY: List<std::ffi::CString> = List::new();

/// Watched as long as the value lives.
#[derive(Debug, Default)]
#[must_use]
pub struct Watch(Option<&'static AtomicBool>);

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(is_past) = self.0 {
            is_past.store(true, Ordering::Release);
        }
    }
}

/// Watches a mapping of a file.
pub(super) fn mapped(path: &Path, bytes: &[u8]) -> Watch {
    if !IS_INSTALLED.load(Ordering::Relaxed) || bytes.is_empty() {
        return Watch(None);
    }
    let start = bytes.as_ptr() as usize;
    let (text, json) = words(path);
    // The last page is mapped as a whole.
    let end = start.saturating_add(bytes.len()).div_ceil(page_bytes()).saturating_mul(page_bytes());
    Watch(Some(&MAPPED.push(Mapped { start, end, text, json }).is_past))
}

/// Remembers a temporary file that has a name, or a directory of such files, to be removed if the program ends without unwinding. The path must not
/// be given to anything else while the value lives.
pub fn temporary(path: &Path) -> Watch {
    if !IS_INSTALLED.load(Ordering::Relaxed) {
        return Watch(None);
    }
    // The working directory may be another one by then.
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes());
    Watch(name.ok().map(|name| &TEMPORARY.push(name).is_past))
}

fn page_bytes() -> usize {
    #[cfg(unix)]
    {
        rustix::param::page_size()
    }
    #[cfg(not(unix))]
    {
        4096
    }
}

/// The failure for people and as a document.
fn words(path: &Path) -> (Vec<u8>, Vec<u8>) {
    const WHAT: &str = "the file was cut short while it was read";
    const HINT: &str = "another program writes to it: try again when it is done, or read a copy";
    let path = path.to_string_lossy();
    let shown = crate::text::escape(&path);
    let text = format!("error: {shown}: {WHAT}\n\nhint: {HINT}\n");
    let quoted = shown.replace('\\', "\\\\").replace('"', "\\\"");
    let json = format!(
        "{{\n  \"error\": {{\n    \"message\": \"{quoted}: {WHAT}\",\n    \"hints\": [\n      \"{HINT}\"\n    ],\n    \
         \"exit_code\": 1\n  }}\n}}\n"
    );
    (text.into_bytes(), json.into_bytes())
}

/// Makes this process end with a message where a mapped file is cut short while it is read. With `as_json` the failure
/// is told on standard output, too. What faults elsewhere goes on as before.
pub fn install(as_json: bool) {
    AS_JSON.store(as_json, Ordering::Relaxed);
    ON_TERMINAL.store(std::io::IsTerminal::is_terminal(&std::io::stderr()), Ordering::Relaxed);
    if !IS_INSTALLED.swap(true, Ordering::Relaxed) {
        #[cfg(unix)]
        handler::install();
    }
}

#[cfg(unix)]
mod handler {
    use std::mem::MaybeUninit;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::{AS_JSON, MAPPED, ON_TERMINAL, TEMPORARY};

    /// What handled the signal before.
    static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();
    /// One thread tells it; the others wait for the end.
    static IS_TOLD: AtomicBool = AtomicBool::new(false);

    pub(super) fn install() {
        let mut before = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: a null action only asks; `before` is a whole action that may be written to, and zeroes are valid in it.
        let before = unsafe {
            if libc::sigaction(libc::SIGBUS, std::ptr::null(), before.as_mut_ptr()) != 0 {
                return;
            }
            before.assume_init()
        };
        let _ = BEFORE.set(before);
        // SAFETY: zeroes are a valid action.
        let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: both are whole values of this thread; the handler has the signature that `SA_SIGINFO` asks for and
        // does only what may be done in a handler.
        unsafe {
            libc::sigemptyset(&raw mut action.sa_mask);
            libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut());
        }
    }

    extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: with `SA_SIGINFO` the system hands over a valid pointer, of which this signal fills the address.
        let address = unsafe { (*info).si_addr() } as usize;
        let Some(mapped) = MAPPED.each().find(|mapped| (mapped.start..mapped.end).contains(&address)) else {
            return restore(signal);
        };
        if IS_TOLD.swap(true, Ordering::AcqRel) {
            loop {
                // SAFETY: has no arguments; waits for a signal, or for the end that another thread brings.
                unsafe { libc::pause() };
            }
        }
        for name in TEMPORARY.each() {
            // SAFETY: a string that ends in a zero and lives for ever.
            unsafe { libc::unlink(name.as_ptr()) };
        }
        // What was no file: directories, empty now.
        for name in TEMPORARY.each() {
            // SAFETY: as above.
            unsafe { libc::rmdir(name.as_ptr()) };
        }
        if ON_TERMINAL.load(Ordering::Relaxed) {
            tell(libc::STDERR_FILENO, b"\r\x1b[2K");
        }
        tell(libc::STDERR_FILENO, &mapped.text);
        if AS_JSON.load(Ordering::Relaxed) {
            tell(libc::STDOUT_FILENO, &mapped.json);
        }
        // SAFETY: ends the process without running anything of it.
        unsafe { libc::_exit(1) }
    }

    /// Brings back what was there before; the instruction that faulted does so again, and meets it.
    fn restore(signal: libc::c_int) {
        let Some(before) = BEFORE.get() else {
            // SAFETY: as above, ends the process.
            unsafe { libc::_exit(1) }
        };
        // SAFETY: an action that the system itself gave.
        unsafe { libc::sigaction(signal, before, std::ptr::null_mut()) };
    }

    fn tell(fd: libc::c_int, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            // SAFETY: pointer and length are those of a slice that lives for ever.
            let n = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
            let Some(rest) = usize::try_from(n).ok().filter(|&n| n > 0).and_then(|n| bytes.get(n..)) else {
                return;
            };
            bytes = rest;
        }
    }
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

    /// What a child of the tests below does: this test alone, with a role.
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
        // Several mappings, of which the one that faults is neither the first nor the last; one is past.
        drop(MappedFile::open(&path).unwrap());
        let others = [temporaries[0].clone(), temporaries[1].clone()];
        let _before = MappedFile::open(&others[0]).unwrap();
        if role == "stranger" {
            let file = fs_err::File::open(&path).unwrap();
            // SAFETY: read-only; that it is cut short is what the test is about.
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

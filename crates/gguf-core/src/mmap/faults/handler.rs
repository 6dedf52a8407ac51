//! The handler of `SIGBUS`.

use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use super::watched::{IS_INSTALLED, MAPPED, TEMPORARY};

/// True if the failure is also reported on standard output.
static AS_JSON: AtomicBool = AtomicBool::new(false);
/// True if standard error is a terminal: a line of progress may have to be wiped first.
static ON_TERMINAL: AtomicBool = AtomicBool::new(false);
/// Previous handler of the signal.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();
/// True once a thread reports the fault; the others wait for the end.
static IS_TOLD: AtomicBool = AtomicBool::new(false);

/// Installs the handler, once.
pub(super) fn install(as_json: bool) {
    AS_JSON.store(as_json, Ordering::Relaxed);
    ON_TERMINAL.store(std::io::IsTerminal::is_terminal(&std::io::stderr()), Ordering::Relaxed);
    if IS_INSTALLED.swap(true, Ordering::Relaxed) {
        return;
    }
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null action only queries; `before` is a whole action that may be written to, and zeroes are valid in
    // it.
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
    // SAFETY: both are whole values of this thread. The handler has the signature that `SA_SIGINFO` requires and does
    // only what is allowed in a handler.
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
            // SAFETY: has no arguments; waits for a signal, or for the exit by another thread.
            unsafe { libc::pause() };
        }
    }
    for name in TEMPORARY.each() {
        // SAFETY: a zero-terminated string with static lifetime.
        unsafe { libc::unlink(name.as_ptr()) };
    }
    // Entries that were not files: directories, empty by now.
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
    // SAFETY: ends the process without running any of its code.
    unsafe { libc::_exit(1) }
}

/// Restores the previous handler; the faulting instruction runs again and reaches it.
fn restore(signal: libc::c_int) {
    let Some(before) = BEFORE.get() else {
        // SAFETY: as above, ends the process.
        unsafe { libc::_exit(1) }
    };
    // SAFETY: an action that the system itself returned.
    unsafe { libc::sigaction(signal, before, std::ptr::null_mut()) };
}

fn tell(fd: libc::c_int, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        // SAFETY: pointer and length are those of a slice with static lifetime.
        let n = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
        let Some(rest) = usize::try_from(n).ok().filter(|&n| n > 0).and_then(|n| bytes.get(n..)) else {
            return;
        };
        bytes = rest;
    }
}

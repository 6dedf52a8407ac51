//! Tests with misbehaving children. They are shells: the subject of the tests is the parent.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::*;

fn never() -> bool {
    false
}

fn worker(script: &str, bounds: Bounds, is_cancelled: fn() -> bool) -> Worker {
    let program = Program::new(Path::new("/bin/sh"), vec!["-c".into(), script.into()]);
    Worker::new(&Isolation { program, is_cancelled }, "job", Vec::new(), bounds)
}

fn ask(script: &str) -> Result<Vec<u8>, IsolatedError> {
    worker(script, Bounds::default(), never).ask(b"hello")
}

/// A `printf` command that writes a reply with an answer of one byte.
const GOOD: &str = r"printf 'GFj1\000\001\000\000\000x'";

#[test]
fn replies_are_read_and_anything_else_is_refused() {
    assert_eq!(ask(&format!("{GOOD}; sleep 0.3; {GOOD}; cat >/dev/null")), Ok(b"x".to_vec()));
    let two = r"printf 'GFj1\000\001\000\000\000xGFj1\000\001\000\000\000x'; sleep 5";
    assert_eq!(ask(two), Err(IsolatedError::Garbage), "two for one");
    for garbage in ["echo hello; sleep 5", r"printf 'GFj1\007\000\000\000\000'; sleep 5", "yes"] {
        assert_eq!(ask(garbage), Err(IsolatedError::Garbage), "{garbage}");
    }
    let refused = r"printf 'GFj1\001\002\000\000\000no'; cat >/dev/null";
    assert_eq!(ask(refused), Err(IsolatedError::Refused { reason: b"no".to_vec() }));
    let panicked = r"printf 'GFj1\002\002\000\000\000ow'; cat >/dev/null";
    assert_eq!(ask(panicked), Err(IsolatedError::Panic { reason: "ow".to_owned() }));
}

#[test]
fn a_reply_of_a_gigabyte_is_not_read() {
    let claimed = r"printf 'GFj1\000\000\000\000\100'; cat /dev/zero";
    assert_eq!(ask(claimed), Err(IsolatedError::TooLong { limit: 16 << 20 }));
}

#[test]
fn the_end_of_a_child_has_a_reason() {
    assert_eq!(ask("exit 7"), Err(IsolatedError::Ended { code: 7 }));
    assert_eq!(ask("kill -SEGV $$"), Err(IsolatedError::Signal { signal: 11 }));
    assert_eq!(ask("kill -KILL $$"), Err(IsolatedError::Signal { signal: 9 }));
    assert_eq!(ask("kill -XCPU $$"), Err(IsolatedError::Time { seconds: 3 }));
    let memory = "echo 'memory allocation of 9 bytes failed' >&2; kill -ABRT $$";
    assert_eq!(ask(memory), Err(IsolatedError::Memory { limit_bytes: 256 << 20 }));
    let stack = "echo \"thread 'main' has overflowed its stack\" >&2; kill -ABRT $$";
    assert_eq!(ask(stack), Err(IsolatedError::Stack { signal: 6 }));
    // Reported after more output than is kept, and more than a pipe holds.
    let flood = "head -c 300000 /dev/zero >&2; exit 3";
    assert_eq!(ask(flood), Err(IsolatedError::Ended { code: 3 }));
    let missing = Program::new(Path::new("/nowhere/at-all"), Vec::new());
    let isolation = Isolation { program: missing, is_cancelled: never };
    let error = Worker::new(&isolation, "job", Vec::new(), Bounds::default()).ask(b"").unwrap_err();
    assert!(error.to_string().contains("/nowhere/at-all: No such file"), "{error}");
}

static STOP: AtomicBool = AtomicBool::new(false);

#[test]
fn a_child_that_does_not_end_is_killed() {
    let bounds = Bounds { wall: Duration::from_secs(1), ..Bounds::default() };
    let begun = Instant::now();
    let asked = worker("trap '' TERM INT; while :; do sleep 60; done", bounds, never).ask(b"hello");
    assert_eq!(asked, Err(IsolatedError::Time { seconds: 1 }));
    assert!(begun.elapsed() < Duration::from_secs(30));
    // A request that nobody reads, longer than a pipe holds.
    let asked = worker("sleep 60", bounds, never).ask(&vec![0; 1 << 20]);
    assert_eq!(asked, Err(IsolatedError::Time { seconds: 1 }));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(200));
            STOP.store(true, Ordering::Relaxed);
        });
        let stop = || STOP.load(Ordering::Relaxed);
        let bounds = Bounds { wall: Duration::from_mins(5), ..Bounds::default() };
        let begun = Instant::now();
        assert_eq!(worker("sleep 300", bounds, stop).ask(b""), Err(IsolatedError::Cancelled));
        assert!(begun.elapsed() < Duration::from_mins(1));
    });
}

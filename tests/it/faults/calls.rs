//! System calls that a program made, from strace's log, and the possible faults of each.

use std::collections::BTreeMap;

/// Fault at a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// SIGKILL at the start of the call.
    Kill,
    /// SIGTERM, after which a program can clean up.
    Terminate,
    /// Disk error.
    Io,
    /// Full disk.
    Full,
    /// Interrupting signal.
    Interrupted,
    /// A write takes half of its bytes; later writes take all.
    Short,
    /// A write takes half of its bytes; then the disk is full.
    ShortThenFull,
}

impl Fault {
    pub const ALL: [Self; 7] = [
        Self::Kill,
        Self::Terminate,
        Self::Io,
        Self::Full,
        Self::Interrupted,
        Self::Short,
        Self::ShortThenFull,
    ];

    /// Arguments of `strace -e inject`; empty for faults made by the preloaded library.
    fn words(self) -> &'static str {
        match self {
            Self::Kill => "signal=SIGKILL",
            Self::Terminate => "signal=SIGTERM",
            Self::Io => "error=EIO",
            Self::Full => "error=ENOSPC",
            Self::Interrupted => "error=EINTR",
            Self::Short | Self::ShortThenFull => "",
        }
    }

    pub fn is_signal(self) -> bool {
        matches!(self, Self::Kill | Self::Terminate)
    }

    /// Returns true for faults made by the preloaded library, whose numbers count the writes of all threads.
    pub fn is_short(self) -> bool {
        matches!(self, Self::Short | Self::ShortThenFull)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Terminate => "terminate",
            Self::Io => "EIO",
            Self::Full => "ENOSPC",
            Self::Interrupted => "EINTR",
            Self::Short => "short write",
            Self::ShortThenFull => "short, ENOSPC",
        }
    }
}

/// Call, by name and number, and its fault.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Point {
    pub call: String,
    /// Counted from 1; strace counts for each thread.
    pub number: usize,
    pub fault: Fault,
}

impl Point {
    /// Argument of `strace -e`.
    pub fn injection(&self) -> String {
        format!("inject={}:{}:when={}", self.call, self.fault.words(), self.number)
    }
}

impl std::fmt::Display for Point {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at {} {}", self.fault.name(), self.call, self.number)
    }
}

/// Traced calls: all that take a path or a descriptor, and those that complete a change.
pub const TRACED: &str = "trace=%file,%desc,sync,syncfs,fsync,fdatasync,poll";

/// Calls that can fail with a full disk.
const FILLING: &[&str] = &[
    "write",
    "pwrite64",
    "writev",
    "pwritev",
    "fallocate",
    "ftruncate",
    "openat",
    "open",
    "linkat",
    "link",
    "rename",
    "renameat",
    "renameat2",
    "fsync",
    "fdatasync",
    "mkdir",
    "mkdirat",
    "close",
];

/// Calls that a signal may interrupt. The kernel restarts the others, or never stops them.
const SLOW: &[&str] = &[
    "write",
    "pwrite64",
    "writev",
    "pwritev",
    "read",
    "pread64",
    "fallocate",
    "ftruncate",
    "openat",
    "open",
    "fsync",
    "fdatasync",
    "flock",
    "close",
];

/// Calls that cannot fail, or whose failure is not a disk error.
const NEVER: &[&str] = &["poll", "execve", "exit", "munmap", "mmap", "mprotect", "close"];

/// Process id and name of the call in a line of `strace -f -o`: `PID NAME(...`.
fn call(line: &str) -> Option<(&str, &str)> {
    let (pid, rest) = line.split_once(' ')?;
    let (name, _) = rest.trim_start().split_once('(')?;
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    is_name.then_some((pid, name))
}

/// All points of a run, without the dynamic loader's calls. The program begins with the `poll` that Rust's runtime does
/// on the standard streams.
pub fn points(log: &str) -> Vec<Point> {
    let n_before = {
        let mut before = BTreeMap::<&str, usize>::new();
        for (_, name) in log.lines().filter_map(call).take_while(|&(_, name)| name != "poll") {
            *before.entry(name).or_default() += 1;
        }
        before
    };
    let mut counts = BTreeMap::<(&str, &str), usize>::new();
    for (pid, name) in log.lines().filter_map(call) {
        *counts.entry((name, pid)).or_default() += 1;
    }
    let mut most = BTreeMap::<&str, usize>::new();
    for ((name, _), count) in counts {
        let entry = most.entry(name).or_default();
        *entry = count.max(*entry);
    }
    let mut points = Vec::new();
    for (name, most) in most {
        for number in n_before.get(name).copied().unwrap_or(0) + 1..=most {
            let is_possible = |fault: &Fault| match fault {
                Fault::Kill | Fault::Terminate => !["execve", "exit"].contains(&name),
                Fault::Io => !NEVER.contains(&name),
                Fault::Full => FILLING.contains(&name) && !NEVER.contains(&name),
                Fault::Interrupted => SLOW.contains(&name) && !NEVER.contains(&name),
                Fault::Short | Fault::ShortThenFull => false,
            };
            let faults = Fault::ALL.into_iter().filter(is_possible);
            points.extend(faults.map(|fault| Point { call: name.to_owned(), number, fault }));
        }
    }
    let n_writes =
        log.lines().filter_map(call).filter(|(_, name)| ["write", "pwrite64"].contains(name)).count();
    for number in 1..=n_writes {
        let at = |fault| Point { call: "write".to_owned(), number, fault };
        points.extend([Fault::Short, Fault::ShortThenFull].map(at));
    }
    points
}

#[test]
fn calls_are_counted_by_thread_and_after_the_loader() {
    let log = "7 execve(\"x\") = 0\n7 openat(1) = 3\n7 poll([]) = 0\n7 openat(2) = 3\n8 openat(3) = 4\n8 write(1) = 1\n\
               7 <... read resumed>) = 1\n7 +++ exited with 0 +++\n";
    let found: Vec<String> = points(log).iter().map(Point::to_string).collect();
    let expected = [
        "kill at openat 2",
        "terminate at openat 2",
        "EIO at openat 2",
        "ENOSPC at openat 2",
        "EINTR at openat 2",
        "kill at poll 1",
        "terminate at poll 1",
        "kill at write 1",
        "terminate at write 1",
        "EIO at write 1",
        "ENOSPC at write 1",
        "EINTR at write 1",
        "short write at write 1",
        "short, ENOSPC at write 1",
    ];
    assert_eq!(found, expected);
}

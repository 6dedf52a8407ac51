//! Resource usage of a run, read from `/proc`.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

/// Time after which a run counts as hanging; long, since machines may be loaded.
const WALL: Duration = Duration::from_mins(3);

/// Resource usage of a run, and its text on both outputs.
#[derive(Clone, Debug)]
pub struct Usage {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    /// Maximum over all processes, including children of children. Read every millisecond, in which memory grows by a
    /// few MiB.
    pub max_kib: i64,
    /// Sum over all processes.
    pub cpu_ms: i64,
    pub said: String,
}

/// Runs a command to its end.
pub fn measured(command: &[String], dir: &Path) -> Usage {
    let file = |name: &str| fs_err::File::create(dir.join(name)).unwrap().into_file();
    let mut child = Command::new(&command[0])
        .args(&command[1..])
        .stdin(Stdio::null())
        .stdout(file("stdout"))
        .stderr(file("stderr"))
        .spawn()
        .unwrap();
    let (begun, mut max_kib) = (Instant::now(), 0i64);
    // An ended process that is not waited for keeps its times.
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    while waitid(WaitId::Pid(Pid::from_child(&child)), ended).unwrap().is_none() {
        // First, since a process that has just begun shows the memory of this one for a moment.
        std::thread::sleep(Duration::from_millis(1));
        max_kib = max_kib.max(peak_kib(child.id()));
        if begun.elapsed() > WALL {
            child.kill().unwrap();
        }
    }
    let cpu_ms = cpu_ms(child.id());
    let status = child.wait().unwrap();
    let read = |name: &str| fs_err::read(dir.join(name)).unwrap();
    let said = String::from_utf8_lossy(&[read("stderr"), read("stdout")].concat()).into_owned();
    Usage { code: status.code(), signal: status.signal(), max_kib, cpu_ms, said }
}

/// Peak memory of a process, or of its largest descendant. They may end while this reads.
fn peak_kib(id: u32) -> i64 {
    let status = fs_err::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let own = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let own = own.map_or(0, |kib| kib.trim().trim_end_matches(" kB").parse::<i64>().unwrap());
    let threads = fs_err::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
    let children = threads.map(|thread| fs_err::read_to_string(thread.path().join("children")));
    let children = children.map(Result::unwrap_or_default).collect::<String>();
    children.split_whitespace().map(|child| peak_kib(child.parse().unwrap())).fold(own, i64::max)
}

/// Processor time of a process, and of its descendants that were waited for.
fn cpu_ms(id: u32) -> i64 {
    let stat = fs_err::read_to_string(format!("/proc/{id}/stat")).unwrap();
    // A name in parentheses, which may hold spaces, ends the part before these fields.
    let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
    // User and system time, then those of children.
    let ticks: i64 = fields.skip(11).take(4).map(|ticks| ticks.parse::<i64>().unwrap()).sum();
    ticks * 1000 / rustix::param::clock_ticks_per_second() as i64
}

/// The inner shell holds 20 MB; `true` after it, so that the outer one does not become it.
#[test]
fn children_of_children_are_measured() {
    let dir = tempfile::tempdir().unwrap();
    let script = "sh -c 'x=$(yes | head -c 20000000); sleep 0.1'; true";
    let usage = measured(&["sh", "-c", script].map(str::to_owned), dir.path());
    assert!(usage.code == Some(0) && usage.max_kib > 19_000 && usage.cpu_ms > 0, "{usage:?}");
}

//! Resource usage of a run. A process can only query the maximum over all its children, so each run has a separate
//! parent: this test binary, started again for one test.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Arguments of the run, as JSON, and the folder for its output.
const RUN: &str = "GGUF_HOSTILE_RUN";
const DIR: &str = "GGUF_HOSTILE_DIR";
/// Time after which a run counts as hanging; long, since machines may be loaded.
const WALL: Duration = Duration::from_mins(3);

/// Resource usage of a run, and its text on both outputs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Usage {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    /// Maximum over all processes, including children of children.
    pub max_kib: i64,
    /// Sum over all processes.
    pub cpu_ms: i64,
    #[serde(default)]
    pub said: String,
}

/// Runs a command to its end.
pub fn measured(command: &[String], dir: &Path) -> Usage {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "hostile_corpus::measure::a_measured_run", "--ignored", "--quiet"])
        .env(RUN, serde_json::to_string(command).unwrap())
        .env(DIR, dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success(), "{command:?}");
    let read = |name: &str| fs_err::read(dir.join(name)).unwrap();
    let usage: Usage = serde_json::from_slice(&read("usage")).unwrap();
    let said = [read("stderr"), read("stdout")].concat();
    Usage { said: String::from_utf8_lossy(&said).into_owned(), ..usage }
}

#[test]
#[ignore = "a part of the others, which start it"]
fn a_measured_run() {
    use nix::sys::resource::{UsageWho, getrusage};
    use std::os::unix::process::ExitStatusExt;

    let Ok(run) = std::env::var(RUN) else { return };
    let dir = std::path::PathBuf::from(std::env::var_os(DIR).unwrap());
    let run: Vec<String> = serde_json::from_str(&run).unwrap();
    let file = |name: &str| fs_err::File::create(dir.join(name)).unwrap().into_file();
    let mut child = Command::new(&run[0])
        .args(&run[1..])
        .env_remove(RUN)
        .stdin(Stdio::null())
        .stdout(file("stdout"))
        .stderr(file("stderr"))
        .spawn()
        .unwrap();
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begun.elapsed() > WALL {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
    let ms = |time: nix::sys::time::TimeVal| time.tv_sec() * 1000 + time.tv_usec() / 1000;
    let usage = Usage {
        code: status.code(),
        signal: status.signal(),
        max_kib: usage.max_rss(),
        cpu_ms: ms(usage.user_time()) + ms(usage.system_time()),
        said: String::new(),
    };
    fs_err::write(dir.join("usage"), serde_json::to_vec(&usage).unwrap()).unwrap();
}

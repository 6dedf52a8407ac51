//! Run of one command in a separate directory, with or without a fault, and the files that it leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::calls::{Fault, Point, TRACED};
use super::scenarios::{Inputs, Scenario};
use crate::support::{files, programs, root, sha256};

/// Time after which a program is considered hanging. It needs about a second.
const PATIENCE: Duration = Duration::from_mins(2);

/// Hashes of all files below a directory, by path.
pub type State = BTreeMap<String, String>;

/// State of the files after a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All files as before the run.
    Old,
    /// All files as after a run without faults.
    New,
    /// Some files are old or absent, some new.
    Mixed,
}

/// Run without faults, for comparison.
pub struct Clean {
    pub old: State,
    pub new: State,
    /// Output of strace.
    pub log: String,
}

/// Result of a run with a fault.
pub struct Tried {
    /// True if the fault was reached.
    pub is_reached: bool,
    /// Error; `None` if all was well.
    pub flaw: Option<String>,
}

/// Inputs, and a parent folder for the directories of runs.
pub struct Bench {
    dir: tempfile::TempDir,
    inputs: Inputs,
    /// Preloaded library that makes writes short.
    shim: PathBuf,
    n_runs: AtomicUsize,
}

fn state(dir: &Path, scenario: &Scenario) -> State {
    let local = |path: &PathBuf| path.strip_prefix(dir).unwrap().to_str().unwrap().to_owned();
    let files = files::below(dir).into_iter().map(|path| (local(&path), path));
    files
        .filter(|(name, _)| !scenario.ignores.is_some_and(|ignored| name.contains(ignored)))
        .map(|(name, path)| (name, sha256(&fs_err::read(path).unwrap())))
        .collect()
}

/// Compares the files with known names to the states before and after a clean run.
///
/// # Errors
/// A file that matches neither state, or one that is gone although both states have it.
pub fn judge_files(old: &State, new: &State, found: &State) -> Result<Outcome, String> {
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let (mut is_old, mut is_new) = (true, true);
    for name in names {
        let [before, after, now] = [old, new, found].map(|state| state.get(name));
        if now != before && now != after {
            return Err(if now.is_some() {
                format!("{name} is neither the old file nor the new one")
            } else {
                format!("{name} is gone")
            });
        }
        is_old &= now == before;
        is_new &= now == after;
    }
    Ok(match (is_new, is_old) {
        (true, _) => Outcome::New,
        (_, true) => Outcome::Old,
        _ => Outcome::Mixed,
    })
}

/// Runs to the end, or kills a command that takes too long.
fn finish(command: &mut Command) -> Option<Output> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("strace runs");
    // Read in another thread, so that a full pipe does not block.
    let mut stderr = child.stderr.take().expect("piped");
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = std::io::Read::read_to_end(&mut stderr, &mut bytes);
        bytes
    });
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        if start.elapsed() > PATIENCE {
            let _ = child.kill();
            let _ = child.wait();
            break None;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let stderr = reader.join().unwrap_or_default();
    status.map(|status| Output { status, stdout: Vec::new(), stderr })
}

impl Bench {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let inputs = Inputs::make(&dir.path().join("in"));
        let shim = dir.path().join("short_write.so");
        let source = root().join("scripts/faults/short_write.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-shared", "-fPIC", "-o"]).args([&shim, &source]).arg("-ldl");
        assert!(compiler.status().expect("a C compiler").success(), "{} does not compile", source.display());
        Self { dir, inputs, shim, n_runs: AtomicUsize::new(0) }
    }

    /// Creates a new directory in the initial state of the scenario.
    fn place(&self, scenario: &Scenario) -> PathBuf {
        let place = self.dir.path().join(format!("run-{}", self.n_runs.fetch_add(1, Ordering::Relaxed)));
        fs_err::create_dir(&place).unwrap();
        (scenario.prepare)(&self.inputs, &place);
        place
    }

    fn command(scenario: &Scenario, place: &Path, strace: &[String]) -> Command {
        let mut command = programs::command(scenario.program, place);
        if !strace.is_empty() {
            command = Command::new("strace");
            command.current_dir(place).args(["-f", "-qq"]).args(strace).arg(programs::path(scenario.program));
        }
        // One worker, so that the number of a call means the same in every run.
        command.args(scenario.arguments.split(' ')).args(["--threads", "1", "--quiet"]);
        command
    }

    /// Command with a fault. The log exists afterwards if the fault was reached, or shows it.
    fn faulty(&self, scenario: &Scenario, place: &Path, point: &Point, log: &Path) -> Command {
        if point.fault.is_short() {
            let mut command = Self::command(scenario, place, &[]);
            command
                .env("LD_PRELOAD", &self.shim)
                .env("SHORT_AT", point.number.to_string())
                .env("SHORT_LOG", log);
            if point.fault == Fault::ShortThenFull {
                command.env("SHORT_THEN_FULL", "1");
            }
            return command;
        }
        let mut options = vec!["-o".to_owned(), log.display().to_string()];
        options.extend(["-e".to_owned(), format!("trace={}", point.call)]);
        options.extend(["-e".to_owned(), point.injection()]);
        if !point.fault.is_signal() {
            // Faster, but with it strace 6.1 sends no signals.
            options.push("--seccomp-bpf".to_owned());
        }
        Self::command(scenario, place, &options)
    }

    /// Runs the command without a fault.
    pub fn rehearse(&self, scenario: &Scenario) -> Clean {
        let place = self.place(scenario);
        let old = state(&place, scenario);
        let log = self.dir.path().join(format!("{}.log", scenario.name.replace(' ', "-")));
        let options = ["-o".to_owned(), log.display().to_string(), "-e".to_owned(), TRACED.to_owned()];
        let output = finish(&mut Self::command(scenario, &place, &options)).expect("a run that ends");
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(scenario.code), "{}: {message}", scenario.name);
        let new = state(&place, scenario);
        assert_ne!(old, new, "{}: nothing was written", scenario.name);
        fs_err::remove_dir_all(place).unwrap();
        Clean { old, new, log: fs_err::read_to_string(log).unwrap() }
    }

    pub fn try_point(&self, scenario: &Scenario, clean: &Clean, point: &Point) -> Tried {
        let place = self.place(scenario);
        let log = place.with_extension("log");
        let output = finish(&mut self.faulty(scenario, &place, point, &log));
        let is_killed = output.as_ref().is_some_and(|output| output.status.signal() == Some(9));
        let traced = fs_err::read_to_string(&log);
        let is_seen = |text: &String| {
            point.fault.is_short() || text.contains("(INJECTED)") || text.contains("--- SIGTERM")
        };
        let is_reached = is_killed || traced.as_ref().is_ok_and(is_seen);
        let flaw = Self::judge(scenario, clean, point, &place, output.as_ref()).err();
        let flaw = flaw.map(|flaw| format!("{}, {point}: {flaw}", scenario.name));
        let _ = fs_err::remove_dir_all(&place);
        let _ = fs_err::remove_file(&log);
        Tried { is_reached, flaw }
    }

    fn judge(
        scenario: &Scenario,
        clean: &Clean,
        point: &Point,
        place: &Path,
        output: Option<&Output>,
    ) -> Result<(), String> {
        let output = output.ok_or("it hangs")?;
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        let found = state(place, scenario);
        let outcome =
            judge_files(&clean.old, &clean.new, &found).map_err(|flaw| format!("{flaw}: {message}"))?;
        let left: Vec<&String> = found
            .keys()
            .filter(|name| !clean.old.contains_key(*name) && !clean.new.contains_key(*name))
            .filter(|name| !scenario.keeps.iter().any(|kept| name.contains(kept)))
            .collect();
        let code = output.status.code();
        if point.fault != Fault::Kill {
            match code {
                Some(code) if code == scenario.code => {
                    if outcome != Outcome::New {
                        return Err(format!(
                            "it says that all is well, and {outcome:?} files are there: {message}"
                        ));
                    }
                }
                Some(130) if point.fault == Fault::Terminate => {}
                Some(1..=3) => {
                    if !message.contains("error:") {
                        return Err(format!("exit without a word: {message:?}"));
                    }
                }
                // Before the handler is installed; nothing is begun then.
                None if point.fault == Fault::Terminate && output.status.signal() == Some(15) => {}
                other => return Err(format!("it ends with {other:?}: {message}")),
            }
            if !left.is_empty() {
                return Err(format!("left behind: {left:?}: {message}"));
            }
        }
        if message.contains("panicked") {
            return Err(message);
        }
        if outcome == Outcome::Mixed && scenario.is_set {
            let Some(reader) = scenario.reader else {
                return Err(format!("files of two runs are mixed: {:?}: {message}", found.keys()));
            };
            if programs::run("gguf-inspect", place, &[reader]).code == Some(0) {
                return Err("files of two runs are mixed, and a reader takes them for one model".to_owned());
            }
        }
        // A command that cannot be repeated is done.
        if outcome == Outcome::New && !scenario.is_repeatable {
            return if left.is_empty() { Ok(()) } else { Err(format!("left behind for ever: {left:?}")) };
        }
        let again = finish(&mut Self::command(scenario, place, &[])).ok_or("another run hangs")?;
        let message = String::from_utf8_lossy(&again.stderr);
        if again.status.code() != Some(scenario.code) {
            return Err(format!("another run ends with {:?}: {message}", again.status.code()));
        }
        let healed = state(place, scenario);
        if healed == clean.new {
            return Ok(());
        }
        let names = |state: &State| state.keys().cloned().collect::<Vec<_>>().join(", ");
        Err(format!("after another run there is {}, not {}: {message}", names(&healed), names(&clean.new)))
    }
}

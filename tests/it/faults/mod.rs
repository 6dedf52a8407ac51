//! Every writing command with a fault in one of its system calls: the program is killed there, or the call fails. In
//! any case the previous output is intact, replaced by the complete new one, or absent; another run succeeds; and no
//! files are left behind. This is the method of SQLite's crash tests, with strace's injection as the fault.
//! `scripts/faults.sh` runs it.

mod calls;
mod run;
mod scenarios;
mod table;

use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use calls::{Fault, Point};
use gguf_foundry::core::sync::Unpoisoned;
use proptest::prelude::Rng;
use run::Bench;
use table::Table;

use crate::support::{rng, seed};

/// Number of points of each command that are tried: `all`, or a number.
const POINTS: &str = "GGUF_FAULTS";
/// Part of the names of the commands that are tried.
const ONLY: &str = "GGUF_FAULTS_ONLY";
/// Environment variable that repeats the choice of an earlier run.
const SEED: &str = "GGUF_FAULTS_SEED";

/// Random selection of as many points as asked for.
fn choose(mut points: Vec<Point>, rng: &mut impl Rng) -> Vec<Point> {
    let most = match std::env::var(POINTS) {
        Ok(text) if text == "all" => return points,
        Ok(text) => text.parse().expect("GGUF_FAULTS is a number or `all`"),
        Err(_) => 12,
    };
    // Partial shuffle.
    for at in 0..most.min(points.len()) {
        let from = at + (rng.next_u64() % (points.len() - at) as u64) as usize;
        points.swap(at, from);
    }
    points.truncate(most);
    points
}

#[test]
#[ignore = "needs strace: scripts/faults.sh"]
fn every_system_call_may_go_wrong() {
    let mut rng = rng(seed(SEED));
    let only = std::env::var(ONLY).unwrap_or_default();
    let bench = Bench::new();
    let mut table = Table::default();
    for scenario in scenarios::ALL.iter().filter(|scenario| scenario.name.contains(&only)) {
        let clean = bench.rehearse(scenario);
        let points = calls::points(&clean.log);
        let n_points = points.len();
        let points = choose(points, &mut rng);
        let (next, outcomes) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
                scope.spawn(|| {
                    while let Some(point) = points.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let outcome = bench.try_point(scenario, &clean, point);
                        outcomes.lock().unpoisoned().push((point.fault, outcome));
                    }
                });
            }
        });
        table.add(scenario.name, n_points, outcomes.into_inner().unpoisoned());
    }
    let _ = write!(std::io::stderr(), "{table}");
    let flaws = table.flaws();
    assert!(table.n_reached(Fault::Kill) > 0, "no kill hit a program: nothing was tested");
    assert!(
        flaws.is_empty(),
        "{} flaws, the first:\n{}",
        flaws.len(),
        flaws[..flaws.len().min(20)].join("\n")
    );
}

/// Results of the judge for incorrect programs.
#[test]
fn the_judge_sees_what_is_broken() {
    use run::{Outcome, State, judge_files};
    let state = |files: &[(&str, &str)]| -> State {
        files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    };
    let (old, new) = (state(&[("a", "old")]), state(&[("a", "new"), ("b", "new")]));
    let verdict = |files: &[(&str, &str)]| judge_files(&old, &new, &state(files));
    assert_eq!(verdict(&[("a", "old")]), Ok(Outcome::Old));
    assert_eq!(verdict(&[("a", "new"), ("b", "new")]), Ok(Outcome::New));
    assert_eq!(verdict(&[("a", "old"), ("b", "new")]), Ok(Outcome::Mixed));
    assert_eq!(verdict(&[("a", "new")]), Ok(Outcome::Mixed));
    assert_eq!(verdict(&[("a", "half")]), Err("a is neither the old file nor the new one".to_owned()));
    assert_eq!(verdict(&[]), Err("a is gone".to_owned()));
    assert_eq!(judge_files(&state(&[]), &new, &state(&[("b", "new")])), Ok(Outcome::Mixed));
    assert_eq!(judge_files(&state(&[]), &new, &state(&[])), Ok(Outcome::Old));
}

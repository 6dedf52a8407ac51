//! `--work-dir`: runs that are stopped from outside and resumed.
#![cfg(unix)]

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::calibrate::prepare_two_layers as prepare;
use super::run;
use crate::support::programs::{Outcome, command};
use crate::support::tiers::{Tier, deep_test};

const ARGS: [&str; 8] = [
    "--type",
    "q4_k_m",
    "--calibrate",
    "text.txt",
    "--no-self-text",
    "--calibrate-tokens",
    "2048",
    "in.gguf",
];

/// Waits until some matrices are solved, then sends a signal.
fn stopped_by(signal: &str, dir: &Path, args: &[&str], n_lines: usize) -> (Option<i32>, String) {
    let mut child = command("gguf-quantize", dir).args(args).stderr(Stdio::piped()).spawn().unwrap();
    let n_found =
        || fs_err::read_to_string(dir.join("work/journal")).unwrap_or_default().matches('\n').count();
    while n_found() < n_lines {
        assert_eq!(child.try_wait().unwrap(), None, "it ended before it could be stopped");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status().unwrap();
    let ended = Outcome::from(child.wait_with_output().unwrap());
    (ended.code, ended.err)
}

deep_test!(a_run_that_was_killed_goes_on);

/// Also with a text that the model writes, which is kept, too.
fn a_run_that_was_killed_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    prepare(Tier::Deep, dir);
    for is_written in [false, true] {
        let mut base = ARGS.to_vec();
        base.retain(|word| !is_written || *word != "--no-self-text");
        run(dir, &[&base[..], &["whole.gguf"]].concat()).ok();
        let kept = [&base[..], &["out.gguf", "--work-dir", "work", "--threads", "1"]].concat();
        let (code, _) = stopped_by("KILL", dir, &kept, 3);
        assert_eq!(code, None);
        assert_eq!(dir.join("work/text").exists(), is_written);
        let inode = || fs_err::metadata(dir.join("work/text")).map(|found| found.ino()).ok();
        let before = inode();
        // Another run is refused.
        let more = |word: &&'static str| if *word == "2048" { "3072" } else { *word };
        let other: Vec<&str> = kept.iter().map(more).collect();
        run(dir, &other)
            .says(1, "the work of another run: calibration text was text.txt")
            .says(1, "hint: to begin anew, name another folder, or remove this one");
        let (code, err) = stopped_by("INT", dir, &kept, 9);
        assert_eq!(code, Some(130), "{err}");
        assert!(err.contains("resuming: ") && err.contains("note: the work is kept in work"), "{err}");
        assert!(!dir.join("out.gguf").exists());
        assert_eq!(inode(), before, "the text was written again");
        let report = run(dir, &[&kept[..], &["--json"]].concat()).ok().json();
        assert!(report["calibration"]["resumed"].as_u64().unwrap() >= 9, "{report}");
        assert!(
            fs_err::read(dir.join("out.gguf")).unwrap() == fs_err::read(dir.join("whole.gguf")).unwrap(),
            "{is_written}: other bytes"
        );
        assert!(!dir.join("work").exists(), "what is not needed any more is gone");
        fs_err::remove_file(dir.join("out.gguf")).unwrap();
    }
}

deep_test!(a_search_for_a_divergence_goes_on);

fn a_search_for_a_divergence_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    prepare(Tier::Deep, dir);
    let asked = ["--target-kld", "0.01"];
    let args = [&asked[..], &ARGS[2..]].concat();
    let whole = run(dir, &[&args[..], &["whole.gguf", "--json"]].concat()).ok().json();
    let kept = [&args[..], &["out.gguf", "--json", "--work-dir", "work"]].concat();
    // While costs are measured, then while candidates are.
    assert_eq!(stopped_by("KILL", dir, &kept, 5).0, None);
    assert_eq!(stopped_by("KILL", dir, &kept, 17).0, None);
    assert!(!dir.join("out.gguf").exists());
    // Another number of tokens measures other figures.
    let other: Vec<&str> = kept.iter().map(|arg| if *arg == "2048" { "1024" } else { arg }).collect();
    run(dir, &other).says(1, "calibration text was");
    let again = run(dir, &kept).ok().json();
    assert_eq!(whole["target"], again["target"]);
    assert!(fs_err::read(dir.join("whole.gguf")).unwrap() == fs_err::read(dir.join("out.gguf")).unwrap());
    assert!(!dir.join("work").exists());
}

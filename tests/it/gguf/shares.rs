//! Parts of one output that several runs write independently.
#![cfg(target_os = "linux")]

use std::sync::atomic::{AtomicU64, Ordering};

use gguf_foundry::core::progress::{Progress, Silent};
use gguf_foundry::core::{SourceError, TensorMeta, TensorSource};
use gguf_foundry::gguf::{GgufFile, OpenOptions, Share, SplitSpec, WriteError, WriteOptions, write_gguf};

use crate::support::programs::{command, run};
use crate::support::tiers::{Tier, deep_test, two_tiers};
use crate::support::{bundled, files, fixture};

fn model() -> String {
    fixture("tiny-llama").to_str().unwrap().to_owned()
}

/// Checkpoint of the bundled model: every day of its first two layers.
fn checkpoint(tier: Tier) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    bundled::write_layers(tier.of(2, 4), dir.path());
    dir
}

two_tiers!(shares_join_to_the_file_of_a_single_run);

/// Joined parts have the bytes of one run, for any number of parts written in any order.
fn shares_join_to_the_file_of_a_single_run(tier: Tier) {
    let (dir, checkpoint) = (tempfile::tempdir().unwrap(), checkpoint(tier));
    let (dir, model) = (dir.path(), checkpoint.path().to_str().unwrap());
    run("gguf-convert", dir, &["hf2gguf", model, "-o", "f16.gguf", "--type", "f16", "--no-sync", "-q"]).ok();
    let jobs: [(&str, Vec<&str>); 4] = [
        ("gguf-convert", vec!["hf2gguf", model, "--type", "f16", "-o"]),
        ("gguf-convert", vec!["hf2gguf", model, "--type", "q4_k_m", "-o"]),
        ("gguf-quantize", vec!["--type", "q3_k_m", "f16.gguf"]),
        ("gguf-quantize", vec!["--type", "q8_0", model]),
    ];
    for (job, (program, arguments)) in jobs.iter().enumerate() {
        let whole = format!("whole{job}.gguf");
        run(program, dir, &[arguments.as_slice(), &[&whole, "--no-sync", "-q"]].concat()).ok();
        let expected = fs_err::read(dir.join(&whole)).unwrap();
        let counts = [1, 2, 5];
        for &count in tier.of(&counts[job % 3..=job % 3], &counts) {
            let name = format!("shares{job}-{count}.gguf");
            for number in (1..=count).rev() {
                let part = format!("{number}/{count}");
                let more = [&name, "--part", &part, "--no-sync", "--threads", ["1", "2"][number % 2]];
                let err = run(program, dir, &[arguments.as_slice(), &more].concat()).ok().err;
                assert!(err.contains(&format!("part {part}: ")) && !err.contains("zeros"), "{err}");
            }
            if count == 1 {
                assert!(fs_err::read(dir.join(&name)).unwrap() == expected, "{name}");
                continue;
            }
            let first = format!("shares{job}-{count}-00001-of-{count:05}.gguf");
            let joined = format!("joined{job}-{count}.gguf");
            run("gguf-inspect", dir, &["merge", &first, "-o", &joined, "--no-sync"]).ok();
            assert!(fs_err::read(dir.join(&joined)).unwrap() == expected, "{name}");
        }
    }
}

deep_test!(shares_of_one_file_are_the_file_of_a_single_run);
/// Several runs write into one file, some of them twice, one of them killed.
fn shares_of_one_file_are_the_file_of_a_single_run() {
    let (dir, checkpoint) = (tempfile::tempdir().unwrap(), checkpoint(Tier::Everyday));
    let (dir, model) = (dir.path(), checkpoint.path().to_str().unwrap());
    let names = || files::names(dir);
    for (ty, count) in [("f16", 3), ("q4_k_m", 2)] {
        let whole = format!("{ty}.gguf");
        run("gguf-convert", dir, &["hf2gguf", model, "--type", ty, "-o", &whole, "--no-sync", "-q"]).ok();
        let expected = fs_err::read(dir.join(&whole)).unwrap();
        let into = |number: usize| {
            let part = format!("{number}/{count}");
            let arguments = ["hf2gguf", model, "--type", ty, "--part", &part, "--into", "one.gguf"];
            run("gguf-convert", dir, &arguments).ok().err
        };
        for (number, again) in (2..=count).map(|number| (number, false)).chain([(2, true)]) {
            let err = into(number);
            assert_eq!(err.contains(&format!("part 2/{count} was there already")), again, "{err}");
            assert!(err.contains("one.gguf gets its name when these parts are written: 1/"), "{err}");
            assert!(!dir.join("one.gguf").exists());
        }
        // Data of other runs is not overwritten: the data file has all parts except the first.
        let begun = names()
            .into_iter()
            .find(|name| name.starts_with("one.gguf.into-") && !name.contains("-of-"))
            .unwrap();
        assert_eq!(fs_err::metadata(dir.join(&begun)).unwrap().len(), expected.len() as u64);
        assert!(into(1).contains("all parts are there"));
        assert!(fs_err::read(dir.join("one.gguf")).unwrap() == expected, "{ty}");
        let left: Vec<_> = names().into_iter().filter(|name| name.contains(".into-")).collect();
        assert!(left.len() == 1 && left[0].contains(".done"), "{left:?}");
        // A run that is started again has nothing to do; without the file, it does everything.
        assert!(into(2).contains("all parts are there"));
        fs_err::remove_file(dir.join("one.gguf")).unwrap();
        fs_err::remove_file(dir.join(&left[0])).unwrap();
    }
}

deep_test!(a_share_that_was_killed_is_written_again);

/// A killed run has written nothing that counts; started again, it has the same result as without the kill.
fn a_share_that_was_killed_is_written_again() {
    let (dir, checkpoint) = (tempfile::tempdir().unwrap(), checkpoint(Tier::Deep));
    let (dir, model) = (dir.path(), checkpoint.path().to_str().unwrap());
    run("gguf-convert", dir, &["hf2gguf", model, "--type", "iq3_s", "-o", "whole.gguf", "--no-sync", "-q"])
        .ok();
    let expected = fs_err::read(dir.join("whole.gguf")).unwrap();
    let arguments = |part: &'static str| {
        ["hf2gguf", model, "--type", "iq3_s", "--part", part, "--into", "one.gguf", "--threads", "1"]
    };
    let mut n_killed = 0;
    // Early enough for the fastest machine, and late enough for some output.
    for (part, milliseconds) in [("1/2", 20), ("2/2", 40), ("1/2", 80), ("2/2", 150)] {
        let mut child = command("gguf-convert", dir)
            .args(arguments(part))
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(milliseconds));
        child.kill().unwrap();
        n_killed += usize::from(!child.wait().unwrap().success());
    }
    assert!(n_killed > 0, "every run was through before it was killed");
    for part in ["2/2", "1/2"] {
        run("gguf-convert", dir, &arguments(part)).ok();
    }
    assert!(fs_err::read(dir.join("one.gguf")).unwrap() == expected);
    // The two files, and the note that nothing is left to do.
    let names = fs_err::read_dir(dir).unwrap().count();
    assert_eq!(names, 3, "nothing is left of the runs that were killed");
}

/// A part has its own tensors and nothing else.
#[test]
fn a_share_is_as_large_as_its_tensors() {
    let dir = tempfile::tempdir().unwrap();
    let (dir, model) = (dir.path(), model());
    let mut names = Vec::new();
    let mut sizes = Vec::new();
    for number in 1..=4 {
        let part = format!("{number}/4");
        let arguments =
            ["hf2gguf", &model, "--type", "q4_k", "-o", "m.gguf", "--part", &part, "--no-sync", "--json"];
        let planned = run("gguf-convert", dir, &[&arguments[..], &["--dry-run"]].concat()).ok().json();
        let written = run("gguf-convert", dir, &arguments).ok().json();
        let path = dir.join(format!("m-{number:05}-of-00004.gguf"));
        assert_eq!(written["files"][0].as_str().map(|file| dir.join(file)), Some(path.clone()));
        assert!(planned.is_object());
        let alone = OpenOptions { join_parts: false, ..OpenOptions::default() };
        let file = GgufFile::open_with(&path, &alone).unwrap();
        assert_eq!(written["total"]["tensors"].as_u64(), Some(file.tensors().len() as u64));
        assert_eq!(written["total"]["bytes_after"].as_u64(), Some(file.tensor_bytes()));
        names.extend(file.tensors().iter().map(|tensor| tensor.name.clone()));
        sizes.push(file.tensor_bytes());
    }
    let set = GgufFile::open(&dir.join("m-00001-of-00004.gguf")).unwrap();
    assert_eq!(names, set.tensors().iter().map(|tensor| tensor.name.clone()).collect::<Vec<_>>());
    let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
    assert!(*most < 2 * least, "{sizes:?}");
}

/// Source that counts the bytes that are read, and a run that is stopped after some chunks.
struct Counted<'a> {
    file: &'a GgufFile,
    n_bytes: AtomicU64,
}

impl TensorSource for Counted<'_> {
    fn tensors(&self) -> &[TensorMeta] {
        self.file.tensors()
    }

    fn read_rows(&self, tensor: usize, first_row: u64, out: &mut [u8]) -> Result<(), SourceError> {
        self.n_bytes.fetch_add(out.len() as u64, Ordering::Relaxed);
        self.file.read_rows(tensor, first_row, out)
    }
}

struct StopAfter {
    n_bytes: u64,
    written: AtomicU64,
}

impl Progress for StopAfter {
    fn advance(&self, n: u64) {
        self.written.fetch_add(n, Ordering::Relaxed);
    }

    fn is_cancelled(&self) -> bool {
        self.written.load(Ordering::Relaxed) >= self.n_bytes
    }
}

/// A run that is stopped repeatedly and resumed reads every tensor only a little more than once, and writes the same
/// bytes.
#[test]
fn a_run_goes_on_where_it_was_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let (dir, model) = (dir.path(), model());
    run("gguf-convert", dir, &["hf2gguf", &model, "-o", "whole.gguf", "--type", "f32", "--no-sync", "-q"])
        .ok();
    let file = GgufFile::open(&dir.join("whole.gguf")).unwrap();
    let (target, n_total) = (dir.join("out.gguf"), file.tensor_bytes());
    for (share, step) in [(None, n_total / 7), (None, n_total / 3), (Some("2/3"), n_total / 20)] {
        let share: Option<Share> = share.map(|text: &str| text.parse().unwrap());
        let split = share.map(|share| SplitSpec { share: Some(share), ..SplitSpec::default() });
        let options = |sync| WriteOptions {
            resume: true,
            split,
            sync,
            memory_bytes: 1 << 18,
            inputs: file.paths(),
            ..WriteOptions::default()
        };
        let source = Counted { file: &file, n_bytes: AtomicU64::new(0) };
        let mut n_stopped = 0;
        let report = loop {
            let stop = StopAfter { n_bytes: step, written: AtomicU64::new(0) };
            match write_gguf(&target, file.metadata(), &source, &options(n_stopped % 2 == 0), &stop) {
                Err(WriteError::Cancelled) => n_stopped += 1,
                other => break other.unwrap(),
            }
            assert!(!target.exists() && n_stopped < 100);
        };
        assert!(n_stopped >= 2 && report.resumed_at > 0, "{n_stopped} {report:?}");
        let (n_read, n_own) = (source.n_bytes.load(Ordering::Relaxed), report.tensor_bytes);
        // Chunks in progress when the run was stopped are repeated.
        assert!(n_read >= n_own && n_read < n_own + n_own / 2, "{n_read} bytes read for {n_own}");
        let [path] = report.paths.as_slice() else { panic!("{report:?}") };
        if let Some(share) = share {
            let plain = WriteOptions { resume: false, ..options(false) };
            let other = dir.join("plain.gguf");
            let report = write_gguf(&other, file.metadata(), &file, &plain, &Silent).unwrap();
            assert_eq!(share.count(), 3);
            assert!(fs_err::read(&report.paths[0]).unwrap() == fs_err::read(path).unwrap());
        } else {
            assert!(fs_err::read(path).unwrap() == fs_err::read(dir.join("whole.gguf")).unwrap());
        }
        let left = fs_err::read_dir(dir)
            .unwrap()
            .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().contains(".into-"));
        assert_eq!(left.count(), 0);
        fs_err::remove_file(path).unwrap();
    }
}

/// Data of a stopped run is not used with another type, key text or input.
#[test]
fn another_command_does_not_go_on_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let (dir, model) = (dir.path(), model());
    run("gguf-convert", dir, &["hf2gguf", &model, "-o", "whole.gguf", "--type", "f32", "--no-sync", "-q"])
        .ok();
    let file = GgufFile::open(&dir.join("whole.gguf")).unwrap();
    let options = WriteOptions { resume: true, inputs: file.paths(), ..WriteOptions::default() };
    let stop = StopAfter { n_bytes: 1, written: AtomicU64::new(0) };
    let target = dir.join("out.gguf");
    let stopped = write_gguf(&target, file.metadata(), &file, &options, &stop);
    assert!(matches!(stopped, Err(WriteError::Cancelled)));
    let mut metadata = file.metadata().clone();
    metadata.set("general.name", "another");
    let report = write_gguf(&target, &metadata, &file, &options, &Silent).unwrap();
    assert_eq!(report.resumed_at, 0);
    assert_eq!(GgufFile::open(&target).unwrap().metadata(), &metadata);
    let report = write_gguf(&target, file.metadata(), &file, &options, &Silent).unwrap();
    assert!(report.resumed_at > 0);
    assert!(fs_err::read(&target).unwrap() == fs_err::read(dir.join("whole.gguf")).unwrap());
}

#[test]
fn shares_of_another_plan_or_model_do_not_pass() {
    let dir = tempfile::tempdir().unwrap();
    let (dir, model) = (dir.path(), model());
    run("gguf-convert", dir, &["hf2gguf", &model, "-o", "old.gguf", "--type", "f16", "--no-sync", "-q"]).ok();
    // The same model after more training.
    let file = GgufFile::open(&dir.join("old.gguf")).unwrap();
    let mut bytes = fs_err::read(dir.join("old.gguf")).unwrap();
    for tensor in 0..file.tensors().len() {
        let place = file.place(tensor);
        let start = usize::try_from(place.offset).unwrap();
        for byte in bytes[start..start + usize::try_from(place.n_bytes).unwrap()].iter_mut().step_by(64) {
            *byte ^= 1;
        }
    }
    fs_err::write(dir.join("new.gguf"), bytes).unwrap();
    let share = |input: &str, part: &str, more: &[&str]| {
        let arguments = ["--type", "q8_0", input, "m.gguf", "--part", part, "--no-sync", "-q"];
        run("gguf-quantize", dir, &[&arguments[..], more].concat()).ok();
    };
    let merge = || {
        let _ = fs_err::remove_file(dir.join("out.gguf"));
        run("gguf-inspect", dir, &["merge", "m-00001-of-00002.gguf", "-o", "out.gguf", "--no-sync"])
    };
    share("old.gguf", "1/2", &[]);
    share("old.gguf", "2/2", &[]);
    merge().ok();
    share("new.gguf", "2/2", &[]);
    let (code, _, err) = merge().parts();
    assert!(code != 0 && err.contains("gguf_foundry.split.id"), "{err}");
    share("old.gguf", "2/2", &["--override-kv", "general.name=str:other"]);
    let (code, _, err) = merge().parts();
    assert!(code != 0 && err.contains("gguf_foundry.split.id"), "{err}");
    assert!(!dir.join("out.gguf").exists());
    share("old.gguf", "2/2", &[]);
    merge().ok();
}

#[test]
fn what_cannot_be_shared_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (dir, model) = (dir.path(), model());
    let convert = |more: &[&str]| {
        let arguments = ["hf2gguf", &model, "--type", "f16", "-o", "m.gguf", "--no-sync"];
        let (code, _, err) = run("gguf-convert", dir, &[&arguments[..], more].concat()).parts();
        assert_eq!(fs_err::read_dir(dir).unwrap().count(), 0, "{more:?}");
        (code, err)
    };
    for part in ["0/2", "3/2", "1", "x/y", "1/99999999"] {
        let (code, err) = convert(&["--part", part]);
        assert!(code == 2 && err.contains("a share such as `2/8`"), "{part}: {err}");
    }
    for other in [["--split-max-size", "1M"], ["--split-max-tensors", "4"], ["--calibrate", "self"]] {
        let (code, err) = convert(&[&["--part", "1/2"], &other[..]].concat());
        assert!(code == 2 && err.contains("cannot be used with"), "{err}");
    }
    assert_eq!(convert(&["--part", "1/2", "--vocab-only"]).0, 2);
    assert_eq!(convert(&["--part", "1/2", "--into", "one.gguf"]).0, 2, "beside -o");
    run("gguf-convert", dir, &["hf2gguf", &model, "--into", "one.gguf"]).says(2, "--part");
    let (code, err) = convert(&["--part", "1/1000"]);
    assert!(code == 1 && err.contains("1000 shares for 38 tensors"), "{err}");
}

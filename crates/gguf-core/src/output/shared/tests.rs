//! Tests of runs that write one file, in any order, stopped and started again.

use super::*;

const ID: &str = "ab";
const COUNT: usize = 3;
const WHOLE: [u8; 6] = *b"xxyyzz";
const NOTE: &str = ".m.gguf.into-ab.1.done";

fn names(dir: &Path) -> Vec<String> {
    let entries = fs_err::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = entries.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

fn shared(dir: &Path, number: usize) -> SharedOutput {
    SharedOutput::of(&dir.join("m.gguf"), ID, number, COUNT).unwrap()
}

fn begin(shared: &mut SharedOutput) -> OutputFile {
    let Begun::At { file, .. } = shared.begin(6).unwrap() else { panic!("nothing to do") };
    file
}

fn fill(file: &OutputFile, number: usize) {
    file.write_at(2 * (number as u64 - 1), &[b'w' + number as u8; 2]).unwrap();
}

/// Does a run as a scheduler starts it.
fn run(dir: &Path, number: usize) -> io::Result<Vec<usize>> {
    let mut shared = shared(dir, number);
    match shared.begin(6)? {
        Begun::Finished => Ok(Vec::new()),
        Begun::Written => shared.finish(None, true),
        Begun::At { file, .. } => {
            fill(&file, number);
            shared.finish(Some(&file), true)
        }
    }
}

fn whole(dir: &Path) -> Vec<u8> {
    fs_err::read(dir.join("m.gguf")).unwrap_or_default()
}

#[test]
fn the_last_gives_the_name() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs_err::write(dir.join("m.gguf"), "old").unwrap();
    assert_eq!(run(dir, 2).unwrap(), [1, 3]);
    assert_eq!(run(dir, 3).unwrap(), [1]);
    assert_eq!(whole(dir), b"old");
    assert!(matches!(shared(dir, 3).begin(6).unwrap(), Begun::Written));
    assert_eq!(run(dir, 3).unwrap(), [1]);
    assert_eq!(run(dir, 1).unwrap(), [0; 0]);
    assert_eq!(whole(dir), WHOLE);
    assert_eq!(names(dir), [NOTE, "m.gguf"]);
    // Started again, none has anything to do.
    for number in 1..=COUNT {
        assert!(matches!(shared(dir, number).begin(6).unwrap(), Begun::Finished));
    }
    assert_eq!(names(dir), [NOTE, "m.gguf"]);
}

#[test]
fn a_target_that_is_another_file_is_no_result() {
    for change in [
        |target: &Path| fs_err::remove_file(target).unwrap(),
        |target: &Path| fs_err::write(target, "another").unwrap(),
        // Of the same length, and written in its place.
        |target: &Path| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            fs_err::write(target, "zzzzzz").unwrap();
        },
    ] {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        (1..=COUNT).for_each(|number| drop(run(dir, number).unwrap()));
        change(&dir.join("m.gguf"));
        assert_eq!(run(dir, 3).unwrap(), [1, 2]);
        assert_eq!(names(dir).iter().filter(|name| name.contains(".done")).count(), 0, "{:?}", names(dir));
        assert_eq!(run(dir, 1).unwrap(), [2]);
        assert_eq!(run(dir, 2).unwrap(), [0; 0]);
        assert_eq!(whole(dir), WHOLE);
        assert_eq!(names(dir), [".m.gguf.into-ab.2.done", "m.gguf"]);
    }
}

#[test]
fn notes_of_a_file_that_has_gone_count_for_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    assert_eq!(run(dir, 1).unwrap(), [2, 3]);
    assert_eq!(run(dir, 2).unwrap(), [3]);
    fs_err::remove_file(dir.join("m.gguf.into-ab.1")).unwrap();
    fs_err::write(dir.join("m.gguf.into-ab.1.3-of-3.at"), "6\n").unwrap();
    assert_eq!(run(dir, 3).unwrap(), [1, 2]);
    assert_eq!(names(dir), ["m.gguf.into-ab.2", "m.gguf.into-ab.2.3-of-3"]);
    assert!(!dir.join("m.gguf").exists());
    // A run that was writing when it was removed does not count either.
    let mut late = shared(dir, 1);
    let file = begin(&mut late);
    fs_err::remove_file(dir.join("m.gguf.into-ab.2")).unwrap();
    let error = late.finish(Some(&file), true).unwrap_err().to_string();
    assert!(error.contains("start every part again"), "{error}");
    for number in [1, 2, 3] {
        run(dir, number).unwrap();
    }
    assert_eq!(whole(dir), WHOLE);
}

#[test]
fn another_plan_is_another_file() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    (1..=COUNT).for_each(|number| drop(run(dir, number).unwrap()));
    let mut other = SharedOutput::of(&dir.join("m.gguf"), "cd", 1, 1).unwrap();
    let Begun::At { file, start: 0 } = other.begin(2).unwrap() else { panic!("nothing to do") };
    file.write_at(0, b"zz").unwrap();
    assert_eq!(other.finish(Some(&file), false).unwrap(), [0; 0]);
    assert_eq!(names(dir), ["m.gguf"]);
    assert_eq!(run(dir, 2).unwrap(), [1, 3]);
}

#[test]
fn a_run_that_was_started_twice() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    run(dir, 1).unwrap();
    run(dir, 2).unwrap();
    let mut late = shared(dir, 3);
    let file = begin(&mut late);
    assert_eq!(run(dir, 3).unwrap(), [0; 0]);
    std::thread::sleep(std::time::Duration::from_millis(20));
    fill(&file, 3);
    // Newer than the note, by its own writing.
    assert_eq!(late.finish(Some(&file), true).unwrap(), [0; 0]);
    assert_eq!(whole(dir), WHOLE);
    assert_eq!(names(dir), [NOTE, "m.gguf"]);
    assert!(matches!(shared(dir, 1).begin(6).unwrap(), Begun::Finished));
}

#[test]
fn a_run_knows_how_far_it_came() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let open = || {
        let mut shared = SharedOutput::of(&dir.join("m.gguf"), ID, 1, 1).unwrap();
        let Begun::At { file, start } = shared.begin(20).unwrap() else { panic!("nothing to do") };
        (shared, file, start)
    };
    assert_eq!(open().2, 0);
    for offset in [7, 12] {
        // Windows keeps the name of an open file.
        let (shared, file, _) = open();
        shared.note_written_to(&file, offset, true).unwrap();
        drop(file);
        assert_eq!(open().2, offset);
    }
    // Truncated by a power cut: no line end, no number.
    fs_err::write(dir.join("m.gguf.into-ab.1.1-of-1.at"), "1").unwrap();
    assert_eq!(open().2, 0);
    fs_err::write(dir.join("m.gguf.into-ab.1.1-of-1.at"), "12\n").unwrap();
    fs_err::remove_file(dir.join("m.gguf.into-ab.1")).unwrap();
    let (shared, file, start) = open();
    assert_eq!(start, 0, "the file itself is gone");
    assert_eq!(shared.finish(Some(&file), true).unwrap(), [0; 0]);
    assert_eq!(names(dir), ["m.gguf"]);
}

#[test]
fn a_note_of_a_single_run_is_kept_until_it_is_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let target = dir.join("m.gguf");
    let begin = || {
        let mut shared = SharedOutput::of(&target, ID, 1, 1).unwrap().with_note();
        let begun = shared.begin(6).unwrap();
        (shared, begun)
    };
    let (shared, Begun::At { file, .. }) = begin() else { panic!("nothing to do") };
    file.write_at(0, &WHOLE).unwrap();
    assert_eq!(shared.finish(Some(&file), true).unwrap(), [0; 0]);
    assert_eq!(names(dir), [NOTE, "m.gguf"]);
    assert!(matches!(begin().1, Begun::Finished));
    SharedOutput::forget_notes(&target).unwrap();
    assert_eq!(names(dir), ["m.gguf"]);
    assert!(matches!(begin().1, Begun::At { start: 0, .. }));
}

#[test]
fn many_at_once_and_again() {
    for _ in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        std::thread::scope(|scope| {
            for number in [1, 2, 3, 1, 2, 3] {
                scope.spawn(move || run(dir, number).unwrap());
            }
        });
        (1..=COUNT).for_each(|number| drop(run(dir, number).unwrap()));
        assert_eq!(whole(dir), WHOLE, "{:?}", names(dir));
        assert_eq!(names(dir).len(), 2, "{:?}", names(dir));
    }
}

/// The process that is killed: this test binary, started again.
#[cfg(target_os = "linux")]
#[test]
#[ignore = "the victim of the test below, not a test"]
fn victim() {
    let Ok(plan) = std::env::var("GGUF_CORE_TEST_SHARED_VICTIM") else { return };
    let [point, number, dir] = *plan.splitn(3, ' ').collect::<Vec<_>>() else { panic!("{plan}") };
    fault::arm(Some((point.parse().unwrap(), fault::Fault::Kill)));
    run(Path::new(dir), number.parse().unwrap()).unwrap();
    fault::arm(None);
}

#[cfg(target_os = "linux")]
#[test]
fn whoever_is_killed_anywhere_and_started_again_ends_in_the_right_file() {
    let (mut n_killed, mut n_named) = (0, 0);
    // State before it: nothing, another run, all other runs, a complete file of this plan, an unrelated file.
    let before: [fn(&Path); 5] = [
        |_| {},
        |dir| drop(run(dir, 1).unwrap()),
        |dir| [1, 2].iter().for_each(|&number| drop(run(dir, number).unwrap())),
        |dir| {
            (1..=COUNT).for_each(|number| drop(run(dir, number).unwrap()));
            fs_err::remove_file(dir.join("m.gguf")).unwrap();
            run(dir, 1).unwrap();
            run(dir, 2).unwrap();
        },
        |dir| {
            fs_err::write(dir.join("m.gguf"), "older!").unwrap();
            run(dir, 2).unwrap();
            run(dir, 1).unwrap();
        },
    ];
    for (state, before) in before.iter().enumerate() {
        for point in 0.. {
            let dir = tempfile::tempdir().unwrap();
            let dir = dir.path();
            before(dir);
            let status = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "output::shared::tests::victim", "--ignored"])
                .env("GGUF_CORE_TEST_SHARED_VICTIM", format!("{point} 3 {}", dir.display()))
                .stdout(std::process::Stdio::null())
                .status()
                .unwrap();
            if status.success() {
                break;
            }
            n_killed += 1;
            n_named += usize::from(whole(dir) == WHOLE);
            // The scheduler restarts it, and then the others, which it takes for lost, too.
            for number in [3, 1, 2, 3] {
                run(dir, number).unwrap();
                let found = whole(dir);
                assert!(
                    found == WHOLE || found.is_empty() || found == b"older!",
                    "state {state}, point {point}, then {number}: {found:?}"
                );
            }
            assert_eq!(whole(dir), WHOLE, "state {state}, point {point}: {:?}", names(dir));
            assert_eq!(names(dir).len(), 2, "state {state}, point {point}: {:?}", names(dir));
        }
    }
    assert!(n_killed > 25 && n_named > 8, "{n_killed} {n_named}");
}

#[test]
fn a_name_that_somebody_takes_is_kept_and_nothing_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    run(dir, 1).unwrap();
    run(dir, 2).unwrap();
    let mut last = shared(dir, 3);
    let file = begin(&mut last);
    fill(&file, 3);
    fs_err::write(dir.join("m.gguf"), b"GGUF of somebody").unwrap();
    assert!(last.finish(Some(&file), true).unwrap_err().to_string().contains("took this name"));
    assert_eq!(whole(dir), b"GGUF of somebody");
    fs_err::remove_file(dir.join("m.gguf")).unwrap();
    assert_eq!(run(dir, 3).unwrap(), [0; 0]);
    assert_eq!(whole(dir), WHOLE);
}

#[test]
fn hidden_files_of_dead_runs_are_swept() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let hidden = |name: &str| SharedOutput::of(&dir.join(name), ID, 1, 1).unwrap().with_note().hidden();
    let (mut living, mut dead) = (hidden("m.gguf"), hidden("n.gguf"));
    let file = begin(&mut living);
    living.note_written_to(&file, 2, false).unwrap();
    let other = begin(&mut dead);
    dead.note_written_to(&other, 4, false).unwrap();
    drop(other);
    assert_eq!(unfinished(dir).unwrap().len(), 4);
    assert!(names(dir).iter().all(|name| name.starts_with('.')));
    for name in [".x.gguf.AbC123.tmp", ".profile", "a.into-b", ".into-c"] {
        fs_err::write(dir.join(name), "x").unwrap();
    }
    sweep(dir, &[dir.join("n.gguf")]).unwrap();
    let kept = [".into-c", ".m.gguf.into-ab.1", ".m.gguf.into-ab.1.1-of-1.at", ".n.gguf.into-ab.1"];
    let rest = [".n.gguf.into-ab.1.1-of-1.at", ".profile", "a.into-b"];
    assert_eq!(names(dir), [&kept[..], &rest].concat(), "what runs hold, and what is continued, stays");
    // Continued where it was; then nothing is left of either.
    let Begun::At { file: again, start } = hidden("n.gguf").begin(6).unwrap() else { panic!("begun") };
    assert_eq!(start, 4);
    drop(again);
    fill(&file, 1);
    living.finish(Some(&file), false).unwrap();
    drop(file);
    assert!(matches!(hidden("m.gguf").begin(6).unwrap(), Begun::Finished));
    sweep(dir, &[]).unwrap();
    assert_eq!(names(dir), [".into-c", ".profile", "a.into-b", "m.gguf"]);
}

#[test]
fn files_of_other_runs_are_found_beside_the_target_and_notes_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("o.gguf");
    let names = [
        "o.gguf.into-ab.1",
        ".o.gguf.into-cd.2",
        ".o.gguf.into-cd.2.done",
        "o.gguf.into-ab.1.1-of-2",
        "p.gguf.into-ab.1",
    ];
    for name in ["o.gguf"].iter().chain(&names) {
        fs_err::write(dir.path().join(name), "").unwrap();
    }
    let mut expected = [names[0], names[1]].map(|name| dir.path().join(name));
    expected.sort();
    assert_eq!(super::other_attempts(&target).unwrap(), expected);
}

//! Several programs that edit one file at the same time.

use std::os::unix::fs::symlink;
use std::process::{Child, Command, Stdio};

use gguf_foundry::core::progress::Silent;
use gguf_foundry::gguf::{GgufFile, Metadata, Value, WriteOptions};
use gguf_foundry::inspect::{Edit, EditPlan};

use super::workbench::hole;
use crate::support::programs::{Outcome, command};
use crate::support::tiers::{Tier, two_tiers};

fn spawn(dir: &std::path::Path, args: &[&str]) -> Child {
    command("gguf-inspect", dir)
        .args(args)
        .args(["--no-sync", "--quiet"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn end(child: Child) -> (Option<i32>, String) {
    let ended = Outcome::from(child.wait_with_output().unwrap());
    (ended.code, ended.err)
}

fn keys(path: &std::path::Path) -> Metadata {
    GgufFile::open(path).unwrap().metadata().clone()
}

two_tiers!(no_update_of_programs_at_once_is_lost);

fn no_update_of_programs_at_once_is_lost(tier: Tier) {
    const AT_ONCE: usize = 8;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    hole(&path, 1 << 20);
    symlink("m.gguf", dir.path().join("link.gguf")).unwrap();
    let mut expected = keys(&path);
    for round in 0..tier.of(4_usize, 25) {
        // Each sets a different key, by one of the two names; keys of the previous round are removed.
        let setting = (0..AT_ONCE).map(|at| {
            let name = if at % 2 == 0 { "m.gguf" } else { "link.gguf" };
            spawn(dir.path(), &["set", name, &format!("r{round}.k{at}=u32:{round}")])
        });
        let setting: Vec<_> = setting.collect();
        let gone: Vec<String> = (0..AT_ONCE).map(|at| format!("r{}.k{at}", round.wrapping_sub(1))).collect();
        let removing: Vec<_> = if round == 0 {
            Vec::new()
        } else {
            gone.iter().map(|key| spawn(dir.path(), &["remove", "m.gguf", key])).collect()
        };
        for child in setting.into_iter().chain(removing) {
            let (code, err) = end(child);
            assert_eq!(code, Some(0), "round {round}: {err}");
        }
        let found = keys(&path);
        for at in 0..AT_ONCE {
            assert_eq!(
                found.get(&format!("r{round}.k{at}")),
                Some(&Value::U32(round as u32)),
                "round {round}"
            );
        }
        for key in gone.iter().filter(|_| round > 0) {
            assert!(!found.contains(key), "round {round}: {key}");
        }
        expected = found;
    }
    assert_eq!(expected.len(), 1 + AT_ONCE);
    // The file, its link, and nothing else.
    assert_eq!(fs_err::read_dir(dir.path()).unwrap().count(), 2);
}

#[test]
fn a_file_that_is_being_edited_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    hole(&path, 4096);
    let lock = std::fs::File::options().read(true).open(&path).unwrap();
    lock.lock().unwrap();
    let mut waiting = spawn(dir.path(), &["set", "m.gguf", "k=u8:1"]);
    let mut interrupted = spawn(dir.path(), &["set", "m.gguf", "k=u8:2"]);
    std::thread::sleep(std::time::Duration::from_millis(500));
    // Neither can continue, however slow the machine is.
    assert!(waiting.try_wait().unwrap().is_none() && interrupted.try_wait().unwrap().is_none());
    assert!(!keys(&path).contains("k"));
    Command::new("kill").args(["-TERM", &interrupted.id().to_string()]).status().unwrap();
    let (code, err) = end(interrupted);
    assert_eq!((code, err.as_str()), (Some(130), "error: interrupted\n"));
    drop(lock);
    let (code, err) = end(waiting);
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(keys(&path).get("k"), Some(&Value::U8(1)));
}

#[test]
fn what_another_program_did_without_asking_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let (path, other) = (dir.path().join("m.gguf"), dir.path().join("other.gguf"));
    hole(&path, 4096);
    hole(&other, 8192);
    let edits = [Edit::set("k=u8:1").unwrap()];
    let plan = EditPlan::new(&path, None, &edits, &Silent).unwrap();
    fs_err::rename(&other, &path).unwrap();
    let error = plan.write(&WriteOptions::default(), &Silent).unwrap_err();
    let expected = "changed by another program since it was read; nothing was written";
    assert!(error.to_string().ends_with(expected), "{error}");
    assert_eq!(GgufFile::open(&path).unwrap().file_bytes() / 4096, 2);
    // Writing to another name loses nothing, so nothing is locked.
    let plan = EditPlan::new(&path, Some(&other), &edits, &Silent).unwrap();
    plan.write(&WriteOptions { sync: false, ..WriteOptions::default() }, &Silent).unwrap();
    assert!(keys(&other).contains("k") && !keys(&path).contains("k"));
}

//! Cache that many processes use, that was damaged, or that other programs filled: the bytes of the server, or an
//! error.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::server::{COMMIT, Manners, Server};
use super::{model, model_of, run, run_well};
use crate::support::files;
use crate::support::programs::{Outcome, command};
use crate::support::tiers::{Tier, deep_test, two_tiers};

/// Starts a conversion in the background.
fn start(dir: &Path, server: &Server, output: &str, more: &[&str]) -> Child {
    command("gguf-convert", dir)
        .env("HF_ENDPOINT", &server.address)
        .env("HOME", dir)
        .env("TMPDIR", dir)
        .args(["hf2gguf", "org/tiny-llama", "--type", "f16", "--no-sync", "-q", "-o", output])
        .args(more)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn ends_well(child: Child) {
    Outcome::from(child.wait_with_output().unwrap()).ok();
}

/// File that a conversion of the local model writes.
fn expected(dir: &Path, server: &Server, model: &Path, more: &[&str]) -> Vec<u8> {
    let local = model.to_str().unwrap();
    let arguments = ["hf2gguf", local, "--type", "f16", "-q", "-o", "own.gguf"];
    run_well(dir, server, &[], &[&arguments[..], more].concat());
    fs_err::read(dir.join("own.gguf")).unwrap()
}

/// Files of a folder and below that are not links.
fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs_err::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let below = |path: PathBuf| if path.is_dir() && !path.is_symlink() { files(&path) } else { vec![path] };
    entries.flat_map(below).filter(|path| !path.is_symlink()).collect()
}

/// Number of rounds of processes; `GGUF_CACHE_ROUNDS` overrides it.
fn n_rounds() -> usize {
    std::env::var("GGUF_CACHE_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(6)
}

deep_test!(processes_that_share_a_cache_all_end_well);

fn processes_that_share_a_cache_all_end_well() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let model = model_of(Tier::Deep, dir);
    let manners = Manners { throttle: Some(Duration::from_millis(2)), redirects: true, ..Manners::default() };
    let server = Server::start(&model, manners);
    let expected = expected(dir, &server, &model, &[]);
    for round in 0..n_rounds() {
        let n_processes = [2, 3, 6][round % 3];
        let cache = format!("cache{round}");
        let before = server.weight_bytes();
        let children: Vec<_> = (0..n_processes)
            .map(|at| {
                std::thread::sleep(Duration::from_millis((at * round) as u64 % 40));
                start(dir, &server, &format!("o{at}.gguf"), &["--cache", &cache])
            })
            .collect();
        // In one of three rounds a process is killed.
        let mut children: Vec<_> = children.into_iter().map(Some).collect();
        if round % 3 == 2 {
            let mut child = children[0].take().unwrap();
            std::thread::sleep(Duration::from_millis(60));
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let is_killed = children[0].is_none();
        children.into_iter().flatten().for_each(ends_well);
        for at in usize::from(is_killed)..n_processes {
            let path = dir.join(format!("o{at}.gguf"));
            assert!(fs_err::read(&path).unwrap() == expected, "round {round}, process {at}");
            fs_err::remove_file(path).unwrap();
        }
        // The weights were sent once (plus the data of the killed process).
        let n_bytes = fs_err::metadata(model.join("model.safetensors")).unwrap().len();
        let sent = server.weight_bytes() - before;
        assert!(
            sent <= n_bytes * (1 + u64::from(is_killed)) + (1 << 16),
            "round {round}: {sent} of {n_bytes}"
        );
        let left = files(&dir.join(&cache));
        assert!(left.iter().all(|path| path.extension().is_none_or(|end| end != "incomplete")), "{left:?}");
        let again = server.weight_bytes();
        ends_well(start(dir, &server, "again.gguf", &["--cache", &cache]));
        assert!(fs_err::read(dir.join("again.gguf")).unwrap() == expected, "round {round}, again");
        assert_eq!(server.weight_bytes(), again, "what is kept is not fetched");
        fs_err::remove_dir_all(dir.join(cache)).unwrap();
    }
}

two_tiers!(what_is_kept_is_believed_by_its_sum);

/// Every day two of the files are changed, the largest one of them.
fn what_is_kept_is_believed_by_its_sum(tier: Tier) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let model = model_of(tier, dir);
    let server = Server::start(&model, Manners::default());
    let expected = expected(dir, &server, &model, &[]);
    let convert = |more: &[&str]| {
        let arguments = ["hf2gguf", "org/tiny-llama", "--type", "f16", "-o", "o.gguf", "--cache", "cache"];
        let ended = run(dir, &server, more_pairs(more).as_slice(), &arguments);
        (ended, fs_err::read(dir.join("o.gguf")).unwrap_or_default())
    };
    assert!(convert(&[]).1 == expected);
    let cache = dir.join("cache");
    let mut kept = files(&cache.join("models--org--tiny-llama/blobs"));
    assert!(kept.len() > 4, "{kept:?}");
    kept.sort_by_key(|path| std::cmp::Reverse(fs_err::metadata(path).unwrap().len()));
    for path in &tier.some(3, kept) {
        // One byte in the middle is changed; the length stays.
        let mut bytes = fs_err::read(path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs_err::write(path, bytes).unwrap();
        // Without a network it counts as missing, otherwise it is fetched again.
        convert(&["HF_HUB_OFFLINE=1"]).0.says(1, "or with other bytes");
        let (ended, found) = convert(&[]);
        ended.says(0, "kept with other bytes");
        assert!(found == expected);
        let (ended, found) = convert(&["HF_HUB_OFFLINE=1"]);
        ended.ok();
        assert!(found == expected);
    }
    // Without the notes, checksums are computed again and nothing is fetched.
    fs_err::remove_dir_all(cache.join(".locks")).unwrap();
    let before = server.weight_bytes();
    let (ended, found) = convert(&["HF_HUB_OFFLINE=1"]);
    ended.ok();
    assert!(found == expected);
    assert!(convert(&[]).1 == expected && server.weight_bytes() == before);
    // A file of another server in the snapshot of the same commit is not read.
    let snapshot = cache.join("models--org--tiny-llama/snapshots").join(COMMIT);
    fs_err::write(snapshot.join("chat_template.jinja"), "{{ messages }}").unwrap();
    assert!(convert(&[]).1 == expected, "a file that the list does not name");
    // A link to another file is corrected.
    #[cfg(unix)]
    {
        let link = snapshot.join("config.json");
        fs_err::remove_file(&link).unwrap();
        fs_err::os::unix::fs::symlink("/etc/hostname", &link).unwrap();
        assert!(convert(&[]).1 == expected);
        assert!(fs_err::read(&link).unwrap() == fs_err::read(model.join("config.json")).unwrap());
    }
}

fn more_pairs<'a>(pairs: &[&'a str]) -> Vec<(&'a str, &'a str)> {
    pairs.iter().filter_map(|pair| pair.split_once('=')).collect()
}

deep_test!(half_a_snapshot_is_none_without_a_network);
fn half_a_snapshot_is_none_without_a_network() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let server = Server::start(&model(), Manners::default());
    let expected = expected(dir, &server, &model(), &[]);
    for address in ["org/tiny-llama", &format!("org/tiny-llama@{COMMIT}")] {
        let arguments = ["hf2gguf", address, "--type", "f16", "-q", "-o", "o.gguf", "--cache", "cache"];
        run_well(dir, &server, &[], &arguments);
        let snapshot = dir.join("cache/models--org--tiny-llama/snapshots").join(COMMIT);
        let offline = || run(dir, &server, &[("HF_HUB_OFFLINE", "1")], &arguments);
        for entry in files::entries(&snapshot) {
            let blob = entry.canonicalize().unwrap();
            let away = dir.join("away");
            fs_err::rename(&blob, &away).unwrap();
            offline().says(1, &format!("`{}`", files::name(&entry)));
            fs_err::rename(&away, &blob).unwrap();
        }
        offline().ok();
        assert!(fs_err::read(dir.join("o.gguf")).unwrap() == expected);
    }
}

deep_test!(servers_that_name_no_version_or_know_no_ranges);

fn servers_that_name_no_version_or_know_no_ranges() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let model = model_of(Tier::Deep, dir);
    let polite = Manners::default();
    let named = ["--model-name", "Tiny Llama"];
    let expected = expected(dir, &Server::start(&model, polite.clone()), &model, &named);
    for (what, manners, is_kept) in [
        ("tags", polite.clone(), true),
        ("dates", Manners { has_dates: true, hides_tags: true, ..polite.clone() }, true),
        ("neither", Manners { hides_tags: true, ..polite.clone() }, false),
        ("no ranges", Manners { ignores_ranges: true, ..polite.clone() }, true),
        ("no ranges, cut", Manners { ignores_ranges: true, cut_each: 3, ..polite }, true),
    ] {
        let server = Server::start(&model, manners);
        let address = format!("{}/files", server.address);
        let arguments = [
            "hf2gguf",
            &address,
            "--type",
            "f16",
            "-o",
            "o.gguf",
            "--model-name",
            "Tiny Llama",
            "--cache",
            "cache",
        ];
        for round in 0..2 {
            let before = server.weight_bytes();
            let said = run_well(dir, &server, &[], &arguments);
            assert!(fs_err::read(dir.join("o.gguf")).unwrap() == expected, "{what}: {said}");
            let sent = server.weight_bytes() - before;
            assert_eq!(said.contains("reports no version of its files"), !is_kept, "{what}: {said}");
            // Without ranges the length is requested by a whole answer, which is interrupted.
            let most = if what.starts_with("no ranges") { u64::MAX } else { 64 };
            assert!(round == 0 || !is_kept || sent <= most, "{what}: {sent}");
            assert!(is_kept || sent > 1 << 16, "{what}: {sent}");
        }
        assert_eq!(
            dir.join("cache").read_dir().unwrap().count() > 0,
            is_kept,
            "{what}: what is not kept is not left"
        );
        let _ = fs_err::remove_dir_all(dir.join("cache"));
    }
}

#[cfg(unix)]
deep_test!(an_interrupt_is_heard_wherever_a_server_is_waited_for);
fn an_interrupt_is_heard_wherever_a_server_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let polite = Manners::default();
    let servers = [
        ("headers", Manners { silent_head: true, ..polite.clone() }),
        ("a list", Manners { drips: true, ..polite.clone() }),
        ("a pause", Manners { refuse_each: 1, refusal: (503, Some("60")), ..polite }),
    ]
    .map(|(what, manners)| (what, Server::start(&model(), manners)));
    // All wait at the same time.
    let mut waiting = Vec::new();
    for (what, server) in &servers {
        for signal in ["-INT", "-TERM"] {
            let output = format!("o{}.gguf", waiting.len());
            waiting.push((what, signal, start(dir, server, &output, &[])));
        }
    }
    std::thread::sleep(Duration::from_secs(1));
    for (what, signal, mut child) in waiting {
        assert!(child.try_wait().unwrap().is_none(), "{what}: it waits");
        let begun = Instant::now();
        let status = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        assert!(status.success());
        assert_eq!(child.wait().unwrap().code(), Some(130), "{what} {signal}");
        assert!(begun.elapsed() < Duration::from_secs(1), "{what} {signal}: {:?}", begun.elapsed());
    }
}

#[test]
fn directories_of_killed_runs_go_with_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let slow = Manners { throttle: Some(Duration::from_millis(200)), ..Manners::default() };
    let server = Server::start(&model(), slow);
    let scratch = || files::names(dir).iter().filter(|name| name.starts_with(".gguf-foundry.")).count();
    let begun = |child: &mut Child| {
        let since = Instant::now();
        while scratch() == 0 && since.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(5));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    };
    begun(&mut start(dir, &server, "o.gguf", &[]));
    assert_eq!(scratch(), 1, "killed while it fetched");
    server.now(Manners::default());
    ends_well(start(dir, &server, "o.gguf", &[]));
    assert_eq!(scratch(), 0);
}

#[test]
fn strangers_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let server = Server::start(&model(), Manners { is_gated: true, ..Manners::default() });
    // A web server that asks for authentication gets no token, and the message does not mention one.
    let web = format!("{}/files", server.address);
    let said = run(dir, &server, &[], &["hf2gguf", &web, "--type", "f16", "-o", "x.gguf"])
        .says(1, "fetch the files with another program")
        .text();
    assert!(!said.contains("HF_TOKEN"), "{said}");
    // Revisions that would leave the cache are not valid addresses.
    for address in ["org/tiny-llama@/tmp/x", "org/tiny-llama@x//y", "org/tiny-llama@../../x"] {
        let before = server.log().len();
        let arguments = ["hf2gguf", address, "--type", "f16", "--cache", "cache", "-o", "x.gguf"];
        let ended = run(dir, &server, &[], &arguments);
        assert!(matches!(ended.code, Some(1 | 2)), "{address}: {}", ended.text());
        assert_eq!(server.log().len(), before, "{address}");
    }
    assert!(!dir.join("x.gguf").exists());
}

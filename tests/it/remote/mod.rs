//! Checkpoints on servers: the bytes of a conversion of local files, whatever the server does, and no leaked secrets.

mod encrypted;
mod headers;
mod images;
mod server;
mod shared_cache;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gguf_foundry::arch::OutType;
use gguf_foundry::convert::{Conversion, ConvertOptions};
use gguf_foundry::core::progress::{Progress, Silent};
use gguf_foundry::core::{Hint, TensorSource};
use gguf_foundry::gguf::{WriteOptions, write_gguf};
use gguf_foundry::remote::{Address, Patience, RemoteCheckpoint, RemoteError, RemoteOptions};

use crate::support::programs::{self, Outcome};
use crate::support::tiers::{Tier, deep_test, two_tiers};
use crate::support::{bundled, files, fixture};
use server::{COMMIT, Manners, Server, TOKEN};

/// Options with short timeouts and small pieces, since test files are small. A server that refuses each seventh
/// request refuses six of one reader in a row once in a while, when eight readers ask at once; twelve it does not.
fn options() -> RemoteOptions {
    let patience = Patience {
        attempts: 12,
        first_pause: Duration::from_millis(2),
        longest_pause: Duration::from_millis(50),
        silence: Duration::from_secs(5),
    };
    RemoteOptions { patience, piece_bytes: 64 << 10, budget: 512 << 10, ..RemoteOptions::default() }
}

fn web(server: &Server) -> Address {
    Address::parse(&format!("{}/files", server.address)).unwrap().unwrap()
}

/// File that a directory is converted to, as F16.
fn converted(path: &Path, name: &str) -> Result<Vec<u8>, String> {
    let options = ConvertOptions {
        file_type: Some(OutType::F16),
        model_name: Some(name.to_owned()),
        tokenizer: path.join("tokenizer.json").exists(),
        ..ConvertOptions::default()
    };
    let conversion = Conversion::plan(path, &options).map_err(|error| told(&error))?;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.gguf");
    // One row at a time, so that pieces are read in parts.
    let write = WriteOptions { memory_bytes: 1, sync: false, ..WriteOptions::default() };
    let source: &dyn TensorSource = &conversion;
    write_gguf(&file, conversion.metadata(), source, &write, &Silent).map_err(|error| told(&error))?;
    Ok(fs_err::read(file).unwrap())
}

fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}

fn model() -> PathBuf {
    fixture("tiny-llama")
}

/// Writes the bundled model into a directory, every day its first layer, and returns its path.
fn model_of(tier: Tier, dir: &Path) -> PathBuf {
    let model = dir.join("tiny-llama");
    bundled::write_layers(tier.of(1, 4), &model);
    model
}

/// Result of a conversion of a model on a server with these manners.
fn outcome(model: &Path, manners: Manners) -> (Result<Vec<u8>, String>, Server) {
    let server = Server::start(model, manners);
    let opened = RemoteCheckpoint::open(&web(&server), &options(), &Silent);
    let outcome = opened.map_err(|error| told(&error)).and_then(|remote| converted(remote.path(), "m"));
    (outcome, server)
}

two_tiers!(bytes_are_those_of_the_files_here_however_the_server_behaves);

fn bytes_are_those_of_the_files_here_however_the_server_behaves(tier: Tier) {
    let dir = tempfile::tempdir().unwrap();
    let model = model_of(tier, dir.path());
    let expected = converted(&model, "m").unwrap();
    let weights = fs_err::metadata(model.join("model.safetensors")).unwrap().len();
    let polite = Manners::default();
    let cases = [
        ("polite", polite.clone()),
        ("cuts connections", Manners { cut_each: 3, ..polite.clone() }),
        ("is overloaded", Manners { refuse_each: 3, refusal: (503, None), ..polite.clone() }),
        ("asks to wait", Manners { refuse_each: 4, refusal: (429, Some("1")), ..polite.clone() }),
        ("is slow", Manners { throttle: Some(Duration::from_millis(1)), ..polite.clone() }),
        ("redirects", Manners { redirects: true, ..polite.clone() }),
        ("forgets signatures", Manners { redirects: true, signature_lasts: 2, ..polite.clone() }),
        ("shows no index", Manners { hides_index: true, ..polite.clone() }),
        (
            "all at once",
            Manners {
                redirects: true,
                signature_lasts: 5,
                cut_each: 4,
                refuse_each: 7,
                refusal: (500, None),
                ..polite
            },
        ),
    ];
    for (what, manners) in cases {
        let (outcome, server) = outcome(&model, manners.clone());
        assert!(outcome.as_ref() == Ok(&expected), "{what}: {:?}", outcome.err());
        // The header is fetched first, and again with the tensors; nothing else is fetched twice.
        let most = weights + (256 << 10) + (64 << 10);
        if manners.cut_each == 0 && !manners.redirects {
            assert!(
                server.weight_bytes() <= most,
                "{what}: {} of {weights} bytes sent",
                server.weight_bytes()
            );
        }
        let asked = server.log().into_iter().filter(|asked| asked.path.ends_with("safetensors"));
        assert!(asked.count() > tier.of(16, 50), "{what}");
    }
}

#[test]
fn an_expired_signature_is_no_failed_attempt() {
    let dir = tempfile::tempdir().unwrap();
    let model = model_of(Tier::Everyday, dir.path());
    let server = Server::start(&model, Manners { redirects: true, signature_lasts: 2, ..Manners::default() });
    let once = Patience { attempts: 1, ..options().patience };
    let once = RemoteOptions { patience: once, ..options() };
    let remote = RemoteCheckpoint::open(&web(&server), &once, &Silent).unwrap();
    assert_eq!(converted(remote.path(), "m"), converted(&model, "m"));
}

two_tiers!(what_cannot_be_trusted_is_refused);

fn what_cannot_be_trusted_is_refused(tier: Tier) {
    let dir = tempfile::tempdir().unwrap();
    let model = model_of(tier, dir.path());
    let polite = Manners::default();
    let cases = [
        (
            Manners { tag_changes_after: 20, ..polite.clone() },
            "the file changed while it was read: its tag was",
        ),
        (Manners { tag_vanishes_after: 20, ..polite.clone() }, "its tag was \"tag0\", is none"),
        (Manners { encoding: Some("gzip"), ..polite.clone() }, "compressed (`Content-Encoding: gzip`)"),
        (Manners { ignores_ranges: true, ..polite.clone() }, "whole files only"),
        (Manners { shifts_ranges: true, ..polite.clone() }, "whole files only"),
        (Manners { refuse_each: 1, refusal: (503, None), ..polite.clone() }, "status 503, after 12 attempts"),
        (
            Manners { refuse_each: 1, refusal: (500, Some("9999999")), ..polite.clone() },
            "status 500, after 12",
        ),
        (Manners { refuse_each: 1, refusal: (418, None), ..polite.clone() }, "status 418"),
        (Manners { cut_each: 1, throttle: None, ..polite.clone() }, ""),
        (Manners { location: Some("/files/"), ..polite.clone() }, "redirected in circles"),
        (Manners { location: Some("file:///etc/passwd"), ..polite.clone() }, "to what is no web address"),
        (Manners { location: Some("http://[broken"), ..polite.clone() }, "to what is no address"),
    ];
    for (manners, expected) in cases {
        let (outcome, _server) = outcome(&model, manners.clone());
        if expected.is_empty() {
            // Every answer breaks off halfway, but each makes progress, so the run succeeds.
            outcome.unwrap();
            continue;
        }
        let error = outcome.unwrap_err();
        assert!(error.contains(expected), "{manners:?}: {error}");
    }
    // No server.
    let gone = Address::parse("http://127.0.0.1:9/files").unwrap().unwrap();
    let error = RemoteCheckpoint::open(&gone, &options(), &Silent).unwrap_err();
    assert!(matches!(&error, RemoteError::Connection { attempts: 4, .. }), "{error}");
    assert!(!error.hints().is_empty());
}

#[test]
fn a_server_without_versions_is_warned_of() {
    struct Warnings(Mutex<Vec<String>>);
    impl Progress for Warnings {
        fn warn(&self, message: &str) {
            self.0.lock().unwrap().push(message.to_owned());
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let model = model_of(Tier::Everyday, dir.path());
    for (has_dates, n_warnings) in [(false, 1), (true, 0)] {
        let server = Server::start(&model, Manners { hides_tags: true, has_dates, ..Manners::default() });
        let warnings = Warnings(Mutex::default());
        RemoteCheckpoint::open(&web(&server), &options(), &warnings).unwrap();
        let said = warnings.0.into_inner().unwrap();
        assert_eq!(said.len(), n_warnings, "{said:?}");
        let text = "reports no version of `model.safetensors` (neither `ETag` nor `Last-Modified`)";
        assert!(said.iter().all(|said| said.contains(text)), "{said:?}");
    }
}

#[test]
fn pytorch_files_are_read_by_ranges_too() {
    for name in ["zip", "legacy", "sharded", "views"] {
        let dir = fixture("torch").join(name);
        let expected = converted(&dir, "m").unwrap();
        let total: u64 =
            fs_err::read_dir(&dir).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
        // Less memory than a tensor takes; in some of the files the rows are interleaved.
        for (piece_bytes, budget) in [(8 << 20, 64 << 20), (1 << 10, 4 << 10)] {
            let server = Server::start(&dir, Manners::default());
            let options = RemoteOptions { piece_bytes, budget, ..options() };
            let remote = RemoteCheckpoint::open(&web(&server), &options, &Silent).unwrap();
            assert!(converted(remote.path(), "m").as_ref() == Ok(&expected), "{name}");
            assert!(
                server.weight_bytes() < 4 * total,
                "{name}: {} of {total} bytes sent",
                server.weight_bytes()
            );
        }
    }
}

#[test]
fn waiting_ends_when_the_user_wants() {
    let flag = Arc::new(AtomicBool::new(false));
    let own = Arc::clone(&flag);
    let mut patient = options();
    patient.patience.first_pause = Duration::from_mins(1);
    patient.patience.longest_pause = Duration::from_mins(1);
    patient.is_cancelled = Arc::new(move || own.load(Ordering::Relaxed));
    let server = Server::start(&model(), Manners::default());
    let remote = RemoteCheckpoint::open(&web(&server), &patient, &Silent).unwrap();
    server.now(Manners { refuse_each: 1, refusal: (503, None), ..Manners::default() });
    let started = Instant::now();
    let converted = std::thread::scope(|scope| {
        let work = scope.spawn(|| converted(remote.path(), "m"));
        std::thread::sleep(Duration::from_millis(300));
        flag.store(true, Ordering::Relaxed);
        work.join().unwrap()
    });
    assert!(converted.unwrap_err().contains("stopped"));
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}

#[test]
fn weights_that_stream_past_are_held_against_the_sum_of_the_hub() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let server = Server::start(&model(), Manners::default());
    let arguments = ["hf2gguf", "org/tiny-llama", "--type", "f16", "-v", "-o", "a.gguf"];
    let said = run_well(dir, &server, &[], &arguments);
    assert!(said.contains("model.safetensors: its sum is the one that the server promises"), "{said}");
    server.now(Manners { damages: true, ..Manners::default() });
    let before = fs_err::read(dir.join("a.gguf")).unwrap();
    run(dir, &server, &[], &arguments).says(1, "SHA-256").says(1, "expected, found");
    assert!(fs_err::read(dir.join("a.gguf")).unwrap() == before, "the file of before is kept");
    assert_eq!(fs_err::read_dir(dir).unwrap().count(), 1, "nothing is left behind");
}

/// Runs the converter in a directory, with a separate environment.
fn run(dir: &Path, server: &Server, variables: &[(&str, &str)], arguments: &[&str]) -> Outcome {
    run_program("gguf-convert", dir, server, variables, arguments)
}

fn run_program(
    program: &str,
    dir: &Path,
    server: &Server,
    variables: &[(&str, &str)],
    arguments: &[&str],
) -> Outcome {
    let mut command = programs::command(program, dir);
    for name in ["HF_TOKEN", "HF_TOKEN_PATH", "HF_HOME", "HF_HUB_OFFLINE", "SSL_CERT_FILE", "AWS_PROFILE"] {
        command.env_remove(name);
    }
    command
        .env("HOME", dir)
        .env("XDG_CACHE_HOME", dir)
        .env("HF_ENDPOINT", &server.address)
        .envs(variables.iter().copied());
    programs::finish(command.args(arguments))
}

fn run_well(dir: &Path, server: &Server, variables: &[(&str, &str)], arguments: &[&str]) -> String {
    run(dir, server, variables, arguments).ok().text()
}

two_tiers!(a_name_of_the_hub_is_as_good_as_its_directory);

fn a_name_of_the_hub_is_as_good_as_its_directory(tier: Tier) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let model = model_of(tier, dir);
    let server = Server::start(&model, Manners { redirects: true, is_gated: true, ..Manners::default() });
    let well = |arguments: &[&str]| run_well(dir, &server, &[], arguments);
    let local = model.to_str().unwrap();
    for (name, ty, more) in
        [("f16", "f16", vec![]), ("q4", "q4_k_m", vec![]), ("v", "f16", vec!["--vocab-only"])]
    {
        let (own, remote) = (format!("{name}-own.gguf"), format!("{name}.gguf"));
        well(&[&["hf2gguf", local, "--type", ty, "-o", &own, "-q"], more.as_slice()].concat());
        let arguments =
            [&["hf2gguf", "org/tiny-llama", "--type", ty, "-o", &remote, "-vvv"], more.as_slice()].concat();
        let said = run_well(dir, &server, &[("HF_TOKEN", TOKEN)], &arguments);
        assert!(!said.contains(TOKEN) && !said.contains("verysecret"), "{said}");
        assert!(fs_err::read(dir.join(own)).unwrap() == fs_err::read(dir.join(remote)).unwrap(), "{name}");
    }
    // The token is sent to its server, and to no other address.
    let (elsewhere, own): (Vec<_>, Vec<_>) = server.log().into_iter().partition(|asked| asked.is_elsewhere);
    assert!(!elsewhere.is_empty() && elsewhere.iter().all(|asked| asked.authorization.is_none()));
    assert!(own.iter().all(|asked| asked.authorization.is_some()));
    // The token file of the hub's own programs works like the variable.
    fs_err::create_dir(dir.join("huggingface")).unwrap();
    fs_err::write(dir.join("huggingface/token"), format!("{TOKEN}\n")).unwrap();
    well(&["hf2gguf", "org/tiny-llama", "--type", "f16", "-q"]);
    let name = tier.of("Tiny-Llama-1.0M-F16.gguf", "Tiny-Llama-3.4M-F16.gguf");
    assert!(dir.join(name).is_file(), "beside the user, not beside the model");
    // Parts and resuming also work with remote files.
    for part in ["1/2", "2/2"] {
        well(&["hf2gguf", "org/tiny-llama", "--type", "f16", "--part", part, "-o", "p.gguf", "-q"]);
    }
    for part in ["1/2", "2/2"] {
        well(&["hf2gguf", "org/tiny-llama", "--type", "f16", "--into", "into.gguf", "--part", part, "-q"]);
    }
    assert!(fs_err::read(dir.join("into.gguf")).unwrap() == fs_err::read(dir.join("f16.gguf")).unwrap());
    well(&["hf2gguf", "org/tiny-llama", "--type", "f16", "--resume", "-o", "r.gguf", "-q"]);
    assert!(fs_err::read(dir.join("r.gguf")).unwrap() == fs_err::read(dir.join("f16.gguf")).unwrap());
}

#[test]
fn who_is_not_let_in_learns_why_and_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let server = Server::start(&model(), Manners { is_gated: true, ..Manners::default() });
    let ask = |variables: &[(&str, &str)], arguments: &[&str]| {
        let said = run(dir, &server, variables, &[&["hf2gguf"], arguments].concat()).exits_with(1).text();
        assert!(!said.contains("wrongwrong") && !said.contains("gguf-foundry-"), "{said}");
        said
    };
    let said = ask(&[], &["org/tiny-llama"]);
    assert!(said.contains("org/tiny-llama: not found on 127.0.0.1 (RepoNotFound)"), "{said}");
    let said = ask(&[("HF_TOKEN", "wrongwrong")], &["org/tiny-llama"]);
    assert!(
        said.contains("access denied (status 403, GatedRepo)") && said.contains("ask for access"),
        "{said}"
    );
    server.now(Manners::default());
    for (address, expected) in [
        ("org/other", "org/other: not found"),
        ("org/tiny-llama@v9", "org/tiny-llama@v9: not found"),
        ("hf://x", "`hf://ORG/NAME`"),
        ("https://user:wrongwrong@host/x", "leave it out"),
    ] {
        let said = ask(&[], &[address]);
        assert!(said.contains(expected), "{said}");
    }
    let said = ask(&[("HF_HUB_OFFLINE", "1")], &["org/tiny-llama"]);
    assert!(said.contains("`HF_HUB_OFFLINE` is set"), "{said}");
    for hostile in ["../../evil.json", "/etc/evil.json", "a\\..\\evil.json"] {
        server.now(Manners { lists: Some(hostile), ..Manners::default() });
        let said = ask(&[], &["org/tiny-llama"]);
        assert!(said.contains("leads out of the directory, or"), "{said}");
    }
    // A small file that differs from the list.
    server.now(Manners { lists: Some("config.json"), ..Manners::default() });
    let said = run(dir, &server, &[], &["hf2gguf", "/nowhere/x", "--cache", "c"]).exits_with(2).text();
    assert!(said.contains("`--cache` keeps files of a model on a server"), "{said}");
    assert_eq!(fs_err::read_dir(dir).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn a_cache_is_whole_checked_resumed_and_enough_without_a_network() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let server = Server::start(&model(), Manners { damages: true, ..Manners::default() });
    let well = |arguments: &[&str]| run_well(dir, &server, &[], arguments);
    let convert = ["hf2gguf", "org/tiny-llama", "--type", "f16", "-q", "--cache", "cache", "-o"];
    run(dir, &server, &[], &[convert.as_slice(), &["a.gguf"]].concat())
        .says(1, "SHA-256")
        .says(1, "expected, found");
    let blobs = dir.join("cache/models--org--tiny-llama/blobs");
    let large = fs_err::read(model().join("model.safetensors")).unwrap();
    let large_blob = blobs.join(crate::support::sha256(&large));
    assert!(!large_blob.exists() && !dir.join("a.gguf").exists());

    // Data of an earlier run is checked with the rest: a damaged piece is found, a good one is kept.
    fs_err::write(large_blob.with_extension("incomplete"), vec![0; 100]).unwrap();
    server.now(Manners::default());
    well(&[convert.as_slice(), &["a.gguf"]].concat());
    assert!(fs_err::read(&large_blob).unwrap() == large);
    let before = server.weight_bytes();
    well(&[convert.as_slice(), &["b.gguf"]].concat());
    assert_eq!(server.weight_bytes(), before, "what is kept is not fetched again");
    run_well(dir, &server, &[("HF_HUB_OFFLINE", "1")], &[convert.as_slice(), &["c.gguf"]].concat());
    let local = model().to_str().unwrap().to_owned();
    well(&["hf2gguf", &local, "--type", "f16", "-q", "-o", "own.gguf"]);
    let own = fs_err::read(dir.join("own.gguf")).unwrap();
    for name in ["a.gguf", "b.gguf", "c.gguf"] {
        assert!(fs_err::read(dir.join(name)).unwrap() == own, "{name}");
    }
    // The layout is the hub's own: the snapshot is a directory like any other.
    let snapshot = format!("cache/models--org--tiny-llama/snapshots/{COMMIT}");
    assert_eq!(fs_err::read_to_string(dir.join("cache/models--org--tiny-llama/refs/main")).unwrap(), COMMIT);
    well(&["hf2gguf", &snapshot, "--model-name", "x", "--type", "f16", "-q", "-o", "d.gguf"]);
    // A server without ranges can fill a cache.
    let simple = Server::start(&model(), Manners { ignores_ranges: true, ..Manners::default() });
    let address = format!("{}/files", simple.address);
    run_well(
        dir,
        &simple,
        &[],
        &["hf2gguf", &address, "--type", "f16", "-q", "--cache", "cache2", "-o", "e.gguf"],
    );
}

deep_test!(a_file_is_verified_beside_its_model_on_a_server);

/// The output is verified against its model on a server, with cached files.
fn a_file_is_verified_beside_its_model_on_a_server() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let server = Server::start(&model(), Manners { is_gated: true, ..Manners::default() });
    let token = [("HF_TOKEN", TOKEN)];
    run_well(dir, &server, &token, &["hf2gguf", "org/tiny-llama", "--type", "q8_0", "-o", "a.gguf", "-q"]);
    let verify = |more: &[&str]| {
        run_program("gguf-verify", dir, &server, &token, &[&["a.gguf", "--no-sync"], more].concat())
    };
    let beside = ["--baseline", "org/tiny-llama", "--weights-only"];
    let before = server.log().len();
    verify(&beside).says(2, "files have to be kept: give `--cache DIR`");
    assert_eq!(server.log().len(), before, "nobody was asked");
    // Identical weights need no run.
    let kept = ["--cache", "cache", "--json", "--report", "r.json"];
    let remote = verify(&[&beside[..], &kept].concat()).ok();
    assert!(!remote.text().contains(TOKEN), "{}", remote.text());
    let report = files::json(dir.join("r.json"));
    assert_eq!(report["models"][0]["weights"]["reproduced"], 38, "{report}");
    let inputs = report["run"]["inputs"].as_array().unwrap();
    assert!(
        inputs.iter().filter(|input| input["role"] == "baseline").all(|input| input["sha256"].is_string())
    );
    // The same result as with the local directory, and again without the network.
    let local = model().to_str().unwrap().to_owned();
    let own = verify(&["--baseline", &local, "--weights-only", "--json"]).model();
    assert!(own["weights"].is_object() && own["weights"] == remote.model()["weights"], "{own}");
    let offline = [("HF_HUB_OFFLINE", "1")];
    let arguments = [
        &["a.gguf", "--source", "org/tiny-llama", "--cache", "cache"][..],
        &beside[..2],
        &["--structure-only"],
    ];
    run_program("gguf-verify", dir, &server, &offline, &arguments.concat()).exits_with(4);
    // A missing file is not a model, and a cache must have a use.
    let before = server.log().len();
    verify(&["--baseline", "org/none.gguf", "--weights-only"]).says(1, "org/none.gguf");
    verify(&["--baseline", &local, "--weights-only", "--cache", "cache"]).says(2, "this one is local");
    assert_eq!(server.log().len(), before);
}

#[test]
fn encrypted_connections_are_made_to_those_who_are_trusted() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let server = Server::start(&model(), Manners { is_gated: true, ..Manners::default() });
    let endpoint = encrypted::front(&server.address);
    let roots = fixture("tls/ca.pem").to_str().unwrap().to_owned();
    let variables =
        [("HF_ENDPOINT", endpoint.as_str()), ("HF_TOKEN", TOKEN), ("SSL_CERT_FILE", roots.as_str())];
    let arguments = ["hf2gguf", "org/tiny-llama", "--type", "f16", "-q", "-o", "a.gguf"];
    run_well(dir, &server, &variables, &arguments);
    let own = model().to_str().unwrap().to_owned();
    run_well(dir, &server, &[], &["hf2gguf", &own, "--type", "f16", "-q", "-o", "own.gguf"]);
    assert!(fs_err::read(dir.join("own.gguf")).unwrap() == fs_err::read(dir.join("a.gguf")).unwrap());

    let n_asked = server.log().len();
    run(dir, &server, &variables[..2], &arguments).says(1, "no encrypted connection");
    assert_eq!(server.log().len(), n_asked, "nobody who is not trusted is asked anything");
    server.now(Manners { location: Some("http://localhost:1/x"), ..Manners::default() });
    run(dir, &server, &variables, &arguments).says(1, "from an encrypted connection to one that is not");
    fs_err::write(dir.join("empty.pem"), "nothing").unwrap();
    let empty = dir.join("empty.pem").to_str().unwrap().to_owned();
    run(dir, &server, &[("SSL_CERT_FILE", &empty)], &arguments).says(1, "no certificate in it");
}

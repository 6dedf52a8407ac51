//! GGUF files on servers: their headers are read like those of local files, and nothing else of them is fetched.

use std::collections::BTreeMap;
use std::path::Path;

use super::server::{Manners, Server, TOKEN};
use super::{model, run_program, run_well};
use crate::support::files;
use crate::support::programs::Outcome;
use crate::support::tiers::deep_test;

/// Length of a key that makes a header longer than the first fetch.
const LONG: usize = 700_000;

/// Creates a directory with typical files of servers, and a server of it.
fn shelf(dir: &Path, manners: Manners) -> Server {
    let shelf = dir.join("shelf");
    fs_err::create_dir(&shelf).unwrap();
    let server = Server::start(&shelf, manners);
    let local = model().to_str().unwrap().to_owned();
    run_well(dir, &server, &[], &["hf2gguf", &local, "--type", "f32", "-q", "-o", "shelf/short.gguf"]);
    fs_err::write(dir.join("long.txt"), "x".repeat(LONG)).unwrap();
    inspect_well(dir, &server, &["set", "shelf/short.gguf", "a.long=str:@long.txt", "-o", "shelf/long.gguf"]);
    inspect_well(
        dir,
        &server,
        &["split", "shelf/short.gguf", "--split-max-tensors", "15", "-o", "shelf/cut"],
    );
    let whole = fs_err::read(shelf.join("long.gguf")).unwrap();
    fs_err::write(shelf.join("half.gguf"), &whole[..LONG / 2]).unwrap();
    fs_err::write(shelf.join("page.gguf"), "<!doctype html><title>Sign in</title>").unwrap();
    fs_err::write(shelf.join("none.gguf"), "").unwrap();
    server
}

fn inspect(dir: &Path, server: &Server, arguments: &[&str]) -> Outcome {
    run_program("gguf-inspect", dir, server, &[("HF_TOKEN", TOKEN)], arguments)
}

fn inspect_well(dir: &Path, server: &Server, arguments: &[&str]) -> String {
    inspect(dir, server, arguments).ok().text()
}

deep_test!(headers_on_servers_are_those_of_the_files);

fn headers_on_servers_are_those_of_the_files() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    drop(shelf(dir, Manners::default()));
    let mut of_local = BTreeMap::new();
    for manners in [
        Manners::default(),
        Manners { redirects: true, is_gated: true, ..Manners::default() },
        Manners { ignores_ranges: true, ..Manners::default() },
        Manners { cut_each: 3, ..Manners::default() },
    ] {
        let server = Server::start(&dir.join("shelf"), manners.clone());
        for name in ["short.gguf", "long.gguf", "cut-00002-of-00003.gguf"] {
            let local = format!("shelf/{name}");
            let mut addresses = vec![format!("org/shelf/{name}"), format!("hf://org/shelf@main/{name}")];
            if !manners.is_gated {
                addresses.push(format!("{}/files/{name}?secret=1", server.address));
            }
            for address in addresses {
                let before = server.weight_bytes();
                let asked: [&[&str]; 5] = [
                    &["--json", "--full"],
                    &[],
                    &["get", "general.architecture"],
                    &["template"],
                    &["dump", "--json"],
                ];
                for arguments in asked {
                    let of = |file: &str| {
                        let (command, options) = match arguments {
                            [command, options @ ..] if !command.starts_with('-') => (vec![*command], options),
                            options => (vec![], options),
                        };
                        let all = [&command, &[file][..], options].concat();
                        let ended = inspect(dir, &server, &all);
                        // The file is shown by the name that was given, without possible secrets.
                        let shown = file.split('?').next().unwrap().trim_start_matches("hf://");
                        let dir = shown.replace("@main", "");
                        let dir = dir.strip_suffix(name).unwrap();
                        (ended.code, ended.text().replace(dir, "DIR/"))
                    };
                    let expected = of_local.entry((name, arguments)).or_insert_with(|| of(&local));
                    assert_eq!(&of(&address), expected, "{address} {arguments:?} {manners:?}");
                }
                // The header for each run, and the data that a server without ranges sends before the connection is
                // closed.
                let whole = fs_err::metadata(dir.join(&local)).unwrap().len();
                let is_little = server.weight_bytes() - before < asked.len() as u64 * whole;
                assert!(is_little || manners.ignores_ranges || whole < 1 << 20);
            }
        }
    }
}

#[test]
fn what_fits_is_found_by_the_headers_of_a_repository() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs_err::create_dir(dir.join("shelf")).unwrap();
    let server = Server::start(&dir.join("shelf"), Manners::default());
    let local = model().to_str().unwrap().to_owned();
    for ty in ["f32", "q8_0", "q4_0"] {
        let out = format!("shelf/{ty}.gguf");
        run_well(dir, &server, &[], &["hf2gguf", &local, "--type", ty, "-q", "-o", &out]);
    }
    let fits = |path: &str| {
        let text = inspect_well(dir, &server, &["memory", path, "--fit", "1G", "--ctx", "64", "--json"]);
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        report["models"][0].clone()
    };
    let before = server.weight_bytes();
    let (there, here) = (fits("org/shelf"), fits("shelf"));
    assert_eq!((&there["best"], &there["choices"]), (&here["best"], &here["choices"]));
    assert_eq!(there["choices"].as_array().unwrap().len(), 3, "{there}");
    let n_bytes: u64 = files::names(dir.join("shelf"))
        .iter()
        .map(|name| fs_err::metadata(dir.join("shelf").join(name)).unwrap().len())
        .sum();
    assert!(server.weight_bytes() - before <= n_bytes.min(3 * ((1 << 20) + 1)));
}

#[test]
fn no_more_than_the_header_is_fetched() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let server = shelf(dir, Manners::default());
    let whole = fs_err::read(dir.join("shelf/long.gguf")).unwrap();
    // A model is much larger than its header.
    let file = fs_err::OpenOptions::new().write(true).open(dir.join("shelf/long.gguf")).unwrap();
    file.set_len(64 << 20).unwrap();
    inspect_well(dir, &server, &["org/shelf/long.gguf"]);
    // Plus the byte that was requested for its length.
    let most = (1 << 20) + 1;
    assert!(server.weight_bytes() <= most && whole.len() > LONG, "{}", server.weight_bytes());
    assert!(!dir.join("org").exists(), "nothing is written");
}

#[test]
fn what_is_no_header_is_told_as_of_files_here() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let server = shelf(dir, Manners::default());
    let web = |name: &str| format!("{}/files/{name}", server.address);
    let missing = "it has cut-00001-of-00003.gguf, cut-00002-of-00003.gguf, cut-00003-of-00003.gguf, half.gguf, \
                   long.gguf, none.gguf, page.gguf, short.gguf: name one, such as \
                   `org/shelf/cut-00001-of-00003.gguf`";
    for (address, code, words) in [
        ("org/shelf/half.gguf", 3, "the file ends too early"),
        ("org/shelf/page.gguf", 3, "a web page (HTML)"),
        ("org/shelf/none.gguf", 3, "org/shelf/none.gguf"),
        ("org/shelf/other.gguf", 1, "there is no `other.gguf`"),
        ("org/shelf/other.gguf", 1, missing),
        ("org/shelf", 1, missing),
        ("org/nobody/m.gguf", 1, "org/nobody: not found"),
        (&web("other.gguf"), 1, "other.gguf: not found"),
        ("org/shelf@/etc/m.gguf", 1, "org/shelf@/etc/m.gguf"),
        ("hf://m.gguf", 1, "`hf://ORG/NAME/FILE.gguf`"),
        ("https://me:hunter2@host/m.gguf", 1, "password"),
    ] {
        let said = inspect(dir, &server, &[address]).exits_with(code).text();
        assert!(said.contains(words), "{address}: {said}");
        assert!(!said.contains("hunter2") && !said.contains(TOKEN), "{said}");
    }
    // A missing part is reported like a local one.
    fs_err::remove_file(dir.join("shelf/cut-00003-of-00003.gguf")).unwrap();
    inspect(dir, &server, &["org/shelf/cut-00001-of-00003.gguf"])
        .says(1, "cut-00003-of-00003.gguf: part 3 of 3 is missing");
    let dump =
        inspect(dir, &server, &["dump", "org/shelf/cut-00001-of-00003.gguf", "--json"]).says_only(0, "");
    assert!(dump.json().is_object(), "{}", dump.out);
}

#[test]
fn a_token_stays_at_home() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let server = shelf(dir, Manners::default());
    let ask = |address: &str| {
        let token = [("HF_TOKEN", TOKEN)];
        run_program("gguf-inspect", dir, &server, &token, &["get", address, "general.architecture"])
    };
    ask("s3://bucket/m/long.gguf").says(1, "buckets are not read");
    ask(&format!("{}/files/long.gguf", server.address)).ok();
    assert!(server.log().iter().all(|asked| asked.authorization.is_none()), "the token is the hub's");
    ask("org/shelf/long.gguf").ok();
    assert!(server.log().iter().any(|asked| asked.authorization.is_some()));
}

//! Every invalid file of `fixtures/hostile`, read by the programs. Limits are 256 MiB and five seconds of processor
//! time, 20 where nothing is optimized. The exit code and the message are those of the manifest, with no panic, signal
//! or output file.

pub mod material;
mod measure;

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde::Deserialize;

use crate::support::tiers::{Tier, two_tiers};
use crate::support::{files, fixture};
use material::Material;
use measure::{Usage, measured};

/// Maximum cost of an input of at most a megabyte, for programs that are not optimized.
const MAX_KIB: i64 = 256 << 10;
const MAX_CPU_MS: i64 = 20_000;
/// Maximum bytes of the corpus, and of a file made from a rule.
const MAX_CORPUS_BYTES: u64 = 3 << 20;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    case: Vec<Case>,
}

/// Invalid file, the command that reads it, and the expected message.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    /// File or folder of the corpus, named after the rule that it breaks.
    file: String,
    /// Program and arguments; words in capitals are placeholders (see [`material`]).
    run: String,
    exit: i32,
    says: String,
}

fn manifest() -> Vec<Case> {
    let text = fs_err::read_to_string(fixture("hostile/MANIFEST.toml")).unwrap();
    toml::from_str::<Manifest>(&text).unwrap().case
}

/// Cases of a tier: every day the last one of each family, which is the first word of a name, and of each program.
fn cases(tier: Tier) -> Vec<Case> {
    let mut seen = BTreeSet::new();
    let mut is_new = |case: &Case| {
        let first = |text: &str, end: char| text.split(end).next().unwrap().to_owned();
        // Both are inserted.
        [first(&case.file, '_'), first(&case.run, ' ')].map(|word| seen.insert(word)).contains(&true)
    };
    manifest().into_iter().rev().filter(|case| tier.is_deep() || is_new(case)).collect()
}

/// Errors of a run; empty if there are none.
fn complaints(case: &Case, usage: &Usage, left: &[String]) -> Vec<String> {
    let mut wrong = Vec::new();
    if let Some(signal) = usage.signal {
        wrong.push(format!("ended by signal {signal}"));
    } else if usage.code != Some(case.exit) {
        wrong.push(format!("exit {:?}, expected {}", usage.code, case.exit));
    }
    if !usage.said.contains(&case.says) {
        wrong.push(format!("does not say `{}`", case.says));
    }
    if usage.said.contains("panicked") || usage.said.contains("internal error") {
        wrong.push("panicked".to_owned());
    }
    if usage.max_kib > MAX_KIB {
        wrong.push(format!("{} MiB", usage.max_kib >> 10));
    }
    if usage.cpu_ms > MAX_CPU_MS {
        wrong.push(format!("{} ms of processor time", usage.cpu_ms));
    }
    if case.exit != 0 && !left.is_empty() {
        wrong.push(format!("left {left:?}"));
    }
    wrong
}

two_tiers!(every_bad_file_costs_little_and_is_refused_by_name);

/// With `GGUF_HOSTILE_PRINT` the runs of all cases are printed, one JSON line each, and not judged; its value selects
/// them by name.
fn every_bad_file_costs_little_and_is_refused_by_name(tier: Tier) {
    let print = std::env::var("GGUF_HOSTILE_PRINT").ok();
    let (mut wrong, mut worst_kib, mut worst_ms) = (String::new(), (0, ""), (0, ""));
    let cases = cases(if print.is_some() { Tier::Deep } else { tier });
    for case in &cases {
        if print.as_ref().is_some_and(|part| !case.file.contains(part.as_str())) {
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        let material = Material::new(dir.path(), &case.file);
        let usage = measured(&material.command(&case.run), dir.path());
        let left = material.left();
        worst_kib = worst_kib.max((usage.max_kib, case.file.as_str()));
        worst_ms = worst_ms.max((usage.cpu_ms, case.file.as_str()));
        let complaints = complaints(case, &usage, &left);
        if print.is_some() {
            let said: String = usage.said.chars().take(1500).collect();
            println!(
                "{}",
                serde_json::json!({"file": case.file, "run": case.run, "exit": usage.code, "signal": usage.signal,
                    "said": said, "ms": usage.cpu_ms, "kib": usage.max_kib, "left": left, "wrong": complaints})
            );
        } else if !complaints.is_empty() {
            let said: String = usage.said.chars().take(600).collect();
            let _ = writeln!(wrong, "{} ({}): {}\n{said}", case.file, case.run, complaints.join("; "));
        }
    }
    println!("{} runs; worst: {worst_kib:?} KiB, {worst_ms:?} ms", cases.len());
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn the_corpus_is_listed_and_small() {
    let root = fixture("hostile");
    let listed: BTreeSet<String> = manifest().into_iter().map(|case| case.file).collect();
    let mut found: BTreeSet<String> = files::names(&root).into_iter().collect();
    found.retain(|name| !(name.starts_with("base") || name == "MANIFEST.toml" || name == "README.md"));
    assert_eq!(listed, found);
    assert!(listed.len() >= 150, "{} rules", listed.len());
    let n_bytes: u64 = files::below(&root).iter().map(|path| fs_err::metadata(path).unwrap().len()).sum();
    assert!(n_bytes < MAX_CORPUS_BYTES, "{n_bytes} bytes");
}

/// Each broken rule gives one complaint.
#[test]
fn each_limit_is_looked_at() {
    let case = Case { file: String::new(), run: String::new(), exit: 1, says: "no".to_owned() };
    let good = Usage { code: Some(1), signal: None, max_kib: 9, cpu_ms: 9, said: "no".to_owned() };
    assert!(complaints(&case, &good, &[]).is_empty());
    for bad in [
        Usage { code: Some(0), ..good.clone() },
        Usage { code: None, signal: Some(9), ..good.clone() },
        Usage { max_kib: MAX_KIB + 1, ..good.clone() },
        Usage { cpu_ms: MAX_CPU_MS + 1, ..good.clone() },
        Usage { said: "yes".to_owned(), ..good.clone() },
        Usage { said: "no: thread panicked".to_owned(), ..good.clone() },
    ] {
        assert_eq!(complaints(&case, &bad, &[]).len(), 1, "{bad:?}");
    }
    assert_eq!(complaints(&case, &good, &["out.gguf".to_owned()]).len(), 1);
}

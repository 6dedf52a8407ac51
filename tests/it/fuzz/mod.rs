//! Entries of the fuzz targets for a limited time: damaged copies of valid inputs, and earlier findings.
//!
//! Each run takes another seed and prints it; `GGUF_FUZZ_SEED=N` repeats a run, `GGUF_FUZZ_CASES=N` makes it longer.
//! `GGUF_FUZZ_CORPUS=DIR` writes the seeds of all targets and the repository's other inputs for them, for
//! `scripts/fuzz.sh`, and their words to `DIR-words`. Inputs that are too long to be damaged effectively go to `DIR-long`,
//! for `scripts/coverage.sh`.

#[path = "../../../fuzz/entries.rs"]
mod entries;
mod kept;
mod material;
mod models;
mod mutate;
mod seeds;
mod vocabularies;
mod words;

use std::collections::BTreeMap;
use std::panic::catch_unwind;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use mutate::damaged;

use crate::support::tiers::{Tier, deep_test, two_tiers};
use crate::support::{files, root, seed};
use crate::testkit::noise::Noise;

static SEEDS: LazyLock<BTreeMap<&str, Vec<Vec<u8>>>> =
    LazyLock::new(|| targets().into_iter().map(|target| (target, seeds::of(target))).collect());

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}: expected a number")))
}

fn targets() -> Vec<&'static str> {
    entries::ENTRIES.iter().map(|entry| entry.0).collect()
}

/// Runs an input, and reports the path of its bytes if it fails; returns true if it passed.
fn passes(target: &str, bytes: &[u8], what: &str) -> bool {
    let is_fine = catch_unwind(|| entries::run(target, bytes)).is_ok();
    if !is_fine {
        let path = std::env::temp_dir().join(format!("gguf-fuzz-{target}-{}", std::process::id()));
        fs_err::write(&path, bytes).unwrap();
        println!("{target}: {what}: the input is {}", path.display());
    }
    is_fine
}

two_tiers!(no_entry_panics);

fn no_entry_panics(tier: Tier) {
    let seed = seed("GGUF_FUZZ_SEED");
    let asked = number("GGUF_FUZZ_CASES");
    // Slow targets get fewer inputs.
    let n_cases = asked.unwrap_or(tier.of(50, 1500));
    let most = Duration::from_millis(tier.of(40, 500));
    let mut failed = Vec::new();
    for (at, &(target, _, places)) in (0..).zip(entries::ENTRIES) {
        let (seeds, words) = (&SEEDS[target], words::of(places));
        let start = Instant::now();
        for case in 0..n_cases {
            if start.elapsed() > most && asked.is_none() {
                break;
            }
            // A case depends only on its number, so that it can be repeated alone and in any build.
            let noise = &mut Noise::new(seed ^ (at << 40 | case).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let input = damaged(&seeds[noise.index(seeds.len())], &words, noise);
            if !passes(target, &input, &format!("GGUF_FUZZ_SEED={seed} GGUF_FUZZ_CASES={}", case + 1)) {
                failed.push(target);
                break;
            }
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}

deep_test!(seeds_reach_what_is_behind_the_parser);
fn seeds_reach_what_is_behind_the_parser() {
    let corpus = std::env::var_os("GGUF_FUZZ_CORPUS").map(PathBuf::from);
    let mut refused = Vec::new();
    for target in targets() {
        let seeds = &SEEDS[target];
        assert!(!seeds.is_empty(), "{target} has no seed");
        for (at, seed) in seeds.iter().enumerate() {
            // All zeros are valid blocks of every type, but not a row that each type accepts.
            let may_be_refused = ["blocks", "quantize", "card", "tasks"].contains(&target);
            let is_accepted = entries::run(target, seed);
            if !is_accepted && !may_be_refused {
                refused.push(format!("{target}: seed {at}"));
            }
            if let Some(corpus) = &corpus {
                let dir = corpus.join(target);
                fs_err::create_dir_all(&dir).unwrap();
                fs_err::write(dir.join(format!("seed-{at:03}")), seed).unwrap();
            }
        }
        assert!(seeds.iter().any(|seed| entries::run(target, seed)), "{target}: no seed is accepted");
    }
    assert!(refused.is_empty(), "refused: {refused:?}");
}

/// Maximum bytes of an input that a fuzzer can damage effectively.
const MAX_BYTES: usize = 16 << 10;

/// Invalid files, and files of reference programs, for `scripts/fuzz.sh` and `scripts/coverage.sh`, which run them.
#[test]
fn files_of_the_repository_are_inputs() {
    let Ok(corpus) = std::env::var("GGUF_FUZZ_CORPUS") else { return };
    let mut n_targets = 0;
    fs_err::create_dir_all(format!("{corpus}-words")).unwrap();
    for &(target, _, places) in entries::ENTRIES {
        fs_err::write(format!("{corpus}-words/{target}.dict"), words::dictionary(&words::of(places)))
            .unwrap();
        let inputs = material::of(target);
        n_targets += usize::from(!inputs.is_empty());
        for (at, input) in inputs.iter().enumerate() {
            let is_long = input.len() > MAX_BYTES;
            let dir = PathBuf::from(if is_long { format!("{corpus}-long") } else { corpus.clone() });
            fs_err::create_dir_all(dir.join(target)).unwrap();
            fs_err::write(dir.join(target).join(format!("file-{at:03}")), input).unwrap();
        }
    }
    assert!(n_targets > 30, "{n_targets} targets have inputs");
}

/// Earlier findings of fuzzers, one folder for each target.
#[test]
fn what_was_found_stays_mended() {
    let dir = root().join("fuzz/regressions");
    for target in files::names(&dir) {
        if target == "README.md" {
            continue;
        }
        for name in files::names(dir.join(&target)) {
            let bytes = fs_err::read(dir.join(&target).join(&name)).unwrap();
            assert!(passes(&target, &bytes, &name), "{target}: {name}");
        }
    }
}

#[test]
fn targets_and_the_page_agree() {
    let targets = targets();
    assert!(targets.is_sorted() && targets.len() >= 24, "{targets:?}");
    let page = fs_err::read_to_string(root().join("docs/guarantees.md")).unwrap();
    let number = format!("{} targets", targets.len());
    assert!(page.contains(&number), "docs/guarantees.md has not: {number}");
    // One program for all targets: it uses the list directly.
    let manifest = fs_err::read_to_string(root().join("fuzz/Cargo.toml")).unwrap();
    assert_eq!(manifest.matches("[[bin]]").count(), files::names(root().join("fuzz/fuzz_targets")).len());
}

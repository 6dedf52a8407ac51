//! `imatrix --part` and `combine`: an importance matrix from several machines has the bytes of one from a single
//! machine.

use std::path::Path;

use gguf_foundry::gguf::{UnfinishedRun, WriteOptions, combine_imatrix_parts};

use super::gguf_verify;
use crate::support::tiers::{Tier, deep_test, two_tiers};
use crate::support::{fixture, programs};
use crate::testkit::tiny::Tiny;

/// Directory with the first layers of the bundled model, and a text.
fn directory(n_layers: u32) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    Tiny::new().with_layers(n_layers).write(dir.path(), "base.gguf");
    fs_err::copy(fixture("tiny-llama/corpus.txt"), dir.path().join("p.txt")).unwrap();
    dir
}

fn collect(dir: &Path, args: &[&str], more: &[&str]) -> String {
    gguf_verify(&[&["imatrix"], args, &["--no-sync"], more].concat(), dir).ok().out
}

fn parts(dir: &Path, args: &[&str], n: usize) -> Vec<String> {
    (1..=n)
        .map(|at| {
            let (name, share) = (format!("m-{at}-of-{n}.part"), format!("{at}/{n}"));
            let machine =
                [["--memory", "1G", "--threads", "1"], ["--memory", "40M", "--threads", "2"]][at % 2];
            let out = collect(dir, args, &[&["--part", &share, "-o", &name], &machine[..]].concat());
            assert!(out.starts_with(&format!("{name}: part {share}, ")), "{out}");
            name
        })
        .collect()
}

fn assert_same(dir: &Path, args: &[&str], counts: &[usize]) {
    let whole = collect(dir, args, &["-o", "whole.gguf"]);
    let expected = fs_err::read(dir.join("whole.gguf")).unwrap();
    for &n in counts {
        let mut names = parts(dir, args, n);
        names.reverse();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let combine = [&["combine"], &names[..], &["-o", "joined.gguf", "--no-sync"]].concat();
        let out = gguf_verify(&combine, dir).ok().out;
        // Also the size, the chunks and the perplexity.
        assert_eq!(out.replace("joined", "whole"), whole, "{n} parts");
        assert!(fs_err::read(dir.join("joined.gguf")).unwrap() == expected, "{n} parts");
        fs_err::remove_file(dir.join("joined.gguf")).unwrap();
    }
}

two_tiers!(the_parts_of_a_matrix_are_the_matrix);

/// Every day of one layer, over a short text.
fn the_parts_of_a_matrix_are_the_matrix(tier: Tier) {
    let dir = directory(tier.of(1, 4));
    let [ctx, chunks] = tier.of(["64", "7"], ["256", "13"]);
    let args = ["base.gguf", "--prompts", "p.txt", "--ctx", ctx, "--chunks", chunks];
    assert_same(dir.path(), &args, tier.of(&[2][..], &[1, 2, 5][..]));
    // Also in the older format, and without the perplexity.
    let args = [&args[..], &["--no-ppl"]].concat();
    assert_same(dir.path(), &args, &[3]);
    let more = ["combine", "m-1-of-3.part", "m-2-of-3.part", "m-3-of-3.part", "-o", "joined.dat", "--legacy"];
    gguf_verify(&more, dir.path()).ok();
    collect(dir.path(), &args, &["-o", "whole.dat", "--legacy"]);
    let read = |name: &str| fs_err::read(dir.path().join(name)).unwrap();
    assert!(read("joined.dat") == read("whole.dat"));
}

#[test]
fn experts_that_only_some_parts_reach() {
    let dir = tempfile::tempdir().unwrap();
    let hf = fixture("native/nvfp4_qwen3moe/hf");
    let args = ["hf2gguf", hf.to_str().unwrap(), "-o", "f32.gguf", "--type", "f32", "--no-tokenizer", "-q"];
    programs::run("gguf-convert", dir.path(), &args).ok();
    let tokens = |seed: u32| (1..=48).map(|at| (at * 7 + seed * at * at) % 31).collect::<Vec<u32>>();
    let lines = (0..6).map(|seed| serde_json::json!({ "tokens": tokens(seed) }).to_string());
    fs_err::write(dir.path().join("p.jsonl"), lines.collect::<Vec<_>>().join("\n")).unwrap();
    assert_same(dir.path(), &["f32.gguf", "--prompts", "p.jsonl"], &[1, 2, 5]);
}

fn refused(dir: &Path, names: &[&str]) -> String {
    let combine = [&["combine"], names, &["-o", "joined.gguf", "--no-sync"]].concat();
    let err = gguf_verify(&combine, dir).exits_with_one_of(&[1, 2]).err;
    assert!(!dir.join("joined.gguf").exists());
    err
}

#[test]
fn parts_that_do_not_belong_together_are_refused() {
    let dir = directory(1);
    let at = dir.path();
    let args = ["base.gguf", "--prompts", "p.txt", "--ctx", "64", "--chunks", "6"];
    let names = parts(at, &args, 3);
    let [one, two, three] = [&names[0], &names[1], &names[2]].map(String::as_str);
    assert!(refused(at, &[one, three]).contains("of 3 parts one is missing: 2/3"));
    assert!(refused(at, &[one, two, three, two]).contains("part 2 is given twice"));
    let run = |args: &[&str], share: &str, name: &str| collect(at, args, &["--part", share, "-o", name]);
    let mut tiny = Tiny::new().with_layers(1);
    tiny.edit("blk.0.attn_v.weight", |values| values[0] += 0.25);
    tiny.write(at, "other.gguf");
    run(&["other.gguf", "--prompts", "p.txt", "--ctx", "64", "--chunks", "6"], "2/3", "model.part");
    assert!(refused(at, &[one, "model.part", three]).contains("of another model"));
    run(&["base.gguf", "--prompts", "p.txt", "--ctx", "32", "--chunks", "6"], "2/3", "ctx.part");
    assert!(refused(at, &[one, "ctx.part", three]).contains("of another text or other options"));
    run(&args, "2/4", "four.part");
    assert!(refused(at, &[one, "four.part", three]).contains("of another number of parts"));
    collect(at, &args, &["-o", "whole.gguf"]);
    let err = refused(at, &[one, "whole.gguf", three]);
    assert!(err.contains("whole.gguf: no part of an importance matrix"), "{err}");
    // A matrix of a part of the text is not accepted as one of the text.
    gguf_verify(&["imatrix", "merge", one, "-o", "joined.gguf"], at)
        .says(1, "part 1 of 3 of an importance matrix, a whole one expected")
        .says(1, "hint: `gguf-verify combine` puts all parts together");
    let err = programs::run("gguf-quantize", at, &["--imatrix", one, "base.gguf", "q.gguf", "q4_0"]).err;
    assert!(err.contains("part 1 of 3 of an importance matrix"), "{err}");
    for (more, expected) in [
        (vec!["--legacy"], "`--legacy` with `--part`: "),
        (vec!["--in-file", "whole.gguf"], "`--in-file` with `--part`: "),
        (vec!["--save-frequency", "2"], "`--save-frequency` with `--part`: "),
    ] {
        let all = [&["imatrix"], &args[..], &["--part", "1/2", "-o", "x.part"], &more[..]].concat();
        gguf_verify(&all, at).says(2, expected);
    }
    let all = [&["imatrix"], &args[..], &["--part", "1/7", "-o", "x.part"]].concat();
    gguf_verify(&all, at).says(1, "part 1/7: the prompts have 6 chunks");
    assert!(refused(at, &[one, two, three, "--max-ppl", "9"]).contains("`--max-ppl` is about a verdict"));
    gguf_verify(&["combine", one, two, three], at).says(2, "give `-o FILE`");
}

#[test]
fn whole_matrices_are_added_up_as_merge_does() {
    let dir = directory(1);
    let at = dir.path();
    let args = ["base.gguf", "--prompts", "p.txt", "--ctx", "64", "--chunks", "2"];
    collect(at, &args, &["-o", "a.gguf"]);
    collect(at, &args, &["-o", "b.gguf", "--from-chunk", "2"]);
    let run = |words: &[&str], out: &str| {
        gguf_verify(&[words, &["a.gguf", "b.gguf", "-o", out, "--no-sync"]].concat(), at).ok();
        fs_err::read(at.join(out)).unwrap()
    };
    assert!(run(&["combine"], "c.gguf") == run(&["imatrix", "merge"], "m.gguf"));
}

deep_test!(a_part_that_was_changed_is_refused_or_says_the_same);

fn a_part_that_was_changed_is_refused_or_says_the_same() {
    let dir = directory(4);
    let args = ["base.gguf", "--prompts", "p.txt", "--ctx", "16", "--chunks", "2"];
    let names = parts(dir.path(), &args, 1);
    let path = dir.path().join(&names[0]);
    let bytes = fs_err::read(&path).unwrap();
    let expected = combine_imatrix_parts(std::slice::from_ref(&path)).unwrap();
    assert_eq!(UnfinishedRun::find(&path).unwrap().part.unwrap().count, 1);
    let changed = dir.path().join("changed.part");
    let open = |bytes: &[u8]| {
        fs_err::write(&changed, bytes).unwrap();
        combine_imatrix_parts(std::slice::from_ref(&changed))
    };
    let places = (0..2000).step_by(3).chain((2000..bytes.len()).step_by(bytes.len() / 150));
    let mut n_refused = 0;
    for at in places {
        assert!(open(&bytes[..at]).is_err(), "{at}");
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        match open(&flipped) {
            // Bytes between tensors have no effect.
            Ok(found) => assert!(found == expected, "{at}"),
            Err(_) => n_refused += 1,
        }
    }
    assert!(n_refused > 700, "{n_refused}");
}

#[test]
fn a_part_that_was_stopped_goes_on() {
    let dir = directory(1);
    let at = dir.path();
    let args = ["base.gguf", "--prompts", "p.txt", "--ctx", "64", "--chunks", "8"];
    let names = parts(at, &args, 2);
    let path = at.join(&names[1]);
    let bytes = fs_err::read(&path).unwrap();
    // The first chunks of part 2, as a killed run would have left them.
    let (mut run, sums) = UnfinishedRun::open(&path).unwrap();
    run.n_done = 3;
    sums.write_unfinished(&path, &run, &WriteOptions::default(), &gguf_foundry::core::progress::Silent)
        .unwrap();
    let err = refused(at, &[&names[0], &names[1]]);
    assert!(err.contains("3 of the 4 chunks of this part are done"), "{err}");
    assert!(err.contains("hint: run this part again with `gguf-verify imatrix --resume`"), "{err}");
    // These are not the sums of its first chunks. Their origin cannot be verified, but the run has another fingerprint.
    let all =
        [&["imatrix"], &args[..], &["--part", "2/2", "-o", &names[1], "--resume", "--no-sync"]].concat();
    gguf_verify(&all, at).says(1, "the file of another run");
    // A complete part is done at once, and stays unchanged.
    fs_err::write(&path, &bytes).unwrap();
    gguf_verify(&all, at).says(0, "4 of 4 chunks done");
    assert!(fs_err::read(&path).unwrap() == bytes);
}

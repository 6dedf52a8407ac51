//! `--part` and `combine`: a verification by several machines equals that by one.

use std::path::Path;

use gguf_foundry::core::GgmlType;
use gguf_foundry::verify::{PartError, Thresholds, VerificationPart, combine_parts};
use serde_json::Value;

use super::gguf_verify;
use crate::support::fixture;
use crate::support::programs::Outcome;
use crate::support::tiers::{Tier, deep_test, two_tiers};
use crate::testkit::tiny::Tiny;

/// First layers of the bundled model.
fn base(tier: Tier) -> Tiny {
    Tiny::new().with_layers(tier.of(1, 2))
}

/// Directory with the model, a quantized one, one with exchanged weights, and two kinds of prompts.
fn directory(tier: Tier) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let base = base(tier);
    base.write(dir.path(), "base.gguf");
    let q4 = base.quantized(GgmlType::Q4_0);
    q4.write(dir.path(), "q4.gguf");
    let mut damaged = base.clone();
    damaged.tensors.swap("blk.0.ffn_up.weight", "blk.0.ffn_gate.weight");
    damaged.write(dir.path(), "damaged.gguf");
    let mut broken = base.clone();
    broken.edit("blk.0.attn_q.weight", |values| values[5] = f32::NAN);
    broken.write(dir.path(), "broken.gguf");
    fs_err::copy(fixture("tiny-llama/corpus.txt"), dir.path().join("p.txt")).unwrap();
    let text = fs_err::read_to_string(fixture("tiny-llama/corpus.txt")).unwrap();
    // Texts of all lengths, including one that is too short to be scored.
    let lines = text.lines().filter(|line| line.len() > 20).take(24).enumerate().map(|(at, line)| {
        let text = if at == 7 { "" } else { line };
        serde_json::json!({ "text": text }).to_string()
    });
    fs_err::write(dir.path().join("lines.jsonl"), lines.collect::<Vec<_>>().join("\n")).unwrap();
    dir
}

/// Runs one part, with the arguments of all parts.
fn part(dir: &Path, args: &[&str], share: &str, output: &str) -> Outcome {
    gguf_verify(&[args, &["--part", share, "-o", output, "--no-sync"]].concat(), dir)
}

/// Runs `n` parts, and returns their names.
fn parts(dir: &Path, args: &[&str], n: usize) -> Vec<String> {
    (1..=n)
        .map(|at| {
            let name = format!("run-{at}-of-{n}.part");
            // With different memory and threads of the machines.
            let machine =
                [["--memory", "1G", "--threads", "1"], ["--memory", "40M", "--threads", "2"]][at % 2];
            part(dir, &[args, &machine].concat(), &format!("{at}/{n}"), &name).ok();
            name
        })
        .collect()
}

fn report(ended: &Outcome) -> Value {
    let mut report = ended.model();
    assert!(report.as_object_mut().unwrap().insert("tokens_per_second".to_owned(), Value::Null).is_some());
    report
}

fn without_speed(out: &str) -> Vec<&str> {
    out.lines().filter(|line| !line.starts_with("speed ")).collect()
}

/// Checks that a single run and its parts give the same text, JSON and exit code; the limits are given at the end.
fn assert_same(dir: &Path, args: &[&str], limits: &[&str], counts: &[usize]) -> Value {
    let single = |more: &[&str]| gguf_verify(&[args, limits, more].concat(), dir);
    let single_run = single(&["--json"]);
    let expected = report(&single_run);
    let words = single(&["-v"]).out;
    for &n in counts {
        let mut names = parts(dir, args, n);
        // In any order.
        names.reverse();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let combine = |more: &[&str]| gguf_verify(&[&["combine"], &names[..], limits, more].concat(), dir);
        let own = report(&combine(&["--json"]).exits_with(single_run.code()));
        for (name, value) in expected.as_object().unwrap() {
            assert_eq!(&own[name], value, "{n} parts: {name}");
        }
        assert_eq!(own, expected, "{n} parts");
        assert_eq!(without_speed(&combine(&["-v"]).out), without_speed(&words), "{n} parts");
    }
    expected
}

two_tiers!(parts_say_what_a_single_run_says);

fn parts_say_what_a_single_run_says(tier: Tier) {
    let dir = directory(tier);
    let [ctx, chunks] = tier.of(["64", "8"], ["128", "24"]);
    let args = ["q4.gguf", "--baseline", "base.gguf", "--prompts", "p.txt", "--ctx", ctx, "--chunks", chunks];
    let report = assert_same(dir.path(), &args, &[], &tier.some(3, [2, 1, 5]));
    assert_eq!(report["verdict"], "pass", "{report}");
    assert!(report["healthy_cost"]["tokens"].as_u64().unwrap() > tier.of(200, 1000), "{report}");
    assert_eq!(report["worst"].as_array().unwrap().len(), 8);
    assert!(report["weights"]["tensors"].as_array().unwrap().len() > 10);
}

deep_test!(limits_are_kept_or_missed_by_all_parts_together);

fn limits_are_kept_or_missed_by_all_parts_together() {
    let dir = directory(Tier::Deep);
    let run = ["q4.gguf", "--prompts", "p.txt", "--ctx", "128", "--chunks", "40", "--score", "half"];
    let report = assert_same(dir.path(), &run, &["--max-ppl", "500"], &[5]);
    assert_eq!(report["verdict"], "pass", "{report}");
    let report = assert_same(dir.path(), &run, &["--max-ppl", "2"], &[2]);
    assert_eq!(report["verdict"], "fail", "{report}");
    let err =
        gguf_verify(&["combine", "run-1-of-2.part", "run-2-of-2.part", "--max-kld", "1"], dir.path()).err;
    assert!(err.contains("the parts were run without `--baseline`"), "{err}");
    // Partial without a limit, and the effect of accepting that.
    let combined = ["combine", "run-1-of-2.part", "run-2-of-2.part"];
    gguf_verify(&combined, dir.path()).exits_with(4);
    gguf_verify(&[&combined[..], &["--accept-partial"]].concat(), dir.path()).ok();
}

deep_test!(prompts_of_all_lengths_in_several_files);

fn prompts_of_all_lengths_in_several_files() {
    let dir = directory(Tier::Deep);
    let [ctx, chunks] = ["96", "40"];
    let args = [
        "q4.gguf",
        "--baseline",
        "base.gguf",
        "--prompts",
        "lines.jsonl",
        "p.txt",
        "--ctx",
        ctx,
        "--chunks",
        chunks,
        "--score",
        "all",
    ];
    let report = assert_same(dir.path(), &args, &[], &[2, 5]);
    assert_eq!(report["prompt_files"].as_array().unwrap().len(), 2);
    assert!(report["prompts"].as_array().unwrap().len() == 25, "{report}");
}

deep_test!(damage_is_found_whichever_part_sees_it);

fn damage_is_found_whichever_part_sees_it() {
    let dir = directory(Tier::Deep);
    let [ctx, chunks] = ["256", "8"];
    let cut = ["--prompts", "p.txt", "--ctx", ctx, "--chunks", chunks];
    let args = [&["damaged.gguf", "--baseline", "base.gguf"], &cut[..]].concat();
    let report = assert_same(dir.path(), &args, &[], &[2, 5]);
    assert_eq!(report["verdict"], "fail");
    assert_eq!(report["weights"]["damaged"], 2, "{report}");
    // A model that cannot be run has no part to run, but a verdict.
    let args = [&["broken.gguf", "--baseline", "base.gguf"], &cut[..]].concat();
    let report = assert_same(dir.path(), &args, &[], &[2]);
    assert_eq!((&report["verdict"], &report["perplexity"]), (&Value::from("fail"), &Value::Null), "{report}");
    // The baseline is the model itself.
    let args = [&["base.gguf", "--baseline", "base.gguf"], &cut[..]].concat();
    let report = assert_same(dir.path(), &args, &[], &[2]);
    assert!(report["findings"].to_string().contains("the baseline is the model itself"), "{report}");
}

/// Error of `combine` for these files.
fn refused(dir: &Path, names: &[&str]) -> String {
    let (_, out, err) = gguf_verify(&[&["combine"], names].concat(), dir).exits_with_one_of(&[1, 2]).parts();
    assert!(out.is_empty(), "{out}");
    err
}

deep_test!(parts_that_do_not_belong_together_are_refused);

fn parts_that_do_not_belong_together_are_refused() {
    let dir = directory(Tier::Everyday);
    let at = dir.path();
    let args = |model: &'static str, ctx: &'static str, prompts: &'static str| {
        [model, "--baseline", "base.gguf", "--prompts", prompts, "--ctx", ctx, "--chunks", "4"]
    };
    let run = |args: &[&str], share: &str, name: &str| {
        part(at, args, share, name).ok();
    };
    let own = args("q4.gguf", "16", "p.txt");
    for number in 1..=3 {
        run(&own, &format!("{number}/3"), &format!("{number}.part"));
    }
    let err = refused(at, &["1.part", "3.part"]);
    assert!(err.contains("of 3 parts one is missing: 2/3"), "{err}");
    let err = refused(at, &["3.part"]);
    assert!(err.contains("of 3 parts some are missing: 1/3, 2/3"), "{err}");
    let err = refused(at, &["1.part", "2.part", "3.part", "2.part"]);
    assert!(err.contains("part 2 is given twice"), "{err}");
    let mut tiny = base(Tier::Everyday);
    tiny.edit("blk.0.attn_v.weight", |values| values[0] += 0.25);
    tiny.quantized(GgmlType::Q4_0).write(at, "other.gguf");
    for (name, args, what) in [
        ("model.part", args("other.gguf", "16", "p.txt").to_vec(), "another model"),
        ("prompt.part", args("q4.gguf", "16", "lines.jsonl").to_vec(), "another text of the prompts"),
        ("ctx.part", args("q4.gguf", "8", "p.txt").to_vec(), "another choice of `--ctx`"),
        (
            "alone.part",
            vec!["q4.gguf", "--prompts", "p.txt", "--ctx", "16", "--chunks", "4"],
            "another baseline",
        ),
    ] {
        run(&args, "2/3", name);
        let err = refused(at, &["1.part", name, "3.part"]);
        assert!(
            err.contains(&format!("{name}: a part of another verification than 1.part: {what}")),
            "{err}"
        );
        assert!(err.contains("hint: all parts have the same model"), "{err}");
    }
    run(&own, "2/4", "four.part");
    let err = refused(at, &["1.part", "four.part", "3.part"]);
    assert!(err.contains("four.part: a part of 4, but 1.part is one of 3"), "{err}");
    // A copy of the file with one other number.
    let mut copy = base(Tier::Everyday);
    copy.edit("blk.0.ffn_down.weight", |values| *values.last_mut().unwrap() = f32::INFINITY);
    copy.write(at, "copy.gguf");
    fs_err::rename(at.join("base.gguf"), at.join("kept.gguf")).unwrap();
    let plain = |model| [model, "--prompts", "p.txt", "--ctx", "16", "--chunks", "4"];
    run(&plain("kept.gguf"), "1/2", "a.part");
    run(&plain("copy.gguf"), "2/2", "b.part");
    let err = refused(at, &["a.part", "b.part"]);
    assert!(err.contains("b.part: a part of another verification than a.part: another model"), "{err}");
    // Other files, and a mixture of both kinds.
    let err = refused(at, &["1.part", "p.txt"]);
    assert!(err.contains("p.txt is none: combine them apart"), "{err}");
    let err = refused(at, &["1.part", "2.part", "3.part", "-o", "x"]);
    assert!(err.contains("`-o` is for importance matrices"), "{err}");
}

#[test]
fn a_part_that_was_changed_is_refused_wherever_it_was() {
    let dir = directory(Tier::Everyday);
    let args = ["q4.gguf", "--baseline", "base.gguf", "--prompts", "p.txt", "--ctx", "16", "--chunks", "2"];
    part(dir.path(), &args, "1/2", "1.part").ok();
    let path = dir.path().join("1.part");
    let bytes = fs_err::read(&path).unwrap();
    assert!(VerificationPart::open(&path).is_ok());
    let name = dir.path().join("changed.part");
    let open = |bytes: &[u8]| {
        fs_err::write(&name, bytes).unwrap();
        VerificationPart::open(&name)
    };
    let step = (bytes.len() / 600).max(1);
    let places = (0..60).chain((60..bytes.len()).step_by(step)).chain(bytes.len() - 60..bytes.len());
    let mut n_lengths = 0;
    for at in places {
        let error = open(&bytes[..at]).unwrap_err();
        n_lengths += usize::from(matches!(error, PartError::Length { .. }));
        assert!(error.to_string().contains("changed.part: "), "{at}: {error}");
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        let error = open(&flipped).unwrap_err();
        assert!(error.to_string().contains("changed.part: "), "{at}: {error}");
    }
    assert!(n_lengths > 500, "{n_lengths}");
    let mut longer = bytes.clone();
    longer.push(0);
    assert!(open(&longer).is_err());
    // Declared numbers that exceed the file, with a wrong and a right checksum.
    for (at, value) in [(48, u64::MAX), (48, 1 << 40), (48, 0)] {
        let mut changed = bytes.clone();
        changed[at..at + 8].copy_from_slice(&value.to_le_bytes());
        assert!(open(&changed).is_err());
        reseal(&mut changed);
        let error = open(&changed).unwrap_err();
        assert!(matches!(error, PartError::Length { .. } | PartError::Facts { .. }), "{error}");
    }
}

fn reseal(bytes: &mut [u8]) {
    use sha2::{Digest, Sha256};
    let sum = Sha256::digest(&bytes[48..]);
    bytes[16..48].copy_from_slice(&sum);
}

#[test]
fn facts_that_somebody_wrote_by_hand_are_refused() {
    let dir = directory(Tier::Everyday);
    let args = ["q4.gguf", "--prompts", "p.txt", "--ctx", "16", "--chunks", "2"];
    part(dir.path(), &args, "1/1", "1.part").ok();
    let bytes = fs_err::read(dir.path().join("1.part")).unwrap();
    let n_facts = u64::from_le_bytes(bytes[48..56].try_into().unwrap()) as usize;
    let facts: Value = serde_json::from_slice(&bytes[56..56 + n_facts]).unwrap();
    let with = |pointer: &str, value: Value| {
        let mut facts = facts.clone();
        *facts.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")) = value;
        let text = facts.to_string();
        let mut changed = bytes[..48].to_vec();
        changed.extend((text.len() as u64).to_le_bytes());
        changed.extend(text.as_bytes());
        changed.extend(&bytes[56 + n_facts..]);
        reseal(&mut changed);
        let path = dir.path().join("by-hand.part");
        fs_err::write(&path, &changed).unwrap();
        VerificationPart::open(&path).and_then(|part| combine_parts(vec![part], Thresholds::default()))
    };
    assert!(with("/number", Value::from(1)).is_ok());
    for (pointer, value) in [
        ("/number", Value::from(0)),
        ("/number", Value::from(2)),
        ("/count", Value::from(1u64 << 60)),
        ("/checks/at_weights", Value::from(u64::MAX)),
        (
            "/checks/findings",
            serde_json::json!([{ "check": "mine", "severity": "error", "tensor": null, "message": "" }]),
        ),
        ("/run/end_window", Value::from(1)),
        ("/run/first_window", Value::from(1)),
        ("/run/plan/n_windows", Value::from(1u64 << 62)),
        ("/run/plan/prompts", serde_json::json!([])),
        ("/run/plan/prompts", serde_json::json!([3])),
        ("/run/plan/is_compared", Value::from(true)),
        ("/run/plan/files/0/end_prompt", Value::from(9)),
        ("/run/n_positions", Value::from(u64::MAX)),
        ("/run/n_twin", Value::from(1)),
        ("/run", Value::from(3)),
        ("/run", Value::Null),
        ("/plan/version", Value::Null),
    ] {
        let found = with(pointer, value.clone());
        assert!(found.is_err(), "{pointer} {value}: {found:?}");
    }
}

#[test]
fn what_has_no_parts_is_refused_with_a_way_out() {
    let dir = directory(Tier::Everyday);
    let at = dir.path();
    let own = ["q4.gguf", "--prompts", "p.txt", "--ctx", "64", "--chunks", "3"];
    for (more, expected) in [
        (vec!["--report", "r.html"], "`--report` is written of a whole run: leave `--part` out"),
        (vec!["--per-token", "t.jsonl"], "`--per-token` is written of a whole run"),
        (vec!["--save-baseline", "l.bin"], "`--save-baseline` is written of a whole run"),
        (vec!["--max-ppl", "9"], "`--max-ppl` is a limit of the whole: give it to `gguf-verify combine`"),
        (vec!["--min-cosine", "0.5", "--baseline", "base.gguf"], "`--min-cosine` is a limit of models"),
        (vec!["--accept-partial"], "give it to `gguf-verify combine`"),
        (vec!["--structure-only"], "cannot be used with '--structure-only'"),
        (vec!["--trace", "0"], "`--trace` shows one machine's run"),
        (vec!["base.gguf"], "a second model has parts of its own"),
    ] {
        // Models precede the options.
        let (models, more): (Vec<&str>, Vec<&str>) = more
            .into_iter()
            .partition(|word| word.ends_with("base.gguf") && expected.starts_with("a second"));
        part(at, &[&models[..], &own[..], &more[..]].concat(), "1/2", "x.part").says(2, expected);
        assert!(!at.join("x.part").exists());
    }
    gguf_verify(&[&own[..], &["--part", "1/2"]].concat(), at).says(2, "-o <FILE>");
    gguf_verify(&[&own[..], &["-o", "x.part"]].concat(), at).says(2, "--part <I/N>");
    part(at, &own, "4/5", "x.part")
        .says(1, "part 4/5: the prompts have 3 chunks, and no part may be empty")
        .says(1, "hint: cut the run into 3 parts at most");
    assert!(!at.join("x.part").exists());
}

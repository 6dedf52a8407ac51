//! `gguf-quantize ladder --calibrate`: types one after another, each as its own calibrated run.

use std::path::Path;

use super::{calibrate, run};
use crate::support::programs::Outcome;
use crate::support::tiers::{Tier, deep_test};
use crate::support::{files, programs};

const CALIBRATED: [&str; 5] = ["--calibrate", "text.txt", "--no-self-text", "--calibrate-tokens", "1024"];

fn make(dir: &Path, args: &[&str]) -> Outcome {
    programs::run("gguf-quantize", dir, &[&["ladder", "in.gguf"], args, &["--no-sync"]].concat())
}

deep_test!(each_type_has_the_bytes_of_its_own_calibrated_run);

fn each_type_has_the_bytes_of_its_own_calibrated_run() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    calibrate::prepare_two_layers(Tier::Deep, dir);
    let args = [&["-o", "out", "--types", "q8_0,q4_k_l,q2_k_s"][..], &CALIBRATED].concat();
    let planned = make(dir, &[&args[..], &["--dry-run", "--json"]].concat()).ok().json();
    let is_calibrated = |at: usize| planned["files"][at]["is_calibrated"].as_bool().unwrap();
    assert_eq!([0, 1, 2].map(is_calibrated), [false, true, true], "Q8_0 is not solved");
    assert!(!dir.join("out").exists());
    let said = make(dir, &[&args[..], &["--resume", "--work-dir", "work"]].concat()).ok();
    assert!(said.out.contains("calibrated"), "{}", said.out);
    assert!(!dir.join("work").exists(), "what is kept for a restart is not needed any more");

    let larger = ["--type", "q4_k_m", "--output-tensor-type", "q8_0", "--token-embedding-type", "q8_0"];
    run(dir, &[&["in.gguf", "one.gguf"][..], &larger, &CALIBRATED].concat()).ok();
    run(dir, &[&["in.gguf", "two.gguf", "--type", "q2_k_s"][..], &CALIBRATED].concat()).ok();
    run(dir, &["in.gguf", "three.gguf", "--type", "q8_0"]).ok();
    for (own, single) in [("Q4_K_L", "one"), ("Q2_K_S", "two"), ("Q8_0", "three")] {
        let own = fs_err::read(dir.join(format!("out/in-{own}.gguf"))).unwrap();
        assert!(own == fs_err::read(dir.join(format!("{single}.gguf"))).unwrap(), "{single}");
    }
    let list = files::json(dir.join("out/ladder.json"));
    assert_eq!(list["calibration"]["tokens"], 1024);
    assert_eq!(list["calibration"]["texts"][0]["name"], "text.txt");
    for file in list["files"].as_array().unwrap() {
        let path = dir.join("out").join(file["parts"][0]["name"].as_str().unwrap());
        assert_eq!(fs_err::metadata(path).unwrap().len(), file["file_bytes"].as_u64().unwrap());
        assert_eq!(file["calibrated"], file["type"] != "Q8_0");
    }
    let page = fs_err::read_to_string(dir.join("out/README.md")).unwrap();
    assert!(page.contains("The rounding of 2 of the 3 files is calibrated with 1,024 tokens"), "{page}");
    assert!(page.contains("Every other file has the bytes of its own run of llama.cpp"), "{page}");
    assert!(!files::names(dir.join("out")).iter().any(|name| name.starts_with("ladder-part-")));
}

deep_test!(finished_types_are_kept_only_for_the_same_calibration);

fn finished_types_are_kept_only_for_the_same_calibration() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    calibrate::prepare_two_layers(Tier::Deep, dir);
    // The page fails in the end: everything else is done.
    fs_err::write(dir.join("page.md"), "{% for file in files %}{{ file.missing.key }}{% endfor %}").unwrap();
    let base = ["-o", "out", "--types", "q4_0,iq4_nl", "--resume"];
    let args = [&base[..], &CALIBRATED].concat();
    let failing = [&args[..], &["--template", "page.md"]].concat();
    make(dir, &failing).says(1, "page.md");
    let before = fs_err::read(dir.join("out/in-Q4_0.gguf")).unwrap();
    let said = make(dir, &failing).says(1, "page.md");
    let written = "already written: Q4_0, IQ4_NL";
    assert!(said.err.contains(written), "{}", said.err);
    // Another text, another number of tokens, another method.
    let rest: Vec<&str> = args.iter().map(|arg| if *arg == "text.txt" { "rest.txt" } else { arg }).collect();
    for other in [rest, [&args[..], &["--solver", "reference"]].concat()] {
        make(dir, &other).says(1, "in-Q4_0.gguf: it is there, made with other options");
        make(dir, &[&other[..], &["--template", "page.md", "--replace"]].concat()).says(1, "page.md");
        assert!(fs_err::read(dir.join("out/in-Q4_0.gguf")).unwrap() != before);
    }
    // Without calibration, nothing of it is taken.
    make(dir, &["-o", "out", "--types", "q4_0", "--replace"]).ok();
    run(dir, &["in.gguf", "plain.gguf", "--type", "q4_0"]).ok();
    let plain = fs_err::read(dir.join("plain.gguf")).unwrap();
    assert!(fs_err::read(dir.join("out/in-Q4_0.gguf")).unwrap() == plain);
}

#[test]
fn contradictory_options_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    calibrate::prepare_two_layers(Tier::Everyday, dir);
    let args = |more: &[&'static str]| [&["-o", "out", "--types", "q4_0"][..], &CALIBRATED, more].concat();
    make(dir, &args(&["--calibration", "text.txt"])).says(2, "cannot be used with");
    make(dir, &args(&["--imatrix", "m.gguf"])).says(2, "cannot be used with");
    make(dir, &args(&["--check-text", "text.txt"])).says(2, "another text expected");
    make(dir, &args(&["--calibrate", "none.txt"])).says(1, "none.txt");
    assert!(!dir.join("out").exists());
}

deep_test!(a_line_of_a_ladder_is_a_promise);

fn a_line_of_a_ladder_is_a_promise() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    calibrate::prepare_two_layers(Tier::Deep, dir);
    let args = [&["-o", "out", "--types", "q8_0,kld:0.02"][..], &CALIBRATED].concat();
    let planned = make(dir, &[&args[..], &["--dry-run", "--json"]].concat()).ok().json();
    assert_eq!(planned["files"][1]["target_kld"], 0.02);
    make(dir, &args).ok();
    run(dir, &[&["in.gguf", "one.gguf", "--target-kld", "0.02"][..], &CALIBRATED].concat()).ok();
    let own = fs_err::read(dir.join("out/in-KLD-0.02.gguf")).unwrap();
    assert!(own == fs_err::read(dir.join("one.gguf")).unwrap());
    assert!(planned["files"][1]["file_bytes"].as_u64().unwrap() >= own.len() as u64);
    let list = files::json(dir.join("out/ladder.json"));
    assert_eq!(
        (&list["files"][1]["type"], list["files"][1]["file_bytes"].as_u64()),
        (&"KLD-0.02".into(), Some(own.len() as u64))
    );
    // Finished ones are kept, those of another limit are others.
    assert!(make(dir, &args).ok().err.contains("already written: Q8_0, KLD-0.02"));
    make(dir, &["-o", "out", "--types", "kld:0.02"]).says(2, "--calibrate TEXT");
    make(dir, &["-o", "out", "--types", "kld:0"]).says(2, "a divergence above 0 expected");
}

//! Tests of `paths.txt`, line by line.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;

use super::ways::{Out, WAYS, Way};
use super::workbench::Workbench;
use crate::support::files;
use crate::support::programs::run;
use crate::support::tiers::{Tier, two_tiers};

/// Commands whose outputs are named after a prefix, tested by `parts_and_copies_are_outputs_too`.
const NAMING: &[&str] = &["gguf-inspect split"];

fn program(way: &Way) -> &'static str {
    way.command.split(' ').next().unwrap()
}

fn words<'a>(way: &'a Way, out: &'a Out, path: &'a str) -> (&'a str, Vec<&'a str>) {
    let output = [out.option, path].into_iter().filter(|word| !word.is_empty());
    (program(way), way.args.split_whitespace().chain(output).chain(["--no-sync"]).collect())
}

#[test]
fn every_line_of_the_table_is_tried() {
    let (mut missing, mut n_lines) = (Vec::new(), 0);
    let lines = include_str!("paths.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let lines: Vec<(&str, &str, &str)> = lines
        .map(|line| {
            let (name, role) = line.split_once(": ").unwrap();
            let (command, argument) = name.rsplit_once(' ').unwrap();
            (command, argument, role)
        })
        .collect();
    let writing: BTreeSet<&str> =
        lines.iter().filter(|line| !line.2.starts_with("input")).map(|line| line.0).collect();
    for (command, argument, role) in
        lines.iter().filter(|line| writing.contains(line.0) && !NAMING.contains(&line.0))
    {
        n_lines += 1;
        let option = format!("--{}", argument.replace('_', "-"));
        let mut ways = WAYS.iter().filter(|way| way.command == *command);
        let is_tried = ways.any(|way| {
            let is_read =
                way.args.split_whitespace().any(|word| word == option) || way.positional.contains(argument);
            let is_written = way.outputs.iter().any(|out| out.name == *argument);
            match *role {
                "input" => is_read,
                "both model" => is_read && is_written,
                _ => is_written,
            }
        });
        // `target_model_dir` is read only by draft models, which the workbench does not have. A cache gets files under
        // its own names and loses none; `remote.rs` tests it. A chat is rendered to standard output, never together
        // with an output.
        let is_known = ["target_model_dir", "cache", "render"].contains(argument);
        if !is_tried && !is_known {
            missing.push(format!("{command} {argument}"));
        }
    }
    assert!(n_lines > 40 && missing.is_empty(), "no try goes with {missing:?}");
}

two_tiers!(no_output_replaces_an_input);

/// Every output over every input of its command: by the input's own name, or by a link to it. The three kinds of names
/// take turns over the pairs; the first output of a command is tried with all of them. Every day each output of a
/// program is tried once.
fn no_output_replaces_an_input(tier: Tier) {
    let bench = Workbench::new();
    let before = bench.files();
    let (mut n_tries, mut tried, mut once) = (0, BTreeSet::new(), BTreeSet::new());
    for way in WAYS {
        let n_before = n_tries;
        let mut inputs: Vec<String> =
            way.args.split_whitespace().flat_map(|word| bench.inputs_of(word)).collect();
        inputs.sort();
        inputs.dedup();
        assert!(inputs.len() >= way.positional.len(), "{}", way.args);
        let is_first = tried.insert((way.command, way.outputs[0].name));
        let pairs = way.outputs.iter().flat_map(|out| inputs.iter().map(move |input| (out, input)));
        for (pair, (out, input)) in pairs.enumerate() {
            let names = [input.clone(), format!("soft{}", out.suffix), format!("hard{}", out.suffix)];
            let (is_new, turn) = (once.insert((program(way), out.name)), n_tries);
            let is_chosen = |at: usize| match tier {
                Tier::Everyday => is_new && turn % 3 == at,
                Tier::Deep => (is_first && pair < inputs.len()) || pair % 3 == at,
            };
            for (at, name) in names.iter().enumerate().filter(|(at, _)| is_chosen(*at)) {
                let own = bench.path(name.trim_end_matches('/'));
                match at {
                    1 => symlink(bench.path(input), &own).unwrap(),
                    2 => fs_err::hard_link(bench.path(input), &own).unwrap(),
                    _ => {}
                }
                let (program, args) = words(way, out, name);
                let (code, stdout, err) = run(program, bench.dir(), &args).parts();
                assert!([1, 2].contains(&code), "{args:?}: {code} {stdout}{err}");
                // Names without the suffix, and files in place of a directory, are refused for that reason.
                if (at > 0 || out.suffix.is_empty()) && out.suffix != "/" {
                    assert!(code == 2 && err.contains("same file as input"), "{args:?}: {code} {err}");
                    assert!(err.contains("hint: give the output another name"), "{args:?}: {err}");
                }
                if at > 0 {
                    fs_err::remove_file(own).unwrap();
                }
                n_tries += 1;
            }
        }
        assert!(n_tries == n_before || bench.files() == before, "{}: a file is not what it was", way.args);
    }
    assert!(n_tries > tier.of(14, 250), "{n_tries} tries");
    println!("{n_tries} outputs over inputs, none written");
}

/// Files of every kind, among them all that the programs write, each with its name in messages.
fn kinds(bench: &Workbench) -> Vec<(&'static str, Vec<u8>)> {
    let read = |name: &str| fs_err::read(bench.path(name)).unwrap();
    vec![
        ("a JSON file", read("model/config.json")),
        ("a text file", read("card.toml")),
        ("a safetensors file", read("model/model.safetensors")),
        ("a ZIP archive (a PyTorch file is one)", b"PK\x03\x04\x14\0".to_vec()),
        ("an HTML page", b"<!DOCTYPE html><title>mine</title>".to_vec()),
        ("a file of another kind", b"\x89PNG\r\n\x1a\n\0\0".to_vec()),
        ("a GGUF model", read("base.gguf")),
        ("an importance matrix", read("m.imatrix")),
        ("an importance matrix", read("m.dat")),
        ("a recipe of a file", read("base.recipe")),
        ("a logit file", read("base.logits")),
        ("a part of a verification", read("whole.part")),
    ]
}

two_tiers!(only_a_file_of_its_own_kind_is_replaced);

/// The first command with an output of a program tries it with files of all kinds. Further commands with it share the
/// check; each tries a third of them, by turns. Every day only the first output of each kind is tried, with a sixth.
fn only_a_file_of_its_own_kind_is_replaced(tier: Tier) {
    let bench = Workbench::new();
    let kinds = kinds(&bench);
    let (mut tried, mut n_further) = (BTreeSet::new(), 0);
    // The matrix belongs to another model, and the model has no vocabulary: enough to be kept, not to be used.
    let ways = WAYS.iter().filter(|way| !way.args.contains("model.flm --type q4_0"));
    // Verification with tasks takes a second.
    for way in ways.filter(|way| tier.is_deep() || !way.args.contains("--tasks")) {
        for out in way.outputs.iter().filter(|out| out.suffix != "/") {
            let is_first = tried.insert(match tier {
                Tier::Everyday => ("", "", "", out.own),
                Tier::Deep => (program(way), out.name, out.suffix, out.own),
            });
            if !tier.is_deep() && !is_first {
                continue;
            }
            n_further += 1;
            let name = format!("out{}", out.suffix);
            let path = bench.path(&name);
            let (program, args) = words(way, out, &name);
            let is_chosen = |at: usize| match tier {
                Tier::Everyday => (at + n_further).is_multiple_of(6),
                Tier::Deep => is_first || (at + n_further).is_multiple_of(3),
            };
            let states = tier.of(&["an empty file", "its own"][..], &["nothing", "its own", "an empty file"]);
            for &own in states {
                if own == "its own" && !(is_first || out.own.is_empty()) {
                    continue;
                }
                if own == "an empty file" {
                    fs_err::write(&path, "").unwrap();
                }
                let (code, stdout, err) = run(program, bench.dir(), &args).parts();
                assert!([0, 3, 4].contains(&code), "{args:?} over {own}: {stdout}{err}");
                assert!(!fs_err::read(&path).unwrap().is_empty(), "{args:?} over {own}");
            }
            for own in out.own.iter().take(tier.of(0, if is_first { usize::MAX } else { 1 })) {
                fs_err::copy(bench.path(own), &path).unwrap();
                let (code, stdout, err) = run(program, bench.dir(), &args).parts();
                assert!([0, 3, 4].contains(&code), "{args:?} over {own}: {stdout}{err}");
            }
            let own_kinds: &[&str] = match out.own {
                ["tiny.gguf", ..] => &["a GGUF model"],
                ["m.imatrix", ..] => &["an importance matrix"],
                ["base.recipe"] => &["a recipe of a file"],
                ["base.logits"] => &["a logit file"],
                ["whole.part"] => &["a part of a verification"],
                _ => &[],
            };
            let others = kinds.iter().filter(|(kind, _)| !own_kinds.contains(kind)).enumerate();
            for (kind, bytes) in others.filter(|(at, _)| is_chosen(*at)).map(|(_, other)| other) {
                fs_err::write(&path, bytes).unwrap();
                let (code, stdout, err) = run(program, bench.dir(), &args).parts();
                assert_eq!(code, 1, "{args:?} over {kind}: {stdout}{err}");
                let line = format!("error: {name}: this is {kind}, which ");
                assert!(
                    err.contains(&line) && err.contains(" does not replace\n"),
                    "{args:?} over {kind}: {err}"
                );
                assert!(err.contains("or remove that file first"), "{args:?}: {err}");
                assert!(&fs_err::read(&path).unwrap() == bytes, "{args:?}: {kind} was replaced");
            }
            fs_err::remove_file(&path).unwrap();
        }
    }
}

#[test]
fn two_outputs_are_two_files() {
    let bench = Workbench::new();
    symlink("new.json", bench.path("link.json")).unwrap();
    let before = bench.files();
    for way in WAYS.iter().filter(|way| way.outputs.len() > 1) {
        for (at, first) in way.outputs.iter().enumerate() {
            for second in &way.outputs[at..] {
                if at + 1 == way.outputs.len() && first.option != "--report" {
                    continue;
                }
                let suffix = if first.suffix.is_empty() { second.suffix } else { first.suffix };
                let names = [format!("new{suffix}"), format!("./new{suffix}"), "link.json".to_owned()];
                for name in names.iter().take(if suffix == ".json" { 3 } else { 2 }) {
                    if (first.option == second.option && first.option != "--report")
                        || (!second.suffix.is_empty() && second.suffix != suffix)
                    {
                        continue;
                    }
                    let (program, mut args) = words(way, first, &names[0]);
                    args.extend([second.option, name]);
                    let err = run(program, bench.dir(), &args).exits_with(2).err;
                    assert!(err.contains(" are the same file\n"), "{args:?}: {err}");
                }
            }
        }
    }
    assert!(bench.files() == before);
}

#[test]
fn parts_and_copies_are_outputs_too() {
    let bench = Workbench::new();
    fs_err::copy(bench.path("card.toml"), bench.path("c-00002-of-00002.gguf")).unwrap();
    fs_err::copy(bench.path("m.imatrix"), bench.path("n.at_20")).unwrap();
    fs_err::copy(bench.path("card.toml"), bench.path("t.at_3")).unwrap();
    let long = "In the beginning was the word. ".repeat(20);
    fs_err::write(bench.path("long.txt"), long).unwrap();
    let before = bench.files();
    for (program, args, expected) in [
        ("gguf-inspect", "split s-00001-of-00002.gguf -o s --split-max-tensors 6", "same file as input"),
        ("gguf-quantize", "--keep-split --type q4_0 s-00002-of-00002.gguf s.gguf", "same file as input"),
        (
            "gguf-convert",
            "hf2gguf model -o c --split-max-tensors 6 --card c-00002-of-00002.gguf",
            "same file as input",
        ),
        ("gguf-convert", "hf2gguf model -o c --split-max-tensors 6", "does not replace"),
        (
            "gguf-convert",
            "hf2gguf model -o c --split-max-tensors 6 --type q4_0 --card c-00002-of-00002.gguf",
            "does not replace",
        ),
        (
            "gguf-verify",
            "imatrix base.gguf --prompts long.txt --ctx 8 -o n --save-frequency 1 --in-file n.at_20",
            "same file as input",
        ),
        (
            "gguf-verify",
            "imatrix base.gguf --prompts long.txt --ctx 8 -o t --save-frequency 1",
            "does not replace",
        ),
    ] {
        let (_, out, err) = run(program, bench.dir(), &args.split(' ').collect::<Vec<_>>())
            .exits_with_one_of(&[1, 2])
            .parts();
        assert!(err.contains(expected), "{args}: {out}{err}");
        assert!(bench.files() == before, "{args}");
    }
}

#[test]
fn a_dry_run_says_what_a_run_would_stop_at() {
    let bench = Workbench::new();
    let before = bench.files();
    for (program, args) in [
        ("gguf-quantize", "--dry-run tiny.gguf tiny.gguf q4_0"),
        ("gguf-quantize", "--dry-run --imatrix tiny.imatrix tiny.gguf tiny.imatrix q4_0"),
        ("gguf-convert", "hf2gguf model --dry-run -o model/config.json"),
        ("gguf-convert", "hf2gguf model --dry-run --type q4_0 -o model/model.safetensors"),
        ("gguf-inspect", "set tiny.gguf k=u8:1 --dry-run -o tiny.gguf"),
        ("gguf-inspect", "template tiny.gguf --set chat.jinja --dry-run -o tiny.gguf"),
        ("gguf-inspect", "split s-00001-of-00002.gguf -o s --split-max-tensors 6 --dry-run"),
        ("gguf-convert", "endian tiny.gguf --dry-run -o tiny.gguf"),
    ] {
        let err = run(program, bench.dir(), &args.split(' ').collect::<Vec<_>>()).ok().err;
        let n = err.matches("warning: a run would stop here: ").count();
        assert!(n == 1 && err.contains("same file as input"), "{args}: {err}");
        assert!(bench.files() == before, "{args}");
    }
}

/// A run may overwrite the output that an earlier run wrote into the directory that is read.
#[test]
fn a_second_run_replaces_what_the_first_left_in_the_checkpoint() {
    let bench = Workbench::new();
    for _ in 0..2 {
        run("gguf-convert", bench.dir(), &["hf2gguf", "model", "--type", "f16", "--no-sync"]).ok();
    }
    // But not if it is an input by its own name.
    let files = files::entries(bench.path("model"));
    let name = files.iter().find(|path| path.extension().is_some_and(|end| end == "gguf")).unwrap();
    let name = name.strip_prefix(bench.dir()).unwrap().to_str().unwrap();
    run("gguf-quantize", bench.dir(), &[name, name, "q4_0"]).says(2, "same file as input");
}

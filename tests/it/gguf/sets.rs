//! Outputs of several files: parts of two sets are never mixed, and a set is replaced as a whole or not at all.
#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};

use gguf_foundry::core::TensorSource;
use gguf_foundry::gguf::{GgufFile, OpenOptions, Value};

use crate::support::programs::{command, run};
use crate::support::tiers::{Tier, two_tiers};
use crate::support::{files, fixture};

const ID: &str = "gguf_foundry.split.id";

/// Converts the bundled model to `NAME.gguf`.
fn whole(dir: &Path, name: &str, ty: &str) {
    let (checkpoint, output) = (fixture("tiny-llama"), format!("{name}.gguf"));
    let checkpoint = checkpoint.to_str().unwrap();
    run("gguf-convert", dir, &["hf2gguf", checkpoint, "-o", &output, "--type", ty, "--no-sync"]).ok();
}

fn split(dir: &Path, name: &str, into: &str, more: &[&str]) -> Vec<PathBuf> {
    let (input, output) = (format!("{name}.gguf"), format!("{into}/m"));
    fs_err::create_dir_all(dir.join(into)).unwrap();
    let arguments = ["split", &input, "-o", &output, "--split-max-tensors", "9", "--no-sync"];
    run("gguf-inspect", dir, &[&arguments, more].concat()).ok();
    files::entries(dir.join(into))
}

fn id(path: &Path) -> Option<String> {
    let alone = OpenOptions { join_parts: false, ..OpenOptions::default() };
    let file = GgufFile::open_with(path, &alone).unwrap();
    file.metadata().get(ID).and_then(Value::as_str).map(ToOwned::to_owned)
}

/// Copies a model with one byte of one tensor changed, as after more training.
fn trained(dir: &Path, name: &str, new: &str) {
    let path = dir.join(format!("{name}.gguf"));
    let file = GgufFile::open(&path).unwrap();
    let offset = usize::try_from(file.place(file.tensors().len() - 1).offset).unwrap();
    let mut bytes = fs_err::read(&path).unwrap();
    bytes[offset] ^= 1;
    fs_err::write(dir.join(format!("{new}.gguf")), bytes).unwrap();
}

#[test]
fn parts_of_two_sets_are_refused_by_every_reader() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    whole(dir, "old", "f16");
    trained(dir, "old", "new");
    let old = split(dir, "old", "old", &[]);
    let new = split(dir, "new", "new", &[]);
    let bare = split(dir, "new", "bare", &["--no-split-id"]);
    assert!(old.len() > 2 && old.len() == new.len());
    let ids = [id(&old[0]).unwrap(), id(&new[0]).unwrap()];
    assert_ne!(ids[0], ids[1], "the plans are the same, the weights are not");
    assert!(old.iter().all(|part| id(part).as_ref() == Some(&ids[0])));
    assert!(bare.iter().all(|part| id(part).is_none()));

    let mixed = dir.join("mixed");
    let mix = |first: &[PathBuf], others: &[PathBuf]| {
        let _ = fs_err::remove_dir_all(&mixed);
        fs_err::create_dir(&mixed).unwrap();
        for part in first[..2].iter().chain(&others[2..]) {
            fs_err::copy(part, mixed.join(part.file_name().unwrap())).unwrap();
        }
    };
    let name = |part: usize| format!("m-{part:05}-of-{:05}.gguf", old.len());
    let (first, third, last) = (name(1), name(3), name(old.len()));
    let readers: [(&str, &[&str]); 7] = [
        ("gguf-verify", &[&first, "--structure-only"]),
        ("gguf-verify", &[&last, "--structure-only"]),
        ("gguf-inspect", &[&first]),
        ("gguf-inspect", &["merge", &last, "-o", "../out.gguf"]),
        ("gguf-inspect", &["hash", &first]),
        ("gguf-quantize", &[&first, "../out.gguf", "q4_0"]),
        ("gguf-convert", &["gguf2hf", &first, "-o", "../out"]),
    ];
    for (first_parts, others, said) in [
        (&old, &new, [format!("is `{}`", ids[0]), format!("is `{}`", ids[1])]),
        (&old, &bare, [format!("is `{}`", ids[0]), format!("no key `{ID}`")]),
        (&bare, &new, [format!("no key `{ID}`"), format!("is `{}`", ids[1])]),
    ] {
        mix(first_parts, others);
        for (program, arguments) in readers {
            let ended = run(program, &mixed, arguments);
            let (code, err) = (ended.code(), ended.text());
            assert!(matches!(code, 1..=3), "{program} {arguments:?}: {code} {err}");
            for text in
                said.iter().map(String::as_str).chain([first.as_str(), &third, "run the command that wrote"])
            {
                assert!(err.contains(text), "{program} {arguments:?}: `{text}` is not in: {err}");
            }
            assert!(!dir.join("out.gguf").exists() && !dir.join("out").exists());
        }
    }
    // One set is read without errors, with ids and without.
    for set in ["old", "bare"] {
        run("gguf-inspect", &dir.join(set), &["merge", &last, "-o", "../out.gguf", "--no-sync"]).ok();
        let original = if set == "old" { "old.gguf" } else { "new.gguf" };
        assert_eq!(fs_err::read(dir.join("out.gguf")).unwrap(), fs_err::read(dir.join(original)).unwrap());
    }
}

#[test]
fn every_writer_of_parts_gives_them_an_id_and_can_leave_it_out() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let checkpoint = fixture("tiny-llama");
    let checkpoint = checkpoint.to_str().unwrap();
    whole(dir, "f16", "f16");
    split(dir, "f16", "in", &[]);
    let first = files::entries(dir.join("in"))[0].clone();
    let first = first.to_str().unwrap();
    let writers: [(&str, &[&str]); 4] = [
        ("gguf-convert", &["hf2gguf", checkpoint, "--split-max-tensors", "9", "-o", "m.gguf"]),
        (
            "gguf-convert",
            &["hf2gguf", checkpoint, "--split-max-size", "300K", "--type", "q4_0", "-o", "m.gguf"],
        ),
        ("gguf-quantize", &["--keep-split", first, "m.gguf", "q4_0"]),
        ("gguf-inspect", &["split", "../f16.gguf", "--split-max-tensors", "9", "-o", "m"]),
    ];
    for (number, (program, arguments)) in writers.into_iter().enumerate() {
        let [with, without] = ["with", "without"].map(|kind| dir.join(format!("{kind}{number}")));
        for (place, more) in [(&with, vec!["--no-sync"]), (&without, vec!["--no-sync", "--no-split-id"])] {
            fs_err::create_dir(place).unwrap();
            run(program, place, &[arguments, &more].concat()).ok();
        }
        let (with, without) = (files::entries(&with), files::entries(&without));
        assert!(with.len() > 1 && with.len() == without.len(), "{program} {arguments:?}");
        let set = id(&with[0]).unwrap();
        assert!(set.len() == 32 && set.bytes().any(|byte| byte != b'0'), "{set}");
        for (with, without) in with.iter().zip(&without) {
            assert_eq!((id(with).as_ref(), id(without)), (Some(&set), None), "{program} {arguments:?}");
            // The id is the last key and the only difference.
            let alone = OpenOptions { join_parts: false, ..OpenOptions::default() };
            let [with, without] = [with, without].map(|path| GgufFile::open_with(path, &alone).unwrap());
            let keys =
                |file: &GgufFile| file.metadata().iter().map(|(key, _)| key.to_owned()).collect::<Vec<_>>();
            assert_eq!(keys(&with), [keys(&without), vec![ID.to_owned()]].concat());
            for tensor in 0..with.tensors().len() {
                assert_eq!(with.raw_tensor(tensor), without.raw_tensor(tensor));
            }
        }
    }
    for (program, arguments) in [
        ("gguf-convert", vec!["hf2gguf", checkpoint, "--no-split-id", "-o", "m.gguf"]),
        ("gguf-quantize", vec!["--no-split-id", first, "m.gguf", "q4_0"]),
    ] {
        run(program, dir, &arguments).exits_with(2);
        assert!(!dir.join("m.gguf").exists());
    }
}

#[test]
fn a_part_that_fails_leaves_the_old_set() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    whole(dir, "good", "f16");
    let input = split(dir, "good", "in", &[]);
    let first = input[0].to_str().unwrap();
    fs_err::create_dir(dir.join("out")).unwrap();
    let quantize = ["--keep-split", "--pure", first, "out/m.gguf", "q8_0"];
    run("gguf-quantize", dir, &quantize).ok();
    let content = |dir: &Path| {
        files::entries(dir).into_iter().map(|part| fs_err::read(part).unwrap()).collect::<Vec<_>>()
    };
    let before = content(&dir.join("out"));

    // NaN in the last weight of the last part.
    let file = GgufFile::open(&input[0]).unwrap();
    let bad = (0..file.tensors().len()).rev().find(|&at| file.tensors()[at].shape.rank() > 1).unwrap();
    let place = file.place(bad);
    let path = &input[place.part];
    let offset = usize::try_from(place.offset).unwrap();
    assert!(place.part > 1, "the first parts are written before");
    drop(file);
    let mut bytes = fs_err::read(path).unwrap();
    bytes[offset..offset + 2].copy_from_slice(&[0x00, 0x7e]);
    fs_err::write(path, bytes).unwrap();
    let quantize = ["--keep-split", "--pure", first, "out/m.gguf", "q4_0"];
    let err = run("gguf-quantize", dir, &quantize).exits_with(1).text();
    assert!(content(&dir.join("out")) == before, "the old set is not what it was: {err}");
}

two_tiers!(writers_of_one_set_at_once_leave_one_of_theirs);

fn writers_of_one_set_at_once_leave_one_of_theirs(tier: Tier) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    whole(dir, "a", "f16");
    trained(dir, "a", "b");
    fs_err::create_dir(dir.join("out")).unwrap();
    for round in 0..tier.of(4, 12) {
        let writers: Vec<_> = ["a.gguf", "b.gguf", "a.gguf", "b.gguf"]
            .map(|input| {
                let arguments =
                    ["split", input, "-o", "out/m", "--split-max-tensors", "3", "--no-sync", "-q"];
                command("gguf-inspect", dir).args(arguments).spawn().unwrap()
            })
            .into();
        for mut writer in writers {
            assert!(writer.wait().unwrap().success(), "round {round}");
        }
        let found = files::entries(dir.join("out"));
        assert!(found.len() > 9);
        let file = GgufFile::open(&found[0]).unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert_eq!(file.parts().len(), found.len(), "something else is left: {found:?}");
    }
}

#[test]
fn leftovers_of_killed_runs_are_no_part_of_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let checkpoint = dir.join("hf");
    files::copy(fixture("tiny-llama"), &checkpoint);
    let convert = |output: &str| {
        run("gguf-convert", dir, &["hf2gguf", "hf", "--type", "f16", "-o", output, "--no-sync"]).ok();
        fs_err::read(dir.join(output)).unwrap()
    };
    let clean = convert("clean.gguf");
    for name in [
        ".model.safetensors.abc123.tmp",
        ".model-00001-of-00002.safetensors.set.journal",
        ".config.json.abc123.tmp",
    ] {
        fs_err::write(checkpoint.join(name), b"left").unwrap();
    }
    assert!(convert("littered.gguf") == clean);
}

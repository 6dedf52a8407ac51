//! Output paths of every program that writes: devices, links, names that are not file names.
#![cfg(target_os = "linux")]

use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use crate::cli::guards::workbench::Workbench;
use crate::quantize::program::model;
use crate::support::programs::{command, run};
use crate::support::{fixture, names};

/// Creates a device like `/dev/null`; returns false if the system forbids it.
fn null_device(path: &Path) -> bool {
    let made = mknodat(CWD, path, FileType::CharacterDevice, Mode::from_raw_mode(0o600), makedev(1, 3));
    let usable = made.is_ok() && fs_err::OpenOptions::new().write(true).open(path).is_ok();
    if !usable {
        let line = format!("{}: no device of our own, so programs are not tried on one\n", path.display());
        let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
    }
    usable
}

#[test]
fn a_device_is_written_to_and_stays() {
    let dir = tempfile::tempdir().unwrap();
    let null = dir.path().join("null");
    model(&dir.path().join("in.gguf"), 1, 512, 16);
    if !null_device(&null) {
        return;
    }
    let checkpoint = fixture("tiny-llama");
    let checkpoint = checkpoint.to_str().unwrap();
    for (program, args) in [
        ("gguf-quantize", vec!["in.gguf", "null", "q4_k_m"]),
        ("gguf-convert", vec!["hf2gguf", checkpoint, "--type", "f16", "-o", "null"]),
        ("gguf-convert", vec!["hf2gguf", checkpoint, "--type", "q4_0", "-o", "null"]),
        ("gguf-inspect", vec!["set", "in.gguf", "k=u8:1", "-o", "null"]),
    ] {
        run(program, dir.path(), &args).ok();
        assert!(fs_err::symlink_metadata(&null).unwrap().file_type().is_char_device(), "{program}");
        assert_eq!(names(dir.path()), ["in.gguf", "null"]);
    }
    let parts = ["hf2gguf", checkpoint, "--split-max-tensors", "9", "-o", "null"];
    let err = run("gguf-convert", dir.path(), &parts).exits_with(1).err;
    assert!(err.contains("error: null: this is a device, and an output in parts needs files\n"), "{err}");
    assert_eq!(names(dir.path()), ["in.gguf", "null"]);
}

#[test]
fn the_real_null_device_takes_a_model() {
    let dir = tempfile::tempdir().unwrap();
    model(&dir.path().join("in.gguf"), 1, 512, 16);
    let out = run("gguf-quantize", dir.path(), &["in.gguf", "/dev/null", "q4_k_m"]).ok().out;
    assert!(out.contains("/dev/null: Q4_K_M, "), "{out}");
    assert!(fs_err::symlink_metadata("/dev/null").unwrap().file_type().is_char_device());
}

#[test]
fn a_fifo_is_refused_and_stays() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    model(&dir.path().join("in.gguf"), 1, 512, 16);
    mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let err = run("gguf-quantize", dir.path(), &["in.gguf", "fifo", "q4_k_m"]).exits_with(1).err;
    assert!(
        err.ends_with(
            "error: fifo: this is a FIFO, which has no positions to write at\n\n\
             hint: several threads write at several places of the output: write a file, then send that\n"
        ),
        "{err}"
    );
    assert!(fs_err::symlink_metadata(&fifo).unwrap().file_type().is_fifo());
    assert_eq!(names(dir.path()), ["fifo", "in.gguf"]);
}

#[test]
fn links_are_followed_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    model(&at("in.gguf"), 1, 512, 16);
    fs_err::create_dir_all(at("far")).unwrap();
    fs_err::write(at("far/old.gguf"), b"GGUF, old").unwrap();
    symlink("far/old.gguf", at("old.gguf")).unwrap();
    symlink("far/new.gguf", at("new.gguf")).unwrap();
    for name in ["old.gguf", "new.gguf"] {
        run("gguf-quantize", dir.path(), &["in.gguf", name, "q4_k_m"]).ok();
        assert!(fs_err::symlink_metadata(at(name)).unwrap().is_symlink());
        assert!(fs_err::read(at("far").join(name)).unwrap().starts_with(b"GGUF"));
    }
    assert_eq!(names(at("far")), ["new.gguf", "old.gguf"]);
    // A link to the input counts as the input.
    symlink("in.gguf", at("self.gguf")).unwrap();
    let err = run("gguf-quantize", dir.path(), &["in.gguf", "self.gguf", "q4_k_m"]).exits_with(2).err;
    assert!(err.contains("output is the same file as input"), "{err}");
}

/// `--verbose` has an effect in every command, whether the run succeeds or not.
#[test]
fn what_a_run_took_is_told_by_every_command() {
    let dir = tempfile::tempdir().unwrap();
    for (program, args) in [
        ("gguf-convert", "--verbose archs llama --threads 1"),
        ("gguf-quantize", "recipe absent.gguf --source absent.gguf -v --threads 1"),
        ("gguf-verify", "-v imatrix show absent.gguf --threads 1"),
        ("gguf-inspect", "absent.gguf --verbose --threads 1 --simd scalar"),
    ] {
        let words: Vec<&str> = args.split(' ').collect();
        let done = run(program, dir.path(), &words);
        assert!(
            done.err.contains(" of memory at most, 1 thread, vector instructions: "),
            "{args}: {}",
            done.text()
        );
        let quiet: Vec<&str> =
            words.iter().copied().filter(|word| !["-v", "--verbose"].contains(word)).collect();
        assert!(!run(program, dir.path(), &quiet).err.contains("vector instructions"), "{args}");
    }
}

/// A reader that has closed the pipe takes nothing from what else is written, nor from the exit code.
#[test]
fn a_closed_pipe_ends_nothing_else() {
    let bench = Workbench::new();
    let run = |program: &str, words: &str| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = command(program, bench.dir());
        command.args(words.split(' ')).stdout(writer).stderr(std::process::Stdio::null());
        command.status().unwrap().code()
    };
    assert_eq!(run("gguf-convert", "merge-lora model adapter --type f16 -o m.gguf --modelfile"), Some(0));
    assert_eq!(run("gguf-quantize", "tiny.gguf o.gguf --target-size 900K --write-types types.txt"), Some(0));
    for name in ["m.gguf", "Modelfile", "o.gguf", "types.txt"] {
        assert!(bench.path(name).exists(), "{name}");
    }
    assert_eq!(run("gguf-inspect", "diff tiny.gguf base.gguf"), Some(1));
    assert_eq!(run("gguf-verify", "base.gguf --structure-only"), Some(4));
}

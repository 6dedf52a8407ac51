//! A run that is ended from outside leaves no files behind.
#![cfg(target_os = "linux")]

use std::process::{Command, Stdio};

use super::workbench::{Workbench, hole};
use crate::support::programs::{self, Outcome};
use crate::support::tiers::deep_test;
use crate::support::wait_until_it_reads;

#[test]
fn every_signal_that_asks_for_the_end_cleans_up() {
    let dir = tempfile::tempdir().unwrap();
    hole(&dir.path().join("in.gguf"), 1 << 30);
    for (signal, message) in [
        ("INT", "interrupted"),
        ("TERM", "interrupted"),
        ("HUP", "interrupted"),
        ("QUIT", "interrupted by SIGQUIT"),
        ("USR1", "interrupted by SIGUSR1"),
        (
            "XCPU",
            "interrupted by SIGXCPU: the processor time that this process may use is spent (`ulimit -t`)",
        ),
    ] {
        let mut child = programs::command("gguf-quantize", dir.path())
            .args(["in.gguf", "out.gguf", "q4_0", "--threads", "1", "--quiet", "--no-sync"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        wait_until_it_reads(&mut child, "in.gguf");
        Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status().unwrap();
        let ended = Outcome::from(child.wait_with_output().unwrap()).exits_with(130);
        let rest = "hint: nothing was kept: with `--resume` a run that is stopped can be resumed";
        assert_eq!(ended.err, format!("error: {message}\n\n{rest}\n"));
        assert_eq!(fs_err::read_dir(dir.path()).unwrap().count(), 1, "{signal}");
    }
}

deep_test!(a_limit_of_file_sizes_is_an_error_of_writing);
fn a_limit_of_file_sizes_is_an_error_of_writing() {
    let bench = Workbench::new();
    let before = bench.files();
    for (program, args) in [
        ("gguf-convert", "hf2gguf model -o out.gguf --type f16"),
        ("gguf-convert", "hf2gguf model -o out.gguf --type q4_0"),
        ("gguf-convert", "gguf2hf tiny.gguf -o out"),
        ("gguf-quantize", "tiny.gguf out.gguf q8_0"),
        ("gguf-inspect", "set tiny.gguf general.name=other"),
        ("gguf-inspect", "split tiny.gguf -o out --split-max-tensors 6"),
        ("gguf-verify", "tiny.gguf --prompts p.jsonl --ctx 8 --save-baseline out.logits"),
        ("gguf-verify", "logits tiny.gguf --prompts p.jsonl -o out.jsonl"),
    ] {
        // In blocks of 1024 or 512 bytes, depending on the shell.
        let mut command = programs::limited("ulimit -f 4", program, bench.dir());
        let err = programs::finish(command.args(args.split(' '))).exits_with(1).err;
        assert!(err.contains("File too large"), "{args}: {err}");
        assert!(err.contains("hint: ") && err.contains("`ulimit -f`"), "{args}: {err}");
        assert!(bench.files() == before, "{args}");
    }
}

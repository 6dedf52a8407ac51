//! Command `completions` of all four programs.

use crate::inspect::Bench;
use crate::support::programs::finish;
use crate::support::tiers::{Tier, two_tiers};

two_tiers!(every_program_completes_itself_in_every_shell);

/// Every day each program and each shell, but not all pairs.
fn every_program_completes_itself_in_every_shell(tier: Tier) {
    let bench = Bench::new();
    let programs = [
        ("gguf-convert", "hf2gguf"),
        ("gguf-quantize", "--tensor-type"),
        ("gguf-verify", "--baseline"),
        ("gguf-inspect", "checkpoint"),
    ];
    let shells = [
        ("bash", "complete -F"),
        ("zsh", "#compdef"),
        ("fish", "complete -c"),
        ("elvish", "edit:completion"),
        ("powershell", "Register-ArgumentCompleter"),
    ];
    for (at, (program, word)) in programs.into_iter().enumerate() {
        for (shell, sign) in shells.into_iter().skip(tier.of(at, 0)).step_by(tier.of(4, 1)) {
            let out = finish(bench.program(program).args(["completions", shell])).says_only(0, "").out;
            let word = if shell == "fish" { word.trim_start_matches('-') } else { word };
            assert!(
                out.contains(sign) && out.contains(program) && out.contains(word),
                "{program} {shell}: {out}"
            );
        }
        finish(bench.program(program).args(["completions", "bash", "--json"])).exits_with(2);
        finish(bench.program(program).args(["completions", "tcsh"]))
            .says(2, "[possible values: bash, elvish, fish, powershell, zsh]");
    }
}

#[test]
fn types_are_completed() {
    let bench = Bench::new();
    for program in ["gguf-convert", "gguf-quantize"] {
        let out = finish(bench.program(program).args(["completions", "bash"])).out;
        assert!(out.contains(" q4_k_m ") && out.contains(" iq2_xxs "), "{program}");
    }
}

/// A file may have the same name as the command.
#[test]
fn a_file_of_that_name_is_given_with_its_folder() {
    let bench = Bench::new().with_layers(1);
    fs_err::rename(bench.path("tiny.gguf"), bench.path("completions")).unwrap();
    let args = ["./completions", "out.gguf", "q8_0", "--no-sync"];
    finish(bench.program("gguf-quantize").args(args)).ok();
    bench.run(&["./completions", "--no-tensors"]).ok();
}

#[cfg(unix)]
#[test]
fn bash_reads_what_is_printed() {
    let bench = Bench::new();
    for program in ["gguf-convert", "gguf-quantize", "gguf-verify", "gguf-inspect"] {
        let out = finish(bench.program(program).args(["completions", "bash"])).out;
        fs_err::write(bench.path("c.bash"), out).unwrap();
        // The function fills COMPREPLY with possible next words. It replaces a hyphen in the program's name by two
        // underscores.
        let name = program.replace('-', "__");
        let script = format!(
            "source ./c.bash && COMP_WORDS=({program} comp) COMP_CWORD=1 && _{name} {program} comp {program}; \
             echo \"${{COMPREPLY[@]}}\""
        );
        let mut bash = std::process::Command::new("bash");
        let ended = finish(bash.current_dir(bench.path(".")).args(["--norc", "-c", &script]));
        assert!(ended.out.contains("completions"), "{program}: {}", ended.text());
    }
}

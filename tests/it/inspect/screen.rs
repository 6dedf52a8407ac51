//! Output of the programs fits the terminal, and has colours where allowed.

use unicode_width::UnicodeWidthStr;

use super::{Bench, model};
use crate::support::fixture;
use crate::support::programs::finish;
use crate::testkit::memory::write_source;

/// Lines that are wider than a terminal of this width.
fn too_wide(text: &str, width: usize) -> Vec<&str> {
    text.lines().filter(|line| line.width() > width).collect()
}

#[test]
fn what_is_said_of_the_bundled_model_fits_in_80_columns() {
    let bench = Bench::new().with_layers(1);
    let checkpoint = fixture("tiny-llama");
    let checkpoint = checkpoint.to_str().unwrap();
    let prompts = fixture("tiny-llama/corpus-256.jsonl");
    let run = |program: &str, code: i32, args: &[&str]| {
        // File names are not shortened.
        let mut command = bench.program(program);
        let out = finish(command.args(args).arg("--quiet")).exits_with(code).out;
        let own = out.replace(checkpoint, "DIR").replace(bench.path("").to_str().unwrap(), "");
        let wide = too_wide(&own, 80);
        assert!(wide.is_empty(), "{program} {args:?}: {wide:#?}");
        assert!(!out.is_empty(), "{program} {args:?}");
    };
    run("gguf-quantize", 0, &["tiny.gguf", "q8.gguf", "q8_0", "--dry-run"]);
    let mut quantize = bench.program("gguf-quantize");
    finish(quantize.args(["tiny.gguf", "q8.gguf", "q4_k_m", "--no-sync", "--quiet"])).ok();
    run("gguf-inspect", 0, &["tiny.gguf"]);
    run("gguf-inspect", 0, &["tiny.gguf", "--no-tensors"]);
    run("gguf-inspect", 0, &["q8.gguf"]);
    run("gguf-inspect", 1, &["diff", "tiny.gguf", "q8.gguf"]);
    run("gguf-inspect", 0, &["checkpoint", checkpoint]);
    run("gguf-convert", 0, &["hf2gguf", checkpoint, "-o", "x.gguf", "--dry-run"]);
    run("gguf-convert", 0, &["hf2gguf", checkpoint, "-o", "x.gguf", "--type", "q4_0", "--dry-run"]);
    run("gguf-convert", 0, &["archs"]);
    let prompts = prompts.to_str().unwrap();
    let cut = ["--prompts", prompts, "--ctx", "64", "--chunks", "2"];
    run("gguf-verify", 4, &[&["tiny.gguf", "q8.gguf"], &cut[..]].concat());
}

#[test]
fn a_screen_of_any_width_is_not_exceeded() {
    let bench = Bench::new();
    let mut metadata = super::metadata();
    metadata.set("general.name", "模型的名字很长".repeat(30));
    metadata.set("a.key.that.is.longer.than.any.that.one.would.want.to.type", 1u32);
    let source =
        model().with_f32("model.layers.17.block_sparse_moe.experts.63.down_proj.weight", &[1], &[1.0]);
    write_source(&bench.path("wide.gguf"), &metadata, &source);
    let on = |width: &str, args: &[&str]| {
        finish(bench.program("gguf-inspect").args(args).env("COLUMNS", width)).out
    };
    for width in [72, 80, 100, 132] {
        let out = on(&width.to_string(), &["wide.gguf"]);
        let wide = too_wide(&out, width);
        assert!(wide.is_empty(), "{width}: {wide:#?}");
        assert!(out.contains("general.name") && out.contains('…'), "{out}");
    }
    // Names are complete in pipes, where they may be extracted, and on request.
    let name = "model.layers.17.block_sparse_moe.experts.63.down_proj.weight";
    assert!(!on("72", &["wide.gguf"]).contains(name));
    assert!(bench.run(&["wide.gguf"]).out.contains(name));
    assert!(on("72", &["wide.gguf", "--full"]).contains(&"模型的名字很长".repeat(30)));
}

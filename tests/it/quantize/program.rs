//! The program: its output, the names of its files, its memory use.

use std::path::Path;

use gguf_foundry::core::{GgmlType, TensorSource};
use gguf_foundry::gguf::{GgufFile, Metadata};
use serde_json::Value as Json;

use super::run;
use crate::support::programs::command;
use crate::support::{self, names};
use crate::testkit::memory::{ComputedTensors, tensor_meta, write_source};
use crate::testkit::noise::Noise;

/// Fills rows with half-precision numbers between 2^-6 and 2^-4, of either sign.
fn fill(tensor: usize, first_row: u64, out: &mut [u8]) {
    let mut noise = Noise::new((tensor as u64) << 32 | first_row);
    for bytes in out.as_chunks_mut::<2>().0 {
        let half = noise.bits() as u16 & 0x87ff | 0x2400;
        *bytes = half.to_le_bytes();
    }
}

/// Writes a model of `n_layers` layers; in each, the columns of one tensor are not whole super-blocks.
pub fn model(path: &Path, n_layers: u64, n_cols: u64, n_rows: u64) {
    let mut tensors = Vec::new();
    let mut add = |name: String, dims: &[u64]| {
        tensors.push(tensor_meta(&name, dims, GgmlType::F16));
    };
    add("token_embd.weight".to_owned(), &[32, n_cols]);
    for layer in 0..n_layers {
        add(format!("blk.{layer}.attn_v.weight"), &[n_rows, n_cols]);
        add(format!("blk.{layer}.ffn_down.weight"), &[n_rows, n_cols]);
        add(format!("blk.{layer}.odd.weight"), &[8, 96]);
    }
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "nobody");
    metadata.set("nobody.block_count", n_layers as u32);
    write_source(path, &metadata, &ComputedTensors::new(tensors, fill));
}

#[test]
fn a_dry_run_prints_the_plan_and_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    model(&dir.path().join("in.gguf"), 2, 512, 16);
    let (_, out, err) = run(dir.path(), &["--dry-run", "in.gguf", "q4_k_m"]).ok().parts();
    insta::assert_snapshot!(out, @r"
    tensor                 shape      from  to        size  why
    token_embd.weight      [32, 512]  F16   Q6_K  13.1 KiB  mixture
    blk.0.attn_v.weight    [16, 512]  F16   Q4_K  4.50 KiB  mixture
    blk.0.ffn_down.weight  [16, 512]  F16   Q4_K  4.50 KiB  mixture
    blk.0.odd.weight       [8, 96]    F16   Q5_0     528 B  instead of Q4_K
    blk.1.attn_v.weight    [16, 512]  F16   Q6_K  6.56 KiB  mixture
    blk.1.ffn_down.weight  [16, 512]  F16   Q6_K  6.56 KiB  mixture
    blk.1.odd.weight       [8, 96]    F16   Q5_0     528 B  instead of Q4_K

    class       tensors  weights    before     after   bits
    token_embd        1   16 384  32.0 KiB  13.1 KiB  6.562
    attn_v            2   16 384  32.0 KiB  11.1 KiB  5.531
    ffn_down          2   16 384  32.0 KiB  11.1 KiB  5.531
    other             2    1 536  3.00 KiB  1.03 KiB  5.500
    all               7   50 688  99.0 KiB  36.3 KiB  5.864
    ");
    assert_eq!(
        err,
        "warning: Q4_K_M asked, 5.86 bits per weight come out: rows of 96 values hold no whole blocks of 256, 2 tensors of \
         another type: `blk.0.odd.weight` Q4_K -> Q5_0, \
         `blk.1.odd.weight` Q4_K -> Q5_0\nwarning: architecture `nobody` is not a known language model: its first and last \
         layers are quantized like all others; `--tensor-type REGEX=f16` keeps some as floats, which image models need\n"
    );
    assert_eq!(names(dir.path()), ["in.gguf"]);
    let plan = run(dir.path(), &["--dry-run", "--json", "--quiet", "in.gguf", "q4_k_m"]).json();
    assert_eq!(plan["tensors"].as_array().unwrap().len(), 7);
    assert_eq!(plan["tensors"][3]["reason"], "instead of Q4_K");
    assert_eq!(plan["classes"]["attn_v"]["tensors"], 2);
}

#[test]
fn a_dry_run_tells_what_a_run_would_stop_at() {
    let dir = tempfile::tempdir().unwrap();
    model(&dir.path().join("in.gguf"), 1, 512, 16);
    let err = run(dir.path(), &["--dry-run", "--pure", "in.gguf", "q2_k_s"]).ok().err;
    let stops: Vec<_> =
        err.lines().filter_map(|line| line.strip_prefix("warning: a run would stop here: ")).collect();
    assert_eq!(
        stops,
        ["tensor `blk.0.attn_v.weight`: Q2_K needs an importance matrix, none given; the same for \
             `blk.0.ffn_down.weight` (Q2_K)",]
    );
    let err = run(dir.path(), &["--pure", "in.gguf", "q2_k_s"]).exits_with(1).err;
    assert!(err.contains("\n\nhint: give one with --imatrix\n"), "{err}");
}

#[test]
fn a_run_reports_sizes_and_names_its_output_after_the_type() {
    let dir = tempfile::tempdir().unwrap();
    model(&dir.path().join("in.gguf"), 2, 512, 16);
    let out = run(dir.path(), &["in.gguf", "15"]).ok().out;
    let last = out.lines().last().unwrap();
    assert!(
        last.starts_with("in-Q4_K_M.gguf: Q4_K_M, 99.0 KiB -> 36.3 KiB (16.00 -> 5.86 bits per weight), "),
        "{last}"
    );
    assert!(last.ends_with(" MB/s, 2 fallbacks"), "{last}");
    let (code, out, _) =
        run(dir.path(), &["--json", "--quiet", "--type", "Q4_K", "in.gguf", "b.gguf"]).parts();
    let report: Json = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &report["type"], &report["fallbacks"]), (0, &"Q4_K_M".into(), &2.into()));
    assert_eq!(names(dir.path()), ["b.gguf", "in-Q4_K_M.gguf", "in.gguf"]);
    let bytes = |name: &str| fs_err::read(dir.path().join(name)).unwrap();
    assert_eq!(bytes("b.gguf"), bytes("in-Q4_K_M.gguf"));
    let file = GgufFile::open(&dir.path().join("b.gguf")).unwrap();
    assert_eq!(file.tensors().len(), 7);
}

#[test]
fn bad_usage_ends_with_code_2_and_a_hint() {
    let dir = tempfile::tempdir().unwrap();
    model(&dir.path().join("in.gguf"), 1, 512, 16);
    for (args, message) in [
        (
            vec!["in.gguf", "out.gguf", "q9_9"],
            "error: unknown type `q9_9`\n\nhint: `--help` lists the types\n",
        ),
        (
            vec!["in.gguf", "out.gguf", "q4_km"],
            "error: unknown type `q4_km`\n\nhint: did you mean `q4_k_m`?\nhint: `--help` lists the types\n",
        ),
        (
            vec!["in.gguf", "iq4-nl"],
            "error: unknown type `iq4-nl`\n\nhint: did you mean `iq4_nl`?\nhint: `--help` lists the types\n",
        ),
        (
            vec!["in.gguf", "out.gguf", "nvfp4"],
            "error: unknown type `nvfp4`\n\nhint: a whole file cannot be nvfp4, single tensors can: \
             `--tensor-type REGEX=nvfp4`\n",
        ),
        (
            vec!["in.gguf", "q4_0", "--override-kv", "a=int:x"],
            "error: metadata `a=int:x`: a whole number expected\n",
        ),
        (vec!["in.gguf", "q4_0", "--prune-layers", "1,a"], "error: layer `a`: a number from 0 expected\n"),
    ] {
        let (code, out, err) = run(dir.path(), &args).parts();
        assert_eq!((code, out.as_str(), err.as_str()), (2, "", message), "{args:?}");
    }
    assert_eq!(names(dir.path()), ["in.gguf"]);
}

#[test]
fn a_tensor_type_that_is_nearly_one_is_offered() {
    let dir = tempfile::tempdir().unwrap();
    model(&dir.path().join("in.gguf"), 1, 512, 16);
    for args in [["--tensor-type", "attn_v=q6k"], ["--output-tensor-type", "Q6-K"]] {
        let err = run(dir.path(), &[&args[..], &["in.gguf", "q4_k_m"]].concat()).exits_with(2).err;
        assert!(err.contains("\nhint: did you mean `q6_k`?\n"), "{err}");
    }
}

#[test]
fn an_expression_that_matches_no_tensor_is_named() {
    let dir = tempfile::tempdir().unwrap();
    model(&dir.path().join("in.gguf"), 1, 512, 16);
    let rules = ["--tensor-type", "no_such=q8_0", "--tensor-type", "attn_v=q8_0"];
    let err = run(dir.path(), &[&rules[..], &["in.gguf", "q4_k_m"]].concat()).ok().err;
    assert!(
        err.contains(
            "warning: 1 option without effect: `--tensor-type no_such=q8_0` (no tensor has such a name)\n"
        ),
        "{err}"
    );
    assert!(!err.contains("`attn_v`"), "{err}");
    let err = run(dir.path(), &["-q", "--tensor-type", "no_such=q8_0", "in.gguf", "q4_k_m"]).err;
    assert_eq!(err, "");
}

/// Highest `RssAnon` of a run in KiB: memory that is not a mapped file.
#[cfg(target_os = "linux")]
fn peak_memory_kib(dir: &Path, input: &str) -> u64 {
    let options = ["--quiet", "--no-sync", "--threads", "2", input, "out.gguf", "q4_k_m"];
    support::peak_memory_kib(command("gguf-quantize", dir).args(options))
}

#[cfg(target_os = "linux")]
#[test]
fn memory_is_bounded_and_does_not_grow_with_the_model() {
    let dir = tempfile::tempdir().unwrap();
    model(&dir.path().join("small.gguf"), 2, 2048, 2048);
    model(&dir.path().join("large.gguf"), 6, 2048, 2048);
    let small = peak_memory_kib(dir.path(), "small.gguf");
    let large = peak_memory_kib(dir.path(), "large.gguf");
    assert!(small > 0 && large < 256 << 10, "{small} KiB, {large} KiB");
    assert!(large < small + (16 << 10), "{small} KiB for the small model, {large} KiB for the large one");
}

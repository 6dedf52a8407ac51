//! `gguf-quantize recipe` and `rebuild`: files of known origin, edits that are found and named, and
//! files made again byte for byte.

use std::path::Path;

use gguf_foundry::convert::ConvertOptions;
use gguf_foundry::core::progress::Silent;
use gguf_foundry::core::{Hint, TensorSource};
use gguf_foundry::gguf::{GgufFile, Metadata, WriteOptions, write_gguf};
use gguf_foundry::job::JobInput;
use gguf_foundry::job::ladder::{Ladder, Rung};
use gguf_foundry::job::recipe::{self, RecipeOutput, RecipeSource};
use serde_json::Value as Json;

use super::{convert_two_layers as convert, run};
use crate::support::programs::Outcome;
use crate::support::tiers::{Tier, deep_test, two_tiers};
use crate::support::{files, fixture, programs};
use crate::testkit::memory::{MemoryTensors, write_source};

fn program(dir: &Path, command: &str, args: &[&str]) -> Outcome {
    let args = [&[command], args, &["--no-sync"]].concat();
    programs::run("gguf-quantize", dir, &args)
}

/// Importance matrix of the bundled model on a short text.
fn importance(dir: &Path, name: &str, n_bytes: usize) {
    let text = fs_err::read_to_string(fixture("tiny-llama/corpus.txt")).unwrap();
    fs_err::write(dir.join("text.txt"), &text[..text.floor_char_boundary(n_bytes)]).unwrap();
    let args = ["imatrix", "in.gguf", "-f", "text.txt", "--ctx", "64", "--no-ppl", "-o", name];
    programs::run("gguf-verify", dir, &args).ok();
}

/// Runs `recipe` with `-o r.gguf` and returns the exit code and the report.
fn examine(dir: &Path, file: &str, more: &[&str]) -> (i32, Json) {
    let args = [&[file, "--source", "in.gguf", "-o", "r.gguf", "--json"][..], more].concat();
    let done = program(dir, "recipe", &args).exits_with_one_of(&[0, 1]);
    (done.code(), done.json())
}

/// Rebuilds `r.gguf` and compares the bytes with those of a file.
fn rebuild(dir: &Path, file: &str, more: &[&str]) {
    let args = [&["r.gguf", "--source", "in.gguf", "-o", "again.gguf"][..], more].concat();
    program(dir, "rebuild", &args).ok();
    let [old, new] = [file, "again.gguf"].map(|name| fs_err::read(dir.join(name)).unwrap());
    assert!(old == new, "{file} is not what it was");
    fs_err::remove_file(dir.join("again.gguf")).unwrap();
}

fn statuses(report: &Json) -> Vec<(String, String)> {
    let text = |tensor: &Json, key: &str| tensor[key].as_str().unwrap().to_owned();
    report["tensors"].as_array().unwrap().iter().map(|t| (text(t, "name"), text(t, "status"))).collect()
}

two_tiers!(files_of_all_types_are_explained_and_made_again);

fn files_of_all_types_are_explained_and_made_again(tier: Tier) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    convert(tier, dir, "f16");
    importance(dir, "m.gguf", tier.of(2000, 6000));
    // Every day one of each family.
    let (plain, weighted): (&[&str], &[&str]) = if tier.is_deep() {
        (
            &["f32", "bf16", "q8_0", "q4_0", "q5_1", "q6_k", "q4_k_m", "q2_k", "iq4_xs", "tq2_0", "copy"],
            &["q4_0", "q4_k_m", "q2_k", "iq4_nl", "iq3_xxs", "iq2_m", "iq1_s"],
        )
    } else {
        (&["bf16", "q4_k_m"], &["iq2_m"])
    };
    let mut n_used = 0;
    let all = plain.iter().map(|ty| (ty, false)).chain(weighted.iter().map(|ty| (ty, true)));
    for (ty, is_weighted) in all {
        let with: &[&str] = if is_weighted { &["--imatrix", "m.gguf"] } else { &[] };
        run(dir, &[&["in.gguf", "q.gguf", "--type", ty], with].concat()).ok();
        // A matrix that was not used does not matter.
        let (code, report) = examine(dir, "q.gguf", &["--imatrix", "m.gguf"]);
        assert_eq!((code, &report["explained"]), (0, &Json::Bool(true)), "{ty}: {report:#}");
        assert_eq!(report["reproduced"], report["tensors"].as_array().unwrap().len(), "{ty}");
        let used = report["importance"]["use"].as_str().unwrap();
        let expected: &[&str] = if is_weighted { &["used"] } else { &["not_used", "unknown"] };
        assert!(expected.contains(&used), "{ty}: {used}");
        n_used += usize::from(used == "used");
        assert!(report["recipe"]["imatrix_sha256"].is_null() != is_weighted, "{ty}");
        let bytes = report["recipe"]["file_bytes"].as_u64().unwrap();
        assert!(bytes < 6000, "{ty}: a recipe of {bytes} bytes");
        rebuild(dir, "q.gguf", with);
        if is_weighted {
            let args = ["r.gguf", "--source", "in.gguf", "-o", "x.gguf"];
            program(dir, "rebuild", &args).says(1, "made with an importance matrix");
        }
    }
    assert_eq!(n_used, weighted.len());
}

/// llama-quantize writes `[1, 256]` as `[256]`, and the converter does not.
#[test]
fn outer_dimensions_of_one_are_dropped_and_are_no_difference() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let values: Vec<f32> = (0..512u16).map(|n| f32::from(n % 37) - 11.0).collect();
    let source = MemoryTensors::default()
        .with_f32("blk.0.ffn_gate_inp_shexp.weight", &[1, 256], &values[..256])
        .with_f32("blk.0.ffn_up_exps.weight", &[1, 2, 256], &values)
        .with_f32("blk.0.shortconv.conv.weight", &[256, 1], &values[..256]);
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "qwen2moe");
    metadata.set("general.file_type", 0u32);
    write_source(&dir.join("in.gguf"), &metadata, &source);
    for ty in ["q8_0", "copy"] {
        run(dir, &["in.gguf", "q.gguf", "--type", ty]).ok();
        let file = GgufFile::open(&dir.join("q.gguf")).unwrap();
        let shapes: Vec<&[u64]> = file.tensors().iter().map(|tensor| tensor.shape.dims()).collect();
        assert_eq!(shapes, [&[256][..], &[2, 256], &[256, 1]], "{ty}");
        let (code, report) = examine(dir, "q.gguf", &[]);
        assert_eq!((code, &report["reproduced"]), (0, &3.into()), "{ty}: {report:#}");
        rebuild(dir, "q.gguf", &[]);
    }
    run(dir, &["in.gguf", "like.gguf", "--like", "q.gguf"]).ok();
    let [one, other] = ["q.gguf", "like.gguf"].map(|name| fs_err::read(dir.join(name)).unwrap());
    assert!(one == other);
    let differences =
        programs::run("gguf-inspect", dir, &["diff", "in.gguf", "q.gguf", "--json"]).exits_with(1).json();
    let tensors = differences["tensors"].as_array().unwrap();
    assert!(tensors.len() == 2 && tensors.iter().all(|tensor| tensor["data"].is_null()), "{differences:#}");
}

deep_test!(mixtures_of_rules_and_claims_are_told);

fn mixtures_of_rules_and_claims_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    convert(Tier::Everyday, dir, "bf16");
    let rule = "blk.0.attn_q.weight=q8_0";
    run(dir, &["in.gguf", "q.gguf", "--type", "q4_k_m", "--tensor-type", rule]).ok();
    let (code, report) = examine(dir, "q.gguf", &[]);
    assert_eq!(code, 0, "{report:#}");
    assert_eq!(report["rules"], serde_json::json!(["blk.0.attn_q.weight=Q8_0"]));
    let text = program(dir, "recipe", &["q.gguf", "--source", "in.gguf"]).ok().out;
    for part in ["Q4_K_M", "--tensor-type blk.0.attn_q.weight=Q8_0", "the source explains the file"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // From the checkpoint itself, converted on the way.
    let checkpoint = fixture("tiny-llama");
    let source = ["--source", checkpoint.to_str().unwrap()];
    run(dir, &[checkpoint.to_str().unwrap(), "-o", "c.gguf", "--type", "q5_k_m"]).ok();
    program(dir, "recipe", &[&["c.gguf", "-o", "c.recipe"][..], &source].concat()).ok();
    program(dir, "rebuild", &[&["c.recipe", "-o", "again.gguf"][..], &source].concat()).ok();
    let [old, new] = ["c.gguf", "again.gguf"].map(|name| fs_err::read(dir.join(name)).unwrap());
    assert!(old == new);
    // A recipe is a GGUF file.
    programs::run("gguf-inspect", dir, &["c.recipe"]).prints(0, "recipe");
}

/// File with the places that edits need.
struct Edited {
    bytes: Vec<u8>,
    file: GgufFile,
}

impl Edited {
    fn of(dir: &Path, name: &str) -> Self {
        let path = dir.join(name);
        Self { bytes: fs_err::read(&path).unwrap(), file: GgufFile::open(&path).unwrap() }
    }

    /// Quantized tensor with this part of a name: index, offset, bytes, bytes of a block.
    fn tensor(&self, part: &str) -> (usize, usize, usize, usize) {
        let at = self.file.tensors().iter().position(|tensor| tensor.name.contains(part)).unwrap();
        let place = self.file.place(at);
        let block = self.file.tensors()[at].ty.block_bytes();
        (at, place.offset as usize, place.n_bytes as usize, block)
    }

    fn name(&self, tensor: usize) -> &str {
        &self.file.tensors()[tensor].name
    }
}

/// Change of a file's bytes.
type Change<'a> = Box<dyn Fn(&mut Vec<u8>) + 'a>;

/// Edit of a file's bytes, and whether a report has it.
struct Edit<'a> {
    what: String,
    apply: Change<'a>,
    found: Box<dyn Fn(&Json) -> bool + 'a>,
}

impl<'a> Edit<'a> {
    fn new(
        what: impl Into<String>,
        apply: impl Fn(&mut Vec<u8>) + 'a,
        found: impl Fn(&Json) -> bool + 'a,
    ) -> Self {
        Self { what: what.into(), apply: Box::new(apply), found: Box::new(found) }
    }
}

/// Places of one block each: a code, a scale, another byte.
const BLOCKS: [(&str, usize, usize); 3] =
    [("blk.0.attn_v", 3, usize::MAX), ("blk.1.ffn_up", 17, 0), ("token_embd", 5, 1)];

fn is_near(report: &Json, tensor: &str, first: usize, n: u64) -> bool {
    report["tensors"].as_array().unwrap().iter().any(|found| {
        found["name"] == tensor
            && found["status"] == "near"
            && found["differing"]["first"] == first
            && found["differing"]["differing"] == n
    })
}

/// Changes a byte of a block, and with `further` one of the block after the next.
fn block_edit<'a>(
    original: &'a Edited,
    (part, block, byte): (&'static str, usize, usize),
    further: bool,
) -> Edit<'a> {
    let (tensor, offset, _, block_bytes) = original.tensor(part);
    let apply = move |bytes: &mut Vec<u8>| {
        bytes[offset + block * block_bytes + byte.min(block_bytes - 1)] ^= 1;
        if further {
            bytes[offset + (block + 2) * block_bytes + 1] ^= 0x10;
        }
    };
    let n = 1 + u64::from(further);
    Edit::new(format!("{n} blocks of {part}"), apply, move |report| {
        is_near(report, original.name(tensor), block, n)
    })
}

/// Edits of different places, of every kind.
fn first_edits(original: &Edited) -> Vec<Edit<'_>> {
    let mut edits: Vec<Edit<'_>> = BLOCKS.map(|place| block_edit(original, place, false)).into();
    // A norm is an F32 vector, in which every value is a block.
    let (norm, offset, ..) = original.tensor("blk.0.attn_norm");
    let near = move |report: &Json| is_near(report, original.name(norm), 7, 1);
    edits.push(Edit::new("a value of a norm", move |bytes| bytes[offset + 4 * 7 + 2] ^= 4, near));
    // Two tensors of one shape and type, swapped.
    let (first, a, n_bytes, _) = original.tensor("blk.0.attn_q.");
    let (second, b, other_bytes, _) = original.tensor("blk.1.attn_q.");
    assert_eq!(n_bytes, other_bytes);
    let swap = move |bytes: &mut Vec<u8>| (0..n_bytes).for_each(|at| bytes.swap(a + at, b + at));
    edits.push(Edit::new("two swapped tensors", swap, move |report| {
        let from = |tensor: usize, origin: usize| {
            report["tensors"].as_array().unwrap().iter().any(|found| {
                found["name"] == original.name(tensor)
                    && found["status"] == "not_from_source"
                    && found["from"] == original.name(origin)
            })
        };
        from(first, second) && from(second, first)
    }));
    // Other data altogether.
    let (other, offset, n_bytes, _) = original.tensor("blk.1.ffn_gate");
    let reverse = move |bytes: &mut Vec<u8>| bytes[offset..offset + n_bytes].reverse();
    edits.push(Edit::new("other data", reverse, move |report| {
        statuses(report).contains(&(original.name(other).to_owned(), "not_from_source".to_owned()))
    }));
    // Bytes that belong to no tensor.
    edits.push(Edit::new(
        "trailing zeros",
        |bytes| bytes.extend([0; 7]),
        |report| report["trailing_bytes"] == 7,
    ));
    let header = original.file.parts()[0].header();
    if header.header_bytes < header.data_offset {
        let offset = header.data_offset - 1;
        let found = move |report: &Json| {
            report["padding"][0]["after"] == "header" && report["padding"][0]["offset"] == offset
        };
        edits.push(Edit::new("padding of the header", move |bytes| bytes[offset as usize] = 1, found));
    }
    edits
}

/// Edits of different places, some of which [`first_edits`] touch.
fn further_edits(original: &Edited) -> Vec<Edit<'_>> {
    let mut edits: Vec<Edit<'_>> = BLOCKS.map(|place| block_edit(original, place, true)).into();
    let tail = |bytes: &mut Vec<u8>| bytes.extend([0, 0, 0, 0, 9, 0, 0]);
    edits.push(Edit::new("a trailing byte", tail, |report| report["trailing_bytes"] == 7));
    edits
}

two_tiers!(planted_edits_are_found_named_and_kept);

/// Every day all edits of bytes in two files.
fn planted_edits_are_found_named_and_kept(tier: Tier) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    convert(tier, dir, "f16");
    importance(dir, "m.gguf", tier.of(2000, 6000));
    let types = [("iq4_xs", true), ("q8_0", false), ("q4_k_m", false), ("q3_k_s", true)];
    let mut n_edits = 0;
    for (ty, is_weighted) in tier.some(12, types) {
        let with: &[&str] = if is_weighted { &["--imatrix", "m.gguf"] } else { &[] };
        run(dir, &[&["in.gguf", "q.gguf", "--type", ty], with].concat()).ok();
        let original = Edited::of(dir, "q.gguf");
        let mut check = |edits: &[&Edit<'_>]| {
            let mut bytes = original.bytes.clone();
            for edit in edits {
                (edit.apply)(&mut bytes);
            }
            fs_err::write(dir.join("edited.gguf"), bytes).unwrap();
            let (code, report) = examine(dir, "edited.gguf", with);
            for edit in edits {
                assert_eq!(code, 1, "{ty}: {} was not found", edit.what);
                assert!((edit.found)(&report), "{ty}: {}: {report:#}", edit.what);
            }
            assert!(edits.len() > 1 || report["near"].as_u64() <= Some(1), "{ty}: {report:#}");
            rebuild(dir, "edited.gguf", with);
            n_edits += edits.len();
        };
        let (first, second) = (first_edits(&original), further_edits(&original));
        // Edits of different places are found one by one in one file.
        for edits in [first, second] {
            let edits: Vec<&Edit<'_>> = edits.iter().collect();
            match tier {
                Tier::Everyday => check(&edits),
                Tier::Deep => edits.iter().for_each(|edit| check(&[*edit])),
            }
        }
        // Keys.
        let mut check_keys = |what: &str, edit: &[&str], key: &str, expected: Json, found: Json| {
            fs_err::copy(dir.join("q.gguf"), dir.join("edited.gguf")).unwrap();
            let args = [edit, &["--quiet"]].concat();
            programs::run("gguf-inspect", dir, &args).ok();
            let edited = fs_err::read(dir.join("edited.gguf")).unwrap();
            let is_found = |report: &Json| {
                let keys = report["keys"].as_array().unwrap();
                keys.len() == 1
                    && keys[0]["key"] == key
                    && keys[0]["expected"] == expected
                    && keys[0]["found"] == found
            };
            check(&[&Edit::new(what, move |bytes| bytes.clone_from(&edited), is_found)]);
        };
        let set = |text| ["set", "edited.gguf", text, "--force"];
        check_keys(
            "a changed key",
            &set("llama.rope.freq_base=f32:123.0"),
            "llama.rope.freq_base",
            original
                .file
                .metadata()
                .get("llama.rope.freq_base")
                .map_or(Json::Null, |value| format!("{:?}", value.as_f64().unwrap() as f32).into()),
            "123.0".into(),
        );
        check_keys("an added key", &set("own.key=str:x"), "own.key", Json::Null, "x".into());
        check_keys(
            "a removed key",
            &["remove", "edited.gguf", "llama.context_length", "--force"],
            "llama.context_length",
            original
                .file
                .metadata()
                .get("llama.context_length")
                .unwrap()
                .as_u64()
                .unwrap()
                .to_string()
                .into(),
            Json::Null,
        );
        // A file that is cut is refused, and nothing is written.
        let cut = &original.bytes[..original.bytes.len() / 2];
        fs_err::write(dir.join("edited.gguf"), cut).unwrap();
        fs_err::remove_file(dir.join("r.gguf")).unwrap();
        let args = ["edited.gguf", "--source", "in.gguf", "-o", "r.gguf"];
        assert_ne!(program(dir, "recipe", &args).code(), 0, "{ty}");
        assert!(!dir.join("r.gguf").exists());
        n_edits += 1;
    }
    assert!(n_edits >= tier.of(15, 60), "{n_edits} edits");
    println!("{n_edits} edits found");
}

two_tiers!(a_damaged_recipe_never_gives_a_wrong_file);

fn a_damaged_recipe_never_gives_a_wrong_file(tier: Tier) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    convert(tier, dir, "f16");
    run(dir, &["in.gguf", "q.gguf", "--type", "q4_0"]).ok();
    let original = Edited::of(dir, "q.gguf");
    let (_, offset, n_bytes, _) = original.tensor("blk.1.attn_v");
    let (_, other, _, block_bytes) = original.tensor("blk.0.attn_q.");
    let mut bytes = original.bytes.clone();
    bytes[offset..offset + n_bytes].reverse();
    bytes[other + block_bytes] ^= 5;
    bytes.extend(b"tail");
    fs_err::write(dir.join("edited.gguf"), &bytes).unwrap();
    examine(dir, "edited.gguf", &[]);
    rebuild(dir, "edited.gguf", &[]);
    let input = JobInput::Gguf(dir.join("in.gguf"));
    let source = RecipeSource::open(input, ConvertOptions::default(), None, &Silent).unwrap();
    let whole = fs_err::read(dir.join("r.gguf")).unwrap();
    let options = RecipeOutput { sync: false, ..RecipeOutput::default() };
    let (mut n_refused, mut n_harmless) = (0, 0);
    let mut try_one = |damaged: &[u8], what: &str| {
        fs_err::write(dir.join("d.gguf"), damaged).unwrap();
        match recipe::rebuild(&dir.join("d.gguf"), &source, &dir.join("again.gguf"), &options, &Silent) {
            // Only names and padding of the recipe decide nothing.
            Ok(_) => {
                assert!(fs_err::read(dir.join("again.gguf")).unwrap() == bytes, "{what}");
                fs_err::remove_file(dir.join("again.gguf")).unwrap();
                n_harmless += 1;
            }
            Err(_) => n_refused += 1,
        }
        assert!(!dir.join("again.gguf").exists(), "{what}");
    };
    // All of the keys, and bytes all over the rest; every day a part of both, so that all bits come in turn.
    let ends = (0..whole.len()).filter(|at| *at < 900 || at % 97 == 0);
    for at in tier.some(17, ends) {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << (at % 8);
        try_one(&damaged, &format!("bit at {at}"));
        if at % 5 == 0 {
            try_one(&whole[..at], &format!("cut at {at}"));
        }
    }
    assert!(
        n_refused > tier.of(5, 10) * n_harmless && n_refused > tier.of(40, 600),
        "{n_refused} refused, {n_harmless} without effect"
    );
}

deep_test!(other_sources_matrices_and_outputs_are_refused);

fn other_sources_matrices_and_outputs_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    convert(Tier::Everyday, dir, "f16");
    importance(dir, "m.gguf", 2000);
    importance(dir, "other.gguf", 1000);
    run(dir, &["in.gguf", "q.gguf", "--type", "q4_k_m", "--imatrix", "m.gguf"]).ok();
    examine(dir, "q.gguf", &["--imatrix", "m.gguf"]);
    let says = |args: &[&str], code: i32, words: &str| program(dir, args[0], &args[1..]).says(code, words);
    let made = ["rebuild", "r.gguf", "--source"];
    let with = |source: &'static str, matrix: &'static str| {
        [&made[..], &[source, "--imatrix", matrix, "-o", "x.gguf"]].concat()
    };
    says(&with("in.gguf", "other.gguf"), 1, "made with another importance matrix");
    let mut other = fs_err::read(dir.join("in.gguf")).unwrap();
    let n_bytes = other.len();
    other[n_bytes - 40] ^= 1;
    fs_err::write(dir.join("changed.gguf"), &other).unwrap();
    let error = says(&with("changed.gguf", "m.gguf"), 1, "made of another source").err;
    assert_eq!(error.split_whitespace().filter(|word| word.trim_end_matches(',').len() == 64).count(), 2);
    // The same tensors with other keys, and under another name.
    fs_err::copy(dir.join("in.gguf"), dir.join("keys.gguf")).unwrap();
    programs::run("gguf-inspect", dir, &["set", "keys.gguf", "own.key=str:x", "--force", "--quiet"]).ok();
    says(&with("keys.gguf", "m.gguf"), 1, "the keys of the source are not those of the recipe");
    fs_err::copy(dir.join("in.gguf"), dir.join("renamed.gguf")).unwrap();
    program(dir, "rebuild", &with("renamed.gguf", "m.gguf")[1..]).ok();
    fs_err::remove_file(dir.join("x.gguf")).unwrap();
    for output in ["in.gguf", "m.gguf", "r.gguf"] {
        let args = [&made[..], &["in.gguf", "--imatrix", "m.gguf", "-o", output]].concat();
        says(&args, 2, "same file as input");
    }
    for output in ["q.gguf", "in.gguf", "m.gguf"] {
        let args = ["recipe", "q.gguf", "--source", "in.gguf", "--imatrix", "m.gguf", "-o", output];
        says(&args, 2, "same file as input");
    }
    says(&["recipe", "q.gguf", "--source", "in.gguf", "-o", "changed.gguf"], 1, "does not replace");
    says(&["recipe", "r.gguf", "--source", "in.gguf"], 1, "this is a recipe");
    says(&["rebuild", "q.gguf", "--source", "in.gguf", "-o", "x.gguf"], 1, "not a recipe");
    says(&["recipe", "none.gguf", "--source", "in.gguf"], 1, "none.gguf");
    assert!(!dir.join("x.gguf").exists());
}

#[test]
fn a_part_of_a_split_model_is_a_file_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    convert(Tier::Everyday, dir, "f16");
    run(dir, &["in.gguf", "q.gguf", "--type", "q5_k_s"]).ok();
    programs::run(
        "gguf-inspect",
        dir,
        &["split", "q.gguf", "-o", "p", "--split-max-tensors", "8", "--no-sync"],
    )
    .ok();
    let parts: Vec<String> = files::names(dir).into_iter().filter(|name| name.starts_with("p-0")).collect();
    assert!(parts.len() > 1, "{parts:?}");
    for part in parts {
        let (code, report) = examine(dir, &part, &[]);
        assert_eq!(code, 0, "{part}: {report:#}");
        rebuild(dir, &part, &[]);
    }
}

#[test]
fn a_small_recipe_makes_little_and_is_no_model() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    convert(Tier::Everyday, dir, "f16");
    run(dir, &["in.gguf", "q.gguf", "--type", "q8_0"]).ok();
    let open = |name: &str| {
        let input = JobInput::Gguf(dir.join(name));
        RecipeSource::open(input, ConvertOptions::default(), None, &Silent).map_err(Box::new)
    };
    let source = open("in.gguf").unwrap();
    let options = RecipeOutput { sync: false, ..RecipeOutput::default() };
    recipe::find_recipe(&dir.join("q.gguf"), &source, Some(&dir.join("r.gguf")), &options, &Silent).unwrap();
    let file = GgufFile::open(&dir.join("r.gguf")).unwrap();
    for (key, found, expected) in [
        ("file.bytes", 4_u64 << 30, "bytes that belong to no tensor: at most"),
        ("file.bytes", u64::MAX, "bytes that belong to no tensor: at most"),
        ("header.bytes", 1 << 40, "header of the file: at most"),
    ] {
        let mut keys = file.metadata().clone();
        keys.set(format!("gguf_foundry.recipe.{key}"), found);
        let bomb = dir.join("bomb.gguf");
        write_gguf(&bomb, &keys, &file, &WriteOptions::default(), &Silent).unwrap();
        let error = recipe::rebuild(&bomb, &source, &dir.join("x.gguf"), &options, &Silent).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    // What has no weights is no model.
    let mut keys = Metadata::new();
    keys.set("general.type", "imatrix");
    write_gguf(&dir.join("m.gguf"), &keys, &file, &WriteOptions::default(), &Silent).unwrap();
    for (name, kind) in [("r.gguf", "a recipe of a file"), ("m.gguf", "an importance matrix")] {
        let expected = format!("{name}: this is {kind}, not a model");
        let rungs = Rung::parse_list("q8_0").unwrap();
        let ladder = Ladder::new(JobInput::Gguf(dir.join(name)), rungs, dir.join("out"));
        for error in [*open(name).map(drop).unwrap_err(), ladder.run(&Silent).unwrap_err()] {
            assert!(error.to_string().ends_with(&expected) && !error.hints().is_empty(), "{error}");
        }
    }
    assert!(!dir.join("x.gguf").exists() && !dir.join("out").exists());
}

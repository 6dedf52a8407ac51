//! Vision and audio towers: every file compared with the reference's.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use gguf_foundry::arch::{CardKind, OutType, Registry};
use gguf_foundry::convert::{Conversion, ConvertError, ConvertOptions};
use gguf_foundry::core::TensorSource;
use rayon::prelude::*;
use serde_json::Value as Json;

use crate::support::goldens::{Goldens, conformance_tests};
use crate::support::{files, fixture, in_json, programs, report_cases, sha256};
use crate::testkit::checkpoints::Safetensors;
use crate::testkit::memory::{tensor_bytes, write_source};

const OUTTYPES: [&str; 5] = ["f32", "f16", "bf16", "q8_0", "auto"];

/// Tensors that the reference's runtime does not read as the reference writes them (docs/differences.md): case, name
/// there (`None` if it is missing there), name here. `#` is a block.
const CORRECTED: &[(&str, Option<&str>, &str)] = &[
    ("granite_speech", Some("a.blk.#.conv_norm_var"), "a.blk.#.conv_norm"),
    ("llama4", Some("v.blk.#.attn_post_norm"), "v.blk.#.ln2"),
    ("mistral3", None, "v.token_embd.img_break"),
    ("pixtral", None, "v.token_embd.img_break"),
];

/// Cases with a key that the reference does not write, and the runtime needs (docs/differences.md).
const ADDED: &[(&str, &str)] = &[("cogvlm", "clip.use_gelu"), ("gemma4_vision", "clip.use_gelu")];

/// Cases whose class token is behind the patches in the runtime: the table of positions has its row last here, and first
/// in the reference.
const TURNED: &[&str] = &["cogvlm", "intern_s1", "internvl"];
const POSITIONS: &str = "v.position_embd.weight";

/// Cases with a tensor of sines, whose last bits depend on a library (docs/differences.md): everything except its
/// elements is equal.
const COMPUTED: &[&str] = &["qwen2_5_omni", "qwen3_asr"];
const SINES: &str = "a.position_embd.weight";

/// Valid cases that the reference refuses, with their number of tensors.
const BETTER: &[(&str, usize)] = &[("qwen2_vl_two_layers", 40), ("qwen3_omni", 86)];

/// Cases that both programs refuse, with a part of the message.
const REFUSED: &[(&str, &str)] = &[
    ("llava_clip", "`vision_config.model_type` is another one"),
    ("qwen2_5_vl_bad_pattern", "`vision_config.fullatt_block_indexes` is not regular"),
];

/// Classes without a card; see `docs/differences.md`.
const WITHOUT: &[&str] = &["PocketTTSModel", "Qwen3TTSForConditionalGeneration"];

#[test]
fn nearly_every_class_of_the_peer_is_claimed() {
    let registry = Registry::embedded_of(CardKind::Mmproj).unwrap();
    let claimed: BTreeSet<&str> = registry.classes().iter().map(|row| row.class).collect();
    let text = fs_err::read_to_string(fixture("tower_classes.txt")).unwrap();
    let names: BTreeSet<&str> = text.lines().collect();
    assert_eq!(names.len(), 67, "llama.cpp 0.5.0 registers this many");
    let missing: Vec<&&str> = names.difference(&claimed).collect();
    assert_eq!(missing, WITHOUT.iter().collect::<Vec<_>>());
    // Mistral's own format names no class, and the reference's name for its tower is not a registered class. The others
    // are names that configurations use where the reference expects the class of the tower, and those of thinkers alone.
    let further = [
        "Glm46VForConditionalGeneration",
        "InternS1ForConditionalGeneration",
        "InternS1VisionModel",
        "InternVLChatModel",
        "InternVLForConditionalGeneration",
        "InternVLVisionModel",
        "Kimi_K25ForConditionalGeneration",
        "LightOnOcrForConditionalGeneration",
        "PaddleOCRVLForConditionalGeneration",
        "PixtralModel",
        "QianfanOCRForConditionalGeneration",
        "Qwen2_5OmniForConditionalGeneration",
        "Qwen2_5OmniThinkerForConditionalGeneration",
        "Qwen3OmniMoeThinkerForConditionalGeneration",
    ];
    assert_eq!(claimed.difference(&names).copied().collect::<Vec<_>>(), further);
}

fn plan(dir: &Path, outtype: &str) -> Result<Conversion, ConvertError> {
    let about = files::json(dir.join("case.json"));
    let options = ConvertOptions {
        kind: CardKind::Mmproj,
        file_type: (outtype != "auto").then(|| OutType::from_name(outtype).unwrap()),
        mistral_format: about["converter_options"]["mistral_format"] == true,
        ..ConvertOptions::default()
    };
    Conversion::plan(&dir.join("hf"), &options)
}

fn written(conversion: &Conversion) -> Vec<u8> {
    let out = tempfile::tempdir().unwrap();
    let target = out.path().join("mmproj.gguf");
    write_source(&target, conversion.metadata(), conversion);
    fs_err::read(&target).unwrap()
}

/// Keys and tensors of a corrected file, with checksums, in the form of the cases: without keys and tensors that the
/// reference does not have, in its order of rows, and under its names.
fn uncorrected(case: &str, conversion: &Conversion) -> (Vec<Json>, Vec<Json>) {
    let keys = conversion.metadata().iter().filter(|(key, _)| !ADDED.contains(&(case, *key)));
    let keys = keys.map(|(key, value)| {
        let (ty, value) = in_json(value);
        Json::from(vec![key.into(), ty.into(), value])
    });
    let rows: Vec<_> = CORRECTED.iter().filter(|row| row.0 == case).collect();
    let name = |name: &str| {
        let block = name.split('.').find(|part| part.parse::<u32>().is_ok()).unwrap_or("#");
        rows.iter().try_fold(name.to_owned(), |name, (_, theirs, ours)| match theirs {
            None if name == *ours => None,
            None => Some(name),
            Some(theirs) => Some(name.replace(&ours.replace('#', block), &theirs.replace('#', block))),
        })
    };
    let tensors = conversion.tensors().iter().enumerate().filter_map(|(at, tensor)| {
        let mut dims: Vec<u64> = tensor.shape.dims().iter().rev().copied().collect();
        let mut bytes = tensor_bytes(conversion, at);
        if TURNED.contains(&case) && tensor.name == POSITIONS {
            let row = bytes.len() / dims[1] as usize;
            bytes.rotate_right(row);
            dims.extend((case != "cogvlm").then_some(1));
        }
        let row: Vec<Json> = vec![
            name(&tensor.name)?.into(),
            dims.into(),
            tensor.ty.name().into(),
            bytes.len().into(),
            sha256(&bytes).into(),
        ];
        Some(Json::from(row))
    });
    (keys.collect(), tensors.collect())
}

fn complaint(dir: &Path, n_cases: &AtomicUsize) -> Option<String> {
    let case = dir.file_name().unwrap().to_str().unwrap();
    for outtype in OUTTYPES {
        let path = dir.join(format!("expect-{outtype}.json"));
        if !path.exists() {
            continue;
        }
        let (expect, conversion) = match plan(dir, outtype) {
            Ok(conversion) => (files::json(path), conversion),
            Err(error) => return Some(format!("{case} {outtype}: {error}")),
        };
        let is_computed = COMPUTED.contains(&case);
        let is_corrected = CORRECTED.iter().any(|row| row.0 == case)
            || ADDED.iter().any(|row| row.0 == case)
            || TURNED.contains(&case);
        let is_equal = if is_computed || is_corrected {
            let (keys, tensors) = uncorrected(case, &conversion);
            let sum_left_out = |row: &Json| if is_computed && row[0] == SINES { 4 } else { 5 };
            let rows = |rows: &[Json]| -> Vec<Vec<Json>> {
                let row = |row: &Json| row.as_array().unwrap()[..sum_left_out(row)].to_vec();
                rows.iter().map(row).collect()
            };
            Json::from(keys) == expect["kv"] && rows(&tensors) == rows(expect["tensors"].as_array().unwrap())
        } else {
            expect["file"]["sha256"] == sha256(&written(&conversion)).as_str()
        };
        if !is_equal {
            return Some(format!("{case} {outtype}: other bytes"));
        }
        n_cases.fetch_add(1, Ordering::Relaxed);
    }
    None
}

conformance_tests!(every_file_has_the_bytes_of_the_reference);
fn every_file_has_the_bytes_of_the_reference(corpus: &Goldens) {
    let n_cases = AtomicUsize::new(0);
    let dirs = files::entries(corpus.join("mmproj"));
    let wrong: Vec<String> = dirs.par_iter().filter_map(|dir| complaint(dir, &n_cases)).collect();
    assert!(wrong.is_empty(), "{} of {} models:\n{}", wrong.len(), dirs.len(), wrong.join("\n"));
    let n_cases = n_cases.into_inner();
    assert!(!corpus.is_whole() || n_cases == (dirs.len() - BETTER.len() - REFUSED.len()) * OUTTYPES.len());
    report_cases("whole files of towers", n_cases);
}

fn run(code: i32, program: &str, args: &[&str]) -> (String, String) {
    let ended = programs::run(program, Path::new("."), args).exits_with(code);
    (ended.out, ended.err)
}

#[test]
fn the_programs_make_and_take_towers() {
    let corpus = Goldens::selection();
    let case = corpus.join("mmproj/gemma4_vision/hf");
    let (case, out) = (case.to_str().unwrap(), tempfile::tempdir().unwrap());
    let out_dir = out.path().to_str().unwrap();
    run(0, "gguf-convert", &["hf2gguf", case, "--mmproj", "--type", "f32", "-o", out_dir]);
    let file = out.path().join("mmproj-Hf-F32.gguf");
    let file = file.to_str().unwrap();
    let (shown, _) = run(0, "gguf-inspect", &[file]);
    assert!(shown.contains("gemma4v") && shown.contains("mmproj"), "{shown}");

    let (verdict, _) = run(4, "gguf-verify", &[file, "--structure-only"]);
    assert!(verdict.contains("vision and audio towers are not run"), "{verdict}");
    let (verdict, _) = run(0, "gguf-verify", &[file, "--baseline", case, "--weights-only"]);
    assert!(verdict.contains("identical to the baseline") && !verdict.contains("damaged"), "{verdict}");
    let damaged = out.path().join("damaged.gguf");
    let mut bytes = fs_err::read(file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 4096].iter_mut().for_each(|byte| *byte ^= 0x55);
    fs_err::write(&damaged, bytes).unwrap();
    let (verdict, _) =
        run(3, "gguf-verify", &[damaged.to_str().unwrap(), "--baseline", case, "--weights-only"]);
    assert!(verdict.contains("damaged"), "{verdict}");
    let other = out.path().join("other.gguf");
    let change = ["set", file, "clip.vision.block_count=7", "-o", other.to_str().unwrap(), "--force"];
    run(0, "gguf-inspect", &change);
    let (verdict, _) =
        run(3, "gguf-verify", &[other.to_str().unwrap(), "--baseline", case, "--weights-only"]);
    assert!(verdict.contains("block_count"), "{verdict}");
    let quantized = out.path().join("q8_0.gguf");
    run(0, "gguf-quantize", &[file, quantized.to_str().unwrap(), "--type", "q8_0"]);
    run(4, "gguf-verify", &[quantized.to_str().unwrap(), "--structure-only"]);

    let (_, err) = run(2, "gguf-convert", &["hf2gguf", case, "--mmproj", "--type", "q4_k_m", "--dry-run"]);
    assert!(err.contains("`--mmproj` goes with f32, f16, bf16, q8_0"), "{err}");
    let (_, err) = run(2, "gguf-convert", &["hf2gguf", case, "--mmproj", "--vocab-only"]);
    assert!(err.contains("cannot be used with"), "{err}");
    let text = crate::support::fixture("tiny-llama");
    let (_, err) = run(1, "gguf-convert", &["hf2gguf", text.to_str().unwrap(), "--mmproj", "--dry-run"]);
    assert!(
        err.contains("config.json describes no vision or audio tower: `LlamaForCausalLM` is a text model"),
        "{err}"
    );
}

/// transformers saves bounds of layers that it does not clamp, too.
#[test]
fn an_infinite_bound_is_none() {
    let (corpus, out) = (Goldens::selection(), tempfile::tempdir().unwrap());
    let (case, dir) = (corpus.join("mmproj/gemma4_vision/hf"), out.path().join("hf"));
    fs_err::create_dir(&dir).unwrap();
    for name in ["config.json", "preprocessor_config.json"] {
        fs_err::copy(case.join(name), dir.join(name)).unwrap();
    }
    let mut weights = Safetensors::read(case.join("model.safetensors"));
    let bound = weights.header().keys().find(|name| name.ends_with(".input_max")).unwrap().clone();
    // The last two bytes of an infinite number, in BF16 as in F32.
    let number = weights.data_mut(&bound);
    number.fill(0);
    let sign_and_exponent = number.len() - 2;
    number[sign_and_exponent..].copy_from_slice(&[0x80, 0x7f]);
    weights.write(&dir.join("model.safetensors"));
    let (file, small) = (out.path().join("f32.gguf"), out.path().join("q8_0.gguf"));
    let (dir, file, small) = (dir.to_str().unwrap(), file.to_str().unwrap(), small.to_str().unwrap());
    run(0, "gguf-convert", &["hf2gguf", dir, "--mmproj", "--type", "f32", "-o", file]);
    run(0, "gguf-quantize", &[file, small, "--type", "q8_0"]);
    for file in [file, small] {
        run(4, "gguf-verify", &[file, "--structure-only"]);
    }
}

#[test]
fn a_card_of_the_other_kind_is_refused() {
    let card = crate::support::root().join("converters/mmproj/idefics3.toml");
    let case = crate::support::fixture("tiny-llama");
    let args = ["hf2gguf", case.to_str().unwrap(), "--dry-run", "--card", card.to_str().unwrap()];
    let (_, err) = run(1, "gguf-convert", &args);
    assert!(err.contains("cards of towers (`mmproj`) go with `--mmproj`"), "{err}");
    run(0, "gguf-convert", &["archs", "idefics3", "--card", card.to_str().unwrap()]);
}

conformance_tests!(what_the_reference_refuses_is_converted_where_it_is_sound);
fn what_the_reference_refuses_is_converted_where_it_is_sound(corpus: &Goldens) {
    for (case, n_tensors) in BETTER {
        let Some(dir) = corpus.find(format!("mmproj/{case}")) else { continue };
        let conversion = plan(&dir, "f16").unwrap();
        assert_eq!(conversion.tensors().len(), *n_tensors, "{case}");
    }
    for (case, message) in REFUSED {
        let Some(dir) = corpus.find(format!("mmproj/{case}")) else { continue };
        let error = plan(&dir, "f16").unwrap_err().to_string();
        assert!(error.contains(message), "{case}: {error}");
    }
}

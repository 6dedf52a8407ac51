//! Whole files through the program: the metadata rules and every file type, byte for byte.

use std::path::{Path, PathBuf};

use gguf_foundry::core::TensorSource;
use gguf_foundry::core::bytes::Endian;
use gguf_foundry::gguf::{Array, GgufFile, Metadata, Value};
use serde_json::Value as Json;

use super::convert_two_layers;
use crate::support::goldens::{Goldens, tiered_conformance_tests};
use crate::support::tiers::Tier;
use crate::support::{files, programs, report_cases, sha256, smollm2};

/// Runs the program in `dir`; returns standard error if it failed.
fn quantize(dir: &Path, args: &[&str]) -> Result<(), String> {
    let ended = super::run(dir, &[&["--quiet"], args].concat());
    if ended.code == Some(0) { Ok(()) } else { Err(ended.err) }
}

/// Messages of llama-quantize and of this program for the same bad input.
static MESSAGES: &[(&str, &str)] = &[
    (
        "imatrix exclude, iq2",
        "tensor `blk.1.ffn_up.weight`: IQ2_XS needs importance data, the importance matrix has none for it",
    ),
    ("q8 to q4, refused", "already quantized (Q8_0); requantizing to"),
    ("q8 to bf16 refused", "already quantized (Q8_0); requantizing to BF16 is not allowed"),
    ("moe IQ2_XS", "IQ2_XS needs an importance matrix, none given"),
    ("moe IQ2_XS imatrix", "tensor `blk.1.attn_k.weight`: IQ2_XS needs importance data"),
    ("moe IQ1_M", "needs an importance matrix, none given"),
    ("moe IQ1_M imatrix", "tensor `blk.1.attn_k.weight`: IQ1_M needs importance data"),
    ("imatrix of a wrong size", "tensor `blk.0.attn_q.weight`: 128 importance values, 256 expected"),
    ("imatrix with nan", "nan.imatrix.gguf: tensor `blk.0."),
    (
        "imatrix without chunk_size",
        "no_chunk_size.imatrix.gguf: not an importance matrix: no key `imatrix.chunk_size`",
    ),
    ("imatrix not a file", "failed to open file `nothing.gguf`"),
    ("bad type name", "unknown tensor type `q9_9`"),
    ("bad ftype", "unknown type `Q9_9`"),
    ("same file", "output is the same file as input"),
    (
        "output q6_k on 32 columns",
        "tensor `output.weight`: 32 columns are not a multiple of 256, as Q6_K needs",
    ),
];

/// Returns true if llama-quantize's file is broken: its padding does not match its metadata.
fn is_misaligned(output: &Json) -> bool {
    output["alignment_in_metadata"].as_u64().is_some_and(|alignment| alignment != 32)
}

/// Value in the JSON form of the corpus.
fn value_json(value: &Value) -> Json {
    match value {
        Value::String(_) => value.as_str().map_or(Json::Null, Into::into),
        Value::Bool(value) => (*value).into(),
        Value::F32(value) => f64::from(*value).into(),
        Value::F64(value) => (*value).into(),
        Value::Array(array) => array_json(array),
        value => match value.as_u64() {
            Some(number) => number.into(),
            None => i64::try_from(value.as_i128().unwrap()).unwrap().into(),
        },
    }
}

fn array_json(array: &Array) -> Json {
    let items: Vec<_> = (0..array.len()).map(|index| value_json(&array.get(index).unwrap())).collect();
    serde_json::json!([array.element_type().name(), items])
}

fn metadata_json(metadata: &Metadata) -> Vec<Json> {
    let item =
        |(key, value): (&str, &Value)| serde_json::json!([key, value.value_type().name(), value_json(value)]);
    metadata.iter().map(item).collect()
}

/// Compares everything except the padding: metadata, and each tensor's name, shape, type and bytes.
fn content_differs(path: &Path, expected: &Json) -> Option<String> {
    let file = GgufFile::open(path).unwrap();
    if metadata_json(file.metadata()) != *expected["kv"].as_array().unwrap() {
        return Some(format!("metadata {:?}", metadata_json(file.metadata())));
    }
    let alignment = file.alignment();
    let golden = expected["tensors"].as_array().unwrap();
    for (index, (tensor, golden)) in file.tensors().iter().zip(golden).enumerate() {
        let dims: Vec<_> = tensor.shape.dims().iter().rev().copied().collect();
        let bytes = file.raw_tensor(index);
        let is_same = golden[0] == tensor.name.as_str()
            && golden[1] == serde_json::json!(dims)
            && golden[2].as_str().is_some_and(|ty| ty.eq_ignore_ascii_case(tensor.ty.name()))
            && sha256(bytes).starts_with(golden[4].as_str().unwrap());
        if !is_same || !file.place(index).offset.is_multiple_of(alignment) {
            return Some(format!("tensor {}", tensor.name));
        }
    }
    (file.tensors().len() != golden.len()).then(|| "number of tensors".to_owned())
}

fn check_outputs(case: &Json, outputs: &serde_json::Map<String, Json>, dir: &Path) -> Result<(), String> {
    for (name, golden) in outputs {
        let path = dir.join(name);
        let bytes = fs_err::read(&path).map_err(|error| error.to_string())?;
        if is_misaligned(golden) {
            if let Some(difference) = content_differs(&path, golden) {
                return Err(difference);
            }
        } else if sha256(&bytes) != golden["sha256"].as_str().unwrap() {
            let difference = content_differs(&path, golden);
            return Err(format!("{name}: {} bytes, {difference:?}, {}", bytes.len(), case["args"]));
        }
    }
    let n_files = fs_err::read_dir(dir).unwrap().count();
    if n_files == outputs.len() { Ok(()) } else { Err(format!("{n_files} files")) }
}

tiered_conformance_tests!(metadata_order_and_bytes_are_the_peers);

/// Every day all rules, and every eightieth type of experts.
fn metadata_order_and_bytes_are_the_peers(dir: &Goldens, tier: Tier) {
    let corpus = dir.join("quant");
    let golden = files::json(corpus.join("meta.json"));
    let mut n_cases = 0;
    let mut wrong = Vec::new();
    let cases = golden["cases"].as_object().unwrap().iter();
    let (experts, rules): (Vec<_>, Vec<_>) = cases.partition(|(name, _)| name.starts_with("moe "));
    for (name, case) in rules.into_iter().chain(tier.some(80, experts)) {
        let out = tempfile::tempdir().unwrap();
        let source = case["source"].as_str().unwrap();
        let target = out.path().join("out.gguf");
        let mut args: Vec<_> =
            case["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap()).collect();
        let same_file = args.contains(&"@same");
        args.retain(|arg| *arg != "@same");
        // Ours keeps the sign.
        args.iter_mut().filter(|arg| **arg == "zz.i32=int:-9").for_each(|arg| *arg = "zz.i32=int:9");
        if args.contains(&"--keep-split") {
            // llama-quantize's parts have no id.
            args.push("--no-split-id");
        }
        args.extend([source, if same_file { source } else { target.to_str().unwrap() }]);
        args.extend([case["ftype"].as_str().unwrap(), "2"]);
        let done = quantize(&corpus.join("meta"), &args);
        let checked = match (done, case["outputs"].as_object()) {
            (Ok(()), Some(outputs)) => check_outputs(case, outputs, out.path()),
            (Err(message), None) => {
                let expected = MESSAGES.iter().find(|row| row.0 == name).map(|row| row.1);
                let is_clean = fs_err::read_dir(out.path()).unwrap().count() == 0;
                if expected.is_some_and(|text| message.contains(text)) && is_clean {
                    Ok(())
                } else {
                    Err(message)
                }
            }
            (Ok(()), None) => Err("an error expected".to_owned()),
            (Err(message), Some(_)) => Err(message),
        };
        if let Err(reason) = checked {
            wrong.push(format!("{name}: {reason}"));
        }
        n_cases += 1;
    }
    assert!(wrong.is_empty(), "{} of {n_cases}:\n{}", wrong.len(), wrong.join("\n"));
    report_cases("metadata rules", n_cases);
}

/// Quantizes one source to every type of a list and compares hashes; every day to every seventh, of each family.
fn every_type(
    tier: Tier,
    cases: &serde_json::Map<String, Json>,
    run_dir: &Path,
    source: &str,
    imatrix: &str,
) -> usize {
    let mut n_cases = 0;
    let mut wrong = Vec::new();
    for (name, golden) in tier.some(7, cases) {
        let out = tempfile::tempdir().unwrap();
        let target: PathBuf = out.path().join("out.gguf");
        let (file_type, flags) = name.split_once(" | ").unwrap_or((name, ""));
        let mut args = vec![source, target.to_str().unwrap(), "--type", file_type];
        match flags {
            "" => {}
            "imatrix" => args.extend(["--imatrix", imatrix]),
            "imatrix.dat" => args.extend(["--imatrix", "smollm2.imatrix.dat"]),
            other => panic!("flags {other}"),
        }
        let found = quantize(run_dir, &args).map(|()| sha256(&fs_err::read(&target).unwrap()));
        let is_same = match (&found, golden["sha256"].as_str()) {
            (Ok(found), Some(golden)) => found == golden,
            (Err(message), None) => {
                message.contains("needs an importance matrix") || message.contains("nothing stands in for")
            }
            _ => false,
        };
        if !is_same {
            wrong.push(format!("{name}: {found:?}"));
        }
        n_cases += 1;
    }
    assert!(wrong.is_empty(), "{} of {n_cases}:\n{}", wrong.len(), wrong.join("\n"));
    n_cases
}

tiered_conformance_tests!(a_small_model_to_every_type_is_the_peers_file);
fn a_small_model_to_every_type_is_the_peers_file(dir: &Goldens, tier: Tier) {
    let corpus = dir.join("quant");
    let golden = files::json(corpus.join("tiny.json"));
    let cases = golden.as_object().unwrap();
    let n_cases = every_type(tier, cases, &corpus.join("meta"), "tiny.gguf", "tiny.imatrix.gguf");
    report_cases("small model, every type", n_cases);
}

#[test]
#[ignore = "needs SmolLM2 and the conformance corpus: set GGUF_SMOLLM2 and GGUF_CONFORMANCE"]
fn smollm2_to_every_type_is_the_peers_file() {
    let corpus = Goldens::corpus().join("quant");
    let golden = files::json(corpus.join("smollm2.json"));
    let run_dir = tempfile::tempdir().unwrap();
    for name in ["smollm2.imatrix.gguf", "smollm2.imatrix.dat"] {
        fs_err::copy(corpus.join(name), run_dir.path().join(name)).unwrap();
    }
    let source = fs_err::canonicalize(smollm2()).unwrap();
    assert_eq!(source.file_name().unwrap(), golden["source"]["file"].as_str().unwrap());
    let args = ["--allow-requantize", source.to_str().unwrap(), "smollm2.f32.gguf", "F32"];
    quantize(run_dir.path(), &args).unwrap();
    let floats = fs_err::read(run_dir.path().join("smollm2.f32.gguf")).unwrap();
    assert_eq!(sha256(&floats), golden["f32"]["sha256"].as_str().unwrap());
    drop(floats);

    let cases = golden["cases"].as_object().unwrap();
    let n_cases = every_type(Tier::Deep, cases, run_dir.path(), "smollm2.f32.gguf", "smollm2.imatrix.gguf");
    report_cases("real model, every type", n_cases);
}

#[test]
fn a_file_keeps_its_byte_order() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    convert_two_layers(Tier::Everyday, dir, "f16");
    programs::run("gguf-convert", dir, &["endian", "in.gguf", "-o", "big.gguf", "--no-sync"]).ok();
    for source in ["in.gguf", "big.gguf"] {
        let output = format!("q-{source}");
        programs::run("gguf-quantize", dir, &[source, &output, "q4_k_m", "--no-sync"]).ok();
        let args =
            ["ladder", source, "-o", source.trim_end_matches(".gguf"), "--types", "q4_k_m", "--no-sync"];
        programs::run("gguf-quantize", dir, &args).ok();
    }
    let order = |name: &str| GgufFile::open(&dir.join(name)).unwrap().endian();
    assert_eq!((order("q-in.gguf"), order("q-big.gguf")), (Endian::Little, Endian::Big));
    programs::run("gguf-convert", dir, &["endian", "q-big.gguf", "-o", "back.gguf", "--no-sync"]).ok();
    let read = |name: &str| fs_err::read(dir.join(name)).unwrap();
    assert!(read("back.gguf") == read("q-in.gguf"), "the values differ");
    assert!(read("big/big-Q4_K_M.gguf") == read("q-big.gguf"), "a ladder differs from a run of its own");
}

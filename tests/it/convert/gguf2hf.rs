//! Conversion back: a GGUF becomes a checkpoint, which gives the same GGUF again.

use std::path::Path;

use gguf_foundry::arch::{OutType, Registry};
use gguf_foundry::checkpoint::Checkpoint;
use gguf_foundry::convert::{Conversion, ConvertOptions, ToHfError, ToHfOptions, ToHfReport, gguf_to_hf};
use gguf_foundry::core::limits::Limits;
use gguf_foundry::core::progress::Silent;
use gguf_foundry::core::simd::SimdLevel;
use gguf_foundry::core::{ElementType, TensorSource, WeightSource};
use gguf_foundry::gguf::{Array, GgufFile, Value, WriteOptions};
use gguf_foundry::quantize::{self, Input, QuantizeOptions, QuantizePlan};

use crate::support::goldens::{Goldens, conformance_tests};
use crate::support::programs::{self, Outcome};
use crate::support::tiers::{Tier, two_tiers};
use crate::support::{files, fixture, names, report_cases};
use crate::testkit::memory::write_source;

/// Cases of the corpus that are restored tensor by tensor.
const CASES: [&str; 24] = [
    "baichuan",
    "chatglm3",
    "glm",
    "glm4",
    "gpt_oss",
    "granite",
    "llama",
    "llama_f32_sharded",
    "llama_headdim_bias",
    "llama_rope_linear",
    "llama_rope_llama3",
    "llama_split",
    "llama_tied_f16",
    "mistral",
    "mixtral",
    "olmo",
    "orion",
    "qwen1",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "smollm3",
    "starcoder2",
    "xverse",
];

fn to_gguf(dir: &Path, target: &Path, file_type: Option<OutType>, tokenizer: bool) -> GgufFile {
    let options = ConvertOptions { file_type, tokenizer, ..ConvertOptions::default() };
    let conversion =
        Conversion::plan(dir, &options).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    write_source(target, conversion.metadata(), &conversion);
    GgufFile::open(target).unwrap()
}

fn to_hf(file: &GgufFile, dir: &Path, ty: Option<ElementType>) -> Result<ToHfReport, ToHfError> {
    let options = ToHfOptions {
        ty,
        max_shard_bytes: 1 << 20,
        memory_bytes: 8 << 20,
        sync: false,
        level: SimdLevel::detect(),
        ..ToHfOptions::default()
    };
    gguf_to_hf(&Registry::embedded().unwrap(), file.metadata(), file, dir, &options, &Silent)
}

/// Tensors with their bytes, and all keys except those derived from the directory's name; both sorted.
type Content = (Vec<(String, String, Vec<u8>)>, Vec<(String, String)>);

fn content(file: &GgufFile) -> Content {
    let tensors = file.tensors().iter().enumerate().map(|(at, tensor)| {
        (tensor.name.clone(), format!("{} {}", tensor.shape, tensor.ty), file.raw_tensor(at).to_vec())
    });
    let mut tensors: Vec<_> = tensors.collect();
    tensors.sort();
    let keys = file
        .metadata()
        .iter()
        .filter(|(key, _)| !["general.name", "general.file_type"].contains(key))
        .map(|(key, value)| (key.to_owned(), format!("{value:?}")));
    let mut keys: Vec<_> = keys.collect();
    keys.sort();
    (tensors, keys)
}

#[test]
fn the_bundled_model_comes_back_byte_for_byte() {
    let out = tempfile::tempdir().unwrap();
    let first = to_gguf(&fixture("tiny-llama"), &out.path().join("first.gguf"), None, true);
    let dir = out.path().join("tiny-llama");
    let report = to_hf(&first, &dir, None).unwrap();
    assert_eq!((report.class.as_str(), report.ty), ("LlamaForCausalLM", ElementType::Bf16));
    assert_eq!(report.lost, Vec::<String>::new());
    let again = to_gguf(&dir, &out.path().join("again.gguf"), None, true);
    // The order of the tokenizer's optional keys follows its files, so keys are compared sorted.
    let (found, want) = (content(&again), content(&first));
    assert_eq!(found.1, want.1);
    assert_eq!(found.0, want.0);
}

two_tiers!(quantized_weights_come_back_as_the_values_they_decode_to);
fn quantized_weights_come_back_as_the_values_they_decode_to(tier: Tier) {
    let out = tempfile::tempdir().unwrap();
    let wide = to_gguf(&fixture("tiny-llama"), &out.path().join("f32.gguf"), Some(OutType::F32), true);
    for name in tier.some(3, ["Q4_K_M", "Q8_0", "Q4_0", "Q5_1", "Q2_K"]) {
        let options = QuantizeOptions::new(quantize::FileType::parse(name).unwrap());
        let plan = QuantizePlan::new(&Input::file(&wide), &options, None).unwrap();
        let path = out.path().join(format!("{name}.gguf"));
        let write = WriteOptions { sync: false, ..WriteOptions::default() };
        plan.write(&path, &write, &Silent).unwrap();
        let file = GgufFile::open(&path).unwrap();
        let dir = out.path().join(name);
        assert_eq!(to_hf(&file, &dir, None).unwrap().ty, ElementType::F32);
        let back = to_gguf(&dir, &out.path().join("back.gguf"), Some(OutType::F32), true);
        for (at, tensor) in back.tensors().iter().enumerate() {
            let source = file.tensor_index(&tensor.name).unwrap();
            let mut want = vec![0.0; tensor.shape.n_elems() as usize];
            let ty = file.tensors()[source].ty;
            gguf_foundry::quant::dequantize(ty, SimdLevel::Scalar, file.raw_tensor(source), &mut want)
                .unwrap();
            let want: Vec<u8> = want.into_iter().flat_map(f32::to_le_bytes).collect();
            assert_eq!(back.raw_tensor(at), want, "{name} {}", tensor.name);
        }
    }
}

conformance_tests!(every_card_runs_backwards);
fn every_card_runs_backwards(corpus: &Goldens) {
    let mut n_cases = 0;
    for case in CASES {
        let out = tempfile::tempdir().unwrap();
        let Some(hf) = corpus.find(format!("arch/{case}/hf")) else { continue };
        let first = to_gguf(&hf, &out.path().join("first.gguf"), Some(OutType::F32), false);
        let dir = out.path().join("hf");
        let report = to_hf(&first, &dir, None).unwrap_or_else(|error| panic!("{case}: {error}"));
        assert!(report.n_tensors > 0);
        let again = to_gguf(&dir, &out.path().join("again.gguf"), Some(OutType::F32), false);
        let (mut found, want) = (content(&again), content(&first));
        // The way back states the base that the runtime takes where there is none.
        found.1.retain(|row| {
            want.1.iter().any(|own| own.0 == row.0)
                || !row.0.ends_with(".rope.freq_base")
                || row.1 != "F32(10000.0)"
        });
        assert_eq!(found.0, want.0, "{case}");
        assert_eq!(found.1, want.1, "{case}");
        n_cases += 1;
    }
    report_cases("gguf2hf", n_cases);
}

conformance_tests!(experts_in_blocks_come_back_as_floats);

/// Blocks of 4-bit floats come back as floats, transposed as in a checkpoint of floats.
fn experts_in_blocks_come_back_as_floats(corpus: &Goldens) {
    let out = tempfile::tempdir().unwrap();
    let hf = corpus.join("arch/gpt_oss_mxfp4/hf");
    let first = to_gguf(&hf, &out.path().join("first.gguf"), Some(OutType::F32), false);
    let dir = out.path().join("hf");
    let report = to_hf(&first, &dir, None).unwrap();
    assert_eq!((report.ty, report.lost), (ElementType::Bf16, Vec::<String>::new()));
    let config = files::json(dir.join("config.json"));
    assert_eq!(config["rope_scaling"]["truncate"], false);
    assert_eq!(config["model_type"], "gpt_oss");
    let back = Checkpoint::open(&dir, &Limits::default()).unwrap();
    let shape = |name: &str| {
        let found = back.weights().iter().find(|weight| weight.name.ends_with(name));
        found.map(|weight| weight.shape.dims().to_vec()).unwrap()
    };
    assert_eq!(shape("layers.1.mlp.experts.gate_up_proj"), [4, 64, 128]);
    assert_eq!(shape("layers.1.mlp.experts.gate_up_proj_bias"), [4, 128]);

    let again = to_gguf(&dir, &out.path().join("again.gguf"), Some(OutType::F32), false);
    assert_eq!(again.tensors().len(), first.tensors().len());
    let mut n_blocks = 0;
    for (at, tensor) in first.tensors().iter().enumerate() {
        let found = again.tensor_index(&tensor.name).unwrap();
        assert_eq!(again.tensors()[found].shape, tensor.shape, "{}", tensor.name);
        let mut want = vec![0.0; tensor.shape.n_elems() as usize];
        gguf_foundry::quant::dequantize(tensor.ty, SimdLevel::Scalar, first.raw_tensor(at), &mut want)
            .unwrap();
        let want: Vec<u8> = want.into_iter().flat_map(f32::to_le_bytes).collect();
        assert_eq!(again.raw_tensor(found), want, "{}", tensor.name);
        n_blocks += usize::from(tensor.ty.is_quantized());
    }
    assert_eq!(n_blocks, 6);
    report_cases("gguf2hf: blocks", 1);
}

#[test]
fn a_directory_with_something_in_it_is_left_alone() {
    let out = tempfile::tempdir().unwrap();
    let file = to_gguf(&fixture("tiny-llama"), &out.path().join("model.gguf"), None, true);
    let error = to_hf(&file, out.path(), None).unwrap_err();
    assert_eq!(error.to_string(), format!("{}: directory is not empty", out.path().display()));
    assert_eq!(fs_err::read_dir(out.path()).unwrap().count(), 1);
}

fn run(dir: &Path, args: &[&str]) -> Outcome {
    programs::run("gguf-convert", dir, &[&["gguf2hf", "--no-sync"], args].concat())
}

/// Writes the bundled model with other texts for some tokens.
fn with_tokens(path: &Path, edit: impl FnOnce(&mut Vec<Vec<u8>>)) {
    const TOKENS: &str = "tokenizer.ggml.tokens";
    let conversion = Conversion::plan(&fixture("tiny-llama"), &ConvertOptions::default()).unwrap();
    let mut metadata = conversion.metadata().clone();
    let Some(Value::Array(Array::String(tokens))) = metadata.get(TOKENS) else { panic!("no tokens") };
    let mut tokens = tokens.clone();
    edit(&mut tokens);
    metadata.set(TOKENS, Value::Array(Array::String(tokens)));
    write_source(path, &metadata, &conversion);
}

/// Containers such as FastLLM's hold tokens as bytes.
#[test]
fn a_vocabulary_that_json_cannot_hold_is_left_out() {
    let temp = tempfile::tempdir().unwrap();
    for (name, why) in
        [("bytes", "`tokenizer.ggml.tokens[300]` is not UTF-8"), ("twice", "is token 299 and token 300")]
    {
        let (file, out) = (format!("{name}.gguf"), format!("{name}-hf"));
        with_tokens(&temp.path().join(&file), |tokens| {
            tokens[300] = if name == "bytes" { b"\xff\xfe".to_vec() } else { tokens[299].clone() };
        });
        let err = run(temp.path(), &[&file, "-o", &out]).ok().err;
        assert!(err.contains("no tokenizer files are written: ") && err.contains(why), "{err}");
        let dir = temp.path().join(&out);
        assert_eq!(names(&dir), ["config.json", "model.safetensors"]);
        let config = files::json(dir.join("config.json"));
        assert!(config["bos_token_id"].is_u64() && config["eos_token_id"].is_u64(), "{config}");
        assert_eq!(Checkpoint::open(&dir, &Limits::default()).unwrap().weights().len(), 38);
    }
}

#[test]
fn the_tokenizer_is_left_out_on_purpose() {
    let temp = tempfile::tempdir().unwrap();
    to_gguf(&fixture("tiny-llama"), &temp.path().join("model.gguf"), None, true);
    run(temp.path(), &["model.gguf", "-o", "with"]).says_only(0, "");
    run(temp.path(), &["model.gguf", "-o", "without", "--no-tokenizer"]).says_only(0, "");
    assert_eq!(names(temp.path().join("without")), ["config.json", "model.safetensors"]);
    let read = |name: &str| fs_err::read(temp.path().join(name)).unwrap();
    assert_eq!(read("without/config.json"), read("with/config.json"));
    assert_eq!(read("without/model.safetensors"), read("with/model.safetensors"));
}

/// A limit on the file size simulates a full disk.
#[cfg(unix)]
#[test]
fn a_full_disk_leaves_nothing() {
    let temp = tempfile::tempdir().unwrap();
    to_gguf(&fixture("tiny-llama"), &temp.path().join("model.gguf"), None, true);
    fs_err::create_dir_all(temp.path().join("empty")).unwrap();
    for out in ["new", "deep/er/new", "empty"] {
        let script = "trap '' XFSZ; ulimit -f 1024; exec \"$0\" gguf2hf model.gguf -o \"$1\"";
        let mut command = std::process::Command::new("bash");
        command.current_dir(temp.path()).args(["-c", script, programs::path("gguf-convert"), out]);
        let err = programs::finish(&mut command).exits_with(1).err;
        assert!(err.contains("File too large"), "{err}");
        assert_eq!(names(temp.path()), ["empty", "model.gguf"], "{out}");
        assert_eq!(names(temp.path().join("empty")), [""; 0]);
    }
}

#[test]
fn what_is_in_the_way_is_said_before_the_weights_are_read() {
    let temp = tempfile::tempdir().unwrap();
    to_gguf(&fixture("tiny-llama"), &temp.path().join("model.gguf"), None, false);
    run(temp.path(), &["model.gguf", "-o", "model.gguf"])
        .says_only(1, "error: model.gguf: not a directory\n\nhint: name a directory that is new or empty\n");
}

#[test]
fn what_is_no_language_model_is_refused_by_its_kind() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let model = fixture("tiny-llama");
    let args = ["hf2gguf", model.to_str().unwrap(), "-o", "v.gguf", "--vocab-only", "--no-sync"];
    programs::run("gguf-convert", dir, &args).ok();
    fs_err::write(dir.join("text.txt"), "a text").unwrap();
    for (program, line) in [
        ("gguf-convert", "gguf2hf v.gguf -o hf"),
        ("gguf-verify", "imatrix v.gguf -f text.txt -o i.gguf"),
        ("gguf-verify", "logits v.gguf -f text.txt"),
        ("gguf-quantize", "ladder v.gguf -o out --types q4_0 --calibration text.txt"),
    ] {
        let args: Vec<&str> = line.split(' ').collect();
        programs::run(program, dir, &args)
            .says(1, "v.gguf: this is a vocabulary without weights, not a language model");
    }
    assert_eq!(files::names(dir), ["text.txt", "v.gguf"]);
}

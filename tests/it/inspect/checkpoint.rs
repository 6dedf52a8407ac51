//! Descriptions of checkpoints agree with conversions.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use gguf_foundry::arch::OutType;
use gguf_foundry::checkpoint::ModelDir;
use gguf_foundry::checkpoint::fastllm::FlmFile;
use gguf_foundry::convert::{
    Codes, Conversion, ConvertError, ConvertOptions, FlmOptions, ModelSource, StoredClass,
};
use gguf_foundry::core::progress::Silent;
use gguf_foundry::core::{ElementType, Shape, WeightMeta};
use gguf_foundry::dequant::{Encoding, Encodings, stored_classes};
use gguf_foundry::gguf::{LayoutOptions, WriteOptions, write_gguf};
use gguf_foundry::inspect::{Aspect, CheckpointReport, ProblemKind, inspect_checkpoint};
use serde_json::{Value as Json, json};

use super::Bench;
use crate::support::goldens::{Goldens, tiered_conformance_tests};
use crate::support::tiers::Tier;
use crate::support::{files, fixture, programs, report_cases};
use crate::testkit::checkpoints::Safetensors;

fn is_flm(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "flm")
}

fn convert(path: &Path, options: &ConvertOptions) -> Result<Conversion, Box<ConvertError>> {
    let source = if is_flm(path) {
        ModelSource::open_flm(path, &FlmOptions::default(), options)?
    } else {
        ModelSource::open(path, options)?
    };
    Ok(Conversion::of(source, options)?)
}

fn written_bytes(conversion: &Conversion, dir: &Path) -> u64 {
    let target = dir.join("model.gguf");
    let layout = LayoutOptions { pad_header: true, ..LayoutOptions::default() };
    let options = WriteOptions { layout, sync: false, ..WriteOptions::default() };
    write_gguf(&target, conversion.metadata(), conversion, &options, &Silent).unwrap();
    fs_err::metadata(&target).unwrap().len()
}

/// Comparison of descriptions with conversions of the same checkpoint.
struct Checker {
    out: tempfile::TempDir,
    n_described: usize,
    n_written: usize,
    n_problems: usize,
}

impl Checker {
    fn new() -> Self {
        Self { out: tempfile::tempdir().unwrap(), n_described: 0, n_written: 0, n_problems: 0 }
    }

    /// Describes a checkpoint; `None` if it is not one. With `writes` the files are also written.
    fn check(&mut self, path: &Path, writes: bool) -> Option<CheckpointReport> {
        let place = path.display();
        let defaults = ConvertOptions::default();
        let report = match inspect_checkpoint(path, &defaults) {
            Ok(report) => report,
            Err(error) => {
                let opens = if is_flm(path) {
                    FlmFile::open(path, &defaults.limits).is_ok()
                } else {
                    ModelDir::open(path, &defaults.limits).is_ok()
                };
                assert!(!opens, "{place}: {error}");
                return None;
            }
        };
        self.n_described += 1;
        self.n_problems += report.problems.len();
        let whole = convert(path, &defaults);
        let has_problem = report.problems.iter().any(|problem| problem.part != Aspect::Output);
        assert_eq!(whole.is_err(), has_problem, "{place}: {:?}: {:?}", whole.err(), report.problems);

        let bare = ConvertOptions { tokenizer: false, ..ConvertOptions::default() };
        match convert(path, &bare) {
            Err(error) => {
                assert!(report.outputs.is_empty(), "{place}");
                // Sources are opened in the same way; errors of a card may come in another order.
                let is_source = matches!(*error, ConvertError::Dequant(_));
                let message = error.to_string();
                let is_told = report.problems.iter().any(|problem| problem.message == message);
                assert!(is_told || !is_source, "{place}: {message}: {:?}", report.problems);
            }
            Ok(conversion) => {
                let conversion = whole.unwrap_or(conversion);
                let auto = &report.outputs[0];
                let name = conversion.encoding();
                assert_eq!((auto.option, &auto.file_type), ("auto", &name), "{place}");
                assert_eq!(auto.file_name, conversion.default_file_name(&name), "{place}");
                let quantized = report.quantization.as_ref().is_some_and(|own| own.n_quantized > 0);
                let native = ConvertOptions {
                    codes: Codes::Native { allow_rounding: false },
                    file_type: Some(OutType::F32),
                    tokenizer: report.vocabulary.is_some(),
                    ..ConvertOptions::default()
                };
                let is_readable = report.problems.iter().all(|problem| problem.part != Aspect::Output);
                assert_eq!(report.outputs.len(), 1 + usize::from(quantized && is_readable), "{place}");
                if writes {
                    assert_eq!(auto.file_bytes, written_bytes(&conversion, self.out.path()), "{place}");
                    self.n_written += 1;
                }
                if let Some(output) = report.outputs.get(1) {
                    let conversion = convert(path, &native).unwrap();
                    let written = writes.then(|| written_bytes(&conversion, self.out.path()));
                    let kept: usize = conversion.kept().iter().map(|role| role.n_tensors).sum();
                    let told =
                        output.types.iter().filter(|row| row.ty.is_quantized()).map(|row| row.n_tensors);
                    assert_eq!(told.sum::<usize>(), kept, "{place}: native");
                    if let Some(n_bytes) = written {
                        assert_eq!(output.file_bytes, n_bytes, "{place}: native");
                        self.n_written += 1;
                    }
                }
            }
        }
        // The keys exist even if their values are unknown.
        let document = serde_json::to_value(&report).unwrap();
        let keys: Vec<_> = document.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, KEYS, "{place}");
        Some(report)
    }

    fn report(&self, subject: &str) {
        println!("{subject}: {} files written, {} problems", self.n_written, self.n_problems);
        report_cases(subject, self.n_described);
    }
}

const KEYS: [&str; 16] = [
    "path",
    "name",
    "model_type",
    "classes",
    "architecture",
    "container",
    "weights",
    "parameters",
    "types",
    "quantization",
    "tokenizer",
    "outputs",
    "problems",
    "warnings",
    "tensors",
    "account",
];

/// Storage of the weights of some cases: all descriptions, each once, in order.
const STORED: &[(&str, &[&str])] = &[
    ("autoround-awq", &["AutoRound 4 bit, groups of 32, asymmetric"]),
    ("autoround-gptq", &["AutoRound 4 bit, groups of 32"]),
    ("awq-gemm-g32", &["AWQ 4 bit, groups of 32, asymmetric"]),
    ("bitnet-bitlinear", &["BitNet ternary, one scale"]),
    ("bnb-fp4", &["bitsandbytes FP4, blocks of 64"]),
    ("bnb-int8", &["bitsandbytes INT8, scales by row"]),
    ("bnb-nf4-nested", &["bitsandbytes NF4, blocks of 64, nested scales"]),
    ("ct-fp8-static-tensor", &["compressed-tensors FP8 E4M3, one scale"]),
    (
        "ct-mixed-int4-fp8",
        &["compressed-tensors 4 bit, groups of 32", "compressed-tensors FP8 E4M3, scales by row"],
    ),
    ("ct-mxfp8", &["compressed-tensors MXFP8 E4M3, groups of 32"]),
    ("ct-nvfp4", &["compressed-tensors NVFP4, groups of 16"]),
    ("ct-old-actorder", &["compressed-tensors 4 bit, groups of 32, activation order"]),
    ("ct-sparse-24-bitmask", &["compressed-tensors 2:4 sparse, bit mask, BF16 values"]),
    ("fp8-block128", &["FP8 E4M3, blocks of 128x128"]),
    ("fp8-fbgemm", &["FBGEMM FP8 E4M3, scales by row"]),
    ("fp8-tensor-static", &["FP8 E4M3, one scale"]),
    ("gptq-3bit-g32-asym-desc", &["GPTQ 3 bit, groups of 32, asymmetric, activation order"]),
    ("gptq-8bit-g-1-sym", &["GPTQ 8 bit, scales by row"]),
    ("gptq-dynamic-mixed", &["GPTQ 4 bit, groups of 32", "GPTQ 8 bit, groups of 64"]),
    ("hqq-2bit-g32-axis0", &["HQQ 2 bit, groups of 32 along axis 0"]),
    ("modelopt-nvfp4", &["ModelOpt NVFP4, groups of 16"]),
    ("mxfp4-gpt-oss", &["MXFP4, groups of 32"]),
    ("quanto-int4", &["quanto 4 bit, groups of 128, float shift"]),
    ("quanto-int8", &["quanto 8 bit, scales by row"]),
];

fn quantized_classes(report: &CheckpointReport) -> impl Iterator<Item = &StoredClass> {
    report.quantization.iter().flat_map(|own| own.classes.iter().map(|class| &class.stored))
}

fn stored_texts(report: &CheckpointReport) -> Vec<String> {
    let mut texts: Vec<String> = quantized_classes(report).map(StoredClass::text).collect();
    texts.sort();
    texts.dedup();
    texts
}

/// Quantized cases of a tier: every day the first one of each method, which is the first word of a name.
fn quantized_cases(corpus: &Goldens, tier: Tier) -> Vec<PathBuf> {
    let mut seen = BTreeSet::new();
    let mut is_new = |case: &Path| seen.insert(files::name(case).split('-').next().unwrap().to_owned());
    let cases = files::entries(corpus.join("prequant")).into_iter();
    cases.filter(|case| case.join("case.json").is_file() && (tier.is_deep() || is_new(case))).collect()
}

tiered_conformance_tests!(every_quantized_case_is_described);
fn every_quantized_case_is_described(corpus: &Goldens, tier: Tier) {
    let mut checker = Checker::new();
    let (mut n_ok, mut n_refused, mut n_texts) = (0, 0, 0);
    let cases = quantized_cases(corpus, tier);
    for case in &cases {
        let about = files::json(case.join("case.json"));
        // Errors that headers do not show are found when rows are read.
        let report = checker.check(&case.join("hf"), about["outcome"] != "error").unwrap();
        let is_refused = report
            .problems
            .iter()
            .any(|problem| matches!(problem.part, Aspect::Quantization | Aspect::Weights));
        if about["outcome"] == "error" {
            let opens = ModelSource::open(&case.join("hf"), &ConvertOptions::default()).is_ok();
            assert_eq!(opens, !is_refused, "{}", case.display());
            n_refused += usize::from(is_refused);
            continue;
        }
        assert!(!is_refused, "{}: {:?}", case.display(), report.problems);
        n_ok += 1;
        let expected = files::json(case.join("expected.json"));
        let tensors = expected["tensors"].as_object().unwrap_or_else(|| expected.as_object().unwrap());
        let (n, n_elems) = (report.n_weights.unwrap(), report.n_elems.unwrap());
        let elems =
            |row: &Json| row["shape"].as_array().unwrap().iter().filter_map(Json::as_u64).product::<u64>();
        assert_eq!((n, n_elems), (tensors.len(), tensors.values().map(elems).sum()), "{}", case.display());
        // The corpus lists the quantized tensors.
        let quantized = tensors.values().filter(|row| row["quantized"] == true).count() as u64;
        let told: u64 = quantized_classes(&report).map(|class| class.n_weights).sum();
        assert_eq!(told, quantized, "{}", case.display());
        if let Some((_, texts)) = STORED.iter().find(|row| row.0 == files::name(case)) {
            assert_eq!(stored_texts(&report), *texts, "{}", case.display());
            n_texts += 1;
        }
    }
    let here = STORED.iter().filter_map(|row| corpus.find(format!("prequant/{}", row.0)));
    assert_eq!(n_texts, here.filter(|case| cases.contains(case)).count());
    println!("{n_ok} described whole, {n_refused} refused");
    checker.report("quantized checkpoints, described");
}

tiered_conformance_tests!(every_architecture_case_is_described);
fn every_architecture_case_is_described(corpus: &Goldens, tier: Tier) {
    let mut checker = Checker::new();
    for case in tier.some(9, files::entries(corpus.join("arch"))) {
        let report = checker.check(&case.join("hf"), true).expect("every case opens");
        if let Some(architecture) = &report.architecture {
            let about = files::json(case.join("case.json"));
            match about["gguf_arch"].as_str() {
                Some(gguf) => assert_eq!(architecture.gguf, gguf, "{}", case.display()),
                // Cases that the reference refuses may convert here.
                None => assert_ne!(about["converter"]["f32"], "ok", "{}", case.display()),
            }
            assert!(!report.outputs.is_empty(), "{}", case.display());
        }
        if report.architecture.is_none() {
            let found = report.problems.iter().find(|problem| problem.part == Aspect::Architecture).unwrap();
            assert!(
                found.kind == ProblemKind::Unsupported && !found.hints.is_empty(),
                "{}: {found:?}",
                case.display()
            );
        }
    }
    checker.report("architectures, described");
}

tiered_conformance_tests!(other_containers_are_described);
fn other_containers_are_described(corpus: &Goldens, tier: Tier) {
    let mut checker = Checker::new();
    let formats = corpus.join("formats");
    let cases = |dir: &str| tier.some(3, files::entries(formats.join(dir)));
    let (mut n_flm, mut n_npu, mut n_torch) = (0, 0, 0);
    for case in cases("flm") {
        let Some(report) = checker.check(&case.join("model.flm"), true) else { continue };
        assert_eq!(report.container.as_ref().unwrap().format, "FastLLM");
        n_flm += 1;
        if files::name(&case) == "llama-int4g32" {
            assert_eq!(stored_texts(&report), ["FastLLM INT4_GROUP, groups of 32"]);
        }
    }
    for case in cases("msmodelslim") {
        let Some(report) = checker.check(&case, true) else { continue };
        assert_eq!(report.container.as_ref().unwrap().format, "msModelSlim");
        n_npu += 1;
        if files::name(&case) == "mixed-types" {
            let texts = [
                "msModelSlim W8A16, scales by row",
                "msModelSlim W8A16, scales by row, asymmetric",
                "msModelSlim W8A8, scales by row",
                "msModelSlim W8A8_DYNAMIC, scales by row",
            ];
            assert_eq!(stored_texts(&report), texts);
        }
    }
    for case in cases("pytorch") {
        let Some(report) = checker.check(&case, true) else { continue };
        n_torch += 1;
        if files::name(&case) == "llama-single" {
            assert_eq!(report.container.unwrap().format, "PyTorch");
        }
    }
    for dir in ["flm/hostile", "msmodelslim/hostile", "pytorch/hostile"] {
        for case in cases(dir) {
            checker.check(&case, false);
        }
    }
    println!("{n_flm} FastLLM, {n_npu} msModelSlim, {n_torch} PyTorch");
    let least = if corpus.is_whole() { (30, 30, 5) } else { tier.of((2, 2, 0), (15, 15, 0)) };
    assert!(n_flm > least.0 && n_npu > least.1 && n_torch > least.2, "{n_flm} {n_npu} {n_torch}");
    checker.report("other containers, described");
}

/// Directory with a configuration and tensors of zeros.
fn checkpoint(config: &Json, tensors: &[(&str, &str, &[u64])]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut file = Safetensors::default();
    for (name, dtype, dims) in tensors {
        let elem_bytes = match *dtype {
            "F8_E4M3" | "U8" => 1,
            "BF16" | "F16" => 2,
            _ => 4,
        };
        file.add(name, dtype, dims, &vec![0; (dims.iter().product::<u64>() * elem_bytes) as usize]);
    }
    file.write_checkpoint(dir.path(), config);
    dir
}

const FP8: &[(&str, &str, &[u64])] = &[
    ("model.layers.0.mlp.up_proj.weight", "F8_E4M3", &[256, 128]),
    ("model.layers.0.mlp.up_proj.weight_scale_inv", "F32", &[2, 1]),
    ("model.layers.0.mlp.up_proj.input_scale", "F32", &[1]),
    ("model.layers.1.mlp.up_proj.weight", "F8_E4M3", &[256, 128]),
    ("model.layers.1.mlp.up_proj.weight_scale_inv", "F32", &[2, 1]),
    ("model.layers.1.mlp.down_proj.weight", "BF16", &[128, 256]),
    ("model.layers.1.mlp.gate_proj.weight", "BF16", &[256, 128]),
];

#[test]
fn what_is_not_supported_does_not_hide_the_rest() {
    let bench = Bench::new();
    let config = json!({
        "architectures": ["LlamaForCasualLM"],
        "model_type": "x",
        "quantization_config": {
            "quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["gate_proj"],
        },
    });
    let dir = checkpoint(&config, FP8);
    let path = dir.path().to_str().unwrap();
    let out = bench.run(&["checkpoint", path]).says_only(0, "").out;
    insta::assert_snapshot!(out.replace(path, "DIR"), @r"
    DIR

    class         LlamaForCasualLM, model_type x
    architecture  not supported
    weights       safetensors, 1 file, 193 KiB
    parameters    131 072 in 4 tensors
    quantization  FP8, 2 weights
    tokenizer     not readable

    type     tensors  elements      size
    BF16           2    65 536   128 KiB
    F8_E4M3        2    65 536  64.0 KiB
    F32            3         5      20 B

    quantized weights           count  stored as                    bits per weight
    model.layers.*.mlp.up_proj      2  FP8 E4M3, blocks of 128x128             8.00
    left out: 1 tensor: input_scale
    plain floats, though the configuration targets them: 1 weight: `model.layers.1.mlp.down_proj.weight`

    not supported
      architecture: no architecture card for class `LlamaForCasualLM`
        hint: the checkpoint is most like card `llama`, which knows 3 of its 3 kinds of tensors and 0 of 0 keys of config.json
        hint: similar classes: LlamaForCausalLM, Llama4ForCausalLM
        hint: list all classes with `gguf-convert archs`
        hint: write a first card with `gguf-convert draft DIR > my.toml`, convert with `--card my.toml`
      tokenizer: DIR: no tokenizer found
        spm: tokenizer.model is missing
        llama_hf: tokenizer.json is missing
        bpe: tokenizer.json is missing
        hint: put tokenizer.json or tokenizer.model of the original model next to config.json
        hint: `--no-tokenizer` writes the file without a vocabulary
    ");
    let found = bench.json(&["checkpoint", path], 0);
    assert_eq!(
        found["quantization"],
        json!({
            "method": "FP8",
            "classes": [{
                "weights": "model.layers.*.mlp.up_proj", "method": "FP8", "form": "FP8 E4M3, blocks of 128x128",
                "count": 2, "elements": 65536, "bytes": 65552, "bits_per_weight": 65552.0 * 8.0 / 65536.0,
                "auto": [], "native": [],
            }],
            "left_out": ["model.layers.0.mlp.up_proj.input_scale"],
            "plain_targets": ["model.layers.1.mlp.down_proj.weight"],
        })
    );

    // A scale is missing: the checkpoint is broken, but the files are still described.
    let broken: Vec<_> =
        FP8.iter().filter(|row| !row.0.ends_with("1.mlp.up_proj.weight_scale_inv")).copied().collect();
    let dir = checkpoint(&config, &broken);
    let found = bench.json(&["checkpoint", dir.path().to_str().unwrap()], 0);
    let problem = &found["problems"][0];
    assert_eq!((&problem["part"], &problem["kind"]), (&json!("quantization"), &json!("broken")));
    assert_eq!(
        problem["message"],
        json!("tensor `model.layers.1.mlp.up_proj.weight`: F8_E4M3 elements without a scale")
    );
    assert_eq!((&found["types"][0]["tensors"], &found["outputs"]), (&json!(2), &json!([])));

    // Weights are missing, but the configuration is still described.
    fs_err::remove_file(dir.path().join("model.safetensors")).unwrap();
    let found = bench.json(&["checkpoint", dir.path().to_str().unwrap()], 0);
    assert_eq!(found["problems"][0]["part"], json!("weights"));
    assert_eq!((&found["container"], &found["classes"]), (&json!(null), &json!(["LlamaForCasualLM"])));
}

/// Llama of one layer in GPTQ, with one matrix as floats.
fn gptq() -> tempfile::TempDir {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 64,
        "rms_norm_eps": 1e-5, "max_position_embeddings": 64,
        "quantization_config": { "quant_method": "gptq", "bits": 4, "group_size": 32, "sym": true, "desc_act": false },
    });
    let mut tensors: Vec<(String, &str, Vec<u64>)> = Vec::new();
    let mut add = |name: &str, dtype, dims: &[u64]| tensors.push((name.to_owned(), dtype, dims.to_vec()));
    for name in ["model.embed_tokens", "lm_head"] {
        add(&format!("{name}.weight"), "BF16", &[64, 64]);
    }
    for name in ["model.norm", "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm"] {
        add(&format!("{name}.weight"), "BF16", &[64]);
    }
    let (wide, narrow) = (128, 64);
    for (name, n_out, n_in) in [
        ("self_attn.q_proj", narrow, narrow),
        ("self_attn.k_proj", narrow, narrow),
        ("self_attn.o_proj", narrow, narrow),
        ("mlp.gate_proj", wide, narrow),
        ("mlp.up_proj", wide, narrow),
        ("mlp.down_proj", narrow, wide),
    ] {
        let module = format!("model.layers.0.{name}");
        add(&format!("{module}.qweight"), "I32", &[n_in / 8, n_out]);
        add(&format!("{module}.qzeros"), "I32", &[n_in / 32, n_out / 8]);
        add(&format!("{module}.scales"), "F16", &[n_in / 32, n_out]);
    }
    add("model.layers.0.self_attn.v_proj.weight", "F16", &[64, 64]);
    add("model.layers.0.self_attn.k_scale", "F32", &[1]);
    let rows: Vec<_> = tensors.iter().map(|(name, dtype, dims)| (name.as_str(), *dtype, &dims[..])).collect();
    checkpoint(&config, &rows)
}

#[test]
fn plans_and_summaries_say_how_weights_are_stored() {
    let dir = gptq();
    let run = |args: &[&str]| {
        let all = [&["hf2gguf", ".", "--no-tokenizer", "--no-sync", "-o", "out.gguf"], args].concat();
        programs::run("gguf-convert", dir.path(), &all).ok().out
    };
    let plan = run(&["--dry-run"]);
    let (stored, tensors) = plan.split_once("\n\n").unwrap();
    insta::assert_snapshot!(stored, @r"
    quantized weights                                   count  stored as                 bits per weight  becomes
    model.layers.*.mlp.{down_proj, gate_proj, up_proj}      3  GPTQ 4 bit, groups of 32             4.62  BF16
    model.layers.*.self_attn.{k_proj, o_proj, q_proj}       3  GPTQ 4 bit, groups of 32             4.62  BF16
    left out: 1 tensor: k_scale
    plain floats, though the configuration targets them: 1 weight: `model.layers.0.self_attn.v_proj.weight`
    `--type native` would keep the codes of 6 tensors exactly: Q5_0
    ");
    assert!(tensors.starts_with("tensor "), "{tensors}");
    assert!(run(&[]).starts_with(stored));
    // The statement about the type holds for the file, and `native` is not suggested if it is already chosen.
    let native = run(&["--type", "native"]);
    assert!(native.contains("GPTQ 4 bit, groups of 32             4.62  Q5_0"), "{native}");
    assert!(!native.contains("--type native"), "{native}");
    let quantized = run(&["--type", "q8_0"]);
    assert!(quantized.contains("GPTQ 4 bit, groups of 32             4.62  Q8_0"), "{quantized}");
    assert!(!quantized.contains("--type native"), "{quantized}");
    for plan in [run(&["--dry-run", "--type", "q4_k_m"]), run(&["--type", "q4_k_m"])] {
        assert!(plan.contains("`--type native` would keep the codes of 6 tensors exactly: Q5_0"), "{plan}");
    }
    let document: Json = serde_json::from_str(&run(&["--dry-run", "--json"])).unwrap();
    assert_eq!(document["quantization"]["method"], json!("GPTQ"));
    assert_eq!(document["quantization"]["left_out"], json!(["model.layers.0.self_attn.k_scale"]));
    assert_eq!(document["quantization"]["classes"][0]["becomes"], json!(["BF16"]));
}

#[test]
fn plans_of_float_checkpoints_say_nothing_of_quantization() {
    let dir = fixture("tiny-llama");
    let args = ["hf2gguf", dir.to_str().unwrap(), "--dry-run"];
    let plan = programs::run("gguf-convert", Path::new("."), &args).out;
    assert!(plan.starts_with("tensor "), "{plan}");
    assert!(!plan.contains("quantized") && !plan.contains("native"), "{plan}");
}

#[test]
fn equal_weights_share_a_line() {
    let names = [
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.mlp.experts.7.up_proj.weight",
        "model.layers.1.self_attn.q_proj.weight",
        "model.layers.1.self_attn.k_proj.weight",
        "lm_head.weight",
        "model.norm.weight",
    ];
    let shape = Shape::new(vec![4, 64]).unwrap();
    let weights: Vec<WeightMeta> = names
        .iter()
        .map(|&name| WeightMeta { name: name.to_owned(), shape: shape.clone(), ty: ElementType::F32 })
        .collect();
    let encoding = |form: &str| Encoding { method: "GPTQ", form: form.to_owned(), n_bytes: 144 };
    let mut encodings: Encodings =
        names[..5].iter().map(|&name| (name.to_owned(), encoding("4 bit, groups of 32"))).collect();
    encodings.insert(names[3].to_owned(), encoding("8 bit, scales by row"));
    let classes = stored_classes(&weights, &encodings, |index| index == 2);
    let rows: Vec<(&str, String, u64)> =
        classes.iter().map(|(class, _)| (class.pattern.as_str(), class.text(), class.n_weights)).collect();
    let four = || "GPTQ 4 bit, groups of 32".to_owned();
    assert_eq!(
        rows,
        [
            ("model.layers.*.self_attn.q_proj", four(), 1),
            ("model.layers.*.mlp.experts.*.up_proj", four(), 1),
            ("model.layers.*.self_attn.q_proj", four(), 1),
            ("model.layers.*.self_attn.k_proj", "GPTQ 8 bit, scales by row".to_owned(), 1),
            ("lm_head", four(), 1),
        ]
    );
    let (alike, ()) = &stored_classes(&weights, &encodings, |_| ())[0];
    assert_eq!((alike.n_weights, alike.n_elems, alike.n_bytes), (2, 512, 288));
    assert_eq!(alike.bits_per_weight(), 4.5);
}

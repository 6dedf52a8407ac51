//! Coverage of the golden data: a card, type, tokenizer mode, container or method without any data fails here.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use gguf_foundry::arch::OutType;
use gguf_foundry::checkpoint::fastllm::FlmFile;
use gguf_foundry::checkpoint::{Checkpoint, Container};
use gguf_foundry::convert::{ConvertOptions, ModelSource};
use gguf_foundry::core::GgmlType;
use gguf_foundry::core::limits::Limits;
use gguf_foundry::quant::can_quantize;
use gguf_foundry::quantize;
use gguf_foundry::tokenizer::Mode;

use crate::support::goldens::{Goldens, archives};
use crate::support::{files, fixture};

/// Paths below a directory, with `/` between names.
fn files_below(dir: &Path) -> BTreeSet<String> {
    let local = |path: &PathBuf| {
        let names = path.strip_prefix(dir).unwrap().components();
        names.map(|name| name.as_os_str().to_string_lossy()).collect::<Vec<_>>().join("/")
    };
    files::below(dir).iter().map(local).collect()
}

/// Directories in a directory of the corpus.
fn cases(dir: PathBuf) -> Vec<PathBuf> {
    let mut found = files::entries(dir);
    found.retain(|path| path.is_dir());
    found
}

#[test]
fn the_manifest_names_every_archive_and_every_case() {
    let mut packed = files_below(&fixture("golden"));
    assert!(packed.remove("MANIFEST.toml"));
    let archives = archives();
    let named: BTreeSet<String> = archives.iter().map(|archive| archive.name.clone()).collect();
    assert_eq!(packed, named);
    let goldens = Goldens::selection();
    let cases: Vec<&String> = archives.iter().flat_map(|archive| &archive.cases).collect();
    for case in &cases {
        assert!(goldens.find(case).is_some(), "{case} is not in the archives");
    }
    for file in files_below(&goldens) {
        let is_named = |case: &&&String| {
            file.strip_prefix(case.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        assert!(cases.iter().any(|case| is_named(&case)), "{file} belongs to no case");
    }
}

/// Returns true if a test reads a case of the selection: each part has a rule.
fn is_read(goldens: &Goldens, case: &str) -> bool {
    let (part, name) = case.rsplit_once('/').unwrap_or(("", case));
    let has = |file: &str| goldens.find(case).is_some_and(|dir| dir.join(file).exists());
    match part {
        // Files and folders that each have a test.
        "quant" => [
            "blocks",
            "bulk.json",
            "index.json",
            "inputs",
            "meta",
            "meta.json",
            "recipe_models.json",
            "recipes.compact.json",
            "tiny.json",
        ]
        .contains(&name),
        "prequant" => name == "INDEX.json" || has("case.json"),
        "formats/flm" => name == "hostile" || has("expected.json"),
        "formats/msmodelslim" => {
            name == "hostile" || has("quant_model_description.json") || has("config.json")
        }
        // Found by the files in them.
        "arch" | "lora" | "mmproj" | "formats/pytorch" => has("case.json"),
        // `crates/gguf-tokenizer` has the list.
        "vocab" => true,
        "meta" => name == "metadata.json",
        "" => name == "e2e.json",
        _ => false,
    }
}

#[test]
fn every_case_is_read_by_a_test() {
    let goldens = Goldens::selection();
    for archive in archives() {
        for case in &archive.cases {
            assert!(is_read(&goldens, case), "no test reads {case}");
        }
    }
}

#[test]
fn every_type_has_a_case() {
    let goldens = Goldens::selection();
    let mut outtypes: BTreeSet<String> = cases(goldens.join("arch"))
        .iter()
        .flat_map(|case| files_below(case))
        .filter_map(|file| Some(file.strip_prefix("expect-")?.strip_suffix(".json")?.to_owned()))
        .collect();
    // The reference writes ternary types only for BitNet.
    let ternary = files::json(fixture("cards/bitnet/bitnet.json"));
    outtypes.extend(ternary["expect"].as_object().unwrap().keys().cloned());
    // The compiler asks here for a case of each new type.
    let name = |file_type: OutType| match file_type {
        OutType::F32 => "f32",
        OutType::F16 => "f16",
        OutType::Bf16 => "bf16",
        OutType::Q8_0 => "q8_0",
        OutType::Tq1_0 => "tq1_0",
        OutType::Tq2_0 => "tq2_0",
    };
    assert!(outtypes.contains("auto"), "{outtypes:?}");
    for known in ["f32", "f16", "bf16", "q8_0", "tq1_0", "tq2_0"] {
        assert_eq!(name(OutType::from_name(known).unwrap()), known);
        assert!(outtypes.contains(known), "no case of the converter's type {known}");
    }

    let tiny = files::json(goldens.join("quant/tiny.json"));
    for file_type in quantize::FileType::all() {
        assert!(tiny.get(file_type.name()).is_some(), "no file of {} in quant/tiny.json", file_type.name());
    }
    let index = files::json(goldens.join("quant/index.json"));
    let blocks: Vec<GgmlType> = index["cases"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|case| GgmlType::from_name(case["type"].as_str().unwrap()))
        .collect();
    for ty in GgmlType::all().filter(|ty| can_quantize(*ty) && *ty != GgmlType::F32) {
        assert!(blocks.contains(&ty), "no blocks of {ty} in quant/index.json");
    }
}

/// Data with which a tokenizer mode is compared with the reference.
enum ModeCase {
    /// Golden data: a released tokenizer.
    Released(&'static str),
    /// `fixtures/`: a tokenizer that the reference read.
    Made(&'static str),
    /// The corpus has no tokenizer of this kind yet. Nothing may be added here.
    Missing,
    /// Nothing is written, or the mode is refused by name.
    NotRead,
}

fn mode_case(mode: Mode) -> ModeCase {
    match mode {
        Mode::Bpe => ModeCase::Released("vocab/gpt2"),
        Mode::LlamaHf => ModeCase::Released("vocab/llama2"),
        Mode::Spm => ModeCase::Released("vocab/mistral_v1_spm"),
        Mode::Unigram => ModeCase::Released("vocab/t5_unigram_spm"),
        Mode::Tiktoken => ModeCase::Made("vocab/qwen"),
        Mode::SpmChatglm3 => ModeCase::Made("vocab/chatglm3"),
        Mode::BpePlainAdded
        | Mode::Whitespace
        | Mode::SpmChatglm1
        | Mode::SpmInternlm2
        | Mode::SpmInternlm3
        | Mode::SpmXverse => ModeCase::Missing,
        Mode::None
        | Mode::Builtin
        | Mode::Gemma4
        | Mode::HybridDna
        | Mode::Mistral
        | Mode::Plamo
        | Mode::RwkvWorld
        | Mode::SpmArctic
        | Mode::SpmPhi3
        | Mode::WordPiece
        | Mode::Xlmr => ModeCase::NotRead,
    }
}

#[test]
fn every_tokenizer_mode_has_a_case() {
    let goldens = Goldens::selection();
    for mode in Mode::ALL {
        let dir = match mode_case(*mode) {
            ModeCase::Released(case) => goldens.join(case),
            ModeCase::Made(case) => fixture(case),
            ModeCase::Missing | ModeCase::NotRead => continue,
        };
        assert!(dir.join("expect.json").is_file(), "{mode}: {} has no expectation", dir.display());
    }
}

#[test]
fn every_container_has_a_case() {
    let goldens = Goldens::selection();
    for (path, format, n_parts) in [
        (goldens.join("arch/llama/hf"), "safetensors", 1),
        (goldens.join("arch/mistral/hf"), "safetensors", 3),
        (goldens.join("arch/llama_torch_bin/hf"), "PyTorch", 1),
        (fixture("torch/legacy"), "PyTorch", 1),
    ] {
        let checkpoint = Checkpoint::open(&path, &Limits::default()).unwrap();
        assert_eq!((checkpoint.format(), checkpoint.parts().len()), (format, n_parts), "{}", path.display());
    }
    let flm = goldens.join("formats/flm/qwen2-float16/model.flm");
    assert_eq!(FlmFile::open(&flm, &Limits::default()).unwrap().format(), "FastLLM");
    let source =
        ModelSource::open(&goldens.join("formats/msmodelslim/old-sharded"), &ConvertOptions::default());
    assert!(source.unwrap().weights.is_some());
}

/// Method that a quantized checkpoint declares, in the program's spelling.
fn method(dir: &Path) -> Option<String> {
    let config = files::json(dir.join("config.json"));
    let blocks = ["quantization_config", "compression_config"].map(|key| &config[key]["quant_method"]);
    if let Some(name) = blocks.iter().find_map(|name| name.as_str()) {
        return Some(name.to_ascii_lowercase().replace('_', "-"));
    }
    // Some tools write a file of their own instead.
    [("hf_quant_config.json", "modelopt"), ("quanto_qmap.json", "quanto"), ("quantize_config.json", "gptq")]
        .iter()
        .find(|row| dir.join(row.0).is_file())
        .map(|row| row.1.to_owned())
}

#[test]
fn every_method_has_a_case() {
    let goldens = Goldens::selection();
    let methods: BTreeSet<String> = cases(goldens.join("prequant"))
        .iter()
        .filter(|case| files::json(case.join("case.json"))["outcome"] == "ok")
        .filter_map(|case| method(&case.join("hf")))
        .collect();
    // The program lists the methods that it knows in the error for an unknown one.
    let unknown =
        ModelSource::open(&goldens.join("prequant/err-unknown-method/hf"), &ConvertOptions::default());
    let error = unknown.unwrap_err().to_string();
    let (_, known) = error.split_once("known are ").unwrap();
    // Every second piece is between backquotes.
    let known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
    assert!(known.len() >= 12, "{error}");
    for name in known {
        // Other spellings of the same method.
        let name = name.strip_prefix("intel/").unwrap_or(name);
        let name = name.strip_suffix("-marlin").unwrap_or(name);
        // Made by the tests of `gguf-conversion` (`codes`): no tool for golden data was to be had.
        let is_made = ["mxfp8", "gemma", "w8a8-fp8", "w8a8-int8", "blockwise-int8"].contains(&name);
        assert!(
            is_made || methods.contains(name),
            "method `{name}` has no case in fixtures/golden: {methods:?}"
        );
    }
}

//! Tokenizer of a file compared with that of the original model.

use std::path::{Path, PathBuf};

use gguf_foundry::convert::{Conversion, ConvertOptions};
use gguf_foundry::core::progress::Silent;
use gguf_foundry::gguf::{Array, Metadata, Value};
use gguf_foundry::tokenizer::Encoder;
use gguf_foundry::verify::{Check, Model, OriginTokenizer, Severity, TextEncoder, VerifyOptions, verify};

use serde_json::Value as Json;

use super::{llama, model, options};
use crate::support::goldens::{Goldens, conformance_tests};
use crate::support::tiers::{Tier, two_tiers};
use crate::support::{files, fixture, report_cases};
use crate::testkit::tiny::Tiny;

/// The file's own encoder with a fault: two ids are swapped.
struct Swapped<'a>(&'a Encoder, u32, u32);

impl TextEncoder for Swapped<'_> {
    fn encode(&self, text: &str, parse_special: bool) -> Result<Vec<u32>, String> {
        let swapped = |id| match id {
            id if id == self.1 => self.2,
            id if id == self.2 => self.1,
            id => id,
        };
        Ok(self.0.encode(text, parse_special).into_iter().map(swapped).collect())
    }

    fn decode(&self, tokens: &[u32]) -> Vec<u8> {
        self.0.decode(tokens)
    }

    fn start_of_text(&self) -> Option<u32> {
        self.0.start_of_text()
    }
}

/// Errors of the bundled model's file compared with its source.
fn check(tiny: &Tiny, encoder: &dyn TextEncoder) -> Vec<String> {
    of_severity(tiny, encoder, Severity::Error)
}

fn of_severity(tiny: &Tiny, encoder: &dyn TextEncoder, severity: Severity) -> Vec<String> {
    let features = llama();
    let origin = OriginTokenizer::of_source(&fixture("tiny-llama")).unwrap();
    let model = Model { encoder: Ok(encoder), origin: Some(&origin), ..model(tiny, &features) };
    let options = VerifyOptions { structure_only: true, ..options(None) };
    let report = verify(&model, None, &[], &options, &Silent, None).unwrap().report;
    let found = report.findings.iter().filter(|f| f.severity == severity);
    found.map(|f| format!("{}: {}", f.check, f.message)).collect()
}

#[test]
fn the_right_tokenizer_passes_and_wrong_ones_are_named() {
    let base = Tiny::new();
    assert_eq!(check(&base, &*base.encoder), [""; 0]);

    // If the keys are those of the conversion, other ids are not an error of the file.
    let ids = base.encoder.encode("Hello, world!", false);
    let swapped = Swapped(&base.encoder, ids[1], ids[2]);
    let errors = check(&base, &swapped);
    assert!(errors.len() == 1 && errors[0].starts_with("round-trip: "), "{errors:?}");
    let warnings = of_severity(&base, &swapped, Severity::Warning);
    assert!(
        warnings.iter().any(|w| w.starts_with("source-tokenizer: text `Hello, world!`: token 1")),
        "{warnings:?}"
    );

    let mut other = base.clone();
    other.metadata.set("tokenizer.ggml.add_bos_token", false);
    other.reread();
    let errors = check(&other, &*other.encoder);
    assert_eq!(
        errors,
        [
            "source-tokenizer: `tokenizer.ggml.add_bos_token` differs from the source's: false, not true",
            "source-tokenizer: the file does not begin texts with BOS, its source does"
        ]
    );

    let mut other = base.clone();
    other.metadata.set("tokenizer.ggml.pre", "qwen2");
    other.reread();
    let errors = check(&other, &*other.encoder);
    // With so small a vocabulary both split the samples the same; the key differs, and qwen2 composes its text.
    let key = "source-tokenizer: `tokenizer.ggml.pre` differs from the source's: `qwen2`, not `gpt-2`";
    assert!(errors.len() == 2 && errors[0] == key, "{errors:?}");
    assert!(errors[1].starts_with("source-tokenizer: text `"), "{errors:?}");

    let mut other = base.clone();
    let Some(Value::Array(Array::String(mut tokens))) = other.metadata.remove("tokenizer.ggml.tokens") else {
        panic!("tokens are strings")
    };
    tokens.swap(400, 401);
    other.metadata.set("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
    let errors = check(&other, &*base.encoder);
    assert!(
        errors[0].contains("`tokenizer.ggml.tokens` differs from the source's: entry 400 is `"),
        "{errors:?}"
    );
}

/// Findings about the vocabulary of a directory after conversion and a change; with `with_ids` also about its ids.
fn vocabulary_findings(directory: &Path, with_ids: bool, change: impl FnOnce(&mut Metadata)) -> Vec<String> {
    let options = ConvertOptions { vocab_only: true, ..ConvertOptions::default() };
    let conversion = Conversion::plan(directory, &options).unwrap();
    let mut metadata = conversion.metadata().clone();
    change(&mut metadata);
    let origin = OriginTokenizer::of_source(directory).unwrap();
    let features = llama();
    let tiny = Tiny::new();
    let encoder = Encoder::from_metadata(&metadata).unwrap();
    let encoder: Result<&dyn TextEncoder, &str> = if with_ids { Ok(&encoder) } else { Err("not asked for") };
    let model = Model { metadata: &metadata, origin: Some(&origin), encoder, ..model(&tiny, &features) };
    let options = VerifyOptions { structure_only: true, ..super::options(None) };
    let report = verify(&model, None, &[], &options, &Silent, None).unwrap().report;
    let errors = report.findings.into_iter().filter(|f| f.check == Check::SourceTokenizer);
    errors.filter(|f| f.severity == Severity::Error).map(|f| f.message).collect()
}

/// Vocabularies of the corpus whose classes have cards.
const VOCABULARIES: [&str; 10] = [
    "chatglm3_as_llama",
    "internlm2_as_llama",
    "llama2",
    "llama3_1",
    "mistral_nemo",
    "mistral_v1_spm",
    "mistral_v3_spm",
    "olmo",
    "qwen2_5",
    "yi",
];

conformance_tests!(converted_vocabularies_equal_their_sources);
fn converted_vocabularies_equal_their_sources(corpus: &Goldens) {
    let mut n_cases = 0;
    for name in VOCABULARIES {
        let Some(case) = corpus.find(format!("vocab/{name}/expect.json")) else { continue };
        let directory = case.with_file_name("hf");
        let found = vocabulary_findings(&directory, true, |_| ());
        assert!(found.is_empty(), "{name}: {found:?}");
        n_cases += 1;
    }
    if let Some(directory) = corpus.find("vocab/llama3_1/hf") {
        let found = vocabulary_findings(&directory, true, |metadata| {
            metadata.set("tokenizer.ggml.pre", "gpt-2");
        });
        assert!(found[0].starts_with("`tokenizer.ggml.pre` differs"), "{found:?}");
        assert!(found[1].starts_with("text `") && found[1].contains("the file says ["), "{found:?}");
    }
    let spm = corpus.join("vocab/mistral_v1_spm/hf");
    let found = vocabulary_findings(&spm, false, |metadata| {
        let Some(Value::Array(Array::F32(mut scores))) = metadata.remove("tokenizer.ggml.scores") else {
            panic!("scores are floats")
        };
        scores[300] += 1.0;
        metadata.set("tokenizer.ggml.scores", scores);
    });
    assert!(
        found[0].starts_with("`tokenizer.ggml.scores` differs from the source's: entry 300 is "),
        "{found:?}"
    );
    report_cases("verify: vocabularies and their sources", n_cases);
}

/// Vocabularies whose configuration has only their own settings, each with a case of their card that has the rest.
const SMALL: [(&str, &str); 5] = [
    ("gemma4", "gemma4/gemma4_moe"),
    ("hunyuan", "hunyuan-moe/hunyuan_v1_moe_top1"),
    ("kimi", "deepseek2/kimi_k2"),
    ("kimi_linear", "kimi-linear/kimi_linear"),
    ("rwkv", "rwkv6/rwkv6"),
];

/// Copies a vocabulary of the fixtures so that it can be converted; `None` for those without a configuration.
fn convertible(name: &str, dir: &Path) -> Option<PathBuf> {
    let from = fixture(&format!("vocab/{name}"));
    let mut config: Json = serde_json::from_slice(&fs_err::read(from.join("config.json")).ok()?).unwrap();
    if let Some((_, card)) = SMALL.iter().find(|small| small.0 == name) {
        let case = files::json(fixture(&format!("cards/{card}.json")));
        let own = config.as_object_mut().unwrap();
        for (key, value) in case["config"].as_object().unwrap() {
            own.entry(key.clone()).or_insert_with(|| value.clone());
        }
        // Lists have an entry for each layer.
        if case["config"].get("layer_types").is_some() {
            own.insert("num_hidden_layers".to_owned(), case["config"]["num_hidden_layers"].clone());
        }
    }
    let to = dir.join(name);
    fs_err::create_dir(&to).unwrap();
    for file in files::entries(from) {
        fs_err::copy(&file, to.join(file.file_name().unwrap())).unwrap();
    }
    fs_err::write(to.join("config.json"), config.to_string()).unwrap();
    Some(to)
}

type Change = fn(&mut Metadata) -> Option<()>;

/// Damages of a vocabulary; `None` if it has no such key.
const DAMAGES: [(&str, Change); 8] = [
    ("two tokens swapped", |m| {
        let Some(Value::Array(Array::String(mut tokens))) = m.get("tokenizer.ggml.tokens").cloned() else {
            return None;
        };
        let last = tokens.len() - 1;
        let at = (0..last).find(|&at| tokens[at] != tokens[last])?;
        tokens.swap(at, last);
        m.set("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
        Some(())
    }),
    ("a score", |m| {
        let Some(Value::Array(Array::F32(mut scores))) = m.get("tokenizer.ggml.scores").cloned() else {
            return None;
        };
        scores[9] += 1.0;
        m.set("tokenizer.ggml.scores", scores);
        Some(())
    }),
    ("a type", |m| {
        let Some(Value::Array(Array::I32(mut types))) = m.get("tokenizer.ggml.token_type").cloned() else {
            return None;
        };
        types[9] = if types[9] == 1 { 4 } else { 1 };
        m.set("tokenizer.ggml.token_type", types);
        Some(())
    }),
    ("a merge less", |m| {
        let Some(Value::Array(Array::String(mut merges))) = m.get("tokenizer.ggml.merges").cloned() else {
            return None;
        };
        merges.pop()?;
        m.set("tokenizer.ggml.merges", Value::Array(Array::String(merges)));
        Some(())
    }),
    ("another pad", |m| {
        let id = m.get("tokenizer.ggml.padding_token_id").and_then(Value::as_u64).unwrap_or(5);
        m.set("tokenizer.ggml.padding_token_id", id as u32 + 1);
        Some(())
    }),
    ("another end", |m| {
        let id = m.get("tokenizer.ggml.eos_token_id")?.as_u64()?;
        m.set("tokenizer.ggml.eos_token_id", id as u32 ^ 1);
        Some(())
    }),
    ("a flag", |m| {
        let flags: Vec<String> =
            m.iter().map(|(key, _)| key).filter(|key| key.contains("ggml.add_")).map(str::to_owned).collect();
        let flag = flags.first()?;
        let value = m.get(flag)?.as_bool()?;
        m.set(flag.clone(), !value);
        Some(())
    }),
    ("one token less", |m| {
        for key in ["tokens", "scores", "token_type"] {
            let key = format!("tokenizer.ggml.{key}");
            let shorter = match m.get(&key)?.as_array()? {
                Array::String(items) => Array::String(items[1..].to_vec()),
                Array::F32(items) => Array::F32(items[1..].to_vec()),
                Array::I32(items) => Array::I32(items[1..].to_vec()),
                other => panic!("{other:?}"),
            };
            m.set(key, Value::Array(shorter));
        }
        Some(())
    }),
];

two_tiers!(every_kind_of_vocabulary_equals_its_source_until_it_is_damaged);

/// Every day with one or two damages of each kind, the next kind with the next ones.
fn every_kind_of_vocabulary_equals_its_source_until_it_is_damaged(tier: Tier) {
    let dir = tempfile::tempdir().unwrap();
    let (mut n_kinds, mut n_damages) = (0, 0);
    for name in crate::support::names(fixture("vocab")) {
        let Some(source) = convertible(&name, dir.path()) else { continue };
        let options = ConvertOptions { vocab_only: true, ..ConvertOptions::default() };
        let conversion =
            Conversion::plan(&source, &options).unwrap_or_else(|error| panic!("{name}: {error}"));
        let metadata = conversion.metadata().clone();
        let origin = OriginTokenizer::of_source(&source).unwrap();
        let features = llama();
        let tiny = Tiny::new();
        let found = |metadata: &Metadata| -> Vec<String> {
            let encoder = Encoder::from_metadata(metadata);
            let encoder = match &encoder {
                Ok(encoder) => Ok(encoder as &dyn TextEncoder),
                Err(_) => Err("not readable"),
            };
            let model = Model { metadata, origin: Some(&origin), encoder, ..model(&tiny, &features) };
            let options = VerifyOptions { structure_only: true, ..super::options(None) };
            let report = verify(&model, None, &[], &options, &Silent, None).unwrap().report;
            let own = report.findings.into_iter().filter(|f| f.check == Check::SourceTokenizer);
            own.map(|f| format!("{}: {}", f.severity.name(), f.message)).collect()
        };
        let whole = found(&metadata);
        assert!(whole.iter().all(|found| !found.starts_with("error")), "{name}: {whole:?}");
        let damages = DAMAGES.into_iter().cycle().skip(n_kinds).take(DAMAGES.len());
        n_kinds += 1;
        for (what, damage) in tier.some(9, damages) {
            let mut damaged = metadata.clone();
            if damage(&mut damaged).is_some() {
                assert!(found(&damaged).len() > whole.len(), "{name}: {what}");
                n_damages += 1;
            }
        }
    }
    assert!(n_kinds >= 18 && n_damages > tier.of(9, 90), "{n_kinds} kinds, {n_damages} damages");
    report_cases("verify: damaged vocabularies beside their sources", n_damages);
}

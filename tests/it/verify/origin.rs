//! The tokenizer against the one that the model came with.

use std::path::Path;

use gguf_foundry::convert::{Conversion, ConvertOptions};
use gguf_foundry::core::progress::Silent;
use gguf_foundry::gguf::{Array, Metadata, Value};
use gguf_foundry::verify::{Model, OriginTokenizer, Report, Severity, TextEncoder, VerifyOptions, verify};
use tokenizers::Tokenizer;

use super::tiny::Tiny;
use super::{llama, model, options};
use crate::support::{conformance, fixture, report_cases};

/// The reference implementation as an encoder, with faults on demand.
struct Reference {
    tokenizer: Tokenizer,
    /// Pairs of ids that change places.
    swap: Option<(u32, u32)>,
    /// What texts start with.
    bos: Option<u32>,
}

impl Reference {
    fn new() -> Self {
        let tokenizer = Tokenizer::from_file(fixture("tiny-llama/tokenizer.json")).unwrap();
        Self { tokenizer, swap: None, bos: Some(0) }
    }
}

impl TextEncoder for Reference {
    fn encode(&self, text: &str, _: bool) -> Result<Vec<u32>, String> {
        let encoding = self.tokenizer.encode(text, false).map_err(|error| error.to_string())?;
        let swapped = |&id: &u32| match self.swap {
            Some((a, b)) if id == a => b,
            Some((a, b)) if id == b => a,
            _ => id,
        };
        Ok(encoding.get_ids().iter().map(swapped).collect())
    }

    fn decode(&self, tokens: &[u32]) -> Vec<u8> {
        self.tokenizer.decode(tokens, false).unwrap().into_bytes()
    }

    fn start_of_text(&self) -> Option<u32> {
        self.bos
    }
}

fn check(tiny: &Tiny, encoder: &Reference) -> Vec<String> {
    let features = llama();
    let origin = OriginTokenizer::open(&fixture("tiny-llama")).unwrap();
    let model = Model { encoder: Ok(encoder), origin: Some(&origin), ..model(tiny, &features) };
    let options = VerifyOptions { structure_only: true, ..options(None) };
    let report: Report = verify(&model, None, &[], &options, &Silent, None).unwrap().0;
    let errors = report.findings.iter().filter(|f| f.severity == Severity::Error);
    errors.map(|f| format!("{}: {}", f.check, f.message)).collect()
}

#[test]
fn the_right_tokenizer_passes_and_wrong_ones_are_named() {
    let base = Tiny::new();
    assert_eq!(check(&base, &Reference::new()), [""; 0]);

    let encoder = Reference::new();
    let ids = encoder.encode("Hello, world!", false).unwrap();
    let swapped = Reference { swap: Some((ids[1], ids[2])), ..encoder };
    let errors = check(&base, &swapped);
    assert!(
        errors.iter().any(|e| e.starts_with("source-tokenizer: text `Hello, world!`: token 1")),
        "{errors:?}"
    );
    assert!(errors.iter().any(|e| e.starts_with("round-trip: ")), "{errors:?}");

    let errors = check(&base, &Reference { bos: None, ..Reference::new() });
    assert_eq!(errors, ["source-tokenizer: the file does not begin texts with BOS, its source does"]);

    let mut other = base.clone();
    let Some(Value::Array(Array::String(mut tokens))) = other.metadata.remove("tokenizer.ggml.tokens") else {
        panic!("tokens are strings")
    };
    tokens.swap(400, 401);
    other.metadata.set("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
    let errors = check(&other, &Reference::new());
    assert!(errors[0].contains("tokens differ, first 400: `"), "{errors:?}");
}

/// What the comparison says about the vocabulary of a directory, converted here.
fn vocabulary_findings(directory: &Path, change: impl FnOnce(&mut Metadata)) -> Vec<String> {
    let options = ConvertOptions { vocab_only: true, ..ConvertOptions::default() };
    let conversion = Conversion::plan(directory, &options).unwrap();
    let mut metadata = conversion.metadata().clone();
    change(&mut metadata);
    let origin = OriginTokenizer::open(directory).unwrap();
    let features = llama();
    let tiny = Tiny::new();
    let model = Model { metadata: &metadata, origin: Some(&origin), ..model(&tiny, &features) };
    let options = VerifyOptions { structure_only: true, ..super::options(None) };
    let report = verify(&model, None, &[], &options, &Silent, None).unwrap().0;
    let errors = report.findings.into_iter().filter(|f| f.check == "source-tokenizer");
    errors.filter(|f| f.severity == Severity::Error).map(|f| f.message).collect()
}

#[test]
fn converted_vocabularies_equal_their_sources() {
    let Some(corpus) = conformance() else { return };
    let mut n_cases = 0;
    for entry in fs_err::read_dir(corpus.join("vocab")).unwrap() {
        let directory = entry.unwrap().path().join("hf");
        // The Llama class has no mode for T5's kind of model.
        if !directory.is_dir() || directory.join("spiece.model").is_file() {
            continue;
        }
        let found = vocabulary_findings(&directory, |_| ());
        assert!(found.is_empty(), "{}: {found:?}", directory.display());
        n_cases += 1;
    }
    let spm = corpus.join("vocab/mistral_v1_spm/hf");
    let found = vocabulary_findings(&spm, |metadata| {
        let Some(Value::Array(Array::F32(mut scores))) = metadata.remove("tokenizer.ggml.scores") else {
            panic!("scores are floats")
        };
        scores[300] += 1.0;
        metadata.set("tokenizer.ggml.scores", scores);
    });
    assert!(found[0].starts_with("token 300 `") && found[0].contains("has the score"), "{found:?}");
    report_cases("verify: vocabularies and their sources", n_cases);
}

//! The tokenizer against the one that the model came with.

use std::path::Path;

use gguf_foundry::convert::{Conversion, ConvertOptions};
use gguf_foundry::core::progress::Silent;
use gguf_foundry::gguf::{Array, Metadata, Value};
use gguf_foundry::tokenizer::Encoder;
use gguf_foundry::verify::{Model, OriginTokenizer, Severity, TextEncoder, VerifyOptions, verify};

use super::tiny::Tiny;
use super::{llama, model, options};
use crate::goldens::{Goldens, conformance_tests};
use crate::support::{fixture, report_cases};

/// The file's own encoder with a fault: two ids change places.
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

/// Errors of the bundled model's file against its source.
fn check(tiny: &Tiny, encoder: &dyn TextEncoder) -> Vec<String> {
    let features = llama();
    let origin = OriginTokenizer::open(&fixture("tiny-llama")).unwrap().with_keys(&fixture("tiny-llama"));
    let model = Model { encoder: Ok(encoder), origin: Some(&origin), ..model(tiny, &features) };
    let options = VerifyOptions { structure_only: true, ..options(None) };
    let report = verify(&model, None, &[], &options, &Silent, None).unwrap().report;
    let errors = report.findings.iter().filter(|f| f.severity == Severity::Error);
    errors.map(|f| format!("{}: {}", f.check, f.message)).collect()
}

#[test]
fn the_right_tokenizer_passes_and_wrong_ones_are_named() {
    let base = Tiny::new();
    assert_eq!(check(&base, &*base.encoder), [""; 0]);

    let ids = base.encoder.encode("Hello, world!", false);
    let errors = check(&base, &Swapped(&base.encoder, ids[1], ids[2]));
    assert!(
        errors.iter().any(|e| e.starts_with("source-tokenizer: text `Hello, world!`: token 1")),
        "{errors:?}"
    );
    assert!(errors.iter().any(|e| e.starts_with("round-trip: ")), "{errors:?}");

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
    // So small a vocabulary splits the samples alike by both; the key tells, and that qwen2 composes its text.
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
    assert!(errors[1].contains("tokens differ, first 400: `"), "{errors:?}");
}

/// What the comparison says about the vocabulary of a directory, converted here; `with_ids` about its ids as well.
fn vocabulary_findings(directory: &Path, with_ids: bool, change: impl FnOnce(&mut Metadata)) -> Vec<String> {
    let options = ConvertOptions { vocab_only: true, ..ConvertOptions::default() };
    let conversion = Conversion::plan(directory, &options).unwrap();
    let mut metadata = conversion.metadata().clone();
    change(&mut metadata);
    let origin = OriginTokenizer::open(directory).unwrap();
    let features = llama();
    let tiny = Tiny::new();
    let encoder = Encoder::from_metadata(&metadata).unwrap();
    let encoder: Result<&dyn TextEncoder, &str> = if with_ids { Ok(&encoder) } else { Err("not asked for") };
    let model = Model { metadata: &metadata, origin: Some(&origin), encoder, ..model(&tiny, &features) };
    let options = VerifyOptions { structure_only: true, ..super::options(None) };
    let report = verify(&model, None, &[], &options, &Silent, None).unwrap().report;
    let errors = report.findings.into_iter().filter(|f| f.check == "source-tokenizer");
    errors.filter(|f| f.severity == Severity::Error).map(|f| f.message).collect()
}

/// The vocabularies of the corpus whose classes have cards.
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
        // Vocabularies that went through the class of another model keep their tokens, not their ids.
        let with_ids = !name.ends_with("_as_llama");
        let found = vocabulary_findings(&directory, with_ids, |_| ());
        assert!(found.is_empty(), "{name}: {found:?}");
        n_cases += 1;
    }
    if let Some(directory) = corpus.find("vocab/llama3_1/hf") {
        let found = vocabulary_findings(&directory, true, |metadata| {
            metadata.set("tokenizer.ggml.pre", "gpt-2");
        });
        assert!(found[0].starts_with("text `") && found[0].contains("the file says ["), "{found:?}");
    }
    let spm = corpus.join("vocab/mistral_v1_spm/hf");
    let found = vocabulary_findings(&spm, false, |metadata| {
        let Some(Value::Array(Array::F32(mut scores))) = metadata.remove("tokenizer.ggml.scores") else {
            panic!("scores are floats")
        };
        scores[300] += 1.0;
        metadata.set("tokenizer.ggml.scores", scores);
    });
    assert!(found[0].starts_with("token 300 `") && found[0].contains("has the score"), "{found:?}");
    report_cases("verify: vocabularies and their sources", n_cases);
}

//! Broken and malicious files: the message names the broken rule, and nothing worse happens.

use std::path::Path;

use gguf_checkpoint::fastllm::{FlmError, FlmFile, FlmHeader};
use gguf_conversion::{ConvertOptions, FlmOptions, ModelSource};
use gguf_core::limits::Limits;
use gguf_core::simd::SimdLevel;
use gguf_dequant::flm::{self, FlmMeaning};

use gguf_testkit::flm::{Writer, own};
use gguf_testkit::goldens::{Goldens, conformance_tests};
use gguf_testkit::{files, report_cases};

/// Part of the message for each file of the corpus; empty for files that are accepted.
const MESSAGES: &[(&str, &str)] = &[
    ("axis-1.flm", "tensor `w`: channel axis 1, expected 0 or -1"),
    ("axis-out-of-range.flm", "channel axis 5"),
    ("dict-count-huge.flm", "dictionary: offset 4: entry count"),
    ("dict-count-negative.flm", "is negative"),
    ("dims-negative.flm", "is negative"),
    ("dims-overflow.flm", "w"),
    ("dtype-fp8.flm", "data type 10 (FP8_E4M3)"),
    ("dtype-int2group.flm", "data type 11 (INT2_GROUP)"),
    ("dtype-unknown.flm", "data type 77"),
    ("empty-file.flm", "version: unexpected end of file"),
    ("f32-nonfinite.flm", ""),
    ("gguf-magic.flm", "this is a GGUF file"),
    ("group-mismatch.flm", "tensor `w`: 3 groups of 32 for 32 columns"),
    ("group-negative.flm", "groups of"),
    ("group-zero.flm", "groups of 0"),
    ("minmax-inf.flm", "gives no finite scale"),
    ("minmax-nan.flm", "gives no finite scale"),
    ("missing-model-type.flm", "the dictionary has no `model_type`"),
    ("name-not-utf8.flm", "not UTF-8"),
    ("name-nul.flm", "holds a NUL"),
    ("ndim-huge.flm", "dimensions, at most 8 allowed"),
    ("ndim-negative.flm", "dimensions, at most 8 allowed"),
    ("peft-size-garbage.flm", "`peft_size` is `banana`"),
    ("peft-size-huge.flm", "adapters: "),
    ("string-length-huge.flm", "string length"),
    ("string-length-negative.flm", "is negative"),
    ("tensor-count-huge.flm", "tensors: "),
    ("tensor-count-negative.flm", "is negative"),
    ("tensor-count-short.flm", "bytes are left after the last tensor"),
    ("tensor-duplicate.flm", "tensor `w` appears twice"),
    ("three-bytes.flm", "version: unexpected end of file"),
    ("token-byte-out-of-range.flm", "token byte 300 outside -128..255"),
    ("token-id-duplicate.flm", "the dictionary has no `model_type`"),
    ("token-id-negative.flm", "token id -"),
    ("token-length-huge.flm", "token length"),
    ("truncated-header.flm", "dictionary: "),
    ("truncated-weights.flm", "unexpected end of file inside tensor data"),
    ("version-3.flm", "version 3, expected 0, 1 or 2"),
    ("version-negative.flm", "version -"),
    ("vocab-count-huge.flm", "vocabulary: "),
    ("vocab-count-negative.flm", "is negative"),
];

/// Error of opening a model; empty if it opens.
fn message(path: &Path) -> String {
    let options = ConvertOptions::default();
    match ModelSource::open_flm(path, &FlmOptions::default(), &options) {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    }
}

conformance_tests!(each_file_is_refused_with_its_reason);
fn each_file_is_refused_with_its_reason(corpus: &Goldens) {
    let dir = corpus.join("formats/flm/hostile");
    let files = files::json(dir.join("case.json"))["files"].clone();
    let (mut n_cases, mut wrong) = (0, Vec::new());
    for name in files.as_object().unwrap().keys() {
        let Some((_, expected)) = MESSAGES.iter().find(|row| row.0 == name) else {
            wrong.push(format!("{name} has no expectation"));
            continue;
        };
        n_cases += 1;
        let found = message(&dir.join(name));
        if !found.contains(expected) || expected.is_empty() != found.is_empty() {
            wrong.push(format!("{name}: {found:?}, expected {expected:?}"));
        }
    }
    report_cases("flm: hostile files", n_cases);
    assert_eq!(n_cases, MESSAGES.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// File with every section and every type.
fn full() -> Writer {
    let mut writer = Writer::new(&[
        ("model_type", "llama"),
        ("architectures", "['LlamaForCausalLM']"),
        ("rope_scaling.type", "linear"),
        ("rope_scaling.factor", "2.0"),
        ("peft_size", "1"),
        ("tokenizer_use_score", "1"),
        ("tokenizer_has_special_tokens", "1"),
    ]);
    writer.adapters =
        vec![("default".to_owned(), own(&[("peft_type", "LORA"), ("r", "1"), ("lora_alpha", "2")]))];
    for (id, text) in ["<unk>", "<s>", "a", "\u{2581}b", "<0x0A>"].iter().enumerate() {
        writer.tokens.push((text.as_bytes().to_vec(), id as i32, Some(-(id as f32))));
    }
    writer.special = Some(vec!["<s>".to_owned(), "<gone>".to_owned()]);
    let codes: Vec<u8> = (0..70).map(|i| i % 16).collect();
    writer.f32("f", &[2, 3], &[1.0; 6]);
    writer.f16("h", &[4], &[0.5; 4]);
    writer.codes("c8", &[2, 35], 3, &[(-1.0, 1.0), (0.0, 0.0)], &codes);
    writer.codes("c4", &[2, 35], 4, &[(-1.0, 2.0), (-3.0, 1.0)], &codes);
    writer.codes("n4", &[2, 35], 8, &[(-1.0, 2.0), (1.0, 2.0)], &codes);
    writer.groups("g4", &[2, 35], 16, &[(-1.0, 2.0); 6], &codes);
    writer.f16("n4.lora_A.default.weight", &[1, 35], &[0.5; 35]);
    writer
}

/// Opens and reads everything; it must terminate.
fn exercise(bytes: &[u8]) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.flm");
    fs_err::write(&path, bytes).unwrap();
    for merge_adapters in [false, true] {
        let flm = FlmOptions { merge_adapters, ..FlmOptions::default() };
        let source = ModelSource::open_flm(&path, &flm, &ConvertOptions::default());
        let _ = source.map(|source| format!("{source:?}"));
    }
    let file = FlmFile::open(&path, &Limits::default()).map_err(|error| error.to_string())?;
    let opened =
        flm::open(file, FlmMeaning::Writer, SimdLevel::detect()).map_err(|error| error.to_string())?;
    let weights = opened.into_opened().source;
    for (at, meta) in weights.weights().iter().enumerate() {
        let mut out = vec![0; meta.shape.n_elems() as usize * meta.ty.bytes().unwrap()];
        weights.read_elems(at, 0, &mut out).map_err(|error| error.to_string())?;
        weights.packings(at).map_err(|error| error.to_string())?;
    }
    Ok(())
}

#[test]
fn a_file_with_everything_opens_and_every_shorter_one_does_not() {
    let whole = full().bytes();
    assert_eq!(exercise(&whole), Ok(()));
    for n in 0..whole.len() {
        let error = FlmHeader::parse(&whole[..n], &Limits::default());
        assert!(error.is_err(), "{n} of {} bytes", whole.len());
    }
    let mut longer = whole.clone();
    longer.push(0);
    let offset = whole.len() as u64;
    let error = FlmHeader::parse(&longer, &Limits::default()).map(drop);
    assert_eq!(error, Err(FlmError::Trailing { offset, n_bytes: 1 }));
}

#[test]
fn a_file_that_lost_its_adapters_says_what_happened() {
    use gguf_core::Hint;
    let mut writer = full();
    writer.adapters.clear();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.flm");
    fs_err::write(&path, writer.bytes()).unwrap();
    let error = FlmFile::open(&path, &Limits::default()).unwrap_err();
    assert!(error.to_string().contains("adapters: "), "{error}");
    assert!(error.hints()[0].contains("SaveModel"), "{:?}", error.hints());
}

//! Tests of `checkpoint`: what is read, and what is refused with which words.

use std::path::Path;

use gguf_foundry::checkpoint::safetensors::{Header, HeaderError, parse_header};
use gguf_foundry::checkpoint::{Checkpoint, CheckpointError, ModelDir};
use gguf_foundry::core::limits::Limits;
use gguf_foundry::core::{ElementType, Hint, WeightSource};
use tempfile::TempDir;

use crate::support::{conformance, fixture, report_cases, root};

/// A safetensors file of a header text and data.
fn file(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

/// One entry of a header.
fn entry(name: &str, dtype: &str, shape: &str, begin: u64, end: u64) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
}

fn parse(bytes: &[u8]) -> Result<Header, HeaderError> {
    parse_header(bytes, &Limits::default())
}

/// What the parser says about entries over `n` bytes of data.
fn refusal(entries: &[String], n: usize) -> String {
    let header = format!("{{{}}}", entries.join(","));
    parse(&file(&header, &vec![0; n])).unwrap_err().to_string()
}

/// A checkpoint directory with an empty configuration.
fn dir(files: &[(&str, &[u8])]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs_err::write(dir.path().join("config.json"), "{}").unwrap();
    for (name, content) in files {
        fs_err::write(dir.path().join(name), content).unwrap();
    }
    dir
}

/// A file of U8 tensors, one byte each.
fn bytes_file(names: &[&str]) -> Vec<u8> {
    let entries: Vec<String> =
        names.iter().zip(0..).map(|(name, i)| entry(name, "U8", "[1]", i, i + 1)).collect();
    let data: Vec<u8> = (0..names.len() as u8).collect();
    file(&format!("{{{}}}", entries.join(",")), &data)
}

fn open(dir: &TempDir) -> Result<Checkpoint, CheckpointError> {
    Checkpoint::open(dir.path(), &Limits::default())
}

/// The error of opening a directory, without the directory's own name.
fn error(dir: &TempDir) -> String {
    open(dir).unwrap_err().to_string().replace(&format!("{}", dir.path().display()), "DIR")
}

fn names(checkpoint: &Checkpoint) -> Vec<&str> {
    checkpoint.weights().iter().map(|meta| meta.name.as_str()).collect()
}

#[test]
fn a_header_is_read_in_name_order_with_its_metadata() {
    let header = format!(
        r#"{{"__metadata__":{{"format":"pt","a":"b"}},{},{},{}}}   "#,
        entry("b", "BF16", "[2,3]", 4, 16),
        entry("a", "F32", "[]", 0, 4),
        entry("empty", "F16", "[0,4]", 16, 16),
    );
    let bytes = file(&header, &[0; 16]);
    let read = parse(&bytes).unwrap();
    assert_eq!(read.metadata, [("format".into(), "pt".into()), ("a".into(), "b".into())]);
    let rows: Vec<_> = read
        .tensors
        .iter()
        .map(|t| (t.meta.name.as_str(), t.meta.ty, t.meta.shape.to_string(), t.offset, t.n_bytes))
        .collect();
    let data = 8 + header.len() as u64;
    assert_eq!(
        rows,
        [
            ("a", ElementType::F32, "[]".into(), data, 4),
            ("b", ElementType::Bf16, "[2, 3]".into(), data + 4, 12),
            ("empty", ElementType::F16, "[0, 4]".into(), data + 16, 0),
        ]
    );
}

#[test]
fn every_element_type_is_read() {
    let types = [
        "F64",
        "F32",
        "F16",
        "BF16",
        "I64",
        "I32",
        "I16",
        "I8",
        "U64",
        "U32",
        "U16",
        "U8",
        "BOOL",
        "F8_E4M3",
        "F8_E5M2",
        "F8_E8M0",
        "F8_E4M3FNUZ",
        "F8_E5M2FNUZ",
        "F6_E2M3",
        "F6_E3M2",
        "F4",
        "C64",
    ];
    for name in types {
        let bits = u64::from(ElementType::from_name(name).unwrap().bits());
        let bytes = file(&format!("{{{}}}", entry("t", name, "[8]", 0, bits)), &vec![0; bits as usize]);
        assert_eq!(parse(&bytes).unwrap().tensors[0].meta.ty.name(), name);
    }
}

#[test]
fn the_safetensors_crate_agrees() {
    let names = ["z", "a", "model.layers.10.x", "model.layers.2.x", "é"];
    let data: Vec<Vec<u8>> = (0..names.len()).map(|i| vec![i as u8; 24]).collect();
    let views = names.iter().zip(&data).enumerate().map(|(i, (name, bytes))| {
        let dtype = [safetensors::Dtype::F32, safetensors::Dtype::I64, safetensors::Dtype::U8][i % 3];
        let shape = vec![24 * 8 / dtype.bitsize()];
        (*name, safetensors::tensor::TensorView::new(dtype, shape, bytes).unwrap())
    });
    let bytes = safetensors::serialize(views, None).unwrap();
    let theirs = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let ours = parse(&bytes).unwrap();
    assert_eq!(ours.tensors.len(), names.len());
    for tensor in &ours.tensors {
        let view = theirs.tensor(&tensor.meta.name).unwrap();
        let (start, len) = (tensor.offset as usize, tensor.n_bytes as usize);
        assert_eq!(&bytes[start..start + len], view.data());
    }
    let mut sorted = names;
    sorted.sort_unstable();
    assert!(ours.tensors.iter().map(|t| t.meta.name.as_str()).eq(sorted));
}

#[test]
fn malformed_lengths() {
    let say = |bytes: &[u8]| parse(bytes).unwrap_err().to_string();
    assert_eq!(say(b"\x02\0\0"), "offset 0: 8 bytes of header length expected, 3 present");
    let mut huge = (1u64 << 63).to_le_bytes().to_vec();
    huge.extend(b"{}");
    assert_eq!(
        say(&huge),
        "offset 0: header of 9223372036854775808 bytes declared, at most 100000000 allowed"
    );
    assert_eq!(say(b"\x03\0\0\0\0\0\0\0{}"), "offset 8: header of 3 bytes declared, 2 present");
    assert_eq!(say(&file(" {}", b"")), "offset 8: header does not start with `{`");
    assert_eq!(say(&file("", b"")), "offset 8: header does not start with `{`");
    assert_eq!(
        say(&file("{\"a\":1}", b"")),
        "header: line 1, column 14 (offset 13): expected `{`, found `1`"
    );
    assert_eq!(say(&file("{}x", b"")), "header: line 1, column 11 (offset 10): more text after the value");
    assert_eq!(say(&file("{}", b"abc")), "3 bytes at offset 10 belong to no tensor");
}

#[test]
fn malformed_tensors() {
    let a = || entry("a", "U8", "[4]", 0, 4);
    // Ranges.
    assert_eq!(
        refusal(&[a(), entry("b", "U8", "[4]", 3, 7)], 7),
        "tensor `b`: range begins at 3, inside `a`, which ends at 4"
    );
    let gap = refusal(&[a(), entry("b", "U8", "[4]", 6, 10)], 10);
    assert!(gap.starts_with("2 bytes at offset ") && gap.ends_with(" belong to no tensor"), "{gap}");
    assert_eq!(refusal(&[entry("a", "U8", "[4]", 4, 0)], 4), "tensor `a`: range 4..0 ends before it begins");
    let cut = refusal(&[a(), entry("b", "U8", "[4]", 4, 8)], 6);
    assert!(
        cut.starts_with("tensor `b`: data up to offset ") && cut.contains(" declared, file ends at "),
        "{cut}"
    );
    let far = u64::MAX;
    assert_eq!(
        refusal(&[entry("a", "U8", "[4]", far - 4, far)], 4).split(" declared").next(),
        Some("tensor `a`: data up to offset 18446744073709551615")
    );
    // Types and shapes.
    assert_eq!(
        refusal(&[entry("a\\u001b[31m", "F33", "[4]", 0, 16)], 16),
        "tensor `a\\u{1b}[31m`: unknown dtype `F33`"
    );
    assert_eq!(
        refusal(&[entry("a", "BF16", "[2, 3]", 0, 10)], 10),
        "tensor `a`: BF16 [2, 3] takes 12 bytes, range holds 10"
    );
    assert_eq!(
        refusal(&[entry("a", "U8", "[4294967296, 4294967296]", 0, 4)], 4),
        "tensor `a`: shape [4294967296, 4294967296] overflows"
    );
    assert_eq!(
        refusal(&[entry("a", "F64", "[2305843009213693952]", 0, 4)], 4),
        "tensor `a`: shape [2305843009213693952] overflows"
    );
    assert_eq!(
        refusal(&[entry("a", "U8", "[0, 9223372036854775807, 2]", 0, 0)], 0),
        "tensor `a`: shape [0, 9223372036854775807, 2] overflows"
    );
    assert_eq!(refusal(&[entry("a", "F4", "[3]", 0, 1)], 1), "tensor `a`: 12 bits do not fill whole bytes");
    assert!(
        refusal(&[entry("a", "U8", "[-1]", 0, 1)], 1)
            .contains("expected an unsigned 64-bit integer, found `-1`")
    );
    assert!(refusal(&[entry("a", "U8", "[1e3]", 0, 1)], 1).contains("found `1e3`"));
    // Names and fields.
    assert_eq!(refusal(&[a(), entry("a", "U8", "[4]", 4, 8)], 8), "tensor `a`: name occurs twice");
    assert_eq!(
        refusal(&[r#""a":{"dtype":"U8","shape":[1]}"#.into()], 1),
        "tensor `a`: `data_offsets` is missing"
    );
    assert_eq!(
        refusal(&[r#""a":{"dtype":"U8","shape":[1],"dtype":"I8","data_offsets":[0,1]}"#.into()], 1),
        "tensor `a`: `dtype` is given twice"
    );
    assert_eq!(
        refusal(&[r#""a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}"#.into()], 1),
        "tensor `a`: `data_offsets` has 3 elements, expected 2"
    );
    let metadata = refusal(&[r#""__metadata__":{"a":1}"#.into()], 0);
    assert_eq!(metadata, "header: line 1, column 30 (offset 29): expected a string, found `1`");
    let twice = refusal(&[r#""__metadata__":{},"__metadata__":{}"#.into()], 0);
    assert_eq!(twice, "header: line 1, column 28 (offset 27): duplicate key `__metadata__`");
    let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
    assert!(refusal(&[format!(r#""a":{{"x":{deep}}}"#)], 0).contains("nested deeper than 64 levels"));
}

#[test]
fn limits_are_limits() {
    let bytes = bytes_file(&["a", "b", "c"]);
    let two = Limits { n_tensors: 2, ..Limits::default() };
    assert_eq!(parse_header(&bytes, &two), Err(HeaderError::TooManyTensors { limit: 2 }));
    let short = Limits { safetensors_header_bytes: 20, ..Limits::default() };
    assert!(matches!(parse_header(&bytes, &short), Err(HeaderError::TooLong { limit: 20, .. })));
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let header = format!(
        r#"{{"__metadata__":{{"k":"v"}},{},{}}} "#,
        entry("a.weight", "BF16", "[2,3]", 0, 12),
        entry("b", "F32", "[1]", 12, 16)
    );
    let bytes = file(&header, &[7; 16]);
    parse(&bytes).unwrap();
    for len in 0..bytes.len() {
        assert!(parse(&bytes[..len]).is_err(), "cut at {len}");
    }
}

#[test]
fn flipped_bytes_never_panic_and_never_leave_the_file() {
    let header = format!(
        r#"{{"__metadata__":{{"k":"\u00e9"}},{},{},{}}}"#,
        entry("a.weight", "BF16", "[2,3]", 0, 12),
        entry("b", "F4", "[16]", 12, 20),
        entry("c", "U8", "[0]", 20, 20)
    );
    let bytes = file(&header, &[7; 20]);
    let check = |bytes: &[u8]| {
        if let Ok(header) = parse(bytes) {
            for tensor in header.tensors {
                assert!(tensor.offset + tensor.n_bytes <= bytes.len() as u64);
            }
        }
    };
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut broken = bytes.clone();
            broken[at] ^= 1 << bit;
            check(&broken);
        }
    }
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as usize % below
    };
    for _ in 0..20_000 {
        let mut broken = bytes.clone();
        for _ in 0..=random(6) {
            let at = random(broken.len());
            broken[at] = random(256) as u8;
        }
        check(&broken);
    }
}

#[test]
fn the_fixture_opens_and_reads() {
    let checkpoint = Checkpoint::open(&fixture("tiny-llama"), &Limits::default()).unwrap();
    assert_eq!(checkpoint.dir().config()["architectures"][0], "LlamaForCausalLM");
    assert_eq!(checkpoint.dir().name(), "tiny-llama");
    assert!(checkpoint.weights().is_sorted_by_key(|meta| &meta.name));
    let file = fs_err::read(fixture("tiny-llama/model.safetensors")).unwrap();
    let header = parse(&file).unwrap();
    for (weight, range) in header.tensors.iter().enumerate() {
        let (start, len) = (range.offset as usize, range.n_bytes as usize);
        let expected = &file[start..start + len];
        assert_eq!(checkpoint.borrow(weight), Some(expected));
        let n = range.meta.shape.n_elems();
        let mut middle = vec![0; 2 * (n as usize / 2)];
        checkpoint.read_elems(weight, n / 4, &mut middle).unwrap();
        checkpoint.read_ahead(weight, 0, n);
        checkpoint.release_elems(weight, 0, n);
        let begin = 2 * (n as usize / 4);
        assert_eq!(middle, expected[begin..begin + middle.len()], "{}", range.meta.name);
    }
}

#[test]
fn shards_come_in_the_order_of_their_names() {
    let index = br#"{"metadata":{},"weight_map":{"z":"model-00001.safetensors","b":"model-00002.safetensors","a":"model-00002.safetensors"}}"#;
    let with_index = dir(&[
        ("model-00002.safetensors", &bytes_file(&["b", "a"])),
        ("model-00001.safetensors", &bytes_file(&["z"])),
        ("model-other.safetensors", &bytes_file(&["not in the index"])),
        ("model.safetensors.index.json", index),
    ]);
    let checkpoint = open(&with_index).unwrap();
    assert_eq!(names(&checkpoint), ["z", "a", "b"]);
    assert_eq!(checkpoint.borrow(1), Some(&[1u8][..]));
    assert_eq!(checkpoint.shard_of(2), "model-00002.safetensors");

    let without = dir(&[
        ("model-2.safetensors", &bytes_file(&["b"])),
        ("model-1.safetensors", &bytes_file(&["c"])),
        ("other.safetensors", &bytes_file(&["d"])),
    ]);
    assert_eq!(names(&open(&without).unwrap()), ["c", "b"]);

    let single =
        dir(&[("model.safetensors", &bytes_file(&["a"])), ("model.fp16.safetensors", &bytes_file(&["a"]))]);
    assert_eq!(names(&open(&single).unwrap()), ["a"]);
}

#[test]
fn an_index_and_its_shards_must_agree() {
    const INDEX: &str = "model.safetensors.index.json";
    let a = bytes_file(&["a", "b"]);
    let with = |index: &str, shards: &[(&str, &[u8])]| {
        let mut files = vec![(INDEX, index.as_bytes())];
        files.extend_from_slice(shards);
        error(&dir(&files))
    };
    let one: &[(&str, &[u8])] = &[("s.safetensors", &a)];
    assert_eq!(
        with(r#"{"weight_map":{"a":"s.safetensors","b":"t.safetensors"}}"#, one),
        "DIR/model.safetensors.index.json: shard `t.safetensors` is missing"
    );
    assert_eq!(
        with(
            r#"{"weight_map":{"a":"s.safetensors","d":"s.safetensors","b":"s.safetensors","c":"s.safetensors"}}"#,
            one
        ),
        "DIR/model.safetensors.index.json: tensor `c` is not in shard `s.safetensors` (and 1 more)"
    );
    assert_eq!(
        with(r#"{"weight_map":{"a":"s.safetensors"}}"#, one),
        "DIR/model.safetensors.index.json: tensor `b` of shard `s.safetensors` is not listed"
    );
    let both = r#"{"weight_map":{"a":"s.safetensors","b":"t.safetensors"}}"#;
    assert_eq!(
        with(both, &[("s.safetensors", &a), ("t.safetensors", &a)]),
        "tensor `a` is in `s.safetensors` and in `t.safetensors`"
    );
    for outside in ["../s.safetensors", "/s.safetensors", "sub/../../s.safetensors", "./s.safetensors", ""] {
        assert_eq!(
            with(&format!(r#"{{"weight_map":{{"a":"{outside}"}}}}"#), one),
            format!("DIR/model.safetensors.index.json: shard `{outside}` lies outside the directory")
        );
    }
    for bad in ["{}", r#"{"weight_map":[]}"#, r#"{"weight_map":{"a":1}}"#] {
        assert_eq!(
            with(bad, one),
            "DIR/model.safetensors.index.json: `weight_map` is missing or is not an object of strings"
        );
    }
    assert_eq!(
        with("{\"weight_map\":{\"a\":\"s\",\n\"a\":\"s\"}}", one),
        "DIR/model.safetensors.index.json: line 2, column 1 (offset 24): duplicate key `a`"
    );
}

#[test]
fn a_set_that_counts_its_files_must_be_whole() {
    let incomplete = dir(&[
        ("model-00001-of-00003.safetensors", &bytes_file(&["a"])),
        ("model-00003-of-00003.safetensors", &bytes_file(&["b"])),
    ]);
    assert_eq!(error(&incomplete), "DIR: shard `model-00002-of-00003.safetensors` is missing");
    assert_eq!(open(&incomplete).unwrap_err().hints().len(), 1);
}

#[test]
fn a_truncated_file_is_named_with_what_is_missing() {
    let mut bytes = bytes_file(&["a", "b"]);
    bytes.pop();
    let end = bytes.len();
    let dir = dir(&[("model.safetensors", &bytes)]);
    assert_eq!(
        error(&dir),
        format!(
            "DIR/model.safetensors: tensor `b`: data up to offset {} declared, file ends at {end}",
            end + 1
        )
    );
    assert_eq!(open(&dir).unwrap_err().hints(), ["the file is cut short: fetch it again"]);
}

#[test]
fn a_git_lfs_pointer_is_recognized() {
    let dir = dir(&[("model.safetensors", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n")]);
    assert_eq!(
        open(&dir).unwrap_err().hints(),
        ["this is a git LFS pointer, not the file: run `git lfs pull`"]
    );
}

#[cfg(unix)]
#[test]
fn shards_may_be_links() {
    let store = tempfile::tempdir().unwrap();
    fs_err::write(store.path().join("blob"), bytes_file(&["a"])).unwrap();
    let dir = dir(&[]);
    fs_err::os::unix::fs::symlink(store.path().join("blob"), dir.path().join("model.safetensors")).unwrap();
    assert_eq!(names(&open(&dir).unwrap()), ["a"]);
}

#[test]
fn other_forms_are_named() {
    let cases: [(&str, &str); 8] = [
        ("pytorch_model.bin", "DIR/pytorch_model.bin: a PyTorch checkpoint cannot be read yet"),
        (
            "pytorch_model.bin.index.json",
            "DIR/pytorch_model.bin.index.json: a PyTorch checkpoint cannot be read yet",
        ),
        (
            "consolidated.safetensors",
            "DIR/consolidated.safetensors: a checkpoint in Mistral's own layout cannot be read yet",
        ),
        ("model.flm", "DIR/model.flm: a FastLLM `.flm` file cannot be read yet"),
        (
            "quant_model_description_w8a8.json",
            "DIR/quant_model_description_w8a8.json: an msModelSlim checkpoint cannot be read yet",
        ),
        (
            "adapter_model.safetensors",
            "DIR/adapter_model.safetensors: an adapter without its base model cannot be read yet",
        ),
        ("model.gguf", "DIR/model.gguf: a GGUF file as a checkpoint cannot be read yet"),
        (
            "notes.txt",
            "DIR: no weights found (`model.safetensors.index.json`, `model.safetensors` or `model*.safetensors`)",
        ),
    ];
    for (name, expected) in cases {
        let dir = dir(&[(name, b"x")]);
        assert_eq!(error(&dir), expected);
        assert!(!open(&dir).unwrap_err().hints().is_empty());
        // Without a configuration the form is named all the same.
        fs_err::remove_file(dir.path().join("config.json")).unwrap();
        let expected = if name == "notes.txt" { "DIR: `config.json` is missing" } else { expected };
        assert_eq!(error(&dir), expected);
    }
}

#[test]
fn quantized_weights_are_named_by_their_method() {
    let dir = dir(&[("model.safetensors", &bytes_file(&["a"]))]);
    let config = dir.path().join("config.json");
    for (text, method) in [
        (r#"{"quantization_config":{"quant_method":"gptq","bits":4}}"#, "gptq"),
        (r#"{"text_config":{"quantization_config":{"quant_method":"fp8"}}}"#, "fp8"),
        (r#"{"quantization_config":{}}"#, "quantization_config"),
    ] {
        fs_err::write(&config, text).unwrap();
        assert_eq!(
            error(&dir),
            format!("DIR/config.json: weights quantized by `{method}` cannot be read yet")
        );
    }
    fs_err::write(&config, r#"{"quantization_config":null}"#).unwrap();
    open(&dir).unwrap();
}

#[test]
fn configuration_files() {
    let dir = dir(&[
        ("model.safetensors", &bytes_file(&["a"])),
        ("broken.json", b"{\"a\": tru}"),
        ("latin", b"a\xe9"),
    ]);
    let config = dir.path().join("config.json");
    fs_err::write(&config, r#"{"z": 1, "a": Infinity, "m": 1e-05}"#).unwrap();
    let opened = ModelDir::open(dir.path(), &Limits::default()).unwrap();
    assert!(opened.config().keys().eq(["z", "a", "m"]));
    assert!(opened.json("generation_config.json").unwrap().is_none());
    let shown = |e: CheckpointError| e.to_string().replace(&format!("{}", dir.path().display()), "DIR");
    assert_eq!(
        shown(opened.json("broken.json").unwrap_err()),
        "DIR/broken.json: line 1, column 7 (offset 6): expected a value, found `t`"
    );
    assert_eq!(shown(opened.text("latin").unwrap_err()), "DIR/latin: offset 1: not valid UTF-8");

    let small = Limits { text_file_bytes: 3, ..Limits::default() };
    assert_eq!(
        shown(ModelDir::open(dir.path(), &small).unwrap_err()),
        "DIR/config.json: 35 B to read whole, at most 3 B allowed"
    );
    fs_err::write(&config, "[]").unwrap();
    assert_eq!(error(&dir), "DIR/config.json: line 1, column 1 (offset 0): expected `{`, found `[`");
    assert_eq!(
        shown(ModelDir::open(&config, &Limits::default()).unwrap_err()),
        "DIR/config.json: not a directory"
    );
    assert!(ModelDir::open(Path::new("no such directory"), &Limits::default()).is_err());
    assert_eq!(
        ModelDir::open(&root().join("fixtures/tiny-llama/../tiny-llama/."), &Limits::default())
            .unwrap()
            .name(),
        "tiny-llama"
    );
}

#[test]
fn conformance_checkpoints_open_and_order_equals_the_converters() {
    let Some(corpus) = conformance() else { return };
    let (mut n_cases, mut n_quantized) = (0, 0);
    for case in fs_err::read_dir(corpus.join("arch")).unwrap() {
        let dir = case.unwrap().path().join("hf");
        if !dir.join("config.json").is_file() {
            continue;
        }
        match Checkpoint::open(&dir, &Limits::default()) {
            Ok(checkpoint) => assert!(!checkpoint.weights().is_empty()),
            Err(CheckpointError::Unsupported { .. }) => n_quantized += 1,
            Err(error) => panic!("{error}"),
        }
        n_cases += 1;
    }
    assert!(n_quantized * 4 < n_cases, "{n_quantized} of {n_cases} refused");
    report_cases("checkpoints", n_cases);

    for case in ["llama_f32_sharded", "mistral", "llama"] {
        let case = corpus.join("arch").join(case);
        let checkpoint = Checkpoint::open(&case.join("hf"), &Limits::default()).unwrap();
        let text = fs_err::read(case.join("expect-f32.json")).unwrap();
        let expect: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let theirs: Vec<&str> =
            expect["tensors"].as_array().unwrap().iter().filter_map(|row| row[0].as_str()).collect();
        let ours: Vec<String> = checkpoint.weights().iter().map(|meta| gguf_name(&meta.name)).collect();
        assert_eq!(ours, theirs, "{}", case.display());
    }
}

/// The GGUF name of a llama tensor: enough to compare orders.
fn gguf_name(name: &str) -> String {
    [
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("model.layers", "blk"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("post_attention_layernorm", "ffn_norm"),
        ("input_layernorm", "attn_norm"),
    ]
    .iter()
    .fold(name.to_owned(), |name, (from, to)| name.replace(from, to))
}

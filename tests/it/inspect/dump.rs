//! Command `gguf-inspect dump`, and dry runs of a split.

use gguf_foundry::core::TensorSource;
use gguf_foundry::gguf::{GgufFile, Value};
use serde_json::{Value as Json, json};

use super::{Bench, metadata};
use crate::testkit::memory::{MemoryTensors, write_source};

/// Text at an offset of the header: eight bytes of length, then the text.
fn text_at(bytes: &[u8], offset: &Json) -> String {
    let at = usize::try_from(offset.as_u64().unwrap()).unwrap();
    let n = usize::try_from(u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())).unwrap();
    String::from_utf8(bytes[at + 8..at + 8 + n].to_vec()).unwrap()
}

#[test]
fn json_says_where_the_header_declares_what() {
    let bench = Bench::new().with_tiny();
    let mut odd = metadata();
    odd.set("odd.empty", Vec::<u32>::new());
    odd.set("odd.flags", vec![true, false]);
    odd.set("odd.bytes", Value::String(b"\xff".to_vec()));
    odd.set("odd.big", u64::MAX);
    write_source(&bench.path("odd.gguf"), &odd, &super::model());
    for name in ["odd.gguf", "tiny.gguf"] {
        let bytes = fs_err::read(bench.path(name)).unwrap();
        let file = GgufFile::open(&bench.path(name)).unwrap();
        let document = bench.json(&["dump", name, "--json-array"], 0);
        assert_eq!((&document["filename"], &document["endian"]), (&json!(name), &json!("LITTLE")));
        let fields = document["metadata"].as_object().unwrap();
        assert_eq!(fields.len(), 3 + file.metadata().len());
        for (index, (key, field)) in fields.iter().enumerate() {
            assert_eq!(field["index"], json!(index), "{key}");
            if !key.starts_with("GGUF.") {
                assert_eq!(&text_at(&bytes, &field["offset"]), key);
            }
        }
        let tensors = document["tensors"].as_object().unwrap();
        assert_eq!(tensors.len(), file.tensors().len());
        for (name, tensor) in tensors {
            assert_eq!(&text_at(&bytes, &tensor["offset"]), name);
        }
    }
    let document = bench.json(&["dump", "odd.gguf", "--json-array"], 0);
    let field = |key: &str| document["metadata"][key].clone();
    assert_eq!(field("GGUF.kv_count"), json!({"index": 2, "type": "UINT64", "offset": 16, "value": 9}));
    assert_eq!(field("llama.rope.freq_base")["value"], json!(f64::from(0.1f32)));
    assert_eq!(field("odd.empty")["array_types"], json!([]));
    assert_eq!(field("odd.flags")["array_types"], json!(["BOOL"]));
    assert_eq!(field("odd.flags")["value"], json!([true, false]));
    assert_eq!(field("odd.bytes")["value"], json!({"hex": "ff"}));
    assert_eq!(field("odd.big")["value"], json!(u64::MAX));
    assert_eq!(document["tensors"]["codes"]["shape"], json!([32, 2]));
    assert_eq!(document["tensors"]["codes"]["type"], json!("Q8_0"));

    let short = bench.json(&["dump", "odd.gguf", "--no-tensors"], 0);
    assert_eq!(short["tensors"], json!({}));
    assert!(short["metadata"]["odd.flags"].get("value").is_none());
}

#[test]
fn numbers_of_the_layout_are_printed_alone() {
    let bench = Bench::new();
    let file = GgufFile::open(&bench.path("model.gguf")).unwrap();
    let (code, out, _) = bench.run(&["dump", "model.gguf", "--data-offset"]).parts();
    assert_eq!((code, out), (0, format!("{}\n", file.data_offset())));
    assert_eq!(bench.run(&["dump", "model.gguf", "--data-alignment"]).out, "32\n");
    assert_eq!(bench.json(&["dump", "model.gguf", "--data-alignment"], 0), json!({"data_alignment": 32}));
    // Without tensors it is the offset at which they would begin.
    write_source(&bench.path("keys.gguf"), &metadata(), &MemoryTensors::default());
    let size = fs_err::metadata(bench.path("keys.gguf")).unwrap().len();
    assert_eq!(bench.run(&["dump", "keys.gguf", "--data-offset"]).out, format!("{size}\n"));
    for args in [&["--json-array"][..], &["--markdown", "--json"], &["--data-offset", "--data-alignment"]] {
        bench.run(&[&["dump", "model.gguf"], args].concat()).exits_with(2);
    }
    bench.run(&["dump", "missing.gguf"]).says(1, "missing.gguf");
}

#[test]
fn markdown_has_the_keys_and_the_tensors_by_layer() {
    let bench = Bench::new().with_tiny();
    let out = bench.run(&["dump", "model.gguf"]).says_only(0, "").out;
    assert_eq!(bench.run(&["dump", "model.gguf", "--markdown"]).out, out);
    insta::assert_snapshot!(out, @r##"
    # model.gguf

    - GGUF 3, little-endian, 992 B
    - 5 keys, 3 tensors, 80 elements, 13.2000 bits per weight
    - data from byte 800, aligned to 32

    ## Keys

    | no. | key | type | elements | value |
    | ---: | --- | --- | ---: | --- |
    | 1 | general.architecture | str | 1 | llama |
    | 2 | general.name | str | 1 | A \\u\{1b\}\[31mred\\u\{1b\}\[0m name |
    | 3 | llama.block\_count | u32 | 1 | 2 |
    | 4 | llama.rope.freq\_base | f32 | 1 | 0.1 |
    | 5 | tokenizer.ggml.tokens | arr\[str\] | 40 | (40 elements) \["t0", "t1", "t2", "t3", "t4", "t5", …\] |

    ## Tensors

    | group | tensors | elements | share | size | bits per weight |
    | --- | ---: | ---: | ---: | ---: | ---: |
    | [base](#base) | 3 | 80 | 100.00 % | 132 B | 13.2000 |

    ### <a name="base">base</a>

    | no. | tensor | type | shape | elements | bits per weight | offset | bytes |
    | ---: | --- | --- | --- | ---: | ---: | ---: | ---: |
    | 0 | norm | F32 | \[4\] | 4 | 32.0000 | 800 | 16 |
    | 1 | ramp | F32 | \[3, 4\] | 12 | 32.0000 | 832 | 48 |
    | 2 | codes | Q8\_0 | \[2, 32\] | 64 | 8.5000 | 896 | 68 |
    "##);
    let short = bench.run(&["dump", "model.gguf", "--no-tensors"]).out;
    assert!(out.starts_with(&short) && !short.contains("## Tensors"), "{short}");

    let out = bench.run(&["dump", "tiny.gguf"]).out;
    let file = GgufFile::open(&bench.path("tiny.gguf")).unwrap();
    for tensor in file.tensors() {
        let name = tensor.name.replace('_', "\\_");
        assert_eq!(out.matches(&format!("| {name} |")).count(), 1, "{name}");
    }
    assert!(out.contains("### <a name=\"blk-1\">blk.1</a>\n"), "{out}");
}

#[test]
fn a_split_that_is_not_made_is_the_one_that_would_be() {
    let bench = Bench::new();
    let args = ["split", "model.gguf", "-o", "p", "--split-max-size", "100", "--no-tensor-first-split"];
    let plan = bench.json(&[&args[..], &["--dry-run"]].concat(), 0);
    assert_eq!(bench.names(), ["model.gguf"]);
    let out = bench.run(&[&args[..], &["--dry-run"]].concat()).says_only(0, "").out;
    insta::assert_snapshot!(out, @"
    part                   tensors   size  first tensor     last tensor
    p-00001-of-00003.gguf        0  832 B  (metadata only)
    p-00002-of-00003.gguf        2  384 B  norm             ramp
    p-00003-of-00003.gguf        1  320 B  codes            codes

    3 parts, 3 tensors
    nothing was written
    ");
    let made = bench.json(&args, 0);
    let parts = plan["parts"].as_array().unwrap();
    let paths: Vec<_> = parts.iter().map(|part| part["path"].clone()).collect();
    assert_eq!(made["files"], json!(paths));
    for part in parts {
        let path = bench.path(part["path"].as_str().unwrap());
        assert_eq!(part["file_bytes"], json!(fs_err::metadata(&path).unwrap().len()));
        let alone = bench.json(&["dump", path.to_str().unwrap()], 0);
        let names: Vec<_> = alone["tensors"].as_object().unwrap().keys().collect();
        assert_eq!(part["tensors"], json!(names));
    }
    // A dry run reports that a run would stop here.
    fs_err::write(bench.path("p-00002-of-00003.gguf"), "mine").unwrap();
    bench
        .run(&[&args[..], &["--dry-run"]].concat())
        .says(0, "a run would stop here: ")
        .says(0, "does not replace");
}

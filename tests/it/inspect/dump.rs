//! Command `gguf-inspect dump`, and dry runs of a split.

use gguf_foundry::core::TensorSource;
use gguf_foundry::gguf::{GgufFile, Value};
use serde_json::{Value as Json, json};

use super::{Bench, metadata};
use crate::testkit::memory::write_source;

/// Text at an offset of the header: eight bytes of length, then the text.
fn text_at(bytes: &[u8], offset: &Json) -> String {
    let at = usize::try_from(offset.as_u64().unwrap()).unwrap();
    let n = usize::try_from(u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())).unwrap();
    String::from_utf8(bytes[at + 8..at + 8 + n].to_vec()).unwrap()
}

#[test]
fn json_says_where_the_header_declares_what() {
    let bench = Bench::new().with_layers(1);
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

//! Tensors of other modalities are left out of a text model, and reported.

use std::path::Path;

use gguf_foundry::convert::{Conversion, ConvertOptions};
use serde_json::{Map, Value as Json, json};

use crate::support::fixture;
use crate::support::goldens::{Goldens, conformance_tests};

/// Bundled text model with parts of a vision model added.
fn with_vision(dir: &Path) {
    for entry in fs_err::read_dir(fixture("tiny-llama")).unwrap() {
        let entry = entry.unwrap();
        fs_err::copy(entry.path(), dir.join(entry.file_name())).unwrap();
    }
    let path = dir.join("model.safetensors");
    let bytes = fs_err::read(&path).unwrap();
    let header_len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let (header, mut data) = (&bytes[8..8 + header_len], bytes[8 + header_len..].to_vec());
    let mut header: Map<String, Json> = serde_json::from_slice(header).unwrap();
    for name in [
        "vision_tower.layers.0.weight",
        "vision_tower.layers.1.weight",
        "multi_modal_projector.linear.weight",
    ] {
        let offsets = [data.len(), data.len() + 16];
        header.insert(name.to_owned(), json!({"dtype": "F32", "shape": [2, 2], "data_offsets": offsets}));
        data.extend([0u8; 16]);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let out = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
    fs_err::write(path, out).unwrap();
}

fn warnings(dir: &Path) -> Vec<String> {
    let options = ConvertOptions { tokenizer: false, ..ConvertOptions::default() };
    Conversion::plan(dir, &options).unwrap().warnings().to_vec()
}

#[test]
fn a_vision_model_converted_to_text_says_what_is_left_out() {
    let dir = tempfile::tempdir().unwrap();
    with_vision(dir.path());
    assert_eq!(
        warnings(dir.path()),
        ["only the text model is written: 3 tensors left out (1 of `multi_modal_projector`, 2 \
             of `vision_tower`)"]
    );
    assert_eq!(warnings(&fixture("tiny-llama")), [""; 0], "a text model loses nothing");
}

conformance_tests!(llava_says_what_is_left_out);
fn llava_says_what_is_left_out(corpus: &Goldens) {
    let warnings = warnings(&corpus.join("arch/llava_llama/hf"));
    let said = warnings.iter().find(|warning| warning.starts_with("only the text model is written: "));
    let said = said.unwrap_or_else(|| panic!("{warnings:?}"));
    assert!(said.contains("`vision_tower`") && said.contains("`multi_modal_projector`"), "{said}");
}

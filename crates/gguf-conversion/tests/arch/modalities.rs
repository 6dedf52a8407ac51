//! Tensors of other modalities are left out of a text model, and reported.

use std::path::Path;

use gguf_conversion::{Conversion, ConvertOptions};

use gguf_testkit::checkpoints::Safetensors;
use gguf_testkit::goldens::{Goldens, conformance_tests};
use gguf_testkit::{files, fixture};

/// Bundled text model with parts of a vision model added.
fn with_vision(dir: &Path) {
    files::copy(fixture("tiny-llama"), dir);
    let path = dir.join("model.safetensors");
    let bytes = fs_err::read(&path).unwrap();
    let mut file = Safetensors::parse(&bytes);
    for name in [
        "vision_tower.layers.0.weight",
        "vision_tower.layers.1.weight",
        "multi_modal_projector.linear.weight",
    ] {
        file.add_f32(name, [2, 2], &[0.0; 4]);
    }
    file.write(&path);
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

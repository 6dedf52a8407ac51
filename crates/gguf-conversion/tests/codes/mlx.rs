//! Checkpoints that mlx-lm wrote, compared with the transformers checkpoints that they stand for.

use std::path::Path;

use gguf_arch::OutType;
use gguf_conversion::{Conversion, ConvertOptions, ModelSource};
use gguf_core::TensorSource;
use gguf_testkit::goldens::{Goldens, corpus_tests};
use gguf_testkit::memory::{f32_values, tensor_bytes};
use gguf_testkit::{files, report_cases};

corpus_tests!(checkpoints_of_mlx_give_the_file_of_what_they_stand_for);

fn plan(dir: &Path, adapter: Option<&Path>) -> Conversion {
    let options = ConvertOptions {
        file_type: Some(OutType::F32),
        model_name: Some("golden".to_owned()),
        tokenizer: false,
        ..ConvertOptions::default()
    };
    let source =
        ModelSource::open(dir, &options).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let source = match adapter {
        Some(adapter) => source.merged(adapter, &options).unwrap(),
        None => source,
    };
    Conversion::of(source, &options).unwrap_or_else(|error| panic!("{}: {error}", dir.display()))
}

fn checkpoints_of_mlx_give_the_file_of_what_they_stand_for(corpus: &Goldens) {
    let mut n_cases = 0;
    let cases = files::entries(corpus.join("mlx"));
    for case in cases.iter().filter(|case| case.join("case.json").is_file()) {
        let about = files::json(case.join("case.json"));
        let tolerance = about["tolerance"]["absolute"].as_f64().unwrap_or(0.0) as f32;
        let adapter = Some(case.join("adapter")).filter(|_| about["kind"] == "adapter");
        let (want, found) = (plan(&case.join("orig"), None), plan(&case.join("hf"), adapter.as_deref()));
        assert_eq!(found.tensors().len(), want.tensors().len(), "{}", case.display());
        for (at, tensor) in want.tensors().iter().enumerate() {
            let own =
                found.tensors().iter().position(|own| own.name == tensor.name && own.shape == tensor.shape);
            let place = format!("{}: {}", case.display(), tensor.name);
            let own = own.unwrap_or_else(|| panic!("{place} is not there"));
            let (want, found) =
                (f32_values(&tensor_bytes(&want, at)), f32_values(&tensor_bytes(&found, own)));
            let far = found.iter().zip(&want).position(|(a, b)| {
                a.to_bits() != b.to_bits() && ((a - b).abs() > tolerance || a.is_nan() || b.is_nan())
            });
            assert!(far.is_none(), "{place}: {far:?}");
        }
        n_cases += 1;
    }
    report_cases("checkpoints of MLX", n_cases);
}

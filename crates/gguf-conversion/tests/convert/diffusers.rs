//! Image and video models in the layout of diffusers: the file of the original, or an error that names the tensor.

use std::collections::BTreeMap;
use std::path::Path;

use gguf_arch::OutType;
use gguf_arch::diffusion::DiffusionCards;
use gguf_conversion::{ConvertError, ConvertOptions, DiffusionConversion};
use gguf_core::{Hint, TensorSource};
use gguf_testkit::checkpoints::Safetensors;
use gguf_testkit::goldens::{Goldens, corpus_tests};
use gguf_testkit::memory::tensor_bytes;
use gguf_testkit::{files, fixture, report_cases};

/// Tensor of a checkpoint: its shape, and its values in F32.
type Tensors = BTreeMap<String, (Vec<u64>, Vec<f32>)>;

fn dims(text: &str) -> Vec<u64> {
    text.split('x').map(|dim| dim.parse().unwrap()).collect()
}

/// Originals of `fixtures/diffusers.tsv`, and what diffusers makes of them; each number occurs once in a checkpoint.
fn cases() -> BTreeMap<String, [Tensors; 2]> {
    let text = fs_err::read_to_string(fixture("diffusers.tsv")).unwrap();
    let mut cases: BTreeMap<String, [Tensors; 2]> = BTreeMap::new();
    for line in text.lines() {
        let [case, stored, shape, original, whole, row] =
            line.split('\t').collect::<Vec<_>>().try_into().unwrap();
        let [originals, parts] = cases.entry(case.to_owned()).or_default();
        let n_before: usize = originals.values().map(|tensor| tensor.1.len()).sum();
        let (shape, whole) = (dims(shape), dims(whole));
        let n = |dims: &[u64]| dims.iter().product::<u64>() as usize;
        let values = || (0..n(&whole)).map(|at| (n_before + at) as f32).collect();
        let (_, values) = originals.entry(original.to_owned()).or_insert_with(|| (whole.clone(), values()));
        let own = match row {
            "swapped" => [&values[n(&whole) / 2..], &values[..n(&whole) / 2]].concat(),
            row => {
                let first = row.parse::<usize>().unwrap() * n(&whole[1..]);
                values[first..first + n(&shape)].to_vec()
            }
        };
        parts.insert(stored.to_owned(), (shape, own));
    }
    cases
}

fn write(path: &Path, tensors: &Tensors, prefix: &str) {
    let mut file = Safetensors::default();
    for (name, (shape, values)) in tensors {
        file.add_f32(&format!("{prefix}{name}"), shape, values);
    }
    file.write(path);
}

fn plan(path: &Path) -> Result<DiffusionConversion, ConvertError> {
    let options = ConvertOptions { file_type: Some(OutType::F32), ..ConvertOptions::default() };
    DiffusionConversion::find(path, &options).map(Option::unwrap)
}

/// Keys, and the description and bytes of each tensor.
fn content(conversion: &DiffusionConversion) -> (String, Vec<(String, Vec<u8>)>) {
    let tensors = conversion.tensors().iter().enumerate();
    let tensors = tensors.map(|(at, meta)| (format!("{meta:?}"), tensor_bytes(conversion, at)));
    let keys: Vec<_> = conversion.metadata().iter().collect();
    (format!("{keys:?}"), tensors.collect())
}

#[test]
fn the_file_is_that_of_the_original() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs_err::create_dir_all(at("p/transformer")).unwrap();
    fs_err::write(at("p/model_index.json"), "{}").unwrap();
    fs_err::write(at("p/transformer/config.json"), r#"{"_class_name": "X"}"#).unwrap();
    let mut seen = Vec::new();
    for (case, [original, stored]) in cases() {
        write(&at("o.safetensors"), &original, "");
        write(&at("s.safetensors"), &stored, "transformer.");
        write(&at("p/transformer/diffusion_pytorch_model.safetensors"), &stored, "");
        let expected = plan(&at("o.safetensors")).unwrap();
        seen.push(expected.card().unwrap().gguf.clone());
        for input in ["s.safetensors", "p", "p/transformer"] {
            let found = plan(&at(input)).unwrap_or_else(|error| panic!("{case}: {error}"));
            assert!(content(&found) == content(&expected), "{case}: {input}");
            assert_eq!(found.warnings(), expected.warnings(), "{case}");
            let pieces = found.account();
            assert!(stored.keys().all(|name| pieces.iter().any(|piece| piece.name.ends_with(name.as_str()))));
        }
    }
    for card in DiffusionCards::embedded().unwrap().iter() {
        let n = seen.iter().filter(|gguf| **gguf == card.gguf).count();
        assert!(n >= card.layouts.len(), "{}: {n} cases", card.gguf);
    }
}

#[test]
fn the_original_next_to_another_layout_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for folder in ["transformer", "transformer_2"] {
        fs_err::create_dir(at(folder)).unwrap();
        fs_err::write(at(folder).join("config.json"), r#"{"_class_name": "X"}"#).unwrap();
    }
    fs_err::write(at("model_index.json"), "{}").unwrap();
    let [original, mut stored] = cases().remove("wan_i2v_f32").unwrap();
    stored.get_mut("proj_out.bias").unwrap().1[0] = -1.0;
    write(&at("transformer/diffusion_pytorch_model.safetensors"), &stored, "");
    let of_folder = plan(dir.path()).unwrap();
    assert!(of_folder.warnings()[0].starts_with("`transformer_2` of the pipeline holds another model"));
    write(&at("wan.safetensors"), &original, "");
    let (both, expected) = (plan(dir.path()).unwrap(), plan(&at("wan.safetensors")).unwrap());
    assert!(content(&both) == content(&expected) && content(&both) != content(&of_folder));
}

#[test]
fn what_does_not_lead_back_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.safetensors");
    let cases = cases();
    let said = |case: &str, change: &dyn Fn(&mut Tensors)| {
        let mut stored = cases[case][1].clone();
        change(&mut stored);
        write(&path, &stored, "");
        let error = plan(&path).unwrap_err();
        assert!(!error.hints().is_empty(), "{error}");
        error.to_string()
    };
    let without =
        |case: &str, name: &str| said(case, &|stored| assert!(stored.remove(name).is_some(), "{name}"));
    // Every part of a joined tensor.
    for (case, [original, stored]) in &cases {
        let is_part = |(name, (_, values)): &(&String, &(Vec<u64>, Vec<f32>))| {
            !original.values().any(|own| own.1.len() == values.len() && own.1.contains(&values[0]))
                && name.contains(".0.")
        };
        for (name, _) in stored.iter().filter(is_part) {
            assert!(without(case, name).contains(&format!("tensor `{name}` is missing: with `")), "{name}");
        }
    }
    for (case, name) in [
        ("flux_dev_bf16", "norm_out.linear.weight"),
        ("sd3_f16", "time_text_embed.timestep_embedder.linear_2.weight"),
        ("chroma_f16", "distilled_guidance_layer.out_proj.weight"),
        ("wan_vace_f16", "scale_shift_table"),
        ("z_image_bf16", "all_x_embedder.2-1.weight"),
    ] {
        assert!(without(case, name).contains(&format!("lacks `{name}`, which every")), "{name}");
    }
    for name in [
        "transformer_blocks.0.attn.to_q.scale",
        "ip_adapter_x.weight",
        "transformer_blocks.x.ff.net.2.weight",
    ] {
        let added = said("flux_dev_bf16", &|stored| {
            stored.insert(name.to_owned(), (vec![2], vec![1.0; 2]));
        });
        let expected = format!(
            "`flux` in the layout of diffusers: tensor `{name}`: its name in the original is not known"
        );
        assert!(added.contains(&expected), "{added}");
    }
    let reshaped = |case, name: &str, shape: &[u64]| {
        said(case, &|stored| {
            let n = shape.iter().product::<u64>() as usize;
            stored.insert(name.to_owned(), (shape.to_vec(), vec![1.0; n]));
        })
    };
    let found = reshaped("hyvid_bf16", "transformer_blocks.0.attn.to_v.weight", &[16, 8]);
    assert!(
        found.contains(
            "shape [16, 8], expected rows like those of `transformer_blocks.0.attn.to_q.weight`, [16, 16]"
        ),
        "{found}"
    );
    let found = reshaped("hyvid_bf16", "single_transformer_blocks.0.proj_mlp.weight", &[64, 12]);
    assert!(
        found.contains("expected rows like those of `single_transformer_blocks.0.attn.to_q.weight`"),
        "{found}"
    );
    for shape in [&[24, 16][..], &[33, 16], &[32], &[2, 32, 16]] {
        let found = reshaped("aura_f16", "norm_out.linear.weight", shape);
        assert!(
            found.contains("two halves, each of as many rows as `norm_out.linear.weight` has columns"),
            "{found}"
        );
    }
    let context = "transformer_blocks.2.norm1_context.linear";
    let found = without("sd3_f16", &format!("{context}.weight"));
    assert!(found.contains(&format!("expected `{context}.weight` next to it")), "{found}");
    for name in ["condition_embedder.image_embedder.pos_embed", "face_adapter.0.to_q.weight"] {
        let found = said("wan_i2v_f32", &|stored| {
            stored.insert(name.to_owned(), (vec![2], vec![1.0; 2]));
        });
        assert!(found.contains("this is `wan` in the layout of diffusers"), "{found}");
    }
}

corpus_tests!(files_of_the_corpus_are_those_of_their_originals);
fn files_of_the_corpus_are_those_of_their_originals(corpus: &Goldens) {
    let mut n = 0;
    for case in
        files::entries(corpus.join("diffusers")).iter().filter(|path| path.join("case.json").is_file())
    {
        let about = files::json(case.join("case.json"));
        let original = plan(&case.join(about["original"].as_str().unwrap())).unwrap();
        let found = plan(&case.join("diffusers")).unwrap();
        let is_kept = about["names"] == "either" && found.tensors()[0].name != original.tensors()[0].name;
        assert!(is_kept || content(&found) == content(&original), "{}", case.display());
        n += 1;
    }
    assert!(n > 0, "no cases");
    report_cases("image and video models in the layout of diffusers", n);
}

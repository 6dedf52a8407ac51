//! Weights that MLX saved give the file of the model that MLX was given, or an error that names MLX.

use std::path::Path;

use gguf_arch::{CardKind, DraftHeads, OutType};
use gguf_conversion::{Conversion, ConvertOptions};
use gguf_core::{Hint, TensorMeta, TensorSource as _};
use gguf_testkit::codes;
use gguf_testkit::goldens::Goldens;
use gguf_testkit::tiers::{Tier, two_tiers};
use serde_json::{Value as Json, json};

use crate::digits;
use crate::experts::{Stored, Weights, converted, read, switched, taken, write_as};
use crate::fixture::{CardFixture, case};

/// Norms to which mlx-lm adds one.
const NORMS: [&str; 5] = [
    ".input_layernorm.weight",
    ".post_attention_layernorm.weight",
    "model.norm.weight",
    ".q_norm.weight",
    ".k_norm.weight",
];

fn floats(stored: &Stored) -> Vec<f32> {
    assert_eq!(stored.ty, "BF16");
    let float = |pair: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([pair[0], pair[1]])) << 16);
    stored.bytes.chunks(2).map(float).collect()
}

/// A checkpoint as mlx-lm saves it: stacks of experts, convolutions with the channels last, and norms with one added.
fn saved(all: &Weights, adds_one: bool) -> Weights {
    let mut weights = all.clone();
    for (module, layer) in taken(&mut weights) {
        switched(&mut weights, &module, layer);
    }
    for (name, stored) in &mut weights {
        if let ([channels, 1, width], true) = (&stored.dims[..], name.contains("conv")) {
            stored.dims = vec![*channels, *width, 1];
        }
        if adds_one && stored.dims.len() == 1 && NORMS.iter().any(|norm| name.ends_with(norm)) {
            stored.bytes = floats(stored).iter().flat_map(|value| (value + 1.0).to_le_bytes()).collect();
            "F32".clone_into(&mut stored.ty);
        }
    }
    weights
}

fn sorted(case: &CardFixture, dir: &Path) -> Vec<Json> {
    let mut rows =
        converted(case, dir).unwrap_or_else(|error| panic!("{}: {error} {:?}", case.at, error.hints()));
    rows.sort_by_key(Json::to_string);
    rows
}

#[test]
fn what_mlx_changes_is_undone() {
    for (at, adds_one) in [
        ("qwen3next/qwen3_next.json", true),
        ("qwen35/qwen3_5.json", true),
        ("mamba2/mamba2.json", false),
        ("lfm2/lfm2.json", false),
        ("gemma2/gemma2.json", false),
        ("qwen3moe/plain.json", false),
    ] {
        let case = case(at);
        let dir = tempfile::tempdir().unwrap();
        case.write(dir.path());
        let all: Weights = read(dir.path())
            .into_iter()
            .filter(|(name, stored)| {
                !name.contains("mtp") && !name.contains("visual") && stored.dims.len() < 4
            })
            .collect();
        write_as(dir.path(), &all, "pt");
        let expected = sorted(&case, dir.path());
        let weights = saved(&all, adds_one);
        write_as(dir.path(), &weights, "mlx");
        assert_eq!(sorted(&case, dir.path()), expected, "{at}");
    }
}

/// Element `[matrix, row, column]` of a stack of matrices, in another order: `to` gives the place in the new stack.
fn moved(
    stored: &Stored,
    [n, rows, cols]: [usize; 3],
    dims: [u64; 3],
    to: impl Fn(usize, usize, usize) -> usize,
) -> Stored {
    let size = if stored.ty == "F32" { 4 } else { 2 };
    let mut bytes = vec![0; size * dims.iter().product::<u64>() as usize];
    for at in 0..n * rows * cols {
        let to = to(at / (rows * cols), at / cols % rows, at % cols);
        if let Some(out) = bytes.get_mut(size * to..size * (to + 1)) {
            out.copy_from_slice(&stored.bytes[size * at..size * (at + 1)]);
        }
    }
    Stored { ty: stored.ty.clone(), dims: dims.to_vec(), bytes }
}

/// Keys and values of latent attention in two stacks, that of the keys transposed; gate and up of experts apart.
fn divided(weights: &Weights, config: &Json) -> Weights {
    let number = |key: &str| config[key].as_u64().or(config["text_config"][key].as_u64()).unwrap() as usize;
    let mut all = Weights::new();
    for (name, stored) in weights {
        if let Some(module) = name.strip_suffix(".kv_b_proj.weight") {
            let [heads, k, v] = ["num_attention_heads", "qk_nope_head_dim", "v_head_dim"].map(number);
            let rank = stored.dims[1] as usize;
            let none = usize::MAX / 4;
            let key =
                |h: usize, row: usize, col: usize| if row < k { (h * rank + col) * k + row } else { none };
            let value = |h: usize, row: usize, col: usize| {
                if row < k { none } else { (h * v + row - k) * rank + col }
            };
            let dims = [heads, k + v, rank];
            let as_dims = |dims: [usize; 3]| dims.map(|dim| dim as u64);
            all.insert(
                format!("{module}.embed_q.weight"),
                moved(stored, dims, as_dims([heads, rank, k]), key),
            );
            all.insert(
                format!("{module}.unembed_out.weight"),
                moved(stored, dims, as_dims([heads, v, rank]), value),
            );
        } else if let Some(module) = name.strip_suffix(".experts.gate_up_proj") {
            let &[n, rows, cols] = &stored.dims[..] else { panic!() };
            let dims = [n, rows, cols].map(|dim| dim as usize);
            let half = dims[1] / 2;
            for (first, word) in [(0, "gate_proj"), (half, "up_proj")] {
                let to = |e: usize, row: usize, col: usize| match row.checked_sub(first) {
                    Some(row) if row < half => (e * half + row) * dims[2] + col,
                    _ => usize::MAX / 4,
                };
                let made = moved(stored, dims, [n, rows / 2, cols], to);
                all.insert(format!("{module}.experts.switch_glu.{word}.weight"), made);
            }
        } else if let Some(module) = name.strip_suffix(".experts.down_proj") {
            all.insert(format!("{module}.experts.switch_glu.down_proj.weight"), stored.clone());
        } else {
            all.insert(name.clone(), stored.clone());
        }
    }
    all
}

#[test]
fn weights_that_mlx_divides_are_put_together() {
    for at in [
        "deepseek2/deepseek_v3.json",
        "deepseek2/glm4_moe_lite_no_mtp.json",
        "gemma4/gemma4_moe.json",
        "mistral4/mistral4.json",
    ] {
        let case = case(at);
        let dir = tempfile::tempdir().unwrap();
        case.write(dir.path());
        let all = read(dir.path());
        write_as(dir.path(), &all, "pt");
        let expected = sorted(&case, dir.path());
        let config = gguf_testkit::files::json(dir.path().join("config.json"));
        let weights = divided(&all, &config);
        assert_ne!(weights.len(), all.len(), "{at}");
        write_as(dir.path(), &saved(&weights, false), "mlx");
        assert_eq!(sorted(&case, dir.path()), expected, "{at}");
    }
}

/// Queries, keys and values of each layer that has a convolution of them, and these convolutions, one after the other.
fn joined(weights: &Weights) -> Weights {
    let mut all = weights.clone();
    for (part, whole) in [("_conv1d.weight", "qkv_conv.conv.weight"), ("_proj.weight", "qkv_proj.weight")] {
        for name in weights.keys().filter(|name| name.ends_with(".self_attn.q_conv1d.weight")) {
            let module = name.trim_end_matches("q_conv1d.weight");
            let parts = ["q", "k", "v"].map(|of| all.remove(&format!("{module}{of}{part}")).unwrap());
            let mut made = parts[0].clone();
            made.dims[0] = parts.iter().map(|part| part.dims[0]).sum();
            made.bytes = parts.into_iter().flat_map(|part| part.bytes).collect();
            all.insert(format!("{module}{whole}"), made);
        }
    }
    all
}

#[test]
fn names_of_mlx_are_those_of_transformers_again() {
    let names: [(&str, &[(&str, &str)]); 2] = [
        (
            "gptneox/gpt_neox.json",
            &[("embed_out.", "model.embed_out."), ("gpt_neox.layers.", "model.h."), ("gpt_neox.", "model.")],
        ),
        (
            "kimi-k3/kimi_k3.json",
            &[(".block_sparse_moe.gate.e_", ".mlp.e_"), (".block_sparse_moe.", ".mlp.")],
        ),
    ];
    for (at, renamed) in names {
        let case = case(at);
        let dir = tempfile::tempdir().unwrap();
        case.write(dir.path());
        let all: Weights = read(dir.path()).into_iter().filter(|(_, stored)| stored.dims.len() < 4).collect();
        write_as(dir.path(), &all, "pt");
        let expected = sorted(&case, dir.path());
        let own = |(name, stored): (String, Stored)| {
            (renamed.iter().fold(name, |name, (from, to)| name.replace(from, to)), stored)
        };
        let weights: Weights = saved(&joined(&all), false).into_iter().map(own).collect();
        assert!(weights.keys().all(|name| !all.contains_key(name)) || at.starts_with("kimi"));
        write_as(dir.path(), &weights, "mlx");
        assert_eq!(sorted(&case, dir.path()), expected, "{at}");
    }
}

#[test]
fn a_draft_head_beside_norms_of_mlx_is_left_out() {
    let case = case("qwen35/qwen3_5_mtp.json");
    let dir = tempfile::tempdir().unwrap();
    case.write(dir.path());
    let all: Weights = read(dir.path()).into_iter().filter(|(_, stored)| stored.dims.len() < 4).collect();
    let plan = |format: &str, heads: DraftHeads| {
        write_as(dir.path(), &all, format);
        let options = ConvertOptions { heads, tokenizer: false, ..ConvertOptions::default() };
        Conversion::plan(dir.path(), &options)
    };
    for (format, heads, warns, has_head) in [
        ("mlx", DraftHeads::Kept, true, false),
        ("mlx", DraftHeads::Dropped, false, false),
        ("pt", DraftHeads::Kept, false, true),
    ] {
        let made = plan(format, heads).unwrap();
        let warned = made
            .warnings()
            .iter()
            .any(|warning| warning.contains("it is left out; the model that MLX was given"));
        let own = made.tensors().iter().any(|tensor| tensor.name.contains(".nextn."));
        assert_eq!((warned, own), (warns, has_head), "{format} {heads:?}: {:?}", made.warnings());
    }
    let error = plan("mlx", DraftHeads::Alone).unwrap_err();
    assert!(error.to_string().contains("perhaps not to those of the draft head"), "{error}");
}

/// A kernel with the channels last.
fn channels_last(stored: &Stored) -> Stored {
    let [outputs, channels, places @ ..] = &stored.dims[..] else { panic!() };
    let n: u64 = places.iter().product();
    let to = |output: usize, channel: usize, place: usize| {
        (output * n as usize + place) * *channels as usize + channel
    };
    let dims = [*outputs as usize, *channels as usize, n as usize];
    let made = moved(stored, dims, [*outputs, n, *channels], to);
    Stored { dims: [&[*outputs], places, &[*channels]].concat(), ..made }
}

/// Names, shapes and values of the towers' file.
fn towers(dir: &Path) -> Vec<Json> {
    let options = ConvertOptions {
        kind: CardKind::Mmproj,
        file_type: Some(OutType::F32),
        tokenizer: false,
        ..ConvertOptions::default()
    };
    let made = Conversion::plan(dir, &options).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let row =
        |(at, tensor): (usize, &TensorMeta)| json!([tensor.name, tensor.shape.dims(), digits(&made, at)]);
    let mut rows: Vec<Json> = made.tensors().iter().enumerate().map(row).collect();
    rows.sort_by_key(Json::to_string);
    rows
}

#[test]
fn towers_have_their_channels_first_again() {
    let goldens = Goldens::selection();
    for (case, from, to) in [
        ("qwen2_vl_two_layers", "visual.", "vision_tower."),
        ("lfm2_vl", "model.vision_tower.vision_model.", "vision_tower."),
        ("muse_glimmer", "model.vision_", "vision_"),
        ("lfm2_audio", "", ""),
        ("qwen2_audio", "", ""),
    ] {
        let (dir, from_dir) =
            (tempfile::tempdir().unwrap(), goldens.find(format!("mmproj/{case}/hf")).unwrap());
        for file in gguf_testkit::files::entries(&from_dir) {
            fs_err::copy(&file, dir.path().join(file.file_name().unwrap())).unwrap();
        }
        let all = read(dir.path());
        let expected = towers(dir.path());
        let own = |(name, stored): (&String, &Stored)| {
            let name = name.strip_prefix(from).map_or_else(|| name.clone(), |rest| format!("{to}{rest}"));
            let is_kernel = stored.dims.len() > 3 || (stored.dims.len() == 3 && name.contains("conv"));
            (name, if is_kernel { channels_last(stored) } else { stored.clone() })
        };
        let weights: Weights = all.iter().map(own).collect();
        write_as(dir.path(), &weights, "mlx");
        assert_eq!(towers(dir.path()), expected, "{case}");
    }
}

two_tiers!(words_give_the_file_of_their_floats);
/// Each matrix whose rows are whole groups as words of MLX, beside the floats that these mean: as MLX
/// saves a model, and as AutoRound does, which changes nothing else.
fn words_give_the_file_of_their_floats(tier: Tier) {
    let cases = [
        ("qwen35/qwen3_5.json", ("affine", 5, 32), "mlx"),
        ("llama/plain.json", ("affine", 4, 32), "mlx"),
        ("qwen35/qwen3_5.json", ("affine", 5, 32), "pt"),
        ("qwen3moe/plain.json", ("affine", 3, 32), "mlx"),
        ("falcon-h1/falcon_h1.json", ("affine", 4, 32), "pt"),
        ("lfm2/lfm2.json", ("affine", 6, 32), "mlx"),
        ("step35/step3p5.json", ("affine", 4, 32), "pt"),
        ("qwen3next/qwen3_next.json", ("affine", 4, 32), "pt"),
    ];
    for (at, form, saved_as) in tier.some(2, cases) {
        let case = case(at);
        let dir = tempfile::tempdir().unwrap();
        case.write(dir.path());
        let mut all: Weights = read(dir.path())
            .into_iter()
            .filter(|(name, stored)| {
                !name.contains("mtp") && !name.contains("visual") && stored.dims.len() < 4
            })
            .collect();
        if saved_as == "mlx" {
            all = saved(&all, false);
        }
        let (mut words, mut noise, mut n) = (Weights::new(), codes::noise(7), 0);
        for (name, stored) in &mut all {
            let (Some(module), [outer @ .., cols]) = (name.strip_suffix(".weight"), &stored.dims[..]) else {
                continue;
            };
            if outer.is_empty() || cols % form.2 != 0 || name.contains("conv") {
                continue;
            }
            n += 1;
            let rows = outer.iter().product();
            let made = codes::mlx::mlx([rows, *cols], &mut noise, form);
            for part in made.parts {
                let dims = [outer, &part.dims[part.dims.len() - 1..]].concat();
                let name = format!("{module}{}", part.name.strip_prefix(codes::MODULE).unwrap());
                words.insert(name, Stored { ty: part.ty.name().to_owned(), dims, bytes: part.bytes });
            }
            let values = (0..rows * cols).map(|place| (made.value)(place / cols, place % cols));
            stored.bytes = values.flat_map(f32::to_le_bytes).collect();
            "F32".clone_into(&mut stored.ty);
        }
        assert!(n > 5, "{at}: {n}");
        write_as(dir.path(), &all, saved_as);
        let expected = sorted(&case, dir.path());
        for (name, stored) in &all {
            words.entry(name.clone()).or_insert_with(|| stored.clone());
        }
        // The header does not tell: names and shapes do.
        write_as(dir.path(), &words, "pt");
        let path = dir.path().join("config.json");
        let mut config = gguf_testkit::files::json(&path);
        config["quantization"] = json!({"mode": form.0, "bits": form.1, "group_size": form.2});
        config["quantization_config"] = config["quantization"].clone();
        fs_err::write(path, config.to_string()).unwrap();
        assert_eq!(sorted(&case, dir.path()), expected, "{at}");
    }
}

/// AutoRound stores the words of `Conv1D` as those of a linear layer, and a file of its may have no header.
#[test]
fn words_of_matrices_that_are_stored_transposed_are_turned() {
    let case = case("gpt2/gpt2.json");
    let dir = tempfile::tempdir().unwrap();
    case.write(dir.path());
    let (mut all, mut words, mut noise) = (read(dir.path()), Weights::new(), codes::noise(7));
    for (name, stored) in &mut all {
        let (Some(module), &[inputs, outputs]) = (name.strip_suffix(".weight"), &stored.dims[..]) else {
            continue;
        };
        if !module.contains(".c_") {
            continue;
        }
        let made = codes::mlx::mlx([outputs, inputs], &mut noise, ("affine", 4, 32));
        for part in made.parts {
            let name = format!("{module}{}", part.name.strip_prefix(codes::MODULE).unwrap());
            let dims = vec![outputs, *part.dims.last().unwrap()];
            words.insert(name, Stored { ty: part.ty.name().to_owned(), dims, bytes: part.bytes });
        }
        let values = (0..inputs * outputs).map(|place| (made.value)(place % outputs, place / outputs));
        stored.bytes = values.flat_map(f32::to_le_bytes).collect();
        "F32".clone_into(&mut stored.ty);
    }
    assert!(words.len() >= 24, "{}", words.len());
    write_as(dir.path(), &all, "pt");
    let expected = sorted(&case, dir.path());
    for (name, stored) in &all {
        words.entry(name.clone()).or_insert_with(|| stored.clone());
    }
    let path = dir.path().join("config.json");
    let mut config = gguf_testkit::files::json(&path);
    config["quantization"] = json!({"bits": 4, "group_size": 32});
    fs_err::write(path, config.to_string()).unwrap();
    for format in ["pt", ""] {
        write_as(dir.path(), &words, format);
        assert_eq!(sorted(&case, dir.path()), expected, "{format}");
    }
}

#[test]
fn what_cannot_be_undone_names_mlx_and_the_way_out() {
    for (at, rename, wanted) in [
        (
            "falcon-h1/falcon_h1.json",
            "",
            "MLX saved these weights with the multipliers of config.json in the matrices",
        ),
        ("gpt2/gpt2.json", "", "MLX saved these weights with the matrices transposed"),
        ("llama/plain.json", "self_attn.k_proj", "MLX saved these weights, and "),
    ] {
        let case = case(at).renamed(|name| match rename {
            "" => name.to_owned(),
            part => name.replace(part, "self_attn.embed_q"),
        });
        let dir = tempfile::tempdir().unwrap();
        case.write(dir.path());
        write_as(dir.path(), &read(dir.path()), "mlx");
        let error = converted(&case, dir.path()).unwrap_err();
        assert!(
            error.to_string().contains(wanted) && error.to_string().contains("model.safetensors"),
            "{error}"
        );
        assert!(error.hints()[0].contains("convert the model that MLX was given"), "{:?}", error.hints());
    }
}

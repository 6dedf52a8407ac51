//! Experts in the layouts of other programs give the file that one tensor per expert gives.

use std::collections::BTreeMap;
use std::path::Path;

use gguf_arch::OutType;
use gguf_conversion::ConvertError;
use gguf_core::{Hint, TensorSource};
use gguf_testkit::checkpoints::Safetensors;
use gguf_testkit::tiers::{Tier, two_tiers};
use serde_json::{Value as Json, json};

use crate::digits;
use crate::fixture::{self, CardFixture, case};

/// Stored tensor.
#[derive(Clone)]
pub struct Stored {
    pub ty: String,
    pub dims: Vec<u64>,
    pub bytes: Vec<u8>,
}

pub type Weights = BTreeMap<String, Stored>;

pub fn read(dir: &Path) -> Weights {
    let mut file = Safetensors::parse(&fs_err::read(dir.join("model.safetensors")).unwrap());
    let header = file.header().clone();
    let row = |(name, meta): (&String, &Json)| {
        let ty = meta["dtype"].as_str().unwrap().to_owned();
        let dims = serde_json::from_value(meta["shape"].clone()).unwrap();
        (name.clone(), Stored { ty, dims, bytes: file.data_mut(name).to_vec() })
    };
    header.iter().filter(|(name, _)| *name != "__metadata__").map(row).collect()
}

/// Writes the tensors in order of their names.
fn write(dir: &Path, weights: &Weights) {
    write_as(dir, weights, "pt");
}

/// Writes the tensors as a program's own.
pub fn write_as(dir: &Path, weights: &Weights, format: &str) {
    let mut file = Safetensors::default();
    file.saved_by(format);
    for (name, stored) in weights {
        file.add(name, &stored.ty, &stored.dims, &stored.bytes);
    }
    file.write(&dir.join("model.safetensors"));
    let _ = fs_err::remove_file(dir.join("model.safetensors.index.json"));
}

/// Name, shape and checksum of each tensor of the file.
pub fn converted(case: &CardFixture, dir: &Path) -> Result<Vec<Json>, ConvertError> {
    let conversion = case.plan(dir, OutType::F32)?;
    let row = |(index, tensor): (usize, &gguf_core::TensorMeta)| {
        json!([tensor.name, tensor.shape.dims(), digits(&conversion, index)])
    };
    Ok(conversion.tensors().iter().enumerate().map(row).collect())
}

fn stacked(parts: Vec<Stored>) -> Stored {
    let n = parts.len() as u64;
    let mut parts = parts.into_iter();
    let mut all = parts.next().unwrap();
    parts.for_each(|part| all.bytes.extend(part.bytes));
    all.dims.insert(0, n);
    all
}

/// Rows of `a`, then rows of `b`.
fn joined(a: &Stored, b: &Stored) -> Stored {
    let dims = vec![a.dims[0] + b.dims[0], a.dims[1]];
    Stored { ty: a.ty.clone(), dims, bytes: [&a.bytes[..], &b.bytes].concat() }
}

/// Swaps the last two axes.
fn turned(stored: &Stored) -> Stored {
    let n_bytes = if stored.ty == "F32" { 4 } else { 2 };
    let mut dims = stored.dims.clone();
    let [.., rows, columns] = stored.dims[..] else { panic!() };
    let n = dims.len();
    dims.swap(n - 1, n - 2);
    let mut bytes = Vec::new();
    for matrix in stored.bytes.chunks(rows as usize * columns as usize * n_bytes) {
        for at in 0..columns as usize {
            matrix
                .chunks(columns as usize * n_bytes)
                .for_each(|row| bytes.extend(&row[at * n_bytes..][..n_bytes]));
        }
    }
    Stored { ty: stored.ty.clone(), dims, bytes }
}

/// Matrices of a layer's experts in order: gate, up, down. Absent ones are empty.
pub type Layer = [Vec<Stored>; 3];
const WORDS: [[&str; 3]; 3] =
    [["gate_proj", "up_proj", "down_proj"], ["w1", "w3", "w2"], ["gate", "up", "down"]];

/// Takes the experts' matrices out of a checkpoint, by the name of the module that has them.
pub fn taken(weights: &mut Weights) -> BTreeMap<String, Layer> {
    let mut layers: BTreeMap<String, Layer> = BTreeMap::new();
    let names: Vec<String> = weights.keys().cloned().collect();
    let mut numbered: Vec<(String, usize, usize, String)> = Vec::new();
    for name in names {
        let Some((module, rest)) = name.split_once(".experts.") else { continue };
        let [number, word, "weight"] = rest.split('.').collect::<Vec<_>>()[..] else { continue };
        let matrix = WORDS.iter().find_map(|words| words.iter().position(|known| *known == word));
        if let (Ok(number), Some(matrix)) = (number.parse(), matrix) {
            numbered.push((module.to_owned(), matrix, number, name.clone()));
        }
    }
    numbered.sort();
    for (module, matrix, _, name) in numbered {
        layers.entry(module).or_default()[matrix].push(weights.remove(&name).unwrap());
    }
    layers
}

/// Layout: adds a layer's experts to a checkpoint, in a module.
type Layout = fn(&mut Weights, &str, Layer);

/// As transformers 5 has them in memory.
pub fn fused(weights: &mut Weights, module: &str, layer: Layer) {
    let [gate, up, down] = layer;
    let name = |word| format!("{module}.experts.{word}");
    if gate.is_empty() {
        weights.insert(name("up_proj"), stacked(up));
    } else {
        let both = gate.iter().zip(&up).map(|(gate, up)| joined(gate, up));
        weights.insert(name("gate_up_proj"), stacked(both.collect()));
    }
    weights.insert(name("down_proj"), stacked(down));
}

fn fused_and_turned(weights: &mut Weights, module: &str, layer: Layer) {
    let mut own = Weights::new();
    fused(&mut own, module, layer);
    weights.extend(own.iter().map(|(name, stored)| (name.clone(), turned(stored))));
}

/// As MLX has them.
pub fn switched(weights: &mut Weights, module: &str, layer: Layer) {
    for (parts, word) in layer.into_iter().zip(WORDS[0]).filter(|(parts, _)| !parts.is_empty()) {
        weights.insert(format!("{module}.switch_mlp.{word}.weight"), stacked(parts));
    }
}

fn listed(weights: &mut Weights, module: &str, layer: Layer) {
    let [gate, up, down] = layer;
    for (n, down) in down.into_iter().enumerate() {
        let (word, first) = match gate.get(n) {
            Some(gate) => ("gate_up_projs", joined(gate, &up[n])),
            None => ("up_projs", up[n].clone()),
        };
        weights.insert(format!("{module}.experts.{word}.{n}.weight"), first);
        weights.insert(format!("{module}.experts.down_projs.{n}.weight"), down);
    }
}

two_tiers!(every_card_takes_experts_in_every_layout);
/// Every day each twentieth of the cases with one tensor per expert.
fn every_card_takes_experts_in_every_layout(tier: Tier) {
    let is_plain = |row: &Json| row[1] == "BF16" || row[1] == "F32";
    let has_experts = |case: &CardFixture| {
        case.has_name(|name| name.contains(".experts.1."))
            && !case.is_mmproj()
            && !case.is_mistral()
            // An older spelling of the feed-forward part, which no trainer writes in another layout.
            && !case.has_name(|name| name.contains(".moe.experts."))
            && case.content()["tensors"].as_array().unwrap().iter().all(is_plain)
    };
    let cases: Vec<CardFixture> = fixture::all().into_iter().filter(has_experts).collect();
    assert!(cases.len() > 30, "{}", cases.len());
    let layouts: [Layout; 4] = [fused, fused_and_turned, switched, listed];
    for case in tier.some(20, cases) {
        let dir = tempfile::tempdir().unwrap();
        case.write(dir.path());
        let all = read(dir.path());
        write(dir.path(), &all);
        let mut expected = converted(&case, dir.path()).unwrap();
        for (n, layout) in layouts.iter().enumerate() {
            let mut weights = all.clone();
            for (module, layer) in taken(&mut weights) {
                // A square matrix does not tell its direction.
                let is_square = layer[0].is_empty() && layer[1][0].dims[0] == layer[1][0].dims[1];
                let layout = if is_square { &(fused as Layout) } else { layout };
                layout(&mut weights, &module, layer);
            }
            write(dir.path(), &weights);
            let mut found = converted(&case, dir.path()).unwrap_or_else(|error| {
                panic!("{}, layout {n}: {error} {:?}", case.at, error.hints());
            });
            // The order of tensors follows the names of the checkpoint.
            found.sort_by_key(Json::to_string);
            expected.sort_by_key(Json::to_string);
            assert_eq!(found, expected, "{}, layout {n}", case.at);
        }
    }
}

#[test]
fn gate_and_up_of_single_experts_are_joined_where_the_file_has_them_as_one() {
    let case = case("mistral4/mistral4.json");
    let dir = tempfile::tempdir().unwrap();
    case.write(dir.path());
    let all = read(dir.path());
    write(dir.path(), &all);
    let mut expected = converted(&case, dir.path()).unwrap();
    let mut weights = Weights::new();
    for (name, stored) in all {
        let Some((module, word)) = name.split_once(".experts.").filter(|_| !name.contains("shared")) else {
            weights.insert(name, stored);
            continue;
        };
        let words: &[&str] = if word == "gate_up_proj" { &["gate_proj", "up_proj"] } else { &["down_proj"] };
        let n = stored.dims[0] as usize * words.len();
        for (at, bytes) in stored.bytes.chunks(stored.bytes.len() / n).enumerate() {
            let name = format!("{module}.experts.{}.{}.weight", at / words.len(), words[at % words.len()]);
            let dims = vec![stored.dims[1] / words.len() as u64, stored.dims[2]];
            weights.insert(name, Stored { ty: stored.ty.clone(), dims, bytes: bytes.to_vec() });
        }
    }
    write(dir.path(), &weights);
    let mut found = converted(&case, dir.path()).unwrap();
    found.sort_by_key(Json::to_string);
    expected.sort_by_key(Json::to_string);
    assert_eq!(found, expected);
}

/// gpt-oss as a training in four bits leaves it: a module per expert, rows of gate and up alternate.
#[test]
fn experts_one_by_one_are_those_of_the_stacks() {
    let case = case("gpt-oss/plain.json");
    let dir = tempfile::tempdir().unwrap();
    case.write(dir.path());
    let all = read(dir.path());
    let mut expected = converted(&case, dir.path()).unwrap();
    let mut weights = Weights::new();
    for (name, stored) in all {
        let Some((module, rest)) = name.split_once(".experts.") else {
            weights.insert(name.replace(".router.", ".router.linear."), stored);
            continue;
        };
        let (word, is_bias) = rest.strip_suffix("_bias").map_or((rest, false), |word| (word, true));
        let n_bytes = stored.bytes.len() / stored.dims[0] as usize;
        for (n, bytes) in stored.bytes.chunks(n_bytes).enumerate() {
            let one =
                Stored { ty: stored.ty.clone(), dims: stored.dims[1..].to_vec(), bytes: bytes.to_vec() };
            let ending = if is_bias { "bias" } else { "weight" };
            let one = if is_bias { one } else { turned(&one) };
            weights.insert(format!("{module}.experts.{word}s.{n}.{ending}"), one);
        }
    }
    write(dir.path(), &weights);
    let mut found = converted(&case, dir.path()).unwrap();
    found.sort_by_key(Json::to_string);
    expected.sort_by_key(Json::to_string);
    assert_eq!(found, expected);
    // What nobody knows is refused, and never as something to be left out.
    let odd = weights.keys().find(|name| name.contains("down_projs.1")).unwrap().clone();
    let stored = weights.remove(&odd).unwrap();
    weights.insert(odd.replace("down_projs", "down_matrices"), stored);
    write(dir.path(), &weights);
    let error = converted(&case, dir.path()).unwrap_err();
    assert!(error.to_string().contains("down_matrices.1"), "{error}");
    assert!(!error.hints().iter().any(|hint| hint.contains("--drop")), "{:?}", error.hints());
}

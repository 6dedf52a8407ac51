//! Adapters of experts: matrices of PEFT's `target_parameters` and of single experts, in bases that stack experts and in
//! bases that do not.

use gguf_arch::OutType;
use gguf_conversion::{AdapterConversion, AdapterOptions, ConvertError, ConvertOptions};
use gguf_core::{Hint, TensorSource};
use serde_json::{Value as Json, json};

use super::merge::{Pair, llama, read, values};
use gguf_testkit::memory::{f32_values, tensor_bytes};
use gguf_testkit::{files, fixture};

const GATE_UP: [&str; 2] = [
    "base_model.model.model.layers.1.mlp.experts.base_layer.lora_A.weight",
    "base_model.model.model.layers.1.mlp.experts.base_layer.lora_B.weight",
];
const DOWN: [&str; 2] = [
    "base_model.model.model.layers.1.mlp.experts.lora_A.weight",
    "base_model.model.model.layers.1.mlp.experts.lora_B.weight",
];
const GATE_UP_STACK: &str = "model.layers.1.mlp.experts.gate_up_proj";
const DOWN_STACK: &str = "model.layers.1.mlp.experts.down_proj";

/// Number of experts and rank, hidden size, size of the experts.
const E: usize = 3;
const R: usize = 2;
const H: usize = 8;
const I: usize = 6;

fn settings() -> Json {
    json!({"peft_type": "LORA", "lora_alpha": 6, "r": R, "target_modules": [],
        "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]})
}

/// Tensors of an adapter for stacks of `n_out` times `n_in`.
fn matrices(names: [&'static str; 2], n_out: usize, n_in: usize) -> [(&'static str, Vec<u64>); 2] {
    [(names[0], vec![(R * E) as u64, n_in as u64]), (names[1], vec![n_out as u64, (R * E) as u64])]
}

/// Computes scale · B · A of an expert, as PEFT's `einsum("o r e, e r i -> e o i")`.
fn product(pair: &Pair, [a, b]: [&str; 2], expert: usize) -> Vec<Vec<f64>> {
    let n_in = pair.adapter.iter().find(|row| row.0 == a).unwrap().1[1] as usize;
    let (a, b) = (values(&pair.adapter, a), values(&pair.adapter, b));
    let row = |out: usize| {
        let at = |column: usize| {
            let sum = |r: usize| b[out * R * E + r * E + expert] * a[(expert * R + r) * n_in + column];
            3.0 * (0..R).map(sum).sum::<f64>()
        };
        (0..n_in).map(at).collect()
    };
    (0..b.len() / (R * E)).map(row).collect()
}

/// Adds a matrix to a weight of the base.
fn sum(pair: &Pair, weight: &str, first: usize, product: &[Vec<f64>], is_transposed: bool) -> Vec<f32> {
    let base = values(&pair.base, weight);
    let n_columns = if is_transposed { product.len() } else { product[0].len() };
    let n_elems = product.len() * product[0].len();
    let of = |at: usize| {
        let (row, column) = (at / n_columns, at % n_columns);
        let added = if is_transposed { product[column][row] } else { product[row][column] };
        (base[first + at] + added) as f32
    };
    (0..n_elems).map(of).collect()
}

fn adapter() -> Vec<(&'static str, Vec<u64>)> {
    matrices(GATE_UP, 2 * I, H).into_iter().chain(matrices(DOWN, H, I)).collect()
}

fn pair(base: &[(&'static str, &[u64])], adapter: &[(&'static str, Vec<u64>)]) -> Pair {
    let adapter: Vec<(&'static str, &[u64])> =
        adapter.iter().map(|(name, dims)| (*name, dims.as_slice())).collect();
    Pair::new(base, &adapter, &llama(), &settings())
}

#[test]
fn stacks_of_the_base_take_the_product_of_each_expert() {
    let [e, h, i] = [E as u64, H as u64, I as u64];
    for is_transposed in [false, true] {
        let dims = |n_out, n_in| if is_transposed { [e, n_in, n_out] } else { [e, n_out, n_in] };
        let pair = pair(&[(GATE_UP_STACK, &dims(2 * i, h)), (DOWN_STACK, &dims(h, i))], &adapter());
        let merged = pair.merged().unwrap();
        for (name, matrices) in [(GATE_UP_STACK, GATE_UP), (DOWN_STACK, DOWN)] {
            let want: Vec<f32> = (0..E)
                .flat_map(|expert| {
                    let product = product(&pair, matrices, expert);
                    let first = expert * product.len() * product[0].len();
                    sum(&pair, name, first, &product, is_transposed)
                })
                .collect();
            assert_eq!(read(&merged, name), want, "{name} {is_transposed}");
        }
        // A part of an expert, from the middle of a row.
        let at = merged.metas().iter().position(|meta| meta.name == GATE_UP_STACK).unwrap();
        let merged = merged.weights.as_deref().unwrap();
        let (mut whole, mut part) = (vec![0; 2 * I * H * 4 * E], vec![0; 40]);
        merged.read_elems(at, 0, &mut whole).unwrap();
        merged.read_elems(at, (2 * I * H + 5) as u64, &mut part).unwrap();
        assert_eq!(part, whole[(2 * I * H + 5) * 4..][..40]);
    }
}

#[test]
fn single_experts_of_the_base_take_their_part_of_a_stack() {
    let [h, i] = [H as u64, I as u64];
    for (module, [gate, up, down]) in
        [("mlp", ["gate_proj", "up_proj", "down_proj"]), ("block_sparse_moe", ["w1", "w3", "w2"])]
    {
        let name = |expert: usize, member: &str| -> &'static str {
            format!("model.layers.1.{module}.experts.{expert}.{member}.weight").leak()
        };
        let mut base: Vec<(&'static str, &[u64])> = Vec::new();
        let (wide, narrow) = ([i, h], [h, i]);
        for expert in 0..E {
            base.extend([
                (name(expert, gate), &wide[..]),
                (name(expert, up), &wide),
                (name(expert, down), &narrow),
            ]);
        }
        let whole = pair(&base, &adapter());
        let merged = whole.merged().unwrap();
        for expert in 0..E {
            let joined = product(&whole, GATE_UP, expert);
            let weight = name(expert, gate);
            assert_eq!(read(&merged, weight), sum(&whole, weight, 0, &joined[..I], false), "{weight}");
            let weight = name(expert, up);
            assert_eq!(read(&merged, weight), sum(&whole, weight, 0, &joined[I..], false), "{weight}");
            let weight = name(expert, down);
            assert_eq!(read(&merged, weight), sum(&whole, weight, 0, &product(&whole, DOWN, expert), false));
        }
        // A base with other experts is another model.
        let error = pair(&base[..6], &adapter()).merged().unwrap_err();
        assert!(error.to_string().contains("gate_up_proj"), "{error}");
    }
}

#[test]
fn stacks_of_the_base_take_single_experts() {
    let [e, h, i] = [E as u64, H as u64, I as u64];
    let names = |module: &str| -> [&'static str; 2] {
        ["A", "B"].map(|half| {
            &*format!("base_model.model.model.layers.1.mlp.experts.{module}.lora_{half}.weight").leak()
        })
    };
    let product = |pair: &Pair, [a, b]: [&str; 2]| -> Vec<Vec<f64>> {
        let dims = |name| pair.adapter.iter().find(|row| row.0 == name).unwrap().1.clone();
        let (n_in, n_out) = (dims(a)[1] as usize, dims(b)[0] as usize);
        let (a, b) = (values(&pair.adapter, a), values(&pair.adapter, b));
        let at = |out: usize, column: usize| {
            3.0 * (0..R).map(|r| b[out * R + r] * a[r * n_in + column]).sum::<f64>()
        };
        (0..n_out).map(|out| (0..n_in).map(|column| at(out, column)).collect()).collect()
    };
    let r = R as u64;
    let up = names("1.up_proj");
    let found = pair(&[(GATE_UP_STACK, &[e, 2 * i, h])], &[(up[0], vec![r, h]), (up[1], vec![i, r])]);
    let (all, first) = (read(&found.merged().unwrap(), GATE_UP_STACK), (2 + 1) * I * H);
    let base: Vec<f32> = values(&found.base, GATE_UP_STACK).iter().map(|value| *value as f32).collect();
    assert_eq!(all[first..first + I * H], sum(&found, GATE_UP_STACK, first, &product(&found, up), false));
    assert_eq!((&all[..first], &all[first + I * H..]), (&base[..first], &base[first + I * H..]));
    // Names of gpt-oss with a layer for each expert, over its stacks, which are transposed.
    let joined = names("gate_up_projs.2");
    let found =
        pair(&[(GATE_UP_STACK, &[e, h, 2 * i])], &[(joined[0], vec![r, h]), (joined[1], vec![2 * i, r])]);
    let (all, first) = (read(&found.merged().unwrap(), GATE_UP_STACK), 2 * 2 * I * H);
    assert_eq!(all[first..], sum(&found, GATE_UP_STACK, first, &product(&found, joined), true));
    // Gate and up of a transposed stack are columns.
    let found = pair(&[(GATE_UP_STACK, &[e, h, 2 * i])], &[(up[0], vec![r, h]), (up[1], vec![i, r])]);
    let mut want = values(&found.base, GATE_UP_STACK);
    for (row, columns) in product(&found, up).iter().enumerate() {
        for (column, value) in columns.iter().enumerate() {
            want[(H + column) * 2 * I + I + row] += value;
        }
    }
    let want: Vec<f32> = want.into_iter().map(|value| value as f32).collect();
    assert_eq!(read(&found.merged().unwrap(), GATE_UP_STACK), want);
}

/// Plans the GGUF adapter of a pair; the base is a configuration alone, if it has no tensors.
fn planned(pair: &Pair) -> Result<AdapterConversion, ConvertError> {
    let weights = pair.dir.path().join("base/model.safetensors");
    if pair.base.is_empty() && weights.exists() {
        fs_err::remove_file(weights).unwrap();
    }
    let base = AdapterOptions { base: Some(pair.dir.path().join("base")), scale_alpha: false };
    let options = ConvertOptions { file_type: OutType::from_name("f32"), ..ConvertOptions::default() };
    AdapterConversion::plan(&pair.dir.path().join("adapter"), &base, &options)
}

/// An adapter for all experts of a configuration of `fixtures/cards`, and the stacks of its base, `[in, out]`.
fn of_config(at: &str, has_stacks: bool) -> (Pair, usize) {
    let mut config = files::json(fixture("cards").join(at))["config"].clone();
    config["num_local_experts"] = json!(E);
    let [hidden, size] =
        ["hidden_size", "intermediate_size"].map(|key| config[key].as_u64().unwrap() as usize);
    let adapter: Vec<_> =
        matrices(GATE_UP, 2 * size, hidden).into_iter().chain(matrices(DOWN, hidden, size)).collect();
    let adapter: Vec<(&'static str, &[u64])> =
        adapter.iter().map(|(name, dims)| (*name, dims.as_slice())).collect();
    let [e, hidden, inner] = [E, hidden, size].map(|n| n as u64);
    let stacks = [(GATE_UP_STACK, &[e, hidden, 2 * inner][..]), (DOWN_STACK, &[e, inner, hidden])];
    let base = if has_stacks { &stacks[..] } else { &[] };
    (Pair::new(base, &adapter, &config, &settings()), size)
}

/// Checkpoints of the two store experts in transposed stacks, with rows of gate and up in turns, and one by one.
#[test]
fn a_gguf_adapter_has_the_stacks_of_the_runtime() {
    for (at, step, has_stacks) in
        [("gpt-oss/plain.json", 2, false), ("gpt-oss/plain.json", 2, true), ("llama/mixtral.json", 1, false)]
    {
        let (pair, size) = of_config(at, has_stacks);
        let found = planned(&pair).unwrap();
        assert!(found.warnings().is_empty(), "{:?}", found.warnings());
        let read = |name: &str| {
            let at = found.tensors().iter().position(|tensor| tensor.name == name).unwrap();
            (found.tensors()[at].shape.dims().to_vec(), f32_values(&tensor_bytes(&found, at)))
        };
        let up = if step == 2 { 1 } else { size };
        let rows = [("gate", GATE_UP, 0, step), ("up", GATE_UP, up, step), ("down", DOWN, 0, 1)];
        for (name, matrices, first, step) in rows {
            let name = format!("blk.1.ffn_{name}_exps.weight");
            let ((a_dims, a), (b_dims, b)) =
                (read(&format!("{name}.lora_a")), read(&format!("{name}.lora_b")));
            let (n_out, n_in) = (b_dims[1] as usize, a_dims[2] as usize);
            assert_eq!((&a_dims[..2], b_dims[0], b_dims[2]), (&[E as u64, R as u64][..], E as u64, R as u64));
            for expert in 0..E {
                let want = product(&pair, matrices, expert);
                for (row, column) in (0..n_out).flat_map(|row| (0..n_in).map(move |column| (row, column))) {
                    let at =
                        |r: usize| b[(expert * n_out + row) * R + r] * a[(expert * R + r) * n_in + column];
                    let own = 3.0 * (0..R).map(|r| f64::from(at(r))).sum::<f64>();
                    let want = want[first + step * row][column];
                    assert!((own - want).abs() < 1e-5, "{name} {expert} {row} {column}");
                }
            }
        }
    }
    // A model without experts.
    let error = planned(&of_config("qwen3/plain.json", false).0).unwrap_err();
    assert!(error.to_string().contains("(`target_parameters`)"), "{error}");
    assert!(error.hints()[0].contains("merge-lora"), "{error:?}");
}

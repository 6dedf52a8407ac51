//! Tests of plans with AltUp streams and low-rank residuals.

use super::{WIDTH, meta, model, plan};
use crate::ops::ModelExtra;
use gguf_core::TensorMeta;
use gguf_format::Metadata;

/// Number of streams of a token.
const N: u64 = 3;
const RANK: u64 = 2;

/// Returns a model of three streams, of which the second is computed.
fn streams() -> (Metadata, Vec<TensorMeta>) {
    let (mut metadata, mut tensors) = model();
    metadata.set("x.altup.num_inputs", N as u32);
    metadata.set("x.altup.active_idx", 1u32);
    for name in ["altup_proj", "altup_unembd_proj"] {
        tensors.push(meta(&format!("{name}.weight"), &[N - 1, WIDTH, WIDTH]));
    }
    for layer in 0..2 {
        for (name, dims) in [
            ("router", &[N, WIDTH][..]),
            ("router_norm", &[WIDTH]),
            ("predict_coef", &[N * N, N]),
            ("correct_coef", &[N, N]),
            ("correct_scale", &[WIDTH]),
        ] {
            tensors.push(meta(&format!("blk.{layer}.altup_{name}.weight"), dims));
        }
    }
    (metadata, tensors)
}

#[test]
fn streams_need_their_number_the_active_one_and_tensors_of_their_shapes() {
    let (metadata, tensors) = streams();
    let graph = "extras = ['altup']";
    let built = plan(graph, &metadata, &tensors).unwrap();
    assert_eq!(built.stream_width(), 3 * WIDTH as usize);
    let [ModelExtra::AltUp(altup)] = &built.extras[..] else { panic!("not AltUp alone") };
    let active = built.layers.iter().map(|layer| layer.extras.altup.as_ref().unwrap().active);
    assert_eq!(active.collect::<Vec<_>>(), [1, 1]);
    assert_eq!((altup.n, altup.entry.len(), altup.exit.len()), (3, 2, 2));
    let refused =
        |metadata: &Metadata, tensors: &[TensorMeta]| plan(graph, metadata, tensors).unwrap_err().to_string();
    let without = |name: &str| -> Vec<TensorMeta> {
        tensors.iter().filter(|tensor| tensor.name != name).cloned().collect()
    };
    for name in ["altup_unembd_proj.weight", "blk.1.altup_router.weight", "blk.0.altup_correct_scale.weight"]
    {
        assert_eq!(refused(&metadata, &without(name)), format!("tensor `{name}` is missing"));
    }
    for (key, value, expected) in [
        ("num_inputs", 1u32, "key `x.altup.num_inputs`: expected 2 to 64, found 1"),
        ("active_idx", 3, "key `x.altup.active_idx`: expected less than altup.num_inputs, found 3"),
        ("num_inputs", 4, "tensor `altup_proj.weight`: expected shape [3, 8, 8], found [2, 8, 8]"),
    ] {
        let mut other = metadata.clone();
        other.set(format!("x.altup.{key}"), value);
        assert_eq!(refused(&other, &tensors), expected);
    }
    let (incomplete, _) = model();
    assert_eq!(refused(&incomplete, &tensors), "key `x.altup.num_inputs` is missing");
    let error = plan("extras = ['altup', 'out_scale']", &metadata, &tensors).unwrap_err().to_string();
    assert_eq!(error, "card `x`: `extras = [altup, out_scale]` is not built yet");
}

#[test]
fn the_rank_of_a_residual_is_its_tensor_s() {
    let (metadata, mut tensors) = model();
    for layer in 0..2 {
        for (name, dims) in [("l", &[RANK, WIDTH][..]), ("r", &[WIDTH, RANK]), ("post_norm", &[WIDTH])] {
            tensors.push(meta(&format!("blk.{layer}.laurel_{name}.weight"), dims));
        }
    }
    let graph = "extras = ['laurel']";
    let built = plan(graph, &metadata, &tensors).unwrap();
    let laurel = built.layers[1].extras.laurel.as_ref().unwrap();
    assert_eq!((laurel.left.n_rows, laurel.right.n_cols), (RANK as usize, RANK as usize));
    tensors.retain(|tensor| tensor.name != "blk.0.laurel_r.weight");
    let error = plan(graph, &metadata, &tensors).unwrap_err().to_string();
    assert_eq!(error, "tensor `blk.0.laurel_r.weight` is missing");
    tensors.push(meta("blk.0.laurel_r.weight", &[WIDTH, RANK + 1]));
    let error = plan(graph, &metadata, &tensors).unwrap_err().to_string();
    assert_eq!(error, "tensor `blk.0.laurel_l.weight`: expected shape [3, 8], found [2, 8]");
}

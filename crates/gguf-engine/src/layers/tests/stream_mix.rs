//! Tests of plans of layers with stream mixes.

use super::{WIDTH, carried, meta, model, plan};

#[test]
fn streams_are_kept_every_so_many_layers() {
    let (mut metadata, mut tensors) = model();
    assert!(plan("", &metadata, &tensors).unwrap().layers.iter().all(|layer| layer.mix.is_none()));
    metadata.set("x.attn_res.block_size", 2u32);
    let error = plan("", &metadata, &tensors).unwrap_err().to_string();
    assert_eq!(error, "tensor `blk.0.attn_res_score.weight` is missing");
    for name in ["blk.0.attn_res", "blk.0.ffn_res", "blk.1.attn_res", "blk.1.ffn_res", "output_res"] {
        tensors.push(meta(&format!("{name}_score.weight"), &[WIDTH]));
    }
    let found = plan("", &metadata, &tensors).unwrap();
    let keeps: Vec<_> = found.layers.iter().map(|layer| layer.mix.as_ref().map(|mix| mix.keeps)).collect();
    assert_eq!(keeps, [Some(true), Some(false)]);
    assert!(found.final_mix.is_some());
    assert_eq!(carried(&found, &tensors), WIDTH as usize);
    let error = plan("residual = 'parallel'", &metadata, &tensors).unwrap_err().to_string();
    let expected = "key `x.attn_res.block_size`: expected 0 in a graph that is not serial, found 2";
    assert_eq!(error, expected);
    let last = tensors.len() - 1;
    tensors[last] = meta("output_res_score.weight", &[WIDTH + 1]);
    let error = plan("", &metadata, &tensors).unwrap_err().to_string();
    assert_eq!(error, "tensor `output_res_score.weight`: expected shape [8], found [9]");
}

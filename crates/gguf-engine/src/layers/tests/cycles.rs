//! Tests of plans of models whose two stacks run in turn.

use super::{WIDTH, meta, model, plan};
use crate::ops::ModelExtra;
use crate::ops::cycles::StackEntry;
use gguf_core::TensorMeta;
use gguf_format::Metadata;

const GRAPH: &str = "extras = ['cycles']";

/// Returns the tiny model as two stacks of one layer each.
fn cycled() -> (Metadata, Vec<TensorMeta>) {
    let (mut metadata, mut tensors) = model();
    for (key, value) in
        [("block_count", 6u32), ("hrm.layers_per_stack", 1), ("hrm.h_cycles", 2), ("hrm.l_cycles", 2)]
    {
        metadata.set(format!("x.{key}"), value);
    }
    tensors.push(meta("hrm.z_l_init", &[WIDTH]));
    (metadata, tensors)
}

#[test]
fn the_low_stack_runs_some_times_before_each_run_of_the_high_one() {
    use StackEntry::{Again, Turn};
    let (metadata, tensors) = cycled();
    let plan = plan(GRAPH, &metadata, &tensors).unwrap();
    assert!(matches!(&plan.extras[..], [ModelExtra::HeldState(_)]));
    let entries: Vec<_> = plan.layers.iter().map(|layer| layer.extras.entry.unwrap()).collect();
    assert_eq!(entries, [Turn, Again, Turn, Turn, Again, Turn]);
    let is_low: Vec<bool> = plan.layers.iter().map(|layer| layer.tensors == plan.layers[0].tensors).collect();
    assert_eq!(is_low, [true, true, false, true, true, false]);
    let normed: Vec<bool> = plan.layers.iter().map(|layer| layer.extras.exit_norm.is_some()).collect();
    assert_eq!(normed, [true, true, true, true, true, false]);
}

#[test]
fn a_count_of_layers_that_does_not_fit_and_a_missing_state_are_refused() {
    let (mut metadata, mut tensors) = cycled();
    tensors.pop();
    let error = plan(GRAPH, &metadata, &tensors).unwrap_err().to_string();
    assert_eq!(error, "tensor `hrm.z_l_init` is missing");
    metadata.set("x.block_count", 7u32);
    let error = plan(GRAPH, &metadata, &tensors).unwrap_err().to_string();
    assert!(error.starts_with("key `x.block_count`: expected hrm.layers_per_stack times"), "{error}");
    assert!(error.ends_with("found 7"), "{error}");
}

//! Checkpoints that break one rule each.

use gguf_testkit::goldens::{Goldens, conformance_tests};
use gguf_testkit::report_cases;

use super::{named, open};

/// Cases with an error, and a part of the message.
const ERRORS: &[(&str, &str)] = &[
    ("description-array", "expected"),
    ("description-comments", "line 1, column 31"),
    ("description-not-json", "line 1, column 2"),
    ("empty-weights-file", "the file is empty"),
    ("header-length-huge", "quant_model_weights.safetensors: "),
    ("index-missing-shard", "shard `quant_model_weights-00001-of-00002.safetensors` is missing"),
    ("index-path-escape", "is outside the directory"),
    ("label-float-on-int8", "described as `FLOAT`, but its elements are I8"),
    ("label-missing", "I8 codes without a quantization type in the description"),
    ("label-number", "`model.layers.0.mlp.up_proj.weight` is not text"),
    ("label-unknown", "unknown quantization type `W3A5`"),
    ("label-w8a16-on-float", "described as `W8A16`, but its elements are F32"),
    ("nf4", "`NF4` cannot be converted: the scales of its blocks are not in the file"),
    ("no-description", "`quant_model_description.json` is missing"),
    ("no-weights-file", "no weights found"),
    ("offset-missing", "`W8A16` needs `weight_offset`, which is missing"),
    ("offset-shape-differs", "`model.layers.0.mlp.up_proj.weight_offset`: shape [96, 2] does not fit"),
    ("scale-groups-not-dividing", "shape [96, 5] does not fit [96, 64] codes"),
    ("scale-int-dtype", "I32 elements, expected floats"),
    ("scale-missing", "`W8A16` needs `weight_scale`, which is missing"),
    ("scale-nan", "is NaN"),
    ("scale-shape", "shape [95, 1] does not fit [96, 64] codes"),
    ("timestep", "change with the step of a diffusion model"),
    ("truncated", "quant_model_weights.safetensors: "),
    ("w8a8-deq-int64-high-bits", "expected the bits of an F32"),
    ("w8a8-deq-missing", "`W8A8` needs `deq_scale`, which is missing"),
    (
        "w8a8-input-scale-vector",
        "`model.layers.0.mlp.up_proj.input_scale`: shape [64] does not fit a single number",
    ),
    ("w8a8-input-scale-zero", "value 0, expected a positive number"),
    ("w8a8sc-compressed", "compressed stream"),
    ("weight-1d", "shape [6144] is no matrix of codes"),
];

/// Cases that are read with a warning, and a part of it.
const WARNINGS: &[(&str, &str)] = &[
    (
        "description-extra-names",
        "names 1 tensors that are not in the checkpoint (`model.layers.9.nope.weight`",
    ),
    ("scale-negative", "are negative"),
    ("scale-zero", "are zero"),
];

conformance_tests!(broken_checkpoints_are_refused_with_the_reason);
fn broken_checkpoints_are_refused_with_the_reason(corpus: &Goldens) {
    let root = corpus.join("formats/msmodelslim/hostile");
    let mut n_cases = 0;
    for (case, expected) in ERRORS {
        let message = open(&root.join(case)).map(|_| ()).expect_err(case);
        assert!(message.contains(expected), "{case}: {message}");
        n_cases += 1;
    }
    for (case, expected) in WARNINGS {
        let source = open(&root.join(case)).unwrap_or_else(|message| panic!("{case}: {message}"));
        assert!(source.warnings.iter().any(|w| w.contains(expected)), "{case}: {:?}", source.warnings);
        assert!(named(&source, "model.layers.0.mlp.up_proj.weight").iter().all(|value| value.is_finite()));
        n_cases += 1;
    }
    let dirs =
        fs_err::read_dir(&root).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_dir()).count();
    assert_eq!(n_cases, dirs, "every directory of the corpus is in one of the tables");
    report_cases("msmodelslim: hostile", n_cases);
}

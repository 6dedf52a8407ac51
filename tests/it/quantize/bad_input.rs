//! Input that must not be quantized, with the exact messages; and errors during a run.

use std::path::{Path, PathBuf};

use gguf_foundry::core::progress::Silent;
use gguf_foundry::core::{GgmlType, TensorSource};
use gguf_foundry::gguf::{GgufFile, Imatrix, Metadata, WriteOptions, write_gguf};
use gguf_foundry::quantize::{
    CoveragePolicy, FileType, Input, QuantizeError, QuantizeOptions, QuantizePlan, TensorTypeRule,
};

use crate::testkit::memory::MemoryTensors;

/// Tensors of seven ascending numbers in turn, the first of them given; of zeros if it is 0.
fn floats(tensors: &[(&str, &[u64], f32)]) -> MemoryTensors {
    tensors.iter().fold(MemoryTensors::default(), |all, &(name, dims, first)| {
        let value = |at: u64| if first == 0.0 { 0.0 } else { first + (at % 7) as f32 };
        let values: Vec<f32> = (0..dims.iter().product()).map(value).collect();
        all.with_f32(name, dims, &values)
    })
}

fn metadata() -> Metadata {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "nobody");
    metadata
}

fn plan_error(source: &MemoryTensors, options: &QuantizeOptions, imatrix: Option<&Imatrix>) -> QuantizeError {
    let metadata = metadata();
    match QuantizePlan::new(&Input::new(source, &metadata), options, imatrix) {
        Ok(_) => panic!("an error expected"),
        Err(error) => error,
    }
}

/// Runs the plan, and returns the error and whether a file was left.
fn run_error(source: &MemoryTensors, options: &QuantizeOptions) -> (String, bool) {
    let metadata = metadata();
    let plan = QuantizePlan::new(&Input::new(source, &metadata), options, None).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("out.gguf");
    let error = plan.write(&target, &WriteOptions::default(), &Silent).unwrap_err();
    let is_left = fs_err::read_dir(dir.path()).unwrap().next().is_some();
    (anyhow_line(&error), is_left)
}

fn anyhow_line(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        if !line.contains(&error.to_string()) {
            line = format!("{line}: {error}");
        }
        cause = error.source();
    }
    line
}

/// Importance matrix in the older format.
fn imatrix(dir: &Path, entries: &[(&str, &[f32])]) -> Imatrix {
    Imatrix::open(&write_imatrix(dir, entries)).unwrap()
}

fn write_imatrix(dir: &Path, entries: &[(&str, &[f32])]) -> PathBuf {
    let mut bytes = (entries.len() as i32).to_le_bytes().to_vec();
    for (name, values) in entries {
        bytes.extend((name.len() as i32).to_le_bytes());
        bytes.extend(name.bytes());
        bytes.extend(1i32.to_le_bytes());
        bytes.extend((values.len() as i32).to_le_bytes());
        values.iter().for_each(|value| bytes.extend(value.to_le_bytes()));
    }
    let path: PathBuf = dir.join("m.dat");
    fs_err::write(&path, bytes).unwrap();
    path
}

const QUERY: &str = "blk.0.attn_q.weight";

fn matrix() -> MemoryTensors {
    floats(&[(QUERY, &[4, 256], 1.0)])
}

#[test]
fn nan_and_infinity_are_named_with_their_place() {
    let mut source = matrix();
    source.edit_f32s(QUERY, |values| values[2 * 256 + 17] = f32::NAN);
    let (line, is_left) = run_error(&source, &QuantizeOptions::new(FileType::Q4KM));
    assert_eq!(line, "tensor `blk.0.attn_q.weight`: row 2, column 17: NaN");
    assert!(!is_left);
    source.edit_f32s(QUERY, |values| values[2 * 256 + 17] = f32::NEG_INFINITY);
    assert_eq!(
        run_error(&source, &QuantizeOptions::new(FileType::F16)).0,
        "tensor `blk.0.attn_q.weight`: row 2, column 17: -inf"
    );
    // Tensors that are copied are checked too.
    assert_eq!(
        run_error(&source, &QuantizeOptions::new(FileType::Copy)).0,
        "tensor `blk.0.attn_q.weight`: row 2: block 17: infinite value"
    );
}

#[test]
fn values_too_large_for_the_type_are_an_error() {
    let mut source = matrix();
    source.edit_f32s(QUERY, |values| values[3 * 256 + 5] = 1e9);
    assert_eq!(
        run_error(&source, &QuantizeOptions::new(FileType::F16)).0,
        "tensor `blk.0.attn_q.weight`: row 3, from column 5 on: values up to 1e9 are too large for F16 (infinite value)"
    );
    let mut options = QuantizeOptions::new(FileType::Q8_0);
    assert_eq!(
        run_error(&source, &options).0,
        "tensor `blk.0.attn_q.weight`: row 3, from column 0 on: values up to 1e9 are too large for Q8_0 (infinite scale)"
    );
    options.allow_nonfinite = true;
    let metadata = metadata();
    let plan = QuantizePlan::new(&Input::new(&source, &metadata), &options, None).unwrap();
    let mut row = vec![0; 272];
    plan.read_rows(0, 3, &mut row).unwrap();
}

#[test]
fn a_tensor_without_rows() {
    let source = floats(&[(QUERY, &[0, 256], 1.0)]);
    assert_eq!(
        plan_error(&source, &QuantizeOptions::new(FileType::Q4KM), None).to_string(),
        "tensor `blk.0.attn_q.weight`: shape [0, 256] has no elements"
    );
}

#[test]
fn options_that_do_not_fit_the_tensor() {
    let mut options = QuantizeOptions::new(FileType::Q4KM);
    options.tensor_types = vec![TensorTypeRule::parse("attn_q=i8").unwrap()];
    assert_eq!(
        plan_error(&matrix(), &options, None).to_string(),
        "tensor `blk.0.attn_q.weight`: cannot quantize to I8"
    );
    let odd = floats(&[("output.weight", &[4, 96], 1.0)]);
    let mut options = QuantizeOptions::new(FileType::Q4KM);
    options.output_tensor_type = Some(GgmlType::Q6K);
    assert_eq!(
        plan_error(&odd, &options, None).to_string(),
        "tensor `output.weight`: 96 columns are not a multiple of 256, as Q6_K needs"
    );
}

#[test]
fn quantized_input_is_refused_unless_allowed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("q8.gguf");
    let source = matrix();
    let metadata = metadata();
    let plan =
        QuantizePlan::new(&Input::new(&source, &metadata), &QuantizeOptions::new(FileType::Q8_0), None)
            .unwrap();
    write_gguf(&path, plan.metadata(), &plan, &WriteOptions::default(), &Silent).unwrap();
    let file = GgufFile::open(&path).unwrap();
    let mut options = QuantizeOptions::new(FileType::Q4_0);
    let error = QuantizePlan::new(&Input::file(&file), &options, None).err().unwrap();
    assert_eq!(
        error.to_string(),
        "tensor `blk.0.attn_q.weight`: already quantized (Q8_0); requantizing to Q4_0 is not allowed"
    );
    options.allow_requantize = true;
    assert!(QuantizePlan::new(&Input::file(&file), &options, None).is_ok());
}

#[test]
fn importance_matrices_that_do_not_fit() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.dat");
    let shown = path.display();
    let options = QuantizeOptions::new(FileType::Q4KM);
    let other = imatrix(dir.path(), &[("blk.0.x.weight", &[1.0; 4]), ("blk.1.x.weight", &[1.0; 4])]);
    assert_eq!(
        plan_error(&matrix(), &options, Some(&other)).to_string(),
        format!(
            "{shown}: importance matrix of another model: none of its 2 entries names a tensor of this one"
        )
    );
    let narrow = imatrix(dir.path(), &[(QUERY, &[1.0; 128])]);
    assert_eq!(
        plan_error(&matrix(), &options, Some(&narrow)).to_string(),
        format!("{shown}: tensor `blk.0.attn_q.weight`: 128 importance values, 256 expected")
    );
    let mut values = [1.0; 256];
    values[3] = f32::NAN;
    write_imatrix(dir.path(), &[(QUERY, &values)]);
    assert_eq!(
        Imatrix::open(&path).unwrap_err().to_string(),
        format!("{shown}: tensor `blk.0.attn_q.weight`: importance value 3 is NaN")
    );
}

#[test]
fn types_that_need_an_importance_matrix() {
    let mut options = QuantizeOptions::new(FileType::Q2KS);
    assert_eq!(
        plan_error(&matrix(), &options, None).to_string(),
        "tensor `blk.0.attn_q.weight`: Q2_K needs an importance matrix, none given"
    );
    let dir = tempfile::tempdir().unwrap();
    let partial = imatrix(dir.path(), &[("blk.0.ffn_up.weight", &[1.0; 256])]);
    let two = floats(&[(QUERY, &[4, 256], 1.0), ("blk.0.ffn_up.weight", &[4, 256], 1.0)]);
    assert_eq!(
        plan_error(&two, &options, Some(&partial)).to_string(),
        "tensor `blk.0.attn_q.weight`: Q2_K needs importance data, the importance matrix has none for it"
    );
    // A draft reports the same without stopping.
    let metadata = metadata();
    let draft = QuantizePlan::draft(&Input::new(&two, &metadata), &options, None).unwrap();
    assert_eq!(
        draft.obstacles()[0].to_string(),
        "tensor `blk.0.attn_q.weight`: Q2_K needs an importance matrix, none given; the same for \
         `blk.0.ffn_up.weight` (Q2_K)"
    );
    assert_eq!(draft.obstacles().len(), 1);

    options = QuantizeOptions::new(FileType::Q4KM);
    let plan = QuantizePlan::new(&Input::new(&two, &metadata), &options, Some(&partial)).unwrap();
    assert_eq!(plan.coverage().missing, [QUERY]);
    options.coverage = CoveragePolicy::Tensors;
    assert_eq!(
        plan_error(&two, &options, Some(&partial)).to_string(),
        "1 tensor without importance data, the first is `blk.0.attn_q.weight`"
    );
}

#[test]
fn columns_that_do_not_fit_are_an_error_where_fallbacks_are_forbidden() {
    let odd = floats(&[(QUERY, &[4, 96], 1.0)]);
    let mut options = QuantizeOptions::new(FileType::Q4KM);
    options.no_fallback = true;
    assert_eq!(
        plan_error(&odd, &options, None).to_string(),
        "tensor `blk.0.attn_q.weight`: 96 columns are not a multiple of 256 as Q4_K needs, and falling back to \
         Q5_0 is not allowed"
    );
}

#[test]
fn zeros_are_found_and_bytes_do_not_depend_on_threads_or_pieces() {
    let tensors: [(&str, &[u64], f32); 3] =
        [(QUERY, &[3, 100, 512], 0.5), ("blk.0.ffn_up.weight", &[40, 256], 0.0), ("x", &[5], 2.0)];
    let source = floats(&tensors);
    let metadata = metadata();
    let mut files = Vec::new();
    for (threads, memory_bytes) in [(1, 1 << 20), (2, 64 << 20), (7, 128 << 10)] {
        let plan =
            QuantizePlan::new(&Input::new(&source, &metadata), &QuantizeOptions::new(FileType::Q4KM), None)
                .unwrap();
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("out.gguf");
        let options = WriteOptions { memory_bytes, sync: false, ..WriteOptions::default() };
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| plan.write(&target, &options, &Silent)).unwrap();
        files.push(fs_err::read(&target).unwrap());
        let zeros: Vec<_> = plan.all_zero().map(|tensor| tensor.name.as_str()).collect();
        assert_eq!(zeros, ["blk.0.ffn_up.weight"]);
    }
    assert!(files.iter().all(|file| *file == files[0]));
}

/// Importance matrix in the newer format: sums of one, and one of these counts per matrix.
fn gguf_imatrix(dir: &Path, tensor: &str, n_cols: u64, counts: &[f32]) -> Imatrix {
    let n = counts.len() as u64;
    let sums = format!("{tensor}.in_sum2");
    let names = format!("{tensor}.counts");
    let tensors: [(&str, &[u64], f32); 2] = [(&sums, &[n, n_cols], 1.0), (&names, &[n, 1], 1.0)];
    let mut source = floats(&tensors);
    source.edit_f32s(&names, |values| values.copy_from_slice(counts));
    let mut metadata = Metadata::new();
    metadata.set("general.type", "imatrix");
    metadata.set("imatrix.datasets", vec!["text.txt"]);
    metadata.set("imatrix.chunk_count", 4u32);
    metadata.set("imatrix.chunk_size", 512u32);
    let path = dir.join("m.gguf");
    write_gguf(&path, &metadata, &source, &WriteOptions::default(), &Silent).unwrap();
    Imatrix::open(&path).unwrap()
}

#[test]
fn a_matrix_of_few_tokens_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let name = "blk.0.attn_v.weight";
    let source = floats(&[(name, &[4, 256], 1.0)]);
    let of = |n_tokens: f32| {
        let imatrix = gguf_imatrix(dir.path(), name, 256, &[n_tokens]);
        let metadata = metadata();
        let input = Input::new(&source, &metadata);
        let options = QuantizeOptions::new(FileType::Q4KM);
        QuantizePlan::new(&input, &options, Some(&imatrix)).unwrap().coverage().few_tokens
    };
    // Sums that were scaled to one row have no count.
    assert_eq!([of(300.0), of(1000.0), of(1.0)], [Some(300), None, None]);
}

#[test]
fn experts_that_were_never_seen_are_reported_and_refused_if_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let name = "blk.0.ffn_up_exps.weight";
    let source = floats(&[(name, &[3, 4, 256], 1.0)]);
    let imatrix = gguf_imatrix(dir.path(), name, 256, &[2.0, 0.0, 5.0]);
    assert_eq!((imatrix.n_chunks(), imatrix.dataset()), (4, Some(&b"text.txt"[..])));
    let metadata = metadata();
    let mut options = QuantizeOptions::new(FileType::Q4KM);
    let plan = QuantizePlan::new(&Input::new(&source, &metadata), &options, Some(&imatrix)).unwrap();
    let unseen = &plan.coverage().unseen[0];
    assert_eq!((unseen.tensor.as_str(), unseen.experts.as_slice(), unseen.of), (name, &[1][..], 3));
    options.coverage = CoveragePolicy::Tensors;
    assert!(QuantizePlan::new(&Input::new(&source, &metadata), &options, Some(&imatrix)).is_ok());
    options.coverage = CoveragePolicy::Error;
    assert_eq!(
        plan_error(&source, &options, Some(&imatrix)).to_string(),
        "tensor `blk.0.ffn_up_exps.weight`: no token reached 1 of 3 experts when the importance matrix was made"
    );
}

#[test]
fn a_source_that_was_never_written_gives_the_same_file_as_one_that_was() {
    let tensors: [(&str, &[u64], f32); 3] = [
        ("token_embd.weight", &[9, 256], 0.3),
        (QUERY, &[7, 512], 0.5),
        ("blk.0.attn_norm.weight", &[256], 1.0),
    ];
    let source = floats(&tensors);
    let metadata = metadata();
    let dir = tempfile::tempdir().unwrap();
    let (floats, direct, twice) =
        (dir.path().join("f32.gguf"), dir.path().join("direct.gguf"), dir.path().join("twice.gguf"));
    let options = QuantizeOptions::new(FileType::Q5KM);
    let write_options = WriteOptions::default();
    let plan = QuantizePlan::new(&Input::new(&source, &metadata), &options, None).unwrap();
    plan.write(&direct, &write_options, &Silent).unwrap();
    write_gguf(&floats, &metadata, &source, &write_options, &Silent).unwrap();
    let file = GgufFile::open(&floats).unwrap();
    let plan = QuantizePlan::new(&Input::file(&file), &options, None).unwrap();
    plan.write(&twice, &write_options, &Silent).unwrap();
    assert_eq!(fs_err::read(&direct).unwrap(), fs_err::read(&twice).unwrap());
}

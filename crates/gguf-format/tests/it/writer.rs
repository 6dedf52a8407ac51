//! Writing: the resulting bytes for any number of threads and memory, and the files left behind by a failure.

use gguf_core::bytes::Endian;
use gguf_core::progress::{CancelFlag, Progress, Silent};
use gguf_core::{GgmlType, TensorSource};
use gguf_format::{GgufFile, LayoutOptions, Metadata, Value, WriteError, WriteOptions, write_gguf};

use super::build::{Pattern, every_type, tensor};

use gguf_testkit::names;

fn source() -> Pattern {
    Pattern::new(vec![
        tensor("norm", &[7], GgmlType::F32),
        tensor("scalar", &[], GgmlType::I64),
        tensor("wide", &[2, 300_000], GgmlType::F32),
        tensor("tall", &[70_000, 1, 32], GgmlType::Q8_0),
        tensor("k", &[3, 5, 2, 512], GgmlType::Q6K),
        tensor("empty", &[0, 4], GgmlType::F16),
        tensor("last", &[5], GgmlType::I8),
    ])
}

fn options(memory_bytes: u64) -> WriteOptions {
    WriteOptions { sync: false, memory_bytes, ..WriteOptions::default() }
}

#[test]
fn bytes_do_not_depend_on_threads_or_memory() {
    let dir = tempfile::tempdir().unwrap();
    let source = source();
    let metadata = every_type();
    let mut files = Vec::new();
    for (n_threads, memory) in [(1, 0), (2, 1 << 20), (7, 128 << 20)] {
        let path = dir.path().join(format!("{n_threads}.gguf"));
        let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().unwrap();
        let report =
            pool.install(|| write_gguf(&path, &metadata, &source, &options(memory), &Silent)).unwrap();
        assert_eq!(report.paths, std::slice::from_ref(&path));
        assert_eq!(report.file_bytes, fs_err::metadata(&path).unwrap().len());
        files.push(fs_err::read(&path).unwrap());
    }
    assert!(files[0] == files[1] && files[1] == files[2]);

    let file = GgufFile::open(&dir.path().join("2.gguf")).unwrap();
    assert_eq!(file.tensors(), source.tensors());
    assert_eq!(file.metadata(), &metadata);
    for index in 0..source.tensors.len() {
        assert_eq!(file.raw_tensor(index), source.bytes(index), "{}", source.tensors[index].name);
        assert_eq!(file.place(index).offset % 32, 0);
    }
    assert_eq!(file.trailing_bytes(), 0);
    assert_eq!(names(dir.path()), ["1.gguf", "2.gguf", "7.gguf"]);
}

#[test]
fn big_endian_holds_the_same_values() {
    let dir = tempfile::tempdir().unwrap();
    let (big, little) = (dir.path().join("big.gguf"), dir.path().join("little.gguf"));
    let source = source();
    let metadata = every_type();
    let layout = LayoutOptions { endian: Endian::Big, ..LayoutOptions::default() };
    let to_big = WriteOptions { layout, ..options(0) };
    write_gguf(&big, &metadata, &source, &to_big, &Silent).unwrap();
    let bytes = fs_err::read(&big).unwrap();
    assert_eq!(bytes[..16], *b"GGUF\0\0\0\x03\0\0\0\0\0\0\0\x07");

    let file = GgufFile::open(&big).unwrap();
    assert_eq!(file.endian(), Endian::Big);
    assert_eq!(file.metadata(), &metadata);
    // The scale of the first Q6_K block sits in its last two bytes.
    let k = file.tensor_index("k").unwrap();
    let (raw, block) = (file.raw_tensor(k), source.bytes(k));
    assert_eq!(raw[..208], block[..208]);
    assert_eq!(raw[208..210], [block[209], block[208]]);
    // Rows in the middle come back little-endian.
    let mut rows = vec![0; 2 * 420];
    file.read_rows(k, 3, &mut rows).unwrap();
    assert_eq!(rows, block[3 * 420..5 * 420]);
    assert!(file.borrow_rows(k, 0, 1).is_none());

    write_gguf(&little, &metadata, &file, &options(0), &Silent).unwrap();
    let file = GgufFile::open(&little).unwrap();
    for index in 0..source.tensors.len() {
        assert_eq!(file.raw_tensor(index), source.bytes(index));
    }
}

#[test]
fn nothing_is_left_after_a_failure() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.gguf");
    let metadata = Metadata::new();

    let broken = Pattern { broken: Some(3), ..source() };
    let error = write_gguf(&path, &metadata, &broken, &options(0), &Silent).unwrap_err();
    assert_eq!(error.to_string(), "tensor `tall`: told to fail");
    assert!(names(dir.path()).is_empty());

    let panics = Pattern { panics: Some(3), ..source() };
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = write_gguf(&path, &metadata, &panics, &options(0), &Silent);
    }));
    assert!(caught.is_err());
    assert!(names(dir.path()).is_empty());

    let flag = CancelFlag::default();
    flag.cancel();
    let error = write_gguf(&path, &metadata, &source(), &options(0), &flag).unwrap_err();
    assert!(matches!(error, WriteError::Cancelled));
    assert!(names(dir.path()).is_empty());
}

/// Progress that cancels after some chunks.
struct Impatient(std::sync::atomic::AtomicU64);

impl Progress for Impatient {
    fn advance(&self, n_bytes: u64) {
        self.0.fetch_add(n_bytes, std::sync::atomic::Ordering::Relaxed);
    }

    fn is_cancelled(&self) -> bool {
        self.0.load(std::sync::atomic::Ordering::Relaxed) > 100_000
    }
}

#[test]
fn an_existing_file_survives_an_interrupt_half_way() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.gguf");
    fs_err::write(&path, b"GGUF, before").unwrap();
    let impatient = Impatient(0.into());
    let error = write_gguf(&path, &Metadata::new(), &source(), &options(0), &impatient).unwrap_err();
    assert_eq!(error.to_string(), "interrupted; nothing was written");
    assert!(impatient.0.into_inner() > 100_000);
    assert_eq!(fs_err::read(&path).unwrap(), b"GGUF, before");
    assert_eq!(names(dir.path()), ["out.gguf"]);
}

#[test]
fn an_input_is_never_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let (path, link) = (dir.path().join("in.gguf"), dir.path().join("link.gguf"));
    write_gguf(&path, &Metadata::new(), &source(), &options(0), &Silent).unwrap();
    fs_err::hard_link(&path, &link).unwrap();
    let file = GgufFile::open(&path).unwrap();
    let guarded = WriteOptions { inputs: file.paths(), ..options(0) };
    let error = write_gguf(&link, file.metadata(), &file, &guarded, &Silent).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("{}: output is the same file as input {}", link.display(), path.display())
    );
}

#[test]
fn a_disk_too_small_is_noticed_before_anything_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let huge = Pattern::new(vec![tensor("huge", &[1 << 30, 1 << 30], GgmlType::F32)]);
    let path = dir.path().join("out.gguf");
    let error = write_gguf(&path, &Metadata::new(), &huge, &options(0), &Silent).unwrap_err();
    let WriteError::NoSpace { needed, free, .. } = error else { panic!("{error}") };
    assert_eq!(needed, (1 << 62) + 96);
    assert!(free > 0 && free < needed);
    assert!(names(dir.path()).is_empty());
}

#[test]
fn what_cannot_be_written_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.gguf");
    let mut metadata = Metadata::new();
    metadata.set("general.alignment", Value::U64(32));
    let error = write_gguf(&path, &metadata, &source(), &options(0), &Silent).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "{}: key `general.alignment`: a power of two of type u32 expected, found u64",
            path.display()
        )
    );
    let missing = dir.path().join("no/such/dir/out.gguf");
    let error = write_gguf(&missing, &Metadata::new(), &source(), &options(0), &Silent).unwrap_err();
    assert!(error.to_string().contains("no/such/dir/out.gguf"), "{error}");
}

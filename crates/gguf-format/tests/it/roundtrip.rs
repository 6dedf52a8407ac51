//! A file of another tool that is read and written unchanged keeps its bytes.

use gguf_core::progress::Silent;
use gguf_format::{GgufFile, OpenOptions, WriteOptions, write_gguf};

use gguf_testkit::goldens::{Goldens, conformance_tests};
use gguf_testkit::{files, report_cases};

conformance_tests!(unchanged);
fn unchanged(corpus: &Goldens) {
    let mut paths = files::below(&**corpus);
    paths.retain(|path| path.extension().is_some_and(|ext| ext == "gguf"));
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.gguf");
    let options = OpenOptions { join_parts: false, ..OpenOptions::default() };
    for path in &paths {
        let file = GgufFile::open_with(path, &options).unwrap();
        assert_eq!(file.tolerated().count(), 0, "{}", path.display());
        let options = WriteOptions { layout: file.layout(), sync: false, ..WriteOptions::default() };
        // A model and an importance matrix are different kinds, which never replace each other.
        let _ = fs_err::remove_file(&out);
        write_gguf(&out, file.metadata(), &file, &options, &Silent).unwrap();
        let (ours, theirs) = (fs_err::read(&out).unwrap(), fs_err::read(path).unwrap());
        let differs = ours.iter().zip(&theirs).position(|(a, b)| a != b);
        assert!(
            differs.is_none() && ours.len() == theirs.len(),
            "{}: {} bytes for {}, first difference at {differs:?}",
            path.display(),
            ours.len(),
            theirs.len()
        );
    }
    report_cases("gguf unchanged", paths.len());
}

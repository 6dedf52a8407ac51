//! GGUF: headers, whole files, split sets, importance matrices, and files written from accepted ones.

use gguf_foundry::core::TensorSource;
use gguf_foundry::core::limits::Limits;
use gguf_foundry::core::progress::Silent;
use gguf_foundry::core::simd::SimdLevel;
use gguf_foundry::gguf::{
    FilePlan, GgufFile, Imatrix, LayoutOptions, Metadata, SplitSpec, SplitStyle, StoredImatrix, Strictness,
    WriteOptions, merged_metadata, parse_header, write_gguf,
};
use gguf_foundry::inspect::{SummaryOptions, TypedValue, hash, summary, value_plain, value_text, warnings};
use gguf_foundry::quantize::{FileType, Input, QuantizeOptions, QuantizePlan};
use gguf_foundry::verify::{StructureOptions, check_structure, expert_coverage, imatrix_statistics};

use super::bundle::{self, Directory, Numbers, accepted};

/// Checks that accepted content is inside the file, and is unchanged after it is written and read again.
pub(super) fn header(data: &[u8]) -> bool {
    let limits = Limits::default();
    let mut is_accepted = false;
    for strictness in [Strictness::LlamaCpp, Strictness::Format] {
        let Some(header) = accepted(parse_header(data, &limits, strictness)) else { continue };
        is_accepted = true;
        assert!(header.data_end <= data.len() as u64);
        let Some(plan) =
            accepted(FilePlan::new(&header.metadata, &header.tensors, &LayoutOptions::default()))
        else {
            continue;
        };
        // The data is not moved: the header has everything that is compared.
        let Ok(n_bytes) = usize::try_from(plan.file_bytes) else { continue };
        if n_bytes > 1 << 24 {
            continue;
        }
        let mut bytes = plan.header.clone();
        bytes.resize(n_bytes, 0);
        let again = parse_header(&bytes, &limits, Strictness::LlamaCpp).expect("written by ourselves");
        // Bytes are compared, since NaN values are not equal to themselves.
        let again = FilePlan::new(&again.metadata, &again.tensors, &LayoutOptions::default());
        assert_eq!(again.expect("planned before").header, plan.header);
    }
    is_accepted
}

/// Bytes of the keys in a file, for comparison: NaN values are not equal to themselves.
fn bytes_of(metadata: &Metadata) -> Option<Vec<u8>> {
    FilePlan::new(metadata, &[], &LayoutOptions::default()).ok().map(|plan| plan.header)
}

/// Names, shapes, types and bytes of all tensors.
fn tensors_of(file: &GgufFile) -> Vec<(String, Vec<u8>)> {
    let bytes = |tensor: usize| {
        let n_bytes = file.tensors()[tensor].n_bytes().expect("checked by the reader");
        let mut bytes = vec![0; usize::try_from(n_bytes).expect("lies in a small file")];
        file.read_rows(tensor, 0, &mut bytes).expect("a mapped file can be read");
        bytes
    };
    let tensors = file.tensors().iter().enumerate();
    tensors.map(|(at, meta)| (format!("{meta:?}"), bytes(at))).collect()
}

/// Checks that a readable file can be written, as one file or in parts, and is then read unchanged.
pub(super) fn rewrite(data: &[u8]) -> bool {
    let Some(file) = accepted(GgufFile::open(&bundle::file("rewrite.gguf", data))) else { return false };
    // Parts would be looked up under other names than this file has, and padding is written in full.
    let is_part = file.metadata().contains("split.count");
    if file.tensors().is_empty() || is_part || file.alignment() > 1 << 12 {
        return false;
    }
    let numbers = &mut Numbers::of(data);
    let style = if numbers.below(2) == 0 { SplitStyle::Converter } else { SplitStyle::GgufSplit };
    let spec = SplitSpec {
        max_tensors: Some(1 + numbers.below(3)),
        no_tensor_first: numbers.below(4) == 0,
        style,
        ..SplitSpec::default()
    };
    let dir = Directory::of(&[]);
    let target = dir.path().join("out.gguf");
    let split = (numbers.below(2) == 0).then_some(spec);
    let options = WriteOptions { split, sync: false, memory_bytes: 1 << 16, ..WriteOptions::default() };
    let Some(report) = accepted(write_gguf(&target, file.metadata(), &file, &options, &Silent)) else {
        return false;
    };
    let first = report.paths.first().expect("one file at least");
    let again = GgufFile::open(first).expect("written by ourselves");
    assert_eq!(tensors_of(&again), tensors_of(&file));
    assert_eq!(bytes_of(&merged_metadata(again.metadata())), bytes_of(&merged_metadata(file.metadata())));
    true
}

/// Opens parts with their canonical names; an accepted set must be readable.
pub(super) fn split(data: &[u8]) -> bool {
    const PARTS: &[&str] = &["m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"];
    let files = bundle::split(data, PARTS);
    let dir = Directory::of(&files);
    let Some(file) = accepted(GgufFile::open(&dir.path().join(PARTS[0]))) else { return false };
    let _ = warnings(&file);
    let n_tensors: usize = file.parts().iter().map(|part| part.header().tensors.len()).sum();
    assert_eq!(n_tensors, tensors_of(&file).len());
    for meta in file.tensors() {
        assert!(file.tensor_index(&meta.name).is_some());
    }
    file.parts().len() == PARTS.len()
}

/// Runs everything that reads a file without writing: the listing, its checks, and the plan of a quantization.
pub(super) fn describe(data: &[u8]) -> bool {
    let Some(file) = accepted(GgufFile::open(&bundle::file("describe.gguf", data))) else { return false };
    let shown = summary(&file, SummaryOptions { max_elems: Some(4), has_tensors: true });
    serde_json::to_value(shown).expect("keys are texts");
    for (_, value) in file.metadata().iter() {
        let _ = (
            value_text(value, Some(40), Some(4)),
            value_plain(value),
            serde_json::to_value(TypedValue::whole(value)),
        );
    }
    if file.tensor_bytes() > 1 << 20 {
        return false;
    }
    let check = |level| {
        let options = StructureOptions { level };
        let findings = check_structure(&file, file.metadata(), &options, &Silent);
        findings.expect("a mapped file can be read").iter().map(|f| format!("{f:?}")).collect::<Vec<_>>()
    };
    assert_eq!(check(SimdLevel::Scalar), check(SimdLevel::detect()));
    hash(&file, &Silent).expect("a mapped file can be read");
    let file_types: Vec<FileType> = FileType::all().collect();
    let chosen = Numbers::of(data).below(file_types.len() as u64) as usize;
    let options = QuantizeOptions::new(file_types[chosen]);
    if let Some(plan) = accepted(QuantizePlan::draft(&Input::file(&file), &options, None)) {
        let _ = (plan.summary(), plan.n_fallbacks());
    }
    true
}

/// Reads an importance matrix of either format, with its description.
pub(super) fn imatrix(data: &[u8]) -> bool {
    let path = bundle::file("fuzz.imatrix", data);
    let _ = accepted(gguf_foundry::gguf::combine_imatrix_parts(std::slice::from_ref(&path)));
    let stored = accepted(StoredImatrix::open(&path));
    let Some(matrix) = accepted(Imatrix::open(&path)) else { return false };
    let stored = stored.expect("opened by the other reader");
    assert_eq!(stored.n_entries(), matrix.entries().len());
    for (name, entry) in matrix.entries() {
        assert!(stored.has(name));
        assert!(!entry.weights.is_empty());
    }
    if let Some(sums) = accepted(gguf_foundry::gguf::merge_imatrices(&[stored], 512)) {
        let _ = (imatrix_statistics(&sums), expert_coverage(&sums), sums.counted_chunks());
    }
    accepted(matrix.check_finite()).is_some()
}

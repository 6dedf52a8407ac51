//! Containers of checkpoints.

use gguf_foundry::checkpoint::{
    Checkpoint, fastllm as flm, pickle as pickles, safetensors as tensors, torch as pt,
};
use gguf_foundry::convert::ConvertOptions;
use gguf_foundry::core::WeightSource;
use gguf_foundry::core::limits::Limits;
use gguf_foundry::inspect::inspect_checkpoint;

use super::bundle::{self, Directory, Numbers, accepted};
use super::codes::survey;

/// Checks that ranges of an accepted header are inside the file and do not overlap.
pub(super) fn safetensors(data: &[u8]) -> bool {
    let Some(header) = accepted(tensors::parse_header(data, &Limits::default())) else { return false };
    let mut ranges: Vec<_> = header.tensors.iter().map(|tensor| (tensor.offset, tensor.n_bytes)).collect();
    ranges.sort_unstable();
    let mut end = 0;
    for (offset, n_bytes) in ranges {
        assert!(offset >= end);
        end = offset + n_bytes;
    }
    assert!(end <= data.len() as u64);
    true
}

/// Checks that elements of an accepted file can be read, and that pieces of a tensor equal those of the whole.
pub(super) fn torch(data: &[u8]) -> bool {
    let Some(file) = accepted(pt::parse(data, &Limits::default())) else { return false };
    let mut numbers = Numbers::of(data);
    for tensor in &file.tensors {
        let (n, size) = (tensor.meta.shape.n_elems(), tensor.meta.ty.bytes().unwrap_or(1));
        if n == 0 || n > 1 << 14 {
            continue;
        }
        let read = |first: u64, n: u64| {
            let mut bytes = vec![0; n as usize * size];
            tensor.read_elems(data, first, &mut bytes);
            bytes
        };
        let whole = read(0, n);
        for _ in 0..3 {
            let range = numbers.range(n);
            let piece = read(range.start, range.end - range.start);
            assert_eq!(piece, whole[range.start as usize * size..range.end as usize * size]);
        }
        if let Some(borrowed) = tensor.borrow(data) {
            assert_eq!(borrowed, whole);
        }
    }
    true
}

pub(super) fn pickle(data: &[u8]) -> bool {
    accepted(pickles::read(data, 0)).is_some()
}

pub(super) fn fastllm(data: &[u8]) -> bool {
    let Some(header) = accepted(flm::FlmHeader::parse(data, &Limits::default())) else { return false };
    let _ = (header.configuration(), accepted(header.model_type()));
    true
}

/// File names of a sharded checkpoint.
const SHARDS: &[&str] = &[
    "config.json",
    "tokenizer.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "a.safetensors",
    "consolidated.00.pth",
    "params.json",
    "optimizer.pt",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "pytorch_model-00001-of-00002.bin",
    "pytorch_model-00002-of-00002.bin",
];

/// Reads an index with its shards, and describes the directory; accepted checkpoints must be readable.
pub(super) fn index(data: &[u8]) -> bool {
    let files = bundle::split(data, SHARDS);
    let dir = Directory::of(&files);
    if let Some(report) = accepted(inspect_checkpoint(dir.path(), &ConvertOptions::default())) {
        serde_json::to_value(report).expect("keys are texts");
    }
    let Some(checkpoint) = accepted(Checkpoint::open(dir.path(), &Limits::default())) else { return false };
    let _ = (checkpoint.format(), checkpoint.paths(), checkpoint.parts().len(), checkpoint.warnings());
    for weight in 0..checkpoint.weights().len() {
        checkpoint.expect(weight);
        assert!(!checkpoint.part_of(weight).is_empty());
    }
    survey(&checkpoint, None, data);
    !checkpoint.weights().is_empty()
}

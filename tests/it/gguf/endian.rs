//! Command `gguf-convert endian`.

use gguf_foundry::core::bytes::Endian;
use gguf_foundry::core::{GgmlType, TensorSource};
use gguf_foundry::gguf::{GgufFile, swap_blocks};
use proptest::prelude::Rng;

use crate::inspect::{Bench, metadata};
use crate::support::programs::{Outcome, finish};
use crate::support::{rng, seed};
use crate::testkit::memory::{MemoryTensors, write_source};

/// Model with a tensor of every type and random bytes.
fn every_type(bench: &Bench) {
    let mut chance = rng(seed("GGUF_ENDIAN_SEED"));
    let mut model = MemoryTensors::default();
    for ty in GgmlType::all() {
        let mut data = vec![0; 3 * 2 * ty.block_bytes()];
        chance.fill_bytes(&mut data);
        model.add(&format!("{ty}.weight"), &[3, 2 * ty.block_elems() as u64], ty, data);
    }
    write_source(&bench.path("all.gguf"), &metadata(), &model);
}

fn endian(bench: &Bench, args: &[&str]) -> Outcome {
    finish(bench.program("gguf-convert").arg("endian").args(args).arg("--no-sync"))
}

#[test]
fn there_and_back_is_the_file_itself() {
    let bench = Bench::new();
    every_type(&bench);
    let own = fs_err::read(bench.path("all.gguf")).unwrap();
    let out = endian(&bench, &["all.gguf", "-o", "big.gguf"]).says_only(0, "").out;
    assert!(out.ends_with("little-endian → big-endian\n"), "{out}");
    let other = fs_err::read(bench.path("big.gguf")).unwrap();
    assert_eq!((own.len(), &other[..8]), (other.len(), &b"GGUF\0\0\0\x03"[..]));

    let files = ["all.gguf", "big.gguf"].map(|name| GgufFile::open(&bench.path(name)).unwrap());
    assert_eq!(files[1].endian(), Endian::Big);
    assert_eq!(files[0].metadata(), files[1].metadata());
    assert_eq!(files[0].tensors(), files[1].tensors());
    for (index, tensor) in files[0].tensors().iter().enumerate() {
        let mut turned = files[0].raw_tensor(index).to_vec();
        swap_blocks(tensor.ty, &mut turned);
        assert_eq!(files[1].raw_tensor(index), turned, "{}", tensor.name);
    }

    endian(&bench, &["big.gguf", "--outfile", "back.gguf", "--to", "little"]).ok();
    assert!(fs_err::read(bench.path("back.gguf")).unwrap() == own);
    bench.run(&["diff", "all.gguf", "back.gguf"]).ok();
}

#[test]
fn a_file_that_has_the_order_is_copied() {
    let bench = Bench::new();
    endian(&bench, &["model.gguf", "-o", "copy.gguf", "--to", "little"])
        .says_only(0, "note: model.gguf is little-endian already\n");
    let read = |name: &str| fs_err::read(bench.path(name)).unwrap();
    assert_eq!(read("copy.gguf"), read("model.gguf"));
}

#[test]
fn parts_become_one_file() {
    let bench = Bench::new();
    bench.json(&["split", "model.gguf", "-o", "p", "--split-max-tensors", "2"], 0);
    endian(&bench, &["p-00002-of-00002.gguf", "-o", "big.gguf"]).ok();
    endian(&bench, &["big.gguf", "-o", "back.gguf"]).ok();
    let read = |name: &str| fs_err::read(bench.path(name)).unwrap();
    assert_eq!(read("back.gguf"), read("model.gguf"));
}

#[test]
fn nothing_is_written_where_nothing_may_be() {
    let bench = Bench::new();
    let before = fs_err::read(bench.path("model.gguf")).unwrap();
    let out = endian(&bench, &["model.gguf", "-o", "big.gguf", "--dry-run"]).says_only(0, "").out;
    assert!(out.contains("3 tensors, 992 B") && out.ends_with("nothing was written\n"), "{out}");
    endian(&bench, &["model.gguf", "-o", "model.gguf"]).says(2, "output is the same file as input");
    fs_err::write(bench.path("mine.txt"), "mine").unwrap();
    endian(&bench, &["model.gguf", "-o", "mine.txt"]).says(1, "does not replace");
    assert_eq!(fs_err::read(bench.path("model.gguf")).unwrap(), before);
    assert_eq!(bench.names(), ["mine.txt", "model.gguf"]);
}

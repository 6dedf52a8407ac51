//! Files that cases are given, by name: made once, and copied.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex};

use gguf_foundry::core::GgmlType;
use gguf_foundry::gguf::{FileType, Metadata, SplitSpec, Value};

use crate::cli::Made;
use crate::inspect::foreign::{KEYS, fork, gguf};
use crate::inspect::{self, convert_layers};
use crate::quantize::{magnitudes, program};
use crate::support::{bundled, fixture};
use crate::testkit::memory::{MemoryTensors, write_source};
use crate::testkit::tiny::Tiny;
use crate::verify::tasks;

/// Writes the files of a name into a directory.
pub fn write(name: &str, dir: &Path) {
    static MADE: LazyLock<Mutex<BTreeMap<String, Arc<Made>>>> = LazyLock::new(Mutex::default);
    let made = Arc::clone(MADE.lock().unwrap().entry(name.to_owned()).or_insert_with(|| {
        let dir = tempfile::tempdir().unwrap();
        let (_, make) =
            MATERIALS.iter().find(|(own, _)| *own == name).unwrap_or_else(|| panic!("no files `{name}`"));
        make(dir.path());
        Arc::new(Made::of(dir.path()))
    }));
    made.write(dir);
}

/// A name, and what writes its files into a directory.
type Material = (&'static str, fn(&Path));

const MATERIALS: &[Material] = &[
    // `model.gguf`: a norm, a ramp and a block of codes, in 992 bytes.
    ("model", |dir| write_source(&dir.join("model.gguf"), &inspect::metadata(), &inspect::model())),
    // Like `model.gguf`, with differences of each kind.
    ("other", other),
    // The keys of `model.gguf` without its tensors.
    ("keys", |dir| write_source(&dir.join("keys.gguf"), &inspect::metadata(), &MemoryTensors::default())),
    // `model.gguf` with four bytes after its last tensor, its first 900 bytes, and with one bit of `ramp` inverted.
    ("tail", |dir| changed(dir, "tail.gguf", |bytes| bytes.extend(b"tail"))),
    ("short", |dir| changed(dir, "short.gguf", |bytes| bytes.truncate(900))),
    ("flipped", |dir| changed(dir, "flipped.gguf", |bytes| bytes[832 + 20] ^= 1)),
    // The second of two parts of `model.gguf`.
    ("part", part),
    // A file with a type of ik_llama.cpp, and one for each type of another program.
    ("fork", |dir| fork(&dir.join("fork.gguf"), 139, 8 * 144)),
    ("forks", |dir| {
        for (ty, n_bytes) in [(144, 8 * 140), (337, 8 * 76), (36, 544), (38, 544), (9999, 544)] {
            fork(&dir.join(format!("fork-{ty}.gguf")), ty, n_bytes);
        }
    }),
    // A name of 80 bytes, and five dimensions.
    ("odd", |dir| {
        let tensors: [(&str, &[u64], u32, &[u8]); 3] = [
            (&"x".repeat(80), &[8], 0, &[1; 32]),
            ("five", &[2, 1, 2, 1, 2], 0, &[3; 32]),
            ("w", &[8], 0, &[5; 32]),
        ];
        fs_err::write(dir.join("odd.gguf"), gguf(KEYS, &tensors)).unwrap();
    }),
    // What a download leaves in place of a model, and a model in two pieces.
    ("downloads", downloads),
    // A text that is not UTF-8.
    ("latin", |dir| fs_err::write(dir.join("latin.jinja"), b"a\xe9").unwrap()),
    // The bundled model with its first layer, as the converter writes it.
    ("tiny", |dir| convert_layers(1, &dir.join("tiny.gguf"))),
    // The same layer in F32, and in Q8_0.
    ("base", |dir| drop(Tiny::new().with_layers(1).write(dir, "base.gguf"))),
    ("q8_0", |dir| drop(Tiny::new().with_layers(1).quantized(GgmlType::Q8_0).write(dir, "q8_0.gguf"))),
    // `base.gguf` without a key that every model has, with notes of other types, and with a type that nothing loads.
    ("keyless", |dir| {
        let removed = |key: &'static str| move |keys: &mut Metadata| drop(keys.remove(key));
        damaged(dir, "no-context.gguf", removed("llama.context_length"));
        damaged(dir, "no-width.gguf", removed("llama.embedding_length"));
        damaged(dir, "no-blocks.gguf", removed("llama.block_count"));
        damaged(dir, "wrong-type.gguf", |keys| keys.set("llama.block_count", 1u64));
        damaged(dir, "notes.gguf", |keys| {
            keys.set("general.license", Value::U8(5));
            keys.set("of.another.program", Value::U8(5));
            keys.set("quantize.imatrix.entries_count", 224i32);
        });
    }),
    ("short-context", |dir| damaged(dir, "short.gguf", |keys| keys.set("llama.context_length", 4u32))),
    // Tensors in Q4_0 under the name and the declared type of Q8_0, and under its name alone.
    ("labels", |dir| {
        let mut tiny = Tiny::new().with_layers(1).quantized(GgmlType::Q4_0);
        tiny.write(dir, "other.q8_0.gguf");
        tiny.metadata.set("general.file_type", FileType::Q8_0.id());
        tiny.write(dir, "model-Q8_0.gguf");
    }),
    // Tasks in the binary format: cut, with a wrong count; a line that is not UTF-8; and tasks without a valid choice.
    ("tasks", |dir| {
        let whole = fs_err::read(fixture("tasks/multiple-choice.bin")).unwrap();
        fs_err::write(dir.join("cut.bin"), &whole[..2000]).unwrap();
        fs_err::write(dir.join("many.bin"), [&u32::MAX.to_le_bytes(), &whole[4..]].concat()).unwrap();
        fs_err::write(dir.join("latin.csv"), b"0,a _ b\xe9,b,c,1\n").unwrap();
    }),
    ("choices", |dir| {
        for (name, answers) in [
            ("none-right.bin", &[(" a", 0), (" b", 0)][..]),
            ("all-right.bin", &[(" a", 1), (" b", 1)]),
            ("one-answer.bin", &[(" a", 1)]),
            ("same-answers.bin", &[(" a", 1), (" a", 0)]),
            ("empty-answer.bin", &[(" ", 0), (" a", 1)]),
        ] {
            fs_err::write(dir.join(name), tasks::binary(&[("Which?", answers)])).unwrap();
        }
    }),
    ("not-utf-8", |dir| fs_err::write(dir.join("not-utf-8.txt"), b"fine\nb\xffd").unwrap()),
    // One or two layers of an architecture that has no card; the rows of one tensor are no whole super-blocks.
    ("in", |dir| program::model(&dir.join("in.gguf"), 1, 512, 16)),
    ("two-layers", |dir| program::model(&dir.join("in.gguf"), 2, 512, 16)),
    // Two matrices, one row with values up to 1e20 or to 1e-9.
    ("large", |dir| magnitudes::model(&dir.join("in.gguf"), 3, 1e20)),
    ("small", |dir| magnitudes::model(&dir.join("in.gguf"), 5, 1e-9)),
    ("imatrices", magnitudes::imatrices),
    // The checkpoint of the bundled model with its first layer.
    ("hf", |dir| bundled::write_layers(1, &dir.join("hf"))),
];

fn damaged(dir: &Path, name: &str, change: impl FnOnce(&mut Metadata)) {
    let mut tiny = Tiny::new().with_layers(1);
    change(&mut tiny.metadata);
    tiny.write(dir, name);
}

fn changed(dir: &Path, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
    let path = dir.join(name);
    write_source(&path, &inspect::metadata(), &inspect::model());
    let mut bytes = fs_err::read(&path).unwrap();
    change(&mut bytes);
    fs_err::write(path, bytes).unwrap();
}

fn other(dir: &Path) {
    let mut metadata = inspect::metadata();
    metadata.set("llama.block_count", 3u64);
    metadata.remove("llama.rope.freq_base");
    metadata.set("general.file_type", 7u32);
    let mut tokens: Vec<_> = (0..40).map(|i| format!("t{i}")).collect();
    "changed".clone_into(&mut tokens[17]);
    metadata.set("tokenizer.ggml.tokens", tokens);
    // The values of `codes` in F32, one of them changed by 0.25; `ramp` with another shape; `norm` removed, `new`
    // added.
    let mut codes: Vec<f32> = (0..64).map(|i| 0.5 * ((i % 32) as f32 - 16.0)).collect();
    codes[33] += 0.25;
    let ramp: Vec<f32> = (0..12).map(|i| i as f32 / 4.0).collect();
    let tensors: [(&str, &[u64], &[f32]); 3] =
        [("codes", &[2, 32], &codes), ("ramp", &[4, 3], &ramp), ("new", &[1], &[0.0])];
    write_source(&dir.join("other.gguf"), &metadata, &MemoryTensors::of_f32(&tensors));
}

fn part(dir: &Path) {
    let metadata = SplitSpec::default().part_metadata(&inspect::metadata(), 1, 2, 3);
    let codes = MemoryTensors::of_f32(&[("codes", &[1, 32], &[1.0; 32])]);
    write_source(&dir.join("p-00002-of-00002.gguf"), &metadata, &codes);
}

fn downloads(dir: &Path) {
    for (name, bytes) in [
        ("blank.gguf", &vec![0; 100_000][..]),
        ("answer.gguf", b"<!DOCTYPE html><html><body>Please sign in</body></html>\n"),
        ("error.gguf", b"{\"error\": \"Repository not found\"}"),
        ("text.gguf", b"Entry not found"),
        ("lfs.gguf", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
    ] {
        fs_err::write(dir.join(name), bytes).unwrap();
    }
    changed(dir, "m.gguf.part1of2", |bytes| bytes.truncate(496));
    changed(dir, "m.gguf.part2of2", |bytes| drop(bytes.drain(..496)));
}

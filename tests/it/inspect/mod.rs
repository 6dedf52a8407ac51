//! Tests of `inspect` and of the program `gguf-inspect`.

mod checkpoint;
mod dump;
mod edit;
mod foreign;
mod get;
mod json;
mod look;
mod rules;
mod screen;
mod template;

use std::path::{Path, PathBuf};
use std::process::Command;

use gguf_foundry::convert::{Conversion, ConvertOptions};
use gguf_foundry::core::progress::Silent;
use gguf_foundry::core::{GgmlType, Shape, SourceError, TensorMeta, TensorSource};
use gguf_foundry::gguf::{GgufFile, Metadata, Value, WriteOptions, write_gguf};

use crate::support::fixture;
use crate::support::programs::{command, finish};

/// Source with its data in memory.
pub struct InMemory {
    tensors: Vec<TensorMeta>,
    data: Vec<Vec<u8>>,
}

impl InMemory {
    pub fn new() -> Self {
        Self { tensors: Vec::new(), data: Vec::new() }
    }

    pub fn add(mut self, name: &str, dims: &[u64], ty: GgmlType, data: Vec<u8>) -> Self {
        let meta = TensorMeta { name: name.to_owned(), shape: Shape::new(dims.to_vec()).unwrap(), ty };
        assert_eq!(meta.n_bytes(), Some(data.len() as u64));
        self.tensors.push(meta);
        self.data.push(data);
        self
    }

    pub fn f32(self, name: &str, dims: &[u64], values: &[f32]) -> Self {
        let data = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.add(name, dims, GgmlType::F32, data)
    }

    pub fn write(&self, path: &Path, metadata: &Metadata) {
        let options = WriteOptions { sync: false, ..WriteOptions::default() };
        write_gguf(path, metadata, self, &options, &Silent).unwrap();
    }
}

impl TensorSource for InMemory {
    fn tensors(&self) -> &[TensorMeta] {
        &self.tensors
    }

    fn read_rows(&self, tensor: usize, first_row: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let start = (first_row * self.tensors[tensor].row_bytes().unwrap()) as usize;
        out.copy_from_slice(&self.data[tensor][start..start + out.len()]);
        Ok(())
    }
}

/// Directory with one small model, and the programs to run on it.
pub struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    pub fn new() -> Self {
        let bench = Self { dir: tempfile::tempdir().unwrap() };
        model().write(&bench.path("model.gguf"), &metadata());
        bench
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = fs_err::read_dir(self.dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Adds the bundled model, converted.
    pub fn with_tiny(self) -> Self {
        let conversion = Conversion::plan(&fixture("tiny-llama"), &ConvertOptions::default()).unwrap();
        let options = WriteOptions { sync: false, ..WriteOptions::default() };
        write_gguf(&self.path("tiny.gguf"), conversion.metadata(), &conversion, &options, &Silent).unwrap();
        self
    }

    /// Value of a key in a file of the directory.
    pub fn value(&self, name: &str, key: &str) -> Option<Value> {
        GgufFile::open(&self.path(name)).unwrap().metadata().get(key).cloned()
    }

    /// Command of one of the programs in the directory, without environment variables about terminals.
    pub fn program(&self, name: &str) -> Command {
        let mut command = command(name, self.dir.path());
        for variable in ["COLUMNS", "NO_COLOR", "CLICOLOR_FORCE"] {
            command.env_remove(variable);
        }
        command
    }

    /// Runs `gguf-inspect` in the directory; returns exit code, standard output, standard error.
    pub fn run(&self, args: &[&str]) -> (i32, String, String) {
        finish(self.program("gguf-inspect").args(args)).parts()
    }

    /// Runs with `--json` and expects the given exit code.
    pub fn json(&self, args: &[&str], code: i32) -> serde_json::Value {
        finish(self.program("gguf-inspect").args(args).arg("--json")).exits_with(code).json()
    }
}

pub fn metadata() -> Metadata {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "llama");
    metadata.set("general.name", "A \u{1b}[31mred\u{1b}[0m name");
    metadata.set("llama.block_count", 2u32);
    metadata.set("llama.rope.freq_base", 0.1f32);
    metadata.set("tokenizer.ggml.tokens", (0..40).map(|i| format!("t{i}")).collect::<Vec<_>>());
    metadata
}

pub fn model() -> InMemory {
    let ramp: Vec<f32> = (0..12).map(|i| i as f32 / 4.0).collect();
    // One block of Q8_0: scale 0.5 (f16 0x3800), codes -16..16.
    let block: Vec<u8> = [0x00, 0x38].into_iter().chain((-16i8..16).map(|code| code as u8)).collect();
    InMemory::new().f32("norm", &[4], &[1.0, -2.0, 0.5, 4.0]).f32("ramp", &[3, 4], &ramp).add(
        "codes",
        &[2, 32],
        GgmlType::Q8_0,
        block.repeat(2),
    )
}

//! Tests of `inspect` and of the program `gguf-inspect`.

mod checkpoint;
mod dump;
mod edit;
pub mod foreign;
mod get;
mod json;
mod look;
mod memory;
mod screen;

use std::path::{Path, PathBuf};
use std::process::Command;

use gguf_foundry::convert::{Conversion, ConvertOptions};
use gguf_foundry::core::GgmlType;
use gguf_foundry::gguf::{GgufFile, Metadata, Value};

use crate::support::programs::{Outcome, command, finish};
use crate::support::{bundled, files};
use crate::testkit::memory::{MemoryTensors, write_source};

/// Directory with one small model, and the programs to run on it.
pub struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    pub fn new() -> Self {
        let bench = Self { dir: tempfile::tempdir().unwrap() };
        write_source(&bench.path("model.gguf"), &metadata(), &model());
        bench
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn names(&self) -> Vec<String> {
        files::names(self.dir.path())
    }

    /// Adds the first layers of the bundled model, converted.
    pub fn with_layers(self, n_layers: u32) -> Self {
        convert_layers(n_layers, &self.path("tiny.gguf"));
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

    /// Runs `gguf-inspect` in the directory.
    pub fn run(&self, args: &[&str]) -> Outcome {
        finish(self.program("gguf-inspect").args(args))
    }

    /// Runs with `--json` and expects the given exit code.
    pub fn json(&self, args: &[&str], code: i32) -> serde_json::Value {
        finish(self.program("gguf-inspect").args(args).arg("--json")).exits_with(code).json()
    }
}

/// Converts the first layers of the bundled model.
pub fn convert_layers(n_layers: u32, path: &Path) {
    let dir = tempfile::tempdir().unwrap();
    // The folder is a part of the name.
    let checkpoint = dir.path().join("tiny-llama");
    bundled::write_layers(n_layers, &checkpoint);
    let conversion = Conversion::plan(&checkpoint, &ConvertOptions::default()).unwrap();
    write_source(path, conversion.metadata(), &conversion);
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

pub fn model() -> MemoryTensors {
    let ramp: Vec<f32> = (0..12).map(|i| i as f32 / 4.0).collect();
    // One block of Q8_0: scale 0.5 (f16 0x3800), codes -16..16.
    let block: Vec<u8> = [0x00, 0x38].into_iter().chain((-16i8..16).map(|code| code as u8)).collect();
    let floats = MemoryTensors::of_f32(&[("norm", &[4], &[1.0, -2.0, 0.5, 4.0]), ("ramp", &[3, 4], &ramp)]);
    floats.with("codes", &[2, 32], GgmlType::Q8_0, block.repeat(2))
}

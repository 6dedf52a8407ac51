//! Facts that several files of a checkpoint state: the file that takes precedence, and the messages about
//! contradictions.

mod roles;
mod templates;
mod weights;

use std::path::Path;

use gguf_conversion::{Conversion, ConvertError, ConvertOptions};
use gguf_format::Value;
use serde_json::Value as Json;
use tempfile::TempDir;

use gguf_testkit::memory::write_source;
use gguf_testkit::{files, fixture};

/// Copy of the bundled model.
struct Model(TempDir);

impl Model {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        files::copy(fixture("tiny-llama"), dir.path());
        Self(dir)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Changes members of a JSON file; null is written as such, [`ABSENT`] removes a member.
    fn set(&self, file: &str, members: &[(&str, Json)]) -> &Self {
        set(self.path(), file, members);
        self
    }

    fn write(&self, file: &str, text: &str) -> &Self {
        fs_err::write(self.path().join(file), text).unwrap();
        self
    }

    fn plan(&self) -> Result<Conversion, ConvertError> {
        Conversion::plan(self.path(), &ConvertOptions::default())
    }

    fn planned(&self) -> Conversion {
        self.plan().unwrap()
    }
}

/// Placeholder for a removed member.
const ABSENT: &str = "(absent)";

fn set(dir: &Path, file: &str, members: &[(&str, Json)]) {
    let path = dir.join(file);
    let text = fs_err::read(&path).unwrap_or_else(|_| b"{}".to_vec());
    let mut json: Json = serde_json::from_slice(&text).unwrap();
    for (key, value) in members {
        if value.as_str() == Some(ABSENT) {
            json.as_object_mut().unwrap().remove(*key);
        } else {
            json[*key] = value.clone();
        }
    }
    fs_err::write(path, json.to_string()).unwrap();
}

fn text(conversion: &Conversion, key: &str) -> Option<String> {
    conversion.metadata().get(key).and_then(Value::as_str).map(str::to_owned)
}

fn number(conversion: &Conversion, key: &str) -> Option<u64> {
    conversion.metadata().get(key).and_then(Value::as_u64)
}

fn bytes(conversion: &Conversion) -> Vec<u8> {
    let out = tempfile::tempdir().unwrap();
    let target = out.path().join("out.gguf");
    write_source(&target, conversion.metadata(), conversion);
    fs_err::read(target).unwrap()
}

#[track_caller]
fn only_warning(conversion: &Conversion) -> String {
    let [warning] = conversion.warnings() else {
        panic!("one warning expected: {:#?}", conversion.warnings())
    };
    warning.clone()
}

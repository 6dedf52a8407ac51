//! Everything that decides the result of a run, by name.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::work::WorkError;
use gguf_checkpoint::parse_object;
use gguf_core::limits::Limits;

const FORMAT: &str = "gguf-foundry work";
const VERSION: u64 = 1;

/// Named facts that decide the result, each with its value or the value's digest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WorkFacts(Vec<(String, String)>);

impl WorkFacts {
    pub(crate) fn add(&mut self, what: &str, value: impl Into<String>) {
        self.0.push((what.to_owned(), value.into()));
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WorkManifest {
    format: String,
    version: u64,
    /// True if the folder was created for the work.
    pub(super) is_made: bool,
    facts: Vec<(String, String)>,
}

impl WorkManifest {
    pub(super) fn new(facts: WorkFacts, is_made: bool) -> Self {
        Self { format: FORMAT.to_owned(), version: VERSION, is_made, facts: facts.0 }
    }

    pub(super) fn json(&self) -> Result<Vec<u8>, WorkError> {
        let mut json = serde_json::to_vec_pretty(self).map_err(std::io::Error::from)?;
        json.push(b'\n');
        Ok(json)
    }

    pub(super) fn read(file: &Path) -> Result<Self, WorkError> {
        let broken = |reason: String| WorkError::Manifest { file: file.to_owned(), reason };
        let limits = Limits::default();
        let n_bytes = fs_err::metadata(file)?.len();
        if n_bytes > 1 << 20 {
            return Err(broken(format!("{n_bytes} bytes are too many for the facts of a run")));
        }
        let text = gguf_core::input::read(file)?;
        let json = parse_object(&text, &limits).map_err(|error| broken(error.to_string()))?;
        if json.get("format").and_then(serde_json::Value::as_str) != Some(FORMAT) {
            return Err(broken(format!("`format` is not `{FORMAT}`")));
        }
        match json.get("version").and_then(serde_json::Value::as_u64) {
            Some(VERSION) => {}
            Some(found) => {
                return Err(WorkError::Version { file: file.to_owned(), found, expected: VERSION });
            }
            None => return Err(broken("`version` is missing or no number".to_owned())),
        }
        serde_json::from_value(json.into()).map_err(|error| broken(error.to_string()))
    }

    /// Checks that these facts are those of the manifest.
    pub(super) fn check(&self, facts: &WorkFacts, path: &Path) -> Result<(), WorkError> {
        let other = |what: &str, found: &str, expected: &str| WorkError::OtherRun {
            path: path.to_owned(),
            what: what.to_owned(),
            found: found.to_owned(),
            expected: expected.to_owned(),
        };
        for (what, expected) in &facts.0 {
            let found = self.facts.iter().find(|(own, _)| own == what).map(|(_, found)| found.as_str());
            match found {
                Some(found) if found == expected => {}
                Some(found) => return Err(other(what, found, expected)),
                None => return Err(other(what, "not said", expected)),
            }
        }
        match self.facts.iter().find(|(own, _)| facts.0.iter().all(|(what, _)| what != own)) {
            Some((what, found)) => Err(other(what, found, "not said")),
            None => Ok(()),
        }
    }
}

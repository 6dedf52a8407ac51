//! Text that the model has written, so that the next run need not write it again.

use serde::{Deserialize, Serialize};

use crate::calibrate::store::{CheckEntry, identity};
use crate::calibrate::work::journal::{sealed, unsealed};
use crate::calibrate::work::{TEXT, WorkFolder};
use crate::calibrate::{CalibrateError, SelfText};
use crate::core::output::OutputFile;
use crate::engine::EngineOptions;
use crate::verify::{Fingerprint, Model, Window};

/// What was written.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::calibrate) struct KeptText {
    pub(in crate::calibrate) windows: Vec<Window>,
    pub(in crate::calibrate) check: Vec<Window>,
    pub(in crate::calibrate) notes: Vec<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    /// Digest of everything that decides what is written.
    of: String,
    windows: Vec<CheckEntry>,
    check: Vec<CheckEntry>,
    notes: Vec<String>,
}

fn digest(
    model: &Model<'_>,
    own: &SelfText,
    held_back: bool,
    engine: EngineOptions,
) -> Result<String, CalibrateError> {
    let (weights, tokenizer) = identity(model)?;
    let mut digest = Fingerprint::new();
    digest.bytes(crate::calibrate::attempts::program().as_bytes());
    digest.bytes(engine.level.name().as_bytes());
    digest.bytes(weights.as_bytes());
    digest.bytes(tokenizer.as_bytes());
    digest.bytes(format!("{own:?} {held_back}").as_bytes());
    Ok(digest.hex())
}

impl WorkFolder {
    /// What an earlier run let this model write, if it is the same and whole.
    pub(in crate::calibrate) fn written(
        &self,
        model: &Model<'_>,
        (own, held_back): (&SelfText, bool),
        engine: EngineOptions,
    ) -> Result<Option<KeptText>, CalibrateError> {
        let Ok(bytes) = fs_err::read(self.path().join(TEXT)) else { return Ok(None) };
        let stored = unsealed(&bytes).and_then(|json| serde_json::from_slice::<Stored>(json).ok());
        let Some(stored) = stored else { return Ok(None) };
        if stored.of != digest(model, own, held_back, engine)? {
            return Ok(None);
        }
        let windows =
            |entries: &[CheckEntry]| entries.iter().map(CheckEntry::window).collect::<Option<Vec<Window>>>();
        let kept = windows(&stored.windows).zip(windows(&stored.check));
        Ok(kept.map(|(windows, check)| KeptText { windows, check, notes: stored.notes }))
    }

    /// Keeps what the model has written.
    pub(in crate::calibrate) fn keep_written(
        &self,
        model: &Model<'_>,
        (own, held_back): (&SelfText, bool),
        engine: EngineOptions,
        text: &KeptText,
    ) -> Result<(), CalibrateError> {
        // That of an earlier run stays: this one is about to be refused.
        if self.is_resumed() && self.path().join(TEXT).exists() {
            return Ok(());
        }
        let entries = |windows: &[Window]| windows.iter().map(CheckEntry::of).collect();
        let stored = Stored {
            of: digest(model, own, held_back, engine)?,
            windows: entries(&text.windows),
            check: entries(&text.check),
            notes: text.notes.clone(),
        };
        let json = serde_json::to_string(&stored).map_err(std::io::Error::from)?;
        let written = OutputFile::write(&self.path().join(TEXT), sealed(&json).as_bytes(), self.sync);
        Ok(written.map_err(crate::calibrate::WorkError::from)?)
    }
}

//! Text that the model has written, kept so that the next run need not write it again.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::journal::{sealed, unsealed};
use crate::program::program;
use crate::store::{WindowEntry, identity};
use crate::work::{TEXT, WorkFolder};
use crate::{CalibrateError, SelfText};
use gguf_core::limits::Limits;
use gguf_core::output::OutputFile;
use gguf_engine::EngineOptions;
use gguf_verification::{Fingerprint, Model, Window};

/// Kept text of a model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KeptText {
    pub(crate) windows: Vec<Window>,
    pub(crate) held_out: Vec<Window>,
    pub(crate) notes: Vec<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredText {
    /// Digest of everything that decides the text.
    of: String,
    windows: Vec<WindowEntry>,
    #[serde(rename = "check")]
    held_out: Vec<WindowEntry>,
    notes: Vec<String>,
}

fn digest(
    model: &Model<'_>,
    own: &SelfText,
    holds_out: bool,
    engine: EngineOptions,
) -> Result<String, CalibrateError> {
    let (weights, tokenizer) = identity(model)?;
    let mut digest = Fingerprint::default();
    digest.bytes(program().as_bytes());
    digest.bytes(engine.level.name().as_bytes());
    digest.bytes(weights.as_bytes());
    digest.bytes(tokenizer.as_bytes());
    digest.value(&(own, holds_out))?;
    Ok(digest.hex())
}

/// Place where text that a model writes is kept.
#[derive(Clone, Copy, Debug)]
pub enum SelfTextKeeper<'a> {
    /// Folder of a run that can be resumed.
    Work(&'a WorkFolder),
    /// Separate file for several runs, which is read if it exists and written if not.
    File {
        /// Path of the file.
        path: &'a Path,
        /// True if the file must reach the disk before it gets its name.
        sync: bool,
    },
}

impl SelfTextKeeper<'_> {
    /// Text that an earlier run wrote with this model and these options, if it is intact.
    ///
    /// # Errors
    /// A file that holds something else; a model that cannot be read.
    pub(crate) fn written(
        self,
        model: &Model<'_>,
        own: &SelfText,
        holds_out: bool,
        engine: EngineOptions,
    ) -> Result<Option<KeptText>, CalibrateError> {
        let of = || digest(model, own, holds_out, engine);
        match self {
            Self::Work(work) => {
                let Ok(bytes) = fs_err::read(work.path().join(TEXT)) else { return Ok(None) };
                let Some(stored) = stored(&bytes) else { return Ok(None) };
                Ok((stored.of == of()?).then(|| stored.text()).flatten())
            }
            Self::File { path, .. } => {
                let other = |what| CalibrateError::OtherSelfText { path: path.to_owned(), what };
                match path.try_exists() {
                    Ok(true) => {}
                    Ok(false) => return Ok(None),
                    Err(error) => return Err(error.into()),
                }
                let limits = Limits::default();
                if !path.is_file() || fs_err::metadata(path)?.len() > limits.text_file_bytes {
                    return Err(other("no text that a model has written"));
                }
                let found = stored(&gguf_core::input::read(path)?);
                let found =
                    found.ok_or_else(|| other("no text that a model has written, or a damaged one"))?;
                if found.of != of()? {
                    let what = "text that another model, or this one with other options, has written";
                    return Err(other(what));
                }
                found.text().map(Some).ok_or_else(|| other("a damaged text"))
            }
        }
    }

    /// Keeps the text that the model has written.
    ///
    /// # Errors
    /// File system errors; a model that cannot be read.
    pub(crate) fn keep(
        self,
        model: &Model<'_>,
        own: &SelfText,
        holds_out: bool,
        engine: EngineOptions,
        text: &KeptText,
    ) -> Result<(), CalibrateError> {
        let (path, sync) = match self {
            // The text of an earlier run is not overwritten: this run is about to be refused.
            Self::Work(work) if work.is_resumed() && work.path().join(TEXT).exists() => return Ok(()),
            Self::Work(work) => (work.path().join(TEXT), work.sync),
            Self::File { path, sync } => (path.to_owned(), sync),
        };
        let entries = |windows: &[Window]| windows.iter().map(WindowEntry::of).collect();
        let stored = StoredText {
            of: digest(model, own, holds_out, engine)?,
            windows: entries(&text.windows),
            held_out: entries(&text.held_out),
            notes: text.notes.clone(),
        };
        let json = serde_json::to_string(&stored).map_err(std::io::Error::from)?;
        let written = OutputFile::write(&path, sealed(&json).as_bytes(), sync);
        Ok(written.map_err(crate::WorkError::from)?)
    }
}

impl StoredText {
    /// Rebuilds the text; `None` if its fields contradict each other.
    fn text(self) -> Option<KeptText> {
        let windows = |entries: &[WindowEntry]| {
            entries.iter().map(WindowEntry::window).collect::<Option<Vec<Window>>>()
        };
        let (windows, held_out) = windows(&self.windows).zip(windows(&self.held_out))?;
        Some(KeptText { windows, held_out, notes: self.notes })
    }
}

/// Parses a file if its digest matches.
fn stored(bytes: &[u8]) -> Option<StoredText> {
    serde_json::from_slice(unsealed(bytes)?).ok()
}

//! Text that the model has written, kept so that a resumed run need not write it again.

use serde::{Deserialize, Serialize};

use crate::journal::{sealed, unsealed};
use crate::program::program;
use crate::work::{TEXT, WorkFolder, identity};
use crate::{Result, SelfText};
use gguf_core::output::OutputFile;
use gguf_engine::{EngineOptions, TokenChunk};
use gguf_verification::{Fingerprint, Model, Window};

/// Kept text of a model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KeptText {
    pub(crate) windows: Vec<Window>,
    pub(crate) held_out: Vec<Window>,
    pub(crate) notes: Vec<String>,
}

/// Everything that decides the text.
#[derive(Clone, Copy)]
pub(crate) struct TextKey<'a> {
    pub(crate) model: &'a Model<'a>,
    pub(crate) own: &'a SelfText,
    pub(crate) holds_out: bool,
    pub(crate) engine: EngineOptions,
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

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WindowEntry {
    /// Number of its prompt, and index of its first token there.
    prompt: usize,
    start: usize,
    tokens: Vec<u32>,
    /// First row whose prediction is computed, and the end of these rows.
    rows: [usize; 2],
    /// First row that is scored, and the end of these rows.
    scored: [usize; 2],
}

impl TextKey<'_> {
    fn digest(&self) -> Result<String> {
        let (weights, tokenizer) = identity(self.model)?;
        let mut digest = Fingerprint::default();
        digest.bytes(program().as_bytes());
        digest.bytes(self.engine.level.name().as_bytes());
        digest.bytes(weights.as_bytes());
        digest.bytes(tokenizer.as_bytes());
        digest.value(&(self.own, self.holds_out))?;
        Ok(digest.hex())
    }
}

impl WorkFolder {
    /// Text that an earlier run wrote with this model and these options, if it is intact.
    pub(crate) fn written_text(&self, key: TextKey<'_>) -> Result<Option<KeptText>> {
        let Ok(bytes) = fs_err::read(self.path.join(TEXT)) else { return Ok(None) };
        let stored = unsealed(&bytes).and_then(|json| serde_json::from_slice::<StoredText>(json).ok());
        let Some(stored) = stored else { return Ok(None) };
        Ok((stored.of == key.digest()?).then(|| stored.text()).flatten())
    }

    /// Keeps text that the model has written.
    pub(crate) fn keep_text(&self, key: TextKey<'_>, text: &KeptText) -> Result<()> {
        let path = self.path.join(TEXT);
        // The text of an earlier run is not overwritten: this run is about to be refused.
        if self.is_resumed() && path.exists() {
            return Ok(());
        }
        let entries = |windows: &[Window]| windows.iter().map(WindowEntry::of).collect();
        let stored = StoredText {
            of: key.digest()?,
            windows: entries(&text.windows),
            held_out: entries(&text.held_out),
            notes: text.notes.clone(),
        };
        let json = serde_json::to_string(&stored).map_err(std::io::Error::from)?;
        let written = OutputFile::write(&path, sealed(&json).as_bytes(), self.sync);
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

impl WindowEntry {
    /// Entry of a window that no encoder reads a part of.
    fn of(window: &Window) -> Self {
        let Window { prompt, start, chunk, scored, .. } = window;
        Self {
            prompt: *prompt,
            start: *start,
            tokens: chunk.tokens.clone(),
            rows: [chunk.rows.start, chunk.rows.end],
            scored: [scored.start, scored.end],
        }
    }

    /// Rebuilds the window; `None` if its fields contradict each other.
    fn window(&self) -> Option<Window> {
        let ([first, end], [from, to]) = (self.rows, self.scored);
        // A row predicts the next token.
        let targets = self.tokens.get(first.checked_add(1)?..end.checked_add(1)?)?.to_vec();
        let is_whole = first <= from && from <= to && to <= end;
        let chunk = TokenChunk { tokens: self.tokens.clone(), rows: first..end, n_source: 0 };
        let window = Window { prompt: self.prompt, start: self.start, chunk, targets, scored: from..to };
        is_whole.then_some(window)
    }
}

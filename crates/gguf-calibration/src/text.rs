//! Calibration text: one kind of text per path, its share of the tokens, and the part that is held out.

mod held_out;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

pub use held_out::HeldOutText;

use crate::sampler::{SelfText, WrittenText};
use crate::work::{KeptText, TextKey};
use crate::{CalibrateError, Result, WorkFolder};
use gguf_core::progress::Progress;
use gguf_engine::{EngineOptions, GraphPlan, TokenChunk};
use gguf_format::{ColumnSums, ImatrixSums};
use gguf_verification::{
    Model, Prompt, PromptForm, PromptSource, RowSelection, Scoring, Span, VerifyError, Window, cut,
    cut_sources, read_prompts,
};

/// Name of the kind of text that the model writes itself.
pub const SELF_NAME: &str = "self";
/// Minimum tokens of a kind: fewer are not enough for a kind of its own.
const LEAST_TOKENS: usize = 2048;
/// Number of parts of a kind, of which one is held out.
const HELD_OUT_PARTS: u64 = 8;
/// Maximum depth of folders below a given one.
const MAX_DEPTH: usize = 16;

/// One kind of text, as it is in its files.
#[derive(Clone, Debug, PartialEq)]
pub struct TextSource {
    /// Name for metadata and messages: the last part of the path.
    pub name: String,
    /// Prompts of the text.
    pub prompts: Vec<PromptSource>,
}

impl TextSource {
    /// Reads a file of text, JSON or JSON lines in the way that gguf-verify reads prompts.
    ///
    /// A folder is one kind: all files in and below it, in the order of their paths. Files and folders whose names
    /// begin with a dot are skipped, and links to folders are not followed.
    ///
    /// # Errors
    /// As [`read_prompts`]; a folder without files.
    pub fn read(path: &Path, form: PromptForm) -> Result<Self> {
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        if !path.is_dir() {
            return Ok(Self { name, prompts: read_prompts(path, form)? });
        }
        let mut files = Vec::new();
        files_below(path, MAX_DEPTH, &mut files)?;
        if files.is_empty() {
            return Err(CalibrateError::EmptyFolder { path: path.to_owned() });
        }
        let mut prompts = Vec::new();
        for file in files {
            prompts.extend(read_prompts(&file, form)?);
        }
        Ok(Self { name, prompts })
    }
}

/// Collects the files in and below a folder, in the order of their names.
fn files_below(dir: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<()> {
    let mut entries = fs_err::read_dir(dir)?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(fs_err::DirEntry::file_name);
    for entry in entries {
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let (path, kind) = (entry.path(), entry.file_type()?);
        if kind.is_dir() {
            if depth > 0 {
                files_below(&path, depth - 1, files)?;
            }
        } else if path.is_file() {
            files.push(path);
        }
    }
    Ok(())
}

/// Amount of text to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextOptions {
    /// Tokens of a sequence.
    pub n_ctx: usize,
    /// Tokens to calibrate with, over all kinds. A seventh as many are held out in addition.
    pub n_tokens: usize,
    /// True if a part of the text is held out. Set it to false if separate text is given to measure the result
    /// ([`CalibrationText::add_held_out`]).
    pub holds_out: bool,
}

impl Default for TextOptions {
    fn default() -> Self {
        Self { n_ctx: 512, n_tokens: 32_768, holds_out: true }
    }
}

/// Kind of text, encoded for the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextKind {
    /// Name of the kind.
    pub name: String,
    /// Sequences that moments and importance are collected over.
    pub windows: Vec<Window>,
    /// Sequences that are held out: no solver uses them.
    pub held_out: Vec<Window>,
    /// Number of tokens that the whole text has in sequences.
    pub(crate) n_available: usize,
    /// Weight in the mean over kinds, in numbers of ordinary kinds.
    pub weight: u32,
    /// Seed of text that a model wrote.
    pub seed: Option<u64>,
}

impl TextKind {
    /// Number of tokens to calibrate with.
    pub fn n_tokens(&self) -> usize {
        count(&self.windows)
    }

    /// Number of tokens that are held out.
    pub fn n_held_out_tokens(&self) -> usize {
        count(&self.held_out)
    }
}

/// All kinds of calibration text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CalibrationText {
    /// Maximum tokens of a sequence.
    pub n_ctx: usize,
    /// Kinds of text, in the order in which they were given.
    pub kinds: Vec<TextKind>,
    /// Separate held-out text, which is given only to measure the result.
    pub held_out: Vec<HeldOutText>,
    /// Notes for the user: kinds that have less than their share.
    pub notes: Vec<String>,
    /// Text that the model has written for the tuning, so that several candidates learn from one.
    pub(crate) tuning: OnceLock<Vec<Window>>,
}

impl CalibrationText {
    /// Encodes texts and cuts them into sequences.
    ///
    /// Each kind gets the same share of the tokens, and for every seven tokens of its share one more is held out. Both
    /// are spread evenly over the text: a longer text is sampled, not cut off, and the choice is deterministic.
    /// Documents and chats that are shorter than `n_ctx` give short sequences; longer ones, including chats, are cut.
    ///
    /// A kind that has less than its share is used completely and noted; the others keep their shares. Moments are
    /// means over a kind's own tokens, so a short kind is measured less precisely but has the same weight.
    ///
    /// # Errors
    /// Text that cannot be encoded; [`CalibrateError::TooShort`] for a kind that has fewer than 2048 tokens and less
    /// than its share, or only a single sequence, of which nothing could be held out; [`CalibrateError::Budget`].
    pub fn new(model: &Model<'_>, sources: &[TextSource], options: &TextOptions) -> Result<Self> {
        let TextOptions { n_ctx, n_tokens, holds_out } = *options;
        let kinds = sources.len();
        let share = n_tokens.checked_div(kinds).ok_or(CalibrateError::NoText)?;
        if n_ctx < 4 || share / 2 < n_ctx {
            return Err(CalibrateError::Budget { tokens: n_tokens, n_ctx, kinds });
        }
        let plan = model.plan()?;
        let mut text = Self::empty(n_ctx);
        for source in sources {
            let windows = windows(model, &plan, source, n_ctx)?;
            text.add(&source.name, windows, share, holds_out)?;
        }
        Ok(text)
    }

    /// Builds the text that the model writes itself, together with half as many tokens of the sources, if there are
    /// any. Its held-out part is written with another seed.
    ///
    /// Moments are means over a kind's own tokens. So that the model's text weighs as much as all others together, its
    /// [`TextKind::weight`] is the number of the others. `work` keeps the written text, and supplies it if it was
    /// kept before.
    pub fn with_self(
        model: &Model<'_>,
        sources: &[TextSource],
        options: &TextOptions,
        seed: u64,
        engine: EngineOptions,
        work: Option<&WorkFolder>,
        progress: &dyn Progress,
    ) -> Result<Self> {
        let TextOptions { n_ctx, n_tokens, holds_out } = *options;
        if n_ctx < 4 || n_tokens / 2 < n_ctx {
            return Err(CalibrateError::Budget { tokens: n_tokens, n_ctx, kinds: sources.len() + 1 });
        }
        let half = if sources.is_empty() { 0 } else { n_tokens / 2 };
        let mut text = if sources.is_empty() {
            Self::empty(n_ctx)
        } else {
            Self::new(model, sources, &TextOptions { n_tokens: half, ..*options })?
        };
        let own = SelfText { n_tokens: n_tokens - half, n_ctx, seed, ..SelfText::default() };
        text.add_self(model, &own, holds_out, engine, work, progress)?;
        Ok(text)
    }

    /// Creates a text without kinds.
    pub fn empty(n_ctx: usize) -> Self {
        Self { n_ctx, kinds: Vec::new(), held_out: Vec::new(), notes: Vec::new(), tuning: OnceLock::new() }
    }

    /// Adds a placeholder for the text of `add_self`, with the same number of tokens. Its sequence
    /// lengths are enough to compute what a run would need.
    pub fn add_stand_in(&mut self, own: &SelfText, holds_out: bool) {
        let window = |number: usize, n: usize| Window {
            prompt: number,
            start: 0,
            chunk: TokenChunk { tokens: vec![0; n], rows: 0..n.saturating_sub(1), n_source: 0 },
            targets: vec![0; n.saturating_sub(1)],
            scored: 0..n.saturating_sub(1),
        };
        let windows = |n_tokens: usize| -> Vec<Window> {
            let starts = (0..n_tokens).step_by(self.n_ctx.max(1)).enumerate();
            starts.map(|(number, start)| window(number, self.n_ctx.min(n_tokens - start))).collect()
        };
        let held_out = if holds_out { windows(own.n_held_out_tokens()) } else { Vec::new() };
        let weight = u32::try_from(self.kinds.len().max(1)).unwrap_or(u32::MAX);
        let windows = windows(own.n_tokens);
        let n_available = count(&windows) + count(&held_out);
        let (name, seed) = (SELF_NAME.to_owned(), Some(own.seed));
        self.kinds.push(TextKind { name, windows, held_out, n_available, weight, seed });
    }

    /// Adds the kind `self`, which the model writes: `own` to calibrate with. If text is held out, a seventh as much
    /// is written with another seed.
    pub(crate) fn add_self(
        &mut self,
        model: &Model<'_>,
        own: &SelfText,
        holds_out: bool,
        engine: EngineOptions,
        work: Option<&WorkFolder>,
        progress: &dyn Progress,
    ) -> Result<()> {
        let key = TextKey { model, own, holds_out, engine };
        let written = work.map(|work| work.written_text(key)).transpose()?.flatten();
        let KeptText { windows, held_out, notes } = match written {
            Some(kept) => kept,
            None => {
                progress.steps(1 + usize::from(holds_out));
                let WrittenText { windows, notes } = own.write(model, engine, progress)?;
                let n_tokens = own.n_held_out_tokens();
                let other = SelfText { n_tokens, seed: !own.seed, ..*own };
                let held_out =
                    if holds_out { other.write(model, engine, progress)?.windows } else { Vec::new() };
                let kept = KeptText { windows, held_out, notes };
                if let Some(work) = work {
                    work.keep_text(key, &kept)?;
                }
                kept
            }
        };
        let n_available = count(&windows) + count(&held_out);
        self.notes.extend(notes);
        let weight = u32::try_from(self.kinds.len().max(1)).unwrap_or(u32::MAX);
        let (name, seed) = (SELF_NAME.to_owned(), Some(own.seed));
        self.kinds.push(TextKind { name, windows, held_out, n_available, weight, seed });
        Ok(())
    }

    /// Adds a kind, and divides its sequences between calibration and held-out text.
    fn add(&mut self, name: &str, all: Vec<Window>, share: usize, holds_out: bool) -> Result<()> {
        let n_available = count(&all);
        let needed = LEAST_TOKENS.min(share);
        if n_available < needed || all.len() < 2 {
            let (name, found, windows) = (name.to_owned(), n_available, all.len());
            return Err(CalibrateError::TooShort { name, found, windows, needed });
        }
        let share = share as u64;
        let wanted =
            if holds_out { share.saturating_mul(HELD_OUT_PARTS) / (HELD_OUT_PARTS - 1) } else { share };
        if (n_available as u64) < wanted {
            let takers = if holds_out { "its share and its check take" } else { "its share takes" };
            self.notes.push(format!(
                "`{}` has {n_available} tokens of the {wanted} that {takers}: all of them are used",
                gguf_core::text::escape(name)
            ));
        }
        let (used, _) = spread(all, wanted, n_available as u64);
        let n_used = count(&used) as u64;
        let n_held_out = if holds_out { n_used / HELD_OUT_PARTS } else { 0 };
        let (mut held_out, mut windows) = spread(used, n_held_out, n_used);
        if held_out.is_empty() && holds_out {
            held_out.push(windows.remove(windows.len() / 2));
        }
        self.kinds.push(TextKind {
            name: name.to_owned(),
            windows,
            held_out,
            n_available,
            weight: 1,
            seed: None,
        });
        Ok(())
    }

    /// Number of tokens to calibrate with.
    pub fn n_tokens(&self) -> usize {
        self.kinds.iter().map(TextKind::n_tokens).sum()
    }

    /// Number of tokens of each calibration sequence.
    pub(super) fn lengths(&self) -> impl Iterator<Item = usize> + Clone {
        self.kinds.iter().flat_map(|kind| &kind.windows).map(|window| window.chunk.tokens.len())
    }

    /// Sample of the calibration sequences with about `n_tokens` tokens. Each kind has an equal part, spread evenly
    /// over it, and at least one sequence.
    pub(super) fn some_windows(&self, n_tokens: usize) -> Vec<Window> {
        let share = n_tokens / self.kinds.len().max(1);
        let of_kind = |kind: &TextKind| {
            let n = kind.windows.len();
            let mean = (kind.n_tokens() / n.max(1)).max(1);
            let wanted = share.div_ceil(mean).clamp(1, n.max(1));
            // The middle of each of `wanted` parts.
            let places = (0..wanted).map(move |at| (2 * at + 1) * n / (2 * wanted));
            places.filter_map(|at| kind.windows.get(at).cloned()).collect::<Vec<_>>()
        };
        self.kinds.iter().flat_map(of_kind).collect()
    }

    /// Number of tokens of the longest calibration sequence.
    pub(super) fn longest(&self) -> usize {
        self.lengths().max().unwrap_or(0)
    }

    /// Importance sums with the names, sequences and context length of the text.
    pub(super) fn importance(&self, tensors: BTreeMap<String, ColumnSums>) -> ImatrixSums {
        ImatrixSums {
            tensors,
            datasets: self.kinds.iter().map(|kind| kind.name.as_bytes().to_vec()).collect(),
            n_chunks: self.kinds.iter().map(|kind| kind.windows.len()).sum(),
            chunk_size: self.n_ctx,
        }
    }
}

impl SelfText {
    fn n_held_out_tokens(&self) -> usize {
        let n = (self.n_tokens as u64 / (HELD_OUT_PARTS - 1)).max(1);
        usize::try_from(n).unwrap_or(usize::MAX)
    }
}

fn count(windows: &[Window]) -> usize {
    windows.iter().map(|window| window.chunk.tokens.len()).sum()
}

/// Encodes a kind of text and cuts it into sequences.
fn windows(model: &Model<'_>, plan: &GraphPlan, source: &TextSource, n_ctx: usize) -> Result<Vec<Window>> {
    // Nothing is scored here, so prompts need not stay whole.
    let whole = |prompt: Prompt| Prompt { whole: false, ..prompt };
    let prompts: Vec<Prompt> = model.encode_all(&source.prompts)?.into_iter().map(whole).collect();
    let scoring =
        Scoring { n_ctx, n_chunks: None, stride: None, span: Span::SecondHalf, rows: RowSelection::Scored };
    let mut windows = match cut(&prompts, &[], &scoring) {
        Ok(cut) => cut.windows,
        Err(VerifyError::NothingToScore) => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    cut_sources(plan, &mut windows);
    Ok(windows)
}

/// Splits windows into those with at most `wanted` of `total` tokens, evenly spread over all, and the rest.
fn spread(windows: Vec<Window>, wanted: u64, total: u64) -> (Vec<Window>, Vec<Window>) {
    let (mut taken, mut rest) = (Vec::new(), Vec::new());
    let (mut n_passed, mut n_taken) = (0u64, 0u64);
    for window in windows {
        let n = window.chunk.tokens.len() as u64;
        n_passed += n;
        let due = u128::from(n_passed) * u128::from(wanted.min(total)) / u128::from(total.max(1));
        if u128::from(n_taken + n) <= due {
            n_taken += n;
            taken.push(window);
        } else {
            rest.push(window);
        }
    }
    (taken, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(lengths: &[usize]) -> Vec<Window> {
        let window = |(prompt, &n): (usize, &usize)| Window {
            prompt,
            start: 0,
            chunk: TokenChunk { tokens: vec![1; n], rows: 0..n - 1, n_source: 0 },
            targets: vec![1; n - 1],
            scored: 0..n - 1,
        };
        lengths.iter().enumerate().map(window).collect()
    }

    fn shared(lengths: &[usize], share: usize) -> Result<CalibrationText> {
        let mut text = CalibrationText::empty(512);
        text.add("x", windows(lengths), share, true)?;
        Ok(text)
    }

    fn numbers(windows: &[Window]) -> Vec<usize> {
        windows.iter().map(|window| window.prompt).collect()
    }

    #[test]
    fn an_eighth_is_held_out_in_addition_to_the_share() {
        let text = shared(&[512; 300], 32_768).unwrap();
        let kind = &text.kinds[0];
        assert_eq!((kind.n_tokens(), kind.held_out.len(), kind.n_available), (32_768, 9, 153_600));
        assert!(text.notes.is_empty());
        // Spread over the whole text, and nothing twice.
        let all = [numbers(&kind.windows), numbers(&kind.held_out)].concat();
        assert!(numbers(&kind.windows)[0] < 5 && numbers(&kind.windows)[63] > 290);
        assert!(numbers(&kind.held_out)[0] < 40 && numbers(&kind.held_out)[8] > 250);
        assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), 73);
    }

    #[test]
    fn nothing_is_held_out_with_a_separate_text() {
        let mut text = CalibrationText::empty(512);
        text.add("x", windows(&[512; 300]), 32_768, false).unwrap();
        text.add("y", windows(&[512; 16]), 32_768, false).unwrap();
        assert_eq!((text.kinds[0].n_tokens(), text.kinds[1].n_tokens()), (32_768, 8192));
        assert!(text.held_out_windows().is_empty() && text.n_held_out_tokens() == 0);
        assert!(text.notes[0].contains("8192 tokens of the 32768 that its share takes"), "{:?}", text.notes);
        text.kinds[1].seed = Some(1);
        assert_eq!(text.description(), "x: 32768 tokens, y: 8192 tokens (seed 1)");
        text.held_out.push(HeldOutText { name: "z".to_owned(), windows: windows(&[512; 3]) });
        assert!(text.description().ends_with("(seed 1); checked by z: 1536 tokens"));
        assert_eq!((text.held_out_windows().len(), text.n_held_out_tokens()), (3, 1536));
    }

    #[test]
    fn a_kind_with_less_than_its_share_gives_all() {
        let text = shared(&[512; 16], 32_768).unwrap();
        let kind = &text.kinds[0];
        assert_eq!((kind.windows.len(), numbers(&kind.held_out)), (14, vec![7, 15]));
        assert!(text.notes[0].contains("has 8192 tokens of the 37449"), "{:?}", text.notes);
        let text = shared(&[30; 100], 32_768).unwrap();
        assert_eq!((text.kinds[0].n_tokens(), text.kinds[0].n_held_out_tokens()), (2640, 360));
        let text = shared(&[1500, 700], 32_768).unwrap();
        assert_eq!((numbers(&text.kinds[0].windows), numbers(&text.kinds[0].held_out)), (vec![0], vec![1]));
    }

    #[test]
    fn some_sequences_are_spread_over_each_kind() {
        let kind = |lengths: &[usize]| TextKind {
            name: String::new(),
            windows: windows(lengths),
            held_out: Vec::new(),
            n_available: 0,
            weight: 1,
            seed: None,
        };
        let kinds = vec![kind(&[100; 40]), kind(&[512; 3])];
        let text = CalibrationText { kinds, ..CalibrationText::empty(512) };
        let lengths = |n_tokens| -> Vec<usize> {
            text.some_windows(n_tokens).iter().map(|window| window.chunk.tokens.len()).collect()
        };
        assert_eq!(lengths(1200), [&[100; 6][..], &[512; 2]].concat());
        assert_eq!(lengths(0), [100, 512]);
        assert_eq!(lengths(usize::MAX), [&[100; 40][..], &[512; 3]].concat());
        let places: Vec<usize> = numbers(&text.some_windows(400)[..2]);
        assert_eq!(places, [10, 30]);
    }

    #[test]
    fn too_little_text_is_refused_with_figures() {
        for (lengths, share, expected) in [
            (&[512, 512][..], 32_768, "1024 tokens in 2 sequences; expected at least 2048 in 2"),
            (&[4096], 32_768, "4096 tokens in 1 sequences; expected at least 2048 in 2"),
            (&[], 1024, "0 tokens in 0 sequences; expected at least 1024 in 2"),
        ] {
            let error = shared(lengths, share).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn folders_are_one_kind_in_the_order_of_their_paths() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in
            [("b.txt", "2"), ("a/z.txt", "1"), (".git/x", "9"), ("c.jsonl", "{\"text\":\"3\"}")]
        {
            let path = dir.path().join(name);
            fs_err::create_dir_all(path.parent().unwrap()).unwrap();
            fs_err::write(path, text).unwrap();
        }
        let source = TextSource::read(dir.path(), PromptForm::Detected).unwrap();
        let expected = ["1", "2", "3"].map(|text| PromptSource::Text(text.to_owned()));
        assert_eq!(source.prompts, expected);
        let file = TextSource::read(&dir.path().join("b.txt"), PromptForm::Detected).unwrap();
        assert_eq!(file.name, "b.txt");
        let empty = TextSource::read(&dir.path().join(".git"), PromptForm::Detected);
        assert!(empty.is_ok());
        fs_err::create_dir(dir.path().join("none")).unwrap();
        let error = TextSource::read(&dir.path().join("none"), PromptForm::Detected).unwrap_err();
        assert!(error.to_string().ends_with("no file in this folder"), "{error}");
    }
}

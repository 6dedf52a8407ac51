//! Collection run over the chunks of a text, group by group, so that finished groups can be saved and the run can be
//! resumed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use crate::answers::cut_sources;
use crate::imatrix::collector::{ExactColumns, SumCollector};
use crate::imatrix::fingerprint::Fingerprint;
use crate::prompts::shares;
use crate::verification::beyond_training;
use crate::windows::{Cut, Scoring, cut};
use crate::{Model, Perplexity, Prompt, PromptError, PromptFile, PromptSource, VerifyError, Window};
use gguf_core::exact::add_exactly;
use gguf_core::progress::Progress;
use gguf_core::text::escape;
use gguf_engine::{Engine, EngineOptions, Hidden, ModelKind, TokenChunk};
use gguf_format::{ColumnSums, ImatrixError, ImatrixPart, ImatrixSums, Share, StoredImatrix, UnfinishedRun};

/// Name of the head's matrix, if it is not the embedding's.
const OUTPUT: &str = "output.weight";

/// Options of the collection.
#[derive(Clone, Debug)]
pub struct ImportanceOptions {
    /// Options of the engine.
    pub engine: EngineOptions,
    /// Files of the prompts, which share the chunks; if empty, all prompts count as one file.
    pub files: Vec<PromptFile>,
    /// Options for cutting the prompts; every token of a chunk counts.
    pub scoring: Scoring,
    /// Number of chunks to skip at the beginning of each file.
    pub from_chunk: usize,
    /// True to convert special tokens written out in documents and completions into their ids.
    pub parse_special: bool,
    /// True to collect for `output.weight` too.
    pub process_output: bool,
    /// True to compute the perplexity as well.
    pub perplexity: bool,
    /// Group ends: a group ends if the number of chunks is a multiple of one of these (0 is ignored).
    pub every: Vec<usize>,
}

/// Collected data so far, always of whole chunks.
#[derive(Clone, Debug, PartialEq)]
pub struct Collected {
    /// Sums that the file will hold.
    pub sums: ImatrixSums,
    /// Number of finished chunks of this run.
    pub n_done: usize,
    /// Negative log likelihoods of the tokens scored so far.
    pub nll: Vec<f64>,
    /// Rounding errors of the sums by tensor: with them the sums do not depend on how the run was cut.
    pub rests: BTreeMap<String, Vec<f64>>,
}

impl Collected {
    /// Starts from empty sums, or from those of earlier files.
    pub fn from_sums(sums: ImatrixSums) -> Self {
        Self { sums, n_done: 0, nll: Vec::new(), rests: BTreeMap::new() }
    }

    /// Returns the perplexity of the text so far.
    pub fn perplexity(&self) -> Option<Perplexity> {
        Perplexity::of_nll(self.nll.iter().copied())
    }

    fn add(&mut self, group: GroupResult, n_chunks: usize) {
        for (name, ExactColumns { columns: own, rests }) in group.sums {
            let n_matrices = own.counts.len();
            let rest = self.rests.entry(name.clone()).or_insert_with(|| vec![0.0; rests.len()]);
            let total = self.sums.tensors.entry(name);
            let total = total.or_insert_with(|| ColumnSums::zero(own.n_cols, n_matrices));
            total.spread(n_matrices);
            add_exactly(&mut total.sums, rest, &own.sums, &rests);
            total.counts.iter_mut().zip(own.counts).for_each(|(total, n)| *total = total.saturating_add(n));
        }
        self.nll.extend(group.nll);
        self.n_done += n_chunks;
        self.sums.n_chunks += n_chunks;
    }
}

struct GroupResult {
    sums: BTreeMap<String, ExactColumns>,
    nll: Vec<f64>,
}

/// Run that is ready: the text is cut into chunks, and the model's graph is built.
pub struct ImportanceRun<'a> {
    engine: Engine<'a>,
    options: ImportanceOptions,
    windows: Vec<Window>,
    model: String,
    /// Part of the chunks that `windows` holds, if several machines share them.
    part: Option<ImatrixPart>,
    /// Prompts that the limit on the number of chunks left without a window.
    pub unreached: Vec<usize>,
    /// Number of chunks of each file.
    pub chunks: Vec<usize>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

impl<'a> ImportanceRun<'a> {
    /// Cuts prompts, builds the graph and identifies the model, all of which is read once.
    ///
    /// # Errors
    /// As [`crate::verify`], and a graph that cannot be built; no chunk after the skipped ones; a model whose
    /// head is its embedding, if the head is asked for.
    pub fn new(
        model: &Model<'a>,
        prompts: &[PromptSource],
        options: ImportanceOptions,
        progress: &dyn Progress,
    ) -> Result<Self, VerifyError> {
        let plan = model.plan()?;
        let encoded = encode(model, prompts, options.parse_special)?;
        let Cut { mut windows, unreached, chunks } = cut_behind(&encoded, &options)?;
        let engine = Engine::new(plan, model.source, options.engine)?;
        cut_sources(engine.plan(), &mut windows);
        let is_encoder = engine.plan().kind == ModelKind::Encoder;
        // Without predictions there is nothing to score.
        let mut options = ImportanceOptions { perplexity: options.perplexity && !is_encoder, ..options };
        // Texts that fill no chunk: the chunks have the length of the longest.
        let longest = windows.iter().map(|window| window.chunk.tokens.len()).max();
        options.scoring.n_ctx = options.scoring.n_ctx.min(longest.unwrap_or(usize::MAX)).max(1);
        let head = model.source.tensors().get(engine.plan().head.tensor).map(|meta| meta.name.as_str());
        if options.process_output && head != Some(OUTPUT) {
            return Err(VerifyError::NoOutputTensor { head: head.unwrap_or_default().to_owned() });
        }
        let mut warnings = engine.plan().warnings.clone();
        warnings.extend(beyond_training(engine.plan(), &windows));
        warnings.extend(left_out(&options, &unreached, &chunks));
        let mut digest = Fingerprint::default();
        digest.model(model.metadata, model.source, progress).map_err(std::io::Error::other)?;
        let model = digest.hex();
        Ok(Self { engine, model, options, windows, part: None, unreached, chunks, warnings })
    }

    /// Limits the run to a share: consecutive chunks, so that the largest share of tokens is as small as possible.
    /// [`gguf_format::combine_imatrix_parts`] joins the results of all shares.
    ///
    /// # Errors
    /// More shares than chunks; a model that cannot be read.
    pub fn share(self, share: Share) -> Result<Self, VerifyError> {
        let n_windows = self.windows.len();
        if n_windows < share.count() {
            return Err(VerifyError::FewWindows { share, n_windows });
        }
        let costs: Vec<u64> = self.windows.iter().map(|window| window.chunk.tokens.len() as u64).collect();
        let own = share.of_costs(&costs);
        let chunk_size = self.options.scoring.n_ctx;
        let nothing = ImatrixSums { tensors: BTreeMap::new(), datasets: Vec::new(), n_chunks: 0, chunk_size };
        let part = ImatrixPart {
            number: share.number(),
            count: share.count(),
            model: self.model.clone(),
            plan: self.fingerprint(&nothing, n_windows),
            first_chunk: own.start,
            all_chunks: n_windows,
        };
        let windows = self.windows.get(own).unwrap_or_default().to_vec();
        Ok(Self { windows, part: Some(part), ..self })
    }

    /// Returns the part of the chunks that this run has, if several machines share them.
    pub fn part(&self) -> Option<&ImatrixPart> {
        self.part.as_ref()
    }

    /// Returns the number of tokens in a chunk.
    pub fn chunk_size(&self) -> usize {
        self.options.scoring.n_ctx
    }

    /// Returns the number of chunks of the run.
    pub fn n_chunks(&self) -> usize {
        self.windows.len()
    }

    /// Checks that sums of earlier files belong to this model; returns the names without a tensor in it.
    ///
    /// # Errors
    /// [`ImatrixError`]: a tensor with another width or another number of experts; no tensor of this model.
    pub fn check(&self, sums: &ImatrixSums, files: &[StoredImatrix]) -> Result<Vec<String>, ImatrixError> {
        let tensors = self.engine.source.tensors();
        let mut unknown = Vec::new();
        for (name, columns) in &sums.tensors {
            let Some(meta) = tensors.iter().find(|meta| meta.name == *name) else {
                unknown.push(name.clone());
                continue;
            };
            let path = || {
                let file = files.iter().find(|file| file.has(name));
                file.map(|file| file.path().to_owned()).unwrap_or_default()
            };
            let n_matrices = match meta.shape.dims() {
                [n, _, _] => *n,
                _ => 1,
            };
            let expected = meta.shape.n_cols().saturating_mul(n_matrices);
            if columns.sums.len() as u64 != expected {
                let found = columns.sums.len();
                return Err(ImatrixError::Size { path: path(), tensor: name.clone(), expected, found });
            }
            let n_counts = columns.counts.len();
            if n_counts != 1 && n_counts as u64 != n_matrices {
                let (n_values, n_counts) = (columns.sums.len(), n_counts);
                return Err(ImatrixError::Counts { path: path(), tensor: name.clone(), n_values, n_counts });
            }
        }
        match (unknown.first(), files.first()) {
            (Some(example), Some(file)) if unknown.len() == sums.tensors.len() => {
                Err(ImatrixError::OtherModel {
                    path: file.path().to_owned(),
                    n_entries: unknown.len(),
                    example: example.clone(),
                })
            }
            _ => Ok(unknown),
        }
    }

    /// Returns the identity of the run's first `n_chunks` chunks; `before` holds the sums that it began with. Another
    /// version of the program may compute other sums.
    pub fn fingerprint(&self, before: &ImatrixSums, n_chunks: usize) -> String {
        let mut fingerprint = Fingerprint::default();
        fingerprint.bytes(env!("CARGO_PKG_VERSION").as_bytes());
        fingerprint.bytes(self.model.as_bytes());
        fingerprint.number(u64::from(self.options.process_output));
        fingerprint.number(u64::from(self.options.perplexity));
        fingerprint.number(self.options.scoring.n_ctx as u64);
        fingerprint.sums(before);
        fingerprint.windows(self.windows.get(..n_chunks).unwrap_or(&self.windows));
        fingerprint.hex()
    }

    /// Returns the identity of a finished matrix, which a run of the same model, text and options need not
    /// measure again.
    pub fn identity(&self, before: &ImatrixSums) -> String {
        self.fingerprint(before, self.windows.len())
    }

    /// Returns the data that a file needs for [`ImportanceRun::resume`].
    pub fn unfinished(&self, before: &ImatrixSums, collected: &Collected) -> UnfinishedRun {
        UnfinishedRun {
            fingerprint: self.fingerprint(before, collected.n_done),
            n_done: collected.n_done,
            n_total: self.windows.len(),
            nll: collected.nll.clone(),
            rests: collected.rests.clone(),
            part: self.part.clone(),
        }
    }

    /// Resumes an earlier run. The number of chunks may have changed since.
    pub fn resume(
        &self,
        path: &Path,
        before: &ImatrixSums,
        run: UnfinishedRun,
        sums: ImatrixSums,
    ) -> Result<Collected, VerifyError> {
        let path = path.to_owned();
        let (n_done, n_total) = (run.n_done, self.windows.len());
        if n_done > n_total {
            return Err(ImatrixError::BeyondRun { path, n_done, n_total }.into());
        }
        if self.fingerprint(before, n_done) != run.fingerprint {
            return Err(ImatrixError::OtherRun { path, n_done }.into());
        }
        Ok(Collected { sums, n_done, nll: run.nll, rests: run.rests })
    }

    /// Runs the chunks that are not done, and calls `saved` after every group. If it stops early, `collected` holds the
    /// finished groups.
    pub fn run<E: From<VerifyError>>(
        &self,
        collected: &mut Collected,
        progress: &dyn Progress,
        saved: &mut dyn FnMut(&Collected) -> Result<(), E>,
    ) -> Result<(), E> {
        let earlier = collected.sums.n_chunks - collected.n_done.min(collected.sums.n_chunks);
        let groups = self.groups(earlier, collected.n_done)?;
        let chunks: Vec<Vec<TokenChunk>> = groups.iter().map(|group| self.chunks(group)).collect();
        progress.begin("running the model", chunks.iter().map(|group| self.engine.work_bytes(group)).sum());
        let n_tokens = |chunk: &TokenChunk| chunk.tokens.len() as u64;
        progress.units("token", chunks.iter().flatten().map(n_tokens).sum());
        for (group, chunks) in groups.into_iter().zip(chunks) {
            let sums = self.group(&self.windows[group.clone()], &chunks, progress)?;
            if let Some(tensor) = sums.non_finite() {
                let before = self.part.as_ref().map_or(0, |part| part.first_chunk);
                let (first, last) = (before + group.start, before + group.end - 1);
                return Err(VerifyError::NonFiniteActivations { tensor, first, last }.into());
            }
            collected.add(sums, group.len());
            if let Some(p) = collected.perplexity() {
                progress.figures(&format!("perplexity {:.4} ± {:.4}", p.value, p.stderr));
            }
            saved(collected)?;
        }
        progress.end();
        Ok(())
    }

    /// Returns the chunks from `first` on in groups that fit into memory and end where something is saved.
    fn groups(&self, earlier: usize, first: usize) -> Result<Vec<Range<usize>>, VerifyError> {
        let tokens = |at: usize| self.windows[at].chunk.tokens.len();
        let longest = (0..self.windows.len()).map(tokens).max().unwrap_or(0);
        let limit = self.engine.group_tokens(longest)?;
        let is_end =
            |at: usize| self.options.every.iter().any(|&n| n > 0 && (earlier + at).is_multiple_of(n));
        let mut groups = Vec::new();
        let mut start = first;
        while start < self.windows.len() {
            let mut end = start + 1;
            let mut n_tokens = tokens(start);
            while end < self.windows.len() && !is_end(end) && n_tokens + tokens(end) <= limit {
                n_tokens += tokens(end);
                end += 1;
            }
            groups.push(start..end);
            start = end;
        }
        Ok(groups)
    }

    /// Returns the chunks for the engine; hidden states are wanted if the head's input is collected or tokens are
    /// scored.
    fn chunks(&self, group: &Range<usize>) -> Vec<TokenChunk> {
        let chunk = |window: &Window| {
            let tokens = window.chunk.tokens.clone();
            let rows = match (self.options.process_output, self.options.perplexity) {
                (true, _) => window.chunk.n_source..tokens.len(),
                (false, true) => window.chunk.rows.clone(),
                (false, false) => 0..0,
            };
            TokenChunk { tokens, rows, n_source: window.chunk.n_source }
        };
        self.windows[group.clone()].iter().map(chunk).collect()
    }

    fn group(
        &self,
        windows: &[Window],
        chunks: &[TokenChunk],
        progress: &dyn Progress,
    ) -> Result<GroupResult, VerifyError> {
        let collector = SumCollector::new(self.options.engine.level);
        let mut hidden = self.engine.forward(chunks, progress, Some(&collector))?;
        let n_embd = self.engine.plan().head.n_cols;
        if self.options.process_output {
            collector.add(OUTPUT, n_embd, 0, 1, hidden.states());
            hidden = scored(&hidden, windows, n_embd);
        }
        let mut nll = Vec::new();
        if self.options.perplexity {
            let targets: Vec<u32> =
                windows.iter().flat_map(|window| window.targets.iter().copied()).collect();
            let scores = self.engine.scores(&hidden, &targets, progress, None)?;
            let mut scores = scores.into_iter();
            for window in windows {
                let own = window.chunk.rows.clone().zip(&mut scores);
                nll.extend(own.filter(|(row, _)| window.scored.contains(row)).map(|(_, score)| score.nll));
            }
        }
        Ok(GroupResult { sums: collector.into_exact(), nll })
    }
}

impl GroupResult {
    /// Returns the first tensor with a sum that is not finite.
    fn non_finite(&self) -> Option<String> {
        let broken = |exact: &ExactColumns| exact.columns.sums.iter().any(|sum| !sum.is_finite());
        self.sums.iter().find(|(_, exact)| broken(exact)).map(|(name, _)| name.clone())
    }
}

/// Selects the states whose predictions are scored from the states of all tokens.
fn scored(hidden: &Hidden, windows: &[Window], n_embd: usize) -> Hidden {
    let (mut states, mut start) = (Vec::new(), 0);
    for window in windows {
        let rows = &window.chunk.rows;
        let own = hidden.states().get((start + rows.start) * n_embd..(start + rows.end) * n_embd);
        states.extend_from_slice(own.unwrap_or_default());
        start += window.chunk.tokens.len();
    }
    Hidden::new(states, n_embd)
}

/// Encodes the prompts; with `parse_special`, documents are encoded like the texts of chats.
fn encode(
    model: &Model<'_>,
    prompts: &[PromptSource],
    parse_special: bool,
) -> Result<Vec<Prompt>, VerifyError> {
    let mut encoded = model.encode_all(prompts)?;
    let (Ok(encoder), true) = (model.encoder, parse_special) else { return Ok(encoded) };
    for (at, (prompt, source)) in encoded.iter_mut().zip(prompts).enumerate() {
        let texts: &[&String] = match source {
            PromptSource::Text(text) => &[text],
            PromptSource::Completion { prompt, completion } => &[prompt, completion],
            PromptSource::Tokens(_) | PromptSource::Messages(_) => continue,
        };
        prompt.tokens = encoder.start_of_text().into_iter().collect();
        for text in texts {
            let ids =
                encoder.encode(text, true).map_err(|reason| PromptError::Encode { prompt: at, reason })?;
            prompt.tokens.extend(ids);
        }
    }
    Ok(encoded)
}

/// Cuts prompts and skips the first chunks of each file; the files share the limit from there.
fn cut_behind(prompts: &[Prompt], options: &ImportanceOptions) -> Result<Cut, VerifyError> {
    let (first, scoring, files) = (options.from_chunk, &options.scoring, &options.files);
    if first == 0 {
        return cut(prompts, files, scoring);
    }
    let Cut { windows, chunks, .. } = cut(prompts, files, &Scoring { n_chunks: None, ..*scoring })?;
    // Chunks of prompts without a file come last, as one more file.
    let rest = windows.len().saturating_sub(chunks.iter().sum());
    let most = chunks.iter().copied().chain([rest]).max().unwrap_or(0);
    let mut windows = windows.into_iter();
    let mut of_files: Vec<Vec<Window>> = Vec::new();
    for n in chunks.iter().copied().chain([rest]) {
        of_files.push(windows.by_ref().take(n).skip(first).collect());
    }
    if of_files.iter().all(Vec::is_empty) {
        return Err(VerifyError::NoChunksLeft { first, n_chunks: most });
    }
    let available: Vec<usize> = of_files.iter().map(Vec::len).collect();
    let mut chunks = shares(&available, scoring.n_chunks.unwrap_or(usize::MAX));
    let (mut windows, mut unreached) = (Vec::new(), Vec::new());
    for (mut own, &n) in of_files.into_iter().zip(&chunks) {
        let beyond = own.split_off(n);
        let last = own.last().map(|window| window.prompt);
        let mut left: Vec<usize> = beyond.iter().map(|window| window.prompt).collect();
        left.dedup();
        unreached.extend(left.into_iter().filter(|&prompt| last != Some(prompt)));
        windows.extend(own);
    }
    chunks.truncate(files.len());
    Ok(Cut { windows, unreached, chunks })
}

/// Returns a sentence for each file that has no chunk after the skipped ones.
fn left_out(options: &ImportanceOptions, unreached: &[usize], chunks: &[usize]) -> Vec<String> {
    let is_left_out = |(file, n): &(&PromptFile, &usize)| {
        options.from_chunk > 0 && **n == 0 && !unreached.iter().any(|prompt| file.prompts.contains(prompt))
    };
    let sentence = |(file, _): (&PromptFile, &usize)| {
        let name = file.path.display().to_string();
        format!("`{}` is not read: it has no chunk behind the first {}", escape(&name), options.from_chunk)
    };
    options.files.iter().zip(chunks).filter(is_left_out).map(sentence).collect()
}

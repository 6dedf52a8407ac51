//! A run over the chunks of a text: group by group, so that what is finished can be saved, and taken up again.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use crate::core::exact::add_exactly;
use crate::core::progress::Progress;
use crate::core::text::escape;
use crate::engine::plan::ModelKind;
use crate::engine::{Engine, EngineOptions, Hidden, TokenChunk};
use crate::gguf::{
    ColumnSums, ImatrixError, ImatrixPart, ImatrixSums, Metadata, Share, StoredImatrix, UnfinishedRun,
};
use crate::verify::answers::cut_sources;
use crate::verify::imatrix::collector::{ExactColumns, SumCollector};
use crate::verify::imatrix::fingerprint::Fingerprint;
use crate::verify::prompts::shares;
use crate::verify::verification::beyond_training;
use crate::verify::windows::{Cut, Scoring, cut};
use crate::verify::{Model, Perplexity, Prompt, PromptError, PromptFile, PromptSource, VerifyError, Window};

/// Name of the head's matrix, where it is not the embedding's.
const OUTPUT: &str = "output.weight";

/// How to collect.
#[derive(Clone, Debug)]
pub struct ImportanceOptions {
    /// Machine use.
    pub engine: EngineOptions,
    /// The files that the prompts are of; they share the chunks. None: all are as of one.
    pub files: Vec<PromptFile>,
    /// How prompts are cut; every token of a chunk counts.
    pub scoring: Scoring,
    /// Chunks that are left out at the beginning of each file.
    pub from_chunk: usize,
    /// Special tokens written out in documents and completions become their ids.
    pub parse_special: bool,
    /// Collect for `output.weight` too.
    pub process_output: bool,
    /// Compute the perplexity by the way.
    pub perplexity: bool,
    /// A group ends where the number of chunks is a multiple of one of these (0: of none).
    pub every: Vec<usize>,
}

/// What is collected so far. Always that of whole chunks.
#[derive(Clone, Debug, PartialEq)]
pub struct Collected {
    /// What the file will hold.
    pub sums: ImatrixSums,
    /// Chunks of this run that are done.
    pub n_done: usize,
    /// Negative log likelihoods of the tokens scored so far.
    pub nll: Vec<f64>,
    /// By tensor, what the rounding of the sums lost: with it they do not depend on how the run was cut.
    pub rests: BTreeMap<String, Vec<f64>>,
}

impl Collected {
    /// Nothing yet, or what earlier files hold.
    #[must_use]
    pub fn from_sums(sums: ImatrixSums) -> Self {
        Self { sums, n_done: 0, nll: Vec::new(), rests: BTreeMap::new() }
    }

    /// Perplexity of the text so far.
    #[must_use]
    pub fn perplexity(&self) -> Option<Perplexity> {
        Perplexity::of_nll(self.nll.iter().copied())
    }

    /// Adds a finished group.
    fn add(&mut self, group: Group, n_chunks: usize) {
        for (name, ExactColumns { columns: own, rests }) in group.sums {
            let n_matrices = own.counts.len();
            let rest = self.rests.entry(name.clone()).or_insert_with(|| vec![0.0; rests.len()]);
            let total = self.sums.tensors.entry(name);
            let total = total.or_insert_with(|| ColumnSums::zero(own.n_cols, n_matrices));
            total.spread(n_matrices);
            add_exactly((&mut total.sums, rest), (&own.sums, &rests));
            total.counts.iter_mut().zip(own.counts).for_each(|(total, n)| *total = total.saturating_add(n));
        }
        self.nll.extend(group.nll);
        self.n_done += n_chunks;
        self.sums.n_chunks += n_chunks;
    }
}

/// What a group adds.
struct Group {
    sums: BTreeMap<String, ExactColumns>,
    nll: Vec<f64>,
}

/// A run that is ready: text cut into chunks, the model's graph built.
pub struct ImportanceRun<'a> {
    engine: Engine<'a>,
    metadata: &'a Metadata,
    options: ImportanceOptions,
    windows: Vec<Window>,
    /// Which part of the chunks `windows` are, if several machines share them.
    part: Option<ImatrixPart>,
    /// Prompts of which the limit on the number of chunks left nothing.
    pub unreached: Vec<usize>,
    /// Chunks of each file.
    pub chunks: Vec<usize>,
    /// What the reader should know.
    pub warnings: Vec<String>,
}

impl<'a> ImportanceRun<'a> {
    /// Cuts prompts and builds the graph.
    ///
    /// # Errors
    /// As [`crate::verify::verify`], and a graph that cannot be built; no chunks behind the first ones that are left
    /// out; a model whose head is its embedding, if the head is asked for.
    pub fn new(
        model: &Model<'a>,
        prompts: &[PromptSource],
        options: ImportanceOptions,
    ) -> Result<Self, VerifyError> {
        let encoded = encode(model, prompts, options.parse_special)?;
        let Cut { mut windows, unreached, chunks } = cut_behind(&encoded, &options)?;
        let engine = Engine::new(model.plan()?, model.source, options.engine)?;
        cut_sources(engine.plan(), &mut windows);
        let is_encoder = engine.plan().kind == ModelKind::Encoder;
        // Without predictions there is nothing to score.
        let options = ImportanceOptions { perplexity: options.perplexity && !is_encoder, ..options };
        let head = model.source.tensors().get(engine.plan().head.tensor).map(|meta| meta.name.as_str());
        if options.process_output && head != Some(OUTPUT) {
            return Err(VerifyError::NoOutputTensor { head: head.unwrap_or_default().to_owned() });
        }
        let mut warnings = engine.plan().warnings.clone();
        warnings.extend(beyond_training(engine.plan(), &windows));
        warnings.extend(left_out(&options, &unreached, &chunks));
        let metadata = model.metadata;
        Ok(Self { engine, metadata, options, windows, part: None, unreached, chunks, warnings })
    }

    /// A share of the run: consecutive chunks, so that the share with the most tokens has as few as can be. What is collected
    /// of all shares, [`crate::gguf::combine_imatrix_parts`] puts together.
    ///
    /// # Errors
    /// More shares than chunks; a model that cannot be read.
    pub fn share(self, share: Share) -> Result<Self, VerifyError> {
        let n_windows = self.windows.len();
        if n_windows < share.count() {
            return Err(VerifyError::FewWindows { share, n_windows });
        }
        let mut model = Fingerprint::new();
        model.model(self.metadata, self.engine.source).map_err(std::io::Error::other)?;
        let costs: Vec<u64> = self.windows.iter().map(|window| window.chunk.tokens.len() as u64).collect();
        let own = share.of_costs(&costs);
        let chunk_size = self.options.scoring.n_ctx;
        let nothing = ImatrixSums { tensors: BTreeMap::new(), datasets: Vec::new(), n_chunks: 0, chunk_size };
        let part = ImatrixPart {
            number: share.number(),
            count: share.count(),
            model: model.hex(),
            plan: self.fingerprint(&nothing, n_windows)?,
            first_chunk: own.start,
            all_chunks: n_windows,
        };
        let windows = self.windows.get(own).unwrap_or_default().to_vec();
        Ok(Self { windows, part: Some(part), ..self })
    }

    /// Which part of the chunks of all machines this run has.
    #[must_use]
    pub fn part(&self) -> Option<&ImatrixPart> {
        self.part.as_ref()
    }

    /// Chunks of the run.
    #[must_use]
    pub fn n_chunks(&self) -> usize {
        self.windows.len()
    }

    /// Checks that sums of earlier files are about this model; returns those that it has no tensor for.
    ///
    /// # Errors
    /// [`ImatrixError`]: a tensor of another width or with another number of experts; none of this model.
    pub fn check(&self, sums: &ImatrixSums, files: &[StoredImatrix]) -> Result<Vec<String>, ImatrixError> {
        let tensors = self.engine.source.tensors();
        let mut strangers = Vec::new();
        for (name, columns) in &sums.tensors {
            let Some(meta) = tensors.iter().find(|meta| meta.name == *name) else {
                strangers.push(name.clone());
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
        match (strangers.first(), files.first()) {
            (Some(example), Some(file)) if strangers.len() == sums.tensors.len() => {
                Err(ImatrixError::OtherModel {
                    path: file.path().to_owned(),
                    n_entries: strangers.len(),
                    example: example.clone(),
                })
            }
            _ => Ok(strangers),
        }
    }

    /// What tells the run's first chunks from those of other runs; `before` is what it began with.
    ///
    /// # Errors
    /// A model that cannot be read.
    pub fn fingerprint(&self, before: &ImatrixSums, n_chunks: usize) -> Result<String, VerifyError> {
        let mut fingerprint = Fingerprint::new();
        let source = self.engine.source;
        fingerprint.model(self.metadata, source).map_err(std::io::Error::other)?;
        fingerprint.number(u64::from(self.options.process_output));
        fingerprint.number(u64::from(self.options.perplexity));
        fingerprint.number(self.options.scoring.n_ctx as u64);
        fingerprint.sums(before);
        fingerprint.windows(self.windows.get(..n_chunks).unwrap_or(&self.windows));
        Ok(fingerprint.hex())
    }

    /// What a file needs to say for [`ImportanceRun::resume`].
    ///
    /// # Errors
    /// As [`ImportanceRun::fingerprint`].
    pub fn unfinished(
        &self,
        before: &ImatrixSums,
        collected: &Collected,
    ) -> Result<UnfinishedRun, VerifyError> {
        Ok(UnfinishedRun {
            fingerprint: self.fingerprint(before, collected.n_done)?,
            n_done: collected.n_done,
            n_total: self.windows.len(),
            nll: collected.nll.clone(),
            rests: collected.rests.clone(),
            part: self.part.clone(),
        })
    }

    /// Takes up an earlier run where it stopped. The number of chunks may have changed since.
    ///
    /// # Errors
    /// [`ImatrixError::OtherRun`], [`ImatrixError::BeyondRun`]; a model that cannot be read.
    pub fn resume(
        &self,
        path: &Path,
        before: &ImatrixSums,
        (run, sums): (UnfinishedRun, ImatrixSums),
    ) -> Result<Collected, VerifyError> {
        let path = path.to_owned();
        let (n_done, n_total) = (run.n_done, self.windows.len());
        if n_done > n_total {
            return Err(ImatrixError::BeyondRun { path, n_done, n_total }.into());
        }
        if self.fingerprint(before, n_done)? != run.fingerprint {
            return Err(ImatrixError::OtherRun { path, n_done }.into());
        }
        Ok(Collected { sums, n_done, nll: run.nll, rests: run.rests })
    }

    /// Runs the chunks that are not done, and calls `saved` after every group of them. Whatever stops it, `collected`
    /// is what was whole by then.
    ///
    /// # Errors
    /// Errors of the engine, activations that are not finite, what `saved` returns.
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

    /// The chunks from `first` on in groups that memory holds and that end where something is saved.
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

    /// What the engine runs; its hidden states are wanted where the head's input counts or tokens are scored.
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
    ) -> Result<Group, VerifyError> {
        let collector = SumCollector::new(self.options.engine.level);
        let mut hidden = self.engine.forward(chunks, progress, Some(&collector))?;
        let n_embd = self.engine.plan().head.n_cols;
        if self.options.process_output {
            collector.add(OUTPUT, n_embd, (0, 1), hidden.states());
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
        Ok(Group { sums: collector.into_exact(), nll })
    }
}

impl Group {
    /// The first tensor with a sum that is not finite.
    fn non_finite(&self) -> Option<String> {
        let broken = |exact: &ExactColumns| exact.columns.sums.iter().any(|sum| !sum.is_finite());
        self.sums.iter().find(|(_, exact)| broken(exact)).map(|(name, _)| name.clone())
    }
}

/// Of the states of all tokens those whose predictions are scored.
fn scored(hidden: &Hidden, windows: &[Window], n_embd: usize) -> Hidden {
    let (mut states, mut start) = (Vec::new(), 0);
    for window in windows {
        let rows = &window.chunk.rows;
        let own = hidden.states().get((start + rows.start) * n_embd..(start + rows.end) * n_embd);
        states.extend_from_slice(own.unwrap_or_default());
        start += window.chunk.tokens.len();
    }
    Hidden { n_rows: states.len() / n_embd.max(1), states: states.into() }
}

/// Ids of the prompts; with `parse_special`, documents are encoded like the texts of chats.
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

/// Cuts prompts and leaves out the first chunks of each file; the files share the limit from there.
fn cut_behind(prompts: &[Prompt], options: &ImportanceOptions) -> Result<Cut, VerifyError> {
    let (first, scoring, files) = (options.from_chunk, &options.scoring, &options.files);
    if first == 0 {
        return cut(prompts, files, scoring);
    }
    let Cut { windows, chunks, .. } = cut(prompts, files, &Scoring { n_chunks: None, ..*scoring })?;
    // Those of no file come last, as of one more.
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

/// A sentence for each file of which nothing is left behind the first chunks.
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

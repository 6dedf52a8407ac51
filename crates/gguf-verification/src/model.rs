//! Model that is verified or compared with: its tensors, metadata and tokenizer.

use crate::samples::SAMPLES;
use crate::{
    ChatRenderer, Check, Finding, OriginTokenizer, Prompt, PromptError, PromptSource, Recall, TextEncoder,
    VerifyError,
};
use gguf_arch::graph::GraphFeatures;
use gguf_core::{TensorMeta, TensorSource};
use gguf_engine::{Engine, EngineError, GraphPlan};
use gguf_format::{GgufFile, Metadata, Value};

/// Model to verify or to compare with.
#[derive(Clone, Copy)]
pub struct Model<'a> {
    /// Tensors of the model.
    pub source: &'a dyn TensorSource,
    /// Metadata of the model.
    pub metadata: &'a Metadata,
    /// GGUF file of the model, if it is one.
    pub file: Option<&'a GgufFile>,
    /// True if all keys count, also those that llama.cpp does not go by: the model is a checkpoint.
    pub is_checkpoint: bool,
    /// Graph of the architecture, or the reason why it is missing.
    pub features: Result<&'a GraphFeatures, &'a str>,
    /// Tokenizer of the model, or the reason why it is missing.
    pub encoder: Result<&'a dyn TextEncoder, &'a str>,
    /// Renderer of chat messages by the model's template.
    pub template: &'a dyn ChatRenderer,
    /// Original tokenizer of the checkpoint, to compare with the model's.
    pub origin: Option<&'a OriginTokenizer>,
    /// Facts of a checkpoint's configuration that the model does not declare.
    pub lost: &'a [String],
    /// Stored results of a baseline, for the next model that is compared with it.
    pub recall: Option<&'a Recall>,
}

impl Model<'_> {
    /// Resolves the graph of the model: of a file, the one that llama.cpp computes.
    ///
    /// # Errors
    /// If the architecture has no graph, or if keys and tensors do not fit it.
    pub fn plan(&self) -> Result<GraphPlan, EngineError> {
        let arch = self.arch().unwrap_or_default();
        let resolve = if self.is_checkpoint { GraphPlan::as_described } else { GraphPlan::new };
        match self.features {
            Ok(features) => resolve(features, self.metadata, self.source.tensors()),
            Err(reason) => Err(EngineError::NoGraph { arch, reason: reason.to_owned() }),
        }
    }

    pub(super) fn arch(&self) -> Option<String> {
        self.metadata.get("general.architecture").and_then(Value::as_str).map(str::to_owned)
    }

    /// Encodes the prompts. Prompts without ids become empty, with a finding that gives the reason: text without a
    /// tokenizer, chats that the template fails on.
    pub(super) fn encode(
        &self,
        sources: &[PromptSource],
    ) -> Result<(Vec<Prompt>, Vec<Finding>), VerifyError> {
        let n_text = sources.iter().filter(|source| source.needs_encoder()).count();
        let missing = self.encoder.err().filter(|_| n_text > 0);
        if n_text == sources.len()
            && let Some(reason) = missing
        {
            return Err(VerifyError::NoEncoder { reason: reason.to_owned() });
        }
        let none = || Prompt { tokens: Vec::new(), bos: None, score_from: 1, whole: false };
        let (mut prompts, mut failed) = (Vec::with_capacity(sources.len()), Vec::new());
        for (at, source) in sources.iter().enumerate() {
            if source.needs_encoder() && missing.is_some() {
                prompts.push(none());
                continue;
            }
            match source.encode(at, self.encoder.ok(), self.template) {
                Ok(prompt) => prompts.push(prompt),
                Err(VerifyError::Prompts(PromptError::Template { reason, .. })) if reason.is_finding() => {
                    failed.push((at, reason));
                    prompts.push(none());
                }
                Err(error) => return Err(error),
            }
        }
        let mut findings = Vec::new();
        if let Some(reason) = missing {
            let message =
                format!("{n_text} of {} prompts are text, which cannot be encoded: {reason}", sources.len());
            findings.push(Finding::unchecked(Check::Perplexity, message));
        }
        if let Some((at, reason)) = failed.first() {
            let n = failed.len();
            let more = if n > 1 { format!(" ({n} of {} prompts)", sources.len()) } else { String::new() };
            let message = format!("prompt {at}: messages: {reason}{more}");
            findings.push(Finding::error(Check::ChatTemplate, message));
        }
        Ok((prompts, findings))
    }

    /// Encodes the prompts.
    ///
    /// # Errors
    /// If the model has no encoder, or if a prompt cannot be encoded.
    pub fn encode_all(&self, sources: &[PromptSource]) -> Result<Vec<Prompt>, VerifyError> {
        if let Err(reason) = self.encoder
            && sources.iter().any(PromptSource::needs_encoder)
        {
            return Err(VerifyError::NoEncoder { reason: reason.to_owned() });
        }
        let encode =
            |(at, source): (usize, &PromptSource)| source.encode(at, self.encoder.ok(), self.template);
        sources.iter().enumerate().map(encode).collect()
    }

    /// Returns the texts for the checks of the tokenizer: the built-in ones, then the prompts in their original form.
    pub(super) fn texts(&self, prompts: &[PromptSource]) -> Vec<String> {
        let own = SAMPLES.iter().map(|&sample| sample.to_owned());
        let prompts = prompts.iter().flat_map(|prompt| match prompt {
            PromptSource::Tokens(_) => Vec::new(),
            PromptSource::Text(text) => vec![text.clone()],
            PromptSource::Completion { prompt, completion } => vec![prompt.clone(), completion.clone()],
            PromptSource::Messages(messages) => self.template.render(messages).into_iter().collect(),
        });
        own.chain(prompts).collect()
    }

    pub(super) fn bits_per_weight(&self) -> f64 {
        bits_per_weight(self.source.tensors().iter())
    }
}

/// Model with the engine that runs it.
#[derive(Clone, Copy)]
pub(super) struct LoadedModel<'a> {
    pub(super) model: &'a Model<'a>,
    pub(super) engine: &'a Engine<'a>,
}

fn bits_per_weight<'a>(tensors: impl Iterator<Item = &'a TensorMeta>) -> f64 {
    let (mut n_bytes, mut n_elems) = (0.0, 0.0);
    for meta in tensors {
        n_bytes += meta.n_bytes().unwrap_or(0) as f64;
        n_elems += meta.shape.n_elems() as f64;
    }
    8.0 * n_bytes / f64::max(n_elems, 1.0)
}

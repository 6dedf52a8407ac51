//! Basis of a verdict: answered questions, and the means to answer the others.

use serde::{Deserialize, Serialize};

use gguf_core::text::escape;

/// Question that a verdict answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Aspect {
    /// Validity of header, blocks, vocabulary and graph.
    Structure,
    /// Correct conversion of text to tokens.
    Tokenizer,
    /// Equality of the keys with the source's.
    Metadata,
    /// Equality of the weights with the source's, within the precision of their types.
    Weights,
    /// Prediction of text, measured on enough of it.
    Perplexity,
    /// Agreement of the predictions with the source's.
    Divergence,
    /// Agreement of text vectors with the source's; for encoders, in place of the two before.
    Embeddings,
    /// Agreement of predictions at masked tokens with the source's; for masked language models, and for diffusion
    /// models in place of the perplexity.
    Masked,
}

impl Aspect {
    /// All aspects, in the order in which they are judged.
    pub const ALL: [Self; 8] = [
        Self::Structure,
        Self::Tokenizer,
        Self::Metadata,
        Self::Weights,
        Self::Perplexity,
        Self::Divergence,
        Self::Embeddings,
        Self::Masked,
    ];

    /// Returns the name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Structure => "structure",
            Self::Tokenizer => "tokenizer",
            Self::Metadata => "metadata",
            Self::Weights => "weights",
            Self::Perplexity => "perplexity",
            Self::Divergence => "divergence",
            Self::Embeddings => "embeddings",
            Self::Masked => "masked",
        }
    }
}

/// Answered question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JudgedAspect {
    /// Aspect that was judged.
    pub aspect: Aspect,
    /// Basis of the answer: `10112 tokens`.
    pub by: String,
}

/// Open question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnjudgedAspect {
    /// Aspect that was not judged.
    pub aspect: Aspect,
    /// Reason why it was not judged.
    pub reason: String,
    /// Means to answer it.
    pub remedy: String,
}

/// Answered and open questions. At first all are open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coverage {
    states: [Result<String, (String, String)>; Aspect::ALL.len()],
    is_encoder: bool,
    is_masked: bool,
    /// True unless the weights alone decide.
    needs_figures: bool,
}

impl Default for Coverage {
    fn default() -> Self {
        let states = Aspect::ALL.map(|aspect| Err(open(aspect)));
        Self { states, is_encoder: false, is_masked: false, needs_figures: true }
    }
}

/// Returns the default reason why a question is open, and what answers it.
fn open(aspect: Aspect) -> (String, String) {
    let (reason, remedy) = match aspect {
        Aspect::Structure => ("the file could not be read", "a file that can be read"),
        Aspect::Tokenizer => ("no text was encoded", "a vocabulary that this program knows"),
        Aspect::Metadata | Aspect::Weights | Aspect::Divergence | Aspect::Embeddings | Aspect::Masked => {
            ("there is no baseline", "`--baseline`: checkpoint or file of higher precision")
        }
        Aspect::Perplexity => ("no text was run", "`--prompts` with 1000 tokens or more to score"),
    };
    (reason.to_owned(), remedy.to_owned())
}

impl Coverage {
    /// Records that there is a baseline: no open question may ask for one.
    pub(super) fn has_baseline(&mut self) {
        for aspect in Aspect::ALL {
            let reason = match aspect {
                Aspect::Metadata => "the keys were not compared with the baseline's",
                Aspect::Weights => "the weights were not compared with the baseline's",
                Aspect::Divergence | Aspect::Embeddings | Aspect::Masked => {
                    "no text was run through both models"
                }
                _ => continue,
            };
            let remedy = match aspect {
                Aspect::Metadata | Aspect::Weights => "a run without `--structure-only`",
                _ => "`--prompts`; a file with errors is not run",
            };
            if self.states[aspect as usize] == Err(open(aspect)) {
                self.not_judged(aspect, reason, remedy);
            }
        }
    }

    /// Switches to the questions for encoders, which predict no text.
    pub(super) fn ask_encoder(&mut self) {
        self.is_encoder = true;
    }

    /// Sets whether a pass needs figures: not if every weight is known to be reproduced from the baseline's.
    pub(super) fn need_figures(&mut self, needs_figures: bool) {
        self.needs_figures = needs_figures;
    }

    /// Switches to the questions for models that predict masked tokens.
    pub(super) fn ask_masked(&mut self) {
        self.is_masked = true;
    }

    /// Returns true if the question applies to the model.
    fn asks(&self, aspect: Aspect) -> bool {
        match aspect {
            Aspect::Structure | Aspect::Tokenizer | Aspect::Metadata | Aspect::Weights => true,
            // Tokens that see themselves are not predicted.
            Aspect::Perplexity => !self.is_encoder && !self.is_masked,
            Aspect::Divergence => !self.is_encoder,
            Aspect::Embeddings => self.is_encoder,
            Aspect::Masked => self.is_masked,
        }
    }

    /// Escapes terminal control sequences in all texts: what comes from files is untrusted.
    pub(super) fn escaped(self) -> Self {
        let clean = |text: String| escape(&text).into_owned();
        let states = self.states.map(|state| match state {
            Ok(by) => Ok(clean(by)),
            Err((reason, remedy)) => Err((clean(reason), clean(remedy))),
        });
        Self { states, ..self }
    }

    /// Records that a question is answered.
    pub fn judged(&mut self, aspect: Aspect, by: impl Into<String>) {
        self.states[aspect as usize] = Ok(by.into());
    }

    /// Records that a question stays open, with the reason and the remedy.
    pub fn not_judged(&mut self, aspect: Aspect, reason: impl Into<String>, remedy: impl Into<String>) {
        self.states[aspect as usize] = Err((reason.into(), remedy.into()));
    }

    /// Returns true if the question is answered.
    pub fn has(&self, aspect: Aspect) -> bool {
        self.states[aspect as usize].is_ok()
    }

    /// Returns the answered questions.
    pub fn answered(&self) -> impl Iterator<Item = JudgedAspect> {
        Aspect::ALL.into_iter().filter(|&aspect| self.asks(aspect)).filter_map(|aspect| {
            let by = self.states[aspect as usize].as_ref().ok()?.clone();
            Some(JudgedAspect { aspect, by })
        })
    }

    /// Returns the open questions.
    pub fn open(&self) -> impl Iterator<Item = UnjudgedAspect> {
        let is_figure = |aspect| {
            matches!(aspect, Aspect::Perplexity | Aspect::Divergence | Aspect::Embeddings | Aspect::Masked)
        };
        let is_asked =
            move |&aspect: &Aspect| self.asks(aspect) && (self.needs_figures || !is_figure(aspect));
        Aspect::ALL.into_iter().filter(is_asked).filter_map(|aspect| {
            let (reason, remedy) = self.states[aspect as usize].as_ref().err()?.clone();
            Some(UnjudgedAspect { aspect, reason, remedy })
        })
    }

    /// Returns true if a file without errors has earned a `pass`. Its structure, tokenizer and figures must be judged.
    /// In addition, its weights or predictions must be compared with a baseline, or the user must have set a limit
    /// (`has_own_limit`).
    pub(crate) fn earns_pass(&self, has_own_limit: bool) -> bool {
        // The purpose of an encoder is its vectors, whatever head it has.
        let figures = match (self.is_encoder, self.is_masked) {
            (true, _) => Aspect::Embeddings,
            (false, true) => Aspect::Masked,
            (false, false) => Aspect::Perplexity,
        };
        let checked = [Aspect::Structure, Aspect::Tokenizer].into_iter().all(|aspect| self.has(aspect));
        if !self.needs_figures {
            return checked && self.has(Aspect::Weights);
        }
        // The vectors of an encoder are judged against a source.
        let source = self.is_encoder || self.has(Aspect::Weights) || self.has(Aspect::Divergence);
        checked && self.has(figures) && (source || has_own_limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(aspects: &[Aspect]) -> Coverage {
        let mut coverage = Coverage::default();
        for &aspect in aspects {
            coverage.judged(aspect, "x");
        }
        coverage
    }

    #[test]
    fn a_pass_needs_figures_and_something_to_compare_with() {
        let alone = [Aspect::Structure, Aspect::Tokenizer, Aspect::Perplexity];
        assert!(!with(&alone).earns_pass(false));
        assert!(with(&alone).earns_pass(true));
        for source in [Aspect::Weights, Aspect::Divergence] {
            assert!(with(&[&alone[..], &[source]].concat()).earns_pass(false));
        }
        assert!(!with(&[&alone[..], &[Aspect::Metadata]].concat()).earns_pass(false));
        for missing in alone {
            let rest: Vec<Aspect> = Aspect::ALL.into_iter().filter(|&aspect| aspect != missing).collect();
            assert!(!with(&rest).earns_pass(true), "{missing:?}");
        }
    }

    #[test]
    fn weights_that_are_reproduced_need_no_figures() {
        let mut coverage = with(&[Aspect::Structure, Aspect::Tokenizer, Aspect::Metadata, Aspect::Weights]);
        assert!(!coverage.earns_pass(false) && coverage.open().count() == 2);
        coverage.need_figures(false);
        assert!(coverage.earns_pass(false) && coverage.open().count() == 0);
        let mut unread = with(&[Aspect::Structure, Aspect::Weights]);
        unread.need_figures(false);
        assert!(!unread.earns_pass(false), "the tokenizer was not checked");
    }

    #[test]
    fn an_encoder_is_asked_for_vectors_in_place_of_predictions() {
        let mut coverage = with(&[Aspect::Structure, Aspect::Tokenizer, Aspect::Weights]);
        coverage.ask_encoder();
        assert!(!coverage.earns_pass(true));
        coverage.judged(Aspect::Embeddings, "20 texts");
        assert!(coverage.earns_pass(false));
        let open: Vec<Aspect> = coverage.open().map(|open| open.aspect).collect();
        assert_eq!(open, [Aspect::Metadata]);
    }

    #[test]
    fn a_model_that_denoises_is_asked_for_masked_tokens_in_place_of_its_perplexity() {
        let mut coverage =
            with(&[Aspect::Structure, Aspect::Tokenizer, Aspect::Perplexity, Aspect::Divergence]);
        coverage.ask_masked();
        assert!(!coverage.earns_pass(true) && coverage.open().any(|open| open.aspect == Aspect::Masked));
        coverage.judged(Aspect::Masked, "300 masked tokens");
        assert!(coverage.earns_pass(false) && coverage.answered().all(|j| j.aspect != Aspect::Perplexity));
    }

    #[test]
    fn open_questions_say_what_would_answer_them() {
        let mut coverage = Coverage::default();
        assert_eq!(coverage.open().count(), Aspect::ALL.len() - 2);
        coverage.judged(Aspect::Structure, "3 tensors");
        coverage.not_judged(Aspect::Weights, "a logit file has none", "the checkpoint");
        coverage.has_baseline();
        assert!(coverage.open().all(|open| open.reason != "there is no baseline"));
        assert_eq!(
            coverage.answered().collect::<Vec<_>>(),
            [JudgedAspect { aspect: Aspect::Structure, by: "3 tensors".to_owned() }]
        );
        assert!(coverage.open().all(|open| !open.remedy.is_empty()));
        assert!(coverage.open().any(|open| open.reason == "a logit file has none"));
    }
}

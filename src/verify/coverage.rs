//! What a verdict rests on: which questions were answered, and what would answer the others.

use serde::{Deserialize, Serialize};

use crate::core::text::escape;

/// A question that a verdict answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Aspect {
    /// Header, blocks, vocabulary, graph.
    Structure,
    /// Text becomes the tokens that it should.
    Tokenizer,
    /// The keys are those that the source has.
    Metadata,
    /// The weights are those of the source, as well as their types can hold them.
    Weights,
    /// The model predicts text, over enough of it.
    Perplexity,
    /// The model predicts what the source predicts.
    Divergence,
    /// The model makes of texts what the source makes of them; asked of encoders, in place of the two before.
    Embeddings,
    /// The model predicts masked tokens as the source does; asked of masked-language models, of diffusion models in place of
    /// the perplexity.
    Masked,
}

impl Aspect {
    /// All, in the order in which they are judged.
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

    /// Name in reports.
    #[must_use]
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

/// A question that was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// The question.
    pub aspect: Aspect,
    /// By what: `10112 tokens`.
    pub by: String,
}

/// A question that was not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotJudged {
    /// The question.
    pub aspect: Aspect,
    /// Why not.
    pub reason: String,
    /// What would answer it.
    pub remedy: String,
}

/// The answered and the open questions. At first all are open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coverage {
    states: [Result<String, (String, String)>; Aspect::ALL.len()],
    is_encoder: bool,
    is_masked: bool,
    /// The weights alone do not decide.
    needs_figures: bool,
}

impl Default for Coverage {
    fn default() -> Self {
        let states = Aspect::ALL.map(|aspect| Err(open(aspect)));
        Self { states, is_encoder: false, is_masked: false, needs_figures: true }
    }
}

/// Why a question is open where nothing else is said, and what answers it.
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
    /// From now on no open question says that there is no baseline.
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
                _ => "`--prompts`, and a file without errors",
            };
            if self.states[aspect as usize] == Err(open(aspect)) {
                self.not_judged(aspect, reason, remedy);
            }
        }
    }

    /// From now on what is asked of encoders: they predict no text.
    pub(super) fn ask_encoder(&mut self) {
        self.is_encoder = true;
    }

    /// From now on a pass needs figures, or does not: every weight is known to be what its type makes of the baseline's.
    pub(super) fn need_figures(&mut self, needs_figures: bool) {
        self.needs_figures = needs_figures;
    }

    /// From now on what is asked of models that predict masked tokens.
    pub(super) fn ask_masked(&mut self) {
        self.is_masked = true;
    }

    /// Whether the question is asked.
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

    /// The same with nothing in its sentences that a terminal would obey: what comes from files is not trusted.
    pub(super) fn escaped(self) -> Self {
        let clean = |text: String| escape(&text).into_owned();
        let states = self.states.map(|state| match state {
            Ok(by) => Ok(clean(by)),
            Err((reason, remedy)) => Err((clean(reason), clean(remedy))),
        });
        Self { states, ..self }
    }

    /// A question is answered.
    pub fn judged(&mut self, aspect: Aspect, by: impl Into<String>) {
        self.states[aspect as usize] = Ok(by.into());
    }

    /// A question stays open for a reason of its own.
    pub fn not_judged(&mut self, aspect: Aspect, reason: impl Into<String>, remedy: impl Into<String>) {
        self.states[aspect as usize] = Err((reason.into(), remedy.into()));
    }

    /// True if the question is answered.
    #[must_use]
    pub fn has(&self, aspect: Aspect) -> bool {
        self.states[aspect as usize].is_ok()
    }

    /// The answered questions.
    pub fn answered(&self) -> impl Iterator<Item = Judged> {
        Aspect::ALL.into_iter().filter(|&aspect| self.asks(aspect)).filter_map(|aspect| {
            let by = self.states[aspect as usize].as_ref().ok()?.clone();
            Some(Judged { aspect, by })
        })
    }

    /// The open questions.
    pub fn open(&self) -> impl Iterator<Item = NotJudged> {
        let is_figure = |aspect| {
            matches!(aspect, Aspect::Perplexity | Aspect::Divergence | Aspect::Embeddings | Aspect::Masked)
        };
        let is_asked =
            move |&aspect: &Aspect| self.asks(aspect) && (self.needs_figures || !is_figure(aspect));
        Aspect::ALL.into_iter().filter(is_asked).filter_map(|aspect| {
            let (reason, remedy) = self.states[aspect as usize].as_ref().err()?.clone();
            Some(NotJudged { aspect, reason, remedy })
        })
    }

    /// True if a file without errors has earned a `pass`: its structure, its tokenizer and its figures were judged, and
    /// its weights or what it says against a baseline, or `has_own_limit`: the reader said what the figures must be.
    #[must_use]
    pub fn earns_pass(&self, has_own_limit: bool) -> bool {
        // What an encoder is for are its vectors, whatever head it has.
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
            [Judged { aspect: Aspect::Structure, by: "3 tensors".to_owned() }]
        );
        assert!(coverage.open().all(|open| !open.remedy.is_empty()));
        assert!(coverage.open().any(|open| open.reason == "a logit file has none"));
    }
}

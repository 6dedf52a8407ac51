//! Summary of a report in a sentence or two: whether the file is intact, and how good it is.

use crate::{Aspect, Check, Divergence, Finding, Quality, Report, Severity, Verdict, WeightReport};
use gguf_core::text::plural;

impl Report {
    /// Returns the quality of the file if it was measured: by its predictions compared with the baseline's, or by the
    /// masked ones. A file that holds every value of its baseline needs no text.
    pub fn quality(&self) -> Option<Quality> {
        let measured = self.predictions().map(Quality::of_divergence);
        measured.or_else(|| {
            self.weights.as_ref().filter(|weights| is_same(weights)).map(|_| Quality::NearLossless)
        })
    }

    /// Returns the divergence of the predictions from the baseline's: of the next token, otherwise of masked ones.
    pub(super) fn predictions(&self) -> Option<&Divergence> {
        let masked = || self.masked.as_ref()?.as_ref().ok()?.divergence.as_ref();
        self.divergence.as_ref().or_else(masked)
    }

    /// Returns the answer to both questions: `Intact: every weight is what Q4_K_M makes of the baseline. Quality: very
    /// good (…).`
    pub fn answer(&self) -> String {
        format!("{} {}", self.intact(), self.how_good())
    }

    /// Returns the sentence that states whether the file is intact.
    fn intact(&self) -> String {
        let errors = || self.findings.iter().filter(|finding| finding.severity == Severity::Error);
        match self.verdict {
            Verdict::Pass => format!("Intact: {}.", self.held_against()),
            Verdict::Fail if errors().all(|finding| self.is_own_limit(finding)) => {
                format!("Intact ({}), but worse than was asked for.", self.held_against())
            }
            Verdict::Fail => {
                let mut subjects: Vec<&str> = errors().map(|finding| finding.check.part().words()).collect();
                let mut seen = Vec::new();
                subjects.retain(|subject| {
                    !seen.contains(subject) && {
                        seen.push(subject);
                        true
                    }
                });
                let n = plural(errors().count() as u64, "error");
                format!("Not intact: {n} in {}.", listed(&subjects))
            }
            Verdict::Partial => {
                let open: Vec<&str> = self.coverage.open().map(|open| question(open.aspect)).collect();
                let not_checked = if open.is_empty() {
                    "some of it could not be checked".to_owned()
                } else {
                    format!("not checked: {}", listed(&open))
                };
                format!("Intact as far as it was checked: {}; {not_checked}.", self.held_against())
            }
        }
    }

    /// Describes what the weights, or otherwise the predictions, were compared with, and the result.
    fn held_against(&self) -> String {
        let file_type =
            self.label.as_ref().and_then(|label| label.file_type.as_deref()).unwrap_or("its type");
        match &self.weights {
            Some(weights) if is_same(weights) => "every weight is the baseline's".to_owned(),
            Some(weights) if weights.is_reproduced() => {
                format!("every weight is what {file_type} makes of the baseline")
            }
            Some(weights)
                if !weights.tensors.is_empty()
                    && weights.findings.is_empty()
                    && self.coverage.has(Aspect::Weights) =>
            {
                format!("the weights are the baseline's, as close as {file_type} can be")
            }
            _ if self.divergence.is_some() => "it predicts what the baseline predicts".to_owned(),
            _ if self.coverage.has(Aspect::Tokenizer) => {
                "structure, keys and tokenizer are in order".to_owned()
            }
            _ => "its structure is in order".to_owned(),
        }
    }

    /// Returns the sentence about the cost of quantization.
    fn how_good(&self) -> String {
        if let Some(d) = self.predictions() {
            let what = if self.divergence.is_some() { "next token" } else { "masked token" };
            return format!("Quality: {}.", in_words(d, what));
        }
        if let Some(against) = self.embeddings.as_ref().and_then(|embeddings| embeddings.against.as_ref()) {
            return match against.score_error {
                Some(error) => format!("Quality: scores are off by {:.2} % of their spread.", 100.0 * error),
                None => format!("Quality: mean cosine of the vectors {:.6}.", against.mean_cosine),
            };
        }
        match (self.quality(), &self.perplexity) {
            (Some(quality), _) => format!("Quality: {quality} (no value was rounded)."),
            (None, Some(p)) => format!("Quality: not judged without a baseline (perplexity {:.2}).", p.value),
            (None, None) => "Quality: not measured.".to_owned(),
        }
    }

    /// Returns true for an error that only reports a missed limit of the user.
    fn is_own_limit(&self, finding: &Finding) -> bool {
        let is_limit = |line: &crate::LimitLine| line.is_own && Check::Limit(line.figure) == finding.check;
        finding.check == Check::MinQuality || self.limits.iter().any(is_limit)
    }
}

/// Returns true if every value equals the baseline's: nothing was rounded.
fn is_same(weights: &WeightReport) -> bool {
    weights.is_reproduced() && weights.tensors.iter().all(|tensor| tensor.error == 0.0)
}

/// Formats the quality: `very good (mean KLD 0.0120; it picks the same next token 94.8 % of the time)`.
fn in_words(divergence: &Divergence, what: &str) -> String {
    let (quality, same) = (Quality::of_divergence(divergence), 100.0 * divergence.top1_agreement);
    let kld = crate::Figure::Kld.show(divergence.kld.mean);
    format!("{quality} (mean KLD {kld}; it picks the same {what} {same:.1} % of the time)")
}

/// Joins words: `the weights, the tokenizer and the keys`.
fn listed(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// Names the subject of an aspect, in a reader's words.
fn question(aspect: Aspect) -> &'static str {
    match aspect {
        Aspect::Structure => "the structure",
        Aspect::Tokenizer => "the tokenizer",
        Aspect::Metadata => "the keys against the source",
        Aspect::Weights => "the weights",
        Aspect::Perplexity => "the perplexity",
        Aspect::Divergence => "the predictions against the source",
        Aspect::Embeddings => "the vectors of texts",
        Aspect::Masked => "masked tokens",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Figure, Thresholds};

    fn report() -> Report {
        Report::new(None, None, Thresholds::default())
    }

    #[test]
    fn errors_are_told_by_what_they_are_about() {
        let mut broken = report();
        broken
            .extend([Check::Weights, Check::Weights, Check::Hparams].map(|check| Finding::error(check, "x")));
        assert_eq!(
            broken.answer(),
            "Not intact: 3 errors in the weights and the keys. Quality: not measured."
        );
        let mut asked = report();
        asked.add(Finding::error(Check::MinQuality, "x"));
        assert!(asked.answer().contains("but worse than was asked for"), "{}", asked.answer());
        let mut limit = report();
        limit.add(Finding::error(Check::Limit(Figure::Kld), "x"));
        assert!(limit.answer().starts_with("Not intact: 1 error in the predictions."), "{}", limit.answer());
    }

    #[test]
    fn what_was_not_checked_is_said() {
        let mut partial = report();
        for aspect in [Aspect::Structure, Aspect::Tokenizer, Aspect::Perplexity] {
            partial.judged(aspect, "x");
        }
        let answer = partial.answer();
        assert!(
            answer.starts_with(
                "Intact as far as it was checked: structure, keys and tokenizer are in order; not checked: "
            ),
            "{answer}"
        );
        assert!(answer.contains("the weights and the predictions against the source."), "{answer}");
    }
}

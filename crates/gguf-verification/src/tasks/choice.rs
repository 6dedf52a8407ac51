//! Tasks as token sequences, with the predicted tokens of each answer.

use std::ops::Range;

use crate::TextEncoder;
use crate::tasks::{LeftOut, TaskError};

/// Question and its answers, of which one is the best continuation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChoiceQuestion {
    pub(super) number: usize,
    pub(super) question: String,
    pub(super) answers: Vec<String>,
    pub(super) is_right: Vec<bool>,
}

/// Sentence with a gap, and two words for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GapSentence {
    pub(super) number: usize,
    pub(super) before: String,
    pub(super) after: String,
    pub(super) words: [String; 2],
    pub(super) right: usize,
}

/// Tokens to run, and the predicted ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sequence {
    pub(super) tokens: Vec<u32>,
    /// Rows whose predictions are wanted.
    pub(super) rows: Range<usize>,
    /// Token that each row should predict.
    pub(super) targets: Vec<u32>,
}

/// Term of a score: index of the sequence in the task, and of the row among its wanted rows.
pub(super) type ScoreTerm = (usize, usize);

/// Task that is ready to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PreparedTask {
    pub(super) number: usize,
    pub(super) question: String,
    pub(super) sequences: Vec<Sequence>,
    /// Log-probabilities of each answer, whose mean is its score.
    pub(super) terms: Vec<Vec<ScoreTerm>>,
    pub(super) is_right: Vec<bool>,
    /// Index of the answer that is chosen if no other is better.
    pub(super) on_tie: usize,
}

/// Encodes a text, with the tokens that the file puts around texts.
fn encode(encoder: &dyn TextEncoder, text: &str, task: usize) -> Result<Vec<u32>, TaskError> {
    let mut tokens: Vec<u32> = encoder.start_of_text().into_iter().collect();
    let ids = encoder.encode(text, false).map_err(|reason| TaskError::Encode { task, reason })?;
    tokens.extend(ids);
    tokens.extend(encoder.end_of_text());
    Ok(tokens)
}

/// Returns the number of tokens that all sequences share at the start: at least one (the first token is not predicted),
/// and not all of the shortest sequence. `None` if an answer has no token that follows another.
fn common_prefix(sequences: &[Vec<u32>]) -> Option<usize> {
    let shortest = sequences.iter().map(Vec::len).min().unwrap_or(0);
    let first = sequences.first().filter(|_| shortest >= 2)?;
    let is_common = |&at: &usize| sequences.iter().all(|tokens| tokens.get(at) == first.get(at));
    Some((0..shortest).take_while(is_common).count().clamp(1, shortest - 1))
}

const NO_TOKEN: &str = "an answer has no token that follows another";

impl ChoiceQuestion {
    /// Prepares the task; the tokens after those that all answers share are scored.
    pub(super) fn prepare(
        &self,
        encoder: &dyn TextEncoder,
    ) -> Result<Result<PreparedTask, LeftOut>, TaskError> {
        let unscorable = |why: String| Ok(Err(LeftOut::new(self.number, &self.question, why)));
        if let Some(flaw) = self.flaw() {
            return unscorable(flaw);
        }
        let encode = |answer: &String| encode(encoder, &format!("{} {answer}", self.question), self.number);
        let encoded = self.answers.iter().map(encode).collect::<Result<Vec<_>, _>>()?;
        let Some(shared) = common_prefix(&encoded) else { return unscorable(NO_TOKEN.to_owned()) };
        let terms = encoded
            .iter()
            .enumerate()
            .map(|(at, tokens)| (0..tokens.len() - shared).map(|row| (at, row)).collect());
        let terms = terms.collect();
        let sequence = |tokens: Vec<u32>| Sequence {
            rows: shared - 1..tokens.len() - 1,
            targets: tokens[shared..].to_vec(),
            tokens,
        };
        let sequences = encoded.into_iter().map(sequence).collect();
        let (number, is_right) = (self.number, self.is_right.clone());
        Ok(Ok(PreparedTask {
            number,
            question: self.question.clone(),
            sequences,
            terms,
            is_right,
            on_tie: 0,
        }))
    }
}

/// Number of tokens after the shared prefix above which the words themselves are not scored.
const MIN_TRAILING: usize = 3;

impl GapSentence {
    /// Prepares the task. The tokens after the gap are scored, except the last (the full stop). The tokens of the words
    /// are scored too if hardly any follow them.
    ///
    /// # Exactness
    /// ref: if the words are scored, the second word's first token is predicted from the end of the first sentence
    /// instead of the shared prefix. Kept: scores are compared with the reference's.
    pub(super) fn prepare(
        &self,
        encoder: &dyn TextEncoder,
    ) -> Result<Result<PreparedTask, LeftOut>, TaskError> {
        let task = self.number;
        let unscorable = |why: String| Ok(Err(LeftOut::new(task, &self.question(), why)));
        if let Some(flaw) = self.flaw() {
            return unscorable(flaw);
        }
        let whole = |word: &String| encode(encoder, &format!("{}{word}{}", self.before, self.after), task);
        let encoded = self.words.iter().map(whole).collect::<Result<Vec<_>, _>>()?;
        let Some(shared) = common_prefix(&encoded) else { return unscorable(NO_TOKEN.to_owned()) };
        let leaves_out_words = encoded.iter().all(|tokens| tokens.len() - shared > MIN_TRAILING);
        let mut starts = Vec::new();
        for (word, tokens) in self.words.iter().zip(&encoded) {
            let to_word = encode(encoder, &format!("{}{word}", self.before), task)?.len();
            // Tokens that join the word with what follows can make the whole shorter than its part.
            starts.push(if leaves_out_words { to_word.clamp(1, tokens.len() - 1) } else { shared });
        }
        let mut sequences: Vec<Sequence> = Vec::new();
        let mut terms = Vec::new();
        for (at, (tokens, &start)) in encoded.iter().zip(&starts).enumerate() {
            let n = tokens.len();
            let end = if n - start > 1 { n - 1 } else { n };
            let mut own: Vec<ScoreTerm> = (0..end - start).map(|row| (at, row)).collect();
            if at == 1
                && start == shared
                && let Some(first) = sequences.first_mut()
                && let Some(term) = own.first_mut()
            {
                // One more row of the first sentence, its last, which no other term uses.
                let n_first = first.tokens.len();
                first.targets = first.tokens[first.rows.start + 1..].to_vec();
                first.targets.push(tokens[start]);
                first.rows.end = n_first;
                *term = (0, n_first - 1 - first.rows.start);
            }
            terms.push(own);
            sequences.push(Sequence {
                rows: start - 1..end - 1,
                targets: tokens[start..end].to_vec(),
                tokens: tokens.clone(),
            });
        }
        let is_right = (0..2).map(|at| at == self.right).collect();
        let question = self.question();
        Ok(Ok(PreparedTask { number: task, question, sequences, terms, is_right, on_tie: 1 }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encoder with one token per character after a start token.
    struct CharacterEncoder;

    impl TextEncoder for CharacterEncoder {
        fn encode(&self, text: &str, _: bool) -> Result<Vec<u32>, String> {
            Ok(text.chars().map(u32::from).collect())
        }

        fn decode(&self, _: &[u32]) -> Vec<u8> {
            Vec::new()
        }

        fn start_of_text(&self) -> Option<u32> {
            Some(1)
        }
    }

    fn pair(before: &str, words: [&str; 2], after: &str) -> GapSentence {
        let words = words.map(str::to_owned);
        GapSentence { number: 7, before: before.to_owned(), after: after.to_owned(), words, right: 1 }
    }

    #[test]
    fn endings_are_scored_behind_what_they_share() {
        let answers = ["abc", "abd", "x"].map(str::to_owned).to_vec();
        let choice = ChoiceQuestion {
            number: 0,
            question: "Q".to_owned(),
            answers,
            is_right: vec![true, false, false],
        };
        let prepared = choice.prepare(&CharacterEncoder).unwrap().unwrap();
        // Start, `Q`, blank.
        assert_eq!(prepared.sequences[0].rows, 2..5);
        assert_eq!(prepared.sequences[1].targets, ['a', 'b', 'd'].map(u32::from));
        assert_eq!(prepared.terms[2], [(2, 0)]);
    }

    #[test]
    fn an_answer_that_begins_another_still_has_a_token() {
        let answers = ["ab", "abc"].map(str::to_owned).to_vec();
        let choice =
            ChoiceQuestion { number: 0, question: "Q".to_owned(), answers, is_right: vec![true, false] };
        let prepared = choice.prepare(&CharacterEncoder).unwrap().unwrap();
        assert_eq!(prepared.sequences[0].targets, [u32::from('b')]);
    }

    #[test]
    fn words_are_left_out_where_enough_follows() {
        let prepared = pair("A ", ["cat", "mouse"], " ran.").prepare(&CharacterEncoder).unwrap().unwrap();
        // Start, `A`, blank, the word; the full stop is left out.
        assert_eq!(prepared.sequences[0].targets, [' ', 'r', 'a', 'n'].map(u32::from));
        assert_eq!(prepared.sequences[1].rows, 7..11);
        assert_eq!(prepared.terms[1].len(), 4);
    }

    #[test]
    fn words_count_where_little_follows() {
        let prepared = pair("A ", ["b", "c"], ".").prepare(&CharacterEncoder).unwrap().unwrap();
        // The second word is predicted from the end of the first sentence, as in the reference.
        assert_eq!(prepared.terms, [vec![(0, 0)], vec![(0, 2)]]);
        assert_eq!(prepared.sequences[0].rows, 2..5);
        assert_eq!(prepared.sequences[0].targets, ['b', '.', 'c'].map(u32::from));
    }
}

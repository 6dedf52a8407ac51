//! Merges of a byte-level BPE vocabulary, rebuilt from its tokens and their ranks.
//!
//! Every token except the single letters was made by one merge, after all merges of lower rank had been applied to it.
//! Applying them again gives its two halves.

use std::collections::HashMap;

/// Maximum length of tokens that are split, in letters: the work grows with the square. The longest in released
/// vocabularies have 128.
const MAX_LETTERS: usize = 256;

/// A token, in letters.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ranked {
    pub(super) text: String,
    /// Rank of its merge, lowest first; `None` for tokens that no merge makes.
    pub(super) rank: Option<f64>,
}

/// Rebuilt merges.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Merges {
    /// Pairs with a space between, by rank.
    pub(super) merges: Vec<String>,
    /// Number of tokens that have a rank but no two halves.
    pub(super) n_unexplained: usize,
}

/// Rebuilds the merges. Sorts the tokens by rank; tokens of the same rank keep their order.
pub(super) fn merges(tokens: &mut [Ranked]) -> Merges {
    let rank_of = |token: &Ranked| token.rank.unwrap_or(f64::NEG_INFINITY);
    tokens.sort_by(|a, b| rank_of(a).total_cmp(&rank_of(b)));
    let mut found = Merges::default();
    // Tokens so far, by text: a merge joins two of them.
    let mut known: HashMap<&str, usize> = HashMap::new();
    let mut pairs: HashMap<(&str, &str), usize> = HashMap::new();
    for (order, token) in tokens.iter().enumerate() {
        let text = token.text.as_str();
        let n_letters = text.chars().count();
        if token.rank.is_some() && n_letters > 1 {
            let halves = if n_letters > MAX_LETTERS {
                None
            } else {
                halves(text, &pairs).or_else(|| any_halves(text, &known))
            };
            match halves {
                Some((left, right)) => {
                    pairs.insert((left, right), order);
                    found.merges.push(format!("{left} {right}"));
                }
                None => found.n_unexplained += 1,
            }
        }
        known.entry(text).or_insert(order);
    }
    found
}

/// Applies the merges so far to a text, and returns the result if it has two parts.
fn halves<'t>(text: &'t str, pairs: &HashMap<(&str, &str), usize>) -> Option<(&'t str, &'t str)> {
    let mut parts: Vec<&'t str> = text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()]).collect();
    loop {
        let rank = |at: usize| pairs.get(&(parts[at], parts[at + 1]));
        let best = (0..parts.len().saturating_sub(1)).filter_map(|at| Some((rank(at)?, at))).min();
        let Some((_, at)) = best else { break };
        // Adjacent parts are adjacent in the text.
        let begin: usize = parts[..at].iter().map(|part| part.len()).sum();
        parts[at] = &text[begin..begin + parts[at].len() + parts[at + 1].len()];
        parts.remove(at + 1);
    }
    match parts.as_slice() {
        [left, right] => Some((left, right)),
        _ => None,
    }
}

/// Returns the two earlier tokens that make a text, preferring those known first; single letters count as known.
fn any_halves<'t>(text: &'t str, known: &HashMap<&str, usize>) -> Option<(&'t str, &'t str)> {
    let order = |part: &str| match known.get(part) {
        Some(order) => Some(*order),
        None => (part.chars().count() == 1).then_some(0),
    };
    let splits = text.char_indices().skip(1).map(|(at, _)| text.split_at(at));
    splits
        .filter_map(|(left, right)| Some((order(left)?.max(order(right)?), (left, right))))
        .min_by_key(|split| split.0)
        .map(|split| split.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranked(tokens: &[(&str, i32)]) -> Vec<Ranked> {
        let row = |&(text, rank): &(&str, i32)| Ranked {
            text: text.to_owned(),
            rank: (rank >= 0).then_some(f64::from(rank)),
        };
        tokens.iter().map(row).collect()
    }

    #[test]
    fn each_token_is_the_pair_that_was_left_when_it_was_made() {
        // `abc` has two splits into known tokens; `ab` came first, so only `ab c` was ever left.
        let mut tokens = ranked(&[("abc", 2), ("bc", 1), ("ab", 0), ("a", -1), ("b", -1), ("c", -1)]);
        assert_eq!(merges(&mut tokens).merges, ["a b", "b c", "ab c"]);
    }

    #[test]
    fn a_token_that_no_pair_makes_is_counted() {
        let mut tokens = ranked(&[("xyz", 0), ("ab", 1)]);
        assert_eq!(merges(&mut tokens), Merges { merges: vec!["a b".to_owned()], n_unexplained: 1 });
    }
}

//! Trie over bytes, which finds the tokens that are prefixes of a text.

use super::EncodeError;
use super::vocab::Vocab;
use crate::emit::TokenType;

/// Maximum length of a searchable token in bytes. A token as long as the text would make the search quadratic.
/// SentencePiece's trainer makes none above 512 characters, and its default is 16.
pub(super) const MAX_TOKEN_BYTES: usize = 2048;

/// Tokens by their bytes. Nodes are stored level by level; children of one node are adjacent, in the order of their
/// bytes.
pub(super) struct Trie {
    nodes: Vec<TrieNode>,
}

struct TrieNode {
    first_child: usize,
    n_children: u16,
    byte: u8,
    token: Option<u32>,
}

impl Trie {
    /// Builds the trie. Of tokens with equal bytes, the last one applies; empty ones are omitted.
    pub(super) fn new<'t>(tokens: impl Iterator<Item = (&'t [u8], u32)>) -> Result<Self, EncodeError> {
        let mut sorted: Vec<(&[u8], u32)> = tokens.filter(|token| !token.0.is_empty()).collect();
        if let Some(&(text, id)) = sorted.iter().find(|token| token.0.len() > MAX_TOKEN_BYTES) {
            return Err(EncodeError::TokenTooLong { id, n_bytes: text.len(), limit: MAX_TOKEN_BYTES });
        }
        sorted.sort_unstable();
        let mut nodes = vec![TrieNode { first_child: 0, n_children: 0, byte: 0, token: None }];
        // The tokens below each node, as a range of the sorted list, and the node's depth.
        let mut ranges = vec![(0, sorted.len(), 0)];
        let mut at = 0;
        while let Some(&(mut start, end, depth)) = ranges.get(at) {
            // Tokens that end here sort before longer ones.
            while let Some(&(_, id)) = sorted[..end].get(start).filter(|token| token.0.len() == depth) {
                nodes[at].token = Some(id);
                start += 1;
            }
            nodes[at].first_child = nodes.len();
            while start < end {
                let byte = sorted[start].0[depth];
                let next = start + sorted[start..end].partition_point(|token| token.0[depth] == byte);
                nodes.push(TrieNode { first_child: 0, n_children: 0, byte, token: None });
                ranges.push((start, next, depth + 1));
                nodes[at].n_children += 1;
                start = next;
            }
            at += 1;
        }
        Ok(Self { nodes })
    }

    /// Builds the trie of a vocabulary's tokens of some types.
    pub(super) fn of_kinds(vocab: &Vocab, kinds: &[TokenType]) -> Result<Self, EncodeError> {
        Self::new(tokens_of_kinds(vocab, kinds))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.nodes.len() < 2
    }

    /// Iterates over all tokens that are prefixes of `text`, shortest first, as (length in bytes, id).
    pub(super) fn prefixes<'a>(&'a self, text: &'a [u8]) -> impl Iterator<Item = (usize, u32)> + 'a {
        let mut node = self.nodes.first();
        text.iter()
            .enumerate()
            .map_while(move |(at, byte)| {
                node = self.child(node?, *byte);
                node.map(|node| (at + 1, node.token))
            })
            .filter_map(|(n_bytes, token)| token.map(|id| (n_bytes, id)))
    }

    /// Returns the longest token that is a prefix of `text`.
    pub(super) fn longest_prefix(&self, text: &[u8]) -> Option<(usize, u32)> {
        self.prefixes(text).last()
    }

    fn child(&self, node: &TrieNode, byte: u8) -> Option<&TrieNode> {
        let first = node.first_child;
        let children = self.nodes.get(first..first + usize::from(node.n_children))?;
        let at = children.binary_search_by_key(&byte, |child| child.byte).ok()?;
        children.get(at)
    }
}

/// Iterates over bytes and ids of a vocabulary's tokens of some types.
pub(super) fn tokens_of_kinds<'v>(
    vocab: &'v Vocab,
    kinds: &'v [TokenType],
) -> impl Iterator<Item = (&'v [u8], u32)> {
    (0u32..)
        .take(vocab.len())
        .filter(|id| kinds.contains(&vocab.kind(*id)))
        .filter_map(|id| Some((vocab.token(id)?, id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trie(tokens: &[&str]) -> Trie {
        Trie::new(tokens.iter().enumerate().map(|(id, token)| (token.as_bytes(), id as u32))).unwrap()
    }

    #[test]
    fn prefixes_come_shortest_first_and_the_last_duplicate_counts() {
        let trie = trie(&["a", "abc", "", "b", "ab\u{e9}", "abc"]);
        assert_eq!(trie.prefixes(b"abcd").collect::<Vec<_>>(), [(1, 0), (3, 5)]);
        assert_eq!(trie.longest_prefix("ab\u{e9}".as_bytes()), Some((4, 4)));
        assert_eq!(trie.longest_prefix(b"ca"), None);
        assert_eq!(trie.longest_prefix(b""), None);
    }

    #[test]
    fn all_bytes_can_follow_one_another() {
        let tokens: Vec<[u8; 2]> = (0..=255).map(|byte| [7, byte]).collect();
        let trie = Trie::new(tokens.iter().zip(0..).map(|(token, id)| (&token[..], id))).unwrap();
        for (id, token) in tokens.iter().enumerate() {
            assert_eq!(trie.longest_prefix(token), Some((2, id as u32)));
        }
    }

    #[test]
    fn very_long_tokens_are_refused() {
        let long = vec![b'a'; MAX_TOKEN_BYTES + 1];
        let error = Trie::new([(&long[..], 3)].into_iter()).err().unwrap().to_string();
        assert_eq!(error, "`tokenizer.ggml.tokens[3]` has 2049 bytes, at most 2048 can be searched for");
    }
}

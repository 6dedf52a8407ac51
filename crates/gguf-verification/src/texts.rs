//! Texts as models with bidirectional attention read them: each with its start and end tokens.

use std::ops::Range;

use crate::Prompt;
use gguf_engine::TokenChunk;

/// Texts as an encoder reads them.
pub(super) struct EncoderTexts {
    pub(super) chunks: Vec<TokenChunk>,
    pub(super) prompts: Vec<usize>,
    /// Range of each text's tokens without the start and end tokens.
    pub(super) bodies: Vec<Range<usize>>,
}

impl EncoderTexts {
    /// Cuts prompts into texts of at most `n_ctx` tokens, each with its start and end tokens.
    pub(super) fn cut(prompts: &[Prompt], end: Option<u32>, n_ctx: usize, limit: Option<usize>) -> Self {
        let mut texts = Self { chunks: Vec::new(), prompts: Vec::new(), bodies: Vec::new() };
        for (at, prompt) in prompts.iter().enumerate() {
            let body = match prompt.bos {
                Some(bos) => prompt.tokens.strip_prefix(&[bos]).unwrap_or(&prompt.tokens),
                None => &prompt.tokens,
            };
            let is_text = prompt.bos.is_some() || prompt.whole;
            let end = end.filter(|_| is_text);
            let body_len =
                n_ctx.saturating_sub(usize::from(prompt.bos.is_some()) + usize::from(end.is_some()));
            for part in body.chunks(body_len.max(1)) {
                let tokens: Vec<u32> =
                    prompt.bos.into_iter().chain(part.iter().copied()).chain(end).collect();
                let rows = 0..tokens.len();
                texts.chunks.push(TokenChunk { tokens, rows, n_source: 0 });
                texts.prompts.push(at);
                let front = usize::from(prompt.bos.is_some());
                texts.bodies.push(front..front + part.len());
            }
        }
        let n = limit.unwrap_or(usize::MAX);
        texts.chunks.truncate(n);
        texts.prompts.truncate(n);
        texts.bodies.truncate(n);
        texts
    }

    pub(super) fn n_tokens(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.tokens.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_keep_their_ends() {
        let prompt = Prompt { tokens: vec![9, 1, 2, 3, 4, 5], bos: Some(9), score_from: 1, whole: false };
        let texts = EncoderTexts::cut(&[prompt], Some(8), 5, None);
        let tokens: Vec<&[u32]> = texts.chunks.iter().map(|chunk| &chunk.tokens[..]).collect();
        assert_eq!(tokens, [&[9, 1, 2, 3, 8][..], &[9, 4, 5, 8]]);
        assert_eq!(texts.bodies, [1..4, 1..3]);
        let ids = Prompt { tokens: vec![1, 2, 3], bos: None, score_from: 1, whole: false };
        let texts = EncoderTexts::cut(&[ids.clone(), ids], Some(8), 5, Some(1));
        assert_eq!((texts.chunks.len(), &texts.chunks[0].tokens[..]), (1, &[1, 2, 3][..]));
    }
}

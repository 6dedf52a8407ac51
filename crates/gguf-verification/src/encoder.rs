//! Interface of a tokenizer for verification.

/// Conversion of text into token ids and back, by a file's own vocabulary.
pub trait TextEncoder: Sync {
    /// Returns the token ids of a text, without BOS or EOS. With `parse_special`, special tokens written out in the
    /// text become their ids.
    fn encode(&self, text: &str, parse_special: bool) -> Result<Vec<u32>, String>;

    /// Returns the bytes of the text of token ids, with special tokens written out.
    fn decode(&self, tokens: &[u32]) -> Vec<u8>;

    /// Returns the token that starts a text, if the file declares that texts start with it.
    fn start_of_text(&self) -> Option<u32>;

    /// Returns the token that ends a text, if the file declares that texts end with it.
    fn end_of_text(&self) -> Option<u32> {
        None
    }
}

impl TextEncoder for gguf_tokenizer::Encoder {
    fn encode(&self, text: &str, parse_special: bool) -> Result<Vec<u32>, String> {
        self.check(text).map_err(|error| error.to_string())?;
        Ok(Self::encode(self, text, parse_special))
    }

    fn decode(&self, tokens: &[u32]) -> Vec<u8> {
        Self::decode(self, tokens)
    }

    fn start_of_text(&self) -> Option<u32> {
        Self::start_of_text(self)
    }

    fn end_of_text(&self) -> Option<u32> {
        Self::end_of_text(self)
    }
}

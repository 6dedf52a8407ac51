//! What verification asks of a tokenizer.

/// Turns text into token ids and back, by a file's own vocabulary.
pub trait TextEncoder: Sync {
    /// Token ids of a text, without BOS or EOS. With `parse_special`, special tokens written out in the text become
    /// their ids.
    ///
    /// # Errors
    /// Why the text has no ids in this vocabulary.
    fn encode(&self, text: &str, parse_special: bool) -> Result<Vec<u32>, String>;

    /// The bytes that ids stand for, special tokens written out.
    fn decode(&self, tokens: &[u32]) -> Vec<u8>;

    /// The token that starts a text, if the file says that texts start with it.
    fn start_of_text(&self) -> Option<u32>;

    /// The token that ends a text, if the file says that texts end with it.
    fn end_of_text(&self) -> Option<u32> {
        None
    }
}

impl TextEncoder for crate::tokenizer::Encoder {
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

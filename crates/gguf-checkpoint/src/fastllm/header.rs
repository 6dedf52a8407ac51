//! The contents of an `.flm` file except the payloads.

use crate::fastllm::error::{FlmError, FlmSection};
use crate::fastllm::reader::FlmReader;
use crate::fastllm::tensors::{self, FlmTensor};
use gguf_core::bytes::{Cursor, Endian};
use gguf_core::limits::Limits;

const GGUF_MAGIC: i32 = 0x4655_4747;
/// Upper bound (exclusive) of plausible token ids; the largest vocabularies have a tenth of it.
const MAX_ID: u64 = 1 << 22;

/// Name and dictionary of an adapter; its matrices are ordinary tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// Adapter name, as used in the names of its tensors.
    pub name: String,
    /// Keys and values, in file order.
    pub dictionary: Vec<(String, String)>,
}

impl Adapter {
    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.dictionary.iter().find(|entry| entry.0 == key).map(|entry| entry.1.as_str())
    }
}

/// One entry of the vocabulary.
#[derive(Clone, Debug, PartialEq)]
pub struct FlmToken {
    /// Bytes of the token.
    pub text: Vec<u8>,
    /// Token id.
    pub id: u32,
    /// Score, if the file has scores.
    pub score: Option<f32>,
}

/// Contents of a file except the payloads.
#[derive(Clone, Debug)]
pub struct FlmHeader {
    /// Format version: 0, 1 or 2.
    pub version: i32,
    /// Configuration as text, in file order.
    pub dictionary: Vec<(String, String)>,
    /// Adapters.
    pub adapters: Vec<Adapter>,
    /// Vocabulary, in file order.
    pub tokens: Vec<FlmToken>,
    /// Special tokens, as listed; names may repeat, and may be missing in the vocabulary.
    pub special: Vec<Vec<u8>>,
    /// Tensors, in file order.
    pub tensors: Vec<FlmTensor>,
}

impl FlmHeader {
    /// Parses a whole file.
    pub fn parse(file: &[u8], limits: &Limits) -> Result<Self, FlmError> {
        let mut reader =
            FlmReader { cursor: Cursor::new(file, Endian::Little), section: FlmSection::Version };
        let version = reader.int()?;
        match version {
            0..=2 => {}
            GGUF_MAGIC => return Err(FlmError::Gguf),
            found => return Err(FlmError::Version { found }),
        }
        reader.section = FlmSection::Dictionary;
        let dictionary = if version >= 1 { reader.pairs()? } else { Vec::new() };
        let value = |key: &str| {
            dictionary.iter().find(|entry: &&(String, String)| entry.0 == key).map(|entry| entry.1.as_str())
        };
        let adapters = match value("peft_size") {
            Some(size) => adapters(&mut reader, size)?,
            None => Vec::new(),
        };
        reader.section = FlmSection::Vocabulary;
        let scores = match value("tokenizer_use_score") {
            Some("1") => TokenScores::Stored,
            _ => TokenScores::Absent,
        };
        let tokens = tokens(&mut reader, scores)?;
        reader.section = FlmSection::SpecialTokens;
        let mut special = Vec::new();
        if value("tokenizer_has_special_tokens") == Some("1") {
            for _ in 0..reader.count("token count", 4)? {
                special.push(reader.bytes()?.to_vec());
            }
        }
        reader.section = FlmSection::Tensors;
        let tensors = tensors::read(&mut reader, limits)?;
        Ok(Self { version, dictionary, adapters, tokens, special, tensors })
    }

    /// Returns the value of a dictionary key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.dictionary.iter().find(|entry| entry.0 == key).map(|entry| entry.1.as_str())
    }
}

/// Presence of scores in the vocabulary.
#[derive(Clone, Copy)]
enum TokenScores {
    Stored,
    Absent,
}

fn adapters(reader: &mut FlmReader<'_>, size: &str) -> Result<Vec<Adapter>, FlmError> {
    reader.section = FlmSection::Adapters;
    let found: i32 = size.trim().parse().map_err(|_| FlmError::PeftSize { found: size.to_owned() })?;
    let (offset, left) = (reader.cursor.offset(), reader.cursor.left());
    let (section, what) = (reader.section, "`peft_size`");
    let count = u64::try_from(found).map_err(|_| FlmError::Negative { section, offset, what, found })?;
    if count * 8 > left {
        return Err(FlmError::CannotFit { section, offset, what, found, left });
    }
    let mut adapters = Vec::new();
    for _ in 0..count {
        adapters.push(Adapter { name: reader.text()?, dictionary: reader.pairs()? });
    }
    Ok(adapters)
}

fn tokens(reader: &mut FlmReader<'_>, scores: TokenScores) -> Result<Vec<FlmToken>, FlmError> {
    let section = reader.section;
    let truncated = |source| FlmError::Truncated { section, source };
    let mut tokens = Vec::new();
    for _ in 0..reader.count("token count", 4)? {
        let mut text = Vec::new();
        for _ in 0..reader.count("token length", 4)? {
            let offset = reader.cursor.offset();
            let found = reader.int()?;
            // Writers with a signed `char` store the upper half of the bytes as negative numbers.
            match found {
                -128..=255 => text.push((found & 255) as u8),
                _ => return Err(FlmError::TokenByte { offset, found }),
            }
        }
        let offset = reader.cursor.offset();
        let found = reader.int()?;
        let id = u32::try_from(found).ok().filter(|&id| u64::from(id) < MAX_ID);
        let id = id.ok_or(FlmError::TokenId { offset, found, limit: MAX_ID - 1 })?;
        let offset = reader.cursor.offset();
        let score = match scores {
            TokenScores::Stored => Some(reader.cursor.f32().map_err(truncated)?),
            TokenScores::Absent => None,
        };
        if let Some(found) = score.filter(|score| !score.is_finite()) {
            return Err(FlmError::Score { offset, id: id.cast_signed(), found });
        }
        tokens.push(FlmToken { text, id, score });
    }
    Ok(tokens)
}

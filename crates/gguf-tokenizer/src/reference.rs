//! A `tokenizer.json` as read by the `tokenizers` library.
//!
//! The library executes the file: normalizers that may double a text twenty times, regexes that backtrack, one
//! automaton for each. If the program supports child processes ([`gguf_core::isolated`]), it runs in one, with limits
//! on memory and time that grow with the file. In a library's process it runs in place. Then the normalizers are
//! checked in advance (see `growth`), but the cost of regexes is not bounded.

mod growth;

use std::sync::Mutex;

use tokenizers::Tokenizer;

use gguf_core::isolated::{Bounds, IsolatedError, Worker, installed};
use gguf_core::sync::Unpoisoned;

/// Base memory of a child in bytes; each byte of a file adds `BYTES_PER_BYTE`. A vocabulary of 260 000 tokens (33 MB)
/// needs a third of the result.
const BASE_BYTES: u64 = 192 << 20;
const BYTES_PER_BYTE: u64 = 48;

/// First byte of a request: its kind.
const VOCABULARY: u8 = b'v';
const IDS: u8 = b'i';
const IDS_WITH_SPECIAL: u8 = b's';

/// Tokenizer of the library, in this process or in a child.
pub struct ReferenceTokenizer(TokenizerHost);

enum TokenizerHost {
    Here(Box<Tokenizer>),
    Child(Box<Mutex<Worker>>),
}

impl ReferenceTokenizer {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// The library's message for a file that it refuses, an unbounded normalizer, limits of the child.
    pub fn new(text: &[u8]) -> Result<Self, String> {
        let Some(isolation) = installed() else { return Ok(Self(TokenizerHost::Here(load(text)?))) };
        let n_bytes = text.len() as u64;
        let bounds = Bounds {
            memory_bytes: BASE_BYTES + BYTES_PER_BYTE * n_bytes,
            // Longer than the processor time allowed for a file of this size.
            wall: std::time::Duration::from_secs(20 + 8 * (n_bytes >> 20)),
            reply_bytes: (16 << 20) + 2 * text.len(),
            // A verification against a source reads the file twice.
            cpu_seconds: 2,
        };
        let mut worker = Worker::new(isolation, REFERENCE_JOB, text.to_vec(), bounds);
        worker.start().map_err(|error| reason(&error))?;
        Ok(Self(TokenizerHost::Child(Box::new(Mutex::new(worker)))))
    }

    /// Encodes a text as ids; with `special`, the file's post-processor adds its tokens.
    pub fn ids(&self, text: &str, special: bool) -> Result<Vec<u32>, String> {
        let worker = match &self.0 {
            TokenizerHost::Here(tokenizer) => return encode(tokenizer, text, special),
            TokenizerHost::Child(worker) => worker,
        };
        let kind = if special { IDS_WITH_SPECIAL } else { IDS };
        let bytes = ask(worker, &[&[kind], text.as_bytes()].concat())?;
        Ok(gguf_core::little_endian::u32s(&bytes).collect())
    }

    /// Returns ids and tokens, including added ones; ids without a token are omitted.
    pub fn vocabulary(&self) -> Result<Vec<(u32, String)>, String> {
        match &self.0 {
            TokenizerHost::Here(tokenizer) => Ok(vocabulary(tokenizer)),
            TokenizerHost::Child(worker) => {
                let bytes = ask(worker, &[VOCABULARY])?;
                serde_json::from_slice(&bytes).map_err(|error| error.to_string())
            }
        }
    }
}

/// Name of the job in which a child reads a `tokenizer.json`.
pub const REFERENCE_JOB: &str = "tokenizer";

/// Returns the child's handler: it answers the text of a file with nothing, later requests with tokens or ids.
pub fn reference_job() -> impl FnMut(&[u8]) -> Result<Vec<u8>, Vec<u8>> {
    let mut loaded: Option<Box<Tokenizer>> = None;
    move |request| {
        let Some(tokenizer) = &loaded else {
            loaded = Some(load(request).map_err(String::into_bytes)?);
            return Ok(Vec::new());
        };
        let Some((kind, rest)) = request.split_first() else { return Err(b"an empty request".to_vec()) };
        if *kind == VOCABULARY {
            return serde_json::to_vec(&vocabulary(tokenizer))
                .map_err(|error| error.to_string().into_bytes());
        }
        let text = std::str::from_utf8(rest).map_err(|error| error.to_string().into_bytes())?;
        let ids = encode(tokenizer, text, *kind == IDS_WITH_SPECIAL).map_err(String::into_bytes)?;
        Ok(ids.into_iter().flat_map(u32::to_le_bytes).collect())
    }
}

fn ask(worker: &Mutex<Worker>, request: &[u8]) -> Result<Vec<u8>, String> {
    worker.lock().unpoisoned().ask(request).map_err(|error| reason(&error))
}

/// Returns the library's own message unchanged, for callers that escape it; ours if the library sent none.
fn reason(error: &IsolatedError) -> String {
    match error {
        IsolatedError::Refused { reason } => String::from_utf8_lossy(reason).into_owned(),
        error => format!("the `tokenizers` library: {error}"),
    }
}

fn load(text: &[u8]) -> Result<Box<Tokenizer>, String> {
    growth::check(text)?;
    let mut tokenizer = Tokenizer::from_bytes(text).map_err(|error| error.to_string())?;
    // Settings for batches of a training run, not of the vocabulary: every sentence-transformers model has them.
    tokenizer.with_padding(None).with_truncation(None).map_err(|error| error.to_string())?;
    Ok(Box::new(tokenizer))
}

fn encode(tokenizer: &Tokenizer, text: &str, special: bool) -> Result<Vec<u32>, String> {
    let encoded = tokenizer.encode(text, special).map_err(|error| error.to_string())?;
    Ok(encoded.get_ids().to_vec())
}

fn vocabulary(tokenizer: &Tokenizer) -> Vec<(u32, String)> {
    let token = |id| tokenizer.id_to_token(id).map(|token| (id, token));
    let mut tokens: Vec<_> = tokenizer.get_vocab(true).into_values().filter_map(token).collect();
    tokens.sort_unstable();
    tokens
}

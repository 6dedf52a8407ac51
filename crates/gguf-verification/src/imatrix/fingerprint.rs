//! Identity of a run: it can only be resumed with the model, the chunks and the options with which it began.

use gguf_core::text;
use rayon::prelude::*;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::Window;
use gguf_core::progress::Progress;
use gguf_core::sha256::sha256_of_tensor;
use gguf_core::{SourceError, TensorMeta, TensorSource};
use gguf_format::{ImatrixSums, Metadata, value_bytes};

/// Digest under construction. Every item is hashed with its length, so that items cannot run into one another.
#[derive(Default)]
pub struct Fingerprint(Sha256);

impl Fingerprint {
    /// Adds bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.update(bytes);
    }

    /// Adds a serializable value.
    pub fn value(&mut self, value: &impl Serialize) -> std::io::Result<()> {
        self.bytes(&serde_json::to_vec(value)?);
        Ok(())
    }

    /// Adds a number.
    pub fn number(&mut self, n: u64) {
        self.0.update(n.to_le_bytes());
    }

    /// Adds the model: the keys of its graph, and all tensors. What is kept of a run takes much longer to make than the
    /// model to read.
    pub fn model(
        &mut self,
        metadata: &Metadata,
        source: &dyn TensorSource,
        progress: &dyn Progress,
    ) -> Result<(), SourceError> {
        // A file's name, its split and its making do not affect what it computes.
        let is_about = |key: &str| {
            let about = ["general.", "split.", "quantize."];
            key != "general.architecture" && about.iter().any(|prefix| key.starts_with(prefix))
        };
        self.metadata(metadata, |key| !is_about(key));
        let tensors = source.tensors();
        progress.begin("identifying the model", tensors.iter().filter_map(TensorMeta::n_bytes).sum());
        let digest = |tensor| sha256_of_tensor(source, tensor, progress);
        let digests: Result<Vec<_>, _> = (0..tensors.len()).into_par_iter().map(digest).collect();
        progress.end();
        for (digest, meta) in digests?.iter().zip(tensors) {
            self.bytes(meta.name.as_bytes());
            self.bytes(meta.ty.name().as_bytes());
            self.number(meta.shape.rank() as u64);
            meta.shape.dims().iter().for_each(|&size| self.number(size));
            self.bytes(digest);
        }
        Ok(())
    }

    /// Adds the keys that matter, with their values.
    pub fn metadata(&mut self, metadata: &Metadata, matters: impl Fn(&str) -> bool) {
        for (key, value) in metadata.iter().filter(|(key, _)| matters(key)) {
            self.bytes(key.as_bytes());
            self.bytes(&value_bytes(value));
        }
    }

    /// Adds the sums that a run began with.
    pub(super) fn sums(&mut self, sums: &ImatrixSums) {
        self.number(sums.tensors.len() as u64);
        for (name, columns) in &sums.tensors {
            self.bytes(name.as_bytes());
            columns.sums.iter().for_each(|sum| self.number(sum.to_bits()));
            columns.counts.iter().for_each(|&count| self.number(count as u64));
        }
    }

    /// Adds chunks, with their rows that are scored.
    pub fn windows(&mut self, windows: &[Window]) {
        for window in windows {
            self.number(window.chunk.tokens.len() as u64);
            window.chunk.tokens.iter().for_each(|&token| self.number(token.into()));
            self.number(window.chunk.rows.start as u64);
            self.number(window.chunk.rows.end as u64);
        }
    }

    /// Returns the digest in hexadecimal digits.
    pub fn hex(self) -> String {
        text::hex(&self.0.finalize())
    }
}

//! Compressed parts of a recipe: frames of zstd, one after the other.

use std::io::Read;

use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

/// Largest window of a frame in bytes; a frame that declares a larger one is refused before memory is reserved.
const MAX_WINDOW_BYTES: u64 = 8 << 20;

/// Compressed bytes that end too early or are damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("compressed bytes are damaged")]
pub(super) struct DamagedFrame;

/// Compresses bytes into one frame. Frames may follow one another.
pub(super) fn compress(bytes: &[u8]) -> Vec<u8> {
    compress_to_vec(bytes, CompressionLevel::Fastest)
}

/// Reader of compressed frames; at any time it holds a window of one frame.
pub(super) struct Frames<'a> {
    rest: &'a [u8],
    decoder: FrameDecoder,
    is_open: bool,
}

impl<'a> Frames<'a> {
    /// Reader of frames, from the first one on.
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(MAX_WINDOW_BYTES);
        Self { rest: bytes, decoder, is_open: false }
    }

    /// Reads the next bytes, at most as many as `out` has; 0 at the end of the last frame.
    fn read(&mut self, out: &mut [u8]) -> Result<usize, DamagedFrame> {
        loop {
            if !self.is_open {
                if self.rest.is_empty() {
                    return Ok(0);
                }
                self.decoder.init(&mut self.rest).map_err(|_| DamagedFrame)?;
                self.is_open = true;
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let step = BlockDecodingStrategy::UptoBlocks(1);
                self.decoder.decode_blocks(&mut self.rest, step).map_err(|_| DamagedFrame)?;
            }
            let n_bytes = self.decoder.read(out).map_err(|_| DamagedFrame)?;
            self.is_open = self.decoder.can_collect() > 0 || !self.decoder.is_finished();
            if n_bytes > 0 || out.is_empty() {
                return Ok(n_bytes);
            }
        }
    }

    /// Reads as many bytes as `out` has.
    pub(super) fn read_exact(&mut self, mut out: &mut [u8]) -> Result<(), DamagedFrame> {
        while !out.is_empty() {
            let n_bytes = self.read(out)?;
            out = out.get_mut(n_bytes..).filter(|_| n_bytes > 0).ok_or(DamagedFrame)?;
        }
        Ok(())
    }

    pub(super) fn is_at_end(&mut self) -> bool {
        matches!(self.read(&mut [0]), Ok(0))
    }
}

/// Decompresses all frames into at most `most` bytes. Memory grows with what is decoded, not with what is declared.
pub(super) fn decompress(bytes: &[u8], most: usize) -> Result<Vec<u8>, DamagedFrame> {
    let mut frames = Frames::new(bytes);
    let (mut out, mut step) = (Vec::new(), [0; 4096]);
    loop {
        let n_bytes = frames.read(&mut step)?;
        if n_bytes == 0 {
            return Ok(out);
        }
        if n_bytes > most - out.len() {
            return Err(DamagedFrame);
        }
        out.extend_from_slice(step.get(..n_bytes).ok_or(DamagedFrame)?);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(n: usize) -> Vec<u8> {
        let mut state = 7u64;
        let next = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        (0..n).map(next).collect()
    }

    #[test]
    fn frames_are_read_in_pieces_of_any_size() {
        let mut sparse = vec![0; 300_000];
        sparse[70_001] = 3;
        let parts = [noise(200_000), sparse, Vec::new(), b"text text text".repeat(5000)];
        let packed: Vec<u8> = parts.iter().flat_map(|part| compress(part)).collect();
        let whole = parts.concat();
        assert!(packed.len() < 215_000, "{}", packed.len());
        assert_eq!(decompress(&packed, whole.len()).as_ref(), Ok(&whole));
        assert_eq!(decompress(&packed, whole.len() - 1), Err(DamagedFrame));
        for step in [1000, 65_537, whole.len()] {
            let mut frames = Frames::new(&packed);
            let mut found = vec![0; whole.len()];
            found.chunks_mut(step).for_each(|out| frames.read_exact(out).unwrap());
            assert!(found == whole && frames.is_at_end(), "{step}");
            assert_eq!(frames.read_exact(&mut [0]), Err(DamagedFrame));
        }
    }

    #[test]
    fn damage_is_an_error_and_no_panic() {
        let whole = [noise(2000), vec![5; 3000]].concat();
        let packed = compress(&whole);
        let mut n_refused = 0;
        for at in 0..packed.len() {
            let mut damaged = packed.clone();
            damaged[at] ^= 1 << (at % 8);
            n_refused += usize::from(decompress(&damaged, whole.len()).is_err());
            let _ = decompress(&packed[..at], whole.len()).map(|found| assert!(found.len() < whole.len()));
            let mut out = vec![0; whole.len()];
            let _ = Frames::new(&damaged).read_exact(&mut out);
            assert!(Frames::new(&packed[..at]).read_exact(&mut out).is_err(), "{at}");
        }
        // Bits of bytes that are stored as they are stay unnoticed: the digest of the file finds them.
        assert!(n_refused > 3, "{n_refused}");
    }
}

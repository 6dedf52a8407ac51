//! SHA-256 digests as hexadecimal digits.

use gguf_core::text::hex;
use std::io::Read;
use std::path::Path;

use sha2::{Digest, Sha256};

/// SHA-256 digest of a file's bytes.
pub(super) fn digest_of_file(path: &Path) -> std::io::Result<String> {
    let mut file = fs_err::File::open(path)?;
    let (mut digest, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(&digest.finalize())),
            n => digest.update(&buffer[..n]),
        }
    }
}

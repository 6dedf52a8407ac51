//! Requests and replies as bytes.

use super::{Bounds, IsolatedError, MAGIC};

/// Bytes before the content of a reply: magic, kind, length.
const HEAD_BYTES: usize = MAGIC.len() + 5;

/// Returns a request with its length before it.
pub(super) fn framed(request: &[u8]) -> Result<Vec<u8>, IsolatedError> {
    let len =
        u32::try_from(request.len()).map_err(|_| IsolatedError::TooLong { limit: u32::MAX as usize })?;
    Ok([&len.to_le_bytes()[..], request].concat())
}

/// Parses the reply; `None` until it is complete.
pub(super) fn parse(
    reply: &mut Vec<u8>,
    bounds: &Bounds,
) -> Result<Option<Result<Vec<u8>, IsolatedError>>, IsolatedError> {
    let n = reply.len().min(MAGIC.len());
    if reply[..n] != MAGIC[..n] {
        return Err(IsolatedError::Garbage);
    }
    let Some(head) = reply.get(MAGIC.len()..HEAD_BYTES) else { return Ok(None) };
    let kind = head[0];
    let len = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
    if len > bounds.reply_bytes {
        return Err(IsolatedError::TooLong { limit: bounds.reply_bytes });
    }
    if reply.len() - HEAD_BYTES < len {
        return Ok(None);
    }
    // One reply to each request, and nothing after it.
    if reply.len() - HEAD_BYTES > len {
        return Err(IsolatedError::Garbage);
    }
    let bytes = reply.split_off(HEAD_BYTES);
    match kind {
        0 => Ok(Some(Ok(bytes))),
        1 => Ok(Some(Err(IsolatedError::Refused { reason: bytes }))),
        2 => {
            let reason = String::from_utf8_lossy(&bytes).into_owned();
            Ok(Some(Err(IsolatedError::Panic { reason })))
        }
        _ => Err(IsolatedError::Garbage),
    }
}

//! Header of a file as differences from another header: bytes of its own between copies of the other's.
//!
//! # Layout
//! Until all bytes are there: number of own bytes, these bytes, offset of the copy in the other header, number of copied
//! bytes. Numbers are little-endian groups of 7 bits; all but the last have the high bit.

use std::collections::HashMap;

/// Bytes whose equality starts a copy. The other header is indexed at every multiple of it.
const SEED_BYTES: usize = 16;

/// Differences that do not fit the other header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("differences between headers are damaged")]
pub(super) struct DamagedDelta;

/// Describes bytes by their differences from `base`.
pub(super) fn encode(bytes: &[u8], base: &[u8]) -> Vec<u8> {
    let mut seeds: HashMap<&[u8], usize> = HashMap::new();
    for (at, seed) in base.chunks_exact(SEED_BYTES).enumerate() {
        seeds.entry(seed).or_insert(at * SEED_BYTES);
    }
    let mut out = Vec::new();
    // Bytes up to `done` are described; the last copy ended at `next_in_base`.
    let (mut done, mut at, mut next_in_base) = (0, 0, 0);
    while at < bytes.len() {
        // Most differences keep the length, so the bytes go on where they would without them.
        let straight = next_in_base + (at - done);
        let found = [Some(straight), seed_at(bytes, at).and_then(|seed| seeds.get(seed).copied())];
        let copies = found.into_iter().flatten().map(|from| (from, common(bytes, at, base, from)));
        let Some((from, n_bytes)) = copies.max_by_key(|copy| copy.1).filter(|copy| copy.1 >= SEED_BYTES)
        else {
            at += 1;
            continue;
        };
        let back = common_before(&bytes[done..at], &base[..from]);
        put(&mut out, at - back - done);
        out.extend_from_slice(&bytes[done..at - back]);
        put(&mut out, from - back);
        put(&mut out, n_bytes + back);
        at += n_bytes;
        done = at;
        next_in_base = from + n_bytes;
    }
    put(&mut out, bytes.len() - done);
    out.extend_from_slice(&bytes[done..]);
    out
}

fn seed_at(bytes: &[u8], at: usize) -> Option<&[u8]> {
    bytes.get(at..at + SEED_BYTES)
}

/// Number of equal bytes from two places on.
fn common(bytes: &[u8], at: usize, base: &[u8], from: usize) -> usize {
    let (one, two) = (bytes.get(at..).unwrap_or_default(), base.get(from..).unwrap_or_default());
    one.iter().zip(two).take_while(|(a, b)| a == b).count()
}

/// Number of equal bytes at the ends.
fn common_before(one: &[u8], two: &[u8]) -> usize {
    one.iter().rev().zip(two.iter().rev()).take_while(|(a, b)| a == b).count()
}

fn put(out: &mut Vec<u8>, mut n: usize) {
    while n >= 0x80 {
        out.push((n & 0x7f) as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// Restores `n_bytes` bytes from their differences. `n_bytes` is not trusted: memory grows with what is restored.
pub(super) fn decode(delta: &[u8], base: &[u8], n_bytes: usize) -> Result<Vec<u8>, DamagedDelta> {
    let (mut rest, mut out) = (delta, Vec::new());
    let add = |out: &mut Vec<u8>, part: &[u8]| {
        out.extend_from_slice(part);
        if out.len() <= n_bytes { Ok(()) } else { Err(DamagedDelta) }
    };
    loop {
        let n_own = take(&mut rest)?;
        let (own, after) = rest.split_at_checked(n_own).ok_or(DamagedDelta)?;
        add(&mut out, own)?;
        rest = after;
        if out.len() == n_bytes && rest.is_empty() {
            return Ok(out);
        }
        let (from, n_copied) = (take(&mut rest)?, take(&mut rest)?);
        let end = from.checked_add(n_copied).ok_or(DamagedDelta)?;
        if n_copied == 0 {
            return Err(DamagedDelta);
        }
        add(&mut out, base.get(from..end).ok_or(DamagedDelta)?)?;
    }
}

fn take(rest: &mut &[u8]) -> Result<usize, DamagedDelta> {
    let mut n = 0usize;
    for shift in (0..).step_by(7) {
        let (&byte, after) = rest.split_first().ok_or(DamagedDelta)?;
        *rest = after;
        let group = usize::from(byte & 0x7f);
        let moved = group.checked_shl(shift).filter(|moved| moved >> shift == group).ok_or(DamagedDelta)?;
        n |= moved;
        if byte & 0x80 == 0 {
            break;
        }
    }
    Ok(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(n: u32, step: u32) -> Vec<u8> {
        (0..n).flat_map(|word| format!("token-{}", word * step).into_bytes()).collect()
    }

    #[test]
    fn little_is_kept_of_what_is_alike() {
        let base = words(5000, 7);
        let mut changed = base.clone();
        changed[1000] ^= 1;
        changed.splice(3000..3005, b"something longer".iter().copied());
        changed.drain(20_000..20_100);
        changed.extend(b"and an end of its own");
        for (bytes, most) in [(&base, 10), (&changed, 100), (&words(300, 7919), 4000), (&Vec::new(), 1)] {
            let delta = encode(bytes, &base);
            assert!(delta.len() <= most, "{} of {}", delta.len(), bytes.len());
            assert_eq!(decode(&delta, &base, bytes.len()).as_ref(), Ok(bytes));
            assert!(decode(&delta, &base, bytes.len() + 1).is_err());
        }
        let moved = [&base[30_000..], &base[..30_000]].concat();
        let delta = encode(&moved, &base);
        assert!(delta.len() < 20, "{}", delta.len());
        assert_eq!(decode(&delta, &base, moved.len()), Ok(moved));
        assert_eq!(decode(&encode(&base, &[]), &[], base.len()), Ok(base));
    }

    #[test]
    fn damage_is_an_error_and_no_panic() {
        let base = words(200, 3);
        let mut bytes = base.clone();
        bytes.splice(100..110, b"x".iter().copied());
        let delta = encode(&bytes, &base);
        for at in 0..delta.len() {
            assert!(decode(&delta[..at], &base, bytes.len()).is_err(), "{at}");
            for bit in 0..8 {
                let mut damaged = delta.clone();
                damaged[at] ^= 1 << bit;
                let _ = decode(&damaged, &base, bytes.len()).map(|found| assert_ne!(found, bytes));
            }
        }
        assert_eq!(decode(&[0x80; 20], &base, 10), Err(DamagedDelta));
        assert_eq!(decode(&[0xff; 20], &base, 10), Err(DamagedDelta));
    }
}

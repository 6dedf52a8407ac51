//! File format of a part.
//!
//! # Layout
//! Little-endian. `ggufpart`; the version of the format (u32, 1) and four zero bytes; the SHA-256 of all bytes that
//! follow it (32 bytes); the length of the facts (u64) and the facts as JSON; then a row for every position that was
//! measured, and one for every position of the healthy file that was run in addition. The facts hold both numbers of
//! rows. A row has 53 bytes: the index of the prompt (u64), the index of the token in it (u64), the token (u32), flags
//! (u8: 1 scored, 2 with a baseline), the negative log likelihood (f64) and the most likely token (u32) of the model,
//! the same two of the baseline, and the divergence from it (f64).

use std::path::Path;

use sha2::{Digest, Sha256};

use crate::parts::facts::{PartFacts, RunFacts, TwinFacts, findings};
use crate::parts::{PartError, VerificationPart};
use crate::{Position, Reference};
use gguf_core::bytes::{Cursor, Endian, Truncated};
use gguf_core::input;
use gguf_core::output::OutputFile;
use gguf_engine::TokenScore;

const MAGIC: &[u8; 8] = b"ggufpart";
pub(super) const VERSION: u32 = 1;
/// Number of bytes before those that the checksum covers.
const HEAD_BYTES: usize = 48;
const ROW_BYTES: usize = 53;
const IS_SCORED: u8 = 1;
const HAS_REFERENCE: u8 = 2;

impl VerificationPart {
    /// Returns true if a file starts with the magic bytes of a part.
    pub fn is_one(path: &Path) -> std::io::Result<bool> {
        use std::io::Read as _;
        let mut head = Vec::new();
        input::open(path)?.take(MAGIC.len() as u64).read_to_end(&mut head)?;
        Ok(head == MAGIC)
    }

    /// Writes the file; it appears complete or not at all.
    pub fn write(&self, path: &Path, sync: bool) -> Result<(), PartError> {
        Ok(OutputFile::write(path, &self.to_bytes()?, sync)?)
    }

    fn to_bytes(&self) -> Result<Vec<u8>, PartError> {
        let facts = serde_json::to_vec(&self.facts).map_err(std::io::Error::other)?;
        let mut bytes = Vec::new();
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend([0; 32]);
        bytes.extend((facts.len() as u64).to_le_bytes());
        bytes.extend(facts);
        self.positions.iter().chain(&self.twin).for_each(|position| push(&mut bytes, position));
        let sum = Sha256::digest(&bytes[HEAD_BYTES..]);
        bytes[HEAD_BYTES - 32..HEAD_BYTES].copy_from_slice(&sum);
        Ok(bytes)
    }

    /// Reads a file. Its content is untrusted: beyond the checksum, it is checked against the facts.
    pub fn open(path: &Path) -> Result<Self, PartError> {
        Self::of_bytes(path, &input::read(path)?)
    }

    fn of_bytes(path: &Path, bytes: &[u8]) -> Result<Self, PartError> {
        let path = path.to_owned();
        if !bytes.starts_with(MAGIC) {
            return Err(PartError::Magic { path });
        }
        let found = bytes.len() as u64;
        let too_short = |error: &Truncated| PartError::Length {
            path: path.clone(),
            expected: u128::from(error.offset) + u128::from(error.wanted),
            found,
        };
        let mut cursor = Cursor::new(bytes, Endian::Little);
        cursor.take(8).map_err(|error| too_short(&error))?;
        let version = cursor.u32().map_err(|error| too_short(&error))?;
        if version != VERSION {
            return Err(PartError::Version { path, found: version });
        }
        if cursor.take(4).map_err(|error| too_short(&error))? != [0; 4] {
            let reason = "four zero bytes expected".to_owned();
            return Err(PartError::Facts { path, offset: 12, reason });
        }
        let sum = cursor.take(32).map_err(|error| too_short(&error))?;
        let n_facts = cursor.u64().map_err(|error| too_short(&error))?;
        let facts_at = cursor.offset();
        let facts = cursor.take(n_facts).map_err(|error| too_short(&error))?;
        // For a truncated file, the length is a more useful error than the checksum.
        let facts: Result<PartFacts, _> = serde_json::from_slice(facts);
        let rows_at = cursor.offset();
        let n_rows = |facts: &PartFacts| {
            facts.run.as_ref().map_or(0, |run| u128::from(run.n_positions) + u128::from(run.n_twin))
        };
        if let Ok(facts) = &facts {
            let expected = u128::from(rows_at) + n_rows(facts) * ROW_BYTES as u128;
            if expected > u128::from(found) {
                return Err(PartError::Length { path, expected, found });
            }
        }
        if Sha256::digest(bytes.get(HEAD_BYTES..).unwrap_or_default()).as_slice() != sum {
            return Err(PartError::Checksum { path });
        }
        let bad = |offset, reason: String| PartError::Facts { path: path.clone(), offset, reason };
        let facts = facts.map_err(|error| bad(facts_at, error.to_string()))?;
        check(&facts).map_err(|reason| bad(facts_at, reason))?;
        let expected = u128::from(rows_at) + n_rows(&facts) * ROW_BYTES as u128;
        if expected != u128::from(found) {
            return Err(PartError::Length { path, expected, found });
        }
        let rest = cursor.left();
        let rows = cursor.take(rest).map_err(|error| too_short(&error))?;
        let rows: Vec<Position> = rows.as_chunks::<ROW_BYTES>().0.iter().map(position).collect();
        let run = facts.run.as_ref();
        check_rows(run, &rows)
            .map_err(|at| bad(rows_at + (at * ROW_BYTES) as u64, "a position of another part".to_owned()))?;
        let n_positions = run.and_then(|run| usize::try_from(run.n_positions).ok()).unwrap_or(0);
        let (positions, twin) = rows.split_at(n_positions.min(rows.len()));
        Ok(Self { path, positions: positions.to_vec(), twin: twin.to_vec(), facts })
    }
}

/// Returns an error message for impossible facts.
fn check(facts: &PartFacts) -> Result<(), String> {
    let PartFacts { number, count, checks, run, .. } = facts;
    if !(1..=usize::from(u16::MAX)).contains(count) || !(1..=*count).contains(number) {
        return Err(format!("part {number} of {count}"));
    }
    if checks.at_weights > checks.at_limits || checks.at_limits > checks.findings.len() {
        let n = checks.findings.len();
        return Err(format!("places {} and {} in {n} findings", checks.at_weights, checks.at_limits));
    }
    let all =
        [&checks.findings, checks.weights.as_deref().unwrap_or_default(), &facts.notes].map(|list| list);
    for list in all {
        findings(list).map_err(|name| format!("a finding of the check `{name}`, which there is not"))?;
    }
    let Some(run) = run else { return Ok(()) };
    let RunFacts { first_window, end_window, plan, .. } = run;
    if first_window > end_window || *end_window > plan.n_windows {
        return Err(format!("windows {first_window} to {end_window} of {}", plan.n_windows));
    }
    let mut end = 0;
    for file in &plan.files {
        if file.first_prompt < end
            || file.end_prompt < file.first_prompt
            || file.end_prompt > plan.prompts.len()
        {
            return Err(format!("a file of the prompts {} to {}", file.first_prompt, file.end_prompt));
        }
        end = file.end_prompt;
    }
    if run.n_twin > 0 && run.twin != TwinFacts::Positions {
        return Err("positions of a healthy file that was not run".to_owned());
    }
    Ok(())
}

/// Checks that every row can belong to this run; the error is the index of the first that cannot.
fn check_rows(run: Option<&RunFacts>, rows: &[Position]) -> Result<(), usize> {
    let Some(run) = run else { return Ok(()) };
    let n_positions = usize::try_from(run.n_positions).unwrap_or(usize::MAX);
    let mut before = 0;
    for (at, row) in rows.iter().enumerate() {
        let is_twin = at >= n_positions;
        if at == n_positions {
            before = 0;
        }
        let n_tokens = run.plan.prompts.get(row.prompt).copied().unwrap_or(0);
        let fits = row.prompt >= before && (row.at as u64) < n_tokens;
        if !fits || row.reference.is_some() != (is_twin || run.plan.is_compared) {
            return Err(at);
        }
        before = row.prompt;
    }
    Ok(())
}

fn push(bytes: &mut Vec<u8>, position: &Position) {
    let Position { prompt, at, token, score, reference, is_scored } = position;
    bytes.extend((*prompt as u64).to_le_bytes());
    bytes.extend((*at as u64).to_le_bytes());
    bytes.extend(token.to_le_bytes());
    let flags = if *is_scored { IS_SCORED } else { 0 } | if reference.is_some() { HAS_REFERENCE } else { 0 };
    bytes.push(flags);
    let none = Reference { score: TokenScore { nll: 0.0, top: 0 }, kld: 0.0 };
    let other = reference.unwrap_or(none);
    for score in [score, &other.score] {
        bytes.extend(score.nll.to_le_bytes());
        bytes.extend(score.top.to_le_bytes());
    }
    bytes.extend(other.kld.to_le_bytes());
}

fn position(row: &[u8; ROW_BYTES]) -> Position {
    let (mut double, mut word) = ([0; 8], [0; 4]);
    let mut doubles = |at: usize| {
        double.copy_from_slice(&row[at..at + 8]);
        u64::from_le_bytes(double)
    };
    let mut words = |at: usize| {
        word.copy_from_slice(&row[at..at + 4]);
        u32::from_le_bytes(word)
    };
    let score = TokenScore { nll: f64::from_bits(doubles(21)), top: words(29) };
    let other = TokenScore { nll: f64::from_bits(doubles(33)), top: words(41) };
    let reference = Reference { score: other, kld: f64::from_bits(doubles(45)) };
    let place = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    Position {
        prompt: place(doubles(0)),
        at: place(doubles(8)),
        token: words(16),
        score,
        reference: (row[20] & HAS_REFERENCE != 0).then_some(reference),
        is_scored: row[20] & IS_SCORED != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_keep_their_bits() {
        for (nll, has_reference) in
            [(f64::from_bits(0x7ff8_0000_0000_1234), true), (-0.0, false), (1.0 / 3.0, true)]
        {
            let score = TokenScore { nll, top: u32::MAX };
            let other = TokenScore { nll: f64::NEG_INFINITY, top: 7 };
            let reference = has_reference.then_some(Reference { score: other, kld: 5e-324 });
            let own =
                Position { prompt: 3, at: 1 << 40, token: 9, score, reference, is_scored: !has_reference };
            let mut bytes = Vec::new();
            push(&mut bytes, &own);
            let read = position(bytes.as_slice().try_into().unwrap());
            assert_eq!(read.score.nll.to_bits(), nll.to_bits());
            assert_eq!(Position { score, ..read }.reference, own.reference);
            assert_eq!((read.prompt, read.at, read.token, read.is_scored), (3, 1 << 40, 9, !has_reference));
        }
    }
}

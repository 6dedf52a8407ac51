//! Checks of the content of weights.

use crate::Result;
use std::collections::HashSet;

use crate::error::ArchError;
use crate::language::values::{Number, PIECE, WeightValues, elem_bytes, number, pieces};
use gguf_core::WeightMeta;

/// Maximum length of an index list that is checked.
const MAX_INDICES: u64 = 1 << 24;

impl WeightValues<'_> {
    /// Checks that every element of a weight is zero.
    pub(crate) fn require_zero(&self, name: &str) -> Result<()> {
        let Some((source, index, meta)) = self.weight(name) else { return Ok(()) };
        elem_bytes(meta).map_err(|_| not_numbers(meta))?;
        let mut found = 0;
        let is_zero = pieces(source, index, meta, 0..meta.shape.n_elems(), |number, at| {
            found = at;
            number.is_zero()
        })?;
        if is_zero { Ok(()) } else { Err(ArchError::NotZero { tensor: name.to_owned(), index: found }) }
    }

    /// Returns true if two weights have the same shape and the same values.
    pub(crate) fn are_equal(&self, name: &str, other: &str) -> Result<bool> {
        let meta = |name| self.by_name.get(name).and_then(|&index| self.source?.weights().get(index));
        match (meta(name), meta(other)) {
            (Some(a), Some(b)) if a.shape == b.shape => {}
            _ => return Ok(false),
        }
        let (Some((source, first, a)), Some((_, second, b))) = (self.weight(name), self.weight(other)) else {
            return Ok(false);
        };
        let (a_bytes, b_bytes) =
            (elem_bytes(a).map_err(|_| not_numbers(a))?, elem_bytes(b).map_err(|_| not_numbers(b))?);
        let n = a.shape.n_elems();
        let step = (PIECE / a_bytes.max(b_bytes)) as u64;
        let (mut left, mut right) = (Vec::new(), Vec::new());
        let mut at = 0;
        while at < n {
            let len = step.min(n - at) as usize;
            left.resize(len * a_bytes, 0);
            right.resize(len * b_bytes, 0);
            source.read_elems(first, at, &mut left)?;
            source.read_elems(second, at, &mut right)?;
            source.release_elems(first, at, len as u64);
            source.release_elems(second, at, len as u64);
            let numbers = |bytes: &'_ [u8], size, ty| -> Vec<Option<Number>> {
                bytes.chunks_exact(size).map(|bytes| number(ty, bytes)).collect()
            };
            let are_equal = (a.ty == b.ty && left == right)
                || numbers(&left, a_bytes, a.ty) == numbers(&right, b_bytes, b.ty);
            if !are_equal {
                return Ok(false);
            }
            at += len as u64;
        }
        Ok(true)
    }

    /// Checks that the elements of an index list, each plus its position, are below a limit and unique.
    pub(crate) fn check_indices(&self, name: &str, below: u64) -> Result<()> {
        let Some((source, index, meta)) = self.weight(name) else { return Ok(()) };
        let n = meta.shape.n_elems();
        if n > MAX_INDICES || elem_bytes(meta).is_err() {
            return Err(not_numbers(meta));
        }
        let mut seen = HashSet::new();
        let mut wrong = None;
        pieces(source, index, meta, 0..n, |number, at| {
            let Number::Int(int) = number else {
                wrong = Some((at, "is not an integer"));
                return false;
            };
            let sum = int + i128::from(at);
            if !(0..i128::from(below)).contains(&sum) {
                wrong = Some((at, "points outside the vocabulary"));
            } else if !seen.insert(sum) {
                wrong = Some((at, "points where another one points"));
            }
            wrong.is_none()
        })?;
        match wrong {
            None => Ok(()),
            Some((index, problem)) => Err(ArchError::Index { tensor: name.to_owned(), index, problem }),
        }
    }
}

fn not_numbers(meta: &WeightMeta) -> ArchError {
    ArchError::ElementType { tensor: meta.name.clone(), found: meta.ty }
}

//! What an operation keeps of a sequence from one token to the next: keys and values, and states. These are the values of
//! the computation, not the layout of [`crate::Continuation`], which spends more on speed.

use crate::exec::mask::Mask;
use gguf_core::GgmlType;

/// Multiple of tokens by which llama.cpp makes its caches.
const CELLS: u64 = 256;
/// Number of tokens that llama.cpp computes at once; the cache of a window has room for them in addition.
pub const STEP_TOKENS: u64 = 512;

/// Tokens of a sequence whose keys and values are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// All tokens.
    All,
    /// The last n tokens.
    Last(usize),
    /// One row for every n tokens.
    OnePer(usize),
}

impl Reach {
    /// Returns the tokens that a query with this mask may see.
    pub fn of(mask: Mask) -> Self {
        match mask {
            Mask::Causal | Mask::Full | Mask::Symmetric(_) => Self::All,
            Mask::Window(n) | Mask::Chunked(n) => Self::Last(n),
        }
    }

    /// Returns the number of rows that llama.cpp's cache has for a context of `n_ctx` tokens: a multiple of 256, and
    /// for a window also the tokens of a step.
    pub fn n_rows(self, n_ctx: u64) -> u64 {
        let padded = |n: u64| n.checked_next_multiple_of(CELLS).unwrap_or(n);
        let all = padded(n_ctx);
        match self {
            Self::All => all,
            Self::Last(n) => padded(all.min((n as u64).saturating_add(STEP_TOKENS))),
            Self::OnePer(n) => all.div_ceil((n as u64).max(1)),
        }
    }
}

/// Keys and values that a layer keeps of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeptRows {
    /// Number of heads.
    pub heads: usize,
    /// Width of a head's key.
    pub key: usize,
    /// Width of a head's value; 0 if values are computed from the keys.
    pub value: usize,
    /// Tokens that are kept.
    pub reach: Reach,
}

impl KeptRows {
    /// Returns true if the key and the value of a head are whole blocks of a type, as llama.cpp demands.
    pub fn fits(&self, ty: GgmlType) -> bool {
        [self.key, self.value].iter().all(|width| width.is_multiple_of(ty.block_elems()))
    }

    /// Returns the bytes for a context of `n_ctx` tokens. `None` if a row is not a whole number of the type's blocks, or
    /// larger than any memory.
    pub fn n_bytes(&self, n_ctx: u64, ty: GgmlType) -> Option<u64> {
        let of = |width: usize| ty.row_bytes((self.heads as u64).checked_mul(width as u64)?);
        of(self.key)?.checked_add(of(self.value)?)?.checked_mul(self.reach.n_rows(n_ctx))
    }
}

/// What a mixer or a layer keeps of a sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Keys and values.
    pub rows: Vec<KeptRows>,
    /// Values of states, which do not grow with the sequence. Runtimes keep them as F32.
    pub state: usize,
}

impl Kept {
    /// Keys and values only.
    pub fn rows(heads: usize, key: usize, value: usize, reach: Reach) -> Self {
        Self { rows: vec![KeptRows { heads, key, value, reach }], state: 0 }
    }

    /// A state only.
    pub fn state(state: usize) -> Self {
        Self { rows: Vec::new(), state }
    }

    /// What two operations of one layer keep together.
    pub fn and(mut self, other: Self) -> Self {
        self.rows.extend(other.rows);
        self.state = self.state.saturating_add(other.state);
        self
    }
}

/// What a model keeps of a sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptBySequence {
    /// Different keys and values, with the number of layers that keep them.
    pub rows: Vec<(KeptRows, usize)>,
    /// Number of layers that use the keys and values of an earlier layer.
    pub n_shared: usize,
    /// Number of layers with a state.
    pub n_states: usize,
    /// Values of all states.
    pub state: u64,
}

impl KeptBySequence {
    /// Returns the bytes of keys and values for a context of `n_ctx` tokens; `None` as [`KeptRows::n_bytes`].
    pub fn kv_bytes(&self, n_ctx: u64, ty: GgmlType) -> Option<u64> {
        self.rows.iter().try_fold(0_u64, |sum, (rows, n_layers)| {
            sum.checked_add(rows.n_bytes(n_ctx, ty)?.checked_mul(*n_layers as u64)?)
        })
    }

    /// Returns the bytes of the states.
    pub fn state_bytes(&self) -> u64 {
        self.state.saturating_mul(4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_have_whole_blocks_of_cells() {
        assert_eq!(Reach::All.n_rows(1000), 1024);
        assert_eq!(Reach::All.n_rows(8192), 8192);
        assert_eq!(Reach::Last(1024).n_rows(8192), 1536);
        assert_eq!(Reach::Last(100).n_rows(8192), 768);
        assert_eq!(Reach::Last(4096).n_rows(1024), 1024);
        assert_eq!(Reach::OnePer(128).n_rows(8192), 64);
        assert_eq!(Reach::All.n_rows(u64::MAX), u64::MAX);
    }

    #[test]
    fn rows_of_a_type_are_whole_blocks() {
        let rows = KeptRows { heads: 2, key: 32, value: 16, reach: Reach::All };
        assert_eq!(rows.n_bytes(256, GgmlType::F16), Some(256 * 192));
        assert_eq!(rows.n_bytes(256, GgmlType::Q8_0), Some(256 * 34 * 3));
        assert!(!rows.fits(GgmlType::Q8_0) && rows.fits(GgmlType::Bf16));
        assert!(KeptRows { value: 0, ..rows }.fits(GgmlType::Q8_0));
        let odd = KeptRows { heads: 1, ..rows };
        assert_eq!(odd.n_bytes(256, GgmlType::Q8_0), None);
        assert_eq!(rows.n_bytes(u64::MAX, GgmlType::F16), None);
    }
}

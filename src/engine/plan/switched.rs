//! Adapters that tokens turn on: low-rank additions to products, one of which each token takes (Granite Switch).

use crate::engine::plan::Matrix;

/// `y += up_s down_s x`, by the slot `s` of the token.
#[derive(Clone, Debug, PartialEq)]
pub struct Switched {
    /// To the rank, one per slot.
    pub down: Vec<Matrix>,
    /// From the rank, one per slot.
    pub up: Vec<Matrix>,
}

impl Switched {
    /// Floats per token: the gathered rows, what is between, what is added.
    fn floats_per_token(&self) -> usize {
        let width = |(down, up): (&Matrix, &Matrix)| down.n_cols + down.n_rows + up.n_rows;
        self.down.iter().zip(&self.up).map(width).max().unwrap_or(0)
    }
}

/// Additions to the products of an attention.
#[derive(Clone, Debug, PartialEq)]
pub struct SwitchedAttention {
    /// To the queries.
    pub q: Switched,
    /// To the keys.
    pub k: Switched,
    /// To the values.
    pub v: Switched,
    /// To the output.
    pub out: Switched,
}

impl SwitchedAttention {
    pub(super) fn floats_per_token(&self) -> usize {
        let parts = [&self.q, &self.k, &self.v, &self.out];
        parts.into_iter().map(Switched::floats_per_token).max().unwrap_or(0)
    }
}

/// Additions to the products of a feed-forward.
#[derive(Clone, Debug, PartialEq)]
pub struct SwitchedDense {
    /// To the gate, if there is one.
    pub gate: Option<Switched>,
    /// To the up projection.
    pub up: Switched,
    /// To the down projection.
    pub down: Switched,
}

impl SwitchedDense {
    pub(super) fn floats_per_token(&self) -> usize {
        let parts = self.gate.iter().chain([&self.up, &self.down]);
        parts.map(Switched::floats_per_token).max().unwrap_or(0)
    }
}

/// A token that turns an adapter on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchToken {
    /// Its id.
    pub token: u32,
    /// The token whose embedding stands in its place.
    pub substitute: u32,
}

/// What makes of tokens the slots of their adapters.
#[derive(Clone, Debug, PartialEq)]
pub struct Switch {
    /// The token of slot `i + 1` at `i`; slot 0 is no adapter.
    pub tokens: Vec<SwitchToken>,
    /// How much more a token of an adapter counts than another, as a logarithm: twice this.
    pub gain: f32,
}

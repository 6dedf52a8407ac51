//! Low-rank products: one matrix, or two with an activation in between, `second act(first x)`.

use crate::Result;
use crate::exec::buffers::Buffer;
use crate::exec::context::Context;
use crate::exec::product::Product;
use crate::exec::rowwise::ValueFunction;
use crate::exec::weights::Matrix;
use crate::resolve::resolver::Resolver;

/// One matrix, or two in sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct LowRank {
    /// First or only matrix.
    pub first: Matrix,
    /// Second matrix.
    pub second: Option<Matrix>,
}

impl LowRank {
    /// Returns the columns of the result.
    pub fn n_rows(&self) -> usize {
        self.second.as_ref().unwrap_or(&self.first).n_rows
    }

    /// Computes `second act(first x)`, or `first x`.
    pub(crate) fn run(
        &self,
        cx: &Context<'_>,
        x: &[f32],
        n_tokens: usize,
        act: ValueFunction,
    ) -> Result<Buffer> {
        let mut inner = cx.take(n_tokens * self.first.n_rows);
        cx.products(x, n_tokens, vec![Product::plain(&self.first, &mut inner)])?;
        let Some(second) = &self.second else { return Ok(inner) };
        cx.map_rows(act, None, &mut inner, self.first.n_rows);
        let mut out = cx.take(n_tokens * second.n_rows);
        cx.products(&inner, n_tokens, vec![Product::plain(second, &mut out)])?;
        cx.give([inner]);
        Ok(out)
    }

    /// Resolves two matrices, of which the second has the stream's width.
    pub(crate) fn resolve(b: &mut Resolver<'_>, first: &str, second: &str, rank: usize) -> Result<LowRank> {
        let n_embd = b.n_embd;
        let first = b.tensors.need_matrix(first, rank, n_embd)?;
        let second = b.tensors.need_matrix(second, n_embd, rank)?;
        Ok(LowRank { first, second: Some(second) })
    }
}

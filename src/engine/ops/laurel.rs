//! Residuals of low rank beside the mixer.

use crate::engine::EngineError;
use crate::engine::ops::product::Product;
use crate::engine::plan::Laurel;
use crate::engine::run::runner::Runner;

impl Runner<'_> {
    /// `x = (x + n + norm(R L n)) / sqrt(2)` of the normed input `n` of the layer, the same rows as `x`, `[n_tokens,
    /// n_embd]` (LAuReL, Menghani et al. 2024, as Gemma 3n has it behind the mixer: `Gemma3nTextDecoderLayer`).
    pub(crate) fn laurel(&self, laurel: &Laurel, normed: &[f32], x: &mut [f32]) -> Result<(), EngineError> {
        let n_embd = self.plan.n_embd;
        let n_tokens = x.len() / n_embd;
        let mut low = self.take(n_tokens * laurel.left.n_rows);
        self.products(normed, n_tokens, vec![Product::plain(&laurel.left, &mut low)])?;
        let mut added = self.take(x.len());
        self.products(&low, n_tokens, vec![Product::plain(&laurel.right, &mut added)])?;
        self.add_rows(x, &mut added, Some(&self.weights.norm(&laurel.post)?), 1.0, n_embd);
        added.copy_from_slice(normed);
        self.add_rows(x, &mut added, None, 1.0, n_embd);
        self.scale_rows(x, std::f32::consts::FRAC_1_SQRT_2);
        self.give([low, added]);
        Ok(())
    }
}

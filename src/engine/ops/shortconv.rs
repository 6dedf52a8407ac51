//! Gated short convolutions (LFM2): `out(c · conv(b · x))`.

use crate::engine::EngineError;
use crate::engine::ops::product::Product;
use crate::engine::ops::recurrence::{ConvEnd, LoadedConv};
use crate::engine::plan::ShortConv;
use crate::engine::run::batch::ChunkBatch;
use crate::engine::run::runner::Runner;

fn multiply(y: &mut [f32], x: &[f32]) {
    y.iter_mut().zip(x).for_each(|(y, &x)| *y *= x);
}

impl Runner<'_> {
    /// The convolution of the normed input `x` (`[n_tokens, n_embd]`) into `out`, the wanted rows.
    pub(crate) fn shortconv(
        &self,
        m: &ShortConv,
        batch: &ChunkBatch,
        x: &[f32],
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let (n_tokens, width) = (batch.n_tokens(), m.x.n_rows);
        let [mut u, mut b, mut c, mut y] = [(); 4].map(|()| self.take(n_tokens * width));
        let products =
            vec![Product::plain(&m.b, &mut b), Product::plain(&m.c, &mut c), Product::plain(&m.x, &mut u)];
        self.products(x, n_tokens, products)?;
        self.each_row((&mut u, width), (&b, width), multiply);
        let conv = LoadedConv::new(&self.weights, &m.conv)?;
        self.convolve(&conv, batch, &u, &mut y, ConvEnd::Plain)?;
        self.slot("conv", &y, width);
        self.each_row((&mut y, width), (&c, width), multiply);
        let wanted = batch.select(&y, width);
        self.products(&wanted, batch.n_wanted(), vec![Product::plain(&m.out, out)])?;
        drop(wanted);
        self.give([u, b, c, y]);
        Ok(())
    }
}

//! Gated short convolution (LFM2): `out(c · conv(b · x))`.

use crate::Result;
use crate::exec::batch::ChunkBatch;
use crate::exec::context::Context;
use crate::exec::product::Product;
use crate::exec::weights::Matrix;
use crate::ops::conv::{Conv, ConvEnd, LoadedConv};
use crate::ops::kept::Kept;
use crate::ops::mixer::{BranchEnd, MixerOp};
use crate::resolve::resolver::Resolver;

/// Gated short convolution: `out(c conv(b x))`.
#[derive(Clone, Debug, PartialEq)]
pub struct ShortConv {
    /// Gate before the convolution.
    pub b: Matrix,
    /// Gate after the convolution.
    pub c: Matrix,
    /// Projection to the convolution's input.
    pub x: Matrix,
    /// Convolution.
    pub conv: Conv,
    /// Output projection.
    pub out: Matrix,
}

fn multiply(y: &mut [f32], x: &[f32]) {
    y.iter_mut().zip(x).for_each(|(y, &x)| *y *= x);
}

impl MixerOp for ShortConv {
    fn run(&self, cx: &Context<'_>, batch: &ChunkBatch, x: &[f32], out: &mut [f32]) -> Result<()> {
        let (n_tokens, width) = (batch.n_tokens(), self.x.n_rows);
        let [mut u, mut b, mut c, mut y] = [(); 4].map(|()| cx.take(n_tokens * width));
        let products = vec![
            Product::plain(&self.b, &mut b),
            Product::plain(&self.c, &mut c),
            Product::plain(&self.x, &mut u),
        ];
        cx.products(x, n_tokens, products)?;
        cx.each_row(&mut u, width, &b, width, multiply);
        let conv = LoadedConv::new(&cx.weights, &self.conv)?;
        conv.run(cx, batch, &u, &mut y, ConvEnd::Plain)?;
        cx.slot("conv", &y, width);
        cx.each_row(&mut y, width, &c, width, multiply);
        let wanted = batch.select(&y, width);
        cx.products(&wanted, batch.n_wanted(), vec![Product::plain(&self.out, out)])?;
        drop(wanted);
        cx.give([u, b, c, y]);
        Ok(())
    }

    fn end(&self) -> Option<BranchEnd<'_>> {
        BranchEnd::of(&self.out, 1.0)
    }

    fn remembered(&self, _: usize) -> Result<usize, &'static str> {
        Ok(self.conv.remembered(self.x.n_rows))
    }

    fn kept(&self) -> Kept {
        Kept::state(self.conv.remembered(self.x.n_rows))
    }

    fn thread_bytes(&self, _: usize) -> usize {
        0
    }
}

impl ShortConv {
    pub(crate) fn resolve(resolver: &mut Resolver<'_>, layer: usize) -> Result<ShortConv> {
        let at = |name: &str| format!("blk.{layer}.shortconv.{name}");
        let n_embd = resolver.n_embd;
        let n_taps = resolver.keys.need_count("shortconv.l_cache")?;
        let [b, c, x] = resolver.cut(&at("in_proj"), [n_embd; 3], n_embd)?;
        let conv = Conv::resolve(resolver, &at("conv"), n_embd, n_taps)?;
        let out = resolver.tensors.need_matrix(&at("out_proj"), n_embd, n_embd)?;
        Ok(ShortConv { b, c, x, conv, out })
    }
}

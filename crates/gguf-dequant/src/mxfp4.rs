//! gpt-oss: stacks of experts in MXFP4, `<name>_blocks` of `[.., columns / 32, 16]` bytes and `<name>_scales`.
//!
//! # Layout
//! Element 2j is the low nibble of byte j; rows of `gate_up` alternate. `W = e2m1 · 2^(e - 127)`, subnormals kept.

use crate::fp4::Fp4;
use crate::{Result, Settings, Tensors};
use gguf_core::ElementType;

/// Plans all stacks of `mxfp4`.
pub(super) fn plan(settings: &Settings, tensors: &mut Tensors<'_>) -> Result<()> {
    for (name, blocks) in tensors.ending("_blocks") {
        let scales = tensors.member(name, "_scales")?;
        settings.check_no_glob(name)?;
        tensors.check_type(blocks, &[ElementType::U8])?;
        let meta = tensors.meta(blocks);
        let (outer, n_blocks) = match meta.shape.dims() {
            [outer @ .., n_blocks, 16] if !outer.is_empty() => (outer, *n_blocks),
            _ => {
                return Err(tensors.shape_error(blocks, "blocks of 16 bytes in the last dimension"));
            }
        };
        tensors.check_shape(scales, &[outer, &[n_blocks]].concat())?;
        let n_cols = n_blocks.checked_mul(32);
        let shape = tensors.weight_shape(blocks, n_cols.map(|n_cols| [outer, &[n_cols]].concat()))?;
        let coded = Fp4::mx(tensors, blocks, scales, &shape)?;
        tensors.replace(blocks, name.to_owned(), shape, Box::new(coded));
    }
    Ok(())
}

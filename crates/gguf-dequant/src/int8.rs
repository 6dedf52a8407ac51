//! One signed byte per weight with a scale for the matrix, for each row, or for each block: `scale · code`.
//!
//! # Layout
//! SGLang's `w8a8_int8`: `weight` I8, `weight_scale` `[out, 1]`; `blockwise_int8`: `weight_scale_inv`
//! `[⌈out/R⌉, ⌈in/C⌉]` with `weight_block_size` R × C. ModelOpt: `weight_scale` `[out]`.

use crate::fp8::{self, ScaleLayout};
use crate::grouped::{CodeLayout, ColumnGroups, GroupLayout, Grouped, ScaleOrder, Zeros};
use crate::values::{NumberTensor, SCALE_TYPES};
use crate::{Result, Settings, Tensors};
use gguf_core::ElementType;

/// Plans all modules of `w8a8_int8` and `blockwise_int8`.
pub(super) fn plan(settings: &Settings, tensors: &mut Tensors<'_>) -> Result<()> {
    let block = fp8::block_size(settings)?;
    for suffix in [".weight_scale_inv", ".weight_scale"] {
        for module in tensors.coded_modules(suffix, ".weight", |ty| ty == ElementType::I8) {
            settings.check_not_ignored(&tensors.meta(module.codes).name)?;
            let grid = block.unwrap_or(ScaleLayout::Row);
            let coded = matrix(tensors, module.codes, module.scale, grid)?;
            tensors.decode_in_place(module.codes, Box::new(coded));
        }
    }
    Ok(())
}

/// Creates a matrix of signed bytes; without blocks, by the number of scales.
pub(super) fn matrix(
    tensors: &Tensors<'_>,
    codes: usize,
    scale: usize,
    grid: ScaleLayout,
) -> Result<Grouped> {
    tensors.check_type(codes, &[ElementType::I8])?;
    let scales = NumberTensor::new(tensors, scale, &SCALE_TYPES)?;
    let (n_rows, n_cols) = tensors.matrix(codes)?;
    let (order, size) = match grid {
        ScaleLayout::Block { rows, cols } => {
            let stride = n_cols.div_ceil(cols);
            tensors.check_shape(scale, &[n_rows.div_ceil(rows), stride])?;
            (ScaleOrder::Blocks { rows, stride }, cols)
        }
        _ if scales.n == 1 => (ScaleOrder::RowMajor { stride: 0 }, n_cols.max(1)),
        _ => {
            NumberTensor::by_row(tensors, scale, &SCALE_TYPES, n_rows)?;
            (ScaleOrder::RowMajor { stride: 1 }, n_cols.max(1))
        }
    };
    Ok(Grouped {
        codes: CodeLayout::Bytes(codes),
        code_range: (-128, 127),
        zeros: Zeros::Const(0),
        scales,
        order,
        groups: ColumnGroups::Runs(size),
        n_groups: n_cols.div_ceil(size),
        n_rows,
        n_cols,
        members: vec![codes, scale],
        layout: GroupLayout { group_size: size, is_symmetric: true },
    })
}

/// Creates ModelOpt's matrix of 4-bit integers: a byte has those of two rows, in two's complement, the even row in the
/// low nibble; `scale` is `[out, groups]`.
pub(super) fn row_pairs(tensors: &Tensors<'_>, codes: usize, scale: usize) -> Result<Grouped> {
    tensors.check_type(codes, &[ElementType::U8])?;
    let scales = NumberTensor::new(tensors, scale, &SCALE_TYPES)?;
    let ((n_pairs, n_cols), (n_rows, n_groups)) = (tensors.matrix(codes)?, tensors.matrix(scale)?);
    if n_groups == 0 || !n_cols.is_multiple_of(n_groups) || n_rows != n_pairs.saturating_mul(2) {
        return Err(
            tensors.shape_error(scale, format!("{n_pairs} pairs of rows, groups of {n_cols} columns"))
        );
    }
    let size = (n_cols / n_groups).max(1);
    Ok(Grouped {
        codes: CodeLayout::RowPairs(codes),
        code_range: (0, 15),
        zeros: Zeros::Const(8),
        scales,
        order: ScaleOrder::RowMajor { stride: n_groups },
        groups: ColumnGroups::Runs(size),
        n_groups,
        n_rows,
        n_cols,
        members: vec![codes, scale],
        layout: GroupLayout { group_size: size, is_symmetric: true },
    })
}

//! Arguments of a quantization scheme, with the defaults and spellings of compressed-tensors' `QuantizationArgs`.

use serde_json::Value;

use crate::grouped::ScaleOrder;
use crate::{Result, Settings, Tensors};

/// Granularity of the scales of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strategy {
    Tensor,
    Channel,
    Group(u64),
    Block(u64, u64),
}

/// Scales of a matrix.
pub(super) struct ScaleGroups {
    pub(super) order: ScaleOrder,
    /// Groups per row.
    pub(super) n_groups: u64,
    /// Columns per group.
    pub(super) size: u64,
}

/// Returns a word in lower case, as it is compared there.
fn word(weights: &Settings, key: &str) -> Result<Option<String>> {
    Ok(weights.text(key)?.map(str::to_ascii_lowercase))
}

/// Returns true if codes are floats.
pub(super) fn is_float(weights: &Settings) -> Result<bool> {
    Ok(word(weights, "type")?.as_deref() == Some("float"))
}

pub(super) fn num_bits(weights: &Settings) -> Result<u32> {
    match weights.int("num_bits")?.unwrap_or(8) {
        bits @ 1..=8 => Ok(bits as u32),
        bits => Err(weights.bad("num_bits", &format!("is {bits}, expected 1 to 8"))),
    }
}

/// Returns the granularity; without a word for it, that of the size of groups.
pub(super) fn strategy(weights: &Settings) -> Result<Strategy> {
    let size = weights.int("group_size")?;
    match (word(weights, "strategy")?.as_deref(), size) {
        (None, None) | (Some("tensor"), _) => Ok(Strategy::Tensor),
        (None, Some(-1)) | (Some("channel"), _) => Ok(Strategy::Channel),
        (None | Some("group" | "tensor_group"), size) => match size.map(u64::try_from) {
            Some(Ok(size)) if size > 0 => Ok(Strategy::Group(size)),
            _ => Err(weights.bad("group_size", "must be a positive number")),
        },
        (Some("block"), _) => block(weights),
        (Some(name), _) => Err(weights.variant("strategy", name, "expected tensor, channel, group or block")),
    }
}

/// Reads `block_structure`: a list, or text like `128x128`.
fn block(weights: &Settings) -> Result<Strategy> {
    const KEY: &str = "block_structure";
    let sizes: Option<Vec<u64>> = match weights.map.get(KEY) {
        Some(Value::Array(sizes)) => sizes.iter().map(Value::as_u64).collect(),
        Some(Value::String(text)) => text.split('x').map(|size| size.trim().parse().ok()).collect(),
        _ => None,
    };
    match sizes.as_deref() {
        Some(&[rows, cols]) if rows > 0 && cols > 0 => Ok(Strategy::Block(rows, cols)),
        _ => Err(weights.bad(KEY, "must be two positive numbers")),
    }
}

/// Returns the groups of a matrix, after a check of the shape of the scales.
pub(super) fn scale_groups(
    weights: &Settings,
    tensors: &Tensors<'_>,
    scale: usize,
    n_rows: u64,
    n_cols: u64,
) -> Result<ScaleGroups> {
    let found = tensors.meta(scale).shape.dims().to_vec();
    let by_row =
        |stride| ScaleGroups { order: ScaleOrder::RowMajor { stride }, n_groups: 1, size: n_cols.max(1) };
    match strategy(weights)? {
        Strategy::Tensor if tensors.meta(scale).shape.n_elems() == 1 => Ok(by_row(0)),
        Strategy::Channel if found == [n_rows, 1] || found == [n_rows] => Ok(by_row(1)),
        Strategy::Group(size) => {
            let n_groups = n_cols.div_ceil(size);
            if found == [n_rows, n_groups] {
                let order = ScaleOrder::RowMajor { stride: n_groups };
                return Ok(ScaleGroups { order, n_groups, size });
            }
            let is_rows = found.len() == 2 && found[0] == n_rows;
            if !is_rows {
                return Err(tensors.shape_error(scale, format!("[{n_rows}, {n_groups}]")));
            }
            let configured = format!("{size}, {n_groups} groups for {n_cols} inputs");
            let tensor = &tensors.meta(scale).name;
            Err(weights.conflict("group_size", configured, tensor, format!("{} groups", found[1])))
        }
        Strategy::Block(rows, size) => {
            let n_groups = n_cols.div_ceil(size);
            tensors.check_shape(scale, &[n_rows.div_ceil(rows), n_groups])?;
            Ok(ScaleGroups { order: ScaleOrder::Blocks { rows, stride: n_groups }, n_groups, size })
        }
        Strategy::Tensor => Err(tensors.shape_error(scale, "1 element")),
        Strategy::Channel => Err(tensors.shape_error(scale, format!("[{n_rows}, 1]"))),
    }
}

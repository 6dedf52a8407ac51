//! Unit of columns: eight that share their signs, one vector of a grid or two of four.

use gguf_blocks::grid_states::SIGNED;

pub(crate) const UNIT: usize = SIGNED;

/// One number for each column of a unit.
pub(crate) type Unit = [f32; UNIT];

/// Metric of a unit: the block of `H_r` for its columns.
pub(crate) type UnitMetric = [Unit; UNIT];

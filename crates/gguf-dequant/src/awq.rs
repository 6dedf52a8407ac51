//! AWQ: 4-bit codes, packed along the outputs in AWQ's own order (`gemm`) or along the inputs (`gemv`).
//!
//! # Layout
//! `gemm`: `qweight` I32 `[in, out/8]`, `qzeros` I32 `[G, out/8]`, `scales` `[G, out]`; column `8w + c` is nibble
//! `[0, 4, 1, 5, 2, 6, 3, 7][c]` of word `w`. `gemv`: `qweight` `[out, in/8]` with nibbles in order, `scales` `[out, 8Z]`
//! padded to whole words. Zeros are stored unchanged: `W[o,i] = scales · (code - zero)`.

use crate::bits::{CodeStream, WordLayout};
use crate::gptq::group_size;
use crate::grouped::{self, CodeLayout, ColumnGroups, Grouped, ScaleOrder, ZeroShift, Zeros};
use crate::values::{NumberTensor, SCALE_TYPES};
use crate::{Result, Settings, Tensors};
use gguf_core::ElementType;

const BITS: u32 = 4;
const PER_WORD: u64 = 8;

/// Packing layouts, by the shape of the words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AwqVersion {
    /// Words `[in, out / 8]`, packed along outputs.
    Gemm,
    /// Words `[out, in / 8]`, packed along inputs.
    Gemv,
}

/// Plans all modules of `awq`.
///
/// # Errors
/// [`DequantError`]: layouts for one GPU kernel, settings that contradict the tensors, incomplete modules.
pub(super) fn plan(settings: &Settings, tensors: &mut Tensors<'_>) -> Result<()> {
    let bits = settings.int("bits")?.or(settings.int("w_bit")?);
    if let Some(bits) = bits.filter(|bits| *bits != i64::from(BITS)) {
        return Err(settings.bad("bits", &format!("is {bits}, AWQ has 4")));
    }
    let (mut key, mut version) = ("version", None);
    for name in ["version", "format", "checkpoint_format"] {
        if version.is_none() {
            (key, version) = (name, settings.text(name)?.map(str::to_ascii_lowercase));
        }
    }
    let version = match version.as_deref() {
        None | Some("gemm" | "exllama" | "ipex") => AwqVersion::Gemm,
        Some("gemv") => AwqVersion::Gemv,
        Some(name @ ("gemv_fast" | "marlin" | "llm-awq")) => {
            return Err(settings.variant(key, name, "weights are interleaved for a GPU kernel"));
        }
        Some(name) => return Err(settings.variant(key, name, "expected gemm, exllama or gemv")),
    };
    if let Some((module, _)) = tensors.ending(".act.scales").first() {
        let reason = "an activation is scaled at run time";
        return Err(settings.variant("version", &format!("{module}.act.scales"), reason));
    }
    plan_modules(settings, tensors, version)
}

pub(super) fn plan_modules(
    settings: &Settings,
    tensors: &mut Tensors<'_>,
    version: AwqVersion,
) -> Result<()> {
    for (module, _) in tensors.ending(".qweight") {
        put(settings, tensors, module, version)?;
    }
    Ok(())
}

fn put(settings: &Settings, tensors: &mut Tensors<'_>, module: &str, version: AwqVersion) -> Result<()> {
    let qweight = tensors.member(module, ".qweight")?;
    let scales = tensors.member(module, ".scales")?;
    let qzeros = match tensors.find(&format!("{module}.qzeros")) {
        None if settings.bool("zero_point")? == Some(false) => None,
        _ => Some(tensors.member(module, ".qzeros")?),
    };
    settings.check_not_ignored(&format!("{module}.weight"))?;
    tensors.check_no_plain(module, qweight)?;
    tensors.check_type(qweight, &[ElementType::I32])?;
    let scale_values = NumberTensor::new(tensors, scales, &SCALE_TYPES)?;
    let (outer, words) = tensors.matrix(qweight)?;
    let inner = words
        .checked_mul(PER_WORD)
        .ok_or_else(|| tensors.shape_error(qweight, "a size that fits 63 bits"))?;
    let (n_rows, n_cols) = if version == AwqVersion::Gemm { (inner, outer) } else { (outer, inner) };
    let size = group_size(settings)?.unwrap_or(n_cols.max(1));
    let n_groups = n_cols.div_ceil(size);
    // `Gemv` pads the groups of a row to whole words, and small groups to 2 or 4 words.
    let padded = n_groups.div_ceil(PER_WORD).next_multiple_of(match size {
        0..=32 => 4,
        33..=64 => 2,
        _ => 1,
    });
    let wanted = match version {
        AwqVersion::Gemm => [n_groups, n_rows],
        AwqVersion::Gemv => [n_rows, padded * PER_WORD],
    };
    if tensors.meta(scales).shape.dims() != wanted {
        let text = format!("{wanted:?}: {n_groups} groups of {size} for {n_cols} inputs");
        return Err(tensors.shape_error(scales, text));
    }
    let mut members = vec![qweight, scales];
    let zeros = match qzeros {
        None => Zeros::Const(8),
        Some(qzeros) => {
            tensors.check_type(qzeros, &[ElementType::I32])?;
            members.push(qzeros);
            match version {
                AwqVersion::Gemm => {
                    tensors.check_shape(qzeros, &[n_groups, words])?;
                    Zeros::ByGroup(stream(qzeros, WordLayout::Awq, words), ZeroShift::None)
                }
                AwqVersion::Gemv => {
                    tensors.check_shape(qzeros, &[n_rows, padded])?;
                    Zeros::ByRow(stream(qzeros, WordLayout::Dense, padded))
                }
            }
        }
    };
    let (codes, order) = match version {
        AwqVersion::Gemm => {
            (CodeLayout::ByColumn(stream(qweight, WordLayout::Awq, words)), ScaleOrder::GroupMajor)
        }
        AwqVersion::Gemv => {
            let order = ScaleOrder::RowMajor { stride: padded * PER_WORD };
            (CodeLayout::ByRow(stream(qweight, WordLayout::Dense, words)), order)
        }
    };
    // AutoRound uses GPTQ's key `sym`.
    let is_symmetric = settings.is_set_to("zero_point", false) || settings.is_set_to("sym", true);
    let name = format!("{module}.weight");
    let coded = Grouped {
        codes,
        code_range: (0, 15),
        zeros,
        scales: scale_values,
        order,
        groups: ColumnGroups::Runs(size),
        n_groups,
        n_rows,
        n_cols,
        members,
        layout: grouped::GroupLayout { group_size: size, is_symmetric },
    };
    let shape = tensors.weight_shape(qweight, Some(vec![n_rows, n_cols]))?;
    tensors.append(name, shape, Box::new(coded));
    Ok(())
}

fn stream(index: usize, layout: WordLayout, stride: u64) -> CodeStream {
    CodeStream { index, bits: BITS, layout, step: 1, stride }
}

//! Gemma as Google publishes it quantized: 2, 4 or 8 bits by rows, embeddings too.
//!
//! # Layout
//! `weight` I8 `[out, in]`, or U8 `[out, in · bits / 8]` with the first code in the lowest bits, shifted up by half of
//! its range; `weight_scale` F32 `[out, 1]`. Embeddings: `embedding_quantized`, and `embedding_scale` with one or more
//! scales a row. Activations are rounded at run time by `input_activation_scale` and `output_activation_scale`.

use serde_json::Value;

use crate::patterns::{ModulePattern, Patterns};
use crate::rectangle::Rectangle;
use crate::values::{NumberTensor, SCALE_TYPES, ScaleLines, each_stretch};
use crate::{CodedWeight, InnerSource, Result, Settings, Tensors};
use gguf_core::ElementType;

/// Suffixes of codes and scales of a module.
const NAMES: [(&str, &str); 2] = [(".weight", ".weight_scale"), (".embedding_quantized", ".embedding_scale")];
const BITS: &str = "num_bits";
const BY_MODULE: &str = "module_quant_configs";

struct GemmaWeight {
    codes: usize,
    bits: u32,
    scales: NumberTensor,
    n_cols: u64,
    /// Columns per scale.
    group: u64,
    members: [usize; 2],
}

/// Plans all modules of `gemma`.
///
/// # Errors
/// [`DequantError`]: other widths, tensors that are missing or do not fit.
pub(super) fn plan(settings: &Settings, tensors: &mut Tensors<'_>) -> Result<()> {
    let widths = Widths::of(settings)?;
    for (of_codes, of_scales) in NAMES {
        let is_code = |ty| matches!(ty, ElementType::I8 | ElementType::U8);
        for found in tensors.coded_modules(of_scales, of_codes, is_code) {
            settings.check_not_ignored(&format!("{}.weight", found.name))?;
            let (n_rows, n_bytes) = tensors.matrix(found.codes)?;
            let bits = if tensors.meta(found.codes).ty == ElementType::I8 {
                8
            } else {
                widths.bits(settings, found.name)?
            };
            let n_cols = n_bytes.checked_mul(u64::from(8 / bits));
            let shape = tensors.weight_shape(found.codes, n_cols.map(|n_cols| vec![n_rows, n_cols]))?;
            let scales = NumberTensor::new(tensors, found.scale, &SCALE_TYPES)?;
            let n_groups = scales.n.checked_div(n_rows).unwrap_or(0);
            if n_groups == 0 || scales.n % n_rows != 0 || !shape.n_cols().is_multiple_of(n_groups) {
                return Err(
                    tensors.shape_error(found.scale, format!("one or more for each of {n_rows} rows"))
                );
            }
            let coded = GemmaWeight {
                codes: found.codes,
                bits,
                scales,
                n_cols: shape.n_cols(),
                group: shape.n_cols() / n_groups,
                members: [found.codes, found.scale],
            };
            tensors.replace(found.codes, format!("{}.weight", found.name), shape, Box::new(coded));
        }
    }
    Ok(())
}

/// Bits of packed codes: those of all modules, and of modules whose names match patterns.
struct Widths {
    all: i64,
    by_module: Vec<(ModulePattern, i64)>,
}

impl Widths {
    fn of(settings: &Settings) -> Result<Self> {
        let all = settings.int(BITS)?.unwrap_or(4);
        let rows = settings.map.get(BY_MODULE).filter(|value| !value.is_null());
        let rows = match rows {
            None => None,
            Some(Value::Object(rows)) => Some(rows),
            Some(_) => return Err(settings.bad(BY_MODULE, "must be an object")),
        };
        let mut patterns = Patterns::default();
        let row = |(pattern, own): (&String, &Value)| {
            // The pattern may stand anywhere in the name, as for Python's `re.search`.
            let compiled = patterns.compile(&format!("(?s:.*)(?:{pattern})")).map_err(|error| {
                settings.bad(BY_MODULE, &format!("has the pattern `{pattern}`, which {}", error.what()))
            })?;
            Ok((compiled, own.get(BITS).and_then(Value::as_i64).unwrap_or(all)))
        };
        let by_module = rows.into_iter().flatten().map(row).collect::<Result<_>>()?;
        Ok(Self { all, by_module })
    }

    fn bits(&self, settings: &Settings, module: &str) -> Result<u32> {
        let own = self.by_module.iter().find(|(pattern, _)| pattern.is_match(module));
        match own.map_or(self.all, |row| row.1) {
            2 => Ok(2),
            4 => Ok(4),
            other => Err(settings.variant(BITS, &other.to_string(), "bytes hold codes of 2 or 4 bits")),
        }
    }
}

impl CodedWeight for GemmaWeight {
    fn decode(&self, inner: InnerSource<'_>, part: &Rectangle, out: &mut [f32]) -> Result<()> {
        let lines = ScaleLines { n_cols: self.n_cols, width: self.group };
        let (per_byte, half) = (u64::from(8 / self.bits), 1i16 << (self.bits - 1));
        let mask = (1u16 << self.bits) - 1;
        each_stretch(lines, part, out, |line, cols, out| {
            let scale = self.scales.get(inner, line)?;
            let first = line * self.group + cols.start;
            let bytes = first / per_byte..(first + out.len() as u64).div_ceil(per_byte);
            inner.with_elems(self.codes, bytes, |bytes| {
                for (at, out) in (first % per_byte..).zip(out.iter_mut()) {
                    let byte = bytes[(at / per_byte) as usize];
                    let field = u16::from(byte) >> (at % per_byte * u64::from(self.bits)) & mask;
                    let code = if self.bits == 8 { i16::from(byte as i8) } else { field as i16 - half };
                    *out = f32::from(code) * scale;
                }
            })?;
            Ok(())
        })
    }

    fn members(&self) -> &[usize] {
        &self.members
    }

    fn form(&self) -> String {
        format!("{} bit, {}", self.bits, crate::encoding::along_rows(self.group, self.n_cols))
    }
}

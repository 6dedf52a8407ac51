//! Conversion of blocks to the integers and scales of [`IntegerForm`], for products in integers.

use gguf_core::{GgmlType, IntegerForm, simd::SimdLevel};

use super::{QuantError, bytes_of, check_level, codec};

/// Integers and scales of consecutive blocks.
#[derive(Debug)]
pub struct IntegerRow<'a> {
    /// Integer of each element: its code times the scale of its part.
    pub values: &'a mut [i16],
    /// Scales, one for each [`IntegerForm::scaled`] elements.
    pub scales: &'a mut [f32],
    /// Minima, one for each [`gguf_core::IntegerMinima::shared`] elements; not written for types without minima.
    pub minima: &'a mut [i16],
    /// Scales of the minima, one for each scale; not written for types without minima.
    pub min_scales: &'a mut [f32],
}

/// Integers and scales of one block of `E` elements.
pub(crate) struct IntegerBlock<'a, const E: usize> {
    pub(crate) values: &'a mut [i16; E],
    pub(crate) scales: &'a mut [f32],
    pub(crate) minima: &'a mut [i16],
    pub(crate) min_scales: &'a mut [f32],
}

/// Splits blocks of checked lengths at a level that the machine has.
pub(crate) type IntegersFn = fn(SimdLevel, &IntegerForm, &[u8], IntegerRow<'_>);

/// Integers of one type.
pub(crate) struct IntegerCodec {
    /// Form of the integers.
    pub form: IntegerForm,
    /// Decoder from blocks.
    pub decode: IntegersFn,
}

/// Runs `f` over blocks of `B` bytes and `E` elements.
#[inline(always)]
pub(crate) fn split_blocks<const B: usize, const E: usize>(
    form: &IntegerForm,
    src: &[u8],
    out: IntegerRow<'_>,
    f: impl Fn(&[u8; B], &mut IntegerBlock<'_, E>),
) {
    let IntegerRow { values, mut scales, mut minima, mut min_scales } = out;
    let n_scales = E / form.scaled;
    let (n_minima, n_min_scales) = match form.n_minima() {
        0 => (0, 0),
        each => (n_scales * each, n_scales),
    };
    for (block, values) in src.as_chunks::<B>().0.iter().zip(values.as_chunks_mut::<E>().0) {
        let (scales_here, scales_later) = scales.split_at_mut(n_scales);
        let (minima_here, minima_later) = minima.split_at_mut(n_minima);
        let (min_scales_here, min_scales_later) = min_scales.split_at_mut(n_min_scales);
        (scales, minima, min_scales) = (scales_later, minima_later, min_scales_later);
        f(
            block,
            &mut IntegerBlock {
                values,
                scales: scales_here,
                minima: minima_here,
                min_scales: min_scales_here,
            },
        );
    }
}

/// Defines a decoder to integers, compiled for every level: `integer_decoder!(name = load)` with
/// `load(&[u8; B], &mut IntegerBlock<'_, E>)`.
macro_rules! integer_decoder {
    ($name:ident = $load:expr) => {
        fn $name(
            level: gguf_core::simd::SimdLevel,
            form: &gguf_core::IntegerForm,
            src: &[u8],
            out: $crate::integers::IntegerRow<'_>,
        ) {
            struct Decode<'a>(&'a gguf_core::IntegerForm, &'a [u8], $crate::integers::IntegerRow<'a>);
            impl gguf_core::simd::VectorLoop for Decode<'_> {
                type Output = ();

                #[inline(always)]
                fn run(self) {
                    $crate::integers::split_blocks(self.0, self.1, self.2, $load);
                }
            }
            level.vectorize(Decode(form, src, out));
        }
    };
}

pub(crate) use integer_decoder;

/// Returns the form of a type's elements as integers; `None` for types that hold floats or activations.
#[must_use]
pub fn integer_form(ty: GgmlType) -> Option<IntegerForm> {
    codec(ty)?.integers.as_ref().map(|integers| integers.form)
}

/// Splits blocks into integers and scales.
///
/// # Shapes
/// `src` holds whole blocks and `out.values` one integer per element. The other slices are long enough for all scales
/// and minima.
///
/// # Exactness
/// Integers, scales and minima are exact. [`crate::dequantize`] rounds their products.
///
/// # Errors
/// [`QuantError`]: a type without integers, lengths that do not fit together, a level this machine lacks.
pub fn integers(ty: GgmlType, level: SimdLevel, src: &[u8], out: IntegerRow<'_>) -> Result<(), QuantError> {
    let codec = codec(ty).and_then(|codec| codec.integers.as_ref()).ok_or(QuantError::NotASource { ty })?;
    check_level(level)?;
    let (form, n_elems) = (&codec.form, out.values.len());
    if !n_elems.is_multiple_of(ty.block_elems()) {
        return Err(QuantError::Columns { ty, n_cols: n_elems });
    }
    let expected = bytes_of(ty, n_elems / ty.block_elems())?;
    if src.len() != expected {
        return Err(QuantError::Length { ty, expected, found: src.len() });
    }
    let n_scales = n_elems / form.scaled;
    let n_minima = n_scales * form.n_minima();
    let n_min_scales = if n_minima == 0 { 0 } else { n_scales };
    for (expected, found) in
        [(n_scales, out.scales.len()), (n_minima, out.minima.len()), (n_min_scales, out.min_scales.len())]
    {
        if found < expected {
            return Err(QuantError::Length { ty, expected, found });
        }
    }
    (codec.decode)(level, form, src, out);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CODECS, dequantize};

    /// Integers, scales, minima and their scales of blocks.
    type Split = (Vec<i16>, Vec<f32>, Vec<i16>, Vec<f32>);

    fn split(ty: GgmlType, level: SimdLevel, blocks: &[u8]) -> Split {
        let n = blocks.len() / ty.block_bytes() * ty.block_elems();
        let mut out = (vec![7; n], vec![7.0; n / 16], vec![7; n / 16], vec![7.0; n / 16]);
        let row =
            IntegerRow { values: &mut out.0, scales: &mut out.1, minima: &mut out.2, min_scales: &mut out.3 };
        integers(ty, level, blocks, row).unwrap();
        out
    }

    /// Blocks of random bytes, all zeros and all ones, whose scales are finite.
    fn blocks(ty: GgmlType) -> Vec<u8> {
        let mut state = 88172645463325252u64;
        let mut blocks = Vec::new();
        for index in 0..400 {
            let mut block: Vec<u8> = (0..ty.block_bytes())
                .map(|_| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    match index {
                        0 => 0,
                        1 => 0x3b,
                        2 => 0xbb,
                        _ => state as u8,
                    }
                })
                .collect();
            if crate::validate_blocks(ty, &block).is_err() {
                block.fill(0x33);
            }
            blocks.extend(block);
        }
        blocks
    }

    #[test]
    fn integers_times_scales_are_the_elements() {
        let mut n_types = 0;
        for ty in CODECS.iter().filter(|codec| codec.integers.is_some()).map(|codec| codec.ty) {
            n_types += 1;
            let form = integer_form(ty).unwrap();
            let blocks = blocks(ty);
            let (values, scales, minima, min_scales) = split(ty, SimdLevel::Scalar, &blocks);
            let mut floats = vec![0.0; values.len()];
            dequantize(ty, SimdLevel::Scalar, &blocks, &mut floats).unwrap();
            let mut largest = (0, 0);
            for (i, float) in floats.iter().enumerate() {
                largest.0 = largest.0.max(values[i].unsigned_abs());
                let scaled = f64::from(scales[i / form.scaled]) * f64::from(values[i]);
                let min = form.minima.map_or(0.0, |form_minima| {
                    let min = minima[i / form_minima.shared];
                    assert!(min >= 0, "{ty}: minimum {min}");
                    largest.1 = largest.1.max(min as u16);
                    f64::from(min_scales[i / form.scaled]) * f64::from(min)
                });
                if float.is_infinite() {
                    assert!((scaled - min).abs() > f64::from(f32::MAX), "{ty}: {i}");
                    continue;
                }
                let error = (scaled - min - f64::from(*float)).abs();
                assert!(
                    error <= 2e-7 * (scaled.abs() + min.abs()),
                    "{ty}: {i}: {float}, found {}",
                    scaled - min
                );
            }
            // Every bound is reached, or nearly so by random bytes.
            assert!(largest.0 <= form.largest && 10 * largest.0 >= 7 * form.largest, "{ty}: {largest:?}");
            let highest = form.minima.map_or(0, |minima| minima.largest);
            assert!(largest.1 == highest, "{ty}: {largest:?}");
            for level in SimdLevel::available() {
                let other = split(ty, level, &blocks);
                assert!(other.0 == values && other.2 == minima, "{ty} at {level}");
                let bits = |scales: &[f32]| scales.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert!(bits(&other.1) == bits(&scales) && bits(&other.3) == bits(&min_scales), "{ty}");
            }
        }
        assert_eq!(n_types, 25);
    }

    #[test]
    fn types_of_floats_have_no_integers_and_lengths_are_checked() {
        assert_eq!(integer_form(GgmlType::F16), None);
        let (mut values, mut scales) = ([0; 32], [0.0]);
        let mut check = |ty, n_bytes, n_scales: usize| {
            let scales = &mut scales[..n_scales];
            let out = IntegerRow { values: &mut values, scales, minima: &mut [], min_scales: &mut [] };
            integers(ty, SimdLevel::Scalar, &vec![0; n_bytes], out)
        };
        assert_eq!(check(GgmlType::Q8_0, 34, 1), Ok(()));
        assert_eq!(check(GgmlType::Bf16, 64, 1), Err(QuantError::NotASource { ty: GgmlType::Bf16 }));
        let length = |ty, expected, found| Err(QuantError::Length { ty, expected, found });
        assert_eq!(check(GgmlType::Q8_0, 33, 1), length(GgmlType::Q8_0, 34, 33));
        assert_eq!(check(GgmlType::Q8_0, 34, 0), length(GgmlType::Q8_0, 1, 0));
        assert_eq!(check(GgmlType::Q4_1, 20, 1), length(GgmlType::Q4_1, 1, 0));
        assert_eq!(check(GgmlType::Q6K, 210, 1), Err(QuantError::Columns { ty: GgmlType::Q6K, n_cols: 32 }));
    }
}

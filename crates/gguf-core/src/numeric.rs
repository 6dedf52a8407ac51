//! Float formats and C arithmetic, bit for bit.
//!
//! Each function names the C construct or format it equals. Quantizers and conversions use these and nothing
//! else, so that the bytes do not depend on the CPU.

/// Narrows a hand-written number to F32. Returns `None` if F32 cannot hold it: not a number, out of range, or so close
/// to zero that it would become zero.
pub fn held_by_f32(x: f64) -> Option<f32> {
    let narrowed = x as f32;
    (narrowed.is_finite() && (narrowed != 0.0 || x == 0.0)).then_some(narrowed)
}

/// Converts F32 to F16 bits: round to nearest even, overflow to infinity, NaN to `sign | 0x7e00`.
///
/// # Exactness
/// Equals F16C's `vcvtps2ph` for every input that is not a NaN; a NaN loses its payload, as in ggml's
/// `GGML_FP32_TO_FP16` without F16C.
#[inline]
pub fn f32_to_f16(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude > 0x7f80_0000 {
        return sign | 0x7e00;
    }
    if magnitude >= 0x4780_0000 {
        return sign | 0x7c00;
    }
    if magnitude < 0x3880_0000 {
        // Subnormal or zero in F16: adding 2^(-14 - 10 + 23) aligns the mantissa, and the addition rounds to even.
        const MAGIC: u32 = 0x3f00_0000;
        let rounded = f32::from_bits(magnitude) + f32::from_bits(MAGIC);
        return sign | (rounded.to_bits() - MAGIC) as u16;
    }
    let odd = (magnitude >> 13) & 1;
    let rebased = magnitude - (112 << 23) + 0x0fff + odd;
    sign | (rebased >> 13) as u16
}

/// Converts F16 bits to F32, exactly; a signalling NaN becomes quiet, as with `vcvtph2ps`.
#[inline]
pub fn f16_to_f32(h: u16) -> f32 {
    let sign = u32::from(h & 0x8000) << 16;
    let exponent = u32::from(h >> 10) & 0x1f;
    let mantissa = u32::from(h) & 0x3ff;
    let bits = match exponent {
        0 => {
            // mantissa * 2^-24 is exact.
            let magnitude = mantissa as f32 * f32::from_bits(0x3380_0000);
            return f32::from_bits(sign | magnitude.to_bits());
        }
        31 if mantissa != 0 => 0x7fc0_0000 | (mantissa << 13),
        31 => 0x7f80_0000,
        _ => ((exponent + 112) << 23) | (mantissa << 13),
    };
    f32::from_bits(sign | bits)
}

/// Converts F32 to BF16 bits: round to nearest even, subnormals kept, NaN made quiet.
///
/// # Exactness
/// Equals ggml's `ggml_compute_fp32_to_bf16`.
#[inline]
pub fn f32_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    if bits & 0x7fff_ffff > 0x7f80_0000 {
        return (bits >> 16) as u16 | 64;
    }
    ((bits + (0x7fff + ((bits >> 16) & 1))) >> 16) as u16
}

/// Converts BF16 bits to F32, exactly.
#[inline]
pub fn bf16_to_f32(h: u16) -> f32 {
    f32::from_bits(u32::from(h) << 16)
}

/// Rounds half to even by the addition trick: ggml's `nearest_int`.
///
/// # Exactness
/// Outside ±4194303 the low 23 bits wrap silently; infinities give -4194304 and the NaN of `inf * 0` gives 0 or
/// -4194304 depending on its payload. Kept: quantizers of degenerate blocks rely on it.
#[inline]
pub fn nearest_int(x: f32) -> i32 {
    let val = x + 12_582_912.0;
    (val.to_bits() & 0x007f_ffff) as i32 - 0x0040_0000
}

/// C's `(int)x` as x86 does it (`cvttss2si`): out of range and NaN give `i32::MIN`.
#[inline]
pub fn c_trunc_i32(x: f32) -> i32 {
    if (-2_147_483_648.0..2_147_483_648.0).contains(&x) { x as i32 } else { i32::MIN }
}

/// C's `(int8_t)x` of a float as gcc on x86 does it: truncate to 32 bits, keep the low byte.
#[inline]
pub fn c_trunc_i8(x: f32) -> i8 {
    c_trunc_i32(x) as i8
}

/// C's `(uint8_t)x` of a float as gcc on x86 does it: truncate to 32 bits, keep the low byte.
#[inline]
pub fn c_trunc_u8(x: f32) -> u8 {
    c_trunc_i32(x) as u8
}

/// C's `roundf`: half away from zero.
#[inline]
pub fn roundf(x: f32) -> f32 {
    // `f32::round` is specified as half away from zero.
    x.round()
}

/// C's `lroundf` with a 64-bit `long`, as glibc does it on x86-64: half away from zero; out of range and NaN
/// give `i64::MIN`.
#[inline]
pub fn lroundf(x: f32) -> i64 {
    let rounded = x.round();
    if (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&rounded) {
        rounded as i64
    } else {
        i64::MIN
    }
}

/// `floor(log2f(x))` for positive finite `x`, as glibc rounds `log2f`.
///
/// # Exactness
/// Up to 44 ulp below a power of two glibc's `log2f` rounds up to the integer, so this is *not* the exponent
/// field; it equals `floor((float)log2((double)x))` for every positive float.
#[inline]
pub fn floor_log2f(x: f32) -> i32 {
    let log2 = f64::from(x).log2() as f32;
    log2.floor() as i32
}

/// ggml's `MAX(a, b)`: `a > b ? a : b`.
#[inline]
pub fn c_max(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_f32_cannot_hold_is_told() {
        for held in [0.0, -0.0, 1e-5, 1e-45, -3.4e38, 1e-40] {
            assert_eq!(held_by_f32(held), Some(held as f32), "{held}");
        }
        for lost in [1e-50, -1e-46, 5e-324, 3.5e38, f64::MAX, f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
            assert_eq!(held_by_f32(lost), None, "{lost}");
        }
    }

    #[test]
    fn f16_round_trips_and_matches_half() {
        for h in 0..=u16::MAX {
            let x = f16_to_f32(h);
            assert_eq!(x.to_bits(), {
                let reference = half::f16::from_bits(h).to_f32();
                if reference.is_nan() { reference.to_bits() | 0x0040_0000 } else { reference.to_bits() }
            });
            if !x.is_nan() {
                assert_eq!(f32_to_f16(x), h);
            }
        }
        // Every exponent and rounding neighbourhood, both signs.
        for high in 0..=u16::MAX {
            for low in [0u32, 1, 0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x7fff, 0x8000, 0xffff] {
                let x = f32::from_bits(u32::from(high) << 16 | low);
                if x.is_nan() {
                    assert_eq!(f32_to_f16(x) & 0x7fff, 0x7e00);
                    assert_eq!(f32_to_bf16(x) & 0x7fc0, 0x7fc0);
                } else {
                    assert_eq!(f32_to_f16(x), half::f16::from_f32(x).to_bits(), "{x:e}");
                    assert_eq!(f32_to_bf16(x), half::bf16::from_f32(x).to_bits(), "{x:e}");
                }
            }
        }
    }

    #[test]
    fn nearest_int_is_half_to_even_and_wraps() {
        for (x, want) in [(0.5, 0), (1.5, 2), (2.5, 2), (-0.5, 0), (-1.5, -2), (-2.5, -2), (7.49, 7)] {
            assert_eq!(nearest_int(x), want, "{x}");
        }
        assert_eq!(nearest_int(f32::INFINITY), -4_194_304);
        assert_eq!(nearest_int(f32::NEG_INFINITY), -4_194_304);
    }

    #[test]
    fn c_casts_do_not_saturate() {
        assert_eq!(c_trunc_i8(300.7), 44);
        assert_eq!(c_trunc_u8(-1.5), 255);
        assert_eq!(c_trunc_i32(f32::NAN), i32::MIN);
        assert_eq!(c_trunc_u8(f32::INFINITY), 0);
        assert_eq!(roundf(-2.5), -3.0);
        assert_eq!(lroundf(2.5), 3);
        assert_eq!(lroundf(f32::INFINITY), i64::MIN);
        assert_eq!(lroundf(f32::NAN), i64::MIN);
    }

    #[test]
    fn floor_log2f_is_not_the_exponent_just_below_a_power_of_two() {
        let below_eight = f32::from_bits(8f32.to_bits() - 1);
        assert_eq!(floor_log2f(below_eight), 3);
        assert_eq!(floor_log2f(7.9), 2);
        assert_eq!(floor_log2f(1.0), 0);
        assert_eq!(floor_log2f(f32::from_bits(1)), -149);
    }
}

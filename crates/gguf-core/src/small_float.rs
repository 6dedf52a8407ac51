//! Floats of eight and four bits: E4M3, E5M2, E8M0, E2M1.

/// Values of a format whose codes are bytes.
pub type FloatTable = [f32; 256];

/// E4M3 "fn": no infinities, `0x7f` and `0xff` are NaN, the largest number is 448.
pub static E4M3: FloatTable = table::<4, 3>();
/// E5M2: IEEE with infinities, the largest number is 57344.
pub static E5M2: FloatTable = table::<5, 2>();
/// E2M1: neither infinities nor NaN.
pub const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

const fn table<const EXP: u32, const MAN: u32>() -> FloatTable {
    let mut values = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        values[code] = widen::<EXP, MAN>(code as u8);
        code += 1;
    }
    values
}

const fn power_of_two(exp: i32) -> f32 {
    f32::from_bits(((exp + 127) as u32) << 23)
}

/// Returns the magnitude of a code of `EXP` exponent and `MAN` mantissa bits as if no code meant infinity or NaN. The
/// sign bit must be zero. No step uses subnormals, which are slow on some processors.
#[inline(always)]
#[expect(clippy::inline_always, reason = "loops that are compiled once per vector level call it")]
pub const fn magnitude<const EXP: u32, const MAN: u32>(code: u8) -> f32 {
    let bias = (1 << (EXP - 1)) - 1;
    let code = code as u32;
    // Codes with a zero exponent are multiples of the smallest number.
    let small = code as f32 * power_of_two(1 - bias - MAN as i32);
    let normal = f32::from_bits((code << (23 - MAN)) + (((127 - bias) as u32) << 23));
    if code < 1 << MAN { small } else { normal }
}

/// Returns the value of a code. Computes it without a look-up in the tables, since vectors do not gather well. Formats
/// with five exponent bits have infinities, those with four do not.
#[inline(always)]
#[expect(clippy::inline_always, reason = "loops that are compiled once per vector level call it")]
pub const fn widen<const EXP: u32, const MAN: u32>(code: u8) -> f32 {
    let bits = magnitude::<EXP, MAN>(code & 0x7f).to_bits();
    let infinite = if EXP == 5 { 0x7c } else { 0x7f };
    let special = if EXP == 5 && code & 0x7f == infinite { f32::INFINITY } else { f32::NAN };
    let bits = if code & 0x7f >= infinite { special.to_bits() } else { bits };
    f32::from_bits(bits | ((code & 0x80) as u32) << 24)
}

/// Returns the value of an E8M0 byte, `2^(byte - 127)`; 255 is NaN, 0 is a subnormal of F32.
#[inline]
pub const fn e8m0(byte: u8) -> f32 {
    match byte {
        255 => f32::NAN,
        0 => f32::from_bits(1 << 22),
        byte => f32::from_bits((byte as u32) << 23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the value by the definition of the formats, in F64.
    fn defined(exp_bits: i32, man_bits: i32, code: u8) -> f64 {
        let (exp, man) = (
            i32::from(code & 0x7f) >> man_bits,
            f64::from(code & ((1 << man_bits) - 1)) / 2f64.powi(man_bits),
        );
        let bias = (1 << (exp_bits - 1)) - 1;
        let magnitude =
            if exp == 0 { man * 2f64.powi(1 - bias) } else { (1.0 + man) * 2f64.powi(exp - bias) };
        if code & 0x80 == 0 { magnitude } else { -magnitude }
    }

    #[test]
    fn codes_have_the_formats_values() {
        for code in 0..=255u8 {
            let (e4m3, e5m2) = (E4M3[usize::from(code)], E5M2[usize::from(code)]);
            match code & 0x7f {
                0x7f => assert!(e4m3.is_nan() && e5m2.is_nan(), "{code:#x}"),
                0x7c => assert_eq!(e5m2, if code < 128 { f32::INFINITY } else { f32::NEG_INFINITY }),
                0x7d.. => assert!(e5m2.is_nan(), "{code:#x}"),
                _ => assert_eq!(f64::from(e5m2).to_bits(), defined(5, 2, code).to_bits(), "{code:#x}"),
            }
            if code & 0x7f != 0x7f {
                assert_eq!(f64::from(e4m3).to_bits(), defined(4, 3, code).to_bits(), "{code:#x}");
            }
        }
        assert_eq!((E4M3[0x7e], E4M3[0x01], E4M3[0xb9]), (448.0, 0.001_953_125, -1.125));
        assert_eq!((E5M2[0x7b], E5M2[0x01]), (57344.0, 1.525_878_906_25e-5));
    }

    #[test]
    fn codes_of_four_bits_and_exponents() {
        for (code, value) in E2M1.iter().enumerate().filter(|(code, _)| *code >= 8) {
            assert_eq!(value.to_bits(), (-E2M1[code - 8]).to_bits());
        }
        assert_eq!((e8m0(127), e8m0(0), e8m0(254)), (1.0, 2f32.powi(-127), 2f32.powi(127)));
        assert!(e8m0(255).is_nan());
    }
}

//! The exponential function as computed by the reference converter's torch, bit for bit.
//!
//! Torch calls a vector library for `exp`, whose result differs from the correctly rounded one for about one number in
//! a hundred. The goldens and files from other converters contain its bits.

/// The constant 128 / ln 2.
const STEPS: f32 = f32::from_bits(0x4338_aa3b);
/// The constant ln 2 / 128 in two parts; products of the first with small integers are exact.
const STEP_HIGH: f32 = f32::from_bits(0x3bb1_8000);
const STEP_LOW: f32 = f32::from_bits(0xb5de_8083);
/// Constant whose addition and subtraction rounds to an integer.
const ROUND: f32 = 12_582_912.0;

/// Computes `exp(x)`.
///
/// # Exactness
/// Equals `torch.exp` for F32 tensors on processors for which its library has no special code (AMD, or
/// `MKL_CBWR=COMPATIBLE`): 2^(j/128) from a table in two parts, times 1 + r + r²/2, each step rounded to F32. Beyond
/// ±87, where no weight is, returns the correctly rounded value.
pub(super) fn exp(x: f32) -> f32 {
    if x.is_nan() || x.abs() > 87.0 {
        return f64::from(x).exp() as f32;
    }
    let n = (x * STEPS + ROUND) - ROUND;
    let r = (x - n * STEP_HIGH) - n * STEP_LOW;
    let p = (r * r) * 0.5 + r;
    let steps = n as i32;
    let (high, low) = POWERS[steps.rem_euclid(128) as usize];
    let (high, low) = (f32::from_bits(high), f32::from_bits(low));
    // Within ±87 the exponent is that of a normal number.
    let scale = f32::from_bits(((steps.div_euclid(128) + 127) as u32) << 23);
    (high + (high * p + low)) * scale
}

/// Table of 2^(j/128) in two parts.
#[rustfmt::skip]
const POWERS: [(u32, u32); 128] = [
    (0x3f80_0000, 0x0000_0000), (0x3f80_b1ed, 0x331f_b333), (0x3f81_64d2, 0xb1c4_3fd0), (0x3f82_18af, 0x3306_e7f8),
    (0x3f82_cd87, 0xb34e_a7a9), (0x3f83_8359, 0x331d_df6e), (0x3f84_3a29, 0xb2f1_4c87), (0x3f84_f1f6, 0x332c_6f38),
    (0x3f85_aac3, 0x334f_9891), (0x3f86_6491, 0x3337_247f), (0x3f87_1f62, 0xb352_c2e6), (0x3f87_db35, 0x337f_ed32),
    (0x3f88_980f, 0xb37e_da4b), (0x3f89_55ee, 0x30d8_6398), (0x3f8a_14d5, 0x336a_92de), (0x3f8a_d4c6, 0x330a_58e5),
    (0x3f8b_95c2, 0xb260_aba1), (0x3f8c_57ca, 0xb2ee_6e43), (0x3f8d_1adf, 0x3336_fcb7), (0x3f8d_df04, 0x3280_8b9a),
    (0x3f8e_a43a, 0xb369_7465), (0x3f8f_6a81, 0x323f_3647), (0x3f90_31dc, 0x3306_28cd), (0x3f90_fa4d, 0xb368_2237),
    (0x3f91_c3d3, 0x3367_5624), (0x3f92_8e72, 0x337b_2a64), (0x3f93_5a2b, 0x32bc_4f9c), (0x3f94_26ff, 0x31fa_b1c0),
    (0x3f94_f4f0, 0xb32e_0212), (0x3f95_c3ff, 0xb372_5267), (0x3f96_942d, 0x32dc_8061), (0x3f97_657d, 0x3313_e2f5),
    (0x3f98_37f0, 0x3323_1b71), (0x3f99_0b88, 0xb26c_c9f4), (0x3f99_e046, 0xb359_be90), (0x3f9a_b62b, 0xb0da_c01e),
    (0x3f9b_8d3a, 0xb30c_5563), (0x3f9c_6573, 0x3350_5d86), (0x3f9d_3eda, 0xb331_a601), (0x3f9e_196e, 0x3244_ea39),
    (0x3f9e_f532, 0x3341_2342), (0x3f9f_d228, 0x3295_9003), (0x3fa0_b051, 0x31fb_9715), (0x3fa1_8faf, 0xb2d5_eaed),
    (0x3fa2_7043, 0x30c3_125a), (0x3fa3_520f, 0x3351_d005), (0x3fa4_3516, 0xb323_ec33), (0x3fa5_1958, 0xb372_82c2),
    (0x3fa5_fed7, 0xb32c_9d5e), (0x3fa6_e595, 0xb2c0_445e), (0x3fa7_cd94, 0xb316_2d36), (0x3fa8_b6d5, 0x3233_d990),
    (0x3fa9_a15b, 0xb316_2b08), (0x3faa_8d26, 0x3325_d921), (0x3fab_7a3a, 0xb314_ad82), (0x3fac_6897, 0xb336_8380),
    (0x3fad_583f, 0xb22d_eaf6), (0x3fae_4934, 0x3325_946b), (0x3faf_3b79, 0xb325_2deb), (0x3fb0_2f0e, 0xb2d1_247f),
    (0x3fb1_23f6, 0xb37c_5aa8), (0x3fb2_1a32, 0xb333_33ce), (0x3fb3_11c4, 0x3215_4889), (0x3fb4_0aaf, 0xb33b_3569),
    (0x3fb5_04f3, 0x32cf_e77a), (0x3fb6_0094, 0xb32f_4254), (0x3fb6_fd92, 0xb266_b974), (0x3fb7_fbf0, 0xb2d5_cd70),
    (0x3fb8_fbaf, 0x330e_c5f7), (0x3fb9_fcd2, 0x330a_5817), (0x3fba_ff5b, 0xb31b_d983), (0x3fbc_034a, 0x337d_e5d4),
    (0x3fbd_08a4, 0xb341_4fe8), (0x3fbe_0f68, 0x3198_6099), (0x3fbf_179a, 0xb313_0b1a), (0x3fc0_213b, 0xb33c_1e5f),
    (0x3fc1_2c4d, 0xb2d6_663e), (0x3fc2_38d2, 0x32c4_78f6), (0x3fc3_46cd, 0xb297_6da2), (0x3fc4_563f, 0xb2ce_b32d),
    (0x3fc5_672a, 0x320a_a837), (0x3fc6_7991, 0xb314_abb7), (0x3fc7_8d75, 0xb2dd_5119), (0x3fc8_a2d8, 0x3339_1ffc),
    (0x3fc9_b9be, 0xb373_23a2), (0x3fca_d226, 0x333c_8521), (0x3fcb_ec15, 0xb006_c6c2), (0x3fcd_078c, 0xb373_5f84),
    (0x3fce_248c, 0x3228_fc24), (0x3fcf_4319, 0xb2c3_9b9c), (0x3fd0_6334, 0xb294_4353), (0x3fd1_84df, 0x3344_a2d3),
    (0x3fd2_a81e, 0xb35c_1daa), (0x3fd3_ccf1, 0xb34c_f4ca), (0x3fd4_f35b, 0xb328_6024), (0x3fd6_1b5e, 0xb030_3219),
    (0x3fd7_44fd, 0xb2d4_a58a), (0x3fd8_7039, 0x3318_db66), (0x3fd9_9d16, 0xb2f6_1d41), (0x3fda_cb94, 0x335e_5594),
    (0x3fdb_fbb8, 0xb350_4a1c), (0x3fdd_2d82, 0xb375_ef9b), (0x3fde_60f5, 0xb37b_43e3), (0x3fdf_9613, 0xb285_1c3f),
    (0x3fe0_ccdf, 0xb21e_ab59), (0x3fe2_055b, 0xac3e_164c), (0x3fe3_3f89, 0x3365_7d15), (0x3fe4_7b6d, 0xb33f_9185),
    (0x3fe5_b907, 0xb244_1be6), (0x3fe6_f85b, 0xb32a_23c0), (0x3fe8_396a, 0x3320_7898), (0x3fe9_7c38, 0x3300_d89f),
    (0x3fea_c0c7, 0xb241_16de), (0x3fec_0719, 0xb313_67c7), (0x3fed_4f30, 0x3276_cca1), (0x3fee_9910, 0xb34f_e4ba),
    (0x3fef_e4ba, 0xb348_464a), (0x3ff1_3231, 0xb330_a5ed), (0x3ff2_8177, 0x32f1_67ff), (0x3ff3_d290, 0xb287_1670),
    (0x3ff5_257d, 0x3229_2436), (0x3ff6_7a41, 0x3358_e67f), (0x3ff7_d0df, 0x3366_15a2), (0x3ff9_295a, 0xb309_4457),
    (0x3ffa_83b3, 0xb292_3758), (0x3ffb_dfed, 0x3359_cbe1), (0x3ffd_3e0c, 0x31cf_486c), (0x3ffe_9e11, 0x3338_f71f),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_those_of_the_reference() {
        // Values that are not correctly rounded, and some that are.
        let cases: &[(f32, u32)] = &[
            (1.421875, 0x4084_a2e6),          // not the correctly rounded one
            (0.003143310546875, 0x3f80_672a), // not the correctly rounded one
            (2.328125, 0x4124_2396),
            (0.0, 0x3f80_0000),
            (1.0, 0x402d_f854),
            (-1.0, 0x3ebc_5ab2),
            (0.5, 0x3fd3_094c),
            (2.7725887, 0x4180_0000),
            (-4.605, 0x3c23_de2e),
            (10.25, 0x46dc_f515),
            (-86.5, 0x0113_bc74),
            (86.5, 0x7ddd_cd04),
        ];
        for &(x, bits) in cases {
            assert_eq!(exp(x).to_bits(), bits, "{x}");
        }
    }

    #[test]
    fn never_far_from_the_true_value() {
        for step in -8600..=8600_i32 {
            let x = step as f32 / 100.0;
            let (found, truth) = (f64::from(exp(x)), f64::from(x).exp());
            assert!(((found - truth) / truth).abs() < 6.8e-8, "{x}: {found} {truth}");
        }
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert!(exp(f32::NAN).is_nan());
    }
}

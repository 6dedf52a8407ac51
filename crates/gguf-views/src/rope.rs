//! Frequency factors of Llama 3's rope, which are written as a tensor.

use gguf_arch::RopeFreqsLlama3;

/// Computes one factor per pair of rotary dimensions: 1 for short wavelengths, `factor` for long ones, smooth between
/// them.
///
/// # Exactness
/// Equals `LlamaModel.generate_extra_tensors` of llama.cpp 0.5.0 as torch computes it on the CPU: F32 throughout,
/// division by a tensor as multiplication with its reciprocal. Torch's vector power is off by one unit in the last
/// place for a few arguments where this one is exact; for the bases and sizes of released models the bits are equal.
pub fn rope_freqs_llama3(params: &RopeFreqsLlama3) -> Vec<f32> {
    let base = f64::from(params.theta as f32);
    let dim = params.dim as f32;
    let factor = params.factor as f32;
    let context = params.context as f32;
    let low_wavelength = (params.context / params.low_freq_factor) as f32;
    let high_wavelength = (params.context / params.high_freq_factor) as f32;
    let span = (params.high_freq_factor - params.low_freq_factor) as f32;
    (0..params.dim.div_ceil(2))
        .map(|pair| {
            let exponent = (2 * pair) as f32 / dim;
            let power = base.powf(f64::from(exponent)) as f32;
            let frequency = 1.0 / power;
            let wavelength = (1.0 / frequency) * (2.0 * std::f64::consts::PI) as f32;
            if wavelength < high_wavelength {
                1.0
            } else if wavelength > low_wavelength {
                factor
            } else {
                let smooth = ((1.0 / wavelength) * context - params.low_freq_factor as f32) / span;
                1.0 / ((1.0 - smooth) / factor + smooth)
            }
        })
        .collect()
}

/// Computes the factors with wavelengths in F64, followed by ones up to `n` for dimensions that are not rotated.
///
/// # Exactness
/// Equals `Step35Model.generate_extra_tensors` of llama.cpp 0.5.0, under the same conditions.
pub(super) fn rope_freqs_padded(params: &RopeFreqsLlama3, n: usize) -> Vec<f32> {
    let base = f64::from(params.theta as f32);
    let low_wavelength = params.context / params.low_freq_factor;
    let high_wavelength = params.context / params.high_freq_factor;
    let span = params.high_freq_factor - params.low_freq_factor;
    let mut factors: Vec<f32> = (0..params.dim.div_ceil(2))
        .map(|pair| {
            let exponent = (2 * pair) as f32 / params.dim as f32;
            let frequency = 1.0 / base.powf(f64::from(exponent)) as f32;
            let wavelength = 2.0 * std::f64::consts::PI / f64::from(frequency);
            if wavelength < high_wavelength {
                1.0
            } else if wavelength > low_wavelength {
                params.factor as f32
            } else {
                let smooth = (params.context / wavelength - params.low_freq_factor) / span;
                (1.0 / ((1.0 - smooth) / params.factor + smooth)) as f32
            }
        })
        .collect();
    factors.resize(n.max(factors.len()), 1.0);
    factors
}

/// Finds the parameters that give these factors, bit for bit, among those that models use: wavelength limits of 1 and 4
/// (or 2, 8, 16, 32) and an original context length that is a power of two.
pub fn match_rope_freqs(factors: &[f32], theta: f64) -> Option<RopeFreqsLlama3> {
    // Long wavelengths come last: ones after them are dimensions that are not rotated.
    let turning = factors.iter().rposition(|&factor| factor != 1.0).map_or(factors.len(), |last| last + 1);
    let dim = 2 * turning as u64;
    let factor = f64::from(factors.iter().copied().fold(1.0, f32::max));
    let contexts = std::iter::once(13).chain(4..=24).map(|bits: u32| f64::from(1u32 << bits));
    let candidates = contexts.flat_map(|context| {
        [4.0, 2.0, 8.0, 16.0, 32.0].map(|high_freq_factor| RopeFreqsLlama3 {
            dim,
            theta,
            factor,
            low_freq_factor: 1.0,
            high_freq_factor,
            context,
        })
    });
    // A head is never wider than this; larger declarations are not searched.
    let mut candidates = candidates.filter(|_| factors.len() <= 1 << 16);
    let gives = |found: &[f32]| found.iter().zip(factors).all(|(a, b)| a.to_bits() == b.to_bits());
    candidates.find(|params| {
        (turning == factors.len() && gives(&rope_freqs_llama3(params)))
            || gives(&rope_freqs_padded(params, factors.len()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::Digest;

    /// Base, dimension, factor and original context length of released models (the last row: none), and the sha256 of
    /// the factors as torch 2.15 computes them; made by `lab/peers/rope_freqs.py`.
    const TORCH: &[(f64, u64, f64, f64, &str)] = &[
        (500000.0, 128, 8.0, 8192.0, "8b516af9cb5db26ed32831eb6f493dd620843d1cd69ca7bbad760c76061cd565"),
        (500000.0, 64, 32.0, 8192.0, "d25a6d176d9313062b8f86440c88649f9e568d573ea66bfa4e85e2424cf35633"),
        (500000.0, 128, 32.0, 8192.0, "af00a6286e9cba87733f6e5dd6b09a2bffd7326e6ac33d346f83f7c2f4857828"),
        (500000.0, 128, 16.0, 8192.0, "b26bd8ddf61f3c4f41de27b3178d47d3255ac7cae02924ef610802dbed44602a"),
        (500000.0, 80, 8.0, 8192.0, "b657a71db794f1bb7156d2b48b6081b1fa4594859ab1fe9c5890493cea6be541"),
        (1000000.0, 128, 8.0, 8192.0, "74d523506f61a3c981b80c3b264f10df8f0cdbadc5a943e1b1fe6ccdd3709b15"),
        (1000000.0, 128, 16.0, 8192.0, "2ba452da5415542bd9cb6906d90ebed604b02b4b12fcc1f9c8d3cd357fac3686"),
        (1000000.0, 64, 8.0, 8192.0, "a8eeee86f706137033434617583e418241fe55311fc858ce25a6decb775a5e4e"),
        (10000.0, 128, 8.0, 8192.0, "4b430609d36f4fdcbbe013cf99e8bdabd6b6874ea7cf896b8cc6a9b8745e8f65"),
        (10000000.0, 128, 8.0, 8192.0, "393c61f36773e66a57fd2fe920357b8b35cf72397a1b33587e76bd9b37a5dbc0"),
        (100000.0, 128, 8.0, 8192.0, "37741f1eac17df5e1f8a6e53b8c9089d4c76ad25f4597ba8eabbfeb5aa1e7feb"),
        (50000.0, 16, 8.0, 64.0, "5ac76d225039c1e15ca40b3fa42daaef0a825c935a32bc30e12ec0c33fb40489"),
    ];

    #[test]
    fn factors_equal_torch_for_all_released_bases() {
        for &(theta, dim, factor, context, want) in TORCH {
            let (low_freq_factor, high_freq_factor) = (1.0, 4.0);
            let params = RopeFreqsLlama3 { dim, theta, factor, low_freq_factor, high_freq_factor, context };
            let bytes: Vec<u8> = rope_freqs_llama3(&params).iter().flat_map(|x| x.to_le_bytes()).collect();
            let found = gguf_core::text::hex(&sha2::Sha256::digest(&bytes));
            assert_eq!(found, want, "{params:?}");
        }
    }

    #[test]
    fn parameters_are_found_again() {
        for &(theta, dim, factor, context, _) in TORCH {
            let (low_freq_factor, high_freq_factor) = (1.0, 4.0);
            let params = RopeFreqsLlama3 { dim, theta, factor, low_freq_factor, high_freq_factor, context };
            let factors = rope_freqs_llama3(&params);
            let found = match_rope_freqs(&factors, theta).unwrap();
            // Another pair of limits may give the same factors if few wavelengths are between them.
            assert_eq!(rope_freqs_llama3(&found), factors, "{params:?}");
        }
        assert_eq!(match_rope_freqs(&[1.0, 1.5, 7.0], 10000.0), None);
    }

    #[test]
    fn factors_run_from_one_to_the_factor() {
        let params = RopeFreqsLlama3 {
            dim: 64,
            theta: 500000.0,
            factor: 32.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            context: 8192.0,
        };
        let factors = rope_freqs_llama3(&params);
        assert_eq!((factors.len(), factors[0], factors[31]), (32, 1.0, 32.0));
        assert!(factors.is_sorted());
    }
}

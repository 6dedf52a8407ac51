//! Tensors that no checkpoint holds: computed from the configuration.

use crate::arch::RopeFreqsLlama3;

/// Llama 3's factors of the rotary frequencies, `[dim / 2]`: 1 for short wavelengths, `factor` for long ones, and a
/// smooth passage between.
///
/// # Exactness
/// Torch's arithmetic on F32 scalars: a number divided by a tensor is the number times the tensor's reciprocal, and
/// every step rounds to F32. The power is computed in F64 and rounded, which equals torch's for all released
/// values of theta (see the test).
#[must_use]
pub fn rope_freqs_llama3(params: &RopeFreqsLlama3) -> Vec<f32> {
    let low_wavelength = (params.context / params.low_freq_factor) as f32;
    let high_wavelength = (params.context / params.high_freq_factor) as f32;
    let factor = params.factor as f32;
    let low = params.low_freq_factor as f32;
    let band = (params.high_freq_factor - params.low_freq_factor) as f32;
    (0..params.dim / 2)
        .map(|i| {
            let exponent = (2 * i) as f32 / params.dim as f32;
            let power = params.theta.powf(f64::from(exponent)) as f32;
            let frequency = 1.0 / power;
            let wavelength = (1.0 / frequency) * std::f64::consts::TAU as f32;
            if wavelength < high_wavelength {
                1.0
            } else if wavelength > low_wavelength {
                factor
            } else {
                let smooth = ((1.0 / wavelength) * params.context as f32 - low) / band;
                1.0 / ((1.0 - smooth) / factor + smooth)
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_released_theta_equals_torch() {
        use sha2::Digest;
        let golden = include_str!("../../fixtures/rope-freqs/golden.tsv");
        let mut n_cases = 0;
        for line in golden.lines().skip(1) {
            let cells: Vec<&str> = line.split('\t').collect();
            let number = |at: usize| cells[at].parse::<f64>().unwrap();
            let params = RopeFreqsLlama3 {
                theta: number(0),
                dim: number(1) as u64,
                factor: number(2),
                low_freq_factor: number(3),
                high_freq_factor: number(4),
                context: number(5),
            };
            let bytes: Vec<u8> = rope_freqs_llama3(&params).into_iter().flat_map(f32::to_le_bytes).collect();
            let digest = sha2::Sha256::digest(&bytes);
            let hex = digest.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
            assert_eq!(hex, cells[6], "{line}");
            n_cases += 1;
        }
        assert!(n_cases > 100);
    }
}

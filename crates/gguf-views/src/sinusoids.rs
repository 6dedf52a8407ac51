//! Sinusoidal position embeddings, which are written as a tensor: Whisper's table.

use super::exp::exp;

/// Longest wavelength, in positions per 2π.
const MAX_TIMESCALE: f64 = 10_000.0;

/// Computes for each position the sines of `width / 2` frequencies, then their cosines.
///
/// # Exactness
/// Equals `Qwen25AudioModel.generate_extra_tensors` of llama.cpp 0.5.0 in its steps: F32 throughout, except for the
/// step of the frequencies. Torch's vector sine and cosine are off by one unit in the last place for some arguments
/// where these are exact.
pub(super) fn sinusoids(length: u64, width: u64) -> Vec<f32> {
    let n_frequencies = width / 2;
    let step = -(MAX_TIMESCALE.ln() / (n_frequencies - 1) as f64) as f32;
    let frequencies: Vec<f32> = (0..n_frequencies).map(|at| exp(step * at as f32)).collect();
    let mut values = Vec::with_capacity((length * n_frequencies * 2) as usize);
    for position in 0..length {
        let angles = || frequencies.iter().map(|frequency| f64::from(position as f32 * frequency));
        values.extend(angles().map(|angle| angle.sin() as f32));
        values.extend(angles().map(|angle| angle.cos() as f32));
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_position_is_zeros_and_ones() {
        let table = sinusoids(2, 4);
        assert_eq!(table[..4], [0.0, 0.0, 1.0, 1.0]);
        assert_eq!(table[4..6], [1f32.sin(), 9.999999e-5]);
    }

    /// Checks torch's numbers of 64 columns, at near and far positions: the nearest F32 or its neighbour.
    #[test]
    fn numbers_are_those_of_torch_but_for_the_last_bit() {
        let table = sinusoids(1500, 64);
        let cases: &[(usize, usize, f32)] = &[
            (2, 4, 0.57237387),
            (7, 3, 0.26750585),
            (9, 10, 0.44505224),
            (100, 0, -0.50636566),
            (777, 17, -0.96547836),
            (1499, 0, -0.4442207),
            (1499, 31, 0.14933924),
            (3, 32, -0.9899925),
            (1499, 40, 0.5903812),
            (1234, 63, 0.9923959),
        ];
        for &(position, column, torch) in cases {
            let found = table[position * 64 + column];
            assert!(
                found.to_bits().abs_diff(torch.to_bits()) <= 1,
                "{position} {column}: {found:?} {torch:?}"
            );
        }
    }
}

//! Blocks that move by gradients of a loss with respect to their elements. Each code has a place among the values of its
//! type, at first the value itself; an element is computed from the nearest value, and the gradient passes to the place
//! as if it were not rounded. Scales and minima of groups stay; the floats of a block move with the places or alone.
//!
//! Every element and every block moves by its own gradient, in F32 without sums over blocks, so threads do not matter.

use gguf_blocks::states::{BlockState, Min, StateError, StateForm, form};
use gguf_core::GgmlType;
use gguf_core::numeric::{f16_to_f32, f32_to_f16};

/// Bytes that moving blocks take for each element: place, both means of gradients, gradient, and first code.
pub const MOVING_BYTES: u64 = 17;

/// Decay of the means of gradients and squares, for codes and for floats.
const OF_CODES: Decay = Decay { mean: 0.9, square: 0.95 };
const OF_FLOATS: Decay = Decay { mean: 0.9, square: 0.99 };
/// Number that Adam adds to the root of the mean square.
const EPS: f32 = 1e-8;
/// Adding and subtracting it rounds a number below 2²² to an integer.
const ROUNDER: f32 = 12_582_912.0;

#[derive(Clone, Copy, Debug)]
struct Decay {
    mean: f32,
    square: f32,
}

/// One step of Adam: its number from 1 on, and its rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MovingStep {
    /// Number of the step.
    pub number: usize,
    /// Largest change of a code in a step, roughly.
    pub code_rate: f32,
    /// Largest change of a block's float, as a share of the mean of its kind.
    pub float_rate: f32,
}

/// Numbers that move by Adam (arXiv 1412.6980).
#[derive(Clone, Debug, Default)]
struct Moving {
    values: Vec<f32>,
    means: Vec<f32>,
    squares: Vec<f32>,
}

impl Moving {
    fn new(values: Vec<f32>) -> Self {
        let zeros = vec![0.0; values.len()];
        Self { values, means: zeros.clone(), squares: zeros }
    }

    fn size(&self) -> f32 {
        let sum: f64 = self.values.iter().map(|value| f64::from(value.abs())).sum();
        (sum / self.values.len().max(1) as f64) as f32
    }
}

/// Factors of a step that all numbers share.
#[derive(Clone, Copy)]
struct Pace {
    decay: Decay,
    rate: f32,
    root: f32,
}

impl Pace {
    fn new(decay: Decay, rate: f32, number: usize) -> Self {
        let n = i32::try_from(number).unwrap_or(i32::MAX);
        let left = |decay: f32| 1.0 - f64::from(decay).powi(n);
        let rate = (f64::from(rate) / left(decay.mean)) as f32;
        Self { decay, rate, root: left(decay.square).sqrt() as f32 }
    }

    /// Updates the means, and returns the change of the number.
    #[inline(always)]
    fn change(self, gradient: f32, mean: &mut f32, square: &mut f32) -> f32 {
        let Decay { mean: a, square: b } = self.decay;
        *mean = a * *mean + (1.0 - a) * gradient;
        *square = b * *square + (1.0 - b) * gradient * gradient;
        -self.rate * *mean / (square.sqrt() / self.root + EPS)
    }
}

/// Consecutive blocks of a type.
#[derive(Clone, Debug)]
pub struct MovingBlocks {
    form: &'static StateForm,
    /// Half of the way from each value to the next; empty if values are consecutive integers.
    midpoints: Vec<f32>,
    places: Moving,
    first_codes: Vec<u8>,
    scales: Vec<i8>,
    mins: Vec<u8>,
    d: Moving,
    d_min: Moving,
}

impl MovingBlocks {
    /// Unpacks blocks; `None` for types without a code for each element.
    ///
    /// # Errors
    /// Bytes that are not whole blocks.
    pub fn new(ty: GgmlType, blocks: &[u8]) -> Option<Result<Self, StateError>> {
        form(ty).map(|form| Self::of(form, blocks))
    }

    fn of(form: &'static StateForm, blocks: &[u8]) -> Result<Self, StateError> {
        let n_blocks = blocks.len() / form.ty.block_bytes();
        let mut places = Vec::with_capacity(n_blocks * form.n_elems());
        let mut first_codes = Vec::with_capacity(n_blocks * form.n_elems());
        let (mut scales, mut mins) = (Vec::new(), Vec::new());
        let (mut d, mut d_min) = (Vec::with_capacity(n_blocks), Vec::with_capacity(n_blocks));
        let mut state = BlockState::ZERO;
        for block in blocks.chunks(form.ty.block_bytes()) {
            form.unpack(block, &mut state)?;
            let codes = &state.codes[..form.n_elems()];
            places.extend(codes.iter().map(|&code| f32::from(form.values[usize::from(code)])));
            first_codes.extend(codes);
            scales.extend(&state.scales[..form.n_groups()]);
            mins.extend(&state.mins[..form.n_groups()]);
            d.push(f16_to_f32(state.d));
            d_min.push(f16_to_f32(state.d_min));
        }
        let is_even = form.values.windows(2).all(|pair| pair[1] - pair[0] == 1);
        let midpoint = |pair: &[i8]| 0.5 * (f32::from(pair[0]) + f32::from(pair[1]));
        let midpoints = if is_even { Vec::new() } else { form.values.windows(2).map(midpoint).collect() };
        let [places, d, d_min] = [places, d, d_min].map(Moving::new);
        Ok(Self { form, midpoints, places, first_codes, scales, mins, d, d_min })
    }

    /// Number of elements.
    pub fn n_elems(&self) -> usize {
        self.first_codes.len()
    }

    /// Value of a code next to a place.
    #[inline(always)]
    fn value(&self, place: f32) -> f32 {
        if self.midpoints.is_empty() {
            return (place + ROUNDER) - ROUNDER;
        }
        f32::from(self.form.values[self.midpoints.partition_point(|&midpoint| midpoint < place)])
    }

    /// What is subtracted from the elements of a group.
    fn offset(&self, block: usize, group: usize) -> f32 {
        match self.form.min {
            Min::None => 0.0,
            Min::Groups { .. } => self.d_min.values[block] * f32::from(self.mins[group]),
            Min::Added => -self.d_min.values[block],
        }
    }

    /// Writes the elements from `first` on, the first of a block, as bytes of F32.
    pub fn read(&self, first: usize, out: &mut [u8]) {
        let (size, per_block) = (self.form.group, self.form.n_groups());
        for (at, out) in out.chunks_mut(4 * size).enumerate() {
            let group = first / size + at;
            let block = group / per_block;
            let scale = self.d.values[block] * f32::from(self.scales[group]);
            let offset = self.offset(block, group);
            let places = &self.places.values[group * size..];
            for (out, &place) in out.chunks_exact_mut(4).zip(places) {
                out.copy_from_slice(&(scale * self.value(place) - offset).to_le_bytes());
            }
        }
    }

    /// Moves by the gradient of the elements. Gradients that are not finite count as 0.
    ///
    /// # Panics
    /// If there are fewer than [`MovingBlocks::n_elems`].
    pub fn step(&mut self, step: MovingStep, gradient: &[f32]) {
        let MovingStep { number, code_rate, float_rate } = step;
        let spread = f32::from(self.form.values[self.form.values.len() - 1]) - f32::from(self.form.values[0]);
        let spacing = spread / (self.form.values.len() - 1) as f32;
        let of_codes = Pace::new(OF_CODES, code_rate * spacing, number);
        let of_d = Pace::new(OF_FLOATS, float_rate * self.d.size(), number);
        let of_min = Pace::new(OF_FLOATS, float_rate * self.d_min.size(), number);
        for block in 0..self.d.values.len() {
            let gradient = &gradient[block * self.form.n_elems()..][..self.form.n_elems()];
            let (along_d, along_min) = self.floats_gradient(block, gradient);
            self.move_codes(block, of_codes, gradient);
            let Moving { values, means, squares } = &mut self.d;
            values[block] += of_d.change(along_d, &mut means[block], &mut squares[block]);
            let Moving { values, means, squares } = &mut self.d_min;
            values[block] += of_min.change(along_min, &mut means[block], &mut squares[block]);
        }
    }

    /// Gradients with respect to the floats of a block.
    fn floats_gradient(&self, block: usize, gradient: &[f32]) -> (f32, f32) {
        let (size, per_block) = (self.form.group, self.form.n_groups());
        let (mut along_d, mut along_min) = (0.0, 0.0);
        for (group, gradient) in (block * per_block..).zip(gradient.chunks(size)) {
            let places = &self.places.values[group * size..];
            let (mut of_values, mut plain) = (0.0, 0.0);
            for (&gradient, &place) in gradient.iter().zip(places) {
                let gradient = finite(gradient);
                of_values += gradient * self.value(place);
                plain += gradient;
            }
            along_d += of_values * f32::from(self.scales[group]);
            along_min += match self.form.min {
                Min::None => 0.0,
                Min::Groups { .. } => -plain * f32::from(self.mins[group]),
                Min::Added => plain,
            };
        }
        (along_d, along_min)
    }

    /// Moves the places of a block, at most to the next code, or by two codes for types that have only four.
    fn move_codes(&mut self, block: usize, pace: Pace, gradient: &[f32]) {
        let (size, per_block) = (self.form.group, self.form.n_groups());
        let values = self.form.values;
        let (last, reach) = (values.len() - 1, if values.len() > 4 { 1 } else { 2 });
        let d = self.d.values[block];
        for (group, gradient) in (block * per_block..).zip(gradient.chunks(size)) {
            let scale = d * f32::from(self.scales[group]);
            for (at, &gradient) in (group * size..).zip(gradient) {
                let first = usize::from(self.first_codes[at]);
                let low = f32::from(values[first.saturating_sub(reach)]);
                let high = f32::from(values[(first + reach).min(last)]);
                let Moving { values: places, means, squares } = &mut self.places;
                let change = pace.change(finite(gradient) * scale, &mut means[at], &mut squares[at]);
                places[at] = (places[at] + change).clamp(low, high);
            }
        }
    }

    /// Packs the blocks as they are now.
    ///
    /// # Errors
    /// Bytes of another length.
    pub fn pack(&self, blocks: &mut [u8]) -> Result<(), StateError> {
        let (n_elems, per_block) = (self.form.n_elems(), self.form.n_groups());
        let mut state = BlockState::ZERO;
        for (at, block) in blocks.chunks_mut(self.form.ty.block_bytes()).enumerate() {
            state.d = f32_to_f16(self.d.values[at]);
            state.d_min = f32_to_f16(self.d_min.values[at]);
            state.scales[..per_block].copy_from_slice(&self.scales[at * per_block..][..per_block]);
            state.mins[..per_block].copy_from_slice(&self.mins[at * per_block..][..per_block]);
            let places = &self.places.values[at * n_elems..][..n_elems];
            for (code, &place) in state.codes.iter_mut().zip(places) {
                let value = self.value(place);
                *code = self.form.values.partition_point(|&own| f32::from(own) < value) as u8;
            }
            self.form.pack(&state, block)?;
        }
        Ok(())
    }
}

#[inline(always)]
fn finite(gradient: f32) -> f32 {
    if gradient.is_finite() { gradient } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::Noise;
    use gguf_blocks::states::FORMS;
    use gguf_blocks::{dequantize, quantize_rows};
    use gguf_core::simd::SimdLevel;

    fn floats(bytes: &[u8]) -> Vec<f32> {
        bytes.chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect()
    }

    fn blocks(ty: GgmlType, n: usize) -> Vec<u8> {
        let x = Noise::new(3).floats(n);
        let mut blocks = vec![0; n / ty.block_elems() * ty.block_bytes()];
        quantize_rows(ty, SimdLevel::detect(), n, &x, None, &mut blocks).unwrap();
        blocks
    }

    /// Blocks that do not move are the same bytes, and their elements those of the decoder.
    #[test]
    fn blocks_come_back() {
        for form in FORMS {
            let found = blocks(form.ty, 512);
            let moving = MovingBlocks::new(form.ty, &found).unwrap().unwrap();
            let (mut back, mut read) = (vec![0; found.len()], vec![0; 4 * 512]);
            moving.pack(&mut back).unwrap();
            assert_eq!(back, found, "{}", form.ty);
            moving.read(0, &mut read);
            let mut decoded = vec![0.0; 512];
            dequantize(form.ty, SimdLevel::Scalar, &found, &mut decoded).unwrap();
            assert_eq!(floats(&read), decoded, "{}", form.ty);
        }
        assert!(MovingBlocks::new(GgmlType::Q8_0, &[]).is_none());
    }

    /// Steps against a gradient lower the loss, move codes by at most `reach`, and leave the scales of groups; the blocks
    /// hold what was read before, but for the rounding of their floats.
    #[test]
    fn steps_lower_the_loss_in_every_type() {
        for form in FORMS {
            let found = blocks(form.ty, 512);
            let mut moving = MovingBlocks::new(form.ty, &found).unwrap().unwrap();
            let mut read = vec![0; 4 * 512];
            moving.read(0, &mut read);
            let gradient = Noise::new(5).floats(512);
            let loss = |x: &[f32]| x.iter().zip(&gradient).map(|(x, g)| x * g).sum::<f32>();
            let before = loss(&floats(&read));
            for number in 1..=30 {
                moving.step(MovingStep { number, code_rate: 0.05, float_rate: 0.001 }, &gradient);
            }
            moving.read(0, &mut read);
            let after = loss(&floats(&read));
            assert!(after < before - 1.0, "{}: {before} to {after}", form.ty);
            let mut packed = vec![0; found.len()];
            moving.pack(&mut packed).unwrap();
            let (mut old, mut new) = (BlockState::ZERO, BlockState::ZERO);
            let n_bytes = form.ty.block_bytes();
            for (a, b) in found.chunks(n_bytes).zip(packed.chunks(n_bytes)) {
                form.unpack(a, &mut old).unwrap();
                form.unpack(b, &mut new).unwrap();
                assert_eq!((old.scales, old.mins), (new.scales, new.mins));
                let reach = if form.values.len() > 4 { 1 } else { 2 };
                let is_near = |(a, b): (&u8, &u8)| a.abs_diff(*b) <= reach;
                assert!(old.codes.iter().zip(&new.codes).all(is_near), "{}", form.ty);
            }
            let mut decoded = vec![0.0; 512];
            dequantize(form.ty, SimdLevel::Scalar, &packed, &mut decoded).unwrap();
            let error = |(a, b): (&f32, f32)| (a - b).abs();
            let worst = decoded.iter().zip(floats(&read)).map(error).fold(0.0, f32::max);
            assert!(worst < 5e-3, "{}: {worst}", form.ty);
        }
    }

    /// The gradients of `d` and `d_min` are central differences.
    #[test]
    fn gradients_of_floats_equal_differences() {
        for form in FORMS {
            let n_elems = form.n_elems();
            let moving = MovingBlocks::new(form.ty, &blocks(form.ty, n_elems)).unwrap().unwrap();
            let weights = Noise::new(7).floats(n_elems);
            let loss = |moving: &MovingBlocks| {
                let mut read = vec![0; 4 * n_elems];
                moving.read(0, &mut read);
                floats(&read).iter().zip(&weights).map(|(x, w)| f64::from(x * w)).sum::<f64>()
            };
            let difference = |of: fn(&mut MovingBlocks) -> &mut f32| {
                let at = |by: f32| {
                    let mut moved = moving.clone();
                    *of(&mut moved) += by;
                    loss(&moved)
                };
                (at(0.25) - at(-0.25)) / 0.5
            };
            let (along_d, along_min) = moving.floats_gradient(0, &weights);
            let expected = difference(|moving| &mut moving.d.values[0]);
            let tolerance = 1e-3 * (1.0 + expected.abs());
            assert!((f64::from(along_d) - expected).abs() < tolerance, "{}: {along_d}, {expected}", form.ty);
            if form.min != Min::None {
                let expected = difference(|moving| &mut moving.d_min.values[0]);
                let tolerance = 1e-3 * (1.0 + expected.abs());
                assert!((f64::from(along_min) - expected).abs() < tolerance, "{}: {expected}", form.ty);
            }
        }
    }
}

//! Twins of all levels, the reference in 64-bit integers, and extremes.

use gguf_core::simd::SimdLevel;
use gguf_core::{IntegerForm, IntegerMinima};

use super::rounded::RECORD;
use super::*;

/// Forms of all types, and some more: scales over 16 to 256 columns, integers up to the limit, minima of both kinds.
const FORMS: [IntegerForm; 9] = [
    IntegerForm::plain(256, 128),
    IntegerForm::plain(256, 1),
    IntegerForm::plain(256, 4096),
    IntegerForm::plain(32, 128),
    IntegerForm::plain(16, 12),
    IntegerForm::plain(64, 2),
    IntegerForm::with_minima(256, 1953, IntegerMinima { shared: 32, largest: 63 }),
    IntegerForm::with_minima(256, 45, IntegerMinima { shared: 16, largest: 15 }),
    IntegerForm::with_minima(32, 31, IntegerMinima { shared: 32, largest: 1 }),
];

/// Pseudo-random numbers (an LCG with a strong output function).
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32 ^ (self.0 >> 51) as u32
    }

    fn within(&mut self, largest: i32) -> i32 {
        (self.next() % (2 * largest as u32 + 1)) as i32 - largest
    }

    fn unit(&mut self) -> f32 {
        self.within(1 << 20) as f32 / (1 << 20) as f32
    }
}

/// Rows of weights, and the same in the order of the kernel.
struct Weights {
    layout: PanelLayout,
    form: IntegerForm,
    rows: Vec<Vec<RowPart>>,
    codes: Vec<i16>,
    scales: Vec<f32>,
}

impl Weights {
    fn new(form: IntegerForm, n_rows: usize, n_cols: usize, part: &mut dyn FnMut() -> RowPart) -> Self {
        let layout = PanelLayout::new(form, n_cols).unwrap();
        let rows: Vec<Vec<RowPart>> =
            (0..n_rows).map(|_| (0..n_cols.div_ceil(GROUP)).map(|_| part()).collect()).collect();
        let n_strips = layout.n_strips(n_rows);
        let mut codes = vec![7; n_strips * layout.strip_codes()];
        let mut scales = vec![7.0; n_strips * layout.strip_scales()];
        let strips = codes.chunks_mut(layout.strip_codes()).zip(scales.chunks_mut(layout.strip_scales()));
        for ((codes, scales), rows) in strips.zip(rows.chunks(16)) {
            let read = |row: usize, column: usize, _: usize, out: &mut RowPart| {
                *out = rows[row][column / GROUP].clone();
                Ok::<(), ()>(())
            };
            layout.write_strip(rows.len(), read, codes, scales).unwrap();
        }
        Self { layout, form, rows, codes, scales }
    }

    fn panel(&self) -> IntegerPanel<'_> {
        IntegerPanel::new(self.layout, self.rows.len(), &self.codes, &self.scales)
    }
}

fn random_part(form: IntegerForm, noise: &mut Noise) -> RowPart {
    let mut part = RowPart::ZERO;
    part.values.fill_with(|| noise.within(i32::from(form.largest)) as i16);
    part.scales.fill_with(|| noise.unit());
    if let Some(minima) = form.minima {
        part.minima.fill_with(|| (noise.next() % (u32::from(minima.largest) + 1)) as i16);
        part.min_scales.fill_with(|| noise.unit());
    }
    part
}

fn rounded(level: SimdLevel, x: &[f32], n_cols: usize) -> RoundedRows {
    let mut rows = RoundedRows::default();
    rows.parts(x.len() / n_cols, n_cols).into_iter().for_each(|part| part.round(level, x));
    rows
}

fn product(kernel: IntegerKernel, x: &RoundedView<'_>, w: &IntegerPanel<'_>) -> Vec<f32> {
    let mut out = vec![f32::NAN; x.n_tokens() * w.n_rows()];
    let mut tile = MatrixTile::whole(&mut out, x.n_tokens(), w.n_rows());
    multiply(kernel, &mut tile, x, w, 1.5, &mut Vec::new());
    out
}

/// Integers of activations, and their step.
fn integers(x: &[f32]) -> (Vec<i64>, f32) {
    let largest = x.iter().fold(0f32, |largest, x| largest.max(x.abs()));
    let inverse = LARGEST as f32 / largest;
    (x.iter().map(|x| (x * inverse).round_ties_even() as i64).collect(), largest / LARGEST as f32)
}

/// Integers and steps of a group: those of what they leave, too, if the group is uneven.
fn all_integers(x: &[f32]) -> Vec<(Vec<i64>, f32)> {
    let (r, step) = integers(x);
    // Sums of every 16th activation first.
    let mean = (0..16).map(|first| x.iter().skip(first).step_by(16).fold(0f32, |sum, x| sum + x.abs()));
    let mean = mean.fold(0f32, |sum, part| sum + part) / x.len() as f32;
    let rest = x.iter().zip(&r).map(|(&x, &r)| (f64::from(x) - f64::from(step) * r as f64) as f32);
    let rest = (step * 32767.0 > 32.0 * mean).then(|| integers(&rest.collect::<Vec<f32>>()));
    std::iter::once((r, step)).chain(rest).collect()
}

/// Computes the product in the order that the module states, with sums in 64 bits.
fn reference(x: &[f32], n_cols: usize, w: &Weights) -> Vec<f32> {
    let (form, run) = (w.form, run_columns(&w.form));
    let mut out = Vec::new();
    for x in x.chunks(n_cols) {
        let groups: Vec<_> = x.chunks(GROUP).map(all_integers).collect();
        for row in &w.rows {
            let mut y = 0f32;
            let groups = groups.iter().zip(row).flat_map(|(all, part)| all.iter().map(move |r| (r, part)));
            for ((r, step), part) in groups {
                let mut sum = 0f32;
                for (scale, r) in r.chunks(form.scaled).enumerate() {
                    let mut in_floats = 0f32;
                    for (at, r) in r.chunks(run).enumerate() {
                        let values = &part.values[scale * form.scaled + at * run..];
                        let dot: i64 = r.iter().zip(values).map(|(r, v)| r * i64::from(*v)).sum();
                        in_floats += i32::try_from(dot).unwrap() as f32;
                    }
                    sum += in_floats * part.scales[scale];
                    if let Some(minima) = form.minima {
                        let first = scale * form.n_minima();
                        let sums = r.chunks(minima.shared).zip(&part.minima[first..]);
                        let dot: i64 = sums.map(|(r, m)| r.iter().sum::<i64>() * i64::from(*m)).sum();
                        sum -= i32::try_from(dot).unwrap() as f32 * part.min_scales[scale];
                    }
                }
                y += sum * step;
            }
            out.push(1.5 * y);
        }
    }
    out
}

fn same(found: &[f32], want: &[f32], what: &str) {
    assert_eq!(found.len(), want.len());
    for (at, (found, want)) in found.iter().zip(want).enumerate() {
        assert_eq!(found.to_bits(), want.to_bits(), "{what}: {at}: {found}, expected {want}");
    }
}

#[test]
fn every_kernel_gives_the_bits_of_the_reference() {
    let mut noise = Noise(1);
    for form in FORMS {
        for (n_tokens, n_rows, n_cols) in [(1, 1, form.scaled), (13, 17, 512), (7, 32, 256 + form.scaled)] {
            let w = Weights::new(form, n_rows, n_cols, &mut || random_part(form, &mut noise));
            let mut x: Vec<f32> = (0..n_tokens * n_cols).map(|_| noise.unit() * noise.unit()).collect();
            // Uneven groups.
            for x in x.chunks_mut(n_cols).step_by(3) {
                x[noise.next() as usize % n_cols] = 1000.0 * noise.unit();
            }
            let want = reference(&x, n_cols, &w);
            for kernel in IntegerKernel::available() {
                let rows = rounded(SimdLevel::detect(), &x, n_cols);
                let what = format!("{} of {form:?}, {n_tokens} x {n_rows} x {n_cols}", kernel.name());
                same(&product(kernel, &rows.view(), &w.panel()), &want, &what);
            }
        }
    }
}

#[test]
fn extremes_of_all_signs_do_not_overflow() {
    for form in FORMS {
        for (weight_sign, x_sign) in [(1, 1.0), (-1, 1.0), (1, -1.0), (-1, -1.0)] {
            let n_cols = 512;
            let w = Weights::new(form, 17, n_cols, &mut || {
                let mut part = RowPart::ZERO;
                part.values.fill(form.largest as i16 * weight_sign);
                part.scales.fill(1.0);
                if let Some(minima) = form.minima {
                    part.minima.fill(minima.largest as i16);
                    part.min_scales.fill(-1.0);
                }
                part
            });
            let x = vec![x_sign * 3.0; 14 * n_cols];
            let want = reference(&x, n_cols, &w);
            let rows = rounded(SimdLevel::Scalar, &x, n_cols);
            for kernel in IntegerKernel::available() {
                same(
                    &product(kernel, &rows.view(), &w.panel()),
                    &want,
                    &format!("{} {form:?}", kernel.name()),
                );
            }
            let sums = form.minima.map_or(0.0, |minima| f64::from(minima.largest) * f64::from(x_sign));
            let each = f64::from(form.largest) * f64::from(weight_sign) * f64::from(x_sign) + sums;
            let exact = 1.5 * 3.0 * n_cols as f64 * each;
            assert!((f64::from(want[0]) - exact).abs() <= 1e-5 * exact.abs(), "{form:?}: {}", want[0]);
        }
    }
}

#[test]
fn runs_are_as_long_as_32_bits_allow() {
    for form in FORMS {
        let run = run_columns(&form) as i64;
        let most = |n: i64| n * i64::from(form.largest) * i64::from(LARGEST);
        assert!(most(run) < 1 << 31, "{form:?}");
        assert!(run as usize == form.scaled || most(2 * run) >= 1 << 31, "{form:?}");
        let minima =
            form.minima.map_or(0, |m| i64::from(m.largest) * form.scaled as i64 * i64::from(LARGEST));
        assert!(minima < 1 << 31, "{form:?}");
    }
}

#[test]
fn rounding_is_the_same_at_every_level() {
    let mut noise = Noise(2);
    for n_cols in [32, 256, 400] {
        let spread = |noise: &mut Noise| noise.unit() * (noise.next() % 1000) as f32;
        let mut x: Vec<f32> = (0..131 * n_cols).map(|_| spread(&mut noise)).collect();
        x.chunks_mut(n_cols).step_by(5).for_each(|x| x[7] = 1e6);
        let want = rounded(SimdLevel::Scalar, &x, n_cols);
        for level in SimdLevel::available() {
            let found = rounded(level, &x, n_cols);
            assert_eq!(found.records, want.records, "{level}");
            assert_eq!(found.steps, want.steps, "{level}");
            let rests = |rows: &RoundedRows| {
                let all = rows.view().rests(0).map(|(_, rests)| rests.clone());
                all.map(|rests| (rests.tokens, rests.records, rests.steps)).collect::<Vec<_>>()
            };
            assert_eq!(rests(&found), rests(&want), "{level}");
            let n_rests: usize = rests(&found).iter().map(|rests| rests.0.len()).sum();
            // One of 32 is never 32 times the mean.
            assert_eq!(n_rests, if n_cols == 32 { 0 } else { 27 }, "{level}");
        }
    }
}

#[test]
fn a_row_does_not_depend_on_other_rows() {
    let mut noise = Noise(3);
    let (form, n_cols) = (FORMS[6], 768);
    let w = Weights::new(form, 40, n_cols, &mut || random_part(form, &mut noise));
    let mut x: Vec<f32> = (0..700 * n_cols).map(|_| noise.unit()).collect();
    // Groups of some tokens are uneven: none, one, or many of those that are rounded together.
    for at in [0, 5, 6, 7, 11, 12, 100, 255, 256, 257, 258, 263, 264, 300, 699] {
        x[at * n_cols + 300] = 1e5;
    }
    let rows = rounded(SimdLevel::detect(), &x, n_cols);
    let kernel = IntegerKernel::of(SimdLevel::detect());
    let all = product(kernel, &rows.view(), &w.panel());
    for range in [0..1, 5..12, 250..270, 699..700, 3..700] {
        let some = product(kernel, &rows.view().tokens(range.clone()), &w.panel());
        same(&some, &all[range.start * 40..range.end * 40], &format!("{range:?}"));
    }
}

#[test]
fn rows_are_rounded_again_without_what_they_held() {
    let mut noise = Noise(6);
    let w = Weights::new(FORMS[0], 3, 512, &mut || random_part(FORMS[0], &mut noise));
    let mut x: Vec<f32> = (0..100 * 512).map(|_| noise.unit()).collect();
    let even = x.clone();
    x.chunks_mut(256).for_each(|x| x[3] = 1e4);
    let level = SimdLevel::detect();
    let mut rows = rounded(level, &x, 512);
    for n_tokens in [70, 100, 1] {
        let even = &even[..n_tokens * 512];
        rows.parts(n_tokens, 512).into_iter().for_each(|part| part.round(level, even));
        let [again, fresh] = [&rows, &rounded(level, even, 512)]
            .map(|rows| product(IntegerKernel::of(level), &rows.view(), &w.panel()));
        same(&again, &fresh, "rounded again");
    }
}

/// Rounds one group and multiplies it with weights of 1.
fn sum_of(x: &[f32]) -> f32 {
    let form = IntegerForm::plain(256, 1);
    let part = || RowPart { values: [1; GROUP], scales: [1.0; GROUP / 16], ..RowPart::ZERO };
    let w = Weights::new(form, 1, x.len(), &mut { part });
    product(
        IntegerKernel::of(SimdLevel::detect()),
        &rounded(SimdLevel::detect(), x, x.len()).view(),
        &w.panel(),
    )[0]
}

#[test]
fn groups_have_their_own_steps() {
    let mut x = vec![0.01; 512];
    let plain = f64::from(sum_of(&x));
    assert!((plain - 1.5 * 5.12).abs() < 1e-5);
    // A huge value spoils no other group.
    x[..256].fill(0.0);
    let half = f64::from(sum_of(&x));
    assert!((half - 1.5 * 2.56).abs() < 1e-5);
    (x[0], x[1]) = (1e30, -1e30);
    assert_eq!(f64::from(sum_of(&x)), half);
}

#[test]
fn a_large_activation_spoils_no_other_in_its_group() {
    let mut noise = Noise(5);
    let form = IntegerForm::plain(256, 128);
    let kernel = IntegerKernel::of(SimdLevel::detect());
    for large in [1.0, 31.0, 1e2, 1e4, 1e6, -1e6] {
        let w = Weights::new(form, 1, 256, &mut || {
            let mut part = random_part(form, &mut noise);
            part.values[77] = 0;
            part
        });
        let mut x: Vec<f32> = (0..256).map(|_| noise.unit()).collect();
        x[77] = large;
        let rows = rounded(SimdLevel::detect(), &x, 256);
        let found = f64::from(product(kernel, &rows.view(), &w.panel())[0]);
        let part = &w.rows[0][0];
        let products = x.iter().zip(&part.values).map(|(x, v)| f64::from(*x) * f64::from(*v));
        let products = products.map(|product| 1.5 * f64::from(part.scales[0]) * product);
        let (sum, power) = products.fold((0.0, 0.0), |(sum, power), p| (sum + p, power + p * p));
        // A step is at most 32 means of magnitudes through 32767, whatever the largest is.
        let off = (found - sum).abs() / f64::sqrt(power);
        assert!(off < 1e-3, "{large}: {found}, expected {sum}, {off}");
        let all_equal = rounded(SimdLevel::detect(), &vec![large; 256], 256);
        assert!(all_equal.view().rests(0).all(|(some, _)| some.is_empty()), "{large} everywhere is even");
    }
}

#[test]
fn activations_that_are_not_finite_give_nan_and_tiny_ones_their_sum() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut x = vec![1.0; 512];
        x[300] = bad;
        assert!(sum_of(&x).is_nan(), "{bad}");
    }
    assert_eq!(sum_of(&[0.0; 256]), 0.0);
    assert_eq!(sum_of(&[-0.0; 256]), 0.0);
    for tiny in [1e-31f32, 1e-35, 1e-37] {
        let sum = f64::from(sum_of(&[tiny; 256])) / f64::from(tiny);
        assert!((sum - 384.0).abs() < 0.1, "{tiny}: {sum}");
    }
    assert!(sum_of(&[f32::MAX / 1024.0; 256]).is_finite());
    assert!(sum_of(&[1e-45; 256]) >= 0.0);
}

#[test]
fn records_hold_the_sums_of_their_activations() {
    let mut noise = Noise(4);
    let x: Vec<f32> = (0..256).map(|at| if at < 64 { 1.0 } else { noise.unit() }).collect();
    let rows = rounded(SimdLevel::detect(), &x, 256);
    let record: &[i32; RECORD] = &rows.records[0];
    let halves = |pair: i32| (i32::from(pair as i16), pair >> 16);
    let values: Vec<i32> = record[..128].iter().flat_map(|&p| <[i32; 2]>::from(halves(p))).collect();
    assert_eq!(values[..64], [LARGEST; 64]);
    for (n, first) in [(16, rounded::SUMS_16), (32, rounded::SUMS_32)] {
        for (at, values) in values.chunks(n).enumerate() {
            let (low, high) = halves(record[first + at]);
            assert_eq!(low + HIGH * high, values.iter().sum::<i32>(), "{n}: {at}");
        }
    }
}

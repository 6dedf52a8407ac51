//! Tests of every type at every magnitude: values that the blocks do not hold must be reported.

use gguf_core::{GgmlType, ImatrixNeed, simd::SimdLevel};

use crate::noise::Noise;
use crate::{
    QuantError, SmallRows, can_quantize, check_rows, dequantize, has_lost_groups, quantize_rows,
    validate_blocks,
};

const N_COLS: usize = 512;
const N_STEPS: usize = 81;

/// Returns magnitudes from 1e-45 to 3.4e38.
fn magnitude(step: usize) -> f64 {
    10f64.powf(-45.0 + step as f64 * (38.53 + 45.0) / (N_STEPS - 1) as f64)
}

#[derive(Clone, Copy, Debug)]
enum RowShape {
    Bell,
    Even,
    Spikes,
}

/// Returns a row of one form; the largest magnitude is 1.
fn values(shape: RowShape) -> Vec<f64> {
    let mut noise = Noise::new(1);
    let mut uniform = move || f64::from(noise.unit()) - 0.5;
    (0..N_COLS)
        .map(|at| match shape {
            RowShape::Bell if at == 3 => 1.0,
            RowShape::Bell => ((0..6).map(|_| uniform()).sum::<f64>() / 1.8).clamp(-1.0, 1.0),
            RowShape::Even => 1.0 - 2.0 * (at % 2) as f64,
            RowShape::Spikes if at % 256 == 37 => 1.0,
            RowShape::Spikes => uniform() * 1e-3,
        })
        .collect()
}

fn weights(scale: f64) -> Vec<f32> {
    (0..N_COLS).map(|at| ((0.1 + (at * 7 % 64) as f64 / 32.0) * scale) as f32).collect()
}

fn targets() -> impl Iterator<Item = GgmlType> {
    GgmlType::all()
        .filter(|&ty| can_quantize(ty) && (ty.is_quantized() || matches!(ty, GgmlType::F16 | GgmlType::Bf16)))
}

/// Quantizes like a program, including the checks; returns the small rows and the relative error.
fn run(ty: GgmlType, row: &[f32], imatrix: Option<&[f32]>) -> Result<(SmallRows, f64), String> {
    let level = SimdLevel::detect();
    let mut blocks = vec![0; N_COLS / ty.block_elems() * ty.block_bytes()];
    let text = |error: QuantError| error.to_string();
    quantize_rows(ty, level, N_COLS, row, imatrix, &mut blocks).map_err(text)?;
    validate_blocks(ty, &blocks).map_err(|error| error.to_string())?;
    let small = check_rows(ty, level, N_COLS, row, imatrix, &blocks).map_err(text)?;
    let mut back = vec![0.0; N_COLS];
    dequantize(ty, level, &blocks, &mut back).map_err(text)?;
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>();
    let error = square(&mut row.iter().zip(&back).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    let size = square(&mut row.iter().map(|a| f64::from(*a)));
    Ok((small, (error / size).sqrt()))
}

/// Returns scales of importance: ordinary, far below, far above, or none.
fn importances(ty: GgmlType) -> Vec<Option<f64>> {
    match ty.info().imatrix {
        ImatrixNeed::Ignored => vec![None],
        ImatrixNeed::Optional => vec![None, Some(1.0), Some(1e-30), Some(1e30)],
        ImatrixNeed::Required => vec![Some(1.0), Some(1e-30), Some(1e30)],
    }
}

#[test]
fn at_every_magnitude_a_row_is_held_or_reported() {
    for ty in targets() {
        for scale in importances(ty) {
            let imatrix = scale.map(weights);
            // Magnitudes at which nothing is reported, over all forms.
            let (mut lowest, mut highest) = (0.0f64, f64::INFINITY);
            for row_shape in [RowShape::Bell, RowShape::Even, RowShape::Spikes] {
                let shape = values(row_shape);
                let row = |magnitude: f64| -> Vec<f32> {
                    shape.iter().map(|value| (value * magnitude) as f32).collect()
                };
                let error_at =
                    |magnitude| run(ty, &row(magnitude), scale.map(|_| weights(1.0)).as_deref()).unwrap().1;
                let usual = error_at(1.0);
                for step in 0..N_STEPS {
                    let magnitude = magnitude(step);
                    let row = row(magnitude);
                    let name = format!("{ty}, importance {scale:?}, {row_shape:?}, {magnitude:e}");
                    match run(ty, &row, imatrix.as_deref()) {
                        Ok((SmallRows { n_rows: 0, .. }, error)) => {
                            // Searches are invariant to powers of two only: IQ1_M finds other codes for other
                            // mantissas.
                            let is_usual = |usual: f64| error <= 1.6 * usual + 0.3;
                            let mantissa = magnitude / magnitude.log2().floor().exp2();
                            assert!(
                                is_usual(usual) || is_usual(error_at(mantissa)),
                                "{name}: silent, but error {error}, not {usual}"
                            );
                        }
                        Ok((small, _)) => {
                            let below = if ty == GgmlType::Nvfp4 { 0.05 } else { 1e-3 };
                            assert!(magnitude < below && small.first.unwrap().row == 0, "{name}: small");
                            lowest = lowest.max(magnitude);
                        }
                        Err(error) => {
                            let is_importance = error.contains("importance weights up to");
                            let is_ordinary = (1e-3..1e3).contains(&magnitude);
                            assert!(!is_ordinary || is_importance && scale != Some(1.0), "{name}: {error}");
                            if magnitude > 1.0 {
                                highest = highest.min(magnitude);
                            } else {
                                lowest = lowest.max(magnitude);
                            }
                        }
                    }
                }
            }
            println!("{ty} importance {scale:?}: silent above {lowest:.0e}, below {highest:.0e}");
        }
    }
}

#[test]
fn large_values_that_come_out_as_zeros_or_cut_off_are_named() {
    for (ty, largest) in [
        (GgmlType::Q6K, 1e20),
        (GgmlType::Q6K, 1e36),
        (GgmlType::Q3K, 1e20),
        (GgmlType::Iq4Xs, 1e20),
        (GgmlType::Nvfp4, 4000.0),
        (GgmlType::Nvfp4, 1e20),
        (GgmlType::Iq3S, 1e21),
    ] {
        let mut rows = vec![0.01f32; 3 * N_COLS];
        for (at, value) in rows[2 * N_COLS + 256..].iter_mut().enumerate() {
            *value = largest * (1.0 - 0.001 * (at % 7) as f32);
        }
        let level = SimdLevel::detect();
        let mut blocks = vec![0; 3 * N_COLS / ty.block_elems() * ty.block_bytes()];
        let error = quantize_rows(ty, level, N_COLS, &rows, None, &mut blocks)
            .and_then(|()| check_rows(ty, level, N_COLS, &rows, None, &blocks))
            .unwrap_err();
        let expected = QuantError::Magnitude { ty, row: 2, column: 256, largest };
        assert_eq!(error, expected, "{ty}");
        let text = format!("row 2, from column 256 on: values up to {largest:e} are too large for {ty}");
        assert_eq!(error.to_string(), text);
    }
}

#[test]
fn one_huge_value_does_not_make_small_values_of_its_row_an_error() {
    // A block type is expected to lose the other values of its block.
    for ty in targets() {
        let mut row = vec![0.01; N_COLS];
        row[300] = 3000.0;
        let imatrix = weights(1.0);
        let Ok((small, _)) = run(ty, &row, Some(&imatrix)) else {
            assert_eq!(ty, GgmlType::Nvfp4, "{ty}");
            continue;
        };
        assert_eq!(small, SmallRows::default(), "{ty}");
    }
}

/// Checks the list of lost groups against the groups that become zeros, or nearly.
#[test]
fn columns_without_importance_are_lost_where_reported() {
    let shape: Vec<f32> = values(RowShape::Bell).iter().map(|&value| value as f32 * 0.05).collect();
    for ty in targets().filter(|ty| ty.info().imatrix != ImatrixNeed::Ignored) {
        let level = SimdLevel::detect();
        let error = |weights: &[f32]| {
            let mut blocks = vec![0; N_COLS / ty.block_elems() * ty.block_bytes()];
            quantize_rows(ty, level, N_COLS, &shape, Some(weights), &mut blocks).unwrap();
            let mut back = vec![0.0; N_COLS];
            dequantize(ty, level, &blocks, &mut back).unwrap();
            let (mut error, mut square) = (0.0, 0.0);
            for at in 0..256 {
                error += f64::from(shape[at] - back[at]).powi(2);
                square += f64::from(shape[at]).powi(2);
            }
            (error / square).sqrt()
        };
        let usual = error(&[1.0; N_COLS]);
        let mut weights = weights(1.0);
        weights[..256].fill(0.0);
        let (found, is_lost) = (error(&weights), has_lost_groups(ty, &weights));
        assert_eq!(is_lost, found > 1.6 * usual + 0.05, "{ty}: {found}, with importance {usual}");
    }
}

#[test]
fn importance_that_is_negative_or_no_number_is_an_error_in_every_type() {
    for ty in targets() {
        let mut imatrix = weights(1.0);
        imatrix[300] = -1.0;
        let error = run(ty, &[1.0; N_COLS], Some(&imatrix)).unwrap_err();
        assert_eq!(
            error, "importance of column 300 is -1: a finite number that is not negative expected",
            "{ty}"
        );
    }
}

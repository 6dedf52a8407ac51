//! Tests that any bytes are a state, and that a state gives back those bytes.

use super::*;
use crate::{dequantize, quantize_rows};
use gguf_core::simd::SimdLevel;
use proptest::prelude::*;

/// Packs what was unpacked, and decodes it in both ways.
fn check(form: &GridForm, block: &[u8]) {
    let (mut state, mut back) = (GridState::ZERO, vec![0xa5; block.len()]);
    form.unpack(block, &mut state).unwrap();
    form.pack(&state, &mut back).unwrap();
    assert_eq!(back, block, "{}", form.ty);
    let (mut found, mut want) = (vec![0.0; GRID_ELEMS], vec![0.0; GRID_ELEMS]);
    form.decode(&state, &mut found);
    dequantize(form.ty, SimdLevel::Scalar, block, &mut want).unwrap();
    for (at, (found, want)) in found.iter().zip(&want).enumerate() {
        let same = found.to_bits() == want.to_bits() || found.is_nan() && want.is_nan();
        assert!(same, "{}, element {at}: {found:e}, decoder {want:e}", form.ty);
    }
}

proptest! {
    #[test]
    fn any_bytes_are_a_state(bytes in prop::collection::vec(any::<u8>(), 128)) {
        for form in GRID_FORMS {
            check(form, &bytes[..form.ty.block_bytes()]);
        }
    }

    #[test]
    fn what_quantizers_write_is_a_state(
        x in prop::collection::vec(-1f32..1.0, 256),
        weights in prop::collection::vec(0f32..1.0, 256),
        exponent in -12i32..5,
    ) {
        let x: Vec<f32> = x.iter().map(|x| x * 2f32.powi(exponent)).collect();
        for form in GRID_FORMS {
            let mut block = vec![0; form.ty.block_bytes()];
            quantize_rows(form.ty, SimdLevel::Scalar, 256, &x, Some(&weights), &mut block).unwrap();
            check(form, &block);
        }
    }
}

#[test]
fn every_bit_changes_one_number() {
    for form in GRID_FORMS {
        let n_bytes = form.ty.block_bytes();
        let (mut zero, mut state) = (GridState::ZERO, GridState::ZERO);
        form.unpack(&vec![0; n_bytes], &mut zero).unwrap();
        let mut seen = Vec::new();
        for bit in 0..8 * n_bytes {
            let mut block = vec![0; n_bytes];
            block[bit / 8] = 1 << (bit % 8);
            form.unpack(&block, &mut state).unwrap();
            assert!(state != zero && !seen.contains(&state), "{}: bit {bit}", form.ty);
            seen.push(state.clone());
        }
    }
}

#[test]
fn numbers_out_of_range_are_refused() {
    let mut block = [0; 110];
    for form in GRID_FORMS {
        let ty = form.ty;
        let block = &mut block[..ty.block_bytes()];
        let mut state = GridState::ZERO;
        assert_eq!(form.pack(&state, block), Ok(()));
        state.points[31] = form.n_points() as u16;
        let point = state.points[31];
        assert_eq!(form.pack(&state, block), Err(GridStateError::Point { ty, vector: 31, point }));
        state.points[31] = 0;
        state.levels[7] = form.n_levels;
        let error = GridStateError::Level { ty, part: 7, level: form.n_levels };
        assert_eq!(form.pack(&state, block), Err(error));
        state.levels[7] = 0;
        state.signs[13] = 2;
        let is_free = form.signs == Signs::Free;
        let error = GridStateError::Signs { ty, first: 104, signs: 2 };
        assert_eq!(form.pack(&state, block), if is_free { Ok(()) } else { Err(error) });
        let short = GridStateError::Length { ty, expected: block.len(), found: block.len() - 1 };
        assert_eq!(form.unpack(&block[1..], &mut state), Err(short));
    }
    // One shift for four vectors.
    let form = grid_form(GgmlType::Iq1S).unwrap();
    let mut state = GridState { signs: [1; 32], ..GridState::ZERO };
    assert_eq!(form.pack(&state, &mut block[..50]), Ok(()));
    state.signs[6] = 0;
    let error = GridStateError::Signs { ty: GgmlType::Iq1S, first: 48, signs: 0 };
    assert_eq!(form.pack(&state, &mut block[..50]), Err(error));
    assert!(grid_form(GgmlType::Q4K).is_none());
}

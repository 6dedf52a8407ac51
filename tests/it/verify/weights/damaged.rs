//! Damages of codes, scales and values are found in every type, and named.

use gguf_foundry::core::GgmlType;
use gguf_foundry::verify::Cause;

use super::{K, OUT, Q, TYPES, compare, found, layout, n_blocks, quantized, randomize, small};
use crate::support::tiers::{Tier, deep_test, two_tiers};
use crate::testkit::tiny::Tiny;

two_tiers!(damaged_codes_are_found_in_every_type_with_and_without_importance);

fn damaged_codes_are_found_in_every_type_with_and_without_importance(tier: Tier) {
    let base = small();
    for ty in tier.some(9, TYPES) {
        for weighted in [false, true] {
            let healthy = quantized(&base, ty, weighted);
            let n = n_blocks(&healthy, K);
            let what = |text: &str| format!("{text}, weighted {weighted}");

            let mut broken = healthy.clone();
            randomize(&mut broken, K, 0..n);
            let unrelated = |cause: &Cause| matches!(cause, Cause::Unrelated | Cause::Blocks { .. });
            found(&what("all codes random"), &broken, &base, &[K], &unrelated);

            let mut broken = healthy.clone();
            randomize(&mut broken, K, (0..n).step_by(10));
            let tenth = |cause: &Cause| matches!(cause, Cause::Blocks { count, .. } if *count == n.div_ceil(10) as u64);
            found(&what("every tenth block random"), &broken, &base, &[K], &tenth);

            let mut broken = healthy.clone();
            let bad = n / 2 + 1;
            randomize(&mut broken, K, std::iter::once(bad));
            let per_row = 256 / ty.block_elems();
            let place = ((bad / per_row) as u64, (bad % per_row) as u64);
            let one = |cause: &Cause| match cause {
                Cause::Blocks { count: 1, first } => (first[0].0, first[0].1) == place,
                _ => false,
            };
            found(&what("one block random"), &broken, &base, &[K], &one);

            let scale = layout(ty).1;
            for bit in [7, 6] {
                let mut broken = healthy.clone();
                broken.tensors.bytes_mut(K)[bad * ty.block_bytes() + scale + 1] ^= 1 << bit;
                let one = |cause: &Cause| match cause {
                    Cause::Blocks { count: 1, first } => (first[0].0, first[0].1) == place,
                    // If blocks are as long as the rows, the row is scaled.
                    Cause::RowsScaled { count: 1, first } => first[0].0 == place.0 && per_row == 1,
                    _ => false,
                };
                found(&what(&format!("bit {bit} of a scale")), &broken, &base, &[K], &one);
            }
        }
    }
}

#[test]
fn a_halved_scale_shows_in_a_file_that_is_reproduced_otherwise() {
    let base = small();
    for ty in TYPES {
        let mut broken = quantized(&base, ty, false);
        let scale = 5 * ty.block_bytes() + layout(ty).1;
        let bytes = &mut broken.tensors.bytes_mut(K)[scale..scale + 2];
        let half = u16::from_le_bytes([bytes[0], bytes[1]]) - (1 << 10);
        bytes.copy_from_slice(&half.to_le_bytes());
        found("a halved scale", &broken, &base, &[K], &|_| true);
    }
}

/// Quantizes after a change of the values.
fn changed(base: &Tiny, ty: GgmlType, weighted: bool, change: impl Fn(&mut Tiny)) -> Tiny {
    let mut model = base.clone();
    change(&mut model);
    quantized(&model, ty, weighted)
}

two_tiers!(values_in_the_wrong_place_are_found_and_named);

fn values_in_the_wrong_place_are_found_and_named(tier: Tier) {
    let base = small();
    for ty in tier.some(9, TYPES) {
        for weighted in [false, true] {
            let broken = changed(&base, ty, weighted, |tiny| {
                tiny.edit(Q, |values| {
                    (0..256).for_each(|column| values.swap(3 * 256 + column, 70 * 256 + column));
                });
            });
            let rows = |cause: &Cause| cause.to_string() == "rows 3 and 70 are swapped";
            found("two rows", &broken, &base, &[Q], &rows);

            let other = "blk.1.attn_v.weight";
            let broken = changed(&base, ty, weighted, |tiny| tiny.tensors.swap(K, other));
            let holds =
                |cause: &Cause| matches!(cause, Cause::Holds { tensor } if tensor == K || tensor == other);
            found("two tensors", &broken, &base, &[K, other], &holds);

            let broken = changed(&base, ty, weighted, |tiny| {
                tiny.unpermute(Q, 4);
                tiny.unpermute(K, 2);
            });
            let order = |cause: &Cause| matches!(cause, Cause::RotaryOrder { head_rows: 64, halves: true });
            found("no permutation", &broken, &base, &[Q, K], &order);

            let broken =
                changed(&base, ty, weighted, |tiny| tiny.edit(OUT, |values| values.rotate_right(5 * 256)));
            let shift = |cause: &Cause| matches!(cause, Cause::RowsShifted { by: 5 });
            found("rows shifted", &broken, &base, &[OUT], &shift);

            let broken = changed(&base, ty, weighted, |tiny| {
                tiny.edit(OUT, |values| {
                    let old = values.to_vec();
                    (0..256 * 256).for_each(|at| values[at] = old[at % 256 * 256 + at / 256]);
                });
            });
            found("transposed", &broken, &base, &[OUT], &|cause| *cause == Cause::Transposed);

            let broken =
                changed(&base, ty, weighted, |tiny| tiny.edit(OUT, |values| values.rotate_right(32)));
            let shift = |cause: &Cause| matches!(cause, Cause::ElementsShifted { by: 32 });
            found("elements shifted", &broken, &base, &[OUT], &shift);
        }
    }
}

#[test]
fn swapped_layers_are_one_finding() {
    let base = small();
    for ty in [GgmlType::F16, GgmlType::Q4K, GgmlType::Iq2S] {
        let broken = changed(&base, ty, false, |tiny| {
            for role in ["attn_q", "attn_k", "attn_v", "attn_output", "attn_norm"] {
                tiny.tensors.swap(&format!("blk.1.{role}.weight"), &format!("blk.2.{role}.weight"));
            }
        });
        let report = compare(&broken, &base);
        let texts: Vec<_> = report.findings.iter().map(|finding| finding.message.as_str()).collect();
        assert_eq!(texts, ["layers 1 and 2 are swapped: 5 tensors of each hold the other's values"], "{ty}");
    }
}

deep_test!(scaled_values_are_found_and_named);

fn scaled_values_are_found_and_named() {
    let base = small();
    for ty in TYPES {
        for weighted in [false, true] {
            let row =
                |tiny: &mut Tiny| tiny.edit(K, |v| v[17 * 256..18 * 256].iter_mut().for_each(|x| *x *= 1.5));
            let broken = changed(&base, ty, weighted, row);
            let scaled = |cause: &Cause| match cause {
                Cause::RowsScaled { count: 1, first } => first[0].0 == 17 && (first[0].1 - 1.5).abs() < 0.2,
                _ => false,
            };
            found("a row", &broken, &base, &[K], &scaled);

            // A tenth more or less is within the effect of importance on codes of two bits.
            if !matches!(ty, GgmlType::Iq2S | GgmlType::Q2K) {
                let broken = changed(&base, ty, weighted, |tiny| {
                    tiny.edit(K, |values| values.iter_mut().for_each(|x| *x *= 0.9));
                });
                let scaled =
                    |cause: &Cause| matches!(cause, Cause::Scaled { factor } if (factor - 0.9).abs() < 0.06);
                found("the tensor", &broken, &base, &[K], &scaled);
            }
        }
        if !matches!(ty, GgmlType::Iq2S | GgmlType::Q2K) {
            let broken = changed(&base, ty, false, |tiny| {
                tiny.edit(K, |values| values.iter_mut().skip(9).step_by(256).for_each(|x| *x *= 1.6));
            });
            let scaled =
                |cause: &Cause| matches!(cause, Cause::ColumnsScaled { count: 1, first } if first[0].0 == 9);
            found("a column", &broken, &base, &[K], &scaled);
        }
    }
}

//! Tests of every layout operation against index arithmetic on a plain array.

use super::*;
use crate::ShapeError;
use gguf_arch::MathOp;
use gguf_testkit::memory::MemoryWeights;

/// Weights with ascending values: element `i` of weight `w` is `1000 w + i`.
struct Counting(MemoryWeights);

impl Counting {
    fn new(dims: &[&[u64]], ty: ElementType, is_mapped: bool) -> Self {
        let mut source = MemoryWeights::default().mapped(is_mapped);
        for (w, dims) in dims.iter().enumerate() {
            let values = (0..dims.iter().product()).map(|i| (1000 * w as u64 + i) as f32);
            let bytes = match ty {
                ElementType::F32 => values.flat_map(f32::to_le_bytes).collect(),
                ElementType::Bf16 => values.flat_map(|x| half::bf16::from_f32(x).to_le_bytes()).collect(),
                _ => values.flat_map(|x| half::f16::from_f32(x).to_le_bytes()).collect(),
            };
            source.add(&format!("w{w}"), dims, ty, bytes);
        }
        Self(source)
    }

    fn view(&self, weight: usize) -> View {
        View::weight(weight, &self.0.weights()[weight])
    }
}

/// Returns all elements of a view; checks that every range reads the same, mapped and not.
fn elements(dims: &[&[u64]], make: impl Fn(&Counting) -> View) -> (Vec<u64>, Vec<i64>) {
    let mut whole = Vec::new();
    let mut shape = Vec::new();
    for mapped in [true, false] {
        let source = Counting::new(dims, ElementType::F32, mapped);
        let view = make(&source);
        let recipe = Recipe::new(&view).unwrap();
        shape = view.shape().to_vec();
        let n = recipe.shape().n_elems() as usize;
        whole = vec![0.0; n];
        recipe.read_f32(&source.0, SimdLevel::Scalar, 0, &mut whole).unwrap();
        for first in 0..n {
            for len in [1, 2, 3, n - first] {
                let mut part = vec![0.0; len.min(n - first)];
                recipe.read_f32(&source.0, SimdLevel::Scalar, first as u64, &mut part).unwrap();
                assert_eq!(part, whole[first..first + part.len()]);
            }
        }
        // As whole rows in the source's own type: the copying path.
        if n > 0 {
            let mut bytes = vec![0; n * 4];
            let policy = ReadPolicy { level: SimdLevel::Scalar, allow_nonfinite: false };
            recipe.read_rows(&source.0, GgmlType::F32, policy, 0, &mut bytes).unwrap();
            let copied: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
            assert_eq!(copied, whole);
        }
    }
    (shape, whole.iter().map(|&x| x as i64).collect())
}

/// Returns the result of numpy's `a.reshape(from).transpose(order).reshape(to)` for `arange`.
fn numpy(from: &[usize], order: &[usize]) -> Vec<i64> {
    let n: usize = from.iter().product();
    let to: Vec<usize> = order.iter().map(|&axis| from[axis]).collect();
    (0..n)
        .map(|mut at| {
            let mut index = vec![0; from.len()];
            for (i, &size) in to.iter().enumerate().rev() {
                index[order[i]] = at % size;
                at /= size;
            }
            index.iter().zip(from).fold(0, |flat, (&i, &size)| flat * size + i) as i64
        })
        .collect()
}

#[test]
fn rope_permutation_is_a_swap_of_halves_and_pairs() {
    let (shape, got) = elements(&[&[12, 3]], |s| s.view(0).permute_rope(2).unwrap());
    assert_eq!(shape, [12, 3]);
    assert_eq!(got, numpy(&[2, 2, 3, 3], &[0, 2, 1, 3]));
    let (_, bias) = elements(&[&[8]], |s| s.view(0).permute_rope(2).unwrap());
    assert_eq!(bias, [0, 2, 1, 3, 4, 6, 5, 7]);
}

#[test]
fn zipping_undoes_unzipping() {
    let halves = |s: &Counting| s.view(0).unzip(1, 2).unwrap();
    for (which, first) in [(0, 0), (1, 4)] {
        let (shape, got) = elements(&[&[2, 6, 4]], |s| halves(s)[which].clone());
        let want: Vec<i64> = (0..48).filter(|i| i % 8 / 4 == first / 4).collect();
        assert_eq!((shape, got), (vec![2, 3, 4], want));
    }
    let zip = |s: &Counting| View::zip(halves(s), 1).unwrap();
    assert_eq!(elements(&[&[2, 6, 4]], zip), (vec![2, 6, 4], (0..48).collect()));
    // When a stack is transposed back, the parts take turns inside a row.
    let transposed = elements(&[&[2, 6, 4]], |s| zip(s).transpose(1, 2).unwrap());
    assert_eq!(transposed, (vec![2, 4, 6], numpy(&[2, 6, 4], &[0, 2, 1])));
    let cut = elements(&[&[2, 6, 4]], |s| zip(s).slice(1, 2, 6).unwrap().slice(0, 1, 2).unwrap());
    assert_eq!(cut, (vec![1, 4, 4], (32..48).collect()));
    let (_, two) = elements(&[&[3], &[3]], |s| View::zip(vec![s.view(0), s.view(1)], 0).unwrap());
    assert_eq!(two, [0, 1000, 1, 1001, 2, 1002]);

    let source = Counting::new(&[&[2, 6, 4], &[2, 4, 4]], ElementType::F32, false);
    let seam = |view: Result<View, ShapeError>| matches!(view, Err(ShapeError::Seam { .. }));
    assert!(seam(zip(&source).slice(1, 1, 4)), "turns are not cut");
    assert!(seam(zip(&source).reshape(&[2, 24])), "turns are not joined with other axes");
    let uneven = View::zip(vec![source.view(0), source.view(1)], 1);
    assert!(matches!(uneven, Err(ShapeError::Join { .. })));
    assert!(matches!(View::zip(vec![source.view(0)], 3), Err(ShapeError::Axis { .. })));
}

#[test]
fn axes_permute_transpose_and_reshape() {
    let (shape, got) = elements(&[&[24, 2]], |s| s.view(0).permute_axis(0, &[2, 3, 4], &[2, 0, 1]).unwrap());
    assert_eq!((shape, got), (vec![24, 2], numpy(&[2, 3, 4, 2], &[2, 0, 1, 3])));
    let (shape, got) = elements(&[&[2, 3, 4]], |s| s.view(0).transpose(0, 2).unwrap());
    assert_eq!((shape, got), (vec![4, 3, 2], numpy(&[2, 3, 4], &[2, 1, 0])));
    let (shape, got) = elements(&[&[6, 4]], |s| s.view(0).reshape(&[2, 12]).unwrap());
    assert_eq!((shape, got), (vec![2, 12], (0..24).collect::<Vec<_>>()));
    // A reshape across a reordering: joined axes can be split where the factors allow.
    let (_, got) = elements(&[&[4, 6]], |s| s.view(0).transpose(0, 1).unwrap().reshape(&[3, 8]).unwrap());
    assert_eq!(got, numpy(&[4, 6], &[1, 0]));
    let source = Counting::new(&[&[6, 5]], ElementType::F32, true);
    assert!(matches!(
        source.view(0).transpose(0, 1).unwrap().reshape(&[3, 10]),
        Err(ShapeError::Seam { .. })
    ));
}

#[test]
fn slices_cut_anywhere_even_across_factors() {
    for (start, end) in [(0, 24), (1, 2), (3, 17), (8, 16), (5, 24), (4, 4)] {
        let (shape, got) = elements(&[&[24, 2]], |s| {
            s.view(0).permute_axis(0, &[2, 3, 4], &[1, 0, 2]).unwrap().slice(0, start, end).unwrap()
        });
        let all = numpy(&[2, 3, 4, 2], &[1, 0, 2, 3]);
        assert_eq!(shape, [end - start, 2]);
        assert_eq!(got, all[start as usize * 2..end as usize * 2], "{start}..{end}");
    }
    let (_, columns) = elements(&[&[3, 5]], |s| s.view(0).slice(1, 1, 3).unwrap());
    assert_eq!(columns, [1, 2, 6, 7, 11, 12]);
}

#[test]
fn splits_and_unzips_add_up() {
    let source = Counting::new(&[&[6, 2]], ElementType::F32, true);
    let parts = source.view(0).split(0, &[1, 2, 3]).unwrap();
    assert_eq!(parts.iter().map(|part| part.shape()[0]).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(matches!(source.view(0).split(0, &[1, 2]), Err(ShapeError::Sizes { .. })));
    let (shape, odd) = elements(&[&[6, 2]], |s| s.view(0).unzip(0, 2).unwrap().remove(1));
    assert_eq!((shape, odd), (vec![3, 2], vec![2, 3, 6, 7, 10, 11]));
    let (_, even) = elements(&[&[2, 4]], |s| s.view(0).unzip(1, 2).unwrap().remove(0));
    assert_eq!(even, [0, 2, 4, 6]);
}

#[test]
fn grouped_rows_come_apart_and_go_back() {
    // Two groups of q (2 rows), k (1), v (1).
    let (_, got) = elements(&[&[8, 1]], |s| s.view(0).ungroup(2, &[2, 1, 1]).unwrap());
    assert_eq!(got, [0, 1, 4, 5, 2, 6, 3, 7]);
    let (_, back) =
        elements(&[&[8, 1]], |s| s.view(0).ungroup(2, &[2, 1, 1]).unwrap().regroup(2, &[2, 1, 1]).unwrap());
    assert_eq!(back, (0..8).collect::<Vec<_>>());
    // A section can be split off afterwards.
    let (_, k) = elements(&[&[8, 1]], |s| {
        s.view(0).ungroup(2, &[2, 1, 1]).unwrap().split(0, &[4, 2, 2]).unwrap().remove(1)
    });
    assert_eq!(k, [2, 6]);
    let (_, got) = elements(&[&[6]], |s| s.view(0).deinterleave(6, 4).unwrap());
    assert_eq!(got, [0, 2, 1, 3, 4, 5]);
    let (_, back) = elements(&[&[6]], |s| s.view(0).deinterleave(6, 4).unwrap().interleave(6, 4).unwrap());
    assert_eq!(back, (0..6).collect::<Vec<_>>());
}

#[test]
fn joins_along_every_axis() {
    let dims: &[&[u64]] = &[&[2, 3], &[2, 3]];
    let stacked = |s: &Counting| View::stack(vec![s.view(0), s.view(1)]).unwrap();
    let (shape, got) = elements(dims, stacked);
    assert_eq!(shape, [2, 2, 3]);
    assert_eq!(got, [0, 1, 2, 3, 4, 5, 1000, 1001, 1002, 1003, 1004, 1005]);
    let (shape, got) = elements(dims, |s| View::concat(vec![s.view(0), s.view(1)], 1).unwrap());
    assert_eq!(shape, [2, 6]);
    assert_eq!(got, [0, 1, 2, 1000, 1001, 1002, 3, 4, 5, 1003, 1004, 1005]);
    // Operations pass through the seam.
    let (shape, got) = elements(dims, |s| stacked(s).transpose(1, 2).unwrap().slice(0, 1, 2).unwrap());
    assert_eq!((shape, got), (vec![1, 3, 2], vec![1000, 1003, 1001, 1004, 1002, 1005]));
    let (shape, _) = elements(dims, |s| stacked(s).reshape(&[4, 3]).unwrap());
    assert_eq!(shape, [4, 3]);
    let source = Counting::new(&[&[2, 3], &[2, 4]], ElementType::F32, true);
    assert!(matches!(View::concat(vec![source.view(0), source.view(1)], 0), Err(ShapeError::Join { .. })));
}

#[test]
fn rows_are_gathered_padded_and_computed() {
    let (_, got) = elements(&[&[4, 2]], |s| s.view(0).gather(&[3, 0, 1, 1]).unwrap());
    assert_eq!(got, [6, 7, 0, 1, 2, 3, 2, 3]);
    let source = Counting::new(&[&[2, 2]], ElementType::F32, true);
    let padded = Recipe::new(&source.view(0).math(MathOp::Add(1.0)).pad_rows(3).unwrap()).unwrap();
    let mut out = vec![0.0; 6];
    padded.read_f32(&source.0, SimdLevel::Scalar, 0, &mut out).unwrap();
    assert_eq!(out, [1.0, 2.0, 3.0, 4.0, 0.0, 0.0]);
    assert!(source.view(0).gather(&[2]).is_err());
}

#[test]
fn bad_values_are_named_where_they_came_from() {
    let mut values = [0.0, 1.0, 2.0, 3.0, 4.0, f32::NAN, 1e6, 7.0];
    let source = MemoryWeights::default().with_f32("w0", &[4, 2], &values).mapped(true);
    let view = View::weight(0, &source.weights()[0]);
    let recipe = Recipe::new(&view.permute_rope(1).unwrap()).unwrap();
    let strict = ReadPolicy { level: SimdLevel::Scalar, allow_nonfinite: false };
    let read = |ty: GgmlType, policy| {
        let mut out = vec![0; 4 * ty.row_bytes(2).unwrap() as usize];
        recipe.read_rows(&source, ty, policy, 0, &mut out).map_err(|e| e.to_string())
    };
    assert_eq!(read(GgmlType::F32, strict).unwrap_err(), "source tensor `w0`: element 5 is NaN");
    assert_eq!(read(GgmlType::F16, strict).unwrap_err(), "source tensor `w0`: element 5 is NaN");
    assert!(read(GgmlType::F16, ReadPolicy { allow_nonfinite: true, ..strict }).is_ok());
    values[5] = 0.0;
    let source = MemoryWeights::default().with_f32("w0", &[4, 2], &values).mapped(true);
    let mut out = vec![0; 16];
    let overflow = recipe.read_rows(&source, GgmlType::F16, strict, 0, &mut out).unwrap_err();
    assert_eq!(overflow.to_string(), "source tensor `w0`: element 6 is 1e6, too large for F16");
    assert!(recipe.read_rows(&source, GgmlType::Bf16, strict, 0, &mut out).is_ok());
}

#[test]
fn sixteen_bit_sources_convert_and_copy() {
    for (ty, ggml) in [(ElementType::F16, GgmlType::F16), (ElementType::Bf16, GgmlType::Bf16)] {
        let source = Counting::new(&[&[4, 8]], ty, true);
        let recipe = Recipe::new(&source.view(0)).unwrap();
        assert_eq!(recipe.native_type(), Some(ty));
        let policy = ReadPolicy { level: SimdLevel::detect(), allow_nonfinite: false };
        let mut same = vec![0; 64];
        recipe.read_rows(&source.0, ggml, policy, 0, &mut same).unwrap();
        assert_eq!(same, source.0.bytes(0));
        let mut wide = vec![0; 128];
        recipe.read_rows(&source.0, GgmlType::F32, policy, 0, &mut wide).unwrap();
        let values: Vec<f32> = wide.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
        assert_eq!(values, (0..32).map(|i| i as f32).collect::<Vec<_>>());
    }
}

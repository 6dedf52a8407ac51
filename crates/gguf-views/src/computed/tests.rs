//! Tests against the bits that torch 2.15 computes with two threads (`x` as below; `torch.sum`, `t - t.mean()`,
//! `torch.norm` and so on).

use super::*;
use crate::Recipe;
use gguf_core::simd::SimdLevel;
use gguf_testkit::memory::MemoryWeights;

/// Returns numbers between -1 and 1 that F32 holds exactly.
fn numbers(n: usize) -> Vec<f32> {
    let mut state = 42u64;
    let next = |_| {
        state = (state * 1_103_515_245 + 12345) & 0x7fff_ffff;
        ((state >> 7) as f64 / f64::from(1 << 23) - 1.0) as f32
    };
    (0..n).map(next).collect()
}

/// Two weights of the numbers in some type.
struct NumberSource(MemoryWeights);

impl NumberSource {
    fn new(dims: &[u64], ty: ElementType) -> Self {
        let values = numbers(dims.iter().product::<u64>() as usize).into_iter();
        let bytes: Vec<u8> = match ty {
            ElementType::F16 => values.flat_map(|x| f32_to_f16(x).to_le_bytes()).collect(),
            ElementType::Bf16 => values.flat_map(|x| f32_to_bf16(x).to_le_bytes()).collect(),
            _ => values.flat_map(f32::to_le_bytes).collect(),
        };
        Self(MemoryWeights::default().with("x", dims, ty, bytes.clone()).with("x", dims, ty, bytes))
    }

    fn view(&self, weight: usize) -> View {
        View::weight(weight, &self.0.weights()[weight])
    }

    fn read(&self, view: &View) -> Vec<f32> {
        let recipe = Recipe::new(view).unwrap();
        let n = recipe.shape().n_elems() as usize;
        let mut whole = vec![0.0; n];
        recipe.read_f32(&self.0, SimdLevel::Scalar, 0, &mut whole).unwrap();
        for (first, value) in whole.iter().enumerate() {
            let mut one = [0.0];
            recipe.read_f32(&self.0, SimdLevel::Scalar, first as u64, &mut one).unwrap();
            assert_eq!(one[0].to_bits(), value.to_bits(), "element {first} read alone");
        }
        whole
    }
}

#[test]
fn sums_equal_torch_bit_for_bit() {
    for (n, want) in [
        (8, 0x3d61_3cc0u32),
        (33, 0x3dbf_7430),
        (64, 0xbfb4_2eaa),
        (100, 0xc0db_3875),
        (1000, 0x4183_d43e),
        (4096, 0x4142_d02c),
        (5000, 0x41f7_94b3),
        (16385, 0xc263_e93b),
        (32768, 0xc116_7e46),
        (65536, 0x42c0_6068),
        (70001, 0x4300_3ef4),
    ] {
        let values = numbers(n);
        for step in [n, STEP_ELEMS as usize, 32, 7] {
            let mut sum = TorchSum::new(n as u64);
            values.chunks(step).for_each(|chunk| sum.add(chunk));
            assert_eq!(sum.finish().to_bits(), want, "{n} by {step}");
        }
    }
}

#[test]
fn results_equal_torch_bit_for_bit() {
    #[rustfmt::skip]
    let rows: [(WholeOp, ElementType, [u32; 12]); 6] = [
        (WholeOp::Ternary, ElementType::F32, [
            0x0, 0x0, 0x8000_0000, 0x3eab_7913, 0x8000_0000, 0xbeab_7913,
            0x8000_0000, 0x3eab_7913, 0x3eab_7913, 0x3eab_7913, 0xbeab_7913, 0x0,
        ]),
        (WholeOp::Ternary, ElementType::F16, [
            0x0, 0x0, 0x8000_0000, 0x3eab_8000, 0x8000_0000, 0xbeab_8000,
            0x8000_0000, 0x3eab_8000, 0x3eab_8000, 0x3eab_8000, 0xbeab_8000, 0x0,
        ]),
        (WholeOp::SubMean, ElementType::F32, [
            0x3e1f_7bfb, 0x3cfc_0e96, 0xbd9d_861b, 0x3f0b_9299, 0xbe27_0ddd, 0xbf71_2f0d,
            0xbe32_44cd, 0x3f1b_cc71, 0x3e5c_fd73, 0x3ed7_8559, 0xbf24_f183, 0x3cc0_af16,
        ]),
        (WholeOp::SubMean, ElementType::F16, [
            0x3e1f_8000, 0x3cfb_a000, 0xbd9d_a000, 0x3f0b_a000, 0xbe27_2000, 0xbf71_2000,
            0xbe32_4000, 0x3f1b_e000, 0x3e5d_0000, 0x3ed7_6000, 0xbf24_e000, 0x3cc0_2000,
        ]),
        (WholeOp::SubMean, ElementType::Bf16, [
            0x3e20_0000, 0x3cfc_0000, 0xbd9d_0000, 0x3f0c_0000, 0xbe27_0000, 0xbf71_0000,
            0xbe32_0000, 0x3f1c_0000, 0x3e5d_0000, 0x3ed8_0000, 0xbf25_0000, 0x3cc2_0000,
        ]),
        (WholeOp::L2Normalize { eps: 1e-7 }, ElementType::F32, [
            0x3e64_1920, 0x3d34_594d, 0xbd90_bbe7, 0x3f3f_f006, 0xbe2f_7b0e, 0xbf78_2013,
            0xbe64_f052, 0x3f2f_967d, 0x3e6e_f151, 0x3f14_e3ec, 0xbf34_b3bd, 0x3d09_c8a8,
        ]),
    ];
    for (op, ty, want) in rows {
        let source = NumberSource::new(&[4, 3], ty);
        let found: Vec<u32> =
            source.read(&source.view(0).whole(op).unwrap()).iter().map(|x| x.to_bits()).collect();
        assert_eq!(found, want, "{op:?} of {ty}: {found:x?}");
    }
}

#[test]
fn products_are_lists_in_f32() {
    let source = NumberSource::new(&[2, 3], ElementType::F16);
    let transposed = source.view(1).reshape(&[6]).unwrap();
    let product = View::product(&[source.view(0), transposed]).unwrap();
    assert_eq!(product.shape(), [6]);
    let stored: Vec<f32> = numbers(6).into_iter().map(|x| f16_to_f32(f32_to_f16(x))).collect();
    let want: Vec<f32> = stored.iter().map(|x| x * x).collect();
    assert_eq!(source.read(&product), want);
    assert_eq!(Recipe::new(&product).unwrap().weights(), [0, 1]);
    assert!(View::product(&[source.view(0), View::fill(1.0, vec![5])]).is_err());
}

#[test]
fn what_is_computed_can_be_turned_and_blamed() {
    let source = NumberSource::new(&[4, 3], ElementType::F32);
    let whole = source.view(0).whole(WholeOp::SubMean).unwrap();
    let plain = source.read(&whole);
    let transposed = source.read(&whole.transpose(0, 1).unwrap());
    for row in 0..4 {
        for col in 0..3 {
            assert_eq!(plain[row * 3 + col], transposed[col * 4 + row]);
        }
    }
    let recipe = Recipe::new(&whole.slice(0, 2, 4).unwrap()).unwrap();
    assert_eq!((recipe.weights(), recipe.native_type()), (vec![0], None));
    assert_eq!(recipe.slabs(&|_| None), [vec![(0, None)], vec![(0, None)]]);
}

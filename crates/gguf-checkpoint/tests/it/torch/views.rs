//! Views of storages: every geometry compared with a plain loop, and views that do not fit.

use gguf_checkpoint::torch::{TorchError, TorchFile, parse};
use gguf_core::limits::Limits;
use proptest::prelude::*;

use gguf_testkit::torch::{Tensor, container, dict, floats, legacy, pickle};

fn open(tensor: &Tensor, storage: &[u8]) -> Result<TorchFile, TorchError> {
    let file = container(&pickle(&dict(&[("w", tensor.bytes())])), &[storage]);
    parse(&file, &Limits::default())
}

fn problem(tensor: &Tensor) -> String {
    let storage = floats((0..24).map(|i| i as f32));
    open(tensor, &storage).unwrap_err().to_string()
}

fn view(offset: i64, sizes: &[i64], strides: &[i64]) -> Tensor {
    Tensor {
        class: "FloatStorage",
        key: "0",
        n_elems: 24,
        offset,
        sizes: sizes.to_vec(),
        strides: strides.to_vec(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn any_part_of_any_view_is_what_a_loop_finds(
        dims in prop::collection::vec((1i64..5, 0i64..7), 0..4),
        offset in 0i64..8,
        cut in (0usize..200, 0usize..200),
        class in prop::sample::select(vec![("ByteStorage", 1usize), ("HalfStorage", 2), ("FloatStorage", 4), ("DoubleStorage", 8)]),
    ) {
        let (class, n_bytes) = class;
        let n_elems = offset + dims.iter().map(|(size, stride)| (size - 1) * stride).sum::<i64>() + 1;
        let storage: Vec<u8> = (0..n_elems as usize * n_bytes).map(|i| (i * 37 % 251) as u8).collect();
        let (sizes, strides): (Vec<i64>, Vec<i64>) = dims.iter().copied().unzip();
        let tensor = Tensor { class, key: "0", n_elems, offset, sizes: sizes.clone(), strides: strides.clone() };
        let file = container(&pickle(&dict(&[("w", tensor.bytes())])), &[&storage]);
        let opened = parse(&file, &Limits::default());
        let n: i64 = sizes.iter().product();
        if n / 64 > n_elems {
            prop_assert!(opened.is_err());
            return Ok(());
        }
        let opened = opened.unwrap();
        let mut expected = Vec::new();
        for index in 0..n {
            let mut rest = index;
            let mut at = offset;
            for (size, stride) in sizes.iter().zip(&strides).rev() {
                at += rest % size * stride;
                rest /= size;
            }
            expected.extend_from_slice(&storage[at as usize * n_bytes..][..n_bytes]);
        }
        let tensor = &opened.tensors[0];
        let (a, b) = (cut.0 % (n as usize + 1), cut.1 % (n as usize + 1));
        let (first, end) = (a.min(b), a.max(b));
        let mut part = vec![0; (end - first) * n_bytes];
        tensor.read_elems(&file, first as u64, &mut part);
        prop_assert_eq!(&part[..], &expected[first * n_bytes..end * n_bytes]);
        if let Some(borrowed) = tensor.borrow(&file) {
            prop_assert_eq!(borrowed, &expected[..]);
        }
        if let Some((begin, len)) = tensor.window(first as u64, (end - first) as u64) {
            prop_assert!(begin + len <= file.len() as u64);
        }
    }
}

#[test]
fn the_window_of_a_range_moves_with_it() {
    let storage = floats((0..24).map(|i| i as f32));
    let window = |tensor: &Tensor, first, n| {
        let file = open(tensor, &storage).unwrap();
        let begin = file.tensors[0].window(0, tensor.sizes.iter().product::<i64>() as u64).unwrap().0;
        file.tensors[0].window(first, n).map(|(offset, n_bytes)| ((offset - begin) / 4, n_bytes / 4))
    };
    // Rows with a part of the columns.
    let columns = view(1, &[6, 2], &[4, 1]);
    assert_eq!(window(&columns, 0, 12), Some((0, 22)));
    assert_eq!(window(&columns, 4, 4), Some((8, 6)));
    // Every row of a transposed matrix needs the whole storage.
    let transposed = view(0, &[4, 6], &[1, 4]);
    assert_eq!(window(&transposed, 0, 24), Some((0, 24)));
    assert_eq!(window(&transposed, 6, 6), None);
    assert_eq!(window(&transposed, 6, 0), None);
    assert_eq!(window(&transposed, 20, 5), None);
}

#[test]
fn geometry_that_does_not_fit_is_refused() {
    for (tensor, expected) in [
        (view(0, &[-1, 2], &[2, 1]), "size -1 is negative"),
        (view(0, &[2, 2], &[-2, 1]), "stride -2 is negative"),
        (view(-3, &[2], &[1]), "offset -3 is negative"),
        (view(0, &[2, 3], &[1]), "2 sizes but 1 strides"),
        (view(0, &[25], &[1]), "shape [25] with strides [1] from element 0 reaches beyond 24 elements"),
        (view(23, &[2], &[1]), "shape [2] with strides [1] from element 23 reaches beyond 24 elements"),
        (view(24, &[], &[]), "shape [] with strides [] from element 24 reaches beyond 24 elements"),
        (view(25, &[0], &[1]), "shape [0] with strides [1] from element 25 reaches beyond 24 elements"),
        (view(0, &[1 << 40, 1 << 40], &[1, 1]), "shape [1099511627776, 1099511627776] overflows"),
        (
            view(0, &[3, 3], &[i64::MAX, i64::MAX]),
            "shape [3, 3] with strides [9223372036854775807, 9223372036854775807] from element 0 reaches beyond 24 elements",
        ),
        (
            view(0, &[1 << 40], &[0]),
            "1099511627776 elements are shown of a storage of 24: at most 64 times as many are read",
        ),
        (Tensor { n_elems: 25, ..view(0, &[2], &[1]) }, "storage `0`: 100 bytes expected, 96 present"),
        (Tensor { n_elems: 23, ..view(0, &[2], &[1]) }, "storage `0`: 92 bytes expected, 96 present"),
        (Tensor { n_elems: -1, ..view(0, &[2], &[1]) }, "number of elements -1 is negative"),
        (Tensor { key: "1", ..view(0, &[2], &[1]) }, "storage `1` is missing"),
        (
            Tensor { class: "ComplexFloatStorage", ..view(0, &[2], &[1]) },
            "elements of `torch.ComplexFloatStorage` are not read",
        ),
    ] {
        assert_eq!(problem(&tensor), format!("tensor `w`: {expected}"));
    }
    // Dimensions of 0 and 1 allow any stride.
    let storage = floats((0..24).map(|i| i as f32));
    for (tensor, n) in [
        (view(24, &[0, 7], &[1 << 60, 1]), 0),
        (view(3, &[1, 2], &[i64::MAX, 5]), 2),
        (view(23, &[], &[]), 1),
        (view(0, &[24, 64], &[1, 0]), 24 * 64),
    ] {
        let opened = open(&tensor, &storage).unwrap();
        assert_eq!(opened.tensors[0].meta.shape.n_elems(), n);
    }
}

#[test]
fn older_files_say_how_many_elements_a_storage_has() {
    let body = dict(&[("w", Tensor::new("HalfStorage", "a", &[2]).bytes())]);
    let parse = |file: &[u8]| parse(file, &Limits::default()).map(|file| file.tensors.len());
    assert_eq!(parse(&legacy(&body, &[("a", 2, &[1, 2, 3, 4])])).unwrap(), 1);
    for (file, expected) in [
        (legacy(&body, &[("a", 3, &[1, 2, 3, 4])]), "storage `a`: 2 elements expected, 3 declared"),
        (legacy(&body, &[("a", -1, &[])]), "storage `a`: 2 elements expected, -1 declared"),
        (legacy(&body, &[("a", 2, &[1, 2, 3])]), "storage `a`: 4 bytes expected, 3 present"),
        (legacy(&body, &[]), "tensor `w`: storage `a` is missing"),
        (
            legacy(&body, &[("b", 2, &[1, 2, 3, 4])]),
            "storage `b`: its elements are not described, or in two ways",
        ),
        (
            legacy(&body, &[("a", 2, &[1, 2, 3, 4]), ("a", 2, &[1, 2, 3, 4])]),
            "storage `a`: its elements are not described, or in two ways",
        ),
    ] {
        let message = parse(&file).unwrap_err().to_string();
        assert!(message.ends_with(expected), "{message}");
    }
    let two = dict(&[
        ("v", Tensor::new("HalfStorage", "a", &[2]).bytes()),
        ("w", Tensor::new("FloatStorage", "a", &[2]).bytes()),
    ]);
    assert_eq!(
        parse(&legacy(&two, &[("a", 2, &[0; 8])])).unwrap_err().to_string(),
        "storage `a`: its elements are not described, or in two ways"
    );
}

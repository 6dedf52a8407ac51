//! Properties over random content: written data is read back unchanged; damage gives an error or a file, never a panic.

use gguf_core::limits::Limits;
use gguf_core::{GgmlType, Shape, TensorMeta};
use gguf_format::{Array, FilePlan, LayoutOptions, Metadata, Strictness, Value, parse_header};
use proptest::prelude::*;

fn array(depth: u32) -> BoxedStrategy<Array> {
    let leaf = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..6).prop_map(Array::U8),
        proptest::collection::vec(any::<i16>(), 0..6).prop_map(Array::I16),
        proptest::collection::vec(any::<u32>(), 0..6).prop_map(Array::U32),
        proptest::collection::vec(any::<i64>(), 0..6).prop_map(Array::I64),
        proptest::collection::vec(-1e30f32..1e30, 0..6).prop_map(Array::F32),
        proptest::collection::vec(any::<bool>(), 0..6).prop_map(Array::Bool),
        proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..5), 0..6).prop_map(Array::String),
    ];
    if depth == 0 {
        leaf.boxed()
    } else {
        prop_oneof![3 => leaf, 1 => proptest::collection::vec(array(depth - 1), 0..4).prop_map(Array::Array)]
            .boxed()
    }
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        (-1e30f32..1e30).prop_map(Value::F32),
        any::<bool>().prop_map(Value::Bool),
        proptest::collection::vec(any::<u8>(), 0..20).prop_map(Value::String),
        array(3).prop_map(Value::Array),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        (-1e300f64..1e300).prop_map(Value::F64),
    ]
}

fn metadata() -> impl Strategy<Value = Metadata> {
    let entries = proptest::collection::vec(("[a-z.é]{1,12}", value()), 0..8);
    (entries, 0u32..10).prop_map(|(entries, shift)| {
        let mut metadata = Metadata::new();
        metadata.set("general.alignment", 1u32 << shift);
        for (key, value) in entries {
            metadata.set(key, value);
        }
        metadata
    })
}

fn tensors() -> impl Strategy<Value = Vec<TensorMeta>> {
    let types: Vec<_> = GgmlType::all().collect();
    let one = (proptest::sample::select(types), proptest::collection::vec(1u64..4, 1..=4));
    proptest::collection::vec(one, 0..6).prop_map(|list| {
        list.into_iter()
            .enumerate()
            .map(|(index, (ty, mut dims))| {
                *dims.last_mut().unwrap() *= ty.block_elems() as u64;
                TensorMeta { name: format!("t{index}"), shape: Shape::new(dims).unwrap(), ty }
            })
            .collect()
    })
}

/// Bytes of a file with this content and zero data.
fn file(metadata: &Metadata, tensors: &[TensorMeta], layout: LayoutOptions) -> Vec<u8> {
    let plan = FilePlan::new(metadata, tensors, &layout).unwrap();
    let mut bytes = plan.header;
    bytes.resize(plan.file_bytes as usize, 0);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn what_is_planned_is_parsed(
        metadata in metadata(), tensors in tensors(), big in any::<bool>(), version in 2u32..=3,
        pad_header in any::<bool>(), pad_last in any::<bool>(),
    ) {
        use gguf_core::bytes::Endian;
        let endian = if big { Endian::Big } else { Endian::Little };
        let layout = LayoutOptions { version, endian, pad_header, pad_last };
        let bytes = file(&metadata, &tensors, layout);
        let header = parse_header(&bytes, &Limits::default(), Strictness::Format).unwrap();
        prop_assert_eq!(&header.metadata, &metadata);
        prop_assert_eq!(&header.tensors, &tensors);
        prop_assert_eq!((header.version, header.endian), (version, endian));
        let plan = FilePlan::new(&header.metadata, &header.tensors, &layout).unwrap();
        let offsets: Vec<_> = plan.tensors.iter().map(|tensor| tensor.offset).collect();
        prop_assert_eq!(&header.offsets, &offsets);
        prop_assert_eq!(plan.header, &bytes[..header.header_bytes as usize]);
        prop_assert!(header.data_end <= bytes.len() as u64);
    }
}

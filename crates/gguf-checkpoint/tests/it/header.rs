//! Header of a safetensors file: accepted input, and the messages for refused input.

use gguf_checkpoint::safetensors::{HeaderError, parse_header};
use gguf_core::ElementType;
use gguf_core::limits::Limits;

use super::{bytes_file, entry, file, parse};

/// Error of the parser for entries over `n` bytes of data.
fn refusal(entries: &[String], n: usize) -> String {
    let header = format!("{{{}}}", entries.join(","));
    parse(&file(&header, &vec![0; n])).unwrap_err().to_string()
}

#[test]
fn a_header_is_read_in_name_order_with_its_metadata() {
    let header = format!(
        r#"{{"__metadata__":{{"format":"pt","a":"b"}},{},{},{}}}   "#,
        entry("b", "BF16", "[2,3]", 4, 16),
        entry("a", "F32", "[]", 0, 4),
        entry("empty", "F16", "[0,4]", 16, 16),
    );
    let bytes = file(&header, &[0; 16]);
    let read = parse(&bytes).unwrap();
    assert_eq!(read.metadata, [("format".into(), "pt".into()), ("a".into(), "b".into())]);
    let rows: Vec<_> = read
        .tensors
        .iter()
        .map(|t| (t.meta.name.as_str(), t.meta.ty, t.meta.shape.to_string(), t.offset, t.n_bytes))
        .collect();
    let data = 8 + header.len() as u64;
    assert_eq!(
        rows,
        [
            ("a", ElementType::F32, "[]".into(), data, 4),
            ("b", ElementType::Bf16, "[2, 3]".into(), data + 4, 12),
            ("empty", ElementType::F16, "[0, 4]".into(), data + 16, 0),
        ]
    );
}

#[test]
fn every_element_type_is_read() {
    let types = [
        "F64",
        "F32",
        "F16",
        "BF16",
        "I64",
        "I32",
        "I16",
        "I8",
        "U64",
        "U32",
        "U16",
        "U8",
        "BOOL",
        "F8_E4M3",
        "F8_E5M2",
        "F8_E8M0",
        "F8_E4M3FNUZ",
        "F8_E5M2FNUZ",
        "F6_E2M3",
        "F6_E3M2",
        "F4",
        "C64",
    ];
    for name in types {
        let bits = u64::from(ElementType::from_name(name).unwrap().bits());
        let bytes = file(&format!("{{{}}}", entry("t", name, "[8]", 0, bits)), &vec![0; bits as usize]);
        assert_eq!(parse(&bytes).unwrap().tensors[0].meta.ty.name(), name);
    }
}

#[test]
fn the_safetensors_crate_agrees() {
    let names = ["z", "a", "model.layers.10.x", "model.layers.2.x", "é"];
    let data: Vec<Vec<u8>> = (0..names.len()).map(|i| vec![i as u8; 24]).collect();
    let views = names.iter().zip(&data).enumerate().map(|(i, (name, bytes))| {
        let dtype = [safetensors::Dtype::F32, safetensors::Dtype::I64, safetensors::Dtype::U8][i % 3];
        let shape = vec![24 * 8 / dtype.bitsize()];
        (*name, safetensors::tensor::TensorView::new(dtype, shape, bytes).unwrap())
    });
    let bytes = safetensors::serialize(views, None).unwrap();
    let theirs = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let ours = parse(&bytes).unwrap();
    assert_eq!(ours.tensors.len(), names.len());
    for tensor in &ours.tensors {
        let view = theirs.tensor(&tensor.meta.name).unwrap();
        let (start, len) = (tensor.offset as usize, tensor.n_bytes as usize);
        assert_eq!(&bytes[start..start + len], view.data());
    }
    let mut sorted = names;
    sorted.sort_unstable();
    assert!(ours.tensors.iter().map(|t| t.meta.name.as_str()).eq(sorted));
}

#[test]
fn malformed_lengths() {
    let say = |bytes: &[u8]| parse(bytes).unwrap_err().to_string();
    assert_eq!(say(b""), "the file is empty");
    assert_eq!(say(b"\x02\0\0"), "offset 0: 8 bytes of header length expected, 3 present");
    let mut huge = (1u64 << 63).to_le_bytes().to_vec();
    huge.extend(b"{}");
    assert_eq!(
        say(&huge),
        "offset 0: header of 9223372036854775808 bytes declared, at most 100000000 allowed"
    );
    assert_eq!(say(b"\x03\0\0\0\0\0\0\0{}"), "offset 8: header of 3 bytes declared, 2 present");
    assert_eq!(say(&file(" {}", b"")), "offset 8: header does not start with `{`");
    assert_eq!(say(&file("", b"")), "offset 8: header does not start with `{`");
    assert_eq!(
        say(&file("{\"a\":1}", b"")),
        "header: line 1, column 14 (offset 13): expected `{`, found `1`"
    );
    assert_eq!(say(&file("{}x", b"")), "header: line 1, column 11 (offset 10): more text after the value");
    assert_eq!(say(&file("{}", b"abc")), "3 bytes at offset 10 belong to no tensor");
}

#[test]
fn malformed_tensors() {
    let a = || entry("a", "U8", "[4]", 0, 4);
    // Ranges.
    assert_eq!(
        refusal(&[a(), entry("b", "U8", "[4]", 3, 7)], 7),
        "tensor `b`: range begins at 3, inside `a`, which ends at 4"
    );
    let gap = refusal(&[a(), entry("b", "U8", "[4]", 6, 10)], 10);
    assert!(gap.starts_with("2 bytes at offset ") && gap.ends_with(" belong to no tensor"), "{gap}");
    assert_eq!(refusal(&[entry("a", "U8", "[4]", 4, 0)], 4), "tensor `a`: range 4..0 ends before it begins");
    let cut = refusal(&[a(), entry("b", "U8", "[4]", 4, 8)], 6);
    assert!(
        cut.starts_with("tensor `b`: data up to offset ") && cut.contains(" declared, file ends at "),
        "{cut}"
    );
    let cut = refusal(&[a(), entry("b", "U8", "[4]", 4, 8)], 2);
    assert!(cut.starts_with("tensor `a`: ") && cut.ends_with(" bytes expected"), "{cut}");
    let far = u64::MAX;
    assert_eq!(
        refusal(&[entry("a", "U8", "[4]", far - 4, far)], 4).split(" declared").next(),
        Some("tensor `a`: data up to offset 18446744073709551615")
    );
    // Types and shapes.
    assert_eq!(
        refusal(&[entry("a\\u001b[31m", "F33", "[4]", 0, 16)], 16),
        "tensor `a\\u{1b}[31m`: unknown dtype `F33`"
    );
    assert_eq!(
        refusal(&[entry("a", "BF16", "[2, 3]", 0, 10)], 10),
        "tensor `a`: BF16 [2, 3] takes 12 bytes, range holds 10"
    );
    assert_eq!(
        refusal(&[entry("a", "U8", "[4294967296, 4294967296]", 0, 4)], 4),
        "tensor `a`: shape [4294967296, 4294967296] overflows"
    );
    assert_eq!(
        refusal(&[entry("a", "F64", "[2305843009213693952]", 0, 4)], 4),
        "tensor `a`: shape [2305843009213693952] overflows"
    );
    assert_eq!(
        refusal(&[entry("a", "U8", "[0, 9223372036854775807, 2]", 0, 0)], 0),
        "tensor `a`: shape [0, 9223372036854775807, 2] overflows"
    );
    assert_eq!(refusal(&[entry("a", "F4", "[3]", 0, 1)], 1), "tensor `a`: 12 bits do not fill whole bytes");
    assert!(
        refusal(&[entry("a", "U8", "[-1]", 0, 1)], 1)
            .contains("expected an unsigned 64-bit integer, found `-1`")
    );
    assert!(refusal(&[entry("a", "U8", "[1e3]", 0, 1)], 1).contains("found `1e3`"));
    // Names and fields.
    assert_eq!(refusal(&[a(), entry("a", "U8", "[4]", 4, 8)], 8), "tensor `a`: name occurs twice");
    assert_eq!(
        refusal(&[r#""a":{"dtype":"U8","shape":[1]}"#.into()], 1),
        "tensor `a`: `data_offsets` is missing"
    );
    assert_eq!(
        refusal(&[r#""a":{"dtype":"U8","shape":[1],"dtype":"I8","data_offsets":[0,1]}"#.into()], 1),
        "tensor `a`: `dtype` is given twice"
    );
    assert_eq!(
        refusal(&[r#""a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}"#.into()], 1),
        "tensor `a`: `data_offsets` has 3 elements, expected 2"
    );
    let metadata = refusal(&[r#""__metadata__":{"a":1}"#.into()], 0);
    assert_eq!(metadata, "header: line 1, column 30 (offset 29): expected a string, found `1`");
    let twice = refusal(&[r#""__metadata__":{},"__metadata__":{}"#.into()], 0);
    assert_eq!(twice, "header: line 1, column 28 (offset 27): duplicate key `__metadata__`");
    let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
    assert!(refusal(&[format!(r#""a":{{"x":{deep}}}"#)], 0).contains("nested deeper than 64 levels"));
}

#[test]
fn limits_are_limits() {
    let bytes = bytes_file(&["a", "b", "c"]);
    let two = Limits { n_tensors: 2, ..Limits::default() };
    assert_eq!(parse_header(&bytes, &two), Err(HeaderError::TooManyTensors { limit: 2 }));
    let short = Limits { safetensors_header_bytes: 20, ..Limits::default() };
    assert!(matches!(parse_header(&bytes, &short), Err(HeaderError::TooLong { limit: 20, .. })));
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let header = format!(
        r#"{{"__metadata__":{{"k":"v"}},{},{}}} "#,
        entry("a.weight", "BF16", "[2,3]", 0, 12),
        entry("b", "F32", "[1]", 12, 16)
    );
    let bytes = file(&header, &[7; 16]);
    parse(&bytes).unwrap();
    for len in 0..bytes.len() {
        assert!(parse(&bytes[..len]).is_err(), "cut at {len}");
    }
}

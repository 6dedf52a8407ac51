//! One minimal malformed file for each rule of a GGUF file, and the exact message.

use gguf_core::Hint;
use gguf_core::input::INCOMPLETE;
use gguf_core::limits::Limits;
use gguf_format::{GgufError, GgufFile, HeaderError, OpenOptions, Strictness, parse_header};

use super::build::Raw;

fn parse(raw: &Raw, strictness: Strictness) -> Result<gguf_format::Header, HeaderError> {
    parse_header(&raw.0, &Limits::default(), strictness)
}

/// Expects a message for a file that is refused with any strictness.
#[track_caller]
fn refused(raw: &Raw, message: &str) {
    let strict = parse(raw, Strictness::Format).unwrap_err();
    assert_eq!(strict.to_string(), message);
    assert_eq!(parse(raw, Strictness::LlamaCpp).unwrap_err(), strict);
}

/// Expects a message with the limit of the format, and one with that of stable-diffusion.cpp, of a file without keys.
#[track_caller]
fn refused_by_limits(raw: &Raw, message: &str, limits: [u32; 2]) {
    for (strictness, limit) in [Strictness::Format, Strictness::LlamaCpp].into_iter().zip(limits) {
        let error = parse(raw, strictness).unwrap_err().to_string();
        assert_eq!(error, format!("{message} {limit} allowed"));
    }
}

/// Expects a message for a file that the format forbids but llama.cpp opens.
#[track_caller]
fn tolerated(raw: &Raw, message: &str) {
    assert_eq!(parse(raw, Strictness::Format).unwrap_err().to_string(), message);
    let header = parse(raw, Strictness::LlamaCpp).unwrap();
    let messages: Vec<_> = header.tolerated.iter().map(ToString::to_string).collect();
    assert_eq!(messages, [message]);
}

const F32: u32 = 0;
const I8: u32 = 24;
const Q8_0: u32 = 8;

fn key(name: &[u8], ty: u32) -> Raw {
    Raw::header(0, 1).str(name).u32(ty)
}

fn one_tensor(dims: &[u64], ty: u32) -> Raw {
    Raw::header(1, 0).tensor(b"w", dims, ty, 0).data(32, 64)
}

#[test]
fn tensor_size_wraps() {
    refused(
        &one_tensor(&[1 << 62, 4], F32),
        "offset 33: tensor `w`: number of elements of [4611686018427387904, 4] overflows 63 bits",
    );
    // An additional zero changes nothing.
    assert_eq!(
        parse(&one_tensor(&[1 << 33, 1 << 33, 0, 1], I8), Strictness::LlamaCpp).unwrap_err().to_string(),
        "offset 33: tensor `w`: number of elements of [8589934592, 8589934592, 0, 1] overflows 63 bits"
    );
    // The number of elements fits, the number of bytes does not.
    refused(
        &one_tensor(&[1 << 62], F32),
        "offset 45: tensor `w`: number of bytes of 4611686018427387904 elements of F32 overflows 64 bits",
    );
    refused(&one_tensor(&[u64::MAX], F32), "offset 37: tensor `w`: dimension 0 is negative (-1)");
}

#[test]
fn sum_of_tensor_sizes_wraps() {
    let size = 1u64 << 62;
    let mut raw = Raw::header(4, 0);
    for (index, name) in [b"a", b"b", b"c", b"d"].into_iter().enumerate() {
        raw = raw.tensor(name, &[size], I8, size.wrapping_mul(index as u64));
    }
    refused(&raw.data(32, 64), "offset 156: tensor `d`: end of its data, padded to 32, overflows 64 bits");
}

#[test]
fn padding_wraps() {
    // 2^64 - 16 bytes of F64 do not overflow; padded to 32 they would be 0.
    let raw = Raw::header(1, 0).tensor(b"w", &[(1 << 61) - 2], 28, 0).data(32, 64);
    refused(&raw, "offset 57: tensor `w`: end of its data, padded to 32, overflows 64 bits");
}

#[test]
fn data_beyond_the_end() {
    refused(
        &one_tensor(&[17], F32),
        "offset 64: tensor `w`: 68 bytes of data end beyond the file of 128 bytes; 132 expected",
    );
    refused(
        &one_tensor(&[(1 << 60) - 8], 28),
        "offset 64: tensor `w`: 9223372036854775744 bytes of data end beyond the file of 128 bytes; 9223372036854775808 expected",
    );
    let header_only = Raw::header(1, 0).tensor(b"w", &[4], F32, 0);
    refused(&header_only, "offset 57: tensor data begins at 64, the file ends at 57");
}

#[test]
fn too_many_dimensions() {
    // A file without an architecture may be one of stable-diffusion.cpp, which has longer names and five dimensions.
    refused_by_limits(&one_tensor(&[1; 6], F32), "offset 33: tensor `w`: 6 dimensions, at most", [4, 5]);
    let raw = Raw::header(1, 0).str(b"w").u32(u32::MAX).data(32, 64);
    refused_by_limits(&raw, "offset 33: tensor `w`: 4294967295 dimensions, at most", [4, 5]);
}

#[test]
fn zero_dimension() {
    tolerated(&one_tensor(&[32, 0, 5], Q8_0), "offset 45: tensor `w`: dimension 1 is 0");
    tolerated(&one_tensor(&[0, 5], Q8_0), "offset 37: tensor `w`: dimension 0 is 0");
}

#[test]
fn alignment() {
    let with = |ty, raw: fn(Raw) -> Raw| raw(key(b"general.alignment", ty));
    refused(&with(4, |r| r.u32(0)), "offset 49: key `general.alignment` is 0, a power of two expected");
    refused(&with(4, |r| r.u32(48)), "offset 49: key `general.alignment` is 48, a power of two expected");
    refused(&with(10, |r| r.u64(32)), "offset 49: key `general.alignment`: u32 expected, found u64");
    refused(
        &Raw::header(1, 1)
            .str(b"general.alignment")
            .u32(4)
            .u32(1 << 31)
            .tensor(b"w", &[4], F32, 0)
            .data(32, 64),
        "offset 90: tensor data begins at 2147483648, the file ends at 160",
    );
}

#[test]
fn counts_beyond_the_file() {
    refused(
        &Raw::header(1 << 60, 0).data(1, 19),
        "offset 8: 1152921504606846976 tensors declared, at most 0 possible in the 19 bytes that follow",
    );
    refused(
        &Raw::header(0, u64::MAX).data(1, 19),
        "offset 16: 18446744073709551615 keys declared, at most 1 possible in the 19 bytes that follow",
    );
    refused(
        &key(b"k", 9).u32(8).u64(1 << 60).data(1, 8),
        "offset 41: key `k`: array of 1152921504606846976 str cannot fit in the 8 bytes left",
    );
    refused(
        &key(b"k", 9).u32(4).u64(3).data(1, 8),
        "offset 41: key `k`: array of 3 u32 cannot fit in the 8 bytes left",
    );
    refused(
        &key(b"k", 8).u64(1 << 63).data(1, 2),
        "offset 45: key `k`: the file ends too early: 9223372036854775808 bytes expected, 2 left",
    );
    refused(
        &Raw::header(0, 1).u64(u64::MAX - 3).data(1, 11),
        "offset 32: key 0: the file ends too early: 18446744073709551612 bytes expected, 11 left",
    );
    refused(
        &Raw::header(1, 0).u64(1 << 40).data(1, 32),
        "offset 32: name of tensor 0: the file ends too early: 1099511627776 bytes expected, 32 left",
    );
    let limits = Limits { n_keys: 2, n_tensors: 2, ..Limits::default() };
    let raw = Raw::header(3, 0).data(1, 1000);
    assert_eq!(
        parse_header(&raw.0, &limits, Strictness::LlamaCpp).unwrap_err().to_string(),
        "offset 8: 3 tensors declared, at most 2 possible in the 1000 bytes that follow"
    );
}

#[test]
fn a_43_byte_file_that_wants_the_world() {
    // Magic, version, no tensors, 2^40 keys, and 19 bytes.
    let raw = Raw::header(0, 1 << 40).data(1, 19);
    assert_eq!(raw.0.len(), 43);
    refused(&raw, "offset 16: 1099511627776 keys declared, at most 1 possible in the 19 bytes that follow");
}

#[test]
fn arrays_without_end() {
    let mut raw = key(b"k", 9);
    for _ in 0..100_000 {
        raw = raw.u32(9).u64(1);
    }
    refused(&raw, "offset 805: key `k`: arrays nested more than 64 deep");
    refused(&key(b"k", 9).u32(13).u64(1).u64(0), "offset 37: key `k`: array element type 13 does not exist");
    refused(&key(b"k", 9).u32(u32::MAX).u64(0), "offset 37: key `k`: array element type -1 does not exist");
}

#[test]
fn unknown_types() {
    refused(&key(b"k", 13).u64(0), "offset 33: key `k`: value type 13 does not exist");
    refused(&key(b"k", u32::MAX).u64(0), "offset 33: key `k`: value type -1 does not exist");
    refused(&one_tensor(&[4], 43), "offset 45: tensor `w`: type 43 does not exist");
    refused(&one_tensor(&[4], u32::MAX), "offset 45: tensor `w`: type -1 does not exist");
    for (id, name) in [(5, "Q4_3"), (31, "Q4_0_4_4"), (32, "Q4_0_4_8"), (33, "Q4_0_8_8")] {
        let message = format!("offset 45: tensor `w`: type {id} (`{name}`) was removed from the format");
        refused(&one_tensor(&[256], id), &message);
    }
    for (id, what) in [
        (4, "MXFP4 of Ollama"),
        (36, "I2_S of BitNet"),
        (139, "IQ4_K of ik_llama.cpp"),
        (337, "IQ2_K_R4 of ik_llama.cpp"),
    ] {
        let message = format!("offset 45: tensor `w`: type {id} is {what}, not of llama.cpp");
        refused(&one_tensor(&[256], id), &message);
    }
}

#[test]
fn names_twice_empty_or_long() {
    let twice = Raw::header(0, 2).str(b"k").u32(0).u8(1).str(b"k").u32(0).u8(1);
    refused(&twice, "offset 38: key `k` appears twice");
    refused(&Raw::header(0, 1).str(b"").u32(4).u32(0).u32(0), "offset 24: key 0 is empty");
    let twice = Raw::header(2, 0).tensor(b"w", &[4], F32, 0).tensor(b"w", &[4], F32, 32).data(32, 64);
    refused(&twice, "offset 57: tensor `w` appears twice");
    let long = [b'n'; 160];
    let named = |name: &[u8]| Raw::header(1, 0).tensor(name, &[4], F32, 0).data(32, 64);
    refused_by_limits(&named(&long), "offset 24: name of tensor 0 has 160 bytes, at most", [63, 159]);
    assert!(parse(&named(&long[..63]), Strictness::Format).is_ok());
    assert!(parse(&named(&long[..64]), Strictness::Format).is_err());
    assert!(parse(&named(&long[1..]), Strictness::LlamaCpp).is_ok());
    let empty = Raw::header(1, 0).tensor(b"", &[4], F32, 0).data(32, 64);
    tolerated(&empty, "offset 24: name of tensor 0 is empty");
}

#[test]
fn data_ranges() {
    let two =
        |offset| Raw::header(2, 0).tensor(b"a", &[10], F32, 0).tensor(b"b", &[4], F32, offset).data(32, 256);
    assert!(parse(&two(64), Strictness::Format).is_ok());
    refused(&two(40), "offset 82: tensor `b`: data offset 40 is not a multiple of 32");
    refused(&two(32), "offset 82: tensor `b`: data offset 32 overlaps the tensor before, expected 64");
    refused(&two(0), "offset 82: tensor `b`: data offset 0 overlaps the tensor before, expected 64");
    refused(&two(96), "offset 82: tensor `b`: data offset 96 leaves a gap, expected 64");
    // A data offset that would lead back into the header.
    refused(
        &two(u64::MAX - 63),
        "offset 82: tensor `b`: data offset 18446744073709551552 leaves a gap, expected 64",
    );
}

#[test]
fn rows_of_partial_blocks() {
    refused(
        &one_tensor(&[33], Q8_0),
        "offset 45: tensor `w`: rows of 33 elements, expected a multiple of 32 for Q8_0",
    );
    refused(
        &one_tensor(&[128, 2], 12),
        "offset 53: tensor `w`: rows of 128 elements, expected a multiple of 256 for Q4_K",
    );
}

#[test]
fn foreign_strings() {
    // Values keep their bytes; names must be text.
    let raw = key(b"k", 8).str(b"\xff\0\x1b[31m");
    let header = parse(&raw, Strictness::Format).unwrap();
    assert_eq!(header.metadata.get("k"), Some(&gguf_format::Value::String(b"\xff\0\x1b[31m".to_vec())));
    refused(&Raw::header(0, 1).str(b"a\xff").u32(4).u32(0), "offset 24: key 0 is not UTF-8: `a\\xff`");
    refused(
        &Raw::header(1, 0).tensor(b"\xfe", &[4], F32, 0).data(32, 64),
        "offset 24: name of tensor 0 is not UTF-8: `\\xfe`",
    );
    // Terminal escapes in a name that an error prints.
    refused(
        &Raw::header(1, 0).tensor(b"\x1b[31mw\0", &[4], 99, 0).data(32, 64),
        "offset 51: tensor `\\u{1b}[31mw\\u{0}`: type 99 does not exist",
    );
}

#[test]
fn bools() {
    tolerated(&key(b"k", 7).u8(2), "offset 37: key `k`: bool is 2, expected 0 or 1");
    tolerated(&key(b"k", 9).u32(7).u64(2).u8(1).u8(255), "offset 50: key `k`: bool is 255, expected 0 or 1");
}

#[test]
fn truncation_at_every_byte() {
    let full = Raw::header(2, 3)
        .str(b"general.alignment")
        .u32(4)
        .u32(8)
        .str(b"s")
        .u32(8)
        .str(b"text")
        .str(b"a")
        .u32(9)
        .u32(8)
        .u64(2)
        .str(b"x")
        .str(b"yz")
        .tensor(b"one", &[3, 2], F32, 0)
        .tensor(b"two", &[32], Q8_0, 24)
        .data(8, 24 + 34);
    assert!(parse(&full, Strictness::Format).is_ok());
    for len in 0..full.0.len() {
        assert!(
            parse_header(&full.0[..len], &Limits::default(), Strictness::LlamaCpp).is_err(),
            "{len} of {} bytes are accepted",
            full.0.len()
        );
    }
}

#[test]
fn magic_and_version() {
    let start = |magic: &[u8], version: u32| Raw(magic.to_vec()).u32(version).u64(0).u64(0);
    refused(&start(b"GGML", 3), "offset 0: magic `GGUF` expected, found `GGML`");
    refused(&start(b"\x1b\0\xff\n", 3), "offset 0: magic `GGUF` expected, found `\\u{1b}\\u{0}\\xff\\n`");
    refused(
        &start(b"FUGG", 3),
        "offset 0: magic `GGUF` expected, found `FUGG`: the bytes of each 32-bit word are reversed",
    );
    refused(&start(b"GGUF", 0), "offset 4: version 0, expected 2 or 3");
    refused(&start(b"GGUF", 1), "offset 4: version 1, expected 2 or 3");
    refused(&start(b"GGUF", 4), "offset 4: version 4, expected 2 or 3");
    refused(&start(b"GGUF", 4u32.swap_bytes()), "offset 4: version 4 (big-endian), expected 2 or 3");
    refused(&start(b"GGUF", 1u32.swap_bytes()), "offset 4: version 1 (big-endian), expected 2 or 3");
    assert!(parse(&start(b"GGUF", 2), Strictness::Format).is_ok());
    assert!(parse(&start(b"GGUF", 3u32.swap_bytes()), Strictness::Format).is_ok());
    refused(&Raw(b"GG".to_vec()), "offset 0: magic: the file ends too early: 4 bytes expected, 2 left");
    refused(&Raw(b"".to_vec()), "offset 0: magic: the file ends too early: 4 bytes expected, 0 left");
}

#[test]
fn the_file_is_named_and_a_way_out_is_given() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let open = |bytes: &[u8]| {
        fs_err::write(&path, bytes).unwrap();
        let error = GgufFile::open(&path).unwrap_err();
        (error.to_string().replace(&format!("{}", path.display()), "model.gguf"), error.hints())
    };
    let (message, hints) = open(b"version https://git-lfs.github.com/spec/v1\n");
    assert_eq!(message, "model.gguf: not a GGUF file: a Git LFS pointer");
    assert_eq!(hints, ["fetch the file itself with `git lfs pull`"]);
    let (message, hints) = open(&vec![0; 100_000]);
    assert_eq!(message, "model.gguf: not a GGUF file: nothing but zeros");
    assert_eq!(hints, ["the download or the copy failed: fetch the file again"]);
    let (message, _) = open(b"<!DOCTYPE html><html><body>Please sign in</body></html>\n");
    assert_eq!(message, "model.gguf: not a GGUF file: a web page (HTML)");
    let (message, hints) = open(&one_tensor(&[17], F32).0);
    assert_eq!(
        message,
        "model.gguf: offset 64: tensor `w`: 68 bytes of data end beyond the file of 128 bytes; 132 expected"
    );
    assert_eq!(hints, [INCOMPLETE]);
    assert_eq!(
        open(b""),
        ("model.gguf: not a GGUF file: the file is empty".to_owned(), vec![INCOMPLETE.to_owned()])
    );
    let whole = Raw::header(1, 1).str(b"k").u32(8).str(b"value").tensor(b"w", &[16], F32, 0).data(32, 64).0;
    for n_bytes in 1..whole.len() {
        let (message, hints) = open(&whole[..n_bytes]);
        assert_eq!(hints, [INCOMPLETE], "{n_bytes}: {message}");
    }

    // Files that are tolerated by default can be refused.
    fs_err::write(&path, &one_tensor(&[0], F32).0).unwrap();
    let file = GgufFile::open(&path).unwrap();
    assert_eq!(file.tolerated().count(), 1);
    let strict = OpenOptions { strictness: Strictness::Format, ..OpenOptions::default() };
    assert!(matches!(GgufFile::open_with(&path, &strict), Err(GgufError::Header { .. })));
    assert!(matches!(GgufFile::open(&dir.path().join("none")), Err(GgufError::Io(_))));
}

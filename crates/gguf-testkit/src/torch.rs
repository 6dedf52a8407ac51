//! Builder of small PyTorch files.

use std::io::{Cursor, Write};

use zip::CompressionMethod;
use zip::write::{SimpleFileOptions, ZipWriter};

/// Bytes of `BINUNICODE`.
pub fn text(value: &str) -> Vec<u8> {
    [b"X", &(value.len() as u32).to_le_bytes()[..], value.as_bytes()].concat()
}

/// Bytes of an integer as `LONG1`.
pub fn int(value: i64) -> Vec<u8> {
    [&[0x8a, 8][..], &value.to_le_bytes()].concat()
}

/// Bytes of `GLOBAL`.
pub fn global(module: &str, name: &str) -> Vec<u8> {
    format!("c{module}\n{name}\n").into_bytes()
}

/// Bytes of a tuple of the parts' values.
pub fn tuple(parts: &[Vec<u8>]) -> Vec<u8> {
    [b"(", &parts.concat()[..], b"t"].concat()
}

/// Bytes of a dictionary with these keys and the entries' values.
pub fn dict(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let entries: Vec<u8> =
        entries.iter().flat_map(|(key, value)| [&text(key)[..], value, b"s"].concat()).collect();
    [b"}", &entries[..]].concat()
}

/// Pickle of protocol 2 with this body.
pub fn pickle(body: &[u8]) -> Vec<u8> {
    [b"\x80\x02", body, b"."].concat()
}

/// Call of `_rebuild_tensor_v2`.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub class: &'static str,
    pub key: &'static str,
    pub n_elems: i64,
    pub offset: i64,
    pub sizes: Vec<i64>,
    pub strides: Vec<i64>,
}

impl Tensor {
    /// Creates a tensor over a whole storage, row by row.
    pub fn new(class: &'static str, key: &'static str, sizes: &[i64]) -> Self {
        let mut stride = 1;
        let mut strides: Vec<i64> = sizes
            .iter()
            .rev()
            .map(|&size| {
                stride *= size;
                stride / size.max(1)
            })
            .collect();
        strides.reverse();
        let n_elems = sizes.iter().product();
        Self { class, key, n_elems, offset: 0, sizes: sizes.to_vec(), strides }
    }

    /// Bytes of the call.
    pub fn bytes(&self) -> Vec<u8> {
        let ints = |values: &[i64]| tuple(&values.iter().map(|&value| int(value)).collect::<Vec<_>>());
        let class = global("torch", self.class);
        let storage =
            [tuple(&[text("storage"), class, text(self.key), text("cpu"), int(self.n_elems)]), b"Q".to_vec()];
        let hooks = [global("collections", "OrderedDict"), b")R".to_vec()].concat();
        let args = tuple(&[
            storage.concat(),
            int(self.offset),
            ints(&self.sizes),
            ints(&self.strides),
            vec![0x89],
            hooks,
        ]);
        [global("torch._utils", "_rebuild_tensor_v2"), args, b"R".to_vec()].concat()
    }
}

/// Zip archive of uncompressed records.
pub fn zip(records: &[(&str, &[u8])]) -> Vec<u8> {
    zip_with(records, CompressionMethod::Stored)
}

fn zip_with(records: &[(&str, &[u8])], method: CompressionMethod) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, data) in records {
        zip.start_file(*name, SimpleFileOptions::default().compression_method(method)).unwrap();
        zip.write_all(data).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// Zip container with a pickle and storages `0`, `1`, ..
pub fn container(pickle: &[u8], storages: &[&[u8]]) -> Vec<u8> {
    let names: Vec<String> = (0..storages.len()).map(|i| format!("archive/data/{i}")).collect();
    let mut records: Vec<(&str, &[u8])> = vec![("archive/data.pkl", pickle)];
    records.extend(names.iter().map(String::as_str).zip(storages.iter().copied()));
    records.push(("archive/byteorder", b"little"));
    records.push(("archive/version", b"3\n"));
    zip(&records)
}

/// Older container; storages are given with their element counts.
pub fn legacy(body: &[u8], storages: &[(&str, i64, &[u8])]) -> Vec<u8> {
    let keys: Vec<u8> = storages.iter().flat_map(|(key, ..)| [text(key), b"a".to_vec()].concat()).collect();
    let mut file = [
        b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.".to_vec(),
        pickle(&int(1001)),
        pickle(&dict(&[("protocol_version", int(1001)), ("little_endian", vec![0x88])])),
        pickle(body),
        pickle(&[b"]", &keys[..]].concat()),
    ]
    .concat();
    for (_, count, data) in storages {
        file.extend_from_slice(&count.to_le_bytes());
        file.extend_from_slice(data);
    }
    file
}

/// Bytes of floats.
pub fn floats(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

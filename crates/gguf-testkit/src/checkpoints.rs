//! Checkpoints of Hugging Face: safetensors files and their folders.

use std::path::Path;

use serde::Serialize;
use serde_json::{Map, Value as Json, json};

use gguf_core::{ElementType, Shape, WeightMeta};

use crate::memory::f32_bytes;

/// Safetensors file.
#[derive(Clone, Default)]
pub struct Safetensors {
    header: Map<String, Json>,
    data: Vec<u8>,
}

impl Safetensors {
    /// Parses a file.
    pub fn parse(bytes: &[u8]) -> Self {
        let (n, rest) = bytes.split_first_chunk().unwrap();
        let (header, data) = rest.split_at(u64::from_le_bytes(*n) as usize);
        Self { header: serde_json::from_slice(header).unwrap(), data: data.to_vec() }
    }

    /// Reads a file.
    pub fn read(path: impl AsRef<Path>) -> Self {
        Self::parse(&fs_err::read(path.as_ref()).unwrap())
    }

    /// Descriptions of the tensors by their names, and what is said about the file.
    pub fn header(&self) -> &Map<String, Json> {
        &self.header
    }

    /// States who saved the file, as `format` in its metadata.
    pub fn saved_by(&mut self, format: &str) {
        self.header.insert("__metadata__".to_owned(), json!({ "format": format }));
    }

    /// Bytes of a tensor.
    pub fn data_mut(&mut self, name: &str) -> &mut [u8] {
        let [start, end] = [0, 1].map(|at| self.header[name]["data_offsets"][at].as_u64().unwrap() as usize);
        &mut self.data[start..end]
    }

    /// Adds a tensor; `dtype` is the format's name of its element type.
    pub fn add(&mut self, name: &str, dtype: &str, dims: impl Serialize, bytes: &[u8]) {
        let range = [self.data.len(), self.data.len() + bytes.len()];
        self.header.insert(name.to_owned(), json!({ "dtype": dtype, "shape": dims, "data_offsets": range }));
        self.data.extend_from_slice(bytes);
    }

    /// Adds a tensor of F32 numbers.
    pub fn add_f32(&mut self, name: &str, dims: impl Serialize, values: &[f32]) {
        self.add(name, "F32", dims, &f32_bytes(values));
    }

    /// Adds a tensor of BF16 numbers, cut off to 16 bits.
    pub fn add_bf16(&mut self, name: &str, dims: impl Serialize, values: &[f32]) {
        let bytes: Vec<u8> =
            values.iter().flat_map(|value| ((value.to_bits() >> 16) as u16).to_le_bytes()).collect();
        self.add(name, "BF16", dims, &bytes);
    }

    /// Bytes of the file; the header is padded to eight bytes, as the format's own library does.
    pub fn bytes(&self) -> Vec<u8> {
        let mut header = serde_json::to_vec(&self.header).unwrap();
        header.resize(header.len().next_multiple_of(8), b' ');
        [&(header.len() as u64).to_le_bytes()[..], &header, &self.data].concat()
    }

    /// Writes the file.
    pub fn write(&self, path: &Path) {
        fs_err::write(path, self.bytes()).unwrap();
    }

    /// Writes `config.json` and `model.safetensors` into a folder, which is created if it is missing.
    pub fn write_checkpoint(&self, dir: &Path, config: &Json) {
        fs_err::create_dir_all(dir).unwrap();
        fs_err::write(dir.join("config.json"), config.to_string()).unwrap();
        self.write(&dir.join("model.safetensors"));
    }
}

/// Elements as the script computes them: a hash of the tensor's number and the element's index.
fn elements(number: usize, name: &str, n: usize) -> Vec<f32> {
    let element = |i: usize| {
        let mut x = (i as u32).wrapping_mul(2_654_435_761);
        x = x.wrapping_add((number as u32).wrapping_mul(2_246_822_519)).wrapping_add(12345);
        x = (x ^ (x >> 15)).wrapping_mul(2_246_822_519);
        x = (x ^ (x >> 13)).wrapping_mul(3_266_489_917);
        let value = ((x >> 16) as f32 - 32768.0) / 32768.0;
        if name.contains("norm") && name.ends_with("weight") { 1.0 + value / 4.0 } else { value / 2.0 }
    };
    (0..n).map(element).collect()
}

/// Writes a case as the checkpoint that it describes.
pub fn write_case(case: &Json, dir: &Path) {
    let mut file = Safetensors::default();
    for (number, (name, shape)) in case["tensors"].as_object().unwrap().iter().enumerate() {
        let n: u64 = shape.as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).product();
        file.add_f32(name, shape, &elements(number, name, n as usize));
    }
    file.write_checkpoint(dir, &case["config"]);
}

/// Descriptions of the tensors of a case, whose rows are name, type and shape.
pub fn weights(case: &Json) -> Vec<WeightMeta> {
    let weight = |row: &Json| {
        let dims = row[2].as_array().unwrap().iter().map(|dim| dim.as_u64().unwrap()).collect();
        WeightMeta {
            name: row[0].as_str().unwrap().to_owned(),
            shape: Shape::new(dims).unwrap(),
            ty: ElementType::from_name(row[1].as_str().unwrap()).unwrap(),
        }
    };
    case["tensors"].as_array().unwrap().iter().map(weight).collect()
}

/// Writes a checkpoint directory of a case with zeros for weights.
pub fn write_zeros(dir: &Path, case: &Json) {
    let mut file = Safetensors::default();
    for weight in weights(case) {
        let n_bytes = weight.ty.bits() as u64 / 8 * weight.shape.n_elems();
        file.add(&weight.name, weight.ty.name(), weight.shape.dims(), &vec![0; n_bytes as usize]);
    }
    file.write_checkpoint(dir, &case["config"]);
}

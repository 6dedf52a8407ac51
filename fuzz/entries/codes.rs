//! Quantized checkpoints: the decoder of each method, over a container in memory.

use std::path::Path;

use gguf_foundry::checkpoint::{parse_object, safetensors};
use gguf_foundry::convert::{Conversion, ConvertOptions, FlmOptions, ModelSource, OffsetSign};
use gguf_foundry::core::limits::Limits;
use gguf_foundry::core::simd::SimdLevel;
use gguf_foundry::core::{ElementType, SourceError, TensorSource, WeightMeta, WeightSource};
use gguf_foundry::dequant::flm::FlmMeaning;
use gguf_foundry::dequant::{
    Configurations, DequantOptions, HF_QUANT_CONFIG, QUANT_CONFIG, QUANTIZE_CONFIG, QUANTO_QMAP, open,
};
use serde_json::Value as Json;

use super::bundle::{self, Directory, Numbers, accepted};

/// Maximum elements that are read for one input: the target is damage, not size.
const MAX_ELEMS: u64 = 1 << 14;

struct Parts {
    metas: Vec<WeightMeta>,
    offsets: Vec<(usize, usize)>,
    file: Vec<u8>,
    is_mapped: bool,
}

impl Parts {
    fn of(file: &[u8], is_mapped: bool) -> Option<Self> {
        let header = safetensors::parse_header(file, &Limits::default()).ok()?;
        let range = |tensor: &safetensors::TensorRange| (tensor.offset as usize, tensor.n_bytes as usize);
        let offsets = header.tensors.iter().map(range).collect();
        let metas = header.tensors.into_iter().map(|tensor| tensor.meta).collect();
        Some(Self { metas, offsets, file: file.to_vec(), is_mapped })
    }

    fn bytes(&self, weight: usize) -> &[u8] {
        let (offset, n_bytes) = self.offsets[weight];
        &self.file[offset..offset + n_bytes]
    }
}

impl WeightSource for Parts {
    fn weights(&self) -> &[WeightMeta] {
        &self.metas
    }

    fn read_elems(&self, weight: usize, first: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let at = first as usize * self.metas[weight].ty.bytes().unwrap_or(1);
        out.copy_from_slice(&self.bytes(weight)[at..at + out.len()]);
        Ok(())
    }

    fn borrow(&self, weight: usize) -> Option<&[u8]> {
        self.is_mapped.then(|| self.bytes(weight))
    }
}

/// Reads the weights of a layer. Pieces must equal those of the whole, and those of `twin` (another vector level,
/// mapped or not). Returns true if anything was read.
pub(super) fn survey(source: &dyn WeightSource, twin: Option<&dyn WeightSource>, data: &[u8]) -> bool {
    let mut numbers = Numbers::of(data);
    let mut left = MAX_ELEMS;
    let mut was_read = false;
    for (weight, meta) in source.weights().iter().enumerate() {
        let (n, size) = (meta.shape.n_elems(), meta.ty.bytes().unwrap_or(1));
        if n == 0 || n > left || meta.ty.bytes().is_none() {
            continue;
        }
        left -= n;
        let read = |source: &dyn WeightSource, first: u64, n: u64| {
            let mut bytes = vec![0; n as usize * size];
            accepted(source.read_elems(weight, first, &mut bytes)).map(|()| comparable(meta.ty, bytes))
        };
        let whole = read(source, 0, n);
        if let Some(twin) = twin {
            assert_eq!(read(twin, 0, n), whole, "{}", meta.name);
        }
        if let Some(whole) = &whole {
            was_read = true;
            for _ in 0..3 {
                let range = numbers.range(n);
                let piece = read(source, range.start, range.end - range.start);
                let expected = &whole[range.start as usize * size..range.end as usize * size];
                assert_eq!(piece.as_deref(), Some(expected), "{} {range:?}", meta.name);
            }
        }
        let _ = source.code_type(weight);
        packed(source, twin, weight, n, &mut numbers);
        // Released pages can be read again.
        source.release_elems(weight, 0, n);
        assert_eq!(read(source, 0, n), whole, "{}", meta.name);
    }
    was_read
}

/// Replaces all NaNs by the same one.
fn comparable(ty: ElementType, mut bytes: Vec<u8>) -> Vec<u8> {
    if ty == ElementType::F32 {
        for word in bytes.as_chunks_mut::<4>().0 {
            if f32::from_le_bytes(*word).is_nan() {
                *word = f32::NAN.to_le_bytes();
            }
        }
    }
    bytes
}

/// Compares the blocks of a weight's codes: the whole, a piece, and those of the twin.
fn packed(
    source: &dyn WeightSource,
    twin: Option<&dyn WeightSource>,
    weight: usize,
    n: u64,
    numbers: &mut Numbers,
) {
    let Some(packings) = accepted(source.packings(weight)) else { return };
    for packing in packings.iter().filter(|packing| packing.ty.is_quantized()) {
        let (elems, bytes) = (packing.ty.block_elems() as u64, packing.ty.block_bytes());
        let n_blocks = n / elems;
        assert_eq!(n_blocks * elems, n, "a packing holds whole rows of blocks");
        let read = |source: &dyn WeightSource, first: u64, n: u64| {
            let mut blocks = vec![0; n as usize * bytes];
            accepted(source.read_packed(weight, packing.ty, first * elems, &mut blocks)).map(|()| blocks)
        };
        let whole = read(source, 0, n_blocks);
        if let Some(twin) = twin {
            assert_eq!(read(twin, 0, n_blocks), whole, "{}", packing.ty);
        }
        if let Some(whole) = &whole {
            let range = numbers.range(n_blocks);
            let piece = read(source, range.start, range.end - range.start);
            let expected = &whole[range.start as usize * bytes..range.end as usize * bytes];
            assert_eq!(piece.as_deref(), Some(expected), "{} {range:?}", packing.ty);
        }
    }
}

const FILES: &[&str] =
    &["config.json", "model.safetensors", HF_QUANT_CONFIG, QUANTIZE_CONFIG, QUANT_CONFIG, QUANTO_QMAP];

/// Reads configuration and container of a method; if it has names, it is fixed, whatever the configuration declares.
fn method(names: &[&str], data: &[u8]) -> bool {
    let files = bundle::split(data, FILES);
    let object = |name: &str| {
        let text = bundle::find(&files, name)?;
        parse_object(text, &Limits::default()).ok()
    };
    let Some(mut config) = object("config.json") else { return false };
    if let Some(Json::Object(settings)) = config.get_mut("quantization_config") {
        let found = settings.get("quant_method").and_then(Json::as_str);
        if let Some(&first) = names.first()
            && !names.iter().any(|&name| found == Some(name))
        {
            settings.insert("quant_method".to_owned(), first.into());
        }
    }
    let configurations = Configurations {
        config,
        hf_quant_config: object(HF_QUANT_CONFIG),
        quantize_config: object(QUANTIZE_CONFIG),
        quant_config: object(QUANT_CONFIG),
        quanto_qmap: object(QUANTO_QMAP),
        ..Configurations::default()
    };
    let Some(file) = bundle::find(&files, "model.safetensors") else { return false };
    let layer = |is_mapped, level| {
        let parts = Parts::of(file, is_mapped)?;
        let options = DequantOptions { offset_sign: OffsetSign::Auto, level };
        accepted(open(&configurations, Box::new(parts), options))
    };
    let (plain, twin) = (layer(false, SimdLevel::Scalar), layer(true, SimdLevel::detect()));
    assert_eq!(plain.is_some(), twin.is_some());
    let (Some(plain), Some(twin)) = (plain, twin) else { return false };
    let is_read = survey(&*plain.source, Some(&*twin.source), data);
    let Some(quantization) = plain.quantization else { return false };
    for class in quantization.classes(plain.source.weights()) {
        assert!(class.n_weights > 0 && !class.text().is_empty() && class.bits_per_weight() >= 0.0);
    }
    is_read
}

macro_rules! methods {
    ($($name:ident: $($names:literal)*;)*) => {
        $(pub(super) fn $name(data: &[u8]) -> bool {
            method(&[$($names),*], data)
        })*
    };
}

methods! {
    auto_round: "auto-round" "auto_round" "intel/auto-round";
    awq: "awq";
    bitnet: "bitnet";
    bitsandbytes: "bitsandbytes";
    compressed_tensors: "compressed-tensors";
    fp8: "fp8" "fbgemm_fp8";
    gptq: "gptq";
    hqq: "hqq";
    mlx: ;
    modelopt: "modelopt";
    mxfp4: "mxfp4";
    quanto: "quanto";
}

const MSMODELSLIM: &[&str] = &[
    "config.json",
    "quant_model_description.json",
    "quant_model_description_w8a8.json",
    "quant_model_weight-00001-of-00002.safetensors",
    "quant_model_weight-00002-of-00002.safetensors",
    "quant_model_weight.safetensors",
    "quant_model_weight.safetensors.index.json",
    "quant_model_weight_w8a8.safetensors",
    "quant_model_weights-00001-of-00002.safetensors",
    "quant_model_weights-00002-of-00002.safetensors",
    "quant_model_weights.safetensors",
    "quant_model_weights.safetensors.index.json",
];

/// Reads a directory of msModelSlim.
pub(super) fn msmodelslim(data: &[u8]) -> bool {
    let files = bundle::split(data, MSMODELSLIM);
    let dir = Directory::of(&files);
    let sign = [OffsetSign::Auto, OffsetSign::File, OffsetSign::Npu][data.len() % 3];
    directory(dir.path(), data, |path, options| {
        let options = ConvertOptions { offset_sign: sign, ..options.clone() };
        accepted(ModelSource::open_msmodelslim(path, &options))
    })
}

fn directory(path: &Path, data: &[u8], open: impl Fn(&Path, &ConvertOptions) -> Option<ModelSource>) -> bool {
    let layer = |level| open(path, &ConvertOptions { level, ..ConvertOptions::default() })?.weights;
    let (plain, twin) = (layer(SimdLevel::Scalar), layer(SimdLevel::detect()));
    assert_eq!(plain.is_some(), twin.is_some());
    let (Some(plain), Some(twin)) = (plain, twin) else { return false };
    survey(&*plain, Some(&*twin), data)
}

/// Reads a FastLLM file: its weights, and the keys from its dictionary and its tokens.
pub(super) fn fastllm(data: &[u8]) -> bool {
    let path = bundle::file("model.flm", data);
    let merged = FlmOptions { merge_adapters: true, ..FlmOptions::default() };
    let is_read =
        directory(&path, data, |path, options| accepted(ModelSource::open_flm(path, &merged, options)));
    let plain = FlmOptions { meaning: FlmMeaning::Writer, ..FlmOptions::default() };
    for (flm, pre) in [(&plain, None), (&merged, Some("gpt-2".to_owned()))] {
        let options = ConvertOptions { vocab_only: pre.is_some(), pre, ..ConvertOptions::default() };
        let Some(source) = accepted(ModelSource::open_flm(&path, flm, &options)) else { continue };
        if let Some(conversion) = accepted(Conversion::of(source, &options)) {
            assert!(conversion.metadata().contains("general.architecture"));
            let _ = (conversion.tensors().len(), conversion.warnings().len());
        }
    }
    is_read
}

//! Access of cards to the content of weights: small tensors, rows of zeros, equality. Content is read while planning,
//! in bounded pieces. The weights that were read are recorded, so that a plan can list them.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use serde_json::{Value as Json, json};

use crate::language::datum::Datum;
use crate::language::eval::error::EvalError;
use gguf_core::{ElementType, SourceError, WeightMeta, WeightSource};

/// Maximum size of a tensor whose values an expression can use, in bytes.
const MAX_BYTES: u64 = 64 << 10;
/// Number of bytes of a large tensor that are read at a time.
pub(crate) const PIECE: usize = 1 << 18;

/// Numbers of tokens in `tokenizer.json`, and the added tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenCounts {
    /// Number of the model's tokens, without added ones.
    pub base: Option<u64>,
    /// Number of tokens including added ones.
    pub len: Option<u64>,
    /// Ids of added tokens by text, including those of `tokenizer_config.json`.
    pub added: BTreeMap<String, u64>,
}

/// Function that counts the tokens, called when a card needs it.
pub(crate) type CountTokens<'a> = &'a dyn Fn() -> TokenCounts;

/// Content of a checkpoint's weights, if it can be read.
#[derive(Default)]
pub struct WeightValues<'a> {
    pub(crate) source: Option<&'a dyn WeightSource>,
    pub(crate) by_name: HashMap<&'a str, usize>,
    read: RefCell<BTreeSet<usize>>,
    count_tokens: Option<CountTokens<'a>>,
    counted: OnceCell<TokenCounts>,
}

impl fmt::Debug for WeightValues<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Values").field("weights", &self.by_name.len()).finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Number {
    Int(i128),
    Float(f64),
}

impl Number {
    pub(crate) fn is_zero(self) -> bool {
        match self {
            Self::Int(int) => int == 0,
            Self::Float(float) => float == 0.0,
        }
    }

    fn datum(self) -> Datum {
        match self {
            Self::Int(int) => Datum::Int(int),
            Self::Float(float) => Datum::Float(float),
        }
    }
}

impl<'a> WeightValues<'a> {
    /// Wraps the weights of a source; `None` if only names and shapes are known.
    pub(crate) fn new(source: Option<&'a dyn WeightSource>, count_tokens: Option<CountTokens<'a>>) -> Self {
        let metas = source.map_or(&[][..], |source| source.weights());
        let by_name = metas.iter().enumerate().map(|(index, meta)| (meta.name.as_str(), index)).collect();
        Self { source, by_name, read: RefCell::default(), count_tokens, counted: OnceCell::new() }
    }

    /// Returns the token counts of the vocabulary as an object.
    pub(crate) fn vocabulary(&self) -> Json {
        let count = || self.count_tokens.map(|count| count()).unwrap_or_default();
        let counts = self.counted.get_or_init(count);
        json!({ "base": counts.base, "len": counts.len, "added": counts.added })
    }

    /// Returns the element type of the codes from which a weight is decoded, if it is quantized.
    pub(crate) fn code_type(&self, name: &str) -> Option<ElementType> {
        self.source?.code_type(*self.by_name.get(name)?)
    }

    pub(crate) fn read(&self) -> Vec<String> {
        let metas = self.source.map_or(&[][..], |source| source.weights());
        self.read.borrow().iter().filter_map(|&index| Some(metas.get(index)?.name.clone())).collect()
    }

    /// Returns the weight of this name and records it as read; `None` if it does not exist or cannot be read.
    pub(crate) fn weight(&self, name: &str) -> Option<(&'a dyn WeightSource, usize, &'a WeightMeta)> {
        let source = self.source?;
        let index = *self.by_name.get(name)?;
        self.read.borrow_mut().insert(index);
        Some((source, index, source.weights().get(index)?))
    }

    /// Returns the values of a small tensor, or the element `at`. The result is null without the tensor, one number if
    /// it has one element, else a list.
    pub(crate) fn values(&self, name: &str, at: Option<&Datum>) -> Result<Datum, EvalError> {
        let Some((source, index, meta)) = self.weight(name) else { return Ok(Datum::Null) };
        let failed = |problem: String| EvalError::Values { tensor: name.to_owned(), problem };
        let n = meta.shape.n_elems();
        let size = elem_bytes(meta).map(|bytes| bytes as u64 * n).map_err(failed)?;
        if size > MAX_BYTES {
            return Err(failed(format!("{size} bytes; values of up to {MAX_BYTES} bytes can be used")));
        }
        let mut all = Vec::with_capacity(n as usize);
        pieces(source, index, meta, 0..n, |number, _| {
            all.push(number.datum());
            true
        })
        .map_err(|error| failed(error.to_string()))?;
        match (at, all.as_slice()) {
            (Some(at), _) => {
                let place = at.as_int().and_then(|at| usize::try_from(at).ok());
                let found = place.and_then(|place| all.get(place)).cloned();
                found.ok_or_else(|| EvalError::NoElement { path: name.to_owned(), index: at.to_string() })
            }
            (None, [one]) => Ok(one.clone()),
            (None, _) => Ok(Datum::List(all.into())),
        }
    }

    /// Returns the indices of the rows from `from` on that are all zeros; null without the tensor.
    pub(crate) fn zero_rows(&self, name: &str, from: u64) -> Result<Datum, EvalError> {
        let Some((source, index, meta)) = self.weight(name) else { return Ok(Datum::Null) };
        let failed = |problem: String| EvalError::Values { tensor: name.to_owned(), problem };
        elem_bytes(meta).map_err(failed)?;
        let rows = meta.shape.dims().first().copied().unwrap_or(0);
        let cols = meta.shape.n_elems().checked_div(rows).unwrap_or(0);
        let mut zeros = Vec::new();
        for row in from..rows {
            let is_zero = pieces(source, index, meta, row * cols..(row + 1) * cols, |n, _| n.is_zero());
            if is_zero.map_err(|error| failed(error.to_string()))? {
                zeros.push(Datum::Int(row.into()));
            }
        }
        Ok(Datum::List(zeros.into()))
    }
}

/// Returns the bytes per element, for types that [`number`] supports.
pub(crate) fn elem_bytes(meta: &WeightMeta) -> Result<usize, String> {
    let bytes = meta.ty.bytes().filter(|&bytes| number(meta.ty, &vec![0; bytes]).is_some());
    bytes.ok_or_else(|| format!("{} elements are not numbers", meta.ty))
}

/// Passes the numbers of a range and their indices to `visit` until it returns false; returns true if it never did.
pub(crate) fn pieces(
    source: &dyn WeightSource,
    index: usize,
    meta: &WeightMeta,
    range: std::ops::Range<u64>,
    mut visit: impl FnMut(Number, u64) -> bool,
) -> Result<bool, SourceError> {
    let size = meta.ty.bytes().unwrap_or(1);
    let mut at = range.start;
    let mut buffer = Vec::new();
    while at < range.end {
        let len = ((PIECE / size) as u64).min(range.end - at);
        buffer.resize(len as usize * size, 0);
        source.read_elems(index, at, &mut buffer)?;
        source.release_elems(index, at, len);
        for (place, bytes) in (at..).zip(buffer.chunks_exact(size)) {
            if !number(meta.ty, bytes).is_some_and(|number| visit(number, place)) {
                return Ok(false);
            }
        }
        at += len;
    }
    Ok(true)
}

/// Returns the number in the bytes of one element; `None` for types that are not plain numbers.
pub(crate) fn number(ty: ElementType, bytes: &[u8]) -> Option<Number> {
    use gguf_core::numeric::{bf16_to_f32, f16_to_f32};
    Some(match ty {
        ElementType::F64 => Number::Float(f64::from_le_bytes(bytes.try_into().ok()?)),
        ElementType::F32 => Number::Float(f32::from_le_bytes(bytes.try_into().ok()?).into()),
        ElementType::F16 => Number::Float(f16_to_f32(u16::from_le_bytes(bytes.try_into().ok()?)).into()),
        ElementType::Bf16 => Number::Float(bf16_to_f32(u16::from_le_bytes(bytes.try_into().ok()?)).into()),
        ElementType::I64 => Number::Int(i64::from_le_bytes(bytes.try_into().ok()?).into()),
        ElementType::I32 => Number::Int(i32::from_le_bytes(bytes.try_into().ok()?).into()),
        ElementType::I16 => Number::Int(i16::from_le_bytes(bytes.try_into().ok()?).into()),
        ElementType::I8 => Number::Int(i8::from_le_bytes(bytes.try_into().ok()?).into()),
        ElementType::U64 => Number::Int(u64::from_le_bytes(bytes.try_into().ok()?).into()),
        ElementType::U32 => Number::Int(u32::from_le_bytes(bytes.try_into().ok()?).into()),
        ElementType::U16 => Number::Int(u16::from_le_bytes(bytes.try_into().ok()?).into()),
        ElementType::U8 | ElementType::Bool => Number::Int((*bytes.first()?).into()),
        _ => return None,
    })
}

//! Checkpoints of Ascend's msModelSlim: codes, scales and offsets become weights under the names of the float model.
//!
//! A description labels every tensor; the labels decide. Parameters of the activations and scales of a cache have no
//! place in a GGUF file: they are left out, and one line says so. Smoothing may have given RMS norms a bias: the layers
//! behind them take it over. What is computed at run time on the NPU (rotations, FlatQuant) is refused.
//!
//! # Exactness
//! `(code - offset) * scale`, rounded once to F32 (`linear.rs`). Files hold the offset that is subtracted; the kernels
//! add its negative, and an export made for them has it with the other sign ([`OffsetSign`]).

mod bias;
mod error;
mod label;
mod layout;
mod linear;
mod norms;
mod pack;
mod scan;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};

use rayon::prelude::*;

use crate::core::text::escape;
use crate::core::{ElementType, GgmlType, Packing, Shape, SourceError, WeightMeta, WeightSource};
use crate::dequant::Encodings;

use self::bias::{Base, Bias, Fold};
use self::label::{CACHE, Label, PARAMETERS, run_time};
use self::layout::{Module, StaticBias, Tensors};
use self::linear::Linear;
use self::scan::{Facts, other_sign_fits};

pub use self::error::MsModelSlimError;

/// How offsets are meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OffsetSign {
    /// As the description has it. Every version of the tool that writes a description writes offsets that are
    /// subtracted.
    #[default]
    Auto,
    /// They are subtracted from the codes.
    File,
    /// They are added to the codes, as the kernels of the NPU do.
    Npu,
}

/// What the layer has to know besides the tensors.
#[derive(Clone, Debug, Default)]
pub struct MsModelSlimOptions {
    /// Quantization type of each tensor.
    pub labels: BTreeMap<String, String>,
    /// Whether the description has a `version`: its four-bit weights are packed.
    pub is_versioned: bool,
    /// Whether the norms of the architecture have no bias of their own.
    pub has_rms_norms: bool,
    /// How offsets are meant.
    pub offset_sign: OffsetSign,
}

/// A checkpoint of msModelSlim as that of the float model.
pub struct MsModelSlim {
    source: Box<dyn WeightSource + Send>,
    weights: Vec<WeightMeta>,
    entries: Vec<Entry>,
    linears: Vec<Linear>,
    facts: Vec<Facts>,
    encodings: Encodings,
    warnings: Vec<String>,
}

impl std::fmt::Debug for MsModelSlim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MsModelSlim")
            .field("weights", &self.weights.len())
            .field("quantized", &self.linears.len())
            .finish_non_exhaustive()
    }
}

/// Where a weight comes from.
#[derive(Debug)]
enum Entry {
    /// A tensor as it is.
    Plain(usize),
    /// A quantized weight.
    Linear(usize),
    /// A bias that is computed.
    Bias(Box<Bias>),
}

impl MsModelSlim {
    /// Puts the weights together, checks all scales and offsets, and finds out which static layers have a bias (for
    /// that their codes are read once).
    ///
    /// # Errors
    /// [`MsModelSlimError`]: tensors and labels that do not fit together, a type that cannot be converted, numbers
    /// that are not finite.
    pub fn open(
        source: Box<dyn WeightSource + Send>,
        options: &MsModelSlimOptions,
    ) -> Result<Self, MsModelSlimError> {
        let tensors = Tensors::new(&*source, &options.labels, options.is_versioned);
        let sorted = Sorted::new(&tensors)?;
        let mut linears = Vec::with_capacity(sorted.modules.len());
        for module in &sorted.modules {
            linears.push(module.linear(&tensors)?);
        }
        for linear in &mut linears {
            linear.adds_offset = options.offset_sign == OffsetSign::Npu;
        }
        let gather = |(module, linear)| Facts::gather(&tensors, module, linear);
        // Collected before the first error is looked for: which one is named must not depend on threads.
        let facts: Vec<Result<Facts, MsModelSlimError>> =
            sorted.modules.par_iter().zip(&mut linears).map(gather).collect();
        let facts = facts.into_iter().collect::<Result<Vec<_>, _>>()?;

        let mut warnings = sorted.warnings(&tensors);
        warnings.extend(scale_warnings(&linears, &facts));
        warnings.extend(sign_warning(&*source, &linears, options.offset_sign)?);
        let built = sorted.build(&tensors, &linears, options.has_rms_norms)?;
        let weights = built.iter().map(|(name, entry)| meta(&tensors, &linears, name, entry)).collect();
        let labelled = sorted.modules.iter().zip(&linears);
        let encodings =
            labelled.map(|(module, linear)| (linear.name.clone(), linear.stored(&*source, module.text)));
        let encodings = encodings.collect();
        let entries = built.into_iter().map(|(_, entry)| entry).collect();
        Ok(Self { source, weights, entries, linears, facts, encodings, warnings })
    }

    /// What was left out, and what is odd.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// How the quantized weights are stored.
    #[must_use]
    pub fn encodings(&self) -> &Encodings {
        &self.encodings
    }

    /// How many weights are quantized.
    #[must_use]
    pub fn n_quantized(&self) -> usize {
        self.linears.len()
    }

    fn blame(&self, weight: usize, error: MsModelSlimError) -> SourceError {
        match error {
            MsModelSlimError::Source(error) => error,
            error => SourceError { tensor: self.weights[weight].name.clone(), source: error.into() },
        }
    }
}

fn meta(tensors: &Tensors<'_>, linears: &[Linear], name: &str, entry: &Entry) -> WeightMeta {
    let (shape, ty) = match entry {
        Entry::Plain(at) => (tensors.meta(*at).shape.clone(), tensors.meta(*at).ty),
        Entry::Linear(at) => (linears[*at].shape.clone(), ElementType::F32),
        // As long as a weight has rows, so its size was checked.
        Entry::Bias(bias) => {
            (Shape::new(vec![bias.n_rows]).unwrap_or_else(|| unreachable!()), ElementType::F32)
        }
    };
    WeightMeta { name: name.to_owned(), shape, ty }
}

/// The tensors of a checkpoint by what they are for.
struct Sorted<'a> {
    modules: Vec<Module<'a>>,
    /// Tensors that are taken as they are.
    plain: Vec<usize>,
    cache: Vec<usize>,
    n_activation: usize,
    n_tensor_parallel: usize,
}

impl<'a> Sorted<'a> {
    fn new(tensors: &Tensors<'a>) -> Result<Self, MsModelSlimError> {
        let mut sorted = Self {
            modules: Vec::new(),
            plain: Vec::new(),
            cache: Vec::new(),
            n_activation: 0,
            n_tensor_parallel: 0,
        };
        let mut parameters = Vec::new();
        for (at, meta) in tensors.source.weights().iter().enumerate() {
            let name = meta.name.as_str();
            let (module, ending) = name.rsplit_once('.').unwrap_or(("", name));
            let text = tensors.labels.get(name).map(String::as_str);
            let label = text.map(|text| Label::parse(name, text)).transpose()?;
            if CACHE.contains(&ending) || label == Some(Label::Cache) {
                sorted.cache.push(at);
            } else if let Some(why) = run_time(ending) {
                return Err(MsModelSlimError::RunTime { tensor: name.to_owned(), why });
            } else if tensors.find(&format!("{name}.weight")).is_some() {
                let why = "it stands for a transformation of activations at run time";
                return Err(MsModelSlimError::RunTime { tensor: name.to_owned(), why });
            } else if let Some((whole, _)) = name.split_once(".tp_list.") {
                if tensors.find(&format!("{whole}.weight")).is_none() {
                    let why =
                        "the weight is cut in parts for several devices, and the whole is not in the file";
                    return Err(MsModelSlimError::RunTime { tensor: name.to_owned(), why });
                }
                sorted.n_tensor_parallel += 1;
            } else if PARAMETERS.contains(&ending) {
                parameters.push((at, module.trim_end_matches('.')));
            } else if ending == "mul_scale" && module.strip_suffix(".div").is_some() {
                parameters.push((at, module));
            } else {
                sorted.add(tensors, at, text, label)?;
            }
        }
        let owners: HashSet<&str> = sorted.modules.iter().map(|module| module.stored).collect();
        for (at, module) in parameters {
            let smoothed = module.strip_suffix(".div").map(|wrapper| format!("{wrapper}.linear"));
            if !owners.contains(smoothed.as_deref().unwrap_or(module)) {
                return Err(MsModelSlimError::Orphan { tensor: tensors.meta(at).name.clone() });
            }
            let ending = tensors.meta(at).name.rsplit('.').next();
            sorted.n_activation += usize::from(ending.is_some_and(|ending| ending.starts_with("input_")));
        }
        Ok(sorted)
    }

    /// A tensor that is a weight, a bias or a norm.
    fn add(
        &mut self,
        tensors: &Tensors<'a>,
        at: usize,
        text: Option<&'a str>,
        label: Option<Label>,
    ) -> Result<(), MsModelSlimError> {
        let meta = tensors.meta(at);
        let tensor = || meta.name.clone();
        let contradiction = |text: &str| MsModelSlimError::Contradiction {
            tensor: meta.name.clone(),
            label: text.to_owned(),
            ty: meta.ty,
        };
        let is_code = matches!(meta.ty, ElementType::I8 | ElementType::U8 | ElementType::F8E4M3);
        let Some((text, label)) = text.zip(label) else {
            if is_code {
                return Err(MsModelSlimError::NoLabel { tensor: tensor(), ty: meta.ty });
            }
            self.plain.push(at);
            return Ok(());
        };
        let stored = meta.name.strip_suffix(".weight");
        match (label, stored) {
            (Label::Float, _) if is_code => return Err(contradiction(text)),
            (Label::Float, _) => self.plain.push(at),
            (_, Some(stored)) if is_code => {
                let name = plain_name(tensors, &meta.name);
                self.modules.push(Module { stored, name, codes: at, text, label });
            }
            (_, None) if is_code => return Err(contradiction(text)),
            // Norms and biases bear the label of their layer; beside scales it would be a lie.
            (_, Some(stored))
                if ["weight_scale", "deq_scale"].iter().any(|end| tensors.of(stored, end).is_some()) =>
            {
                return Err(contradiction(text));
            }
            _ => self.plain.push(at),
        }
        Ok(())
    }

    /// What was left out.
    fn warnings(&self, tensors: &Tensors<'_>) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(&first) = self.cache.first() {
            warnings.push(format!(
                "{} scales and offsets of the key and value cache or of attention are left out (`{}` is the first): a \
                 GGUF file has no place for them",
                self.cache.len(),
                escape(&tensors.meta(first).name)
            ));
        }
        if self.n_activation > 0 {
            warnings.push(format!(
                "{} scales and offsets of activations are left out: the converted model does not quantize its \
                 activations as the NPU does",
                self.n_activation
            ));
        }
        if self.n_tensor_parallel > 0 {
            warnings.push(format!(
                "{} parts of weights for several devices are left out: the whole weights are there too",
                self.n_tensor_parallel
            ));
        }
        let mut absent = tensors.labels.keys().filter(|name| tensors.find(name).is_none());
        if let Some(first) = absent.next() {
            warnings.push(format!(
                "the description names {} tensors that are not in the checkpoint (`{}` is the first)",
                1 + absent.count(),
                escape(first)
            ));
        }
        warnings
    }

    /// The weights of the float model, in the order of the checkpoint; a computed bias stands before its weight.
    fn build(
        &self,
        tensors: &Tensors<'_>,
        linears: &[Linear],
        has_rms_norms: bool,
    ) -> Result<Vec<(String, Entry)>, MsModelSlimError> {
        let quantized: HashMap<String, (usize, u64)> = linears
            .iter()
            .enumerate()
            .map(|(at, linear)| (linear.name.clone(), (at, linear.n_cols())))
            .collect();
        let norms = norms::sort_out(tensors, &quantized, has_rms_norms)?;
        let mut statics = self.static_biases(tensors, linears)?;
        let mut folds: HashMap<String, Fold> = norms.folds.into_iter().collect();

        // Position in the checkpoint (a bias before what stands there), name, origin.
        let mut entries: Vec<((usize, bool), String, Entry)> = Vec::new();
        for (name, at) in norms.kept {
            entries.push(((at, true), name, Entry::Plain(at)));
        }
        for (at, linear) in linears.iter().enumerate() {
            entries.push(((linear.codes, true), linear.name.clone(), Entry::Linear(at)));
        }
        let plain: Vec<usize> = self.plain.iter().copied().filter(|at| !norms.seen.contains(at)).collect();
        let mut biases: BTreeMap<String, usize> = BTreeMap::new();
        for &at in &plain {
            let name = plain_name(tensors, &tensors.meta(at).name);
            if name.strip_suffix(".bias").is_some() {
                biases.insert(name, at);
            } else {
                entries.push(((at, true), name, Entry::Plain(at)));
            }
        }
        // Weights whose bias is computed, quantized or not.
        let mut computed = Vec::new();
        for (place, name, entry) in &entries {
            let Some(layer) = name.strip_suffix(".weight") else { continue };
            let (base, n_rows) = match entry {
                Entry::Linear(at) => (statics.remove(at), linears[*at].n_rows()),
                Entry::Plain(at) => (None, tensors.meta(*at).shape.n_rows()),
                Entry::Bias(_) => continue,
            };
            let fold = folds.remove(name);
            let bias_name = format!("{layer}.bias");
            let (place, base) = match (biases.get(&bias_name), base, fold.is_some()) {
                // A bias that is there is exact; the integer one contains it already.
                (Some(&at), _, true) => {
                    let meta = tensors.meta(at);
                    layout::float(meta)?;
                    if meta.shape.n_elems() != n_rows {
                        let (tensor, found) = (meta.name.clone(), meta.shape.clone());
                        let expected = format!("{n_rows} rows of `{}`", escape(name));
                        return Err(MsModelSlimError::ParameterShape { tensor, found, expected });
                    }
                    biases.remove(&bias_name);
                    ((at, false), Base::Tensor(at))
                }
                (None, Some((bias, at)), _) => ((place.0, false), Base::Static(bias, at)),
                (None, None, true) => ((place.0, false), Base::Zero),
                (Some(_), _, false) | (None, None, false) => continue,
            };
            computed.push((place, bias_name, base, n_rows, fold));
        }
        for (place, name, base, n_rows, fold) in computed {
            let bias = Bias { name: name.clone(), n_rows, base, fold };
            entries.push((place, name, Entry::Bias(Box::new(bias))));
        }
        entries.extend(biases.into_iter().map(|(name, at)| ((at, true), name, Entry::Plain(at))));
        entries.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        let mut names = HashSet::new();
        if let Some((_, name, _)) = entries.iter().find(|(_, name, _)| !names.insert(name.as_str())) {
            return Err(MsModelSlimError::Duplicate { tensor: name.clone() });
        }
        Ok(entries.into_iter().map(|(_, name, entry)| (name, entry)).collect())
    }

    /// Biases that static layers carry in their integers, by weight; without those that are nothing but rounding.
    fn static_biases(
        &self,
        tensors: &Tensors<'_>,
        linears: &[Linear],
    ) -> Result<BTreeMap<usize, (StaticBias, usize)>, MsModelSlimError> {
        let find = |(at, (module, linear)): (usize, (&Module<'_>, &Linear))| {
            let Some(bias) = module.static_bias(tensors, linear)? else { return Ok(None) };
            scan::check(tensors.source, &bias.deq_scale)?;
            let is_there = tensors.of(module.stored, "bias").is_some();
            let is_absent = is_there || bias.is_absent(tensors.source, linear)?;
            Ok((!is_absent).then_some((at, (bias, at))))
        };
        let found: Vec<Result<_, MsModelSlimError>> =
            self.modules.par_iter().zip(linears).enumerate().map(find).collect();
        found.into_iter().filter_map(Result::transpose).collect()
    }
}

/// The name in a float model: a wrapper that smooths the input at run time adds a level.
fn plain_name(tensors: &Tensors<'_>, name: &str) -> String {
    if let Some((module, ending)) = name.rsplit_once('.')
        && let Some(wrapper) = module.strip_suffix(".linear")
        && tensors.find(&format!("{wrapper}.div.mul_scale")).is_some()
    {
        return format!("{wrapper}.{ending}");
    }
    name.to_owned()
}

/// Scales that are legal and odd.
fn scale_warnings(linears: &[Linear], facts: &[Facts]) -> Vec<String> {
    type Count = fn(&Facts) -> u64;
    let counts: [(Count, &str); 2] = [
        (|facts| facts.n_zero, "are zero: what they belong to is zero"),
        (|facts| facts.n_negative, "are negative, which the tool does not write"),
    ];
    let mut warnings = Vec::new();
    for (count, what) in counts {
        let n: u64 = facts.iter().map(count).sum();
        let first = linears.iter().zip(facts).find(|(_, facts)| count(facts) > 0);
        if let Some((linear, _)) = first {
            warnings
                .push(format!("{n} scales {what} (`{}` is the first weight with one)", escape(&linear.name)));
        }
    }
    warnings
}

/// Looks at up to 32 weights with offsets, spread over the model: the weights of most rows are centred, so the sign
/// that brings their mean further from zero is suspect.
fn sign_warning(
    source: &dyn WeightSource,
    linears: &[Linear],
    sign: OffsetSign,
) -> Result<Option<String>, MsModelSlimError> {
    const SAMPLES: usize = 32;
    let with_offsets: Vec<&Linear> = linears.iter().filter(|linear| linear.offset.is_some()).collect();
    let step = with_offsets.len().div_ceil(SAMPLES).max(1);
    let (mut n, mut n_other) = (0, 0);
    for linear in with_offsets.into_iter().step_by(step) {
        n += 1;
        n_other += usize::from(other_sign_fits(source, linear)?);
    }
    if 2 * n_other <= n {
        return Ok(None);
    }
    let (now, other) = match sign {
        OffsetSign::Npu => ("added to", "subtracted (`--offset-sign file`)"),
        OffsetSign::Auto | OffsetSign::File => ("subtracted from", "added (`--offset-sign npu`)"),
    };
    Ok(Some(format!(
        "offsets are {now} the codes, but in {n_other} of {n} weights that were looked at the rows are centred only if \
         they are {other}"
    )))
}

impl WeightSource for MsModelSlim {
    fn weights(&self) -> &[WeightMeta] {
        &self.weights
    }

    fn read_elems(&self, weight: usize, first: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let source = &*self.source;
        match &self.entries[weight] {
            Entry::Plain(at) => source.read_elems(*at, first, out),
            Entry::Linear(at) => {
                let linear = &self.linears[*at];
                let n_cols = linear.n_cols();
                with_floats(out.len() / 4, |floats| {
                    let (mut at, mut rest) = (first, &mut floats[..]);
                    while !rest.is_empty() {
                        let (row, column) = (at / n_cols, at % n_cols);
                        let n = (n_cols - column).min(rest.len() as u64);
                        let (part, tail) = rest.split_at_mut(n as usize);
                        linear.read_values(source, row, column, part)?;
                        (at, rest) = (at + n, tail);
                    }
                    store(floats, out);
                    Ok(())
                })
                .map_err(|error| self.blame(weight, error))
            }
            Entry::Bias(bias) => with_floats(out.len() / 4, |floats| {
                bias.read(source, &self.linears, first, floats)?;
                store(floats, out);
                Ok(())
            })
            .map_err(|error| self.blame(weight, error)),
        }
    }

    fn borrow(&self, weight: usize) -> Option<&[u8]> {
        match &self.entries[weight] {
            Entry::Plain(at) => self.source.borrow(*at),
            Entry::Linear(_) | Entry::Bias(_) => None,
        }
    }

    fn packings(&self, weight: usize) -> Result<Vec<Packing>, SourceError> {
        match &self.entries[weight] {
            Entry::Plain(at) => self.source.packings(*at),
            Entry::Linear(at) => self.facts[*at]
                .packings(&*self.source, &self.linears[*at])
                .map_err(|error| self.blame(weight, error)),
            Entry::Bias(_) => Ok(Vec::new()),
        }
    }

    fn code_type(&self, weight: usize) -> Option<ElementType> {
        match &self.entries[weight] {
            Entry::Plain(at) => self.source.code_type(*at),
            Entry::Linear(at) => Some(self.source.weights()[self.linears[*at].codes].ty),
            Entry::Bias(_) => None,
        }
    }

    fn read_packed(
        &self,
        weight: usize,
        ty: GgmlType,
        first: u64,
        out: &mut [u8],
    ) -> Result<(), SourceError> {
        match &self.entries[weight] {
            Entry::Plain(at) => self.source.read_packed(*at, ty, first, out),
            Entry::Linear(at) => pack::pack(&*self.source, &self.linears[*at], ty, first, out)
                .map_err(|error| self.blame(weight, error)),
            Entry::Bias(bias) => panic!("bias `{}` has no packing as {ty}", bias.name),
        }
    }

    fn release_elems(&self, weight: usize, first: u64, n: u64) {
        match &self.entries[weight] {
            Entry::Plain(at) => self.source.release_elems(*at, first, n),
            Entry::Linear(at) => {
                // Rows that lie wholly inside the range: a neighbour may still need the others.
                let n_cols = self.linears[*at].n_cols();
                let (begin, end) = (first.div_ceil(n_cols), first.saturating_add(n) / n_cols);
                if begin < end {
                    self.linears[*at].release(&*self.source, begin, end - begin);
                }
            }
            Entry::Bias(_) => {}
        }
    }
}

thread_local! {
    static FLOATS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Lends a buffer of `n` floats that lives as long as the thread.
fn with_floats<T>(n: usize, use_them: impl FnOnce(&mut [f32]) -> T) -> T {
    let mut floats = FLOATS.take();
    floats.clear();
    floats.resize(n, 0.0);
    let result = use_them(&mut floats);
    FLOATS.set(floats);
    result
}

fn store(floats: &[f32], out: &mut [u8]) {
    for (bytes, value) in out.as_chunks_mut::<4>().0.iter_mut().zip(floats) {
        *bytes = value.to_le_bytes();
    }
}

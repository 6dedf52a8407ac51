//! Descriptions of the storage of quantized weights, and groups of weights that are stored alike.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use gguf_core::account::Piece;
use gguf_core::{WeightMeta, WeightSource};
use serde::Serialize;

/// Reason for the stored tensors that only a runtime needs.
pub(super) const UNUSED: &str = "a scale of activations or caches, which GGUF does not have";

/// Storage of one weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoding {
    /// Quantization method: `GPTQ`.
    pub method: &'static str,
    /// Description of codes and scales: `4 bit, groups of 128`.
    pub form: String,
    /// Size in the checkpoint in bytes: codes, scales, zero points, indices.
    pub n_bytes: u64,
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `FP8 E4M3`, not `FP8 FP8 E4M3`.
        if self.form.starts_with(self.method) {
            f.write_str(&self.form)
        } else {
            write!(f, "{} {}", self.method, self.form)
        }
    }
}

/// Encodings of a source's weights by name; a weight that is not listed is plain floats.
pub type Encodings = BTreeMap<String, Encoding>;

/// Storage of the weights of a quantized checkpoint.
#[derive(Clone, Debug, Default)]
pub struct Quantization {
    /// Name of the quantization method, in its official spelling.
    pub method: &'static str,
    /// Encodings of the quantized weights, by their names in the float model.
    pub encodings: Encodings,
    /// Stored tensors that are no weights themselves: members of quantized weights, which are the names in `to`, and scales
    /// of activations and caches; then the keys of the settings.
    pub pieces: Vec<Piece>,
    /// Weights that the configuration targets for quantization, but that are plain floats.
    pub plain_targets: Vec<String>,
    /// Biases that the quantization added to layers without one: they hold the biases of norms before the layers.
    pub added_biases: Vec<String>,
}

impl Quantization {
    /// Returns the names of the tensors that no weight needs: scales of activations and caches.
    pub fn left_out(&self) -> Vec<String> {
        let others = self.pieces.iter().filter(|piece| piece.why.as_deref() == Some(UNUSED));
        others.map(|piece| piece.name.clone()).collect()
    }

    /// Returns the classes of weights that are stored alike; `weights` are those of the model.
    pub fn classes(&self, weights: &[WeightMeta]) -> Vec<StoredClass> {
        stored_classes(weights, &self.encodings, |_| ()).into_iter().map(|(class, ())| class).collect()
    }
}

/// Weights of one part of the model that are stored alike and converted alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StoredClass {
    /// Common pattern of their names without `.weight`, with `*` for layer and expert numbers:
    /// `model.layers.*.mlp.{up_proj, down_proj}`.
    #[serde(rename = "weights")]
    pub pattern: String,
    /// Quantization method of these weights.
    pub method: &'static str,
    /// Description of codes and scales: bits, groups, scales.
    pub form: String,
    /// Number of weights.
    #[serde(rename = "count")]
    pub n_weights: u64,
    /// Total number of elements.
    #[serde(rename = "elements")]
    pub n_elems: u64,
    /// Total size in the checkpoint in bytes, including scales and the like.
    #[serde(rename = "bytes")]
    pub n_bytes: u64,
}

impl StoredClass {
    /// Returns method and form as one text.
    pub fn text(&self) -> String {
        Encoding { method: self.method, form: self.form.clone(), n_bytes: 0 }.to_string()
    }

    /// Returns the bits per weight, including scales.
    pub fn bits_per_weight(&self) -> f64 {
        self.n_bytes as f64 * 8.0 / self.n_elems.max(1) as f64
    }
}

/// Groups the quantized weights of a source: one class for each part of the model, encoding, and conversion target,
/// which is returned with it.
///
/// `becomes` maps the index of a weight to its target.
pub fn stored_classes<T: PartialEq>(
    weights: &[WeightMeta],
    encodings: &Encodings,
    becomes: impl Fn(usize) -> T,
) -> Vec<(StoredClass, T)> {
    let mut classes: Vec<PartClass<T>> = Vec::new();
    // Classes by part of the model: each part has few, however many weights the model has.
    let mut by_parent: HashMap<String, Vec<usize>> = HashMap::new();
    for (index, weight) in weights.iter().enumerate() {
        let Some(encoding) = encodings.get(&weight.name) else { continue };
        let pattern = tensor_class(&weight.name);
        let module = pattern.strip_suffix(".weight").unwrap_or(&pattern);
        let (parent, leaf) = module.rsplit_once('.').unwrap_or(("", module));
        let becomes = becomes(index);
        let own = by_parent.entry(parent.to_owned()).or_default();
        let is_same = |known: &PartClass<T>| {
            let class = &known.class;
            class.method == encoding.method && class.form == encoding.form && known.becomes == becomes
        };
        let at = own.iter().copied().find(|&at| is_same(&classes[at])).unwrap_or_else(|| {
            let class = StoredClass {
                pattern: String::new(),
                method: encoding.method,
                form: encoding.form.clone(),
                n_weights: 0,
                n_elems: 0,
                n_bytes: 0,
            };
            classes.push(PartClass { parent: parent.to_owned(), leaves: Vec::new(), class, becomes });
            own.push(classes.len() - 1);
            classes.len() - 1
        });
        let PartClass { leaves, class, .. } = &mut classes[at];
        if !leaves.iter().any(|known| known == leaf) {
            leaves.push(leaf.to_owned());
        }
        class.n_weights += 1;
        class.n_elems = class.n_elems.saturating_add(weight.shape.n_elems());
        class.n_bytes = class.n_bytes.saturating_add(encoding.n_bytes);
    }
    classes.into_iter().map(PartClass::finish).collect()
}

/// Class of weights of one part of the model, before its pattern is known.
struct PartClass<T> {
    /// Common start of the names, up to their last part.
    parent: String,
    leaves: Vec<String>,
    class: StoredClass,
    becomes: T,
}

impl<T> PartClass<T> {
    fn finish(self) -> (StoredClass, T) {
        let Self { parent, leaves, class, becomes } = self;
        let dot = if parent.is_empty() { "" } else { "." };
        let pattern = match leaves.as_slice() {
            [one] => format!("{parent}{dot}{one}"),
            _ => format!("{parent}{dot}{{{}}}", leaves.join(", ")),
        };
        (StoredClass { pattern, ..class }, becomes)
    }
}

/// Returns a name with `*` in place of layer and expert numbers.
pub fn tensor_class(name: &str) -> String {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<&str> = name.split('.').map(|part| if is_number(part) { "*" } else { part }).collect();
    parts.join(".")
}

/// Returns the total bytes of some weights of a source; elements narrower than a byte are packed.
pub(super) fn n_bytes(source: &dyn WeightSource, weights: &[usize]) -> u64 {
    let bytes = |&index: &usize| {
        let meta = &source.weights()[index];
        let bits = u128::from(meta.shape.n_elems()) * u128::from(meta.ty.bits());
        u64::try_from(bits.div_ceil(8)).unwrap_or(u64::MAX)
    };
    weights.iter().map(bytes).fold(0, u64::saturating_add)
}

/// Describes scales along rows, one for each `group` of `n_cols` columns.
pub(super) fn along_rows(group: u64, n_cols: u64) -> String {
    if group < n_cols { format!("groups of {group}") } else { "scales by row".to_owned() }
}

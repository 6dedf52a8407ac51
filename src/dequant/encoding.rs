//! How the weights of a quantized checkpoint are stored, in the words of the field, and which are stored alike.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use crate::core::{WeightMeta, WeightSource};

/// How one weight is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoding {
    /// Who stores weights so: `GPTQ`.
    pub method: &'static str,
    /// Codes and scales: `4 bit, groups of 128`.
    pub form: String,
    /// Bytes it takes in the checkpoint: codes, scales, zero points, indices.
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

/// The encodings of a source's weights by name; a weight that is not listed is plain floats.
pub type Encodings = BTreeMap<String, Encoding>;

/// How a quantized checkpoint stores its weights.
#[derive(Clone, Debug, Default)]
pub struct Quantization {
    /// The method, as its makers spell it.
    pub method: &'static str,
    /// Encodings of the quantized weights, by the names that they have as floats.
    pub encodings: Encodings,
    /// Tensors that were left out: scales of activations and caches.
    pub left_out: Vec<String>,
    /// Weights of the layers that the configuration targets, but that are plain floats.
    pub plain_targets: Vec<String>,
}

impl Quantization {
    /// The weights that are stored alike. `weights` are those of the model.
    #[must_use]
    pub fn classes(&self, weights: &[WeightMeta]) -> Vec<StoredClass<()>> {
        stored_classes(weights, &self.encodings, |_| ())
    }

    /// Endings of the tensors that were left out, each once: `input_scale`, `k_scale`.
    #[must_use]
    pub fn left_out_endings(&self) -> Vec<&str> {
        let mut endings: Vec<&str> = Vec::new();
        for name in &self.left_out {
            let ending = name.rsplit('.').next().unwrap_or(name);
            if !endings.contains(&ending) {
                endings.push(ending);
            }
        }
        endings
    }
}

/// Weights of one part of the model that are stored alike and become the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredClass<T> {
    /// Their names without `.weight`, `*` for the numbers of layers and experts: `model.layers.*.mlp.{up_proj,
    /// down_proj}`.
    pub pattern: String,
    /// Who stores them so.
    pub method: &'static str,
    /// How.
    pub form: String,
    /// How many there are.
    pub n_weights: u64,
    /// Elements of all of them.
    pub n_elems: u64,
    /// Bytes that they take in the checkpoint.
    pub n_bytes: u64,
    /// What they become.
    pub becomes: T,
}

impl<T> StoredClass<T> {
    /// The same weights with another fate.
    #[must_use]
    pub fn with<U>(self, becomes: U) -> StoredClass<U> {
        StoredClass {
            pattern: self.pattern,
            method: self.method,
            form: self.form,
            n_weights: self.n_weights,
            n_elems: self.n_elems,
            n_bytes: self.n_bytes,
            becomes,
        }
    }

    /// Method and form in one text.
    #[must_use]
    pub fn text(&self) -> String {
        Encoding { method: self.method, form: self.form.clone(), n_bytes: 0 }.to_string()
    }

    /// Bits of a weight with its share of the scales.
    #[must_use]
    pub fn bits_per_weight(&self) -> f64 {
        self.n_bytes as f64 * 8.0 / self.n_elems.max(1) as f64
    }
}

/// Groups the quantized weights of a source: one class for each part of the model, encoding, and fate. `becomes` gets
/// the index of a weight.
pub fn stored_classes<T: PartialEq>(
    weights: &[WeightMeta],
    encodings: &Encodings,
    becomes: impl Fn(usize) -> T,
) -> Vec<StoredClass<T>> {
    let mut classes: Vec<(String, Vec<String>, StoredClass<T>)> = Vec::new();
    // Classes by part of the model: there are few in each, however many weights the model has.
    let mut by_parent: HashMap<String, Vec<usize>> = HashMap::new();
    for (index, weight) in weights.iter().enumerate() {
        let Some(encoding) = encodings.get(&weight.name) else { continue };
        let pattern = tensor_class(&weight.name);
        let module = pattern.strip_suffix(".weight").unwrap_or(&pattern);
        let (parent, leaf) = module.rsplit_once('.').unwrap_or(("", module));
        let becomes = becomes(index);
        let own = by_parent.entry(parent.to_owned()).or_default();
        let is_same = |class: &StoredClass<T>| {
            class.method == encoding.method && class.form == encoding.form && class.becomes == becomes
        };
        let at = own.iter().copied().find(|&at| is_same(&classes[at].2)).unwrap_or_else(|| {
            let class = StoredClass {
                pattern: String::new(),
                method: encoding.method,
                form: encoding.form.clone(),
                n_weights: 0,
                n_elems: 0,
                n_bytes: 0,
                becomes,
            };
            classes.push((parent.to_owned(), Vec::new(), class));
            own.push(classes.len() - 1);
            classes.len() - 1
        });
        let (_, leaves, class) = &mut classes[at];
        if !leaves.iter().any(|known| known == leaf) {
            leaves.push(leaf.to_owned());
        }
        class.n_weights += 1;
        class.n_elems = class.n_elems.saturating_add(weight.shape.n_elems());
        class.n_bytes = class.n_bytes.saturating_add(encoding.n_bytes);
    }
    let finish = |(parent, leaves, mut class): (String, Vec<String>, StoredClass<T>)| {
        let dot = if parent.is_empty() { "" } else { "." };
        class.pattern = match leaves.as_slice() {
            [one] => format!("{parent}{dot}{one}"),
            _ => format!("{parent}{dot}{{{}}}", leaves.join(", ")),
        };
        class
    };
    classes.into_iter().map(finish).collect()
}

/// A name with `*` for the numbers in it: those of layers and experts.
#[must_use]
pub fn tensor_class(name: &str) -> String {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<&str> = name.split('.').map(|part| if is_number(part) { "*" } else { part }).collect();
    parts.join(".")
}

/// Bytes of some weights of a source; elements narrower than a byte are packed.
pub(super) fn n_bytes(source: &dyn WeightSource, weights: &[usize]) -> u64 {
    let bytes = |&index: &usize| {
        let meta = &source.weights()[index];
        let bits = u128::from(meta.shape.n_elems()) * u128::from(meta.ty.bits());
        u64::try_from(bits.div_ceil(8)).unwrap_or(u64::MAX)
    };
    weights.iter().map(bytes).fold(0, u64::saturating_add)
}

/// The words for scales that lie along rows: one for each `group` of `n_cols` columns.
pub(super) fn along_rows(group: u64, n_cols: u64) -> String {
    if group < n_cols { format!("groups of {group}") } else { "scales by row".to_owned() }
}

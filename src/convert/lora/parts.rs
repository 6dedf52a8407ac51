//! The tensors of an adapter by what they are: pairs of matrices, and whole tensors.

use indexmap::IndexMap;

use crate::convert::lora::AdapterError;
use crate::convert::lora::error::Stray;
use crate::core::{ElementType, Shape, WeightMeta};
use crate::views::{LowRank, ShapeError, View};

/// How PEFT calls what it wraps a model in.
const WRAPPER: &str = "base_model.model.";

/// How the two matrices make the tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A layer's: W is B · A.
    Linear,
    /// An embedding's, whose W has a row for each token: (B · A)ᵀ.
    Embedding,
}

/// Two matrices that change a tensor of the base.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    /// The tensor's name in the base.
    pub(super) name: String,
    /// Indices in the adapter.
    pub(super) a: usize,
    pub(super) b: usize,
    pub(super) rank: u64,
    /// The tensor is Aᵀ · Bᵀ: an embedding, or a layer that is stored turned.
    pub(super) is_turned: bool,
    pub(super) form: Form,
    /// What the tensor would be stored as.
    pub(super) meta: WeightMeta,
}

impl Pair {
    /// The module's name, as patterns of PEFT match it.
    pub(super) fn module(&self) -> &str {
        self.name.strip_suffix(".weight").unwrap_or(&self.name)
    }

    /// Takes the tensor for one that is stored turned.
    pub(super) fn turn(&mut self) {
        self.is_turned = !self.is_turned;
        let mut dims = self.meta.shape.dims().to_vec();
        dims.reverse();
        if let Some(shape) = Shape::new(dims) {
            self.meta.shape = shape;
        }
    }

    /// The tensor as a product of views of the adapter's matrices.
    pub(super) fn product(&self, weights: &[WeightMeta]) -> Result<LowRank, ShapeError> {
        let view = |at: usize| View::weight(at, &weights[at]);
        let product = LowRank { b: view(self.b), a: view(self.a) };
        if self.is_turned { product.turned() } else { Ok(product) }
    }
}

/// A whole tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Whole {
    /// Its name in the base.
    pub(super) name: String,
    /// Index in the adapter.
    pub(super) index: usize,
}

/// What an adapter changes, each in the order of the file.
#[derive(Clone, Debug, Default)]
pub(super) struct Parts {
    pub(super) whole: Vec<Whole>,
    pub(super) pairs: Vec<Pair>,
}

/// A half of a pair.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Half {
    A,
    B,
}

/// Endings of halves.
const HALVES: [(&str, Half, Form); 4] = [
    (".lora_A.weight", Half::A, Form::Linear),
    (".lora_B.weight", Half::B, Form::Linear),
    (".lora_embedding_A", Half::A, Form::Embedding),
    (".lora_embedding_B", Half::B, Form::Embedding),
];

impl Parts {
    /// Sorts the tensors of an adapter. `takes` says which whole tensors have a place; others are refused.
    ///
    /// # Errors
    /// [`AdapterError`]: a tensor that is neither, a half alone, matrices that do not multiply.
    pub(super) fn of(weights: &[WeightMeta], takes: fn(&str) -> bool) -> Result<Self, AdapterError> {
        let mut parts = Self::default();
        // Halves by the base's name, in the order in which the first half comes.
        let mut halves: IndexMap<String, ([Option<usize>; 2], Form)> = IndexMap::new();
        for (index, meta) in weights.iter().enumerate() {
            let found = HALVES.iter().find_map(|row| Some((meta.name.strip_suffix(row.0)?, row.1, row.2)));
            let Some((stem, half, form)) = found else {
                if meta.name.ends_with(".base_layer.weight") {
                    continue;
                }
                match stray(&meta.name) {
                    Stray::Whole | Stray::Bias if takes(&meta.name) => {
                        parts.whole.push(Whole { name: meta.name.replace(WRAPPER, ""), index });
                    }
                    stray => return Err(AdapterError::Stray { tensor: meta.name.clone(), stray }),
                }
                continue;
            };
            let base = stem.replace(WRAPPER, "") + ".weight";
            let (own, first_form) = halves.entry(base).or_insert(([None, None], form));
            let other = own.iter().flatten().next().copied();
            if let Some(first) = own[half as usize].or(other.filter(|_| *first_form != form)) {
                let (first, second) = (weights[first].name.clone(), meta.name.clone());
                return Err(AdapterError::Twice { first, second });
            }
            own[half as usize] = Some(index);
        }
        for (name, (own, form)) in halves {
            match own {
                [Some(a), Some(b)] => parts.pairs.push(pair(name, a, b, form, weights)?),
                [one, other] => {
                    let tensor = one.or(other).map(|at| weights[at].name.clone()).unwrap_or_default();
                    let (own, other) = if one.is_some() { ("_A", "_B") } else { ("_B", "_A") };
                    // The last, because a module may be called so as well.
                    let missing = match tensor.rfind(own) {
                        Some(at) => format!("{}{other}{}", &tensor[..at], &tensor[at + own.len()..]),
                        None => String::new(),
                    };
                    return Err(AdapterError::Half { tensor, missing });
                }
            }
        }
        Ok(parts)
    }
}

fn pair(name: String, a: usize, b: usize, form: Form, weights: &[WeightMeta]) -> Result<Pair, AdapterError> {
    let (a_meta, b_meta) = (&weights[a], &weights[b]);
    let wrong = || AdapterError::Shapes {
        a_name: a_meta.name.clone(),
        a: a_meta.shape.clone(),
        b_name: b_meta.name.clone(),
        b: b_meta.shape.clone(),
    };
    let (&[rank, n_cols], &[n_rows, b_rank]) = (a_meta.shape.dims(), b_meta.shape.dims()) else {
        return Err(wrong());
    };
    let shape = Shape::new(vec![n_rows, n_cols]).filter(|_| rank == b_rank && rank > 0).ok_or_else(wrong)?;
    // ref: halves of two types are widened
    let ty = if a_meta.ty == b_meta.ty { a_meta.ty } else { ElementType::F32 };
    let meta = WeightMeta { name: name.clone(), shape, ty };
    let mut pair = Pair { name, a, b, rank, is_turned: false, form, meta };
    if form == Form::Embedding {
        pair.turn();
    }
    Ok(pair)
}

/// What a tensor is that is no half.
fn stray(name: &str) -> Stray {
    let is_of_half = HALVES.iter().any(|(ending, ..)| {
        let part = ending.trim_end_matches("weight").trim_end_matches('.');
        name.contains(&format!("{part}."))
    });
    match name.rsplit('.').next() {
        _ if name.contains(".lora_magnitude_vector") => Stray::Magnitude,
        Some("weight") if is_of_half => Stray::Named,
        Some("bias") if !is_of_half => Stray::Bias,
        Some("weight") => Stray::Whole,
        _ => Stray::Unknown,
    }
}

/// Whether a whole tensor is a norm, which runtimes take from an adapter.
///
/// # Exactness
/// The names that `convert_lora_to_gguf.py` of llama.cpp 0.5.0 lets through.
pub(super) fn is_norm(name: &str) -> bool {
    name.contains("_layernorm") || name.contains(".norm")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(name: &str, dims: &[u64]) -> WeightMeta {
        let shape = Shape::new(dims.to_vec()).unwrap();
        WeightMeta { name: name.to_owned(), shape, ty: ElementType::F16 }
    }

    #[test]
    fn halves_find_each_other_whatever_their_order() {
        let mut weights = vec![
            meta("base_model.model.q.lora_B.weight", &[8, 2]),
            meta("base_model.model.e.lora_embedding_A", &[2, 9]),
            meta("k.lora_A.weight", &[3, 4]),
            meta("base_model.model.q.lora_A.weight", &[2, 4]),
            meta("base_model.model.q.base_layer.weight", &[8, 4]),
            meta("base_model.model.e.lora_embedding_B", &[6, 2]),
            meta("base_model.model.input_layernorm.weight", &[4]),
            meta("k.lora_B.weight", &[8, 3]),
        ];
        weights[2].ty = ElementType::F32;
        let parts = Parts::of(&weights, is_norm).unwrap();
        let rows: Vec<_> = parts
            .pairs
            .iter()
            .map(|pair| (pair.name.as_str(), pair.a, pair.b, pair.meta.shape.dims().to_vec(), pair.meta.ty))
            .collect();
        assert_eq!(
            rows,
            [
                ("q.weight", 3, 0, vec![8, 4], ElementType::F16),
                ("e.weight", 1, 5, vec![9, 6], ElementType::F16),
                ("k.weight", 2, 7, vec![8, 4], ElementType::F32),
            ]
        );
        assert_eq!(parts.whole, [Whole { name: "input_layernorm.weight".to_owned(), index: 6 }]);
    }

    #[test]
    fn what_is_no_pair_is_refused_by_name() {
        for (names, want) in [
            (&["q.lora_A.weight"][..], "tensor `q.lora_A.weight` has no counterpart `q.lora_B.weight`"),
            (&["q.lora_embedding_B"], "tensor `q.lora_embedding_B` has no counterpart `q.lora_embedding_A`"),
            (
                &["q.lora_A.weight", "base_model.model.q.lora_A.weight"],
                "tensors `q.lora_A.weight` and `base_model.model.q.lora_A.weight` change the same tensor",
            ),
            (
                &["q.lora_A.weight", "q.lora_embedding_B"],
                "tensors `q.lora_A.weight` and `q.lora_embedding_B` change the same tensor",
            ),
            (&["q.lora_magnitude_vector"], "tensor `q.lora_magnitude_vector`: a vector of magnitudes (DoRA)"),
            (
                &["q.lora_A.default.weight"],
                "tensor `q.lora_A.default.weight`: a matrix with the adapter's name in its own",
            ),
            (&["q.bias"], "tensor `q.bias`: a bias"),
            (&["q.lora_B.bias"], "tensor `q.lora_B.bias`: neither `lora_A` nor `lora_B`"),
            (
                &["lm_head.weight"],
                "tensor `lm_head.weight`: a whole tensor of the model, no `lora_A` or `lora_B`",
            ),
            (
                &["q.lora_A.weight", "q.lora_B.weight"],
                "tensors `q.lora_A.weight` [2, 3] and `q.lora_B.weight` [2, 3]: no matrices of one rank",
            ),
        ] {
            let weights: Vec<_> = names.iter().map(|name| meta(name, &[2, 3])).collect();
            assert_eq!(Parts::of(&weights, is_norm).unwrap_err().to_string(), want);
        }
    }
}

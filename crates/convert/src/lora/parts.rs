//! Classification of an adapter's tensors: pairs of matrices, and whole tensors.

use indexmap::IndexMap;

use crate::lora::AdapterError;
use crate::lora::config::AdapterConfig;
use crate::lora::error::Stray;
use gguf_checkpoint::AdapterDir;
use gguf_core::{ElementType, Shape, WeightMeta};
use gguf_views::{LowRank, ShapeError, View};

/// Prefix of the module in which PEFT wraps a model.
const WRAPPER: &str = "base_model.model.";

/// Product of the two matrices that gives the tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProductForm {
    /// A linear layer: W is B · A.
    Linear,
    /// An embedding, whose W has a row for each token: (B · A)ᵀ.
    Embedding,
}

/// Two matrices that change a tensor of the base.
#[derive(Clone, Debug)]
pub(super) struct MatrixPair {
    /// Name of the tensor in the base.
    pub(super) name: String,
    /// Index of matrix A in the adapter; `b` is that of matrix B.
    pub(super) a: usize,
    pub(super) b: usize,
    pub(super) rank: u64,
    /// True if the tensor is Aᵀ · Bᵀ: an embedding, or a layer that is stored transposed.
    pub(super) is_transposed: bool,
    pub(super) form: ProductForm,
    /// Name, shape and type of the tensor in the base.
    pub(super) meta: WeightMeta,
}

impl MatrixPair {
    /// Returns the name of the module, which PEFT's patterns match.
    pub(super) fn module(&self) -> &str {
        self.name.strip_suffix(".weight").unwrap_or(&self.name)
    }

    /// Toggles whether the tensor is stored transposed.
    pub(super) fn transpose(&mut self) {
        self.is_transposed = !self.is_transposed;
        let mut dims = self.meta.shape.dims().to_vec();
        dims.reverse();
        if let Some(shape) = Shape::new(dims) {
            self.meta.shape = shape;
        }
    }

    /// Returns the tensor as a product of views of the adapter's matrices.
    pub(super) fn product(&self, weights: &[WeightMeta]) -> Result<LowRank, ShapeError> {
        let view = |at: usize| View::weight(at, &weights[at]);
        let product = LowRank { b: view(self.b), a: view(self.a) };
        if self.is_transposed { product.transposed() } else { Ok(product) }
    }
}

/// A whole tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WholeTensor {
    /// Name of the tensor in the base.
    pub(super) name: String,
    /// Index of the tensor in the adapter.
    pub(super) index: usize,
}

/// Tensors of an adapter by kind, each kind in file order.
#[derive(Clone, Debug, Default)]
pub(super) struct AdapterParts {
    pub(super) whole: Vec<WholeTensor>,
    /// Rows of single tokens, under the name of the tensor that they belong to.
    pub(super) tokens: Vec<WholeTensor>,
    /// Base tensors as used in training, which the adapter's matrices change.
    pub(super) bases: Vec<WholeTensor>,
    pub(super) pairs: Vec<MatrixPair>,
}

/// One matrix of a pair.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Half {
    A,
    B,
}

/// Name suffixes of a pair's matrices.
const HALVES: [(&str, Half, ProductForm); 4] = [
    (".lora_A.weight", Half::A, ProductForm::Linear),
    (".lora_B.weight", Half::B, ProductForm::Linear),
    (".lora_embedding_A", Half::A, ProductForm::Embedding),
    (".lora_embedding_B", Half::B, ProductForm::Embedding),
];

/// Suffixes of PEFT for a base tensor that it wraps, and for a module that it replaces.
const BASE_LAYER: &str = ".base_layer.weight";
const ORIGINAL: &str = ".original_module.";
/// Suffix of the rows of single tokens, and a suffix that may precede it.
const TOKENS: &str = ".trainable_tokens_delta";
const TOKEN_ADAPTER: &str = ".token_adapter";
/// Name parts that precede the adapter's name in tensor names, as in PEFT's state dict in memory.
const NAMED: [&str; 6] = [
    ".lora_A.",
    ".lora_B.",
    ".lora_embedding_A.",
    ".lora_embedding_B.",
    ".modules_to_save.",
    ".trainable_tokens_delta.",
];

/// Returns the adapter's name within a tensor's name: the text after one of [`NAMED`], up to the next dot.
fn named(name: &str) -> Option<(&'static str, &str)> {
    let (word, rest) = NAMED.into_iter().find_map(|word| Some((word, name.split_once(word)?.1)))?;
    let own = rest.split('.').next()?;
    // `lora_A.weight` contains no adapter name.
    (!own.is_empty() && own != "weight" && own != "bias").then_some((word, own))
}

/// Returns the adapter's name if it is the same in all tensor names that contain one.
fn adapter_name(weights: &[WeightMeta]) -> Option<&str> {
    let mut names = weights.iter().filter_map(|meta| Some(named(&meta.name)?.1));
    let first = names.next()?;
    names.all(|name| name == first).then_some(first)
}

/// Removes the adapter's name, which gives the name that PEFT saves.
fn without_adapter_name(name: &str, adapter: Option<&str>) -> String {
    match named(name).filter(|(_, own)| Some(*own) == adapter) {
        Some((".modules_to_save.", own)) => name.replacen(&format!(".modules_to_save.{own}"), "", 1),
        Some((word, own)) => name.replacen(&format!("{word}{own}"), word.trim_end_matches('.'), 1),
        None => name.to_owned(),
    }
}

impl AdapterParts {
    /// Returns true if the adapter changes nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.pairs.is_empty() && self.whole.is_empty() && self.tokens.is_empty()
    }

    /// Refuses matrices without the tensors that the configuration requires.
    ///
    /// # Errors
    /// [`AdapterError::Kind`]: DoRA without its vectors; with vectors, these are refused by name.
    pub(super) fn check(&self, config: &AdapterConfig, adapter: &AdapterDir) -> Result<(), AdapterError> {
        if config.use_dora && !self.pairs.is_empty() {
            return Err(AdapterError::Kind { path: adapter.config_path(), found: "DoRA".to_owned() });
        }
        Ok(())
    }

    /// Returns a warning if the rank of matrices differs from the configuration.
    pub(super) fn other_ranks(&self, config: &AdapterConfig) -> Option<String> {
        let of = |pair: &&MatrixPair| config.rank_of(pair.module()).is_some_and(|rank| rank != pair.rank);
        let others: Vec<&MatrixPair> = self.pairs.iter().filter(of).collect();
        let first = others.first()?;
        let (rank, module) = (config.rank_of(first.module())?, first.module());
        let more = if others.len() > 1 {
            format!(" and of {} more modules", others.len() - 1)
        } else {
            String::new()
        };
        Some(format!(
            "adapter_config.json declares rank {rank}, but the matrices of `{module}`{more} have rank {}, which is what counts",
            first.rank
        ))
    }

    /// Classifies the tensors of an adapter. `takes` returns whether a whole tensor is accepted; others are refused.
    ///
    /// # Errors
    /// [`AdapterError`]: a tensor of another kind, a matrix without its counterpart, matrices that cannot be
    /// multiplied.
    pub(super) fn of(weights: &[WeightMeta], takes: fn(&str) -> bool) -> Result<Self, AdapterError> {
        let mut parts = Self::default();
        // Halves by the base's name, in the order of the first half of each pair.
        let mut halves: IndexMap<String, ([Option<usize>; 2], ProductForm)> = IndexMap::new();
        let adapter = adapter_name(weights);
        for (index, meta) in weights.iter().enumerate() {
            let own = without_adapter_name(&meta.name, adapter);
            let found = HALVES.iter().find_map(|row| Some((own.strip_suffix(row.0)?, row.1, row.2)));
            let Some((stem, half, form)) = found else {
                if let Some(module) = own.strip_suffix(BASE_LAYER) {
                    parts.bases.push(WholeTensor { name: module.replace(WRAPPER, "") + ".weight", index });
                    continue;
                }
                if own.contains(ORIGINAL) {
                    continue;
                }
                match stray(&own) {
                    Stray::Whole | Stray::Bias if takes(&own) => {
                        parts.whole.push(WholeTensor { name: own.replace(WRAPPER, ""), index });
                    }
                    Stray::Tokens if takes(&own) => {
                        let module = own.strip_suffix(TOKENS).unwrap_or(&own);
                        let module = module.strip_suffix(TOKEN_ADAPTER).unwrap_or(module);
                        parts
                            .tokens
                            .push(WholeTensor { name: module.replace(WRAPPER, "") + ".weight", index });
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
                    // Replace the last occurrence, because a module may have the same text in its name.
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

fn pair(
    name: String,
    a: usize,
    b: usize,
    form: ProductForm,
    weights: &[WeightMeta],
) -> Result<MatrixPair, AdapterError> {
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
    let mut pair = MatrixPair { name, a, b, rank, is_transposed: false, form, meta };
    if form == ProductForm::Embedding {
        pair.transpose();
    }
    Ok(pair)
}

/// Returns the kind of a tensor that is not half of a pair.
fn stray(name: &str) -> Stray {
    let is_of_half = HALVES.iter().any(|(ending, ..)| {
        let part = ending.trim_end_matches("weight").trim_end_matches('.');
        name.contains(&format!("{part}."))
    });
    match name.rsplit('.').next() {
        _ if name.contains(".lora_magnitude_vector") => Stray::Magnitude,
        _ if name.ends_with(TOKENS) => Stray::Tokens,
        Some("lora_a" | "lora_b") => Stray::Mlx,
        Some("weight") if is_of_half => Stray::Named,
        Some("bias") if !is_of_half => Stray::Bias,
        Some("weight") => Stray::Whole,
        _ => Stray::Unknown,
    }
}

/// Returns true if a whole tensor is a norm, which runtimes accept from an adapter.
///
/// # Exactness
/// The names that `convert_lora_to_gguf.py` of llama.cpp 0.5.0 accepts.
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
        let parts = AdapterParts::of(&weights, is_norm).unwrap();
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
        assert_eq!(parts.whole, [WholeTensor { name: "input_layernorm.weight".to_owned(), index: 6 }]);
    }

    #[test]
    fn names_with_that_of_the_adapter_are_read_without_it() {
        let weights = [
            meta("base_model.model.q.lora_A.default.weight", &[2, 4]),
            meta("base_model.model.q.lora_B.default.weight", &[8, 2]),
            meta("e.lora_embedding_A.default", &[2, 9]),
            meta("e.lora_embedding_B.default", &[6, 2]),
            meta("e.base_layer.weight", &[9, 6]),
            meta("lm_head.modules_to_save.default.weight", &[9, 6]),
            meta("lm_head.original_module.weight", &[9, 6]),
            meta("e.token_adapter.trainable_tokens_delta.default", &[1, 6]),
        ];
        let parts = AdapterParts::of(&weights, |_| true).unwrap();
        let names: Vec<&str> = parts.pairs.iter().map(|pair| pair.name.as_str()).collect();
        assert_eq!(names, ["q.weight", "e.weight"]);
        let whole = |name: &str, index| [WholeTensor { name: name.to_owned(), index }];
        assert_eq!(parts.whole, whole("lm_head.weight", 5));
        assert_eq!(parts.bases, whole("e.weight", 4));
        assert_eq!(parts.tokens, whole("e.weight", 7));
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
                &["q.lora_A.one.weight", "q.lora_A.two.weight"],
                "tensor `q.lora_A.one.weight`: a matrix with the adapter's name in its own",
            ),
            (&["q.lora_a", "q.lora_b"], "tensor `q.lora_a`: a matrix as MLX saves adapters"),
            (&["e.trainable_tokens_delta"], "tensor `e.trainable_tokens_delta`: rows for single tokens"),
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
            assert_eq!(AdapterParts::of(&weights, is_norm).unwrap_err().to_string(), want);
        }
    }
}

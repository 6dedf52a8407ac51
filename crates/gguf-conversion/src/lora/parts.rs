//! Classification of an adapter's tensors: pairs of matrices, and whole tensors.

use indexmap::IndexMap;
use regex::Regex;
use serde_json::{Map, Value as Json};

use crate::drops;
use crate::lora::config::AdapterConfig;
use crate::lora::error::Stray;
use crate::lora::names::module_name;
use crate::lora::pair::{MatrixPair, ProductForm, mlx_pair, pair};
use crate::lora::{AdapterError, experts, mlx};
use gguf_core::WeightMeta;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WholeTensor {
    pub(super) name: String,
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
    /// Lengths of the rows of tensors that pairs change.
    pub(super) lengths: Vec<WholeTensor>,
    /// Biases of matrices B, under the names of the base's biases.
    pub(super) biases: Vec<WholeTensor>,
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

const MLX_HALVES: [(&str, Half, ProductForm); 4] = [
    (mlx::HALVES[0], Half::A, ProductForm::Linear),
    (mlx::HALVES[1], Half::B, ProductForm::Linear),
    (mlx::OLD_HALVES[0], Half::A, ProductForm::Linear),
    (mlx::OLD_HALVES[1], Half::B, ProductForm::Linear),
];

/// Suffixes of PEFT for a base tensor that it wraps, and for a module that it replaces.
const BASE_LAYER: &str = ".base_layer.weight";
const ORIGINAL: &str = ".original_module.";
/// Suffixes of the lengths of a weight's rows (DoRA), as PEFT saves them and has them in memory.
const MAGNITUDES: [&str; 2] = [".lora_magnitude_vector", ".lora_magnitude_vector.weight"];
/// Suffix of the bias of a matrix B (`lora_bias`).
const BIAS: &str = ".lora_B.bias";
/// Suffix of the rows of single tokens, and a suffix that may precede it.
const TOKENS: &str = ".trainable_tokens_delta";
const TOKEN_ADAPTER: &str = ".token_adapter";
/// Name parts that precede the adapter's name in tensor names, as in PEFT's state dict in memory.
const NAMED: [&str; 7] = [
    ".lora_A.",
    ".lora_B.",
    ".lora_embedding_A.",
    ".lora_embedding_B.",
    ".lora_magnitude_vector.",
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

    /// Iterates over the names of the base's tensors that the adapter changes.
    pub(super) fn base_names(&self) -> impl Iterator<Item = &str> {
        let pairs = self.pairs.iter().filter(|pair| pair.n_experts == 1).map(|pair| pair.name.as_str());
        pairs.chain(self.whole.iter().chain(&self.tokens).map(|whole| whole.name.as_str()))
    }

    /// Returns names, shapes and types of the base's tensors: whole tensors, then products.
    pub(super) fn metas(&self, weights: &[WeightMeta]) -> Vec<WeightMeta> {
        let whole = self
            .whole
            .iter()
            .map(|whole| WeightMeta { name: whole.name.clone(), ..weights[whole.index].clone() });
        let pair = |pair: &MatrixPair| WeightMeta { name: pair.name.clone(), ..pair.meta.clone() };
        whole.chain(self.pairs.iter().map(pair)).collect()
    }

    /// Changes the names of the base's tensors.
    pub(super) fn rename(&mut self, new: impl Fn(&str) -> String) {
        self.whole.iter_mut().for_each(|whole| whole.name = new(&whole.name));
        self.pairs.iter_mut().for_each(|pair| pair.name = new(&pair.name));
    }

    /// Swaps the matrices of stacks that PEFT has taken for stacks of transposed layers: the hidden size tells inputs
    /// from outputs.
    pub(super) fn orient_stacks(&mut self, config: &Map<String, Json>) {
        let text = config.get("text_config").and_then(Json::as_object).unwrap_or(config);
        let Some(hidden) = text.get("hidden_size").and_then(Json::as_u64) else { return };
        for pair in self.pairs.iter_mut().filter(|pair| pair.n_experts > 1 && !pair.is_of_mlx) {
            let (dims, is_down) = (pair.meta.shape.dims(), pair.name.ends_with("down_proj"));
            let [own, other] = if is_down { [dims[1], dims[2]] } else { [dims[2], dims[1]] };
            if own != hidden && other == hidden {
                pair.transpose();
            }
        }
    }

    /// Returns a warning if the rank of matrices differs from the configuration.
    pub(super) fn other_ranks(&self, config: &AdapterConfig) -> Option<String> {
        let of = |pair: &&MatrixPair| {
            !pair.is_of_mlx && config.rank_of(&pair.module).is_some_and(|rank| rank != pair.rank)
        };
        let others: Vec<&MatrixPair> = self.pairs.iter().filter(of).collect();
        let first = others.first()?;
        let (rank, module) = (config.rank_of(&first.module)?, &first.module);
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
    /// Tensors that `drop` matches are passed over.
    ///
    /// # Errors
    /// [`AdapterError`]: a tensor of another kind, a matrix without its counterpart, matrices that cannot be
    /// multiplied.
    pub(super) fn of(
        weights: &[WeightMeta],
        config: &AdapterConfig,
        takes: fn(&str) -> bool,
        drop: &[Regex],
    ) -> Result<Self, AdapterError> {
        let mut parts = Self::default();
        // Halves by module, in the order of the first half of each pair.
        let mut halves: IndexMap<String, ([Option<usize>; 2], ProductForm)> = IndexMap::new();
        let adapter = adapter_name(weights);
        let halves_of: &[_] = if config.mlx.is_some() { &MLX_HALVES } else { &HALVES };
        for (index, meta) in weights.iter().enumerate() {
            if drop.iter().any(|pattern| drops::matches(pattern, &meta.name)) {
                continue;
            }
            let own = without_adapter_name(&meta.name, adapter);
            let found = halves_of.iter().find_map(|row| Some((own.strip_suffix(row.0)?, row.1, row.2)));
            let Some((stem, half, form)) = found else {
                let endings: &[&str] = match config.mlx {
                    Some(_) => &[mlx::LENGTHS],
                    None if config.use_dora => &MAGNITUDES,
                    None => &[],
                };
                let lengths = endings.iter().find_map(|ending| own.strip_suffix(ending));
                if let Some(module) = lengths.filter(|_| takes(&own)) {
                    parts.lengths.push(WholeTensor { name: module_name(module) + ".weight", index });
                    continue;
                }
                let added =
                    if lengths.is_some() { Err(Stray::Lengths) } else { parts.add(&own, index, takes) };
                added.map_err(|stray| {
                    let tensor = meta.name.clone();
                    AdapterError::Stray { tensor, stray }
                })?;
                continue;
            };
            if meta.ty.name().starts_with("F8") {
                return Err(AdapterError::Stray { tensor: meta.name.clone(), stray: Stray::Narrow });
            }
            let (own, first_form) = halves.entry(module_name(stem)).or_insert(([None, None], form));
            let other = own.iter().flatten().next().copied();
            if let Some(first) = own[half as usize].or(other.filter(|_| *first_form != form)) {
                let (first, second) = (weights[first].name.clone(), meta.name.clone());
                return Err(AdapterError::Twice { first, second });
            }
            own[half as usize] = Some(index);
        }
        let mut parameters =
            experts::parameters(halves.keys().map(String::as_str), &config.target_parameters)?;
        for (module, (own, form)) in halves {
            if let (Some(_), [Some(a), Some(b)]) = (config.mlx, own) {
                parts.pairs.push(mlx_pair(module, [a, b], weights)?);
                continue;
            }
            // A whole parameter of a module is a stack; `weight` is that of any layer.
            let (name, is_stack) = match parameters.remove(&module) {
                Some(name) => (name.clone(), !name.ends_with(".weight")),
                None => (module + ".weight", false),
            };
            match own {
                [Some(a), Some(b)] => {
                    let rank = if is_stack { Some(config.stack_rank(&name)?) } else { None };
                    parts.pairs.push(pair(name, a, b, form, rank, weights)?);
                }
                [one, other] => {
                    let tensor = one.or(other).map(|at| weights[at].name.clone()).unwrap_or_default();
                    let halves = if config.mlx.is_some() { ["_a", "_b"] } else { ["_A", "_B"] };
                    let (own, other) =
                        if one.is_some() { (halves[0], halves[1]) } else { (halves[1], halves[0]) };
                    // Replace the last occurrence, because a module may have the same text in its name.
                    let missing = match tensor.rfind(own) {
                        Some(at) => format!("{}{other}{}", &tensor[..at], &tensor[at + own.len()..]),
                        None => String::new(),
                    };
                    return Err(AdapterError::Half { tensor, missing });
                }
            }
        }
        parts.check_lengths(config, weights)?;
        Ok(parts)
    }

    /// Checks that every pair of a training with lengths has them, and that all lengths belong to a pair.
    fn check_lengths(&self, config: &AdapterConfig, weights: &[WeightMeta]) -> Result<(), AdapterError> {
        let half = |tensor: String, missing: String| Err(AdapterError::Half { tensor, missing });
        let has = |name: &str, all: &[WholeTensor]| all.iter().any(|own| own.name == name);
        if let Some(own) =
            self.lengths.iter().find(|own| !self.pairs.iter().any(|pair| pair.name == own.name))
        {
            let (tensor, a) =
                (weights[own.index].name.clone(), config.mlx.map_or(HALVES[0].0, |_| mlx::HALVES[0]));
            return half(tensor, own.name.trim_end_matches(".weight").to_owned() + a);
        }
        let (needs, ending) = match config.mlx {
            Some(own) => (own.has_lengths, mlx::LENGTHS),
            None => (config.use_dora, MAGNITUDES[0]),
        };
        let lacks = |pair: &&MatrixPair| needs && !has(&pair.name, &self.lengths);
        if let Some(pair) = self.pairs.iter().find(lacks) {
            return half(weights[pair.b].name.clone(), format!("{}{ending}", pair.module));
        }
        // ref: PEFT takes the lengths of an embedding over its other axis
        let is_other = |own: &&WholeTensor| {
            let pair = self.pairs.iter().find(|pair| pair.name == own.name);
            pair.is_some_and(|pair| pair.form == ProductForm::Embedding)
        };
        match self.lengths.iter().find(is_other) {
            Some(own) => {
                Err(AdapterError::Stray { tensor: weights[own.index].name.clone(), stray: Stray::Magnitude })
            }
            None => Ok(()),
        }
    }

    /// Adds a tensor that is not half of a pair. The error is what it is, if there is no place for it.
    fn add(&mut self, own: &str, index: usize, takes: fn(&str) -> bool) -> Result<(), Stray> {
        let weight = |module: &str| WholeTensor { name: module_name(module) + ".weight", index };
        if let Some(module) = own.strip_suffix(BASE_LAYER) {
            self.bases.push(weight(module));
            return Ok(());
        }
        if own.contains(ORIGINAL) {
            return Ok(());
        }
        match stray(own) {
            Stray::Whole | Stray::Bias if takes(own) => {
                let (module, ending) = own.rsplit_once('.').unwrap_or((own, ""));
                self.whole.push(WholeTensor { name: format!("{}.{ending}", module_name(module)), index });
            }
            Stray::Tokens if takes(own) => {
                let module = own.strip_suffix(TOKENS).unwrap_or(own);
                self.tokens.push(weight(module.strip_suffix(TOKEN_ADAPTER).unwrap_or(module)));
            }
            Stray::LoraBias if takes(own) => {
                let module = own.strip_suffix(BIAS).unwrap_or(own);
                self.biases.push(WholeTensor { name: module_name(module) + ".bias", index });
            }
            stray => return Err(stray),
        }
        Ok(())
    }
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
        _ if name.ends_with(BIAS) => Stray::LoraBias,
        _ if [".lora_down.", ".lora_up."].iter().any(|word| name.contains(word)) => Stray::ImageModel,
        _ if [".lora_a.weight", ".lora_b.weight"].iter().any(|end| name.ends_with(end)) => Stray::Torchtune,
        Some("alpha") => Stray::ImageModel,
        Some("lora_A" | "lora_B") => Stray::Unweighted,
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
    use gguf_checkpoint::AdapterDir;
    use gguf_core::{ElementType, Shape};

    fn meta(name: &str, dims: &[u64]) -> WeightMeta {
        let shape = Shape::new(dims.to_vec()).unwrap();
        WeightMeta { name: name.to_owned(), shape, ty: ElementType::F16 }
    }

    fn config() -> AdapterConfig {
        let dir = tempfile::tempdir().unwrap();
        fs_err::write(dir.path().join("adapter_config.json"), r#"{"lora_alpha": 1}"#).unwrap();
        fs_err::write(dir.path().join("adapter_model.safetensors"), b"\x02\0\0\0\0\0\0\0{}").unwrap();
        let dir = AdapterDir::open(dir.path(), &gguf_core::limits::Limits::default());
        AdapterConfig::of(&dir.unwrap()).unwrap()
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
        let parts = AdapterParts::of(&weights, &config(), is_norm, &[]).unwrap();
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
        let parts = AdapterParts::of(&weights, &config(), |_| true, &[]).unwrap();
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
            (
                &["q.lora_down.weight", "q.alpha"],
                "tensor `q.lora_down.weight`: a matrix as programs for image models save adapters (`lora_down`, `lora_up`, \
                 `alpha`)",
            ),
            (
                &["q.lora_a.weight"],
                "tensor `q.lora_a.weight`: a matrix as torchtune saves adapters for itself",
            ),
            (
                &["q.lora_A"],
                "tensor `q.lora_A`: a matrix without `.weight` at the end of its name, as LitGPT and loralib save it",
            ),
            (&["q.bias"], "tensor `q.bias`: a bias"),
            (&["q.lora_B.bias"], "tensor `q.lora_B.bias`: a bias of matrix B (`lora_bias`)"),
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
            assert_eq!(AdapterParts::of(&weights, &config(), is_norm, &[]).unwrap_err().to_string(), want);
        }
    }
}

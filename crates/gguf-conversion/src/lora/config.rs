//! Strength and base model of an adapter, as declared by `adapter_config.json`.

use std::path::Path;

use regex::Regex;
use serde_json::{Map, Value as Json};

use crate::lora::mlx::{self, MlxSettings};
use crate::lora::{AdapterError, settings};
use gguf_checkpoint::AdapterDir;
use gguf_checkpoint::json::as_f64;
use gguf_core::WeightSource as _;
use gguf_core::account::Piece;
use gguf_core::numeric::held_by_f32;

/// Tokens whose rows are trained.
#[derive(Debug)]
enum TrainedTokens {
    None,
    Same(Vec<u64>),
    ByModule(Vec<(String, Vec<u64>)>),
}

/// Settings of `adapter_config.json`.
#[derive(Debug)]
pub(super) struct AdapterConfig {
    /// Ranks of the matrices: `r` for all modules, `rank_pattern` for single modules.
    rank: Option<u64>,
    rank_pattern: Vec<(Regex, u64)>,
    /// Tokens whose rows are trained, for all modules or by module.
    tokens: TrainedTokens,
    /// Value of `lora_alpha`, as GGUF stores it and the reference writes it.
    pub(super) alpha: f64,
    /// True if the matrices are scaled by the square root of the rank.
    use_rslora: bool,
    /// Alphas of single modules; the first pattern that matches applies.
    alpha_pattern: Vec<(Regex, f64)>,
    /// Modules of which the adapter has a copy of its own.
    modules_to_save: Vec<String>,
    /// True if embeddings and output stay one tensor.
    pub(super) ties_output: bool,
    /// True if the adapter also sets the magnitude of each row (DoRA).
    pub(super) use_dora: bool,
    /// Parameters of modules that are trained in place of layers: experts that transformers stacks.
    pub(super) target_parameters: Vec<String>,
    /// Tokens that activate an activated LoRA (`alora_invocation_tokens`).
    pub(super) invocation_tokens: Vec<u32>,
    /// Base model, as a path or a name on the hub.
    pub(super) base: Option<String>,
    pub(super) mlx: Option<MlxSettings>,
    /// What becomes of each key.
    pub(super) pieces: Vec<Piece>,
}

impl AdapterConfig {
    /// Reads the adapter's configuration.
    ///
    /// # Errors
    /// A key that is missing or has the wrong type; another kind of adapter.
    pub(super) fn of(adapter: &AdapterDir) -> Result<Self, AdapterError> {
        let path = adapter.config_path();
        let config = adapter.config();
        let wrong =
            |key: &str, expected| AdapterError::Value { path: path.clone(), key: key.to_owned(), expected };
        if adapter.is_of_mlx() || mlx::is_configured(config) {
            return Self::of_mlx(adapter);
        }
        let kind = config.get("peft_type").and_then(Json::as_str).unwrap_or(LORA);
        if ![LORA, TRAINABLE_TOKENS].iter().any(|own| kind.eq_ignore_ascii_case(own)) {
            return Err(AdapterError::Kind { path, found: kind.to_owned() });
        }
        let pieces = settings::check(&path, config)?;
        let number = |value: &Json| as_f64(value).filter(|&value| held_by_f32(value).is_some());
        // Trained rows replace rows of the base, so they have no strength.
        let one = Json::from(1);
        let alpha = config.get("lora_alpha").filter(|value| !value.is_null());
        let alpha = alpha.or(kind.eq_ignore_ascii_case(TRAINABLE_TOKENS).then_some(&one));
        let alpha = alpha.ok_or_else(|| AdapterError::NoKey { path: path.clone(), key: "lora_alpha" })?;
        let alpha = number(alpha).ok_or_else(|| wrong("lora_alpha", "a number"))?;
        let mut alpha_pattern = Vec::new();
        for (key, value) in members(config, "alpha_pattern") {
            // PEFT matches a suffix of the module's name that starts at a dot.
            let pattern = Regex::new(&format!(r"^(?:.*\.)?(?:{key})$"));
            let pattern = pattern.map_err(|_| wrong(key, "a pattern of names"))?;
            alpha_pattern.push((pattern, number(value).ok_or_else(|| wrong(key, "a number"))?));
        }
        let mut rank_pattern = Vec::new();
        for (key, value) in members(config, "rank_pattern") {
            let pattern = Regex::new(&format!(r"^(?:.*\.)?(?:{key})$"));
            let pattern = pattern.map_err(|_| wrong(key, "a pattern of names"))?;
            rank_pattern.push((pattern, value.as_u64().ok_or_else(|| wrong(key, "a whole number"))?));
        }
        let rank = config.get("r").and_then(Json::as_u64);
        let invocation_tokens = tokens(config).ok_or_else(|| wrong(TOKENS, "a list of token ids"))?;
        let has_words = config.get("invocation_string").and_then(Json::as_str).is_some_and(|s| !s.is_empty());
        if has_words && invocation_tokens.is_empty() {
            return Err(AdapterError::Invocation { path });
        }
        let parameters = config.get("target_parameters").filter(|value| !value.is_null());
        let parameters = match parameters {
            None => Some(Vec::new()),
            Some(list) => list
                .as_array()
                .and_then(|list| list.iter().map(|one| one.as_str().map(str::to_owned)).collect()),
        };
        let saved = config.get("modules_to_save").and_then(Json::as_array).into_iter().flatten();
        let modules_to_save = saved.filter_map(Json::as_str).map(str::to_owned).collect();
        let is_true = |key: &str| config.get(key) == Some(&Json::Bool(true));
        let base = config.get("base_model_name_or_path").and_then(Json::as_str);
        Ok(Self {
            alpha,
            use_rslora: is_true("use_rslora"),
            alpha_pattern,
            rank,
            rank_pattern,
            tokens: trained_tokens(config).map_err(|key| wrong(key, "a list of token ids"))?,
            modules_to_save,
            ties_output: is_true("ensure_weight_tying"),
            use_dora: is_true("use_dora"),
            target_parameters: parameters.ok_or_else(|| wrong("target_parameters", "a list of names"))?,
            invocation_tokens,
            base: base.map(str::to_owned),
            mlx: None,
            pieces,
        })
    }

    fn of_mlx(adapter: &AdapterDir) -> Result<Self, AdapterError> {
        let (path, config) = (adapter.config_path(), adapter.config());
        let settings = MlxSettings::of(&path, config)?;
        let rank = mlx::rank(adapter.weights());
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        Ok(Self {
            rank,
            rank_pattern: Vec::new(),
            tokens: TrainedTokens::None,
            alpha: settings.scale * rank.unwrap_or(1) as f64,
            use_rslora: false,
            alpha_pattern: Vec::new(),
            modules_to_save: Vec::new(),
            ties_output: false,
            use_dora: false,
            target_parameters: Vec::new(),
            invocation_tokens: Vec::new(),
            base: config.get("model").and_then(Json::as_str).map(str::to_owned),
            mlx: Some(settings),
            pieces: mlx::pieces(&file, config),
        })
    }

    /// Returns the directory that the configuration names, if it exists here.
    pub(super) fn base_dir(&self) -> Option<&Path> {
        self.base.as_deref().map(Path::new).filter(|path| path.join("config.json").is_file())
    }

    /// Returns the alpha that makes runtimes, which divide it by the rank, reproduce the strength used in training.
    pub(super) fn effective_alpha(&self, module: &str, rank: u64) -> f64 {
        if let Some(settings) = self.mlx {
            return settings.scale * rank as f64;
        }
        let own = self.alpha_pattern.iter().find(|(pattern, _)| pattern.is_match(module));
        let alpha = own.map_or(self.alpha, |(_, alpha)| *alpha);
        if self.use_rslora { alpha * rank as f64 / (rank as f64).sqrt() } else { alpha }
    }

    /// Returns the configured rank of a module's matrices; `None` if the configuration has none.
    pub(super) fn rank_of(&self, module: &str) -> Option<u64> {
        let own = self.rank_pattern.iter().find(|(pattern, _)| pattern.is_match(module));
        own.map(|(_, rank)| *rank).or(self.rank)
    }

    /// Returns the rank of each expert of a stack, which only the configuration tells.
    pub(super) fn stack_rank(&self, name: &str) -> Result<u64, AdapterError> {
        self.rank_of(name).ok_or_else(|| AdapterError::NoRank { tensor: name.to_owned() })
    }

    /// Returns true if a tensor belongs to a module of which the adapter has a copy of its own.
    pub(super) fn saves(&self, tensor: &str) -> bool {
        let module = tensor.rsplit_once('.').map_or(tensor, |(module, _)| module);
        // ref: PEFT compares the ends of names
        self.modules_to_save.iter().any(|saved| module.ends_with(saved.as_str()))
    }

    /// Returns the tokens whose rows of a module the adapter has.
    pub(super) fn token_rows(&self, module: &str) -> Option<&[u64]> {
        match &self.tokens {
            TrainedTokens::None => None,
            TrainedTokens::Same(rows) => Some(rows),
            TrainedTokens::ByModule(modules) => modules
                .iter()
                .find(|(name, _)| {
                    module
                        .strip_suffix(name.as_str())
                        .is_some_and(|head| head.is_empty() || head.ends_with('.'))
                })
                .map(|(_, rows)| rows.as_slice()),
        }
    }

    /// Names the settings that make the strength differ from alpha, for a message.
    pub(super) fn why_scaled(&self) -> &'static str {
        match (self.use_rslora, self.alpha_pattern.is_empty()) {
            _ if self.mlx.is_some() => "the rank of their matrices",
            (true, true) => "`use_rslora`",
            (false, _) => "`alpha_pattern`",
            (true, false) => "`use_rslora` and `alpha_pattern`",
        }
    }
}

const TOKENS: &str = "alora_invocation_tokens";
/// Adapter types that can be read.
const LORA: &str = "LORA";
const TRAINABLE_TOKENS: &str = "TRAINABLE_TOKENS";
/// Keys that list the tokens with trained rows: in addition to other matrices, and for an adapter of rows only.
const TRAINED: [&str; 2] = ["trainable_token_indices", "token_indices"];

/// Returns the tokens whose rows are trained. The error is the key whose value is not a list of tokens.
fn trained_tokens(config: &Map<String, Json>) -> Result<TrainedTokens, &'static str> {
    let rows = |value: &Json| value.as_array()?.iter().map(Json::as_u64).collect::<Option<Vec<u64>>>();
    for key in TRAINED {
        match config.get(key) {
            None | Some(Json::Null) => {}
            Some(Json::Object(modules)) => {
                let modules = modules.iter().map(|(name, value)| Some((name.clone(), rows(value)?)));
                return modules.collect::<Option<_>>().map(TrainedTokens::ByModule).ok_or(key);
            }
            Some(value) => return rows(value).map(TrainedTokens::Same).ok_or(key),
        }
    }
    Ok(TrainedTokens::None)
}

/// Returns the invocation tokens; empty if the key is absent or null.
fn tokens(config: &Map<String, Json>) -> Option<Vec<u32>> {
    let Some(value) = config.get(TOKENS).filter(|value| !value.is_null()) else { return Some(Vec::new()) };
    let id = |value: &Json| value.as_u64().and_then(|id| u32::try_from(id).ok());
    value.as_array()?.iter().map(id).collect()
}

/// Iterates over the members of the object under a key, if there is one.
fn members<'a>(config: &'a Map<String, Json>, key: &str) -> impl Iterator<Item = (&'a String, &'a Json)> {
    config.get(key).and_then(Json::as_object).into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_core::limits::Limits;

    fn config(text: &str) -> Result<AdapterConfig, AdapterError> {
        let dir = tempfile::tempdir().unwrap();
        fs_err::write(dir.path().join("adapter_config.json"), text).unwrap();
        fs_err::write(dir.path().join("adapter_model.safetensors"), b"\x02\0\0\0\0\0\0\0{}").unwrap();
        AdapterConfig::of(&AdapterDir::open(dir.path(), &Limits::default()).unwrap())
    }

    #[test]
    fn strengths_are_those_of_peft() {
        let plain =
            config(r#"{"lora_alpha": 8, "alpha_pattern": {"q_proj": 4, "layers.1.mlp.(up|down)": 2}}"#);
        let plain = plain.unwrap();
        for (module, alpha) in [
            ("model.layers.0.q_proj", 4.0),
            ("model.layers.0.xq_proj", 8.0),
            ("model.layers.1.mlp.down", 2.0),
            ("model.layers.11.mlp.down", 8.0),
            ("q_proj", 4.0),
        ] {
            assert_eq!(plain.effective_alpha(module, 16).to_bits(), f64::to_bits(alpha), "{module}");
        }
        let rooted = config(r#"{"lora_alpha": 8, "use_rslora": true, "peft_type": "LORA"}"#).unwrap();
        assert_eq!(rooted.effective_alpha("q", 16).to_bits(), 32f64.to_bits());
        assert_eq!((rooted.why_scaled(), plain.why_scaled()), ("`use_rslora`", "`alpha_pattern`"));
    }

    #[test]
    fn ranks_and_tokens_are_found_by_module() {
        let own = config(
            r#"{"lora_alpha": 8, "r": 4, "rank_pattern": {"q_proj": 2}, "trainable_token_indices": {"embed_tokens": [7, 3]}}"#,
        );
        let own = own.unwrap();
        assert_eq!([own.rank_of("model.q_proj"), own.rank_of("model.v_proj")], [Some(2), Some(4)]);
        assert_eq!(own.token_rows("model.embed_tokens"), Some(&[7, 3][..]));
        assert_eq!(own.token_rows("model.xembed_tokens"), None);
        let alone = config(r#"{"peft_type": "TRAINABLE_TOKENS", "token_indices": [5]}"#).unwrap();
        assert_eq!(alone.token_rows("anything"), Some(&[5][..]));
        assert_eq!(alone.rank_of("anything"), None);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, want) in [
            ("{}", "`lora_alpha` is missing"),
            (r#"{"lora_alpha": "8"}"#, "`lora_alpha` is not a number"),
            (r#"{"lora_alpha": 1e300}"#, "`lora_alpha` is not a number"),
            (r#"{"lora_alpha": 8, "alpha_pattern": {"(": 1}}"#, "`(` is not a pattern of names"),
            (r#"{"lora_alpha": 8, "alpha_pattern": {"q": null}}"#, "`q` is not a number"),
            (r#"{"fine_tune_type": "lora", "lora_parameters": {}}"#, "`lora_parameters.scale` is missing"),
            (r#"{"lora_parameters": {"scale": "8"}}"#, "`lora_parameters.scale` is not a number"),
            (r#"{"fine_tune_type": "x"}"#, "`fine_tune_type` is not `lora`, `dora` or `full`"),
            (
                r#"{"lora_alpha": 8, "trainable_token_indices": {"embed_tokens": [-1]}}"#,
                "`trainable_token_indices` is not a list of token ids",
            ),
            (
                r#"{"lora_alpha": 8, "init_lora_weights": "pissa_niter_4"}"#,
                "`init_lora_weights` is `pissa_niter_4`: PEFT changes the base model as it loads this adapter",
            ),
            (
                r#"{"lora_alpha": 8, "init_lora_weights": true, "layer_replication": [[0, 2]]}"#,
                "`layer_replication` is `[[0,2]]`: PEFT changes the base model as it loads this adapter",
            ),
            (r#"{"lora_alpha": 8, "rank_pattern": {"q": "8"}}"#, "`q` is not a whole number"),
            (r#"{"lora_alpha": 8, "peft_type": "LOHA"}"#, "an adapter of type `LOHA`, only LORA can be read"),
            (
                r#"{"lora_alpha": 8, "alora_invocation_tokens": [-1]}"#,
                "`alora_invocation_tokens` is not a list of token ids",
            ),
            (
                r#"{"lora_alpha": 8, "invocation_string": "now"}"#,
                "`invocation_string` without `alora_invocation_tokens`",
            ),
        ] {
            let error = config(text).unwrap_err().to_string();
            assert!(error.ends_with(want), "{error}");
        }
    }
}

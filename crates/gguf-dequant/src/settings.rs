//! Quantization settings from the configuration files.

mod method;

use serde_json::{Map, Value};

use crate::patterns::{ModulePattern, Patterns, spellings};
use crate::{DequantError, Result, Tensors, fp8, mlx};
use gguf_checkpoint::msmodelslim::Description;
use gguf_checkpoint::pieces::of_keys;
use gguf_core::account::Piece;
use gguf_core::text::escape;
pub(super) use method::Method;
use method::method;

/// The JSON files that may describe the quantization of a checkpoint.
#[derive(Clone, Debug, Default)]
pub struct Configurations {
    /// Content of `config.json`.
    pub config: Map<String, Value>,
    /// Content of `hf_quant_config.json` (ModelOpt).
    pub hf_quant_config: Option<Map<String, Value>>,
    /// Content of `quantize_config.json` (GPTQ).
    pub quantize_config: Option<Map<String, Value>>,
    /// Content of `quant_config.json` (AWQ).
    pub quant_config: Option<Map<String, Value>>,
    /// Content of `quantization_config.json` (Optimum).
    pub quantization_config: Option<Map<String, Value>>,
    /// Content of `quanto_qmap.json` (optimum-quanto).
    pub quanto_qmap: Option<Map<String, Value>>,
    /// The description of an msModelSlim checkpoint.
    pub msmodelslim: Option<Description>,
}

/// File name of ModelOpt's quantization settings.
pub const HF_QUANT_CONFIG: &str = "hf_quant_config.json";
/// File name of GPTQ's quantization settings.
pub const QUANTIZE_CONFIG: &str = "quantize_config.json";
/// File name of AWQ's quantization settings.
pub const QUANT_CONFIG: &str = "quant_config.json";
/// File name of Optimum's quantization settings.
pub const QUANTIZATION_CONFIG: &str = "quantization_config.json";
/// File name of optimum-quanto's map of modules.
pub const QUANTO_QMAP: &str = "quanto_qmap.json";

/// The quantization settings of a checkpoint.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// Name of the file that contains them, for messages.
    pub(super) file: &'static str,
    /// Quantization method.
    pub(super) method: Method,
    /// JSON object with the settings.
    pub(super) map: Map<String, Value>,
}

/// File name of a model's configuration.
pub(super) const CONFIG: &str = "config.json";
const KEY: &str = "quantization_config";
/// Parts of a configuration that describe the text model.
const TEXT_PARTS: [&str; 3] = ["text_config", "llm_config", "language_config"];
/// The key in older checkpoints of compressed-tensors.
const OLD_KEY: &str = "compression_config";

/// Finds the settings; `None` if no file mentions quantization.
///
/// # Errors
/// Settings of the wrong type, two that contradict, a method that is unknown or unsupported.
pub(super) fn find(files: &Configurations, warnings: &mut Vec<String>) -> Result<Option<Settings>> {
    let old = || files.config.get(OLD_KEY).filter(|value| !value.is_null());
    let own = files.config.get(KEY).filter(|value| !value.is_null()).or_else(old);
    let nested = TEXT_PARTS.iter().find_map(|part| {
        let value = files.config.get(*part)?.get(KEY)?;
        (!value.is_null()).then_some((part, value))
    });
    if let (Some(own), Some((part, nested))) = (own, nested)
        && stated(own) != stated(nested)
    {
        warnings.push(format!(
            "{CONFIG}: `{KEY}` differs from `{part}.{KEY}`, and is taken, as transformers does"
        ));
    }
    let Some(value) = own.or(nested.map(|nested| nested.1)) else { return sidecar(files) };
    let Value::Object(map) = value else {
        return Err(bad(CONFIG, KEY, "must be an object"));
    };
    let loads = |key: &str| map.get(key).and_then(Value::as_bool) == Some(true);
    let Some(method) = map.get("quant_method") else {
        // As transformers reads configurations of before `quant_method`.
        if loads("load_in_8bit") || loads("load_in_4bit") {
            return Ok(Some(Settings { file: CONFIG, method: Method::Bitsandbytes, map: map.clone() }));
        }
        return Err(bad(CONFIG, "quantization_config.quant_method", "is missing"));
    };
    let Some(method) = method.as_str() else {
        return Err(bad(CONFIG, "quantization_config.quant_method", "must be a string"));
    };
    warnings.extend(contradiction(files, map));
    let method = of_quark(method, map).map_or_else(|| self::method(CONFIG, method), Ok)?;
    Ok(Some(Settings { file: CONFIG, method, map: map.clone() }))
}

/// Returns the method whose layout Quark's FP8 has; of its other exports no file tells the layout.
fn of_quark(name: &str, settings: &Map<String, Value>) -> Option<Method> {
    let weight = settings.get("global_quant_config")?.get("weight")?;
    let text = |key: &str| weight.get(key).and_then(Value::as_str);
    let is_fp8 = matches!(text("dtype"), Some("fp8_e4m3" | "fp8_e5m2"));
    let is_plain = matches!(text("qscheme"), Some("per_tensor" | "per_channel"));
    (name.eq_ignore_ascii_case("quark") && is_fp8 && is_plain).then_some(Method::Fp8)
}

/// Returns the settings that have a value; `meta` is for readers.
fn stated(settings: &Value) -> Option<Map<String, Value>> {
    let stated = settings.as_object()?.iter().filter(|(key, value)| !value.is_null() && *key != "meta");
    Some(stated.map(|(key, value)| (key.clone(), value.clone())).collect())
}

/// Returns a warning if a separate file describes other codes than `config.json`.
fn contradiction(files: &Configurations, own: &Map<String, Value>) -> Option<String> {
    // Names of the same setting, with the value of those that leave it out.
    const SETTINGS: [(&[&str], Option<&str>); 7] = [
        (&["quant_method"], None),
        (&["bits", "w_bit"], None),
        (&["group_size", "q_group_size"], None),
        (&["sym"], None),
        (&["zero_point"], None),
        (&["checkpoint_format", "format"], Some("gptq")),
        (&["version"], None),
    ];
    fn of<'m>(map: &'m Map<String, Value>, names: &[&str]) -> Option<&'m Value> {
        names.iter().find_map(|name| map.get(*name).filter(|value| !value.is_null()))
    }
    fn text(value: &Value) -> String {
        value.as_str().map_or_else(|| value.to_string(), str::to_ascii_lowercase)
    }
    let nested = files.hf_quant_config.as_ref().and_then(|map| map.get("quantization")?.as_object());
    if let (Some(algorithm), Some(nested)) = (own.get("quant_algo").or(own.get("quant_method")), nested)
        && let Some(other) = nested.get("quant_algo").filter(|other| text(other) != text(algorithm))
        && text(algorithm) != "modelopt"
    {
        return Some(differing("quant_algo", HF_QUANT_CONFIG, [text(algorithm), text(other)]));
    }
    let files = [
        (QUANTIZE_CONFIG, &files.quantize_config),
        (QUANT_CONFIG, &files.quant_config),
        (QUANTIZATION_CONFIG, &files.quantization_config),
    ];
    files.into_iter().find_map(|(file, map)| {
        let map = map.as_ref()?;
        SETTINGS.iter().find_map(|(names, default)| {
            let value = |map| of(map, names).map(text).or_else(|| default.map(str::to_owned));
            let values = [value(own)?, value(map)?];
            (values[0] != values[1]).then(|| differing(names[0], file, values))
        })
    })
}

fn differing(key: &str, file: &str, [own, other]: [String; 2]) -> String {
    format!(
        "{CONFIG} and {file} differ in `{key}` ({} and {}): {CONFIG} is taken, as transformers does",
        escape(&own),
        escape(&other)
    )
}

/// Finds settings in separate files, for a `config.json` without any.
fn sidecar(files: &Configurations) -> Result<Option<Settings>> {
    if let Some(map) = &files.hf_quant_config {
        let producer = map.get("producer").and_then(|producer| producer.get("name")).and_then(Value::as_str);
        if let Some(producer) = producer {
            let method = method(HF_QUANT_CONFIG, producer)?;
            return Ok(Some(Settings { file: HF_QUANT_CONFIG, method, map: map.clone() }));
        }
    }
    if files.quanto_qmap.is_some() {
        let map = files.quanto_qmap.clone().unwrap_or_default();
        return Ok(Some(Settings { file: QUANTO_QMAP, method: Method::Quanto, map }));
    }
    for (file, map, own) in [
        (QUANTIZE_CONFIG, &files.quantize_config, Method::Gptq),
        (QUANT_CONFIG, &files.quant_config, Method::Awq),
        (QUANTIZATION_CONFIG, &files.quantization_config, Method::Gptq),
    ] {
        let Some(map) = map else { continue };
        let named = map.get("quant_method").and_then(Value::as_str);
        let method = named.map_or(Ok(own), |name| method(file, name))?;
        return Ok(Some(Settings { file, method, map: map.clone() }));
    }
    Ok(None)
}

/// Returns settings for a checkpoint of which no file mentions quantization, but whose tensors are quantized by a method
/// that they alone determine; with a warning, except for DeepSeek V4's, which are published so.
pub(super) fn undescribed(tensors: &Tensors<'_>) -> Option<(Settings, Option<String>)> {
    let of = |method, map| Settings { file: CONFIG, method, map };
    if fp8::has_exponents(tensors) {
        return Some((of(Method::Fp8, Map::new()), None));
    }
    let names_of =
        |suffix: &str| tensors.ending(suffix).first().map(|(_, at)| tensors.meta(*at).name.clone());
    let bitsandbytes = [".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4", ".SCB"];
    let (settings, seen) = match bitsandbytes.into_iter().find_map(names_of) {
        Some(seen) => (of(Method::Bitsandbytes, Map::new()), seen),
        None => match (fp8::undescribed(tensors), fp8::unscaled(tensors).len()) {
            (Some((map, seen)), _) => (of(Method::Fp8, map), seen),
            // There is nothing to decode.
            (None, 0) if !tensors.scales_of_floats().is_empty() => {
                return Some((of(Method::Fp8, Map::new()), None));
            }
            (None, 0) => return None,
            (None, n) => {
                let warning = format!(
                    "{n} tensors are in FP8 without scales, and config.json has no `quantization_config`: their numbers are taken \
                     as they are, which is wrong if a quantizer made them"
                );
                return Some((of(Method::Fp8, Map::new()), Some(warning)));
            }
        },
    };
    let block = settings.map.get(fp8::BLOCK_SIZE);
    let block = block.map_or_else(String::new, |block| format!(" with `\"{}\": {block}`", fp8::BLOCK_SIZE));
    let warning = format!(
        "config.json has no `quantization_config`: by `{}` the weights are read as those of {}{block}",
        escape(&seen),
        settings.method.title()
    );
    Some((settings, Some(warning)))
}

fn bad(file: &str, key: &str, problem: &str) -> DequantError {
    DequantError::BadConfig { file: file.to_owned(), key: key.to_owned(), problem: problem.to_owned() }
}

impl Settings {
    /// Returns what becomes of each key.
    pub(super) fn pieces(&self) -> impl Iterator<Item = Piece> {
        let (group, key) = match self.method {
            _ if self.file == QUANTO_QMAP => (QUANTO_QMAP, KEY),
            Method::Mlx => ("quantization of MLX", mlx::KEY),
            _ => ("quantization", KEY),
        };
        let parent = if self.file == CONFIG { format!("{key}.") } else { String::new() };
        let pieces = of_keys(group, self.file, &self.map).into_iter();
        pieces.map(move |piece| Piece { name: format!("{parent}{}", piece.name), ..piece })
    }

    pub(super) fn bad(&self, key: &str, problem: &str) -> DequantError {
        bad(self.file, key, problem)
    }

    /// Creates an error about a key that contradicts a tensor.
    pub(super) fn conflict(
        &self,
        key: &str,
        configured: impl Into<String>,
        tensor: impl Into<String>,
        found: impl Into<String>,
    ) -> DequantError {
        DequantError::ConfigTensorConflict {
            file: self.file.to_owned(),
            key: key.to_owned(),
            configured: configured.into(),
            tensor: tensor.into(),
            found: found.into(),
        }
    }

    /// Creates an error about an unsupported variant of the method.
    pub(super) fn variant(&self, key: &str, found: &str, reason: &str) -> DequantError {
        DequantError::UnsupportedVariant {
            place: format!("{}: `{key}`", self.file),
            found: found.to_owned(),
            reason: reason.to_owned(),
        }
    }

    /// Returns a copy of the settings with some replaced.
    pub(super) fn with(&self, overrides: &Map<String, Value>) -> Self {
        let mut own = self.clone();
        own.map.extend(overrides.iter().map(|(key, value)| (key.clone(), value.clone())));
        own
    }

    /// Checks that no list of modules to skip names a tensor that is quantized nevertheless, as `should_convert_module`
    /// of transformers 5 reads the names: `mlp.gate` is not `mlp.gate_proj`. Its regexes are not looked at: the codes are there.
    pub(super) fn check_not_ignored(&self, tensor: &str) -> Result<()> {
        let module = tensor.strip_suffix(".weight").unwrap_or(tensor);
        for (key, list) in self.skipped()? {
            if let Some(name) =
                list.iter().find(|name| spellings(module).any(|module| is_named(name, &module)))
            {
                let configured = format!("`{}`", escape(name));
                return Err(self.conflict(key, configured, tensor, "codes"));
            }
        }
        Ok(())
    }

    /// Returns a test for modules that some list of modules to skip may mean, as any version of transformers reads them.
    pub(super) fn skip_test(&self) -> Result<impl Fn(&str) -> bool + use<>> {
        let names: Vec<String> =
            self.skipped()?.into_iter().flat_map(|row| row.1).map(str::to_owned).collect();
        let mut patterns = Patterns::default();
        let patterns: Vec<ModulePattern> =
            names.iter().filter_map(|name| patterns.compile(&format!("(?:{name})(?:[.]|$)")).ok()).collect();
        Ok(move |module: &str| {
            let tensor = format!("{module}.weight");
            names.iter().any(|name| {
                ends_within(name, &tensor) || spellings(module).any(|module| is_named(name, &module))
            }) || patterns.iter().any(|pattern| pattern.is_match(module))
        })
    }

    /// Returns the lists of modules to skip.
    fn skipped(&self) -> Result<Vec<(&'static str, Vec<&str>)>> {
        let mut lists = Vec::new();
        for key in ["modules_to_not_convert", "ignored_layers", "skip_modules", "llm_int8_skip_modules"] {
            let Some(value) = self.map.get(key).filter(|value| !value.is_null()) else { continue };
            let Some(list) = value.as_array() else { return Err(self.bad(key, "must be a list")) };
            lists.push((key, list.iter().filter_map(Value::as_str).collect()));
        }
        Ok(lists)
    }

    /// Checks lists of shell patterns as [`Settings::check_not_ignored`] does: `*` matches any text, and a name also
    /// matches all modules below it.
    pub(super) fn check_no_glob(&self, module: &str) -> Result<()> {
        let nested = self.map.get("quantization").and_then(|map| map.get("exclude_modules"));
        let lists = [
            ("ignore", self.map.get("ignore")),
            ("exclude_modules", self.map.get("exclude_modules").or(nested)),
            ("modules_to_not_convert", self.map.get("modules_to_not_convert")),
        ];
        for (key, value) in lists {
            let Some(value) = value.filter(|value| !value.is_null()) else { continue };
            let Some(list) = value.as_array() else { return Err(self.bad(key, "must be a list")) };
            let matches = |name: &&str| glob(name.as_bytes(), module.as_bytes());
            if let Some(name) = list.iter().filter_map(Value::as_str).find(matches) {
                let configured = format!("`{}`", escape(name));
                return Err(self.conflict(key, configured, module, "codes"));
            }
        }
        Ok(())
    }

    /// Returns an integer; `None` if the key is absent or null.
    pub(super) fn int(&self, key: &str) -> Result<Option<i64>> {
        match self.map.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value.as_i64().map(Some).ok_or_else(|| self.bad(key, "must be a whole number")),
        }
    }

    /// Returns a boolean; `None` if the key is absent or null.
    pub(super) fn bool(&self, key: &str) -> Result<Option<bool>> {
        match self.map.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value.as_bool().map(Some).ok_or_else(|| self.bad(key, "must be true or false")),
        }
    }

    /// Returns true if a key is the boolean `value`; false for a value of another type.
    pub(super) fn is_set_to(&self, key: &str, value: bool) -> bool {
        self.map.get(key).and_then(Value::as_bool) == Some(value)
    }

    /// Returns a string; `None` if the key is absent or null.
    pub(super) fn text(&self, key: &str) -> Result<Option<&str>> {
        match self.map.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value.as_str().map(Some).ok_or_else(|| self.bad(key, "must be a string")),
        }
    }
}

/// Returns true if a name of a list is that of a module, of one that contains it, or the end of its name.
fn is_named(name: &str, module: &str) -> bool {
    let within = module.strip_prefix(name);
    let is_outer = within.is_some_and(|rest| rest.is_empty() || rest.starts_with('.') || name.ends_with('.'));
    !name.is_empty() && (is_outer || module.ends_with(name))
}

/// Returns true if a module's name, or its end, is in a tensor's name.
fn ends_within(module: &str, tensor: &str) -> bool {
    let mut ends = tensor.match_indices(module).map(|(at, _)| &tensor[at + module.len()..]);
    !module.is_empty() && ends.any(|rest| rest.is_empty() || rest.starts_with('.') || module.ends_with('.'))
}

/// Returns true if a pattern with `*` matches a module or a module that contains it.
fn glob(pattern: &[u8], name: &[u8]) -> bool {
    // Position after the last `*`, and the end of the text that it matches so far.
    let (mut at, mut taken, mut star) = (0, 0, None);
    loop {
        if at == pattern.len() && (taken == name.len() || name[taken] == b'.') {
            return true;
        }
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at + 1, taken));
                at += 1;
            }
            Some(byte) if name.get(taken) == Some(byte) => {
                at += 1;
                taken += 1;
            }
            _ => match star {
                Some((after, from)) if from < name.len() => {
                    star = Some((after, from + 1));
                    (at, taken) = (after, from + 1);
                }
                _ => return false,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(config: &str) -> Result<Option<Settings>> {
        let Value::Object(config) = serde_json::from_str(config).unwrap() else { panic!("an object") };
        find(&Configurations { config, ..Configurations::default() }, &mut Vec::new())
    }

    #[test]
    fn methods_are_found_under_any_spelling() {
        for (text, method) in [
            (r#"{"quantization_config":{"quant_method":"FP8"}}"#, Method::Fp8),
            (r#"{"quantization_config":{"quant_method":"auto_round"}}"#, Method::AutoRound),
            (r#"{"text_config":{"quantization_config":{"quant_method":"fbgemm_fp8"}}}"#, Method::FbgemmFp8),
        ] {
            assert_eq!(found(text).unwrap().unwrap().method, method, "{text}");
        }
        assert!(found(r#"{"quantization_config":null}"#).unwrap().is_none());
    }

    #[test]
    fn patterns_name_modules_and_what_is_below() {
        for (pattern, name, matches) in [
            ("lm_head", "lm_head", true),
            ("lm_head", "model.lm_head", false),
            ("model.layers.*.self_attn", "model.layers.10.self_attn.q_proj", true),
            ("model.layers.*.self_attn", "model.layers.1.mlp.up_proj", false),
            ("*router*", "model.layers.1.mlp.router", true),
            ("model.layer", "model.layers", false),
        ] {
            assert_eq!(glob(pattern.as_bytes(), name.as_bytes()), matches, "{pattern} {name}");
        }
    }

    #[test]
    fn modules_are_skipped_by_whole_words() {
        for (module, tensor, is_within) in [
            ("model.layers.1.mlp.gate", "model.layers.1.mlp.gate_proj.weight", false),
            ("model.layers.1", "model.layers.10.mlp.up_proj.weight", false),
            ("model.layers.1", "model.layers.1.mlp.up_proj.weight", true),
            ("up_proj", "model.layers.10.mlp.up_proj.weight", true),
            ("visual.", "model.visual.merger.weight", true),
            ("visual.", "model.layers.1.mlp.up_proj.weight", false),
            ("", "lm_head.weight", false),
        ] {
            assert_eq!(ends_within(module, tensor), is_within, "{module} {tensor}");
        }
    }

    #[test]
    fn what_is_not_read_is_refused_by_name() {
        for (text, kind, part) in [
            (r#"{"quantization_config":[]}"#, "bad-config", "must be an object"),
            (r#"{"quantization_config":{}}"#, "bad-config", "`quantization_config.quant_method` is missing"),
            (r#"{"quantization_config":{"quant_method":"x"}}"#, "unknown-method", "known are `fp8`"),
            (r#"{"quantization_config":{"quant_method":"eetq"}}"#, "unsupported-method", "GPU tile order"),
        ] {
            let error = found(text).unwrap_err();
            assert_eq!(error.kind(), kind, "{text}");
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}

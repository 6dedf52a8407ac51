//! AutoRound: layouts of GPTQ, AWQ, FP8 or compressed-tensors with settings of its own.

use serde_json::{Map, Value};

use crate::gptq::{self, GptqParams, GptqVersion, Remarks};
use crate::patterns::{ModulePattern, ModulePatternError, Patterns, spellings};
use crate::{Result, Settings, Tensors, awq, compressed, fp8};

/// Plans all modules of `auto-round`.
pub(super) fn plan(settings: &Settings, tensors: &mut Tensors<'_>, warnings: &mut Vec<String>) -> Result<()> {
    // Its first versions named the packing as the program that runs it.
    const KEYS: [&str; 2] = ["packing_format", "backend"];
    let (mut key, mut packing) = (KEYS[0], None);
    for name in KEYS {
        if packing.is_none_or(|packing| packing == "auto") {
            (key, packing) = (name, settings.text(name)?);
        }
    }
    let version = match packing {
        None | Some("auto" | "auto_round:auto_gptq" | "auto_round:gptq") => GptqVersion::One,
        Some("auto_round" | "auto_round:gptqmodel" | "autoround:exllamav2" | "auto_round:exllamav2") => {
            GptqVersion::Two
        }
        Some("auto_round:fp8" | "auto_round:fp8_static") => return fp8::plan(settings, tensors),
        Some("auto_round:auto_awq" | "auto_round:awq") => {
            return awq::plan_modules(settings, tensors, awq::AwqVersion::Gemm);
        }
        Some("auto_round:llm_compressor") if !settings.is_set_to("sym", false) => {
            return compressed::plan_by_tensors(settings, tensors);
        }
        Some(name) => return Err(settings.variant(key, name, "this packing is not read")),
    };
    let mut remarks = Remarks::default();
    let overrides = overrides(settings)?;
    for (module, _) in tensors.ending(".qweight") {
        let own = overrides.iter().find(|(name, _)| name.matches(module));
        let own = own.map_or_else(|| settings.clone(), |(_, map)| settings.with(map));
        if own.int("bits")?.is_some_and(|bits| bits >= 16) {
            let tensor = format!("{module}.qweight");
            return Err(settings.conflict("extra_config", "16 bits", tensor, "codes"));
        }
        let params = GptqParams { bits: gptq::bits(&own)?, group_size: gptq::group_size(&own)?, version };
        gptq::put(&own, tensors, module, params, &mut remarks)?;
    }
    warnings.extend(remarks.warnings());
    Ok(())
}

pub(super) type ModuleSettings = (ModuleName, Map<String, Value>);

/// A module name, or a pattern of names.
pub(super) enum ModuleName {
    Exact(String),
    Pattern(ModulePattern),
}

impl ModuleName {
    pub(super) fn matches(&self, module: &str) -> bool {
        match self {
            Self::Exact(name) => spellings(module).any(|module| *name == module),
            Self::Pattern(pattern) => pattern.is_match(module),
        }
    }
}

/// Reads `extra_config`: settings by module, exact names before patterns.
pub(super) fn overrides(settings: &Settings) -> Result<Vec<ModuleSettings>> {
    const KEY: &str = "extra_config";
    let Some(value) = settings.map.get(KEY).filter(|value| !value.is_null()) else { return Ok(Vec::new()) };
    let Some(map) = value.as_object() else { return Err(settings.bad(KEY, "must be an object")) };
    let (mut exact, mut patterns, mut compiled) = (Vec::new(), Vec::new(), Patterns::default());
    for (name, value) in map {
        let Some(value) = value.as_object() else {
            return Err(settings.bad(KEY, &format!("has an entry `{name}` that is not an object")));
        };
        exact.push((ModuleName::Exact(name.clone()), value.clone()));
        match compiled.compile(name) {
            Ok(pattern) => patterns.push((ModuleName::Pattern(pattern), value.clone())),
            Err(ModulePatternError::Syntax) => {}
            Err(error) => {
                let what = format!("has the pattern `{name}`, which {}", error.what());
                return Err(settings.bad(KEY, &what));
            }
        }
    }
    exact.extend(patterns);
    Ok(exact)
}

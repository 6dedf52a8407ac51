//! Modules that a configuration means to be quantized but that are plain floats: legal, and worth a line.

use crate::core::ElementType;
use crate::dequant::encoding::tensor_class;
use crate::dequant::gptq::Rule;
use crate::dequant::layer::{Origin, Weight};
use crate::dequant::{DequantError, Method, QUANTO_QMAP, Settings, autoround, compressed, gptq};

/// Tells which modules are meant.
type Test<'a> = Box<dyn Fn(&str) -> bool + 'a>;

/// Names of the matrices in the layers of a model that stay as they are although the configuration targets them. No
/// names if nothing is quantized: then there is more to say than names.
///
/// # Errors
/// A rule that is not understood.
pub(super) fn plain(settings: &Settings, weights: &[Weight]) -> Result<Vec<String>, DequantError> {
    if !weights.iter().any(|weight| matches!(weight.origin, Origin::Coded(_))) {
        return Ok(Vec::new());
    }
    let is_target = test(settings)?;
    let is_float = |ty| matches!(ty, ElementType::F32 | ElementType::F16 | ElementType::Bf16);
    let name = |weight: &Weight| {
        let Weight { meta, origin: Origin::Plain(_) } = weight else { return None };
        let module = meta.name.strip_suffix(".weight")?;
        // Embeddings and output matrices are no linear layers for most tools, and others list them.
        let is_in_layer = tensor_class(module) != module;
        (is_in_layer && meta.shape.rank() == 2 && is_float(meta.ty) && is_target(module))
            .then(|| meta.name.clone())
    };
    Ok(weights.iter().filter_map(name).collect())
}

/// Whether the configuration targets a module, as its method says it.
fn test(settings: &Settings) -> Result<Test<'_>, DequantError> {
    let is_listed = |module: &str| {
        settings.check_not_ignored(&format!("{module}.weight")).is_err()
            || settings.check_no_glob(module).is_err()
    };
    Ok(match settings.method {
        Method::CompressedTensors => Box::new(compressed::target_test(settings)?),
        Method::Gptq => {
            let rules = gptq::rules(settings)?;
            Box::new(move |module| {
                let rule = rules.iter().find(|(pattern, _)| pattern.is_match(module));
                !matches!(rule, Some((_, Rule::Skip))) && !is_listed(module)
            })
        }
        Method::AutoRound => {
            let overrides = autoround::overrides(settings)?;
            Box::new(move |module| {
                let own = overrides.iter().find(|(name, _)| name.matches(module));
                let bits = own.and_then(|(_, map)| map.get("bits")).and_then(serde_json::Value::as_i64);
                bits.is_none_or(|bits| bits < 16) && !is_listed(module)
            })
        }
        // Only stacks of experts are meant.
        Method::Mxfp4 => Box::new(|_| false),
        Method::Quanto if settings.file == QUANTO_QMAP => {
            Box::new(|module| settings.map.contains_key(module))
        }
        Method::Modelopt => {
            let layers = settings.map.get("quantized_layers");
            let layers = layers.and_then(serde_json::Value::as_object);
            Box::new(move |module| match layers {
                Some(layers) => layers.contains_key(module),
                None => !is_listed(module),
            })
        }
        _ => Box::new(move |module| !is_listed(module)),
    })
}

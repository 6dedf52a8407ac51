//! Detection of modules that the configuration targets for quantization but that are plain floats: valid, but worth a
//! warning.

use crate::encoding::tensor_class;
use crate::gptq::DynamicRule;
use crate::layer::{Weight, WeightOrigin};
use crate::{Method, QUANTO_QMAP, Result, Settings, autoround, compressed, gptq};
use gguf_core::ElementType;

type Test<'a> = Box<dyn Fn(&str) -> bool + 'a>;

/// Returns the names of float matrices in the model's layers that the configuration targets.
///
/// Returns no names if nothing is quantized: that case needs a different message.
pub(super) fn plain(settings: &Settings, weights: &[Weight]) -> Result<Vec<String>> {
    if !weights.iter().any(|weight| matches!(weight.origin, WeightOrigin::Coded(_))) {
        return Ok(Vec::new());
    }
    let is_target = test(settings)?;
    let is_float = |ty| matches!(ty, ElementType::F32 | ElementType::F16 | ElementType::Bf16);
    let name = |weight: &Weight| {
        let Weight { meta, origin: WeightOrigin::Plain(_) } = weight else { return None };
        let module = meta.name.strip_suffix(".weight")?;
        // For most tools embeddings and output matrices are not linear layers, and the other tools list them.
        let is_in_layer = tensor_class(module) != module;
        (is_in_layer && meta.shape.rank() == 2 && is_float(meta.ty) && is_target(module))
            .then(|| meta.name.clone())
    };
    Ok(weights.iter().filter_map(name).collect())
}

/// Returns the test for targeted modules, by the rules of the method.
fn test(settings: &Settings) -> Result<Test<'_>> {
    let is_skipped = settings.skip_test()?;
    let is_listed = move |module: &str| is_skipped(module) || settings.check_no_glob(module).is_err();
    Ok(match settings.method {
        Method::CompressedTensors => Box::new(compressed::target_test(settings)?),
        Method::Gptq => {
            let rules = gptq::rules(settings)?;
            Box::new(move |module| {
                let rule = rules.iter().find(|(pattern, _)| pattern.is_match(module));
                !matches!(rule, Some((_, DynamicRule::Skip))) && !is_listed(module)
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
        // Only stacks of experts are targeted.
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
        Method::Mlx => Box::new(|module| settings.map.get(module).is_some_and(serde_json::Value::is_object)),
        _ => Box::new(move |module| !is_listed(module)),
    })
}

//! Classification of the tensors of a checkpoint by their purpose.

use std::collections::HashSet;

use super::error::MsModelSlimError;
use super::label::{CACHE, Label, PARAMETERS, run_time};
use super::labelled::Labelled;
use super::module::LabelledModule;
use gguf_core::ElementType;
use gguf_core::text::escape;

/// The tensors of a checkpoint by purpose.
pub(super) struct SortedTensors<'a> {
    pub(super) modules: Vec<LabelledModule<'a>>,
    /// Tensors that are used unchanged.
    pub(super) plain: Vec<usize>,
    cache: Vec<usize>,
    n_activation: usize,
    n_tensor_parallel: usize,
}

impl<'a> SortedTensors<'a> {
    /// Classifies all tensors.
    ///
    /// # Errors
    /// Labels that are unknown, refused or contradicted; tensors of a computation at run time, or that belong to no
    /// weight.
    pub(super) fn new(tensors: &Labelled<'a>) -> Result<Self, MsModelSlimError> {
        let mut sorted = Self {
            modules: Vec::new(),
            plain: Vec::new(),
            cache: Vec::new(),
            n_activation: 0,
            n_tensor_parallel: 0,
        };
        let mut parameters = Vec::new();
        for (at, meta) in tensors.weights().iter().enumerate() {
            let name = meta.name.as_str();
            let (module, ending) = name.rsplit_once('.').unwrap_or(("", name));
            let text = tensors.label(name);
            let label = text.map(|text| Label::parse(name, text)).transpose()?;
            if CACHE.contains(&ending) || label == Some(Label::Cache) {
                sorted.cache.push(at);
            } else if let Some(why) = run_time(ending) {
                return Err(MsModelSlimError::RunTime { tensor: name.to_owned(), why });
            } else if tensors.find(&format!("{name}.weight")).is_some() {
                let why = "it stands for a transformation of activations at run time";
                return Err(MsModelSlimError::RunTime { tensor: name.to_owned(), why });
            } else if let Some((whole, _)) = name.split_once(".tp_list.") {
                if tensors.find(&format!("{whole}.weight")).is_none() {
                    let why =
                        "the weight is cut in parts for several devices, and the whole is not in the file";
                    return Err(MsModelSlimError::RunTime { tensor: name.to_owned(), why });
                }
                sorted.n_tensor_parallel += 1;
            } else if PARAMETERS.contains(&ending) {
                parameters.push((at, module.trim_end_matches('.')));
            } else if ending == "mul_scale" && module.strip_suffix(".div").is_some() {
                parameters.push((at, module));
            } else {
                sorted.add(tensors, at, text, label)?;
            }
        }
        let owners: HashSet<&str> = sorted.modules.iter().map(|module| module.stored).collect();
        for (at, module) in parameters {
            let smoothed = module.strip_suffix(".div").map(|wrapper| format!("{wrapper}.linear"));
            if !owners.contains(smoothed.as_deref().unwrap_or(module)) {
                return Err(MsModelSlimError::Orphan { tensor: tensors.meta(at).name.clone() });
            }
            let ending = tensors.meta(at).name.rsplit('.').next();
            sorted.n_activation += usize::from(ending.is_some_and(|ending| ending.starts_with("input_")));
        }
        Ok(sorted)
    }

    /// Adds a tensor that is a weight, a bias or a norm.
    fn add(
        &mut self,
        tensors: &Labelled<'a>,
        at: usize,
        text: Option<&'a str>,
        label: Option<Label>,
    ) -> Result<(), MsModelSlimError> {
        let meta = tensors.meta(at);
        let tensor = || meta.name.clone();
        let contradiction = |text: &str| MsModelSlimError::Contradiction {
            tensor: meta.name.clone(),
            label: text.to_owned(),
            ty: meta.ty,
        };
        let is_code = matches!(meta.ty, ElementType::I8 | ElementType::U8 | ElementType::F8E4M3);
        let Some((text, label)) = text.zip(label) else {
            if is_code {
                return Err(MsModelSlimError::NoLabel { tensor: tensor(), ty: meta.ty });
            }
            self.plain.push(at);
            return Ok(());
        };
        let stored = meta.name.strip_suffix(".weight");
        match (label, stored) {
            (Label::Float, _) if is_code => return Err(contradiction(text)),
            (Label::Float, _) => self.plain.push(at),
            (_, Some(stored)) if is_code => {
                let name = tensors.plain_name(&meta.name);
                self.modules.push(LabelledModule { stored, name, codes: at, text, label });
            }
            (_, None) if is_code => return Err(contradiction(text)),
            // Norms and biases have the label of their layer; with scales, the label must be that of codes.
            (_, Some(stored))
                if ["weight_scale", "deq_scale"].iter().any(|end| tensors.of(stored, end).is_some()) =>
            {
                return Err(contradiction(text));
            }
            _ => self.plain.push(at),
        }
        Ok(())
    }

    /// Returns warnings about tensors that were left out.
    pub(super) fn warnings(&self, tensors: &Labelled<'_>) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(&first) = self.cache.first() {
            warnings.push(format!(
                "{} scales and offsets of the key and value cache or of attention are left out (`{}` is the first): a \
                 GGUF file has no place for them",
                self.cache.len(),
                escape(&tensors.meta(first).name)
            ));
        }
        if self.n_activation > 0 {
            warnings.push(format!(
                "{} scales and offsets of activations are left out: the converted model does not quantize its \
                 activations as the NPU does",
                self.n_activation
            ));
        }
        if self.n_tensor_parallel > 0 {
            warnings.push(format!(
                "{} parts of weights for several devices are left out: the whole weights are there too",
                self.n_tensor_parallel
            ));
        }
        let mut absent = tensors.description.labels.keys().filter(|name| tensors.find(name).is_none());
        if let Some(first) = absent.next() {
            warnings.push(format!(
                "the description names {} tensors that are not in the checkpoint (`{}` is the first)",
                1 + absent.count(),
                escape(first)
            ));
        }
        warnings
    }
}

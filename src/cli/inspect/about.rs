//! Summary of a file in at most nine lines, at the top of a description.

use serde::Serialize;

use crate::cli::inspect::SHOWN_CHARS;
use crate::cli::memory::{ContextMemory, ModelMemory};
use crate::cli::render::count;
use crate::core::TensorSource;
use crate::core::text::{bytes, escape};
use crate::gguf::{GgufFile, Metadata, Value};
use crate::inspect::{FileSummary, chat_templates, value_text};
use crate::verify::Label;

/// Facts about a file, each as readable text.
#[derive(Debug, Serialize)]
pub(super) struct About {
    /// Name, architecture, size and kind of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    /// Size of the files, number of parameters, bits per weight.
    size: String,
    /// Recipe of the tensor types.
    #[serde(skip_serializing_if = "Option::is_none")]
    types: Option<String>,
    /// Length of the context, and its scaling.
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<String>,
    /// Memory of the weights, and of a context of the usual length with keys and values as F16.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<String>,
    /// Number of layers, their width, heads and experts.
    #[serde(skip_serializing_if = "Option::is_none")]
    layers: Option<String>,
    /// Tokenizer, pre-tokenizer and number of tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    tokenizer: Option<String>,
    /// Presence or names of chat templates.
    #[serde(skip_serializing_if = "Option::is_none")]
    template: Option<String>,
    /// Licence and base model.
    #[serde(skip_serializing_if = "Option::is_none")]
    licence: Option<String>,
}

impl About {
    /// Returns the facts that are known about a file.
    pub(super) fn of(file: &GgufFile, summary: &FileSummary<'_>) -> Self {
        let keys = KeyReader { metadata: file.metadata() };
        Self {
            model: keys.model(),
            size: size(summary),
            types: types(file),
            context: keys.context(),
            memory: memory(file),
            layers: keys.layers(),
            tokenizer: keys.tokenizer(),
            template: keys.template(),
            licence: keys.licence(),
        }
    }

    /// Returns the facts with their labels.
    pub(super) fn lines(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let facts = [
            ("model", self.model.as_deref()),
            ("size", Some(self.size.as_str())),
            ("types", self.types.as_deref()),
            ("context", self.context.as_deref()),
            ("memory", self.memory.as_deref()),
            ("layers", self.layers.as_deref()),
            ("tokenizer", self.tokenizer.as_deref()),
            ("template", self.template.as_deref()),
            ("licence", self.licence.as_deref()),
        ];
        facts.into_iter().filter_map(|(label, text)| Some((label, text?)))
    }
}

fn size(summary: &FileSummary<'_>) -> String {
    let n_elems = summary.n_elems;
    let parameters = (n_elems > 0).then(|| format!(", {} parameters", short(n_elems)));
    let bits = summary.bits_per_weight.map(|bits| format!(", {bits:.2} bits per weight"));
    format!("{}{}{}", bytes(summary.file_bytes), parameters.unwrap_or_default(), bits.unwrap_or_default())
}

/// Returns the memory that a model takes with contexts of the usual lengths, if it can be run.
fn memory(file: &GgufFile) -> Option<String> {
    let found = ModelMemory::of_file(file).ok().filter(|found| !found.is_empty())?;
    let at = |at: &ContextMemory| format!("{} with {} tokens", bytes(at.total_bytes), count(at.tokens));
    Some(found.iter().map(at).collect::<Vec<_>>().join(", "))
}

/// Returns the recipe of types of a model file.
fn types(file: &GgufFile) -> Option<String> {
    let is_model = file.metadata().get("general.file_type").is_some() && !file.tensors().is_empty();
    is_model.then(|| Label::of(file.metadata(), file.tensors(), Some(file.path())).recipe())
}

/// Formats a count with its unit: `1.24 B`.
fn short(n: u64) -> String {
    let value = n as f64;
    match n {
        1_000_000_000.. => format!("{:.2} B", value / 1e9),
        1_000_000.. => format!("{:.1} M", value / 1e6),
        _ => count(n),
    }
}

struct KeyReader<'a> {
    metadata: &'a Metadata,
}

impl KeyReader<'_> {
    fn text(&self, key: &str) -> Option<String> {
        let value = self.metadata.get(key)?;
        value.as_str().filter(|text| !text.is_empty())?;
        Some(value_text(value, Some(SHOWN_CHARS), None))
    }

    /// Returns the value of a key that begins with the architecture's name.
    fn of_arch(&self, name: &str) -> Option<&Value> {
        let arch = self.metadata.get("general.architecture").and_then(Value::as_str)?;
        self.metadata.get(&format!("{arch}.{name}"))
    }

    /// Formats a number; for an array with one number per layer, the range.
    fn number(&self, name: &str) -> Option<String> {
        match self.of_arch(name)? {
            Value::Array(list) => {
                let numbers = (0..list.len()).filter_map(|at| list.get(at)?.as_u64());
                let (least, most) = numbers.fold((u64::MAX, 0), |(a, b), n| (a.min(n), b.max(n)));
                (least <= most).then(|| {
                    if least == most { count(most) } else { format!("{} to {}", count(least), count(most)) }
                })
            }
            value => value.as_u64().map(count),
        }
    }

    fn model(&self) -> Option<String> {
        let name = self.text("general.name").or_else(|| self.text("general.basename"));
        let arch = self.text("general.architecture").map(|arch| format!("architecture {arch}"));
        let size = self.text("general.size_label");
        let kind = self.text("general.type").filter(|kind| kind != "model");
        let all: Vec<String> = [name, arch, size, kind].into_iter().flatten().collect();
        (!all.is_empty()).then(|| all.join(", "))
    }

    fn context(&self) -> Option<String> {
        let tokens = self.number("context_length")?;
        let scaling =
            self.of_arch("rope.scaling.type").and_then(Value::as_str).filter(|kind| *kind != "none");
        let factor = self.of_arch("rope.scaling.factor").and_then(Value::as_f64);
        let scaling = scaling.map(|kind| {
            let factor = factor.map(|factor| format!(" by {factor}")).unwrap_or_default();
            format!(", rope scaling {}{factor}", escape(kind))
        });
        Some(format!("{tokens} tokens{}", scaling.unwrap_or_default()))
    }

    fn layers(&self) -> Option<String> {
        let layers = self.number("block_count")?;
        let rest = [
            ("width", self.number("embedding_length")),
            ("heads", self.number("attention.head_count")),
            ("key heads", self.number("attention.head_count_kv")),
            ("experts", self.number("expert_count").filter(|n| n != "0")),
            ("used", self.number("expert_used_count").filter(|n| n != "0")),
        ];
        let rest = rest.into_iter().filter_map(|(what, n)| Some(format!(", {what} {}", n?)));
        Some(format!("{layers}{}", rest.collect::<String>()))
    }

    fn tokenizer(&self) -> Option<String> {
        let model = self.text("tokenizer.ggml.model")?;
        let pre = self.text("tokenizer.ggml.pre").map(|pre| format!(", pre-tokenizer {pre}"));
        let tokens = self.metadata.get("tokenizer.ggml.tokens").and_then(Value::as_array);
        let tokens = tokens.map(|tokens| format!(", {} tokens", count(tokens.len() as u64)));
        Some(format!("{model}{}{}", pre.unwrap_or_default(), tokens.unwrap_or_default()))
    }

    fn template(&self) -> Option<String> {
        self.metadata.get("tokenizer.ggml.model")?;
        let templates = chat_templates(self.metadata);
        let names: Vec<_> = templates.iter().map(|template| escape(template.name)).collect();
        Some(match names.as_slice() {
            [] => "none".to_owned(),
            [_] => "yes".to_owned(),
            names => names.join(", "),
        })
    }

    fn licence(&self) -> Option<String> {
        let licence = self.text("general.license.name").or_else(|| self.text("general.license"));
        let base = self.text("general.base_model.0.name").map(|base| format!("base model {base}"));
        let all: Vec<String> = [licence, base].into_iter().flatten().collect();
        (!all.is_empty()).then(|| all.join(", "))
    }
}

/// Returns the name that a number in a key represents: a file type, or a token.
pub(super) fn meaning(metadata: &Metadata, key: &str, value: &Value) -> Option<String> {
    let number = value.as_u64()?;
    if key == "general.file_type" {
        let file_type = crate::gguf::FileType::from_id(u32::try_from(number).ok()?)?;
        return Some(file_type.name().to_owned());
    }
    if !key.ends_with("_token_id") {
        return None;
    }
    let tokens = metadata.get("tokenizer.ggml.tokens").and_then(Value::as_array)?;
    let token = tokens.get(usize::try_from(number).ok()?)?;
    token.as_str().map(|text| escape(text).into_owned())
}

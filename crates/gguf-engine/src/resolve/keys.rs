//! Typed access to the keys of one architecture.

use std::cell::{LazyCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use crate::{EngineError, Result};
use gguf_arch::Registry;
use gguf_format::keys::{ANNOTATION_PREFIX, is_without_effect};
use gguf_format::{Array, Metadata, Value};

/// Values that count in place of a file's, by name; `None` is no value.
pub(crate) type Replaced<'a> = BTreeMap<&'a str, Option<Value>>;

/// Keys `<arch>.<name>` of a file.
pub(crate) struct ArchKeys<'a> {
    metadata: &'a Metadata,
    arch: &'a str,
    replaced: &'a Replaced<'a>,
    /// Names that were read.
    read: RefCell<BTreeSet<String>>,
}

impl<'a> ArchKeys<'a> {
    /// Returns access to the keys of architecture `arch`.
    pub(crate) fn new(metadata: &'a Metadata, arch: &'a str, replaced: &'a Replaced<'a>) -> Self {
        Self { metadata, arch, replaced, read: RefCell::default() }
    }

    /// Returns the names that were read, whether or not the file has them.
    pub(crate) fn into_read(self) -> BTreeSet<String> {
        self.read.into_inner()
    }

    /// Returns `general.architecture`.
    pub(crate) fn arch(&self) -> &'a str {
        self.arch
    }

    /// Returns the full name of a key, `<arch>.<name>`.
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch)
    }

    /// Returns the value of a key; a `gguf_foundry.*` key of the same name takes precedence.
    pub(crate) fn get(&self, name: &str) -> Option<&'a Value> {
        if !self.read.borrow().contains(name) {
            self.read.borrow_mut().insert(name.to_owned());
        }
        let annotation = self.metadata.get(&format!("{ANNOTATION_PREFIX}{name}"));
        annotation.or_else(|| match self.replaced.get(name) {
            Some(value) => value.as_ref(),
            None => self.metadata.get(&self.key(name)),
        })
    }

    /// Returns the architecture's keys that no part of the graph has read. Keys without effect on the graph are left
    /// out, and keys that the architecture's card describes: the graph or the tensors state the same.
    pub(crate) fn unread(&self) -> Vec<&'a str> {
        let read = self.read.borrow();
        let prefix = format!("{}.", self.arch);
        let keys = self.metadata.iter().map(|(key, _)| key);
        let cards = LazyCell::new(|| Registry::of_architecture(self.arch).ok());
        let is_unread = |key: &&str| {
            key.strip_prefix(&prefix).is_some_and(|name| !read.contains(name) && !is_without_effect(name))
                && !cards.as_ref().is_some_and(|cards| cards.describes(self.arch, key))
        };
        keys.filter(is_unread).collect()
    }

    fn bad(&self, name: &str, expected: &'static str, value: &Value) -> EngineError {
        let found = match value {
            Value::Array(array) => format!("an array of {} {}", array.len(), array.element_type()),
            Value::String(bytes) => gguf_core::text::escape_bytes(bytes),
            other => format!("{other:?}"),
        };
        EngineError::BadKey { key: self.key(name), expected, found }
    }

    pub(crate) fn count(&self, name: &str) -> Result<Option<usize>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let count = value.as_u64().and_then(|v| usize::try_from(v).ok());
        count.map(Some).ok_or_else(|| self.bad(name, "a count", value))
    }

    pub(crate) fn counts(&self, name: &str) -> Result<Option<Vec<usize>>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let count = |at: usize, array: &Array| array.get(at)?.as_u64().and_then(|v| usize::try_from(v).ok());
        let counts = value.as_array().and_then(|array| (0..array.len()).map(|at| count(at, array)).collect());
        let counts: Option<Vec<usize>> = counts;
        counts.map(Some).ok_or_else(|| self.bad(name, "an array of counts", value))
    }

    /// Returns a count that is required and not 0.
    pub(crate) fn need_count(&self, name: &str) -> Result<usize> {
        self.count(name)?.filter(|&n| n > 0).ok_or_else(|| self.missing(name))
    }

    /// Returns the id of a token with a role, from the key `tokenizer.ggml.<role>_token_id`.
    pub(crate) fn token_id(&self, role: &str) -> Option<u32> {
        let value = self.metadata.get(&format!("tokenizer.ggml.{role}_token_id"))?;
        value.as_u64().and_then(|id| u32::try_from(id).ok())
    }

    pub(crate) fn ids(&self, name: &str) -> Result<Option<Vec<u32>>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let id = |value: Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let ids = value.as_array().and_then(|array| (0..array.len()).map(|at| id(array.get(at)?)).collect());
        ids.map(Some).ok_or_else(|| self.bad(name, "an array of token ids", value))
    }

    /// Returns the count of a layer: one value for all layers, or an array, which may be longer than the layers.
    pub(crate) fn layer_count(&self, name: &str, layer: usize) -> Result<Option<usize>> {
        match self.get(name) {
            Some(Value::Array(array)) => {
                let value = array.get(layer).and_then(|v| v.as_u64()).and_then(|v| usize::try_from(v).ok());
                let whole = Value::Array(array.clone());
                value.map(Some).ok_or_else(|| self.bad(name, "a count for every layer", &whole))
            }
            _ => self.count(name),
        }
    }

    /// Returns the flag of a layer, stored as bool or integer: one value for all layers, or an array.
    pub(crate) fn layer_flag(&self, name: &str, layer: usize) -> Result<Option<bool>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let element = match value {
            Value::Array(array) => array.get(layer),
            other => Some(other.clone()),
        };
        let flag = element.and_then(|v| v.as_bool().or_else(|| v.as_u64().map(|n| n != 0)));
        flag.map(Some).ok_or_else(|| self.bad(name, "a flag for every layer", value))
    }

    /// Returns the number of a layer: one value for all layers, or an array, which may be longer than the layers.
    pub(crate) fn layer_number(&self, name: &str, layer: usize) -> Result<Option<f64>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let number = element_number(value, layer);
        number.map(Some).ok_or_else(|| self.bad(name, "a number for every layer", value))
    }

    /// Returns the number of a layer, as [`ArchKeys::layer_number`], from a key without the architecture's prefix.
    pub(crate) fn global_layer_number(&self, key: &str, layer: usize) -> Result<Option<f64>> {
        let Some(value) = self.metadata.get(key) else { return Ok(None) };
        let number = element_number(value, layer).filter(|number| number.is_finite());
        let bad = || EngineError::BadKey {
            key: key.to_owned(),
            expected: "a finite number for every layer",
            found: "something else".to_owned(),
        };
        number.map(Some).ok_or_else(bad)
    }

    pub(crate) fn number(&self, name: &str) -> Result<Option<f64>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let number = value.as_f64().or_else(|| value.as_i128().map(|v| v as f64));
        number.filter(|v| v.is_finite()).map(Some).ok_or_else(|| self.bad(name, "a finite number", value))
    }

    /// Returns a number, of which 0 means absent.
    pub(crate) fn nonzero(&self, name: &str) -> Result<Option<f64>> {
        Ok(self.number(name)?.filter(|&v| v != 0.0))
    }

    pub(crate) fn flag(&self, name: &str) -> Result<Option<bool>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.bad(name, "a bool", value))
    }

    pub(crate) fn text(&self, name: &str) -> Result<Option<&'a str>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.bad(name, "a string", value))
    }

    pub(crate) fn n_texts(&self, name: &str) -> Result<Option<usize>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.as_array() {
            Some(Array::String(texts)) => Ok(Some(texts.len())),
            _ => Err(self.bad(name, "a list of strings", value)),
        }
    }

    pub(crate) fn missing(&self, name: &str) -> EngineError {
        EngineError::MissingKey { key: self.key(name) }
    }

    /// Returns the error of a key whose value is not among the expected ones.
    pub(crate) fn unknown(&self, name: &str, expected: &'static str, found: &str) -> EngineError {
        EngineError::BadKey { key: self.key(name), expected, found: found.to_owned() }
    }
}

/// Returns the number of a layer: an element of an array, or a value for all layers.
fn element_number(value: &Value, layer: usize) -> Option<f64> {
    let element = match value {
        Value::Array(array) => array.get(layer)?,
        other => other.clone(),
    };
    element.as_f64().or_else(|| element.as_i128().map(|v| v as f64)).filter(|number| !number.is_nan())
}

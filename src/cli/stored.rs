//! Output of how a quantized checkpoint stores its weights. Shared by the `2gguf` commands and `gguf-inspect`.

use std::collections::HashMap;

use serde_json::{Value as Json, json};

use crate::cli::Session;
use crate::cli::render::{Align, Table, plural};
use crate::convert::{Conversion, Quantization, StoredClass};
use crate::core::text::escape;
use crate::core::{GgmlType, TensorMeta, TensorSource};

/// Maximum number of names and endings in a line.
const SHOWN: usize = 6;

/// Lists types for a table cell.
pub(super) fn types_text(types: &[GgmlType]) -> String {
    types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Returns the table of classes. `fates` are the heads of further columns, `cells` returns their content.
pub(super) fn table<T>(
    classes: &[StoredClass<T>],
    fates: &[&str],
    cells: impl Fn(&T) -> Vec<String>,
) -> Table {
    let mut heads = vec![
        ("quantized weights", Align::Left),
        ("count", Align::Right),
        ("stored as", Align::Left),
        ("bits", Align::Right),
    ];
    heads.extend(fates.iter().map(|fate| (*fate, Align::Left)));
    let mut table = Table::new(&heads);
    for class in classes {
        let own = [
            escape(&class.pattern).into_owned(),
            class.n_weights.to_string(),
            escape(&class.text()).into_owned(),
            format!("{:.2}", class.bits_per_weight()),
        ];
        table.row(own.into_iter().chain(cells(&class.becomes)));
    }
    table
}

/// Returns lines about tensors that were left out and weights that are not quantized.
pub(super) fn lines(quantization: &Quantization) -> Vec<String> {
    let mut lines = Vec::new();
    let list = |texts: &[&str], quote: &str| {
        let shown: Vec<String> =
            texts.iter().take(SHOWN).map(|text| format!("{quote}{}{quote}", escape(text))).collect();
        let more = if texts.len() > SHOWN { ", …" } else { "" };
        format!("{}{more}", shown.join(", "))
    };
    if quantization.encodings.is_empty() {
        lines.push("no weight is quantized, although the configuration declares it".to_owned());
    }
    if !quantization.left_out.is_empty() {
        let n = plural(quantization.left_out.len() as u64, "tensor");
        lines.push(format!("left out: {n}: {}", list(&quantization.left_out_endings(), "")));
    }
    if !quantization.plain_targets.is_empty() {
        let n = plural(quantization.plain_targets.len() as u64, "weight");
        let names: Vec<&str> = quantization.plain_targets.iter().map(String::as_str).collect();
        lines
            .push(format!("plain floats, though the configuration targets them: {n}: {}", list(&names, "`")));
    }
    lines
}

/// Quantization of the checkpoint, for plans and summaries.
#[derive(Default)]
pub(super) struct StoredQuantization<'a> {
    quantization: Option<&'a Quantization>,
    classes: Vec<StoredClass<Vec<GgmlType>>>,
    /// Hint about what `--type native` would keep, if it was not chosen and nothing is kept.
    hint: Option<String>,
}

impl<'a> StoredQuantization<'a> {
    /// Describes how the weights of a conversion are stored in a file of `tensors`. `may_hint` allows a hint at
    /// `native`.
    pub(super) fn of(conversion: &'a Conversion, tensors: &[TensorMeta], may_hint: bool) -> Self {
        // The tensors of a quantized file may be in another order.
        let by_name: HashMap<&str, GgmlType> =
            tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.ty)).collect();
        let ty = |output: &usize| by_name.get(conversion.tensors()[*output].name.as_str()).copied();
        let classes = conversion.stored(|outputs| {
            let mut types: Vec<GgmlType> = outputs.iter().filter_map(ty).collect();
            types.sort_unstable();
            types.dedup();
            types
        });
        let hint = if may_hint && conversion.kept().is_empty() { native_hint(conversion) } else { None };
        Self { quantization: conversion.quantization(), classes, hint }
    }

    /// Prints the table and further lines; nothing for a checkpoint that is not quantized.
    pub(super) fn print(&self, session: &Session) -> anyhow::Result<()> {
        let Some(quantization) = self.quantization else { return Ok(()) };
        if session.common.quiet || session.common.json {
            return Ok(());
        }
        let becomes = |types: &Vec<GgmlType>| vec![types_text(types)];
        session.print(|out| {
            if !self.classes.is_empty() {
                table(&self.classes, &["becomes"], becomes).print(out)?;
            }
            for line in lines(quantization).iter().chain(&self.hint) {
                writeln!(out, "{line}")?;
            }
            writeln!(out)
        })
    }

    /// Returns the content as JSON; null for a checkpoint that is not quantized.
    pub(super) fn json(&self) -> Json {
        let Some(quantization) = self.quantization else { return Json::Null };
        let class = |class: &StoredClass<Vec<GgmlType>>| {
            let becomes: Vec<&str> = class.becomes.iter().map(|ty| ty.name()).collect();
            json!({
                "weights": class.pattern, "method": class.method, "form": class.form, "count": class.n_weights,
                "elements": class.n_elems, "bytes": class.n_bytes, "becomes": becomes,
            })
        };
        json!({
            "method": quantization.method,
            "classes": self.classes.iter().map(class).collect::<Vec<_>>(),
            "left_out": quantization.left_out,
            "plain_targets": quantization.plain_targets,
        })
    }
}

/// Returns the hint at `native` if it would keep something. Unreadable scales are ignored here: the conversion itself
/// reports them.
fn native_hint(conversion: &Conversion) -> Option<String> {
    let native = conversion.native().ok()??;
    let mut types: Vec<GgmlType> = Vec::new();
    let mut n_tensors = 0;
    for kept in native.conversion.kept() {
        n_tensors += kept.n_tensors as u64;
        if !types.contains(&kept.ty) {
            types.push(kept.ty);
        }
    }
    let n_tensors = plural(n_tensors, "tensor");
    let types = (!types.is_empty()).then(|| types_text(&types))?;
    Some(format!("`--type native` would keep the codes of {n_tensors} exactly: {types}"))
}

//! Markdown dump of a file: keys, then tensors by layer.

use std::io::{self, Write};

use crate::cli::render::markdown::escape;
use crate::cli::render::{count, plural};
use crate::core::text::{bytes, escape as printable};
use crate::core::{TensorMeta, TensorSource};
use crate::gguf::{GgufFile, Value};
use crate::inspect::{SummaryOptions, data_begin, endian_name, summary, value_text, value_type_name};

/// Maximum number of characters shown of a string, and of elements of an array.
const SHOWN_CHARS: usize = 60;
const SHOWN_ELEMS: usize = 6;

/// Tensors of one layer or stack.
struct TensorGroup<'a> {
    name: String,
    /// Tensors with their indices in the file.
    tensors: Vec<(usize, &'a TensorMeta)>,
}

impl TensorGroup<'_> {
    fn n_elems(&self) -> u64 {
        self.tensors.iter().map(|(_, tensor)| tensor.shape.n_elems()).fold(0, u64::saturating_add)
    }

    fn n_bytes(&self) -> u64 {
        let sizes = self.tensors.iter().filter_map(|(_, tensor)| tensor.n_bytes());
        sizes.fold(0, u64::saturating_add)
    }
}

pub(super) fn write(file: &GgufFile, has_tensors: bool, out: &mut dyn Write) -> io::Result<()> {
    let totals = summary(file, SummaryOptions::default());
    let tensors = file.tensors();
    writeln!(out, "# {}\n", escape(&printable(&file.path().display().to_string())))?;
    writeln!(
        out,
        "- GGUF {}, {}-endian, {}",
        file.version(),
        endian_name(file.endian()),
        bytes(file.file_bytes())
    )?;
    writeln!(
        out,
        "- {}, {}, {} elements, {} bits per weight",
        plural(file.metadata().len() as u64, "key"),
        plural(tensors.len() as u64, "tensor"),
        count(totals.n_elems),
        bits(totals.tensor_bytes, totals.n_elems),
    )?;
    writeln!(out, "- data from byte {}, aligned to {}", data_begin(file), file.alignment())?;
    keys(file, out)?;
    if !has_tensors || tensors.is_empty() {
        return Ok(());
    }
    let groups = groups(tensors);
    overview(&groups, totals.n_elems, out)?;
    groups.iter().try_for_each(|group| listed(file, group, out))
}

fn keys(file: &GgufFile, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\n## Keys\n\n| no. | key | type | elements | value |\n| ---: | --- | --- | ---: | --- |")?;
    for (index, (key, value)) in file.metadata().iter().enumerate() {
        let n_elems = match value {
            Value::Array(array) => array.len(),
            _ => 1,
        };
        let text = value_text(value, Some(SHOWN_CHARS), Some(SHOWN_ELEMS));
        let (key, ty) = (escape(&printable(key)), escape(&value_type_name(value)));
        writeln!(out, "| {} | {key} | {ty} | {n_elems} | {} |", index + 1, escape(&text))?;
    }
    Ok(())
}

/// Writes a line for each group, with a link to its table.
fn overview(groups: &[TensorGroup<'_>], n_elems: u64, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\n## Tensors\n")?;
    writeln!(out, "| group | tensors | elements | share | size | bits per weight |")?;
    writeln!(out, "| --- | ---: | ---: | ---: | ---: | ---: |")?;
    for group in groups {
        let (own, n_bytes) = (group.n_elems(), group.n_bytes());
        let share = if n_elems == 0 { 0.0 } else { own as f64 / n_elems as f64 * 100.0 };
        writeln!(
            out,
            "| [{}](#{}) | {} | {} | {share:.2} % | {} | {} |",
            escape(&group.name),
            anchor(&group.name),
            group.tensors.len(),
            count(own),
            bytes(n_bytes),
            bits(n_bytes, own),
        )?;
    }
    Ok(())
}

fn listed(file: &GgufFile, group: &TensorGroup<'_>, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\n### <a name=\"{}\">{}</a>\n", anchor(&group.name), escape(&group.name))?;
    writeln!(out, "| no. | tensor | type | shape | elements | bits per weight | offset | bytes |")?;
    writeln!(out, "| ---: | --- | --- | --- | ---: | ---: | ---: | ---: |")?;
    for &(index, tensor) in &group.tensors {
        let place = file.place(index);
        let n_elems = tensor.shape.n_elems();
        writeln!(
            out,
            "| {index} | {} | {} | {} | {} | {} | {} | {} |",
            escape(&printable(&tensor.name)),
            escape(tensor.ty.name()),
            escape(&tensor.shape.to_string()),
            count(n_elems),
            bits(place.n_bytes, n_elems),
            place.offset,
            place.n_bytes,
        )?;
    }
    Ok(())
}

/// Groups tensors by layer, in the order in which groups first occur.
fn groups(tensors: &[TensorMeta]) -> Vec<TensorGroup<'_>> {
    let mut groups: Vec<TensorGroup<'_>> = Vec::new();
    let mut places = std::collections::HashMap::new();
    for (index, tensor) in tensors.iter().enumerate() {
        let name = group_of(&tensor.name);
        let place = *places.entry(name.clone()).or_insert_with(|| {
            groups.push(TensorGroup { name, tensors: Vec::new() });
            groups.len() - 1
        });
        groups[place].tensors.push((index, tensor));
    }
    groups
}

/// Returns `blk.7` for `blk.7.attn_q.weight`, and `enc.blk.7` for `enc.blk.7.ffn_up.weight`. Tensors outside layers are
/// in `base`, or in the stack that the first word names.
fn group_of(name: &str) -> String {
    let words: Vec<&str> = name.splitn(4, '.').collect();
    match words.as_slice() {
        ["blk", layer, ..] => format!("blk.{layer}"),
        [stack @ ("enc" | "dec" | "v" | "a"), "blk", layer, ..] => format!("{stack}.blk.{layer}"),
        [stack @ ("enc" | "dec" | "v" | "a"), _, ..] => (*stack).to_owned(),
        _ => "base".to_owned(),
    }
}

/// Returns a name that is valid in links.
fn anchor(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}

fn bits(n_bytes: u64, n_elems: u64) -> String {
    if n_elems == 0 {
        return "none".to_owned();
    }
    format!("{:.4}", n_bytes as f64 * 8.0 / n_elems as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_grouped_by_layer() {
        for (name, group) in [
            ("blk.7.attn_q.weight", "blk.7"),
            ("enc.blk.0.ffn_up.weight", "enc.blk.0"),
            ("dec.output_norm.weight", "dec"),
            ("v.blk.3.ln1.bias", "v.blk.3"),
            ("token_embd.weight", "base"),
            ("blk", "base"),
            ("", "base"),
        ] {
            assert_eq!(group_of(name), group, "{name}");
        }
        assert_eq!(anchor("enc.blk.0\"><"), "enc-blk-0---");
    }
}

//! Files of draft heads alone (`--mtp`): blocks behind a model's own, which are run with that model only.

use crate::arch::block_number;
use crate::core::TensorMeta;
use crate::core::text::escape;
use crate::gguf::{Metadata, Value};
use crate::verify::{Aspect, Finding, Report};

/// How the names of a text model's blocks start.
const BLOCKS: &str = "blk.";

/// Blocks of the model itself, in a file that says that it has draft heads.
fn own_blocks(metadata: &Metadata) -> Option<u64> {
    let arch = metadata.get("general.architecture").and_then(Value::as_str)?;
    let number = |name: &str| metadata.get(&format!("{arch}.{name}")).and_then(Value::as_u64);
    let drafts = number("nextn_predict_layers").filter(|&n| n > 0)?;
    number("block_count")?.checked_sub(drafts)
}

/// True for a tensor of a block of the model itself.
pub(super) fn is_of_model(metadata: &Metadata, meta: &TensorMeta) -> bool {
    block_number(&meta.name, BLOCKS).zip(own_blocks(metadata)).is_some_and(|(block, own)| block < own)
}

/// True for a file that has blocks of draft heads and none of the model.
pub(super) fn are_alone(metadata: &Metadata, tensors: &[TensorMeta]) -> bool {
    let Some(own) = own_blocks(metadata) else { return false };
    let mut blocks = tensors.iter().filter_map(|meta| block_number(&meta.name, BLOCKS)).peekable();
    blocks.peek().is_some() && blocks.all(|block| block >= own)
}

/// Says what the file is, why it is not run, and what judges it.
pub(super) fn leave_out(metadata: &Metadata, report: &mut Report) {
    const ALONE: &str = "draft heads are not run without their model";
    let arch = metadata.get("general.architecture").and_then(Value::as_str).unwrap_or_default();
    let what = format!("draft heads of a model of `{}`, without the model: they are not run", escape(arch));
    report.add(Finding::unchecked("graph", what));
    for aspect in [Aspect::Perplexity, Aspect::Divergence] {
        report.not_judged(aspect, ALONE, "the model with its draft heads in one file");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{GgmlType, Shape};

    fn tensors(names: &[&str]) -> Vec<TensorMeta> {
        let tensor = |name: &&str| TensorMeta {
            name: (*name).to_owned(),
            shape: Shape::new(vec![1]).unwrap(),
            ty: GgmlType::F32,
        };
        names.iter().map(tensor).collect()
    }

    #[test]
    fn draft_heads_alone_have_the_last_blocks_only() {
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", "glm4");
        metadata.set("glm4.block_count", 3u32);
        let heads = tensors(&["token_embd.weight", "blk.2.attn_q.weight", "blk.2.nextn.eh_proj.weight"]);
        assert!(!are_alone(&metadata, &heads));
        metadata.set("glm4.nextn_predict_layers", 1u32);
        assert!(are_alone(&metadata, &heads));
        assert!(!are_alone(&metadata, &tensors(&["blk.2.attn_q.weight", "blk.0.attn_q.weight"])));
        assert!(!are_alone(&metadata, &tensors(&["token_embd.weight"])));
        assert!(is_of_model(&metadata, &tensors(&["blk.1.attn_q.weight"])[0]));
        assert!(!is_of_model(&metadata, &heads[0]) && !is_of_model(&metadata, &heads[1]));
        metadata.set("glm4.nextn_predict_layers", 4u32);
        assert!(!are_alone(&metadata, &heads));
    }
}

//! Files with only draft heads (`--mtp`): blocks after a model's own, which are run only together with it.

use crate::{Aspect, Check, Finding, Report};
use gguf_arch::block_number;
use gguf_core::TensorMeta;
use gguf_core::text::escape;
use gguf_format::{Metadata, Value};

/// Prefix of the names of a text model's blocks.
const BLOCKS: &str = "blk.";

/// Number of the model's own blocks, in a file that declares draft heads.
fn own_blocks(metadata: &Metadata) -> Option<u64> {
    let arch = metadata.get("general.architecture").and_then(Value::as_str)?;
    let number = |name: &str| metadata.get(&format!("{arch}.{name}")).and_then(Value::as_u64);
    let drafts = number("nextn_predict_layers").filter(|&n| n > 0)?;
    number("block_count")?.checked_sub(drafts)
}

/// Returns true for a tensor of one of the model's own blocks.
pub(super) fn is_of_model(metadata: &Metadata, meta: &TensorMeta) -> bool {
    block_number(&meta.name, BLOCKS).zip(own_blocks(metadata)).is_some_and(|(block, own)| block < own)
}

/// Returns true for a file that has blocks of draft heads and none of the model.
pub fn are_alone(metadata: &Metadata, tensors: &[TensorMeta]) -> bool {
    let Some(own) = own_blocks(metadata) else { return false };
    let mut blocks = tensors.iter().filter_map(|meta| block_number(&meta.name, BLOCKS)).peekable();
    blocks.peek().is_some() && blocks.all(|block| block >= own)
}

/// Records that the file has only draft heads, why they are not run, and what judges them.
pub(super) fn leave_out(metadata: &Metadata, report: &mut Report) {
    const ALONE: &str = "draft heads are not run without their model";
    let arch = metadata.get("general.architecture").and_then(Value::as_str).unwrap_or_default();
    let what = format!("draft heads of a model of `{}`, without the model: they are not run", escape(arch));
    report.add(Finding::unchecked(Check::Graph, what));
    for aspect in [Aspect::Perplexity, Aspect::Divergence] {
        report.not_judged(aspect, ALONE, "the model with its draft heads in one file");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_core::{GgmlType, Shape};

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

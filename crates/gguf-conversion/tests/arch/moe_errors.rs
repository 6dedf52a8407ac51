//! Checkpoints whose experts do not fit their card: each error names tensors, entries, and a remedy.

use gguf_arch::Registry;
use serde_json::{Value as Json, json};

use crate::draft::{case, mapped};

const SHARDS: &str = "hint: check that all shards of the checkpoint are there";
const CONFIG: &str = "hint: check that config.json belongs to these weights";

/// Error for a checkpoint of `fixtures/cards` after a change.
fn refusal(registry: &Registry, path: &str, change: impl FnOnce(&mut Json)) -> String {
    let mut content = case(path);
    assert!(mapped(registry, &content).is_ok(), "{path}");
    change(&mut content);
    mapped(registry, &content).unwrap_err()
}

fn add(content: &mut Json, name: &str, dims: &[u64]) {
    content["tensors"].as_array_mut().unwrap().push(json!([name, "BF16", dims]));
}

fn remove(content: &mut Json, part: &str) {
    content["tensors"].as_array_mut().unwrap().retain(|row| !row[0].as_str().unwrap().contains(part));
}

/// Number of experts, shape and name of the first tensor of the expert matrix whose name contains `part`.
fn experts(path: &str, part: &str) -> (u64, Vec<u64>, String) {
    let content = case(path);
    let row = content["tensors"].as_array().unwrap().iter();
    let row = row.clone().find(|row| row[0].as_str().unwrap().contains(part)).unwrap();
    let n = ["num_experts", "num_local_experts"].iter().find_map(|key| content["config"][*key].as_u64());
    let dims = row[2].as_array().unwrap().iter().map(|dim| dim.as_u64().unwrap()).collect();
    (n.unwrap(), dims, row[0].as_str().unwrap().to_owned())
}

#[test]
fn experts_that_are_missing_or_too_many_are_named() {
    let registry = Registry::embedded().unwrap();
    for (path, first, target, marker) in [
        (
            "llama/mixtral",
            "model.layers.0.block_sparse_moe.experts.0.w1",
            "blk.0.ffn_gate_exps.weight",
            ".experts.0.",
        ),
        (
            "qwen3moe/plain",
            "model.layers.0.mlp.experts.0.down_proj",
            "blk.0.ffn_down_exps.weight",
            ".experts.0.",
        ),
    ] {
        let (n, dims, name) = experts(path, first);
        let nth = |n: u64| name.replace(marker, &format!(".experts.{n}."));
        let missing = refusal(&registry, path, |content| remove(content, &nth(1)));
        assert_eq!(
            missing,
            format!("`{target}`: {} of {n} parts present, `{}` is missing\n{SHARDS}", n - 1, nth(1))
        );
        let too_many = refusal(&registry, path, |content| add(content, &nth(n), &dims));
        assert_eq!(
            too_many,
            format!(
                "`{target}`: {} parts where the configuration declares {n}, `{}` is too many\n{CONFIG}",
                n + 1,
                nth(n)
            )
        );
        // A whole matrix of one block.
        let matrix = first.replace(".layers.0.", ".layers.1.").replace(marker, ".experts.");
        let (head, tail) = matrix.split_at(matrix.rfind("experts.").unwrap() + "experts.".len());
        let gone = refusal(&registry, path, |content| {
            let rows = content["tensors"].as_array_mut().unwrap();
            rows.retain(|row| {
                let name = row[0].as_str().unwrap();
                !(name.starts_with(head) && name.contains(&format!(".{tail}.")))
            });
        });
        // A card may know the matrix under a second name, which is also reported.
        let lacks = format!("the checkpoint lacks `{}`", name.replace(".layers.0.", ".layers.1."));
        assert!(gone.starts_with(&lacks) && gone.ends_with(SHARDS), "{gone}");
        let shape = refusal(&registry, path, |content| {
            let rows = content["tensors"].as_array_mut().unwrap();
            rows.iter_mut().find(|row| row[0] == json!(nth(1))).unwrap()[2] = json!([dims[0], dims[1] * 2]);
        });
        assert!(shape.starts_with(&format!("`{target}`: shape")) && shape.contains(&nth(1)), "{shape}");
    }
}

#[test]
fn extra_tensors_are_named_with_the_nearest_that_is_known() {
    let registry = Registry::embedded().unwrap();
    let found = refusal(&registry, "qwen3moe/plain", |content| {
        add(content, "model.layers.0.mlp.experts.0.dwn_proj.weight", &[4, 4]);
        add(content, "model.layers.0.mlp.shared_experts.up_proj.weight", &[4, 4]);
    });
    assert!(
        found.starts_with(
            "2 of the checkpoint's tensors are unknown to architecture `qwen3moe`: `model.layers.0.mlp.experts.0.dwn_proj.weight`, \
             `model.layers.0.mlp.shared_experts.up_proj.weight`\n\
             hint: `model.layers.0.mlp.experts.0.dwn_proj.weight` is nearest to \
             `model.layers.0.mlp.experts.0.down_proj.weight`\n"
        ),
        "{found}"
    );
    assert!(found.ends_with("with `--card FILE`; `gguf-convert draft` writes one"), "{found}");
    let found = refusal(&registry, "qwen3moe/plain", |content| {
        add(content, "model.layers.7.input_layernorm.weight", &[64]);
    });
    assert!(
        found.contains("block 7 of a model with 2\n") && found.contains("hint: set the number of layers"),
        "{found}"
    );
}

#[test]
fn names_of_two_entries_are_named_with_both() {
    let mut registry = Registry::embedded().unwrap();
    let card = "schema = 1\ngguf = \"qwen3moe\"\nextends = \"qwen3\"\nclasses = [\"Qwen3MoeForCausalLM\"]\n\
                examples = [\"a/b\"]\n[blocks]\n\
                \"mlp.gate\" = { to = \"ffn_gate_inp\", when = \"num_experts > 0\" }\n\
                \"mlp.experts.{eid}.down_proj\" = { to = \"ffn_down_exps\", stack = \"eid\", when = \"num_experts > 0\" }\n\
                \"mlp.experts.{xid}.down_proj\" = { to = \"ffn_x_exps\", stack = \"xid\", when = \"num_experts > 1\" }\n\
                \"mlp.experts.{eid}.gate_proj\" = { to = \"ffn_gate_exps\", stack = \"eid\" }\n\
                \"mlp.experts.{eid}.up_proj\" = { to = \"ffn_up_exps\", stack = \"eid\" }\n";
    registry.add("qwen3moe", card).unwrap();
    let found = mapped(&registry, &case("qwen3moe/plain")).unwrap_err();
    assert_eq!(
        found,
        "tensor `model.layers.0.mlp.experts.0.down_proj.weight`: matches `model.layers.{bid}.mlp.experts.{eid}.down_proj` \
         and `model.layers.{bid}.mlp.experts.{xid}.down_proj` of card `qwen3moe`\n\
         hint: take one of them out in a card of your own: `\"NAME\" = false`, with `--card FILE`"
    );
}

//! Output of `gguf-convert archs`, and its table in the documentation.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use gguf_foundry::arch::diffusion::DiffusionCards;
use gguf_foundry::arch::{
    CardFacts, CardKind, KeyDefault, Registry, all_facts, facts, text_parts, without_graph,
};
use gguf_foundry::engine::{Stage, stage};

use crate::support::{fixture, programs, root};

const TABLE: &str = "docs/architecture-table.md";
/// Set to write the table instead of comparing it.
const REWRITE: &str = "GGUF_FOUNDRY_REWRITE";

const HEAD: &str = "\
# Supported architectures

Made from the cards in `converters/` by `GGUF_FOUNDRY_REWRITE=1 cargo test --test it archs::the_table`; without the
variable the test compares them. `gguf-convert archs NAME` prints more. Unless the last column limits it, `gguf-verify` runs
an architecture, and `gguf2hf` converts its files back:

- *not back*: an operation has no inverse.
- *not run*: `gguf-verify` checks structure, weights and tokenizer only.

| architecture | classes | limits |
|---|---|---|
";

const FIGURES: &str = "
## Classes that only transformers has

Largest difference of the logits of tiny random models to those of transformers 5.24 (`lab/peers/new_classes.py`). Where llama.cpp's
is larger, it looks up GELU in half precision.

| class | architecture | llama.cpp 0.5.0 | gguf-verify |
|---|---|---|---|
";

const TEXT_PARTS: &str = "
## Models of several parts

Their text part is a model of its own `text_config.model_type`, or of this type if it names none, and converted as one.

| class | type |
|---|---|
";

const WITHOUT: &str = "
## Without a graph

Classes of transformers 5.24 that llama.cpp 0.5.0 could not run, and the one thing that it lacks.
| class | missing |
|---|---|
";

const TOWERS: &str = "
## Towers

Vision and audio towers, which `gguf-convert hf2gguf DIR --mmproj` writes to a file of the architecture `clip`: the cards in
`converters/mmproj/`. They are not run.

| card | classes |
|---|---|
";

const DIFFUSION: &str = "
## Image and video models

Recognized by the names of their tensors ([inputs.md](inputs.md#image-and-video-models)): the cards in
`converters/diffusion/`. They are not run.

| architecture | examples |
|---|---|
";

fn table() -> String {
    let registry = Registry::embedded().unwrap();
    let mut rows: BTreeMap<String, (Vec<String>, bool)> = BTreeMap::new();
    for card in all_facts(&registry) {
        let row = rows.entry(card.head.gguf).or_insert((Vec::new(), true));
        row.0.extend(card.head.classes.iter().map(|class| format!("`{class}`")));
        // Files go back by the card itself.
        row.1 &= card.head.variant.is_some() || card.one_way.is_empty();
    }
    let mut text = HEAD.to_owned();
    for (arch, (mut classes, back)) in rows {
        classes.sort();
        classes.dedup();
        let run = if matches!(stage(&arch), Stage::Runs) { "" } else { "not run" };
        let limits = [if back { "" } else { "not back" }, run].into_iter().filter(|limit| !limit.is_empty());
        let limits = limits.collect::<Vec<_>>().join(", ");
        writeln!(text, "| `{arch}` | {} | {limits} |", classes.join(", ")).unwrap();
    }
    let figures = fs_err::read_to_string(fixture("class_figures.tsv")).unwrap();
    let figure = |line: &str| {
        let cells: Vec<&str> = line.split('\t').collect();
        format!("| `{}` | `{}` | {} | {} |\n", cells[0], cells[1], cells[2], cells[3])
    };
    let parts = text_parts().map(|(class, of)| format!("| `{class}` | `{of}` |\n"));
    let without = without_graph().map(|(class, lacks)| format!("| `{class}` | {lacks} |\n"));
    for (head, rows) in [
        (FIGURES, figures.lines().map(figure).collect::<Vec<_>>()),
        (TEXT_PARTS, parts.collect()),
        (WITHOUT, without.collect()),
    ] {
        text.push_str(head);
        text.push_str(&rows.concat());
    }
    text.push_str(TOWERS);
    for CardFacts { head, .. } in all_facts(&Registry::embedded_of(CardKind::Mmproj).unwrap()) {
        let mut classes: Vec<String> = head.classes.iter().map(|class| format!("`{class}`")).collect();
        classes.sort();
        writeln!(text, "| `{}` | {} |", head.name, classes.join(", ")).unwrap();
    }
    text.push_str(DIFFUSION);
    for card in DiffusionCards::embedded().unwrap().iter() {
        writeln!(text, "| `{}` | {} |", card.gguf, card.examples.join(", ")).unwrap();
    }
    text
}

#[test]
fn the_table_of_the_documentation_is_that_of_the_cards() {
    let (path, wanted) = (root().join(TABLE), table());
    if std::env::var_os(REWRITE).is_some() {
        fs_err::write(&path, &wanted).unwrap();
    }
    let found = fs_err::read_to_string(&path).unwrap();
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let [missing, extra] = [(&wanted, &found), (&found, &wanted)].map(|(these, those)| {
        let those = lines(those);
        lines(these).into_iter().filter(|line| !those.contains(line)).collect::<Vec<_>>().join("\n")
    });
    assert!(
        found == wanted,
        "write {TABLE} anew: {REWRITE}=1 cargo test --test it archs::the_table\nmissing:\n{missing}\nto go:\n{extra}"
    );
}

#[test]
fn facts_say_what_a_card_reads_and_writes() {
    let registry = Registry::embedded().unwrap();
    for CardFacts { head, contents, .. } in all_facts(&registry) {
        assert!(
            !contents.tensors.is_empty() && !contents.keys.is_empty() && !contents.config.is_empty(),
            "{}",
            head.name
        );
        assert!(contents.tensors.iter().all(|tensor| !tensor.sources.is_empty()), "{}", head.name);
        assert!(registry.by_gguf(&head.family).is_some(), "{}: {}", head.name, head.family);
    }
    let one = |name: &str| {
        let mut found = facts(&registry, name);
        assert!(!found.is_empty(), "{name}");
        found.remove(0).head
    };
    let CardFacts { head, contents: llama, one_way } = facts(&registry, "llama").remove(0);
    let q = llama.tensors.iter().find(|tensor| tensor.targets == ["blk.{bid}.attn_q"]).unwrap();
    assert_eq!(q.sources, ["model.layers.{bid}.self_attn.q_proj"]);
    assert_eq!(q.ops, ["permute_rope"]);
    let w1 = llama.tensors.iter().find(|tensor| tensor.targets == ["blk.{bid}.ffn_gate_exps"]).unwrap();
    assert_eq!(w1.joined, Some("stacked"));
    let vocab = llama.config.iter().find(|row| row.key == "vocab_size").unwrap();
    let default = KeyDefault { model_type: "llama".to_owned(), value: "32000".to_owned() };
    assert!(vocab.defaults.contains(&default), "{vocab:?}");
    assert!(llama.keys.contains(&"llama.rope.freq_base".to_owned()), "{:?}", llama.keys);
    assert!(llama.annotations.contains(&"gguf_foundry.attention.sliding_window".to_owned()));
    assert!(head.tokenizer.contains(&"llama_hf".to_owned()) && one_way.is_empty());

    assert_eq!(one("llama/internlm3").classes, ["InternLM3ForCausalLM"]);
    assert_eq!(one("Qwen3ForCausalLM").gguf, "qwen3");
    assert_eq!(
        (one("smollm3").family.as_str(), one("SmolLM3ForCausalLM").parents),
        ("llama", vec!["llama".to_owned(), "decoder".to_owned()])
    );
    let draft = one("eagle3");
    assert!(draft.options.contains(&"--target-model-dir".to_owned()), "{:?}", draft.options);
    assert!(!draft.options.contains(&"--mistral-format".to_owned()), "{:?}", draft.options);
    let in_own_format = one("MistralModel");
    assert!(in_own_format.options.contains(&"--mistral-format".to_owned()), "{:?}", in_own_format.options);
    for CardFacts { head, .. } in all_facts(&registry) {
        let modes: std::collections::BTreeSet<&String> = head.tokenizer.iter().collect();
        assert_eq!(modes.len(), head.tokenizer.len(), "{}: {:?}", head.name, head.tokenizer);
    }
    assert!(facts(&registry, "no-such").is_empty());
    // Of a model of several parts, the card of its text part.
    assert_eq!(one("AyaVisionForConditionalGeneration").gguf, "cohere2");
}

#[test]
fn cards_without_a_way_back_say_why() {
    let mut registry = Registry::embedded().unwrap();
    let card = "schema = 1\ngguf = \"llama\"\nextends = \"decoder\"\nclasses = [\"C\"]\nexamples = [\"a/b\"]\n\
                [blocks]\n\"x\" = { to = \"xx\", ops = [\"flatten\"] }";
    registry.add("own", card).unwrap();
    let found = facts(&registry, "C");
    assert_eq!(found[0].one_way, ["`model.layers.{bid}.x`: `flatten` cannot be undone"]);
}

#[test]
fn the_program_lists_and_shows_cards() {
    let run = |code: i32, args: &[&str]| {
        let ended = programs::run("gguf-convert", root(), args).exits_with(code);
        (ended.out, ended.err)
    };
    let (list, _) = run(0, &["archs"]);
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(list.lines().next().unwrap()), ["family", "architecture", "class"]);
    assert!(list.lines().any(|line| words(line) == ["llama", "smollm3", "SmolLM3ForCausalLM"]), "{list}");
    let (card, _) = run(0, &["archs", "smollm3"]);
    for part in [
        "  family      llama\n",
        "  extends     llama, decoder\n",
        "  classes     SmolLM3ForCausalLM\n",
        "    model.layers.{bid}.self_attn.q_proj -> blk.{bid}.attn_q",
        "    smollm3.block_count\n",
        "  to HF       gguf2hf\n",
    ] {
        assert!(card.contains(part), "{part}: {card}");
    }
    assert!(
        list.lines().any(|line| words(line) == ["idefics3", "clip", "SmolVLMForConditionalGeneration"]),
        "{list}"
    );
    let (tower, _) = run(0, &["archs", "idefics3"]);
    for part in [
        "  extends     tower\n",
        "  tokenizer   none\n",
        "towers are not run\n",
        "    model.connector.modality_projection.proj -> mm.model.fc\n",
        "    clip.vision.image_size\n",
    ] {
        assert!(tower.contains(part), "{part}: {tower}");
    }
    let (_, err) = run(2, &["archs", "SmolLM3ForCasualLM"]);
    assert!(
        err.contains(
            "no architecture and no class is named `SmolLM3ForCasualLM`: did you mean `SmolLM3ForCausalLM`?"
        ),
        "{err}"
    );
}

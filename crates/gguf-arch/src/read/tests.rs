//! Tests that every key of a card changes the result of a conversion, or is refused when the card is loaded.

use std::fmt::Write as _;

use serde_json::{Value as Json, json};

use super::defaults::DEFAULT_KEYS;
use super::entries::{ENTRY_KEYS, TARGET_KEYS};
use super::generate::GENERATE_KEYS;
use super::tokenizer::{MODE_KEYS, TOKENIZER_KEYS};
use super::{CARD_KEYS, IGNORE_KEYS, NAMES_KEYS};
use crate::{Inputs, Registry, ResolveOptions, invert, resolve};
use gguf_core::{ElementType, Hint, Shape, WeightMeta};
use gguf_format::Metadata;
use gguf_testkit::memory::MemoryWeights;

/// Card by lines, so that a test can replace single lines.
const BASE: &str = r#"
schema = 1
gguf = "llama"
classes = ["C"]
examples = ["a/b"]
tensors."embed" = "token_embd"
blocks."q" = "attn_q"
blocks."k" = "attn_k"
blocks."e.{eid}" = { to = "ffn_up_exps", stack = "eid" }
ignore."model.layers.{bid}.o.weight" = "in one block only"
ignore."tied.weight" = "the same as embed"
"#;

const PARENT: &str =
    "schema = 1\ngguf = \"parent\"\nabstract = true\nmetadata = [[\"vocab_size\", \"vocab_size\"]]";

fn config() -> Json {
    json!({
        "architectures": ["C"], "model_type": "c", "hidden_size": 8, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 16, "max_position_embeddings": 32,
        "rms_norm_eps": null, "clip_qkv": "auto", "rope_theta": 10000.0, "rope_scaling": {"rope_type": "llama3"},
    })
}

fn weights() -> Vec<WeightMeta> {
    let mut weights = Vec::new();
    let mut add = |name: &str, dims: &[u64]| {
        let (name, shape) = (format!("{name}.weight"), Shape::new(dims.to_vec()).unwrap());
        weights.push(WeightMeta { name, shape, ty: ElementType::Bf16 });
    };
    add("embed", &[16, 8]);
    add("tied", &[16, 8]);
    add("vision_tower.x", &[2, 2]);
    for block in 0..2 {
        for (name, n_rows) in [("q", 8), ("k", 8), ("e.0", 4), ("e.1", 4)] {
            add(&format!("model.layers.{block}.{name}"), &[n_rows, 8]);
        }
    }
    add("model.layers.0.o", &[8, 8]);
    weights
}

/// Returns the base with some of its lines replaced, removed (`key =`), or added.
fn card(lines: &str) -> String {
    let key = |line: &str| line.split_once(" =").map_or(line, |parts| parts.0).to_owned();
    let mut card: Vec<String> = BASE.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let at = card.iter().position(|own| key(own) == key(line));
        match (at, line.ends_with('=')) {
            (Some(at), true) => drop(card.remove(at)),
            (Some(at), false) => line.clone_into(&mut card[at]),
            (None, _) => card.push(line.to_owned()),
        }
    }
    card.join("\n")
}

/// Returns all decisions of a card, or the reason why it is refused.
fn outcome(lines: &str) -> Result<String, String> {
    let text = card(lines);
    let registry = Registry::from_texts([("parent", PARENT), ("llama", text.as_str())]).map_err(|error| {
        error.hints().iter().fold(error.to_string(), |all, hint| all + &format!(" ({hint})"))
    })?;
    let (config, weights) = (config(), weights());
    let mut content = MemoryWeights::default();
    for weight in &weights {
        let is_one = u8::from(weight.name.starts_with("model.layers."));
        let n_bytes = 2 * weight.shape.n_elems() as usize;
        content.add(&weight.name, weight.shape.dims(), weight.ty, vec![is_one; n_bytes]);
    }
    let inputs =
        Inputs { values: Some(&content), ..Inputs::of_headers(config.as_object().unwrap(), &weights) };
    let mut shown = format!("{:?}", registry.classes());
    match resolve(&registry, &inputs, &ResolveOptions { annotate: true, ..ResolveOptions::default() }) {
        Ok(mapping) => {
            let _ = write!(
                shown,
                "{:?}{:?}{:?}{:?}{:?}{:?}{:?}{:?}{:?}",
                mapping.outputs,
                mapping.dropped,
                mapping.early.iter().collect::<Vec<_>>(),
                mapping.metadata.iter().collect::<Vec<_>>(),
                mapping.annotations.iter().collect::<Vec<_>>(),
                mapping.tokenizer,
                mapping.card.companions,
                mapping.card.graph,
                (&mapping.card.fuse, mapping.card.mtp_export, &mapping.card.mtp_keep),
            );
        }
        Err(error) => shown.push_str(&error.to_string()),
    }
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "llama");
    let back = invert(&registry, &metadata, &[], None, None).map(|inverse| inverse.config);
    let _ = write!(shown, "{back:?}");
    Ok(shown)
}

/// Keys by their place: the key, a card without it, and the same card with it.
type KeyCases = &'static [(&'static str, &'static str, &'static str)];

const GATING: &str = "metadata = [[\"expert_gating_func\", \"lookup(t, 'a')\"]]\ntables.t = { a = 1 }";
const CLAMP: &str = "metadata = [[\"attention.clamp_kqv\", \"clip_qkv\", \"clip_qkv != 'auto'\"]]\ndefaults.c.clip_qkv = { value = 2.0 }";
const TWO_PARTS: &str = "blocks.\"e.{eid}\" =\nignore.\"model.layers.{bid}.e.{eid}.weight\" = \"x\"\nblocks.\"q\" = { to = \"attn_q\" }";
const FREQS: &str = "generate = [{ kind = \"rope_freqs_llama3\", to = \"a.weight\", dim = \"4\" }]";

const PROPORTIONAL: &str =
    "generate = [{ kind = \"rope_freqs_proportional\", to = \"a.weight\", dim = 8, fraction = 0.5 }]";
const FILL: &str = "generate = [{ kind = \"fill\", to = \"a.weight\", shape = [2], value = 1 }]";

const CARD: KeyCases = &[
    ("schema", "", "schema = 2"),
    ("gguf", "", "gguf = \"qwen2\""),
    ("extends", "", "extends = \"parent\""),
    ("abstract", "", "abstract = true"),
    ("kind", "", "kind = \"mmproj\""),
    ("parts", "", "parts = [\"model.\"]"),
    ("assumes", "", "assumes.hidden_act = \"silu gelu\""),
    ("biases", "", "biases = [\"output\"]"),
    ("required", "", "required.\"output.bias\" = true"),
    ("audio_blocks", "", "audio_blocks.\"x\" = \"y\""),
    ("annotate", "", "annotate = [[\"attention.sliding_window\", \"1\"]]"),
    ("classes", "", "classes = [\"C\", \"D\"]"),
    ("companions", "", "companions = [\"attn_q\"]"),
    ("examples", "", "examples = []"),
    ("fuse", "", "fuse = [\"qkv\"]"),
    ("mtp_export", "", "mtp_export = true"),
    ("mtp_keep", "mtp_export = true", "mtp_export = true\nmtp_keep = [\"a\"]"),
    ("when", "", "when = \"false\""),
    ("raw_config", "defaults.c.head_dim = 4", "defaults.c.head_dim = 4\nraw_config = true"),
    ("multimodal", "", "multimodal = \"keep\""),
    ("require", "", "require = [[\"false\", \"no\"]]"),
    ("set", "", "set = [[\"vocab_size\", \"3\"]]"),
    ("drop_config", "", "drop_config = [\"vocab_size\"]"),
    ("metadata_set", "", "metadata_set = [[\"num_key_value_heads\", \"2\"]]"),
    ("metadata_drop", "", "metadata_drop = [\"num_key_value_heads\"]"),
    ("early", "", "early = [[\"vocab_size\", \"1\"]]"),
    ("metadata", "", "metadata = []"),
    ("config_keys", "", "config_keys = [\"own_size\"]\nmetadata = [[\"vocab_size\", \"own_size? ?? 3\"]]"),
    ("let", "", "let.block_limit = \"1\""),
    ("tables", GATING, "metadata = [[\"expert_gating_func\", \"lookup(t, 'a')\"]]\ntables.t = { a = 2 }"),
    ("defaults", "", "defaults.c.head_dim = 4"),
    ("model_types", "", "model_types = [\"llamma\"]"),
    ("aliases", "", "aliases.c.vocab_size = \"head_dim\""),
    ("names", "", "names.block = \"h.{bid}.\""),
    ("tensors", "", "tensors.\"embed\" = \"output\""),
    ("blocks", "", "blocks.\"q\" = \"attn_v\""),
    ("ignore", "", "ignore.\"tied.weight\" ="),
    ("outputs", "", "outputs = [\"output.weight\"]"),
    ("generate", "", FREQS),
    ("tokenizer", "", "tokenizer.try = [\"spm\"]"),
    ("variant", "", "variant.v.classes = [\"V\"]"),
    ("inverse", "", "inverse.bos_token_id = \"7\""),
    ("inverse", "", "inverse.\"a.b\" = \"7\""),
    ("inverse", "inverse.\"a.b\" = \"7\"", "inverse.\"a.b\" = { value = \"null\", null = true }"),
    ("graph", "", "graph.norm = \"rms\""),
];

const NAMES: KeyCases = &[
    ("rewrite", "", "names.rewrite = [[\"strip\", \"model.\"]]"),
    ("block", "", "names.block = \"h.{bid}.\""),
    ("audio_block", "", "names.audio_block = \"h.{bid}.\""),
];

const ENTRY: KeyCases = &[
    ("to", "", "blocks.\"q\" = { to = \"attn_v\" }"),
    (
        "clamped",
        "blocks.\"q\" =\nblocks.\"q.weight\" = { to = \"attn_q.weight\" }",
        "blocks.\"q\" =\nblocks.\"q.weight\" = { to = \"attn_q.weight\", clamped = true }",
    ),
    ("alias", "blocks.\"q\" =", "blocks.\"q\" =\nblocks.\"z\" = { to = \"attn_q\", alias = [\"q\"] }"),
    ("ops", "", "blocks.\"q\" = { to = \"attn_q\", ops = [{ add = 1 }] }"),
    ("pre", "", "blocks.\"e.{eid}\" = { to = \"ffn_up_exps\", stack = \"eid\", pre = [{ add = 1 }] }"),
    ("stack", "blocks.\"e.{eid}\" = \"ffn_up_exps.{eid}\"", ""),
    ("concat", "", "blocks.\"e.{eid}\" = { to = \"ffn_up_exps\", concat = \"eid\" }"),
    ("n", "", "blocks.\"e.{eid}\" = { to = \"ffn_up_exps\", stack = \"eid\", n = 3 }"),
    ("n", "", "blocks.\"q\" = { to = \"attn_q\", n = 3 }"),
    (
        "with",
        TWO_PARTS,
        "blocks.\"e.{eid}\" =\nignore.\"model.layers.{bid}.e.{eid}.weight\" = \"x\"\nblocks.\"k\" =\nblocks.\"q\" = { to = \"attn_q\", with = [\"k\"], join = \"concat\" }",
    ),
    (
        "join",
        "blocks.\"k\" =\nblocks.\"q\" = { to = \"attn_q\", with = [\"k\"], join = \"concat\" }",
        "blocks.\"k\" =\nblocks.\"q\" = { to = \"attn_q\", with = [\"k\"], join = \"stack\" }",
    ),
    (
        "group",
        "",
        "blocks.\"q\" = { to = \"attn_q\", group = \"g\" }\nblocks.\"e.{eid}\" = { to = \"ffn_up_exps\", stack = \"eid\", group = \"g\" }",
    ),
    ("also", "", "blocks.\"q\" = { to = \"attn_q\", also = [\"attn_v\"] }"),
    ("also", "", "blocks.\"q\" = { to = \"attn_q\", also = [\"attn_v.bias\"] }"),
    ("ending", "", "blocks.\"q\" = { to = \"attn_q\", ending = \"\" }"),
    ("repeat", "", "blocks.\"q\" = { to = \"attn_q\", bid = \"bid * 5\", repeat = 2 }"),
    ("bid", "", "blocks.\"q\" = { to = \"attn_q\", bid = \"bid + 2\" }"),
    ("when", "", "blocks.\"q\" = { to = \"attn_q\", when = \"bid == 0\" }"),
    (
        "optional",
        "ignore.\"model.layers.{bid}.o.weight\" =\nblocks.\"o\" = { to = \"attn_output\" }",
        "ignore.\"model.layers.{bid}.o.weight\" =\nblocks.\"o\" = { to = \"attn_output\", optional = true }",
    ),
    ("type", "", "blocks.\"q\" = { to = \"attn_q\", type = \"f32\" }"),
    ("phase", "", "blocks.\"q\" = { to = \"attn_q\", phase = \"last\" }"),
    (
        "duplicates",
        "ignore.\"tied.weight\" =\ntensors.\"embed\" = { to = \"token_embd\", alias = [\"tied\"] }",
        "ignore.\"tied.weight\" =\ntensors.\"embed\" = { to = \"token_embd\", alias = [\"tied\"], duplicates = \"drop\" }",
    ),
    ("untyped_bid", "", "blocks.\"q\" = { to = \"attn_q\", untyped_bid = true }"),
];

const TARGET: KeyCases = &[
    ("to", "", "blocks.\"q\" = { to = [{ to = \"attn_v\" }] }"),
    ("ops", "", "blocks.\"q\" = { to = [{ to = \"attn_q\", ops = [{ add = 1 }] }] }"),
];

const DEFAULTS: KeyCases = &[
    ("value", "", "defaults.c.head_dim = { value = 4 }"),
    ("expr", "", "defaults.c.head_dim = { expr = \"hidden_size\" }"),
    (
        "null",
        "defaults.c.rms_norm_eps = { value = 1.0 }",
        "defaults.c.rms_norm_eps = { value = 1.0, null = \"2.0\" }",
    ),
    (
        "auto",
        CLAMP,
        "metadata = [[\"attention.clamp_kqv\", \"clip_qkv\", \"clip_qkv != 'auto'\"]]\ndefaults.c.clip_qkv = { value = 2.0, auto = true }",
    ),
];

const IGNORE: KeyCases = &[
    ("why", "", "ignore.\"tied.weight\" = { why = \"other words\" }"),
    ("when", "", "ignore.\"tied.weight\" = { why = \"the same as embed\", when = \"false\" }"),
    (
        "require_zero",
        "",
        "ignore.\"model.layers.{bid}.o.weight\" = { why = \"in one block only\", require_zero = true }",
    ),
    (
        "drop_if_equal",
        "",
        "ignore.\"tied.weight\" = { why = \"the same as embed\", drop_if_equal = \"embed.weight\" }",
    ),
    (
        "drop_if_equal",
        "",
        "ignore.\"tied.weight\" = { why = \"the same as embed\", drop_if_equal = \"model.layers.0.o.weight\" }",
    ),
];

const GENERATE: KeyCases = &[
    ("kind", FREQS, "generate = [{ kind = \"fill\", to = \"a.weight\", dim = \"4\" }]"),
    ("to", FREQS, "generate = [{ kind = \"rope_freqs_llama3\", to = \"b.weight\", dim = \"4\" }]"),
    ("to", FREQS, "generate = [{ kind = \"rope_freqs_llama3\", to = \"b.{bid}.weight\", dim = \"4\" }]"),
    (
        "when",
        FREQS,
        "generate = [{ kind = \"rope_freqs_llama3\", to = \"a.weight\", dim = \"4\", when = \"false\" }]",
    ),
    ("dim", FREQS, "generate = [{ kind = \"rope_freqs_llama3\", to = \"a.weight\", dim = \"8\" }]"),
    (
        "factor",
        FREQS,
        "generate = [{ kind = \"rope_freqs_llama3\", to = \"a.weight\", dim = \"4\", factor = 2 }]",
    ),
    (
        "theta",
        FREQS,
        "generate = [{ kind = \"rope_freqs_llama3\", to = \"a.weight\", dim = \"4\", theta = 2 }]",
    ),
    ("low", FREQS, "generate = [{ kind = \"rope_freqs_llama3\", to = \"a.weight\", dim = \"4\", low = 2 }]"),
    (
        "high",
        FREQS,
        "generate = [{ kind = \"rope_freqs_llama3\", to = \"a.weight\", dim = \"4\", high = 2 }]",
    ),
    ("ctx", FREQS, "generate = [{ kind = \"rope_freqs_llama3\", to = \"a.weight\", dim = \"4\", ctx = 2 }]"),
    (
        "pad_to",
        FREQS,
        "generate = [{ kind = \"rope_freqs_llama3\", to = \"a.weight\", dim = \"4\", pad_to = 16 }]",
    ),
    (
        "fraction",
        PROPORTIONAL,
        "generate = [{ kind = \"rope_freqs_proportional\", to = \"a.weight\", dim = 8, fraction = 1 }]",
    ),
    (
        "dim",
        PROPORTIONAL,
        "generate = [{ kind = \"rope_freqs_proportional\", to = \"a.weight\", dim = 4, fraction = 0.5 }]",
    ),
    (
        "values",
        "generate = [{ kind = \"rope_factors\", to = \"a.weight\", values = \"[1, 2]\" }]",
        "generate = [{ kind = \"rope_factors\", to = \"a.weight\", values = \"[1, 3]\" }]",
    ),
    ("shape", FILL, "generate = [{ kind = \"fill\", to = \"a.weight\", shape = [3], value = 1 }]"),
    ("value", FILL, "generate = [{ kind = \"fill\", to = \"a.weight\", shape = [2], value = 2 }]"),
    (
        "before",
        FILL,
        "generate = [{ kind = \"fill\", to = \"a.weight\", shape = [2], value = 1, before = \"model.layers.0.q.weight\" }]",
    ),
    (
        "before",
        FILL,
        "generate = [{ kind = \"fill\", to = \"blk.{bid}.a.weight\", shape = [2], value = 1, before = \"model.layers.{bid}.q.weight\" }]",
    ),
    ("before", FILL, "generate = [{ kind = \"fill\", to = \"blk.{bid}.a.weight\", shape = [2], value = 1 }]"),
];

const TOKENIZER: KeyCases = &[
    ("try", "", "tokenizer.try = [\"spm\"]"),
    ("size", "", "tokenizer.size = \"vocab_size + 1\""),
    ("pad_multiple", "", "tokenizer.pad_multiple = 64"),
    ("token_type_count", "", "tokenizer.token_type_count = 2"),
    ("special", "tokenizer.try = [\"spm\"]", "tokenizer.try = [\"spm\"]\ntokenizer.special.eos = 2"),
    ("force", "", "tokenizer.force.eos = \"</s>\""),
    ("last", "", "tokenizer.last.eos = \"</s>\""),
    ("from", "", "tokenizer.from = \"targett\""),
    ("types", "", "tokenizer.types = [\"bos\"]"),
    ("types", "", "tokenizer.types = [\"boss\"]"),
    ("control", "", "tokenizer.control = [\"a\"]"),
    ("user_defined", "", "tokenizer.user_defined = [\"a\"]"),
    (
        "specials_list",
        "tokenizer.try = [\"tiktoken\"]\ntokenizer.specials_list = \"qwen\"",
        "tokenizer.try = [\"tiktoken\"]\ntokenizer.specials_list = \"glm4\"",
    ),
    ("template", "", "tokenizer.template = \"none\""),
    ("before", "", "tokenizer.before = [[\"tokenizer.ggml.add_space_prefix\", \"true\"]]"),
    ("after", "", "tokenizer.after = [[\"tokenizer.ggml.add_space_prefix\", \"true\"]]"),
];

const MODE: KeyCases = &[
    ("mode", "", "tokenizer.try = [{ mode = \"spm\" }]"),
    ("when", "tokenizer.try = [\"spm\"]", "tokenizer.try = [{ mode = \"spm\", when = \"false\" }]"),
    ("files", "tokenizer.try = [\"spm\"]", "tokenizer.try = [{ mode = \"spm\", files = [\"a.model\"] }]"),
    ("special", "tokenizer.try = [\"spm\"]", "tokenizer.try = [{ mode = \"spm\", special = { eos = 2 } }]"),
    (
        "specials_list",
        "tokenizer.try = [\"bpe\"]",
        "tokenizer.try = [{ mode = \"bpe\", specials_list = \"qwen\" }]",
    ),
    (
        "after",
        "tokenizer.try = [\"spm\"]",
        "tokenizer.try = [{ mode = \"spm\", after = [[\"tokenizer.ggml.add_space_prefix\", \"true\"]] }]",
    ),
];

#[test]
fn every_key_is_acted_on_or_refused() {
    for (place, keys, rows) in [
        ("card", CARD_KEYS, CARD),
        ("names", NAMES_KEYS, NAMES),
        ("entry", ENTRY_KEYS, ENTRY),
        ("target", TARGET_KEYS, TARGET),
        ("defaults", DEFAULT_KEYS, DEFAULTS),
        ("ignore", IGNORE_KEYS, IGNORE),
        ("generate", GENERATE_KEYS, GENERATE),
        ("tokenizer", TOKENIZER_KEYS, TOKENIZER),
        ("mode", MODE_KEYS, MODE),
    ] {
        for key in keys {
            assert!(rows.iter().any(|row| row.0 == *key), "{place}: no test of `{key}`");
        }
        for (key, without, with) in rows {
            let without = outcome(without).unwrap_or_else(|error| panic!("{place} `{key}`: {error}"));
            assert_ne!(Ok(without), outcome(with), "{place}: `{key}` changes nothing");
        }
    }
}

#[test]
fn every_rewriting_step_is_acted_on() {
    let rewritten = |step: &str| outcome(&format!("names.rewrite = [{step}]"));
    let plain = outcome("").unwrap();
    for step in [
        "[\"strip\", \"model.\"]",
        "[\"head\", \"embed.\", \"x.\"]",
        "[\"tail\", \".weight\", \".w\"]",
        "[\"replace\", \"layers\", \"h\"]",
        "[\"prefix\", \"m.\"]",
        "[\"shift\", \"model.layers.\", \"model.layers.\", \"1\"]",
    ] {
        assert_ne!(rewritten(step), Ok(plain.clone()), "{step}");
        let never = step.replace(']', ", { when = \"false\" }]");
        assert_eq!(rewritten(&never), Ok(plain.clone()), "{never}");
    }
}

#[test]
fn what_is_not_built_is_refused_by_name() {
    let list = "leave it out: a card of this version cannot say it";
    for (lines, want) in [
        (
            "blocks.\"q\" = { to = \"attn_q\", ops = [\"replace_row\"] }",
            format!("[blocks] `q` `ops`: operation `replace_row` is not supported yet ({list})"),
        ),
        (
            "generate = [{ kind = \"file\", to = \"a\" }]",
            format!("`generate`: kind `file` is not supported yet ({list})"),
        ),
        (
            "tokenizer.template = \"rwkv-world\"",
            "[tokenizer]: template `rwkv-world` is not supported yet (`template` is `file` or `none`, and `--chat-template FILE` takes one from a file)".to_owned(),
        ),
    ] {
        assert_eq!(outcome(lines), Err(format!("card `llama`: {want}")), "{lines}");
    }
}

#[test]
fn what_would_have_no_effect_is_refused() {
    for (lines, want) in [
        ("abstract = true", "top level: `classes` has no effect here: an abstract card converts nothing"),
        (
            "abstract = true\nclasses =\nexamples =\nwhen = \"true\"",
            "top level: `when` has no effect here: an abstract card converts nothing",
        ),
        (
            "blocks.\"q\" = { to = \"attn_q\", n = 2 }",
            "`model.layers.{bid}.q`: `n` has no effect here: it counts parts that are joined",
        ),
        (
            "tensors.\"embed\" = { to = \"token_embd\", bid = 0 }",
            "`embed`: `bid` has no effect here: the target has no `{bid}`",
        ),
        (
            "tokenizer.try = [{ mode = \"bpe\", files = [\"a\"] }]",
            "[tokenizer] `try`: `files` has no effect here: modes that read one file under a fixed name take none",
        ),
        (
            "tokenizer.try = [{ mode = \"spm\", specials_list = \"qwen\" }]",
            "[tokenizer] `try`: `specials_list` has no effect here: only vocabularies of ranks have one",
        ),
        (
            "tokenizer.specials_list = \"qwen\"",
            "[tokenizer]: `specials_list` has no effect here: only vocabularies of ranks have one",
        ),
        ("tokenizer.try = [\"tiktoken\"]", "[tokenizer]: `specials_list` is missing"),
        (
            "tokenizer.try = [\"tiktoken\"]\ntokenizer.specials_list = \"qwe\"",
            "[tokenizer] `specials_list`: unknown list `qwe` (did you mean `qwen`?)",
        ),
        ("tokenizer.types = [\"boss\"]", "[tokenizer] `types`: unknown role `boss` (did you mean `bos`?)"),
        (
            "tokenizer.after = [[\"include\", \"base\"]]",
            "[tokenizer] `after`: expected [key, expression] or [key, expression, condition], found array",
        ),
        (
            "drop_config = [\"vocab_sise\"]",
            "`drop_config`: unknown name `vocab_sise` (did you mean `vocab_size`?)",
        ),
        ("outputs = [\"a.{eid}\"]", "`outputs`: `{eid}` has no value here, only `{bid}` has"),
        ("extends = 1", "`extends`: expected a text, found integer"),
    ] {
        assert_eq!(outcome(lines), Err(format!("card `llama`: {want}")), "{lines}");
    }
}

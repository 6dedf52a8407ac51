use crate::Result;
use std::collections::BTreeSet;

use super::*;
use gguf_core::Hint;

const PARENT: &str = r#"
    schema = 1
    gguf = "parent"
    abstract = true
    [tensors]
    "embed" = "token_embd"
    [blocks]
    "q" = "attn_q"
    "k" = "attn_k"
"#;

fn load(child: &str) -> Result<Registry> {
    Registry::from_texts([("parent", PARENT), ("child", child)])
}

fn child(rest: &str) -> String {
    format!(
        "schema = 1\ngguf = \"child\"\nextends = \"parent\"\nclasses = [\"C\"]\nexamples = [\"a/b\"]\n{rest}"
    )
}

fn message(rest: &str) -> String {
    let error = load(&child(rest)).unwrap_err();
    let hints = error.hints().iter().fold(String::new(), |all, hint| all + &format!(" ({hint})"));
    format!("{error}{hints}")
}

#[test]
fn a_child_replaces_adds_and_removes() {
    let registry = load(&child("[blocks]\n\"q\" = \"attn_q2\"\n\"k\" = false\n\"v\" = \"attn_v\"")).unwrap();
    let card = registry.by_gguf("child").unwrap();
    let entries: Vec<_> =
        card.entries.iter().map(|entry| (entry.name(), entry.targets[0].name.text())).collect();
    assert_eq!(
        entries,
        [
            ("embed", "token_embd"),
            ("model.layers.{bid}.q", "blk.{bid}.attn_q2"),
            ("model.layers.{bid}.v", "blk.{bid}.attn_v")
        ]
    );
    assert_eq!(registry.classes(), [ClassRow { class: "C", gguf: "child", variant: None }]);
}

#[test]
fn variants_are_cards() {
    let text = child("[variant.small]\nclasses = [\"S\"]\n[variant.small.tensors]\n\"x\" = \"output\"");
    let registry = load(&text).unwrap();
    let card = registry.cards().iter().find(|card| card.variant.is_some()).unwrap();
    assert_eq!((card.name().as_str(), card.entries.len()), ("child/small", 4));
    assert_eq!(card.classes, ["S"]);
}

#[test]
fn a_variant_has_its_cards_graph_unless_it_is_another_architecture() {
    let graph = "[graph]\nrope.pairs = \"half\"\n[variant.v]\nclasses = [\"V\"]\n";
    let has_graph = |rest: &str| {
        let registry = load(&child(&format!("{graph}{rest}"))).unwrap();
        registry.cards().iter().find(|card| card.variant.is_some()).unwrap().graph.is_some()
    };
    assert!(has_graph(""));
    assert!(!has_graph("gguf = \"other\""));
    assert!(has_graph("gguf = \"other\"\n[variant.v.graph]\nrope.pairs = \"interleaved\""));
}

#[test]
fn broken_cards_say_where() {
    for (rest, want) in [
        ("metadat = []", "card `child`: top level: unknown key `metadat` (did you mean `metadata`?)"),
        (
            "[blocks]\n\"z\" = { to = \"zz\", opz = [] }",
            "card `child`: [blocks] `z`: unknown key `opz` (did you mean `ops`?)",
        ),
        (
            "metadata = [[\"vocab_size\", \"vocab_sise\"]]",
            "card `child`: metadata `vocab_size`: unknown name `vocab_sise` (did you mean `vocab_size`?)",
        ),
        (
            "metadata = [[\"vocab_sise\", \"1\"]]",
            "card `child`: metadata: unknown GGUF key `vocab_sise` (did you mean `vocab_size`?)",
        ),
        (
            "annotate = [[\"attention.sliding_windo\", \"1\"]]",
            "card `child`: annotate: unknown GGUF key `attention.sliding_windo` (did you mean `attention.sliding_window`?)",
        ),
        (
            "annotate = [[\"attention.sliding_window\", \"sliding_windo\"]]",
            "card `child`: annotate `attention.sliding_window`: unknown name `sliding_windo` (did you mean `sliding_window`?)",
        ),
        (
            "metadata = [[\"attention.sliding_window\", \"1\"]]\nannotate = [[\"attention.sliding_window\", \"1\"]]",
            "card `child`: annotate: `attention.sliding_window` is a key that `metadata` writes",
        ),
        (
            "[inverse]\n\"a\" = { value = \"1\", null = true, tensor = true }",
            "card `child`: [inverse] `a`: `null` has no effect here: a tensor whose value is null is left out",
        ),
        (
            "[inverse]\n\"a.{eid}\" = { value = \"1\", tensor = true }",
            "card `child`: [inverse] `a.{eid}`: expected a tensor's name with no other placeholder than {bid}, found a.{eid}",
        ),
        (
            "[inverse]\n\"a[0].b\" = \"1\"",
            "card `child`: [inverse] `a[0].b`: expected a name with `[bid].` once, and no other brackets, found a[0].b",
        ),
        (
            "annotate = [[\"block_count\", \"1\"]]",
            "card `child`: annotate: `block_count` is a key that `metadata` writes",
        ),
        (
            "annotate = [[\"include\", \"base\"]]",
            "card `child`: top level `annotate`: expected [key, expression] or [key, expression, condition], found array",
        ),
        (
            "metadata = [[\"vocab_size\", \"1 +\"]]",
            "card `child`: top level `metadata`, row `vocab_size`: `1 +`: column 4: expected a value, found the end",
        ),
        (
            "[blocks]\n\"z\" = { to = \"zz\", ops = [\"negexp\"] }",
            "card `child`: [blocks] `z` `ops`: unknown operation `negexp` (did you mean `neg_exp`?)",
        ),
        (
            "[blocks]\n\"z\" = { to = \"zz\", ops = [{ split = { sizes = [\"1\", \"2\"] } }] }",
            "card `child`: `model.layers.{bid}.z`: the operations yield 2 tensors for 1 targets",
        ),
        (
            "[tensors]\n\"model.layers.0.q\" = \"x\"",
            "card `child`: `model.layers.0.q` and `model.layers.{bid}.q` match the same names, and not both have `when`",
        ),
        (
            "[tensors]\n\"x.{eid}\" = \"x\"",
            "card `child`: `x.{eid}`: `{eid}` is captured but neither stacked nor in the target",
        ),
        (
            "[tensors]\n\"x\" = \"x.{bid}\"",
            "card `child`: `x`: `{bid}` is in the target but not in the pattern",
        ),
        ("let = { a = \"b\", b = \"a\" }", "card `child`: [let]: the definition of `a` needs itself"),
        (
            "[let]\na = \"has('x.{n}.y')\"",
            "card `child`: [let] `a`: `x.{n}.y`: placeholders are `{bid}`, `{eid}` and `{xid}`",
        ),
        (
            "[blocks]\n\"z\" = [\"a\", { to = \"b\", when = \"true\" }]",
            "card `child`: `model.layers.{bid}.z` and `model.layers.{bid}.z` match the same names, and not both have `when`",
        ),
        (
            "[blocks]\n\"z\" = { to = [\"a\", \"b\"], ops = [{ unzip = { axis = 0, n = 3 } }] }",
            "card `child`: `model.layers.{bid}.z`: the operations yield 3 tensors for 2 targets",
        ),
        (
            "[blocks]\n\"z\" = { to = [\"a\", \"b\"], ops = [{ unzip = { n = 2 } }] }",
            "card `child`: [blocks] `z` `ops` `unzip`: `axis` is missing",
        ),
        ("schema = 1", "card `child`: line 6: duplicate key"),
        (
            "[ignore]\n\"embed\" = \"no\"",
            "card `child`: `embed` and `embed` match the same names, and not both have `when`",
        ),
    ] {
        assert_eq!(message(rest), want);
    }
    let orphan = Registry::from_texts([("a", "schema = 1\ngguf = \"a\"\nextends = \"b\"")]).unwrap_err();
    assert_eq!(orphan.to_string(), "card `a`: `extends`: no card is named `b`");
    let cycle = Registry::from_texts([("a", "schema = 1\ngguf = \"a\"\nextends = \"a\"")]).unwrap_err();
    assert_eq!(cycle.to_string(), "card `a`: `extends`: more than six generations");
    let stem = Registry::from_texts([("a", "schema = 1\ngguf = \"b\"")]).unwrap_err();
    assert_eq!(stem.to_string(), "card `a`: `gguf` is `b`, but the file is named `a`");
}

#[test]
fn a_card_declares_keys_for_itself_and_for_others() {
    let row = "metadata = [[\"vocab_size\", \"own_size\"]]";
    assert!(message(row).starts_with("card `child`: metadata `vocab_size`: unknown name `own_size`"));
    let declaring = child(&format!("config_keys = [\"own_size\"]\n{row}"));
    let mut registry = load(&declaring).unwrap();
    let other = declaring.replace("\"child\"", "\"other\"").replace("config_keys = [\"own_size\"]\n", "");
    registry.add("other", &other).unwrap();
    let misspelt = other.replace("\"own_size\"", "\"own_sise\"");
    let hints = registry.add("other", &misspelt).unwrap_err().hints();
    assert_eq!(hints, ["did you mean `own_size`?"]);
    let variant = "[variant.v]\nconfig_keys = [\"own_size\"]";
    assert_eq!(message(variant), "card `child/v`: [variant.v]: unknown key `config_keys`");
}

#[test]
fn a_class_has_one_card() {
    let other = child("").replace("\"child\"", "\"other\"");
    let error =
        Registry::from_texts([("parent", PARENT), ("child", &child("")), ("other", &other)]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "card `other`: class `C` is claimed by `child` too, and neither has `when`"
    );
    let mut registry = load(&child("")).unwrap();
    registry.add("other", &other).unwrap();
    assert_eq!(registry.classes()[0].gguf, "other", "a card from a file takes its classes");
}

#[test]
fn annotations_are_inherited_as_rows_are() {
    let parent =
        PARENT.replace("[tensors]", "annotate = [[\"rope.scaling.yarn_truncate\", \"true\"]]\n[tensors]");
    let keys = |rest: &str| {
        let registry = Registry::from_texts([("parent", parent.as_str()), ("child", &child(rest))]).unwrap();
        let rows = registry.by_gguf("child").unwrap().annotate.clone();
        rows.iter().map(|row| format!("{row:?}").matches("sliding").count()).collect::<Vec<_>>()
    };
    assert_eq!(keys(""), [0]);
    let own = "[\"attention.sliding_window\", \"1\"]";
    assert_eq!(keys(&format!("annotate = [[\"include\", \"parent\"], {own}]")), [0, 1]);
    assert_eq!(keys(&format!("annotate = [{own}]")), [1]);
    let alone = load(&child(&format!("annotate = [[\"include\", \"parent\"], {own}]"))).unwrap();
    assert_eq!(alone.by_gguf("child").unwrap().annotate.len(), 1, "a parent without annotations");
}

#[test]
fn a_card_is_refused_with_its_graph() {
    let text = |graph: &str| format!("schema = 1\ngguf = 'x'\nextends = 'llama'\n[graph]\n{graph}");
    for (graph, expected) in [
        ("nrom = 'rms'", "card `x`: [graph]: unknown field `nrom`"),
        ("norm = 'rmsx'", "card `x`: [graph]: unknown variant `rmsx`"),
        ("window.pattern = 'x'", "card `x`: [graph]: data did not match any variant"),
        (
            "attention.temperature = { growth = 1, length = 4 }",
            "card `x`: [graph]: `attention.temperature` has no effect",
        ),
        ("attn_cap = 50\nattention.cap = 30", "card `x`: [graph]: `attn_cap` has another place"),
    ] {
        let error = Registry::embedded().unwrap().add("x", &text(graph)).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn graph_keys_without_their_table_are_inherited_like_those_in_it() {
    let parent = PARENT.replace("[tensors]", "[graph]\nwindow.kind = 'sliding'\n[tensors]");
    let read = |graph: &str| {
        let own = child(&format!("[graph]\n{graph}"));
        let registry = Registry::from_texts([("parent", parent.as_str()), ("child", own.as_str())]).unwrap();
        registry.by_gguf("child").unwrap().graph.clone()
    };
    let expected = read("window.pattern = 4\nattention.cap = 50");
    assert_eq!(read("window_pattern = 4\nattn_cap = 50"), expected);
    assert!(expected.is_some());
}

#[test]
fn the_cards_of_an_architecture_are_read_without_the_others_as_with_them() {
    let cards = Registry::load(CardKind::Text, TEXT.iter().copied(), Checks::Passed).unwrap();
    for arch in cards.cards().iter().map(|card| card.gguf.as_str()).collect::<BTreeSet<_>>() {
        let of = |registry: &Registry| {
            let own = registry.cards().iter().filter(|card| card.gguf == arch);
            own.map(|card| format!("{card:?}")).collect::<BTreeSet<_>>()
        };
        let alone = Registry::load(CardKind::Text, rows_of(arch), Checks::Passed).unwrap();
        assert_eq!(of(&alone), of(&cards), "{arch}");
        assert!(alone.cards().len() < cards.cards().len());
    }
    assert!(rows_of("no such architecture").is_empty());
}

#[test]
fn every_embedded_table_is_found_by_its_architecture() {
    let cards = Registry::embedded().unwrap();
    let described = cards.cards().iter().filter(|card| card.graph.is_some() && !card.is_abstract);
    for card in described {
        assert!(GraphFeatures::of(&card.gguf).is_some(), "{}", card.gguf);
    }
    assert_eq!(GraphFeatures::of("no such architecture"), None);
}

#[test]
fn the_cards_of_a_class_are_found_without_the_others() {
    for kind in [CardKind::Text, CardKind::Mmproj] {
        let all = Registry::embedded_of(kind).unwrap();
        for ClassRow { class, .. } in all.classes() {
            let few = Registry::read_classes(kind, &[class.to_owned()]).unwrap();
            assert!(few.tables.len() < all.tables.len() / 4, "{class}: {} cards", few.tables.len());
            let claiming = |registry: &Registry| {
                let cards = registry.cards.iter().filter(|card| card.classes.iter().any(|own| own == class));
                cards.map(|card| format!("{card:?}")).collect::<Vec<_>>()
            };
            assert_eq!(claiming(&few), claiming(&all), "{class}");
        }
        let unknown = Registry::read_classes(kind, &["Nobodys".to_owned()]).unwrap();
        assert_eq!(unknown.cards.len(), all.cards.len());
        assert_eq!(Registry::read_classes(kind, &[]).unwrap().cards.len(), all.cards.len());
    }
}

use super::*;

fn scope(json: &str) -> Scope<'static> {
    Scope { config: serde_json::from_str(json).unwrap(), ..Scope::default() }
}

fn show(scope: &Scope<'_>, text: &str) -> String {
    let expr = Expr::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    match scope.eval(&expr, Captures { bid: Some(2), ..Captures::default() }) {
        Ok(Datum::List(items)) => {
            format!("{:?}", items.iter().map(ToString::to_string).collect::<Vec<_>>())
        }
        Ok(value) => value.to_string(),
        Err(error) => error.to_string(),
    }
}

/// Arithmetic is Python's, and paths tell absent from null.
#[test]
fn expressions_have_their_values() {
    let sections = include_str!("values.txt").split("\n== ").skip(1);
    let mut n_rows = 0;
    for section in sections {
        let (config, rows) = section.split_once('\n').unwrap();
        let scope = scope(config);
        for row in rows.lines() {
            let (text, want) = row.split_once(" => ").unwrap();
            assert_eq!(show(&scope, text), want, "{text}");
            n_rows += 1;
        }
    }
    assert!(n_rows > 50, "{n_rows} rows");
}

#[test]
fn definitions_are_lazy_and_acyclic() {
    let mut scope = scope(r#"{"heads": 8, "block_count": 3}"#);
    let text = [("heads", "heads * 2"), ("a", "b + 1"), ("b", "a + 1"), ("per", "layers(bid * heads)")];
    let lets: IndexMap<String, Expr> =
        text.iter().map(|(name, text)| ((*name).to_owned(), Expr::parse(text).unwrap())).collect();
    scope.lets = Some(&lets);
    assert_eq!(show(&scope, "heads"), "16", "inside its own definition a name is the configuration key");
    assert_eq!(show(&scope, "per[2]"), "32");
    assert_eq!(show(&scope, "a"), "`a` is not in the configuration");
}

#[test]
fn questions_about_the_checkpoint() {
    let mut scope = scope(r#"{"id2label": {"1": "b", "0": "a"}}"#);
    let files = vec!["tekken.json".to_owned()];
    scope.tensors = ["mtp.layers.0.x", "mtp.layers.11.y", "mtp.layersx", "lm_head.weight"].into();
    scope.files = &files;
    let gating: IndexMap<_, _> = [("sigmoid".to_owned(), 2)].into();
    let tables: IndexMap<_, _> = [("gating".to_owned(), gating)].into();
    scope.tables = Some(&tables);
    for (text, want) in [
        ("has('lm_head.weight')", "true"),
        ("has('mtp.layers.{bid}.x')", "false"),
        ("has('mtp.layers.{eid}.x')", "`mtp.layers.{eid}.x` is not in the configuration"),
        ("find(if(has('mtp.layers.{bid}.y'), bid, null), 20)", "11"),
        ("count('mtp.layers.')", "12"),
        ("count('none.')", "0"),
        ("file('tekken.json') and not file('tokenizer.json')", "true"),
        ("lookup(gating, 'sigmoid')", "2"),
        ("lookup(gating, null)", "null"),
        ("lookup(gating, 'x')", "'x' is none of the values that are known: 'sigmoid'"),
        ("labels(id2label)", r#"["'a'", "'b'"]"#),
        ("labels(2)", r#"["'LABEL_0'", "'LABEL_1'"]"#),
    ] {
        assert_eq!(show(&scope, text), want, "{text}");
    }
}

#[test]
fn lists_are_sorted_and_read_from_texts() {
    let mut scope =
        scope(r#"{"pairs": [[1, 0], [-2, 3], [1, -1]], "n": [3, 1, 2], "rate": "12/24", "mixed": [1, "a"]}"#);
    let lets: IndexMap<_, _> = [("rising".to_owned(), Expr::parse("sorted(pairs)").unwrap())].into();
    scope.lets = Some(&lets);
    for (text, want) in [
        ("layers(rising[bid][0] * 10 + rising[bid][1], 3)", r#"["-17", "9", "10"]"#),
        ("sorted(n)", r#"["1", "2", "3"]"#),
        ("sorted([])", "[]"),
        ("sorted(mixed)", "`sorted` does not take a text"),
        ("sorted(rate)", "`sorted` does not take a text"),
        ("ints(rate)", r#"["12", "24"]"#),
        ("ints('1, 2')", r#"["1", "2"]"#),
        ("ints('1/x')", "`ints` has no result for '1/x'"),
    ] {
        assert_eq!(show(&scope, text), want, "{text}");
    }
}

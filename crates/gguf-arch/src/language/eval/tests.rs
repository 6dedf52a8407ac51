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

#[test]
fn arithmetic_is_pythons() {
    let scope = scope("{}");
    for (text, want) in [
        ("7 // 2", "3"),
        ("-7 // 2", "-4"),
        ("-7 % 3", "2"),
        ("7 % -3", "-2"),
        ("-7.5 // 2", "-4.0"),
        ("-7.5 % 2", "0.5"),
        ("7 / 2", "3.5"),
        ("4 / 2", "2.0"),
        ("2 ** 10", "1024"),
        ("2 ** -1", "0.5"),
        ("-2 ** 2", "-4"),
        ("2 ** 3 ** 2", "512"),
        ("1 + 2 * 3", "7"),
        ("(1 + 2) * 3", "9"),
        ("int(0.3 * 10)", "3"),
        ("int(0.29 * 100)", "28"),
        ("int(-3.7)", "-3"),
        ("round(2.5)", "2"),
        ("floor(-2.5)", "-3"),
        ("ceil_div(7, 2)", "4"),
        ("round_up(7, 4)", "8"),
        ("min(3, 1.5, 2)", "1.5"),
        ("max(3, 1.5)", "3"),
        ("sqrt(16)", "4.0"),
        ("1 == 1.0", "true"),
        ("true == 1", "true"),
        ("'a' == 1", "false"),
        ("not 1 == 2", "true"),
        ("0 or 5", "5"),
        ("null ?? 0 or 5", "5"),
        ("1 and 0", "0"),
        ("1 // 0", "`//` has no result for 1 and 0"),
        ("1.0 / 0", "`/` has no result for 1.0 and 0"),
        ("2 ** 200", "`**` has no result for 2 and 200"),
        ("'a' + 1", "`+` does not take a text"),
        ("3 in [1, 2, 3]", "true"),
        ("2 <= 2 and 3 > 2.5", "true"),
        ("bid", "2"),
    ] {
        assert_eq!(show(&scope, text), want, "{text}");
    }
}

#[test]
fn paths_know_absent_from_null() {
    let scope = scope(r#"{"a": null, "b": {"c": [1, [2.5]], "s": "x"}, "n": 4, "list": [1, 1, 0]}"#);
    for (text, want) in [
        ("a", "null"),
        ("z", "`z` is not in the configuration"),
        ("z?", "null"),
        ("b.z", "`b.z` is not in the configuration"),
        ("b.z?", "null"),
        ("z.y?", "null"),
        ("b.c[1][0]", "2.5"),
        ("b.c[-1][0]", "2.5"),
        ("b.c[9]?", "null"),
        ("a? ?? 7", "7"),
        ("first(z, a, n)", "null"),
        ("first(z, n)", "4"),
        ("first(z, 5)", "5"),
        ("first(z, y)", "null"),
        ("len(list)", "3"),
        ("leading(list, 1)", "2"),
        ("layers(bid % 2 == 0, n)", r#"["true", "false", "true", "false"]"#),
        ("layers(bid, 10000000)", "the evaluation takes more than 1048576 steps"),
        ("find(if(bid > 1, bid * 10, null), n)", "20"),
        ("b.s == 'x'", "true"),
        ("'c' in b", "true"),
    ] {
        assert_eq!(show(&scope, text), want, "{text}");
    }
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
        ("lookup(gating, 'x')", "table `gating` has no entry for 'x'"),
        ("labels(id2label)", r#"["'a'", "'b'"]"#),
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

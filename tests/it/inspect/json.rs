//! Option `--json`: every printed key is in the reference with its type, and a failing run also reports its error in
//! JSON. The runs are in `json.txt`. `cargo run -p gguf-foundry-json-page -- target/json.md` writes the reference, so these tests are of the deep
//! tier.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use gguf_foundry::core::TensorSource;
use gguf_foundry::gguf::GgufFile;
use serde_json::Value as Json;

use super::Bench;
use crate::quantize::magnitudes;
use crate::support::programs::finish;
use crate::support::tiers::deep_test;
use crate::support::{bundled, files, fixture, root};

/// Key of the document: its types, and whether it is optional.
struct Row {
    types: Vec<String>,
    is_optional: bool,
}

/// Tables of the document, by the heading above each.
struct Documented(BTreeMap<String, BTreeMap<String, Row>>);

impl Documented {
    fn read() -> Self {
        let text = fs_err::read_to_string(root().join("target/json.md"))
            .expect("`cargo run -p gguf-foundry-json-page -- target/json.md` writes it");
        let mut tables: BTreeMap<String, BTreeMap<String, Row>> = BTreeMap::new();
        let mut heading = String::new();
        for line in text.lines() {
            if let Some(title) = line.strip_prefix("## ") {
                title.clone_into(&mut heading);
            }
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let [_, key, types, _, _] = cells.as_slice() else { continue };
            let Some(key) = key.strip_prefix('`').and_then(|key| key.strip_suffix('`')) else { continue };
            let is_optional = types.ends_with('?');
            let types = types.trim_end_matches('?').split(" or ").map(str::to_owned).collect();
            let before =
                tables.entry(heading.clone()).or_default().insert(key.to_owned(), Row { types, is_optional });
            assert!(before.is_none(), "{heading}: `{key}` is there twice");
        }
        assert!(!tables.is_empty());
        Self(tables)
    }

    fn table(&self, heading: &str) -> Check<'_> {
        let rows = self.0.get(heading).unwrap_or_else(|| panic!("the reference has no table `{heading}`"));
        Check { heading: heading.to_owned(), rows, seen: BTreeSet::new(), faults: Vec::new() }
    }
}

/// Comparison of output documents with one table.
struct Check<'a> {
    heading: String,
    rows: &'a BTreeMap<String, Row>,
    /// Keys that were printed.
    seen: BTreeSet<String>,
    faults: Vec<String>,
}

impl Check<'_> {
    /// Row of a key, also if the documentation has a placeholder for it: `classes.<class>`.
    fn row(&self, parent: &str, key: &str) -> Option<(String, &Row)> {
        let joined = |key: &str| if parent.is_empty() { key.to_owned() } else { format!("{parent}.{key}") };
        let exact = joined(key);
        if let Some(row) = self.rows.get(&exact) {
            return Some((exact, row));
        }
        let placeholder = joined("<");
        let found = self.rows.iter().find(|(key, _)| key.starts_with(&placeholder) && key.ends_with('>'));
        found.map(|(key, row)| (key.clone(), row))
    }

    /// Checks an object, whose keys are documented below `path`.
    fn object(&mut self, path: &str, value: &Json) {
        for (key, value) in
            value.as_object().unwrap_or_else(|| panic!("`{path}`: an object expected: {value}"))
        {
            let Some((path, row)) = self.row(path, key) else {
                self.faults.push(format!("`{path}`: key `{key}` is not listed"));
                continue;
            };
            let types = row.types.clone();
            self.seen.insert(path.clone());
            self.value(&path, &types, value);
        }
    }

    /// Returns true if the keys of the objects in a list are in this table, not in one of their own.
    fn is_described(&self, path: &str) -> bool {
        let start = format!("{path}[].");
        self.rows.keys().any(|key| key.starts_with(&start))
    }

    fn value(&mut self, path: &str, types: &[String], value: &Json) {
        let is = |name: &str| types.iter().any(|ty| ty == name);
        let fits = is("any")
            || match value {
                // A float that JSON cannot represent.
                Json::Null => is("null") || is("number"),
                Json::Bool(_) => is("boolean"),
                Json::Number(number) => is("number") || (is("integer") && !number.is_f64()),
                Json::String(_) => is("string"),
                Json::Object(_) => is("object"),
                Json::Array(items) => {
                    (is("strings") && items.iter().all(Json::is_string))
                        || (is("numbers") && items.iter().all(Json::is_number))
                        || (is("integers") && items.iter().all(|item| item.is_u64() || item.is_i64()))
                        || (is("objects") && items.iter().all(Json::is_object))
                }
            };
        if !fits {
            self.faults.push(format!("`{path}`: {} expected, found {value}", types.join(" or ")));
        } else if is("object") && value.is_object() {
            self.object(path, value);
        } else if is("objects") && self.is_described(path) {
            for item in value.as_array().into_iter().flatten() {
                self.object(&format!("{path}[]"), item);
            }
        }
    }

    /// Returns true if the key is not always present, or an object around it absent or null.
    fn is_optional(&self, key: &str) -> bool {
        let is_null = |row: &Row| row.types.iter().any(|ty| ty == "null");
        let mut around = key.match_indices(['.', '[']).filter_map(|(at, _)| self.rows.get(&key[..at]));
        self.rows[key].is_optional || around.any(|row| row.is_optional || is_null(row))
    }

    /// Fails for undocumented keys, and for documented keys that were not printed.
    fn finish(self) {
        let is_missing = |key: &&String| !self.is_optional(key) && !self.seen.contains(*key);
        let missing: Vec<&String> = self.rows.keys().filter(is_missing).collect();
        self.has_no_faults();
        assert!(missing.is_empty(), "{}: never printed: {missing:?}", self.heading);
    }

    fn has_no_faults(&self) {
        assert!(self.faults.is_empty(), "{}: {:#?}", self.heading, self.faults);
    }
}

/// Table of the parts of another table's documents: heading of that, key of the parts, heading of this one.
const INSIDE: (&str, &str, &str) = ("`gguf-verify`", "models", "A model of `gguf-verify`");
/// Arguments of `+text`.
const TEXT: &str = "--prompts @tiny-llama/corpus-256.jsonl --ctx 64 --chunks 2";

/// Command of a line of the table.
fn command(bench: &Bench, line: &str) -> Command {
    let line = line.replace("+text", TEXT);
    let (program, args) = line.split_once(' ').unwrap();
    let mut command = bench.program(program);
    for arg in args.split(' ') {
        match arg.strip_prefix('@') {
            Some(path) => command.arg(fixture(path)),
            None => command.arg(arg),
        };
    }
    command
}

/// Documents of a line: what a program prints, or a file that it has written.
fn documents(bench: &Bench, heading: &str, line: &str) -> Vec<Json> {
    let stream = |text: &str| -> Vec<Json> {
        let found: Vec<Json> =
            serde_json::Deserializer::from_str(text).into_iter().map(Result::unwrap).collect();
        assert!(!found.is_empty(), "{line}: no document");
        found
    };
    let (first, rest) = line.split_once(' ').unwrap();
    match (first, rest.split_once(' ')) {
        ("lines", _) => stream(&finish(&mut command(bench, rest)).ok().out),
        ("file", None) => stream(&fs_err::read_to_string(bench.path(rest)).unwrap()),
        ("file", Some((name, only))) => {
            let mut document = files::json(bench.path(name));
            document.as_object_mut().unwrap().retain(|key, _| key == only);
            vec![document]
        }
        (code, _) => {
            let code: i32 = code.parse().unwrap();
            let ended = finish(command(bench, rest).args(["--json", "--no-sync"])).exits_with(code);
            let document = ended.json();
            assert!(heading != "A run that fails" || document["error"]["exit_code"] == code, "{line}");
            vec![document]
        }
    }
}

/// Compares what the runs of a section of `json.txt` print with the reference.
fn compare(section: &str, bench: &Bench) {
    let documented = Documented::read();
    let text = fs_err::read_to_string(root().join("tests/it/inspect/json.txt")).unwrap();
    let begin = format!("[{section}]");
    let lines = text.lines().skip_while(|line| *line != begin).skip(1);
    let lines = lines.take_while(|line| !line.starts_with('[')).map(str::trim);
    // By heading: the check, and whether every key must be printed.
    let mut checks: BTreeMap<String, (Check<'_>, bool)> = BTreeMap::new();
    let mut heading = String::new();
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some((kind @ ("=" | "~"), of)) = line.split_once(' ') {
            of.clone_into(&mut heading);
            let all = [Some(of), (of == INSIDE.0).then_some(INSIDE.2)];
            for of in all.into_iter().flatten() {
                checks.insert(of.to_owned(), (documented.table(of), kind == "="));
            }
            continue;
        }
        for document in documents(bench, &heading, line) {
            let (check, is_whole) = checks.get_mut(&heading).unwrap();
            match document.as_array() {
                Some(rows) => rows.iter().for_each(|row| check.object("[]", row)),
                None => check.object("", &document),
            }
            if *is_whole && heading == INSIDE.0 {
                let (part, _) = checks.get_mut(INSIDE.2).unwrap();
                document[INSIDE.1].as_array().unwrap().iter().for_each(|model| part.object("", model));
            }
        }
    }
    assert!(!checks.is_empty(), "no section {section}");
    for (check, is_whole) in checks.into_values() {
        if is_whole { check.finish() } else { check.has_no_faults() }
    }
}

deep_test!(what_inspect_prints_is_documented);

fn what_inspect_prints_is_documented() {
    let bench = Bench::new().with_layers(1);
    fs_err::write(bench.path("empty.json"), "{}").unwrap();
    fs_err::write(bench.path("chat.jinja"), "{{ messages }}").unwrap();
    fs_err::create_dir(bench.path("odd")).unwrap();
    fs_err::write(bench.path("odd/config.json"), r#"{"architectures": ["NoSuchModel"]}"#).unwrap();
    // For the differences of values.
    let mut bytes = fs_err::read(bench.path("model.gguf")).unwrap();
    bytes[832 + 20] ^= 1;
    fs_err::write(bench.path("changed.gguf"), bytes).unwrap();
    compare("inspect", &bench);
}

deep_test!(what_convert_prints_is_documented);

fn what_convert_prints_is_documented() {
    let bench = Bench::new();
    bundled::write_layers(1, &bench.path("hf"));
    fs_err::create_dir(bench.path("small")).unwrap();
    magnitudes::checkpoint(&bench.path("small"), 1e-9);
    let strange = serde_json::json!({
        "config": {"architectures": ["X"], "model_type": "x", "hidden_size": 4, "num_hidden_layers": 1, "strange": 1},
        "tensors": [
            ["model.embed_tokens.weight", "BF16", [4, 4]], ["model.layers.0.input_layernorm.weight", "BF16", [4]],
            ["model.layers.0.a.q_norm.weight", "BF16", [4]], ["model.layers.0.strange", "BF16", [4]],
        ],
    });
    gguf_testkit::checkpoints::write_zeros(&bench.path("strange"), &strange);
    compare("convert", &bench);
}

deep_test!(what_quantize_prints_is_documented);

fn what_quantize_prints_is_documented() {
    let bench = Bench::new().with_layers(1);
    magnitudes::model(&bench.path("small.gguf"), 5, 1e-9);
    compare("quantize", &bench);
}

/// Writes a copy of a Q8_0 file with other codes in the first blocks of a tensor, and one row that is twice as large.
fn damage(from: &Path, to: &Path, tensor: &str) {
    let mut bytes = fs_err::read(from).unwrap();
    let file = GgufFile::open(from).unwrap();
    let at = file.tensor_index(tensor).unwrap();
    let row_bytes = TensorSource::tensors(&file)[at].row_bytes().unwrap() as usize;
    let own = file.raw_tensor(at);
    let start = bytes.windows(row_bytes).position(|window| window == &own[..row_bytes]).unwrap();
    for block in 0..4 {
        for (at, byte) in bytes[start + 34 * block + 2..start + 34 * (block + 1)].iter_mut().enumerate() {
            *byte = (at * 89 + block * 31) as u8;
        }
    }
    for block in bytes[start + 9 * row_bytes..start + 10 * row_bytes].chunks_exact_mut(34) {
        // Adds one to the exponent of the half-precision scale.
        block[1] += 4;
    }
    fs_err::write(to, bytes).unwrap();
}

deep_test!(what_verify_prints_is_documented);

fn what_verify_prints_is_documented() {
    let bench = Bench::new().with_layers(2);
    for line in [
        "gguf-quantize tiny.gguf q.gguf q8_0",
        "gguf-inspect set tiny.gguf llama.attention.causal=bool:false -o encoder.gguf",
        "gguf-quantize encoder.gguf e.gguf q8_0",
    ] {
        finish(command(&bench, line).arg("--no-sync")).ok();
    }
    damage(&bench.path("q.gguf"), &bench.path("bad.gguf"), "blk.1.attn_k.weight");
    for (name, text) in [
        ("two.jsonl", "{\"text\": \"one two three\"}\n{\"text\": \"four five six\"}\n"),
        ("ids.jsonl", "{\"tokens\": [1, 2, 3, 4, 5, 6, 7, 8]}\n"),
        ("few.jsonl", "{\"tokens\": [1, 2, 3, 4]}\n"),
        (
            "flawed.csv",
            "0,Anna saw _ there.,Maria,Maria,1\n1,Anna gave Maria a present and _ thanked her.,Anna,Maria,2\n",
        ),
    ] {
        fs_err::write(bench.path(name), text).unwrap();
    }
    compare("verify", &bench);
}

//! Option `--json`: every printed key is in the reference with its type, and a failing run also reports its error in
//! JSON. `cargo run -p gguf-foundry-json-page -- target/json.md` writes the reference, so these tests are of the deep
//! tier.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

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

type Run<'a> = (i32, &'a [&'a str]);

/// Runs a program with `--json` in the directory.
fn json(bench: &Bench, program: &str, code: i32, args: &[&str]) -> Json {
    finish(bench.program(program).args(args).args(["--json", "--no-sync"])).exits_with(code).json()
}

deep_test!(what_inspect_prints_is_documented);

fn what_inspect_prints_is_documented() {
    let documented = Documented::read();
    let bench = Bench::new().with_layers(1);
    let checkpoint = fixture("tiny-llama");
    let quantized = fixture("native/nvfp4_llama_mixed/hf");
    fs_err::write(bench.path("empty.json"), "{}").unwrap();
    fs_err::write(bench.path("chat.jinja"), "{{ messages }}").unwrap();
    fs_err::create_dir(bench.path("odd")).unwrap();
    fs_err::write(bench.path("odd/config.json"), r#"{"architectures": ["NoSuchModel"]}"#).unwrap();
    let commands: [(&str, &[Run<'_>]); 14] = [
        (
            "`gguf-inspect FILE`",
            &[(0, &["tiny.gguf"]), (0, &["tiny.gguf", "--full"]), (0, &["model.gguf", "--no-tensors"])],
        ),
        (
            "`gguf-inspect get`",
            &[
                (0, &["get", "tiny.gguf", "general.name"]),
                (0, &["get", "tiny.gguf", "tokenizer.ggml.tokens"]),
            ],
        ),
        (
            "`gguf-inspect set`, `gguf-inspect remove`",
            &[
                (0, &["set", "model.gguf", "general.name=x", "a.b=u8:1", "-o", "set.gguf"]),
                (0, &["set", "model.gguf", "llama.block_count=u8:1", "--force", "--dry-run"]),
                (0, &["remove", "set.gguf", "a.b"]),
                (0, &["rename", "set.gguf", "ramp=slope", "--force"]),
                (0, &["drop", "set.gguf", "slope", "--force", "-o", "less.gguf"]),
                (0, &["template", "set.gguf", "--set", "chat.jinja"]),
            ],
        ),
        (
            "`gguf-inspect template`",
            &[(0, &["template", "set.gguf"]), (0, &["template", "set.gguf", "--name", "default"])],
        ),
        (
            "`gguf-inspect dump`",
            &[
                (0, &["dump", "model.gguf"]),
                (0, &["dump", "tiny.gguf", "--json-array"]),
                (0, &["dump", "model.gguf", "--data-offset"]),
                (0, &["dump", "model.gguf", "--data-alignment"]),
            ],
        ),
        ("`gguf-inspect split --dry-run`", &[(0, &["split", "model.gguf", "-o", "part", "--dry-run"])]),
        (
            "`gguf-inspect split`, `gguf-inspect merge`",
            &[
                (0, &["split", "model.gguf", "-o", "part", "--split-max-tensors", "2"]),
                (0, &["merge", "part-00001-of-00002.gguf", "-o", "merged.gguf"]),
            ],
        ),
        (
            "`gguf-inspect diff`",
            &[
                (0, &["diff", "model.gguf", "merged.gguf"]),
                (1, &["diff", "model.gguf", "tiny.gguf"]),
                (1, &["diff", "model.gguf", "part-00001-of-00002.gguf"]),
            ],
        ),
        ("`gguf-inspect hash`", &[(0, &["hash", "tiny.gguf"])]),
        ("`gguf-inspect memory`", &[(0, &["memory", "tiny.gguf", "--ctx", "256,512"])]),
        (
            "`gguf-inspect memory --fit`",
            &[
                (0, &["memory", "tiny.gguf", "--fit", "200M"]),
                (0, &["memory", "tiny.gguf", "--fit", "24M", "--ctx", "16384"]),
            ],
        ),
        (
            "`gguf-inspect checkpoint`",
            &[
                (0, &["checkpoint", checkpoint.to_str().unwrap()]),
                (0, &["checkpoint", quantized.to_str().unwrap()]),
                (0, &["checkpoint", "odd"]),
            ],
        ),
        (
            "A run that fails",
            &[
                (1, &["missing.gguf"]),
                (1, &["remove", "model.gguf", "llama.block_count"]),
                (2, &["set", "model.gguf", "x.y=1"]),
                (2, &["set", "model.gguf"]),
                (2, &["--no-such-option"]),
                (1, &["get", "model.gguf", "no.such"]),
                (2, &["diff", "model.gguf", "missing.gguf"]),
                (1, &["checkpoint", "missing"]),
                (1, &["hash", "missing.gguf"]),
                (1, &["split", "missing.gguf", "-o", "x"]),
                (1, &["merge", "model.gguf", "-o", "x"]),
                (3, &["empty.json"]),
            ],
        ),
        ("A run that fails", &[(2, &["get", "model.gguf"])]),
    ];
    for (heading, runs) in commands {
        let mut check = documented.table(heading);
        for (code, args) in runs {
            let document = json(&bench, "gguf-inspect", *code, args);
            check.object("", &document);
            if heading == "A run that fails" {
                assert_eq!(document["error"]["exit_code"], *code, "{args:?}");
            }
        }
        // A changed file, for the differences of values.
        if heading == "`gguf-inspect diff`" {
            let mut bytes = fs_err::read(bench.path("model.gguf")).unwrap();
            bytes[832 + 20] ^= 1;
            fs_err::write(bench.path("changed.gguf"), bytes).unwrap();
            check.object("", &json(&bench, "gguf-inspect", 1, &["diff", "model.gguf", "changed.gguf"]));
        }
        check.finish();
    }
}

deep_test!(what_convert_prints_is_documented);

fn what_convert_prints_is_documented() {
    let documented = Documented::read();
    let bench = Bench::new();
    let dir = "hf";
    bundled::write_layers(1, &bench.path(dir));
    let quantized = ["nvfp4_llama_mixed", "fp8_qwen3moe"].map(|name| fixture(&format!("native/{name}/hf")));
    let run = |code, args: &[&str]| json(&bench, "gguf-convert", code, args);

    let mut plan = documented.table("`gguf-convert …2gguf --dry-run`");
    plan.object("", &run(0, &["hf2gguf", dir, "-o", "f32.gguf", "--dry-run"]));
    let mut made = documented.table("`gguf-convert …2gguf`");
    made.object("", &run(0, &["hf2gguf", dir, "-o", "f32.gguf", "--type", "f32"]));
    for dir in &quantized {
        let args =
            ["hf2gguf", dir.to_str().unwrap(), "-o", "native.gguf", "--type", "native", "--no-tokenizer"];
        plan.object("", &run(0, &[&args[..], &["--dry-run"]].concat()));
        made.object("", &run(0, &args));
    }
    fs_err::create_dir(bench.path("small")).unwrap();
    magnitudes::checkpoint(&bench.path("small"), 1e-9);
    made.object("", &run(0, &["hf2gguf", "small", "-o", "small.gguf", "--type", "f16"]));
    plan.finish();
    made.finish();

    let mut back = documented.table("`gguf-convert gguf2hf`");
    back.object("", &run(0, &["gguf2hf", "f32.gguf", "-o", "back"]));
    back.finish();

    let mut turned = documented.table("`gguf-convert endian`");
    turned.object("", &run(0, &["endian", "f32.gguf", "-o", "big.gguf"]));
    turned.object("", &run(0, &["endian", "f32.gguf", "-o", "big.gguf", "--to", "little", "--dry-run"]));
    turned.finish();

    let mut archs = documented.table("`gguf-convert archs`");
    for row in run(0, &["archs"]).as_array().unwrap() {
        archs.object("[]", row);
    }
    archs.finish();
    let mut card = documented.table("`gguf-convert archs NAME`");
    for name in ["llama", "gpt-oss", "chatglm", "gptneox"] {
        card.object("", &run(0, &["archs", name]));
    }
    card.finish();
    let mut draft_of = documented.table("`gguf-convert draft`");
    let strange = serde_json::json!({
        "config": {"architectures": ["X"], "model_type": "x", "hidden_size": 4, "num_hidden_layers": 1, "strange": 1},
        "tensors": [
            ["model.embed_tokens.weight", "BF16", [4, 4]], ["model.layers.0.input_layernorm.weight", "BF16", [4]],
            ["model.layers.0.a.q_norm.weight", "BF16", [4]], ["model.layers.0.strange", "BF16", [4]],
        ],
    });
    gguf_testkit::checkpoints::write_zeros(&bench.path("strange"), &strange);
    draft_of.object("", &run(0, &["draft", "strange"]));
    draft_of.finish();

    let mut quantized = documented.table("`gguf-quantize`");
    quantized.object("", &run(0, &["hf2gguf", dir, "-o", "q.gguf", "--type", "q4_k_m"]));
    let mut draft = documented.table("`gguf-quantize --dry-run`");
    draft.object("", &run(0, &["hf2gguf", dir, "-o", "q.gguf", "--type", "q4_k_m", "--dry-run"]));

    let mut failed = documented.table("A run that fails");
    failed.object("", &run(1, &["hf2gguf", "missing", "-o", "x.gguf"]));
    failed.object("", &run(2, &["hf2gguf"]));
    failed.finish();
}

deep_test!(what_quantize_prints_is_documented);

fn what_quantize_prints_is_documented() {
    let documented = Documented::read();
    let bench = Bench::new().with_layers(1);
    let run = |code, args: &[&str]| json(&bench, "gguf-quantize", code, args);
    let mut made = documented.table("`gguf-quantize`");
    made.object("", &run(0, &["tiny.gguf", "q.gguf", "q8_0"]));
    magnitudes::model(&bench.path("small.gguf"), 5, 1e-9);
    made.object("", &run(0, &["small.gguf", "q.gguf", "q8_0"]));
    made.finish();
    let mut draft = documented.table("`gguf-quantize --dry-run`");
    draft.object("", &run(0, &["tiny.gguf", "q.gguf", "q8_0", "--dry-run"]));
    draft.finish();
    let mut failed = documented.table("A run that fails");
    failed.object("", &run(1, &["missing.gguf", "q.gguf", "q8_0"]));
    failed.object("", &run(2, &["tiny.gguf"]));
    failed.finish();
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

/// Texts of the runs of `gguf-verify`.
fn prompts() -> String {
    fixture("tiny-llama/corpus-256.jsonl").to_str().unwrap().to_owned()
}

/// Runs `gguf-verify` on a little text.
fn verify(bench: &Bench, code: i32, args: &[&str]) -> Json {
    let prompts = prompts();
    let cut = ["--prompts", &prompts, "--ctx", "64", "--chunks", "2"];
    json(bench, "gguf-verify", code, &[args, &cut[..]].concat())
}

/// Tables of a report, and of the models in it.
struct Tables<'d> {
    whole: Check<'d>,
    one: Check<'d>,
}

impl Tables<'_> {
    fn document(&mut self, document: &Json) {
        self.whole.object("", document);
        for model in document["models"].as_array().unwrap() {
            self.one.object("", model);
        }
    }
}

/// Reports of rarer files and texts.
fn rare_reports(bench: &Bench, tables: &mut Tables<'_>) {
    let run = |code, args: &[&str]| verify(bench, code, args);
    // Of two files.
    tables.document(&run(0, &["q.gguf", "--baseline", "tiny.gguf", "--prompts", &prompts()]));
    // With a finding: a model compared with itself proves nothing.
    tables.document(&run(4, &["tiny.gguf", "--baseline", "tiny.gguf"]));
    // Rows with meaningless codes.
    damage(&bench.path("q.gguf"), &bench.path("bad.gguf"), "blk.1.attn_k.weight");
    tables.document(&run(3, &["bad.gguf", "--baseline", "tiny.gguf"]));
    // Of an encoder.
    let causal = ["set", "tiny.gguf", "llama.attention.causal=bool:false", "-o", "encoder.gguf"];
    let _ = json(bench, "gguf-inspect", 0, &causal);
    let mut quantize = bench.program("gguf-quantize");
    finish(quantize.args(["encoder.gguf", "e.gguf", "q8_0", "--no-sync"])).ok();
    tables.document(&run(0, &["e.gguf", "--baseline", "encoder.gguf"]));
    // Of a model with experts.
    let experts = fixture("native/nvfp4_qwen3moe/hf");
    fs_err::write(bench.path("ids.jsonl"), "{\"tokens\": [1, 2, 3, 4, 5, 6, 7, 8]}\n").unwrap();
    let experts = [experts.to_str().unwrap(), "--prompts", "ids.jsonl"];
    tables.document(&json(bench, "gguf-verify", 4, &experts));
    let tasks = fixture("tasks/winogrande.csv");
    let tasks = ["q.gguf", "--winogrande", tasks.to_str().unwrap(), "--tasks", "3"];
    tables.document(&json(bench, "gguf-verify", 4, &tasks));
    // With a task without a valid choice.
    let flawed =
        "0,Anna saw _ there.,Maria,Maria,1\n1,Anna gave Maria a present and _ thanked her.,Anna,Maria,2\n";
    fs_err::write(bench.path("flawed.csv"), flawed).unwrap();
    tables.document(&json(bench, "gguf-verify", 4, &["q.gguf", "--winogrande", "flawed.csv"]));
    let two = ["tiny.gguf", "--prompts", "two.jsonl", "--ctx", "8"];
    tables.document(&json(bench, "gguf-verify", 4, &two));
}

deep_test!(what_verify_prints_is_documented);

fn what_verify_prints_is_documented() {
    let documented = Documented::read();
    let bench = Bench::new().with_layers(2);
    let mut quantize = bench.program("gguf-quantize");
    finish(quantize.args(["tiny.gguf", "q.gguf", "q8_0", "--no-sync"])).ok();
    fs_err::write(bench.path("two.jsonl"), "{\"text\": \"one two three\"}\n{\"text\": \"four five six\"}\n")
        .unwrap();
    let run = |code, args: &[&str]| verify(&bench, code, args);

    let mut tables = Tables {
        whole: documented.table("`gguf-verify`"),
        one: documented.table("A model of `gguf-verify`"),
    };
    tables.document(&run(4, &["tiny.gguf", "--report", "r.json"]));
    let mut reported = documented.table("`gguf-verify --report FILE.json`");
    let mut report = files::json(bench.path("r.json"));
    report.as_object_mut().unwrap().retain(|key, _| key == "run");
    reported.object("", &report);
    reported.finish();
    tables.document(&run(0, &["q.gguf", "--baseline", "tiny.gguf", "--per-token", "each.jsonl"]));
    let mut each = documented.table("`gguf-verify --per-token FILE`");
    for line in fs_err::read_to_string(bench.path("each.jsonl")).unwrap().lines() {
        each.object("", &serde_json::from_str(line).unwrap());
    }
    each.finish();
    tables.document(&run(4, &["tiny.gguf", "q.gguf"]));
    rare_reports(&bench, &mut tables);
    tables.whole.finish();
    tables.one.finish();

    let mut importance = documented.table("`gguf-verify imatrix`");
    importance.object("", &run(0, &["imatrix", "tiny.gguf", "-o", "tiny.imatrix"]));
    let experts = fixture("native/nvfp4_qwen3moe/hf");
    fs_err::write(bench.path("ids.jsonl"), "{\"tokens\": [1, 2, 3, 4]}\n").unwrap();
    let ids = ["imatrix", experts.to_str().unwrap(), "--prompts", "ids.jsonl", "-o", "experts.imatrix"];
    importance.object("", &json(&bench, "gguf-verify", 0, &ids));
    importance.object("", &run(0, &["imatrix", "tiny.gguf", "--part", "1/1", "-o", "tiny.part"]));
    importance.finish();
    let mut part = documented.table("`gguf-verify --part`");
    part.object("", &run(0, &["tiny.gguf", "--part", "1/1", "-o", "verify.part"]));
    part.finish();
    let mut merged = documented.table("`gguf-verify imatrix merge`");
    let files =
        ["imatrix", "merge", "experts.imatrix", "experts.imatrix", "--ctx", "64", "-o", "all.imatrix"];
    merged.object("", &json(&bench, "gguf-verify", 0, &files));
    merged.finish();
    let mut shown = documented.table("`gguf-verify imatrix show`");
    shown.object("", &json(&bench, "gguf-verify", 0, &["imatrix", "show", "experts.imatrix"]));
    shown.object("", &json(&bench, "gguf-verify", 0, &["imatrix", "show", "tiny.imatrix"]));
    shown.object("", &json(&bench, "gguf-verify", 0, &["imatrix", "show", "tiny.part"]));
    shown.finish();

    let mut logits = documented.table("`gguf-verify logits`");
    let logits_of = ["logits", "tiny.gguf", "--prompts", "two.jsonl"];
    let lines = finish(bench.program("gguf-verify").args(logits_of)).out;
    assert_eq!(lines.lines().count(), 2);
    for line in lines.lines() {
        logits.object("", &serde_json::from_str(line).unwrap());
    }
    logits.finish();

    let mut failed = documented.table("A run that fails");
    failed.object("", &run(1, &["missing.gguf"]));
    failed.object("", &json(&bench, "gguf-verify", 2, &["tiny.gguf", "--min-quality", "good"]));
    failed.finish();
}

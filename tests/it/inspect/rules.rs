//! Rules of edits: types that are kept, values from files, edits that are refused without `--force`, and the part of a
//! split model that is edited.

use gguf_foundry::gguf::{GgufFile, OpenOptions, Value};
use serde_json::json;

use super::Bench;

fn read(bench: &Bench, name: &str) -> Vec<u8> {
    fs_err::read(bench.path(name)).unwrap()
}

/// Runs an edit that must be refused, and returns the first line of the error.
fn refused(bench: &Bench, args: &[&str]) -> String {
    let before = read(bench, args[1]);
    let err = bench.run(args).exits_with(1).err;
    assert!(err.ends_with("\nhint: `--force` makes the change all the same\n"), "{args:?}: {err}");
    assert!(read(bench, args[1]) == before, "{args:?}: changed");
    err.lines().next().unwrap().to_owned()
}

/// Makes an edit that is otherwise refused.
fn forced(bench: &Bench, args: &[&str]) {
    let err = bench.run(&[args, &["--force", "--no-sync"]].concat()).ok().err;
    assert!(err.starts_with("warning: "), "{args:?}: {err}");
}

#[test]
fn a_value_takes_the_type_of_the_key() {
    let bench = Bench::new();
    let args = [
        "set",
        "model.gguf",
        "llama.block_count=7",
        "llama.rope.freq_base=1e6",
        "general.name=https://a.b/c",
        "tokenizer.ggml.tokens=[\"a\", \"b\"]",
        // Not in the file, but well-known.
        "general.author=Me",
        "llama.rope.scaling.factor=2",
    ];
    bench.run(&args).says_only(0, "");
    let value = |key| bench.value("model.gguf", key);
    assert_eq!(value("llama.block_count"), Some(Value::U32(7)));
    assert_eq!(value("llama.rope.freq_base"), Some(Value::F32(1e6)));
    assert_eq!(value("general.name"), Some("https://a.b/c".into()));
    assert_eq!(value("tokenizer.ggml.tokens"), Some(vec!["a", "b"].into()));
    assert_eq!(value("general.author"), Some("Me".into()));
    assert_eq!(value("llama.rope.scaling.factor"), Some(Value::F32(2.0)));

    let err = bench.run(&["set", "model.gguf", "x.y=1"]).exits_with(2).err;
    assert!(err.starts_with("error: key `x.y`: not in the file, so a type is needed"), "{err}");
    let expected = "error: key `llama.block_count`: `many` is not a value of type u32\n";
    bench.run(&["set", "model.gguf", "llama.block_count=many"]).says_only(2, expected);
    // The help explains the colon.
    let help = bench.run(&["set", "--help"]).out;
    assert!(help.contains("first colon") && help.contains("KEY=str:VALUE"), "{help}");
}

#[test]
fn old_and_new_are_shown_and_a_dry_run_writes_nothing() {
    let bench = Bench::new();
    let before = read(&bench, "model.gguf");
    let args = ["set", "model.gguf", "llama.block_count=7", "x.y=u8:1", "general.name=str:B"];
    let out = bench.run(&[&args[..], &["--dry-run"]].concat()).says_only(0, "").out;
    let expected = "key                type  old                                   new\n\
                    llama.block_count  u32   2                                 →  7\n\
                    x.y                u8    (none)                            →  1\n\
                    general.name       str   A \\u{1b}[31mred\\u{1b}[0m name  →  B\n";
    let squeezed = |text: &str| {
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    assert_eq!(squeezed(&out)[..4], squeezed(expected)[..], "{out}");
    assert!(out.ends_with("nothing was written\n"), "{out}");
    assert!(read(&bench, "model.gguf") == before);
    assert_eq!(bench.names(), ["model.gguf"]);

    let told = bench.json(&[&args[..], &["--dry-run"]].concat(), 0);
    assert_eq!(told["dry_run"], json!(true));
    assert_eq!(
        told["changes"][0],
        json!({
            "key": "llama.block_count",
            "before": {"type": "u32", "value": 2},
            "after": {"type": "u32", "value": 7},
        })
    );
    assert_eq!(told["changes"][1]["before"], json!(null));
    let made = bench.json(&args, 0);
    assert_eq!(made["file_bytes"], json!(read(&bench, "model.gguf").len()));
    assert_eq!((&made["file_bytes"], &made["changes"]), (&told["file_bytes"], &told["changes"]));

    let err = bench.run(&[&args[..], &["--dry-run", "-o", "no-such/x.gguf"]].concat()).ok().err;
    assert!(err.starts_with("warning: a run would stop here: ") && err.contains("no-such"), "{err}");

    let removed = bench.json(&["remove", "model.gguf", "x.y", "--dry-run"], 0);
    assert_eq!(removed["changes"][0]["after"], json!(null));
    assert_eq!(bench.value("model.gguf", "x.y"), Some(Value::U8(1)));
}

#[test]
fn values_come_from_files() {
    let bench = Bench::new();
    fs_err::write(bench.path("template"), "{{ a }}\n\n").unwrap();
    fs_err::write(bench.path("list"), "[\n  1,\n  -2\n]\n").unwrap();
    fs_err::write(bench.path("raw"), b"\xff\x00").unwrap();
    let args = [
        "set",
        "model.gguf",
        "tokenizer.chat_template=@template",
        "general.name=str:@template",
        "a.list=arr[i32]:@list",
        "a.raw=str:@raw",
        "a.at=str:@@home",
        "llama.block_count=@@5",
    ];
    let err = bench.run(&args).exits_with(2).err;
    assert_eq!(err, "error: key `llama.block_count`: `@5` is not a value of type u32\n");
    bench.run(&args[..args.len() - 1]).says_only(0, "");
    let value = |key| bench.value("model.gguf", key);
    // One line feed belongs to the file, the other one to the value.
    assert_eq!(value("tokenizer.chat_template"), Some("{{ a }}\n".into()));
    assert_eq!(value("general.name"), Some("{{ a }}\n".into()));
    assert_eq!(value("a.list"), Some(vec![1i32, -2].into()));
    assert_eq!(value("a.raw"), Some(Value::String(vec![0xff, 0])));
    assert_eq!(value("a.at"), Some("@home".into()));

    let err = bench.run(&["set", "model.gguf", "general.name=@missing"]).exits_with(1).err;
    assert!(err.starts_with("error: key `general.name`: ") && err.contains("missing"), "{err}");
    assert!(
        err.ends_with("\nhint: a value that itself begins with `@` is written with two: `KEY=@@VALUE`\n")
    );
}

#[test]
fn other_types_of_well_known_keys_are_refused() {
    let bench = Bench::new();
    let args = ["set", "model.gguf", "llama.block_count=u64:2"];
    let line = refused(&bench, &args);
    assert_eq!(line, "error: model.gguf: key `llama.block_count` must be of type u32, not u64");
    forced(&bench, &args);
    assert_eq!(bench.value("model.gguf", "llama.block_count"), Some(Value::U64(2)));
    // Back to the required type.
    bench.run(&["set", "model.gguf", "llama.block_count=u32:2"]).ok();
    // A number per layer, and unknown keys.
    bench.run(&["set", "model.gguf", "llama.attention.head_count=arr[u32]:[4, 4]"]).ok();
    bench.run(&["set", "model.gguf", "my.key=u8:1"]).ok();
    bench.run(&["set", "model.gguf", "my.key=str:x"]).ok();
    let line = refused(&bench, &["set", "model.gguf", "general.author=u8:1", "general.license=bool:true"]);
    assert!(line.contains("`general.author` must be of type str, not u8; key `general.license`"), "{line}");
}

#[test]
fn token_ids_beyond_the_vocabulary_are_refused() {
    let bench = Bench::new();
    let args = ["set", "model.gguf", "tokenizer.ggml.bos_token_id=40"];
    let line = refused(&bench, &args);
    assert_eq!(
        line,
        "error: model.gguf: key `tokenizer.ggml.bos_token_id`: token 40 is beyond the vocabulary of 40"
    );
    bench.run(&["set", "model.gguf", "tokenizer.ggml.bos_token_id=39"]).ok();
    // The truncated vocabulary does not contain the token.
    let line = refused(&bench, &["set", "model.gguf", "tokenizer.ggml.tokens=[\"a\", \"b\"]"]);
    assert!(line.ends_with("token 39 is beyond the vocabulary of 2"), "{line}");
    forced(&bench, &args);
    // An existing error does not prevent an unrelated edit.
    bench.run(&["set", "model.gguf", "general.name=x"]).ok();
}

#[test]
fn keys_that_the_architecture_needs_stay() {
    let bench = Bench::new().with_tiny();
    let remove = |key: &str| refused(&bench, &["remove", "tiny.gguf", key]);
    for key in ["general.architecture", "llama.context_length", "tokenizer.ggml.tokens"] {
        assert_eq!(remove(key), format!("error: tiny.gguf: key `{key}` is needed by every reader"));
    }
    assert_eq!(
        remove("llama.attention.head_count"),
        "error: tiny.gguf: key `llama.attention.head_count` is needed by architecture `llama`: \
         key `llama.attention.head_count` is missing"
    );
    // The engine would assume as many key heads as query heads, and stop at the shapes.
    assert!(remove("llama.attention.head_count_kv").contains("needed by architecture `llama`"));
    bench.run(&["remove", "tiny.gguf", "general.file_type", "--no-sync"]).ok();
    forced(&bench, &["remove", "tiny.gguf", "llama.attention.head_count"]);
    assert_eq!(bench.value("tiny.gguf", "llama.attention.head_count"), None);
}

#[test]
fn a_key_without_which_the_model_computes_something_else_stays() {
    let bench = Bench::new().with_tiny();
    bench.run(&["set", "tiny.gguf", "llama.rope.freq_base=500000", "--no-sync"]).ok();
    let line = refused(&bench, &["remove", "tiny.gguf", "llama.rope.freq_base"]);
    assert!(line.ends_with("without it the model computes something else"), "{line}");
}

#[test]
fn values_with_which_nothing_runs_are_refused() {
    let bench = Bench::new().with_tiny();
    let line = refused(&bench, &["set", "tiny.gguf", "llama.block_count=5"]);
    assert!(line.starts_with("error: tiny.gguf: the model could not be run any more: "), "{line}");
    let line = refused(&bench, &["set", "tiny.gguf", "general.architecture=no-such"]);
    assert!(line.ends_with("architecture `no-such` has no card"), "{line}");
    let line = refused(&bench, &["set", "tiny.gguf", "tokenizer.ggml.pre=no-such"]);
    assert!(line.starts_with("error: tiny.gguf: the tokenizer could not be read any more: "), "{line}");
}

#[test]
fn an_edit_of_a_later_part_is_made_where_the_key_is() {
    let bench = Bench::new();
    bench.json(&["split", "model.gguf", "-o", "p", "--split-max-tensors", "2"], 0);
    let (first, second) = ("p-00001-of-00002.gguf", "p-00002-of-00002.gguf");
    let before = read(&bench, second);
    // New keys also belong to the first part.
    let made = bench.json(&["set", second, "general.name=New", "x.y=u8:1"], 0);
    let path = made["files"][0].as_str().unwrap();
    assert!(path.ends_with(first), "{path}");
    assert!(read(&bench, second) == before);
    let options = OpenOptions { join_parts: false, ..OpenOptions::default() };
    let alone = GgufFile::open_with(&bench.path(first), &options).unwrap();
    assert_eq!(alone.metadata().get("general.name"), Some(&"New".into()));
    assert_eq!(alone.metadata().get("x.y"), Some(&Value::U8(1)));
    bench.json(&["remove", second, "x.y"], 0);
    assert_eq!(bench.value(first, "x.y"), None);

    // Another output would be a part under an unrelated name, so the part must be named.
    let err = bench.run(&["set", second, "general.name=Other", "-o", "other.gguf"]).exits_with(1).err;
    assert_eq!(
        err,
        format!(
            "error: {second}: key `general.name` belongs to {first}\n\
             \nhint: edit {first} (without `-o` that happens by itself)\n"
        )
    );
    let line = refused(&bench, &["set", second, "split.no=0"]);
    assert_eq!(line, format!("error: {second}: key `split.no` holds the parts of the model together"));
    assert_eq!(bench.names(), ["model.gguf", first, second]);

    fs_err::remove_file(bench.path(first)).unwrap();
    bench.run(&["set", second, "general.name=New"]).says(1, first);
}

//! Command `gguf-inspect template`, and special tokens given by their text.

use gguf_foundry::gguf::{Array, GgufFile, Value};
use serde_json::json;

use super::Bench;

const PLAIN: &str = "tokenizer.chat_template";

#[test]
fn a_template_is_set_and_printed_as_it_is() {
    let bench = Bench::new();
    let (code, out, err) = bench.run(&["template", "model.gguf"]).parts();
    assert_eq!((code, out.as_str(), err.as_str()), (1, "", "error: model.gguf: no chat template\n"));

    let text = "{% for m in messages %}\n{{ m.content }}\u{e9}\n{% endfor %}\n";
    fs_err::write(bench.path("chat.jinja"), text).unwrap();
    let before = fs_err::read(bench.path("model.gguf")).unwrap();
    let out = bench.run(&["template", "model.gguf", "--set", "chat.jinja", "--dry-run"]).says_only(0, "").out;
    assert!(out.contains(PLAIN) && out.ends_with("nothing was written\n"), "{out}");
    assert_eq!(fs_err::read(bench.path("model.gguf")).unwrap(), before);

    let report = bench.json(&["template", "model.gguf", "--set", "chat.jinja", "-o", "new.gguf"], 0);
    assert_eq!(report["files"], json!(["new.gguf"]));
    assert_eq!(report["changes"][0]["after"], json!({"type": "str", "value": text}));
    assert_eq!(fs_err::read(bench.path("model.gguf")).unwrap(), before);
    let (code, out, err) = bench.run(&["template", "new.gguf"]).parts();
    assert_eq!((code, out.as_str(), err.as_str()), (0, text, ""));

    // The printed output can be read back.
    fs_err::write(bench.path("printed"), out).unwrap();
    let report = bench.json(&["template", "new.gguf", "--set", "printed"], 0);
    assert_eq!(report["changes"], json!([]));
    let hashes = ["model.gguf", "new.gguf"].map(|name| bench.json(&["hash", name], 0)["data"].clone());
    assert_eq!(hashes[0], hashes[1]);
}

#[test]
fn several_templates_replace_all_that_were_there() {
    let bench = Bench::new();
    let config = json!({"eos_token": "</s>", "chat_template": [
        {"name": "default", "template": "D"}, {"name": "tool use", "template": "T"}, {"name": "rag", "template": "R"},
    ]});
    fs_err::write(bench.path("tokenizer_config.json"), config.to_string()).unwrap();
    bench.run(&["template", "model.gguf", "--set", "tokenizer_config.json"]).ok();
    let named = |names: &[&str]| Some(Value::from(names.to_vec()));
    assert_eq!(bench.value("model.gguf", "tokenizer.chat_templates"), named(&["rag", "tool_use"]));
    assert_eq!(
        bench.json(&["template", "model.gguf"], 0),
        json!({"templates": {"default": "D", "tool_use": "T", "rag": "R"}})
    );
    let (code, out, err) = bench.run(&["template", "model.gguf"]).parts();
    assert_eq!((code, out.as_str()), (0, "D"));
    assert_eq!(err, "note: --name prints another template: default, tool_use, rag\n");
    let (code, out, err) = bench.run(&["template", "model.gguf", "--name", "tool_use"]).parts();
    assert_eq!((code, out.as_str(), err.as_str()), (0, "T", ""));
    let err = bench.run(&["template", "model.gguf", "--name", "tool"]).exits_with(1).err;
    assert_eq!(err, "error: model.gguf: no chat template `tool`; there are default, tool_use, rag\n");

    fs_err::write(bench.path("one.jinja"), "ONE").unwrap();
    let report = bench.json(&["template", "model.gguf", "--set", "one.jinja"], 0);
    assert_eq!(report["changes"].as_array().unwrap().len(), 4, "{report}");
    let file = GgufFile::open(&bench.path("model.gguf")).unwrap();
    let keys: Vec<_> = file.metadata().iter().filter(|(key, _)| key.contains("chat")).collect();
    assert_eq!(keys, [(PLAIN, &Value::from("ONE"))]);
}

#[test]
fn a_template_that_nothing_could_read_is_refused_unless_forced() {
    let bench = Bench::new();
    let before = fs_err::read(bench.path("model.gguf")).unwrap();
    let text = "{{ bos_token }}\n{% for m in messages %}{{ m.content }}";
    fs_err::write(bench.path("open.jinja"), text).unwrap();
    bench
        .run(&["template", "model.gguf", "--set", "open.jinja"])
        .says(1, "chat template `default`: line 2: ")
        .says(1, "--force");
    // Also if it is one of several, and if it is given as a key.
    let config = json!({"chat_template": [
        {"name": "default", "template": "D"}, {"name": "rag", "template": "{{ a b }}"},
    ]});
    fs_err::write(bench.path("several.json"), config.to_string()).unwrap();
    bench.run(&["template", "model.gguf", "--set", "several.json"]).says(1, "chat template `rag`: line 1: ");
    bench
        .run(&["set", "model.gguf", "tokenizer.chat_template=str:{%"])
        .says(1, "chat template `default`: line 1: ");
    assert_eq!(fs_err::read(bench.path("model.gguf")).unwrap(), before);

    let err = bench.run(&["template", "model.gguf", "--set", "open.jinja", "--force"]).ok().err;
    assert!(err.starts_with("warning: chat template `default`: line 2: "), "{err}");
    assert_eq!(bench.value("model.gguf", PLAIN), Some(text.into()));
    // An existing error does not prevent another change.
    bench.run(&["set", "model.gguf", "general.name=other"]).ok();
}

#[test]
fn what_is_no_template_changes_nothing() {
    let bench = Bench::new();
    let before = fs_err::read(bench.path("model.gguf")).unwrap();
    for (name, bytes, expected) in [
        (
            "empty.jinja",
            &b""[..],
            "error: empty.jinja: no chat template in it\n\nhint: a `.json` file has the member",
        ),
        ("none.json", b"{\"a\": 1}", "error: none.json: no chat template in it\n"),
        ("broken.json", b"{", "error: broken.json: EOF while parsing"),
        ("latin.jinja", b"a\xe9", "error: latin.jinja: offset 1: not UTF-8\n"),
    ] {
        fs_err::write(bench.path(name), bytes).unwrap();
        let (code, _, err) = bench.run(&["template", "model.gguf", "--set", name]).parts();
        assert!(code == 1 && err.starts_with(expected), "{name}: {code} {err}");
    }
    bench.run(&["template", "model.gguf", "--set", "missing.jinja"]).says(1, "missing.jinja");
    for args in [&["--dry-run"][..], &["-o", "x.gguf"], &["--force"]] {
        bench.run(&[&["template", "model.gguf"], args].concat()).says(2, "go with `--set`");
    }
    assert_eq!(fs_err::read(bench.path("model.gguf")).unwrap(), before);
}

#[test]
fn special_tokens_are_found_by_their_text() {
    let bench = Bench::new().with_tiny();
    let tokens = bench.value("tiny.gguf", "tokenizer.ggml.tokens").unwrap();
    let Some(Array::String(tokens)) = tokens.as_array() else { panic!("no tokens") };
    let text = String::from_utf8(tokens[300].clone()).unwrap();
    let id = |name: &str, role: &str| bench.value(name, &format!("tokenizer.ggml.{role}_token_id"));

    let args = ["set", "tiny.gguf", "general.name=x", "--special", &format!("eot={text}"), "-o", "new.gguf"];
    let report = bench.json(&args, 0);
    let changed: Vec<_> = report["changes"].as_array().unwrap().iter().map(|change| &change["key"]).collect();
    assert_eq!(changed, [&json!("general.name"), &json!("tokenizer.ggml.eot_token_id")]);
    assert_eq!(id("new.gguf", "eot"), Some(Value::U32(300)));
    // Also by the names that checkpoints use; a key keeps its type.
    bench.run(&["set", "new.gguf", "tokenizer.ggml.padding_token_id=i32:1", "--force"]).ok();
    bench.run(&["set", "new.gguf", "--special", &format!("pad={text}")]).ok();
    assert_eq!(id("new.gguf", "padding"), Some(Value::I32(300)));
}

#[test]
fn a_token_that_is_not_there_is_told_with_the_nearest() {
    let bench = Bench::new();
    // The role's name ends at the first equals sign; the text follows.
    let vocabulary = "tokenizer.ggml.tokens=arr[str]:[\"a\", \"<|im_end|>\", \"b\", \"x=y\", \"a\"]";
    bench.run(&["set", "model.gguf", vocabulary]).ok();
    let before = fs_err::read(bench.path("model.gguf")).unwrap();
    let err = bench.run(&["set", "model.gguf", "--special", "eos=<|im_ends|>"]).exits_with(1).err;
    assert_eq!(
        err,
        "error: model.gguf: no token `<|im_ends|>` in the vocabulary\n\nhint: the nearest is `<|im_end|>`\n"
    );
    bench
        .run(&["set", "model.gguf", "--special", "end=b"])
        .says(2, "unknown role `end` of a special token; there are bos, eos,");
    let err = bench.run(&["set", "model.gguf", "--special", "eos"]).exits_with(2).err;
    assert!(err.starts_with("error: `eos`: `ROLE=TOKEN` expected"), "{err}");
    assert_eq!(fs_err::read(bench.path("model.gguf")).unwrap(), before);

    bench.run(&["set", "model.gguf", "--special", "eos=x=y"]).ok();
    assert_eq!(bench.value("model.gguf", "tokenizer.ggml.eos_token_id"), Some(Value::U32(3)));
    let err = bench.run(&["set", "model.gguf", "--special", "bos=a"]).ok().err;
    let expected =
        "warning: token `a` is there 2 times: 0 is taken, tokenizer.ggml.bos_token_id=ID takes another (4)\n";
    assert_eq!(err, expected);
    assert_eq!(bench.value("model.gguf", "tokenizer.ggml.bos_token_id"), Some(Value::U32(0)));

    bench.run(&["remove", "model.gguf", "tokenizer.ggml.tokens", "--force"]).ok();
    bench
        .run(&["set", "model.gguf", "--special", "bos=a"])
        .says_only(1, "error: model.gguf: no vocabulary\n");
}

#[test]
fn a_chat_is_printed_as_the_template_writes_it() {
    let bench = Bench::new();
    let source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if tools %}[{{ tools[0].function.name }}]\
                  {% endif %}{% if add_generation_prompt %}<assistant>{% endif %}";
    fs_err::write(bench.path("chat.jinja"), source).unwrap();
    bench.json(&["template", "model.gguf", "--set", "chat.jinja", "-o", "new.gguf"], 0);
    let render = |chat: &str| bench.run(&["template", "new.gguf", "--render", chat]);
    assert_eq!(render("user").out, "<user>What is the capital of France?<assistant>");
    assert!(
        render("turns").out.starts_with("<system>You are a helpful assistant."),
        "{}",
        render("turns").out
    );
    assert!(render("tools").out.ends_with("Thank you![get_weather]<assistant>"), "{}", render("tools").out);
    fs_err::write(bench.path("list.json"), r#"[{"role": "user", "content": "a"}]"#).unwrap();
    assert_eq!(render("list.json").out, "<user>a<assistant>");
    let object = r#"{"messages": [{"role": "user", "content": "a"}], "add_generation_prompt": false}"#;
    fs_err::write(bench.path("object.json"), object).unwrap();
    assert_eq!(render("object.json").out, "<user>a");
    for (text, expected) in
        [("{}", "no chat: expected a list of messages"), ("x", "no JSON"), ("3", "no chat")]
    {
        fs_err::write(bench.path("bad.json"), text).unwrap();
        let (_, out, err) = render("bad.json").says(1, expected).parts();
        assert!(out.is_empty(), "{text}: {err}");
    }
    bench.run(&["template", "new.gguf", "--render", "user", "--name", "rag"]).says(1, "is missing");
}

//! Chat templates compared with the output of transformers (`lab/peers/chat_fixtures.py`).

use gguf_foundry::core::progress::Silent;
use gguf_foundry::verify::{
    ChatError, ChatTemplate, Check, Finding, Model, Severity, Verdict, VerifyOptions, renderer, verify,
};
use serde_json::{Value, json};

use super::{llama, model, options};

use crate::support::goldens::{Goldens, conformance_tests};
use crate::support::{files, fixture, report_cases, sha256};
use crate::testkit::tiny::Tiny;

fn read(path: &str) -> Value {
    files::json(fixture(path))
}

fn template(source: &str) -> ChatTemplate {
    let tokens = [("bos_token", "<s>"), ("eos_token", "</s>"), ("unk_token", "<unk>")];
    ChatTemplate::new(source, tokens.map(|(name, text)| (name, text.to_owned())).to_vec()).unwrap()
}

/// Renders and compares every chat; returns the number of chats.
fn compare(name: &str, source: &str, expected: &Value) -> usize {
    let template = template(source);
    let chats = read("chat/chats.json");
    let mut n = 0;
    for (chat, messages) in chats.as_object().unwrap() {
        let expected = &expected[chat];
        match template.render(messages) {
            Ok(text) => assert_eq!(Some(text.as_str()), expected["text"].as_str(), "{name}: {chat}"),
            Err(ChatError::Refused { reason }) => {
                assert_eq!(Some(reason.as_str()), expected["refused"].as_str(), "{name}: {chat}");
            }
            // Failures have Python's own messages.
            Err(error) => assert!(expected["failed"].is_string(), "{name}: {chat}: {error}"),
        }
        n += 1;
    }
    n
}

#[test]
fn templates_are_rendered_as_transformers_does() {
    let expected = read("chat/expected.json");
    let mut names = Vec::new();
    for path in files::entries(fixture("chat/templates")) {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let source = fs_err::read_to_string(&path).unwrap();
        assert_eq!(compare(&name, &source, &expected["templates"][&name]), 7);
        names.push(name);
    }
    names.sort_unstable();
    assert_eq!(names, ["chatml", "features", "gemma", "llama3", "mistral"]);
}

conformance_tests!(templates_of_released_models_are_rendered_as_transformers_does);
fn templates_of_released_models_are_rendered_as_transformers_does(corpus: &Goldens) {
    let expected = read("chat/expected.json");
    let mut n_cases = 0;
    for (name, expected) in expected["corpus"].as_object().unwrap() {
        let Some(path) = corpus.find(format!("vocab/{name}/hf/tokenizer_config.json")) else { continue };
        let config = files::json(path);
        let source = config["chat_template"].as_str().unwrap();
        assert_eq!(Some(sha256(source.as_bytes()).as_str()), expected["template_sha256"].as_str(), "{name}");
        n_cases += compare(name, source, &expected["chats"]);
    }
    report_cases("verify: chat templates", n_cases);
}

fn render(source: &str) -> Result<String, ChatError> {
    let tokens = vec![("bos_token", "<s>".to_owned())];
    ChatTemplate::new(source, tokens)?.render(&json!([{"role": "user", "content": "a<b> \"é\""}]))
}

#[test]
fn json_is_written_as_python_does() {
    for (expression, expected) in [
        ("messages", r#"[{"role": "user", "content": "a<b> \"é\""}]"#),
        ("'é🙂\u{7f}'|tojson(ensure_ascii=true)", r#""\u00e9\ud83d\ude42\u007f""#),
        (
            "[1.0, 1e16, 0.00001, 1e15, -2.5e-7, none, true]",
            "[1.0, 1e+16, 1e-05, 1000000000000000.0, -2.5e-07, null, true]",
        ),
        ("{'b': [], 'a': {}}|tojson(sort_keys=true)", r#"{"a": {}, "b": []}"#),
        ("{'b': [1, 2]}|tojson(indent=2)", "{\n  \"b\": [\n    1,\n    2\n  ]\n}"),
        ("{'b': [1, 2]}|tojson(separators=(',', ':'))", r#"{"b":[1,2]}"#),
    ] {
        let filter = if expression.contains("tojson") { "" } else { "|tojson" };
        assert_eq!(render(&format!("{{{{ {expression}{filter} }}}}")).unwrap(), expected);
    }
}

#[test]
fn what_jinja_and_python_have_is_understood() {
    for (source, expected) in [
        ("a\r\n{% if true %}\r\nb\r{% endif %}\r\nc", "a\nb\nc"),
        ("{{ 'a-b-c'.rsplit('-', 1)|join('|') }} {{ ' a  b c '.rsplit()|join('|') }}", "a-b|c a|b|c"),
        ("{{ ' a  b c '.rsplit(none, 1)[0] }}{{ 'a-b'.rsplit('-')[0] }}", " a  ba"),
        (
            "{{ 'some long text'|truncate(8) }}{{ 'some long text'|truncate(8, end='.', killwords=true) }}",
            "some...some lo.",
        ),
        ("{{ 'a b/é'|urlencode }}", "a%20b/%C3%A9"),
        ("{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}", "aba"),
        ("{{ 1.5e300 }} {{ 1e-7 }} {{ 2.0 }} {{ 3 }} {{ 1e16 }}", "1.5e+300 1e-07 2.0 3 1e+16"),
        ("{{ 'abcdefghij klm'|wordwrap(4) }}", "abcd\nefgh\nij\nklm"),
        ("{{ 'abcdefghij klm'|wordwrap(4, break_long_words=False) }}", "abcdefghij\nklm"),
        (
            "{{ 'ab  cd ef'|wordwrap(5, true, '|') }} {{ 'a b c d'|wordwrap(3, wrapstring='<br>') }}",
            "ab|cd ef a b<br>c d",
        ),
        ("{{ 'a-b-c-d e'|wordwrap(3) }}", "a-\nb-\nc-d\ne"),
        ("{{ 'well-known self-made'|wordwrap(7, break_on_hyphens=false) }}", "well-kn\nown sel\nf-made"),
        ("{{ 'a\n\nb c'|wordwrap(3) }}", "a\n\nb c"),
        ("{{ '   lead ing text'|wordwrap(6) }}", "lead\ning\ntext"),
        ("{{ nothing|length }}{{ [1]|count }} {{ 'a'|int }} {{ 'a'|int(7) }} {{ '5'|int + 1 }}", "01 0 7 6"),
        ("{{ 'aaa'|replace('a', 'b', 2) }} {{ 'a b'|wordcount }} {{ 'ab'|center(6) }}|", "bba 2   ab  |"),
        ("{{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('c') }} {{ 'abc'.index('b') }}", "bc ab 1"),
        ("{{ 'a-b-c'.partition('-')|join('|') }} {{ 'a b c'.rpartition(' ')[0] }}", "a|-|b-c a b"),
        (
            "{{ 'ab'.ljust(4, '.') }} {{ 'ab'.rjust(3) }} {{ 'ab'.center(5, '*') }} {{ '-7'.zfill(4) }}",
            "ab..  ab **ab* -007",
        ),
        ("{{ 'aXbX'.split('X', maxsplit=1)|join('|') }} {{ 'a  b'.split()|join('|') }}", "a|bX a|b"),
    ] {
        assert_eq!(render(source).unwrap(), expected, "{source:?}");
    }
}

#[test]
fn limits_stop_templates_that_do_not() {
    let error = |source: &str| render(source).unwrap_err().to_string();
    assert!(
        error("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}")
            .contains("fuel")
    );
    assert!(error("{% for a in range(9999) %}{{ 'x' * 9999 }}{% endfor %}").contains("output of more than"));
    assert!(error("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").contains("recursion"));
    assert!(error(&"x".repeat((1 << 20) + 1)).contains("expected at most"));
    assert!(error("{% if %}").starts_with("chat template: line 1: "));
    assert_eq!(error("{{ raise_exception('no\u{1b}') }}"), "chat template refuses the chat: no\\u{1b}");
    assert!(error("\n{{ messages[0].content.nothing() }}").starts_with("chat template: line 2: "));
}

#[test]
fn blocks_of_generation_are_written() {
    let source =
        "{% for m in messages -%}\n  {%- generation -%} x {% endgeneration %}\n{{ bos_token }}{% endfor %}";
    assert_eq!(render(source).unwrap(), "x <s>");
    assert_eq!(render("{{ '{% generation' }}").unwrap(), "{% generation");
}

#[test]
fn the_date_is_fixed() {
    assert_eq!(render("{{ strftime_now('%d %b %Y, %-m%%') }}").unwrap(), "26 Jul 2024, 7%");
    assert!(render("{{ strftime_now('%Q') }}").is_err());
}

/// The library accesses the last element of an empty list that is sliced backwards.
#[test]
fn a_panic_of_the_library_fails_the_chat_alone() {
    for source in ["{{ [][::-1] | list }}", "{%- for m in [][::-1] -%}x{%- endfor -%}"] {
        match render(source) {
            Ok(text) => assert!(["", "[]"].contains(&text.as_str()), "{source}: {text}"),
            Err(error) => {
                assert!(error.to_string().contains("the template library panicked"), "{source}: {error}");
            }
        }
    }
    assert_eq!(render("{{ [1, 2][::-1] | list }}").unwrap(), "[2, 1]");
}

/// Verdict on the structure of a model with these templates, and the findings about them.
fn found(templates: &[(&str, &str)]) -> (Verdict, Vec<String>) {
    let mut tiny = Tiny::new().with_layers(1);
    for (key, source) in templates {
        tiny.metadata.set(*key, *source);
    }
    let (features, template) = (llama(), renderer(&tiny.metadata));
    let model = Model { template: &*template, ..model(&tiny, &features) };
    let options = VerifyOptions { structure_only: true, ..options(None) };
    let report = verify(&model, None, &[], &options, &Silent, None).unwrap().report;
    // Templates of other models end no answer in this vocabulary, which `verify/src/chat/stop.rs` tests.
    let is_about_ends = |finding: &Finding| finding.message.contains("the answer will not stop");
    let own = report
        .findings
        .iter()
        .filter(|finding| finding.check == Check::ChatTemplate && !is_about_ends(finding));
    let line = |finding: &Finding| {
        let severity = if finding.severity == Severity::Error { "error" } else { "warning" };
        format!("{severity}: {}", finding.message)
    };
    (report.verdict, own.map(line).collect())
}

const KEY: &str = "tokenizer.chat_template";
const PLAIN: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";

#[test]
fn templates_are_rendered_without_prompts_and_what_nothing_knows_is_found_in_any_branch() {
    for (source, expected) in [
        ("{{ messages[0].content | shout }}", "error: line 1: no filter is named `shout`"),
        ("{% if false %}{{ x | shout }}{% endif %}", "error: line 1: no filter is named `shout`"),
        (
            "{% if tools %}\n{{ tools.loud() }}{% endif %}{{ messages[0].content }}",
            "error: line 2: no method is named `loud`",
        ),
        ("{{ messages[0].content.loud() }}", "error: line 1: no method is named `loud`"),
        (
            "{% if x is odder %}{% endif %}{{ messages[0].content }}",
            "error: line 1: no test is named `odder`",
        ),
        ("{{ today() }}", "error: line 1: no function is named `today`"),
        ("{{ raise_exception('never') }}", "error: no chat is rendered, not a single question"),
        ("{{ messages[0].content.x.y.z }}", "error: chat template: line 1: "),
        (
            "{% if messages | length > 1 %}{{ messages[0].content.x.y.z }}{% endif %}",
            "warning: chat template: line 1: ",
        ),
        (
            "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
            "error: chat template: line 1: ",
        ),
    ] {
        let (verdict, lines) = found(&[(KEY, source)]);
        assert!(lines.len() == 1 && lines[0].starts_with(expected), "{source}: {lines:?}");
        let is_error = expected.starts_with("error");
        assert_eq!(verdict, if is_error { Verdict::Fail } else { Verdict::Partial }, "{source}");
    }
}

#[test]
fn healthy_templates_and_refusals_are_no_findings() {
    let no_system =
        "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}";
    let needs_system =
        "{% if messages[0].role != 'system' %}{{ raise_exception('begin with system') }}{% endif %}";
    let no_tools = "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}{% endfor %}";
    for source in [PLAIN, no_system, needs_system, no_tools] {
        assert_eq!(found(&[(KEY, source)]).1, [""; 0], "{source}");
    }
    for entry in fs_err::read_dir(fixture("chat/templates")).unwrap() {
        let source = fs_err::read_to_string(entry.unwrap().path()).unwrap();
        assert_eq!(found(&[(KEY, &source)]).1, [""; 0], "{source}");
    }
}

#[test]
fn templates_with_a_name_are_rendered_too() {
    let named = "tokenizer.chat_template.tool_use";
    assert_eq!(found(&[(KEY, PLAIN), (named, PLAIN)]).1, [""; 0]);
    let (_, lines) = found(&[(KEY, PLAIN), (named, "{{ tools.a.b.c }}")]);
    assert!(
        lines.len() == 1 && lines[0].starts_with("error: template `tool_use`: chat template: line 1"),
        "{lines:?}"
    );
    let (_, lines) = found(&[(KEY, PLAIN), (named, "{% if %}")]);
    assert!(lines.len() == 1 && lines[0].starts_with("error: template `tool_use`: "), "{lines:?}");
}

conformance_tests!(templates_of_released_models_are_found_healthy);
fn templates_of_released_models_are_found_healthy(corpus: &Goldens) {
    let expected = read("chat/expected.json");
    let mut n_cases = 0;
    for name in expected["corpus"].as_object().unwrap().keys() {
        let Some(path) = corpus.find(format!("vocab/{name}/hf/tokenizer_config.json")) else { continue };
        let config = files::json(path);
        assert_eq!(found(&[(KEY, config["chat_template"].as_str().unwrap())]).1, [""; 0], "{name}");
        n_cases += 1;
    }
    report_cases("verify: healthy chat templates", n_cases);
}

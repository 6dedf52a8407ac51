//! Chat templates: a file, the tokenizer's configuration, the processor's files.

use gguf_conversion::{Conversion, ConvertOptions};
use serde_json::{Value as Json, json};

use super::{ABSENT, Model, only_warning, text};
use gguf_testkit::tiers::{Tier, two_tiers};
use gguf_testkit::{files, fixture};

const KEY: &str = "tokenizer.chat_template";

two_tiers!(every_pair_of_sources_is_settled_by_rank_and_said);
fn every_pair_of_sources_is_settled_by_rank_and_said(tier: Tier) {
    let files: [Option<&str>; 4] = [None, Some("{{A}}"), Some("{{A}}\n"), Some("{{B}}")];
    let members: [(Json, Option<&str>); 5] = [
        (json!(ABSENT), None),
        (Json::Null, None),
        (json!("{{A}}"), Some("{{A}}")),
        (json!("{{C}}"), Some("{{C}}")),
        (json!([{"name": "default", "template": "{{A}}"}]), Some("{{A}}")),
    ];
    let older = [json!(ABSENT), json!("{{A}}"), json!("{{D}}")];
    let (mut n, mut n_warned) = (0, 0);
    for file in tier.some(2, files) {
        for (member, of_member) in &members {
            for last in &older {
                let model = Model::new();
                if let Some(text) = file {
                    model.write("chat_template.jinja", text);
                }
                model.set("tokenizer_config.json", &[("chat_template", member.clone())]);
                let of_last = last.as_str().filter(|text| *text != ABSENT);
                if of_last.is_some() {
                    model.set("chat_template.json", &[("chat_template", last.clone())]);
                }
                let conversion = model.planned();
                let plain = |text: &str| text.trim_end().to_owned();
                let said: Vec<String> =
                    [file, *of_member, of_last].into_iter().flatten().map(plain).collect();
                let found = text(&conversion, KEY).as_deref().map(plain);
                assert_eq!(found.as_ref(), said.first(), "{file:?} {member} {last}");
                let n_differing = said.iter().skip(1).filter(|text| *text != &said[0]).count();
                assert_eq!(conversion.warnings().len(), n_differing, "{:?}", conversion.warnings());
                for warning in conversion.warnings() {
                    assert!(warning.contains("hold different chat templates"), "{warning}");
                    n_warned += 1;
                }
                n += 1;
            }
        }
    }
    assert_eq!((n, n_warned), tier.of((30, 12), (60, 39)));
}

#[test]
fn both_files_are_named() {
    let model = Model::new();
    model
        .write("chat_template.jinja", "{{new}}")
        .set("tokenizer_config.json", &[("chat_template", json!("{{older}}"))]);
    let conversion = model.planned();
    assert_eq!(
        only_warning(&conversion),
        "chat_template.jinja (7 bytes) and tokenizer_config.json (9 bytes) hold different chat templates: that of \
         chat_template.jinja is written, as transformers takes it"
    );
    let given = model.path().join("given.jinja");
    fs_err::write(&given, "\u{feff}given").unwrap();
    let options = ConvertOptions { chat_template: Some(given), ..ConvertOptions::default() };
    let conversion = Conversion::plan(model.path(), &options).unwrap();
    assert_eq!(text(&conversion, KEY).as_deref(), Some("given"));
}

#[test]
fn files_are_read_without_a_tokenizer_configuration() {
    let model = Model::new();
    fs_err::remove_file(model.path().join("tokenizer_config.json")).unwrap();
    model.write("chat_template.jinja", "T");
    assert_eq!(text(&model.planned(), KEY).as_deref(), Some("T"));
}

#[test]
fn templates_of_several_files_complete_one_another() {
    let model = Model::new();
    fs_err::create_dir(model.path().join("additional_chat_templates")).unwrap();
    model.write("additional_chat_templates/rag.jinja", "R");
    model.set("tokenizer_config.json", &[("chat_template", json!("{{D}}"))]);
    let conversion = model.planned();
    assert_eq!(text(&conversion, KEY).as_deref(), Some("{{D}}"));
    assert_eq!(text(&conversion, "tokenizer.chat_template.rag").as_deref(), Some("R"));
    assert!(conversion.warnings().is_empty(), "{:?}", conversion.warnings());
    model.set("tokenizer_config.json", &[("chat_template", Json::Null)]);
    assert_eq!(
        only_warning(&model.planned()),
        "additional_chat_templates: no chat template is named `default`, so llama.cpp takes ChatML; `--chat-template FILE` takes one"
    );
}

#[test]
fn a_model_for_conversations_without_a_template_is_told() {
    let parent = tempfile::tempdir().unwrap();
    for (name, is_told) in [
        ("Tiny-Instruct", true),
        ("tiny-chat", true),
        ("tiny-2b-it", true),
        ("tiny-base", false),
        ("unit-italic", false),
    ] {
        let dir = parent.path().join(name);
        fs_err::create_dir(&dir).unwrap();
        files::copy(fixture("tiny-llama"), &dir);
        let conversion = Conversion::plan(&dir, &ConvertOptions::default()).unwrap();
        let told = conversion.warnings().iter().any(|warning| warning.contains("no chat template"));
        assert_eq!(told, is_told, "{name}: {:?}", conversion.warnings());
    }
    let model = Model::new();
    model.set("config.json", &[("_name_or_path", json!("org/Tiny-Instruct"))]);
    assert!(
        only_warning(&model.planned()).contains("`Tiny-Instruct` is a model for conversations by its name")
    );
    model.write("chat_template.jinja", "");
    let warnings = model.planned().warnings().join("\n");
    assert!(
        warnings.contains("chat_template.jinja is empty") && warnings.contains("by its name"),
        "{warnings}"
    );
}

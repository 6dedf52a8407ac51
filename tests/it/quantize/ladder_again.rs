//! The second run of `gguf-quantize ladder` in a folder: what is kept, what joins, what is refused, what is cleared away.

use std::path::Path;
use std::time::SystemTime;

use gguf_foundry::core::progress::Silent;
use gguf_foundry::job::JobInput;
use gguf_foundry::job::ladder::{Ladder, Rung};
use serde_json::Value as Json;

use super::convert_two_layers;
use crate::support::programs::Outcome;
use crate::support::tiers::Tier;
use crate::support::{files, fixture, programs};

fn make(dir: &Path, args: &[&str]) -> Outcome {
    programs::run("gguf-quantize", dir, &[&["ladder", "in.gguf", "-o", "out"], args, &["--no-sync"]].concat())
}

/// Two layers of the bundled model, and a text of one chunk.
fn prepare(dir: &Path) {
    convert_two_layers(Tier::Everyday, dir, "f16");
    let text = fs_err::read_to_string(fixture("tiny-llama/corpus.txt")).unwrap();
    fs_err::write(dir.join("text.txt"), &text[..text.floor_char_boundary(2000)]).unwrap();
    fs_err::write(
        dir.join("other.txt"),
        &text[text.floor_char_boundary(2000)..text.floor_char_boundary(4000)],
    )
    .unwrap();
}

fn time(path: &Path) -> SystemTime {
    fs_err::metadata(path).unwrap().modified().unwrap()
}

/// Types of the list, each with its mean KLD.
fn listed(dir: &Path) -> Vec<(String, Option<f64>)> {
    let list = files::json(dir.join("out/ladder.json"));
    let file =
        |file: &Json| (file["type"].as_str().unwrap().to_owned(), file["figures"]["mean_kld"].as_f64());
    list["files"].as_array().unwrap().iter().map(file).collect()
}

fn read(dir: &Path, name: &str) -> String {
    fs_err::read_to_string(dir.join("out").join(name)).unwrap()
}

#[test]
fn a_folder_is_worked_on_again() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    prepare(dir);
    // Stopped after the files were written: two whole files, no page, and something of a run that died.
    let rungs = Rung::parse_list("q8_0,q4_0").unwrap();
    let ladder = Ladder::new(JobInput::Gguf(dir.join("in.gguf")), rungs, dir.join("out"));
    let ladder = Ladder { sync: false, command: "gguf-quantize ladder first".to_owned(), ..ladder };
    ladder.run(&Silent).unwrap();
    assert_eq!(files::names(dir.join("out")), [".ladder.json", "in-Q4_0.gguf", "in-Q8_0.gguf"]);
    for name in [".in-Q6_K.gguf.into-ab.1", ".in-Q6_K.gguf.into-ab.1.1-of-1.at", ".in-Q5_0.gguf.AbC123.tmp"] {
        fs_err::write(dir.join("out").join(name), "left").unwrap();
    }
    let models = ["Q8_0", "Q4_0"].map(|ty| dir.join(format!("out/in-{ty}.gguf")));
    let written = models.clone().map(|path| time(&path));
    let said = make(dir, &["--types", "q8_0,q4_0", "--verify", "text.txt", "--by", "me"]).ok();
    assert!(said.err.contains("already written: Q8_0, Q4_0\n"), "{}", said.err);
    assert!(
        said.err.contains("README.md names no base model and no license: `--base-model ORG/NAME`"),
        "{}",
        said.err
    );
    assert!(said.out.contains("2 files") && said.out.contains("all of which were there"), "{}", said.out);
    assert!(
        said.out.contains("recommended: in-Q8_0.gguf\n") && said.out.contains("mean KLD"),
        "{}",
        said.out
    );
    assert!(said.out.ends_with("publish: hf upload me/Tiny-Llama-GGUF out --exclude '.*'\n"), "{}", said.out);
    let finished =
        ["README.md", "SHA256SUMS", "in-Q4_0.gguf", "in-Q8_0.gguf", "ladder.json", "size-against-kld.svg"];
    assert_eq!(files::names(dir.join("out")), finished);
    let before = listed(dir);
    assert!(before.iter().all(|(_, kld)| kld.is_some()), "{before:?}");
    let contents = || finished.map(|name| fs_err::read(dir.join("out").join(name)).unwrap());
    let content = contents();

    // A finished folder is left as it is: nothing is written, nothing is measured.
    let said =
        make(dir, &["--types", "q8_0,q4_0", "--verify", "text.txt", "--by", "me", "--resume", "-v"]).ok();
    assert!(!said.err.contains("running the model") && !said.err.contains("writing"), "{}", said.err);
    assert!(contents() == content && models.clone().map(|path| time(&path)) == written);

    // A further type, without figures; then its figures alone are measured.
    let said = make(dir, &["--types", "iq4_nl", "--by", "me"]).ok();
    assert!(said.err.contains("1 of 3 files have no figures: `--verify text.txt`"), "{}", said.err);
    assert!(said.out.contains("3 files") && read(dir, "SHA256SUMS").lines().count() == 3, "{}", said.out);
    let open = listed(dir);
    assert_eq!(open[0], before[0]);
    assert_eq!(open.iter().filter(|(_, kld)| kld.is_none()).count(), 1, "{open:?}");
    assert!(read(dir, "README.md").contains("size-against-kld.svg"));
    make(dir, &["--types", "iq4_nl", "--by", "me", "--verify", "text.txt"]).ok();
    let all = listed(dir);
    assert!(all.iter().all(|(_, kld)| kld.is_some()) && all.contains(&before[1]), "{all:?}");
    let page = read(dir, "README.md");
    for text in ["3 quantizations", "| pass |", "llama-server -hf me/Tiny-Llama-GGUF:", "An answer ends with"]
    {
        assert!(page.contains(text), "{text}: {page}");
    }
    assert_eq!(page.matches("    gguf-quantize ladder").count(), 2, "{page}");
    assert!(read(dir, "size-against-kld.svg").contains("IQ4_NL"));

    // Another text: all files have the figures of one text.
    make(dir, &["--types", "iq4_nl", "--by", "me", "--verify", "other.txt"]).ok();
    let list = files::json(dir.join("out/ladder.json"));
    for file in list["files"].as_array().unwrap() {
        assert_eq!(file["figures"]["text"]["name"], "other.txt");
    }

    // Other options are refused, with both commands, and asked for by `--replace`.
    let said = make(dir, &["--types", "q4_0", "--pure"])
        .says(1, "in-Q4_0.gguf: it is there, made with other options");
    for text in ["`gguf-quantize ladder first`", "--pure", "`--replace`"] {
        assert!(said.err.contains(text), "{text}: {}", said.err);
    }
    let old = fs_err::read(&models[1]).unwrap();
    make(dir, &["--types", "q4_0", "--pure", "--replace"]).ok();
    assert!(fs_err::read(&models[1]).unwrap() != old && listed(dir).len() == 3);

    // A file that was changed is refused, of this run or not; one that was removed is not listed any more.
    let mut changed = fs_err::read(&models[0]).unwrap();
    *changed.last_mut().unwrap() ^= 1;
    fs_err::write(&models[0], &changed).unwrap();
    make(dir, &["--types", "q8_0"]).says(1, "in-Q8_0.gguf: it was changed since");
    make(dir, &["--types", "iq4_nl"]).says(1, "in-Q8_0.gguf: it was changed since");
    fs_err::remove_file(&models[0]).unwrap();
    make(dir, &["--types", "iq4_nl"]).ok();
    assert_eq!(listed(dir).len(), 2);
    // Another model of the same name and shapes.
    let mut source = fs_err::read(dir.join("in.gguf")).unwrap();
    let at = source.len() / 16 * 8;
    source[at] ^= 1;
    fs_err::write(dir.join("in.gguf"), &source).unwrap();
    make(dir, &["--types", "q4_0", "--pure"]).says(1, "made of another source");
    make(dir, &["--types", "q6_k"]).says(1, "was made of another source or tokenizer than this run reads");
    assert!(!files::names(dir.join("out")).iter().any(|name| name.contains("Q6_K")));
}

/// The page of the folder is no model card of the checkpoint that it lies beside.
#[test]
fn a_checkpoint_can_hold_its_own_ladder() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    files::copy(fixture("tiny-llama"), &dir.join("model"));
    let make = || {
        let args = ["ladder", "model", "-o", "model", "--types", "q8_0", "--name", "org/Mine", "--no-sync"];
        programs::run("gguf-quantize", dir, &args).ok()
    };
    let said = make();
    assert!(said.out.contains("publish: hf upload YOUR-NAME/Mine-GGUF model"), "{}", said.out);
    let file = gguf_foundry::gguf::GgufFile::open(&dir.join("model/org-Mine-Q8_0.gguf")).unwrap();
    assert_eq!(file.metadata().get("general.name").and_then(|name| name.as_str()), Some("org/Mine"));
    let said = make();
    assert!(said.err.contains("already written: Q8_0"), "{}", said.err);
}

#[cfg(unix)]
#[test]
fn one_run_works_in_a_folder_after_the_other() {
    use gguf_foundry::core::output::EditLock;
    use std::time::Duration;
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    convert_two_layers(Tier::Everyday, dir, "f16");
    fs_err::create_dir(dir.join("out")).unwrap();
    let other = EditLock::of(&dir.join("out"), Duration::ZERO, &mut |_| true).unwrap();
    let until = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(3));
        drop(other);
    });
    let said = make(dir, &["--types", "q8_0"]).ok();
    until.join().unwrap();
    assert!(said.err.contains("out: another ladder works in this folder: waiting for it"), "{}", said.err);
    // A part has a record of its own, and waits for nobody.
    let _other = EditLock::of(&dir.join("out"), Duration::ZERO, &mut |_| true).unwrap();
    make(dir, &["--types", "q4_0,q8_0", "--part", "1/2"]).ok();
}

/// A template that was mended comes into all files of a folder, or into none.
#[test]
fn files_of_two_tokenizers_do_not_stand_beside_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    files::copy(fixture("tiny-llama"), &dir.join("model"));
    let make = |args: &[&str]| {
        let args = [&["ladder", "model", "-o", "out", "--types"], args, &["--no-sync"]].concat();
        programs::run("gguf-quantize", dir, &args)
    };
    make(&["q8_0"]).ok();
    files::edit_json(dir.join("model/tokenizer_config.json"), |config| {
        config["chat_template"] = "{% for m in messages %}{{ m.content }}</s>{% endfor %}".into();
    });
    make(&["q8_0"]).says(1, "it is there, made of another source or tokenizer than this run's");
    make(&["q4_0"]).says(1, "Q8_0.gguf: it was made of another source or tokenizer");
    make(&["q8_0,q4_0", "--replace"]).ok();
}

#[test]
fn names_parts_and_pages_are_those_that_were_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    prepare(dir);
    let args = [
        "--types",
        "q8_0",
        "--name",
        "My Model",
        "--name-pattern",
        "{name}.{type}",
        "--split-max-size",
        "1M",
    ];
    let more = ["--base-model", "org/Model-1B", "--license", "apache-2.0", "--modelfile", "--by", "me"];
    let said = make(dir, &[&args[..], &more].concat()).ok();
    assert!(!said.err.contains("README.md names no"), "{}", said.err);
    let names = files::names(dir.join("out"));
    let parts: Vec<&String> = names.iter().filter(|name| name.starts_with("My-Model.Q8_0-0000")).collect();
    assert!(parts.len() > 1, "{names:?}");
    let (page, sums) = (read(dir, "README.md"), read(dir, "SHA256SUMS"));
    // Ollama loads no file in parts.
    assert!(said.err.contains("no Modelfile is written: Ollama loads no file in parts"), "{}", said.err);
    assert!(!dir.join("out/Modelfile").exists() && !page.contains("ollama"), "{page}");
    for part in &parts {
        assert!(sums.contains(part.as_str()), "{sums}");
    }
    for text in [
        "# My Model in GGUF",
        "base_model: \"org/Model-1B\"",
        "license: \"apache-2.0\"",
        "me/My-Model-GGUF:Q8_0",
    ] {
        assert!(page.contains(text), "{text}: {page}");
    }
    // The same command finds its files under the name that it gave.
    let said = make(dir, &[&args[..], &more].concat()).ok();
    assert!(said.err.contains("already written: Q8_0\n"), "{}", said.err);
    // Whole, it replaces its parts.
    let whole = [&args[..6], &more, &["--replace"]].concat();
    make(dir, &whole).ok();
    let names = files::names(dir.join("out"));
    assert_eq!(
        names.iter().filter(|name| name.starts_with("My-Model")).collect::<Vec<_>>(),
        ["My-Model.Q8_0.gguf"]
    );
    let modelfile = read(dir, "Modelfile");
    assert!(modelfile.contains("FROM ./My-Model.Q8_0.gguf\n") && modelfile.contains("PARAMETER stop"));
    assert!(read(dir, "README.md").contains("ollama run hf.co/me/My-Model-GGUF:Q8_0"));
    // A Modelfile of an earlier run goes with the file that it names.
    make(dir, &[&args[..], &["--replace"]].concat()).ok();
    assert!(!dir.join("out/Modelfile").exists());
    // `general.name` as a key reaches the names, too.
    let key = ["--types", "q4_0", "--override-kv", "general.name=str:Other", "--dry-run"];
    assert!(make(dir, &key).ok().out.contains("Other-Q4_0.gguf"));
    for (pattern, why) in [
        ("{type}.gguf", "without `.gguf`"),
        ("{name}", "`{type}` expected"),
        ("a/{type}", "no slash"),
        ("{type}{size}", "only `{name}`"),
    ] {
        make(dir, &["--types", "q4_0", "--name-pattern", pattern]).says(2, why);
    }
}

#[test]
fn types_that_are_made_separately_come_in_parts_too() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let rungs = Rung::parse_list("q8_0,q4_0").unwrap();
    let ladder = Ladder::new(JobInput::Checkpoint(fixture("tiny-llama")), rungs, out.clone());
    let ladder = Ladder { sync: false, max_part_bytes: 1 << 20, ..ladder };
    let made = ladder.run(&Silent).unwrap();
    assert!(made.files.iter().any(|file| file.plan.is_alone), "no type is made separately");
    for file in &made.files {
        assert!(file.plan.paths.len() > 1 && file.plan.paths.iter().all(|path| path.is_file()), "{file:?}");
        assert_eq!(file.sha256.len(), file.plan.paths.len());
    }
    let names = files::names(&out);
    let again = ladder.run(&Silent).unwrap();
    assert!(again.files.iter().all(|file| file.was_there) && files::names(&out) == names, "{names:?}");
}

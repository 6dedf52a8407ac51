//! `gguf-quantize ladder`: many files from one reading, each with the bytes of its own run.

use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};

use gguf_foundry::convert::ConvertOptions;
use gguf_foundry::core::TensorSource;
use gguf_foundry::core::progress::{Progress, Silent};
use gguf_foundry::gguf::{GgufFile, StoredImatrix};
use gguf_foundry::job::ladder::{Ladder, Preset, Rung};
use gguf_foundry::job::{Events, Job, JobInput, JobOutput, OutputPath};

use super::{convert, convert_for, convert_two_layers, run};
use crate::support::programs::Outcome;
use crate::support::tiers::{Tier, deep_test, two_tiers};
use crate::support::{files, fixture, programs};

fn is_model(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|suffix| suffix == "gguf")
}

fn make(dir: &Path, args: &[&str]) -> Outcome {
    programs::run("gguf-quantize", dir, &[&["ladder"], args, &["--no-sync"]].concat())
}

/// Options of a single run that give a type of the ladder.
fn single_options(name: &str) -> Vec<&str> {
    let base = match name {
        "Q3_K_XL" => "Q3_K_L",
        "Q2_K_L" => "Q2_K",
        "Q4_K_L" => "Q4_K_M",
        "Q5_K_L" => "Q5_K_M",
        "Q6_K_L" => "Q6_K",
        _ => return vec!["--type", name],
    };
    vec!["--type", base, "--output-tensor-type", "q8_0", "--token-embedding-type", "q8_0"]
}

/// Compares every file of a ladder with a run of its own; returns the number of files.
fn compare(dir: &Path, folder: &str, source: &str, names: &[&str], more: &[&str]) -> usize {
    for name in names {
        let found = files::names(dir.join(folder))
            .into_iter()
            .find(|file| file.strip_suffix(".gguf").is_some_and(|stem| stem.ends_with(&format!("-{name}"))));
        let found = found.unwrap_or_else(|| panic!("{name}: {:?}", files::names(dir.join(folder))));
        let options = single_options(name);
        run(dir, &[&[source, "single.gguf"][..], &options, more].concat()).ok();
        let [own, single] =
            [dir.join(folder).join(&found), dir.join("single.gguf")].map(|path| fs_err::read(path).unwrap());
        assert!(own == single, "{name}: {found} differs from a run of its own");
    }
    names.len()
}

/// Importance matrix of the bundled model on a short text.
fn importance(dir: &Path) {
    let text = fs_err::read_to_string(fixture("tiny-llama/corpus.txt")).unwrap();
    fs_err::write(dir.join("text.txt"), &text[..text.floor_char_boundary(2000)]).unwrap();
    let args = ["imatrix", "in.gguf", "-f", "text.txt", "--ctx", "64", "--no-ppl", "-o", "m.gguf"];
    programs::run("gguf-verify", dir, &args).ok();
}

two_tiers!(every_file_has_the_bytes_of_its_own_run);

fn every_file_has_the_bytes_of_its_own_run(tier: Tier) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    convert_for(tier, dir, "f16");
    importance(dir);
    let some = "Q8_0,Q4_K_L,Q4_K_M,IQ2_M";
    let full: Vec<&str> = tier.of(some, Preset::Full.types()).split(',').collect();
    let [option, types] = tier.of(["--types", some], ["--preset", "full"]);
    // The files name the matrix without its folder.
    let matrix = dir.join("m.gguf").display().to_string();
    let report = make(dir, &["in.gguf", "-o", "full", option, types, "--imatrix", &matrix, "--json"]);
    let report = report.ok().json();
    let n = compare(dir, "full", "in.gguf", &full, &["--imatrix", "m.gguf"]);
    assert_eq!(report["files"].as_array().unwrap().len(), n);
    let [all, made] = ["file_bytes", "made_bytes"].map(|key| report[key].as_u64().unwrap());
    assert!(made < all * tier.of(9, 7) / 10, "{made} of {all}: files have much in common");
    for file in report["files"].as_array().unwrap() {
        let path = dir.join("full").join(file["parts"][0]["name"].as_str().unwrap());
        assert_eq!(fs_err::metadata(path).unwrap().len(), file["file_bytes"].as_u64().unwrap());
    }
    let mut check = std::process::Command::new("sha256sum");
    let check = programs::finish(check.args(["--check", "SHA256SUMS"]).current_dir(dir.join("full"))).ok();
    assert_eq!(check.out.matches(": OK").count(), n, "{}", check.out);
    // Nothing but the files is left.
    let n_models = files::names(dir.join("full")).iter().filter(|name| is_model(name)).count();
    assert_eq!(n_models, n);
    assert!(
        files::names(dir.join("full")).iter().all(|name| !name.starts_with('.') && !name.contains(".into-"))
    );

    // Also with one thread, little memory, and floats; F32 tensors are copied.
    let args = ["in.gguf", "-o", "few", "--types", "f16,bf16,q4_0,copy", "--memory", "1M", "--threads", "1"];
    make(dir, &args).ok();
    assert_eq!(compare(dir, "few", "in.gguf", &["F16", "BF16", "Q4_0", "COPY"], &[]), 4);
}

deep_test!(a_checkpoint_s_ladder_has_the_bytes_of_single_conversions);

fn a_checkpoint_s_ladder_has_the_bytes_of_single_conversions() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let source = fixture("tiny-llama");
    let source = source.to_str().unwrap();
    make(dir, &[source, "-o", "out", "--types", "f16,bf16,q8_0,q6_k_l,q4_k_m,q4_0,iq4_xs"]).ok();
    let names = ["F16", "BF16", "Q8_0", "Q6_K_L", "Q4_K_M", "Q4_0", "IQ4_XS"];
    assert_eq!(compare(dir, "out", source, &names, &[]), names.len());
}

#[test]
fn types_that_keep_integers_are_written_by_runs_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let convert = ConvertOptions { tokenizer: false, ..ConvertOptions::default() };
    let mut n_alone = 0;
    for name in ["nvfp4_llama_mixed", "fp8_qwen3moe"] {
        let input = JobInput::Checkpoint(fixture(&format!("native/{name}/hf")));
        let rungs = Rung::parse_list("q8_0,q4_0,mxfp4_moe,q6_k,f16").unwrap();
        let ladder = Ladder::new(input.clone(), rungs, dir.join(name));
        let report = Ladder { convert: convert.clone(), sync: false, ..ladder }.run(&Silent).unwrap();
        for file in report.files {
            n_alone += usize::from(file.plan.is_alone);
            let single = dir.join("single.gguf");
            let output = JobOutput::at(OutputPath::File(single.clone()));
            let job = Job::new(input.clone(), file.plan.name.parse().unwrap(), output);
            Job { convert: convert.clone(), sync: false, ..job }.run(&Silent).unwrap();
            let [own, single] = [&file.plan.paths[0], &single].map(|path| fs_err::read(path).unwrap());
            assert!(own == single, "{name}: {} differs from a run of its own", file.plan.name);
        }
    }
    assert!(n_alone > 2, "{n_alone}");
}

/// Receiver that stops a run after some chunks.
struct Stop(AtomicI64);

impl Progress for Stop {
    fn advance(&self, _: u64) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed) <= 0
    }
}

impl Events for Stop {
    fn progress(&self) -> &dyn Progress {
        self
    }
}

fn ladder(dir: &Path, folder: &str, types: &str) -> Ladder {
    let rungs = Rung::parse_list(types).unwrap();
    let ladder = Ladder::new(JobInput::Gguf(dir.join("in.gguf")), rungs, dir.join(folder));
    Ladder { resume: true, sync: false, memory_bytes: 1 << 20, ..ladder }
}

#[test]
fn a_stopped_ladder_is_continued() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    convert(dir, "f32");
    let types = "q8_0,q6_k,q4_k_m,q4_0,q3_k_s";
    let whole = ladder(dir, "whole", types).run(&Silent).unwrap();
    let own = ladder(dir, "own", types);
    let mut n_stopped = 0;
    for n_chunks in 1.. {
        // A run that writes five chunks and what it had before is never longer than the next.
        match own.run(&Stop(AtomicI64::new(5 * n_chunks))) {
            Ok(_) => break,
            Err(error) => assert!(error.to_string().contains("interrupted"), "{error}"),
        }
        n_stopped += 1;
        let named = files::names(dir.join("own")).into_iter().filter(|name| is_model(name));
        for name in named {
            let [own, whole] =
                ["own", "whole"].map(|folder| fs_err::read(dir.join(folder).join(&name)).unwrap());
            assert!(own == whole, "{name} has its name and is not complete");
        }
    }
    assert!(n_stopped > 3, "{n_stopped}");
    for file in &whole.files {
        let path = &file.plan.paths[0];
        let own = dir.join("own").join(path.file_name().unwrap());
        assert!(fs_err::read(own).unwrap() == fs_err::read(path).unwrap(), "{}", path.display());
    }
    assert_eq!(files::names(dir.join("own")), files::names(dir.join("whole")));
}

#[test]
fn a_large_file_comes_in_parts() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    convert(dir, "f32");
    // Names of the folder's files can be typed, whatever the input is called.
    let odd = dir.join("a\nb\u{1b}.gguf");
    fs_err::copy(dir.join("in.gguf"), &odd).unwrap();
    let named = Ladder { input: JobInput::Gguf(odd), ..ladder(dir, "named", "q4_0") }.plan(&Silent).unwrap();
    assert_eq!(named.files[0].paths, [dir.join("named/a-b--Q4_0.gguf")]);
    let parts = Ladder { max_part_bytes: 1_000_000, ..ladder(dir, "parts", "q8_0,q4_0,q2_k") };
    let report = parts.run(&Silent).unwrap();
    ladder(dir, "whole", "q8_0,q4_0,q2_k").run(&Silent).unwrap();
    assert!(report.files[0].plan.paths.len() > 1);
    for file in &report.files {
        assert_eq!(file.plan.paths.len(), file.sha256.len());
        let whole = dir.join("whole").join(format!("in-{}.gguf", file.plan.name));
        let [parts, whole] = [&file.plan.paths[0], &whole].map(|path| GgufFile::open(path).unwrap());
        assert_eq!(parts.tensors(), whole.tensors());
        for tensor in 0..whole.tensors().len() {
            assert!(parts.raw_tensor(tensor) == whole.raw_tensor(tensor), "{}", whole.tensors()[tensor].name);
        }
    }
}

#[test]
fn what_cannot_be_made_is_said_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    convert(dir, "f16");
    let said = make(dir, &["in.gguf", "-o", "out", "--dry-run"]).ok();
    assert!(
        said.err.contains("left out, because they need `--imatrix` or `--calibration`: IQ3_XXS, IQ2_M"),
        "{}",
        said.err
    );
    assert!(said.out.contains("in-Q4_K_S.gguf"), "{}", said.out);
    make(dir, &["in.gguf", "-o", "out", "--types", "iq2_m"]).says(1, "needs an importance matrix");
    make(dir, &["in.gguf", "-o", "out", "--types", "q4_k_m,q9"]).says(2, "unknown type `q9`");
    make(dir, &["in.gguf", "-o", "out", "--types", ","]).says(2, "at least one type expected");
    make(dir, &["in.gguf", "-o", "out", "--preset", "huge"]).says(2, "one of `small`, `standard`, `full`");
    make(dir, &["missing.gguf", "-o", "out"]).says(1, "missing.gguf");
    make(dir, &["in.gguf", "-o", "out", "--types", "q8_0", "--verify", "missing.txt"]).says(1, "missing.txt");
    assert!(!dir.join("out").exists());
    // A file that is no model is not replaced, and nor is the source.
    fs_err::create_dir(dir.join("out")).unwrap();
    fs_err::write(dir.join("out/in-Q4_0.gguf"), "mine").unwrap();
    make(dir, &["in.gguf", "-o", "out", "--types", "q8_0,q4_0"]).says(1, "does not replace");
    assert_eq!(files::names(dir.join("out")), ["in-Q4_0.gguf"]);
    fs_err::rename(dir.join("in.gguf"), dir.join("in-F16.gguf")).unwrap();
    make(dir, &["in-F16.gguf", "-o", ".", "--types", "f16,q4_0"]).ok();
    assert!(dir.join("in-F16-F16.gguf").exists());
}

two_tiers!(a_folder_is_ready_to_be_published);

fn a_folder_is_ready_to_be_published(tier: Tier) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    convert_for(tier, dir, "f16");
    let text = fs_err::read_to_string(fixture("tiny-llama/corpus.txt")).unwrap();
    // Every day one chunk.
    let n_bytes = tier.of(2000, 5000);
    fs_err::write(dir.join("text.txt"), &text[..text.floor_char_boundary(n_bytes)]).unwrap();
    let text = "text.txt";
    let args =
        ["in.gguf", "-o", "out", "--types", "q8_0,q4_k_m,iq2_m", "--calibration", text, "--verify", text];
    let more = ["--by", "Some One", "--resume"];
    let said = make(dir, &[&args[..], &more].concat()).ok();
    assert!(
        said.out.contains("publish: hf upload Some-One/Tiny-Llama-GGUF out --exclude '.*'\n"),
        "{}",
        said.out
    );
    // The text is short.
    let mut warnings = said.err.lines().filter(|line| line.contains("warning"));
    assert!(warnings.all(|line| line.contains("tokens only")), "{}", said.err);
    let names = files::names(dir.join("out"));
    let expected = [
        "README.md",
        "SHA256SUMS",
        "imatrix.gguf",
        "in-IQ2_M.gguf",
        "in-Q4_K_M.gguf",
        "in-Q8_0.gguf",
        "ladder.json",
        "size-against-kld.svg",
    ];
    assert_eq!(names, expected);
    let list = files::json(dir.join("out/ladder.json"));
    let kld: Vec<f64> = list["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|file| file["figures"]["mean_kld"].as_f64().unwrap())
        .collect();
    assert!(kld.is_sorted() && kld[0] < 0.001 && kld[2] > 0.01, "{kld:?}");
    // The figures are those of gguf-verify.
    let verify = ["out/in-Q4_K_M.gguf", "--baseline", "in.gguf", "--prompts", text, "--json"];
    let single = programs::run("gguf-verify", dir, &verify).ok().model();
    assert_eq!(single["kld"]["mean"].as_f64(), Some(kld[1]));
    let page = fs_err::read_to_string(dir.join("out/README.md")).unwrap();
    let (front, body) = page.strip_prefix("---\n").unwrap().split_once("\n---\n").unwrap();
    assert!(
        front.contains("pipeline_tag: \"text-generation\"") && front.contains("quantized_by: \"Some One\"")
    );
    assert!(
        body.contains("[in-Q4\\_K\\_M.gguf](in-Q4_K_M.gguf)") && body.contains("size-against-kld.svg"),
        "{body}"
    );
    assert!(!body.contains(dir.to_str().unwrap()) && !body.contains("/fixtures/"), "{body}");

    // Made again, the folder is replaced; a page that a person has worked on is not.
    make(dir, &[&args[..], &more].concat()).ok();
    assert_eq!(files::names(dir.join("out")), expected);
    // A matrix of another text, or of another model, is not taken, whatever their names.
    let (matrix, model) = (dir.join("out/imatrix.gguf"), dir.join("in.gguf"));
    let kept = [&matrix, &model].map(|path| fs_err::read(path).unwrap());
    assert_eq!(StoredImatrix::open(&matrix).unwrap().datasets(), [b"text.txt"]);
    let resumed = ["in.gguf", "-o", "out", "--types", "iq2_m", "--calibration", text, "--resume"];
    let measured = fs_err::read(dir.join(text)).unwrap();
    fs_err::write(dir.join(text), "another text ".repeat(400)).unwrap();
    make(dir, &resumed).says(1, "measured on another text, of another model");
    fs_err::write(dir.join(text), measured).unwrap();
    let mut changed = kept[1].clone();
    *changed.iter_mut().rfind(|byte| **byte != 0).unwrap() ^= 1;
    fs_err::write(&model, changed).unwrap();
    make(dir, &resumed).says(1, "measured on another text, of another model");
    fs_err::write(&model, &kept[1]).unwrap();
    assert_eq!(fs_err::read(&matrix).unwrap(), kept[0]);
    fs_err::write(dir.join("out/README.md"), "# Mine\n").unwrap();
    make(dir, &args).says(1, "this is a text file, which a page of `gguf-quantize ladder` does not replace");
    assert_eq!(fs_err::read_to_string(dir.join("out/README.md")).unwrap(), "# Mine\n");

    // A template of the user's own.
    fs_err::write(dir.join("own.md"), "{{ model.name }}: {{ files|length }} files of {{ quantized_by }}")
        .unwrap();
    let own = ["in.gguf", "-o", "own", "--types", "q8_0", "--template", "own.md", "--by", "me"];
    make(dir, &own).ok();
    assert_eq!(fs_err::read_to_string(dir.join("own/README.md")).unwrap(), "Tiny Llama: 1 files of me\n");
    fs_err::write(dir.join("own.md"), "{{ model.name").unwrap();
    make(dir, &[&own[..2], &["new"], &own[3..]].concat()).says(1, "own.md");
    fs_err::write(dir.join("own.md"), "{{ model.nmae }}").unwrap();
    make(dir, &[&own[..2], &["new"], &own[3..]].concat()).says(2, "have no `model.nmae`");
    assert!(!dir.join("new").exists());
}

/// Content of every file of a folder.
fn contents(dir: &Path, folder: &str) -> Vec<(String, Vec<u8>)> {
    let names = files::names(dir.join(folder)).into_iter();
    names.map(|name| (name.clone(), fs_err::read(dir.join(folder).join(name)).unwrap())).collect()
}

two_tiers!(machines_share_a_ladder_and_one_command_puts_it_together);

fn machines_share_a_ladder_and_one_command_puts_it_together(tier: Tier) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    convert_for(tier, dir, "f16");
    importance(dir);
    let all = "q8_0,q6_k_l,q6_k,q5_k_m,q4_k_m,iq4_xs,q3_k_m,iq3_xxs,iq2_m";
    let types = tier.of("q8_0,q4_k_m,iq2_m", all);
    let args = ["in.gguf", "--types", types, "--imatrix", "m.gguf", "--by", "me"];
    make(dir, &[&args[..], &["-o", "whole"]].concat()).ok();
    let n_files = files::names(dir.join("whole")).len();
    for n_parts in tier.of(vec![2], vec![1, 2, 4, 11]) {
        let folder = format!("parts-{n_parts}");
        let args = [&args[..], &["-o", &folder]].concat();
        let mut n_made = 0;
        for part in 1..=n_parts {
            let part = format!("{part}/{n_parts}");
            let part_args = [&args[..], &["--part", &part]].concat();
            let planned = make(dir, &[&part_args[..], &["--dry-run", "--json"]].concat()).ok().json();
            let record = make(dir, &[&part_args[..], &["--json"]].concat()).ok().json();
            let names = |list: &serde_json::Value| -> Vec<String> {
                let list = list["files"].as_array().unwrap().iter();
                list.map(|file| file["type"].as_str().unwrap().to_owned()).collect()
            };
            assert_eq!(names(&planned), names(&record));
            assert_eq!(record["part"], part.as_str());
            n_made += names(&record).len();
            // A restart finds that everything is there.
            if part.starts_with("1/") {
                let before = contents(dir, &folder);
                let said = make(dir, &part_args).ok();
                assert!(said.err.contains("already written: "), "{}", said.err);
                assert_eq!(before.len(), contents(dir, &folder).len());
                assert!(before == contents(dir, &folder));
            }
        }
        assert_eq!(n_made, types.split(',').count(), "{n_parts}: every file is made once");
        let names = files::names(dir.join(&folder));
        assert_eq!(names.iter().filter(|name| name.starts_with("ladder-part-")).count(), n_parts);
        assert!(
            !names.iter().any(|name| name == "README.md" || name == "SHA256SUMS" || name == "ladder.json")
        );
        let said = make(dir, &[&args[..], &["--resume"]].concat()).ok();
        assert!(said.err.contains("already written: Q8_0") && !said.err.contains("made now"), "{}", said.err);
        assert_eq!(files::names(dir.join(&folder)).len(), n_files);
        for (name, content) in contents(dir, "whole") {
            let own = fs_err::read(dir.join(&folder).join(&name)).unwrap();
            // The command in the page and the list is another.
            let is_text = name == "README.md" || name == "ladder.json";
            assert!(own == content || is_text, "{n_parts}: {name}");
        }
    }
}

deep_test!(files_of_parts_are_never_taken_for_others);
fn files_of_parts_are_never_taken_for_others() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    convert_two_layers(Tier::Everyday, dir, "f16");
    importance(dir);
    let args = ["in.gguf", "-o", "out", "--types", "q4_k_m,q3_k_m,iq4_xs", "--imatrix", "m.gguf"];
    let all = |more: &[&str]| make(dir, &[&args[..], more].concat());
    let parts = || {
        for part in ["1/2", "2/2"] {
            all(&["--part", part]).ok();
        }
    };
    let model = |name: &str| dir.join("out").join(format!("in-{name}.gguf"));
    parts();
    let taken = fs_err::read(model("Q4_K_M")).unwrap();

    // Other options: also those that no header shows.
    let said = all(&["--resume", "--exclude-weights", "ffn_down"]).ok();
    assert!(said.err.contains("was made of another source or with other options"), "{}", said.err);
    assert!(!said.err.contains("already written"), "{}", said.err);
    assert!(fs_err::read(model("Q4_K_M")).unwrap() != taken);
    let single = ["in.gguf", "one.gguf", "--type", "q4_k_m", "--imatrix", "m.gguf", "--exclude-weights"];
    run(dir, &[&single[..], &["ffn_down"]].concat()).ok();
    assert!(fs_err::read(model("Q4_K_M")).unwrap() == fs_err::read(dir.join("one.gguf")).unwrap());

    // A file that was changed, one that is gone, and one that was only copied.
    fs_err::remove_dir_all(dir.join("out")).unwrap();
    parts();
    let mut changed = taken.clone();
    *changed.last_mut().unwrap() ^= 1;
    fs_err::write(model("Q4_K_M"), &changed).unwrap();
    fs_err::remove_file(model("Q3_K_M")).unwrap();
    let copied = fs_err::read(model("IQ4_XS")).unwrap();
    fs_err::write(model("IQ4_XS"), &copied).unwrap();
    let said = all(&["--resume"]).ok();
    assert!(said.err.contains("already written: IQ4_XS; made now: Q4_K_M, Q3_K_M"), "{}", said.err);
    assert!(said.err.contains("is not there any more, or was changed"), "{}", said.err);
    assert!(fs_err::read(model("Q4_K_M")).unwrap() == taken);

    // Another source of the same names and shapes: the first tensor is not the same.
    fs_err::remove_dir_all(dir.join("out")).unwrap();
    parts();
    let mut source = fs_err::read(dir.join("in.gguf")).unwrap();
    let n_bytes = source.len();
    source[n_bytes / 16 * 8] ^= 1;
    fs_err::write(dir.join("in.gguf"), &source).unwrap();
    let said = all(&["--resume"]).ok();
    assert!(said.err.contains("another source") && !said.err.contains("already written"), "{}", said.err);

    // A broken record, and options that a part cannot have.
    parts();
    fs_err::write(dir.join("out/ladder-part-1-of-2.json"), "{}").unwrap();
    all(&["--resume"]).says(0, "ladder-part-1-of-2.json: no record of a part of a ladder");
    make(dir, &["in.gguf", "-o", "out", "--calibration", "text.txt", "--part", "1/2"])
        .says(2, "cannot be used with");
    all(&["--part", "3/2"]).says(2, "a share such as `2/8` expected");
}

#[test]
fn parts_of_large_files_and_of_checkpoints_are_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    convert(dir, "f32");
    let share = |number: usize| Some(format!("{number}/2").parse().unwrap());
    // Files in parts are not resumed, but taken if they are complete.
    let parts = |share| Ladder { share, max_part_bytes: 1_000_000, ..ladder(dir, "parts", "q8_0,q4_0") };
    let mut sums = Vec::new();
    for number in 1..=2 {
        sums.extend(parts(share(number)).run(&Silent).unwrap().files.into_iter().map(|file| file.sha256));
    }
    let whole = parts(None).run(&Silent).unwrap();
    assert!(whole.files.iter().all(|file| file.was_there && file.sha256.len() > 1));
    assert!(whole.files.iter().all(|file| sums.contains(&file.sha256)));

    // Types that are written by runs of their own.
    let input = JobInput::Checkpoint(fixture("native/nvfp4_llama_mixed/hf"));
    let of = |folder: &str, share| {
        let rungs = Rung::parse_list("q8_0,q4_0,q6_k,f16").unwrap();
        let ladder = Ladder::new(input.clone(), rungs, dir.join(folder));
        let convert = ConvertOptions { tokenizer: false, ..ConvertOptions::default() };
        Ladder { convert, share, resume: true, sync: false, ..ladder }.run(&Silent).unwrap()
    };
    let made: usize = (1..=2).map(|number| of("own", share(number)).files.len()).sum();
    let (own, whole) = (of("own", None), of("whole", None));
    assert_eq!((made, own.files.len()), (4, 4));
    for (own, whole) in own.files.iter().zip(&whole.files) {
        assert!(own.was_there && !whole.was_there, "{}", own.plan.name);
        assert_eq!(own.sha256, whole.sha256);
    }
}

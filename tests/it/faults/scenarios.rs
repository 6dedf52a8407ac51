//! Commands that write, each with the previous content of its output.

use std::path::{Path, PathBuf};

use crate::diffusion::flux;
use crate::support::{files, fixture, programs};

/// Files that commands read, made once. Commands find them as `../in/NAME`.
pub struct Inputs {
    dir: PathBuf,
}

impl Inputs {
    pub fn make(dir: &Path) -> Self {
        fs_err::create_dir(dir).unwrap();
        std::os::unix::fs::symlink(fixture("tiny-llama"), dir.join("hf")).unwrap();
        fs_err::create_dir(dir.join("kit")).unwrap();
        let text = fs_err::read_to_string(fixture("tiny-llama/corpus.txt")).unwrap();
        let end = text.char_indices().nth(2000).unwrap().0;
        fs_err::write(dir.join("prompts.txt"), &text[..end]).unwrap();
        let run = |program: &str, arguments: &str| {
            programs::run(program, dir, &arguments.split(' ').collect::<Vec<_>>()).ok();
        };
        run("gguf-convert", "hf2gguf hf -o f16.gguf --type f16 --no-sync");
        run("gguf-convert", "hf2gguf hf -o parts.gguf --type f16 --split-max-tensors 9 --no-sync");
        run("gguf-convert", "hf2gguf hf -o other.gguf --type q8_0 --no-sync");
        run("gguf-convert", "hf2gguf hf -o other-parts.gguf --type q8_0 --split-max-tensors 9 --no-sync");
        run(
            "gguf-verify",
            "imatrix f16.gguf --prompts prompts.txt --ctx 32 --chunks 2 --no-ppl -o a.imatrix.gguf",
        );
        run(
            "gguf-verify",
            "imatrix f16.gguf --prompts prompts.txt --ctx 32 --chunks 4 --no-ppl -o b.imatrix.gguf",
        );
        run("gguf-quantize", "f16.gguf kit/q4.gguf --type q4_0 --no-sync");
        run("gguf-quantize", "recipe kit/q4.gguf --source f16.gguf -o q4.recipe.gguf --no-sync");
        run("gguf-quantize", "recipe other.gguf --source f16.gguf -o q8.recipe.gguf --no-sync");
        flux("").write(&dir.join("image.safetensors"));
        for part in ["1/3", "2/3"] {
            run("gguf-quantize", &format!("f16.gguf --type q6_k --part {part} --into m.gguf --no-sync"));
        }
        Self { dir: dir.to_owned() }
    }

    /// Copies files that runs have left for each other.
    fn copy_notes(&self, start: &str, to: &Path) {
        for name in files::names(&self.dir).iter().filter(|name| name.starts_with(start)) {
            self.copy(name, to.join(name));
        }
    }

    /// Copies a file under another name.
    fn copy(&self, name: &str, to: PathBuf) {
        fs_err::copy(self.dir.join(name), to).unwrap();
    }

    /// Copies the parts of a set under another name.
    fn copy_parts(&self, stem: &str, to: &Path, new: &str) {
        for name in files::names(&self.dir) {
            let suffix = name.strip_prefix(stem).filter(|suffix| suffix.starts_with("-0"));
            if let Some(suffix) = suffix {
                self.copy(&name, to.join(format!("{new}{suffix}")));
            }
        }
    }
}

/// Command with its expectations.
pub struct Scenario {
    pub name: &'static str,
    pub program: &'static str,
    /// Arguments, separated by spaces.
    pub arguments: &'static str,
    /// Creates the files that the run finds.
    pub prepare: fn(&Inputs, &Path),
    /// Exit code of a successful run.
    pub code: i32,
    /// True if its files belong together; otherwise each is useful alone.
    pub is_set: bool,
    /// File whose set may be mixed temporarily, if every reader of it refuses the mixture.
    pub reader: Option<&'static str>,
    /// True if the command may run again over its own output.
    pub is_repeatable: bool,
    /// Part of the names of files that an interrupted run leaves for the next one.
    pub keeps: &'static [&'static str],
    /// Part of the names of files that are not results: those that several runs leave for each other.
    pub ignores: Option<&'static str>,
}

const fn scenario(name: &'static str, program: &'static str, arguments: &'static str) -> Scenario {
    Scenario {
        name,
        program,
        arguments,
        prepare: |_, _| {},
        code: 0,
        is_set: true,
        reader: None,
        is_repeatable: true,
        keeps: &[],
        ignores: None,
    }
}

impl Scenario {
    const fn prepared(self, prepare: fn(&Inputs, &Path)) -> Self {
        Self { prepare, ..self }
    }

    /// Scenario over another model in one file.
    const fn over_a_file(self) -> Self {
        self.prepared(over_a_file)
    }

    /// Scenario over parts of another model, which are read by the first.
    const fn over_parts(self) -> Self {
        let prepare: fn(&Inputs, &Path) = |inputs, dir| inputs.copy_parts("other-parts", dir, "m");
        Self { prepare, reader: Some("m-00001-of-00005.gguf"), ..self }
    }

    /// Scenario that cannot run again over its own output.
    const fn once(self) -> Self {
        Self { is_repeatable: false, ..self }
    }
}

fn over_a_file(inputs: &Inputs, dir: &Path) {
    inputs.copy("other.gguf", dir.join("m.gguf"));
}

/// All scenarios. `verify` ends with 4: without a baseline its verdict is `partial`.
pub const ALL: &[Scenario] = &[
    scenario("convert", "gguf-convert", "hf2gguf ../in/hf -o m.gguf"),
    scenario("convert over a file", "gguf-convert", "hf2gguf ../in/hf -o m.gguf --type q4_k_m").over_a_file(),
    scenario(
        "convert over parts",
        "gguf-convert",
        "hf2gguf ../in/hf -o m.gguf --type f16 --split-max-tensors 9",
    )
    .over_parts(),
    Scenario {
        keeps: &[".into-"],
        ..scenario(
            "convert, to be resumed",
            "gguf-convert",
            "hf2gguf ../in/hf -o m.gguf --type q4_0 --resume",
        )
        .over_a_file()
    },
    Scenario {
        keeps: &[".into-"],
        ..scenario(
            "quantize, all of one file",
            "gguf-quantize",
            "../in/f16.gguf --type q6_k --part 1/1 --into m.gguf",
        )
        .over_a_file()
    },
    Scenario {
        prepare: |inputs, dir| {
            over_a_file(inputs, dir);
            inputs.copy_notes("m.gguf.into-", dir);
        },
        ignores: Some(".into-"),
        ..scenario(
            "quantize, the last of three parts",
            "gguf-quantize",
            "../in/f16.gguf --type q6_k --part 3/3 --into m.gguf",
        )
    },
    scenario("gguf2hf", "gguf-convert", "gguf2hf ../in/f16.gguf -o hf --max-shard-size 1M")
        .prepared(|_, dir| fs_err::create_dir(dir.join("hf")).unwrap())
        .once(),
    scenario("quantize over a file", "gguf-quantize", "../in/f16.gguf m.gguf --type q6_k").over_a_file(),
    scenario(
        "quantize parts",
        "gguf-quantize",
        "../in/parts-00001-of-00005.gguf m.gguf --type q4_0 --keep-split",
    )
    .over_parts(),
    Scenario {
        is_set: false,
        keeps: &[".ladder.json"],
        ..scenario("ladder", "gguf-quantize", "ladder ../in/f16.gguf -o . --types q8_0,q4_0")
    },
    Scenario {
        is_set: false,
        keeps: &[".into-", ".ladder.json"],
        ..scenario(
            "ladder, to be resumed",
            "gguf-quantize",
            "ladder ../in/f16.gguf -o . --types q8_0,q4_0 --resume",
        )
    },
    scenario("recipe", "gguf-quantize", "recipe ../in/kit/q4.gguf --source ../in/f16.gguf -o r.gguf")
        .prepared(|inputs, dir| inputs.copy("q8.recipe.gguf", dir.join("r.gguf"))),
    scenario("rebuild", "gguf-quantize", "rebuild ../in/q4.recipe.gguf --source ../in/f16.gguf -o m.gguf")
        .over_a_file(),
    scenario("image model", "gguf-convert", "hf2gguf ../in/image.safetensors -o m.gguf --type q4_k_s")
        .over_a_file(),
    scenario("set", "gguf-inspect", "set m.gguf general.name=changed").over_a_file(),
    scenario("remove", "gguf-inspect", "remove m.gguf general.file_type").over_a_file().once(),
    scenario("template", "gguf-inspect", "template m.gguf --set ../in/prompts.txt").over_a_file(),
    scenario("endian", "gguf-convert", "endian ../in/f16.gguf -o m.gguf").over_a_file(),
    scenario("split", "gguf-inspect", "split ../in/f16.gguf -o m --split-max-tensors 9").over_parts(),
    scenario("merge", "gguf-inspect", "merge ../in/parts-00001-of-00005.gguf -o m.gguf").over_a_file(),
    scenario("logits", "gguf-verify", "logits ../in/f16.gguf --prompts ../in/prompts.txt -o logits.jsonl"),
    scenario(
        "imatrix",
        "gguf-verify",
        "imatrix ../in/f16.gguf --prompts ../in/prompts.txt --ctx 32 --chunks 3 --no-ppl -o i.gguf",
    )
    .prepared(|inputs, dir| inputs.copy("b.imatrix.gguf", dir.join("i.gguf"))),
    scenario(
        "imatrix merge",
        "gguf-verify",
        "imatrix merge ../in/a.imatrix.gguf ../in/b.imatrix.gguf -o i.gguf",
    )
    .prepared(|inputs, dir| inputs.copy("b.imatrix.gguf", dir.join("i.gguf"))),
    scenario(
        "verify, a part",
        "gguf-verify",
        "../in/f16.gguf --prompts ../in/prompts.txt --ctx 32 --chunks 2 --part 1/2 -o v.part",
    ),
    Scenario {
        code: 4,
        is_set: false,
        ..scenario(
            "verify with all outputs",
            "gguf-verify",
            "../in/f16.gguf --prompts ../in/prompts.txt --ctx 32 --chunks 2 --per-token t.jsonl --save-baseline b.kld",
        )
    },
];

//! Directory with a file for every kind of input.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use crate::cli::Made;
use crate::support::bundled::write_layers;
use crate::support::programs::run;
use crate::support::{files, fixture};
use crate::testkit::tiny::Tiny;
use gguf_testkit::slim::{Layout, write_tiny};

/// Layers of the models: the first ones of the bundled model.
const N_LAYERS: u32 = 1;

pub struct Workbench(tempfile::TempDir);

impl Workbench {
    pub fn new() -> Self {
        static MADE: LazyLock<Made> = LazyLock::new(|| Made::of(Workbench::make().dir()));
        Self(MADE.copy())
    }

    fn make() -> Self {
        let bench = Self(tempfile::tempdir().unwrap());
        let at = |name: &str| bench.path(name);
        let copy = |from: &str, to: &str| fs_err::copy(fixture(from), at(to)).unwrap();
        for dir in ["model", "ms", "adapter"] {
            fs_err::create_dir(at(dir)).unwrap();
        }
        write_layers(N_LAYERS, &at("model"));
        write_tiny(Layout::W8A8, N_LAYERS, &at("ms"));
        gguf_testkit::adapters::write_tiny_adapter(&at("adapter"));
        let mut flm = gguf_testkit::flm::llama(|writer, name, dims, noise| {
            writer.f16(name, &dims, &noise.floats(dims[0] * dims[1]));
        });
        for (id, text) in ["<unk>", "<s>", "</s>", "a", "b"].iter().enumerate() {
            flm.tokens.push((text.as_bytes().to_vec(), id as i32, None));
        }
        fs_err::create_dir(at("flm")).unwrap();
        fs_err::write(at("flm/model.flm"), flm.bytes()).unwrap();
        fs_err::copy(crate::support::root().join("converters/llama.toml"), at("card.toml")).unwrap();
        fs_err::write(at("meta.json"), "{\"general.author\": \"me\"}").unwrap();
        fs_err::write(at("chat.jinja"), "{{ messages[0].content }}").unwrap();
        fs_err::write(at("rules.txt"), "ffn_up=q8_0\n").unwrap();
        fs_err::write(at("value.txt"), "a name\n").unwrap();
        let text = fs_err::read_to_string(fixture("tiny-llama/corpus.txt")).unwrap();
        fs_err::write(at("long.txt"), &text[..text.floor_char_boundary(8000)]).unwrap();
        fs_err::write(at("check.txt"), &text[text.ceil_char_boundary(text.len() - 2000)..]).unwrap();
        fs_err::write(at("p.jsonl"), "{\"text\": \"In the beginning was the word. In the beginning.\"}\n")
            .unwrap();
        for name in ["hellaswag.txt", "winogrande.csv", "multiple-choice.bin"] {
            copy(&format!("tasks/{name}"), name);
        }
        let base = Tiny::new().with_layers(N_LAYERS);
        base.write(bench.dir(), "base.gguf");
        base.quantized(gguf_foundry::core::GgmlType::Q8_0).write(bench.dir(), "a.gguf");
        for (program, args) in [
            ("gguf-convert", "hf2gguf model -o tiny.gguf --type f16 --no-sync"),
            ("gguf-convert", "hf2gguf model -o s.gguf --type f16 --split-max-tensors 6 --no-sync"),
            ("gguf-verify", "imatrix base.gguf --prompts p.jsonl --ctx 8 -o m.imatrix --no-sync"),
            ("gguf-verify", "imatrix base.gguf --prompts p.jsonl --ctx 8 -o m.dat --legacy --no-sync"),
            ("gguf-verify", "imatrix tiny.gguf --prompts p.jsonl --ctx 8 -o tiny.imatrix --no-sync"),
            ("gguf-verify", "tiny.gguf --prompts p.jsonl --ctx 8 --save-baseline base.logits --no-sync"),
            ("gguf-verify", "base.gguf --prompts p.jsonl --ctx 8 --report old.json --no-sync"),
            ("gguf-verify", "base.gguf --prompts p.jsonl --ctx 8 --part 1/1 -o whole.part --no-sync"),
            ("gguf-verify", "imatrix base.gguf --prompts p.jsonl --ctx 4 --part 1/2 -o m-1.part --no-sync"),
            ("gguf-verify", "imatrix base.gguf --prompts p.jsonl --ctx 4 --part 2/2 -o m-2.part --no-sync"),
            ("gguf-quantize", "recipe base.gguf --source base.gguf -o base.recipe --no-sync"),
        ] {
            run(program, bench.dir(), &args.split(' ').collect::<Vec<_>>()).exits_with_one_of(&[0, 4]);
        }
        bench
    }

    pub fn dir(&self) -> &Path {
        self.0.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Contents and inode of all files: the inode shows if a file was replaced by an equal one.
    pub fn files(&self) -> BTreeMap<PathBuf, (u64, i64, Vec<u8>)> {
        let mut found = BTreeMap::new();
        let mut dirs = vec![self.dir().to_owned()];
        while let Some(dir) = dirs.pop() {
            for path in files::entries(dir) {
                let metadata = fs_err::symlink_metadata(&path).unwrap();
                if metadata.is_dir() {
                    dirs.push(path);
                } else {
                    let bytes = fs_err::read(&path).unwrap_or_default();
                    found.insert(path, (metadata.ino(), metadata.mtime_nsec(), bytes));
                }
            }
        }
        found
    }

    /// Files that a program reads because of a word of its command line.
    pub fn inputs_of(&self, word: &str) -> Vec<String> {
        let word = word.rsplit('@').next().unwrap();
        let listed = |dir: &str, is_wanted: &dyn Fn(&str) -> bool| {
            let names = files::names(self.path(dir)).into_iter();
            names.filter(|name| is_wanted(name)).collect::<Vec<_>>()
        };
        if self.path(word).is_dir() {
            return listed(word, &|_| true).iter().map(|name| format!("{word}/{name}")).collect();
        }
        match word.split_once("-00001-of-") {
            Some((stem, _)) => listed(".", &|name| name.starts_with(&format!("{stem}-0"))),
            None if self.path(word).is_file() => vec![word.to_owned()],
            None => Vec::new(),
        }
    }
}

/// Writes a file of one F16 tensor that is a hole, large enough for a run of the wanted duration.
pub fn hole(path: &Path, n_bytes: u64) {
    let mut bytes = b"GGUF\x03\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0".to_vec();
    let text = |text: &str, bytes: &mut Vec<u8>| {
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text.as_bytes());
    };
    text("general.architecture", &mut bytes);
    bytes.extend(8u32.to_le_bytes());
    text("nobody", &mut bytes);
    text("blk.0.attn_v.weight", &mut bytes);
    bytes.extend(2u32.to_le_bytes());
    bytes.extend(1024u64.to_le_bytes());
    bytes.extend((n_bytes / 2048).to_le_bytes());
    bytes.extend(1u32.to_le_bytes());
    bytes.extend(0u64.to_le_bytes());
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    fs_err::write(path, &bytes).unwrap();
    fs_err::OpenOptions::new().write(true).open(path).unwrap().set_len(bytes.len() as u64 + n_bytes).unwrap();
}

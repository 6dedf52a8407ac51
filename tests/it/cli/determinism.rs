//! Output depends only on the input and the options, not on threads, the memory budget or vector instructions. Covers
//! all programs, all types and all ways to run them.

use std::path::PathBuf;
use std::sync::LazyLock;

use gguf_foundry::core::simd::SimdLevel;
use gguf_foundry::gguf::FileType;
use proptest::prelude::Rng;
use proptest::test_runner::TestRng;
use serde_json::json;

use super::Made;
use crate::support::tiers::{Tier, deep_test, two_tiers};
use crate::support::{bundled, files, fixture, programs, rng, seed, sha256};

/// Environment variable that repeats the choices of an earlier run.
const SEED: &str = "GGUF_DETERMINISM_SEED";

/// Random options for how a program runs.
fn way(program: &str, rng: &mut TestRng) -> Vec<String> {
    let mut pick = |list: &[&str]| list[(rng.next_u64() % list.len() as u64) as usize].to_owned();
    let levels: Vec<&str> = SimdLevel::available().map(SimdLevel::name).collect();
    // The engine needs memory for a window.
    let memory = match program {
        "gguf-verify" => pick(&["32M", "48M", "128M", "1G"]),
        _ => pick(&["1M", "2M", "3M", "16M", "128M", "1G"]),
    };
    let threads = pick(&["1", "2", "3", "4", "5", "6", "7", "8"]);
    let level = pick(&levels);
    ["--memory", &memory, "--threads", &threads, "--simd", &level].map(str::to_owned).to_vec()
}

struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        static MADE: LazyLock<Made> = LazyLock::new(|| Made::of(Bench::make().dir.path()));
        Self { dir: MADE.copy() }
    }

    /// Creates a checkpoint of one layer of the bundled model, its GGUF file as one file and in parts, and an
    /// importance matrix.
    fn make() -> Self {
        let bench = Self { dir: tempfile::tempdir().unwrap() };
        bundled::write_layers(1, &bench.path("hf"));
        let text = fs_err::read_to_string(fixture("tiny-llama/corpus.txt")).unwrap();
        let end = text.char_indices().nth(6000).unwrap().0;
        fs_err::write(bench.path("prompts.txt"), &text[..end]).unwrap();
        let lines: Vec<String> =
            text[..end].lines().take(12).map(|line| json!({ "text": line }).to_string()).collect();
        fs_err::write(bench.path("prompts.jsonl"), lines.join("\n")).unwrap();
        bench.run("gguf-convert", "hf2gguf hf -o f32.gguf --type f32", &[]);
        bench.run("gguf-inspect", "split f32.gguf -o parts --split-max-tensors 4", &[]);
        bench.run(
            "gguf-verify",
            "imatrix f32.gguf --prompts prompts.txt --ctx 64 --chunks 8 --no-ppl -o i.gguf",
            &[],
        );
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs a program, and returns its standard output.
    fn run(&self, program: &str, arguments: &str, way: &[String]) -> String {
        let mut command = programs::command(program, self.dir.path());
        let ended = programs::finish(command.args(arguments.split(' ')).args(way).arg("--no-sync"));
        assert!(matches!(ended.code, Some(0 | 4)), "{arguments} {way:?}: {}", ended.err);
        ended.out
    }

    /// Runs a command that writes files into `out/`, and returns them with their hashes.
    fn files(&self, program: &str, arguments: &str, way: &[String]) -> Vec<(String, String)> {
        let out = self.path("out");
        if out.exists() {
            fs_err::remove_dir_all(&out).unwrap();
        }
        fs_err::create_dir(&out).unwrap();
        self.run(program, arguments, way);
        let mut files: Vec<_> = files::below(&out)
            .into_iter()
            .map(|path| {
                let name = path.strip_prefix(&out).unwrap().display().to_string();
                (name, sha256(&fs_err::read(path).unwrap()))
            })
            .collect();
        files.sort();
        assert!(!files.is_empty(), "{arguments}: nothing written");
        files
    }
}

/// Options of a plain run, for comparison.
fn plain() -> Vec<String> {
    ["--threads", "1"].map(str::to_owned).to_vec()
}

fn compare(bench: &Bench, program: &str, arguments: &str, rng: &mut TestRng, n_ways: usize) {
    let expected = bench.files(program, arguments, &plain());
    for _ in 0..n_ways {
        let way = way(program, rng);
        assert_eq!(
            bench.files(program, arguments, &way),
            expected,
            "{program} {arguments} {}",
            way.join(" ")
        );
    }
}

two_tiers!(every_type_has_the_same_bytes_however_it_is_made);

/// Every day a type of each family, made by one of the two programs in turn.
fn every_type_has_the_same_bytes_however_it_is_made(tier: Tier) {
    let (bench, mut rng) = (Bench::new(), rng(seed(SEED)));
    let types = match tier {
        Tier::Everyday => vec![
            FileType::Bf16,
            FileType::Q5_1,
            FileType::Q4KM,
            FileType::Iq4Xs,
            FileType::Tq2_0,
            FileType::Copy,
        ],
        Tier::Deep => FileType::all().collect(),
    };
    for (at, file_type) in types.iter().enumerate() {
        let name = file_type.name();
        if tier.is_deep() || at % 2 == 1 {
            let quantize = format!("f32.gguf out/m.gguf --type {name} --imatrix i.gguf");
            compare(&bench, "gguf-quantize", &quantize, &mut rng, tier.of(1, 2));
        }
        if !tier.is_deep() && at % 2 == 1 {
            continue;
        }
        // Types of llama.cpp's converter use no importance, and it does not copy.
        let importance = match name {
            "COPY" => continue,
            "F32" | "F16" | "BF16" | "Q8_0" | "TQ1_0" | "TQ2_0" => "",
            _ => " --imatrix i.gguf",
        };
        let convert = format!("hf2gguf hf -o out/m.gguf --type {name}{importance}");
        compare(&bench, "gguf-convert", &convert, &mut rng, 1);
    }
    assert!(types.len() > tier.of(5, 30), "{} types", types.len());
}

deep_test!(every_command_writes_the_same_bytes_however_it_runs);

fn every_command_writes_the_same_bytes_however_it_runs() {
    let (bench, mut rng) = (Bench::new(), rng(seed(SEED)));
    let commands = [
        ("gguf-convert", "hf2gguf hf -o out/m.gguf --split-max-tensors 3"),
        ("gguf-convert", "gguf2hf f32.gguf -o out/hf --max-shard-size 1M"),
        ("gguf-quantize", "parts-00001-of-00003.gguf out/m.gguf --type q4_k_m --keep-split"),
        ("gguf-inspect", "split f32.gguf -o out/m --split-max-tensors 3"),
        ("gguf-inspect", "merge parts-00001-of-00003.gguf -o out/m.gguf"),
        ("gguf-convert", "endian parts-00001-of-00003.gguf -o out/m.gguf"),
        ("gguf-verify", "logits f32.gguf --prompts prompts.jsonl -o out/logits.jsonl"),
        ("gguf-verify", "f32.gguf --prompts prompts.txt --ctx 64 --chunks 6 --part 2/3 -o out/v.part"),
        (
            "gguf-verify",
            "imatrix f32.gguf --prompts prompts.txt --ctx 64 --chunks 6 --part 2/3 -o out/i.part",
        ),
        ("gguf-verify", "imatrix f32.gguf --prompts prompts.txt --ctx 64 --chunks 6 -o out/i.gguf"),
        ("gguf-verify", "imatrix merge i.gguf i.gguf -o out/i.gguf"),
        (
            "gguf-verify",
            "f32.gguf --prompts prompts.txt --ctx 64 --chunks 6 --per-token out/t.jsonl --save-baseline out/b.kld",
        ),
    ];
    for (program, arguments) in commands {
        compare(&bench, program, arguments, &mut rng, 4);
    }
    let commands = ["hash f32.gguf --json", "f32.gguf --json", "hash parts-00001-of-00003.gguf --json"];
    for command in commands {
        let expected = bench.run("gguf-inspect", command, &plain());
        for _ in 0..4 {
            let way = way("gguf-inspect", &mut rng);
            assert_eq!(bench.run("gguf-inspect", command, &way), expected, "{command} {}", way.join(" "));
        }
    }
}

//! Sets with more parts than a process may have open files: each program writes the same bytes with 256 descriptors.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::Command;

use rustix::process::{Resource, getrlimit};

use crate::support::programs::{self, Outcome};
use crate::support::tiers::{Tier, deep_test, two_tiers};
use crate::support::{files, fixture};
use crate::testkit::checkpoints::Safetensors;

const WIDTH: usize = 32;

/// Layers of the checkpoint, its tensors, and a limit of descriptors that is lower.
fn sizes(tier: Tier) -> (usize, usize, &'static str) {
    let (n_layers, limit) = tier.of((10, "ulimit -n 64"), (70, "ulimit -n 256"));
    // Nine tensors per layer, the embeddings, the last norm.
    (n_layers, 9 * n_layers + 2, limit)
}

/// Writes a checkpoint of very many very small tensors.
fn checkpoint(dir: &Path, n_layers: usize) {
    fs_err::create_dir_all(dir).unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        fs_err::copy(fixture("tiny-llama").join(name), dir.join(name)).unwrap();
    }
    let mut config = files::json(fixture("tiny-llama").join("config.json"));
    for (key, value) in [
        ("num_hidden_layers", n_layers),
        ("hidden_size", WIDTH),
        ("head_dim", WIDTH),
        ("intermediate_size", WIDTH),
        ("num_attention_heads", 1),
        ("num_key_value_heads", 1),
    ] {
        config[key] = value.into();
    }
    let mut shapes: Vec<(String, Vec<usize>)> = vec![
        ("model.embed_tokens.weight".to_owned(), vec![1024, WIDTH]),
        ("model.norm.weight".to_owned(), vec![WIDTH]),
    ];
    for layer in 0..n_layers {
        let name = |rest: &str| format!("model.layers.{layer}.{rest}.weight");
        for rest in ["input_layernorm", "post_attention_layernorm"] {
            shapes.push((name(rest), vec![WIDTH]));
        }
        for rest in ["mlp.down_proj", "mlp.gate_proj", "mlp.up_proj"] {
            shapes.push((name(rest), vec![WIDTH, WIDTH]));
        }
        for rest in ["q_proj", "k_proj", "v_proj", "o_proj"] {
            shapes.push((name(&format!("self_attn.{rest}")), vec![WIDTH, WIDTH]));
        }
    }
    let mut file = Safetensors::default();
    for (number, (name, shape)) in shapes.iter().enumerate() {
        // BF16 between 1 and 2, different in each tensor.
        let n = shape.iter().product::<usize>();
        let bytes: Vec<u8> =
            (0..n).flat_map(|at| (0x3f80_u16 | ((at * 7 + number * 5) % 128) as u16).to_le_bytes()).collect();
        file.add(name, "BF16", shape, &bytes);
    }
    file.write_checkpoint(dir, &config);
}

fn command(limits: &str, dir: &Path, args: &[&str]) -> Command {
    let mut command = programs::limited(limits, args[0], dir);
    command.args(&args[1..]);
    command
}

deep_test!(sets_of_600_parts_are_written_with_256_descriptors);

/// Every day sets of 92 parts with 64 descriptors.
fn sets_of_600_parts_are_written_with_256_descriptors() {
    let root = tempfile::tempdir().unwrap();
    let (n_layers, n_tensors, few) = sizes(Tier::Deep);
    checkpoint(&root.path().join("hf"), n_layers);
    let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    if limit < 8 * n_tensors as u64 {
        println!("{limit} descriptors are too few for a run that has all parts open: compared with itself");
    }
    let first = format!("m-00001-of-{n_tensors:05}.gguf");
    let from_parts = format!("../parts/{first}");
    let whole: &[&str] = &["gguf-convert", "hf2gguf", "hf", "-o", "whole.gguf", "--no-sync"];
    programs::finish(&mut command("true", root.path(), whole)).ok();
    let one = ["--split-max-tensors", "1"];
    let commands: [(&str, &[&str], usize); 4] = [
        ("parts", &["gguf-convert", "hf2gguf", "../hf", "-o", "m.gguf", one[0], one[1]], n_tensors),
        ("quantized", &["gguf-quantize", "--keep-split", &from_parts, "m.gguf", "q8_0"], n_tensors),
        ("split", &["gguf-inspect", "split", "../whole.gguf", "-o", "m.gguf", one[0], one[1]], n_tensors),
        (
            "hf-shards",
            &["gguf-convert", "gguf2hf", "../whole.gguf", "-o", ".", "--max-shard-size", "1K"],
            300,
        ),
    ];
    for (name, args, n_least) in commands {
        let (wide, narrow) = (root.path().join(name), root.path().join(format!("{name}-narrow")));
        fs_err::create_dir(&wide).unwrap();
        fs_err::create_dir(&narrow).unwrap();
        let args = [args, &["--no-sync"]].concat();
        programs::finish(&mut command("true", &wide, &args)).ok();
        // The soft and the hard limit, many threads, and a second time over an existing set.
        for threads in ["16", "1"] {
            // The output directory must be new.
            if name == "hf-shards" {
                fs_err::remove_dir_all(&narrow).unwrap();
                fs_err::create_dir(&narrow).unwrap();
            }
            let args = [&args[..], &["--threads", threads]].concat();
            programs::finish(&mut command(few, &narrow, &args)).ok();
            let (wide, narrow) = (files::contents(&wide), files::contents(&narrow));
            assert!(wide.len() >= n_least, "{name}: {}", wide.len());
            assert!(wide.keys().eq(narrow.keys()), "{name}: {:?}", narrow.keys().next());
            let differing: Vec<_> = wide.keys().filter(|file| wide[*file] != narrow[*file]).collect();
            assert!(differing.is_empty(), "{name}: {differing:?}");
        }
    }
}

two_tiers!(two_writers_at_once_and_one_that_is_killed_leave_one_whole_set);

fn two_writers_at_once_and_one_that_is_killed_leave_one_whole_set(tier: Tier) {
    let root = tempfile::tempdir().unwrap();
    let (n_layers, n_tensors, few) = sizes(tier);
    checkpoint(&root.path().join("hf"), n_layers);
    let out = root.path().join("out");
    fs_err::create_dir(&out).unwrap();
    let args = |ty: &'static str| {
        let one = ["--split-max-tensors", "1", "--no-sync", "--type", ty];
        [&["gguf-convert", "hf2gguf", "../hf", "-o", "m.gguf"][..], &one[..]].concat()
    };
    let start = |ty| command(few, &out, &args(ty)).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let mut killed = start("f16");
    // As soon as there is a file, or at the end.
    while fs_err::read_dir(&out).unwrap().next().is_none() && killed.try_wait().unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let _ = killed.kill();
    killed.wait().unwrap();
    let writers = [start("f16"), start("f32")];
    for writer in writers {
        Outcome::from(writer.wait_with_output().unwrap()).ok();
    }
    let found = files::contents(&out);
    assert_eq!(found.len(), n_tensors, "{:?}", found.keys().next());
    let wholes = ["f16", "f32"].map(|ty| {
        let dir = root.path().join(ty);
        fs_err::create_dir(&dir).unwrap();
        programs::finish(&mut command("true", &dir, &args(ty))).ok();
        files::contents(&dir)
    });
    assert!(wholes.contains(&found), "parts of both");
}

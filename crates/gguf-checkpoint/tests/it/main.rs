//! Tests of `gguf-checkpoint`: accepted input, and the messages for refused input.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test stops by panicking, and prints for its reader"
)]

use std::path::Path;

use gguf_checkpoint::safetensors::{Header, HeaderError, parse_header};
use gguf_checkpoint::{Checkpoint, CheckpointError, ModelDir};
use gguf_core::limits::Limits;
use gguf_core::{Hint, WeightSource};
use tempfile::TempDir;

use gguf_testkit::goldens::{Goldens, conformance_tests};
use gguf_testkit::{files, fixture, report_cases, root};

mod header;
mod torch;

/// Safetensors file of a header text and data.
fn file(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

/// Entry of a safetensors header.
fn entry(name: &str, dtype: &str, shape: &str, begin: u64, end: u64) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
}

fn parse(bytes: &[u8]) -> Result<Header, HeaderError> {
    parse_header(bytes, &Limits::default())
}

/// Checkpoint directory with an empty configuration.
fn dir(files: &[(&str, &[u8])]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs_err::write(dir.path().join("config.json"), "{}").unwrap();
    for (name, content) in files {
        fs_err::write(dir.path().join(name), content).unwrap();
    }
    dir
}

/// Safetensors file of U8 tensors of one byte each.
fn bytes_file(names: &[&str]) -> Vec<u8> {
    let entries: Vec<String> =
        names.iter().zip(0..).map(|(name, i)| entry(name, "U8", "[1]", i, i + 1)).collect();
    let data: Vec<u8> = (0..names.len() as u8).collect();
    file(&format!("{{{}}}", entries.join(",")), &data)
}

fn open(dir: &TempDir) -> Result<Checkpoint, CheckpointError> {
    Checkpoint::open(dir.path(), &Limits::default())
}

/// Error of opening a directory, with its path replaced by `DIR`.
fn error(dir: &TempDir) -> String {
    open(dir).unwrap_err().to_string().replace(&format!("{}", dir.path().display()), "DIR")
}

fn names(checkpoint: &Checkpoint) -> Vec<&str> {
    checkpoint.weights().iter().map(|meta| meta.name.as_str()).collect()
}

#[test]
fn the_fixture_opens_and_reads() {
    let checkpoint = Checkpoint::open(&fixture("tiny-llama"), &Limits::default()).unwrap();
    assert_eq!(checkpoint.dir().config()["architectures"][0], "LlamaForCausalLM");
    assert_eq!(checkpoint.dir().name().unwrap(), "tiny-llama");
    assert!(checkpoint.weights().is_sorted_by_key(|meta| &meta.name));
    let file = fs_err::read(fixture("tiny-llama/model.safetensors")).unwrap();
    let header = parse(&file).unwrap();
    for (weight, range) in header.tensors.iter().enumerate() {
        let (start, len) = (range.offset as usize, range.n_bytes as usize);
        let expected = &file[start..start + len];
        assert_eq!(checkpoint.borrow(weight), Some(expected));
        let n = range.meta.shape.n_elems();
        let mut middle = vec![0; 2 * (n as usize / 2)];
        checkpoint.read_elems(weight, n / 4, &mut middle).unwrap();
        checkpoint.expect(weight);
        checkpoint.release_elems(weight, 0, n);
        let begin = 2 * (n as usize / 4);
        assert_eq!(middle, expected[begin..begin + middle.len()], "{}", range.meta.name);
    }
}

#[test]
fn shards_come_in_the_order_of_their_names() {
    let index = br#"{"metadata":{},"weight_map":{"z":"model-00001.safetensors","b":"model-00002.safetensors","a":"model-00002.safetensors"}}"#;
    let with_index = dir(&[
        ("model-00002.safetensors", &bytes_file(&["b", "a"])),
        ("model-00001.safetensors", &bytes_file(&["z"])),
        ("model-other.safetensors", &bytes_file(&["not in the index"])),
        ("model.safetensors.index.json", index),
    ]);
    let checkpoint = open(&with_index).unwrap();
    assert_eq!(names(&checkpoint), ["z", "a", "b"]);
    assert_eq!(checkpoint.borrow(1), Some(&[1u8][..]));
    assert_eq!(checkpoint.part_of(2), "model-00002.safetensors");

    let without = dir(&[
        ("model-2.safetensors", &bytes_file(&["b"])),
        ("model-1.safetensors", &bytes_file(&["c"])),
        ("other.safetensors", &bytes_file(&["d"])),
    ]);
    assert_eq!(names(&open(&without).unwrap()), ["c", "b"]);

    let single =
        dir(&[("model.safetensors", &bytes_file(&["a"])), ("model.fp16.safetensors", &bytes_file(&["a"]))]);
    assert_eq!(names(&open(&single).unwrap()), ["a"]);
}

#[test]
fn words_of_wrappers_are_taken_out_of_names_in_every_shard() {
    let index = br#"{"weight_map":{"module.b":"model-00002.safetensors","module._orig_mod.a":"model-00001.safetensors"}}"#;
    let shards = dir(&[
        ("model-00001.safetensors", &bytes_file(&["module._orig_mod.a"])),
        ("model-00002.safetensors", &bytes_file(&["module.b"])),
        ("model.safetensors.index.json", index),
    ]);
    let checkpoint = open(&shards).unwrap();
    assert_eq!(names(&checkpoint), ["a", "b"]);
    assert_eq!(checkpoint.renamed().collect::<Vec<_>>(), [("module._orig_mod.a", "a"), ("module.b", "b")]);
    assert_eq!(checkpoint.part_of(1), "model-00002.safetensors");
    let mut byte = [9];
    checkpoint.read_elems(0, 0, &mut byte).unwrap();
    assert_eq!(byte, [0]);
    assert_eq!(
        checkpoint.warnings(),
        [
            "`_orig_mod`, `module.` of wrappers is left out of the names of 2 of 2 tensors: `module._orig_mod.a` is read as `a`"
        ]
    );
}

#[test]
fn an_index_and_its_shards_must_agree() {
    const INDEX: &str = "model.safetensors.index.json";
    let a = bytes_file(&["a", "b"]);
    let with = |index: &str, shards: &[(&str, &[u8])]| {
        let mut files = vec![(INDEX, index.as_bytes())];
        files.extend_from_slice(shards);
        error(&dir(&files))
    };
    let one: &[(&str, &[u8])] = &[("s.safetensors", &a)];
    assert_eq!(
        with(r#"{"weight_map":{"a":"s.safetensors","b":"t.safetensors"}}"#, one),
        "DIR/model.safetensors.index.json: shard `t.safetensors` is missing"
    );
    let both = r#"{"weight_map":{"a":"s.safetensors","b":"t.safetensors"}}"#;
    assert_eq!(
        with(both, &[("s.safetensors", &a), ("t.safetensors", &bytes_file(&["b", "a"]))]),
        "tensor `a` is in `s.safetensors` and in `t.safetensors`"
    );
    for outside in ["../s.safetensors", "/s.safetensors", "sub/../../s.safetensors", ".", ""] {
        assert_eq!(
            with(&format!(r#"{{"weight_map":{{"a":"{outside}"}}}}"#), one),
            format!("DIR/model.safetensors.index.json: shard `{outside}` is outside the directory")
        );
    }
    for bad in ["{}", r#"{"weight_map":[]}"#, r#"{"weight_map":{"a":1}}"#] {
        assert_eq!(
            with(bad, one),
            "DIR/model.safetensors.index.json: `weight_map` is missing or is not an object of strings"
        );
    }
    assert_eq!(
        with("{\"weight_map\":{\"a\":\"s\",\n\"a\":\"s\"}}", one),
        "DIR/model.safetensors.index.json: line 2, column 1 (offset 24): duplicate key `a`"
    );
}

/// Transformers reads all files that an index names, and all tensors in them.
#[test]
fn what_an_index_says_of_tensors_is_compared_with_the_shards() {
    let a = bytes_file(&["a", "b"]);
    let with = |index: &str, shards: &[(&str, &[u8])]| {
        let dir = dir(&[&[("model.safetensors.index.json", index.as_bytes())], shards].concat());
        let checkpoint = open(&dir).unwrap();
        assert_eq!(names(&checkpoint), ["a", "b"]);
        assert_eq!((checkpoint.borrow(0), checkpoint.borrow(1)), (Some(&[0][..]), Some(&[1][..])));
        checkpoint.warnings().to_vec()
    };
    let one: &[(&str, &[u8])] = &[("s.safetensors", &a)];
    assert_eq!(with(r#"{"weight_map":{"a":"./s.safetensors","b":"s.safetensors"}}"#, one), [""; 0]);
    assert_eq!(
        with(r#"{"weight_map":{"d":"s.safetensors","b":"s.safetensors","c":"s.safetensors"}}"#, one),
        [
            "`model.safetensors.index.json` is not that of these files: it lists, but no shard has `c` (and 1 more)",
            "`model.safetensors.index.json` is not that of these files: it does not list, but a shard has `a`",
        ]
    );
    let both = r#"{"weight_map":{"a":"s.safetensors","b":"t.safetensors"}}"#;
    assert_eq!(with(both, &[("s.safetensors", &a), ("t.safetensors", &a)]), [""; 0]);
}

#[test]
fn a_set_that_counts_its_files_must_be_whole() {
    let incomplete = dir(&[
        ("model-00001-of-00003.safetensors", &bytes_file(&["a"])),
        ("model-00003-of-00003.safetensors", &bytes_file(&["b"])),
    ]);
    assert_eq!(error(&incomplete), "DIR: shard `model-00002-of-00003.safetensors` is missing");
    assert_eq!(open(&incomplete).unwrap_err().hints().len(), 1);
}

#[test]
fn a_truncated_file_is_named_with_what_is_missing() {
    let mut bytes = bytes_file(&["a", "b"]);
    bytes.pop();
    let end = bytes.len();
    let dir = dir(&[("model.safetensors", &bytes)]);
    assert_eq!(
        error(&dir),
        format!(
            "DIR/model.safetensors: tensor `b`: data up to offset {} declared, file ends at {end}",
            end + 1
        )
    );
    assert_eq!(open(&dir).unwrap_err().hints(), [gguf_core::input::INCOMPLETE]);
}

#[test]
fn a_git_lfs_pointer_is_recognized() {
    let dir = dir(&[("model.safetensors", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n")]);
    assert_eq!(
        open(&dir).unwrap_err().hints(),
        ["this is a git LFS pointer, not the file: run `git lfs pull`"]
    );
}

#[cfg(unix)]
#[test]
fn shards_may_be_links() {
    let store = tempfile::tempdir().unwrap();
    fs_err::write(store.path().join("blob"), bytes_file(&["a"])).unwrap();
    let dir = dir(&[]);
    fs_err::os::unix::fs::symlink(store.path().join("blob"), dir.path().join("model.safetensors")).unwrap();
    assert_eq!(names(&open(&dir).unwrap()), ["a"]);
}

#[test]
fn other_forms_are_named() {
    let cases: [(&str, &str); 9] = [
        (
            "consolidated.00.pth",
            "DIR/consolidated.00.pth: a checkpoint in Meta's own layout cannot be read yet",
        ),
        ("consolidated.safetensors", "DIR: `params.json` is missing"),
        ("model.flm", "DIR/model.flm: a FastLLM `.flm` file cannot be read yet"),
        (
            "adapter_model.safetensors",
            "DIR/adapter_model.safetensors: an adapter without its base model cannot be read yet",
        ),
        ("model.gguf", "DIR/model.gguf: a GGUF file as a checkpoint cannot be read yet"),
        (
            "__0_0.distcp",
            "DIR/__0_0.distcp: a checkpoint of FSDP, in parts of torch.distributed.checkpoint, cannot be read yet",
        ),
        (
            "zero_pp_rank_0_mp_rank_00_optim_states.pt",
            "DIR/zero_pp_rank_0_mp_rank_00_optim_states.pt: a checkpoint of DeepSpeed, in parts of its ranks, cannot be read yet",
        ),
        ("flax_model.msgpack", "DIR/flax_model.msgpack: a checkpoint of Flax (JAX) cannot be read yet"),
        (
            "notes.txt",
            "DIR: no weights found (`model*.safetensors`, or PyTorch's `pytorch_model*.bin`, `*.pth`, `*.pt`, `*.ckpt`)",
        ),
    ];
    for (name, expected) in cases {
        let dir = dir(&[(name, b"x")]);
        assert_eq!(error(&dir), expected);
        let hints = open(&dir).unwrap_err().hints();
        let is_mistral = hints.iter().any(|hint| hint.contains("`params.json` next to"));
        assert_eq!((hints.is_empty(), is_mistral), (false, name == "consolidated.safetensors"), "{hints:?}");
        // Without a configuration the format is still named.
        fs_err::remove_file(dir.path().join("config.json")).unwrap();
        let expected = if name == "notes.txt" { "DIR: `config.json` is missing" } else { expected };
        assert_eq!(error(&dir), expected);
    }
    // A GGUF file that was made of an adapter changes nothing.
    let dir = dir(&[("Adapter-LoRA.gguf", b"x"), ("adapter_model.bin", b"x")]);
    fs_err::remove_file(dir.path().join("config.json")).unwrap();
    assert!(error(&dir).contains("an adapter without its base model"));
}

/// Trainers save the parts in a folder.
#[test]
fn parts_in_folders_are_named_with_the_way_to_put_them_together() {
    for (folder, file, way_out) in [
        ("pytorch_model_fsdp_0", "__0_0.distcp", "accelerate merge-weights"),
        ("epoch_1", "__1_0.distcp", "dcp_to_torch"),
        ("global_step500", "mp_rank_00_model_states.pt", "zero_to_fp32.py"),
        ("iter_0000500", "model_optim_rng.pt", "Megatron Bridge"),
        ("last.ckpt/checkpoint", "mp_rank_00_model_states.pt", "zero_to_fp32.py"),
        ("last.ckpt", "zero_to_fp32.py", "zero_to_fp32.py"),
        ("actor", "model_world_size_2_rank_0.pt", "verl.model_merger"),
        ("final", "lit_model.pth", "convert_from_litgpt"),
    ] {
        let dir = dir(&[]);
        fs_err::create_dir_all(dir.path().join(folder)).unwrap();
        fs_err::write(dir.path().join(folder).join(file), b"x").unwrap();
        let refused = open(&dir).unwrap_err();
        assert!(refused.to_string().contains(folder) && refused.hints()[0].contains(way_out), "{refused}");
    }
}

/// A training's folder with the model in a folder inside, and parts under other names.
#[test]
fn what_is_there_under_another_name_is_offered() {
    let outer = dir(&[]);
    fs_err::remove_file(outer.path().join("config.json")).unwrap();
    for folder in ["checkpoint-90", "checkpoint-500"] {
        fs_err::create_dir(outer.path().join(folder)).unwrap();
        fs_err::write(outer.path().join(folder).join("config.json"), b"{}").unwrap();
    }
    assert!(open(&outer).unwrap_err().hints()[0].contains("checkpoint-500` has one"));
    // Whole weights count, not the parts of the optimizer beside them.
    for (folder, file) in
        [("checkpoint-500", "model-00001-of-00002.safetensors"), ("checkpoint-90", "model.safetensors")]
    {
        fs_err::write(outer.path().join(folder).join(file), b"x").unwrap();
        fs_err::write(outer.path().join(folder).join("zero_to_fp32.py"), b"x").unwrap();
    }
    assert!(open(&outer).unwrap_err().hints()[0].contains("checkpoint-500` has one"));
    fs_err::write(outer.path().join("config.json"), b"{}").unwrap();
    assert!(open(&outer).unwrap_err().hints()[0].contains("checkpoint-500` holds a checkpoint"));
    for folder in ["pytorch_model.bin", "model.safetensors", "checkpoints"] {
        let outer = dir(&[]);
        fs_err::create_dir(outer.path().join(folder)).unwrap();
        fs_err::write(outer.path().join(folder).join("last.ckpt"), b"x").unwrap();
        let hints = open(&outer).unwrap_err().hints();
        assert!(hints[0].contains(&format!("{folder}` holds weights: move")), "{hints:?}");
    }
    let [a, b] = ["a", "b"].map(|name| bytes_file(&[name]));
    let parts =
        dir(&[("ft-model-00001-of-00002.safetensors", &a), ("ft-model-00002-of-00002.safetensors", &b)]);
    assert!(open(&parts).unwrap_err().hints()[0].contains("`model-00001-of-00002.safetensors`"));
}

#[test]
fn configuration_files() {
    let dir = dir(&[
        ("model.safetensors", &bytes_file(&["a"])),
        ("broken.json", b"{\"a\": tru}"),
        ("latin", b"a\xe9"),
    ]);
    let config = dir.path().join("config.json");
    fs_err::write(&config, r#"{"z": 1, "a": Infinity, "m": 1e-05}"#).unwrap();
    let opened = ModelDir::open(dir.path(), &Limits::default()).unwrap();
    assert!(opened.config().keys().eq(["z", "a", "m"]));
    assert!(opened.json("generation_config.json").unwrap().is_none());
    let shown = |e: CheckpointError| e.to_string().replace(&format!("{}", dir.path().display()), "DIR");
    assert_eq!(
        shown(opened.json("broken.json").unwrap_err()),
        "DIR/broken.json: line 1, column 7 (offset 6): expected a value, found `t`"
    );
    assert_eq!(shown(opened.text("latin").unwrap_err()), "DIR/latin: offset 1: not valid UTF-8");

    let small = Limits { text_file_bytes: 3, ..Limits::default() };
    assert_eq!(
        shown(ModelDir::open(dir.path(), &small).unwrap_err()),
        "DIR/config.json: 35 B to read whole, at most 3 B allowed"
    );
    fs_err::write(&config, "[]").unwrap();
    assert_eq!(error(&dir), "DIR/config.json: line 1, column 1 (offset 0): expected `{`, found `[`");
    assert_eq!(
        shown(ModelDir::open(&config, &Limits::default()).unwrap_err()),
        "DIR/config.json: not a directory"
    );
    assert!(ModelDir::open(Path::new("no such directory"), &Limits::default()).is_err());
    assert_eq!(
        ModelDir::open(&root().join("fixtures/tiny-llama/../tiny-llama/."), &Limits::default())
            .unwrap()
            .name()
            .unwrap(),
        "tiny-llama"
    );
}

conformance_tests!(conformance_checkpoints_open_and_order_equals_the_converters);
fn conformance_checkpoints_open_and_order_equals_the_converters(corpus: &Goldens) {
    let mut n_cases = 0;
    for case in fs_err::read_dir(corpus.join("arch")).unwrap() {
        let dir = case.unwrap().path().join("hf");
        n_cases += 1;
        let checkpoint = Checkpoint::open(&dir, &Limits::default()).unwrap();
        assert!(!checkpoint.weights().is_empty());
        // Mistral's own layout, which some have in addition to a `config.json`.
        let is_mistral = dir.join("consolidated.safetensors").is_file();
        assert_eq!(checkpoint.dir().is_mistral_format(), is_mistral, "{}", dir.display());
    }
    report_cases("checkpoints", n_cases);

    for case in ["llama_f32_sharded", "mistral", "llama"] {
        let case = corpus.join("arch").join(case);
        let checkpoint = Checkpoint::open(&case.join("hf"), &Limits::default()).unwrap();
        let expect = files::json(case.join("expect-f32.json"));
        let theirs: Vec<&str> =
            expect["tensors"].as_array().unwrap().iter().filter_map(|row| row[0].as_str()).collect();
        let ours: Vec<String> = checkpoint.weights().iter().map(|meta| gguf_name(&meta.name)).collect();
        assert_eq!(ours, theirs, "{}", case.display());
    }
}

/// GGUF name of a llama tensor, as far as needed to compare orders.
fn gguf_name(name: &str) -> String {
    [
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("model.layers", "blk"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("post_attention_layernorm", "ffn_norm"),
        ("input_layernorm", "attn_norm"),
    ]
    .iter()
    .fold(name.to_owned(), |name, (from, to)| name.replace(from, to))
}

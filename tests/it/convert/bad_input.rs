//! Broken checkpoints and broken runs: the exact message, and no files left behind.

use std::path::{Path, PathBuf};
use std::process::Command;

use gguf_foundry::convert::{Conversion, ConvertOptions};
use gguf_foundry::core::account::Fate;

use crate::support::programs::{Outcome, command, finish, path};
use crate::support::{files, fixture, root, wait_until_it_reads};
use crate::testkit::checkpoints::Safetensors;

/// Copy of the bundled checkpoint in a temporary directory.
struct Broken {
    dir: tempfile::TempDir,
}

impl Broken {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs_err::create_dir_all(dir.path().join("model")).unwrap();
        files::copy(fixture("tiny-llama"), &dir.path().join("model"));
        Self { dir }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join("model").join(name)
    }

    fn config(&self, edit: impl FnOnce(&mut serde_json::Map<String, serde_json::Value>)) {
        files::edit_json(self.file("config.json"), |config| edit(config.as_object_mut().unwrap()));
    }

    /// Changes the header of the weights; the data stays.
    fn header(&self, edit: impl FnOnce(String) -> String) {
        let path = self.file("model.safetensors");
        let bytes = fs_err::read(&path).unwrap();
        let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header = edit(String::from_utf8(bytes[8..8 + len].to_vec()).unwrap());
        let mut out = (header.len() as u64).to_le_bytes().to_vec();
        out.extend_from_slice(header.as_bytes());
        out.extend_from_slice(&bytes[8 + len..]);
        fs_err::write(path, out).unwrap();
    }

    fn out(&self) -> PathBuf {
        self.dir.path().join("out")
    }

    /// Converts into an empty directory, which must still be empty when the run has failed. Returns standard error
    /// without the directory's path.
    fn refused(&self) -> String {
        let out = self.out();
        fs_err::create_dir_all(&out).unwrap();
        let ended = run(&self.dir.path().join("model"), &out.join("x.gguf"), &[]).exits_with(1);
        assert_eq!(fs_err::read_dir(&out).unwrap().count(), 0, "something was left behind");
        ended.err.replace(&format!("{}/", self.dir.path().display()), "")
    }
}

#[test]
fn keys_that_nothing_reads_cost_little_and_change_no_other() {
    let broken = Broken::new();
    let fates = || {
        let options = ConvertOptions { tokenizer: false, ..ConvertOptions::default() };
        let conversion = Conversion::plan(&broken.file(""), &options).unwrap();
        conversion.mapping().config_keys.clone()
    };
    let own = fates();
    broken.config(|config| {
        let keys = std::mem::take(config);
        // As many as would be tried one by one for minutes, before, between and behind the others.
        for (at, (key, value)) in keys.into_iter().enumerate() {
            config.extend((0..200).map(|n| (format!("unread_{at}_{n}"), n.into())));
            config.insert(key, value);
        }
    });
    let padded = fates();
    assert_eq!(padded.len(), 201 * own.len());
    let (unread, others): (Vec<_>, Vec<_>) =
        padded.into_iter().partition(|key| key.name.starts_with("unread_"));
    assert_eq!(others, own);
    assert!(unread.iter().all(|key| key.fate != Fate::Written));
}

fn run(input: &Path, output: &Path, args: &[&str]) -> Outcome {
    let mut command = command("gguf-convert", root());
    finish(command.arg("hf2gguf").arg(input).arg("-o").arg(output).args(["--type", "f16"]).args(args))
}

fn first_line(message: &str) -> &str {
    message.lines().next().unwrap_or_default()
}

#[test]
fn truncated_weights() {
    let broken = Broken::new();
    let path = broken.file("model.safetensors");
    let bytes = fs_err::read(&path).unwrap();
    fs_err::write(&path, &bytes[..bytes.len() - 100]).unwrap();
    let message = broken.refused();
    assert_eq!(
        first_line(&message),
        "error: model/model.safetensors: tensor `model.norm.weight`: data up to offset 6824440 declared, \
         file ends at 6824340"
    );
}

#[test]
fn a_header_of_2_to_the_63_bytes() {
    let broken = Broken::new();
    let path = broken.file("model.safetensors");
    let mut bytes = fs_err::read(&path).unwrap();
    bytes[..8].copy_from_slice(&(1u64 << 63).to_le_bytes());
    fs_err::write(&path, &bytes).unwrap();
    assert_eq!(
        first_line(&broken.refused()),
        "error: model/model.safetensors: offset 0: header of 9223372036854775808 bytes declared, \
         at most 100000000 allowed"
    );
}

#[test]
fn overlapping_ranges() {
    let broken = Broken::new();
    broken.header(|header| {
        let at = header.find("\"data_offsets\":[").unwrap() + "\"data_offsets\":[".len();
        let (head, tail) = header.split_at(at);
        // The first tensor starts at 2 instead of 0.
        let tail = tail.strip_prefix('0').unwrap();
        format!("{head}2{tail}")
    });
    let message = broken.refused();
    assert!(first_line(&message).starts_with("error: model/model.safetensors: tensor `"), "{message}");
}

#[test]
fn a_missing_shard_is_named() {
    let broken = Broken::new();
    fs_err::rename(broken.file("model.safetensors"), broken.file("model-00001-of-00002.safetensors"))
        .unwrap();
    let index = serde_json::json!({
        "weight_map": {
            "model.norm.weight": "model-00001-of-00002.safetensors",
            "lm_head.weight": "model-00002-of-00002.safetensors",
        }
    });
    fs_err::write(broken.file("model.safetensors.index.json"), index.to_string()).unwrap();
    let message = broken.refused();
    assert!(first_line(&message).contains("model-00002-of-00002.safetensors"), "{message}");
}

#[test]
fn a_tensor_left_over_and_a_tensor_missing() {
    let broken = Broken::new();
    broken.header(|header| {
        header.replace("model.layers.2.mlp.up_proj.weight", "model.layers.2.mlp.up_prof.weight")
    });
    let message = broken.refused();
    assert_eq!(
        first_line(&message),
        "error: 1 of the checkpoint's tensors is unknown to architecture `llama`: `model.layers.2.mlp.up_prof.weight`"
    );
    assert!(message.contains("is nearest to `model.layers.2.mlp.up_proj.weight`"), "{message}");
    let broken = Broken::new();
    broken
        .header(|header| header.replace("model.norm.weight", "model.layers.3.self_attn.rotary_emb.inv_freq"));
    let message = broken.refused();
    assert!(first_line(&message).starts_with("error: the checkpoint lacks `model.norm.weight`"), "{message}");
}

#[test]
fn an_unknown_class_names_the_nearest() {
    let broken = Broken::new();
    broken.config(|config| {
        config.insert("architectures".into(), serde_json::json!(["LamaForCausalLM"]));
    });
    let message = broken.refused();
    assert_eq!(first_line(&message), "error: no architecture card for class `LamaForCausalLM`");
    assert!(message.contains("LlamaForCausalLM"), "{message}");
}

#[test]
fn an_unknown_pre_tokenizer_shows_the_way_out() {
    let broken = Broken::new();
    let steps = serde_json::json!({ "type": "Sequence", "pretokenizers": [
        { "type": "Split", "pattern": { "Regex": "[a-f]+|[^a-f]+" }, "behavior": "Isolated", "invert": false },
        { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false },
    ]});
    files::edit_json(broken.file("tokenizer.json"), |tokenizer| tokenizer["pre_tokenizer"] = steps);
    let message = broken.refused();
    assert!(message.contains("[a-f]+|[^a-f]+") && message.contains("--pre NAME"), "{message}");
    let out = broken.dir.path().join("with-pre.gguf");
    run(&broken.dir.path().join("model"), &out, &["--pre", "gpt-2"]).ok();
}

#[test]
fn dimensions_that_overflow() {
    let broken = Broken::new();
    broken.header(|header| header.replacen("\"shape\":[256,256]", "\"shape\":[9223372036854775807,256]", 1));
    let message = broken.refused();
    assert!(first_line(&message).starts_with("error: model/model.safetensors: tensor `"), "{message}");
    assert!(first_line(&message).contains("9223372036854775807"), "{message}");
}

#[test]
fn nan_names_tensor_and_index_unless_allowed() {
    let broken = Broken::new();
    let path = broken.file("model.safetensors");
    let mut file = Safetensors::parse(&fs_err::read(&path).unwrap());
    let data = file.data_mut("model.layers.1.mlp.down_proj.weight");
    data[2 * 777..][..2].copy_from_slice(&0x7fc0u16.to_le_bytes());
    file.write(&path);
    let message = broken.refused();
    assert_eq!(
        first_line(&message),
        "error: tensor `blk.1.ffn_down.weight`: source tensor `model.layers.1.mlp.down_proj.weight`: \
         element 777 is NaN"
    );
    assert!(message.contains("--allow-nonfinite"), "{message}");
    let out = broken.dir.path().join("nan.gguf");
    run(&broken.dir.path().join("model"), &out, &["--allow-nonfinite"]).ok();
}

#[test]
fn the_output_may_not_be_the_input() {
    let broken = Broken::new();
    let weights = broken.file("model.safetensors");
    let before = fs_err::read(&weights).unwrap();
    let err = run(&broken.dir.path().join("model"), &weights, &[]).exits_with(2).err;
    assert!(err.contains("model.safetensors: output is the same file as input "), "{err}");
    assert_eq!(fs_err::read(&weights).unwrap(), before);
}

/// A limit on the file size simulates a full disk: the write fails half-way.
#[cfg(unix)]
#[test]
fn a_full_disk_leaves_nothing() {
    let broken = Broken::new();
    let out = broken.out();
    fs_err::create_dir_all(&out).unwrap();
    let script = format!(
        "trap '' XFSZ; ulimit -f 1024; exec {} hf2gguf {} -o {}",
        path("gguf-convert"),
        broken.dir.path().join("model").display(),
        out.join("x.gguf").display()
    );
    let err = finish(Command::new("bash").arg("-c").arg(script)).exits_with(1).err;
    assert!(err.contains("File too large"), "{err}");
    assert_eq!(fs_err::read_dir(&out).unwrap().count(), 0);
}

/// Ctrl-C half-way: the checkpoint is large (a sparse file of zeros), so the run is still active when the signal comes.
#[cfg(unix)]
#[test]
fn an_interrupt_leaves_nothing() {
    let broken = Broken::new();
    let rows: u64 = 3 << 20;
    broken.config(|config| {
        config.insert("tie_word_embeddings".into(), false.into());
    });
    // One matrix of 1.5 GiB at the end of the file, all holes.
    broken.header(|header| {
        let end = header.rfind('}').unwrap();
        let begin = 6_820_352u64;
        assert!(header.contains(&format!(",{begin}]")), "the data of the bundled model ends elsewhere");
        let n_bytes = rows * 256 * 2;
        format!(
            "{},\"lm_head.weight\":{{\"dtype\":\"BF16\",\"shape\":[{rows},256],\"data_offsets\":[{begin},{}]}}}}",
            &header[..end],
            begin + n_bytes
        )
    });
    let path = broken.file("model.safetensors");
    let len = fs_err::metadata(&path).unwrap().len();
    fs_err::OpenOptions::new().write(true).open(&path).unwrap().set_len(len + rows * 512).unwrap();

    let out = broken.out();
    fs_err::create_dir_all(&out).unwrap();
    let mut child = command("gguf-convert", root())
        .arg("hf2gguf")
        .arg(broken.dir.path().join("model"))
        .arg("-o")
        .arg(out.join("x.gguf"))
        .args(["--type", "f32", "--quiet", "--threads", "1"])
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    wait_until_it_reads(&mut child, "model.safetensors");
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(130));
    assert_eq!(fs_err::read_dir(&out).unwrap().count(), 0);
}

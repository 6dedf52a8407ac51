//! Valid inputs of each target, made from fixtures and by helpers of the other tests.

use gguf_foundry::core::progress::Silent;
use gguf_foundry::core::{ElementType, GgmlType};
use gguf_foundry::gguf::{
    Array, ColumnSums, GgufFile, ImatrixSums, Metadata, SplitSpec, Value, WriteOptions, write_gguf,
};
use gguf_foundry::tokenizer::{ModelProto, Piece, TrainerSpec};
use prost::Message;
use serde_json::{Map, Value as Json, json};

use super::entries::join;
use super::kept;
use super::models::{checkpoint, gguf, letters, model};
use crate::support::{files, fixture, root};
use gguf_testkit::codes::{Part, all, noise, safetensors};
use gguf_testkit::flm::llama;
use gguf_testkit::slim;
use gguf_testkit::torch::{container, dict, floats, int, legacy, pickle, text, tuple};

/// Seeds of a target.
pub fn of(target: &str) -> Vec<Vec<u8>> {
    let file = |path: &str| fs_err::read(fixture(path)).unwrap();
    match target {
        "blocks" => GgmlType::all().enumerate().map(|(at, ty)| block(at, ty)).collect(),
        "quantize" => GgmlType::all().enumerate().flat_map(|(at, ty)| rows(at, ty)).collect(),
        "card" => cards(),
        "config" => {
            vec![file("tiny-llama/config.json"), file("tiny-llama/tokenizer_config.json"), TRICKY_JSON.into()]
        }
        "metadata_json" => vec![file("tiny-llama/generation_config.json"), METADATA.into(), CONFIG.into()],
        "model_card" => CARDS.iter().map(|card| card.as_bytes().to_vec()).collect(),
        "options" => vec![OPTIONS.into()],
        "template" => templates(),
        "prompts" => prompts(),
        "tasks" => ["hellaswag.txt", "winogrande.csv", "multiple-choice.bin"]
            .iter()
            .zip(0u8..)
            .map(|(name, kind)| [vec![kind], file(&format!("tasks/{name}"))].concat())
            .collect(),
        "logits" => vec![logits()],
        "text" => TEXTS.iter().map(|text| text.as_bytes().to_vec()).collect(),
        "tokenizer_json" => {
            vec![file("tiny-llama/tokenizer.json"), small_tokenizer().to_string().into_bytes()]
        }
        "tokenizer_files" => tokenizer_files(),
        "tiktoken" => vec![tiktoken(usize::MAX), tiktoken(40)],
        "sentencepiece" => sentencepieces(),
        "encoder" => encoders(),
        "pickle" => vec![
            pickle(&dict(&[("a", tuple(&[int(1), text("b")]))])),
            pickle(&dict(&[(
                "n",
                tuple(&[int(-70000), int(1 << 40), text("é"), vec![0x88], b"N".to_vec()]),
            )])),
        ],
        "torch" => torch(),
        "safetensors" => all(&mut noise(5)).iter().take(2).map(|made| container_of(&made.parts)).collect(),
        "index" => indices(),
        "fastllm" | "fastllm_codes" => fastllm(),
        "msmodelslim" => vec![msmodelslim(true), msmodelslim(false)],
        "gguf" => vec![model("llama", GgmlType::Q8_0, false), many_keys()],
        "rewrite" | "describe" => {
            vec![many_keys(), model("llama", GgmlType::Q8_0, false), model("qwen3moe", GgmlType::F16, false)]
        }
        "recipe" => kept::files_of_recipes(),
        "rebuild" => kept::recipes(),
        "verdict_part" => kept::verdict_parts(),
        "split" => vec![split(2), split(6)],
        "imatrix" => imatrices(),
        "engine" => ["llama", "qwen2", "qwen3", "qwen3moe"]
            .iter()
            .map(|arch| model(arch, GgmlType::F16, false))
            .chain([model("llama", GgmlType::Q8_0, false)])
            .collect(),
        "to_hf" => vec![
            model("llama", GgmlType::F16, false),
            model("qwen2", GgmlType::F16, true),
            model("qwen3moe", GgmlType::F32, false),
        ],
        "convert" => converts(),
        method => quantized(method),
    }
}

fn block(at: usize, ty: GgmlType) -> Vec<u8> {
    let mut bytes = vec![at as u8];
    bytes.resize(1 + 2 * ty.block_bytes(), 0);
    bytes
}

fn rows(at: usize, ty: GgmlType) -> Vec<Vec<u8>> {
    let n = ty.block_elems();
    let row = |bias: f32| (0..n).map(move |i| ((i * 29 % 31) as f32 - 15.0) / 16.0 + bias);
    let weights = (0..n).map(|i| 1.0 + (i % 5) as f32);
    let with = row(0.0).chain(weights);
    [row(0.25).collect::<Vec<_>>(), with.collect()]
        .map(|values| [vec![at as u8], floats(values)].concat())
        .to_vec()
}

/// Some of the built-in cards, and copies under other class names that do not collide with them.
fn cards() -> Vec<Vec<u8>> {
    ["llama", "qwen3moe", "gpt-oss", "starcoder2", "granite", "chatglm"]
        .iter()
        .filter_map(|name| fs_err::read_to_string(root().join(format!("converters/{name}.toml"))).ok())
        .flat_map(|card| [card.replace("ForCausalLM\"", "ForFuzzing\"").replace("Model\"", "Fuzz\""), card])
        .map(String::into_bytes)
        .collect()
}

const TRICKY_JSON: &str = r#"{"a": [1, -2.5e-3, 1e400, true, null, "\u00e9\ud83d\ude42\n"], "b": {"c": {}}, "": NaN, "i": -Infinity}"#;
const CONFIG: &str =
    r#"{"_name_or_path": "org/Model-7B-Instruct-v1.5", "general.name": 3, "general.license": "mit"}"#;
const METADATA: &str = r#"{"general.name": "A", "general.author": "B", "general.version": "v2", "general.tags": ["x", "y"],
"general.base_models": [{"name": "C", "repo_url": "https://x/y"}], "general.datasets": [{"name": "D"}], "general.quantized_by": "E",
"general.languages": ["en"], "do_sample": true, "temperature": 0.7, "top_k": 40, "top_p": 0.9, "unknown": 1}"#;

const CARDS: [&str; 4] = [
    "---\nlicense: apache-2.0\nlanguage:\n- en\n- de\nbase_model: org/Base-7B-v0.1\ntags: [a, 'b', \"c\"]\n---\n# A\n",
    "---\nmodel-index:\n- name: x\n  results: []\nmodel_name: A 7B\nmodel_creator: Me\nquantized_by: You\nlicense_name: l\nlicense_link: https://x\n---\n",
    "---\nbase_model: &x\n  - https://huggingface.co/org/Base\n  - org/Other\ndatasets: *x\nlong: |\n  one\n  two\nfold: >-\n  a\n  b\n? key\n: 1.5e3\n---\nText",
    "---\nauthor: {name: A, url: 'http://a'}\nversion: 1.0\norganization: [o]\nflag: yes\nnull: ~\nhex: 0x1F\n---\n",
];

const OPTIONS: &str = "general.name=A\nx.y=u32:7\na.b=f32:1e-3\na.c=arr[i32]:[1,2,3]\na.d=arr[str]:[\"x\",\"y\"]\nk=bool:true\nk=str:@x\nQ4_K_M\nq8_0\nmostly_q6_k\n0-3,7\n1,2,5-9\nblk\\.[0-9]+\\.attn_q=q8_0,output=f16\nattn_v=q6_k\nllama.expert_count=int:4\ntokenizer.ggml.add_bos_token=bool:false";

const TEXTS: [&str; 4] = [
    "Hello the world, aaaa  x\n\n1234 é\u{1f642}\u{0301}",
    "don't WE'LL  \t\r\n ___ \u{200d}\u{fe0f} \u{0e01}\u{0e33}",
    "漢字かな交じり文 العربية עברית ไทย",
    "\u{0}\u{7f}\u{ffff}\u{10ffff} -- 3.14159e10",
];

fn templates() -> Vec<Vec<u8>> {
    let own = [
        "{% for m in messages %}{{ m.role }}: {{ m['content'] | trim }}\n{% endfor %}",
        "{%- set n = 0 -%}{%- for m in messages -%}{%- set n = n + loop.index0 -%}{{ n }}{%- endfor -%}{{ n }}",
        "{% macro f(x, y=1) %}{{ x ~ y }}{% endmacro %}{{ f('a') }}{{ bos_token if messages else 'none' }}",
        "{{ messages | tojson }}{{ messages | map(attribute='role') | join(',') | upper | replace('A', 'b') }}",
        "{% if messages[0].role == 'system' and messages | length > 1 %}{{ raise_exception('no') }}{% endif %}{{ 'abc'[1:] }}",
        "{% generation %}{{ 'x'.split('y')[0].strip() }}{% endgeneration %}{{ [1, 2, 3][::-1] | list | sort | first }}",
    ];
    let released = ["chatml", "gemma"]
        .iter()
        .map(|name| fs_err::read(fixture(&format!("chat/templates/{name}.jinja"))).unwrap());
    own.iter()
        .map(|text| text.as_bytes().to_vec())
        .chain(released.filter(|text| text.len() <= 1024))
        .collect()
}

fn prompts() -> Vec<Vec<u8>> {
    [
        "Just text.\nTwo lines.",
        r#"["a", "b", {"tokens": [1, 2, 3]}, {"messages": []}]"#,
        "{\"text\": \"a\"}\n{\"prompt\": \"b\", \"completion\": \"c\"}\n{\"tokens\": [1, 2]}\n{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}\n",
        r#"["a", {"text": "b"}, {"prompt": "c", "completion": "d"}]"#,
        "{\"tokens\": [1, 2, 3]}\n\"text\"\n",
        r#"[{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}]"#,
    ]
    .iter()
    .map(|text| text.as_bytes().to_vec())
    .collect()
}

fn logits() -> Vec<u8> {
    let (n_ctx, n_vocab, n_chunks) = (6i32, 5i32, 2i32);
    let mut bytes = b"_logits_".to_vec();
    bytes.extend([n_ctx, n_vocab, n_chunks].iter().flat_map(|n| n.to_le_bytes()));
    bytes.extend((0..n_ctx * n_chunks).flat_map(|at| (at % n_vocab).to_le_bytes()));
    for _ in 0..2 * n_chunks {
        bytes.extend([1e-4f32, -8.0].iter().flat_map(|x| x.to_le_bytes()));
        bytes.extend((0..6u16).flat_map(|code| (code * 9000).to_le_bytes()));
    }
    bytes
}

/// Tokenizer of byte-level BPE in the format of the tokenizers library.
pub fn small_tokenizer() -> Json {
    let mut keys = Metadata::new();
    letters(&mut keys);
    let Some(Array::String(tokens)) = keys.get("tokenizer.ggml.tokens").and_then(Value::as_array) else {
        panic!("tokens")
    };
    let tokens: Vec<&str> = tokens.iter().map(|token| std::str::from_utf8(token).unwrap()).collect();
    let plain = &tokens[..tokens.len() - 2];
    let vocab: Map<String, Json> =
        plain.iter().zip(0..).map(|(token, id)| ((*token).to_owned(), json!(id))).collect();
    let added = |at: usize, special: bool| {
        json!({ "id": at, "content": tokens[at], "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": special })
    };
    let split = json!({ "type": "Split", "behavior": "Isolated", "invert": false,
        "pattern": { "Regex": "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+" } });
    let bytes =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
    json!({ "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": [added(tokens.len() - 2, true), added(tokens.len() - 1, false)],
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": [split, bytes] },
        "post_processor": null, "decoder": { "type": "ByteLevel" },
        "model": { "type": "BPE", "vocab": vocab, "merges": ["t h", "th e", "Ġ the", "a a", "Ġ Ġ"],
            "byte_fallback": false, "ignore_merges": true } })
}

/// Unigram and byte-fallback BPE in the format of the tokenizers library.
fn tokenizer_files() -> Vec<Vec<u8>> {
    let config = r#"{"vocab_size": 264, "eos_token_id": 1, "bos_token_id": [0]}"#;
    let named = r#"{"bos_token": "<|end|>", "eos_token": {"content": "<|end|>"}, "add_bos_token": true,
        "chat_template": [{"name": "default", "template": "{{ x }}"}, {"name": "rag", "template": "y"}],
        "added_tokens_decoder": {"261": {"content": "<|end|>", "special": true}}}"#;
    let added = r#"{"<|end|>": 261, "<|user|>": 262}"#;
    let small = small_tokenizer().to_string();
    let mut all = Vec::new();
    for mode in ["bpe", "bpe_plain_added"] {
        all.push(join(&[
            ("mode", mode),
            ("tokenizer.json", &small),
            ("config.json", config),
            ("tokenizer_config.json", named),
            ("added_tokens.json", added),
            ("special_tokens_map.json", r#"{"pad_token": "<|end|>"}"#),
            ("chat_template.jinja", "{{ messages }}"),
        ]));
    }
    let bytes = (0..=255u32).map(|byte| (format!("<0x{byte:02X}>"), byte + 3));
    let pieces = ["<unk>", "<s>", "</s>"].into_iter().map(str::to_owned).zip(0..).chain(bytes);
    let pieces = pieces.chain(["▁", "a", "b", "▁a", "ab"].map(str::to_owned).into_iter().zip(259..));
    let vocab: Map<String, Json> = pieces.map(|(piece, id)| (piece, json!(id))).collect();
    let model = json!({ "type": "BPE", "vocab": vocab, "merges": [["▁", "a"], ["a", "b"]], "unk_token": "<unk>",
        "byte_fallback": true, "fuse_unk": true });
    let normalizer = json!({ "type": "Sequence", "normalizers": [{ "type": "Prepend", "prepend": "▁" },
        { "type": "Replace", "pattern": { "String": " " }, "content": "▁" }] });
    let decoder = json!({ "type": "Sequence", "decoders": [{ "type": "Replace", "pattern": { "String": "▁" }, "content": " " },
        { "type": "ByteFallback" }, { "type": "Fuse" }, { "type": "Strip", "content": " ", "start": 1, "stop": 0 }] });
    let special = |at: u32, text: &str| json!({ "id": at, "content": text, "special": true });
    let fallback = json!({ "version": "1.0", "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
        "normalizer": normalizer, "pre_tokenizer": null, "decoder": decoder, "model": model });
    for mode in ["llama_hf", "spm_xverse"] {
        let config = r#"{"vocab_size": 264, "model_type": "llama"}"#;
        all.push(join(&[("mode", mode), ("tokenizer.json", &fallback.to_string()), ("config.json", config)]));
    }
    let spm = |kind: i32| pieces_model(kind);
    let config = br#"{"vocab_size": 280}"#.to_vec();
    for mode in ["spm", "spm_internlm2", "spm_internlm3", "spm_chatglm3", "unigram", "spm_chatglm1"] {
        let kind = if mode == "unigram" || mode == "spm_chatglm1" { 1 } else { 2 };
        // InternLM 2 overwrites existing tokens; the others have free ids after them.
        let (id, text) = if mode == "spm_internlm2" { (264, "<|im_end|>") } else { (266, "<y>") };
        let decoder =
            json!({ "added_tokens_decoder": { (id.to_string()): { "content": text, "special": true } } });
        let decoder = decoder.to_string();
        let name = if mode == "spm_chatglm1" { "ice_text.model" } else { "tokenizer.model" };
        all.push(join(&[
            ("mode", mode.as_bytes().to_vec()),
            (name, spm(kind)),
            ("config.json", config.clone()),
            ("added_tokens.json", br#"{"<x>": 265}"#.to_vec()),
            ("tokenizer_config.json", decoder.into_bytes()),
        ]));
    }
    all.push(tiktoken(60));
    all
}

fn tiktoken(n_lines: usize) -> Vec<u8> {
    let dir = fixture("vocab/qwen");
    let mut all = vec![("mode".to_owned(), b"tiktoken".to_vec())];
    all.extend(files::contents(dir).into_iter().filter(|file| file.0 != "expect.json"));
    let ranks = all.iter_mut().find(|file| file.0 == "qwen.tiktoken").unwrap();
    if n_lines < usize::MAX {
        // The ranks of the 256 bytes and some more.
        ranks.1 =
            ranks.1.split_inclusive(|&byte| byte == b'\n').take(256 + n_lines).flatten().copied().collect();
    }
    join(&all.iter().map(|(name, bytes)| (name.as_str(), bytes)).collect::<Vec<_>>())
}

fn pieces_model(model_type: i32) -> Vec<u8> {
    let piece = |text: &str, score: f32, kind: i32| Piece {
        piece: Some(text.as_bytes().to_vec()),
        score: Some(score),
        kind: Some(kind),
    };
    let mut pieces = vec![piece("<unk>", 0.0, 2), piece("<s>", 0.0, 3), piece("</s>", 0.0, 3)];
    pieces.extend((0..=255).map(|byte| piece(&format!("<0x{byte:02X}>"), 0.0, 6)));
    let words = ["▁", "a", "b", "▁a", "ab", "é"];
    pieces.extend(words.iter().zip(1..).map(|(text, rank)| piece(text, -(rank as f32), 1)));
    let trainer_spec = Some(TrainerSpec { model_type: Some(model_type), ..TrainerSpec::default() });
    ModelProto { pieces, trainer_spec, normalizer_spec: None }.encode_to_vec()
}

fn sentencepieces() -> Vec<Vec<u8>> {
    let file = |path: &str| fs_err::read(fixture(path)).unwrap();
    vec![pieces_model(1), pieces_model(2), file("vocab/baichuan/tokenizer.model")]
}

fn encoders() -> Vec<Vec<u8>> {
    let mut bpe = Metadata::new();
    letters(&mut bpe);
    let mut all = vec![bpe];
    for (kind, tokens) in [
        ("llama", &["<unk>", "<s>", "</s>", "▁", "a", "b", "▁a", "ab"][..]),
        ("t5", &["<unk>", "<pad>", "</s>", "▁", "a", "b", "▁a", "ab"]),
        ("bert", &["[UNK]", "[CLS]", "[SEP]", "▁a", "b", "ab", "▁b", "##a"]),
    ] {
        let mut keys = Metadata::new();
        keys.set("tokenizer.ggml.model", kind);
        let mut texts: Vec<Vec<u8>> = tokens.iter().map(|token| token.as_bytes().to_vec()).collect();
        let mut types = vec![2, 3, 3, 1, 1, 1, 1, 4];
        texts.extend((0..=255).map(|byte| format!("<0x{byte:02X}>").into_bytes()));
        types.resize(texts.len(), 6i32);
        let scores: Vec<f32> = (0..texts.len()).map(|at| -(at as f32)).collect();
        keys.set("tokenizer.ggml.tokens", Value::Array(Array::String(texts)));
        keys.set("tokenizer.ggml.scores", Value::Array(Array::F32(scores)));
        keys.set("tokenizer.ggml.token_type", types);
        keys.set("tokenizer.ggml.unknown_token_id", 0u32);
        keys.set("tokenizer.ggml.bos_token_id", 1u32);
        keys.set("tokenizer.ggml.add_bos_token", true);
        if kind == "t5" {
            keys.set("tokenizer.ggml.precompiled_charsmap", Value::Array(Array::U8(charsmap())));
            keys.set("tokenizer.ggml.remove_extra_whitespaces", true);
        }
        all.push(keys);
    }
    let seed = |keys: &Metadata| {
        let text = "Hello a  ab</s> é\u{1f642}\n".as_bytes().to_vec();
        join(&[("keys", gguf(keys, &[])), ("text", text)])
    };
    all.iter().map(seed).collect()
}

/// Map that replaces `a` by `bb`: a trie of 512 units.
fn charsmap() -> Vec<u8> {
    let mut units = vec![0u32; 512];
    units[0] = 1 << 10;
    let at_a = 1 ^ usize::from(b'a');
    units[at_a] = 3 << 10 | 1 << 8 | u32::from(b'a');
    units[at_a ^ 3] = 1 << 31;
    let size = 4 * units.len() as u32;
    let units = units.iter().flat_map(|unit| unit.to_le_bytes());
    size.to_le_bytes().into_iter().chain(units).chain(*b"bb\0").collect()
}

fn torch() -> Vec<Vec<u8>> {
    let data = floats((0..12).map(|at| at as f32));
    let tensor = gguf_testkit::torch::Tensor::new("FloatStorage", "0", &[3, 4]).bytes();
    let turned = {
        let mut tensor = gguf_testkit::torch::Tensor::new("FloatStorage", "0", &[4, 3]);
        tensor.strides = vec![1, 4];
        tensor.bytes()
    };
    let body = dict(&[("a.weight", tensor), ("b.weight", turned), ("step", int(3))]);
    vec![
        container(&pickle(&body), &[&data]),
        legacy(&body, &[("0", 12, &data)]),
        fs_err::read(fixture("torch/legacy/pytorch_model.bin")).unwrap(),
    ]
}

/// Safetensors file of these tensors.
pub fn container_of(parts: &[Part]) -> Vec<u8> {
    safetensors(parts).bytes()
}

/// Checkpoints of a method, in several shapes, small enough to be damaged effectively.
fn quantized(target: &str) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    for round in 0..12 {
        for made in all(&mut noise(round)) {
            // MLX names no method.
            let method = made.config["quantization_config"]["quant_method"].as_str().unwrap_or("mlx");
            let is_of = match target {
                "auto_round" => ["auto-round", "intel/auto-round"].contains(&method),
                "fp8" => ["fp8", "fbgemm_fp8"].contains(&method),
                _ => method.replace('-', "_") == target,
            };
            let file = container_of(&made.parts);
            if is_of && file.len() < 6000 && found.len() < 12 {
                found.push(join(&[
                    ("config.json", made.config.to_string().into_bytes()),
                    ("model.safetensors", file),
                ]));
            }
        }
    }
    found
}

fn owned(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    join(&files.iter().map(|(name, bytes)| (name.as_str(), bytes)).collect::<Vec<_>>())
}

fn indices() -> Vec<Vec<u8>> {
    let part = |name: &str| Part {
        name: name.to_owned(),
        ty: ElementType::F32,
        dims: vec![2, 3],
        bytes: vec![0; 24],
    };
    let map = json!({ "metadata": { "total_size": 48 }, "weight_map": { "a": "model-00001-of-00002.safetensors",
        "b": "model-00002-of-00002.safetensors" } });
    let config = b"{}".to_vec();
    let split = join(&[
        ("config.json", config.clone()),
        ("model.safetensors.index.json", map.to_string().into_bytes()),
        ("model-00001-of-00002.safetensors", container_of(&[part("a")])),
        ("model-00002-of-00002.safetensors", container_of(&[part("b")])),
    ]);
    let bare = join(&[
        ("config.json", config.clone()),
        ("model-00001-of-00002.safetensors", container_of(&[part("a")])),
        ("model-00002-of-00002.safetensors", container_of(&[part("b")])),
    ]);
    let mut sharded: Vec<_> = files::contents(fixture("torch/sharded")).into_iter().collect();
    sharded.retain(|file| file.0 != "MANIFEST.toml");
    vec![split, bare, owned(&sharded)]
}

fn fastllm() -> Vec<Vec<u8>> {
    let small = |n: usize| n.min(8);
    let halves = llama(|writer, name, dims, noise| {
        let values = noise.floats(small(dims[0]) * small(dims[1]));
        writer.f16(name, &dims.map(small), &values);
    });
    let mut codes = llama(|writer, name, dims, noise| {
        let (n_rows, n_cols) = (small(dims[0]), small(dims[1]));
        let codes = noise.bytes((n_rows * n_cols) as u64);
        let ranges = vec![(-1.0, 1.0); n_rows];
        writer.codes(name, &[n_rows, n_cols], 3, &ranges, &codes);
    });
    codes.tokens.push((b"a".to_vec(), 0, None));
    vec![halves.bytes(), codes.bytes()]
}

fn msmodelslim(is_dynamic: bool) -> Vec<u8> {
    let (q, n_rows, n_cols) = ("model.layers.0.self_attn.q_proj", 6, 32);
    let mut made = slim::Made::default();
    let (codes, scales) = slim::int8(&slim::noise(1, n_rows * n_cols), n_cols);
    let label = if is_dynamic { "W8A8_DYNAMIC" } else { "W8A16" };
    made.codes(&format!("{q}.weight"), label, &[n_rows, n_cols], &codes);
    made.floats(&format!("{q}.weight_scale"), label, &[n_rows], &scales);
    made.floats(&format!("{q}.weight_offset"), label, &[n_rows], &vec![0.0; n_rows]);
    made.floats("model.norm.weight", "FLOAT", &[n_cols], &slim::noise(2, n_cols));
    let dir = tempfile::tempdir().unwrap();
    made.write(dir.path(), &json!({ "architectures": ["LlamaForCausalLM"], "hidden_size": n_cols }));
    owned(&files::contents(dir.path()).into_iter().collect::<Vec<_>>())
}

/// File with a key of each type.
fn many_keys() -> Vec<u8> {
    let mut keys = Metadata::new();
    keys.set("general.architecture", "llama");
    keys.set("general.alignment", 64u32);
    keys.set("a.u8", Value::U8(1));
    keys.set("a.i8", Value::I8(-1));
    keys.set("a.u16", Value::U16(1));
    keys.set("a.i16", Value::I16(-1));
    keys.set("a.i32", -1i32);
    keys.set("a.u64", Value::U64(1));
    keys.set("a.i64", Value::I64(-1));
    keys.set("a.f32", 0.5f32);
    keys.set("a.f64", Value::F64(0.5));
    keys.set("a.bool", true);
    let nested = Array::Array(vec![Array::I32(vec![1, 2]), Array::String(vec![b"x".to_vec()])]);
    keys.set("a.nested", Value::Array(nested));
    keys.set("a.bools", Value::Array(Array::Bool(vec![true, false])));
    keys.set("a.f64s", Value::Array(Array::F64(vec![0.5])));
    keys.set("a.u64s", Value::Array(Array::U64(vec![5])));
    let tensors = [("a", GgmlType::F32), ("b", GgmlType::Q8_0), ("c", GgmlType::F16)];
    let tensors = tensors.map(|(name, ty)| (format!("{name}.weight"), vec![2, 32], ty));
    gguf(&keys, &tensors)
}

fn split(max_tensors: u64) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("whole.gguf");
    let mut keys = Metadata::new();
    keys.set("general.architecture", "llama");
    let n = 2 * max_tensors + 1;
    let tensors: Vec<_> = (0..n).map(|at| (format!("t{at}"), vec![4], GgmlType::F32)).collect();
    fs_err::write(&path, gguf(&keys, &tensors)).unwrap();
    let file = GgufFile::open(&path).unwrap();
    let spec = SplitSpec { max_tensors: Some(max_tensors), ..SplitSpec::default() };
    let options = WriteOptions { split: Some(spec), sync: false, ..WriteOptions::default() };
    write_gguf(&dir.path().join("m.gguf"), file.metadata(), &file, &options, &Silent).unwrap();
    let mut parts: Vec<_> = files::contents(dir.path()).into_iter().collect();
    parts.retain(|part| part.0 != "whole.gguf");
    owned(&parts)
}

fn imatrices() -> Vec<Vec<u8>> {
    let dir = tempfile::tempdir().unwrap();
    let columns = |n_cols: usize, counts: &[i64]| ColumnSums {
        n_cols,
        sums: (0..n_cols * counts.len()).map(|at| at as f64 + 0.5).collect(),
        counts: counts.to_vec(),
    };
    let tensors = [
        ("blk.0.attn_q.weight".to_owned(), columns(8, &[512])),
        ("blk.0.ffn_up_exps.weight".to_owned(), columns(4, &[3, 0, 7])),
    ];
    let sums = ImatrixSums {
        tensors: tensors.into(),
        datasets: vec![b"a.txt".to_vec()],
        n_chunks: 1,
        chunk_size: 512,
    };
    let options = WriteOptions { sync: false, ..WriteOptions::default() };
    sums.write(&dir.path().join("a.gguf"), &options, &Silent).unwrap();
    let plain = ImatrixSums { tensors: [("x".to_owned(), columns(8, &[512]))].into(), ..sums };
    plain.write_legacy(&dir.path().join("b.dat"), &options).unwrap();
    files::contents(dir.path()).into_values().collect()
}

fn converts() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = [("llama", false), ("qwen2", true), ("qwen3moe", false)]
        .into_iter()
        .map(|(arch, vocabulary)| owned(&checkpoint(&model(arch, GgmlType::F16, vocabulary), 1 << 30)))
        .collect();
    let native: Vec<_> = files::contents(fixture("native/nvfp4_qwen3_w4a16/hf")).into_iter().collect();
    all.push(owned(&native));
    all
}

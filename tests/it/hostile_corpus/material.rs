//! Conversion of a file of the corpus into a program's input.
//!
//! - `NAME.gen` is a file made of pieces: a JSON array of `["text", times]` or `["x:hex", times]`.
//! - `NAME.keys` is `base.gguf` with other keys: a JSON object of `KEY: [TYPE, VALUE]`, or null for a key to leave out.
//!   A text may be made of pieces, and so may the items of an array: `["arr:str", [["x", 3]]]`.
//! - `NAME.hf` is the checkpoint `base.hf` with other files. `FILE.patch` has members that replace those of the JSON
//!   file's object (null: missing). An empty `FILE.none` removes the file.
//! - All other files are used unchanged.
//!
//! Words of a command: `FILE` this material, `BASE` a valid GGUF file, `HF` a valid checkpoint, `CHAT` and `TEXT` valid
//! prompts, `OUT` a path for an output.

use std::path::{Path, PathBuf};

use gguf_foundry::core::limits::Limits;
use gguf_foundry::gguf::{Array, FilePlan, LayoutOptions, Metadata, Strictness, Value, parse_header};
use serde_json::Value as Json;

use crate::support::{files, fixture, programs};

/// File of the corpus in a separate folder.
pub struct Material {
    dir: PathBuf,
    file: PathBuf,
    before: Vec<String>,
}

impl Material {
    pub fn new(dir: &Path, name: &str) -> Self {
        let (dir, source) = (dir.join("case"), fixture("hostile").join(name));
        fs_err::create_dir(&dir).unwrap();
        fs_err::create_dir(dir.join("out")).unwrap();
        for base in ["base.gguf", "base_chat.jsonl", "base_text.txt"] {
            fs_err::copy(fixture("hostile").join(base), dir.join(base)).unwrap();
        }
        copy_dir(&fixture("hostile/base.hf"), &dir.join("base.hf"));
        let file = match name.strip_suffix(".hf") {
            Some(stem) => {
                let target = dir.join(stem);
                copy_dir(&fixture("hostile/base.hf"), &target);
                overlay(&source, &target);
                target
            }
            None => place(&source, &dir),
        };
        let before = names(&dir);
        Self { dir, file, before }
    }

    /// Program and arguments of a command of the manifest.
    pub fn command(&self, run: &str) -> Vec<String> {
        let path = |name: &str| self.dir.join(name).to_str().unwrap().to_owned();
        let file = self.file.to_str().unwrap();
        let word = |word: &str| match word {
            program if program.starts_with("gguf-") => programs::path(program).to_owned(),
            "BASE" => path("base.gguf"),
            "HF" => path("base.hf"),
            "CHAT" => path("base_chat.jsonl"),
            "TEXT" => path("base_text.txt"),
            "OUT" => path("out/out.gguf"),
            word => match word.strip_prefix("FILE") {
                Some(rest) => format!("{file}{rest}"),
                None => word.to_owned(),
            },
        };
        run.split(' ').map(word).collect()
    }

    /// Path of the file or folder.
    pub fn path(&self) -> &Path {
        &self.file
    }

    /// Files that a run has left behind.
    pub fn left(&self) -> Vec<String> {
        names(&self.dir).into_iter().filter(|name| !self.before.contains(name)).collect()
    }
}

fn names(dir: &Path) -> Vec<String> {
    let mut out = Vec::new();
    for path in files::entries(dir) {
        out.push(path.to_str().unwrap().to_owned());
        if path.is_dir() {
            out.extend(names(&path));
        }
    }
    out
}

fn copy_dir(from: &Path, to: &Path) {
    fs_err::create_dir_all(to).unwrap();
    for path in files::entries(from) {
        place(&path, to);
    }
}

/// Applies files that replace, patch or remove others.
fn overlay(from: &Path, to: &Path) {
    for path in files::entries(from) {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if let Some(name) = name.strip_suffix(".none") {
            fs_err::remove_file(to.join(name)).unwrap();
        } else if let Some(name) = name.strip_suffix(".patch") {
            let mut json = files::json(to.join(name));
            let patch = files::json(path);
            for (key, value) in patch.as_object().unwrap() {
                json[key.as_str()] = value.clone();
                if value.is_null() {
                    json.as_object_mut().unwrap().shift_remove(key);
                }
            }
            fs_err::write(to.join(name), json.to_string()).unwrap();
        } else {
            place(&path, to);
        }
    }
}

/// Creates the input for a file of the corpus.
fn place(source: &Path, dir: &Path) -> PathBuf {
    let name = source.file_name().unwrap().to_str().unwrap();
    if source.is_dir() {
        copy_dir(source, &dir.join(name));
        return dir.join(name);
    }
    let (name, bytes) = match (name.strip_suffix(".gen"), name.strip_suffix(".keys")) {
        (Some(name), _) => {
            let pieces = files::json(source);
            (name.to_owned(), expand(&pieces))
        }
        (_, Some(name)) => (format!("{name}.gguf"), with_keys(&fs_err::read(source).unwrap())),
        _ => (name.to_owned(), fs_err::read(source).unwrap()),
    };
    assert!(bytes.len() <= 1 << 20, "{name}: {} bytes", bytes.len());
    fs_err::write(dir.join(&name), bytes).unwrap();
    dir.join(name)
}

/// Concatenated bytes of pieces.
pub fn expand(pieces: &Json) -> Vec<u8> {
    let mut out = Vec::new();
    for piece in pieces.as_array().unwrap() {
        let (text, times) = (piece[0].as_str().unwrap(), piece[1].as_u64().unwrap());
        let bytes = match text.strip_prefix("x:") {
            Some(hex) => {
                (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect()
            }
            None => text.as_bytes().to_vec(),
        };
        out.extend(bytes.repeat(usize::try_from(times).unwrap()));
    }
    out
}

/// Copy of `base.gguf` with other keys.
pub fn with_keys(patch: &[u8]) -> Vec<u8> {
    let base = fs_err::read(fixture("hostile/base.gguf")).unwrap();
    let header = parse_header(&base, &Limits::default(), Strictness::Format).unwrap();
    let patch: Json = serde_json::from_slice(patch).unwrap();
    let patch = patch.as_object().unwrap();
    let mut metadata = Metadata::new();
    for (key, old) in header.metadata.iter() {
        match patch.get(key) {
            None => metadata.set(key, old.clone()),
            Some(Json::Null) => {}
            Some(new) => metadata.set(key, value(new)),
        }
    }
    for (key, new) in patch.iter().filter(|(key, new)| !new.is_null() && header.metadata.get(key).is_none()) {
        metadata.set(key.as_str(), value(new));
    }
    let plan = FilePlan::new(&metadata, &header.tensors, &LayoutOptions::default()).unwrap();
    let mut out = plan.header;
    out.resize(usize::try_from(plan.data_offset).unwrap(), 0);
    out.extend_from_slice(&base[usize::try_from(header.data_offset).unwrap()..]);
    out
}

fn text(value: &Json) -> Vec<u8> {
    value.as_str().map_or_else(|| expand(value), |text| text.as_bytes().to_vec())
}

fn float(value: &Json) -> f32 {
    value.as_f64().map_or_else(|| value.as_str().unwrap().parse().unwrap(), |value| value as f32)
}

fn all<T: Clone>(items: &[(Json, usize)], of: impl Fn(&Json) -> T) -> Vec<T> {
    items.iter().flat_map(|(item, n)| vec![of(item); *n]).collect()
}

fn value(typed: &Json) -> Value {
    let (ty, of) = (typed[0].as_str().unwrap(), &typed[1]);
    let items = || -> Vec<(Json, usize)> {
        let pair = |item: &Json| (item[0].clone(), usize::try_from(item[1].as_u64().unwrap()).unwrap());
        of.as_array().unwrap().iter().map(pair).collect()
    };
    match ty {
        "str" => Value::String(text(of)),
        "u32" => (of.as_u64().unwrap() as u32).into(),
        "i32" => (of.as_i64().unwrap() as i32).into(),
        "u64" => of.as_u64().unwrap().into(),
        "f32" => float(of).into(),
        "bool" => of.as_bool().unwrap().into(),
        "arr:str" => Value::Array(Array::String(all(&items(), text))),
        "arr:i32" => Value::Array(Array::I32(all(&items(), |item| item.as_i64().unwrap() as i32))),
        "arr:u32" => Value::Array(Array::U32(all(&items(), |item| item.as_u64().unwrap() as u32))),
        "arr:u8" => Value::Array(Array::U8(all(&items(), |item| item.as_u64().unwrap() as u8))),
        "arr:f32" => Value::Array(Array::F32(all(&items(), float))),
        other => panic!("{other}: no such type"),
    }
}

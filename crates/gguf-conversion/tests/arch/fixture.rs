//! Cases of `fixtures/cards`: configuration and names and shapes of tensors, written as a checkpoint on disk. Elements
//! follow from the formula in `lab/peers/card_fixtures.py`.

#![allow(dead_code, reason = "whoever includes this uses a part of it")]

use std::path::{Path, PathBuf};

use gguf_arch::{CardKind, DraftHeads, OutType};
use gguf_conversion::{Conversion, ConvertError, ConvertOptions};
use regex::Regex;
use serde_json::{Map, Value as Json, json};

use gguf_testkit::checkpoints::Safetensors;
use gguf_testkit::tiers::Tier;
use gguf_testkit::{fixture, names};

/// Case of `fixtures/cards`.
pub struct CardFixture {
    /// Architecture and name of the case, for messages.
    pub at: String,
    pub arch: String,
    content: Json,
    drop: Option<Regex>,
}

/// The case in `fixtures/cards/{at}`.
pub fn case(at: &str) -> CardFixture {
    let (arch, _) = at.split_once('/').unwrap();
    let content = load(&fixture("cards").join(at));
    CardFixture { at: at.to_owned(), arch: arch.to_owned(), content, drop: None }
}

/// All cases, sorted.
pub fn all() -> Vec<CardFixture> {
    some(Tier::Deep, 1)
}

/// All cases, sorted; every day each `n`-th of them.
pub fn some(tier: Tier, n: usize) -> Vec<CardFixture> {
    let cases = |arch: String| {
        let of_arch = names(fixture("cards").join(&arch)).into_iter();
        of_arch.map(move |name| format!("{arch}/{name}"))
    };
    let all = names(fixture("cards")).into_iter().flat_map(cases);
    tier.some(n, all).iter().map(|at| case(at)).collect()
}

impl CardFixture {
    /// Case with changed content; `None` if nothing changes.
    pub fn changed(&self, change: impl FnOnce(&mut Json)) -> Option<Self> {
        let changed = self.edited(change);
        (changed.content != self.content).then_some(changed)
    }

    /// Case with edited content.
    pub fn edited(&self, edit: impl FnOnce(&mut Json)) -> Self {
        let (at, arch, mut content) = (self.at.clone(), self.arch.clone(), self.content.clone());
        edit(&mut content);
        Self { at, arch, content, drop: self.drop.clone() }
    }

    /// Configuration, tensors and options.
    pub fn content(&self) -> &Json {
        &self.content
    }

    /// Returns true if the case has towers.
    pub fn is_mmproj(&self) -> bool {
        self.content["options"]["mmproj"] == true
    }

    /// Returns true if the case is in Mistral's own format.
    pub fn is_mistral(&self) -> bool {
        self.content["options"]["mistral_format"] == true
    }

    /// Case with renamed tensors.
    pub fn renamed(&self, rename: impl Fn(&str) -> String) -> Self {
        let mut content = self.content.clone();
        for row in content["tensors"].as_array_mut().unwrap() {
            row[0] = rename(row[0].as_str().unwrap()).into();
        }
        if let Some(listed) = listed_names(&mut content) {
            let renamed = listed.iter().map(|(name, file)| (rename(name), file.clone()));
            *listed = renamed.collect();
        }
        Self { at: self.at.clone(), arch: self.arch.clone(), content, drop: self.drop.clone() }
    }

    /// Case with an additional tensor.
    pub fn with(mut self, name: &str, dims: &[u64]) -> Self {
        self.content["tensors"].as_array_mut().unwrap().push(json!([name, "BF16", dims]));
        if let Some(listed) = listed_names(&mut self.content) {
            listed.insert(name.to_owned(), "model.safetensors".into());
        }
        self
    }

    /// Case that is converted without tensors whose names match.
    pub fn dropping(&self, pattern: &str) -> Self {
        Self { drop: Some(Regex::new(pattern).unwrap()), ..self.renamed(str::to_owned) }
    }

    /// Returns true if a tensor name satisfies the predicate.
    pub fn has_name(&self, is_like: impl Fn(&str) -> bool) -> bool {
        self.content["tensors"].as_array().unwrap().iter().any(|row| is_like(row[0].as_str().unwrap()))
    }

    /// Expected output of llama.cpp's converter, by file type.
    pub fn expect(&self) -> &Map<String, Json> {
        self.content["expect"].as_object().unwrap()
    }

    /// Case with the embedding stored only under the head's name, and the configuration tied.
    pub fn with_head_alone(&self, embedding: &str, head: &str) -> Self {
        let mut content = self.content.clone();
        let tensors = content["tensors"].as_array_mut().unwrap();
        tensors.retain(|row| row[0] != head);
        for row in tensors.iter_mut().filter(|row| row[0] == embedding) {
            row[0] = head.into();
        }
        content["config"]["tie_word_embeddings"] = true.into();
        Self {
            at: format!("{} with the head alone", self.at),
            arch: self.arch.clone(),
            content,
            drop: self.drop.clone(),
        }
    }

    /// Writes the checkpoint.
    pub fn write(&self, dir: &Path) {
        let is_mistral = self.content["options"]["mistral_format"] == true;
        let (config, weights) = if is_mistral {
            ("params.json", "consolidated.safetensors")
        } else {
            ("config.json", "model.safetensors")
        };
        fs_err::write(dir.join(config), self.content["config"].to_string()).unwrap();
        for (name, content) in self.content["files"].as_object().into_iter().flatten() {
            let path = dir.join(name);
            fs_err::create_dir_all(path.parent().unwrap()).unwrap();
            fs_err::write(path, content.to_string()).unwrap();
        }
        let further = self.content["weights"].as_object().into_iter().flatten();
        let further = further.map(|(path, rows)| (path.as_str(), rows));
        for (path, rows) in further.chain([(weights, &self.content["tensors"])]) {
            fs_err::write(dir.join(path), safetensors(rows.as_array().unwrap())).unwrap();
        }
    }

    /// Plans the conversion of the checkpoint in `dir` with the case's options, without a vocabulary.
    pub fn plan(&self, dir: &Path, file_type: OutType) -> Result<Conversion, ConvertError> {
        let mut options = plain(file_type);
        for (name, value) in self.content["options"].as_object().into_iter().flatten() {
            assert_eq!(value, &json!(true), "{}: `{name}`", self.at);
            match name.as_str() {
                "mmproj" => options.kind = CardKind::Mmproj,
                "no_mtp" => options.heads = DraftHeads::Dropped,
                "mtp" => options.heads = DraftHeads::Alone,
                "fuse_qkv" => options.fuse.qkv = true,
                "fuse_gate_up_exps" => options.fuse.gate_up_exps = true,
                "mistral_format" => options.mistral_format = true,
                _ => panic!("{}: option `{name}`", self.at),
            }
        }
        options.drop.extend(self.drop.clone());
        options.target_model_dir = target(dir);
        Conversion::plan(dir, &options)
    }

    /// Plans a conversion to F32 of the checkpoint in `back`, made from the GGUF file of the one in `dir`. It has
    /// transformers' names, and tensors that were left out are absent.
    pub fn plan_back(&self, dir: &Path, back: &Path) -> Result<Conversion, ConvertError> {
        let mut options = plain(OutType::F32);
        if self.content["options"]["mtp"] == true {
            options.heads = DraftHeads::Alone;
        }
        options.target_model_dir = target(dir);
        Conversion::plan(back, &options)
    }
}

/// Tensors of a case's index file, if it has one.
fn listed_names(content: &mut Json) -> Option<&mut Map<String, Json>> {
    content.pointer_mut("/files/model.safetensors.index.json/weight_map")?.as_object_mut()
}

/// Vocabulary size of the target model of a draft.
pub fn target_vocabulary(dir: &Path) -> Option<u64> {
    load(&target(dir)?.join("config.json"))["vocab_size"].as_u64()
}

/// Directory of the target model of a draft.
fn target(dir: &Path) -> Option<PathBuf> {
    Some(dir.join("target")).filter(|target| target.is_dir())
}

fn plain(file_type: OutType) -> ConvertOptions {
    ConvertOptions { file_type: Some(file_type), tokenizer: false, ..ConvertOptions::default() }
}

/// Safetensors file of rows with name, element type, dimensions, and optionally 0 for zeros or the elements of an I32
/// tensor.
fn safetensors(rows: &[Json]) -> Vec<u8> {
    let mut file = Safetensors::default();
    for (k, row) in (0u64..).zip(rows) {
        let n_elems: u64 = row[2].as_array().unwrap().iter().map(|dim| dim.as_u64().unwrap()).product();
        let mut data = Vec::new();
        match row.get(3).and_then(Json::as_array) {
            Some(listed) => {
                assert_eq!(listed.len() as u64, n_elems);
                data.extend(listed.iter().flat_map(|x| (x.as_i64().unwrap() as i32).to_le_bytes()));
            }
            None => elements(row[1].as_str().unwrap(), k, n_elems, row.get(3).is_some(), &mut data),
        }
        file.add(row[0].as_str().unwrap(), row[1].as_str().unwrap(), &row[2], &data);
    }
    file.bytes()
}

/// Appends the `n` elements of tensor `k`.
fn elements(ty: &str, k: u64, n: u64, is_zero: bool, out: &mut Vec<u8>) {
    let value = |i: u64| if is_zero { 0.0 } else { element(k, i) };
    // Loops: without optimization, adapters of iterators take most of a test's time.
    let mut put = |bytes: &[u8]| out.extend_from_slice(bytes);
    for i in 0..n {
        match ty {
            // The values have few significant bits, so none is lost.
            "BF16" => put(&((value(i).to_bits() >> 16) as u16).to_le_bytes()),
            "F16" => put(&half::f16::from_f32(value(i)).to_le_bytes()),
            "F32" => put(&value(i).to_le_bytes()),
            "BOOL" => put(&[(i % 2) as u8]),
            "I32" => put(&((i / 2) as i32).to_le_bytes()),
            "I64" => put(&((i / 2) as i64).to_le_bytes()),
            "I8" => put(&[bits(k, i)]),
            // Never NaN, also not as a power of two.
            "U8" => put(&[bits(k, i) % 255]),
            "F8_E4M3" => put(&[bits(k, i) & 0xf7]),
            // Scales near one.
            "F8_E8M0" => put(&[120 + (bits(k, i) & 7)]),
            other => panic!("element type {other}"),
        }
    }
}

pub fn load(path: &Path) -> Json {
    let text = fs_err::read_to_string(path).unwrap();
    // Python writes values that JSON does not have; configurations of Mamba have one.
    let text = text.replace("-Infinity", "-1e300").replace("Infinity", "1e300");
    serde_json::from_str(&text).unwrap()
}

/// Element `i` of tensor `k` of the cases in `fixtures/cards`.
pub fn element(k: u64, i: u64) -> f32 {
    (f32::from(bits(k, i)) - 128.0) / 1024.0
}

/// Eight bits that an element is made of.
pub fn bits(k: u64, i: u64) -> u8 {
    ((i * 2_654_435_761 + k * 40503 + 12345) >> 16) as u8
}

const COUNTS: [&str; 2] = ["num_nextn_predict_layers", "mtp_num_hidden_layers"];

/// Number of the model's own blocks, from the part of a configuration that counts heads.
fn counted(config: &Json) -> Option<u64> {
    let part = [config, &config["text_config"]]
        .into_iter()
        .find(|part| COUNTS.iter().any(|key| part[key].as_u64().is_some_and(|n| n > 0)))?;
    ["num_hidden_layers", "n_layer", "num_layers"].iter().find_map(|key| part[key].as_u64())
}

fn is_head(name: &str, n_blocks: u64) -> bool {
    let block = name.split('.').find_map(|part| part.parse::<u64>().ok());
    name.starts_with("mtp.")
        || name.starts_with("model.mtp")
        || (!name.contains("visual") && block.is_some_and(|block| block >= n_blocks))
}

/// Cases with a head that is counted and stored, each with a copy without the head's tensors.
pub fn stripped() -> Vec<(CardFixture, CardFixture)> {
    let all = all().into_iter().filter(|case| {
        let options = &case.content()["options"];
        options["mmproj"] != true
            && options["mtp"] != true
            && options["no_mtp"] != true
            && case.arch != "dflash"
    });
    all.filter_map(|case| {
        let n_blocks = counted(&case.content()["config"])?;
        let tensors = case.content()["tensors"].as_array().unwrap().clone();
        let kept: Vec<Json> =
            tensors.iter().filter(|row| !is_head(row[0].as_str().unwrap(), n_blocks)).cloned().collect();
        let without = case.edited(|content| content["tensors"] = json!(kept));
        (kept.len() < tensors.len() && !kept.is_empty()).then_some((case, without))
    })
    .collect()
}

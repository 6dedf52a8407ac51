//! Incomplete towers: every kind of tensor is removed or renamed, in the converter and in existing files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use gguf_foundry::arch::{CardKind, OutType};
use gguf_foundry::convert::{Conversion, ConvertError, ConvertOptions};
use gguf_foundry::core::progress::Silent;
use gguf_foundry::core::simd::SimdLevel;
use gguf_foundry::core::{SourceError, TensorMeta, TensorSource};
use gguf_foundry::verify::{Check, Severity, StructureOptions, check_structure};
use rayon::prelude::*;
use serde_json::{Value as Json, json};

use crate::support::goldens::{Goldens, conformance_tests, tiered_conformance_tests};
use crate::support::tiers::{Tier, deep_test};
use crate::support::{files, fixture, report_cases};
use crate::testkit::checkpoints::Safetensors;

/// Kinds of tensors (numbers are `#`) that a tower may lack, by case, with the reason.
const MAY_BE_MISSING: &[(&str, &str, &str)] = &[
    ("mimo-v2", "visual.blocks.#.attn.proj.bias", EITHER),
    ("mimo-v2", "visual.blocks.#.attn.qkv.bias", EITHER),
    ("mimo-v2", "visual.blocks.#.mlp.down_proj.bias", EITHER),
    ("mimo-v2", "visual.blocks.#.mlp.gate_proj.bias", EITHER),
    ("mimo-v2", "visual.blocks.#.mlp.up_proj.bias", EITHER),
    ("mimo-v2", "visual.merger.mlp.#.bias", EITHER),
    ("mimo-v2", "visual.blocks.#.attn.sinks", "blocks of full attention have none"),
    ("nemotron-nano-omni", "sound_encoder.encoder.layers.#.conv.depthwise_conv.bias", EITHER),
    ("nemotron-nano-omni", "sound_encoder.encoder.layers.#.conv.pointwise_conv1.bias", EITHER),
];
const EITHER: &str =
    "the runtime takes towers with it and without, and no key of the configuration says which";

/// Checkpoint in memory, with the tensors of one of its files.
struct Checkpoint {
    name: String,
    files: Vec<(PathBuf, Vec<u8>)>,
    weights: PathBuf,
    tensors: Vec<(String, Json, Vec<u8>)>,
    is_mistral: bool,
}

fn in_file<'t>(tensors: impl Iterator<Item = (String, &'t Json, &'t [u8])>) -> Vec<u8> {
    let mut file = Safetensors::default();
    for (name, about, bytes) in tensors {
        file.add(&name, about["dtype"].as_str().unwrap(), &about["shape"], bytes);
    }
    file.bytes()
}

fn rows_to_tensors(rows: &Json) -> Vec<(String, Json, Vec<u8>)> {
    let tensor = |row: &Json| {
        let n_elems: u64 = row[2].as_array().unwrap().iter().map(|dim| dim.as_u64().unwrap()).product();
        let width = match row[1].as_str().unwrap() {
            "F32" | "I32" => 4,
            "BF16" | "F16" => 2,
            "BOOL" => 1,
            other => panic!("{other}"),
        };
        // Not zeros, since a file of zeros has other findings.
        let about = json!({"dtype": row[1], "shape": row[2]});
        (row[0].as_str().unwrap().to_owned(), about, vec![0x3c; n_elems as usize * width])
    };
    rows.as_array().unwrap().iter().map(tensor).collect()
}

impl Checkpoint {
    /// Loads a case of `fixtures/cards`.
    fn of_fixture(path: &Path) -> Self {
        let content = files::json(path);
        let mut files = vec![(PathBuf::from("config.json"), content["config"].to_string().into_bytes())];
        for (name, file) in content["files"].as_object().into_iter().flatten() {
            files.push((PathBuf::from(name), file.to_string().into_bytes()));
        }
        for (name, rows) in content["weights"].as_object().into_iter().flatten() {
            let tensors = rows_to_tensors(rows);
            let rows = tensors.iter().map(|(name, about, bytes)| (name.clone(), about, bytes.as_slice()));
            files.push((PathBuf::from(name), in_file(rows)));
        }
        Self {
            name: path.file_stem().unwrap().to_str().unwrap().to_owned(),
            files,
            weights: PathBuf::from("model.safetensors"),
            tensors: rows_to_tensors(&content["tensors"]),
            is_mistral: false,
        }
    }

    /// Loads a case of the corpus.
    fn of_case(case: &Path) -> Self {
        let hf = case.join("hf");
        let (mut files, mut weights) = (Vec::new(), None);
        for path in files::below(&hf) {
            let relative = path.strip_prefix(&hf).unwrap().to_owned();
            let bytes = fs_err::read(&path).unwrap();
            if path.extension().is_some_and(|end| end == "safetensors") && weights.is_none() {
                weights = Some((relative, bytes));
            } else {
                files.push((relative, bytes));
            }
        }
        let (weights, bytes) = weights.unwrap();
        let mut file = Safetensors::parse(&bytes);
        let mut about = file.header().clone();
        about.shift_remove("__metadata__");
        let tensor = |(name, about): (String, Json)| {
            let bytes = file.data_mut(&name).to_vec();
            (name, about, bytes)
        };
        let tensors = about.into_iter().map(tensor).collect();
        let about = files::json(case.join("case.json"));
        Self {
            name: case.file_name().unwrap().to_str().unwrap().to_owned(),
            files,
            weights,
            tensors,
            is_mistral: about["converter_options"]["mistral_format"] == true,
        }
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.iter().map(|tensor| tensor.0.as_str())
    }

    /// Plans the conversion of the checkpoint with renamed tensors; those without a name are left out. The folder must
    /// outlive the plan.
    fn plan(&self, dir: &Path, renamed: &dyn Fn(&str) -> Option<String>) -> Result<Conversion, ConvertError> {
        for (name, bytes) in &self.files {
            let path = dir.join(name);
            fs_err::create_dir_all(path.parent().unwrap()).unwrap();
            fs_err::write(path, bytes).unwrap();
        }
        let tensors = self.tensors.iter();
        let tensors =
            tensors.filter_map(|(name, about, bytes)| Some((renamed(name)?, about, bytes.as_slice())));
        fs_err::create_dir_all(dir.join(&self.weights).parent().unwrap()).unwrap();
        fs_err::write(dir.join(&self.weights), in_file(tensors)).unwrap();
        let options = ConvertOptions {
            kind: CardKind::Mmproj,
            file_type: Some(OutType::F16),
            mistral_format: self.is_mistral,
            ..ConvertOptions::default()
        };
        Conversion::plan(dir, &options)
    }

    /// Number of tensors in the file of the changed checkpoint, or the error.
    fn outcome(&self, renamed: &dyn Fn(&str) -> Option<String>) -> Result<usize, String> {
        let dir = tempfile::tempdir().unwrap();
        let plan = self.plan(dir.path(), renamed);
        plan.map(|plan| plan.tensors().len()).map_err(|error| error.to_string())
    }

    /// Source tensors of the tower's file.
    fn sources(&self) -> BTreeSet<String> {
        let dir = tempfile::tempdir().unwrap();
        let plan = self
            .plan(dir.path(), &|name| Some(name.to_owned()))
            .unwrap_or_else(|e| panic!("{}: {e}", self.name));
        let names: BTreeSet<&str> = self.names().collect();
        let all = (0..plan.tensors().len()).flat_map(|at| plan.sources(at));
        all.filter(|name| names.contains(name)).map(str::to_owned).collect()
    }
}

/// Name with its numbers replaced by `#`.
fn kind(name: &str) -> String {
    let part = |part: &str| if part.parse::<u64>().is_ok() { "#".to_owned() } else { part.to_owned() };
    name.split('.').map(part).collect::<Vec<_>>().join(".")
}

/// All changes of a checkpoint that remove something from a tower, by name.
fn changes(sources: &BTreeSet<String>) -> Vec<(String, BTreeMap<String, Option<String>>)> {
    let mut by_kind: BTreeMap<String, Vec<&String>> = BTreeMap::new();
    let mut by_head: BTreeMap<&str, Vec<&String>> = BTreeMap::new();
    for name in sources {
        by_kind.entry(kind(name)).or_default().push(name);
        by_head.entry(name.split('.').find(|part| *part != "model").unwrap()).or_default().push(name);
    }
    let gone = |names: &[&String]| names.iter().map(|name| ((*name).clone(), None)).collect();
    let under = |names: &[&String]| {
        let renamed =
            |name: &String| format!("foo.{}", name.split_once('.').map_or(name.as_str(), |parts| parts.1));
        names.iter().map(|name| ((*name).clone(), Some(renamed(name)))).collect()
    };
    let mut all = Vec::new();
    for (kind, names) in &by_kind {
        all.push((format!("without {kind}"), gone(names)));
        all.push((format!("without {}", names[0]), gone(&names[..1])));
        all.push((format!("another prefix for {kind}"), under(names)));
        let misspelt = names[0]
            .rsplit_once('.')
            .map_or_else(|| format!("{}_x", names[0]), |(head, end)| format!("{head}_x.{end}"));
        all.push((format!("misspelt {}", names[0]), BTreeMap::from([(names[0].clone(), Some(misspelt))])));
    }
    for (head, names) in &by_head {
        all.push((format!("without {head}"), gone(names)));
        all.push((format!("another prefix for {head}"), under(names)));
    }
    all.push(("without a tower".to_owned(), gone(&sources.iter().collect::<Vec<_>>())));
    let first: Vec<&String> = sources.iter().filter(|name| name.contains(".0.")).collect();
    if !first.is_empty() {
        all.push(("without layer 0".to_owned(), gone(&first)));
    }
    all
}

/// Changes of a checkpoint that still convert, and the number of all changes; every day of a choice of all ways.
fn silent(checkpoint: &Checkpoint, tier: Tier) -> (Vec<String>, usize) {
    let changes = tier.some(13, changes(&checkpoint.sources()));
    let n = changes.len();
    let excused = |change: &str| {
        // The runtime takes the bias of a patch embedding as optional.
        if change.ends_with("bias") && change.contains("patch_embed")
            || change.ends_with("patchifier.proj.bias")
        {
            return true;
        }
        let mut rows = MAY_BE_MISSING.iter().filter(|row| row.0 == checkpoint.name);
        rows.any(|row| change.split(' ').any(|word| kind(word) == row.1))
    };
    let found = changes.par_iter().filter(|(change, _)| !excused(change)).filter_map(|(change, renamed)| {
        let renamed = |name: &str| renamed.get(name).cloned().unwrap_or_else(|| Some(name.to_owned()));
        let n_tensors = checkpoint.outcome(&renamed).ok()?;
        Some(format!("{}: {change}: {n_tensors} tensors", checkpoint.name))
    });
    (found.collect(), n)
}

fn fixtures() -> Vec<Checkpoint> {
    let dir = fixture("cards/clip");
    crate::support::names(&dir).iter().map(|name| Checkpoint::of_fixture(&dir.join(name))).collect()
}

fn cases(corpus: &Goldens) -> Vec<Checkpoint> {
    let all = files::entries(corpus.join("mmproj")).into_iter().map(|dir| Checkpoint::of_case(&dir));
    all.filter(|case| case.outcome(&|name| Some(name.to_owned())).is_ok()).collect()
}

deep_test!(half_a_tower_is_refused);
fn half_a_tower_is_refused() {
    let (mut found, mut n) = (Vec::new(), 0);
    for checkpoint in fixtures() {
        let (silent, n_changes) = silent(&checkpoint, Tier::Deep);
        found.extend(silent);
        n += n_changes;
    }
    assert!(found.is_empty(), "{} of {n}:\n{}", found.len(), found.join("\n"));
    assert!(n > 500, "{n}");
}

tiered_conformance_tests!(half_a_tower_is_refused_in_every_class);
fn half_a_tower_is_refused_in_every_class(corpus: &Goldens, tier: Tier) {
    let results: Vec<_> = cases(corpus).iter().map(|case| silent(case, tier)).collect();
    let n: usize = results.iter().map(|result| result.1).sum();
    let found: Vec<&String> = results.iter().flat_map(|result| &result.0).collect();
    assert!(found.is_empty(), "{} of {n}:\n{found:#?}", found.len());
    report_cases("towers without something", n);
}

#[test]
fn what_is_missing_is_said_in_the_checkpoints_names() {
    let granite = Checkpoint::of_fixture(&fixture("cards/clip/granite4-vision.json"));
    let without = |part: &'static str| {
        granite.outcome(&move |name| (!name.contains(part)).then(|| name.to_owned())).unwrap_err()
    };
    assert_eq!(
        without("self_attn.k_proj.weight"),
        "the vision or audio tower is incomplete: the checkpoint lacks \
         `model.vision_tower.vision_model.encoder.layers.0.self_attn.k_proj.weight`"
    );
    let of_text =
        granite.outcome(&|name| name.contains("language_model").then(|| name.to_owned())).unwrap_err();
    assert!(
        of_text.starts_with(
            "the checkpoint has no vision or audio tower: no tensor's name starts with `model.vision_tower.`"
        ),
        "{of_text}"
    );
    // The same tower without the prefix `model.`, and without the middle level, as transformers 5 writes it.
    let bare = |name: &str| Some(name.strip_prefix("model.").unwrap_or(name).to_owned());
    let n_tensors = granite.outcome(&|name| Some(name.to_owned()));
    assert_eq!(granite.outcome(&bare), n_tensors);
    assert_eq!(
        granite.outcome(&|name| Some(name.replace("vision_tower.vision_model.", "vision_tower."))),
        n_tensors
    );
    let error =
        granite.outcome(&|name| bare(name).filter(|name| !name.contains("mlp.fc1.bias"))).unwrap_err();
    assert!(error.contains("lacks `vision_tower.vision_model.encoder.layers.0.mlp.fc1.bias`"), "{error}");
}

/// File without one of its tensors.
struct Without<'a> {
    whole: &'a Conversion,
    tensors: Vec<TensorMeta>,
    at: Vec<usize>,
}

impl<'a> Without<'a> {
    fn new(whole: &'a Conversion, is_gone: impl Fn(&str) -> bool) -> Self {
        let kept = whole.tensors().iter().enumerate().filter(|(_, tensor)| !is_gone(&tensor.name));
        let (at, tensors) = kept.map(|(at, tensor)| (at, tensor.clone())).unzip();
        Self { whole, tensors, at }
    }
}

impl TensorSource for Without<'_> {
    fn tensors(&self) -> &[TensorMeta] {
        &self.tensors
    }

    fn read_rows(&self, tensor: usize, first_row: u64, out: &mut [u8]) -> Result<(), SourceError> {
        self.whole.read_rows(self.at[tensor], first_row, out)
    }
}

/// Kinds of tensors without which a tower's file still counts as complete, and the findings of the whole file.
fn unnoticed(checkpoint: &Checkpoint) -> (Vec<String>, usize) {
    let dir = tempfile::tempdir().unwrap();
    let whole = checkpoint.plan(dir.path(), &|name| Some(name.to_owned())).unwrap();
    let errors = |is_gone: &dyn Fn(&str) -> bool| -> Vec<String> {
        let source = Without::new(&whole, is_gone);
        let options = StructureOptions { level: SimdLevel::detect() };
        let findings = check_structure(&source, whole.metadata(), &options, &Silent).unwrap();
        let errors =
            findings.into_iter().filter(|f| f.severity == Severity::Error && f.check == Check::Towers);
        errors.map(|finding| finding.message).collect()
    };
    let of_whole = errors(&|_| false);
    assert!(of_whole.is_empty(), "{}: {of_whole:?}", checkpoint.name);
    assert_eq!(errors(&|_| true), ["the file has no tensors"], "{}", checkpoint.name);
    let kinds: BTreeSet<String> = whole.tensors().iter().map(|tensor| kind(&tensor.name)).collect();
    let mut silent = Vec::new();
    for gone in &kinds {
        if errors(&|name| kind(name) == *gone).is_empty() {
            silent.push(format!("{}: {gone}", checkpoint.name));
        }
    }
    (silent, kinds.len())
}

conformance_tests!(a_file_of_half_a_tower_fails);
fn a_file_of_half_a_tower_fails(corpus: &Goldens) {
    let results: Vec<_> = cases(corpus).par_iter().map(unnoticed).collect();
    let n: usize = results.iter().map(|result| result.1).sum();
    let found: Vec<&String> = results.iter().flat_map(|result| &result.0).collect();
    // Properties that only the configuration determines are unknown in a file: bias or none, norm or none.
    let n_weights = found.iter().filter(|name| name.ends_with(".weight")).count();
    assert!(
        found.len() * 8 < n && n_weights * 25 < n,
        "{} of {n}, {n_weights} weights:\n{found:#?}",
        found.len()
    );
    report_cases("kinds of tensors taken out of files of towers", n);
}

#[test]
fn a_file_without_layer_0_or_a_projector_fails() {
    for checkpoint in fixtures() {
        let dir = tempfile::tempdir().unwrap();
        let whole = checkpoint.plan(dir.path(), &|name| Some(name.to_owned())).unwrap();
        let options = StructureOptions { level: SimdLevel::detect() };
        for (gone, is_found) in
            [("", false), ("v.blk.0.", true), ("mm.", true), ("v.patch_embd.weight", true)]
        {
            let has_it = whole.tensors().iter().any(|tensor| tensor.name.starts_with(gone));
            let source = Without::new(&whole, |name| !gone.is_empty() && name.starts_with(gone));
            let findings = check_structure(&source, whole.metadata(), &options, &Silent).unwrap();
            let found = findings.iter().find(|f| f.severity == Severity::Error && f.check == Check::Towers);
            assert_eq!(
                found.is_some(),
                is_found && has_it,
                "{} without `{gone}`: {found:?}",
                checkpoint.name
            );
        }
    }
}

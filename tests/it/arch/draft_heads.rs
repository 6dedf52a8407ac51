//! Draft heads that a configuration counts and a checkpoint does not store, which is how transformers saves such
//! models.

use gguf_foundry::arch::{DraftHeads, OutType};
use gguf_foundry::convert::ConvertOptions;
use gguf_foundry::core::TensorSource;
use gguf_foundry::core::progress::Silent;
use gguf_foundry::job::ladder::{Ladder, Rung};
use gguf_foundry::job::{Job, JobInput, JobOutput, OutputPath};
use rayon::prelude::*;
use serde_json::{Value as Json, json};

use super::fixture::{self, CardFixture};

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
fn stripped() -> Vec<(CardFixture, CardFixture)> {
    let all = fixture::all().into_iter().filter(|case| {
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

fn names(case: &CardFixture) -> (Vec<String>, Vec<(String, Json)>, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    case.write(dir.path());
    let plan = case.plan(dir.path(), OutType::F32).unwrap_or_else(|error| panic!("{}: {error}", case.at));
    let tensors = plan.tensors().iter().map(|tensor| tensor.name.clone()).collect();
    let keys = super::keys(plan.metadata()).into_iter().filter(super::is_of_cards);
    let keys = keys.map(|row| (row[0].as_str().unwrap().to_owned(), row[2].clone())).collect();
    (tensors, keys, plan.warnings().to_vec())
}

#[test]
fn a_head_that_is_counted_only_is_left_out_with_a_word() {
    let cases = stripped();
    assert!(cases.len() >= 8, "{}", cases.len());
    cases.par_iter().for_each(|(whole, without)| {
        let (tensors, keys, warnings) = names(without);
        let dropped = whole.edited(|content| content["options"]["no_mtp"] = true.into());
        let (wanted, wanted_keys, none) = names(&dropped);
        assert_eq!(tensors, wanted, "{}", whole.at);
        assert_eq!(keys, wanted_keys, "{}", whole.at);
        let is_told = |warnings: &[String]| {
            warnings.iter().any(|line| line.contains("no tensor of a draft head is stored"))
        };
        let counts = keys.iter().find(|row| row.0.ends_with(".nextn_predict_layers"));
        assert!(counts.is_none_or(|row| row.1 == 0), "{}: {counts:?}", whole.at);
        assert!(!is_told(&none), "{}", whole.at);
        let has_heads = names(whole).0 != wanted;
        assert!(is_told(&warnings) || !has_heads, "{}: {warnings:?}", whole.at);
    });
}

#[test]
fn a_head_that_is_not_stored_cannot_be_written_alone() {
    for (_, without) in stripped() {
        let alone = without.edited(|content| content["options"]["mtp"] = true.into());
        let dir = tempfile::tempdir().unwrap();
        alone.write(dir.path());
        let error = alone.plan(dir.path(), OutType::F32).err().map(|error| error.to_string());
        let error = error.unwrap_or_else(|| panic!("{}: converted", alone.at));
        assert!(error.contains("`--mtp`"), "{}: {error}", alone.at);
    }
}

#[test]
fn a_ladder_has_the_heads_in_a_file_of_their_own() {
    let mut n_cases = 0;
    for (whole, without) in stripped() {
        let ladder = |case: &CardFixture, name: &str| {
            let dir = tempfile::tempdir().unwrap();
            case.write(dir.path());
            let convert = ConvertOptions { tokenizer: false, ..ConvertOptions::default() };
            let input = JobInput::Checkpoint(dir.path().to_owned());
            let ladder = Ladder::new(input.clone(), Rung::parse_list("f16").unwrap(), dir.path().join(name));
            let report = Ladder { convert: convert.clone(), sync: false, ..ladder }.run(&Silent);
            let report = report.unwrap_or_else(|error| panic!("{}: {error}", case.at));
            let heads = report.draft_heads?;
            // The file is that of `--mtp --type q8_0`.
            let output = JobOutput::at(OutputPath::File(dir.path().join("alone.gguf")));
            let job = Job::new(input, "q8_0".parse().unwrap(), output);
            let convert = ConvertOptions { heads: DraftHeads::Alone, ..convert };
            Job { convert, sync: false, ..job }.run(&Silent).unwrap();
            let [own, alone] = [&heads.plan.paths[0], &dir.path().join("alone.gguf")]
                .map(|path| fs_err::read(path).unwrap());
            assert!(own == alone, "{}", case.at);
            let file = heads.plan.paths[0].file_name().unwrap().to_string_lossy().into_owned();
            assert!(file.starts_with("mtp-") && file.ends_with("-Q8_0.gguf"), "{file}");
            Some(())
        };
        n_cases += usize::from(ladder(&whole, "with").is_some());
        assert!(ladder(&without, "without").is_none(), "{}: heads that are not stored", whole.at);
    }
    assert!(n_cases > 3, "{n_cases}");
}

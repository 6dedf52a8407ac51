//! Combined statistics of shares of a text, compared with those of a single run; and shares that do not belong
//! together.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use gguf_calibration::{
    CalibrateError, CalibrationRun, CalibrationText, LayerMoments, LayerSums, PartWriter, Statistics,
    StatisticsError, StatisticsPart, StatisticsWriter, TextOptions, TextShare, TextSource,
    combine_statistics,
};
use gguf_core::progress::Silent;
use gguf_format::Share;
use gguf_verification::{Model, PromptSource};
use serde_json::{Value, json};

use super::options;
use crate::testkit::judged::Judged;
use crate::testkit::models::TinyModel;
use gguf_testkit::files;
use gguf_testkit::tiers::{Tier, two_tiers};

/// Number of tokens of both kinds of text together: nine batches of 2048 tokens each, or three of 8192.
const TOKENS: usize = 36_000;

/// Two kinds of text, each of several batches.
fn text(model: &Model<'_>, seed: u32) -> CalibrationText {
    text_of(model, TOKENS / 2, words(seed))
}

/// Different words for each kind, so that they go to different experts.
fn words(seed: u32) -> impl Fn(u32, u32) -> u32 {
    move |at, i| (i * 7 + at * i * i + seed) % 31 + if at < 700 { 0 } else { 31 }
}

/// Two kinds of text, with their words by line and position.
fn text_of(model: &Model<'_>, n_tokens: usize, word: impl Fn(u32, u32) -> u32) -> CalibrationText {
    let line = |at: u32, n: u32| PromptSource::Tokens((1..=n).map(|i| word(at, i)).collect());
    let lines = |of: std::ops::Range<u32>, n: u32| of.map(|at| line(at, n)).collect();
    let sources = [
        TextSource { name: "first".to_owned(), prompts: lines(0..700, 32) },
        TextSource { name: "second".to_owned(), prompts: lines(700..1500, 27) },
    ];
    CalibrationText::new(model, &sources, &TextOptions { n_ctx: 32, n_tokens, holds_out: true }).unwrap()
}

fn save(model: &Model<'_>, text: &CalibrationText, path: &Path) {
    let mut writer = StatisticsWriter::create(path, model, text, None, false).unwrap();
    let run = CalibrationRun::new(model, text, options(2)).unwrap();
    let sums = run.run(&Silent, &mut |layer: LayerMoments| writer.add(&layer).map_err(CalibrateError::from));
    writer.commit(&sums.unwrap()).unwrap();
}

fn save_share(model: &Model<'_>, text: &CalibrationText, share: &str, path: &Path) -> usize {
    let share: Share = share.parse().unwrap();
    let run = CalibrationRun::of_share(model, text, options(1 + share.number() % 3), Some(share)).unwrap();
    let batches = run.batches();
    let own = TextShare { share, batches };
    let mut writer = PartWriter::create(path, model, text, None, own, false).unwrap();
    let sums =
        run.run_share(&Silent, &mut |layer: LayerSums| writer.add(&layer).map_err(CalibrateError::from));
    assert!(!path.exists(), "nothing is to be seen before it is whole");
    writer.commit(&sums.unwrap()).unwrap();
    batches.n
}

two_tiers!(shares_put_together_are_the_files_of_a_single_run);
/// Layers that run several times, experts without rows in a share, other mixers, a separate head.
fn shares_put_together_are_the_files_of_a_single_run(tier: Tier) {
    // Several batches of each kind, which are smaller without experts.
    let (dense, experts) = tier.of((8_400, TOKENS / 2), (12_600, TOKENS));
    let mut models = vec![(TinyModel::experts(7), experts), (TinyModel::recurrent(), dense)];
    if tier.is_deep() {
        models.extend([
            (TinyModel::dense(), dense),
            (TinyModel::experts(150), experts),
            (TinyModel::parallel(), dense),
            (TinyModel::cycled(), dense),
        ]);
    }
    for (at, (model, n_tokens)) in models.iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let own = |name: String| dir.path().join(name);
        let model = model.model();
        let text = text_of(&model, *n_tokens, words(at as u32));
        save(&model, &text, &own("whole".to_owned()));
        let expected = files::contents(own("whole".to_owned()));
        assert!(expected.len() > 3, "{:?}", expected.keys());
        for &count in tier.of(&[3][..], &[1, 2, 5][..]) {
            let shares = (1..=count).rev();
            let paths: Vec<PathBuf> = shares.map(|number| own(format!("{number}-of-{count}"))).collect();
            let mut n_batches = 0;
            for (number, path) in (1..=count).rev().zip(&paths) {
                n_batches += save_share(&model, &text, &format!("{number}/{count}"), path);
                let error = Statistics::open(path).unwrap_err().to_string();
                assert!(error.contains(&format!("part {number} of {count} of statistics")), "{error}");
            }
            assert!(n_batches >= tier.of(4, 6), "{n_batches}");
            let together = own(format!("together-{count}"));
            let found = combine_statistics(&paths, &together, false, &Silent).unwrap();
            assert_eq!((found.n_parts, found.n_tokens), (count, text.n_tokens() as u64));
            assert!(files::contents(&together) == expected, "model {at}, {count} shares");
            Statistics::open(&together).unwrap().check(&model).unwrap();
        }
    }
}

/// Some experts get no row in one of the shares.
#[test]
fn shares_of_experts_do_not_all_see_the_same() {
    let (model, dir) = (TinyModel::experts(150), tempfile::tempdir().unwrap());
    let model = model.model();
    let text = text_of(&model, TOKENS, words(2));
    let matrices = |number: usize| {
        let path = dir.path().join(number.to_string());
        save_share(&model, &text, &format!("{number}/5"), &path);
        let manifest = files::json(path.join("statistics.json"));
        let inputs = manifest["layers"][1]["inputs"].as_array().unwrap().clone();
        let all = inputs.iter().flat_map(|input| input["matrices"].as_array().unwrap().clone());
        all.map(|matrix| matrix.to_string()).collect::<BTreeSet<_>>()
    };
    let (first, last) = (matrices(1), matrices(5));
    assert!(!first.is_subset(&last) && !last.is_subset(&first), "the shares of these tests are to differ");
}

#[test]
fn more_shares_than_batches_are_refused() {
    let model = TinyModel::dense();
    let model = model.model();
    let text = text_of(&model, TOKENS, words(0));
    let share = Some("3/400".parse().unwrap());
    let error = CalibrationRun::of_share(&model, &text, options(1), share).err().unwrap();
    let CalibrateError::FewBatches { n_batches, .. } = error else { panic!("{error}") };
    assert_eq!(n_batches, 18);
    assert!(CalibrationRun::of_share(&model, &text, options(1), Some("18/18".parse().unwrap())).is_ok());
}

type Edit = fn(&mut Value);
/// Change of a tensor file: header and data.
type Damage = fn(&mut Value, &mut Vec<u8>);

fn copied(from: &Path, to: &Path) {
    fs_err::create_dir(to).unwrap();
    for (name, bytes) in files::contents(from) {
        fs_err::write(to.join(name), bytes).unwrap();
    }
}

/// Rewrites the digests of a folder, so that only contradictions are found.
fn seal(path: &Path) {
    use sha2::Digest as _;
    use std::fmt::Write as _;
    let lines =
        files::contents(path).into_iter().filter(|(name, _)| name != "SHA256SUMS").map(|(name, bytes)| {
            let digest = sha2::Sha256::digest(&bytes).iter().fold(String::new(), |mut hex, byte| {
                let _ = write!(hex, "{byte:02x}");
                hex
            });
            format!("{digest}  {name}\n")
        });
    fs_err::write(path.join("SHA256SUMS"), lines.collect::<Vec<_>>().concat()).unwrap();
}

/// Two shares of a model; the second may be changed.
struct Pair {
    dir: tempfile::TempDir,
    first: PathBuf,
    second: PathBuf,
}

impl Pair {
    fn of(model: &TinyModel) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let model = model.model();
        let text = text(&model, 0);
        let [first, second] = ["1/2", "2/2"].map(|share| {
            let path = dir.path().join(share.replace('/', "-"));
            save_share(&model, &text, share, &path);
            path
        });
        Self { dir, first, second }
    }

    /// Error for the first share and a damaged second; no output may be left.
    fn refused(&self, damage: impl FnOnce(&Path)) -> String {
        let other = self.dir.path().join("other");
        copied(&self.second, &other);
        damage(&other);
        let output = self.dir.path().join("output");
        let found = combine_statistics(&[other.clone(), self.first.clone()], &output, false, &Silent);
        fs_err::remove_dir_all(&other).unwrap();
        assert_eq!(fs_err::read_dir(self.dir.path()).unwrap().count(), 2, "something is left");
        found.unwrap_err().to_string()
    }

    fn edited(&self, edit: impl FnOnce(&mut Value)) -> String {
        self.refused(|path| {
            let manifest = path.join("statistics.json");
            files::edit_json(manifest, edit);
            seal(path);
        })
    }
}

#[test]
fn a_changed_or_missing_byte_is_found() {
    let pair = Pair::of(&TinyModel::experts(7));
    let names: Vec<String> = files::contents(&pair.second).into_keys().collect();
    assert_eq!(names.len(), 6, "{names:?}");
    for name in &names {
        let n_bytes = fs_err::metadata(pair.second.join(name)).unwrap().len() as usize;
        for at in [0, n_bytes / 3, n_bytes - 2] {
            let error = pair.refused(|path| {
                let mut bytes = fs_err::read(path.join(name)).unwrap();
                bytes[at] ^= 1;
                fs_err::write(path.join(name), bytes).unwrap();
            });
            assert!(error.contains("damaged") || error.contains("statistics.json"), "{name} {at}: {error}");
        }
        let error = pair.refused(|path| {
            let bytes = fs_err::read(path.join(name)).unwrap();
            fs_err::write(path.join(name), &bytes[..n_bytes / 2]).unwrap();
        });
        assert!(error.contains("damaged") || error.contains("statistics.json"), "{name}: {error}");
        let error = pair.refused(|path| fs_err::remove_file(path.join(name)).unwrap());
        assert!(error.contains(name.as_str()) || error.contains("digests"), "{name}: {error}");
    }
}

#[test]
fn shares_of_something_else_are_refused_by_what_differs() {
    let (own, other) = (TinyModel::dense(), TinyModel::parallel());
    let pair = Pair::of(&own);
    let (own, other) = (own.model(), other.model());
    let replaced = |model: &Model<'_>, seed: u32, share: &'static str| {
        pair.refused(|path| {
            fs_err::remove_dir_all(path).unwrap();
            save_share(model, &text(model, seed), share, path);
        })
    };
    assert!(replaced(&other, 0, "2/2").contains("another model"));
    assert!(replaced(&own, 1, "2/2").contains("another text or other options"));
    assert!(replaced(&own, 0, "2/3").contains("another number of parts"));
    assert!(replaced(&own, 0, "1/2").contains("part 1 is given twice"));
    let whole = pair.refused(|path| {
        fs_err::remove_dir_all(path).unwrap();
        save(&own, &text(&own, 0), path);
    });
    assert!(whole.contains("statistics of a whole text, a part of some expected"), "{whole}");
    let alone =
        combine_statistics(std::slice::from_ref(&pair.second), &pair.dir.path().join("x"), false, &Silent);
    assert!(alone.unwrap_err().to_string().contains("of 2 parts one is missing: 1/2"));
    let none = combine_statistics(&[], &pair.dir.path().join("x"), false, &Silent).unwrap_err();
    assert_eq!(none.to_string(), "no part of statistics is given");
    let there = combine_statistics(&[pair.first.clone(), pair.second.clone()], &pair.first, false, &Silent);
    assert!(there.unwrap_err().to_string().contains("directory is not empty"));
    assert!(StatisticsPart::open(&pair.first).is_ok());
}

/// Changes with matching digests must still not contradict the rest.
#[test]
fn parts_that_lie_are_refused() {
    let pair = Pair::of(&TinyModel::experts(7));
    let cases: [(Edit, &str); 12] = [
        (|json| json["part"]["program"] = json!("0.0.0"), "another version of the program"),
        (|json| json["tokenizer"] = json!("x"), "another tokenizer"),
        (|json| json["kinds"][0]["name"] = json!("x"), "other kinds of text"),
        (|json| json["kinds"][1]["tokens"] = json!(7), "another text or other options"),
        (|json| json["n_ctx"] = json!(7), "another text or other options"),
        (|json| json["part"]["all_batches"] = json!(7), "another cut of the text"),
        (|json| json["part"]["batches"] = json!(u32::MAX), "its batches are not those"),
        (|json| json["part"]["first_batch"] = json!(0), "its batches are not those"),
        (|json| json["part"]["number"] = json!(9), "one is missing: 2/2"),
        (|json| json["layers"][1]["layer"] = json!(0), "a layer is there twice"),
        (
            |json| {
                let matrix = json["layers"][0]["inputs"][0]["matrices"][0].clone();
                json["layers"][0]["inputs"][1]["matrices"].as_array_mut().unwrap().push(matrix);
            },
            "` is there twice",
        ),
        (
            |json| json["layers"][0]["inputs"][0]["columns"] = json!(1u64 << 31),
            "expected F64 [2305843010287435776] of 2147483648 columns",
        ),
    ];
    for (edit, expected) in cases {
        let error = pair.edited(edit);
        assert!(error.contains(expected), "{expected}: {error}");
    }
    // A matrix that has other columns in another share.
    let swapped = pair.edited(|json| {
        let inputs = json["layers"][0]["inputs"].as_array_mut().unwrap();
        let is_down = |input: &Value| input["matrices"][0]["tensor"].as_str().unwrap().contains("ffn_down");
        let down = inputs.iter().position(is_down).unwrap();
        let other = inputs.iter().position(|input| !is_down(input)).unwrap();
        let matrices = inputs[down]["matrices"].take();
        inputs[down]["matrices"] = inputs[other]["matrices"].take();
        inputs[other]["matrices"] = matrices;
    });
    assert!(swapped.contains("another number of columns than in other parts"), "{swapped}");
    let error = pair.edited(|json| json["part"]["extra"] = json!(1));
    assert!(error.contains("unknown field `extra`"), "{error}");
}

/// Values that no sums can have, and invalid places.
#[test]
fn sums_that_are_none_are_refused() {
    let pair = Pair::of(&TinyModel::dense());
    let cases: [(&str, Damage, &str); 6] = [
        (
            "moments-00000.safetensors",
            |header, data| put(header, data, "kind1.input0", 1, f64::NAN.to_le_bytes()),
            "found NaN at row 0, column 1",
        ),
        (
            "moments-00000.safetensors",
            |header, data| put(header, data, "kind1.input0", 0, (-1f64).to_le_bytes()),
            "found -1 at row 0, column 0",
        ),
        (
            "moments-00000.safetensors",
            |header, data| put(header, data, "kind1.input0", 1, 1e60f64.to_le_bytes()),
            "are not finite",
        ),
        (
            "moments-00000.safetensors",
            |header, data| rests(header, data, &[(3, 64)], &[1.0]),
            "expected a row and a column on or above the diagonal",
        ),
        (
            "moments-00000.safetensors",
            |header, data| rests(header, data, &[(3, 2)], &[1.0]),
            "found 3 at element 0",
        ),
        (
            "moments-00000.safetensors",
            |header, data| rests(header, data, &[(2, 3), (-1, 5)], &[1.0, f64::NAN]),
            "found -1 at element 1",
        ),
    ];
    for (name, damage, expected) in cases {
        let error = pair.refused(|path| {
            let bytes = fs_err::read(path.join(name)).unwrap();
            fs_err::write(path.join(name), super::store::edited(&bytes, damage)).unwrap();
            seal(path);
        });
        assert!(error.contains(expected), "{expected}: {error}");
    }
    let error = pair.refused(|path| {
        let name = "importance.safetensors";
        let bytes = fs_err::read(path.join(name)).unwrap();
        let damage = |header: &mut Value, _: &mut Vec<u8>| {
            header["kind1/blk.0.attn_q.weight.rests"]["shape"] = json!([64, 1]);
        };
        fs_err::write(path.join(name), super::store::edited(&bytes, damage)).unwrap();
        seal(path);
    });
    assert!(error.contains("found F64 [64, 1]; expected F64 [1, 64]"), "{error}");
}

/// Writes a number of eight bytes into a tensor.
fn put(header: &Value, data: &mut [u8], name: &str, at: usize, number: [u8; 8]) {
    let start = header[name]["data_offsets"][0].as_u64().unwrap() as usize + 8 * at;
    data[start..start + 8].copy_from_slice(&number);
}

/// Adds rests to the first sums, which have none.
fn rests(header: &mut Value, data: &mut Vec<u8>, places: &[(i64, i64)], values: &[f64]) {
    let n = values.len();
    let start = data.len();
    data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    let middle = data.len();
    data.extend(places.iter().flat_map(|(row, column)| [row.to_le_bytes(), column.to_le_bytes()].concat()));
    let tensor = |dtype: &str, shape: Value, from: usize, to: usize| json!({ "dtype": dtype, "shape": shape, "data_offsets": [from, to] });
    assert!(header.get("kind1.input0.rests").is_none());
    header["kind1.input0.rests"] = tensor("F64", json!([n]), start, middle);
    header["kind1.input0.places"] = tensor("I64", json!([n, 2]), middle, data.len());
}

/// If f64 cannot hold the sum of two batches, the sums have rests, and they count.
#[test]
fn sums_of_very_different_size_are_exact() {
    let mut model = TinyModel::dense();
    // Half of the words are so small that the norm's epsilon keeps them small.
    model.tensors.edit_f32s("token_embd.weight", |values| {
        values.chunks_mut(64).step_by(2).flatten().for_each(|x| *x *= 1e-8);
    });
    let dir = tempfile::tempdir().unwrap();
    let own = model.model();
    // Each kind begins with only these.
    let text = text_of(&own, TOKENS, |at, i| {
        let is_loud = at % 700 >= 350;
        2 * ((i * 7 + at * i * i) % 31) + u32::from(is_loud)
    });
    save(&own, &text, &dir.path().join("whole"));
    let paths: Vec<PathBuf> = (1..=7).map(|number| dir.path().join(number.to_string())).collect();
    for (number, path) in (1..=7).zip(&paths) {
        save_share(&own, &text, &format!("{number}/7"), path);
    }
    let has_rests = |path: &PathBuf| {
        let bytes = fs_err::read(path.join("moments-00000.safetensors")).unwrap();
        bytes.windows(7).any(|word| word == b".places")
    };
    assert!(paths.iter().any(has_rests), "f64 holds all that these batches have");
    let together = dir.path().join("together");
    combine_statistics(&paths, &together, false, &Silent).unwrap();
    assert!(files::contents(&together) == files::contents(dir.path().join("whole")));
}

#[test]
fn an_error_of_another_kind_keeps_its_words() {
    let path = Path::new("/nowhere/at/all");
    let error = combine_statistics(&[path.to_owned()], Path::new("x"), false, &Silent).unwrap_err();
    assert!(matches!(error, CalibrateError::Statistics(StatisticsError::NotStatistics { .. })), "{error}");
}

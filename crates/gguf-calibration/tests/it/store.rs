//! Statistics that are written and read back, of other models, and broken ones.

use std::path::{Path, PathBuf};

use gguf_calibration::{
    CalibrateError, CalibrationRun, LayerMoments, Statistics, StatisticsError, StatisticsWriter,
};
use gguf_core::progress::Silent;
use gguf_format::ImatrixSums;
use serde_json::{Value, json};

use super::{collect, options, text};
use crate::testkit::judged::Judged;
use crate::testkit::models::TinyModel;
use gguf_testkit::files;

/// Collects statistics into a directory.
fn save(model: &TinyModel, path: &Path) -> (Vec<LayerMoments>, Vec<ImatrixSums>) {
    let model = model.model();
    let text = text(&model);
    let mut writer = StatisticsWriter::create(path, &model, &text, Some(7), false).unwrap();
    let run = CalibrationRun::new(&model, &text, options(2)).unwrap();
    let mut layers = Vec::new();
    let mut keep = |layer: LayerMoments| {
        writer.add(&layer)?;
        layers.push(layer);
        Ok::<_, CalibrateError>(())
    };
    let sums = run.run(&Silent, &mut keep).unwrap();
    assert!(!path.exists(), "nothing is to be seen before it is whole");
    writer.commit(&sums).unwrap();
    (layers, sums)
}

fn read(path: &Path) -> Result<(Vec<LayerMoments>, Vec<ImatrixSums>), StatisticsError> {
    let statistics = Statistics::open(path)?;
    let layers = (0..statistics.n_layers()).map(|at| Ok(statistics.layer(at)?.unwrap()));
    Ok((layers.collect::<Result<_, StatisticsError>>()?, statistics.importance()?))
}

#[test]
fn what_is_kept_is_read_back_to_the_bit() {
    for model in [TinyModel::dense(), TinyModel::experts(7), TinyModel::recurrent()] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stats");
        let written = save(&model, &path);
        assert!(written == collect(&model.model(), 1));
        let found = read(&path).unwrap();
        for (found, written) in found.0.iter().zip(&written.0) {
            assert_eq!(found.inputs, written.inputs);
            assert!(found == written, "{:?}", found.layer);
        }
        assert_eq!(found.1, written.1);
        assert_eq!(found.0.len(), written.0.len());
        let statistics = Statistics::open(&path).unwrap();
        statistics.check(&model.model()).unwrap();
        let kinds = statistics.kinds();
        assert_eq!(kinds.iter().map(|kind| kind.name.as_str()).collect::<Vec<_>>(), ["first", "second"]);
        assert_eq!(kinds[0].n_sequences, written.1[0].n_chunks as u64);
        let text = text(&model.model());
        assert!(kinds.iter().zip(&text.kinds).all(|(found, kind)| found.held_out == kind.held_out));
        assert_eq!((statistics.n_ctx(), statistics.seed()), (16, Some(7)));
        let last = written.0.last().unwrap();
        let head = &last.inputs[0].matrices[0].tensor;
        assert_eq!(statistics.layer_of(head, None), Some(written.0.len() - 1));
        assert_eq!(statistics.layer_of("no such", None), None);
        assert!(statistics.layer(written.0.len()).unwrap().is_none());
    }
}

#[test]
fn a_run_that_ends_early_leaves_nothing_and_what_is_there_stays() {
    let (model, dir) = (TinyModel::dense(), tempfile::tempdir().unwrap());
    let path = dir.path().join("new/stats");
    let (layers, _) = collect(&model.model(), 1);
    let mut writer =
        StatisticsWriter::create(&path, &model.model(), &text(&model.model()), None, false).unwrap();
    writer.add(&layers[0]).unwrap();
    drop(writer);
    assert_eq!(fs_err::read_dir(dir.path()).unwrap().count(), 0);
    save(&model, &path);
    let again = StatisticsWriter::create(&path, &model.model(), &text(&model.model()), None, false);
    assert!(matches!(again, Err(StatisticsError::Output(_))), "{again:?}");
    assert!(read(&path).is_ok());
}

#[test]
fn statistics_of_another_model_are_refused_with_both_digests() {
    let (model, dir) = (TinyModel::dense(), tempfile::tempdir().unwrap());
    let path = dir.path().join("stats");
    save(&model, &path);
    let statistics = Statistics::open(&path).unwrap();
    let manifest = files::json(path.join("statistics.json"));
    let check = |other: &TinyModel, what: &str| {
        let error = statistics.check(&other.model()).unwrap_err();
        let StatisticsError::OtherModel { found, expected, .. } = &error else { panic!("{error}") };
        assert!(
            error.to_string().contains(&format!("statistics of another {what}: digest {found}")),
            "{error}"
        );
        assert!(error.to_string().contains(expected) && found != expected);
        assert_eq!(manifest[what], found.as_str());
    };
    let mut other = model.clone();
    other.tensors.edit_f32s("blk.0.attn_q.weight", |values| values[0] += 1.0);
    check(&other, "model");
    check(&TinyModel::experts(4), "model");
    let mut other = model.clone();
    other.metadata.set("tokenizer.ggml.model", "gpt2");
    check(&other, "tokenizer");
    // The name of a file and its split do not matter.
    let mut same = model.clone();
    same.metadata.set("general.name", "other");
    same.metadata.set("split.count", 3u16);
    statistics.check(&same.model()).unwrap();
}

/// Change of a file's bytes.
type Damage<'a> = Box<dyn FnOnce(Vec<u8>) -> Vec<u8> + 'a>;
type Edit = fn(&mut Value);

/// Copy of the directory with one file changed.
fn damaged(
    whole: &Path,
    name: &str,
    damage: impl FnOnce(Vec<u8>) -> Vec<u8>,
) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    files::copy(whole, dir.path());
    let path = dir.path().join(name);
    let bytes = fs_err::read(&path).unwrap();
    fs_err::write(&path, damage(bytes)).unwrap();
    let path = dir.path().to_owned();
    (dir, path)
}

/// Copy of the directory with its list of contents changed.
fn edited_json(whole: &Path, edit: Edit) -> (tempfile::TempDir, PathBuf) {
    let (dir, path) = damaged(whole, "statistics.json", |bytes| bytes);
    files::edit_json(path.join("statistics.json"), edit);
    (dir, path)
}

/// Copy of a safetensors file with changed header or data.
pub(super) fn edited(bytes: &[u8], edit: impl FnOnce(&mut Value, &mut Vec<u8>)) -> Vec<u8> {
    let n = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&bytes[8..8 + n]).unwrap();
    let mut data = bytes[8 + n..].to_vec();
    edit(&mut header, &mut data);
    let header = serde_json::to_vec(&header).unwrap();
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}

#[test]
fn broken_files_are_errors_that_say_where() {
    let (model, dir) = (TinyModel::experts(7), tempfile::tempdir().unwrap());
    let whole = dir.path().join("stats");
    save(&model, &whole);
    let (layer, importance) = ("moments-00001.safetensors", "importance.safetensors");
    let place = |header: &Value, name: &str| header[name]["data_offsets"][0].as_u64().unwrap() as usize;
    let cases: Vec<(&str, Damage<'_>, &str)> = vec![
        (layer, Box::new(|bytes| bytes[..bytes.len() - 1].to_vec()), "file ends at"),
        (layer, Box::new(|bytes| bytes[..5].to_vec()), "8 bytes of header length expected, 5 present"),
        (layer, Box::new(|_| Vec::new()), "the file is empty"),
        (importance, Box::new(|bytes| bytes[..bytes.len() / 2].to_vec()), "file ends at"),
        (
            layer,
            Box::new(|bytes| {
                edited(&bytes, |header, _| {
                    let own = header.as_object_mut().unwrap().remove("kind0.input0").unwrap();
                    header["kind0.other"] = own;
                })
            }),
            "tensor `kind0.input0` is missing",
        ),
        (
            layer,
            Box::new(|bytes| {
                edited(&bytes, |header, data| {
                    let end = data.len();
                    data.extend([0; 4]);
                    header["more"] = json!({ "dtype": "F32", "shape": [1], "data_offsets": [end, end + 4] });
                })
            }),
            "tensor `more` is not in `statistics.json`",
        ),
        (
            layer,
            Box::new(|bytes| edited(&bytes, |header, _| header["kind0.input0"]["dtype"] = json!("I32"))),
            "tensor `kind0.input0`: found I32 [2080]; expected F32 [2080] of 64 columns",
        ),
        (
            layer,
            Box::new(|bytes| edited(&bytes, |header, _| header["kind0.input0"]["shape"] = json!([2, 1040]))),
            "tensor `kind0.input0`: found F32 [2, 1040]; expected F32 [2080]",
        ),
        (
            layer,
            Box::new(|bytes| {
                edited(&bytes, |header, data| {
                    let at = place(header, "kind1.input0") + 4 * 65;
                    data[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
                })
            }),
            "tensor `kind1.input0`: found NaN at row 1, column 2; expected a sum of finite numbers",
        ),
        (
            layer,
            Box::new(|bytes| {
                edited(&bytes, |header, data| {
                    let at = place(header, "kind1.input0");
                    data[at..at + 4].copy_from_slice(&(-1f32).to_le_bytes());
                })
            }),
            "tensor `kind1.input0`: found -1 at row 0, column 0",
        ),
        (
            importance,
            Box::new(|bytes| {
                edited(&bytes, |header, data| {
                    let at = place(header, "kind0/blk.0.attn_q.weight.counts");
                    data[at..at + 8].copy_from_slice(&(-3i64).to_le_bytes());
                })
            }),
            "tensor `kind0/blk.0.attn_q.weight.counts`: found -3 at element 0; expected a number of rows",
        ),
        (
            importance,
            Box::new(|bytes| {
                edited(&bytes, |header, _| {
                    header["kind0/blk.0.attn_q.weight.sums"]["shape"] = json!([64]);
                })
            }),
            "tensor `kind0/blk.0.attn_q.weight.sums`: found F64 [64]; expected F64 [matrices, columns]",
        ),
    ];
    for (name, damage, expected) in cases {
        let (_dir, path) = damaged(&whole, name, damage);
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains(name), "{error}");
    }
}

#[test]
fn a_manifest_that_lies_is_refused_before_memory_is_taken() {
    let (model, dir) = (TinyModel::experts(7), tempfile::tempdir().unwrap());
    let whole = dir.path().join("stats");
    save(&model, &whole);
    let cases: [(Edit, &str); 13] = [
        (|json| json["version"] = json!(2), "format version 2; expected 1"),
        (|json| json["format"] = json!("x"), "`format` is not `gguf-foundry statistics`"),
        (|json| json["extra"] = json!(1), "unknown field `extra`"),
        (|json| json["n_ctx"] = json!(-1), "invalid value"),
        (|json| json["kinds"].as_array_mut().unwrap().truncate(1), "with statistics of 2 kinds; expected 1"),
        (
            |json| json["kinds"][1]["check"][0]["rows"][1] = json!(16),
            "`kinds[1].check[0]`: rows that are not",
        ),
        (|json| json["kinds"][0]["check"][2]["rows"] = json!([9, u64::MAX]), "`kinds[0].check[2]`"),
        (|json| json["kinds"][0]["check"][1]["source"] = json!(16), "`kinds[0].check[1]`"),
        (|json| json["layers"][0]["inputs"][0]["matrices"] = json!([]), "an input of 0 matrices"),
        (
            |json| {
                let matrix = json["layers"][1]["inputs"][0]["matrices"][0].clone();
                json["layers"][1]["inputs"][1]["matrices"].as_array_mut().unwrap().push(matrix);
            },
            "`layers[1]`: `blk.1.attn_k.weight` is there twice",
        ),
        (
            |json| json["layers"][0]["inputs"][0]["columns"] = json!(1u64 << 31),
            "expected F32 [2305843010287435776] of 2147483648 columns",
        ),
        (|json| json["layers"][0]["inputs"][0]["columns"] = json!(u64::MAX), "expected F32 ["),
        (
            |json| json["layers"][0]["inputs"][1]["moments"][0] = json!({ "at": 0, "rows": 1 }),
            "`kind0.input0` of layer entry 0 has",
        ),
    ];
    for (edit, expected) in cases {
        let (_dir, path) = edited_json(&whole, edit);
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let matrices: [(Edit, &str); 3] = [
        (
            |json| json["layers"][0]["inputs"][0]["matrices"][0]["tensor"] = json!("no.such"),
            "tensor `no.such`: inputs of 64 columns; expected no such tensor",
        ),
        (
            |json| json["layers"][0]["inputs"][0]["matrices"][0]["expert"] = json!(3),
            "inputs of 64 columns of matrix 3; expected 64 columns",
        ),
        (
            |json| json["layers"][0]["inputs"][0]["columns"] = json!(47),
            "inputs of 47 columns; expected 64 columns",
        ),
    ];
    for (edit, expected) in matrices {
        let (_dir, path) = edited_json(&whole, edit);
        let error = Statistics::open(&path).unwrap().check(&model.model()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let (_dir, path) = damaged(&whole, "statistics.json", |bytes| bytes[..bytes.len() / 2].to_vec());
    assert!(matches!(Statistics::open(&path), Err(StatisticsError::Manifest { .. })));
    let error = Statistics::open(dir.path()).unwrap_err().to_string();
    assert!(error.contains("no `statistics.json` in it"), "{error}");
}

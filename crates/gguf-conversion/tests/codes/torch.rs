//! Conversions of PyTorch files.

use gguf_arch::OutType;
use gguf_conversion::{Conversion, ConvertOptions, ModelSource};
use gguf_testkit::memory::write_source;
use gguf_testkit::torch::{Tensor, container, dict, floats, int, pickle};
use gguf_testkit::{files, fixture, sha256};

/// Files that PyTorch wrote, and the GGUF files that the reference makes of them; see the `MANIFEST.toml` of each.
#[test]
fn fixtures_convert_to_the_bytes_of_the_reference() {
    let mut forms = Vec::new();
    for case in files::entries(fixture("torch")) {
        if !case.is_dir() {
            continue;
        }
        forms.push(case.file_name().unwrap().to_string_lossy().into_owned());
        let manifest = fs_err::read_to_string(case.join("MANIFEST.toml")).unwrap();
        let manifest: toml::Table = manifest.parse().unwrap();
        let files = manifest["files"].as_table().unwrap();
        let mut present: Vec<String> = fs_err::read_dir(&case)
            .unwrap()
            .map(|file| file.unwrap().file_name().to_string_lossy().into_owned())
            .filter(|name| name != "MANIFEST.toml")
            .collect();
        present.sort_unstable();
        assert_eq!(present, files.keys().cloned().collect::<Vec<_>>(), "{}", case.display());
        for (name, sum) in files {
            assert_eq!(sha256(&fs_err::read(case.join(name)).unwrap()), sum.as_str().unwrap(), "{name}");
        }
        for (file_type, sum) in manifest["gguf"].as_table().unwrap() {
            let options = ConvertOptions {
                file_type: Some(OutType::from_name(file_type).unwrap()),
                tokenizer: false,
                ..ConvertOptions::default()
            };
            let out = tempfile::tempdir().unwrap();
            let target = out.path().join("model.gguf");
            let conversion = Conversion::plan(&case, &options).unwrap();
            write_source(&target, conversion.metadata(), &conversion);
            let ours = sha256(&fs_err::read(&target).unwrap());
            assert_eq!(ours, sum.as_str().unwrap(), "{} {file_type}", case.display());
        }
    }
    forms.sort_unstable();
    assert_eq!(forms, ["legacy", "sharded", "views", "zip"]);
}

#[test]
fn what_is_no_tensor_and_what_names_have_in_common_is_left_out_with_a_warning() {
    let w = || Tensor::new("FloatStorage", "0", &[2]).bytes();
    let dir = tempfile::tempdir().unwrap();
    let body = dict(&[("module.w", w()), ("module.step", int(1)), ("module.n", int(1))]);
    fs_err::write(dir.path().join("config.json"), "{}").unwrap();
    let file = container(&pickle(&body), &[&floats([1.0, 2.0])]);
    fs_err::write(dir.path().join("pytorch_model.bin"), file).unwrap();
    assert_eq!(
        ModelSource::open(dir.path(), &ConvertOptions::default()).unwrap().warnings,
        [
            "pytorch_model.bin: `module.step` (and 1 more) is no tensor and is left out",
            "all names begin with `module.`, which is left out"
        ]
    );
}

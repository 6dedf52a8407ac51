//! `gguf-quantize recipe` and `rebuild` with the checkpoint of an image or video model as the source.

use super::{convert, flux, run, wan};
use crate::support::tiers::{Tier, two_tiers};

two_tiers!(a_file_is_explained_and_made_again_by_its_checkpoint);

fn a_file_is_explained_and_made_again_by_its_checkpoint(tier: Tier) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    flux("model.diffusion_model.").write(&dir.join("flux.safetensors"));
    wan().write(&dir.join("wan.safetensors"));
    for source in ["flux.safetensors", "wan.safetensors"] {
        for ty in tier.some(2, ["auto", "q8_0", "q4_k_s", "q3_k_m", "iq4_nl"]) {
            convert(dir, source, "q.gguf", ty).ok();
            let args = ["recipe", "q.gguf", "--source", source, "-o", "r.gguf", "--json"];
            let report = run("gguf-quantize", dir, &args).ok().json();
            assert_eq!(report["explained"], true, "{source} {ty}: {report:#}");
            assert_eq!(report["rules"].as_array().map(Vec::len), Some(0), "{source} {ty}: {report:#}");
            run("gguf-quantize", dir, &["rebuild", "r.gguf", "--source", source, "-o", "again.gguf"]).ok();
            let [old, new] = ["q.gguf", "again.gguf"].map(|name| fs_err::read(dir.join(name)).unwrap());
            assert!(old == new, "{source} {ty}");
            fs_err::remove_file(dir.join("again.gguf")).unwrap();
        }
    }
    // The recipe of one model does not fit another, and the source is not replaced.
    let args = ["rebuild", "r.gguf", "--source", "flux.safetensors", "-o", "again.gguf"];
    run("gguf-quantize", dir, &args).exits_with(1);
    assert!(!dir.join("again.gguf").exists());
    let before = fs_err::read(dir.join("wan.safetensors")).unwrap();
    let args = ["recipe", "q.gguf", "--source", "wan.safetensors", "-o", "wan.safetensors"];
    run("gguf-quantize", dir, &args).says(2, "output is the same file as input wan.safetensors");
    assert!(fs_err::read(dir.join("wan.safetensors")).unwrap() == before);
}

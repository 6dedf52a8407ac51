//! Image models on servers: which file of a repository is read, and which one has to be named.

use std::path::{Path, PathBuf};

use super::server::{Manners, Server};
use super::{run, run_well};
use crate::diffusion::{add, flux, wan};
use crate::testkit::checkpoints::Safetensors;

fn put(repository: &Path, name: &str, file: &Safetensors) {
    let path = repository.join(name);
    fs_err::create_dir_all(path.parent().unwrap()).unwrap();
    file.write(&path);
}

/// Variational autoencoder, which is not converted.
fn vae() -> Safetensors {
    let mut file = Safetensors::default();
    add(&mut file, "decoder.conv_in.weight", &[8, 8]);
    add(&mut file, "encoder.conv_in.weight", &[8, 8]);
    file
}

/// Part of Flux in the layout of diffusers.
fn of_diffusers() -> Safetensors {
    let mut file = Safetensors::default();
    add(&mut file, "single_transformer_blocks.0.attn.norm_k.weight", &[32]);
    add(&mut file, "transformer_blocks.0.attn.add_q_proj.weight", &[8, 256]);
    file
}

/// File that a local model is converted to.
fn expected(dir: &Path, model: &Safetensors) -> Vec<u8> {
    model.write(&dir.join("own.safetensors"));
    let server = Server::start(dir, Manners::default());
    run_well(dir, &server, &[], &["hf2gguf", "own.safetensors", "-o", "own.gguf", "--type", "q4_k_s"]);
    fs_err::read(dir.join("own.gguf")).unwrap()
}

struct Repository {
    dir: tempfile::TempDir,
    files: PathBuf,
    server: Option<Server>,
}

impl Repository {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let files = dir.path().join("repository/images");
        fs_err::create_dir_all(&files).unwrap();
        Self { dir, files, server: None }
    }

    fn serve(&mut self) {
        self.server = Some(Server::start(&self.files, Manners::default()));
    }

    fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    fn convert(&self, address: &str) -> crate::support::programs::Outcome {
        let args = ["hf2gguf", address, "-o", "out.gguf", "--type", "q4_k_s"];
        run(self.dir.path(), self.server(), &[], &args)
    }

    fn output(&self) -> Vec<u8> {
        let path = self.dir.path().join("out.gguf");
        let bytes = fs_err::read(&path).unwrap();
        fs_err::remove_file(path).unwrap();
        bytes
    }

    /// Checks that a conversion ends with these words, without a file and without names of temporary folders.
    fn refuses(&self, address: &str, words: &[&str]) {
        let said = self.convert(address).exits_with(1).err;
        assert!(words.iter().all(|word| said.contains(word)), "{address}: {words:?} in {said}");
        assert!(!said.contains("gguf-foundry-") && !said.contains("/tmp"), "{said}");
        assert!(!self.dir.path().join("out.gguf").exists());
    }
}

#[test]
fn the_single_file_of_the_original_release_is_taken() {
    let mut repository = Repository::new();
    let model = flux("");
    put(&repository.files, "flux1-dev.safetensors", &model);
    put(&repository.files, "ae.safetensors", &vae());
    put(&repository.files, "vae/diffusion_pytorch_model.safetensors", &vae());
    put(&repository.files, "transformer/diffusion_pytorch_model.safetensors", &of_diffusers());
    put(&repository.files, "text_encoder/model.safetensors", &vae());
    fs_err::write(repository.files.join("model_index.json"), "{}").unwrap();
    fs_err::write(repository.files.join("transformer/config.json"), r#"{"_class_name": "X"}"#).unwrap();
    repository.serve();
    let expected = expected(repository.dir.path(), &model);
    for address in ["org/images", "org/images@main", "org/images/flux1-dev.safetensors"] {
        repository.convert(address).ok();
        assert!(repository.output() == expected, "{address}");
    }
    // Nothing but headers and the weights is fetched.
    let asked: Vec<String> = repository.server().log().into_iter().map(|asked| asked.path).collect();
    assert!(!asked.iter().any(|path| path.contains("/vae/") || path.contains("/text_encoder/")), "{asked:?}");
    repository.refuses("org/images/ae.safetensors", &["this is a VAE", "stays a safetensors file"]);
    repository
        .refuses("org/images/no.safetensors", &["there is no `no.safetensors`", "flux1-dev.safetensors"]);
}

#[test]
fn one_of_several_models_is_named() {
    let mut repository = Repository::new();
    let (first, second) = (flux("model."), wan());
    put(&repository.files, "flux.safetensors", &first);
    put(&repository.files, "wan.safetensors", &second);
    repository.serve();
    repository.refuses(
        "org/images",
        &["flux.safetensors", "wan.safetensors", "are both image or video models", "name one of the files"],
    );
    for (name, model) in [("flux", &first), ("wan", &second)] {
        let expected = expected(repository.dir.path(), model);
        let own = format!("{}/files/{name}.safetensors", repository.server().address);
        for address in [&format!("org/images/{name}.safetensors"), &own] {
            repository.convert(address).ok();
            assert!(repository.output() == expected, "{address}");
        }
    }
}

#[test]
fn weights_in_folders_of_a_repository_are_listed_and_named() {
    let mut repository = Repository::new();
    let model = wan();
    put(&repository.files, "split_files/vae/ae.safetensors", &vae());
    put(&repository.files, "split_files/diffusion_models/flux.safetensors", &flux("net."));
    // Two shards without an index.
    let mut parts = [Safetensors::default(), Safetensors::default()];
    for (at, (name, entry)) in model.header().iter().enumerate() {
        let dims: Vec<u64> = serde_json::from_value(entry["shape"].clone()).unwrap();
        add(&mut parts[usize::from(at >= model.header().len() / 2)], name, &dims);
    }
    for (at, part) in parts.iter().enumerate() {
        let name = format!("split_files/diffusion_models/wan-0000{}-of-00002.safetensors", at + 1);
        put(&repository.files, &name, part);
    }
    repository.serve();
    repository.refuses(
        "org/images",
        &[
            "a file of it is wanted",
            "name one, such as `org/images/split_files/diffusion_models/flux.safetensors`",
        ],
    );
    let (flux, wan) =
        (expected(repository.dir.path(), &flux("net.")), expected(repository.dir.path(), &model));
    let folder = "org/images/split_files/diffusion_models";
    for (name, expected) in [
        ("flux.safetensors", &flux),
        ("wan-00001-of-00002.safetensors", &wan),
        ("wan-00002-of-00002.safetensors", &wan),
    ] {
        repository.convert(&format!("{folder}/{name}")).ok();
        assert!(repository.output() == *expected, "{name}");
    }
    let address = format!("{}/files/{}", repository.server().address, "split_files/diffusion_models");
    repository.convert(&format!("{address}/wan-00002-of-00002.safetensors")).ok();
    assert!(repository.output() == wan);
    repository.refuses(&format!("{address}/none.safetensors"), &["none.safetensors: not found"]);
    // Without a name, the output is named after the file and lies in the current folder.
    let dir = repository.dir.path();
    let args = ["hf2gguf", &format!("{folder}/flux.safetensors"), "--type", "q8_0"];
    run_well(dir, repository.server(), &[], &args);
    assert!(dir.join("flux-Q8_0.gguf").is_file());
    let cached = ["hf2gguf", &format!("{folder}/flux.safetensors"), "--cache", "cache"];
    run(dir, repository.server(), &[], &cached).says(2, "`--cache` keeps whole models");
    assert!(!dir.join("cache").exists());
}

#[test]
fn a_folder_of_a_web_server_needs_no_configuration() {
    let mut repository = Repository::new();
    put(&repository.files, "flux.safetensors", &flux(""));
    put(&repository.files, "ae.safetensors", &vae());
    repository.serve();
    let expected = expected(repository.dir.path(), &flux(""));
    repository.convert(&format!("{}/files", repository.server().address)).ok();
    assert!(repository.output() == expected);
}

//! Conversion, quantization, verification and inspection of GGUF model files.
//!
//! A [`job::Job`] is a whole run: a model to read, types, an output. It can be planned, run and reported:
//!
//! ```
//! use gguf_foundry::core::progress::Silent;
//! use gguf_foundry::gguf::GgufFile;
//! use gguf_foundry::job::{Job, JobInput, JobOutput, OutputPath};
//! use gguf_foundry::verify::{ModelParts, PromptForm, Verdict, VerifyOptions, read_prompts, verify};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let dir = tempfile::tempdir()?;
//! let f16 = dir.path().join("tiny-F16.gguf");
//! let checkpoint = JobInput::Checkpoint("fixtures/tiny-llama".into());
//! let output = JobOutput::at(OutputPath::File(f16.clone()));
//! Job::new(checkpoint, "f16".parse()?, output).run(&Silent)?;
//!
//! let output = JobOutput::at(OutputPath::Directory(dir.path().to_owned()));
//! let quantization = Job::new(JobInput::Gguf(f16), "q4_k_m".parse()?, output);
//! println!("{}", serde_json::to_string_pretty(&quantization.plan(&Silent)?)?);
//! let report = quantization.run(&Silent)?;
//! assert_eq!(report.files(), [dir.path().join("tiny-Q4_K_M.gguf")]);
//!
//! let file = GgufFile::open(&report.files()[0])?;
//! let text = read_prompts("fixtures/tiny-llama/corpus.txt".as_ref(), PromptForm::Detected)?;
//! let found = ModelParts::of(file.metadata()).with(&file, file.metadata(), Some(&file), |model| {
//!     verify(model, None, &text, &VerifyOptions::default(), &Silent, None)
//! })?;
//! assert_ne!(found.report.verdict, Verdict::Fail);
//! # Ok(())
//! # }
//! ```
//!
//! Every module but `job` and `cli` is a crate of its own. Data flows in one direction, and each module may use only those
//! before it:
//! [`core`] → `remote`, [`gguf`], [`checkpoint`], [`quant`] → [`dequant`], [`tokenizer`], [`arch`] → [`views`] →
//! [`convert`], [`quantize`], [`engine`] → [`verify`], [`inspect`] → [`calibrate`] → [`job`] → `cli`.
//!
//! The library does not use a terminal: it returns values and errors and reports progress through
//! [`core::progress::Progress`]. The feature `cli` (default) adds the four programs, the feature `remote` (default)
//! checkpoints on servers.
#![doc = include_str!("modules.md")]

#[cfg(feature = "cli")]
pub mod cli;
pub mod job;

pub use gguf_arch as arch;
pub use gguf_blocks as quant;
pub use gguf_calibration as calibrate;
pub use gguf_checkpoint as checkpoint;
pub use gguf_conversion as convert;
pub use gguf_core as core;
pub use gguf_dequant as dequant;
pub use gguf_engine as engine;
pub use gguf_format as gguf;
pub use gguf_inspection as inspect;
pub use gguf_quantization as quantize;
#[cfg(feature = "remote")]
pub use gguf_remote as remote;
pub use gguf_solve as solve;
pub use gguf_tokenizer as tokenizer;
pub use gguf_verification as verify;
pub use gguf_views as views;

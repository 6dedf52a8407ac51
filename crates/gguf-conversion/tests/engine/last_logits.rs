//! Logits after a prompt, for tests of the engine and of everything that is converted.

use gguf_arch::GraphFeatures;
use gguf_core::TensorSource;
use gguf_core::progress::Silent;
use gguf_engine::{Engine, EngineOptions, GraphPlan, TokenChunk};
use gguf_format::Metadata;

/// Logits after the last token of each prompt.
pub fn last_logits(metadata: &Metadata, source: &dyn TensorSource, prompts: &[Vec<u32>]) -> Vec<Vec<f32>> {
    let arch = metadata.get("general.architecture").unwrap().as_str().unwrap();
    let plan = GraphPlan::new(&GraphFeatures::of(arch).unwrap(), metadata, source.tensors()).unwrap();
    let engine = Engine::new(plan, source, EngineOptions::default()).unwrap();
    let chunk = |tokens: &Vec<u32>| TokenChunk {
        tokens: tokens.clone(),
        rows: tokens.len() - 1..tokens.len(),
        n_source: 0,
    };
    let hidden = engine.hidden(&prompts.iter().map(chunk).collect::<Vec<_>>()).unwrap();
    let logits = engine.logits(&hidden, &Silent).unwrap();
    logits.chunks(engine.plan().n_vocab).map(<[f32]>::to_vec).collect()
}

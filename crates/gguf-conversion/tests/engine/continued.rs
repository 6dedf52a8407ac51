//! Token-by-token runs compared with runs over whole sequences, for every architecture of the golden data.

use std::path::Path;

use gguf_core::progress::Silent;
use gguf_engine::{Engine, EngineError, EngineOptions, GraphPlan, TokenChunk};
use serde_json::Value;

use crate::F32;
use gguf_testkit::goldens::{Goldens, tiered_conformance_tests};
use gguf_testkit::tiers::Tier;
use gguf_testkit::{files, report_cases};

/// Tokens of a sequence: longer than the windows of the golden models, and enough for every step length.
const TOKENS: usize = 96;
/// Tokens of each step, used in turn.
const STEPS: [usize; 7] = [1, 1, 5, 1, 2, 1, 17];

/// Cases whose graph cannot run token by token.
const REFUSED: &[(&str, &str)] = &[
    ("deepseek_v4", "its attention looks at compressed rows of earlier tokens"),
    ("llada", "it predicts masked tokens, not the next one"),
    ("llada_moe", "it predicts masked tokens, not the next one"),
    ("mt5", "it answers what an encoder reads"),
    ("rnd1", "it predicts masked tokens, not the next one"),
    ("t5", "it answers what an encoder reads"),
];

/// Two sequences of equal length, from the tokens of a case's reference.
fn sequences(dir: &Path) -> Option<[Vec<u32>; 2]> {
    let text = fs_err::read_to_string(dir.join("logits.json")).ok()?;
    let json: Value = serde_json::from_str(&text).unwrap();
    let all = json["sequences"].as_array().unwrap().iter().flat_map(|sequence| {
        sequence["tokens"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32)
    });
    let all: Vec<u32> = all.collect();
    let n = TOKENS.min(all.len() / 2);
    Some([all[..n].to_vec(), all[n..2 * n].to_vec()])
}

/// Largest difference between the states of continued and whole sequences, and the largest state. The second sequence
/// begins later, in the place of a removed one, and sometimes pauses.
fn difference(plan: GraphPlan, model: &F32, tokens: &[Vec<u32>; 2]) -> Result<(f64, f64), EngineError> {
    let engine = Engine::new(plan, model.source(), EngineOptions::default())?;
    let n = tokens[0].len();
    let mut going = engine.continuation(3, n, engine.work_bytes_in(1) / 2)?;
    let chunks = tokens.clone().map(|tokens| TokenChunk { rows: 0..n, tokens, n_source: 0 });
    let whole = engine.hidden(&chunks)?;
    let n_embd = whole.states().len() / (2 * n);
    going.step(&[&tokens[0][..0], &tokens[1][n / 2..n / 2 + 3], &tokens[0][..1]], &Silent)?;
    going.restart(1);
    let (mut worst, mut largest, mut at, mut step) = (0.0f64, 0.0f64, [0, 0], 0);
    while at[0] < n || at[1] < n {
        let length =
            |own: usize, waits: bool| if waits { 0 } else { STEPS[(step + own) % 7].min(n - at[own]) };
        let lengths = [length(0, false), length(1, step % 4 == 3)];
        let next = [0, 1].map(|own| &tokens[own][at[own]..at[own] + lengths[own]]);
        let states = going.step(&[next[0], next[1], &[]], &Silent)?;
        let mut rows = states.states().chunks(n_embd);
        for own in (0..2).filter(|own| lengths[*own] > 0) {
            at[own] += lengths[own];
            let row = own * n + at[own] - 1;
            let expected = &whole.states()[row * n_embd..][..n_embd];
            for (x, y) in rows.next().unwrap().iter().zip(expected) {
                let difference = f64::from((x - y).abs());
                worst = if difference.is_nan() { f64::INFINITY } else { worst.max(difference) };
                largest = largest.max(f64::from(y.abs()));
            }
        }
        step += 1;
    }
    // The memory of a sequence is known before it begins.
    assert_eq!(3 * engine.remembered_bytes(n)?, going.remembered_bytes());
    Ok((worst, largest))
}

tiered_conformance_tests!(steps_come_to_what_a_whole_run_comes_to);
fn steps_come_to_what_a_whole_run_comes_to(corpus: &Goldens, tier: Tier) {
    let (mut n_cases, mut wrong, mut refused) = (0, Vec::new(), Vec::new());
    let dirs = tier.some(9, files::entries(corpus.join("arch")));
    for dir in dirs {
        let Some(tokens) = sequences(&dir) else { continue };
        let name = dir.file_name().unwrap().to_string_lossy().into_owned();
        let Some(model) = F32::open(&dir) else { continue };
        let Some(Ok(plan)) = model.plan() else { continue };
        match difference(plan, &model, &tokens) {
            Ok((worst, largest)) => {
                println!("{name}: {worst:.2e} of {largest:.2e}");
                n_cases += 1;
                if worst > 1e-4 * largest {
                    wrong.push(format!("{name}: {worst:.3e} of {largest:.3e}"));
                }
            }
            Err(EngineError::NotContinued { what }) => {
                assert!(REFUSED.contains(&(name.as_str(), what)), "{name}: {what}");
                refused.push(name);
            }
            Err(error) => wrong.push(format!("{name}: {error}")),
        }
    }
    assert!(!corpus.is_whole() || refused.len() == REFUSED.len(), "{refused:?}");
    report_cases("engine: runs that go on", n_cases);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

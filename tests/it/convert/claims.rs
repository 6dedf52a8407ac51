//! Claims of quantized checkpoints that would take terabytes.

use gguf_testkit::codes::packed::pack_quantized;
use gguf_testkit::codes::tools::{four_bits, hqq, sparse};
use gguf_testkit::codes::{MODULE, Made, i64s, noise, write};
use serde_json::json;

use crate::support::programs;

/// Numbers in small tensors and in the configuration that would take terabytes: the program ends with an error and uses
/// little memory.
#[test]
#[cfg(target_os = "linux")]
fn claims_cost_no_memory() {
    let noise = &mut noise(11);
    let huge = 1i64 << 40;
    let tensor = |made: &mut Made, suffix: &str, values: [i64; 2]| {
        let name = format!("{MODULE}{suffix}");
        let part = made.parts.iter_mut().find(|part| part.name == name).unwrap();
        part.bytes = i64s(&values);
    };
    let mut cases = Vec::new();
    for values in [[huge, huge], [huge, 32], [8, huge], [1, i64::MAX], [-1, 32]] {
        let mut packed =
            std::iter::repeat_with(|| pack_quantized(4, [8, 32], noise)).flatten().next().unwrap();
        tensor(&mut packed, ".weight_shape", values);
        let mut reshaped = hqq(4, [8, 32], noise);
        tensor(&mut reshaped, ".shape", values);
        let mut masked = sparse([8, 32], noise, false);
        tensor(&mut masked, ".weight.shape", values);
        cases.extend([packed, reshaped, masked]);
        let mut blocks = four_bits([8, 32], noise);
        let state = blocks.parts.iter_mut().find(|part| part.name.contains("quant_state")).unwrap();
        state.bytes = json!({ "blocksize": 64, "shape": values }).to_string().into_bytes();
        state.dims = vec![state.bytes.len() as u64];
        cases.push(blocks);
    }
    for made in &cases {
        let dir = tempfile::tempdir().unwrap();
        let mut config = made.config.clone();
        config["architectures"] = json!(["LlamaForCausalLM"]);
        write(&config, &made.parts, dir.path());
        let mut command = programs::limited("ulimit -v 524288", "gguf-convert", dir.path());
        command.arg("hf2gguf").arg(dir.path()).arg("-o").arg(dir.path().join("out.gguf")).arg("--dry-run");
        programs::finish(&mut command).says(1, MODULE);
    }
}

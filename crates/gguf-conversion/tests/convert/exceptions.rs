//! Known differences between files of the corpus and ours, and the parts of them that are still compared.

use gguf_format::Metadata;
use serde_json::Value as Json;

use gguf_testkit::sha256;

/// Cases of the corpus that are not converted, with the reason.
pub(super) const LEFT_OUT: &[(&str, &str)] = &[
    ("pocket_tts", "a program, not a table: the reference computes rows of the embedding; no card"),
    ("qwen3_tts", "a program, not a table: the reference folds a projection into the embedding; no card"),
    ("ultravox", "has no text model of its own: the reference refuses it too"),
];

/// Cases for which the reference writes a chat template of its own, which this project may not distribute. The
/// checkpoints have none. All else is compared: the key is inserted where the reference has it.
const FOREIGN_TEMPLATES: &[&str] = &["deepseek_v4", "deepseek_v4_dspark"];

/// Tensors of `-exp(x)` that the corpus has from the AVX2 and AVX-512 code of the reference's library. All others are
/// from its generic code (four only by that), which ours equals; no function gives both. Each number must be at most
/// one step from ours, and every other byte of the file must be equal.
const OTHER_PROCESSOR: &[(&str, &str)] = &[("kimi_k3", "blk.0.ssm_a"), ("minicpmv4_6", "blk.2.ssm_a")];

/// Keys of a file in the form in which they are compared.
pub(super) fn keys(case: &str, ours: Metadata, expect: &Json) -> Metadata {
    const TEMPLATE: &str = "tokenizer.chat_template";
    if !FOREIGN_TEMPLATES.contains(&case) {
        return ours;
    }
    let rows = expect["kv"].as_array().unwrap();
    let at = rows.iter().position(|row| row[0] == TEMPLATE).unwrap();
    assert!(!ours.contains(TEMPLATE), "{case}: is no exception any more");
    let mut keys = Metadata::new();
    for (index, (key, value)) in ours.iter().enumerate() {
        if index == at {
            keys.set(TEMPLATE, rows[at][2].as_str().unwrap());
        }
        keys.set(key, value.clone());
    }
    keys
}

/// Bytes of a file in the form in which they are compared.
pub(super) fn bytes(case: &str, mut ours: Vec<u8>, expect: &Json) -> Vec<u8> {
    let Some((_, name)) = OTHER_PROCESSOR.iter().find(|row| row.0 == case) else {
        return ours;
    };
    let n = |value: &Json| usize::try_from(value.as_u64().unwrap()).unwrap();
    let mut start = n(&expect["file"]["data_offset"]);
    let mut tensors = expect["tensors"].as_array().unwrap().iter();
    let row = tensors.find(|row| {
        let is_it = row[0] == *name;
        if !is_it {
            start = (start + n(&row[3])).next_multiple_of(n(&expect["file"]["alignment"]));
        }
        is_it
    });
    let row = row.unwrap();
    let own = &mut ours[start..start + n(&row[3])];
    assert_ne!(sha256(own), row[4], "{case}: is no exception any more");
    if let Some(theirs) = neighbours(own).into_iter().find(|near| sha256(near) == row[4]) {
        own.copy_from_slice(&theirs);
    }
    ours
}

/// All F32 rows whose numbers differ by at most one unit in the last place from those of a row.
fn neighbours(row: &[u8]) -> Vec<Vec<u8>> {
    let (numbers, rest) = row.as_chunks::<4>();
    assert!(rest.is_empty() && numbers.len() <= 8, "{} bytes", row.len());
    numbers.iter().fold(vec![Vec::new()], |rows, number| {
        let bits = u32::from_le_bytes(*number);
        let near = [bits, bits - 1, bits + 1].map(u32::to_le_bytes);
        rows.iter().flat_map(|row| near.map(|number| [row.as_slice(), &number].concat())).collect()
    })
}

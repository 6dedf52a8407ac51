//! Growth of a text in the normalizers of a `tokenizer.json`.

use serde::Deserialize;
use serde_json::Value as Json;

use gguf_core::text::escape;

/// Maximum factor by which a text may grow. Released files reach 4: a space of one byte becomes `▁` of three, with
/// another in front.
const MAX_GROWTH: u64 = 64;
/// Maximum nesting depth of sequences.
const MAX_DEPTH: usize = 8;

#[derive(Deserialize)]
struct NormalizerField {
    #[serde(default)]
    normalizer: Option<Json>,
}

/// Checks a file's normalizers. A text that is not such a file is left for the library to refuse.
pub(super) fn check(text: &[u8]) -> Result<(), String> {
    let Ok(NormalizerField { normalizer: Some(normalizer) }) = serde_json::from_slice(text) else {
        return Ok(());
    };
    let mut steps = Vec::new();
    flatten(&normalizer, 0, &mut steps)?;
    let mut total = 1u64;
    for (at, step) in steps.iter().enumerate() {
        total = total.saturating_mul(growth(step));
        if total > MAX_GROWTH {
            let kind = escape(step.get("type").and_then(Json::as_str).unwrap_or_default());
            return Err(format!(
                "normalizer {at} of {}, `{kind}`: a text may become {total} times as long, expected at most {MAX_GROWTH}",
                steps.len()
            ));
        }
    }
    Ok(())
}

fn flatten<'j>(part: &'j Json, depth: usize, steps: &mut Vec<&'j Json>) -> Result<(), String> {
    if depth > MAX_DEPTH {
        return Err(format!("normalizers: sequences nest deeper than {MAX_DEPTH}"));
    }
    match part.get("normalizers").and_then(Json::as_array) {
        Some(parts) => parts.iter().try_for_each(|part| flatten(part, depth + 1, steps)),
        None => {
            steps.push(part);
            Ok(())
        }
    }
}

/// Returns the maximum number of bytes that one byte may become.
fn growth(step: &Json) -> u64 {
    let text = |value: &Json, key: &str| value.get(key).and_then(Json::as_str).map(str::len);
    match step.get("type").and_then(Json::as_str) {
        Some("Replace") => {
            let content = text(step, "content").unwrap_or(0) as u64;
            let pattern = step.get("pattern").unwrap_or(&Json::Null);
            match text(pattern, "String") {
                Some(n) if n > 0 => content.div_ceil(n as u64).max(1),
                // The regex may match the empty string, between all characters.
                _ => content + 1,
            }
        }
        // A byte beyond ASCII is written with two bytes.
        Some("ByteLevel") => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn checked(normalizer: &Json) -> Result<(), String> {
        check(json!({ "normalizer": normalizer, "model": {} }).to_string().as_bytes())
    }

    #[test]
    fn doubling_is_found_and_what_files_do_is_not() {
        let double = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
        let error = checked(&json!({"type": "Sequence", "normalizers": vec![&double; 20]})).unwrap_err();
        assert!(error.starts_with("normalizer 6 of 20, `Replace`: a text may become 128 times"), "{error}");
        let regex = json!({"type": "Replace", "pattern": {"Regex": ""}, "content": "x".repeat(64)});
        assert!(checked(&regex).is_err());
        for fine in [
            json!(null),
            json!({"type": "NFC"}),
            json!({"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": "\u{2581}"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"}]}),
            json!({"type": "Sequence", "normalizers": [
                {"type": "NFC"}, {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "}, {"type": "Lowercase"}]}),
        ] {
            assert_eq!(checked(&fine), Ok(()));
        }
        assert!(check(b"{").is_ok(), "refused by others");
    }

    #[test]
    fn sequences_end() {
        let mut deep = json!({"type": "NFC"});
        for _ in 0..20 {
            deep = json!({"type": "Sequence", "normalizers": [deep]});
        }
        assert!(checked(&deep).unwrap_err().contains("nest deeper"));
    }
}

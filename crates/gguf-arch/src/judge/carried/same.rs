//! Equality of configuration values, independent of their spelling.

use serde_json::Value as Json;

use gguf_checkpoint::json;

/// Relative difference up to which numbers are equal: some configurations contain 32-bit floats.
const TOLERANCE: f64 = 1e-6;
/// Activations by their names; those of one row are equal except for rounding.
const ACTIVATIONS: [&[&str]; 3] = [
    &["silu", "swiglu", "swish"],
    &[
        "gelu",
        "gelu_accurate",
        "gelu_fast",
        "gelu_new",
        "gelu_python",
        "gelu_python_tanh",
        "gelu_pytorch_tanh",
        "gelu_tanh",
    ],
    &["relu2", "relu_squared", "sqrelu", "squared_relu"],
];

/// Returns a number, also from a string; a pattern of layers like `LLLG` yields its period.
pub(crate) fn number(value: &Json) -> Option<f64> {
    match value {
        Json::String(text) => text.trim().parse().ok().or_else(|| period(text)),
        other => json::as_f64(other),
    }
}

/// Returns the length of a text of local layers (`L`) followed by one global layer (`G`).
fn period(text: &str) -> Option<f64> {
    let local = text.strip_suffix('G')?;
    local.bytes().all(|letter| letter == b'L').then_some(text.len() as f64)
}

/// Returns true if two values have the same meaning.
pub(crate) fn same(one: &Json, other: &Json) -> bool {
    match (one, other) {
        (Json::Array(one), Json::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Json::String(one), Json::String(other)) => {
            let name = |text: &str| text.to_lowercase();
            let (one, other) = (name(one), name(other));
            let row = |name: &str| ACTIVATIONS.iter().position(|row| row.contains(&name));
            one == other || row(&one).is_some_and(|found| row(&other) == Some(found))
        }
        (Json::Bool(truth), number) | (number, Json::Bool(truth)) if !number.is_boolean() => {
            json::as_f64(number) == Some(f64::from(u8::from(*truth)))
        }
        _ => match (number(one), number(other)) {
            (Some(one), Some(other)) => {
                one == other || (one - other).abs() <= TOLERANCE * one.abs().max(other.abs())
            }
            _ => one == other,
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn spelling_makes_no_difference() {
        for (one, other, expected) in [
            (json!(1), json!(1.0), true),
            (json!("1e-5"), json!(1e-5), true),
            (json!(0.1), json!(0.1f32), true),
            (json!(1e-5), json!(2e-5), false),
            (json!(true), json!(1), true),
            (json!(false), json!(true), false),
            (json!("silu"), json!("swish"), true),
            (json!("swiglu"), json!("silu"), true),
            (json!("LLLG"), json!(4), true),
            (json!("LLG"), json!(4), false),
            (json!("LGLG"), json!(4), false),
            (json!("gelu"), json!("gelu_new"), true),
            (json!("gelu"), json!("relu"), false),
            (json!("quick_gelu"), json!("gelu"), false),
            (json!(null), json!(0), false),
            (json!([1, 2]), json!([1.0, 2]), true),
            (json!([1, 2]), json!([2, 1]), false),
            (json!([0.0, { "__float__": "Infinity" }]), json!([0, "inf"]), true),
        ] {
            assert_eq!(same(&one, &other), expected, "{one} {other}");
            assert_eq!(same(&other, &one), expected, "{other} {one}");
        }
    }
}

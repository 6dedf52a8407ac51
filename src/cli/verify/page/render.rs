//! Template filters that format numbers, for both templates.

use minijinja::{Environment, HtmlEscape, UndefinedBehavior, Value};

use crate::core::text;

/// Returns an environment with the filters. Undefined names are errors.
pub(in crate::cli) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.add_filter("fixed", |value: f64, digits: usize| fixed(value, digits));
    environment
        .add_filter("percent", |value: f64, digits: usize| format!("{} %", fixed(100.0 * value, digits)));
    environment.add_filter("change", |value: f64| format!("{:+.2} %", 100.0 * value));
    environment.add_filter("kld", kld);
    environment.add_filter("size", text::bytes);
    environment.add_filter("grouped", grouped);
    environment.add_filter("code", code);
    environment.add_filter("shown", |text: &str| text::escape(text).into_owned());
    environment.add_filter("blanks", |text: String| text.replace(' ', "␣"));
    environment
}

/// Returns a sentence as HTML, with text between backticks as code.
fn code(text: &str) -> Value {
    let parts = text.split('`').enumerate().map(|(at, part)| {
        let part = HtmlEscape(part);
        if at % 2 == 1 { format!("<code>{part}</code>") } else { part.to_string() }
    });
    Value::from_safe_string(parts.collect())
}

fn fixed(value: f64, digits: usize) -> String {
    if value.is_finite() { format!("{value:.digits$}") } else { value.to_string() }
}

/// Formats with six decimals; below 1e-5 in scientific notation.
fn kld(value: f64) -> String {
    if value == 0.0 || !(value.is_finite() && value.abs() < 1e-5) {
        return if value == 0.0 { "0".to_owned() } else { fixed(value, 6) };
    }
    format!("{value:.1e}")
}

/// Formats a count with separators of thousands.
fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!(
            [0.0, 0.1329, 4e-9, -2e-7, 1e-5].map(kld),
            ["0", "0.132900", "4.0e-9", "-2.0e-7", "0.000010"]
        );
        assert_eq!(kld(f64::NAN), "NaN");
        assert_eq!([0, 999, 1000, 1234567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}

//! Normalization of images: the runtime computes `(x / 255 - mean) / std` for each channel, and both numbers are keys of the
//! file. Other ways to write the same, and other ranges, become these two.

use serde_json::{Map, Value as Json};

use crate::error::missing_input::{MissingInput, PREPROCESSOR};
use crate::keys::origins::member;

/// Channels of the runtime's images.
const N_CHANNELS: usize = 3;
/// Sizes of images that keys of files have.
const SIZES: [&str; 4] = ["max_pixels", "min_pixels", "size.longest_edge", "size.shortest_edge"];
/// Difference to 1/255 that rounding explains.
const TOLERANCE: f64 = 1e-6;

/// Sets `image_mean` and `image_std` to what the runtime has to compute with, for `do_normalize`, `do_rescale` and
/// `rescale_factor` as in transformers. One number counts for each channel.
///
/// # Errors
/// [`MissingInput::FileValue`] for a value that transformers does not take either.
pub fn settle_preprocessor(preprocessor: &mut Map<String, Json>) -> Result<(), MissingInput> {
    // A null counts as absent.
    preprocessor.retain(|_, value| !value.is_null());
    for key in SIZES {
        if let Some(value) = member(preprocessor, key).filter(|value| value.is_string()) {
            return Err(MissingInput::file_value(PREPROCESSOR, key, value, "a whole number"));
        }
    }
    let is_off = |key: &str| preprocessor.get(key) == Some(&Json::Bool(false));
    let is_plain = is_off("do_normalize");
    let range = match preprocessor.get("rescale_factor") {
        _ if is_off("do_rescale") => 255.0,
        None => 1.0,
        Some(factor) => {
            factor.as_f64().filter(|factor| *factor > 0.0).map(|factor| factor * 255.0).ok_or_else(|| {
                MissingInput::file_value(PREPROCESSOR, "rescale_factor", factor, "a number above 0")
            })?
        }
    };
    let range = if (range - 1.0).abs() < TOLERANCE { 1.0 } else { range };
    for (key, neutral) in [("image_mean", 0.0), ("image_std", 1.0)] {
        let stated = preprocessor.get(key);
        let numbers = match stated {
            _ if is_plain => vec![neutral; N_CHANNELS],
            None => continue,
            Some(value) => channels(value).ok_or_else(|| {
                let expected = "a number, or one for each of three channels";
                MissingInput::file_value(PREPROCESSOR, key, value, expected)
            })?,
        };
        let numbers: Vec<f64> = numbers.into_iter().map(|number| number / range).collect();
        preprocessor.insert(key.to_owned(), numbers.into());
    }
    Ok(())
}

/// Returns the numbers of the channels, if they are numbers.
fn channels(value: &Json) -> Option<Vec<f64>> {
    match value {
        Json::Array(items) if items.len() >= N_CHANNELS => items.iter().map(Json::as_f64).collect(),
        value => value.as_f64().map(|number| vec![number; N_CHANNELS]),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn settled(value: &Json) -> Result<(Json, Json), String> {
        let mut map = value.as_object().cloned().unwrap();
        settle_preprocessor(&mut map).map_err(|error| error.to_string())?;
        Ok((map["image_mean"].clone(), map["image_std"].clone()))
    }

    /// The pixel 51 becomes (51 · factor - mean) / std in transformers, and (51 / 255 - mean') / std' in the runtime.
    #[test]
    fn every_normalization_becomes_mean_and_deviation_of_the_range_to_one() {
        for (json, mean, std) in [
            (
                json!({"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.1, 0.3]}),
                [0.5, 0.4, 0.3],
                [0.2, 0.1, 0.3],
            ),
            (json!({"image_mean": 0.5, "image_std": 1}), [0.5; 3], [1.0; 3]),
            (
                json!({"image_mean": [0, 0, 0], "image_std": [1, 1, 1], "rescale_factor": null}),
                [0.0; 3],
                [1.0; 3],
            ),
            (json!({"image_mean": 0.5, "image_std": 0.5, "do_normalize": false}), [0.0; 3], [1.0; 3]),
            (json!({"do_normalize": false, "do_rescale": true}), [0.0; 3], [1.0; 3]),
            (
                json!({"image_mean": 0.5, "image_std": 0.5, "rescale_factor": 0.003_921_568_6}),
                [0.5; 3],
                [0.5; 3],
            ),
            (json!({"image_mean": 1, "image_std": 0.5, "rescale_factor": 2.0 / 255.0}), [0.5; 3], [0.25; 3]),
            (json!({"image_mean": 127.5, "image_std": 51, "do_rescale": false}), [0.5; 3], [0.2; 3]),
        ] {
            assert_eq!(settled(&json), Ok((json!(mean), json!(std))), "{json}");
        }
        for (json, words) in [
            (
                json!({"image_mean": "0.5"}),
                "`image_mean` is \"0.5\", expected a number, or one for each of three channels",
            ),
            (
                json!({"image_std": [0.5]}),
                "`image_std` is [0.5], expected a number, or one for each of three channels",
            ),
            (json!({"rescale_factor": 0}), "`rescale_factor` is 0, expected a number above 0"),
            (
                json!({"size": {"longest_edge": "2048"}}),
                "`size.longest_edge` is \"2048\", expected a whole number",
            ),
        ] {
            assert_eq!(settled(&json).unwrap_err(), format!("preprocessor_config.json: {words}"));
        }
    }
}

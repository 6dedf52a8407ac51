//! Linear layers that a float checkpoint stores as `[inputs, outputs]` (`Conv1D` of GPT-2). Quantizers put a linear layer
//! in their place, whose codes are those of `[outputs, inputs]`; the model's card expects the float checkpoint's order.

use serde_json::{Map, Value};

use crate::layer::{Weight, WeightOrigin};
use crate::rectangle::Rectangle;
use crate::{CodedWeight, InnerSource, Result};
use gguf_core::{Shape, scratch};

/// Model types with such layers.
const MODEL_TYPES: [&str; 2] = ["gpt2", "jais"];
/// Last parts of the names of these layers.
const MODULES: [&str; 5] = ["c_attn", "q_attn", "c_proj", "c_fc", "c_fc2"];

/// Turns the coded weights of such layers.
pub(super) fn turn(config: &Map<String, Value>, weights: Vec<Weight>) -> Vec<Weight> {
    let is_of_type =
        config.get("model_type").and_then(Value::as_str).is_some_and(|own| MODEL_TYPES.contains(&own));
    weights.into_iter().map(|weight| if is_of_type { turned(weight) } else { weight }).collect()
}

fn turned(weight: Weight) -> Weight {
    let Weight { mut meta, origin } = weight;
    let module = meta.name.strip_suffix(".weight").and_then(|module| module.rsplit('.').next());
    let dims = match *meta.shape.dims() {
        [rows, cols] if module.is_some_and(|name| MODULES.contains(&name)) => Shape::new(vec![cols, rows]),
        _ => None,
    };
    let origin = match (origin, dims) {
        (WeightOrigin::Coded(coded), Some(shape)) => {
            meta.shape = shape;
            WeightOrigin::Coded(Box::new(Turned(coded)))
        }
        (origin, _) => origin,
    };
    Weight { meta, origin }
}

/// A coded matrix read with rows and columns exchanged.
struct Turned(Box<dyn CodedWeight>);

impl CodedWeight for Turned {
    fn decode(&self, inner: InnerSource<'_>, part: &Rectangle, out: &mut [f32]) -> Result<()> {
        let own = Rectangle { rows: part.cols.clone(), cols: part.rows.clone() };
        let (n_rows, n_cols) = (own.width(), part.width());
        scratch::with_floats(out.len(), |values| {
            self.0.decode(inner, &own, values)?;
            for (col, values) in values.chunks_exact(n_rows.max(1)).enumerate() {
                for (row, value) in values.iter().enumerate() {
                    out[row * n_cols + col] = *value;
                }
            }
            Ok(())
        })
    }

    fn members(&self) -> &[usize] {
        self.0.members()
    }

    fn form(&self) -> String {
        self.0.form()
    }
}

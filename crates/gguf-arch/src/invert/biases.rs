//! Biases of a file, which the class of the checkpoint has by a switch of the configuration, or does not have.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use serde_json::{Map, Value as Json, json};

use crate::Result;
use crate::error::ArchError;
use crate::mapping::OutputSpec;

/// Modules, separated by spaces, by the switch that gives them a bias; those of `none` never have one.
type Switches = BTreeMap<String, String>;

/// Row of the table for modules that never have a bias.
const NEVER: &str = "none";

/// Classes of transformers, in `biases.json`, which `lab/peers/class_biases.py` writes. Modules that always have a bias are
/// left out, as are classes that transformers does not have.
static CLASSES: LazyLock<BTreeMap<String, Switches>> =
    LazyLock::new(|| serde_json::from_str(include_str!("biases.json")).unwrap_or_default());

/// Switches on what adds the biases that there are. Those that a switch adds beside them are zeros when transformers loads
/// the model.
///
/// # Errors
/// [`ArchError::NoBias`]: the class has none there.
pub(super) fn settle(config: &mut Map<String, Json>, outputs: &[OutputSpec]) -> Result<()> {
    let class = config.get("architectures").and_then(|list| list.get(0)).and_then(Json::as_str);
    let class = class.unwrap_or_default().to_owned();
    let Some(switches) = CLASSES.get(&class) else { return Ok(()) };
    let switch_of = |name: &str| {
        let module = in_block(name.strip_suffix(".bias")?);
        let found = switches.iter().find(|row| row.1.split(' ').any(|known| known == module));
        found.map(|row| row.0.as_str())
    };
    let mut on = BTreeSet::new();
    for output in outputs {
        match switch_of(&output.name) {
            Some(NEVER) => return Err(ArchError::NoBias { tensor: output.name.clone(), class }),
            Some(switch) => {
                on.insert(switch);
            }
            None => {}
        }
    }
    config.extend(on.into_iter().map(|switch| (switch.to_owned(), json!(true))));
    Ok(())
}

/// Returns the name of a module in its block; the whole name of one outside of the blocks.
fn in_block(module: &str) -> &str {
    let is_number = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let number = module.split('.').rfind(is_number);
    let rest = number.and_then(|number| module.rsplit_once(&format!(".{number}.")));
    rest.map_or(module, |(_, rest)| rest)
}

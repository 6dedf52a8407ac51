//! Members of nested configurations.

use serde_json::{Map, Value as Json, json};

/// Sets a member of each object of a list. The list is created if there is anything to set.
pub(super) fn set_members(
    config: &mut Map<String, Json>,
    list: &str,
    member: &str,
    values: Vec<Option<Json>>,
) {
    if values.iter().all(Option::is_none) {
        return;
    }
    let items = config.entry(list).or_insert_with(|| json!([]));
    if !items.is_array() {
        *items = json!([]);
    }
    let Json::Array(items) = items else { return };
    items.resize_with(items.len().max(values.len()), || Json::Object(Map::new()));
    for (item, value) in items.iter_mut().zip(values) {
        if let Json::Object(map) = item {
            set_member(map, member, value);
        }
    }
}

/// Sets the member at a dotted path, or removes it. Missing objects on the path are created, and objects that become
/// empty are removed.
pub(super) fn set_member(config: &mut Map<String, Json>, path: &str, value: Option<Json>) {
    match (path.split_once('.'), value) {
        (None, Some(value)) => drop(config.insert(path.to_owned(), value)),
        (None, None) => drop(config.remove(path)),
        (Some((name, rest)), value) => {
            let member = config.entry(name).or_insert(Json::Null);
            if !member.is_object() && value.is_some() {
                *member = Json::Object(Map::new());
            }
            if let Json::Object(map) = member {
                set_member(map, rest, value);
            }
            if member.as_object().is_some_and(Map::is_empty) || member.is_null() {
                config.remove(name);
            }
        }
    }
}

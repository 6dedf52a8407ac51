//! Weights that are named by themselves: a repository may hold several models, or none where it is looked for.

use crate::address::Address;
use crate::client::Client;
use crate::error::RemoteError;
use crate::file::FileAddress;
use crate::kind::WEIGHTS;
use crate::listing::{CONFIGURATIONS, FileListing, RemoteEntry, of_names};
use crate::names::{FileRole, role};
use crate::{Result, stored};
use gguf_core::shard_name::ShardName;

/// Maximum number of shards on a web server, which does not list its files.
const MAX_SHARDS: usize = 1000;

/// Returns an error that lists the weights of a repository if none of them are where a model is looked for, and no
/// configuration describes one.
pub(super) fn must_be_named(address: &Address, listing: &FileListing) -> Result<()> {
    let names = || listing.entries.iter().map(|entry| entry.name.as_str());
    let is_read = listing.entries.iter().any(|entry| role(&entry.name, entry.n_bytes) == FileRole::Weights);
    let has_configuration = names().any(|name| CONFIGURATIONS.contains(&name));
    if is_read || has_configuration || !names().any(|name| WEIGHTS.has(name)) {
        return Ok(());
    }
    Err(WEIGHTS.missing(address, None, names()))
}

/// Returns a list of the weights that an address names, as if their folder were the repository, and the name of the file.
pub(super) fn listed(client: &Client, address: &FileAddress) -> Result<(FileListing, String)> {
    let (folder, name) = address.name.rsplit_once('/').unwrap_or(("", &address.name));
    let listing = if let Address::Web(url) = &address.directory {
        // A signature is that of one file.
        let names = if address.query.is_none() { siblings(name) } else { Vec::new() };
        let names = if names.is_empty() { vec![name.to_owned()] } else { names };
        let entries = of_names(client, url, address.query.as_deref(), &names)?;
        FileListing { entries, commit: None }
    } else {
        stored(client, &address.directory)?
    };
    let own = |entry_name: &str| -> Option<String> {
        let (entry_folder, entry) = entry_name.rsplit_once('/').unwrap_or(("", entry_name));
        let is_shard = || ShardName::of(name).is_some_and(|own| is_of_set(entry, own.stem));
        (entry_folder == folder && (entry == name || is_shard())).then(|| entry.to_owned())
    };
    if !listing.entries.iter().any(|entry| own(&entry.name).as_deref() == Some(name)) {
        if matches!(address.directory, Address::Web(_)) {
            return Err(RemoteError::NotFound { url: address.to_string() });
        }
        let names = listing.entries.iter().map(|entry| entry.name.as_str());
        return Err(WEIGHTS.missing(&address.directory, Some(&address.name), names));
    }
    let entries = listing.entries.into_iter();
    let entries = entries.filter_map(|entry| {
        let name = own(&entry.name)?;
        Some(RemoteEntry { name, ..entry })
    });
    Ok((FileListing { entries: entries.collect(), commit: listing.commit }, name.to_owned()))
}

/// Returns true for the shards of a set, and for their index.
fn is_of_set(name: &str, stem: &str) -> bool {
    ShardName::of(name).is_some_and(|own| own.stem == stem)
        || name.strip_prefix(stem).is_some_and(|rest| rest == ".safetensors.index.json")
}

/// Names of all shards of the set that a file belongs to, and of their index; empty for a file that is no shard.
fn siblings(name: &str) -> Vec<String> {
    let Some(ShardName { stem, count, suffix, .. }) = ShardName::of(name) else { return Vec::new() };
    let shards = 1..=count.min(MAX_SHARDS as u32);
    let mut names: Vec<String> =
        shards.map(|shard| format!("{stem}-{shard:05}-of-{count:05}.{suffix}")).collect();
    names.push(format!("{stem}.safetensors.index.json"));
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_belong_together() {
        let names = siblings("wan-00002-of-00002.safetensors");
        assert_eq!(
            names,
            [
                "wan-00001-of-00002.safetensors",
                "wan-00002-of-00002.safetensors",
                "wan.safetensors.index.json"
            ]
        );
        assert!(names.iter().all(|name| is_of_set(name, "wan")));
        assert!(siblings("flux.safetensors").is_empty() && siblings("a-1-of-2.safetensors").is_empty());
        assert!(!is_of_set("wan.safetensors", "wan") && !is_of_set("wan2-00001-of-00002.safetensors", "wan"));
        assert!(siblings("x-00001-of-99999.safetensors").len() <= MAX_SHARDS + 1);
    }
}

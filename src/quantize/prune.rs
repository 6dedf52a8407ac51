//! Leaving out layers: the names of those that stay.

use std::collections::{BTreeMap, BTreeSet};

/// New names for the tensors of a model without some layers.
///
/// # Exactness
/// ref: layers below the first that is pruned keep their numbers, later ones get the next free number in the order
/// they come; the number behind any `blk.` in a name counts, not only at its beginning.
pub(crate) struct Pruned<'a> {
    layers: &'a BTreeSet<u32>,
    renumbered: BTreeMap<u32, Option<u32>>,
    next: u32,
}

impl<'a> Pruned<'a> {
    /// Prunes these layers; none if the set is empty.
    pub(crate) fn new(layers: &'a BTreeSet<u32>) -> Self {
        Self { layers, renumbered: BTreeMap::new(), next: 0 }
    }

    /// The name in the output; `None` if the tensor is pruned. Names come in file order.
    pub(crate) fn rename(&mut self, name: &str) -> Option<String> {
        let Some(&first) = self.layers.first() else { return Some(name.to_owned()) };
        let Some((before, layer, after)) = split_at_layer(name) else { return Some(name.to_owned()) };
        let next = &mut self.next;
        let renumbered = *self.renumbered.entry(layer).or_insert_with(|| {
            if self.layers.contains(&layer) {
                return None;
            }
            let number = if layer < first { layer } else { *next };
            *next = number.saturating_add(1);
            Some(number)
        });
        renumbered.map(|number| format!("{before}{number}{after}"))
    }

    /// Number of layers that stay, as far as names have come by.
    pub(crate) fn n_layers(&self) -> Option<u32> {
        (!self.layers.is_empty()).then_some(self.next)
    }
}

/// Cuts a name around the number of the first `blk.N.` in it.
fn split_at_layer(name: &str) -> Option<(&str, u32, &str)> {
    name.match_indices("blk.").find_map(|(at, prefix)| {
        let start = at + prefix.len();
        let n_digits = name[start..].bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = name[start..].split_at(n_digits);
        let layer = number.parse().ok().filter(|_| after.starts_with('.'))?;
        Some((&name[..start], layer, after))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn renamed(layers: &[u32], names: &[&str]) -> (Vec<Option<String>>, Option<u32>) {
        let layers = layers.iter().copied().collect();
        let mut pruned = Pruned::new(&layers);
        let names = names.iter().map(|name| pruned.rename(name)).collect();
        (names, pruned.n_layers())
    }

    #[test]
    fn later_layers_move_up() {
        let names = ["output.weight", "blk.0.a", "blk.1.a", "blk.1.b", "blk.2.a", "blk.3.a", "blk.4.a"];
        let (names, n_layers) = renamed(&[1, 3], &names);
        let names: Vec<_> = names.iter().map(Option::as_deref).collect();
        let some = Some::<&str>;
        assert_eq!(
            names,
            [some("output.weight"), some("blk.0.a"), None, None, some("blk.1.a"), None, some("blk.2.a")]
        );
        assert_eq!(n_layers, Some(3));
    }

    #[test]
    fn nothing_to_prune() {
        let (names, n_layers) = renamed(&[], &["blk.5.a"]);
        assert_eq!((names[0].as_deref(), n_layers), (Some("blk.5.a"), None));
    }

    #[test]
    fn the_first_layer_and_odd_names() {
        let (names, n_layers) = renamed(&[0], &["blk.x", "blk.0.a", "v.blk.1.a", "blk.99999999999.a"]);
        assert_eq!(names[0].as_deref(), Some("blk.x"));
        assert_eq!((names[1].as_deref(), names[2].as_deref()), (None, Some("v.blk.0.a")));
        assert_eq!((names[3].as_deref(), n_layers), (Some("blk.99999999999.a"), Some(1)));
    }
}

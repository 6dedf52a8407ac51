//! Output of the routing of models with experts.

use std::fmt::Write as _;
use std::io::Write;

use crate::verify::{LayerRouting, RoutingReport};

/// Maximum number of experts that a line names.
const MAX_NAMED: usize = 24;

/// Lists experts by place, up to `most` of them: `layer 3: 7 12; layer 9: 1; and 5 more`.
pub(super) fn named(places: impl Iterator<Item = (String, Vec<usize>)>, most: usize) -> String {
    let mut list = String::new();
    let (mut n_named, mut n_all) = (0, 0);
    for (place, experts) in places.filter(|(_, experts)| !experts.is_empty()) {
        n_all += experts.len();
        let shown: Vec<String> = experts.iter().take(most - n_named).map(ToString::to_string).collect();
        if shown.is_empty() {
            continue;
        }
        n_named += shown.len();
        let _ = write!(list, "{}{place}: {}", if list.is_empty() { "" } else { "; " }, shown.join(" "));
    }
    if n_named < n_all {
        let _ = write!(list, "; and {} more", n_all - n_named);
    }
    list
}

fn place(layer: &LayerRouting) -> String {
    layer.layer.map_or_else(|| layer.router.clone(), |layer| format!("layer {layer}"))
}

/// Formats the size as `24 layers x 64`, or `24 layers, 1408 experts` if layers differ.
fn size(routing: &RoutingReport) -> String {
    let n_layers = routing.layers.len();
    let layers = if n_layers == 1 { "1 layer".to_owned() } else { format!("{n_layers} layers") };
    let mut numbers = routing.layers.iter().map(|layer| layer.n_experts);
    let first = numbers.next().unwrap_or(0);
    if numbers.all(|n| n == first) {
        format!("{layers} x {first}")
    } else {
        format!("{layers}, {} experts", routing.n_experts())
    }
}

/// Returns `24 layers x 64, all reached`, or a list of the experts that were not reached.
pub(super) fn summary(routing: &RoutingReport) -> String {
    let size = size(routing);
    match routing.n_unseen() {
        0 => format!("{size}, all reached"),
        n => {
            let places = routing.layers.iter().map(|layer| (place(layer), layer.unseen.clone()));
            let list = named(places, MAX_NAMED);
            format!("{size}, {n} got no token and are not in the figures: {list}")
        }
    }
}

/// Returns the largest and smallest share of an expert in any layer, and the evenness of the least even layer.
fn spread(routing: &RoutingReport) -> Option<String> {
    let layers = &routing.layers;
    // The first one if several are equal.
    let busiest = layers.iter().rev().max_by(|a, b| a.busiest.total_cmp(&b.busiest))?;
    let least = layers.iter().min_by(|a, b| a.least.total_cmp(&b.least))?;
    let uneven = layers.iter().filter_map(|layer| Some((layer, layer.evenness?)));
    let uneven = uneven.min_by(|a, b| a.1.total_cmp(&b.1));
    let mut text = format!(
        "busiest {:.2} % ({}), least {:.2} % ({})",
        100.0 * busiest.busiest,
        place(busiest),
        100.0 * least.least,
        place(least)
    );
    if let Some((layer, evenness)) = uneven {
        let _ = write!(text, ", evenness at least {evenness:.3} ({})", place(layer));
    }
    Some(text)
}

/// Returns the share of choices that equal the baseline's.
fn agreement(routing: &RoutingReport) -> Option<String> {
    let (all, least) = (routing.agreement()?, routing.least_agreeing()?);
    let own = 100.0 * least.agreement.unwrap_or(1.0);
    Some(format!("{:.2} % of the choices are the baseline's, {own:.2} % in {}", 100.0 * all, place(least)))
}

/// Prints the lines of a report.
pub(super) fn print(routing: &RoutingReport, out: &mut dyn Write) -> std::io::Result<()> {
    writeln!(out, "experts       {}", crate::core::text::escape(&summary(routing)))?;
    for line in spread(routing).into_iter().chain(agreement(routing)) {
        writeln!(out, "              {}", crate::core::text::escape(&line))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(layer: usize, tokens: &[u64], agreement: Option<f64>) -> LayerRouting {
        let routed = tokens.iter().sum::<u64>() / 2;
        let router = format!("blk.{layer}.ffn_gate_inp.weight");
        LayerRouting::new(Some(layer), router, routed, tokens.to_vec(), agreement)
    }

    fn text(layers: Vec<LayerRouting>) -> String {
        let mut out = Vec::new();
        print(&RoutingReport { layers }, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn what_was_reached_stands_first() {
        assert_eq!(
            text(vec![layer(0, &[1, 3], None), layer(1, &[2, 2], None)]),
            "experts       2 layers x 2, all reached\n              \
             busiest 75.00 % (layer 0), least 25.00 % (layer 0), evenness at least 0.811 (layer 0)\n"
        );
        assert_eq!(
            text(vec![layer(3, &[0, 2, 2, 0], Some(0.75)), layer(5, &[2, 2], Some(1.0))]),
            "experts       2 layers, 6 experts, 2 got no token and are not in the figures: layer 3: 0 3\n              \
             busiest 50.00 % (layer 3), least 0.00 % (layer 3), evenness at least 0.500 (layer 3)\n              \
             87.50 % of the choices are the baseline's, 75.00 % in layer 3\n"
        );
    }

    #[test]
    fn a_long_list_ends_in_a_number() {
        let places =
            [("a".to_owned(), vec![1, 2, 3]), ("b".to_owned(), vec![]), ("c".to_owned(), vec![4, 5])];
        assert_eq!(named(places.clone().into_iter(), 9), "a: 1 2 3; c: 4 5");
        assert_eq!(named(places.clone().into_iter(), 4), "a: 1 2 3; c: 4; and 1 more");
        assert_eq!(named(places.into_iter(), 2), "a: 1 2; and 3 more");
    }
}

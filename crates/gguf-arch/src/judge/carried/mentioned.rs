//! Configuration names that decide which tensors exist and how they are converted.

use std::cell::RefCell;
use std::collections::BTreeSet;

use crate::language::expr::{Expr, PathStep};
use crate::read::schema::Card;
use crate::read::visit::each_structural;

/// Returns the names in a card's expressions about tensors, and in the conditions that choose between it and its
/// rivals.
pub(super) fn by_tensors(card: &Card, rivals: &[&Card]) -> BTreeSet<String> {
    let open: RefCell<Vec<String>> = RefCell::default();
    let walk = |expr: &Expr| {
        expr.walk(&mut |expr| {
            let Expr::Path(path) = expr else { return };
            let name = match path.steps.first() {
                Some(PathStep::Field(field)) if path.root == "raw" => field,
                _ => &path.root,
            };
            open.borrow_mut().push(name.clone());
        });
    };
    let visited = each_structural(card, &|_, expr| {
        walk(expr);
        Ok(())
    });
    visited.expect("nothing is refused here");
    // Generated tensors that precede weights.
    for generate in card.generate.iter().filter(|generate| generate.is_fill()) {
        generate.kind.exprs().into_iter().chain(&generate.when).for_each(walk);
    }
    rivals.iter().filter_map(|rival| rival.when.as_ref()).for_each(walk);
    let mut names = BTreeSet::new();
    loop {
        let Some(name) = open.borrow_mut().pop() else { break };
        let is_new = names.insert(name.clone());
        if let Some(definition) = card.lets.get(&name).filter(|_| is_new) {
            walk(definition);
        }
    }
    names
}

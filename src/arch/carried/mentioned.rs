//! Names of the configuration that decide over tensors: which there are, and what happens to them.

use std::cell::RefCell;
use std::collections::BTreeSet;

use crate::arch::check::each_structural;
use crate::arch::expr::{Expr, Step};
use crate::arch::schema::Card;

/// The names that a card's expressions about tensors have, and those that choose between it and its rivals.
pub(super) fn by_tensors(card: &Card, rivals: &[&Card]) -> BTreeSet<String> {
    let open: RefCell<Vec<String>> = RefCell::default();
    let walk = |expr: &Expr| {
        expr.walk(&mut |expr| {
            let Expr::Path(path) = expr else { return };
            let name = match path.steps.first() {
                Some(Step::Field(field)) if path.root == "raw" => field,
                _ => &path.root,
            };
            open.borrow_mut().push(name.clone());
        });
    };
    let visited = each_structural(card, &|_, expr| {
        walk(expr);
        Ok(())
    });
    debug_assert!(visited.is_ok(), "nothing is refused here");
    // Tensors in front of others.
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

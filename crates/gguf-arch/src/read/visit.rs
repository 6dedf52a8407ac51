//! Visits to the expressions of a card.

use std::cell::RefCell;

use crate::error::CardProblem;
use crate::language::expr::Expr;
use crate::language::ops::{OpSpec, Param};
use crate::read::schema::{Card, DefaultValue, MetadataRow, RewriteStep};

type Check<'c> = &'c dyn Fn(&str, &Expr) -> Result<(), CardProblem>;

fn each_row(at: &str, rows: &[MetadataRow], check: Check<'_>) -> Result<(), CardProblem> {
    for row in rows {
        if let MetadataRow::Key { key, value, when } = row {
            let at = format!("{at} `{key}`");
            check(&at, value)?;
            when.iter().try_for_each(|when| check(&at, when))?;
        }
    }
    Ok(())
}

fn each_op(at: &str, ops: &[OpSpec], check: Check<'_>) -> Result<(), CardProblem> {
    for param in ops.iter().flat_map(|op| &op.params) {
        match &param.1 {
            Param::One(expr) => check(at, expr)?,
            Param::Many(items) => items.iter().try_for_each(|expr| check(at, expr))?,
        }
    }
    Ok(())
}

/// As [`each_expr`], restricted to the expressions that decide which tensors exist and how they are converted.
pub(crate) fn each_structural(card: &Card, check: Check<'_>) -> Result<(), CardProblem> {
    for rewrite in &card.rewrite {
        rewrite.when.iter().try_for_each(|expr| check("[names] `rewrite`", expr))?;
        if let RewriteStep::Shift(_, _, by) = &rewrite.step {
            check("[names] `rewrite`", by)?;
        }
    }
    for entry in &card.entries {
        let at = format!("`{}`", entry.name());
        let conditions = [&entry.n, &entry.bid, &entry.repeat, &entry.when];
        conditions.into_iter().flatten().try_for_each(|expr| check(&at, expr))?;
        each_op(&at, &entry.pre, check)?;
        each_op(&at, &entry.ops, check)?;
        entry.targets.iter().try_for_each(|target| each_op(&at, &target.ops, check))?;
    }
    for ignore in &card.ignore {
        ignore.when.iter().try_for_each(|expr| check(&format!("[ignore] `{}`", ignore.pattern), expr))?;
    }
    card.require.iter().try_for_each(|rule| check("`require`", &rule.0))?;
    card.differs.iter().try_for_each(|rule| check("`differs`", &rule.0))
}

/// Calls `check` for every expression of the card, with its place in the card.
pub(crate) fn each_expr(card: &Card, check: Check<'_>) -> Result<(), CardProblem> {
    card.when.iter().try_for_each(|expr| check("`when`", expr))?;
    card.set.iter().try_for_each(|set| check("`set`", &set.1))?;
    card.metadata_set.iter().try_for_each(|set| check("`metadata_set`", &set.1))?;
    each_row("early", &card.early, check)?;
    each_row("metadata", &card.metadata, check)?;
    each_row("annotate", &card.annotate, check)?;
    for (name, expr) in &card.lets {
        check(&format!("[let] `{name}`"), expr)?;
    }
    for (model_type, defaults) in &card.defaults {
        for (key, default) in defaults {
            for value in [Some(&default.value), default.null.as_ref()].into_iter().flatten() {
                if let DefaultValue::Expr(expr) = value {
                    check(&format!("[defaults.{model_type}] `{key}`"), expr)?;
                }
            }
        }
    }
    each_structural(card, check)?;
    for generate in &card.generate {
        generate.when.iter().try_for_each(|expr| check("`generate`", expr))?;
        generate.kind.exprs().into_iter().try_for_each(|expr| check("`generate`", expr))?;
    }
    for (name, rule) in &card.inverse {
        check(&format!("[inverse] `{name}`"), &rule.value)?;
    }
    for (name, values) in &card.assumes {
        values.iter().try_for_each(|value| check(&format!("[assumes] `{name}`"), value))?;
    }
    let tokenizer = &card.tokenizer;
    let sizes = [&tokenizer.size, &tokenizer.token_type_count];
    sizes.into_iter().flatten().try_for_each(|expr| check("[tokenizer]", expr))?;
    each_row("[tokenizer]", &tokenizer.before, check)?;
    each_row("[tokenizer]", &tokenizer.after, check)?;
    for mode in &tokenizer.modes {
        mode.when.iter().try_for_each(|expr| check("[tokenizer] `try`", expr))?;
        each_row("[tokenizer]", &mode.after, check)?;
    }
    Ok(())
}

/// Visits all expressions of a card, including nested ones.
pub(crate) fn walk(card: &Card, visit: &mut dyn FnMut(&Expr)) {
    let visit = RefCell::new(visit);
    let walked = each_expr(card, &|_, expr| {
        expr.walk(&mut **visit.borrow_mut());
        Ok(())
    });
    walked.expect("nothing is refused here");
}

/// Returns true if an expression of the card refers to a configuration key.
pub(crate) fn mentions(card: &Card, key: &str) -> bool {
    let mut found = false;
    walk(card, &mut |expr| found |= matches!(expr, Expr::Path(path) if path.root == key));
    found
}

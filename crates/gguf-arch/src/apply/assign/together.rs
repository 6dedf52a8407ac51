//! Tensors that a model has only together: those of a block that are stored all or not at all, for every card, and those
//! that a card requires by a condition.

use crate::Result;
use std::collections::{BTreeSet, HashSet};

use super::Assigner;
use crate::error::ArchError;
use crate::language::names::{Captures, SUFFIXES};
use crate::mapping::OutputSpec;
use crate::read::base;
use crate::read::fusion::Fusion;
use crate::read::schema::{CardKind, Required};

const BLOCK: &str = "blk.";
const NORM: &str = "_norm";

impl Assigner<'_> {
    /// Returns true if a row of `[required]` applies to a block.
    pub(super) fn is_due(
        &self,
        required: &Required,
        captures: Captures,
        present: &HashSet<&str>,
    ) -> Result<bool> {
        let with = required.with.as_ref().and_then(|with| with.render(captures));
        let has_its = with.is_none_or(|with| present.contains(with.as_str()));
        Ok(has_its && self.holds(required.target.text(), required.when.as_ref(), captures)?)
    }

    /// Checks that no matrix stays that the file has in one tensor with others only.
    pub(super) fn check_joined(outputs: &[OutputSpec]) -> Result<()> {
        let fusion = Fusion::GateUpExps;
        let alone = |output: &OutputSpec| {
            let (block, kind) = block_and_kind(&output.name)?;
            fusion.joined(kind)?;
            let others = fusion.names().0.iter().filter(|part| !kind.starts_with(**part));
            let lacks = others.map(|part| format!("{block}{part}{}", SUFFIXES[0])).collect();
            Some(ArchError::Alone { has: output.name.clone(), lacks })
        };
        outputs.iter().find_map(alone).map_or(Ok(()), Err)
    }

    /// Checks that blocks have all or none of the tensors that go together. Towers are judged by their cards alone: keys of
    /// Whisper have no bias.
    pub(super) fn check_together(&self, present: &HashSet<&str>) -> Result<()> {
        if self.card.kind != CardKind::Text {
            return Ok(());
        }
        let rows: Vec<Vec<&str>> = base().together.iter().map(|row| row.split(' ').collect()).collect();
        let names: BTreeSet<&str> = present.iter().copied().collect();
        for name in names {
            let Some((block, kind)) = block_and_kind(name) else { continue };
            let Some(row) = rows.iter().find(|row| row.contains(&kind)) else { continue };
            let lacks = |other: &&&str| {
                let (other, owner) = (format!("{block}{other}"), format!("{block}{}", owner(other)));
                !present.contains(other.as_str()) && present.contains(owner.as_str())
            };
            let lacks = row.iter().filter(lacks).map(|other| format!("{block}{other}"));
            // A target that the card does not have is no part of the architecture.
            let lacks = lacks.map(|target| (self.card.source_of(&target), target));
            let lacks: Vec<String> =
                lacks.filter(|(source, target)| source != target).map(|row| self.as_stored(row.0)).collect();
            if !lacks.is_empty() {
                let has = self.as_stored(self.card.source_of(name));
                return Err(ArchError::Alone { has, lacks });
            }
        }
        Ok(())
    }
}

/// Splits the name of a block's tensor behind the block's number.
fn block_and_kind(name: &str) -> Option<(&str, &str)> {
    let number = name.find(BLOCK)? + BLOCK.len();
    let kind = number + name.get(number..)?.find('.')? + 1;
    Some((name.get(..kind)?, name.get(kind..)?))
}

/// Returns the tensor that a bias or the norm of a projection belongs to.
fn owner(kind: &str) -> String {
    let [weight, bias, ..] = SUFFIXES;
    let stem = kind.strip_suffix(bias).or_else(|| kind.strip_suffix(weight)?.strip_suffix(NORM));
    stem.map_or_else(|| kind.to_owned(), |stem| format!("{stem}{weight}"))
}

//! Report of what happened to the integers of a quantized checkpoint, for people and as JSON.

use serde_json::json;

use crate::cli::Session;
use crate::cli::render::{Align, Table};
use crate::convert::{Conversion, FloatRole, KeptRole};
use crate::core::text::escape;

/// Integer codes of a quantized checkpoint that were kept, and those that became floats.
#[derive(Default)]
pub(super) struct CodesReport {
    kept: Vec<KeptRole>,
    floats: Vec<FloatRole>,
}

impl CodesReport {
    pub(super) fn of(conversion: &Conversion) -> Self {
        Self { kept: conversion.kept(), floats: conversion.floats() }
    }

    pub(super) fn kept_json(&self) -> Vec<serde_json::Value> {
        let row = |kept: &KeptRole| {
            json!({
                "role": kept.role, "type": kept.ty.name(), "tensors": kept.n_tensors,
                "scale_error": kept.scale_error,
            })
        };
        self.kept.iter().map(row).collect()
    }

    pub(super) fn floats_json(&self) -> Vec<serde_json::Value> {
        let row = |row: &FloatRole| {
            json!({
                "role": row.role, "tensors": row.n_tensors, "reason": row.reason.to_string(),
            })
        };
        self.floats.iter().map(row).collect()
    }

    /// Prints the codes that are kept with their cost, and those that become floats with the reason.
    pub(super) fn print(&self, session: &Session) -> anyhow::Result<()> {
        if session.common.quiet || session.common.json {
            return Ok(());
        }
        if !self.kept.is_empty() {
            let mut table = Table::new(&[
                ("integers kept", Align::Left),
                ("type", Align::Left),
                ("tensors", Align::Right),
                ("largest error of a scale", Align::Right),
            ]);
            for kept in &self.kept {
                let error = match kept.scale_error {
                    0.0 => "exact".to_owned(),
                    error => format!("{error:.1e}"),
                };
                let role = escape(&kept.role).into_owned();
                table.row([role, kept.ty.to_string(), kept.n_tensors.to_string(), error]);
            }
            session.print(|out| table.print(out))?;
        }
        if !self.floats.is_empty() {
            let mut table = Table::new(&[
                ("through floats", Align::Left),
                ("tensors", Align::Right),
                ("reason", Align::Left),
            ]);
            for row in &self.floats {
                let role = escape(&row.role).into_owned();
                table.row([role, row.n_tensors.to_string(), row.reason.to_string()]);
            }
            session.print(|out| table.print(out))?;
        }
        Ok(())
    }
}

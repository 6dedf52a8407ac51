//! Output of the fate of a quantized checkpoint's integers.

use crate::cli::Session;
use crate::cli::render::{Align, Table};
use crate::core::text::escape;
use crate::job::IntegerCodes;

/// Prints the codes that are kept with their cost, and those that become floats with the reason.
pub(super) fn print(session: &Session, codes: &IntegerCodes) -> anyhow::Result<()> {
    if session.common.quiet || session.common.json {
        return Ok(());
    }
    if !codes.kept.is_empty() {
        let mut table = Table::new(&[
            ("integers kept", Align::Left),
            ("type", Align::Left),
            ("tensors", Align::Right),
            ("largest error of a scale", Align::Right),
        ]);
        for kept in &codes.kept {
            let error = match kept.scale_error {
                0.0 => "exact".to_owned(),
                error => format!("{error:.1e}"),
            };
            let role = escape(&kept.role).into_owned();
            table.row([role, kept.ty.to_string(), kept.n_tensors.to_string(), error]);
        }
        session.print(|out| table.print(out))?;
    }
    if !codes.floats.is_empty() {
        let mut table = Table::new(&[
            ("through floats", Align::Left),
            ("tensors", Align::Right),
            ("reason", Align::Left),
        ]);
        for row in &codes.floats {
            let role = escape(&row.role).into_owned();
            table.row([role, row.n_tensors.to_string(), row.reason.to_string()]);
        }
        session.print(|out| table.print(out))?;
    }
    Ok(())
}

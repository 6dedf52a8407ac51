//! Check of the values of well-known keys: their types, lengths and numbers.

use crate::checks::input::{CheckedFile, FileContent};
use crate::{Check, Finding};
use gguf_format::key_faults::key_faults;
use gguf_format::number_faults::number_faults;
use gguf_format::{KeyFault, Metadata};

/// Reports numbers that contradict one another, and well-known keys of another type or length than their readers
/// expect.
pub(super) fn check(file: &CheckedFile<'_>) -> Vec<Finding> {
    let mut findings = match file.content {
        FileContent::Model | FileContent::Towers => {
            let wrong = number_faults(file.metadata);
            wrong.iter().map(|fault| Finding::error(Check::Keys, fault.to_string())).collect()
        }
        _ => Vec::new(),
    };
    findings.extend(faults(file.metadata));
    findings
}

fn faults(metadata: &Metadata) -> Vec<Finding> {
    const CHECK: Check = Check::Keys;
    let finding = |fault: KeyFault| match fault {
        fault if !fault.is_fatal() => Finding::warning(CHECK, fault.to_string()),
        KeyFault::Type { .. } => Finding::error(CHECK, format!("{fault}: llama.cpp refuses the file")),
        KeyFault::Length { .. } => Finding::error(CHECK, fault.to_string()),
    };
    // Older quantizers wrote their numbers as signed integers.
    let is_told = |fault: &KeyFault| fault.is_fatal() || !fault.is_of_width();
    key_faults(metadata).into_iter().filter(is_told).map(finding).collect()
}

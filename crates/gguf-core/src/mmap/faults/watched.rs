//! Data of the handler: lists that grow at their end and can be read at any time.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};

use super::Watch;
use crate::sync::Unpoisoned;

/// True once a program has asked for the handler. Before that nothing is registered.
pub(super) static IS_INSTALLED: AtomicBool = AtomicBool::new(false);

/// A list that grows at its end and can be read at any time.
pub(super) struct AppendList<T: 'static> {
    first: OnceLock<&'static ListNode<T>>,
    last: Mutex<Option<&'static ListNode<T>>>,
}

pub(super) struct ListNode<T: 'static> {
    value: T,
    is_past: AtomicBool,
    next: OnceLock<&'static Self>,
}

impl<T> AppendList<T> {
    const fn new() -> Self {
        Self { first: OnceLock::new(), last: Mutex::new(None) }
    }

    fn push(&self, value: T) -> &'static ListNode<T> {
        let node: &ListNode<T> =
            Box::leak(Box::new(ListNode { value, is_past: AtomicBool::new(false), next: OnceLock::new() }));
        let mut last = self.last.lock().unpoisoned();
        let _ = last.map_or(&self.first, |last| &last.next).set(node);
        *last = Some(node);
        node
    }

    /// Iterates over the entries that are not past. Never waits or allocates.
    pub(super) fn each(&self) -> impl Iterator<Item = &'static T> {
        let mut next = self.first.get().copied();
        std::iter::from_fn(move || {
            let node = next?;
            next = node.next.get().copied();
            Some(node)
        })
        .filter(|node| !node.is_past.load(Ordering::Acquire))
        .map(|node| &node.value)
    }
}

/// A mapped range and the messages for a fault in it.
pub(super) struct MappedRange {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) text: Vec<u8>,
    pub(super) json: Vec<u8>,
}

pub(super) static MAPPED: AppendList<MappedRange> = AppendList::new();
pub(super) static TEMPORARY: AppendList<std::ffi::CString> = AppendList::new();

/// Registers a mapping of a file.
pub(super) fn mapped(path: &Path, bytes: &[u8]) -> Watch {
    if !IS_INSTALLED.load(Ordering::Relaxed) || bytes.is_empty() {
        return Watch(None);
    }
    let start = bytes.as_ptr() as usize;
    let (text, json) = words(path);
    // The last page is mapped as a whole.
    let page_bytes = rustix::param::page_size();
    let end = start.saturating_add(bytes.len()).div_ceil(page_bytes).saturating_mul(page_bytes);
    Watch(Some(&MAPPED.push(MappedRange { start, end, text, json }).is_past))
}

/// Registers a temporary file or a directory of such files.
pub(super) fn temporary(path: &Path) -> Watch {
    if !IS_INSTALLED.load(Ordering::Relaxed) {
        return Watch(None);
    }
    // The working directory may have changed by then.
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes());
    Watch(name.ok().map(|name| &TEMPORARY.push(name).is_past))
}

/// Returns the failure message as text and as JSON.
fn words(path: &Path) -> (Vec<u8>, Vec<u8>) {
    const WHAT: &str = "the file was cut short while it was read";
    const HINT: &str = "another program writes to it: try again when it is done, or read a copy";
    let path = path.to_string_lossy();
    let shown = crate::text::escape(&path);
    let text = format!("error: {shown}: {WHAT}\n\nhint: {HINT}\n");
    let quoted = shown.replace('\\', "\\\\").replace('"', "\\\"");
    let json = format!(
        "{{\n  \"error\": {{\n    \"message\": \"{quoted}: {WHAT}\",\n    \"hints\": [\n      \"{HINT}\"\n    ],\n    \
         \"exit_code\": 1\n  }}\n}}\n"
    );
    (text.into_bytes(), json.into_bytes())
}

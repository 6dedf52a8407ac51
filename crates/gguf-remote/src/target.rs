//! Target of requests: an address, and the facts that responses have given about its file.

use crate::Result;
use std::fmt;
use std::sync::Mutex;

use ureq::http::{HeaderMap, StatusCode};
use url::Url;

use crate::address::shown;
use crate::error::RemoteError;
use crate::exchange::text_of;
use gguf_core::sync::Unpoisoned;
use gguf_core::text::escape;

/// An address, its last redirect, and the state of the file that was found.
#[derive(Debug)]
pub(super) struct RequestTarget {
    url: Url,
    state: Mutex<TargetState>,
}

/// Facts from responses about a file.
#[derive(Default)]
pub(super) struct TargetState {
    /// Target of the last redirect; such addresses are signed and valid for some minutes.
    pub(super) resolved: Option<Url>,
    /// Version tag of the file in the first response.
    tag: Option<String>,
    /// Length of the file in bytes.
    pub(super) n_bytes: Option<u64>,
}

impl fmt::Debug for TargetState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TargetState")
            .field("tag", &self.tag)
            .field("n_bytes", &self.n_bytes)
            .finish_non_exhaustive()
    }
}

impl RequestTarget {
    /// Creates a target with a fixed address; the length may be unknown.
    pub(super) fn new(url: Url, n_bytes: Option<u64>) -> Self {
        Self { url, state: Mutex::new(TargetState { n_bytes, ..TargetState::default() }) }
    }

    /// Version tag of the file, if a response had one.
    pub(super) fn tag(&self) -> Option<String> {
        self.state().tag.clone()
    }

    /// Address to request.
    pub(super) fn url(&self) -> Url {
        self.url.clone()
    }

    /// Address for messages.
    pub(super) fn shown(&self) -> String {
        shown(&self.url)
    }

    /// Facts known so far.
    pub(super) fn state(&self) -> std::sync::MutexGuard<'_, TargetState> {
        self.state.lock().unpoisoned()
    }

    /// Checks that the facts in a response agree with those of earlier responses. A refusal (416) need not have a tag.
    pub(super) fn check(&self, headers: &HeaderMap, status: StatusCode, total: Option<u64>) -> Result<()> {
        let mut state = self.state();
        let changed = |what, expected: String, found: String| RemoteError::Changed {
            url: self.shown(),
            what,
            expected: escape(&expected).into_owned(),
            found: escape(&found).into_owned(),
        };
        if let Some(found) = total
            && let Some(expected) = state.n_bytes.replace(found)
            && expected != found
        {
            return Err(changed("its length", expected.to_string(), found.to_string()));
        }
        // A weak tag is as good as a strong one here: answers that are compressed in transfer are refused.
        let tag = text_of(headers, "etag").map(|tag| tag.trim_start_matches("W/").to_owned());
        match (tag.or_else(|| text_of(headers, "last-modified").map(str::to_owned)), &state.tag) {
            (Some(found), Some(expected)) if *expected != found => {
                Err(changed("its tag", expected.clone(), found))
            }
            (None, Some(expected)) if status.is_success() => {
                Err(changed("its tag", expected.clone(), "none".to_owned()))
            }
            (Some(found), None) => {
                state.tag = Some(found);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

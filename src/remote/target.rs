//! What is asked for: an address, and what the answers so far have said of the file that it leads to.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use ureq::http::HeaderMap;
use url::Url;

use crate::core::text::escape;
use crate::remote::address::shown;
use crate::remote::error::RemoteError;
use crate::remote::exchange::text_of;

/// What is asked for: an address, where it led the last time, and which file was found there.
#[derive(Debug)]
pub(super) struct Target {
    way: Way,
    state: Mutex<State>,
}

/// How an address is come by.
enum Way {
    Fixed(Url),
    /// It is signed anew each time.
    Signed(Box<dyn Fn() -> Url + Send + Sync>),
}

impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown(&self.url()))
    }
}

impl Way {
    fn url(&self) -> Url {
        match self {
            Self::Fixed(url) => url.clone(),
            Self::Signed(sign) => sign(),
        }
    }
}

/// What answers have said of a file.
#[derive(Default)]
pub(super) struct State {
    /// Where the last redirect led to; such addresses are signed, good for some minutes.
    pub(super) resolved: Option<Url>,
    /// What the first answer called this state of the file.
    tag: Option<String>,
    /// Its length.
    pub(super) n_bytes: Option<u64>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("tag", &self.tag)
            .field("n_bytes", &self.n_bytes)
            .finish_non_exhaustive()
    }
}

impl Target {
    /// A file of known or unknown length.
    pub(super) fn new(url: Url, n_bytes: Option<u64>) -> Self {
        Self { way: Way::Fixed(url), state: Mutex::new(State { n_bytes, ..State::default() }) }
    }

    /// The same at an address that is signed for each request.
    pub(super) fn signed(
        sign: impl Fn() -> Url + Send + Sync + 'static,
        n_bytes: Option<u64>,
        tag: Option<String>,
    ) -> Self {
        let state = State { n_bytes, tag, resolved: None };
        Self { way: Way::Signed(Box::new(sign)), state: Mutex::new(state) }
    }

    /// What the server called this state of the file, if it has been asked and has a name for it.
    pub(super) fn tag(&self) -> Option<String> {
        self.state().tag.clone()
    }

    /// The address to ask at.
    pub(super) fn url(&self) -> Url {
        self.way.url()
    }

    /// The address for messages.
    pub(super) fn shown(&self) -> String {
        shown(&self.way.url())
    }

    /// What is known of it by now.
    pub(super) fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds what an answer says about its file against what the answers before it said.
    ///
    /// # Errors
    /// [`RemoteError::Changed`].
    pub(super) fn check(&self, headers: &HeaderMap, total: Option<u64>) -> Result<(), RemoteError> {
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
        // A weak tag says as much as a strong one here: nothing is compressed on the way.
        let tag = text_of(headers, "etag").map(|tag| tag.trim_start_matches("W/").to_owned());
        if let Some(found) = tag.or_else(|| text_of(headers, "last-modified").map(str::to_owned))
            && let Some(expected) = state.tag.replace(found.clone())
            && expected != found
        {
            return Err(changed("its tag", expected, found));
        }
        Ok(())
    }
}

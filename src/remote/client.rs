//! Requests: who may see the token, what is tried again, and whether an answer is the one that was asked for.

use std::fmt;
use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ureq::http::{HeaderMap, Response, StatusCode};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body};
use url::{Host, Origin, Url};

use crate::core::text::escape;
use crate::remote::address::shown;
use crate::remote::error::{RemoteError, TokenUse};
use crate::remote::tls;

/// Attempts before any answer has come: an address that nobody has is not waited for.
const FIRST_ATTEMPTS: u32 = 4;
/// Redirects in a row that are followed.
const MAX_REDIRECTS: usize = 8;

/// How long a server is waited for.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Attempts in a row that bring nothing, before the run ends.
    pub attempts: u32,
    /// Pause after the first of them; it doubles each time.
    pub first_pause: Duration,
    /// The longest pause; a server may ask for one up to this (`Retry-After`).
    pub longest_pause: Duration,
    /// Silence after which a connection counts as cut.
    pub silence: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            attempts: 8,
            first_pause: Duration::from_millis(500),
            longest_pause: Duration::from_mins(1),
            silence: Duration::from_mins(1),
        }
    }
}

/// A token, and the only place where it goes.
#[derive(Clone)]
pub(super) struct Token {
    pub(super) text: String,
    pub(super) origin: Origin,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("origin", &self.origin).finish_non_exhaustive()
    }
}

impl Token {
    /// Whether the token may be sent there: to its own server alone, and not in the clear over a network.
    fn may_go_to(&self, url: &Url) -> bool {
        let is_loopback = match url.host() {
            Some(Host::Domain(name)) => name == "localhost",
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            None => false,
        };
        url.origin() == self.origin && (url.scheme() == "https" || is_loopback)
    }
}

/// Asks servers.
pub(super) struct Client {
    agent: Agent,
    token: Option<Token>,
    patience: Patience,
    is_cancelled: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Somebody has answered.
    is_answered: AtomicBool,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("token", &self.token)
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

/// What is asked for: an address, where it led the last time, and which file was found there.
#[derive(Debug)]
pub(super) struct Target {
    address: Address,
    state: Mutex<State>,
}

/// How an address is made.
enum Address {
    Fixed(Url),
    /// It is signed anew each time.
    Signed(Box<dyn Fn() -> Url + Send + Sync>),
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown(&self.url()))
    }
}

impl Address {
    fn url(&self) -> Url {
        match self {
            Self::Fixed(url) => url.clone(),
            Self::Signed(sign) => sign(),
        }
    }
}

#[derive(Default)]
struct State {
    /// Where the last redirect led to; such addresses are signed, good for some minutes.
    resolved: Option<Url>,
    /// What the first answer said about the file.
    etag: Option<String>,
    /// Its length.
    n_bytes: Option<u64>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("etag", &self.etag)
            .field("n_bytes", &self.n_bytes)
            .finish_non_exhaustive()
    }
}

impl Target {
    /// A file of known or unknown length.
    pub(super) fn new(url: Url, n_bytes: Option<u64>) -> Self {
        Self { address: Address::Fixed(url), state: Mutex::new(State { n_bytes, ..State::default() }) }
    }

    /// The same at an address that is signed for each request.
    pub(super) fn signed(
        sign: impl Fn() -> Url + Send + Sync + 'static,
        n_bytes: Option<u64>,
        etag: Option<String>,
    ) -> Self {
        let state = State { n_bytes, etag, resolved: None };
        Self { address: Address::Signed(Box::new(sign)), state: Mutex::new(state) }
    }

    /// What the server called this state of the file, if it has been asked.
    pub(super) fn etag(&self) -> Option<String> {
        self.state().etag.clone()
    }

    /// The address for messages.
    pub(super) fn shown(&self) -> String {
        shown(&self.address.url())
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds what an answer says about its file against what the answers before it said.
    fn check(&self, headers: &HeaderMap, total: Option<u64>) -> Result<(), RemoteError> {
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
        if let Some(found) = tag
            && let Some(expected) = state.etag.replace(found.clone())
            && expected != found
        {
            return Err(changed("its tag", expected, found));
        }
        Ok(())
    }
}

/// Why an attempt brought less than was asked for.
enum Failure {
    /// Another attempt may do better; no earlier than the server says.
    Passing { error: RemoteError, pause: Option<Duration> },
    /// No other attempt will.
    Lasting(RemoteError),
}

impl From<RemoteError> for Failure {
    fn from(error: RemoteError) -> Self {
        Self::Lasting(error)
    }
}

impl Client {
    /// A client with a token that it may show to one server.
    ///
    /// # Errors
    /// A processor without the instructions of the encryption; certificates that cannot be read.
    pub(super) fn new(
        token: Option<Token>,
        patience: Patience,
        is_cancelled: Arc<dyn Fn() -> bool + Send + Sync>,
    ) -> Result<Self, RemoteError> {
        let roots = tls::roots()?.map_or(RootCerts::WebPki, RootCerts::Specific);
        let tls = tls::with_primitives(TlsConfig::builder().root_certs(roots)).build();
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .tls_config(tls)
            .user_agent(concat!("gguf-foundry/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .timeout_connect(Some(patience.silence.min(Duration::from_secs(20))))
            .timeout_recv_response(Some(patience.silence))
            .timeout_per_read(Some(patience.silence))
            .max_idle_connections_per_host(16)
            .build();
        Ok(Self {
            agent: config.new_agent(),
            token,
            patience,
            is_cancelled,
            is_answered: AtomicBool::new(false),
        })
    }

    /// True once the user wants to stop.
    pub(super) fn is_cancelled(&self) -> bool {
        (self.is_cancelled)()
    }

    /// The length of a file, asked for if it is not known; `None` if there is no such file.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub(super) fn n_bytes(&self, target: &Target) -> Result<Option<u64>, RemoteError> {
        if let Some(n_bytes) = target.state().n_bytes {
            return Ok(Some(n_bytes));
        }
        let asked = self.persist(target, |target| {
            let (url, response) = self.ask(target, Some((0, 1)))?;
            let total = match response.status() {
                StatusCode::PARTIAL_CONTENT => content_range(response.headers()).and_then(|range| range.2),
                // An empty file has no first byte.
                StatusCode::RANGE_NOT_SATISFIABLE => Some(0),
                _ => content_length(response.headers()),
            };
            let missing =
                || RemoteError::Listing { url: shown(&url), reason: "the server tells no length".to_owned() };
            target.check(response.headers(), Some(total.ok_or_else(missing)?))?;
            Ok(())
        });
        match asked {
            Ok(()) => Ok(target.state().n_bytes),
            Err(RemoteError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Fills `out` with the bytes of a file from `offset` on. A transfer that breaks off goes on where it broke.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub(super) fn read(&self, target: &Target, offset: u64, out: &mut [u8]) -> Result<(), RemoteError> {
        self.read_past(target, offset, 0, out)
    }

    /// The same of a server that may send whole files only: up to `most_skipped` bytes before those that are wanted are
    /// fetched, too, and thrown away.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub(super) fn read_past(
        &self,
        target: &Target,
        offset: u64,
        most_skipped: u64,
        out: &mut [u8],
    ) -> Result<(), RemoteError> {
        let mut done = 0;
        let mut attempts = 0;
        while done < out.len() {
            let before = done;
            match self.read_some(target, offset + done as u64, most_skipped, &mut out[done..], &mut done) {
                Ok(()) => {}
                Err(failure) => {
                    // What still moves is given all the time it needs.
                    attempts = if done > before { 0 } else { attempts };
                    self.pause(failure, &mut attempts)?;
                }
            }
        }
        Ok(())
    }

    /// One attempt of [`Client::read`]; `done` grows by what came.
    fn read_some(
        &self,
        target: &Target,
        offset: u64,
        most_skipped: u64,
        out: &mut [u8],
        done: &mut usize,
    ) -> Result<(), Failure> {
        let mut n_skipped = 0;
        let n_bytes = out.len() as u64;
        let whole = offset == 0 && target.state().n_bytes == Some(n_bytes);
        let (url, mut response) = self.ask(target, (!whole).then_some((offset, n_bytes)))?;
        let url = shown(&url);
        let take = match response.status() {
            StatusCode::PARTIAL_CONTENT => {
                let Some((first, last, total)) = content_range(response.headers()) else {
                    return Err(RemoteError::NoRanges { url }.into());
                };
                target.check(response.headers(), total)?;
                if first != offset || last < first || last - first >= n_bytes {
                    return Err(RemoteError::NoRanges { url }.into());
                }
                last - first + 1
            }
            StatusCode::RANGE_NOT_SATISFIABLE => {
                target
                    .check(response.headers(), content_range(response.headers()).and_then(|range| range.2))?;
                return Err(RemoteError::NoRanges { url }.into());
            }
            _ if whole => {
                target.check(response.headers(), content_length(response.headers()))?;
                n_bytes
            }
            _ if offset.saturating_add(n_bytes) <= most_skipped => {
                target.check(response.headers(), content_length(response.headers()))?;
                n_skipped = offset;
                n_bytes
            }
            _ => return Err(RemoteError::NoRanges { url }.into()),
        };
        let out = &mut out[..take as usize];
        let mut body = response.body_mut().as_reader();
        let mut unused = [0; 8 << 10];
        while n_skipped > 0 {
            if self.is_cancelled() {
                return Err(RemoteError::Cancelled.into());
            }
            let most = n_skipped.min(unused.len() as u64) as usize;
            match body.read(&mut unused[..most]) {
                Ok(0) => return Err(broken(url, "the connection was cut".to_owned())),
                Ok(n) => n_skipped -= n as u64,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(broken(url, error.to_string())),
            }
        }
        let mut filled = 0;
        while filled < out.len() {
            if self.is_cancelled() {
                return Err(RemoteError::Cancelled.into());
            }
            match body.read(&mut out[filled..]) {
                Ok(0) => return Err(broken(url, "the connection was cut".to_owned())),
                Ok(n) => {
                    filled += n;
                    *done += n;
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(broken(url, error.to_string())),
            }
        }
        // Read to its end, a connection serves the next request too.
        let _ = body.read(&mut [0]);
        Ok(())
    }

    /// A text of bounded length, with the headers of the answer; `None` if there is no such thing.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub(super) fn text(
        &self,
        target: &Target,
        limit: u64,
    ) -> Result<Option<(HeaderMap, Vec<u8>)>, RemoteError> {
        let got = self.persist(target, |target| {
            let (url, mut response) = self.ask(target, None)?;
            let mut bytes = Vec::new();
            let expected = content_length(response.headers());
            let headers = response.headers().clone();
            let mut body = response.body_mut().as_reader().take(limit.saturating_add(1));
            body.read_to_end(&mut bytes).map_err(|error| broken(shown(&url), error.to_string()))?;
            let found = bytes.len() as u64;
            if found > limit {
                return Err(RemoteError::TooMuch {
                    url: shown(&url),
                    what: "bytes of an answer",
                    found,
                    limit,
                }
                .into());
            }
            if expected.is_some_and(|expected| found < expected) {
                return Err(broken(shown(&url), "the connection was cut".to_owned()));
            }
            Ok((headers, bytes))
        });
        match got {
            Ok(got) => Ok(Some(got)),
            Err(RemoteError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Tries until it works, or patience is at its end.
    fn persist<T>(
        &self,
        target: &Target,
        attempt: impl Fn(&Target) -> Result<T, Failure>,
    ) -> Result<T, RemoteError> {
        let mut attempts = 0;
        loop {
            match attempt(target) {
                Ok(got) => return Ok(got),
                Err(failure) => self.pause(failure, &mut attempts)?,
            }
        }
    }

    /// Waits after a failure that may pass.
    fn pause(&self, failure: Failure, attempts: &mut u32) -> Result<(), RemoteError> {
        let (error, asked) = match failure {
            Failure::Lasting(error) => return Err(error),
            Failure::Passing { error, pause } => (error, pause),
        };
        *attempts += 1;
        let is_answered = self.is_answered.load(Ordering::Relaxed);
        let most = if is_answered { u32::MAX } else { FIRST_ATTEMPTS };
        if *attempts >= self.patience.attempts.min(most) {
            return Err(match error {
                RemoteError::Status { url, status, .. } => {
                    RemoteError::Status { url, status, attempts: *attempts }
                }
                RemoteError::Connection { url, reason, .. } => {
                    RemoteError::Connection { url, reason, attempts: *attempts }
                }
                error => error,
            });
        }
        log::info!("{error}: trying again");
        let doubled = self.patience.first_pause.saturating_mul(1 << (*attempts - 1).min(16));
        let pause = asked.unwrap_or(Duration::ZERO).max(jittered(doubled)).min(self.patience.longest_pause);
        let end = Instant::now() + pause;
        while Instant::now() < end {
            if self.is_cancelled() {
                return Err(RemoteError::Cancelled);
            }
            std::thread::sleep(Duration::from_millis(50).min(end.saturating_duration_since(Instant::now())));
        }
        Ok(())
    }

    /// One request, redirects followed. An answer that comes back is 200, 206 or 416.
    fn ask(&self, target: &Target, range: Option<(u64, u64)>) -> Result<(Url, Response<Body>), Failure> {
        if self.is_cancelled() {
            return Err(RemoteError::Cancelled.into());
        }
        let resolved = target.state().resolved.clone();
        let own = target.address.url();
        let mut url = resolved.unwrap_or_else(|| own.clone());
        let mut token = match target.address {
            Address::Fixed(_) => TokenUse::None,
            Address::Signed(_) => TokenUse::Keys,
        };
        for _ in 0..=MAX_REDIRECTS {
            if url.scheme() == "https" {
                tls::check_processor()?;
            }
            let mut request = self.agent.get(url.as_str());
            if let Some((offset, n_bytes)) = range {
                request = request.header("range", format!("bytes={offset}-{}", offset + n_bytes.max(1) - 1));
            }
            if let Some(secret) = &self.token {
                token = TokenUse::Withheld;
                if secret.may_go_to(&url) {
                    request = request.header("authorization", format!("Bearer {}", secret.text));
                    token = TokenUse::Sent;
                }
            }
            let response = request.call().map_err(|error| failed(&url, &error))?;
            self.is_answered.store(true, Ordering::Relaxed);
            if let Some(next) = redirect(&url, &response)? {
                // What is asked of the own server under another name is not kept.
                if next.origin() != url.origin() {
                    target.state().resolved = Some(next.clone());
                }
                url = next;
                continue;
            }
            return match response.status() {
                StatusCode::OK | StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => {
                    Ok((url, response))
                }
                // The signature of an address has run out: the way to it is asked for again.
                status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::GONE)
                    if url.origin() != own.origin() =>
                {
                    target.state().resolved.take_if(|resolved| *resolved == url);
                    Err(match refused(&url, status, response.headers(), token) {
                        Failure::Lasting(error) => Failure::Passing { error, pause: None },
                        passing @ Failure::Passing { .. } => passing,
                    })
                }
                status => Err(refused(&url, status, response.headers(), token)),
            };
        }
        Err(RemoteError::Redirect { url: target.shown(), reason: "redirected in circles" }.into())
    }
}

/// Where an answer sends us.
fn redirect(url: &Url, response: &Response<Body>) -> Result<Option<Url>, RemoteError> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let fail = |reason| RemoteError::Redirect { url: shown(url), reason };
    let location = text_of(response.headers(), "location").ok_or_else(|| fail("redirected to nowhere"))?;
    let next = url.join(location).map_err(|_| fail("redirected to what is no address"))?;
    match (url.scheme(), next.scheme()) {
        (_, "https") | ("http", "http") => Ok(Some(next)),
        ("https", "http") => Err(fail("redirected from an encrypted connection to one that is not")),
        _ => Err(fail("redirected to what is no web address")),
    }
}

/// What an answer without content means.
fn refused(url: &Url, status: StatusCode, headers: &HeaderMap, token: TokenUse) -> Failure {
    let url = shown(url);
    let said = text_of(headers, "x-error-code").map(|code| code.chars().take(64).collect());
    let number = status.as_u16();
    match number {
        404 | 410 => RemoteError::NotFound { url }.into(),
        401 | 403 => RemoteError::Denied { url, status: number, token, said }.into(),
        408 | 425 | 429 | 500 | 502..=504 => {
            let pause =
                text_of(headers, "retry-after").and_then(|text| text.parse().ok()).map(Duration::from_secs);
            Failure::Passing { error: RemoteError::Status { url, status: number, attempts: 1 }, pause }
        }
        _ => RemoteError::Status { url, status: number, attempts: 1 }.into(),
    }
}

/// Why there was no answer.
fn failed(url: &Url, error: &ureq::Error) -> Failure {
    let url = shown(url);
    let encrypted = |reason: &dyn fmt::Display| format!("no encrypted connection: {reason}");
    let (reason, may_pass) = match error {
        // A certificate does not mend itself.
        ureq::Error::Rustls(error) => (encrypted(error), false),
        ureq::Error::Tls(error) => (encrypted(error), false),
        ureq::Error::Io(error) if error.kind() == std::io::ErrorKind::InvalidData => {
            (encrypted(error), false)
        }
        ureq::Error::BadUri(_) | ureq::Error::Http(_) => (error.to_string(), false),
        ureq::Error::Timeout(_) => ("no answer in time".to_owned(), true),
        ureq::Error::HostNotFound => ("the host is not found".to_owned(), true),
        error => (error.to_string(), true),
    };
    if !may_pass {
        return RemoteError::Connection { url, reason, attempts: 1 }.into();
    }
    broken(url, reason)
}

fn broken(url: String, reason: String) -> Failure {
    Failure::Passing { error: RemoteError::Connection { url, reason, attempts: 1 }, pause: None }
}

pub(super) fn text_of<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    text_of(headers, "content-length")?.parse().ok()
}

/// First and last byte of an answer, and the length of the whole.
fn content_range(headers: &HeaderMap) -> Option<(u64, u64, Option<u64>)> {
    let (range, total) = text_of(headers, "content-range")?.strip_prefix("bytes ")?.split_once('/')?;
    let total = total.parse().ok();
    if range == "*" {
        return Some((0, 0, total));
    }
    let (first, last) = range.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?, total))
}

/// Half of a pause to all of it, so that many clients do not come back at once.
fn jittered(pause: Duration) -> Duration {
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.subsec_nanos());
    pause.mul_f64(0.5 + f64::from(nanos % 1024) / 2048.0)
}

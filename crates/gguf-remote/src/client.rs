//! Requests: access to the token, retries, and checks that a response matches its request.

use crate::Result;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ureq::Agent;
use ureq::http::{HeaderMap, Request, StatusCode};
use ureq::tls::{RootCerts, TlsConfig};
use url::{Host, Origin, Url};

use crate::address::shown;
use crate::error::{RemoteError, TokenUse};
use crate::exchange::{Exchange, ExchangeError, text_of};
use crate::target::RequestTarget;
use crate::tls;
use gguf_core::text::escape_bytes;

/// Maximum number of attempts before the first response: an unreachable address is not waited for.
const FIRST_ATTEMPTS: u32 = 4;
/// Maximum number of redirects in a row.
const MAX_REDIRECTS: usize = 8;

/// Retries and timeouts of requests.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Number of attempts in a row without progress before the run fails.
    pub attempts: u32,
    /// Pause after the first failed attempt; it doubles each time.
    pub first_pause: Duration,
    /// Maximum pause; also limits the pause that a server requests (`Retry-After`).
    pub longest_pause: Duration,
    /// Silence after which a connection counts as broken.
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

/// A token, with the only origin that may receive it.
#[derive(Clone)]
pub(super) struct HubToken {
    pub(super) text: String,
    pub(super) origin: Origin,
}

impl fmt::Debug for HubToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HubToken").field("origin", &self.origin).finish_non_exhaustive()
    }
}

impl HubToken {
    /// Returns true if the token may be sent to a URL: only to its own server, and not unencrypted over a network.
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

/// Kind of server, and credentials for it.
#[derive(Clone, Debug)]
pub(super) enum Access {
    /// Hub, optionally with a token.
    Hub(Option<HubToken>),
    /// Web server without credentials.
    Web,
}

impl Access {
    fn token(&self) -> Option<&HubToken> {
        match self {
            Self::Hub(token) => token.as_ref(),
            Self::Web => None,
        }
    }

    /// Returns the token use of a request without a token.
    fn unnamed(&self) -> TokenUse {
        match self {
            Self::Hub(_) => TokenUse::None,
            Self::Web => TokenUse::Web,
        }
    }
}

/// HTTP client with retries.
pub(super) struct Client {
    agent: Agent,
    access: Access,
    patience: Patience,
    is_cancelled: Arc<dyn Fn() -> bool + Send + Sync>,
    /// True once any server has responded.
    is_answered: AtomicBool,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("access", &self.access)
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

/// Reason why an attempt fell short.
enum AttemptFailure {
    /// Another attempt may succeed, after the pause that the server requests.
    Passing { error: RemoteError, pause: Option<Duration> },
    /// The transfer is too slow to ever finish.
    Slow { error: RemoteError },
    /// No other attempt can succeed.
    Lasting(RemoteError),
}

impl From<RemoteError> for AttemptFailure {
    fn from(error: RemoteError) -> Self {
        Self::Lasting(error)
    }
}

impl Client {
    /// Creates a client for one kind of server.
    ///
    /// # Errors
    /// A processor without the instructions that encryption needs; certificates that cannot be read.
    pub(super) fn new(
        access: Access,
        patience: Patience,
        is_cancelled: Arc<dyn Fn() -> bool + Send + Sync>,
    ) -> Result<Self> {
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
            access,
            patience,
            is_cancelled,
            is_answered: AtomicBool::new(false),
        })
    }

    /// Returns true once the user has cancelled the run.
    pub(super) fn is_cancelled(&self) -> bool {
        (self.is_cancelled)()
    }

    /// Returns the length of a file in bytes, with a request if it is unknown; `None` if the file does not exist.
    pub(super) fn n_bytes(&self, target: &RequestTarget) -> Result<Option<u64>> {
        if let Some(n_bytes) = target.state().n_bytes {
            return Ok(Some(n_bytes));
        }
        let asked = self.persist(target, |target| {
            let (url, answer) = self.ask(target, Some(&(0..1)))?;
            let total = match answer.status {
                StatusCode::PARTIAL_CONTENT => content_range(&answer.headers).and_then(|range| range.total),
                // An empty file has no first byte.
                StatusCode::RANGE_NOT_SATISFIABLE => Some(0),
                _ => content_length(&answer.headers),
            };
            let missing = || RemoteError::Listing {
                url: shown(&url),
                reason: "the server reports no length".to_owned(),
            };
            target.check(&answer.headers, answer.status, Some(total.ok_or_else(missing)?))?;
            if answer.status == StatusCode::PARTIAL_CONTENT {
                // Reading to the end lets the connection serve the next request.
                let mut answer = answer;
                if let Ok(Some(_)) = answer.next() {
                    answer.end();
                }
            }
            Ok(())
        });
        match asked {
            Ok(()) => Ok(target.state().n_bytes),
            Err(RemoteError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Fills `out` with the bytes of a file from `offset` on. An interrupted transfer resumes where it stopped.
    pub(super) fn read(&self, target: &RequestTarget, offset: u64, out: &mut [u8]) -> Result<()> {
        self.read_past(target, offset, 0, out)
    }

    /// Reads like [`Client::read`] from a server that may send only whole files: up to `most_skipped` bytes before the
    /// requested ones are fetched and discarded.
    pub(super) fn read_past(
        &self,
        target: &RequestTarget,
        offset: u64,
        most_skipped: u64,
        out: &mut [u8],
    ) -> Result<()> {
        let range = offset..offset.saturating_add(out.len() as u64);
        let mut done = 0;
        self.stream(target, range, most_skipped, &mut |bytes| {
            out[done..done + bytes.len()].copy_from_slice(bytes);
            done += bytes.len();
            Ok(())
        })
    }

    /// Passes a byte range of a file to `take` as its bytes arrive. `most_skipped` is as for [`Client::read_past`].
    pub(super) fn stream(
        &self,
        target: &RequestTarget,
        range: Range<u64>,
        most_skipped: u64,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut next = range.start;
        let mut attempts = 0;
        while next < range.end {
            let before = next;
            let mut take = |bytes: &[u8]| {
                next += bytes.len() as u64;
                take(bytes)
            };
            if let Err(failure) = self.stream_some(target, before..range.end, most_skipped, &mut take) {
                // A transfer that makes progress is not limited in attempts.
                let moves = next > before && !matches!(failure, AttemptFailure::Slow { .. });
                attempts = if moves { 0 } else { attempts };
                self.pause(failure, &mut attempts)?;
            }
        }
        Ok(())
    }

    fn stream_some(
        &self,
        target: &RequestTarget,
        range: Range<u64>,
        most_skipped: u64,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<(), AttemptFailure> {
        let whole = range.start == 0 && target.state().n_bytes == Some(range.end);
        let (url, mut answer) = self.ask(target, (!whole).then_some(&range))?;
        let url = shown(&url);
        let (mut n_skipped, mut wanted) = (0, range.end - range.start);
        match answer.status {
            StatusCode::PARTIAL_CONTENT => {
                let Some(ContentRange { first, last, total }) = content_range(&answer.headers) else {
                    return Err(RemoteError::NoRanges { url }.into());
                };
                target.check(&answer.headers, answer.status, total)?;
                if first != range.start || last < first || last >= range.end {
                    return Err(RemoteError::NoRanges { url }.into());
                }
                wanted = last - first + 1;
            }
            StatusCode::RANGE_NOT_SATISFIABLE => {
                let total = content_range(&answer.headers).and_then(|range| range.total);
                target.check(&answer.headers, answer.status, total)?;
                return Err(RemoteError::NoRanges { url }.into());
            }
            _ if whole || range.end <= most_skipped => {
                target.check(&answer.headers, answer.status, content_length(&answer.headers))?;
                n_skipped = range.start;
            }
            _ => return Err(RemoteError::NoRanges { url }.into()),
        }
        while wanted > 0 {
            let Some(bytes) = answer.next().map_err(|broken| failed(&url, broken))? else {
                return Err(cut(url));
            };
            let behind = bytes.get(usize::try_from(n_skipped).unwrap_or(usize::MAX)..).unwrap_or_default();
            n_skipped = n_skipped.saturating_sub(bytes.len() as u64);
            let own = &behind[..behind.len().min(usize::try_from(wanted).unwrap_or(usize::MAX))];
            take(own)?;
            wanted -= own.len() as u64;
        }
        // Reading to the end lets the connection serve the next request.
        answer.end();
        Ok(())
    }

    /// Fetches a text of limited length, with the headers of the response; `None` if it does not exist.
    pub(super) fn text(&self, target: &RequestTarget, limit: u64) -> Result<Option<(HeaderMap, Vec<u8>)>> {
        let got = self.persist(target, |target| {
            let (url, mut answer) = self.ask(target, None)?;
            let expected = content_length(&answer.headers);
            let too_much =
                |found| RemoteError::TooMuch { url: shown(&url), what: "bytes of an answer", found, limit };
            if let Some(found) = expected.filter(|found| *found > limit) {
                return Err(too_much(found).into());
            }
            let mut bytes: Vec<u8> = Vec::new();
            while let Some(more) = answer.next().map_err(|broken| failed(&shown(&url), broken))? {
                bytes.extend(more);
                if bytes.len() as u64 > limit {
                    return Err(too_much(bytes.len() as u64).into());
                }
            }
            if expected.is_some_and(|expected| (bytes.len() as u64) < expected) {
                return Err(cut(shown(&url)));
            }
            let headers = answer.headers;
            Ok((headers, bytes))
        });
        match got {
            Ok(got) => Ok(Some(got)),
            Err(RemoteError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Repeats attempts until one succeeds or the retries are exhausted.
    fn persist<T>(
        &self,
        target: &RequestTarget,
        attempt: impl Fn(&RequestTarget) -> Result<T, AttemptFailure>,
    ) -> Result<T> {
        let mut attempts = 0;
        loop {
            match attempt(target) {
                Ok(got) => return Ok(got),
                Err(failure) => self.pause(failure, &mut attempts)?,
            }
        }
    }

    /// Pauses after a failure that may be temporary.
    fn pause(&self, failure: AttemptFailure, attempts: &mut u32) -> Result<()> {
        let (error, asked) = match failure {
            AttemptFailure::Lasting(error) => return Err(error),
            AttemptFailure::Passing { error, pause } => (error, pause),
            AttemptFailure::Slow { error } => (error, None),
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

    /// Sends one request and follows redirects. The status of the returned response is 200, 206 or 416.
    fn ask(
        &self,
        target: &RequestTarget,
        range: Option<&Range<u64>>,
    ) -> Result<(Url, Exchange<'_>), AttemptFailure> {
        if self.is_cancelled() {
            return Err(RemoteError::Cancelled.into());
        }
        let mut remembered = target.state().resolved.clone();
        let own = target.url();
        let mut url = remembered.clone().unwrap_or_else(|| own.clone());
        let mut token = self.access.unnamed();
        for _ in 0..=MAX_REDIRECTS {
            if url.scheme() == "https" {
                tls::check_processor()?;
            }
            let mut request = Request::get(url.as_str());
            if let Some(Range { start, end }) = range {
                request = request.header("range", format!("bytes={start}-{}", end - 1));
            }
            if let Some(secret) = self.access.token() {
                token = TokenUse::Withheld;
                if secret.may_go_to(&url) {
                    request = request.header("authorization", format!("Bearer {}", secret.text));
                    token = TokenUse::Sent;
                }
            }
            let request = request
                .body(())
                .map_err(|error| failed(&shown(&url), ExchangeError::Request(ureq::Error::Http(error))))?;
            let answer = Exchange::begin(&self.agent, request, self.patience.silence, &*self.is_cancelled)
                .map_err(|broken| failed(&shown(&url), broken))?;
            self.is_answered.store(true, Ordering::Relaxed);
            if let Some(next) = redirect(&url, answer.status, &answer.headers)? {
                url = next;
                continue;
            }
            return match answer.status {
                StatusCode::OK | StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => {
                    refuse_encoded(&url, &answer.headers)?;
                    // A redirect within the same server is not remembered.
                    if url.origin() != own.origin() && remembered.as_ref() != Some(&url) {
                        target.state().resolved = Some(url.clone());
                    }
                    Ok((url, answer))
                }
                status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::GONE)
                    if url.origin() != own.origin() =>
                {
                    target.state().resolved.take_if(|resolved| *resolved == url);
                    // The signature of a remembered address has expired, which is no failure: the redirect is
                    // requested again.
                    if remembered.take().is_some_and(|remembered| remembered == url) {
                        url = own.clone();
                        continue;
                    }
                    Err(match refused(&url, status, &answer.headers, token) {
                        AttemptFailure::Lasting(error) => AttemptFailure::Passing { error, pause: None },
                        passing => passing,
                    })
                }
                status => Err(refused(&url, status, &answer.headers, token)),
            };
        }
        Err(RemoteError::Redirect { url: target.shown(), reason: "redirected in circles" }.into())
    }
}

/// Refuses an answer that is compressed in transfer, which was not asked for: its ranges are those of other bytes.
fn refuse_encoded(url: &Url, headers: &HeaderMap) -> Result<()> {
    let mut found = headers.get_all("content-encoding").iter();
    match found.find(|found| !found.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity")) {
        Some(found) => Err(RemoteError::Encoded { url: shown(url), found: escape_bytes(found.as_bytes()) }),
        None => Ok(()),
    }
}

fn redirect(url: &Url, status: StatusCode, headers: &HeaderMap) -> Result<Option<Url>> {
    if !matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let fail = |reason| RemoteError::Redirect { url: shown(url), reason };
    let location = text_of(headers, "location").ok_or_else(|| fail("redirected to nowhere"))?;
    let next = url.join(location).map_err(|_| fail("redirected to what is no address"))?;
    match (url.scheme(), next.scheme()) {
        (_, "https") | ("http", "http") => Ok(Some(next)),
        ("https", "http") => Err(fail("redirected from an encrypted connection to one that is not")),
        _ => Err(fail("redirected to what is no web address")),
    }
}

fn refused(url: &Url, status: StatusCode, headers: &HeaderMap, token: TokenUse) -> AttemptFailure {
    let url = shown(url);
    let server_code = text_of(headers, "x-error-code").map(|code| code.chars().take(64).collect());
    let number = status.as_u16();
    match number {
        404 | 410 => RemoteError::NotFound { url }.into(),
        401 | 403 => RemoteError::Denied { url, status: number, token, server_code }.into(),
        408 | 425 | 429 | 500 | 502..=504 => {
            let pause =
                text_of(headers, "retry-after").and_then(|text| text.parse().ok()).map(Duration::from_secs);
            AttemptFailure::Passing { error: RemoteError::Status { url, status: number, attempts: 1 }, pause }
        }
        _ => RemoteError::Status { url, status: number, attempts: 1 }.into(),
    }
}

/// Classifies a response that is missing or incomplete.
fn failed(url: &str, broken: ExchangeError) -> AttemptFailure {
    let passing = |reason: String| AttemptFailure::Passing { error: connection(url, reason), pause: None };
    match broken {
        ExchangeError::Cancelled => RemoteError::Cancelled.into(),
        ExchangeError::Body(error) => passing(error.to_string()),
        ExchangeError::Slow => {
            AttemptFailure::Slow { error: connection(url, "less than 1 KiB a second came".to_owned()) }
        }
        ExchangeError::Request(error) => match unanswered(&error) {
            (reason, true) => passing(reason),
            (reason, false) => connection(url, reason).into(),
        },
    }
}

/// Describes why there was no response, and returns whether another attempt may succeed.
fn unanswered(error: &ureq::Error) -> (String, bool) {
    let encrypted = |reason: &dyn fmt::Display| format!("no encrypted connection: {reason}");
    match error {
        // Retries do not fix a certificate.
        ureq::Error::Rustls(error) => (encrypted(error), false),
        ureq::Error::Tls(error) => (encrypted(error), false),
        ureq::Error::Io(error) if error.kind() == std::io::ErrorKind::InvalidData => {
            (encrypted(error), false)
        }
        ureq::Error::BadUri(_) | ureq::Error::Http(_) => (error.to_string(), false),
        ureq::Error::Timeout(_) => ("no answer in time".to_owned(), true),
        ureq::Error::HostNotFound => ("the host is not found".to_owned(), true),
        error => (error.to_string(), true),
    }
}

/// Returns the failure for a response that ended early.
fn cut(url: String) -> AttemptFailure {
    let error = RemoteError::Connection { url, reason: "the connection was cut".to_owned(), attempts: 1 };
    AttemptFailure::Passing { error, pause: None }
}

fn connection(url: &str, reason: String) -> RemoteError {
    RemoteError::Connection { url: url.to_owned(), reason, attempts: 1 }
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    text_of(headers, "content-length")?.parse().ok()
}

/// Position of a response in its file.
struct ContentRange {
    /// Offset of the first byte.
    first: u64,
    /// Offset of the last byte.
    last: u64,
    /// Length of the whole file.
    total: Option<u64>,
}

fn content_range(headers: &HeaderMap) -> Option<ContentRange> {
    let (range, total) = text_of(headers, "content-range")?.strip_prefix("bytes ")?.split_once('/')?;
    let total = total.parse().ok();
    if range == "*" {
        return Some(ContentRange { first: 0, last: 0, total });
    }
    let (first, last) = range.split_once('-')?;
    Some(ContentRange { first: first.parse().ok()?, last: last.parse().ok()?, total })
}

/// Returns a random duration between half of a pause and all of it, so that many clients do not retry at once.
fn jittered(pause: Duration) -> Duration {
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.subsec_nanos());
    pause.mul_f64(0.5 + f64::from(nanos % 1024) / 2048.0)
}

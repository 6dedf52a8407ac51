//! One request and its answer, on a thread of its own: whoever waits for it (for a name, a connection, a header, a byte)
//! hears within a moment that the user wants to stop, and how long it has been waiting.

use std::io::Read;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use ureq::http::{HeaderMap, StatusCode};
use ureq::{Agent, http};

/// How often who waits looks whether the user wants to stop.
const LOOK: Duration = Duration::from_millis(50);
/// Bytes that are handed over at once.
const CHUNK_BYTES: usize = 128 << 10;
/// How many of these may wait to be taken.
const N_CHUNKS: usize = 4;
/// Bytes a second below which a server counts as silent.
const LEAST_SPEED: u64 = 1 << 10;

/// Why nothing (more) came.
#[derive(Debug)]
pub(super) enum Broken {
    /// The user wants to stop.
    Cancelled,
    /// There was no answer.
    Request(ureq::Error),
    /// The answer broke off.
    Body(std::io::Error),
    /// It comes too slowly to come ever.
    Slow,
}

enum Event {
    Head(StatusCode, HeaderMap),
    Bytes(Vec<u8>),
    End,
    Broken(Broken),
}

/// An answer that is coming.
pub(super) struct Exchange<'a> {
    events: Receiver<Event>,
    is_cancelled: &'a dyn Fn() -> bool,
    /// Silence after which it is given up.
    silence: Duration,
    /// When the bytes of the present stretch of time began to come, and how many there were.
    stretch: (Instant, u64),
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
}

impl<'a> Exchange<'a> {
    /// Sends a request and waits for the head of the answer.
    ///
    /// # Errors
    /// [`Broken`].
    pub(super) fn begin(
        agent: &Agent,
        request: http::Request<()>,
        silence: Duration,
        is_cancelled: &'a dyn Fn() -> bool,
    ) -> Result<Self, Broken> {
        let (sender, events) = sync_channel(N_CHUNKS);
        let agent = agent.clone();
        std::thread::spawn(move || converse(&agent, request, &sender));
        let mut exchange = Self {
            events,
            is_cancelled,
            silence,
            stretch: (Instant::now(), 0),
            status: StatusCode::OK,
            headers: HeaderMap::new(),
        };
        match exchange.wait()? {
            Event::Head(status, headers) => {
                (exchange.status, exchange.headers) = (status, headers);
                exchange.stretch = (Instant::now(), 0);
                Ok(exchange)
            }
            _ => Err(Broken::Body(std::io::ErrorKind::UnexpectedEof.into())),
        }
    }

    /// The next bytes of the answer; `None` at its end.
    ///
    /// # Errors
    /// [`Broken`].
    pub(super) fn next(&mut self) -> Result<Option<Vec<u8>>, Broken> {
        match self.wait()? {
            Event::Bytes(bytes) => {
                self.stretch.1 += bytes.len() as u64;
                let (since, n_bytes) = self.stretch;
                let seconds = since.elapsed().as_secs();
                if since.elapsed() > self.silence {
                    if n_bytes < seconds.saturating_mul(LEAST_SPEED) {
                        return Err(Broken::Slow);
                    }
                    self.stretch = (Instant::now(), 0);
                }
                Ok(Some(bytes))
            }
            _ => Ok(None),
        }
    }

    /// Waits for the end of an answer that is all there, so that the connection serves the next request, too.
    pub(super) fn end(mut self) {
        let _ = self.next();
    }

    fn wait(&self) -> Result<Event, Broken> {
        loop {
            if (self.is_cancelled)() {
                return Err(Broken::Cancelled);
            }
            match self.events.recv_timeout(LOOK) {
                Ok(Event::Broken(broken)) => return Err(broken),
                Ok(event) => return Ok(event),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Broken::Body(std::io::ErrorKind::BrokenPipe.into()));
                }
            }
        }
    }
}

/// Has the conversation, as long as somebody listens.
fn converse(agent: &Agent, request: http::Request<()>, to: &SyncSender<Event>) {
    let mut response = match agent.run(request) {
        Ok(response) => response,
        Err(error) => {
            let _ = to.send(Event::Broken(Broken::Request(error)));
            return;
        }
    };
    if to.send(Event::Head(response.status(), response.headers().clone())).is_err() {
        return;
    }
    let mut body = response.body_mut().as_reader();
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let event = match body.read(&mut buffer) {
            Ok(0) => Event::End,
            Ok(n) => Event::Bytes(buffer[..n].to_vec()),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => Event::Broken(Broken::Body(error)),
        };
        let is_last = !matches!(event, Event::Bytes(_));
        if is_last {
            // The connection is free before anybody hears of it.
            drop(body);
            drop(response);
            let _ = to.send(event);
            return;
        }
        if to.send(event).is_err() {
            return;
        }
    }
}

/// A header, if it is text.
pub(super) fn text_of<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

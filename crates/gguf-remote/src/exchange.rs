//! One request and its response, on a separate thread. A caller that waits (for a name, a connection, a header, a byte)
//! notices a cancellation and the waiting time within a moment.

use std::io::Read;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use ureq::http::{HeaderMap, StatusCode};
use ureq::{Agent, http};

/// Interval at which a waiting caller checks for cancellation.
const LOOK: Duration = Duration::from_millis(50);
/// Maximum size of a chunk in bytes.
const CHUNK_BYTES: usize = 128 << 10;
/// Maximum number of chunks in the queue.
const N_CHUNKS: usize = 4;
/// Bytes per second below which a server counts as silent.
const LEAST_SPEED: u64 = 1 << 10;

/// Reason why nothing (more) was received.
#[derive(Debug)]
pub(super) enum ExchangeError {
    /// The user cancelled the run.
    Cancelled,
    /// There was no response.
    Request(ureq::Error),
    /// The response was interrupted.
    Body(std::io::Error),
    /// The transfer is too slow to ever finish.
    Slow,
}

enum ResponseEvent {
    Head(StatusCode, HeaderMap),
    Bytes(Vec<u8>),
    End,
    Broken(ExchangeError),
}

/// A response in transfer.
pub(super) struct Exchange<'a> {
    events: Receiver<ResponseEvent>,
    is_cancelled: &'a dyn Fn() -> bool,
    /// Silence after which the transfer fails.
    silence: Duration,
    /// Start of the current interval, and the number of bytes received in it.
    stretch: (Instant, u64),
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
}

impl<'a> Exchange<'a> {
    /// Sends a request and waits for the head of the response.
    pub(super) fn begin(
        agent: &Agent,
        request: http::Request<()>,
        silence: Duration,
        is_cancelled: &'a dyn Fn() -> bool,
    ) -> Result<Self, ExchangeError> {
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
            ResponseEvent::Head(status, headers) => {
                (exchange.status, exchange.headers) = (status, headers);
                exchange.stretch = (Instant::now(), 0);
                Ok(exchange)
            }
            _ => Err(ExchangeError::Body(std::io::ErrorKind::UnexpectedEof.into())),
        }
    }

    /// Returns the next bytes of the response; `None` at its end.
    pub(super) fn next(&mut self) -> Result<Option<Vec<u8>>, ExchangeError> {
        match self.wait()? {
            ResponseEvent::Bytes(bytes) => {
                self.stretch.1 += bytes.len() as u64;
                let (since, n_bytes) = self.stretch;
                let seconds = since.elapsed().as_secs();
                if since.elapsed() > self.silence {
                    if n_bytes < seconds.saturating_mul(LEAST_SPEED) {
                        return Err(ExchangeError::Slow);
                    }
                    self.stretch = (Instant::now(), 0);
                }
                Ok(Some(bytes))
            }
            _ => Ok(None),
        }
    }

    /// Waits for the end of a response that was received in full, so that the connection serves the next request.
    pub(super) fn end(mut self) {
        let _ = self.next();
    }

    fn wait(&self) -> Result<ResponseEvent, ExchangeError> {
        loop {
            if (self.is_cancelled)() {
                return Err(ExchangeError::Cancelled);
            }
            match self.events.recv_timeout(LOOK) {
                Ok(ResponseEvent::Broken(broken)) => return Err(broken),
                Ok(event) => return Ok(event),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(ExchangeError::Body(std::io::ErrorKind::BrokenPipe.into()));
                }
            }
        }
    }
}

/// Runs the request as long as the receiver exists.
fn converse(agent: &Agent, request: http::Request<()>, to: &SyncSender<ResponseEvent>) {
    let mut response = match agent.run(request) {
        Ok(response) => response,
        Err(error) => {
            let _ = to.send(ResponseEvent::Broken(ExchangeError::Request(error)));
            return;
        }
    };
    if to.send(ResponseEvent::Head(response.status(), response.headers().clone())).is_err() {
        return;
    }
    let mut body = response.body_mut().as_reader();
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let event = match body.read(&mut buffer) {
            Ok(0) => ResponseEvent::End,
            Ok(n) => ResponseEvent::Bytes(buffer[..n].to_vec()),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => ResponseEvent::Broken(ExchangeError::Body(error)),
        };
        let is_last = !matches!(event, ResponseEvent::Bytes(_));
        if is_last {
            // The connection is released before the receiver is notified.
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

pub(super) fn text_of<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

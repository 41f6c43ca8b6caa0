//! One connection: a request that arrives, an answer that is read. Nothing here waits.
//!
//! ```text
//!   Asking ── whole request ──▶ Waiting for a look ── answer ──▶ Reading ──▶ Leaving ──▶ over
//!      └── another request, or none that is understood ────────────▲
//! ```
//!
//! Each state but Waiting, which a look ends, has its time. A client that sends a byte now and then has the
//! same time for its request as one that sends nothing.

use super::arguments::Format;
use super::http::{Answer, REQUEST_BYTES, Request, understood};
use core::time::Duration;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

/// From accepting a connection to the end of its request. Scrapers send theirs at once.
const REQUEST_TIME: Duration = Duration::from_secs(2);

/// For an answer to be read.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// For the client to close after the answer. Closing before it does, with something unread, would make the
/// kernel drop the answer.
const CLOSE_TIME: Duration = Duration::from_millis(500);

#[derive(Debug)]
enum State {
    /// What came of the request.
    Asking(Vec<u8>),
    /// The whole request came.
    Waiting { format: Format, only_head: bool, arrived: Instant },
    /// So much of the answer is sent.
    Reading { answer: Arc<Answer>, only_head: bool, sent: usize },
    /// Bytes that came since.
    Leaving(usize),
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Client {
    stream: TcpStream,
    state: State,
    until: Instant,
}

impl Client {
    /// # Errors
    /// When the system refuses to not wait for it.
    pub(super) fn new(stream: TcpStream, now: Instant) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, state: State::Asking(Vec::new()), until: now + REQUEST_TIME })
    }

    pub(super) fn descriptor(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    /// What it can go on with, as for poll(2).
    pub(super) fn events(&self) -> libc::c_short {
        match self.state {
            State::Asking(_) | State::Leaving(_) => libc::POLLIN,
            State::Waiting { .. } => 0,
            State::Reading { .. } => libc::POLLOUT,
        }
    }

    /// Until when it may stay as it is; `None`: until a look has ended.
    pub(super) fn until(&self) -> Option<Instant> {
        (!matches!(self.state, State::Waiting { .. })).then_some(self.until)
    }

    /// Whether it has not said what it wants.
    pub(super) fn is_asking(&self) -> bool {
        matches!(self.state, State::Asking(_))
    }

    /// The format it waits for, and since when.
    pub(super) fn waits_for(&self) -> Option<(Format, Instant)> {
        match self.state {
            State::Waiting { format, arrived, .. } => Some((format, arrived)),
            _ => None,
        }
    }

    /// Gives it the answer that it waits for.
    pub(super) fn answer(&mut self, answer: Arc<Answer>, now: Instant) {
        let only_head = matches!(self.state, State::Waiting { only_head: true, .. });
        self.state = State::Reading { answer, only_head, sent: 0 };
        self.until = now + ANSWER_TIME;
    }

    /// Goes on as far as it can. `false`, and an error: it is over.
    pub(super) fn go_on(&mut self, now: Instant) -> io::Result<bool> {
        loop {
            match self.step(now) {
                Ok(Some(stays)) => return Ok(stays),
                Ok(None) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// `None`: there may be more to do.
    fn step(&mut self, now: Instant) -> io::Result<Option<bool>> {
        let mut chunk = [0; 2048];
        match &mut self.state {
            State::Asking(bytes) => match self.stream.read(&mut chunk)? {
                0 => return Ok(Some(false)),
                count => {
                    bytes.extend_from_slice(&chunk[..count]);
                    if let Some(request) = understood(bytes) {
                        self.asked(request, now);
                    }
                }
            },
            State::Waiting { .. } => return Ok(Some(true)),
            State::Reading { answer, only_head, sent } => {
                let left = &answer.bytes(*only_head)[*sent..];
                if left.is_empty() {
                    self.stream.shutdown(Shutdown::Write)?;
                    self.state = State::Leaving(0);
                    self.until = now + CLOSE_TIME;
                } else {
                    *sent += self.stream.write(left)?;
                }
            }
            State::Leaving(came) => match self.stream.read(&mut chunk)? {
                0 => return Ok(Some(false)),
                count => {
                    *came += count;
                    if *came > 2 * REQUEST_BYTES {
                        return Ok(Some(false));
                    }
                }
            },
        }
        Ok(None)
    }

    fn asked(&mut self, request: Request, now: Instant) {
        match (request, Answer::to(request)) {
            (Request::Metrics { format, only_head }, _) => {
                self.state = State::Waiting { format, only_head, arrived: now };
            }
            (_, Some(answer)) => self.answer(Arc::new(answer), now),
            (_, None) => {}
        }
    }
}

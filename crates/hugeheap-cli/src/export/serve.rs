//! Metrics over HTTP: `GET /metrics`, for Prometheus and for whoever else asks.
//!
//! ```text
//!   listener ──▶ worker (one of WORKERS) ── request in time? ──▶ look, one at a time ──▶ answer, close
//! ```
//!
//! A client cannot hold it up: a request has [`REQUEST_TIME`] to arrive, an answer [`ANSWER_TIME`] to be read, one connection is one
//! request, and there are never more threads. Who asks while a look is being made for somebody else waits for the next one, which then
//! serves all who waited: many clients cost as much as two.

use super::arguments::{ExportArguments, Format};
use super::metric::Found;
use crate::{Context, exit};
use core::time::Duration;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

/// Connections that are served at once; the kernel keeps others waiting.
const WORKERS: usize = 16;

/// From accepting a connection to the end of its request. Scrapers send theirs at once; with 64 idle connections in front of it, one is still
/// served within the 10 s that Prometheus waits.
const REQUEST_TIME: Duration = Duration::from_secs(2);

/// For an answer to be read.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// For the client to close after the answer. Closing before it does, with something unread, would make the kernel drop the answer.
const CLOSE_TIME: Duration = Duration::from_millis(500);

/// Longest request in bytes, headers included: Prometheus's have about 400.
const REQUEST_BYTES: usize = 8 << 10;

/// Most headers.
const HEADERS: usize = 64;

/// Pause when no connection can be accepted: too many open files.
const PAUSE: Duration = Duration::from_millis(200);

pub(super) fn export(context: &Context, arguments: &ExportArguments, address: &str) -> u8 {
    let out = &context.out;
    let listener = match listen(address) {
        Ok(listener) => listener,
        Err(error) => {
            let (why, code) = refused(&error);
            out.error(&format!("cannot serve at {address}: {why}"));
            return code;
        }
    };
    if let Err(error) = super::look(context, arguments) {
        return super::no_processes(context, error);
    }
    if let Ok(local) = listener.local_addr() {
        out.progress(&format!("hugeheap: metrics at http://{local}/metrics"), true);
    }
    let server = Server { context, arguments, last: Mutex::new(None), told: AtomicBool::new(false) };
    thread::scope(|scope| {
        for _ in 1..WORKERS {
            // Fewer workers where no more threads may be started; this one is always there.
            if thread::Builder::new().spawn_scoped(scope, || server.work(&listener)).is_err() {
                out.warning("no more threads can be started (ulimit -u): fewer clients are served at once");
                break;
            }
        }
        server.work(&listener);
    });
    exit::OK
}

/// Ends the process with status 0 when it is told to. Without it a container's first process would not end at all.
pub(super) fn end_when_told() {
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        // Not to be had is no reason not to serve.
        let _ = signal_hook::flag::register_conditional_shutdown(signal, 0, Arc::new(AtomicBool::new(true)));
    }
}

fn listen(address: &str) -> io::Result<TcpListener> {
    end_when_told();
    match (TcpListener::bind(address), address.strip_prefix("[::]")) {
        // A host without IPv6.
        (Err(error), Some(port)) if error.kind() != ErrorKind::AddrInUse => {
            TcpListener::bind(format!("0.0.0.0{port}")).map_err(|_| error)
        }
        (result, _) => result,
    }
}

fn refused(error: &io::Error) -> (String, u8) {
    match error.kind() {
        ErrorKind::AddrInUse => (
            "somebody else does already: name another port, or end that process (ss -ltnp)".to_owned(),
            exit::UNSUPPORTED,
        ),
        ErrorKind::AddrNotAvailable => ("this host does not have that address".to_owned(), exit::UNSUPPORTED),
        ErrorKind::PermissionDenied => {
            ("ports below 1024 need CAP_NET_BIND_SERVICE: name a higher one".to_owned(), exit::PERMISSION)
        }
        _ => (error.to_string(), exit::USAGE),
    }
}

/// One look, and when it began.
#[derive(Clone)]
struct Look {
    begin: Instant,
    found: Arc<Found>,
}

struct Server<'a> {
    context: &'a Context,
    arguments: &'a ExportArguments,
    last: Mutex<Option<Look>>,
    /// Whether it was told that no connection can be accepted, and none could since: a server without descriptors filled the log, ten times a second
    /// for each of its threads.
    told: AtomicBool,
}

impl Server<'_> {
    fn work(&self, listener: &TcpListener) {
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    self.told.store(false, Ordering::Relaxed);
                    // A client that went away is nobody's concern.
                    let _ = self.serve(stream);
                }
                Err(error)
                    if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                Err(error) => {
                    if !self.told.swap(true, Ordering::Relaxed) {
                        let text = format!(
                            "no connection can be accepted now: {error}; it is tried again and again"
                        );
                        self.context.out.warning(&text);
                    }
                    thread::sleep(PAUSE);
                }
            }
        }
    }

    fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        let arrived = Instant::now();
        let request = request(&mut stream, arrived + REQUEST_TIME)?;
        let answer = match request {
            Request::Metrics(format) => match self.metrics(arrived) {
                Ok(found) => Answer::ok(format.media_type(), super::text::write(found, format)),
                Err(error) => Answer::said("500 Internal Server Error", &error.to_string()),
            },
            Request::Root => Answer::said("200 OK", "hugeheap: metrics are at /metrics"),
            Request::Elsewhere => Answer::said("404 Not Found", "metrics are at /metrics"),
            Request::Method => Answer::said("405 Method Not Allowed", "GET and HEAD only"),
            Request::Bad => Answer::said("400 Bad Request", "this is not HTTP/1"),
            Request::Long => Answer::said(
                "431 Request Header Fields Too Large",
                "a request has 8 KiB at most, and 64 headers",
            ),
        };
        send(&mut stream, &answer.bytes(), Instant::now() + ANSWER_TIME)?;
        stream.shutdown(Shutdown::Write)?;
        drain(&mut stream)
    }

    /// A look that began after the request came.
    fn metrics(&self, arrived: Instant) -> hugeheap_os::Result<Arc<Found>> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(look) = last.as_ref().filter(|look| look.begin >= arrived) {
            return Ok(Arc::clone(&look.found));
        }
        let begin = Instant::now();
        let found = Arc::new(super::look(self.context, self.arguments)?);
        *last = Some(Look { begin, found: Arc::clone(&found) });
        Ok(found)
    }
}

/// What a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Metrics(Format),
    Root,
    Elsewhere,
    /// Neither GET nor HEAD.
    Method,
    Bad,
    Long,
}

/// Reads a request.
///
/// # Errors
/// When it did not come in time, or the client went away.
fn request(stream: &mut TcpStream, deadline: Instant) -> io::Result<Request> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 2048];
    loop {
        if let Some(request) = understood(&bytes) {
            return Ok(request);
        }
        stream.set_read_timeout(Some(left(deadline)?))?;
        match stream.read(&mut chunk) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => bytes.extend_from_slice(&chunk[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// `None`: there is more to come.
fn understood(bytes: &[u8]) -> Option<Request> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    match parsed.parse(bytes) {
        Ok(httparse::Status::Partial) if bytes.len() >= REQUEST_BYTES => return Some(Request::Long),
        Ok(httparse::Status::Partial) => return None,
        Ok(httparse::Status::Complete(_)) => {}
        Err(httparse::Error::TooManyHeaders) => return Some(Request::Long),
        Err(_) => return Some(Request::Bad),
    }
    if !matches!(parsed.method, Some("GET" | "HEAD")) {
        return Some(Request::Method);
    }
    let path = parsed.path.unwrap_or_default();
    let accepted = parsed.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("accept"));
    let accepted = accepted.filter_map(|header| core::str::from_utf8(header.value).ok());
    Some(match path.split('?').next() {
        Some("/metrics") => Request::Metrics(wanted(accepted.collect::<Vec<_>>().join(",").as_str())),
        Some("/") => Request::Root,
        _ => Request::Elsewhere,
    })
}

/// The format that a client likes best, by its `Accept`. Without a word about OpenMetrics it is Prometheus's own.
fn wanted(accept: &str) -> Format {
    let liking = |media: &str| {
        let weights = accept.split(',').filter_map(|range| {
            let mut parts = range.split(';').map(str::trim);
            if parts.next() != Some(media) {
                return None;
            }
            let weight = parts.find_map(|part| part.strip_prefix("q="));
            Some(weight.map_or(1.0, |weight| weight.parse::<f32>().unwrap_or(0.0)))
        });
        weights.fold(0.0, f32::max)
    };
    let (openmetrics, plain) = (liking("application/openmetrics-text"), liking("text/plain"));
    if openmetrics > 0.0 && openmetrics >= plain { Format::Openmetrics } else { Format::Prometheus }
}

struct Answer {
    status: &'static str,
    media_type: &'static str,
    body: String,
}

impl Answer {
    fn ok(media_type: &'static str, body: String) -> Self {
        Self { status: "200 OK", media_type, body }
    }

    fn said(status: &'static str, text: &str) -> Self {
        Self { status, media_type: "text/plain; charset=utf-8", body: format!("{text}\n") }
    }

    fn bytes(&self) -> Vec<u8> {
        let allow = if self.status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
        format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n{}",
            self.status,
            self.media_type,
            self.body.len(),
            self.body
        )
        .into_bytes()
    }
}

fn send(stream: &mut TcpStream, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(deadline)?))?;
        match stream.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Waits until the client has closed, for a short time and a little that it may still send.
fn drain(stream: &mut TcpStream) -> io::Result<()> {
    let deadline = Instant::now() + CLOSE_TIME;
    let mut chunk = [0; 2048];
    for _ in 0..REQUEST_BYTES / 1024 {
        stream.set_read_timeout(Some(left(deadline)?))?;
        if stream.read(&mut chunk)? == 0 {
            break;
        }
    }
    Ok(())
}

/// What is left until `deadline`: never none, which the system would take for no limit.
fn left(deadline: Instant) -> io::Result<Duration> {
    match deadline.checked_duration_since(Instant::now()) {
        Some(time) if !time.is_zero() => Ok(time),
        _ => Err(ErrorKind::TimedOut.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_understood_when_they_are_whole() {
        let of = |text: &str| understood(text.as_bytes());
        assert_eq!(of(""), None);
        assert_eq!(of("GET /metrics HTTP/1.1\r\nHost: x\r\n"), None);
        assert_eq!(
            of("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"),
            Some(Request::Metrics(Format::Prometheus))
        );
        assert_eq!(of("HEAD /metrics?x=1 HTTP/1.0\r\n\r\n"), Some(Request::Metrics(Format::Prometheus)));
        assert_eq!(of("GET / HTTP/1.1\r\n\r\n"), Some(Request::Root));
        assert_eq!(of("GET /metricsx HTTP/1.1\r\n\r\n"), Some(Request::Elsewhere));
        assert_eq!(of("POST /metrics HTTP/1.1\r\n\r\n"), Some(Request::Method));
        assert_eq!(of("\x16\x03\x01\x02"), Some(Request::Bad));
        let many = "X: y\r\n".repeat(HEADERS + 1);
        assert_eq!(of(&format!("GET / HTTP/1.1\r\n{many}\r\n")), Some(Request::Long));
        assert_eq!(of(&format!("GET /{} HTTP/1.1\r\n", "x".repeat(REQUEST_BYTES))), Some(Request::Long));
    }

    #[test]
    fn the_format_is_the_one_liked_best() {
        let prometheus =
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";
        assert_eq!(wanted(prometheus), Format::Openmetrics);
        assert_eq!(wanted("application/openmetrics-text"), Format::Openmetrics);
        for accept in [
            "",
            "*/*",
            "text/plain",
            "text/plain, application/openmetrics-text;q=0.9",
            "application/openmetrics-text;q=0",
        ] {
            assert_eq!(wanted(accept), Format::Prometheus, "{accept}");
        }
    }
}

//! Metrics over HTTP: `GET /metrics`, for Prometheus and for whoever else asks.
//!
//! ```text
//!   listener ──▶ clients, all of them in one thread ──▶ those that wait for a look ──▶ the looker, a look at a time
//!                        ▲                                                                  │
//!                        └───────────────────────── answers ◀───────────────────────────────┘
//! ```
//!
//! A client cannot hold it up: nothing waits for a single one, each has its time, and where there are as many
//! as may be, the one that has not said for the longest time what it wants makes room. With a thread for each
//! of 16 clients 200 that sent half a request kept others waiting for 25 s. Who asks while a look is being made
//! for somebody else waits for the next one, which then serves all who waited: many clients cost as much as
//! two.

use super::arguments::{ExportArguments, Format};
use super::client::Client;
use super::http::Answer;
use super::metric::Found;
use crate::descriptors::told;
use crate::descriptors::{self, LOOK};
use crate::{Context, exit};
use core::time::Duration;
use hugeheap_os::{Error, Result};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Instant;

/// Most connections; the kernel keeps others waiting. A descriptor each, of 1,024 that a process has unless it
/// is told otherwise.
const CLIENTS: usize = 256;

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
        return super::not_looked(context, error);
    }
    let ends = UnixStream::pair().and_then(|(bell, ear)| {
        listener.set_nonblocking(true)?;
        bell.set_nonblocking(true)?;
        ear.set_nonblocking(true)?;
        Ok((bell, ear))
    });
    let (bell, ear) = match ends {
        Ok(ends) => ends,
        Err(error) => {
            out.error(&format!("cannot serve at {address}: {error}", error = told(&error)));
            return exit::UNSUPPORTED;
        }
    };
    let clients = descriptors::free(CLIENTS + LOOK).saturating_sub(LOOK);
    if clients == 0 {
        return super::not_looked(context, Error::new("accept4(2)", libc::EMFILE));
    }
    if let Ok(local) = listener.local_addr() {
        out.progress(&format!("hugeheap: metrics at http://{local}/metrics"), true);
    }
    thread::scope(|scope| {
        let (ask, asked) = channel::<()>();
        let (tell, told) = channel();
        let looker = move || {
            while asked.recv().is_ok() {
                // Nobody listens any more when this fails, which ends the process.
                let _ = tell.send(super::look(context, arguments).map(Arc::new));
                let _ = (&bell).write(&[1]);
            }
        };
        let ask = match thread::Builder::new().spawn_scoped(scope, looker) {
            Ok(_) => Some(ask),
            Err(_) => {
                out.warning(
                    "no more threads can be started (ulimit -u): clients wait for each other's looks",
                );
                None
            }
        };
        let server = Server {
            context,
            arguments,
            listener,
            ear,
            ask,
            told,
            most: clients,
            clients: Vec::new(),
            looks_since: None,
            accepts_from: None,
            complained: false,
        };
        server.run();
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
        _ => (told(error).to_string(), exit::USAGE),
    }
}

struct Server<'a> {
    context: &'a Context,
    arguments: &'a ExportArguments,
    listener: TcpListener,
    /// Can be read when a look has ended.
    ear: UnixStream,
    /// `None`: there is no looker.
    ask: Option<Sender<()>>,
    told: Receiver<Result<Arc<Found>>>,
    /// Most clients.
    most: usize,
    /// In the order in which they came.
    clients: Vec<Client>,
    /// When the look began that is being made.
    looks_since: Option<Instant>,
    /// Nobody is accepted before.
    accepts_from: Option<Instant>,
    /// Whether it was told that no connection can be accepted, and none could since: a server without
    /// descriptors filled the log, five times a second.
    complained: bool,
}

impl Server<'_> {
    fn run(mut self) {
        loop {
            let ready = self.wait();
            let now = Instant::now();
            let mut ready = ready.iter();
            self.clients.retain_mut(|client| match ready.next() {
                Some(0) | None => true,
                // A client that went away is nobody's concern.
                Some(events) if client.waits_for().is_some() => events & (libc::POLLERR | libc::POLLHUP) == 0,
                Some(_) => client.go_on(now).unwrap_or(false),
            });
            self.clients.retain(|client| client.until().is_none_or(|until| until > now));
            let _ = self.ear.read(&mut [0; 8]);
            if let Ok(found) = self.told.try_recv() {
                self.tell(&found, now);
            }
            self.accept(now);
            self.begin_look();
        }
    }

    /// Waits until there is something to do. What is ready, client by client.
    fn wait(&self) -> Vec<libc::c_short> {
        let on = |descriptor, events| libc::pollfd { fd: descriptor, events, revents: 0 };
        let now = Instant::now();
        let pauses = self.accepts_from.filter(|&from| from > now);
        // A negative number is none to poll.
        let door = if pauses.is_none() && self.makes_room() { self.listener.as_raw_fd() } else { -1 };
        let ear = if self.ask.is_some() { self.ear.as_raw_fd() } else { -1 };
        let mut polled = vec![on(ear, libc::POLLIN), on(door, libc::POLLIN)];
        polled.extend(self.clients.iter().map(|client| on(client.descriptor(), client.events())));
        let ends = self.clients.iter().filter_map(Client::until).chain(pauses).min();
        // Rounded up: one that is woken a little early would only look at the clock until it is time.
        let time = ends.map_or(-1, |end| {
            libc::c_int::try_from(end.saturating_duration_since(now).as_millis() + 1)
                .unwrap_or(libc::c_int::MAX)
        });
        // SAFETY: as many as are there, all of them open, are polled and written to.
        let count = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, time) };
        polled[2..].iter().map(|client| if count > 0 { client.revents } else { 0 }).collect()
    }

    /// Whether one more client has a place: all but those whose answer is being made may go.
    fn makes_room(&self) -> bool {
        self.clients.len() < self.most || self.clients.iter().any(|client| client.waits_for().is_none())
    }

    /// Ends the client that has not said for the longest time what it wants, or has not read it.
    fn make_room(&mut self) {
        let asking = self.clients.iter().position(Client::is_asking);
        let one = asking.or_else(|| self.clients.iter().position(|client| client.waits_for().is_none()));
        if let Some(index) = one {
            self.clients.remove(index);
        }
    }

    fn accept(&mut self, now: Instant) {
        if self.accepts_from.is_some_and(|from| from > now) {
            return;
        }
        self.accepts_from = None;
        // Not without end: who waits has its turn.
        for _ in 0..CLIENTS {
            if !self.makes_room() {
                return;
            }
            match self.listener.accept() {
                Ok((stream, _)) => {
                    self.complained = false;
                    // Now, and not before somebody came: places that are all taken were lost to nobody.
                    if self.clients.len() >= self.most {
                        self.make_room();
                    }
                    let Ok(mut client) = Client::new(stream, now) else { continue };
                    // Scrapers have sent their request by now.
                    if client.go_on(now).unwrap_or(false) {
                        self.clients.push(client);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error)
                    if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                Err(error) => {
                    if !self.complained {
                        self.complained = true;
                        let text = format!(
                            "no connection can be accepted now: {error}; it is tried again and again",
                            error = told(&error)
                        );
                        self.context.out.warning(&text);
                    }
                    self.accepts_from = Some(now + PAUSE);
                    return;
                }
            }
        }
    }

    /// Has a look made for those who wait for one, unless one is being made.
    fn begin_look(&mut self) {
        if self.looks_since.is_some() || !self.clients.iter().any(|client| client.waits_for().is_some()) {
            return;
        }
        let begin = Instant::now();
        self.looks_since = Some(begin);
        let asked = self.ask.as_ref().is_some_and(|ask| ask.send(()).is_ok());
        if !asked {
            let found = super::look(self.context, self.arguments).map(Arc::new);
            self.tell(&found, Instant::now());
        }
    }

    /// Answers those who waited when the look began.
    fn tell(&mut self, found: &Result<Arc<Found>>, now: Instant) {
        let Some(since) = self.looks_since.take() else { return };
        // Written once for all of a format.
        let mut written: Vec<(Format, Arc<Answer>)> = Vec::new();
        for client in &mut self.clients {
            let Some((format, _)) = client.waits_for().filter(|&(_, arrived)| arrived <= since) else {
                continue;
            };
            let known = written.iter().find(|(of, _)| *of == format).map(|(_, answer)| Arc::clone(answer));
            let answer = known.unwrap_or_else(|| {
                let answer = Arc::new(match found {
                    Ok(found) => {
                        Answer::ok(format.media_type(), &super::text::write(Arc::clone(found), format))
                    }
                    Err(error) => Answer::said("500 Internal Server Error", &super::why(*error)),
                });
                written.push((format, Arc::clone(&answer)));
                answer
            });
            client.answer(answer, now);
        }
        self.clients.retain_mut(|client| client.waits_for().is_some() || client.go_on(now).unwrap_or(false));
    }
}

//! The live view: reading on one thread, keys and signals on others, drawing on this one.
//!
//! ```text
//!   reader ──── refreshes ────▶┐
//!   keys ────── events ───────▶├─▶ this thread: state ──▶ screen
//!   signals ─────────────────▶┘         │
//!   reader ◀── watch, show, interval ───┘
//! ```
//!
//! The drawing thread never reads a process, so a slow one does not hold up a key. What has come in meanwhile
//! is taken in at once and drawn once.

use super::draw::draw;
use super::look::Look;
use super::sampler::{Sample, Sampler};
use super::screen::Screen;
use super::state::{Action, State};
use crate::descriptors::told;
use core::time::Duration;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::collections::BTreeSet;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Instant;

/// How long the thread of the keys waits before it looks whether it is to end.
const PATIENCE: Duration = Duration::from_millis(200);

/// What comes in.
enum Message {
    Refresh(Box<Sample>),
    Event(Event),
    Signal(i32),
    /// Nothing can be read any more.
    Failed(String),
}

/// What the reader is told.
enum Request {
    Watch(Option<u32>),
    Show(BTreeSet<u32>),
    Interval(Option<Duration>),
}

/// How the view ended.
pub(crate) enum End {
    /// The user quit.
    Quit,
    /// This signal ended it.
    Signal(i32),
    Failed(String),
}

/// Shows the view until it ends.
pub(crate) fn run(sampler: Sampler, mut state: State, look: Look) -> io::Result<End> {
    let (sender, messages) = channel();
    let (requests, receiver) = channel();
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT])?;
    let handle = signals.handle();
    let over = Arc::new(AtomicBool::new(false));
    let interval = state.interval;
    let mut screen = Screen::take()?;
    thread::scope(|scope| {
        let to = sender.clone();
        scope.spawn(move || {
            // A mistake there would leave a view that never changes. What went wrong was printed already.
            let read = || read(sampler, interval, &receiver, &to);
            if catch_unwind(AssertUnwindSafe(read)).is_err() {
                let _ = to.send(Message::Failed("reading has ended by a mistake of its own".to_owned()));
            }
        });
        let to = sender.clone();
        scope.spawn(move || {
            for signal in signals.forever() {
                if to.send(Message::Signal(signal)).is_err() {
                    break;
                }
            }
        });
        let ended = Arc::clone(&over);
        // Not waited for: when the terminal is gone, the library looks for its next key for ever. Before, a
        // view whose connection was cut used a processor until it was killed.
        thread::spawn(move || keys(&sender, &ended));
        let result = show(&mut screen, &mut state, look, &messages, &requests);
        over.store(true, Ordering::Relaxed);
        handle.close();
        // Without its requests the reader ends.
        drop(requests);
        drop(messages);
        // What is still being read is not waited for with the terminal taken.
        drop(screen);
        result
    })
}

/// Draws, and takes in what comes.
fn show(
    screen: &mut Screen,
    state: &mut State,
    look: Look,
    messages: &Receiver<Message>,
    requests: &Sender<Request>,
) -> io::Result<End> {
    let mut shown = BTreeSet::new();
    loop {
        screen.draw(|frame| draw(frame, state, look))?;
        let now: BTreeSet<u32> = state.shown().collect();
        if now != shown {
            shown.clone_from(&now);
            let _ = requests.send(Request::Show(now));
        }
        let Ok(first) = messages.recv() else { return Ok(End::Quit) };
        for message in std::iter::once(first).chain(messages.try_iter()) {
            let action = match message {
                Message::Refresh(sample) => {
                    state.refresh(*sample);
                    Action::None
                }
                Message::Event(Event::Key(key)) if key.kind != KeyEventKind::Release => state.key(key),
                // The size is asked for at each drawing. What the terminal made of the old screen nobody knows,
                // even if its size is what it was.
                Message::Event(Event::Resize(..)) => {
                    screen.forget()?;
                    Action::None
                }
                Message::Event(_) => Action::None,
                Message::Signal(SIGTSTP) => Action::Suspend,
                // Stopped by SIGSTOP, nobody could give the terminal back; it is taken again as if somebody had.
                Message::Signal(SIGCONT) => Action::Redraw,
                Message::Signal(signal) => return Ok(End::Signal(signal)),
                Message::Failed(why) => return Ok(End::Failed(why)),
            };
            match action {
                Action::None => {}
                Action::Quit => return Ok(End::Quit),
                Action::Suspend => {
                    screen.lend();
                    emulate_default_handler(SIGTSTP)?;
                    screen.take_again()?;
                }
                Action::Redraw => screen.take_again()?,
                Action::Watch(id) => drop(requests.send(Request::Watch(id))),
                Action::Interval(interval) => drop(requests.send(Request::Interval(interval))),
            }
        }
    }
}

/// Hands on what is typed, and changes of the size.
fn keys(to: &Sender<Message>, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        let message = match event::poll(PATIENCE) {
            Ok(false) => continue,
            Ok(true) => match event::read() {
                Ok(event) => Message::Event(event),
                Err(error) => Message::Failed(format!("the terminal is gone: {error}", error = told(&error))),
            },
            Err(error) => Message::Failed(format!("the terminal is gone: {error}", error = told(&error))),
        };
        let failed = matches!(message, Message::Failed(_));
        if to.send(message).is_err() || failed {
            return;
        }
    }
}

/// Reads, an interval from one beginning to the next, until nobody asks any more.
fn read(mut sampler: Sampler, interval: Duration, requests: &Receiver<Request>, to: &Sender<Message>) {
    let mut interval = Some(interval);
    let mut next = Some(Instant::now());
    let mut is_first = true;
    loop {
        let request = match next {
            None => requests.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(next) => requests.recv_timeout(next.saturating_duration_since(Instant::now())),
        };
        match request {
            Err(RecvTimeoutError::Disconnected) => return,
            Ok(Request::Show(shown)) => sampler.show(shown),
            Ok(Request::Watch(id)) => {
                sampler.watch(id);
                // At once, also while the rest stands still.
                if id.is_some() {
                    sampler.deep();
                    if to.send(Message::Refresh(Box::new(sampler.sample(false)))).is_err() {
                        return;
                    }
                }
            }
            Ok(Request::Interval(new)) => {
                interval = new;
                next = interval.map(|interval| Instant::now() + interval);
            }
            Err(RecvTimeoutError::Timeout) => {
                let begin = Instant::now();
                if let Err(error) = sampler.cheap() {
                    let _ = to.send(Message::Failed(format!(
                        "there is no list of processes: {error}",
                        error = told(&error)
                    )));
                    return;
                }
                // What is cheap is on the screen before the rest is read for the first time.
                if std::mem::take(&mut is_first)
                    && to.send(Message::Refresh(Box::new(sampler.sample(false)))).is_err()
                {
                    return;
                }
                sampler.deep();
                if to.send(Message::Refresh(Box::new(sampler.sample(true)))).is_err() {
                    return;
                }
                next = interval.map(|interval| begin + interval);
            }
        }
    }
}

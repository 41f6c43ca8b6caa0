//! The terminal: taken, and given back as it was, whatever happens.
//!
//! Taken means raw mode, the alternate screen, no cursor. It is given back when the guard is dropped, when the
//! program panics (before the message is printed, so that it can be read), when the shell gets the terminal
//! (Ctrl-Z, `SIGTSTP`), and before the program dies of a signal. Giving back twice does no harm.

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::layout::{Rect, Size};
use ratatui::{Frame, Terminal, TerminalOptions, Viewport};
use std::io::{self, Stdout, stdout};
use std::panic;
use std::sync::Arc;

/// Columns and lines of a terminal that does not tell its size.
const USUAL: (u16, u16) = (80, 24);
/// Most columns and lines that are drawn on.
const MOST: (u16, u16) = (2000, 500);

type Hook = Arc<dyn Fn(&panic::PanicHookInfo<'_>) + Sync + Send>;

/// The terminal while it is taken.
pub(crate) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    /// What was called at a panic before.
    hook: Hook,
}

impl Screen {
    /// Takes the terminal.
    pub(crate) fn take() -> io::Result<Self> {
        let hook: Hook = panic::take_hook().into();
        let before = Arc::clone(&hook);
        panic::set_hook(Box::new(move |info| {
            give_back();
            before(info);
        }));
        // From here on, dropping gives back.
        let options = TerminalOptions { viewport: Viewport::Fixed(Rect::ZERO) };
        let terminal = Terminal::with_options(CrosstermBackend::new(stdout()), options)?;
        let mut screen = Self { terminal, hook };
        screen.take_again()?;
        Ok(screen)
    }

    /// Takes it again after the shell had it.
    pub(crate) fn take_again(&mut self) -> io::Result<()> {
        enable_raw_mode()?;
        execute!(stdout(), EnterAlternateScreen, Clear(ClearType::All))?;
        self.forget()
    }

    /// Forgets what was drawn before, so that all is drawn.
    pub(crate) fn forget(&mut self) -> io::Result<()> {
        self.terminal.clear()
    }

    /// Draws, on as much of the terminal as is drawn on.
    pub(crate) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        let area = drawn_on(self.terminal.size()?);
        if area != self.terminal.get_frame().area() {
            self.terminal.resize(area)?;
        }
        self.terminal.draw(draw).map(drop)
    }

    /// Gives it to the shell for a while.
    pub(crate) fn lend(&mut self) {
        give_back();
    }
}

/// The part of a terminal of this size that is drawn on. One without a size (a serial line, a terminal nobody
/// has told of it) has that of the terminals which such lines go to. Of one that claims 65,535 lines of 65,535
/// columns the cells alone would be more memory than there is.
fn drawn_on(size: Size) -> Rect {
    let side = |told: u16, usual: u16, most: u16| if told == 0 { usual } else { told.min(most) };
    Rect::new(0, 0, side(size.width, USUAL.0, MOST.0), side(size.height, USUAL.1, MOST.1))
}

/// Whether another process group has the terminal, as while this one is in the background.
///
/// Whoever takes the terminal then is stopped (`SIGTTOU`), and with handlers installed not even `SIGTERM` ends
/// it: that waits until it is continued, and continued it takes the terminal again.
pub(crate) fn is_of_others() -> bool {
    // SAFETY: both calls take at most a number and answer one.
    let (theirs, ours) = unsafe { (libc::tcgetpgrp(libc::STDIN_FILENO), libc::getpgrp()) };
    // A terminal that does not control this session stops nobody, and answers an error.
    theirs > 0 && theirs != ours
}

/// Makes the terminal what it was. Errors have nobody to be told to: it is gone then.
fn give_back() {
    let _ = disable_raw_mode();
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
        if !std::thread::panicking() {
            let before = Arc::clone(&self.hook);
            panic::set_hook(Box::new(move |info| before(info)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    use std::process::{Command, Stdio};

    const CHILD: &str = "HUGEHEAP_TEST_SCREEN";

    /// Both ends of a new terminal.
    fn terminal() -> (File, OwnedFd) {
        let (mut ours, mut theirs) = (-1, -1);
        let none = std::ptr::null_mut();
        // SAFETY: the call fills both numbers when it answers 0; the other pointers may be null. Each number
        // becomes one owner's.
        unsafe {
            assert_eq!(libc::openpty(&raw mut ours, &raw mut theirs, none, none.cast(), none.cast()), 0);
            (File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs))
        }
    }

    fn modes(terminal: &impl AsRawFd) -> (u32, u32, u32) {
        let mut modes = std::mem::MaybeUninit::<libc::termios>::uninit();
        // SAFETY: the call fills the structure when it answers 0, and only then is it read.
        let modes = unsafe {
            assert_eq!(libc::tcgetattr(terminal.as_raw_fd(), modes.as_mut_ptr()), 0);
            modes.assume_init()
        };
        (modes.c_lflag, modes.c_iflag, modes.c_oflag)
    }

    /// It was a request for 170 GB, which ended the program; and nothing was drawn on a terminal without a size.
    #[test]
    fn a_terminal_of_any_size_is_drawn_on() {
        let of = |width, height| {
            let area = drawn_on(Size::new(width, height));
            (area.width, area.height)
        };
        assert_eq!(of(120, 40), (120, 40));
        assert_eq!(of(1, 1), (1, 1));
        assert_eq!(of(u16::MAX, u16::MAX), (2000, 500));
        assert_eq!(of(0, 0), (80, 24));
    }

    #[test]
    fn a_panic_gives_the_terminal_back_before_it_is_told() {
        if std::env::var_os(CHILD).is_some() {
            let _screen = Screen::take().unwrap();
            panic!("on purpose");
        }
        let (mut ours, theirs) = terminal();
        let before = modes(&theirs);
        let end = || Stdio::from(theirs.try_clone().unwrap());
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "top::screen::tests::a_panic_gives_the_terminal_back_before_it_is_told",
                "--nocapture",
            ])
            .env(CHILD, "1")
            .env("TERM", "xterm")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        // Ours is kept open, so that the modes outlive the child; what it wrote is read meanwhile.
        let reader = std::thread::spawn(move || {
            let (mut all, mut buffer) = (Vec::new(), [0; 4096]);
            while !String::from_utf8_lossy(&all).contains("test result") {
                match ours.read(&mut buffer) {
                    Ok(count) if count > 0 => all.extend_from_slice(&buffer[..count]),
                    _ => break,
                }
            }
            (ours, String::from_utf8_lossy(&all).into_owned())
        });
        assert!(!child.wait().unwrap().success());
        let (_ours, said) = reader.join().unwrap();
        assert_eq!(modes(&theirs), before);
        let at = |text: &str| said.find(text).unwrap_or_else(|| panic!("no {text:?} in {said:?}"));
        assert!(at("\u{1b}[?1049h") < at("\u{1b}[?1049l"));
        assert!(at("\u{1b}[?1049l") < at("on purpose"), "the message can be read: {said:?}");
    }
}

//! The terminal: taken, and given back as it was, whatever happens.
//!
//! Taken means raw mode, the alternate screen, no cursor. It is given back when the guard is dropped, when the program panics
//! (before the message is printed, so that it can be read), when the shell gets the terminal (Ctrl-Z, `SIGTSTP`), and before the program
//! dies of a signal. Giving back twice does no harm.

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use std::io::{self, Stdout, stdout};
use std::panic;
use std::sync::Arc;

type Hook = Arc<dyn Fn(&panic::PanicHookInfo<'_>) + Sync + Send>;

/// The terminal while it is taken.
pub(crate) struct Screen {
    pub(crate) terminal: Terminal<CrosstermBackend<Stdout>>,
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
        let terminal = Terminal::new(CrosstermBackend::new(stdout()))?;
        let mut screen = Self { terminal, hook };
        screen.take_again()?;
        Ok(screen)
    }

    /// Takes it again after the shell had it.
    pub(crate) fn take_again(&mut self) -> io::Result<()> {
        enable_raw_mode()?;
        execute!(stdout(), EnterAlternateScreen)?;
        self.terminal.clear()
    }

    /// Gives it to the shell for a while.
    pub(crate) fn lend(&mut self) {
        give_back();
    }
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

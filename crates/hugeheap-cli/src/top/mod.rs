//! `hugeheap top`: processes, live.
//!
//! ```text
//!   schedule ──▶ sampler   reading: what is cheap always, what is not in turn; host
//!                   │
//!                   ▼ Sample
//!   keys ─────▶  state     what is selected, sorted, filtered; history
//!                   │
//!                   ▼
//!                 draw     list, detail, help, through look (colours, ASCII)
//!
//!   live runs it on a terminal (screen); batch without one
//! ```

pub(crate) mod arguments;
mod batch;
mod draw;
mod heap;
mod history;
mod host;
mod live;
mod look;
mod sampler;
mod schedule;
mod screen;
mod state;

use crate::descriptors::told;
use crate::process::{self, Doing};
use crate::{Context, exit};
use arguments::TopArguments;
use core::time::Duration;
use live::End;
use look::Look;
use sampler::Sampler;
use state::State;
use std::io::{IsTerminal, stdin, stdout};

pub(crate) fn top(context: &Context, arguments: &TopArguments, json: bool) -> u8 {
    let out = &context.out;
    let state = State::new(
        arguments.sort,
        &arguments.filter,
        arguments.units,
        Duration::from_secs_f64(arguments.interval),
    );
    for id in &arguments.processes {
        if let Err(code) = process::status(context, *id, Doing::Look) {
            return code;
        }
    }
    let limit = Duration::from_secs_f64(arguments.budget);
    let sampler = Sampler::new(context.facts, &arguments.processes, limit, !context.root);
    let variable = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let unicode = look::is_unicode(variable);
    if json || arguments.batch.is_some() {
        // Text that goes to a file is for any reader, as that of other commands; ASCII when asked for.
        let look = Look { colours: false, ascii: arguments.ascii };
        return batch::run(context, arguments, sampler, state, look, json);
    }
    if !stdin().is_terminal() || !stdout().is_terminal() {
        out.error(
            "top draws on a terminal, and standard input or output is none: --batch N prints text, --json data",
        );
        return exit::USAGE;
    }
    if arguments.lines.is_some() {
        out.error("--lines is for --batch and --json: the screen shows as many as fit");
        return exit::USAGE;
    }
    if variable("TERM").is_none_or(|term| term.is_empty() || term == "dumb") {
        out.error("this terminal (TERM) cannot be drawn on: --batch N prints text");
        return exit::UNSUPPORTED;
    }
    if screen::is_of_others() {
        out.error("top runs in the background, where the terminal is another program's: start it in the foreground, or --batch N prints text");
        return exit::UNSUPPORTED;
    }
    let look = Look { colours: out.colour_on_stdout(), ascii: arguments.ascii || !unicode };
    match live::run(sampler, state, look) {
        Ok(End::Quit) => exit::OK,
        Ok(End::Signal(signal)) => {
            // Whoever waits is to see what it died of; the terminal was given back.
            let _ = signal_hook::low_level::emulate_default_handler(signal);
            exit::OK
        }
        Ok(End::Failed(why)) => {
            out.error(&why);
            exit::UNSUPPORTED
        }
        Err(error) => {
            out.error(&format!("the terminal cannot be drawn on: {error}", error = told(&error)));
            exit::UNSUPPORTED
        }
    }
}

//! The hidden command `hugeheap bench worker`: one piece of work on a garbage-collected heap, in a process of its own.
//!
//! Each prints one line of JSON. The experiments start it as they start the programs of other languages, which
//! get the same words.

use super::{alloc_rate, cow, gc};
use crate::{Context, exit};
use clap::{Args, Subcommand};
use serde::Serialize;

/// One piece of work of an experiment. Not for users: it changes with the experiments.
#[derive(Debug, Args)]
pub(crate) struct WorkerArguments {
    #[command(subcommand)]
    work: Work,
}

#[derive(Debug, Subcommand)]
enum Work {
    AllocRate(alloc_rate::worker::Words),
    Gc(gc::worker::Words),
    Cow(cow::worker::Words),
}

/// Does the work and prints what it told.
pub(crate) fn worker(context: &Context, arguments: &WorkerArguments) -> u8 {
    let result = match &arguments.work {
        Work::AllocRate(words) => text(alloc_rate::worker::work(words)),
        Work::Gc(words) => text(gc::worker::work(words)),
        Work::Cow(words) => text(cow::worker::work(words)),
    };
    match result {
        Ok(text) => {
            context.out.data(&text);
            exit::OK
        }
        Err(why) => {
            context.out.error(&why);
            exit::UNSUPPORTED
        }
    }
}

fn text<T: Serialize>(result: Result<T, String>) -> Result<String, String> {
    let text = serde_json::to_string(&result?).map_err(|error| error.to_string())?;
    Ok(format!("{text}\n"))
}

//! `hugeheap bench`: experiments, side by side with stock and with peers.
//!
//! Every experiment is a module with a function that takes its arguments and returns an exit code. What they share:
//!
//! * [`process`]: one measured process, from start to end, with [`counters`] where the machine has them
//! * [`touch`]: making the host hand out memory before a measurement needs it
//! * [`charge`]: a memory cgroup for one process, so that its charge can be read
//! * [`python`], [`peers`]: interpreters and allocators found on this machine
//! * [`series`]: workloads on variants, in turn; [`observed`]: a process whose memory is looked at
//! * [`variant`]: what a workload runs on: stock, hugeheap at its levels and policies, peers
//! * [`sample`]: a process's memory over time; [`plot`] draws it
//! * [`forked`], [`trials`], [`region`]: work that this program does itself, in processes of its own
//! * [`measuring`]: what the comparison of allocators in `bench/` shares
//! * [`subject`]: programs of other languages that do the same work; [`worker`]: this program as one of them
//! * [`instructions`]: instructions and cycles per object
//! * [`requirements`]: what the host must have for it
//! * [`table`], [`grid`]: tables for a terminal and a report; [`goal`]: claims checked; [`report`]: what is
//!   done before and after

pub(crate) mod all;
pub(crate) mod alloc_rate;
pub(crate) mod cgroup;
pub(crate) mod charge;
pub(crate) mod counters;
pub(crate) mod cow;
mod forked;
pub(crate) mod gc;
mod give_back;
mod goal;
mod grid;
pub(crate) mod heap_pages;
mod instructions;
pub(crate) mod interrupt;
mod list;
pub mod measuring;
mod obmalloc;
mod observed;
mod page_reporting;
mod peers;
mod plot;
mod process;
mod python;
mod region;
pub(crate) mod report;
mod requirements;
mod sample;
mod series;
pub(crate) mod startup;
pub(crate) mod stranded;
pub(crate) mod stride;
mod subject;
pub(crate) mod table;
pub(crate) mod touch;
mod trials;
mod variant;
pub(crate) mod worker;

use crate::Context;
use crate::cli::{BenchArguments, Experiment};

/// Runs an experiment. `json`: `--json` was given before the command.
pub(crate) fn bench(context: &Context, arguments: BenchArguments, json: bool) -> u8 {
    match arguments.experiment {
        Experiment::List(mut arguments) => {
            arguments.json |= json;
            list::list(context, &arguments)
        }
        Experiment::All(mut arguments) => {
            if json && arguments.json.is_none() {
                arguments.json = Some(None);
            }
            all::all(context, &arguments)
        }
        Experiment::Obmalloc(mut arguments) => {
            arguments.report.json_too(json);
            obmalloc::obmalloc(context, &arguments)
        }
        Experiment::GiveBack(mut arguments) => {
            arguments.report.json_too(json);
            give_back::give_back(context, &arguments)
        }
        Experiment::AllocRate(mut arguments) => {
            arguments.report.json_too(json);
            alloc_rate::alloc_rate(context, &arguments)
        }
        Experiment::Gc(mut arguments) => {
            arguments.report.json_too(json);
            gc::gc(context, &arguments)
        }
        Experiment::Cow(mut arguments) => {
            arguments.report.json_too(json);
            cow::cow(context, &arguments)
        }
        Experiment::Worker(arguments) => worker::worker(context, &arguments),
        Experiment::Stride(mut arguments) => {
            arguments.report.json_too(json);
            stride::stride(context, &arguments)
        }
        Experiment::Stranded(mut arguments) => {
            arguments.report.json_too(json);
            stranded::stranded(context, &arguments)
        }
        Experiment::Startup(mut arguments) => {
            arguments.report.json_too(json);
            startup::startup(context, &arguments)
        }
        Experiment::Cgroup(mut arguments) => {
            arguments.report.json_too(json);
            cgroup::cgroup(context, &arguments)
        }
        Experiment::HeapPages(mut arguments) => {
            arguments.report.json_too(json);
            heap_pages::heap_pages(context, &arguments)
        }
    }
}

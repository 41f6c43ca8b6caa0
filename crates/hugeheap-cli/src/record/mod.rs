//! `hugeheap record`: the memory of a command or a running process over time.
//!
//! ```text
//!   watch ──▶ Sample ──▶ file    a row at once; documents when the recording is twice as long as last time, and at its end
//!                  └───▶ data    kept for JSON, thinned when there are too many
//!
//!   -- COMMAND   supervised (signals in, status out) on this thread; looks on another
//!   --pid        looks on this thread until the process ends, the time is up, or a signal comes
//! ```
//!
//! What a recording costs the command, besides the looks (see [`watch`](crate::watch)): whatever can be done
//! later is done when it runs already, on the thread that looks; and that thread is woken at the command's end,
//! instead of ending with its next look: 25 ms on the average.

pub(crate) mod arguments;
mod data;
mod file;

pub(crate) use data::SCHEMA;

use crate::bench::charge::Group;
use crate::bench::interrupt;
use crate::descriptors::told;
use crate::output::{Output, bytes, counted, seconds};
use crate::process::{self, Doing};
use crate::run::supervise::{self, Ended};
use crate::watch::{Charge, Sample, Tree, Watch, adopt_orphans};
use crate::{Context, exit, host, reproduce};
use arguments::RecordArguments;
use data::{Kept, Recording};
use file::Files;
use hugeheap_os::linux::{Linux, LinuxProcess};
use serde_json::{Value, json};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Longest wait between two looks at whether the recording is to end, where nobody wakes.
const NAP: Duration = Duration::from_millis(100);
/// Looks may fall behind the rate by this before it is worth a line: a loaded machine is late a few times.
const TOLERATED: f64 = 0.8;
/// Of fewer looks nothing can be said.
const FEW: u64 = 10;

/// What is recorded.
struct Subject {
    name: String,
    command: Option<Vec<String>>,
    /// Number and name of a process that was running.
    process: Option<Value>,
    children: bool,
    rate: f64,
    /// Share of the time that looks may take.
    cost: f64,
    /// Whose charge it is: `own`, or the path of a control group with others in it.
    charge_of: Option<String>,
    no_charge: Option<String>,
}

pub(crate) fn record(context: &Context, arguments: &RecordArguments) -> u8 {
    let out = &context.out;
    if context.root {
        out.error("--root shows another host's files: nothing there can be recorded");
        return exit::USAGE;
    }
    match arguments.pid {
        Some(pid) => attached(context, arguments, pid),
        None => started(context, arguments),
    }
}

/// Records a command from its start to its end.
fn started(context: &Context, arguments: &RecordArguments) -> u8 {
    let out = &context.out;
    let words: Vec<_> = arguments.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let line = reproduce::line(&arguments.command);
    let group = Group::create();
    let subject = Subject {
        name: arguments.name.clone().unwrap_or_else(|| line.clone()),
        command: Some(words),
        process: None,
        children: arguments.children,
        rate: arguments.rate,
        cost: arguments.cost,
        charge_of: group.is_ok().then(|| "own".to_owned()),
        no_charge: group.as_ref().err().cloned(),
    };
    if let Err(why) = &group {
        out.warning(&format!("no charge is recorded: {why} (run it as root, or in a delegated group)"));
    }
    let group = group.ok();
    let mut session = match Session::new(context, arguments, subject) {
        Ok(session) => session,
        Err(code) => return code,
    };
    let mut command = Command::new(&arguments.command[0]);
    command.args(&arguments.command[1..]);
    if let Some(Err(error)) = group.as_ref().map(|group| group.adopt(&mut command)) {
        out.warning(&format!(
            "the command could not enter a control group of its own: {error}",
            error = told(&error)
        ));
    }
    let charge =
        group.as_ref().map(|it| Charge { file: it.usage_file(), counts_hugetlb: it.counts_hugetlb() });
    adopt_orphans();
    let over = AtomicBool::new(false);
    let (ended, left) = std::thread::scope(|scope| {
        let mut looks = None;
        let (session, over) = (&mut session, &over);
        let ended = supervise::supervised(&mut command, |pid| {
            looks = Some(scope.spawn(move || {
                let tree = Tree::new(pid, arguments.children).with_orphans();
                let watch = Watch::new(tree, context.facts, charge).within(arguments.cost);
                session.watch(watch, &|| over.load(Ordering::Relaxed), &std::thread::park_timeout)
            }));
        });
        over.store(true, Ordering::Relaxed);
        if let Some(looks) = &looks {
            looks.thread().unpark();
        }
        (ended, looks.and_then(|looks| looks.join().ok()).unwrap_or(0))
    });
    let ended = match ended {
        Ok(ended) => ended,
        Err(error) => {
            out.error(&format!("{line} could not be started: {error}", error = told(&error)));
            return if error.kind() == io::ErrorKind::NotFound {
                exit::NOT_FOUND
            } else {
                exit::NOT_EXECUTABLE
            };
        }
    };
    if left > 0 {
        out.warning(&format!(
            "still there: {} that the command started; the recording ended with the command",
            counted(left as u64, "process", "processes")
        ));
    }
    let is_whole = session.finish(out, ending(&ended));
    drop(group);
    if ended.status.success() && !is_whole {
        return exit::UNSUPPORTED;
    }
    supervise::end_like(ended.status)
}

/// How a command ended, for JSON: with what the kernel counted over its whole life.
fn ending(ended: &Ended) -> Value {
    // SAFETY: all zero is a valid value of this plain struct, which the call fills.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    json!({
        "by": "process",
        "status": ended.status.code(),
        "signal": ended.status.signal(),
        "user": seconds(usage.ru_utime),
        "system": seconds(usage.ru_stime),
        "minor_faults": usage.ru_minflt,
        "major_faults": usage.ru_majflt,
        // In KiB, of the largest process.
        "peak_of_a_process": usage.ru_maxrss as u64 * 1024,
    })
}

/// Records a process that is running.
fn attached(context: &Context, arguments: &RecordArguments, pid: u32) -> u8 {
    let out = &context.out;
    let opened = match process::open(context, pid, Doing::Look) {
        Ok(opened) => opened,
        Err(code) => return code,
    };
    let charge = Group::of(pid);
    let named = process::named(pid, &opened.status.name);
    let subject = Subject {
        name: arguments.name.clone().unwrap_or_else(|| opened.status.name.clone()),
        command: None,
        process: Some(json!({"id": pid, "name": opened.status.name})),
        children: arguments.children,
        rate: arguments.rate,
        cost: arguments.cost,
        charge_of: charge.as_ref().ok().map(|group| group.path.clone()),
        no_charge: charge.as_ref().err().cloned(),
    };
    if let Err(why) = &charge {
        out.warning(&format!("no charge is recorded: {why}"));
    }
    let charge = charge.ok().map(|it| Charge { file: it.usage, counts_hugetlb: it.counts_hugetlb });
    let mut session = match Session::new(context, arguments, subject) {
        Ok(session) => session,
        Err(code) => return code,
    };
    interrupt::watch();
    let until = arguments.duration.map(|duration| Instant::now() + Duration::from_secs_f64(duration));
    let is_over = || interrupt::noted().is_some() || until.is_some_and(|until| Instant::now() >= until);
    let watch = Watch::new(Tree::new(pid, arguments.children), context.facts, charge).within(arguments.cost);
    session.watch(watch, &is_over, &|left| std::thread::sleep(left.min(NAP)));
    let by = match interrupt::noted() {
        Some(signal) => json!({"by": "request", "signal": signal}),
        None if until.is_some_and(|until| Instant::now() >= until) => json!({"by": "duration"}),
        None => {
            let status = LinuxProcess::status_of(context.facts, pid);
            if status.is_ok_and(|status| status.main_thread_ended) {
                out.warning(&format!("{named}: {}", process::HEADLESS));
            } else {
                out.progress(&format!("{named} has ended"), true);
            }
            json!({"by": "process"})
        }
    };
    if session.finish(out, by) { exit::OK } else { exit::UNSUPPORTED }
}

/// The time from one look to the next, for so many in a second.
fn period(rate: f64) -> Duration {
    Duration::from_secs_f64(1.0 / rate)
}

/// A recording that goes on.
struct Session {
    subject: Subject,
    files: Files,
    kept: Kept,
    facts: Linux,
    /// Facts about the host, when they were needed.
    host: Option<Value>,
    started: u64,
    period: Duration,
    spent: Duration,
    looks: u64,
    /// Looks that had to wait longer than the period, so as not to cost too much.
    held_back: u64,
    /// The largest that was seen, and the last time.
    most: u64,
    time: u64,
}

impl Session {
    fn new(context: &Context, arguments: &RecordArguments, subject: Subject) -> Result<Self, u8> {
        let files = Files::create(&arguments.output).map_err(|(why, code)| {
            context.out.error(&why);
            code
        })?;
        Ok(Self {
            subject,
            files,
            kept: Kept::new(),
            facts: context.facts,
            host: None,
            started: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
            period: period(arguments.rate),
            spent: Duration::ZERO,
            looks: 0,
            held_back: 0,
            most: 0,
            time: 0,
        })
    }

    /// Looks until there is nothing more to see or `is_over`; `wait` waits for a time at most. Answers how many
    /// processes besides the first are left.
    fn watch(&mut self, mut watch: Watch, is_over: &dyn Fn() -> bool, wait: &dyn Fn(Duration)) -> usize {
        let mut next = Instant::now();
        while !is_over() {
            let begin = Instant::now();
            let Some(sample) = watch.look() else { break };
            self.note(sample);
            self.spent = watch.spent();
            if self.files.due(sample.time) {
                self.documents(None);
            } else if self.files.keeps() && self.host.is_none() {
                // Now, not at the end, where somebody waits.
                self.host = Some(host::facts(&self.facts));
            }
            let at_least = watch.at_least();
            self.held_back += u64::from(at_least > self.period);
            // Late: looks that were missed are not made up for.
            next = (next + self.period).max(begin + at_least).max(Instant::now());
            while let Some(left) = next.checked_duration_since(Instant::now()).filter(|_| !is_over()) {
                wait(left);
            }
        }
        watch.left()
    }

    fn note(&mut self, sample: Sample) {
        self.looks += 1;
        self.time = sample.time;
        self.most = self.most.max(sample.rss + sample.hugetlb);
        self.files.sample(&sample);
        if self.files.keeps() {
            self.kept.push(sample);
        }
    }

    fn documents(&mut self, ended: Option<Value>) {
        let recording = Recording {
            subject: &self.subject,
            kept: &self.kept,
            host: self.host.get_or_insert_with(|| host::facts(&self.facts)),
            started: self.started,
            looks: self.looks,
            spent: self.spent.as_secs_f64(),
            ended,
        };
        self.files.documents(&recording);
    }

    /// That looks were made more rarely than asked for, if they were.
    fn rarely(&self) -> Option<String> {
        let time = self.time as f64 / 1e9;
        let reached = (self.looks - 1) as f64 / time;
        // Half of them: a few that cost more say nothing of the recording.
        let is_rare =
            self.looks >= FEW && self.held_back * 2 > self.looks && reached < self.subject.rate * TOLERATED;
        is_rare.then(|| {
            format!(
                "{reached:.1} looks in a second, not {}: one takes {}, and all may take {} % of the time; --cost allows more",
                self.subject.rate,
                seconds(self.spent.as_secs_f64() / self.looks as f64),
                (self.subject.cost * 1e4).round() / 100.0
            )
        })
    }

    /// Writes the rest and says what came of it. Whether everything could be written.
    fn finish(mut self, out: &Output, ended: Value) -> bool {
        if self.files.keeps() {
            self.documents(Some(ended));
        }
        for failure in &self.files.failures {
            out.error(failure);
        }
        if self.looks == 0 && !process::proc_is_mounted() {
            out.warning(&format!("nothing was recorded: {}", process::NO_PROC));
        } else if self.looks == 0 {
            out.warning("it ended before it could be looked at; 'hugeheap stat' measures short commands");
        } else {
            out.progress(
                &format!(
                    "{} in {}, which took {}; at most {} resident",
                    counted(self.looks, "look", "looks"),
                    seconds(self.time as f64 / 1e9),
                    seconds(self.spent.as_secs_f64()),
                    bytes(self.most)
                ),
                true,
            );
            if let Some(rarely) = self.rarely() {
                out.warning(&rarely);
            }
        }
        self.files.failures.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_looks_in_a_second() {
        assert_eq!((period(20.0), period(0.5)), (Duration::from_millis(50), Duration::from_secs(2)));
    }
}

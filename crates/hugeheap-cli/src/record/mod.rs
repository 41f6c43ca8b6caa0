//! `hugeheap record`: the memory of a command or a running process over time.
//!
//! ```text
//!   watch ──▶ Sample ──▶ file    a row at once; documents when the recording is twice as long as last time, and at its end
//!                  └───▶ data    kept for JSON, thinned when there are too many
//!
//!   -- COMMAND   supervised (signals in, status out) on this thread; looks on another
//!   --pid        looks on this thread until the process ends, the time is up, or a signal comes
//! ```

pub(crate) mod arguments;
mod data;
mod file;

pub(crate) use data::SCHEMA;

use crate::bench::charge::Group;
use crate::bench::interrupt;
use crate::output::{Output, bytes, counted, seconds};
use crate::process::{self, Doing};
use crate::run::supervise::{self, Ended};
use crate::watch::{Charge, Sample, Tree, Watch, adopt_orphans};
use crate::{Context, exit, host, reproduce};
use arguments::RecordArguments;
use data::{Kept, Recording};
use file::Files;
use serde_json::{Value, json};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Longest wait between two looks at whether the recording is to end.
const NAP: Duration = Duration::from_millis(100);

/// What is recorded.
struct Subject {
    name: String,
    command: Option<Vec<String>>,
    /// Number and name of a process that was running.
    process: Option<Value>,
    children: bool,
    rate: f64,
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
        out.warning(&format!("the command could not enter a control group of its own: {error}"));
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
                session.watch(Watch::new(tree, context.facts, charge), &|| over.load(Ordering::Relaxed))
            }));
        });
        over.store(true, Ordering::Relaxed);
        (ended, looks.and_then(|looks| looks.join().ok()).unwrap_or(0))
    });
    let ended = match ended {
        Ok(ended) => ended,
        Err(error) => {
            out.error(&format!("{line} could not be started: {error}"));
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
        return exit::FINDINGS;
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
    let watch = Watch::new(Tree::new(pid, arguments.children), context.facts, charge);
    session.watch(watch, &is_over);
    let by = match interrupt::noted() {
        Some(signal) => json!({"by": "request", "signal": signal}),
        None if until.is_some_and(|until| Instant::now() >= until) => json!({"by": "duration"}),
        None => {
            out.progress(&format!("{named} has ended"), true);
            json!({"by": "process"})
        }
    };
    if session.finish(out, by) { exit::OK } else { exit::FINDINGS }
}

/// A recording that goes on.
struct Session {
    subject: Subject,
    files: Files,
    kept: Kept,
    host: Value,
    started: u64,
    period: Duration,
    spent: Duration,
    looks: u64,
    /// The largest that was seen, and the last time.
    most: u64,
    time: u64,
}

impl Session {
    fn new(context: &Context, arguments: &RecordArguments, subject: Subject) -> Result<Self, u8> {
        let files = Files::create(&arguments.output).map_err(|why| {
            context.out.error(&why);
            exit::USAGE
        })?;
        Ok(Self {
            subject,
            files,
            kept: Kept::new(),
            host: host::facts(&context.facts),
            started: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
            period: Duration::from_secs_f64(1.0 / arguments.rate),
            spent: Duration::ZERO,
            looks: 0,
            most: 0,
            time: 0,
        })
    }

    /// Looks until there is nothing more to see or `is_over`. Answers how many processes besides the first are left.
    fn watch(&mut self, mut watch: Watch, is_over: &dyn Fn() -> bool) -> usize {
        let mut next = Instant::now();
        while !is_over() {
            let Some(sample) = watch.look() else { break };
            self.note(sample);
            self.spent = watch.spent();
            if self.files.due(sample.time) {
                self.documents(None);
            }
            next += self.period;
            if next < Instant::now() {
                // Late: looks that were missed are not made up for.
                next = Instant::now();
            }
            while let Some(left) = next.checked_duration_since(Instant::now()).filter(|_| !is_over()) {
                std::thread::sleep(left.min(NAP));
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
            host: &self.host,
            started: self.started,
            spent: self.spent.as_secs_f64(),
            ended,
        };
        self.files.documents(&recording);
    }

    /// Writes the rest and says what came of it. Whether everything could be written.
    fn finish(mut self, out: &Output, ended: Value) -> bool {
        if self.files.keeps() {
            self.documents(Some(ended));
        }
        for failure in &self.files.failures {
            out.error(failure);
        }
        if self.looks == 0 {
            out.warning("it ended before it could be looked at; 'hugeheap stat' measures short commands");
        } else {
            out.progress(
                &format!(
                    "{} in {}, at most {} resident",
                    counted(self.looks, "look", "looks"),
                    seconds(self.time as f64 / 1e9),
                    bytes(self.most)
                ),
                true,
            );
        }
        self.files.failures.is_empty()
    }
}

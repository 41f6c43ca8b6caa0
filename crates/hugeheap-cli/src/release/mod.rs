//! `hugeheap release`: what is said of it. The work is `hugeheap_os::process::release`.

pub(crate) mod arguments;

use crate::output::{bytes, counted, seconds};
use crate::process::{self, Doing, named, words};
use crate::{Context, exit};
use arguments::ReleaseArguments;
use core::time::Duration;
use hugeheap_os::process::{Derivation, ReleaseOptions, ReleaseReport, Stop};
use serde_json::json;
use std::fmt::Write;

const SCHEMA: &str = "hugeheap.release/1";

pub(crate) fn release(context: &Context, arguments: &ReleaseArguments, json: bool) -> u8 {
    let out = &context.out;
    if process::root_is_only_for_looking(out, context.root, arguments.dry_run) {
        return exit::USAGE;
    }
    let id = arguments.process;
    let doing = if arguments.dry_run { Doing::Look } else { Doing::Release };
    let mut opened = match process::open(context, id, doing) {
        Ok(opened) => opened,
        Err(code) => return code,
    };
    if !arguments.dry_run {
        opened.process = process::until_a_signal(opened.process);
    }
    let options = options(arguments);
    let mut progress = |share: f64| out.progress(&format!("release: {:.0} %", share * 100.0), false);
    let result = hugeheap_os::process::release(&opened.process, &options, &mut progress);
    out.progress_end();
    let report = match result {
        Ok(report) => report,
        Err(error) => return process::refuse_opened(out, id, &opened, doing, error),
    };
    let name = &opened.status.name;
    out.data(&if json {
        data(id, name, &options, &report)
    } else {
        text(id, name, &options, &report, context.root)
    });
    process::ended(out, id, &opened, doing, report.stop, report.left)
}

/// What was asked for.
fn options(arguments: &ReleaseArguments) -> ReleaseOptions {
    ReleaseOptions {
        budget: Duration::from_secs_f64(arguments.budget),
        latency: Duration::from_millis(arguments.max_latency.into()),
        dry_run: arguments.dry_run,
    }
}

/// How the figures were come by.
fn derived(derivation: Derivation, root: bool) -> &'static str {
    match derivation {
        Derivation::Folios => {
            "exactly, from the physical pages behind its page tables (/proc/kpageflags, /proc/kpagecount)"
        }
        Derivation::Tables if root => {
            "an upper bound, from its page tables: each 2 MiB resident in part counts, huge page or not \
             (with --root nothing tells which)"
        }
        Derivation::Tables => {
            "an upper bound, from its page tables: each 2 MiB resident in part counts, huge page or not \
             (CAP_SYS_ADMIN tells which)"
        }
    }
}

fn text(id: u32, name: &str, options: &ReleaseOptions, report: &ReleaseReport, root: bool) -> String {
    let plan = &report.plan;
    let bound = if report.derivation == Derivation::Tables { "at most " } else { "" };
    let mut text = format!(
        "{}: {bound}{} stranded in {}\n",
        named(id, name),
        bytes(plan.stranded + plan.shared_stranded),
        words::huge_pages(plan.steps.len() as u64 + plan.shared),
    );
    let mut line = |what: &str, said: &str| {
        let _ = writeln!(text, "  {what:<12} {said}");
    };
    line("found", derived(report.derivation, root));
    if options.dry_run {
        line("would take", &format!("{} apart", words::huge_pages(plan.steps.len() as u64)));
    }
    if !options.dry_run && !plan.steps.is_empty() {
        line(
            "taken apart",
            &format!("{} in {}", words::huge_pages(report.split), seconds(report.elapsed.as_secs_f64())),
        );
        let slow = match report.slow_calls {
            0 => String::new(),
            count => format!(
                "; {} longer than {} ms, backed off",
                counted(count.into(), "call", "calls"),
                options.latency.as_millis()
            ),
        };
        line(
            "longest call",
            &format!(
                "{}: the process waited no longer at a time{slow}",
                seconds(report.longest_call.as_secs_f64())
            ),
        );
        if let Some(after) = report.after {
            line(
                "still there",
                &format!("{} stranded in {}", bytes(after.bytes), words::huge_pages(after.huge_pages)),
            );
        }
    }
    line("charge", &words::charge(report.limits.map(|limits| limits.charge), report.charge_after));
    if let Some(change) = words::change(report.resident.0, report.resident.1) {
        line("RSS", &change);
    }
    let shared =
        format!("{} × another process maps a part of it, too ({})", plan.shared, bytes(plan.shared_stranded));
    let left = format!("{} × not done", report.left);
    let mut what = "left alone";
    for (count, said) in [(plan.shared, shared), (report.left, left)] {
        if count > 0 {
            line(core::mem::take(&mut what), &said);
        }
    }
    let errors = words::errors(&report.calls);
    if !errors.is_empty() {
        line("errors", &errors);
    }
    if let Some(stop) = report.stop {
        line("ended early", &words::stopped(stop));
    }
    text
}

fn data(id: u32, name: &str, options: &ReleaseOptions, report: &ReleaseReport) -> String {
    let plan = &report.plan;
    let value = json!({
        "schema": SCHEMA,
        "process": {"id": id, "name": name},
        "dry_run": options.dry_run,
        "derivation": report.derivation.name(),
        "complete": report.complete,
        "plan": {
            "huge_pages": plan.steps.len(),
            "stranded": plan.stranded,
            "shared_huge_pages": plan.shared,
            "shared_stranded": plan.shared_stranded,
        },
        "taken_apart": report.split,
        "left": report.left,
        "after": report.after.map(|after| json!({"huge_pages": after.huge_pages, "stranded": after.bytes})),
        "retries": report.retries,
        "errors": words::errors_json(&report.calls),
        "longest_call_seconds": report.longest_call.as_secs_f64(),
        "slow_calls": report.slow_calls,
        "elapsed_seconds": report.elapsed.as_secs_f64(),
        "stopped": report.stop.map(Stop::name),
        "charge": {
            "cgroup": report.limits.map(|limits| format!("{:?}", limits.version).to_lowercase()),
            "before": report.limits.map(|limits| limits.charge),
            "after": report.charge_after,
        },
        "resident": {"before": report.resident.0, "after": report.resident.1},
    });
    crate::output::json(&value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugeheap_os::process::release;
    use hugeheap_os::simulated::{Kernel, RemoteProcess};
    use hugeheap_os::{AddressRange, Backing, Pages};
    use serde_json::Value;

    const HUGE: usize = 2 << 20;

    #[test]
    fn the_budget_is_seconds_and_the_latency_milliseconds() {
        use crate::cli::{Cli, Command};
        use clap::Parser;
        let line = ["hugeheap", "release", "7", "--budget", "2.5", "--max-latency", "40"];
        let Command::Release(arguments) = Cli::try_parse_from(line).unwrap().command else {
            panic!("not release")
        };
        let options = options(&arguments);
        assert_eq!(
            (options.budget, options.latency),
            (Duration::from_millis(2500), Duration::from_millis(40))
        );
        assert!(!options.dry_run);
    }

    fn kernel() -> Kernel {
        let kernel = Kernel::default();
        let range = kernel.reserve(4 * HUGE, HUGE).unwrap();
        // SAFETY: the range was just reserved; nothing is kept in it.
        unsafe {
            kernel.map(range, Backing::Thp).unwrap();
            kernel.touch(range).unwrap();
            for unit in (range.start..range.end()).step_by(HUGE) {
                kernel.decommit(AddressRange::new(unit + 4096, HUGE - 4096)).unwrap();
            }
        }
        kernel
    }

    fn said(process: &RemoteProcess, options: &ReleaseOptions) -> (String, Value) {
        let report = release(process, options, &mut |_| {}).unwrap();
        let value = serde_json::from_str(&data(7, "app", options, &report)).unwrap();
        (text(7, "app", options, &report, false), value)
    }

    #[test]
    fn everything_is_said() {
        let (text, value) = said(&RemoteProcess::new(&kernel()), &ReleaseOptions::default());
        assert!(text.starts_with("app (7): 8.0 MiB stranded in 4 huge pages\n"), "{text}");
        assert!(text.contains("taken apart  4 huge pages in"), "{text}");
        assert!(text.contains("still there  0 B stranded in 0 huge pages"), "{text}");
        assert!(text.contains("charge       8.0 MiB → 16.0 KiB"), "{text}");
        assert_eq!((&value["schema"], &value["taken_apart"]), (&json!(SCHEMA), &json!(4)));
        assert_eq!(value["charge"]["after"], 4 * 4096);
        assert_eq!(value["charge"]["cgroup"], "v2");
    }

    #[test]
    fn before_is_told_from_after_and_what_is_shared_from_what_is_not() {
        let options = ReleaseOptions::default();
        let mut report = release(&RemoteProcess::new(&kernel()), &options, &mut |_| {}).unwrap();
        (report.plan.stranded, report.plan.shared_stranded, report.resident) = (7, 3, (Some(10), Some(5)));
        (report.complete, report.left, report.slow_calls, report.retries) = (false, 1, 2, 4);
        let value: Value = serde_json::from_str(&data(7, "app", &options, &report)).unwrap();
        assert_eq!((&value["plan"]["stranded"], &value["plan"]["shared_stranded"]), (&json!(7), &json!(3)));
        assert_eq!(value["resident"], json!({"before": 10, "after": 5}));
        assert_eq!(value["complete"], false);
        assert_eq!([&value["left"], &value["slow_calls"], &value["retries"]], [1, 2, 4]);
    }

    #[test]
    fn an_upper_bound_is_called_one() {
        let kernel = kernel();
        let options = ReleaseOptions { dry_run: true, ..ReleaseOptions::default() };
        let (text, value) = said(&RemoteProcess::new(&kernel).without_folios(), &options);
        assert!(text.starts_with("app (7): at most 8.0 MiB stranded in 4 huge pages\n"), "{text}");
        assert!(text.contains("an upper bound") && !text.contains("taken apart"), "{text}");
        assert_eq!((&value["derivation"], &value["after"]), (&json!("page_tables"), &Value::Null));
        assert!(derived(Derivation::Tables, false).contains("CAP_SYS_ADMIN"));
        // The capability was named there, too, and would not help.
        assert!(derived(Derivation::Tables, true).contains("with --root nothing tells which"));
    }

    #[test]
    fn what_is_shared_is_said() {
        let kernel = kernel();
        let child = kernel.fork();
        let (text, value) = said(&RemoteProcess::new(&child), &ReleaseOptions::default());
        // Of it, nothing was to be done.
        assert!(text.starts_with("app (7): 8.0 MiB stranded in 4 huge pages\n"), "{text}");
        assert!(!text.contains("taken apart") && !text.contains("longest call"), "{text}");
        assert!(text.contains("left alone   4 × another process maps a part of it, too"), "{text}");
        assert_eq!(value["plan"]["shared_huge_pages"], 4);
    }
}

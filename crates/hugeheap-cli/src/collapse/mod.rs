//! `hugeheap collapse`: what is said of it. The work is `hugeheap_os::process::collapse`.

pub(crate) mod arguments;

use crate::output::{bytes, counted, seconds};
use crate::process::{self, Doing, named, words};
use crate::{Context, exit};
use arguments::CollapseArguments;
use core::time::Duration;
use hugeheap_os::ThpDisabled;
use hugeheap_os::process::{CollapseOptions, CollapseReport, Picture, Stop};
use serde_json::{Value, json};
use std::fmt::Write;

const SCHEMA: &str = "hugeheap.collapse/1";

pub(crate) fn collapse(context: &Context, arguments: &CollapseArguments, json: bool) -> u8 {
    let out = &context.out;
    if process::root_is_only_for_looking(out, context.root, arguments.dry_run) {
        return exit::USAGE;
    }
    let id = arguments.process;
    let doing = if arguments.dry_run { Doing::Look } else { Doing::Collapse };
    let mut opened = match process::open(context, id, doing) {
        Ok(opened) => opened,
        Err(code) => return code,
    };
    if !arguments.dry_run {
        opened.process = process::until_a_signal(opened.process);
    }
    if opened.status.thp_disabled == Some(ThpDisabled::Completely) {
        out.error(&format!(
            "{}: transparent huge pages are switched off for this process (PR_SET_THP_DISABLE), by itself or by what started \
             it, and only it can switch them on: {}",
            named(id, &opened.status.name),
            words::switch_remedy(&opened.status.name, "start it anew without")
        ));
        return exit::UNSUPPORTED;
    }
    let options = options(arguments);
    let mut progress = |share: f64| out.progress(&format!("collapse: {:.0} %", share * 100.0), false);
    let result = hugeheap_os::process::collapse(&opened.process, &options, &mut progress);
    out.progress_end();
    let report = match result {
        Ok(report) => report,
        Err(error) => return process::refuse_opened(out, id, &opened, doing, error),
    };
    let name = &opened.status.name;
    out.data(&if json { data(id, name, &options, &report) } else { text(id, name, &options, &report) });
    process::ended(out, id, &opened, doing, report.stop, report.left)
}

/// What was asked for.
fn options(arguments: &CollapseArguments) -> CollapseOptions {
    CollapseOptions {
        min_density: arguments.min_density,
        max_growth: arguments.max_growth,
        budget: Duration::from_secs_f64(arguments.budget),
        latency: Duration::from_millis(arguments.max_latency.into()),
        dry_run: arguments.dry_run,
    }
}

/// Lines of what is left alone, each with its reason.
fn left_alone(report: &CollapseReport, options: &CollapseOptions) -> Vec<String> {
    let skipped = report.plan.skipped;
    let density = format!("less than {:.0} % resident", options.min_density * 100.0);
    let reasons = [
        (skipped.sparse, density.as_str()),
        (skipped.over_limit, "memory would grow beyond the limit"),
        (skipped.edge, "cut by the end of their mapping"),
        (report.refused, "advised against huge pages, or of a kind that has none"),
        (report.changed, "changed by the process meanwhile"),
        (report.left, "not done"),
    ];
    let told = reasons.into_iter().filter(|(count, _)| *count > 0);
    told.map(|(count, reason)| format!("{count} × {reason}")).collect()
}

fn text(id: u32, name: &str, options: &CollapseOptions, report: &CollapseReport) -> String {
    let before = &report.before;
    let mut text = format!(
        "{}: {} of heap in memory, {} of it on huge pages\n",
        named(id, name),
        bytes(before.resident()),
        words::coverage(before.coverage()),
    );
    let mut line = |what: &str, said: &str| {
        let _ = writeln!(text, "  {what:<12} {said}");
    };
    let limit = bytes(report.plan.max_growth);
    if options.dry_run {
        line(
            "would make",
            &format!(
                "{} of {}; memory would grow by {} (limit {limit})",
                words::huge_pages(report.plan.steps.len() as u64),
                bytes(report.plan.bytes()),
                bytes(report.plan.growth),
            ),
        );
    } else {
        line(
            "made",
            &format!("{} in {}", words::huge_pages(report.collapsed), seconds(report.elapsed.as_secs_f64())),
        );
        if let Some(after) = &report.after {
            line(
                "coverage",
                &format!(
                    "{} → {} of {}",
                    words::coverage(before.coverage()),
                    words::coverage(after.coverage()),
                    bytes(after.resident())
                ),
            );
        }
        if report.collapsed > 0 {
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
            line("growth", &format!("{} at most (limit {limit})", bytes(report.plan.growth)));
        }
    }
    line("charge", &words::charge(report.charge.0, report.charge.1));
    for (index, reason) in left_alone(report, options).iter().enumerate() {
        line(if index == 0 { "left alone" } else { "" }, reason);
    }
    let errors = words::errors(&report.calls);
    if !errors.is_empty() {
        line("errors", &errors);
    }
    if let Some(stop) = report.stop {
        line("ended early", &words::stopped(stop));
    } else if report.plan.steps.is_empty() {
        line("nothing to do", nothing_to_do(report, options));
    }
    text
}

/// Why a plan has no steps.
fn nothing_to_do(report: &CollapseReport, options: &CollapseOptions) -> &'static str {
    let skipped = report.plan.skipped;
    if skipped.over_limit > 0 && options.max_growth.is_some_and(|asked| report.plan.max_growth < asked) {
        "raise the limit of its memory cgroup: it has no room for what --max-growth accepts"
    } else if skipped.over_limit > 0 {
        "raise --max-growth to accept more memory"
    } else if report.refused > skipped.sparse {
        "the program advises its memory against huge pages (MADV_NOHUGEPAGE): only it can change that"
    } else if skipped.sparse > 0 {
        "lower --min-density to accept more holes"
    } else if skipped.huge > 0 {
        "all that can be huge is"
    } else {
        "no 2 MiB of heap in one piece"
    }
}

fn heap(picture: &Picture) -> Value {
    json!({
        "resident": picture.resident(),
        "huge": picture.huge(),
        "coverage": picture.coverage(),
        "complete": picture.complete,
    })
}

fn data(id: u32, name: &str, options: &CollapseOptions, report: &CollapseReport) -> String {
    let skipped = report.plan.skipped;
    let value = json!({
        "schema": SCHEMA,
        "process": {"id": id, "name": name},
        "dry_run": options.dry_run,
        "min_density": options.min_density,
        "heap": {"before": heap(&report.before), "after": report.after.as_ref().map(heap)},
        "plan": {
            "huge_pages": report.plan.steps.len(),
            "bytes": report.plan.bytes(),
            "growth": report.plan.growth,
            "max_growth": report.plan.max_growth,
            "skipped": {
                "huge": skipped.huge,
                "sparse": skipped.sparse,
                "over_limit": skipped.over_limit,
                "edge": skipped.edge,
            },
        },
        "made": report.collapsed,
        "refused": report.refused,
        "changed": report.changed,
        "left": report.left,
        "retries": report.retries,
        "errors": words::errors_json(&report.calls),
        "longest_call_seconds": report.longest_call.as_secs_f64(),
        "slow_calls": report.slow_calls,
        "elapsed_seconds": report.elapsed.as_secs_f64(),
        "stopped": report.stop.map(Stop::name),
        "charge": {"before": report.charge.0, "after": report.charge.1},
    });
    crate::output::json(&value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugeheap_os::process::collapse;
    use hugeheap_os::simulated::{Call, Kernel, RemoteProcess};
    use hugeheap_os::{AddressRange, Backing, Pages};

    const HUGE: usize = 2 << 20;

    #[test]
    fn the_budget_is_seconds_and_the_latency_milliseconds() {
        use crate::cli::{Cli, Command};
        use clap::Parser;
        let line = ["hugeheap", "collapse", "7", "--budget", "2.5", "--max-latency", "40"];
        let Command::Collapse(arguments) = Cli::try_parse_from(line).unwrap().command else {
            panic!("not collapse")
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
        // SAFETY: the range was just reserved.
        unsafe { kernel.map(range, Backing::Plain).unwrap() };
        kernel.touch(AddressRange::new(range.start, 3 * HUGE - 4096)).unwrap();
        kernel.touch(AddressRange::new(range.start + 3 * HUGE, 4096)).unwrap();
        kernel
    }

    fn said(kernel: &Kernel, options: &CollapseOptions) -> (String, Value) {
        let report = collapse(&RemoteProcess::new(kernel), options, &mut |_| {}).unwrap();
        let value = serde_json::from_str(&data(7, "app", options, &report)).unwrap();
        (text(7, "app", options, &report), value)
    }

    #[test]
    fn everything_is_said() {
        let (text, value) = said(&kernel(), &CollapseOptions::default());
        assert!(
            text.starts_with("app (7): 6.0 MiB of heap in memory, 0.0 % of it on huge pages\n"),
            "{text}"
        );
        assert!(text.contains("made         3 huge pages in"), "{text}");
        assert!(text.contains("coverage     0.0 % → 99.9 % of 6.0 MiB"), "{text}");
        assert!(text.contains("1 × less than 90 % resident"), "{text}");
        assert_eq!((&value["schema"], &value["made"]), (&json!(SCHEMA), &json!(3)));
        assert_eq!(value["plan"]["growth"], 4096);
        let coverage = value["heap"]["after"]["coverage"].as_f64().unwrap();
        assert!(coverage > 0.999 && coverage <= 1.0, "a share: {coverage}");
        assert_eq!(value["stopped"], Value::Null);
    }

    #[test]
    fn what_went_wrong_is_counted_by_its_kind() {
        let options = CollapseOptions::default();
        let report = collapse(&RemoteProcess::new(&kernel()), &options, &mut |_| {}).unwrap();
        let report = CollapseReport { refused: 1, changed: 2, left: 3, retries: 4, slow_calls: 5, ..report };
        let value: Value = serde_json::from_str(&data(7, "app", &options, &report)).unwrap();
        let told =
            ["refused", "changed", "left", "retries", "slow_calls"].map(|name| value[name].as_u64().unwrap());
        assert_eq!(told, [1, 2, 3, 4, 5]);
        let text = text(7, "app", &options, &report);
        assert!(text.contains("5 calls longer than") && text.contains("3 × not done"), "{text}");
    }

    #[test]
    fn a_plan_is_told_from_a_deed() {
        let (text, value) = said(&kernel(), &CollapseOptions { dry_run: true, ..CollapseOptions::default() });
        assert!(text.contains("would make   3 huge pages of 6.0 MiB"), "{text}");
        assert!(!text.contains("made "), "{text}");
        assert_eq!(value["heap"]["after"], Value::Null);
    }

    #[test]
    fn errors_and_an_early_end_are_explained() {
        let kernel = kernel();
        kernel.fail_every(Call::Collapse, 1, libc::EBUSY);
        let (text, value) = said(&kernel, &CollapseOptions::default());
        assert!(text.contains("EBUSY (the memory cgroup is full)"), "{text}");
        assert!(text.contains("ended early  the memory cgroup has no room"), "{text}");
        assert_eq!((&value["stopped"], &value["errors"]["EBUSY"]), (&json!("cgroup_full"), &json!(3)));
    }

    #[test]
    fn a_process_that_ended_meanwhile_has_nothing_after() {
        let kernel = kernel();
        let process = RemoteProcess::new(&kernel).ending_after(1).staying();
        let options = CollapseOptions::default();
        let report = collapse(&process, &options, &mut |_| {}).unwrap();
        assert_eq!(report.stop, Some(Stop::Gone));
        let value: Value = serde_json::from_str(&data(7, "app", &options, &report)).unwrap();
        assert_eq!((&value["heap"]["after"], &value["charge"]["after"]), (&Value::Null, &Value::Null));
        let text = text(7, "app", &options, &report);
        assert!(!text.contains("coverage "), "{text}");
        assert!(text.contains("made         1 huge page in") && text.contains("longest call"), "{text}");
    }

    #[test]
    fn nothing_to_do_has_a_reason() {
        let (text, _) =
            said(&kernel(), &CollapseOptions { max_growth: Some(0), min_density: 1.0, ..Default::default() });
        assert!(text.contains("left alone"), "{text}");
        // Of what was asked for, the memory cgroup has room for a part: --max-growth was named, which was
        // raised already.
        let options = CollapseOptions::default();
        let mut report = collapse(&RemoteProcess::new(&kernel()), &options, &mut |_| {}).unwrap();
        report.plan.skipped.over_limit = 1;
        report.plan.max_growth = 100;
        let asked =
            |max_growth| nothing_to_do(&report, &CollapseOptions { max_growth, ..Default::default() });
        assert!(asked(Some(101)).contains("its memory cgroup"));
        assert!(
            asked(Some(100)).contains("raise --max-growth") && asked(None).contains("raise --max-growth")
        );
        // The one sparse 2 MiB that there is, and some that are refused: the remedy is the one that helps most of them.
        report.plan.skipped = Default::default();
        report.plan.skipped.sparse = 1;
        let of = |refused| nothing_to_do(&CollapseReport { refused, ..report.clone() }, &options);
        assert!(of(0).contains("lower --min-density") && of(1).contains("lower --min-density"));
        assert!(of(2).contains("MADV_NOHUGEPAGE"));
        let empty = Kernel::default();
        let (text, _) = said(&empty, &CollapseOptions::default());
        assert!(text.contains("nothing to do"), "{text}");
    }
}

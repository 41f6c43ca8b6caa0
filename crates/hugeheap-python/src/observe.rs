//! The host, processes, and changing what backs their memory, as functions on plain numbers. The package makes
//! typed objects of them.
//!
//! Refusals are the package's `HugeheapError`, with code and hint: [`target`](crate::target). Whatever asks the
//! kernel for more than a few files lets other threads run meanwhile.

use crate::target::{self, Refusal, exception};
use core::time::Duration;
use hugeheap::arena::Policy;
use hugeheap::telemetry::numbers::{self, Numbers};
use hugeheap::telemetry::{Fallback, HookState, Level, Snapshot};
use hugeheap_os::linux::{Linux, LinuxProcess};
use hugeheap_os::process::{
    CollapseOptions, CollapseReport, Derivation, Picture, ReleaseOptions, ReleaseReport, Stop,
};
use hugeheap_os::{Facts, MemoryLimits, ThpDisabled};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// A dictionary of what can be known, in order.
macro_rules! dictionary {
    ($python:expr, {$($name:literal: $value:expr),* $(,)?}) => {{
        let dictionary = PyDict::new($python);
        $(dictionary.set_item($name, $value)?;)*
        dictionary
    }};
}

fn limits<'py>(python: Python<'py>, limits: Option<MemoryLimits>) -> PyResult<Option<Bound<'py, PyDict>>> {
    let Some(limits) = limits else { return Ok(None) };
    Ok(Some(dictionary!(python, {
        "max": limits.max,
        "high": limits.high,
        "charge": limits.charge,
        "anonymous": limits.anonymous,
    })))
}

/// The host: page sizes, memory, modes, pools, and this process's memory cgroup. What is not known is None.
#[pyfunction]
pub(crate) fn system(python: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let linux = Linux::new();
    let pages = linux.page_sizes();
    let thp = linux.thp().ok();
    let pressure = linux.pressure().ok();
    let word = |text: &dyn core::fmt::Debug| format!("{text:?}").to_lowercase();
    let mut pools = Vec::new();
    for pool in linux.hugetlb_pools().unwrap_or_default() {
        pools.push(dictionary!(python, {
            "page_size": pool.page_size,
            "total": pool.total,
            "free": pool.free,
            "reserved": pool.reserved,
            "surplus": pool.surplus,
            "overcommit": pool.overcommit,
        }));
    }
    Ok(dictionary!(python, {
        "os_page": pages.os,
        "huge_page": pages.huge,
        "memory": linux.total_memory().ok(),
        "memory_available": linux.available_memory().ok(),
        "thp_mode": thp.map(|thp| word(&thp.mode)),
        "thp_defrag": thp.map(|thp| match thp.defrag {
            hugeheap_os::ThpDefrag::DeferMadvise => "defer+madvise".to_owned(),
            other => word(&other),
        }),
        "partially_mapped": LinuxProcess::partially_mapped_on_host(linux),
        "pressure_some": pressure.map(|pressure| f64::from(pressure.some_avg10) / 100.0),
        "pressure_all": pressure.map(|pressure| f64::from(pressure.full_avg10) / 100.0),
        "pools": pools,
        "limits": limits(python, linux.memory_limits().ok())?,
    }))
}

/// A process: its memory, how much of it is huge and could be, its cgroup, and its heap when it is on hugeheap.
#[pyfunction]
pub(crate) fn process(python: Python<'_>, pid: u32, budget: f64) -> PyResult<Bound<'_, PyDict>> {
    let linux = Linux::new();
    let deadline = linux.now() + Duration::from_secs_f64(budget);
    let gather = || {
        let status = target::status(linux, pid)?;
        let details = LinuxProcess::details_of(linux, pid, deadline)?;
        let heap = numbers::of_process(linux, pid, deadline).ok().flatten();
        Ok((status, details, heap))
    };
    let (status, (details, complete), heap) =
        python.detach(gather).map_err(|refusal: Refusal| refusal.raise(python, pid, false))?;
    let (mut mapped, mut huge, mut eligible) = (0, 0, 0);
    for detail in &details {
        mapped += detail.resident;
        huge += detail.huge;
        if detail.eligible == Some(true) {
            eligible += detail.anonymous.saturating_sub(detail.huge);
        }
    }
    Ok(dictionary!(python, {
        "pid": pid,
        "name": status.name.as_str(),
        "user": status.user,
        "parent": status.parent,
        "resident": status.resident + status.hugetlb,
        "anonymous": status.anonymous,
        "hugetlb": status.hugetlb,
        "swapped": status.swapped,
        "page_tables": status.page_tables,
        "thp_disabled": status.thp_disabled.map(|disabled| disabled == ThpDisabled::Completely),
        "huge": complete.then_some(huge),
        "eligible": complete.then_some(eligible),
        "coverage": (complete && mapped > 0).then(|| huge as f64 / mapped as f64),
        "cgroup": LinuxProcess::memory_group(linux, pid).ok(),
        "limits": limits(python, LinuxProcess::memory_limits_of(linux, pid).ok())?,
        "heap": heap.map(|numbers| heap_of(python, linux, pid, &numbers)).transpose()?,
    }))
}

/// What a process on hugeheap shows.
fn heap_of<'py>(
    python: Python<'py>,
    linux: Linux,
    pid: u32,
    numbers: &Numbers,
) -> PyResult<Bound<'py, PyDict>> {
    let snapshot = &numbers.snapshot;
    let policy = |number| Policy::from_number(number).map_or("unknown", Policy::name);
    let age = linux.now().saturating_sub(Duration::from_nanos(numbers.written_at));
    Ok(dictionary!(python, {
        "pid": pid,
        "state": snapshot.hook_state().map_or("unknown", HookState::name),
        "level": Level::from_number(snapshot.level).map_or("unknown", Level::name),
        "policy": policy(snapshot.policy),
        "effective_policy": policy(snapshot.effective_policy),
        "python": snapshot.version_text(),
        "age": age.as_secs_f64(),
        "stats": counters(python, snapshot)?,
    }))
}

/// The counters of a snapshot by name, and `fallbacks` by reason.
pub(crate) fn counters<'py>(python: Python<'py>, snapshot: &Snapshot) -> PyResult<Bound<'py, PyDict>> {
    let result = PyDict::new(python);
    for (name, value) in snapshot.counters() {
        result.set_item(name, value)?;
    }
    let fallbacks = PyDict::new(python);
    for reason in Fallback::ALL {
        if snapshot.fallback(reason) > 0 {
            fallbacks.set_item(reason.name(), snapshot.fallback(reason))?;
        }
    }
    result.set_item("fallbacks", fallbacks)?;
    Ok(result)
}

/// What all processes on hugeheap show, as far as they may be looked at and there is time.
#[pyfunction]
pub(crate) fn heaps(python: Python<'_>, budget: f64) -> PyResult<Vec<Bound<'_, PyDict>>> {
    let linux = Linux::new();
    let deadline = linux.now() + Duration::from_secs_f64(budget);
    target::proc_is_there().map_err(|refusal| refusal.raise(python, 0, false))?;
    let found: Vec<(u32, Numbers)> = python.detach(|| {
        let ids = LinuxProcess::all(linux).unwrap_or_default().into_iter();
        ids.filter_map(|id| Some((id, numbers::of_process(linux, id, deadline).ok()??))).collect()
    });
    found.into_iter().map(|(pid, numbers)| heap_of(python, linux, pid, &numbers)).collect()
}

/// Opens a process to change it: this one needs no privilege.
fn open(pid: u32) -> Result<LinuxProcess, Refusal> {
    target::status(Linux::new(), pid)?;
    Ok(LinuxProcess::open(Linux::new(), pid)?)
}

fn stop(python: Python<'_>, pid: u32, stop: Option<Stop>, done: u64) -> PyResult<Option<&'static str>> {
    match stop {
        // Nothing was changed: that is a refusal. Afterwards what was done counts.
        Some(Stop::Refused(error)) if done == 0 => Err(Refusal::Error(error).raise(python, pid, true)),
        stop => Ok(stop.map(Stop::name)),
    }
}

/// Puts the dense heap of a process on huge pages.
#[pyfunction]
pub(crate) fn collapse(
    python: Python<'_>,
    pid: u32,
    min_density: f64,
    max_growth: Option<u64>,
    budget: f64,
    dry_run: bool,
) -> PyResult<Bound<'_, PyDict>> {
    let options = CollapseOptions {
        min_density,
        max_growth,
        budget: Duration::from_secs_f64(budget),
        dry_run,
        ..CollapseOptions::default()
    };
    let status = target::status(Linux::new(), pid).map_err(|refusal| refusal.raise(python, pid, true))?;
    if status.thp_disabled == Some(ThpDisabled::Completely) {
        return Err(exception(
            python,
            &format!("process {pid}: transparent huge pages are switched off for it (PR_SET_THP_DISABLE)"),
            "thp-disabled",
            "only the process can switch them on: start it anew without",
        ));
    }
    let report: CollapseReport = python
        .detach(|| Ok(hugeheap_os::process::collapse(&open(pid)?, &options, &mut |_| {})?))
        .map_err(|refusal: Refusal| refusal.raise(python, pid, true))?;
    let skipped = report.plan.skipped;
    let after = |pick: fn(&Picture) -> u64| report.after.as_ref().map(pick);
    Ok(dictionary!(python, {
        "pid": pid,
        "planned": report.plan.steps.len(),
        "collapsed": report.collapsed,
        "growth": report.plan.growth,
        "max_growth": report.plan.max_growth,
        "resident_before": report.before.resident(),
        "resident_after": after(Picture::resident),
        "huge_before": report.before.huge(),
        "huge_after": after(Picture::huge),
        "charge_before": report.charge.0,
        "charge_after": report.charge.1,
        "skipped": dictionary!(python, {
            "huge": skipped.huge,
            "edge": skipped.edge,
            "sparse": skipped.sparse,
            "over_limit": skipped.over_limit,
            "refused": report.refused,
            "changed": report.changed,
            "left": report.left,
        }),
        "complete": report.before.complete,
        "stopped": stop(python, pid, report.stop, report.collapsed)?,
        "longest_call": report.longest_call.as_secs_f64(),
        "elapsed": report.elapsed.as_secs_f64(),
    }))
}

/// Frees what is stranded in a process.
#[pyfunction]
pub(crate) fn release(
    python: Python<'_>,
    pid: u32,
    budget: f64,
    dry_run: bool,
) -> PyResult<Bound<'_, PyDict>> {
    let options =
        ReleaseOptions { budget: Duration::from_secs_f64(budget), dry_run, ..ReleaseOptions::default() };
    let report: ReleaseReport = python
        .detach(|| Ok(hugeheap_os::process::release(&open(pid)?, &options, &mut |_| {})?))
        .map_err(|refusal: Refusal| refusal.raise(python, pid, true))?;
    Ok(dictionary!(python, {
        "pid": pid,
        "planned": report.plan.steps.len(),
        "split": report.split,
        "left": report.left,
        "exact": report.derivation == Derivation::Folios,
        "stranded_before": report.plan.stranded,
        "stranded_after": report.after.map(|after| after.bytes),
        "shared": report.plan.shared,
        "shared_stranded": report.plan.shared_stranded,
        "charge_before": report.limits.map(|limits| limits.charge),
        "charge_after": report.charge_after,
        "resident_before": report.resident.0,
        "resident_after": report.resident.1,
        "complete": report.complete,
        "stopped": stop(python, pid, report.stop, report.split)?,
        "longest_call": report.longest_call.as_secs_f64(),
        "elapsed": report.elapsed.as_secs_f64(),
    }))
}

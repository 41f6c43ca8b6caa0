//! Metrics of the heaps of processes on hugeheap: the numbers they show, and what the kernel says is resident.

use super::budget::{Budget, What, Why};
use super::metric::{self, Found};
use super::processes::Row;
use core::time::Duration;
use hugeheap::arena::{ARENA_BYTES, Policy};
use hugeheap::telemetry::numbers::{self, Numbers, NumbersError};
use hugeheap::telemetry::{Fallback, HookState, Level, Snapshot};
use hugeheap_os::linux::{Linux, LinuxProcess};
use hugeheap_os::process::{PageKind, Process};
use hugeheap_os::{AddressRange, Error, Facts};

/// Address space looked at between two looks at the clock: such a walk takes 1 to 10 ms where every OS page has
/// an entry.
const STRIDE: u64 = 1 << 30;

pub(super) fn gather(linux: Linux, rows: &[Row], budget: &mut Budget, found: &mut Found) {
    for row in rows {
        let Some(share) = budget.share() else {
            budget.skip(What::Heap, Why::Budget);
            continue;
        };
        match numbers::of_process(linux, row.id, share) {
            Ok(None) => {}
            Ok(Some(numbers)) => {
                add(row, &numbers, linux.now(), found);
                residency(linux, row, &numbers, budget, found);
            }
            Err(NumbersError::System(error)) => budget.failed(What::Heap, error),
            Err(NumbersError::Content(_)) => budget.skip(What::Heap, Why::Failed),
        }
    }
}

fn add(row: &Row, numbers: &Numbers, now: Duration, found: &mut Found) {
    let snapshot = &numbers.snapshot;
    let id = row.id.to_string();
    let labels = row.labels(&id);
    info(row, snapshot, found);
    let age = now.saturating_sub(Duration::from_nanos(numbers.written_at));
    found.add(&metric::HEAP_AGE, &labels, age.as_secs_f64());
    let arenas = |count: u64| count.saturating_mul(ARENA_BYTES as u64);
    for (metric, value) in [
        (&metric::HEAP_ALLOCATED, snapshot.live),
        (&metric::HEAP_ALLOCATED_PEAK, snapshot.live_peak),
        (&metric::HEAP_LARGE, snapshot.large),
        (&metric::HEAP_ACTIVE, arenas(snapshot.arenas.saturating_sub(snapshot.arenas_empty))),
        (&metric::HEAP_MAPPED, arenas(snapshot.arenas).saturating_add(snapshot.metadata)),
        (&metric::HEAP_METADATA, snapshot.metadata),
        (&metric::HEAP_RETAINED, snapshot.retained),
        (&metric::HEAP_RETENTION_TARGET, snapshot.retention_target),
        (&metric::HEAP_ALLOCATIONS, snapshot.allocations),
        (&metric::HEAP_FREES, snapshot.frees),
        (&metric::HEAP_GIVEN_BACK, snapshot.given_back),
        (&metric::HEAP_ARENAS_GIVEN_BACK, snapshot.arenas_given_back),
        (&metric::HEAP_ARENAS_AHEAD, snapshot.arenas_ahead),
        (&metric::HEAP_BREAKS, snapshot.breaks),
        (&metric::HEAP_VACATED, snapshot.vacated),
        (&metric::HEAP_ALIKE, snapshot.alike),
        (&metric::HEAP_MERGED, snapshot.merged),
        (&metric::HEAP_REGRETTED, snapshot.regretted),
        (&metric::HEAP_COLLAPSES, snapshot.collapses),
        (&metric::HEAP_FORKS, snapshot.forks),
        (&metric::HEAP_PASSES, snapshot.passes),
    ] {
        found.add(metric, &labels, value);
    }
    found.add(&metric::HEAP_LONGEST_PASS, &labels, snapshot.longest_pass as f64 / 1e9);
    if snapshot.gc_heaps > 0 {
        collectors(snapshot, &labels, found);
    }
    let [pid, name, cgroup] = labels;
    for (state, count) in [
        ("full", snapshot.arenas_full),
        ("partial", snapshot.arenas_partial),
        ("empty", snapshot.arenas_empty),
    ] {
        found.add(&metric::HEAP_ARENAS, &[pid, name, cgroup, ("state", state)], count);
    }
    for (backing, count) in [
        ("thp", snapshot.arenas_thp),
        ("hugetlb", snapshot.arenas_hugetlb),
        ("base", snapshot.arenas_base),
        ("broken", snapshot.arenas_broken),
    ] {
        found.add(&metric::HEAP_BACKING, &[pid, name, cgroup, ("backing", backing)], count);
    }
    for reason in Fallback::ALL {
        let labels = [pid, name, cgroup, ("reason", reason.name())];
        found.add(&metric::HEAP_FALLBACKS, &labels, snapshot.fallback(reason));
    }
}

/// Most processes have no garbage-collected heap, and no metrics of one.
fn collectors(snapshot: &Snapshot, labels: &[(&'static str, &str); 3], found: &mut Found) {
    for (metric, value) in [
        (&metric::HEAP_GC_HEAPS, snapshot.gc_heaps),
        (&metric::HEAP_GC_NURSERY, snapshot.gc_nursery),
        (&metric::HEAP_GC_OLD, snapshot.gc_old),
        (&metric::HEAP_GC_HELD, snapshot.gc_held),
        (&metric::HEAP_GC_MINOR, snapshot.gc_minor),
        (&metric::HEAP_GC_MAJOR, snapshot.gc_major),
        (&metric::HEAP_GC_PAUSES, snapshot.gc_pauses),
        (&metric::HEAP_GC_LONG_PAUSES, snapshot.gc_long_pauses),
    ] {
        found.add(metric, labels, value);
    }
    for (metric, nanoseconds) in [
        (&metric::HEAP_GC_PAUSE, snapshot.gc_pause_total),
        (&metric::HEAP_GC_LONGEST_PAUSE, snapshot.gc_longest_pause),
    ] {
        found.add(metric, labels, nanoseconds as f64 / 1e9);
    }
    let end = |nanoseconds: Option<u64>| nanoseconds.map_or(f64::INFINITY, |end| end as f64 / 1e9);
    let lengths = snapshot.pause_lengths().map(|(until, count)| (end(until), count)).collect();
    let lengths = metric::Value::Sizes(snapshot.gc_pause_total as f64 / 1e9, lengths);
    found.add(&metric::HEAP_GC_PAUSE_LENGTH, labels, lengths);
}

fn info(row: &Row, snapshot: &Snapshot, found: &mut Found) {
    const UNKNOWN: &str = "unknown";
    let id = row.id.to_string();
    let [pid, name, cgroup] = row.labels(&id);
    let policy = |number| Policy::from_number(number).map_or(UNKNOWN, Policy::name);
    // Idle: a program in Rust or C that calls hugeheap itself.
    let labels = [
        pid,
        name,
        cgroup,
        ("state", snapshot.hook_state().map_or(UNKNOWN, HookState::name)),
        ("level", Level::from_number(snapshot.level).map_or(UNKNOWN, Level::name)),
        ("policy", policy(snapshot.policy)),
        ("effective_policy", policy(snapshot.effective_policy)),
        ("python", snapshot.version_text().split_whitespace().next().unwrap_or("")),
    ];
    found.add(&metric::HEAP_INFO, &labels, 1);
}

fn residency(linux: Linux, row: &Row, numbers: &Numbers, budget: &mut Budget, found: &mut Found) {
    let (Some(ranges), Some(share)) = (numbers.named_ranges(), budget.share()) else {
        budget.skip(What::Residency, Why::Budget);
        return;
    };
    match measure(linux, row.id, ranges, share) {
        Ok((resident, huge)) => {
            let id = row.id.to_string();
            let labels = row.labels(&id);
            found.add(&metric::HEAP_RESIDENT, &labels, resident);
            if let Some(huge) = huge {
                found.add(&metric::HEAP_HUGE, &labels, huge);
                if resident > 0 {
                    found.add(&metric::HEAP_COVERAGE, &labels, huge as f64 / resident as f64);
                }
            }
        }
        Err(error) => budget.failed(What::Residency, error),
    }
}

/// What is resident in `ranges` of a process, and on huge pages where the kernel tells that from outside (Linux 6.7).
///
/// The ranges are what another program wrote: they may be anything.
fn measure(
    linux: Linux,
    id: u32,
    ranges: &[[u64; 2]],
    deadline: Duration,
) -> Result<(u64, Option<u64>), Error> {
    let process = LinuxProcess::open(linux, id)?;
    let (mut resident, mut huge) = (0, 0);
    for &[start, bytes] in ranges {
        let end = start.saturating_add(bytes).min(1 << 63);
        let mut at = start;
        while at < end {
            if process.now() >= deadline {
                return Err(Error::new("read(/proc/PID/pagemap)", libc::ETIME));
            }
            let next = end.min((at / STRIDE + 1).saturating_mul(STRIDE));
            process.pages(
                AddressRange::new(at as usize, (next - at) as usize),
                &mut |run| match run.kind {
                    PageKind::Small => resident += run.range.len as u64,
                    PageKind::Huge => {
                        resident += run.range.len as u64;
                        huge += run.range.len as u64;
                    }
                    PageKind::Zero | PageKind::Swapped => {}
                },
            )?;
            at = next;
        }
    }
    Ok((resident, process.tells_huge().then_some(huge)))
}

#[cfg(test)]
mod tests {
    use super::super::arguments::Format;
    use super::super::processes::tests::row;
    use super::*;

    #[test]
    fn arenas_without_live_runs_are_mapped_and_not_active_and_times_are_seconds() {
        let snapshot = Snapshot {
            arenas: 6,
            arenas_full: 1,
            arenas_partial: 3,
            arenas_empty: 2,
            metadata: 7,
            longest_pass: 2_500_000,
            ..Snapshot::EMPTY
        };
        let now = Duration::from_secs(9);
        let numbers = Numbers { snapshot, written_at: 7_500_000_000, ..Numbers::EMPTY };
        let mut found = Found::new();
        add(&row(7), &numbers, now, &mut found);
        let text = super::super::text::write(found.into(), Format::Prometheus);
        let labels = "pid=\"7\",name=\"app\",cgroup=\"\"";
        for line in [
            format!("hugeheap_heap_active_bytes{{{labels}}} {}", 4 * ARENA_BYTES),
            format!("hugeheap_heap_mapped_bytes{{{labels}}} {}", 6 * ARENA_BYTES + 7),
            format!("hugeheap_heap_longest_pass_seconds{{{labels}}} 0.0025"),
            format!("hugeheap_heap_published_age_seconds{{{labels}}} 1.5"),
            format!("hugeheap_heap_arenas{{{labels},state=\"full\"}} 1"),
            format!("hugeheap_heap_arenas{{{labels},state=\"partial\"}} 3"),
            format!("hugeheap_heap_arenas{{{labels},state=\"empty\"}} 2"),
        ] {
            assert!(text.contains(&format!("{line}\n")), "{line}: {text}");
        }
    }
}

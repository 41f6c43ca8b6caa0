//! Metrics of the host. Cheap files only.

use super::metric::{self, Found};
use crate::Context;
use crate::pool::list::Pools;
use crate::status::facts::{self, value_of};
use hugeheap_os::{Facts, ThpMode};

/// Modes of transparent huge pages, as the kernel calls them.
const MODES: [(ThpMode, &str); 3] =
    [(ThpMode::Always, "always"), (ThpMode::Madvise, "madvise"), (ThpMode::Never, "never")];

pub(super) fn gather(context: &Context, found: &mut Found) {
    let (linux, knobs) = (&context.facts, context.facts.knobs());
    let text = |file: &str| knobs.text(file).unwrap_or_default();
    found.add(&metric::BUILD, &[("version", env!("CARGO_PKG_VERSION"))], 1);

    let meminfo = text("/proc/meminfo");
    let memory = |key| value_of(&meminfo, key);
    found.maybe(&metric::HOST_MEMORY, &[], memory("MemTotal"));
    found.maybe(&metric::HOST_AVAILABLE, &[], memory("MemAvailable"));
    found.maybe(&metric::HOST_ANONYMOUS, &[], memory("AnonPages"));
    found.maybe(&metric::HOST_PAGE_TABLES, &[], memory("PageTables"));
    for (kind, key) in [
        ("anonymous", "AnonHugePages"),
        ("shared", "ShmemHugePages"),
        ("file", "FileHugePages"),
        ("hugetlb", "Hugetlb"),
    ] {
        found.maybe(&metric::HOST_HUGE, &[("kind", kind)], memory(key));
    }

    let pages = linux.page_sizes();
    let zones = facts::zones(&text("/proc/buddyinfo"));
    if let (Some(huge), false) = (pages.huge, zones.is_empty()) {
        let free = facts::free(zones.iter(), pages.os as u64, huge as u64);
        found.add(&metric::HOST_FREE, &[("blocks", "huge")], free.huge);
        found.add(&metric::HOST_FREE, &[("blocks", "small")], free.total - free.huge);
    }
    if let Ok(pressure) = linux.pressure() {
        let share = |percent: f32| f64::from(percent) / 100.0;
        found.add(&metric::HOST_PRESSURE, &[("tasks", "some")], share(pressure.some_avg10));
        found.add(&metric::HOST_PRESSURE, &[("tasks", "all")], share(pressure.full_avg10));
    }
    if let Ok(thp) = linux.thp() {
        for (mode, name) in MODES {
            found.add(&metric::HOST_THP_MODE, &[("mode", name)], thp.mode == mode);
        }
    }

    for size in facts::sizes(&knobs) {
        let bytes = size.bytes.to_string();
        let of = [("size", bytes.as_str())];
        found.maybe(&metric::HOST_PARTIAL, &of, size.partial);
        found.maybe(&metric::HOST_SPLITS, &of, size.splits);
        found.maybe(&metric::HOST_FAULTS, &[of[0], ("result", "huge")], size.faults);
        found.maybe(&metric::HOST_FAULTS, &[of[0], ("result", "fallback")], size.fallbacks);
    }
    let vmstat = text("/proc/vmstat");
    let event = |key| value_of(&vmstat, key);
    found.maybe(&metric::HOST_COLLAPSES, &[("result", "huge")], event("thp_collapse_alloc"));
    found.maybe(&metric::HOST_COLLAPSES, &[("result", "failed")], event("thp_collapse_alloc_failed"));
    found.maybe(&metric::HOST_COMPACT_STALLS, &[], event("compact_stall"));

    for pool in Pools::read(&knobs).map(|pools| pools.all).unwrap_or_default() {
        let size = pool.page.to_string();
        let of = |state| [("size", size.as_str()), ("state", state)];
        found.add(&metric::POOL_PAGES, &of("total"), pool.total);
        found.add(&metric::POOL_PAGES, &of("free"), pool.free());
        found.maybe(&metric::POOL_PAGES, &of("reserved"), pool.reserved);
        found.add(&metric::POOL_PAGES, &of("surplus"), pool.surplus);
    }
}

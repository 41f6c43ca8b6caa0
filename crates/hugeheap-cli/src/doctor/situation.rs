//! What the findings are computed from: gathered once, then looked at by pure rules.
//!
//! A fact that cannot be read is `None`, and no rule fires on it: a finding that is not certain is none.

use super::limits::{self, Limit};
use super::rules_merging::Asked;
use super::target::TargetFacts;
use crate::Context;
use crate::pool::list::Pools;
use crate::pool::plan::Pool;
use crate::run::MERGE;
use crate::status::facts::{self, Zone};
use crate::thp::catalogue::{self, Named};
use core::time::Duration;
use hugeheap::telemetry::{Fallback, numbers};
use hugeheap_os::linux::{Knobs, Linux, LinuxProcess};
use hugeheap_os::process::{MappingDetail, ProcessStatus};
use hugeheap_os::{Advice, Capabilities, Error, Facts, MemoryLevel, NumaNode, Thp, ThpDisabled};

/// Longest time for the details of a process: 40 µs for 2 MiB on OS pages.
const PATIENCE: Duration = Duration::from_secs(2);

/// The host, and what was asked about.
#[derive(Clone, Debug)]
pub(crate) struct Situation {
    pub(crate) os_page: u64,
    pub(crate) huge_page: Option<u64>,
    pub(crate) thp: Result<Thp, Error>,
    /// `enabled`, not overridden by a size.
    pub(crate) mode: Option<String>,
    /// `enabled` of each size: bytes, word.
    pub(crate) sizes: Vec<(u64, String)>,
    pub(crate) total: Option<u64>,
    pub(crate) available: Option<u64>,
    pub(crate) zones: Vec<Zone>,
    pub(crate) nodes: Vec<NumaNode>,
    pub(crate) pools: Vec<Pool>,
    pub(crate) node_pools: Vec<Pool>,
    pub(crate) pool_limits: Vec<Limit>,
    /// Of the memory cgroup and those above it.
    pub(crate) levels: Vec<MemoryLevel>,
    /// Whether /sys is mounted read-only here.
    pub(crate) sys_read_only: bool,
    /// Effective capabilities, a bit each.
    pub(crate) capabilities: Option<u64>,
    /// Which calls the running kernel serves.
    pub(crate) calls: Capabilities,
    pub(crate) paranoid: Option<i64>,
    pub(crate) virtualised: Option<bool>,
    /// Whether a hypervisor is told what memory is free.
    pub(crate) free_page_reporting: Option<bool>,
    /// The switch that commands started here inherit.
    pub(crate) switch: Option<ThpDisabled>,
    /// The limit on the address space, in bytes.
    pub(crate) address_limit: Option<u64>,
    /// How the host merges equal pages.
    pub(crate) merging: Result<Merging, Error>,
    /// Whether what is started here is asked to have pages merged.
    pub(crate) merge: bool,
    pub(crate) process: Option<ProcessFacts>,
    pub(crate) target: Option<TargetFacts>,
}

/// What the kernel's thread that merges equal pages (KSM) is set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Merging {
    /// 1: at work.
    pub(crate) run: u64,
    /// OS pages that it looks at, and the pause after them.
    pub(crate) pages_to_scan: u64,
    pub(crate) pause: Duration,
    /// Whether the kernel sets the number of pages itself (since 6.8, `advisor_mode`).
    pub(crate) chosen_by_kernel: bool,
    /// OS pages that are to be merged, of all programs, as far as it has seen them.
    pub(crate) known: u64,
}

impl Merging {
    fn read(knobs: &Knobs) -> Result<Self, Error> {
        let number = |name: &str| knobs.number(&format!("/sys/kernel/mm/ksm/{name}"));
        let pages = ["pages_shared", "pages_sharing", "pages_unshared", "pages_volatile"];
        Ok(Self {
            run: number("run")?,
            pages_to_scan: number("pages_to_scan")?,
            pause: Duration::from_millis(number("sleep_millisecs")?),
            chosen_by_kernel: knobs
                .read("/sys/kernel/mm/ksm/advisor_mode")
                .is_ok_and(|advisor| advisor.value != "none"),
            known: pages.iter().filter_map(|name| number(name).ok()).sum(),
        })
    }
}

/// A running process.
#[derive(Clone, Debug)]
pub(crate) struct ProcessFacts {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) anonymous: u64,
    /// Of hugetlb pools, beside it.
    pub(crate) hugetlb: u64,
    /// Of the anonymous memory, on huge pages; `None` where it may not be looked at.
    pub(crate) huge: Option<u64>,
    pub(crate) switch: Option<ThpDisabled>,
    /// Whether hugeheap's library is mapped in it.
    pub(crate) hooked: Option<bool>,
    /// Whether it is a CPython: `hugeheap run` does something for those.
    pub(crate) python: Option<bool>,
    /// Anonymous memory on OS pages that the program advises against huge pages: the kernel refuses to make it huge.
    pub(crate) advised_against: Option<u64>,
    /// How it is known to ask for merging, if it does.
    pub(crate) merge: Option<Asked>,
}

impl ProcessFacts {
    /// Memory without a file, of either kind.
    pub(crate) fn heap(&self) -> u64 {
        self.anonymous + self.hugetlb
    }

    /// Of that, on huge pages.
    pub(crate) fn on_huge_pages(&self) -> Option<u64> {
        Some(self.huge? + self.hugetlb)
    }
}

impl Situation {
    /// The host, and the control group of this process.
    pub(crate) fn gather(context: &Context) -> Self {
        let linux = &context.facts;
        let knobs = linux.knobs();
        let text = |file: &str| knobs.text(file).unwrap_or_default();
        let pages = linux.page_sizes();
        let all = catalogue::all(&knobs).unwrap_or_default();
        let value = |named: &Named| named.knob.as_ref().ok().map(|knob| knob.value.clone());
        let pools = Pools::read(&knobs).ok();
        let (pools, node_pools) = pools.map_or_else(Default::default, |pools| (pools.all, pools.nodes));
        Self {
            os_page: pages.os as u64,
            huge_page: pages.huge.map(|size| size as u64),
            thp: linux.thp(),
            mode: all.iter().find(|named| named.name == "mode").and_then(value),
            sizes: all.iter().filter_map(|named| Some((size_of(&named.file)?, value(named)?))).collect(),
            total: linux.total_memory().ok(),
            available: linux.available_memory().ok(),
            zones: facts::zones(&text("/proc/buddyinfo")),
            nodes: linux.numa_nodes().unwrap_or_default(),
            pool_limits: limits::read(&knobs, "self", pools.iter().map(|pool| pool.page)),
            pools,
            node_pools,
            levels: linux.memory_levels().unwrap_or_default(),
            sys_read_only: is_read_only(&text("/proc/self/mountinfo"), "/sys"),
            capabilities: effective(&text("/proc/self/status")),
            calls: linux.capabilities(),
            paranoid: text("/proc/sys/kernel/perf_event_paranoid").trim().parse().ok(),
            virtualised: facts::virtualised(&text("/proc/cpuinfo")),
            free_page_reporting: facts::free_page_reporting(&knobs),
            switch: linux.thp_disabled().ok(),
            address_limit: linux.address_space_limit().map(|limit| limit.limit),
            merging: Merging::read(&knobs),
            merge: std::env::var_os(MERGE).is_some_and(|value| value == "1"),
            process: None,
            target: None,
        }
    }

    /// Adds a process; the limits are those of its control group from then on.
    pub(crate) fn add_process(&mut self, linux: Linux, id: u32, status: ProcessStatus) {
        let knobs: Knobs = linux.knobs();
        let rollup = knobs.text(&format!("/proc/{id}/smaps_rollup")).ok();
        let maps = knobs.text(&format!("/proc/{id}/maps")).ok();
        // Its control group's, and not ours: unknown when it may not be looked at.
        self.levels = LinuxProcess::memory_levels_of(linux, id).unwrap_or_default();
        self.pool_limits = limits::read(&knobs, &id.to_string(), self.pools.iter().map(|pool| pool.page));
        let details = LinuxProcess::details_of(linux, id, linux.now() + PATIENCE);
        self.process = Some(ProcessFacts {
            id,
            name: status.name,
            anonymous: status.anonymous,
            huge: rollup.and_then(|text| facts::value_of(&text, "AnonHugePages")),
            switch: status.thp_disabled,
            hugetlb: status.hugetlb,
            hooked: maps.as_ref().map(|text| text.contains("libhugeheap")),
            python: maps.map(|text| is_python(&text)),
            advised_against: details.ok().map(|(details, _)| advised_against(&details)),
            merge: asked(
                linux,
                id,
                &std::fs::read(knobs.path(&format!("/proc/{id}/environ"))).unwrap_or_default(),
            ),
        });
    }
}

/// How a process is known to ask for merging. `environ`: what it was started with.
fn asked(linux: Linux, id: u32, environ: &[u8]) -> Option<Asked> {
    let is_set = environ
        .split(|&byte| byte == 0)
        .any(|line| line.strip_prefix(MERGE.as_bytes()).is_some_and(|rest| rest == b"=1"));
    let counts = || {
        let numbers = numbers::of_process(linux, id, linux.now() + PATIENCE).ok().flatten();
        numbers.is_some_and(|numbers| numbers.snapshot.fallback(Fallback::NoMerging) > 0)
    };
    if is_set { Some(Asked::Environment) } else { counts().then_some(Asked::Counted) }
}

/// Whether a CPython is mapped: the program, or its library.
fn is_python(maps: &str) -> bool {
    let is_version = |text: &str| text.starts_with(|first: char| first.is_ascii_digit());
    maps.lines().filter_map(|line| line.rsplit_once('/')).any(|(_, file)| {
        let file = file.strip_prefix("lib").unwrap_or(file);
        file.strip_prefix("python").is_some_and(|rest| rest.is_empty() || is_version(rest))
    })
}

/// Anonymous memory on OS pages in mappings that are advised against huge pages.
fn advised_against(details: &[MappingDetail]) -> u64 {
    let against = details.iter().filter(|detail| detail.advice == Some(Advice::NoHuge));
    against.map(|detail| detail.anonymous.saturating_sub(detail.huge)).sum()
}

/// The size in `…/hugepages-64kB/enabled`, in bytes.
fn size_of(file: &str) -> Option<u64> {
    let (_, rest) = file.split_once("/hugepages-")?;
    Some(rest.split_once("kB/")?.0.parse::<u64>().ok()? << 10)
}

/// Whether the mount at `point` is read-only. The last one counts: mounts lie on each other.
fn is_read_only(mountinfo: &str, point: &str) -> bool {
    let options = |line: &str| {
        let mut fields = line.split(' ').skip(4);
        (fields.next() == Some(point)).then(|| fields.next().unwrap_or_default().to_owned())
    };
    let last = mountinfo.lines().filter_map(options).next_back();
    last.is_some_and(|options| options.split(',').any(|option| option == "ro"))
}

/// `CapEff` of /proc/self/status.
fn effective(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_and_capabilities_are_read() {
        let mounts = "24 1 0:22 / /sys rw,nosuid - sysfs sysfs rw\n25 1 0:22 / /sys ro,nosuid - sysfs sysfs rw\n26 1 0:2 / /sys/fs rw - tmpfs t rw\n";
        assert!(is_read_only(mounts, "/sys"));
        assert!(!is_read_only(mounts, "/sys/fs"));
        assert!(!is_read_only("", "/sys"));
        assert_eq!(effective("Name:\tx\nCapEff:\t00000000a80425fb\n"), Some(0xa804_25fb));
        assert!(is_python("7f00-7f01 r-xp 0 00:0 1  /usr/bin/python3.11\n"));
        assert!(is_python("7f00-7f01 r-xp 0 00:0 1  /usr/lib/libpython3.13t.so.1.0\n"));
        assert!(!is_python(
            "7f00-7f01 r-xp 0 00:0 1  /usr/lib/python3/apt.so\n7f00-7f01 rw-p 0 00:0 0 [heap]\n"
        ));
        assert_eq!(size_of("/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled"), Some(64 << 10));
    }
}

//! The findings about a host: facts in, findings out. Pure.
//!
//! A rule fires on what is known for certain, and names a fix that can be typed.

use super::codes::{Code, Finding};
use super::situation::Situation;
use super::{rules_merging, rules_target};
use crate::output::{bytes, counted, percent};
use crate::pool::plan::Pool;
use crate::status::facts;
use crate::thp::catalogue::short_size;
use hugeheap_os::{ErrorKind, ThpDefrag, ThpDisabled, ThpMode};

/// A share of memory that is little: a twentieth, what `hugeheap pool` leaves the host, too.
const LITTLE: u64 = 20;
/// Free memory, in huge pages, from which on fragmentation can be told: less is free on any busy host, in small pieces.
const ENOUGH_FREE: u64 = 64;
/// Share of free memory in one piece below which a huge page is hard to find. Fresh hosts have 90 %, and a long-running one that finds
/// pages without compaction more than 20 %.
const FRAGMENTED: f64 = 0.1;
/// khugepaged should look at all memory within a day: what starts in the morning is huge before the next.
const SCAN_SECONDS: f64 = 86_400.0;
/// A memory limit leaves room for this many huge pages, or the next ones are refused (EBUSY of a collapse, fallback of a fault).
const ROOM: u64 = 16;

const CAP_SYS_PTRACE: u64 = 1 << 19;
const CAP_SYS_ADMIN: u64 = 1 << 21;
const CAP_SYS_NICE: u64 = 1 << 23;
const CAP_PERFMON: u64 = 1 << 38;
/// `perf_event_paranoid` above this closes counters to processes without `CAP_PERFMON`, as Debian's 3 does.
const PARANOID: i64 = 2;

/// All findings, worst first, each level in the order of the codes.
pub(super) fn findings(situation: &Situation) -> Vec<Finding> {
    let mut found = Vec::new();
    thp(situation, &mut found);
    kernel(situation, &mut found);
    pools(situation, &mut found);
    memory(situation, &mut found);
    container(situation, &mut found);
    machine(situation, &mut found);
    rules_target::process(situation, &mut found);
    rules_merging::merging(situation, &mut found);
    rules_target::target(situation, &mut found);
    found.sort_by_key(|finding| (std::cmp::Reverse(finding.code.level()), finding.code as usize));
    found
}

pub(super) fn add(found: &mut Vec<Finding>, code: Code, what: impl Into<String>, fix: impl Into<String>) {
    found.push(Finding { code, what: what.into(), fix: fix.into() });
}

fn thp(situation: &Situation, found: &mut Vec<Finding>) {
    let thp = match &situation.thp {
        Ok(thp) => thp,
        Err(error) if error.kind() == ErrorKind::Missing => {
            return add(
                found,
                Code::ThpMissing,
                "this kernel has no transparent huge pages, or a container hides /sys",
                "boot a kernel with CONFIG_TRANSPARENT_HUGEPAGE, or mount /sys in the container",
            );
        }
        Err(error) => {
            return add(
                found,
                Code::ThpClosed,
                format!("the knobs of transparent huge pages cannot be read: {error}"),
                "run hugeheap doctor on the host, or as root",
            );
        }
    };
    let huge = situation.huge_page.unwrap_or(2 << 20);
    let own = situation.sizes.iter().find(|(size, _)| *size == huge).map(|(_, word)| word.as_str());
    let mode = situation.mode.as_deref();
    if thp.mode == ThpMode::Never {
        if own == Some("never") && mode.is_some_and(|mode| mode != "never") {
            let size = short_size(huge);
            add(
                found,
                Code::ThpSizeNever,
                format!("pages of {size} are off by a knob of their own, whatever the mode says"),
                format!("hugeheap thp set size.{size}=inherit --persist"),
            );
        } else {
            add(
                found,
                Code::ThpNever,
                "transparent huge pages are off on this host (mode never): only an explicit collapse makes some",
                "hugeheap thp set mode=madvise --persist",
            );
        }
    }
    if thp.mode == ThpMode::Always {
        add(
            found,
            Code::ThpAlways,
            "every program gets huge pages, asked or not (mode always): sparse memory grows",
            "hugeheap thp set mode=madvise --persist",
        );
    }
    match thp.defrag {
        ThpDefrag::Always => add(
            found,
            Code::DefragAlways,
            "every page fault may compact memory and wait for it (defrag always)",
            "hugeheap thp set defrag=madvise --persist",
        ),
        ThpDefrag::Never | ThpDefrag::Defer => add(
            found,
            Code::DefragNone,
            "a page fault takes only what huge pages are free (defrag never or defer): on a fragmented host, none",
            "hugeheap thp set defrag=defer+madvise --persist",
        ),
        ThpDefrag::Madvise | ThpDefrag::DeferMadvise => {}
    }
    if let Some(daemon) = thp.khugepaged {
        let pause = daemon.scan_sleep.as_secs_f64();
        let rate = daemon.pages_to_scan as f64 * situation.os_page as f64 / pause.max(0.001);
        if let Some(total) = situation.total.filter(|&total| total as f64 / rate > SCAN_SECONDS) {
            add(
                found,
                Code::KhugepagedSlow,
                format!(
                    "khugepaged looks at {}/s: {:.0} hours for the {} of this host",
                    bytes(rate as u64),
                    total as f64 / rate / 3600.0,
                    bytes(total)
                ),
                format!("hugeheap thp set khugepaged.pages_to_scan={}", daemon.pages_to_scan * 8),
            );
        }
        if !daemon.defrag {
            add(
                found,
                Code::KhugepagedNoDefrag,
                "khugepaged may not compact memory: on a fragmented host it makes no huge pages",
                "hugeheap thp set khugepaged.defrag=1 --persist",
            );
        }
        if daemon.max_ptes_none + 1 >= huge / situation.os_page {
            add(
                found,
                Code::KhugepagedFills,
                format!(
                    "khugepaged makes memory huge of which one OS page of {} is used: it grows",
                    huge / situation.os_page
                ),
                format!("hugeheap thp set khugepaged.max_ptes_none={}", huge / situation.os_page / 8),
            );
        }
    }
    let smaller: Vec<_> = situation
        .sizes
        .iter()
        .filter(|(size, word)| {
            *size < huge && (word != "never") && !(word == "inherit" && mode == Some("never"))
        })
        .map(|(size, _)| short_size(*size))
        .collect();
    if !smaller.is_empty() {
        let knobs: Vec<_> = smaller.iter().map(|size| format!("size.{size}=never")).collect();
        add(
            found,
            Code::MthpOn,
            format!(
                "smaller sizes are on ({}): what they give does not show in AnonHugePages",
                smaller.join(", ")
            ),
            format!("nothing, if that is meant; else hugeheap thp set {}", knobs.join(" ")),
        );
    }
}

fn kernel(situation: &Situation, found: &mut Vec<Finding>) {
    let calls = situation.calls;
    let upgrade =
        |version: &str| format!("Linux {version} or newer, and a sandbox that lets the call through");
    if !calls.collapse {
        let what = "memory cannot be collapsed on demand (no MADV_COLLAPSE): policy dense and hugeheap collapse do nothing";
        add(found, Code::KernelNoCollapse, what, upgrade("6.1"));
    }
    if !calls.cold {
        let what = "broken huge pages cannot be split on demand (no MADV_COLD): what is stranded stays until memory is short";
        add(found, Code::KernelNoSplit, what, upgrade("5.4"));
    }
    if !calls.pagemap_scan {
        let what = "which memory is huge is read from smaps, slowly (no PAGEMAP_SCAN)";
        add(found, Code::KernelNoScan, what, upgrade("6.7"));
    }
}

fn pools(situation: &Situation, found: &mut Vec<Finding>) {
    for pool in &situation.pools {
        let size = short_size(pool.page);
        let option =
            if Some(pool.page) == situation.huge_page { String::new() } else { format!(" --size {size}") };
        let overcommit = pool.overcommit.unwrap_or(0);
        let memory = pool.total * pool.page;
        if pool.total > 0 && pool.free() == 0 && overcommit <= pool.surplus {
            add(
                found,
                Code::PoolUsedUp,
                format!(
                    "the pool of {size} pages is used up ({} in all): policy hugetlb goes on as thp",
                    pool.total
                ),
                format!("hugeheap pool ensure{option} 64"),
            );
        }
        let idle = pool.free() * pool.page;
        if situation.total.is_some_and(|total| idle >= total / LITTLE) {
            add(
                found,
                Code::PoolIdle,
                format!(
                    "{} of {size} pages lie unused in their pool: nobody else can have that memory",
                    bytes(idle)
                ),
                format!("hugeheap pool release{option}"),
            );
        }
        for limit in situation.pool_limits.iter().filter(|limit| limit.page == pool.page) {
            if memory > limit.bytes {
                let (kind, then) = match limit.of_reservations {
                    true => ("reserve", "mmap fails above it"),
                    false => ("use", "a touch above it kills the program (SIGBUS)"),
                };
                add(
                    found,
                    Code::PoolLimit,
                    format!(
                        "this control group may {kind} {} of the pool's {}: {then}",
                        bytes(limit.bytes),
                        bytes(memory)
                    ),
                    format!(
                        "raise hugetlb.*.{}max of the group (pod: limits: hugepages-{size}i)",
                        if limit.of_reservations { "rsvd." } else { "" }
                    ),
                );
            }
        }
        let nodes: Vec<&Pool> = situation.node_pools.iter().filter(|node| node.page == pool.page).collect();
        let most = nodes.iter().map(|node| node.total).max().unwrap_or(0);
        if let Some(least) = nodes.iter().filter(|node| node.total < most / 2).min_by_key(|node| node.total) {
            let node = least.node.unwrap_or(0);
            add(
                found,
                Code::PoolUneven,
                format!(
                    "NUMA node {node} has {} of {size}, another {most}",
                    counted(least.total, "page", "pages")
                ),
                format!("hugeheap pool set{option} --node {node} {most}"),
            );
        }
        if pool.total > 0 || overcommit > 0 {
            add(
                found,
                Code::PoolFork,
                format!(
                    "a forked child that writes to {size} pages of the pool dies (SIGBUS) when the pool is empty"
                ),
                "policy thp or auto for servers that fork; hugeheap's own arenas are guarded",
            );
        }
    }
}

fn memory(situation: &Situation, found: &mut Vec<Finding>) {
    let (Some(total), Some(available)) = (situation.total, situation.available) else { return };
    if available < total / LITTLE {
        let what = format!(
            "{} of {} are available: there is no memory to make huge pages of",
            bytes(available),
            bytes(total)
        );
        add(
            found,
            Code::MemoryLow,
            what,
            "stop something, or add memory; hugeheap pool release gives idle pools back",
        );
    }
    let huge_page = situation.huge_page.unwrap_or(2 << 20);
    let free = facts::free(situation.zones.iter(), situation.os_page, huge_page);
    if free.total >= ENOUGH_FREE * huge_page && (free.huge as f64) < FRAGMENTED * free.total as f64 {
        add(
            found,
            Code::Fragmented,
            format!(
                "free memory is in pieces: of {} only {} ({}) hold a huge page",
                bytes(free.total),
                bytes(free.huge),
                percent(free.huge as f64 / free.total as f64).trim_start_matches(['+', '±'])
            ),
            "echo 1 > /proc/sys/vm/compact_memory (as root; helps for a while)",
        );
    }
    if situation.nodes.len() > 1 && available >= total / LITTLE {
        for node in situation.nodes.iter().filter(|node| node.free < node.total / LITTLE) {
            add(
                found,
                Code::NodeFull,
                format!("NUMA node {} has {} free of {}", node.id, bytes(node.free), bytes(node.total)),
                "spread programs over the nodes (numactl --interleave=all)",
            );
        }
    }
}

fn container(situation: &Situation, found: &mut Vec<Finding>) {
    let huge = situation.huge_page.unwrap_or(2 << 20);
    let tightest = situation.levels.iter().min_by_key(|level| level.room_at_most());
    if let Some(level) = tightest.filter(|level| level.room_at_most() < ROOM * huge) {
        add(
            found,
            Code::CgroupTight,
            format!(
                "{} of the memory limit of {} are used: a huge page hardly fits",
                bytes(level.kept.unwrap_or(level.charge)),
                bytes(level.limit)
            ),
            "raise memory.max (pod: limits: memory), or use less; hugeheap release frees what is stranded",
        );
    }
    if situation.sys_read_only {
        add(
            found,
            Code::SysReadOnly,
            "/sys is read-only here, as in a container: knobs can be set only on the host",
            "run hugeheap thp and hugeheap pool on the host (pod: securityContext: privileged: true)",
        );
    }
    let has = |bit| situation.capabilities.is_none_or(|capabilities| capabilities & bit != 0);
    let missing: Vec<_> = [(CAP_SYS_NICE, "SYS_NICE"), (CAP_SYS_PTRACE, "SYS_PTRACE")]
        .into_iter()
        .filter(|(bit, _)| !has(*bit))
        .map(|(_, name)| name)
        .collect();
    if !missing.is_empty() {
        add(
            found,
            Code::CapabilityMissing,
            format!(
                "without CAP_{} other users' processes cannot be collapsed or released",
                missing.join(" and CAP_")
            ),
            format!("sudo, or in the pod: securityContext: capabilities: add: [{}]", missing.join(", ")),
        );
    }
    if let Some(limit) = situation.address_limit {
        add(
            found,
            Code::AddressLimit,
            format!(
                "the address space is limited to {} (ulimit -v): arenas are reserved in smaller regions",
                bytes(limit)
            ),
            "ulimit -v unlimited; limit memory with a control group",
        );
    }
}

fn machine(situation: &Situation, found: &mut Vec<Finding>) {
    if situation.virtualised == Some(true) {
        add(
            found,
            Code::NestedPaging,
            "this is a virtual machine: a huge page here is translated twice, and is fully one only if the host's is huge, too",
            "huge pages for the machine's memory on the host (QEMU: hugepages backing, or THP always or madvise there)",
        );
    }
    if situation.free_page_reporting == Some(true) {
        add(
            found,
            Code::FreePageReporting,
            "this machine gives free memory back to its host after two seconds (free page reporting): touching it again is slow",
            "nothing, where machines share a host's memory; else start it without (QEMU: virtio-balloon-pci,free-page-reporting=off)",
        );
    }
    if !situation.calls.hardware_counters {
        let may = situation.capabilities.is_some_and(|bits| bits & (CAP_PERFMON | CAP_SYS_ADMIN) != 0);
        if situation.paranoid.is_some_and(|level| level > PARANOID) && !may {
            add(
                found,
                Code::CountersDenied,
                "hardware counters are closed to this user: no TLB misses in measurements",
                "sysctl kernel.perf_event_paranoid=2 (as root), or CAP_PERFMON",
            );
        } else {
            add(
                found,
                Code::CountersMissing,
                "there are no hardware counters: measurements show time, faults and coverage, and no TLB misses",
                "measure on the physical machine, or let the hypervisor pass the counters through",
            );
        }
    }
    match situation.switch {
        Some(ThpDisabled::Completely) => add(
            found,
            Code::ShellThpOff,
            "transparent huge pages are switched off for this shell and all it starts (PR_SET_THP_DISABLE)",
            "hugeheap thp set --for on -- COMMAND, or start from a shell or service without the switch",
        ),
        Some(ThpDisabled::ExceptAdvised) => add(
            found,
            Code::ShellThpAdvised,
            "this shell and all it starts get huge pages only where they ask for them (PR_SET_THP_DISABLE)",
            "nothing for hugeheap, which asks; else hugeheap thp set --for on -- COMMAND",
        ),
        Some(ThpDisabled::No) | None => {}
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use hugeheap_os::MemoryLevel;
    use hugeheap_os::{Capabilities, Khugepaged, Thp};
    use std::time::Duration;

    /// A host on which nothing is found.
    pub(crate) fn healthy() -> Situation {
        let khugepaged = Khugepaged {
            defrag: true,
            pages_to_scan: 4096,
            scan_sleep: Duration::from_secs(10),
            max_ptes_none: 64,
        };
        Situation {
            os_page: 4096,
            huge_page: Some(2 << 20),
            thp: Ok(Thp { mode: ThpMode::Madvise, defrag: ThpDefrag::Madvise, khugepaged: Some(khugepaged) }),
            mode: Some("madvise".into()),
            sizes: vec![(2 << 20, "inherit".into())],
            total: Some(16 << 30),
            available: Some(12 << 30),
            zones: Vec::new(),
            nodes: Vec::new(),
            pools: Vec::new(),
            node_pools: Vec::new(),
            pool_limits: Vec::new(),
            levels: Vec::new(),
            sys_read_only: false,
            capabilities: Some(u64::MAX),
            calls: Capabilities {
                advise_huge: true,
                collapse: true,
                cold: true,
                populate: true,
                pagemap_scan: true,
                process_madvise: true,
                relocate: true,
                name: true,
                hardware_counters: true,
            },
            paranoid: Some(2),
            virtualised: Some(false),
            free_page_reporting: Some(false),
            switch: Some(ThpDisabled::No),
            address_limit: None,
            merging: Err(hugeheap_os::Error::new("read(2)", libc::ENOENT)),
            merge: false,
            process: None,
            target: None,
        }
    }

    fn codes(change: impl FnOnce(&mut Situation)) -> Vec<Code> {
        let mut situation = healthy();
        change(&mut situation);
        findings(&situation).iter().map(|finding| finding.code).collect()
    }

    #[test]
    fn a_healthy_host_has_no_findings() {
        assert_eq!(codes(|_| ()), []);
    }

    /// What the running kernel has or not cannot be played by files.
    #[test]
    fn missing_calls_and_counters_are_found() {
        assert_eq!(codes(|host| host.calls.collapse = false), [Code::KernelNoCollapse]);
        assert_eq!(codes(|host| host.calls.cold = false), [Code::KernelNoSplit]);
        assert_eq!(codes(|host| host.calls.pagemap_scan = false), [Code::KernelNoScan]);
        assert_eq!(codes(|host| host.calls.hardware_counters = false), [Code::CountersMissing]);
        let denied = codes(|host| {
            host.calls.hardware_counters = false;
            host.paranoid = Some(3);
            host.capabilities = Some(CAP_SYS_NICE | CAP_SYS_PTRACE);
        });
        assert_eq!(denied, [Code::CountersDenied]);
    }

    #[test]
    fn a_level_above_that_is_full_is_found_and_files_are_not_counted() {
        let level = |limit, charge, kept| MemoryLevel { limit, charge, kept };
        let own = level(4 << 30, 1 << 30, Some(1 << 30));
        let of = |above| codes(|host| host.levels = vec![own, above]);
        assert_eq!(of(level(8 << 30, 8 << 30, Some(2 << 30))), []);
        assert_eq!(of(level(8 << 30, 8 << 30, Some((8 << 30) - 4096))), [Code::CgroupTight]);
        assert_eq!(of(level(8 << 30, 8 << 30, None)), [Code::CgroupTight]);
    }

    #[test]
    fn what_cannot_be_read_is_no_finding() {
        let unknown = codes(|host| {
            host.total = None;
            host.capabilities = None;
            host.switch = None;
            host.virtualised = None;
            host.free_page_reporting = None;
            host.huge_page = None;
        });
        assert_eq!(unknown, []);
    }

    #[test]
    fn the_worst_come_first() {
        let found = codes(|host| {
            host.virtualised = Some(true);
            host.switch = Some(ThpDisabled::Completely);
            host.thp = Err(hugeheap_os::Error::new("read", libc::ENOENT));
        });
        assert_eq!(found, [Code::ThpMissing, Code::ShellThpOff, Code::NestedPaging]);
    }
}

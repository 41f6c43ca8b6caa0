//! The findings about a host: facts in, findings out. Pure.
//!
//! A rule fires on what is known for certain, and names a fix that can be typed. Here are those about what a
//! host is and has; those about what is set there are beside: of transparent huge pages ([`rules_thp`]), of
//! pools ([`rules_pools`]), of merging ([`rules_merging`]); and those about a process or a command
//! ([`rules_target`]).

use super::codes::{Code, Finding};
use super::situation::Situation;
use super::{rules_merging, rules_pools, rules_target, rules_thp};
use crate::output::{bytes, percent};
use crate::status::facts;
use hugeheap_os::ThpDisabled;

/// A share of memory that is little: a twentieth, what `hugeheap pool` leaves the host, too.
pub(super) const LITTLE: u64 = 20;
/// Free memory, in huge pages, from which on fragmentation can be told: less is free on any busy host, in small pieces.
const ENOUGH_FREE: u64 = 64;
/// Share of free memory in one piece below which a huge page is hard to find. Fresh hosts have 90 %, and a
/// long-running one that finds pages without compaction more than 20 %.
const FRAGMENTED: f64 = 0.1;
/// A memory limit leaves room for this many huge pages, or the next ones are refused (EBUSY of a collapse,
/// fallback of a fault).
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
    rules_thp::thp(situation, &mut found);
    kernel(situation, &mut found);
    rules_pools::pools(situation, &mut found);
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
    use hugeheap_os::{Capabilities, Khugepaged, Thp, ThpDefrag, ThpMode};
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

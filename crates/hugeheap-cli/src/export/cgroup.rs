//! Metrics of memory cgroups: those of the processes there are.
//!
//! Term: *unmapped* is the anonymous charge that no process of the group maps: stranded parts of huge pages, and pages that are about to be
//! freed. Processes that share pages after a fork count them twice, and make it less; those that cannot be seen from here make it more.

use super::arguments::is_below;
use super::budget::{Budget, What, Why};
use super::metric::{self, Found};
use super::processes::Row;
use crate::status::facts::value_of;
use hugeheap_os::linux::{Linux, LinuxProcess};
use hugeheap_os::{CgroupVersion, MemoryLimits, Result};
use std::collections::BTreeMap;
use std::fs;

/// What is known of one group from its processes.
#[derive(Clone, Copy)]
struct Members {
    /// One of them: through it the files are found.
    id: u32,
    count: u64,
    /// Of its processes and of those in groups below.
    anonymous: u64,
}

pub(super) fn gather(linux: Linux, rows: &[Row], only: &[String], budget: &mut Budget, found: &mut Found) {
    let mut groups: BTreeMap<&str, Members> = BTreeMap::new();
    for row in rows {
        let Some(group) = &row.group else { continue };
        if only.is_empty() || only.iter().any(|path| is_below(group, path)) {
            groups.entry(group).or_insert(Members { id: row.id, count: 0, anonymous: 0 }).count += 1;
        }
    }
    // A group is charged for all below it.
    for row in rows {
        for group in row.group.iter().flat_map(|group| upwards(group.as_str())) {
            if let Some(members) = groups.get_mut(group) {
                members.anonymous += row.status.anonymous;
            }
        }
    }
    for (group, members) in groups {
        if budget.share().is_none() {
            budget.skip(What::Cgroup, Why::Budget);
            continue;
        }
        match read(linux, members.id) {
            Ok((limits, stat)) => add(found, group, members, limits, &stat),
            Err(error) => budget.failed(What::Cgroup, error),
        }
    }
}

/// A path and those above it: `/a/b`, `/a`, `/`.
fn upwards(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path), |path| match path.rfind('/') {
        Some(0) if path.len() > 1 => Some("/"),
        Some(at) if at > 0 => Some(&path[..at]),
        _ => None,
    })
}

/// Limits and charge of the group of process `id`, and what its `memory.stat` says.
fn read(linux: Linux, id: u32) -> Result<(MemoryLimits, String)> {
    let limits = LinuxProcess::memory_limits_of(linux, id)?;
    let (_, directory) = LinuxProcess::memory_group_directory(linux, id)?;
    Ok((limits, fs::read_to_string(directory.join("memory.stat")).unwrap_or_default()))
}

fn add(found: &mut Found, group: &str, members: Members, limits: MemoryLimits, stat: &str) {
    let of = [("cgroup", group)];
    let two = |name, value| [of[0], (name, value)];
    found.add(&metric::CGROUP_PROCESSES, &of, members.count);
    found.add(&metric::CGROUP_CHARGE, &of, limits.charge);
    found.maybe(&metric::CGROUP_LIMIT, &two("limit", "max"), limits.max);
    found.maybe(&metric::CGROUP_LIMIT, &two("limit", "high"), limits.high);
    found.maybe(&metric::CGROUP_ANONYMOUS, &of, limits.anonymous);
    let unmapped = limits.anonymous.map(|anonymous| anonymous.saturating_sub(members.anonymous));
    found.maybe(&metric::CGROUP_UNMAPPED, &of, unmapped);
    // v1 tells anonymous memory only, under another name.
    let kinds: &[(&str, &str)] = match limits.version {
        CgroupVersion::V1 => &[("anonymous", "total_rss_huge")],
        CgroupVersion::V2 => &[("anonymous", "anon_thp"), ("shared", "shmem_thp"), ("file", "file_thp")],
    };
    for (kind, key) in kinds {
        found.maybe(&metric::CGROUP_HUGE, &two("kind", kind), value_of(stat, key));
    }
}

#[cfg(test)]
mod tests {
    use super::super::arguments::Format;
    use super::*;

    #[test]
    fn a_group_is_below_all_above_it() {
        let all = |path: &'static str| upwards(path).collect::<Vec<_>>();
        assert_eq!(all("/a/b"), ["/a/b", "/a", "/"]);
        assert_eq!(all("/a"), ["/a", "/"]);
        assert_eq!(all("/"), ["/"]);
    }

    #[test]
    fn what_no_process_maps_is_told_and_never_negative() {
        let limits = |anonymous| MemoryLimits {
            version: CgroupVersion::V2,
            max: Some(1000),
            high: None,
            charge: 600,
            anonymous: Some(anonymous),
        };
        let mut found = Found::new();
        let members = |anonymous| Members { id: 1, count: 2, anonymous };
        add(&mut found, "/app", members(100), limits(500), "anon 500\nanon_thp 300\n");
        add(&mut found, "/web", members(700), limits(500), "");
        let text = super::super::text::write(found.into(), Format::Prometheus);
        for line in [
            "hugeheap_cgroup_unmapped_bytes{cgroup=\"/app\"} 400",
            "hugeheap_cgroup_unmapped_bytes{cgroup=\"/web\"} 0",
            "hugeheap_cgroup_huge_bytes{cgroup=\"/app\",kind=\"anonymous\"} 300",
            "hugeheap_cgroup_limit_bytes{cgroup=\"/app\",limit=\"max\"} 1000",
            "hugeheap_cgroup_processes{cgroup=\"/app\"} 2",
        ] {
            assert!(text.contains(&format!("{line}\n")), "{line}: {text}");
        }
        assert!(!text.contains("limit=\"high\""));
    }
}

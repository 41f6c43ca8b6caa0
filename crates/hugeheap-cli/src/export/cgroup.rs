//! Metrics of memory cgroups: those of the processes there are.

use super::arguments::is_below;
use super::budget::{Budget, What, Why};
use super::metric::{self, Found};
use super::processes::Row;
use crate::cgroup::{self, Charge};
use crate::status::facts::value_of;
use hugeheap_os::linux::{Linux, LinuxProcess};
use hugeheap_os::{CgroupVersion, Facts, MemoryLimits, Result};
use std::collections::BTreeMap;
use std::fs;

/// What is known of one group from its processes.
#[derive(Clone, Copy)]
struct Members {
    /// One of them: through it the files are found.
    id: u32,
    count: u64,
}

/// What the kernel says of one group.
struct Group {
    limits: MemoryLimits,
    charge: Charge,
    /// `memory.stat`.
    stat: String,
}

pub(super) fn gather(linux: Linux, rows: &[Row], only: &[String], budget: &mut Budget, found: &mut Found) {
    let mut groups: BTreeMap<&str, Members> = BTreeMap::new();
    for row in rows {
        let Some(group) = &row.group else { continue };
        if only.is_empty() || only.iter().any(|path| is_below(group, path)) {
            groups.entry(group).or_insert(Members { id: row.id, count: 0 }).count += 1;
        }
    }
    let slack = cgroup::slack(linux.page_sizes().os);
    for (group, members) in groups {
        if budget.share().is_none() {
            budget.skip(What::Cgroup, Why::Budget);
            continue;
        }
        match read(linux, members.id, slack) {
            Ok(said) => add(found, group, members.count, &said),
            Err(error) => budget.failed(What::Cgroup, error),
        }
    }
}

/// The group of process `id`.
fn read(linux: Linux, id: u32, slack: u64) -> Result<Group> {
    let limits = LinuxProcess::memory_limits_of(linux, id)?;
    let (_, directory) = LinuxProcess::memory_group_directory(linux, id)?;
    let stat = fs::read_to_string(directory.join("memory.stat")).unwrap_or_default();
    Ok(Group { limits, charge: Charge::read(limits, &directory, slack), stat })
}

fn add(found: &mut Found, path: &str, processes: u64, group: &Group) {
    let Group { limits, charge, stat } = group;
    let of = [("cgroup", path)];
    let two = |name, value| [of[0], (name, value)];
    found.add(&metric::CGROUP_PROCESSES, &of, processes);
    found.add(&metric::CGROUP_CHARGE, &of, limits.charge);
    found.maybe(&metric::CGROUP_LIMIT, &two("limit", "max"), limits.max);
    found.maybe(&metric::CGROUP_LIMIT, &two("limit", "high"), limits.high);
    found.maybe(&metric::CGROUP_ANONYMOUS, &of, limits.anonymous);
    found.maybe(&metric::CGROUP_STRANDED, &of, charge.stranded);
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
    fn what_no_statistic_explains_is_told_as_stranded() {
        let group = |stat: &str| {
            let directory = tempfile::tempdir().unwrap();
            fs::write(directory.path().join("memory.stat"), stat).unwrap();
            let limits = MemoryLimits {
                version: CgroupVersion::V2,
                max: Some(1000),
                high: None,
                charge: 600,
                anonymous: Some(100),
            };
            Group { limits, charge: Charge::read(limits, directory.path(), 0), stat: stat.to_owned() }
        };
        let mut found = Found::new();
        add(&mut found, "/app", 2, &group("anon 100\nfile 60\nkernel 40\nanon_thp 30\n"));
        let web = group("file 600\n");
        let limits = MemoryLimits { high: Some(900), ..web.limits };
        add(&mut found, "/web", 1, &Group { limits, ..web });
        let text = super::super::text::write(found.into(), Format::Prometheus);
        for line in [
            "hugeheap_cgroup_stranded_bytes{cgroup=\"/app\"} 400",
            "hugeheap_cgroup_huge_bytes{cgroup=\"/app\",kind=\"anonymous\"} 30",
            "hugeheap_cgroup_limit_bytes{cgroup=\"/app\",limit=\"max\"} 1000",
            "hugeheap_cgroup_limit_bytes{cgroup=\"/web\",limit=\"max\"} 1000",
            "hugeheap_cgroup_limit_bytes{cgroup=\"/web\",limit=\"high\"} 900",
            "hugeheap_cgroup_processes{cgroup=\"/app\"} 2",
        ] {
            assert!(text.contains(&format!("{line}\n")), "{line}: {text}");
        }
        assert!(!text.contains("{cgroup=\"/app\",limit=\"high\"}"));
        assert!(!text.contains("stranded_bytes{cgroup=\"/web\"}"), "not known without statistics: {text}");
    }
}

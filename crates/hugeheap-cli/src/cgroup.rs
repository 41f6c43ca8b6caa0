//! What a memory cgroup is charged for, and what of that is stranded.
//!
//! A stranded part of a huge page is charged, and nobody maps it. The kernel charges by the folio, but its
//! statistics count anonymous memory by what is mapped (`anon`; `total_rss` of v1; since Linux 5.8). What the
//! charge has more than all its statistics together is stranded:
//!
//! ```text
//!   charge ┃ mapped, anonymous ┃ files, shared memory ┃ kernel, sockets, hugetlb ┃ stranded ┃
//! ```
//!
//! Measured with 92 huge pages of which one OS page was mapped each: 192.9 MB, of 193.0 that were. Sums over
//! the processes' own counts of what they map would count pages twice that are shared after a fork, and miss
//! processes that cannot be seen from here; the statistics do neither.
//!
//! The root group of v1 is charged for nothing: what the kernel shows as its charge is the sum of two of those
//! statistics, and the difference says nothing of what is stranded.
//!
//! Each processor keeps a stock of charge that nothing uses yet ([`STOCK`]); a difference that the stocks can
//! explain is nothing.

use crate::status::facts::value_of;
use hugeheap_os::linux::{Linux, LinuxProcess};
use hugeheap_os::{CgroupVersion, MemoryLimits, Result};
use std::fs;
use std::path::Path;

/// OS pages that the kernel charges a group for in advance, for each processor (`MEMCG_CHARGE_BATCH`).
const STOCK: u64 = 64;

/// How what is stranded was found out, in JSON.
pub(crate) const DERIVATION: &str = "charge_minus_statistics";

/// What a group, with all below it, is charged for. In bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Charge {
    pub(crate) version: CgroupVersion,
    pub(crate) charge: u64,
    /// The least limit of the group and its parents.
    pub(crate) limit: Option<u64>,
    /// Anonymous memory that is mapped.
    pub(crate) mapped: u64,
    /// Of anonymous memory and of files, on huge pages.
    pub(crate) huge: u64,
    /// Cached files, and shared memory.
    pub(crate) file: u64,
    /// The kernel's own memory for the group: page tables, stacks, sockets; hugetlb pages where they are charged.
    pub(crate) kernel: u64,
    /// Charged, and nothing of the above; `None` where the statistics do not tell enough, and for the root group of v1.
    pub(crate) stranded: Option<u64>,
}

impl Charge {
    /// Of a process's group.
    pub(crate) fn of(linux: Linux, id: u32, slack: u64) -> Result<Self> {
        let limits = LinuxProcess::memory_limits_of(linux, id)?;
        let (_, directory) = LinuxProcess::memory_group_directory(linux, id)?;
        Ok(Self::read(limits, &directory, slack))
    }

    /// Of the group whose files are in `directory`. `slack`: see [`slack`].
    pub(crate) fn read(limits: MemoryLimits, directory: &Path, slack: u64) -> Self {
        let text = |file: &str| fs::read_to_string(directory.join(file)).unwrap_or_default();
        let kernel = text("memory.kmem.usage_in_bytes").trim().parse().ok();
        let mut charge = Self::new(limits, &text("memory.stat"), kernel, slack);
        // This file is in the root group alone, wherever that is mounted; the path says nothing in a container.
        if limits.version == CgroupVersion::V1 && directory.join("release_agent").exists() {
            charge.stranded = None;
        }
        charge
    }

    /// `kernel`: what v1 says in a file of its own.
    fn new(limits: MemoryLimits, stat: &str, kernel: Option<u64>, slack: u64) -> Self {
        let value = |key: &str| value_of(stat, key);
        let sum = |keys: &[&str]| keys.iter().filter_map(|key| value(key)).sum::<u64>();
        let (mapped, file, kernel, huge) = match limits.version {
            // Without kernel accounting (kmem) the charge has none of it either.
            CgroupVersion::V1 => {
                (value("total_rss"), value("total_cache"), kernel.unwrap_or(0), sum(&["total_rss_huge"]))
            }
            CgroupVersion::V2 => {
                // One sum of all since 5.18; its parts are there longer.
                let parts = ["kernel_stack", "pagetables", "sec_pagetables", "percpu", "vmalloc", "slab"];
                let kernel = value("kernel").unwrap_or_else(|| sum(&parts)) + sum(&["sock", "hugetlb"]);
                (value("anon"), value("file"), kernel, sum(&["anon_thp", "shmem_thp", "file_thp"]))
            }
        };
        let known = mapped.zip(file).map(|(mapped, file)| mapped + file + kernel);
        let stranded = known.map(|known| limits.charge.saturating_sub(known));
        Self {
            version: limits.version,
            charge: limits.charge,
            limit: limits.max.or(limits.high),
            mapped: mapped.unwrap_or(0),
            huge,
            file: file.unwrap_or(0),
            kernel,
            stranded: stranded.map(|stranded| if stranded <= slack { 0 } else { stranded }),
        }
    }
}

/// What the processors' stocks can explain, in bytes.
pub(crate) fn slack(os_page: usize) -> u64 {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    STOCK * (os_page * processors) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn limits(version: CgroupVersion, charge: u64) -> MemoryLimits {
        MemoryLimits { version, max: None, high: Some(9), charge, anonymous: None }
    }

    #[test]
    fn what_no_statistic_explains_is_stranded() {
        let stat = "cache 7\nrss 5\ntotal_cache 1048576\ntotal_rss 27262976\ntotal_rss_huge 2097152\n";
        let charge = Charge::new(limits(CgroupVersion::V1, 220 * MIB), stat, Some(MIB), MIB / 2);
        assert_eq!((charge.mapped, charge.file, charge.kernel), (26 * MIB, MIB, MIB));
        assert_eq!((charge.huge, charge.stranded, charge.limit), (2 * MIB, Some(192 * MIB), Some(9)));

        let stat =
            "anon 4194304\nfile 2097152\nkernel 1048576\nkernel_stack 9\nsock 1048576\nanon_thp 2097152\n";
        let charge = Charge::new(limits(CgroupVersion::V2, 20 * MIB), stat, None, MIB / 2);
        assert_eq!((charge.stranded, charge.huge), (Some(12 * MIB), 2 * MIB));
        // Before 5.18.
        let stat = "anon 4194304\nfile 2097152\nkernel_stack 524288\nslab 524288\n";
        assert_eq!(Charge::new(limits(CgroupVersion::V2, 20 * MIB), stat, None, 0).stranded, Some(13 * MIB));
    }

    /// Taken for stranded, a pool's pages would be looked for in vain.
    #[test]
    fn hugetlb_pages_that_a_group_is_charged_for_are_not_stranded() {
        let stat = "anon 4194304\nfile 0\nkernel 0\nhugetlb 8388608\n";
        let charge = Charge::new(limits(CgroupVersion::V2, 12 * MIB), stat, None, 0);
        assert_eq!((charge.kernel, charge.stranded), (8 * MIB, Some(0)));
    }

    #[test]
    fn of_two_limits_the_one_that_kills_is_told() {
        let both = MemoryLimits { max: Some(20), high: Some(10), ..limits(CgroupVersion::V2, 1) };
        assert_eq!(Charge::new(both, "", None, 0).limit, Some(20));
        assert_eq!(Charge::new(MemoryLimits { max: None, ..both }, "", None, 0).limit, Some(10));
    }

    #[test]
    fn what_is_stranded_in_the_root_group_of_v1_is_not_known() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("memory.stat"), "total_cache 0\ntotal_rss 4096\n").unwrap();
        let read = |version| Charge::read(limits(version, 4096), directory.path(), 0).stranded;
        assert_eq!(read(CgroupVersion::V1), Some(0));
        fs::write(directory.path().join("release_agent"), "").unwrap();
        assert_eq!(read(CgroupVersion::V1), None);
    }

    #[test]
    fn what_stocks_explain_is_nothing_and_without_statistics_it_is_not_known() {
        let stat = "anon 4194304\nfile 0\nkernel 0\n";
        let of = |charge| Charge::new(limits(CgroupVersion::V2, charge), stat, None, MIB / 2).stranded;
        assert_eq!((of(4 * MIB + 4096), of(3 * MIB), of(5 * MIB)), (Some(0), Some(0), Some(MIB)));
        // All that the stocks can hold, and a page more, which they cannot.
        assert_eq!((of(9 * MIB / 2), of(9 * MIB / 2 + 4096)), (Some(0), Some(MIB / 2 + 4096)));
        assert_eq!(Charge::new(limits(CgroupVersion::V2, MIB), "", None, 0).stranded, None);
        assert!(slack(4096) >= 64 * 4096);
    }
}

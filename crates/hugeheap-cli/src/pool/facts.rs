//! The pools of a host, read: all nodes together, and each node.

use super::plan::Pool;
use hugeheap_os::linux::Knobs;
use hugeheap_os::{Error, Result};

pub(crate) const DIRECTORY: &str = "/sys/kernel/mm/hugepages";
const NODES: &str = "/sys/devices/system/node";

/// Where the files of a pool are.
pub(crate) fn directory(page: u64, node: Option<u32>) -> String {
    let kilobytes = page >> 10;
    match node {
        None => format!("{DIRECTORY}/hugepages-{kilobytes}kB"),
        Some(node) => format!("{NODES}/node{node}/hugepages/hugepages-{kilobytes}kB"),
    }
}

/// One pool.
///
/// # Errors
/// `ENOENT` where the kernel or the node has none of this size.
pub(crate) fn read(knobs: &Knobs, page: u64, node: Option<u32>) -> Result<Pool> {
    let directory = directory(page, node);
    let number = |name: &str| knobs.number(&format!("{directory}/{name}"));
    Ok(Pool {
        page,
        node,
        total: number("nr_hugepages")?,
        unused: number("free_hugepages")?,
        reserved: node.is_none().then(|| number("resv_hugepages")).transpose()?,
        surplus: number("surplus_hugepages")?,
        overcommit: node.is_none().then(|| number("nr_overcommit_hugepages")).transpose()?,
    })
}

/// The page sizes there are pools of, smallest first.
///
/// # Errors
/// `ENOENT` on a kernel without pools.
pub(crate) fn sizes(knobs: &Knobs) -> Result<Vec<u64>> {
    let names = knobs.list(DIRECTORY)?;
    let mut sizes: Vec<u64> = names.iter().filter_map(|name| size_of(name)).collect();
    sizes.sort_unstable();
    if sizes.is_empty() { Err(Error::new("list(hugepages)", libc::ENOENT)) } else { Ok(sizes) }
}

fn size_of(name: &str) -> Option<u64> {
    let kilobytes: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// The NUMA nodes that have pools, by number; none on a kernel without NUMA.
pub(crate) fn nodes(knobs: &Knobs) -> Vec<u32> {
    let names = knobs.list(NODES).unwrap_or_default();
    let mut nodes: Vec<u32> = names
        .iter()
        .filter_map(|name| name.strip_prefix("node")?.parse().ok())
        .filter(|node| knobs.list(&format!("{NODES}/node{node}/hugepages")).is_ok())
        .collect();
    nodes.sort_unstable();
    nodes
}

/// The page size of `vm.nr_hugepages` and of `mmap(MAP_HUGETLB)`.
///
/// # Errors
/// `EBADMSG` where /proc/meminfo does not tell.
pub(crate) fn default_size(knobs: &Knobs) -> Result<u64> {
    let text = knobs.text("/proc/meminfo")?;
    let value = text.lines().find_map(|line| line.strip_prefix("Hugepagesize:")?.trim().strip_suffix("kB"));
    let kilobytes: Option<u64> = value.and_then(|value| value.trim().parse().ok());
    kilobytes
        .and_then(|kilobytes| kilobytes.checked_mul(1024))
        .ok_or(Error::new("read(/proc/meminfo)", libc::EBADMSG))
}

//! Processors, caches and NUMA nodes: the affinity mask, `/sys/devices/system/cpu/cpu0/cache/` and
//! `/sys/devices/system/node/`.
//!
//! Caches and nodes are read once when a heap is configured, so these functions may allocate.

use super::lines::Lines;
use super::read::{self, Root};
use crate::{Cache, NumaNode, Result};
use std::os::unix::ffi::OsStrExt;

const CACHES: &[u8] = b"/sys/devices/system/cpu/cpu0/cache";
const CACHE: &str = "read(/sys/devices/system/cpu/cpu0/cache)";
const NODES: &[u8] = b"/sys/devices/system/node";
const NODE: &str = "read(/sys/devices/system/node)";

/// Processors that the calling thread may run on.
pub(super) fn processors() -> usize {
    // SAFETY: all zero is an empty set.
    let mut set: libc::cpu_set_t = unsafe { core::mem::zeroed() };
    // SAFETY: the kernel writes at most the size that it is told.
    if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) } != 0 {
        // The host has more processors than a set has room for (EINVAL). Nothing else can go wrong.
        return libc::CPU_SETSIZE as usize;
    }
    // SAFETY: only counts the bits of the set.
    (unsafe { libc::CPU_COUNT(&set) } as usize).max(1)
}

/// The caches of CPU 0, in the kernel's order.
pub(super) fn caches(root: &Root) -> Result<Vec<Cache>> {
    numbered(root, CACHES, b"index", CACHE)?.into_iter().map(|index| cache(root, index)).collect()
}

fn cache(root: &Root, index: usize) -> Result<Cache> {
    let mut buffer = [0; 4096];
    let mut field = |file: &[u8]| -> Result<Vec<u8>> {
        root.at(&[CACHES, b"/index"], |path| {
            path.push_decimal(index)?;
            path.push(b"/")?;
            path.push(file)?;
            Ok(read::whole(path, &mut buffer, CACHE)?.trim_ascii().to_vec())
        })
    };
    let bad = read::malformed(CACHE);
    let level = read::decimal(&field(b"level")?).and_then(|level| u8::try_from(level).ok()).ok_or(bad)?;
    let data = match field(b"type")?.as_slice() {
        b"Data" | b"Unified" => true,
        b"Instruction" => false,
        _ => return Err(bad),
    };
    let size = size(&field(b"size")?).ok_or(bad)?;
    let shared_by = count_of_list(&field(b"shared_cpu_list")?).ok_or(bad)?;
    Ok(Cache { level, data, size, shared_by })
}

/// A size with the kernel's unit: `32K`; `M` in case it ever grows.
fn size(text: &[u8]) -> Option<usize> {
    let (number, unit) = match text.split_last()? {
        (b'K', number) => (number, 1 << 10),
        (b'M', number) => (number, 1 << 20),
        _ => (text, 1),
    };
    usize::try_from(read::digits(number, 10)?).ok()?.checked_mul(unit)
}

/// How many numbers a list like `0-3,8,10-11` has. At least one.
fn count_of_list(text: &[u8]) -> Option<u32> {
    let mut count = 0_u32;
    for part in text.split(|&byte| byte == b',') {
        let (first, last) = match part.iter().position(|&byte| byte == b'-') {
            Some(dash) => (read::digits(&part[..dash], 10)?, read::digits(&part[dash + 1..], 10)?),
            None => (read::digits(part, 10)?, read::digits(part, 10)?),
        };
        let length = last.checked_sub(first)?.checked_add(1)?;
        count = count.checked_add(u32::try_from(length).ok()?)?;
    }
    Some(count)
}

/// The nodes that have memory, by number.
pub(super) fn numa_nodes(root: &Root) -> Result<Vec<NumaNode>> {
    let mut nodes = Vec::new();
    for id in numbered(root, NODES, b"node", NODE)? {
        let node = numa_node(root, id)?;
        if node.total > 0 {
            nodes.push(node);
        }
    }
    Ok(nodes)
}

fn numa_node(root: &Root, id: usize) -> Result<NumaNode> {
    let mut path = root.path(NODES)?;
    path.push(b"/node")?;
    path.push_decimal(id)?;
    path.push(b"/meminfo")?;
    let mut lines = Lines::<_, 256>::new(read::File::open(&path, NODE)?);
    let (mut total, mut free) = (None, None);
    while let Some(line) = lines.next()? {
        // "Node 0 MemTotal:       24684084 kB"
        let Some(field) = line.bytes.splitn(3, |&byte| byte == b' ').nth(2) else { continue };
        total = total.or_else(|| read::bytes_of(field, b"MemTotal"));
        free = free.or_else(|| read::bytes_of(field, b"MemFree"));
    }
    let bad = read::malformed(NODE);
    let id = u32::try_from(id).map_err(|_| bad)?;
    Ok(NumaNode { id, total: total.ok_or(bad)?, free: free.ok_or(bad)? })
}

/// The numbers of the entries of a directory that are called `prefix` and a number, in order. Apart, so that
/// its paths are off the stack when the entries are read.
#[inline(never)]
fn numbered(root: &Root, dir: &[u8], prefix: &[u8], name: &'static str) -> Result<Vec<usize>> {
    let number = |entry: &std::ffi::OsString| {
        usize::try_from(read::digits(entry.as_bytes().strip_prefix(prefix)?, 10)?).ok()
    };
    let mut numbers: Vec<_> = read::list(root, dir, name)?.iter().filter_map(number).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::super::testing::FakeRoot;
    use super::*;
    use crate::Error;
    use proptest::prelude::*;

    fn add_cache(fake: &FakeRoot, index: u32, files: [&str; 4]) {
        for (file, text) in ["level", "type", "size", "shared_cpu_list"].iter().zip(files) {
            let path = format!("sys/devices/system/cpu/cpu0/cache/index{index}/{file}");
            fake.write(&path, &format!("{text}\n"));
        }
    }

    #[test]
    fn caches_come_in_order_with_who_shares_them() {
        let fake = FakeRoot::new();
        add_cache(&fake, 3, ["3", "Unified", "32768K", "0-7,64-71"]);
        add_cache(&fake, 0, ["1", "Data", "32K", "0,64"]);
        add_cache(&fake, 1, ["1", "Instruction", "32K", "0"]);
        add_cache(&fake, 10, ["4", "Unified", "1M", "0-127"]);
        fake.write("sys/devices/system/cpu/cpu0/cache/uevent", "");
        let expected = [
            Cache { level: 1, data: true, size: 32 << 10, shared_by: 2 },
            Cache { level: 1, data: false, size: 32 << 10, shared_by: 1 },
            Cache { level: 3, data: true, size: 32 << 20, shared_by: 16 },
            Cache { level: 4, data: true, size: 1 << 20, shared_by: 128 },
        ];
        assert_eq!(caches(&fake.root()).unwrap(), expected);
    }

    #[test]
    fn damaged_caches_are_errors() {
        for files in [
            ["256", "Data", "32K", "0"],
            ["1", "Quantum", "32K", "0"],
            ["1", "Data", "K", "0"],
            ["1", "Data", "32K", ""],
            ["1", "Data", "32K", "3-1"],
            ["1", "Data", "18446744073709551615M", "0"],
        ] {
            let fake = FakeRoot::new();
            add_cache(&fake, 0, files);
            assert_eq!(caches(&fake.root()), Err(read::malformed(CACHE)), "{files:?}");
        }
        assert_eq!(caches(&FakeRoot::new().root()), Err(Error::new(CACHE, libc::ENOENT)));
    }

    #[test]
    fn nodes_without_memory_are_left_out() {
        let fake = FakeRoot::new();
        let meminfo = |id: u32, total: u32| {
            format!(
                "\nNode {id} MemTotal: {total:>14} kB\nNode {id} MemFree:         7 kB\nNode {id} MemUsed: 1 kB\n"
            )
        };
        fake.write("sys/devices/system/node/node10/meminfo", &meminfo(10, 300));
        fake.write("sys/devices/system/node/node2/meminfo", &meminfo(2, 200));
        fake.write("sys/devices/system/node/node3/meminfo", &meminfo(3, 0));
        fake.write("sys/devices/system/node/online", "0-3\n");
        let expected = [
            NumaNode { id: 2, total: 200 << 10, free: 7 << 10 },
            NumaNode { id: 10, total: 300 << 10, free: 7 << 10 },
        ];
        assert_eq!(numa_nodes(&fake.root()).unwrap(), expected);
        fake.write("sys/devices/system/node/node4/meminfo", "Node 4 MemTotal: 1 kB\n");
        assert_eq!(numa_nodes(&fake.root()), Err(read::malformed(NODE)));
    }

    proptest! {
        #[test]
        fn lists_are_counted(parts in proptest::collection::vec((0_u32..1000, 0_u32..1000), 1..20)) {
            let text: Vec<_> = parts.iter().map(|&(first, more)| if more == 0 { first.to_string() } else { format!("{first}-{}", first + more) }).collect();
            let expected: u32 = parts.iter().map(|&(_, more)| more + 1).sum();
            prop_assert_eq!(count_of_list(text.join(",").as_bytes()), Some(expected));
        }

        #[test]
        fn no_text_makes_the_parsers_panic(text: Vec<u8>) {
            let _ = (size(&text), count_of_list(&text));
        }
    }
}

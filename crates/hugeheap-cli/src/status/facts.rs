//! What the kernel counts about huge pages on the whole host. Reading only; cheap files, no process.
//!
//! What cannot be read is `None`: each of these files is missing on some kernel.

use crate::thp::catalogue::DIRECTORY;
use hugeheap_os::linux::Knobs;

/// Counters of one size of huge page (`hugepages-*kB/stats`, Linux 6.10 and newer; what is mapped since 6.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) bytes: u64,
    /// Huge pages in anonymous memory now.
    pub(crate) anonymous: Option<u64>,
    /// Of them, those of which only a part is mapped.
    pub(crate) partial: Option<u64>,
    /// Made at a fault since boot.
    pub(crate) faults: Option<u64>,
    /// Faults that took smaller pages instead.
    pub(crate) fallbacks: Option<u64>,
    /// Of them, those that the memory cgroup's limit refused.
    pub(crate) fallbacks_of_limit: Option<u64>,
    /// Split since boot.
    pub(crate) splits: Option<u64>,
}

/// Free memory of one zone, by size of block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Zone {
    pub(crate) node: u32,
    pub(crate) name: String,
    /// Blocks of 1, 2, 4 … OS pages.
    pub(crate) blocks: Vec<u64>,
}

/// Free memory, and how much of it is in one piece.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Free {
    pub(crate) total: u64,
    /// In blocks that hold a huge page.
    pub(crate) huge: u64,
}

/// The value of `key` in a file of lines like `key value` or `key: value kB`; kB as bytes.
pub(crate) fn value_of(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let rest = line.strip_prefix(key)?;
        let rest = rest.strip_prefix(':').or_else(|| rest.strip_prefix([' ', '\t']))?.trim();
        match rest.strip_suffix("kB") {
            Some(number) => number.trim().parse::<u64>().ok()?.checked_mul(1024),
            None => rest.parse().ok(),
        }
    })
}

/// The sizes with counters, smallest first.
pub(crate) fn sizes(knobs: &Knobs) -> Vec<Size> {
    let mut sizes = Vec::new();
    for name in knobs.list(DIRECTORY).unwrap_or_default() {
        let Some(kilobytes) = name.strip_prefix("hugepages-").and_then(|rest| rest.strip_suffix("kB")) else {
            continue;
        };
        let Ok(kilobytes) = kilobytes.parse::<u64>() else { continue };
        let number = |file: &str| knobs.number(&format!("{DIRECTORY}/{name}/stats/{file}")).ok();
        sizes.push(Size {
            bytes: kilobytes << 10,
            anonymous: number("nr_anon"),
            partial: number("nr_anon_partially_mapped"),
            faults: number("anon_fault_alloc"),
            fallbacks: number("anon_fault_fallback"),
            fallbacks_of_limit: number("anon_fault_fallback_charge"),
            splits: number("split"),
        });
    }
    sizes.sort_unstable_by_key(|size| size.bytes);
    sizes
}

/// The zones of /proc/buddyinfo: `Node 0, zone   Normal   7110   1870 …`.
pub(crate) fn zones(text: &str) -> Vec<Zone> {
    let zone = |line: &str| {
        let (node, rest) = line.strip_prefix("Node ")?.split_once(", zone")?;
        let mut words = rest.split_whitespace();
        let name = words.next()?.to_owned();
        let blocks = words.map(|word| word.parse().ok()).collect::<Option<_>>()?;
        Some(Zone { node: node.trim().parse().ok()?, name, blocks })
    };
    text.lines().filter_map(zone).collect()
}

/// Free memory of `zones`. Blocks are of whole powers of two: one that is large enough holds huge pages without
/// moving anything.
pub(crate) fn free<'a>(zones: impl Iterator<Item = &'a Zone>, os_page: u64, huge_page: u64) -> Free {
    let mut free = Free::default();
    for zone in zones {
        for (order, &count) in zone.blocks.iter().enumerate() {
            let block = os_page << order;
            free.total += count * block;
            free.huge += if block >= huge_page { count * block } else { 0 };
        }
    }
    free
}

/// The value of the first line `name : value` of /proc/cpuinfo.
pub(crate) fn cpuinfo<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.map(|(key, value)| (key.trim(), value.trim())).find(|(key, _)| *key == name).map(|(_, value)| value)
}

/// Whether a hypervisor is below; `None` where the CPU does not tell.
pub(crate) fn virtualised(cpuinfo_text: &str) -> Option<bool> {
    Some(cpuinfo(cpuinfo_text, "flags")?.split_whitespace().any(|flag| flag == "hypervisor"))
}

/// Devices of the virtio bus.
const VIRTIO: &str = "/sys/bus/virtio/devices";
/// The memory balloon's number, as its file says it (Virtio 1.2, 5.5).
const BALLOON: &str = "0x0005";
/// The bit of its features that says that free pages are reported (`VIRTIO_BALLOON_F_REPORTING`).
const REPORTING: usize = 5;

/// Whether this kernel tells a hypervisor which memory is free, so that it takes it: a virtio balloon for which
/// both agreed to. `None` where the devices may not be looked at. Other hypervisors' balloons do not say.
pub(crate) fn free_page_reporting(knobs: &Knobs) -> Option<bool> {
    let devices = match knobs.list(VIRTIO) {
        Err(error) if error.code == libc::ENOENT => Vec::new(),
        devices => devices.ok()?,
    };
    let text =
        |device: &str, file: &str| knobs.text(&format!("{VIRTIO}/{device}/{file}")).unwrap_or_default();
    // A character for each bit, the lowest first.
    let reports = |device: &String| text(device, "features").as_bytes().get(REPORTING) == Some(&b'1');
    let is_balloon = |device: &&String| text(device, "device").trim() == BALLOON;
    Some(devices.iter().filter(is_balloon).any(reports))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_need_their_whole_key() {
        let text = "MemTotal:   100 kB\nthp_split_page 5\nthp_split_page_failed 7\n";
        assert_eq!(value_of(text, "MemTotal"), Some(100 << 10));
        assert_eq!(value_of(text, "thp_split_page"), Some(5));
        assert_eq!(value_of(text, "Mem"), None);
        assert_eq!(value_of("x: y", "x"), None);
    }

    #[test]
    fn free_memory_is_in_one_piece_from_the_huge_page_on() {
        let text = "Node 0, zone      DMA      0      1\nNode 1, zone   Normal      3      0      0      0      0      0      0      0      0      2      1\njunk\n";
        let zones = zones(text);
        assert_eq!((zones.len(), zones[1].node, zones[1].name.as_str()), (2, 1, "Normal"));
        let found = free(zones.iter(), 4096, 2 << 20);
        assert_eq!(found.huge, (2 << 21) + (1 << 22));
        assert_eq!(found.total, found.huge + 2 * 4096 + 3 * 4096);
    }

    #[test]
    fn a_hypervisor_shows_in_the_flags() {
        assert_eq!(virtualised("flags\t\t: fpu hypervisor lm\n"), Some(true));
        assert_eq!(virtualised("flags : fpu\n"), Some(false));
        assert_eq!(virtualised("Features : fp asimd\n"), None);
    }
}

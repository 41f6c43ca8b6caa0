//! What the kernel says of each mapping: /proc/PID/smaps.
//!
//! The kernel walks the page tables of a mapping when its lines are read, about 40 µs for each page of tables
//! (2 MiB of memory in OS pages). It writes one mapping after the other, so reading can end between two.
//!
//! ```text
//! 7f12c0000000-7f12c0400000 rw-p 00000000 00:00 0
//! KernelPageSize:        4 kB        more for hugetlb
//! Rss:                2052 kB        without hugetlb
//! Anonymous:          2052 kB
//! AnonHugePages:      2048 kB        and the same of shared memory, files, hugetlb
//! THPeligible:           1
//! VmFlags: rd wr mr mw me hg         hg: advised, nh: advised against, lo: locked
//! ```

use super::super::lines::Lines;
use super::super::maps;
use super::super::read::{self, PathBuffer, Source};
use super::{gone, open};
use crate::process::MappingDetail;
use crate::{Advice, Result};

const NAME: &str = "read(/proc/PID/smaps)";

pub(super) fn read(path: &PathBuffer, in_time: impl Fn() -> bool) -> Result<(Vec<MappingDetail>, bool)> {
    // A page is what the kernel writes at a time; longer names are cut, no other line is that long.
    parse(Lines::<_, 4096>::new(open(path, NAME)?), in_time)
}

fn parse<S: Source, const N: usize>(
    mut lines: Lines<S, N>,
    in_time: impl Fn() -> bool,
) -> Result<(Vec<MappingDetail>, bool)> {
    let mut details: Vec<MappingDetail> = Vec::new();
    while let Some(line) = lines.next().map_err(gone)? {
        if let Some(range) = maps::header(line.bytes) {
            if !in_time() {
                return Ok((details, false));
            }
            details.push(MappingDetail { start: range.start, ..MappingDetail::default() });
        } else if let Some(detail) = details.last_mut() {
            note(detail, line.bytes);
        } else {
            return Err(read::malformed(NAME));
        }
    }
    Ok((details, true))
}

fn note(detail: &mut MappingDetail, line: &[u8]) {
    let value = |keys: &[&[u8]]| keys.iter().find_map(|key| read::bytes_of(line, key));
    if let Some(bytes) = value(&[b"Rss"]) {
        detail.resident += bytes;
    } else if let Some(bytes) = value(&[b"KernelPageSize"]) {
        detail.page_size = bytes;
    } else if let Some(bytes) = value(&[b"Anonymous"]) {
        detail.anonymous = bytes;
    } else if let Some(bytes) = value(&[b"AnonHugePages", b"ShmemPmdMapped", b"FilePmdMapped"]) {
        detail.huge += bytes;
    } else if let Some(bytes) = value(&[b"Private_Hugetlb", b"Shared_Hugetlb"]) {
        detail.huge += bytes;
        detail.resident += bytes;
    } else if let Some(eligible) = read::number_of(line, b"THPeligible") {
        detail.eligible = Some(eligible != 0);
    } else if let Some(flags) = line.strip_prefix(b"VmFlags:") {
        for flag in flags.split(|&byte| byte == b' ') {
            match flag {
                b"hg" => detail.advice = Some(Advice::Huge),
                b"nh" => detail.advice = Some(Advice::NoHuge),
                b"lo" => detail.locked = true,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"\
10000000-10400000 rw-p 00000000 00:00 0    [heap]
Size:               4096 kB
KernelPageSize:        4 kB
Rss:                2052 kB
Anonymous:          2048 kB
AnonHugePages:      2048 kB
THPeligible:           1
VmFlags: rd wr mr mw me ac hg
20000000-20400000 rw-p 00000000 00:0f 7    /anon_hugepage (deleted)
KernelPageSize:     2048 kB
Rss:                   0 kB
Private_Hugetlb:    4096 kB
THPeligible:           0
VmFlags: rd wr mr mw me de ht nh lo
";

    #[test]
    fn each_mapping_has_its_sums_and_flags() {
        let (details, complete) = parse(Lines::<_, 128>::new(TEXT), || true).unwrap();
        assert!(complete);
        let [heap, pool] = details[..] else { panic!("{details:?}") };
        assert_eq!(
            (heap.start, heap.resident, heap.anonymous, heap.huge),
            (0x1000_0000, 2052 << 10, 2 << 20, 2 << 20)
        );
        assert_eq!((heap.advice, heap.eligible, heap.locked), (Some(Advice::Huge), Some(true), false));
        assert_eq!((pool.resident, pool.huge, pool.page_size), (4 << 20, 4 << 20, 2 << 20));
        assert_eq!((pool.advice, pool.eligible, pool.locked), (Some(Advice::NoHuge), Some(false), true));
    }

    #[test]
    fn reading_ends_between_mappings_when_time_is_up() {
        let calls = std::cell::Cell::new(0);
        let in_time = || calls.replace(calls.get() + 1) < 1;
        let (details, complete) = parse(Lines::<_, 128>::new(TEXT), in_time).unwrap();
        assert_eq!((details.len(), complete), (1, false));
        assert_eq!(details[0].huge, 2 << 20);
    }

    #[test]
    fn garbage_is_an_error() {
        let parsed = parse(Lines::<_, 128>::new(&b"Rss: 4 kB\n"[..]), || true);
        assert_eq!(parsed.unwrap_err().code, libc::EBADMSG);
    }
}

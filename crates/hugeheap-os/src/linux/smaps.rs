//! What backs a range, from /proc/self/smaps: the way of kernels before 6.7.
//!
//! smaps reports sums per mapping, after a header line with its addresses:
//!
//! ```text
//! 7f12c0000000-7f12c0400000 rw-p 00000000 00:00 0        [name, any length]
//! Rss:                2052 kB        without hugetlb pages
//! AnonHugePages:      2048 kB        mapped by their own PMD entry
//! ShmemPmdMapped:        0 kB        the same of shared memory
//! FilePmdMapped:         0 kB        and of files
//! Shared_Hugetlb:        0 kB
//! Private_Hugetlb:       0 kB
//! ```
//!
//! A mapping that lies in the range counts as reported. Of one that sticks out, the resident bytes inside are
//! counted page by page, and its huge pages are taken to be spread over it evenly: the only estimate in this
//! crate, and only on such kernels. Writing smaps makes the kernel walk the page tables of everything before
//! the range, too, which in a large process takes seconds.

use super::lines::Lines;
use super::read::{self, File, Source};
use super::{maps, pagemap};
use crate::{AddressRange, Residency, Result};

const NAME: &str = "read(/proc/self/smaps)";

/// What backs `range`, a multiple of the OS page.
pub(super) fn residency(range: AddressRange) -> Result<Residency> {
    let file = File::open_c(c"/proc/thread-self/smaps", NAME)?;
    // Long names are cut to this; all other lines are far shorter.
    sum(Lines::<_, 512>::new(file), range, pagemap::present)
}

/// Sums over the text of a smaps file. `present` answers the resident bytes in a part of a mapping.
fn sum<S: Source, const N: usize>(
    mut lines: Lines<S, N>,
    range: AddressRange,
    present: impl Fn(AddressRange) -> Result<u64>,
) -> Result<Residency> {
    let mut total = Residency::default();
    let mut mapping = AddressRange::new(0, 0);
    let mut reported = Residency::default();
    let mut first = true;
    while let Some(line) = lines.next()? {
        if let Some(next) = maps::header(line.bytes) {
            total += share(mapping, reported, range, &present)?;
            (mapping, reported, first) = (next, Residency::default(), false);
            if mapping.start >= range.end() {
                break;
            }
        } else if first {
            return Err(read::malformed(NAME));
        } else {
            add_field(&mut reported, line.bytes);
        }
    }
    total += share(mapping, reported, range, &present)?;
    Ok(total)
}

fn add_field(reported: &mut Residency, line: &[u8]) {
    let value = |keys: &[&[u8]]| keys.iter().find_map(|key| read::bytes_of(line, key));
    if let Some(bytes) = value(&[b"Rss"]) {
        reported.resident = reported.resident.saturating_add(bytes);
    } else if let Some(bytes) = value(&[b"AnonHugePages", b"ShmemPmdMapped", b"FilePmdMapped"]) {
        reported.thp = reported.thp.saturating_add(bytes);
    } else if let Some(bytes) = value(&[b"Private_Hugetlb", b"Shared_Hugetlb"]) {
        reported.hugetlb = reported.hugetlb.saturating_add(bytes);
        reported.resident = reported.resident.saturating_add(bytes);
    }
}

/// The part of what is `reported` for `mapping` that falls into `range`.
fn share(
    mapping: AddressRange,
    reported: Residency,
    range: AddressRange,
    present: impl Fn(AddressRange) -> Result<u64>,
) -> Result<Residency> {
    let start = mapping.start.max(range.start);
    let end = mapping.end().min(range.end());
    if start >= end || reported.resident == 0 {
        return Ok(Residency::default());
    }
    if range.encloses(mapping) {
        return Ok(reported);
    }
    let resident = present(AddressRange::new(start, end - start))?;
    let portion = |bytes: u64| {
        let exact = u128::from(bytes) * u128::from(resident) / u128::from(reported.resident);
        // `present` counts zero pages and RSS does not, so the portion may come out above the whole.
        u64::try_from(exact).unwrap_or(u64::MAX).min(bytes).min(resident)
    };
    Ok(Residency { resident, thp: portion(reported.thp), hugetlb: portion(reported.hugetlb) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn entry(range: &str, name: &str, rss: u64, thp: u64, hugetlb: u64) -> String {
        format!(
            "{range} rw-p 00000000 00:00 0 {name}\nSize: 1 kB\nKernelPageSize:        4 kB\nRss: {rss:>12} kB\n\
             Pss:                   0 kB\nAnonymous:          2052 kB\nAnonHugePages: {thp:>9} kB\n\
             ShmemPmdMapped:        0 kB\nFilePmdMapped:         0 kB\nShared_Hugetlb:        0 kB\n\
             Private_Hugetlb: {hugetlb:>6} kB\nTHPeligible:           1\nVmFlags: rd wr mr mw me nr hg\n"
        )
    }

    fn none(_: AddressRange) -> Result<u64> {
        panic!("not needed for whole mappings")
    }

    #[test]
    fn mappings_inside_count_as_reported() {
        let text = entry("10000000-10400000", "[heap]", 4096, 2048, 0)
            + &entry("10400000-10600000", "", 2048, 2048, 0)
            + &entry("10600000-10800000", "/anon_hugepage (deleted)", 0, 0, 2048)
            + &entry("20000000-20200000", "", 8, 0, 0);
        let range = AddressRange::new(0x1000_0000, 0x80_0000);
        let found = sum(Lines::<_, 128>::new(text.as_bytes()), range, none).unwrap();
        assert_eq!(found, Residency { resident: 8 * MIB, thp: 4 * MIB, hugetlb: 2 * MIB });
    }

    #[test]
    fn names_of_any_length_do_not_hide_what_follows() {
        for length in [0, 1, 70, 127, 128, 129, 5000] {
            // A name that looks like fields, cut at any place.
            let name = "Rss: 4 kB 10-20 ".repeat(length / 16 + 1);
            let text = entry("10000000-10200000", &name[..length], 2048, 2048, 0);
            let range = AddressRange::new(0x1000_0000, 0x20_0000);
            let found = sum(Lines::<_, 128>::new(text.as_bytes()), range, none).unwrap();
            assert_eq!(found, Residency { resident: 2 * MIB, thp: 2 * MIB, hugetlb: 0 }, "{length}");
        }
    }

    #[test]
    fn a_mapping_that_sticks_out_gives_its_share() {
        let text = entry("10000000-10800000", "", 8192, 4096, 0);
        let range = AddressRange::new(0x1020_0000, 0x20_0000);
        let present = |part: AddressRange| {
            assert_eq!(part, range);
            Ok(2 * MIB)
        };
        let found = sum(Lines::<_, 128>::new(text.as_bytes()), range, present).unwrap();
        assert_eq!(found, Residency { resident: 2 * MIB, thp: MIB, hugetlb: 0 });
    }

    #[test]
    fn truncated_text_counts_what_is_there_and_garbage_is_an_error() {
        let text = entry("10000000-10200000", "", 2048, 2048, 0);
        let range = AddressRange::new(0x1000_0000, 0x20_0000);
        let cut = text.find("AnonHuge").unwrap();
        let found = sum(Lines::<_, 128>::new(&text.as_bytes()[..cut]), range, none).unwrap();
        assert_eq!((found.resident, found.thp), (2 * MIB, 0));
        let garbage = sum(Lines::<_, 128>::new(&b"not smaps\n"[..]), range, none);
        assert_eq!(garbage.unwrap_err().code, libc::EBADMSG);
        assert_eq!(sum(Lines::<_, 128>::new(&b""[..]), range, none), Ok(Residency::default()));
    }

    proptest! {
        #[test]
        fn damaged_text_never_panics(at in 0_usize..400, byte: u8) {
            let mut text = entry("10000000-10200000", "", 2048, 2048, 0).into_bytes();
            let at = at % text.len();
            text[at] = byte;
            let _ = sum(Lines::<_, 64>::new(&text[..]), AddressRange::new(0x1000_0000, 0x10_0000), |part| Ok(part.len as u64));
        }
    }
}

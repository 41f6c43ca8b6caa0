//! What the kernel's files say of one process.
//!
//! | file | what | cost |
//! |---|---|---|
//! | `status` | RSS and its peak, hugetlb, page tables | 8 µs |
//! | `stat` | page faults, with those of children that ended and were waited for | 5 µs |
//! | `smaps_rollup` | PSS, huge | a walk of the page tables, under the lock of the mappings |

use std::fs;
use std::io::Read;
use std::path::Path;

/// Bytes that such a file has at most, as a rule: `status` of a process of many groups has more than its usual 1,500.
const ROOM: usize = 4096;

/// What costs next to nothing. Bytes and counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cheap {
    /// See [`started`].
    pub(super) started: u64,
    pub(super) rss: u64,
    pub(super) peak: u64,
    pub(super) hugetlb: u64,
    pub(super) page_tables: u64,
    pub(super) minor_faults: u64,
    pub(super) major_faults: u64,
}

/// What a file of the kernel says. Asked for with room enough, it says all at once; `fs::read` begins with 32
/// bytes and needs seven calls more.
pub(super) fn text(path: impl AsRef<Path>) -> Option<String> {
    let mut file = fs::File::open(path).ok()?;
    let mut buffer = vec![0; ROOM];
    let mut len = file.read(&mut buffer).ok()?;
    while len == buffer.len() {
        buffer.resize(2 * len, 0);
        len += file.read(&mut buffer[len..]).ok()?;
    }
    buffer.truncate(len);
    // The name of a process may be any bytes.
    Some(String::from_utf8_lossy(&buffer).into_owned())
}

/// What costs a walk of the page tables. Bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Details {
    pub(super) resident: u64,
    pub(super) pss: u64,
    pub(super) huge: u64,
}

/// `None` for a process without memory: one that has ended.
pub(super) fn cheap(id: u32) -> Option<Cheap> {
    cheap_in(&text(format!("/proc/{id}/status"))?, &text(format!("/proc/{id}/stat"))?)
}

fn cheap_in(status: &str, stat: &str) -> Option<Cheap> {
    let fields = stat_fields(stat)?;
    let number = |place: usize| fields.get(place).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    Some(Cheap {
        started: number(19),
        rss: bytes_of(status, "VmRSS:")?,
        peak: bytes_of(status, "VmHWM:").unwrap_or(0),
        hugetlb: bytes_of(status, "HugetlbPages:").unwrap_or(0),
        page_tables: bytes_of(status, "VmPTE:").unwrap_or(0),
        // minflt, cminflt, majflt, cmajflt: fields 10 to 13 of proc(5), 8 after the name.
        minor_faults: number(7) + number(8),
        major_faults: number(9) + number(10),
    })
}

/// `None` when it may not be read, or is gone.
pub(super) fn details(id: u32) -> Option<Details> {
    details_in(&text(format!("/proc/{id}/smaps_rollup"))?)
}

fn details_in(text: &str) -> Option<Details> {
    let of = |name: &str| bytes_of(text, name).unwrap_or(0);
    Some(Details {
        resident: bytes_of(text, "Rss:")?,
        pss: of("Pss:"),
        huge: of("AnonHugePages:") + of("ShmemPmdMapped:") + of("FilePmdMapped:"),
    })
}

/// When a process was started, in ticks since the boot: with its number, that is its identity. `None` when it is gone.
pub(super) fn started(id: u32) -> Option<u64> {
    stat_fields(&text(format!("/proc/{id}/stat"))?)?.get(19)?.parse().ok()
}

/// Whether the process that was `started` then still runs: one that has ended and was not waited for does not.
pub(super) fn runs(id: u32, started: u64) -> bool {
    let Some(stat) = text(format!("/proc/{id}/stat")) else { return false };
    let Some(fields) = stat_fields(&stat) else { return false };
    fields.get(19).and_then(|field| field.parse().ok()) == Some(started) && !matches!(fields[0], "Z" | "X")
}

/// The fields after the name, which may contain anything: the state is the first.
fn stat_fields(stat: &str) -> Option<Vec<&str>> {
    Some(stat[stat.rfind(')')? + 1..].split_whitespace().collect())
}

/// The value of `VmRSS:     12 kB`, in bytes.
fn bytes_of(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "7 (a) b) c) S 1 7 7 0 -1 4194560 100 20 3 4 5 6 7 8 20 0 1 0 12345 1000 50";

    #[test]
    fn files_are_read_whatever_the_name_of_the_process_is() {
        let status = "Name:\ta) b\nVmHWM:\t 20 kB\nVmRSS:\t 12 kB\nVmPTE:\t 4 kB\nHugetlbPages:\t 2048 kB\n";
        let expected = Cheap {
            started: 12345,
            rss: 12 << 10,
            peak: 20 << 10,
            hugetlb: 2 << 20,
            page_tables: 4 << 10,
            minor_faults: 120,
            major_faults: 7,
        };
        assert_eq!(cheap_in(status, STAT), Some(expected));
        assert_eq!(stat_fields(STAT).unwrap()[19], "12345");
        assert_eq!(cheap_in("Name:\tx\nState:\tZ (zombie)\n", STAT), None);
    }

    #[test]
    fn huge_is_of_every_kind() {
        let text = "55 [rollup]\nRss: 10 kB\nPss: 5 kB\nPss_Dirty: 1 kB\nAnonHugePages: 4 kB\nShmemPmdMapped: 2 kB\nFilePmdMapped: 1 kB\n";
        assert_eq!(details_in(text), Some(Details { resident: 10 << 10, pss: 5 << 10, huge: 7 << 10 }));
        assert_eq!(details_in(""), None);
    }

    #[test]
    fn a_file_is_read_whole_however_long_it_is() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for len in [0, 5, ROOM, 3 * ROOM + 1] {
            fs::write(file.path(), "x".repeat(len)).unwrap();
            assert_eq!(text(file.path()).map(|text| text.len()), Some(len));
        }
        assert_eq!(text("/no/such/file"), None);
    }

    #[test]
    fn a_process_has_a_beginning() {
        assert!(started(std::process::id()).is_some_and(|ticks| ticks > 0));
        assert_eq!(started(u32::MAX), None);
    }
}

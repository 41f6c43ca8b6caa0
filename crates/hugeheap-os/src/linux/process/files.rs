//! What /proc/PID/status and /proc/PID/maps say. Neither costs a walk of page tables.

use super::super::read::{self, File, PathBuffer, Source};
use super::{gone, open};
use crate::process::{MappingKind, ProcessMapping, ProcessStatus};
use crate::{AddressRange, Result, ThpDisabled};

const STATUS: &str = "read(/proc/PID/status)";
const MAPS: &str = "read(/proc/PID/maps)";

/// All of a file.
fn whole(mut file: File) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    // A page at a time is what the kernel hands out of these files.
    let mut buffer = [0; 4096];
    loop {
        match file.read(&mut buffer).map_err(gone)? {
            0 => return Ok(text),
            count => text.extend_from_slice(&buffer[..count]),
        }
    }
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty())
}

pub(super) fn status(path: &PathBuffer) -> Result<ProcessStatus> {
    Ok(status_in(&whole(open(path, STATUS)?)?))
}

fn status_in(text: &[u8]) -> ProcessStatus {
    let mut status = ProcessStatus {
        name: String::new(),
        resident: 0,
        anonymous: 0,
        hugetlb: 0,
        swapped: 0,
        page_tables: 0,
        thp_disabled: None,
        has_memory: false,
        ended: false,
        main_thread_ended: false,
        user: 0,
        parent: 0,
    };
    let mut threads = 0;
    for line in lines(text) {
        let bytes = |key: &[u8]| read::bytes_of(line, key);
        if let Some(name) = line.strip_prefix(b"Name:") {
            status.name = String::from_utf8_lossy(&unescaped(name.trim_ascii())).into_owned();
        } else if let Some(state) = line.strip_prefix(b"State:") {
            status.ended = matches!(state.trim_ascii().first(), Some(b'Z' | b'X'));
        } else if let Some(users) = line.strip_prefix(b"Uid:") {
            // Real, effective, saved, file system.
            let effective = users.trim_ascii().split(u8::is_ascii_whitespace).nth(1);
            status.user =
                effective.and_then(read::decimal).and_then(|user| u32::try_from(user).ok()).unwrap_or(0);
        } else if let Some(parent) = read::number_of(line, b"PPid") {
            status.parent = u32::try_from(parent).unwrap_or(0);
        } else if let Some(count) = read::number_of(line, b"Threads") {
            threads = count;
        } else if let Some(count) = bytes(b"VmRSS") {
            status.resident = count;
            status.has_memory = true;
        } else if let Some(count) = bytes(b"RssAnon") {
            status.anonymous = count;
        } else if let Some(count) = bytes(b"HugetlbPages") {
            status.hugetlb = count;
        } else if let Some(count) = bytes(b"VmSwap") {
            status.swapped = count;
        } else if let Some(count) = bytes(b"VmPTE") {
            status.page_tables = count;
        } else if let Some(enabled) = read::number_of(line, b"THP_enabled") {
            status.thp_disabled = Some(if enabled == 0 { ThpDisabled::Completely } else { ThpDisabled::No });
        }
    }
    // The state is the main thread's, which counts as one until all have ended.
    if status.ended && threads > 1 {
        (status.ended, status.main_thread_ended) = (false, true);
    }
    status
}

/// A name as it was set: the kernel writes `\n` for a line's end in it and `\\` for a backslash.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut name = Vec::with_capacity(text.len());
    let mut rest = text;
    loop {
        rest = match rest {
            [b'\\', b'n', rest @ ..] => {
                name.push(b'\n');
                rest
            }
            [b'\\', b'\\', rest @ ..] => {
                name.push(b'\\');
                rest
            }
            [byte, rest @ ..] => {
                name.push(*byte);
                rest
            }
            [] => return name,
        };
    }
}

/// The process a thread belongs to.
pub(super) fn group(path: &PathBuffer) -> Option<u32> {
    let text = whole(open(path, STATUS).ok()?).ok()?;
    lines(&text).find_map(|line| read::number_of(line, b"Tgid")).and_then(|id| u32::try_from(id).ok())
}

pub(super) fn mappings(path: &PathBuffer) -> Result<Vec<ProcessMapping>> {
    let text = whole(open(path, MAPS)?)?;
    lines(&text).map(|line| mapping(line).ok_or(read::malformed(MAPS))).collect()
}

/// `7f12c0000000-7f12c0200000 rw-p 00000000 fe:00 1234   /path with spaces`
fn mapping(line: &[u8]) -> Option<ProcessMapping> {
    let range: AddressRange = super::super::maps::header(line)?;
    let mut rest = line;
    let mut field = || {
        let start = rest.iter().position(|byte| !byte.is_ascii_whitespace())?;
        let length = rest[start..].iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len() - start);
        let word = &rest[start..start + length];
        rest = &rest[start + length..];
        Some(word)
    };
    let (_, access, _, _, inode) = (field()?, field()?, field()?, field()?, field()?);
    let &[read, write, _, share] = access else { return None };
    let name = rest.trim_ascii();
    Some(ProcessMapping {
        range,
        kind: kind(name, inode == b"0", share == b's'),
        readable: read == b'r',
        writable: write == b'w',
        name: String::from_utf8_lossy(name).into_owned(),
    })
}

fn kind(name: &[u8], no_inode: bool, shared: bool) -> MappingKind {
    let begins = |prefix: &[u8]| name.starts_with(prefix);
    if name == b"/anon_hugepage (deleted)" || begins(b"/anon_hugepage") {
        MappingKind::Hugetlb
    } else if begins(b"/dev/zero") || begins(b"/memfd:") || begins(b"/SYSV") || begins(b"[anon_shmem") {
        MappingKind::Shared
    } else if name == b"[heap]" || begins(b"[anon:") || (name.is_empty() && no_inode && !shared) {
        MappingKind::Anonymous
    } else if begins(b"[stack") {
        MappingKind::Stack
    } else if begins(b"[") {
        MappingKind::Special
    } else {
        MappingKind::File
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_read_and_what_is_missing_is_said() {
        let text =
            b"Name:\tpython3\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t7\nPPid:\t3\nUid:\t0\t1000\t0\t0\n\
            VmRSS:\t  2048 kB\nRssAnon:\t  1024 kB\nVmPTE:\t  64 kB\nVmSwap:\t 4 kB\nHugetlbPages:\t 8 kB\n\
            THP_enabled:\t0\n";
        let status = status_in(text);
        assert_eq!((status.name.as_str(), status.user, status.ended), ("python3", 1000, false));
        assert_eq!(status.parent, 3);
        assert_eq!((status.resident, status.anonymous), (2 << 20, 1 << 20));
        assert_eq!((status.page_tables, status.swapped, status.hugetlb), (65536, 4096, 8192));
        assert_eq!(status.thp_disabled, Some(ThpDisabled::Completely));
        assert!(status.has_memory);
        let zombie = status_in(b"Name:\tsh\nState:\tZ (zombie)\n");
        assert!(zombie.ended && !zombie.has_memory);
        assert_eq!(zombie.thp_disabled, None);
    }

    #[test]
    fn a_process_without_its_main_thread_lives() {
        let of =
            |threads| status_in(format!("Name:\ta\nState:\tZ (zombie)\nThreads:\t{threads}\n").as_bytes());
        assert!(of(2).main_thread_ended && !of(2).ended);
        assert!(of(1).ended && !of(1).main_thread_ended);
    }

    #[test]
    fn a_name_is_as_it_was_set_and_not_as_the_kernel_escapes_it() {
        let name = |text: &[u8]| status_in(&[b"Name:\t", text, b"\nVmRSS:\t 4 kB\n"].concat()).name;
        assert_eq!(name(br"a\\b"), r"a\b");
        assert_eq!(name(br"a\nb"), "a\nb");
        assert_eq!(name(br"a\\nb"), r"a\nb");
        assert_eq!(name(br"a\"), r"a\", "cut off, or no escape");
    }

    #[test]
    fn mappings_have_their_kind() {
        let kind_of = |line: &str| mapping(line.as_bytes()).unwrap().kind;
        let line = |access: &str, inode: &str, name: &str| {
            format!("7f0000000000-7f0000200000 {access} 00000000 fe:00 {inode}            {name}")
        };
        assert_eq!(kind_of(&line("rw-p", "0", "")), MappingKind::Anonymous);
        assert_eq!(kind_of(&line("rw-p", "0", "[heap]")), MappingKind::Anonymous);
        assert_eq!(kind_of(&line("rw-p", "0", "[anon:hugeheap]")), MappingKind::Anonymous);
        assert_eq!(kind_of(&line("rw-p", "0", "[stack]")), MappingKind::Stack);
        assert_eq!(kind_of(&line("r-xp", "0", "[vdso]")), MappingKind::Special);
        assert_eq!(kind_of(&line("rw-p", "77", "/anon_hugepage (deleted)")), MappingKind::Hugetlb);
        assert_eq!(kind_of(&line("rw-s", "5", "/dev/zero (deleted)")), MappingKind::Shared);
        assert_eq!(kind_of(&line("rw-s", "5", "/memfd:ring (deleted)")), MappingKind::Shared);
        assert_eq!(kind_of(&line("rw-p", "5", "/usr/lib/a b.so")), MappingKind::File);
        let read = mapping(line("r--p", "5", "/usr/lib/a b.so").as_bytes()).unwrap();
        assert_eq!((read.name.as_str(), read.writable, read.readable), ("/usr/lib/a b.so", false, true));
        assert_eq!(read.range, AddressRange::new(0x7f0000000000, 0x20_0000));
    }

    #[test]
    fn garbage_is_no_mapping() {
        for line in
            ["", "garbage", "1000-2000", "1000-2000 rw", "1000-2000 rw-p 0 0", "2000-1000 rw-p 0 0:0 0"]
        {
            assert_eq!(mapping(line.as_bytes()), None, "{line}");
        }
    }
}

//! Which mapping an address lies in, whether it is a hugetlb mapping, and which files this process shares.
//!
//! An address is asked for in one of two ways, both on /proc/self/maps, neither with the heap:
//!
//! * `ioctl(PROCMAP_QUERY)`, Linux 6.11: one lookup by address, answers with the page size of the mapping.
//! * the text itself, up to the line wanted. The kernel writes a private anonymous hugetlb mapping as a deleted
//!   file called `/anon_hugepage`; reading is about a microsecond per mapping, without a walk of the page tables.
//!
//! A file is asked for by the end of its path, in the text. Not by device and inode: on overlayfs `maps` and
//! `stat` disagree about them.

use super::Linux;
use super::lines::Lines;
use super::read::{self, File, Source};
use super::vm;
use crate::{AddressRange, Result};
use core::mem::size_of;

const NAME: &str = "read(/proc/self/maps)";

/// One mapping of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    /// Where it lies.
    pub(super) range: AddressRange,
    /// Whether its pages are a hugetlb pool's.
    pub(super) hugetlb: bool,
    /// As the kernel writes it: `rw-p`.
    pub(super) access: [u8; 4],
}

/// `struct procmap_query` of the kernel.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    mapping_flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_size: u32,
    build_id_size: u32,
    name_address: u64,
    build_id_address: u64,
}

const _: () = assert!(size_of::<Query>() == 104);

/// `_IOWR('f', 17, struct procmap_query)`
const PROCMAP_QUERY: u64 = (3 << 30) | ((size_of::<Query>() as u64) << 16) | ((b'f' as u64) << 8) | 17;

/// The mapping that `address` lies in; `None` where nothing is mapped.
pub(super) fn mapping_at(address: usize) -> Result<Option<Mapping>> {
    let file = File::open_c(c"/proc/thread-self/maps", NAME)?;
    match query(&file, address) {
        // Nothing mapped there.
        Err(libc::ENOENT) => Ok(None),
        Ok(mapping) => Ok(Some(mapping)),
        // ENOTTY on a kernel without the call, anything where it is filtered.
        Err(_) => search(Lines::<_, 1024>::new(file), address),
    }
}

impl Linux {
    /// Whether this process has a file mapped, shared and writable, whose path ends in `name`; a file that was
    /// deleted meanwhile is none. System calls only: fit for a child that was just forked. `name` is without
    /// line breaks, which the kernel writes in another way. A path of more than about 4000 bytes is not
    /// recognised.
    ///
    /// # Errors
    /// Where /proc cannot be read.
    pub fn shares_file(name: &[u8]) -> Result<bool> {
        shares(Lines::<_, 4096>::new(File::open_c(c"/proc/thread-self/maps", NAME)?), name)
    }
}

fn shares<S: Source, const N: usize>(mut lines: Lines<S, N>, name: &[u8]) -> Result<bool> {
    while let Some(line) = lines.next()? {
        let access = line.bytes.split(|&byte| byte == b' ').nth(1);
        if access == Some(b"rw-s") && !line.cut && line.bytes.ends_with(name) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn query(file: &File, address: usize) -> core::result::Result<Mapping, i32> {
    let mut query = Query { size: size_of::<Query>() as u64, address: address as u64, ..Query::default() };
    // SAFETY: the request writes at most `size` bytes to the structure, whose size it encodes; no name is asked for,
    // so no other memory is written.
    let status = unsafe { libc::ioctl(file.descriptor(), PROCMAP_QUERY as _, &raw mut query) };
    if status != 0 {
        return Err(crate::Error::last(NAME).code);
    }
    let range = AddressRange::new(query.start as usize, (query.end - query.start) as usize);
    // Readable, writable, executable, shared: the letters of the text in their order.
    let letter = |bit: u64, set, unset| if query.mapping_flags & bit != 0 { set } else { unset };
    let access = [letter(1, b'r', b'-'), letter(2, b'w', b'-'), letter(4, b'x', b'-'), letter(8, b's', b'p')];
    Ok(Mapping { range, hugetlb: query.page_size != vm::os_page() as u64, access })
}

/// Finds the mapping in the text of a `maps` file. Cut lines keep their addresses; their names are too long to
/// be a hugetlb mapping's.
fn search<S: Source, const N: usize>(mut lines: Lines<S, N>, address: usize) -> Result<Option<Mapping>> {
    while let Some(line) = lines.next()? {
        let range = header(line.bytes).ok_or(read::malformed(NAME))?;
        if range.contains(address) {
            let hugetlb = line.bytes.ends_with(b" /anon_hugepage (deleted)");
            let access = line.bytes.split(|&byte| byte == b' ').nth(1);
            let access = access.and_then(|word| word.try_into().ok()).ok_or(read::malformed(NAME))?;
            return Ok(Some(Mapping { range, hugetlb, access }));
        }
        if range.start > address {
            break;
        }
    }
    Ok(None)
}

/// The range of a line that begins a mapping in `maps` and `smaps`: `7f12c0000000-7f12c0200000 rw-p …`.
pub(super) fn header(line: &[u8]) -> Option<AddressRange> {
    // Sixteen digits are the longest address; looking no further keeps other lines cheap.
    let dash = line.iter().take(17).position(|&byte| byte == b'-')?;
    let rest = &line[dash + 1..];
    let space = rest.iter().take(17).position(|&byte| byte == b' ')?;
    let start = usize::try_from(read::digits(&line[..dash], 16)?).ok()?;
    let end = usize::try_from(read::digits(&rest[..space], 16)?).ok()?;
    Some(AddressRange::new(start, end.checked_sub(start)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &[u8] = b"\
55d0c8a00000-55d0c8a02000 r--p 00000000 fe:00 1234 /usr/bin/a-b c
7f0000000000-7f0000200000 rw-p 00000000 00:0f 5678 /anon_hugepage (deleted)
7f0000200000-7f0000400000 rw-p 00000000 00:00 0
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]
";

    fn find(address: usize) -> Option<Mapping> {
        search(Lines::<_, 128>::new(TEXT), address).unwrap()
    }

    #[test]
    fn text_is_searched_by_address() {
        assert_eq!(find(0x1000), None);
        assert_eq!(find(0x55d0c8a01fff).unwrap().range, AddressRange::new(0x55d0c8a00000, 0x2000));
        assert_eq!(find(0x55d0c8a02000), None);
        assert!(find(0x7f0000000000).unwrap().hugetlb);
        assert!(!find(0x7f0000200000).unwrap().hugetlb);
        assert_eq!(&find(0x55d0c8a00000).unwrap().access, b"r--p");
        assert_eq!(find(0xffffffffff600000).unwrap().range.len, 0x1000);
    }

    #[test]
    fn garbage_is_an_error() {
        for text in [&b"garbage"[..], b"1-", b"-1 ", b"2000-1000 rw-p", b"12345678901234567-1 "] {
            assert_eq!(search(Lines::<_, 64>::new(text), 0).unwrap_err().code, libc::EBADMSG, "{text:?}");
        }
    }

    #[test]
    fn shared_files_are_found_by_the_end_of_their_path() {
        let shares = |access: &str, path: &str, name: &[u8]| {
            let text = format!(
                "7f00-7f01 r-xp 00000000 00:01 8 /bin/x\n7f02-7f03 {access} 00000000 00:01 7  {path}\n"
            );
            shares(Lines::<_, 128>::new(text.as_bytes()), name).unwrap()
        };
        assert!(shares("rw-s", "/a b/7.record", b"/7.record"));
        assert!(!shares("rw-s", "/a b/17.record", b"/7.record"));
        assert!(!shares("r--s", "/a b/7.record", b"/7.record"), "a reader's");
        assert!(!shares("rw-p", "/a b/7.record", b"/7.record"));
        assert!(!shares("rw-s", "/a b/7.record (deleted)", b"/7.record"));
        assert!(!shares("rw-s", &format!("/{:0200}/7.record", 0), b"/7.record"), "too long to be told");
    }

    proptest! {
        #[test]
        fn headers_never_panic(line: Vec<u8>) {
            let _ = header(&line);
        }

        #[test]
        fn headers_are_read_back(start: u32, len: u32) {
            let range = AddressRange::new(start as usize, len as usize);
            let line = format!("{:08x}-{:08x} rw-p 00000000 00:00 0", range.start, range.end());
            prop_assert_eq!(header(line.as_bytes()), Some(range));
        }
    }

    #[test]
    fn both_ways_answer_alike_for_the_real_process() {
        // Two accesses, so that no neighbour merges with it between the two looks.
        let range = vm::map_anywhere(2 * vm::os_page()).unwrap();
        let file = File::open_c(c"/proc/thread-self/maps", NAME).unwrap();
        let by_text = search(Lines::<_, 1024>::new(file), range.start).unwrap().unwrap();
        assert!(by_text.range.encloses(range));
        let asked = mapping_at(range.start).unwrap().unwrap();
        assert!(asked.range.encloses(range));
        assert!(!asked.hugetlb && !by_text.hugetlb);
        assert_eq!((&asked.access, &by_text.access), (b"rw-p", b"rw-p"));
        assert_eq!(mapping_at(0).unwrap(), None);
        // SAFETY: the range was mapped above and is used nowhere else.
        unsafe { vm::unmap(range).unwrap() };
    }
}

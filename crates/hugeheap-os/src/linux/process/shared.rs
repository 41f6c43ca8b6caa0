//! Memory of another process that it shares under a name, read without stopping it.
//!
//! ```text
//!   /proc/PID/maps  ── each mapping of that name ─▶ /proc/PID/mem          the right to read its memory
//!                                              └──▶ /proc/PID/map_files    where that is closed (Yama): CAP_CHECKPOINT_RESTORE
//! ```
//!
//! Either file stands for the memory and not for the number of the process: when the process ends, reading fails.

use super::super::lines::Lines;
use super::super::read::{self, File};
use super::super::{Linux, host, maps};
use super::{gone, open, path_of};
use crate::{AddressRange, Error, ErrorKind, Result};
use core::time::Duration;

const MAPS: &str = "read(/proc/PID/maps)";
const MEMORY: &str = "read(/proc/PID/mem)";
const FILE: &str = "read(/proc/PID/map_files)";
const STATUS: &str = "read(/proc/PID/status)";

/// A mapping of another process that can be read.
pub struct SharedMemory {
    file: File,
    /// What the mapping's first byte is in the file.
    base: u64,
    bytes: usize,
    /// The number of the process as itself sees it.
    inner_id: u32,
}

impl SharedMemory {
    /// Finds the shared mappings of process `id` whose name is `name`, in the order of their addresses, and
    /// opens them: one for each library of the process that shows something under that name.
    ///
    /// # Errors
    /// `ESRCH`: there is no such process. `EACCES`, `EPERM`: it may not be looked at. `ETIME`: not all seen
    /// before `deadline` (on [`Facts::now`](crate::Facts::now)).
    pub fn find(linux: Linux, id: u32, name: &str, deadline: Duration) -> Result<Vec<Self>> {
        let path = path_of(&linux.root, id, b"/maps")?;
        // A page is what the kernel writes at a time; longer names are cut, no other line is that long.
        let mut lines = Lines::<_, 4096>::new(open(&path, MAPS)?);
        let mut count = 0_u32;
        let mut ranges = Vec::new();
        loop {
            // A look at the clock for each page that the kernel writes, about 40 lines.
            if count % 64 == 0 && host::now() >= deadline {
                return Err(Error::new(MAPS, libc::ETIME));
            }
            count += 1;
            let Some(line) = lines.next().map_err(gone)? else { break };
            if line.bytes.ends_with(b"(deleted)") && is_named(line.bytes, name.as_bytes()) {
                ranges.push(maps::header(line.bytes).ok_or(read::malformed(MAPS))?);
            }
        }
        if ranges.is_empty() {
            return Ok(Vec::new());
        }
        let inner_id = inner_id(linux, id)?;
        ranges.into_iter().map(|range| Self::open(linux, id, range, inner_id)).collect()
    }

    fn open(linux: Linux, id: u32, range: AddressRange, inner_id: u32) -> Result<Self> {
        let (file, base) = match File::open(&path_of(&linux.root, id, b"/mem")?, MEMORY) {
            Ok(file) => (file, range.start as u64),
            Err(error) if error.kind() == ErrorKind::Permission => {
                (map_file(linux, id, range).ok_or(error)?, 0)
            }
            Err(error) => return Err(gone(error)),
        };
        Ok(Self { file, base, bytes: range.len, inner_id })
    }

    /// The number of the process in its own namespace: what `getpid` answers to it.
    pub fn inner_id(&self) -> u32 {
        self.inner_id
    }

    /// Copies what is at `offset` now.
    ///
    /// # Errors
    /// `ESRCH` when the process has ended; `EINVAL` beyond the mapping.
    pub fn read(&mut self, offset: usize, buffer: &mut [u8]) -> Result<()> {
        if offset.checked_add(buffer.len()).is_none_or(|end| end > self.bytes) {
            return Err(Error::new(MEMORY, libc::EINVAL));
        }
        let mut filled = 0;
        while filled < buffer.len() {
            match self.file.read_at(&mut buffer[filled..], self.base + (offset + filled) as u64) {
                // The memory is gone: of a process that ended, /proc/PID/mem is empty.
                Ok(0) => return Err(Error::new(MEMORY, libc::ESRCH)),
                Ok(count) => filled += count,
                // It is unmapped: the process became another program.
                Err(error) if error.code == libc::EIO => return Err(Error::new(MEMORY, libc::ESRCH)),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl core::fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SharedMemory").field("inner_id", &self.inner_id).field("bytes", &self.bytes).finish()
    }
}

/// Whether a line of `maps` is of a shared mapping whose name is `name`: `7f00-7f01 rw-s 00000000 00:01 7  /memfd:name (deleted)`.
fn is_named(line: &[u8], name: &[u8]) -> bool {
    let access = line.split(|&byte| byte == b' ').nth(1);
    let found = line.iter().position(|&byte| byte == b'/').map(|at| &line[at..]);
    access == Some(b"rw-s")
        && found.and_then(|found| found.strip_prefix(name)).is_some_and(|rest| rest == b" (deleted)")
}

/// The mapping as a file of its own; `None` where that is not allowed either.
fn map_file(linux: Linux, id: u32, range: AddressRange) -> Option<File> {
    let mut path = path_of(&linux.root, id, b"/map_files/").ok()?;
    path.push(format!("{:x}-{:x}", range.start, range.end()).as_bytes()).ok()?;
    File::open(&path, FILE).ok()
}

fn inner_id(linux: Linux, id: u32) -> Result<u32> {
    let mut lines = Lines::<_, 1024>::new(open(&path_of(&linux.root, id, b"/status")?, STATUS)?);
    while let Some(line) = lines.next().map_err(gone)? {
        // One number for each namespace, from the outermost to its own.
        if let Some(ids) = line.bytes.strip_prefix(b"NSpid:") {
            let own = ids.split(u8::is_ascii_whitespace).rfind(|word| !word.is_empty());
            let own = own.and_then(read::decimal).and_then(|id| u32::try_from(id).ok());
            return own.ok_or(read::malformed(STATUS));
        }
    }
    // A kernel without namespaces of processes.
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOREVER: Duration = Duration::from_secs(1 << 40);

    /// A page of shared memory of this process under a name, at an address that the kernel gives to nobody who
    /// doesn't ask for it: it goes downwards from the stack. Where it chose the address, another test's thread
    /// had mapped something there between `munmap` and the read that was to find nothing.
    fn named_page(name: &core::ffi::CStr, number: usize) -> *mut u8 {
        let address = core::ptr::without_provenance_mut((16 << 40) + number * 4096);
        // SAFETY: plain system calls; nothing is mapped over.
        unsafe {
            let file = libc::memfd_create(name.as_ptr(), 0);
            assert_eq!(libc::ftruncate(file, 4096), 0);
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE;
            let memory = libc::mmap(address, 4096, access, flags, file, 0);
            assert_eq!(memory, address, "{}", std::io::Error::last_os_error());
            libc::close(file);
            memory.cast()
        }
    }

    #[test]
    fn named_pages_are_found_and_read() {
        let page = named_page(c"hugeheap-os-test", 0);
        // SAFETY: the page is mapped and writable.
        unsafe { page.add(9).write(77) };
        let id = std::process::id();
        let find = |name, deadline| SharedMemory::find(Linux::new(), id, name, deadline);
        let mut memory = find("/memfd:hugeheap-os-test", FOREVER).unwrap().pop().expect("it is mapped");
        assert_eq!(memory.inner_id(), id);
        let mut byte = [0];
        memory.read(9, &mut byte).unwrap();
        assert_eq!(byte, [77]);
        assert_eq!(memory.read(4096, &mut byte).unwrap_err().code, libc::EINVAL);
        let second = named_page(c"hugeheap-os-test", 2);
        assert_eq!(find("/memfd:hugeheap-os-test", FOREVER).unwrap().len(), 2, "another file of that name");
        // SAFETY: the pages are mapped; nobody uses them afterwards.
        unsafe {
            libc::munmap(second.cast(), 4096);
            libc::munmap(page.cast(), 4096);
        }
        assert_eq!(memory.read(9, &mut byte).unwrap_err().code, libc::ESRCH);
        assert!(find("/memfd:hugeheap-os-nobody", FOREVER).unwrap().is_empty());
        assert_eq!(find("/memfd:hugeheap-os-test", Duration::ZERO).unwrap_err().code, libc::ETIME);
    }

    #[test]
    fn who_is_gone_is_said() {
        let error = SharedMemory::find(Linux::new(), u32::MAX - 7, "/memfd:x", FOREVER).unwrap_err();
        assert_eq!(error.code, libc::ESRCH);
    }

    #[test]
    fn names_are_whole() {
        let line =
            |access: &str, name: &str| format!("7f00-7f01 {access} 00000000 00:01 7    {name} (deleted)");
        let named = |line: String| is_named(line.as_bytes(), b"/memfd:numbers");
        assert!(named(line("rw-s", "/memfd:numbers")));
        assert!(!named(line("rw-p", "/memfd:numbers")));
        assert!(!named(line("rw-s", "/memfd:numbers-2")));
        assert!(!named(line("rw-s", "/tmp/memfd:numbers")));
        assert!(!named("garbage".to_owned()));
    }
}

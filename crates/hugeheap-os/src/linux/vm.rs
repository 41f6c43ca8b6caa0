//! Thin wrappers around the memory system calls: one function per call, no policy.
//!
//! Each turns the C convention (−1 and `errno`) into a [`Result`] whose error names the call and its options, and takes
//! an [`AddressRange`] where the call takes a pointer and a length. None allocates, none keeps state, so all of
//! them may be used in a signal handler and between `fork` and `exec`.
//!
//! Constants the C library's headers may be too old for (musl, old glibc) are written out here; the numbers are
//! kernel interface and the same on every architecture this crate supports.

use crate::{AddressRange, Error, Result};
use core::ffi::{CStr, c_int, c_void};
use core::ptr;

/// Deactivates pages; splits huge pages of which a part is mapped. Linux 5.4.
pub(super) const MADV_COLD: c_int = 20;
/// Prefaults for writing with an error number instead of a signal. Linux 5.14.
pub(super) const MADV_POPULATE_WRITE: c_int = 23;
/// Puts a range on huge pages now. Linux 6.1.
pub(super) const MADV_COLLAPSE: c_int = 25;
/// Equal pages may become one.
pub(super) const MADV_MERGEABLE: c_int = 12;
/// No more.
pub(super) const MADV_UNMERGEABLE: c_int = 13;
/// `mremap` leaves an empty mapping where the pages were. Linux 5.7.
const MREMAP_DONTUNMAP: c_int = 4;
/// Where the logarithm of the page size sits in the flags of `mmap` with `MAP_HUGETLB`.
const MAP_HUGE_SHIFT: u32 = 26;
/// A fixed address that must be free. Linux 4.17; older kernels take the address as a hint.
const MAP_FIXED_NOREPLACE: c_int = 0x10_0000;

/// Commands of `membarrier`: on all processors that run a thread of this process, and registering for it. Linux 4.14.
const MEMBARRIER_PRIVATE_EXPEDITED: c_int = 1 << 3;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: c_int = 1 << 4;

const PRIVATE: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
const RESERVED: c_int = PRIVATE | libc::MAP_NORESERVE;

fn pointer(address: usize) -> *mut c_void {
    address as *mut c_void
}

fn done(status: c_int, call: &'static str) -> Result<()> {
    if status == 0 { Ok(()) } else { Err(Error::last(call)) }
}

/// The OS page in bytes.
pub(super) fn os_page() -> usize {
    // SAFETY: `sysconf` has no preconditions.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    // The call cannot fail for this name; 4096 is the least page any Linux has.
    usize::try_from(size).unwrap_or(4096)
}

/// The OS pages that `range` touches.
pub(super) fn whole_pages(range: AddressRange) -> AddressRange {
    let page = os_page();
    let start = range.start & !(page - 1);
    // Saturates only for a range no mapping can have.
    let end = range.end().saturating_add(page - 1) & !(page - 1);
    AddressRange::new(start, end.saturating_sub(start))
}

/// Whether all pages of `range`, a multiple of the OS page, are in memory.
pub(super) fn is_resident(range: AddressRange) -> Result<bool> {
    // 1 MiB of OS pages of 4 KiB at a time.
    let mut answers = [0_u8; 256];
    let batch = answers.len() * os_page();
    for start in (range.start..range.end()).step_by(batch) {
        let len = batch.min(range.end() - start);
        // SAFETY: nothing is changed but the answers, a byte for each page asked about.
        done(unsafe { libc::mincore(pointer(start), len, answers.as_mut_ptr().cast()) }, "mincore")?;
        if answers[..len / os_page()].iter().any(|answer| answer & 1 == 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A memory barrier on every thread of the process. Leaves `errno` as it was.
///
/// The process is registered each time, for which the kernel looks at a bit once it is: a call without is
/// refused, and that it was refused is in `errno`, which a program that gives memory back had set itself.
pub(super) fn barrier() -> Result<()> {
    // SAFETY: the call has no other effect than the barrier; `errno` is this thread's.
    unsafe {
        let before = *libc::__errno_location();
        let call = |command: c_int| libc::syscall(libc::SYS_membarrier, command, 0, 0) as c_int;
        let result = done(call(MEMBARRIER_REGISTER_PRIVATE_EXPEDITED), "membarrier")
            .and_then(|()| done(call(MEMBARRIER_PRIVATE_EXPEDITED), "membarrier"));
        *libc::__errno_location() = before;
        result
    }
}

/// `mmap` wherever the kernel likes.
fn mmap_anywhere(len: usize, protection: c_int, flags: c_int, call: &'static str) -> Result<usize> {
    // SAFETY: without a fixed address `mmap` only adds a mapping where there is none.
    let address = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, -1, 0) };
    if address == libc::MAP_FAILED { Err(Error::last(call)) } else { Ok(address as usize) }
}

/// New address space without memory or access.
pub(super) fn reserve_anywhere(len: usize) -> Result<AddressRange> {
    let start = mmap_anywhere(len, libc::PROT_NONE, RESERVED, "mmap(PROT_NONE)")?;
    Ok(AddressRange::new(start, len))
}

/// New address space exactly at `range`, or `EEXIST` when something is there already.
pub(super) fn reserve_at(range: AddressRange) -> Result<()> {
    const CALL: &str = "mmap(MAP_FIXED_NOREPLACE)";
    // SAFETY: this flag never replaces a mapping; on kernels that do not know it the address is a hint, which
    // never replaces one either.
    let address = unsafe {
        let flags = RESERVED | MAP_FIXED_NOREPLACE;
        libc::mmap(pointer(range.start), range.len, libc::PROT_NONE, flags, -1, 0)
    };
    if address == libc::MAP_FAILED {
        return Err(Error::last(CALL));
    }
    if address as usize != range.start {
        // SAFETY: the mapping is the one just made, and nobody else knows its address.
        unsafe { unmap(AddressRange::new(address as usize, range.len))? };
        return Err(Error::new(CALL, libc::EEXIST));
    }
    Ok(())
}

/// Private readable and writable memory with ordinary pages.
pub(super) fn map_anywhere(len: usize) -> Result<AddressRange> {
    let start = mmap_anywhere(len, libc::PROT_READ | libc::PROT_WRITE, PRIVATE, "mmap")?;
    Ok(AddressRange::new(start, len))
}

/// Private readable and writable memory from the hugetlb pool of `page_size`, reserved in the pool.
///
/// Never `MAP_NORESERVE`: with it an empty pool would show as `SIGBUS` at the first touch.
pub(super) fn map_hugetlb_anywhere(len: usize, page_size: usize) -> Result<AddressRange> {
    // The logarithm of a `usize` is below 64 and fits the six bits the kernel has for it.
    let size_bits = (page_size.trailing_zeros() << MAP_HUGE_SHIFT) as c_int;
    let flags = PRIVATE | libc::MAP_HUGETLB | size_bits;
    let start = mmap_anywhere(len, libc::PROT_READ | libc::PROT_WRITE, flags, "mmap(MAP_HUGETLB)")?;
    Ok(AddressRange::new(start, len))
}

/// Replaces whatever is mapped in `range` by address space without memory or access.
///
/// The kernel checks its limits before it removes the old mapping, so a failure changes nothing.
///
/// # Safety
/// The caller owns `range` and nobody uses its contents any more.
pub(super) unsafe fn reserve_over(range: AddressRange) -> Result<()> {
    // SAFETY: the caller owns the range and gives its contents up.
    let address = unsafe {
        let flags = RESERVED | libc::MAP_FIXED;
        libc::mmap(pointer(range.start), range.len, libc::PROT_NONE, flags, -1, 0)
    };
    if address == libc::MAP_FAILED { Err(Error::last("mmap(PROT_NONE, MAP_FIXED)")) } else { Ok(()) }
}

/// `munmap`.
///
/// # Safety
/// The caller owns `range` and nobody uses it any more.
pub(super) unsafe fn unmap(range: AddressRange) -> Result<()> {
    // SAFETY: the caller owns the range and gives it up.
    done(unsafe { libc::munmap(pointer(range.start), range.len) }, "munmap")
}

/// `mprotect`.
///
/// # Safety
/// The caller owns `range`, and nobody accesses it in a way `protection` forbids.
pub(super) unsafe fn protect(range: AddressRange, protection: c_int, call: &'static str) -> Result<()> {
    // SAFETY: the caller answers for all accesses to the range.
    done(unsafe { libc::mprotect(pointer(range.start), range.len, protection) }, call)
}

/// `madvise`.
///
/// # Safety
/// The caller owns `range`; where the advice drops contents, nobody needs them.
pub(super) unsafe fn advise(range: AddressRange, advice: c_int, call: &'static str) -> Result<()> {
    // SAFETY: the caller owns the range and answers for what the advice does to its contents.
    done(unsafe { libc::madvise(pointer(range.start), range.len, advice) }, call)
}

/// Whether the kernel knows `advice`: `madvise` looks at the advice before the (empty) range.
pub(super) fn knows_advice(page: usize, advice: c_int) -> bool {
    // SAFETY: a range of length 0 has no page the advice could change.
    unsafe { libc::madvise(pointer(page), 0, advice) == 0 }
}

/// `MADV_POPULATE_WRITE`, again when a signal interrupts it: the kernel goes on where it stopped because what
/// is populated is skipped.
///
/// # Safety
/// The caller owns `range`.
pub(super) unsafe fn populate(range: AddressRange) -> Result<()> {
    // A caller that is interrupted this often gets to hear about it rather than to hang.
    const ATTEMPTS: u32 = 1000;
    let mut result = Ok(());
    for _ in 0..ATTEMPTS {
        // SAFETY: the caller owns the range; populating keeps its contents.
        result = unsafe { advise(range, MADV_POPULATE_WRITE, "madvise(MADV_POPULATE_WRITE)") };
        match result {
            Err(error) if error.code == libc::EINTR => {}
            _ => break,
        }
    }
    result
}

/// Moves the mapping at `from`, with its pages, over what is at `to`, a multiple of the OS page. With `keep_source` an
/// empty mapping of the same kind stays at `from`, else nothing does.
///
/// # Safety
/// The caller owns `from` and `from.len` bytes at `to`, and nobody uses what is mapped at `to`.
pub(super) unsafe fn move_over(
    from: AddressRange,
    to: usize,
    keep_source: bool,
    call: &'static str,
) -> Result<()> {
    let mut flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    if keep_source {
        flags |= MREMAP_DONTUNMAP;
    }
    // SAFETY: the caller owns both ranges.
    let address = unsafe { libc::mremap(pointer(from.start), from.len, from.len, flags, pointer(to)) };
    if address == libc::MAP_FAILED { Err(Error::last(call)) } else { Ok(()) }
}

/// Names a range in the lists of mappings.
pub(super) fn set_name(range: AddressRange, name: &CStr) -> Result<()> {
    const PR_SET_VMA: c_int = 0x5356_4d41;
    const PR_SET_VMA_ANON_NAME: usize = 0;
    // SAFETY: the call attaches a copy of the name to mappings and changes neither contents nor access.
    let status =
        unsafe { libc::prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, range.start, range.len, name.as_ptr()) };
    done(status, "prctl(PR_SET_VMA_ANON_NAME)")
}

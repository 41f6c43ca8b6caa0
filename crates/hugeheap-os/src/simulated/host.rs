//! Real memory behind a simulated reservation.
//!
//! The code under test keeps objects and metadata in the ranges it maps, so a reservation must be
//! addresses that can be read and written. One `Host` is one such block. The model above decides what is
//! resident; the block only holds contents, and loses them when the model says so (`discard`).
//!
//! ```text
//!   base                start = odd multiple of align                    base + total
//!    │   unused          │◀──────────── len ─────────────▶│   unused       │
//! ```
//!
//! The start is aligned to what was asked for and to no more: code that leans on alignment it did not
//! ask for fails here always, and not only on the one host in ten that maps differently.
//!
//! On Unix it is private anonymous memory without swap reservation; elsewhere, and under Miri, zeroed memory of the
//! process's heap (then large reservations cost what they are).

use crate::{AddressRange, Protection};

/// The real system's page size.
pub(super) fn page() -> usize {
    system::page()
}

/// One block of real memory. Unmapped when dropped.
pub(super) struct Host {
    base: usize,
    total: usize,
    start: usize,
    len: usize,
    /// Whether access follows the model (`PROT_NONE` for what is only reserved).
    enforced: bool,
}

impl Host {
    /// `len` zeroed bytes at an odd multiple of `align`; `None` when the real system has none.
    pub(super) fn new(len: usize, align: usize, enforced: bool) -> Option<Self> {
        let total = len.checked_add(align.checked_mul(2)?)?;
        let base = system::acquire(total, align, enforced)?;
        let period = 2 * align;
        // The first address congruent to `align` modulo `2 * align`; at most `2 * align - 1` above the base.
        let start = base + (align.wrapping_sub(base) & (period - 1));
        Some(Self { base, total, start, len, enforced })
    }

    /// Where the usable part is.
    pub(super) fn range(&self) -> AddressRange {
        AddressRange::new(self.start, self.len)
    }

    fn assert_inside(&self, range: AddressRange) {
        assert!(self.range().encloses(range), "{range} is not in {}", self.range());
    }

    /// Drops the contents of `range`: it reads as zero.
    pub(super) fn discard(&self, range: AddressRange) {
        self.assert_inside(range);
        let unit = system::page();
        let first = (range.start + unit - 1) & !(unit - 1);
        let last = range.end() & !(unit - 1);
        if first >= last {
            self.fill_zero(range.start, range.end());
            return;
        }
        self.fill_zero(range.start, first);
        self.fill_zero(last, range.end());
        // SAFETY: `first..last` lies in this block, which is mapped until `drop`; the caller of the simulated
        // kernel has given up the contents.
        unsafe { system::zero(first, last - first, self.enforced) }
    }

    fn fill_zero(&self, start: usize, end: usize) {
        if start < end {
            // SAFETY: callers pass parts of this block, which is mapped and writable: with enforced access,
            // ranges are multiples of the real page and this is never reached.
            unsafe { core::ptr::write_bytes(start as *mut u8, 0, end - start) }
        }
    }

    /// Changes real access, when access is enforced.
    pub(super) fn protect(&self, range: AddressRange, protection: Protection) {
        self.assert_inside(range);
        if self.enforced {
            // SAFETY: the range lies in this block.
            unsafe { system::protect(range, protection) }
        }
    }

    /// Copies `len` bytes from `from` in this block to `to` in `other` (which may be this block).
    /// Pages of zero are not written, so a sparse range stays sparse. Both must be readable and writable.
    pub(super) fn copy_to(&self, other: &Host, from: AddressRange, to: usize, unit: usize) {
        self.assert_inside(from);
        other.assert_inside(AddressRange::new(to, from.len));
        for offset in (0..from.len).step_by(unit) {
            let n = unit.min(from.len - offset);
            // SAFETY: both lie in mapped blocks (asserted above) and do not overlap (the caller of `relocate`
            // is refused otherwise); plain bytes are copied.
            unsafe {
                let source = (from.start + offset) as *const u8;
                if core::slice::from_raw_parts(source, n).iter().any(|&byte| byte != 0) {
                    core::ptr::copy_nonoverlapping(source, (to + offset) as *mut u8, n);
                }
            }
        }
    }

    /// Calls `found` for each `unit` of `range` in which the real system holds memory, as far as it tells;
    /// where it does not tell, for each unit that is not zero.
    pub(super) fn accessed(&self, range: AddressRange, unit: usize, mut found: impl FnMut(usize)) {
        self.assert_inside(range);
        let mut last = None;
        system::held(range, |address| {
            // One real page may hold several units, and a unit several real pages.
            let first = (address & !(unit - 1)).max(range.start);
            for start in (first..range.end().min(address + system::page())).step_by(unit) {
                if last.is_none_or(|last| last < start) {
                    last = Some(start);
                    found(start);
                }
            }
        });
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // SAFETY: the block came from `acquire` with this size and nothing uses it any more: the reservation
        // was released, or the last handle of the kernel is gone.
        unsafe { system::release(self.base, self.total, self.start.wrapping_sub(self.base)) }
    }
}

#[cfg(all(unix, not(miri)))]
mod system {
    use super::{AddressRange, Protection};
    use core::ffi::c_int;

    #[cfg(target_os = "linux")]
    const FLAGS: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    #[cfg(not(target_os = "linux"))]
    const FLAGS: c_int = libc::MAP_PRIVATE | libc::MAP_ANON;

    const fn bits(protection: Protection) -> c_int {
        match protection {
            Protection::None => libc::PROT_NONE,
            Protection::Read => libc::PROT_READ,
            Protection::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        }
    }

    pub(super) fn page() -> usize {
        // SAFETY: no preconditions.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(size).unwrap_or(4096)
    }

    pub(super) fn acquire(total: usize, _align: usize, enforced: bool) -> Option<usize> {
        let access = bits(if enforced { Protection::None } else { Protection::ReadWrite });
        // SAFETY: a new mapping at an address of the system's choice; nothing existing changes.
        let base = unsafe { libc::mmap(core::ptr::null_mut(), total, access, FLAGS, -1, 0) };
        if base == libc::MAP_FAILED {
            return None;
        }
        // Real huge pages would hide which OS pages were written, and make tests heavy.
        #[cfg(target_os = "linux")]
        // SAFETY: advice on the mapping just made; failure changes nothing.
        unsafe {
            libc::madvise(base, total, libc::MADV_NOHUGEPAGE);
        }
        Some(base as usize)
    }

    /// # Safety
    /// The block came from `acquire` and nothing uses it.
    pub(super) unsafe fn release(base: usize, total: usize, _offset: usize) {
        // SAFETY: the caller's contract.
        unsafe { libc::munmap(base as *mut _, total) };
    }

    /// # Safety
    /// The range lies in a block of `acquire`, whole real pages, its contents are given up.
    pub(super) unsafe fn zero(start: usize, len: usize, enforced: bool) {
        #[cfg(target_os = "linux")]
        {
            let _ = enforced;
            // SAFETY: the caller's contract.
            let failed = unsafe { libc::madvise(start as *mut _, len, libc::MADV_DONTNEED) };
            assert_eq!(failed, 0, "the real system refused to drop memory");
        }
        #[cfg(not(target_os = "linux"))]
        {
            // `MADV_DONTNEED` does not zero elsewhere; a fresh mapping over the old one does. With enforced
            // access the caller sets the protection afterwards.
            let access = bits(if enforced { Protection::None } else { Protection::ReadWrite });
            // SAFETY: the caller's contract; the old mapping is ours.
            let new = unsafe { libc::mmap(start as *mut _, len, access, FLAGS | libc::MAP_FIXED, -1, 0) };
            assert_ne!(new, libc::MAP_FAILED, "the real system refused to drop memory");
        }
    }

    /// # Safety
    /// The range lies in a block of `acquire`.
    pub(super) unsafe fn protect(range: AddressRange, protection: Protection) {
        // SAFETY: the caller's contract.
        let failed = unsafe { libc::mprotect(range.start as *mut _, range.len, bits(protection)) };
        assert_eq!(failed, 0, "the real system refused to change access");
    }

    /// Calls `found` with each real page of `range` that is resident, in order.
    pub(super) fn held(range: AddressRange, mut found: impl FnMut(usize)) {
        let size = page();
        let mut answer = [0_u8; 512];
        let first = range.start & !(size - 1);
        for batch in (first..range.end()).step_by(size * answer.len()) {
            let len = (range.end() - batch).min(size * answer.len());
            // SAFETY: a part of a block of `acquire`, one byte of answer for each of its pages.
            let failed = unsafe { libc::mincore(batch as *mut _, len, answer.as_mut_ptr().cast()) };
            assert_eq!(failed, 0, "the real system does not tell what is resident");
            for (index, _) in
                answer[..len.div_ceil(size)].iter().enumerate().filter(|(_, bits)| **bits & 1 != 0)
            {
                found(batch + index * size);
            }
        }
    }
}

#[cfg(any(not(unix), miri))]
mod system {
    use super::{AddressRange, Protection};
    use std::alloc::{Layout, alloc_zeroed, dealloc};

    /// What blocks are aligned to; keeps `release` free of the alignment asked for.
    const ALIGN: usize = 4096;

    pub(super) fn page() -> usize {
        ALIGN
    }

    pub(super) fn acquire(total: usize, _align: usize, _enforced: bool) -> Option<usize> {
        let layout = Layout::from_size_align(total, ALIGN).ok()?;
        // SAFETY: `total` is not 0: it includes the alignment twice.
        let base = unsafe { alloc_zeroed(layout) };
        (!base.is_null()).then(|| base.expose_provenance())
    }

    /// # Safety
    /// The block came from `acquire` and nothing uses it.
    pub(super) unsafe fn release(base: usize, total: usize, _offset: usize) {
        let layout = Layout::from_size_align(total, ALIGN).expect("it was a layout in acquire");
        // SAFETY: the caller's contract.
        unsafe { dealloc(core::ptr::with_exposed_provenance_mut(base), layout) }
    }

    /// # Safety
    /// The range lies in a block of `acquire`, its contents are given up.
    pub(super) unsafe fn zero(start: usize, len: usize, _enforced: bool) {
        // SAFETY: the caller's contract.
        unsafe { core::ptr::write_bytes(core::ptr::with_exposed_provenance_mut::<u8>(start), 0, len) }
    }

    /// # Safety
    /// None: memory of the heap is always accessible.
    pub(super) unsafe fn protect(_range: AddressRange, _protection: Protection) {}

    /// Calls `found` with each page of `range` that is not zero, in order.
    pub(super) fn held(range: AddressRange, mut found: impl FnMut(usize)) {
        for address in (range.start & !(ALIGN - 1)..range.end()).step_by(ALIGN) {
            let (start, end) = (address.max(range.start), (address + ALIGN).min(range.end()));
            // SAFETY: a part of a live block, all of it initialised.
            let bytes = unsafe {
                let start = core::ptr::with_exposed_provenance::<u8>(start);
                core::slice::from_raw_parts(start, end - start.addr())
            };
            if bytes.iter().any(|&byte| byte != 0) {
                found(address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_at_an_odd_multiple_of_the_alignment() {
        for align in [4096, 16384, 2 << 20] {
            let host = Host::new(3 * align, align, false).unwrap();
            assert_eq!(host.range().start % (2 * align), align);
            assert_eq!(host.range().len, 3 * align);
        }
    }

    #[test]
    fn discarded_memory_reads_as_zero_and_its_neighbours_stay() {
        let host = Host::new(65536, 4096, false).unwrap();
        let start = host.range().start;
        // SAFETY: the block is mapped, writable and ours alone.
        unsafe { core::ptr::write_bytes(start as *mut u8, 7, 65536) };
        host.discard(AddressRange::new(start + 100, 20000));
        // SAFETY: as above.
        let bytes = unsafe { core::slice::from_raw_parts(start as *const u8, 65536) };
        assert!(bytes[..100].iter().all(|&b| b == 7));
        assert!(bytes[100..20100].iter().all(|&b| b == 0));
        assert!(bytes[20100..].iter().all(|&b| b == 7));
    }

    #[test]
    fn accessed_finds_what_was_written() {
        let host = Host::new(16 * 65536, 65536, false).unwrap();
        let start = host.range().start;
        // SAFETY: the block is mapped, writable and ours alone.
        unsafe { *((start + 3 * 65536 + 5) as *mut u8) = 1 };
        let mut found = Vec::new();
        host.accessed(host.range(), 65536, |at| found.push(at - start));
        assert_eq!(found, [3 * 65536]);
    }
}

//! [`Pages`] for Linux: the states of the trait's text in terms of mappings.
//!
//! | state | mapping |
//! |---|---|
//! | reserved | private, anonymous, `PROT_NONE`, `MAP_NORESERVE`, no advice |
//! | mapped | the same made readable and writable, with the backing's advice; only readable for `Zeros`; or a hugetlb mapping moved here |
//! | resident | pages in it |
//!
//! Invariant: address space of a reservation is never unmapped, only mapped over, and each such step is one
//! atomic system call that checks its limits first; where the kernel unmaps it and fails then, it is taken
//! again ([`restore_reservation`]). `MAP_NORESERVE` keeps terabytes of reservation out of the kernel's
//! overcommit account; under `vm.overcommit_memory=2` the kernel ignores it and charges a range when it becomes
//! writable, so `map` can fail there and the reservation itself cannot.
//!
//! Everything here is system calls on the stack's data: no heap, no locks, safe in signal and fork handlers.

use super::descriptors::write_to_stderr;
use super::{Linux, hugetlb, maps, pagemap, residency, vm};
use crate::{AddressRange, Advice, Backing, Error, ErrorKind, Pages, Protection, Residency, Result};
use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicUsize, Ordering};
use std::io::Write;

/// Bytes of the smallest OS page that Linux has on processors with huge pages. Where pages are larger some are
/// touched twice.
const LEAST_PAGE: usize = 4 << 10;

const READ_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;

/// The access of a reservation, as the kernel writes it.
pub(super) const RESERVED: &[u8; 4] = b"---p";
/// That of the target of a move.
const WRITE_ONLY: &[u8; 4] = b"-w-p";

impl Pages for Linux {
    fn reserve(&self, len: usize, align: usize) -> Result<AddressRange> {
        reserve(len, align)
    }

    unsafe fn release(&self, range: AddressRange) -> Result<()> {
        // SAFETY: the caller owns the whole reservation and gives it up.
        unsafe { vm::unmap(range) }
    }

    unsafe fn release_part(&self, range: AddressRange) -> Result<()> {
        // SAFETY: the caller owns this part of its reservation and gives it up.
        unsafe { vm::unmap(range) }
    }

    unsafe fn map(&self, range: AddressRange, backing: Backing) -> Result<()> {
        // SAFETY: the caller owns the range, which is reserved.
        unsafe {
            match backing {
                Backing::Base => match map_advised(range, Some(Advice::NoHuge)) {
                    // A kernel without transparent huge pages refuses the advice, and has only OS pages.
                    Err(error) if error.kind() == ErrorKind::Invalid => map_advised(range, None),
                    result => result,
                },
                Backing::Plain => map_advised(range, None),
                Backing::Thp => map_advised(range, Some(Advice::Huge)),
                Backing::Hugetlb(page_size) => hugetlb::map(range, page_size),
                Backing::Zeros => make_accessible(range, libc::PROT_READ, "mprotect(PROT_READ)"),
            }
        }
    }

    unsafe fn unmap(&self, range: AddressRange) -> Result<()> {
        // SAFETY: the caller owns the range and gives its contents up.
        unsafe { vm::reserve_over(range) }
    }

    unsafe fn advise(&self, range: AddressRange, advice: Advice) -> Result<()> {
        // SAFETY: the caller owns the range; this advice keeps contents.
        unsafe { advise(range, advice) }
    }

    unsafe fn merge(&self, range: AddressRange, allowed: bool) -> Result<()> {
        let (number, call) = match allowed {
            true => (vm::MADV_MERGEABLE, "madvise(MADV_MERGEABLE)"),
            false => (vm::MADV_UNMERGEABLE, "madvise(MADV_UNMERGEABLE)"),
        };
        // SAFETY: the caller owns the range; merging keeps contents.
        unsafe { vm::advise(range, number, call) }
    }

    unsafe fn populate(&self, range: AddressRange) -> Result<()> {
        // SAFETY: the caller owns the range.
        unsafe { vm::populate(range) }
    }

    unsafe fn touch(&self, range: AddressRange) -> Result<()> {
        for page in (range.start..range.end()).step_by(LEAST_PAGE) {
            // SAFETY: the caller owns the range, which is mapped writable; the word begins a page.
            let word = unsafe { &*(page as *const AtomicUsize) };
            // Not an addition of 0, which may be compiled to a read: that maps a page of zeros. What is not 0
            // is resident already.
            let _ = word.compare_exchange(0, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
        Ok(())
    }

    unsafe fn collapse(&self, range: AddressRange) -> Result<()> {
        // SAFETY: the caller owns the range; collapsing keeps contents.
        unsafe { vm::advise(range, vm::MADV_COLLAPSE, "madvise(MADV_COLLAPSE)") }
    }

    /// Splits with `MADV_COLD`, which has to split a huge page of which it may deactivate only a part.
    /// (`MADV_PAGEOUT` splits too, came with the same kernel, 5.4, and would write live data to swap.)
    ///
    /// Once is enough, also for memory touched a moment ago on another CPU: a page in a per-CPU batch of the
    /// kernel could not be split, but huge pages are never batched (`linux_split` tests that; 0.25 ms per huge
    /// page).
    ///
    /// Huge pages mapped whole are left whole. Not split are pages that a forked child still shares and pages of
    /// a locked mapping (`mlockall`: `EINVAL`).
    unsafe fn split(&self, range: AddressRange) -> Result<()> {
        // SAFETY: the caller owns the range; deactivating keeps contents.
        unsafe { vm::advise(range, vm::MADV_COLD, "madvise(MADV_COLD)") }
    }

    unsafe fn decommit(&self, range: AddressRange) -> Result<()> {
        // SAFETY: the caller owns the range and gives its contents up.
        unsafe { vm::advise(range, libc::MADV_DONTNEED, "madvise(MADV_DONTNEED)") }
    }

    /// Whole huge pages stay whole (`MADV_FREE` splits those of which the range holds only a part), and are
    /// taken whole.
    unsafe fn offer(&self, range: AddressRange) -> Result<()> {
        // SAFETY: the caller owns the range and gives its contents up.
        unsafe { vm::advise(range, libc::MADV_FREE, "madvise(MADV_FREE)") }
    }

    unsafe fn protect(&self, range: AddressRange, protection: Protection) -> Result<()> {
        let bits = match protection {
            Protection::None => libc::PROT_NONE,
            Protection::Read => libc::PROT_READ,
            Protection::ReadWrite => READ_WRITE,
        };
        // SAFETY: the caller owns the range and answers for the accesses to it.
        unsafe { vm::protect(range, bits, "mprotect") }
    }

    unsafe fn relocate(&self, from: AddressRange, to: AddressRange) -> Result<()> {
        // SAFETY: the caller owns both ranges; `to` is reserved.
        unsafe { relocate(from, to) }
    }

    fn name(&self, range: AddressRange, name: &CStr) -> Result<()> {
        vm::set_name(range, name)
    }

    fn barrier(&self) -> Result<()> {
        vm::barrier()
    }

    fn residency(&self, range: AddressRange) -> Result<Residency> {
        residency::of(range)
    }

    fn exclusive(&self, range: AddressRange, found: &mut [u64]) -> Result<()> {
        pagemap::exclusive(range, found)
    }

    /// By `mincore`, which counts the zero page as well.
    fn is_resident(&self, range: AddressRange) -> Result<bool> {
        vm::is_resident(vm::whole_pages(range))
    }
}

/// Reserves `len` bytes, rounded up to the OS page, at a multiple of `align`.
pub(super) fn reserve(len: usize, align: usize) -> Result<AddressRange> {
    const CALL: &str = "mmap(PROT_NONE)";
    let page = vm::os_page();
    if len == 0 || !align.is_power_of_two() || align < page {
        return Err(Error::new(CALL, libc::EINVAL));
    }
    let len = len.checked_next_multiple_of(page).ok_or(Error::new(CALL, libc::ENOMEM))?;
    // Newer kernels align large mappings to the huge page by themselves, and then nothing has to be trimmed.
    let lucky = vm::reserve_anywhere(len)?;
    if AddressRange::new(lucky.start, 0).is_aligned_to(align) {
        return Ok(lucky);
    }
    // SAFETY: the mapping was just made and is known to nobody else.
    unsafe { vm::unmap(lucky)? };
    let wide = len.checked_add(align - page).ok_or(Error::new(CALL, libc::ENOMEM))?;
    match vm::reserve_anywhere(wide) {
        // SAFETY: as above.
        Ok(range) => unsafe { trim(range, len, align) },
        // Under `ulimit -v` there may be room for the range but not for the excess: try the aligned places
        // beside the one that was free a moment ago.
        Err(error) => {
            let below = lucky.start & !(align - 1);
            let places = [below, below.wrapping_sub(align), below.wrapping_add(align)];
            let free = |&start: &usize| start != 0 && vm::reserve_at(AddressRange::new(start, len)).is_ok();
            places.into_iter().find(free).map(|start| AddressRange::new(start, len)).ok_or(error)
        }
    }
}

/// Cuts `range` down to its first `len` bytes at a multiple of `align`.
///
/// # Safety
/// The caller owns `range`, uses none of it yet, and it is long enough.
unsafe fn trim(range: AddressRange, len: usize, align: usize) -> Result<AddressRange> {
    let start = (range.start + (align - 1)) & !(align - 1);
    let kept = AddressRange::new(start, len);
    let before = AddressRange::new(range.start, start - range.start);
    let after = AddressRange::new(kept.end(), range.end() - kept.end());
    for excess in [before, after] {
        if excess.len > 0 {
            // SAFETY: the excess is part of the caller's range and in nobody's use.
            unsafe { vm::unmap(excess)? };
        }
    }
    Ok(kept)
}

/// # Safety
/// The caller owns `range`.
unsafe fn advise(range: AddressRange, advice: Advice) -> Result<()> {
    let (number, call) = match advice {
        Advice::Huge => (libc::MADV_HUGEPAGE, "madvise(MADV_HUGEPAGE)"),
        Advice::NoHuge => (libc::MADV_NOHUGEPAGE, "madvise(MADV_NOHUGEPAGE)"),
    };
    // SAFETY: the caller owns the range; this advice keeps contents.
    unsafe { vm::advise(range, number, call) }.map_err(|error| {
        // The kernel says EAGAIN when it has no room for another mapping, which no repetition changes.
        if error.code == libc::EAGAIN { Error::new(call, libc::ENOMEM) } else { error }
    })
}

/// Makes a reserved range accessible. The advice comes first: where it is refused, nothing has changed yet.
///
/// # Safety
/// The caller owns `range`, which is reserved.
unsafe fn map_advised(range: AddressRange, advice: Option<Advice>) -> Result<()> {
    // SAFETY: the caller owns the range, which has no contents.
    unsafe {
        let advised = advice.map_or(Ok(()), |advice| advise(range, advice));
        advised.map_or_else(
            |error| {
                undo(range);
                Err(error)
            },
            |()| make_accessible(range, READ_WRITE, "mprotect(PROT_WRITE)"),
        )
    }
}

/// # Safety
/// The caller owns `range`, which is reserved.
unsafe fn make_accessible(range: AddressRange, protection: c_int, call: &'static str) -> Result<()> {
    // SAFETY: the caller owns the range, which has no contents.
    unsafe { vm::protect(range, protection, call).inspect_err(|_| undo(range)) }
}

/// Makes a range reserved again of which perhaps a part was mapped: a call may have done a part of a range that
/// consists of several mappings.
///
/// # Safety
/// The caller owns `range`, and nothing in it is in use.
unsafe fn undo(range: AddressRange) {
    // SAFETY: the caller owns the range and gives its contents up.
    unsafe {
        // If the fresh reservation is refused (too many mappings), no access is what matters, and that needs no
        // new mapping.
        if vm::reserve_over(range).is_err() {
            let _ = vm::protect(range, libc::PROT_NONE, "mprotect(PROT_NONE)");
        }
    }
}

/// After a move over `range` failed: makes sure that it is there and reserved. Before the move it had the
/// access `marked`.
///
/// The kernel checks what it can before it removes the target of a move, so nearly always the range is as it
/// was. If it was removed (memory for the kernel's own records has run out, or a signal came while it un-shared
/// pages that KSM had merged) it is taken again. Another thread may have been quicker. Its mapping is told by
/// the access and left alone: once its access was taken away here, and that thread died. But the caller would
/// map over it one day, so the process ends here and says why.
///
/// # Safety
/// The caller owns `range`, and nothing in it is in use.
pub(super) unsafe fn restore_reservation(range: AddressRange, marked: &[u8; 4]) {
    // The normal case is that this fails: it was never removed.
    if vm::reserve_at(range).is_ok() {
        return;
    }
    let mut at = range.start;
    while at < range.end() {
        match maps::mapping_at(at) {
            Ok(Some(mapping)) if &mapping.access == marked && !mapping.hugetlb => at = mapping.range.end(),
            Ok(_) => lost(range),
            // Nearly certainly it is as it was: fit for use, though it counts against limits.
            Err(_) => return,
        }
    }
    if marked != RESERVED {
        // SAFETY: the range is the caller's, as the mark says, and nothing in it is in use.
        let _ = unsafe { vm::protect(range, libc::PROT_NONE, "mprotect(PROT_NONE)") };
    }
}

/// Ends the process: a part of a reservation may belong to somebody else.
fn lost(range: AddressRange) -> ! {
    let mut text = [0; 192];
    let room = text.len();
    let mut rest = &mut text[..];
    let _ = writeln!(
        rest,
        "hugeheap: the heap has lost its address space {range}: the kernel removed it, did not move memory there, \
         and another thread has mapped something"
    );
    let length = room - rest.len();
    write_to_stderr(&text[..length]);
    // SAFETY: no preconditions.
    unsafe { libc::abort() }
}

/// # Safety
/// The caller owns both ranges; `to` is reserved.
unsafe fn relocate(from: AddressRange, to: AddressRange) -> Result<()> {
    const CALL: &str = "mremap(MREMAP_DONTUNMAP)";
    let unsupported = Error::new(CALL, libc::EOPNOTSUPP);
    if from.len != to.len || from.len == 0 {
        return Err(Error::new(CALL, libc::EINVAL));
    }
    // The kernel moves one mapping at a time and notices that `from` is several, or a hugetlb one, only after it has
    // removed `to`. So look first; without /proc there is no way to look and no move.
    let mapping = maps::mapping_at(from.start).ok().flatten().ok_or(unsupported)?;
    if !mapping.range.encloses(from) || mapping.hugetlb {
        return Err(unsupported);
    }
    // SAFETY: the caller owns both ranges, and `to` has no contents.
    unsafe {
        // The limits on data and committed memory are checked late, too. Making `to` writable has the
        // same cost against them, and fails cleanly. Not readable: nobody else has such memory.
        make_accessible(to, libc::PROT_WRITE, "mprotect(PROT_WRITE)")?;
        vm::move_over(from, to.start, true, CALL).map_err(|error| {
            restore_reservation(to, WRITE_ONLY);
            // A kernel before 5.7 refuses the flag.
            if error.code == libc::EINVAL { unsupported } else { error }
        })
    }
}

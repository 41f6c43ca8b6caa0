//! The trait for pages from the operating system.
//!
//! Terms: the *OS page* is what the MMU maps by default; a *huge page* is the PMD-size page. A *reservation*
//! is address space without memory. Inside a reservation a range is in one of three states:
//!
//! ```text
//!                 map(backing)                     first touch, populate, collapse
//!   reserved  ───────────────────▶  mapped, empty ────────────────────────────────▶ resident
//!   (no access)◀─────────────────  (reads as zero) ◀────────────────────────────────
//!                   unmap                                decommit
//! ```
//!
//! A range mapped as [`Backing::Zeros`] is mapped and empty, and stays so where `protect` has not made it writable.
//!
//! Invariants every implementation keeps:
//! * `map`, `unmap` and `relocate` change only the given ranges, which must lie in one reservation. They never
//!   leave a hole that another thread's `mmap` could fall into, also when they fail.
//! * After a failed `map` the range is still reserved; after any other failed call the contents are unchanged.
//! * Memory handed out by `map` and memory touched again after `decommit` reads as zero.
//!
//! Room for other systems: `reserve`/`map`/`unmap` are `VirtualAlloc` with `MEM_RESERVE`/`MEM_COMMIT`/
//! `VirtualFree(MEM_DECOMMIT)` on Windows, where [`Backing::Hugetlb`] is `MEM_LARGE_PAGES` and the advices answer
//! [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported); on macOS everything but `Base` does.

use crate::{AddressRange, Result};
use core::ffi::CStr;

/// What memory of a mapped range consists of, as asked for. What the kernel made of it is [`Residency`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backing {
    /// OS pages, whatever the host's mode: advised *against* huge pages.
    Base,
    /// OS pages without any advice: huge under the host's mode `always`, else not.
    Plain,
    /// Transparent huge pages: advised for them.
    Thp,
    /// Pages of an explicit hugetlb pool, with this page size in bytes. Reserved when mapped
    /// (never `MAP_NORESERVE`) and populated before the range is used, so that a touch cannot raise `SIGBUS`.
    Hugetlb(usize),
    /// None yet: reads as zero, and [`protect`](Pages::protect) makes parts of it writable, OS pages without
    /// advice. Until then it counts against no limit but that of address space: for tables of which a small
    /// part will be needed, and nobody knows which.
    Zeros,
}

/// Advice on a mapped range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Advice {
    /// `MADV_HUGEPAGE`: huge pages on touch, and khugepaged may collapse.
    Huge,
    /// `MADV_NOHUGEPAGE`: no huge pages on touch, khugepaged keeps away, `collapse` fails.
    NoHuge,
}

/// Access to a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protection {
    /// No access.
    None,
    /// Reads only.
    Read,
    /// Reads and writes.
    ReadWrite,
}

/// What backs a range according to the kernel. All in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Residency {
    /// Bytes that are resident, whatever backs them.
    pub resident: u64,
    /// Resident bytes mapped by a transparent huge page's own (PMD) entry.
    pub thp: u64,
    /// Resident bytes mapped from a hugetlb pool.
    pub hugetlb: u64,
}

impl Residency {
    /// Resident bytes mapped by huge pages of either kind.
    pub const fn huge(self) -> u64 {
        self.thp + self.hugetlb
    }

    /// Coverage: the share of resident bytes mapped by huge pages, 0 to 1. `None` when nothing is resident.
    pub fn coverage(self) -> Option<f64> {
        (self.resident > 0).then(|| self.huge() as f64 / self.resident as f64)
    }
}

impl core::ops::AddAssign for Residency {
    fn add_assign(&mut self, other: Self) {
        self.resident += other.resident;
        self.thp += other.thp;
        self.hugetlb += other.hugetlb;
    }
}

/// Pages from the operating system. See the module's text for states and invariants.
///
/// No method allocates from the process's heap. All may be called from several threads at once on
/// ranges that do not overlap.
///
/// # Safety
/// The methods marked unsafe share one contract: the range lies in a reservation made by this implementation, the
/// caller owns it, and nothing reads or writes it in a way the change makes invalid (a decommitted range loses
/// its contents, an unmapped one may not be touched).
pub trait Pages {
    /// Reserves `len` bytes of address space at a multiple of `align` (a power of two, at least the OS
    /// page) without memory or access. The address is not 0.
    ///
    /// # Errors
    /// `OutOfMemory` when the address space or its limit (`ulimit -v`) does not have that much.
    fn reserve(&self, len: usize, align: usize) -> Result<AddressRange>;

    /// Gives a whole reservation back to the system, with everything in it.
    ///
    /// # Safety
    /// The common contract; `range` is exactly what `reserve` returned.
    unsafe fn release(&self, range: AddressRange) -> Result<()>;

    /// Gives a part of a reservation back to the system, with everything in it: it is no part of it any more.
    /// For address space that was reserved for growth, where that has a limit now. What is left can be used as
    /// before, but for [`release`](Self::release).
    ///
    /// # Errors
    /// `OutOfMemory` for too many mappings, `Unsupported` where reservations are given back whole (Windows);
    /// nothing has changed then.
    ///
    /// # Safety
    /// The common contract; multiples of the OS page.
    unsafe fn release_part(&self, range: AddressRange) -> Result<()>;

    /// Makes a reserved range readable and writable with `backing` (`Zeros`: readable). Reads as zero.
    /// For `Thp` where the system cannot advise (`ErrorKind::Invalid` or `Unsupported`), nothing is mapped.
    ///
    /// # Errors
    /// `OutOfMemory` for an exhausted pool, a reached limit, or too many mappings.
    ///
    /// # Safety
    /// The common contract. A multiple of the OS page, of the pool's page size for `Hugetlb`.
    unsafe fn map(&self, range: AddressRange, backing: Backing) -> Result<()>;

    /// Turns a mapped range back into a reservation; its memory, hugetlb pages too, returns to the system.
    ///
    /// # Safety
    /// The common contract.
    unsafe fn unmap(&self, range: AddressRange) -> Result<()>;

    /// Gives advice on a mapped range.
    ///
    /// # Safety
    /// The common contract (advice never changes contents).
    unsafe fn advise(&self, range: AddressRange, advice: Advice) -> Result<()>;

    /// Allows the system to make one of OS pages of equal contents, of this process and others that allow it,
    /// which is copied before it is written: by and by, and only while the host does that
    /// ([`Facts::merges`](crate::Facts::merges)). Or forbids it: those that became one are copied at once, so
    /// that is for a range in which nothing is resident, or that was just put on a huge page.
    ///
    /// # Errors
    /// `Invalid` where the kernel was built without it, `OutOfMemory` for too many mappings or where there is
    /// none for the copies.
    ///
    /// # Safety
    /// The common contract (contents do not change).
    unsafe fn merge(&self, range: AddressRange, allowed: bool) -> Result<()>;

    /// Makes a mapped range resident now, writable, answering with an error where a touch would raise `SIGBUS`.
    ///
    /// # Safety
    /// The common contract (contents do not change).
    unsafe fn populate(&self, range: AddressRange) -> Result<()>;

    /// The same by a write to each OS page that changes nothing: the fault of a thread, which takes the lock of
    /// one mapping where the kernel can do so (Linux 6.4), and not that of all of them. Other threads map and
    /// advise meanwhile. There is no error where memory is short, but what a touch of the program would bring:
    /// so only for memory that there is room for, and not for hugetlb ranges.
    ///
    /// # Safety
    /// The common contract (contents do not change).
    unsafe fn touch(&self, range: AddressRange) -> Result<()> {
        // SAFETY: the same contract.
        unsafe { self.populate(range) }
    }

    /// Puts a mapped range (multiples of the huge page) on huge pages now, filling holes with zero: resident
    /// memory may grow.
    ///
    /// # Errors
    /// `Again`: try again; `OutOfMemory`: no huge page; `Busy`: the cgroup; `Invalid`: not possible for this range,
    /// for instance advised against.
    ///
    /// # Safety
    /// The common contract (contents do not change).
    unsafe fn collapse(&self, range: AddressRange) -> Result<()>;

    /// Makes the kernel split the huge pages of which only a part is still mapped in `range`, and free
    /// the parts that are not: after this the cgroup's charge has fallen, not only RSS.
    /// Contents that are mapped stay intact.
    ///
    /// # Safety
    /// The common contract (contents do not change).
    unsafe fn split(&self, range: AddressRange) -> Result<()>;

    /// Drops the memory of a mapped range; it stays mapped and reads as zero. The charge falls for whole huge
    /// pages at once; for parts of one only after [`split`](Pages::split) on what is left of it.
    /// Not for hugetlb ranges (their reservation would be lost): `unmap` those.
    ///
    /// # Safety
    /// The common contract; the contents are lost.
    unsafe fn decommit(&self, range: AddressRange) -> Result<()>;

    /// Offers the memory of a mapped range to the system, which takes of it what it needs before it kills
    /// anybody, and no more; swap is not needed for that. Until then a touch costs no fault. Of an OS page that
    /// was not written since, the contents are the old ones or zero, and can become zero at any time; a page
    /// that is written is offered no more (of a huge page: all of it). Nothing is taken while a forked child
    /// shares the pages, and that is no error. The charge falls only when something is taken. Not for hugetlb
    /// ranges.
    ///
    /// # Errors
    /// `Invalid` before Linux 4.5, and for a locked mapping (`mlockall`).
    ///
    /// # Safety
    /// The common contract; the contents are lost.
    unsafe fn offer(&self, range: AddressRange) -> Result<()>;

    /// Changes the access to a mapped range.
    ///
    /// # Errors
    /// `OutOfMemory` for a reached limit, where it becomes writable for the first time (`ulimit -d`, strict
    /// overcommit), or too many mappings.
    ///
    /// # Safety
    /// The common contract; nobody accesses the range in a way that `protection` forbids.
    unsafe fn protect(&self, range: AddressRange, protection: Protection) -> Result<()>;

    /// Moves the memory of `from` to the reserved range `to` of the same length without copying where the system can;
    /// `from` becomes a mapped, empty range with its old backing. Both multiples of the huge page keep huge
    /// pages whole. Not for hugetlb ranges.
    ///
    /// # Errors
    /// `Unsupported` where the system cannot move pages; nothing has changed then, copy instead.
    ///
    /// # Safety
    /// The common contract for both ranges; `to` is reserved, `from` is mapped.
    unsafe fn relocate(&self, from: AddressRange, to: AddressRange) -> Result<()>;

    /// Names a range in the system's lists of mappings (`[anon:hugeheap]` in `/proc/PID/maps`).
    /// `Unsupported` or `Invalid` where the kernel was built without it; harmless.
    fn name(&self, range: AddressRange, name: &CStr) -> Result<()>;

    /// Each thread of the process passes a full memory barrier before this returns: what this thread wrote
    /// before is seen by whatever another reads afterwards, and what another wrote before the barrier is seen
    /// by this one. For the other side of a pair of threads that has no time for a barrier of its own.
    ///
    /// # Errors
    /// `Unsupported` where the system has no such call (before Linux 4.14), `Denied` where a sandbox forbids it.
    fn barrier(&self) -> Result<()>;

    /// What backs `range` now, from the kernel: `PAGEMAP_SCAN` where it works, else smaps (slower).
    fn residency(&self, range: AddressRange) -> Result<Residency>;

    /// Finds the OS pages of a range that are memory of this process and of nobody else: resident, not shared
    /// with a parent or a child since a fork, and not merged with others. A bit each, from the lowest of the
    /// first word on; a multiple of the OS page, of at most as many as there is room for.
    ///
    /// # Errors
    /// Where the system does not tell.
    fn exclusive(&self, range: AddressRange, found: &mut [u64]) -> Result<()>;

    /// Whether all OS pages that a range touches are resident now, whatever backs them; the zero page may
    /// count. Less is asked than with [`residency`](Self::residency), and no file is opened for it.
    ///
    /// Some sandboxes say yes of all memory.
    ///
    /// # Errors
    /// `OutOfMemory` where a part of the range is not mapped.
    fn is_resident(&self, range: AddressRange) -> Result<bool>;
}

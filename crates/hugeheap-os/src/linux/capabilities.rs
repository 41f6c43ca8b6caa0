//! Which calls this kernel really serves.
//!
//! Each is tried on two OS pages mapped for the purpose and dropped afterwards: versions lie (distributions
//! backport, sandboxes filter), an answer does not. Where trying would do work, an empty range does: `madvise`
//! checks that it knows the advice before it looks at the range.

use super::{pagemap, vm};
use crate::{AddressRange, Capabilities};
use core::ffi::{c_int, c_long, c_uint};
use core::mem::size_of;

/// Tries everything. Without memory for the trial nothing works.
pub(super) fn probe() -> Capabilities {
    let page = vm::os_page();
    let Ok(pages) = vm::map_anywhere(2 * page) else { return Capabilities::default() };
    let first = AddressRange::new(pages.start, page);
    let second = AddressRange::new(first.end(), page);
    // SAFETY: the pages were mapped above and nothing refers to them.
    let capabilities = unsafe {
        let accepts = |advice: c_int| vm::advise(first, advice, "madvise").is_ok();
        Capabilities {
            // On one page, which no huge page fits in.
            advise_huge: accepts(libc::MADV_HUGEPAGE),
            collapse: knows_collapse(),
            populate: accepts(vm::MADV_POPULATE_WRITE),
            cold: accepts(vm::MADV_COLD),
            pagemap_scan: pagemap::scans(first),
            process_madvise: advises_itself(first),
            name: vm::set_name(first, c"hugeheap").is_ok(),
            hardware_counters: opens_counters(),
            // Last, since a failure may leave `second` unmapped.
            relocate: vm::move_over(first, second.start, true, "mremap").is_ok(),
        }
    };
    // SAFETY: as above. If a kernel unmapped `second` without moving to it, another thread may have mapped something
    // there since, so then only `first` is known to be ours.
    let _ = unsafe { vm::unmap(if capabilities.relocate { pages } else { first }) };
    capabilities
}

/// Whether the kernel knows how to collapse: no page of the (empty) range has to be there for that.
pub(super) fn knows_collapse() -> bool {
    vm::knows_advice(vm::os_page(), vm::MADV_COLLAPSE)
}

/// Whether `process_madvise` takes this process. Tried with `MADV_DONTNEED`, which kernels before 6.13 refuse (and
/// which the others are not known to accept for all the advice there is).
///
/// # Safety
/// The caller owns `page` and needs none of its contents.
unsafe fn advises_itself(page: AddressRange) -> bool {
    // SAFETY: the calls read a local structure and drop the contents of the caller's page.
    unsafe {
        let process = libc::syscall(libc::SYS_pidfd_open, c_long::from(libc::getpid()), 0 as c_long);
        let Ok(process) = c_int::try_from(process) else { return false };
        if process < 0 {
            return false;
        }
        let part = libc::iovec { iov_base: page.start as *mut _, iov_len: page.len };
        let advised = libc::syscall(
            libc::SYS_process_madvise,
            c_long::from(process),
            &raw const part,
            1 as c_long,
            c_long::from(libc::MADV_DONTNEED),
            0 as c_long,
        );
        libc::close(process);
        usize::try_from(advised) == Ok(page.len)
    }
}

/// The first version of the kernel's `struct perf_event_attr`, which all newer kernels accept.
#[repr(C)]
#[derive(Default)]
struct CounterAttributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    breakpoint_address: u64,
}

const _: () = assert!(size_of::<CounterAttributes>() == 64);

/// Whether a cycle counter of this process can be opened. It never runs.
fn opens_counters() -> bool {
    const PERF_TYPE_HARDWARE: u32 = 0;
    const PERF_COUNT_HW_CPU_CYCLES: u64 = 0;
    const DISABLED: u64 = 1 << 0;
    // Counting the kernel needs more privilege.
    const EXCLUDE_KERNEL_AND_HYPERVISOR: u64 = 1 << 5 | 1 << 6;
    const PERF_FLAG_FD_CLOEXEC: c_long = 1 << 3;
    const THIS_PROCESS: c_long = 0;
    const ANY_CPU: c_long = -1;
    const NO_GROUP: c_long = -1;
    let attributes = CounterAttributes {
        kind: PERF_TYPE_HARDWARE,
        size: size_of::<CounterAttributes>() as u32,
        config: PERF_COUNT_HW_CPU_CYCLES,
        flags: DISABLED | EXCLUDE_KERNEL_AND_HYPERVISOR,
        ..CounterAttributes::default()
    };
    // SAFETY: the call reads the structure, whose size it holds.
    let counter = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            THIS_PROCESS,
            ANY_CPU,
            NO_GROUP,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    let Ok(counter) = c_uint::try_from(counter) else { return false };
    // SAFETY: the descriptor is the one just opened.
    unsafe { libc::close(counter as c_int) };
    true
}

//! What a program asks of its `malloc`: numbers, and memory back.
//!
//! The C library's own functions would speak of a heap that nobody uses.

use crate::c_library;
use core::ffi::{c_int, c_void};
use hugeheap::complain;
use hugeheap::object::thread_heap_at_hand;
use hugeheap::runtime::runtime;
use hugeheap::telemetry::Snapshot;

/// `struct mallinfo2` of the C library: bytes, and numbers of blocks.
#[repr(C)]
pub(crate) struct Information {
    /// Bytes of the arenas that have memory, without large blocks.
    arena: usize,
    /// Free blocks: what hugeheap does not count. 0, as the next one.
    ordblks: usize,
    smblks: usize,
    /// Large blocks: not counted; 0.
    hblks: usize,
    /// Bytes of large blocks.
    hblkhd: usize,
    usmblks: usize,
    fsmblks: usize,
    /// Bytes of heap pages in use.
    uordblks: usize,
    /// Bytes that are kept for reuse.
    fordblks: usize,
    /// Bytes that could be given back now: the same.
    keepcost: usize,
}

const _: () = assert!(size_of::<Information>() == 10 * size_of::<usize>());

/// `struct mallinfo`: the same in numbers that are too short for it.
#[repr(C)]
pub(crate) struct ShortInformation([c_int; 10]);

fn information(snapshot: &Snapshot) -> Information {
    let (live, large, retained) =
        (snapshot.live as usize, snapshot.large as usize, snapshot.retained as usize);
    Information {
        arena: (live + retained).saturating_sub(large),
        ordblks: 0,
        smblks: 0,
        hblks: 0,
        hblkhd: large,
        usmblks: 0,
        fsmblks: 0,
        uordblks: live,
        fordblks: retained,
        keepcost: retained,
    }
}

#[unsafe(no_mangle)]
extern "C" fn mallinfo2() -> Information {
    information(&runtime().snapshot(false))
}

/// What does not fit is the largest number there is; with the C library it is what is left after wrapping around.
#[unsafe(no_mangle)]
extern "C" fn mallinfo() -> ShortInformation {
    let all = mallinfo2();
    let short = |number: usize| c_int::try_from(number).unwrap_or(c_int::MAX);
    ShortInformation([
        short(all.arena),
        short(all.ordblks),
        short(all.smblks),
        short(all.hblks),
        short(all.hblkhd),
        short(all.usmblks),
        short(all.fsmblks),
        short(all.uordblks),
        short(all.fordblks),
        short(all.keepcost),
    ])
}

/// Gives back what is kept for reuse. Answers 1 if there was any. What is to be left over, `_pad`, has no
/// meaning for arenas.
#[unsafe(no_mangle)]
extern "C" fn malloc_trim(_pad: usize) -> c_int {
    // SAFETY: used for this call only.
    let trimmed = unsafe { thread_heap_at_hand() }.map_or(0, |mut heap| heap.trim());
    c_int::from(runtime().give_back() > 0 || trimmed > 0)
}

/// Tells the C library, which has some blocks as well, and answers what it does: 1 but for a value that it does
/// not take. No parameter means anything to hugeheap, and 0 said so before; but programs take that for a
/// mistake of theirs, and with the allocators that are preloaded most they get 1: jemalloc, mimalloc and
/// snmalloc leave the function to the C library, and that of gperftools always answers 1.
#[unsafe(no_mangle)]
extern "C" fn mallopt(parameter: c_int, value: c_int) -> c_int {
    c_library::set(parameter, value)
}

/// One line on standard error.
#[unsafe(no_mangle)]
extern "C" fn malloc_stats() {
    let snapshot = runtime().snapshot(false);
    complain::line(format_args!(
        "malloc: {} bytes in use, {} of them in large blocks; {} kept for reuse; {} arenas of 2 MiB, {} at the most",
        snapshot.live, snapshot.large, snapshot.retained, snapshot.arenas, snapshot.arenas_peak
    ));
}

/// XML for a stream, with as much of the C library's vocabulary as applies. -1 with `EINVAL` for any option.
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc_info(options: c_int, stream: *mut c_void) -> c_int {
    if options != 0 {
        // SAFETY: the location of errno is valid for the life of the calling thread.
        unsafe { *libc::__errno_location() = libc::EINVAL };
        return -1;
    }
    let all = mallinfo2();
    // SAFETY: four numbers as the format has them, and a stream by the contract of malloc_info.
    let written = unsafe {
        libc::fprintf(
            stream.cast(),
            c"<malloc version=\"1\">\n<total type=\"rest\" count=\"0\" size=\"%zu\"/>\n<total type=\"mmap\" count=\"0\" size=\"%zu\"/>\n\
              <system type=\"current\" size=\"%zu\"/>\n<aspace type=\"total\" size=\"%zu\"/>\n</malloc>\n"
                .as_ptr(),
            all.fordblks,
            all.hblkhd,
            all.uordblks + all.fordblks,
            all.uordblks + all.fordblks,
        )
    };
    written.min(0)
}

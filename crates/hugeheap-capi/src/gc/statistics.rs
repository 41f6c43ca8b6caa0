//! The numbers of a heap, as a struct and as JSON; its verification.

use super::{Handle, inside, must_be_outside};
use crate::json::Text;
use crate::status::Status;
use core::ffi::{c_char, c_int};
use core::fmt::{self, Write};
use hugeheap::gc::{BUCKETS, Phase, ProcessHeap};

/// Name and version of the form.
const SCHEMA: &str = "hugeheap.gc-stats/1";

/// `hh_gc_stats_t`.
#[repr(C)]
struct Numbers {
    schema: u32,
    size: u32,
    phase: u64,
    nursery: u64,
    old: u64,
    held: u64,
    minor: u64,
    steps: u64,
    major: u64,
    survivors: u64,
    survived_bytes: u64,
    nursery_bytes: u64,
    old_bytes: u64,
    not_moved: u64,
    cleared: u64,
    finalized: u64,
    evacuations: u64,
    moved: u64,
    moved_bytes: u64,
    freed_pages: u64,
    pauses: u64,
    pause_total: u64,
    pause_longest: u64,
    pause_histogram: [u64; BUCKETS],
    rotated: u64,
}

const _: () = assert!(BUCKETS == 36 && size_of::<Numbers>() == 8 * (1 + 21 + BUCKETS + 1));

/// `enum hh_gc_phase`.
pub(super) fn phase_number(phase: Phase) -> u64 {
    match phase {
        Phase::Idle => 0,
        Phase::Marking => 1,
        Phase::Clearing => 2,
        Phase::Sweeping => 3,
    }
}

impl Numbers {
    fn of(heap: &ProcessHeap) -> Self {
        let statistics = heap.statistics();
        Self {
            schema: 1,
            size: size_of::<Self>() as u32,
            phase: phase_number(heap.phase()),
            nursery: heap.nursery_bytes() as u64,
            old: heap.old_bytes() as u64,
            held: heap.held_bytes() as u64,
            minor: statistics.minor,
            steps: statistics.steps,
            major: statistics.major,
            survivors: statistics.survivors,
            survived_bytes: statistics.survived_bytes,
            nursery_bytes: statistics.nursery_bytes,
            old_bytes: statistics.old_bytes,
            not_moved: statistics.not_moved,
            cleared: statistics.cleared,
            finalized: statistics.finalized,
            evacuations: statistics.evacuations,
            moved: statistics.moved,
            moved_bytes: statistics.moved_bytes,
            freed_pages: statistics.freed_pages,
            pauses: statistics.pauses.count,
            pause_total: statistics.pauses.total,
            pause_longest: statistics.pauses.longest,
            pause_histogram: statistics.pauses.histogram,
            rotated: statistics.rotated,
        }
    }

    fn write(&self, to: &mut Text) -> fmt::Result {
        let phase = ["idle", "marking", "clearing", "sweeping"][self.phase as usize];
        write!(to, "{{\"schema\": \"{SCHEMA}\", \"phase\": \"{phase}\"")?;
        for (name, value) in [
            ("nursery", self.nursery),
            ("old", self.old),
            ("held", self.held),
            ("minor", self.minor),
            ("steps", self.steps),
            ("major", self.major),
            ("survivors", self.survivors),
            ("survived_bytes", self.survived_bytes),
            ("nursery_bytes", self.nursery_bytes),
            ("old_bytes", self.old_bytes),
            ("not_moved", self.not_moved),
            ("cleared", self.cleared),
            ("finalized", self.finalized),
            ("evacuations", self.evacuations),
            ("moved", self.moved),
            ("moved_bytes", self.moved_bytes),
            ("freed_pages", self.freed_pages),
            ("pauses", self.pauses),
            ("pause_total", self.pause_total),
            ("pause_longest", self.pause_longest),
        ] {
            write!(to, ", \"{name}\": {value}")?;
        }
        to.write_str(", \"pause_histogram\": [")?;
        for (index, count) in self.pause_histogram.into_iter().enumerate() {
            write!(to, "{}{count}", if index == 0 { "" } else { ", " })?;
        }
        write!(to, "], \"rotated\": {}}}", self.rotated)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_gc_stats(handle: *const Handle, stats: *mut u8) -> c_int {
    if stats.is_null() {
        return Status::BadArgument as c_int;
    }
    let at = core::mem::offset_of!(Numbers, size);
    // SAFETY: by the header's contract the caller has set the size, which is in every version at the same place.
    let given = unsafe { stats.add(at).cast::<u32>().read() } as usize;
    if given < at + size_of::<u32>() || given % size_of::<u64>() != 0 {
        return Status::BadSize as c_int;
    }
    // SAFETY: by the header's contract.
    let mut numbers = Numbers::of(unsafe { &(*handle).heap });
    let bytes = given.min(size_of::<Numbers>());
    numbers.size = bytes as u32;
    // SAFETY: the caller has `given` bytes; any prefix of the struct is plain numbers.
    unsafe { core::ptr::copy_nonoverlapping((&raw const numbers).cast::<u8>(), stats, bytes) };
    Status::Ok as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_gc_stats_json(handle: *const Handle, buffer: *mut c_char, size: usize) -> usize {
    // SAFETY: by the header's contract, here and below.
    let numbers = Numbers::of(unsafe { &(*handle).heap });
    // SAFETY: as above.
    let mut text = unsafe { Text::new(buffer.cast(), size) };
    // Writing into this text cannot fail.
    let _ = numbers.write(&mut text);
    text.end()
}

/// A status, and the text of a mistake in a buffer.
///
/// # Safety
/// `buffer` has `size` bytes or is null.
pub(super) unsafe fn tell(
    found: Result<(), impl fmt::Display>,
    status: Status,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: by the contract.
    let mut text = unsafe { Text::new(buffer.cast(), size) };
    let status = match found {
        Ok(()) => Status::Ok,
        Err(mistake) => {
            // Writing into this text cannot fail.
            let _ = write!(text, "{mistake}");
            status
        }
    };
    text.end();
    status as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_gc_verify(handle: *mut Handle, buffer: *mut c_char, size: usize) -> c_int {
    // SAFETY: as above.
    unsafe {
        must_be_outside(handle, "hh_gc_verify");
        tell(inside(handle, |heap| heap.verify(&mut [])), Status::Mistake, buffer, size)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_gc_verify_barriers(handle: *const Handle, buffer: *mut c_char, size: usize) -> c_int {
    // It calls trace functions, too. A handle is the library's own memory: the program has no other that it
    // could not write to.
    let handle = handle.cast_mut();
    // SAFETY: as above.
    unsafe {
        must_be_outside(handle, "hh_gc_verify_barriers");
        tell(inside(handle, |heap| heap.verify_barriers()), Status::Mistake, buffer, size)
    }
}

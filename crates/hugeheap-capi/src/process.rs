//! What concerns the whole process: settings, giving back, numbers.

use crate::json;
use crate::status::Status;
use core::ffi::{CStr, c_char, c_int, c_void};
use hugeheap::arena::Policy;
use hugeheap::object::thread_heap;
use hugeheap::runtime::runtime;
use hugeheap::telemetry::Snapshot;

/// `hh_options`. Zero leaves a setting as it is: a member that is added later is zero in programs that do not know it.
#[repr(C)]
pub(crate) struct Options {
    size: usize,
    policy: *const c_char,
    decay: u64,
    limit: u64,
    merge: u64,
}

/// Size of `hh_options` in their first version, which ended with the limit.
const FIRST_OPTIONS: usize = core::mem::offset_of!(Options, merge);

/// `HH_MERGE` and `HH_NO_MERGE`.
const MERGE: u64 = 1;
const NO_MERGE: u64 = 2;

/// `HH_NO_LIMIT`.
const NO_LIMIT: u64 = u64::MAX;

/// What the environment may ask for, too: 1 ms to a day, in nanoseconds.
const DECAY: core::ops::RangeInclusive<u64> = 1_000_000..=86_400_000_000_000;

/// Where `hh_stats_t` has its size.
const SIZE_OFFSET: usize = core::mem::offset_of!(Snapshot, size);

/// Sees to it that the runtime has started, with the settings of the environment: what is configured then
/// stays. Without memory for the thread's heap there is nothing to configure either.
fn start() {
    // SAFETY: not used.
    let _ = unsafe { thread_heap() };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_configure(options: *const Options) -> c_int {
    if options.is_null() {
        return Status::BadArgument as c_int;
    }
    // SAFETY: a struct of the caller, which begins with its size; in older programs it is shorter than here.
    let size = unsafe { options.cast::<usize>().read() };
    if size != FIRST_OPTIONS && size != size_of::<Options>() {
        return Status::BadSize as c_int;
    }
    let mut known = Options { size, policy: core::ptr::null(), decay: 0, limit: 0, merge: 0 };
    // SAFETY: the caller has `size` bytes, which are no more than there are here; any prefix are numbers and a pointer.
    unsafe { core::ptr::copy_nonoverlapping(options.cast::<u8>(), (&raw mut known).cast(), size) };
    // SAFETY: by the header's contract the policy is NULL or a string.
    unsafe { configure(&known) as c_int }
}

/// # Safety
/// The policy is null or a string.
unsafe fn configure(options: &Options) -> Status {
    let mut policy = None;
    if !options.policy.is_null() {
        // SAFETY: by the contract above.
        let name = unsafe { CStr::from_ptr(options.policy) };
        policy = name.to_str().ok().and_then(Policy::parse);
        if policy.is_none() {
            return Status::BadPolicy;
        }
    }
    if options.decay != 0 && !DECAY.contains(&options.decay) {
        return Status::BadDecay;
    }
    if ![0, MERGE, NO_MERGE].contains(&options.merge) {
        return Status::BadMerge;
    }
    start();
    runtime().configure(|settings| {
        settings.policy = policy.unwrap_or(settings.policy);
        settings.decay = if options.decay == 0 { settings.decay } else { options.decay };
        settings.limit = match options.limit {
            0 => settings.limit,
            NO_LIMIT => None,
            bytes => Some(bytes),
        };
        settings.merge = if options.merge == 0 { settings.merge } else { options.merge == MERGE };
    });
    Status::Ok
}

#[unsafe(no_mangle)]
extern "C" fn hh_give_back() -> u64 {
    // SAFETY: used for one call.
    if let Some(mut heap) = unsafe { thread_heap() } {
        heap.trim();
    }
    runtime().give_back()
}

#[unsafe(no_mangle)]
extern "C" fn hh_limit_address_space(bytes: u64) {
    runtime().limit_address_space(bytes);
}

#[unsafe(no_mangle)]
extern "C" fn hh_measure() {
    start();
    runtime().snapshot(true);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_stats(stats: *mut c_void) -> c_int {
    if stats.is_null() {
        return Status::BadArgument as c_int;
    }
    // SAFETY: by the header's contract the caller has set the size, which is in every version at the same place.
    let given = unsafe { stats.byte_add(SIZE_OFFSET).cast::<u32>().read() } as usize;
    if given < SIZE_OFFSET + size_of::<u32>() || given % size_of::<u64>() != 0 {
        return Status::BadSize as c_int;
    }
    start();
    let mut snapshot = runtime().snapshot(false);
    let bytes = given.min(size_of::<Snapshot>());
    snapshot.size = bytes as u32;
    // SAFETY: the caller has `given` bytes; any prefix of a snapshot is plain numbers.
    unsafe { core::ptr::copy_nonoverlapping((&raw const snapshot).cast::<u8>(), stats.cast(), bytes) };
    Status::Ok as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_stats_json(buffer: *mut c_char, size: usize) -> usize {
    start();
    // SAFETY: by the header's contract the buffer has `size` bytes, which nobody else uses during the call.
    unsafe { json::write(&runtime().snapshot(false), buffer.cast(), size) }
}

//! Memory that is taken at once: only where there is room for it.
//!
//! ```text
//!   a large object, a nursery ─▶ is that little of what was left lately? ──yes──▶ taken
//!                                   │ no
//!                                   ├─ what is left now, and what is free and resident, is enough ──▶ taken
//!                                   └─ what is kept for reuse is given back: is it enough then? ──yes──▶ taken; else refused
//! ```
//!
//! Where a control group has no more room the kernel kills, and no call fails before: arenas are mapped one by
//! one, and memory is charged when it is touched. So a program that handles [`Exhausted`](super::Exhausted)
//! never came to do so. For what is taken a heap page at a time this holds still: nobody could ask each time.
//! But what is larger than all that is left is refused here.

use crate::arena::{ARENA_BYTES, Policy};
use crate::large::LargeBlock;
use crate::object::{Source, Space};
use crate::telemetry::Fallback;
use hugeheap_os::Facts;

/// Part of what is left that is taken without asking again, as a divisor: so much may be wrong by then, because
/// others in the control group take memory, too. Asking opens four files and three more for each level of
/// control groups, and with a room of a gigabyte is done for every 32nd arena. (The arenas, which choose huge
/// pages or not by it, ask for each 64th part of a limit.)
const ASK_PART: u64 = 16;

/// What is known of how much memory is left. Pure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Room {
    /// Bytes that may be taken without asking again.
    known: u64,
}

impl Room {
    /// Whether so many bytes may be taken without asking; if so, they are.
    fn covers(&mut self, bytes: u64) -> bool {
        let covers = bytes <= self.known;
        self.known -= if covers { bytes } else { 0 };
        covers
    }

    /// So many bytes are left.
    fn learn(&mut self, left: u64) {
        self.known = left / ASK_PART;
    }
}

/// Bytes that may still be charged to the process. Of what the system does not tell there is enough: the call
/// that takes it may fail.
fn left_in_group<F: Facts>(os: &F) -> u64 {
    os.memory_room().ok().flatten().unwrap_or(u64::MAX)
}

/// Bytes that there are for an object: the kernel swaps before it kills. (Less than that where the group may
/// not use the host's swap.)
///
/// The memory of the host bounds a single block, too. As one mapping the kernel would refuse it; of arenas it
/// sees one at a time.
pub(super) fn left_for_object<F: Facts>(os: &F) -> u64 {
    let swap = os.free_swap().unwrap_or(0);
    left_in_group(os).min(os.total_memory().unwrap_or(u64::MAX)).saturating_add(swap)
}

/// Bytes that there are for a nursery: all of it is written again and again, so what would have to be swapped
/// out for it is none.
pub(super) fn left_for_nursery<F: Facts>(os: &F) -> u64 {
    left_in_group(os).min(os.available_memory().unwrap_or(u64::MAX))
}

/// Bytes of a pool of huge pages that arenas are made from: they are charged to nobody's memory.
fn left_in_pool<S: Source>(source: &'static S) -> u64 {
    if source.with(|arenas| arenas.settings().policy) != Policy::Hugetlb {
        return 0;
    }
    let pool = source.os().hugetlb_pool(ARENA_BYTES).ok().flatten();
    pool.map_or(0, |pool| pool.available().saturating_mul(ARENA_BYTES as u64))
}

/// Takes a large block, if there is room for it.
///
/// # Errors
/// How many bytes were left: fewer than were asked for, or the system refused.
pub(super) fn take<S: Source>(
    space: &'static Space<S>,
    room: &mut Room,
    (bytes, growing): (usize, bool),
    left: fn(&S::Os) -> u64,
) -> Result<LargeBlock, u64> {
    let source = space.source();
    let block = |left| source.with(|arenas| arenas.allocate_large_within(bytes, growing, left));
    if room.covers(bytes as u64) {
        return block(u64::MAX).ok_or(u64::MAX);
    }
    let left = || left(source.os()).saturating_add(left_in_pool(source));
    let mut now = left();
    let mut taken = block(now);
    if taken.is_none() && now < bytes as u64 {
        source.give_back_all();
        now = left();
        taken = block(now);
        if taken.is_none() && now < bytes as u64 {
            source.with(|arenas| arenas.count(Fallback::OutOfMemory));
        }
    }
    room.learn(if taken.is_some() { now.saturating_sub(bytes as u64) } else { 0 });
    taken.ok_or(now)
}

/// Makes the large block of a nursery longer where it is, if there is room for that: behind it, and in what is
/// left. `limited`: nothing but what is resident is taken. Says whether it is. Nothing is given back for it:
/// another block may do.
pub(super) fn extend<S: Source>(
    space: &'static Space<S>,
    address: usize,
    bytes: usize,
    limited: bool,
) -> bool {
    let source = space.source();
    // Before files are read: what is in the way stays there for many collections.
    if !source.with(|arenas| arenas.has_room_behind(address, bytes)) {
        return false;
    }
    let left = if limited { 0 } else { left_for_nursery(source.os()).saturating_add(left_in_pool(source)) };
    let extended = source.with(|arenas| arenas.extend_large_within(address, bytes, left));
    debug_assert!(extended.is_ok(), "a nursery is a large block");
    extended == Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::{Arenas, Settings};
    use crate::lock::Lock;
    use hugeheap_os::simulated::{Call, Config, Kernel};

    struct World {
        arenas: Lock<Arenas<Kernel>>,
        kernel: Kernel,
    }

    impl Source for World {
        type Os = Kernel;
        fn with<R>(&'static self, work: impl FnOnce(&mut Arenas<Kernel>) -> R) -> R {
            work(&mut self.arenas.lock())
        }
        fn os(&self) -> &Kernel {
            &self.kernel
        }
    }

    #[test]
    fn little_of_what_was_left_is_taken_without_asking_again() {
        let mut room = Room::default();
        assert!(!room.covers(1));
        room.learn(1600);
        assert!(room.covers(60) && room.covers(40));
        assert!(!room.covers(1), "a sixteenth is used up");
        room.learn(u64::MAX);
        assert!(!room.covers(u64::MAX) && room.covers(1 << 40));
    }

    #[test]
    fn what_is_left_is_the_least_of_group_and_host() {
        let kernel =
            Kernel::new(Config { total_memory: 1 << 30, other_charge: 300 << 20, ..Config::default() });
        assert_eq!((left_for_object(&kernel), left_for_nursery(&kernel)), (1 << 30, 724 << 20));
        kernel.set_cgroup_max(Some(500 << 20));
        assert_eq!((left_for_object(&kernel), left_for_nursery(&kernel)), (500 << 20, 500 << 20));
        for call in [Call::MemoryLimits, Call::TotalMemory, Call::AvailableMemory, Call::FreeSwap] {
            kernel.fail_every(call, 1, libc::EACCES);
        }
        assert_eq!((left_for_object(&kernel), left_for_nursery(&kernel)), (u64::MAX, u64::MAX));
    }

    /// The sum wrapped, and so did the bytes: a pool without bound was one without a page.
    #[test]
    fn a_pool_that_may_grow_without_bound_has_room_for_everything() {
        for (pages, overcommit) in [(5, u64::MAX), (5, u64::MAX - 4), (0, u64::MAX / ARENA_BYTES as u64 + 1)]
        {
            let kernel = Kernel::new(Config::default().with_pool(pages));
            kernel.set_pool_overcommit(ARENA_BYTES, overcommit);
            let settings = Settings { policy: Policy::Hugetlb, ..Settings::DEFAULT };
            let arenas = Lock::new(Arenas::new(kernel.clone(), settings));
            let source: &'static World = Box::leak(Box::new(World { arenas, kernel }));
            assert_eq!(left_in_pool(source), u64::MAX);
        }
    }

    #[test]
    fn what_the_host_can_swap_out_is_room_for_an_object_and_not_for_a_nursery() {
        let kernel = Kernel::new(Config { total_memory: 1 << 30, free_swap: 200 << 20, ..Config::default() });
        kernel.set_cgroup_max(Some(500 << 20));
        assert_eq!((left_for_object(&kernel), left_for_nursery(&kernel)), (700 << 20, 500 << 20));
    }
}

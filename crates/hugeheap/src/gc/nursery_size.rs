//! How large the nursery is: as a cache has room for, and as what survives makes worth while within a pause. Pure.
//!
//! ```text
//!   least ──── many survived ───▶ twice as large ──▶ … ──▶ most, or what may survive within a pause
//!     ▲                                                     │
//!     └──────────── few survived, [`PATIENCE`] times ───────┘
//! ```
//!
//! What does not survive is cheapest where it stays in a cache. What does is copied, and half as much survives
//! of a nursery twice as large, as what is alive at a time is the same. So a small nursery is best for a
//! program that drops everything at once, and one of many times the cache for a program that builds something
//! of megabytes. But all of a nursery may survive, and copying it is a pause: it grows to what can be copied
//! within one, as measured, and a step that is set longer lets it grow further.

use crate::arena::HEAP_PAGE_BYTES;
use hugeheap_os::{Cache, Facts};

/// Least bytes of a nursery that is chosen here. A minor collection has costs that do not depend on what
/// survives, and what survives is a smaller share of what was allocated the more time it had to die.
const LEAST: usize = 1 << 20;

/// Most bytes of a nursery that is chosen here, before anything survived: all of it may, and copying 4 MiB of
/// objects of 64 bytes takes 2 ms. Who knows better sets it.
const MOST: usize = 4 << 20;

/// Least bytes that can be set: eight times the largest object that is allocated in a nursery.
pub const LEAST_NURSERY: usize = 64 << 10;

/// Part of a memory limit that a nursery has at most, as a divisor: it is memory without a live object most of
/// the time.
const LIMIT_PART: u64 = 16;

/// Bytes of a nursery on a host with these caches and this memory limit. Pure.
///
/// Half of the largest share that a CPU has of a cache from the second level on: the nursery is written and
/// read from its beginning to its end again and again, so it should stay in a cache that other CPUs do not take
/// from it, and leave room there for the old objects that the program uses.
pub fn nursery_bytes(caches: &[Cache], limit: Option<u64>) -> usize {
    let data = caches.iter().filter(|cache| cache.data && cache.level >= 2);
    let share = data.map(|cache| cache.size / cache.shared_by.max(1) as usize).max().unwrap_or(2 * LEAST);
    let bytes = (share / 2).clamp(LEAST, MOST);
    let bytes = bytes.min(allowed(limit)).max(LEAST_NURSERY);
    bytes - bytes % HEAP_PAGE_BYTES
}

/// What a memory limit allows a nursery.
fn allowed(limit: Option<u64>) -> usize {
    limit.map_or(usize::MAX, |limit| usize::try_from(limit / LIMIT_PART).unwrap_or(usize::MAX))
}

/// Most bytes that a nursery grows to, where pauses may be long; of steps of 2 ms it was 8 and 16 MiB, by what
/// survives. There, too, it pays: what grows takes 0.89 of the time of 4 MiB in `binary-trees` and 0.81 in
/// `gcbench`, with pauses as long as before (`hugeheap bench worker gc gcbench 16 -`, beside the same with
/// `--nursery 4194304`; in turn, medians of eleven). Binary trees of depth 18, whose largest has 16 MiB, took 0.80
/// s with 4 MiB, 0.72 with 16, 0.63 with 32, 0.55 with 64 and 0.53 with 128, with pauses of any length
/// (`hugeheap bench worker gc binary-trees 18 - --step 1000 --nursery 67108864`; the sizes in turn, medians of
/// seven, between whose quartiles are 0.06 to 0.2 s).
pub const MOST_NURSERY: usize = 64 << 20;

/// Part of the least size as a divisor: from so many survivors on the nursery grows. With less there is hardly
/// anything to copy. Not critical: trees and an LRU cache took the same time with 2 and 32 (medians of five in
/// turn, within their spread of a tenth).
const MANY_PART: usize = 8;

/// Quarters of a nursery from which on so much survives that it does not grow: nearly everything will of a
/// larger one as well, which only leaves the cache. A program that fills a table took a seventh longer with
/// what it had grown to (`hugeheap bench worker gc evacuation 1073741824 -`), and pauses of trees were longer
/// by half.
const NEARLY_ALL: usize = 3;

/// Minor collections with fewer than half of that after which it is as small as it was. Growing again takes a
/// few of them, so it may be early; not after one, because a program that builds one thing after the other has
/// such between two. Not critical either: the same with 8 and 512.
const PATIENCE: u32 = 64;

/// The size of a heap's nursery.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NurserySize {
    least: usize,
    most: usize,
    /// Minor collections in a row of which few objects survived.
    few: u32,
}

impl NurserySize {
    /// A size that was set: it stays.
    pub(crate) fn set(bytes: usize) -> Self {
        let bytes = bytes - bytes % HEAP_PAGE_BYTES;
        Self { least: bytes, most: bytes, few: 0 }
    }

    /// The size for a host, as far as it answers.
    pub(crate) fn for_host<F: Facts>(os: &F) -> Self {
        let limits = os.memory_limits().ok();
        let limit = limits.and_then(|limits| [limits.max, limits.high].into_iter().flatten().min());
        Self::chosen(nursery_bytes(&os.caches().unwrap_or_default(), limit), limit)
    }

    fn chosen(least: usize, limit: Option<u64>) -> Self {
        Self { most: MOST_NURSERY.min(allowed(limit)).max(least), ..Self::set(least) }
    }

    /// Bytes in the beginning, and when few survive.
    pub(crate) fn least(self) -> usize {
        self.least
    }

    /// The size to go on with instead of `now`, if it is another one: after a minor collection of all of the
    /// nursery or a part, of which `survived` bytes survived, where so many can within a pause.
    pub(crate) fn next(&mut self, now: usize, survived: usize, all: bool, can: usize) -> Option<usize> {
        let many = self.least / MANY_PART;
        self.few = if survived < many / 2 { self.few + 1 } else { 0 };
        if self.few >= PATIENCE {
            self.few = 0;
            return (now > self.least).then_some(self.least);
        }
        let fewer = survived <= now / 4 * NEARLY_ALL;
        let grows = survived >= many && fewer && all && now <= self.most.min(can) / 2;
        grows.then_some(2 * now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(level: u8, size: usize, shared_by: u32) -> Cache {
        Cache { level, data: true, size, shared_by }
    }

    #[test]
    fn the_nursery_has_half_of_the_largest_share_of_a_cache() {
        let desktop = [cache(1, 32 << 10, 2), cache(2, 1 << 20, 2), cache(3, 16 << 20, 16)];
        assert_eq!(
            nursery_bytes(&desktop, None),
            1 << 20,
            "half of a sixteenth of 16 MiB is below the least"
        );
        let few = [cache(2, 1 << 20, 1), cache(3, 32 << 20, 2)];
        assert_eq!(nursery_bytes(&few, None), MOST, "half of a half of 32 MiB is above the most");
        let private = [cache(2, 4 << 20, 1), cache(3, 32 << 20, 64)];
        assert_eq!(nursery_bytes(&private, None), 2 << 20);
        assert_eq!(nursery_bytes(&[cache(3, 1 << 30, 1)], None), MOST);
        assert_eq!(nursery_bytes(&[], None), LEAST, "a host that does not tell");
        let code = [Cache { data: false, ..cache(2, 8 << 20, 1) }];
        assert_eq!(nursery_bytes(&code, None), LEAST);
    }

    #[test]
    fn a_memory_limit_bounds_the_nursery() {
        let few = [cache(3, 32 << 20, 2)];
        assert_eq!(nursery_bytes(&few, Some(32 << 20)), 2 << 20);
        assert_eq!(nursery_bytes(&few, Some(0)), LEAST_NURSERY);
        assert_eq!(nursery_bytes(&few, Some(u64::MAX)), MOST);
    }

    const ANY: usize = usize::MAX;

    #[test]
    fn a_nursery_that_was_set_stays_as_it_is() {
        let mut size = NurserySize::set((1 << 20) + 5);
        assert_eq!(size.least(), 1 << 20);
        for survived in [1 << 20, 0, 1 << 30] {
            for _ in 0..2 * PATIENCE {
                assert_eq!(size.next(1 << 20, survived, true, ANY), None);
            }
        }
    }

    /// Sizes that follow each other from the least on when so much survives each time.
    fn sizes(mut size: NurserySize, survived: usize, can: usize, times: u32) -> Vec<usize> {
        let mut now = size.least();
        (0..times).filter_map(|_| size.next(now, survived, true, can).inspect(|&bytes| now = bytes)).collect()
    }

    #[test]
    fn it_grows_as_long_as_many_survive_and_can_within_a_pause() {
        let size = NurserySize::chosen(4 << 20, None);
        assert_eq!(sizes(size, 512 << 10, ANY, 10), [8 << 20, 16 << 20, 32 << 20, 64 << 20]);
        assert_eq!(sizes(size, (512 << 10) - 1, ANY, 1000), []);
        assert_eq!(sizes(size, 3 << 20, ANY, 10), [8 << 20, 16 << 20, 32 << 20, 64 << 20]);
        assert_eq!(sizes(size, (3 << 20) + 1, ANY, 1000), [], "nearly all survives, whatever the size");
        assert_eq!(
            sizes(size, 1 << 20, 20 << 20, 10),
            [8 << 20, 16 << 20],
            "more would take longer than a pause may"
        );
        assert_eq!(sizes(size, 1 << 20, (8 << 20) - 1, 10), []);
        assert_eq!(
            sizes(NurserySize::chosen(4 << 20, Some(320 << 20)), 1 << 20, ANY, 10),
            [8 << 20, 16 << 20]
        );
        assert_eq!(sizes(NurserySize::chosen(4 << 20, Some(0)), 1 << 20, ANY, 10), []);
        let mut part = size;
        assert_eq!(part.next(4 << 20, 1 << 20, false, ANY), None, "all of what there is is not used");
    }

    #[test]
    fn it_shrinks_when_few_survive_for_a_while() {
        let mut size = NurserySize::chosen(4 << 20, None);
        let mut next = |now: usize, survived| size.next(now, survived, true, ANY);
        for _ in 0..3 {
            (1..PATIENCE).for_each(|_| assert_eq!(next(64 << 20, 0), None));
            // One with more begins the count anew.
            assert_eq!(next(64 << 20, 256 << 10), None);
        }
        (1..PATIENCE).for_each(|_| assert_eq!(next(64 << 20, 0), None));
        assert_eq!(next(64 << 20, 0), Some(4 << 20));
        (0..10 * PATIENCE).for_each(|_| assert_eq!(next(4 << 20, 0), None));
    }
}

//! When a major collection begins and how fast it goes on. Pure: sizes in, sizes out.
//!
//! ```text
//!   live ───────────────▶ threshold ───────▶ at most 5/4 of it
//!        the program runs           marking, sweeping: SPEED bytes for each byte that is added
//! ```
//!
//! Marking looks at no more than what there was when it began: what is added meanwhile is looked into by the
//! minor collection that added it. So it ends before the old generation has grown by `1 / SPEED`, and so does
//! sweeping; a nursery may be added before and after each.
//!
//! ```text
//!   pause   ├─ minor collection: the part of the nursery ─┼─ step ─┤   two steps long at most, whatever survives
//! ```
//!
//! A minor collection cannot be interrupted, so its length is bounded by what it may have to copy: of the
//! nursery only a *part* is used, of which all could survive. What that takes is measured, in nanoseconds of a
//! processor for a KiB: it differs by a factor of ten with the size of objects, with what they refer to, and
//! with how long the kernel needs for a huge page.

use core::time::Duration;

/// Growth in percent between the live bytes after one major collection and the beginning of the next, unless
/// set: RPython's. More memory for less work; a program that knows better sets it.
pub(crate) const GROWTH: u32 = 182;

/// Bytes that are marked, or whose heap pages are swept, for each byte added to the old generation. With 8 a
/// marking that begins at the threshold ends below 9/8 of it, and sweeping below 5/4.
const SPEED: usize = 8;

/// How long a step takes at most, unless set: twice that is what a pause may take, which is below 5 ms.
pub(crate) const STEP: Duration = Duration::from_millis(2);

/// Bytes whose heap pages are swept between two looks: only their metadata is touched.
pub(crate) const SWEPT: usize = 64 << 10;

/// Longest step: an hour, which nobody waits for. Steps are doubled, taken a thousand times and counted in
/// nanoseconds; of 292 years and more that wrapped, and a step that was to be endless was one of nothing.
const LONGEST_STEP: Duration = Duration::from_secs(3600);

/// Bytes that are marked or cleared between two looks at the clock: 128 objects of 64 bytes, which take 3 µs,
/// or 15 where they lie anywhere in a gigabyte. A look takes 25 ns.
///
/// It was 64 KiB, which took 12 to 15 ms on a virtual machine, again and again at the beginning of a marking:
/// each first access to an OS page took 5 to 15 µs there, without a page fault that the guest sees, as if the
/// host had dropped its translations. Marking is the first to touch what the program has not used for long.
pub(crate) const CHUNK: usize = 8 << 10;

/// Bytes of the nursery that are used at least, however slow collections are: sixteen of the largest objects in it.
pub(super) const LEAST_PART: usize = 128 << 10;

/// Part of the difference by which the cost falls, as a divisor: so a collection with a new huge page in it is
/// remembered for ten without.
const FORGET: u64 = 8;

/// Part of a step as a divisor: a collection that took less raises the cost by so much less than what it says.
/// An interrupt of 50 µs in one of 256 KiB made each of its survivors look as if it took twice as long, and
/// trees had 3 MiB of nursery in place of 8 for the next ten collections. What takes so little time is not what
/// a pause fails by.
const TELLS_PART: u32 = 4;

/// Bytes of the nursery that are used until the first collection: of a larger part nobody knows yet what its
/// survivors cost.
const FIRST_PART: usize = 1 << 20;

/// Bytes of survivors from which on it is worth a look at the clock how long the minor collection took.
pub(crate) const MANY: usize = 64 << 10;

/// Bytes of a step at least: with fewer, the look at the roots would be more work than the step.
const LEAST_STEP: usize = 256 << 10;

/// Nanoseconds for a place that was written and the survivor it refers to, where places lie anywhere in a
/// gigabyte. One after the other, 14,000 of them in a table of 120 MB took 430 each; their cache misses
/// together 70 to 170 in the median of a pause. But where a hypervisor finds memory for another processor at
/// the same time, each first access to an OS page waits for it: 1,000 to 1,400, again and again for 10 ms. With
/// 500, pauses of 10,000 places took 10 to 15 ms then. `wide-arrays` and `churn` with 2,000 take 1.05 and 0.97
/// of the time with 500 (medians of nine and five, by turns), three percent more of it on a processor.
const PLACE: u64 = 2000;

/// Places that are no reason for a collection, however short a step may be: what a piece of the nursery brings,
/// of objects of 64 bytes.
const LEAST_PLACES: u64 = 2000;

/// The first major collection does not begin before the old generation has this many nurseries.
const FIRST: usize = 4;

/// Nurseries by which the old generation grows at most before the next major collection because there is free
/// memory that is resident: RPython's least heap. Garbage in such memory saves a collection and costs nothing;
/// new memory costs more than a collection of a small heap. In turn, forty runs each: `binary-trees` takes 0.96
/// and `gcbench` 0.98 of what they did without it, with the same peak. As the least growth of any heap it was 0.95
/// and 1.07, for 10 MiB that `gcbench` had to touch.
const ROOMY: usize = 8;

/// The pace of a heap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pacing {
    growth: u32,
    /// Bytes of the nursery.
    pub(crate) nursery: usize,
    maximum: usize,
    threshold: usize,
    /// Bytes when the major collection that is under way began.
    began: usize,
    step: Duration,
    /// Nanoseconds that a minor collection took for a KiB of survivors; 0: not known yet.
    cost: u64,
    /// What it takes when hardly anything survives: looking at the roots.
    fixed: Duration,
    /// The last collection of which many survived: bytes, and what it took in all.
    last: (usize, Duration),
    /// Bytes that steps were too slow for.
    owed: usize,
}

impl Pacing {
    pub(crate) fn new(growth: u32, nursery: usize, maximum: usize, step: Duration) -> Self {
        let mut pacing = Self {
            growth,
            nursery,
            maximum,
            threshold: 0,
            began: 0,
            step: step.min(LONGEST_STEP),
            cost: 0,
            fixed: Duration::ZERO,
            last: (0, Duration::ZERO),
            owed: 0,
        };
        pacing.finished(0, 0);
        pacing
    }

    /// A major collection ended with `live` bytes, and `free` ones are resident.
    pub(crate) fn finished(&mut self, live: usize, free: usize) {
        let grown = (live as u128 * u128::from(self.growth) / 100).min(usize::MAX as u128) as usize;
        // What is added until marking ends has to find room there too.
        let roomy = (live.saturating_add(free) / (SPEED + 1) * SPEED).saturating_sub(live);
        let least = roomy.clamp(FIRST * self.nursery, ROOMY * self.nursery);
        let wanted = grown.max(live.saturating_add(least));
        // Near the maximum: early enough to be over before it is reached, and not all the time.
        let most = (self.maximum / 5 * 4).max(live + self.maximum.saturating_sub(live) / 2);
        self.threshold = wanted.min(most);
        self.owed = 0;
    }

    /// Whether a major collection begins.
    pub(crate) fn begins(&self, used: usize) -> bool {
        used >= self.threshold
    }

    /// A major collection begins. With more than the threshold, where large objects were allocated or an
    /// evacuation is due: what it has to look at is no reason for long steps.
    pub(crate) fn begin(&mut self, used: usize) {
        self.began = used.max(self.threshold);
    }

    /// Bytes of a step, after `added` bytes were added.
    pub(crate) fn step(&self, added: usize) -> usize {
        added.saturating_mul(SPEED).max(LEAST_STEP).saturating_add(self.owed)
    }

    /// A step left this many bytes for the next one.
    pub(crate) fn owes(&mut self, bytes: usize) {
        self.owed = bytes;
    }

    /// A minor collection of `survived` bytes took this long. Answers how much of that depends on the part of
    /// the nursery that is used.
    ///
    /// The cost follows at once when it rises in a collection that takes some time, and slowly when it falls:
    /// one collection that is longer than it should be is one too many. What does not depend on survivors, with
    /// a million roots 3 ms, is no reason for a smaller part, after which it comes again the sooner: twenty
    /// million dead objects took 13 s that way, in 4,882 collections, of which there are 156 now.
    pub(crate) fn minor(&mut self, survived: usize, took: Duration) -> Duration {
        if survived < MANY {
            self.fixed = took;
            let (before, all) = self.last;
            // What the survivors before were thought to cost was mostly this.
            if before > 0 && took >= all / 2 {
                self.cost = self.cost.min(cost_of(before, all.saturating_sub(took)));
            }
            return Duration::ZERO;
        }
        self.last = (survived, took);
        let depends = took.saturating_sub(self.fixed);
        // Roots may have become fewer since; if not, the next collection with few survivors tells.
        self.fixed -= self.fixed / FORGET as u32;
        let now = cost_of(survived, depends);
        if now > self.cost {
            let tells = (self.step / TELLS_PART).as_nanos() as u64;
            let part = (depends.as_nanos() as u64).min(tells);
            self.cost += ((now - self.cost) as u128 * u128::from(part) / u128::from(tells.max(1))) as u64;
        } else {
            self.cost -= (self.cost - now) / FORGET;
        }
        depends
    }

    /// How much of the nursery is used until the first collection.
    pub(crate) fn first_part(&self) -> usize {
        self.nursery.min(FIRST_PART)
    }

    /// Bytes that can survive in the time that a pause may take.
    pub(crate) fn can_survive(&self) -> usize {
        let left = (2 * self.step).saturating_sub(self.fixed).max(self.step);
        let bytes = (left.as_nanos() as u64 / self.cost.max(1)).saturating_mul(1 << 10);
        usize::try_from(bytes).unwrap_or(usize::MAX).max(LEAST_PART)
    }

    /// The same, of the nursery there is.
    pub(crate) fn most(&self) -> usize {
        self.can_survive().min(self.nursery)
    }

    /// How much of the nursery is used until the next collection, where `part` of it was, and of the minor
    /// collection `minor` [depends](Self::minor) on that.
    ///
    /// Less when it took longer than a step may. Less, too, when the step after it was too slow for what was
    /// added: then there have to be more steps for less. More as soon as there is no such reason.
    pub(crate) fn part(&self, part: usize, minor: Duration) -> usize {
        let part = if minor > 2 * self.step {
            // What survives is of another kind than before: of half the part, the next one was as long again.
            (part / 4).max(LEAST_PART)
        } else if minor > self.step || self.owed > 0 {
            (part / 2).max(LEAST_PART)
        } else if minor < self.step / 2 {
            part * 2
        } else {
            part
        };
        part.min(self.most())
    }

    /// Whether a pause that took this long has no time left to wait in. Half a step of what it may take is
    /// kept: whoever waits is woken later than asked for, and finds the processor in use.
    pub(crate) fn has_waited(&self, took: Duration) -> bool {
        took >= self.step + self.step / 2
    }

    /// Whether a pause may take this long.
    pub(crate) fn may_take(&self, time: Duration) -> bool {
        time <= 2 * self.step
    }

    /// Whether looking into so many places takes as long as a pause may.
    pub(crate) fn is_scattered(&self, places: usize) -> bool {
        places as u64 >= ((2 * self.step).as_nanos() as u64 / PLACE).max(LEAST_PLACES)
    }

    /// How long the step may take after a minor collection that took this long.
    pub(crate) fn step_after(&self, minor: Duration) -> Duration {
        (2 * self.step).saturating_sub(minor).clamp(self.step / 4, self.step)
    }

    /// Whether a step that began with `used` bytes in the old generation ends after this time, where it may
    /// take `may`. Steps become longer when the old generation is twice as large as when the collection began,
    /// three times and so on, and take what they need near its maximum: what is added faster than it can be
    /// marked would grow without bound.
    pub(crate) fn is_over(&self, took: Duration, may: Duration, used: usize) -> bool {
        let times = (used / self.began.max(1)).clamp(1, 1000) as u32;
        took >= may * times && used < self.maximum / 16 * 15
    }

    #[cfg(test)]
    pub(crate) fn threshold(&self) -> usize {
        self.threshold
    }
}

/// Nanoseconds for a KiB of `survived` bytes, at least [`MANY`].
fn cost_of(survived: usize, took: Duration) -> u64 {
    took.as_nanos() as u64 / (survived as u64 >> 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_threshold_follows_what_lives() {
        let mut pacing = Pacing::new(200, 1 << 20, usize::MAX, STEP);
        assert_eq!(pacing.threshold(), 4 << 20);
        pacing.finished(100 << 20, 0);
        assert_eq!(pacing.threshold(), 200 << 20);
        pacing.finished(1 << 20, 0);
        assert_eq!(pacing.threshold(), 5 << 20);
        assert!(!pacing.begins((5 << 20) - 1) && pacing.begins(5 << 20));
    }

    #[test]
    fn a_small_heap_grows_into_what_is_resident_before_it_is_collected() {
        let mut pacing = Pacing::new(200, 1 << 20, usize::MAX, STEP);
        for (live, free, threshold) in
            [(2, 3, 6), (2, 7, 8), (3, 6, 8), (2, 1000, 10), (5, 13, 13), (12, 6, 24), (100, 1000, 200)]
        {
            pacing.finished(live << 20, free << 20);
            assert_eq!(pacing.threshold(), threshold << 20, "{live} MiB live, {free} free");
        }
        let mut pacing = Pacing::new(200, 1 << 20, 10 << 20, STEP);
        pacing.finished(6 << 20, 1 << 30);
        assert_eq!(pacing.threshold(), 8 << 20, "at most 4/5 of the maximum");
    }

    #[test]
    fn a_step_ends_in_time_unless_the_heap_is_far_behind() {
        let mut pacing = Pacing::new(200, 1 << 20, 64 << 20, STEP);
        pacing.begin(0);
        assert_eq!(pacing.part(1 << 20, STEP / 4), 1 << 20);
        assert_eq!(pacing.part(1 << 20, 2 * STEP), 512 << 10);
        assert_eq!(pacing.part(1 << 20, 3 * STEP), 256 << 10);
        assert_eq!(pacing.part(512 << 10, STEP / 4), 1 << 20);
        assert_eq!(pacing.part(LEAST_PART, 2 * STEP), LEAST_PART);
        assert_eq!(pacing.step_after(STEP / 2), STEP);
        assert_eq!(pacing.step_after(3 * STEP / 2), STEP / 2);
        assert_eq!(pacing.step_after(9 * STEP), STEP / 4, "marking goes on, however long the rest takes");
        assert!(!pacing.is_over(STEP / 2, STEP, 4 << 20) && pacing.is_over(STEP, STEP, 7 << 20));
        assert!(pacing.is_over(STEP / 2, STEP / 2, 4 << 20));
        assert!(
            !pacing.is_over(STEP, STEP, 8 << 20) && pacing.is_over(2 * STEP, STEP, 8 << 20),
            "twice the threshold"
        );
        pacing.begin(6 << 20);
        assert!(pacing.is_over(STEP, STEP, 11 << 20) && !pacing.is_over(STEP, STEP, 12 << 20));
        pacing.begin(1 << 20);
        pacing.owes(1 << 30);
        assert_eq!(pacing.part(1 << 20, STEP / 4), 512 << 10);
        assert_eq!(pacing.step(0), (1 << 30) + LEAST_STEP);
        pacing.finished(50 << 20, 0);
        assert_eq!(
            pacing.step(0),
            LEAST_STEP,
            "what was owed to the collection before is nothing to the next"
        );
        assert!(!pacing.is_over(10 * STEP, STEP, 60 << 20), "at the maximum");
    }

    #[test]
    fn a_part_can_survive_in_the_time_of_a_pause() {
        let mut pacing = Pacing::new(200, 64 << 20, usize::MAX, STEP);
        assert_eq!(pacing.most(), 64 << 20, "nothing is known");
        pacing.minor(MANY - 1, Duration::ZERO);
        assert_eq!(pacing.most(), 64 << 20, "so few say nothing");
        // A step for 2 MiB: two for four.
        pacing.minor(2 << 20, STEP);
        let most = pacing.most();
        assert!((4 << 20..(4 << 20) + (1 << 13)).contains(&most), "{most}");
        assert_eq!(pacing.part(64 << 20, STEP), most);
        // A collection that is ten times as slow counts at once, and is forgotten over many.
        pacing.minor(1 << 20, 5 * STEP);
        assert!((409 << 10..420 << 10).contains(&pacing.most()), "{}", pacing.most());
        pacing.minor(2 << 20, STEP);
        assert!(pacing.most() < 512 << 10);
        for _ in 0..100 {
            pacing.minor(2 << 20, STEP);
        }
        assert!(pacing.most() > 3 << 20);
        pacing.minor(1 << 20, 1000 * STEP);
        assert_eq!(pacing.most(), LEAST_PART);
    }

    /// It counted as one of a second does.
    #[test]
    fn a_short_collection_says_little_of_what_a_long_one_takes() {
        let known = || {
            let mut pacing = Pacing::new(200, 64 << 20, usize::MAX, STEP);
            pacing.minor(2 << 20, STEP);
            pacing
        };
        let before = known().can_survive();
        // Of 128 KiB, twice as long as it should take: an eighth of a step. It says half of what one of a quarter does.
        let mut pacing = known();
        pacing.minor(128 << 10, STEP / 8);
        let now = pacing.can_survive();
        assert!((before * 65 / 100..before * 68 / 100).contains(&now), "{now} of {before}");
        let mut pacing = known();
        pacing.minor(256 << 10, STEP / 4);
        let now = pacing.can_survive();
        assert!((before * 49 / 100..before * 51 / 100).contains(&now), "{now} of {before}");
        // Where survivors are dear from now on, it is known after a few.
        let mut pacing = known();
        for _ in 0..8 {
            pacing.minor(128 << 10, STEP / 8);
        }
        assert!(pacing.can_survive() < before * 51 / 100, "{}", pacing.can_survive());
    }

    #[test]
    fn what_roots_take_is_no_reason_for_a_smaller_part() {
        let mut pacing = Pacing::new(200, 4 << 20, usize::MAX, STEP);
        let roots = 3 * STEP / 2;
        // Not known yet: all of it counts for the few survivors.
        let depends = pacing.minor(MANY, roots);
        assert_eq!((depends, pacing.part(1 << 20, depends)), (roots, LEAST_PART));
        for part in [LEAST_PART, 2 * LEAST_PART, 2 << 20] {
            let depends = pacing.minor(0, roots);
            assert_eq!((depends, pacing.part(part, depends)), (Duration::ZERO, 2 * part));
        }
        // What many survivors take is what comes to it: a quarter of a step for a MiB, so four are a step, and
        // half of one is left.
        let depends = pacing.minor(1 << 20, roots + STEP / 4);
        assert_eq!(depends, STEP / 4);
        assert!(
            (4 << 20..=(4 << 20) + (64 << 10)).contains(&pacing.can_survive()),
            "{}",
            pacing.can_survive()
        );
        // Roots that are gone are forgotten.
        for _ in 0..50 {
            pacing.minor(1 << 20, STEP);
        }
        assert!(pacing.can_survive() < (2 << 20) + (64 << 10), "{}", pacing.can_survive());
        // Where roots take nothing, a collection of which nothing survives says nothing of a slow one that is
        // remembered.
        pacing.minor(0, Duration::ZERO);
        pacing.minor(1 << 20, 10 * STEP);
        pacing.minor(1 << 20, STEP / 4);
        let can = pacing.can_survive();
        assert!(can < 512 << 10, "{can}");
        pacing.minor(0, Duration::ZERO);
        assert_eq!(pacing.can_survive(), can);
    }

    proptest! {
        #[test]
        fn a_major_collection_is_over_below_five_quarters(
            live in 0usize..1 << 32, growth in 110u32..400, adds in prop::collection::vec(0usize..1 << 24, 1..50)
        ) {
            let mut pacing = Pacing::new(growth, 1 << 20, usize::MAX, STEP);
            pacing.finished(live, 0);
            let begin = pacing.threshold();
            let (mut used, mut to_mark, mut to_sweep) = (begin, begin, begin + begin / 8);
            for &add in adds.iter().cycle() {
                used += add;
                let step = pacing.step(add);
                if to_mark > 0 {
                    to_mark = to_mark.saturating_sub(step);
                } else if to_sweep > 0 {
                    to_sweep = to_sweep.saturating_sub(step);
                } else {
                    break;
                }
                // The last additions of marking and of sweeping were made before the steps that ended them.
                prop_assert!(used <= begin / 4 * 5 + begin / 32 + (2 << 24), "{used} of {begin}");
            }
        }

        #[test]
        fn the_threshold_leaves_room_below_the_maximum(live in 0usize..1 << 30, more in 0usize..1 << 30, free in 0usize..1 << 30) {
            let mut pacing = Pacing::new(1000, 1 << 20, live + more, STEP);
            pacing.finished(live, free);
            prop_assert!(pacing.threshold() <= live + more);
            prop_assert!(more < 2 || pacing.threshold() > live || pacing.threshold() >= (live + more) / 5 * 4);
        }
    }
}

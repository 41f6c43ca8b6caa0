//! One snapshot of a process that contains several runtimes.
//!
//! The preload library, the C library and a Rust program on the crate each bring a runtime, with arenas and
//! numbers of its own. Who asks about the process means all of them.
//!
//! | fields | merged |
//! |---|---|
//! | what is, and what was done | added |
//! | peaks | added: an upper bound, since they need not have been at the same time |
//! | the longest pass, the longest pause | the longest |
//! | forks, the cgroup's charge | the largest: each runtime sees the same forks and the same cgroup |
//! | state, level, policies, version | of the runtime that is hooked, else of the first |
//!
//! A field that is added to the schema and not here does not compile: the snapshot is taken apart without `..`,
//! and a name that is not used is a warning, which is an error where the project is checked.

use super::{HookState, Snapshot};

impl Snapshot {
    /// Adds what another runtime of the same process told. Peaks become upper bounds.
    pub fn merge(&mut self, other: &Self) {
        let Self {
            schema,
            size,
            pid,
            parent_pid,
            state,
            level,
            policy,
            effective_policy,
            version,
            arenas,
            arenas_peak,
            arenas_full,
            arenas_partial,
            arenas_empty,
            arenas_thp,
            arenas_hugetlb,
            arenas_base,
            arenas_broken,
            live,
            live_peak,
            retained,
            retention_target,
            metadata,
            large,
            allocations,
            frees,
            foreign_frees,
            given_back,
            arenas_given_back,
            breaks,
            regretted,
            collapses,
            passes,
            longest_pass,
            forks,
            peak_resident,
            peak_huge,
            resident,
            huge,
            peak_charge,
            charge,
            fallbacks,
            arenas_ahead,
            gc_heaps,
            gc_nursery,
            gc_old,
            gc_held,
            gc_minor,
            gc_major,
            gc_pauses,
            gc_long_pauses,
            gc_pause_total,
            gc_longest_pause,
            gc_pause_lengths,
            vacated,
            alike,
            merged,
        } = *other;
        let hooked = HookState::Hooked as u32;
        if state == hooked && self.state != hooked {
            (self.schema, self.size) = (schema, size);
            (self.pid, self.parent_pid) = (pid, parent_pid);
            (self.state, self.level, self.version) = (state, level, version);
            (self.policy, self.effective_policy) = (policy, effective_policy);
        }
        // Saturating: what is read may be what another program wrote.
        let add = |sum: &mut u64, count: u64| *sum = sum.saturating_add(count);
        for (sum, count) in [
            (&mut self.arenas, arenas),
            (&mut self.arenas_peak, arenas_peak),
            (&mut self.arenas_full, arenas_full),
            (&mut self.arenas_partial, arenas_partial),
            (&mut self.arenas_empty, arenas_empty),
            (&mut self.arenas_thp, arenas_thp),
            (&mut self.arenas_hugetlb, arenas_hugetlb),
            (&mut self.arenas_base, arenas_base),
            (&mut self.arenas_broken, arenas_broken),
            (&mut self.live, live),
            (&mut self.live_peak, live_peak),
            (&mut self.retained, retained),
            (&mut self.retention_target, retention_target),
            (&mut self.metadata, metadata),
            (&mut self.large, large),
            (&mut self.allocations, allocations),
            (&mut self.frees, frees),
            (&mut self.foreign_frees, foreign_frees),
            (&mut self.given_back, given_back),
            (&mut self.arenas_given_back, arenas_given_back),
            (&mut self.breaks, breaks),
            (&mut self.regretted, regretted),
            (&mut self.collapses, collapses),
            (&mut self.passes, passes),
            (&mut self.peak_resident, peak_resident),
            (&mut self.peak_huge, peak_huge),
            (&mut self.resident, resident),
            (&mut self.huge, huge),
            (&mut self.arenas_ahead, arenas_ahead),
            (&mut self.vacated, vacated),
            (&mut self.alike, alike),
            (&mut self.merged, merged),
            (&mut self.gc_heaps, gc_heaps),
            (&mut self.gc_nursery, gc_nursery),
            (&mut self.gc_old, gc_old),
            (&mut self.gc_held, gc_held),
            (&mut self.gc_minor, gc_minor),
            (&mut self.gc_major, gc_major),
            (&mut self.gc_pauses, gc_pauses),
            (&mut self.gc_long_pauses, gc_long_pauses),
            (&mut self.gc_pause_total, gc_pause_total),
        ] {
            add(sum, count);
        }
        for (largest, value) in [
            (&mut self.longest_pass, longest_pass),
            (&mut self.gc_longest_pause, gc_longest_pause),
            (&mut self.forks, forks),
            (&mut self.charge, charge),
            (&mut self.peak_charge, peak_charge),
        ] {
            *largest = value.max(*largest);
        }
        for (sum, count) in self.fallbacks.iter_mut().zip(fallbacks) {
            add(sum, count);
        }
        for (sum, count) in self.gc_pause_lengths.iter_mut().zip(gc_pause_lengths) {
            add(sum, count);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const WORDS: usize = size_of::<Snapshot>() / 8;
    /// Words of what is described: eight numbers of 32 bits and the version.
    const DESCRIBED: usize = 8;

    /// Any numbers that can be added a few times.
    fn snapshots() -> impl Strategy<Value = Snapshot> {
        (vec(0..u64::from(u32::MAX), WORDS), 0..3_u32).prop_map(|(words, state)| {
            let words = <[u64; WORDS]>::try_from(words).expect("that many were asked for");
            // SAFETY: every bit pattern of the right size is a Snapshot: all fields are numbers.
            Snapshot { state, ..unsafe { core::mem::transmute::<[u64; WORDS], Snapshot>(words) } }
        })
    }

    fn words(snapshot: &Snapshot) -> [u64; WORDS] {
        // SAFETY: a Snapshot is made of numbers without padding.
        unsafe { core::mem::transmute(*snapshot) }
    }

    fn merged(mut one: Snapshot, other: &Snapshot) -> Snapshot {
        one.merge(other);
        one
    }

    proptest! {
        #[test]
        fn every_number_counts(one in snapshots(), other in snapshots()) {
            let both = merged(one, &other);
            for (index, both) in words(&both).into_iter().enumerate().skip(DESCRIBED) {
                let (one, other) = (words(&one)[index], words(&other)[index]);
                prop_assert!(both == one + other || both == one.max(other), "word {index}");
            }
            let mut largest = Vec::new();
            for (index, (name, both)) in both.counters().into_iter().enumerate() {
                if both != one.counters()[index].1 + other.counters()[index].1 {
                    largest.push(name);
                }
            }
            // By chance one of two numbers is 0 once in four billion.
            prop_assert_eq!(largest, ["longest_pass", "forks", "peak_charge", "charge", "gc_longest_pause"]);
        }

        #[test]
        fn nobody_s_numbers_change_nothing_and_who_is_merged_first_does_not_matter(
            one in snapshots(),
            two in snapshots(),
            three in snapshots(),
        ) {
            prop_assert_eq!(merged(one, &Snapshot::EMPTY), one);
            prop_assert_eq!(merged(merged(one, &two), &three), merged(one, &merged(two, &three)));
        }

        #[test]
        fn numbers_of_any_size_are_added(one in snapshots()) {
            let most = Snapshot { live: u64::MAX, gc_pause_lengths: [u64::MAX; 24], ..one };
            prop_assert_eq!(merged(most, &one).live, u64::MAX);
        }
    }

    #[test]
    fn who_is_hooked_describes_the_process() {
        let first = Snapshot { policy: 1, state: HookState::NotPython as u32, ..Snapshot::EMPTY };
        let hooked = Snapshot { policy: 2, level: 1, state: HookState::Hooked as u32, ..Snapshot::EMPTY };
        let idle = Snapshot { policy: 3, ..Snapshot::EMPTY };
        assert_eq!(merged(first, &idle), first);
        assert_eq!(merged(first, &hooked), hooked);
        assert_eq!(merged(hooked, &first), hooked);
        assert_eq!(merged(hooked, &Snapshot { policy: 4, ..hooked }), hooked);
    }
}

//! Page runs that a heap keeps and its owner does not need: they go to the arenas, without its word.
//!
//! ```text
//!   limit raised, run handed over ─▶ half a decay time ─▶ look: what nobody needed since the last one goes ─▶ more than any heap may keep is left: look again
//! ```
//!
//! A heap keeps up to 8 MiB of runs where its program shows that it needs them (see
//! [`run_cache`](super::run_cache)), and may have 2 MiB [handed](super::handed) to it. Who comes for them all
//! the time has none of it looked at for nothing: the least that was kept between two looks is what nobody
//! needed. A thread that sleeps loses all of it, in two looks at most.
//!
//! Who looks [holds](super::busy) the heap, so its owner neither takes nor keeps a run meanwhile.

use super::busy::Held;
use super::heap::{Core, Own, Shared};
use super::idle::is_owned;
use super::run_cache::{LEAST, RunCache, Spilled};
use super::space::{Source, Space};
use core::ptr::NonNull;
use core::sync::atomic::Ordering;

/// What somebody who holds a heap found there.
enum Seen {
    /// There is more that has to go.
    More,
    /// `later`: and something that may have to the next time.
    All { later: bool },
}

impl<S: Source> Space<S> {
    /// Gives the arenas what heaps keep of runs and did not need since the last time; not `quiet`: all of it.
    /// Says whether something is left for the next time.
    pub(crate) fn give_surplus_runs(&'static self, quiet: bool) -> bool {
        self.registry.numbers().fold(false, |later, number| self.give_surplus_of(number, quiet) | later)
    }

    fn give_surplus_of(&'static self, number: u32, quiet: bool) -> bool {
        let (Some(core), Some(shared)) = (self.registry.core::<S>(number), self.registry.shared::<S>(number))
        else {
            return false;
        };
        if shared.hardened || !is_owned(shared) {
            return false;
        }
        if shared.inbox.runs.load(Ordering::Relaxed) != 0 {
            self.give_handed(shared);
        }
        // SAFETY: cores are never unmapped. The owner changes it with plain stores of whole words: read once,
        // as what it was or is.
        let kib = unsafe { RunCache::kib_of(&raw const (*core.as_ptr()).own.runs) };
        if kib == 0 {
            return false;
        }
        loop {
            match self.shed_some(core, shared, quiet) {
                Some(Seen::More) => {}
                Some(Seen::All { later }) => return later,
                // Who takes and keeps runs all the time may be met at that each time.
                None => return kib > LEAST && is_owned(shared),
            }
        }
    }

    /// What was handed to a heap and not taken. Who comes for it all the time misses it once.
    fn give_handed(&self, shared: &Shared) {
        // A fork, and a thread that ends, wait for this.
        let _visiting = self.registry.visits.lock();
        let mut spilled = Spilled::none();
        self.take_handed_runs(shared, |run| {
            self.give_if_full(&mut spilled);
            spilled.add(run);
        });
        self.give_runs(&spilled);
    }

    /// `None`: nobody can do that there now.
    fn shed_some(
        &'static self,
        core: NonNull<Core<S>>,
        shared: &'static Shared,
        quiet: bool,
    ) -> Option<Seen> {
        let (_visiting, held) = self.hold_owned(shared)?;
        // SAFETY: cores are never unmapped, and the heap is held. The owner changes fields of `own` all the
        // same, on its fast paths: those of its bins, which are neither read nor written through this
        // reference.
        let own = unsafe { &mut (*core.as_ptr()).own };
        let mut spilled = Spilled::none();
        let seen = own.shed_held(&held, quiet, &mut spilled);
        drop(held);
        self.give_runs(&spilled);
        Some(seen)
    }
}

impl<S: Source> Own<S> {
    fn shed_held(&mut self, _: &Held, quiet: bool, spilled: &mut Spilled) -> Seen {
        let links = self.run_links();
        if self.runs.shed(!quiet, spilled, links) {
            return Seen::More;
        }
        // What went was perhaps not all that is not needed: who just stopped needed some of it since the last time.
        let went = !spilled.runs().is_empty();
        Seen::All { later: self.runs.is_raised() || went && self.runs.kib() > 0 }
    }
}

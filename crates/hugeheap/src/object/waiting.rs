//! The end of a quarantine whose heap waits.
//!
//! ```text
//!   another thread frees in a hardened heap that waits ─▶ collected there, into its quarantine ─▶ look ─▶ half a decay time ─▶ look: nobody freed there since ─▶ claim it, trim it
//!                                                                                                 give-back, asked for ────────────────────────────────────▶
//! ```
//!
//! A quarantine lasts until 32 more blocks of the class are freed. In a heap that waits nobody may free any
//! more, and so the last blocks freed there kept their pages for good: 1.4 MiB for each such heap with blocks
//! of all sizes. To end it with each visit was to have no quarantine there: a block was handed out at once to
//! who adopted the heap. So it lasts half a decay time at least after the last free.
//!
//! Who ends it has the heap as a visitor has (`VISITED`), so nobody adopts it meanwhile. A fork waits for that:
//! it would leave the heap lost in the child.

use super::registry::WAITING;
use super::space::{Source, Space};
use core::sync::atomic::Ordering;

/// Heap pages that are told to be used in part when a quarantine has its first block: a mebibyte. What it may
/// keep is not known there, a page for each block at most.
const TOLD: u64 = 64;

impl<S: Source> Space<S> {
    /// Blocks came into the quarantine of a heap that waits: somebody should look.
    pub(super) fn tell_quarantined(&self) {
        self.source().with(|arenas| arenas.became_partial(TOLD));
    }

    /// Ends the quarantines of heaps that wait. `quiet`: only where nobody freed since the last time. Says
    /// whether something is left for the next time.
    pub(crate) fn end_waiting_quarantines(&'static self, quiet: bool) -> bool {
        self.registry
            .numbers()
            .fold(false, |later, number| self.end_waiting_quarantine(number, quiet) | later)
    }

    fn end_waiting_quarantine(&'static self, number: u32, quiet: bool) -> bool {
        let Some(shared) = self.registry.shared::<S>(number) else { return false };
        let quarantined = shared.quarantined.load(Ordering::Relaxed);
        if quarantined == 0 || shared.state.load(Ordering::SeqCst) != WAITING {
            return false;
        }
        if shared.seen.swap(quarantined, Ordering::Relaxed) != quarantined && quiet {
            return true;
        }
        let visiting = self.registry.visits.lock();
        // Somebody adopted it, or frees there.
        let Some(mut visit) = self.visit_waiting(number) else { return quiet };
        visit.trim();
        // What is counted from here on is not what was seen.
        shared.seen.store(0, Ordering::Relaxed);
        shared.quarantined.store(0, Ordering::Relaxed);
        let more = visit.wait_again();
        drop(visiting);
        if more {
            self.collect_ownerless(number);
        }
        false
    }
}

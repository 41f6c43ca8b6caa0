//! Conservative scan: a range of words that may be addresses, such as a stack. What they refer to stays alive and where it is.
//!
//! ```text
//!   word ─┬▶ in the nursery ─▶ the objects there are walked from the first: the one that contains the address stays
//!         └▶ in a page of blocks, or the first page of a large object ─▶ if one that lives contains the address: a root that does not move
//! ```
//!
//! An address inside of an object counts. The nursery has no bitmap of where objects begin, so it is walked when a word refers into it: such a
//! minor collection costs what was allocated and not what survives.

use super::heap::Heap;
use super::mark::{Phase, Stage};
use crate::object::Source;

/// Says where words lie that are looked at in a collection: first address and end, multiples of 8.
pub type ScanCallback = Box<dyn FnMut() -> (usize, usize)>;

impl<S: Source> Heap<S> {
    /// Adds a range of words that is looked at in every collection. The registers of a thread are not part of its stack: who scans a stack has
    /// them written there before it calls what may collect (`setjmp` does that).
    ///
    /// # Safety
    /// Whenever a collection may happen from now on, the range that the function says can be read. The function neither panics nor uses the
    /// heap.
    pub unsafe fn add_scan(&mut self, callback: ScanCallback) {
        self.roots.scans.push(callback);
        self.nursery.keep_gaps();
    }

    /// At the beginning of a minor collection: finds what words refer to. Returns the addresses in the nursery, in order.
    #[cold]
    pub(super) fn scan(&mut self) -> Vec<usize> {
        let mut scans = core::mem::take(&mut self.roots.scans);
        self.roots.found.clear();
        let mut young = Vec::new();
        for scan in &mut scans {
            let (from, to) = scan();
            for address in (from..to).step_by(size_of::<usize>()) {
                // SAFETY: whoever added the range promised that it can be read. Nobody else writes there: the thread is here.
                let word = unsafe { (address as *const usize).read_volatile() };
                if self.nursery.has(word) {
                    young.push(word);
                } else if let Some(object) = self.old.containing(word) {
                    // What marking did not reach is dead, whoever has its address.
                    let reachable =
                        self.marker.phase == Phase::Marking && self.marker.stage == Stage::Reachable;
                    if reachable || !self.old.black || !self.old.is_unmarked(object) {
                        self.roots.found.insert(object);
                    }
                }
            }
        }
        self.roots.scans = scans;
        young.sort_unstable();
        young
    }

    /// Sees to it that the objects allocated since the last collection which contain these addresses, in order, stay.
    pub(super) fn keep_containing(&mut self, mut words: &[usize]) {
        for index in 0..self.nursery.gaps() {
            let (mut object, end) = self.nursery.gap_at(index);
            words = &words[words.partition_point(|&word| word < object)..];
            while let Some(&word) = words.first().filter(|&&word| word < end) {
                // SAFETY: what was handed out of a gap is one object behind the other.
                let next = object + unsafe { self.types.of(object).size(object) };
                if word < next {
                    if !self.nursery.is_staying(object) {
                        // SAFETY: a live object of the nursery, as far as anybody knows.
                        unsafe { self.nursery.keep(object) };
                    }
                    words = &words[words.partition_point(|&word| word < next)..];
                }
                object = next;
            }
        }
    }
}

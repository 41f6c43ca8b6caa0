//! Conservative scan: a range of words that may be addresses, such as a stack. What they refer to stays alive
//! and where it is.
//!
//! ```text
//!   word ─┬▶ in the nursery ─▶ the objects there are walked from the first: the one that contains the address stays
//!         └▶ in a page of blocks, or the first page of a large object ─▶ if one that lives contains the address: a root that does not move
//! ```
//!
//! A range is there from [`Heap::add_scan`] to [`Heap::remove_scan`]: a thread's stack, a coroutine's, a buffer
//! of a foreign library. What was found in the last range is forgotten with it; objects of the nursery that
//! stayed for its words leave in the next minor collection.
//!
//! An address inside of an object counts. The nursery has no bitmap of where objects begin, so it is walked
//! when a word refers into it: such a minor collection costs what was allocated and not what survives.
//!
//! A collection cannot be refused. Where there is no memory to note what words refer to, more stays than has
//! to: everything in the nursery; and in the old generation everything, until a scan is noted, for no marking
//! begins or ends and nothing is evacuated.

use super::Exhausted;
use super::barrier::push;
use super::heap::Heap;
use super::mark::{Phase, Stage};
use crate::object::Source;

/// Says where words lie that are looked at in a collection: first address and end, multiples of 8.
pub type ScanCallback = Box<dyn FnMut() -> (usize, usize)>;

/// A range that is scanned: to remove it by. Dropped without that, the range is scanned as long as the heap lives.
#[derive(Debug, PartialEq, Eq)]
pub struct Scan {
    number: u64,
    heap: u32,
}

/// Ranges in the order in which they were added.
#[derive(Default)]
pub(crate) struct Scans {
    ranges: Vec<(u64, ScanCallback)>,
    /// How many there ever were.
    next: u64,
}

impl Scans {
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}

impl<S: Source> Heap<S> {
    /// Adds a range of words that is looked at in every collection until it is [removed](Self::remove_scan).
    /// The registers of a thread are not part of its stack: who scans a stack has them written there before it
    /// calls what may collect (`setjmp` does that).
    ///
    /// # Errors
    /// When there is no memory to note it: the function is dropped.
    ///
    /// # Safety
    /// Whenever a collection may happen until it is removed, the range that the function says can be read. The
    /// function neither panics nor uses the heap.
    pub unsafe fn add_scan(&mut self, callback: ScanCallback) -> Result<Scan, Exhausted> {
        let scans = &mut self.roots.scans;
        let bytes = size_of::<(u64, ScanCallback)>();
        scans.ranges.try_reserve(1).map_err(|_| Exhausted { bytes })?;
        scans.next += 1;
        let number = scans.next;
        scans.ranges.push((number, callback));
        self.nursery.keep_gaps();
        Ok(Scan { number, heap: self.number })
    }

    /// A range is not looked at any more: from the next collection on its words keep nothing alive or in its place.
    ///
    /// # Panics
    /// When the range is one of another heap.
    #[allow(clippy::needless_pass_by_value, reason = "the range ends here")]
    pub fn remove_scan(&mut self, scan: Scan) {
        assert_eq!(scan.heap, self.number, "the range belongs to another heap");
        let roots = &mut self.roots;
        roots.scans.ranges.retain(|&(number, _)| number != scan.number);
        if roots.scans.is_empty() {
            // No scan comes that would forget it.
            roots.found.clear();
            roots.not_all_found = false;
        }
    }

    /// At the beginning of a minor collection: finds what words refer to. Returns the addresses in the nursery,
    /// in order; `None`: there is no memory for these.
    #[cold]
    pub(super) fn scan(&mut self) -> Option<Vec<usize>> {
        let mut scans = core::mem::take(&mut self.roots.scans);
        self.roots.found.clear();
        self.roots.not_all_found = false;
        let (mut young, mut noted) = (Vec::new(), true);
        for (_, scan) in &mut scans.ranges {
            let (from, to) = scan();
            for address in (from..to).step_by(size_of::<usize>()) {
                // SAFETY: whoever added the range promised that it can be read. Nobody else writes there: the
                // thread is here.
                let word = unsafe { (address as *const usize).read_volatile() };
                if self.nursery.has(word) {
                    noted = noted && push(&mut young, word, usize::MAX);
                } else if let Some(object) = self.old.containing(word) {
                    // What marking did not reach is dead, whoever has its address.
                    let reachable =
                        self.marker.phase == Phase::Marking && self.marker.stage == Stage::Reachable;
                    if reachable || !self.old.black || !self.old.is_unmarked(object) {
                        let found = &mut self.roots.found;
                        self.roots.not_all_found |= !found.contains(object) && !found.add(object);
                    }
                }
            }
        }
        self.roots.scans = scans;
        young.sort_unstable();
        noted.then_some(young)
    }

    /// Sees to it that all objects allocated since the last collection stay.
    #[cold]
    pub(super) fn keep_all(&mut self) {
        for index in 0..self.nursery.gaps() {
            let (mut object, end) = self.nursery.gap_at(index);
            while object < end {
                // SAFETY: what was handed out of a gap is one object behind the other, each live as far as
                // anybody knows.
                unsafe {
                    let bytes = self.types.of(object).size(object);
                    if !self.nursery.is_staying(object) {
                        self.nursery.keep(object);
                    }
                    object += bytes;
                }
            }
        }
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

//! Metadata of large heaps, on huge pages.
//!
//! ```text
//!   arenas        ├─ 128 arenas: 256 MiB ─┼─ 128 arenas ──────────┼─ 128 arenas ──────────┤
//!   vacant        ├─ huge page ───────────┼─ huge page ───────────┼─ huge page ───────────┤     remote: the same
//!   marks         ├─ huge page: of 256 arenas ────────────────────┼─ huge page ───────────┄
//!                 └ of what was touched before the heap was large, the kernel makes one in its own time
//! ```
//!
//! A block that is freed or taken where none was lately costs a look at its mark and one at its bitmap. In a
//! heap of gigabytes each of them lies on an OS page that the TLB does not know, and each of these was found by
//! a fault: of six gigabytes of blocks of about 100 bytes five sixths of all faults were the metadata's. So
//! where the policy has the kernel asked for huge pages for the arenas, it is asked for the metadata, too.
//! Measured in `docs/mechanisms/object-allocator.md`.
//!
//! A huge page is touched as a whole, so a *small* heap has none: of [`LARGE_HEAP`] what was not needed of the
//! last one of each array is less than a hundredth.
//!
//! All of a huge page has to be writable before it is touched, or the kernel finds OS pages. That counts under
//! `ulimit -d` and strict overcommit; where they refuse it, metadata becomes writable group by group as before.
//! The states of a huge page of an array:
//!
//! ```text
//!   by groups ─▶ whole: writable, and the kernel is asked for a huge page
//!      │  ▲        │ a part of it is given back (by a collector; see also `unused`): split
//!      │  └────────┘
//!      └─▶ a part of its address space was given back: for good
//! ```

use super::tables::{ARRAYS, ELEMENT, GONE_PARTS, GROUP_BYTES, GROUP_PAGES, MARKS, READY, Tables};
use crate::arena::{ARENA_BYTES, HEAP_PAGE_BYTES, HEAP_PAGES};
use core::ops::Range;
use core::sync::atomic::Ordering;
use hugeheap_os::{AddressRange, Advice, Pages, Protection};

/// Bytes of the smallest region whose arrays begin at multiples of the huge page, which takes up to 8 MiB of
/// address space. A region has four times the memory of the host, or an eighth of what `ulimit -v` leaves:
/// there a smaller one is of a program that has little room.
pub(super) const LARGE_REGION: usize = 4 << 30;

/// Bytes of arenas with writable metadata from which on a heap is large. The last huge pages of vacant bitmaps
/// and marks are used for one group at first: 4 MiB, a hundredth of this, where they were needed for 0.4.
/// Interpreters with heaps of 150 to 700 MB took as long with huge pages as without
/// (`hugeheap bench obmalloc`), and had 6 MiB more.
const LARGE_HEAP: usize = 512 << 20;

/// Groups of arenas before one that are looked at to find out whether the heap is large: arenas are used from
/// below, so that a large one has them there. 2 GiB.
const LOOK: usize = 64;

/// What is known of the first group of a huge page of an array: it is whole.
const WHOLE: [u8; ARRAYS] = [8, 16, 32];

/// What is known of the first group of a unit: it was split because few of its arenas were in use.
const SPLIT: u8 = 64;

/// Groups of a unit: those whose marks are a huge page.
pub(super) const UNIT: usize = groups_of(MARKS);

/// Groups whose metadata in an array is a huge page.
pub(super) const fn groups_of(array: usize) -> usize {
    ARENA_BYTES / ELEMENT[array] / GROUP_PAGES
}

const _: () = assert!(groups_of(0) == 8 && groups_of(1) == 8 && groups_of(2) == 16);
const _: () = assert!(GROUP_PAGES * HEAP_PAGE_BYTES == GROUP_BYTES);
const _: () = assert!((READY | GONE_PARTS) & (WHOLE[0] | WHOLE[1] | WHOLE[2]) == 0 && SPLIT > WHOLE[2]);

impl Tables {
    fn state(&self, group: usize) -> u8 {
        self.ready(group).load(Ordering::Relaxed)
    }

    /// What is known of any of these groups.
    fn states(&self, groups: Range<usize>) -> u8 {
        groups.fold(0, |all, group| all | self.state(group))
    }

    /// Whether the metadata of a group in an array lies where the kernel was asked for a huge page, all of
    /// which is there still.
    pub(super) fn is_huge(&self, array: usize, group: usize) -> bool {
        let first = group / groups_of(array) * groups_of(array);
        self.state(first) & WHOLE[array] != 0
            && self.states(first..first + groups_of(array)) & GONE_PARTS == 0
    }

    /// Whether something of the metadata of a group was given back for good.
    pub(super) fn is_gone(&self, group: usize) -> bool {
        self.state(group) & GONE_PARTS != 0
    }

    /// Whether the unit that begins with a group was split.
    pub(super) fn is_split(&self, first: usize) -> bool {
        self.state(first) & SPLIT != 0
    }

    /// Whether there is a large heap before a group.
    fn is_large(&self, group: usize) -> bool {
        let ready = |&group: &usize| self.state(group) & READY != 0;
        (group.saturating_sub(LOOK)..group).filter(ready).count() >= LARGE_HEAP / GROUP_BYTES
    }

    /// Has the metadata of a group on huge pages, and that of the groups before which are in use, if the heap
    /// is large. What was touched already stays where it is until the kernel makes a huge page of it. Where
    /// something fails nothing changes for the group. By one thread at a time.
    pub(super) fn make_huge<P: Pages>(&self, os: &P, group: usize) {
        if !self.aligned || !self.is_large(group) {
            return;
        }
        for array in 0..ARRAYS {
            let groups = groups_of(array);
            for first in (0..=group).step_by(groups) {
                if !self.is_huge(array, first) && self.can_be_whole(first..first + groups, group) {
                    self.make_whole(os, array, first);
                }
            }
        }
    }

    /// Whether the groups of a huge page all belong to the region, and one of them is in use, or will be.
    fn can_be_whole(&self, groups: Range<usize>, next: usize) -> bool {
        if groups.end * GROUP_PAGES > self.pages {
            return false;
        }
        let all = self.states(groups.clone());
        all & GONE_PARTS == 0 && (all & READY != 0 || groups.contains(&next))
    }

    fn make_whole<P: Pages>(&self, os: &P, array: usize, first: usize) {
        let range = self.huge_page(array, first);
        // SAFETY: a part of the tables, of which nothing was given back; more access harms nobody, and advice
        // changes nothing that can be read.
        let made =
            unsafe { os.protect(range, Protection::ReadWrite).and_then(|()| os.advise(range, Advice::Huge)) };
        if made.is_ok() {
            self.ready(first).fetch_or(WHOLE[array], Ordering::Relaxed);
        }
    }

    /// The huge page of an array in which the metadata of a group lies.
    fn huge_page(&self, array: usize, group: usize) -> AddressRange {
        let first = group / groups_of(array) * groups_of(array);
        AddressRange::new(self.arrays[array] + first * GROUP_PAGES * ELEMENT[array], ARENA_BYTES)
    }

    /// Gives the memory of the metadata of heap pages back, in whole OS pages. When a call fails nothing
    /// changes. Returns how many pages that were counted as used are not any more.
    ///
    /// # Safety
    /// Nobody needs what is there, nor uses it, nor can begin to meanwhile.
    pub(super) unsafe fn give_back<P: Pages>(&self, os: &P, pages: Range<usize>) -> usize {
        let mut forgotten = 0;
        for array in 0..ARRAYS {
            let Some(range) = self.whole_part_of(array, &pages) else { continue };
            for group in [pages.start / GROUP_PAGES, (pages.end - 1) / GROUP_PAGES] {
                if self.is_huge(array, group) && !range.encloses(self.huge_page(array, group)) {
                    self.leave_huge(os, array, group);
                }
            }
            // SAFETY: by the contract above.
            forgotten += unsafe { self.give_back_of(os, array, pages.clone()) }.unwrap_or(0);
        }
        forgotten
    }

    /// The same in one array, without a look at huge pages. `None`: nothing was given back.
    ///
    /// # Safety
    /// As for [`give_back`](Self::give_back).
    pub(super) unsafe fn give_back_of<P: Pages>(
        &self,
        os: &P,
        array: usize,
        pages: Range<usize>,
    ) -> Option<usize> {
        let range = self.whole_part_of(array, &pages)?;
        // SAFETY: a part of the tables; by the contract above nobody uses it or needs what is there.
        unsafe { os.decommit(range) }.ok()?;
        if array != MARKS {
            return Some(0);
        }
        // The marks of an arena lie on whole OS pages, or those of several arenas on one: of none a part goes.
        const MARKS_OF_ARENA: usize = ELEMENT[MARKS] * HEAP_PAGES as usize;
        let arena = |address: usize| (address - self.arrays[MARKS]) / MARKS_OF_ARENA;
        Some(self.forget_used(arena(range.start)..arena(range.end())))
    }

    /// The OS pages of an array that hold nothing but the metadata of these heap pages.
    fn whole_part_of(&self, array: usize, pages: &Range<usize>) -> Option<AddressRange> {
        let at = |page: usize| self.arrays[array] + page * ELEMENT[array];
        whole_pages(at(pages.start)..at(pages.end), self.os_page)
    }

    /// Splits the huge pages of the unit that begins with a group. Behind a gap none is made again: see
    /// [`behind`](Self::behind).
    pub(super) fn part<P: Pages>(&self, os: &P, first: usize) {
        for array in 0..ARRAYS {
            for group in (first..first + UNIT).step_by(groups_of(array)) {
                // Behind the region's end there are no states.
                if group * GROUP_PAGES < self.pages && self.is_huge(array, group) {
                    self.leave_huge(os, array, group);
                }
            }
        }
        if self.aligned {
            self.ready(first).fetch_or(SPLIT, Ordering::Relaxed);
        }
    }

    /// Has the unit of a group on huge pages that was split, as far as it can be: the kernel makes them in its
    /// own time.
    pub(super) fn join<P: Pages>(&self, os: &P, group: usize) {
        let unit = group / UNIT * UNIT;
        if self.ready(unit).fetch_and(!SPLIT, Ordering::Relaxed) & SPLIT == 0 || !self.aligned {
            return;
        }
        for array in 0..ARRAYS {
            for first in (unit..unit + UNIT).step_by(groups_of(array)) {
                if self.can_be_whole(first..first + groups_of(array), group) {
                    self.make_whole(os, array, first);
                }
            }
        }
    }

    /// Splits a huge page of which a part is going to be given back: the kernel would keep all of it, and
    /// collapse it again. Until the heap grows.
    ///
    /// By halves, and before anything of it is given back: of a huge page that is mapped as a whole the kernel
    /// splits nothing when it is asked for all of it. It was asked so, and the memory of what was given back
    /// stayed charged until the kernel ran short.
    fn leave_huge<P: Pages>(&self, os: &P, array: usize, group: usize) {
        let huge = self.huge_page(array, group);
        self.ready(group / groups_of(array) * groups_of(array)).fetch_and(!WHOLE[array], Ordering::Relaxed);
        // SAFETY: a part of the tables, all of it mapped; advice changes nothing that can be read.
        let _ = unsafe { os.advise(huge, Advice::NoHuge) };
        let half = huge.len / 2;
        for start in [huge.start, huge.start + half] {
            // SAFETY: as above; what is mapped keeps its contents. Where it fails, the kernel finds the memory
            // when it needs some.
            let _ = unsafe { os.split(AddressRange::new(start, half)) };
        }
    }
}

/// The OS pages that lie in a range as a whole.
fn whole_pages(range: Range<usize>, page: usize) -> Option<AddressRange> {
    let (first, end) = (range.start.next_multiple_of(page), range.end / page * page);
    (first < end).then(|| AddressRange::new(first, end - first))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugeheap_os::linux::Linux;
    use hugeheap_os::simulated::{Call, Config, Kernel, PageState};
    use hugeheap_os::{Backing, Facts};

    /// Groups of a large heap.
    const GROUPS: usize = LARGE_HEAP / GROUP_BYTES;

    fn tables<P: Pages + Facts>(os: &P) -> Tables {
        Tables::make(os, LARGE_REGION, None).expect("address space")
    }

    fn make_ready<P: Pages>(tables: &Tables, os: &P, groups: Range<usize>) {
        for group in groups {
            tables.make_ready(os, group * GROUP_PAGES, true).expect("memory");
        }
    }

    fn touch<P: Pages>(tables: &Tables, os: &P, group: usize) {
        tables.touch(os, group * GROUP_PAGES, group * GROUP_PAGES + 1);
    }

    fn huge<P: Pages>(tables: &Tables, os: &P, group: usize) -> [u64; ARRAYS] {
        core::array::from_fn(|array| {
            os.residency(tables.huge_page(array, group)).expect("it is mapped").huge()
        })
    }

    const ALL: [u64; ARRAYS] = [ARENA_BYTES as u64; ARRAYS];

    #[test]
    fn metadata_of_a_large_heap_is_on_huge_pages_and_that_of_a_small_one_is_not() {
        let kernel = Kernel::new(Config::default());
        let tables = tables(&kernel);
        make_ready(&tables, &kernel, 0..GROUPS);
        touch(&tables, &kernel, 0);
        touch(&tables, &kernel, GROUPS - 1);
        assert_eq!((huge(&tables, &kernel, 0), huge(&tables, &kernel, GROUPS - 1)), ([0; 3], [0; 3]));
        make_ready(&tables, &kernel, GROUPS..GROUPS + 1);
        touch(&tables, &kernel, GROUPS);
        assert_eq!(huge(&tables, &kernel, GROUPS), ALL);
        // The groups behind it are not in use, and can be.
        touch(&tables, &kernel, GROUPS + 7);
        assert!(!tables.is_ready((GROUPS + 1) * GROUP_PAGES));
        make_ready(&tables, &kernel, GROUPS + 1..GROUPS + 40);
        touch(&tables, &kernel, GROUPS + 39);
        assert_eq!(huge(&tables, &kernel, GROUPS + 39), ALL);
        assert_eq!(kernel.violations(), []);
    }

    #[test]
    fn what_a_heap_touched_before_it_was_large_the_kernel_may_collapse() {
        let kernel = Kernel::new(Config::default());
        let tables = tables(&kernel);
        make_ready(&tables, &kernel, 0..GROUPS);
        touch(&tables, &kernel, 3);
        make_ready(&tables, &kernel, GROUPS..GROUPS + 1);
        for array in 0..ARRAYS {
            assert!(tables.is_huge(array, 0) && tables.is_huge(array, GROUPS - 1));
            // SAFETY: a part of the tables.
            unsafe { kernel.collapse(tables.huge_page(array, 0)) }
                .expect("all of it is writable and advised");
        }
        assert_eq!(huge(&tables, &kernel, 0), ALL);
    }

    #[test]
    fn where_no_arena_is_used_metadata_is_left_alone() {
        let kernel = Kernel::new(Config::default());
        let tables = tables(&kernel);
        make_ready(&tables, &kernel, 40..40 + GROUPS + 1);
        let huge = [0, 16, 31, 40, 48, 56].map(|group| tables.is_huge(0, group));
        assert_eq!(huge, [false, false, false, true, true, true]);
        assert_eq!([0, 16, 32, 48].map(|group| tables.is_huge(2, group)), [false, false, true, true]);
    }

    /// What lies there now may be somebody else's, which is neither advised nor split.
    #[test]
    fn of_a_huge_page_whose_address_space_went_no_part_is_split() {
        let kernel = Kernel::new(Config::default());
        let tables = tables(&kernel);
        make_ready(&tables, &kernel, 0..GROUPS + 2);
        assert!((0..ARRAYS).all(|array| tables.is_huge(array, GROUPS)));
        let end = (GROUPS + 2) * GROUP_PAGES;
        tables.release(&kernel, end, end, tables.pages);
        let calls = kernel.calls(Call::Split) + kernel.calls(Call::Advise);
        // SAFETY: nobody uses them.
        unsafe { tables.give_back(&kernel, GROUPS * GROUP_PAGES..(GROUPS + 1) * GROUP_PAGES) };
        assert_eq!(kernel.calls(Call::Split) + kernel.calls(Call::Advise), calls);
        assert_eq!(kernel.violations(), []);
    }

    #[test]
    fn a_huge_page_that_is_given_back_as_a_whole_comes_back_as_one() {
        let kernel = Kernel::new(Config::default());
        let tables = tables(&kernel);
        make_ready(&tables, &kernel, 0..GROUPS + 16);
        touch(&tables, &kernel, GROUPS);
        // SAFETY: nobody uses them.
        unsafe { tables.give_back(&kernel, GROUPS * GROUP_PAGES..(GROUPS + 16) * GROUP_PAGES) };
        assert_eq!(huge(&tables, &kernel, GROUPS), [0; ARRAYS]);
        touch(&tables, &kernel, GROUPS);
        assert_eq!(huge(&tables, &kernel, GROUPS), ALL);
        assert!((0..ARRAYS).all(|array| tables.is_huge(array, GROUPS)));
    }

    /// Behind the bytes of the groups are those of the arenas, which may look like a state.
    #[test]
    fn of_a_unit_at_the_end_of_a_region_only_what_there_is_is_split() {
        let kernel = Kernel::new(Config { enforce_access: true, ..Config::default() });
        let region = LARGE_REGION + 5 * GROUP_BYTES;
        let tables = Tables::make(&kernel, region, None).expect("address space");
        let last = LARGE_REGION / GROUP_BYTES;
        // SAFETY: the bytes of the first arenas.
        unsafe { (tables.used as *mut u8).write_bytes(WHOLE[0] | WHOLE[1] | WHOLE[2], 64) };
        tables.part(&kernel, last);
        assert_eq!(kernel.calls(Call::Split) + kernel.calls(Call::Advise), 0);
    }

    #[test]
    fn without_huge_pages_for_arenas_there_are_none_for_metadata() {
        let kernel = Kernel::new(Config::default());
        let tables = tables(&kernel);
        for group in 0..2 * GROUPS {
            tables.make_ready(&kernel, group * GROUP_PAGES, false).expect("memory");
        }
        touch(&tables, &kernel, 2 * GROUPS - 1);
        assert_eq!(huge(&tables, &kernel, 2 * GROUPS - 1), [0; 3]);
    }

    #[test]
    fn the_end_of_a_region_has_no_huge_page_that_is_longer() {
        let kernel = Kernel::new(Config::default());
        let region = LARGE_REGION + 5 * GROUP_BYTES;
        let tables = Tables::make(&kernel, region, None).expect("address space");
        let last = LARGE_REGION / GROUP_BYTES;
        make_ready(&tables, &kernel, last - GROUPS..last + 5);
        assert_eq!((0..ARRAYS).find(|&array| tables.is_huge(array, last)), None);
        assert!(tables.is_huge(0, last - 1));
        assert_eq!(kernel.violations(), []);
    }

    /// Under `ulimit -d`, or strict overcommit.
    #[test]
    fn where_a_whole_huge_page_is_not_allowed_a_group_is_made_ready_alone() {
        let group = GROUP_PAGES * ELEMENT.iter().sum::<usize>();
        let limit = (GROUPS + 1) * group + (64 << 10);
        let kernel = Kernel::new(Config { data_limit: Some(limit as u64), ..Config::default() });
        let tables = tables(&kernel);
        make_ready(&tables, &kernel, 0..GROUPS + 1);
        touch(&tables, &kernel, GROUPS);
        for array in 0..ARRAYS {
            assert!(!tables.is_huge(array, GROUPS));
            assert!(kernel.residency(tables.huge_page(array, GROUPS)).expect("it is mapped").resident > 0);
        }
        assert!(tables.is_huge(0, 0), "all of it was writable");
        assert_eq!(tables.make_ready(&kernel, (GROUPS + 1) * GROUP_PAGES, true), None);
        assert!(!tables.is_ready((GROUPS + 1) * GROUP_PAGES));
    }

    #[test]
    fn a_huge_page_of_which_address_space_was_given_back_is_not_made_whole() {
        let kernel = Kernel::new(Config::default());
        let tables = tables(&kernel);
        // All behind the groups of a large heap and one goes.
        make_ready(&tables, &kernel, 0..GROUPS);
        let end = (GROUPS + 1) * GROUP_PAGES;
        tables.release(&kernel, end, end, tables.pages);
        make_ready(&tables, &kernel, GROUPS..GROUPS + 1);
        touch(&tables, &kernel, GROUPS);
        for array in 0..ARRAYS {
            assert!(!tables.is_huge(array, GROUPS), "array {array}");
            let behind = tables.huge_page(array, GROUPS).end() - 1;
            assert_eq!(kernel.page_state(behind), PageState::Foreign);
        }
        assert!(tables.is_huge(0, 0), "nothing of it was given back");
        assert_eq!(kernel.violations(), []);
    }

    /// Also where the groups there were in use once.
    #[test]
    fn a_huge_page_of_which_marks_were_given_back_is_not_made_whole() {
        let kernel = Kernel::new(Config::default());
        let tables = tables(&kernel);
        make_ready(&tables, &kernel, 0..GROUPS);
        for group in GROUPS + 8..GROUPS + 16 {
            tables.make_ready(&kernel, group * GROUP_PAGES, false).expect("memory");
        }
        let first = (GROUPS + 8) * GROUP_PAGES;
        tables.release(&kernel, first, first, tables.pages);
        make_ready(&tables, &kernel, GROUPS..GROUPS + 1);
        assert_eq!([0, 1, 2].map(|array| tables.is_huge(array, GROUPS)), [true, true, false]);
        assert_eq!(kernel.page_state(tables.huge_page(2, GROUPS).end() - 1), PageState::Foreign);
        assert_eq!(kernel.violations(), []);
    }

    /// What is left behind a gap begins in the middle of a huge page.
    #[test]
    fn of_the_tables_behind_a_gap_no_huge_page_is_made() {
        let kernel = Kernel::new(Config::default());
        let tables = tables(&kernel);
        let behind = tables.behind(3 * GROUP_PAGES);
        make_ready(&behind, &kernel, 0..GROUPS + 9);
        touch(&behind, &kernel, GROUPS + 8);
        for array in 0..ARRAYS {
            assert!(!behind.is_huge(array, GROUPS + 8));
            let resident = kernel.residency(behind.parts(0, behind.pages)[array]).expect("it is mapped");
            assert!(resident.resident > 0 && resident.huge() == 0, "{resident:?}");
        }
        assert_eq!(kernel.violations(), []);
    }

    /// Also where all was one region when it was split.
    #[test]
    fn a_unit_that_was_split_is_not_joined_behind_a_gap() {
        let kernel = Kernel::new(Config::default());
        let tables = tables(&kernel);
        make_ready(&tables, &kernel, 0..2 * GROUPS);
        let behind = tables.behind(GROUPS * GROUP_PAGES + 3 * GROUP_PAGES);
        behind.part(&kernel, 0);
        assert!(!behind.is_split(0));
        tables.part(&kernel, GROUPS);
        let behind = tables.behind(GROUPS * GROUP_PAGES);
        assert!(behind.is_split(0) && !behind.is_huge(0, 0));
        behind.join(&kernel, 0);
        assert_eq!([0, 1, 2].map(|array| behind.is_huge(array, 0)), [false; 3]);
        assert_eq!(kernel.violations(), []);
    }

    #[test]
    fn metadata_that_is_given_back_is_memory_also_of_a_huge_page() {
        // Nothing was written there: what the kernel keeps all the same stands for what lives.
        let kernel = Kernel::new(Config { split_drops_zero: false, ..Config::default() });
        let tables = tables(&kernel);
        make_ready(&tables, &kernel, 0..GROUPS + 16);
        touch(&tables, &kernel, GROUPS);
        let charge = || kernel.memory_limits().expect("in a cgroup").charge;
        let before = charge();
        // All but the first group of a huge page of bitmaps.
        let pages = (GROUPS + 1) * GROUP_PAGES..(GROUPS + 8) * GROUP_PAGES;
        // SAFETY: nobody uses them.
        unsafe { tables.give_back(&kernel, pages.clone()) };
        let given = (pages.len() * ELEMENT.iter().sum::<usize>()) as u64;
        assert!(before - charge() >= given, "{} of {given}", before - charge());
        assert!(!(0..ARRAYS).any(|array| tables.is_huge(array, GROUPS)));
        let after = charge();
        kernel.run_khugepaged(1 << 20);
        assert_eq!(charge(), after, "the kernel does not collapse what is left");
        // The heap grows again.
        make_ready(&tables, &kernel, GROUPS + 16..GROUPS + 17);
        assert!((0..ARRAYS).all(|array| tables.is_huge(array, GROUPS)));
        assert_eq!(kernel.violations(), []);
    }

    #[test]
    fn the_kernel_gives_huge_pages_for_the_metadata_of_a_large_heap() {
        let os = Linux::new();
        let works = os.thp().is_ok_and(|thp| thp.mode != hugeheap_os::ThpMode::Never);
        if !works || os.page_sizes().huge != Some(ARENA_BYTES) {
            return eprintln!("skipped: no transparent huge pages of 2 MiB here");
        }
        let tables = tables(&os);
        make_ready(&tables, &os, 0..GROUPS + 1);
        touch(&tables, &os, GROUPS);
        let found = huge(&tables, &os, GROUPS);
        if found[0] == 0 {
            return eprintln!("skipped: the kernel had no huge page");
        }
        assert_eq!(found, ALL);
        // SAFETY: nobody uses them.
        unsafe { tables.give_back(&os, GROUPS * GROUP_PAGES..(GROUPS + 8) * GROUP_PAGES) };
        assert_eq!(huge(&tables, &os, GROUPS), [0; ARRAYS], "that of marks was split");
        let resident = os.residency(tables.huge_page(0, GROUPS)).expect("it is mapped").resident;
        assert_eq!(resident, 0);
    }

    /// Whether memory that is advised becomes a huge page now.
    fn has_huge_pages(os: &Linux) -> bool {
        let range = os.reserve(ARENA_BYTES, ARENA_BYTES).expect("address space");
        // SAFETY: just reserved, and used by nobody.
        unsafe {
            os.map(range, Backing::Thp).and_then(|()| os.touch(range)).expect("memory");
            let residency = os.residency(range).expect("it is mapped");
            os.release(range).expect("just reserved");
            residency.huge() != 0
        }
    }

    /// A look at a mark before it could be written found an OS page of zeros, and after that the kernel made no
    /// huge page of marks, for each half gigabyte of the heap.
    #[test]
    fn nobody_looks_at_a_mark_before_it_is_on_a_huge_page() {
        let space = crate::object::space();
        // Another thread's test may have some of an arena, of which fewer are had then.
        let mut pages = Vec::new();
        while pages.len() < (GROUPS + 1) * GROUP_PAGES {
            let mut some = [0; ARENA_BYTES / HEAP_PAGE_BYTES];
            let taken = space.take_pages(&mut some, 0);
            assert_ne!(taken, 0, "memory");
            pages.extend_from_slice(&some[..taken]);
        }
        let last = *pages.iter().max().expect("it has some");
        let page = space.page(last).expect("its region is known");
        let (tables, group) =
            (page.region().tables.expect("known regions have some"), page.index / GROUP_PAGES);
        for page in pages.iter().filter_map(|&page| space.page(page)) {
            page.vacant()[0].store(1, Ordering::Relaxed);
        }
        let [vacant, _, marks] = huge(&tables, &Linux::new(), group);
        space.give_pages(&pages);
        if vacant == 0 || marks == 0 && !has_huge_pages(&Linux::new()) {
            return eprintln!("skipped: the kernel had no huge page");
        }
        assert_eq!(marks, vacant);
    }

    #[test]
    fn parts_of_pages_are_left_alone() {
        let range = |start, len| Some(AddressRange { start, len });
        assert_eq!(whole_pages(0x1_0000..0x1_4000, 0x1000), range(0x1_0000, 0x4000));
        assert_eq!(whole_pages(0x1_0010..0x1_4010, 0x1000), range(0x1_1000, 0x3000));
        assert_eq!(whole_pages(0x1_0000..0x1_4000, 0x1_0000), None);
        assert_eq!(whole_pages(0x1_8000..0x3_8000, 0x1_0000), range(0x2_0000, 0x1_0000));
        assert_eq!(whole_pages(0x1_0000..0x1_0000, 0x1000), None);
    }
}

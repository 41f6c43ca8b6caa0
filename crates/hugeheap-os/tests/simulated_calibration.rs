//! The simulated kernel against what the real one does: a test per fact, named after it.
//!
//! Facts marked "measured" were seen on Linux 6.18 (x86-64, mode `madvise`), the others are from its documentation.

mod simulated_common;

use hugeheap_os::simulated::{Config, Fault, Kernel, PageState};
use hugeheap_os::{
    AddressRange, Advice, Backing, ErrorKind, Facts, Pages, Protection, ThpDefrag, ThpDisabled, ThpMode,
};
use simulated_common::{Driver, HUGE, OS, kinds, pages};

/// Measured: 300 huge pages, all but 4 KiB of each dropped: RSS 613 → 14 MB (with the program's own), charge stays;
/// `MADV_COLD` on what is left: the charge falls to what is mapped.
#[test]
fn partial_dontneed_lowers_rss_and_only_cold_lowers_the_charge() {
    let d = Driver::new(Config::default());
    let heap = d.mapped(300 * HUGE, Backing::Thp);
    d.touch(heap);
    assert_eq!((d.rss(), d.charge()), (300 * HUGE as u64, 300 * HUGE as u64));
    for arena in pages(heap, HUGE) {
        d.decommit(arena.start + OS, HUGE - OS);
    }
    assert_eq!(d.rss(), 300 * OS as u64);
    assert_eq!(d.charge(), 300 * HUGE as u64);
    assert_eq!(d.partially_mapped(), 300);
    assert_eq!(d.stranded(), 300 * (HUGE - OS) as u64);
    for arena in pages(heap, HUGE) {
        d.split(arena.start, OS);
    }
    assert_eq!((d.rss(), d.charge()), (300 * OS as u64, 300 * OS as u64));
    assert_eq!((d.partially_mapped(), d.stranded()), (0, 0));
    d.sound();
}

/// The memory controller's `anon` counts what is mapped: stranded memory is in the charge alone.
#[test]
fn stranded_memory_shows_in_the_charge_and_not_in_anon() {
    let d = Driver::new(Config::default());
    let heap = d.mapped(HUGE, Backing::Thp);
    d.touch(heap);
    d.decommit(heap.start, HUGE / 2);
    let limits = d.kernel.memory_limits().unwrap();
    assert_eq!((limits.charge, limits.anonymous), (HUGE as u64, Some(HUGE as u64 / 2)));
}

#[test]
fn whole_dontneed_frees_the_huge_page_at_once() {
    let d = Driver::new(Config::default());
    let heap = d.mapped(4 * HUGE, Backing::Thp);
    d.touch(heap);
    d.decommit(heap.start + HUGE, 2 * HUGE);
    assert_eq!((d.rss(), d.charge(), d.partially_mapped()), (2 * HUGE as u64, 2 * HUGE as u64, 0));
    // In two halves it is stranded in between, and free after the second.
    d.decommit(heap.start, HUGE / 2);
    assert_eq!((d.charge(), d.partially_mapped()), (2 * HUGE as u64, 1));
    d.decommit(heap.start + HUGE / 2, HUGE / 2);
    assert_eq!((d.charge(), d.partially_mapped()), (HUGE as u64, 0));
    d.sound();
}

#[test]
fn reclaim_splits_what_is_stranded() {
    let d = Driver::new(Config::default());
    let heap = d.mapped(2 * HUGE, Backing::Thp);
    d.touch(heap);
    d.decommit(heap.start, HUGE - OS);
    assert_eq!(d.kernel.reclaim(), (HUGE - OS) as u64);
    assert_eq!((d.charge(), d.partially_mapped()), ((HUGE + OS) as u64, 0));
    assert_eq!(d.kernel.page_state(heap.start + HUGE), PageState::Huge);
    d.sound();
}

#[test]
fn reaching_memory_max_splits_what_is_stranded_before_it_kills() {
    let d = Driver::new(Config::default().with_cgroup_max(2 * HUGE as u64));
    let heap = d.mapped(4 * HUGE, Backing::Thp);
    d.touch(pages(heap, HUGE)[0]);
    d.touch(pages(heap, HUGE)[1]);
    d.decommit(heap.start, HUGE - OS);
    // The third huge page does not fit, but the stranded part makes room for OS pages.
    d.kernel.touch(AddressRange::new(heap.start + 2 * HUGE, OS)).unwrap();
    assert_eq!(d.kernel.page_state(heap.start + 2 * HUGE), PageState::Small);
    assert_eq!(d.kernel.events().reclaims, 1);
    assert_eq!(d.kernel.touch(heap), Err(Fault::Oom));
    assert_eq!(d.kernel.events().ooms, 1);
    assert!(d.charge() <= 2 * HUGE as u64);
    d.sound();
}

/// Measured on 6.18 in a v1 group of 150 MiB: 124 MiB of huge pages, advised `MADV_FREE`, and 124 MiB touched
/// elsewhere. Without the advice the process is killed, with it 100 MiB of huge pages are gone afterwards,
/// whole. `linux_offer` has the same on the running kernel.
#[test]
fn reaching_memory_max_takes_what_is_offered_before_it_kills() {
    let d = Driver::new(Config::default().with_cgroup_max(4 * HUGE as u64));
    let heap = d.mapped(3 * HUGE, Backing::Thp);
    d.touch(heap);
    let other = d.mapped(2 * HUGE, Backing::Base);
    assert_eq!(d.kernel.touch(other), Err(Fault::Oom));
    // SAFETY: the test owns the range.
    unsafe { d.kernel.offer(heap).unwrap() };
    assert_eq!(d.charge(), 4 * HUGE as u64, "offered is not given back");
    d.touch(pages(heap, HUGE)[1]);
    d.kernel.touch(other).unwrap();
    assert_eq!(d.kernel.page_state(heap.start + HUGE), PageState::Huge, "it was written since");
    assert_eq!(d.kernel.events().taken, 2 * HUGE as u64);
    d.sound();
}

#[test]
fn memory_high_reclaims_and_does_not_refuse() {
    let d = Driver::new(Config::default());
    d.kernel.set_cgroup_high(Some(HUGE as u64));
    let heap = d.mapped(3 * HUGE, Backing::Thp);
    d.touch(heap);
    assert_eq!(d.charge(), 3 * HUGE as u64);
    assert_eq!(d.kernel.events().throttles, 2);
    d.decommit(heap.start, HUGE / 2);
    let more = d.mapped(HUGE, Backing::Base);
    d.touch(pages(more, OS)[0]);
    assert_eq!(d.charge(), (2 * HUGE + HUGE / 2 + OS) as u64);
    d.sound();
}

/// Measured: RSS 4 kB after `MADV_COLD` on a part of a huge page of which one OS page was written.
#[test]
fn splitting_frees_parts_that_were_never_written() {
    let d = Driver::new(Config::default());
    let heap = d.mapped(HUGE, Backing::Thp);
    d.touch(pages(heap, OS)[0]);
    assert_eq!(d.rss(), HUGE as u64);
    d.split(heap.start, OS);
    assert_eq!((d.rss(), d.charge()), (OS as u64, OS as u64));
    assert_eq!(d.kernel.page_state(heap.start + OS), PageState::Zero);
    d.touch(pages(heap, OS)[7]);
    assert_eq!(d.rss(), 2 * OS as u64);
    d.sound();

    let d = Driver::new(Config { split_drops_zero: false, ..Config::default() });
    let heap = d.mapped(HUGE, Backing::Thp);
    d.touch(pages(heap, OS)[0]);
    d.split(heap.start, OS);
    assert_eq!((d.rss(), d.charge()), (HUGE as u64, HUGE as u64));
    d.sound();
}

#[test]
fn cold_on_a_whole_huge_page_leaves_it_whole() {
    let d = Driver::new(Config::default());
    let heap = d.mapped(2 * HUGE, Backing::Thp);
    d.touch(heap);
    d.split(heap.start, 2 * HUGE);
    assert_eq!(d.kernel.events().splits, 0);
    assert_eq!(d.thp(heap), 2 * HUGE as u64);
    d.split(heap.start, HUGE + OS);
    assert_eq!(d.thp(heap), HUGE as u64);
    assert!(d.kernel.is_huge(heap.start));
}

#[test]
fn modes_decide_who_gets_huge_pages_at_a_touch() {
    use Backing::{Base, Plain, Thp};
    let cases = [
        (ThpMode::Always, [(Thp, true), (Plain, true), (Base, false)]),
        (ThpMode::Madvise, [(Thp, true), (Plain, false), (Base, false)]),
        (ThpMode::Never, [(Thp, false), (Plain, false), (Base, false)]),
    ];
    for (mode, backings) in cases {
        for (backing, huge) in backings {
            let d = Driver::new(Config::default().with_thp_mode(mode));
            let heap = d.mapped(HUGE, backing);
            d.touch(pages(heap, OS)[3]);
            assert_eq!(d.kernel.is_huge(heap.start), huge, "{mode:?} {backing:?}");
            assert_eq!(d.rss(), if huge { HUGE } else { OS } as u64);
        }
    }
}

#[test]
fn thp_disable_switches_off_faults_khugepaged_and_collapse() {
    let d = Driver::new(Config::default());
    d.kernel.set_process_thp_disabled(ThpDisabled::Completely);
    let heap = d.mapped(HUGE, Backing::Thp);
    d.touch(heap);
    assert_eq!(d.thp(heap), 0);
    assert_eq!(d.kernel.run_khugepaged(1 << 20), 0);
    assert_eq!(d.collapse(heap), Err(ErrorKind::Invalid));
    assert_eq!(d.kernel.thp_disabled(), Ok(ThpDisabled::Completely));
    // 6.18's mode leaves advised ranges alone, and an explicit collapse counts as advice.
    let d = Driver::new(Config { thp_disabled: ThpDisabled::ExceptAdvised, ..Config::default() });
    d.kernel.set_thp_mode(ThpMode::Always);
    let (advised, plain) = (d.mapped(HUGE, Backing::Thp), d.mapped(HUGE, Backing::Plain));
    d.touch(advised);
    d.touch(plain);
    assert_eq!((d.thp(advised), d.thp(plain)), (HUGE as u64, 0));
    assert_eq!(d.collapse(plain), Ok(()));
    d.sound();
}

#[test]
fn a_mapping_smaller_than_a_huge_page_cannot_hold_one() {
    let d = Driver::new(Config::default());
    let heap = d.reserved(HUGE);
    let (first, second) = (pages(heap, HUGE / 2)[0], pages(heap, HUGE / 2)[1]);
    d.map(first, Backing::Thp);
    d.touch(first);
    assert_eq!(d.thp(first), 0);
    // When its neighbour arrives they merge, but the range has a page table already.
    d.map(second, Backing::Thp);
    assert_eq!(d.kernel.mappings(), 1);
    d.touch(second);
    assert_eq!(d.thp(heap), 0);
    assert_eq!(d.collapse(heap), Ok(()));
    assert_eq!(d.thp(heap), HUGE as u64);
    d.sound();
}

/// Measured: after dropping single OS pages the page table stays, and the next touch gets an OS page; after dropping
/// the range with one call, a huge page.
#[test]
fn a_range_emptied_in_pieces_keeps_its_page_table() {
    let d = Driver::new(Config::default());
    let heap = d.mapped(HUGE, Backing::Thp);
    d.touch(heap);
    d.decommit(heap.start, OS);
    d.decommit(heap.start + OS, HUGE - OS);
    assert_eq!(d.charge(), 0);
    d.touch(pages(heap, OS)[0]);
    assert_eq!(d.rss(), OS as u64);
    d.decommit(heap.start, HUGE);
    d.touch(pages(heap, OS)[0]);
    assert_eq!(d.rss(), HUGE as u64);
    d.sound();

    // Before 6.14 that table stayed too; mapping anew frees it.
    let d = Driver::new(Config { frees_page_tables: false, ..Config::default() });
    let heap = d.mapped(HUGE, Backing::Thp);
    d.touch(heap);
    d.decommit(heap.start, OS);
    d.decommit(heap.start, HUGE);
    d.touch(pages(heap, OS)[0]);
    assert_eq!(d.rss(), OS as u64);
    d.unmap(heap);
    d.map(heap, Backing::Thp);
    d.touch(pages(heap, OS)[0]);
    assert_eq!(d.rss(), HUGE as u64);
    d.sound();
}

/// Measured: a read maps the zero page, which is not resident; a write gets a huge page where the huge
/// zero page was, an OS page where single zero pages were.
#[test]
fn reads_of_untouched_memory_cost_nothing() {
    let d = Driver::new(Config::default());
    let heap = d.mapped(HUGE, Backing::Thp);
    d.kernel.touch_read(heap).unwrap();
    assert_eq!((d.rss(), d.charge(), d.kernel.page_state(heap.start)), (0, 0, PageState::Zero));
    d.touch(pages(heap, OS)[0]);
    assert_eq!(d.rss(), HUGE as u64);
    let plain = d.mapped(HUGE, Backing::Plain);
    d.kernel.touch_read(pages(plain, OS)[0]).unwrap();
    d.advise(plain, Advice::Huge);
    d.touch(pages(plain, OS)[0]);
    assert_eq!(d.thp(plain), 0);
    d.sound();
}

#[test]
fn without_a_free_block_a_touch_gets_an_os_page() {
    let d = Driver::new(Config { free_huge_pages: Some(1), ..Config::default() });
    let heap = d.mapped(2 * HUGE, Backing::Thp);
    d.touch(heap);
    assert_eq!(d.thp(heap), HUGE as u64);
    assert_eq!(d.kernel.events().huge_fallbacks, 1);
    assert_eq!(d.kernel.events().faults, 512);
    // The block comes back when the huge page is freed.
    d.decommit(heap.start, HUGE);
    d.decommit(heap.start + HUGE, HUGE);
    d.touch(pages(heap, OS)[0]);
    assert_eq!(d.thp(heap), HUGE as u64);
    d.sound();
}

#[test]
fn direct_compaction_is_for_those_the_defrag_knob_names() {
    use ThpDefrag::{Always, Defer, DeferMadvise, Madvise, Never};
    for (defrag, advised, plain) in
        [(Always, 1, 2), (Madvise, 1, 1), (DeferMadvise, 1, 1), (Defer, 0, 0), (Never, 0, 0)]
    {
        let d = Driver::new(Config { compactable_huge_pages: 9, ..Config::default() });
        d.kernel.set_free_huge_pages(Some(0));
        d.kernel.set_thp_mode(ThpMode::Always);
        d.kernel.set_thp_defrag(defrag);
        d.touch(d.mapped(HUGE, Backing::Thp));
        assert_eq!(d.kernel.events().compactions, advised, "{defrag:?}");
        d.touch(d.mapped(HUGE, Backing::Plain));
        assert_eq!(d.kernel.events().compactions, plain, "{defrag:?}");
        d.sound();
    }
}

/// Measured: a folio mapped by single entries is split only when the range does not hold all of it.
#[test]
fn cold_on_all_single_entries_of_a_huge_page_leaves_it_whole() {
    let d = Driver::new(Config::default());
    let heap = d.mapped(HUGE, Backing::Thp);
    d.touch(heap);
    d.protect(pages(heap, OS)[0], Protection::Read);
    d.protect(heap, Protection::ReadWrite);
    d.split(heap.start, HUGE);
    assert_eq!(d.kernel.page_state(heap.start), PageState::Part);
    d.split(heap.start, HUGE / 2);
    assert_eq!(d.kernel.page_state(heap.start), PageState::Small);
    d.sound();
}

/// Measured: dropped with one call, but by two mappings, the page table in common stays.
#[test]
fn a_page_table_of_two_mappings_stays_when_both_are_dropped() {
    let d = Driver::new(Config::default());
    let heap = d.mapped(HUGE, Backing::Base);
    d.touch(pages(heap, OS)[0]);
    d.advise(pages(heap, HUGE / 2)[1], Advice::Huge);
    d.decommit(heap.start, HUGE);
    d.advise(heap, Advice::Huge);
    d.touch(pages(heap, OS)[0]);
    assert_eq!(d.rss(), OS as u64);
    d.sound();
}

/// Measured: populated memory is all zero, so a split leaves nothing of it.
#[test]
fn populated_memory_counts_as_never_written() {
    let d = Driver::new(Config::default());
    let heap = d.mapped(HUGE, Backing::Thp);
    d.populate(heap).unwrap();
    assert_eq!(d.thp(heap), HUGE as u64);
    d.split(heap.start, OS);
    assert_eq!((d.rss(), d.charge()), (0, 0));
    d.sound();
}

#[test]
fn advice_splits_and_merges_mappings() {
    let d = Driver::new(Config::default());
    let heap = d.mapped(8 * HUGE, Backing::Plain);
    assert_eq!(d.kernel.mappings(), 1);
    for arena in pages(heap, HUGE).iter().step_by(2) {
        d.advise(*arena, Advice::Huge);
    }
    assert_eq!(d.kernel.mappings(), 8);
    d.advise(heap, Advice::Huge);
    assert_eq!(d.kernel.mappings(), 1);
    d.kernel.set_map_limit(2);
    let arena = pages(heap, HUGE)[3];
    // SAFETY: advice changes no contents.
    let refused = unsafe { d.kernel.advise(arena, Advice::NoHuge) };
    assert_eq!(refused.map_err(|error| error.kind()), Err(ErrorKind::OutOfMemory));
    assert_eq!(d.kernel.mappings(), 1);
    d.sound();
}

#[test]
fn address_space_limit_counts_reservations() {
    let d = Driver::new(Config { address_space_limit: Some(3 * HUGE as u64), ..Config::default() });
    let first = d.reserved(2 * HUGE);
    assert_eq!(kinds(d.kernel.reserve(2 * HUGE, HUGE)), Err(ErrorKind::OutOfMemory));
    let limit = d.kernel.address_space_limit().unwrap();
    assert_eq!((limit.limit, limit.used), (3 * HUGE as u64, 2 * HUGE as u64));
    d.release(first);
    d.reserved(3 * HUGE);
    d.sound();
}

/// Linux 6.x, `RLIMIT_DATA` and `VmData`: private memory counts while it can be written, resident or not
/// (`linux_pages` asks the running kernel).
#[test]
fn data_limit_counts_what_can_be_written_until_it_is_unmapped() {
    let d = Driver::new(Config { data_limit: Some(3 * HUGE as u64), ..Config::default() });
    assert_eq!(d.kernel.data_limit(), Some(3 * HUGE as u64));
    let heap = d.mapped(2 * HUGE, Backing::Thp);
    d.touch(heap);
    d.decommit(heap.start, 2 * HUGE);
    assert_eq!(d.kernel.data(), 2 * HUGE as u64);
    let more = d.reserved(2 * HUGE);
    // SAFETY: the range was just reserved.
    let refused = unsafe { d.kernel.map(more, Backing::Plain) };
    assert_eq!(kinds(refused), Err(ErrorKind::OutOfMemory));
    // SAFETY: nothing is kept there.
    unsafe { d.kernel.unmap(pages(heap, HUGE)[0]).unwrap() };
    d.map(more, Backing::Zeros);
    assert_eq!(d.kernel.data(), HUGE as u64);
    d.protect(more, Protection::ReadWrite);
    assert_eq!(d.kernel.data(), 3 * HUGE as u64);
    d.sound();
}

#[test]
fn a_kernel_without_huge_pages_says_so() {
    let d = Driver::new(Config::with_page_sizes(OS, None));
    assert_eq!(kinds(d.kernel.thp()), Err(ErrorKind::Missing));
    let range = d.reserved(HUGE);
    // SAFETY: the range was just reserved.
    let refused = unsafe { d.kernel.map(range, Backing::Thp) };
    assert_eq!(kinds(refused), Err(ErrorKind::Invalid));
    assert_eq!(d.kernel.page_state(range.start), PageState::Reserved);
    d.map(range, Backing::Base);
    d.touch(range);
    assert_eq!((d.rss(), d.thp(range)), (HUGE as u64, 0));
    d.sound();
}

#[test]
fn other_page_sizes_work() {
    for (os, huge) in [(16 << 10, 32 << 20), (64 << 10, 512 << 20), (OS, 1 << 20)] {
        let kernel = Kernel::new(Config::with_page_sizes(os, Some(huge)));
        let range = kernel.reserve(2 * huge, huge).unwrap();
        let (first, rest) =
            (AddressRange::new(range.start, os), AddressRange::new(range.start + os, huge - os));
        // SAFETY: a range of this test's own.
        unsafe { kernel.map(range, Backing::Thp).unwrap() };
        kernel.touch(range).unwrap();
        assert_eq!(kernel.residency(range).unwrap().thp, 2 * huge as u64);
        // SAFETY: nothing is kept there.
        unsafe { kernel.decommit(rest).unwrap() };
        assert_eq!(kernel.charge(), 2 * huge as u64);
        // SAFETY: contents do not change.
        unsafe { kernel.split(first).unwrap() };
        assert_eq!(kernel.charge(), (huge + os) as u64);
        kernel.check().unwrap();
    }
}

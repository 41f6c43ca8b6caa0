//! The simulated kernel as a tool of tests: failures on demand, time, the log, and what it objects to.

mod simulated_common;

use core::time::Duration;
use hugeheap_os::simulated::{Call, Config, Fault, Kernel, Misuse, PageState};
use hugeheap_os::{
    AddressRange, Advice, Backing, Capabilities, CgroupVersion, ErrorKind, Facts, Os, Pages, Pressure,
    Protection,
};
use simulated_common::{Driver, HUGE, OS, kinds, pages};

fn is_os<T: Os + Send + Sync + Clone>(_: &T) {}

#[test]
fn a_kernel_is_an_os_and_its_clones_are_the_same_process() {
    let d = Driver::new(Config::default());
    is_os(&d.kernel);
    let clone = d.kernel.clone();
    let range = d.mapped(HUGE, Backing::Thp);
    clone.touch(range).unwrap();
    assert_eq!(d.rss(), HUGE as u64);
    assert!(format!("{:?}", d.kernel).contains("rss: 2097152"));
}

#[test]
fn reservations_are_aligned_to_what_was_asked_and_no_more() {
    let d = Driver::new(Config::default());
    for align in [OS, 16 << 10, HUGE, 4 * HUGE] {
        let range = d.kernel.reserve(HUGE, align).unwrap();
        assert_eq!(range.start % align, 0);
        assert_ne!(range.start % (2 * align), 0);
    }
    assert_eq!(d.kernel.mappings(), 4);
}

#[test]
fn lengths_of_reservations_are_rounded_up() {
    let d = Driver::new(Config::default());
    assert_eq!(d.kernel.reserve(100, OS).unwrap().len, OS);
    assert_eq!(kinds(d.kernel.reserve(usize::MAX, OS)), Err(ErrorKind::OutOfMemory));
    d.kernel.set_address_space_limit(Some(1));
    assert_eq!(kinds(d.kernel.reserve(OS, OS)), Err(ErrorKind::OutOfMemory));
    d.sound();
}

#[test]
fn memory_is_real_and_keeps_its_contents() {
    let d = Driver::new(Config::default());
    let heap = d.mapped(4 * HUGE, Backing::Thp);
    d.expect_zero(heap);
    d.touch(heap);
    d.fill(heap);
    d.decommit(heap.start + HUGE + OS, HUGE - OS);
    d.split(heap.start, 2 * HUGE);
    assert_eq!(d.collapse(heap), Ok(()));
    let quarter = pages(heap, HUGE);
    d.expect_filled(quarter[0], quarter[0].start);
    d.expect_filled(pages(quarter[1], OS)[0], quarter[1].start);
    d.expect_zero(AddressRange::new(quarter[1].start + OS, HUGE - OS));
    d.unmap(quarter[2]);
    d.map(quarter[2], Backing::Base);
    d.expect_zero(quarter[2]);
    d.expect_filled(quarter[3], quarter[3].start);
    d.release(heap);
    assert_eq!((d.rss(), d.charge(), d.kernel.mappings()), (0, 0, 0));
    d.sound();
}

#[test]
fn observe_catches_up_with_code_that_does_not_touch() {
    let d = Driver::new(Config::default());
    let heap = d.mapped(HUGE, Backing::Base);
    d.fill(AddressRange::new(heap.start + 5 * OS, 3 * OS));
    assert_eq!(d.rss(), 0);
    d.kernel.observe(heap).unwrap();
    assert_eq!(d.rss(), 3 * OS as u64);
    assert_eq!(d.kernel.page_state(heap.start + 4 * OS), PageState::Empty);
    assert_eq!(d.kernel.page_state(heap.start + 5 * OS), PageState::Small);
    // Decommitted, it is really gone and not seen again.
    d.decommit(heap.start, HUGE);
    d.kernel.observe(heap).unwrap();
    assert_eq!(d.rss(), 0);
    // Over the ends of reservations and through ranges that are only reserved.
    let other = d.reserved(HUGE);
    d.fill(heap);
    d.protect(pages(heap, OS)[0], Protection::Read);
    d.kernel.observe(AddressRange::new(0, usize::MAX)).unwrap();
    // What may not be written is passed over.
    assert_eq!(d.rss(), (HUGE - OS) as u64);
    assert_eq!(d.kernel.page_state(other.start), PageState::Reserved);
    d.sound();
}

#[test]
fn enforced_access_follows_the_model() {
    let d = Driver::new(Config { enforce_access: true, ..Config::default() });
    let heap = d.mapped(2 * HUGE, Backing::Thp);
    d.touch(heap);
    d.fill(heap);
    d.protect(heap, Protection::None);
    // Moving and dropping protected memory works all the same.
    let other = d.reserved(2 * HUGE);
    d.relocate(heap, other);
    d.protect(other, Protection::Read);
    d.expect_filled(other, heap.start);
    d.decommit(other.start, HUGE);
    d.expect_zero(pages(other, HUGE)[0]);
    d.protect(heap, Protection::ReadWrite);
    d.fill(heap);
    d.unmap(heap);
    d.map(heap, Backing::Plain);
    d.expect_zero(heap);
    d.sound();
}

#[test]
fn failures_on_demand_change_nothing() {
    let d = Driver::new(Config::default());
    let heap = d.mapped(HUGE, Backing::Thp);
    d.touch(heap);
    let cases = [
        (Call::Collapse, libc::EAGAIN, ErrorKind::Again),
        (Call::Collapse, libc::EBUSY, ErrorKind::Busy),
        (Call::Decommit, libc::ENOMEM, ErrorKind::OutOfMemory),
        (Call::Unmap, libc::ENOMEM, ErrorKind::OutOfMemory),
        (Call::Split, libc::EPERM, ErrorKind::Permission),
        (Call::Populate, libc::EINVAL, ErrorKind::Invalid),
        (Call::Advise, libc::ENOSYS, ErrorKind::Unsupported),
        (Call::Protect, libc::EACCES, ErrorKind::Permission),
    ];
    for (call, code, kind) in cases {
        d.kernel.fail_next(call, code, 1);
        // SAFETY: the range is this test's own.
        let result = unsafe {
            match call {
                Call::Collapse => d.kernel.collapse(heap),
                Call::Decommit => d.kernel.decommit(heap),
                Call::Unmap => d.kernel.unmap(heap),
                Call::Split => d.kernel.split(AddressRange::new(heap.start, OS)),
                Call::Populate => d.kernel.populate(heap),
                Call::Advise => d.kernel.advise(heap, Advice::NoHuge),
                _ => d.kernel.protect(heap, Protection::None),
            }
        };
        let error = result.unwrap_err();
        assert_eq!((error.kind(), error.call), (kind, call.name()));
        assert_eq!(d.kernel.failures(call), d.kernel.calls(call));
        assert_eq!(d.thp(heap), HUGE as u64);
        assert_eq!(d.kernel.mapping_at(heap.start).unwrap().advice, Some(Advice::Huge));
    }
    assert_eq!(d.kernel.injected(), cases.len() as u64);
    d.sound();
}

#[test]
fn facts_fail_on_demand_too() {
    let kernel = Kernel::default();
    kernel.fail_next(Call::MemoryLimits, libc::ENOENT, 1);
    kernel.fail_every(Call::Thp, 2, libc::EACCES);
    assert_eq!(kinds(kernel.memory_limits()), Err(ErrorKind::Missing));
    assert!(kernel.memory_limits().is_ok());
    let thp: Vec<_> = (0..4).map(|_| kernel.thp().is_ok()).collect();
    assert_eq!(thp, [true, false, true, false]);
    kernel.fail_no_more();
    assert!(kernel.thp().is_ok() && kernel.thp().is_ok());
}

#[test]
fn random_failures_repeat_with_their_seed() {
    let run = |seed| {
        let d = Driver::new(Config::default());
        let heap = d.mapped(HUGE, Backing::Thp);
        d.kernel.fail_randomly(seed, 300);
        // SAFETY: the range is this test's own.
        (0..200).map(|_| unsafe { d.kernel.decommit(heap) }.map_err(|e| e.code)).collect::<Vec<_>>()
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
    let codes: std::collections::BTreeSet<_> =
        run(3).into_iter().filter_map(core::result::Result::err).collect();
    assert_eq!(codes.len(), Call::Decommit.plausible_errors().len());
}

#[test]
fn time_stands_still_but_for_costs_and_advances() {
    let d = Driver::new(Config::default());
    let heap = d.mapped(2 * HUGE, Backing::Plain);
    assert_eq!(d.kernel.now(), Duration::ZERO);
    d.kernel.set_cost(Call::Fault, Duration::from_micros(1));
    d.kernel.set_cost(Call::HugeFault, Duration::from_micros(100));
    d.kernel.set_cost(Call::Collapse, Duration::from_millis(5));
    d.touch(pages(heap, HUGE)[0]);
    assert_eq!(d.kernel.now(), Duration::from_micros(512));
    d.collapse(pages(heap, HUGE)[0]).unwrap();
    assert_eq!(d.kernel.now(), Duration::from_micros(5512));
    d.advise(heap, Advice::Huge);
    d.touch(heap);
    assert_eq!(d.kernel.now(), Duration::from_micros(5612));
    d.kernel.advance(Duration::from_secs(1));
    assert_eq!(d.kernel.now(), Duration::from_micros(1_005_612));
    d.kernel.set_free_huge_pages(Some(0));
    d.kernel.set_compactable_huge_pages(1);
    d.kernel.set_cost(Call::Compaction, Duration::from_millis(7));
    d.decommit(heap.start, OS);
    assert_eq!(d.collapse(pages(heap, HUGE)[0]), Ok(()));
    assert_eq!(d.kernel.now(), Duration::from_micros(1_017_612));
    // The thread worked but for what was only waited for, and for what others had the processor.
    assert_eq!(d.kernel.thread_time(), Duration::from_micros(17_612));
    d.kernel.set_preemption(Call::Fault, Duration::from_secs(1));
    d.decommit(heap.start, OS);
    d.touch(pages(heap, OS)[0]);
    assert_eq!(d.kernel.now(), Duration::from_micros(2_017_613));
    assert_eq!(d.kernel.thread_time(), Duration::from_micros(17_613));
    d.kernel.work(Duration::from_micros(387));
    assert_eq!(d.kernel.now(), Duration::from_micros(2_018_000));
    assert_eq!(d.kernel.thread_time(), Duration::from_micros(18_000));
}

#[test]
fn the_log_keeps_the_last_calls() {
    let d = Driver::new(Config { log_capacity: 3, ..Config::default() });
    let heap = d.mapped(HUGE, Backing::Thp);
    d.touch(heap);
    d.kernel.fail_next(Call::Split, libc::EAGAIN, 1);
    // SAFETY: contents do not change.
    unsafe { d.kernel.split(heap) }.unwrap_err();
    let _ = d.kernel.total_memory();
    let log: Vec<_> = d.kernel.log().iter().map(|entry| (entry.call, entry.range, entry.code)).collect();
    let nothing = AddressRange::new(0, 0);
    assert_eq!(
        log,
        [(Call::Map, heap, 0), (Call::Split, heap, libc::EAGAIN), (Call::TotalMemory, nothing, 0)]
    );
    assert_eq!((d.kernel.calls(Call::Reserve), d.kernel.calls(Call::HugeFault)), (1, 1));
    d.kernel.clear_log();
    assert!(d.kernel.log().is_empty());
    assert_eq!(d.kernel.calls(Call::Map), 1);
}

#[test]
fn each_misuse_is_noticed() {
    let d = Driver::new(Config::default().with_pool(4));
    let k = &d.kernel;
    let (heap, spare) = (d.reserved(4 * HUGE), d.reserved(HUGE));
    let part = pages(heap, HUGE)[1];
    let odd = AddressRange::new(part.start + 1, OS);
    let outside = AddressRange::new(1 << 20, OS);
    let across = AddressRange::new(heap.end() - OS, 2 * OS);
    let empty = AddressRange::new(heap.start, 0);
    let wraps = AddressRange::new(usize::MAX - OS + 1, OS);
    let expect = |result: hugeheap_os::Result<()>, call, misuse| {
        assert_eq!(kinds(result), Err(ErrorKind::Invalid));
        let violations = k.violations();
        let last = violations.last().expect("a violation");
        assert_eq!((last.call, last.misuse), (call, misuse), "{last}");
        k.clear_violations();
    };
    // SAFETY: every call is refused, or about ranges of this test's own.
    unsafe {
        expect(k.reserve(0, OS).map(drop), Call::Reserve, Misuse::Empty);
        expect(k.reserve(HUGE, 3 * OS).map(drop), Call::Reserve, Misuse::Misaligned);
        expect(k.map(outside, Backing::Plain), Call::Map, Misuse::NotReserved);
        expect(k.map(across, Backing::Plain), Call::Map, Misuse::NotReserved);
        expect(k.map(odd, Backing::Plain), Call::Map, Misuse::Misaligned);
        expect(k.map(empty, Backing::Plain), Call::Map, Misuse::Empty);
        expect(k.map(wraps, Backing::Plain), Call::Map, Misuse::Empty);
        let small = AddressRange::new(heap.start, OS);
        expect(k.map(small, Backing::Hugetlb(HUGE)), Call::Map, Misuse::Misaligned);
        k.map(part, Backing::Plain).unwrap();
        expect(k.map(heap, Backing::Plain), Call::Map, Misuse::AlreadyMapped);
        expect(k.unmap(heap), Call::Unmap, Misuse::NotMapped);
        expect(k.advise(heap, Advice::Huge), Call::Advise, Misuse::NotMapped);
        expect(k.populate(heap), Call::Populate, Misuse::NotMapped);
        expect(k.collapse(heap), Call::Collapse, Misuse::NotMapped);
        expect(k.collapse(pages(part, OS)[0]), Call::Collapse, Misuse::Misaligned);
        expect(k.split(heap), Call::Split, Misuse::NotMapped);
        expect(k.decommit(heap), Call::Decommit, Misuse::NotMapped);
        expect(k.protect(heap, Protection::Read), Call::Protect, Misuse::NotMapped);
        expect(k.relocate(part, part), Call::Relocate, Misuse::BadPair);
        expect(k.relocate(part, pages(heap, OS)[0]), Call::Relocate, Misuse::BadPair);
        k.map(spare, Backing::Hugetlb(HUGE)).unwrap();
        expect(k.relocate(part, spare), Call::Relocate, Misuse::AlreadyMapped);
        expect(k.relocate(spare, pages(heap, HUGE)[0]), Call::Relocate, Misuse::Hugetlb);
        expect(k.decommit(spare), Call::Decommit, Misuse::Hugetlb);
        expect(k.name(outside, c"heap"), Call::Name, Misuse::NotReserved);
        expect(k.residency(outside).map(drop), Call::Residency, Misuse::NotReserved);
        expect(k.is_resident(outside).map(drop), Call::IsResident, Misuse::NotReserved);
        expect(k.release(part), Call::Release, Misuse::NotWhole);
        expect(k.release_part(outside), Call::ReleasePart, Misuse::NotReserved);
    }
    for (range, misuse) in [(outside, Misuse::NotReserved), (heap, Misuse::NotMapped), (wraps, Misuse::Empty)]
    {
        assert_eq!(k.touch(range), Err(Fault::Segv));
        let last = *k.violations().last().unwrap();
        assert_eq!((last.call, last.misuse), (Call::Fault, misuse));
        k.clear_violations();
    }
    // Length 0 is nothing to do for advice and its like, as for a real kernel.
    // SAFETY: nothing to do.
    unsafe {
        k.decommit(empty).unwrap();
        k.split(empty).unwrap();
        k.populate(empty).unwrap();
        k.collapse(empty).unwrap();
        k.protect(empty, Protection::None).unwrap();
        k.advise(empty, Advice::Huge).unwrap();
    }
    k.touch(empty).unwrap();
    d.sound();
}

#[test]
fn a_part_that_was_released_belongs_to_the_reservation_no_more() {
    let d = Driver::new(Config { address_space_limit: Some(9 * HUGE as u64), ..Config::default() });
    let k = &d.kernel;
    let heap = d.reserved(8 * HUGE);
    let all = pages(heap, HUGE);
    let middle = AddressRange::new(all[2].start, 3 * HUGE);
    // SAFETY: ranges of this test's own.
    unsafe {
        for range in [all[1], all[3], all[6]] {
            k.map(range, Backing::Plain).unwrap();
            k.touch(range).unwrap();
        }
        let held = k.charge();
        k.fail_every(Call::ReleasePart, 1, libc::ENOMEM);
        assert_eq!(kinds(k.release_part(middle)), Err(ErrorKind::OutOfMemory));
        k.fail_no_more();
        assert_eq!(k.charge(), held, "a refused call changes nothing");
        k.release_part(middle).unwrap();
        assert_eq!(k.charge(), held / 3 * 2, "with everything in it");
        // Others may have it, and this reservation no call about it.
        let others = k.reserve(3 * HUGE, OS).unwrap();
        assert_eq!(kinds(k.reserve(2 * HUGE, OS)), Err(ErrorKind::OutOfMemory));
        for range in [all[2], AddressRange::new(all[1].start, 2 * HUGE), heap] {
            assert_eq!(kinds(k.name(range, c"heap")), Err(ErrorKind::Invalid));
        }
        assert_eq!(k.touch(all[3]), Err(Fault::Segv));
        k.clear_violations();
        k.release(others).unwrap();
        // What is left is used as before, up to the edge.
        k.map(all[5], Backing::Plain).unwrap();
        k.touch(all[5]).unwrap();
        k.unmap(all[1]).unwrap();
        k.release_part(AddressRange::new(all[6].start, 2 * HUGE)).unwrap();
    }
    assert_eq!(k.violations(), []);
    k.check().unwrap();
}

#[test]
fn what_is_not_supported_fails() {
    let d = Driver::new(Config::default());
    let heap = d.mapped(2 * HUGE, Backing::Plain);
    d.touch(pages(heap, HUGE)[0]);
    d.kernel.set_capabilities(Capabilities::default());
    assert_eq!(d.kernel.capabilities(), Capabilities::default());
    let other = d.reserved(2 * HUGE);
    // SAFETY: ranges of this test's own.
    unsafe {
        assert_eq!(kinds(d.kernel.advise(heap, Advice::Huge)), Err(ErrorKind::Invalid));
        assert_eq!(kinds(d.kernel.map(other, Backing::Thp)), Err(ErrorKind::Invalid));
        assert_eq!(kinds(d.kernel.collapse(heap)), Err(ErrorKind::Invalid));
        assert_eq!(kinds(d.kernel.split(heap)), Err(ErrorKind::Invalid));
        assert_eq!(kinds(d.kernel.populate(heap)), Err(ErrorKind::Invalid));
        assert_eq!(kinds(d.kernel.relocate(heap, other)), Err(ErrorKind::Unsupported));
        assert_eq!(kinds(d.kernel.name(heap, c"hugeheap")), Err(ErrorKind::Invalid));
        assert_eq!(kinds(d.kernel.map(other, Backing::Hugetlb(HUGE >> 5))), Err(ErrorKind::Invalid));
    }
    assert_eq!(d.kernel.page_state(other.start), PageState::Reserved);
    assert_eq!(d.rss(), HUGE as u64);
    d.sound();
}

#[test]
fn names_split_mappings_and_have_rules() {
    let d = Driver::new(Config::default());
    let heap = d.mapped(2 * HUGE, Backing::Thp);
    d.touch(heap);
    d.kernel.name(AddressRange::new(heap.start, HUGE), c"hugeheap").unwrap();
    assert_eq!(d.kernel.mappings(), 2);
    assert_eq!(d.kernel.mapping_at(heap.start).unwrap().name.as_deref(), Some(c"hugeheap"));
    assert_eq!(d.thp(heap), 2 * HUGE as u64);
    d.kernel.name(AddressRange::new(heap.start + HUGE, HUGE), c"hugeheap").unwrap();
    assert_eq!(d.kernel.mappings(), 1);
    assert_eq!(kinds(d.kernel.name(heap, c"a[b]")), Err(ErrorKind::Invalid));
    d.kernel.name(heap, c"").unwrap();
    assert_eq!(d.kernel.mapping_at(heap.start).unwrap().name, None);
    d.sound();
}

#[test]
fn facts_tell_what_was_configured() {
    let kernel =
        Kernel::new(Config { cgroup: Some(CgroupVersion::V1), other_charge: 5, ..Config::default() });
    kernel.set_cgroup_max(Some(100 << 20));
    kernel.set_cgroup_high(Some(90 << 20));
    let limits = kernel.memory_limits().unwrap();
    assert_eq!(
        (limits.version, limits.max, limits.high),
        (CgroupVersion::V1, Some(100 << 20), Some(90 << 20))
    );
    assert_eq!((limits.charge, limits.anonymous), (5, Some(0)));
    assert_eq!(kernel.memory_room(), Ok(Some(100 << 20)), "neither `high` nor what can be dropped counts");
    kernel.set_other_charge(7);
    assert_eq!(kernel.charge(), 7);
    let pressure = Pressure { some_avg10: 12.5, full_avg10: 3.0 };
    kernel.set_pressure(pressure);
    assert_eq!(kernel.pressure(), Ok(pressure));
    kernel.set_total_memory(1 << 30);
    assert_eq!(kernel.total_memory(), Ok(1 << 30));
    assert_eq!(kernel.available_memory(), Ok((1 << 30) - 7));
    assert_eq!(kernel.numa_nodes().unwrap()[0].total, 1 << 30);
    assert_eq!(kernel.caches().unwrap().len(), 4);
    assert_eq!(kernel.address_space_limit(), None);
    assert_eq!(kernel.page_sizes().huge, Some(HUGE));
    let sizes: Vec<_> = kernel.hugetlb_pools().unwrap().iter().map(|pool| pool.page_size).collect();
    assert_eq!(sizes, [HUGE, 1 << 30]);
    assert_eq!(kernel.hugetlb_pool(OS), Ok(None));
    let kernel = Kernel::new(Config { cgroup: None, ..Config::default() });
    assert_eq!(kinds(kernel.memory_limits()), Err(ErrorKind::Missing));
}

#[test]
fn threads_may_call_at_once() {
    let d = Driver::new(Config::default().with_cgroup_max(20 * HUGE as u64));
    let heap = d.reserved(16 * HUGE);
    std::thread::scope(|scope| {
        for part in pages(heap, 4 * HUGE) {
            let kernel = d.kernel.clone();
            scope.spawn(move || {
                for round in 0..50 {
                    // SAFETY: the part is this thread's own.
                    unsafe {
                        kernel.map(part, if round % 2 == 0 { Backing::Thp } else { Backing::Base }).unwrap();
                        kernel.touch(part).unwrap();
                        kernel.decommit(AddressRange::new(part.start + OS, HUGE)).unwrap();
                        kernel.split(part).unwrap();
                        kernel.unmap(part).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!((d.rss(), d.charge()), (0, 0));
    d.sound();
}

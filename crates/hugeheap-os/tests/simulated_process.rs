//! Collapse and release on a simulated process: what is chosen, in which order, when it stops, and that contents stay.

use core::time::Duration;
use hugeheap_os::process::{
    CollapseOptions, CollapsePlan, MappingKind, Picture, Process, ReleaseOptions, Stop, collapse, release,
};
use hugeheap_os::simulated::{Call, Config, Kernel, PageState, RemoteProcess};
use hugeheap_os::{AddressRange, Advice, Backing, Pages, ThpDisabled};

const OS: usize = 4096;
const HUGE: usize = 2 << 20;
const UNIT: u32 = 512;

fn nothing(_: f64) {}

/// A mapping of `units` units without huge pages, of which the first `pages[n]` OS pages of unit n are written.
fn heap(kernel: &Kernel, pages: &[u32]) -> AddressRange {
    let range = kernel.reserve(pages.len() * HUGE, HUGE).unwrap();
    // SAFETY: the range was just reserved.
    unsafe { kernel.map(range, Backing::Plain).unwrap() };
    for (unit, pages) in pages.iter().enumerate() {
        kernel.touch(AddressRange::new(range.start + unit * HUGE, *pages as usize * OS)).unwrap();
    }
    range
}

/// A mapping of huge pages of which all but the first `pages[n]` OS pages are dropped.
fn stranded(kernel: &Kernel, pages: &[usize]) -> AddressRange {
    let range = kernel.reserve(pages.len() * HUGE, HUGE).unwrap();
    // SAFETY: the range was just reserved; nothing is kept in it.
    unsafe {
        kernel.map(range, Backing::Thp).unwrap();
        kernel.touch(range).unwrap();
        for (unit, kept) in pages.iter().enumerate() {
            let start = range.start + unit * HUGE + kept * OS;
            if *kept < HUGE / OS {
                kernel.decommit(AddressRange::new(start, HUGE - kept * OS)).unwrap();
            }
        }
    }
    range
}

fn huge_units(kernel: &Kernel, range: AddressRange) -> Vec<bool> {
    (range.start..range.end()).step_by(HUGE).map(|unit| kernel.is_huge(unit)).collect()
}

fn sound(kernel: &Kernel) {
    kernel.check().unwrap();
    assert!(kernel.violations().is_empty(), "{:?}", kernel.violations());
}

fn no_limit() -> CollapseOptions {
    CollapseOptions { max_growth: Some(u64::MAX), ..CollapseOptions::default() }
}

#[test]
fn dense_units_become_huge_and_sparse_ones_do_not() {
    let kernel = Kernel::default();
    let range = heap(&kernel, &[UNIT, 500, 400, 1, 0, UNIT]);
    // SAFETY: the test owns the memory.
    unsafe { (range.start as *mut u64).write(42) };
    let report = collapse(&RemoteProcess::new(&kernel), &no_limit(), &mut nothing).unwrap();
    assert_eq!(huge_units(&kernel, range), [true, true, false, false, false, true]);
    assert_eq!((report.collapsed, report.plan.skipped.sparse, report.stop), (3, 2, None));
    assert_eq!(report.plan.growth, 12 * OS as u64);
    assert_eq!(kernel.charge(), (3 * 512 + 401) * OS as u64);
    let after = report.after.unwrap();
    assert_eq!(after.huge(), 3 * HUGE as u64);
    assert_eq!(after.resident() - report.before.resident(), report.plan.growth);
    // SAFETY: as above.
    assert_eq!(unsafe { (range.start as *const u64).read() }, 42);
    sound(&kernel);
}

#[test]
fn memory_grows_by_no_more_than_the_limit_and_the_cheapest_come_first() {
    for limit in [0, 3, 12, 20, 100] {
        let kernel = Kernel::default();
        let range = heap(&kernel, &[495, 509, UNIT, 503]);
        let options = CollapseOptions { max_growth: Some(limit * OS as u64), ..CollapseOptions::default() };
        let before = kernel.charge();
        let report = collapse(&RemoteProcess::new(&kernel), &options, &mut nothing).unwrap();
        assert!(kernel.charge() - before <= limit * OS as u64);
        // Holes: 17, 3, 0, 9.
        let expected = [limit >= 29, limit >= 3, true, limit >= 12];
        assert_eq!(huge_units(&kernel, range), expected, "{limit}");
        assert_eq!(report.plan.skipped.over_limit, expected.iter().filter(|huge| !**huge).count() as u64);
        sound(&kernel);
    }
}

#[test]
fn the_cgroup_s_limit_bounds_growth_too() {
    let kernel = Kernel::new(Config::default().with_cgroup_max(11 * HUGE as u64));
    let range = heap(&kernel, &[480; 6]);
    // Five huge pages and some are left; four are kept free for the work. Each unit grows by 32 pages.
    let report = collapse(&RemoteProcess::new(&kernel), &no_limit(), &mut nothing).unwrap();
    let room = 11 * HUGE as u64 - 6 * 480 * OS as u64 - 4 * HUGE as u64;
    assert_eq!(report.plan.max_growth, room);
    assert!(report.plan.growth <= room && report.stop.is_none());
    assert_eq!(huge_units(&kernel, range), [true; 6]);
    let tight = Kernel::new(Config::default().with_cgroup_max(3 * HUGE as u64));
    heap(&tight, &[511; 2]);
    let report = collapse(&RemoteProcess::new(&tight), &no_limit(), &mut nothing).unwrap();
    assert_eq!((report.plan.max_growth, report.collapsed), (0, 0));
    sound(&tight);
}

#[test]
fn what_a_fork_shares_counts_as_growth() {
    let kernel = Kernel::default();
    let range = heap(&kernel, &[UNIT; 3]);
    let child = kernel.fork();
    // The child has written to one unit: that one is its own.
    child.touch(AddressRange::new(range.start, HUGE)).unwrap();
    let options = CollapseOptions { max_growth: Some(0), ..CollapseOptions::default() };
    let before = kernel.charge();
    let report = collapse(&RemoteProcess::new(&child), &options, &mut nothing).unwrap();
    assert_eq!((report.collapsed, report.plan.skipped.over_limit), (1, 2));
    assert_eq!(kernel.charge(), before);
    assert_eq!(huge_units(&child, range), [true, false, false]);
    sound(&kernel);
}

#[test]
fn a_second_time_there_is_nothing_to_do() {
    let kernel = Kernel::default();
    heap(&kernel, &[UNIT; 4]);
    let process = RemoteProcess::new(&kernel);
    assert_eq!(collapse(&process, &no_limit(), &mut nothing).unwrap().collapsed, 4);
    let calls = kernel.calls(Call::Collapse);
    let report = collapse(&process, &no_limit(), &mut nothing).unwrap();
    assert_eq!((report.plan.steps.len(), report.plan.skipped.huge), (0, 4));
    assert_eq!(kernel.calls(Call::Collapse), calls);
}

#[test]
fn a_dry_run_changes_nothing() {
    let kernel = Kernel::default();
    heap(&kernel, &[UNIT; 4]);
    stranded(&kernel, &[1; 4]);
    let process = RemoteProcess::new(&kernel).refusing(libc::EPERM);
    let charge = kernel.charge();
    let plan = collapse(&process, &CollapseOptions { dry_run: true, ..no_limit() }, &mut nothing).unwrap();
    assert_eq!((plan.plan.steps.len(), plan.collapsed), (4, 0));
    let options = ReleaseOptions { dry_run: true, ..ReleaseOptions::default() };
    let plan = release(&process, &options, &mut nothing).unwrap();
    assert_eq!((plan.plan.steps.len(), plan.split), (4, 0));
    assert_eq!(kernel.charge(), charge);
    assert_eq!(kernel.calls(Call::Collapse) + kernel.calls(Call::Split), 0);
}

#[test]
fn a_unit_busy_for_a_moment_is_tried_again() {
    let kernel = Kernel::default();
    let range = heap(&kernel, &[UNIT; 4]);
    kernel.fail_next(Call::Collapse, libc::EAGAIN, 3);
    let report = collapse(&RemoteProcess::new(&kernel), &no_limit(), &mut nothing).unwrap();
    assert_eq!(huge_units(&kernel, range), [true; 4]);
    assert_eq!((report.retries, report.calls.count(libc::EAGAIN), report.left), (3, 3, 0));
    kernel.fail_no_more();
    let other = Kernel::default();
    heap(&other, &[UNIT; 2]);
    other.fail_every(Call::Collapse, 1, libc::EAGAIN);
    let report = collapse(&RemoteProcess::new(&other), &no_limit(), &mut nothing).unwrap();
    assert_eq!((report.collapsed, report.left, report.calls.count(libc::EAGAIN)), (0, 2, 8));
}

#[test]
fn without_huge_pages_and_in_a_full_cgroup_it_stops_and_says_so() {
    for (code, stop) in [(libc::ENOMEM, Stop::NoHugePages), (libc::EBUSY, Stop::CgroupFull)] {
        let kernel = Kernel::default();
        heap(&kernel, &[UNIT; 40]);
        kernel.fail_every(Call::Collapse, 1, code);
        let report = collapse(&RemoteProcess::new(&kernel), &no_limit(), &mut nothing).unwrap();
        assert_eq!(report.stop, Some(stop));
        assert!(report.calls.count(code) <= 5 && report.left >= 35, "{report:?}");
    }
}

#[test]
fn memory_advised_against_is_neither_planned_nor_tried() {
    let kernel = Kernel::default();
    let against = heap(&kernel, &[UNIT; 20]);
    // SAFETY: the test owns the memory.
    unsafe { kernel.advise(against, Advice::NoHuge).unwrap() };
    let wanted = heap(&kernel, &[UNIT; 2]);
    let report = collapse(&RemoteProcess::new(&kernel), &no_limit(), &mut nothing).unwrap();
    assert_eq!((report.collapsed, report.refused, report.calls.count(libc::EINVAL)), (2, 20, 0));
    assert_eq!(report.plan.steps.len(), 2);
    assert_eq!(huge_units(&kernel, wanted), [true; 2]);
}

#[test]
fn memory_that_refuses_is_asked_three_times_and_left_alone() {
    let off = Kernel::default();
    off.set_process_thp_disabled(ThpDisabled::Completely);
    heap(&off, &[UNIT; 20]);
    let report = collapse(&RemoteProcess::new(&off), &no_limit(), &mut nothing).unwrap();
    assert_eq!((report.collapsed, report.refused, report.calls.count(libc::EINVAL)), (0, 20, 3));
}

#[test]
fn slow_calls_are_followed_by_longer_waits() {
    let kernel = Kernel::default();
    heap(&kernel, &[UNIT; 8]);
    kernel.set_cost(Call::Collapse, Duration::from_millis(30));
    let report = collapse(&RemoteProcess::new(&kernel), &no_limit(), &mut nothing).unwrap();
    assert_eq!((report.collapsed, report.slow_calls), (8, 8));
    assert_eq!(report.longest_call, Duration::from_millis(30));
    // 8 × 30 ms of work, and waits of 30, 30, 40, 80, 160, 320 and 640 ms between.
    assert_eq!(report.elapsed.as_millis(), 240 + 1300);
}

#[test]
fn the_budget_is_kept_and_what_is_left_is_said() {
    let kernel = Kernel::default();
    let range = heap(&kernel, &[UNIT; 50]);
    kernel.set_cost(Call::Collapse, Duration::from_millis(5));
    let options = CollapseOptions { budget: Duration::from_millis(100), ..no_limit() };
    let process = RemoteProcess::new(&kernel);
    let report = collapse(&process, &options, &mut nothing).unwrap();
    assert_eq!((report.collapsed, report.left, report.stop), (10, 40, Some(Stop::Budget)));
    assert!(report.elapsed <= Duration::from_millis(105));
    assert_eq!(huge_units(&kernel, range).into_iter().filter(|huge| *huge).count(), 10);
    // The next one goes on.
    assert_eq!(collapse(&process, &options, &mut nothing).unwrap().collapsed, 10);
}

#[test]
fn a_clock_that_goes_back_neither_ends_an_operation_nor_makes_it_longer() {
    let kernel = Kernel::default();
    heap(&kernel, &[UNIT; 50]);
    stranded(&kernel, &[1; 200]);
    let [step, back, most] = [5, 1000, 100].map(Duration::from_millis);
    kernel.set_cost(Call::Collapse, step);
    kernel.set_cost(Call::Split, step);
    kernel.advance(Duration::from_secs(60));
    // While it waits, so that all of its own time is known: 5 ms of a call and 5 ms of rest.
    let process = RemoteProcess::new(&kernel).running(|kernel| kernel.turn_back(back));
    let options = CollapseOptions { budget: most, ..no_limit() };
    let report = collapse(&process, &options, &mut nothing).unwrap();
    assert_eq!((report.stop, report.collapsed + report.left), (Some(Stop::Budget), 50));
    assert!(report.collapsed <= 20 && report.elapsed <= most + step, "{report:?}");
    let options = ReleaseOptions { budget: most, ..ReleaseOptions::default() };
    let report = release(&process, &options, &mut nothing).unwrap();
    assert_eq!((report.stop, report.split + report.left), (Some(Stop::Budget), 200));
    assert!(report.elapsed < 3 * most, "{report:?}");

    // In the calls themselves.
    let kernel = Kernel::default();
    let (range, _) = (heap(&kernel, &[UNIT; 8]), stranded(&kernel, &[1; 8]));
    kernel.advance(Duration::from_secs(60));
    let process = RemoteProcess::new(&kernel).turning_back(back);
    let report = collapse(&process, &no_limit(), &mut nothing).unwrap();
    assert_eq!((report.collapsed, report.stop, report.longest_call), (8, None, Duration::ZERO));
    assert_eq!(huge_units(&kernel, range), [true; 8]);
    let report = release(&process, &ReleaseOptions::default(), &mut nothing).unwrap();
    assert_eq!((report.split, report.stop, report.longest_call), (8, None, Duration::ZERO));
    sound(&kernel);
}

#[test]
fn which_end_it_was_is_known_though_the_clock_goes_back() {
    let kernel = Kernel::default();
    kernel.advance(Duration::from_secs(3600));
    heap(&kernel, &[UNIT; 4]);
    let waits = core::cell::Cell::new(0);
    let process = RemoteProcess::new(&kernel).ending_after(2).living_on().running(|kernel| {
        // Between looks at what has become of it: the first two waits are those after calls.
        waits.set(waits.get() + 1);
        if waits.get() == 5 {
            kernel.turn_back(Duration::from_secs(1800));
        }
    });
    let report = collapse(&process, &no_limit(), &mut nothing).unwrap();
    assert_eq!((report.collapsed, report.stop), (2, Some(Stop::MainThreadEnded)));
    assert!(
        (100..200).contains(&waits.get()) && report.elapsed < Duration::from_secs(1),
        "{waits:?}, {report:?}"
    );
}

#[test]
fn the_process_runs_on_and_what_it_frees_is_not_filled_again() {
    let kernel = Kernel::default();
    let range = heap(&kernel, &[UNIT; 4]);
    let last = AddressRange::new(range.start + 3 * HUGE, HUGE);
    let process = RemoteProcess::new(&kernel).running(|kernel| {
        // SAFETY: the test keeps nothing in it.
        unsafe { kernel.decommit(AddressRange::new(last.start, HUGE - OS)).unwrap() };
    });
    let report = collapse(&process, &no_limit(), &mut nothing).unwrap();
    assert_eq!((report.collapsed, report.changed), (3, 1));
    assert_eq!(kernel.page_state(last.end() - OS), PageState::Small);
    assert_eq!(kernel.charge(), 3 * HUGE as u64 + OS as u64);
}

#[test]
fn a_process_that_ends_and_one_that_may_not_be_changed() {
    let kernel = Kernel::default();
    heap(&kernel, &[UNIT; 4]);
    stranded(&kernel, &[1; 10]);
    let ending = RemoteProcess::new(&kernel).ending_after(2);
    let report = collapse(&ending, &no_limit(), &mut nothing).unwrap();
    assert_eq!((report.collapsed, report.stop, report.left), (2, Some(Stop::Gone), 2));
    assert!(report.after.is_none());
    let calls = kernel.calls(Call::Collapse) + kernel.calls(Call::Split);
    for code in [libc::EPERM, libc::ENOSYS] {
        let process = RemoteProcess::new(&kernel).refusing(code);
        assert_eq!(collapse(&process, &no_limit(), &mut nothing).unwrap_err().code, code);
        assert_eq!(release(&process, &ReleaseOptions::default(), &mut nothing).unwrap_err().code, code);
    }
    assert_eq!(kernel.calls(Call::Collapse) + kernel.calls(Call::Split), calls, "nothing was tried");
    let ending = RemoteProcess::new(&kernel).ending_after(1);
    let report = release(&ending, &ReleaseOptions::default(), &mut nothing).unwrap();
    assert_eq!((report.stop, report.split, report.left), (Some(Stop::Gone), 4, 6));
}

/// Each counted what the other made.
#[test]
fn a_process_that_another_changes_is_left_alone_and_may_be_looked_at() {
    let kernel = Kernel::default();
    heap(&kernel, &[UNIT; 4]);
    stranded(&kernel, &[1; 10]);
    let process = RemoteProcess::new(&kernel);
    let other = process.seen_again();
    other.take().unwrap();
    let calls = kernel.calls(Call::Collapse) + kernel.calls(Call::Split);
    assert_eq!(collapse(&process, &no_limit(), &mut nothing).unwrap_err().code, libc::EALREADY);
    let released = release(&process, &ReleaseOptions::default(), &mut nothing);
    assert_eq!(released.unwrap_err().code, libc::EALREADY);
    assert_eq!(kernel.calls(Call::Collapse) + kernel.calls(Call::Split), calls, "nothing was tried");
    let dry = CollapseOptions { dry_run: true, ..no_limit() };
    assert_eq!(collapse(&process, &dry, &mut nothing).unwrap().plan.steps.len(), 4);
    other.let_go();
    // Whoever is done, or finds that there is nothing to be done, has let it go.
    assert_eq!(collapse(&process, &no_limit(), &mut nothing).unwrap().collapsed, 4);
    assert_eq!(release(&other, &ReleaseOptions::default(), &mut nothing).unwrap().split, 10);
    let refusing = process.seen_again().refusing(libc::EPERM);
    assert_eq!(collapse(&refusing, &no_limit(), &mut nothing).unwrap_err().code, libc::EPERM);
    assert_eq!(collapse(&process, &no_limit(), &mut nothing).unwrap().collapsed, 0);
}

/// It was said to have ended.
#[test]
fn a_process_that_loses_its_main_thread_meanwhile_is_not_said_to_have_ended() {
    let kernel = Kernel::default();
    heap(&kernel, &[UNIT; 4]);
    stranded(&kernel, &[1; 10]);
    let process = RemoteProcess::new(&kernel).ending_after(2).living_on();
    let report = collapse(&process, &no_limit(), &mut nothing).unwrap();
    assert_eq!((report.collapsed, report.stop, report.left), (2, Some(Stop::MainThreadEnded), 2));
    assert!(report.after.is_none() && report.charge.1.is_none());
    let process = RemoteProcess::new(&kernel).ending_after(1).living_on();
    let report = release(&process, &ReleaseOptions::default(), &mut nothing).unwrap();
    assert_eq!((report.stop, report.split, report.left), (Some(Stop::MainThreadEnded), 4, 6));
    assert!(report.after.is_none() && report.charge_after.is_none());
}

/// Nothing was found then, and that was told as nothing to do.
#[test]
fn a_process_without_memory_at_the_first_look_is_an_error() {
    let kernel = Kernel::default();
    heap(&kernel, &[UNIT; 4]);
    for process in [RemoteProcess::new(&kernel).living_on(), RemoteProcess::new(&kernel).staying()] {
        let process = process.ending_after(0);
        let options = CollapseOptions { dry_run: true, ..no_limit() };
        assert_eq!(collapse(&process, &options, &mut nothing).unwrap_err().code, libc::ESRCH);
        let options = ReleaseOptions { dry_run: true, ..ReleaseOptions::default() };
        assert_eq!(release(&process, &options, &mut nothing).unwrap_err().code, libc::ESRCH);
    }
}

#[test]
fn kernels_that_do_not_tell_huge_pages_are_served() {
    let kernel = Kernel::default();
    let range = heap(&kernel, &[UNIT; 3]);
    let process = RemoteProcess::new(&kernel).without_scan();
    assert_eq!(collapse(&process, &no_limit(), &mut nothing).unwrap().collapsed, 3);
    assert_eq!(huge_units(&kernel, range), [true; 3]);
    // Asked again they are no harm: the kernel sees that there is nothing to do.
    assert_eq!(collapse(&process, &no_limit(), &mut nothing).unwrap().collapsed, 3);
    sound(&kernel);
}

#[test]
fn what_is_stranded_is_freed_and_contents_stay() {
    let kernel = Kernel::default();
    let range = stranded(&kernel, &[1; 300]);
    for unit in 0..300 {
        // SAFETY: the test owns the memory.
        unsafe { ((range.start + unit * HUGE) as *mut usize).write(unit) };
    }
    assert_eq!(kernel.charge(), 300 * HUGE as u64);
    let report = release(&RemoteProcess::new(&kernel), &ReleaseOptions::default(), &mut nothing).unwrap();
    assert_eq!((report.split, report.left, report.stop), (300, 0, None));
    assert_eq!(report.plan.stranded, 300 * (HUGE - OS) as u64);
    assert_eq!(report.limits.unwrap().charge, 300 * HUGE as u64);
    assert_eq!(report.charge_after, Some(300 * OS as u64));
    assert_eq!(report.after.unwrap().huge_pages, 0);
    assert_eq!(kernel.stranded(), 0);
    for unit in 0..300 {
        // SAFETY: as above.
        assert_eq!(unsafe { ((range.start + unit * HUGE) as *const usize).read() }, unit);
    }
    sound(&kernel);
}

#[test]
fn those_with_most_stranded_come_first() {
    let kernel = Kernel::default();
    let range = stranded(&kernel, &[500, 1, 512, 100]);
    kernel.set_cost(Call::Split, Duration::from_millis(1));
    let report = release(&RemoteProcess::new(&kernel), &ReleaseOptions::default(), &mut nothing).unwrap();
    let order: Vec<_> = report.plan.steps.iter().map(|step| (step.page - range.start) / HUGE).collect();
    assert_eq!(order, [1, 3, 0]);
    // The one that is mapped whole stays huge.
    assert!(kernel.is_huge(range.start + 2 * HUGE));
    assert_eq!(kernel.stranded(), 0);
}

#[test]
fn the_budget_of_a_release_is_kept() {
    let kernel = Kernel::default();
    stranded(&kernel, &[1; 200]);
    kernel.set_cost(Call::Split, Duration::from_millis(1));
    let options = ReleaseOptions { budget: Duration::from_millis(40), ..ReleaseOptions::default() };
    let report = release(&RemoteProcess::new(&kernel), &options, &mut nothing).unwrap();
    assert_eq!(report.stop, Some(Stop::Budget));
    assert_eq!(report.split + report.left, 200);
    assert!(report.split >= 12 && report.longest_call <= Duration::from_millis(16), "{report:?}");
    assert_eq!(report.after.unwrap().huge_pages, report.left);
}

#[test]
fn a_page_that_fails_does_not_stop_the_others() {
    let kernel = Kernel::default();
    stranded(&kernel, &[1; 20]);
    kernel.fail_next(Call::Split, libc::EINVAL, 1);
    kernel.fail_next(Call::Split, libc::EAGAIN, 2);
    let report = release(&RemoteProcess::new(&kernel), &ReleaseOptions::default(), &mut nothing).unwrap();
    assert_eq!((report.split, report.left), (19, 1));
    assert_eq!(report.calls.count(libc::EINVAL), 1);
    assert_eq!(report.calls.count(libc::EAGAIN), report.retries);
    assert_eq!(kernel.partially_mapped(), 1);
}

#[test]
fn what_another_process_maps_too_is_left_alone_and_said() {
    let kernel = Kernel::default();
    stranded(&kernel, &[1; 3]);
    let child = kernel.fork();
    let report = release(&RemoteProcess::new(&child), &ReleaseOptions::default(), &mut nothing).unwrap();
    assert_eq!((report.plan.steps.len(), report.plan.shared, report.split), (0, 3, 0));
    child.exit();
    let report = release(&RemoteProcess::new(&kernel), &ReleaseOptions::default(), &mut nothing).unwrap();
    assert_eq!((report.plan.shared, report.split), (0, 3));
    assert_eq!(kernel.stranded(), 0);
}

#[test]
fn without_physical_pages_every_unit_in_part_resident_is_tried() {
    let kernel = Kernel::default();
    stranded(&kernel, &[1, 512, 300]);
    // Nothing is stranded here, which cannot be known then.
    heap(&kernel, &[5, UNIT]);
    let process = RemoteProcess::new(&kernel).without_folios();
    let report = release(&process, &ReleaseOptions::default(), &mut nothing).unwrap();
    assert_eq!((report.split, report.after), (3, None));
    assert_eq!(kernel.stranded(), 0);
}

#[test]
fn a_picture_past_its_deadline_says_what_is_missing() {
    let kernel = Kernel::default();
    heap(&kernel, &[UNIT; 2]);
    let process = RemoteProcess::new(&kernel);
    let heap = |mapping: &hugeheap_os::process::ProcessMapping| mapping.kind == MappingKind::Anonymous;
    let picture = Picture::gather(&process, heap, process.now()).unwrap();
    assert!(!picture.complete);
    assert!(picture.unseen >= 2 * HUGE as u64);
    assert_eq!(picture.coverage(), None);
    let options = CollapseOptions { budget: Duration::ZERO, ..no_limit() };
    let report = collapse(&process, &options, &mut nothing).unwrap();
    assert_eq!((report.stop, report.collapsed), (Some(Stop::Budget), 0));
}

/// Whatever the densities, limits and faults: growth stays in its limit, no call is wasted, the model stays sound.
#[test]
fn any_heap_grows_within_its_limit() {
    use proptest::prelude::*;
    let heaps = proptest::collection::vec(0_u32..=UNIT, 1..8);
    proptest!(ProptestConfig::with_cases(64), |(pages in heaps, limit in 0_u64..600, density in 0.0..=1.0_f64,
        seed: u64, failing in 0_u32..200)| {
        let kernel = Kernel::default();
        heap(&kernel, &pages);
        kernel.fail_randomly(seed, failing);
        let process = RemoteProcess::new(&kernel);
        let before = kernel.charge();
        let options = CollapseOptions {
            min_density: density, max_growth: Some(limit * OS as u64), ..CollapseOptions::default()
        };
        if let Ok(report) = collapse(&process, &options, &mut nothing) {
            prop_assert!(kernel.charge() - before <= limit * OS as u64);
            let turns = report.collapsed + report.changed + report.refused + report.left;
            prop_assert!(turns >= report.plan.steps.len() as u64, "{:?}", report);
        }
        kernel.check().unwrap();
    });
}

#[test]
fn a_plan_is_the_same_for_the_same_picture() {
    let kernel = Kernel::default();
    heap(&kernel, &[500, 501, UNIT, 3]);
    let process = RemoteProcess::new(&kernel);
    let picture = Picture::gather(&process, |_| true, Duration::MAX).unwrap();
    let plan = || CollapsePlan::new(&picture, &CollapseOptions::default(), 1 << 30, |_| Ok(0)).unwrap();
    assert_eq!(plan(), plan());
    assert_eq!(plan().steps.iter().map(|step| step.resident).collect::<Vec<_>>(), [512, 501, 500]);
    assert_eq!(plan().bytes(), 3 * HUGE as u64);
}

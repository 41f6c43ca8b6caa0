//! Heap pages of which a part is vacant, with a tenant that only pretends: when it is asked to look, and what
//! is broken for what it tells.

use super::*;
use crate::arena::tenant::{GivenUp, Vacancy};
use crate::arena::{DueLook, Tenant, Wait};
use hugeheap_os::simulated::Call;
use hugeheap_os::simulated::PageState;
use hugeheap_os::{Error, Facts, Pages, Result as OsResult};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

const OS_PAGE: usize = 4096;

/// Of each heap page in use the first OS page is live.
struct Pretended {
    kernel: Kernel,
    pages: RefCell<BTreeMap<usize, u128>>,
    /// Live bytes of each heap page, and vacant ones, as they are told.
    live: Cell<usize>,
    vacant: Cell<usize>,
    /// Vacant bytes of pages at hand, of each arena.
    at_hand: Cell<usize>,
    /// Bytes of each heap page that are told to be spared when its OS pages are made alike, and the arenas of
    /// which they were.
    spared: Cell<usize>,
    alike: RefCell<Vec<usize>>,
    /// How long a look takes, and for how long others have the processor meanwhile.
    takes: Cell<Duration>,
    preempted: Cell<Duration>,
    /// All pages have changed since the look before.
    changing: Cell<bool>,
    looks: Cell<u32>,
    gone: RefCell<BTreeSet<usize>>,
    fails: Cell<bool>,
    refused: Cell<bool>,
    forgotten: RefCell<Vec<usize>>,
    /// Arenas that are said to have been given back.
    given_back: RefCell<Vec<usize>>,
}

impl Tenant for Pretended {
    fn vacate(
        &self,
        arena: AddressRange,
        merge: bool,
        drop: &mut dyn FnMut(AddressRange) -> OsResult<()>,
    ) -> (GivenUp, OsResult<()>) {
        if self.fails.get() {
            return (GivenUp::default(), Err(Error::new("membarrier", libc::EAGAIN)));
        }
        let mut vacant = 0;
        for page in pages_of(self.pages.borrow()[&arena.start]) {
            let start = arena.start + page * HEAP_PAGE_BYTES + OS_PAGE;
            drop(AddressRange::new(start, HEAP_PAGE_BYTES - OS_PAGE)).expect("it can be dropped");
            vacant += HEAP_PAGE_BYTES - OS_PAGE;
        }
        self.gone.borrow_mut().insert(arena.start);
        let mut alike = 0;
        if merge {
            self.alike.borrow_mut().push(arena.start);
            alike = self.pages.borrow()[&arena.start].count_ones() as usize * OS_PAGE;
        }
        (GivenUp { vacant, alike }, Ok(()))
    }

    fn given_back(&self, arena: AddressRange) {
        assert_eq!(self.kernel.residency(arena).expect("mapped").resident, 0);
        self.given_back.borrow_mut().push(arena.start);
    }
}

fn pages_of(pages: u128) -> impl Iterator<Item = usize> {
    (0..HEAP_PAGES as usize).filter(move |page| pages >> page & 1 != 0)
}

impl Pretended {
    fn with_alike(&self, vacancy: Vacancy) -> Vacancy {
        let pages = vacancy.blocks.count_ones() as usize;
        Vacancy { alike: if vacancy.gone { 0 } else { pages * self.spared.get() }, ..vacancy }
    }

    /// The look that is due, if one is.
    fn look(&self, heap: &mut Arenas<Kernel>) {
        let Some(due) = heap.due_look() else { return };
        self.looks.set(self.looks.get() + 1);
        if self.refused.get() {
            return heap.cannot_vacate();
        }
        if heap.wants_merging() {
            heap.note_merging(self.kernel.merges().unwrap_or(false));
        }
        let mut told = heap.begin_look(due);
        self.kernel.work(self.takes.get());
        self.kernel.advance(self.preempted.get());
        let mut next = None;
        for (&arena, &blocks) in self.pages.borrow().range(due.after + 1..) {
            let pages = blocks.count_ones() as usize;
            let gone = self.gone.borrow().contains(&arena);
            let told_of = !(gone || self.changing.get() && due.quiet);
            let bytes = if told_of { pages * self.vacant.get() } else { 0 };
            let live = pages * self.live.get();
            let at_hand = if told_of { self.at_hand.get() } else { 0 };
            let vacancy = Vacancy { arena, blocks, live, bytes, at_hand, alike: 0, gone };
            let vacancy = self.with_alike(vacancy);
            if !told.note(vacancy) {
                next = Some(arena);
                break;
            }
        }
        let refilled = heap.looked(&told, next, self.changing.get());
        let refilled = refilled.into_iter().filter(|&arena| arena != 0);
        refilled.for_each(|arena| {
            self.gone.borrow_mut().remove(&arena);
            self.forgotten.borrow_mut().push(arena);
        });
    }
}

struct Heap {
    world: World,
    tenant: Pretended,
}

impl Heap {
    /// Arenas in use as a whole, and two pages of each freed a moment ago.
    fn new(config: Config, arenas: usize) -> Self {
        let mut world = World::new(Policy::Thp, config);
        world.heap.looks.tenant = true;
        let live = world.sparse_arenas(arenas, HEAP_PAGES as usize - 2);
        let mut pages = BTreeMap::new();
        for page in live {
            let arena = page & !(ARENA_BYTES - 1);
            *pages.entry(arena).or_insert(0) |= 1 << (page % ARENA_BYTES / HEAP_PAGE_BYTES);
        }
        world.heap.became_partial(2 * arenas as u64);
        let tenant = Pretended {
            kernel: world.kernel.clone(),
            pages: RefCell::new(pages),
            live: Cell::new(1024),
            vacant: Cell::new(HEAP_PAGE_BYTES - OS_PAGE),
            at_hand: Cell::new(0),
            spared: Cell::new(0),
            alike: RefCell::default(),
            takes: Cell::new(Duration::ZERO),
            preempted: Cell::new(Duration::ZERO),
            changing: Cell::new(false),
            looks: Cell::new(0),
            gone: RefCell::default(),
            fails: Cell::new(false),
            refused: Cell::new(false),
            forgotten: RefCell::default(),
            given_back: RefCell::default(),
        };
        Self { world, tenant }
    }

    /// As [`World::run`], with the tenant.
    fn run(&mut self, seconds: f64) {
        let end = self.world.heap.now() + (seconds * SECOND as f64) as u64;
        self.world.heap.leave_ahead();
        loop {
            let heap = &mut self.world.heap;
            heap.refresh_host();
            self.tenant.look(heap);
            let mut plan = heap.plan();
            plan.perform_with(&self.world.kernel, &self.tenant);
            let wait = heap.complete(plan);
            let left = end.saturating_sub(heap.now());
            assert!(wait != Wait::Idle || !heap.maintenance_due(), "idle, and something is due");
            match wait {
                Wait::For(0) => {}
                Wait::For(time) if time <= left => self.world.kernel.advance(Duration::from_nanos(time)),
                _ => {
                    self.world.kernel.advance(Duration::from_nanos(left));
                    break;
                }
            }
        }
        self.world.check();
        assert_eq!(self.world.kernel.violations(), []);
    }

    /// Resident OS pages of each heap page of the tenant.
    fn resident(&self) -> BTreeSet<usize> {
        let pages = self.tenant.pages.borrow();
        let all = pages
            .iter()
            .flat_map(|(arena, &blocks)| pages_of(blocks).map(move |page| arena + page * HEAP_PAGE_BYTES));
        all.map(|page| {
            let os_pages = (page..page + HEAP_PAGE_BYTES).step_by(OS_PAGE);
            os_pages
                .filter(|&at| !matches!(self.world.kernel.page_state(at), PageState::Empty | PageState::Zero))
                .count()
        })
        .collect()
    }

    fn check_contents(&self) {
        for (arena, &blocks) in self.tenant.pages.borrow().iter() {
            pages_of(blocks).for_each(|page| self.world.check_contents(arena + page * HEAP_PAGE_BYTES, 1));
        }
    }
}

#[test]
fn arenas_of_which_little_lives_are_broken_after_the_decay_time_and_the_charge_falls() {
    let mut heap = Heap::new(Config::default(), 40);
    heap.run(0.4);
    assert_eq!((heap.tenant.looks.get(), heap.world.heap.snapshot().breaks), (0, 0));
    heap.run(1.1);
    let snapshot = heap.world.heap.snapshot();
    assert_eq!((snapshot.breaks, snapshot.retained, snapshot.alike), (40, 0, 0));
    assert!(heap.tenant.alike.borrow().is_empty(), "that was not asked for");
    assert_eq!(heap.resident(), [1].into());
    let live = 40 * (u64::from(HEAP_PAGES) - 2);
    assert_eq!(heap.world.kernel.charge(), live * OS_PAGE as u64, "the charge and not only what is mapped");
    assert_eq!(snapshot.given_back, 40 * ARENA - live * OS_PAGE as u64);
    heap.check_contents();
    // Sixteen arenas at a time, and twice, because the heap had grown before the first time; and then nothing
    // more is looked at.
    assert_eq!(heap.tenant.looks.get(), 6);
    heap.run(100.0);
    assert_eq!(heap.tenant.looks.get(), 6);
}

#[test]
fn an_arena_of_which_more_than_a_quarter_lives_stays_a_huge_page_unless_memory_is_short() {
    let live = ARENA_BYTES / 4 / (HEAP_PAGES as usize - 2);
    for (live, broken) in [(live, 10), (live + 8, 0)] {
        let mut heap = Heap::new(Config::default(), 10);
        heap.tenant.live.set(live);
        heap.run(10.0);
        assert_eq!(heap.world.heap.snapshot().breaks, broken, "{live} bytes of each page");
        assert!(heap.tenant.looks.get() > 0);
    }
    let mut heap = Heap::new(Config::default().with_cgroup_max(21 * MIB), 10);
    heap.tenant.live.set(2 * live - 8);
    // Near the limit what changed just now counts, too.
    heap.tenant.changing.set(true);
    heap.run(1.0);
    let (breaks, charge) = (heap.world.heap.snapshot().breaks, heap.world.kernel.charge());
    assert!(breaks > 0 && charge < 19 * MIB, "{breaks}, {charge}: until it is not short any more");
}

/// A program that pauses has pages at hand in the arena that it fills next: that keeps its huge page. Where
/// threads with few blocks have nothing but such pages it goes.
#[test]
fn pages_at_hand_are_worth_a_huge_page_where_an_eighth_is_vacant_in_them_alone() {
    for (at_hand, broken) in [(ARENA_BYTES / 8 - OS_PAGE, 0), (ARENA_BYTES / 8, 10)] {
        let mut heap = Heap::new(Config::default(), 10);
        // With the two free pages of each arena less than an eighth without them, and more with them.
        heap.tenant.vacant.set(1024);
        heap.tenant.at_hand.set(at_hand);
        heap.run(10.0);
        assert!(heap.tenant.looks.get() > 0);
        assert_eq!(heap.world.heap.snapshot().breaks, broken, "{at_hand} bytes");
    }
}

#[test]
fn what_changes_all_the_time_is_left_alone_and_looked_at_again() {
    let mut heap = Heap::new(Config::default(), 10);
    heap.tenant.changing.set(true);
    heap.run(5.2);
    assert_eq!((heap.world.heap.snapshot().breaks, heap.tenant.looks.get()), (0, 10), "twice per decay time");
    heap.tenant.changing.set(false);
    heap.run(1.0);
    assert_eq!(heap.world.heap.snapshot().breaks, 10);
}

#[test]
fn what_a_program_asks_for_is_no_share_of_the_time_that_is_over() {
    let mut heap = Heap::new(Config::default(), 10);
    heap.run(3.0);
    let looks = heap.tenant.looks.get();
    for _ in 0..200 {
        let asked = heap.world.heap.begin_look(DueLook { after: 0, quiet: false, asked: true });
        heap.world.kernel.work(Duration::from_millis(50));
        let _ = heap.world.heap.looked(&asked, None, false);
    }
    heap.world.heap.became_partial(2000);
    heap.run(1.0);
    assert!(heap.tenant.looks.get() > looks, "it would have waited for half an hour");
}

#[test]
fn looking_takes_a_two_hundredth_of_the_time_at_most() {
    let mut heap = Heap::new(Config::default(), 10);
    heap.tenant.changing.set(true);
    heap.tenant.takes.set(Duration::from_millis(50));
    heap.run(100.0);
    assert!((10..=14).contains(&heap.tenant.looks.get()), "{}", heap.tenant.looks.get());
}

#[test]
fn a_look_of_a_thread_that_others_took_the_processor_from_takes_no_longer() {
    let mut heap = Heap::new(Config::default(), 10);
    heap.tenant.changing.set(true);
    heap.tenant.preempted.set(Duration::from_millis(45));
    heap.run(5.4);
    assert!((8..=10).contains(&heap.tenant.looks.get()), "{}: twice per decay time", heap.tenant.looks.get());
}

#[test]
fn a_heap_that_has_become_small_is_not_looked_at_later_than_a_large_one() {
    let mut heap = Heap::new(Config::default(), 10);
    heap.tenant.changing.set(true);
    heap.tenant.takes.set(Duration::from_millis(50));
    heap.run(0.6);
    assert_eq!(heap.tenant.looks.get(), 1);
    heap.tenant.takes.set(Duration::from_micros(50));
    heap.run(2.0);
    assert_eq!(heap.tenant.looks.get(), 5, "three rounds of the large one might have come at once");
    // What it may cost is the same: after the share of the large one is over, a burst of small ones counts.
    heap.tenant.takes.set(Duration::from_millis(5));
    heap.run(100.0);
    assert!((100..140).contains(&heap.tenant.looks.get()), "{}", heap.tenant.looks.get());
}

#[test]
fn a_small_heap_or_one_that_frees_nothing_is_not_looked_at() {
    // Three arenas are below what is worth it; of ten, fifteen pages; and runs that are freed one by one are
    // not a tenant's.
    for (arenas, freed) in [(3, 20), (10, 15)] {
        let mut world = World::new(Policy::Thp, Config::default());
        world.heap.looks.tenant = true;
        let pages: Vec<_> = (0..arenas * HEAP_PAGES).map(|_| world.take(1)).collect();
        let (freed, others) = pages.split_at(freed);
        world.heap.free_pages(freed).expect("live");
        others[1..100].iter().for_each(|&page| world.free(page, 1));
        world.run(10.0);
        assert_eq!(world.heap.due_look(), None);
        if arenas == 10 {
            world.heap.free_pages(&others[..1]).expect("live");
            assert!(world.heap.maintenance_due(), "one more");
        }
    }
    // And none where nobody looks.
    let mut world = World::new(Policy::Thp, Config::default());
    world.sparse_arenas(10, 100);
    world.heap.became_partial(1000);
    world.run(10.0);
    assert!(world.heap.due_look().is_none() && !world.heap.maintenance_due());
}

/// Two threads with 300 objects each idled with 2.7 MiB of which 0.4 lived: a program is spared a thread, but
/// not one that has some.
#[test]
fn a_small_heap_of_a_program_with_threads_is_looked_at() {
    for (threads, pages, due) in
        [(false, 3 * HEAP_PAGES, false), (true, 3 * HEAP_PAGES, true), (true, 40, false)]
    {
        let mut world = World::new(Policy::Thp, Config::default());
        world.heap.looks.tenant = true;
        if threads {
            world.heap.gained_threads();
        }
        let pages: Vec<_> = (0..pages).map(|_| world.take(1)).collect();
        world.heap.free_pages(&pages[..20]).expect("live");
        assert_eq!(world.heap.has_look_ahead(), due, "{} pages, threads: {threads}", pages.len());
    }
}

#[test]
fn what_was_given_back_is_not_collapsed_before_it_is_used_again() {
    let mut heap = Heap::new(Config::default(), 10);
    heap.run(20.0);
    assert_eq!((heap.world.heap.snapshot().breaks, heap.world.heap.snapshot().collapses), (10, 0));
    // Used again, throughout: a page of each arena is taken, which is what wakes the tenant.
    heap.tenant.live.set(HEAP_PAGE_BYTES);
    let taken: Vec<_> = (0..130).map(|_| heap.world.take(1)).collect();
    heap.run(5.0);
    let snapshot = heap.world.heap.snapshot();
    assert_eq!((heap.tenant.forgotten.borrow().len(), snapshot.collapses), (10, 10));
    assert_eq!(heap.resident(), [4].into());
    taken.into_iter().for_each(|page| heap.world.free(page, 1));
    heap.check_contents();
}

#[test]
fn what_cannot_be_had_is_tried_again_and_nothing_is_lost() {
    let mut heap = Heap::new(Config::default(), 10);
    heap.tenant.fails.set(true);
    heap.run(3.0);
    assert_eq!(heap.resident(), [4].into());
    heap.tenant.fails.set(false);
    heap.run(30.0);
    assert_eq!(heap.resident(), [1].into());
    heap.check_contents();
}

#[test]
fn where_nothing_can_be_had_the_reason_is_counted_once_and_nothing_is_looked_at_any_more() {
    let mut heap = Heap::new(Config::default(), 10);
    heap.tenant.refused.set(true);
    heap.run(3.0);
    for _ in 0..5 {
        heap.world.heap.became_partial(2000);
        heap.run(3.0);
    }
    let snapshot = heap.world.heap.snapshot();
    assert_eq!((heap.tenant.looks.get(), snapshot.fallback(Fallback::NoBarrier)), (1, 1));
    assert_eq!((snapshot.breaks, snapshot.vacated), (0, 0), "no huge page is lost for nothing");
    // A plan that was under way when the system began to refuse it.
    heap.world.heap.look_again_at(0);
    heap.run(3.0);
    assert_eq!((heap.tenant.looks.get(), heap.world.heap.due_look()), (2, None));
    heap.check_contents();
}

/// A pass has sixteen steps, and sixty empty arenas come first: what was told meanwhile has to be told again.
#[test]
fn what_a_pass_has_no_room_for_comes_later() {
    let mut heap = Heap::new(Config::default(), 20);
    let empty = heap.world.take_arenas(60);
    heap.run(0.4);
    heap.world.free_arenas(&empty);
    heap.world.heap.forget_demand();
    heap.world.kernel.advance(Duration::from_millis(200));
    heap.run(3.0);
    let snapshot = heap.world.heap.snapshot();
    assert_eq!((snapshot.breaks, snapshot.retained), (20, 0));
    assert_eq!(heap.resident(), [1].into());
    heap.check_contents();
}

#[test]
fn a_heap_that_grows_keeps_its_huge_pages() {
    let mut heap = Heap::new(Config::default(), 10);
    let mut more = Vec::new();
    for _ in 0..20 {
        more.push(heap.world.take(HEAP_PAGES));
        heap.run(0.25);
    }
    assert_eq!(heap.world.heap.snapshot().breaks, 0);
    assert!(heap.tenant.looks.get() > 5);
    // One arena less: nothing grows any more.
    heap.world.free_arenas(&more[19..]);
    heap.run(1.5);
    assert_eq!(heap.world.heap.snapshot().breaks, 10);
}

/// The maintenance thread sleeps until retention changes, which may be long, or not at all: what happens
/// meanwhile has to wake it.
#[test]
fn a_thread_that_sleeps_longer_is_woken_for_a_look() {
    let mut heap = Heap::new(Config::default(), 10);
    heap.run(5.0);
    let heap = &mut heap.world.heap;
    let far = heap.now() + 3600 * SECOND;
    assert!(!heap.oversleeps(far), "nothing happened");
    heap.became_partial(256);
    assert!(heap.oversleeps(far));
    let soon = heap.now() + SECOND / 4;
    assert!(!heap.oversleeps(soon), "it wakes before that is due");
    assert!(!heap.oversleeps(0), "it does not sleep");
}

/// A round of looks tells of sixteen arenas at a time. Who keeps more while it is under way may have been
/// looked at before.
#[test]
fn what_is_kept_during_a_round_of_looks_is_looked_at_in_another() {
    for (keeps, again) in [(false, false), (true, true)] {
        let mut heap = Heap::new(Config::default(), 20);
        heap.world.heap.keeps_runs();
        let now = heap.world.heap.now();
        heap.world.heap.schedule_look(now);
        // The first round finds a heap that has grown.
        for looks in [2, 1] {
            heap.world.kernel.advance(Duration::from_nanos(SECOND / 2));
            (0..looks).for_each(|_| heap.tenant.look(&mut heap.world.heap));
        }
        assert!(heap.world.heap.due_look().is_some_and(|look| look.after != 0), "four more");
        if keeps {
            heap.world.heap.keeps_runs();
        }
        heap.tenant.look(&mut heap.world.heap);
        assert_eq!((heap.tenant.looks.get(), heap.world.heap.has_look_ahead()), (4, again));
    }
}

/// A pass comes at an eighth of a decay time at the earliest, and the thread's clock is read after it was told
/// how long it may sleep. So the look was always found to come too late, and every event woke the thread.
#[test]
fn an_event_wakes_nobody_for_a_look_that_comes_with_the_next_pass() {
    let mut heap = Heap::new(Config::default(), 10);
    let heap = &mut heap.world.heap;
    let due = heap.now() + SECOND / 2;
    assert!(heap.oversleeps(heap.now() + SECOND), "nobody has planned it");
    let pass = |heap: &mut Arenas<Kernel>| {
        let plan = heap.plan();
        let Wait::For(time) = heap.complete(plan) else { panic!("a look is due") };
        heap.now() + time + SECOND / 10_000
    };
    let wakes = pass(heap);
    assert!((due..due + SECOND / 8).contains(&wakes));
    assert!(!heap.oversleeps(wakes));
    // So short before it is due that the next pass comes later.
    heap.os().advance(Duration::from_nanos(due - heap.now() - SECOND / 1000));
    let wakes = pass(heap);
    assert!(wakes > due + SECOND / 10);
    assert!(!heap.oversleeps(wakes));
    heap.became_partial(256);
    assert!(!heap.oversleeps(wakes));
}

#[test]
fn a_huge_page_is_not_given_up_for_less_than_an_eighth_of_it() {
    let pages = HEAP_PAGES as usize - 2;
    // Two heap pages are free besides.
    let least = (ARENA_BYTES / 8 - 2 * HEAP_PAGE_BYTES).div_ceil(pages);
    for (vacant, broken) in [(least - 1, 0), (least, 10)] {
        let mut heap = Heap::new(Config::default(), 10);
        heap.tenant.vacant.set(vacant);
        heap.run(10.0);
        assert_eq!(heap.world.heap.snapshot().breaks, broken, "{vacant} bytes of each page");
    }
}

/// It is not one that has to be looked at for being refilled, and may be a huge page at once.
#[test]
fn an_arena_that_became_empty_is_like_any_other() {
    let mut heap = Heap::new(Config::default(), 10);
    heap.run(5.0);
    assert_eq!(heap.world.heap.snapshot().breaks, 10);
    let pages = heap.tenant.pages.take();
    for (arena, blocks) in pages {
        pages_of(blocks).for_each(|page| heap.world.free(arena + page * HEAP_PAGE_BYTES, 1));
    }
    heap.run(5.0);
    let _again = heap.world.take_arenas(8);
    assert!(!heap.world.heap.has_look_ahead(), "what is taken refills nothing");
    heap.run(5.0);
}

#[test]
fn a_tenant_is_told_of_each_arena_that_was_given_back_and_of_no_other() {
    let mut heap = Heap::new(Config::default(), 10);
    let pages = core::mem::take(&mut *heap.tenant.pages.borrow_mut());
    for (&arena, &pages) in &pages {
        pages_of(pages).for_each(|page| heap.world.free(arena + page * HEAP_PAGE_BYTES, 1));
    }
    heap.world.kernel.fail_every(Call::Decommit, 1, libc::EAGAIN);
    heap.run(3.0);
    assert_eq!(*heap.tenant.given_back.borrow(), []);
    heap.world.kernel.fail_no_more();
    heap.run(60.0);
    let told: BTreeSet<_> = heap.tenant.given_back.borrow().iter().copied().collect();
    assert_eq!(told.len(), heap.tenant.given_back.borrow().len(), "once each");
    // One is for small runs.
    assert!(told.len() >= 9 && told.is_subset(&pages.keys().copied().collect()), "{told:?}");
}

/// With nothing vacant, and half of each heap page spared if its OS pages are made alike.
fn sparse_and_nothing_vacant(merges: Option<bool>, wanted: bool) -> Heap {
    let mut heap = Heap::new(Config { merges, ..Config::default() }, 10);
    heap.tenant.vacant.set(0);
    heap.tenant.spared.set(HEAP_PAGE_BYTES / 2);
    let settings = Settings { merge: wanted, ..heap.world.heap.settings() };
    heap.world.heap.set(settings);
    heap
}

#[test]
fn os_pages_are_made_alike_where_that_is_asked_for_and_the_host_merges() {
    let mut heap = sparse_and_nothing_vacant(Some(true), true);
    heap.run(3.0);
    let snapshot = heap.world.heap.snapshot();
    let bytes = 10 * (u64::from(HEAP_PAGES) - 2) * OS_PAGE as u64;
    assert_eq!((snapshot.breaks, snapshot.alike, snapshot.fallback(Fallback::NoMerging)), (10, bytes, 0));
    for &arena in heap.tenant.pages.borrow().keys() {
        assert!(heap.world.kernel.mapping_at(arena).expect("mapped").merges);
    }
    // Used again throughout, they are collapsed, and nothing is to be merged of them any more.
    heap.tenant.live.set(HEAP_PAGE_BYTES);
    heap.world.heap.became_partial(1000);
    heap.run(20.0);
    assert_eq!(heap.world.heap.snapshot().collapses, 10);
    for &arena in heap.tenant.pages.borrow().keys() {
        assert!(!heap.world.kernel.mapping_at(arena).expect("mapped").merges);
    }
    heap.check_contents();
}

#[test]
fn where_the_host_does_not_merge_that_is_counted_once_and_huge_pages_stay() {
    for (merges, wanted, counted) in [(Some(false), true, 1), (None, true, 1), (Some(true), false, 0)] {
        let mut heap = sparse_and_nothing_vacant(merges, wanted);
        for _ in 0..3 {
            heap.run(3.0);
            heap.world.heap.became_partial(1000);
        }
        let snapshot = heap.world.heap.snapshot();
        assert!(heap.tenant.looks.get() > 2);
        assert_eq!(
            (snapshot.fallback(Fallback::NoMerging), snapshot.breaks, snapshot.alike),
            (counted, 0, 0)
        );
    }
    // As soon as it does, it is seen by the next look.
    let mut heap = sparse_and_nothing_vacant(Some(false), true);
    heap.run(3.0);
    heap.world.kernel.set_merges(Some(true));
    heap.world.heap.became_partial(1000);
    heap.run(3.0);
    assert!(heap.world.heap.snapshot().alike > 0);
}

/// A program that uses its arenas now and then would pay for each page that it writes to, again and again.
#[test]
fn what_was_made_alike_and_used_rests_for_eight_decay_times() {
    let mut heap = sparse_and_nothing_vacant(Some(true), true);
    heap.run(3.0);
    assert_eq!(heap.tenant.alike.borrow().len(), 10);
    let again = |heap: &mut Heap, seconds| {
        heap.tenant.gone.borrow_mut().clear();
        heap.world.heap.became_partial(1000);
        heap.run(seconds);
        heap.tenant.alike.borrow().len()
    };
    assert_eq!(again(&mut heap, 3.0), 10);
    assert_eq!(again(&mut heap, 1.0), 10);
    // It is not forgotten meanwhile.
    heap.run(8.0);
    assert_eq!(heap.tenant.alike.borrow().len(), 20);
}

#[test]
fn an_arena_that_is_given_back_is_looked_at_by_nobody() {
    let mut heap = sparse_and_nothing_vacant(Some(true), true);
    heap.run(3.0);
    let pages = core::mem::take(&mut *heap.tenant.pages.borrow_mut());
    for (arena, blocks) in &pages {
        for page in pages_of(*blocks) {
            heap.world.free(arena + page * HEAP_PAGE_BYTES, 1);
        }
    }
    heap.run(20.0);
    assert_eq!(heap.world.kernel.charge(), 0);
    for arena in pages.keys() {
        assert!(!heap.world.kernel.mapping_at(*arena).expect("mapped").merges);
    }
}

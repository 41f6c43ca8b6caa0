//! What others freed in the heap of an owner that does nothing, and that nobody can ask.

use super::super::heap::Turn;
use super::super::registry::LOST;
use super::super::tag;
use super::threads::random;
use super::vacate::{vacant_bytes, vacate};
use super::*;
use crate::arena::ARENA_BYTES;
use core::sync::atomic::Ordering;
use hugeheap_os::simulated::Call;
use std::collections::BTreeSet;

/// Enough for some hundred pages, of blocks of which a page has many, and few.
const BYTES: usize = 10 << 20;
const SIZES: [usize; 4] = [16, 64, 1000, 4096];

/// A heap whose owner has taken blocks and sleeps, and one of a thread that frees them.
fn asleep(bytes: usize) -> (&'static Space<World>, [Heap<World>; 2], Vec<NonNull<u8>>) {
    let (space, mut owner) = heap();
    let other = space.acquire().expect("memory");
    let blocks = owner.take_many(BYTES / bytes, bytes);
    (space, [owner, other], blocks)
}

impl Space<World> {
    /// The two looks that a heap is collected with.
    fn collect_twice(&'static self) {
        assert!(self.collect_for_idle(true), "it was not known before");
        assert!(!self.collect_for_idle(true), "nothing is left");
    }
}

/// Pages of a heap that wait to be collected.
fn pending(space: &Space<World>, blocks: &[NonNull<u8>]) -> usize {
    let pages: BTreeSet<_> = blocks.iter().map(|&block| page_of(block)).collect();
    pages.iter().filter(|&&page| tag::is_pending(space.page(page).expect("known").tag())).count()
}

#[test]
fn what_others_freed_while_the_owner_sleeps_goes_back_to_the_arenas() {
    for bytes in SIZES {
        let (space, [mut owner, mut other], blocks) = asleep(bytes);
        let full = live(space);
        other.give_all(blocks.iter().copied());
        assert_eq!(live(space), full, "the owner would have to come");
        space.collect_twice();
        // The page at hand, and what it remembers.
        assert!(live(space) <= 2 * HEAP_PAGE_BYTES as u64, "{bytes}: {} of {full}", live(space));
        assert!(pending(space, &blocks) <= 1);
        owner.check();
        // It goes on as if nothing had happened.
        let again = owner.take_many(BYTES / bytes, bytes);
        assert_eq!(again.iter().collect::<BTreeSet<_>>().len(), again.len());
        owner.give_all(again);
        owner.check_empty();
    }
}

/// A tenth of the blocks that [`asleep`] took, and those that others have freed.
fn drop_most(
    other: &mut Heap<World>,
    blocks: &[NonNull<u8>],
    bytes: usize,
) -> (Vec<NonNull<u8>>, Vec<NonNull<u8>>) {
    let mut seed = 1;
    let (kept, dropped): (Vec<_>, Vec<_>) = blocks.iter().partition(|_| random(&mut seed) % 10 == 0);
    kept.iter().for_each(|&block| fill(block, bytes, 7));
    other.give_all(dropped.iter().copied());
    (kept, dropped)
}

#[test]
fn pages_with_live_blocks_wait_for_the_owner_and_their_os_pages_do_not() {
    for bytes in SIZES {
        let (space, [mut owner, mut other], blocks) = asleep(bytes);
        let (kept, dropped) = drop_most(&mut other, &blocks, bytes);
        let waited = pending(space, &blocks);
        space.collect_twice();
        let left = pending(space, &blocks);
        assert!(left <= waited && (bytes > 64 || left == waited), "{bytes}: {left} of {waited}");
        let arenas: BTreeSet<_> = blocks.iter().map(|&block| at(block) & !(ARENA_BYTES - 1)).collect();
        let expected: usize = arenas.iter().map(|&arena| vacant_bytes(space, arena)).sum();
        let given: usize = arenas.iter().map(|&arena| vacate(space, arena, |_| {}).0).sum();
        // The page at hand.
        assert!(given <= expected && given + HEAP_PAGE_BYTES >= expected, "{bytes}: {given} of {expected}");
        assert!(bytes < 1000 || given > BYTES / 8, "{bytes}: {given}");
        assert!(kept.iter().all(|&block| holds(block, bytes, 7)));
        owner.check();
        // They are collected when the owner needs them.
        let had = live(space);
        let again = owner.take_many(dropped.len() / 2, bytes);
        let distinct: BTreeSet<_> = again.iter().chain(&kept).collect();
        assert_eq!(distinct.len(), again.len() + kept.len());
        assert!(live(space) < had + BYTES as u64 / 2, "from where others were");
        assert!(kept.iter().all(|&block| holds(block, bytes, 7)));
        other.give_all(again);
        owner.give_all(kept);
        owner.check_empty();
    }
}

/// What others free there later is announced, and so somebody learns of it.
#[test]
fn a_page_that_was_claimed_and_in_which_nobody_freed_is_the_owners_again() {
    let (space, [mut owner, mut other], blocks) = asleep(1000);
    let mut seed = 1;
    let (kept, dropped): (Vec<_>, Vec<_>) = blocks.iter().partition(|_| random(&mut seed) % 10 == 0);
    owner.give_all(dropped);
    let arenas: BTreeSet<_> = blocks.iter().map(|&block| at(block) & !(ARENA_BYTES - 1)).collect();
    let given: usize = arenas.iter().map(|&arena| vacate(space, arena, |_| {}).0).sum();
    assert!(given > BYTES / 8 && pending(space, &kept) > 100);
    space.collect_twice();
    assert_eq!(pending(space, &kept), 0);
    let announced = owner.shared().inbox.announced.load(Ordering::Relaxed);
    other.give_all(kept);
    assert!(owner.shared().inbox.announced.load(Ordering::Relaxed) > announced + 100);
    owner.check_empty();
}

/// Frees a block of so many bytes.
type Free = fn(&mut Heap<World>, NonNull<u8>, usize);

/// Of a page that is pending already no free is announced: the arenas learn of each 64th that becomes vacant.
#[test]
fn what_is_freed_in_pending_pages_is_news_as_well() {
    // Each has a way of its own to a pending page.
    // SAFETY: the tests' blocks, used by nobody else.
    let ways: [Free; 3] = unsafe {
        [
            |heap, block, _| heap.try_free(block).expect("live"),
            |heap, block, _| heap.free(block),
            |heap, block, bytes| heap.free_sized(block, bytes),
        ]
    };
    for (bytes, free) in SIZES.into_iter().flat_map(|bytes| ways.map(|free| (bytes, free))) {
        let (space, [mut owner, mut other], blocks) = asleep(bytes);
        let is_due = || space.source().arenas.lock().has_look_ahead();
        let look = crate::arena::DueLook { after: 0, quiet: true, asked: false };
        let told = space.source().arenas.lock().begin_look(look);
        let (kept, _) = drop_most(&mut other, &blocks, bytes);
        assert!(is_due());
        for _ in 0..2 {
            space.source().with(|arenas| arenas.looked(&told, None, false));
        }
        assert!(!is_due());
        kept.into_iter().for_each(|block| free(&mut other, block, bytes));
        assert!(is_due(), "{bytes}");
        owner.check_empty();
    }
}

#[test]
fn an_owner_that_uses_up_pages_is_left_alone_unless_memory_is_short() {
    let (space, [mut owner, mut other], blocks) = asleep(64);
    other.give_all(blocks.iter().copied());
    let full = live(space);
    let mut more = Vec::new();
    for _ in 0..5 {
        assert!(space.collect_for_idle(true));
        // A page, and some of the next one.
        more.extend(owner.take_many(300, 64));
    }
    assert!(live(space) >= full, "it collects for itself, when it needs blocks");
    assert!(!space.collect_for_idle(false));
    assert!(live(space) < full / 2);
    owner.give_all(more);
    owner.check_empty();
}

#[test]
fn spare_pages_go_when_their_owner_is_idle_and_are_no_reason_to_look_again() {
    let (space, mut owner) = heap();
    let blocks = owner.take_many(2000, 1000);
    owner.give_all(blocks);
    let full = live(space);
    assert!(full >= 16 * HEAP_PAGE_BYTES as u64, "{full}");
    assert!(!space.collect_for_idle(true), "not known before");
    assert_eq!(live(space), full);
    assert!(!space.collect_for_idle(true));
    assert!(live(space) <= HEAP_PAGE_BYTES as u64);
    owner.check();
    let blocks = owner.take_many(2000, 1000);
    owner.give_all(blocks);
    owner.check_empty();
}

#[test]
fn a_busy_owner_and_a_lost_heap_are_not_touched() {
    let (space, [mut owner, mut other], blocks) = asleep(64);
    other.give_all(blocks.iter().copied());
    let full = live(space);
    let busy = owner.busy();
    assert!(!space.collect_for_idle(false));
    drop(busy);
    let state = owner.shared().state.swap(LOST, Ordering::Relaxed);
    assert!(!space.collect_for_idle(false));
    owner.shared().state.store(state, Ordering::Relaxed);
    assert_eq!(live(space), full);
    assert!(!space.collect_for_idle(false));
    assert!(live(space) < full / 2, "and then it is");
    owner.check_empty();
}

#[test]
fn an_owner_that_comes_while_its_heap_is_held_waits_and_then_goes_on() {
    let (space, [mut owner, _other], blocks) = asleep(4096);
    let turn: &'static Turn = &space.registry.shared::<World>(owner.number()).expect("made").turn;
    let held = space.hold(turn).expect("nobody is busy");
    let blocks: Vec<_> = blocks.into_iter().map(at).collect();
    assert!(turn.is_taken());
    std::thread::scope(|scope| {
        let goes_on = scope.spawn(move || {
            owner.give_all(blocks.into_iter().map(pointer));
            owner.trim();
            owner
        });
        std::thread::sleep(core::time::Duration::from_millis(100));
        assert!(!goes_on.is_finished(), "it changes lists that are somebody else's");
        drop(held);
        goes_on.join().expect("the owner").check_empty();
    });
    assert!(!turn.is_taken());
}

/// The arenas' lock may be held for a while, and what goes with it may start a thread: not while the owner waits.
#[test]
fn pages_go_to_the_arenas_when_the_heap_is_not_held_any_more() {
    let (space, mut owner) = heap();
    let mut other = space.acquire().expect("memory");
    let blocks = owner.take_many(40 * 4, 4096);
    other.give_all(blocks.iter().copied());
    let full = live(space);
    let arenas = space.source().arenas.lock();
    std::thread::scope(|scope| {
        let collects = scope.spawn(|| space.collect_for_idle(false));
        let turn: &'static Turn = &space.registry.shared::<World>(owner.number()).expect("made").turn;
        let gone = |block: &&NonNull<u8>| space.page(page_of(**block)).expect("known").tag() == 0;
        let until = std::time::Instant::now() + core::time::Duration::from_secs(10);
        while (blocks.iter().filter(gone).count() < 100 || turn.is_taken())
            && std::time::Instant::now() < until
        {
            std::thread::yield_now();
        }
        assert!(!turn.is_taken(), "the owner would wait as well");
        owner.collect_all();
        drop(arenas);
        assert!(!collects.join().expect("it collects"));
    });
    assert!(live(space) < full / 4);
    owner.check_empty();
}

/// Two who change a heap for its owner do not meet.
#[test]
fn os_pages_of_a_heap_that_is_held_stay() {
    let (space, [mut owner, mut other], blocks) = asleep(1000);
    let (kept, _) = drop_most(&mut other, &blocks, 1000);
    let arena = at(kept[0]) & !(ARENA_BYTES - 1);
    let turn: &'static Turn = &space.registry.shared::<World>(owner.number()).expect("made").turn;
    let held = space.hold(turn).expect("nobody is busy");
    assert_eq!(vacate(space, arena, |_| unreachable!()).0, 0);
    drop(held);
    assert!(vacate(space, arena, |_| {}).0 > 0);
    owner.give_all(kept);
    owner.check_empty();
}

#[test]
fn hardened_heaps_collect_for_themselves() {
    let space = space();
    let mut owner = space.acquire_hardened().expect("memory");
    let mut other = space.acquire().expect("memory");
    let blocks = owner.take_many(50_000, 64);
    other.give_all(blocks.iter().copied());
    let full = live(space);
    for _ in 0..3 {
        space.collect_for_idle(false);
    }
    assert_eq!(live(space), full);
    owner.check();
}

#[test]
fn where_the_system_has_no_barrier_nobody_collects_for_another() {
    let (space, [owner, mut other], blocks) = asleep(64);
    other.give_all(blocks);
    let full = live(space);
    space.source().kernel.fail_every(Call::Barrier, 1, libc::ENOSYS);
    assert!(!space.collect_for_idle(false));
    assert_eq!(live(space), full);
    assert_eq!(owner.shared().turn.held.load(Ordering::Relaxed), 0, "nobody waits for what is over");
}

/// What its owner's fast paths may have to do with: the page at hand, and pages with remembered blocks.
#[test]
fn pages_that_the_owner_may_take_blocks_of_wait_for_it() {
    for bytes in SIZES {
        let (space, [mut owner, mut other], mut blocks) = asleep(bytes);
        // Of eight pages a block is remembered, the last one freed by the owner.
        let step = blocks.len() / 8;
        let mut own: Vec<_> = (0..8).rev().map(|number| blocks.remove(number * step)).collect();
        owner.give_all(own.iter().copied());
        other.give_all(blocks.iter().copied());
        space.collect_twice();
        let left: BTreeSet<_> = own.iter().map(|&block| page_of(block)).collect();
        let waits = |page: &usize| tag::is_pending(space.page(*page).expect("known").tag());
        let waiting = left.iter().filter(|page| waits(page)).count();
        assert!(waiting >= 7, "{bytes}: {waiting} of {left:?}");
        owner.check();
        // Taken in the order in which they were freed, the last one first, whatever became of their pages.
        own.reverse();
        let taken = owner.take_many(8, bytes);
        assert_eq!(taken, own, "{bytes}");
        assert!(pending(space, &blocks) >= 7);
        owner.give_all(taken);
        owner.check_empty();
    }
}

/// Of a page that the owner is in the middle of freeing or taking a block of nobody knows whether that block
/// can be taken.
#[test]
fn a_page_in_the_middle_of_a_free_or_an_allocation_is_not_collected() {
    let (space, [mut owner, mut other], blocks) = asleep(1000);
    let pages: Vec<_> = blocks.iter().map(|&block| page_of(block)).collect();
    let (freed, taken) = (blocks[200], blocks[400]);
    let others = blocks.iter().filter(|&&block| block != freed && block != taken);
    other.give_all(others.copied());
    // Freed, and neither remembered nor counted yet; counted, and not cleared yet.
    let offset = (at(freed) - page_of(freed)) >> 4;
    let word = &space.page(page_of(freed)).expect("known").vacant()[offset / 64];
    word.fetch_or(1 << (offset % 64), Ordering::Relaxed);
    let mark = space.page(page_of(taken)).expect("known").mark();
    mark.add_live(1);
    space.collect_for_idle(false);
    let waits = |block| tag::is_pending(space.page(page_of(block)).expect("known").tag());
    assert!(waits(freed) && waits(taken));
    assert!(
        pages.iter().filter(|&&page| tag::class(space.page(page).expect("known").tag()) != 0).count() < 60
    );
    word.fetch_and(!(1 << (offset % 64)), Ordering::Relaxed);
    mark.remove_live(1);
    other.give_all([freed, taken]);
    space.collect_for_idle(false);
    assert!(!waits(freed) && !waits(taken));
    owner.check_empty();
}

/// The owner has freed the first block of a full page, or its last one, and is about to see to that. Meanwhile
/// somebody collects: the page is in a list, or is not its any more.
#[test]
fn a_page_that_was_collected_before_its_owner_came_to_settle_it_is_left_alone() {
    for last in [false, true] {
        let (space, [mut owner, mut other], mut blocks) = asleep(1000);
        let block = blocks.remove(200);
        let page = page_of(block);
        let (of_page, rest): (Vec<_>, Vec<_>) = blocks.iter().partition(|&&block| page_of(block) == page);
        // All others of its page are free, or all but one.
        other.give_all(of_page[usize::from(!last)..].iter().copied());
        let mark = space.page(page).expect("known").mark();
        assert!(mark.is_full());
        // What `free_in_word` does but for the ring, where it may be overwritten by then.
        let granule = owner.own().granule_of(at(block));
        let word = &space.page(page).expect("known").vacant()[granule / 64 % 16];
        word.fetch_or(1 << (granule % 64), Ordering::Relaxed);
        mark.note_free();
        space.collect_for_idle(false);
        let class = tag::class(mark.tag.load(Ordering::Relaxed));
        assert_eq!(class == 0, last, "class {class}");
        Heap::settle(owner.core, granule);
        owner.check();
        owner.give_all(rest);
        owner.give_all(of_page[..usize::from(!last)].iter().copied());
        owner.check_empty();
    }
}

/// Thousands of pages, of several classes, and some that have to wait among them. Many are in queues, the way
/// an owner leaves them that was looking for one class.
#[test]
fn however_many_pages_there_are_all_are_looked_at() {
    let (space, mut owner) = heap();
    let mut other = space.acquire().expect("memory");
    let mut blocks: Vec<_> = SIZES.iter().map(|&bytes| owner.take_many(BYTES / bytes, bytes)).collect();
    // Of the smallest ones some pages wait, before all others.
    let step = blocks[0].len() / 8;
    let own: Vec<_> = (0..8).rev().map(|number| blocks[0].remove(number * step)).collect();
    owner.give_all(own);
    let blocks: Vec<_> = blocks.into_iter().flatten().collect();
    other.give_all(blocks.iter().copied());
    let few = owner.take_many(2000, 16);
    let queued = owner.own().queued();
    assert!(queued > 1000, "{queued}");
    space.collect_twice();
    assert!(pending(space, &blocks) <= 8 + SIZES.len(), "{}", pending(space, &blocks));
    owner.check();
    owner.give_all(few);
    owner.check_empty();
}

/// Who collects for an idle owner leaves pages in its queues, and announced pages are not announced again: what
/// others freed there stayed until somebody adopted the heap.
#[test]
fn what_was_queued_while_the_owner_leaves_is_collected() {
    for others in [0, 1000] {
        let (space, [mut owner, mut other], blocks) = asleep(64);
        let elsewhere = other.take_many(others, 64);
        // What dropping a handle does, step by step.
        owner.trim();
        let (first, rest): (Vec<_>, Vec<_>) = blocks.iter().partition(|&&block| page_of(block) == at(block));
        other.give_all(first);
        space.collect_for_idle(false);
        assert!(pending(space, &blocks) > 500);
        core::mem::ManuallyDrop::new(owner).leave();
        other.give_all(rest);
        other.give_all(elsewhere);
        other.trim();
        assert_eq!((live(space), pending(space, &blocks)), (0, 0));
    }
}

/// While OS pages of an arena go, nobody collects its pages: neither their owner nor who holds its heap.
#[test]
fn pages_of_a_closed_arena_are_collected_by_nobody() {
    let (space, [mut owner, mut other], blocks) = asleep(1000);
    let (kept, _) = drop_most(&mut other, &blocks, 1000);
    let arena = at(kept[kept.len() / 2]) & !(ARENA_BYTES - 1);
    let within = |block: &NonNull<u8>| at(*block) & !(ARENA_BYTES - 1) == arena;
    // Some of them have no live block any more.
    let (within, kept): (Vec<_>, Vec<_>) = kept.into_iter().partition(within);
    let (gone, stay) = within.split_at(within.len() / 2);
    other.give_all(gone.iter().copied());
    let waits = || gone.iter().chain(stay).filter(|&&block| pending(space, &[block]) == 1).count();
    let before = waits();
    assert!(before > 50, "{before}");
    let mut times = 0;
    let _ = vacate(space, arena, |_| {
        times += 1;
        match times {
            // From the inbox, and from the queues.
            1 | 2 => owner.collect_all(),
            3 => _ = space.collect_for_idle(false),
            _ => {}
        }
        assert_eq!(waits(), before, "{times}");
    });
    assert!(times > 3);
    owner.collect_all();
    assert_eq!(waits(), 0);
    owner.give_all(kept.into_iter().chain(stay.iter().copied()));
    owner.check_empty();
}

/// What others freed is not live for who looks, and a page in which they free between two looks has changed.
#[test]
fn what_others_freed_is_seen_by_who_looks() {
    let (space, [mut owner, mut other], blocks) = asleep(1000);
    let (kept, _) = drop_most(&mut other, &blocks, 1000);
    let look = || {
        let (mut live, mut bytes) = (0, 0);
        let look = space.look_for_vacancy(0, true, |vacancy| {
            (live, bytes) = (live + vacancy.live, bytes + vacancy.bytes);
            true
        });
        (live, bytes, look.later)
    };
    assert!(look().2, "not known before");
    let (live, bytes, later) = look();
    assert!(!later && bytes > BYTES / 8);
    assert!(live.abs_diff(kept.len() * 1024) <= 2 * HEAP_PAGE_BYTES, "{live} of {}", kept.len());
    let (more, kept) = kept.split_at(kept.len() / 2);
    other.give_all(more.iter().copied());
    assert!(look().2, "they have changed");
    assert!(!look().2);
    owner.give_all(kept.iter().copied());
    owner.check_empty();
}

/// Whatever happens in whichever order, no block is lost and none is had twice.
#[test]
fn random_operations_beside_it_leave_everything_as_it_is() {
    for mut seed in 1..=8 {
        let space = space();
        let mut heaps = [(); 3].map(|()| space.acquire().expect("memory"));
        let mut blocks: Vec<(NonNull<u8>, usize)> = Vec::new();
        for step in 0..400 {
            let who = (random(&mut seed) % 3) as usize;
            let bytes = SIZES[(random(&mut seed) % 4) as usize];
            match random(&mut seed) % 6 {
                0 | 1 => {
                    let count = (random(&mut seed) % 40_000) as usize / bytes;
                    blocks.extend(heaps[who].take_many(count, bytes).into_iter().map(|block| {
                        fill(block, bytes, 5);
                        (block, bytes)
                    }));
                }
                2..=4 => {
                    for _ in 0..random(&mut seed) % 800 {
                        if blocks.is_empty() {
                            break;
                        }
                        let (block, bytes) =
                            blocks.swap_remove((random(&mut seed) % blocks.len() as u64) as usize);
                        assert!(holds(block, bytes, 5));
                        heaps[who].give(block).expect("live");
                    }
                }
                _ => _ = space.collect_for_idle(random(&mut seed) % 2 == 0),
            }
            if step % 20 == 0 {
                heaps.iter_mut().for_each(Heap::check);
            }
        }
        let distinct: BTreeSet<_> = blocks.iter().map(|&(block, _)| block).collect();
        assert_eq!(distinct.len(), blocks.len());
        heaps[0].give_all(blocks.drain(..).map(|(block, _)| block));
        for heap in &mut heaps {
            heap.check();
            heap.trim();
            assert_eq!(heap.page_count(), 0);
        }
        assert_eq!(live(space), 0);
    }
}

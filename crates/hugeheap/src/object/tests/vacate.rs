//! OS pages without a live block in heap pages that have some: given back while the owner goes on, whatever it
//! is in the middle of.

use super::super::registry::LOST;
use super::super::ring::RECENT;
use super::super::tag;
use super::super::vacancy::{both, live_blocks, vacant_os_pages};
use super::super::vacate::Claim;
use super::threads::random;
use super::*;
use crate::arena::{ARENA_BYTES, GivenUp, Tenant, Vacancy};
use core::sync::atomic::Ordering;
use hugeheap_os::simulated::Call;
use hugeheap_os::{AddressRange, Pages, Result as OsResult};
use std::collections::BTreeSet;

/// Sizes of which an OS page has many blocks, few, one, and less.
pub(super) const SIZES: [usize; 7] = [48, 256, 512, 1000, 2048, 2688, 4096];

/// Blocks with contents of their own.
#[derive(Default)]
pub(super) struct Blocks(pub(super) Vec<(NonNull<u8>, usize, u8)>);

impl Blocks {
    pub(super) fn take(&mut self, heap: &mut Heap<World>, count: usize, bytes: usize) {
        for _ in 0..count {
            let (block, value) = (heap.take(bytes), self.0.len() as u8 | 1);
            fill(block, bytes, value);
            self.0.push((block, bytes, value));
        }
    }

    /// All but one in `part`, whichever.
    pub(super) fn keep(&mut self, heap: &mut Heap<World>, part: u64, seed: &mut u64) {
        self.0.retain(|&(block, ..)| {
            let stays = random(seed) % part == 0;
            if !stays {
                heap.give(block).expect("live");
            }
            stays
        });
    }

    pub(super) fn check(&self) {
        for &(block, bytes, value) in &self.0 {
            assert!(holds(block, bytes, value), "{block:p}, {bytes} bytes");
        }
    }

    pub(super) fn give_all(&mut self, heap: &mut Heap<World>) {
        self.check();
        heap.give_all(self.0.drain(..).map(|(block, ..)| block));
    }

    pub(super) fn arenas(&self) -> BTreeSet<usize> {
        self.0.iter().map(|&(block, ..)| at(block) & !(ARENA_BYTES - 1)).collect()
    }
}

/// Gives up what is vacant in an arena; `during` is called before each range goes.
pub(super) fn vacate(
    space: &Space<World>,
    arena: usize,
    during: impl FnMut(AddressRange),
) -> (usize, OsResult<()>) {
    let (given_up, result) = give_up(space, arena, false, during);
    assert_eq!(given_up.alike, 0);
    (given_up.vacant, result)
}

/// The same, and makes OS pages alike if that is asked for.
pub(super) fn give_up(
    space: &Space<World>,
    arena: usize,
    merges: bool,
    mut during: impl FnMut(AddressRange),
) -> (GivenUp, OsResult<()>) {
    space.vacate(AddressRange::new(arena, ARENA_BYTES), merges, &mut |range| {
        during(range);
        // SAFETY: what the test is about.
        unsafe { space.source().kernel.decommit(range) }
    })
}

/// A heap that has lost nine of ten blocks of a size, whichever, and none of which is remembered or at hand in
/// the first of its arenas.
pub(super) fn sparse(bytes: usize) -> (&'static Space<World>, Heap<World>, Blocks) {
    let (space, mut heap) = heap();
    let (mut blocks, mut seed) = (Blocks::default(), 1);
    blocks.take(&mut heap, 3 * ARENA_BYTES / bytes.next_power_of_two(), bytes);
    blocks.keep(&mut heap, 10, &mut seed);
    (space, heap, blocks)
}

#[test]
fn os_pages_without_a_live_block_go_and_everything_else_stays() {
    for bytes in SIZES {
        let (space, mut heap, mut blocks) = sparse(bytes);
        let expected: usize = blocks.arenas().iter().map(|&arena| vacant_bytes(space, arena)).sum();
        let given: usize = blocks.arenas().iter().map(|&arena| vacate(space, arena, |_| {}).0).sum();
        // A page at hand and all remembered blocks stay, at most.
        let stays = HEAP_PAGE_BYTES + RECENT * 2 * 4096;
        assert!(given <= expected && given + stays >= expected, "{bytes}: {given} of {expected}");
        assert!(bytes < 256 || given > ARENA_BYTES / 10, "{bytes}: {given}");
        blocks.check();
        heap.check();
        // All of it is used again, and each block once.
        let count = blocks.0.len();
        blocks.take(&mut heap, 2 * ARENA_BYTES / bytes.next_power_of_two(), bytes);
        assert!(blocks.0.len() > count);
        let distinct: BTreeSet<_> = blocks.0.iter().map(|&(block, ..)| at(block)).collect();
        assert_eq!(distinct.len(), blocks.0.len());
        blocks.give_all(&mut heap);
        heap.check_empty();
    }
}

/// Bytes of OS pages without a live block in the pages of an arena that have one.
pub(super) fn vacant_bytes(space: &Space<World>, arena: usize) -> usize {
    let pages = (arena..arena + ARENA_BYTES).step_by(HEAP_PAGE_BYTES).filter_map(|page| space.page(page));
    let cut = pages.filter(|page| (1..CLASSES).contains(&tag::class(page.tag())));
    cut.map(|page| {
        let number = tag::class(page.tag());
        let shape = &class::SHAPES[number];
        let free = both(&page.words(), &page.freed_by_others(number));
        vacant_os_pages(shape, &free, 4096).count_ones() as usize * 4096
    })
    .sum()
}

/// Whether the owner of a heap waits for its turn if it comes for more than a fast path has: nothing that the
/// same thread does may, then.
pub(super) fn would_wait(heap: &Heap<World>) -> bool {
    heap.shared().turn.held.load(Ordering::Relaxed) != 0
}

/// The owner takes what it remembers, and more, while OS pages go.
#[test]
fn what_is_taken_meanwhile_keeps_its_contents() {
    for bytes in SIZES {
        let (space, mut heap, mut blocks) = sparse(bytes);
        for arena in blocks.arenas() {
            let mut first = true;
            let mut taken = Blocks::default();
            let _ = vacate(space, arena, |_| {
                if would_wait(&heap) {
                    return;
                }
                // Those that are remembered, the rest of the page at hand, and pages from the lists.
                taken.take(&mut heap, if first { 200 } else { 1 }, bytes);
                first = false;
            });
            taken.check();
            blocks.0.append(&mut taken.0);
        }
        blocks.check();
        heap.check();
        blocks.give_all(&mut heap);
        heap.check_empty();
    }
}

/// A block that is remembered is taken at the last moment: when its page was looked at, and before anything of it goes.
#[test]
fn a_remembered_block_keeps_all_of_its_os_pages() {
    for bytes in [512, 640, 1000, 2304, 4096] {
        let (space, mut heap, mut blocks) = sparse(bytes);
        let mut taken = 0;
        for number in (0..blocks.0.len()).step_by(blocks.0.len() / 20) {
            let (block, ..) = blocks.0[number];
            let at_hand = heap.own().bins[class::class_of(bytes)].page;
            // Behind the first OS page, so that something before it may go. And not in the window that is open.
            if at(block) - page_of(block) < 4096 || page_of(block) == at_hand {
                continue;
            }
            heap.give(block).expect("live");
            let _ = vacate(space, at(block) & !(ARENA_BYTES - 1), |range| {
                if range.start & !(HEAP_PAGE_BYTES - 1) == page_of(block) && heap.usable_size(block).is_err()
                {
                    assert_eq!(heap.take(bytes), block, "what was freed last");
                    fill(block, bytes, blocks.0[number].2);
                    taken += 1;
                }
            });
            if heap.usable_size(block).is_err() {
                // Another one, where it was the only one of its page.
                blocks.0[number].0 = heap.take(bytes);
                fill(blocks.0[number].0, bytes, blocks.0[number].2);
            }
            blocks.check();
            heap.collect_all();
        }
        assert!(taken > 0, "{bytes}");
        blocks.give_all(&mut heap);
        heap.check_empty();
    }
}

#[test]
fn what_is_freed_meanwhile_is_found_later_and_checked_at_once() {
    for bytes in SIZES {
        let (space, mut heap, mut blocks) = sparse(bytes);
        for arena in blocks.arenas() {
            let _ = vacate(space, arena, |_| {
                if would_wait(&heap) {
                    return;
                }
                let Some((block, bytes, value)) = blocks.0.pop() else { return };
                assert!(holds(block, bytes, value));
                assert_eq!(heap.give(block), Ok(()));
                assert!(heap.give(block).is_err(), "twice");
            });
        }
        heap.check();
        blocks.give_all(&mut heap);
        heap.check_empty();
    }
}

/// Of a page that the owner is in the middle of freeing or taking a block of nothing goes: whether that block
/// can be taken nobody knows.
#[test]
fn a_page_in_the_middle_of_a_free_or_an_allocation_is_left_alone() {
    let (space, heap, blocks) = sparse(512);
    let arena = *blocks.arenas().first().expect("some");
    let untouched = |why: &str, page: usize| {
        let _ = vacate(space, arena, |range| {
            assert_ne!(range.start & !(HEAP_PAGE_BYTES - 1), page, "{why}");
        });
    };
    let in_arena = blocks.0.iter().filter(|(block, ..)| at(*block) & !(ARENA_BYTES - 1) == arena);
    let mut pages: Vec<_> = in_arena.map(|&(block, ..)| (page_of(block), block)).collect();
    pages.dedup_by_key(|(page, _)| *page);
    pages.retain(|&(page, _)| {
        let page = space.page(page).expect("known");
        let shape = &class::SHAPES[tag::class(page.tag())];
        page.mark().live() == live_blocks(shape, &page.words()) && page.vacant_pages() != 0
    });
    // Freed, and neither remembered nor counted yet.
    let (page, block) = pages[0];
    let offset = (at(block) - page) >> 4;
    let word = &space.page(page).expect("known").vacant()[offset / 64];
    word.fetch_or(1 << (offset % 64), Ordering::Relaxed);
    untouched("a free", page);
    word.fetch_and(!(1 << (offset % 64)), Ordering::Relaxed);
    // Counted and remembered no more, and not cleared yet.
    let (page, _) = pages[1];
    space.page(page).expect("known").mark().add_live(1);
    untouched("an allocation", page);
    space.page(page).expect("known").mark().remove_live(1);
    // Nobody's fault: both were left alone, so their turn is when something changes there.
    let busy = heap.busy();
    assert_eq!(vacate(space, *blocks.arenas().last().expect("some"), |_| {}).0, 0, "busy");
    drop(busy);
    blocks.check();
}

impl super::super::space::Page {
    fn vacant_pages(self) -> u16 {
        vacant_os_pages(&class::SHAPES[tag::class(self.tag())], &self.words(), 4096)
    }
}

#[test]
fn where_the_system_has_no_barrier_nothing_goes() {
    let (space, mut heap, mut blocks) = sparse(1000);
    let arena = *blocks.arenas().first().expect("some");
    space.source().kernel.fail_next(Call::Barrier, libc::ENOSYS, 1);
    let (given, result) = vacate(space, arena, |_| unreachable!());
    assert_eq!((given, result.map_err(|error| error.code)), (0, Err(libc::ENOSYS)));
    heap.check();
    assert!(vacate(space, arena, |_| {}).0 > 0, "it is tried again");
    blocks.give_all(&mut heap);
    heap.check_empty();
}

#[test]
fn an_error_ends_it_and_what_went_before_is_told() {
    let (space, mut heap, mut blocks) = sparse(2048);
    let arena = *blocks.arenas().first().expect("some");
    let mut calls = 0;
    let (given, result) = vacate(space, arena, |_| {
        calls += 1;
        if calls == 4 {
            space.source().kernel.fail_next(Call::Decommit, libc::EAGAIN, 1);
        }
    });
    assert!(given >= 3 * 4096 && result.is_err() && calls == 4, "{given} {result:?} {calls}");
    blocks.give_all(&mut heap);
    heap.check_empty();
}

/// The system has no more memory, and what is free lies in the arena that is closed for a moment.
#[test]
fn who_finds_nothing_elsewhere_waits_until_the_arena_is_open() {
    let bytes = 2048;
    let (space, mut heap, blocks) = sparse(bytes);
    let free = 3 * ARENA_BYTES / bytes - blocks.0.len();
    space.source().kernel.fail_every(Call::Map, 1, libc::ENOMEM);
    let arena = *blocks.arenas().iter().nth(1).expect("some");
    let (closed, is_closed) = std::sync::mpsc::channel();
    let taken = std::thread::scope(|scope| {
        let owner = scope.spawn(move || {
            is_closed.recv().expect("it is closed");
            // Until there is really nothing.
            core::iter::from_fn(|| heap.allocate(bytes).map(at)).take(2 * free).count()
        });
        let mut first = true;
        let _ = vacate(space, arena, |_| {
            if core::mem::take(&mut first) {
                closed.send(()).expect("it waits");
                // Longer than it takes to use up everything else.
                std::thread::sleep(core::time::Duration::from_millis(200));
            }
        });
        owner.join().expect("the owner")
    });
    assert!(taken >= free, "{taken} of {free}");
}

/// It is opened after the heap has looked at its pages, and before it asks whether it had to wait.
#[test]
fn what_lies_in_an_arena_that_was_opened_meanwhile_is_found() {
    let bytes = 2048;
    for hardened in [false, true] {
        let space = space();
        let acquired = if hardened { space.acquire_hardened() } else { space.acquire() };
        let mut heap = acquired.expect("memory");
        let mut blocks = Blocks::default();
        blocks.take(&mut heap, 3 * ARENA_BYTES / bytes, bytes);
        blocks.keep(&mut heap, 2, &mut 1);
        heap.trim();
        space.source().kernel.fail_every(Call::Map, 1, libc::ENOMEM);
        // The arenas have no page left.
        let mut other = space.acquire().expect("memory");
        let pages: Vec<_> = core::iter::from_fn(|| other.allocate(HEAP_PAGE_BYTES)).collect();
        let arena = *blocks.arenas().iter().nth(1).expect("some");
        let free = |space: &Space<World>| {
            let pages =
                (arena..arena + ARENA_BYTES).step_by(HEAP_PAGE_BYTES).filter_map(|page| space.page(page));
            let blocks = pages
                .filter(|page| tag::class(page.tag()) < class::CLASSES)
                .map(|page| 8 - page.mark().live())
                .sum::<u32>();
            blocks as usize
        };
        // All that lies elsewhere.
        space.registry.closed.store(arena, Ordering::SeqCst);
        space.source().when_asked(move || space.open());
        let there = free(space);
        assert!(there > 100, "{there}");
        let before = blocks.0.len();
        while let Some(block) = heap.allocate(bytes) {
            fill(block, bytes, 1);
            blocks.0.push((block, bytes, 1));
        }
        assert!(space.source().asked(), "the arenas were asked while it was closed");
        assert!(blocks.0.len() - before >= there, "{} of {there}", blocks.0.len() - before);
        assert_eq!(free(space), 0);
        blocks.give_all(&mut heap);
        other.give_all(pages);
    }
}

/// Of a heap that waits pages were full when the arena was closed, so that nobody claimed them; what is freed
/// there meanwhile is announced once.
#[test]
fn what_is_freed_in_a_heap_that_waits_while_the_arena_is_closed_is_collected() {
    let (space, mut owner) = heap();
    let mut ended = space.acquire().expect("memory");
    let mut blocks = Blocks::default();
    blocks.take(&mut owner, 300, 2048);
    let full = ended.take_many(320, 2048);
    let arena = at(full[0]) & !(ARENA_BYTES - 1);
    assert!(blocks.arenas().contains(&arena));
    blocks.0.retain(|&(block, ..)| {
        let stays = at(block) % HEAP_PAGE_BYTES == 0;
        if !stays {
            owner.give(block).expect("live");
        }
        stays
    });
    drop(ended);
    let mut freed = false;
    let (given, _) = vacate(space, arena, |_| {
        if !core::mem::replace(&mut freed, true) {
            // SAFETY: nobody uses them.
            full.iter().for_each(|&block| unsafe { space.free(block) });
        }
    });
    assert!(given > 0 && freed);
    let pending =
        full.iter().filter(|&&block| tag::is_pending(space.page(page_of(block)).expect("known").tag()));
    assert_eq!(pending.count(), 0, "nobody comes back to them");
    blocks.give_all(&mut owner);
    owner.check_empty();
}

#[test]
fn two_at_a_time_do_not_meet() {
    let (space, _heap, blocks) = sparse(4096);
    let arenas: Vec<_> = blocks.arenas().into_iter().collect();
    let mut within = None;
    let _ = vacate(space, arenas[0], |_| {
        within.get_or_insert_with(|| vacate(space, arenas[1], |_| unreachable!()));
    });
    let (given, result) = within.expect("called");
    assert_eq!((given, result.map_err(|error| error.code)), (0, Err(libc::EAGAIN)));
    assert!(vacate(space, arenas[1], |_| {}).0 > 0, "afterwards");
}

#[test]
fn a_child_forked_meanwhile_has_all_of_its_blocks() {
    let (space, mut heap, mut blocks) = sparse(1000);
    let arena = *blocks.arenas().iter().nth(1).expect("some");
    // As the child finds it: pages claimed by a thread that it does not have, some of them in the inbox already.
    let claimed = (arena..arena + ARENA_BYTES).step_by(HEAP_PAGE_BYTES).filter_map(|page| space.page(page));
    let claimed: Vec<_> =
        claimed.filter(|page| space.claim_page(*page, 4096, false) == Claim::Made).collect();
    space.registry.closed.store(arena, Ordering::SeqCst);
    claimed[..claimed.len() / 2].iter().for_each(|page| space.put_into_inbox(page.address(), page.tag()));
    assert!(claimed.len() > 40, "{}", claimed.len());
    space.lock_for_fork();
    // SAFETY: just locked by this thread.
    unsafe { space.unlock_after_fork() };
    space.after_fork_in_child(&[Some(heap.number())]);
    assert_eq!(space.closed_arena(), 0);
    heap.check();
    blocks.give_all(&mut heap);
    heap.check_empty();
}

#[test]
fn hardened_and_lost_heaps_keep_what_they_have() {
    let space = space();
    let mut hardened = space.acquire_hardened().expect("memory");
    let mut lost = space.acquire().expect("memory");
    let (mut blocks, mut seed) = (Blocks::default(), 1);
    for heap in [&mut hardened, &mut lost] {
        let before = blocks.0.len();
        blocks.take(heap, 2000, 1000);
        let mut new = Blocks(blocks.0.split_off(before));
        new.keep(heap, 10, &mut seed);
        blocks.0.append(&mut new.0);
    }
    lost.shared().state.store(LOST, Ordering::Relaxed);
    core::mem::forget(lost);
    for arena in blocks.arenas() {
        assert_eq!(vacate(space, arena, |_| unreachable!()), (0, Ok(())));
    }
    blocks.check();
}

#[test]
fn a_heap_that_waits_for_an_owner_gives_up_what_is_vacant() {
    let (space, heap, mut blocks) = sparse(2048);
    drop(heap);
    let given: usize = blocks.arenas().iter().map(|&arena| vacate(space, arena, |_| {}).0).sum();
    assert!(given > ARENA_BYTES / 10, "{given}");
    let is_pending = |page: usize| tag::is_pending(space.page(page).expect("known").tag());
    assert!(
        blocks.0.iter().all(|&(block, ..)| !is_pending(page_of(block))),
        "and who gave it up collected for it"
    );
    let mut adopted = space.acquire().expect("memory");
    adopted.check();
    blocks.give_all(&mut adopted);
    adopted.check_empty();
}

/// Of many pages a block is freed, and none becomes empty: nothing else tells the arenas. Once for each 256
/// pages, and again when they were used in between.
#[test]
fn the_arenas_are_told_when_many_pages_are_used_in_part() {
    let (space, mut heap) = heap();
    let is_due = || space.source().arenas.lock().has_look_ahead();
    let blocks = heap.take_many(2000 * 8, 2048);
    let mut ones: Vec<_> = blocks.chunks(8).map(|page| page[0]).take(1100).collect();
    let mut live: BTreeSet<_> = blocks.iter().copied().collect();
    let looked = || {
        let look = crate::arena::DueLook { after: 0, quiet: true, asked: false };
        let told = space.source().arenas.lock().begin_look(look);
        // Twice: at the first time it had grown.
        space.source().with(|arenas| arenas.looked(&told, None, false));
        space.source().with(|arenas| arenas.looked(&told, None, false));
    };
    // Of the few pages that a heap takes first.
    looked();
    for round in 0..3 {
        assert!(!is_due(), "{round}");
        heap.give_all(ones[..250].iter().copied());
        assert!(!is_due(), "{round}: few");
        heap.give_all(ones[250..].iter().copied());
        assert!(is_due(), "{round}: many");
        // Somebody looks, and they are used again.
        looked();
        live.retain(|block| !ones.contains(block));
        ones = heap.take_many(1100, 2048);
        live.extend(&ones);
        assert_eq!(live.len(), 2000 * 8);
    }
    heap.check();
    heap.give_all(live);
    heap.check_empty();
}

/// Whatever is done in whichever order: nothing live is lost, and all of it is found again.
#[test]
fn random_operations_beside_it_leave_everything_as_it_is() {
    for mut seed in 1..=6 {
        let (space, mut heap) = heap();
        let mut blocks = Blocks::default();
        for step in 0..120 {
            let bytes = SIZES[(random(&mut seed) % SIZES.len() as u64) as usize];
            match random(&mut seed) % 6 {
                0 => blocks.take(&mut heap, (random(&mut seed) % 2000) as usize, bytes),
                1 | 2 => blocks.keep(&mut heap, 2 + random(&mut seed) % 8, &mut seed.clone()),
                3 => heap.collect_all(),
                4 => _ = heap.trim(),
                _ => {
                    for arena in blocks.arenas() {
                        let merges = random(&mut seed) % 2 == 0;
                        let _ = give_up(space, arena, merges, |_| match random(&mut seed) % 8 {
                            _ if would_wait(&heap) => {}
                            0 => blocks.take(&mut heap, 3, bytes),
                            1 => {
                                if let Some((block, ..)) = blocks.0.pop() {
                                    heap.give(block).expect("live");
                                }
                            }
                            _ => {}
                        });
                    }
                }
            }
            if step % 10 == 0 {
                blocks.check();
                heap.check();
            }
        }
        blocks.give_all(&mut heap);
        heap.check_empty();
    }
}

/// What a look tells of all arenas, and whether something changed.
pub(super) fn look(space: &Space<World>, quiet: bool) -> (Vec<Vacancy>, bool) {
    let (mut told, mut from, mut later) = (Vec::new(), Some(0), false);
    while let Some(start) = from {
        let look = space.look_for_vacancy(start, quiet, |vacancy| {
            told.push(vacancy);
            told.len() % 2 != 0
        });
        (from, later) = (look.next, later | look.later);
    }
    (told, later)
}

#[test]
fn a_page_is_told_of_when_it_has_not_changed_since_the_look_before() {
    let (space, mut heap, mut blocks) = sparse(2048);
    assert_eq!(look(space, true), (vec![], true), "not known before");
    let (told, later) = look(space, true);
    let arenas: Vec<_> = told.iter().map(|vacancy| vacancy.arena).collect();
    assert_eq!((arenas, later), (blocks.arenas().into_iter().collect(), false));
    let live: usize = told.iter().map(|vacancy| vacancy.live).sum();
    assert_eq!(live, blocks.0.len() * 2048);
    assert!(told.iter().all(|vacancy| vacancy.bytes <= vacant_bytes(space, vacancy.arena) && !vacancy.gone));
    // Nothing is told twice.
    for arena in blocks.arenas() {
        assert!(vacate(space, arena, |_| {}).0 > 0);
    }
    assert!(look(space, true).0.iter().all(|vacancy| vacancy.bytes == 0), "they wait to be collected");
    heap.collect_all();
    let (told, later) = look(space, true);
    assert!(!later && told.iter().all(|vacancy| vacancy.bytes == 0 && vacancy.gone), "{told:?}");
    // Until something changes.
    blocks.keep(&mut heap, 2, &mut 5);
    heap.collect_all();
    assert!(look(space, true).1, "changed");
    let (told, later) = look(space, true);
    assert!(!later && told.iter().any(|vacancy| vacancy.bytes > 0), "{told:?}");
    // What is short of memory does not wait.
    blocks.keep(&mut heap, 2, &mut 7);
    heap.collect_all();
    assert!(look(space, false).0.iter().any(|vacancy| vacancy.bytes > 0));
    blocks.arenas().iter().for_each(|&arena| space.forget_vacancy(arena));
    assert!(look(space, true).0.iter().all(|vacancy| !vacancy.gone));
    blocks.give_all(&mut heap);
    heap.check_empty();
}

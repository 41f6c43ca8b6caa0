//! The process's allocator refuses what a collection notes things in: it does without, and ends.

use super::evacuate::{COUNT, fill};
use super::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Lists do not grow to more than so many bytes on this thread; 0: all do.
    static MOST: Cell<usize> = const { Cell::new(0) };
    /// How often that was refused.
    static REFUSALS: Cell<u64> = const { Cell::new(0) };
    /// Blocks that are handed out on this thread until one is refused; `None`: all are.
    static UNTIL: Cell<Option<u64>> = const { Cell::new(None) };
}

/// More than any collection of these tests has reason for.
const ENDLESS: u64 = 100_000;

struct Refusing;

// SAFETY: the system's allocator, which may refuse a request at any time.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let Some(until) = UNTIL.get() {
            UNTIL.set(until.checked_sub(1));
            if until == 0 {
                return core::ptr::null_mut();
            }
        }
        // SAFETY: by the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: by the caller's contract.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        let most = MOST.get();
        // The lists of a collection are of words; those of the simulated kernel are maps, which do not grow like this.
        if most != 0 && bytes > most && layout.align() == 8 {
            REFUSALS.set(REFUSALS.get() + 1);
            if REFUSALS.get() < ENDLESS {
                return core::ptr::null_mut();
            }
        }
        // SAFETY: by the caller's contract.
        unsafe { System.realloc(block, layout, bytes) }
    }
}

#[global_allocator]
static REFUSING: Refusing = Refusing;

/// Pages of arenas that were being evacuated, for which there was no memory to note them, were given back and
/// taken again for ever; and where the list of those arenas could not grow the process was ended.
#[test]
fn an_evacuation_that_cannot_note_what_it_does_moves_less_and_ends() {
    let mut refused = 0;
    for most in [32, 64, 256, 512, 1024, 2048] {
        let mut test = Test::new(Settings::default());
        let table = test.run(|scope, types| {
            let table = fill(scope, types, COUNT);
            scope.global(table).expect("memory")
        });
        test.run(|scope, _| {
            let table = scope.local(&table).expect("memory");
            let live = |index: usize| index.wrapping_mul(0x9e37_79b9) >> 7 & 1023 < 12;
            for index in (0..COUNT).filter(|&index| !live(index)) {
                let offset = scope.item(table, index);
                scope.set(table, offset, None);
            }
            MOST.set(most);
            scope.collect();
            MOST.set(0);
            let refusals = REFUSALS.replace(0);
            assert!(refusals < ENDLESS, "{most}");
            refused += refusals;
            // With memory it is done the next time.
            scope.collect();
            for index in (0..COUNT).filter(|&index| live(index)) {
                scope.scope(|scope| {
                    let offset = scope.item(table, index);
                    let text = scope.get(table, offset).expect("memory").expect("it lives");
                    assert!(scope.bytes(text).iter().all(|&byte| byte == index as u8));
                });
            }
        });
    }
    assert!(refused > 0);
}

/// The bitmap of what stays and was not looked into was gone through from one to the other, for every second object.
#[test]
fn of_two_lists_that_stay_each_object_was_searched_for_through_the_nursery() {
    let mut test = Test::new(Settings::default());
    let nursery = &mut test.heap.nursery;
    let (other, mut last) = (nursery.start(), nursery.start() + 48_000);
    let mut from = other;
    [other, last].into_iter().for_each(|object| nursery.queue(object));
    for _ in 0..1000 {
        assert_eq!(nursery.unqueue(from), Some(last), "what was met last is at hand");
        from = last;
        last -= 16;
        nursery.queue(last);
    }
    assert_eq!([0; 3].map(|_| nursery.unqueue(from)), [Some(last), Some(other), None]);
    // Where there is no memory for a list, those that have no place in it are searched for.
    let objects: Vec<usize> = (0..100).map(|index| other + index * 7 % 100 * 320).collect();
    MOST.set(64);
    objects.iter().for_each(|&object| nursery.queue(object));
    MOST.set(0);
    assert!(REFUSALS.replace(0) > 0);
    let mut found: Vec<usize> = (0..100).map_while(|_| nursery.unqueue(other)).collect();
    found.sort_unstable();
    assert!(found.is_sorted_by(|one, next| one < next) && found.len() == 100);
    assert!(nursery.unqueue(other).is_none() && !nursery.has_queued());
}

/// A runtime may register types at any time. Where one of the lists of offsets had no memory, the process was ended.
#[test]
fn a_type_for_whose_lists_there_is_no_memory_is_refused_and_can_be_registered_later() {
    use super::super::layout::{BadLayout, Layout};
    use super::super::types::Types;
    let mut types = Types::default();
    let mut refused = 0;
    loop {
        UNTIL.set(Some(refused));
        let layout = Layout::variable(48, 48)
            .slots(&[16])
            .item_slots(&[0])
            .weak_slots(&[24])
            .weak_item_slots(&[8])
            .ephemerons(&[(32, 40)])
            .item_ephemerons(&[(16, 24)]);
        let registered = types.register(layout);
        let met = UNTIL.replace(None).is_none();
        match registered {
            Err(mistake) => assert_eq!((mistake, met), (BadLayout::NoMemory, true)),
            Ok(ty) => {
                // The first one that is registered, after as many attempts as there are blocks.
                assert_eq!((ty.number(), met), (1, false));
                break;
            }
        }
        refused += 1;
    }
    // Six lists, two to check them in, the types and the weak part.
    assert_eq!(refused, 10);
}

/// Of all that a scan found, so many words are noted with [`MOST`] at 1: the first block of a list has room for them.
const NOTED: usize = 4;

/// A collection cannot be refused. Where there was no memory to note what a scan found, the process was ended.
#[test]
fn what_a_scan_finds_stays_alive_and_in_place_where_there_is_no_memory_to_note_it() {
    let settings = Settings { evacuate: Some(110), ..Settings::default() };
    let checks = Checks { verify: true, barriers: true, poison: true, moving: true, ..Checks::default() };
    let mut test = Test::new(Settings { checks, ..settings });
    let words = std::rc::Rc::new(std::cell::RefCell::new(vec![0usize; 100]));
    let theirs = std::rc::Rc::clone(&words);
    let range = move || {
        let words = theirs.borrow();
        (words.as_ptr() as usize, words.as_ptr() as usize + words.len() * 8)
    };
    // SAFETY: the words live as long as the callback, and nobody borrows them in a collection.
    unsafe { test.heap.add_scan(Box::new(range)) }.expect("memory");
    test.run(|scope, types| {
        let mut made = Vec::new();
        for number in 0..100 {
            let object = scope.scope(|scope| {
                // Young ones in the second half, and between them what is dead.
                let local = if number < 50 {
                    scope.allocate_old(types.pair, 0).expect("memory")
                } else {
                    pair(scope, types, 1000);
                    scope.allocate(types.pair, 0).expect("memory")
                };
                scope.write(local, NUMBER, number as u64);
                scope.object(local)
            });
            words.borrow_mut()[number] = object;
            made.push(object);
        }
        let majors = scope.heap().statistics().major;
        for round in 0..6 {
            MOST.set(1);
            match round {
                0 => scope.collect_minor(),
                // A marking is under way, and goes no further.
                3 => {
                    scope.heap.begin_marking(&mut []);
                    scope.collect_minor();
                }
                _ => scope.collect(),
            }
            MOST.set(0);
            assert!(REFUSALS.replace(0) > 0);
            assert!(scope.heap.roots.not_all_found && scope.heap.roots.found.len() == NOTED);
            for (number, &object) in made.iter().enumerate() {
                // SAFETY: it is kept alive where it is.
                assert_eq!(unsafe { ((object + NUMBER) as *const usize).read() }, number);
            }
        }
        assert_eq!(scope.heap().statistics().major, majors, "nothing is known to be dead");
        scope.collect();
        assert_eq!(scope.heap().old_bytes(), 50 * PAIR, "with memory it is noted");
        assert_eq!(scope.heap.nursery.staying(), 50, "and what nobody refers to went");
        words.borrow_mut().fill(0);
        scope.collect();
        assert_eq!((scope.heap().old_bytes(), scope.heap.nursery.staying()), (0, 0));
    });
    test.end();
}

/// Where there was no memory for it, the process was ended.
#[test]
fn a_pin_for_which_there_is_no_memory_is_refused_and_leaves_nothing() {
    let mut test = Test::checked();
    test.run(|scope, types| {
        for old in [false, true] {
            let objects: Vec<usize> = (0..10)
                .map(|_| {
                    let local =
                        if old { scope.allocate_old(types.pair, 0) } else { scope.allocate(types.pair, 0) };
                    scope.object(local.expect("memory"))
                })
                .collect();
            let heap = &mut *scope.heap;
            MOST.set(1);
            // SAFETY: live objects of this heap.
            let pins: Vec<_> = objects.iter().map(|&object| unsafe { heap.pin(object) }).collect();
            MOST.set(0);
            REFUSALS.set(0);
            let refused = pins.iter().filter(|pin| pin.is_err()).count();
            assert_eq!(refused, 10 - NOTED, "old: {old}");
            let pinned = |heap: &Heap<World>| heap.roots.pins.len() + heap.roots.old_pins.len();
            assert_eq!(pinned(heap), NOTED);
            // SAFETY: as above.
            let again = objects.iter().map(|&object| unsafe { heap.pin(object) }.expect("memory"));
            let again: Vec<_> = again.collect();
            assert_eq!(pinned(heap), 10);
            again.into_iter().chain(pins.into_iter().flatten()).for_each(|pin| heap.release(pin));
            assert_eq!(pinned(heap), 0);
        }
    });
    test.end();
}

/// A callback for which there was no memory ended the process.
#[test]
fn callbacks_for_which_there_is_no_memory_are_refused() {
    let mut test = Test::checked();
    let called = std::rc::Rc::new(Cell::new(0_u32));
    let (mut refused, mut added) = (0, 0);
    MOST.set(1);
    for number in 0..10 {
        let (one, other) = (std::rc::Rc::clone(&called), std::rc::Rc::clone(&called));
        // SAFETY: they name nothing.
        let (roots, scan) = unsafe {
            (
                test.heap.add_roots(Box::new(move |_| one.set(one.get() | 1 << number))),
                test.heap.add_scan(Box::new(move || {
                    other.set(other.get() | 1 << (10 + number));
                    (0, 0)
                })),
            )
        };
        added += usize::from(roots.is_ok()) + usize::from(scan.is_ok());
        refused += usize::from(roots.is_err()) + usize::from(scan.is_err());
    }
    MOST.set(0);
    REFUSALS.set(0);
    assert_eq!((added, refused), (2 * NOTED, 20 - 2 * NOTED));
    test.run(|scope, _| scope.collect_minor());
    assert_eq!(called.get().count_ones() as usize, added);
    test.end();
}

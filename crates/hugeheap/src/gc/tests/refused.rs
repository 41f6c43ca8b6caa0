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

/// Pages of arenas that were being evacuated, for which there was no memory to note them, were given back and taken again for ever; and where the list of those arenas could not grow the process was ended.
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

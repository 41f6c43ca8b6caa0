//! How much of large weak tables is looked through to clear them, however they are written meanwhile.

use super::*;
use std::cell::Cell;

thread_local! {
    /// Bytes of parts that were asked for.
    static ASKED: Cell<usize> = const { Cell::new(0) };
}

/// Entries of a table.
const ENTRIES: usize = 100_000;
const ITEMS: usize = 16;
const TABLE: usize = ITEMS + 8 * ENTRIES;

/// Entries between two that are written: a heap page.
const BETWEEN: usize = 2048;

/// Weak slots, one after the other.
unsafe extern "C" fn trace(object: *mut u8, from: *mut u8, to: *mut u8, visitor: &mut Visitor<'_>) {
    ASKED.set(ASKED.get() + (to as usize - from as usize));
    let begin = (object as usize + ITEMS).max(from as usize);
    for slot in (begin..to as usize).step_by(8) {
        // SAFETY: all words of the objects behind the length are slots.
        unsafe { visitor.weak_slot(slot as *mut usize) };
    }
}

/// Two tables all of whose entries are dead, while a marking has begun that knows the tables; and a pair that lives.
fn with_tables(work: impl FnOnce(&mut Scope<'_, World>, [Local<'_>; 2], Local<'_>)) {
    let mut test = Test::new(Settings::default());
    // SAFETY: the function names every slot of a part.
    let layout = unsafe { Layout::variable(ITEMS, 8).traced_in_parts_by(trace) };
    let traced = test.heap.register(layout).expect("right");
    test.run(|scope, types| {
        let tables = [0; 2].map(|_| scope.allocate(traced, ENTRIES).expect("memory"));
        let lives = pair(scope, types, 1);
        scope.scope(|scope| {
            let strong = scope.allocate(types.array, ENTRIES).expect("memory");
            for index in 0..ENTRIES {
                scope.scope(|scope| {
                    let dies = pair(scope, types, 0);
                    scope.set(strong, ITEMS + 8 * index, Some(dies));
                    tables.iter().for_each(|&table| set(scope, table, index, Some(dies)));
                });
            }
            scope.collect();
        });
        scope.heap.begin_marking(&mut []);
        work(scope, tables, lives);
        scope.collect();
        for (table, index) in
            tables.into_iter().flat_map(|table| (0..ENTRIES).map(move |index| (table, index)))
        {
            let word = word(scope, table, index);
            assert!(word == 0 || word == scope.object(lives), "entry {index}");
        }
    });
    test.end();
}

/// Writes an entry. The layout names no slot, so nothing else does.
fn set(scope: &mut Scope<'_, World>, table: Local<'_>, index: usize, value: Option<Local<'_>>) {
    let (object, value) = (scope.object(table), value.map_or(0, |value| scope.object(value)));
    // SAFETY: a slot of a live object.
    unsafe { scope.heap.write(object, (object + ITEMS + 8 * index) as *mut usize, value) };
}

fn word(scope: &Scope<'_, World>, table: Local<'_>, index: usize) -> usize {
    // SAFETY: a slot of a live object.
    unsafe { ((scope.object(table) + ITEMS + 8 * index) as *const usize).read() }
}

/// Writes one entry in each heap page of both tables, by turns. Beside each lies one that is dead.
fn write_by_turns(scope: &mut Scope<'_, World>, tables: [Local<'_>; 2], lives: Local<'_>) {
    for index in (1..ENTRIES).step_by(BETWEEN) {
        tables.iter().for_each(|&table| set(scope, table, index, Some(lives)));
    }
}

/// Each card that was written had its table looked through once more, unless the one before was of the same
/// table: two that were written by turns 98 times, 78 MB.
#[test]
fn tables_that_are_written_by_turns_while_marking_goes_on_were_looked_through_for_each_card() {
    with_tables(|scope, tables, lives| {
        let mut writes = 0;
        while scope.heap().phase() == Phase::Marking {
            write_by_turns(scope, tables, lives);
            writes += 1;
            scope.collect_minor();
        }
        assert!(writes > 3, "marking has several steps");
        assert_eq!(scope.heap().phase(), Phase::Clearing);
        ASKED.set(0);
        while scope.heap().phase() == Phase::Clearing {
            scope.collect_minor();
        }
        let asked = ASKED.get();
        assert!(
            (2 * TABLE..2 * TABLE + TABLE / 10).contains(&asked),
            "{asked} bytes of two tables of {TABLE}"
        );
    });
}

/// Each minor collection added the table to what had to be looked through, from its beginning, and a step is
/// less than a table: the end was never reached.
#[test]
fn clearing_did_not_end_while_a_table_was_written() {
    with_tables(|scope, tables, lives| {
        while scope.heap().phase() == Phase::Marking {
            scope.collect_minor();
        }
        ASKED.set(0);
        let mut steps = 0;
        while scope.heap().phase() == Phase::Clearing {
            write_by_turns(scope, tables, lives);
            scope.collect_minor();
            steps += 1;
            assert!(steps < 100, "{} bytes of two tables of {TABLE} so far", ASKED.get());
        }
        let asked = ASKED.get();
        assert!(
            (2 * TABLE..2 * TABLE + TABLE / 10).contains(&asked),
            "{asked} bytes of two tables of {TABLE}"
        );
    });
}

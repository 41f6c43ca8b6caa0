//! What is left of a large old generation when 90 % of it dies at random: `gc_evacuate [MIB]`.
//!
//! Objects of 16 to 256 bytes in a table. Printed are, before and after a whole collection, bytes that live,
//! heap pages that are held, resident memory of the arenas, how much of it huge pages map, and the pauses: of
//! marking in steps while the table is changed at random, and of the collection.

use hugeheap::gc::{Heap, Layout, Local, ProcessHeap, Scope, Settings, TypeId, space};
use hugeheap::runtime::{Runtime, runtime};
use std::error::Error;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % limit
    }
}

fn replace(
    scope: &mut Scope<'_, Runtime>,
    (parts, text): (TypeId, TypeId),
    table: Local<'_>,
    index: usize,
    random: &mut Random,
) -> Result<(), Box<dyn Error>> {
    scope.scope(|scope| {
        let part = scope.local_item(table, index / ITEMS)?;
        debug_assert_eq!(scope.type_of(part), parts);
        let local = scope.allocate(text, random.below(240))?;
        let offset = scope.item(part, index % ITEMS);
        scope.set(part, offset, Some(local));
        Ok(())
    })
}

/// References in a part of the table: so that no part is a large object, whose pages cannot move.
const ITEMS: usize = 512;

trait Items<'s> {
    fn local_item(&mut self, table: Local<'_>, index: usize) -> Result<Local<'s>, Box<dyn Error>>;
}

impl<'s> Items<'s> for Scope<'s, Runtime> {
    fn local_item(&mut self, table: Local<'_>, index: usize) -> Result<Local<'s>, Box<dyn Error>> {
        let offset = self.item(table, index);
        Ok(self.get(table, offset)?.ok_or("the table has every part")?)
    }
}

fn tell(what: &str, heap: &ProcessHeap) {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let snapshot = runtime().snapshot(true);
    let (live, nursery) = (heap.old_bytes() as u64, heap.nursery_bytes() as u64);
    let old = snapshot.resident.saturating_sub(nursery);
    println!(
        "{what}: {:.1} MiB live, {:.1} held, {:.1} resident without the nursery ({:.2} of live), {:.0} % of all resident huge, \
         {:.1} MiB charged to the cgroup; {} collections, longest pause {:.2} ms",
        mib(live),
        mib(heap.held_bytes() as u64),
        mib(old),
        old as f64 / live as f64,
        100.0 * snapshot.huge as f64 / snapshot.resident as f64,
        mib(snapshot.charge),
        heap.statistics().minor,
        heap.statistics().pauses.longest as f64 / 1e6,
    );
}

fn main() -> Result<(), Box<dyn Error>> {
    let mib: usize = std::env::args().nth(1).map_or(Ok(64), |text| text.parse())?;
    let mut heap = Heap::new(space(), Settings::default())?;
    let parts = heap.register(Layout::variable(16, 8).item_slots(&[0]))?;
    let text = heap.register(Layout::variable(16, 1))?;
    let mut random = Random(1);
    // 144 bytes each on average, in blocks.
    let count = (mib << 20) / 144 / ITEMS * ITEMS;
    let table = heap.scope(|scope| -> Result<_, Box<dyn Error>> {
        let table = scope.allocate(parts, count / ITEMS)?;
        for part in 0..count / ITEMS {
            scope.scope(|scope| -> Result<(), Box<dyn Error>> {
                let local = scope.allocate(parts, ITEMS)?;
                let offset = scope.item(table, part);
                scope.set(table, offset, Some(local));
                Ok(())
            })?;
        }
        for index in 0..count {
            replace(scope, (parts, text), table, index, &mut random)?;
        }
        Ok(scope.global(table)?)
    })?;
    tell("made", &heap);
    heap.scope(|scope| -> Result<(), Box<dyn Error>> {
        let table = scope.local(&table)?;
        for _ in 0..2 * count {
            let index = random.below(count);
            replace(scope, (parts, text), table, index, &mut random)?;
        }
        Ok(())
    })?;
    tell("changed at random, marked in steps", &heap);
    heap.scope(|scope| -> Result<(), Box<dyn Error>> {
        let table = scope.local(&table)?;
        for index in 0..count {
            if random.below(10) != 0 {
                scope.scope(|scope| -> Result<(), Box<dyn Error>> {
                    let part = scope.local_item(table, index / ITEMS)?;
                    let offset = scope.item(part, index % ITEMS);
                    scope.set(part, offset, None);
                    Ok(())
                })?;
            }
        }
        scope.collect();
        Ok(())
    })?;
    runtime().give_back();
    tell("after nine tenths died at random and a whole collection", &heap);
    Ok(())
}

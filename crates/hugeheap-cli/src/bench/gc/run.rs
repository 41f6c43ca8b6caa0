//! The workloads on the garbage-collected heap. The same as `programs/boehm.c` and `programs/program.ml`, line
//! for line where languages allow.
//!
//! Throughout: an address is used until the next allocation and no longer; what has to survive is on the stack
//! or in the frame. That is the contract of every unsafe function here, and what each block relies on.

use super::machine::{Cursor, Kind, Known, Machine, Top, put, word};
use super::workload::{Random, Workload};
use hugeheap::gc::Global;

/// Offset of the first item of an array.
const ITEMS: usize = 16;
/// Elements of the array of numbers of `gcbench`, as published.
const NUMBERS: usize = 500_000;
/// Shallowest trees of `gcbench` and `binary-trees`, as published.
const SHALLOWEST: u32 = 4;

/// What a workload answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Done {
    /// Objects allocated.
    pub(crate) objects: u64,
    /// The same in every language.
    pub(crate) check: u64,
    /// Bytes of objects that live in the end, where the workload is about that.
    pub(crate) live: u64,
}

/// Runs a workload; `size` is a depth or bytes.
///
/// # Errors
/// One line when a type cannot be registered.
pub(crate) fn run(machine: &mut Machine, workload: Workload, size: u64) -> Result<Done, String> {
    let mut random = Random::new();
    // SAFETY: see the module's text.
    unsafe {
        match workload {
            Workload::BinaryTrees => {
                let node = machine.known(&[8, 16])?;
                Ok(binary_trees(machine, node, size as u32))
            }
            Workload::GcBench => {
                let node = machine.known(&[8, 16])?;
                gcbench(machine, node, size as u32)
            }
            Workload::Churn => churn(machine, &mut random, size),
            Workload::Lru => lru(machine, &mut random, size),
            Workload::Pinned => pinned(machine, size),
            Workload::WideArrays => wide_arrays(machine, &mut random, size),
            Workload::Evacuation => evacuation(machine, &mut random, size),
        }
    }
}

/// Bytes of a node: the header and two references.
const NODE: usize = 24;
/// Bytes of a node of `gcbench`: two small numbers in a word, too.
const NODE_WITH_NUMBERS: usize = 32;

/// One level of the recursion, with the next one below it.
macro_rules! level {
    ($(#[$attribute:meta])* $name:ident, $below:ident) => {
        $(#[$attribute])*
        unsafe fn $name<const BYTES: usize>(
            machine: &mut Machine,
            node: Known<BYTES>,
            depth: u32,
            top: Top,
            cursor: Cursor,
        ) -> (usize, Cursor) {
            // SAFETY: see the module's text.
            unsafe { tree_of(machine, node, depth, top, cursor, $below) }
        }
    };
}

level! {
    /// A tree made from below. Above `top` there is a slot for each level.
    ///
    /// Four levels of the recursion are one function, as C's compiler makes it of the same program; Rust's does
    /// not by itself. With a call for each node it was 35 instructions a node, and is 20; C's, on the same
    /// heap, is 25.
    tree, second_level
}
level!(
    #[inline(always)]
    second_level,
    third_level
);
level!(
    #[inline(always)]
    third_level,
    fourth_level
);
level!(
    #[inline(always)]
    fourth_level,
    tree
);

/// What makes a tree.
type Make<const BYTES: usize> = unsafe fn(&mut Machine, Known<BYTES>, u32, Top, Cursor) -> (usize, Cursor);

/// A node, and its subtrees by `subtree`.
#[inline(always)]
unsafe fn tree_of<const BYTES: usize>(
    machine: &mut Machine,
    node: Known<BYTES>,
    depth: u32,
    top: Top,
    mut cursor: Cursor,
    subtree: Make<BYTES>,
) -> (usize, Cursor) {
    // SAFETY: see the module's text.
    unsafe {
        if depth == 0 {
            let (leaf, []) = machine.allocate_at(node, top, &mut cursor, []);
            clear(leaf, 8, BYTES / 8 - 1);
            return (leaf, cursor);
        }
        let (left, cursor) = subtree(machine, node, depth - 1, top, cursor);
        let left = top.push(left);
        let (right, mut cursor) = subtree(machine, node, depth - 1, left, cursor);
        let (object, [right]) = machine.allocate_at(node, left, &mut cursor, [right]);
        put(object, 8, left.last());
        put(object, 16, right);
        clear(object, NODE, (BYTES - NODE) / 8);
        (object, cursor)
    }
}

/// A tree, for who has the window in the machine.
unsafe fn whole_tree<const BYTES: usize>(
    machine: &mut Machine,
    node: Known<BYTES>,
    depth: u32,
    top: Top,
) -> usize {
    // SAFETY: see the module's text.
    unsafe {
        let (root, cursor) = tree(machine, node, depth, top, machine.cursor());
        machine.put_back(cursor);
        root
    }
}

/// Nodes of a tree. The right subtree is no call, which C's compiler sees by itself: 7 instructions a node
/// there, and 10 with both calls here.
unsafe fn count(mut node: usize) -> u64 {
    let mut nodes = 1;
    // SAFETY: see the module's text; nothing is allocated here.
    unsafe {
        loop {
            let left = word(node, 8);
            if left == 0 {
                return nodes;
            }
            nodes += 1 + count(left);
            node = word(node, 16);
        }
    }
}

unsafe fn binary_trees(machine: &mut Machine, node: Known<NODE>, depth: u32) -> Done {
    // SAFETY: see the module's text.
    unsafe {
        let top = machine.top(depth as usize + 2);
        let mut check = count(whole_tree(machine, node, depth + 1, top));
        let long = whole_tree(machine, node, depth, top);
        machine.push(long);
        let top = machine.top(depth as usize + 1);
        let mut now = SHALLOWEST;
        while now <= depth {
            for _ in 0..1_u64 << (depth - now + SHALLOWEST) {
                check += count(whole_tree(machine, node, now, top));
            }
            now += 2;
        }
        check += count(machine.pop());
        Done { objects: check, check, live: 0 }
    }
}

/// Makes the children of the last node below the top, and theirs. Above it there is a slot for each level.
///
/// The look at the depth is its caller's, as C's compiler has it before it saves registers: half of all calls
/// are for nodes without children.
#[inline(always)]
unsafe fn populate(
    machine: &mut Machine,
    node: Known<NODE_WITH_NUMBERS>,
    depth: u32,
    top: Top,
    cursor: Cursor,
) -> Cursor {
    // SAFETY: see the module's text.
    if depth == 0 { cursor } else { unsafe { children(machine, node, depth, top, cursor) } }
}

#[inline(never)]
unsafe fn children(
    machine: &mut Machine,
    node: Known<NODE_WITH_NUMBERS>,
    depth: u32,
    top: Top,
    mut cursor: Cursor,
) -> Cursor {
    // SAFETY: see the module's text.
    unsafe {
        for slot in [8, 16] {
            let (child, []) = machine.allocate_at(node, top, &mut cursor, []);
            clear(child, 8, 3);
            machine.set(top.last(), slot, child);
        }
        for slot in [8, 16] {
            cursor = populate(machine, node, depth - 1, top.push(word(top.last(), slot)), cursor);
        }
    }
    cursor
}

unsafe fn gcbench(machine: &mut Machine, node: Known<NODE_WITH_NUMBERS>, depth: u32) -> Result<Done, String> {
    // SAFETY: see the module's text.
    unsafe {
        let nodes = |depth: u32| (1_u64 << (depth + 1)) - 1;
        let stretch = depth + 2;
        let top = machine.top(stretch as usize + 1);
        let mut check = count(whole_tree(machine, node, stretch, top));
        let root = machine.allocate(node.kind(), &mut []);
        clear(root, 8, 3);
        machine.push(root);
        let cursor = populate(machine, node, depth, machine.top(depth as usize), machine.cursor());
        machine.put_back(cursor);
        let numbers = machine.array(false)?;
        let array = machine.allocate_array(numbers, NUMBERS);
        for index in 0..NUMBERS / 2 {
            put(array, ITEMS + index * 8, (1.0 / (index + 1) as f64).to_bits() as usize);
        }
        let array = machine.push(array);
        let mut objects = check + nodes(depth) + 1;
        let top = machine.top(depth as usize + 1);
        let mut now = SHALLOWEST;
        while now <= depth {
            let rounds = 2 * nodes(stretch) / nodes(now);
            for _ in 0..rounds {
                let mut cursor = machine.cursor();
                let (root, []) = machine.allocate_at(node, top, &mut cursor, []);
                clear(root, 8, 3);
                let root = top.push(root);
                let cursor = populate(machine, node, now, root, cursor);
                machine.put_back(cursor);
                check += u64::from(word(root.last(), 8) != 0);
            }
            for _ in 0..rounds {
                check += u64::from(word(whole_tree(machine, node, now, top), 8) != 0);
            }
            objects += 2 * rounds * nodes(now);
            now += 2;
        }
        let sample = f64::from_bits(word(machine.at(array), ITEMS + 999 * 8) as u64);
        check += (sample * 1000.0).round() as u64;
        machine.pop();
        check += count(machine.pop());
        Ok(Done { objects, check, live: 0 })
    }
}

/// An object of so many words behind its header, with a number in the first. The others are written, too: OCaml has to.
unsafe fn leaf<const WORDS: usize>(machine: &mut Machine, leaf: Kind, number: u64) -> usize {
    // SAFETY: see the module's text.
    unsafe {
        let object = machine.allocate(leaf, &mut []);
        put(object, 8, number as usize);
        clear(object, 16, WORDS - 1);
        object
    }
}

/// Writes words of a new object.
#[inline(always)]
unsafe fn clear(object: usize, from: usize, words: usize) {
    for word in 0..words {
        // SAFETY: see the module's text.
        unsafe { put(object, from + word * 8, 0) };
    }
}

unsafe fn churn(machine: &mut Machine, random: &mut Random, size: u64) -> Result<Done, String> {
    // SAFETY: see the module's text.
    unsafe {
        let (kind, references) = (machine.fixed(64, &[])?, machine.array(true)?);
        // 64 bytes of the object and 8 of its slot.
        let places = (size / 72).max(1);
        let array = machine.allocate_array(references, places as usize);
        let table = machine.push(array);
        let replace = |machine: &mut Machine, place: u64, number: u64| {
            let object = leaf::<7>(machine, kind, number);
            machine.set(machine.at(table), ITEMS + place as usize * 8, object);
        };
        for place in 0..places {
            replace(machine, place, place);
        }
        for number in 0..2 * places {
            let place = random.below(places);
            replace(machine, place, number);
        }
        let array = machine.at(table);
        let check = (0..places).map(|place| word(word(array, ITEMS + place as usize * 8), 8) as u64).sum();
        Ok(Done { objects: 3 * places, check, live: places * 72 })
    }
}

unsafe fn wide_arrays(machine: &mut Machine, random: &mut Random, size: u64) -> Result<Done, String> {
    const ARRAYS: u64 = 16;
    // SAFETY: see the module's text.
    unsafe {
        let (kind, references) = (machine.fixed(32, &[])?, machine.array(true)?);
        // Most places stay empty: it is about finding those that were written.
        let places = (size / 64 / ARRAYS).max(1);
        let first = machine.push(0);
        for index in 0..ARRAYS {
            let array = machine.allocate_array(references, places as usize);
            if index == 0 { machine.replace(first, array) } else { _ = machine.push(array) }
        }
        let writes = ARRAYS * places / 2;
        for number in 0..writes {
            // One that nobody keeps for each that is kept.
            let garbage = leaf::<3>(machine, kind, number);
            let mut frame = [garbage];
            let object = machine.allocate(kind, &mut frame);
            put(object, 8, number as usize);
            clear(object, 16, 2);
            let array = machine.at(first.after(random.below(ARRAYS) as usize));
            machine.set(array, ITEMS + random.below(places) as usize * 8, object);
        }
        let mut check = 0;
        for index in 0..ARRAYS as usize {
            for place in 0..places as usize {
                let object = word(machine.at(first.after(index)), ITEMS + place * 8);
                if object != 0 {
                    check += word(object, 8) as u64;
                }
            }
        }
        Ok(Done { objects: 2 * writes, check, live: 0 })
    }
}

/// Offsets in an entry of the cache: the next of its bucket, its neighbours in the order of use, its value, its key.
const CHAIN: usize = 8;
const OLDER: usize = 16;
const NEWER: usize = 24;
const VALUE: usize = 32;
const KEY: usize = 40;

/// Takes an entry out of the order of use. `ends`: an object whose slots refer to the oldest and to the newest.
unsafe fn unlink(machine: &mut Machine, ends: usize, entry: usize) {
    // SAFETY: see the module's text.
    unsafe {
        let (older, newer) = (word(entry, OLDER), word(entry, NEWER));
        if older == 0 {
            machine.set(ends, 8, newer)
        } else {
            machine.set(older, NEWER, newer)
        }
        if newer == 0 { machine.set(ends, 16, older) } else { machine.set(newer, OLDER, older) }
    }
}

/// Makes an entry the newest.
unsafe fn link(machine: &mut Machine, ends: usize, entry: usize) {
    // SAFETY: see the module's text.
    unsafe {
        let newest = word(ends, 16);
        machine.set(entry, OLDER, newest);
        machine.set(entry, NEWER, 0);
        if newest == 0 {
            machine.set(ends, 8, entry)
        } else {
            machine.set(newest, NEWER, entry)
        }
        machine.set(ends, 16, entry);
    }
}

unsafe fn lru(machine: &mut Machine, random: &mut Random, size: u64) -> Result<Done, String> {
    // SAFETY: see the module's text.
    unsafe {
        let entry = machine.fixed(48, &[CHAIN, OLDER, NEWER, VALUE])?;
        let (value, pair, references) =
            (machine.fixed(64, &[])?, machine.fixed(24, &[8, 16])?, machine.array(true)?);
        // 48 bytes of the entry, 64 of its value, up to 16 of buckets.
        let capacity = (size / 128).max(1);
        let buckets = capacity.next_power_of_two();
        let table = machine.allocate_array(references, buckets as usize);
        let table = machine.push(table);
        let ends = machine.allocate(pair, &mut []);
        put(ends, 8, 0);
        put(ends, 16, 0);
        let ends = machine.push(ends);
        let bucket = |key: u64| ITEMS + ((key * 0x9E37_79B1) & (buckets - 1)) as usize * 8;
        let (mut held, mut hits, mut objects) = (0, 0, 0);
        for number in 0..4 * capacity {
            let key = random.below(2 * capacity);
            let mut found = word(machine.at(table), bucket(key));
            while found != 0 && word(found, KEY) as u64 != key {
                found = word(found, CHAIN);
            }
            if found != 0 {
                hits += 1;
                unlink(machine, machine.at(ends), found);
                link(machine, machine.at(ends), found);
                continue;
            }
            if held == capacity {
                let oldest = word(machine.at(ends), 8);
                unlink(machine, machine.at(ends), oldest);
                let slot = bucket(word(oldest, KEY) as u64);
                let (mut before, mut offset) = (machine.at(table), slot);
                while word(before, offset) != oldest {
                    (before, offset) = (word(before, offset), CHAIN);
                }
                machine.set(before, offset, word(oldest, CHAIN));
            } else {
                held += 1;
            }
            let made = leaf::<7>(machine, value, number);
            let mut frame = [made];
            let object = machine.allocate(entry, &mut frame);
            put(object, CHAIN, word(machine.at(table), bucket(key)));
            put(object, OLDER, 0);
            put(object, NEWER, 0);
            put(object, VALUE, frame[0]);
            put(object, KEY, key as usize);
            machine.set(machine.at(table), bucket(key), object);
            link(machine, machine.at(ends), object);
            objects += 2;
        }
        Ok(Done { objects, check: hits, live: held * 128 })
    }
}

unsafe fn pinned(machine: &mut Machine, size: u64) -> Result<Done, String> {
    // SAFETY: see the module's text.
    unsafe {
        let kind = machine.fixed(32, &[])?;
        let places = (size >> 16).max(1) as usize;
        let mut pins: Vec<Option<Global>> = (0..places).map(|_| None).collect();
        let objects = places as u64 * 64 * 16;
        let mut check = 0;
        for number in 0..objects {
            let object = leaf::<3>(machine, kind, number);
            if number % 64 == 0 {
                let pin = machine.pin(object);
                if let Some(old) = pins[(number / 64) as usize % places].replace(pin) {
                    check += word(machine.heap.address(&old), 8) as u64;
                    machine.heap.release(old);
                }
            }
        }
        Ok(Done { objects, check, live: places as u64 * 32 })
    }
}

unsafe fn evacuation(machine: &mut Machine, random: &mut Random, size: u64) -> Result<Done, String> {
    const NEXT: usize = 16;
    // SAFETY: see the module's text.
    unsafe {
        // A number at 8, the next object at 16.
        let kind = machine.fixed(64, &[NEXT])?;
        let objects = (size / 64).max(1);
        let list = machine.push(0);
        for number in 0..objects {
            let object = machine.allocate(kind, &mut []);
            put(object, 8, number as usize);
            put(object, NEXT, machine.at(list));
            clear(object, NEXT + 8, 5);
            machine.replace(list, object);
        }
        // All in the old generation.
        machine.collect();
        let (mut lives, mut check, mut last) = (0, 0, 0);
        let mut now = machine.at(list);
        while now != 0 {
            let next = word(now, NEXT);
            if random.below(10) == 0 {
                if last == 0 {
                    machine.replace(list, now)
                } else {
                    machine.set(last, NEXT, now)
                }
                last = now;
                lives += 1;
                check += word(now, 8) as u64;
            }
            now = next;
        }
        if last == 0 {
            machine.replace(list, 0)
        } else {
            machine.set(last, NEXT, 0)
        }
        Ok(Done { objects, check, live: lives * 64 })
    }
}

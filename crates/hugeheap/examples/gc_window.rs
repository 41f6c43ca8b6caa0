//! Allocates objects of 16 bytes in a loop, for counting instructions and for timing: `gc_window KIND COUNT`.
//!
//! Kinds: `plain` leaves the field as it is, `field` writes it; `collect` makes COUNT minor collections with
//! one survivor each, `collect-large` the same with a nursery of 64 MiB instead of 4, `collect-handles` with
//! handles of old objects, and after many more that were released, `collect-pinned` with 1,000 pinned ones of
//! two slots, `collect-weak` with an ephemeron and a weak slot of which each refers to an object that dies;
//! `survive` moves COUNT objects of two slots, each of which refers to the one before, `survive-row` objects of
//! variable size that have as many; `mark` makes COUNT whole collections of 200,000 old ones, of which every
//! second one is the second child of its parent. Two objects are kept alive at any time, so that the loop
//! cannot be removed: the reference program of RPython does the same. The window is a local variable; the
//! object that is still needed after the slow path is its frame of roots.

use hugeheap::gc::{Heap, Layout, ProcessHeap, Settings, TypeId, space};
use std::hint::black_box;
use std::time::Duration;

const BYTES: usize = 16;
/// Of an object of two slots, with a length before them or rounded up.
const NODE: usize = 32;

/// The loop. A function of its own, so that its code can be looked at.
#[inline(never)]
fn allocate<const FIELD: bool>(heap: &mut ProcessHeap, ty: TypeId, count: u64) -> [usize; 2] {
    let header = ty.header();
    let mut window = heap.take_window();
    let (mut last, mut before) = (0, 0);
    // SAFETY: the window is the heap's; the type has 16 bytes and no slot; the one object that is used after a
    // call that may collect is in its frame.
    unsafe {
        for number in 0..count {
            let object = match window.take(BYTES) {
                Some(object) => {
                    object.cast().write(header);
                    object
                }
                None => {
                    let mut frame = [last];
                    let object = heap.allocate_slow(&mut window, ty, 0, &mut frame).expect("memory");
                    [last] = frame;
                    object
                }
            };
            if FIELD {
                object.cast::<u64>().add(1).write(number);
            }
            before = last;
            last = object.as_ptr() as usize;
        }
    }
    heap.return_window(window);
    [last, before]
}

/// Minor collections with one survivor each.
#[inline(never)]
fn collect(heap: &mut ProcessHeap, ty: TypeId, count: u64) -> [usize; 2] {
    let mut window = heap.take_window();
    let mut frame = [0; 2];
    for _ in 0..count {
        // SAFETY: as in `allocate`; the frame has the last two objects.
        unsafe {
            let object = heap.allocate_slow(&mut window, ty, 0, &mut frame).expect("memory");
            frame = [object.as_ptr() as usize, frame[0]];
            heap.collect_minor(&mut window, &mut frame);
        }
    }
    heap.return_window(window);
    frame
}

/// Minor collections with one survivor each, which has an ephemeron and a weak slot, with a key and a target that die.
#[inline(never)]
fn collect_weak(heap: &mut ProcessHeap, ty: TypeId, weak: TypeId, count: u64) -> [usize; 2] {
    let mut window = heap.take_window();
    let mut frame = [0; 2];
    for _ in 0..count {
        // SAFETY: as in `allocate`; the object has three slots.
        unsafe {
            let dies = heap.allocate_slow(&mut window, ty, 0, &mut frame).expect("memory");
            frame[0] = dies.as_ptr() as usize;
            let object =
                heap.allocate_slow(&mut window, weak, 0, &mut frame).expect("memory").cast::<usize>();
            (1..4).for_each(|slot| object.add(slot).write(frame[0]));
            frame = [object.as_ptr() as usize, frame[1]];
            heap.collect_minor(&mut window, &mut frame);
        }
    }
    heap.return_window(window);
    frame
}

/// Objects that are pinned.
const PINNED: usize = 1_000;

fn keep_pinned(heap: &mut ProcessHeap, ty: TypeId) {
    let mut window = heap.take_window();
    // SAFETY: as in `allocate`; both slots are written, and the pins last as long as the heap.
    unsafe {
        for _ in 0..PINNED {
            let object = heap.allocate_slow(&mut window, ty, 0, &mut []).expect("memory").as_ptr();
            (1..3).for_each(|slot| object.cast::<usize>().add(slot).write(0));
            _ = heap.pin(object as usize).expect("memory");
        }
    }
    heap.return_window(window);
}

/// Handles: so many are kept, of old objects, and as many were released.
const HANDLES: usize = 100_000;

fn keep_handles(heap: &mut ProcessHeap, ty: TypeId) {
    let mut window = heap.take_window();
    let mut handles = Vec::new();
    // SAFETY: as in `allocate`; nothing is used after a call that may collect but through its handle, which
    // lasts as long as the heap.
    unsafe {
        for _ in 0..2 * HANDLES {
            let object = heap.allocate_slow(&mut window, ty, 0, &mut []).expect("memory");
            handles.push(heap.global(object.as_ptr() as usize).expect("memory"));
        }
        heap.collect_minor(&mut window, &mut []);
    }
    handles.drain(HANDLES..).for_each(|handle| heap.release(handle));
    handles.into_iter().for_each(|handle| _ = handle);
    heap.return_window(window);
}

/// Objects in a list; when there are so many they are moved and forgotten.
const LIST: u64 = 1000;

/// Survivors: with all that is allocated here no major collection is due.
#[inline(never)]
fn survive<const ROW: bool>(heap: &mut ProcessHeap, ty: TypeId, count: u64) -> [usize; 2] {
    let (length, first) = if ROW { (2, 2) } else { (0, 1) };
    let mut window = heap.take_window();
    let mut frame = [0; 2];
    for number in 1..=count {
        // SAFETY: as in `allocate`; both slots are written before the next allocation.
        unsafe {
            let object = match window.take(NODE) {
                Some(object) => {
                    object.cast().write(ty.header());
                    object
                }
                None => heap.allocate_slow(&mut window, ty, length, &mut frame).expect("memory"),
            };
            if ROW {
                object.cast::<usize>().add(1).write(length);
            }
            object.cast::<usize>().add(first).write(frame[0]);
            object.cast::<usize>().add(first + 1).write(0);
            frame[0] = object.as_ptr() as usize;
            if number % LIST == 0 {
                heap.collect_minor(&mut window, &mut frame);
                frame[0] = 0;
            }
        }
    }
    heap.return_window(window);
    frame
}

/// Old objects that are marked again and again.
const MARKED: u64 = 200_000;

/// Whole collections of a list each of whose objects has another child.
#[inline(never)]
fn mark(heap: &mut ProcessHeap, ty: TypeId, count: u64) -> [usize; 2] {
    let mut window = heap.take_window();
    let mut frame = [0; 2];
    // SAFETY: as in `allocate`; both slots are written before the next allocation.
    unsafe {
        for number in 0..MARKED {
            let object = heap.allocate_slow(&mut window, ty, 0, &mut frame).expect("memory");
            let [first, second] = if number % 2 == 0 { [0, 0] } else { [frame[0], frame[1]] };
            object.cast::<usize>().add(1).write(first);
            object.cast::<usize>().add(2).write(second);
            // A child waits for its parent, which has the list so far, too.
            frame = if number % 2 == 0 {
                [frame[0], object.as_ptr() as usize]
            } else {
                [object.as_ptr() as usize, 0]
            };
        }
        for _ in 0..count {
            heap.collect(&mut window, &mut frame);
        }
    }
    heap.return_window(window);
    frame
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let kind = arguments.get(1).map(String::as_str);
    let kinds = [
        "plain",
        "field",
        "collect",
        "collect-large",
        "collect-handles",
        "collect-pinned",
        "collect-weak",
        "survive",
        "survive-row",
        "mark",
    ];
    let (Some(kind), Some(count)) = (
        kind.filter(|kind| kinds.contains(kind)),
        arguments.get(2).and_then(|text| text.parse::<u64>().ok()),
    ) else {
        eprintln!("usage: gc_window {} COUNT", kinds.join("|"));
        std::process::exit(2);
    };
    // A size that is the same on every host, so that counts of instructions are.
    let nursery = if kind == "collect-large" { 64 << 20 } else { 4 << 20 };
    // The first collection of that kind moves many, and is slow where instructions are counted: no reason to
    // look at the clock after each later one.
    let step = (kind == "collect-handles").then_some(Duration::from_secs(100));
    let settings = Settings { nursery: Some(nursery), step, ..Settings::default() };
    let mut heap = Heap::new(space(), settings).expect("memory");
    let ty = heap.register(Layout::fixed(BYTES)).expect("a header and a field");
    let kept = match kind {
        "plain" => allocate::<false>(&mut heap, ty, count),
        "field" => allocate::<true>(&mut heap, ty, count),
        "survive" => {
            let node = Layout::fixed(NODE).slots(&[8, 16]);
            let node = heap.register(node).expect("a header and two slots");
            survive::<false>(&mut heap, node, count)
        }
        "mark" => {
            let node = Layout::fixed(NODE).slots(&[8, 16]);
            let node = heap.register(node).expect("a header and two slots");
            mark(&mut heap, node, count)
        }
        "survive-row" => {
            let row = Layout::variable(16, 8).item_slots(&[0]);
            let row = heap.register(row).expect("a header, a length and slots");
            survive::<true>(&mut heap, row, count)
        }
        "collect-weak" => {
            let weak = heap.register(Layout::fixed(NODE).weak_slots(&[24]).ephemerons(&[(8, 16)]));
            collect_weak(&mut heap, ty, weak.expect("a header, a key, a value and a weak slot"), count)
        }
        _ => {
            if kind == "collect-pinned" {
                let node = Layout::fixed(NODE).slots(&[8, 16]);
                let node = heap.register(node).expect("a header and two slots");
                keep_pinned(&mut heap, node);
            }
            if kind == "collect-handles" {
                keep_handles(&mut heap, ty);
            }
            collect(&mut heap, ty, count)
        }
    };
    black_box(kept);
    let statistics = heap.statistics();
    println!("{} minor collections, {} survivors", statistics.minor, statistics.survivors);
}

//! How long marking takes for an object: `gc_mark KIND COUNT`. Prints the median of whole collections of about
//! so many old objects, their sweep included.
//!
//! Kinds: `tree` made from below, `list`, `table` of objects in another order than they lie in, `graph` the
//! same with eight references to any of them in each. Nothing dies, so there is nothing to free.

use hugeheap::gc::{Heap, Layout, ProcessHeap, Settings, TypeId, Window, space};
use std::time::{Duration, Instant};

/// Whole collections.
const ROUNDS: usize = 15;
/// References of an object of a graph.
const EDGES: usize = 8;
/// Offset of the first item of an array.
const ITEMS: usize = 16;

/// A heap, and what its objects are made of. References are used until the next allocation; what has to survive
/// it is in the frame.
struct Program {
    heap: ProcessHeap,
    window: Window,
    node: TypeId,
    crowd: TypeId,
    array: TypeId,
    /// State of a linear congruential generator.
    random: u64,
}

impl Program {
    fn allocate(&mut self, ty: TypeId, length: usize, frame: &mut [usize]) -> usize {
        // SAFETY: the window is the heap's, and all that is used afterwards is in the frame; slots of a new
        // object are written before the next call.
        let object = unsafe { self.heap.allocate_slow(&mut self.window, ty, length, frame) };
        let object = object.expect("memory").as_ptr() as usize;
        let slots = if ty == self.node {
            2
        } else if ty == self.crowd {
            EDGES
        } else {
            0
        };
        for slot in 1..=slots {
            // SAFETY: the object was just allocated with so many slots behind its header.
            unsafe { ((object + 8 * slot) as *mut usize).write(0) };
        }
        object
    }

    /// Writes a slot of an object.
    fn set(&mut self, object: usize, offset: usize, value: usize) {
        // SAFETY: callers name slots of live objects, and live objects.
        unsafe { self.heap.write(object, (object + offset) as *mut usize, value) };
    }

    fn collect(&mut self, frame: &mut [usize]) {
        // SAFETY: as in `allocate`.
        unsafe { self.heap.collect(&mut self.window, frame) };
    }

    fn below(&mut self, limit: usize) -> usize {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize % limit
    }

    fn tree(&mut self, depth: u32, frame: &mut Vec<usize>) -> usize {
        if depth == 0 {
            return self.allocate(self.node, 0, frame);
        }
        for _ in 0..2 {
            let child = self.tree(depth - 1, frame);
            frame.push(child);
        }
        let object = self.allocate(self.node, 0, frame);
        for offset in [16, 8] {
            let child = frame.pop().expect("two were pushed");
            self.set(object, offset, child);
        }
        object
    }

    fn list(&mut self, count: usize) -> usize {
        let mut frame = [0];
        for _ in 0..count {
            let object = self.allocate(self.node, 0, &mut frame);
            self.set(object, 8, frame[0]);
            frame[0] = object;
        }
        frame[0]
    }

    /// An array of objects of a type, in any order.
    fn table(&mut self, ty: TypeId, count: usize) -> usize {
        let array = self.allocate(self.array, count, &mut []);
        let mut frame = [array];
        for index in 0..count {
            let object = self.allocate(ty, 0, &mut frame);
            self.set(frame[0], ITEMS + 8 * index, object);
        }
        // Objects that are old do not move any more.
        self.collect(&mut frame);
        let array = frame[0];
        for index in (1..count).rev() {
            let other = self.below(index + 1);
            let objects = [other, index].map(|index| Self::item(array, index));
            self.set(array, ITEMS + 8 * index, objects[0]);
            self.set(array, ITEMS + 8 * other, objects[1]);
        }
        array
    }

    fn item(array: usize, index: usize) -> usize {
        // SAFETY: callers name items of live arrays.
        unsafe { ((array + ITEMS + 8 * index) as *const usize).read() }
    }

    fn graph(&mut self, count: usize) -> usize {
        let array = self.table(self.crowd, count);
        for index in 0..count {
            for edge in 1..=EDGES {
                let to = self.below(count);
                self.set(Self::item(array, index), 8 * edge, Self::item(array, to));
            }
        }
        array
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let kind = arguments.get(1).map_or("", String::as_str);
    let count = arguments.get(2).and_then(|text| text.parse::<usize>().ok()).filter(|&count| count > 0);
    let (true, Some(count)) = (["tree", "list", "table", "graph"].contains(&kind), count) else {
        eprintln!("usage: gc_mark tree|list|table|graph COUNT");
        std::process::exit(2);
    };
    // All of it at once.
    let settings = Settings { step: Some(Duration::from_secs(100)), ..Settings::default() };
    let mut heap = Heap::new(space(), settings).expect("memory");
    let mut register = |layout| heap.register(layout).expect("a right layout");
    let node = register(Layout::fixed(24).slots(&[8, 16]));
    let crowd = register(Layout::fixed(8 + 8 * EDGES).slots(&[8, 16, 24, 32, 40, 48, 56, 64]));
    let array = register(Layout::variable(ITEMS, 8).item_slots(&[0]));
    let window = heap.take_window();
    let mut program = Program { heap, window, node, crowd, array, random: 1 };
    let (root, objects) = match kind {
        "tree" => {
            let depth = count.ilog2();
            (program.tree(depth, &mut Vec::new()), (2 << depth) - 1)
        }
        "list" => (program.list(count), count),
        "table" => (program.table(node, count), count + 1),
        _ => (program.graph(count), count + 1),
    };
    let mut frame = [root];
    // The first one moves what is young.
    program.collect(&mut frame);
    let mut times: Vec<_> = (0..ROUNDS)
        .map(|_| {
            let begin = Instant::now();
            program.collect(&mut frame);
            begin.elapsed()
        })
        .collect();
    times.sort();
    let [least, median, most] =
        [0, ROUNDS / 2, ROUNDS - 1].map(|place| times[place].as_nanos() as f64 / objects as f64);
    println!("{objects} objects: {median:.1} ns each ({least:.1} to {most:.1})");
}

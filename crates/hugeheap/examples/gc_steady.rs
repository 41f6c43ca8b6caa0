//! What the memory of a heap consists of whose live objects replace each other: `gc_steady [MIB]`.
//!
//! A table of objects of 64 bytes, so many MiB in all, has its objects replaced at random, each twenty times on
//! average. Told are the last whole cycle, from the end of one marking to the end of the next, where heap pages
//! are at their peak, and the peak of the process.

use hugeheap::gc::{Event, Heap, Layout, Phase, Settings, space};
use std::cell::RefCell;
use std::rc::Rc;

/// Bytes of an object.
const BYTES: usize = 64;
/// Offset of the first item of an array.
const ITEMS: usize = 16;
/// How often each object is replaced.
const TIMES: usize = 20;

/// Bytes from the end of one marking to the end of the next.
#[derive(Clone, Copy, Default)]
struct Cycle {
    /// Known to live, or not to be dead, when the marking ended.
    marked: usize,
    /// Added until its sweep ended.
    swept: usize,
    /// Of objects when the next marking began.
    began: usize,
    /// Of objects, and of heap pages and large blocks, when that ended.
    ended: usize,
    held: usize,
}

/// The last whole cycle, the one that is under way, and what the collector does.
#[derive(Default)]
struct Seen {
    last: Cycle,
    now: Cycle,
    phase: Phase,
}

impl Seen {
    fn note(&mut self, event: &Event) {
        match *event {
            Event::Minor { survived, .. } if self.phase == Phase::Sweeping => self.now.swept += survived,
            Event::Step { from, to, old, held, .. } => {
                if from == Phase::Idle && to != Phase::Idle {
                    self.now.began = old;
                }
                if from != Phase::Sweeping && to == Phase::Sweeping {
                    (self.now.ended, self.now.held) = (old, held);
                    self.last = core::mem::take(&mut self.now);
                }
                self.phase = to;
            }
            Event::Major { live, .. } => self.now.marked = live - self.now.swept,
            _ => {}
        }
    }
}

/// Most that was resident of the process, in bytes.
fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok()).map_or(0, |kib| kib << 10)
}

fn main() {
    let mib = std::env::args().nth(1).and_then(|text| text.parse::<usize>().ok()).unwrap_or(64);
    let count = ((mib << 20) / (BYTES + 8)).max(1);
    let mut heap = Heap::new(space(), Settings::default()).expect("memory");
    let array =
        heap.register(Layout::variable(ITEMS, 8).item_slots(&[0])).expect("a header, a length and slots");
    let object = heap.register(Layout::fixed(BYTES)).expect("a header and fields");
    let seen = Rc::new(RefCell::new(Seen::default()));
    let noted = Rc::clone(&seen);
    heap.set_hook(Some(Box::new(move |event| noted.borrow_mut().note(event))));
    let mut window = heap.take_window();
    let mut frame = [0];
    let mut random = 1_u64;
    // SAFETY: the window is the heap's; the table is in the frame, the object is written into it before the
    // next call that may collect.
    unsafe {
        frame[0] = heap.allocate_slow(&mut window, array, count, &mut []).expect("memory").as_ptr() as usize;
        for number in 0..(1 + TIMES) * count {
            let new = match window.take(BYTES) {
                Some(new) => {
                    new.cast().write(object.header());
                    new
                }
                None => heap.allocate_slow(&mut window, object, 0, &mut frame).expect("memory"),
            };
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let place = if number < count { number } else { (random >> 33) as usize % count };
            heap.write(frame[0], (frame[0] + ITEMS + 8 * place) as *mut usize, new.as_ptr() as usize);
        }
    }
    heap.return_window(window);
    let (lives, Seen { last, .. }) = (count * (BYTES + 8), &*seen.borrow());
    let rest = peak().saturating_sub(last.held + heap.nursery_bytes());
    let tell = |bytes: usize, what: &str| {
        println!(
            "{:8.1} MiB  {:4.2}  {what}",
            bytes as f64 / f64::from(1 << 20),
            bytes as f64 / lives as f64
        );
    };
    tell(lives, "lives");
    tell(
        last.marked.saturating_sub(lives),
        "dead, and marked: died while it was marked, or was added meanwhile and died",
    );
    tell(last.swept, "added while what was not marked was swept");
    tell(last.began.saturating_sub(last.marked + last.swept), "added until the next marking began");
    tell(last.ended.saturating_sub(last.began), "added until that ended");
    tell(last.held.saturating_sub(last.ended), "free in heap pages");
    tell(heap.nursery_bytes(), "nursery");
    tell(rest, "everything else that was resident: metadata, arenas ahead or kept, the program");
    tell(peak(), "peak of the process");
}

//! The loops on the garbage-collected heap.
//!
//! The window is a local variable, so that cursor and limit are registers, and the size of an object is known
//! when the loop is compiled, as in a runtime that knows its types. Two objects are kept alive at any time, so
//! that the loop cannot be removed: the reference program does the same.

use clap::{Args, ValueEnum};
use hugeheap::gc::{Heap, Layout, ProcessHeap, Settings, TypeId, space};
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Objects that a `ring` keeps alive: each object lives until this many others were allocated. Enough to be a
/// price in a small nursery, and small enough to die in a large one.
pub(crate) const RING: usize = 4096;

/// What the loop does with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Nothing: only its header is written.
    Plain,
    /// Writes its field.
    Field,
    /// Writes its field and keeps it for a while: the last 4,096 are alive.
    Ring,
}

/// The words after `bench worker alloc-rate`, which other languages' programs get too.
#[derive(Debug, Args)]
pub(crate) struct Words {
    kind: Kind,
    count: u64,
    bytes: usize,
    /// Bytes of the nursery; 0: as hugeheap chooses.
    nursery: usize,
}

/// What every program tells.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Told {
    pub(crate) seconds: f64,
    pub(crate) objects: u64,
    /// Of one object, as the language counts it.
    pub(crate) bytes: u64,
    /// Of hugeheap's heap.
    #[serde(default)]
    pub(crate) heap: Option<HeapTold>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct HeapTold {
    pub(crate) nursery: u64,
    pub(crate) minor_collections: u64,
    /// Seconds of all collections.
    pub(crate) collecting: f64,
    pub(crate) longest: f64,
    pub(crate) survivors: u64,
}

/// Sizes there are loops for.
pub(crate) const SIZES: [usize; 7] = [16, 32, 64, 128, 256, 512, 1024];

/// Time for a step of a collection that no collection of these loops takes.
const UNHURRIED: Duration = Duration::from_secs(60);

/// Runs a loop.
///
/// # Errors
/// One line when there is no memory, or no loop for the size.
pub(crate) fn work(words: &Words) -> Result<Told, String> {
    let nursery = (words.nursery > 0).then_some(words.nursery);
    // Of a nursery whose size is asked for all is used, however long a collection of it takes: the size is what
    // is measured.
    let step = nursery.map(|_| UNHURRIED);
    let settings = Settings { nursery, step, ..Settings::default() };
    let mut heap = Heap::new(space(), settings).map_err(|error| error.to_string())?;
    let ty = heap.register(Layout::fixed(words.bytes)).map_err(|error| error.to_string())?;
    let ring = Box::leak(Box::new([0_usize; RING])).as_mut_ptr();
    if words.kind == Kind::Ring {
        // SAFETY: the ring lives as long as the process; it holds 0 or objects of this heap, which no one moves
        // but the heap.
        unsafe {
            heap.add_roots(Box::new(move |visitor| {
                for index in 0..RING {
                    visitor.slot(ring.add(index));
                }
            }))
            .map_err(|error| error.to_string())?;
        }
    }
    let begin = Instant::now();
    let kept = match words.bytes {
        16 => sized::<16>(&mut heap, ty, words, ring),
        32 => sized::<32>(&mut heap, ty, words, ring),
        64 => sized::<64>(&mut heap, ty, words, ring),
        128 => sized::<128>(&mut heap, ty, words, ring),
        256 => sized::<256>(&mut heap, ty, words, ring),
        512 => sized::<512>(&mut heap, ty, words, ring),
        1024 => sized::<1024>(&mut heap, ty, words, ring),
        bytes => return Err(format!("there is no loop for objects of {bytes} bytes")),
    };
    let seconds = begin.elapsed().as_secs_f64();
    black_box(kept);
    let statistics = heap.statistics();
    Ok(Told {
        seconds,
        objects: words.count,
        bytes: words.bytes as u64,
        heap: Some(HeapTold {
            nursery: heap.nursery_bytes() as u64,
            minor_collections: statistics.minor,
            collecting: statistics.pauses.total as f64 / 1e9,
            longest: statistics.pauses.longest as f64 / 1e9,
            survivors: statistics.survivors,
        }),
    })
}

fn sized<const BYTES: usize>(
    heap: &mut ProcessHeap,
    ty: TypeId,
    words: &Words,
    ring: *mut usize,
) -> [usize; 2] {
    match words.kind {
        Kind::Plain => allocate::<BYTES, false, false>(heap, ty, words.count, ring),
        Kind::Field => allocate::<BYTES, true, false>(heap, ty, words.count, ring),
        Kind::Ring => allocate::<BYTES, true, true>(heap, ty, words.count, ring),
    }
}

/// The loop. A function of its own, so that its code can be looked at.
#[inline(never)]
fn allocate<const BYTES: usize, const FIELD: bool, const KEEP: bool>(
    heap: &mut ProcessHeap,
    ty: TypeId,
    count: u64,
    ring: *mut usize,
) -> [usize; 2] {
    let header = ty.header();
    let mut window = heap.take_window();
    let (mut last, mut before) = (0, 0);
    // SAFETY: the window is the heap's; the type has BYTES bytes and no slot; the one object that is used after
    // a call that may collect is in its frame, and the ring is a root.
    unsafe {
        for number in 0..count {
            let object = match window.take(BYTES) {
                Some(object) => {
                    object.cast().write(header);
                    object
                }
                None => {
                    let mut frame = [last];
                    // A way out of the loop for an error is an instruction in it; the process ends here, and says why.
                    let object =
                        heap.allocate_slow(&mut window, ty, 0, &mut frame).expect("memory for a nursery");
                    [last] = frame;
                    object
                }
            };
            if FIELD {
                object.cast::<u64>().add(1).write(number);
            }
            if KEEP {
                ring.add(number as usize % RING).write(object.as_ptr() as usize);
            }
            before = last;
            last = object.as_ptr() as usize;
        }
    }
    heap.return_window(window);
    [last, before]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loops_allocate_what_was_asked_for() {
        for bytes in SIZES {
            for kind in [Kind::Plain, Kind::Field, Kind::Ring] {
                let told = work(&Words { kind, count: 20_000, bytes, nursery: 64 << 10 }).unwrap();
                let heap = told.heap.unwrap();
                assert_eq!(heap.nursery, 64 << 10);
                // All but what the last nursery holds was collected.
                assert!(heap.minor_collections >= (20_000 * bytes as u64 / (64 << 10)).saturating_sub(1));
                // The ring is larger than this nursery: whoever is in it survives.
                assert_eq!(heap.survivors > 15_000, kind == Kind::Ring, "{kind:?} {bytes}");
            }
        }
        assert!(work(&Words { kind: Kind::Plain, count: 1, bytes: 48, nursery: 0 }).is_err());
    }
}

//! Trace functions that are asked for parts.

use super::*;
use crate::arena::HEAP_PAGE_BYTES;
use std::cell::Cell;

thread_local! {
    /// Bytes of the parts that were asked for.
    static ASKED: Cell<usize> = const { Cell::new(0) };
}

const LENGTH: usize = 50_000;
const ITEMS: usize = 16;

/// An array of references, by itself.
unsafe extern "C" fn trace(object: *mut u8, from: *mut u8, to: *mut u8, visitor: &mut Visitor<'_>) {
    ASKED.set(ASKED.get() + (to as usize - from as usize));
    let begin = (object as usize + ITEMS).max(from as usize);
    for slot in (begin..to as usize).step_by(8) {
        // SAFETY: all words of the objects behind the length are slots.
        unsafe { visitor.slot(slot as *mut usize) };
    }
}

#[test]
fn a_large_object_with_a_trace_function_for_parts_has_cards() {
    let settings = Settings {
        step: Some(core::time::Duration::ZERO),
        checks: Checks { verify: false, ..Checks::default() },
        ..Settings::default()
    };
    let mut test = Test::new(settings);
    let pair = test.pair;
    // SAFETY: the function names every slot of a part.
    let layout = unsafe { Layout::variable(ITEMS, 8).traced_in_parts_by(trace) };
    let traced = test.heap.register(layout).expect("right");
    let mut window = test.heap.take_window();
    let mut frame = [0];
    // SAFETY: the window is the heap's, every slot is written before the next call, and all is in the frame.
    unsafe {
        let array = test.heap.allocate_slow(&mut window, traced, LENGTH, &mut []).expect("memory");
        frame[0] = array.as_ptr() as usize;
        assert!(Header::of(frame[0]).has(CARDS));
        for index in (0..LENGTH).step_by(1000) {
            let child =
                test.heap.allocate_slow(&mut window, pair, 0, &mut frame).expect("memory").as_ptr() as usize;
            for (offset, value) in [(NUMBER, index), (LEFT, 0), (RIGHT, 0)] {
                ((child + offset) as *mut usize).write(value);
            }
            test.heap.write(frame[0], (frame[0] + ITEMS + 8 * index) as *mut usize, child);
            // What lies around the slot, and no more, when marking is not under way.
            ASKED.set(0);
            test.heap.collect_minor(&mut window, &mut frame);
            if test.heap.phase() == Phase::Idle {
                assert!(
                    (8..=HEAP_PAGE_BYTES / 64).contains(&ASKED.get()),
                    "{} bytes were asked for",
                    ASKED.get()
                );
            }
        }
        for whole in [false, true] {
            ASKED.set(0);
            for _ in 0..2 {
                if whole {
                    test.heap.collect(&mut window, &mut frame);
                } else {
                    test.heap.collect_minor(&mut window, &mut frame);
                }
            }
            assert!(!whole || ASKED.get() >= 2 * 8 * LENGTH, "{} bytes were asked for", ASKED.get());
            for index in (0..LENGTH).step_by(1000) {
                let child = ((frame[0] + ITEMS + 8 * index) as *const usize).read();
                assert_eq!(((child + NUMBER) as *const usize).read(), index);
            }
        }
    }
    test.heap.return_window(window);
    test.end();
}

thread_local! {
    /// The kernel whose clock goes back while an object is looked into.
    static TURNED: std::cell::RefCell<Option<Kernel>> = const { std::cell::RefCell::new(None) };
}

/// A list by itself.
unsafe extern "C" fn trace_and_turn_back(object: *mut u8, visitor: &mut Visitor<'_>) {
    // SAFETY: the objects have a slot behind the header.
    unsafe { visitor.slot(object.add(8).cast()) };
    TURNED.with_borrow(|kernel| kernel.iter().for_each(|kernel| kernel.turn_back(Duration::from_secs(1))));
}

/// The time that a step had taken was less than nothing, which ended the process in the middle of a collection.
#[test]
fn a_clock_that_goes_back_in_a_step_of_marking_does_no_harm() {
    let mut test = Test::new(Settings::default());
    let kernel = test.space.source().kernel.clone();
    kernel.set_cost(hugeheap_os::simulated::Call::Now, Duration::from_micros(1));
    // SAFETY: the function names the only slot.
    let traced =
        test.heap.register(unsafe { Layout::fixed(16).traced_by(trace_and_turn_back) }).expect("right");
    let mut window = test.heap.take_window();
    let mut frame = [0];
    // SAFETY: the window is the heap's, every slot is written before the next call, and all is in the frame.
    unsafe {
        for _ in 0..50_000 {
            let object =
                test.heap.allocate_slow(&mut window, traced, 0, &mut frame).expect("memory").as_ptr();
            object.add(8).cast::<usize>().write(frame[0]);
            frame[0] = object as usize;
        }
        TURNED.set(Some(kernel));
        for _ in 0..100 {
            test.heap.collect_minor(&mut window, &mut frame);
            let garbage = test.heap.allocate_old(&mut window, test.text, 100_000, &mut frame);
            assert!(garbage.is_ok());
        }
        TURNED.set(None);
    }
    assert!(test.heap.statistics().major > 0);
    test.heap.return_window(window);
    let mut count = 0;
    while frame[0] != 0 {
        count += 1;
        // SAFETY: a live object of the type.
        frame[0] = unsafe { (frame[0] as *const usize).add(1).read() };
    }
    assert_eq!(count, 50_000);
    test.end();
}

//! A program that has been large, and makes only young garbage from then on.
#![cfg(target_os = "linux")]

use hugeheap::gc::{Heap, Layout, Settings, space};

/// Bytes of an object.
const BYTES: usize = 8 << 10;

/// Objects that live at first: 16 MiB.
const COUNT: usize = 2048;

#[test]
fn what_has_died_among_the_old_is_given_back_though_everything_else_dies_young() {
    let settings = Settings { nursery: Some(1 << 20), ..Settings::default() };
    let mut heap = Heap::new(space(), settings).expect("memory");
    let ty = heap.register(Layout::fixed(BYTES)).expect("a right layout");
    let mut window = heap.take_window();
    // SAFETY: the window is the heap's; the type has no slot; what is used after a call that may collect is in
    // its frame.
    let mut allocate = |frame: &mut [usize]| unsafe {
        match window.take(BYTES) {
            Some(object) => {
                object.cast().write(ty.header());
                object.as_ptr() as usize
            }
            None => heap.allocate_slow(&mut window, ty, 0, frame).expect("memory").as_ptr() as usize,
        }
    };
    let mut frame = vec![0; COUNT];
    for index in 0..COUNT {
        frame[index] = allocate(&mut frame);
    }
    frame.fill(0);
    // What was allocated for each byte that is old, 128, and what marking and sweeping take.
    for _ in 0..COUNT * 140 {
        allocate(&mut []);
    }
    heap.return_window(window);
    let (old, held) = (heap.old_bytes(), heap.held_bytes());
    assert!(old == 0 && held <= 1 << 20, "{old} bytes of objects in {held} of pages");
}

//! Before a fork: the child should go on sharing the heap's memory with its parent, even when it collects.
//!
//! | what un-shares memory | what is done about it |
//! |---|---|
//! | garbage that is collected in the child, and in the parent again | collected before |
//! | objects in sparse pages, among which others are written | packed before |
//! | new objects beside old ones, in the same pages | pages that are there are *frozen*: new objects get pages of their own |
//! | marks, lists and tags | lie beside the pages: 200 bytes of 16 KiB, 1.2 % |
//!
//! A frozen page takes new objects again after the next major collection.

use super::heap::Heap;
use super::old::Old;
use super::scope::Scope;
use super::window::Window;
use crate::object::Source;
use crate::object::class::CLASSES;

impl<S: Source> Old<S> {
    /// Takes no room from pages that are there, until they are swept.
    pub(super) fn freeze(&mut self) {
        for class in 0..CLASSES {
            let bin = &mut self.bins[class];
            if let Some(page) = bin.close() {
                bin.full.push(self.space, page);
            }
            let partial = core::mem::take(&mut bin.partial);
            bin.full.append(self.space, partial);
        }
        self.trim();
    }
}

impl<S: Source> Heap<S> {
    /// Prepares the heap for a fork: a whole collection, after which the old generation is packed and takes no
    /// new objects into its pages.
    ///
    /// # Safety
    /// As in [`collect`](Self::collect).
    pub unsafe fn prepare_fork(&mut self, window: &mut Window, frame: &mut [usize]) {
        self.collect_all(window, frame);
        self.old.freeze();
    }
}

impl<S: Source> Scope<'_, S> {
    /// Prepares the heap for a fork.
    pub fn prepare_fork(&mut self) {
        let mut window = self.heap.take_window();
        // SAFETY: as in `allocate`.
        unsafe { self.heap.prepare_fork(&mut window, &mut []) };
    }
}

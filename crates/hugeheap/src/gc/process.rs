//! Heaps over the arenas of this process's runtime.

use super::heap::Heap;
use crate::object::Space;
use crate::runtime::{Runtime, runtime};

/// A garbage-collected heap over this process's runtime.
pub type ProcessHeap = Heap<Runtime>;

static SPACE: Space<Runtime> = Space::new(runtime());

/// The same without a start of the runtime: for the fork handlers, which hold its locks like those of
/// [`crate::object::space`].
pub(crate) fn space_at_hand() -> &'static Space<Runtime> {
    &SPACE
}

/// The metadata of the heap pages of all garbage-collected heaps over this process's runtime.
pub fn space() -> &'static Space<Runtime> {
    runtime().ensure_started();
    &SPACE
}

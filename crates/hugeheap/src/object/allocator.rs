//! Heaps as allocators of single collections: the trait `Allocator` of the crate allocator-api2, which is Rust's own, not stable yet.
//!
//! ```text
//!   collection ──layout──▶ GlobalHeap   the heap of the calling thread: collections may go to other threads
//!                     └──▶ LocalHeap    a heap of its own, of one thread: no look for the thread's heap
//! ```
//!
//! A block stays valid when its allocator is moved, and when it is dropped: dropping a heap leaves its blocks live, and any heap frees the blocks of any other. So a clone is never needed, and a reference to a
//! [`LocalHeap`] is an allocator, too.
//!
//! An empty layout is a request for a byte: the trait allows it, and what is handed out has to differ from all else that is live.

use super::global::{GlobalHeap, ProcessHeap, space};
use super::heap::Heap;
use super::space::Source;
use allocator_api2::alloc::{AllocError, Allocator};
use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr::NonNull;

/// Alignment that every block has, in bytes.
const ALIGN: usize = 16;

/// A heap of its own for the collections of one thread, behind shared references.
///
/// ```
/// # use hugeheap::object::LocalHeap;
/// let heap = LocalHeap::new().expect("memory");
/// let mut numbers = allocator_api2::vec::Vec::new_in(&heap);
/// numbers.extend(0..1000);
/// assert_eq!(numbers.iter().sum::<i32>(), 499_500);
/// ```
pub struct LocalHeap<S: Source = crate::runtime::Runtime> {
    heap: UnsafeCell<Heap<S>>,
}

impl LocalHeap {
    /// A heap of this process's blocks. `None`: the system has no memory for its metadata.
    pub fn new() -> Option<Self> {
        space().acquire().map(Self::from)
    }
}

impl<S: Source> From<Heap<S>> for LocalHeap<S> {
    fn from(heap: Heap<S>) -> Self {
        Self { heap: UnsafeCell::new(heap) }
    }
}

impl From<LocalHeap> for ProcessHeap {
    fn from(local: LocalHeap) -> Self {
        local.heap.into_inner()
    }
}

impl<S: Source> LocalHeap<S> {
    /// Makes one call of the heap.
    fn with<R>(&self, call: impl FnOnce(&mut Heap<S>) -> R) -> R {
        // SAFETY: not shared between threads (an `UnsafeCell` is not), and no call of a heap comes back here.
        call(unsafe { &mut *self.heap.get() })
    }
}

/// The layout that is asked of the heap.
fn at_least_a_byte(layout: Layout) -> Layout {
    // SAFETY: a byte more than none, of the same alignment: it overflows nothing.
    if layout.size() == 0 { unsafe { Layout::from_size_align_unchecked(1, layout.align()) } } else { layout }
}

/// A block as the trait has it: of the bytes that were asked for.
fn slice(block: Option<NonNull<u8>>, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
    block.map(|block| NonNull::slice_from_raw_parts(block, layout.size())).ok_or(AllocError)
}

/// A block of another layout with what was in the old one, as far as both go. For who cannot resize: above [`ALIGN`].
///
/// # Safety
/// As for the trait's `grow` and `shrink`.
unsafe fn moved(
    allocator: &impl Allocator,
    block: NonNull<u8>,
    (old, new): (Layout, Layout),
) -> Result<NonNull<[u8]>, AllocError> {
    let taken = allocator.allocate(new)?;
    // SAFETY: both are live and apart, and have these bytes; the old one is given up by the contract.
    unsafe {
        taken.cast::<u8>().copy_from_nonoverlapping(block, old.size().min(new.size()));
        allocator.deallocate(block, old);
    }
    Ok(taken)
}

/// The bytes that a block has grown by are zero afterwards.
///
/// # Safety
/// The block is live, with the bytes of the slice, and nobody else uses it.
unsafe fn clear_from(block: NonNull<[u8]>, from: usize) -> NonNull<[u8]> {
    // SAFETY: by the contract; `grow` is asked for no fewer bytes than there were.
    unsafe { block.cast::<u8>().add(from).write_bytes(0, block.len() - from) };
    block
}

// SAFETY: blocks are at least as large and as aligned as asked for, owned by one request, and live until they are freed, whatever becomes of the allocator.
unsafe impl<S: Source> Allocator for LocalHeap<S> {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let asked = at_least_a_byte(layout);
        let block = self.with(|heap| match asked.align() {
            ..=ALIGN => heap.allocate(asked.size()),
            align => heap.allocate_aligned(asked.size(), align),
        });
        slice(block, layout)
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.align() <= ALIGN {
            return slice(self.with(|heap| heap.allocate_zeroed(at_least_a_byte(layout).size())), layout);
        }
        // SAFETY: just handed out.
        self.allocate(layout).map(|block| unsafe { clear_from(block, 0) })
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        let asked = at_least_a_byte(layout);
        // SAFETY: by the contract of the trait the block is given up, and of that layout.
        self.with(|heap| unsafe {
            if asked.align() <= ALIGN { heap.free_sized(block, asked.size()) } else { heap.free(block) }
        });
    }

    unsafe fn grow(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if old.align().max(new.align()) <= ALIGN {
            // SAFETY: by the contract of the trait: the old address is not used any more if this succeeds.
            return slice(
                self.with(|heap| unsafe { heap.reallocate(block, at_least_a_byte(new).size()) }),
                new,
            );
        }
        // SAFETY: by the contract of the trait.
        unsafe { moved(self, block, (old, new)) }
    }

    unsafe fn grow_zeroed(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: by the contract of the trait; what is cleared was just handed out.
        unsafe { self.grow(block, old, new).map(|grown| clear_from(grown, old.size())) }
    }

    unsafe fn shrink(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: as in `grow`, which looks at neither which is larger.
        unsafe { self.grow(block, old, new) }
    }
}

// SAFETY: as above; the blocks of one thread's heap are freed by any other.
unsafe impl Allocator for GlobalHeap {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: not of no bytes.
        slice(NonNull::new(unsafe { self.alloc(at_least_a_byte(layout)) }), layout)
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: not of no bytes.
        slice(NonNull::new(unsafe { self.alloc_zeroed(at_least_a_byte(layout)) }), layout)
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: by the contract of the trait the block is given up, and of that layout.
        unsafe { self.dealloc(block.as_ptr(), at_least_a_byte(layout)) };
    }

    unsafe fn grow(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if old.align() == new.align() {
            let (asked, bytes) = (at_least_a_byte(old), at_least_a_byte(new).size());
            // SAFETY: by the contract of the trait.
            return slice(NonNull::new(unsafe { self.realloc(block.as_ptr(), asked, bytes) }), new);
        }
        // SAFETY: by the contract of the trait.
        unsafe { moved(self, block, (old, new)) }
    }

    unsafe fn grow_zeroed(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: by the contract of the trait; what is cleared was just handed out.
        unsafe { Allocator::grow(self, block, old, new).map(|grown| clear_from(grown, old.size())) }
    }

    unsafe fn shrink(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: as in `grow`, which looks at neither which is larger.
        unsafe { Allocator::grow(self, block, old, new) }
    }
}

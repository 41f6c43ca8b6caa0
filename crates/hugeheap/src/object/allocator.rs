//! Heaps as allocators of single collections: the trait `Allocator` of the crate allocator-api2, which is
//! Rust's own, not stable yet.
//!
//! ```text
//!   collection ──layout──▶ GlobalHeap   the heap of the calling thread: collections may go to other threads
//!                     └──▶ LocalHeap    a heap of its own, of one thread: no look for the thread's heap
//! ```
//!
//! Both are a `GlobalAlloc`, and what the other trait has besides is the same for any: empty layouts, a new
//! alignment, the zeros that a block has grown by.
//!
//! A block stays valid when its allocator is moved, and when it is dropped: dropping a heap leaves its blocks
//! live, and any heap frees the blocks of any other. So a clone is never needed, and a reference to a
//! [`LocalHeap`] is an allocator, too.

use super::global::{GlobalHeap, ProcessHeap, space};
use allocator_api2::alloc::{AllocError, Allocator};
use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr::{NonNull, null_mut};

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
pub struct LocalHeap {
    heap: UnsafeCell<ProcessHeap>,
}

impl LocalHeap {
    /// A heap of this process's blocks. `None`: the system has no memory for its metadata.
    pub fn new() -> Option<Self> {
        space().acquire().map(Self::from)
    }

    /// Makes one call of the heap.
    fn with<R>(&self, call: impl FnOnce(&mut ProcessHeap) -> R) -> R {
        // SAFETY: not shared between threads (an `UnsafeCell` is not), and no call of a heap comes back here.
        call(unsafe { &mut *self.heap.get() })
    }
}

impl From<ProcessHeap> for LocalHeap {
    fn from(heap: ProcessHeap) -> Self {
        Self { heap: UnsafeCell::new(heap) }
    }
}

impl From<LocalHeap> for ProcessHeap {
    fn from(local: LocalHeap) -> Self {
        local.heap.into_inner()
    }
}

// SAFETY: blocks are at least as large and as aligned as asked for, owned by one request, and live until they
// are freed.
unsafe impl GlobalAlloc for LocalHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let block = self.with(|heap| match layout.align() {
            ..=ALIGN => heap.allocate(layout.size()),
            align => heap.allocate_aligned(layout.size(), align),
        });
        block.map_or(null_mut(), NonNull::as_ptr)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: by the contract of the trait the block is given up, and of that layout.
        self.with(|heap| unsafe {
            let block = NonNull::new_unchecked(block);
            if layout.align() <= ALIGN { heap.free_sized(block, layout.size()) } else { heap.free(block) }
        });
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let block = self.with(|heap| heap.allocate_aligned_zeroed(layout.size(), layout.align()));
        block.map_or(null_mut(), NonNull::as_ptr)
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: by the contract of the trait: the old address is not used any more if this succeeds, and the
        // new layout is one.
        let moved = self.with(|heap| unsafe {
            heap.reallocate_aligned(NonNull::new_unchecked(block), layout.size(), size, layout.align())
        });
        moved.map_or(null_mut(), NonNull::as_ptr)
    }
}

/// A block of another layout with what was in the old one, as far as both go; null, with nothing changed, if
/// there is no memory.
///
/// # Safety
/// As for `realloc`; neither layout is of no bytes.
unsafe fn move_to(allocator: &impl GlobalAlloc, block: *mut u8, old: Layout, new: Layout) -> *mut u8 {
    // SAFETY: both blocks are live and apart, and have these bytes; the old one is given up by the contract.
    unsafe {
        let taken = allocator.alloc(new);
        if !taken.is_null() {
            taken.copy_from_nonoverlapping(block, old.size().min(new.size()));
            allocator.dealloc(block, old);
        }
        taken
    }
}

/// The layout that is asked of the heap. An empty one is a request for a byte: the trait allows it, and what is
/// handed out has to differ from all else that is live.
fn at_least_a_byte(layout: Layout) -> Layout {
    // SAFETY: a byte more than none, of the same alignment: it overflows nothing.
    if layout.size() == 0 { unsafe { Layout::from_size_align_unchecked(1, layout.align()) } } else { layout }
}

/// A block as the trait has it: of the bytes that were asked for.
fn slice(block: *mut u8, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
    let block = NonNull::new(block).ok_or(AllocError)?;
    Ok(NonNull::slice_from_raw_parts(block, layout.size()))
}

/// `grow` and `shrink`, which differ for nobody here.
///
/// # Safety
/// As for these.
unsafe fn resize(
    allocator: &impl GlobalAlloc,
    block: NonNull<u8>,
    old: Layout,
    new: Layout,
) -> Result<NonNull<[u8]>, AllocError> {
    let (was, becomes) = (at_least_a_byte(old), at_least_a_byte(new));
    // SAFETY: by the contract.
    let resized = unsafe {
        if old.align() == new.align() {
            allocator.realloc(block.as_ptr(), was, becomes.size())
        } else {
            move_to(allocator, block.as_ptr(), was, becomes)
        }
    };
    slice(resized, new)
}

/// The trait for allocators of these types.
macro_rules! allocator {
    ($type:ty) => {
        // SAFETY: blocks are as its `GlobalAlloc` has them, and live until they are freed, whatever becomes of
        // the allocator.
        unsafe impl Allocator for $type {
            fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
                // SAFETY: not of no bytes.
                slice(unsafe { self.alloc(at_least_a_byte(layout)) }, layout)
            }

            fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
                // SAFETY: not of no bytes.
                slice(unsafe { self.alloc_zeroed(at_least_a_byte(layout)) }, layout)
            }

            unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
                // SAFETY: by the contract of the trait the block is given up, and of that layout.
                unsafe { self.dealloc(block.as_ptr(), at_least_a_byte(layout)) };
            }

            unsafe fn grow(
                &self,
                block: NonNull<u8>,
                old: Layout,
                new: Layout,
            ) -> Result<NonNull<[u8]>, AllocError> {
                // SAFETY: by the contract of the trait.
                unsafe { resize(self, block, old, new) }
            }

            unsafe fn grow_zeroed(
                &self,
                block: NonNull<u8>,
                old: Layout,
                new: Layout,
            ) -> Result<NonNull<[u8]>, AllocError> {
                // SAFETY: by the contract of the trait; what is cleared was just handed out, and is no less
                // than there was.
                unsafe {
                    let grown = resize(self, block, old, new)?;
                    grown.cast::<u8>().add(old.size()).write_bytes(0, new.size() - old.size());
                    Ok(grown)
                }
            }

            unsafe fn shrink(
                &self,
                block: NonNull<u8>,
                old: Layout,
                new: Layout,
            ) -> Result<NonNull<[u8]>, AllocError> {
                // SAFETY: by the contract of the trait.
                unsafe { resize(self, block, old, new) }
            }
        }
    };
}

allocator!(GlobalHeap);
allocator!(LocalHeap);

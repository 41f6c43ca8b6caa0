//! The old generation: blocks of size classes in heap pages, bitmaps beside them.
//!
//! ```text
//!   bin of a class    pages, and the window that blocks are taken from (`bins`)
//!   metadata          vacant   1 where no live object begins
//!   of a heap page    remote   1 where an object begins that is marked (here nobody frees remotely)
//!                     tag      heap, cycle, class
//! ```
//!
//! Arenas, heap pages, size classes, and the arrays of `Space` are those of the object allocator; a
//! garbage-collected heap has a `Space` of its own, so that a block of the one is never taken for one of the
//! other. An object above the largest block has a page run or a large block of its own and is a class by
//! itself: [`LARGE`]. Nothing moves but in an evacuation (`evacuate`).
//!
//! The *cycle* bit of a page says after which marking its bitmap was swept last. When marking ends the heap's
//! bit is turned, which makes all pages unswept at once: in an unswept page what is marked is alive, whatever
//! `vacant` says.

use super::bins::{Bin, FREES, Free, HandedOut};
use super::depart::Survey;
use super::header::OBJECT_ALIGN;
use super::lists::List;
use super::prefetch::prefetch;
use super::room::Room;
use crate::arena::{ARENA_BYTES, HEAP_PAGE_BYTES};
use crate::object::class::{CLASSES, Class, GRANULE_SHIFT, SHAPES, WINDOWS};
use crate::object::space::Page;
use crate::object::{Source, Space};
use core::sync::atomic::Ordering::Relaxed;

/// Class of the first page of an object with heap pages of its own.
pub(crate) const LARGE: Class = 63;

const CLASS_BITS: u32 = 63;
pub(super) const CYCLE: u32 = 64;
/// In the tag of a page: what lives in it leaves.
pub(super) const LEAVING: u32 = 128;
const HEAP_SHIFT: u32 = 8;

/// Most numbers of heaps; a number may come back after that many heaps.
pub(crate) const HEAP_NUMBERS: u32 = 1 << (32 - HEAP_SHIFT);

/// Pages kept for the next bin that needs one. Taken and given back in numbers because one at a time costs more
/// than filling them.
pub(super) const SPARES: usize = 32;

const _: () = assert!(CLASSES < LARGE && LARGE as u32 <= CLASS_BITS);
const _: () = assert!(OBJECT_ALIGN == 16, "the least granule");

/// An arena that is evacuated, and pages of it with something that lives.
#[derive(Debug)]
pub(super) struct Leaving {
    pub(super) arena: usize,
    pub(super) pages: List,
}

/// What is left after the sweep of a page.
pub(crate) enum Swept {
    /// No live object: the page was given back.
    Empty,
    /// Some, in a page that is now in a list of its bin.
    Kept,
}

/// The old generation of a heap.
pub(crate) struct Old<S: Source> {
    pub(super) space: &'static Space<S>,
    pub(super) tag: u32,
    pub(super) cycle: u32,
    /// New objects are marked: a marking is under way. Changes only while all windows are settled.
    pub(crate) black: bool,
    /// Classes with a taken window, as a bitmap.
    pub(super) taken: u64,
    pub(super) bins: [Bin; CLASSES],
    pub(super) free: [Free; FREES],
    pub(super) large: List,
    pub(super) large_unswept: List,
    pub(super) spares: [usize; SPARES],
    pub(super) spare_count: usize,
    pub(super) batch: usize,
    /// Bytes of heap pages and large blocks.
    pub(super) held: usize,
    /// Bytes of objects: live ones, and dead ones that are not swept yet. Without those in taken windows.
    pub(super) used: usize,
    /// What was ever handed out, but for what is in taken windows: who wants to know what survived need not
    /// count objects one by one.
    pub(super) handed_out: HandedOut,
    /// Arenas that are evacuated, in order, with their pages, once these are swept.
    pub(super) leaving: Vec<Leaving>,
    /// Pages that nothing may be copied to, because they are in these arenas.
    pub(super) aside: Vec<usize>,
    /// What the sweep that is under way finds, if somebody wants to know.
    pub(super) survey: Option<Survey>,
    /// What `held` may be at most.
    pub(crate) maximum: usize,
    /// What is known of the memory there is for large objects.
    pub(super) room: Room,
    /// Bytes that the next minor collection may add.
    pub(super) expected: u64,
    /// It took pages from the arenas since the last sweep ended, and so may take more.
    pub(super) grows: bool,
    /// The arenas had no page since the pause began or gave something back.
    pub(super) refused: bool,
    /// What freed blocks are overwritten with.
    pub(crate) poison: Option<u64>,
}

impl<S: Source> Old<S> {
    /// Makes it where it is to be, one part after the other: see [`Heap::make_in`](super::heap::Heap::make_in).
    ///
    /// # Safety
    /// Memory for it that nobody else knows, and nothing of value there.
    pub(crate) unsafe fn make_at(old: *mut Self, space: &'static Space<S>, number: u32, maximum: usize) {
        // SAFETY: by the contract; each write is within it and aligned.
        unsafe {
            (&raw mut (*old).space).write(space);
            (&raw mut (*old).tag).write((number % (HEAP_NUMBERS - 1) + 1) << HEAP_SHIFT);
            (&raw mut (*old).cycle).write(0);
            (&raw mut (*old).black).write(false);
            (&raw mut (*old).taken).write(0);
            for class in 0..CLASSES {
                (&raw mut (*old).bins).cast::<Bin>().add(class).write(Bin::EMPTY);
            }
            for class in 0..FREES {
                (&raw mut (*old).free).cast::<Free>().add(class).write(Free::NONE);
            }
            (&raw mut (*old).large).write(List::EMPTY);
            (&raw mut (*old).large_unswept).write(List::EMPTY);
            (&raw mut (*old).spares).write([0; SPARES]);
            (&raw mut (*old).spare_count).write(0);
            (&raw mut (*old).batch).write(1);
            (&raw mut (*old).held).write(0);
            (&raw mut (*old).used).write(0);
            (&raw mut (*old).handed_out).write(HandedOut::default());
            (&raw mut (*old).leaving).write(Vec::new());
            (&raw mut (*old).aside).write(Vec::new());
            (&raw mut (*old).survey).write(None);
            (&raw mut (*old).maximum).write(maximum);
            (&raw mut (*old).room).write(Room::default());
            (&raw mut (*old).expected).write(0);
            (&raw mut (*old).grows).write(false);
            (&raw mut (*old).refused).write(false);
            (&raw mut (*old).poison).write(None);
        }
        // SAFETY: all fields were written.
        let made = unsafe { &*old };
        // All are named, so that the compiler asks for a new one.
        let Self {
            space: _,
            tag: _,
            cycle: _,
            black: _,
            taken: _,
            bins: _,
            free: _,
            large: _,
            large_unswept: _,
            spares: _,
            spare_count: _,
            batch: _,
            held: _,
            used: _,
            handed_out: _,
            leaving: _,
            aside: _,
            survey: _,
            maximum: _,
            room: _,
            expected: _,
            grows: _,
            refused: _,
            poison: _,
        } = made;
    }

    pub(crate) fn space(&self) -> &'static Space<S> {
        self.space
    }

    /// Bytes of heap pages and large blocks, spare pages included.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Bytes of objects that are not known to be dead.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// The place of a page's arena among those that are evacuated.
    pub(super) fn leaving_at(&self, page: usize) -> Option<usize> {
        self.leaving.binary_search_by_key(&(page - page % ARENA_BYTES), |leaving| leaving.arena).ok()
    }

    /// Whether what lives in a page leaves it.
    #[inline(always)]
    pub(super) fn is_leaving(&self, page: Page) -> bool {
        let tag = page.mark().tag.load(Relaxed);
        tag & LEAVING != 0 && is_of_heap(tag, self.tag)
    }

    /// Marks an object of this generation; says whether it was not.
    #[inline(always)]
    pub(crate) fn mark(&self, object: usize) -> bool {
        let Some((page, word, bit)) = self.place(object) else { return false };
        let marks = &page.remote()[word];
        let before = marks.load(Relaxed);
        marks.store(before | bit, Relaxed);
        before & bit == 0
    }

    /// Whether an object of this generation is marked.
    pub(crate) fn is_marked(&self, object: usize) -> bool {
        self.place(object).is_some_and(|(page, word, bit)| page.remote()[word].load(Relaxed) & bit != 0)
    }

    /// Whether a word is the address of an object of this generation that is not marked.
    #[inline]
    pub(crate) fn is_unmarked(&self, word: usize) -> bool {
        self.place(word).is_some_and(|(page, word, bit)| page.remote()[word].load(Relaxed) & bit == 0)
    }

    /// Whether a live object of this heap's old generation begins at an address.
    pub(crate) fn is_live(&self, object: usize) -> bool {
        let Some((page, word, bit)) = self.place(object) else { return false };
        let tag = page.mark().tag.load(Relaxed);
        let class = class_in(tag);
        let starts = if class == LARGE { 1 } else { SHAPES[class].starts[word] };
        let aligned =
            if class == LARGE { object == page.address() } else { object % (1 << GRANULE_SHIFT) == 0 };
        aligned && starts & bit != 0 && self.live_bits(page, tag, word) & bit != 0
    }

    /// Bytes that a live object of this heap's old generation has room for.
    pub(super) fn room_of(&self, object: usize) -> usize {
        match self.space.page(object).map(|page| class_in(page.mark().tag.load(Relaxed))) {
            Some(LARGE) => self.large_bytes(object),
            Some(class) => SHAPES[class].bytes as usize,
            None => 0,
        }
    }

    /// Whether an address is in a heap page of blocks of this heap, or in the first one of a large object.
    pub(super) fn has_page(&self, address: usize) -> bool {
        let tag = self.space.page(address).map_or(0, |page| page.mark().tag.load(Relaxed));
        is_of_heap(tag, self.tag)
    }

    /// The live object that contains an address: of blocks, or in the first heap page of a large one.
    pub(crate) fn containing(&self, address: usize) -> Option<usize> {
        let page = self.space.page(address)?;
        let tag = page.mark().tag.load(Relaxed);
        if !is_of_heap(tag, self.tag) {
            return None;
        }
        let class = class_in(tag);
        let object = if class == LARGE {
            page.address()
        } else {
            let bytes = SHAPES[class].bytes as usize;
            page.address() + (address - page.address()) / bytes * bytes
        };
        self.is_live(object).then_some(object)
    }

    /// Page, word and bit of an object in the bitmaps, if the address is in a page of this heap.
    #[inline(always)]
    fn place(&self, object: usize) -> Option<(Page, usize, u64)> {
        let page = self.space.page(object)?;
        let tag = page.mark().tag.load(Relaxed);
        if !is_of_heap(tag, self.tag) {
            return None;
        }
        let class = class_in(tag);
        if class == LARGE {
            return Some((page, 0, 1));
        }
        let granule = (object % HEAP_PAGE_BYTES) >> GRANULE_SHIFT;
        Some((page, granule / 64, 1 << (granule % 64)))
    }

    /// Lets the cache fetch the tag of the page at an address, and the mark there, if blocks are small.
    #[inline(always)]
    pub(super) fn fetch_mark(&self, address: usize) {
        if let Some(page) = self.space.page(address) {
            prefetch(&raw const *page.mark() as usize);
            let word = (address % HEAP_PAGE_BYTES) >> (GRANULE_SHIFT + u64::BITS.trailing_zeros());
            prefetch(&raw const page.remote()[word] as usize);
        }
    }

    pub(super) fn is_unswept(&self, tag: u32) -> bool {
        tag & CYCLE != self.cycle
    }

    fn live_bits(&self, page: Page, tag: u32, word: usize) -> u64 {
        let live = !page.vacant()[word].load(Relaxed);
        if self.is_unswept(tag) { live & page.remote()[word].load(Relaxed) } else { live }
    }

    /// Calls a function with every live object.
    pub(crate) fn each_live(&self, mut call: impl FnMut(usize)) {
        self.each_page(|page, class| {
            let tag = page.mark().tag.load(Relaxed);
            if class == LARGE {
                if self.live_bits(page, tag, 0) & 1 != 0 {
                    call(page.address());
                }
                return;
            }
            let shape = &SHAPES[class];
            for window in 0..WINDOWS {
                let mut bits = self.live_bits(page, tag, window) & shape.starts[window];
                while bits != 0 {
                    let granule = window * 64 + bits.trailing_zeros() as usize;
                    bits &= bits - 1;
                    call(page.address() + (granule << GRANULE_SHIFT));
                }
            }
        });
    }

    /// Calls a function with every marked object of a page.
    pub(crate) fn each_marked_in(&self, page: usize, mut call: impl FnMut(usize)) {
        let Some(page) = self.space.page(page) else { return };
        let class = class_in(page.mark().tag.load(Relaxed));
        if class == LARGE {
            if page.remote()[0].load(Relaxed) & 1 != 0 {
                call(page.address());
            }
            return;
        }
        let shape = &SHAPES[class];
        for window in 0..WINDOWS {
            let mut bits = page.remote()[window].load(Relaxed) & shape.starts[window];
            while bits != 0 {
                let granule = window * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                call(page.address() + (granule << GRANULE_SHIFT));
            }
        }
    }

    /// Adds the addresses of all pages to a list. Says no when there is no memory for it.
    pub(crate) fn pages_to(&self, list: &mut Vec<usize>) -> bool {
        let mut fits = true;
        self.each_page(|page, _| fits = fits && super::barrier::push(list, page.address(), usize::MAX));
        if !fits {
            list.clear();
        }
        fits
    }

    pub(super) fn each_page(&self, mut call: impl FnMut(Page, Class)) {
        for (class, bin) in self.bins.iter().enumerate() {
            bin.page.into_iter().for_each(|page| call(page, class));
            for list in [&bin.partial, &bin.full, &bin.unswept] {
                list.pages(self.space).for_each(|page| call(page, class));
            }
        }
        for list in [&self.large, &self.large_unswept] {
            list.pages(self.space).for_each(|page| call(page, LARGE));
        }
        for page in self.leaving.iter().flat_map(|leaving| leaving.pages.pages(self.space)) {
            call(page, class_in(page.mark().tag.load(Relaxed)));
        }
    }

    /// Recomputes what is kept. For the verifier.
    pub(crate) fn check(&self) -> Result<(), String> {
        let (mut held, mut used) = (self.spare_count * HEAP_PAGE_BYTES, 0);
        let mut problem = None;
        self.each_page(|page, class| {
            let tag = page.mark().tag.load(Relaxed);
            if tag & !(CYCLE | LEAVING) != self.tag | class as u32 {
                problem = Some(format!(
                    "the page at {:#x} is in a list of class {class} with tag {tag:#x}",
                    page.address()
                ));
            }
            if class == LARGE {
                let bytes = self.large_bytes(page.address());
                held += bytes;
                used += bytes;
                return;
            }
            held += HEAP_PAGE_BYTES;
            let shape = &SHAPES[class];
            for (window, starts) in shape.starts.iter().enumerate() {
                let occupied = !page.vacant()[window].load(Relaxed);
                let marks = page.remote()[window].load(Relaxed);
                if occupied & !starts != 0 || marks & !occupied != 0 {
                    problem = Some(format!(
                        "the bitmaps of the page at {:#x} contradict each other",
                        page.address()
                    ));
                }
                if marks != 0 && !self.black && !self.is_unswept(tag) {
                    problem = Some(format!("the swept page at {:#x} has marks", page.address()));
                }
                used += occupied.count_ones() as usize * shape.bytes as usize;
            }
        });
        match problem {
            Some(problem) => Err(problem),
            None if (held, used) != (self.held, self.used) => Err(format!(
                "the old generation counts {} bytes of pages and {} of objects; there are {held} and {used}",
                self.held, self.used
            )),
            None => Ok(()),
        }
    }
}

/// Whether two tags are of one heap.
#[inline(always)]
pub(super) fn is_of_heap(tag: u32, other: u32) -> bool {
    (tag ^ other) >> HEAP_SHIFT == 0
}

pub(super) fn class_in(tag: u32) -> Class {
    (tag & CLASS_BITS) as Class
}

//! The hardened preset: heaps that make the mistakes of a program harder to use against it.
//!
//! ```text
//!   allocate ─▶ refill ─▶ a free block, at random, of the page at hand       never a window
//!   free ─▶ free_far ─▶ zero it, vacant bit set ─▶ quarantine ─▶ summary, lists, release
//!                                       (a second free is found)   32 frees of its class later
//!   page run, large block   ├─ what was asked for ─┤ rest of the OS page ├─ guard: no access ─┤
//! ```
//!
//! Terms: a block in *quarantine* was freed and is not handed out yet. A *guard* is the inaccessible end of a
//! page run or large block.
//!
//! A hardened heap has the same pages and bitmaps as any other, and the same checks. It never uses the fast
//! paths: it does not learn where the first region is, so every free comes to [`Own::free_at`](Own), and it
//! opens no window, so every request comes to `refill`.
//!
//! Invariants:
//! * A block in quarantine has its bit in `vacant`. For summaries and lists, and for releasing pages, it is as
//!   if it were live.
//! * What is handed out is zero but for what the system has not cleared: everything is cleared when it is
//!   freed, by the owner of the page.
//! * The first page of a run or large block of a hardened heap has the tag of its heap and class `RUN`, and in
//!   its bitmap how many bytes may be used.
//! * A heap is hardened for good: it is adopted as such only.

use super::class::{CLASSES, Class, GRANULE_SHIFT, MAX_BLOCK, SHAPES};
use super::heap::{Heap, Own, Place, Shared};
use super::mistake::Mistake;
use super::pages::Fresh;
use super::runs::bytes_of;
use super::space::{Page, Source, Space, map_metadata};
use super::tag::RUN;
use crate::arena::{Arenas, HEAP_PAGE_BYTES, Made};
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use hugeheap_os::{AddressRange, Facts, Os, Pages, Protection};

/// Blocks of a class that are freed before a freed one may be handed out. A use after free that comes within 32
/// frees of the class meets zeroes, not another object.
pub(super) const QUARANTINE: usize = 32;

/// The word of the first page's bitmap with the bytes that may be used of a run or large block of a hardened
/// heap; 0 for runs of other heaps. (The first word has the bit that the run is live.)
pub(super) const BYTES_WORD: usize = 1;

/// The word that is 1 when a guard follows those bytes.
const GUARD_WORD: usize = 2;

/// Guards at once, at most. Each takes two of a process's mappings, of which Linux allows 65,530 unless
/// configured otherwise (`vm.max_map_count`); half are left for all else. With as many guards as the system
/// allowed the next arena could not be made writable, nor had the C library a mapping: a program with 33,000
/// strings of 20,000 bytes had no memory any more.
pub(super) const GUARDS: usize = 16 << 10;

/// What a hardened heap has besides: in a mapping of its own, because other heaps have no use for its 12 KiB.
pub(crate) struct Preset {
    /// State of the generator, never 0.
    random: u64,
    quarantine: [Ring; CLASSES],
}

/// Addresses of blocks, a ring; 0: none yet.
#[derive(Clone, Copy)]
struct Ring {
    blocks: [usize; QUARANTINE],
    /// Where the oldest is.
    next: usize,
}

impl Ring {
    /// Puts a block in and takes the oldest out; 0: none.
    fn exchange(&mut self, address: usize) -> usize {
        let oldest = core::mem::replace(&mut self.blocks[self.next], address);
        self.next = (self.next + 1) % QUARANTINE;
        oldest
    }
}

impl Preset {
    /// A number below `bound`, which is at most 64: the remainder's bias is below 2⁻²⁶.
    fn random(&mut self, bound: u32) -> u32 {
        // xorshift64*: three shifts and a multiplication. Who sees many addresses can compute the next ones; a
        // stronger generator would not help, because the addresses themselves tell which blocks of a page are
        // left.
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32 % bound
    }

    /// One of the bits that are set.
    fn pick(&mut self, mut bits: u64) -> usize {
        for _ in 0..self.random(bits.count_ones()) {
            bits &= bits - 1;
        }
        bits.trailing_zeros() as usize
    }
}

/// A seed that another process does not know.
fn seed() -> u64 {
    let mut seed = 0_u64;
    // SAFETY: a buffer of eight bytes. Without waiting: early at boot there may be no entropy yet.
    let got = unsafe { libc::getrandom((&raw mut seed).cast(), size_of::<u64>(), libc::GRND_NONBLOCK) };
    if got != size_of::<u64>() as isize {
        // SAFETY: the kernel gives every program sixteen random bytes, or none: 0.
        let bytes = unsafe { libc::getauxval(libc::AT_RANDOM) } as *const u64;
        // SAFETY: as above; aligned or not.
        seed = if bytes.is_null() { 0 } else { unsafe { bytes.read_unaligned() } };
        // Two heaps of a process differ by where this stands on the stack of their threads.
        seed ^= &raw const seed as u64;
    }
    seed | 1
}

impl<S: Source> Space<S> {
    /// A hardened heap: one that waits for an owner, else a new one. `None` when the system has no memory for
    /// its metadata.
    pub fn acquire_hardened(&'static self) -> Option<Heap<S>> {
        self.acquire_as(true, super::registry::OWNED)
    }

    /// The state of a new hardened heap.
    pub(super) fn make_preset(&self) -> Option<NonNull<Preset>> {
        let range = map_metadata(self.source().os(), size_of::<Preset>())?;
        let preset = NonNull::new(range.start as *mut Preset)?;
        self.add_metadata(size_of::<Preset>());
        // SAFETY: fresh, zeroed memory, large and aligned enough, and nobody else's; zero is a valid value of
        // all fields.
        unsafe { (*preset.as_ptr()).random = seed() };
        Some(preset)
    }

    /// Whether a request of `bytes` bytes can have got the live run or large block that begins at a page with
    /// the tag of one: it would have the same pages.
    pub(super) fn fits_run(&self, page: Page, bytes: usize) -> bool {
        let have = bytes_of(page);
        if is_guarded(page) {
            return bytes > MAX_BLOCK && bytes.checked_next_multiple_of(self.guard_bytes()) == Some(have);
        }
        super::pages::fits_pages(have, bytes)
    }

    /// Bytes of the shortest guard.
    fn guard_bytes(&self) -> usize {
        // Asked for once: the answer comes with that for huge pages, which is read from /sys and took 27 of 32 µs
        // of a page run.
        let os_page = &self.registry.os_page;
        if os_page.load(Ordering::Relaxed) == 0 {
            os_page.store(self.source().os().os_page(), Ordering::Relaxed);
        }
        os_page.load(Ordering::Relaxed)
    }

    /// Makes the run or large block that begins at a page as it was before it was guarded, and zero. Says no
    /// when the system cannot: then nobody may get that memory.
    pub(super) fn clear_run(&self, page: Page) -> bool {
        let Ok(bytes) = self.whole_bytes(page.address()) else { return false };
        let used = page.vacant()[BYTES_WORD].load(Ordering::Relaxed) as usize;
        if page.vacant()[GUARD_WORD].load(Ordering::Relaxed) != 0 {
            let range = AddressRange { start: page.address() + used, len: bytes - used };
            // SAFETY: the end of a mapped run that is being freed, which nobody uses.
            if unsafe { self.source().os().protect(range, Protection::ReadWrite) }.is_err() {
                return false;
            }
            page.vacant()[GUARD_WORD].store(0, Ordering::Relaxed);
            self.registry.guards.fetch_sub(1, Ordering::Relaxed);
        }
        // SAFETY: as above.
        unsafe { (page.address() as *mut u8).write_bytes(0, used) };
        true
    }

    /// Takes access to a range away, unless there are guards enough or the system refuses.
    ///
    /// # Safety
    /// Nobody uses the range.
    unsafe fn make_guard(&self, range: AddressRange) -> bool {
        let guards = &self.registry.guards;
        // SAFETY: by the contract.
        let made = guards.fetch_add(1, Ordering::Relaxed) < GUARDS
            && unsafe { self.source().os().protect(range, Protection::None) }.is_ok();
        if !made {
            guards.fetch_sub(1, Ordering::Relaxed);
        }
        made
    }

    /// Bytes of what the arenas have at `address`, guard included.
    fn whole_bytes(&self, address: usize) -> Result<usize, Mistake> {
        // To an OS page, because the last page of a large block is used in part.
        Ok(self.pages_bytes(address)?.next_multiple_of(self.guard_bytes()))
    }
}

/// Whether a run or large block, which begins at that page, is one of a hardened heap.
pub(super) fn is_guarded(page: Page) -> bool {
    page.vacant()[BYTES_WORD].load(Ordering::Relaxed) != 0
}

impl<O: Os> Arenas<O> {
    /// Whether what begins at `address` is on pages of a hugetlb pool, access to which is changed as a whole only.
    fn is_hugetlb(&self, address: usize) -> bool {
        self.table.find(address).is_some_and(|id| self.arena(id).made == Made::Hugetlb)
    }
}

impl<S: Source> Heap<S> {
    /// Whether it is hardened.
    pub fn is_hardened(&mut self) -> bool {
        self.own().preset.is_some()
    }

    /// Memory for a request that gets no block.
    pub(super) fn allocate_fresh(&mut self, bytes: usize, whole: bool) -> Option<Fresh> {
        if self.is_hardened() {
            return self.allocate_guarded(bytes, whole);
        }
        self.ask(|space| space.allocate_fresh(bytes, whole))
    }

    /// A page run or large block with a guard, where the backing allows one: hugetlb pages are not protected in part.
    fn allocate_guarded(&mut self, bytes: usize, whole: bool) -> Option<Fresh> {
        let _busy = self.busy();
        let own = self.own();
        let space = own.space;
        let os_page = space.guard_bytes();
        let usable = bytes.max(super::MAX_BLOCK + 1).checked_next_multiple_of(os_page)?;
        let fresh = space.allocate_fresh(usable.checked_add(os_page)?, whole)?;
        let start = fresh.address.as_ptr() as usize;
        let Some(page) = space.page_or_add(start) else {
            // Without metadata nobody would know of the guard.
            let freed = space.free_pages(start);
            debug_assert!(freed.is_ok(), "just allocated");
            return None;
        };
        let end = start + space.whole_bytes(start).ok()?;
        let guard = AddressRange { start: start + usable, len: end - start - usable };
        // An OS page larger than a heap page: the run may begin in the middle of one.
        let aligned = guard.start % os_page == 0 && guard.len % os_page == 0;
        let divisible = aligned && !space.source().with(|arenas| arenas.is_hugetlb(start));
        // SAFETY: the end of a run that was just taken, and that nobody was told of.
        let guarded = divisible && unsafe { space.make_guard(guard) };
        page.vacant()[0].store(0, Ordering::Relaxed);
        page.vacant()[BYTES_WORD].store(usable as u64, Ordering::Relaxed);
        page.vacant()[GUARD_WORD].store(u64::from(guarded), Ordering::Relaxed);
        page.mark().tag.store(own.tag_of(RUN), Ordering::Release);
        Some(fresh)
    }
}

impl<S: Source> Own<S> {
    /// The state of a hardened heap.
    fn preset(&mut self) -> Option<&mut Preset> {
        // SAFETY: the mapping is never given back, and is reached through its heap's owner only, who has it
        // exclusively here.
        self.preset.map(|preset| unsafe { &mut *preset.as_ptr() })
    }

    /// Bits of blocks in quarantine in the window that begins at `base`.
    pub(super) fn quarantined(&self, class: Class, base: usize) -> u64 {
        let Some(preset) = self.preset else { return 0 };
        // SAFETY: as in `preset`; shared here.
        let ring = unsafe { &(*preset.as_ptr()).quarantine[class] };
        ring.blocks.iter().fold(0, |bits, &block| {
            let granule = block.wrapping_sub(base) >> GRANULE_SHIFT;
            if granule < 64 { bits | 1 << granule } else { bits }
        })
    }

    /// Whether a block of a page is in quarantine: the page has to stay.
    pub(super) fn is_quarantined(&self, page: Page, class: Class) -> bool {
        let Some(preset) = self.preset else { return false };
        // SAFETY: as in `quarantined`.
        let ring = unsafe { &(*preset.as_ptr()).quarantine[class] };
        ring.blocks.iter().any(|&block| block.wrapping_sub(page.address()) < HEAP_PAGE_BYTES)
    }

    /// A random free block. `None` when the system has no memory.
    pub(super) fn refill_hardened(&mut self, shared: &Shared, class: Class) -> Option<usize> {
        loop {
            let look = self.space.begin_look();
            if shared.inbox.first.load(Ordering::Relaxed) != 0 {
                self.collect(shared);
            }
            if let Some(address) = self.take_random(class) {
                return Some(address);
            }
            // Used up; what is collected or leaves the quarantine from here on puts it into a list.
            self.leave_page(class);
            if !self.next_page(class) && !self.new_page(class) {
                // What had to wait because its arena was closed, and the blocks in quarantine, are better than none.
                let more = self.collect_queues() || self.end_quarantine(class);
                if !more && !self.space.may_have_missed(look) {
                    return None;
                }
            }
        }
    }

    /// A random free block of a random window of the page at hand, if it has one.
    fn take_random(&mut self, class: Class) -> Option<usize> {
        let page = self.space.page(self.bins[class].page)?;
        let shape = &SHAPES[class];
        loop {
            let windows = page.mark().free();
            if windows == 0 {
                return None;
            }
            let window = self.preset()?.pick(u64::from(windows));
            let base = page.address() + (window << (GRANULE_SHIFT + 6));
            let word = &page.vacant()[window];
            let vacant = word.load(Ordering::Relaxed);
            let free = vacant & shape.starts[window] & !self.quarantined(class, base);
            if free == 0 {
                page.mark().remove_free(window);
                continue;
            }
            let bit = self.preset()?.pick(free);
            word.store(vacant & !(1 << bit), Ordering::Relaxed);
            page.mark().add_live(1);
            return Some(base + (bit << GRANULE_SHIFT));
        }
    }

    /// Frees blocks of one window into the quarantine; says no, with nothing changed, if one of them is not live.
    pub(super) fn free_hardened(&mut self, page: Page, place: &Place) -> bool {
        let shape = &SHAPES[place.class];
        let word = &page.vacant()[place.window];
        let was = word.load(Ordering::Relaxed);
        if was & place.bits != 0 {
            return false;
        }
        let base = page.address() + (place.window << (GRANULE_SHIFT + 6));
        let mut bits = place.bits;
        while bits != 0 {
            let address = base + ((bits.trailing_zeros() as usize) << GRANULE_SHIFT);
            // SAFETY: a live block of this heap, which its user gave up.
            unsafe { (address as *mut u8).write_bytes(0, shape.bytes as usize) };
            bits &= bits - 1;
        }
        word.store(was | place.bits, Ordering::Relaxed);
        page.mark().remove_live(place.bits.count_ones());
        let mut bits = place.bits;
        while bits != 0 {
            let address = base + ((bits.trailing_zeros() as usize) << GRANULE_SHIFT);
            self.exchange(place.class, address);
            bits &= bits - 1;
        }
        true
    }

    /// Puts a block (0: none) into the quarantine of its class, and lets the oldest one out. Says whether there
    /// was one.
    fn exchange(&mut self, class: Class, address: usize) -> bool {
        let Some(preset) = self.preset() else { return false };
        let oldest = preset.quarantine[class].exchange(address);
        let Some(page) = self.space.page(oldest) else { return false };
        page.mark().add_free((oldest - page.address()) >> (GRANULE_SHIFT + 6));
        self.list_or_release(page, class);
        true
    }

    /// Lets all blocks of a class out. Says whether there was one.
    pub(super) fn end_quarantine(&mut self, class: Class) -> bool {
        // Not the other way round: all of them come out.
        self.preset.is_some() && (0..QUARANTINE).fold(false, |any, _| self.exchange(class, 0) | any)
    }
}

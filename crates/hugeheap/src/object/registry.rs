//! All heaps over a source, who owns them, and what happens to those whose owner is gone.
//!
//! ```text
//!            acquire                    drop of the handle, end of the thread (Leaving)
//!   (new) ───────────▶ Owned, Thread ──────────────────────▶ Waiting
//!                        ▲          acquire: adopted            │ ▲
//!                        └──────────────────────────────────────┤ │ done
//!                                                                ▼ │
//!   Lost ◀── a fork left it in the middle of a change          Visited: by a thread that freed in it
//! ```
//!
//! A heap is never destroyed: its live blocks belong to the program. A thread that ends leaves its heap *waiting*;
//! the next thread that needs one adopts it with everything in it. A thread that frees in a waiting heap [does
//! what its owner would](super::ownerless), so that memory does not stay because nobody came.
//!
//! A thread that has left its heap may take another: a destructor allocates. If that was the last one to be
//! called, nobody leaves this heap. So it is noted as *late*, and whoever would make a heap looks first whether
//! the threads of late ones are gone. All heaps of threads are late where the C library has no key to be told
//! by that a thread ends; so not all late ones are asked for each time, but [`ASKED`] of them, in turn.
//!
//! After a fork the child has one thread. The heaps that belong to the others are waiting there (one that is
//! owned by a handle may be the forking thread's, and stays owned), unless they were in the middle of a change
//! of their lists at that moment: those are *lost*, their live blocks stay valid, but their free ones are never
//! used again.

use super::apart::Apart;
use super::heap::{Core, FIRST_BATCH, Heap, Inbox, Own, Shared, Turn};
use super::remote;
use super::space::{Page, Source, Space, map_metadata};
use super::tag;
use super::visit::Visits;
use crate::lock::Lock;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

/// States of a heap.
pub(super) const WAITING: u32 = 0;
pub(super) const OWNED: u32 = 1;
pub(super) const VISITED: u32 = 2;
pub(super) const LOST: u32 = 3;
/// Owned by a thread through its slot, not by a handle: from the moment on at which it is made or adopted.
pub(super) const THREAD: u32 = 4;
/// As before, by a thread that ends: nobody visits it any more.
pub(super) const LEAVING: u32 = 5;

/// Heaps of a table, the first of which is no heap: number 0 means none. A thread has one; 65,535 threads at a time.
const HEAPS: usize = 1 << 16;

const _: () = assert!(tag::heap(tag::tag(HEAPS as u32 - 1, 0)) == HEAPS as u32 - 1);

/// Late heaps of which the system is asked, at most, when one is wanted, a system call each. With more of them
/// than one in so many whose thread is gone, one is found each time.
const ASKED: usize = 64;

/// Heaps made from one mapping.
const CHUNK: usize = 8;

/// The waiting heaps of a kind. With one count for both a single heap of the other kind had each acquisition
/// look at all heaps; and with each search from the first heap on, to take heaps that waited was quadratic:
/// 65,534 of them took 2 min 19 s.
pub(super) struct Waiting {
    /// Heaps that may be waiting.
    pub(super) count: AtomicUsize,
    /// Where the search begins: at the heap that was left last, and after it was taken at the next one.
    from: AtomicU32,
}

impl Waiting {
    const fn none() -> Self {
        Self { count: AtomicUsize::new(0), from: AtomicU32::new(1) }
    }

    #[cfg(test)]
    pub(super) fn from(&self) -> u32 {
        self.from.load(Ordering::Relaxed)
    }
}

/// The heaps of a [`Space`].
pub(super) struct Registry {
    /// One pointer per heap, in a mapping of its own.
    table: AtomicPtr<AtomicPtr<u8>>,
    /// Heaps made, and one.
    count: AtomicUsize,
    /// What `acquire` looks for, of ordinary heaps and of hardened ones.
    pub(super) waiting: [Waiting; 2],
    /// Heaps that are lost.
    lost: AtomicUsize,
    /// Heaps that are late.
    pub(super) late: AtomicUsize,
    /// The late heap that was asked for last.
    asked: AtomicU32,
    /// Bytes of an OS page, once a hardened heap asked for them; 0 before.
    pub(super) os_page: AtomicUsize,
    /// Guards behind page runs and large blocks of hardened heaps.
    pub(super) guards: AtomicUsize,
    /// Held while heaps are made: the room that is left in the last mapping.
    making: Lock<(usize, usize)>,
    pub(super) visits: Visits,
    /// The arena of which no page is brought to hand; 0: none. See `vacate`.
    pub(super) closed: AtomicUsize,
    /// OS pages count that can be made alike. See `vacancy`.
    pub(super) merges: AtomicBool,
    /// How often an arena was opened again.
    pub(super) openings: AtomicUsize,
    /// A heap that waits was left with pages that lie in an arena that was closed.
    pub(super) left_behind: AtomicBool,
}

impl Registry {
    pub(super) const fn new() -> Self {
        Self {
            table: AtomicPtr::new(core::ptr::null_mut()),
            count: AtomicUsize::new(1),
            waiting: [const { Waiting::none() }; 2],
            lost: AtomicUsize::new(0),
            late: AtomicUsize::new(0),
            asked: AtomicU32::new(0),
            os_page: AtomicUsize::new(0),
            guards: AtomicUsize::new(0),
            making: Lock::new((0, 0)),
            visits: Visits::new(),
            closed: AtomicUsize::new(0),
            merges: AtomicBool::new(false),
            openings: AtomicUsize::new(0),
            left_behind: AtomicBool::new(false),
        }
    }

    fn slot(&self, number: u32) -> Option<&AtomicPtr<u8>> {
        let table = self.table.load(Ordering::Acquire);
        if table.is_null() || number as usize >= HEAPS {
            return None;
        }
        // SAFETY: the table has HEAPS zeroed elements and is never unmapped.
        Some(unsafe { &*table.add(number as usize) })
    }

    pub(super) fn core<S: Source>(&self, number: u32) -> Option<NonNull<Core<S>>> {
        NonNull::new(self.slot(number)?.load(Ordering::Acquire).cast())
    }

    /// What other threads reach of heap `number`.
    pub(super) fn shared<S: Source>(&self, number: u32) -> Option<&'static Shared> {
        // SAFETY: cores are never unmapped; nobody has an exclusive reference to `shared`.
        self.core::<S>(number).map(|core| unsafe { &(*core.as_ptr()).shared })
    }

    /// The waiting heaps of a kind.
    pub(super) fn waiting(&self, hardened: bool) -> &Waiting {
        &self.waiting[usize::from(hardened)]
    }

    /// Numbers of all heaps.
    pub(super) fn numbers(&self) -> core::ops::Range<u32> {
        1..self.count.load(Ordering::Acquire) as u32
    }

    /// The same, beginning at one of them, or at the first after the last.
    pub(super) fn numbers_from(&self, from: u32) -> impl Iterator<Item = u32> + use<> {
        let numbers = self.numbers();
        let from = if numbers.contains(&from) { from } else { numbers.start };
        (from..numbers.end).chain(numbers.start..from)
    }
}

impl<S: Source> Space<S> {
    /// A heap: one that waits for an owner, else a new one. `None` when the system has no memory for its metadata.
    /// It is [hardened](Self::acquire_hardened) where the source asks for that.
    pub fn acquire(&'static self) -> Option<Heap<S>> {
        self.acquire_as(self.source().hardened(), OWNED)
    }

    /// The same for a thread and for nobody else. In a forked child, where the thread is missing, it waits for
    /// an owner. A heap that was acquired by hand may be the forking thread's: it stays as it is.
    pub(super) fn acquire_for_thread(&'static self) -> Option<Heap<S>> {
        let mut heap = self.acquire_as(self.source().hardened(), THREAD)?;
        if heap.number() > 1 {
            self.source().with(|arenas| arenas.gained_threads());
        }
        heap.group();
        Some(heap)
    }

    /// The same for a thread, of that number with the system, that has left a heap.
    pub(super) fn acquire_late(&'static self, thread: u32) -> Option<Heap<S>> {
        let heap = self.acquire_for_thread()?;
        self.note_late(&heap, thread);
        Some(heap)
    }

    /// A heap of the calling thread, of that number with the system, may be left by nobody.
    pub(super) fn note_late(&self, heap: &Heap<S>, thread: u32) {
        if heap.shared().late.swap(thread, Ordering::AcqRel) == 0 {
            self.registry.late.fetch_add(1, Ordering::AcqRel);
        }
    }

    pub(super) fn acquire_as(&'static self, hardened: bool, state: u32) -> Option<Heap<S>> {
        self.source().begin();
        let waiting = self.registry.waiting(hardened);
        if waiting.count.load(Ordering::Acquire) > 0 {
            let fits = |number: &u32| self.is_hardened(*number) == hardened;
            let from = waiting.from.load(Ordering::Relaxed);
            let adopted = self.registry.numbers_from(from).filter(fits).find_map(|number| {
                let claimed = self.claim(number, state)?;
                waiting.from.store(number + 1, Ordering::Relaxed);
                Some(claimed)
            });
            if adopted.is_some() {
                return adopted;
            }
        }
        if self.registry.late.load(Ordering::Acquire) > 0 {
            let fits = |number: &u32| {
                let shared = self.registry.shared::<S>(*number);
                shared.is_some_and(|shared| {
                    shared.hardened == hardened && shared.late.load(Ordering::Relaxed) != 0
                })
            };
            let from = self.registry.asked.load(Ordering::Relaxed) + 1;
            let adopted = self.registry.numbers_from(from).filter(fits).take(ASKED).find_map(|number| {
                self.registry.asked.store(number, Ordering::Relaxed);
                self.adopt_late(number, state)
            });
            if adopted.is_some() {
                return adopted;
            }
        }
        self.make_heap(hardened, state)
    }

    /// Takes a late heap over, if its thread is gone.
    fn adopt_late(&'static self, number: u32, state: u32) -> Option<Heap<S>> {
        let core = self.registry.core::<S>(number)?;
        let shared = self.registry.shared::<S>(number)?;
        let thread = shared.late.load(Ordering::Acquire);
        if thread == 0 || !self.source().is_gone(thread) {
            return None;
        }
        // Not waited for: who is visiting may have been told to by what wants a heap here.
        let _visiting = self.registry.visits.try_lock()?;
        // One of those who look at it gets it.
        shared.late.compare_exchange(thread, 0, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        self.registry.late.fetch_sub(1, Ordering::AcqRel);
        shared.state.store(state, Ordering::SeqCst);
        Some(Heap { core })
    }

    /// Heaps that somebody owns. Others may acquire and leave some meanwhile.
    pub fn heaps_in_use(&self) -> usize {
        let made = self.registry.count.load(Ordering::Relaxed) - 1;
        let waiting = self.registry.waiting.iter().map(|waiting| waiting.count.load(Ordering::Relaxed));
        let idle = waiting.sum::<usize>() + self.registry.lost.load(Ordering::Relaxed);
        made.saturating_sub(idle)
    }

    /// Whether heap `number` is a hardened one.
    pub(super) fn is_hardened(&self, number: u32) -> bool {
        self.registry.shared::<S>(number).is_some_and(|shared| shared.hardened)
    }

    /// Takes a waiting heap into another state.
    pub(super) fn claim(&self, number: u32, state: u32) -> Option<Heap<S>> {
        let core = self.registry.core::<S>(number)?;
        let shared = self.registry.shared::<S>(number)?;
        shared.state.compare_exchange(WAITING, state, Ordering::SeqCst, Ordering::Relaxed).ok()?;
        self.registry.waiting(shared.hardened).count.fetch_sub(1, Ordering::AcqRel);
        Some(Heap { core })
    }

    /// A new heap. Apart, so that taking one over that waits needs no stack for it.
    #[inline(never)]
    fn make_heap(&'static self, hardened: bool, state: u32) -> Option<Heap<S>> {
        self.reserve_beside();
        let mut making = self.registry.making.lock();
        let number = self.registry.count.load(Ordering::Relaxed);
        if number == HEAPS {
            return None;
        }
        if self.registry.table.load(Ordering::Relaxed).is_null() {
            let table = map_metadata(self.source().os(), HEAPS * size_of::<AtomicPtr<u8>>())?;
            self.registry.table.store(table.start as *mut AtomicPtr<u8>, Ordering::Release);
        }
        let bytes = size_of::<Core<S>>().next_multiple_of(align_of::<Core<S>>());
        if making.1 < bytes {
            let chunk = map_metadata(self.source().os(), CHUNK * bytes)?;
            *making = (chunk.start, chunk.len);
        }
        let preset = if hardened { Some(self.make_preset()?) } else { None };
        let core = making.0 as *mut Core<S>;
        *making = (making.0 + bytes, making.1 - bytes);
        // SAFETY: fresh memory of the chunk, zero and aligned (chunks begin at 64 KiB and cores follow each
        // other), given to nobody else.
        unsafe {
            let places = Core::places_of(core);
            Own::make_at(&raw mut (*core).own, self, number as u32, preset, places);
            (&raw mut (*core).shared).write(Shared::new(state, hardened));
        }
        // That of rings when they get it.
        self.add_metadata(Core::<S>::USED);
        let slot = self.registry.slot(number as u32)?;
        slot.store(core.cast(), Ordering::Release);
        self.registry.count.store(number + 1, Ordering::Release);
        Some(Heap { core: NonNull::new(core)? })
    }

    /// In a forked child: the heaps of threads that do not exist here. `own`: the heaps that are still owned.
    pub(crate) fn after_fork_in_child(&self, own: &[Option<u32>]) {
        // First, while it still says whose heaps these are.
        for number in self.registry.numbers().filter(|&number| !own.contains(&Some(number))) {
            self.finish_announcement(number);
        }
        self.finish_vacating();
        // Counted anew: a missing thread may have changed a heap's state and not the count yet, or the other way round.
        let (mut waiting, mut lost) = ([0; 2], 0);
        for number in self.registry.numbers() {
            let Some(shared) = self.registry.shared::<S>(number) else { continue };
            let mut state = shared.state.load(Ordering::Relaxed);
            if !own.contains(&Some(number)) && matches!(state, THREAD | LEAVING | VISITED) {
                let changing = shared.turn.busy.load(Ordering::Relaxed) != 0 || state == VISITED;
                state = if changing { LOST } else { WAITING };
                shared.state.store(state, Ordering::Relaxed);
                // What is kept is whole, wherever its owner was.
                shared.turn.keeping.store(0, Ordering::Relaxed);
                // Nobody trimmed it before it waited.
                shared.quarantined.store(u32::from(shared.hardened), Ordering::Relaxed);
                shared.seen.store(0, Ordering::Relaxed);
            }
            self.recount_handed(shared);
            waiting[usize::from(shared.hardened)] += usize::from(state == WAITING);
            lost += usize::from(state == LOST);
            // The thread that forked has another number in the child.
            shared.late.store(0, Ordering::Relaxed);
        }
        self.registry.late.store(0, Ordering::Relaxed);
        // A missing thread may have been about to see to that.
        self.registry.left_behind.store(true, Ordering::Relaxed);
        for (kind, count) in self.registry.waiting.iter().zip(waiting) {
            kind.count.store(count, Ordering::Relaxed);
        }
        self.registry.lost.store(lost, Ordering::Relaxed);
    }

    /// In a forked child: puts the page that the missing owner of a heap was announcing into the inbox it was
    /// for, unless it got there. A page that is pending and in no inbox is collected by nobody: what others
    /// free there afterwards would be lost, and the page with it.
    fn finish_announcement(&self, number: u32) {
        let Some(core) = self.registry.core::<S>(number) else { return };
        // SAFETY: cores are never unmapped; the owner does not exist in this process, and an atomic can be read
        // whatever it was doing.
        let address = unsafe { (*core.as_ptr()).own.announcing.swap(0, Ordering::Relaxed) };
        if let Some(page) = self.page(address) {
            self.finish_announcement_of(page);
        }
    }

    /// The same for a page that is known.
    pub(super) fn finish_announcement_of(&self, page: Page) {
        let tag = page.tag();
        let Some(shared) = self.registry.shared::<S>(tag::heap(tag)) else { return };
        if !tag::is_pending(tag) || self.is_in_inbox(page, tag::heap(tag)) {
            return;
        }
        remote::push(&shared.inbox.first, page.address(), &page.links().inbox);
    }

    /// In a forked child: whether a pending page is in the inbox of its heap, or in a queue that its owner
    /// sorted the inbox into.
    fn is_in_inbox(&self, page: Page, number: u32) -> bool {
        let Some(core) = self.registry.core::<S>(number) else { return false };
        // SAFETY: as above. The queues are the owner's: read only where it is not in the middle of changing
        // them, which `busy` tells; then the heap is lost anyway.
        let (own, shared) = unsafe { (&raw const (*core.as_ptr()).own, &(*core.as_ptr()).shared) };
        let first = shared.inbox.first.load(Ordering::Relaxed);
        let mut listed = core::iter::successors(self.page(first), |page| {
            self.page(page.links().inbox.load(Ordering::Relaxed))
        });
        if listed.any(|other| other.address() == page.address()) {
            return true;
        }
        // SAFETY: as above.
        shared.turn.busy.load(Ordering::Relaxed) != 0
            || unsafe { &*own }.queued_pages().any(|other| other.address() == page.address())
    }

    /// Before a fork: keeps the locks of this layer, so that the child finds them free.
    pub(crate) fn lock_for_fork(&self) {
        self.registry.making.lock_first().keep_over_fork();
        self.lock_regions();
    }

    /// After a fork, in parent and child.
    ///
    /// # Safety
    /// [`lock_for_fork`](Self::lock_for_fork) was called by this thread, or by the one that forked this process.
    pub(crate) unsafe fn unlock_after_fork(&self) {
        // SAFETY: by the contract above.
        unsafe {
            self.unlock_regions();
            self.registry.making.unlock_leaked();
        }
    }
}

impl<S: Source> Heap<S> {
    /// The heap's number, by which [`Space::visit`] and walks know it.
    pub fn number(&mut self) -> u32 {
        tag::heap(self.own().tag)
    }

    pub(super) fn collect_all(&mut self) {
        let _busy = self.busy();
        let core = self.core;
        // SAFETY: two fields, and `&mut self` makes this the only use of `own`.
        let (own, shared) = unsafe { (&mut (*core.as_ptr()).own, &(*core.as_ptr()).shared) };
        own.collect(shared);
    }

    /// Makes the heap wait for another owner, and sees to what came meanwhile.
    pub(super) fn leave(&mut self) {
        let (number, space) = (self.number(), self.own().space);
        let shared = self.shared();
        if shared.late.swap(0, Ordering::AcqRel) != 0 {
            space.registry.late.fetch_sub(1, Ordering::AcqRel);
        }
        // Nobody begins to collect for an idle owner here from now on.
        shared.state.store(LEAVING, Ordering::SeqCst);
        if shared.hardened {
            // It was trimmed. What was seen when it waited before is of no meaning any more.
            shared.quarantined.store(0, Ordering::Relaxed);
            shared.seen.store(0, Ordering::Relaxed);
        }
        space.registry.waiting(shared.hardened).from.store(number, Ordering::Relaxed);
        if self.wait() {
            space.collect_ownerless(number);
        }
    }

    /// Gives back what the heap keeps without live blocks. Returns the bytes given back to the arenas.
    pub fn trim(&mut self) -> usize {
        let _busy = self.busy();
        let core = self.core;
        // SAFETY: as in `collect_all`.
        let (own, shared) = unsafe { (&mut (*core.as_ptr()).own, &(*core.as_ptr()).shared) };
        own.trim(shared) * crate::arena::HEAP_PAGE_BYTES
    }
}

impl Shared {
    fn new(state: u32, hardened: bool) -> Self {
        Self {
            state: AtomicU32::new(state),
            late: AtomicU32::new(0),
            hardened,
            turn: Apart(Turn {
                busy: AtomicU32::new(0),
                keeping: AtomicU32::new(0),
                held: AtomicU32::new(0),
            }),
            seen: AtomicU32::new(0),
            quarantined: AtomicU32::new(0),
            inbox: Apart(Inbox {
                first: AtomicUsize::new(0),
                announced: AtomicU32::new(0),
                vacant: AtomicU32::new(0),
                runs: AtomicUsize::new(0),
                run_pages: AtomicU32::new(0),
            }),
        }
    }
}

impl<S: Source> Drop for Heap<S> {
    fn drop(&mut self) {
        // All it keeps for itself: the next owner may come late, or never.
        self.trim();
        // The next one begins like the first. While it went on with as many pages as this one had come to take,
        // a program that gave each request a heap of one block had 750 MiB instead of 46 when its heaps had
        // been used ten times.
        self.own().batch = FIRST_BATCH;
        self.own().ungroup();
        self.leave();
    }
}

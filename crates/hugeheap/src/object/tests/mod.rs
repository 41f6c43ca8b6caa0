//! What heaps of blocks promise, on the simulated kernel: one test per promise, one file per part.
//!
//! A [`World`] is a process of its own: a simulated kernel, arenas on it, all metadata, and as many heaps as a
//! test acquires.

mod blocks;
mod checks;
mod exhausted;
mod few;
mod forks;
mod found;
mod freed_in_order;
mod growing;
mod hardened;
mod headers;
mod idle;
mod limits;
mod merging;
mod order;
mod regions;
mod resized;
mod resizing;
mod runs;
mod span_vacancy;
mod spans;
mod spares;
mod split_units;
mod threads;
mod turns;
mod unused;
mod vacate;
mod vacate_at_hand;
mod visits;
mod waiting;
mod walk;

use super::*;
use crate::arena::{Arenas, HEAP_PAGE_BYTES, Settings};
use crate::lock::Lock;
use core::ptr::NonNull;
use hugeheap_os::simulated::{Config, Kernel};
use std::collections::BTreeMap;

/// Bytes of a region: large enough that no test but those of several regions needs a second one.
const REGION: usize = 64 << 20;

/// Arenas on a simulated kernel, behind a lock.
pub(crate) struct World {
    pub(crate) arenas: Lock<Arenas<Kernel>>,
    pub(crate) kernel: Kernel,
    /// What happens when the arenas are asked the next time.
    when_asked: Lock<Option<Box<dyn FnOnce() + Send>>>,
}

impl World {
    fn when_asked(&self, happens: impl FnOnce() + Send + 'static) {
        *self.when_asked.lock() = Some(Box::new(happens));
    }

    /// Whether they were asked since.
    fn asked(&self) -> bool {
        self.when_asked.lock().is_none()
    }
}

impl Source for World {
    type Os = Kernel;
    fn with<R>(&'static self, work: impl FnOnce(&mut Arenas<Kernel>) -> R) -> R {
        let happens = self.when_asked.lock().take();
        if let Some(happens) = happens {
            happens();
        }
        work(&mut self.arenas.lock())
    }
    fn read<R>(&'static self, read: impl FnOnce(&Arenas<Kernel>) -> R) -> R {
        read(&self.arenas.lock())
    }
    fn is_gone(&self, thread: u32) -> bool {
        thread == GONE
    }
    fn os(&self) -> &Kernel {
        &self.kernel
    }
}

/// The number of a thread that has ended.
const GONE: u32 = 77;

/// A space of its own for a test. Never freed, as in a process.
pub(crate) fn space_with(config: Config, region: usize) -> &'static Space<World> {
    // Access for real: what is written without its metadata being ready crashes.
    let kernel = Kernel::new(Config { enforce_access: true, ..config });
    let settings = Settings { region: Some(region), ..Settings::DEFAULT };
    let arenas = Lock::new(Arenas::new(kernel.clone(), settings).with_tenant());
    let world = Box::leak(Box::new(World { arenas, kernel, when_asked: Lock::new(None) }));
    Box::leak(Box::new(Space::new(world)))
}

pub(crate) fn space() -> &'static Space<World> {
    space_with(Config::default(), REGION)
}

/// Blocks by their pages.
pub(super) fn by_page(blocks: &[NonNull<u8>]) -> BTreeMap<usize, Vec<NonNull<u8>>> {
    let mut pages: BTreeMap<usize, Vec<_>> = BTreeMap::new();
    for &block in blocks {
        pages.entry(page_of(block)).or_default().push(block);
    }
    pages
}

/// A space and a heap in it.
pub(super) fn heap() -> (&'static Space<World>, Heap<World>) {
    let space = space();
    (space, space.acquire().expect("memory"))
}

/// Bytes of heap pages that are in use, as the arenas count them.
fn live(space: &Space<World>) -> u64 {
    space.source().arenas.lock().snapshot().live
}

fn at(address: NonNull<u8>) -> usize {
    address.as_ptr() as usize
}

/// The heap page that contains an address.
fn page_of(address: NonNull<u8>) -> usize {
    at(address) & !(HEAP_PAGE_BYTES - 1)
}

fn pointer(address: usize) -> NonNull<u8> {
    NonNull::new(address as *mut u8).expect("not null")
}

fn fill(address: NonNull<u8>, bytes: usize, value: u8) {
    // SAFETY: the test owns the block.
    unsafe { address.write_bytes(value, bytes) };
}

fn holds(address: NonNull<u8>, bytes: usize, value: u8) -> bool {
    // SAFETY: the test owns the block and filled it.
    unsafe { core::slice::from_raw_parts(address.as_ptr(), bytes) }.iter().all(|&byte| byte == value)
}

impl Heap<World> {
    /// A block that there must be.
    fn take(&mut self, bytes: usize) -> NonNull<u8> {
        self.allocate(bytes).expect("memory")
    }

    fn take_many(&mut self, count: usize, bytes: usize) -> Vec<NonNull<u8>> {
        (0..count).map(|_| self.take(bytes)).collect()
    }

    /// Frees a block of the test, or says why that is a mistake.
    fn give(&mut self, address: NonNull<u8>) -> Result<(), Mistake> {
        // SAFETY: blocks of a test are used by it alone; wrong ones are refused.
        unsafe { self.try_free(address) }
    }

    /// Frees a block of the test as the interpreters' hooks do.
    fn free_as_near(&mut self, address: NonNull<u8>) -> bool {
        // SAFETY: as in `give`.
        unsafe { self.free_near(at(address)) }
    }

    fn give_all(&mut self, blocks: impl IntoIterator<Item = NonNull<u8>>) {
        blocks.into_iter().for_each(|address| self.give(address).expect("live"));
    }

    /// What is kept agrees with the bitmaps, here and in the arenas.
    fn check(&mut self) {
        self.verify().unwrap_or_else(|problem| panic!("{problem}"));
        let space = self.own().space;
        let arenas = space.source().arenas.lock();
        arenas.verify().unwrap_or_else(|problem| panic!("{problem}"));
        drop(arenas);
        assert_eq!(space.source().kernel.violations(), []);
    }

    /// Everything was freed: after this no page is in use.
    fn check_empty(&mut self) {
        self.check();
        self.trim();
        self.check();
        assert_eq!(self.page_count(), 0);
        assert_eq!(live(self.own().space), 0);
    }
}

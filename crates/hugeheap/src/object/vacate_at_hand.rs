//! Giving OS pages of pages at hand back that no live block lies in.
//!
//! ```text
//!   page at hand, 16 KiB     ├ OS page 0 ──┼ 1 ──────────┼ 2 ──────────┼ 3 ──────────┤
//!   windows, 1 KiB            full open …    none of these was opened yet
//!   while the heap is held    stays          goes          goes          goes
//! ```
//!
//! A thread that has few blocks has a heap page for each size class that it ever needed, and all of them are at
//! hand. 256 threads of a pool, with 64 blocks of 33 classes each, had 157 MB of huge pages for 4 MB of blocks,
//! as long as they lived.
//!
//! Of a page that was [claimed](super::vacate) the owner's fast paths take what is remembered. Of one that is
//! at hand they take what lies in the open window, too, and then open the next one. But for that the owner is
//! [busy](super::busy), and not while somebody holds its heap. So it is claimed like any other, and while its
//! heap is held also the open window is left out: all of that counts as live, as it does in the page's mark. In
//! it blocks come and go without being counted, and are freed there without a look at the tag.
//!
//! Without the claim, with the heap held only, the bitmap could be the same twice though a block was taken and
//! freed again in between: while what is remembered was read that block was not.
//!
//! The heap of a thread that is missing in a forked child may be busy for good, or count a block that does not
//! live: nothing goes there.

use super::class::{CLASSES, SHAPES};
use super::heap::Core;
use super::mark::Mark;
use super::space::{Page, Source, Space};
use super::tag;
use super::vacancy::{Words, both, vacant_os_pages};
use super::vacate::{Reach, agreed, drop_os_pages};
use core::ptr::NonNull;
use hugeheap_os::{AddressRange, Result as OsResult};

/// Pages of which OS pages go while a heap is held once: some three calls for each, 1 to 2 µs each where the
/// huge page is broken already. Its owner waits if it comes for another window meanwhile.
const AT_A_TIME: usize = 8;

impl<S: Source> Space<S> {
    /// Whether a page of blocks is the one at hand of its bin. It may be otherwise a moment later.
    pub(super) fn is_at_hand(&self, page: Page) -> bool {
        let tag = page.tag();
        let (number, class) = (tag::heap(tag), tag::class(tag));
        let Some(core) = self.registry.core::<S>(number).filter(|_| class < CLASSES) else { return false };
        // SAFETY: cores are never unmapped. The owner changes the field with plain stores of whole words: it is
        // read once, as what it was or is.
        let at_hand = unsafe { (&raw const (*core.as_ptr()).own.bins[class].page).read_volatile() };
        at_hand == page.address()
    }

    /// Drops the OS pages of those pending pages that are at hand that no live block lies in, nor one that the
    /// owner's fast paths may take.
    pub(super) fn drop_vacant_at_hand(
        &self,
        pages: impl Iterator<Item = Page>,
        os_page: usize,
        drop: &mut dyn FnMut(AddressRange) -> OsResult<()>,
        bytes: &mut usize,
    ) -> OsResult<()> {
        let mut pages = pages.filter(|&page| self.is_at_hand(page)).peekable();
        while let Some(first) = pages.peek() {
            let number = tag::heap(first.tag());
            let held = self.registry.shared::<S>(number).and_then(|shared| self.hold_owned(shared));
            for _ in 0..AT_A_TIME {
                let Some(page) = pages.next_if(|page| tag::heap(page.tag()) == number) else { break };
                if held.is_some() {
                    self.drop_vacant_of_held(page, os_page, drop, bytes)?;
                }
            }
        }
        Ok(())
    }

    /// The same of one page, of a heap that is held.
    fn drop_vacant_of_held(
        &self,
        page: Page,
        os_page: usize,
        drop: &mut dyn FnMut(AddressRange) -> OsResult<()>,
        bytes: &mut usize,
    ) -> OsResult<()> {
        let tag = page.tag();
        let Some(core) = self.registry.core::<S>(tag::heap(tag)) else { return Ok(()) };
        // The owner may have collected it before it was held, and somebody else may have it.
        if !tag::is_pending(tag) || !self.is_at_hand(page) {
            return Ok(());
        }
        let Some((words, reach)) = at_rest_at_hand(core, page, self.source().os())? else { return Ok(()) };
        let freed = page.freed_by_others(tag::class(tag));
        let others = freed.iter().map(|bits| bits.count_ones()).sum();
        let shape = &SHAPES[tag::class(tag)];
        let free = reach.without_remembered(both(&words, &freed), page);
        let vacant = vacant_os_pages(shape, &free, os_page);
        drop_os_pages(page.address(), vacant.into(), os_page, drop, bytes)?;
        page.mark().set_gone(others);
        Ok(())
    }
}

/// The bitmap of a page at hand of a heap that is held, with all of its open window live, and what else the
/// owner's fast paths may take of its class; if they are in the middle of nothing there. See the module's text.
fn at_rest_at_hand<S: Source>(
    core: NonNull<Core<S>>,
    page: Page,
    os: &S::Os,
) -> OsResult<Option<(Words, Reach)>> {
    let reach = Reach::of(core, tag::class(page.tag()), os)?;
    let Some(open) = reach.and_then(|reach| reach.open_window_of(page)) else { return Ok(None) };
    let words = |page: Page| {
        let mut words = page.words();
        open.into_iter().for_each(|window| words[window] = 0);
        words
    };
    agreed(core, page, os, words, Mark::live_at_hand)
}

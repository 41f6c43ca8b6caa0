//! Sweeping: what was not marked becomes free, page by page, whenever there is time or need.
//!
//! ```text
//!   marking ends ─▶ all pages unswept ─▶ swept ─┬▶ no live object: given back to the arenas
//!                                               ├▶ free blocks: partial
//!                                               └▶ full
//! ```
//!
//! Sweeping a page is `vacant = !marks` on its bitmap, 128 bytes; no object is touched, dead or alive. A page
//! is swept when its class needs a block (`old`), or in bounded steps after minor collections. A marking begins
//! only when everything is swept.

use super::old::{CYCLE, LEAVING, Old, SPARES, Swept};
use crate::object::Source;
use crate::object::class::{CLASSES, Class, GRANULE_SHIFT, SHAPES, WINDOWS};
use crate::object::space::Page;
use core::sync::atomic::Ordering::Relaxed;

impl<S: Source> Old<S> {
    /// Marking ended: what is not marked is dead, and all pages are unswept.
    pub(crate) fn begin_sweep(&mut self) {
        debug_assert!(!self.has_unswept(), "a cycle begins when the one before is over");
        self.cycle ^= CYCLE;
        self.black = false;
        for bin in &mut self.bins {
            if let Some(page) = bin.close() {
                bin.partial.push(self.space, page);
            }
            let partial = core::mem::take(&mut bin.partial);
            bin.unswept.append(self.space, partial);
            let full = core::mem::take(&mut bin.full);
            bin.unswept.append(self.space, full);
        }
        if let Some(survey) = &mut self.survey {
            survey.clear();
        }
        let large = core::mem::take(&mut self.large);
        self.large_unswept.append(self.space, large);
    }

    pub(crate) fn has_unswept(&self) -> bool {
        !self.large_unswept.is_empty() || self.bins.iter().any(|bin| !bin.unswept.is_empty())
    }

    /// Sweeps a page of any class. `None`: there is none.
    pub(crate) fn sweep_page(&mut self) -> Option<Swept> {
        if let Some(page) = self.large_unswept.pop(self.space) {
            return Some(self.sweep_large(page));
        }
        let class = self.bins.iter().position(|bin| !bin.unswept.is_empty())?;
        self.sweep_class(class)
    }

    pub(super) fn sweep_class(&mut self, class: Class) -> Option<Swept> {
        let page = self.bins[class].unswept.pop(self.space)?;
        let shape = &SHAPES[class];
        let (mut live, mut died, mut free) = (0, 0, false);
        for window in 0..WINDOWS {
            let starts = shape.starts[window];
            if starts == 0 {
                continue;
            }
            let marks = page.remote()[window].load(Relaxed);
            let vacant = page.vacant()[window].load(Relaxed);
            let dead = !vacant & starts & !marks;
            // Only what changes is written: a forked child that finds nothing dead goes on sharing the bitmap.
            if vacant != !marks {
                page.vacant()[window].store(!marks, Relaxed);
            }
            if marks != 0 {
                page.remote()[window].store(0, Relaxed);
            }
            live += marks.count_ones();
            died += dead.count_ones();
            free |= starts & !marks != 0;
            if let Some(poison) = self.poison {
                self.poison_blocks(page.address(), class, window, dead, poison);
            }
        }
        self.used -= died as usize * shape.bytes as usize;
        let leaving = page.mark().tag.load(Relaxed) & LEAVING;
        if live == 0 {
            if leaving == 0 {
                self.release(page)
            } else {
                self.set_aside(page)
            }
            return Some(Swept::Empty);
        }
        page.mark().tag.store(self.tag | self.cycle | leaving | class as u32, Relaxed);
        self.count_live(page.address(), live as usize * shape.bytes as usize);
        if let Some(index) = self.leaving_at(page.address()).filter(|_| leaving != 0) {
            self.leaving[index].pages.push(self.space, page);
            return Some(Swept::Kept);
        }
        let bin = &mut self.bins[class];
        let list = if free { &mut bin.partial } else { &mut bin.full };
        list.push(self.space, page);
        Some(Swept::Kept)
    }

    pub(super) fn poison_blocks(&self, page: usize, class: Class, window: usize, mut dead: u64, poison: u64) {
        let shape = &SHAPES[class];
        while dead != 0 {
            let block = page + ((window * 64 + dead.trailing_zeros() as usize) << GRANULE_SHIFT);
            dead &= dead - 1;
            super::nursery::fill(block, block + shape.bytes as usize, poison);
        }
    }

    /// Gives a page without live objects back.
    pub(super) fn release(&mut self, page: Page) {
        self.clear_page(page);
        if self.spare_count == SPARES {
            self.give_spares(SPARES / 2);
        }
        self.spares[self.spare_count] = page.address();
        self.spare_count += 1;
    }

    /// A page is no page of this heap any more.
    pub(super) fn clear_page(&self, page: Page) {
        page.vacant().iter().chain(page.remote()).for_each(|word| word.store(0, Relaxed));
        page.mark().tag.store(0, Relaxed);
    }

    /// Gives kept pages back to the arenas.
    pub(crate) fn trim(&mut self) {
        self.give_spares(0);
        self.batch = 1;
    }

    /// Gives everything back: the heap ends.
    pub(crate) fn release_all(&mut self) {
        let mut pages = core::mem::take(&mut self.large);
        pages.append(self.space, core::mem::take(&mut self.large_unswept));
        while let Some(page) = pages.pop(self.space) {
            self.release_large(page);
        }
        for class in 0..CLASSES {
            let bin = &mut self.bins[class];
            let mut pages = core::mem::take(&mut bin.partial);
            pages.append(self.space, core::mem::take(&mut bin.full));
            pages.append(self.space, core::mem::take(&mut bin.unswept));
            let mut open = bin.close();
            while let Some(page) = open.take().or_else(|| pages.pop(self.space)) {
                self.release(page);
            }
        }
        for mut leaving in core::mem::take(&mut self.leaving) {
            while let Some(page) = leaving.pages.pop(self.space) {
                self.release(page);
            }
        }
        let aside = core::mem::take(&mut self.aside);
        self.give_aside(&aside);
        self.trim();
    }
}

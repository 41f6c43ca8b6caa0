//! Lists of heap pages: linked through the metadata of the pages, joined in constant time.

use crate::object::space::Page;
use crate::object::{Source, Space};
use core::sync::atomic::Ordering;

/// A list, as addresses of its first and last page; 0: empty.
#[derive(Debug, Default)]
pub(crate) struct List {
    first: usize,
    last: usize,
}

impl List {
    pub(crate) const EMPTY: Self = Self { first: 0, last: 0 };

    /// Puts a page that is in no list at the end.
    pub(crate) fn push<S: Source>(&mut self, space: &Space<S>, page: Page) {
        page.links().next.store(0, Ordering::Relaxed);
        self.append(space, Self { first: page.address(), last: page.address() });
    }

    /// Takes the first page.
    pub(crate) fn pop<S: Source>(&mut self, space: &Space<S>) -> Option<Page> {
        let page = space.page(self.first)?;
        self.first = page.links().next.load(Ordering::Relaxed);
        if self.first == 0 {
            self.last = 0;
        }
        Some(page)
    }

    /// Puts all pages of another list at the end.
    pub(crate) fn append<S: Source>(&mut self, space: &Space<S>, other: Self) {
        if other.first == 0 {
            return;
        }
        match space.page(self.last) {
            Some(last) => last.links().next.store(other.first, Ordering::Relaxed),
            None => self.first = other.first,
        }
        self.last = other.last;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first == 0
    }

    /// All pages, in order. None may be taken out meanwhile.
    pub(crate) fn pages<'a, S: Source>(
        &self,
        space: &'a Space<S>,
    ) -> impl Iterator<Item = Page> + use<'a, S> {
        let mut next = self.first;
        core::iter::from_fn(move || {
            let page = space.page(next)?;
            next = page.links().next.load(Ordering::Relaxed);
            Some(page)
        })
    }
}

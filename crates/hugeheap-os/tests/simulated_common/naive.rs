//! A naive model of the simulated kernel's rules: every OS page a record, everything counted by looking.
//!
//! It knows one process and one reservation of 6 huge pages of 8 OS pages each, and is written to be obviously
//! right and not fast: what the kernel keeps in counters, queues and trees is here found by a walk over all
//! pages.

use hugeheap_os::simulated::Fault;
use hugeheap_os::{Advice, Backing, Protection, ThpMode};
use proptest::prelude::ProptestConfig;

pub(crate) const OS: usize = 4096;
pub(crate) const RATIO: usize = 8;
pub(crate) const CHUNKS: usize = 6;
pub(crate) const PAGES: usize = RATIO * CHUNKS;

/// A backing, and what a page mapped with it is.
pub(crate) const fn backing(number: u8) -> (Backing, Mapped) {
    let (backing, advice, protection) = match number {
        0 => (Backing::Base, Some(Advice::NoHuge), Protection::ReadWrite),
        1 => (Backing::Plain, None, Protection::ReadWrite),
        2 => (Backing::Thp, Some(Advice::Huge), Protection::ReadWrite),
        _ => (Backing::Zeros, None, Protection::Read),
    };
    (backing, Mapped { advice, protection })
}

/// At least 600 cases; more when the environment asks for it (`PROPTEST_CASES`).
pub(crate) fn config() -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig { cases: default.cases.max(600), max_shrink_iters: 20_000, ..default }
}

/// What a mapped page has: `None` for nothing, `Some(None)` for the zero page, else folio and place in it.
pub(crate) type Content = Option<Option<(usize, usize)>>;

#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Mapped {
    pub(crate) advice: Option<Advice>,
    pub(crate) protection: Protection,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Table {
    Nothing,
    Single,
    Huge,
}

pub(crate) struct Folio {
    pub(crate) len: usize,
    pub(crate) split: bool,
    pub(crate) written: Vec<bool>,
}

pub(crate) struct Model {
    pub(crate) mapped: [Option<Mapped>; PAGES],
    pub(crate) content: [Content; PAGES],
    /// The folio whose page a split replaced with the zero page: its block is not free before that entry is gone.
    pub(crate) dropped: [Option<usize>; PAGES],
    pub(crate) tables: [Table; CHUNKS],
    pub(crate) folios: Vec<Folio>,
    /// Folios in the order they became partially mapped.
    pub(crate) partial: Vec<usize>,
    pub(crate) mode: ThpMode,
    pub(crate) blocks: Option<u64>,
    pub(crate) max: Option<u64>,
    pub(crate) scanner: usize,
    /// The word each page holds.
    pub(crate) words: [usize; PAGES],
}

impl Model {
    pub(crate) fn new() -> Self {
        Self {
            mapped: [None; PAGES],
            content: [None; PAGES],
            dropped: [None; PAGES],
            tables: [Table::Nothing; CHUNKS],
            folios: Vec::new(),
            partial: Vec::new(),
            mode: ThpMode::Madvise,
            blocks: None,
            max: None,
            scanner: 0,
            words: [0; PAGES],
        }
    }

    pub(crate) fn live(&self, folio: usize) -> usize {
        self.content.iter().filter(|content| matches!(content, Some(Some((f, _))) if *f == folio)).count()
    }

    /// In OS pages.
    pub(crate) fn charge(&self) -> u64 {
        let held = |(id, folio): (usize, &Folio)| match self.live(id) {
            live if folio.split || live == 0 => live,
            _ => folio.len,
        };
        self.folios.iter().enumerate().map(held).sum::<usize>() as u64
    }

    pub(crate) fn rss(&self) -> u64 {
        self.content.iter().filter(|content| matches!(content, Some(Some(_)))).count() as u64
    }

    pub(crate) fn is_partial(&self, folio: usize) -> bool {
        let live = self.live(folio);
        !self.folios[folio].split && live > 0 && live < self.folios[folio].len
    }

    /// Sets what a page has, and keeps the order of partially mapped folios and the free blocks.
    pub(crate) fn set(&mut self, page: usize, content: Content) {
        let old = core::mem::replace(&mut self.content[page], content).flatten().map(|(folio, _)| folio);
        let Some(folio) = self.dropped[page].take().or(old) else { return };
        // It keeps its place in the queue when more of it is dropped.
        if !self.is_partial(folio) {
            self.partial.retain(|&id| id != folio);
        } else if !self.partial.contains(&folio) {
            self.partial.push(folio);
        }
        let pointed_to = self.live(folio) > 0 || self.dropped.contains(&Some(folio));
        if !pointed_to && self.folios[folio].len > 1 {
            self.blocks = self.blocks.map(|blocks| blocks + 1);
        }
    }

    pub(crate) fn split_folio(&mut self, folio: usize) {
        self.folios[folio].split = true;
        self.partial.retain(|&id| id != folio);
        for page in 0..PAGES {
            if let Some(Some((f, place))) = self.content[page] {
                if f == folio && !self.folios[f].written[place] {
                    self.content[page] = Some(None);
                    self.dropped[page] = Some(f);
                }
            }
        }
    }

    pub(crate) fn make_room(&mut self, pages: u64) -> bool {
        while self.max.is_some_and(|max| self.charge() + pages > max) {
            if self.partial.is_empty() {
                return false;
            }
            self.split_folio(self.partial[0]);
        }
        true
    }

    pub(crate) fn new_folio(&mut self, len: usize) -> Option<usize> {
        if len > 1 && self.blocks == Some(0) || !self.make_room(len as u64) {
            return None;
        }
        if len > 1 {
            self.blocks = self.blocks.map(|blocks| blocks - 1);
        }
        self.folios.push(Folio { len, split: false, written: vec![false; len] });
        Some(self.folios.len() - 1)
    }

    pub(crate) fn demote(&mut self, chunk: usize) {
        if self.tables[chunk] == Table::Huge {
            self.tables[chunk] = Table::Single;
        }
    }

    /// A mapping starts at page `at` that the one before does not merge with: huge entries end there.
    pub(crate) fn cut(&mut self, at: usize) {
        if at % RATIO != 0 && self.mapped[at - 1] != self.mapped[at] {
            self.demote(at / RATIO);
        }
    }

    pub(crate) fn cut_ends(&mut self, start: usize, len: usize) {
        for at in [start, start + len] {
            if at < PAGES {
                self.cut(at);
            }
        }
    }

    pub(crate) fn all_mapped(&self, start: usize, len: usize) -> bool {
        self.mapped[start..start + len].iter().all(Option::is_some)
    }

    pub(crate) fn applies(&self, advice: Option<Advice>) -> bool {
        match self.mode {
            ThpMode::Always => advice != Some(Advice::NoHuge),
            ThpMode::Madvise => advice == Some(Advice::Huge),
            ThpMode::Never => false,
        }
    }

    pub(crate) fn one_mapping(&self, chunk: usize) -> bool {
        let pages = &self.mapped[chunk * RATIO..(chunk + 1) * RATIO];
        pages.iter().all(|page| page.is_some() && *page == pages[0])
    }

    pub(crate) fn put_huge(&mut self, chunk: usize, folio: usize) {
        for place in 0..RATIO {
            self.set(chunk * RATIO + place, Some(Some((folio, place))));
        }
        self.tables[chunk] = Table::Huge;
    }

    /// `written`: the mutator writes; else the page is made writable only.
    pub(crate) fn write(&mut self, page: usize, written: bool) -> Result<(), Fault> {
        let chunk = page / RATIO;
        let mapped = self.mapped[page].expect("the test touches what is mapped");
        if mapped.protection != Protection::ReadWrite {
            return Err(Fault::Segv);
        }
        // No page table, or the huge zero page.
        let fresh = self.tables[chunk] == Table::Nothing
            || self.tables[chunk] == Table::Huge && self.content[page] == Some(None);
        if fresh && self.applies(mapped.advice) && self.one_mapping(chunk) {
            if let Some(folio) = self.new_folio(RATIO) {
                self.put_huge(chunk, folio);
            }
        }
        if !matches!(self.content[page], Some(Some(_))) {
            let folio = self.new_folio(1).ok_or(Fault::Oom)?;
            self.demote(chunk);
            self.tables[chunk] = Table::Single;
            self.set(page, Some(Some((folio, 0))));
        }
        if let (Some(Some((folio, place))), true) = (self.content[page], written) {
            self.folios[folio].written[place] = true;
        }
        Ok(())
    }

    pub(crate) fn read(&mut self, page: usize) -> Result<(), Fault> {
        let chunk = page / RATIO;
        let mapped = self.mapped[page].expect("the test touches what is mapped");
        if mapped.protection == Protection::None {
            return Err(Fault::Segv);
        }
        if self.tables[chunk] == Table::Nothing && self.applies(mapped.advice) && self.one_mapping(chunk) {
            self.tables[chunk] = Table::Huge;
            for place in 0..RATIO {
                self.set(chunk * RATIO + place, Some(None));
            }
        }
        if self.content[page].is_none() {
            self.tables[chunk] = Table::Single;
            self.set(page, Some(None));
        }
        Ok(())
    }

    pub(crate) fn drop_pages(&mut self, start: usize, len: usize) {
        for page in start..start + len {
            self.set(page, None);
            self.words[page] = 0;
        }
        for chunk in 0..CHUNKS {
            let (first, end) = (chunk * RATIO, (chunk + 1) * RATIO);
            if start <= first && end <= start + len {
                self.tables[chunk] = Table::Nothing;
            } else if start < end && first < start + len {
                self.demote(chunk);
            }
        }
    }

    pub(crate) fn cold(&mut self, start: usize, len: usize) {
        for page in start..start + len {
            let Some(Some((folio, _))) = self.content[page] else { continue };
            if self.folios[folio].split || self.folios[folio].len == 1 {
                continue;
            }
            // Left whole when the range holds all of it, in order, in one page table and one mapping.
            let places: Vec<_> = (start..start + len)
                .filter(|&p| p / RATIO == page / RATIO && self.mapped[p] == self.mapped[page])
                .filter_map(|p| match self.content[p] {
                    Some(Some((f, place))) if f == folio => Some((p, place)),
                    _ => None,
                })
                .collect();
            let in_order = places.windows(2).all(|w| w[0].0 + 1 == w[1].0 && w[0].1 + 1 == w[1].1);
            if places.len() < self.folios[folio].len || !in_order {
                self.demote(page / RATIO);
                self.split_folio(folio);
            }
        }
    }

    /// `None`: there is no page table.
    pub(crate) fn collapse(&mut self, chunk: usize) -> Option<bool> {
        match self.tables[chunk] {
            Table::Huge => return Some(true),
            Table::Nothing => return None,
            Table::Single => {}
        }
        let Some(new) = self.new_folio(RATIO) else { return Some(false) };
        for place in 0..RATIO {
            if let Some(Some((folio, old))) = self.content[chunk * RATIO + place] {
                self.folios[new].written[place] = self.folios[folio].written[old];
            }
        }
        self.put_huge(chunk, new);
        Some(true)
    }
}

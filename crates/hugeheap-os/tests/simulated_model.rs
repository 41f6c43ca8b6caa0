//! The simulated kernel against a naive model of the same rules (`simulated_common/naive.rs`): the same calls on both,
//! and after each the same answer, the same counters, the same state and contents of every page.

mod simulated_common;

use hugeheap_os::simulated::{Config, Kernel, PageState};
use hugeheap_os::{AddressRange, Advice, Pages, Protection, ThpMode};
use proptest::prelude::*;
use simulated_common::naive::{CHUNKS, Model, OS, PAGES, RATIO, Table, backing, config};

#[derive(Clone, Debug)]
enum Op {
    Map(usize, usize, u8),
    Unmap(usize, usize),
    Touch(usize, usize),
    Read(usize, usize),
    Populate(usize, usize),
    Decommit(usize, usize),
    Split(usize, usize),
    Collapse(usize, usize),
    Advise(usize, usize, bool),
    Protect(usize, usize, u8),
    Relocate(usize, usize, usize),
    Khugepaged(usize),
    Reclaim,
    Mode(u8),
    Blocks(Option<u64>),
    Max(Option<u64>),
}

fn op() -> impl Strategy<Value = Op> {
    let any_range = (0..PAGES, 1..=2 * RATIO).prop_map(|(start, len)| (start, len.min(PAGES - start)));
    let chunk_range =
        (0..CHUNKS, 1..=2_usize).prop_map(|(start, len)| (start * RATIO, len.min(CHUNKS - start) * RATIO));
    let range = prop_oneof![any_range, chunk_range.clone()].boxed();
    prop_oneof![
        6 => (range.clone(), 0..4_u8).prop_map(|((s, n), b)| Op::Map(s, n, b)),
        2 => range.clone().prop_map(|(s, n)| Op::Unmap(s, n)),
        9 => range.clone().prop_map(|(s, n)| Op::Touch(s, n)),
        2 => range.clone().prop_map(|(s, n)| Op::Read(s, n)),
        2 => range.clone().prop_map(|(s, n)| Op::Populate(s, n)),
        6 => range.clone().prop_map(|(s, n)| Op::Decommit(s, n)),
        4 => range.clone().prop_map(|(s, n)| Op::Split(s, n)),
        3 => chunk_range.prop_map(|(s, n)| Op::Collapse(s, n)),
        3 => (range.clone(), any::<bool>()).prop_map(|((s, n), huge)| Op::Advise(s, n, huge)),
        2 => (range.clone(), 0..4_u8).prop_map(|((s, n), p)| Op::Protect(s, n, p)),
        3 => (range, 0..PAGES).prop_map(|((s, n), to)| Op::Relocate(s, n, to)),
        1 => (0..10_usize).prop_map(Op::Khugepaged),
        1 => Just(Op::Reclaim),
        1 => (0..3_u8).prop_map(Op::Mode),
        1 => prop_oneof![Just(None), (0..4_u64).prop_map(Some)].prop_map(Op::Blocks),
        1 => prop_oneof![2 => Just(None), 1 => (8..30_u64).prop_map(Some)].prop_map(Op::Max),
    ]
}

struct Pair {
    kernel: Kernel,
    model: Model,
    base: usize,
}

impl Pair {
    fn new() -> Self {
        let kernel = Kernel::new(Config::with_page_sizes(OS, Some(RATIO * OS)));
        let base = kernel.reserve(PAGES * OS, RATIO * OS).unwrap().start;
        Self { kernel, model: Model::new(), base }
    }

    fn range(&self, start: usize, len: usize) -> AddressRange {
        AddressRange::new(self.base + start * OS, len * OS)
    }

    fn store(&mut self, page: usize, word: usize) {
        self.model.words[page] = word;
        // SAFETY: the page is mapped for writing and this test's own.
        unsafe { *((self.base + page * OS) as *mut usize) = word };
    }

    /// Makes the call on both, when it makes sense; both must answer the same.
    fn step(&mut self, step: usize, op: &Op) {
        let kernel = self.kernel.clone();
        let range = |start, len| AddressRange::new(self.base + start * OS, len * OS);
        let m = &mut self.model;
        // SAFETY (all unsafe blocks below): the reservation is this test's own; it keeps no references into it, and the
        // model knows which contents a call loses.
        match *op {
            Op::Map(start, len, number) => {
                if m.mapped[start..start + len].iter().any(Option::is_some) {
                    return;
                }
                let (backing, new) = backing(number);
                // SAFETY: see above.
                unsafe { kernel.map(range(start, len), backing).unwrap() };
                m.mapped[start..start + len].fill(Some(new));
            }
            Op::Unmap(start, len) if m.all_mapped(start, len) => {
                // SAFETY: see above.
                unsafe { kernel.unmap(range(start, len)).unwrap() };
                m.drop_pages(start, len);
                m.mapped[start..start + len].fill(None);
                m.cut_ends(start, len);
            }
            Op::Touch(start, len) if m.all_mapped(start, len) => {
                for page in start..start + len {
                    let expected = self.model.write(page, true);
                    let range = self.range(page, 1);
                    assert_eq!(self.kernel.touch(range), expected, "page {page}");
                    if expected.is_ok() {
                        self.store(page, step * PAGES + page + 1);
                    }
                }
            }
            Op::Read(start, len) if m.all_mapped(start, len) => {
                let expected = (start..start + len).try_for_each(|page| m.read(page));
                assert_eq!(kernel.touch_read(range(start, len)), expected);
            }
            Op::Populate(start, len) if m.all_mapped(start, len) => {
                let writable = m.mapped[start..start + len]
                    .iter()
                    .all(|page| page.is_some_and(|page| page.protection == Protection::ReadWrite));
                let expected = match (start..start + len).try_for_each(|page| m.write(page, false)) {
                    _ if !writable => Err(libc::EINVAL),
                    Err(_) => Err(libc::ENOMEM),
                    Ok(()) => Ok(()),
                };
                if !writable {
                    // The model has populated what comes before: not a call to compare.
                    return self.start_again();
                }
                // SAFETY: see above.
                let answer = unsafe { kernel.populate(range(start, len)) };
                assert_eq!(answer.map_err(|error| error.code), expected);
            }
            Op::Decommit(start, len) if m.all_mapped(start, len) => {
                // SAFETY: see above.
                unsafe { kernel.decommit(range(start, len)).unwrap() };
                // Mapping by mapping: a page table over two mappings stays.
                let mut from = start;
                while from < start + len {
                    let same =
                        (from..start + len).take_while(|&page| m.mapped[page] == m.mapped[from]).count();
                    m.drop_pages(from, same);
                    from += same;
                }
            }
            Op::Split(start, len) if m.all_mapped(start, len) => {
                // SAFETY: see above.
                unsafe { kernel.split(range(start, len)).unwrap() };
                m.cold(start, len);
            }
            Op::Collapse(start, len) if m.all_mapped(start, len) => {
                let allowed = (start..start + len).all(|page| {
                    m.mapped[page].is_some_and(|page| page.advice != Some(Advice::NoHuge))
                        && m.one_mapping(page / RATIO)
                });
                if !allowed {
                    return;
                }
                let mut expected = Ok(());
                for chunk in start / RATIO..(start + len) / RATIO {
                    match m.collapse(chunk) {
                        Some(true) => {}
                        None => expected = Err(libc::EINVAL),
                        Some(false) => {
                            expected = Err(if m.blocks == Some(0) { libc::ENOMEM } else { libc::EBUSY });
                            break;
                        }
                    }
                }
                // SAFETY: see above.
                let answer = unsafe { kernel.collapse(range(start, len)) };
                assert_eq!(answer.map_err(|error| error.code), expected);
            }
            Op::Advise(start, len, huge) if m.all_mapped(start, len) => {
                let advice = if huge { Advice::Huge } else { Advice::NoHuge };
                // SAFETY: see above.
                unsafe { kernel.advise(range(start, len), advice).unwrap() };
                for page in m.mapped[start..start + len].iter_mut().flatten() {
                    page.advice = Some(advice);
                }
                m.cut_ends(start, len);
            }
            Op::Protect(start, len, number) if m.all_mapped(start, len) => {
                let protection = [Protection::Read, Protection::None].get(number as usize);
                let protection = *protection.unwrap_or(&Protection::ReadWrite);
                // SAFETY: see above.
                unsafe { kernel.protect(range(start, len), protection).unwrap() };
                for page in m.mapped[start..start + len].iter_mut().flatten() {
                    page.protection = protection;
                }
                m.cut_ends(start, len);
            }
            Op::Relocate(start, len, to) => self.relocate(start, len, to),
            Op::Khugepaged(chunks) => {
                let expected = self.khugepaged(chunks);
                assert_eq!(kernel.run_khugepaged((chunks * RATIO) as u64), expected);
            }
            Op::Reclaim => {
                let before = m.charge();
                while let Some(&folio) = m.partial.first() {
                    m.split_folio(folio);
                }
                let freed = (before - m.charge()) * OS as u64;
                assert_eq!(kernel.reclaim(), freed);
            }
            Op::Mode(number) => {
                m.mode = [ThpMode::Always, ThpMode::Madvise, ThpMode::Never][number as usize];
                kernel.set_thp_mode(m.mode);
            }
            Op::Blocks(blocks) => {
                m.blocks = blocks;
                kernel.set_free_huge_pages(blocks);
            }
            Op::Max(pages) => {
                m.max = pages;
                m.make_room(0);
                kernel.set_cgroup_max(pages.map(|pages| pages * OS as u64));
            }
            _ => {}
        }
    }

    fn start_again(&mut self) {
        *self = Self::new();
    }

    fn relocate(&mut self, start: usize, len: usize, to: usize) {
        let m = &mut self.model;
        let overlap = start < to + len && to < start + len;
        let one =
            m.all_mapped(start, len) && (start..start + len).all(|page| m.mapped[page] == m.mapped[start]);
        if to + len > PAGES || overlap || !one || m.mapped[to..to + len].iter().any(Option::is_some) {
            return;
        }
        let (from_range, to_range) = (self.range(start, len), self.range(to, len));
        // SAFETY: the reservation is this test's own.
        unsafe { self.kernel.relocate(from_range, to_range).unwrap() };
        let m = &mut self.model;
        for offset in 0..len {
            let (old, new) = (start + offset, to + offset);
            m.mapped[new] = m.mapped[old];
            m.words[new] = core::mem::take(&mut m.words[old]);
            // Moved, not dropped: nothing becomes partially mapped.
            m.content[new] = m.content[old].take();
            m.dropped[new] = m.dropped[old].take();
        }
        let whole = |chunk: usize, first: usize| first <= chunk * RATIO && (chunk + 1) * RATIO <= first + len;
        let aligned = start % RATIO == to % RATIO;
        let mut tables = m.tables;
        for (chunk, table) in tables.iter_mut().enumerate() {
            let touched = chunk * RATIO < start + len && start < (chunk + 1) * RATIO;
            if touched && !(aligned && whole(chunk, start)) && *table == Table::Huge {
                *table = Table::Single;
            }
        }
        let before = tables;
        for offset in 0..len {
            let (old, new) = ((start + offset) / RATIO, (to + offset) / RATIO);
            if aligned && whole(old, start) {
                tables[new] = before[old];
                tables[old] = Table::Nothing;
            } else if m.content[to + offset].is_some() {
                tables[new] = Table::Single;
            }
        }
        m.tables = tables;
        m.cut_ends(to, len);
    }

    fn khugepaged(&mut self, chunks: usize) -> u64 {
        let m = &mut self.model;
        let targets: Vec<_> = (0..CHUNKS)
            .filter(|&chunk| {
                m.one_mapping(chunk) && m.mapped[chunk * RATIO].is_some_and(|p| m.applies(p.advice))
            })
            .collect();
        let first = targets.iter().position(|&chunk| chunk >= m.scanner).unwrap_or(0);
        let mut made = 0;
        for step in 0..chunks.min(targets.len()) {
            let chunk = targets[(first + step) % targets.len()];
            m.scanner = chunk + 1;
            let here = &m.content[chunk * RATIO..(chunk + 1) * RATIO];
            let none = here.iter().filter(|content| !matches!(content, Some(Some(_)))).count();
            if m.tables[chunk] != Table::Single || none > RATIO - 1 {
                continue;
            }
            match m.collapse(chunk) {
                Some(true) => made += 1,
                _ if m.blocks == Some(0) => break,
                _ => {}
            }
        }
        made
    }

    fn compare(&self) {
        let (k, m) = (&self.kernel, &self.model);
        assert_eq!(k.rss(), m.rss() * OS as u64, "rss");
        assert_eq!(k.charge(), m.charge() * OS as u64, "charge");
        assert_eq!(k.partially_mapped(), m.partial.len(), "partially mapped");
        let changes = (1..PAGES).filter(|&page| m.mapped[page] != m.mapped[page - 1]).count();
        assert_eq!(k.mappings(), changes + 1, "mappings");
        for page in 0..PAGES {
            let address = self.base + page * OS;
            let state = match (m.mapped[page], m.content[page], m.tables[page / RATIO]) {
                (None, ..) => PageState::Reserved,
                (_, None, _) => PageState::Empty,
                (_, Some(None), _) => PageState::Zero,
                (_, _, Table::Huge) => PageState::Huge,
                (_, Some(Some((folio, _))), _) => {
                    let folio = &m.folios[folio];
                    if folio.len > 1 && !folio.split { PageState::Part } else { PageState::Small }
                }
            };
            assert_eq!(k.page_state(address), state, "page {page}");
            // SAFETY: the reservation is readable throughout and this test's own.
            let word = unsafe { *(address as *const usize) };
            assert_eq!(word, m.words[page], "contents of page {page}");
        }
        k.check().unwrap();
        assert_eq!(k.violations(), []);
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn agrees_with_the_naive_model(ops in prop::collection::vec(op(), 1..80)) {
        let mut pair = Pair::new();
        for (step, op) in ops.iter().enumerate() {
            pair.step(step, op);
            pair.compare();
        }
    }
}

//! What is shown of a process: its mappings, each in cells of one huge page, with state and reason. Gathered
//! under a deadline, then put together by pure code.
//!
//! ```text
//!   page tables ──▶ Picture ─┐
//!   smaps ──▶ advice ────────┼──▶ View: mappings ──▶ cells ──▶ text, JSON, SVG
//!   physical pages ──▶ broken┘
//! ```
//!
//! Cheap sources come first, each only while there is time: page tables by [`Picture`]; then smaps, if its cost
//! (known beforehand from the size of the page tables) fits what is left; then the physical pages behind 2 MiB
//! that are not huge.

use super::why::{DENSE, Known, Why, why};
use core::time::Duration;
use hugeheap_os::process::{
    Derivation, MappingDetail, MappingKind, PartialPage, Picture, Process, ProcessMapping, ProcessStatus,
    Unit,
};
use hugeheap_os::{Advice, Result, ThpDisabled, ThpMode};
use std::collections::{BTreeMap, BTreeSet};

/// Time the kernel takes to write smaps, per page of page tables: measured 38 µs here for 500 MB of objects.
const SMAPS_COST: Duration = Duration::from_micros(40);

/// What a cell consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    /// Nothing but zeros that were read, or nothing at all.
    Empty,
    Swapped,
    Sparse,
    Dense,
    /// A part of a huge page; the rest of that is stranded.
    Broken,
    Huge,
    Hugetlb,
}

impl State {
    pub(crate) const ALL: [Self; 7] =
        [Self::Huge, Self::Hugetlb, Self::Dense, Self::Sparse, Self::Broken, Self::Swapped, Self::Empty];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Swapped => "swapped",
            Self::Sparse => "sparse",
            Self::Dense => "dense",
            Self::Broken => "broken",
            Self::Huge => "huge",
            Self::Hugetlb => "hugetlb",
        }
    }

    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Empty => "nothing in memory",
            Self::Swapped => "swapped out",
            Self::Sparse => "OS pages, sparse",
            Self::Dense => "OS pages, dense",
            Self::Broken => "part of a huge page",
            Self::Huge => "huge page",
            Self::Hugetlb => "hugetlb page",
        }
    }
}

/// One huge page's worth of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) unit: Unit,
    pub(crate) state: State,
    /// Why it is not huge; `None` when it is, or nothing of it is resident.
    pub(crate) why: Option<Why>,
}

/// A mapping and its cells in which there is anything.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) mapping: ProcessMapping,
    pub(crate) advice: Option<Option<Advice>>,
    pub(crate) cells: Vec<Cell>,
}

/// Everything that is shown.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) os_page: usize,
    pub(crate) unit: usize,
    pub(crate) mode: Option<ThpMode>,
    pub(crate) rows: Vec<Row>,
    /// Address space not looked at in time, in bytes.
    pub(crate) unseen: u64,
    /// Whether huge pages can be told from others.
    pub(crate) tells_huge: bool,
    /// Whether the advice of all mappings is known.
    pub(crate) advice_known: bool,
    /// Whether broken huge pages were looked for everywhere.
    pub(crate) broken_known: bool,
    pub(crate) elapsed: Duration,
}

impl View {
    pub(crate) fn gather(
        process: &impl Process,
        status: &ProcessStatus,
        mode: Option<ThpMode>,
        budget: Duration,
    ) -> Result<Self> {
        let begin = process.now();
        let deadline = begin + budget;
        // The kernel's own mappings have no memory that could be huge.
        let picture = Picture::gather(process, |mapping| mapping.kind != MappingKind::Special, deadline)?;
        let cost =
            SMAPS_COST * u32::try_from(status.page_tables / picture.os_page as u64).unwrap_or(u32::MAX);
        let (details, advice_known) = if process.now() + cost < deadline {
            // Not allowed to read smaps, one may still see the tables.
            process.details(deadline).unwrap_or_default()
        } else {
            (Vec::new(), false)
        };
        // Each with the units in which there is a part of it: one that two mappings share is judged by what both have.
        let mut partial: BTreeMap<u64, (PartialPage, Vec<usize>)> = BTreeMap::new();
        let mut broken_known = process.derivation() == Derivation::Folios;
        let units = picture.mappings.iter().flat_map(|mapping| &mapping.units);
        for unit in units.filter(|unit| broken_known && !unit.is_huge() && unit.small > 0) {
            if process.now() >= deadline {
                broken_known = false;
                break;
            }
            process.partial_pages(unit.range, &mut |part| {
                let (whole, units) = partial
                    .entry(part.identity)
                    .or_insert((PartialPage { mapped_here: 0, ..part }, Vec::new()));
                whole.mapped_here += part.mapped_here;
                units.push(unit.range.start);
            })?;
        }
        let pages = (picture.unit / picture.os_page) as u32;
        let is_broken = |part: &PartialPage| part.mapped.unwrap_or(part.mapped_here) < pages;
        let broken: BTreeSet<usize> = partial
            .into_values()
            .filter(|(whole, _)| is_broken(whole))
            .flat_map(|(_, units)| units)
            .collect();
        let switched_off = status.thp_disabled == Some(ThpDisabled::Completely);
        Ok(Self {
            id: process.id(),
            name: status.name.clone(),
            os_page: picture.os_page,
            unit: picture.unit,
            mode,
            unseen: picture.unseen,
            tells_huge: process.tells_huge(),
            advice_known,
            broken_known,
            rows: rows(picture, &details, &broken, switched_off, mode),
            elapsed: process.now().saturating_sub(begin),
        })
    }

    /// Sums a number of OS pages over all cells, in bytes.
    pub(crate) fn bytes(&self, pages: impl Fn(&Cell) -> u32) -> u64 {
        let cells = self.rows.iter().flat_map(|row| &row.cells);
        cells.map(|cell| u64::from(pages(cell))).sum::<u64>() * self.os_page as u64
    }

    pub(crate) fn resident(&self) -> u64 {
        self.bytes(|cell| cell.unit.resident())
    }

    pub(crate) fn huge(&self) -> u64 {
        self.bytes(|cell| cell.unit.huge)
    }

    /// Resident memory that is not huge, by reason, in the order of [`Why::ALL`].
    pub(crate) fn reasons(&self) -> Vec<(Why, u64)> {
        let of = |why| (why, self.bytes(|cell| if cell.why == Some(why) { cell.unit.small } else { 0 }));
        Why::ALL.into_iter().map(of).filter(|(_, bytes)| *bytes > 0).collect()
    }

    /// What could not be found out, for people.
    pub(crate) fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        if self.unseen > 0 {
            let unseen = crate::output::bytes(self.unseen);
            missing.push(format!("{unseen} of address space were not looked at in time; raise --budget"));
        }
        if !self.tells_huge {
            missing.push(
                "this kernel (before 6.7) does not tell huge pages in the page tables: all show as OS pages"
                    .to_owned(),
            );
        }
        if !self.advice_known {
            missing.push(
                "advice is not known: smaps takes longer than the budget (raise --budget), or may not be read"
                    .to_owned(),
            );
        }
        if !self.broken_known {
            missing.push(
                "parts of huge pages do not show: that needs CAP_SYS_ADMIN, time, and no --root".to_owned(),
            );
        }
        missing
    }
}

impl Row {
    pub(crate) fn pages(&self, pages: impl Fn(&Cell) -> u32) -> u64 {
        self.cells.iter().map(|cell| u64::from(pages(cell))).sum()
    }
}

fn rows(
    picture: Picture,
    details: &[MappingDetail],
    broken: &BTreeSet<usize>,
    switched_off: bool,
    mode: Option<ThpMode>,
) -> Vec<Row> {
    let details: BTreeMap<usize, &MappingDetail> =
        details.iter().map(|detail| (detail.start, detail)).collect();
    let (unit, os_page) = (picture.unit, picture.os_page);
    let row = |one: hugeheap_os::process::MappingPicture| {
        let detail = details.get(&one.mapping.range.start);
        let pool = one.mapping.kind == MappingKind::Hugetlb
            || detail.is_some_and(|detail| detail.page_size > os_page as u64);
        let advice = detail.map(|detail| detail.advice);
        let known = Known { kind: one.mapping.kind, advice, switched_off, mode };
        let cells = one.units.into_iter().map(|it| cell(&known, it, unit, os_page, pool, broken)).collect();
        Row { mapping: one.mapping, advice, cells }
    };
    picture.mappings.into_iter().map(row).collect()
}

fn cell(known: &Known, it: Unit, unit: usize, os_page: usize, pool: bool, broken: &BTreeSet<usize>) -> Cell {
    let pages = (unit / os_page) as u32;
    let is_broken = broken.contains(&it.range.start);
    let room = (it.range.len / os_page) as u32;
    let state = match it {
        _ if it.huge > 0 && pool => State::Hugetlb,
        _ if it.huge > 0 => State::Huge,
        _ if it.small == 0 && it.swapped > 0 => State::Swapped,
        _ if it.small == 0 => State::Empty,
        _ if is_broken => State::Broken,
        _ if f64::from(it.small) >= DENSE * f64::from(room) => State::Dense,
        _ => State::Sparse,
    };
    let why = (it.huge == 0 && it.small > 0).then(|| why(known, &it, pages, it.range.len == unit, is_broken));
    Cell { unit: it, state, why }
}

/// Cells of a row side by side, with what is between them: what text and picture are drawn from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Piece {
    /// One mark for some neighbouring cells: what most of them are, and the share of memory used.
    Mark { state: State, density: f64, why: Option<Why>, start: usize, len: usize },
    /// So many bytes without anything.
    Gap(u64),
}

/// Cuts a row into pieces of at most `lines` lines of `width` marks. Larger mappings have several units to a
/// mark. Empty lines become gaps.
pub(crate) fn pieces(row: &Row, unit: usize, os_page: usize, width: usize, lines: usize) -> Vec<Vec<Piece>> {
    let chunk_of = |address: usize| address / unit;
    let (Some(first), Some(last)) = (row.cells.first(), row.cells.last()) else { return Vec::new() };
    let (first, last) = (chunk_of(first.unit.range.start), chunk_of(last.unit.range.start));
    // Only lines with something in them are drawn, so that the scale follows from what is there.
    let used = |scale: usize| {
        let lines = row.cells.iter().map(|cell| (chunk_of(cell.unit.range.start) - first) / (scale * width));
        lines.collect::<BTreeSet<_>>().len()
    };
    let mut scale = 1;
    while used(scale) > lines {
        scale *= 2;
    }
    let mut marks: BTreeMap<usize, Vec<&Cell>> = BTreeMap::new();
    for cell in &row.cells {
        marks.entry((chunk_of(cell.unit.range.start) - first) / scale).or_default().push(cell);
    }
    let empty = |index: usize| Piece::Mark {
        state: State::Empty,
        density: 0.0,
        why: None,
        start: (first + index * scale) * unit,
        len: scale * unit,
    };
    let (mut result, mut next) = (Vec::new(), 0);
    let numbers: BTreeSet<usize> = marks.keys().map(|mark| mark / width).collect();
    for line in numbers {
        if line > next {
            result.push(vec![Piece::Gap(((line - next) * width * scale * unit) as u64)]);
        }
        let end = ((last - first) / scale + 1).min((line + 1) * width);
        let piece = |index: usize| {
            marks.get(&index).map_or(empty(index), |cells| {
                mark(cells, (first + index * scale) * unit, scale * unit, os_page)
            })
        };
        result.push((line * width..end).map(piece).collect());
        next = line + 1;
    }
    result
}

/// One mark for some cells.
fn mark(cells: &[&Cell], start: usize, len: usize, os_page: usize) -> Piece {
    let most = |of: &dyn Fn(&Cell) -> bool| cells.iter().filter(|cell| of(cell)).count();
    let state = State::ALL.into_iter().rev().max_by_key(|state| most(&|cell| cell.state == *state));
    let state = state.unwrap_or(State::Empty);
    let why = Why::ALL.into_iter().rev().filter(|why| most(&|cell| cell.why == Some(*why)) > 0);
    let why = why.max_by_key(|why| most(&|cell| cell.why == Some(*why)));
    let resident: u64 = cells.iter().map(|cell| u64::from(cell.unit.resident())).sum();
    let density = resident as f64 * os_page as f64 / len as f64;
    Piece::Mark { state, density, why, start, len }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use hugeheap_os::simulated::{Kernel, RemoteProcess};
    use hugeheap_os::{AddressRange, Backing, Pages};

    pub(crate) const HUGE: usize = 2 << 20;
    const OS: usize = 4096;

    /// A process with one huge page, one broken, one dense and one sparse 2 MiB, far apart from a last page.
    pub(crate) fn view() -> View {
        let kernel = Kernel::default();
        let memory = kernel.reserve(300 * HUGE, HUGE).unwrap();
        let part = |unit: usize, pages: usize| AddressRange::new(memory.start + unit * HUGE, pages * OS);
        // SAFETY: the range was just reserved; nothing is kept in it.
        unsafe {
            kernel.map(AddressRange::new(memory.start, 2 * HUGE), Backing::Thp).unwrap();
            kernel.touch(AddressRange::new(memory.start, 2 * HUGE)).unwrap();
            kernel.decommit(AddressRange::new(memory.start + HUGE + OS, HUGE - OS)).unwrap();
            kernel.map(AddressRange::new(memory.start + 2 * HUGE, 298 * HUGE), Backing::Plain).unwrap();
        }
        kernel.touch(part(2, 512)).unwrap();
        kernel.touch(part(3, 7)).unwrap();
        kernel.touch(part(299, 512)).unwrap();
        let process = RemoteProcess::new(&kernel);
        let status = Process::status(&process).unwrap();
        View::gather(&process, &status, Some(ThpMode::Madvise), Duration::from_secs(5)).unwrap()
    }

    #[test]
    fn each_cell_has_its_state_and_reason() {
        let view = view();
        let cells: Vec<_> =
            view.rows.iter().flat_map(|row| &row.cells).map(|cell| (cell.state, cell.why)).collect();
        assert_eq!(
            cells,
            [
                (State::Huge, None),
                (State::Broken, Some(Why::Broken)),
                (State::Dense, Some(Why::NotAdvised)),
                (State::Sparse, Some(Why::NotAdvised)),
                (State::Dense, Some(Why::NotAdvised)),
            ]
        );
        assert_eq!(view.resident(), 3 * HUGE as u64 + 8 * OS as u64);
        assert_eq!(view.huge(), HUGE as u64);
        assert_eq!(
            view.reasons(),
            [(Why::NotAdvised, 2 * HUGE as u64 + 7 * OS as u64), (Why::Broken, OS as u64)]
        );
        assert!(view.missing().is_empty(), "{:?}", view.missing());
    }

    /// A heap of one mapping, with these OS pages in memory.
    pub(crate) fn mapped(bytes: usize, resident: &[(usize, usize)]) -> View {
        let kernel = Kernel::default();
        let memory = kernel.reserve(bytes.next_multiple_of(HUGE), HUGE).unwrap();
        // SAFETY: the range was just reserved; nothing is kept in it.
        unsafe { kernel.map(AddressRange::new(memory.start, bytes), Backing::Plain).unwrap() };
        for &(page, pages) in resident {
            kernel.touch(AddressRange::new(memory.start + page * OS, pages * OS)).unwrap();
        }
        let process = RemoteProcess::new(&kernel);
        let status = Process::status(&process).unwrap();
        View::gather(&process, &status, Some(ThpMode::Madvise), Duration::from_secs(5)).unwrap()
    }

    /// Neither advice nor a collapse makes it huge.
    #[test]
    fn what_is_cut_by_the_end_of_its_mapping_is_told_so_and_is_dense_by_what_there_is_of_it() {
        let cells = |pages| {
            let view = mapped(HUGE + 100 * OS, &[(0, 512), (512, pages)]);
            view.rows[0].cells.iter().map(|cell| (cell.state, cell.why)).collect::<Vec<_>>()
        };
        let whole = (State::Dense, Some(Why::NotAdvised));
        for (pages, state) in [(100, State::Dense), (90, State::Dense), (89, State::Sparse)] {
            assert_eq!(cells(pages), [whole, (state, Some(Why::Edge))], "{pages} pages of 100");
        }
    }

    /// Of each 2 MiB the physical pages are read, which takes a hundred times as long as its page table;
    /// without an end to it the budget meant nothing for a large heap.
    #[test]
    fn broken_huge_pages_are_looked_for_while_there_is_time_and_no_longer() {
        let kernel = Kernel::default();
        let memory = kernel.reserve(10 * HUGE, HUGE).unwrap();
        // SAFETY: the range was just reserved; nothing is kept in it.
        unsafe { kernel.map(memory, Backing::Plain).unwrap() };
        kernel.touch(memory).unwrap();
        let looked = |seconds| {
            let process = RemoteProcess::new(&kernel).looked_at_for(Duration::from_secs(1));
            let status = Process::status(&process).unwrap();
            let begin = process.now();
            let view = View::gather(&process, &status, None, Duration::from_secs(seconds)).unwrap();
            (view.broken_known, process.now() - begin, view.missing().len())
        };
        assert_eq!(looked(20), (true, Duration::from_secs(10), 0));
        assert_eq!(looked(3), (false, Duration::from_secs(3), 1));
    }

    #[test]
    fn without_time_it_is_said_what_is_missing() {
        let kernel = Kernel::default();
        let range = kernel.reserve(HUGE, HUGE).unwrap();
        // SAFETY: the range was just reserved.
        unsafe { kernel.map(range, Backing::Plain).unwrap() };
        let process = RemoteProcess::new(&kernel);
        let status = Process::status(&process).unwrap();
        let view = View::gather(&process, &status, None, Duration::ZERO).unwrap();
        assert!(view.unseen >= HUGE as u64 && !view.advice_known);
        assert_eq!(view.missing().len(), 2, "{:?}", view.missing());
        // Page tables of 1 GiB: smaps would take 10 s.
        let large = ProcessStatus { page_tables: 1 << 30, ..status };
        let view = View::gather(&process, &large, None, Duration::from_secs(5)).unwrap();
        assert!(view.unseen == 0 && !view.advice_known);
    }

    #[test]
    fn lines_without_anything_become_gaps_and_large_mappings_are_scaled() {
        let view = view();
        let row = view.rows.last().unwrap();
        let lines = pieces(row, HUGE, OS, 64, 8);
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert_eq!(lines[0].len(), 64);
        assert_eq!(lines[1], [Piece::Gap(3 * 64 * HUGE as u64)]);
        assert!(matches!(lines[2].last(), Some(Piece::Mark { state: State::Dense, .. })));
        let scaled = pieces(row, HUGE, OS, 64, 1);
        assert_eq!(scaled.len(), 1);
        assert!(matches!(scaled[0][0], Piece::Mark { len, .. } if len == 8 * HUGE));
    }
}

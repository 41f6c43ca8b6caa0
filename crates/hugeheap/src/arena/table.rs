//! Regions of address space, and the metadata of their arenas.
//!
//! ```text
//!   region     ├─ small arenas, used from below ─▶ ···free··· ◀─ large blocks, used from above ─┤ ···· ┤
//!              start              low ─┘                    └─ high                         arenas   reserved
//!   records    ├──┬──┬──┬── one Arena (128 bytes) per arena, in a mapping of its own ───────────────────┤
//!   beside     ├── address space for metadata of a layer above, if one asked for it ────────────────────┤
//! ```
//!
//! One region is reserved when the first arena is needed, further ones when it is full. Address → metadata is one
//! subtraction and one shift in the region; there is one region unless `ulimit -v` kept it small.
//!
//! Large blocks grow, so they are kept away from the small arenas, which would be in their way. But small
//! arenas take over what large blocks leave, so both begin within reach of each other: what lies beyond
//! `arenas` is used when all before it is.
//!
//! For large blocks idle arenas in a row are looked for, from the upper end. What a search has seen is
//! remembered, so that the next one does not pass all live blocks again:
//!
//! ```text
//!   region     ├────── not known ──────┤◀─ no idle row of 2ᵏ arenas ─▶┤
//!                                      └─ barren[k]                   end
//! ```

use super::layout::ARENA_BYTES;
use super::list::ArenaId;
use super::record::{Arena, Made, State};
use core::ptr::NonNull;
use hugeheap_os::{AddressRange, Backing, Pages, Result};

/// Most regions of a table. Reached only where `ulimit -v` makes regions small; 64 of at least 32 arenas are 4 GiB.
pub(crate) const MAX_REGIONS: usize = 64;

/// Bits of an [`ArenaId`] that are the index in the region.
const INDEX_BITS: u32 = 20;

/// Most arenas of a region: 2 TiB.
pub(crate) const MAX_REGION_ARENAS: usize = 1 << INDEX_BITS;

/// Arenas of a region that are used first: 64 GiB, in which a layer above can tell blocks of 16 bytes apart in
/// 32 bits. When large blocks began at the end of all that is reserved, four times the memory of the host, a
/// program whose lists grew and ended had its small objects in their place, and freed them ever more slowly:
/// twice as slowly after eight rounds.
const NEAR: usize = (64 << 30) / ARENA_BYTES;

/// Lengths of rows that searches remember: powers of two up to a region.
const LENGTHS: usize = INDEX_BITS as usize + 1;

const _: () = assert!((MAX_REGIONS << INDEX_BITS) < u32::MAX as usize, "ids stay below ArenaId::NONE");

/// What is reserved beside a region is a multiple of this: 64 KiB, of the OS page everywhere.
const RESERVED: usize = 64 << 10;

#[derive(Clone, Copy)]
pub(super) struct Region {
    pub(super) range: AddressRange,
    /// Reserved together with it, until somebody asks for it.
    pub(super) beside: Option<AddressRange>,
    records: NonNull<Arena>,
    /// Arenas in use, from the start on: no id is made of the others.
    pub(super) arenas: u32,
    /// Arenas of the range.
    pub(super) reserved: u32,
    /// Arenas below were used at least once as small arenas.
    pub(super) low: u32,
    /// Arenas from here on were used at least once by large blocks.
    pub(super) high: u32,
    /// Arenas before the first gap: all of them where there is none. One comparison for each address that is looked up.
    pub(super) before_gaps: u32,
    /// First and end of arenas whose address space was given back, see [`cut`](super::cut), upwards; then [`NO_GAP`].
    pub(super) gaps: [(u32, u32); GAPS],
    /// From here on no `1 << k` idle arenas are in a row, by `k`. `arenas`: nothing is known. Never rises with
    /// `k`, because a row contains the shorter ones: so a change stops at the first that needs none.
    pub(super) barren: [u32; LENGTHS],
}

/// Gaps of a region, at most: one for each limit, lower than the one before, that a program sets on itself
/// while large blocks live next to the gap before.
pub(super) const GAPS: usize = 4;

/// Beyond all arenas.
pub(super) const NO_GAP: (u32, u32) = (u32::MAX, u32::MAX);

impl Region {
    /// The gap that an arena lies in: it is this heap's no more.
    #[inline]
    fn gap_of(&self, index: u32) -> Option<(u32, u32)> {
        // Hardly ever is there one: one comparison.
        if index < self.gaps[0].0 { None } else { self.look_for_gap(index) }
    }

    #[cold]
    fn look_for_gap(&self, index: u32) -> Option<(u32, u32)> {
        self.gaps.into_iter().find(|gap| (gap.0..gap.1).contains(&index))
    }

    /// Where these arenas are.
    pub(super) fn range_of(&self, first: u32, end: u32) -> AddressRange {
        let start = self.range.start + first as usize * ARENA_BYTES;
        AddressRange::new(start, (end - first) as usize * ARENA_BYTES)
    }

    #[inline]
    fn is_gone(&self, index: u32) -> bool {
        self.gap_of(index).is_some()
    }

    /// Whether there is an arena of that number, of those that do not lie before all gaps.
    fn is_behind_gap(&self, index: usize) -> bool {
        index < self.arenas as usize && !self.is_gone(index as u32)
    }

    /// What gaps leave of these arenas: some of the ranges are empty.
    pub(super) fn without_gaps(&self, first: u32, end: u32) -> impl Iterator<Item = (u32, u32)> + use<> {
        let gaps = self.gaps;
        (0..=GAPS).map(move |number| {
            let start = if number == 0 { first } else { gaps[number - 1].1.clamp(first, end.max(first)) };
            let next = gaps.get(number).map_or(end, |gap| gap.0.min(end));
            (start, next.max(start))
        })
    }
}

/// All regions of a heap.
pub(crate) struct Table {
    pub(super) regions: [Option<Region>; MAX_REGIONS],
    pub(super) count: usize,
    /// Bytes of metadata mapped.
    metadata: usize,
    /// Bytes to reserve beside a region, by its own.
    beside: Option<fn(usize) -> usize>,
}

// SAFETY: the table owns its records; nothing else points to them, so it may move between threads.
unsafe impl Send for Table {}

impl Table {
    pub(crate) const NEW: Self = Self { regions: [None; MAX_REGIONS], count: 0, metadata: 0, beside: None };

    /// Reserves a further region of `arenas` arenas. Its metadata is zero, that is `Unmapped`.
    pub(crate) fn add_region<P: Pages>(&mut self, os: &P, arenas: usize) -> Result<()> {
        let full = hugeheap_os::Error::new("reserve(region)", libc::ENOMEM);
        if self.count == MAX_REGIONS || arenas == 0 {
            return Err(full);
        }
        let arenas = arenas.min(MAX_REGION_ARENAS);
        let range = os.reserve(arenas * ARENA_BYTES, ARENA_BYTES)?;
        // SAFETY: the reservation was made above and nothing refers to it.
        let release = |range| unsafe { os.release(range) };
        let bytes = (arenas * size_of::<Arena>()).next_multiple_of(RESERVED);
        let records = map_records(os, bytes).inspect_err(|_| _ = release(range))?;
        let beside = self.beside_bytes(arenas).map(|bytes| os.reserve(bytes, RESERVED)).transpose();
        let beside = beside.inspect_err(|_| _ = release(range).and(release(records)))?;
        // Names help to find the memory in /proc/PID/maps; kernels without the option refuse, which is harmless.
        let _ = os.name(range, c"hugeheap");
        let _ = os.name(records, c"hugeheap metadata");
        let Some(pointer) = NonNull::new(records.start as *mut Arena) else { return Err(full) };
        self.metadata += bytes;
        let reserved = arenas as u32;
        let arenas = reserved.min(NEAR as u32);
        self.regions[self.count] = Some(Region {
            range,
            beside,
            records: pointer,
            arenas,
            reserved,
            low: 0,
            high: arenas,
            before_gaps: arenas,
            gaps: [NO_GAP; GAPS],
            barren: [arenas; LENGTHS],
        });
        self.count += 1;
        Ok(())
    }

    /// How many arenas there is address space for, used or not.
    pub(crate) fn capacity(&self) -> u64 {
        let regions = self.regions.iter().flatten();
        let parts = regions.flat_map(|region| region.without_gaps(0, region.reserved));
        parts.map(|(first, end)| u64::from(end - first)).sum()
    }

    /// Bytes of metadata mapped.
    pub(crate) fn metadata_bytes(&self) -> usize {
        self.metadata
    }

    /// Arena `index` of region `number`.
    pub(super) const fn id(number: usize, index: u32) -> ArenaId {
        ArenaId((number << INDEX_BITS) as u32 | index)
    }

    #[inline(always)]
    fn region(&self, id: ArenaId) -> &Region {
        match &self.regions[(id.0 >> INDEX_BITS) as usize] {
            Some(region) => region,
            None => unreachable!("ids are made from existing regions"),
        }
    }

    #[inline(always)]
    fn pointer(&self, id: ArenaId) -> NonNull<Arena> {
        let region = self.region(id);
        let index = id.0 & (MAX_REGION_ARENAS as u32 - 1);
        assert!(index < region.arenas, "ids are made from existing arenas");
        // SAFETY: the records of a region are one mapping of `arenas` records, and the index is below that.
        unsafe { region.records.add(index as usize) }
    }

    #[inline(always)]
    pub(crate) fn arena(&self, id: ArenaId) -> &Arena {
        // SAFETY: the record is mapped, aligned and initialised (zero is a valid Arena: `Unmapped`, no lists),
        // and `&self` keeps `arena_mut` away.
        unsafe { self.pointer(id).as_ref() }
    }

    #[inline(always)]
    pub(crate) fn arena_mut(&mut self, id: ArenaId) -> &mut Arena {
        // SAFETY: as in `arena`; `&mut self` makes this the only reference.
        unsafe { self.pointer(id).as_mut() }
    }

    /// The address range of an arena.
    pub(crate) fn range(&self, id: ArenaId) -> AddressRange {
        let index = (id.0 & (MAX_REGION_ARENAS as u32 - 1)) as usize;
        AddressRange::new(self.region(id).range.start + index * ARENA_BYTES, ARENA_BYTES)
    }

    /// The arena of an address, if it lies in a region.
    #[inline]
    pub(crate) fn find(&self, address: usize) -> Option<ArenaId> {
        self.regions[..self.count].iter().enumerate().find_map(|(number, region)| {
            let region = region.as_ref()?;
            let index = address.wrapping_sub(region.range.start) / ARENA_BYTES;
            (index < region.before_gaps as usize || region.is_behind_gap(index))
                .then_some(ArenaId((number << INDEX_BITS | index) as u32))
        })
    }

    /// The region that contains an address, and what is reserved beside it: the first that asks gets that.
    pub(crate) fn region_of(&mut self, address: usize) -> Option<(AddressRange, Option<AddressRange>)> {
        let number = self.find(address)?.0 >> INDEX_BITS;
        let region = self.regions[number as usize].as_mut()?;
        Some((region.range, region.beside.take()))
    }

    /// See [`Arenas::reserve_beside`](super::Arenas::reserve_beside).
    pub(crate) fn reserve_beside(&mut self, bytes: fn(usize) -> usize) {
        self.beside = Some(bytes);
    }

    fn beside_bytes(&self, arenas: usize) -> Option<usize> {
        self.beside.map(|bytes| bytes(arenas * ARENA_BYTES).next_multiple_of(RESERVED))
    }

    /// A small arena never used before, or `None` when the regions are full.
    pub(crate) fn fresh(&mut self) -> Option<ArenaId> {
        let has_fresh = |region: &Option<Region>| {
            region.is_some_and(|region| region.low < region.high.min(region.gaps[0].0))
        };
        let number = self.regions[..self.count]
            .iter()
            .position(has_fresh)
            .or_else(|| (0..self.count).find(|&number| self.widen(number)))?;
        let region = self.regions[number].as_mut()?;
        let id = ArenaId((number << INDEX_BITS) as u32 | region.low);
        region.low += 1;
        Some(id)
    }

    /// An arena that was left behind a large block to grow into and never used. Looks at all arenas: for when
    /// there is no address space otherwise.
    pub(crate) fn spare(&self) -> Option<ArenaId> {
        self.used().find(|&id| self.arena(id).state == State::Unmapped)
    }

    /// `count` neighbouring arenas for a large block, highest addresses first: arenas that blocks left, else new ones.
    pub(crate) fn find_span(&mut self, count: u32) -> Option<ArenaId> {
        loop {
            let found = (0..self.count).find_map(|number| self.find_span_in(number, count));
            if found.is_some() || !(0..self.count).any(|number| self.widen(number)) {
                return found;
            }
        }
    }

    /// Uses more of what is reserved for a region, twice as much. Says no when all is used.
    fn widen(&mut self, number: usize) -> bool {
        let Some(region) = self.regions[number].as_mut() else { return false };
        let before = region.arenas;
        region.arenas = before.saturating_mul(2).min(region.reserved);
        if region.arenas == before {
            return false;
        }
        if region.low == region.high {
            // Both have met: all up to here was used, and they begin anew behind it.
            (region.low, region.high) = (before, region.arenas);
        }
        region.before_gaps = region.arenas.min(region.gaps[0].0);
        region.barren = [region.arenas; LENGTHS];
        true
    }

    fn find_span_in(&mut self, number: usize, count: u32) -> Option<ArenaId> {
        let region = self.regions[number].as_ref()?;
        let base = (number << INDEX_BITS) as u32;
        // A row of `count` contains one of this length.
        let length = (count.max(1).ilog2() as usize).min(LENGTHS - 1);
        // A row that reaches into the barren part ends before it is as long as what is wanted.
        let start = region.barren[length].saturating_add(count - 1).min(region.arenas);
        let (mut run, mut longest, mut index) = (0, 0, start);
        while index > region.low && run < count {
            index -= 1;
            let gap = region.gap_of(index);
            let idle = gap.is_none() && (index < region.high || self.is_idle(ArenaId(base | index)));
            if !idle {
                longest = longest.max(run);
            }
            run = if idle { run + 1 } else { 0 };
            if let Some(gap) = gap {
                index = gap.0;
            }
        }
        let found = run == count;
        // The row found is left out: it may stay idle after all. The unfinished row at the lower end counts.
        let (seen, longest) = if found { (index + count, longest) } else { (index, longest.max(run)) };
        // The first length above the longest row.
        let first = length.max((u32::BITS - longest.leading_zeros()) as usize);
        if let Some(region) = self.regions[number].as_mut() {
            for barren in region.barren.iter_mut().skip(first).take_while(|barren| **barren > seen) {
                *barren = seen;
            }
        }
        found.then_some(ArenaId(base | index))
    }

    /// Notes that an arena may have become idle. What is not noted is not found by [`find_span`](Self::find_span).
    pub(crate) fn note_idle(&mut self, id: ArenaId) {
        let index = id.0 & (MAX_REGION_ARENAS as u32 - 1);
        if let Some(region) = self.regions[(id.0 >> INDEX_BITS) as usize].as_mut() {
            for barren in region.barren.iter_mut().rev().take_while(|barren| **barren <= index) {
                *barren = index + 1;
            }
        }
    }

    /// Whether what searches remember is true. For tests: looks at all arenas.
    pub(crate) fn check_barren(&self) -> core::result::Result<(), &'static str> {
        for (number, region) in self.regions[..self.count].iter().flatten().enumerate() {
            if !region.barren.is_sorted_by(|shorter, longer| shorter >= longer) {
                return Err("a row known to be missing though a part of it is not");
            }
            let base = (number << INDEX_BITS) as u32;
            let mut run = 0_u32;
            for index in (region.low..region.arenas).rev() {
                let there = !region.is_gone(index);
                let idle = there && (index < region.high || self.is_idle(ArenaId(base | index)));
                run = if idle { run + 1 } else { 0 };
                let lengths = if run == 0 { 0 } else { run.ilog2() as usize + 1 };
                if region.barren[..lengths].iter().any(|&barren| index >= barren) {
                    return Err("idle arenas in a row that searches have forgotten");
                }
            }
        }
        Ok(())
    }

    /// The same wherever they are: where there are small arenas, too. Looks at all arenas: for when there is no
    /// address space otherwise. A program under `ulimit -v` that had freed all its small objects could have no
    /// large one.
    pub(crate) fn find_span_anywhere(&self, count: u32) -> Option<ArenaId> {
        (0..self.count).find_map(|number| {
            let region = self.regions[number].as_ref()?;
            let mut run = 0;
            let last = (0..region.arenas).find(|&index| {
                let between = (region.low..region.high).contains(&index);
                let idle = !region.is_gone(index) && (between || self.is_idle(Self::id(number, index)));
                run = if idle { run + 1 } else { 0 };
                run == count
            })?;
            Some(Self::id(number, last + 1 - count))
        })
    }

    /// Notes that a large block uses the `count` arenas from `first` on.
    pub(crate) fn claim_span(&mut self, first: ArenaId, count: u32) {
        let number = (first.0 >> INDEX_BITS) as usize;
        if let Some(region) = self.regions[number].as_mut() {
            let first = first.0 & (MAX_REGION_ARENAS as u32 - 1);
            if first >= region.low {
                region.high = region.high.min(first);
            } else {
                // It reaches up from where the small arenas are.
                region.low = region.low.max((first + count).min(region.high));
            }
        }
    }

    /// The arena after `id` in its region.
    pub(crate) fn after(&self, id: ArenaId) -> Option<ArenaId> {
        let (next, region) = (ArenaId(id.0 + 1), self.region(id));
        let index = next.0 & (MAX_REGION_ARENAS as u32 - 1);
        let same = next.0 >> INDEX_BITS == id.0 >> INDEX_BITS;
        (same && index < region.arenas && !region.is_gone(index)).then_some(next)
    }

    /// The arena before `id` in its region.
    pub(crate) fn before(&self, id: ArenaId) -> Option<ArenaId> {
        let index = id.0 & (MAX_REGION_ARENAS as u32 - 1);
        (index > 0 && !self.region(id).is_gone(index - 1)).then(|| ArenaId(id.0 - 1))
    }

    /// Whether a large block could take the arena.
    pub(crate) fn is_idle(&self, id: ArenaId) -> bool {
        let arena = self.arena(id);
        !arena.busy
            && !arena.apart
            && matches!(arena.state, State::Unmapped | State::Empty | State::GivenBack)
    }

    /// Whether the arena lies where large blocks are.
    pub(crate) fn was_high(&self, id: ArenaId) -> bool {
        id.0 & (MAX_REGION_ARENAS as u32 - 1) >= self.region(id).high
    }

    /// Every arena that was ever used, in the order of ids. (Some between large blocks were not.)
    pub(crate) fn used(&self) -> impl Iterator<Item = ArenaId> + '_ {
        self.used_from(ArenaId(0))
    }

    /// Those of [`used`](Self::used) from `first` on, without looking at the others.
    pub(crate) fn used_from(&self, first: ArenaId) -> impl Iterator<Item = ArenaId> + '_ {
        let start = (first.0 >> INDEX_BITS) as usize;
        let index = first.0 & (MAX_REGION_ARENAS as u32 - 1);
        (start..self.count).flat_map(move |number| {
            let base = (number << INDEX_BITS) as u32;
            let from = if number == start { index } else { 0 };
            let region = self.regions[number].as_ref();
            let parts = region
                .into_iter()
                .flat_map(move |region| region.without_gaps(region.high.max(from), region.arenas.max(from)));
            let low = region.map_or(0, |region| region.low);
            core::iter::once((from.min(low), low))
                .chain(parts)
                .flat_map(move |(first, end)| (first..end).map(move |index| ArenaId(base | index)))
        })
    }

    /// The ranges in which memory can be mapped, some of them empty: per region one from below, and those from
    /// above that its gaps leave.
    pub(crate) fn mapped_ranges(&self) -> impl Iterator<Item = AddressRange> + '_ {
        self.regions[..self.count].iter().flatten().flat_map(|region| {
            let above = region.without_gaps(region.high, region.arenas);
            core::iter::once((0, region.low)).chain(above).map(|(first, end)| region.range_of(first, end))
        })
    }

    /// Whether an arena has memory of its own.
    pub(crate) fn is_mapped(&self, id: ArenaId) -> bool {
        self.arena(id).made != Made::Nothing
    }
}

/// Zeroed memory for the records of a region.
fn map_records<P: Pages>(os: &P, bytes: usize) -> Result<AddressRange> {
    let records = os.reserve(bytes, RESERVED)?;
    // SAFETY: just reserved, owned by the caller alone, used by nobody yet.
    unsafe {
        os.map(records, Backing::Plain).inspect_err(|_| _ = os.release(records))?;
    }
    Ok(records)
}

#[cfg(test)]
impl Table {
    /// As if all arenas of the first region that are used first had been used once.
    pub(crate) fn use_near(&mut self) {
        let region = self.regions[0].as_mut().expect("a region");
        (region.low, region.high) = (region.arenas, region.arenas);
    }

    /// A table of one region of `arenas` arenas whose memory is never mapped.
    pub(crate) fn for_tests(arenas: usize) -> Self {
        use hugeheap_os::simulated::{Config, Kernel};
        let mut table = Self::NEW;
        let kernel = Kernel::new(Config::default());
        table.add_region(&kernel, arenas).expect("the simulated kernel has room");
        // The records are the kernel's memory and must outlive the table.
        core::mem::forget(kernel);
        for _ in 0..arenas {
            table.fresh();
        }
        table
    }
}

#[cfg(test)]
mod tests;

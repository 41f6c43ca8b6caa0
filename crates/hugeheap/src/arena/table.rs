//! Regions of address space, and the metadata of their arenas.
//!
//! ```text
//!   region     ├─ small arenas, used from below ─▶ ···free···  ◀─ large blocks, used from above ─┤
//!              start              low ─┘                    └─ high                          end
//!   records    ├──┬──┬──┬── one Arena (128 bytes) per arena, in a mapping of its own ────────────┤
//! ```
//!
//! One region is reserved when the first arena is needed, further ones when it is full. Address → metadata is one
//! subtraction and one shift in the region; there is one region unless `ulimit -v` kept it small.
//!
//! Large blocks grow, so they are kept away from the small arenas, which would be in their way.

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

const _: () = assert!((MAX_REGIONS << INDEX_BITS) < u32::MAX as usize, "ids stay below ArenaId::NONE");

#[derive(Clone, Copy)]
struct Region {
    range: AddressRange,
    records: NonNull<Arena>,
    arenas: u32,
    /// Arenas below were used at least once as small arenas.
    low: u32,
    /// Arenas from here on were used at least once by large blocks.
    high: u32,
}

/// All regions of a heap.
pub(crate) struct Table {
    regions: [Option<Region>; MAX_REGIONS],
    count: usize,
    /// Bytes of metadata mapped.
    metadata: usize,
}

// SAFETY: the table owns its records; nothing else points to them, so it may move between threads.
unsafe impl Send for Table {}

impl Table {
    pub(crate) const NEW: Self = Self { regions: [None; MAX_REGIONS], count: 0, metadata: 0 };

    /// Reserves a further region of `arenas` arenas. Its metadata is zero, that is `Unmapped`.
    pub(crate) fn add_region<P: Pages>(&mut self, os: &P, arenas: usize) -> Result<()> {
        let full = hugeheap_os::Error::new("reserve(region)", libc::ENOMEM);
        if self.count == MAX_REGIONS || arenas == 0 {
            return Err(full);
        }
        let arenas = arenas.min(MAX_REGION_ARENAS);
        let range = os.reserve(arenas * ARENA_BYTES, ARENA_BYTES)?;
        // A multiple of 64 KiB: of the OS page everywhere.
        let bytes = (arenas * size_of::<Arena>()).next_multiple_of(64 << 10);
        let records = os.reserve(bytes, 64 << 10).and_then(|records| {
            // SAFETY: just reserved, owned by this table alone, used by nobody yet.
            unsafe { os.map(records, Backing::Plain) }.map(|()| records).inspect_err(|_| {
                // SAFETY: the reservation was made above and nothing refers to it.
                let _ = unsafe { os.release(records) };
            })
        });
        let records = match records {
            Ok(records) => records,
            Err(error) => {
                // SAFETY: the reservation was made above and nothing refers to it.
                let _ = unsafe { os.release(range) };
                return Err(error);
            }
        };
        // Names help to find the memory in /proc/PID/maps; kernels without the option refuse, which is harmless.
        let _ = os.name(range, c"hugeheap");
        let _ = os.name(records, c"hugeheap metadata");
        let Some(pointer) = NonNull::new(records.start as *mut Arena) else { return Err(full) };
        self.metadata += bytes;
        self.regions[self.count] =
            Some(Region { range, records: pointer, arenas: arenas as u32, low: 0, high: arenas as u32 });
        self.count += 1;
        Ok(())
    }

    /// Bytes of metadata mapped.
    pub(crate) fn metadata_bytes(&self) -> usize {
        self.metadata
    }

    fn region(&self, id: ArenaId) -> &Region {
        match &self.regions[(id.0 >> INDEX_BITS) as usize] {
            Some(region) => region,
            None => unreachable!("ids are made from existing regions"),
        }
    }

    fn pointer(&self, id: ArenaId) -> NonNull<Arena> {
        let region = self.region(id);
        let index = id.0 & (MAX_REGION_ARENAS as u32 - 1);
        assert!(index < region.arenas, "ids are made from existing arenas");
        // SAFETY: the records of a region are one mapping of `arenas` records, and the index is below that.
        unsafe { region.records.add(index as usize) }
    }

    pub(crate) fn arena(&self, id: ArenaId) -> &Arena {
        // SAFETY: the record is mapped, aligned and initialised (zero is a valid Arena: `Unmapped`, no lists), and `&self`
        // keeps `arena_mut` away.
        unsafe { self.pointer(id).as_ref() }
    }

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
            region.range.contains(address).then(|| {
                let index = (address - region.range.start) / ARENA_BYTES;
                ArenaId((number << INDEX_BITS | index) as u32)
            })
        })
    }

    /// The region that contains an address.
    pub(crate) fn region_of(&self, address: usize) -> Option<AddressRange> {
        self.find(address).map(|id| self.region(id).range)
    }

    /// A small arena never used before, or `None` when the regions are full.
    pub(crate) fn fresh(&mut self) -> Option<ArenaId> {
        let number = (0..self.count).find(|&n| self.regions[n].is_some_and(|r| r.low < r.high))?;
        let region = self.regions[number].as_mut()?;
        let id = ArenaId((number << INDEX_BITS) as u32 | region.low);
        region.low += 1;
        Some(id)
    }

    /// An arena that was left behind a large block to grow into and never used. Looks at all arenas: for when there is no
    /// address space otherwise.
    pub(crate) fn spare(&self) -> Option<ArenaId> {
        self.used().find(|&id| self.arena(id).state == State::Unmapped)
    }

    /// `count` neighbouring arenas for a large block, highest addresses first: arenas that blocks left, else new ones.
    pub(crate) fn find_span(&self, count: u32) -> Option<ArenaId> {
        (0..self.count).find_map(|number| {
            let region = self.regions[number].as_ref()?;
            let base = (number << INDEX_BITS) as u32;
            let mut run = 0;
            let mut index = region.arenas;
            while index > region.low {
                index -= 1;
                run = if index < region.high || self.is_idle(ArenaId(base | index)) { run + 1 } else { 0 };
                if run == count {
                    return Some(ArenaId(base | index));
                }
            }
            None
        })
    }

    /// Notes that a large block uses the arenas from `first` on.
    pub(crate) fn claim_span(&mut self, first: ArenaId) {
        let number = (first.0 >> INDEX_BITS) as usize;
        if let Some(region) = self.regions[number].as_mut() {
            region.high = region.high.min(first.0 & (MAX_REGION_ARENAS as u32 - 1));
        }
    }

    /// The arena after `id` in its region.
    pub(crate) fn after(&self, id: ArenaId) -> Option<ArenaId> {
        let next = ArenaId(id.0 + 1);
        (next.0 >> INDEX_BITS == id.0 >> INDEX_BITS
            && next.0 & (MAX_REGION_ARENAS as u32 - 1) < self.region(id).arenas)
            .then_some(next)
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
            let (low, high, end) = self.regions[number].map_or((0, 0, 0), |r| (r.low, r.high, r.arenas));
            let from = if number == start { index } else { 0 };
            (from.min(low)..low).chain(high.max(from)..end.max(from)).map(move |index| ArenaId(base | index))
        })
    }

    /// The ranges in which memory can be mapped: per region one from below and one from above.
    pub(crate) fn mapped_ranges(&self) -> impl Iterator<Item = AddressRange> + '_ {
        self.regions[..self.count].iter().flatten().flat_map(|region| {
            let start = region.range.start;
            let low = AddressRange::new(start, region.low as usize * ARENA_BYTES);
            let high_start = start + region.high as usize * ARENA_BYTES;
            [low, AddressRange::new(high_start, region.range.end() - high_start)]
        })
    }

    /// Whether an arena has memory of its own.
    pub(crate) fn is_mapped(&self, id: ArenaId) -> bool {
        self.arena(id).made != Made::Nothing
    }
}

#[cfg(test)]
impl Table {
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

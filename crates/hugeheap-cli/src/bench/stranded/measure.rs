//! One run: the steps of a variant, and a look at the process after each.
//!
//! The process looks at itself. Its charge is that of its own cgroup, so that it is nobody else's memory.

use crate::bench::charge::Group;
use crate::bench::region::{Region, Standing};
use hugeheap::arena::{ARENA_BYTES, Policy, Settings};
use hugeheap::object::{ProcessHeap, space};
use hugeheap::runtime::runtime;
use hugeheap_os::linux::{Linux, LinuxProcess};
use hugeheap_os::{AddressRange, Backing};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

/// What the memory of a variant is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    OsPages,
    Thp,
    /// Blocks of hugeheap's object heap.
    Heap,
}

impl Memory {
    pub(crate) const ALL: [Self; 3] = [Self::OsPages, Self::Thp, Self::Heap];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::OsPages => "OS pages",
            Self::Thp => "THP",
            Self::Heap => "hugeheap",
        }
    }
}

/// What was done before a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Doing {
    Before,
    Filled,
    /// All but one OS page, or one block, of each huge page was freed.
    Freed,
    /// The rest of each huge page was given back.
    GivenBack,
    /// Nothing is live any more.
    Dropped,
}

impl Doing {
    pub(crate) const ALL: [Self; 5] =
        [Self::Before, Self::Filled, Self::Freed, Self::GivenBack, Self::Dropped];

    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::Filled => "filled",
            Self::Freed => "one live piece each",
            Self::GivenBack => "given back (split)",
            Self::Dropped => "nothing left",
        }
    }
}

/// A look after a step. Bytes.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Look {
    pub(crate) doing: Doing,
    pub(crate) rss: u64,
    pub(crate) charge: Option<u64>,
    /// Huge pages of the whole host of which only a part is mapped.
    pub(crate) partly_mapped_on_host: Option<u64>,
    /// What the step took.
    pub(crate) seconds: f64,
    /// Whether all that is live has its contents.
    pub(crate) intact: bool,
}

/// Looks, by step.
pub(crate) type Run = Vec<Look>;

/// Decay time of the heap: how long memory must be left alone before it is given back. Shorter than the default
/// of a second, because nothing is allocated again here.
const DECAY: Duration = Duration::from_millis(100);
/// A heap that gave nothing back for so long has nothing more to give: ten decay times.
const QUIET: Duration = Duration::from_secs(1);
/// An end in any case.
const PATIENCE: Duration = Duration::from_secs(60);
/// Blocks that an arena is filled with. Two lie on one OS page, so that one live block is less than an OS page.
const BLOCK: usize = 2048;

/// Measures, in the process that asks.
///
/// # Errors
/// When the memory cannot be had, or the kernel refuses a step.
pub(crate) fn measure(memory: Memory, huge_pages: u64, group: Option<&Group>) -> Result<Run, String> {
    let looker = Looker { charge: group.map(Group::usage_file) };
    match memory {
        Memory::OsPages => region(huge_pages, Backing::Base, &looker),
        Memory::Thp => region(huge_pages, Backing::Thp, &looker),
        Memory::Heap => heap(huge_pages, &looker),
    }
}

struct Looker {
    charge: Option<PathBuf>,
}

impl Looker {
    fn charge(&self) -> Option<u64> {
        std::fs::read_to_string(self.charge.as_ref()?).ok()?.trim().parse().ok()
    }

    fn look(&self, doing: Doing, since: Instant, intact: bool) -> Look {
        let seconds = since.elapsed().as_secs_f64();
        Look {
            doing,
            rss: Standing::own().rss,
            charge: self.charge(),
            partly_mapped_on_host: LinuxProcess::partially_mapped_on_host(Linux::new()),
            seconds,
            intact,
        }
    }
}

fn region(huge_pages: u64, backing: Backing, looker: &Looker) -> Result<Run, String> {
    let huge_page = hugeheap_os::Facts::page_sizes(&Linux::new()).huge.ok_or("no huge pages here")?;
    let region = Region::map(huge_pages * huge_page as u64, backing)?;
    let mut looks = vec![looker.look(Doing::Before, Instant::now(), true)];
    let os_page = region.os_page;
    let start = Instant::now();
    for offset in (0..region.range.len).step_by(os_page) {
        region.write(offset, number(offset));
        region.write(offset + os_page - 8, !number(offset));
    }
    let intact = || {
        region.units().all(|unit| {
            let offset = unit.start - region.range.start;
            region.read(offset) == number(offset) && region.read(offset + os_page - 8) == !number(offset)
        })
    };
    looks.push(looker.look(Doing::Filled, start, intact()));
    let start = Instant::now();
    for unit in region.units() {
        region.decommit(AddressRange::new(unit.start + os_page, unit.len - os_page))?;
    }
    looks.push(looker.look(Doing::Freed, start, intact()));
    // There is nothing to split on OS pages: the look shows the same again.
    let start = Instant::now();
    if backing == Backing::Thp {
        for unit in region.units() {
            region.split(AddressRange::new(unit.start, os_page))?;
        }
    }
    looks.push(looker.look(Doing::GivenBack, start, intact()));
    let start = Instant::now();
    region.decommit(region.range)?;
    looks.push(looker.look(
        Doing::Dropped,
        start,
        region.units().all(|unit| region.read(unit.start - region.range.start) == 0),
    ));
    Ok(looks)
}

/// Contents of the page at `offset`: no two have the same.
fn number(offset: usize) -> u64 {
    offset as u64 ^ 0x5EED_0000_0000_0001
}

fn heap(huge_pages: u64, looker: &Looker) -> Result<Run, String> {
    runtime().start(Settings { policy: Policy::Thp, decay: DECAY.as_nanos() as u64, ..Settings::DEFAULT });
    let mut heap = space().acquire().ok_or("no memory for a heap")?;
    let mut looks = vec![looker.look(Doing::Before, Instant::now(), true)];
    let start = Instant::now();
    let mut blocks = Vec::new();
    // The list itself is not what is looked at, and is there before.
    blocks.reserve_exact(huge_pages as usize * (ARENA_BYTES / BLOCK));
    for _ in 0..blocks.capacity() {
        let block = heap.allocate(BLOCK).ok_or("no memory for a block")?;
        write(block);
        blocks.push(block);
    }
    looks.push(looker.look(Doing::Filled, start, blocks.iter().all(|&block| is_intact(block))));
    let start = Instant::now();
    let live = free_all_but_one_each(&mut heap, blocks);
    looks.push(looker.look(Doing::Freed, start, live.iter().all(|&block| is_intact(block))));
    heap.trim();
    let took = give_back();
    let mut look = looker.look(Doing::GivenBack, Instant::now(), live.iter().all(|&block| is_intact(block)));
    look.seconds = took.as_secs_f64();
    looks.push(look);
    let start = Instant::now();
    for block in live {
        // SAFETY: a live block of this heap, and the list with it is gone.
        unsafe { heap.free(block) };
    }
    heap.trim();
    give_back();
    looks.push(looker.look(Doing::Dropped, start, true));
    Ok(looks)
}

/// Frees all but the first block of each arena; what is left.
fn free_all_but_one_each(heap: &mut ProcessHeap, mut blocks: Vec<NonNull<u8>>) -> Vec<NonNull<u8>> {
    blocks.sort_unstable();
    let mut live: Vec<NonNull<u8>> = Vec::new();
    for block in blocks {
        let arena = |block: NonNull<u8>| block.addr().get() / ARENA_BYTES;
        if live.last().is_none_or(|&last| arena(last) != arena(block)) {
            live.push(block);
        } else {
            // SAFETY: a live block of this heap that is in no list any more.
            unsafe { heap.free(block) };
        }
    }
    live
}

/// Lets the heap give back until it has nothing more to give. How long it took until then.
fn give_back() -> Duration {
    let start = Instant::now();
    let mut last = Duration::ZERO;
    while start.elapsed() < PATIENCE && start.elapsed() - last < QUIET {
        if runtime().give_back() > 0 {
            last = start.elapsed();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    last
}

fn write(block: NonNull<u8>) {
    let words = block.cast::<u64>();
    // SAFETY: the block has BLOCK bytes, is aligned to 16, and is ours.
    unsafe {
        words.write(number(block.addr().get()));
        words.add(BLOCK / 8 - 1).write(!number(block.addr().get()));
    }
}

fn is_intact(block: NonNull<u8>) -> bool {
    let words = block.cast::<u64>();
    let number = number(block.addr().get());
    // SAFETY: as `write`, and written by it.
    unsafe { words.read() == number && words.add(BLOCK / 8 - 1).read() == !number }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::forked;

    #[test]
    fn memory_falls_by_steps_and_contents_stay() {
        for memory in Memory::ALL {
            let looks: Run = forked::run(None, |_| measure(memory, 8, None)).unwrap();
            let doing: Vec<_> = looks.iter().map(|look| look.doing).collect();
            assert_eq!(doing, Doing::ALL);
            assert!(looks.iter().all(|look| look.intact), "{memory:?} {looks:?}");
            // A copy of this process has the arenas that other tests left in the process's heap.
            if memory == Memory::Heap {
                continue;
            }
            let rss = |at: usize| looks[at].rss;
            assert!(rss(1) > rss(0) + (14 << 20), "{memory:?} {looks:?}");
            assert!(rss(3) < rss(1) - (10 << 20), "{memory:?} {looks:?}");
        }
    }
}

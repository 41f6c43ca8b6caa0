//! The program that is squeezed: it builds what it holds, then works round by round, whenever it is told to.
//!
//! A round reads all that is live and makes and frees a burst of new memory, as a request does.

use crate::bench::region::Region;
use hugeheap::arena::Settings;
use hugeheap::object::{ProcessHeap, space};
use hugeheap::runtime::runtime;
use hugeheap_os::{AddressRange, Backing};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Read, Write};
use std::ptr::NonNull;

/// What a program holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Shape {
    /// Everything was filled once, and all but one OS page of each huge page was freed.
    Freed,
    /// One OS page of each huge page was ever used: buffers and tables that are larger than what is in them.
    Sparse,
}

impl Shape {
    pub(crate) const ALL: [Self; 2] = [Self::Freed, Self::Sparse];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Freed => "freed",
            Self::Sparse => "sparse",
        }
    }

    pub(crate) const fn description(self) -> &'static str {
        match self {
            Self::Freed => "filled once, then all but one OS page of each huge page freed",
            Self::Sparse => "one OS page of each huge page ever used",
        }
    }
}

/// What its memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    OsPages,
    Thp,
    Heap,
}

impl Memory {
    pub(crate) const ALL: [Self; 3] = [Self::OsPages, Self::Thp, Self::Heap];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::OsPages => "OS pages",
            Self::Thp => "THP always",
            Self::Heap => "hugeheap",
        }
    }
}

/// Of what is filled, the share of a burst: so much that who still holds what was freed has no room for it.
pub(crate) const BURST: u64 = 8;
/// Blocks of hugeheap's heap that are filled and freed; two on an OS page.
const BLOCK: usize = 2048;
/// What it says when it has built what it holds, and after each round.
pub(crate) const BUILT: &str = "built";
pub(crate) const ROUND: &str = "round";

/// Builds and works, one round for each byte of `orders`, to their end.
///
/// # Errors
/// When memory cannot be had, or what is live is not what was written.
pub(crate) fn run(
    shape: Shape,
    memory: Memory,
    huge_pages: u64,
    orders: &mut File,
    told: &mut File,
) -> Result<(), String> {
    // The kernel shall have nobody else in mind: this is the only process of its group.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let program: Box<dyn Work> = match memory {
        Memory::OsPages => Box::new(Mapped::build(shape, huge_pages, Backing::Base)?),
        Memory::Thp => Box::new(Mapped::build(shape, huge_pages, Backing::Thp)?),
        Memory::Heap => Box::new(Blocks::build(shape, huge_pages)?),
    };
    work(program, orders, told)
}

fn work(mut program: Box<dyn Work>, orders: &mut File, told: &mut File) -> Result<(), String> {
    let mut say =
        |what: &str| told.write_all(format!("{what}\n").as_bytes()).map_err(|error| error.to_string());
    say(BUILT)?;
    let mut order = [0];
    while orders.read(&mut order).unwrap_or(0) == 1 {
        program.burst()?;
        if !program.is_intact() {
            return Err("its data was lost".to_owned());
        }
        say(ROUND)?;
    }
    Ok(())
}

trait Work {
    fn burst(&mut self) -> Result<(), String>;
    fn is_intact(&self) -> bool;
}

/// Memory that is mapped, and dropped by `MADV_DONTNEED`, as allocators do.
struct Mapped {
    held: Region,
    burst: Region,
}

impl Mapped {
    fn build(shape: Shape, huge_pages: u64, backing: Backing) -> Result<Self, String> {
        let unit = hugeheap_os::Facts::page_sizes(&hugeheap_os::linux::Linux::new()).huge.unwrap_or(2 << 20);
        let held = Region::map(huge_pages * unit as u64, backing)?;
        let burst = Region::map(huge_pages * unit as u64 / BURST, backing)?;
        if shape == Shape::Freed {
            held.touch();
        }
        for unit in held.units() {
            let offset = unit.start - held.range.start;
            held.write(offset, offset as u64 + 1);
            if shape == Shape::Freed {
                held.decommit(AddressRange::new(unit.start + held.os_page, unit.len - held.os_page))?;
            }
        }
        Ok(Self { held, burst })
    }
}

impl Work for Mapped {
    fn burst(&mut self) -> Result<(), String> {
        self.burst.touch();
        self.burst.decommit(self.burst.range)
    }

    fn is_intact(&self) -> bool {
        self.held.units().all(|unit| {
            let offset = unit.start - self.held.range.start;
            self.held.read(offset) == offset as u64 + 1
        })
    }
}

/// Blocks of hugeheap's heap, as it is by default.
struct Blocks {
    heap: ProcessHeap,
    live: Vec<NonNull<u8>>,
    burst: Vec<NonNull<u8>>,
}

impl Blocks {
    fn build(shape: Shape, huge_pages: u64) -> Result<Self, String> {
        runtime().start(Settings::DEFAULT);
        let unit = hugeheap::arena::ARENA_BYTES;
        let mut heap = space().acquire().ok_or("no memory for a heap")?;
        let mut live: Vec<NonNull<u8>> = Vec::new();
        let none = "no memory for a block";
        match shape {
            Shape::Sparse => {
                for _ in 0..huge_pages {
                    live.push(heap.allocate(unit).ok_or(none)?);
                }
            }
            Shape::Freed => {
                let count = huge_pages as usize * (unit / BLOCK);
                let mut blocks = Vec::with_capacity(count);
                for _ in 0..count {
                    let block = heap.allocate(BLOCK).ok_or(none)?;
                    mark(block);
                    blocks.push(block);
                }
                blocks.sort_unstable();
                for block in blocks {
                    let arena = |block: NonNull<u8>| block.addr().get() / unit;
                    if live.last().is_none_or(|&last| arena(last) != arena(block)) {
                        live.push(block);
                    } else {
                        // SAFETY: a live block that is in no list any more.
                        unsafe { heap.free(block) };
                    }
                }
            }
        }
        live.iter().for_each(|&block| mark(block));
        let burst = Vec::with_capacity(huge_pages as usize * unit / BURST as usize / BLOCK);
        Ok(Self { heap, live, burst })
    }
}

impl Work for Blocks {
    fn burst(&mut self) -> Result<(), String> {
        for _ in 0..self.burst.capacity() {
            let block = self.heap.allocate(BLOCK).ok_or("no memory for a block")?;
            mark(block);
            self.burst.push(block);
        }
        for block in self.burst.drain(..) {
            // SAFETY: a live block, taken out of the only list it is in.
            unsafe { self.heap.free(block) };
        }
        Ok(())
    }

    fn is_intact(&self) -> bool {
        // SAFETY: live blocks of at least eight bytes, written by mark.
        self.live.iter().all(|&block| unsafe { block.cast::<usize>().read() } == block.addr().get())
    }
}

fn mark(block: NonNull<u8>) {
    // SAFETY: a live block of at least eight bytes, aligned to 16.
    unsafe { block.cast::<usize>().write(block.addr().get()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::forked::{Forked, pipe};

    #[test]
    fn each_order_is_a_round_and_their_end_the_end() {
        for shape in Shape::ALL {
            for memory in Memory::ALL {
                let (mut orders, mut order) = pipe().unwrap();
                let mut child = Forked::start(None, |told| {
                    // The copy of the writing end would keep the orders open.
                    // SAFETY: the parent's descriptor is its own; this is the child's.
                    unsafe { libc::close(std::os::fd::AsRawFd::as_raw_fd(&order)) };
                    run(shape, memory, 8, &mut orders, told)
                })
                .unwrap();
                assert_eq!(child.line().as_deref(), Some(BUILT), "{shape:?} {memory:?}");
                for _ in 0..2 {
                    order.write_all(b"1").unwrap();
                    assert_eq!(child.line().as_deref(), Some(ROUND));
                }
                drop(order);
                assert_eq!(child.end::<()>(), Ok(()));
            }
        }
    }
}

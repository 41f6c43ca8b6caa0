//! A heap of objects of 40 bytes in heap pages of one size: how much can be given back?
//!
//! ```text
//!   fill with N objects ──▶ free some by generations ──▶ give empty heap pages back ──▶ fill up again
//! ```
//!
//! Objects die in groups (those of a request die together), and a few of each group stay. The smaller a heap
//! page, the more of them are empty then. The memory is real, on OS pages: a heap page is given back by
//! `MADV_DONTNEED`, runs of neighbours in one call.

use crate::bench::region::{Region, Standing};
use hugeheap_os::{AddressRange, Backing};
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Sizes of heap pages in bytes.
pub(crate) const SIZES: [usize; 4] = [16 << 10, 32 << 10, 64 << 10, 128 << 10];
/// CRuby's objects.
const OBJECT: usize = 40;
/// Objects that are made together and die together. A request or a file that is parsed makes some ten thousand.
const GROUP: usize = 10_000;
/// Of a group, one object in so many stays, at random: 0.05 % is one in five heap pages of 16 KiB.
const STAYS: u64 = 2_000;

/// What a run tells. Bytes and seconds.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Run {
    pub(crate) heap_page: usize,
    pub(crate) objects: u64,
    pub(crate) pages: u64,
    /// Lost at the ends of heap pages, where no object fits.
    pub(crate) rounding: u64,
    pub(crate) peak: u64,
    /// What objects that stay take.
    pub(crate) live: u64,
    pub(crate) given_back: u64,
    pub(crate) rss_after: u64,
    /// To find and give back the empty heap pages, and in how many calls.
    pub(crate) give_back: f64,
    pub(crate) calls: u64,
    /// To fill what was given back again.
    pub(crate) refill: f64,
    pub(crate) intact: bool,
}

/// Measures, in the process that asks.
///
/// # Errors
/// When the memory cannot be had, or the kernel refuses to take it back.
pub(crate) fn measure(heap_page: usize, objects: u64) -> Result<Run, String> {
    let objects = usize::try_from(objects).map_err(|error| error.to_string())?;
    let slots = heap_page / OBJECT;
    let pages = objects.div_ceil(slots);
    let before = Standing::own().rss;
    let region = Region::map((pages * heap_page) as u64, Backing::Base)?;
    // In a heap page the objects stand one behind the other.
    let place = |object: usize| object / slots * heap_page + object % slots * OBJECT;
    for object in 0..objects {
        region.write(place(object), object as u64);
    }
    let peak = Standing::own().rss - before;
    let mut live = vec![0_u32; pages];
    let mut staying = Vec::new();
    let mut random = 0x5EED_u64;
    for object in 0..objects {
        // Something of every eighth group stays in any case.
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        if object % (GROUP * 8) == 0 || (random >> 33) % STAYS == 0 {
            live[object / slots] += 1;
            staying.push(object);
        }
    }
    let start = Instant::now();
    let (mut given_back, mut calls) = (0, 0);
    let mut page = 0;
    while page < pages {
        let run = live[page..].iter().take_while(|&&live| live == 0).count();
        if run > 0 {
            let range = AddressRange::new(region.range.start + page * heap_page, run * heap_page);
            region.decommit(range)?;
            given_back += range.len as u64;
            calls += 1;
        }
        page += run + 1;
    }
    let give_back = start.elapsed().as_secs_f64();
    let rss_after = Standing::own().rss.saturating_sub(before);
    let intact = staying.iter().all(|&object| region.read(place(object)) == object as u64);
    let start = Instant::now();
    for object in (0..objects).filter(|object| live[object / slots] == 0) {
        region.write(place(object), object as u64);
    }
    Ok(Run {
        heap_page,
        objects: objects as u64,
        pages: pages as u64,
        rounding: (pages * (heap_page % OBJECT)) as u64,
        peak,
        live: (staying.len() * OBJECT) as u64,
        given_back,
        rss_after,
        give_back,
        calls,
        refill: start.elapsed().as_secs_f64(),
        intact,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaller_heap_pages_give_more_back() {
        let runs = SIZES.map(|size| measure(size, 200_000).unwrap());
        assert!(runs.iter().all(|run| run.intact && run.live == runs[0].live), "{runs:?}");
        assert!(runs.windows(2).all(|pair| pair[0].given_back > pair[1].given_back), "{runs:?}");
        assert_eq!(runs[0].rounding, runs[0].pages * 24);
    }
}

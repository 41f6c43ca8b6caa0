//! One run: first touch, then passes in order, then scattered ones; timed apart.

use crate::bench::region::{Region, Standing};
use hugeheap_os::Backing;
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::time::Instant;

/// What the pages of a variant are.
#[derive(Clone, Debug)]
pub(crate) struct Pages {
    pub(crate) name: String,
    pub(crate) backing: Backing,
}

/// What a run tells. Times in nanoseconds per access.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Run {
    pub(crate) first_touch: f64,
    pub(crate) in_order: Vec<f64>,
    pub(crate) scattered: Vec<f64>,
    pub(crate) first_touch_faults: u64,
    pub(crate) pass_faults: u64,
    /// What was added to the process's page tables. Bytes.
    pub(crate) page_tables: u64,
    /// Bytes, and those of them on huge pages.
    pub(crate) resident: u64,
    pub(crate) huge: u64,
}

impl Run {
    /// Passes after the first: what the memory costs once everything is there.
    pub(crate) fn later(&self, order: Order) -> f64 {
        let passes = match order {
            Order::InOrder => &self.in_order,
            Order::Scattered => &self.scattered,
        };
        crate::statistics::median(passes.get(1..).unwrap_or_default()).unwrap_or(f64::NAN)
    }

    /// The first touch and all passes in order, per access of the passes: what whoever starts the clock too early sees.
    pub(crate) fn with_first_touch(&self) -> f64 {
        (self.first_touch + self.in_order.iter().sum::<f64>()) / self.in_order.len() as f64
    }

    pub(crate) fn coverage(&self) -> f64 {
        if self.resident == 0 { 0.0 } else { self.huge as f64 / self.resident as f64 }
    }
}

/// Which page comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The neighbour, as in the reference. The entries of eight pages share a cache line, so seven of eight
    /// walks are short.
    InOrder,
    /// One far away: no neighbour's entry was read lately.
    Scattered,
}

impl Order {
    /// Distance in pages from one access to the next, such that all `pages` are met.
    fn step(self, pages: usize) -> usize {
        match self {
            Self::InOrder => 1,
            // The golden section keeps any few accesses in a row far apart from each other.
            Self::Scattered => {
                let wanted = ((pages as f64 * 0.618_033_988_75) as usize).max(1);
                (wanted..).find(|&step| coprime(step, pages)).unwrap_or(1)
            }
        }
    }
}

fn coprime(mut a: usize, mut b: usize) -> bool {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a == 1
}

/// Measures, in the process that asks.
///
/// # Errors
/// When the memory cannot be had.
pub(crate) fn measure(size: u64, backing: Backing, passes: u32) -> Result<Run, String> {
    let before = Standing::own();
    let region = Region::map(size, backing)?;
    let accesses = region.os_pages() as f64;
    let start = Instant::now();
    region.touch();
    let first_touch = start.elapsed().as_nanos() as f64 / accesses;
    let touched = Standing::own();
    let pass = |order: Order| -> Vec<f64> {
        (0..passes)
            .map(|_| {
                let start = Instant::now();
                black_box(walk(&region, order));
                start.elapsed().as_nanos() as f64 / accesses
            })
            .collect()
    };
    let (in_order, scattered) = (pass(Order::InOrder), pass(Order::Scattered));
    let after = Standing::own();
    let residency = region.residency()?;
    Ok(Run {
        first_touch,
        in_order,
        scattered,
        first_touch_faults: touched.minor_faults - before.minor_faults,
        pass_faults: after.minor_faults - touched.minor_faults,
        page_tables: after.page_tables.saturating_sub(before.page_tables),
        resident: residency.resident,
        huge: residency.huge(),
    })
}

/// Reads once from each OS page; the sum, so that the reads are not left out.
fn walk(region: &Region, order: Order) -> u64 {
    let pages = region.os_pages();
    let step = order.step(pages);
    let (mut page, mut sum) = (0, 0_u64);
    for _ in 0..pages {
        sum = sum.wrapping_add(region.read(page * region.os_page));
        page += step;
        if page >= pages {
            page -= pages;
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_read_once_in_either_order() {
        let region = Region::map(6 << 20, Backing::Base).unwrap();
        region.touch();
        for order in [Order::InOrder, Order::Scattered] {
            assert_eq!(walk(&region, order), region.os_pages() as u64);
            for pages in [1, 2, 512, 1536, 262_144] {
                let step = order.step(pages);
                assert!(coprime(step, pages) && step <= pages.max(2), "{order:?} {pages} {step}");
            }
        }
    }

    #[test]
    fn a_run_tells_first_touch_and_passes_apart() {
        let run = measure(4 << 20, Backing::Base, 3).unwrap();
        assert!(run.first_touch > 0.0);
        assert_eq!((run.in_order.len(), run.scattered.len()), (3, 3));
        assert!(run.first_touch_faults >= 1024, "{}", run.first_touch_faults);
        assert!(run.pass_faults < 512, "{}", run.pass_faults);
        assert_eq!((run.resident, run.huge), (4 << 20, 0));
        assert!(run.with_first_touch() > run.in_order.iter().sum::<f64>() / 3.0);
    }
}

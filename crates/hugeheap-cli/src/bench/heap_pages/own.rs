//! What hugeheap's own heap makes of requests for heap pages, asked like the other allocators.

use super::ruby::{ALIGN, PROBED, Probe, REQUESTS};
use hugeheap::object::space;

/// Asks, in the process that calls: a child, because the blocks are not freed.
///
/// # Errors
/// When there is no memory.
pub(super) fn probe() -> Result<Vec<Probe>, String> {
    let mut heap = space().acquire().ok_or("no memory for a heap")?;
    let probed = REQUESTS.map(|size| {
        let mut blocks = Vec::new();
        let mut usable = 0;
        for _ in 0..PROBED {
            let block =
                heap.allocate_aligned(size as usize, ALIGN as usize).ok_or("no memory for the blocks")?;
            usable = heap.usable_size(block).map_err(|_| "a block is not known")?;
            blocks.push(block.as_ptr() as u64);
        }
        blocks.sort_unstable();
        let mut distances: Vec<u64> = blocks.windows(2).map(|pair| pair[1] - pair[0]).collect();
        distances.sort_unstable();
        Ok(Probe { size: size.into(), usable: usable as u64, distance: distances[distances.len() / 2] })
    });
    probed.into_iter().collect::<Result<_, &str>>().map_err(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_of_a_heap_page_is_one() {
        let probed = crate::bench::forked::run(None, |_| probe()).unwrap();
        assert_eq!(probed.iter().map(|one| one.size).collect::<Vec<_>>(), [16_384, 16_344]);
        // Less than a heap page is one, too: what is beyond the request can be used.
        assert!(probed.iter().all(|one| one.usable == 16_384 && one.distance == 16_384), "{probed:?}");
    }
}

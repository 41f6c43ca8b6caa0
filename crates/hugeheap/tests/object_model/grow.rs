//! Blocks that grow piece by piece, and the sizes that are told of them.

use super::{ENOUGH, Machine, pointer};

impl Machine {
    /// A block becomes a little larger, or smaller, several times.
    pub(super) fn grow(&mut self, picked: usize, number: usize, how: u8) {
        let Some((mut address, _)) = self.pick(picked) else { return };
        for step in 0..(1 + picked % 13) {
            if self.live_bytes > ENOUGH {
                return;
            }
            let live = self.live[&address];
            let bytes = match how % 5 {
                0 | 1 => live.bytes + live.bytes / 80 + 1 + step,
                2 => live.bytes + live.bytes / 8 + 3,
                3 => live.bytes + live.bytes / 2 + 16,
                _ => live.bytes - live.bytes / 50,
            };
            let Some(heap) = self.heap(number) else { return };
            // SAFETY: live, and this machine's.
            let moved = unsafe { heap.try_reallocate(pointer(address), bytes) }.expect("the block is live");
            let Some(moved) = moved else {
                self.refused();
                self.check_contents(address, &live, live.bytes);
                self.fits(address, live.bytes);
                return;
            };
            let usable = heap.usable_size(moved).expect("just handed out");
            assert!(usable >= bytes.max(1), "{usable} bytes for {bytes}");
            let moved = moved.as_ptr() as usize;
            self.live.remove(&address);
            self.live_bytes -= live.usable;
            if moved != address {
                self.gone.push(address);
            }
            self.check_contents(moved, &live, live.bytes.min(bytes));
            self.handed_out(moved, bytes, usable);
            address = moved;
        }
    }

    /// The size that was asked for is a right one.
    fn fits(&self, address: usize, given: usize) {
        let live = &self.live[&address];
        self.space
            .check_size(address, given)
            .unwrap_or_else(|mistake| panic!("{mistake:?}: {given} of {live:?}"));
    }

    /// What is said of sizes that are right, and of wrong ones.
    pub(super) fn sizes(&mut self, picked: usize, by: usize) {
        // One that is aligned may have far more than was asked for.
        let Some((address, live)) = self.pick(picked).filter(|(_, live)| !live.aligned) else { return };
        self.fits(address, live.bytes);
        let (below, above) = (live.bytes.saturating_sub(by), live.bytes + by);
        let other =
            [live.bytes / 2, live.bytes * 2, live.usable, live.usable + 1, live.usable.saturating_sub(by)];
        for given in [below, above].into_iter().chain(other) {
            let fits = self.space.check_size(address, given).is_ok();
            assert!(!fits || given <= live.usable, "{given} for {live:?}");
        }
    }

    /// A block is freed by who tells its size, with a heap and without one.
    pub(super) fn free_asked(&mut self, picked: usize, number: usize) {
        let Some((address, live)) = self.pick(picked).filter(|(_, live)| !live.aligned) else { return };
        self.fits(address, live.bytes);
        self.forget(address);
        let space = self.space;
        match self.heap(number) {
            // SAFETY: it was live until now, and this machine's, and has that size.
            Some(heap) => unsafe { heap.free_sized(pointer(address), live.bytes) },
            // SAFETY: as above.
            None => unsafe { space.free_sized(pointer(address), live.bytes) },
        }
    }
}

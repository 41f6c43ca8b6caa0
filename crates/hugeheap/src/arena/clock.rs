//! The clock of a heap: the system's, and it goes on where that was turned back.
//!
//! A hypervisor may turn the clock back that moves or restores a machine. What a heap notes are moments of the
//! future, too: when demand is forgotten, when something that failed is tried again, when the next look is due.
//! All of them would come as much later, and maintenance would ask again and again until then.

use super::Arenas;
use core::cell::Cell;
use hugeheap_os::Os;

#[derive(Debug)]
pub(super) struct Clock {
    /// The system's clock when it was read last.
    read_last: Cell<u64>,
    /// By how much it was turned back in all.
    turned_back: Cell<u64>,
}

impl Clock {
    pub(super) const fn new() -> Self {
        Self { read_last: Cell::new(0), turned_back: Cell::new(0) }
    }

    /// The heap's time when the system's clock says `read`.
    #[inline]
    fn at(&self, read: u64) -> u64 {
        let last = self.read_last.replace(read);
        if read < last {
            self.turned_back.set(self.turned_back.get().saturating_add(last - read));
        }
        read.saturating_add(self.turned_back.get())
    }
}

impl<O: Os> Arenas<O> {
    /// Nanoseconds of the heap's clock: comparable with itself only.
    pub(crate) fn now(&self) -> u64 {
        self.clock.at(self.os.now().as_nanos() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_stands_still_where_the_clock_is_turned_back_and_goes_on() {
        let clock = Clock::new();
        let heap: Vec<u64> = [5, 100, 40, 41, 0, 60, 200].iter().map(|&read| clock.at(read)).collect();
        assert_eq!(heap, [5, 100, 100, 101, 101, 161, 301]);
    }
}

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

    /// The heap's time when the system's clock was `noted` some time ago: not before the one it read last, which may
    /// have been after that. So nothing can be said of the clock being turned back.
    #[inline]
    fn at_least(&self, noted: u64) -> u64 {
        self.at(noted.max(self.read_last.get()))
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

    /// The same, up to 10 ms late: for what happens with each run of heap pages, whose times are compared with the
    /// decay time. Reading the clock itself was 6 % of the time of a program that takes and frees runs, with the
    /// arenas' lock held (`bench/target/release/workloads-hugeheap buffers least=65536 most=1048576`).
    #[inline]
    pub(super) fn recently(&self) -> u64 {
        self.clock.at_least(self.os.recently().as_nanos() as u64)
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

    #[test]
    fn what_was_noted_before_the_clock_was_read_does_not_turn_it_back() {
        let clock = Clock::new();
        assert_eq!([clock.at_least(4), clock.at(7), clock.at_least(4), clock.at_least(8)], [4, 7, 7, 8]);
        // Turned back: known when the clock itself is read.
        assert_eq!([clock.at_least(2), clock.at(3), clock.at_least(1), clock.at(5)], [8, 8, 8, 10]);
    }
}

//! Free page reporting: the kernel of a virtual machine tells its host what memory is free, and the host takes it.
//!
//! ```text
//!   freed ── 2 s ──▶ pass ── 2 s ──▶ pass ── 2 s ──▶ …            each tells of a sixteenth of the free huge pages
//!            │        └ the host takes them: half a second in which its memory is busy
//!            └ whoever takes this memory before finds it as it was
//!
//!   run ┼ settle: passes over what it freed ┼ touch ┼ hold, 2 s ┼ run
//!                                                               └ freed: no pass for two seconds, and then there is nothing to tell
//! ```
//!
//! While the host takes memory, what runs in the machine stands still now and then: of a collector whose
//! longest pause was 3 to 5 ms, single ones took 25 to 40, without a page fault, in what reads memory. A
//! measurement of pauses that frees gigabytes before it begins measures that, and neither the collector nor the
//! host as it is otherwise. So it waits until the host knows what was freed before, and has memory at hand for
//! no more than it will take within two seconds. With a third more, that third was told of 2.0 s later, and a
//! pause took 25 ms.
//!
//! To find that memory takes seconds, in which any program may free something: the pass that follows tells of
//! everything that is free then. It came 0.7 and 1.2 s after a run had begun. So what was touched is not free
//! before such a pass is over.
//!
//! What was touched once at the start is taken from a machine like this two seconds later: that is done only
//! where somebody asks for it.

use super::{interrupt, touch};
use crate::output::{Output, bytes};
use crate::status::facts;
use hugeheap_os::Facts;
use hugeheap_os::linux::Linux;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// From one pass to the next: the kernel's two seconds (`PAGE_REPORTING_DELAY`), and what it takes itself: half
/// a second for 1.4 GiB on a virtual machine. So a pass that was due when this begins is over when it ends.
const PASS: Duration = Duration::from_millis(2500);

/// A pass tells of one of so many parts of what is free: the kernel means to have told of everything within 30
/// seconds (`page_reporting_cycle`).
const PARTS: u64 = 16;

/// How often it is asked, while waiting, whether the experiment shall end.
const LOOK: Duration = Duration::from_millis(100);

/// A machine that tells its host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageReporting {
    /// Bytes that are free while nothing is measured, in blocks that are told of.
    free: u64,
}

impl PageReporting {
    /// `None`: on a machine that does not, as far as it says.
    pub(crate) fn of(linux: &Linux) -> Option<Self> {
        let knobs = linux.knobs();
        let active = facts::free_page_reporting(&knobs) == Some(true);
        let pages = linux.page_sizes();
        let huge_page = pages.huge?;
        active.then(|| {
            let zones = facts::zones(&knobs.text("/proc/buddyinfo").unwrap_or_default());
            Self { free: facts::free(zones.iter(), pages.os as u64, huge_page as u64).huge }
        })
    }

    /// How long it takes until the host has been told of `freed` bytes.
    fn time_for(self, freed: u64) -> Duration {
        let pass = (self.free / PARTS).max(1);
        PASS * freed.div_ceil(pass).min(PARTS) as u32
    }

    /// Waits until the host has been told of what was freed, or the experiment is to end. Answers how long.
    pub(crate) fn settle(self, freed: u64, out: &Output) -> Duration {
        let time = self.time_for(freed);
        if time.is_zero() {
            return time;
        }
        out.progress(
            &format!(
                "waiting {:.0} s until the host has been told of {} that were freed",
                time.as_secs_f64(),
                bytes(freed)
            ),
            false,
        );
        wait(time)
    }

    /// Has `len` bytes at hand, which the host is not told of within the next two seconds.
    ///
    /// # Errors
    /// There is not that much.
    pub(crate) fn have_at_hand(self, len: u64) -> io::Result<()> {
        let memory = touch::touched(len)?;
        wait(PASS);
        drop(memory);
        Ok(())
    }
}

/// Waits so long, or until the experiment is to end. Answers how long it was.
fn wait(time: Duration) -> Duration {
    let begin = Instant::now();
    loop {
        let waited = begin.elapsed();
        if waited >= time || interrupt::noted().is_some() {
            return waited;
        }
        thread::sleep((time - waited).min(LOOK));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_tells_of_a_sixteenth_of_what_is_free() {
        let reporting = PageReporting { free: 16 << 30 };
        let passes = |freed: u64| reporting.time_for(freed).as_millis() / PASS.as_millis();
        assert_eq!([0, 1, 1 << 30, (1 << 30) + 1, 5 << 29].map(passes), [0, 1, 1, 2, 3]);
        assert_eq!(passes(u64::MAX), 16, "then everything has been told");
        assert_eq!(PageReporting { free: 0 }.time_for(1 << 40), PASS * 16);
    }

    #[test]
    fn what_is_had_at_hand_is_held_until_a_pass_is_over() {
        let begin = Instant::now();
        PageReporting { free: 1 << 30 }.have_at_hand(1 << 20).expect("memory");
        assert!(begin.elapsed() >= PASS);
    }

    #[test]
    fn nothing_is_waited_for_where_nothing_was_freed() {
        let reporting = PageReporting { free: 1 << 30 };
        assert_eq!(reporting.settle(0, &Output::new(true, false, true)), Duration::ZERO);
    }
}

//! What backs a range of this process: the best way this kernel has.

use super::{pagemap, smaps, vm};
use crate::{AddressRange, Residency, Result};

/// What backs the OS pages that `range` touches.
pub(super) fn of(range: AddressRange) -> Result<Residency> {
    let range = vm::whole_pages(range);
    // ENOTTY before Linux 6.7; a sandbox may refuse the request in other ways. An error of smaps says more then.
    pagemap::scan(range).or_else(|_| smaps::residency(range))
}

#[cfg(test)]
mod tests {
    use super::super::{Linux, testing};
    use super::*;
    use crate::{Backing, Pages};

    #[test]
    fn both_ways_agree_on_real_memory() {
        const HUGE: usize = 2 << 20;
        const OS: Linux = Linux::new();
        // Failed beside a test that forks: all of it was resident, and none of it on a huge page.
        let _alone = testing::alone();
        let memory = OS.reserve(4 * HUGE, HUGE).unwrap();
        let part = |index: usize| AddressRange::new(memory.start + index * HUGE, HUGE);
        let page = vm::os_page();
        // SAFETY: the test owns the memory.
        unsafe {
            OS.map(part(0), Backing::Thp).unwrap();
            OS.map(part(2), Backing::Base).unwrap();
            // Whether this gives a huge page is the host's business.
            (part(0).start as *mut u8).write_volatile(1);
            for index in [0, 3, 5, 100] {
                ((part(2).start + index * page) as *mut u8).write_volatile(1);
            }
        }
        let by_text = smaps::residency(memory).unwrap();
        match pagemap::scan(memory) {
            Ok(scanned) => assert_eq!(by_text, scanned),
            Err(error) => assert_eq!(error.code, libc::ENOTTY),
        }
        // All of a huge page, or only what was touched of it: the last OS page tells which.
        let last = AddressRange::new(part(1).start - page, page);
        for range in [part(0), last] {
            assert_eq!(OS.is_resident(range), Ok(by_text.thp == HUGE as u64));
        }
        assert_eq!(
            smaps::residency(AddressRange::new(part(2).start, 4 * page)).unwrap().resident,
            2 * page as u64
        );
        assert_eq!(of(AddressRange::new(part(2).start + 1, 1)).unwrap().resident, page as u64);
        for (first, pages, resident) in
            [(0, 1, true), (1, 1, false), (3, 1, true), (4, 2, false), (3, 98, false)]
        {
            let range = AddressRange::new(part(2).start + first * page, pages * page);
            assert_eq!(OS.is_resident(range), Ok(resident), "{pages} from {first}");
        }
        // SAFETY: as above.
        unsafe { OS.populate(part(0)).unwrap() };
        // More of it than one batch.
        assert_eq!(OS.is_resident(part(0)), Ok(true));
        // SAFETY: as above.
        unsafe { OS.decommit(last).unwrap() };
        assert_eq!(OS.is_resident(part(0)), Ok(false), "but for the end");
        let nothing = AddressRange::new(memory.end() - HUGE, HUGE);
        assert_eq!(OS.is_resident(nothing), Ok(false), "reserved");
        // SAFETY: as above.
        unsafe { OS.release(memory).unwrap() };
    }

    #[test]
    fn what_was_written_is_the_process_s_alone_until_it_is_shared_by_a_fork() {
        const OS: Linux = Linux::new();
        let _alone = testing::alone();
        let page = vm::os_page();
        let memory = OS.reserve(70 * page, page).unwrap();
        let alone = || {
            // Whatever was there before is overwritten.
            let mut found = [u64::MAX; 2];
            OS.exclusive(memory, &mut found).map(|()| found)
        };
        // SAFETY: the test owns the memory.
        unsafe {
            OS.map(memory, Backing::Base).unwrap();
            // Read, which maps the page of zeros.
            assert_eq!(((memory.start + 5 * page) as *const u8).read_volatile(), 0);
            for index in [0, 3, 69] {
                ((memory.start + index * page) as *mut u8).write_volatile(1);
            }
        }
        assert_eq!(alone(), Ok([0b1001, 1 << 5]));
        let mut ends = [0; 2];
        // SAFETY: the child only waits until the other end of the pipe is closed, with system calls alone.
        unsafe {
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
            let child = libc::fork();
            if child == 0 {
                libc::close(ends[1]);
                let mut byte = 0_u8;
                libc::read(ends[0], (&raw mut byte).cast(), 1);
                libc::_exit(0);
            }
            let shared = alone();
            ((memory.start + 3 * page) as *mut u8).write_volatile(2);
            let written = alone();
            libc::close(ends[1]);
            libc::waitpid(child, core::ptr::null_mut(), 0);
            libc::close(ends[0]);
            assert_eq!((shared, written, alone()), (Ok([0; 2]), Ok([0b1000, 0]), Ok([0b1001, 1 << 5])));
            OS.release(memory).unwrap();
        }
    }
}

//! What the tests of the simulated kernel share: calls that must succeed, and a pattern in memory.
#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) mod naive;

use hugeheap_os::simulated::{Config, Kernel};
use hugeheap_os::{AddressRange, Advice, Backing, ErrorKind, Facts, HugetlbPool, Pages, Protection, Result};

pub(crate) const OS: usize = 4096;
pub(crate) const HUGE: usize = 2 << 20;

/// The parts of `range` of length `unit`.
pub(crate) fn pages(range: AddressRange, unit: usize) -> Vec<AddressRange> {
    (range.start..range.end()).step_by(unit).map(|start| AddressRange::new(start, unit)).collect()
}

/// A result with the kind of its error.
pub(crate) fn kinds<T>(result: Result<T>) -> core::result::Result<T, ErrorKind> {
    result.map_err(|error| error.kind())
}

/// A kernel, and calls on it that must succeed. The tests own all ranges they pass and keep no references into them.
pub(crate) struct Driver {
    pub(crate) kernel: Kernel,
}

impl Driver {
    pub(crate) fn new(config: Config) -> Self {
        Self { kernel: Kernel::new(config) }
    }

    pub(crate) fn reserved(&self, len: usize) -> AddressRange {
        self.kernel.reserve(len, HUGE).unwrap()
    }

    pub(crate) fn mapped(&self, len: usize, backing: Backing) -> AddressRange {
        let range = self.reserved(len);
        self.map(range, backing);
        range
    }

    pub(crate) fn map(&self, range: AddressRange, backing: Backing) {
        // SAFETY: see the type.
        unsafe { self.kernel.map(range, backing).unwrap() }
    }

    pub(crate) fn unmap(&self, range: AddressRange) {
        // SAFETY: see the type.
        unsafe { self.kernel.unmap(range).unwrap() }
    }

    pub(crate) fn release(&self, range: AddressRange) {
        // SAFETY: see the type.
        unsafe { self.kernel.release(range).unwrap() }
    }

    pub(crate) fn touch(&self, range: AddressRange) {
        self.kernel.touch(range).unwrap();
    }

    pub(crate) fn decommit(&self, start: usize, len: usize) {
        // SAFETY: see the type.
        unsafe { self.kernel.decommit(AddressRange::new(start, len)).unwrap() }
    }

    pub(crate) fn split(&self, start: usize, len: usize) {
        // SAFETY: see the type.
        unsafe { self.kernel.split(AddressRange::new(start, len)).unwrap() }
    }

    pub(crate) fn populate(&self, range: AddressRange) -> Result<()> {
        // SAFETY: see the type.
        unsafe { self.kernel.populate(range) }
    }

    pub(crate) fn collapse(&self, range: AddressRange) -> core::result::Result<(), ErrorKind> {
        // SAFETY: see the type.
        kinds(unsafe { self.kernel.collapse(range) })
    }

    pub(crate) fn advise(&self, range: AddressRange, advice: Advice) {
        // SAFETY: see the type.
        unsafe { self.kernel.advise(range, advice).unwrap() }
    }

    pub(crate) fn protect(&self, range: AddressRange, protection: Protection) {
        // SAFETY: see the type.
        unsafe { self.kernel.protect(range, protection).unwrap() }
    }

    pub(crate) fn relocate(&self, from: AddressRange, to: AddressRange) {
        // SAFETY: see the type.
        unsafe { self.kernel.relocate(from, to).unwrap() }
    }

    pub(crate) fn rss(&self) -> u64 {
        self.kernel.rss()
    }

    pub(crate) fn charge(&self) -> u64 {
        self.kernel.charge()
    }

    pub(crate) fn stranded(&self) -> u64 {
        self.kernel.stranded()
    }

    pub(crate) fn partially_mapped(&self) -> usize {
        self.kernel.partially_mapped()
    }

    pub(crate) fn thp(&self, range: AddressRange) -> u64 {
        self.kernel.residency(range).unwrap().thp
    }

    pub(crate) fn pool(&self) -> HugetlbPool {
        self.kernel.hugetlb_pool(HUGE).unwrap().unwrap()
    }

    /// Writes a word that depends on the address to each OS page.
    pub(crate) fn fill(&self, range: AddressRange) {
        for page in pages(range, OS) {
            // SAFETY: the range is mapped for writing; see the type.
            unsafe { *(page.start as *mut usize) = page.start };
        }
    }

    /// Whether `range` holds what `fill` wrote when it was at `origin`.
    pub(crate) fn expect_filled(&self, range: AddressRange, origin: usize) {
        for page in pages(range, OS) {
            // SAFETY: the range is mapped; see the type.
            let word = unsafe { *(page.start as *const usize) };
            assert_eq!(word, page.start - range.start + origin);
        }
    }

    pub(crate) fn expect_zero(&self, range: AddressRange) {
        for page in pages(range, OS) {
            // SAFETY: the range is mapped; see the type.
            let word = unsafe { *(page.start as *const usize) };
            assert_eq!(word, 0, "at {:#x}", page.start);
        }
    }

    /// The model agrees with itself, and nothing broke the contract.
    pub(crate) fn sound(&self) {
        self.kernel.check().unwrap();
        assert_eq!(self.kernel.violations(), []);
    }
}

//! Descriptors for a look: enough of them, or it is not made.
//!
//! What cannot be opened is left out of a look, as what is not there is. With two descriptors that were cgroups, heaps and half of the host, with status 0 and without a word. So it is asked before a look,
//! and after it, whether as many are left as one needs at a time.

use hugeheap_os::{Error, Result};
use std::fs::File;

/// Most that a look has open at a time: four of a process whose physical pages are looked at (`pagemap`, and of all pages their flags, counts and groups), its list of mappings, a file of the host, and two to
/// spare. Without chosen processes it is two.
pub(super) const NEEDED: usize = 8;

/// How many of `most` descriptors can be had now.
pub(super) fn free(most: usize) -> usize {
    let mut held = Vec::with_capacity(most);
    // A directory that is always there.
    held.extend((0..most).map_while(|_| File::open("/").ok()));
    held.len()
}

/// What is answered where there are too few.
pub(super) fn short() -> Error {
    Error::new("open(2)", libc::EMFILE)
}

/// # Errors
/// When there are too few for a look.
pub(super) fn check() -> Result<()> {
    if free(NEEDED) < NEEDED { Err(short()) } else { Ok(()) }
}

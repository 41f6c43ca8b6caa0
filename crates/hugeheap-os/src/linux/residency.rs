//! What backs a range of this process: the best way this kernel has.

use super::{pagemap, smaps, vm};
use crate::{AddressRange, Residency, Result};

/// What backs the OS pages that `range` touches.
pub(super) fn of(range: AddressRange) -> Result<Residency> {
    let range = vm::whole_pages(range);
    // ENOTTY before Linux 6.7; a sandbox may refuse the request in other ways. An error of smaps says more then.
    pagemap::scan(range).or_else(|_| smaps::residency(range))
}

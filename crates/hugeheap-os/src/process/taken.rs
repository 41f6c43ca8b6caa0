//! A process is changed by one at a time.

use super::Process;
use crate::Result;

/// A process that was taken for changes, as long as this lives.
pub(super) struct Taken<'a, P: Process>(&'a P);

impl<'a, P: Process> Taken<'a, P> {
    /// Takes it.
    ///
    /// # Errors
    /// `EALREADY`: another has it.
    pub(super) fn new(process: &'a P) -> Result<Self> {
        process.take().map(|()| Self(process))
    }
}

impl<P: Process> Drop for Taken<'_, P> {
    fn drop(&mut self) {
        self.0.let_go();
    }
}

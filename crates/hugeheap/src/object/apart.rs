//! What lies on cache lines of its own.

use core::ops::Deref;

/// A value that shares no cache line with another one: who writes to it takes no line from who uses its
/// neighbours. Two lines, because processors fetch the one beside, too.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Apart<T>(pub(crate) T);

impl<T> Deref for Apart<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

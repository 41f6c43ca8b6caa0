//! The numbers as JSON, in a buffer of the caller's: nothing is allocated.
//!
//! Names and values are those of the telemetry schema, as in the summaries of the command line. No name or hint
//! has a character that JSON would want escaped; the tests parse what is written.

use core::fmt::{self, Write};
use hugeheap::arena::Policy;
use hugeheap::telemetry::{Fallback, Snapshot};

/// Name and version of the form.
const SCHEMA: &str = "hugeheap.stats/1";

/// Text in a buffer of the caller's, counted beyond its end. Written through a pointer: the buffer need not be
/// initialised.
pub(crate) struct Text {
    at: *mut u8,
    size: usize,
    length: usize,
}

impl Text {
    /// # Safety
    /// `buffer` has `size` bytes, which nobody else uses as long as the text is; it may be null, and is empty then.
    pub(crate) unsafe fn new(buffer: *mut u8, size: usize) -> Self {
        Self { at: buffer, size: if buffer.is_null() { 0 } else { size }, length: 0 }
    }

    /// Writes the NUL. Returns the length of all of the text, without it.
    pub(crate) fn end(self) -> usize {
        if let Some(last) = self.size.checked_sub(1) {
            // SAFETY: within the buffer.
            unsafe { self.at.add(self.length.min(last)).write(0) };
        }
        self.length
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // One byte stays free for the end of the string.
        let room = self.size.saturating_sub(1).saturating_sub(self.length);
        if room > 0 {
            // SAFETY: `room` bytes are left in the buffer, which nobody else uses, by the contract of `new`.
            unsafe { self.at.add(self.length).copy_from_nonoverlapping(text.as_ptr(), text.len().min(room)) };
        }
        self.length += text.len();
        Ok(())
    }
}

/// Writes as much of the JSON as there is room for, with a NUL at its end. Returns the length of all of it,
/// without the NUL.
///
/// # Safety
/// As in [`Text::new`].
pub(crate) unsafe fn write(snapshot: &Snapshot, buffer: *mut u8, size: usize) -> usize {
    // SAFETY: by the contract.
    let mut text = unsafe { Text::new(buffer, size) };
    // Writing into this text cannot fail.
    let _ = object(snapshot, &mut text);
    text.end()
}

fn object(snapshot: &Snapshot, to: &mut Text) -> fmt::Result {
    let policy = |number| Policy::from_number(number).map_or("unknown", Policy::name);
    write!(to, "{{\"schema\": \"{SCHEMA}\", \"pid\": {}", snapshot.pid)?;
    write!(to, ", \"policy\": \"{}\"", policy(snapshot.policy))?;
    write!(to, ", \"effective_policy\": \"{}\"", policy(snapshot.effective_policy))?;
    for (name, value) in snapshot.counters() {
        write!(to, ", \"{name}\": {value}")?;
    }
    to.write_str(", \"gc_pause_lengths\": [")?;
    for (index, count) in snapshot.gc_pause_lengths.iter().enumerate() {
        write!(to, "{}{count}", if index == 0 { "" } else { ", " })?;
    }
    to.write_str("], \"fallbacks\": [")?;
    let counted = Fallback::ALL.into_iter().filter(|&reason| snapshot.fallback(reason) > 0);
    for (index, reason) in counted.enumerate() {
        let comma = if index == 0 { "" } else { ", " };
        let (name, count, hint) = (reason.name(), snapshot.fallback(reason), reason.hint());
        write!(to, "{comma}{{\"reason\": \"{name}\", \"count\": {count}, \"hint\": \"{hint}\"}}")?;
    }
    to.write_str("]}")
}

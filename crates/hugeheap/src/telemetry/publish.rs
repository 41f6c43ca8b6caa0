//! Sharing the snapshot of a running process through a memory-mapped file.
//!
//! The writer owns one file `DIR/PID.hugeheap`, mapped shared. Layout:
//!
//! ```text
//!   0        8        16                16 + size_of::<Snapshot>()
//!   ├ magic ─┼ sequence ┼──── Snapshot, as 8-byte words ────┤
//! ```
//!
//! The sequence is odd while the writer changes the words and even when they are consistent (a sequence lock). The
//! writer never waits; a reader retries. A writer that was killed in the middle leaves an odd sequence: the
//! reader then gives up after its retries and says so, it does not hang. The file is sized before it is mapped,
//! so that a full disk is an error when the file is made and not a `SIGBUS` later.

use super::Snapshot;
use core::sync::atomic::{AtomicU64, Ordering, fence};

/// First eight bytes of the file.
pub const MAGIC: u64 = u64::from_le_bytes(*b"HUGEHEAP");

const WORDS: usize = size_of::<Snapshot>() / 8;

/// The shared record.
#[repr(C)]
pub struct Record {
    magic: AtomicU64,
    sequence: AtomicU64,
    words: [AtomicU64; WORDS],
}

const _: () = assert!(size_of::<Record>() == 16 + size_of::<Snapshot>());
const _: () = assert!(size_of::<Record>() <= 4096);

/// Why a record could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// Not a record of this program, or of another schema.
    Foreign,
    /// The writer was in the middle of a change at every try: it is very busy, or was killed there.
    Torn,
}

impl Record {
    /// A record that was never written. Its first [`write`](Self::write) makes it readable.
    #[allow(clippy::declare_interior_mutable_const)]
    pub const fn new() -> Self {
        Self {
            magic: AtomicU64::new(0),
            sequence: AtomicU64::new(0),
            words: [const { AtomicU64::new(0) }; WORDS],
        }
    }

    /// Replaces the snapshot. Only one writer at a time. Never waits.
    pub fn write(&self, snapshot: &Snapshot) {
        // SAFETY: Snapshot is `repr(C)`, plain numbers without padding (its size is a multiple of 8 and each field is
        // aligned to its size: eight u32, 32 bytes, then u64s), so it can be read as words.
        let words: &[u64; WORDS] = unsafe { &*core::ptr::from_ref(snapshot).cast() };
        let sequence = self.sequence.load(Ordering::Relaxed) | 1;
        self.sequence.store(sequence, Ordering::Relaxed);
        fence(Ordering::Release);
        for (to, from) in self.words.iter().zip(words) {
            to.store(*from, Ordering::Relaxed);
        }
        self.sequence.store(sequence.wrapping_add(1), Ordering::Release);
        self.magic.store(MAGIC, Ordering::Release);
    }

    /// Reads a consistent snapshot.
    ///
    /// # Errors
    /// `Foreign` for another content, `Torn` when no consistent state was seen in 1,000 tries.
    pub fn read(&self) -> Result<Snapshot, ReadError> {
        if self.magic.load(Ordering::Acquire) != MAGIC {
            return Err(ReadError::Foreign);
        }
        for _ in 0..1000 {
            let before = self.sequence.load(Ordering::Acquire);
            if before & 1 == 0 {
                let mut words = [0u64; WORDS];
                for (to, from) in words.iter_mut().zip(&self.words) {
                    *to = from.load(Ordering::Relaxed);
                }
                fence(Ordering::Acquire);
                if self.sequence.load(Ordering::Relaxed) == before {
                    // SAFETY: every bit pattern of the right size is a Snapshot: all fields are numbers.
                    let snapshot: Snapshot = unsafe { core::mem::transmute(words) };
                    if snapshot.schema != super::SCHEMA {
                        return Err(ReadError::Foreign);
                    }
                    return Ok(snapshot);
                }
            }
            core::hint::spin_loop();
        }
        Err(ReadError::Torn)
    }
}

impl Default for Record {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let record = Record::new();
        assert_eq!(record.read(), Err(ReadError::Foreign));
        let snapshot = Snapshot { pid: 7, live: 11, ..Snapshot::EMPTY };
        record.write(&snapshot);
        assert_eq!(record.read(), Ok(snapshot));
    }

    #[test]
    fn a_writer_killed_in_the_middle_is_reported_not_waited_for() {
        let record = Record::new();
        record.write(&Snapshot::EMPTY);
        record.sequence.fetch_add(1, Ordering::Relaxed);
        assert_eq!(record.read(), Err(ReadError::Torn));
    }

    #[test]
    fn another_schema_is_foreign() {
        let record = Record::new();
        record.write(&Snapshot { schema: super::super::SCHEMA + 1, ..Snapshot::EMPTY });
        assert_eq!(record.read(), Err(ReadError::Foreign));
    }
}

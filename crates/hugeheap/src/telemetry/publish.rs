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
use super::sequence::SequenceLock;
use core::sync::atomic::{AtomicU64, Ordering};

/// First eight bytes of the file.
pub const MAGIC: u64 = u64::from_le_bytes(*b"HUGEHEAP");

/// The longest name of a directory for records, in bytes. A longer one in `HUGEHEAP_TELEMETRY` gets none.
pub const DIRECTORY_NAME_MAX: usize = 511;

/// Tries of a reader. A write takes about 50 ns; a thousand tries outlast it and any short pause of the writer.
const TRIES: u32 = 1000;

const WORDS: usize = size_of::<Snapshot>() / 8;

/// The shared record.
#[repr(C)]
#[derive(Debug)]
pub struct Record {
    magic: AtomicU64,
    snapshot: SequenceLock<WORDS>,
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

impl core::fmt::Display for ReadError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Foreign => "not a record of this version of hugeheap",
            Self::Torn => "the process was stopped while it changed its record",
        })
    }
}

impl std::error::Error for ReadError {}

impl Record {
    /// A record that was never written. Its first [`write`](Self::write) makes it readable.
    #[cfg(not(loom))]
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        Self { magic: AtomicU64::new(0), snapshot: SequenceLock::new() }
    }

    /// Replaces the snapshot. Only one writer at a time. Never waits.
    pub fn write(&self, snapshot: &Snapshot) {
        // SAFETY: Snapshot is `repr(C)`, aligned to 8, made of numbers without padding (eight u32, 32 bytes,
        // then u64s).
        let words: &[u64; WORDS] = unsafe { &*core::ptr::from_ref(snapshot).cast() };
        self.snapshot.write(words);
        self.magic.store(MAGIC, Ordering::Release);
    }

    /// Reads a consistent snapshot.
    ///
    /// # Errors
    /// `Foreign` for another content, `Torn` when no consistent state was seen.
    pub fn read(&self) -> Result<Snapshot, ReadError> {
        if self.magic.load(Ordering::Acquire) != MAGIC {
            return Err(ReadError::Foreign);
        }
        let words = self.snapshot.read(TRIES).ok_or(ReadError::Torn)?;
        // SAFETY: every bit pattern of the right size is a Snapshot: all fields are numbers.
        let snapshot: Snapshot = unsafe { core::mem::transmute(words) };
        if snapshot.schema != super::SCHEMA {
            return Err(ReadError::Foreign);
        }
        Ok(snapshot)
    }
}

#[cfg(all(test, not(loom)))]
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
        record.snapshot.abandon();
        assert_eq!(record.read(), Err(ReadError::Torn));
    }

    #[test]
    fn another_schema_is_foreign() {
        let record = Record::new();
        record.write(&Snapshot { schema: super::super::SCHEMA + 1, ..Snapshot::EMPTY });
        assert_eq!(record.read(), Err(ReadError::Foreign));
    }
}

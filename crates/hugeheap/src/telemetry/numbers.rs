//! The page of numbers of a running process: its layout, and reading it from outside.
//!
//! Every runtime maps one OS page of shared memory that has a name and no file: `/memfd:hugeheap-numbers` in
//! its process's `/proc/PID/maps`. It needs no directory, holds no descriptor, and vanishes with its process. A
//! process that contains several runtimes has several pages; [`of_process`] reads them all.
//!
//! ```text
//!   0        8        16                                                     16 + size
//!   ├ magic ─┼ sequence ┼ version, size ┼ when ┼ count ┼ ranges ┼── Snapshot ──┤
//!                       └───────────────── under the sequence lock ────────────┘
//! ```
//!
//! The sequence is odd while the writer changes what follows. Reading is copying: the sequence, all of it, the
//! sequence again. A process that was forked without the handlers, or has not come to them yet, still maps its
//! parent's page: the number of the process in the snapshot tells, and such a page counts as none.
//!
//! Versions: fields are only ever added at the end of the snapshot. A reader takes what both know; what an
//! older writer lacks is 0.

use super::publish::ReadError;
use super::sequence::SequenceLock;
use super::{SCHEMA, Snapshot};
use core::sync::atomic::{AtomicU64, Ordering};

/// The name of the shared memory.
pub const NAME: &core::ffi::CStr = c"hugeheap-numbers";

/// How the mapping is called in `/proc/PID/maps`. The kernel appends ` (deleted)`.
pub const MAPPING: &str = "/memfd:hugeheap-numbers";

/// First eight bytes of the page.
pub const MAGIC: u64 = u64::from_le_bytes(*b"HHNUMBER");

/// Version of the layout before the snapshot.
pub const VERSION: u32 = 1;

/// Bytes of the page that are used at most: the smallest OS page.
pub const PAGE_BYTES: usize = 4096;

/// Ranges of arenas that are named. A process has one or two; more only where `ulimit -v` makes regions small.
pub const RANGES: usize = 8;

/// Tries of a reader. Each is three system calls, which outlast a write of 100 ns by far.
const TRIES: u32 = 100;

/// What is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Numbers {
    /// [`VERSION`] of the writer.
    pub version: u32,
    /// Size of this struct in the writer, in bytes.
    pub size: u32,
    /// When they were written: nanoseconds of `CLOCK_MONOTONIC`.
    pub written_at: u64,
    /// How many ranges there are; more than [`RANGES`] have no place here.
    pub range_count: u64,
    /// Where arenas can be: first address and bytes.
    pub ranges: [[u64; 2]; RANGES],
    /// The counters.
    pub snapshot: Snapshot,
}

/// Bytes of [`Numbers`] before the snapshot.
const HEAD_BYTES: usize = core::mem::offset_of!(Numbers, snapshot);

/// Bytes of the snapshot's first version: less is none.
const LEAST_BYTES: usize = HEAD_BYTES + 512;

const WORDS: usize = size_of::<Numbers>() / 8;

// The layout is read by others than this program.
const _: () = assert!(HEAD_BYTES == 24 + 16 * RANGES);
const _: () = assert!(core::mem::offset_of!(Numbers, ranges) == 24);
const _: () = assert!(size_of::<Numbers>() % 8 == 0 && size_of::<Numbers>() >= LEAST_BYTES);
const _: () = assert!(size_of::<Numbers>() == HEAD_BYTES + size_of::<Snapshot>());
const _: () = assert!(size_of::<Page>() == 16 + size_of::<Numbers>());
const _: () = assert!(size_of::<Page>() <= PAGE_BYTES);

impl Numbers {
    /// Those of a process without memory.
    pub const EMPTY: Self = Self {
        version: VERSION,
        size: size_of::<Self>() as u32,
        written_at: 0,
        range_count: 0,
        ranges: [[0; 2]; RANGES],
        snapshot: Snapshot::EMPTY,
    };

    /// Adds those of another runtime of the same process. Written: when the older of both was.
    pub fn merge(&mut self, other: &Self) {
        let Self { version: _, size: _, written_at, range_count, ranges, snapshot } = other;
        self.written_at = self.written_at.min(*written_at);
        self.snapshot.merge(snapshot);
        let named = usize::try_from(*range_count).unwrap_or(usize::MAX);
        let first = usize::try_from(self.range_count).unwrap_or(usize::MAX).min(ranges.len());
        for (place, range) in self.ranges[first..].iter_mut().zip(ranges.iter().take(named)) {
            *place = *range;
        }
        self.range_count = self.range_count.saturating_add(*range_count);
    }

    /// The ranges in which arenas can be; `None` when not all of them are named.
    pub fn named_ranges(&self) -> Option<&[[u64; 2]]> {
        self.ranges.get(..usize::try_from(self.range_count).ok()?)
    }
}

/// The page as its process maps it.
#[repr(C)]
#[derive(Debug)]
pub struct Page {
    magic: AtomicU64,
    numbers: SequenceLock<WORDS>,
}

impl Page {
    /// A page that was never written.
    #[cfg(not(loom))]
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        Self { magic: AtomicU64::new(0), numbers: SequenceLock::new() }
    }

    /// Replaces the numbers. Only one writer at a time. Never waits.
    pub fn write(&self, numbers: &Numbers) {
        // SAFETY: Numbers is `repr(C)`, aligned to 8 and made of numbers without padding: two u32, then u64s,
        // then a Snapshot.
        let words: &[u64; WORDS] = unsafe { &*core::ptr::from_ref(numbers).cast() };
        self.numbers.write(words);
        self.magic.store(MAGIC, Ordering::Release);
    }
}

/// Reads the numbers through `copy`, which fills the buffer with what is at an offset in the page of a running process.
///
/// # Errors
/// `Foreign` for another content or version, `Torn` when no consistent state was seen; what `copy` answers.
pub fn read<E: From<ReadError>>(
    mut copy: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
) -> Result<Numbers, E> {
    let mut page = [0u8; PAGE_BYTES];
    let word = |bytes: &[u8]| u64::from_ne_bytes(<[u8; 8]>::try_from(bytes).unwrap_or_default());
    for _ in 0..TRIES {
        // Calls of their own, one after the other: the kernel copies in an order of its own.
        let (mut before, mut after) = ([0; 8], [0; 8]);
        copy(8, &mut before)?;
        copy(0, &mut page)?;
        copy(8, &mut after)?;
        if before == after && word(&before) % 2 == 0 {
            if word(&page[..8]) != MAGIC {
                return Err(ReadError::Foreign.into());
            }
            return decode(&page[16..]).ok_or(ReadError::Foreign.into());
        }
    }
    Err(ReadError::Torn.into())
}

/// The numbers in bytes that a writer of any version left; `None` when this one does not know their meaning.
fn decode(bytes: &[u8]) -> Option<Numbers> {
    let short = |at: usize| Some(u32::from_ne_bytes(<[u8; 4]>::try_from(bytes.get(at..at + 4)?).ok()?));
    let (version, size) = (short(0)?, short(4)? as usize);
    let schema = short(HEAD_BYTES)?;
    if version != VERSION || schema != SCHEMA || size < LEAST_BYTES || size > bytes.len() {
        return None;
    }
    let known = size.min(size_of::<Numbers>());
    let mut words = [0u64; WORDS];
    // SAFETY: both are at least `known` bytes long, and any bytes are numbers.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), words.as_mut_ptr().cast::<u8>(), known) };
    // SAFETY: every bit pattern of the right size is a Numbers: all fields are numbers.
    Some(unsafe { core::mem::transmute::<[u64; WORDS], Numbers>(words) })
}

/// Why a process's numbers could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumbersError {
    /// The system said no.
    System(hugeheap_os::Error),
    /// What is there could not be understood.
    Content(ReadError),
}

impl From<ReadError> for NumbersError {
    fn from(error: ReadError) -> Self {
        Self::Content(error)
    }
}

impl From<hugeheap_os::Error> for NumbersError {
    fn from(error: hugeheap_os::Error) -> Self {
        Self::System(error)
    }
}

impl core::fmt::Display for NumbersError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::System(error) => error.fmt(f),
            Self::Content(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for NumbersError {}

/// The numbers of process `id` (this one, too), of all its runtimes, without stopping it. `None`: it is not on
/// hugeheap, or shows none.
///
/// A page whose meaning is not known, of a library of another version, is left out where there is one that is.
///
/// # Errors
/// As [`SharedMemory::find`](hugeheap_os::linux::SharedMemory::find), and as [`read`].
#[cfg(target_os = "linux")]
pub fn of_process(
    linux: hugeheap_os::linux::Linux,
    id: u32,
    deadline: core::time::Duration,
) -> Result<Option<Numbers>, NumbersError> {
    let pages = hugeheap_os::linux::SharedMemory::find(linux, id, MAPPING, deadline)?;
    let all = pages.into_iter().map(|mut memory| {
        let numbers = read(|offset, buffer| memory.read(offset, buffer).map_err(NumbersError::System))?;
        // A page that was inherited and not left yet speaks of another process.
        Ok((numbers.snapshot.pid == memory.inner_id()).then_some(numbers))
    });
    together(all)
}

/// What the pages of one process say, together.
fn together(
    pages: impl Iterator<Item = Result<Option<Numbers>, NumbersError>>,
) -> Result<Option<Numbers>, NumbersError> {
    let (mut all, mut foreign) = (None::<Numbers>, None);
    for page in pages {
        match (page, &mut all) {
            (Ok(Some(numbers)), Some(all)) => all.merge(&numbers),
            (Ok(Some(numbers)), None) => all = Some(numbers),
            (Ok(None), _) => {}
            (Err(error @ NumbersError::Content(ReadError::Foreign)), _) => foreign = Some(error),
            (Err(error), _) => return Err(error),
        }
    }
    match (all, foreign) {
        (None, Some(error)) => Err(error),
        (all, _) => Ok(all),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The bytes of a page, as a reader copies them.
    fn bytes(page: &Page) -> Vec<u8> {
        let mut bytes = vec![0; PAGE_BYTES];
        // SAFETY: a Page is plain memory and shorter than the buffer.
        unsafe {
            core::ptr::copy_nonoverlapping(
                core::ptr::from_ref(page).cast::<u8>(),
                bytes.as_mut_ptr(),
                size_of::<Page>(),
            );
        }
        bytes
    }

    fn read_bytes(bytes: &[u8]) -> Result<Numbers, ReadError> {
        read(|offset, buffer| {
            buffer.copy_from_slice(&bytes[offset..offset + buffer.len()]);
            Ok::<(), ReadError>(())
        })
    }

    fn numbers() -> Numbers {
        let snapshot = Snapshot { pid: 7, live: 11, ..Snapshot::EMPTY };
        Numbers { written_at: 5, range_count: 1, ranges: [[1 << 21; 2]; RANGES], snapshot, ..Numbers::EMPTY }
    }

    #[test]
    fn what_was_written_is_read() {
        let page = Page::new();
        assert_eq!(read_bytes(&bytes(&page)), Err(ReadError::Foreign));
        page.write(&numbers());
        assert_eq!(read_bytes(&bytes(&page)), Ok(numbers()));
        assert_eq!(numbers().named_ranges(), Some(&[[1 << 21; 2]][..]));
        assert_eq!(Numbers { range_count: 9, ..numbers() }.named_ranges(), None);
    }

    #[test]
    fn a_writer_killed_in_the_middle_is_reported_not_waited_for() {
        let page = Page::new();
        page.write(&numbers());
        page.numbers.abandon();
        assert_eq!(read_bytes(&bytes(&page)), Err(ReadError::Torn));
    }

    #[test]
    fn a_change_between_two_looks_is_read_again() {
        let page = Page::new();
        page.write(&numbers());
        let mut calls = 0;
        let read = read(|offset, buffer: &mut [u8]| {
            calls += 1;
            // Between the first look at the sequence and the rest.
            if calls == 2 {
                page.write(&Numbers { written_at: 6, ..numbers() });
            }
            buffer.copy_from_slice(&bytes(&page)[offset..offset + buffer.len()]);
            Ok::<(), ReadError>(())
        });
        assert_eq!(read.map(|numbers| numbers.written_at), Ok(6));
        assert_eq!(calls, 6);
    }

    #[test]
    fn writers_of_other_versions_are_read_as_far_as_both_know() {
        let page = Page::new();
        page.write(&numbers());
        let changed = |at: usize, value: u32| {
            let mut bytes = bytes(&page);
            bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
            read_bytes(&bytes)
        };
        // Longer and shorter snapshots.
        assert!(changed(20, size_of::<Numbers>() as u32 + 64).is_ok());
        assert!(changed(20, LEAST_BYTES as u32).is_ok());
        // Cut off, longer than the page, another layout, another meaning.
        assert_eq!(changed(20, 100), Err(ReadError::Foreign));
        assert_eq!(changed(20, 5000), Err(ReadError::Foreign));
        assert_eq!(changed(16, VERSION + 1), Err(ReadError::Foreign));
        assert_eq!(changed(16 + HEAD_BYTES, SCHEMA + 1), Err(ReadError::Foreign));
    }

    #[test]
    fn the_pages_of_a_process_are_told_together() {
        let (foreign, torn) =
            (NumbersError::Content(ReadError::Foreign), NumbersError::Content(ReadError::Torn));
        let of = |pages: &[Result<Option<Numbers>, NumbersError>]| together(pages.iter().copied());
        let other = Numbers { written_at: 3, range_count: 2, ranges: [[7; 2]; RANGES], ..numbers() };
        let both =
            of(&[Ok(Some(numbers())), Ok(None), Ok(Some(other))]).unwrap().expect("two of three speak");
        assert_eq!((both.snapshot.live, both.written_at), (22, 3));
        assert_eq!(both.named_ranges(), Some(&[[1 << 21; 2], [7; 2], [7; 2]][..]));
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&[Ok(None)]), Ok(None));
        assert_eq!(of(&[Err(foreign), Ok(Some(other))]), Ok(Some(other)));
        assert_eq!(of(&[Ok(None), Err(foreign)]), Err(foreign));
        assert_eq!(of(&[Ok(Some(other)), Err(torn)]), Err(torn), "half would be a lie");
    }

    #[test]
    fn ranges_beyond_the_bound_are_counted() {
        for (one, other) in [(8, 1), (7, 2), (1, 8), (9, 0), (0, 9), (u64::MAX, 1), (3, u64::MAX)] {
            let mut both = Numbers { range_count: one, ..numbers() };
            both.merge(&Numbers { range_count: other, ..numbers() });
            assert_eq!((both.range_count, both.named_ranges()), (one.saturating_add(other), None));
        }
        let mut both = Numbers { range_count: 7, ..numbers() };
        both.merge(&Numbers { range_count: 1, ranges: [[9; 2]; RANGES], ..numbers() });
        assert_eq!(both.named_ranges().expect("eight have places")[6..], [[1 << 21; 2], [9; 2]]);
    }
}

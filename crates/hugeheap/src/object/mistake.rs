//! What a program can do wrong with a block, and the line it is told.
//!
//! Every free is checked exactly, in release builds: the address has a bit, and the bit says whether a live
//! block begins there.

use crate::arena::BadFree;
use core::fmt;

/// A wrong use of an address. The heap is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// Not from this allocator.
    Foreign,
    /// Inside a block, a page run or a large block, or in the rest of a page: nothing begins there.
    Interior {
        /// Bytes of the block.
        bytes: usize,
    },
    /// Nothing live begins there: freed before, or never handed out.
    NotLive {
        /// Bytes of the blocks of that page, 0 when it has none.
        bytes: usize,
    },
    /// A live block begins there, but it has another size than the one given.
    WrongSize {
        /// Its size in bytes.
        bytes: usize,
        /// The size given.
        given: usize,
    },
    /// The same, where the block was to be resized: the size given is the one that it was said to have.
    WrongOldSize {
        /// Its size in bytes.
        bytes: usize,
        /// The old size given.
        given: usize,
    },
    /// Another thread freed the block as well.
    TwoThreads {
        /// Bytes of the block.
        bytes: usize,
    },
}

impl Mistake {
    /// What it is called where a block was resized and not freed: the line said "freed", and who looked for a
    /// free found none.
    #[must_use]
    pub const fn of_resize(self) -> Self {
        match self {
            Self::WrongSize { bytes, given } => Self::WrongOldSize { bytes, given },
            other => other,
        }
    }
}

impl From<BadFree> for Mistake {
    fn from(bad: BadFree) -> Self {
        match bad {
            BadFree::Foreign => Self::Foreign,
            BadFree::Interior => Self::Interior { bytes: 0 },
            BadFree::NotLive => Self::NotLive { bytes: 0 },
            BadFree::WrongSize { actual } => Self::WrongSize { bytes: actual, given: 0 },
        }
    }
}

/// The class of a mistake's block, in words.
struct Class(usize);

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("no size class"),
            bytes => write!(f, "size class {bytes}"),
        }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Foreign => f.write_str("the address is not from this heap"),
            Self::Interior { bytes } => {
                write!(f, "{}: the address is inside a block, not at its beginning", Class(bytes))
            }
            Self::NotLive { bytes } => {
                write!(f, "{}: nothing live begins at the address (freed twice?)", Class(bytes))
            }
            Self::WrongSize { bytes, given } => {
                write!(f, "{}: freed with a size of {given} bytes, which another class has", Class(bytes))
            }
            Self::WrongOldSize { bytes, given } => {
                write!(
                    f,
                    "{}: resized with an old size of {given} bytes, which another class has",
                    Class(bytes)
                )
            }
            Self::TwoThreads { bytes } => {
                write!(f, "{}: two threads freed the block", Class(bytes))
            }
        }
    }
}

impl std::error::Error for Mistake {}

/// Says what was done to which address and ends the process: going on would hand out memory that is in use.
///
/// Formats on the stack and writes with one system call; nothing is allocated.
#[cold]
#[inline(never)]
pub(super) fn abort(what: &str, address: usize, mistake: Mistake) -> ! {
    crate::complain::abort(format_args!("{what} of {address:#x}: {mistake}"))
}

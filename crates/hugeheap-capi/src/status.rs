//! What a function answers that neither allocates nor frees.

use core::ffi::{CStr, c_char, c_int};

/// `hh_status`. Numbers are part of the interface and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Status {
    Ok = 0,
    BadSize = 1,
    BadPolicy = 2,
    BadDecay = 3,
    BadArgument = 4,
    NoMemory = 5,
    BadChecks = 6,
    BadNursery = 7,
    BadGrowth = 8,
    LayoutSmall = 9,
    LayoutLarge = 10,
    LayoutSlot = 11,
    LayoutItems = 12,
    LayoutMany = 13,
    LayoutTwice = 14,
    Mistake = 15,
    NotOurs = 16,
    Protected = 17,
    TooMany = 18,
    Refused = 19,
    BadLog = 20,
    BadForbid = 21,
    BadMerge = 22,
}

impl Status {
    const ALL: [Self; 23] = [
        Self::Ok,
        Self::BadSize,
        Self::BadPolicy,
        Self::BadDecay,
        Self::BadArgument,
        Self::NoMemory,
        Self::BadChecks,
        Self::BadNursery,
        Self::BadGrowth,
        Self::LayoutSmall,
        Self::LayoutLarge,
        Self::LayoutSlot,
        Self::LayoutItems,
        Self::LayoutMany,
        Self::LayoutTwice,
        Self::Mistake,
        Self::NotOurs,
        Self::Protected,
        Self::TooMany,
        Self::Refused,
        Self::BadLog,
        Self::BadForbid,
        Self::BadMerge,
    ];

    const fn message(self) -> &'static CStr {
        match self {
            Self::Ok => c"no mistake",
            Self::BadSize => {
                c"the struct's size is not one that this version of hugeheap knows; set it with sizeof"
            }
            Self::BadPolicy => c"the policy must be one of auto, thp, dense, hugetlb, base",
            Self::BadDecay => {
                c"the decay time must be nanoseconds between 1000000 (1 ms) and 86400000000000 (a day)"
            }
            Self::BadArgument => c"the argument must not be NULL",
            Self::NoMemory => c"there is no memory for it: free some, ask for less or raise the limit, and call again",
            Self::BadChecks => {
                c"checks has a bit that this version of hugeheap does not know"
            }
            Self::BadNursery => c"a nursery must have at least 65536 bytes; 0 leaves its size to hugeheap",
            Self::BadGrowth => c"a growth must be at least 110 percent; 0 leaves it to hugeheap",
            Self::LayoutSmall => {
                c"the type has no room for its header of 8 bytes and, where it has items, its length of 8 bytes"
            }
            Self::LayoutLarge => c"the fixed part or an item of the type has more than 1073741824 bytes",
            Self::LayoutSlot => {
                c"a slot of the type is not at a multiple of 8 inside its part and behind header and length"
            }
            Self::LayoutItems => c"items with slots must begin at, and have, a multiple of 8 bytes",
            Self::LayoutMany => c"the heap has 1048576 types, which is the most",
            Self::LayoutTwice => c"a word of the type is named as a slot twice, or the type has two trace functions",
            Self::Mistake => c"the heap was used wrongly; the buffer says how",
            Self::NotOurs => c"the address is in no heap page of this heap's old generation",
            Self::Protected => c"the heap page is protected already",
            Self::TooMany => c"too many heap pages are protected",
            Self::Refused => {
                c"the system refused to protect the heap page: memory of the hugetlb pool cannot be protected in parts"
            }
            Self::BadLog => {
                c"the text is no log like gc-minor,gc-major,arena:FILE, or its file cannot be written; the buffer says which"
            }
            Self::BadForbid => c"what is forbidden must be HH_GC_FORBID_WRITE or HH_GC_FORBID_ACCESS",
            Self::BadMerge => c"merge must be HH_MERGE or HH_NO_MERGE; 0 leaves it as it is",
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn hh_strerror(status: c_int) -> *const c_char {
    let found = Status::ALL.into_iter().find(|&known| known as c_int == status);
    found.map_or(c"not a status of this version of hugeheap", Status::message).as_ptr()
}

/// The version of the library, for C.
const VERSION: &[u8] = concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes();

#[unsafe(no_mangle)]
extern "C" fn hh_version() -> *const c_char {
    VERSION.as_ptr().cast()
}

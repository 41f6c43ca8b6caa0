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
}

impl Status {
    const ALL: [Self; 5] = [Self::Ok, Self::BadSize, Self::BadPolicy, Self::BadDecay, Self::BadArgument];

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

//! `libhugeheap_preload.so`: loaded by `LD_PRELOAD` before a program starts.
//!
//! ```text
//!   ld.so ─▶ constructor ─▶ read HUGEHEAP_… ─▶ CPython here? ──yes──▶ install the hooks ─▶ main()
//!                                                    └────no───▶ say so in the record, if one is wanted
//!   exit  ─▶ destructor  ─▶ the level as it is, measure and publish, if somebody listens
//! ```
//!
//! Of the C library's functions it stands before those that set a limit: see `limits`.
//!
//! It is loaded into every child process as well: a process that is not CPython pays for the load (about 0.2 ms for /bin/true) and
//! nothing else. With `HUGEHEAP_CHILDREN=0` it takes itself out of the environment.

use core::ffi::CStr;
use hugeheap::runtime::{runtime, settings_from_environment};
use hugeheap::telemetry::HookState;
use hugeheap_cpython::{Moment, install, interface, print_line, tell_level};

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod limits;

hugeheap_cpython::export_interface!();

/// Variables that are taken out of the environment when children should not inherit.
const VARIABLES: [&CStr; 9] = [
    c"HUGEHEAP_POLICY",
    c"HUGEHEAP_LEVEL",
    c"HUGEHEAP_DECAY",
    c"HUGEHEAP_LIMIT",
    c"HUGEHEAP_HARDENED",
    c"HUGEHEAP_PUBLISH",
    c"HUGEHEAP_CHILDREN",
    c"HUGEHEAP_TELEMETRY",
    c"HUGEHEAP_DISABLE",
];

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;

#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = destructor;

extern "C" fn constructor() {
    // A panic must not unwind into the dynamic linker; the program then runs as if the library were not there.
    let _ = std::panic::catch_unwind(start);
}

extern "C" fn destructor() {
    let _ = std::panic::catch_unwind(|| {
        tell_level();
        runtime().finish();
    });
}

fn is(name: &CStr, value: &[u8]) -> bool {
    // SAFETY: the C string is used at once; a constructor runs before other threads exist.
    unsafe {
        let found = libc::getenv(name.as_ptr());
        !found.is_null() && CStr::from_ptr(found).to_bytes() == value
    }
}

fn start() {
    let inherit = !is(c"HUGEHEAP_CHILDREN", b"0");
    if is(c"HUGEHEAP_DISABLE", b"1") {
        interface::decline(HookState::Disabled);
    } else {
        match settings_from_environment() {
            Ok((settings, level)) => {
                // SAFETY: a constructor runs before other threads exist, and the library is linked as never unloaded.
                unsafe { install(settings, level, Moment::BeforeStart) };
            }
            Err(error) => {
                print_line(format_args!("{error}; the program runs without hugeheap"));
                interface::decline(HookState::BadSetting);
            }
        }
    }
    if !inherit {
        leave_environment();
    }
}

/// Takes this library and its settings out of the environment.
fn leave_environment() {
    const NAME: &[u8] = b"libhugeheap_preload.so";
    // SAFETY: a constructor runs before other threads exist, so nobody else reads the environment now.
    unsafe {
        for variable in VARIABLES {
            libc::unsetenv(variable.as_ptr());
        }
        let list = libc::getenv(c"LD_PRELOAD".as_ptr());
        if list.is_null() {
            return;
        }
        let mut rest = Vec::new();
        for part in CStr::from_ptr(list).to_bytes().split(|&byte| byte == b':' || byte == b' ') {
            if !part.is_empty() && !part.ends_with(NAME) {
                if !rest.is_empty() {
                    rest.push(b':');
                }
                rest.extend_from_slice(part);
            }
        }
        if rest.is_empty() {
            libc::unsetenv(c"LD_PRELOAD".as_ptr());
        } else {
            rest.push(0);
            libc::setenv(c"LD_PRELOAD".as_ptr(), rest.as_ptr().cast(), 1);
        }
    }
}

//! What a preloaded library of hugeheap does before its program starts: `libhugeheap_preload.so`, and
//! `libhugeheap_malloc.so`, which has a `malloc` as well.
//!
//! ```text
//!   ld.so ─▶ constructor ─▶ read HUGEHEAP_… ─▶ CPython here? ──yes──▶ install the hooks ─▶ main()
//!                                                    └────no───▶ say so in the record, if one is wanted
//!   exit  ─▶ destructor  ─▶ the level as it is, measure and publish, if somebody listens
//! ```
//!
//! Of the C library's functions it stands before those that set a limit: see `limits`.
//!
//! It is loaded into every child process as well: a process that is not CPython pays for the load (about 0.2 ms
//! for /bin/true) and nothing else. With `HUGEHEAP_CHILDREN=0` it takes itself out of the environment.

use core::ffi::CStr;
use hugeheap::arena::Settings;
use hugeheap::runtime::{
    SettingError, children_inherit, disabled_by_environment, runtime, settings_from_environment,
};
use hugeheap::telemetry::{HookState, Level};
use hugeheap_cpython::{Moment, install, interface, is_malloc_library, print_line, tell_level};

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod limits;

hugeheap_cpython::export_interface!();

pub use hugeheap_cpython::{has_malloc, note_passed_on};

/// Variables that are taken out of the environment when children should not inherit.
const VARIABLES: [&CStr; 11] = [
    c"HUGEHEAP_POLICY",
    c"HUGEHEAP_LEVEL",
    c"HUGEHEAP_DECAY",
    c"HUGEHEAP_LIMIT",
    c"HUGEHEAP_MERGE",
    c"HUGEHEAP_HARDENED",
    c"HUGEHEAP_PUBLISH",
    c"HUGEHEAP_THREAD",
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

/// What the environment asks for; `None`: nothing is to be done.
fn asked() -> Result<Option<(Settings, Level)>, SettingError> {
    if disabled_by_environment()? {
        return Ok(None);
    }
    // What children get is no matter of the hooks, but a word that is not understood must not pass for a yes.
    children_inherit()?;
    settings_from_environment().map(Some)
}

fn start() {
    match asked() {
        Ok(None) => interface::decline(HookState::Disabled),
        Ok(Some((settings, mut level))) => {
            if level == Level::Malloc && !is_malloc_library() {
                print_line(format_args!(
                    "level malloc is that of libhugeheap_malloc.so, which `hugeheap run` loads for it; this is level objects"
                ));
                level = Level::Objects;
            }
            // SAFETY: a constructor runs before other threads exist, and the library is linked as never unloaded.
            unsafe { install(settings, level, Moment::BeforeStart) };
        }
        Err(error) => {
            print_line(format_args!("{error}; the program runs without hugeheap"));
            interface::decline(HookState::BadSetting);
        }
    }
    if children_inherit() == Ok(false) {
        leave_environment();
    }
}

/// Takes this library and its settings out of the environment.
fn leave_environment() {
    // This one, and the one that contains it and a `malloc`.
    const NAMES: [&[u8]; 2] = [b"libhugeheap_preload.so", b"libhugeheap_malloc.so"];
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
            if !part.is_empty() && !NAMES.iter().any(|name| part.ends_with(name)) {
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

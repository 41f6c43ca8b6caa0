//! Installing the hooks, once per process.
//!
//! Once, because `site` runs again in every subinterpreter, and a second installation would take the first hook
//! for the allocator that was there before and call itself for ever.

use crate::detect::{Found, decide};
use crate::symbols::{Symbols, same_object};
use crate::{after_fork, arena_hook, object_hook, raw_hook};
use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use hugeheap::arena::Settings;
use hugeheap::runtime::{runtime, tell_what_is_passed_over};
use hugeheap::telemetry::{HookState, Level};

/// When the hooks are installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// By a constructor, before the interpreter runs.
    BeforeStart,
    /// In a running interpreter, with its GIL held.
    Running,
}

/// [`HookState`] of this process.
static STATE: AtomicU32 = AtomicU32::new(HookState::Idle as u32);

fn variable(name: &'static CStr) -> Option<&'static [u8]> {
    // SAFETY: the C string is used at once, before anything changes the environment.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        if value.is_null() { None } else { Some(CStr::from_ptr(value).to_bytes()) }
    }
}

/// The [`Level`] that this process was described with.
static LEVEL: AtomicU32 = AtomicU32::new(Level::Arenas as u32);

/// The state of this process.
pub(crate) fn state() -> HookState {
    HookState::from_number(STATE.load(Ordering::Acquire)).unwrap_or(HookState::Idle)
}

/// Notes why nothing is hooked.
pub(crate) fn set_state(state: HookState) {
    STATE.store(state as u32, Ordering::Release);
}

/// The level, according to whether objects come from hugeheap, and all that `malloc` gives.
fn level_in_force(objects: bool) -> Level {
    match (has_malloc(), objects) {
        (true, _) => Level::Malloc,
        (false, true) => Level::Objects,
        (false, false) => Level::Arenas,
    }
}

/// Whether this library has a `malloc`: it exports this name then. Whether that is the program's is [another
/// question](has_malloc).
pub fn is_malloc_library() -> bool {
    // SAFETY: dlsym looks among the global objects.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"hugeheap_malloc_v1".as_ptr()) };
    same_object(found, is_malloc_library as *const c_void)
}

/// Whether a request came to this library's `malloc` and was passed on to the C library, since [`has_malloc`]
/// began to ask.
static PASSED_ON: AtomicBool = AtomicBool::new(false);

/// To be called by the library's `malloc` when it serves, has no memory for a request, and passes it on to the
/// C library.
pub fn note_passed_on() {
    PASSED_ON.store(true, Ordering::Relaxed);
}

/// Whether the program's `malloc` is that of this library: not in the one without, and another one may be
/// preloaded before it.
///
/// A block tells. The function's address does not: in a program that is not relocated it is the program's own,
/// of a jump to it. And to call it by name would call this library's.
///
/// The block may be the C library's, where there is no memory for an arena yet: a limit on address space, say,
/// that the program raises itself. While only the block was asked, such a program passed for one with a
/// `malloc` of its own, and what CPython freed went to the wrong one of two allocators when there was memory.
pub fn has_malloc() -> bool {
    const UNKNOWN: u8 = 2;
    static KNOWN: AtomicU8 = AtomicU8::new(UNKNOWN);
    let known = KNOWN.load(Ordering::Relaxed);
    if known != UNKNOWN {
        return known != 0;
    }
    type Malloc = unsafe extern "C" fn(usize) -> *mut c_void;
    type Free = unsafe extern "C" fn(*mut c_void);
    // SAFETY: dlsym looks among the global objects; the symbols' types are fixed by their names. The block is
    // freed once, and not used.
    let has = unsafe {
        let malloc = libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr());
        let free = libc::dlsym(libc::RTLD_DEFAULT, c"free".as_ptr());
        is_malloc_library() && !malloc.is_null() && !free.is_null() && {
            PASSED_ON.store(false, Ordering::Relaxed);
            let block = core::mem::transmute::<*mut c_void, Malloc>(malloc)(1);
            let has = runtime().owns(block as usize) || PASSED_ON.load(Ordering::Relaxed);
            core::mem::transmute::<*mut c_void, Free>(free)(block);
            has
        }
    };
    KNOWN.store(u8::from(has), Ordering::Relaxed);
    has
}

/// Whether the hooks are in.
pub(crate) fn is_installed(state: HookState) -> bool {
    matches!(state, HookState::Hooked | HookState::OtherAllocator)
}

/// Looks whether the interpreter put its own allocators over ours when it started, and tells the level as it
/// is. Asked when pymalloc wants an arena, and when the process ends, because not every allocator wants any.
pub fn tell_level() {
    if LEVEL.load(Ordering::Relaxed) != Level::Objects as u32 || state() != HookState::Hooked {
        return;
    }
    if let Some(symbols) = Symbols::find().filter(object_hook::is_overruled) {
        describe(HookState::Hooked, Level::Arenas, symbols.version());
    }
}

/// Tells what this process is.
fn describe(state: HookState, level: Level, version: &[u8]) {
    LEVEL.store(level as u32, Ordering::Relaxed);
    runtime().describe(state, level, version);
}

/// Starts hugeheap over the allocators that were there before.
fn start(settings: Settings) {
    runtime().start(settings);
    runtime().pass_refusals_on();
}

/// Installs the hooks if this process is a CPython that has use for them. A second call changes the settings only.
///
/// # Safety
/// Called by a constructor before threads exist, or with the GIL held, according to `moment`. The library that
/// contains this code is never unloaded afterwards.
pub unsafe fn install(settings: Settings, level: Level, moment: Moment) -> HookState {
    let symbols = Symbols::find();
    let version = symbols.map_or(&b""[..], |symbols| symbols.version());
    if is_installed(state()) {
        runtime().configure(|now| *now = settings);
        if let (Level::Objects | Level::Malloc, HookState::Hooked, Some(symbols)) = (level, state(), symbols)
        {
            // SAFETY: the symbols were just looked up; the caller vouches for the moment.
            let level = level_in_force(unsafe { object_hook::install(&symbols) });
            describe(state(), level, version);
        }
        return state();
    }
    let mut level = level;
    // In a running interpreter the variables say what was in force when it started only if it did not ignore
    // them (`-E`, `-I`); that does harm in neither direction: the hook is installed all the same.
    let decision = match decide(Found {
        is_cpython: symbols.is_some(),
        version,
        python_malloc: variable(c"PYTHONMALLOC"),
        own_huge_pages: variable(c"PYTHON_PYMALLOC_HUGEPAGES"),
    }) {
        HookState::NotPython if has_malloc() => HookState::Hooked,
        HookState::NotPython if is_malloc_library() => HookState::OwnMalloc,
        decision => decision,
    };
    if has_malloc() {
        // Whatever was asked for: the library has no other.
        level = Level::Malloc;
        start(settings);
    }
    if let (true, Some(symbols)) = (is_installed(decision), symbols) {
        // Here, so that the programs between, shells and their tools, say nothing.
        tell_what_is_passed_over();
        after_fork::install(&symbols);
        start(settings);
        // SAFETY: the symbols were just looked up; the caller vouches for the moment.
        unsafe {
            arena_hook::install(&symbols);
            if !has_malloc() {
                raw_hook::install(&symbols);
            }
            let objects = level != Level::Arenas
                && decision == HookState::Hooked
                // Any value makes the interpreter set its own allocators when it starts, over ours.
                && (moment == Moment::Running || variable(c"PYTHONMALLOC").is_none_or(<[u8]>::is_empty))
                && object_hook::install(&symbols);
            level = level_in_force(objects);
        }
    } else if moment == Moment::BeforeStart {
        runtime().listen();
    }
    set_state(decision);
    describe(decision, level, version);
    decision
}

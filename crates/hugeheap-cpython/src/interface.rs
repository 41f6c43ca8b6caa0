//! One runtime per process.
//!
//! The preload library and the extension module each contain a runtime. Whichever comes second must use the
//! first, so that there is one region, one set of numbers and one fork handler. Each exports
//! `hugeheap_runtime_v1`, a function that answers a table of functions; whoever needs a runtime asks the
//! process for that symbol first. The table only grows at its end; its meaning changes only with the number in
//! the symbol's name.

use crate::install;
use core::ffi::c_void;
use hugeheap::arena::{Policy, Settings};
use hugeheap::runtime::{runtime, settings_from_environment};
use hugeheap::telemetry::{HookState, Level, Snapshot};

/// Leave a setting as it is.
pub const UNCHANGED: u64 = u64::MAX;

/// Settings in a form that libraries of different versions agree on.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Size of this struct in the caller, in bytes.
    pub size: u32,
    /// [`Policy`] as a number, `u32::MAX`: unchanged.
    pub policy: u32,
    /// Decay time in nanoseconds, or [`UNCHANGED`].
    pub decay: u64,
    /// Limit in bytes, 0: none, or [`UNCHANGED`].
    pub limit: u64,
    /// [`Level`] as a number, for `enable`; anything else: the environment's.
    pub level: u32,
    /// Whether OS pages are made alike for the host to merge: [`MERGE`] or [`NO_MERGE`]; anything else, as the
    /// 0 of older callers: unchanged.
    pub merge: u32,
}

/// OS pages of heaps that have shrunk are made alike.
pub const MERGE: u32 = 1;
/// They are not.
pub const NO_MERGE: u32 = 2;

/// Size of [`Options`] in their first version, which ended with the limit.
const FIRST_OPTIONS: usize = 24;

impl Options {
    /// Changes nothing.
    pub const UNCHANGED: Self = Self {
        size: size_of::<Self>() as u32,
        policy: u32::MAX,
        decay: UNCHANGED,
        limit: UNCHANGED,
        level: u32::MAX,
        merge: 0,
    };

    /// The options of a caller whose version may have fewer fields or more: those that both know; the others
    /// change nothing.
    ///
    /// # Safety
    /// Null, or as many bytes as the first field says.
    unsafe fn read(given: *const Self) -> Self {
        let mut options = Self::UNCHANGED;
        // SAFETY: by the contract above; all fields are numbers, of which any prefix may be copied.
        unsafe {
            let bytes = if given.is_null() { 0 } else { (*given.cast::<u32>()) as usize };
            if bytes >= FIRST_OPTIONS {
                let known = bytes.min(size_of::<Self>());
                core::ptr::copy_nonoverlapping(given.cast::<u8>(), (&raw mut options).cast(), known);
            }
        }
        options
    }

    fn apply(&self, settings: &mut Settings) {
        if let Some(policy) = Policy::from_number(self.policy) {
            settings.policy = policy;
        }
        if self.decay != UNCHANGED {
            settings.decay = self.decay.max(1_000_000);
        }
        if self.limit != UNCHANGED {
            settings.limit = (self.limit > 0).then_some(self.limit);
        }
        match self.merge {
            MERGE => settings.merge = true,
            NO_MERGE => settings.merge = false,
            _ => {}
        }
    }
}

/// The functions of the process's runtime.
#[repr(C)]
#[derive(Debug)]
pub struct Interface {
    /// Size of this table in bytes.
    pub size: u32,
    /// Size of [`Snapshot`] in the runtime.
    pub snapshot_size: u32,
    /// Installs the hooks; with the GIL held. Answers a [`HookState`] as a number. Null: defaults and the environment.
    pub enable: unsafe extern "C" fn(*const Options) -> u32,
    /// Changes the settings of the running heap.
    pub configure: unsafe extern "C" fn(*const Options),
    /// Fills up to the given number of bytes with the snapshot; asks the kernel first when the last argument is not 0.
    pub snapshot: unsafe extern "C" fn(*mut c_void, usize, u32),
    /// Gives back what the retention rule would keep; answers the bytes given back.
    pub give_back: extern "C" fn() -> u64,
    /// The [`HookState`] as a number.
    pub state: extern "C" fn() -> u32,
}

/// Size of the table in its first version.
const FIRST_VERSION: usize = 48;

const _: () = assert!(size_of::<Interface>() >= FIRST_VERSION);

/// The type of the exported symbol.
pub type Export = extern "C" fn() -> *const Interface;

unsafe extern "C" fn enable(given: *const Options) -> u32 {
    let (mut settings, mut level) = settings_from_environment().unwrap_or((Settings::DEFAULT, Level::Arenas));
    if install::is_installed(install::state()) {
        settings = runtime().settings();
    }
    // SAFETY: by the contract of `Interface::enable`.
    let options = unsafe { Options::read(given) };
    options.apply(&mut settings);
    level = Level::from_number(options.level).unwrap_or(level);
    // SAFETY: the caller holds the GIL; the libraries that contain this code are marked as never unloaded.
    unsafe { install::install(settings, level, install::Moment::Running) as u32 }
}

unsafe extern "C" fn configure(given: *const Options) {
    // SAFETY: by the contract of `Interface::configure`.
    let options = unsafe { Options::read(given) };
    runtime().configure(|settings| options.apply(settings));
}

unsafe extern "C" fn snapshot(to: *mut c_void, bytes: usize, measure: u32) {
    let snapshot = runtime().snapshot(measure != 0);
    let bytes = bytes.min(size_of::<Snapshot>());
    // SAFETY: the caller provides `bytes` bytes; a snapshot is plain numbers, any prefix of which may be copied.
    unsafe { core::ptr::copy_nonoverlapping((&raw const snapshot).cast::<u8>(), to.cast::<u8>(), bytes) };
}

extern "C" fn give_back() -> u64 {
    runtime().give_back()
}

extern "C" fn state() -> u32 {
    install::state() as u32
}

/// The table of the runtime in this library. What the exported symbol answers.
pub static INTERFACE: Interface = Interface {
    size: size_of::<Interface>() as u32,
    snapshot_size: size_of::<Snapshot>() as u32,
    enable,
    configure,
    snapshot,
    give_back,
    state,
};

/// Notes that this library is loaded and does nothing, and why.
pub fn decline(state: HookState) {
    install::set_state(state);
    runtime().listen();
    runtime().describe(state, Level::Arenas, b"");
}

/// The runtime of this process: that of the library that came first, else this one's, which is published for
/// those that come later.
///
/// `anchor` is any function or static of the calling library.
pub fn connect(anchor: *const c_void) -> &'static Interface {
    // SAFETY: dlsym looks among the global objects; the symbol's type is fixed by its name.
    let found = unsafe {
        let symbol = libc::dlsym(libc::RTLD_DEFAULT, c"hugeheap_runtime_v1".as_ptr());
        if symbol.is_null() { None } else { core::mem::transmute::<*mut c_void, Export>(symbol)().as_ref() }
    };
    match found {
        // A table may be longer than this library's, never shorter than the first version's: a function added
        // later is called only if the size says that it is there.
        Some(interface) if interface.size as usize >= FIRST_VERSION => interface,
        _ => {
            publish(anchor);
            &INTERFACE
        }
    }
}

/// Makes the symbols of the library that contains `anchor` global, and the library permanent.
fn publish(anchor: *const c_void) {
    let mut info = core::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: dladdr fills the struct when it answers non-zero; dlopen with RTLD_NOLOAD only changes flags of a
    // loaded object.
    unsafe {
        if libc::dladdr(anchor, info.as_mut_ptr()) != 0 {
            libc::dlopen(
                info.assume_init().dli_fname,
                libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_GLOBAL | libc::RTLD_NODELETE,
            );
        }
    }
}

/// Exports the runtime of the library that uses this macro.
#[macro_export]
macro_rules! export_interface {
    () => {
        /// The functions of this process's runtime.
        #[unsafe(no_mangle)]
        pub extern "C" fn hugeheap_runtime_v1() -> *const $crate::interface::Interface {
            &raw const $crate::interface::INTERFACE
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An extension from before the level was an option once had all of its options passed over.
    #[test]
    fn options_of_other_versions_are_read_as_far_as_both_know() {
        let given = Options {
            policy: Policy::Dense as u32,
            limit: 7,
            level: Level::Objects as u32,
            ..Options::UNCHANGED
        };
        let read = |size: usize| {
            let given = Options { size: size as u32, ..given };
            // SAFETY: a struct of at least 24 bytes; never more than its own size is copied.
            let read = unsafe { Options::read(&raw const given) };
            (read.policy, read.limit, read.level)
        };
        assert_eq!(read(FIRST_OPTIONS), (Policy::Dense as u32, 7, u32::MAX));
        assert_eq!(read(size_of::<Options>()), (Policy::Dense as u32, 7, Level::Objects as u32));
        assert_eq!(read(size_of::<Options>() + 64), read(size_of::<Options>()), "a newer caller");
        assert_eq!(read(8), (u32::MAX, UNCHANGED, u32::MAX), "no version is that small");
        // SAFETY: null is allowed.
        assert_eq!(unsafe { Options::read(core::ptr::null()) }.limit, UNCHANGED);
    }

    /// Older callers have zero where the switch is.
    #[test]
    fn who_does_not_know_of_merging_leaves_it_as_it_is() {
        for before in [false, true] {
            let of = |merge| {
                let mut settings = Settings { merge: before, ..Settings::DEFAULT };
                Options { merge, ..Options::UNCHANGED }.apply(&mut settings);
                settings.merge
            };
            assert_eq!([of(0), of(u32::MAX), of(MERGE), of(NO_MERGE)], [before, before, true, false]);
        }
    }
}

//! The C library's own allocator: where blocks come from as long as hugeheap is not to serve, and where foreign
//! ones go back to.
//!
//! ```text
//!   unknown ──the environment can be read──▶ serves
//!                                       └──▶ off: HUGEHEAP_DISABLE, or a setting that is not understood
//! ```
//!
//! The dynamic linker allocates before the C library knows the environment. What it gets then is foreign; a few
//! hundred bytes.
//!
//! The functions are those under which the GNU C library has exported its own since 2.0, so that nothing has to
//! be looked up: `dlsym` may allocate.

use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use hugeheap::arena::Policy;
use hugeheap::runtime::{children_inherit, disabled_by_environment, settings_from_environment};

unsafe extern "C" {
    fn __libc_malloc(size: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    fn __libc_realloc(block: *mut c_void, size: usize) -> *mut c_void;
    fn __libc_memalign(alignment: usize, size: usize) -> *mut c_void;
    fn __libc_free(block: *mut c_void);
    static environ: *const *const c_char;
}

/// See the module's text.
static PHASE: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Whether the policy is one of huge pages. Of when the environment was read: a program may have changed it
/// since, and the constructor takes the settings out of it where children are not to have them.
static WANTS_HUGE_PAGES: AtomicBool = AtomicBool::new(false);

const UNKNOWN: u8 = 0;
const SERVES: u8 = 1;
const OFF: u8 = 2;

/// Whether hugeheap serves requests of a thread that has no heap yet. Once it does it always does; `false` may
/// still change.
pub(crate) fn serves() -> bool {
    match PHASE.load(Ordering::Relaxed) {
        UNKNOWN => look(),
        phase => phase == SERVES,
    }
}

/// Whether hugeheap serves, and with a policy of huge pages. Takes no lock: a child of a fork without handlers may ask.
#[cfg(target_pointer_width = "64")]
pub(crate) fn wants_huge_pages() -> bool {
    serves() && WANTS_HUGE_PAGES.load(Ordering::Relaxed)
}

#[cold]
fn look() -> bool {
    // SAFETY: a variable of the C library that other threads change only together with its contents.
    if unsafe { environ }.is_null() {
        return false;
    }
    let settings = settings_from_environment();
    // The constructor says in a line what was not understood.
    let understood = disabled_by_environment() == Ok(false) && children_inherit().is_ok() && settings.is_ok();
    let huge = settings.is_ok_and(|(settings, _)| settings.policy != Policy::Base);
    WANTS_HUGE_PAGES.store(huge, Ordering::Relaxed);
    if understood {
        initialise();
    }
    PHASE.store(if understood { SERVES } else { OFF }, Ordering::Relaxed);
    understood
}

/// Has the C library's `malloc` initialise itself, by a request that it refuses: that takes no memory.
///
/// It does so with its first request and without a lock, because elsewhere that comes before a second thread.
/// Here it came whenever hugeheap had no memory for a request: when two threads met there both had the same
/// arena and one was counted, so that their ends were one too many and the program was ended, and lists that
/// one had filled were emptied by the other.
fn initialise() {
    // SAFETY: no preconditions; the location of errno is valid for the life of the calling thread.
    unsafe {
        let kept = *libc::__errno_location();
        let refused = __libc_malloc(usize::MAX);
        debug_assert!(refused.is_null());
        *libc::__errno_location() = kept;
    }
}

pub(crate) fn malloc(size: usize) -> *mut c_void {
    // SAFETY: no preconditions.
    unsafe { __libc_malloc(size) }
}

pub(crate) fn calloc(count: usize, size: usize) -> *mut c_void {
    // SAFETY: no preconditions.
    unsafe { __libc_calloc(count, size) }
}

pub(crate) fn memalign(alignment: usize, size: usize) -> *mut c_void {
    // SAFETY: no preconditions; the C library checks the alignment.
    unsafe { __libc_memalign(alignment, size) }
}

/// # Safety
/// As for the C library's function: what hugeheap does not know is its own, and given up.
pub(crate) unsafe fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: by the contract above.
    unsafe { __libc_realloc(block, size) }
}

/// # Safety
/// As for [`realloc`].
pub(crate) unsafe fn free(block: *mut c_void) {
    // SAFETY: by the contract above.
    unsafe { __libc_free(block) }
}

/// Bytes of a foreign block.
///
/// # Safety
/// It is a live one.
pub(crate) unsafe fn usable_size(block: *mut c_void) -> usize {
    type UsableSize = unsafe extern "C" fn(*mut c_void) -> usize;
    // It has no second name.
    // SAFETY: dlsym looks among the objects after this one; the symbol's type is fixed by its name.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"malloc_usable_size".as_ptr()) };
    if found.is_null() {
        return 0;
    }
    // SAFETY: as above, and by the contract.
    unsafe { core::mem::transmute::<*mut c_void, UsableSize>(found)(block) }
}

/// Sets a parameter of the C library's `malloc`; answers 1, or 0 for a value that it does not take.
pub(crate) fn set(parameter: c_int, value: c_int) -> c_int {
    type Set = unsafe extern "C" fn(c_int, c_int) -> c_int;
    // No second name either.
    // SAFETY: as in `usable_size`.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"mallopt".as_ptr()) };
    if found.is_null() {
        return 1;
    }
    // SAFETY: as in `usable_size`; no preconditions.
    unsafe { core::mem::transmute::<*mut c_void, Set>(found)(parameter, value) }
}

//! The interpreter's functions, looked up in the running process.
//!
//! `PyObject_SetArenaAllocator` is public and not deprecated, but not in the limited API; `PyMem_SetAllocator`
//! is public. Both only assign to a static struct, so they may be called before the interpreter is initialised.

use core::ffi::{CStr, c_char, c_int, c_void};

/// CPython's `PyObjectArenaAllocator`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ArenaAllocator {
    pub(crate) context: *mut c_void,
    pub(crate) alloc: Option<unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void>,
    pub(crate) free: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, usize)>,
}

/// CPython's `PyMemAllocatorEx`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DomainAllocator {
    pub(crate) context: *mut c_void,
    pub(crate) malloc: Option<unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void>,
    pub(crate) calloc: Option<unsafe extern "C" fn(*mut c_void, usize, usize) -> *mut c_void>,
    pub(crate) realloc: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> *mut c_void>,
    pub(crate) free: Option<unsafe extern "C" fn(*mut c_void, *mut c_void)>,
}

const _: () = assert!(size_of::<ArenaAllocator>() == 3 * size_of::<usize>());
const _: () = assert!(size_of::<DomainAllocator>() == 5 * size_of::<usize>());

/// `PYMEM_DOMAIN_RAW`.
pub(crate) const DOMAIN_RAW: c_int = 0;
/// `PYMEM_DOMAIN_MEM`.
pub(crate) const DOMAIN_MEM: c_int = 1;
/// `PYMEM_DOMAIN_OBJ`.
pub(crate) const DOMAIN_OBJ: c_int = 2;

impl DomainAllocator {
    pub(crate) const NONE: Self =
        Self { context: core::ptr::null_mut(), malloc: None, calloc: None, realloc: None, free: None };

    /// Sets this allocator in place of the one before, by `set`. In two steps, because the interpreter copies
    /// the struct piece by piece while others look at it: threads that have another interpreter's lock, and in
    /// the raw domain all. First what frees the blocks of both, then what hands out ours; were this thread
    /// stopped between two pieces, they would have our blocks and the free before.
    pub(crate) fn put_over(mut self, before: &Self, set: impl Fn(*mut Self)) {
        let mut first = Self { realloc: self.realloc, free: self.free, ..*before };
        set(&raw mut first);
        set(&raw mut self);
    }

    /// # Safety
    /// The allocator is one of the process's CPython.
    pub(crate) unsafe fn malloc(&self, bytes: usize) -> *mut c_void {
        // SAFETY: its own function with its own context.
        self.malloc.map_or(core::ptr::null_mut(), |malloc| unsafe { malloc(self.context, bytes) })
    }

    /// # Safety
    /// As for `malloc`.
    pub(crate) unsafe fn calloc(&self, count: usize, size: usize) -> *mut c_void {
        // SAFETY: as in `malloc`.
        self.calloc.map_or(core::ptr::null_mut(), |calloc| unsafe { calloc(self.context, count, size) })
    }

    /// # Safety
    /// As for `malloc`; the block is this allocator's, or null.
    pub(crate) unsafe fn realloc(&self, block: *mut c_void, bytes: usize) -> *mut c_void {
        // SAFETY: as in `malloc`.
        self.realloc.map_or(core::ptr::null_mut(), |realloc| unsafe { realloc(self.context, block, bytes) })
    }

    /// # Safety
    /// As for `realloc`.
    pub(crate) unsafe fn free(&self, block: *mut c_void) {
        if let Some(free) = self.free {
            // SAFETY: as in `malloc`.
            unsafe { free(self.context, block) };
        }
    }
}

pub(crate) type GetArena = unsafe extern "C" fn(*mut ArenaAllocator);
pub(crate) type SetArena = unsafe extern "C" fn(*mut ArenaAllocator);
pub(crate) type GetDomain = unsafe extern "C" fn(c_int, *mut DomainAllocator);
pub(crate) type SetDomain = unsafe extern "C" fn(c_int, *mut DomainAllocator);
pub(crate) type IsInitialized = unsafe extern "C" fn() -> c_int;
pub(crate) type PendingCall = unsafe extern "C" fn(*mut c_void) -> c_int;
pub(crate) type AddPendingCall = unsafe extern "C" fn(PendingCall, *mut c_void) -> c_int;
type GetVersion = unsafe extern "C" fn() -> *const c_char;

/// What a CPython process offers.
#[derive(Clone, Copy)]
pub(crate) struct Symbols {
    pub(crate) get_arena: GetArena,
    pub(crate) set_arena: SetArena,
    pub(crate) get_domain: Option<GetDomain>,
    pub(crate) set_domain: Option<SetDomain>,
    pub(crate) is_initialized: Option<IsInitialized>,
    pub(crate) add_pending_call: Option<AddPendingCall>,
    get_version: Option<GetVersion>,
}

fn find(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: looking a symbol up in the objects that are loaded; the result is only compared with null here.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

/// A function of the process by name, as `F`.
///
/// # Safety
/// The function has the type `F`.
unsafe fn function<F: Copy>(name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: the caller says that the symbol is a function of type `F`, a pointer by the assertion above.
    find(name).map(|address| unsafe { core::mem::transmute_copy(&address) })
}

impl Symbols {
    /// The functions of this process; `None` when it is not CPython.
    pub(crate) fn find() -> Option<Self> {
        // SAFETY: the types are those of CPython's documented C API, unchanged since 3.4.
        unsafe {
            Some(Self {
                get_arena: function(c"PyObject_GetArenaAllocator")?,
                set_arena: function(c"PyObject_SetArenaAllocator")?,
                get_domain: function(c"PyMem_GetAllocator"),
                set_domain: function(c"PyMem_SetAllocator"),
                is_initialized: function(c"Py_IsInitialized"),
                add_pending_call: function(c"Py_AddPendingCall"),
                get_version: function(c"Py_GetVersion"),
            })
        }
    }

    /// What the interpreter says of its version: `3.13.0 (main, …) [GCC …]`.
    pub(crate) fn version(&self) -> &'static [u8] {
        let Some(get_version) = self.get_version else { return b"" };
        // SAFETY: Py_GetVersion works before initialisation and answers a static string.
        unsafe {
            let text = get_version();
            if text.is_null() { b"" } else { CStr::from_ptr(text).to_bytes() }
        }
    }
}

/// Functions that tell which interpreter a thread runs in.
#[derive(Clone, Copy)]
pub(crate) struct ThreadSymbols {
    /// `PyThreadState_GetUnchecked`, before 3.13 with an underscore: null without a thread state.
    thread: unsafe extern "C" fn() -> *mut c_void,
    interpreter: unsafe extern "C" fn(*mut c_void) -> *mut c_void,
    main: unsafe extern "C" fn() -> *mut c_void,
    first: unsafe extern "C" fn() -> *mut c_void,
    next: unsafe extern "C" fn(*mut c_void) -> *mut c_void,
}

impl ThreadSymbols {
    pub(crate) fn find() -> Option<Self> {
        // SAFETY: the types are those of CPython's C API since 3.9.
        unsafe {
            Some(Self {
                thread: function(c"PyThreadState_GetUnchecked")
                    .or_else(|| function(c"_PyThreadState_UncheckedGet"))?,
                interpreter: function(c"PyThreadState_GetInterpreter")?,
                main: function(c"PyInterpreterState_Main")?,
                first: function(c"PyInterpreterState_Head")?,
                next: function(c"PyInterpreterState_Next")?,
            })
        }
    }

    /// Whether the calling thread runs in the main interpreter.
    #[inline(always)]
    pub(crate) fn in_main(&self) -> bool {
        // SAFETY: all three only read; the thread state is the caller's own and stays while it runs.
        unsafe {
            let thread = (self.thread)();
            !thread.is_null() && (self.interpreter)(thread) == (self.main)()
        }
    }

    /// Whether it does, and there is no other interpreter: then its lock, which the caller holds, is the only
    /// one. A second interpreter is made with that lock held.
    pub(crate) fn is_alone(&self) -> bool {
        // SAFETY: as above; the list of interpreters is changed with the main interpreter's lock held.
        self.in_main() && unsafe { (self.first)() == (self.main)() && (self.next)((self.main)()).is_null() }
    }
}

/// Whether two functions lie in the same loaded object.
pub(crate) fn same_object(one: *const c_void, other: *const c_void) -> bool {
    fn base(address: *const c_void) -> Option<*mut c_void> {
        let mut info = core::mem::MaybeUninit::<libc::Dl_info>::uninit();
        // SAFETY: dladdr fills the struct when it answers non-zero.
        unsafe { (libc::dladdr(address, info.as_mut_ptr()) != 0).then(|| info.assume_init().dli_fbase) }
    }
    base(one).is_some() && base(one) == base(other)
}

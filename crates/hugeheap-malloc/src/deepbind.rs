//! Libraries that are opened with `RTLD_DEEPBIND`: `dlopen`, without that flag.
//!
//! Such a library looks for a function in itself and in the libraries that it needs first, so it finds the C
//! library's `free`; what it is handed to free is hugeheap's. PHP opens its extensions so: `php` ended in the C
//! library before its first line. Apache's modules are opened so, too. (What such a library allocates is no
//! matter: hugeheap hands back what is foreign.) The GNU C library had a hook for its own functions until 2.33;
//! since then there is no other way to be found first. Those sanitizers that have a `malloc` do not open a
//! library with that flag at all.
//!
//! So where the program's `malloc` is hugeheap's, the flag is taken out. A library that defines a function of
//! the same name as the program then finds the program's, as every library does that is opened without it.
//! Where hugeheap is switched off, and in a program with a `malloc` of its own, it stays.
//!
//! The dynamic linker tells by the return address who opens: the run path of that library is where it looks. A
//! function that *called* `dlopen` would have this library's looked at, so `dlopen` here is a jump: it changes
//! the flags and goes on in the C library's, with the caller's return address on the stack
//! (`tests/cli/test_deepbind.py` has a library with a run path).
//!
//! Not seen: `dlmopen`, whose name space has a C library of its own, and thus a `malloc` of its own.

use crate::c_library;
use core::arch::{asm, global_asm};
use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};
use hugeheap_constructor::has_malloc;

type Open = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;

/// The flags that the C library is given.
extern "C" fn narrowed(flags: c_int) -> c_int {
    if flags & libc::RTLD_DEEPBIND != 0 && c_library::serves() && has_malloc() {
        flags & !libc::RTLD_DEEPBIND
    } else {
        flags
    }
}

/// The C library's function, or that of a library which was preloaded behind this one.
extern "C" fn next() -> Open {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    let mut found = NEXT.load(Ordering::Relaxed);
    if found.is_null() {
        // SAFETY: dlsym looks among the objects after this one.
        found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"dlopen".as_ptr()) };
        if found.is_null() {
            return none;
        }
        NEXT.store(found, Ordering::Relaxed);
    }
    // SAFETY: the symbol's type is fixed by its name.
    unsafe { core::mem::transmute::<*mut c_void, Open>(found) }
}

/// Where there is none, nothing can be opened. It is in the same library as `dlsym`, so there is one.
unsafe extern "C" fn none(_name: *const c_char, _flags: c_int) -> *mut c_void {
    core::ptr::null_mut()
}

#[cfg(target_arch = "x86_64")]
global_asm!(
    ".pushsection .text.hugeheap_dlopen,\"ax\",@progbits",
    ".p2align 4",
    ".hidden hugeheap_dlopen",
    ".globl hugeheap_dlopen",
    ".type hugeheap_dlopen,@function",
    "hugeheap_dlopen:",
    ".cfi_startproc",
    "push rdi",
    ".cfi_adjust_cfa_offset 8",
    "push rsi",
    ".cfi_adjust_cfa_offset 8",
    "sub rsp, 8",
    ".cfi_adjust_cfa_offset 8",
    "mov edi, esi",
    "call {narrowed}",
    "mov qword ptr [rsp + 8], rax",
    "call {next}",
    "add rsp, 8",
    ".cfi_adjust_cfa_offset -8",
    "pop rsi",
    ".cfi_adjust_cfa_offset -8",
    "pop rdi",
    ".cfi_adjust_cfa_offset -8",
    "jmp rax",
    ".cfi_endproc",
    ".size hugeheap_dlopen,.-hugeheap_dlopen",
    ".popsection",
    narrowed = sym narrowed,
    next = sym next,
);

#[cfg(target_arch = "aarch64")]
global_asm!(
    ".pushsection .text.hugeheap_dlopen,\"ax\",@progbits",
    ".p2align 4",
    ".hidden hugeheap_dlopen",
    ".globl hugeheap_dlopen",
    ".type hugeheap_dlopen,@function",
    "hugeheap_dlopen:",
    ".cfi_startproc",
    "stp x29, x30, [sp, #-32]!",
    ".cfi_def_cfa_offset 32",
    ".cfi_offset 29, -32",
    ".cfi_offset 30, -24",
    "stp x0, x1, [sp, #16]",
    "mov w0, w1",
    "bl {narrowed}",
    "str x0, [sp, #24]",
    "bl {next}",
    "mov x16, x0",
    "ldp x0, x1, [sp, #16]",
    "ldp x29, x30, [sp], #32",
    ".cfi_def_cfa_offset 0",
    ".cfi_restore 29",
    ".cfi_restore 30",
    "br x16",
    ".cfi_endproc",
    ".size hugeheap_dlopen,.-hugeheap_dlopen",
    ".popsection",
    narrowed = sym narrowed,
    next = sym next,
);

unsafe extern "C" {
    fn hugeheap_dlopen();
}

/// The C library's function of that name. Its arguments stay in their registers: it has neither code of the
/// compiler's nor a frame, only a jump. What is written in assembly alone is not exported by a library of
/// Rust's.
#[unsafe(no_mangle)]
extern "C" fn dlopen() -> ! {
    // SAFETY: goes on in a function with the C library's two arguments, which are where the caller put them,
    // and returns to the caller.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!("jmp {}", sym hugeheap_dlopen, options(noreturn, nostack));
        #[cfg(target_arch = "aarch64")]
        asm!("b {}", sym hugeheap_dlopen, options(noreturn, nostack));
    }
}

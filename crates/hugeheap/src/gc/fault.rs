//! Ranges that must not be used, and what happens when they are.
//!
//! ```text
//!   SIGSEGV ─▶ is the address in the table? ─┬▶ no: the handler that was there before, or the end
//!                                            ├▶ an old nursery: one line, the end
//!                                            └▶ a protected page: the hook ─┬▶ go on: the protection is lifted, the access happens
//!                                                                           └▶ one line, the end
//! ```
//!
//! The table has a fixed size and is read without a lock, because a handler reads it.

use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::Once;

/// Ranges at most, over all heaps of the process: protection is for finding mistakes and for a barrier on a few
/// pages; each range is a mapping of its own for the kernel, which has 65,530 in all.
const RANGES: usize = 1024;

/// An access to a protected heap page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Fault {
    /// The address that was read or written.
    pub address: usize,
    /// Where the protected range begins.
    pub start: usize,
    /// Its bytes.
    pub bytes: usize,
}

/// Is told of an access to a protected page, inside the signal handler of the thread that made it: it does only
/// what a handler may. With `true` the protection is lifted and the thread goes on; with `false` the process
/// ends with one line.
pub type FaultHook = extern "C" fn(fault: &Fault) -> bool;

/// What a range is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Page = 1,
    OldNursery = 2,
}

struct Range {
    /// 0: unused; 1: being written.
    start: AtomicUsize,
    bytes: AtomicUsize,
    kind: AtomicUsize,
}

static TABLE: [Range; RANGES] =
    [const { Range { start: AtomicUsize::new(0), bytes: AtomicUsize::new(0), kind: AtomicUsize::new(0) } };
        RANGES];

static HOOK: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Sets who is told of accesses to protected pages, in all heaps of the process. Without anybody such an access
/// ends the process.
pub fn set_fault_hook(hook: Option<FaultHook>) {
    HOOK.store(hook.map_or(core::ptr::null_mut(), |hook| hook as *mut c_void), Ordering::Release);
}

/// Adds a range. Says no when the table is full.
pub(crate) fn add(start: usize, bytes: usize, kind: Kind) -> bool {
    install();
    for range in &TABLE {
        if range.start.load(Ordering::Relaxed) == 0
            && range.start.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
        {
            range.bytes.store(bytes, Ordering::Relaxed);
            range.kind.store(kind as usize, Ordering::Relaxed);
            range.start.store(start, Ordering::Release);
            return true;
        }
    }
    false
}

fn find(address: usize) -> Option<&'static Range> {
    TABLE.iter().find(|range| {
        let start = range.start.load(Ordering::Acquire);
        start > 1 && address.wrapping_sub(start) < range.bytes.load(Ordering::Relaxed)
    })
}

/// Removes the range that begins at an address. Says no when there is none: the hook lifted its protection.
pub(crate) fn remove(start: usize) -> bool {
    let range = find(start).filter(|range| range.start.load(Ordering::Relaxed) == start);
    range.inspect(|range| range.start.store(0, Ordering::Release)).is_some()
}

/// Whether a range begins at an address.
pub(crate) fn is_known(start: usize) -> bool {
    find(start).is_some_and(|range| range.start.load(Ordering::Relaxed) == start)
}

static mut BEFORE: MaybeUninit<libc::sigaction> = MaybeUninit::zeroed();

/// Installs the handler, once.
fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: a zeroed sigaction is a valid one, filled in below; BEFORE is written here only, before the
        // handler can run.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = handle as *const () as usize;
            // On the alternate stack where there is one, as the handlers for overflown stacks are, which may be
            // the ones called next.
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigemptyset(&raw mut action.sa_mask);
            libc::sigaction(libc::SIGSEGV, &raw const action, (&raw mut BEFORE).cast());
        }
    });
}

extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo for SIGSEGV, which has an address.
    let address = unsafe { (*info).si_addr() } as usize;
    let Some(range) = find(address) else { return pass_on(signal, info, context) };
    let fault = Fault {
        address,
        start: range.start.load(Ordering::Relaxed),
        bytes: range.bytes.load(Ordering::Relaxed),
    };
    if range.kind.load(Ordering::Relaxed) == Kind::OldNursery as usize {
        crate::complain::abort(format_args!(
            "the address {address:#x} was used, which is in a nursery that was emptied: the object there moved or died, and this address was kept"
        ));
    }
    let hook = HOOK.load(Ordering::Acquire);
    // SAFETY: only functions of this type are stored.
    let hook: Option<FaultHook> = unsafe { core::mem::transmute(hook) };
    if !hook.is_some_and(|hook| hook(&fault)) {
        crate::complain::abort(format_args!(
            "the address {address:#x} was used, which is in the protected heap page at {:#x}",
            fault.start
        ));
    }
    // SAFETY: the range is heap pages of a heap, which were protected by it; the errno of the interrupted code is kept.
    unsafe {
        let errno = *libc::__errno_location();
        libc::mprotect(fault.start as *mut c_void, fault.bytes, libc::PROT_READ | libc::PROT_WRITE);
        *libc::__errno_location() = errno;
    }
    range.start.store(0, Ordering::Release);
}

/// A fault that is none of ours.
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: written once, before this handler could run. A handler is called as it asked to be; without one
    // the default is set, and the access that is made again after the return ends the process as it would have.
    unsafe {
        let before = &raw const BEFORE;
        let before = (*before).assume_init_ref();
        match before.sa_sigaction {
            libc::SIG_DFL | libc::SIG_IGN => {
                libc::signal(signal, libc::SIG_DFL);
            }
            handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
                let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut c_void) =
                    core::mem::transmute(handler);
                handler(signal, info, context);
            }
            handler => {
                let handler: extern "C" fn(libc::c_int) = core::mem::transmute(handler);
                handler(signal);
            }
        }
    }
}

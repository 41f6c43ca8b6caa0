//! Heap pages whose next use is told to a hook.

use super::{Handle, must_be_outside};
use crate::status::Status;
use core::ffi::{c_int, c_void};
use hugeheap::gc::{CannotProtect, Fault, FaultHook, Forbid, set_fault_hook};

const _: () = assert!(size_of::<Fault>() == 24);

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_gc_protect(
    handle: *mut Handle,
    address: *const c_void,
    forbid: c_int,
    range: *mut Fault,
) -> c_int {
    let forbid = match forbid {
        0 => Forbid::Write,
        1 => Forbid::Access,
        _ => return Status::BadForbid as c_int,
    };
    let address = address as usize;
    // SAFETY: by the header's contract, here and below; nothing collects.
    unsafe { must_be_outside(handle, "hh_gc_protect") };
    // SAFETY: as above.
    let status = match unsafe { &mut (*handle).heap }.protect(address, forbid) {
        Ok((start, bytes)) => {
            if !range.is_null() {
                // SAFETY: by the header's contract a range may be written there.
                unsafe { range.write(Fault { address, start, bytes }) };
            }
            Status::Ok
        }
        Err(CannotProtect::NotOurs) => Status::NotOurs,
        Err(CannotProtect::Already) => Status::Protected,
        Err(CannotProtect::TooMany) => Status::TooMany,
        Err(CannotProtect::System(_)) => Status::Refused,
    };
    status as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_gc_unprotect(handle: *mut Handle, address: *const c_void) -> c_int {
    // SAFETY: as above.
    unsafe { must_be_outside(handle, "hh_gc_unprotect") };
    // SAFETY: as above.
    c_int::from(unsafe { &mut (*handle).heap }.unprotect(address as usize))
}

#[unsafe(no_mangle)]
extern "C" fn hh_gc_set_fault_hook(hook: Option<FaultHook>) {
    set_fault_hook(hook);
}

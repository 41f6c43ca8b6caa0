//! The C library's error number, kept over what a program did not ask for.
//!
//! A free may come upon maintenance that is due, and a thread or a call that the system refuses is not the
//! program's matter: it frees a block, and then looks why a call of its own had failed. In a container at its
//! limit of threads each free that found something due left `EAGAIN` there.

/// The error number of this thread, put back when this is dropped.
pub(super) struct Kept(libc::c_int);

impl Kept {
    pub(super) fn new() -> Self {
        // SAFETY: the location is this thread's, for its life.
        Self(unsafe { *libc::__errno_location() })
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: as above; not sent to another thread, since nobody has it but the function that made it.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_meanwhile_is_not_seen_afterwards() {
        let set = |errno| {
            // SAFETY: this thread's.
            unsafe { *libc::__errno_location() = errno };
        };
        set(libc::EDOM);
        {
            let _kept = Kept::new();
            set(libc::EAGAIN);
        }
        // SAFETY: this thread's.
        assert_eq!(unsafe { *libc::__errno_location() }, libc::EDOM);
    }
}

//! The leader of this process: without it the maintenance thread does not live on.
//!
//! ```text
//!   leader ──first request, or fork──▶ told: a key has a value ──the leader ends──▶ the maintenance thread is stopped and joined
//!     └──never asks, or no key──▶ untold: the maintenance thread looks, once a second, and ends
//!                                                                          then: ended. Maintenance is made by who allocates and frees
//! ```
//!
//! Terms: the *leader* is the thread whose number is the process's: the one that `main` runs on, and in a
//! forked child the one that forked. It may end before others do, by `pthread_exit`, or by coming to its end in
//! a child that was forked from a thread. A process is alive as long as any thread is, and the last one to end
//! calls `exit`.
//!
//! Who does not know of the maintenance thread expects that the process ends with its last thread. It lived on
//! for as long as memory was kept, for good where an arena was looked at again and again; and as the last
//! thread it wrote what was in the program's buffers, with a table of descriptors that was empty: it was lost.
//! Where the leader has ended nobody can tell whether other threads of the program live, without looking again
//! and again. So there is no maintenance thread from then on. In a child that another thread forks that one is
//! the leader, and has one again.
//!
//! Invariant: whoever is told of the end of a leader is told in the leader, by a destructor of the C library,
//! while the process is not yet without it. An untold leader may end unnoticed for a second, in which the
//! maintenance thread may become the last: so it [keeps the program's descriptors](super::thread) while the
//! leader is untold.
//!
//! `exit` ends all threads and calls no such destructor in the thread that calls it; nor does `exec`. A child
//! without handlers (`_Fork`, `vfork`) is another process than the one that was told.

use super::forking::numbers;
use super::{Linux, runtime};
use crate::thread_end::AtThreadEnd;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

static AT_END: AtThreadEnd = AtThreadEnd::new(thread_ends);

/// See the module's text.
pub(super) struct Leader {
    /// The process whose leader is told; 0: none is.
    told: AtomicU32,
    ended: AtomicBool,
}

impl Leader {
    pub(super) const fn new() -> Self {
        Self { told: AtomicU32::new(0), ended: AtomicBool::new(false) }
    }

    /// Where the calling thread is the leader, and is not told yet. May allocate.
    pub(super) fn note_thread(&self) {
        let (process, thread) = numbers();
        if process == thread && self.told.load(Ordering::Relaxed) != process && ask() {
            self.told.store(process, Ordering::Relaxed);
        }
    }

    /// The calling thread is about to fork: it will be the child's leader, where nothing may be allocated.
    pub(super) fn note_forks(&self) {
        if !AT_END.is_asked() {
            ask();
        }
        self.note_thread();
    }

    /// In the child that the thread forked.
    pub(super) fn begin_in_child(&self) {
        let told = if AT_END.is_asked() { numbers().0 } else { 0 };
        self.told.store(told, Ordering::Relaxed);
        self.ended.store(false, Ordering::SeqCst);
    }

    /// Whether its end will be told, in this process.
    pub(super) fn is_told(&self) -> bool {
        self.told.load(Ordering::Relaxed) == numbers().0
    }

    /// Whether it has ended, as far as is known.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// From now on there is no maintenance thread. Before its phase is looked at: see
    /// [`ensure`](super::thread::MaintenanceThread::ensure).
    fn note_end(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }

    /// Looks whether it has ended.
    pub(super) fn look(&self) -> bool {
        let ended = Linux::new().leader_has_ended();
        if ended {
            self.note_end();
        }
        ended
    }
}

fn ask() -> bool {
    AT_END.ask(core::ptr::dangling())
}

/// Called in threads that were the leader, or have forked.
unsafe extern "C" fn thread_ends(_: *mut libc::c_void) {
    let runtime = runtime();
    let (process, thread) = numbers();
    let leader = &runtime.thread.leader;
    if process == thread && leader.is_told() {
        leader.note_end();
        super::forking::end_maintenance_thread();
    }
}

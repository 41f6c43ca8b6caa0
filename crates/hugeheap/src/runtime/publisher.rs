//! Publishing the runtime's numbers in a shared file, while somebody listens.
//!
//! Somebody listens when `HUGEHEAP_TELEMETRY` names a directory at start. How the file is called:
//! [`record_file`](super::record_file); a forked child makes its own and leaves its parent's alone. Every event
//! writes the counters (some 50 ns); the classification of arenas, which needs a walk over their metadata, is
//! renewed at most every [`WALK_PAUSE`].

use super::numbers::{Due, NumbersPage};
use super::record_file::{self, DIRECTORY, FILE_BYTES};
use crate::arena::Arenas;
use crate::lock::Lock;
use crate::telemetry::collectors::COLLECTORS;
use crate::telemetry::publish::Record;
use crate::telemetry::{HookState, Level, Snapshot};
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use hugeheap_os::Os;

/// Tries to size the file: on tmpfs each signal that arrives meanwhile ends one.
const SIZE_TRIES: u32 = 100;

/// Pause between walks over the arenas, in nanoseconds. A walk over a heap of 2 GiB takes 5 µs.
const WALK_PAUSE: u64 = 10_000_000;

/// Which process this is, as the system said last, and the parent that it had when it was asked first: what is
/// published says no more of the parent, and a system call is half of a write.
#[derive(Clone, Copy)]
struct Process {
    pid: u32,
    parent: u32,
}

impl Process {
    /// Asks anew: it may have been forked without anybody's handlers.
    fn refresh(&mut self) {
        // SAFETY: getpid has no preconditions.
        let pid = unsafe { libc::getpid() } as u32;
        if self.pid != pid {
            // SAFETY: nor has getppid.
            *self = Self { pid, parent: unsafe { libc::getppid() } as u32 };
        }
    }
}

struct State {
    directory: [u8; DIRECTORY],
    state: u32,
    level: u32,
    version: [u8; 32],
    process: Process,
    walked_at: u64,
    walked: Snapshot,
}

/// See the module's text.
pub(super) struct Publisher {
    record: AtomicPtr<Record>,
    /// What every process shows, asked for or not.
    pub(super) numbers: NumbersPage,
    /// Bytes of metadata that the arenas do not know: of blocks.
    pub(super) metadata: AtomicU64,
    state: Lock<State>,
}

impl Publisher {
    pub(super) const fn new() -> Self {
        Self {
            record: AtomicPtr::new(core::ptr::null_mut()),
            numbers: NumbersPage::new(),
            metadata: AtomicU64::new(0),
            state: Lock::new(State {
                directory: [0; DIRECTORY],
                state: HookState::Idle as u32,
                level: Level::Arenas as u32,
                version: [0; 32],
                process: Process { pid: 0, parent: 0 },
                walked_at: 0,
                walked: Snapshot::EMPTY,
            }),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        !self.record.load(Ordering::Acquire).is_null()
    }

    /// Opens the record if the environment names a directory. A directory that cannot be written is not an error of the
    /// program that runs: it goes on unobserved, and the observer says that it found no record.
    pub(super) fn open(&self) {
        let Some(directory) = super::environment::variable(c"HUGEHEAP_TELEMETRY") else { return };
        let bytes = directory.to_bytes();
        if bytes.is_empty() || bytes.len() >= DIRECTORY {
            return;
        }
        let mut state = self.state.lock();
        state.directory[..bytes.len()].copy_from_slice(bytes);
        self.record.store(record_file::map(&state.directory), Ordering::Release);
    }

    /// Before a fork: nobody opens a record, or says what this process is, at its moment. Who does that holds
    /// the lock here without the heap's, and opening may take long: in a child that was forked meanwhile it was
    /// held for good, and the child's first record waited for it inside `fork`.
    pub(super) fn lock_for_fork(&self) {
        self.state.lock_first().keep_over_fork();
    }

    /// After a fork, in parent and child.
    ///
    /// # Safety
    /// [`lock_for_fork`](Self::lock_for_fork) was called by this thread, or by the one that forked this process.
    pub(super) unsafe fn unlock_after_fork(&self) {
        // SAFETY: the guard was leaked there.
        unsafe { self.state.unlock_leaked() };
    }

    /// In a forked child, after [`unlock_after_fork`](Self::unlock_after_fork): a record of its own. System calls only.
    ///
    /// # Safety
    /// The caller is the only thread of a process that was just forked: nobody writes the record that is unmapped here.
    pub(super) unsafe fn reopen_in_child(&self) {
        self.numbers.leave();
        let old = self.record.swap(core::ptr::null_mut(), Ordering::AcqRel);
        if old.is_null() {
            return;
        }
        // SAFETY: the mapping was made by `record_file::map` and only this publisher knew it.
        unsafe { libc::munmap(old.cast(), FILE_BYTES) };
        self.record.store(record_file::map(&self.state.lock().directory), Ordering::Release);
    }

    pub(super) fn describe(&self, hook: HookState, level: Level, version: &[u8]) {
        let mut state = self.state.lock();
        state.state = hook as u32;
        state.level = level as u32;
        let length = version.len().min(state.version.len() - 1);
        state.version = [0; 32];
        state.version[..length].copy_from_slice(&version[..length]);
    }

    /// Adds what the heap does not know.
    pub(super) fn fill(&self, snapshot: &mut Snapshot) {
        self.add(snapshot, &mut self.state.lock());
    }

    fn add(&self, snapshot: &mut Snapshot, state: &mut State) {
        snapshot.metadata += self.metadata.load(Ordering::Relaxed);
        fill(snapshot, state);
    }

    /// Writes the record and the page of numbers, as far as they are due. Called with the heap's lock held.
    pub(super) fn publish<O: Os>(&self, heap: &Arenas<O>, foreign_frees: u64, whole: bool) {
        let record = self.record.load(Ordering::Acquire);
        let due = self.numbers.due(heap.counters.arenas, heap.counters.live, whole);
        if record.is_null() && due == Due::Nothing {
            return;
        }
        // During a fork: the child, too, comes here with the record of its parent.
        if self.state.is_kept_here() {
            return;
        }
        let mut state = self.state.lock();
        let now = heap.now();
        let walk = due == Due::Walk || !record.is_null() && now.saturating_sub(state.walked_at) > WALK_PAUSE;
        if whole || walk {
            state.walked = heap.snapshot();
            state.walked_at = now;
        }
        let mut snapshot = heap.counters;
        let walked = &state.walked;
        snapshot.policy = walked.policy;
        snapshot.arenas_full = walked.arenas_full;
        snapshot.arenas_partial = walked.arenas_partial;
        snapshot.arenas_empty = walked.arenas_empty;
        snapshot.arenas_thp = walked.arenas_thp;
        snapshot.arenas_hugetlb = walked.arenas_hugetlb;
        snapshot.arenas_base = walked.arenas_base;
        snapshot.arenas_broken = walked.arenas_broken;
        snapshot.retention_target = walked.retention_target;
        snapshot.regretted = walked.regretted;
        snapshot.forks = heap.forks;
        snapshot.foreign_frees = foreign_frees;
        self.add(&mut snapshot, &mut state);
        // SAFETY: the record is mapped until the process ends; one writer at a time, since the heap's lock is held.
        if let Some(record) = unsafe { record.as_ref() } {
            record.write(&snapshot);
        }
        if due != Due::Nothing {
            self.numbers.write(&snapshot, whole || walk, now, heap.used_ranges());
        }
    }
}

fn fill(snapshot: &mut Snapshot, state: &mut State) {
    state.process.refresh();
    snapshot.pid = state.process.pid;
    snapshot.parent_pid = state.process.parent;
    snapshot.state = state.state;
    snapshot.level = state.level;
    snapshot.version = state.version;
    COLLECTORS.fill(snapshot);
}

/// Whether this process may make a file of this size. Beyond its limit (`ulimit -f`) the kernel does not only
/// refuse: it sends `SIGXFSZ`, which ended programs before their first line.
pub(super) fn may_make_files() -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: getrlimit writes the structure that it gets.
    unsafe {
        libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) == 0
            && limit.rlim_cur >= FILE_BYTES as libc::rlim_t
    }
}

/// Sizes the file, so that a full disk is seen here.
pub(super) fn take_space(file: libc::c_int) -> bool {
    for _ in 0..SIZE_TRIES {
        // SAFETY: the descriptor is the caller's.
        match unsafe { libc::posix_fallocate(file, 0, FILE_BYTES as libc::off_t) } {
            libc::EINTR => {}
            result => return result == 0,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A child may be forked without handlers: it has its own number and parent then. As long as the process is
    /// the same the parent is not asked for again.
    #[test]
    fn another_process_is_asked_for_its_parent_and_the_same_one_is_not() {
        let pid = std::process::id();
        let mut process = Process { pid: pid + 1, parent: 0 };
        process.refresh();
        assert_eq!((process.pid, process.parent), (pid, std::os::unix::process::parent_id()));
        process.parent = 0;
        process.refresh();
        assert_eq!((process.pid, process.parent), (pid, 0));
    }
}

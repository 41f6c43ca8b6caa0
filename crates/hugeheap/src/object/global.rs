//! The process's heaps: one per thread, behind Rust's `GlobalAlloc`, over the process's runtime.
//!
//! ```text
//!   thread ──thread pointer──▶ slot ──▶ Core, or null: acquire one, and have it dropped when the thread ends
//! ```
//!
//! The slot is a thread-local variable that is reached without a call into the dynamic linker. Rust's own
//! `thread_local!` in a shared library calls `__tls_get_addr`, 12 instructions and a possible allocation of the
//! block by malloc, which may be us. On x86-64 the slot is defined and read by hand with TLS descriptors: in a
//! program they become one instruction at link time; in a preloaded library four; in a library opened later
//! they need no static TLS. On other processors it is `thread_local!`.
//!
//! A call is what they are for the compiler also where the linker makes a load of them: around it the stack is
//! aligned, and what is in use is kept elsewhere, three instructions for each request and each free. A program
//! that links hugeheap may have the load at once, with the feature `initial-exec-tls`; a library that is always
//! loaded with the program, by [`thread_heap_from_start`]. A library that is opened later and has it may fail
//! to open: the C library has room for some hundred bytes of such variables in all.

use super::heap::{Core, Heap, Own};
use super::space::{Source, Space};
use crate::arena::Arenas;
use crate::runtime::{Runtime, runtime};
use crate::thread_end::AtThreadEnd;
use core::alloc::{GlobalAlloc, Layout};
use core::mem::{ManuallyDrop, offset_of};
use core::ptr::{NonNull, null_mut};
use core::time::Duration;
use hugeheap_os::linux::Linux;

// `include/hugeheap_inline.h` finds the bins at the beginning of a heap: another layout has another number there.
const _: () = assert!(offset_of!(Core<Runtime>, own) == 0 && offset_of!(Own<Runtime>, bins) == 0);

impl Source for Runtime {
    type Os = Linux;

    fn begin(&'static self) {
        self.ensure_started();
    }

    fn with<R>(&'static self, work: impl FnOnce(&mut Arenas<Linux>) -> R) -> R {
        self.work(work)
    }

    fn read<R>(&'static self, read: impl FnOnce(&Arenas<Linux>) -> R) -> R {
        self.read_arenas(read)
    }

    fn before_free(&'static self) {
        self.measure_peak();
    }

    fn changed(&'static self) {
        self.publish_all();
    }

    fn metadata_used(&'static self, bytes: usize) {
        self.add_metadata(bytes);
    }

    fn metadata_given_back(&'static self, bytes: usize) {
        self.remove_metadata(bytes);
    }

    fn wait_for_arenas(&'static self, time: Duration) -> bool {
        std::thread::sleep(time);
        true
    }

    fn give_back_all(&'static self) {
        let _ = self.give_back();
    }

    fn is_gone(&self, thread: u32) -> bool {
        // SAFETY: signal 0 only asks whether the thread exists. One that has the number by now only puts off
        // what is asked for.
        let answer = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread as libc::pid_t, 0) };
        // A filter that refuses the call says nothing of the thread: its heap would be another's as well.
        // SAFETY: the C library's error number is this thread's.
        answer != 0 && unsafe { *libc::__errno_location() } == libc::ESRCH
    }

    fn os(&self) -> &Linux {
        const LINUX: Linux = Linux::new();
        &LINUX
    }

    fn hardened(&self) -> bool {
        crate::runtime::hardened_by_environment()
    }
}

/// The blocks of this process's runtime.
pub type ProcessHeap = Heap<Runtime>;

static SPACE: Space<Runtime> = Space::new(runtime());

/// The metadata of this process's blocks.
pub fn space() -> &'static Space<Runtime> {
    &SPACE
}

#[cfg(target_arch = "x86_64")]
mod slot {
    use super::{Core, Runtime};

    core::arch::global_asm!(
        ".pushsection .tbss.hugeheap_thread_heap,\"awT\",@nobits",
        ".p2align 3",
        ".hidden hugeheap_thread_heap",
        ".globl hugeheap_thread_heap",
        ".type hugeheap_thread_heap,@object",
        ".size hugeheap_thread_heap,16",
        "hugeheap_thread_heap:",
        ".zero 16",
        ".popsection",
    );

    /// The thread's slot, as an offset from the thread pointer. Behind it a word that is 1 when the thread has
    /// left a heap.
    #[inline(always)]
    fn offset() -> usize {
        let offset;
        // It pushes a return address, so the compiler may not keep anything below the stack pointer: with
        // `nostack` a function that calls nothing else did, and found that address in its place. Some of the C
        // library's own resolvers change flags.
        // SAFETY: the sequence of the x86-64 TLS descriptor ABI, in the exact form that linkers know: it
        // changes rax and flags only.
        unsafe {
            core::arch::asm!(
                "lea rax, [rip + hugeheap_thread_heap@TLSDESC]",
                "call qword ptr [rax + hugeheap_thread_heap@TLSCALL]",
                out("rax") offset,
                options(pure, readonly),
            );
        }
        offset
    }

    /// By the offset that whoever loads the program or library puts in place: see
    /// [`thread_heap_from_start`](super::thread_heap_from_start).
    #[inline(always)]
    pub(super) fn get_initial_exec() -> *mut Core<Runtime> {
        let core;
        // SAFETY: the slot has 8 bytes at the offset that is loaded, which the linker of a program puts in
        // place of the load.
        unsafe {
            core::arch::asm!(
                "mov {core}, qword ptr [rip + hugeheap_thread_heap@GOTTPOFF]",
                "mov {core}, qword ptr fs:[{core}]",
                core = out(reg) core,
                options(pure, readonly, nostack, preserves_flags),
            );
        }
        core
    }

    #[cfg(feature = "initial-exec-tls")]
    pub(super) use get_initial_exec as get;

    #[cfg(not(feature = "initial-exec-tls"))]
    #[inline(always)]
    pub(super) fn get() -> *mut Core<Runtime> {
        let core;
        // SAFETY: the slot has 8 bytes at that offset from the thread pointer.
        unsafe {
            core::arch::asm!(
                "mov {}, qword ptr fs:[{}]",
                out(reg) core,
                in(reg) offset(),
                options(pure, readonly, nostack, preserves_flags),
            );
        }
        core
    }

    pub(super) fn set(core: *mut Core<Runtime>) {
        // SAFETY: as in `get`.
        unsafe {
            core::arch::asm!(
                "mov qword ptr fs:[{}], {}",
                in(reg) offset(),
                in(reg) core,
                options(nostack, preserves_flags),
            );
        }
    }

    pub(super) fn has_left() -> bool {
        let left: usize;
        // SAFETY: 8 bytes behind the slot.
        unsafe {
            core::arch::asm!(
                "mov {}, qword ptr fs:[{} + 8]",
                out(reg) left,
                in(reg) offset(),
                options(readonly, nostack, preserves_flags),
            );
        }
        left != 0
    }

    pub(super) fn note_left() {
        // SAFETY: as in `has_left`.
        unsafe {
            core::arch::asm!(
                "mov qword ptr fs:[{} + 8], 1",
                in(reg) offset(),
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod slot {
    use super::{Core, Runtime};
    use core::cell::Cell;

    std::thread_local! {
        static CORE: Cell<*mut Core<Runtime>> = const { Cell::new(core::ptr::null_mut()) };
        static LEFT: Cell<bool> = const { Cell::new(false) };
    }

    pub(super) fn get() -> *mut Core<Runtime> {
        CORE.with(Cell::get)
    }

    pub(super) use get as get_initial_exec;

    pub(super) fn set(core: *mut Core<Runtime>) {
        CORE.with(|slot| slot.set(core));
    }

    pub(super) fn has_left() -> bool {
        LEFT.with(Cell::get)
    }

    pub(super) fn note_left() {
        LEFT.with(|left| left.set(true));
    }
}

static LEAVE: AtThreadEnd = AtThreadEnd::new(leave);

/// Sees to it that the heap of this thread is left when the thread ends; where the C library has no key for
/// that, or no room for its value, that it is adopted afterwards. It was nobody's for good: in a program that
/// uses up all keys before its first request, each thread that ended kept its heap, 0.9 MiB.
fn leave_at_end(core: NonNull<Core<Runtime>>) {
    let told = LEAVE.ask(core.as_ptr().cast_const().cast());
    if !told {
        // SAFETY: no preconditions.
        let thread = unsafe { libc::gettid() };
        SPACE.note_late(&ManuallyDrop::new(Heap { core }), thread as u32);
    }
    runtime().note_thread();
}

/// The thread ends: its heap waits for another. Destructors that run later and allocate acquire one again, and
/// this one is called again: up to four times in all.
unsafe extern "C" fn leave(core: *mut libc::c_void) {
    slot::note_left();
    slot::set(null_mut());
    if let Some(core) = NonNull::new(core.cast()) {
        give_up(Heap { core });
    }
}

fn give_up(mut heap: ProcessHeap) {
    heap.end_visits();
    drop(heap);
}

/// The heap of this thread, not to be dropped by the caller; `None` when there is no memory for its metadata.
///
/// # Safety
/// The thread has no other handle of it in use. The handle is used on this thread, for one call, and not
/// dropped: whoever kept it had a second one with the next call.
#[inline(always)]
pub unsafe fn thread_heap() -> Option<ManuallyDrop<ProcessHeap>> {
    own_at_hand().or_else(acquire)
}

/// The same if the thread has one by now: without a call, for what has to save no registers.
///
/// # Safety
/// As for [`thread_heap`].
#[inline(always)]
pub unsafe fn thread_heap_at_hand() -> Option<ManuallyDrop<ProcessHeap>> {
    own_at_hand()
}

/// [`thread_heap_at_hand`] for a library that is loaded with the program and never later: its thread-local
/// variables have a fixed place, and a load finds it.
///
/// Whoever calls it makes of its library one that needs static thread-local storage: `dlopen` may refuse that.
///
/// # Safety
/// As for [`thread_heap`].
#[inline(always)]
pub unsafe fn thread_heap_from_start() -> Option<ManuallyDrop<ProcessHeap>> {
    handle(slot::get_initial_exec())
}

#[inline(always)]
fn own_at_hand() -> Option<ManuallyDrop<ProcessHeap>> {
    handle(slot::get())
}

#[inline(always)]
fn handle(core: *mut Core<Runtime>) -> Option<ManuallyDrop<ProcessHeap>> {
    // The thread owns the heap through its slot, and has no other handle in use: every function here takes one
    // for one call.
    NonNull::new(core).map(|core| ManuallyDrop::new(Heap { core }))
}

/// The same to free something. `None` also when the thread ends and has left its heap: no destructor is called
/// any more when the C library frees the last of what it kept for a thread, and a heap taken for that was
/// nobody's for good. It is freed as from another thread.
///
/// # Safety
/// As for [`thread_heap`].
#[inline(always)]
pub unsafe fn thread_heap_to_free() -> Option<ManuallyDrop<ProcessHeap>> {
    own_at_hand().or_else(acquire_to_free)
}

#[cold]
#[inline(never)]
fn acquire_to_free() -> Option<ManuallyDrop<ProcessHeap>> {
    if slot::has_left() { None } else { acquire() }
}

/// Makes another heap this thread's, until it is set back.
///
/// # Safety
/// The thread owns the heap, and nobody else uses it.
pub(crate) unsafe fn set_thread_heap(heap: &ProcessHeap) {
    slot::set(heap.core.as_ptr());
}

#[cold]
#[inline(never)]
fn acquire() -> Option<ManuallyDrop<ProcessHeap>> {
    if slot::has_left() {
        // SAFETY: no preconditions.
        let thread = unsafe { libc::gettid() };
        return Some(own(SPACE.acquire_late(thread as u32)?));
    }
    Some(own(SPACE.acquire_for_thread()?))
}

/// Makes a heap that was taken for this thread its own, unless it has one by now. Where a program's `malloc` is
/// hugeheap, the C library may have come in between: a heap is made with an event of the arenas, that may start
/// the maintenance thread, and the C library allocates the tables of that. The first of the two was nobody's
/// for good.
fn own(heap: ProcessHeap) -> ManuallyDrop<ProcessHeap> {
    if let Some(earlier) = own_at_hand() {
        give_up(heap);
        return earlier;
    }
    let heap = ManuallyDrop::new(heap);
    slot::set(heap.core.as_ptr());
    // After the slot is set: the C library may allocate for the key's value.
    leave_at_end(heap.core);
    heap
}

/// The number of this thread's heap, if it has one.
pub(crate) fn thread_number() -> Option<u32> {
    own_at_hand().map(|mut heap| heap.number())
}

/// hugeheap as the allocator of a Rust program:
///
/// ```
/// #[global_allocator]
/// static HEAP: hugeheap::object::GlobalHeap = hugeheap::object::GlobalHeap;
/// # assert_eq!(vec![1, 2, 3].iter().sum::<i32>(), 6);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct GlobalHeap;

impl GlobalHeap {
    /// What [`alloc`](GlobalAlloc::alloc) ends in where the fast path does not: a thread's first request. Not
    /// the same function as for large alignments, because then the compiler makes one branch of the two, with
    /// four more instructions.
    ///
    /// `HERE` says nothing: a function with a parameter is compiled with the crate that calls it, and a conditional
    /// jump reaches it, as for the three below. Those of another crate are called by their address in a table, which
    /// it does not: each request and each free jumped over two such calls.
    #[inline(never)]
    fn allocate<const HERE: bool>(bytes: usize) -> *mut u8 {
        let block = own_at_hand().or_else(acquire).and_then(|mut heap| heap.allocate_remembered(bytes));
        block.map_or(null_mut(), NonNull::as_ptr)
    }

    /// The arguments in the order in which a global allocator has them.
    #[inline(never)]
    fn allocate_aligned<const HERE: bool>(bytes: usize, align: usize) -> *mut u8 {
        let block = own_at_hand().or_else(acquire).and_then(|mut heap| heap.allocate_aligned(bytes, align));
        block.map_or(null_mut(), NonNull::as_ptr)
    }

    /// # Safety
    /// As for [`dealloc`](GlobalAlloc::dealloc).
    #[inline(never)]
    unsafe fn free<const HERE: bool>(address: NonNull<u8>, size: usize) {
        // SAFETY: by the contract above.
        unsafe {
            match own_at_hand().or_else(acquire_to_free) {
                Some(mut heap) => heap.free_sized(address, size),
                // Without a heap of its own a thread can still free in those of others.
                None => SPACE.free_sized(address, size),
            }
        }
    }

    /// # Safety
    /// As for [`dealloc`](GlobalAlloc::dealloc).
    #[inline(never)]
    unsafe fn free_aligned<const HERE: bool>(address: NonNull<u8>) {
        // SAFETY: by the contract above.
        unsafe {
            match own_at_hand().or_else(acquire_to_free) {
                Some(mut heap) => heap.free(address),
                None => SPACE.free(address),
            }
        }
    }
}

// SAFETY: blocks are at least as large and as aligned as asked for, live until they are freed, and owned by one
// request.
unsafe impl GlobalAlloc for GlobalHeap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() > 16 {
            return Self::allocate_aligned::<true>(layout.size(), layout.align());
        }
        let Some(core) = NonNull::new(slot::get()) else {
            return Self::allocate::<true>(layout.size());
        };
        let block = ManuallyDrop::new(Heap { core }).allocate_remembered(layout.size());
        block.map_or(null_mut(), NonNull::as_ptr)
    }

    #[inline]
    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: by the contract of `GlobalAlloc` the address came from `alloc`, with this layout, and is given up.
        unsafe {
            let address = NonNull::new_unchecked(address);
            if layout.align() > 16 {
                return Self::free_aligned::<true>(address);
            }
            match NonNull::new(slot::get()) {
                Some(core) => ManuallyDrop::new(Heap { core }).free_sized_anywhere(address, layout.size()),
                None => Self::free::<true>(address, layout.size()),
            }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(mut heap) = own_at_hand().or_else(acquire) else { return null_mut() };
        let block = heap.allocate_aligned_zeroed(layout.size(), layout.align());
        block.map_or(null_mut(), NonNull::as_ptr)
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Some(mut heap) = own_at_hand().or_else(acquire) else { return null_mut() };
        // SAFETY: by the contract of `GlobalAlloc`.
        let moved = unsafe {
            let address = NonNull::new_unchecked(address);
            heap.reallocate_aligned(address, layout.size(), size, layout.align())
        };
        moved.map_or(null_mut(), NonNull::as_ptr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering;

    /// Has the kernel refuse `tgkill` from this thread on.
    fn refuse_tgkill() {
        let code = |operation: u32, k| libc::sock_filter { code: operation as u16, jt: 0, jf: 0, k };
        let is_it = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        let mut filter = [
            code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
            libc::sock_filter { jf: 1, ..code(is_it, libc::SYS_tgkill as u32) },
            code(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
            code(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: the program is valid for the call, and its rules hold for this thread only.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
        }
    }

    /// Its heap was adopted while it used it.
    #[test]
    fn a_thread_that_nobody_may_ask_for_is_not_gone() {
        let ended = std::thread::spawn(|| {
            // SAFETY: no preconditions.
            let own = unsafe { libc::gettid() } as u32;
            assert!(!runtime().is_gone(own));
            own
        });
        let ended = ended.join().expect("no panic");
        // The kernel wakes who joins a thread before its number is free.
        while !runtime().is_gone(ended) {
            std::thread::yield_now();
        }
        std::thread::spawn(move || {
            refuse_tgkill();
            assert!(!runtime().is_gone(ended));
        })
        .join()
        .expect("no panic");
    }

    #[test]
    fn a_request_within_the_first_one_of_a_thread_costs_no_heap() {
        std::thread::spawn(|| {
            let mut outer = SPACE.acquire_for_thread().expect("memory");
            let unused = SPACE.registry.shared::<Runtime>(outer.number()).expect("made");
            let number = own_at_hand().or_else(acquire).expect("memory").number();
            assert_eq!(own(outer).number(), number, "the heap with the block of the request within");
            assert_eq!(thread_number(), Some(number));
            assert_eq!(unused.state.load(Ordering::SeqCst), 0, "the other one waits");
        })
        .join()
        .expect("no panic");
    }
}

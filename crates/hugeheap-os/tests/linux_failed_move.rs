//! What is left of the target of a move that failed. A system call filter plays the kernel, which fails once it
//! has removed the target or before, and the threads that map something there meanwhile.
//!
//! Each test runs in a process of its own, because a filter cannot be taken off again.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

#[path = "linux_support/mod.rs"]
mod support;

use hugeheap_os::{AddressRange, Backing, ErrorKind, Pages};
use libc::{c_int, c_void};
use std::io::Read;
use std::os::fd::FromRawFd;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use support::*;

/// What happens in a move: the target is removed, and somebody maps this many bytes at this offset of it.
static REMOVES: AtomicU32 = AtomicU32::new(0);
static OTHERS_OFFSET: AtomicUsize = AtomicUsize::new(0);
static OTHERS_BYTES: AtomicUsize = AtomicUsize::new(0);

/// In the place of `mremap`.
extern "C" fn fail(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes the context of the call that it trapped; the ranges are the test's.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let (len, to) =
            (registers[libc::REG_RDX as usize] as usize, registers[libc::REG_R8 as usize] as usize);
        registers[libc::REG_RAX as usize] = i64::from(-libc::ENOMEM);
        if REMOVES.load(Ordering::Relaxed) != 0 {
            libc::munmap(to as *mut c_void, len);
        }
        let bytes = OTHERS_BYTES.load(Ordering::Relaxed);
        if bytes != 0 {
            let place = to + OTHERS_OFFSET.load(Ordering::Relaxed);
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            libc::mmap(place as *mut c_void, bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            put(place, 9);
        }
    }
}

/// From here on moves fail.
fn fail_moves() {
    let step = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        // The call's number.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 3, libc::SYS_mremap as u32),
        // The fourth argument.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 16 + 8 * 3),
        step(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 0, 1, libc::MREMAP_FIXED as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_TRAP),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program and the action are read during the calls; the handler makes system calls only.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = fail as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()), 0);
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter), 0);
    }
}

/// A source with contents, and the target. The reservations around them stay.
fn ranges() -> (Reserved, AddressRange, AddressRange) {
    let memory = Reserved::huge_pages(5);
    let (from, to) = (memory.huge_page(1), memory.huge_page(3));
    // SAFETY: the test owns the range.
    unsafe { OS.map(from, Backing::Base).unwrap() };
    put(from.start, 4);
    (memory, from, to)
}

fn is_refused(memory: &Reserved, from: AddressRange, to: AddressRange) {
    // SAFETY: the test owns the ranges.
    assert_eq!(unsafe { OS.relocate(from, to) }.unwrap_err().kind(), ErrorKind::OutOfMemory);
    assert_eq!(get(from.start), 4);
    assert_no_hole(memory.0);
    assert_reserved(AddressRange::new(from.end(), memory.0.end() - from.end()));
}

#[test]
fn a_target_that_was_not_removed_is_reserved_again() {
    if !in_child("a_target_that_was_not_removed_is_reserved_again", None) {
        return;
    }
    let (memory, from, to) = ranges();
    fail_moves();
    is_refused(&memory, from, to);
    // Several mappings, as what lay there before may leave.
    let half = AddressRange::new(to.start, HUGE / 2);
    // SAFETY: the test owns the range.
    unsafe {
        OS.map(half, Backing::Thp).unwrap();
        OS.protect(half, hugeheap_os::Protection::None).unwrap();
    }
    is_refused(&memory, from, to);
}

#[test]
fn a_target_that_was_removed_is_reserved_again() {
    if !in_child("a_target_that_was_removed_is_reserved_again", None) {
        return;
    }
    let (memory, from, to) = ranges();
    fail_moves();
    REMOVES.store(1, Ordering::Relaxed);
    is_refused(&memory, from, to);
}

static OTHERS: AtomicUsize = AtomicUsize::new(0);
const INTACT: c_int = 42;

/// What another thread would do with its memory while the process ends.
extern "C" fn use_others(_: c_int) {
    let place = OTHERS.load(Ordering::Relaxed);
    put(place + 1, 1);
    // SAFETY: no preconditions.
    unsafe { libc::_exit(if get(place) == 9 { INTACT } else { 1 }) };
}

/// Its access was taken away, and the thread ended with SIGSEGV; had it not used it at once, the heap would have.
#[test]
fn another_thread_s_mapping_in_the_place_of_the_target_is_left_alone_and_the_process_ends() {
    if !in_child(
        "another_thread_s_mapping_in_the_place_of_the_target_is_left_alone_and_the_process_ends",
        None,
    ) {
        return;
    }
    let (_memory, from, to) = ranges();
    fail_moves();
    REMOVES.store(1, Ordering::Relaxed);
    for (offset, bytes) in [(0, HUGE), (0, PAGE), (HUGE - PAGE, PAGE), (HUGE / 2, PAGE)] {
        OTHERS_OFFSET.store(offset, Ordering::Relaxed);
        OTHERS_BYTES.store(bytes, Ordering::Relaxed);
        OTHERS.store(to.start + offset, Ordering::Relaxed);
        let mut pipe = [0; 2];
        // SAFETY: the child makes system calls only; descriptors are the test's own.
        let (status, said) = unsafe {
            assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
            let child = libc::fork();
            if child == 0 {
                libc::dup2(pipe[1], libc::STDERR_FILENO);
                libc::signal(libc::SIGABRT, use_others as *const () as usize);
                let _ = OS.relocate(from, to);
                use_others(0);
            }
            libc::close(pipe[1]);
            let mut said = String::new();
            std::fs::File::from_raw_fd(pipe[0]).read_to_string(&mut said).unwrap();
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            (status, said)
        };
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == INTACT, "{status:#x}: {said}");
        assert!(said.ends_with("and another thread has mapped something\n"), "{said}");
        assert!(said.contains(&to.to_string()), "{said}");
    }
}

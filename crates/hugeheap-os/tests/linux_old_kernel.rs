//! How the calls behave on kernels that lack some of what they use: a system call filter plays the older kernel.
//!
//! Each test runs in a process of its own, because a filter cannot be taken off again.
#![cfg(all(target_os = "linux", target_endian = "little"))]

#[path = "linux_support/mod.rs"]
mod support;

use hugeheap_os::{Advice, Backing, Capabilities, ErrorKind, Facts, Pages, Residency};
use libc::{c_int, c_long};
use support::*;

const PAGEMAP_SCAN: u32 = 0xc060_6610;
const PROCMAP_QUERY: u32 = 0xc068_6611;
const MREMAP_DONTUNMAP: u32 = 4;

/// A refused call: its number, which argument must have which bits, and the answer.
struct Refusal {
    call: c_long,
    argument: u32,
    /// The argument, or with `bits` some bits of it.
    value: u32,
    bits: bool,
    answer: c_int,
}

const fn refuse(call: c_long, argument: u32, value: u32, answer: c_int) -> Refusal {
    Refusal { call, argument, value, bits: false, answer }
}

fn madvise(advice: c_int) -> Refusal {
    refuse(libc::SYS_madvise, 2, advice as u32, libc::EINVAL)
}

fn ioctl(request: u32) -> Refusal {
    refuse(libc::SYS_ioctl, 1, request, libc::ENOTTY)
}

/// From here on the kernel answers these calls of this process as an older one would.
fn become_older(refusals: &[Refusal]) {
    let step = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = |offset: u32| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset);
    let mut program = Vec::new();
    for refusal in refusals {
        let test = if refusal.bits { libc::BPF_JSET } else { libc::BPF_JEQ };
        program.extend([
            // The call's number; the low half of the argument; then the next refusal or the answer.
            load(0),
            step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 3, refusal.call as u32),
            load(16 + 8 * refusal.argument),
            step(libc::BPF_JMP | test | libc::BPF_K, 0, 1, refusal.value),
            step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | refusal.answer as u32),
        ]);
    }
    program.push(step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program is read during the call.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter), 0);
    }
}

/// Runs the test `name` in a child, under the host lock and with a pool where that can be had. True in the child.
fn in_older_child(name: &str) -> bool {
    if is_child(name) {
        return in_child(name, None);
    }
    let _lock = HostLock::take();
    let (_mode, _pool) = (Knob::thp("madvise"), Knob::pool(2));
    in_child(name, None)
}

#[test]
fn without_transparent_huge_pages() {
    if !in_older_child("without_transparent_huge_pages") {
        return;
    }
    become_older(&[madvise(libc::MADV_HUGEPAGE), madvise(libc::MADV_NOHUGEPAGE), madvise(25)]);
    let memory = Reserved::huge_pages(2);
    let range = memory.huge_page(1);
    // SAFETY: the test owns the range.
    unsafe {
        assert_eq!(OS.map(range, Backing::Thp).unwrap_err().kind(), ErrorKind::Invalid);
        assert_reserved(memory.0);
        OS.map(range, Backing::Base).unwrap();
        put(range.start, 1);
        assert_eq!(OS.advise(range, Advice::Huge).unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(OS.collapse(range).unwrap_err().kind(), ErrorKind::Invalid);
    }
    let found = OS.capabilities();
    assert!(!found.advise_huge && !found.collapse && !OS.knows_collapse());
}

#[test]
fn without_moving_of_hugetlb_mappings() {
    if !in_older_child("without_moving_of_hugetlb_mappings") {
        return;
    }
    // Before 5.16; like all this kernel's moves, since a filter cannot tell mappings apart.
    become_older(&[Refusal {
        call: libc::SYS_mremap,
        argument: 3,
        value: libc::MREMAP_FIXED as u32,
        bits: true,
        answer: libc::EINVAL,
    }]);
    let memory = Reserved::huge_pages(3);
    let (one, two) = (memory.huge_page(0), memory.huge_page(1));
    let pool = || OS.hugetlb_pool(HUGE).unwrap().map(|pool| pool.available());
    let before = pool();
    if before.is_some_and(|available| available > 0) {
        for _ in 0..3 {
            // SAFETY: the test owns the range.
            let refused = unsafe { OS.map(one, Backing::Hugetlb(HUGE)) };
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported);
            assert_reserved(memory.0);
            assert_eq!(pool(), before, "the pages are back in the pool");
        }
    } else {
        skip("no pool");
    }
    // SAFETY: the test owns the ranges.
    unsafe {
        OS.map(one, Backing::Base).unwrap();
        put(one.start, 4);
        assert_eq!(OS.relocate(one, two).unwrap_err().kind(), ErrorKind::Unsupported);
    }
    assert_reserved(two);
    assert_eq!(get(one.start), 4);
    assert!(!OS.capabilities().relocate);
}

#[test]
fn without_scanning_of_the_pagemap() {
    if !in_older_child("without_scanning_of_the_pagemap") {
        return;
    }
    become_older(&[ioctl(PAGEMAP_SCAN)]);
    assert!(!OS.capabilities().pagemap_scan);
    residency_is_right();
}

#[test]
fn without_queries_of_mappings() {
    if !in_older_child("without_queries_of_mappings") {
        return;
    }
    become_older(&[ioctl(PROCMAP_QUERY)]);
    residency_is_right();
    let memory = Reserved::huge_pages(2);
    let (one, two) = (memory.huge_page(0), memory.huge_page(1));
    // SAFETY: the test owns the ranges.
    unsafe {
        OS.map(one, Backing::Base).unwrap();
        put(one.start, 4);
        OS.relocate(one, two).unwrap();
    }
    assert_eq!(get(two.start), 4);
}

/// Maps all kinds of memory and looks at each.
fn residency_is_right() {
    let memory = Reserved::huge_pages(8);
    let (base, thp, pool) = (memory.huge_page(1), memory.huge_page(3), memory.huge_page(5));
    // SAFETY: the test owns the ranges.
    unsafe {
        OS.map(base, Backing::Base).unwrap();
        OS.map(thp, Backing::Thp).unwrap();
        pages_of(base).step_by(2).for_each(|page| put(page, 1));
        put(thp.start, 1);
        let half = Residency { resident: (HUGE / 2) as u64, ..Residency::default() };
        let whole = Residency { resident: HUGE as u64, thp: HUGE as u64, hugetlb: 0 };
        assert_eq!(OS.residency(base), Ok(half));
        if is_root() {
            assert_eq!(OS.residency(thp), Ok(whole));
        }
        if OS.map(pool, Backing::Hugetlb(HUGE)).is_ok() {
            let whole = Residency { resident: HUGE as u64, thp: 0, hugetlb: HUGE as u64 };
            assert_eq!(OS.residency(pool), Ok(whole));
        } else {
            skip("no pool");
        }
    }
}

#[test]
fn without_any_of_it() {
    if !in_older_child("without_any_of_it") {
        return;
    }
    become_older(&[
        madvise(libc::MADV_HUGEPAGE),
        madvise(25),
        madvise(23),
        madvise(20),
        ioctl(PAGEMAP_SCAN),
        Refusal {
            call: libc::SYS_mremap,
            argument: 3,
            value: MREMAP_DONTUNMAP,
            bits: true,
            answer: libc::EINVAL,
        },
        // By its flags. Of a sixth argument, which it does not have, a register is read with whatever it has:
        // optimised code left something there.
        refuse(libc::SYS_process_madvise, 4, 0, libc::ENOSYS),
    ]);
    let found = OS.capabilities();
    let expected =
        Capabilities { name: found.name, hardware_counters: found.hardware_counters, ..Default::default() };
    assert_eq!(found, expected);
    let memory = Reserved::huge_pages(2);
    // SAFETY: the test owns the range.
    unsafe {
        OS.map(memory.0, Backing::Plain).unwrap();
        assert_eq!(OS.split(memory.0).unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(OS.populate(memory.0).unwrap_err().kind(), ErrorKind::Invalid);
    }
    put(memory.0.start, 1);
    assert_eq!(OS.residency(memory.0).unwrap().resident, PAGE as u64);
}

/// Before Linux 5.9.
#[test]
fn without_a_table_of_descriptors_for_one_thread() {
    if !in_older_child("without_a_table_of_descriptors_for_one_thread") {
        return;
    }
    become_older(&[refuse(libc::SYS_close_range, 0, 0, libc::ENOSYS)]);
    // The thread shares the program's, and what it reads it still reads.
    assert!(!hugeheap_os::linux::separate_descriptors());
    assert!(hugeheap_os::linux::Linux::new().total_memory().is_ok());
    hugeheap_os::linux::write_to_stderr(b"");
}

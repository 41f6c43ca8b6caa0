//! `Facts` about the running kernel and this process.
#![cfg(target_os = "linux")]

#[path = "linux_support/mod.rs"]
mod support;

use hugeheap_os::linux::Linux;
use hugeheap_os::{Backing, Capabilities, Error, ErrorKind, Facts, Pages, ThpDisabled, ThpMode};
use std::path::Path;
use support::*;

const MIB: u64 = 1 << 20;

#[test]
fn the_mode_is_what_the_knob_was_set_to() {
    let _lock = HostLock::take();
    for (text, mode) in
        [("always", ThpMode::Always), ("madvise", ThpMode::Madvise), ("never", ThpMode::Never)]
    {
        let Some(_knob) = Knob::thp(text) else { return };
        assert_eq!((OS.thp().unwrap().mode, OS.thp_mode().unwrap()), (mode, mode));
        assert!(OS.thp().unwrap().khugepaged.is_some());
    }
    let Some(_global) = Knob::thp("never") else { return };
    let Some(_own) = Knob::set("/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled", "always")
    else {
        return;
    };
    assert_eq!(OS.thp().unwrap().mode, ThpMode::Always);
}

#[test]
fn the_process_switch_is_read_back() {
    if !in_child("the_process_switch_is_read_back", None) {
        return;
    }
    const EXCEPT_ADVISED: libc::c_ulong = 1 << 1;
    let set = |on: libc::c_ulong, flags: libc::c_ulong| {
        const UNUSED: libc::c_ulong = 0;
        // SAFETY: changes a flag of this child process.
        unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, on, flags, UNUSED, UNUSED) == 0 }
    };
    assert_eq!(OS.thp_disabled(), Ok(ThpDisabled::No));
    assert!(set(1, 0));
    assert_eq!(OS.thp_disabled(), Ok(ThpDisabled::Completely));
    assert!(set(0, 0));
    assert_eq!(OS.thp_disabled(), Ok(ThpDisabled::No));
    if !set(1, EXCEPT_ADVISED) {
        return skip("a kernel before 6.18");
    }
    assert_eq!(OS.thp_disabled(), Ok(ThpDisabled::ExceptAdvised));
}

#[test]
fn the_least_limit_of_the_parents_holds_and_the_charge_follows_use() {
    const NAME: &str = "the_least_limit_of_the_parents_holds_and_the_charge_follows_use";
    if !is_child(NAME) {
        let Some(parent) = Group::new("limits") else { return };
        parent.limit(512 * MIB);
        let group = parent.child("below");
        group.limit(1024 * MIB);
        in_child(NAME, Some(&group));
        return;
    }
    in_child(NAME, None);
    let before = OS.memory_limits().unwrap();
    assert_eq!(before.max, Some(512 * MIB));
    let room = OS.memory_room().unwrap().unwrap();
    assert!(room <= 512 * MIB && room >= 512 * MIB - before.charge, "{room} {before:?}");
    let memory = Reserved::huge_pages(16);
    // SAFETY: the test owns the range.
    unsafe {
        OS.map(memory.0, Backing::Thp).unwrap();
        OS.populate(memory.0).unwrap();
    }
    let after = OS.memory_limits().unwrap();
    assert!(after.charge >= before.charge + 31 * MIB, "{before:?} {after:?}");
    assert!(after.charge < before.charge + 40 * MIB, "{before:?} {after:?}");
    assert!(after.anonymous.unwrap() <= after.charge);
    let left = OS.memory_room().unwrap().unwrap();
    assert!(left <= room - 31 * MIB && left >= room - 40 * MIB, "{left} {room}");
}

#[test]
fn the_address_space_limit_is_read_with_its_use() {
    if !in_child("the_address_space_limit_is_read_with_its_use", None) {
        return;
    }
    assert_eq!(OS.address_space_limit(), None);
    // SAFETY: the structure is read only.
    unsafe {
        let limit = libc::rlimit { rlim_cur: 4096 * MIB, rlim_max: 4096 * MIB };
        assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &limit), 0);
    }
    let before = OS.address_space_limit().unwrap();
    let _memory = Reserved::huge_pages(512);
    let after = OS.address_space_limit().unwrap();
    assert_eq!((before.limit, after.limit), (4096 * MIB, 4096 * MIB));
    assert!(after.used >= before.used + 1024 * MIB, "{before:?} {after:?}");
}

#[test]
fn pools_are_sorted_and_agree_with_the_single_look() {
    let _lock = HostLock::take();
    let pools = OS.hugetlb_pools().unwrap();
    assert!(pools.is_sorted_by_key(|pool| pool.page_size));
    for pool in &pools {
        assert_eq!(OS.hugetlb_pool(pool.page_size), Ok(Some(*pool)));
    }
    assert_eq!(OS.hugetlb_pool(3 * HUGE), Ok(None));
    let Some(_pool) = Knob::pool(3) else { return };
    let pool = OS.hugetlb_pool(HUGE).unwrap().unwrap();
    assert_eq!((pool.total, pool.available()), (3, 3 + pool.overcommit));
}

#[test]
fn a_thread_bound_to_one_processor_has_one() {
    std::thread::spawn(|| {
        // SAFETY: plain calls on a set of this frame, for this thread alone.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(libc::sched_getcpu() as usize, &mut set);
            assert_eq!(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set), 0);
        }
        assert_eq!(OS.processors(), 1);
    })
    .join()
    .unwrap();
}

/// Bytes that the kernel's zones manage, as far as it says.
fn managed_memory(os_page: u64) -> Option<u64> {
    let zones = std::fs::read_to_string("/proc/zoneinfo").ok()?;
    let pages =
        zones.lines().filter_map(|line| line.trim().strip_prefix("managed")?.trim().parse::<u64>().ok());
    Some(pages.sum::<u64>() * os_page)
}

#[test]
fn host_facts_fit_together() {
    let sizes = OS.page_sizes();
    assert!(sizes.os.is_power_of_two());
    assert!(sizes.huge.is_none_or(|huge| huge > sizes.os));
    let (total, available) = (OS.total_memory().unwrap(), OS.available_memory().unwrap());
    assert!(available <= total && available > 0);
    match OS.caches() {
        Ok(caches) => assert!(caches.iter().all(|cache| cache.size > 0 && cache.shared_by > 0), "{caches:?}"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Missing),
    }
    assert!(OS.processors() >= std::thread::available_parallelism().unwrap().get());
    match OS.numa_nodes() {
        Ok(nodes) => {
            let sum: u64 = nodes.iter().map(|node| node.total).sum();
            assert!(nodes.iter().all(|node| node.free <= node.total));
            // A kernel may find its memory by and by: nodes have what it has found, while the host's total is
            // all of it.
            let found = managed_memory(sizes.os as u64).map_or(total, |found| found.min(total));
            assert!(sum.abs_diff(found) < found / 10, "{nodes:?} {found} {total}");
        }
        Err(error) => assert_eq!(error.kind(), ErrorKind::Missing),
    }
    if let Ok(pressure) = OS.pressure() {
        assert!(pressure.full_avg10 <= pressure.some_avg10 + 0.01);
    }
    let before = OS.now();
    std::thread::sleep(std::time::Duration::from_millis(5));
    assert!(OS.now() >= before + std::time::Duration::from_millis(5));
}

#[test]
fn capabilities_are_those_of_the_kernel() {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let version = (numbers.next().unwrap(), numbers.next().unwrap());
    let found = OS.capabilities();
    eprintln!("{found:?}");
    assert_eq!(OS.knows_collapse(), found.collapse);
    // Backports may add, configurations and sandboxes remove; on a plain kernel of this age all of these work.
    if version >= (6, 13) && is_root() && OS.thp().is_ok() {
        let Capabilities { hardware_counters: _, name: _, .. } = found;
        assert!(found.advise_huge && found.collapse && found.cold && found.populate);
        assert!(found.pagemap_scan && found.process_madvise && found.relocate);
    }
    let memory = Reserved::huge_pages(1);
    assert_eq!(OS.name(memory.0, c"x").is_ok(), found.name);
}

#[test]
fn another_root_answers_for_the_files_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let os = Linux::with_root(dir.path()).unwrap();
    assert_eq!(os.page_sizes().huge, None);
    assert_eq!(os.total_memory().unwrap_err().kind(), ErrorKind::Missing);
    assert_eq!(os.thp().unwrap_err().kind(), ErrorKind::Missing);
    assert_eq!(os.memory_limits().unwrap_err().kind(), ErrorKind::Missing);
    assert_eq!(os.hugetlb_pools(), Ok(Vec::new()));
    std::fs::create_dir(dir.path().join("proc")).unwrap();
    std::fs::write(dir.path().join("proc/meminfo"), "MemTotal: 8 kB\nMemAvailable: 4 kB\n").unwrap();
    assert_eq!((os.total_memory(), os.available_memory()), (Ok(8192), Ok(4096)));
    let long = "x/".repeat(200);
    assert_eq!(Linux::with_root(Path::new(&long)).map(|_| ()), Err(Error::new("root", libc::ENAMETOOLONG)));
    assert!(format!("{os:?}").contains(dir.path().to_str().unwrap()));
}

//! What the tests on the running kernel share: the host's knobs, child processes, control groups of their own.
//!
//! A knob is changed only under the host lock and put back when its guard is dropped. A test that lacks a
//! privilege or a kernel feature says so on standard error and passes.

// Each test program uses a part of this.
#![allow(dead_code)]

use hugeheap_os::linux::Linux;
use hugeheap_os::{AddressRange, Pages};
use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

pub(crate) const HUGE: usize = 2 << 20;
pub(crate) const PAGE: usize = 4096;
pub(crate) static OS: Linux = Linux::new();

/// Says why a test did nothing.
pub(crate) fn skip(reason: &str) {
    eprintln!("skipped: {reason}");
}

pub(crate) fn is_root() -> bool {
    // SAFETY: no preconditions.
    unsafe { libc::geteuid() == 0 }
}

/// Serialises the tests that depend on the host's knobs, over all processes of the host.
pub(crate) struct HostLock(#[allow(dead_code)] fs::File);

impl HostLock {
    pub(crate) fn take() -> Self {
        let path = std::env::temp_dir().join("hugeheap-host-knobs.lock");
        // A lock needs no write access, which another user's file would refuse.
        let file = fs::File::open(&path).or_else(|_| fs::File::create(&path)).unwrap();
        // SAFETY: the descriptor is open; the lock goes away with it.
        assert_eq!(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) }, 0);
        Self(file)
    }
}

/// A file of the kernel that is put back when dropped. Take the [`HostLock`] first.
pub(crate) struct Knob {
    path: PathBuf,
    old: String,
}

impl Knob {
    /// `None` (with the reason on standard error) where it cannot be changed.
    pub(crate) fn set(path: &str, value: &str) -> Option<Self> {
        let text = fs::read_to_string(path).ok();
        let chosen = |text: &String| match text.split_once('[').and_then(|(_, rest)| rest.split_once(']')) {
            Some((word, _)) => word.to_owned(),
            None => text.trim().to_owned(),
        };
        let knob = text.as_ref().map(chosen).map(|old| Self { path: path.into(), old });
        match knob {
            Some(knob) if fs::write(path, value).is_ok() => Some(knob),
            Some(knob) => {
                std::mem::forget(knob);
                skip(&format!("cannot write {path}"));
                None
            }
            None => {
                skip(&format!("no {path}"));
                None
            }
        }
    }

    pub(crate) fn thp(mode: &str) -> Option<Self> {
        Self::set("/sys/kernel/mm/transparent_hugepage/enabled", mode)
    }

    /// A pool of `pages` huge pages of 2 MiB.
    pub(crate) fn pool(pages: u64) -> Option<Self> {
        const PATH: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
        let knob = Self::set(PATH, &pages.to_string())?;
        let got: u64 = fs::read_to_string(PATH).unwrap().trim().parse().unwrap();
        if got != pages {
            skip(&format!("the pool got {got} pages, not {pages}"));
            return None;
        }
        Some(knob)
    }
}

impl Drop for Knob {
    fn drop(&mut self) {
        fs::write(&self.path, &self.old).unwrap();
    }
}

/// Address space that is released when dropped.
pub(crate) struct Reserved(pub(crate) AddressRange);

impl Reserved {
    /// `count` huge pages of address space, aligned to them.
    pub(crate) fn huge_pages(count: usize) -> Self {
        Self(OS.reserve(count * HUGE, HUGE).unwrap())
    }

    /// The part of `len` bytes at `offset`.
    pub(crate) fn part(&self, offset: usize, len: usize) -> AddressRange {
        assert!(offset + len <= self.0.len);
        AddressRange::new(self.0.start + offset, len)
    }

    /// The huge page with this number.
    pub(crate) fn huge_page(&self, index: usize) -> AddressRange {
        self.part(index * HUGE, HUGE)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // SAFETY: made by `reserve`, and the test is over.
        unsafe { OS.release(self.0).unwrap() };
    }
}

/// The byte at an address the test has mapped.
pub(crate) fn get(address: usize) -> u8 {
    // SAFETY: the tests read only what they mapped.
    unsafe { (address as *const u8).read_volatile() }
}

/// Writes the byte at an address the test has mapped.
pub(crate) fn put(address: usize, value: u8) {
    // SAFETY: the tests write only what they mapped and own.
    unsafe { (address as *mut u8).write_volatile(value) };
}

/// The addresses of the first byte of each OS page.
pub(crate) fn pages_of(range: AddressRange) -> impl Iterator<Item = usize> {
    (range.start..range.end()).step_by(PAGE)
}

/// The mappings in a range: their part of it, and their access ("rw-p").
///
/// A mapping that merges with a neighbour while the kernel writes the list is in it twice.
pub(crate) fn mappings(range: AddressRange) -> Vec<(AddressRange, String)> {
    let text = fs::read_to_string("/proc/self/maps").unwrap();
    let address = |text: &str| usize::from_str_radix(text, 16).unwrap();
    let mut found: Vec<(AddressRange, String)> = Vec::new();
    for line in text.lines() {
        let (addresses, rest) = line.split_once(' ').unwrap();
        let (start, end) = addresses.split_once('-').unwrap();
        let known = found.last().map_or(range.start, |(part, _)| part.end());
        let (start, end) = (address(start).max(known), address(end).min(range.end()));
        if start < end {
            found.push((AddressRange::new(start, end - start), rest[..4].to_owned()));
        }
    }
    found
}

/// Panics when the range has a hole.
pub(crate) fn assert_no_hole(range: AddressRange) {
    let parts = mappings(range);
    let covered: usize = parts.iter().map(|(part, _)| part.len).sum();
    assert_eq!(covered, range.len, "hole in {range}: {parts:x?}");
}

/// Panics unless all of the range is reserved.
pub(crate) fn assert_reserved(range: AddressRange) {
    assert_no_hole(range);
    let parts = mappings(range);
    assert!(parts.iter().all(|(_, access)| access == "---p"), "{parts:x?}");
}

const CHILD: &str = "HUGEHEAP_TEST_CHILD";

/// Runs the rest of the test `name` in a process of its own: true in that process, false in the parent after it
/// succeeded. `group` is a control group for it.
pub(crate) fn in_child(name: &str, group: Option<&Group>) -> bool {
    if std::env::var(CHILD).is_ok_and(|child| child == name) {
        if let Ok(group) = std::env::var("HUGEHEAP_TEST_GROUP") {
            fs::write(Path::new(&group).join("cgroup.procs"), "0").unwrap();
        }
        return true;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(CHILD, name);
    if let Some(group) = group {
        command.env("HUGEHEAP_TEST_GROUP", &group.0);
    }
    let output = command.output().unwrap();
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{}\n{text}", output.status);
    false
}

/// Whether this is the process that [`in_child`] started for the test.
pub(crate) fn is_child(name: &str) -> bool {
    std::env::var(CHILD).is_ok_and(|child| child == name)
}

/// A memory control group, removed when dropped.
pub(crate) struct Group(pub(crate) PathBuf);

impl Group {
    /// `None` (with the reason on standard error) where none can be made.
    pub(crate) fn new(name: &str) -> Option<Self> {
        let name = format!("hugeheap-test-{name}-{}", std::process::id());
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let v2 = Path::new("/sys/fs/cgroup");
        let controllers = fs::read_to_string(v2.join("cgroup.subtree_control")).unwrap_or_default();
        let parent = match () {
            () if v1.join("memory.usage_in_bytes").exists() => v1,
            () if controllers.split_whitespace().any(|name| name == "memory") => v2,
            () => {
                skip("no memory controller to make a group under");
                return None;
            }
        };
        let path = parent.join(name);
        if let Err(error) = fs::create_dir(&path) {
            skip(&format!("cannot make {}: {error}", path.display()));
            return None;
        }
        Some(Self(path))
    }

    /// A group in this one.
    pub(crate) fn child(&self, name: &str) -> Self {
        let path = self.0.join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// Sets the limit.
    pub(crate) fn limit(&self, bytes: u64) {
        let v1 = self.0.join("memory.limit_in_bytes");
        let file = if v1.exists() { v1 } else { self.0.join("memory.max") };
        fs::write(file, bytes.to_string()).unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that just ended is in its group for a moment more.
        let deadline = Instant::now() + Duration::from_secs(5);
        while fs::remove_dir(&self.0).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Lets this thread run on one CPU only.
pub(crate) fn pin_to(cpu: usize) {
    // SAFETY: an all-zero set is valid, and the call reads it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, std::mem::size_of_val(&set), &set);
    }
}

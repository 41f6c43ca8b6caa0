//! Memory, memory pressure and clock of the host, address space of this process.

use super::lines::Lines;
use super::read::{self, File, Root};
use super::vm;
use crate::{AddressSpaceLimit, Pressure, Result};
use core::mem::MaybeUninit;
use core::time::Duration;

const MEMINFO: &str = "read(/proc/meminfo)";
const PRESSURE: &str = "read(/proc/pressure/memory)";
const KSM: &str = "read(/sys/kernel/mm/ksm/run)";
const KSM_MERGING: &str = "read(/proc/self/ksm_merging_pages)";
const STATM: &str = "read(/proc/self/statm)";

/// The value of `key` in /proc/meminfo, in bytes.
pub(super) fn meminfo(root: &Root, key: &[u8]) -> Result<u64> {
    let mut lines = Lines::<_, 256>::new(File::open(&root.path(b"/proc/meminfo")?, MEMINFO)?);
    while let Some(line) = lines.next()? {
        if let Some(bytes) = read::bytes_of(line.bytes, key) {
            return Ok(bytes);
        }
    }
    Err(read::malformed(MEMINFO))
}

/// Memory pressure. Kernels built or started without it have no such file, or refuse to read it.
pub(super) fn pressure(root: &Root) -> Result<Pressure> {
    let mut buffer = [0; 512];
    let text = read::whole(&root.path(b"/proc/pressure/memory")?, &mut buffer, PRESSURE)?;
    let share = |kind| average(text, kind).ok_or(read::malformed(PRESSURE));
    Ok(Pressure { some_avg10: share(b"some")?, full_avg10: share(b"full")? })
}

/// `avg10` in the line of `kind`: `some avg10=0.12 avg60=0.05 avg300=0.01 total=123`.
fn average(text: &[u8], kind: &[u8]) -> Option<f32> {
    let mut lines = text.split(|&byte| byte == b'\n');
    let fields = lines.find_map(|line| line.strip_prefix(kind)?.strip_prefix(b" "))?;
    let mut fields = fields.split(|&byte| byte == b' ');
    let number = fields.find_map(|field| field.strip_prefix(b"avg10="))?;
    let share: f32 = core::str::from_utf8(number).ok()?.parse().ok()?;
    // Parsing takes "nan" and "inf", too.
    (0.0..=100.0).contains(&share).then_some(share)
}

/// The limit on this process's address space, if there is one.
pub(super) fn address_space_limit(root: &Root) -> Option<AddressSpaceLimit> {
    let mut limit = MaybeUninit::<libc::rlimit>::uninit();
    // SAFETY: the call fills the structure when it answers 0, and only then is it read.
    let limit = soft_limit(unsafe {
        if libc::getrlimit(libc::RLIMIT_AS, limit.as_mut_ptr()) != 0 {
            return None;
        }
        limit.assume_init()
    })?;
    Some(AddressSpaceLimit { limit, used: address_space_used(root).unwrap_or(limit) })
}

/// The limit on this process's private memory that can be written, if there is one.
pub(super) fn data_limit() -> Option<u64> {
    let mut limit = MaybeUninit::<libc::rlimit>::uninit();
    // SAFETY: the call fills the structure when it answers 0, and only then is it read.
    soft_limit(unsafe {
        if libc::getrlimit(libc::RLIMIT_DATA, limit.as_mut_ptr()) != 0 {
            return None;
        }
        limit.assume_init()
    })
}

fn soft_limit(limit: libc::rlimit) -> Option<u64> {
    // Wider on some libraries than on others.
    #[allow(clippy::unnecessary_cast)]
    (limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur as u64)
}

/// The size of this process's address space in bytes: the first field of statm.
fn address_space_used(root: &Root) -> Result<u64> {
    let mut buffer = [0; 256];
    let text = read::whole(&root.path(b"/proc/thread-self/statm")?, &mut buffer, STATM)?;
    let field = text.split(|&byte| byte == b' ').next();
    let pages = field.and_then(read::decimal).ok_or(read::malformed(STATM))?;
    pages.checked_mul(vm::os_page() as u64).ok_or(read::malformed(STATM))
}

/// Whether the kernel's thread that merges equal pages is at work.
pub(super) fn merges(root: &Root) -> Result<bool> {
    let mut buffer = [0; 32];
    let text = read::whole(&root.path(b"/sys/kernel/mm/ksm/run")?, &mut buffer, KSM)?;
    Ok(read::decimal(text.trim_ascii()).ok_or(read::malformed(KSM))? == 1)
}

/// Bytes of this process that are merged.
pub(super) fn merged(root: &Root) -> Result<u64> {
    let mut buffer = [0; 32];
    let text = read::whole(&root.path(b"/proc/self/ksm_merging_pages")?, &mut buffer, KSM_MERGING)?;
    let pages = read::decimal(text.trim_ascii()).ok_or(read::malformed(KSM_MERGING))?;
    pages.checked_mul(vm::os_page() as u64).ok_or(read::malformed(KSM_MERGING))
}

/// Time since the start of the host, without suspended time.
pub(super) fn now() -> Duration {
    clock(libc::CLOCK_MONOTONIC)
}

/// The same, as the timer's last interrupt noted it.
pub(super) fn recently() -> Duration {
    match clock(libc::CLOCK_MONOTONIC_COARSE) {
        // Refused: systems that imitate Linux do not have all of its clocks.
        Duration::ZERO => now(),
        time => time,
    }
}

/// Time a processor has worked for this thread, in the kernel too.
pub(super) fn thread_time() -> Duration {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn clock(id: libc::clockid_t) -> Duration {
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the call fills the structure when it answers 0, and only then is it read.
    unsafe {
        if libc::clock_gettime(id, time.as_mut_ptr()) != 0 {
            // Every Linux has this clock; a sandbox that refuses it gets a clock that stands still, which never
            // goes back.
            return Duration::ZERO;
        }
        let time = time.assume_init();
        Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::FakeRoot;
    use super::*;
    use crate::Error;
    use proptest::prelude::*;

    #[test]
    fn meminfo_finds_whole_keys() {
        let fake = FakeRoot::new();
        assert_eq!(meminfo(&fake.root(), b"MemTotal"), Err(Error::new(MEMINFO, libc::ENOENT)));
        fake.write("proc/meminfo", "MemTotalX: 9 kB\nMemTotal:       24683560 kB\nMemAvailable:   1 kB\n");
        assert_eq!(meminfo(&fake.root(), b"MemTotal"), Ok(24_683_560 << 10));
        assert_eq!(meminfo(&fake.root(), b"MemAvailable"), Ok(1024));
        assert_eq!(meminfo(&fake.root(), b"MemFree"), Err(read::malformed(MEMINFO)));
        fake.write("proc/meminfo", "MemTotal:       246835");
        assert_eq!(meminfo(&fake.root(), b"MemTotal"), Err(read::malformed(MEMINFO)), "cut off");
    }

    #[test]
    fn pressure_needs_both_lines() {
        let fake = FakeRoot::new();
        let some = "some avg10=12.50 avg60=0.05 avg300=0.01 total=123\n";
        assert_eq!(pressure(&fake.root()), Err(Error::new(PRESSURE, libc::ENOENT)));
        fake.write("proc/pressure/memory", &format!("{some}full avg10=0.25 avg60=0 avg300=0 total=0\n"));
        assert_eq!(pressure(&fake.root()), Ok(Pressure { some_avg10: 12.5, full_avg10: 0.25 }));
        for text in
            ["", some, "some avg10=nan\nfull avg10=0\n", "some avg10=101\nfull avg10=0\n", "some\nfull\n"]
        {
            fake.write("proc/pressure/memory", text);
            assert_eq!(pressure(&fake.root()), Err(read::malformed(PRESSURE)), "{text}");
        }
    }

    #[test]
    fn address_space_is_in_pages() {
        let fake = FakeRoot::new();
        fake.write("proc/thread-self/statm", "765 441 413 5 0 123 0\n");
        assert_eq!(address_space_used(&fake.root()), Ok(765 * vm::os_page() as u64));
        for text in ["", "-1 2", "99999999999999999999 1", "18446744073709551615 1"] {
            fake.write("proc/thread-self/statm", text);
            assert_eq!(address_space_used(&fake.root()), Err(read::malformed(STATM)), "{text}");
        }
    }

    /// A host may have been slow to interrupt; half a second is no interrupt at all.
    #[test]
    fn what_the_timer_noted_is_a_little_before_what_the_clock_says() {
        for _ in 0..100 {
            let (before, noted, after) = (now(), recently(), now());
            assert!(
                noted <= after && before < noted + Duration::from_millis(500),
                "{before:?} {noted:?} {after:?}"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn the_clock_does_not_go_back() {
        let first = now();
        assert!(first > Duration::ZERO);
        assert!(now() >= first);
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parsers_panic(text: Vec<u8>) {
            let _ = average(&text, b"some");
        }
    }
}

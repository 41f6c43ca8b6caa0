//! A process's memory over time, looked at from outside.
//!
//! From outside, because whoever looks from inside allocates, and cannot look while it is busy. One look reads
//! two short files of the kernel, about 10 µs, a thousandth of the time between two; the times of a watched
//! process are not used for anything all the same.
//!
//! Pages of a hugetlb pool are in neither RSS nor, unless the kernel was mounted so, the charge: they are added
//! to both.

use super::charge::Group;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Between two looks. A million objects take some 300 ms to make: thirty looks show how.
pub(crate) const PERIOD: Duration = Duration::from_millis(10);
/// Longest line of fields that is read: `/proc/PID/status` has about 1,500 bytes.
const LONGEST: usize = 8192;

/// One look. Bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sample {
    /// Seconds of the monotonic clock, the one that Python's `time.monotonic` reads.
    pub(crate) at: f64,
    /// Resident memory without pages of a hugetlb pool.
    pub(crate) rss: u64,
    /// Pages of a hugetlb pool.
    pub(crate) hugetlb: u64,
    /// The most that `rss` ever was, as the kernel keeps it: what came and went between two looks is in it.
    pub(crate) highest: u64,
    /// Charge of the process's own cgroup, where there is one, pages of a hugetlb pool included.
    pub(crate) charge: Option<u64>,
}

impl Sample {
    /// Resident memory, pages of a hugetlb pool included.
    pub(crate) fn resident(&self) -> u64 {
        self.rss + self.hugetlb
    }
}

/// Looks at process `pid` until it has no memory any more or `stop` is set. `group`: its own cgroup.
pub(crate) fn watch(pid: u32, group: Option<&Group>, stop: &AtomicBool) -> Vec<Sample> {
    let mut samples = Vec::new();
    let Ok(status) = File::open(format!("/proc/{pid}/status")) else { return samples };
    let charge = group.and_then(|group| File::open(group.usage_file()).ok());
    let counted = group.is_some_and(Group::counts_hugetlb);
    let mut next = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let Some((rss, hugetlb, highest)) = text(&status).as_deref().and_then(memory) else { break };
        let charge = charge.as_ref().and_then(|file| text(file)?.trim().parse::<u64>().ok());
        let charge = charge.map(|charge| if counted { charge } else { charge + hugetlb });
        samples.push(Sample { at: monotonic(), rss, hugetlb, highest, charge });
        next += PERIOD;
        match next.checked_duration_since(Instant::now()) {
            Some(left) => std::thread::sleep(left),
            // Late: looks that were missed are not made up for.
            None => next = Instant::now(),
        }
    }
    samples
}

/// Seconds of the monotonic clock.
pub(crate) fn monotonic() -> f64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a struct of ours to be filled.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// A file of the kernel from its beginning, which is made anew at each such read.
fn text(file: &File) -> Option<String> {
    let mut buffer = [0; LONGEST];
    let len = file.read_at(&mut buffer, 0).ok()?;
    String::from_utf8(buffer[..len].to_vec()).ok()
}

/// RSS, hugetlb pages and the highest RSS of a status file; `None` for a process without memory: one that has ended.
fn memory(status: &str) -> Option<(u64, u64, u64)> {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
    };
    let rss = field("VmRSS:")?;
    Some((rss, field("HugetlbPages:").unwrap_or(0), field("VmHWM:").unwrap_or(rss)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn memory_is_read_from_the_status() {
        let status = "Name:\tx\nVmHWM:\t  16 kB\nVmRSS:\t  12 kB\nHugetlbPages:\t 2048 kB\n";
        assert_eq!(memory(status), Some((12 << 10, 2 << 20, 16 << 10)));
        assert_eq!(memory("VmRSS:\t  12 kB\n"), Some((12 << 10, 0, 12 << 10)));
        assert_eq!(memory("Name:\tx\nState:\tZ (zombie)\n"), None);
    }

    #[test]
    fn a_process_is_watched_until_it_ends() {
        let mut child = Command::new("sleep").arg("0.2").spawn().unwrap();
        // It is not waited for meanwhile: its end must show all the same.
        let samples = watch(child.id(), None, &AtomicBool::new(false));
        child.wait().unwrap();
        assert!((3..=25).contains(&samples.len()), "{}", samples.len());
        assert!(samples.iter().all(|sample| sample.rss > 0 && sample.charge.is_none()));
        assert!(samples.windows(2).all(|pair| pair[0].at < pair[1].at));
    }
}

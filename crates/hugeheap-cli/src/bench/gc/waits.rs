//! How long a program waited: for its collector, and for the host.
//!
//! ```text
//!   meter ──────── memory is touched ──── workload ──── meter        the workload and the second meter: one process
//!   gaps of the idle host                 pauses ─┬ wall clock
//!                                                 └ time on a processor
//! ```
//!
//! A pause is measured with the wall clock, because that is what a user waits. On a host with other guests, or
//! with other programs, it contains what these took. Two figures tell how much: the gaps that a program sees
//! which does nothing but read the clock, and the time that a processor worked for the thread within a pause. A
//! pause of 40 ms with 2 ms on a processor is not the collector's.
//!
//! The first meter runs before memory is [touched](crate::bench::touch), not between that and the workload: in
//! its second the host took away a part of what had been touched, and hugeheap's trees took 0.56 s instead of 0.46,
//! while the peers, which have no meter, lost nothing.
//!
//! A guest whose kernel is not told what the host steals counts it as its own: then only the gaps and
//! `/proc/stat` tell.

use hugeheap::gc::{BUCKETS, Phase, ProcessHeap};
use hugeheap_os::Facts;
use hugeheap_os::linux::Linux;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// Longest waits that are kept: a table of them fits a screen.
const KEPT: usize = 10;

/// Waits: times that the program waited for its collector, or gaps between two looks at the clock.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Pauses {
    pub(crate) count: u64,
    /// Seconds.
    pub(crate) total: f64,
    pub(crate) longest: f64,
    /// How many had at least 2^n nanoseconds and less than twice that.
    pub(crate) histogram: Vec<u64>,
}

/// A long wait for the collector, and what it consisted of.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Wait {
    /// Seconds since the workload began.
    pub(crate) at: f64,
    pub(crate) seconds: f64,
    /// Seconds that a processor worked for it.
    pub(crate) on_processor: f64,
    /// Seconds that the thread was ready and no processor of the guest ran it; `None` where the kernel does not tell.
    #[serde(default)]
    pub(crate) in_queue: Option<f64>,
    /// Pages that were touched for the first time.
    pub(crate) faults: u64,
    /// Bytes that a minor collection moved to the old generation.
    pub(crate) survived: u64,
    /// Bytes that left sparse arenas.
    pub(crate) moved: u64,
    /// The phase of the major collection before and afterwards.
    pub(crate) from: String,
    pub(crate) to: String,
}

/// What was seen of the waits for hugeheap's collector.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Waits {
    /// The same waits, by how long a processor worked for each.
    pub(crate) on_processor: Pauses,
    /// The longest ones, the longest first.
    pub(crate) longest: Vec<Wait>,
}

/// What the host took.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Host {
    /// Gaps between two looks at the clock while nothing else was done, before the workload and after it.
    pub(crate) idle: Pauses,
    /// Seconds that the host stole from all processors during the workload; `None` where the kernel does not tell.
    pub(crate) stolen: Option<f64>,
}

impl Pauses {
    pub(crate) fn empty() -> Self {
        Self { count: 0, total: 0.0, longest: 0.0, histogram: vec![0; BUCKETS] }
    }

    fn record(&mut self, length: Duration) {
        self.count += 1;
        self.total += length.as_secs_f64();
        self.longest = self.longest.max(length.as_secs_f64());
        let power = (length.as_nanos().max(1).ilog2() as usize).min(BUCKETS - 1);
        self.histogram[power] += 1;
    }

    /// With other ones.
    pub(crate) fn and(self, other: &Self) -> Self {
        Self {
            count: self.count + other.count,
            total: self.total + other.total,
            longest: self.longest.max(other.longest),
            histogram: self.histogram.iter().zip(&other.histogram).map(|(own, other)| own + other).collect(),
        }
    }

    /// Seconds that `share` of the pauses do not exceed: the upper end of a power of two, and not more than the
    /// longest.
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        let wanted = (self.count as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (power, count) in self.histogram.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return (2_f64.powi(power as i32 + 1) / 1e9).min(self.longest);
            }
        }
        self.longest
    }
}

/// Reads the clock for `length`: the gaps between two readings.
pub(crate) fn look(length: Duration) -> Pauses {
    let mut gaps = Pauses::empty();
    let linux = Linux::new();
    let begin = linux.now();
    let mut last = begin;
    while last - begin < length {
        let now = linux.now();
        gaps.record(now.saturating_sub(last));
        last = now;
    }
    gaps
}

/// Seconds that the host stole from all processors since it was started.
pub(crate) fn stolen() -> Option<f64> {
    // SAFETY: no memory is involved.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    let stolen = stolen_in(&fs::read_to_string("/proc/stat").ok()?)?;
    (ticks > 0).then(|| stolen as f64 / ticks as f64)
}

/// The eighth number of the first line: user, nice, system, idle, iowait, irq, softirq, steal.
fn stolen_in(text: &str) -> Option<u64> {
    text.lines().next()?.strip_prefix("cpu ")?.split_whitespace().nth(7)?.parse().ok()
}

/// The second number of a thread's `schedstat`: nanoseconds in the queue of a processor.
fn in_queue_of(text: &str) -> Option<Duration> {
    text.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

/// Pages that this thread touched for the first time.
fn faults() -> u64 {
    // SAFETY: all zero is a valid value of this plain struct.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: it is ours to be filled.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    usage.ru_minflt as u64
}

/// Looks at calls that may collect.
#[derive(Debug)]
pub(crate) struct Watch {
    linux: Linux,
    begin: Duration,
    waits: Waits,
    /// Of this thread. Open all the time: to open it for each pause took five times as long as the rest.
    schedstat: Option<File>,
}

/// What was known before such a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Before {
    processor: Duration,
    in_queue: Option<Duration>,
    faults: u64,
    pauses: u64,
    total: u64,
    survived: u64,
    moved: u64,
    phase: Phase,
}

impl Watch {
    pub(crate) fn new() -> Self {
        let linux = Linux::new();
        let schedstat = File::open("/proc/thread-self/schedstat").ok();
        Self { begin: linux.now(), linux, waits: Waits::new(), schedstat }
    }

    /// How long this thread was ready to run and no processor of the guest ran it.
    fn in_queue(&self) -> Option<Duration> {
        let mut text = [0; 80];
        let length = self.schedstat.as_ref()?.read_at(&mut text, 0).ok()?;
        in_queue_of(std::str::from_utf8(&text[..length]).ok()?)
    }

    /// Before a call that [may collect](ProcessHeap::may_collect): three system calls, two microseconds.
    pub(crate) fn before(&self, heap: &ProcessHeap) -> Before {
        let now = heap.statistics();
        Before {
            processor: self.linux.thread_time(),
            in_queue: self.in_queue(),
            faults: faults(),
            pauses: now.pauses.count,
            total: now.pauses.total,
            survived: now.survived_bytes,
            moved: now.moved_bytes,
            phase: heap.phase(),
        }
    }

    /// After it.
    pub(crate) fn after(&mut self, heap: &ProcessHeap, before: &Before) {
        let now = heap.statistics();
        if now.pauses.count == before.pauses {
            return;
        }
        let on_processor = self.linux.thread_time().saturating_sub(before.processor);
        let both = before.in_queue.zip(self.in_queue());
        let in_queue = both.map(|(before, now)| now.saturating_sub(before).as_secs_f64());
        self.waits.on_processor.record(on_processor);
        let wait = Wait {
            at: (self.linux.now() - self.begin).as_secs_f64(),
            seconds: (now.pauses.total - before.total) as f64 / 1e9,
            on_processor: on_processor.as_secs_f64(),
            in_queue,
            faults: faults() - before.faults,
            survived: now.survived_bytes - before.survived,
            moved: now.moved_bytes - before.moved,
            from: name(before.phase).to_owned(),
            to: name(heap.phase()).to_owned(),
        };
        self.waits.add(wait);
    }

    pub(crate) fn waits(self) -> Waits {
        self.waits
    }
}

impl Waits {
    pub(crate) fn new() -> Self {
        Self { on_processor: Pauses::empty(), longest: Vec::new() }
    }

    fn add(&mut self, wait: Wait) {
        let place = self.longest.partition_point(|longer| longer.seconds >= wait.seconds);
        if place < KEPT {
            self.longest.insert(place, wait);
            self.longest.truncate(KEPT);
        }
    }
}

const fn name(phase: Phase) -> &'static str {
    match phase {
        Phase::Idle => "idle",
        Phase::Marking => "marking",
        Phase::Clearing => "clearing",
        Phase::Sweeping => "sweeping",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_upper_ends_of_powers_of_two() {
        let mut histogram = vec![0; BUCKETS];
        (histogram[10], histogram[20]) = (98, 2);
        let pauses = Pauses { count: 100, total: 0.003, longest: 0.0015, histogram };
        assert_eq!(pauses.quantile(0.5), 2048e-9);
        assert_eq!(pauses.quantile(0.99), 0.0015);
    }

    #[test]
    fn gaps_are_all_the_time_there_was() {
        let (first, second) = (look(Duration::from_millis(5)), look(Duration::from_millis(5)));
        let gaps = first.clone().and(&second);
        assert_eq!(gaps.count, first.count + second.count);
        assert_eq!(gaps.longest, f64::max(first.longest, second.longest));
        assert_eq!(gaps.histogram.iter().sum::<u64>(), gaps.count);
        assert!(gaps.total >= 0.01 && gaps.longest <= gaps.total && gaps.longest > 0.0, "{gaps:?}");
    }

    #[test]
    fn what_was_stolen_is_the_eighth_number_of_all_processors() {
        let text = "cpu  10 20 30 40 50 60 70 80 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n";
        assert_eq!(stolen_in(text), Some(80));
        assert_eq!(stolen_in("cpu  10 20 30 40\n"), None, "kernels that do not tell");
        assert_eq!(stolen_in("intr 1\n"), None);
    }

    #[test]
    fn the_time_in_the_queue_of_a_processor_is_the_second_number() {
        assert_eq!(in_queue_of("341065 72 2\n"), Some(Duration::from_nanos(72)));
        assert_eq!(in_queue_of("341065"), None, "kernels that do not tell");
        let mut watch = Watch::new();
        let told = watch.in_queue();
        assert_eq!(told.is_some(), std::path::Path::new("/proc/thread-self/schedstat").exists());
        assert!(watch.in_queue() >= told, "read anew");
        watch.schedstat = None;
        assert_eq!(watch.in_queue(), None);
    }

    #[test]
    fn the_longest_waits_are_kept_in_order() {
        let mut waits = Waits::new();
        for length in [3_u32, 1, 2].iter().cycle().take(12) {
            let seconds = f64::from(*length);
            let name = || "idle".to_owned();
            waits.add(Wait {
                at: 0.0,
                seconds,
                on_processor: 0.0,
                in_queue: None,
                faults: 0,
                survived: 0,
                moved: 0,
                from: name(),
                to: name(),
            });
        }
        let lengths: Vec<_> = waits.longest.iter().map(|wait| wait.seconds as u32).collect();
        assert_eq!(lengths, [3, 3, 3, 3, 2, 2, 2, 2, 1, 1]);
    }
}

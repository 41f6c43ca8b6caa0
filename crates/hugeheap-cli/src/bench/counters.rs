//! Hardware counters of a measured process: TLB, caches, instructions, cycles.
//!
//! They are opened on the thread that starts the process, disabled, to be inherited and to begin counting at
//! the process's `exec`. This process never executes another program, so its own share stays zero, and the sums
//! are those of the measured process and all it starts: no race with its start, and no stop of it. The kernel
//! lets counters take turns when there are more than the CPU has; the counts are then scaled by the time each
//! was running.

use crate::descriptors::told;
use perf_event::events::{Cache, CacheId, CacheOp, CacheResult, Event, Hardware};
use perf_event::{Builder, Counter, ReadFormat};
use std::io;

/// What is counted, by the names of the reports.
pub(crate) const NAMES: [&str; 9] = [
    "dtlb_loads",
    "dtlb_load_misses",
    "dtlb_stores",
    "dtlb_store_misses",
    "itlb_load_misses",
    "cache_references",
    "cache_misses",
    "instructions",
    "cycles",
];

/// Counts by the order of [`NAMES`]; `None`: this machine has no such counter.
pub(crate) type Counts = [Option<u64>; NAMES.len()];

/// Counters waiting for the next process this thread starts.
pub(crate) struct Counters([Option<Counter>; NAMES.len()]);

impl Counters {
    /// Opens what the machine has.
    ///
    /// # Errors
    /// One line with the reason when it has none at all.
    pub(crate) fn open() -> Result<Self, String> {
        let cache = |which, operation, result| Cache { which, operation, result };
        let tlb = CacheId::DTLB;
        let mut refusal = None;
        let mut keep = |opened: io::Result<Counter>| match opened {
            Ok(counter) => Some(counter),
            Err(error) => {
                refusal.get_or_insert(error);
                None
            }
        };
        let counters = [
            keep(open(cache(tlb, CacheOp::READ, CacheResult::ACCESS))),
            keep(open(cache(tlb, CacheOp::READ, CacheResult::MISS))),
            keep(open(cache(tlb, CacheOp::WRITE, CacheResult::ACCESS))),
            keep(open(cache(tlb, CacheOp::WRITE, CacheResult::MISS))),
            keep(open(cache(CacheId::ITLB, CacheOp::READ, CacheResult::MISS))),
            keep(open(Hardware::CACHE_REFERENCES)),
            keep(open(Hardware::CACHE_MISSES)),
            keep(open(Hardware::INSTRUCTIONS)),
            keep(open(Hardware::CPU_CYCLES)),
        ];
        if counters.iter().any(Option::is_some) {
            return Ok(Self(counters));
        }
        Err(match refusal {
            Some(error) if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM)) => {
                "not permitted; allow it with 'sysctl kernel.perf_event_paranoid=1' (as root) or CAP_PERFMON"
                    .to_owned()
            }
            Some(error)
                if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP)) =>
            {
                "not supported: this machine offers no hardware counters (usual in a virtual machine)"
                    .to_owned()
            }
            Some(error) => format!("not supported: {error}", error = told(&error)),
            None => "not supported".to_owned(),
        })
    }

    /// Whether the machine has the counter at a place of [`NAMES`].
    pub(crate) fn has(&self, index: usize) -> bool {
        self.0[index].is_some()
    }

    /// The counts, after the process has ended.
    pub(crate) fn read(mut self) -> Counts {
        std::array::from_fn(|index| self.0[index].as_mut().and_then(|counter| scaled(counter).ok().flatten()))
    }
}

fn open(event: impl Event) -> io::Result<Counter> {
    Builder::new(event)
        .inherit(true)
        .enable_on_exec(true)
        .read_format(ReadFormat::TOTAL_TIME_ENABLED | ReadFormat::TOTAL_TIME_RUNNING)
        .build()
}

/// The count, scaled to the whole run; `None` when the counter never ran.
fn scaled(counter: &mut Counter) -> io::Result<Option<u64>> {
    let data = counter.read_full()?;
    let (Some(enabled), Some(running)) = (data.time_enabled(), data.time_running()) else {
        return Ok(Some(data.count()));
    };
    if running.is_zero() {
        return Ok(None);
    }
    Ok(Some((data.count() as f64 * enabled.as_secs_f64() / running.as_secs_f64()) as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use perf_event::events::Software;
    use std::process::Command;

    /// Software events are counted in the same way and exist on every machine: they show that a counter
    /// opened here counts the process that is started next, from its exec on, and nothing of this one.
    #[test]
    fn a_started_process_is_counted_and_this_one_is_not() {
        let Ok(mut counter) = open(Software::PAGE_FAULTS) else {
            eprintln!("not permitted to open software events here: nothing to test");
            return;
        };
        let own = vec![1u8; 8 << 20];
        assert_eq!(counter.read_full().unwrap().count(), 0, "{}", own.len());
        assert!(Command::new("true").status().unwrap().success());
        let faults = scaled(&mut counter).unwrap().unwrap();
        assert!((10..5000).contains(&faults), "{faults}");
    }

    #[test]
    fn a_machine_without_counters_says_so() {
        if let Err(why) = Counters::open() {
            assert!(why.starts_with("not "), "{why}");
        }
    }
}

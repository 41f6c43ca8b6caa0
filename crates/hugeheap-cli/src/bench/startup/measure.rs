//! One run: a program fills its heap, then reads it again and again until the deadline, while the heap becomes
//! huge or does not.
//!
//! ```text
//!   reading thread      fill ──▶ read a huge page's worth, look now and then at the clock and the kernel … ──▶ deadline
//!   another thread                └─ collapse (hugeheap_os::process), in the variant that does
//! ```
//!
//! A stall is a read of a huge page's worth that took longer than usual; the longest is told. Looks at the
//! kernel are not in it.

use crate::bench::region::Region;
use crate::descriptors::told;
use hugeheap_os::linux::{Linux, LinuxProcess};
use hugeheap_os::process::{CollapseOptions, collapse};
use hugeheap_os::{Advice, Backing, Pages};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Who makes the heap huge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Khugepaged,
    Collapse,
    /// The kernel, at each first touch: the memory was advised before.
    Start,
}

impl By {
    pub(crate) const ALL: [Self; 3] = [Self::Khugepaged, Self::Collapse, Self::Start];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Khugepaged => "khugepaged",
            Self::Collapse => "collapse",
            Self::Start => "huge from the start",
        }
    }
}

/// What a run tells. Times in seconds.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Run {
    pub(crate) fill: f64,
    /// Since the heap was filled: seconds, and bytes on huge pages.
    pub(crate) samples: Vec<(f64, u64)>,
    pub(crate) size: u64,
    pub(crate) longest_stall: f64,
    /// Of collapse: the whole, and its longest call.
    pub(crate) collapse: Option<(f64, f64)>,
    /// Why collapse ended early, or did not begin.
    pub(crate) refusal: Option<String>,
    pub(crate) intact: bool,
}

/// Coverage that counts as all.
pub(crate) const ALL: f64 = 0.99;
/// Between two looks at the kernel: a look at 4 GiB takes 3 ms.
const PERIOD: Duration = Duration::from_millis(100);
/// Reading goes on so long after all is huge: a stall at the end shows, too.
const AFTER: Duration = Duration::from_millis(500);

impl Run {
    pub(crate) fn coverage(&self, sample: Option<&(f64, u64)>) -> f64 {
        sample.map_or(0.0, |&(_, huge)| huge as f64 / self.size as f64)
    }

    /// When all was huge; `None`: not before the deadline.
    pub(crate) fn reached(&self) -> Option<f64> {
        self.samples.iter().find(|sample| self.coverage(Some(sample)) >= ALL).map(|&(at, _)| at)
    }
}

/// Measures, in the process that asks.
///
/// # Errors
/// When the memory cannot be had.
pub(crate) fn measure(by: By, size: u64, deadline: Duration) -> Result<Run, String> {
    // Advised against first, so that mode `always` does not make it huge before its time.
    let region = Region::map(size, if by == By::Start { Backing::Thp } else { Backing::Base })?;
    let start = Instant::now();
    for offset in (0..region.range.len).step_by(region.os_page) {
        region.write(offset, offset as u64);
    }
    let fill = start.elapsed().as_secs_f64();
    if by != By::Start {
        // SAFETY: our range; advice keeps contents.
        unsafe { Linux::new().advise(region.range, Advice::Huge) }.map_err(|error| error.to_string())?;
    }
    let start = Instant::now();
    let (read, collapsed) = std::thread::scope(|scope| {
        let worker = (by == By::Collapse).then(|| {
            scope.spawn(move || {
                let options =
                    CollapseOptions { budget: deadline, max_growth: Some(0), ..CollapseOptions::default() };
                let own = LinuxProcess::own().map_err(|error| told(&error).to_string())?;
                collapse(&own, &options, &mut |_| {}).map_err(|error| told(&error).to_string())
            })
        });
        let read = read(&region, start, deadline);
        (read, worker.map(|worker| worker.join().unwrap_or_else(|_| Err("it failed".to_owned()))))
    });
    let (samples, longest_stall, intact) = read?;
    let report = collapsed.as_ref().and_then(|report| report.as_ref().ok());
    Ok(Run {
        fill,
        samples,
        size: region.range.len as u64,
        longest_stall,
        collapse: report.map(|report| (report.elapsed.as_secs_f64(), report.longest_call.as_secs_f64())),
        refusal: match &collapsed {
            Some(Err(why)) => Some(why.clone()),
            Some(Ok(report)) => report.stop.as_ref().map(|stop| format!("{stop:?}")),
            None => None,
        },
        intact,
    })
}

type Read = (Vec<(f64, u64)>, f64, bool);

/// Reads until the deadline, or until all has been huge for a while.
fn read(region: &Region, start: Instant, deadline: Duration) -> Result<Read, String> {
    let huge = || Ok::<u64, String>(region.residency()?.huge());
    let mut samples = vec![(start.elapsed().as_secs_f64(), huge()?)];
    let (mut stall, mut intact) = (Duration::ZERO, true);
    let mut all_huge: Option<Instant> = None;
    let mut units = region.units().cycle();
    let mut next = start + PERIOD;
    loop {
        let unit = units.next().expect("a cycle has no end");
        let begin = Instant::now();
        for address in (unit.start..unit.end()).step_by(region.os_page) {
            let offset = address - region.range.start;
            intact &= region.read(offset) == offset as u64;
        }
        stall = stall.max(begin.elapsed());
        let now = Instant::now();
        let over = now >= start + deadline || all_huge.is_some_and(|since| now >= since + AFTER);
        if now >= next || over {
            let bytes = huge()?;
            samples.push((start.elapsed().as_secs_f64(), bytes));
            if all_huge.is_none() && bytes as f64 >= region.range.len as f64 * ALL {
                all_huge = Some(now);
            }
            next = Instant::now() + PERIOD;
        }
        if over {
            return Ok((samples, stall.as_secs_f64(), intact));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::forked;

    #[test]
    fn a_run_ends_at_the_deadline_with_its_contents() {
        for by in By::ALL {
            let run = forked::run(None, |_| measure(by, 16 << 20, Duration::from_millis(300))).unwrap();
            assert!(run.intact && run.fill > 0.0 && run.longest_stall > 0.0, "{by:?} {run:?}");
            assert!(run.samples.len() >= 2 && run.samples[0].0 < run.samples[1].0, "{by:?} {run:?}");
            assert_eq!(run.collapse.is_some() || run.refusal.is_some(), by == By::Collapse, "{run:?}");
        }
    }

    #[test]
    fn all_is_reached_at_the_first_sample_that_shows_it() {
        let run = Run {
            fill: 1.0,
            samples: vec![(0.0, 0), (0.5, 60), (0.9, 99), (1.0, 100)],
            size: 100,
            longest_stall: 0.0,
            collapse: None,
            refusal: None,
            intact: true,
        };
        assert_eq!(run.reached(), Some(0.9));
        assert_eq!(Run { samples: vec![(0.0, 0), (0.5, 98)], ..run }.reached(), None);
    }
}

//! Memory of a process and of those it starts, over time, looked at from outside at a bounded cost.
//!
//! ```text
//!   Tree     which processes: the one that is watched, its children, theirs
//!   source   what the kernel's files say of one process; pure parsing
//!   Pace     when a costly source may be asked again; pure
//!   Watch    one look at all of it ──▶ Sample
//! ```
//!
//! A *look* reads what costs next to nothing (`status`, `stat`, the group's charge: 20 µs for a process,
//! measured here, or 150 when a processor wakes up for it and finds nothing in its caches) each time. What
//! walks page tables and takes the lock of the process's mappings (`smaps_rollup`), or its pages one by one
//! (what is stranded), is asked only as often as fits a share of the time; cells of looks between stay empty.
//! Looks themselves are made more rarely where they cost more than theirs: with a thousand processes one takes
//! 20 ms.
//!
//! ```text
//!   budget, 1 % of the time   ├─ 0.25 smaps_rollup ─┼ 0.1 stranded ┼ 0.05 tree ┼── 0.4 the rest ──┼─ 0.2 not looks ─┤
//! ```

mod pace;
mod source;
mod tree;

pub(crate) use tree::{Tree, adopt_orphans, children};

use crate::ps::row::cost as smaps_cost;
use hugeheap_os::linux::{Linux, LinuxProcess};
use hugeheap_os::process::{Derivation, Process, look};
use hugeheap_os::{Facts, PageSizes};
use pace::{Pace, Rhythm};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Share of the time that looks may take, all sources together, unless said otherwise. What they take of a
/// processor the watched program may have wanted, and what they hold a lock it may have waited for: so it is
/// what they cost at most.
const BUDGET: f64 = 0.01;
/// Part of the budget for `smaps_rollup`, the most telling source. All parts together are 0.8: beside its looks
/// a recorder starts, wakes up, and writes files, 8 ms in four seconds, measured here.
///
/// It holds the lock that `mmap` and page faults of several threads need.
const DETAILS: f64 = 0.25;
/// The same for pages one by one, which takes the lock in small pieces.
const STRANDED: f64 = 0.1;
/// For finding out who was started: reads files of the processes, takes no lock of theirs. A process is found
/// 50 ms after its start, in a tree of ten after half a second.
const TREE: f64 = 0.05;
/// For what is read at each look. At 20 looks a second that is 200 µs for one: enough for a few processes on a
/// machine that is idle otherwise, and for ten on one that is busy.
const REST: f64 = 0.4;
/// What finding out who was started may take the first time.
const FINDING: Duration = Duration::from_micros(25);
/// What a first search for stranded pages may take: it ends itself when its time is up.
const FIRST_SEARCH: Duration = Duration::from_millis(2);

/// One look. Bytes and counts, sums over the processes; what was not looked at this time is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
pub(crate) struct Sample {
    /// Nanoseconds since the first look.
    pub(crate) time: u64,
    /// Resident, without pages of a hugetlb pool. Pages that several processes share are counted in each.
    pub(crate) rss: u64,
    /// The most that was resident in any one process until now, as the kernel keeps it: no peak between two
    /// looks is lost.
    pub(crate) peak: u64,
    /// Pages of hugetlb pools.
    pub(crate) hugetlb: u64,
    /// Page tables.
    pub(crate) page_tables: u64,
    /// Resident, shared pages divided by those who share them.
    pub(crate) pss: Option<u64>,
    /// Mapped by huge pages, without hugetlb.
    pub(crate) huge: Option<u64>,
    /// Resident when `huge` was read.
    pub(crate) resident: Option<u64>,
    /// Held for huge pages of which only a part is mapped.
    pub(crate) stranded: Option<u64>,
    /// Charge of the control group, pages of hugetlb pools included.
    pub(crate) charge: Option<u64>,
    pub(crate) minor_faults: u64,
    pub(crate) major_faults: u64,
    /// How many processes.
    pub(crate) processes: u32,
}

impl Sample {
    /// Share of the resident memory that is mapped by huge pages, hugetlb included.
    pub(crate) fn coverage(&self) -> Option<f64> {
        let all = self.resident? + self.hugetlb;
        (all > 0).then_some((self.huge? + self.hugetlb) as f64 / all as f64)
    }
}

/// Where the charge is read.
#[derive(Clone, Debug)]
pub(crate) struct Charge {
    pub(crate) file: PathBuf,
    /// Whether it holds pages of hugetlb pools.
    pub(crate) counts_hugetlb: bool,
}

/// A process that is watched.
pub(crate) struct Watch {
    tree: Tree,
    linux: Linux,
    sizes: PageSizes,
    charge: Option<Charge>,
    begin: Instant,
    details: Pace,
    stranded: Pace,
    finding: Pace,
    rest: Rhythm,
    /// Whether this process may see physical pages.
    sees_folios: bool,
    /// Processor time spent on looks.
    spent: Duration,
}

impl Watch {
    /// Begins with the first look's clock at zero.
    pub(crate) fn new(tree: Tree, linux: Linux, charge: Option<Charge>) -> Self {
        let sees_folios = LinuxProcess::own().is_ok_and(|own| own.derivation() == Derivation::Folios);
        Self {
            tree,
            linux,
            sizes: linux.page_sizes(),
            charge,
            begin: Instant::now(),
            details: Pace::new(BUDGET * DETAILS),
            stranded: Pace::new(BUDGET * STRANDED),
            finding: Pace::new(BUDGET * TREE),
            rest: Rhythm::new(BUDGET * REST),
            sees_folios,
            spent: Duration::ZERO,
        }
    }

    /// Takes at most this share of the time.
    pub(crate) fn within(mut self, budget: f64) -> Self {
        self.details = Pace::new(budget * DETAILS);
        self.stranded = Pace::new(budget * STRANDED);
        self.finding = Pace::new(budget * TREE);
        self.rest = Rhythm::new(budget * REST);
        self
    }

    /// From the beginning of one look to that of the next, at least, to keep to the budget.
    pub(crate) fn at_least(&self) -> Duration {
        self.rest.at_least()
    }

    /// Processor time spent on looks until now.
    pub(crate) fn spent(&self) -> Duration {
        self.spent
    }

    /// How many processes that were started by the first are still there.
    pub(crate) fn left(&mut self) -> usize {
        self.tree.find();
        self.tree.others_now()
    }

    /// Looks once; `None` when none of the processes is there any more.
    pub(crate) fn look(&mut self) -> Option<Sample> {
        // Where the clock would count the time in which this thread waited for a processor, a loaded machine
        // would make looks rare.
        let start = self.linux.thread_time();
        let elapsed = self.begin.elapsed();
        if self.finding.may(elapsed, FINDING) {
            self.tree.find();
            self.finding.done(self.linux.thread_time() - start, true);
        }
        let found = self.linux.thread_time();
        let mut sample = Sample { time: elapsed.as_nanos() as u64, ..Sample::default() };
        for (id, started) in self.tree.known() {
            let Some(it) = source::cheap(id).filter(|it| it.started == started) else { continue };
            sample.rss += it.rss;
            sample.peak = sample.peak.max(it.peak);
            sample.hugetlb += it.hugetlb;
            sample.page_tables += it.page_tables;
            sample.minor_faults += it.minor_faults;
            sample.major_faults += it.major_faults;
            sample.processes += 1;
        }
        if sample.processes == 0 {
            return None;
        }
        sample.charge = self.charged(sample.hugetlb);
        self.rest.done(self.linux.thread_time() - found);
        self.details(elapsed, &mut sample);
        self.stranded(elapsed, &mut sample);
        self.spent += self.linux.thread_time() - start;
        Some(sample)
    }

    fn charged(&self, hugetlb: u64) -> Option<u64> {
        let charge = self.charge.as_ref()?;
        let bytes: u64 = source::text(&charge.file)?.trim().parse().ok()?;
        Some(if charge.counts_hugetlb { bytes } else { bytes + hugetlb })
    }

    fn details(&mut self, elapsed: Duration, sample: &mut Sample) {
        let expected = smaps_cost(sample.page_tables, self.sizes.os);
        if !self.details.may(elapsed, expected) {
            return;
        }
        let start = Instant::now();
        let all: Vec<_> = self.tree.living().filter_map(source::details).collect();
        self.details.done(start.elapsed(), true);
        // One that may not be read would make the sum a wrong one.
        if all.len() == sample.processes as usize {
            sample.pss = Some(all.iter().map(|it| it.pss).sum());
            sample.huge = Some(all.iter().map(|it| it.huge).sum());
            sample.resident = Some(all.iter().map(|it| it.resident).sum());
        }
    }

    fn stranded(&mut self, elapsed: Duration, sample: &mut Sample) {
        // On the whole host there is none: so here.
        if LinuxProcess::partially_mapped_on_host(self.linux) == Some(0) {
            sample.stranded = Some(0);
            return;
        }
        if !self.sees_folios || !self.stranded.may(elapsed, FIRST_SEARCH) {
            return;
        }
        let (begin, allowed) = (self.linux.now(), self.stranded.allowance(elapsed));
        let mut sum = Some(0);
        for id in self.tree.living() {
            let found = LinuxProcess::open(self.linux, id).and_then(|it| look(&it, begin + allowed));
            sum = match found {
                Ok((plan, true)) => sum.map(|sum| sum + plan.stranded + plan.shared_stranded),
                // Ended meanwhile, or there was no time for all of it.
                Ok((_, false)) | Err(_) => None,
            };
        }
        self.stranded.done(self.linux.now().saturating_sub(begin), sum.is_some());
        sample.stranded = sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_looked_at_until_it_has_ended() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let mut watch = Watch::new(Tree::new(child.id(), false), Linux::new(), None);
        let sample = watch.look().unwrap();
        assert!(sample.rss > 0 && sample.processes == 1 && sample.charge.is_none(), "{sample:?}");
        child.kill().unwrap();
        // It is not waited for yet: without memory it is gone all the same. The kernel takes its time to end it.
        while watch.look().is_some() {}
        child.wait().unwrap();
    }

    #[test]
    fn costly_sources_are_asked_when_there_was_time_enough() {
        // A small process: what it costs to look at this one depends on what other tests do to it.
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let mut watch = Watch::new(Tree::new(child.id(), false), Linux::new(), None);
        let mut sample = watch.look().unwrap();
        while sample.pss.is_none() {
            std::thread::sleep(Duration::from_millis(5));
            sample = watch.look().unwrap();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(sample.pss.unwrap() <= sample.resident.unwrap());
        assert!(sample.minor_faults > 0 && sample.page_tables > 0 && sample.peak > 0, "{sample:?}");
        assert!(sample.coverage().is_some_and(|share| (0.0..=1.0).contains(&share)));
    }
}

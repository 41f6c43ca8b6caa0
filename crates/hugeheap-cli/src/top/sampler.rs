//! Reading: what is cheap of all processes at each refresh, what is not in turn, and the process that is watched.
//!
//! ```text
//!   cheap   status of all processes, the host          always
//!   deep    smaps, then physical pages, in turn        while there is credit (schedule)
//!   watch   the map of the watched process, its charge  at most a tenth of the time
//! ```
//!
//! A kernel thread has no memory and never gets any, so it is looked at once. A process that ends takes what is
//! known of it along.

use super::heap::Heap;
use super::host::Host;
use super::schedule::{Credit, Due, Turn, order};
use crate::descriptors::told;
use crate::map::view::View;
use crate::process::{FOREIGN, HEADLESS, REFUSED, may_look_at_others, named, proc_is_foreign};
use crate::ps::gather;
use crate::ps::row::{self, Row, Source, Thp, Unread};
use core::time::Duration;
use hugeheap_os::linux::{Linux, LinuxProcess};
use hugeheap_os::process::{Process, ProcessStatus, look};
use hugeheap_os::{ErrorKind, Facts, MemoryLimits, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Time for one map of the watched process, or as long as a process may take at all, if that is longer. What is
/// not seen until then is said.
const MAP_BUDGET: Duration = Duration::from_millis(500);
/// The next map is made after this many times what the last took: maps take at most a tenth of one core.
const MAP_PAUSE: u32 = 10;
/// A change of resident memory after which mappings are read sooner: a sixteenth.
const CHANGED: u64 = 16;
/// Looking at the physical pages of a process takes about this many times what smaps does, before it is known.
const FOLIOS_COST: u32 = 4;
/// The parent of all kernel threads.
const KTHREADD: u32 = 2;

/// What a refresh found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) rows: Vec<Row>,
    pub(crate) host: Host,
    pub(crate) watched: Option<Arc<Watched>>,
    /// Whether this process may see physical pages, and so what is stranded; `None`: nothing is, or it was not tried.
    pub(crate) sees_folios: Option<bool>,
    /// Whether it has the capability to look at other users' processes.
    pub(crate) may_look: bool,
    /// Whether the processes are those of another root.
    pub(crate) root: bool,
    /// Whether mappings were read for it, too.
    pub(crate) complete: bool,
}

/// What is known of the watched process.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) id: u32,
    /// Its map, or why there is none.
    pub(crate) view: std::result::Result<View, String>,
    /// Limits and charge of its memory cgroup.
    pub(crate) limits: Option<MemoryLimits>,
    /// What it shows of its heap, when it is on hugeheap.
    pub(crate) heap: Option<Heap>,
}

/// A process that was seen before.
struct Known {
    row: Row,
    sums: Last,
    stranded: Last,
    /// Resident memory when it was read.
    resident: u64,
}

/// When a process had its turn last, and what that took.
#[derive(Clone, Copy, Debug, Default)]
struct Last {
    read: Option<Duration>,
    cost: Option<Duration>,
}

/// The watched process, open.
struct Watch {
    id: u32,
    process: Option<LinuxProcess>,
    found: Option<Arc<Watched>>,
    next: Duration,
}

/// Everything that is kept from one refresh to the next.
pub(crate) struct Sampler {
    linux: Linux,
    real: bool,
    named: Vec<u32>,
    /// The longest that one process may take.
    limit: Duration,
    credit: Credit,
    known: BTreeMap<u32, Known>,
    kernel_threads: BTreeSet<u32>,
    shown: BTreeSet<u32>,
    sees_folios: Option<bool>,
    /// Whether this process has the capability to look at other users'.
    may_look: bool,
    host: Host,
    watch: Option<Watch>,
}

impl Sampler {
    /// `named`: only these processes. `real`: not under another root.
    pub(crate) fn new(linux: Linux, named: &[u32], limit: Duration, real: bool) -> Self {
        Self {
            linux,
            real,
            named: named.to_vec(),
            limit,
            credit: Credit::new(linux.now()),
            known: BTreeMap::new(),
            kernel_threads: BTreeSet::new(),
            shown: BTreeSet::new(),
            sees_folios: None,
            may_look: may_look_at_others(),
            host: Host::default(),
            watch: None,
        }
    }

    /// Processes that are on the screen: they are read sooner.
    pub(crate) fn show(&mut self, shown: BTreeSet<u32>) {
        self.shown = shown;
    }

    /// The process to be watched.
    pub(crate) fn watch(&mut self, id: Option<u32>) {
        if self.watch.as_ref().map(|watch| watch.id) != id {
            self.watch = id.map(|id| Watch { id, process: None, found: None, next: Duration::ZERO });
        }
    }

    /// Reads what is cheap.
    pub(crate) fn cheap(&mut self) -> Result<()> {
        self.host.refresh(self.linux);
        let mut statuses: BTreeMap<u32, ProcessStatus> = BTreeMap::new();
        let all = LinuxProcess::all(self.linux)?;
        let there: BTreeSet<u32> = all.iter().copied().collect();
        self.kernel_threads.retain(|id| there.contains(id));
        for id in all {
            if self.kernel_threads.contains(&id) {
                continue;
            }
            let Ok(status) = LinuxProcess::status_of(self.linux, id) else { continue };
            if !status.has_memory && !status.ended && (status.parent == KTHREADD || id == KTHREADD) {
                self.kernel_threads.insert(id);
            }
            statuses.insert(id, status);
        }
        let switches = row::switches(&statuses, self.host.thp.map(|(mode, _)| mode));
        let named = &self.named;
        statuses.retain(|id, status| status.has_memory && (named.is_empty() || named.contains(id)));
        self.known.retain(|id, _| statuses.contains_key(id));
        for (id, status) in statuses {
            let thp = switches.get(&id).copied().unwrap_or(Thp::Unknown);
            match self.known.get_mut(&id) {
                Some(known) => (known.row.status, known.row.thp) = (status, thp),
                None => {
                    let row = Row { id, status, sums: Err(Unread::Budget), stranded: None, thp };
                    self.known.insert(
                        id,
                        Known { row, sums: Last::default(), stranded: Last::default(), resident: 0 },
                    );
                }
            }
        }
        Ok(())
    }

    /// Reads what is not cheap, as far as there is credit; and the watched process.
    pub(crate) fn deep(&mut self) {
        let stranding = match LinuxProcess::partially_mapped_on_host(self.linux) {
            Some(0) => {
                for known in self.known.values_mut() {
                    known.row.stranded = Some((0, Source::Host));
                }
                false
            }
            _ => {
                // What the counter said does not hold any more.
                for known in self.known.values_mut() {
                    known.row.stranded = known.row.stranded.filter(|(_, source)| *source != Source::Host);
                }
                *self.sees_folios.get_or_insert_with(|| gather::sees_folios(self.real))
            }
        };
        let now = self.linux.now();
        self.credit.earn(now);
        let mut due = self.due(stranding);
        order(&mut due, now);
        for Due { id, turn, .. } in due {
            if !self.credit.is_left() {
                break;
            }
            self.read(id, turn);
        }
        self.look();
    }

    /// Who waits for a turn. One that would take longer than the limit does not.
    fn due(&self, stranding: bool) -> Vec<Due> {
        let os_page = self.linux.page_sizes().os;
        let mut due = Vec::new();
        for (&id, known) in &self.known {
            let row = &known.row;
            let smaps = row::cost(row.status.page_tables, os_page);
            let mut add = |turn, last: Last, guess: Duration| {
                let cost = last.cost.unwrap_or(guess);
                // It may take less than it did, when it has become smaller.
                if cost.min(guess * 4) <= self.limit {
                    let changed = known.resident.abs_diff(row.resident()) * CHANGED > row.resident();
                    let shown = self.shown.contains(&id);
                    due.push(Due {
                        id,
                        turn,
                        read: last.read,
                        cost,
                        shown,
                        changed,
                        resident: row.resident(),
                    });
                }
            };
            add(Turn::Sums, known.sums, smaps);
            if stranding && row.sums != Err(Unread::Permission) && row.status.anonymous > 0 {
                add(Turn::Stranded, known.stranded, smaps * FOLIOS_COST);
            }
        }
        due
    }

    /// Gives a process its turn.
    fn read(&mut self, id: u32, turn: Turn) {
        let (begin, work) = (self.linux.now(), self.linux.thread_time());
        let Some(known) = self.known.get_mut(&id) else { return };
        match turn {
            Turn::Sums => match gather::sums_of(self.linux, id, begin + self.limit) {
                Some(sums) => known.row.sums = sums,
                None => {
                    self.known.remove(&id);
                    return;
                }
            },
            Turn::Stranded => {
                let found = gather::stranded_in(self.linux, id, begin + self.limit);
                known.row.stranded = found.ok().map(|bytes| (bytes, Source::Folios));
            }
        }
        // Time that others had meanwhile is not spent.
        let spent = self.linux.thread_time() - work;
        let last = if turn == Turn::Sums { &mut known.sums } else { &mut known.stranded };
        *last = Last { read: Some(self.linux.now()), cost: Some(spent) };
        known.resident = known.row.resident();
        self.credit.spend(spent);
    }

    /// Looks at the watched process, when it is time.
    fn look(&mut self) {
        let Some(watch) = &mut self.watch else { return };
        let now = self.linux.now();
        if now < watch.next {
            return;
        }
        let Some(known) = self.known.get(&watch.id) else {
            let status = LinuxProcess::status_of(self.linux, watch.id).ok();
            watch.found = status.filter(|status| status.main_thread_ended).map(|status| {
                let why = format!("{}: {HEADLESS}", named(watch.id, &status.name));
                Arc::new(Watched { id: watch.id, view: Err(why), limits: None, heap: None })
            });
            return;
        };
        let status = &known.row.status;
        let mode = self.host.thp.map(|(mode, _)| mode);
        if watch.process.is_none() {
            match LinuxProcess::open(self.linux, watch.id) {
                Ok(process) => watch.process = Some(process),
                Err(error) => {
                    let why = why(watch.id, status, error);
                    watch.found =
                        Some(Arc::new(Watched { id: watch.id, view: Err(why), limits: None, heap: None }));
                    watch.next = now + Duration::from_secs(1);
                    return;
                }
            }
        }
        let Some(process) = &watch.process else { return };
        let work = self.linux.thread_time();
        let budget = MAP_BUDGET.max(self.limit);
        let view = View::gather(process, status, mode, budget);
        let limits = process.memory_limits().ok();
        let id = watch.id;
        let heap = Heap::of(self.linux, id, self.linux.now() + budget);
        let stranded = match self.sees_folios {
            Some(true) => look(process, self.linux.now() + budget).ok().filter(|(_, complete)| *complete),
            _ => None,
        };
        let view = view.map_err(|error| why(id, status, error));
        if view.is_err() {
            watch.process = None;
        }
        watch.found = Some(Arc::new(Watched { id, view, limits, heap }));
        if let (Some((plan, _)), Some(known)) = (stranded, self.known.get_mut(&id)) {
            if !matches!(known.row.stranded, Some((_, Source::Host))) {
                known.row.stranded = Some((plan.stranded + plan.shared_stranded, Source::Folios));
            }
        }
        watch.next = self.linux.now() + (self.linux.thread_time() - work) * MAP_PAUSE;
    }

    /// What is known now.
    pub(crate) fn sample(&self, complete: bool) -> Sample {
        Sample {
            rows: self.known.values().map(|known| known.row.clone()).collect(),
            host: self.host.clone(),
            watched: self.watch.as_ref().and_then(|watch| watch.found.clone()),
            sees_folios: self.sees_folios,
            may_look: self.may_look,
            root: !self.real,
            complete,
        }
    }
}

/// Why a process cannot be looked at, on one line.
fn why(id: u32, status: &ProcessStatus, error: hugeheap_os::Error) -> String {
    let who = named(id, &status.name);
    match error.kind() {
        ErrorKind::Permission if may_look_at_others() => {
            format!("{who} (user {}) may not be looked at: {REFUSED}", status.user)
        }
        ErrorKind::Permission => {
            format!("{who} is user {}'s: looking at its memory needs CAP_SYS_PTRACE (sudo)", status.user)
        }
        _ if error.code == libc::ESRCH && proc_is_foreign() => format!("{who}: {FOREIGN}"),
        _ if error.code == libc::ESRCH => format!("{who} has ended"),
        _ => format!("{who}: {error}", error = told(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_read_and_watched() {
        let id = std::process::id();
        let mut sampler = Sampler::new(Linux::new(), &[id], Duration::from_secs(20), true);
        sampler.cheap().unwrap();
        let first = sampler.sample(false);
        assert_eq!(first.rows.len(), 1);
        assert!(first.rows[0].resident() > 0 && first.rows[0].sums == Err(Unread::Budget));
        sampler.watch(Some(id));
        sampler.deep();
        let second = sampler.sample(true);
        assert!(second.rows[0].sums.is_ok());
        let watched = second.watched.expect("it is watched");
        assert!(watched.view.as_ref().is_ok_and(|view| view.resident() > 0), "{:?}", watched.view);
        sampler.watch(None);
        assert!(sampler.sample(true).watched.is_none());
    }

    #[test]
    fn a_process_that_is_not_there_is_not_in_the_list() {
        let mut sampler = Sampler::new(Linux::new(), &[(1 << 22) - 1], Duration::from_secs(1), true);
        sampler.cheap().unwrap();
        sampler.deep();
        assert!(sampler.sample(true).rows.is_empty());
    }
}

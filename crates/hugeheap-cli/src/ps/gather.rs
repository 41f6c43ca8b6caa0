//! Finding out: of all processes what is cheap, then what is not, while there is time.
//!
//! ```text
//!   status of all              always; a kernel thread has no memory and is left out
//!   smaps, largest first       where its cost, known from the size of the page tables, fits its share
//!   stranded, largest first    nobody has any when the host's counter is zero; else the physical pages
//! ```
//!
//! Each process has at most half of the time that is left (its share), so that none holds up the others: what
//! smaps costs does not show beforehand where a process has many mappings and small page tables.

use super::row::{self, Row, Source, Sums, Unread};
use crate::process::may_look_at_others;
use core::time::Duration;
use hugeheap_os::linux::{Linux, LinuxProcess};
use hugeheap_os::process::{Derivation, Process, ProcessStatus, look};
use hugeheap_os::{ErrorKind, Facts, Result};
use std::collections::BTreeMap;

/// The list and what is said about it.
#[derive(Debug)]
pub(crate) struct List {
    pub(crate) rows: Vec<Row>,
    /// Of the processes that were named, those that are not in it: gone, or none with memory.
    pub(crate) missing: Vec<u32>,
    /// Processes whose stranded memory was not looked for, for lack of time.
    pub(crate) not_looked: usize,
    /// Whether this process may see physical pages.
    pub(crate) sees_folios: bool,
    /// Whether it has the capability to look at other users' processes.
    pub(crate) may_look: bool,
    /// Whether the processes are those of the running kernel, and not of another root.
    pub(crate) real: bool,
    pub(crate) elapsed: Duration,
}

/// Gathers the list. `named`: only these.
pub(crate) fn gather(linux: Linux, named: &[u32], budget: Duration, real: bool) -> Result<List> {
    let begin = linux.now();
    let deadline = begin + budget;
    let statuses = statuses(linux)?;
    let missing = missing(named, &statuses);
    let mut switches = row::switches(&statuses, linux.thp().ok().map(|thp| thp.mode));
    let mut rows: Vec<Row> = statuses
        .into_iter()
        .filter(|(id, status)| status.has_memory && (named.is_empty() || named.contains(id)))
        .filter_map(|(id, status)| {
            let thp = switches.remove(&id)?;
            Some(Row { id, status, sums: Err(Unread::Budget), stranded: None, thp })
        })
        .collect();
    row::sort(&mut rows, super::arguments::Sort::Rss);
    let os_page = linux.page_sizes().os;
    // What has no time for one may have it for a smaller one.
    rows.retain_mut(|row| {
        let now = linux.now();
        let until = share(now, deadline);
        if now + row::cost(row.status.page_tables, os_page) >= until {
            return true;
        }
        let Some(sums) = sums_of(linux, row.id, until) else { return false };
        row.sums = sums;
        true
    });
    let mut list = List {
        rows,
        missing,
        not_looked: 0,
        sees_folios: false,
        may_look: may_look_at_others(),
        real,
        elapsed: Duration::ZERO,
    };
    stranded(&mut list, linux, deadline);
    list.elapsed = linux.now().saturating_sub(begin);
    Ok(list)
}

/// Until when one process may take time.
fn share(now: Duration, deadline: Duration) -> Duration {
    now + deadline.saturating_sub(now) / 2
}

/// Of the processes that were named, those that have no line.
pub(super) fn missing(named: &[u32], statuses: &BTreeMap<u32, ProcessStatus>) -> Vec<u32> {
    let is_shown = |id: &u32| statuses.get(id).is_some_and(|status| status.has_memory);
    named.iter().copied().filter(|id| !is_shown(id)).collect()
}

/// What every process says about itself. One that has ended since the list was made is not in it.
pub(crate) fn statuses(linux: Linux) -> Result<BTreeMap<u32, ProcessStatus>> {
    let ids = LinuxProcess::all(linux)?.into_iter();
    Ok(ids.filter_map(|id| Some((id, LinuxProcess::status_of(linux, id).ok()?))).collect())
}

/// Sums over the mappings of a process, or why there are none; `None` when it has ended meanwhile.
pub(crate) fn sums_of(
    linux: Linux,
    id: u32,
    deadline: Duration,
) -> Option<std::result::Result<Sums, Unread>> {
    match LinuxProcess::details_of(linux, id, deadline) {
        Ok((details, true)) => Some(Ok(row::sums(&details))),
        Ok((_, false)) => Some(Err(Unread::Budget)),
        Err(error) if error.kind() == ErrorKind::Permission => Some(Err(Unread::Permission)),
        // It is no longer in the list of processes either.
        Err(_) if LinuxProcess::status_of(linux, id).is_err() => None,
        Err(_) => Some(Err(Unread::Failed)),
    }
}

/// Whether this process may see physical pages. Under another root there are none to be seen.
pub(crate) fn sees_folios(real: bool) -> bool {
    real && LinuxProcess::own().is_ok_and(|own| own.derivation() == Derivation::Folios)
}

/// Bytes stranded in a process, from its physical pages. `Err`: there was no time, or it cannot be looked at.
pub(crate) fn stranded_in(linux: Linux, id: u32, until: Duration) -> std::result::Result<u64, Unread> {
    let process = LinuxProcess::open(linux, id).map_err(|_| Unread::Permission)?;
    match look(&process, until) {
        Ok((plan, true)) => Ok(plan.stranded + plan.shared_stranded),
        Ok((_, false)) => Err(Unread::Budget),
        Err(_) => Err(Unread::Failed),
    }
}

/// Finds out what is stranded in each.
fn stranded(list: &mut List, linux: Linux, deadline: Duration) {
    if LinuxProcess::partially_mapped_on_host(linux) == Some(0) {
        for row in &mut list.rows {
            row.stranded = Some((0, Source::Host));
        }
        return;
    }
    list.sees_folios = sees_folios(list.real);
    if !list.sees_folios {
        return;
    }
    for row in &mut list.rows {
        let now = linux.now();
        if now >= deadline {
            list.not_looked += 1;
            continue;
        }
        match stranded_in(linux, row.id, share(now, deadline)) {
            Ok(bytes) => row.stranded = Some((bytes, Source::Folios)),
            Err(Unread::Budget) => list.not_looked += 1,
            Err(_) => {}
        }
    }
}

//! Finding out: of all processes what is cheap, then what is not, while there is time.
//!
//! ```text
//!   status of all              always; a kernel thread has no memory and is left out
//!   smaps, largest first       where its cost, known from the size of the page tables, fits what is left
//!   stranded, largest first    nobody has any when the host's counter is zero; else the physical pages, each
//!                              process with at most half of the time that is left
//! ```

use super::row::{self, Row, Source, Unread};
use core::time::Duration;
use hugeheap_os::linux::{Linux, LinuxProcess};
use hugeheap_os::process::{Derivation, Process, ProcessStatus, look};
use hugeheap_os::{ErrorKind, Facts, Result};
use std::collections::BTreeMap;

/// The list and what is said about it.
#[derive(Debug)]
pub(crate) struct List {
    pub(crate) rows: Vec<Row>,
    /// Of the processes that were named, those that are not there.
    pub(crate) gone: Vec<u32>,
    /// Processes whose stranded memory was not looked for, for lack of time.
    pub(crate) not_looked: usize,
    /// Whether this process may see physical pages.
    pub(crate) sees_folios: bool,
    pub(crate) elapsed: Duration,
}

/// Gathers the list. `named`: only these.
pub(crate) fn gather(linux: Linux, named: &[u32], budget: Duration, real: bool) -> Result<List> {
    let begin = linux.now();
    let deadline = begin + budget;
    let mut statuses: BTreeMap<u32, ProcessStatus> = BTreeMap::new();
    for id in LinuxProcess::all(linux)? {
        // One that has ended since the list was made is not in it.
        if let Ok(status) = LinuxProcess::status_of(linux, id) {
            statuses.insert(id, status);
        }
    }
    let gone = named.iter().copied().filter(|id| !statuses.contains_key(id)).collect();
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
        if linux.now() + row::cost(row.status.page_tables, os_page) >= deadline {
            return true;
        }
        row.sums = match LinuxProcess::details_of(linux, row.id, deadline) {
            Ok((details, true)) => Ok(row::sums(&details)),
            Ok((_, false)) => Err(Unread::Budget),
            Err(error) if error.kind() == ErrorKind::Permission => Err(Unread::Permission),
            // It has ended meanwhile, and is no longer in the list of processes either.
            Err(_) if LinuxProcess::status_of(linux, row.id).is_err() => return false,
            Err(_) => Err(Unread::Failed),
        };
        true
    });
    let mut list = List { rows, gone, not_looked: 0, sees_folios: false, elapsed: Duration::ZERO };
    stranded(&mut list, linux, deadline, real);
    list.elapsed = linux.now() - begin;
    Ok(list)
}

/// Finds out what is stranded in each. Under another root there are no physical pages to be seen.
fn stranded(list: &mut List, linux: Linux, deadline: Duration, real: bool) {
    if LinuxProcess::partially_mapped_on_host(linux) == Some(0) {
        for row in &mut list.rows {
            row.stranded = Some((0, Source::Host));
        }
        return;
    }
    list.sees_folios = real && LinuxProcess::own().is_ok_and(|own| own.derivation() == Derivation::Folios);
    if !list.sees_folios {
        return;
    }
    for row in &mut list.rows {
        let now = linux.now();
        if now >= deadline {
            list.not_looked += 1;
            continue;
        }
        let until = now + (deadline - now) / 2;
        let Ok(process) = LinuxProcess::open(linux, row.id) else { continue };
        match look(&process, until) {
            Ok((plan, true)) => row.stranded = Some((plan.stranded + plan.shared_stranded, Source::Folios)),
            Ok((_, false)) => list.not_looked += 1,
            Err(_) => {}
        }
    }
}

//! Metrics of chosen processes. Who there is is read of all; what costs a walk of page tables only of those
//! that were chosen.

use super::arguments::Choice;
use super::budget::{Budget, What, Why};
use super::metric::{self, Found};
use crate::ps::row::{self, Sums};
use hugeheap_os::Result;
use hugeheap_os::ThpDisabled;
use hugeheap_os::linux::{Linux, LinuxProcess};
use hugeheap_os::process::{Derivation, Process, ProcessStatus, look};

/// A process that has memory.
pub(super) struct Row {
    pub(super) id: u32,
    pub(super) status: ProcessStatus,
    /// Its memory cgroup; `None` where that cannot be seen.
    pub(super) group: Option<String>,
}

impl Row {
    /// What tells it apart.
    pub(super) fn labels<'a>(&'a self, id: &'a str) -> [(&'static str, &'a str); 3] {
        [("pid", id), ("name", &self.status.name), ("cgroup", self.group.as_deref().unwrap_or(""))]
    }
}

/// All processes that have memory.
///
/// # Errors
/// When there is no list of processes.
pub(super) fn all(linux: Linux, budget: &mut Budget) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for id in LinuxProcess::all(linux)? {
        if budget.share().is_none() {
            budget.skip(What::Process, Why::Budget);
            continue;
        }
        // One that has ended since the list was made is not in it.
        let Ok(status) = LinuxProcess::status_of(linux, id) else { continue };
        if status.has_memory && !status.ended {
            rows.push(Row { id, status, group: LinuxProcess::memory_group(linux, id).ok() });
        }
    }
    Ok(rows)
}

/// Whether a process was chosen.
fn is_chosen(row: &Row, choices: &[Choice]) -> bool {
    choices.iter().any(|choice| choice.takes(row.id, &row.status.name, row.group.as_deref()))
}

/// Those that no process is meant by.
pub(super) fn without_process<'a>(rows: &[Row], choices: &'a [Choice]) -> Vec<&'a Choice> {
    let takes = |choice: &Choice, row: &Row| choice.takes(row.id, &row.status.name, row.group.as_deref());
    choices.iter().filter(|choice| !rows.iter().any(|row| takes(choice, row))).collect()
}

pub(super) fn gather(
    linux: Linux,
    rows: &[Row],
    choices: &[Choice],
    real: bool,
    budget: &mut Budget,
    found: &mut Found,
) {
    let mut chosen: Vec<&Row> = rows.iter().filter(|row| is_chosen(row, choices)).collect();
    // The cheap ones first: a giant goes without, and not all others.
    chosen.sort_by_key(|row| (row.status.page_tables, row.id));
    for row in &chosen {
        cheap(row, found);
        let Some(share) = budget.share() else {
            budget.skip(What::Process, Why::Budget);
            continue;
        };
        match LinuxProcess::details_of(linux, row.id, share) {
            Ok((details, true)) => add(row, row::sums(&details), found),
            Ok((_, false)) => budget.skip(What::Process, Why::Budget),
            Err(error) => budget.failed(What::Process, error),
        }
    }
    stranded(linux, &chosen, real, budget, found);
}

fn cheap(row: &Row, found: &mut Found) {
    let id = row.id.to_string();
    let labels = row.labels(&id);
    found.add(&metric::PROCESS_RESIDENT, &labels, row.status.resident + row.status.hugetlb);
    found.add(&metric::PROCESS_PAGE_TABLES, &labels, row.status.page_tables);
    let thp = row.status.thp_disabled.map(|disabled| disabled != ThpDisabled::Completely);
    found.maybe(&metric::PROCESS_THP, &labels, thp);
}

fn add(row: &Row, sums: Sums, found: &mut Found) {
    let id = row.id.to_string();
    let labels = row.labels(&id);
    found.add(&metric::PROCESS_HUGE, &labels, sums.huge);
    found.add(&metric::PROCESS_ELIGIBLE, &labels, sums.eligible);
    if sums.resident > 0 {
        found.add(&metric::PROCESS_COVERAGE, &labels, sums.huge as f64 / sums.resident as f64);
    }
}

/// Nobody has anything stranded when the host's counter is zero; else the physical pages tell. Under another
/// root there are none to be seen.
fn stranded(linux: Linux, chosen: &[&Row], real: bool, budget: &mut Budget, found: &mut Found) {
    let none = LinuxProcess::partially_mapped_on_host(linux) == Some(0);
    for row in chosen {
        let id = row.id.to_string();
        if none {
            found.add(&metric::PROCESS_STRANDED, &row.labels(&id), 0);
            continue;
        }
        let Some(share) = budget.share() else {
            budget.skip(What::Stranded, Why::Budget);
            continue;
        };
        if !real {
            budget.skip(What::Stranded, Why::Failed);
            continue;
        }
        let plan = LinuxProcess::open(linux, row.id).and_then(|process| {
            // Page tables alone give an upper bound that is all of a sparse heap: no number for an alert.
            if process.derivation() == Derivation::Folios {
                look(&process, share).map(Some)
            } else {
                Ok(None)
            }
        });
        match plan {
            Ok(Some((plan, true))) => {
                found.add(&metric::PROCESS_STRANDED, &row.labels(&id), plan.stranded + plan.shared_stranded);
            }
            Ok(Some((_, false))) => budget.skip(What::Stranded, Why::Budget),
            Ok(None) => budget.skip(What::Stranded, Why::Permission),
            Err(error) => budget.failed(What::Stranded, error),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::arguments::Format;
    use super::*;
    use core::time::Duration;

    pub(in super::super) fn row(id: u32) -> Row {
        let status = crate::ps::row::tests::status("app", 4096, 1, Some(ThpDisabled::No));
        Row { id, status, group: None }
    }

    #[test]
    fn without_time_what_is_cheap_is_told_and_the_rest_is_counted() {
        let linux = Linux::new();
        let mut budget = Budget::new(linux, Duration::ZERO);
        let mut found = Found::new();
        let id = std::process::id();
        gather(linux, &[row(id), row(1)], &[Choice::Id(id)], true, &mut budget, &mut found);
        budget.report(&mut found);
        let text = super::super::text::write(found.into(), Format::Prometheus);
        assert!(text.contains("hugeheap_scrape_skipped{what=\"process\",why=\"budget\"} 1\n"), "{text}");
        assert_eq!(text.matches("\nhugeheap_process_resident_bytes{").count(), 1, "{text}");
        assert!(!text.contains("hugeheap_process_huge_bytes{"), "{text}");
    }
}
